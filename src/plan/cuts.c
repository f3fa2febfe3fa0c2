// SPDX-License-Identifier: Apache-2.0
// cuts.c - where a graph may be cut into stages: places between nodes that few bytes cross.
//
// Nodes that follow from inputs and small constants alone, cost next to nothing and are read far and wide (masks,
// angles, sizes) belong to no stage: every device runs them, and nothing of them crosses. Between the others, the work
// of one device is divided into equal shares, and the narrowest place of each share is kept.
#include "plan/stages.h"

#define COMMON_SHARE 256 // of all work and of all weights: more than that is not done everywhere
#define COMMON_REACH 8   // a share of the graph: what is read within less belongs to its readers
#define LEAST_PLACES 24
#define LAYER_PLACES (STAGES_MAX_PLACES * 3 / 4) // where layers repeat
#define LAYER_NODES  256     // of the first layers, in which kinds of places are looked for
#define SOLVED_NODES 3000000 // nodes of all ranges together, about

struct cutting {
    struct staging *staging;
    const struct planner *planner;
    struct planner *one;   // all nodes on one device
    int64_t *time;         // by node: on one device
    int64_t all_time;      // of all of them
    int64_t all_bytes;     // of constants
    unsigned char *common; // by node: it may run everywhere
    size_t *last;          // by node: the last that reads it and may not
};

static size_t value_count(const tsr_node *node, tsr_value ***captures)
{
    return tsr_node_input_count(node) + tsr__node_captures(node, captures);
}

static const tsr_value *value_of(const tsr_node *node, tsr_value **captures, size_t i)
{
    size_t n_in = tsr_node_input_count(node);
    return i < n_in ? tsr_node_input(node, i) : captures[i - n_in];
}

// The node that makes a value, by place in the graph; -1: none that is planned.
static int64_t made_at(const struct planner *planner, const tsr_value *value)
{
    const tsr_node *from = value ? tsr_value_producer(value) : NULL;
    return from ? planner->node_at[tsr__node_id(from)] : -1;
}

int64_t tsr__stages_bytes(const struct planner *planner, const tsr_value *value)
{
    const struct plan_value *plan_value = &planner->values[tsr__value_id(value)];
    int64_t n = plan_value->bits;
    for (int d = 0; d < plan_value->rank; d++)
        if (!mul_ok(n, plan_value->shape[d], &n))
            return PLAN_NEVER;
    return n / 8 < PLAN_NEVER ? n / 8 : PLAN_NEVER;
}

// ---- nodes that run everywhere -----------------------------------------------------------------

static bool is_common(const struct cutting *cutting, size_t i)
{
    tsr_value **captures;
    const tsr_node *node = cutting->planner->nodes[i].node;
    size_t n_values = value_count(node, &captures);
    int64_t constants = 0;
    for (size_t k = 0; k < n_values; k++) {
        const tsr_value *value = value_of(node, captures, k);
        int64_t from = made_at(cutting->planner, value);
        if (from >= 0 && !cutting->common[from])
            return false;
        if (value && cutting->planner->values[tsr__value_id(value)].constant)
            constants += tsr__stages_bytes(cutting->planner, value) / (int64_t)n_values;
    }
    return cutting->time[i] <= cutting->all_time / COMMON_SHARE &&
           constants <= cutting->all_bytes / COMMON_SHARE;
}

// By hand: then it runs there and nowhere else.
static bool has_stage(const struct staging *staging, size_t i)
{
    return staging->hand && staging->hand[i] >= 0;
}

// Keeps those of which something is read far away, directly or by others that are kept.
static void keep_far(struct cutting *cutting)
{
    size_t n = cutting->planner->n_nodes, reach = n / COMMON_REACH;
    for (size_t i = n; i-- > 0;) {
        tsr_value **captures;
        const tsr_node *node = cutting->planner->nodes[i].node;
        if (cutting->planner->node_at[tsr__node_id(node)] < 0)
            continue;
        cutting->common[i] = cutting->common[i] && cutting->last[i] > i + reach;
        size_t reader = cutting->common[i] ? cutting->last[i] : i;
        size_t n_values = value_count(node, &captures);
        for (size_t k = 0; k < n_values; k++) {
            int64_t from = made_at(cutting->planner, value_of(node, captures, k));
            if (from >= 0 && cutting->last[from] < reader)
                cutting->last[from] = reader;
        }
    }
}

static bool find_common(struct cutting *cutting)
{
    const struct planner *planner = cutting->planner;
    unsigned char *staged = ARENA_ARRAY(&cutting->staging->planner->arena, unsigned char,
                                        tsr__model_node_ids(planner->model) + 1);
    if (!staged)
        return false;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->node_at[tsr__node_id(planner->nodes[i].node)] >= 0)
            cutting->common[i] = !has_stage(cutting->staging, i) && is_common(cutting, i);
    keep_far(cutting);
    for (size_t i = 0; i < planner->n_nodes; i++) {
        uint32_t id = tsr__node_id(planner->nodes[i].node);
        staged[id] = planner->node_at[id] >= 0 && !cutting->common[i];
        cutting->staging->common += cutting->common[i] ? cutting->time[i] : 0;
    }
    cutting->staging->staged = staged;
    return true;
}

