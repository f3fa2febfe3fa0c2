// SPDX-License-Identifier: Apache-2.0
// flow_body.c - propagates layouts through the bodies of If, Loop and Scan.
//
// A loop state has one layout: as initial value, as input and output of the body, and as result. It
// starts with the explicit layout at the node, else with the layout of the arriving value. Then the
// body is visited. If the state has another layout at the end, that layout is adopted once; the
// second time the state is replicated. This repeats until nothing changes. Remaining differences
// are resharded inside the body.
//
// All devices that run the node have a shard of every input and output of a body. So all have the
// same bodies, and only sizes differ. Scan inputs and stacked results are never sharded along the
// iterations. Outer values are read in their outer layout. If nothing inside is sharded or
// transferred, the node runs unchanged.
//
// Example, in the notation of notation.c:
//     A Loop on devices 0 and 1 carries h [8,6], which arrives as {2,1}, and stacks y [8].
//     Inside, h' = Tanh(h) is {2,1} again: nothing changes after one iteration, and h stays {2,1}.
//     y = ReduceSum(h, axis 1) is {2} in each iteration, so the stacked result [n,8] is {1,2}.
//     If h' were Softmax(h) along axis 0, which is not sharded inside of bodies, h' would be
//     replicated on both devices. The second iteration starts with h replicated, and h stays so.
#include "sharding/flow/flow.h"

#define MAX_TURNS 6

// A node whose bodies are visited. States are values that a loop carries, slices the parts of scan
// inputs that one iteration reads, results the other outputs. Each has one layout for all
// iterations.
struct follow {
    struct flow_work *work;
    struct flow_ask *ask;
    struct node_flow *nf;
    const struct control *control;
    struct tile_layout **states, **slices, **results; // layouts inside the body
    bool *fixed;                                      // states with an explicit layout
    int *tries;                                       // number of changes per state
};

// ---- layouts with and without an axis ----------------------------------------------------------

// Copies the owners of shard k of `from` to shard k of `to`, for all k. Returns false if out of
// memory.
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

struct tile_layout *tsr__body_shifted(struct arena *arena, const struct tile_layout *layout,
                                      int axis, int by)
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
    return to && copy_owners(arena, from, to) ? to : NULL;
}

static bool cuts_axis(const struct tile_layout *layout, int axis)
{
    for (int i = 0; i < layout->n_loops; i++)
        if (layout->loops[i].dim == axis)
            return true;
    return false;
}

// ---- layouts at the borders of a body -----------------------------------------------------------

// Returns the rank of a value; 0 if it is unknown, because such values are unsharded.
static int rank_in(const struct shapes *shapes, const tsr_value *value)
{
    int rank = tsr__shapes_element(shapes, value).rank;
    return rank < 0 || rank > TILE_MAX_RANK ? 0 : rank;
}

static int rank_of(const struct follow *follow, const tsr_value *value)
{
    return rank_in(follow->work->flow->shapes, value);
}

// Returns the layout that is replicated on the devices of the node. Every value can have it.
static struct tile_layout *whole(const struct follow *follow, int rank)
{
    return tsr__flow_whole(follow->work, rank, &follow->nf->place);
}

// True if a factor other than the outermost is sharded.
static bool splits_inner_factor(const struct tile_dim *dim)
{
    for (int i = 1; i < dim->n; i++)
        if (dim->factors[i].cuts > 1)
            return true;
    return false;
}

// True if the layout fits the sizes of the value. Only layouts that shard an inner factor contain
// sizes. Example: {5*2/2} needs 10 elements. Other layouts fit any size.
static bool sizes_fit(const struct shapes *shapes, const struct tile_layout *layout,
                      const tsr_value *value)
{
    int64_t sizes[TILE_MAX_FACTORS];
    struct shape shape = tsr__shapes_element(shapes, value);
    for (int axis = 0; axis < layout->rank; axis++) {
        const struct tile_dim *dim = &layout->dims[axis];
        if (!splits_inner_factor(dim))
            continue;
        if (shape.rank != layout->rank || shape.dims[axis].value < 0 ||
            !tsr__dim_sizes(dim, shape.dims[axis].value, sizes))
            return false;
    }
    return true;
}

