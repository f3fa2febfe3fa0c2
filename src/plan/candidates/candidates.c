// SPDX-License-Identifier: Apache-2.0
// candidates.c - one way to run a node: a placement of its rule's factors on the devices becomes
// layouts and a price.
//
// What the parts of a sum give is combined on all devices, or each keeps its share
// (reduce-scatter), or it stays in parts for readers that can add them. Every candidate is laid
// before the solver of the flow, so that it means the same when it is read from the model again.
// Operators are not known here.
//
// Y = X W on devices 0 and 1, X [8, 6] and W [6, 4]; factors m 8, k 6, n 4. The placement cuts k in
// 2, so X lies as {1, 2}, W as {2, 1}, and each device has a Y [8, 4] that is one of two summands.
// The ways to go on from there are one candidate each:
//
//     "k/2"                 AllReduce: Y whole on both                      the 32 sums go to both
//     "k/2 > m"             ReduceScatter: device 1 has rows 4..7 of Y      16 sums go to each
//     "k/2 > first device"  Reduce: Y on device 0, if only the caller reads it
//     "k/2 > parts"         nothing: Y stays in parts, if its readers can take them (partial_sums.c)
#include "plan/candidates/candidates.h"

// Nothing is laid out yet: callers set `place`, then call tsr__making_take. `arena` holds what
// lives no longer than the making; what the candidate keeps is the planner's.
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

// ---- layouts of a placement --------------------------------------------------------------------

// The layouts of a node's tensors under a placement of the rule's factors. Absent tensors stay
// NULL.
static bool project(struct making *making, const struct placement *placement,
                    struct tile_layout **in, struct tile_layout **out)
{
    for (size_t i = 0; i < making->n_in; i++)
        if (tsr_node_input(making->node, i)) {
            in[i] = tsr__placement_project(making->arena, placement, &placement->rule->inputs[i]);
            if (!in[i])
                return false;
        }
    for (size_t i = 0; i < making->n_out; i++)
        if (tsr_node_output(making->node, i)) {
            out[i] = tsr__placement_project(making->arena, placement, &placement->rule->outputs[i]);
            if (!out[i])
                return false;
        }
    return true;
}

// All layouts that x has are those of y.
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
    for (size_t i = 0; i < making->n_in; i++) {
        int64_t k = -1;
        if (making->in[i])
            k = tsr__earlier_reading(making->node, i);
        if (k >= 0 && !tsr__layout_equal(making->in[i], making->in[k]))
            return false;
    }
    return true;
}

// What the flow would make of the specs; out: those that are to be written.
static bool comes_back(struct making *making, struct tile_layout *const *out)
{
    struct tile_layout **in = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_in + 1);
    struct tile_layout **got_in =
        ARENA_ARRAY(making->arena, struct tile_layout *, making->n_in + 1);
    struct tile_layout **got = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_out + 1);
    struct placement again;
    if (!in || !got_in || !got)
        return false;
    for (size_t i = 0; i < making->n_in; i++)
        if (!rule_steers(making->place.rule, SIDE_INPUT, i))
            in[i] = making->in[i];
    return tsr__placement_explicit(making->arena, making->arena, making->node,
                                   making->planner->shapes.model, making->rule,
                                   making->planner->machine.n, in, out, !making->stat, &again) &&
           project(making, &again, got_in, got) && same(in, got_in, making->n_in) &&
           same(making->out, got, making->n_out);
}

// ---- costs -------------------------------------------------------------------------------------

#define LARGEST_PART (-1)

