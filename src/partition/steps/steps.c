// SPDX-License-Identifier: Apache-2.0
// steps.c - the walk over the flow: for each node that matters, its inputs in the layouts that it
// needs, the node, the reduction of its results. What is planned is lists of steps between forms;
// nothing is built here. Explicit output specs that differ from what a node gives are not made here
// either: whoever reads the value asks for its layout, so a reshard happens once, when it is
// needed, and from the best form there is.
#include "internal.h"

static bool plan_nodes(struct plan *plan, const struct node_flow *nodes, size_t n,
                       unsigned char *needed);

// ---- nodes -------------------------------------------------------------------------------------

// Windows and parts of a sum are forms that only this node reads; everything else is a conversion.
static struct form *plan_input(struct plan *plan, const struct node_flow *nf, tsr_value *value,
                               size_t i)
{
    struct item *it = tsr__item_of(plan, value);
    if (!it)
        return NULL;
    if (nf->pending && nf->pending[i])
        return it->first; // the parts, as the producer left them
    if (tsr__window_cut(nf, (int)i))
        return tsr__plan_windows(plan, nf, it, (int)i);
    return tsr__plan_convert(plan, it, nf->inputs[i], nf->node);
}

// A subgraph reads whole values: the body runs as it stands.
static struct form *plan_capture(struct plan *plan, const struct node_flow *nf, tsr_value *value)
{
    struct item *it = tsr__item_of(plan, value);
    if (!it)
        return NULL;
    struct tile_layout *want = tsr__whole_on(plan, it, nf->place.devices, nf->place.n_devices);
    if (want)
        return tsr__plan_convert(plan, it, want, nf->node);
    return NULL;
}

// Devices with the same part of the result have different summands of it.
static bool needs_reduction(const struct node_flow *nf)
{
    for (size_t group = 0; group < nf->n_groups; group++)
        if (nf->groups[group].n > 1)
            return true;
    return false;
}

// The two groups have no device in common: both can communicate in the same step.
static bool disjoint(const struct device_group *a, const struct device_group *b)
{
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++)
            if (a->devices[i] == b->devices[k])
                return false;
    return true;
}

// One round of a reduction: groups that do not meet. Returns how many of `left` stay for another
// round.
static size_t take_round(struct device_group *left, size_t n, struct device_group *round,
                         size_t *n_round)
{
    size_t kept = 0;
    *n_round = 0;
    for (size_t group = 0; group < n; group++) {
        size_t k = 0;
        while (k < *n_round && disjoint(&left[group], &round[k]))
            k++;
        if (k == *n_round)
            round[(*n_round)++] = left[group];
        else
            left[kept++] = left[group];
    }
    return kept;
}

// All who read the value want it in one layout, and it is not the one in which its parts lie: it is
// combined where it is wanted. A sum that is wanted cut is a reduce-scatter.
static bool plan_reduce_as_wanted(struct plan *plan, const struct node_flow *nf,
                                  struct form *partial)
{
    const tsr_value *value = partial->item->value;
    if (!value)
        return false;
    const struct want *want = &plan->wants[tsr__value_id(value)];
    if (!want->layout || want->differ || tsr__layout_same(want->layout, partial->layout))
        return false;
    for (size_t group = 0; group < nf->n_groups; group++)
        for (size_t k = 0; k < group; k++)
            if (!disjoint(&nf->groups[group], &nf->groups[k]))
                return false;
    return tsr__plan_lower(plan, partial, nf, want->layout) != NULL;
}

// Usually one round: a device is in two groups only where copies of a part are unequal in number.
static bool plan_reduce(struct plan *plan, const struct node_flow *nf, struct form *partial)
{
    struct device_group *left = ARENA_ARRAY(plan->arena, struct device_group, nf->n_groups + 1);
    if (!left)
        return false;
    for (size_t group = 0; group < nf->n_groups; group++)
        if (!tsr__group_sorted(plan->arena, &nf->groups[group], &left[group]))
            return false;
    partial->partial = true;
    if (plan_reduce_as_wanted(plan, nf, partial))
        return true;
    struct form *whole = tsr__form_new(plan, partial->item, partial->layout, FORM_MADE);
    if (!whole)
        return false;
    for (size_t n = nf->n_groups; n > 0;) {
        struct step *st = tsr__step_new(plan, COMM_ALL_REDUCE, 1, 1);
        struct device_group *round = ARENA_ARRAY(plan->arena, struct device_group, n);
        if (!st || !round)
            return false;
        n = take_round(left, n, round, &st->n_groups);
        st->flow = nf;
        st->inputs[0] = partial;
        st->outputs[0] = whole;
        st->groups = round;
        st->group_live = ARENA_ARRAY(plan->arena, unsigned char, st->n_groups + 1);
    }
    return !plan->arena->failed;
}

