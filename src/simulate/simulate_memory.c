// SPDX-License-Identifier: Apache-2.0
// simulate_memory.c - predicts the memory of a device while its part runs: constants, inputs, and
// activations from their producer to their last reader.
#include "simulate/simulate.h"
#include "ir/ir.h"
#include "plan/plan.h"
#include "rules/rules.h"
#include "sharding/sharding.h"

#define DOMAIN "ai.tessera"
#define SMALL  ((int64_t)64 << 10) // smaller blocks are not placed in the heap, only summed

// A store is memory that one or several values use, one after the other. Node k in execution order
// has three times: at 4 k its input is copied, at 4 k + 1 it runs, at 4 k + 2 its output is copied.
#define NODE_TIMES 4
#define RUNS       1
#define COPIES     2
struct store {
    int64_t bytes, from, end; // from, end: first and last time of use
    const tsr_value *first;   // the first value that used it
    bool waits;               // the store is free and can be reused
    size_t below;             // next in the stack of free stores of this shape; 0: none
};
// All stores. Values that are computed in place share a store, whose end is extended.
struct stores {
    const tsr_model *model;
    const struct shapes *shapes;
    struct arena *arena;
    enum kernels kernels;
    int64_t nodes;
    const tsr_node **order; // nodes in execution order
    int64_t *times;         // time of each node, by index in the file
    size_t *of;             // index of each value's store plus 1, by value id; 0: none
    VEC(struct store) list;
    struct map free; // shape -> size_t *: the most recently freed store of that shape; 0: none
};

struct last_use {
    const struct stores *stores;
    bool but_blocks; // ignore readers that take the value in the blocked layout of convolutions
    bool but_usual;  // ignore readers that take the value in the plain layout
    int64_t at;
};

// Finds the last use of a value; called for each reader. A reader that copies its input needs the
// value only until the copy is made.
static bool last_use(void *data, tsr_node *node, size_t input)
{
    struct last_use *last = data;
    const struct stores *stores = last->stores;
    bool blocks = tsr__node_takes_blocks(node, stores->shapes);
    if ((last->but_blocks && blocks) || (last->but_usual && !blocks))
        return true;
    int64_t at = stores->times[tsr__sim_place(node)];
    if (input > 0 || stores->kernels != KERNELS_CPU ||
        !tsr__node_copies_input(node, stores->shapes))
        at += RUNS;
    raise_to(&last->at, at);
    return true;
}

// Returns the time of the last reader. Outputs of the model are needed until the end.
static int64_t end_of(const struct stores *stores, const tsr_value *value, int64_t made)
{
    struct last_use last = {.stores = stores, .at = made};
    tsr_value_uses(value, last_use, &last);
    return tsr_value_is_output(value) ? NODE_TIMES * stores->nodes : last.at;
}

static int64_t bytes_of(const struct stores *stores, const tsr_value *value)
{
    bool sized = true;
    return tsr__sized_bytes(stores->shapes, value, &sized);
}

// True if the engine may reuse the memory of one value for the other: shape and element size must
// be equal, not only the number of bytes.
static bool look_alike(const struct stores *stores, const tsr_value *a, const tsr_value *b)
{
    struct shape x = tsr__shapes_of(stores->shapes, a), y = tsr__shapes_of(stores->shapes, b);
    if (x.rank != y.rank || x.rank < 1 || bytes_of(stores, a) != bytes_of(stores, b))
        return false;
    for (int d = 0; d < x.rank; d++)
        if (x.dims[d].value < 0 || x.dims[d].value != y.dims[d].value)
            return false;
    return true;
}

#define NO_MEMORY SIZE_MAX // the value is in the memory of a model input or a constant

// Returns the store of an input that the first output of the node reuses; 0: none; NO_MEMORY: the
// output is a view of a value without a store. The input must have no later reader, unless the
// output is a view of that input.
static size_t taken_over(const struct stores *stores, const tsr_node *node, int64_t at)
{
    enum kernel_place place = tsr__node_place(node, stores->shapes, stores->kernels);
    if (place == PLACE_OWN || tsr_node_input_count(node) == 0)
        return 0;
    const tsr_value *first = tsr_node_input(node, 0);
    if (place == PLACE_OF_INPUT && first) {
        size_t store = stores->of[tsr__value_id(first)];
        return store ? store : NO_MEMORY;
    }
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        size_t store = value ? stores->of[tsr__value_id(value)] : 0;
        if (store && store != NO_MEMORY && stores->list.at[store - 1].end <= at &&
            look_alike(stores, value, tsr_node_output(node, 0)))
            return store;
    }
    return 0;
}

