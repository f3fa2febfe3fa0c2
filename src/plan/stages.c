// SPDX-License-Identifier: Apache-2.0
// stages.c - pipeline stages: which nodes follow one another on which devices.
//
// Dynamic programming over ranges of the graph's order and blocks of the devices' order: the best plan whose first k
// stages have the nodes before cut i and the devices before d is the best of those with one stage less, and a last stage
// of the front. Latency is the sum over stages of time and transfer; for throughput the slowest stage counts, and among
// equals the sum. Devices that would only make it slower stay idle. Unlike devices are tried in other orders too.
//
// Two ranges A and B on devices 1 and 0, in that order. On one device A takes 6 ms and B takes 4, on both 4 and 3; what
// crosses between them takes 1, and outputs nothing. The cells (stages, cut, devices used) that are reached first:
//
//     0 stages, before A, 0 used:  0
//     1 stage,  after A,  1 used:  6           1 stage, after B, 1 used: 10 (A and B on device 1)
//     1 stage,  after A,  2 used:  4           1 stage, after B, 2 used:  7 (A and B on both: 4 + 3)
//     2 stages, after B,  2 used:  6 + 1 + 4 = 11
//
// For latency one stage on both devices is best (7). For throughput the slowest stage counts: two stages let runs come out
// every 6 + 1 = 7 ms too, and the smaller sum decides for one stage.
#include "plan/stage_search.h"

#include <stdlib.h>

#define ALL_SIZES  8   // so many devices: blocks of every size; else powers of two and divisors
#define ALL_STARTS 64  // so many devices: blocks begin anywhere; else at multiples of their size
#define MAX_ORDERS 120 // of unlike devices
#define ALL_ORDERS 4   // so many devices: those at unlike links in every order too
#define MAX_CELLS  ((size_t)1 << 22)
#define FEW_RANGES 4 // of a first, coarse search

// ---- blocks ------------------------------------------------------------------------------------

size_t tsr__search_devices(const struct search *search)
{
    return (size_t)search->staging->planner->machine.n;
}

// 4 devices: blocks of 1, 2, 3 and 4. 12 devices: of 1, 2, 3, 4, 6, 8 and 12.
static void list_sizes(struct search *search)
{
    size_t n = tsr__search_devices(search);
    search->n_sizes = 0;
    for (size_t k = 1; k <= n; k++) {
        bool power_of_two = (k & (k - 1)) == 0;
        if (search->n_sizes == MAX_SIZES)
            return;
        if (n <= ALL_SIZES || n % k == 0 || power_of_two)
            search->sizes[search->n_sizes++] = k;
    }
}

// On many devices, and in a coarse search, blocks do not overlap: of 128, blocks of 32 start at 0, 32, 64 and 96. Unlike
// devices have kinds of blocks by the dozen, so a coarse search knows powers of two and all devices only.
bool tsr__search_may_start(const struct search *search, size_t start, size_t n)
{
    bool coarse = search->grain > 1, power_of_two = (n & (n - 1)) == 0;
    if (start + n > tsr__search_devices(search) || n < search->smallest || n > search->largest)
        return false;
    if (coarse && !power_of_two && n != tsr__search_devices(search))
        return false;
    return (!coarse && tsr__search_devices(search) <= ALL_STARTS) || start % n == 0;
}

// What each device of a block has, at least.
static int64_t memory_of(const struct staging *staging, const int64_t *devices, size_t n)
{
    int64_t least = PLAN_NO_LIMIT;
    if (staging->memory > 0)
        return staging->memory;
    if (staging->memory < 0)
        return PLAN_NO_LIMIT;
    for (size_t i = 0; i < n; i++) {
        int64_t bytes = staging->planner->machine.topology->device[devices[i]].memory;
        if (bytes > 0)
            least = smaller(least, bytes);
    }
    return least;
}

// size is a place in search->sizes, not a number of devices.
static struct block *block_at(struct search *search, size_t start, size_t size)
{
    return &search->blocks[start * search->n_sizes + size];
}

