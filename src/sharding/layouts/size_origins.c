// SPDX-License-Identifier: Apache-2.0
// size_origins.c - from which inputs of the model each size comes. Depends on rules and shapes, not
// on shardings: `plan` and `partition` ask for it.
//
// Inputs may share the name of a dimension ("batch"). ONNX Runtime ignores names: a run is valid if
// no node needs equal sizes. So ranks read a size from an input from which the value was computed,
// and only dimensions that a sharded node combines must be equal.
//
//     Example: inputs a [S,64], b [S,64]; y = MatMul(a, w), z = MatMul(b, w):
//         the rows of y come from {a.0}, those of z from {b.0}: a and b may have 6 and 3 rows
//         y + z: {a.0, b.0}. If the sum is sharded by rows, both must be equal
//         If(c) { y } else { z }: a.0 or b.0, depending on the branch (the last bit of the set)
//
// The rule of a node says which axes of its inputs have the factors of an output's axis. Axes for
// which it says nothing may come from any origin of the node's inputs.
#include "sharding/sharding.h"

// Limits the memory for sets, in words of 64 bits. Larger models are treated as if every size had
// all origins.
#define MAX_WORDS    ((size_t)1 << 22)
#define N_EXTRA_BITS 2
#define MAX_TURNS    8 // passes over the body of a loop, until its states have all their origins

struct visit {
    struct size_origins *origins;
    const struct size_origins_source *source;
    uint64_t *joined; // origins of all inputs of the current node
    bool changed;     // merge_value has added origins
    size_t work;      // number of nodes of bodies that may still be visited
};

// ---- sets --------------------------------------------------------------------------------------

static void add_bit(uint64_t *set, size_t bit)
{
    set[bit / 64] |= (uint64_t)1 << (bit % 64);
}

// The bit after origins_branch: the set may be too large, because no rule says from which axes the
// size comes.
static int64_t guess_bit(const struct size_origins *o)
{
    return origins_branch(o) + 1;
}

// Adds the elements of `from` to `to`. Returns true if `to` has changed.
static bool add_set(const struct size_origins *o, uint64_t *to, const uint64_t *from)
{
    uint64_t added = 0;
    for (size_t i = 0; from && i < o->n_words; i++) {
        added |= from[i] & ~to[i];
        to[i] |= from[i];
    }
    return added != 0;
}

static bool is_empty(const struct size_origins *o, const uint64_t *set)
{
    for (size_t i = 0; set && i < o->n_words; i++)
        if (set[i])
            return false;
    return true;
}

static bool is_equal(const struct size_origins *o, const uint64_t *a, const uint64_t *b)
{
    for (size_t i = 0; i < o->n_words; i++)
        if ((a ? a[i] : 0) != (b ? b[i] : 0))
            return false;
    return true;
}

// Returns the rank of the sets of a value; 0 if its rank is unknown.
static int rank_of(const struct size_origins *o, const tsr_value *value)
{
    int rank = tsr__shapes_element(o->shapes, value).rank;
    return rank < 0 ? 0 : rank;
}

// Returns the set of an axis; the axis `rank` has the origins of the value. NULL: none.
static uint64_t *set_of(const struct size_origins *o, const tsr_value *value, int axis)
{
    uint64_t *sets = value ? o->sets[tsr__value_id(value)] : NULL;
    return sets ? sets + (size_t)axis * o->n_words : NULL;
}

static uint64_t *all_of(const struct size_origins *o, const tsr_value *value)
{
    return value ? set_of(o, value, rank_of(o, value)) : NULL;
}

// Creates the sets of a value, which are empty at first. Returns false if out of memory.
static bool make_sets(struct size_origins *o, const tsr_value *value)
{
    uint64_t **sets = &o->sets[tsr__value_id(value)];
    if (!*sets)
        *sets = ARENA_ARRAY(o->arena, uint64_t, ((size_t)rank_of(o, value) + 1) * o->n_words);
    return *sets != NULL;
}

// True if the size of an axis is known before a run.
static bool is_number(const struct size_origins *o, const tsr_value *value, int axis)
{
    return tsr__shapes_element(o->shapes, value).dims[axis].value >= 0;
}

static bool share_factor(const struct rule_dim *a, const struct rule_dim *b)
{
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < b->n; k++)
            if (a->factors[i] == b->factors[k])
                return true;
    return false;
}

