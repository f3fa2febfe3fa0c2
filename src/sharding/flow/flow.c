// SPDX-License-Identifier: Apache-2.0
// flow.c - places one node: combines its explicit specs and the layouts of its inputs to one
// placement. flow_model.c visits the nodes of the main graph.
//
// Explicit input specs come first, then explicit output specs, then the layouts in which the other
// inputs arrive. node_placement.c combines them to one placement. A layout that does not fit is
// left out, and partition reshards the value. If the operator cannot follow its explicit specs, the
// node runs unsharded and the user gets a warning. Requests of readers (propagate.c) come last. All
// layouts here are canonical, so equivalent layouts are equal. This file uses no costs and creates
// no graph.
//
// Examples, in the notation of notation.c:
//     MatMul X [8,6] x W [6,4] -> Y [8,4] on devices 0 and 1; factors m = 8, k = 6, n = 4
//     X {2,1}, W without a spec:   m is in 2 shards; W is a constant and is replicated; Y is {2,1}
//     X {1,2}, W without a spec:   k is in 2 shards; W becomes {2,1}; each device sums 3 of the 6
//                                  products; Y is replicated after an all-reduce of {0,1}
//     X {1,2}, Y {2,1} requested:  m is not sharded, so the flow records {2,1} as wanted, and Y is
//                                  resharded after the node
//     X {2,1} and W {2,1}:         m and k would need four devices: the node runs unsharded on both
#include "sharding/flow/step.h"
#include "sharding/layouts/node_placement.h"

// Returns the rank of the layout of a value with this rank. It is 0 if the rank is unknown or too
// large: such values are unsharded.
static int layout_rank(int rank)
{
    return rank < 0 || rank > TILE_MAX_RANK ? 0 : rank;
}

struct tile_layout *tsr__flow_whole_all(struct flow_work *work, int rank)
{
    rank = layout_rank(rank);
    struct tile_layout **at = &work->whole_all[rank];
    if (!*at)
        *at = tsr__layout_whole(work->base, rank, work->all, (size_t)work->n_all);
    return *at;
}

struct tile_layout *tsr__flow_whole(struct flow_work *work, int rank,
                                    const struct placement *placement)
{
    if (placement->n_devices == (size_t)work->n_all)
        return tsr__flow_whole_all(work, rank);
    return tsr__layout_whole(work->arena, rank, placement->devices, placement->n_devices);
}

// Returns the shape of a value. For a list of tensors it is the shape of the elements, because a
// list is sharded as they are.
static struct shape shape_of(const struct node_context *step, const tsr_value *value)
{
    return tsr__shapes_element(step->work->flow->shapes, value);
}

// True for a constant without a spec. Constants have no layout: each device stores the part that it
// needs. An initializer that is also an input is not a constant here, because the caller can
// override it. A large Constant node becomes an initializer (tsr__lift_constants).
static bool is_constant(const struct flow *flow, const tsr_value *value)
{
    const tsr_node *producer = tsr_value_producer(value);
    if (producer)
        return tsr__node_weight(producer) && !tsr__has_spec(producer, flow->config, value);
    return tsr_value_initializer(value) && !tsr_value_is_input(value);
}

// ---- explicit specs

// True for the result of a node without inputs (Constant) that has no spec: there is nothing from
// which its layout could be inferred.
static bool is_made_constant(const struct flow *flow, const tsr_value *value)
{
    const tsr_node *producer = tsr_value_producer(value);
    return producer && tsr_node_input_count(producer) == 0 &&
           !tsr__has_spec(producer, flow->config, value);
}

bool tsr__inherits_spec(const struct flow *flow, const tsr_value *value)
{
    const struct tile_layout *layout = flow->values[tsr__value_id(value)];
    return layout && !is_constant(flow, value) && !is_made_constant(flow, value) &&
           !tsr__shapes_is_list(flow->shapes, value) &&
           !(flow->staged && tsr__layout_is_whole(layout));
}

// Gives inputs without a spec the layout of their producer, as the published sharding formalism
// requires (docs/conformance.md).
static void inherit_specs(struct node_context *step)
{
    for (size_t i = 0; i < step->n_in; i++) {
        const tsr_value *value = tsr_node_input(step->node, i);
        if (!value || step->in[i] || !tsr__inherits_spec(step->work->flow, value))
            continue;
        step->in[i] = step->work->flow->values[tsr__value_id(value)];
        step->explicit_in = true;
    }
}

