// SPDX-License-Identifier: Apache-2.0
// windows.c - what the devices of a placement read of an input that a node reads in windows, as a
// convolution does, and the time in which they get it.
#include "plan/candidates/candidates.h"

#include <math.h>

// ---- windows that cost nothing -----------------------------------------------------------------

#define MOST_PRODUCERS 8 // longest chain of nodes that compute windows for a reader (relayout.c)

// True if the windows along an axis of the value cost nothing: the value has one reader, and its
// elements along the axis come from constants. Each rank then stores the weights of its own
// windows.
static bool is_made_in_windows(const struct planner *planner, struct arena *arena,
                               const tsr_value *value, int axis, int depth)
{
    const tsr_node *node = tsr_value_producer(value);
    if (!node || depth > MOST_PRODUCERS || tsr_value_use_count(value) != 1 ||
        tsr_value_is_output(value) || tsr_node_output_count(node) != 1)
        return false;
    const struct rule *rule = tsr__rule_of(arena, node, planner->shapes.model);
    if (!rule || rule->n_outputs < 1 || axis >= rule->outputs[0].rank ||
        rule->outputs[0].dims[axis].n != 1)
        return false;
    int factor = rule->outputs[0].dims[axis].factors[0];
    if (!tsr__rule_selects(rule, factor))
        return false;
    bool found = false;
    for (size_t i = 0; i < tsr_node_input_count(node) && (int)i < rule->n_inputs; i++) {
        const struct rule_tensor *tensor = &rule->inputs[i];
        const tsr_value *input = tsr_node_input(node, i);
        for (int k = 0; input && !tensor->host && k < tensor->rank; k++) {
            if (tensor->dims[k].n < 1 || tensor->dims[k].factors[0] != factor)
                continue;
            if (!planner->values[tsr__value_id(input)].constant &&
                !is_made_in_windows(planner, arena, input, k, depth + 1))
                return false;
            found = true;
        }
    }
    return found;
}

bool tsr__window_is_free(const struct planner *planner, struct arena *arena, const tsr_node *node,
                         const struct rule_window *window)
{
    const tsr_value *value = tsr_node_input(node, (size_t)window->input);
    return value && is_made_in_windows(planner, arena, value, window->dim, 0);
}

// ---- windows -----------------------------------------------------------------------------------

// What the devices need for the windows of an input, as multiples of the largest shard.
struct input_windows {
    struct candidate_builder *builder;
    int input;
    double reach; // largest number of elements that a device needs
    double more;  // largest number of elements that a device needs from its neighbours
    bool inside;  // the windows of some device have fewer elements than its shard
};

// Elements of one dimension that shard j needs, and those of them that are in the shard.
struct window_part_need {
    int64_t reach, own, shard;
};

// Adds up the windows of shard j along a dimension of the input. Example: a convolution with kernel
// 3 and padding 1 over 8 elements in 2 shards. The first shard has 0..3 and needs 0..4: `reach` is
// 5, `own` 4. Returns the number of shards; 0: the dimension has no windows or is not sharded.
static int64_t need_along(const struct input_windows *windows, int dim, int64_t j,
                          struct window_part_need *out)
{
    const struct placement *place = &windows->builder->place;
    int64_t n = 0;
    *out = (struct window_part_need){0};
    for (int i = 0; i < place->rule->n_windows; i++) {
        const struct rule_window *window = &place->rule->windows[i];
        int64_t cuts = place->cuts[window->factor];
        if (window->input != windows->input || window->dim != dim || cuts < 2 || window->from <= 0)
            continue;
        n = cuts;
        struct tile_units units = tsr__share_units(n, placement_shares(place, window->factor), j);
        struct window_part part = tsr__window_part(window, units.of, units.first, units.stop);
        int64_t first = tsr__tile_start(window->from, units.of, units.first);
        int64_t stop = tsr__tile_start(window->from, units.of, units.stop);
        out->reach += part.stop - part.start;
        out->own += int64_max(int64_min(stop, part.stop) - int64_max(first, part.start), 0);
        out->shard = stop - first;
    }
    return n;
}

