// SPDX-License-Identifier: Apache-2.0
// steps.c - plans the nodes of the flow. For each node that an output depends on it plans the
// conversion of the inputs, the node itself, and the reduction of partial sums. The result is a
// list of steps between forms. The output spec of a node may ask for another layout than the node
// produces. That conversion is not planned here: each reader asks for the layout that it needs, so
// a value is resharded only when it is read.
#include "internal.h"

static bool draft_nodes(struct draft *draft, const struct node_flow *nodes, size_t n,
                        unsigned char *needed);

// ---- wanted layouts ----------------------------------------------------------------------------

// Before planning, the layouts are recorded in which each value is read. A sum whose readers all
// need the same sharding becomes a ReduceScatter. A value that is only read in windows is produced
// in windows (relayout.c).
//
//     Example: y is a partial sum on ranks 0 and 1:
//         all readers need {2,1}               ReduceScatter along axis 0
//         one needs {2,1}, another unsharded   AllReduce; the first reader slices

void tsr__draft_want(struct draft *draft, const tsr_value *value, const struct tile_layout *layout)
{
    struct want *want = &draft->wants[tsr__value_id(value)];
    want->readers++;
    want->differ =
        want->differ || !layout || (want->layout && !tsr__layout_same(want->layout, layout));
    if (!want->layout)
        want->layout = layout;
}

// Records the layouts in which a node and the nodes of its bodies read values of the graph `home`
// (draft->wants). A node that only returns sizes reads none. Values that other subgraphs read are
// recorded as of unknown layout.
static void node_wants(struct draft *draft, const struct node_flow *nf, const tsr_graph *home)
{
    for (size_t k = 0; k < tsr_node_input_count(nf->node); k++) {
        const tsr_value *value = tsr_node_input(nf->node, k);
        if (!value || tsr_value_graph(value) != home || tsr__sizes_rewrite(nf))
            continue;
        tsr__draft_want(draft, value, nf->inputs[k]);
        draft->wants[tsr__value_id(value)].windowed += tsr__needs_windows(nf, (int)k);
    }
    for (int b = 0; nf->bodies && b < nf->control->n_bodies; b++)
        for (size_t i = 0; i < nf->bodies[b].n_nodes; i++)
            node_wants(draft, &nf->bodies[b].nodes[i], home);
    tsr_value **captures;
    size_t n_captures = nf->bodies ? 0 : tsr__node_captures(nf->node, &captures);
    for (size_t k = 0; k < n_captures; k++)
        if (tsr_value_graph(captures[k]) == home)
            tsr__draft_want(draft, captures[k], NULL);
}

// ---- nodes -------------------------------------------------------------------------------------

static struct form *draft_input(struct draft *draft, const struct node_flow *nf, tsr_value *value,
                                size_t i)
{
    struct item *it = tsr__item_of(draft, value);
    if (!it)
        return NULL;
    if (nf->pending && nf->pending[i])
        return it->first; // the partial sums, as produced
    if (tsr__needs_windows(nf, (int)i))
        return tsr__draft_windows(draft, nf, it, (int)i);
    return tsr__draft_convert(draft, it, nf->inputs[i], nf->node);
}

// Converts an outer value that a subgraph of an unsharded node (If, Loop) reads to an unsharded
// form.
static struct form *draft_capture(struct draft *draft, const struct node_flow *nf, tsr_value *value)
{
    struct item *it = tsr__item_of(draft, value);
    if (!it)
        return NULL;
    struct tile_layout *want =
        tsr__unsharded_layout(draft, it, nf->place.devices, nf->place.n_devices);
    return want ? tsr__draft_convert(draft, it, want, nf->node) : NULL;
}

static bool needs_reduction(const struct node_flow *nf)
{
    for (size_t group = 0; group < nf->n_groups; group++)
        if (nf->groups[group].n > 1)
            return true;
    return false;
}

