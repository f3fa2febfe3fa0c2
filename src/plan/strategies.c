// SPDX-License-Identifier: Apache-2.0
// strategies.c - the candidates of a node: whole, on grids, as its neighbours have its values, or as it was annotated.
// Nodes that are alike share one list.
#include "plan/candidates.h"

// ---- whole nodes -------------------------------------------------------------------------------

// Whole on all devices, or on the first where each run gives something else.
static bool take_whole(struct making *making, bool single)
{
    struct candidate candidate = {.name = single ? STR("first device") : STR("whole")};
    making->in = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_in + 1);
    making->out = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_out + 1);
    for (size_t i = 0; making->in && making->out && i < making->n_in + making->n_out; i++) {
        bool out = i >= making->n_in;
        size_t k = out ? i - making->n_in : i;
        if (!slot(making->node, out, k))
            continue;
        struct tile_layout *layout = tsr__layout_whole(
            making->arena, value_at(making, out, k)->rank, making->planner->machine.all,
            single ? 1 : (size_t)making->planner->machine.n);
        *(out ? &making->out[k] : &making->in[k]) = layout;
    }
    if (making->arena->failed || !tsr__making_number(making, making->out, &candidate))
        return false;
    tsr__making_cost(making, &candidate);
    struct candidate *at = vec_push(&making->planner->arena, &making->strategy->at);
    if (at)
        *at = candidate;
    return at != NULL;
}

static bool fill_strategy(struct planner *planner, struct strategy *strategy, bool single)
{
    int64_t one = 1;
    struct arena scratch;
    tsr__arena_init(&scratch, planner->session);
    struct making making = tsr__making(planner, strategy, strategy->node, &scratch);
    making.place = (struct placement){.rule = strategy->rule, .cuts = &one};
    int64_t *ones = ARENA_ARRAY(&scratch, int64_t, (size_t)strategy->rule->n_factors + 1);
    for (int factor = 0; ones && factor < strategy->rule->n_factors; factor++)
        ones[factor] = 1;
    making.place.cuts = ones;
    bool ok = ones && take_whole(&making, single);
    tsr__arena_free(&scratch);
    if (!ok || strategy->whole)
        return ok;
    if (planner->machine.n > 1)
        tsr__making_grids(&making);
    making.rule = strategy->other;
    if (planner->machine.n > 1 && strategy->other)
        tsr__making_grids(&making);
    return !planner->arena.failed;
}

// ---- shardings that were given -----------------------------------------------------------------

static bool is_annotated(const struct planner *planner, const tsr_node *node)
{
    for (size_t i = 0; planner->config && i < tsr_node_config_count(node); i++) {
        const tsr_node_config *nc = tsr_node_config_at(node, i);
        if (tsr_node_config_config(nc) == planner->config && tsr_node_config_spec_count(nc))
            return true;
    }
    return false;
}

// The candidate as the given shardings have it: false if it needs an input otherwise. Outputs that are wanted otherwise
// are moved by the node itself.
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
                                              value_at(making, true, i));
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

// Keeps what conforms to the shardings of the node. Where the operator cannot be cut that way it runs whole.
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
    for (int k = 0; ok && !strategy->whole && k < 3; k++) {
        making.rule = k == 1 ? strategy->other : strategy->rule;
        making.stat = k == 2; // what the others do not find may cut statistics
        if (making.rule &&
            tsr__placement_explicit(&arena, &arena, strategy->node, planner->shapes.model,
                                    making.rule, planner->machine.n, in, out, k < 2,
                                    &making.place) &&
            making.stat == cuts_statistics(&making.place))
            (void)tsr__making_take(&making);
    }
    making.in = in;
    making.out = out;
    size_t kept = 0;
    for (size_t i = 0; ok && i < strategy->at.n; i++)
        if (conform(&making, &strategy->at.at[i]))
            strategy->at.at[kept++] = strategy->at.at[i];
    if (kept)
        strategy->at.n = kept;
    else
        strategy->at.n = strategy->at.n ? 1 : 0; // whole
    ok = ok && !arena.failed;
    tsr__arena_free(&arena);
    return ok;
}

// ---- nodes that are alike ----------------------------------------------------------------------

