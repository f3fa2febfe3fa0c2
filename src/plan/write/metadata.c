// SPDX-License-Identifier: Apache-2.0
// metadata.c - stores what a model was planned for as metadata of configuration NAME.
// ai.tessera.topology.NAME is a topology as text (the short form of a generator, else JSON).
// ai.tessera.dims.NAME has a line for each size of a symbolic dimension. Commands that simulate,
// report or complete a plan use them by default.
#include "plan/write/write.h"

#include <errno.h>
#include <stdlib.h>

#define KEY      "ai.tessera.topology."
#define KEY_DIMS "ai.tessera.dims."
#define MAX_DIMS 256 // maximum number of sizes that are read

static struct str key_of(struct arena *arena, const char *config)
{
    return tsr__arena_printf(arena, KEY "%s", config);
}

// Sets an entry of the metadata; text NULL: removes it.
static tsr_status set_or_remove(tsr_model *model, const char *key, const char *text)
{
    if (!text && !tsr_model_metadata(model, key))
        return TSR_OK;
    return tsr_model_set_metadata(model, key, text);
}

// Stores the sides of the grid, "2x4", for modules that do not read topologies.
static tsr_status keep_mesh(struct arena *arena, tsr_model *model, const char *config,
                            const tsr_topology *topology)
{
    struct str key = tsr__arena_printf(arena, META_MESH "%s", config), sides = STR("");
    int n_sides = topology ? topology->n_grid : 0;
    for (int i = 0; i < n_sides; i++) {
        const char *times = i ? "x" : "";
        sides = tsr__arena_printf(arena, STR_FMT "%s%d", STR_ARG(sides), times, topology->grid[i]);
    }
    if (arena->failed)
        return TSR_NOMEM;
    return set_or_remove(model, key.p, sides.n ? sides.p : NULL);
}

// Stores the topology: the short form if a generator made it, else JSON.
static tsr_status keep_text(struct arena *arena, tsr_model *model, const char *config,
                            const tsr_topology *topology)
{
    struct str key = key_of(arena, config);
    if (!key.p)
        return TSR_NOMEM;
    if (!topology)
        return tsr_model_set_metadata(model, key.p, NULL);
    if (topology->text.n) {
        struct str text = tsr__arena_str(arena, topology->text);
        if (text.p)
            return tsr_model_set_metadata(model, key.p, text.p);
        return TSR_NOMEM;
    }
    tsr_json *json = tsr_json_new(tsr_model_session(model));
    if (!json)
        return TSR_NOMEM;
    tsr_json_begin(json, NULL, '{');
    tsr_topology_add_json(topology, json);
    tsr_json_end(json);
    const char *text = tsr_json_text(json);
    tsr_status st = text ? tsr_model_set_metadata(model, key.p, text) : TSR_NOMEM;
    tsr_json_free(json);
    return st;
}

// Returns TSR_OK if topology and configuration have the same number of devices; otherwise adds a
// diagnostic.
static tsr_status fits_config(const tsr_model *model, const tsr_config *config,
                              const tsr_topology *topology)
{
    struct place at = PLACE(.file = str_of(tsr_model_path(model)),
                            .configuration = str_of(tsr_config_name(config)));
    if (topology->n == tsr_config_devices(config))
        return TSR_OK;
    return tsr__fail(tsr_model_session(model), TSR_INVALID, DIAG_topology_misfit, &at,
                     "use a topology with the configuration's number of devices",
                     "the topology has %d device%s, configuration '%s' has %lld", topology->n,
                     topology->n == 1 ? "" : "s", tsr_config_name(config),
                     (long long)tsr_config_devices(config));
}

// Stores the topology of a configuration; topology NULL: removes it.
tsr_status tsr_model_set_topology(tsr_model *model, const tsr_config *config,
                                  const tsr_topology *topology)
{
    TRY(tsr__topology_owned(tsr_model_session(model), topology));
    if (!tsr__config_is_of(config, model))
        return TSR_INVALID;
    if (topology)
        TRY(fits_config(model, config, topology));
    struct arena arena = {.session = tsr_model_session(model)};
    tsr_status st = keep_text(&arena, model, tsr_config_name(config), topology);
    if (st == TSR_OK)
        st = keep_mesh(&arena, model, tsr_config_name(config), topology);
    tsr__arena_free(&arena);
    return st;
}

// Stores the topology of the plan. The planner made or checked the configuration, so the number of
// devices is right.
tsr_status tsr__planner_keep_topology(struct planner *planner)
{
    TRY(keep_text(&planner->arena, planner->model, tsr_config_name(planner->config),
                  planner->machine.topology));
    return keep_mesh(&planner->arena, planner->model, tsr_config_name(planner->config),
                     planner->machine.topology);
}

// Finds the topology of the only configuration that has one. *out NULL: none has one. TSR_INVALID:
// several have one.
static tsr_status find_only(struct arena *arena, tsr_model *model, const char **out)
{
    size_t n = 0;
    for (size_t i = 0; i < tsr_model_config_count(model); i++) {
        struct str key = key_of(arena, tsr_config_name(tsr_model_config(model, i)));
        const char *text = key.p ? tsr_model_metadata(model, key.p) : NULL;
        if (!text)
            continue;
        *out = text;
        n++;
    }
    if (arena->failed)
        return TSR_NOMEM;
    if (n <= 1)
        return TSR_OK;
    return tsr__fail(tsr_model_session(model), TSR_INVALID, DIAG_plan_config, NULL,
                     "choose one with --config", "%zu configurations of this model have a topology",
                     n);
}