// True if the groups have no device in common.
static bool disjoint(const struct device_group *a, const struct device_group *b)
{
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++)
            if (a->devices[i] == b->devices[k])
                return false;
    return true;
}

// Moves groups that have no device in common from `left` to `round`. Returns the number of groups
// that remain in `left`.
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

// Plans several AllReduces, each with groups that have no device in common.
static bool reduce_in_rounds(struct draft *draft, const struct node_flow *nf, struct form *partial)
{
    struct device_group *left = ARENA_ARRAY(draft->arena, struct device_group, nf->n_groups + 1);
    if (!left)
        return false;
    for (size_t group = 0; group < nf->n_groups; group++)
        if (!tsr__group_sorted(draft->arena, &nf->groups[group], &left[group]))
            return false;
    struct form *whole = tsr__form_new(draft, partial->item, partial->layout, FORM_MADE);
    if (!whole)
        return false;
    for (size_t n = nf->n_groups; n > 0;) {
        struct step *st = tsr__step_new(draft, COMM_ALL_REDUCE, 1, 1);
        struct device_group *round = ARENA_ARRAY(draft->arena, struct device_group, n);
        if (!st || !round)
            return false;
        n = take_round(left, n, round, &st->n_groups);
        st->flow = nf;
        st->inputs[0] = partial;
        st->outputs[0] = whole;
        st->groups = round;
        st->group_live = ARENA_ARRAY(draft->arena, unsigned char, st->n_groups + 1);
    }
    return !draft->arena->failed;
}

// Plans the reduction of partial sums as their readers need them. If a device is in two groups,
// there are several AllReduces, each with groups that have no device in common.
static bool draft_reduce(struct draft *draft, const struct node_flow *nf, struct form *partial)
{
    struct reshard_operators operators;
    partial->partial = true;
    if (!tsr__draft_sum(draft, partial, nf, &operators))
        return false;
    return operators.n ? tsr__draft_lower(draft, partial, nf, &operators) != NULL
                       : reduce_in_rounds(draft, nf, partial);
}

// Plans a body in its own scope, and restores the previous scope, also after a failure.
static bool draft_body(struct draft *draft, const struct step *st, struct body *body)
{
    struct scope *here = draft->scope;
    unsigned char *needed = tsr__body_open(draft, st, body);
    bool ok = needed && draft_nodes(draft, body->flow->nodes, body->flow->n_nodes, needed) &&
              tsr__body_outputs(draft, st, body);
    struct scope *inner = draft->scope;
    tsr__scope_enter(draft, here);
    body->steps = inner->steps;
    return ok;
}

// Plans the bodies of a node, and the values that control them, such as a trip count.
static bool draft_bodies(struct draft *draft, struct step *st)
{
    st->n_bodies = st->flow->control->n_bodies;
    st->bodies = ARENA_ARRAY(draft->arena, struct body, 2);
    if (!st->bodies)
        return false;
    for (int k = 0; k < st->n_bodies; k++) {
        st->bodies[k].flow = &st->flow->bodies[k];
        if (!draft_body(draft, st, &st->bodies[k]))
            return false;
    }
    return tsr__body_plan_control(draft, st);
}

// Returns the forms of the node's inputs. If the node has no sharded bodies, the outer values that
// its subgraphs read follow. Returns NULL after a failure.
static struct form **draft_inputs(struct draft *draft, const struct node_flow *nf, size_t *n)
{
    const tsr_node *node = nf->node;
    tsr_value **captures = NULL;
    size_t n_in = tsr_node_input_count(node), n_captures = 0;
    if (!nf->bodies)
        n_captures = tsr__node_captures(node, &captures);
    struct form **forms = ARENA_ARRAY(draft->arena, struct form *, n_in + n_captures + 1);
    if (!forms)
        return NULL;
    for (size_t i = 0; i < n_in; i++) {
        tsr_value *value = tsr_node_input(node, i);
        if (!value)
            continue;
        forms[i] = draft_input(draft, nf, value, i);
        if (!forms[i])
            return NULL;
    }
    for (size_t i = 0; i < n_captures; i++) {
        forms[n_in + i] = draft_capture(draft, nf, captures[i]);
        if (!forms[n_in + i])
            return NULL;
    }
    *n = n_in + n_captures;
    return forms;
}

