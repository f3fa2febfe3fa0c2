// SPDX-License-Identifier: Apache-2.0
// split_points.c - finds where a graph may be split into stages: between nodes where few bytes
// cross.
//
// Some nodes (masks, angles, sizes) belong to no stage: every device runs them. They depend only on
// inputs and small constants, cost next to nothing and are read in many places. The work of the
// others on one device is divided into equal shares. Of each share, the narrowest place is kept:
// the one where the fewest bytes cross. Example:
//
//     node        a     b     c     d     e     f        equal times
//     crosses        9     2     7     1     8           MB made before the place and read after it
//     share          0     0     1     1     2           of three shares
//     kept                 *           *     *           the narrowest of each share
//
// If layers repeat, the same place of every layer is kept instead, so that ranges are equal.
#include "plan/stages/stages.h"

#define COMMON_SHARE 256 // nodes above 1/256 of all work or weights do not run on all devices
// values that are read only within 1/8 of the graph belong to the stage of their readers
#define COMMON_REACH 8
#define LEAST_PLACES 24
#define LAYER_PLACES (STAGES_MAX_PLACES * 3 / 4) // largest number of split points if layers repeat
// number of places at the start of the graph that are examined for repeated layers
#define LAYER_NODES  256
#define SOLVED_NODES 3000000 // approximate limit for the nodes of all ranges together

// Arrays are indexed by node. `one` is a planner of all nodes on device 0, which gives their times;
// it is freed at the end with the scratch arrays.
struct splitting {
    struct staging *staging;
    const struct planner *planner;
    struct planner *one;   // all nodes on one device
    int64_t *time;         // by node: its time on one device
    int64_t all_time;      // sum of `time`
    int64_t all_bytes;     // bytes of all constants
    unsigned char *common; // by node: it may run on all devices
    size_t *last;          // by node: the last reader that is not common
    bool *together;        // by node: it belongs to the same node with bodies as the one before it
};

// ---- nodes that run everywhere -----------------------------------------------------------------

// True if the node may run on all devices: it is small and depends only on inputs, small constants
// and other such nodes. Nodes with bodies are always in a stage.
static bool is_common(const struct splitting *splitting, size_t i)
{
    tsr_value **captures;
    const struct plan_node *node = &splitting->planner->nodes[i];
    size_t n_values = tsr__plan_all_reads(node, &captures);
    int64_t constants = 0;
    if (node->bodies || !in_main_graph(node))
        return false;
    for (size_t k = 0; k < n_values; k++) {
        const tsr_value *value = plan_any_read(node, captures, k);
        int64_t from = tsr__planned_producer(splitting->planner, value);
        if (from >= 0 && !splitting->common[from])
            return false;
        if (value && splitting->planner->values[tsr__value_id(value)].constant)
            constants += tsr__value_bytes(splitting->planner, value) / (int64_t)n_values;
    }
    return splitting->time[i] <= splitting->all_time / COMMON_SHARE &&
           constants <= splitting->all_bytes / COMMON_SHARE;
}

// True if the node has a manual stage and so runs only there.
static bool has_stage(const struct staging *staging, size_t i)
{
    return staging->hand && staging->hand[i] >= 0;
}

// True for nodes that take no time and of which every stage has its own copy: they only compute
// sizes, or are a Constant with a small value.
static bool is_free(const struct splitting *splitting, const tsr_node *node)
{
    const tsr_value *value = tsr_node_output_count(node) ? tsr_node_output(node, 0) : NULL;
    if (!value)
        return false;
    return splitting->planner->values[tsr__value_id(value)].free ||
           (tsr__node_constant(node) &&
            tsr__value_bytes(splitting->planner, value) <= PLAN_SMALL_CONSTANT);
}

// Clears `common` of nodes whose last reader is near: within 1/COMMON_REACH of the graph. Readers
// of common readers count as well.
static void keep_far(struct splitting *splitting)
{
    size_t n = splitting->planner->n_nodes, reach = n / COMMON_REACH;
    if (reach == 0)
        reach = 1; // a value that only the next node reads is near
    // Backwards, so that readers are decided before producers. A common reader passes on its own
    // last reader.
    for (size_t i = n; i-- > 0;) {
        tsr_value **captures;
        const struct plan_node *node = &splitting->planner->nodes[i];
        if (splitting->planner->node_at[tsr__node_id(node->node)] < 0)
            continue;
        bool far = splitting->last[i] > i + reach || is_free(splitting, node->node);
        splitting->common[i] = splitting->common[i] && far;
        size_t reader = splitting->common[i] ? splitting->last[i] : i;
        size_t n_values = tsr__plan_all_reads(node, &captures);
        for (size_t k = 0; k < n_values; k++) {
            int64_t from =
                tsr__planned_producer(splitting->planner, plan_any_read(node, captures, k));
            if (from >= 0 && splitting->last[from] < reader)
                splitting->last[from] = reader;
        }
    }
}