bool tsr__host_origins(const struct size_origins *o, const tsr_node *node, const struct rule *rule,
                       uint64_t *to)
{
    bool any = false;
    for (int i = 0; i < rule->n_inputs; i++) {
        const uint64_t *set = all_of(o, tsr_node_input(node, (size_t)i));
        if (!rule->inputs[i].host || is_empty(o, set))
            continue;
        add_set(o, to, set);
        any = true;
    }
    return any;
}

int tsr__linked_origins(const struct size_origins *o, const tsr_node *node, const struct rule *rule,
                        const struct rule_dim *dim, bool exact, uint64_t *to)
{
    int n = 0;
    for (int i = 0; i < rule->n_inputs; i++) {
        const struct rule_tensor *tensor = &rule->inputs[i];
        const tsr_value *value = tsr_node_input(node, (size_t)i);
        if (!value || tensor->host || tensor->absent || tensor->rank != rank_of(o, value))
            continue;
        for (int axis = 0; axis < tensor->rank; axis++) {
            const uint64_t *set = set_of(o, value, axis);
            bool loose = origins_have(set, origins_branch(o)) || origins_have(set, guess_bit(o));
            if (is_empty(o, set) || (exact && loose) || !share_factor(&tensor->dims[axis], dim))
                continue;
            add_set(o, to, set);
            n++;
        }
    }
    return n;
}

bool tsr__size_varies(const struct size_origins *o, const uint64_t *sets, const tsr_dim *dims,
                      int rank)
{
    for (int axis = 0; sets && axis < rank; axis++)
        if (dims[axis].value < 0 &&
            origins_have(sets + (size_t)axis * o->n_words, origins_branch(o)))
            return true;
    return false;
}

// ---- nodes -------------------------------------------------------------------------------------

static bool visit_graph(struct visit *v, const tsr_graph *graph);

// Adds the origins of all inputs of the node, and of the values that its subgraphs read.
static void join_inputs(const struct visit *v, const tsr_node *node, const struct rule *rule)
{
    const struct size_origins *o = v->origins;
    tsr_value **captures;
    size_t n = tsr__node_captures(node, &captures);
    memset(v->joined, 0, o->n_words * sizeof *v->joined);
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        for (int axis = 0; value && tsr__rule_sizes(rule) && axis < rank_of(o, value); axis++)
            add_set(o, v->joined, set_of(o, value, axis));
        if (!tsr__rule_sizes(rule))
            add_set(o, v->joined, all_of(o, value));
    }
    for (size_t i = 0; i < n; i++)
        add_set(o, v->joined, all_of(o, captures[i]));
}

// Sets the origins of output i of a node without bodies.
static bool output_origins(struct visit *v, const tsr_node *node, const struct rule *rule, size_t i)
{
    struct size_origins *o = v->origins;
    const tsr_value *value = tsr_node_output(node, i);
    if (!value || !make_sets(o, value))
        return !value;
    int rank = rank_of(o, value);
    bool ruled = rule && !rule->whole && i < (size_t)rule->n_outputs && !rule->outputs[i].absent &&
                 rule->outputs[i].rank == rank;
    for (int axis = 0; axis < rank; axis++) {
        uint64_t *set = set_of(o, value, axis);
        if (is_number(o, value, axis))
            continue;
        if (ruled && tsr__linked_origins(o, node, rule, &rule->outputs[i].dims[axis], false, set)) {
            if (tsr__host_origins(o, node, rule, set))
                add_bit(set, (size_t)guess_bit(o));
            continue;
        }
        if (is_empty(o, v->joined))
            continue;
        add_set(o, set, v->joined);
        add_bit(set, (size_t)guess_bit(o));
        if (tsr__node_has_graphs(node))
            add_bit(set, (size_t)origins_branch(o));
    }
    add_set(o, all_of(o, value), v->joined);
    return true;
}

// ---- bodies ------------------------------------------------------------------------------------

// How the axes of a value in or after a body correspond to those of the value that it comes from.
struct merge {
    int slice;  // the axis of a loop that the value lacks, or that only it has; -1: none
    bool lacks; // the value lacks it
    bool again; // the value has origins already: from the other branch, or before the first turn
};
static const struct merge same_axes = {.slice = -1};

