// SPDX-License-Identifier: Apache-2.0
// stages.c - pipeline stages: which nodes follow one another on which devices.
//
// Dynamic programming over ranges of the graph's order and blocks of the devices' order: the best plan whose first k
// stages have the nodes before cut i and the devices before d is the best of those with one stage less, and a last stage
// of the front. Latency is the sum over stages of time and transfer; for throughput the slowest stage counts, and among
// equals the sum. Devices that would only make it slower stay idle. Unlike devices are tried in other orders too.
#include "plan/stages.h"

#include <stdlib.h>

#define ALL_SIZES  8   // so many devices: blocks of every size; else powers of two and divisors
#define ALL_STARTS 64  // so many devices: blocks begin anywhere; else at multiples of their size
#define MAX_SIZES  64  // of blocks
#define MAX_ORDERS 120 // of unlike devices
#define MAX_CELLS  ((size_t)1 << 22)
#define UNKNOWN    (-1)
#define NEVER_FITS PLAN_NEVER

struct block {
    size_t start, n;
    int64_t *devices; // ascending; the first has what others are to get
    struct kind *kind;
    int64_t memory;
};
// The best way to a state, and what it came from.
struct cell {
    int64_t sum, most;
    size_t begin, before; // cuts: where its last stage begins, and the one before that
    size_t block;
};
struct search {
    struct staging *staging;
    int64_t *order; // devices in line
    size_t sizes[MAX_SIZES], n_sizes;
    struct block *blocks; // by start and size
    int64_t *value;       // by range and block; UNKNOWN
    struct cell *cells;   // by number of stages, begin of the last, cut and devices
    size_t n_cells;
    bool flows;         // each stage hands over to the next alone
    size_t least, most; // stages
    enum measure measure;
    int64_t cap; // no stage may take more
    bool bottleneck;
    struct map transfers;
    tsr_status status;
};

// ---- blocks ------------------------------------------------------------------------------------

static size_t devices_of(const struct search *search)
{
    return (size_t)search->staging->planner->machine.n;
}

static void list_sizes(struct search *search)
{
    size_t n = devices_of(search);
    search->n_sizes = 0;
    for (size_t k = 1; k <= n && search->n_sizes < MAX_SIZES; k++)
        if (n <= ALL_SIZES || n % k == 0 || (k & (k - 1)) == 0)
            search->sizes[search->n_sizes++] = k;
}

static bool may_start(const struct search *search, size_t start, size_t n)
{
    return start + n <= devices_of(search) && (devices_of(search) <= ALL_STARTS || start % n == 0);
}

static int64_t memory_of(const struct staging *staging, const int64_t *devices, size_t n)
{
    int64_t least = staging->memory > 0 ? staging->memory : PLAN_NO_LIMIT;
    for (size_t i = 0; i < n && staging->memory == 0; i++) {
        int64_t bytes = staging->planner->machine.topology->device[devices[i]].memory;
        least = bytes > 0 && bytes < least ? bytes : least;
    }
    return least;
}

static struct block *block_at(struct search *search, size_t start, size_t size)
{
    return &search->blocks[start * search->n_sizes + size];
}