static bool make_results(struct draft *draft, const struct node_flow *nf, struct step *st)
{
    for (size_t i = 0; i < st->n_outputs; i++) {
        tsr_value *value = tsr_node_output(nf->node, i);
        if (!value)
            continue;
        struct item *it = tsr__item_of(draft, value);
        st->outputs[i] = tsr__form_new(draft, it, nf->outputs[i], FORM_MADE);
        if (!st->outputs[i])
            return false;
    }
    return true;
}

// Reduces partial sums after the node, unless the flow found that the reduction can be delayed
// (sharding/flow/delay.c).
//   Example: y = MatMul(x, w) with k sharded in 2, z = y + b, z read unsharded:
//   not delayed:  y/0 partial -> AllReduce -> y/1, then Add(y/1, b) on both ranks
//   delayed:      y/0 partial, Add(y/0, b) on rank 0, y/0 alone on rank 1, then z is reduced
static bool reduce_results(struct draft *draft, const struct node_flow *nf, struct step *st)
{
    if (!needs_reduction(nf))
        return true;
    for (size_t i = 0; i < st->n_outputs; i++) {
        if (!st->outputs[i])
            continue;
        if (nf->delayed)
            st->outputs[i]->partial = true;
        else if (!draft_reduce(draft, nf, st->outputs[i]))
            return false;
    }
    return true;
}

// Plans a node, or one turn of it (turns.c): the conversions of its inputs, and the node itself.
// Returns NULL after a failure.
static struct step *draft_turn(struct draft *draft, const struct node_flow *nf)
{
    size_t n_inputs;
    struct form **inputs = draft_inputs(draft, nf, &n_inputs);
    if (!inputs)
        return NULL;
    struct step *st = tsr__step_make(draft, STEP_NODE, 0, tsr_node_output_count(nf->node));
    if (!st)
        return NULL;
    st->flow = nf;
    st->inputs = inputs;
    st->n_inputs = n_inputs;
    st->n_node_inputs = tsr_node_input_count(nf->node);
    if (nf->bodies && !draft_bodies(draft, st))
        return NULL;
    return tsr__step_push(draft, st) && make_results(draft, nf, st) ? st : NULL;
}

// Adds up the partial sums of n turns on each device, then reduces them over the devices. Output
// `i` of every turn has the partial sums.
static bool draft_sum_of_turns(struct draft *draft, const struct node_flow *nf,
                               struct step *const *turns, size_t n, size_t i)
{
    if (!turns[0]->outputs[i])
        return true;
    struct step *sum = tsr__step_new(draft, STEP_SUM, n, 1);
    if (!sum)
        return false;
    for (size_t turn = 0; turn < n; turn++) {
        sum->inputs[turn] = turns[turn]->outputs[i];
        sum->inputs[turn]->partial = true;
    }
    sum->flow = nf;
    sum->outputs[0] = tsr__form_new(draft, sum->inputs[0]->item, nf->outputs[i], FORM_MADE);
    return sum->outputs[0] && reduce_results(draft, nf, sum);
}

// Plans a node. If a device has several shards, it computes them in several turns (turns.c).
static bool draft_node(struct draft *draft, const struct node_flow *nf)
{
    VEC(struct step *) turns = {0};
    for (size_t turn = 0;; turn++) {
        bool done;
        const struct node_flow *part = tsr__turn_flow(draft, nf, turn, &done);
        if (!part)
            return false;
        if (done)
            break;
        struct step *st = draft_turn(draft, part);
        if (!st || !vec_add(draft->arena, &turns, st))
            return false;
    }
    if (turns.n == 1)
        return reduce_results(draft, nf, turns.at[0]);
    for (size_t i = 0; nf->n_groups && i < turns.at[0]->n_outputs; i++)
        if (!draft_sum_of_turns(draft, nf, turns.at, turns.n, i))
            return false;
    return true;
}