static int by_device(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

bool tsr__search_kind(struct search *search, struct block *block)
{
    if (!block->kind)
        block->kind = tsr__stages_kind(search->staging, block->devices, block->n);
    return block->kind != NULL;
}

// Every block that may hold a stage, in the order of devices at hand.
static bool list_blocks(struct search *search)
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
            // Ascending, so that blocks of the same devices in another order of the line find the
            // same kind.
            qsort(block->devices, block->n, sizeof *block->devices, by_device);
            block->memory = memory_of(search->staging, block->devices, block->n);
        }
    // Ranges are described by the nodes of the first kind, whichever it is.
    return search->staging->all_kinds.n > 0 || tsr__search_kind(search, block_at(search, 0, 0));
}

// ---- transfers ---------------------------------------------------------------------------------

// A value from one device to all of a block, which do not have it: as the cut model brings it there. Kept by place in line.
static int64_t send_time(struct search *search, struct planner *planner, int64_t from,
                         const int64_t *to, size_t n, size_t start, const tsr_value *value)
{
    const struct plan_value *sized = &planner->values[tsr__value_id(value)];
    // `start` and `n` name the receivers: a block is a stretch of the line.
    int64_t key[4] = {tsr__stages_bytes(planner, value), from, (int64_t)start, (int64_t)n};
    struct str text = {(const char *)key, sizeof key};
    int64_t *found = tsr__map_get(&search->transfers, text);
    if (found)
        return *found;
    struct arena *arena = &search->staging->planner->arena;
    void **at = tsr__map_at(&search->transfers, tsr__arena_str(arena, text));
    found = ARENA_NEW(arena, int64_t);
    uint32_t has = tsr__planner_whole_on(planner, sized->rank, &from, 1);
    uint32_t wants = tsr__planner_whole_on(planner, sized->rank, to, n);
    if (!at || !found || has == PLAN_NO_LAYOUT || wants == PLAN_NO_LAYOUT)
        return NEVER_FITS;
    *found = tsr__planner_price(planner, has, wants, sized);
    *at = found;
    return *found;
}

// What a stage gets from the one before, of one run of the model. Outputs stay on the first device of the stage that makes them
// (partition/steps/ports.c).
static int64_t transfer_of(struct search *search, struct staging *model, size_t from, size_t to,
                           const struct block *block)
{
    const struct range *range = tsr__stages_range(model, from, to);
    size_t start = block->start;
    int64_t ps = 0;
    if (!range)
        return NEVER_FITS;
    // What the stages before sent along lies on the device in line before this block.
    if (start > 0)
        for (size_t i = 0; i < range->n_in; i++)
            ps += send_time(search, model->planner, search->order[start - 1], block->devices,
                            block->n, start, range->in[i]);
    return smaller(ps, NEVER_FITS);
}

// The same of all runs: where two models are planned, of both.
static int64_t transfers_of(struct search *search, size_t from, size_t to,
                            const struct block *block)
{
    struct staging *staging = search->staging;
    int64_t own = transfer_of(search, staging, from, to, block);
    if (!staging->other)
        return own;
    return tsr__stages_both(staging, own, transfer_of(search, staging->other, from, to, block));
}

// What the devices of a stage are held up by giving to the next, of which one device is known to be there.
static int64_t hand_over(struct search *search, struct staging *model, size_t from, size_t to,
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
    return smaller(ps, NEVER_FITS);
}

static int64_t hands_over(struct search *search, size_t from, size_t to, const struct block *block)
{
    struct staging *staging = search->staging;
    int64_t own = hand_over(search, staging, from, to, block);
    if (!staging->other)
        return own;
    return tsr__stages_both(staging, own, hand_over(search, staging->other, from, to, block));
}

// What bringing a value to or from the block takes at least, however both sides cut it: of n makers and m readers some pair moves a
// part of n m or more, and the nearest pair does so soonest.
static int64_t least_transfer(struct search *search, const struct block *block,
                              struct stretch others, int64_t bytes)
{
    int64_t least = NEVER_FITS;
    int64_t part = bytes / (int64_t)(others.n * block->n);
    for (size_t i = others.first; i < others.first + others.n; i++)
        for (size_t k = 0; k < block->n; k++) {
            int64_t ends[2] = {search->order[i], block->devices[k]};
            struct device_group pair = {ends, 2};
            least = smaller(least, tsr__planner_combine(search->staging->planner, TSR_SEND, &pair,
                                                        1, larger(part, 1)));
        }
    return least;
}