// Finds the text of the configuration's topology. config NULL: that of the only configuration with
// one. *out NULL: none.
static tsr_status find_text(struct arena *arena, tsr_model *model, const char *config,
                            const char **out)
{
    *out = NULL;
    if (!config)
        return find_only(arena, model, out);
    struct str key = key_of(arena, config);
    if (!key.p)
        return TSR_NOMEM;
    *out = tsr_model_metadata(model, key.p);
    return TSR_OK;
}

// Reads the topology. Returns TSR_OK with *out NULL if the model has none, and TSR_INVALID if its
// number of devices no longer matches the configuration.
tsr_status tsr_model_topology(tsr_model *model, const char *config, tsr_topology **out)
{
    TRY(tsr__given(tsr_model_session(model), "out", out));
    tsr_session *session = tsr_model_session(model);
    const char *text;
    tsr_topology *topology = NULL;
    struct arena arena = {.session = session};
    tsr_status st = find_text(&arena, model, config, &text);
    if (st == TSR_OK && text)
        st = tsr_topology_parse(session, text, &topology);
    tsr__arena_free(&arena);
    if (st != TSR_OK)
        return st;
    // The model may have been edited since: compare the numbers of devices again.
    const tsr_config *named = topology && config ? tsr_model_find_config(model, config) : NULL;
    if (named && fits_config(model, named, topology) != TSR_OK) {
        tsr_topology_free(topology);
        return TSR_INVALID;
    }
    *out = topology;
    return TSR_OK;
}

// ---- sizes -------------------------------------------------------------------------------------

// True if some input of the model has a dimension of that name.
static bool has_symbol(const tsr_model *model, const char *name)
{
    const tsr_graph *graph = tsr_model_graph(model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        for (int d = 0; d < tsr_value_rank(value); d++) {
            const char *symbol = tsr_value_dim_name(value, d);
            if (symbol && strcmp(symbol, name) == 0)
                return true;
        }
    }
    return false;
}

// Stores the sizes, one per line: "batch=4", "seq=128". Without sizes, removes the entry, because
// sizes of an older plan would be wrong.
tsr_status tsr__planner_keep_sizes(struct planner *planner, const tsr_dim_size *sizes, size_t n)
{
    struct str key =
        tsr__arena_printf(&planner->arena, KEY_DIMS "%s", tsr_config_name(planner->config));
    struct text text = {.session = planner->session};
    for (size_t i = 0; i < n; i++)
        if (has_symbol(planner->model, sizes[i].name) && !strchr(sizes[i].name, '\n'))
            tsr__text_printf(&text, "%s%s=%lld", text.n ? "\n" : "", sizes[i].name,
                             (long long)sizes[i].size);
    tsr_status st = key.p ? text_status(&text) : TSR_NOMEM;
    if (st == TSR_OK)
        st = set_or_remove(planner->model, key.p, text.n ? text.p : NULL);
    tsr__text_free(&text);
    return st;
}

// Reads "batch=4": a name before the last equals sign, and a number of at least 0 after it. Returns
// an empty result for other text.
static tsr_dim_size read_line(struct arena *arena, struct str line)
{
    const char *sign = memrchr(line.p, '=', line.n);
    char number[24], *end;
    if (!sign || sign == line.p)
        return (tsr_dim_size){0};
    size_t digits = (size_t)(line.p + line.n - sign - 1);
    if (!digits || digits >= sizeof number || sign[1] < '0' || sign[1] > '9')
        return (tsr_dim_size){0};
    memcpy(number, sign + 1, digits);
    number[digits] = 0;
    errno = 0;
    long long value = strtoll(number, &end, 10);
    if (errno || *end)
        return (tsr_dim_size){0};
    struct str name = tsr__arena_str(arena, (struct str){line.p, (size_t)(sign - line.p)});
    return (tsr_dim_size){name.p, value};
}

static const char *only_config(const tsr_model *model)
{
    if (tsr_model_config_count(model) != 1)
        return NULL;
    return tsr_config_name(tsr_model_config(model, 0));
}

static bool has_name(const tsr_dim_size *sizes, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(sizes[i].name, name) == 0)
            return true;
    return false;
}

bool tsr__plan_sizes(struct arena *arena, const tsr_model *model, const char *config,
                     const tsr_dim_size **sizes, size_t *n)
{
    const char *name = config ? config : only_config(model);
    if (!name)
        return !arena->failed;
    struct str key = tsr__arena_printf(arena, KEY_DIMS "%s", name);
    const char *text = key.p ? tsr_model_metadata(model, key.p) : NULL;
    if (!text)
        return !arena->failed;
    size_t given = *n, n_all = given;
    tsr_dim_size *all = ARENA_ARRAY(arena, tsr_dim_size, given + MAX_DIMS);
    if (!all)
        return false;
    if (given)
        memcpy(all, *sizes, given * sizeof *all);
    // Lines that cannot be parsed are skipped, because metadata is untrusted input.
    while (*text && n_all < given + MAX_DIMS) {
        tsr_dim_size size = read_line(arena, next_line(&text));
        if (size.name && !has_name(all, n_all, size.name))
            all[n_all++] = size;
    }
    *sizes = all;
    *n = n_all;
    return !arena->failed;
}
