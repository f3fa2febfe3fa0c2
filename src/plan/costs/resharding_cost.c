// SPDX-License-Identifier: Apache-2.0
// resharding_cost.c - predicts the time of resharding a value: the steps of the resharding planner,
// each with its cost on the topology, and the copying of slices. Times are cached by layouts and
// shape: in the planner, and by content for all planners of the model.
//
//     Example: float32 [8, 6] on two devices. From {2, 1} (4 rows, 96 bytes each) to {1, 2} (3
//     columns each) is one AllToAll, charged by the bytes of all devices before the step: 192. From
//     {2, 1} to replicated is one AllGather, charged by the bytes of each device after the step:
//     192. From replicated to {2, 1} nothing is sent; each device slices 96 bytes out of its copy.
#include "plan/costs/planner.h"

#include <math.h>

#define KEY_BYTES 1024

int64_t tsr__planner_move_time(const struct planner *planner, double bytes)
{
    double ps = bytes / planner->machine.slowest.bandwidth * 1e12;
    return whole_number(ps);
}

// Returns the time of a collective that all groups run at the same time. Only the largest groups
// count.
int64_t tsr__planner_combine(struct planner *planner, enum tsr_collective what,
                             const struct device_group *groups, size_t n, int64_t bytes)
{
    size_t size = 0, count = 0;
    for (size_t g = 0; g < n; g++)
        size = size_max(size, groups[g].n);
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

static struct reshard_tensor tensor_of(const struct planner *planner,
                                       const struct plan_value *value)
{
    return (struct reshard_tensor){.rank = value->rank,
                                   .shape = value->open,
                                   .bits = value->bits,
                                   .constant_bounds = planner->shapes.constant_bounds};
}

static double shards_along(const struct tile_layout *layout, int axis)
{
    double n = 1;
    for (int k = 0; k < layout->dims[axis].n; k++)
        n *= (double)layout->dims[axis].factors[k].cuts;
    return n;
}

// The nodes that slice a shard (partition/emit/emit_slice.c): a Gather for each axis of which the
// shard has several intervals, a Slice with constant bounds, and one with computed bounds. For each
// of them the elements that it returns, as multiples of those of the shard.
struct slices {
    double returns[TILE_MAX_RANK + 2];
    int n;
};

// Adds a node, before which the tensor has `times` the elements that it has after it.
static void add_slice(struct slices *slices, double times)
{
    if (times <= 1)
        return;
    for (int i = 0; i < slices->n; i++)
        slices->returns[i] *= times;
    slices->returns[slices->n++] = 1;
}

// Lists the nodes by which a device gets its shard of `to` from that of `from`. The owner of the
// first shard stands for all.
static bool list_slices(struct planner *planner, const struct plan_value *value,
                        const struct tile_layout *from, const struct tile_layout *to,
                        struct slices *out)
{
    struct arena scratch = {.session = planner->session};
    struct reshard_tensor tensor = tensor_of(planner, value);
    double fixed = 1, computed = 1;
    *out = (struct slices){.n = 0};
    for (int axis = 0; axis < value->rank && axis < TILE_MAX_RANK; axis++) {
        double times = shards_along(to, axis) / shards_along(from, axis);
        struct dim_slice cut = {.source = DIM_SAME};
        if (times > 1)
            cut = tsr__dim_source(&scratch, &tensor, from, to, to->owners[0], axis);
        if (cut.source == DIM_STATIC && cut.n != 1)
            add_slice(out, times);
        else if (cut.source == DIM_STATIC)
            fixed *= times;
        else if (cut.source == DIM_DYNAMIC)
            computed *= times;
    }
    add_slice(out, fixed);
    add_slice(out, computed);
    if (out->n == 0) // the first owner keeps its shard, others slice
        out->returns[out->n++] = 1;
    bool ok = !scratch.failed;
    tsr__arena_free(&scratch);
    return ok;
}

// Returns the time of slicing, by nodes that read and write every element. Slicing sizes takes no
// time.
static int64_t slice_time(struct planner *planner, const struct plan_value *value, uint32_t from,
                          uint32_t layout)
{
    const struct tile_layout *tiles = planner->layouts.at[layout].tiles;
    struct slices slices;
    int64_t ps = 0;
    if (tsr__layout_is_whole(tiles) || value->free)
        return 0;
    if (tsr__layout_shared(tiles))
        return shared_slice_time(planner, value, layout);
    if (!list_slices(planner, value, planner->layouts.at[from].tiles, tiles, &slices))
        return PLAN_NEVER;
    tsr_topology_device slowest =
        tsr__planner_slowest(planner, tiles->owners, (size_t)tiles->first[tiles->n_shards]);
    struct work_kind kind = tsr__slice_kind(planner->machine.topology, value);
    double elements = (double)tsr__planner_elements(planner, layout, value),
           bytes = (double)tsr__planner_bytes(planner, layout, value);
    for (int i = 0; i < slices.n; i++)
        ps += tsr__work_cost(elements * slices.returns[i], kind, 2 * bytes * slices.returns[i],
                             &slowest);
    return ps;
}

// Returns the time in which a device slices its part of a shard: as slice_time, with the elements
// that it has and needs.
static int64_t own_slice_time(struct planner *planner, struct arena *arena,
                              const struct plan_value *value, const struct tile_layout *from,
                              const struct tile_layout *to, int64_t device)
{
    struct reshard_tensor tensor = tensor_of(planner, value);
    const struct tile_piece *has = tsr__layout_piece(arena, from, value->shape,
                                                     tsr__layout_shard_of(from, device, 0)),
                            *wants = tsr__layout_piece(arena, to, value->shape,
                                                       tsr__layout_shard_of(to, device, 0));
    int64_t number = tsr__planner_device(planner, device), ps = 0;
    int64_t second = tsr__layout_shard_of(to, device, tsr__layout_shard_of(to, device, 0) + 1);
    if (!has || !wants || second >= 0)
        return PLAN_NEVER;
    struct slices slices = {.n = 0};
    double fixed = 1, computed = 1, elements = (double)tsr__piece_elements(wants);
    for (int axis = 0; axis < value->rank; axis++) {
        struct dim_slice cut = tsr__dim_source(arena, &tensor, from, to, device, axis);
        double times = (double)has->dims[axis].size / fmax((double)wants->dims[axis].size, 1);
        if (cut.source == DIM_STATIC && cut.n != 1)
            add_slice(&slices, times);
        else if (cut.source == DIM_STATIC)
            fixed *= times;
        else if (cut.source == DIM_DYNAMIC)
            computed *= times;
    }
    add_slice(&slices, fixed);
    add_slice(&slices, computed);
    struct work_kind kind = tsr__slice_kind(planner->machine.topology, value);
    for (int i = 0; i < slices.n; i++)
        ps += tsr__work_cost(elements * slices.returns[i], kind,
                             2 * elements * (double)value->bits / 8 * slices.returns[i],
                             &planner->machine.topology->device[number]);
    return ps;
}

int64_t *tsr__slice_each(struct planner *planner, struct arena *arena, uint32_t from, uint32_t to,
                         const struct plan_value *value)
{
    const struct tile_layout *source = planner->layouts.at[from].tiles,
                             *target = planner->layouts.at[to].tiles;
    int64_t n = target->first[target->n_shards];
    bool unlike = planner->machine.unlike || tsr__layout_shared(target);
    for (int axis = 0; axis < value->rank && axis < target->rank; axis++)
        unlike = unlike || value->shape[axis] % (int64_t)shards_along(target, axis);
    if (!unlike || value->free || value->rank != target->rank || value->rank != source->rank ||
        planner->machine.n > EACH_MOST)
        return NULL;
    struct arena scratch = {.session = planner->session};
    int64_t *each = ARENA_ARRAY(arena, int64_t, (size_t)n + 1);
    for (int64_t i = 0; each && i < n; i++) {
        each[i] = own_slice_time(planner, &scratch, value, source, target, target->owners[i]);
        if (each[i] == PLAN_NEVER)
            each = NULL;
    }
    tsr__arena_free(&scratch);
    return each;
}

// Returns the bytes by which a collective is charged, from the bytes of one device before and after
// it. Example: with 6 bytes on each of 4 devices, an all-to-all moves 24 bytes in total, and an
// all-gather ends with 24 bytes on each device. A reduce-scatter in unequal parts is charged as if
// all parts were as large as the largest.
static int64_t charged_bytes(const struct reshard_operator *operator, int64_t before, int64_t after)
{
    enum comm_cost_basis by = tsr__collective(operator->op)->cost_basis;
    int64_t members = operator->n_groups ? (int64_t) operator->groups[0].n : 1;
    if (by == COST_BY_OUTPUT)
        return after;
    if (by == COST_BY_ALL_INPUTS)
        return mul_cap(before, members);
    if (operator->op == COMM_REDUCE_SCATTER && operator->shares)
        return mul_cap(after, members);
    return before;
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

// Finds the operators of a resharding, which `partition` will write. False: a layout lacks
// elements, or memory has run out.
static bool find_operators(struct planner *planner, struct arena *arena, uint32_t from, uint32_t to,
                           const struct plan_value *value, struct reshard_operators *out)
{
    struct reshard_tensor tensor = tensor_of(planner, value);
    return tsr__owns_all(planner->layouts.at[from].tiles) &&
           tsr__reshard_operators(arena, &tensor, planner->layouts.at[from].tiles, NULL,
                                  planner->layouts.at[to].tiles, out) == TSR_OK;
}

// Returns the time of the largest message: an exchange takes at least as long.
static int64_t largest_message(struct planner *planner, const struct reshard_pair *pair)
{
    int64_t ends[2] = {pair->from, pair->to};
    double *load = planner->link_load;
    if (pair->bytes == 0)
        return 0;
    planner->link_load = NULL; // the exchange has recorded its links already
    int64_t ps =
        tsr__planner_combine(planner, TSR_SEND, &(struct device_group){ends, 2}, 1, pair->bytes);
    planner->link_load = load;
    return ps;
}

// Returns the time of a Reshard: that of an all-to-all in which every device moves as many bytes as
// the busiest one, or of the largest message.
static int64_t exchange_time(struct planner *planner, const struct reshard_operator *operator,
                             const struct tile_layout * from, const struct plan_value *value)
{
    struct reshard_exchange exchange;
    struct arena arena = {.session = planner->session};
    struct diag_mark mark = tsr__diag_mark(planner->session);
    tsr_status st = tsr__reshard_exchange(&arena, from, operator->layout, value->shape,
                                          (size_t)(value->bits + 7) / 8, &exchange);
    tsr__arena_free(&arena);
    if (st != TSR_OK) {
        if (st != TSR_NOMEM)
            tsr__diag_back(planner->session, &mark, false);
        return PLAN_NEVER;
    }
    double n = (double)operator->groups[0].n;
    if (n < 2)
        return 0;
    // at least one byte: other sizes move data where these do not
    int64_t all = whole_number((double)int64_max(exchange.bytes, 1) * n * n / (n - 1));
    int64_t ps = tsr__planner_combine(planner, TSR_ALL_TO_ALL, operator->groups, 1, all);
    return int64_max(ps, largest_message(planner, &exchange.largest));
}

// Returns the time of messages that are all sent at the same time.
static int64_t messages_time(struct planner *planner, const struct reshard_operator *operator,
                             int64_t bytes)
{
    struct arena scratch = {.session = planner->session};
    size_t n = operator->n_groups;
    struct device_group *pairs = ARENA_ARRAY(&scratch, struct device_group, n + 1);
    int64_t *ends = ARENA_ARRAY(&scratch, int64_t, 2 * n + 1), ps = PLAN_NEVER;
    if (!pairs || !ends)
        goto free_scratch;
    for (size_t i = 0; i < n; i++) { // the sender comes first
        const int64_t *both = operator->groups[i].devices;
        ends[2 * i] = operator->roots[i];
        ends[2 * i + 1] = both[both[0] == operator->roots[i]];
        pairs[i] = (struct device_group){&ends[2 * i], 2};
    }
    ps = tsr__planner_combine(planner, TSR_SEND, pairs, n, bytes);
free_scratch:
    tsr__arena_free(&scratch);
    return ps;
}

// Returns the time of an operator. `from` is the layout before it, `to` the one after it.
static int64_t operator_time(struct planner *planner, const struct reshard_operator *operator,
                             uint32_t from, uint32_t to, const struct plan_value *value)
{
    if (operator->op == RESHARD_NOTHING)
        return 0;
    if (operator->op == RESHARD_SLICE)
        return slice_time(planner, value, from, to);
    if (operator->op == COMM_RESHARD)
        return exchange_time(planner, operator, planner->layouts.at[from].tiles, value);
    int64_t bytes = charged_bytes(operator, tsr__planner_bytes(planner, from, value),
                                  tsr__planner_bytes(planner, to, value));
    if (operator->op == COMM_SEND)
        return messages_time(planner, operator, bytes);
    return tsr__planner_combine(
        planner, (tsr_collective) operator->op, operator->groups, operator->n_groups, bytes);
}

// Calls `call` for each operator of the list.
static bool each_operator(struct planner *planner, const struct reshard_operators *operators,
                          uint32_t from, const struct plan_value *value,
                          void (*call)(void *data, const struct planned_operator *operator),
                          void *data)
{
    for (int i = 0; i < operators->n; i++) {
        uint32_t to = tsr__planner_layout(planner, operators->at[i].layout);
        if (to == PLAN_NO_LAYOUT)
            return false;
        call(data, &(struct planned_operator){
                       .operator= & operators->at[i],
                       .from = from,
                       .to = to,
                       .ps = operator_time(planner, &operators->at[i], from, to, value)});
        from = to;
    }
    return true;
}

bool tsr__planner_operators(struct planner *planner, uint32_t from, uint32_t to,
                            const struct plan_value *value,
                            void (*call)(void *data, const struct planned_operator *operator),
                            void *data)
{
    struct reshard_operators operators;
    struct arena arena = {.session = planner->session};
    bool ok = find_operators(planner, &arena, from, to, value, &operators) &&
              each_operator(planner, &operators, from, value, call, data);
    tsr__arena_free(&arena);
    return ok;
}

// Writes the key into the buffer: three numbers, bits, the rank, which dimensions are open or
// unknown, whether it is a size, then the sizes.
static struct str key_of(char *buffer, uint32_t a, uint32_t b, uint32_t c,
                         const struct plan_value *value)
{
    int64_t head[7] = {a, b, c, value->bits, value->rank, 0, value->free};
    for (int axis = 0; axis < value->rank; axis++)
        if (value->open[axis] < 0)
            head[5] |= -value->open[axis] << (2 * axis % 62);
    memcpy(buffer, head, sizeof head);
    memcpy(buffer + sizeof head, value->shape, (size_t)value->rank * sizeof(int64_t));
    return (struct str){buffer, sizeof head + (size_t)value->rank * sizeof(int64_t)};
}

// Finds the operators of a sum, or those that were found for an equal one. NULL: there are none, or
// out of memory.
static const struct reshard_operators *sum_operators(struct planner *planner,
                                                     const struct planned_sum *sum)
{
    const struct parts *parts = planner->layouts.at[sum->before].parts;
    const struct numbered_layout *layouts = planner->layouts.at;
    struct reshard_tensor tensor = tensor_of(planner, sum->value);
    struct partial pending = {COMBINE_SUM, parts->groups, parts->n};
    char buffer[KEY_BYTES];
    struct str key = key_of(buffer, sum->before, sum->asked, sum->want, sum->value);
    void **at = tsr__map_at_copy(&planner->cache.sums, key);
    if (!at || *at)
        return at ? *at : NULL;
    struct reshard_operators *operators = ARENA_NEW(&planner->arena, struct reshard_operators);
    if (!operators ||
        tsr__reshard_sum(&planner->arena, &tensor, layouts[parts->layout].tiles, &pending,
                         sum->asked == parts->layout ? NULL : layouts[sum->asked].tiles,
                         sum->want == PLAN_NO_LAYOUT ? NULL : layouts[sum->want].tiles,
                         operators) != TSR_OK)
        return NULL;
    *at = operators;
    return operators;
}

uint32_t tsr__planner_sum(struct planner *planner, const struct planned_sum *sum,
                          void (*call)(void *data, const struct planned_operator *operator),
                          void *data)
{
    const struct parts *parts = planner->layouts.at[sum->before].parts;
    const struct reshard_operators *operators = sum_operators(planner, sum);
    if (!operators || !each_operator(planner, operators, parts->layout, sum->value, call, data))
        return PLAN_NO_LAYOUT;
    return operators->n ? tsr__planner_layout(planner, operators->at[operators->n - 1].layout)
                        : sum->asked;
}

static void add_time(void *data, const struct planned_operator *operator)
{
    int64_t *sum = data;
    *sum = int64_min(*sum + operator->ps, PLAN_NEVER);
}

int64_t tsr__planner_operators_time(struct planner *planner,
                                    const struct reshard_operators *operators, uint32_t from,
                                    const struct plan_value *value)
{
    int64_t ps = 0;
    return each_operator(planner, operators, from, value, add_time, &ps) ? ps : PLAN_NEVER;
}

// What is known of a resharding.
struct known_resharding {
    int64_t ps; // PLAN_NEVER: no path, or out of memory
    enum reshard_kind kind;
};

// Computes time and kind of a resharding, without the cache.
static struct known_resharding compute(struct planner *planner, uint32_t from, uint32_t to,
                                       const struct plan_value *value)
{
    struct known_resharding known = {PLAN_NEVER, RESHARD_BY_RESHARD};
    struct reshard_operators operators;
    struct arena arena = {.session = planner->session};
    // a short cut: no other operators are right here, and every device computes its own slice
    if (value->open == value->shape &&
        only_slices(planner->layouts.at[from].tiles, planner->layouts.at[to].tiles)) {
        bool whole = tsr__layout_is_whole(planner->layouts.at[to].tiles);
        known.ps = slice_time(planner, value, from, to);
        known.kind = whole ? RESHARD_BY_NOTHING : RESHARD_BY_SLICE;
    } else if (find_operators(planner, &arena, from, to, value, &operators)) {
        known.ps = tsr__planner_operators_time(planner, &operators, from, value);
        known.kind = tsr__reshard_kind(&operators);
    }
    tsr__arena_free(&arena);
    return known;
}

// Returns the number of some content, and gives it the next one if it is new. 0: out of memory.
static uint32_t number_of(struct map *map, struct str content, uint32_t *n)
{
    void **at = tsr__map_at_copy(map, content);
    if (at && !*at)
        *at = (void *)(uintptr_t)++ * n;
    return at ? (uint32_t)(uintptr_t)*at : 0;
}

// Returns the number of the planner's devices; 0: out of memory.
static uint32_t devices_number(struct planner *planner)
{
    struct planner_reshardings *shared = planner->shapes.reshardings;
    size_t n = (size_t)planner->machine.n;
    if (planner->cache.devices)
        return planner->cache.devices;
    int64_t *key = ARENA_ARRAY(&planner->arena, int64_t, n + 1);
    if (!key)
        return 0;
    key[0] = (int64_t)(intptr_t)planner->machine.topology;
    for (size_t device = 0; device < n; device++)
        key[device + 1] = tsr__planner_device(planner, (int64_t)device);
    planner->cache.devices =
        number_of(&shared->devices, str_bytes(key, (n + 1) * sizeof *key), &shared->n_devices);
    return planner->cache.devices;
}

// Returns the number of a layout among those of all planners; 0: out of memory.
static uint32_t layout_number(struct planner *planner, uint32_t layout)
{
    struct planner_reshardings *shared = planner->shapes.reshardings;
    struct numbered_layout *own = &planner->layouts.at[layout];
    int64_t buffer[LAYOUT_KEY];
    if (own->shared)
        return own->shared;
    struct str content = tsr__planner_layout_key(planner, own->tiles, buffer);
    if (content.n)
        own->shared = number_of(&shared->layouts, content, &shared->n_layouts);
    return own->shared;
}

// Returns what is known of a resharding from any planner, or computes it. NULL: out of memory.
static struct known_resharding *shared_of(struct planner *planner, uint32_t from, uint32_t to,
                                          const struct plan_value *value)
{
    struct planner_reshardings *shared = planner->shapes.reshardings;
    uint32_t numbers[] = {layout_number(planner, from), layout_number(planner, to),
                          devices_number(planner)};
    char buffer[KEY_BYTES];
    if (!numbers[0] || !numbers[1] || !numbers[2])
        return NULL;
    struct str key = key_of(buffer, numbers[0], numbers[1], numbers[2], value);
    void **at = tsr__map_at_copy(&shared->known, key);
    if (!at || *at)
        return at ? *at : NULL;
    struct known_resharding *found = ARENA_NEW(shared->arena, struct known_resharding);
    if (!found)
        return NULL;
    *found = compute(planner, from, to, value);
    *at = found;
    return found;
}

// Returns what is known of a resharding that a run does once; NULL: too late or out of memory.
static const struct known_resharding *known_of(struct planner *planner, uint32_t from, uint32_t to,
                                               const struct plan_value *value)
{
    char buffer[KEY_BYTES];
    struct str key = key_of(buffer, from, to, 0, value);
    struct known_resharding *found = tsr__map_get(&planner->cache.times, key);
    if (found || tsr__planner_late(planner))
        return found;
    void **slot = tsr__map_at_copy(&planner->cache.times, key);
    found = slot ? shared_of(planner, from, to, value) : NULL;
    planner->arena.failed = planner->arena.failed || !found;
    if (found)
        *slot = found;
    return found;
}

// Returns time and kind of resharding a value once.
static struct known_resharding once(struct planner *planner, uint32_t from, uint32_t to,
                                    const struct plan_value *value)
{
    static const struct known_resharding never = {PLAN_NEVER, RESHARD_BY_RESHARD};
    static const struct known_resharding nothing = {0, RESHARD_BY_NOTHING};
    if (from == to)
        return nothing;
    if (from == PLAN_NO_LAYOUT || to == PLAN_NO_LAYOUT)
        return never; // out of memory: the arena records it
    if (planner->layouts.at[from].parts || planner->layouts.at[to].parts)
        return never; // partial sums are reduced by nodes, not by resharding
    const struct tile_layout *x = planner->layouts.at[from].tiles,
                             *y = planner->layouts.at[to].tiles;
    // a sequence, an optional value or a tensor of unknown rank: neither resharded nor sliced
    if (x->rank != value->rank || y->rank != value->rank)
        return tsr__layout_is_whole(y) && only_slices(x, y) ? nothing : never;
    const struct known_resharding *known = known_of(planner, from, to, value);
    return known ? *known : never;
}

int64_t tsr__resharding_time(struct planner *planner, uint32_t from, uint32_t to,
                             const struct plan_value *value)
{
    return times_ps(once(planner, from, to, value).ps, value->times);
}

size_t tsr__resharding_source(struct planner *planner, const uint32_t *layouts, size_t n,
                              uint32_t to, const struct plan_value *value)
{
    size_t best = 0;
    enum reshard_kind least = RESHARD_BY_RESHARD;
    for (size_t i = 0; i < n; i++) {
        struct known_resharding known = once(planner, layouts[i], to, value);
        if (known.ps < PLAN_NEVER && known.kind < least) {
            best = i;
            least = known.kind;
        }
    }
    return best;
}
