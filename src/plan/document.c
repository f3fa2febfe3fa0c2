// SPDX-License-Identifier: Apache-2.0
// document.c - saves a plan as a JSON document (docs/formats.md), reads the edits that replay it,
// and compares two documents.
//
// Documents are untrusted input, so every field is checked, and the first mistake is reported. The
// edits themselves are not parsed here.
#include "plan/plan.h"
#include "plan/plan_once.h"
#include "plan/write/write.h"

#include "tessera_json.h"

#include <jansson.h>

#define PLAN_KIND          "tessera-plan"
#define PLAN_VERSION       1
#define PLAN_MAX_DOCUMENT  ((size_t)1 << 30)
#define PLAN_MAX_LISTED_OP 64

// ---- writing -----------------------------------------------------------------------------------

// Writes name and digest of the model file, so that a replay can report a different model. A model
// made in memory has no digest.
static tsr_status add_model(tsr_json *json, tsr_model *model)
{
    const char *path = tsr_model_path(model), *digest = NULL;
    char hex[65];
    struct sha256 sha;
    tsr_status st = TSR_OK;
    if (path[0]) { // otherwise the model was made in memory
        tsr__sha256_init(&sha);
        st = tsr__sha256_file(tsr_model_session(model), path, &sha);
        tsr__sha256_hex(&sha, hex);
        digest = hex;
    }
    tsr_json_begin(json, "model", '{');
    tsr_json_string(json, "name", path_name(path));
    tsr_json_string(json, "sha256", digest);
    tsr_json_end(json);
    return st;
}

// Writes the options that the plan was made for.
static void add_made_for(tsr_json *json, const tsr_plan_options *options,
                         const tsr_plan_result *plan)
{
    tsr_json_string(json, "configuration", plan->facts.config);
    tsr_json_int(json, "devices", (int64_t)plan->facts.devices);
    tsr_json_bool(json, "assumed", plan->facts.assumed);
    if (options->topology) {
        tsr_json_begin(json, "topology", '{');
        tsr_topology_add_json(tsr__plan_chosen(options->topology, plan), json);
        tsr_json_end(json);
    }
    if (options->memory > 0)
        tsr_json_int(json, "memory_limit", options->memory);
    tsr_json_begin(json, "dims", '{');
    for (size_t i = 0; i < options->n_sizes; i++)
        tsr_json_int(json, options->sizes[i].name, options->sizes[i].size);
    tsr_json_end(json);
}

// Writes the result. Times are picoseconds; memory is bytes by device.
static void add_result(tsr_json *json, const tsr_plan_result *plan)
{
    static const tsr_json_field fields[] = {
        {JSON_FIELD(tsr_plan_result, "cost", facts.cost)},
        {JSON_FIELD(tsr_plan_result, "bound", facts.bound)},
        {JSON_FIELD(tsr_plan_result, "optimal", facts.optimal)},
        {JSON_LIST(tsr_plan_result, "memory", facts.memory, facts.devices)},
        {JSON_LIST(tsr_plan_result, "collectives", collectives, facts.n_collectives)},
        {JSON_END},
    };
    tsr_json_fields(json, fields, plan);
}

void tsr_json_plan_stages(tsr_json *json, const tsr_plan_result *plan)
{
    static const char *const objectives[] = {
        [TSR_LATENCY] = "latency", [TSR_THROUGHPUT] = "throughput"};
    static const tsr_json_field stage_fields[] = {
        {JSON_LIST(tsr_plan_stage, "devices", devices, n_devices)},
        {JSON_FIELD(tsr_plan_stage, "nodes", nodes)},
        {JSON_FIELD(tsr_plan_stage, "first", first)},
        {JSON_FIELD(tsr_plan_stage, "last", last)},
        {JSON_FIELD(tsr_plan_stage, "time", time)},
        {JSON_FIELD(tsr_plan_stage, "transfer", transfer)},
        {JSON_FIELD(tsr_plan_stage, "memory", memory)},
        {JSON_END},
    };
    static const tsr_json_field fields[] = {
        {JSON_NAME(tsr_plan_result, "objective", facts.objective, objectives)},
        {JSON_FIELD(tsr_plan_result, "latency", facts.latency)},
        {JSON_FIELD(tsr_plan_result, "period", facts.period)},
        {JSON_RECORDS(tsr_plan_result, "stages", stages, facts.n_stages, stage_fields)},
        {JSON_END},
    };
    if (plan->facts.n_stages)
        tsr_json_fields(json, fields, plan);
}

