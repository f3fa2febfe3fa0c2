// SPDX-License-Identifier: Apache-2.0
// strategies.c - makes the list of candidates of a node: replicated, on grids, with layouts of its
// neighbours (the nodes that produce its inputs or read its outputs), or as annotated. Equal nodes
// share one list.
//
//     Example: 24 layers, each with a MatMul of [128, 512] by [512, 2048] in float32. The 24 nodes
//     have the same key and share one strategy. Its candidates on 4 devices: "whole", "m/4", "k/4",
//     "k/4 > m", "k/4 > n", "n/4". A 25th MatMul with a sharding in the model has its own strategy,
//     with the candidates that match its sharding.
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

// Appends numbers to the key. Keys are bytes, because formatting them as text took a quarter of the
// planning time.
static void key_numbers(struct text *key, const int64_t *numbers, size_t n)
{
    tsr__text_add(key, str_bytes(numbers, n * sizeof *numbers));
}

// Appends a text after its length; NULL: as an empty text.
static void key_text(struct text *key, const char *text)
{
    struct str str = text ? str_of(text) : STR("");
    key_numbers(key, (int64_t[]){(int64_t)str.n}, 1);
    tsr__text_add(key, str);
}

// Appends a tensor: whether it is a small control input (`host`), whether it is absent, its rank,
// and the number and the factors of each dimension.
static void key_tensor(struct text *key, const struct rule_tensor *tensor)
{
    key_numbers(key, (int64_t[]){tensor->host, tensor->absent, tensor->rank}, 3);
    for (int d = 0; !tensor->host && d < tensor->rank; d++) {
        key_numbers(key, (int64_t[]){tensor->dims[d].n}, 1);
        tsr__text_add(key, str_bytes(tensor->dims[d].factors,
                                     (size_t)tensor->dims[d].n * sizeof *tensor->dims[d].factors));
    }
}

// Returns the first input with the same value as input i. Equal nodes must repeat the same inputs.
static int64_t same_input(const tsr_node *node, size_t i)
{
    int64_t earlier = tsr__earlier_reading(node, i);
    return earlier < 0 ? (int64_t)i : earlier;
}

// Appends a value: its rank (-1: absent), type, whether it is constant, the first input with the
// same value, and its sizes.
static void key_value(struct text *key, const struct planner *planner, const tsr_node *node,
                      enum slot_side side, size_t i)
{
    const tsr_value *v = node_value(node, side, i);
    if (!v) {
        key_numbers(key, (int64_t[]){-1}, 1);
        return;
    }
    int64_t same = side == SIDE_INPUT ? same_input(node, i) : (int64_t)i;
    const struct plan_value *value = &planner->values[tsr__value_id(v)];
    key_numbers(key,
                (int64_t[]){value->rank, tsr__shapes_of(planner->shapes.full, v).dtype,
                            value->constant, same, value->free},
                5);
    key_numbers(key, value->shape, (size_t)value->rank);
}

static void key_factor(struct text *key, const struct rule_factor *factor)
{
    key_numbers(key, (int64_t[]){factor->kind, factor->combine, factor->size.value, factor->unit},
                4);
    key_text(key, factor->size.symbol);
}

static void key_window(struct text *key, const struct rule_window *window)
{
    key_numbers(key,
                (int64_t[]){window->input, window->dim, window->factor, window->from, window->to,
                            window->step, window->shift, window->reach, window->per},
                9);
}

// Appends the rule, without the names of factors: rules that differ only in these names get the
// same key.
static void key_rule(struct text *key, const struct rule *rule)
{
    key_numbers(key,
                (int64_t[]){rule->n_factors, rule->n_rewrites, rule->n_windows, rule->n_inputs,
                            rule->n_outputs},
                5);
    for (int i = 0; i < rule->n_factors; i++)
        key_factor(key, &rule->factors[i]);
    for (int i = 0; i < rule->n_rewrites; i++)
        key_numbers(
            key,
            (int64_t[]){rule->rewrites[i].kind, rule->rewrites[i].input, rule->rewrites[i].factor},
            3);
    for (int i = 0; i < rule->n_windows; i++)
        key_window(key, &rule->windows[i]);
    for (int i = 0; i < rule->n_inputs; i++)
        key_tensor(key, &rule->inputs[i]);
    for (int i = 0; i < rule->n_outputs; i++)
        key_tensor(key, &rule->outputs[i]);
}

// Appends for each window whether it is free, which depends on the nodes that produce the input.
static void key_free_windows(struct text *key, const struct planner *planner, const tsr_node *node,
                             const struct rule *rule)
{
    struct arena scratch = {.session = planner->session};
    for (int i = 0; i < rule->n_windows; i++)
        key_numbers(
            key, (int64_t[]){tsr__window_is_free(planner, &scratch, node, &rule->windows[i])}, 1);
    key->failed = key->failed || scratch.failed;
    tsr__arena_free(&scratch);
}

