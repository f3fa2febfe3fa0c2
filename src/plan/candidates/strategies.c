// SPDX-License-Identifier: Apache-2.0
// strategies.c - the candidates of a node: whole, on grids, as its neighbours have its values, or
// as it was annotated. Nodes that are alike share one list.
//
//     24 layers, each with a MatMul of [128, 512] by [512, 2048] in float32: one key, one strategy, 24 nodes that point to it.
//     Its candidates on 4 devices: "whole", "m/4", "k/4", "k/4 > m", "k/4 > n", "n/4" (candidates.c, grids.c). A 25th MatMul
//     that has a sharding in the model has a strategy of its own, with those of its candidates that conform to it.
//
// build.c asks for the strategy of each node in order, then offers layouts of its neighbours, which
// may add candidates.
#include "plan/candidates/candidates.h"

// ---- whole nodes -------------------------------------------------------------------------------

// Layouts of all tensors on one side of the node, whole on the first n devices.
static void lay_whole(struct making *making, enum slot_side side, size_t n,
                      struct tile_layout **layouts)
{
    size_t n_slots = side == SIDE_OUTPUT ? making->n_out : making->n_in;
    for (size_t i = 0; i < n_slots; i++)
        if (node_value(making->node, side, i))
            layouts[i] = tsr__layout_whole(making->arena, value_at(making, side, i)->rank,
                                           making->planner->machine.all, n);
}

// Whole on all devices, or on the first where each run gives something else.
static bool take_whole(struct making *making, bool single)
{
    struct candidate candidate = {.name = STR("whole")};
    size_t n_devices = (size_t)making->planner->machine.n;
    if (single) {
        candidate.name = STR("first device");
        n_devices = 1;
    }
    making->in = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_in + 1);
    making->out = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_out + 1);
    if (!making->in || !making->out)
        return false;
    lay_whole(making, SIDE_INPUT, n_devices, making->in);
    lay_whole(making, SIDE_OUTPUT, n_devices, making->out);
    if (making->arena->failed || !tsr__making_number(making, making->out, &candidate))
        return false;
    tsr__making_cost(making, &candidate);
    struct candidate *at = vec_push(&making->planner->arena, &making->strategy->at);
    if (at)
        *at = candidate;
    return at != NULL;
}

// A placement that cuts nothing. NULL: out of memory.
static int64_t *no_cuts(struct arena *arena, const struct rule *rule)
{
    int64_t *ones = ARENA_ARRAY(arena, int64_t, (size_t)rule->n_factors + 1);
    if (!ones)
        return NULL;
    for (int factor = 0; factor < rule->n_factors; factor++)
        ones[factor] = 1;
    return ones;
}

// The first candidate is always the whole node; then, where it may be cut, what its rules give on
// grids.
static bool fill_strategy(struct planner *planner, struct strategy *strategy, bool single)
{
    struct arena scratch;
    tsr__arena_init(&scratch, planner->session);
    // The scratch arena serves the whole node only; grids have one for each try.
    struct making making = tsr__making(planner, strategy, strategy->node, &scratch);
    making.place = (struct placement){.rule = strategy->rule};
    making.place.cuts = no_cuts(&scratch, strategy->rule);
    bool ok = making.place.cuts && take_whole(&making, single);
    tsr__arena_free(&scratch);
    if (!ok)
        return false;
    if (strategy->whole || planner->machine.n < 2)
        return !planner->arena.failed;
    tsr__making_grids(&making);
    making.rule = strategy->other;
    if (strategy->other)
        tsr__making_grids(&making);
    return !planner->arena.failed;
}

// ---- shardings that were given -----------------------------------------------------------------

// The configuration that is completed has a sharding for some tensor of the node.
static bool is_annotated(const struct planner *planner, const tsr_node *node)
{
    if (!planner->config)
        return false;
    for (size_t i = 0; i < tsr_node_config_count(node); i++) {
        const tsr_node_config *nc = tsr_node_config_at(node, i);
        if (tsr_node_config_config(nc) == planner->config && tsr_node_config_spec_count(nc))
            return true;
    }
    return false;
}

