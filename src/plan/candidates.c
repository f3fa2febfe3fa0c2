// SPDX-License-Identifier: Apache-2.0
// candidates.c - one way to run a node: a placement of its rule's factors on the devices becomes layouts and a price.
//
// What the parts of a sum give is combined on all devices, or each keeps its share (reduce-scatter), or it stays in
// parts for readers that can add them. Every candidate is laid before the solver of the flow, so that it means the same
// when it is read from the model again. Operators are not known here.
#include "plan/candidates.h"

struct making tsr__making(struct planner *planner, struct strategy *strategy, const tsr_node *node,
                          struct arena *arena)
{
    return (struct making){.planner = planner,
                           .strategy = strategy,
                           .rule = strategy->rule,
                           .node = node,
                           .arena = arena,
                           .n_in = tsr_node_input_count(node),
                           .n_out = tsr_node_output_count(node)};
}

static bool steers(const struct making *making, bool out, size_t i)
{
    const struct rule *rule = making->place.rule;
    return (int)i < (out ? rule->n_outputs : rule->n_inputs) &&
           (out ? rule->outputs : rule->inputs)[i].host;
}

// ---- layouts of a placement --------------------------------------------------------------------

static bool project(struct making *making, const struct placement *placement,
                    struct tile_layout **in, struct tile_layout **out)
{
    for (size_t i = 0; i < making->n_in + making->n_out; i++) {
        bool is_out = i >= making->n_in;
        size_t k = is_out ? i - making->n_in : i;
        if (!slot(making->node, is_out, k))
            continue;
        const struct rule_tensor *tensor =
            &(is_out ? placement->rule->outputs : placement->rule->inputs)[k];
        struct tile_layout *layout = tsr__placement_project(making->arena, placement, tensor);
        if (!layout)
            return false;
        *(is_out ? &out[k] : &in[k]) = layout;
    }
    return true;
}

static bool same(struct tile_layout *const *x, struct tile_layout *const *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] && !tsr__layout_equal(x[i], y[i]))
            return false;
    return true;
}

// A value that is read twice has one sharding at the node.
static bool readings_agree(const struct making *making)
{
    for (size_t i = 0; i < making->n_in; i++)
        for (size_t k = 0; making->in[i] && k < i; k++)
            if (slot(making->node, false, k) == slot(making->node, false, i) &&
                !tsr__layout_equal(making->in[i], making->in[k]))
                return false;
    return true;
}

// What the flow would make of the specs; out: those that are to be written.
static bool comes_back(struct making *making, struct tile_layout *const *out)
{
    struct tile_layout **in = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_in + 1);
    struct tile_layout **got_in =
        ARENA_ARRAY(making->arena, struct tile_layout *, making->n_in + 1);
    struct tile_layout **got = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_out + 1);
    struct placement q;
    if (!in || !got_in || !got)
        return false;
    for (size_t i = 0; i < making->n_in; i++)
        in[i] = steers(making, false, i) ? NULL : making->in[i];
    return tsr__placement_explicit(making->arena, making->arena, making->node,
                                   making->planner->shapes.model, making->rule,
                                   making->planner->machine.n, in, out, !making->stat, &q) &&
           project(making, &q, got_in, got) && same(in, got_in, making->n_in) &&
           same(making->out, got, making->n_out);
}

// ---- costs -------------------------------------------------------------------------------------

static bool read_before(const struct making *making, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (slot(making->node, false, k) == slot(making->node, false, i))
            return true;
    return false;
}

static double local_work(const struct making *making)
{
    int64_t sizes[RULE_MAX_FACTORS], local[RULE_MAX_FACTORS];
    const struct placement *placement = &making->place;
    tsr__planner_sizes(making->planner->shapes.full, making->node, placement->rule, sizes);
    for (int factor = 0; factor < placement->rule->n_factors; factor++) {
        sizes[factor] = sizes[factor] < 0 ? 1 : sizes[factor];
        local[factor] = (sizes[factor] + placement->cuts[factor] - 1) / placement->cuts[factor];
    }
    return tsr__node_work(placement->rule, making->strategy->count, sizes, local);
}

// Elements of a window that its part does not have, at worst.
static int64_t beyond(const struct rule_window *window, int64_t n)
{
    int64_t most = 0;
    for (int64_t j = 0; j < n; j++) {
        struct window_part q = tsr__window_part(window, n, j);
        int64_t begin = tsr__tile_start(window->from, n, j),
                end = tsr__tile_start(window->from, n, j + 1);
        begin = begin > q.start ? begin : q.start;
        end = end < q.stop ? end : q.stop;
        int64_t missing = q.stop - q.start - (end > begin ? end - begin : 0);
        most = missing > most ? missing : most;
    }
    return most;
}