// The steps of a body go into a scope of its own; afterwards, also after a failure, steps go where they went
// before.
static bool plan_body(struct plan *plan, const struct step *st, struct body *body)
{
    struct scope *here = plan->scope;
    unsigned char *needed = tsr__body_open(plan, st, body);
    bool ok = needed && plan_nodes(plan, body->flow->nodes, body->flow->n_nodes, needed) &&
              tsr__body_outputs(plan, st, body);
    struct scope *inner = plan->scope;
    tsr__scope_go(plan, here);
    body->steps = inner->steps;
    return ok;
}

// Bodies first, then what decides about them: it is read outside, and its steps come before the node.
static bool plan_bodies(struct plan *plan, struct step *st)
{
    st->n_bodies = st->flow->control->n_bodies;
    st->bodies = ARENA_ARRAY(plan->arena, struct body, 2);
    if (!st->bodies)
        return false;
    for (int k = 0; k < st->n_bodies; k++) {
        st->bodies[k].flow = &st->flow->bodies[k];
        if (!plan_body(plan, st, &st->bodies[k]))
            return false;
    }
    return tsr__body_steer(plan, st);
}

// All that the node reads, as the node needs it: its inputs, then what its subgraphs read of outer values, unless they
// are cut themselves. NULL: failed.
static struct form **plan_inputs(struct plan *plan, const struct node_flow *nf, size_t *n)
{
    const tsr_node *node = nf->node;
    tsr_value **captures = NULL;
    size_t n_in = tsr_node_input_count(node), n_captures = 0;
    if (!nf->bodies)
        n_captures = tsr__node_captures(node, &captures);
    struct form **forms = ARENA_ARRAY(plan->arena, struct form *, n_in + n_captures + 1);
    if (!forms)
        return NULL;
    for (size_t i = 0; i < n_in; i++) {
        tsr_value *value = tsr_node_input(node, i);
        if (!value)
            continue;
        forms[i] = plan_input(plan, nf, value, i);
        if (!forms[i])
            return NULL;
    }
    for (size_t i = 0; i < n_captures; i++) {
        forms[n_in + i] = plan_capture(plan, nf, captures[i]);
        if (!forms[n_in + i])
            return NULL;
    }
    *n = n_in + n_captures;
    return forms;
}

// The forms in which the node leaves its results.
static bool make_results(struct plan *plan, const struct node_flow *nf, struct step *st)
{
    for (size_t i = 0; i < st->n_outputs; i++) {
        tsr_value *value = tsr_node_output(nf->node, i);
        if (!value)
            continue;
        struct item *it = tsr__item_of(plan, value);
        st->outputs[i] = tsr__form_new(plan, it, nf->outputs[i], FORM_MADE);
        if (!st->outputs[i])
            return false;
    }
    return true;
}

// Results of which each device has a summand: they are combined here, unless the flow has found that they can stay in
// parts until they have been added to others (sharding/delay.c).
//
//     y = MatMul(x, w) with k cut in 2, z = y + b, z read whole:
//         y is not delayed:  y/0 in parts -> AllReduce -> y/1, then Add(y/1, b) on both ranks
//         y is delayed:      y/0 in parts, Add(y/0, b) on rank 0, y/0 alone on rank 1, and z is reduced in place of y
static bool reduce_results(struct plan *plan, const struct node_flow *nf, struct step *st)
{
    if (!needs_reduction(nf))
        return true;
    for (size_t i = 0; i < st->n_outputs; i++) {
        if (!st->outputs[i])
            continue;
        if (nf->delayed)
            st->outputs[i]->partial = true;
        else if (!plan_reduce(plan, nf, st->outputs[i]))
            return false;
    }
    return true;
}