// Writes the document. The file appears only when it is complete: a failure leaves no file.
static tsr_status write_document(tsr_model *model, const tsr_plan_options *options,
                                 const tsr_plan_result *plan, const char *path)
{
    tsr_session *session = tsr_model_session(model);
    tsr_json *json = tsr_json_new(session);
    if (!json)
        return TSR_NOMEM;
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "$schema", TSR_JSON_SCHEMA "plan-file");
    tsr_json_string(json, "kind", PLAN_KIND);
    tsr_json_int(json, "version", PLAN_VERSION);
    tsr_status st = add_model(json, model);
    if (st != TSR_OK)
        goto free_json;
    add_made_for(json, options, plan);
    add_result(json, plan);
    tsr_json_plan_stages(json, plan);
    st = tsr__document_nodes(json, model, plan->facts.config);
    if (st != TSR_OK)
        goto free_json;
    tsr_json_end(json);
    st = tsr_json_write(json, path);
free_json:
    tsr_json_free(json);
    return st;
}

tsr_status tsr_plan_save(tsr_model *model, const tsr_plan_options *given,
                         const tsr_plan_result *result, const char *path)
{
    tsr_session *session = tsr_model_session(model);
    tsr_plan_options options;
    TRY(tsr__given(session, "options", given));
    TRY(tsr__given(session, "result", result));
    TRY(tsr__given(session, "path", path));
    TRY(OPTIONS_READ(session, &options, given, seconds));
    TRY(tsr__plan_options_owned(session, &options));
    TRY(tsr__same_session(session, result->head.session, "result"));
    const char *config = result->facts.config;
    if (!result->facts.feasible || !config || !tsr_model_find_config(model, config))
        return tsr__fail(session, TSR_INVALID, DIAG_plan_config,
                         &PLACE(.configuration = str_of(config)),
                         "save a plan that was found, with the model that it was made for",
                         "the model does not have the configuration of the plan");
    return write_document(model, &options, result, path);
}

// ---- reading -----------------------------------------------------------------------------------

// A document while it is read. `failed` is set at the first mistake; only this one is reported.
struct document {
    tsr_session *session;
    struct arena *arena; // memory of the returned texts
    const char *path;
    json_t *root;
    const json_t *nodes;
    bool failed;
};

// Reports a mistake in the document. Only the first is reported, because others may follow from it.
static tsr_status wrong(struct document *document, const char *field, const char *what)
{
    struct place at = PLACE(.file = str_of(document->path));
    if (!document->failed)
        tsr__diag(document->session, DIAG_plan_document, &at,
                  "write it again with `tessera plan --plan`", "\"%s\" %s", field, what);
    document->failed = true;
    return TSR_MALFORMED;
}

// Returns a member of an object. NULL: it is missing or has the wrong type; this was reported.
static const json_t *member(struct document *document, const json_t *object, const char *key,
                            json_type type)
{
    const json_t *value = json_object_get(object, key);
    if (!value) {
        wrong(document, key, "is missing");
        return NULL;
    }
    if (json_typeof(value) != type) {
        wrong(document, key, "has the wrong type");
        return NULL;
    }
    return value;
}

// Copies a string into the arena; "" if the value is not a string. Edits are joined by line breaks
// later, so a text must contain neither a line break nor a null character.
static const char *text_of(struct document *document, const json_t *value)
{
    struct str text = STR("");
    if (json_is_string(value))
        text = (struct str){json_string_value(value), json_string_length(value)};
    if (memchr(text.p, 0, text.n) || memchr(text.p, '\n', text.n))
        wrong(document, "edits", "contains a line break");
    const char *copy = tsr__arena_str(document->arena, text).p;
    return copy ? copy : "";
}

// Checks index, name and edits of a node. Reports only the first mistake.
static tsr_status check_node(struct document *document, size_t i)
{
    const json_t *n = json_array_get(document->nodes, i);
    const json_t *index = member(document, n, "index", JSON_INTEGER);
    const json_t *edits = member(document, n, "edits", JSON_ARRAY);
    if (index && json_integer_value(index) != (json_int_t)i)
        wrong(document, "index", "is not the index of the node");
    (void)member(document, n, "name", JSON_STRING);
    for (size_t k = 0; k < json_array_size(edits); k++)
        if (!json_is_string(json_array_get(edits, k)))
            wrong(document, "edits", "has an entry that is not a string");
    return document->failed ? TSR_MALFORMED : TSR_OK;
}