// True if the layout of a spec has several shards with elements.
static bool is_cut(struct node_context *step, struct tile_layout *layout, const tsr_value *value)
{
    if (!layout)
        return false;
    struct shape shape = shape_of(step, value);
    layout = tsr__layout_filled(&step->work->scratch, layout, &shape);
    return layout && !tsr__layout_is_whole(layout);
}

// Reads the specs of the node. Returns false if a spec has no valid layout or if out of memory.
static bool read_specs(struct node_context *step)
{
    const struct flow *flow = step->work->flow;
    if (!tsr__node_specs(step->work->arena, step->node, flow->config, flow->shapes,
                         step->work->keep_empty, step->in, step->out))
        return false;
    for (size_t i = 0; i < step->n_in; i++) {
        step->explicit_in = step->explicit_in || step->in[i];
        step->explicit_cut =
            step->explicit_cut || is_cut(step, step->in[i], tsr_node_input(step->node, i));
    }
    for (size_t i = 0; i < step->n_out; i++) {
        step->explicit_out = step->explicit_out || step->out[i];
        step->explicit_cut =
            step->explicit_cut || is_cut(step, step->out[i], tsr_node_output(step->node, i));
    }
    memcpy(step->spec_in, step->in, step->n_in * sizeof *step->in);
    memcpy(step->spec_out, step->out, step->n_out * sizeof *step->out);
    return true;
}

// ---- diagnostics

bool tsr__step_in_stage(const struct node_context *step, const struct tile_layout *layout)
{
    if (!step->stage)
        return true;
    for (int64_t i = 0; i < layout->first[layout->n_shards]; i++)
        if (layout->owners[i] < 0 || layout->owners[i] >= step->work->n_all ||
            !step->stage[layout->owners[i]])
            return false;
    return true;
}

void tsr__step_unsharded(struct node_context *step, const char *why)
{
    if (step->nf->replicated)
        return;
    step->nf->replicated = why;
    if (!(step->work->report & REPORT_UNSHARDED))
        return;
    tsr__diag(
        step->work->arena->session, DIAG_not_cut_here,
        PLACE_AT(tsr__place_spec(step->node, step->work->flow->config, NULL)),
        "choose a sharding that the operator's rule allows (`tessera rules OP`), or remove it",
        "the node has a sharding, but runs replicated on its devices: %s", why);
}

// Reports that an input without a spec must be resharded to `need`, once per value and layout.
// Transfers between stages are not reported.
static void report_reshard(struct node_context *step, const tsr_value *value,
                           const struct tile_layout *need)
{
    struct flow_work *work = step->work;
    uint32_t id = tsr__value_id(value);
    const struct tile_layout *have = work->flow->values[id];
    if (!(work->report & REPORT_RESHARDS) || is_constant(work->flow, value) ||
        !tsr__step_in_stage(step, have) || tsr__flow_held(have, need))
        return;
    for (struct flow_noted *noted = work->noted[id]; noted; noted = noted->next)
        if (tsr__layout_equal(noted->layout, need))
            return;
    struct flow_noted *noted = ARENA_NEW(work->arena, struct flow_noted);
    if (!noted)
        return;
    *noted = (struct flow_noted){need, work->noted[id]};
    work->noted[id] = noted;
    struct place at = tsr__place_spec(step->node, step->work->flow->config, value);
    struct str from = tsr__notation_print(&work->scratch, have);
    struct str to = tsr__notation_print(&work->scratch, need);
    tsr__diag(
        work->arena->session, DIAG_reshard_implied, &at,
        "use the same sharding for the output of the producer and for this input, if possible",
        "the value is sharded as " STR_FMT " and is resharded to " STR_FMT, STR_ARG(from),
        STR_ARG(to));
}

// ---- a node that runs unsharded

static void add_owners(bool *on, int64_t n_all, const struct tile_layout *layout)
{
    for (int64_t i = 0; i < layout->first[layout->n_shards]; i++)
        if (layout->owners[i] >= 0 && layout->owners[i] < n_all)
            on[layout->owners[i]] = true;
}

static size_t count_on(const bool *on, int64_t n)
{
    size_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += on[i];
    return count;
}

