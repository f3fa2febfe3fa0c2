// SPDX-License-Identifier: Apache-2.0
// agree.c - checks whether the shardings of a node's inputs are consistent under the rule of its
// operator.
//
// Each explicit layout is tested alone, then together with those before it. If a layout does not
// fit alone, this operator does not support the sharding: the flow reports it if the node runs
// unsharded. If it fits alone but not together, it contradicts another sharding: an error that
// names both shardings and gives the layout that the second should have. Outputs are not checked:
// an output that is requested in another layout is resharded.
//
// Examples, in the notation of notation.c:
//     MatMul X [8,6] x W [6,4] on devices 0 and 1; factors m = 8, k = 6, n = 4
//     X {1,2} and W {2,1}:   both shard k: consistent
//     X {1,2} and W {1,2}:   W alone shards n, which is valid; but X shards k and W does not: an
//                            error, and W would have to be {2,1}
//     X {2,1} and W {1,1:0,1}:   m is sharded and W replicated: consistent
//
// A device may own several shards. Add A [4,4] and B [4,4] -> Y on devices 0, 1, 2:
//     A {2,1:(0,1),2} and B {1,2:(0,2),(1,2)}: the owners of each pair of shards intersect
//     ({0}, {1}, {2}, {2}): consistent
#include "sharding/check/agree.h"
#include "sharding/flow/flow.h"

// The layout of an input: from a spec or, under the published formalism, from the producer of the
// value. Adjacent shards with the same owners can be merged: {4,1:0,0,1,1} has the same elements on
// each device as {2,1:0,1}, and {2,1:(0,1),(0,1)} the same as {1:0,1}. Shards without elements
// stay: whether shardings agree does not depend on the number of elements, which may be unknown.
struct given {
    int input;
    const tsr_value *value;
    struct tile_layout *stated, *merged;
    struct tile_layout *layout; // the one of them that is compared
    struct shape shape;
    bool sharded; // as stated
};
// The check of one node. `given` is in the order of the inputs. If two layouts contradict each
// other, the later one is reported.
struct agree {
    struct arena *arena;
    const tsr_node *node;
    const tsr_config *config;
    const struct rule *rule;
    int64_t n_all;
    // provides layouts for inputs without a spec; NULL: those inputs are not checked
    const struct flow *assumed;
    bool inherits; // an input has the layout of its producer
    struct given *given;
    size_t n;
};

// Adds the layout of an input. Returns false if out of memory.
static bool add_given(struct agree *agree, struct given given, const struct tile_layout *layout)
{
    given.stated = tsr__layout_canonical_dims(agree->arena, layout, &given.shape);
    given.merged = tsr__layout_canonical(agree->arena, layout, &given.shape);
    if (!given.stated || !given.merged)
        return false;
    given.sharded = !tsr__layout_is_whole(given.stated);
    agree->given[agree->n++] = given;
    return true;
}

// Collects the layouts of the inputs that have a spec, in input order. With `assumed`, also
// collects those of inputs that have the layout of their producer.
static bool collect(struct agree *agree, const struct shapes *shapes, const tsr_node_config *nc)
{
    size_t n_in = tsr_node_input_count(agree->node);
    agree->given = ARENA_ARRAY(agree->arena, struct given, n_in + 1);
    if (!agree->given)
        return false;
    for (size_t i = 0; i < n_in; i++) {
        const tsr_value *value = tsr_node_input(agree->node, i);
        // A second spec is an error (spec-twice).
        const tsr_spec *spec = value && nc ? tsr__entry_spec(nc, value) : NULL;
        bool inherits =
            !spec && value && agree->assumed && tsr__inherits_spec(agree->assumed, value);
        if (!spec && !inherits)
            continue;
        struct given given = {
            .input = (int)i, .value = value, .shape = tsr__shapes_element(shapes, value)};
        struct tile_layout *layout = NULL;
        if (inherits)
            layout = agree->assumed->values[tsr__value_id(value)];
        else if (tsr__spec_layout(agree->arena, spec, &given.shape, true, &layout) != TSR_OK)
            continue;
        if (layout && !add_given(agree, given, layout))
            return false;
        agree->inherits = agree->inherits || inherits;
    }
    return !agree->arena->failed;
}

// Compares the layouts as they are stated or merged.
static void choose_layouts(const struct agree *agree, bool merged)
{
    for (size_t i = 0; i < agree->n; i++)
        agree->given[i].layout = merged ? agree->given[i].merged : agree->given[i].stated;
}

