// SPDX-License-Identifier: Apache-2.0
// resharding_cost.c - predicts the time of resharding a value: the steps of the resharding planner,
// each with its cost on the topology, and the copying of slices. Times are cached by layouts and
// shape.
//
//     Example: float32 [8, 6] on two devices. From {2, 1} (4 rows, 96 bytes each) to {1, 2} (3
//     columns each) is one AllToAll, charged by the bytes of all devices before the step: 192. From
//     {2, 1} to replicated is one AllGather, charged by the bytes of each device after the step:
//     192. From replicated to {2, 1} nothing is sent; each device slices 96 bytes out of its copy.
#include "plan/costs/planner.h"

#define KEY_BYTES 1024

int64_t tsr__planner_move_time(const struct planner *planner, double bytes)
{
    double ps = bytes / planner->machine.slowest.bandwidth * 1e12;
    return whole_number(ps);
}

// Returns the time of a collective that all groups run at the same time. Groups with another size
// than the first are ignored.
int64_t tsr__planner_combine(struct planner *planner, enum tsr_collective what,
                             const struct device_group *groups, size_t n, int64_t bytes)
{
    size_t size = n ? groups[0].n : 0, count = 0;
    int *devices = ARENA_ARRAY(&planner->arena, int, n *size + 1);
    if (!devices)
        return PLAN_NEVER;
    for (size_t g = 0; g < n; g++) {
        if (groups[g].n != size)
            continue;
        for (size_t i = 0; i < size; i++)
            devices[count++] = (int)tsr__planner_device(planner, groups[g].devices[i]);
    }
    if (size < 2)
        return 0;
    struct topology_groups all = {(int)(count / size), (int)size, devices};
    for (int g = 0; planner->link_load && g < all.count; g++)
        tsr__topology_load(planner->machine.topology, what,
                           &(struct topology_groups){1, all.size, devices + g * all.size}, bytes,
                           planner->link_load);
    return tsr__collective_cost(planner->machine.topology, what, &all, bytes);
}

// Lists the devices that store data before or after the resharding, and returns their number.
static size_t takers_of(const struct planner *planner, const struct tile_layout *before,
                        const struct tile_layout *after, int64_t *out)
{
    size_t n = 0;
    for (int64_t device = 0; device < planner->machine.n; device++)
        if (tsr__layout_has_device(before, device) || tsr__layout_has_device(after, device))
            out[n++] = device;
    return n;
}

// Returns the time of an all-to-all among the devices of both layouts. `bytes` is what the busiest
// device sends or receives.
static int64_t exchange_time(struct planner *planner, const struct tile_layout *before,
                             const struct tile_layout *after, int64_t bytes)
{
    struct arena scratch = {.session = planner->session};
    int64_t *devices = ARENA_ARRAY(&scratch, int64_t, (size_t)planner->machine.n), ps = PLAN_NEVER;
    if (!devices)
        goto free_scratch;
    struct device_group all = {devices, takers_of(planner, before, after, devices)};
    double n = (double)all.n;
    ps = 0;
    if (all.n > 1)
        ps = tsr__planner_combine(planner, TSR_ALL_TO_ALL, &all, 1,
                                  whole_number((double)bytes * n * n / (n - 1)));
free_scratch:
    tsr__arena_free(&scratch);
    return ps;
}

// Returns the time of slicing unequal parts: each device slices its own part, and the last device
// to finish determines the time.
static int64_t shared_slice_time(struct planner *planner, const struct plan_value *value,
                                 uint32_t layout)
{
    int64_t longest = 0;
    struct work_kind kind = tsr__slice_kind(planner->machine.topology, value);
    struct arena scratch = {.session = planner->session};
    for (int64_t device = 0; device < planner->machine.n; device++) {
        double bytes = (double)tsr__planner_held(planner, &scratch, layout, value, device);
        int64_t number = tsr__planner_device(planner, device);
        int64_t takes = tsr__work_cost(bytes * 8 / value->bits, kind, 2 * bytes,
                                       &planner->machine.topology->device[number]);
        if (bytes > 0)
            longest = int64_max(longest, takes);
    }
    planner->arena.failed = planner->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
    return longest;
}