// Decides which nodes are in no stage, and adds up their time.
static bool find_common(struct splitting *splitting)
{
    const struct planner *planner = splitting->planner;
    unsigned char *staged = ARENA_ARRAY(&splitting->staging->planner->arena, unsigned char,
                                        tsr__model_node_ids(planner->model) + 1);
    if (!staged)
        return false;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->node_at[tsr__node_id(planner->nodes[i].node)] >= 0)
            splitting->common[i] = !has_stage(splitting->staging, i) && is_common(splitting, i);
    keep_far(splitting);
    for (size_t i = 0; i < planner->n_nodes; i++) {
        uint32_t id = tsr__node_id(planner->nodes[i].node);
        staged[id] = planner->node_at[id] >= 0 && !splitting->common[i];
        if (splitting->common[i])
            splitting->staging->common += splitting->time[i];
    }
    splitting->staging->staged = staged;
    return true;
}

// ---- places ------------------------------------------------------------------------------------

static bool is_staged(const struct splitting *splitting, size_t i)
{
    return splitting->staging->staged[tsr__node_id(splitting->planner->nodes[i].node)];
}

// Finds for each node the last staged node that reads its output.
static void find_last_readers(struct splitting *splitting)
{
    const struct planner *planner = splitting->planner;
    memset(splitting->last, 0, planner->n_nodes * sizeof *splitting->last);
    for (size_t i = 0; i < planner->n_nodes; i++) {
        tsr_value **captures;
        const struct plan_node *node = &planner->nodes[i];
        if (!is_staged(splitting, i))
            continue;
        size_t n_values = tsr__plan_all_reads(node, &captures);
        for (size_t k = 0; k < n_values; k++) {
            int64_t from = tsr__planned_producer(planner, plan_any_read(node, captures, k));
            if (from >= 0 && splitting->last[from] < i)
                splitting->last[from] = i;
        }
    }
}

// Computes width[i], the bytes of staged values that cross the place before node i: first the
// changes, then the running sums.
static void add_crossing(struct splitting *splitting, int64_t *width)
{
    const struct planner *planner = splitting->planner;
    find_last_readers(splitting);
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!is_staged(splitting, i) || splitting->last[i] <= i)
            continue;
        for (size_t o = 0; o < tsr__plan_makes(node); o++) {
            if (!tsr__plan_made(node, o))
                continue;
            int64_t bytes = tsr__value_bytes(planner, tsr__plan_made(node, o));
            width[i + 1] += bytes;
            width[splitting->last[i] + 1] -= bytes;
        }
    }
    for (size_t i = 1; i <= planner->n_nodes; i++)
        width[i] += width[i - 1];
}

// A possible split point between two nodes in stages.
struct place_between {
    size_t before; // index of the second node
    int64_t width; // bytes that cross
    uint32_t kind; // strategy of the first node
    size_t share;  // index of the equal share of work in which this place is
    bool kept;
};
struct places {
    struct place_between *at;
    size_t n, most, shares; // number of places, of places to keep, and of coarse shares
};

// Returns the number of split points to keep: more for more devices, fewer for large graphs, whose
// ranges are expensive. Example: 24 for 4 devices, 40 for 10 devices, and 12 if the graph has
// 100,000 nodes.
static size_t most_places(int64_t devices, size_t nodes)
{
    size_t n = devices < STAGES_MAX_PLACES / 4 ? (size_t)devices * 4 : STAGES_MAX_PLACES;
    n = size_max(n, LEAST_PLACES);
    while (n > LEAST_PLACES / 2 && n * n / 4 * nodes > SOLVED_NODES)
        n--;
    return n;
}

// Lists the possible split points, and in which of `most` equal shares of the work each one is.
// Adds a picosecond to every node, so that nodes without cost also advance the share.
static bool list_places(struct splitting *splitting, const int64_t *width, struct places *out)
{
    const struct planner *planner = splitting->planner;
    const struct plan_node *last = NULL;
    double done = 0, all = 1;
    size_t staged = 0;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (is_staged(splitting, i)) {
            all += (double)splitting->time[i] + 1;
            staged++;
        }
    *out = (struct places){.most = most_places(planner->machine.n, staged)};
    out->shares = out->most / 4;
    out->at = ARENA_ARRAY(&splitting->one->arena, struct place_between, staged + 1);
    if (!out->at)
        return false;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        if (!is_staged(splitting, i))
            continue;
        if (last && !splitting->together[i])
            out->at[out->n++] = (struct place_between){
                .before = i,
                .width = width[i],
                .kind = last->strategy->id,
                .share = (size_t)(done / all * (double)out->most),
            };
        last = &splitting->one->nodes[i];
        done += (double)splitting->time[i] + 1;
    }
    return true;
}

