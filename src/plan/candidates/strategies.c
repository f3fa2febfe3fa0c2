// SPDX-License-Identifier: Apache-2.0
// strategies.c - makes the list of candidates of a node: replicated, on grids, with layouts of its
// neighbours (the nodes that produce its inputs or read its outputs), or as annotated. Equal nodes
// share one list.
//
//     Example: 24 layers, each with a MatMul of [128, 512] by [512, 2048] in float32. The 24 nodes
//     have the same key (equal_nodes.c) and share one strategy. Its candidates on 4 devices:
//     "whole", "m/4", "k/4", "k/4 > m", "k/4 > n", "n/4". A 25th MatMul with a sharding in the
//     model has its own strategy, with the candidates that match its sharding.
//
// build.c requests the strategy of each node in order, then offers layouts of its neighbours, which
// may add candidates.
#include "plan/candidates/candidates.h"

// ---- replicated nodes ---------------------------------------------------------------------------

// Replicates all tensors on one side of the node on the first n devices.
static void lay_whole(struct candidate_builder *builder, enum slot_side side, size_t n,
                      struct tile_layout **layouts)
{
    size_t n_slots = side == SIDE_OUTPUT ? builder->n_out : builder->n_in;
    for (size_t i = 0; i < n_slots; i++)
        if (node_value(builder->node, side, i))
            layouts[i] = tsr__layout_whole(builder->arena, value_at(builder, side, i)->rank,
                                           builder->planner->machine.all, n);
}

// Adds the replicated candidate, on all devices. `single`: only on the first device, for random
// nodes.
static bool take_whole(struct candidate_builder *builder, bool single)
{
    struct candidate candidate = {.name = STR("whole")};
    size_t n_devices = (size_t)builder->planner->machine.n;
    if (single) {
        candidate.name = STR("first device");
        n_devices = 1;
    }
    builder->in = ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_in + 1);
    builder->out = ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_out + 1);
    if (!builder->in || !builder->out)
        return false;
    lay_whole(builder, SIDE_INPUT, n_devices, builder->in);
    lay_whole(builder, SIDE_OUTPUT, n_devices, builder->out);
    if (builder->arena->failed || !tsr__builder_number(builder, builder->out, &candidate))
        return false;
    tsr__builder_cost(builder, &candidate);
    tsr__candidate_repeat(&candidate, builder->strategy->times);
    return vec_add(&builder->planner->arena, &builder->strategy->at, candidate);
}

// Returns the cuts of a placement that shards nothing: all ones. NULL: out of memory.
static int64_t *no_cuts(struct arena *arena, const struct rule *rule)
{
    int64_t *ones = ARENA_ARRAY(arena, int64_t, (size_t)rule->n_factors + 1);
    if (!ones)
        return NULL;
    for (int factor = 0; factor < rule->n_factors; factor++)
        ones[factor] = 1;
    return ones;
}

// Adds the replicated candidate. There are no others if the node must be replicated or there is
// only one device. Otherwise adds the candidates on grids: those of the rule, then those of the
// alternative rule if there is one. Returns false if out of memory.
static bool fill_strategy(struct planner *planner, struct strategy *strategy, bool single)
{
    struct arena scratch = {.session = planner->session};
    // Only the replicated candidate uses this scratch arena; grids use a new one per attempt.
    struct candidate_builder builder =
        tsr__builder_init(planner, strategy, strategy->node, &scratch);
    builder.place = (struct placement){.rule = strategy->rule};
    builder.place.cuts = no_cuts(&scratch, strategy->rule);
    bool ok = builder.place.cuts && take_whole(&builder, single);
    tsr__arena_free(&scratch);
    if (!ok)
        return false;
    if (strategy->whole || planner->machine.n < 2)
        return !planner->arena.failed;
    tsr__builder_grids(&builder);
    builder.rule = strategy->other;
    if (strategy->other)
        tsr__builder_grids(&builder);
    return !planner->arena.failed;
}

// ---- shardings that were given -----------------------------------------------------------------