// Returns the stack of free stores with the value's shape (look_alike). NULL: unknown shape, or out
// of memory.
static size_t *free_top(struct stores *stores, const tsr_value *value)
{
    struct shape shape = tsr__shapes_of(stores->shapes, value);
    if (shape.rank < 1)
        return NULL;
    int64_t *key = ARENA_ARRAY(stores->arena, int64_t, (size_t)shape.rank + 1);
    if (!key)
        return NULL;
    key[shape.rank] = bytes_of(stores, value);
    for (int d = 0; d < shape.rank; d++) {
        key[d] = shape.dims[d].value;
        if (key[d] < 0)
            return NULL;
    }
    struct str text = str_bytes(key, ((size_t)shape.rank + 1) * sizeof *key);
    void **slot = tsr__map_at(&stores->free, text);
    if (slot && !*slot)
        *slot = ARENA_NEW(stores->arena, size_t);
    return slot ? *slot : NULL;
}

// Returns the most recently freed store with the value's shape; 0: none. The store stays reserved
// between its two uses, because the engine plans the reuse in advance.
static size_t used_again(struct stores *stores, const tsr_value *value)
{
    size_t *top = free_top(stores, value);
    if (!top || !*top)
        return 0;
    size_t store = *top;
    *top = stores->list.at[store - 1].below;
    stores->list.at[store - 1].waits = false;
    return store;
}

// Returns the store that output i reuses; 0: it needs a new one. Outputs of the graph have their
// own memory. Only the first output of a node may reuse the memory of an input; outputs of
// communications never do.
static size_t find_store(struct stores *stores, const tsr_node *node, size_t i, int64_t at)
{
    const tsr_value *value = tsr_node_output(node, i);
    size_t store = 0;
    if (tsr_value_is_output(value))
        return 0;
    if (i == 0 && strcmp(tsr_node_domain(node), DOMAIN) != 0)
        store = taken_over(stores, node, at);
    if (!store && tsr_value_use_count(value))
        store = used_again(stores, value);
    return store;
}

// True if a "past=present" pair in the rank's metadata names the output.
static bool is_state(const tsr_model *model, const tsr_value *output)
{
    struct str name = tsr__value_str(output);
    const char *text = tsr_model_metadata(model, META_STATE);
    while (text && *text) {
        size_t n = strcspn(text, "\n");
        if (n > name.n && text[n - name.n - 1] == '=' &&
            memcmp(text + n - name.n, name.p, name.n) == 0)
            return true;
        text += n + (text[n] == '\n');
    }
    return false;
}

// Adds the store of an output. If `own` is set, each value has separate memory, as in the planner's
// estimate. A cache that its node updates in place uses the memory of an input.
static void add_output(struct stores *stores, const tsr_node *node, size_t i, int64_t at, bool own)
{
    const tsr_value *value = tsr_node_output(node, i);
    int64_t end = end_of(stores, value, at);
    size_t store = 0;
    if (tsr__node_updated_cache(node, i) && is_state(stores->model, value))
        store = NO_MEMORY;
    else if (!own)
        store = find_store(stores, node, i, at);
    struct store *fresh = store ? NULL : vec_push(stores->arena, &stores->list);
    if (fresh) {
        *fresh = (struct store){bytes_of(stores, value), at, end, value, false, 0};
        store = stores->list.n;
    } else if (store && store != NO_MEMORY) {
        raise_to(&stores->list.at[store - 1].end, end);
    }
    stores->of[tsr__value_id(value)] = store;
}

// Adds scratch memory that exists only while the node runs and is never reused for a value.
static void add_passing(struct stores *stores, int64_t bytes, int64_t at)
{
    if (bytes > 0)
        vec_add(stores->arena, &stores->list,
                (struct store){.bytes = bytes, .from = at, .end = at});
}

// ---- copies to and from the blocked layout of convolutions --------------------------------------

// Returns memory for a copy of the value: a free store of its shape, or a new one. 0: out of
// memory.
static size_t copy_store(struct stores *stores, const tsr_value *value, int64_t from, int64_t end)
{
    size_t store = !tsr_value_is_output(value) ? used_again(stores, value) : 0;
    if (store) {
        raise_to(&stores->list.at[store - 1].end, end);
        return store;
    }
    if (!vec_add(stores->arena, &stores->list,
                 (struct store){bytes_of(stores, value), from, end, value, false, 0}))
        return 0;
    return stores->list.n;
}

static void set_free(struct stores *stores, size_t store)
{
    struct store *freed = &stores->list.at[store - 1];
    size_t *top = freed->first ? free_top(stores, freed->first) : NULL;
    freed->waits = true;
    if (!top)
        return;
    freed->below = *top;
    *top = store;
}