// Operations of the device at that place of the placement, or with LARGEST_PART of the one that has most: 10 rows cut in 4
// are 3 of them.
static double local_work(const struct making *making, int64_t place)
{
    int64_t sizes[RULE_MAX_FACTORS], local[RULE_MAX_FACTORS];
    const struct placement *placement = &making->place;
    tsr__planner_sizes(making->planner->shapes.full, making->node, placement->rule, sizes);
    for (int factor = 0; factor < placement->rule->n_factors; factor++) {
        sizes[factor] = sizes[factor] < 0 ? 1 : sizes[factor]; // not known
        local[factor] = div_up(sizes[factor], placement->cuts[factor]);
        if (place == LARGEST_PART)
            continue;
        struct tile_interval part = placement_part(placement, place, factor, sizes[factor]);
        local[factor] = part.stop - part.start;
    }
    return tsr__node_work(placement->rule, making->strategy->count, sizes, local);
}

// Elements of a window that its part does not have, at worst. A convolution of reach 3 over 8
// elements, padded by 1, cut in 2: the first part has 0..3 and needs 0..4, so one is missing.
static int64_t beyond(const struct rule_window *window, int64_t n, tile_shares shares)
{
    int64_t most = 0;
    for (int64_t j = 0; j < n; j++) {
        struct tile_units units = tsr__share_units(n, shares, j);
        struct window_part part = tsr__window_part(window, units.of, units.first, units.stop);
        int64_t begin = int64_max(tsr__tile_start(window->from, units.of, units.first), part.start);
        int64_t end = int64_min(tsr__tile_start(window->from, units.of, units.stop), part.stop);
        int64_t there = int64_max(end - begin, 0);
        most = int64_max(most, part.stop - part.start - there);
    }
    return most;
}

// Bytes of the largest piece.
static int64_t bytes_in(struct making *making, struct tile_layout *layout,
                        const struct plan_value *value)
{
    uint32_t number = tsr__planner_layout(making->planner, layout);
    return tsr__planner_bytes(making->planner, number, value);
}

// What neighbours give each other, and putting it to what is there.
static int64_t halo_time(struct making *making)
{
    struct planner *planner = making->planner;
    const struct rule *rule = making->place.rule;
    int64_t ps = 0;
    for (int i = 0; i < rule->n_windows; i++) {
        const struct rule_window *window = &rule->windows[i];
        int64_t n = making->place.cuts[window->factor], more = 0;
        if (n > 1)
            more = beyond(window, n, placement_shares(&making->place, window->factor));
        if (more <= 0 || !making->in[window->input] || window->from <= 0)
            continue;
        const struct plan_value *value = value_at(making, SIDE_INPUT, (size_t)window->input);
        int64_t held = bytes_in(making, making->in[window->input], value);
        // held = bytes of one part, which has from / n elements of the windowed dimension: `more`
        // of those.
        double bytes = (double)held * (double)more * (double)n / (double)window->from;
        struct device_group two = {planner->machine.all, 2};
        ps += tsr__planner_combine(planner, TSR_SEND, &two, 1, (int64_t)bytes) +
              tsr__planner_move_time(planner, 2 * ((double)held + bytes));
    }
    return ps;
}

// Bytes of an input that the node reads. What is looked up in (rows of a table) is read as far as
// outputs are made of it.
static double bytes_read(const struct making *making, size_t i, int64_t held, double outputs)
{
    const struct rule *rule = making->place.rule;
    if (rule_steers(rule, SIDE_INPUT, i))
        return 0;
    double read = (double)held * tsr__rule_reads(rule, (int)i);
    if ((int)i < rule->n_inputs && tsr__rule_looks_up(rule, (int)i) && read > outputs)
        return outputs;
    return read;
}

// Bytes that the layout of a value has on a device, or with LARGEST_PART on the one that has most.
static int64_t bytes_at(struct making *making, uint32_t layout, const struct plan_value *value,
                        int64_t place)
{
    if (place == LARGEST_PART)
        return tsr__planner_bytes(making->planner, layout, value);
    return tsr__planner_held(making->planner, making->arena, layout, value,
                             making->place.devices[place]);
}

