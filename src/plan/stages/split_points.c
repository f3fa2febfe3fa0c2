// SPDX-License-Identifier: Apache-2.0
// cuts.c - where a graph may be cut into stages: places between nodes that few bytes cross.
//
// Nodes that follow from inputs and small constants alone, cost next to nothing and are read far and wide (masks,
// angles, sizes) belong to no stage: every device runs them, and nothing of them crosses. Between the others, the work
// of one device is divided into equal shares, and the narrowest place of each share is kept.
//
//     node        a     b     c     d     e     f            each takes as long as the others
//     crosses        9     2     7     1     8               MB that are made before the place and read after it
//     share          0     0     1     1     2               with three shares: two places belong to a share
//     kept                 *           *     *               the narrowest of each: after b, after d, and after e
//
// Where layers repeat, the same place of every layer is kept instead: then the ranges between them are alike.
#include "plan/stages/stages.h"

#define COMMON_SHARE 256 // of all work and of all weights: more than that is not done everywhere
#define COMMON_REACH 8   // a share of the graph: what is read within less belongs to its readers
#define LEAST_PLACES 24
#define LAYER_PLACES (STAGES_MAX_PLACES * 3 / 4) // where layers repeat
#define LAYER_NODES  256     // of the first layers, in which kinds of places are looked for
#define SOLVED_NODES 3000000 // nodes of all ranges together, about

// Arrays are by place of the node in the graph. `one` is a planner of all nodes on device 0, which
// tells their times; it is freed at the end, and the scratch arrays with it.
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

// The node that makes a value, by place in the graph; -1: none that is planned.
static int64_t made_at(const struct planner *planner, const tsr_value *value)
{
    const tsr_node *from = value ? tsr_value_producer(value) : NULL;
    if (!from)
        return -1;
    return planner->node_at[tsr__node_id(from)];
}

// ---- nodes that run everywhere -----------------------------------------------------------------

// Small, and made of inputs, small constants and other such nodes.
static bool is_common(const struct cutting *cutting, size_t i)
{
    tsr_value **captures;
    const tsr_node *node = cutting->planner->nodes[i].node;
    size_t n_values = tsr__reads_count(node, &captures);
    int64_t constants = 0;
    for (size_t k = 0; k < n_values; k++) {
        const tsr_value *value = tsr__reads_at(node, captures, k);
        int64_t from = made_at(cutting->planner, value);
        if (from >= 0 && !cutting->common[from])
            return false;
        if (value && cutting->planner->values[tsr__value_id(value)].constant)
            constants += tsr__value_bytes(cutting->planner, value) / (int64_t)n_values;
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
    if (reach == 0)
        reach = 1; // what the next node alone reads is near, however small the graph
    // Backwards, so that readers are decided before the nodes that they read from. A common reader
    // passes on its own last reader: what is needed far away through it is needed far away.
    for (size_t i = n; i-- > 0;) {
        tsr_value **captures;
        const tsr_node *node = cutting->planner->nodes[i].node;
        if (cutting->planner->node_at[tsr__node_id(node)] < 0)
            continue;
        cutting->common[i] = cutting->common[i] && cutting->last[i] > i + reach;
        size_t reader = cutting->common[i] ? cutting->last[i] : i;
        size_t n_values = tsr__reads_count(node, &captures);
        for (size_t k = 0; k < n_values; k++) {
            int64_t from = made_at(cutting->planner, tsr__reads_at(node, captures, k));
            if (from >= 0 && cutting->last[from] < reader)
                cutting->last[from] = reader;
        }
    }
}

// Which nodes are in no stage, and the time of those.
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
        if (cutting->common[i])
            cutting->staging->common += cutting->time[i];
    }
    cutting->staging->staged = staged;
    return true;
}

// ---- places ------------------------------------------------------------------------------------

static bool is_staged(const struct cutting *cutting, size_t i)
{
    return cutting->staging->staged[tsr__node_id(cutting->planner->nodes[i].node)];
}

// By node: the last staged node that reads something of it.
static void find_last_readers(struct cutting *cutting)
{
    const struct planner *planner = cutting->planner;
    memset(cutting->last, 0, planner->n_nodes * sizeof *cutting->last);
    for (size_t i = 0; i < planner->n_nodes; i++) {
        tsr_value **captures;
        const tsr_node *node = planner->nodes[i].node;
        if (!is_staged(cutting, i))
            continue;
        size_t n_values = tsr__reads_count(node, &captures);
        for (size_t k = 0; k < n_values; k++) {
            int64_t from = made_at(planner, tsr__reads_at(node, captures, k));
            if (from >= 0 && cutting->last[from] < i)
                cutting->last[from] = i;
        }
    }
}