static void key_tensor(struct text *text, const struct rule_tensor *tensor)
{
    tsr__text_printf(text, "|%d%d%d", tensor->host, tensor->absent, tensor->rank);
    for (int d = 0; d < tensor->rank && !tensor->host; d++) {
        tsr__text_printf(text, ",");
        for (int k = 0; k < tensor->dims[d].n; k++)
            tsr__text_printf(text, "%d ", tensor->dims[d].factors[k]);
    }
}

static void key_value(struct text *text, const struct planner *planner, const tsr_node *node,
                      bool out, size_t i)
{
    const tsr_value *v = slot(node, out, i);
    size_t first = i;
    if (!v) {
        tsr__text_printf(text, ";-");
        return;
    }
    for (size_t k = 0; k < i && !out && first == i; k++)
        first = slot(node, false, k) == v ? k : first;
    const struct plan_value *value = &planner->values[tsr__value_id(v)];
    tsr__text_printf(text, ";%d:%d:%zu:", (int)tsr__shapes_of(planner->shapes.full, v).dtype,
                     value->constant, first);
    for (int d = 0; d < value->rank; d++)
        tsr__text_printf(text, "%lld,", (long long)value->shape[d]);
}

static void key_of(struct text *text, const struct planner *planner, const tsr_node *node,
                   const struct rule *rule, const char *whole)
{
    tsr__text_printf(text, "%d%d.", whole != NULL, rule->single);
    for (int factor = 0; factor < rule->n_factors && !whole; factor++) {
        const struct rule_factor *rule_factor = &rule->factors[factor];
        tsr__text_printf(text, "%d %d %lld %s %lld;", (int)rule_factor->kind,
                         (int)rule_factor->combine, (long long)rule_factor->size.value,
                         rule_factor->size.symbol ? rule_factor->size.symbol : "",
                         (long long)rule_factor->unit);
    }
    for (int i = 0; i < rule->n_rewrites && !whole; i++)
        tsr__text_printf(text, "/%d %d %d", (int)rule->rewrites[i].kind, rule->rewrites[i].index,
                         rule->rewrites[i].factor);
    for (int i = 0; i < rule->n_windows && !whole; i++) {
        const struct rule_window *window = &rule->windows[i];
        tsr__text_printf(text, "#%d %d %d %lld %lld %lld %lld %lld %lld", window->input,
                         window->dim, window->factor, (long long)window->from,
                         (long long)window->to, (long long)window->step, (long long)window->shift,
                         (long long)window->reach, (long long)window->per);
    }
    for (int i = 0; i < rule->n_inputs && !whole; i++)
        key_tensor(text, &rule->inputs[i]);
    for (int i = 0; i < rule->n_outputs && !whole; i++)
        key_tensor(text, &rule->outputs[i]);
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        key_value(text, planner, node, false, i);
    tsr__text_printf(text, ">");
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        key_value(text, planner, node, true, i);
}

static bool gives_output(const tsr_node *node)
{
    const tsr_value *first = tsr_node_output_count(node) ? tsr_node_output(node, 0) : NULL;
    return first && tsr_value_is_output(first);
}

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
    strategy->rate = tsr__node_rate(node, planner->shapes.full);
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

struct strategy *tsr__planner_strategy(struct planner *planner, const struct plan_node *pn)
{
    struct text key;
    const tsr_node *node = pn->node;
    const struct rule *rule = pn->rule;
    const char *whole =
        rule->whole ? rule->whole : tsr__rule_immovable(planner->shapes.model, node);
    tsr__text_init(&key, planner->session);
    key_of(&key, planner, node, rule, whole);
    tsr__text_printf(&key, "%d%d%d%a", pn->delays, pn->takes, gives_output(node),
                     tsr__node_count(node, planner->shapes.full));
    if (is_annotated(planner, node))
        tsr__text_printf(&key, "@%lld", (long long)tsr_node_index(node));
    struct strategy *strategy = NULL;
    if (!key.failed) {
        struct str text = {key.p, key.n};
        strategy = tsr__map_get(&planner->cache.strategies, text);
        if (!strategy) {
            void **at =
                tsr__map_at(&planner->cache.strategies, tsr__arena_str(&planner->arena, text));
            strategy = at ? strategy_new(planner, pn, whole) : NULL;
            if (at)
                *at = strategy;
        }
    }
    tsr__text_free(&key);
    return strategy;
}