// Bytes that the device at that place reads and writes. A value that several inputs read is counted once.
static double bytes_moved(struct making *making, const struct candidate *candidate, int64_t place)
{
    double outputs = 0, bytes = 0;
    for (size_t i = 0; i < making->n_out; i++)
        if (tsr_node_output(making->node, i))
            outputs +=
                (double)bytes_at(making, tsr__planner_layout(making->planner, making->out[i]),
                                 value_at(making, SIDE_OUTPUT, i), place);
    for (size_t i = 0; i < making->n_in; i++) {
        if (candidate->in[i] == PLAN_NO_LAYOUT || read_before(making->node, i))
            continue;
        const struct plan_value *value = value_at(making, SIDE_INPUT, i);
        bytes += bytes_read(making, i, bytes_at(making, candidate->in[i], value, place), outputs);
    }
    return bytes + outputs;
}

// What the device takes for what it does at that place; LARGEST_PART: for the largest part.
static int64_t part_time(struct making *making, const struct candidate *candidate, int64_t place,
                         int64_t device)
{
    const struct planner *planner = making->planner;
    int64_t number = tsr__planner_device(planner, device);
    return tsr__price_work(local_work(making, place), making->strategy->kind,
                           bytes_moved(making, candidate, place),
                           &planner->machine.topology->device[number]);
}

// Devices that differ, and parts that are not equal: each device's time is noted, and the one that ends last counts.
static void each_part(struct making *making, struct candidate *candidate)
{
    struct planner *planner = making->planner;
    size_t n = (size_t)planner->machine.n;
    int64_t *each = ARENA_ARRAY(&planner->arena, int64_t, n);
    if (!each)
        return;
    if (making->place.devices) {
        for (size_t i = 0; i < making->place.n_devices; i++)
            each[making->place.devices[i]] =
                part_time(making, candidate, (int64_t)i, making->place.devices[i]);
    } else {
        for (size_t device = 0; device < n; device++)
            each[device] = part_time(making, candidate, LARGEST_PART, (int64_t)device);
    }
    for (size_t device = 0; device < n; device++)
        candidate->compute = int64_max(candidate->compute, each[device]);
    candidate->each = each;
    candidate->n_each = n;
}

static bool has_shares(const struct placement *placement)
{
    for (int factor = 0; factor < placement->rule->n_factors; factor++)
        if (placement_shares(placement, factor))
            return true;
    return false;
}

// The engine runs such a node when it loads the model, and never again: a weight that is transposed.
static bool reads_constants_alone(const struct making *making)
{
    for (size_t i = 0; i < making->n_in; i++)
        if (tsr_node_input(making->node, i) && !value_at(making, SIDE_INPUT, i)->constant)
            return false;
    return true;
}

// Fills compute and weights of the candidate: the slowest of the devices that take part does the
// largest piece.
void tsr__making_cost(struct making *making, struct candidate *candidate)
{
    for (size_t i = 0; i < making->n_in; i++) {
        if (candidate->in[i] == PLAN_NO_LAYOUT || read_before(making->node, i))
            continue;
        const struct plan_value *value = value_at(making, SIDE_INPUT, i);
        if (value->constant)
            candidate->weights += tsr__planner_bytes(making->planner, candidate->in[i], value);
    }
    if (reads_constants_alone(making))
        return;
    if (has_shares(&making->place) || making->planner->machine.unlike) {
        each_part(making, candidate);
        return;
    }
    tsr_topology_device slowest = making->planner->machine.slowest;
    if (making->place.devices)
        slowest =
            tsr__planner_slowest(making->planner, making->place.devices, making->place.n_devices);
    candidate->compute = tsr__price_work(local_work(making, LARGEST_PART), making->strategy->kind,
                                         bytes_moved(making, candidate, LARGEST_PART), &slowest);
}

// ---- one candidate -----------------------------------------------------------------------------