// Returns the store of the copied input; 0: the node reads its input without a copy.
static size_t copy_input(struct stores *stores, const tsr_node *node, int64_t at)
{
    if (stores->kernels != KERNELS_CPU || !tsr__node_copies_input(node, stores->shapes))
        return 0;
    return copy_store(stores, tsr_node_input(node, 0), at, at + RUNS);
}

// Adds a copy of the output in the plain layout, if the node makes one. The original stays for
// readers that take the blocked layout.
static void copy_output(struct stores *stores, const tsr_node *node, int64_t at)
{
    if (stores->kernels != KERNELS_CPU || !tsr__node_copies_output(node, stores->shapes))
        return;
    const tsr_value *value = tsr_node_output(node, 0);
    size_t *place = &stores->of[tsr__value_id(value)], blocks = *place;
    struct last_use usual = {.stores = stores, .but_blocks = true, .at = at + COPIES};
    struct last_use other = {.stores = stores, .but_usual = true, .at = at + COPIES};
    tsr_value_uses(value, last_use, &usual);
    tsr_value_uses(value, last_use, &other);
    if (tsr_value_is_output(value))
        usual.at = NODE_TIMES * stores->nodes;
    *place = copy_store(stores, value, at + COPIES, usual.at);
    if (!blocks || blocks == NO_MEMORY)
        return;
    stores->list.at[blocks - 1].end = other.at;
    if (other.at == at + COPIES)
        set_free(stores, blocks);
}

// Frees the store of the value if no node needs it after that time.
static void free_store(struct stores *stores, const tsr_value *value, int64_t at)
{
    size_t store = value ? stores->of[tsr__value_id(value)] : 0;
    if (!store || store == NO_MEMORY)
        return;
    struct store *freed = &stores->list.at[store - 1];
    if (freed->waits || freed->end > at)
        return;
    set_free(stores, store);
}

// Returns the peak of all stores: bytes are added at their first time and subtracted after their
// last.
static int64_t most_at_once(struct stores *stores)
{
    int64_t now = 0, most = 0;
    int64_t *change = ARENA_ARRAY(stores->arena, int64_t, NODE_TIMES * (size_t)stores->nodes + 2);
    int64_t largest = INT64_MAX / ((int64_t)stores->list.n + 1); // prevents overflow of the sum
    if (!change)
        return 0;
    for (size_t i = 0; i < stores->list.n; i++) {
        int64_t bytes = stores->list.at[i].bytes < largest ? stores->list.at[i].bytes : largest;
        change[stores->list.at[i].from] += bytes;
        change[stores->list.at[i].end + 1] -= bytes;
    }
    for (int64_t i = 0; i <= NODE_TIMES * stores->nodes; i++) {
        now += change[i];
        raise_to(&most, now);
    }
    return most;
}

// ---- a best-fit heap ---------------------------------------------------------------------------

// A block is allocated in the smallest gap that is large enough, and adjacent gaps are merged, as
// in the heap of the ranks (transport/shm/shm_heap.c).
//
//     Example: allocate 8, 4 and 6 bytes: [0, 8), [8, 12), [12, 18).
//     Free the first two: a gap of 12 bytes.
//     Allocate 7 and 9: [0, 7) and [18, 27). The top is 27, although only 22 bytes are in use.

// A free range of the heap. Memory above `top` of the heap has never been allocated.
struct sim_gap {
    int64_t from, end;
};
struct sim_heap {
    int64_t top;
    VEC(struct sim_gap) gaps;
};

// Returns the index of the smallest gap that is large enough, or the number of gaps if there is
// none.
static size_t best_gap(const struct sim_heap *heap, int64_t bytes)
{
    size_t best = heap->gaps.n;
    for (size_t i = 0; i < heap->gaps.n; i++) {
        int64_t size = heap->gaps.at[i].end - heap->gaps.at[i].from;
        if (size < bytes)
            continue;
        if (best == heap->gaps.n || size < heap->gaps.at[best].end - heap->gaps.at[best].from)
            best = i;
    }
    return best;
}

static void remove_gap(struct sim_heap *heap, size_t i)
{
    heap->gaps.n--;
    memmove(&heap->gaps.at[i], &heap->gaps.at[i + 1], (heap->gaps.n - i) * sizeof *heap->gaps.at);
}