// The same of all that the range reads of others.
static int64_t least_transfers(struct search *search, size_t i, size_t j, const struct block *block)
{
    const struct range *range = tsr__stages_range(search->staging, i, j);
    int64_t ps = 0;
    if (!range)
        return NEVER_FITS;
    if (block->start == 0)
        return 0;
    for (size_t k = 0; k < range->n_in; k++)
        ps += least_transfer(search, block, (struct stretch){0, block->start},
                             tsr__stages_bytes(search->staging->planner, range->in[k]));
    return smaller(ps, NEVER_FITS);
}

// What one device of the block is busy with at least of those values. Where there are several, each value may keep another busy.
static int64_t least_busy(struct search *search, const struct block *block, struct stretch others,
                          const tsr_value **values, size_t n)
{
    int64_t sum = 0, most = 0;
    if (others.n == 0)
        return 0;
    for (size_t k = 0; k < n; k++) {
        int64_t ps = least_transfer(search, block, others,
                                    tsr__stages_bytes(search->staging->planner, values[k]));
        sum = smaller(sum + ps, NEVER_FITS);
        most = larger(most, ps);
    }
    return block->n == 1 ? sum : most;
}

// The same of all that the range reads of others and gives to others: where runs follow one another, both hold it up.
static int64_t least_crossings(struct search *search, size_t i, size_t j, const struct block *block,
                               const struct neighbours *near)
{
    const struct range *range = tsr__stages_range(search->staging, i, j);
    if (!range)
        return NEVER_FITS;
    int64_t comes = least_busy(search, block, near->before, range->in, range->n_in);
    int64_t goes = least_busy(search, block, near->behind, range->leave, range->n_leave);
    if (block->n > 1)
        return larger(comes, goes);
    return smaller(comes + goes, NEVER_FITS);
}

struct neighbours tsr__search_neighbours(const struct search *search, const struct block *block)
{
    size_t next = block->start + block->n;
    return (struct neighbours){.before = {0, block->start},
                               .behind = {next, tsr__search_devices(search) - next}};
}

int64_t tsr__search_busy(struct search *search, size_t i, size_t j, const struct block *block,
                         const struct neighbours *near)
{
    struct point point = {0};
    search->status = tsr__front_open(search->staging, block->kind, i, j, block->memory, &point);
    if (search->status != TSR_OK || !point.feasible)
        return NEVER_FITS;
    return smaller(point.bound + least_crossings(search, i, j, block, near), NEVER_FITS);
}

// No line with that range on the block takes less for it.
static int64_t measure_open(struct search *search, size_t i, size_t j, const struct block *block)
{
    struct point point = {0};
    if (search->bottleneck) {
        struct neighbours near = tsr__search_neighbours(search, block);
        return tsr__search_busy(search, i, j, block, &near);
    }
    search->status = tsr__front_open(search->staging, block->kind, i, j, block->memory, &point);
    if (search->status != TSR_OK || !point.feasible)
        return NEVER_FITS;
    return smaller(point.bound + least_transfers(search, i, j, block), NEVER_FITS);
}

// ---- dynamic programming -----------------------------------------------------------------------

// The range on the block by the measure of the search: time or proved time with what comes and goes, or memory.
static int64_t measure(struct search *search, size_t i, size_t j, struct block *block)
{
    struct point point = {0};
    int64_t bytes = 0;
    if (!block->kind && tsr__stages_over(search->staging)) {
        search->staging->hasty = true;
        return NEVER_FITS;
    }
    if (!tsr__search_kind(search, block)) {
        search->status = TSR_NOMEM;
        return NEVER_FITS;
    }
    if (search->measure == MEASURE_MEMORY) {
        search->status = tsr__front_least(search->staging, block->kind, i, j, &bytes);
        return smaller(bytes, NEVER_FITS);
    }
    if (search->measure == MEASURE_OPEN)
        return measure_open(search, i, j, block);
    search->status = tsr__front_at(search->staging, block->kind, i, j, block->memory, &point);
    if (search->status != TSR_OK || !point.feasible)
        return NEVER_FITS;
    int64_t own = search->measure == MEASURE_BOUND ? point.bound : point.time;
    return smaller(own + transfers_of(search, i, j, block), NEVER_FITS);
}