static bool try_rule(struct making *making, const struct rule *rule, bool out, size_t i,
                     uint32_t layout)
{
    const struct planner *planner = making->planner;
    struct tile_layout **in = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_in + 1);
    struct tile_layout **outs = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_out + 1);
    making->rule = rule;
    if (!rule || !in || !outs)
        return false;
    *(out ? &outs[i] : &in[i]) = tsr__layout_copy(making->arena, planner->layouts.at[layout].tiles);
    return tsr__placement_explicit(making->arena, making->arena, making->node,
                                   planner->shapes.model, rule, planner->machine.n, in, outs, true,
                                   &making->place) &&
           tsr__making_take(making);
}

// False: it was tried before.
static bool is_first_try(struct planner *planner, struct strategy *strategy, const uint32_t key[3])
{
    struct str text = {(const char *)key, 3 * sizeof *key};
    if (strategy->whole || strategy->given || tsr__map_get(&strategy->seen, text))
        return false;
    void **at = tsr__map_at(&strategy->seen, tsr__arena_str(&planner->arena, text));
    if (at)
        *at = strategy;
    return at != NULL;
}

bool tsr__planner_try_layout(struct planner *planner, struct strategy *strategy,
                             const tsr_node *node, bool out, size_t i, uint32_t layout)
{
    uint32_t key[3] = {out, (uint32_t)i, layout};
    struct arena scratch;
    if (!is_first_try(planner, strategy, key))
        return false;
    tsr__arena_init(&scratch, planner->session);
    struct making making = tsr__making(planner, strategy, node, &scratch);
    making.spread = planner->layouts.at[layout].spread;
    bool ok = try_rule(&making, strategy->rule, out, i, layout);
    ok = try_rule(&making, strategy->other, out, i, layout) || ok;
    tsr__arena_free(&scratch);
    return ok;
}

// ---- parts of sums -----------------------------------------------------------------------------

// Inputs that come in parts: those of the value, and with all every one that can and lies so.
static uint32_t *pending_of(struct making *making, const struct candidate *candidate, size_t i,
                            uint32_t layout, bool all)
{
    uint32_t *pending = ARENA_ARRAY(making->arena, uint32_t, making->n_in + 1);
    for (size_t k = 0; pending && k < making->n_in; k++) {
        const tsr_value *value = slot(making->node, false, k);
        bool same = value == slot(making->node, false, i);
        bool can = all && value && candidate->in[k] == candidate->in[i] &&
                   !value_at(making, false, k)->constant &&
                   tsr__sum_fits(making->planner->shapes.model, making->node, k) == SUM_ADDS;
        pending[k] = same || can ? layout : PLAN_NO_LAYOUT;
    }
    return pending;
}

static void try_parts(struct making *making, const uint32_t *in, const uint32_t *pending,
                      const struct parts *parts)
{
    struct planner *planner = making->planner;
    struct tile_layout **ins = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_in + 1);
    struct tile_layout **outs = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_out + 1);
    for (size_t k = 0; ins && k < making->n_in; k++)
        ins[k] = in[k] == PLAN_NO_LAYOUT
                     ? NULL
                     : tsr__layout_copy(making->arena, planner->layouts.at[in[k]].tiles);
    making->pending = pending;
    if (ins && outs && pending &&
        tsr__placement_explicit(making->arena, making->arena, making->node, planner->shapes.model,
                                making->rule, planner->machine.n, ins, outs, true, &making->place))
        (void)tsr__making_take_parts(making, parts);
}

void tsr__planner_try_parts(struct planner *planner, struct strategy *strategy,
                            const tsr_node *node, size_t i, uint32_t layout)
{
    uint32_t key[3] = {2, (uint32_t)i, layout};
    const struct parts *parts = planner->layouts.at[layout].parts;
    enum sum_way way = strategy->takes ? tsr__sum_fits(planner->shapes.model, node, i) : SUM_STOPS;
    struct arena scratch;
    if (way == SUM_STOPS || !is_first_try(planner, strategy, key))
        return;
    tsr__arena_init(&scratch, planner->session);
    for (size_t c = 0, end = strategy->at.n; c < end; c++) {
        if (strategy->at.at[c].in[i] != parts->layout || strategy->at.at[c].reduction)
            continue;
        struct candidate x = strategy->at.at[c]; // the list may move
        struct making making = tsr__making(planner, strategy, node, &scratch);
        try_parts(&making, x.in, pending_of(&making, &x, i, layout, false), parts);
        if (way == SUM_ADDS)
            try_parts(&making, x.in, pending_of(&making, &x, i, layout, true), parts);
    }
    planner->arena.failed = planner->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
}