// Returns the time of a Slice, which is a node that reads and writes every element.
static int64_t slice_time(struct planner *planner, const struct plan_value *value, uint32_t layout)
{
    const struct tile_layout *tiles = planner->layouts.at[layout].tiles;
    if (tsr__layout_is_whole(tiles))
        return 0;
    if (tsr__layout_shared(tiles))
        return shared_slice_time(planner, value, layout);
    tsr_topology_device slowest =
        tsr__planner_slowest(planner, tiles->owners, (size_t)tiles->first[tiles->n_shards]);
    return tsr__work_cost((double)tsr__planner_elements(planner, layout, value),
                          tsr__slice_kind(planner->machine.topology, value),
                          2 * (double)tsr__planner_bytes(planner, layout, value), &slowest);
}

// Returns the bytes by which a collective is charged, from the bytes of one device before and after
// the step. Example: with 6 bytes on each of 4 devices, an all-to-all moves 24 bytes in total, and
// an all-gather ends with 24 bytes on each device. A reduce-scatter in unequal parts is charged as
// if all parts were as large as the largest.
static int64_t charged_bytes(const struct reshard_step *step, int64_t before, int64_t after)
{
    enum comm_cost_basis by = tsr__collective(step->op)->cost_basis;
    if (by == COST_BY_OUTPUT)
        return after;
    int64_t members = step->n_groups ? (int64_t)step->groups[0].n : 1;
    if (by == COST_BY_ALL_INPUTS)
        return before * members;
    if (step->op == COMM_REDUCE_SCATTER && tsr__layout_shared(step->layout))
        return after * members;
    return before;
}

// Returns the time of the messages of a step, which are all sent at the same time.
static int64_t messages_time(struct planner *planner, const struct reshard_step *step,
                             int64_t bytes)
{
    struct arena scratch = {.session = planner->session};
    struct device_group *pairs = ARENA_ARRAY(&scratch, struct device_group, step->n_moves + 1);
    int64_t *ends = ARENA_ARRAY(&scratch, int64_t, 2 * step->n_moves + 1), ps = PLAN_NEVER;
    if (!pairs || !ends)
        goto free_scratch;
    for (size_t i = 0; i < step->n_moves; i++) {
        ends[2 * i] = step->moves[i].from_device;
        ends[2 * i + 1] = step->moves[i].to_device;
        pairs[i] = (struct device_group){&ends[2 * i], 2};
    }
    ps = tsr__planner_combine(planner, TSR_SEND, pairs, step->n_moves, bytes);
free_scratch:
    tsr__arena_free(&scratch);
    return ps;
}

// Returns the time of one step. `from` is the layout before the step; `before` and `after` are
// bytes on a device.
static int64_t step_time(struct planner *planner, const struct reshard_step *step,
                         const struct tile_layout *from, int64_t before, int64_t after)
{
    if (step->op == RESHARD_NOTHING || step->op == RESHARD_SLICE)
        return 0; // the caller charges the slice
    if (step->op == RESHARD_PERMUTE)
        return messages_time(planner, step, before);
    if (step->op < TSR_COLLECTIVE_COUNT)
        return tsr__planner_combine(planner, (tsr_collective)step->op, step->groups, step->n_groups,
                                    charged_bytes(step, before, after));
    return exchange_time(planner, from, step->layout, int64_max(step->received, step->sent));
}

// True if every device of `to` has a full copy in `from`, so that it can slice its shard.
static bool only_slices(const struct tile_layout *from, const struct tile_layout *to)
{
    if (!tsr__layout_is_whole(from))
        return false;
    for (int64_t i = 0; i < to->first[to->n_shards]; i++)
        if (!tsr__layout_has_device(from, to->owners[i]))
            return false;
    return true;
}

// Plans the steps of a resharding. False: there is no path, the resharding is too large to be
// planned, or memory has run out. Without a path the planner rejects the candidate, so diagnostics
// are discarded, except for those about memory.
static bool plan_move(struct planner *planner, struct arena *arena, uint32_t from, uint32_t to,
                      const struct plan_value *value, struct reshard **out)
{
    struct diag_mark mark = tsr__diag_mark(planner->session);
    const struct tile_layout *x = planner->layouts.at[from].tiles,
                             *y = planner->layouts.at[to].tiles;
    size_t bytes = (size_t)(value->bits + 7) / 8;
    tsr_status st = tsr__reshard_plan(arena, x, NULL, y, value->shape, bytes, out);
    if (st == TSR_OK)
        tsr__reshard_split(arena, x, value->shape, bytes, *out);
    else if (st != TSR_NOMEM)
        tsr__diag_back(planner->session, &mark, false);
    return st == TSR_OK;
}