// Builds the key from everything that the candidates depend on: rule, types, sizes and whether the
// engine computes the node when it loads the model.
static void key_of(struct text *key, const struct planner *planner, const tsr_node *node,
                   const struct rule *rule, const char *whole)
{
    int64_t n_in = (int64_t)tsr_node_input_count(node),
            n_out = (int64_t)tsr_node_output_count(node);
    key_numbers(
        key, (int64_t[]){whole != NULL, rule->single, n_in, n_out, tsr__node_reads_constants(node)},
        5);
    key_rule(key, rule);
    if (!whole)
        key_free_windows(key, planner, node, rule);
    for (int64_t i = 0; i < n_in; i++)
        key_value(key, planner, node, SIDE_INPUT, (size_t)i);
    for (int64_t i = 0; i < n_out; i++)
        key_value(key, planner, node, SIDE_OUTPUT, (size_t)i);
}

static bool gives_output(const struct planner *planner, const tsr_node *node)
{
    const tsr_value *first = tsr_node_output_count(node) ? tsr_node_output(node, 0) : NULL;
    return first && planner->values[tsr__value_id(first)].returned;
}

// Returns the kind of work of the node if it is not fused into the one before it.
static struct work_kind apart_kind(const struct planner *planner, const tsr_node *node,
                                   struct work_kind kind)
{
    if (kind.move != NODE_MOVES_NOTHING)
        return kind;
    return tsr__work_kind_apart(node, planner->shapes.full, planner->machine.topology);
}

// Creates a strategy. `whole` is the reason why the node must be replicated, or NULL.
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
    strategy->times = pn->times;
    strategy->inside = !in_main_graph(pn);
    strategy->rule = rule;
    strategy->other =
        whole ? NULL : tsr__rule_strided(&planner->arena, node, planner->shapes.model);
    strategy->count = tsr__node_count(node, planner->shapes.full);
    strategy->kind = tsr__work_kind(node, planner->shapes.full, planner->machine.topology);
    strategy->apart = apart_kind(planner, node, strategy->kind);
    (void)tsr__node_load(planner->session, node, planner->shapes.full, &strategy->load);
    strategy->delays = pn->delays;
    strategy->takes = pn->takes;
    strategy->gives = gives_output(planner, node);
    strategy->whole = whole;
    tsr__map_init(&strategy->seen, &planner->arena, 0);
    if (!fill_strategy(planner, strategy, rule->single))
        return NULL;
    strategy->given = is_annotated(planner, node);
    return !strategy->given || constrain(planner, strategy) ? strategy : NULL;
}

// Returns the strategy with that key, and creates it if it is new. NULL: out of memory.
static struct strategy *strategy_of_key(struct planner *planner, struct str key,
                                        const struct plan_node *pn, const char *whole)
{
    void **at = tsr__map_at_copy(&planner->cache.strategies, key);
    if (at && !*at)
        *at = strategy_new(planner, pn, whole);
    return at ? *at : NULL;
}

// Returns the strategy of a node. A node with shardings in the model is unique: its id is part of
// the key.
struct strategy *tsr__planner_strategy(struct planner *planner, const struct plan_node *pn)
{
    const tsr_node *node = pn->node;
    const struct rule *rule = pn->rule;
    const char *whole =
        rule->whole ? rule->whole : tsr__rule_immovable(planner->shapes.model, node);
    struct strategy *strategy = NULL;
    struct text key = {.session = planner->session};
    key_of(&key, planner, node, rule, whole);
    double count = tsr__node_count(node, planner->shapes.full);
    tsr__text_add(&key, str_bytes(&count, sizeof count));
    // The key includes the kind of work: Identity and Relu have the same rule, but Identity moves
    // no data.
    struct work_kind kind = tsr__work_kind(node, planner->shapes.full, planner->machine.topology);
    struct work_kind apart = apart_kind(planner, node, kind);
    int64_t given = is_annotated(planner, node) ? (int64_t)tsr__node_id(node) : -1;
    key_numbers(&key,
                (int64_t[]){pn->delays, pn->takes, gives_output(planner, node), kind.type,
                            kind.rate, kind.move, apart.rate, apart.move, given, pn->times,
                            !in_main_graph(pn)},
                11);
    // two transposes may move memory differently, and two equal nodes may have different
    // measurements
    key_text(&key, kind.sizes ? kind.sizes->op : NULL);
    key_text(&key, kind.seen ? kind.seen->op : NULL);
    key_text(&key, kind.seen ? kind.seen->type : NULL);
    if (!key.failed)
        strategy = strategy_of_key(planner, (struct str){key.p, key.n}, pn, whole);
    tsr__text_free(&key);
    return strategy;
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
