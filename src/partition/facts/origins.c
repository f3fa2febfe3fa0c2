// SPDX-License-Identifier: Apache-2.0
// origins.c - from which inputs of the model each size comes.
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
#include "partition/facts/facts.h"

// Limits the memory for sets, in words of 64 bits. Larger models are treated as if every size had
// all origins.
#define MAX_WORDS    ((size_t)1 << 22)
#define N_EXTRA_BITS 2
#define MAX_TURNS    8 // passes over the body of a loop, until its states have all their origins

struct origins {
    struct draft *draft;
    size_t n_words;
    int depth;        // of bodies around the current node
    uint64_t *joined; // origins of all inputs of the current node
    bool changed;     // merge_value has added origins
    size_t work;      // number of nodes of bodies that may still be visited
};

// ---- sets --------------------------------------------------------------------------------------

static void add_bit(uint64_t *set, size_t bit)
{
    set[bit / 64] |= (uint64_t)1 << (bit % 64);
}

// Adds the elements of `from` to `to`. Returns true if `to` has changed.
static bool add_set(const struct origins *o, uint64_t *to, const uint64_t *from)
{
    uint64_t added = 0;
    for (size_t i = 0; from && i < o->n_words; i++) {
        added |= from[i] & ~to[i];
        to[i] |= from[i];
    }
    return added != 0;
}

static bool is_empty(const struct origins *o, const uint64_t *set)
{
    for (size_t i = 0; set && i < o->n_words; i++)
        if (set[i])
            return false;
    return true;
}

static bool is_equal(const struct origins *o, const uint64_t *a, const uint64_t *b)
{
    for (size_t i = 0; i < o->n_words; i++)
        if ((a ? a[i] : 0) != (b ? b[i] : 0))
            return false;
    return true;
}

// Returns the rank of the sets of a value; 0 if its rank is unknown.
static int rank_of(const struct draft *draft, const tsr_value *value)
{
    int rank = tsr__shapes_element(draft->flow->shapes, value).rank;
    return rank < 0 ? 0 : rank;
}

// Returns the set of an axis; the axis `rank` has the origins of the value. NULL: none.
static uint64_t *set_of(const struct draft *draft, const tsr_value *value, int axis)
{
    uint64_t *sets = value ? draft->origins[tsr__value_id(value)] : NULL;
    return sets ? sets + (size_t)axis * draft->n_words : NULL;
}

static uint64_t *all_of(const struct draft *draft, const tsr_value *value)
{
    return value ? set_of(draft, value, rank_of(draft, value)) : NULL;
}

// Creates the sets of a value, which are empty at first. Returns false if out of memory.
static bool make_sets(struct draft *draft, const tsr_value *value)
{
    uint64_t **sets = &draft->origins[tsr__value_id(value)];
    if (!*sets)
        *sets = ARENA_ARRAY(draft->arena, uint64_t,
                            ((size_t)rank_of(draft, value) + 1) * draft->n_words);
    return *sets != NULL;
}

// True if the size of an axis is known before a run.
static bool is_number(const struct draft *draft, const tsr_value *value, int axis)
{
    return tsr__shapes_element(draft->flow->shapes, value).dims[axis].value >= 0;
}

static bool share_factor(const struct rule_dim *a, const struct rule_dim *b)
{
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < b->n; k++)
            if (a->factors[i] == b->factors[k])
                return true;
    return false;
}

bool tsr__host_origins(const struct draft *draft, const struct node_flow *nf, uint64_t *to)
{
    const struct origins o = {.n_words = draft->n_words};
    const struct rule *rule = nf->place.rule;
    bool any = false;
    for (int i = 0; i < rule->n_inputs; i++) {
        const uint64_t *set = all_of(draft, tsr_node_input(nf->node, (size_t)i));
        if (!rule->inputs[i].host || is_empty(&o, set))
            continue;
        add_set(&o, to, set);
        any = true;
    }
    return any;
}

int tsr__linked_origins(const struct draft *draft, const struct node_flow *nf,
                        const struct rule_dim *dim, bool exact, uint64_t *to)
{
    const struct origins o = {.n_words = draft->n_words};
    const struct rule *rule = nf->place.rule;
    int n = 0;
    for (int i = 0; i < rule->n_inputs; i++) {
        const struct rule_tensor *tensor = &rule->inputs[i];
        const tsr_value *value = tsr_node_input(nf->node, (size_t)i);
        if (!value || tensor->host || tensor->absent || tensor->rank != rank_of(draft, value))
            continue;
        for (int axis = 0; axis < tensor->rank; axis++) {
            const uint64_t *set = set_of(draft, value, axis);
            bool loose =
                origins_have(set, BIT_BRANCH(draft)) || origins_have(set, BIT_GUESS(draft));
            if (is_empty(&o, set) || (exact && loose) || !share_factor(&tensor->dims[axis], dim))
                continue;
            add_set(&o, to, set);
            n++;
        }
    }
    return n;
}