// Adds the origins of axis `from_axis` of `from` to an axis of `to`. If an axis that has origins
// gets others, no input has its size in every run.
static bool merge_axis(const struct size_origins *o, const tsr_value *to, int axis,
                       const tsr_value *from, int from_axis, bool again)
{
    uint64_t *set = set_of(o, to, axis);
    const uint64_t *added = from_axis < rank_of(o, from) ? set_of(o, from, from_axis) : NULL;
    bool varies = again && !is_equal(o, set, added);
    bool changed = add_set(o, set, added);
    if (!varies || origins_have(set, origins_branch(o)))
        return changed;
    add_bit(set, (size_t)origins_branch(o));
    return true;
}

// Adds the origins of `from` to those of `to`. Sets v->changed if there were new ones. Returns
// false if out of memory.
static bool merge_value(struct visit *v, const tsr_value *to, const tsr_value *from,
                        struct merge merge)
{
    struct size_origins *o = v->origins;
    if (!to || !from)
        return true;
    if (!make_sets(o, to))
        return false;
    for (int axis = 0; axis < rank_of(o, to); axis++) {
        int at = axis;
        if (merge.slice >= 0 && axis >= merge.slice)
            at += merge.lacks ? 1 : -1;
        if (axis == merge.slice && !merge.lacks)
            v->changed |= add_set(o, set_of(o, to, axis), v->joined);
        else if (!is_number(o, to, axis))
            v->changed |= merge_axis(o, to, axis, from, at, merge.again);
    }
    v->changed |= add_set(o, all_of(o, to), all_of(o, from));
    return true;
}

// Visits both branches. Results of an If have the origins of the outputs of both.
static bool branch_origins(struct visit *v, const tsr_node *node, const struct control *control)
{
    struct merge merge = same_axes;
    for (int k = 0; k < control->n_bodies; k++) {
        const tsr_graph *graph = control->bodies[k];
        if (!visit_graph(v, graph))
            return false;
        for (size_t i = 0; i < tsr_node_output_count(node); i++)
            if (!merge_value(v, tsr_node_output(node, i), tsr_graph_output(graph, i), merge))
                return false;
        merge.again = true;
    }
    return true;
}

// Gives the states and slices of a loop's body the origins of the node's inputs, and in later turns
// those that the states had at the end of the body.
static bool loop_inputs(struct visit *v, const tsr_node *node, const struct control *control,
                        bool again)
{
    const tsr_graph *graph = control->bodies[0];
    int n = control->n_states + (again ? 0 : control->n_slices);
    for (int i = 0; i < n; i++) {
        const tsr_value *to = tsr_graph_input(graph, (size_t)(control->n_numbers + i));
        const tsr_value *from = tsr_node_input(node, (size_t)(control->n_steer + i));
        struct merge merge = {.slice = -1, .lacks = true, .again = again};
        if (again)
            from = tsr_graph_output(graph, (size_t)(control->condition + i));
        if (i >= control->n_states)
            merge.slice =
                tsr__control_in_axis(control, i - control->n_states, rank_of(v->origins, from));
        if (!merge_value(v, to, from, merge))
            return false;
    }
    return true;
}

// States after a loop have the origins of the state before it, if there is no turn, and of the
// body's outputs; stacked results have those of the body's outputs.
static bool loop_results(struct visit *v, const tsr_node *node, const struct control *control)
{
    const tsr_graph *graph = control->bodies[0];
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        const tsr_value *to = tsr_node_output(node, i);
        struct merge merge = same_axes;
        bool state = i < (size_t)control->n_states;
        if (to && !state)
            merge.slice =
                tsr__control_out_axis(control, (int)i - control->n_states, rank_of(v->origins, to));
        if (state &&
            !merge_value(v, to, tsr_node_input(node, (size_t)control->n_steer + i), same_axes))
            return false;
        merge.again = state;
        if (!merge_value(v, to, tsr_graph_output(graph, (size_t)control->condition + i), merge))
            return false;
    }
    return true;
}

// Visits the body of a loop until its states have all their origins.
static bool loop_origins(struct visit *v, const tsr_node *node, const struct control *control)
{
    for (int turn = 0; turn < MAX_TURNS; turn++) {
        v->changed = false;
        if (!loop_inputs(v, node, control, turn > 0))
            return false;
        if (turn > 0 && !v->changed) {
            join_inputs(v, node, NULL);
            return loop_results(v, node, control);
        }
        if (!visit_graph(v, control->bodies[0]))
            return false;
    }
    return false;
}

