// SPDX-License-Identifier: Apache-2.0
// stage_search.c - searches for the best pipeline over all orders of the devices that may differ.
// dynamic_program.c finds the best pipeline of one order.
//
// The cost for latency is the sum of times and transfers of all stages. For throughput it is the
// slowest stage, then the sum. Devices that would only slow the pipeline down stay idle.
#include "plan/stages/stage_search.h"

#include <stdlib.h>

#define MAX_ORDERS 120 // maximum number of orders of unlike devices
#define ALL_ORDERS 4   // devices with unlike links up to which every order is tried
#define MAX_CELLS  ((size_t)1 << 22)
#define FEW_RANGES 4 // number of ranges in the first, coarse search

// ---- orders of devices -------------------------------------------------------------------------

// True if a message takes the same time between any two devices.
static bool links_alike(struct stage_search *search)
{
    int64_t n = (int64_t)tsr__search_devices(search), first = -1;
    for (int64_t from = 0; from < n; from++)
        for (int64_t to = 0; to < n; to++) {
            int64_t ends[2] = {from, to};
            struct device_group pair = {ends, 2};
            if (from == to)
                continue;
            int64_t ps =
                tsr__planner_combine(search->staging->planner, TSR_SEND, &pair, 1, 1 << 20);
            if (first < 0)
                first = ps;
            if (ps != first)
                return false;
        }
    return true;
}

// If there are at most ALL_ORDERS devices and their links differ, gives every device its own label.
// On a ring or grid, the position of a device matters.
static void label_places(struct stage_search *search, size_t *label)
{
    size_t n = tsr__search_devices(search);
    if (n > ALL_ORDERS || links_alike(search))
        return;
    for (size_t device = 0; device < n; device++)
        label[device] = device;
}

// Labels devices by kind: label[device] is the first device that is equal to it.
static void label_devices(const struct stage_search *search, size_t *label)
{
    const tsr_topology_device *devices = search->staging->planner->machine.topology->device;
    for (size_t device = 0; device < tsr__search_devices(search); device++) {
        label[device] = 0;
        while (!tsr__devices_alike(&devices[label[device]], &devices[device]))
            label[device]++;
    }
}

static void swap(size_t *a, size_t *b)
{
    size_t kept = *a;
    *a = *b;
    *b = kept;
}

// Makes the next permutation of labels in lexicographic order. False: it was the last. Example: 0 2
// 1 becomes 1 0 2.
static bool next_order(size_t *label, size_t n)
{
    size_t i = n - 1;
    while (i > 0 && label[i - 1] >= label[i])
        i--;
    if (i == 0)
        return false;
    size_t k = n - 1;
    while (label[k] <= label[i - 1])
        k--;
    swap(&label[i - 1], &label[k]);
    for (size_t front = i, back = n - 1; front < back; front++, back--)
        swap(&label[front], &label[back]);
    return true;
}

// Fills search->order: position i gets a device whose label in `own` is label[i]. Devices of the
// same label are taken in descending order.
static void order_by(struct stage_search *search, const size_t *own, const size_t *label)
{
    size_t n = tsr__search_devices(search), next[ALL_SIZES];
    for (size_t i = 0; i < n; i++)
        next[i] = n;
    for (size_t i = 0; i < n; i++) {
        size_t device = next[label[i]] - 1;
        while (own[device] != label[i])
            device--;
        search->order[i] = (int64_t)device;
        next[label[i]] = device;
    }
}

// Returns what pipelines are compared by before their stages are solved together.
static struct plan_standing standing_of(const struct pipeline *pipeline, tsr_objective objective)
{
    struct plan_standing standing = {.any = pipeline->n > 0, .fits = true, .time = pipeline->sum};
    if (objective == TSR_THROUGHPUT) {
        standing.time = pipeline->most;
        standing.then = pipeline->sum;
    }
    return standing;
}

static bool is_better(const struct pipeline *a, const struct pipeline *b, tsr_objective objective)
{
    struct plan_standing x = standing_of(a, objective), y = standing_of(b, objective);
    return tsr__plan_is_better(&x, &y, 0);
}