// ---- nodes -------------------------------------------------------------------------------------

static bool visit(struct origins *o, const struct node_flow *nodes, size_t n);

// True if the node returns sizes of its first input (Shape, Size) and reads no elements.
static bool returns_sizes(const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    for (int i = 0; rule && i < rule->n_rewrites; i++)
        if (rule->rewrites[i].kind == REWRITE_SIZES || rule->rewrites[i].kind == REWRITE_SIZE)
            return true;
    return false;
}

// Adds the origins of all inputs of the node, and of the values that its subgraphs read.
static void join_inputs(const struct origins *o, const struct node_flow *nf)
{
    const tsr_node *node = nf->node;
    tsr_value **captures;
    size_t n = tsr__node_captures(node, &captures);
    memset(o->joined, 0, o->n_words * sizeof *o->joined);
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        for (int axis = 0; value && returns_sizes(nf) && axis < rank_of(o->draft, value); axis++)
            add_set(o, o->joined, set_of(o->draft, value, axis));
        if (!returns_sizes(nf))
            add_set(o, o->joined, all_of(o->draft, value));
    }
    for (size_t i = 0; i < n; i++)
        add_set(o, o->joined, all_of(o->draft, captures[i]));
}

// Sets the origins of output i of a node without bodies.
static bool output_origins(struct origins *o, const struct node_flow *nf, size_t i)
{
    const struct rule *rule = nf->place.rule;
    const tsr_value *value = tsr_node_output(nf->node, i);
    if (!value || !make_sets(o->draft, value))
        return !value;
    int rank = rank_of(o->draft, value);
    bool ruled = rule && !rule->whole && i < (size_t)rule->n_outputs && !rule->outputs[i].absent &&
                 rule->outputs[i].rank == rank;
    for (int axis = 0; axis < rank; axis++) {
        uint64_t *set = set_of(o->draft, value, axis);
        if (is_number(o->draft, value, axis))
            continue;
        if (ruled && tsr__linked_origins(o->draft, nf, &rule->outputs[i].dims[axis], false, set)) {
            if (tsr__host_origins(o->draft, nf, set))
                add_bit(set, (size_t)BIT_GUESS(o->draft));
            continue;
        }
        if (is_empty(o, o->joined))
            continue;
        add_set(o, set, o->joined);
        add_bit(set, (size_t)BIT_GUESS(o->draft));
        if (tsr__node_has_graphs(nf->node))
            add_bit(set, (size_t)BIT_BRANCH(o->draft));
    }
    add_set(o, all_of(o->draft, value), o->joined);
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
static bool merge_axis(const struct origins *o, const tsr_value *to, int axis,
                       const tsr_value *from, int from_axis, bool again)
{
    uint64_t *set = set_of(o->draft, to, axis);
    const uint64_t *added =
        from_axis < rank_of(o->draft, from) ? set_of(o->draft, from, from_axis) : NULL;
    bool varies = again && !is_equal(o, set, added);
    bool changed = add_set(o, set, added);
    if (!varies || origins_have(set, BIT_BRANCH(o->draft)))
        return changed;
    add_bit(set, (size_t)BIT_BRANCH(o->draft));
    return true;
}

// Adds the origins of `from` to those of `to`. Sets o->changed if there were new ones. Returns
// false if out of memory.
static bool merge_value(struct origins *o, const tsr_value *to, const tsr_value *from,
                        struct merge merge)
{
    if (!to || !from)
        return true;
    if (!make_sets(o->draft, to))
        return false;
    for (int axis = 0; axis < rank_of(o->draft, to); axis++) {
        int at = axis;
        if (merge.slice >= 0 && axis >= merge.slice)
            at += merge.lacks ? 1 : -1;
        if (axis == merge.slice && !merge.lacks)
            o->changed |= add_set(o, set_of(o->draft, to, axis), o->joined);
        else if (!is_number(o->draft, to, axis))
            o->changed |= merge_axis(o, to, axis, from, at, merge.again);
    }
    o->changed |= add_set(o, all_of(o->draft, to), all_of(o->draft, from));
    return true;
}

// Visits both branches. Results of an If have the origins of the outputs of both.
static bool branch_origins(struct origins *o, const struct node_flow *nf)
{
    struct merge merge = same_axes;
    for (int k = 0; k < nf->control->n_bodies; k++) {
        if (!visit(o, nf->bodies[k].nodes, nf->bodies[k].n_nodes))
            return false;
        for (size_t i = 0; i < tsr_node_output_count(nf->node); i++)
            if (!merge_value(o, tsr_node_output(nf->node, i),
                             tsr_graph_output(nf->bodies[k].graph, i), merge))
                return false;
        merge.again = true;
    }
    return true;
}

// Gives the states and slices of a loop's body the origins of the node's inputs, and in later turns
// those that the states had at the end of the body.
static bool loop_inputs(struct origins *o, const struct node_flow *nf, bool again)
{
    const struct control *control = nf->control;
    const tsr_graph *graph = nf->bodies[0].graph;
    int n = control->n_states + (again ? 0 : control->n_slices);
    for (int i = 0; i < n; i++) {
        const tsr_value *to = tsr_graph_input(graph, (size_t)(control->n_numbers + i));
        const tsr_value *from = tsr_node_input(nf->node, (size_t)(control->n_steer + i));
        struct merge merge = {.slice = -1, .lacks = true, .again = again};
        if (again)
            from = tsr_graph_output(graph, (size_t)(control->condition + i));
        if (i >= control->n_states)
            merge.slice =
                tsr__control_in_axis(control, i - control->n_states, rank_of(o->draft, from));
        if (!merge_value(o, to, from, merge))
            return false;
    }
    return true;
}

// States after a loop have the origins of the state before it, if there is no turn, and of the
// body's outputs; stacked results have those of the body's outputs.
static bool loop_results(struct origins *o, const struct node_flow *nf)
{
    const struct control *control = nf->control;
    const tsr_graph *graph = nf->bodies[0].graph;
    for (size_t i = 0; i < tsr_node_output_count(nf->node); i++) {
        const tsr_value *to = tsr_node_output(nf->node, i);
        struct merge merge = same_axes;
        bool state = i < (size_t)control->n_states;
        if (to && !state)
            merge.slice =
                tsr__control_out_axis(control, (int)i - control->n_states, rank_of(o->draft, to));
        if (state &&
            !merge_value(o, to, tsr_node_input(nf->node, (size_t)control->n_steer + i), same_axes))
            return false;
        merge.again = state;
        if (!merge_value(o, to, tsr_graph_output(graph, (size_t)control->condition + i), merge))
            return false;
    }
    return true;
}

// Visits the body of a loop until its states have all their origins.
static bool loop_origins(struct origins *o, const struct node_flow *nf)
{
    for (int turn = 0; turn < MAX_TURNS; turn++) {
        o->changed = false;
        if (!loop_inputs(o, nf, turn > 0))
            return false;
        if (turn > 0 && !o->changed) {
            join_inputs(o, nf);
            return loop_results(o, nf);
        }
        if (!visit(o, nf->bodies[0].nodes, nf->bodies[0].n_nodes))
            return false;
    }
    return false;
}

// Sets the origins of the outputs of a node without bodies. A cache that the node updates in place
// has the sizes that it had before.
static bool outputs_origins(struct origins *o, const struct node_flow *nf)
{
    join_inputs(o, nf);
    for (size_t i = 0; i < tsr_node_output_count(nf->node); i++) {
        const tsr_value *before = tsr__node_updated_cache(nf->node, i);
        if (before ? !merge_value(o, tsr_node_output(nf->node, i), before, same_axes)
                   : !output_origins(o, nf, i))
            return false;
    }
    // Whether a body runs is not known
    return o->depth > 0 || tsr__same_sizes_meet(o->draft, nf);
}

static bool node_origins(struct origins *o, const struct node_flow *nf)
{
    if (!nf->bodies)
        return outputs_origins(o, nf);
    o->depth++;
    bool ok = nf->control->loops ? loop_origins(o, nf) : branch_origins(o, nf);
    o->depth--;
    return ok;
}

static bool visit(struct origins *o, const struct node_flow *nodes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (o->work-- == 0 || !node_origins(o, &nodes[i]))
            return false;
    return true;
}

// ---- the model ---------------------------------------------------------------------------------

// Gives each input of the model its own dimensions as origins.
static bool input_origins(struct origins *o)
{
    for (size_t i = 0; i < o->draft->shared.n; i++) {
        const struct size_source *at = o->draft->shared.at[i];
        if (!make_sets(o->draft, at->input))
            return false;
        if (at->axis < rank_of(o->draft, at->input))
            add_bit(set_of(o->draft, at->input, at->axis), i);
        add_bit(all_of(o->draft, at->input), i);
    }
    return true;
}

void tsr__origins_find(struct draft *draft)
{
    size_t n_values = tsr__model_value_ids(draft->model) + 1;
    draft->n_words = (draft->shared.n + N_EXTRA_BITS + 63) / 64;
    if (!draft->shared.n || n_values > MAX_WORDS / draft->n_words)
        return;
    struct origins o = {.draft = draft, .n_words = draft->n_words};
    o.work = 16 * tsr__model_node_ids(draft->model) + 1000;
    o.joined = ARENA_ARRAY(draft->arena, uint64_t, o.n_words);
    draft->origins = ARENA_ARRAY(draft->arena, uint64_t *, n_values);
    if (!o.joined || !draft->origins || !input_origins(&o) ||
        !visit(&o, draft->flow->nodes, draft->flow->n_nodes))
        draft->origins = NULL;
}