// Adds an explicit layout to the placement. Every sharded axis must fit the rule. By the formalism,
// inputs must shard a common axis alike, so axes that the layout does not shard are fixed as
// unsharded. Returns false if it does not fit the rule or the layouts added before.
static bool take(const struct agree *agree, struct solve *solve, const struct given *given)
{
    solve->strict = agree->assumed;
    solve->strict_sums = true;
    return tsr__solve_add(solve, false, given->input, given->layout, &given->shape, false, true);
}

// Starts a placement in which nothing is sharded. A failed `take` makes a placement unusable, so
// every attempt starts with a new one.
static bool begin_agreement(const struct agree *agree, struct solve *solve)
{
    if (!tsr__solve_init(solve, agree->arena, agree->arena, agree->rule, agree->n_all))
        return false;
    solve->mode = SOLVE_VALID;
    return true;
}

// Returns as text the layout that the input of `given` would need to match the layout of `by`.
// NULL: unknown.
static const char *required_layout(const struct agree *agree, const struct given *by,
                                   const struct given *given)
{
    struct solve solve;
    struct placement placement;
    if (!begin_agreement(agree, &solve) || !take(agree, &solve, by) ||
        !tsr__solve_result(&solve, agree->arena, &placement))
        return NULL;
    const struct rule_tensor *tensor = &placement.rule->inputs[given->input];
    if (tensor->host)
        return NULL;
    struct tile_layout *layout = tsr__placement_project(agree->arena, &placement, tensor);
    return layout ? tsr__notation_print(agree->arena, layout).p : NULL;
}

// Returns a layout as stated and, if shards are merged, as compared: "{4,1:0,0,1,1} = {2,1:0,1}".
static struct str layout_text(const struct agree *agree, const struct given *given)
{
    struct str stated = tsr__notation_print(agree->arena, given->stated),
               compared = tsr__notation_print(agree->arena, given->layout);
    if (str_eq(stated, compared))
        return stated;
    return tsr__arena_printf(agree->arena, STR_FMT " = " STR_FMT, STR_ARG(stated),
                             STR_ARG(compared));
}

// Reports that `given` contradicts `by`, with the reason `why`.
static void report_conflict(const struct agree *agree, const struct given *given,
                            const struct given *by, const char *why)
{
    struct place at = tsr__place_spec(agree->node, agree->config, given->value);
    struct str mine = layout_text(agree, given), theirs = layout_text(agree, by);
    const char *wanted = agree->rule ? required_layout(agree, by, given) : NULL;
    const char *hint =
        "shard the inputs so that shards that the operator combines are on the same devices";
    if (wanted)
        hint = tsr__arena_printf(agree->arena, "to match '" STR_FMT "', shard it as %s",
                                 STR_ARG(tsr__value_str(by->value)), wanted)
                   .p;
    tsr__diag(agree->arena->session, DIAG_spec_disagree, &at, hint,
              "the sharding of '" STR_FMT "', " STR_FMT ", does not match that of '" STR_FMT
              "', " STR_FMT ": %s",
              STR_ARG(at.value), STR_ARG(mine), STR_ARG(tsr__value_str(by->value)), STR_ARG(theirs),
              why);
}

// Returns the first layout before i that contradicts layout i. If none does by itself, returns
// layout i - 1. The caller passes i >= 1.
static const struct given *find_contradiction(const struct agree *agree, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        struct solve solve;
        if (begin_agreement(agree, &solve) && take(agree, &solve, &agree->given[k]) &&
            !take(agree, &solve, &agree->given[i]))
            return &agree->given[k];
    }
    return &agree->given[i - 1];
}

// Reports that the layout shards an axis that broadcasts.
static void report_broadcast(const struct agree *agree, const struct given *given)
{
    struct place at = tsr__place_spec(agree->node, agree->config, given->value);
    struct str mine = layout_text(agree, given);
    tsr__diag(agree->arena->session, DIAG_spec_disagree, &at,
              "replicate an axis of size 1 on the devices of the node",
              "the sharding of '" STR_FMT "', " STR_FMT
              ", shards an axis of size 1 that is broadcast: all devices of the node need it",
              STR_ARG(at.value), STR_ARG(mine));
}

// True if all layouts fit agree->rule together. Reports nothing.
static bool fits_all(const struct agree *agree)
{
    struct solve all;
    if (!begin_agreement(agree, &all))
        return false;
    for (size_t i = 0; i < agree->n; i++)
        if (!take(agree, &all, &agree->given[i]))
            return false;
    return true;
}

