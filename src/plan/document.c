// SPDX-License-Identifier: Apache-2.0
// document.c - a plan as a JSON document (docs/formats.md): what it was made for, what it comes to, and each node's
// shardings as the edits that write them. Read again to replay it on the model, or to compare two of them.
//
// Documents are read with suspicion: the first thing that is wrong is the finding. What an edit means is not known here.
#include "plan/internal.h"

#include <jansson.h>
#include <stdlib.h>

#define PLAN_KIND          "tessera-plan"
#define PLAN_VERSION       1
#define PLAN_MAX_DOCUMENT  ((size_t)1 << 30)
#define PLAN_MAX_LISTED_OP 64

// ---- writing -----------------------------------------------------------------------------------

static tsr_status add_model(tsr_json *j, tsr_model *m)
{
    const char *path = tsr_model_path(m);
    char hex[65];
    struct sha256 d;
    tsr__sha256_init(&d);
    tsr_status st = path[0] ? tsr__sha256_file(tsr_model_session(m), path, &d) : TSR_OK;
    tsr__sha256_hex(&d, hex);
    const char *slash = strrchr(path, '/');
    tsr_json_begin(j, "model", '{');
    tsr_json_string(j, "name", slash ? slash + 1 : path);
    tsr_json_string(j, "sha256", path[0] ? hex : NULL);
    tsr_json_end(j);
    return st;
}

static void add_made_for(tsr_json *j, const tsr_plan_options *o, const tsr_plan_summary *s)
{
    tsr_json_string(j, "configuration", s->config);
    tsr_json_int(j, "devices", (int64_t)s->devices);
    if (o->topology) {
        tsr_json_begin(j, "topology", '{');
        tsr_topology_add_json(o->topology, j);
        tsr_json_end(j);
    }
    if (o->memory > 0)
        tsr_json_int(j, "memory_limit", o->memory);
    tsr_json_begin(j, "dims", '{');
    for (size_t i = 0; i < o->n_sizes; i++)
        tsr_json_int(j, o->sizes[i].name, o->sizes[i].size);
    tsr_json_end(j);
}

static void add_result(tsr_json *j, const tsr_plan_summary *s)
{
    tsr_json_int(j, "cost", s->cost);
    tsr_json_int(j, "bound", s->bound);
    tsr_json_bool(j, "optimal", s->optimal);
    tsr_json_begin(j, "memory", '[');
    for (size_t i = 0; i < s->devices; i++)
        tsr_json_int(j, NULL, s->memory[i]);
    tsr_json_end(j);
    tsr_json_begin(j, "collectives", '{');
    for (size_t i = 0; i < s->n_collectives; i++)
        tsr_json_int(j, s->collectives[i].op, (int64_t)s->collectives[i].count);
    tsr_json_end(j);
}