// What neighbours give each other, and putting it to what is there.
static int64_t halo_time(struct making *making)
{
    const struct rule *rule = making->place.rule;
    int64_t ps = 0;
    for (int i = 0; i < rule->n_windows; i++) {
        const struct rule_window *window = &rule->windows[i];
        int64_t n = making->place.cuts[window->factor], more = n > 1 ? beyond(window, n) : 0;
        if (more <= 0 || !making->in[window->input] || window->from <= 0)
            continue;
        const struct plan_value *value = value_at(making, false, (size_t)window->input);
        int64_t held = tsr__planner_bytes(
            making->planner, tsr__planner_layout(making->planner, making->in[window->input]),
            value);
        double bytes = (double)held * (double)more * (double)n / (double)window->from;
        struct device_group two = {making->planner->machine.all, 2};
        ps += tsr__planner_combine(making->planner, TSR_SEND, &two, 1, (int64_t)bytes) +
              tsr__planner_move_time(making->planner, 2 * ((double)held + bytes));
    }
    return ps;
}

void tsr__making_cost(struct making *making, struct candidate *candidate)
{
    double outputs = 0, bytes = 0;
    for (size_t i = 0; i < making->n_out; i++)
        if (slot(making->node, true, i))
            outputs += (double)tsr__planner_bytes(
                making->planner, tsr__planner_layout(making->planner, making->out[i]),
                value_at(making, true, i));
    for (size_t i = 0; i < making->n_in; i++) {
        if (candidate->in[i] == PLAN_NO_LAYOUT || read_before(making, i))
            continue;
        const struct plan_value *value = value_at(making, false, i);
        int64_t held = tsr__planner_bytes(making->planner, candidate->in[i], value);
        double read = (double)held * tsr__rule_reads(making->place.rule, (int)i);
        if ((int)i < making->place.rule->n_inputs &&
            tsr__rule_looks_up(making->place.rule, (int)i) && read > outputs)
            read = outputs;
        bytes += steers(making, false, i) ? 0 : read;
        candidate->weights += value->constant ? held : 0;
    }
    candidate->compute = tsr__planner_compute(making->planner, local_work(making),
                                              making->strategy->rate, bytes + outputs);
}

// ---- one candidate -----------------------------------------------------------------------------

static struct str name_of(const struct making *making, const char *suffix)
{
    const struct placement *placement = &making->place;
    struct str text = STR("");
    for (int factor = 0; factor < placement->rule->n_factors; factor++)
        if (placement->cuts[factor] > 1)
            text = tsr__arena_printf(&making->planner->arena, STR_FMT "%s%s/%lld", STR_ARG(text),
                                     text.n ? " " : "", placement->rule->factors[factor].name,
                                     (long long)placement->cuts[factor]);
    if (!text.n)
        text = STR("whole");
    if (making->pending)
        text = tsr__arena_printf(&making->planner->arena, STR_FMT " of parts", STR_ARG(text));
    if (suffix)
        return tsr__arena_printf(&making->planner->arena, STR_FMT " > %s", STR_ARG(text), suffix);
    return text;
}

// Numbers of the layouts; outputs as given.
bool tsr__making_number(struct making *making, struct tile_layout *const *out,
                        struct candidate *candidate)
{
    candidate->in = ARENA_ARRAY(&making->planner->arena, uint32_t, making->n_in + 1);
    candidate->out = ARENA_ARRAY(&making->planner->arena, uint32_t, making->n_out + 1);
    candidate->before = ARENA_ARRAY(&making->planner->arena, uint32_t, making->n_out + 1);
    if (!candidate->in || !candidate->out || !candidate->before)
        return false;
    for (size_t i = 0; i < making->n_in; i++) {
        candidate->in[i] =
            making->in[i] ? tsr__planner_layout(making->planner, making->in[i]) : PLAN_NO_LAYOUT;
        if (making->pending && making->pending[i] != PLAN_NO_LAYOUT)
            candidate->in[i] = making->pending[i];
    }
    for (size_t i = 0; i < making->n_out; i++) {
        candidate->out[i] = out[i] ? tsr__planner_layout(making->planner, out[i]) : PLAN_NO_LAYOUT;
        if (out[i] && making->n_groups)
            candidate->before[i] = tsr__planner_layout(making->planner, making->out[i]);
        else
            candidate->before[i] = PLAN_NO_LAYOUT;
    }
    return !making->planner->arena.failed;
}