// Checks a plan document: format and version first, then the nodes up to the first mistake.
static tsr_status check_document(struct document *document)
{
    const json_t *kind = member(document, document->root, "kind", JSON_STRING);
    if (kind && strcmp(json_string_value(kind), PLAN_KIND) != 0)
        wrong(document, "kind", "is not \"" PLAN_KIND "\"");
    const json_t *version = member(document, document->root, "version", JSON_INTEGER);
    if (version && json_integer_value(version) != PLAN_VERSION)
        wrong(document, "version", "is not supported");
    (void)member(document, document->root, "declares", JSON_STRING);
    document->nodes = member(document, document->root, "nodes", JSON_ARRAY);
    if (document->failed)
        return TSR_MALFORMED;
    for (size_t i = 0; i < json_array_size(document->nodes); i++)
        TRY(check_node(document, i));
    return TSR_OK;
}

// Opens a document. The caller must close it in any case.
static tsr_status open_document(struct document *document, tsr_session *session,
                                struct arena *arena, const char *path)
{
    struct str text = {0};
    json_error_t error;
    *document = (struct document){.session = session, .arena = arena, .path = path};
    struct arena bytes = {.session = session};
    tsr_status st = tsr__file_read(session, &bytes, path, PLAN_MAX_DOCUMENT, &text);
    if (st == TSR_OK)
        st = tsr__json_load(session, text, JSON_REJECT_DUPLICATES, &error, &document->root);
    tsr__arena_free(&bytes);
    if (st == TSR_MALFORMED)
        return wrong(document, "document", error.text);
    if (st != TSR_OK)
        return st;
    if (!json_is_object(document->root))
        return wrong(document, "document", "is not a JSON object");
    return check_document(document);
}

static void close_document(struct document *document)
{
    json_decref(document->root);
    document->root = NULL;
}

static void add_edits(struct document *document, struct text *text)
{
    tsr__text_printf(text, "%s\n", text_of(document, json_object_get(document->root, "declares")));
    for (size_t i = 0; i < json_array_size(document->nodes); i++) {
        const json_t *edits = json_object_get(json_array_get(document->nodes, i), "edits");
        for (size_t k = 0; k < json_array_size(edits); k++)
            tsr__text_printf(text, "%s\n", text_of(document, json_array_get(edits, k)));
    }
}

// Returns the lines that replay the plan: the declaration of the configuration, then the edits of
// each node.
tsr_status tsr_plan_edits(tsr_session *session, const char *path, const char **out)
{
    TRY(tsr__given(session, "out", out));
    TRY(tsr__given(session, "path", path));
    struct arena *kept = &session->results[RESULT_EDITS];
    struct document document;
    tsr__arena_free(kept);
    struct text text = {.session = session};
    text.max = PLAN_MAX_DOCUMENT;
    *out = NULL;
    tsr_status st = open_document(&document, session, kept, path);
    if (st != TSR_OK)
        goto close;
    add_edits(&document, &text);
    if (document.failed) {
        st = TSR_MALFORMED;
        goto close;
    }
    st = text_status(&text);
    if (st == TSR_OK)
        *out = tsr__arena_str(kept, (struct str){text.p, text.n}).p;
    if (st == TSR_OK && (!*out || kept->failed))
        st = TSR_NOMEM;
close:
    close_document(&document);
    tsr__text_free(&text);
    return st;
}

// ---- comparing ---------------------------------------------------------------------------------

static int64_t int_of(struct document *document, const char *key)
{
    return (int64_t)json_integer_value(member(document, document->root, key, JSON_INTEGER));
}

// Reads the collectives of a document: at most PLAN_MAX_LISTED_OP entries, each with a count of at
// least 0.
static void read_collectives(struct document *document, tsr_plan_side *out)
{
    const json_t *all = member(document, document->root, "collectives", JSON_OBJECT);
    tsr_collective_count *list =
        ARENA_ARRAY(document->arena, tsr_collective_count, PLAN_MAX_LISTED_OP);
    const char *op;
    json_t *count;
    if (!all || !list)
        return;
    out->collectives = list;
    json_object_foreach((json_t *)all, op, count)
    {
        int64_t n = json_is_integer(count) ? (int64_t)json_integer_value(count) : -1;
        if (n < 0 || out->n_collectives == PLAN_MAX_LISTED_OP) {
            wrong(document, "collectives", "has an invalid count, or too many entries");
            return;
        }
        const char *name = tsr__arena_str(document->arena, str_of(op)).p;
        list[out->n_collectives++] = (tsr_collective_count){.op = name, .count = (size_t)n};
    }
}