static int by_device(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static bool list_blocks(struct search *search)
{
    for (size_t start = 0; start < devices_of(search); start++)
        for (size_t z = 0; z < search->n_sizes; z++) {
            struct block *block = block_at(search, start, z);
            *block = (struct block){.start = start, .n = search->sizes[z]};
            if (!may_start(search, start, block->n))
                continue;
            block->devices = ARENA_ARRAY(&search->staging->planner->arena, int64_t, block->n);
            if (!block->devices)
                return false;
            memcpy(block->devices, &search->order[start], block->n * sizeof *block->devices);
            qsort(block->devices, block->n, sizeof *block->devices, by_device);
            block->memory = memory_of(search->staging, block->devices, block->n);
            block->kind = tsr__stages_kind(search->staging, block->devices, block->n);
            if (!block->kind)
                return false;
        }
    return true;
}

// ---- transfers ---------------------------------------------------------------------------------

// A value from one device to all of a block, which do not have it. Kept by place in line.
static int64_t send_time(struct search *search, int64_t from, const int64_t *to, size_t n,
                         size_t start, int64_t bytes)
{
    struct arena *arena = &search->staging->planner->arena;
    int64_t key[4] = {bytes, from, (int64_t)start, (int64_t)n};
    struct str text = {(const char *)key, sizeof key};
    int64_t *found = tsr__map_get(&search->transfers, text);
    if (found)
        return *found;
    void **at = tsr__map_at(&search->transfers, tsr__arena_str(arena, text));
    int64_t *group = ARENA_ARRAY(arena, int64_t, n + 1);
    found = ARENA_NEW(arena, int64_t);
    if (!at || !found || !group)
        return NEVER_FITS;
    group[0] = from;
    memcpy(group + 1, to, n * sizeof *to);
    struct device_group all = {group, n + 1};
    *found = tsr__planner_combine(search->staging->planner, n == 1 ? TSR_SEND : TSR_BROADCAST, &all,
                                  1, bytes);
    *at = found;
    return *found;
}

// What a stage gets from the one before, and gives out of the pipeline.
static int64_t transfer_of(struct search *search, size_t from, size_t to, const struct block *block)
{
    const struct range *range = tsr__stages_range(search->staging, from, to);
    const int64_t *mine = block->devices;
    int64_t ps = 0, gives = mine[0];
    if (!range)
        return NEVER_FITS;
    for (size_t i = 0; i < range->n_in && block->start > 0; i++)
        ps += send_time(search, search->order[block->start - 1], mine, block->n, block->start,
                        tsr__stages_bytes(search->staging->planner, range->in[i]));
    static const int64_t first = 0;
    for (size_t i = 0; i < range->n_out && gives != first; i++)
        ps += send_time(search, gives, &first, 1, SIZE_MAX,
                        tsr__stages_bytes(search->staging->planner, range->out[i]));
    return ps < NEVER_FITS ? ps : NEVER_FITS;
}

// What the devices of a stage are held up by giving to the next, of which one device is known to be there.
static int64_t hand_over(struct search *search, size_t from, size_t to, const struct block *block)
{
    const struct range *range = tsr__stages_range(search->staging, from, to);
    size_t next = block->start + block->n;
    int64_t ps = 0;
    for (size_t i = 0; range && i < range->n_leave && next < devices_of(search); i++)
        ps += send_time(search, search->order[next - 1], &search->order[next], 1, next,
                        tsr__stages_bytes(search->staging->planner, range->leave[i]));
    return ps < NEVER_FITS ? ps : NEVER_FITS;
}

// ---- dynamic programming -----------------------------------------------------------------------

static int64_t measure(struct search *search, size_t i, size_t j, const struct block *block)
{
    struct point point = {0};
    int64_t bytes = 0;
    if (search->measure == MEASURE_MEMORY) {
        search->status = tsr__front_least(search->staging, block->kind, i, j, &bytes);
        return bytes < NEVER_FITS ? bytes : NEVER_FITS;
    }
    search->status = tsr__front_at(search->staging, block->kind, i, j, block->memory, &point);
    if (search->status != TSR_OK || !point.feasible)
        return NEVER_FITS;
    int64_t own = search->measure == MEASURE_BOUND ? point.bound : point.time;
    int64_t ps = own + transfer_of(search, i, j, block);
    return ps < NEVER_FITS ? ps : NEVER_FITS;
}

static int64_t value_of(struct search *search, size_t i, size_t j, size_t block)
{
    size_t n_blocks = devices_of(search) * search->n_sizes;
    int64_t *at = &search->value[(i * (search->staging->n_ranges + 1) + j) * n_blocks + block];
    if (*at == UNKNOWN && search->status == TSR_OK)
        *at = measure(search, i, j, &search->blocks[block]);
    return *at;
}

// begin: where the last stage begins; only looked at where it decides what may follow.
static struct cell *cell_at(struct search *search, size_t stages, size_t begin, size_t cut,
                            size_t devices)
{
    size_t cuts = search->staging->n_ranges + 1,
           at = search->flows ? stages * cuts + begin : stages;
    return &search->cells[(at * cuts + cut) * (devices_of(search) + 1) + devices];
}

static bool better(const struct search *search, const struct cell *a, const struct cell *b)
{
    int64_t x = search->bottleneck ? a->most : a->sum, y = search->bottleneck ? b->most : b->sum;
    return x != y ? x < y : a->sum < b->sum;
}

// Runs follow one another only if each stage hands over to the next alone: who gives something to a later stage waits
// until that one is done with the run before. The last stage gives the outputs.
static bool follows(struct search *search, size_t begin, size_t i, size_t j)
{
    const struct range *before = tsr__stages_range(search->staging, begin, i);
    const struct range *range = tsr__stages_range(search->staging, i, j);
    return before && range && range->earliest >= search->staging->cut[begin] &&
           (before->n_out == 0 || j == search->staging->n_ranges);
}

// Goes on from the state (k stages, the last from `begin` to cut i, the first `used` devices of the line spent)
// with one more stage.
static void extend(struct search *search, size_t k, size_t begin, size_t i, size_t used)
{
    const struct cell from = *cell_at(search, k, begin, i, used);
    size_t last = search->staging->n_ranges;
    for (size_t z = 0; z < search->n_sizes && search->status == TSR_OK; z++) {
        size_t n = search->sizes[z], block = used * search->n_sizes + z;
        if (used >= devices_of(search) || !may_start(search, used, n))
            continue;
        for (size_t j = k + 1 == search->most ? last : i + 1; j <= last; j++) {
            if (!tsr__stages_may_end(search->staging, k, search->staging->cut[j]) ||
                (search->flows && k > 0 && !follows(search, begin, i, j)))
                continue;
            int64_t own = value_of(search, i, j, block);
            int64_t busy =
                search->flows ? own + hand_over(search, i, j, &search->blocks[block]) : own;
            if (own >= NEVER_FITS || busy > search->cap)
                continue;
            struct cell *to = cell_at(search, k + 1, i, j, used + n);
            struct cell next = {from.sum + own, busy > from.most ? busy : from.most, i, from.begin,
                                block};
            if (better(search, &next, to))
                *to = next;
        }
    }
}

// The best final state; NULL: there is none.
static const struct cell *best_end(struct search *search, size_t *stages)
{
    const struct cell *best = NULL;
    size_t cuts = search->staging->n_ranges;
    for (size_t k = search->least; k <= search->most; k++)
        for (size_t used = devices_of(search); used > 0; used--)
            for (size_t begin = 0; begin < (search->flows ? cuts : 1); begin++) {
                const struct cell *cell = cell_at(search, k, begin, cuts, used);
                if (cell->sum < INT64_MAX && (!best || better(search, cell, best))) {
                    best = cell;
                    *stages = k;
                }
            }
    return best;
}

// Devices at either end of the line may stay idle.
static const struct cell *run(struct search *search, size_t *stages)
{
    size_t cuts = search->staging->n_ranges;
    for (size_t i = 0; i < search->n_cells; i++)
        search->cells[i] = (struct cell){INT64_MAX, INT64_MAX, 0, 0, 0};
    for (size_t used = 0; used < devices_of(search); used++)
        *cell_at(search, 0, 0, 0, used) = (struct cell){0};
    size_t begins = search->flows ? cuts : 1, all = search->most * begins * cuts;
    for (size_t k = 0; k < search->most; k++)
        for (size_t begin = 0; begin < begins; begin++)
            for (size_t i = k; i < cuts; i++) {
                tsr__progress(search->staging->planner->session, "stages: step",
                              (k * begins + begin) * cuts + i, all);
                for (size_t used = k; used < devices_of(search) && search->status == TSR_OK; used++)
                    if (cell_at(search, k, begin, i, used)->sum < INT64_MAX)
                        extend(search, k, begin, i, used);
            }
    tsr__progress(search->staging->planner->session, "stages: step", all, all);
    if (search->status == TSR_OK)
        return best_end(search, stages);
    return NULL;
}

static void forget(struct search *search, enum measure what)
{
    size_t n = (search->staging->n_ranges + 1) * (search->staging->n_ranges + 1) *
               devices_of(search) * search->n_sizes;
    for (size_t i = 0; i < n; i++)
        search->value[i] = UNKNOWN;
    search->measure = what;
    search->cap = INT64_MAX;
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
        stage->transfer = transfer_of(search, cell->begin, cut, block);
        cut = cell->begin;
        cell = cell_at(search, k - 1, cell->before, cut, block->start);
    }
}