// The measure of the range from cut i to cut j on the block, asked once. After an error it stays
// UNKNOWN, which callers see as a small number: they look at the status.
int64_t tsr__search_value(struct search *search, size_t i, size_t j, size_t block)
{
    size_t n_blocks = tsr__search_devices(search) * search->n_sizes;
    int64_t *at = &search->value[(i * (search->staging->n_ranges + 1) + j) * n_blocks + block];
    if (*at == UNKNOWN && search->status == TSR_OK)
        *at = measure(search, i, j, &search->blocks[block]);
    return *at;
}

// begin: where the last stage begins; only looked at where it decides what may follow.
struct cell *tsr__search_cell(struct search *search, size_t stages, size_t begin, size_t cut,
                              size_t devices)
{
    size_t cuts = search->staging->n_ranges + 1, at = stages;
    if (search->flows)
        at = stages * cuts + begin;
    return &search->cells[(at * cuts + cut) * (tsr__search_devices(search) + 1) + devices];
}

static bool better(const struct search *search, const struct cell *a, const struct cell *b)
{
    if (search->bottleneck && a->most != b->most)
        return a->most < b->most;
    return a->sum < b->sum;
}

// Runs follow one another only if each stage hands over to the next alone: who gives something to a later stage waits
// until that one is done with the run before.
static bool follows(struct staging *model, size_t begin, size_t i, size_t j)
{
    const struct range *range = tsr__stages_range(model, i, j);
    return range && range->earliest >= model->cut[begin];
}

bool tsr__stages_follow(struct staging *staging, size_t begin, size_t i, size_t j)
{
    return follows(staging, begin, i, j) &&
           (!staging->other || follows(staging->other, begin, i, j));
}

// A stage more: what is before it, and where and on which block it runs.
struct step {
    size_t stages, begin, cut,
        used; // so far: the last from `begin` to `cut`, the first `used` devices of the line spent
    size_t size; // of its block: place in search->sizes
};

// Tries the stage from the cut of the step to cut j.
static void try_stage(struct search *search, const struct cell *from, const struct step *step,
                      size_t j)
{
    size_t n = search->sizes[step->size], block = step->used * search->n_sizes + step->size;
    if (!tsr__stages_may_end(search->staging, step->stages, search->staging->cut[j]))
        return;
    if (search->flows && step->stages > 0 &&
        !tsr__stages_follow(search->staging, step->begin, step->cut, j))
        return;
    if (tsr__search_hopeless(search, step->cut, j, block, from->sum))
        return;
    // `own` counts for the latency; for the pace of runs the stage is also busy handing over.
    int64_t own = tsr__search_value(search, step->cut, j, block), busy = own;
    if (search->flows)
        busy += hands_over(search, step->cut, j, &search->blocks[block]);
    if (own >= NEVER_FITS || busy > search->cap)
        return;
    struct cell *to = tsr__search_cell(search, step->stages + 1, step->cut, j, step->used + n);
    struct cell next = {from->sum + own, larger(busy, from->most), step->cut, from->begin, block};
    if (better(search, &next, to))
        *to = next;
}

// Goes on from the state with one more stage, on blocks of every size that ends at every cut; the last that there may be
// ends at the end of the graph.
static void extend(struct search *search, struct step step)
{
    const struct cell from =
        *tsr__search_cell(search, step.stages, step.begin, step.cut, step.used);
    size_t last = search->staging->n_ranges, first = step.cut + 1;
    if (step.stages + 1 == search->most)
        first = last;
    if (step.used >= tsr__search_devices(search))
        return;
    for (step.size = 0; step.size < search->n_sizes; step.size++) {
        if (search->status != TSR_OK)
            return;
        if (!tsr__search_may_start(search, step.used, search->sizes[step.size]))
            continue;
        for (size_t j = first; j <= last; j++)
            if (j % search->grain == 0 || j == last)
                try_stage(search, &from, &step, j);
    }
}