// Inputs are converted first, and so is what its bodies read: their steps come before this one.
static bool plan_node(struct plan *plan, const struct node_flow *nf)
{
    size_t n_inputs;
    struct form **inputs = plan_inputs(plan, nf, &n_inputs);
    if (!inputs)
        return false;
    struct step *st = tsr__step_make(plan, STEP_NODE, 0, tsr_node_output_count(nf->node));
    if (!st)
        return false;
    st->flow = nf;
    st->inputs = inputs;
    st->n_inputs = n_inputs;
    st->n_node_inputs = tsr_node_input_count(nf->node);
    if (nf->bodies && !plan_bodies(plan, st))
        return false;
    if (!tsr__step_push(plan, st) || !make_results(plan, nf, st))
        return false;
    return reduce_results(plan, nf, st);
}

// ---- stages ------------------------------------------------------------------------------------

// -1: none of its own.
static int64_t stage_of(const struct plan *plan, const tsr_node *node)
{
    int64_t stage;
    const tsr_node_config *nc = tsr_node_find_config((tsr_node *)node, plan->flow->config);
    if (nc && tsr_node_config_stage(nc, &stage) && stage >= 0)
        return stage;
    return -1;
}

// Another stage makes the value. What has no stage is made wherever it is needed.
static bool made_elsewhere(const struct plan *plan, const tsr_value *value, int64_t stage)
{
    const tsr_node *maker = tsr_value_producer(value);
    if (!maker)
        return false;
    int64_t there = stage_of(plan, maker);
    return there >= 0 && there != stage;
}

// What the node reads of other stages, in the layouts that it needs. Sums in parts and windows come with the node.
static bool bring_inputs(struct plan *plan, const struct node_flow *nf, int64_t stage)
{
    for (size_t k = 0; k < tsr_node_input_count(nf->node); k++) {
        tsr_value *value = tsr_node_input(nf->node, k);
        if (!value || !made_elsewhere(plan, value, stage))
            continue;
        struct item *it = tsr__item_of(plan, value);
        bool plain = it && it->first && !it->first->partial && !(nf->pending && nf->pending[k]) &&
                     !tsr__window_cut(nf, (int)k);
        if (plain && !tsr__plan_convert(plan, it, nf->inputs[k], nf->node))
            return false;
    }
    return true;
}

// All that a stage gets from those before is handed over at its start. Who waits in the middle of a stage for what was
// made long ago keeps the giver from its next run.
static bool begin_stage(struct plan *plan, const struct node_flow *nodes, size_t n,
                        const bool *takes)
{
    int64_t stage = stage_of(plan, nodes[0].node);
    for (size_t i = 0; i < n; i++)
        if (takes[i] && stage_of(plan, nodes[i].node) == stage &&
            !bring_inputs(plan, &nodes[i], stage))
            return false;
    return true;
}

// The node opens a stage: the first of a number that is higher than all before it (*seen). Bodies open none.
static bool is_first_of_stage(const struct plan *plan, const tsr_node *node, int64_t *seen)
{
    if (plan->scope->outer)
        return false;
    int64_t stage = stage_of(plan, node);
    if (stage <= *seen)
        return false;
    *seen = stage;
    return true;
}

// The first of the nodes; where it opens a stage, what the whole stage gets from others comes before it.
static bool plan_next(struct plan *plan, const struct node_flow *nodes, size_t n, const bool *takes,
                      int64_t *seen)
{
    if (is_first_of_stage(plan, nodes[0].node, seen) && !begin_stage(plan, nodes, n, takes))
        return false;
    return plan_node(plan, &nodes[0]);
}

// Plans those of the nodes that the values marked in needed (by id) come from; marks what they read.
static bool plan_nodes(struct plan *plan, const struct node_flow *nodes, size_t n,
                       unsigned char *needed)
{
    int64_t seen = -1; // stages, as their numbers ascend
    bool *takes_part = ARENA_ARRAY(plan->arena, bool, n + 1);
    if (!takes_part)
        return false;
    for (size_t i = n; i-- > 0;)
        takes_part[i] = tsr__node_needed(nodes[i].node, needed);
    for (size_t i = 0; i < n; i++) {
        plan->flows[tsr__node_id(nodes[i].node)] = &nodes[i];
        if (takes_part[i])
            tsr__node_wants(plan, &nodes[i]);
    }
    for (size_t i = 0; i < n; i++)
        if (takes_part[i] && !plan_next(plan, nodes + i, n - i, takes_part + i, &seen))
            return false;
    return true;
}