// Marks all devices that the node's stage allows.
static void set_stage(const struct node_context *step, bool *on)
{
    for (int64_t d = 0; d < step->work->n_all; d++)
        on[d] = !step->stage || step->stage[d];
}

// Restricts the devices of a node in a body to those that run the body.
static void keep_within(const struct flow_work *work, bool *on)
{
    if (!work->within)
        return;
    for (int64_t d = 0; d < work->n_all; d++)
        on[d] = on[d] && work->within[d];
}

// Unmarks devices that lack an input with a spec, unless that would leave none. `common` has an
// entry for each device and is overwritten.
static void keep_common(const struct node_context *step, bool *on, bool *common)
{
    for (int64_t d = 0; d < step->work->n_all; d++) {
        common[d] = on[d];
        for (size_t i = 0; i < step->n_in; i++)
            common[d] = common[d] && (!step->in[i] || tsr__layout_has_device(step->in[i], d));
    }
    if (count_on(common, step->work->n_all))
        memcpy(on, common, (size_t)step->work->n_all * sizeof *on);
}

// Returns the devices of an unsharded node: those that its specs and the specs in its bodies name.
// Output specs count only if no input has a spec. If the specs do not shard, devices that lack an
// input with a spec are left out. If no spec names a device: the devices that have all inputs, else
// all devices of its stage. Returns NULL if out of memory.
static bool *unsharded_devices(struct node_context *step)
{
    int64_t n_all = step->work->n_all;
    struct arena *arena = &step->work->scratch;
    bool *on = ARENA_ARRAY(arena, bool, (size_t)n_all + 1),
         *one = ARENA_ARRAY(arena, bool, (size_t)n_all + 1);
    if (!on || !one)
        return NULL;
    for (size_t i = 0; i < step->n_in; i++)
        if (step->in[i])
            add_owners(on, n_all, step->in[i]);
    for (size_t i = 0; i < step->n_out; i++)
        if (step->out[i] && !step->explicit_in)
            add_owners(on, n_all, step->out[i]);
    if (!step->explicit_cut)
        keep_common(step, on, one);
    tsr__flow_body_owners(step->work, arena, step->node, on);
    keep_within(step->work, on);
    if (count_on(on, n_all))
        return on;
    set_stage(step, on);
    for (size_t i = 0; i < step->n_in; i++) {
        const tsr_value *value = tsr_node_input(step->node, i);
        if (!value || is_constant(step->work->flow, value) ||
            !tsr__step_in_stage(step, step->work->flow->values[tsr__value_id(value)]))
            continue;
        memset(one, 0, (size_t)n_all * sizeof *one);
        add_owners(one, n_all, step->work->flow->values[tsr__value_id(value)]);
        for (int64_t d = 0; d < n_all; d++)
            on[d] = on[d] && one[d];
    }
    keep_within(step->work, on);
    if (!count_on(on, n_all))
        set_stage(step, on);
    keep_within(step->work, on);
    return on;
}

// Unmarks all devices except the first marked one.
static void keep_first(bool *on, int64_t n)
{
    bool found = false;
    for (int64_t i = 0; i < n; i++) {
        on[i] = on[i] && !found;
        found = found || on[i];
    }
}

static void reset_due(struct node_context *step)
{
    memcpy(step->due, step->out, step->n_out * sizeof(*step->due));
}

// Places the node unsharded: every device that runs it computes the full result. With `single` only
// the first device runs it, which is necessary for nodes that draw random numbers. `why` is the
// reason.
static bool place_unsharded(struct node_context *step, const char *why, bool single)
{
    struct rule *rule = ARENA_NEW(step->work->arena, struct rule);
    struct solve whole;
    bool *on = unsharded_devices(step);
    if (!rule || !on)
        return false;
    reset_due(step);
    if (single)
        keep_first(on, step->work->n_all);
    rule->whole = why;
    if (!tsr__solve_init(&whole, &step->work->scratch, step->work->arena, rule, step->work->n_all))
        return false;
    whole.on = on;
    return tsr__solve_result(&whole, step->work->arena, &step->nf->place);
}

// ---- a node that runs by its rule

// Calls tsr__solve_add for input or output i, with the shape of its value.
static bool add(struct node_context *step, struct solve *solve, bool out, size_t i,
                const struct tile_layout *layout, bool each_loop, bool pin)
{
    struct shape shape = shape_of(step, step_slot(step, out, i));
    return tsr__solve_add(solve, out, (int)i, layout, &shape, each_loop, pin);
}

