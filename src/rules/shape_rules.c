// SPDX-License-Identifier: Apache-2.0
// shape_rules.c - gives shape inference (module shapes) the rows of the operator table.
#include "rules/internal.h"

#define MAX_PATTERNS 4096 // most rules in the cache; shapes of later rules are unknown

static bool find_row(const struct shapes *shapes, const tsr_node *node, struct shape_row *out)
{
    const struct op_row *row = tsr__row_of(shapes, node);
    if (!row)
        return false;
    *out = (struct shape_row){
        .row = row,
        .type = {row->type, row->type1, row->type2, row->type3},
        .shape = row->shape,
        .value = row->value,
        .letters = row->rule != NULL,
        .misinferred = row->misinferred,
    };
    return true;
}

static const struct shape_rules shape_rules = {find_row, tsr__job_letters};

struct shapes *tsr__shapes_bound(struct arena *arena, tsr_model *model, const tsr_dim_size *sizes,
                                 size_t n, bool report)
{
    enum shape_purpose purpose = report ? SHAPES_REPORTED : SHAPES_OF_MODEL;
    return tsr__shapes_infer(arena, model, sizes, n, purpose, &shape_rules);
}

struct shapes *tsr__shapes_assumed(struct arena *arena, tsr_model *model, const tsr_dim_size *sizes,
                                   size_t n)
{
    return tsr__shapes_infer(arena, model, sizes, n, SHAPES_ASSUMED, &shape_rules);
}

struct shapes *tsr__shapes_new(struct arena *arena, tsr_model *model)
{
    return tsr__shapes_bound(arena, model, NULL, 0, false);
}

// ---- shapes that are kept with the model --------------------------------------------------------

// Shapes, and everything except the graph that they depend on.
struct kept_shapes {
    const tsr_dim_size *sizes;
    size_t n;
    const void *user_rules; // the session's newest rule; more rules may change shapes
    bool fixed_inputs;      // inputs with an initializer are constants (before IR version 4)
    bool assumed;           // of tsr__shapes_assumed; it differs with branches and defaults
    struct shapes *shapes;
};

static bool same_state(const struct kept_shapes *a, const struct kept_shapes *b)
{
    if (a->n != b->n || a->user_rules != b->user_rules || a->fixed_inputs != b->fixed_inputs)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (a->sizes[i].size != b->sizes[i].size || strcmp(a->sizes[i].name, b->sizes[i].name) != 0)
            return false;
    return true;
}

static bool has_branches(const tsr_graph *graph)
{
    struct control control;
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        bool bodies = tsr__node_has_graphs(node) && tsr__control_of(node, &control);
        for (int k = 0; bodies && k < control.n_bodies; k++)
            if (control.n_bodies > 1 || has_branches(control.bodies[k]))
                return true;
    }
    return false;
}

// True if an input of the graph has a default.
static bool has_defaults(const tsr_graph *graph)
{
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        if (tsr_value_initializer(tsr_graph_input(graph, i)))
            return true;
    return false;
}

// Infers the shapes with the sizes and rules of `state`, and stores a copy of `state` with these
// shapes in the memory of `derived`. False: out of memory.
static bool infer(struct derived *derived, tsr_model *model, struct kept_shapes state)
{
    struct arena *arena = &derived->arena;
    struct kept_shapes *kept = ARENA_NEW(arena, struct kept_shapes);
    tsr_dim_size *sizes = ARENA_ARRAY(arena, tsr_dim_size, state.n + 1);
    for (size_t i = 0; sizes && i < state.n; i++)
        sizes[i] = (tsr_dim_size){tsr__arena_str(arena, str_of(state.sizes[i].name)).p,
                                  state.sizes[i].size};
    if (arena->failed)
        return false;
    state.sizes = sizes;
    state.shapes = state.assumed ? tsr__shapes_assumed(arena, model, sizes, state.n)
                                 : tsr__shapes_bound(arena, model, sizes, state.n, false);
    *kept = state;
    derived->result = state.shapes ? kept : NULL;
    return state.shapes != NULL;
}

static bool is_state(const struct kept_shapes *a, const struct kept_shapes *b)
{
    return a->assumed == b->assumed && same_state(a, b);
}

static struct kept_shapes state_of(const tsr_model *model, const tsr_dim_size *sizes, size_t n)
{
    return (struct kept_shapes){
        .sizes = sizes,
        .n = n,
        .user_rules = tsr_model_session(model)->user_rules,
        .fixed_inputs = tsr_model_ir_version(model) < 4,
    };
}

static const struct shapes *find_or_infer(tsr_model *model, struct kept_shapes state)
{
    struct derived *derived = tsr__model_derived(model);
    while (derived && !(derived->result && is_state(derived->result, &state)))
        derived = derived->next;
    if (!derived) {
        derived = tsr__model_derive(model);
        if (!derived || !infer(derived, model, state))
            return NULL;
    }
    return ((const struct kept_shapes *)derived->result)->shapes;
}

const struct shapes *tsr__model_shapes_for(tsr_model *model, const tsr_dim_size *sizes, size_t n)
{
    return find_or_infer(model, state_of(model, sizes, n));
}

const struct shapes *tsr__model_shapes_assumed(tsr_model *model, const tsr_dim_size *sizes,
                                               size_t n)
{
    struct kept_shapes state = state_of(model, sizes, n);
    const tsr_graph *graph = tsr_model_graph(model);
    state.assumed = graph && (has_branches(graph) || has_defaults(graph));
    return find_or_infer(model, state);
}

const struct shapes *tsr__model_shapes(tsr_model *model)
{
    return tsr__model_shapes_for(model, NULL, 0);
}

static bool is_kept(const void *kept, const void *state)
{
    return ((const struct kept_shapes *)kept)->n == 0 || same_state(kept, state);
}

void tsr__model_forget_shapes(tsr_model *model, const tsr_dim_size *sizes, size_t n)
{
    struct kept_shapes state = state_of(model, sizes, n);
    tsr__model_drop_derived(model, is_kept, &state);
}

// Returns the parsed text of a rule, which is cached: a model of 5,000 nodes has about fifty
// different texts.
const struct pattern *tsr__pattern_of(const struct shapes *shapes, const char *text)
{
    const char *wrong;
    struct str key = str_of(text);
    struct pattern *pattern = tsr__map_get(shapes->patterns, key);
    if (pattern || shapes->patterns->n >= MAX_PATTERNS)
        return pattern;
    key = tsr__arena_str(shapes->arena, key); // letters point into the copied text
    if (!key.p)
        return NULL;
    pattern = tsr__pattern_parse(shapes->arena, key, &wrong);
    if (!pattern)
        return NULL;
    tsr__map_set(shapes->patterns, key, pattern);
    return pattern;
}
