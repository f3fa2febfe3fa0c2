// SPDX-License-Identifier: Apache-2.0
// stage_devices.c - lists the blocks of devices that may hold a stage, and predicts the transfers
// of a range on a block.
//
//     Example: four devices in the order 2 0 3 1. Blocks of one are 2, 0, 3 and 1; of two 2 0, 0 3
//     and 3 1. Values that a stage on 3 1 reads were passed on by earlier stages and are on device
//     0.
#include "plan/stages/stage_search.h"

#include <stdlib.h>

// devices up to which blocks start anywhere; else at multiples of their size
#define ALL_STARTS 64

// ---- blocks ------------------------------------------------------------------------------------

size_t tsr__search_devices(const struct stage_search *search)
{
    return (size_t)search->staging->planner->machine.n;
}

// Lists the sizes of blocks. Example: 4 devices have blocks of 1, 2, 3 and 4; 12 devices have
// blocks of 1, 2, 3, 4, 6, 8 and 12.
void tsr__search_sizes(struct stage_search *search)
{
    size_t n = tsr__search_devices(search);
    search->n_sizes = 0;
    for (size_t k = 1; k <= n; k++) {
        bool listed = n <= ALL_SIZES || n % k == 0 || (k & (k - 1)) == 0;
        if (search->n_sizes == MAX_SIZES)
            return;
        if (listed)
            search->sizes[search->n_sizes++] = k;
    }
}

// True if a block of n devices may begin at device `start`. With many devices, and in a coarse
// search, blocks of one size do not overlap. Example: of 128 devices, blocks of 32 start at 0, 32,
// 64 and 96. Unlike devices have dozens of kinds of blocks, so a coarse search of several sizes
// uses only powers of two and all devices.
bool tsr__search_may_start(const struct stage_search *search, size_t start, size_t n)
{
    bool coarse = search->grain > 1, power_of_two = (n & (n - 1)) == 0;
    bool one_size = search->smallest == search->largest;
    if (start + n > tsr__search_devices(search) || n < search->smallest || n > search->largest)
        return false;
    if (coarse && !one_size && !power_of_two && n != tsr__search_devices(search))
        return false;
    return (!coarse && tsr__search_devices(search) <= ALL_STARTS) || start % n == 0;
}

int64_t tsr__stages_memory(const struct staging *staging, const int64_t *devices, size_t n)
{
    int64_t least = PLAN_NO_LIMIT;
    if (staging->memory > 0)
        return staging->memory;
    if (staging->memory < 0)
        return PLAN_NO_LIMIT;
    for (size_t i = 0; i < n; i++) {
        int64_t bytes = staging->planner->machine.topology->device[devices[i]].memory;
        if (bytes > 0)
            least = int64_min(least, bytes);
    }
    return least;
}

// Returns a block. size is an index of search->sizes.
static struct block *block_at(struct stage_search *search, size_t start, size_t size)
{
    return &search->blocks[start * search->n_sizes + size];
}

bool tsr__search_kind(struct stage_search *search, struct block *block)
{
    if (!block->kind)
        block->kind = tsr__stages_kind(search->staging, block->devices, block->n);
    return block->kind != NULL;
}

bool tsr__search_blocks(struct stage_search *search)
{
    for (size_t start = 0; start < tsr__search_devices(search); start++)
        for (size_t z = 0; z < search->n_sizes; z++) {
            struct block *block = block_at(search, start, z);
            *block = (struct block){.start = start, .n = search->sizes[z]};
            if (!tsr__search_may_start(search, start, block->n))
                continue;
            block->devices = ARENA_ARRAY(&search->staging->planner->arena, int64_t, block->n);
            if (!block->devices)
                return false;
            memcpy(block->devices, &search->order[start], block->n * sizeof *block->devices);
            // Sort, so that blocks of the same devices have the same kind in every order.
            qsort(block->devices, block->n, sizeof *block->devices, by_int64);
            block->memory = tsr__stages_memory(search->staging, block->devices, block->n);
        }
    // Ranges are described by the nodes of the first kind.
    size_t first = 0, n = tsr__search_devices(search) * search->n_sizes;
    while (first < n && !search->blocks[first].devices)
        first++;
    return first == n || search->staging->all_kinds.n > 0 ||
           tsr__search_kind(search, &search->blocks[first]);
}