// Replaces `best` if the pipeline of this order is better. With MEASURE_OPEN, calls search->each
// instead.
static void try_order(struct stage_search *search, tsr_objective objective, struct pipeline *best)
{
    struct pipeline pipeline;
    enum measure what = search->measure;
    tsr__search_forget(search, what);
    if (!tsr__search_blocks(search))
        search->status = TSR_NOMEM;
    else if (what == MEASURE_OPEN)
        search->each(search);
    else if (tsr__search_line(search, objective, &pipeline) &&
             is_better(&pipeline, best, objective))
        *best = pipeline;
}

static int by_number(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

static bool is_descending(const struct stage_search *search)
{
    size_t n = tsr__search_devices(search);
    for (size_t i = 0; i < n; i++)
        if (search->order[i] != (int64_t)(n - 1 - i))
            return false;
    return true;
}

static void order_descending(struct stage_search *search)
{
    size_t n = tsr__search_devices(search);
    for (size_t i = 0; i < n; i++)
        search->order[i] = (int64_t)(n - 1 - i);
}

// Tries the descending order of devices. If there are at most ALL_SIZES devices, also tries other
// orders of unlike devices, fewer than MAX_ORDERS. A coarse search, or one with a fixed number of
// devices per stage, tries no other orders.
static void try_orders(struct stage_search *search, tsr_objective objective, struct pipeline *best)
{
    size_t n = tsr__search_devices(search), own[ALL_SIZES], label[ALL_SIZES];
    order_descending(search);
    try_order(search, objective, best);
    if (n > ALL_SIZES || search->grain > 1 || search->smallest == search->largest)
        return;
    label_devices(search, own);
    label_places(search, own);
    memcpy(label, own, n * sizeof *own);
    qsort(label, n, sizeof *label, by_number);
    for (int round = 1; round < MAX_ORDERS; round++) {
        if (search->status != TSR_OK || search->staging->hasty)
            return;
        order_by(search, own, label);
        if (!is_descending(search))
            try_order(search, objective, best);
        if (!next_order(label, n))
            return;
    }
}

// Sets the smallest and the largest number of stages. There are at most as many stages as devices
// and ranges, and exactly the requested number if there is one.
static void bound_stages(struct stage_search *search, int64_t asked)
{
    int64_t most =
        int64_min(search->staging->planner->machine.n, (int64_t)search->staging->n_ranges);
    most = int64_min(most, STAGES_MOST);
    search->least = 1;
    if (asked > 0) {
        most = int64_min(most, asked);
        search->least = (size_t)most;
    }
    search->most = (size_t)most;
}

// Initializes a search. If `flows` is set, stages may send only to the next stage. This is ignored
// if there would be too many cells.
static bool search_init(struct stage_search *search, struct staging *staging,
                        const tsr_plan_options *options, bool flows)
{
    struct arena *arena = &staging->planner->arena;
    size_t n = (size_t)staging->planner->machine.n, cuts = staging->n_ranges + 1;
    *search = (struct stage_search){
        .staging = staging, .grain = 1, .smallest = 1, .largest = n, .status = TSR_OK};
    search->known = tsr__search_known(search, INT64_MAX);
    search->paced = options->objective == TSR_THROUGHPUT;
    search->rest = ARENA_ARRAY(arena, int64_t, cuts);
    bound_stages(search, options->stages);
    tsr__search_sizes(search);
    search->order = ARENA_ARRAY(arena, int64_t, n);
    search->blocks = ARENA_ARRAY(arena, struct block, n * search->n_sizes);
    search->value = ARENA_ARRAY(arena, int64_t, cuts * cuts * n * search->n_sizes);
    search->n_cells = (search->most + 1) * cuts * (n + 1);
    search->flows = flows && search->n_cells * cuts <= MAX_CELLS;
    if (search->flows)
        search->n_cells *= cuts;
    search->cells = ARENA_ARRAY(arena, struct cell, search->n_cells);
    return !arena->failed;
}

// Returns the distance of split points in the coarse search: few ranges, but at least one for each
// requested stage. Manual stages need every split point.
static size_t coarsest(const struct stage_search *search)
{
    size_t ranges = FEW_RANGES;
    if (search->least > ranges)
        ranges = search->least;
    if (search->staging->n_hand || search->staging->n_ranges < 2 * ranges)
        return 1;
    return search->staging->n_ranges / ranges;
}

// Tries pipelines whose stages have `n` devices each, with as few split points as possible. Stores
// the result in *best if it is better.
static void try_blocks_of(struct stage_search *search, size_t n, tsr_objective objective,
                          struct pipeline *best)
{
    struct pipeline pipeline = {0};
    search->smallest = search->largest = n;
    for (search->grain = coarsest(search);; search->grain = (search->grain + 3) / 4) {
        try_orders(search, objective, &pipeline);
        if (search->status != TSR_OK || pipeline.n || search->grain == 1 || search->staging->hasty)
            break;
    }
    search->smallest = 1;
    search->largest = tsr__search_devices(search);
    if (is_better(&pipeline, best, objective))
        *best = pipeline;
}

// Returns the largest size of blocks that is at most `most`.
static size_t largest_size(const struct stage_search *search, size_t most)
{
    size_t largest = 1;
    for (size_t z = 0; z < search->n_sizes && search->sizes[z] <= most; z++)
        largest = search->sizes[z];
    return largest;
}

// Quickly finds some pipeline, so that there is one when time is up. Tries stages of one device,
// then as few stages as possible on all devices, which is often the best. Example: 16 devices and 2
// stages: blocks of 8.
static void find_any(struct stage_search *search, tsr_objective objective, struct pipeline *out)
{
    try_blocks_of(search, 1, objective, out);
    size_t share = largest_size(search, tsr__search_devices(search) / search->least);
    if (search->status == TSR_OK && !search->staging->hasty && share > 1)
        try_blocks_of(search, share, objective, out);
}

// Limits the search to pipelines that are better than this one.
static void limit_search(struct stage_search *search, tsr_objective objective,
                         const struct pipeline *pipeline)
{
    int64_t takes = INT64_MAX;
    if (pipeline->n)
        takes = objective == TSR_THROUGHPUT ? pipeline->most : pipeline->sum;
    search->known = tsr__search_known(search, takes);
}

// Searches with few split points, then with about 4 times as many, until all are used. So there is
// a pipeline when time is up. A finer search wins ties, so without a time limit the coarse searches
// have no effect on the result.
static void refine(struct stage_search *search, tsr_objective objective, struct pipeline *out)
{
    find_any(search, objective, out);
    if (search->status != TSR_OK || search->staging->hasty)
        return;
    for (search->grain = coarsest(search);; search->grain = (search->grain + 3) / 4) {
        struct pipeline pipeline = {0};
        limit_search(search, objective, out);
        try_orders(search, objective, &pipeline);
        bool finished = !search->staging->hasty;
        if ((pipeline.n && finished) || is_better(&pipeline, out, objective))
            *out = pipeline;
        if (search->status != TSR_OK || search->grain == 1 || !finished)
            return;
    }
}

static tsr_status search_once(struct staging *staging, const tsr_plan_options *options,
                              enum measure what, bool flows, struct pipeline *out)
{
    struct stage_search search;
    tsr_objective objective = options->objective;
    if (what == MEASURE_MEMORY)
        objective = TSR_THROUGHPUT; // the fullest device counts, not the sum
    if (!search_init(&search, staging, options, flows))
        return TSR_NOMEM;
    search.measure = what;
    if (what == MEASURE_TIME)
        refine(&search, objective, out);
    else
        try_orders(&search, objective, out);
    return search.status;
}

tsr_status tsr__search_orders(struct staging *staging, const tsr_plan_options *options,
                              void (*each)(struct stage_search *search),
                              struct pipeline_trial *trial)
{
    struct stage_search search;
    struct pipeline none = {0};
    if (!search_init(&search, staging, options, false))
        return TSR_NOMEM;
    search.measure = MEASURE_OPEN;
    search.bottleneck = options->objective == TSR_THROUGHPUT;
    search.each = each;
    search.trial = trial;
    try_orders(&search, options->objective, &none);
    return search.status;
}

// Finds the best pipeline. For throughput, first searches for pipelines whose stages send only to
// the next one. Searches for other pipelines only if the first search finds nothing.
tsr_status tsr__stages_search(struct staging *staging, const tsr_plan_options *options,
                              enum measure what, struct pipeline *out)
{
    *out = (struct pipeline){0};
    if (what != MEASURE_MEMORY && options->objective == TSR_THROUGHPUT)
        TRY(search_once(staging, options, what, true, out));
    if (!out->n)
        TRY(search_once(staging, options, what, false, out));
    return arena_status(&staging->planner->arena);
}