// The candidate as the given shardings have it: false if it needs an input otherwise. Outputs that
// are wanted otherwise are moved by the node itself.
static bool conform(struct making *making, struct candidate *candidate)
{
    for (size_t i = 0; i < making->n_in; i++)
        if (making->in[i] &&
            candidate->in[i] != tsr__planner_layout(making->planner, making->in[i]))
            return false;
    for (size_t i = 0; i < making->n_out; i++) {
        if (!making->out[i] || candidate->out[i] == PLAN_NO_LAYOUT)
            continue;
        uint32_t wanted = tsr__planner_layout(making->planner, making->out[i]);
        if (candidate->out[i] == wanted)
            continue;
        candidate->comm += tsr__planner_price(making->planner, candidate->out[i], wanted,
                                              value_at(making, SIDE_OUTPUT, i));
        // The move is made after the node runs, like a reduction: both layouts are there meanwhile.
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

// Candidates of the placement that the given shardings mean, by the rule, by the other rule, and by
// the rule with statistics cut, which the others do not find.
static void take_annotated(struct making *making, struct tile_layout *const *in,
                           struct tile_layout *const *out)
{
    const struct strategy *strategy = making->strategy;
    const struct {
        const struct rule *rule;
        bool stat;
    } tries[] = {{strategy->rule, false}, {strategy->other, false}, {strategy->rule, true}};
    for (size_t i = 0; i < TSR_COUNT(tries); i++) {
        making->rule = tries[i].rule;
        making->stat = tries[i].stat;
        if (making->rule &&
            tsr__placement_explicit(
                making->arena, making->arena, strategy->node, making->planner->shapes.model,
                making->rule, making->planner->machine.n, in, out, !making->stat, &making->place) &&
            making->stat == cuts_statistics(&making->place))
            (void)tsr__making_take(making);
    }
}

// Keeps what conforms to the shardings of the node. Where the operator cannot be cut that way it
// runs whole.
static bool constrain(struct planner *planner, struct strategy *strategy)
{
    struct arena arena;
    tsr__arena_init(&arena, planner->session);
    struct making making = tsr__making(planner, strategy, strategy->node, &arena);
    struct tile_layout **in = ARENA_ARRAY(&arena, struct tile_layout *, making.n_in + 1);
    struct tile_layout **out = ARENA_ARRAY(&arena, struct tile_layout *, making.n_out + 1);
    bool ok =
        in && out &&
        tsr__node_specs(&arena, strategy->node, planner->config, planner->shapes.model, in, out);
    if (!ok)
        goto free_arena;
    if (!strategy->whole)
        take_annotated(&making, in, out);
    making.in = in;
    making.out = out;
    size_t kept = 0;
    for (size_t i = 0; i < strategy->at.n; i++)
        if (conform(&making, &strategy->at.at[i]))
            strategy->at.at[kept++] = strategy->at.at[i];
    if (kept)
        strategy->at.n = kept;
    else if (strategy->at.n)
        strategy->at.n = 1; // whole
    ok = !arena.failed;
free_arena:
    tsr__arena_free(&arena);
    return ok;
}

// ---- nodes that are alike ----------------------------------------------------------------------

// "|", whether the host reads it, whether it is absent, its rank, and the factors of each
// dimension.
static void key_tensor(struct text *text, const struct rule_tensor *tensor)
{
    tsr__text_printf(text, "|%d%d%d", tensor->host, tensor->absent, tensor->rank);
    if (tensor->host)
        return;
    for (int d = 0; d < tensor->rank; d++) {
        tsr__text_printf(text, ",");
        for (int k = 0; k < tensor->dims[d].n; k++)
            tsr__text_printf(text, "%d ", tensor->dims[d].factors[k]);
    }
}

// An input before the i-th that is the same value, or i: inputs that are one value must stay one.
static size_t same_input(const tsr_node *node, size_t i)
{
    int64_t earlier = tsr__earlier_reading(node, i);
    return earlier < 0 ? i : (size_t)earlier;
}

// Type, whether it is constant, the input that it is the same value as, and its sizes:
// ";1:0:0:8,6," is a float32 [8, 6].
static void key_value(struct text *text, const struct planner *planner, const tsr_node *node,
                      enum slot_side side, size_t i)
{
    const tsr_value *v = node_value(node, side, i);
    if (!v) {
        tsr__text_printf(text, ";-");
        return;
    }
    size_t same = side == SIDE_INPUT ? same_input(node, i) : i;
    const struct plan_value *value = &planner->values[tsr__value_id(v)];
    tsr__text_printf(text, ";%d:%d:%zu:", (int)tsr__shapes_of(planner->shapes.full, v).dtype,
                     value->constant, same);
    for (int d = 0; d < value->rank; d++)
        tsr__text_printf(text, "%lld,", (long long)value->shape[d]);
}

static void key_factor(struct text *text, const struct rule_factor *factor)
{
    tsr__text_printf(text, "%d %d %lld %s %lld;", (int)factor->kind, (int)factor->combine,
                     (long long)factor->size.value, factor->size.symbol ? factor->size.symbol : "",
                     (long long)factor->unit);
}

static void key_window(struct text *text, const struct rule_window *window)
{
    tsr__text_printf(text, "#%d %d %d %lld %lld %lld %lld %lld %lld", window->input, window->dim,
                     window->factor, (long long)window->from, (long long)window->to,
                     (long long)window->step, (long long)window->shift, (long long)window->reach,
                     (long long)window->per);
}

// Names of factors do not matter: two operators with the same factors, windows and rewrites are cut
// alike.
static void key_rule(struct text *text, const struct rule *rule)
{
    for (int i = 0; i < rule->n_factors; i++)
        key_factor(text, &rule->factors[i]);
    for (int i = 0; i < rule->n_rewrites; i++)
        tsr__text_printf(text, "/%d %d %d", (int)rule->rewrites[i].kind, rule->rewrites[i].index,
                         rule->rewrites[i].factor);
    for (int i = 0; i < rule->n_windows; i++)
        key_window(text, &rule->windows[i]);
    for (int i = 0; i < rule->n_inputs; i++)
        key_tensor(text, &rule->inputs[i]);
    for (int i = 0; i < rule->n_outputs; i++)
        key_tensor(text, &rule->outputs[i]);
}

// All that the candidates of a node depend on: its rule, unless it runs whole in any case, and
// types and sizes of its values.
static void key_of(struct text *text, const struct planner *planner, const tsr_node *node,
                   const struct rule *rule, const char *whole)
{
    tsr__text_printf(text, "%d%d.", whole != NULL, rule->single);
    if (!whole)
        key_rule(text, rule);
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        key_value(text, planner, node, SIDE_INPUT, i);
    tsr__text_printf(text, ">");
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        key_value(text, planner, node, SIDE_OUTPUT, i);
}

static bool gives_output(const tsr_node *node)
{
    const tsr_value *first = tsr_node_output_count(node) ? tsr_node_output(node, 0) : NULL;
    return first && tsr_value_is_output(first);
}

// whole: why nothing of the node may be cut, or NULL.
static struct strategy *strategy_new(struct planner *planner, const struct plan_node *pn,
                                     const char *whole)
{
    const tsr_node *node = pn->node;
    const struct rule *rule = pn->rule;
    struct strategy *strategy = ARENA_NEW(&planner->arena, struct strategy);
    if (!strategy)
        return NULL;
    strategy->id = planner->cache.n_strategies++;
    strategy->node = node;
    strategy->rule = rule;
    strategy->other =
        whole ? NULL : tsr__rule_strided(&planner->arena, node, planner->shapes.model);
    strategy->count = tsr__node_count(node, planner->shapes.full);
    strategy->kind = tsr__work_kind(node, planner->shapes.full, planner->machine.topology);
    strategy->delays = pn->delays;
    strategy->takes = pn->takes;
    strategy->gives = gives_output(node);
    strategy->whole = whole;
    tsr__map_init(&strategy->seen, &planner->arena, 0);
    if (!fill_strategy(planner, strategy, rule->single))
        return NULL;
    strategy->given = is_annotated(planner, node);
    if (!strategy->given || constrain(planner, strategy))
        return strategy;
    return NULL;
}

// The strategy of that key, found or made. NULL: out of memory.
static struct strategy *strategy_of_key(struct planner *planner, struct str key,
                                        const struct plan_node *pn, const char *whole)
{
    void **at = tsr__map_at_copy(&planner->cache.strategies, key);
    if (at && !*at)
        *at = strategy_new(planner, pn, whole);
    return at ? *at : NULL;
}

// Nodes with shardings of their own are like no other: their place in the graph belongs to their
// key.
struct strategy *tsr__planner_strategy(struct planner *planner, const struct plan_node *pn)
{
    struct text key;
    const tsr_node *node = pn->node;
    const struct rule *rule = pn->rule;
    const char *whole =
        rule->whole ? rule->whole : tsr__rule_immovable(planner->shapes.model, node);
    struct strategy *strategy = NULL;
    tsr__text_init(&key, planner->session);
    key_of(&key, planner, node, rule, whole);
    tsr__text_printf(&key, "%d%d%d%a", pn->delays, pn->takes, gives_output(node),
                     tsr__node_count(node, planner->shapes.full));
    // An Identity and a Relu have one rule, yet the one moves nothing.
    struct work_kind kind = tsr__work_kind(node, planner->shapes.full, planner->machine.topology);
    tsr__text_printf(&key, " %d %d %d", kind.type, kind.rate, kind.move);
    if (kind.sizes) // and of two transposes one takes each element apart
        tsr__text_printf(&key, " %s", kind.sizes->op);
    if (kind.seen) // and of two that do the same one was seen to be slower
        tsr__text_printf(&key, " %s %s", kind.seen->op, kind.seen->type);
    if (is_annotated(planner, node))
        tsr__text_printf(&key, "@%lld", (long long)tsr_node_index(node));
    if (!key.failed)
        strategy = strategy_of_key(planner, (struct str){key.p, key.n}, pn, whole);
    tsr__text_free(&key);
    return strategy;
}

// ---- layouts that neighbours bring -------------------------------------------------------------

// A candidate by that rule in which the tensor has the layout, if its placement follows from it.
static bool try_rule(struct making *making, const struct rule *rule, enum slot_side side, size_t i,
                     uint32_t layout)
{
    const struct planner *planner = making->planner;
    struct tile_layout **in = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_in + 1);
    struct tile_layout **outs = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_out + 1);
    making->rule = rule;
    if (!rule || !in || !outs)
        return false;
    struct tile_layout **wanted = side == SIDE_OUTPUT ? &outs[i] : &in[i];
    *wanted = tsr__layout_copy(making->arena, planner->layouts.at[layout].tiles);
    return tsr__placement_explicit(making->arena, making->arena, making->node,
                                   planner->shapes.model, rule, planner->machine.n, in, outs, true,
                                   &making->place) &&
           tsr__making_take(making);
}