// The best final state; NULL: there is none.
// More devices first: of equal ends the one that leaves fewer devices idle at the end of the line
// is kept.
static const struct cell *best_end(struct search *search, size_t *stages)
{
    const struct cell *best = NULL;
    size_t cuts = search->staging->n_ranges, begins = search->flows ? cuts : 1;
    for (size_t k = search->least; k <= search->most; k++)
        for (size_t used = tsr__search_devices(search); used > 0; used--)
            for (size_t begin = 0; begin < begins; begin++) {
                const struct cell *cell = tsr__search_cell(search, k, begin, cuts, used);
                if (cell->sum < INT64_MAX && (!best || better(search, cell, best))) {
                    best = cell;
                    *stages = k;
                }
            }
    return best;
}

// Goes on from all states of that many stages and those cuts.
static void extend_all(struct search *search, struct step step)
{
    for (step.used = step.stages; step.used < tsr__search_devices(search); step.used++) {
        if (search->status != TSR_OK)
            return;
        if (tsr__search_cell(search, step.stages, step.begin, step.cut, step.used)->sum < INT64_MAX)
            extend(search, step);
    }
}

// Fills the cells, those of fewer stages first. Devices at either end of the line may stay idle.
const struct cell *tsr__search_run(struct search *search, size_t *stages)
{
    size_t cuts = search->staging->n_ranges;
    for (size_t i = 0; i < search->n_cells; i++)
        search->cells[i] = (struct cell){INT64_MAX, INT64_MAX, 0, 0, 0};
    // A line may begin at any device: those before it are idle from the start.
    for (size_t used = 0; used < tsr__search_devices(search); used++)
        *tsr__search_cell(search, 0, 0, 0, used) = (struct cell){0};
    size_t begins = search->flows ? cuts : 1, all = search->most * begins * cuts;
    for (size_t k = 0; k < search->most; k++)
        for (size_t begin = 0; begin < begins; begin++)
            for (size_t i = k; i < cuts; i++) {
                tsr__progress(search->staging->planner->session, "stages: step",
                              (k * begins + begin) * cuts + i, all);
                extend_all(search, (struct step){.stages = k, .begin = begin, .cut = i});
            }
    tsr__progress(search->staging->planner->session, "stages: step", all, all);
    if (search->status != TSR_OK)
        return NULL;
    return best_end(search, stages);
}

// Nothing is known of the values and transfers of the next order of devices.
static void forget(struct search *search, enum measure what)
{
    size_t n = (search->staging->n_ranges + 1) * (search->staging->n_ranges + 1) *
               tsr__search_devices(search) * search->n_sizes;
    for (size_t i = 0; i < n; i++)
        search->value[i] = UNKNOWN;
    search->measure = what;
    search->cap = INT64_MAX;
    search->knows_rest = false;
    tsr__map_init(&search->transfers, &search->staging->planner->arena, 256);
}

// Stages of the best end, back to front.
static void read_line(struct search *search, size_t stages, const struct cell *cell,
                      struct line *out)
{
    size_t cut = search->staging->n_ranges;
    *out = (struct line){.n = stages, .sum = cell->sum, .most = cell->most};
    for (size_t k = stages; k > 0; k--) {
        const struct block *block = &search->blocks[cell->block];
        struct stage *stage = &out->at[k - 1];
        *stage =
            (struct stage){.begin = cell->begin, .end = cut, .n = block->n, .kind = block->kind};
        stage->memory = block->memory;
        stage->devices = ARENA_ARRAY(&search->staging->planner->arena, int64_t, block->n);
        if (stage->devices)
            memcpy(stage->devices, block->devices, block->n * sizeof *stage->devices);
        stage->transfer[0] = transfer_of(search, search->staging, cell->begin, cut, block);
        if (search->staging->other)
            stage->transfer[1] =
                transfer_of(search, search->staging->other, cell->begin, cut, block);
        cut = cell->begin;
        cell = tsr__search_cell(search, k - 1, cell->before, cut, block->start);
    }
}