// Allocates at the top of the heap. If the last gap ends at the top, the block begins in that gap,
// and the heap grows only by the difference.
static int64_t take_on_top(struct sim_heap *heap, int64_t bytes)
{
    int64_t from = heap->top;
    size_t n = heap->gaps.n;
    if (n && heap->gaps.at[n - 1].end == heap->top) {
        from = heap->gaps.at[n - 1].from;
        remove_gap(heap, n - 1);
    }
    heap->top = sum_of(from, bytes);
    return from;
}

// Allocates that many bytes and returns their offset.
static int64_t take_block(struct sim_heap *heap, int64_t bytes)
{
    size_t i = best_gap(heap, bytes);
    if (i == heap->gaps.n)
        return take_on_top(heap, bytes);
    int64_t from = heap->gaps.at[i].from;
    heap->gaps.at[i].from += bytes;
    if (heap->gaps.at[i].from == heap->gaps.at[i].end)
        remove_gap(heap, i);
    return from;
}

// Frees a block. Gaps are sorted by address, and adjacent gaps are merged.
static void give_block(struct arena *arena, struct sim_heap *heap, int64_t from, int64_t bytes)
{
    size_t i = 0;
    int64_t end = sum_of(from, bytes);
    while (i < heap->gaps.n && heap->gaps.at[i].end < from)
        i++;
    bool before = i < heap->gaps.n && heap->gaps.at[i].end == from;
    size_t next = before ? i + 1 : i;
    bool after = next < heap->gaps.n && heap->gaps.at[next].from == end;
    if (before && after) {
        heap->gaps.at[i].end = heap->gaps.at[next].end;
        remove_gap(heap, next);
    } else if (before) {
        heap->gaps.at[i].end = end;
    } else if (after) {
        heap->gaps.at[next].from = from;
    } else if (vec_push(arena, &heap->gaps)) {
        memmove(&heap->gaps.at[i + 1], &heap->gaps.at[i],
                (heap->gaps.n - 1 - i) * sizeof *heap->gaps.at);
        heap->gaps.at[i] = (struct sim_gap){from, end};
    }
}

// Returns the size of a heap in which stores are never moved. Blocks are allocated in list order,
// and freed before the first node after their end. Stores of less than SMALL bytes are not placed:
// the sum of their sizes is added.
static int64_t with_gaps(struct stores *stores)
{
    struct sim_heap heap = {0};
    int64_t small = 0;
    size_t n = stores->list.n;
    int64_t *places = ARENA_ARRAY(stores->arena, int64_t, n + 1);
    size_t *first = ARENA_ARRAY(stores->arena, size_t, NODE_TIMES * (size_t)stores->nodes + 2);
    size_t *next = ARENA_ARRAY(stores->arena, size_t, n + 1);
    if (!places || !first || !next)
        return 0;
    int64_t now = 0;
    for (size_t i = 0; i < n; i++) {
        const struct store *store = &stores->list.at[i];
        for (; now < store->from; now++)
            for (size_t k = first[now]; k; k = next[k])
                give_block(stores->arena, &heap, places[k], stores->list.at[k - 1].bytes);
        if (store->bytes < SMALL) {
            small = sum_of(small, store->bytes);
            continue;
        }
        places[i + 1] = take_block(&heap, store->bytes);
        next[i + 1] = first[store->end];
        first[store->end] = i + 1;
    }
    return sum_of(heap.top, small);
}

// Adds the copies, outputs and scratch memory of a node, in the order in which the engine allocates
// them.
static void list_node(struct stores *stores, const tsr_node *node, int64_t at, bool own)
{
    size_t copied = own ? 0 : copy_input(stores, node, at);
    if (copied)
        free_store(stores, tsr_node_input(node, 0), at);
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i))
            add_output(stores, node, i, at + RUNS, own);
    if (!own && stores->kernels == KERNELS_CPU)
        add_passing(stores, tsr__node_scratch(node, stores->shapes), at + RUNS);
    if (copied)
        set_free(stores, copied);
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        free_store(stores, tsr_node_input(node, i), at + RUNS);
    if (!own)
        copy_output(stores, node, at);
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        free_store(stores, tsr_node_output(node, i), at + RUNS);
}

// Lists the stores of all values, from producer to last reader. If `own` is set, each value has
// separate memory as in the planner's estimate; otherwise the engine's reuse is simulated.
static void list_stores(struct stores *stores, bool own)
{
    stores->list.n = 0;
    tsr__map_init(&stores->free, stores->arena, 0);
    for (int64_t k = 0; k < stores->nodes; k++)
        if (!tsr__node_reads_constants(stores->order[k]))
            list_node(stores, stores->order[k], NODE_TIMES * k, own);
}

