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
    struct staging *s;
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

static size_t devices_of(const struct search *q)
{
    return (size_t)q->s->p->n;
}

static void list_sizes(struct search *q)
{
    size_t n = devices_of(q);
    q->n_sizes = 0;
    for (size_t k = 1; k <= n && q->n_sizes < MAX_SIZES; k++)
        if (n <= ALL_SIZES || n % k == 0 || (k & (k - 1)) == 0)
            q->sizes[q->n_sizes++] = k;
}

static bool may_start(const struct search *q, size_t start, size_t n)
{
    return start + n <= devices_of(q) && (devices_of(q) <= ALL_STARTS || start % n == 0);
}

static int64_t memory_of(const struct staging *s, const int64_t *devices, size_t n)
{
    int64_t least = s->memory > 0 ? s->memory : PLAN_NO_LIMIT;
    for (size_t i = 0; i < n && s->memory == 0; i++) {
        int64_t bytes = s->p->topology->device[devices[i]].memory;
        least = bytes > 0 && bytes < least ? bytes : least;
    }
    return least;
}

static struct block *block_at(struct search *q, size_t start, size_t size)
{
    return &q->blocks[start * q->n_sizes + size];
}

static int by_device(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static bool list_blocks(struct search *q)
{
    for (size_t start = 0; start < devices_of(q); start++)
        for (size_t z = 0; z < q->n_sizes; z++) {
            struct block *b = block_at(q, start, z);
            *b = (struct block){.start = start, .n = q->sizes[z]};
            if (!may_start(q, start, b->n))
                continue;
            b->devices = ARENA_ARRAY(&q->s->p->arena, int64_t, b->n);
            if (!b->devices)
                return false;
            memcpy(b->devices, &q->order[start], b->n * sizeof *b->devices);
            qsort(b->devices, b->n, sizeof *b->devices, by_device);
            b->memory = memory_of(q->s, b->devices, b->n);
            b->kind = tsr__stages_kind(q->s, b->devices, b->n);
            if (!b->kind)
                return false;
        }
    return true;
}

// ---- transfers ---------------------------------------------------------------------------------

// A value from one device to all of a block, which do not have it. Kept by place in line.
static int64_t send_time(struct search *q, int64_t from, const int64_t *to, size_t n, size_t start,
                         int64_t bytes)
{
    struct arena *a = &q->s->p->arena;
    int64_t key[4] = {bytes, from, (int64_t)start, (int64_t)n};
    struct str text = {(const char *)key, sizeof key};
    int64_t *found = tsr__map_get(&q->transfers, text);
    if (found)
        return *found;
    void **at = tsr__map_at(&q->transfers, tsr__arena_str(a, text));
    int64_t *group = ARENA_ARRAY(a, int64_t, n + 1);
    found = ARENA_NEW(a, int64_t);
    if (!at || !found || !group)
        return NEVER_FITS;
    group[0] = from;
    memcpy(group + 1, to, n * sizeof *to);
    struct device_group all = {group, n + 1};
    *found = tsr__planner_combine(q->s->p, n == 1 ? TSR_SEND : TSR_BROADCAST, &all, 1, bytes);
    *at = found;
    return *found;
}

// What a stage gets from the one before, and gives out of the pipeline.
static int64_t transfer_of(struct search *q, size_t from, size_t to, const struct block *b)
{
    const struct range *r = tsr__stages_range(q->s, from, to);
    const int64_t *mine = b->devices;
    int64_t ps = 0, gives = mine[0];
    if (!r)
        return NEVER_FITS;
    for (size_t i = 0; i < r->n_in && b->start > 0; i++)
        ps += send_time(q, q->order[b->start - 1], mine, b->n, b->start,
                        tsr__stages_bytes(q->s->p, r->in[i]));
    static const int64_t first = 0;
    for (size_t i = 0; i < r->n_out && gives != first; i++)
        ps += send_time(q, gives, &first, 1, SIZE_MAX, tsr__stages_bytes(q->s->p, r->out[i]));
    return ps < NEVER_FITS ? ps : NEVER_FITS;
}

// What the devices of a stage are held up by giving to the next, of which one device is known to be there.
static int64_t hand_over(struct search *q, size_t from, size_t to, const struct block *b)
{
    const struct range *r = tsr__stages_range(q->s, from, to);
    size_t next = b->start + b->n;
    int64_t ps = 0;
    for (size_t i = 0; r && i < r->n_leave && next < devices_of(q); i++)
        ps += send_time(q, q->order[next - 1], &q->order[next], 1, next,
                        tsr__stages_bytes(q->s->p, r->leave[i]));
    return ps < NEVER_FITS ? ps : NEVER_FITS;
}

// ---- dynamic programming -----------------------------------------------------------------------

static int64_t measure(struct search *q, size_t i, size_t j, const struct block *b)
{
    struct point point = {0};
    int64_t bytes = 0;
    if (q->measure == MEASURE_MEMORY) {
        q->status = tsr__front_least(q->s, b->kind, i, j, &bytes);
        return bytes < NEVER_FITS ? bytes : NEVER_FITS;
    }
    q->status = tsr__front_at(q->s, b->kind, i, j, b->memory, &point);
    if (q->status != TSR_OK || !point.feasible)
        return NEVER_FITS;
    int64_t own = q->measure == MEASURE_BOUND ? point.bound : point.time;
    int64_t ps = own + transfer_of(q, i, j, b);
    return ps < NEVER_FITS ? ps : NEVER_FITS;
}

static int64_t value_of(struct search *q, size_t i, size_t j, size_t block)
{
    size_t n_blocks = devices_of(q) * q->n_sizes;
    int64_t *at = &q->value[(i * (q->s->n_ranges + 1) + j) * n_blocks + block];
    if (*at == UNKNOWN && q->status == TSR_OK)
        *at = measure(q, i, j, &q->blocks[block]);
    return *at;
}

// begin: where the last stage begins; only looked at where it decides what may follow.
static struct cell *cell_at(struct search *q, size_t stages, size_t begin, size_t cut,
                            size_t devices)
{
    size_t cuts = q->s->n_ranges + 1, at = q->flows ? stages * cuts + begin : stages;
    return &q->cells[(at * cuts + cut) * (devices_of(q) + 1) + devices];
}

static bool better(const struct search *q, const struct cell *a, const struct cell *b)
{
    int64_t x = q->bottleneck ? a->most : a->sum, y = q->bottleneck ? b->most : b->sum;
    return x != y ? x < y : a->sum < b->sum;
}

// Runs follow one another only if each stage hands over to the next alone: who gives something to a later stage waits
// until that one is done with the run before. The last stage gives the outputs.
static bool follows(struct search *q, size_t begin, size_t i, size_t j)
{
    const struct range *before = tsr__stages_range(q->s, begin, i);
    const struct range *r = tsr__stages_range(q->s, i, j);
    return before && r && r->earliest >= q->s->cut[begin] &&
           (before->n_out == 0 || j == q->s->n_ranges);
}

// Goes on from the state (k stages, the last from `begin` to cut i, d devices) with one more stage.
static void extend(struct search *q, size_t k, size_t begin, size_t i, size_t d)
{
    const struct cell from = *cell_at(q, k, begin, i, d);
    size_t last = q->s->n_ranges;
    for (size_t z = 0; z < q->n_sizes && q->status == TSR_OK; z++) {
        size_t n = q->sizes[z], block = d * q->n_sizes + z;
        if (d >= devices_of(q) || !may_start(q, d, n))
            continue;
        for (size_t j = k + 1 == q->most ? last : i + 1; j <= last; j++) {
            if (q->flows && k > 0 && !follows(q, begin, i, j))
                continue;
            int64_t own = value_of(q, i, j, block);
            int64_t busy = q->flows ? own + hand_over(q, i, j, &q->blocks[block]) : own;
            if (own >= NEVER_FITS || busy > q->cap)
                continue;
            struct cell *to = cell_at(q, k + 1, i, j, d + n);
            struct cell next = {from.sum + own, busy > from.most ? busy : from.most, i, from.begin,
                                block};
            if (better(q, &next, to))
                *to = next;
        }
    }
}

// The best final state; NULL: there is none.
static const struct cell *best_end(struct search *q, size_t *stages)
{
    const struct cell *best = NULL;
    size_t cuts = q->s->n_ranges;
    for (size_t k = q->least; k <= q->most; k++)
        for (size_t d = devices_of(q); d > 0; d--)
            for (size_t begin = 0; begin < (q->flows ? cuts : 1); begin++) {
                const struct cell *c = cell_at(q, k, begin, cuts, d);
                if (c->sum < INT64_MAX && (!best || better(q, c, best))) {
                    best = c;
                    *stages = k;
                }
            }
    return best;
}

// Devices at either end of the line may stay idle.
static const struct cell *run(struct search *q, size_t *stages)
{
    size_t cuts = q->s->n_ranges;
    for (size_t i = 0; i < q->n_cells; i++)
        q->cells[i] = (struct cell){INT64_MAX, INT64_MAX, 0, 0, 0};
    for (size_t d = 0; d < devices_of(q); d++)
        *cell_at(q, 0, 0, 0, d) = (struct cell){0};
    size_t begins = q->flows ? cuts : 1, all = q->most * begins * cuts;
    for (size_t k = 0; k < q->most; k++)
        for (size_t begin = 0; begin < begins; begin++)
            for (size_t i = k; i < cuts; i++) {
                tsr__progress(q->s->p->session, "stages: step", (k * begins + begin) * cuts + i,
                              all);
                for (size_t d = k; d < devices_of(q) && q->status == TSR_OK; d++)
                    if (cell_at(q, k, begin, i, d)->sum < INT64_MAX)
                        extend(q, k, begin, i, d);
            }
    tsr__progress(q->s->p->session, "stages: step", all, all);
    return q->status == TSR_OK ? best_end(q, stages) : NULL;
}

static void forget(struct search *q, enum measure what)
{
    size_t n = (q->s->n_ranges + 1) * (q->s->n_ranges + 1) * devices_of(q) * q->n_sizes;
    for (size_t i = 0; i < n; i++)
        q->value[i] = UNKNOWN;
    q->measure = what;
    q->cap = INT64_MAX;
    tsr__map_init(&q->transfers, &q->s->p->arena, 256);
}

// Stages of the best end, back to front.
static void read_line(struct search *q, size_t stages, const struct cell *c, struct line *out)
{
    size_t cut = q->s->n_ranges;
    *out = (struct line){.n = stages, .sum = c->sum, .most = c->most};
    for (size_t k = stages; k > 0; k--) {
        const struct block *b = &q->blocks[c->block];
        struct stage *x = &out->at[k - 1];
        *x = (struct stage){.begin = c->begin, .end = cut, .n = b->n, .kind = b->kind};
        x->memory = b->memory;
        x->devices = ARENA_ARRAY(&q->s->p->arena, int64_t, b->n);
        if (x->devices)
            memcpy(x->devices, b->devices, b->n * sizeof *x->devices);
        x->transfer = transfer_of(q, c->begin, cut, b);
        cut = c->begin;
        c = cell_at(q, k - 1, c->before, cut, b->start);
    }
}

// For throughput: first the least slowest stage, then the least sum that keeps it.
static bool find_line(struct search *q, tsr_objective objective, struct line *out)
{
    size_t stages = 0;
    q->bottleneck = objective == TSR_THROUGHPUT || q->measure == MEASURE_MEMORY;
    const struct cell *end = run(q, &stages);
    if (end && q->bottleneck && q->measure == MEASURE_TIME) {
        q->cap = end->most;
        q->bottleneck = false;
        end = run(q, &stages);
    }
    if (end)
        read_line(q, stages, end, out);
    return end != NULL;
}

// ---- orders of devices -------------------------------------------------------------------------

static bool alike(const tsr_topology *t, size_t a, size_t b)
{
    const struct tsr_topology_device *x = &t->device[a], *y = &t->device[b];
    return x->memory == y->memory && x->flops == y->flops && x->bandwidth == y->bandwidth &&
           x->overhead == y->overhead && memcmp(x->rates, y->rates, sizeof x->rates) == 0;
}

// label: by device, the first that is like it.
static void label_devices(const struct search *q, size_t *label)
{
    for (size_t d = 0; d < devices_of(q); d++)
        for (label[d] = 0; !alike(q->s->p->topology, label[d], d);)
            label[d]++;
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
static void order_by(struct search *q, const size_t *own, const size_t *label)
{
    size_t n = devices_of(q), next[ALL_SIZES];
    for (size_t i = 0; i < n; i++)
        next[i] = n;
    for (size_t i = 0; i < n; i++) {
        size_t d = next[label[i]] - 1;
        while (own[d] != label[i])
            d--;
        q->order[i] = (int64_t)d;
        next[label[i]] = d;
    }
}

static bool beats(const struct line *a, const struct line *b, tsr_objective objective)
{
    bool slowest = objective == TSR_THROUGHPUT;
    int64_t x = slowest ? a->most : a->sum, y = slowest ? b->most : b->sum;
    return x != y ? x < y : a->sum < b->sum;
}

static void try_order(struct search *q, tsr_objective objective, struct line *best)
{
    struct line line;
    enum measure what = q->measure;
    forget(q, what);
    if (!list_blocks(q))
        q->status = TSR_NOMEM;
    else if (find_line(q, objective, &line) && (!best->n || beats(&line, best, objective)))
        *best = line;
}

static int by_number(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

// The line ends at device 0, which gives the outputs. Few unlike devices are tried in every order; where runs are to
// follow one another, device 0 must not wait for others in the middle of the line.
static void try_orders(struct search *q, tsr_objective objective, struct line *best)
{
    size_t n = devices_of(q), own[ALL_SIZES], label[ALL_SIZES];
    for (size_t d = 0; d < n; d++)
        q->order[d] = (int64_t)(n - 1 - d);
    try_order(q, objective, best);
    if (n > ALL_SIZES)
        return;
    label_devices(q, own);
    memcpy(label, own, n * sizeof *own);
    qsort(label, n, sizeof *label, by_number);
    for (int round = 1; round < MAX_ORDERS && q->status == TSR_OK; round++) {
        bool again = true;
        order_by(q, own, label);
        for (size_t i = 0; i < n; i++)
            again = again && q->order[i] == (int64_t)(n - 1 - i);
        if (!again && (!q->flows || q->order[n - 1] == 0))
            try_order(q, objective, best);
        if (!next_order(label, n))
            break;
    }
}

static bool search_init(struct search *q, struct staging *s, const tsr_plan_options *o, bool flows)
{
    struct arena *a = &s->p->arena;
    size_t n = (size_t)s->p->n;
    size_t most = n < s->n_ranges ? n : s->n_ranges;
    *q = (struct search){.s = s, .status = TSR_OK};
    q->most = most < STAGES_MOST ? most : STAGES_MOST;
    q->least = 1;
    if (o->stages > 0) {
        q->least = q->most < (size_t)o->stages ? q->most : (size_t)o->stages;
        q->most = q->least;
    }
    list_sizes(q);
    q->order = ARENA_ARRAY(a, int64_t, n);
    q->blocks = ARENA_ARRAY(a, struct block, n * q->n_sizes);
    q->value = ARENA_ARRAY(a, int64_t, (s->n_ranges + 1) * (s->n_ranges + 1) * n * q->n_sizes);
    q->n_cells = (q->most + 1) * (s->n_ranges + 1) * (n + 1);
    q->flows = flows && q->n_cells * (s->n_ranges + 1) <= MAX_CELLS;
    q->n_cells *= q->flows ? s->n_ranges + 1 : 1;
    q->cells = ARENA_ARRAY(a, struct cell, q->n_cells);
    return !a->failed;
}

tsr_status tsr__stages_search(struct staging *s, const tsr_plan_options *o, enum measure what,
                              struct line *out)
{
    struct search q;
    bool flows = what != MEASURE_MEMORY && o->objective == TSR_THROUGHPUT;
    *out = (struct line){0};
    for (int round = flows ? 0 : 1; round < 2 && !out->n;
         round++) { // waiting is better than nothing
        if (!search_init(&q, s, o, round == 0))
            return TSR_NOMEM;
        q.measure = what;
        try_orders(&q, what == MEASURE_MEMORY ? TSR_THROUGHPUT : o->objective, out);
        if (q.status != TSR_OK)
            return q.status;
    }
    return s->p->arena.failed ? TSR_NOMEM : TSR_OK;
}