// For throughput: first the least slowest stage, then the least sum that keeps it.
static bool find_line(struct search *search, tsr_objective objective, struct line *out)
{
    size_t stages = 0;
    search->bottleneck = objective == TSR_THROUGHPUT || search->measure == MEASURE_MEMORY;
    const struct cell *end = tsr__search_run(search, &stages);
    // `most` of the best end is the pace. The second run lets no stage be slower and minimises the
    // sum; a sum by itself says nothing about the pace.
    if (end && search->bottleneck && search->measure == MEASURE_TIME) {
        search->cap = end->most;
        search->bottleneck = false;
        end = tsr__search_run(search, &stages);
    }
    if (end)
        read_line(search, stages, end, out);
    return end != NULL;
}

// ---- orders of devices -------------------------------------------------------------------------

// A message takes as long between any two devices. Asked of few.
static bool links_alike(struct search *search)
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

// Few devices on a ring or grid differ by where they are.
static void label_places(struct search *search, size_t *label)
{
    size_t n = tsr__search_devices(search);
    if (n > ALL_ORDERS || links_alike(search))
        return;
    for (size_t device = 0; device < n; device++)
        label[device] = device;
}

// label: by device, the first that is like it.
static void label_devices(const struct search *search, size_t *label)
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

// The next order of labels in the dictionary: 0 2 1 becomes 1 0 2. False: it was the last.
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

// Devices of each label in descending order.
static void order_by(struct search *search, const size_t *own, const size_t *label)
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

static bool beats(const struct line *a, const struct line *b, tsr_objective objective)
{
    if (objective == TSR_THROUGHPUT && a->most != b->most)
        return a->most < b->most;
    return a->sum < b->sum;
}

// `best` stays unless the line of this order beats it.
static void try_order(struct search *search, tsr_objective objective, struct line *best)
{
    struct line line;
    enum measure what = search->measure;
    forget(search, what);
    if (!list_blocks(search))
        search->status = TSR_NOMEM;
    else if (what == MEASURE_OPEN)
        tsr__lines_of_order(search);
    else if (find_line(search, objective, &line) && (!best->n || beats(&line, best, objective)))
        *best = line;
}