// ---- transfers ---------------------------------------------------------------------------------

// Returns the time of sending a value from one device to all devices of a block. Cached by bytes,
// sender and block.
static int64_t send_time(struct stage_search *search, struct planner *planner, int64_t from,
                         const int64_t *to, size_t n, size_t start, const tsr_value *value)
{
    const struct plan_value *sized = &planner->values[tsr__value_id(value)];
    // `start` and `n` identify the receivers.
    int64_t key[4] = {tsr__value_bytes(planner, value), from, (int64_t)start, (int64_t)n};
    void **at = tsr__map_at_copy(&search->transfers, str_bytes(key, sizeof key));
    if (at && *at)
        return *(int64_t *)*at;
    int64_t *found = ARENA_NEW(&search->staging->planner->arena, int64_t);
    uint32_t has = tsr__planner_replicated_on(planner, sized->rank, &from, 1);
    uint32_t wants = tsr__planner_replicated_on(planner, sized->rank, to, n);
    if (!at || !found || has == PLAN_NO_LAYOUT || wants == PLAN_NO_LAYOUT)
        return NEVER_FITS;
    *found = tsr__resharding_time(planner, has, wants, sized);
    *at = found;
    return *found;
}

// Returns the time of sending to the stage the values that it reads from earlier stages, for one
// run of one model. Outputs of the model need no transfer: they stay on the first device of their
// stage (partition/steps/ports.c).
static int64_t bring(struct stage_search *search, struct staging *model, size_t from, size_t to,
                     const struct block *block)
{
    const struct range *range = tsr__stages_range(model, from, to);
    size_t start = block->start;
    int64_t ps = 0;
    if (!range)
        return NEVER_FITS;
    // Values of earlier stages are on the device before this block.
    if (start > 0)
        for (size_t i = 0; i < range->n_in; i++)
            ps += send_time(search, model->planner, search->order[start - 1], block->devices,
                            block->n, start, range->in[i]);
    return int64_min(ps, NEVER_FITS);
}

// Returns the time of sending the values that leave the range to the first device after the block,
// for one run of one model.
static int64_t hand_over(struct stage_search *search, struct staging *model, size_t from, size_t to,
                         const struct block *block)
{
    const struct range *range = tsr__stages_range(model, from, to);
    size_t next = block->start + block->n;
    int64_t ps = 0;
    if (!range || next >= tsr__search_devices(search))
        return 0;
    for (size_t i = 0; i < range->n_leave; i++)
        ps += send_time(search, model->planner, search->order[next - 1], &search->order[next], 1,
                        next, range->leave[i]);
    return int64_min(ps, NEVER_FITS);
}

// Time of the transfers of one model's stage.
typedef int64_t crossing_of(struct stage_search *search, struct staging *model, size_t from,
                            size_t to, const struct block *block);

// Sums a transfer time over all runs of all models.
static int64_t of_all_runs(struct stage_search *search, crossing_of *of, size_t from, size_t to,
                           const struct block *block)
{
    struct staging *staging = search->staging;
    int64_t run[PLAN_MAX_MODELS] = {of(search, staging, from, to, block)};
    if (staging->other)
        run[1] = of(search, staging->other, from, to, block);
    return tsr__models_time(staging->models, run);
}

int64_t tsr__search_transfers(struct stage_search *search, size_t from, size_t to,
                              const struct block *block)
{
    return of_all_runs(search, bring, from, to, block);
}

int64_t tsr__search_hands_over(struct stage_search *search, size_t from, size_t to,
                               const struct block *block)
{
    return of_all_runs(search, hand_over, from, to, block);
}