// ---- stages ------------------------------------------------------------------------------------

// True if the value is produced by a node that has a stage other than `stage`.
static bool produced_elsewhere(const struct draft *draft, const tsr_value *value, int64_t stage)
{
    const tsr_node *maker = tsr_value_producer(value);
    if (!maker)
        return false;
    int64_t there = tsr__node_stage(maker, draft->flow->config);
    return there >= 0 && there != stage;
}

// Plans the transfer of values that the node reads from other stages. Partial sums and windows are
// converted later, with the node.
static bool transfer_inputs(struct draft *draft, const struct node_flow *nf, int64_t stage)
{
    for (size_t k = 0; k < tsr_node_input_count(nf->node); k++) {
        tsr_value *value = tsr_node_input(nf->node, k);
        if (!value || !produced_elsewhere(draft, value, stage))
            continue;
        struct item *it = tsr__item_of(draft, value);
        bool plain = it && it->first && !it->first->partial && !(nf->pending && nf->pending[k]) &&
                     !tsr__needs_windows(nf, (int)k) && tsr__owns_once(nf->inputs[k]);
        if (plain && !tsr__draft_convert(draft, it, nf->inputs[k], nf->node))
            return false;
    }
    return true;
}

// Plans the transfer of all inputs of the stage that nodes[0] begins. They come before its first
// node, because a transfer in the middle of a stage would delay the next run of the sender.
static bool begin_stage(struct draft *draft, const struct node_flow *nodes, size_t n,
                        const bool *takes)
{
    int64_t stage = tsr__node_stage(nodes[0].node, draft->flow->config);
    for (size_t i = 0; i < n; i++)
        if (takes[i] && tsr__node_stage(nodes[i].node, draft->flow->config) == stage &&
            !transfer_inputs(draft, &nodes[i], stage))
            return false;
    return true;
}

// True if the stage of the node is higher than all stages so far (*seen), and updates *seen. False
// in bodies.
static bool is_first_of_stage(const struct draft *draft, const tsr_node *node, int64_t *seen)
{
    if (draft->scope->outer)
        return false;
    int64_t stage = tsr__node_stage(node, draft->flow->config);
    if (stage <= *seen)
        return false;
    *seen = stage;
    return true;
}

static bool draft_next(struct draft *draft, const struct node_flow *nodes, size_t n,
                       const bool *takes, int64_t *seen)
{
    if (is_first_of_stage(draft, nodes[0].node, seen) && !begin_stage(draft, nodes, n, takes))
        return false;
    return draft_node(draft, &nodes[0]);
}

// Plans the nodes on which values marked in `needed` (by value id) depend. Marks the inputs of
// these nodes, too.
static bool draft_nodes(struct draft *draft, const struct node_flow *nodes, size_t n,
                        unsigned char *needed)
{
    int64_t seen = -1; // highest stage so far
    bool *takes_part = ARENA_ARRAY(draft->arena, bool, n + 1);
    if (!takes_part)
        return false;
    for (size_t i = n; i-- > 0;)
        takes_part[i] = tsr__node_needed(nodes[i].node, needed);
    for (size_t i = 0; i < n; i++) {
        if (takes_part[i])
            node_wants(draft, &nodes[i], draft->scope->graph);
    }
    for (size_t i = 0; i < n; i++)
        if (takes_part[i] && !draft_next(draft, nodes + i, n - i, takes_part + i, &seen))
            return false;
    return true;
}

static void add_flow(void *data, const struct node_flow *nf)
{
    struct draft *draft = data;
    draft->flows[tsr__node_id(nf->node)] = nf;
}