// True if the configuration whose annotations are kept has a sharding for a tensor of the node.
static bool is_annotated(const struct planner *planner, const tsr_node *node)
{
    if (!planner->config)
        return false;
    for (size_t i = 0; i < tsr_node_config_count(node); i++) {
        const tsr_node_config *nc = tsr_node_config_at(node, i);
        if (tsr_node_config_target(nc) == planner->config && tsr_node_config_spec_count(nc))
            return true;
    }
    return false;
}

// Adapts the candidate to the node's shardings in the model. Returns false if these require another
// input layout. If they require another output layout, adds resharding after the node.
static bool conform(struct candidate_builder *builder, struct candidate *candidate)
{
    for (size_t i = 0; i < builder->n_in; i++)
        if (builder->in[i] &&
            candidate->in[i] != tsr__planner_layout(builder->planner, builder->in[i]))
            return false;
    for (size_t i = 0; i < builder->n_out; i++) {
        if (!builder->out[i] || candidate->out[i] == PLAN_NO_LAYOUT)
            continue;
        uint32_t wanted = tsr__planner_layout(builder->planner, builder->out[i]);
        if (candidate->out[i] == wanted)
            continue;
        candidate->comm += tsr__resharding_time(builder->planner, candidate->out[i], wanted,
                                                value_at(builder, SIDE_OUTPUT, i));
        // The resharding runs after the node, like a reduction. Both layouts are in memory
        // meanwhile.
        if (candidate->before[i] == PLAN_NO_LAYOUT)
            candidate->before[i] = candidate->out[i];
        candidate->out[i] = wanted;
    }
    return true;
}

static bool cuts_statistics(const struct placement *placement)
{
    for (int factor = 0; factor < placement->rule->n_factors; factor++)
        if (placement->rule->factors[factor].kind == FACTOR_STAT && placement->cuts[factor] > 1)
            return true;
    return false;
}

// Adds candidates for the node's shardings in the model: from the rule, from the alternative rule,
// and from the rule with sharded statistics.
static void take_annotated(struct candidate_builder *builder, struct tile_layout *const *in,
                           struct tile_layout *const *out)
{
    const struct strategy *strategy = builder->strategy;
    const struct {
        const struct rule *rule;
        bool stat;
    } tries[] = {{strategy->rule, false}, {strategy->other, false}, {strategy->rule, true}};
    for (size_t i = 0; i < TSR_COUNT(tries); i++) {
        builder->rule = tries[i].rule;
        builder->stat = tries[i].stat;
        if (builder->rule &&
            tsr__placement_explicit(builder->arena, builder->arena, strategy->node,
                                    builder->planner->shapes.model, builder->rule,
                                    builder->planner->machine.n, in, out, !builder->stat,
                                    &builder->place) &&
            builder->stat == cuts_statistics(&builder->place))
            (void)tsr__builder_take(builder);
    }
}

// Keeps only candidates that match the node's shardings. If none does, the node is replicated.
static bool constrain(struct planner *planner, struct strategy *strategy)
{
    struct arena arena = {.session = planner->session};
    struct candidate_builder builder = tsr__builder_init(planner, strategy, strategy->node, &arena);
    struct tile_layout **in = ARENA_ARRAY(&arena, struct tile_layout *, builder.n_in + 1);
    struct tile_layout **out = ARENA_ARRAY(&arena, struct tile_layout *, builder.n_out + 1);
    bool ok = in && out &&
              tsr__node_specs(&arena, strategy->node, planner->config, planner->shapes.model, false,
                              in, out);
    if (!ok)
        goto free_arena;
    if (!strategy->whole)
        take_annotated(&builder, in, out);
    builder.in = in;
    builder.out = out;
    size_t kept = 0;
    for (size_t i = 0; i < strategy->at.n; i++)
        if (conform(&builder, &strategy->at.at[i]))
            strategy->at.at[kept++] = strategy->at.at[i];
    if (kept)
        strategy->at.n = kept;
    else if (strategy->at.n)
        strategy->at.n = 1; // keep only the replicated candidate
    ok = !arena.failed;
free_arena:
    tsr__arena_free(&arena);
    return ok;
}

// ---- equal nodes -------------------------------------------------------------------------------