// Rank 0 gives every output whole, unless it is kept as it lies.
static bool plan_outputs(struct plan *plan)
{
    tsr_graph *graph = tsr_model_graph(plan->model);
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        struct item *it = tsr__item_of(plan, value);
        const struct tile_layout *layout = tsr__port_layout(plan, value, SIDE_OUTPUTS);
        if (!it || !layout)
            return false;
        struct form *form = tsr__plan_convert(plan, it, layout, NULL);
        struct form **slot = vec_push(plan->arena, &plan->outputs);
        if (!form || !slot)
            return false;
        *slot = form;
    }
    return true;
}

// All names are taken, whatever graph they are in.
static void take_name(struct plan *plan, const tsr_value *value)
{
    if (!value)
        return;
    void **slot = tsr__map_at(&plan->names, tsr__value_str(value));
    if (slot)
        *slot = plan;
}

// Names of all graphs: one that is made up must not hide any.
static void collect_names(struct plan *plan)
{
    tsr_graph *graph = tsr_model_graph(plan->model);
    tsr__map_init(&plan->names, plan->arena, tsr__model_value_ids(plan->model));
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        take_name(plan, tsr_graph_input(graph, i));
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++)
        take_name(plan, tsr_graph_initializer(graph, i));
    for (tsr_node *node = tsr_model_next_node(plan->model, NULL); node;
         node = tsr_model_next_node(plan->model, node)) {
        for (size_t i = 0; i < tsr_node_output_count(node); i++)
            take_name(plan, tsr_node_output(node, i));
        for (size_t i = 0; i < tsr_node_input_count(node); i++) // inputs and constants of subgraphs
            take_name(plan, tsr_node_input(node, i));
    }
}

// Our own names would be there twice: the model is a part already.
static tsr_status refuse_reserved(struct plan *plan)
{
    static const char *const reserved[] = {TOKEN_NAME, TOKEN_OUT};
    for (size_t i = 0; i < TSR_COUNT(reserved); i++) {
        if (!tsr__map_get(&plan->names, str_of(reserved[i])))
            continue;
        struct place at = PLACE_NONE;
        at.file = str_of(tsr_model_path(plan->model));
        at.value = str_of(reserved[i]);
        tsr__diag(plan->session, DIAG_partition_refused, &at, "partition the whole model",
                  "this model is a part of a partition");
        return TSR_INVALID;
    }
    return TSR_OK;
}

// What the graph's outputs need is noted first, since the walk plans only nodes that somebody needs. A walk that
// fails without having said why is a bug and reported as one.
tsr_status tsr__plan_build(struct plan *plan)
{
    plan->items = ARENA_ARRAY(plan->arena, struct item *, tsr__model_value_ids(plan->model) + 1);
    unsigned char *needed =
        ARENA_ARRAY(plan->arena, unsigned char, tsr__model_value_ids(plan->model) + 1);
    tsr_graph *graph = tsr_model_graph(plan->model);
    plan->wants = ARENA_ARRAY(plan->arena, struct want, tsr__model_value_ids(plan->model) + 1);
    plan->flows =
        ARENA_ARRAY(plan->arena, const struct node_flow *, tsr__model_node_ids(plan->model) + 1);
    if (!plan->items || !plan->wants || !plan->flows || !needed)
        return TSR_NOMEM;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        needed[tsr__value_id(value)] = 1;
        tsr__plan_want(plan, value, tsr__port_layout(plan, value, SIDE_OUTPUTS));
    }
    plan->main.graph = graph;
    plan->scope = &plan->main;
    collect_names(plan);
    tsr_status st = refuse_reserved(plan);
    if (st != TSR_OK)
        return st;
    tsr__plan_find_sizes(plan);
    bool all =
        plan_nodes(plan, plan->flow->nodes, plan->flow->n_nodes, needed) && plan_outputs(plan);
    st = plan_status(plan);
    if (st != TSR_OK)
        return st;
    if (!all)
        return TSR_BUG;
    tsr__plan_live(plan);
    return plan_status(plan);
}
