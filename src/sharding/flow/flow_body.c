// SPDX-License-Identifier: Apache-2.0
// flow_body.c - the flow through the bodies of If, Loop and Scan.
//
// A carried value has one layout: at its start, inside at both ends, and as a result. It starts
// with the explicit layout at the node, else with the one that arrives. The body is followed; a
// different layout at the end is adopted once, then replaced by replication, until an iteration
// changes nothing. Remaining differences are resharded inside the body. All devices that run the
// node have a shard of everything that goes in and out of a body: so all of them have the same
// bodies, and only sizes differ. Slices and stacked results are never sharded along the iterations.
// Values from outside are read in their layout there. If nothing inside is sharded or moved, the
// node runs unchanged.
//
//     Loop carries h [8,6] and stacks y [8] of each iteration; h arrives as {2,1} on devices 0 and
//       1.
//     Inside, h' = Tanh(h) is {2,1} again: nothing changes after one iteration, and h stays {2,1}.
//     y = ReduceSum(h, axis 1) is {2} in each iteration, so the stacked result [n,8] is {1,2}.
//     Were h' = Softmax(h) along axis 0, which is not sharded inside of bodies, h' would be
//       replicated
//     on both devices: the second iteration starts with h replicated, and h stays replicated.
#include "sharding/flow/flow.h"

#define MAX_TURNS 6

// A node whose bodies are being followed. states, slices and results have one layout each, which
// all turns share.
struct follow {
    struct flow_work *work;
    struct flow_ask *ask;
    struct node_flow *nf;
    const struct control *control;
    struct tile_layout **states, **slices, **results; // as the body has them
    bool *fixed;                                      // states that are explicit
    int *tries;                                       // how often a state was changed
};

// ---- layouts with and without an axis ----------------------------------------------------------

// Shard k of the one is shard k of the other: both number them in the order of the dimensions.
static bool copy_owners(struct arena *arena, const struct tile_layout *from, struct tile_layout *to)
{
    size_t n = (size_t)from->first[from->n_shards], at = 0;
    struct tile_owner *pairs = ARENA_ARRAY(arena, struct tile_owner, n + 1);
    if (!pairs)
        return false;
    for (int64_t k = 0; k < from->n_shards; k++)
        for (int64_t i = from->first[k]; i < from->first[k + 1]; i++)
            pairs[at++] = (struct tile_owner){k, from->owners[i]};
    return tsr__layout_own(arena, to, pairs, n);
}

// The same cuts with a whole dimension more (or less) at the axis. NULL: out of memory.
static struct tile_layout *shifted(struct arena *arena, const struct tile_layout *layout, int axis,
                                   int by)
{
    const struct tile_layout *from = tsr__layout_ordered(arena, layout);
    // by = -1: {1,2:0,1} without axis 0 is {2:0,1}; by = 1: with a new axis 0 it is {1,1,2:0,1}
    int rank = layout->rank + by;
    struct tile_dim *dims = ARENA_ARRAY(arena, struct tile_dim, (size_t)rank + 1);
    if (!from || !dims)
        return NULL;
    for (int d = 0; d < rank; d++)
        if (d < axis)
            dims[d] = from->dims[d];
        else if (by < 0 || d > axis)
            dims[d] = from->dims[d - by];
    struct tile_layout *to = tsr__layout_cut(arena, rank, dims);
    if (to && copy_owners(arena, from, to))
        return to;
    return NULL;
}

static bool cuts_axis(const struct tile_layout *layout, int axis)
{
    for (int i = 0; i < layout->n_loops; i++)
        if (layout->loops[i].dim == axis)
            return true;
    return false;
}

// ---- what may go in and out of a body ----------------------------------------------------------

// 0 where it is not known: such values lie whole, without dimensions.
static int rank_of(const struct follow *follow, const tsr_value *value)
{
    int rank = -1;
    if (value)
        rank = tsr__shapes_element(follow->work->flow->shapes, value).rank;
    if (rank < 0 || rank > TILE_MAX_RANK)
        return 0;
    return rank;
}

// Whole on the devices that run the node: what is always possible.
static struct tile_layout *whole(const struct follow *follow, int rank)
{
    return tsr__flow_whole(follow->work, rank, &follow->nf->place);
}