// Sets the origins of the outputs of a node. A cache that the node updates in place has the sizes
// that it had before.
static bool node_origins(struct visit *v, const tsr_node *node)
{
    struct control control;
    if (tsr__control_of(node, &control))
        return control.loops ? loop_origins(v, node, &control) : branch_origins(v, node, &control);
    const struct rule *rule = v->source->rule_of(v->source->data, node);
    join_inputs(v, node, rule);
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        const tsr_value *before = tsr__node_updated_cache(node, i);
        if (before ? !merge_value(v, tsr_node_output(node, i), before, same_axes)
                   : !output_origins(v, node, rule, i))
            return false;
    }
    return true;
}

static bool visit_graph(struct visit *v, const tsr_graph *graph)
{
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        if (v->work-- == 0 || !node_origins(v, node))
            return false;
    return true;
}

// ---- the model ---------------------------------------------------------------------------------

struct str tsr__input_symbol(const struct shapes *shapes, const tsr_value *input, int axis)
{
    struct str symbol = tsr__dim_symbol(input, axis);
    struct shape shape = tsr__shapes_of(shapes, input);
    if (!symbol.n && axis < shape.rank && shape.dims[axis].value < 0)
        symbol = str_of(shape.dims[axis].symbol);
    return symbol;
}

// Calls `call` for each dimension of the model's inputs that has a symbol.
static void each_symbol(struct size_origins *o, const tsr_model *model,
                        void (*call)(void *data, struct str symbol, struct size_dim dim),
                        void *data)
{
    const tsr_graph *graph = tsr_model_graph(model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        for (int axis = 0; !tsr_value_initializer(value) && axis < tsr_value_rank(value); axis++) {
            struct str symbol = tsr__input_symbol(o->shapes, value, axis);
            if (symbol.n)
                call(data, symbol, (struct size_dim){value, axis});
        }
    }
}

static void count_symbol(void *data, struct str symbol, struct size_dim dim)
{
    struct map *counts = data;
    void **slot = tsr__map_at(counts, symbol);
    (void)dim;
    if (slot && !*slot)
        *slot = ARENA_NEW(counts->arena, size_t);
    if (slot && *slot)
        ++*(size_t *)*slot;
}

struct shared_dims {
    struct size_origins *origins;
    const struct size_origins_source *source;
    struct map counts; // symbol -> number of dimensions that have it
    bool last;         // adds the dimensions that come last
};

static void add_shared(void *data, struct str symbol, struct size_dim dim)
{
    struct shared_dims *shared = data;
    const struct size_origins_source *source = shared->source;
    const size_t *count = tsr__map_get(&shared->counts, symbol);
    bool last = source->is_last && source->is_last(source->data, dim);
    if (count && *count > 1 && last == shared->last)
        vec_add(shared->origins->arena, &shared->origins->dims, dim);
}

// Lists the dimensions that have their symbol in common with others.
static void find_shared(struct size_origins *o, const tsr_model *model,
                        const struct size_origins_source *source)
{
    struct shared_dims shared = {.origins = o, .source = source};
    tsr__map_init(&shared.counts, o->arena, 16);
    each_symbol(o, model, count_symbol, &shared.counts);
    each_symbol(o, model, add_shared, &shared);
    shared.last = true;
    if (source->is_last)
        each_symbol(o, model, add_shared, &shared);
}

// Gives each input of the model its own dimensions as origins.
static bool input_origins(struct size_origins *o)
{
    for (size_t i = 0; i < o->dims.n; i++) {
        struct size_dim dim = o->dims.at[i];
        if (!make_sets(o, dim.input))
            return false;
        if (dim.axis < rank_of(o, dim.input))
            add_bit(set_of(o, dim.input, dim.axis), i);
        add_bit(all_of(o, dim.input), i);
    }
    return true;
}

void tsr__size_origins_find(struct size_origins *o, const tsr_model *model,
                            const struct size_origins_source *source)
{
    size_t n_values = tsr__model_value_ids(model) + 1;
    find_shared(o, model, source);
    o->n_words = (o->dims.n + N_EXTRA_BITS + 63) / 64;
    if (!o->dims.n || n_values > MAX_WORDS / o->n_words)
        return;
    struct visit v = {.origins = o, .source = source};
    v.work = 16 * tsr__model_node_ids(model) + 1000;
    v.joined = ARENA_ARRAY(o->arena, uint64_t, o->n_words);
    o->sets = ARENA_ARRAY(o->arena, uint64_t *, n_values);
    if (!v.joined || !o->sets || !input_origins(o) || !visit_graph(&v, tsr_model_graph(model)))
        o->sets = NULL;
}
