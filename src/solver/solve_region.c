// SPDX-License-Identifier: Apache-2.0
// solve_region.c - local moves on a large core.
//
// A region is one ball of nodes, or several whose nodes are alive at the same time: what one frees the
// others may use. Rows between which no use of the region begins or ends are one span, and all that
// counts of a span is the least room in it. The region is eliminated exactly under prices; spans that
// turn out too full become dearer, and it is eliminated again.
#include "solve_region.h"

#include <math.h>

#define MOVE_CELLS 20000
#define HUB_NODES  1200
#define BRANCHES   12 // neighbours of one node that a ball takes up

bool tsr__region_init(struct region *g, const struct wide *w, struct effort *e, uint64_t *random)
{
    struct heap *h = w->heap;
    *g = (struct region){
        .w = w, .effort = e, .random = random, .max_cells = MOVE_CELLS, .center = NONE};
    g->x = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    g->room = HEAP_ARRAY(h, int64_t, (size_t)w->n_rows + 1);
    g->weight = HEAP_ARRAY(h, double, (size_t)w->n + 1);
    g->nodes = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    g->place = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    g->k = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    g->choice = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    g->before = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    g->fixed = HEAP_ARRAY(h, uint8_t, (size_t)w->n + 1);
    g->whole = HEAP_ARRAY(h, uint8_t, (size_t)w->n + 1);
    g->option = HEAP_ARRAY(h, uint32_t *, (size_t)w->n + 1);
    g->base = HEAP_ARRAY(h, int64_t *, (size_t)w->n + 1);
    g->unary = HEAP_ARRAY(h, int64_t *, (size_t)w->n + 1);
    g->span = HEAP_ARRAY(h, uint32_t, (size_t)w->n_rows + 1);
    g->room_of = HEAP_ARRAY(h, int64_t, (size_t)w->n_rows + 2);
    g->own = HEAP_ARRAY(h, int64_t, (size_t)w->n_rows + 2);
    g->held = HEAP_ARRAY(h, int64_t, (size_t)w->n_rows + 2);
    g->price = HEAP_ARRAY(h, double, (size_t)w->n_rows + 2);
    g->sum = HEAP_ARRAY(h, double, (size_t)w->n_rows + 3);
    if (h->failed)
        return false;
    memset(g->place, 0xff, w->n * sizeof(uint32_t));
    for (uint32_t v = 0; v < w->n; v++)
        g->weight[v] = v + 1;
    return true;
}

void tsr__region_start(struct region *g, const uint32_t *x, const double *lambda)
{
    const struct wide *w = g->w;
    memcpy(g->x, x, w->n * sizeof(uint32_t));
    g->lambda = lambda;
    g->cost = tsr__wide_cost(w, x);
    tsr__wide_load(w, x, g->room);
    for (uint32_t r = 0; r < w->n_rows; r++)
        g->room[r] = w->bound[r] - g->room[r];
}

// ---- drawing a region

void tsr__region_weigh(struct region *g, const struct dual *d)
{
    const struct wide *w = g->w;
    double total = 0;
    tsr__dual_slack(d, g->x, g->weight);
    for (uint32_t v = 0; v < w->n; v++)
        total += g->weight[v];
    double least = total / (2.0 * w->n) + 1e-9, sum = 0; // a third goes to all alike
    for (uint32_t v = 0; v < w->n; v++)
        g->weight[v] = sum += g->weight[v] + least;
}