// ---- places ------------------------------------------------------------------------------------

// by place (before node i): bytes of staged values that cross it.
static void add_crossing(struct cutting *cutting, int64_t *width)
{
    const struct planner *planner = cutting->planner;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        tsr_value **captures;
        const tsr_node *node = planner->nodes[i].node;
        size_t n_values = value_count(node, &captures);
        for (size_t k = 0; cutting->staging->staged[tsr__node_id(node)] && k < n_values; k++) {
            int64_t from = made_at(planner, value_of(node, captures, k));
            if (from >= 0 && cutting->last[from] < i)
                cutting->last[from] = i;
        }
    }
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const tsr_node *node = planner->nodes[i].node;
        for (size_t o = 0;
             cutting->staging->staged[tsr__node_id(node)] && o < tsr_node_output_count(node); o++)
            if (tsr_node_output(node, o) && cutting->last[i] > i) {
                width[i + 1] += tsr__stages_bytes(planner, tsr_node_output(node, o));
                width[cutting->last[i] + 1] -= tsr__stages_bytes(planner, tsr_node_output(node, o));
            }
    }
    for (size_t i = 1; i <= planner->n_nodes; i++)
        width[i] += width[i - 1];
}

// A place between two staged nodes.
struct place_between {
    size_t before; // the second of them
    int64_t width; // bytes that cross
    uint32_t kind; // strategy of the first
    size_t share;  // of the work that is done by then
    bool kept;
};
struct places {
    struct place_between *at;
    size_t n, most, shares;
};

// More devices need finer shares; the work of trying all ranges is bounded.
static size_t most_places(int64_t devices, size_t nodes)
{
    size_t n = devices < STAGES_MAX_PLACES / 4 ? (size_t)devices * 4 : STAGES_MAX_PLACES;
    n = n < LEAST_PLACES ? LEAST_PLACES : n;
    while (n > LEAST_PLACES / 2 && n * n / 4 * nodes > SOLVED_NODES)
        n--;
    return n;
}

static bool list_places(struct cutting *cutting, const int64_t *width, struct places *out)
{
    const struct planner *planner = cutting->planner;
    const struct plan_node *last = NULL;
    double done = 0, all = 1;
    size_t staged = 0;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (cutting->staging->staged[tsr__node_id(planner->nodes[i].node)]) {
            all += (double)cutting->time[i] + 1;
            staged++;
        }
    *out = (struct places){.most = most_places(planner->machine.n, staged)};
    out->shares = out->most / 4;
    out->at = ARENA_ARRAY(&cutting->one->arena, struct place_between, staged + 1);
    for (size_t i = 0; out->at && i < planner->n_nodes; i++) {
        if (!cutting->staging->staged[tsr__node_id(planner->nodes[i].node)])
            continue;
        if (last)
            out->at[out->n++] = (struct place_between){
                .before = i,
                .width = width[i],
                .kind = last->strategy->id,
                .share = (size_t)(done / all * (double)out->most),
            };
        last = &cutting->one->nodes[i];
        done += (double)cutting->time[i] + 1;
    }
    return out->at != NULL;
}

static bool same_kind(const struct place_between *a, const struct place_between *b)
{
    return a->kind == b->kind && a->width == b->width;
}

static size_t count_kind(const struct places *places, const struct place_between *like)
{
    size_t n = 0;
    for (size_t i = 0; i < places->n; i++)
        n += same_kind(&places->at[i], like);
    return n;
}

// The narrowest kind of place that comes about as often as any, beyond those that are kept.
static const struct place_between *next_kind(const struct places *places, size_t most)
{
    const struct place_between *best = NULL;
    for (size_t i = 0; i < places->n && i < LAYER_NODES; i++) { // the first layers show all kinds
        const struct place_between *between = &places->at[i];
        if (!between->kept && (!best || between->width < best->width) &&
            2 * count_kind(places, between) >= most)
            best = between;
    }
    return best;
}

static bool covers(const struct places *places)
{
    size_t n = 0, last = SIZE_MAX;
    for (size_t i = 0; i < places->n; i++) {
        size_t share = places->at[i].share * places->shares / places->most;
        n += places->at[i].kept && share != last;
        last = places->at[i].kept ? share : last;
    }
    return 2 * n >= places->shares;
}