// Adds the layouts of output specs. A layout that does not fit, or that would drop a device
// although an input has a spec, is left out: the output is then resharded after the node.
static void add_outputs(struct node_context *step, struct solve *solve)
{
    for (size_t i = 0; i < step->n_out; i++) {
        if (!step->out[i])
            continue;
        struct solve attempt = tsr__solve_copy(solve);
        if (solve->arena->failed)
            return;
        bool fits = add(step, &attempt, true, i, step->out[i], false, false);
        bool same = tsr__solve_devices(&attempt) == tsr__solve_devices(solve);
        if (fits && (same || !step->explicit_in))
            *solve = attempt;
        else if (!step->explicit_in && !tsr__layout_is_whole(step->out[i]))
            tsr__step_unsharded(step, attempt.wrong);
    }
}

// Adds the layouts that inputs without a spec have at their producers. Splits that do not fit are
// left out. If the node has specs, a layout that would drop a device is left out completely.
static void add_arrivals(struct node_context *step, struct solve *solve)
{
    for (size_t i = 0; i < step->n_in; i++) {
        const tsr_value *value = step_slot(step, false, i);
        if (!value || step->in[i] || is_constant(step->work->flow, value))
            continue;
        const struct tile_layout *layout = step->work->flow->values[tsr__value_id(value)];
        if (layout == tsr__flow_whole_all(step->work, layout->rank))
            continue; // replicated on all devices
        struct solve attempt = tsr__solve_copy(solve);
        if (solve->arena->failed)
            return;
        bool fits = add(step, &attempt, false, i, layout, true, false);
        bool same = tsr__solve_devices(&attempt) == tsr__solve_devices(solve);
        bool may_shrink =
            !step->explicit_in && !step->explicit_out && tsr__step_in_stage(step, layout);
        if (fits && (same || may_shrink))
            *solve = attempt;
    }
}

// Adds the layouts that inputs without a spec have at their producers, and decides which device
// computes which part of a sum. If no choice is possible, leaves them all out. Returns false if out
// of memory.
static bool take_arrivals(struct node_context *step, struct solve *solve)
{
    struct solve with = tsr__solve_copy(solve);
    size_t bytes = step->n_out * sizeof(*step->due);
    struct tile_layout **due =
        ARENA_ARRAY(&step->work->scratch, struct tile_layout *, step->n_out + 1);
    if (!due || step->work->scratch.failed)
        return false;
    memcpy(due, step->due, bytes);
    add_arrivals(step, &with);
    if (!tsr__solve_even(&with, due, step->n_out))
        return !step->work->scratch.failed;
    *solve = with;
    memcpy(step->due, due, bytes);
    return true;
}

// Adds the layouts that readers of the outputs request (propagate.c). A request is kept only if the
// output then has exactly the requested layout. If the node has input specs, a request must not
// drop devices. Axes of statistics are not sharded for a request.
static void add_requests(struct node_context *step, struct solve *solve)
{
    for (size_t i = 0; i < step->n_out; i++) {
        const tsr_value *value = step_slot(step, true, i);
        const struct tile_layout *wish = value ? step->work->requests[tsr__value_id(value)] : NULL;
        if (!wish || step->due[i])
            continue;
        struct solve attempt = tsr__solve_copy(solve);
        struct placement placement;
        if (solve->arena->failed)
            return;
        attempt.intact = true;
        if (!add(step, &attempt, true, i, wish, false, false) ||
            (step->explicit_in && tsr__solve_devices(&attempt) != tsr__solve_devices(solve)) ||
            !tsr__solve_result(&attempt, solve->arena, &placement))
            continue;
        const struct tile_layout *got =
            tsr__placement_project(solve->arena, &placement, &placement.rule->outputs[i]);
        attempt.intact = solve->intact;
        if (got && tsr__layout_equal(got, wish))
            *solve = attempt;
    }
}