// For throughput: first the least slowest stage, then the least sum that keeps it.
static bool find_line(struct search *search, tsr_objective objective, struct line *out)
{
    size_t stages = 0;
    search->bottleneck = objective == TSR_THROUGHPUT || search->measure == MEASURE_MEMORY;
    const struct cell *end = run(search, &stages);
    if (end && search->bottleneck && search->measure == MEASURE_TIME) {
        search->cap = end->most;
        search->bottleneck = false;
        end = run(search, &stages);
    }
    if (end)
        read_line(search, stages, end, out);
    return end != NULL;
}

// ---- orders of devices -------------------------------------------------------------------------

static bool alike(const tsr_topology *topology, size_t a, size_t b)
{
    const struct tsr_topology_device *x = &topology->device[a], *y = &topology->device[b];
    return x->memory == y->memory && x->flops == y->flops && x->bandwidth == y->bandwidth &&
           x->overhead == y->overhead && memcmp(x->rates, y->rates, sizeof x->rates) == 0;
}

// label: by device, the first that is like it.
static void label_devices(const struct search *search, size_t *label)
{
    for (size_t device = 0; device < devices_of(search); device++)
        for (label[device] = 0;
             !alike(search->staging->planner->machine.topology, label[device], device);)
            label[device]++;
}