// Layers that repeat are best cut at the same places in each: then ranges are alike, and many can be tried. False: there
// are none to speak of.
static bool keep_layers(struct places *places)
{
    size_t most = 0, kept = 0;
    int64_t width = -1;
    for (size_t i = 0; i < places->n && i < LAYER_NODES; i++) {
        size_t k = count_kind(places, &places->at[i]);
        most = k > most ? k : most;
    }
    if (most < places->shares)
        return false;
    for (const struct place_between *between; (between = next_kind(places, most));) {
        const struct place_between like = *between;
        size_t all = count_kind(places, &like), step = (all + LAYER_PLACES - 1) / LAYER_PLACES,
               seen = 0;
        if (kept && (like.width > width || kept + all > LAYER_PLACES))
            break;
        width = like.width;
        for (size_t i = 0; i < places->n; i++)
            if (same_kind(&places->at[i], &like) && seen++ % step == 0) {
                places->at[i].kept = true;
                kept++;
            }
        if (step > 1)
            break;
    }
    bool enough = covers(places);
    for (size_t i = 0; i < places->n && !enough; i++)
        places->at[i].kept = false;
    return enough;
}

// The narrowest place of each share of the work that has none yet.
static void keep_shares(struct places *places, size_t shares)
{
    for (size_t i = 0, j; i < places->n; i = j) {
        size_t share = places->at[i].share * shares / places->most, best = i;
        bool any = false;
        for (j = i; j < places->n && places->at[j].share * shares / places->most == share; j++) {
            any = any || places->at[j].kept;
            best = places->at[j].width < places->at[best].width ? j : best;
        }
        places->at[best].kept = places->at[best].kept || !any;
    }
}

// Each hand-made stage ends at one of the places: the narrowest of those that it may end at is kept.
static void keep_windows(const struct staging *staging, struct places *places)
{
    for (size_t k = 0; k + 1 < staging->n_hand; k++) {
        struct place_between *best = NULL;
        for (size_t i = 0; i < places->n; i++) {
            struct place_between *between = &places->at[i];
            bool fits = tsr__stages_may_end(staging, k, between->before);
            if (fits && (!best || between->width < best->width))
                best = between;
        }
        if (best)
            best->kept = true;
    }
}

static bool choose_places(struct cutting *cutting, const int64_t *width)
{
    struct places q;
    struct arena *arena = &cutting->staging->planner->arena;
    size_t n = 1;
    if (!list_places(cutting, width, &q))
        return false;
    for (size_t i = 0; i < q.n && q.n <= q.most; i++)
        q.at[i].kept = true;
    if (q.n > q.most)
        keep_shares(&q, keep_layers(&q) ? q.shares : q.most);
    keep_windows(cutting->staging, &q);
    for (size_t i = 0; i < q.n; i++)
        n += q.at[i].kept;
    cutting->staging->cut = ARENA_ARRAY(arena, size_t, n + 1);
    cutting->staging->ranges = ARENA_ARRAY(arena, struct range, (n + 1) * (n + 1));
    cutting->staging->n_ranges = n;
    if (!cutting->staging->cut || !cutting->staging->ranges)
        return false;
    n = 1;
    for (size_t i = 0; i < q.n; i++)
        if (q.at[i].kept)
            cutting->staging->cut[n++] = q.at[i].before;
    cutting->staging->cut[n] = cutting->planner->n_nodes;
    return true;
}

bool tsr__stages_cuts(struct staging *staging)
{
    struct planner one = {0};
    struct planner *planner = staging->planner;
    int64_t first = 0;
    struct cutting cutting = {.staging = staging, .planner = planner, .one = &one};
    bool ok = tsr__planner_fork(planner, NULL, &first, 1, &one);
    cutting.time = ARENA_ARRAY(&planner->arena, int64_t, planner->n_nodes + 1);
    staging->times = cutting.time;
    cutting.common = ARENA_ARRAY(&one.arena, unsigned char, planner->n_nodes + 1);
    cutting.last = ARENA_ARRAY(&one.arena, size_t, planner->n_nodes + 1);
    int64_t *width = ARENA_ARRAY(&one.arena, int64_t, planner->n_nodes + 2);
    ok = ok && !one.arena.failed && cutting.time;
    for (size_t i = 0; ok && i < planner->n_nodes; i++) {
        cutting.time[i] = one.nodes[i].strategy ? one.nodes[i].strategy->at.at[0].compute : 0;
        cutting.all_time += cutting.time[i];
    }
    const tsr_graph *graph = tsr_model_graph(planner->model);
    for (size_t i = 0; ok && i < tsr_graph_initializer_count(graph); i++)
        cutting.all_bytes += tsr__stages_bytes(planner, tsr_graph_initializer(graph, i));
    ok = ok && find_common(&cutting);
    if (ok) {
        memset(cutting.last, 0, planner->n_nodes * sizeof *cutting.last);
        add_crossing(&cutting, width);
    }
    ok = ok && choose_places(&cutting, width);
    tsr__planner_end(&one);
    return ok;
}