// Each device of the node has one shard, and no other device has any.
static bool everywhere(const struct follow *follow, const struct tile_layout *layout)
{
    const struct placement *placement = &follow->nf->place;
    if (layout->first[layout->n_shards] != (int64_t)placement->n_devices)
        return false;
    for (size_t i = 0; i < placement->n_devices; i++)
        if (!tsr__layout_has_device(layout, placement->devices[i]))
            return false;
    return true;
}

// A factor other than the outermost is cut.
static bool cut_inside(const struct tile_dim *dim)
{
    for (int i = 1; i < dim->n; i++)
        if (dim->factors[i].cuts > 1)
            return true;
    return false;
}

// A cut inside of a dimension names the sizes of its factors ({5*2/2}: 10 elements). It fits where
// the value is known to have as many, which one branch may and the other may not; a cut of plain
// parts, or of units from the outermost factor on, fits any size.
static bool sizes_fit(const struct follow *follow, const struct tile_layout *layout,
                      const tsr_value *value)
{
    int64_t sizes[TILE_MAX_FACTORS];
    struct shape shape = {.rank = -1};
    if (value)
        shape = tsr__shapes_element(follow->work->flow->shapes, value);
    for (int axis = 0; axis < layout->rank; axis++) {
        const struct tile_dim *dim = &layout->dims[axis];
        if (!cut_inside(dim))
            continue;
        if (shape.rank != layout->rank || shape.dims[axis].value < 0 ||
            !tsr__dim_sizes(dim, shape.dims[axis].value, sizes))
            return false;
    }
    return true;
}

// A list goes in and out of bodies whole: nothing is said there of its elements.
static bool fits(const struct follow *follow, const struct tile_layout *layout,
                 const tsr_value *value)
{
    bool list = tsr__shapes_is_list(follow->work->flow->shapes, value);
    return layout && layout->rank == rank_of(follow, value) && everywhere(follow, layout) &&
           (!list || tsr__layout_is_whole(layout)) && sizes_fit(follow, layout, value);
}

// NULL: no value, or not yet computed.
static struct tile_layout *lies(const struct follow *follow, const tsr_value *value)
{
    if (value)
        return follow->work->flow->values[tsr__value_id(value)];
    return NULL;
}

// The first complaint counts; a whole layout that cannot be had is no loss.
static void complain(struct follow *follow, const struct tile_layout *layout, const char *why)
{
    if (!follow->ask->why && !tsr__layout_is_whole(layout))
        follow->ask->why = why;
}

// Output i of a body behind the condition, which the body of a Loop gives first.
static const tsr_value *body_output(const struct follow *follow, int body, int i)
{
    return tsr_graph_output(follow->control->bodies[body],
                            (size_t)(i + follow->control->condition));
}

// The sizes of a state fit all along: where it comes from, where the body takes it, where the body
// gives it back.
static bool state_sizes_fit(const struct follow *follow, const struct tile_layout *layout,
                            int state)
{
    const struct control *control = follow->control;
    size_t in = (size_t)(control->n_steer + state), taken = (size_t)(control->n_numbers + state);
    return sizes_fit(follow, layout, tsr_node_input(follow->ask->node, in)) &&
           sizes_fit(follow, layout, tsr_graph_input(control->bodies[0], taken)) &&
           sizes_fit(follow, layout, body_output(follow, 0, state));
}

// ---- where things start ------------------------------------------------------------------------

#define UNEVEN                                                                                     \
    "what a body carries or gives must lie on all devices that run it, and have the sizes of its " \
    "sharding in every turn"

// The spec of the input comes before that of the result. A state that is explicit does not move
// with what the body gives (fixed); what the body gives otherwise is moved back inside of it.
static bool start_state(struct follow *follow, int i)
{
    const tsr_node *node = follow->ask->node;
    size_t in = (size_t)(follow->control->n_steer + i), out = (size_t)i;
    const tsr_value *value = tsr_node_input(node, in);
    const tsr_value *y = NULL;
    if (out < tsr_node_output_count(node))
        y = tsr_node_output(node, out);
    struct tile_layout *asked = follow->ask->in[in];
    if (!asked && y)
        asked = follow->ask->out[out];
    follow->fixed[i] = asked && fits(follow, asked, value) && state_sizes_fit(follow, asked, i);
    if (asked && !follow->fixed[i])
        complain(follow, asked, UNEVEN);
    struct tile_layout *layout = follow->fixed[i] ? asked : lies(follow, value);
    bool good = fits(follow, layout, value) && state_sizes_fit(follow, layout, i);
    if (good)
        follow->states[i] = layout;
    else
        follow->states[i] = whole(follow, rank_of(follow, value));
    return follow->states[i] != NULL;
}