// What was tried with a slot and a layout: the first number of the key.
enum tried { TRIED_INPUT, TRIED_OUTPUT, TRIED_PARTS };

// False: it was tried before.
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

// Both rules of the strategy are tried; one candidate that is new is enough.
bool tsr__planner_try_layout(struct planner *planner, struct strategy *strategy,
                             const tsr_node *node, enum slot_side side, size_t i, uint32_t layout)
{
    uint32_t key[3] = {side == SIDE_OUTPUT ? TRIED_OUTPUT : TRIED_INPUT, (uint32_t)i, layout};
    struct arena scratch;
    if (!is_first_try(strategy, key))
        return false;
    tsr__arena_init(&scratch, planner->session);
    struct making making = tsr__making(planner, strategy, node, &scratch);
    making.spread = planner->layouts.at[layout].spread;
    bool ok = try_rule(&making, strategy->rule, side, i, layout);
    ok = try_rule(&making, strategy->other, side, i, layout) || ok;
    tsr__arena_free(&scratch);
    return ok;
}

// ---- parts of sums -----------------------------------------------------------------------------

// Who of the inputs comes in parts besides the one at hand.
enum pending_inputs { PENDING_ONE, PENDING_ALL };

// Inputs that come in parts: those of the value, and with PENDING_ALL every one that can and lies
// so.
static uint32_t *pending_of(struct making *making, const struct candidate *candidate, size_t i,
                            uint32_t layout, enum pending_inputs inputs)
{
    uint32_t *pending = ARENA_ARRAY(making->arena, uint32_t, making->n_in + 1);
    if (!pending)
        return NULL;
    for (size_t k = 0; k < making->n_in; k++) {
        const tsr_value *value = tsr_node_input(making->node, k);
        bool same = value == tsr_node_input(making->node, i);
        bool can = inputs == PENDING_ALL && value && candidate->in[k] == candidate->in[i] &&
                   !value_at(making, SIDE_INPUT, k)->constant &&
                   tsr__sum_fits(making->planner->shapes.model, making->node, k) == SUM_ADDS;
        pending[k] = same || can ? layout : PLAN_NO_LAYOUT;
    }
    return pending;
}