// By place (before node i): bytes of staged values that cross it. First what begins and ends to cross there, then the sums.
static void add_crossing(struct cutting *cutting, int64_t *width)
{
    const struct planner *planner = cutting->planner;
    find_last_readers(cutting);
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const tsr_node *node = planner->nodes[i].node;
        if (!is_staged(cutting, i) || cutting->last[i] <= i)
            continue;
        for (size_t o = 0; o < tsr_node_output_count(node); o++) {
            if (!tsr_node_output(node, o))
                continue;
            int64_t bytes = tsr__value_bytes(planner, tsr_node_output(node, o));
            width[i + 1] += bytes;
            width[cutting->last[i] + 1] -= bytes;
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
// 4 devices: 24 places. 10 devices: 40. With 100000 nodes ranges are costly: n falls to 12, the
// least.
static size_t most_places(int64_t devices, size_t nodes)
{
    size_t n = STAGES_MAX_PLACES;
    if (devices < STAGES_MAX_PLACES / 4)
        n = (size_t)devices * 4;
    if (n < LEAST_PLACES)
        n = LEAST_PLACES;
    while (n > LEAST_PLACES / 2 && n * n / 4 * nodes > SOLVED_NODES)
        n--;
    return n;
}

// The places between staged nodes, with the share of the work that is done before them. Every node counts a picosecond more than
// it takes, so that a graph of nodes that take no time has shares too.
static bool list_places(struct cutting *cutting, const int64_t *width, struct places *out)
{
    const struct planner *planner = cutting->planner;
    const struct plan_node *last = NULL;
    double done = 0, all = 1;
    size_t staged = 0;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (is_staged(cutting, i)) {
            all += (double)cutting->time[i] + 1;
            staged++;
        }
    *out = (struct places){.most = most_places(planner->machine.n, staged)};
    out->shares = out->most / 4;
    out->at = ARENA_ARRAY(&cutting->one->arena, struct place_between, staged + 1);
    if (!out->at)
        return false;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        if (!is_staged(cutting, i))
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
    return true;
}

// After a node of the same strategy, with as many bytes crossing: the same place of another layer.
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
    size_t n = size_min(places->n, LAYER_NODES); // the first layers show all kinds
    for (size_t i = 0; i < n; i++) {
        const struct place_between *between = &places->at[i];
        if (!between->kept && (!best || between->width < best->width) &&
            2 * count_kind(places, between) >= most)
            best = between;
    }
    return best;
}

// At least half of the shares have a place that is kept.
static bool covers(const struct places *places)
{
    size_t n = 0, last = SIZE_MAX;
    for (size_t i = 0; i < places->n; i++) {
        if (!places->at[i].kept)
            continue;
        size_t share = places->at[i].share * places->shares / places->most;
        n += share != last;
        last = share;
    }
    return 2 * n >= places->shares;
}

// How often the most frequent kind of place comes.
static size_t most_of_kind(const struct places *places)
{
    size_t most = 0, n = size_min(places->n, LAYER_NODES);
    for (size_t i = 0; i < n; i++) {
        size_t count = count_kind(places, &places->at[i]);
        if (count > most)
            most = count;
    }
    return most;
}

// Keeps every `step`-th place of that kind; returns how many.
static size_t keep_kind(struct places *places, const struct place_between *like, size_t step)
{
    size_t seen = 0, kept = 0;
    for (size_t i = 0; i < places->n; i++)
        if (same_kind(&places->at[i], like) && seen++ % step == 0) {
            places->at[i].kept = true;
            kept++;
        }
    return kept;
}

// Layers that repeat are best cut at the same places in each: then ranges are alike, and many can be tried. The narrowest
// kind is kept in any case, at every second or third layer where layers are too many; others as long as they are no wider and
// there is room. False: there are none to speak of.
static bool keep_layers(struct places *places)
{
    size_t most = most_of_kind(places), kept = 0;
    int64_t width = -1;
    // Fewer repetitions than coarse shares of the work: layers are no help.
    if (most < places->shares)
        return false;
    for (const struct place_between *next; (next = next_kind(places, most));) {
        const struct place_between like = *next;
        size_t all = count_kind(places, &like), step = (all + LAYER_PLACES - 1) / LAYER_PLACES;
        if (kept && (like.width > width || kept + all > LAYER_PLACES))
            break;
        width = like.width;
        kept += keep_kind(places, &like, step);
        if (step > 1)
            break;
    }
    if (covers(places))
        return true;
    for (size_t i = 0; i < places->n; i++)
        places->at[i].kept = false;
    return false;
}

// The share among `shares` coarser ones: share 5 of 8 is share 2 of 4.
static size_t share_of(const struct places *places, size_t i, size_t shares)
{
    return places->at[i].share * shares / places->most;
}

// The narrowest place of each share of the work that has none yet. Places of one share follow one another.
static void keep_shares(struct places *places, size_t shares)
{
    size_t i = 0;
    while (i < places->n) {
        size_t share = share_of(places, i, shares), best = i;
        bool any = false;
        for (; i < places->n; i++) {
            if (share_of(places, i, shares) != share)
                break;
            any = any || places->at[i].kept;
            if (places->at[i].width < places->at[best].width)
                best = i;
        }
        if (!any)
            places->at[best].kept = true;
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

// A place for each cut of the other model, the narrowest of its window and behind the one before; where none is left the cut
// has none.
static void keep_followed(const struct staging *staging, struct places *places)
{
    size_t next = 0;
    for (size_t c = 0; c < staging->n_followed; c++) {
        struct followed_cut *cut = &staging->followed[c];
        size_t best = SIZE_MAX;
        for (size_t i = next; i < places->n; i++) {
            const struct place_between *between = &places->at[i];
            bool fits = between->before >= cut->window.low && between->before <= cut->window.high;
            if (fits && (best == SIZE_MAX || between->width < places->at[best].width))
                best = i;
        }
        if (best == SIZE_MAX)
            continue;
        places->at[best].kept = true;
        cut->before = places->at[best].before;
        next = best + 1;
    }
}

// All places where they are few; else those of layers, and the narrowest of the shares.
static void keep_places(const struct staging *staging, struct places *places)
{
    if (staging->followed) {
        keep_followed(staging, places);
        return;
    }
    if (places->n > places->most) {
        bool layers = keep_layers(places);
        keep_shares(places, layers ? places->shares : places->most);
    } else {
        for (size_t i = 0; i < places->n; i++)
            places->at[i].kept = true;
    }
    keep_windows(staging, places);
}

// The cuts of the staging: its ranges lie between the places that are kept, and the ends of the graph.
static bool choose_places(struct cutting *cutting, const int64_t *width)
{
    struct places places;
    struct staging *staging = cutting->staging;
    struct arena *arena = &staging->planner->arena;
    size_t n = 1;
    if (!list_places(cutting, width, &places))
        return false;
    keep_places(staging, &places);
    for (size_t i = 0; i < places.n; i++)
        n += places.at[i].kept;
    staging->cut = ARENA_ARRAY(arena, size_t, n + 1);
    staging->ranges = ARENA_ARRAY(arena, struct range, (n + 1) * (n + 1));
    staging->n_ranges = n;
    if (!staging->cut || !staging->ranges)
        return false;
    n = 1;
    for (size_t i = 0; i < places.n; i++)
        if (places.at[i].kept)
            staging->cut[n++] = places.at[i].before;
    staging->cut[n] = cutting->planner->n_nodes;
    return true;
}

// Time of all nodes on one device, and bytes of all constants.
static void add_up(struct cutting *cutting)
{
    const struct planner *planner = cutting->planner;
    const tsr_graph *graph = tsr_model_graph(planner->model);
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct strategy *strategy = cutting->one->nodes[i].strategy;
        if (strategy)
            cutting->time[i] = strategy->at.at[0].compute;
        cutting->all_time += cutting->time[i];
    }
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++)
        cutting->all_bytes += tsr__value_bytes(planner, tsr_graph_initializer(graph, i));
}

// Times first, then the nodes that run everywhere, then what crosses between the others, then the
// cuts.
static bool find_cuts(struct cutting *cutting)
{
    struct arena *scratch = &cutting->one->arena;
    size_t n_nodes = cutting->planner->n_nodes;
    cutting->time = ARENA_ARRAY(&cutting->staging->planner->arena, int64_t, n_nodes + 1);
    cutting->staging->times = cutting->time;
    cutting->common = ARENA_ARRAY(scratch, unsigned char, n_nodes + 1);
    cutting->last = ARENA_ARRAY(scratch, size_t, n_nodes + 1);
    int64_t *width = ARENA_ARRAY(scratch, int64_t, n_nodes + 2);
    if (!cutting->time || scratch->failed)
        return false;
    add_up(cutting);
    if (!find_common(cutting))
        return false;
    add_crossing(cutting, width);
    return choose_places(cutting, width);
}

bool tsr__stages_cuts(struct staging *staging)
{
    struct planner one = {0};
    int64_t first = 0;
    struct cutting cutting = {.staging = staging, .planner = staging->planner, .one = &one};
    bool ok = tsr__planner_fork(staging->planner, NULL, &first, 1, &one);
    ok = ok && find_cuts(&cutting);
    tsr__planner_end(&one);
    return ok;
}