// A slice is what one turn sees of an input of a Scan: the same cuts without the axis of the turns.
static bool start_slice(struct follow *follow, int i)
{
    size_t in = (size_t)(follow->control->n_steer + follow->control->n_states + i);
    const tsr_value *value = tsr_node_input(follow->ask->node, in);
    int rank = rank_of(follow, value), axis = tsr__control_in_axis(follow->control, i, rank);
    struct tile_layout *asked = follow->ask->in[in], *layout = asked ? asked : lies(follow, value);
    bool good = axis >= 0 && fits(follow, layout, value) && !cuts_axis(layout, axis);
    if (asked && !good)
        complain(follow, asked,
                 axis >= 0 && cuts_axis(asked, axis) ? "the axis of the turns is cut" : UNEVEN);
    if (good)
        follow->slices[i] = shifted(follow->work->arena, layout, axis, -1);
    else
        follow->slices[i] = whole(follow, rank > 0 ? rank - 1 : 0);
    return follow->slices[i] != NULL;
}

static bool start(struct follow *follow)
{
    for (int i = 0; i < follow->control->n_states; i++)
        if (!start_state(follow, i))
            return false;
    for (int i = 0; i < follow->control->n_slices; i++)
        if (!start_slice(follow, i))
            return false;
    return true;
}

// ---- one turn ----------------------------------------------------------------------------------

// Inputs of a body in their order: numbers (the turn, the condition), carried states, slices. The
// body of a Loop with two states has inputs 0 and 1 as numbers and 2 and 3 as states 0 and 1. Its
// initializers lie whole on all devices.
static bool start_body(struct follow *follow, struct body_flow *flow)
{
    const struct control *control = follow->control;
    const tsr_graph *graph = flow->graph;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        int k = (int)i - control->n_numbers;
        if (k < 0)
            flow->inputs[i] = whole(follow, rank_of(follow, value));
        else if (k < control->n_states)
            flow->inputs[i] = follow->states[k];
        else
            flow->inputs[i] = follow->slices[k - control->n_states];
        if (!flow->inputs[i])
            return false;
        follow->work->flow->values[tsr__value_id(value)] = flow->inputs[i];
    }
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i);
        struct tile_layout *layout = whole(follow, rank_of(follow, value));
        if (!layout)
            return false;
        if (!tsr_value_is_input(value))
            follow->work->flow->values[tsr__value_id(value)] = layout;
    }
    return true;
}

// One turn through one body. Afterwards flow->values says how its outputs lie. A list that a body
// gives must be whole on all devices of the node; where it is not, the flow runs once more with the
// list kept whole.
static bool follow_body(struct follow *follow, struct body_flow *flow, int say)
{
    struct flow_work *work = follow->work;
    size_t i = 0;
    if (!start_body(follow, flow))
        return false;
    memset(flow->nodes, 0, flow->n_nodes * sizeof(*flow->nodes));
    for (tsr_node *node = tsr_graph_first(flow->graph); node && i < flow->n_nodes;
         node = tsr_node_next(node), i++) {
        work->say = say;
        if (!tsr__flow_node(work, node, &flow->nodes[i]))
            return false;
    }
    for (i = 0; i < tsr_graph_output_count(flow->graph); i++) {
        const tsr_value *value = tsr_graph_output(flow->graph, i);
        if (!lies(follow, value))
            return false; // it has no producer
        if (!work->kept_whole || !tsr__shapes_is_list(work->flow->shapes, value))
            continue;
        bool *kept = &work->kept_whole[tsr__value_id(value)];
        bool good = *kept || (tsr__layout_is_whole(lies(follow, value)) &&
                              everywhere(follow, lies(follow, value)));
        work->keeps_more = work->keeps_more || !good;
        *kept = *kept || !good;
    }
    return true;
}