// Finds a placement. Adds layouts in this order: input specs, output specs, layouts of inputs
// without a spec, requests of readers. Layouts that do not fit are left out, except those of input
// specs: then it returns false. Also returns false if out of memory.
static bool solve_step(struct node_context *step, const struct rule *rule, enum solve_mode mode,
                       struct solve *v)
{
    if (!tsr__solve_init(v, &step->work->scratch, step->work->arena, rule, step->work->n_all))
        return false;
    reset_due(step);
    v->mode = mode;
    v->intact = step->work->keep;
    v->drop_empty = !step->work->keep_empty;
    set_stage(step, v->on);
    keep_within(step->work, v->on);
    for (size_t i = 0; i < step->n_in; i++)
        if (step->in[i] && !add(step, v, false, i, step->in[i], false, true))
            return false;
    if (!tsr__solve_even(v, step->due, step->n_out))
        return false;
    add_outputs(step, v);
    if (!take_arrivals(step, v))
        return false;
    if (step->work->requests)
        add_requests(step, v);
    return true;
}

// For a node that runs unsharded although its input specs are valid: readers get the outputs as the
// specs imply. Returns false if out of memory.
static bool imply_outputs(struct node_context *step, const struct rule *rule)
{
    struct solve v;
    if (!tsr__solve_init(&v, &step->work->scratch, step->work->arena, rule, step->work->n_all))
        return false;
    v.mode = SOLVE_VALID;
    for (size_t i = 0; i < step->n_in; i++)
        if (step->in[i] && !add(step, &v, false, i, step->in[i], false, true))
            return !step->work->scratch.failed;
    step->nf->implied = step->explicit_in;
    return !step->explicit_in || tsr__solve_outputs(&v, step->due, step->n_out);
}

// Places a node by a rule. First tries placements in which a device with several shards computes
// all of them. If that fails, and in bodies, devices with several shards are dropped. If no
// placement fits, the node runs unsharded.
static bool place_rule(struct node_context *step, const struct rule *rule)
{
    struct solve v = {0}, one;
    const struct shapes *shapes = step->work->flow->shapes;
    bool fits = !step->work->within && solve_step(step, rule, SOLVE_PARTS, &v) &&
                tsr__solve_turns_fit(&v, step->node, shapes);
    const char *why = v.wrong;
    if (!fits && !step->work->scratch.failed && !step->work->arena->failed) {
        fits = solve_step(step, rule, SOLVE_ONE_PART, &one);
        v = one;
        if (!why)
            why = v.wrong;
    }
    if (step->work->scratch.failed || step->work->arena->failed)
        return false;
    if (fits)
        return tsr__solve_result(&v, step->work->arena, &step->nf->place);
    if (step->explicit_cut)
        tsr__step_unsharded(step, why);
    return place_unsharded(step, why, false) && imply_outputs(step, rule);
}

// ---- a node without a rule

// True if the node has tensors and each of them has a spec.
static bool all_explicit(const struct node_context *step)
{
    for (size_t i = 0; i < step->n_in; i++)
        if (step_slot(step, false, i) && !step->in[i])
            return false;
    for (size_t i = 0; i < step->n_out; i++)
        if (step_slot(step, true, i) && !step->out[i])
            return false;
    return step->n_in + step->n_out > 0;
}

bool tsr__placement_has_each(const struct placement *placement, const struct tile_layout *layout)
{
    if (layout->first[layout->n_shards] != (int64_t)placement->n_devices)
        return false;
    for (size_t i = 0; i < placement->n_devices; i++)
        if (!tsr__layout_has_device(layout, placement->devices[i]))
            return false;
    return true;
}

// Places a node without a rule by the specs of all its tensors: each device runs the node on its
// shards of the inputs, and the results are its shards of the outputs. The user is responsible for
// the correctness.
static bool place_by_specs(struct node_context *step, const char *whole)
{
    static const char apart[] =
        "the operator has no rule, so each device must have exactly one shard of every tensor";
    if (!place_unsharded(step, whole, false))
        return false;
    bool fits = true;
    for (size_t i = 0; i < step->n_in; i++)
        fits = fits && (!step->in[i] || tsr__placement_has_each(&step->nf->place, step->in[i]));
    for (size_t i = 0; i < step->n_out; i++)
        fits = fits && (!step->out[i] || tsr__placement_has_each(&step->nf->place, step->out[i]));
    if (!fits) {
        tsr__step_unsharded(step, apart);
        return true;
    }
    step->nf->by_specs = true;
    memcpy(step->nf->inputs, step->in, step->n_in * sizeof(*step->in));
    memcpy(step->nf->outputs, step->out, step->n_out * sizeof(*step->out));
    return true;
}

// ---- a node with two rules