static bool is_new(const struct making *making, const struct candidate *c)
{
    for (size_t i = 0; i < making->strategy->at.n; i++) {
        const struct candidate *o = &making->strategy->at.at[i];
        if (memcmp(o->in, c->in, making->n_in * sizeof *c->in) == 0 &&
            memcmp(o->out, c->out, making->n_out * sizeof *c->out) == 0)
            return false;
    }
    return true;
}

static void keep(struct making *making, struct candidate *candidate, const char *suffix)
{
    if (making->strategy->at.n >= PLAN_MAX_CANDIDATES || !is_new(making, candidate))
        return;
    tsr__making_cost(making, candidate);
    int64_t halo = halo_time(making);
    candidate->comm += halo;
    candidate->halo = halo > 0;
    for (int factor = 0; factor < making->place.rule->n_factors; factor++)
        candidate->cut = candidate->cut || making->place.cuts[factor] > 1;
    candidate->name = name_of(making, suffix);
    struct candidate *at = vec_push(&making->planner->arena, &making->strategy->at);
    if (at)
        *at = *candidate;
    for (size_t i = 0; making->spread && i < making->n_in + making->n_out; i++) {
        uint32_t l = i < making->n_in ? candidate->in[i] : candidate->out[i - making->n_in];
        if (l != PLAN_NO_LAYOUT)
            making->planner->layouts.at[l].spread = true;
    }
}

static void add(struct making *making, struct tile_layout *const *out, enum tsr_collective what,
                const char *suffix)
{
    struct candidate candidate = {.reduction =
                                      making->n_groups ? tsr__collective((int)what)->op : NULL};
    if (!tsr__making_number(making, out, &candidate))
        return;
    for (size_t i = 0; i < making->n_out && making->n_groups; i++)
        if (making->out[i])
            candidate.comm += tsr__planner_combine(
                making->planner, what, making->groups, making->n_groups,
                tsr__planner_bytes(making->planner,
                                   tsr__planner_layout(making->planner, making->out[i]),
                                   value_at(making, true, i)));
    keep(making, &candidate, suffix);
}

// The same, and the sum stays in parts.
static void add_parts(struct making *making)
{
    struct candidate candidate = {0};
    if (making->combine != COMBINE_SUM || !tsr__making_number(making, making->out, &candidate) ||
        !tsr__groups_share(making->groups, making->n_groups, making->out[0]))
        return;
    candidate.before[0] = PLAN_NO_LAYOUT;
    candidate.out[0] =
        tsr__planner_parts(making->planner, candidate.out[0], making->groups, making->n_groups);
    if (candidate.out[0] != PLAN_NO_LAYOUT)
        keep(making, &candidate, "parts");
}

bool tsr__unit_fits(const struct rule_factor *factor, int64_t size, int64_t cuts)
{
    if (factor->least > 0 && factor->least < cuts)
        return false;
    for (int64_t j = 1; j < cuts && factor->unit != 1; j++)
        if (tsr__tile_start(size, cuts, j) % factor->unit)
            return false;
    return size >= cuts;
}

// The same, but each member of a group keeps a share along one factor of the only output.
static void add_scattered(struct making *making)
{
    struct placement q = making->place;
    int n = q.rule->n_factors;
    int64_t sizes[RULE_MAX_FACTORS], parts = (int64_t)making->groups[0].n;
    tsr__planner_sizes(making->planner->shapes.told, making->node, q.rule, sizes);
    for (int f = 0; f < n; f++) {
        const struct rule_factor *factor = &q.rule->factors[f];
        if (factor->kind != FACTOR_PAR || making->place.cuts[f] > 1 ||
            !tsr__unit_fits(factor, sizes[f], parts))
            continue;
        q.cuts = ARENA_ARRAY(making->arena, int64_t, (size_t)n + 1);
        q.coords = ARENA_ARRAY(making->arena, int64_t, q.n_devices * (size_t)n + 1);
        struct tile_layout **out =
            ARENA_ARRAY(making->arena, struct tile_layout *, making->n_out + 1);
        if (!q.cuts || !q.coords || !out)
            return;
        memcpy(q.cuts, making->place.cuts, (size_t)n * sizeof *q.cuts);
        memcpy(q.coords, making->place.coords, q.n_devices * (size_t)n * sizeof *q.coords);
        q.cuts[f] = parts;
        for (size_t g = 0; g < making->n_groups; g++)
            for (size_t i = 0; i < making->groups[g].n; i++)
                for (size_t device = 0; device < q.n_devices; device++)
                    if (q.devices[device] == making->groups[g].devices[i])
                        q.coords[device * (size_t)n + (size_t)f] = (int64_t)i;
        out[0] = tsr__placement_project(making->arena, &q, &q.rule->outputs[0]);
        if (out[0] && !tsr__layout_equal(out[0], making->out[0]) && comes_back(making, out))
            add(making, out, TSR_REDUCE_SCATTER, factor->name);
    }
}