// flow_node is called for nodes of bodies while the outer node is under way: what of work belongs
// to one node is put aside.
static bool follow_bodies(struct follow *follow, int say)
{
    struct flow_work *work = follow->work;
    struct arena scratch = work->scratch; // of the node that has the bodies
    bool keep = work->keep, trial = work->trial, *within = work->within;
    int said = work->say;
    bool ok = true;
    work->keep = true; // nodes of bodies are not replaced by simpler ones
    work->trial = false;
    work->within = follow->ask->within;
    for (int k = 0; k < follow->control->n_bodies && ok; k++)
        ok = follow_body(follow, &follow->nf->bodies[k], say);
    work->keep = keep;
    work->trial = trial;
    work->within = within;
    work->say = said;
    work->scratch = scratch;
    return ok;
}

// ---- until nothing changes ---------------------------------------------------------------------

// True if the state lies otherwise from now on.
static bool settle_state(struct follow *follow, int i)
{
    const tsr_value *value = body_output(follow, 0, i);
    struct tile_layout *back = lies(follow, value), *now = follow->states[i];
    if (follow->fixed[i] || follow->tries[i] > 1 || tsr__layout_equal(back, now))
        return false;
    // first the layout of the result, if it can be carried; the second time, replicated
    follow->tries[i]++;
    bool take = follow->tries[i] == 1 && now->rank == back->rank && fits(follow, back, value) &&
                state_sizes_fit(follow, back, i);
    struct tile_layout *next = take ? back : whole(follow, now->rank);
    bool same = !next || tsr__layout_equal(next, now);
    follow->states[i] = next;
    return !same;
}

// Each state changes at most twice, so with many of them turns may run out; the last turns then
// hold all of them.
static bool settle(struct follow *follow)
{
    for (int turn = 0; turn < MAX_TURNS; turn++) {
        bool changed = false;
        if (!follow_bodies(follow, SAY_NO_ERROR))
            return false;
        for (int i = 0; i < follow->control->n_states; i++) {
            changed = settle_state(follow, i) || changed;
            if (!follow->states[i])
                return false;
            if (changed && turn + 2 >= MAX_TURNS &&
                !follow->fixed[i]) // enough: whole is always possible
                follow->tries[i] = 2;
        }
        if (!changed)
            return true;
    }
    return follow_bodies(follow, SAY_NO_ERROR);
}

// ---- results -----------------------------------------------------------------------------------

// In the form that the body has: without the axis along which a loop stacks its results. NULL:
// nothing is asked, or nothing that a body can give.
static struct tile_layout *asked_result(struct follow *follow, int i, int rank)
{
    size_t out = (size_t)(follow->control->n_states + i);
    bool there = out < tsr_node_output_count(follow->ask->node);
    struct tile_layout *asked = NULL;
    if (there)
        asked = follow->ask->out[out];
    if (!asked || !follow->control->loops)
        return asked;
    int axis = tsr__control_out_axis(follow->control, i, rank + 1);
    bool good = axis >= 0 && asked->rank == rank + 1 && !cuts_axis(asked, axis);
    if (good)
        return shifted(follow->work->arena, asked, axis, -1);
    return NULL;
}

// What is asked for, else what the first body gives; a cut one before a whole one.
static bool choose_result(struct follow *follow, int i)
{
    const tsr_value *first = body_output(follow, 0, follow->control->n_states + i);
    const tsr_value *other = first;
    if (follow->control->n_bodies > 1)
        other = body_output(follow, 1, follow->control->n_states + i);
    int rank = rank_of(follow, first);
    struct tile_layout *layout = asked_result(follow, i, rank);
    if (!fits(follow, layout, first))
        layout = lies(follow, first);
    if (!fits(follow, layout, first) ||
        (tsr__layout_is_whole(layout) && fits(follow, lies(follow, other), other)))
        layout = lies(follow, other);
    bool good = fits(follow, layout, first) && rank_of(follow, other) == rank &&
                sizes_fit(follow, layout, other);
    if (good)
        follow->results[i] = layout;
    else
        follow->results[i] = whole(follow, rank);
    return follow->results[i] != NULL;
}