static struct strategy *strategy_new(struct planner *planner, const struct plan_node *pn,
                                     const struct equal_node *equal)
{
    const tsr_node *node = pn->node;
    struct strategy *strategy = ARENA_NEW(&planner->arena, struct strategy);
    if (!strategy)
        return NULL;
    strategy->id = planner->cache.n_strategies++;
    strategy->node = node;
    strategy->equal = equal->id;
    strategy->times = pn->times;
    strategy->inside = !in_main_graph(pn);
    strategy->rule = pn->rule;
    strategy->other =
        equal->whole ? NULL : tsr__rule_strided(&planner->arena, node, planner->shapes.model);
    strategy->count = equal->count;
    strategy->kind = equal->kind;
    strategy->apart = equal->apart;
    strategy->load = equal->load;
    strategy->delays = pn->delays;
    strategy->takes = pn->takes;
    strategy->gives = equal->gives;
    strategy->whole = equal->whole;
    tsr__map_init(&strategy->seen, &planner->arena, 0);
    if (!fill_strategy(planner, strategy, pn->rule->single))
        return NULL;
    strategy->given = is_annotated(planner, node);
    return !strategy->given || constrain(planner, strategy) ? strategy : NULL;
}

// Returns the strategy of a node. A node with shardings in the model is unique: its id is part of
// the key.
struct strategy *tsr__planner_strategy(struct planner *planner, const struct plan_node *pn)
{
    const struct equal_node *equal = tsr__planner_equal(planner, pn);
    if (!equal)
        return NULL;
    int64_t given = is_annotated(planner, pn->node) ? (int64_t)tsr__node_id(pn->node) : -1;
    int64_t key[] = {equal->id, pn->delays, pn->takes, given};
    void **at = tsr__map_at_copy(&planner->cache.strategies, str_bytes(key, sizeof key));
    if (at && !*at)
        *at = strategy_new(planner, pn, equal);
    return at ? *at : NULL;
}

// ---- layouts of neighbours ----------------------------------------------------------------------

// Adds candidates of the rule in which the tensor has that layout. False: none was added. Then
// there is no rule, the layout determines no valid placement, or memory has run out.
static bool try_rule(struct candidate_builder *builder, const struct rule *rule,
                     enum slot_side side, size_t i, uint32_t layout)
{
    const struct planner *planner = builder->planner;
    struct tile_layout **in = ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_in + 1);
    struct tile_layout **outs =
        ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_out + 1);
    builder->rule = rule;
    if (!rule || !in || !outs)
        return false;
    struct tile_layout **wanted = side == SIDE_OUTPUT ? &outs[i] : &in[i];
    *wanted = tsr__layout_copy(builder->arena, planner->layouts.at[layout].tiles);
    return tsr__placement_explicit(builder->arena, builder->arena, builder->node,
                                   planner->shapes.model, rule, planner->machine.n, in, outs, true,
                                   &builder->place) &&
           tsr__builder_take(builder);
}

// The first number of a key of `strategy->seen`: whether a layout was tried for an input, for an
// output, or as partial sums.
enum tried { TRIED_INPUT, TRIED_OUTPUT, TRIED_PARTS };

// True if a layout should be tried: the key is new, and the node is neither replicated nor
// annotated. Records the key. Also false if out of memory.
static bool is_first_try(struct strategy *strategy, const uint32_t key[3])
{
    if (strategy->whole || strategy->given)
        return false;
    void **at = tsr__map_at_copy(&strategy->seen, str_bytes(key, 3 * sizeof *key));
    if (!at || *at)
        return false;
    *at = strategy;
    return true;
}

// Tries both rules of the strategy. True if at least one of them added a candidate.
bool tsr__planner_try_layout(struct planner *planner, struct strategy *strategy,
                             const tsr_node *node, enum slot_side side, size_t i, uint32_t layout)
{
    uint32_t key[3] = {side == SIDE_OUTPUT ? TRIED_OUTPUT : TRIED_INPUT, (uint32_t)i, layout};
    if (!is_first_try(strategy, key))
        return false;
    struct arena scratch = {.session = planner->session};
    struct candidate_builder builder = tsr__builder_init(planner, strategy, node, &scratch);
    builder.spread = planner->layouts.at[layout].spread;
    bool ok = try_rule(&builder, strategy->rule, side, i, layout);
    ok = try_rule(&builder, strategy->other, side, i, layout) || ok;
    tsr__arena_free(&scratch);
    return ok;
}