// True if both split points follow a node of the same strategy and have the same width. They are
// then probably at the same position in two layers.
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

// Returns the narrowest kind of split point that is not kept yet and occurs at least half as often
// as the most frequent one.
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

// True if at least half of the shares of the work have a kept split point.
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

// Returns the number of occurrences of the most frequent kind of split point, of those that occur
// among the first LAYER_NODES.
static size_t most_of_kind(const struct places *places)
{
    size_t most = 0, n = size_min(places->n, LAYER_NODES);
    for (size_t i = 0; i < n; i++)
        most = size_max(most, count_kind(places, &places->at[i]));
    return most;
}

// Keeps every `step`-th split point of this kind, and returns the number of those that it kept.
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

// Keeps split points between repeated layers. All layers are split at the same positions, so that
// ranges are equal and many can be tried. Keeps the narrowest kind, at every second or third layer
// if there are too many. Keeps other kinds if they are no wider and not too many. Returns false,
// and keeps none, if layers do not repeat or are in less than half of the shares.
static bool keep_layers(struct places *places)
{
    size_t most = most_of_kind(places), kept = 0;
    int64_t width = -1;
    // Fewer repetitions than shares: layers do not help.
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

// Converts the share to one of `shares` coarser shares. Example: share 5 of 8 is share 2 of 4.
static size_t share_of(const struct places *places, size_t i, size_t shares)
{
    return places->at[i].share * shares / places->most;
}

// Keeps the narrowest split point of each share that has none yet. Split points of one share are
// adjacent.
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

// Keeps one split point for each manual stage: the narrowest at which it may end.
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

// For each split point of the first model, keeps the narrowest split point in its window. It must
// come after the previous one that was kept; some windows have none.
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

// Keeps all split points if they are few. Otherwise keeps those between layers, and the narrowest
// of each equal share of the work. In a second model, keeps only those that belong to split points
// of the first.
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

// Fills staging->cut with the kept places and both ends of the graph.
static bool choose_places(struct splitting *splitting, const int64_t *width)
{
    struct places places;
    struct staging *staging = splitting->staging;
    struct arena *arena = &staging->planner->arena;
    size_t n = 1;
    if (!list_places(splitting, width, &places))
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
    staging->cut[n] = splitting->planner->n_nodes;
    return true;
}

// Sums the time of all nodes on one device, and the bytes of all constants.
static void add_up(struct splitting *splitting)
{
    const struct planner *planner = splitting->planner;
    const tsr_graph *graph = tsr_model_graph(planner->model);
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct strategy *strategy = splitting->one->nodes[i].strategy;
        if (strategy)
            splitting->time[i] = strategy->at.at[0].compute;
        splitting->all_time += splitting->time[i];
    }
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++)
        splitting->all_bytes += tsr__value_bytes(planner, tsr_graph_initializer(graph, i));
}

// Marks the entries before which the graph cannot be split, because they belong to a node with
// bodies.
static void find_together(struct splitting *splitting)
{
    const struct planner *planner = splitting->planner;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].bodies)
            for (size_t k = bodies_begin(planner->nodes[i].bodies, i) + 1; k <= i; k++)
                splitting->together[k] = true;
}

// Computes, in this order: times, nodes in no stage, crossing bytes, split points.
static bool find_cuts(struct splitting *splitting)
{
    struct arena *scratch = &splitting->one->arena;
    size_t n_nodes = splitting->planner->n_nodes;
    splitting->time = ARENA_ARRAY(&splitting->staging->planner->arena, int64_t, n_nodes + 1);
    splitting->staging->times = splitting->time;
    splitting->common = ARENA_ARRAY(scratch, unsigned char, n_nodes + 1);
    splitting->last = ARENA_ARRAY(scratch, size_t, n_nodes + 1);
    splitting->together = ARENA_ARRAY(scratch, bool, n_nodes + 1);
    int64_t *width = ARENA_ARRAY(scratch, int64_t, n_nodes + 2);
    if (!splitting->time || scratch->failed)
        return false;
    add_up(splitting);
    find_together(splitting);
    if (!find_common(splitting))
        return false;
    add_crossing(splitting, width);
    return choose_places(splitting, width);
}

bool tsr__split_points(struct staging *staging)
{
    struct planner one = {0};
    int64_t first = 0;
    struct splitting splitting = {.staging = staging, .planner = staging->planner, .one = &one};
    bool ok = tsr__planner_fork(staging->planner, NULL, &first, 1, &one);
    ok = ok && find_cuts(&splitting);
    tsr__planner_end(&one);
    return ok;
}