// In the form that the node has: a loop stacks its results along one more axis, a branch hands them
// on.
static struct tile_layout *outer_result(struct follow *follow, int i)
{
    size_t out = (size_t)(follow->control->n_states + i);
    const tsr_value *value = tsr_node_output(follow->ask->node, out);
    struct tile_layout *layout = follow->results[i];
    int rank = rank_of(follow, value), axis = tsr__control_out_axis(follow->control, i, rank);
    if (follow->control->loops && !tsr__layout_is_whole(layout) && axis >= 0 &&
        layout->rank + 1 == rank)
        return shifted(follow->work->arena, layout, axis, 1);
    if (!follow->control->loops && layout->rank == rank)
        return layout;
    return whole(follow, rank);
}

// A result that is sharded inside must be sharded in the same way outside.
static bool join_result(struct follow *follow, int i)
{
    size_t out = (size_t)(follow->control->n_states + i);
    bool there =
        out < tsr_node_output_count(follow->ask->node) && tsr_node_output(follow->ask->node, out);
    struct tile_layout *outer = NULL;
    if (there)
        outer = outer_result(follow, i);
    if (there && !outer)
        return false;
    if (!there || (tsr__layout_is_whole(outer) && !tsr__layout_is_whole(follow->results[i])))
        follow->results[i] = whole(follow, follow->results[i]->rank);
    if (there)
        follow->nf->outputs[out] = outer;
    return follow->results[i] != NULL;
}

// First each result gets its layout (states have theirs), then every body is asked for these at its
// outputs. Outputs of a body in order: the condition (replicated, since all devices must decide
// equally), carried states, results.
static bool give_outputs(struct follow *follow)
{
    const struct control *control = follow->control;
    for (int i = 0; i < control->n_results; i++)
        if (!choose_result(follow, i) || !join_result(follow, i))
            return false;
    for (int i = 0; i < control->n_states; i++)
        if ((size_t)i < tsr_node_output_count(follow->ask->node))
            follow->nf->outputs[i] = follow->states[i];
    for (int k = 0; k < control->n_bodies; k++) {
        struct body_flow *flow = &follow->nf->bodies[k];
        for (size_t i = 0; i < tsr_graph_output_count(flow->graph); i++) {
            int at = (int)i - control->condition;
            if (at < 0)
                flow->outputs[i] = whole(follow, rank_of(follow, tsr_graph_output(flow->graph, i)));
            else if (at < control->n_states)
                flow->outputs[i] = follow->states[at];
            else
                flow->outputs[i] = follow->results[at - control->n_states];
            if (!flow->outputs[i])
                return false;
        }
    }
    return true;
}

// Trip count and condition are replicated; a sharded slice shards its input in the same way.
static bool give_inputs(struct follow *follow)
{
    const struct control *control = follow->control;
    for (size_t i = 0; i < tsr_node_input_count(follow->ask->node); i++) {
        const tsr_value *value = tsr_node_input(follow->ask->node, i);
        int k = (int)i - control->n_steer, slice = k - control->n_states;
        struct tile_layout *layout = NULL;
        if (!value)
            continue;
        if (k >= 0 && slice < 0)
            layout = follow->states[k];
        else if (slice >= 0 && !tsr__layout_is_whole(follow->slices[slice]))
            layout = shifted(follow->work->arena, follow->slices[slice],
                             tsr__control_in_axis(control, slice, rank_of(follow, value)), 1);
        else
            layout = whole(follow, rank_of(follow, value));
        follow->nf->inputs[i] = layout;
        if (!layout)
            return false;
    }
    return true;
}

// ---- remarks -----------------------------------------------------------------------------------

// A body gives something otherwise than it has to be.
static void mention_end(struct follow *follow, const tsr_value *value,
                        const struct tile_layout *need)
{
    struct flow_work *work = follow->work;
    const struct tile_layout *have = lies(follow, value);
    const tsr_node *maker = tsr_value_producer(value);
    if (!(work->say & SAY_MOVES) || tsr_value_initializer(value) || tsr__flow_held(have, need))
        return;
    bool asked = maker && tsr__has_spec(maker, work->flow->config, value);
    enum diag_code code = DIAG_reshard_implied;
    if (asked)
        code = DIAG_body_disagree;
    if (!maker)
        maker = follow->ask->node;
    struct place at = tsr__place_node(maker);
    at.configuration = str_of(tsr_config_name(work->flow->config));
    at.value = tsr__value_str(value);
    struct place outer = tsr__place_node(follow->ask->node);
    struct str from = tsr__notation_print(&work->scratch, have),
               to = tsr__notation_print(&work->scratch, need);
    const char *often = "";
    if (follow->control->loops)
        often = ": it moves in every turn";
    tsr__diag(work->arena->session, code, &at,
              "shard the outputs of both branches as the node's outputs",
              "the body gives the value as " STR_FMT ", and node '" STR_FMT "' (" STR_FMT
              ") has it as " STR_FMT "%s",
              STR_ARG(from), STR_ARG(outer.node), STR_ARG(outer.op), STR_ARG(to), often);
}