static void add_stages(tsr_json *j, const tsr_plan_summary *s)
{
    if (!s->n_stages)
        return;
    tsr_json_string(j, "objective", s->objective == TSR_THROUGHPUT ? "throughput" : "latency");
    tsr_json_int(j, "latency", s->latency);
    tsr_json_int(j, "period", s->period);
    tsr_json_begin(j, "stages", '[');
    for (size_t i = 0; i < s->n_stages; i++) {
        const tsr_plan_stage *x = &s->stages[i];
        tsr_json_begin(j, NULL, '{');
        tsr_json_begin(j, "devices", '[');
        for (size_t d = 0; d < x->n_devices; d++)
            tsr_json_int(j, NULL, x->devices[d]);
        tsr_json_end(j);
        tsr_json_int(j, "nodes", (int64_t)x->nodes);
        tsr_json_int(j, "time", x->time);
        tsr_json_int(j, "transfer", x->transfer);
        tsr_json_int(j, "memory", x->memory);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static struct str next_line(const char **text)
{
    size_t n = strcspn(*text, "\n");
    struct str line = {*text, n};
    *text += n + ((*text)[n] != 0);
    return line;
}

// "--shard "#12":..." and "--stage #12=..." -> 12.
static int64_t node_of(const char *line)
{
    const char *hash = line + strcspn(line, "#\n");
    return *hash == '#' ? strtoll(hash + 1, NULL, 10) : -1;
}

static bool add_nodes(struct arena *a, tsr_json *j, tsr_model *m, const char *edits)
{
    int64_t index = 0;
    struct str declares = tsr__arena_str(a, next_line(&edits));
    tsr_json_string(j, "declares", declares.p);
    tsr_json_begin(j, "nodes", '[');
    for (const tsr_node *n = tsr_graph_first(tsr_model_graph(m)); n; n = tsr_node_next(n)) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_int(j, "index", index);
        tsr_json_string(j, "name", tsr_node_name(n));
        tsr_json_string(j, "op", tsr_node_op(n));
        tsr_json_begin(j, "edits", '[');
        while (*edits && node_of(edits) <= index)
            tsr_json_string(j, NULL, tsr__arena_str(a, next_line(&edits)).p);
        tsr_json_end(j);
        tsr_json_end(j);
        index++;
    }
    tsr_json_end(j);
    return !a->failed;
}

tsr_status tsr_plan_save(tsr_model *m, const tsr_plan_options *o, const tsr_plan_summary *s,
                         const char *path)
{
    struct arena a;
    const char *edits = NULL;
    const tsr_config *c = s->config ? tsr_model_find_config(m, s->config) : NULL;
    tsr_json *j = c ? tsr_json_new(tsr_model_session(m)) : NULL;
    if (!j)
        return c ? TSR_NOMEM : TSR_USAGE;
    tsr__arena_init(&a, tsr_model_session(m));
    tsr_status st = tsr_config_edits(m, c, &edits);
    tsr_json_begin(j, NULL, '{');
    tsr_json_string(j, "kind", PLAN_KIND);
    tsr_json_int(j, "version", PLAN_VERSION);
    if (st == TSR_OK)
        st = add_model(j, m);
    add_made_for(j, o, s);
    add_result(j, s);
    add_stages(j, s);
    if (st == TSR_OK && !add_nodes(&a, j, m, edits))
        st = TSR_NOMEM;
    tsr_json_end(j);
    if (st == TSR_OK)
        st = tsr_json_write(j, path);
    tsr_json_free(j);
    tsr__arena_free(&a);
    return st;
}

// ---- reading -----------------------------------------------------------------------------------

struct document {
    tsr_session *session;
    struct arena *arena; // of what is handed out
    const char *path;
    json_t *root;
    const json_t *nodes;
    bool failed;
};

static tsr_status wrong(struct document *d, const char *field, const char *what)
{
    struct place at = PLACE_NONE;
    at.file = str_of(d->path);
    if (!d->failed)
        tsr__diag(d->session, DIAG_plan_document, &at, "write it again with `tessera plan --plan`",
                  "\"%s\" %s", field, what);
    d->failed = true;
    return TSR_MALFORMED;
}

static const json_t *member(struct document *d, const json_t *o, const char *key, json_type type)
{
    const json_t *v = json_object_get(o, key);
    if (v && json_typeof(v) == type)
        return v;
    wrong(d, key, v ? "has another type than a plan's" : "is missing");
    return NULL;
}

static const char *text_of(struct document *d, const json_t *v)
{
    struct str text = {json_is_string(v) ? json_string_value(v) : "",
                       json_is_string(v) ? json_string_length(v) : 0};
    if (memchr(text.p, 0, text.n) || memchr(text.p, '\n', text.n))
        wrong(d, "edits", "holds a text of several lines");
    const char *copy = tsr__arena_str(d->arena, text).p;
    return copy ? copy : "";
}

static tsr_status check_node(struct document *d, size_t i)
{
    const json_t *n = json_array_get(d->nodes, i);
    const json_t *index = member(d, n, "index", JSON_INTEGER);
    const json_t *edits = member(d, n, "edits", JSON_ARRAY);
    if (index && json_integer_value(index) != (json_int_t)i)
        wrong(d, "index", "is not the node's place");
    (void)member(d, n, "name", JSON_STRING);
    for (size_t k = 0; edits && k < json_array_size(edits); k++)
        if (!json_is_string(json_array_get(edits, k)))
            wrong(d, "edits", "has an entry that is no text");
    return d->failed ? TSR_MALFORMED : TSR_OK;
}

static tsr_status check_document(struct document *d)
{
    const json_t *kind = member(d, d->root, "kind", JSON_STRING);
    if (kind && strcmp(json_string_value(kind), PLAN_KIND) != 0)
        wrong(d, "kind", "is not \"" PLAN_KIND "\"");
    const json_t *version = member(d, d->root, "version", JSON_INTEGER);
    if (version && json_integer_value(version) != PLAN_VERSION)
        wrong(d, "version", "is not one that is known here");
    (void)member(d, d->root, "declares", JSON_STRING);
    d->nodes = member(d, d->root, "nodes", JSON_ARRAY);
    tsr_status st = d->failed ? TSR_MALFORMED : TSR_OK;
    for (size_t i = 0; st == TSR_OK && i < json_array_size(d->nodes); i++)
        st = check_node(d, i);
    return st;
}

// To be closed in every case.
static tsr_status open_document(struct document *d, tsr_session *s, struct arena *a,
                                const char *path)
{
    struct arena bytes;
    struct str text = {0};
    json_error_t error;
    *d = (struct document){.session = s, .arena = a, .path = path};
    tsr__arena_init(&bytes, s);
    tsr_status st = tsr__file_read(s, &bytes, path, PLAN_MAX_DOCUMENT, &text);
    if (st == TSR_OK && !tsr__json_fits(s, text))
        st = TSR_NOMEM;
    if (st == TSR_OK)
        d->root = json_loadb(text.p ? text.p : "", text.n, JSON_REJECT_DUPLICATES, &error);
    tsr__arena_free(&bytes);
    if (st == TSR_OK && !json_is_object(d->root))
        return wrong(d, "document", d->root ? "is no JSON object" : error.text);
    return st == TSR_OK ? check_document(d) : st;
}

static void close_document(struct document *d)
{
    json_decref(d->root);
    d->root = NULL;
}

tsr_status tsr_plan_edits(tsr_session *s, const char *path, const char **out)
{
    struct arena *kept = &s->results[RESULT_EDITS];
    struct document d;
    struct text t;
    tsr__arena_free(kept);
    tsr__text_init(&t, s);
    t.max = PLAN_MAX_DOCUMENT;
    tsr_status st = open_document(&d, s, kept, path);
    if (st == TSR_OK)
        tsr__text_printf(&t, "%s\n", text_of(&d, json_object_get(d.root, "declares")));
    for (size_t i = 0; st == TSR_OK && i < json_array_size(d.nodes); i++) {
        const json_t *edits = json_object_get(json_array_get(d.nodes, i), "edits");
        for (size_t k = 0; k < json_array_size(edits); k++)
            tsr__text_printf(&t, "%s\n", text_of(&d, json_array_get(edits, k)));
    }
    if (st == TSR_OK && d.failed)
        st = TSR_MALFORMED;
    *out = st == TSR_OK && !t.failed ? tsr__arena_str(kept, (struct str){t.p, t.n}).p : NULL;
    close_document(&d);
    tsr__text_free(&t);
    return st == TSR_OK && (!*out || kept->failed) ? TSR_NOMEM : st;
}

// ---- comparing ---------------------------------------------------------------------------------

static int64_t int_of(struct document *d, const char *key)
{
    const json_t *v = member(d, d->root, key, JSON_INTEGER);
    return v ? (int64_t)json_integer_value(v) : 0;
}

static void read_collectives(struct document *d, tsr_plan_side *out)
{
    const json_t *all = member(d, d->root, "collectives", JSON_OBJECT);
    tsr_collective_count *list = ARENA_ARRAY(d->arena, tsr_collective_count, PLAN_MAX_LISTED_OP);
    const char *op;
    json_t *count;
    if (!all || !list)
        return;
    out->collectives = list;
    json_object_foreach((json_t *)all, op, count)
    {
        int64_t n = json_is_integer(count) ? (int64_t)json_integer_value(count) : -1;
        if (n < 0 || out->n_collectives == PLAN_MAX_LISTED_OP) {
            wrong(d, "collectives", "has an entry that is no count, or too many");
            return;
        }
        const char *name = tsr__arena_str(d->arena, str_of(op)).p;
        list[out->n_collectives++] = (tsr_collective_count){name, (size_t)n};
    }
}

static void read_side(struct document *d, tsr_plan_side *out)
{
    const json_t *model = member(d, d->root, "model", JSON_OBJECT);
    const json_t *memory = member(d, d->root, "memory", JSON_ARRAY);
    out->model = text_of(d, json_object_get(model, "name"));
    out->sha256 = text_of(d, json_object_get(model, "sha256"));
    out->config = text_of(d, member(d, d->root, "configuration", JSON_STRING));
    out->devices = int_of(d, "devices");
    out->cost = int_of(d, "cost");
    for (size_t i = 0; memory && i < json_array_size(memory); i++) {
        int64_t bytes = (int64_t)json_integer_value(json_array_get(memory, i));
        out->memory = bytes > out->memory ? bytes : out->memory;
    }
    read_collectives(d, out);
}

// The edits of a node, joined by "; " and without its number: --shard "#3":"h"={..} -> "h"={..}.
static const char *choice_of(struct document *d, size_t i)
{
    const json_t *edits = json_object_get(json_array_get(d->nodes, i), "edits");
    struct str all = STR("");
    for (size_t k = 0; k < json_array_size(edits) && all.p; k++) {
        const char *edit = text_of(d, json_array_get(edits, k));
        const char *value = strstr(edit, "\":");
        all = tsr__arena_printf(d->arena, STR_FMT "%s%s", STR_ARG(all), k ? "; " : "",
                                value ? value + 2 : edit);
    }
    return all.p ? all.p : "";
}

static const char *name_of(struct document *d, size_t i)
{
    return text_of(d, json_object_get(json_array_get(d->nodes, i), "name"));
}

static bool list_differences(struct document *a, struct document *b, tsr_plan_comparison *out)
{
    size_t n_a = json_array_size(a->nodes), n_b = json_array_size(b->nodes);
    size_t n = n_a > n_b ? n_a : n_b;
    tsr_plan_difference *list = ARENA_ARRAY(a->arena, tsr_plan_difference, n + 1);
    for (size_t i = 0; list && i < n; i++) {
        const char *x = i < n_a ? choice_of(a, i) : "", *y = i < n_b ? choice_of(b, i) : "";
        const char *name = name_of(i < n_a ? a : b, i);
        bool same = i < n_a && i < n_b && strcmp(name, name_of(b, i)) == 0;
        if (!same || strcmp(x, y) != 0)
            list[out->n_differences++] = (tsr_plan_difference){(int64_t)i, name, {x, y}};
    }
    out->differences = list;
    return list && !a->arena->failed;
}

tsr_status tsr_plan_compare(tsr_session *s, const char *a, const char *b, tsr_plan_comparison *out)
{
    struct arena *kept = &s->results[RESULT_PLAN];
    struct document d[2] = {{0}, {0}};
    tsr_plan_comparison c = {.size = sizeof c};
    tsr__arena_free(kept);
    tsr_status st = open_document(&d[0], s, kept, a);
    if (st == TSR_OK)
        st = open_document(&d[1], s, kept, b);
    for (int i = 0; i < 2 && st == TSR_OK; i++) {
        read_side(&d[i], &c.side[i]);
        st = d[i].failed ? TSR_MALFORMED : TSR_OK;
    }
    if (st == TSR_OK && !list_differences(&d[0], &d[1], &c))
        st = TSR_NOMEM;
    if (st == TSR_OK && (d[0].failed || d[1].failed))
        st = TSR_MALFORMED;
    close_document(&d[0]);
    close_document(&d[1]);
    if (st != TSR_OK)
        return st;
    c.same_model = c.side[0].sha256[0] && strcmp(c.side[0].sha256, c.side[1].sha256) == 0;
    size_t size = out->size && out->size < sizeof c ? out->size : sizeof c;
    c.size = size;
    memcpy(out, &c, size);
    return TSR_OK;
}