// ---- partial sums -------------------------------------------------------------------------------

// The inputs that become partial sums: only the given one, or all.
enum pending_inputs { PENDING_ONE, PENDING_ALL };

// Returns a list by input: `layout` for inputs that are read as partial sums, PLAN_NO_LAYOUT for
// others. All inputs with the value of input i are read as partial sums. With PENDING_ALL, so are
// inputs that the node adds, if they are not constant and have the same layout in the candidate.
// NULL: out of memory.
static uint32_t *pending_of(struct candidate_builder *builder, const struct candidate *candidate,
                            size_t i, uint32_t layout, enum pending_inputs inputs)
{
    uint32_t *pending = ARENA_ARRAY(builder->arena, uint32_t, builder->n_in + 1);
    if (!pending)
        return NULL;
    for (size_t k = 0; k < builder->n_in; k++) {
        const tsr_value *value = tsr_node_input(builder->node, k);
        bool same = value == tsr_node_input(builder->node, i);
        bool can = inputs == PENDING_ALL && value && candidate->in[k] == candidate->in[i] &&
                   !value_at(builder, SIDE_INPUT, k)->constant &&
                   tsr__sum_fits(builder->planner->shapes.model, builder->node, k) == SUM_ADDS;
        pending[k] = same || can ? layout : PLAN_NO_LAYOUT;
    }
    return pending;
}

// Tries the candidate with the input layouts `in`. Inputs with a layout in `pending` are partial
// sums.
static void try_parts(struct candidate_builder *builder, const uint32_t *in,
                      const uint32_t *pending, const struct parts *parts)
{
    struct planner *planner = builder->planner;
    struct tile_layout **ins = ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_in + 1);
    struct tile_layout **outs =
        ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_out + 1);
    if (!ins || !outs || !pending)
        return;
    for (size_t k = 0; k < builder->n_in; k++)
        if (in[k] != PLAN_NO_LAYOUT)
            ins[k] = tsr__layout_copy(builder->arena, planner->layouts.at[in[k]].tiles);
    builder->pending = pending;
    if (tsr__placement_explicit(builder->arena, builder->arena, builder->node,
                                planner->shapes.model, builder->rule, planner->machine.n, ins, outs,
                                true, &builder->place))
        (void)tsr__builder_take_parts(builder, parts);
}

// Adds candidates that read input i as a partial sum: one for every candidate that reads the
// complete input and makes no sum. If the node adds its inputs, also adds one in which all inputs
// of the same layout are partial sums. Candidates added meanwhile are not visited.
void tsr__planner_try_parts(struct planner *planner, struct strategy *strategy,
                            const tsr_node *node, size_t i, uint32_t layout)
{
    uint32_t key[3] = {TRIED_PARTS, (uint32_t)i, layout};
    const struct parts *parts = planner->layouts.at[layout].parts;
    if (!strategy->takes)
        return;
    enum sum_mode mode = tsr__sum_fits(planner->shapes.model, node, i);
    if (mode == SUM_STOPS || !is_first_try(strategy, key))
        return;
    struct arena scratch = {.session = planner->session};
    for (size_t c = 0, end = strategy->at.n; c < end; c++) {
        if (strategy->at.at[c].in[i] != parts->layout || strategy->at.at[c].reduction)
            continue;
        struct candidate candidate = strategy->at.at[c]; // a copy: the list may be reallocated
        struct candidate_builder builder = tsr__builder_init(planner, strategy, node, &scratch);
        try_parts(&builder, candidate.in, pending_of(&builder, &candidate, i, layout, PENDING_ONE),
                  parts);
        if (mode == SUM_ADDS)
            try_parts(&builder, candidate.in,
                      pending_of(&builder, &candidate, i, layout, PENDING_ALL), parts);
    }
    planner->arena.failed = planner->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
}