// The candidate with those inputs (numbers of layouts), of which the pending ones come in parts.
static void try_parts(struct making *making, const uint32_t *in, const uint32_t *pending,
                      const struct parts *parts)
{
    struct planner *planner = making->planner;
    struct tile_layout **ins = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_in + 1);
    struct tile_layout **outs = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_out + 1);
    if (!ins || !outs || !pending)
        return;
    for (size_t k = 0; k < making->n_in; k++)
        if (in[k] != PLAN_NO_LAYOUT)
            ins[k] = tsr__layout_copy(making->arena, planner->layouts.at[in[k]].tiles);
    making->pending = pending;
    if (tsr__placement_explicit(making->arena, making->arena, making->node, planner->shapes.model,
                                making->rule, planner->machine.n, ins, outs, true, &making->place))
        (void)tsr__making_take_parts(making, parts);
}

// For every candidate that takes the input done and makes no sum itself, one that takes it in
// parts; and where the node adds its inputs, one that takes all that lie alike in parts. Candidates
// that are added meanwhile are not visited.
void tsr__planner_try_parts(struct planner *planner, struct strategy *strategy,
                            const tsr_node *node, size_t i, uint32_t layout)
{
    uint32_t key[3] = {TRIED_PARTS, (uint32_t)i, layout};
    const struct parts *parts = planner->layouts.at[layout].parts;
    struct arena scratch;
    if (!strategy->takes)
        return;
    enum sum_way way = tsr__sum_fits(planner->shapes.model, node, i);
    if (way == SUM_STOPS || !is_first_try(strategy, key))
        return;
    tsr__arena_init(&scratch, planner->session);
    for (size_t c = 0, end = strategy->at.n; c < end; c++) {
        if (strategy->at.at[c].in[i] != parts->layout || strategy->at.at[c].reduction)
            continue;
        struct candidate candidate = strategy->at.at[c]; // the list may move
        struct making making = tsr__making(planner, strategy, node, &scratch);
        try_parts(&making, candidate.in, pending_of(&making, &candidate, i, layout, PENDING_ONE),
                  parts);
        if (way == SUM_ADDS)
            try_parts(&making, candidate.in,
                      pending_of(&making, &candidate, i, layout, PENDING_ALL), parts);
    }
    planner->arena.failed = planner->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
}