static void mention_ends(struct follow *follow)
{
    for (int k = 0; k < follow->control->n_bodies; k++)
        for (size_t i = (size_t)follow->control->condition;
             i < tsr_graph_output_count(follow->control->bodies[k]); i++)
            mention_end(follow, tsr_graph_output(follow->control->bodies[k], i),
                        follow->nf->bodies[k].outputs[i]);
}

// ---- is it worth it? ---------------------------------------------------------------------------

// Plain: whole on all devices of the node, as if nothing had been annotated.
static bool plain_layout(const struct follow *follow, const struct tile_layout *layout)
{
    return !layout || (tsr__layout_is_whole(layout) && everywhere(follow, layout));
}

static bool plain_node(const struct follow *follow, const struct node_flow *nf)
{
    if (nf->n_groups || nf->bodies)
        return false;
    for (size_t i = 0; i < tsr_node_input_count(nf->node); i++)
        if (!plain_layout(follow, nf->inputs[i]))
            return false;
    for (size_t i = 0; i < tsr_node_output_count(nf->node); i++)
        if (!plain_layout(follow, nf->outputs[i]) || !plain_layout(follow, nf->wanted[i]))
            return false;
    return nf->place.n_devices == follow->nf->place.n_devices;
}

// Nothing inside is cut or moved: the node runs as it stands.
static bool plain(const struct follow *follow)
{
    for (int k = 0; k < follow->control->n_bodies; k++) {
        const struct body_flow *flow = &follow->nf->bodies[k];
        for (size_t i = 0; i < tsr_graph_input_count(flow->graph); i++)
            if (!plain_layout(follow, flow->inputs[i]))
                return false;
        for (size_t i = 0; i < tsr_graph_output_count(flow->graph); i++)
            if (!plain_layout(follow, flow->outputs[i]))
                return false;
        for (size_t i = 0; i < flow->n_nodes; i++)
            if (!plain_node(follow, &flow->nodes[i]))
                return false;
    }
    return true;
}

// ---- all of it ---------------------------------------------------------------------------------

// Room for what the bodies carry, take and give; a node has two bodies at most (If).
static bool make_room(struct follow *follow)
{
    struct arena *arena = follow->work->arena;
    const struct control *control = follow->control;
    follow->states = ARENA_ARRAY(arena, struct tile_layout *, (size_t)control->n_states + 1);
    follow->slices = ARENA_ARRAY(arena, struct tile_layout *, (size_t)control->n_slices + 1);
    follow->results = ARENA_ARRAY(arena, struct tile_layout *, (size_t)control->n_results + 1);
    follow->fixed = ARENA_ARRAY(arena, bool, (size_t)control->n_states + 1);
    follow->tries = ARENA_ARRAY(arena, int, (size_t)control->n_states + 1);
    follow->nf->bodies = ARENA_ARRAY(arena, struct body_flow, 2);
    if (!follow->nf->bodies)
        return false;
    for (int k = 0; k < control->n_bodies; k++) {
        struct body_flow *flow = &follow->nf->bodies[k];
        flow->graph = control->bodies[k];
        flow->n_nodes = tsr_graph_node_count(flow->graph);
        flow->nodes = ARENA_ARRAY(arena, struct node_flow, flow->n_nodes + 1);
        flow->inputs =
            ARENA_ARRAY(arena, struct tile_layout *, tsr_graph_input_count(flow->graph) + 1);
        flow->outputs =
            ARENA_ARRAY(arena, struct tile_layout *, tsr_graph_output_count(flow->graph) + 1);
    }
    return !arena->failed;
}