// Compares what each device needs: `reach` and `own` are products over the dimensions before `dim`.
static void compare_needs(struct input_windows *windows, int dim, double reach, double own)
{
    struct window_part_need need;
    if (dim == windows->builder->place.rule->inputs[windows->input].rank) {
        windows->reach = fmax(windows->reach, reach);
        windows->more = fmax(windows->more, reach - own);
        return;
    }
    int64_t n = need_along(windows, dim, 0, &need), most = int64_max(need.shard, 1);
    if (n == 0) {
        compare_needs(windows, dim + 1, reach, own);
        return;
    }
    for (int64_t j = 1; j < n; j++) {
        (void)need_along(windows, dim, j, &need);
        most = int64_max(most, need.shard);
    }
    double largest = (double)most;
    for (int64_t j = 0; j < n; j++) {
        (void)need_along(windows, dim, j, &need);
        windows->inside = windows->inside || need.own < need.shard;
        compare_needs(windows, dim + 1, reach * (double)need.reach / largest,
                      own * (double)need.own / largest);
    }
}

// Returns the coordinate of the device with index `place` in the placement along the windows of a
// dimension of the input; -1: it has none.
static int64_t window_coord(const struct input_windows *windows, int dim, int64_t place)
{
    const struct placement *at = &windows->builder->place;
    for (int i = 0; i < at->rule->n_windows; i++) {
        const struct rule_window *window = &at->rule->windows[i];
        if (window->input == windows->input && window->dim == dim && at->cuts[window->factor] > 1)
            return at->coords[place * at->rule->n_factors + window->factor];
    }
    return -1;
}

double tsr__window_reach(struct candidate_builder *builder, size_t input, int64_t place)
{
    struct input_windows windows = {.builder = builder, .input = (int)input};
    const struct rule *rule = builder->place.rule;
    struct window_part_need need;
    double reach = 1;
    if (!rule->n_windows || (int)input >= rule->n_inputs || !builder->in[input])
        return 1;
    if (place == LARGEST_PART) {
        compare_needs(&windows, 0, 1, 1);
        return windows.reach;
    }
    for (int dim = 0; dim < rule->inputs[input].rank; dim++) {
        int64_t j = window_coord(&windows, dim, place);
        if (j >= 0 && need_along(&windows, dim, j, &need) && need.shard > 0)
            reach *= (double)need.reach / (double)need.shard;
    }
    return reach;
}

// True if producers compute the windows of the input that are beyond the shards.
static bool windows_are_free(const struct input_windows *windows)
{
    const struct candidate_builder *builder = windows->builder;
    const struct rule *rule = builder->place.rule;
    for (int i = 0; i < rule->n_windows; i++)
        if (rule->windows[i].input == windows->input &&
            builder->place.cuts[rule->windows[i].factor] > 1 &&
            !tsr__window_is_free(builder->planner, builder->arena, builder->node,
                                 &rule->windows[i]))
            return false;
    return true;
}

void tsr__builder_add_windows(struct candidate_builder *builder, int input,
                              struct candidate *candidate)
{
    struct planner *planner = builder->planner;
    struct input_windows windows = {.builder = builder, .input = input};
    if (!builder->in[input])
        return;
    compare_needs(&windows, 0, 1, 1);
    const struct plan_value *value = value_at(builder, SIDE_INPUT, (size_t)input);
    double held = (double)tsr__builder_bytes(builder, builder->in[input], value);
    double bytes = held * windows.reach;
    struct device_group two = {planner->machine.all, 2};
    if (windows.more > 0) {
        candidate->halos++;
        *(windows_are_free(&windows) ? &candidate->free_halo : &candidate->halo) +=
            tsr__planner_combine(planner, TSR_SEND, &two, 1, whole_number(held * windows.more)) +
            tsr__planner_move_time(planner, 2 * bytes);
    } else if (windows.inside) {
        candidate->crop += tsr__work_cost(bytes * 8 / value->bits,
                                          tsr__slice_kind(planner->machine.topology, value),
                                          2 * bytes, &planner->machine.slowest);
    }
}
