// SPDX-License-Identifier: Apache-2.0
// metadata.c - stores the topology that a model was planned for as metadata of configuration NAME:
// ai.tessera.topology.NAME, as text (the short form of a generator, else JSON). Commands that
// simulate, report or complete a plan use it by default. Sizes: src/shapes/plan_sizes.c.
#include "plan/write/write.h"

#define KEY "ai.tessera.topology."

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