static uint32_t draw_node(struct region *g)
{
    uint32_t low = 0, high = g->w->n - 1;
    double at = random_unit(g->random) * g->weight[high];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (g->weight[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool add_node(struct region *g, uint32_t v)
{
    if (g->place[v] != NONE)
        return false;
    g->place[v] = g->n;
    g->nodes[g->n++] = v;
    return true;
}

// Nodes around v, up to `size` more; of those that are reached, any may be the next.
static void add_ball(struct region *g, uint32_t v, uint32_t size)
{
    const struct wide *w = g->w;
    uint32_t at = g->n, end = g->n + size;
    add_node(g, v);
    for (; at < g->n && g->n < end; at++) {
        uint32_t swap = at + (uint32_t)(random_next(g->random) % (g->n - at < 4 ? g->n - at : 4));
        uint32_t u = g->nodes[swap], n = w->first[u + 1] - w->first[u];
        g->nodes[swap] = g->nodes[at];
        g->place[g->nodes[swap]] = swap;
        g->nodes[at] = u;
        g->place[u] = at;
        uint32_t from = n > BRANCHES ? (uint32_t)(random_next(g->random) % n) : 0;
        for (uint32_t i = 0; i < n && i < BRANCHES && g->n < end; i++) {
            const struct tree_edge *e = &w->edges[w->touch[w->first[u] + (from + i) % n]];
            add_node(g, e->a == u ? e->b : e->a);
        }
    }
}

static bool alive(const struct wide *w, uint32_t v, uint32_t row)
{
    for (uint32_t i = w->first_use[v]; i < w->first_use[v + 1]; i++)
        if (w->uses[i].begin <= row && row < w->uses[i].end)
            return true;
    return false;
}

// Another node that is alive at that row, by chance; NONE.
static uint32_t draw_alive(struct region *g, uint32_t row)
{
    for (int i = 0; i < 40; i++) {
        uint32_t v = i < 10 ? draw_node(g) : (uint32_t)(random_next(g->random) % g->w->n);
        if (g->place[v] == NONE && alive(g->w, v, row))
            return v;
    }
    return NONE;
}

// A node with all around it: the end of some edge, so hubs come often.
static void draw_hub(struct region *g)
{
    const struct wide *w = g->w;
    const struct tree_edge *e = &w->edges[random_next(g->random) % w->n_edges];
    uint32_t v = random_next(g->random) % 2 ? e->a : e->b;
    uint32_t keep = 1 + (uint32_t)(random_next(g->random) % 4); // in four
    if (w->first[v + 1] - w->first[v] < 8)
        keep = 4;
    g->center = v;
    add_node(g, v);
    for (uint32_t t = w->first[v]; t < w->first[v + 1] && g->n < HUB_NODES; t++) {
        const struct tree_edge *f = &w->edges[w->touch[t]];
        if (random_next(g->random) % 4 < keep)
            add_node(g, f->a == v ? f->b : f->a);
    }
    for (uint32_t i = 1, n = g->n; i < n && g->n < HUB_NODES; i++)
        add_ball(g, g->nodes[1 + random_next(g->random) % (n - 1)], 2);
}

static void draw_region(struct region *g)
{
    const struct wide *w = g->w;
    g->center = NONE;
    if (w->n_edges && random_next(g->random) % 8 == 0) {
        draw_hub(g);
        return;
    }
    uint32_t v = draw_node(g), uses = w->first_use[v + 1] - w->first_use[v];
    uint32_t most = random_next(g->random) % 4 ? 60 : 300;
    uint32_t size = 4 + (uint32_t)(random_next(g->random) % most);
    if (random_next(g->random) % 16 == 0) // of any order of magnitude
        size = 4 + (uint32_t)exp(random_unit(g->random) * log((double)w->n));
    if (!uses || size > 500 || random_next(g->random) % 3 == 0) {
        add_ball(g, v, size);
        return;
    }
    const struct wide_use *u = &w->uses[w->first_use[v] + random_next(g->random) % uses];
    uint32_t row = u->begin + (uint32_t)(random_next(g->random) % (u->end - u->begin));
    uint32_t balls = 2 + (uint32_t)(random_next(g->random) % 5);
    for (uint32_t i = 0; i < balls && v != NONE; i++, v = draw_alive(g, row))
        add_ball(g, v, 1 + size / balls);
}

// ---- the region as a program

// Room for so many entries; earlier ones may move.
#define reserve(h, l, wanted)                                                                      \
    ((wanted) <= (l)->cap || grow_to(h, (void **)&(l)->at, &(l)->cap, wanted, sizeof(*(l)->at)))
static bool grow_to(struct heap *h, void **at, uint32_t *cap, size_t n, size_t size)
{
    void *grown = n < UINT32_MAX / 2 ? tsr__heap_grow(h, *at, 2 * n, size) : NULL;
    if (!grown)
        return false;
    *at = grown;
    *cap = (uint32_t)(2 * n);
    return true;
}

// The few best choices by the messages; the one that is taken is the first.
static uint32_t best_options(const struct region *g, const struct dual *d, uint32_t v, uint32_t few,
                             uint32_t *out)
{
    uint32_t n = 1;
    tsr__dual_gather(d, v, d->sum);
    out[0] = g->x[v];
    for (uint32_t c = 0; c < g->w->k[v]; c++) {
        if (c == out[0] || (n == few && d->sum[c] >= d->sum[out[n - 1]]))
            continue;
        uint32_t at = n < few ? n++ : n - 1;
        for (; at > 1 && d->sum[c] < d->sum[out[at - 1]]; at--)
            out[at] = out[at - 1];
        out[at] = c;
    }
    g->effort->work += (g->w->first[v + 1] - g->w->first[v]) * (uint64_t)g->w->k[v];
    return n;
}

static bool fill_options(struct region *g, const struct dual *d, uint32_t few)
{
    size_t n = 0;
    for (uint32_t i = 0; i < g->n; i++)
        n += g->w->k[g->nodes[i]];
    g->options.n = 0;
    if (!reserve(g->w->heap, &g->options, n))
        return false;
    uint32_t *at = g->options.at;
    for (uint32_t i = 0; i < g->n; i++) {
        uint32_t v = g->nodes[i], k = g->w->k[v];
        g->option[i] = at;
        g->whole[i] = !few || k <= few || v == g->center;
        g->k[i] = g->whole[i] ? k : best_options(g, d, v, few, at);
        g->before[i] = g->whole[i] ? g->x[v] : 0;
        for (uint32_t c = 0; g->whole[i] && c < k; c++)
            at[c] = c;
        at += g->k[i];
    }
    return true;
}

// Cells of an edge for the options of its nodes.
static const int64_t *option_cells(struct region *g, const struct tree_edge *e, uint32_t i,
                                   uint32_t j)
{
    if (g->whole[i] && g->whole[j])
        return e->cell;
    int64_t *out = g->tables.at + g->tables.n, *at = out;
    for (uint32_t a = 0; a < g->k[i]; a++)
        for (uint32_t b = 0; b < g->k[j]; b++)
            *at++ = e->cell[(size_t)g->option[i][a] * g->w->k[e->b] + g->option[j][b]];
    g->tables.n += g->k[i] * g->k[j];
    return out;
}

static bool fill_edges(struct region *g)
{
    const struct wide *w = g->w;
    size_t cells = 0;
    g->edges.n = g->tables.n = 0;
    for (uint32_t i = 0; i < g->n; i++)
        for (uint32_t t = w->first[g->nodes[i]]; t < w->first[g->nodes[i] + 1]; t++) {
            const struct tree_edge *e = &w->edges[w->touch[t]];
            uint32_t j = g->place[e->b];
            if (e->a != g->nodes[i] || j == NONE)
                continue;
            struct tree_edge *out = list_push(w->heap, &g->edges);
            if (!out)
                return false;
            *out = *e;
            if (!g->whole[i] || !g->whole[j])
                cells += (size_t)g->k[i] * g->k[j];
        }
    if (!reserve(w->heap, &g->tables, cells))
        return false;
    for (uint32_t i = 0; i < g->edges.n; i++) {
        struct tree_edge *e = &g->edges.at[i];
        uint32_t a = g->place[e->a], b = g->place[e->b];
        *e = (struct tree_edge){a, b, option_cells(g, e, a, b)};
    }
    g->effort->work += cells;
    return true;
}

// Costs with what the edges to nodes that stay add.
static void fill_base(struct region *g, uint32_t i)
{
    const struct wide *w = g->w;
    uint32_t v = g->nodes[i], k = g->k[i];
    int64_t *out = g->base[i];
    for (uint32_t c = 0; c < k; c++)
        out[c] = w->cost[v][g->option[i][c]];
    for (uint32_t t = w->first[v]; t < w->first[v + 1]; t++) {
        const struct tree_edge *e = &w->edges[w->touch[t]];
        uint32_t o = e->a == v ? e->b : e->a, kb = w->k[e->b];
        if (g->place[o] != NONE && g->fixed[g->place[o]] != TREE_FIXED)
            continue;
        const int64_t *cell = e->a == v ? e->cell + g->x[o] : e->cell + (size_t)g->x[o] * kb;
        size_t step = e->a == v ? kb : 1;
        for (uint32_t c = 0; c < k; c++)
            out[c] = plus(out[c], cell[g->option[i][c] * step]);
    }
    g->effort->work += (w->first[v + 1] - w->first[v]) * (uint64_t)k;
}

static bool fill_cells(struct region *g)
{
    size_t n = 0;
    for (uint32_t i = 0; i < g->n; i++)
        n += g->k[i];
    if (!reserve(g->w->heap, &g->cells, 2 * n))
        return false;
    int64_t *at = g->cells.at;
    for (uint32_t i = 0; i < g->n; i++) {
        g->base[i] = at;
        g->unary[i] = at + n;
        at += g->k[i];
        g->choice[i] = g->before[i];
        if (g->fixed[i] != TREE_FIXED)
            fill_base(g, i);
    }
    return true;
}

static int64_t local_cost(const struct region *g, const uint32_t *choice)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < g->n; i++)
        if (g->fixed[i] != TREE_FIXED)
            sum = plus(sum, g->base[i][choice[i]]);
    for (uint32_t i = 0; i < g->edges.n; i++) {
        const struct tree_edge *e = &g->edges.at[i];
        if (g->fixed[e->a] != TREE_FIXED && g->fixed[e->b] != TREE_FIXED)
            sum = plus(sum, e->cell[(size_t)choice[e->a] * g->k[e->b] + choice[e->b]]);
    }
    return sum;
}

// ---- spans

#define FOR_USES(g, i, u)                                                                          \
    for (const struct wide_use *u = (g)->w->uses + (g)->w->first_use[(g)->nodes[i]],               \
                               *u##_end = (g)->w->uses + (g)->w->first_use[(g)->nodes[i] + 1];     \
         u < u##_end; u++)

static void use_spans(struct region *g, const uint32_t *choice, int64_t *own)
{
    memset(own, 0, ((size_t)g->n_spans + 1) * sizeof(int64_t));
    for (uint32_t i = 0; i < g->n; i++) {
        if (g->fixed[i] == TREE_FIXED)
            continue;
        FOR_USES(g, i, u)
        {
            int64_t usage = u->usage[g->option[i][choice[i]]];
            own[g->span[u->begin]] += usage;
            own[g->span[u->end]] -= usage;
        }
    }
    for (uint32_t s = 1; s <= g->n_spans; s++)
        own[s] += own[s - 1];
}

static void find_spans(struct region *g, double factor)
{
    const struct wide *w = g->w;
    memset(g->span, 0, ((size_t)w->n_rows + 1) * sizeof(uint32_t));
    for (uint32_t i = 0; i < g->n; i++) {
        if (g->fixed[i] == TREE_FIXED)
            continue;
        FOR_USES(g, i, u)
        g->span[u->begin] = g->span[u->end] = 1;
    }
    uint32_t n = 0;
    g->room_of[0] = INT64_MAX;
    g->price[0] = 0;
    for (uint32_t r = 0; r < w->n_rows; r++) {
        if (g->span[r]) {
            n++;
            g->room_of[n] = INT64_MAX;
            g->price[n] = 0;
        }
        g->span[r] = n;
        g->room_of[n] = g->room[r] < g->room_of[n] ? g->room[r] : g->room_of[n];
        g->price[n] += g->lambda[r] * factor;
    }
    if (g->span[w->n_rows]) {
        n++;
        g->room_of[n] = INT64_MAX;
        g->price[n] = 0;
    }
    g->span[w->n_rows] = n;
    g->n_spans = n;
    use_spans(g, g->before, g->held);
    for (uint32_t s = 0; s <= n; s++)
        g->room_of[s] = g->room_of[s] == INT64_MAX ? INT64_MAX : g->room_of[s] + g->held[s];
    g->effort->work += w->n_rows;
}

// Sum of what is used above the room of each span.
static double excess(const struct region *g, const int64_t *own)
{
    double sum = 0;
    for (uint32_t s = 0; s <= g->n_spans; s++)
        if (own[s] > g->room_of[s])
            sum += (double)(own[s] - g->room_of[s]);
    return sum;
}

static void apply_prices(struct region *g)
{
    g->sum[0] = 0;
    for (uint32_t s = 0; s <= g->n_spans; s++)
        g->sum[s + 1] = g->sum[s] + g->price[s];
    for (uint32_t i = 0; i < g->n; i++) {
        if (g->fixed[i] == TREE_FIXED)
            continue;
        int64_t *out = g->unary[i];
        uint32_t k = g->k[i];
        memcpy(out, g->base[i], k * sizeof(int64_t));
        FOR_USES(g, i, u)
        {
            double p = g->sum[g->span[u->end]] - g->sum[g->span[u->begin]];
            for (uint32_t c = 0; p > 0 && c < k; c++) {
                double x = p * (double)u->usage[g->option[i][c]];
                out[c] = plus(out[c], x < (double)NEVER ? (int64_t)x : NEVER);
            }
        }
    }
}

// Spans that are too full under `own` become dearer.
static void raise_prices(struct region *g, double step)
{
    double most = 0;
    for (uint32_t s = 0; s <= g->n_spans; s++)
        most = fmax(most, g->price[s]);
    for (uint32_t s = 0; s <= g->n_spans; s++)
        if (g->own[s] > g->room_of[s])
            g->price[s] = g->price[s] * 1.5 + most * 0.02 + step;
}

// ---- moves

static void forget(struct region *g)
{
    for (uint32_t i = 0; i < g->n; i++)
        g->place[g->nodes[i]] = NONE;
    g->n = 0;
    g->center = NONE;
}

// The region's tree, costs and spans; nodes that make it too wide stay as they are.
static bool prepare(struct region *g, double factor)
{
    memset(g->fixed, 0, g->n);
    if (g->center != NONE)
        g->fixed[g->place[g->center]] = TREE_FREE;
    if (!fill_edges(g))
        return false; // the options are there
    if (!tsr__tree_init(&g->tree, g->w->heap->session, g->n, g->k, g->edges.at, g->edges.n,
                        g->max_cells, g->fixed, g->random) ||
        !fill_cells(g)) {
        tsr__tree_free(&g->tree);
        return false;
    }
    find_spans(g, factor);
    g->effort->work += 100 * (uint64_t)(g->n + g->edges.n);
    return true;
}

static bool decide(struct region *g)
{
    apply_prices(g);
    int64_t least = tsr__tree_up(&g->tree, g->unary);
    g->effort->work += g->tree.cells + 2 * g->n_spans + 100 * (uint64_t)g->n;
    if (least >= NEVER)
        return false;
    tsr__tree_back(&g->tree, g->unary, g->choice);
    use_spans(g, g->choice, g->own);
    return true;
}

static bool changed(const struct region *g)
{
    return memcmp(g->choice, g->before, g->n * sizeof(uint32_t)) != 0;
}

static void take(struct region *g, int64_t cost)
{
    const struct wide *w = g->w;
    for (uint32_t i = 0; i < g->n; i++)
        g->x[g->nodes[i]] = g->option[i][g->choice[i]];
    for (uint32_t r = 0; r < w->n_rows; r++)
        g->room[r] -= g->own[g->span[r]] - g->held[g->span[r]];
    g->cost = cost;
    g->effort->work += w->n_rows / 4;
}

// A price that weighs the cost of the region against what it uses.
static double first_step(const struct region *g, int64_t cost)
{
    int64_t most = 1;
    for (uint32_t s = 0; s <= g->n_spans; s++)
        most = g->held[s] > most ? g->held[s] : most;
    return 0.002 * ((double)cost + 1) / (double)most;
}

// Decides the region anew, dearer until it keeps the rows; taken if it costs no more than `most`.
static bool improve(struct region *g, double factor, int64_t most, int tries)
{
    bool taken = false;
    if (!prepare(g, factor))
        return false;
    int64_t before = local_cost(g, g->before);
    double step = first_step(g, before);
    for (int i = 0; i < tries && decide(g) && changed(g); i++) {
        if (excess(g, g->own) > 0) {
            raise_prices(g, step);
            continue;
        }
        int64_t cost = g->cost - before + local_cost(g, g->choice);
        taken = cost <= most;
        if (taken)
            take(g, cost);
        break;
    }
    tsr__tree_free(&g->tree);
    return taken;
}

bool tsr__region_move(struct region *g, const struct dual *d, uint32_t few, double factor,
                      int64_t most)
{
    draw_region(g);
    if (g->n > 50 && (!few || few > 4) && (g->center != NONE || g->n > 300))
        few = 3; // of so many nodes
    bool taken = fill_options(g, d, few) && improve(g, factor, most, 6);
    forget(g);
    return taken;
}

bool tsr__region_fuse(struct region *g, const uint32_t *y, double factor, int64_t most)
{
    const struct wide *w = g->w;
    for (uint32_t v = 0; v < w->n; v++)
        if (y[v] != g->x[v])
            add_node(g, v);
    g->options.n = 0;
    bool taken = g->n && reserve(w->heap, &g->options, 2 * (size_t)g->n); // so far
    for (uint32_t i = 0; taken && i < g->n; i++) {
        g->option[i] = g->options.at + 2 * (size_t)i;
        g->option[i][0] = g->x[g->nodes[i]];
        g->option[i][1] = y[g->nodes[i]];
        g->k[i] = 2;
        g->whole[i] = 0;
        g->before[i] = 0;
    }
    taken = taken && improve(g, factor, most, 12);
    forget(g);
    return taken;
}

// ---- repair

static uint32_t worst_row(const struct region *g)
{
    uint32_t worst = NONE;
    for (uint32_t r = 0; r < g->w->n_rows; r++)
        if (g->room[r] < 0 && (worst == NONE || g->room[r] < g->room[worst]))
            worst = r;
    return worst;
}

// Dearer until less is broken than before.
static bool lighten(struct region *g)
{
    double old = excess(g, g->held);
    int64_t before = local_cost(g, g->before);
    double step = first_step(g, before);
    for (int i = 0; i < 12 && decide(g); i++) {
        if (excess(g, g->own) < old) {
            take(g, g->cost - before + local_cost(g, g->choice));
            return true;
        }
        for (uint32_t s = 0; s <= g->n_spans; s++)
            if (g->own[s] > g->room_of[s])
                g->price[s] = g->price[s] * 2 + step;
    }
    return false;
}

bool tsr__region_repair(struct region *g, int tries)
{
    for (int i = 0; i < tries && !tsr__effort_over(g->effort); i++) {
        uint32_t row = worst_row(g);
        if (row == NONE)
            return true;
        uint32_t balls = 1 + (uint32_t)(random_next(g->random) % 8);
        uint32_t size = 1 + (uint32_t)(random_next(g->random) % 24);
        for (uint32_t v = draw_alive(g, row); balls-- && v != NONE; v = draw_alive(g, row))
            add_ball(g, v, size);
        if (g->n && fill_options(g, NULL, 0) && prepare(g, 1)) {
            lighten(g);
            tsr__tree_free(&g->tree);
        }
        forget(g);
    }
    return worst_row(g) == NONE;
}