// Sets the execution order: order[k] is the index in the file of the node that runs as number k.
// NULL: the order of the file.
static void set_order(struct stores *stores, const int64_t *order)
{
    int64_t at = 0;
    for (int64_t k = 0; k < stores->nodes; k++)
        stores->times[order ? order[k] : k] = NODE_TIMES * k;
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(stores->model)); node;
         node = tsr_node_next(node))
        stores->order[stores->times[at++] / NODE_TIMES] = node;
}

static bool open_stores(struct stores *stores)
{
    size_t n = (size_t)stores->nodes + 1;
    stores->of = ARENA_ARRAY(stores->arena, size_t, tsr__model_value_ids(stores->model) + 1);
    stores->order = ARENA_ARRAY(stores->arena, const tsr_node *, n);
    stores->times = ARENA_ARRAY(stores->arena, int64_t, n);
    return stores->of && stores->order && stores->times;
}

// Sets *data if the node is not computed at load time, so that it reads the value in a run.
static bool look_for_reader(void *data, tsr_node *node, size_t input)
{
    bool *read = data;
    (void)input;
    *read = *read || !tsr__node_reads_constants(node) || !tsr__node_folds(node);
    return true;
}

static bool is_read(const tsr_value *value)
{
    bool read = tsr_value_is_output(value);
    tsr_value_uses(value, look_for_reader, &read);
    return read;
}

// Returns the bytes of constants after loading. Results of constant folding are added; constants
// that only folded nodes read are subtracted.
static int64_t loaded_constants(const struct stores *stores, int64_t weights)
{
    const tsr_graph *graph = tsr_model_graph(stores->model);
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *constant = tsr_graph_initializer(graph, i);
        if (!is_read(constant))
            weights -= bytes_of(stores, constant);
    }
    weights = weights > 0 ? weights : 0;
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        if (!tsr__node_reads_constants(node) || !tsr__node_folds(node))
            continue;
        for (size_t i = 0; i < tsr_node_output_count(node); i++)
            if (tsr_node_output(node, i))
                weights = sum_of(weights, bytes_of(stores, tsr_node_output(node, i)));
    }
    return weights;
}

// Finds the reader that widens a constant most. Called for each use.
static bool widen(void *data, tsr_node *node, size_t input)
{
    int64_t *most = data;
    raise_to(most, tsr__node_widens(node, input));
    return true;
}

// Returns the additional bytes of constants that CPU kernels store wider than in the file.
static int64_t widened(const struct stores *stores)
{
    const tsr_graph *graph = tsr_model_graph(stores->model);
    int64_t sum = 0;
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *constant = tsr_graph_initializer(graph, i);
        int64_t more = 0;
        tsr_value_uses(constant, widen, &more);
        sum = sum_of(sum, mul_cap(more, bytes_of(stores, constant)));
    }
    return sum;
}

// Computes memory and peak. `memory` is comparable with the planner's estimate. `peak` predicts
// what the operating system reports for a CPU rank: it includes scratch memory, gaps and the
// engine's own memory. On a GPU, `peak` is the memory in use in the engine's arena, without gaps
// and the engine's own memory, which is on the host.
tsr_status tsr__sim_memory(struct sim_device *device, const tsr_model *model,
                           const struct shapes *shapes, struct arena *scratch)
{
    const tsr_graph *graph = tsr_model_graph(model);
    struct stores stores = {.model = model, .shapes = shapes, .arena = scratch};
    stores.nodes = (int64_t)tsr_graph_node_count(graph);
    if (device->is_gpu)
        stores.kernels = KERNELS_CUDA;
    int64_t inputs = 0;
    int64_t *order = tsr__sim_order(scratch, graph);
    if (!order || !open_stores(&stores))
        return TSR_NOMEM;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        inputs = sum_of(inputs, bytes_of(&stores, tsr_graph_input(graph, i)));
    int64_t kept = sum_of(device->weights, inputs);
    set_order(&stores, NULL);
    list_stores(&stores, true);
    device->memory = sum_of(kept, most_at_once(&stores));
    if (device->widens)
        device->memory = sum_of(device->memory, widened(&stores));
    set_order(&stores, order);
    list_stores(&stores, false);
    kept = sum_of(loaded_constants(&stores, device->weights), inputs);
    if (device->is_gpu) {
        device->peak = sum_of(kept, most_at_once(&stores));
        return arena_status(scratch);
    }
    device->peak = sum_of(sum_of(kept, device->scratch), with_gaps(&stores));
    device->peak = sum_of(device->peak, sum_of(widened(&stores), PLAN_ENGINE_BYTES));
    return arena_status(scratch);
}