static bool draft_outputs(struct draft *draft)
{
    tsr_graph *graph = tsr_model_graph(draft->model);
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        struct item *it = tsr__item_of(draft, value);
        const struct tile_layout *layout = tsr__port_layout(draft, value, SIDE_OUTPUTS);
        if (!it || !layout)
            return false;
        struct form *form = tsr__draft_convert(draft, it, layout, NULL);
        if (!form || !vec_add(draft->arena, &draft->outputs, form))
            return false;
        form->item->output = form; // a value that is two outputs of the model has one layout
    }
    return true;
}

static void take_name(struct draft *draft, const tsr_value *value)
{
    if (!value)
        return;
    tsr__map_set(&draft->names, tsr__value_str(value), draft);
}

// Collects the names of all graphs, so that new names are unique.
static void collect_names(struct draft *draft)
{
    tsr_graph *graph = tsr_model_graph(draft->model);
    tsr__map_init(&draft->names, draft->arena, tsr__model_value_ids(draft->model));
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        take_name(draft, tsr_graph_input(graph, i));
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++)
        take_name(draft, tsr_graph_initializer(graph, i));
    for (tsr_node *node = tsr_model_next_node(draft->model, NULL); node;
         node = tsr_model_next_node(draft->model, node)) {
        for (size_t i = 0; i < tsr_node_output_count(node); i++)
            take_name(draft, tsr_node_output(node, i));
        // these include inputs and constants of subgraphs
        for (size_t i = 0; i < tsr_node_input_count(node); i++)
            take_name(draft, tsr_node_input(node, i));
    }
}

// Rejects a model that has names which Tessera reserves: it is already a rank file.
static tsr_status refuse_reserved(struct draft *draft)
{
    static const char *const reserved[] = {TOKEN_NAME, TOKEN_OUT};
    for (size_t i = 0; i < TSR_COUNT(reserved); i++) {
        if (!tsr__map_get(&draft->names, str_of(reserved[i])))
            continue;
        return tsr__fail(
            draft->session, TSR_INVALID, DIAG_partition_refused,
            &PLACE(.file = str_of(tsr_model_path(draft->model)), .value = str_of(reserved[i])),
            "partition the original model", "this model is already a rank file of a partition");
    }
    return TSR_OK;
}

// Plans all steps of the model. Returns TSR_BUG if planning failed without a diagnostic.
tsr_status tsr__draft_build(struct draft *draft)
{
    draft->items = ARENA_ARRAY(draft->arena, struct item *, tsr__model_value_ids(draft->model) + 1);
    unsigned char *needed =
        ARENA_ARRAY(draft->arena, unsigned char, tsr__model_value_ids(draft->model) + 1);
    tsr_graph *graph = tsr_model_graph(draft->model);
    draft->wants = ARENA_ARRAY(draft->arena, struct want, tsr__model_value_ids(draft->model) + 1);
    draft->flows =
        ARENA_ARRAY(draft->arena, const struct node_flow *, tsr__model_node_ids(draft->model) + 1);
    if (!draft->items || !draft->wants || !draft->flows || !needed)
        return TSR_NOMEM;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        needed[tsr__value_id(value)] = 1;
        tsr__draft_want(draft, value, tsr__port_layout(draft, value, SIDE_OUTPUTS));
    }
    draft->main.graph = graph;
    draft->scope = &draft->main;
    collect_names(draft);
    TRY(refuse_reserved(draft));
    tsr__flow_visit(draft->flow, add_flow, draft);
    tsr__draft_find_sizes(draft);
    bool all = draft_nodes(draft, draft->flow->nodes, draft->flow->n_nodes, needed) &&
               draft_outputs(draft);
    TRY(draft_status(draft));
    if (!all)
        return TSR_BUG;
    tsr__draft_live(draft);
    return draft_status(draft);
}