// Returns a number by which placements are compared. It counts the output specs that the placement
// follows, plus 1 if it follows the input specs. On a tie, more parts are better.
static int64_t quality(struct node_context *step)
{
    const struct placement *placement = &step->nf->place;
    int64_t kept = !step->nf->replicated, parts = 1;
    if (placement->rule->whole)
        return kept * SOLVE_MAX_DEVICES + parts;
    for (int factor = 0; factor < placement->rule->n_factors; factor++)
        parts *= placement->cuts[factor];
    for (size_t i = 0; i < step->n_out; i++) {
        struct tile_layout *layout = NULL;
        if (step->out[i])
            layout = tsr__placement_project(&step->work->scratch, placement,
                                            &placement->rule->outputs[i]);
        kept += layout && tsr__layout_equal(layout, step->out[i]);
    }
    return kept * SOLVE_MAX_DEVICES + parts;
}

// Returns the quality of a placement by this rule, or -1 after a failure. Reports nothing.
static int64_t try_rule(struct node_context *step, const struct rule *rule)
{
    int report = step->work->report;
    step->work->report = 0;
    int64_t q = place_rule(step, rule) ? quality(step) : -1;
    step->work->report = report;
    step->nf->replicated = NULL;
    step->nf->implied = false;
    return q;
}

// Places a node by `rule` or by the second rule of its operator, if there is one
// (tsr__rule_strided). The second rule needs no communication and is used unless `rule` gives a
// better quality.
static bool place_better(struct node_context *step, const struct rule *rule)
{
    const struct rule *other =
        tsr__rule_strided(step->work->arena, step->node, step->work->flow->shapes);
    if (!other)
        return place_rule(step, rule);
    int64_t first = try_rule(step, rule), second = try_rule(step, other);
    if (first < 0)
        return false;
    if (second >= first)
        rule = other;
    return place_rule(step, rule);
}

// ---- results

struct tile_layout *tsr__step_layout(struct node_context *step, bool out, size_t i)
{
    const struct placement *placement = &step->nf->place;
    const tsr_value *value = step_slot(step, out, i);
    if (!value)
        return NULL;
    int rank = shape_of(step, value).rank;
    if (!placement->rule->whole)
        return tsr__placement_project(step->work->arena, placement,
                                      rule_slot(placement->rule, out, i));
    return tsr__flow_whole(step->work, rank, placement);
}

// If readers get output i in another layout than the node produces, stores it in nf->wanted.
// Returns false if out of memory.
static bool set_wanted(struct node_context *step, size_t i, const tsr_value *value)
{
    struct shape shape = shape_of(step, value);
    struct tile_layout *due =
        step->due[i] ? tsr__layout_canonical(step->work->arena, step->due[i], &shape) : NULL;
    if (step->due[i] && !due)
        return false;
    if (!due || tsr__layout_equal(due, step->nf->outputs[i]))
        return true;
    if (!tsr__shapes_is_list(step->work->flow->shapes, value))
        step->nf->wanted[i] = due;
    else if (!tsr__layout_is_whole(due))
        tsr__step_unsharded(step, "sequences are not resharded");
    return true;
}

// Stores the layouts of inputs and outputs, and the groups of the reduction. If work->trial is set,
// flow->values does not change.
static bool store_results(struct node_context *step)
{
    struct node_flow *nf = step->nf;
    for (size_t i = 0; i < step->n_in; i++) {
        const tsr_value *value = step_slot(step, false, i);
        if (!nf->inputs[i])
            nf->inputs[i] = tsr__step_layout(step, false, i);
        if (value && !nf->inputs[i])
            return false;
        if (value && !step->in[i])
            report_reshard(step, value, nf->inputs[i]);
    }
    for (size_t i = 0; i < step->n_out; i++) {
        const tsr_value *value = step_slot(step, true, i);
        if (!value)
            continue;
        if (!nf->outputs[i])
            nf->outputs[i] = tsr__step_layout(step, true, i);
        if (!nf->outputs[i])
            return false;
        if (!set_wanted(step, i, value))
            return false;
        if (!step->work->trial)
            step->work->flow->values[tsr__value_id(value)] = tsr__flow_result(nf, i);
    }
    return nf->place.rule->whole || tsr__placement_groups(step->work->arena, &nf->place,
                                                          &nf->groups, &nf->n_groups, &nf->combine);
}