// Reads the figures of one document. Memory is that of the fullest device.
static void read_side(struct document *document, tsr_plan_side *out)
{
    const json_t *model = member(document, document->root, "model", JSON_OBJECT);
    const json_t *memory = member(document, document->root, "memory", JSON_ARRAY);
    out->model = text_of(document, json_object_get(model, "name"));
    out->sha256 = text_of(document, json_object_get(model, "sha256"));
    out->config = text_of(document, member(document, document->root, "configuration", JSON_STRING));
    out->devices = int_of(document, "devices");
    out->cost = int_of(document, "cost");
    for (size_t i = 0; i < json_array_size(memory); i++)
        out->memory = int64_max(out->memory, json_integer_value(json_array_get(memory, i)));
    read_collectives(document, out);
}

// Returns the edits of a node, joined by "; ". Drops what is before the value's name. Example:
// --shard "#3":"h"={..} becomes "h"={..}.
static const char *choice_of(struct document *document, size_t i)
{
    const json_t *edits = json_object_get(json_array_get(document->nodes, i), "edits");
    struct str all = STR("");
    const char *before = "";
    for (size_t k = 0; k < json_array_size(edits); k++) {
        const char *edit = text_of(document, json_array_get(edits, k));
        const char *value = strstr(edit, "\":");
        if (value)
            edit = value + 2;
        all = tsr__arena_printf(document->arena, STR_FMT "%s%s", STR_ARG(all), before, edit);
        if (!all.p)
            return ""; // out of memory, which the caller reports
        before = "; ";
    }
    return all.p;
}

// Name and shardings of a node; empty if the document has fewer nodes.
struct node_text {
    const char *name, *choice;
};

static struct node_text node_text(struct document *document, size_t i)
{
    if (i >= json_array_size(document->nodes))
        return (struct node_text){NULL, ""};
    json_t *node = json_array_get(document->nodes, i);
    return (struct node_text){text_of(document, json_object_get(node, "name")),
                              choice_of(document, i)};
}

// Lists nodes at the same index that differ in name or shardings, and nodes that only one document
// has.
static bool list_differences(struct document *a, struct document *b, tsr_plan_comparison *out)
{
    size_t n_a = json_array_size(a->nodes), n_b = json_array_size(b->nodes);
    size_t n = n_a > n_b ? n_a : n_b;
    tsr_plan_difference *list = ARENA_ARRAY(a->arena, tsr_plan_difference, n + 1);
    if (!list)
        return false;
    for (size_t i = 0; i < n; i++) {
        struct node_text x = node_text(a, i), y = node_text(b, i);
        bool same_name = x.name && y.name && strcmp(x.name, y.name) == 0;
        if (same_name && strcmp(x.choice, y.choice) == 0)
            continue;
        list[out->n_differences++] =
            (tsr_plan_difference){(int64_t)i, x.name ? x.name : y.name, {x.choice, y.choice}};
    }
    out->differences = list;
    return !a->arena->failed;
}

// Reads both documents and compares them. The caller must close both in any case.
static tsr_status compare(struct document documents[2], tsr_session *session,
                          const char *const paths[2], tsr_plan_comparison *out)
{
    struct arena *kept = &session->results[RESULT_PLAN];
    for (int i = 0; i < 2; i++)
        TRY(open_document(&documents[i], session, kept, paths[i]));
    for (int i = 0; i < 2; i++) {
        read_side(&documents[i], &out->side[i]);
        if (documents[i].failed)
            return TSR_MALFORMED;
    }
    if (!list_differences(&documents[0], &documents[1], out))
        return TSR_NOMEM;
    if (documents[0].failed || documents[1].failed)
        return TSR_MALFORMED;
    out->same_model =
        out->side[0].sha256[0] && strcmp(out->side[0].sha256, out->side[1].sha256) == 0;
    return TSR_OK;
}

// Compares two documents. *out is written only on success, up to the size that the caller passed.
tsr_status tsr_plan_compare(tsr_session *session, const char *a, const char *b,
                            tsr_plan_comparison *out)
{
    struct document documents[2] = {{0}, {0}};
    tsr_plan_comparison comparison = {.size = sizeof comparison};
    if (!a || !b)
        return tsr__missing(session, a ? "b" : "a");
    TRY(tsr__given(session, "out", out));
    tsr__arena_free(&session->results[RESULT_PLAN]);
    tsr_status st = compare(documents, session, (const char *const[]){a, b}, &comparison);
    close_document(&documents[0]);
    close_document(&documents[1]);
    if (st != TSR_OK)
        return st;
    size_t size = sizeof comparison;
    if (out->size && out->size < size)
        size = out->size;
    comparison.size = size;
    memcpy(out, &comparison, size);
    return TSR_OK;
}