static int by_number(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

static bool is_descending(const struct search *search)
{
    size_t n = tsr__search_devices(search);
    for (size_t i = 0; i < n; i++)
        if (search->order[i] != (int64_t)(n - 1 - i))
            return false;
    return true;
}

// In descending order; few unlike devices in every order.
static void try_orders(struct search *search, tsr_objective objective, struct line *best)
{
    size_t n = tsr__search_devices(search), own[ALL_SIZES], label[ALL_SIZES];
    for (size_t device = 0; device < n; device++)
        search->order[device] = (int64_t)(n - 1 - device);
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

// How many stages there may be: one for each device and range at most; as many as were asked for, if they were.
static void bound_stages(struct search *search, int64_t asked)
{
    int64_t most = smaller(search->staging->planner->machine.n, (int64_t)search->staging->n_ranges);
    most = smaller(most, STAGES_MOST);
    search->least = 1;
    if (asked > 0) {
        most = smaller(most, asked);
        search->least = (size_t)most;
    }
    search->most = (size_t)most;
}

// flows: stages are to hand over to the next alone; where the cells would be too many, that is not looked at.
static bool search_init(struct search *search, struct staging *staging,
                        const tsr_plan_options *options, bool flows)
{
    struct arena *arena = &staging->planner->arena;
    size_t n = (size_t)staging->planner->machine.n, cuts = staging->n_ranges + 1;
    *search = (struct search){
        .staging = staging, .grain = 1, .smallest = 1, .largest = n, .status = TSR_OK};
    search->known = tsr__search_known(search, INT64_MAX);
    search->paced = options->objective == TSR_THROUGHPUT;
    search->rest = ARENA_ARRAY(arena, int64_t, cuts);
    bound_stages(search, options->stages);
    list_sizes(search);
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

// So coarse that there are few ranges, yet one for each stage that is wanted; hand-made stages end where they end.
static size_t coarsest(const struct search *search)
{
    size_t ranges = FEW_RANGES;
    if (search->least > ranges)
        ranges = search->least;
    if (search->staging->n_hand || search->staging->n_ranges < 2 * ranges)
        return 1;
    return search->staging->n_ranges / ranges;
}

// Lines whose stages have `n` devices each: the coarsest that there is, if it is better than the one that is known.
static void try_blocks_of(struct search *search, size_t n, tsr_objective objective,
                          struct line *best)
{
    struct line line = {0};
    search->smallest = search->largest = n;
    for (search->grain = coarsest(search);; search->grain = (search->grain + 3) / 4) {
        try_orders(search, objective, &line);
        if (search->status != TSR_OK || line.n || search->grain == 1 || search->staging->hasty)
            break;
    }
    search->smallest = 1;
    search->largest = tsr__search_devices(search);
    if (line.n && (!best->n || beats(&line, best, objective)))
        *best = line;
}

// A line that is found at once, so that there is one whenever time is up: stages of one device each, where nothing is cut; then as
// few stages as there may be on all devices, which is often the best of all. 16 devices and 2 stages: blocks of 8.
static void find_any(struct search *search, tsr_objective objective, struct line *out)
{
    try_blocks_of(search, 1, objective, out);
    size_t share = tsr__search_devices(search) / search->least;
    if (search->status == TSR_OK && !search->staging->hasty && share > 1)
        try_blocks_of(search, share, objective, out);
}

// Lines that are worse than this one are not looked for.
static void heed(struct search *search, tsr_objective objective, const struct line *line)
{
    int64_t takes = INT64_MAX;
    if (line->n)
        takes = objective == TSR_THROUGHPUT ? line->most : line->sum;
    search->known = tsr__search_known(search, takes);
}

// Every 16th cut first, every 4th, then each: whenever time is up there is a line. What a finer search finds is taken even if
// it is as good, so that without haste the coarse ones change nothing.
static void refine(struct search *search, tsr_objective objective, struct line *out)
{
    find_any(search, objective, out);
    if (search->status != TSR_OK || search->staging->hasty)
        return;
    for (search->grain = coarsest(search);; search->grain = (search->grain + 3) / 4) {
        struct line line = {0};
        heed(search, objective, out);
        try_orders(search, objective, &line);
        bool any = out->n > 0, finished = !search->staging->hasty;
        if (line.n && (finished || !any || beats(&line, out, objective)))
            *out = line;
        if (search->status != TSR_OK || search->grain == 1 || !finished)
            return;
    }
}

static tsr_status search_once(struct staging *staging, const tsr_plan_options *options,
                              enum measure what, bool flows, struct line *out)
{
    struct search search;
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
                              struct line_trial *trial)
{
    struct search search;
    struct line none = {0};
    if (!search_init(&search, staging, options, false))
        return TSR_NOMEM;
    search.measure = MEASURE_OPEN;
    search.bottleneck = options->objective == TSR_THROUGHPUT;
    search.trial = trial;
    try_orders(&search, options->objective, &none);
    return search.status;
}

// Where runs follow one another, stages that wait for no other come first; those that wait are better than nothing.
tsr_status tsr__stages_search(struct staging *staging, const tsr_plan_options *options,
                              enum measure what, struct line *out)
{
    tsr_status st = TSR_OK;
    *out = (struct line){0};
    if (what != MEASURE_MEMORY && options->objective == TSR_THROUGHPUT)
        st = search_once(staging, options, what, true, out);
    if (st == TSR_OK && !out->n)
        st = search_once(staging, options, what, false, out);
    if (st != TSR_OK)
        return st;
    if (staging->planner->arena.failed)
        return TSR_NOMEM;
    return TSR_OK;
}