// Reports a node that is annotated as sharded but has fewer parts than devices.
static void report_repeated_work(const struct node_context *step)
{
    const struct placement *placement = &step->nf->place;
    int64_t parts = 1;
    if (!(step->work->report & REPORT_REPEATED_WORK) || !step->explicit_cut ||
        step->nf->replicated || step->nf->by_specs || step->nf->bodies ||
        tsr__node_weight(step->node))
        return;
    for (int factor = 0; factor < placement->rule->n_factors; factor++)
        parts *= placement->cuts[factor];
    if (parts == (int64_t)placement->n_devices)
        return;
    tsr__diag(step->work->arena->session, DIAG_work_twice,
              PLACE_AT(tsr__place_spec(step->node, step->work->flow->config, NULL)),
              "shard another dimension over these devices, or name fewer devices",
              "several devices compute the same shard: %lld different shards are computed %zu "
              "times in all",
              (long long)parts, placement->n_devices);
}

// Reports outer values that the subgraphs of a node read and that must be resharded: they are
// needed replicated on the devices of the node. Returns false if out of memory.
static bool report_captures(struct node_context *step)
{
    tsr_value **captures;
    size_t n = tsr__node_captures(step->node, &captures);
    const struct placement *placement = &step->nf->place;
    for (size_t i = 0; i < n; i++) {
        int rank = shape_of(step, captures[i]).rank;
        struct tile_layout *need =
            tsr__layout_whole(step->work->arena, rank, placement->devices, placement->n_devices);
        if (!need)
            return false;
        if (step->work->flow->values[tsr__value_id(captures[i])])
            report_reshard(step, captures[i], need);
    }
    return true;
}

// ---- nodes

// Returns false if an input has no layout yet, because the graph is not topologically sorted.
// Reports this unless errors are suppressed.
static bool inputs_ready(struct node_context *step)
{
    for (size_t i = 0; i < step->n_in; i++) {
        const tsr_value *value = tsr_node_input(step->node, i);
        if (!value || step->work->flow->values[tsr__value_id(value)])
            continue;
        if (step->work->report & REPORT_NO_ERRORS)
            return false;
        tsr__diag(step->work->arena->session, DIAG_value_not_ready,
                  PLACE_AT(tsr__place_spec(step->node, step->work->flow->config, value)),
                  "sort the nodes so that every value is computed before it is read",
                  "no earlier node computes an input of this node");
        return false;
    }
    return true;
}

// Allocates the lists of a step. Layouts of the result are allocated in work->arena, temporary ones
// in work->scratch, which is freed after the node.
static bool allocate(struct node_context *step)
{
    struct arena *arena = step->work->arena;
    step->n_in = tsr_node_input_count(step->node);
    step->n_out = tsr_node_output_count(step->node);
    step->in = ARENA_ARRAY(&step->work->scratch, struct tile_layout *, step->n_in + 1);
    step->out = ARENA_ARRAY(&step->work->scratch, struct tile_layout *, step->n_out + 1);
    step->spec_in = ARENA_ARRAY(&step->work->scratch, struct tile_layout *, step->n_in + 1);
    step->spec_out = ARENA_ARRAY(&step->work->scratch, struct tile_layout *, step->n_out + 1);
    step->due = ARENA_ARRAY(&step->work->scratch, struct tile_layout *, step->n_out + 1);
    step->nf->node = step->node;
    step->nf->inputs = ARENA_ARRAY(arena, struct tile_layout *, step->n_in + 1);
    step->nf->outputs = ARENA_ARRAY(arena, struct tile_layout *, step->n_out + 1);
    step->nf->wanted = ARENA_ARRAY(arena, struct tile_layout *, step->n_out + 1);
    return !arena->failed && !step->work->scratch.failed;
}

// Propagates layouts through the bodies of a placed node. `whole` is the reason why the node itself
// is not sharded; it is reported if the bodies cannot be sharded either.
static bool place_bodies(struct node_context *step, const char *whole)
{
    struct flow_ask ask = {.node = step->node, .nf = step->nf, .in = step->in, .out = step->out};
    ask.within = ARENA_ARRAY(&step->work->scratch, bool, (size_t)step->work->n_all + 1);
    if (!ask.within)
        return false;
    for (size_t i = 0; i < step->nf->place.n_devices; i++)
        ask.within[step->nf->place.devices[i]] = true;
    if (!tsr__flow_bodies(step->work, &ask))
        return false;
    if (step->explicit_cut && (ask.why || !step->nf->bodies))
        tsr__step_unsharded(step, ask.why ? ask.why : whole);
    if (!step->nf->replicated)
        step->nf->replicated = ask.ignored;
    return true;
}