// The next order of labels in the dictionary.
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
    size_t x = label[i - 1];
    label[i - 1] = label[k];
    label[k] = x;
    for (size_t a = i, b = n - 1; a < b; a++, b--) {
        x = label[a];
        label[a] = label[b];
        label[b] = x;
    }
    return true;
}

// Devices of each label in descending order.
static void order_by(struct search *search, const size_t *own, const size_t *label)
{
    size_t n = devices_of(search), next[ALL_SIZES];
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
    bool slowest = objective == TSR_THROUGHPUT;
    int64_t x = slowest ? a->most : a->sum, y = slowest ? b->most : b->sum;
    return x != y ? x < y : a->sum < b->sum;
}

static void try_order(struct search *search, tsr_objective objective, struct line *best)
{
    struct line line;
    enum measure what = search->measure;
    forget(search, what);
    if (!list_blocks(search))
        search->status = TSR_NOMEM;
    else if (find_line(search, objective, &line) && (!best->n || beats(&line, best, objective)))
        *best = line;
}

static int by_number(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

// The line ends at device 0, which gives the outputs. Few unlike devices are tried in every order; where runs are to
// follow one another, device 0 must not wait for others in the middle of the line.
static void try_orders(struct search *search, tsr_objective objective, struct line *best)
{
    size_t n = devices_of(search), own[ALL_SIZES], label[ALL_SIZES];
    for (size_t device = 0; device < n; device++)
        search->order[device] = (int64_t)(n - 1 - device);
    try_order(search, objective, best);
    if (n > ALL_SIZES)
        return;
    label_devices(search, own);
    memcpy(label, own, n * sizeof *own);
    qsort(label, n, sizeof *label, by_number);
    for (int round = 1; round < MAX_ORDERS && search->status == TSR_OK; round++) {
        bool again = true;
        order_by(search, own, label);
        for (size_t i = 0; i < n; i++)
            again = again && search->order[i] == (int64_t)(n - 1 - i);
        if (!again && (!search->flows || search->order[n - 1] == 0))
            try_order(search, objective, best);
        if (!next_order(label, n))
            break;
    }
}

static bool search_init(struct search *search, struct staging *staging,
                        const tsr_plan_options *options, bool flows)
{
    struct arena *arena = &staging->planner->arena;
    size_t n = (size_t)staging->planner->machine.n;
    size_t most = n < staging->n_ranges ? n : staging->n_ranges;
    *search = (struct search){.staging = staging, .status = TSR_OK};
    search->most = most < STAGES_MOST ? most : STAGES_MOST;
    search->least = 1;
    if (options->stages > 0) {
        search->least =
            search->most < (size_t)options->stages ? search->most : (size_t)options->stages;
        search->most = search->least;
    }
    list_sizes(search);
    search->order = ARENA_ARRAY(arena, int64_t, n);
    search->blocks = ARENA_ARRAY(arena, struct block, n * search->n_sizes);
    search->value = ARENA_ARRAY(
        arena, int64_t, (staging->n_ranges + 1) * (staging->n_ranges + 1) * n * search->n_sizes);
    search->n_cells = (search->most + 1) * (staging->n_ranges + 1) * (n + 1);
    search->flows = flows && search->n_cells * (staging->n_ranges + 1) <= MAX_CELLS;
    search->n_cells *= search->flows ? staging->n_ranges + 1 : 1;
    search->cells = ARENA_ARRAY(arena, struct cell, search->n_cells);
    return !arena->failed;
}

tsr_status tsr__stages_search(struct staging *staging, const tsr_plan_options *options,
                              enum measure what, struct line *out)
{
    struct search q;
    bool flows = what != MEASURE_MEMORY && options->objective == TSR_THROUGHPUT;
    *out = (struct line){0};
    for (int round = flows ? 0 : 1; round < 2 && !out->n;
         round++) { // waiting is better than nothing
        if (!search_init(&q, staging, options, round == 0))
            return TSR_NOMEM;
        q.measure = what;
        try_orders(&q, what == MEASURE_MEMORY ? TSR_THROUGHPUT : options->objective, out);
        if (q.status != TSR_OK)
            return q.status;
    }
    return staging->planner->arena.failed ? TSR_NOMEM : TSR_OK;
}