bool tsr__body_fits(const struct shapes *shapes, const struct placement *place,
                    const struct tile_layout *layout, const tsr_value *value)
{
    bool list = tsr__shapes_is_list(shapes, value);
    return layout && layout->rank == rank_in(shapes, value) &&
           tsr__placement_has_each(place, layout) && (!list || tsr__layout_is_whole(layout)) &&
           sizes_fit(shapes, layout, value);
}

static bool fits(const struct follow *follow, const struct tile_layout *layout,
                 const tsr_value *value)
{
    return tsr__body_fits(follow->work->flow->shapes, &follow->nf->place, layout, value);
}

// Returns the layout of a value, or NULL if there is no value or it is not yet computed.
static struct tile_layout *layout_of(const struct follow *follow, const tsr_value *value)
{
    return value ? follow->work->flow->values[tsr__value_id(value)] : NULL;
}

// Records why a requested layout cannot be used, unless it is replicated. Keeps only the first
// reason.
static void record_reason(struct follow *follow, const struct tile_layout *layout, const char *why)
{
    if (!follow->ask->why && !tsr__layout_is_whole(layout))
        follow->ask->why = why;
}

// Returns output i of a body, not counting the condition, which the body of a Loop returns first.
static const tsr_value *body_output(const struct follow *follow, int body, int i)
{
    return tsr_graph_output(follow->control->bodies[body],
                            (size_t)(i + follow->control->condition));
}

// True if the layout fits the sizes of a loop state as initial value, as input of the body and as
// output of the body.
static bool state_sizes_fit(const struct follow *follow, const struct tile_layout *layout,
                            int state)
{
    const struct control *control = follow->control;
    const struct shapes *shapes = follow->work->flow->shapes;
    size_t in = (size_t)(control->n_steer + state), taken = (size_t)(control->n_numbers + state);
    return sizes_fit(shapes, layout, tsr_node_input(follow->ask->node, in)) &&
           sizes_fit(shapes, layout, tsr_graph_input(control->bodies[0], taken)) &&
           sizes_fit(shapes, layout, body_output(follow, 0, state));
}

// ---- initial layouts ----------------------------------------------------------------------------

#define UNEVEN                                                                                     \
    "values that a body carries or returns must be on all devices that run the body, and "         \
    "must keep their sharded sizes in every iteration"

// Sets the first layout of state i: from the spec of the node's input, else of its output, else the
// layout of the initial value. A layout from a spec does not change later (follow->fixed).
static bool start_state(struct follow *follow, int i)
{
    const tsr_node *node = follow->ask->node;
    size_t in = (size_t)(follow->control->n_steer + i), out = (size_t)i;
    const tsr_value *value = tsr_node_input(node, in);
    const tsr_value *y = out < tsr_node_output_count(node) ? tsr_node_output(node, out) : NULL;
    struct tile_layout *asked = follow->ask->in[in];
    if (!asked && y)
        asked = follow->ask->out[out];
    follow->fixed[i] = asked && fits(follow, asked, value) && state_sizes_fit(follow, asked, i);
    if (asked && !follow->fixed[i])
        record_reason(follow, asked, UNEVEN);
    struct tile_layout *layout = follow->fixed[i] ? asked : layout_of(follow, value);
    bool good = fits(follow, layout, value) && state_sizes_fit(follow, layout, i);
    follow->states[i] = good ? layout : whole(follow, rank_of(follow, value));
    return follow->states[i] != NULL;
}