// ---- lists

// Places the node unsharded on all devices, or on those of its stage if all its lists can be
// transferred between stages.
static bool place_everywhere(struct node_context *step, const char *why)
{
    for (size_t i = 0; i < step->n_in; i++)
        step->in[i] = NULL;
    for (size_t i = 0; i < step->n_out; i++)
        step->out[i] = NULL;
    reset_due(step);
    if (step->explicit_cut)
        tsr__step_unsharded(step, why);
    step->nf->ignores_specs = true;
    struct rule *rule = ARENA_NEW(step->work->arena, struct rule);
    struct solve all;
    if (!rule)
        return false;
    rule->whole = why;
    if (!tsr__solve_init(&all, &step->work->scratch, step->work->arena, rule, step->work->n_all))
        return false;
    if (tsr__step_lists_move(step))
        set_stage(step, all.on);
    keep_within(step->work, all.on);
    return tsr__solve_result(&all, step->work->arena, &step->nf->place);
}

// Places the node by the first of six strategies that applies. Lists of tensors come first: they
// cannot be resharded inside a stage, so they override specs.
static bool follow(struct node_context *step)
{
    struct flow_work *work = step->work;
    if (!allocate(step) || !inputs_ready(step) || !read_specs(step))
        return false;
    if (!work->within) // nodes of bodies run where the outer node runs
        step->stage =
            tsr__stages_devices(&work->stages, step->node, step->explicit_in || step->explicit_out);
    if (work->formal)
        inherit_specs(step);
    tsr__step_take_lists(step);
    if (step->bound && !work->within)
        step->stage = tsr__stages_devices(&work->stages, step->node, true);
    const struct shapes *shapes = work->flow->shapes;
    const struct rule *rule = work->keep_empty
                                  ? tsr__rule_of_any_size(work->arena, step->node, shapes)
                                  : tsr__rule_of(work->arena, step->node, shapes);
    // a rule is NULL only if memory runs out
    work->base->failed = work->base->failed || !rule;
    if (!rule)
        return false;
    const char *whole = rule->whole ? rule->whole : tsr__rule_immovable(shapes, step->node);
    bool ok;
    struct control control;
    if (tsr__step_produces_kept(step) && tsr__node_draws(step->node)) {
        ok = place_unsharded(step, "a sequence of random numbers is computed on one device", true);
    } else if (tsr__step_produces_kept(step)) {
        ok = place_everywhere(step, "a sequence that it computes is needed on other devices, and "
                                    "sequences are not transferred");
    } else if (whole && tsr__control_of(step->node, &control)) {
        ok = place_unsharded(step, whole, false) && place_bodies(step, whole);
    } else if (rule->open && step->explicit_cut && all_explicit(step)) {
        ok = place_by_specs(step, whole);
    } else if (whole) {
        if (step->explicit_cut && !rule->empty && !tsr__node_weight(step->node))
            tsr__step_unsharded(step, whole);
        ok = place_unsharded(step, whole, rule->single);
    } else {
        ok = place_better(step, rule);
        if (ok && tsr__step_reads_part_of_kept(step))
            ok = place_everywhere(
                step, "a sequence that it reads is replicated, and sequences are not transferred");
    }
    if (ok)
        report_repeated_work(step);
    ok = ok && store_results(step) && (step->nf->bodies || report_captures(step));
    if (!ok)
        return false;
    tsr__step_keep_lists(step);
    if (!rule->empty)
        tsr__flow_misplaced(work, step->nf, step->spec_in, step->spec_out);
    return true;
}

// Places one node. `nf` must be zeroed. Returns false if the flow cannot continue;
// work->base->failed is set if out of memory.
bool tsr__flow_node(struct flow_work *work, tsr_node *node, struct node_flow *nf)
{
    struct node_context step = {.work = work, .node = node, .nf = nf};
    tsr__arena_init(&work->scratch, work->base->session);
    bool ok = follow(&step);
    work->base->failed = work->base->failed || work->arena->failed || work->scratch.failed;
    tsr__arena_free(&work->scratch);
    return ok;
}