static size_t outputs_of(const struct making *making)
{
    size_t n = 0;
    for (size_t i = 0; i < making->n_out; i++)
        n += slot(making->node, true, i) != NULL;
    return n;
}

// Statistics over a cut factor are combined twice: a greatest and a sum, a mean and a variance; a number for each row.
// The simpler nodes pass over the values several times.
#define STAT_SUMS   2
#define STAT_PASSES 4
static void add_stat(struct making *making)
{
    struct candidate candidate = {.reduction = tsr__collective(COMM_ALL_REDUCE)->op,
                                  .reductions = STAT_SUMS};
    struct device_group all = {making->planner->machine.all, (size_t)making->planner->machine.n};
    int64_t sizes[RULE_MAX_FACTORS], rows = 0;
    if (making->n_groups || !making->out[0] || !tsr__making_expands(making) ||
        !tsr__making_number(making, making->out, &candidate))
        return;
    tsr__planner_sizes(making->planner->shapes.full, making->node, making->rule, sizes);
    for (int factor = 0; factor < making->rule->n_factors; factor++)
        if (making->rule->factors[factor].kind == FACTOR_STAT && making->place.cuts[factor] > 1 &&
            sizes[factor] > 0)
            rows = tsr__planner_bytes(making->planner,
                                      tsr__planner_layout(making->planner, making->in[0]),
                                      value_at(making, false, 0)) *
                   making->place.cuts[factor] / sizes[factor];
    candidate.comm =
        STAT_SUMS * tsr__planner_combine(making->planner, TSR_ALL_REDUCE, &all, 1, rows);
    size_t before = making->strategy->at.n;
    keep(making, &candidate, NULL);
    if (making->strategy->at.n > before)
        making->strategy->at.at[before].compute *= STAT_PASSES;
}

// A sum that only the caller reads goes to the device that gives it, not to all.
static void add_rooted(struct making *making)
{
    struct tile_layout **out = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_out + 1);
    const struct tile_layout *whole = making->out[0];
    if (!out || making->n_groups != 1 || !tsr__layout_is_whole(whole) ||
        making->groups[0].devices[0] != making->planner->machine.all[0])
        return;
    out[0] = tsr__layout_whole(making->arena, whole->rank, making->planner->machine.all, 1);
    if (out[0] && comes_back(making, out))
        add(making, out, TSR_REDUCE, "first device");
}

// All ways to combine, or not.
static void add_all(struct making *making)
{
    if (making->stat) {
        add_stat(making);
        return;
    }
    bool one = outputs_of(making) == 1 && making->out[0];
    add(making, making->out, TSR_ALL_REDUCE, NULL);
    if (making->n_groups && one)
        add_scattered(making);
    if (making->n_groups && one && making->strategy->gives)
        add_rooted(making);
    if (making->n_groups && one && making->strategy->delays)
        add_parts(making);
}

// Layouts by the placement of making, which must come back from them.
static bool lay_out(struct making *making)
{
    making->in = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_in + 1);
    making->out = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_out + 1);
    making->n_groups = 0;
    return making->in && making->out && project(making, &making->place, making->in, making->out) &&
           readings_agree(making) && comes_back(making, making->out) &&
           tsr__placement_groups(making->arena, &making->place, &making->groups, &making->n_groups,
                                 &making->combine);
}

bool tsr__making_take(struct making *making)
{
    size_t before = making->strategy->at.n;
    if (lay_out(making))
        add_all(making);
    return making->strategy->at.n > before;
}

bool tsr__making_take_parts(struct making *making, const struct parts *parts)
{
    size_t before = making->strategy->at.n;
    if (!lay_out(making) || making->n_groups || outputs_of(making) != 1 || !making->out[0] ||
        !tsr__groups_share(parts->groups, parts->n, making->out[0]))
        return false;
    making->groups = (struct device_group *)parts->groups;
    making->n_groups = parts->n;
    making->combine = COMBINE_SUM;
    add_all(making);
    return making->strategy->at.n > before;
}
