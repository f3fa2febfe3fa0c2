// SPDX-License-Identifier: Apache-2.0
// edits.c - prints the annotations of a configuration as edits for `tessera annotate --script`, one
// per line. Nodes are named by their index in their graph.
//
// Example:
//     --config tp:2
//     --shard "#4":"x"={2,1:0,1}
//     --shard "#7 > body > #0":"h"={1,2:0,1}
//     --stage #9=1
//     --delay #4
//     --store "#4":"w"={2,1:0,1}
#include "sharding/layouts/internal.h"

struct lines {
    struct arena *arena;
    const struct shapes *shapes;
    struct map delayed; // names of values
    // by value id: the stored layouts of weights that were not printed yet; NULL: there are none
    struct tile_layout **stored;
    struct text text;
};

// Prints "--config tp:2=gpu0,gpu1". The device names are optional.
static void add_config(struct lines *lines, const tsr_config *config)
{
    tsr__text_printf(&lines->text, "--config %s:%lld", tsr_config_name(config),
                     (long long)tsr_config_devices(config));
    for (size_t i = 0; i < tsr_config_device_name_count(config); i++)
        tsr__text_printf(&lines->text, "%c%s", i ? ',' : '=', tsr_config_device_name(config, i));
    tsr__text_add(&lines->text, STR("\n"));
}

// Adds the edit for a spec. Uses the declared or inferred rank of the value, because the notation
// may omit leading dimensions. Adds nothing for an empty spec, and returns an error for an invalid
// one.
static tsr_status add_spec(struct lines *lines, const tsr_spec *spec, struct str path)
{
    const tsr_value *value = tsr_spec_value(spec);
    struct shape shape = tsr__shapes_element(lines->shapes, value);
    struct tile_layout *layout = NULL;
    tsr_status st = tsr__spec_layout(lines->arena, spec, &shape, false, &layout);
    if (st != TSR_OK || !layout)
        return st;
    struct str text = tsr__notation_print(lines->arena, layout);
    tsr__text_printf(&lines->text, "--shard \"" STR_FMT "\":\"%s\"=" STR_FMT "\n", STR_ARG(path),
                     tsr_value_name(value), STR_ARG(text));
    return TSR_OK;
}

static tsr_status add_node_edits(struct lines *lines, const tsr_node_config *nc, struct str path)
{
    int64_t stage;
    if (tsr_node_config_stage(nc, &stage))
        tsr__text_printf(&lines->text, "--stage " STR_FMT "=%lld\n", STR_ARG(path),
                         (long long)stage);
    for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++) {
        const tsr_spec *spec = tsr_node_config_spec(nc, i);
        if (tsr_spec_value(spec))
            TRY(add_spec(lines, spec, path));
    }
    return TSR_OK;
}

static tsr_status add_graph(struct lines *lines, const tsr_graph *graph, const tsr_config *config,
                            struct str before);

// Adds the edits for the bodies of a node. Skips attributes with a list of graphs, because these
// graphs have no names. No ONNX operator has such an attribute.
static tsr_status add_bodies(struct lines *lines, const tsr_node *node, const tsr_config *config,
                             struct str path)
{
    for (size_t i = 0; i < tsr_node_attr_count(node); i++) {
        const tsr_attr *attr = tsr_node_attr(node, i);
        if (tsr_attr_graph_count(attr) != 1)
            continue;
        struct str inner =
            tsr__arena_printf(lines->arena, STR_FMT " > %s > ", STR_ARG(path), tsr_attr_name(attr));
        TRY(inner.p ? add_graph(lines, tsr_attr_graph(attr, 0), config, inner) : TSR_NOMEM);
    }
    return TSR_OK;
}

// Prints an edit if the reduction of the node is delayed. Tests only the first output, because only
// reductions of nodes with one output are delayed.
static void add_delay(struct lines *lines, const tsr_node *node, struct str path)
{
    const tsr_value *value = tsr_node_output(node, 0);
    if (value && tsr__map_get(&lines->delayed, tsr__value_str(value)))
        tsr__text_printf(&lines->text, "--delay " STR_FMT "\n", STR_ARG(path));
}

// Prints an edit for each weight that is stored in another layout than nodes read it in, at its
// first reader.
static void add_stored(struct lines *lines, const tsr_node *node, struct str path)
{
    for (size_t i = 0; lines->stored && i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        struct tile_layout **layout = value ? &lines->stored[tsr__value_id(value)] : NULL;
        if (!layout || !*layout)
            continue;
        struct str text = tsr__notation_print(lines->arena, *layout);
        tsr__text_printf(&lines->text, "--store \"" STR_FMT "\":\"%s\"=" STR_FMT "\n",
                         STR_ARG(path), tsr_value_name(value), STR_ARG(text));
        *layout = NULL;
    }
}

// Adds the edits for a graph. Nodes are named by index, "#3", and nodes of bodies by their path,
// because not every node has a name.
static tsr_status add_graph(struct lines *lines, const tsr_graph *graph, const tsr_config *config,
                            struct str before)
{
    int64_t index = 0;
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        const tsr_node_config *nc = tsr_node_find_config(node, config);
        struct str path =
            tsr__arena_printf(lines->arena, STR_FMT "#%lld", STR_ARG(before), (long long)index++);
        if (!path.p)
            return TSR_NOMEM;
        if (nc)
            TRY(add_node_edits(lines, nc, path));
        add_delay(lines, node, path);
        add_stored(lines, node, path);
        TRY(add_bodies(lines, node, config, path));
    }
    return TSR_OK;
}

static tsr_status add_model(struct lines *lines, tsr_model *model, const tsr_config *config)
{
    lines->shapes = tsr__model_shapes(model);
    tsr__delayed_names(lines->arena, model, config, &lines->delayed);
    add_config(lines, config);
    if (tsr__stored_layouts(lines->arena, model, config, true, &lines->stored) == TSR_NOMEM)
        return TSR_NOMEM;
    if (!lines->shapes || lines->arena->failed)
        return TSR_NOMEM;
    tsr_status st = add_graph(lines, tsr_model_graph(model), config, STR(""));
    return lines->text.failed ? text_status(&lines->text) : st;
}

// Sets *out to the edits of a configuration. The session owns the text; the next call of this
// function frees it.
tsr_status tsr_config_edits(tsr_model *model, const tsr_config *config, const char **out)
{
    TRY(tsr__given(tsr_model_session(model), "out", out));
    if (!tsr__config_is_of(config, model))
        return TSR_INVALID;
    struct arena *kept = &tsr_model_session(model)->results[RESULT_EDITS], arena;
    tsr__arena_free(kept);
    tsr__arena_init(&arena, tsr_model_session(model));
    struct lines lines = {.arena = &arena};
    tsr__text_init(&lines.text, tsr_model_session(model));
    lines.text.max = SIZE_MAX / 2;
    tsr_status st = add_model(&lines, model, config);
    struct str text = {0};
    if (st == TSR_OK) {
        text = tsr__arena_str(kept, (struct str){lines.text.p, lines.text.n});
        st = arena_status(kept);
    }
    if (text.p)
        *out = text.p;
    tsr__text_free(&lines.text);
    tsr__arena_free(&arena);
    return st;
}