// ---- reshardings without operators -------------------------------------------------------------

static bool is_ascending(const struct device_group *group)
{
    for (size_t i = 1; i < group->n; i++)
        if (group->devices[i] < group->devices[i - 1])
            return false;
    return true;
}

// True if no device sends or receives twice, and no sender has a shard afterwards.
static bool are_messages(const struct reshard_step *step)
{
    for (size_t i = 0; i < step->n_moves; i++) {
        const struct reshard_move *move = &step->moves[i];
        if (tsr__layout_has_device(step->layout, move->from_device))
            return false;
        for (size_t k = 0; k < i; k++)
            if (step->moves[k].from_device == move->from_device ||
                step->moves[k].to_device == move->to_device)
                return false;
    }
    return true;
}

// True if every device of the groups has the value afterwards, as a broadcast requires.
static bool all_get(const struct reshard_step *step)
{
    for (size_t g = 0; g < step->n_groups; g++)
        for (size_t i = 0; i < step->groups[g].n; i++)
            if (!tsr__layout_has_device(step->layout, step->groups[g].devices[i]))
                return false;
    return true;
}

// True if partition has an operator for the step (partition/steps/lower.c). Operators have limits:
// a gather joins shards along one axis in rank order; an all-to-all divides an axis into equal
// parts.
static bool has_operator(const struct reshard_step *step, const struct tile_layout *from)
{
    if (step->combines || step->op == RESHARD_NOTHING || step->op == RESHARD_SLICE)
        return true;
    if (step->op == RESHARD_PERMUTE)
        return are_messages(step);
    if (step->op == COMM_BROADCAST)
        return all_get(step);
    if (step->op == COMM_ALL_TO_ALL)
        return step->axis >= 0 && !tsr__layout_shared(from) && !tsr__layout_shared(step->layout);
    if (step->op != COMM_ALL_GATHER)
        return step->op < TSR_COLLECTIVE_COUNT;
    for (size_t g = 0; g < step->n_groups; g++)
        if (!is_ascending(&step->groups[g]))
            return false;
    return step->axis >= 0;
}

// Returns the bytes that the busiest device sends or receives, summed over all steps; -1: all steps
// have operators. If a single step has no operator, all steps become one Reshard.
static int64_t resharded_bytes(const struct reshard *reshard, const struct tile_layout *from)
{
    int64_t bytes = 0;
    bool all = true;
    for (int i = 0; i < reshard->n_steps; i++) {
        const struct reshard_step *step = &reshard->steps[i];
        bytes += int64_max(step->received, step->sent);
        all = all && has_operator(step, from);
        from = step->layout;
    }
    return all ? -1 : bytes;
}

// Returns the time of the largest message: an exchange takes at least as long.
static int64_t largest_message(struct planner *planner, const struct reshard_step *step,
                               const struct plan_value *value)
{
    struct arena scratch = {.session = planner->session};
    struct reshard_pair pair = tsr__reshard_largest(&scratch, step, (size_t)(value->bits + 7) / 8);
    tsr__arena_free(&scratch);
    if (pair.bytes == 0)
        return 0;
    int64_t ends[2] = {pair.from, pair.to};
    planner->link_load = NULL; // the exchange has recorded its links already
    return tsr__planner_combine(planner, TSR_SEND, &(struct device_group){ends, 2}, 1, pair.bytes);
}