// "4" parts, or "3+1" units where they are not equal.
static struct str parts_text(const struct making *making, const struct placement *placement,
                             int factor)
{
    struct arena *arena = &making->planner->arena;
    int64_t cuts = placement->cuts[factor];
    tile_shares shares = placement_shares(placement, factor);
    if (!shares)
        return tsr__arena_printf(arena, "%lld", (long long)cuts);
    struct str text = STR("");
    for (int64_t j = 0; j < cuts; j++) {
        struct tile_units part = tsr__share_units(cuts, shares, j);
        text = tsr__arena_printf(arena, STR_FMT "%s%lld", STR_ARG(text), j ? "+" : "",
                                 (long long)(part.stop - part.first));
    }
    return text;
}

// "m/4 k/2 > m": the factors that are cut, and what became of the sum.
static struct str name_of(const struct making *making, const char *suffix)
{
    const struct placement *placement = &making->place;
    struct str text = STR("");
    for (int factor = 0; factor < placement->rule->n_factors; factor++) {
        if (placement->cuts[factor] < 2)
            continue;
        struct str parts = parts_text(making, placement, factor);
        text = tsr__arena_printf(&making->planner->arena, STR_FMT "%s%s/" STR_FMT, STR_ARG(text),
                                 text.n ? " " : "", placement->rule->factors[factor].name,
                                 STR_ARG(parts));
    }
    if (!text.n)
        text = STR("whole");
    if (making->pending)
        text = tsr__arena_printf(&making->planner->arena, STR_FMT " of parts", STR_ARG(text));
    if (suffix)
        return tsr__arena_printf(&making->planner->arena, STR_FMT " > %s", STR_ARG(text), suffix);
    return text;
}

static uint32_t number_of(struct making *making, const struct tile_layout *layout)
{
    if (!layout)
        return PLAN_NO_LAYOUT;
    return tsr__planner_layout(making->planner, layout);
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
        candidate->in[i] = number_of(making, making->in[i]);
        if (making->pending && making->pending[i] != PLAN_NO_LAYOUT)
            candidate->in[i] = making->pending[i];
    }
    for (size_t i = 0; i < making->n_out; i++) {
        candidate->out[i] = number_of(making, out[i]);
        candidate->before[i] = PLAN_NO_LAYOUT;
        if (out[i] && making->n_groups)
            candidate->before[i] = tsr__planner_layout(making->planner, making->out[i]);
    }
    return !making->planner->arena.failed;
}

// Two placements may lay out the tensors alike: "m/4" on the line of 4 devices, and on a grid of 2
// x 2 of which m has both axes. The first one stays.
static bool is_new(const struct making *making, const struct candidate *candidate)
{
    for (size_t i = 0; i < making->strategy->at.n; i++) {
        const struct candidate *other = &making->strategy->at.at[i];
        if (memcmp(other->in, candidate->in, making->n_in * sizeof *candidate->in) == 0 &&
            memcmp(other->out, candidate->out, making->n_out * sizeof *candidate->out) == 0)
            return false;
    }
    return true;
}

static void mark_spread(struct planner *planner, const uint32_t *layouts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (layouts[i] != PLAN_NO_LAYOUT)
            planner->layouts.at[layouts[i]].spread = true;
}

// Prices the candidate and adds it to its strategy, unless it is there already or there are enough.
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
    if (making->spread) {
        mark_spread(making->planner, candidate->in, making->n_in);
        mark_spread(making->planner, candidate->out, making->n_out);
    }
}

// What a sum becomes: the collective that combines it, and the word for it in the candidate's name,
// or NULL.
struct combining {
    enum tsr_collective what;
    const char *suffix;
};

// The bytes that combining output i is priced by: those of a summand. A reduce-scatter in unequal parts takes as long as one
// whose parts are all as large as the largest: of 64 KiB in parts of 3 and 1, as one of 96 KiB.
static int64_t combined_bytes(struct making *making, struct tile_layout *const *out, size_t i)
{
    const struct plan_value *value = value_at(making, SIDE_OUTPUT, i);
    if (tsr__layout_shared(out[i]) && !tsr__layout_shared(making->out[i]))
        return (int64_t)making->groups[0].n * bytes_in(making, out[i], value);
    return bytes_in(making, making->out[i], value);
}