// Bodies that are followed again and again have a budget: loops in loops in loops run as they
// stand. Counted over the whole flow: 64 times the nodes of the model, and some more for small
// ones.
static bool afford(struct flow_work *work, const struct control *control)
{
    for (int k = 0; k < control->n_bodies; k++)
        work->body_work += tsr_graph_node_count(control->bodies[k]) + 1;
    return work->body_work < 64 * ((size_t)tsr__model_node_ids(work->flow->model) + 16);
}

// The caller fills inputs and outputs in then, as for any node that runs whole.
static bool stands(struct follow *follow)
{
    follow->nf->bodies = NULL;
    follow->nf->control = NULL;
    memset(follow->nf->inputs, 0,
           tsr_node_input_count(follow->ask->node) * sizeof(*follow->nf->inputs));
    memset(follow->nf->outputs, 0,
           tsr_node_output_count(follow->ask->node) * sizeof(*follow->nf->outputs));
    return !follow->work->arena->failed && !follow->work->scratch.failed;
}

// Any failure on the way, and a body in which nothing is cut, end in stands(): the node runs as it
// stands, whole. settle() follows the bodies without findings; if the caller wants some, a last
// turn makes them.
bool tsr__flow_bodies(struct flow_work *work, struct flow_ask *ask)
{
    struct control *control = ARENA_NEW(work->arena, struct control);
    struct follow follow = {.work = work, .ask = ask, .nf = ask->nf, .control = control};
    if (!control)
        return false;
    if (!tsr__control_of(ask->node, control) || !afford(work, control))
        return stands(&follow);
    if (!make_room(&follow) || !start(&follow) || !settle(&follow) || !give_outputs(&follow) ||
        !give_inputs(&follow))
        return stands(&follow);
    follow.nf->control = control;
    if (plain(&follow))
        return stands(&follow);
    if (work->say & ~SAY_NO_ERROR && !follow_bodies(&follow, work->say))
        return stands(&follow);
    mention_ends(&follow);
    return !work->arena->failed;
}

// Skips invalid specs: they are reported when their own node is visited.
static void spec_owners(const struct flow_work *work, struct arena *arena, const tsr_node *node,
                        bool *on)
{
    for (size_t i = 0; i < tsr_node_config_count(node); i++) {
        const tsr_node_config *nc = tsr_node_config_at(node, i);
        if (tsr_node_config_target(nc) != work->flow->config)
            continue;
        for (size_t k = 0; k < tsr_node_config_spec_count(nc); k++) {
            const tsr_spec *spec = tsr_node_config_spec(nc, k);
            struct tile_layout *layout = NULL;
            struct shape shape = {.rank = -1};
            if (!tsr_spec_value(spec))
                continue;
            shape = tsr__shapes_element(work->flow->shapes, tsr_spec_value(spec));
            if (tsr__spec_layout(arena, spec, &shape, true, &layout) != TSR_OK || !layout)
                continue;
            for (int64_t d = 0; d < layout->first[layout->n_shards]; d++)
                if (layout->owners[d] >= 0 && layout->owners[d] < work->n_all)
                    on[layout->owners[d]] = true;
        }
    }
}

void tsr__flow_body_owners(const struct flow_work *work, struct arena *arena, const tsr_node *node,
                           bool *on)
{
    for (size_t i = 0; i < tsr_node_attr_count(node); i++) {
        const tsr_attr *attr = tsr_node_attr(node, i);
        for (size_t k = 0; k < tsr_attr_graph_count(attr); k++)
            for (const tsr_node *in = tsr_graph_first(tsr_attr_graph(attr, k)); in;
                 in = tsr_node_next(in)) {
                spec_owners(work, arena, in, on);
                tsr__flow_body_owners(work, arena, in, on);
            }
    }
}

static void visit(const struct node_flow *nodes, size_t n,
                  void (*call)(void *data, const struct node_flow *nf), void *data)
{
    for (size_t i = 0; i < n; i++) {
        call(data, &nodes[i]);
        if (!nodes[i].bodies)
            continue;
        for (int k = 0; k < nodes[i].control->n_bodies; k++)
            visit(nodes[i].bodies[k].nodes, nodes[i].bodies[k].n_nodes, call, data);
    }
}

void tsr__flow_visit(const struct flow *flow, void (*call)(void *data, const struct node_flow *nf),
                     void *data)
{
    visit(flow->nodes, flow->n_nodes, call, data);
}