// Returns the sum of the times of the steps. If a step has no operator, partition makes one Reshard
// of all steps, and its time is returned. `before` and `at` are bytes and layout at the beginning
// of each step.
int64_t tsr__planner_steps_time(struct planner *planner, const struct reshard *reshard,
                                uint32_t from, const struct plan_value *value)
{
    int64_t before = tsr__planner_bytes(planner, from, value), ps = 0;
    const struct tile_layout *at = planner->layouts.at[from].tiles;
    int64_t resharded = resharded_bytes(reshard, at);
    if (resharded >= 0) {
        int64_t exchange =
            exchange_time(planner, at, reshard->steps[reshard->n_steps - 1].layout, resharded);
        return int64_max(exchange, largest_message(planner, &reshard->direct, value));
    }
    for (int i = 0; i < reshard->n_steps; i++) {
        if (ps >= PLAN_NEVER)
            return PLAN_NEVER;
        uint32_t layout = tsr__planner_layout(planner, reshard->steps[i].layout);
        if (layout == PLAN_NO_LAYOUT)
            return PLAN_NEVER;
        int64_t after = tsr__planner_bytes(planner, layout, value);
        if (reshard->steps[i].op == RESHARD_SLICE)
            ps += slice_time(planner, value, layout);
        else
            ps += step_time(planner, &reshard->steps[i], at, before, after);
        before = after;
        at = reshard->steps[i].layout;
    }
    return int64_min(ps, PLAN_NEVER);
}

// True if the layouts differ in general but are equal for the current sizes. With other sizes data
// would be moved, so an exchange is charged.
static bool is_chance(const struct reshard *reshard, const struct plan_value *value)
{
    return reshard->n_steps == 0 && !value->fixed;
}

// Computes the time of a resharding, without the cache. PLAN_NEVER: no path, or out of memory.
static int64_t cost(struct planner *planner, uint32_t from, uint32_t to,
                    const struct plan_value *value)
{
    struct reshard *reshard = NULL;
    int64_t ps = PLAN_NEVER;
    if (only_slices(planner->layouts.at[from].tiles, planner->layouts.at[to].tiles))
        return slice_time(planner, value, to);
    struct arena arena = {.session = planner->session};
    if (!plan_move(planner, &arena, from, to, value, &reshard))
        goto free_arena;
    if (is_chance(reshard, value))
        ps = exchange_time(planner, planner->layouts.at[from].tiles, planner->layouts.at[to].tiles,
                           1);
    else
        ps = tsr__planner_steps_time(planner, reshard, from, value);
free_arena:
    tsr__arena_free(&arena);
    return ps;
}

// True if the resharding consists of operators and not of one Reshard.
static bool has_steps(const struct planner *planner, uint32_t from, const struct reshard *reshard,
                      const struct plan_value *value)
{
    return !is_chance(reshard, value) &&
           resharded_bytes(reshard, planner->layouts.at[from].tiles) < 0;
}

// If a value exists in several layouts, partition reshards it from the first layout for which this
// is true, whatever the cost (partition/steps/convert.c).
bool tsr__planner_has_operators(struct planner *planner, uint32_t from, uint32_t to,
                                const struct plan_value *value)
{
    struct reshard *reshard = NULL;
    struct arena arena = {.session = planner->session};
    bool all = plan_move(planner, &arena, from, to, value, &reshard) &&
               has_steps(planner, from, reshard, value);
    tsr__arena_free(&arena);
    return all;
}

static void mark_groups(const struct reshard_step *step, bool *takes)
{
    for (size_t g = 0; g < step->n_groups; g++)
        for (size_t i = 0; i < step->groups[g].n; i++)
            takes[step->groups[g].devices[i]] = true;
    for (size_t i = 0; i < step->n_moves; i++) {
        takes[step->moves[i].from_device] = true;
        takes[step->moves[i].to_device] = true;
    }
}

// Marks the devices that take part in a resharding. A Reshard involves all devices that store or
// want data; steps with operators involve only members of their groups. Example: devices 0 and 1
// have copies and device 2 wants one: device 0 sends and device 1 is idle.
bool tsr__resharding_devices(struct planner *planner, uint32_t from, uint32_t to,
                             const struct plan_value *value, bool *takes)
{
    struct reshard *reshard = NULL;
    const struct tile_layout *before = planner->layouts.at[from].tiles,
                             *after = planner->layouts.at[to].tiles;
    struct arena arena = {.session = planner->session};
    bool found = plan_move(planner, &arena, from, to, value, &reshard);
    bool in_steps = found && has_steps(planner, from, reshard, value);
    for (int64_t device = 0; device < planner->machine.n; device++)
        takes[device] = !in_steps && (tsr__layout_has_device(before, device) ||
                                      tsr__layout_has_device(after, device));
    for (int i = 0; in_steps && i < reshard->n_steps; i++)
        mark_groups(&reshard->steps[i], takes);
    tsr__arena_free(&arena);
    return found;
}