// Checks the layouts one by one: alone, and together with the earlier ones. Reports at most one
// problem, because the placement is unusable after a contradiction. Returns false if out of memory.
static bool check_layouts(const struct agree *agree)
{
    struct solve all, alone;
    if (!begin_agreement(agree, &all))
        return false;
    for (size_t i = 0; i < agree->n; i++) {
        const struct given *given = &agree->given[i];
        if (!begin_agreement(agree, &alone))
            return false;
        if (!take(agree, &alone, given)) {
            if (agree->assumed && alone.broadcast)
                report_broadcast(agree, given);
            return !agree->arena->failed;
        }
        if (take(agree, &all, given))
            continue;
        if (!agree->arena->failed)
            report_conflict(agree, given, find_contradiction(agree, i), all.wrong);
        return !agree->arena->failed;
    }
    return true;
}

static bool share_device(const struct tile_layout *a, const struct tile_layout *b)
{
    for (int64_t i = 0; i < a->first[a->n_shards]; i++)
        if (tsr__layout_has_device(b, a->owners[i]))
            return true;
    return false;
}

// Reports an error if no device has all inputs, which are unsharded here. Returns false if out of
// memory.
static bool check_unsharded(struct agree *agree)
{
    if (agree->n == 0)
        return true;
    struct tile_layout *common = tsr__layout_copy(agree->arena, agree->given[0].layout);
    for (size_t i = 1; common && i < agree->n; i++) {
        const struct tile_layout *layout = agree->given[i].layout;
        if (!share_device(common, layout)) {
            size_t by = 0;
            while (by < i - 1 && share_device(agree->given[by].layout, layout))
                by++;
            report_conflict(agree, &agree->given[i], &agree->given[by],
                            "no device holds all inputs");
            return true;
        }
        int64_t kept = 0;
        for (int64_t k = 0; k < common->first[1]; k++)
            if (tsr__layout_has_device(layout, common->owners[k]))
                common->owners[kept++] = common->owners[k];
        common->first[1] = kept;
    }
    return common != NULL;
}

// True if the layouts fit a rule of the operator, which may have a second one (tsr__rule_strided).
// The flow can use either rule. Reports nothing. Returns false if out of memory.
static bool fits_any(struct agree *agree, const struct rule *second, bool merged)
{
    const struct rule *first = agree->rule;
    choose_layouts(agree, merged);
    bool fits = fits_all(agree);
    if (!fits && second) {
        agree->rule = second;
        fits = fits_all(agree);
        agree->rule = first;
    }
    return fits;
}

// Checks the layouts of a node's inputs. If all are unsharded, no rule is needed. Layouts may be
// merged, unless the formalism compares two specs. Returns false if out of memory.
static bool agreement(struct agree *agree, const struct shapes *shapes, const tsr_node_config *nc)
{
    bool cut = false;
    agree->n_all = tsr_config_devices(agree->config);
    if (agree->n_all < 1 || agree->n_all > SOLVE_MAX_DEVICES)
        return true;
    if (!collect(agree, shapes, nc))
        return false;
    bool may_merge = !agree->assumed || agree->inherits;
    choose_layouts(agree, may_merge);
    for (size_t i = 0; i < agree->n; i++)
        cut = cut || agree->given[i].sharded;
    if (!cut)
        return !agree->assumed || check_unsharded(agree);
    struct control bodies;
    if (tsr__control_of(agree->node, &bodies))
        return true; // the flow checks the inputs of bodies
    agree->rule = tsr__rule_of_any_size(agree->arena, agree->node, shapes);
    if (!agree->rule)
        return false;
    if (agree->rule->open || agree->rule->whole)
        return true; // the flow checks whether the node can be sharded as requested
    const struct rule *second = tsr__rule_strided(agree->arena, agree->node, shapes);
    if ((may_merge && fits_any(agree, second, true)) || fits_any(agree, second, false))
        return true;
    choose_layouts(agree, may_merge);
    return !agree->arena->failed && check_layouts(agree);
}

bool tsr__check_agreement(struct arena *scratch, const struct shapes *shapes, const tsr_node *node,
                          const tsr_node_config *nc)
{
    struct agree agree = {.arena = scratch, .node = node, .config = tsr_node_config_target(nc)};
    return agreement(&agree, shapes, nc);
}

bool tsr__check_formal(struct arena *scratch, const struct flow *flow, const tsr_node *node)
{
    struct agree agree = {.arena = scratch, .node = node, .config = flow->config, .assumed = flow};
    return agreement(&agree, flow->shapes, tsr_node_find_config(node, flow->config));
}