// Sets the layout of slice i, the part of a scan input that one iteration reads. It is the layout
// of the input without the scan axis.
static bool start_slice(struct follow *follow, int i)
{
    size_t in = (size_t)(follow->control->n_steer + follow->control->n_states + i);
    const tsr_value *value = tsr_node_input(follow->ask->node, in);
    int rank = rank_of(follow, value), axis = tsr__control_in_axis(follow->control, i, rank);
    struct tile_layout *asked = follow->ask->in[in],
                       *layout = asked ? asked : layout_of(follow, value);
    bool good = axis >= 0 && fits(follow, layout, value) && !cuts_axis(layout, axis);
    if (asked && !good)
        record_reason(follow, asked,
                      axis >= 0 && cuts_axis(asked, axis) ? "the iteration axis is sharded"
                                                          : UNEVEN);
    if (good)
        follow->slices[i] = tsr__body_shifted(follow->work->arena, layout, axis, -1);
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

// ---- one iteration ------------------------------------------------------------------------------

// Sets the layouts of a body's inputs: numbers (iteration, condition), then states, then slices.
// Example: a Loop with two states has numbers as inputs 0 and 1 and states as inputs 2 and 3.
// Initializers are replicated on the devices of the node.
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

// Propagates layouts through one body. Afterwards flow->values has the layouts of its outputs. A
// list that a body returns must be replicated on all devices of the node. If it is not, it is
// marked, and the flow runs again.
static bool follow_body(struct follow *follow, struct body_flow *flow, int report)
{
    struct flow_work *work = follow->work;
    size_t i = 0;
    if (!start_body(follow, flow))
        return false;
    memset(flow->nodes, 0, flow->n_nodes * sizeof(*flow->nodes));
    for (tsr_node *node = tsr_graph_first(flow->graph); node && i < flow->n_nodes;
         node = tsr_node_next(node), i++) {
        work->report = report;
        if (!tsr__flow_node(work, node, &flow->nodes[i]))
            return false;
    }
    for (i = 0; i < tsr_graph_output_count(flow->graph); i++) {
        const tsr_value *value = tsr_graph_output(flow->graph, i);
        if (!layout_of(follow, value))
            return false; // nothing computes the output
        if (!work->kept_whole || !tsr__shapes_is_list(work->flow->shapes, value))
            continue;
        bool *kept = &work->kept_whole[tsr__value_id(value)];
        bool good =
            *kept || (tsr__layout_is_whole(layout_of(follow, value)) &&
                      tsr__placement_has_each(&follow->nf->place, layout_of(follow, value)));
        work->keeps_more = work->keeps_more || !good;
        *kept = *kept || !good;
    }
    return true;
}

// Propagates layouts through all bodies of the node. This happens while the node itself is being
// placed, so the fields of `work` that belong to the node are saved and restored.
static bool follow_bodies(struct follow *follow, int report)
{
    struct flow_work *work = follow->work;
    struct arena scratch = work->scratch; // belongs to the outer node
    bool keep = work->keep, trial = work->trial, *within = work->within;
    int said = work->report;
    bool ok = true;
    work->keep = true; // nodes of bodies are not replaced by simpler ones
    work->trial = false;
    work->within = follow->ask->within;
    for (int k = 0; k < follow->control->n_bodies && ok; k++)
        ok = follow_body(follow, &follow->nf->bodies[k], report);
    work->keep = keep;
    work->trial = trial;
    work->within = within;
    work->report = said;
    work->scratch = scratch;
    return ok;
}

// ---- iterate to a fixed point -------------------------------------------------------------------

// Updates the layout of state i after a pass over the body. Returns true if the layout changes.
static bool settle_state(struct follow *follow, int i)
{
    const tsr_value *value = body_output(follow, 0, i);
    struct tile_layout *back = layout_of(follow, value), *now = follow->states[i];
    if (follow->fixed[i] || follow->tries[i] > 1 || tsr__layout_equal(back, now))
        return false;
    // the first time, adopt the layout of the result if the state can have it; the second time,
    // replicate
    follow->tries[i]++;
    bool take = follow->tries[i] == 1 && now->rank == back->rank && fits(follow, back, value) &&
                state_sizes_fit(follow, back, i);
    struct tile_layout *next = take ? back : whole(follow, now->rank);
    bool same = !next || tsr__layout_equal(next, now);
    follow->states[i] = next;
    return !same;
}

// Repeats passes over the bodies until no state changes its layout, but at most MAX_TURNS times. If
// the limit is reached, remaining differences are resharded inside the body. Returns false after a
// failure.
static bool settle(struct follow *follow)
{
    for (int turn = 0; turn < MAX_TURNS; turn++) {
        bool changed = false;
        if (!follow_bodies(follow, REPORT_NO_ERRORS))
            return false;
        for (int i = 0; i < follow->control->n_states; i++) {
            changed = settle_state(follow, i) || changed;
            if (!follow->states[i])
                return false;
            if (changed && turn + 2 >= MAX_TURNS &&
                !follow->fixed[i]) // limit reached: no further change
                follow->tries[i] = 2;
        }
        if (!changed)
            return true;
    }
    return follow_bodies(follow, REPORT_NO_ERRORS);
}

// ---- results -----------------------------------------------------------------------------------

// Returns the layout of result i that the spec of the node's output requests. For a loop, it is
// without the axis along which results are stacked. Returns NULL if there is no spec, or if it has
// another rank or shards that axis.
static struct tile_layout *asked_result(struct follow *follow, int i, int rank)
{
    size_t out = (size_t)(follow->control->n_states + i);
    bool there = out < tsr_node_output_count(follow->ask->node);
    struct tile_layout *asked = there ? follow->ask->out[out] : NULL;
    if (!asked || !follow->control->loops)
        return asked;
    int axis = tsr__control_out_axis(follow->control, i, rank + 1);
    bool good = axis >= 0 && asked->rank == rank + 1 && !cuts_axis(asked, axis);
    return good ? tsr__body_shifted(follow->work->arena, asked, axis, -1) : NULL;
}

// Chooses the layout of result i: the requested one if it fits, else the one that the first body
// produces. If this is replicated or does not fit, the layout of the second body of an If is used
// if it fits. Otherwise the result is replicated.
static bool choose_result(struct follow *follow, int i)
{
    const tsr_value *first = body_output(follow, 0, follow->control->n_states + i);
    const tsr_value *other = first;
    if (follow->control->n_bodies > 1)
        other = body_output(follow, 1, follow->control->n_states + i);
    int rank = rank_of(follow, first);
    struct tile_layout *layout = asked_result(follow, i, rank);
    bool asked = fits(follow, layout, first);
    if (!asked)
        layout = layout_of(follow, first);
    if (!fits(follow, layout, first) ||
        (!asked && tsr__layout_is_whole(layout) && fits(follow, layout_of(follow, other), other)))
        layout = layout_of(follow, other);
    bool good = fits(follow, layout, first) && rank_of(follow, other) == rank &&
                sizes_fit(follow->work->flow->shapes, layout, other);
    follow->results[i] = good ? layout : whole(follow, rank);
    return follow->results[i] != NULL;
}

// Returns the layout of the node's output for result i. A loop stacks its results along a new axis,
// which is unsharded. An If returns them unchanged.
static struct tile_layout *outer_result(struct follow *follow, int i)
{
    size_t out = (size_t)(follow->control->n_states + i);
    const tsr_value *value = tsr_node_output(follow->ask->node, out);
    struct tile_layout *layout = follow->results[i];
    int rank = rank_of(follow, value), axis = tsr__control_out_axis(follow->control, i, rank);
    if (follow->control->loops && !tsr__layout_is_whole(layout) && axis >= 0 &&
        layout->rank + 1 == rank)
        return tsr__body_shifted(follow->work->arena, layout, axis, 1);
    return !follow->control->loops && layout->rank == rank ? layout : whole(follow, rank);
}

// Sets the layout of the node's output for result i: sharded as inside of the bodies. If it cannot
// be sharded so, or if the node has no such output, the result is replicated inside of the bodies,
// too.
static bool join_result(struct follow *follow, int i)
{
    size_t out = (size_t)(follow->control->n_states + i);
    bool there =
        out < tsr_node_output_count(follow->ask->node) && tsr_node_output(follow->ask->node, out);
    struct tile_layout *outer = there ? outer_result(follow, i) : NULL;
    if (there && !outer)
        return false;
    if (!there || (tsr__layout_is_whole(outer) && !tsr__layout_is_whole(follow->results[i])))
        follow->results[i] = whole(follow, follow->results[i]->rank);
    if (there)
        follow->nf->outputs[out] = outer;
    return follow->results[i] != NULL;
}

// Sets the layouts of outputs. First chooses the layout of each result; states already have
// layouts. Then requests these layouts at the outputs of every body: the condition, states and
// results. The condition is replicated, because all devices must take the same decision.
static bool set_outputs(struct follow *follow)
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

// Sets the layouts of the node's inputs. Trip count and condition are replicated. A scan input is
// sharded like its slices.
static bool set_inputs(struct follow *follow)
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
            layout =
                tsr__body_shifted(follow->work->arena, follow->slices[slice],
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

// Reports the reshard of output `value` of a body to layout `need`, if one is needed and reshards
// are reported.
static void report_end(struct follow *follow, const tsr_value *value,
                       const struct tile_layout *need)
{
    struct flow_work *work = follow->work;
    const struct tile_layout *have = layout_of(follow, value);
    const tsr_node *maker = tsr_value_producer(value);
    if (!(work->report & REPORT_RESHARDS) || tsr_value_initializer(value) ||
        tsr__flow_held(have, need))
        return;
    bool asked = maker && tsr__has_spec(maker, work->flow->config, value);
    enum diag_code code = asked ? DIAG_body_disagree : DIAG_reshard_implied;
    if (!maker)
        maker = follow->ask->node;
    struct place at = tsr__place_spec(maker, work->flow->config, value);
    struct place outer = tsr__place_node(follow->ask->node);
    struct str from = tsr__notation_print(&work->scratch, have),
               to = tsr__notation_print(&work->scratch, need);
    const char *often = "";
    if (follow->control->loops)
        often = "; it is resharded in every iteration";
    tsr__diag(work->arena->session, code, &at,
              "shard the outputs of both branches like the outputs of the node",
              "the body returns the value as " STR_FMT ", but node '" STR_FMT "' (" STR_FMT
              ") needs it as " STR_FMT "%s",
              STR_ARG(from), STR_ARG(outer.node), STR_ARG(outer.op), STR_ARG(to), often);
}

// True if specs of the node request the layout of output i (without the condition) of the bodies.
// Then a difference inside is intended.
static bool is_requested(const struct follow *follow, size_t i)
{
    if (i < (size_t)follow->control->n_states)
        return follow->fixed[i];
    return i < tsr_node_output_count(follow->ask->node) && follow->ask->out[i];
}

static void report_ends(struct follow *follow)
{
    size_t first = follow->control->condition;
    for (int k = 0; k < follow->control->n_bodies; k++)
        for (size_t i = first; i < tsr_graph_output_count(follow->control->bodies[k]); i++)
            if (!is_requested(follow, i - first))
                report_end(follow, tsr_graph_output(follow->control->bodies[k], i),
                           follow->nf->bodies[k].outputs[i]);
}

// ---- is anything sharded? -----------------------------------------------------------------------

// True if the layout is NULL or replicated on all devices of the node.
static bool plain_layout(const struct follow *follow, const struct tile_layout *layout)
{
    return !layout ||
           (tsr__layout_is_whole(layout) && tsr__placement_has_each(&follow->nf->place, layout));
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

// True if nothing in the bodies is sharded or transferred between devices.
static bool is_unsharded(const struct follow *follow)
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

// Returns why a node in the bodies does not follow its annotation; NULL: all do.
static const char *ignored_inside(const struct follow *follow)
{
    for (int k = 0; k < follow->control->n_bodies; k++)
        for (size_t i = 0; i < follow->nf->bodies[k].n_nodes; i++)
            if (follow->nf->bodies[k].nodes[i].replicated)
                return follow->nf->bodies[k].nodes[i].replicated;
    return NULL;
}

// ---- entry points -------------------------------------------------------------------------------

// Allocates the layouts of states, slices and results. A node has at most two bodies (If).
static bool allocate(struct follow *follow)
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

// False if bodies were visited too often, which happens if they are nested: then nodes with bodies
// run unchanged. The limit for one flow is 64 visits for each node of the model, plus a constant.
static bool within_budget(struct flow_work *work, const struct control *control)
{
    for (int k = 0; k < control->n_bodies; k++)
        work->body_work += tsr_graph_node_count(control->bodies[k]) + 1;
    return work->body_work < 64 * ((size_t)tsr__model_node_ids(work->flow->model) + 16);
}

// Clears the results, so that the caller treats the node as one that runs unsharded. Returns false
// if out of memory.
static bool leave_unchanged(struct follow *follow)
{
    follow->nf->bodies = NULL;
    follow->nf->control = NULL;
    memset(follow->nf->inputs, 0,
           tsr_node_input_count(follow->ask->node) * sizeof(*follow->nf->inputs));
    memset(follow->nf->outputs, 0,
           tsr_node_output_count(follow->ask->node) * sizeof(*follow->nf->outputs));
    return !follow->work->arena->failed && !follow->work->scratch.failed;
}

// Finds the layouts of a node with bodies. If the bodies cannot be followed, or if nothing in them
// is sharded, the node runs unchanged and unsharded. Returns false only if out of memory. settle()
// reports nothing; if the caller wants diagnostics, a last iteration reports them.
bool tsr__flow_bodies(struct flow_work *work, struct flow_ask *ask)
{
    struct control *control = ARENA_NEW(work->arena, struct control);
    struct follow follow = {.work = work, .ask = ask, .nf = ask->nf, .control = control};
    if (!control)
        return false;
    if (!tsr__control_of(ask->node, control) || !within_budget(work, control))
        return leave_unchanged(&follow);
    if (!allocate(&follow) || !start(&follow) || !settle(&follow) || !set_outputs(&follow) ||
        !set_inputs(&follow))
        return leave_unchanged(&follow);
    follow.nf->control = control;
    if (work->report & ~REPORT_NO_ERRORS && !follow_bodies(&follow, work->report))
        return leave_unchanged(&follow);
    if (is_unsharded(&follow)) {
        ask->ignored = ignored_inside(&follow);
        return leave_unchanged(&follow);
    }
    report_ends(&follow);
    return !work->arena->failed;
}

// Marks the devices that specs of the node name. Skips invalid specs, which are reported elsewhere.
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
            if (!tsr_spec_value(spec))
                continue;
            struct shape shape = tsr__shapes_element(work->flow->shapes, tsr_spec_value(spec));
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

// True if the node is placed by a rule and one of the rule's factors is sharded.
static bool has_cut_factor(const struct placement *place)
{
    if (!place->rule)
        return false;
    for (int factor = 0; factor < place->rule->n_factors; factor++)
        if (place->cuts[factor] > 1)
            return true;
    return false;
}

// True if the node itself is sharded, whatever its bodies have.
static bool is_sharded(const struct node_flow *nf)
{
    return nf->by_specs || has_cut_factor(&nf->place);
}

bool tsr__flow_is_sharded(const struct node_flow *nf)
{
    if (is_sharded(nf))
        return true;
    if (!nf->bodies)
        return false;
    for (int k = 0; k < nf->control->n_bodies; k++)
        for (size_t i = 0; i < nf->bodies[k].n_nodes; i++)
            if (tsr__flow_is_sharded(&nf->bodies[k].nodes[i]))
                return true;
    return false;
}

// Adds the sharded nodes that a marked value needs to *sharded, and marks the values that they
// read. Goes backwards, because a node is needed if a later one is.
static void count_needed(const struct node_flow *nodes, size_t n, unsigned char *needed,
                         size_t *sharded)
{
    for (size_t i = n; i-- > 0;) {
        const struct node_flow *nf = &nodes[i];
        if (!tsr__node_needed(nf->node, needed))
            continue;
        size_t before = *sharded;
        for (int k = 0; nf->bodies && k < nf->control->n_bodies; k++) {
            const tsr_graph *graph = nf->bodies[k].graph;
            for (size_t o = 0; o < tsr_graph_output_count(graph); o++)
                needed[tsr__value_id(tsr_graph_output(graph, o))] = 1;
            count_needed(nf->bodies[k].nodes, nf->bodies[k].n_nodes, needed, sharded);
        }
        *sharded += *sharded > before || is_sharded(nf);
    }
}

size_t tsr__flow_sharded_count(struct arena *arena, const struct flow *flow)
{
    size_t sharded = 0;
    const tsr_graph *graph = tsr_model_graph(flow->model);
    unsigned char *needed =
        ARENA_ARRAY(arena, unsigned char, tsr__model_value_ids(flow->model) + 1);
    if (!needed)
        return 0;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++)
        needed[tsr__value_id(tsr_graph_output(graph, i))] = 1;
    count_needed(flow->nodes, flow->n_nodes, needed, &sharded);
    return sharded;
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