// Returns a lower bound for a transfer, for any sharding on both sides. With n producers and m
// readers, some pair transfers at least 1 / (n m) of the value; the fastest pair is assumed.
static int64_t least_transfer(struct stage_search *search, const struct block *block,
                              struct device_span others, int64_t bytes)
{
    int64_t least = NEVER_FITS;
    int64_t part = bytes / (int64_t)(others.n * block->n);
    for (size_t i = others.first; i < others.first + others.n; i++)
        for (size_t k = 0; k < block->n; k++) {
            int64_t ends[2] = {search->order[i], block->devices[k]};
            struct device_group pair = {ends, 2};
            least = int64_min(least, tsr__planner_combine(search->staging->planner, TSR_SEND, &pair,
                                                          1, int64_max(part, 1)));
        }
    return least;
}

// Returns a lower bound for the transfers of all values that the range reads from other ranges, for
// one run of one model.
static int64_t least_transfers(struct stage_search *search, struct staging *model, size_t i,
                               size_t j, const struct block *block)
{
    const struct range *range = tsr__stages_range(model, i, j);
    int64_t ps = 0;
    if (!range)
        return NEVER_FITS;
    if (block->start == 0)
        return 0;
    for (size_t k = 0; k < range->n_in; k++)
        ps += least_transfer(search, block, (struct device_span){0, block->start},
                             tsr__value_bytes(model->planner, range->in[k]));
    return int64_min(ps, NEVER_FITS);
}

// Returns a lower bound for the time that one device of the block is busy with sending or receiving
// these values. With several devices, each value may occupy another device.
static int64_t least_busy(struct stage_search *search, const struct block *block,
                          struct device_span others, const tsr_value **values, size_t n)
{
    int64_t sum = 0, most = 0;
    if (others.n == 0)
        return 0;
    for (size_t k = 0; k < n; k++) {
        int64_t ps = least_transfer(search, block, others,
                                    tsr__value_bytes(search->staging->planner, values[k]));
        sum = int64_min(sum + ps, NEVER_FITS);
        most = int64_max(most, ps);
    }
    return block->n == 1 ? sum : most;
}

// Returns a lower bound for the time that one device is busy with the values that the range
// receives and sends.
static int64_t least_crossings(struct stage_search *search, size_t i, size_t j,
                               const struct block *block, const struct neighbours *near)
{
    const struct range *range = tsr__stages_range(search->staging, i, j);
    if (!range)
        return NEVER_FITS;
    int64_t comes = least_busy(search, block, near->before, range->in, range->n_in);
    int64_t goes = least_busy(search, block, near->behind, range->leave, range->n_leave);
    return block->n > 1 ? int64_max(comes, goes) : int64_min(comes + goes, NEVER_FITS);
}

// Returns all devices before the block, and all behind it.
static struct neighbours neighbours_of(const struct stage_search *search, const struct block *block)
{
    size_t next = block->start + block->n;
    return (struct neighbours){.before = {0, block->start},
                               .behind = {next, tsr__search_devices(search) - next}};
}

int64_t tsr__search_busy(struct stage_search *search, size_t i, size_t j, const struct block *block,
                         const struct neighbours *near)
{
    struct point point = {0};
    struct stage stage = stage_on(i, j, block);
    search->status = tsr__range_time(search->staging, &stage, true, &point);
    if (search->status != TSR_OK || !point.feasible)
        return NEVER_FITS;
    int64_t moves = near ? least_crossings(search, i, j, block, near)
                         : of_all_runs(search, least_transfers, i, j, block);
    return int64_min(point.bound + moves, NEVER_FITS);
}

int64_t tsr__search_open(struct stage_search *search, size_t i, size_t j, const struct block *block)
{
    struct neighbours near = neighbours_of(search, block);
    return tsr__search_busy(search, i, j, block, search->bottleneck ? &near : NULL);
}