// One candidate: the outputs as `out` has them, and the price of combining what the groups hold,
// output by output.
static void add(struct making *making, struct tile_layout *const *out,
                const struct combining *combining)
{
    struct candidate candidate = {0};
    if (making->n_groups)
        candidate.reduction = tsr__collective((int)combining->what)->op;
    if (!tsr__making_number(making, out, &candidate))
        return;
    for (size_t i = 0; i < making->n_out; i++)
        if (making->n_groups && making->out[i])
            candidate.comm +=
                tsr__planner_combine(making->planner, combining->what, making->groups,
                                     making->n_groups, combined_bytes(making, out, i));
    keep(making, &candidate, combining->suffix);
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

// 12 elements in units of 4 (heads) can be cut in 3, but not in 2: the cut at 6 would go through a
// unit.
bool tsr__unit_fits(const struct rule_factor *factor, int64_t size, int64_t cuts)
{
    if (factor->least > 0 && factor->least < cuts)
        return false;
    if (factor->unit == 1)
        return size >= cuts;
    for (int64_t j = 1; j < cuts; j++)
        if (tsr__tile_start(size, cuts, j) % factor->unit)
            return false;
    return size >= cuts;
}

static bool belongs_to(const struct device_group *group, int64_t device, size_t *place)
{
    for (size_t i = 0; i < group->n; i++)
        if (group->devices[i] == device) {
            *place = i;
            return true;
        }
    return false;
}

// The placement of the making with that factor cut among the members of each group, in shares or (0) in equal parts: the
// first has the first part. False: out of memory.
static bool scatter_along(struct making *making, int factor, tile_shares shares,
                          struct placement *out)
{
    size_t n = (size_t)making->place.rule->n_factors, place;
    *out = making->place;
    out->cuts = ARENA_ARRAY(making->arena, int64_t, n + 1);
    out->coords = ARENA_ARRAY(making->arena, int64_t, out->n_devices * n + 1);
    out->shares = ARENA_ARRAY(making->arena, tile_shares, n + 1);
    if (!out->cuts || !out->coords || !out->shares)
        return false;
    for (int i = 0; i < making->place.rule->n_factors; i++)
        out->shares[i] = placement_shares(&making->place, i);
    out->shares[factor] = shares;
    memcpy(out->cuts, making->place.cuts, n * sizeof *out->cuts);
    memcpy(out->coords, making->place.coords, out->n_devices * n * sizeof *out->coords);
    out->cuts[factor] = (int64_t)making->groups[0].n;
    for (size_t device = 0; device < out->n_devices; device++)
        for (size_t g = 0; g < making->n_groups; g++)
            if (belongs_to(&making->groups[g], out->devices[device], &place))
                out->coords[device * n + (size_t)factor] = (int64_t)place;
    return true;
}

// The factor has a unit for each share, and no part ends inside of what must stay together.
static bool shares_fit(const struct rule_factor *factor, int64_t size, int64_t parts,
                       tile_shares shares)
{
    int64_t units = tsr__units_of(parts, shares);
    if (size < units || (factor->least > 0 && factor->least < units))
        return false;
    for (int64_t j = 1; j < parts; j++)
        if (tsr__share_start(size, parts, shares, j) % factor->unit)
            return false;
    return true;
}

// Each member of a group keeps its part of that factor of the only output. In unequal parts that are so large that all
// might as well get everything, it is left to the all-reduce: what partition would write for both.
static void add_scattered_along(struct making *making, int factor, tile_shares shares)
{
    const struct rule *rule = making->place.rule;
    const struct plan_value *value = value_at(making, SIDE_OUTPUT, 0);
    struct placement scattered;
    struct tile_layout **out = ARENA_ARRAY(making->arena, struct tile_layout *, making->n_out + 1);
    if (!out || !scatter_along(making, factor, shares, &scattered))
        return;
    out[0] = tsr__placement_project(making->arena, &scattered, &rule->outputs[0]);
    if (!out[0] || tsr__layout_equal(out[0], making->out[0]) || !comes_back(making, out))
        return;
    struct combining combining = {TSR_REDUCE_SCATTER, rule->factors[factor].name};
    if (shares) {
        if (combined_bytes(making, out, 0) >= 2 * bytes_in(making, making->out[0], value))
            return;
        struct str parts = parts_text(making, &scattered, factor);
        combining.suffix = tsr__arena_printf(&making->planner->arena, "%s/" STR_FMT,
                                             combining.suffix, STR_ARG(parts))
                               .p;
    }
    if (combining.suffix)
        add(making, out, &combining);
}

// The one group that adds up has all devices, in the order in which unequal parts are dealt out.
static bool all_add_up(const struct making *making)
{
    const struct planner_machine *machine = &making->planner->machine;
    return making->n_groups == 1 && making->groups[0].n == (size_t)machine->n &&
           memcmp(making->groups[0].devices, machine->all,
                  (size_t)machine->n * sizeof *machine->all) == 0;
}

// The same, but each member of a group keeps a share along one factor of the only output: each factor that is not cut yet
// may be the one that is shared out, in equal parts or in those that fit unlike devices.
static void add_scattered(struct making *making)
{
    const struct rule *rule = making->place.rule;
    const struct planner_machine *machine = &making->planner->machine;
    int64_t sizes[RULE_MAX_FACTORS], parts = (int64_t)making->groups[0].n;
    int n_shares = all_add_up(making) ? tsr__mixed_shares(machine) : 0;
    tsr__planner_sizes(making->planner->shapes.told, making->node, rule, sizes);
    for (int i = 0; i < rule->n_factors; i++) {
        const struct rule_factor *factor = &rule->factors[i];
        if (factor->kind != FACTOR_PAR || making->place.cuts[i] > 1)
            continue;
        if (tsr__unit_fits(factor, sizes[i], parts))
            add_scattered_along(making, i, 0);
        for (int k = 0; k < n_shares; k++)
            if (shares_fit(factor, sizes[i], parts, machine->shares[k]))
                add_scattered_along(making, i, machine->shares[k]);
    }
}

static size_t outputs_of(const struct making *making)
{
    size_t n = 0;
    for (size_t i = 0; i < making->n_out; i++)
        n += tsr_node_output(making->node, i) != NULL;
    return n;
}

// Statistics over a cut factor: the node becomes simpler ones, whose sums over devices are combined.
static void add_stat(struct making *making)
{
    struct candidate candidate = {.reduction = tsr__collective(COMM_ALL_REDUCE)->op};
    if (making->n_groups || !making->out[0] || !tsr__making_expands(making) ||
        !tsr__making_number(making, making->out, &candidate))
        return;
    struct expanded_price price = tsr__making_expanded(making);
    candidate.reductions = price.sums;
    candidate.comm = price.comm;
    // `keep` may have refused it; it prices the node as it stands.
    size_t before = making->strategy->at.n;
    keep(making, &candidate, NULL);
    if (making->strategy->at.n > before) {
        making->strategy->at.at[before].compute = price.compute;
        making->strategy->at.at[before].each = NULL;
    }
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
        add(making, out, &(struct combining){TSR_REDUCE, "first device"});
}

// All ways to combine, or not.
static void add_all(struct making *making)
{
    if (making->stat) {
        add_stat(making);
        return;
    }
    bool one = outputs_of(making) == 1 && making->out[0];
    add(making, making->out, &(struct combining){TSR_ALL_REDUCE, NULL});
    if (!making->n_groups || !one)
        return;
    add_scattered(making);
    if (making->strategy->gives)
        add_rooted(making);
    if (making->strategy->delays)
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

// True: at least one candidate was added.
bool tsr__making_take(struct making *making)
{
    size_t before = making->strategy->at.n;
    if (lay_out(making))
        add_all(making);
    return making->strategy->at.n > before;
}

// The node itself must make no sum of its own, and have one output: the parts that came in go on to
// that.
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