// Writes the key into the buffer: both layout numbers, bits and `fixed` in one number, the rank,
// then the sizes.
static struct str key_of(char *buffer, uint32_t from, uint32_t to, const struct plan_value *value)
{
    size_t n = 0;
    int64_t head[4] = {from, to, value->bits * 2 + value->fixed, value->rank};
    memcpy(buffer, head, sizeof head);
    n = sizeof head;
    memcpy(buffer + n, value->shape, (size_t)value->rank * sizeof(int64_t));
    return (struct str){buffer, n + (size_t)value->rank * sizeof(int64_t)};
}

// Returns the time of resharding a value once; see tsr__resharding_time.
static int64_t time_once(struct planner *planner, uint32_t from, uint32_t to,
                         const struct plan_value *value)
{
    char buffer[KEY_BYTES];
    if (from == to)
        return 0;
    if (from == PLAN_NO_LAYOUT || to == PLAN_NO_LAYOUT)
        return PLAN_NEVER; // out of memory: the arena records it
    if (planner->layouts.at[from].parts || planner->layouts.at[to].parts)
        return PLAN_NEVER; // partial sums are reduced by nodes, not by resharding
    const struct tile_layout *x = planner->layouts.at[from].tiles,
                             *y = planner->layouts.at[to].tiles;
    // a sequence, an optional value or a tensor of unknown rank: neither resharded nor sliced
    if (x->rank != value->rank || y->rank != value->rank)
        return tsr__layout_is_whole(y) && only_slices(x, y) ? 0 : PLAN_NEVER;
    struct str key = key_of(buffer, from, to, value);
    int64_t *found = tsr__map_get(&planner->cache.times, key);
    if (found)
        return *found;
    if (tsr__planner_late(planner))
        return PLAN_NEVER;
    void **slot = tsr__map_at_copy(&planner->cache.times, key);
    int64_t *at = ARENA_NEW(&planner->arena, int64_t);
    if (!slot || !at)
        return PLAN_NEVER;
    *at = cost(planner, from, to, value);
    *slot = at;
    return *at;
}

// Returns the time of all reshardings of a value in one run; 0 if the layouts are equal. Returns
// PLAN_NEVER if it is impossible, after the deadline (tsr__planner_late), if memory has run out,
// and for partial sums.
int64_t tsr__resharding_time(struct planner *planner, uint32_t from, uint32_t to,
                             const struct plan_value *value)
{
    return times_ps(time_once(planner, from, to, value), value->times);
}

void tsr__resharding_load(struct planner *planner, uint32_t from, uint32_t to,
                          const struct plan_value *value, double *by_link)
{
    planner->link_load = by_link;
    (void)cost(planner, from, to, value);
    planner->link_load = NULL;
}

// Returns the operator of a step in a rank file; NULL: none.
static const char *operator_of(int op)
{
    if (op == RESHARD_NOTHING || op == RESHARD_SLICE)
        return NULL;
    if (op == RESHARD_PERMUTE)
        return tsr__collective(COMM_SEND)->op;
    return tsr__collective(op < COMM_KIND_COUNT ? op : COMM_RESHARD)->op;
}

void tsr__planner_steps(struct planner *planner, uint32_t from, uint32_t to,
                        const struct plan_value *value, void (*count)(void *data, const char *op),
                        void *data)
{
    struct reshard *reshard = NULL;
    if (from == to || planner->layouts.at[from].tiles->rank != value->rank ||
        only_slices(planner->layouts.at[from].tiles, planner->layouts.at[to].tiles))
        return;
    struct arena arena = {.session = planner->session};
    bool found = plan_move(planner, &arena, from, to, value, &reshard);
    if (found && !has_steps(planner, from, reshard, value))
        count(data, operator_of(COMM_RESHARD));
    else if (reshard)
        for (int i = 0; i < reshard->n_steps; i++)
            if (operator_of(reshard->steps[i].op))
                count(data, operator_of(reshard->steps[i].op));
    tsr__arena_free(&arena);
}
