// SPDX-License-Identifier: Apache-2.0
// solve_tree.c - bucket elimination (dynamic programming over a tree decomposition).
//
// The bucket of a node is a table over its separator, the neighbours that are eliminated later. For
// each combination of their choices it has the least cost of the node and of all nodes whose
// messages it received.
//
//     Example: a chain a - b - c, eliminated in this order. a costs {0, 4}, b {1, 0}, c {0, 0},
//     both tables are {0, 5; 5, 0}.
//     a's bucket has the separator {b}. Its message is
//         {min(0 + 0, 4 + 5), min(0 + 5, 4 + 0)} = {0, 4}
//     b's bucket has the separator {c} and adds a's message: b costs {1 + 0, 0 + 4} = {1, 4}. Its
//     message is {min(1 + 0, 4 + 5), min(1 + 5, 4 + 0)} = {1, 4}.
//     c is the root: min(0 + 1, 0 + 4) = 1.
//     Going back, c takes 0, therefore b 0, therefore a 0: the cost is 1.
#include "solve.h"

#include <math.h>
#include <stdlib.h>

// True if an end of the edge is fixed. The tree ignores such an edge: the caller has added it to
// the costs of the other end.
static bool is_fixed(const uint8_t *fixed, const struct tree_edge *edge)
{
    return fixed && (fixed[edge->a] == TREE_FIXED || fixed[edge->b] == TREE_FIXED);
}

// True if an end of the edge has only one choice. The table is then a vector over the other end.
// Such an edge must not connect its two nodes in the tree, because eliminating one would make a
// clique of its neighbours.
static bool has_constant_end(const struct tree *tree, const struct tree_edge *edge)
{
    return tree->k[edge->a] == 1 || tree->k[edge->b] == 1;
}

// ---- elimination order: the node with the smallest bucket comes next (min-weight)

#define LARGE      5000                // number of nodes up to which fix_one considers all nodes
#define MOST_CELLS (UINT64_C(1) << 24) // limit of cells of all messages together

typedef VEC(uint32_t) ids;
// A node and its weight when it was pushed. The weight is log2 of the cells of its bucket: its own
// choices times those of all neighbours. Example: 4 choices, neighbours with 8 and 2: 2 + 3 + 1 =
// 6, that is 64 cells. Weights are integers in units of 2^-32, so adding and subtracting them does
// not round.
struct heap_entry {
    int64_t weight;
    uint32_t node;
};
// The search for an elimination order.
struct builder {
    struct tree *tree;
    struct arena arena; // freed when the order is found
    ids *near;          // neighbours that are not yet eliminated
    int64_t *weight, *log_k;
    VEC(struct heap_entry) heap; // may hold outdated entries
    int64_t most;                // limit of the weight of a bucket
    uint8_t *fixed;              // nodes to leave out, or NULL
    uint64_t *random;            // NULL: no node may be added to `fixed`
};

// Compares two entries by weight. Ties are broken by number, so that the order is the same on every
// machine.
static bool before(struct heap_entry a, struct heap_entry b)
{
    return a.weight < b.weight || (a.weight == b.weight && a.node < b.node);
}

// Pushes to a binary heap. If memory runs out, nothing is pushed and arena.failed is set.
static void heap_push(struct builder *builder, uint32_t node)
{
    struct heap_entry entry = {builder->weight[node], node};
    if (!vec_reserve(&builder->arena, &builder->heap))
        return;
    struct heap_entry *heap = builder->heap.at;
    size_t at = builder->heap.n++;
    for (; at > 0 && before(entry, heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = entry;
}

// Removes the first entry. The heap must not be empty.
static struct heap_entry heap_pop(struct builder *builder)
{
    struct heap_entry *heap = builder->heap.at;
    size_t at = 0, n = --builder->heap.n;
    struct heap_entry top = heap[0], last = heap[n];
    for (size_t child = 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && before(heap[child + 1], heap[child]))
            child++;
        if (!before(heap[child], last))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

static int64_t log_of(uint64_t n)
{
    return (int64_t)llround(ldexp(log2((double)n), 32));
}

static bool is_near(const ids *list, uint32_t v)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->at[i] == v)
            return true;
    return false;
}

// Makes u and v neighbours if they are not. Searches the shorter list.
static void connect(struct builder *builder, uint32_t u, uint32_t v)
{
    ids *nu = &builder->near[u], *nv = &builder->near[v];
    if (nu->n <= nv->n ? is_near(nu, v) : is_near(nv, u))
        return;
    uint32_t *at_u = vec_push(&builder->arena, nu), *at_v = vec_push(&builder->arena, nv);
    if (at_u && at_v) {
        *at_u = v;
        *at_v = u;
        builder->weight[u] += builder->log_k[v];
        builder->weight[v] += builder->log_k[u];
    }
}

// Removes v from the neighbours of u.
static void disconnect(struct builder *builder, uint32_t u, uint32_t v)
{
    ids *list = &builder->near[u];
    for (size_t i = 0; i < list->n; i++)
        if (list->at[i] == v) {
            list->at[i] = list->at[--list->n];
            builder->weight[u] -= builder->log_k[v];
            return;
        }
}

// Eliminates v: its neighbours become its separator and a clique.
static void eliminate(struct builder *builder, uint32_t v, struct tree_bucket *out)
{
    ids *near = &builder->near[v];
    out->node = v;
    out->n_sep = (uint32_t)near->n;
    out->sep = ARENA_ARRAY(&builder->tree->arena, uint32_t, near->n + 1);
    if (!out->sep)
        return;
    for (size_t i = 0; i < near->n; i++) {
        out->sep[i] = near->at[i];
        disconnect(builder, near->at[i], v);
    }
    // the message of v is one table over all its neighbours
    for (size_t i = 0; i < near->n; i++)
        for (size_t j = i + 1; j < near->n; j++)
            connect(builder, near->at[i], near->at[j]);
    for (size_t i = 0; i < near->n; i++)
        heap_push(builder, near->at[i]);
}

// Fixes one node, so that the buckets of its neighbours become smaller. The draw is random, and
// nodes with many neighbours and choices are more likely. In graphs of more than LARGE nodes, only
// `around` and its neighbours are considered. Returns false if no node is left.
static bool fix_one(struct builder *builder, uint32_t around)
{
    struct tree *tree = builder->tree;
    uint32_t best = NONE;
    double most = -1;
    bool all = tree->n <= LARGE;
    const ids *nearby = &builder->near[around];
    size_t last = all ? tree->n - 1 : nearby->n; // the last one is the node itself
    for (size_t i = 0; i <= last; i++) {
        uint32_t v = around;
        if (all)
            v = (uint32_t)i;
        else if (i < nearby->n)
            v = nearby->at[i];
        if (tree->position[v] != NONE || builder->fixed[v] == TREE_FIXED)
            continue;
        double score =
            (double)builder->near[v].n * (double)builder->log_k[v] * random_unit(builder->random);
        if (builder->fixed[v] == TREE_FREE)
            score *= 1e-6;
        if (score > most) {
            most = score;
            best = v;
        }
    }
    if (best == NONE)
        return false;
    // The buckets of its neighbours become smaller: push them again.
    builder->fixed[best] = TREE_FIXED;
    ids *near = &builder->near[best];
    for (size_t i = 0; i < near->n; i++) {
        disconnect(builder, near->at[i], best);
        heap_push(builder, near->at[i]);
    }
    near->n = 0;
    return true;
}

// Builds the neighbour lists and pushes every node that may be eliminated.
static bool builder_init(struct builder *builder, const struct tree_edge *edges, size_t n_edges)
{
    struct tree *tree = builder->tree;
    builder->near =
        tsr__arena_array(&builder->arena, (size_t)tree->n + 1, sizeof(*builder->near), 8);
    builder->weight = ARENA_ARRAY(&builder->arena, int64_t, (size_t)tree->n + 1);
    builder->log_k = ARENA_ARRAY(&builder->arena, int64_t, (size_t)tree->n + 1);
    if (builder->arena.failed)
        return false;
    for (uint32_t v = 0; v < tree->n; v++)
        builder->weight[v] = builder->log_k[v] = log_of(tree->k[v]);
    for (size_t i = 0; i < n_edges; i++)
        if (!is_fixed(builder->fixed, &edges[i]) && !has_constant_end(tree, &edges[i]))
            connect(builder, edges[i].a, edges[i].b);
    for (uint32_t v = 0; v < tree->n; v++)
        if (!builder->fixed || builder->fixed[v] != TREE_FIXED)
            heap_push(builder, v);
    return !builder->arena.failed;
}

// Finds an elimination order. Returns false if there is none or if out of memory. Skips outdated
// heap entries. If even the smallest bucket is too large, fixes a node if that is allowed;
// otherwise there is no order.
static bool find_order(struct builder *builder)
{
    struct tree *tree = builder->tree;
    memset(tree->position, 0xff, tree->n * sizeof(uint32_t));
    while (builder->heap.n && !builder->arena.failed && !tree->arena.failed) {
        struct heap_entry entry = heap_pop(builder);
        if (tree->position[entry.node] != NONE || entry.weight != builder->weight[entry.node] ||
            (builder->fixed && builder->fixed[entry.node] == TREE_FIXED))
            continue;
        if (entry.weight > builder->most) {
            if (!builder->random || !fix_one(builder, entry.node))
                return false;
            if (builder->fixed[entry.node] != TREE_FIXED)
                heap_push(builder, entry.node);
            continue;
        }
        tree->position[entry.node] = tree->m;
        eliminate(builder, entry.node, &tree->buckets[tree->m++]);
    }
    return !builder->arena.failed && !tree->arena.failed;
}

// ---- tables of the buckets

// Sorts the separator by elimination order. The bucket of its first node is the parent.
static void sort_sep(struct tree *tree, struct tree_bucket *bucket)
{
    for (uint32_t i = 1; i < bucket->n_sep; i++)
        for (uint32_t j = i;
             j > 0 && tree->position[bucket->sep[j]] < tree->position[bucket->sep[j - 1]]; j--) {
            uint32_t swap = bucket->sep[j];
            bucket->sep[j] = bucket->sep[j - 1];
            bucket->sep[j - 1] = swap;
        }
    bucket->cells = 1;
    for (uint32_t i = 0; i < bucket->n_sep; i++)
        bucket->cells *= tree->k[bucket->sep[i]];
    bucket->parent = bucket->n_sep ? tree->position[bucket->sep[0]] : NONE;
    if (bucket->n_sep > tree->most_sep)
        tree->most_sep = bucket->n_sep;
    if (tree->k[bucket->node] > tree->most_k)
        tree->most_k = tree->k[bucket->node];
    tree->cells += bucket->cells * tree->k[bucket->node];
    tree->held += bucket->cells;
}

// Sets the stride of the factor (a table of the bucket) for `node`, if the node is the bucket's own
// or in its separator.
static void set_stride(struct tree_bucket *bucket, struct tree_factor *factor, uint32_t node,
                       size_t stride)
{
    if (node == bucket->node)
        factor->own = stride;
    for (uint32_t i = 0; i < bucket->n_sep; i++)
        if (bucket->sep[i] == node)
            factor->strides[i] = stride;
}

// Returns the next factor of the bucket; add_factors has allocated them. Returns NULL if out of
// memory.
static struct tree_factor *new_factor(struct tree *tree, struct tree_bucket *bucket,
                                      const int64_t *cell)
{
    struct tree_factor *factor = &bucket->factors[bucket->n_factors++];
    *factor = (struct tree_factor){.cell = cell, .child = NONE};
    factor->strides = ARENA_ARRAY(&tree->arena, size_t, (size_t)bucket->n_sep + 1);
    return factor->strides ? factor : NULL;
}

// Returns the bucket of the end that is eliminated first. If one end has a single choice, returns
// the bucket of the other.
static struct tree_bucket *bucket_of_edge(struct tree *tree, const struct tree_edge *edge)
{
    uint32_t a = tree->position[edge->a], b = tree->position[edge->b];
    bool first = has_constant_end(tree, edge) ? tree->k[edge->b] == 1 : a < b;
    return &tree->buckets[first ? a : b];
}

// Counts the factors, allocates them, and fills them. A child's message is row-major over its
// separator: for choices 3 x 4 the strides are {4, 1}.
static bool add_factors(struct tree *tree, const struct tree_edge *edges, size_t n_edges,
                        const uint8_t *fixed)
{
    // Count.
    for (size_t i = 0; i < n_edges; i++)
        if (!is_fixed(fixed, &edges[i]))
            bucket_of_edge(tree, &edges[i])->n_factors++;
    for (uint32_t i = 0; i < tree->m; i++)
        if (tree->buckets[i].parent != NONE)
            tree->buckets[tree->buckets[i].parent].n_factors++;
    // Allocate; n_factors starts again at 0.
    for (uint32_t i = 0; i < tree->m; i++) {
        struct tree_bucket *bucket = &tree->buckets[i];
        bucket->factors =
            ARENA_ARRAY(&tree->arena, struct tree_factor, (size_t)bucket->n_factors + 1);
        bucket->n_factors = 0;
        bucket->message = ARENA_ARRAY(&tree->arena, int64_t, bucket->cells);
        if (!bucket->factors || !bucket->message)
            return false;
    }
    // Fill: first the tables of edges, row-major over a ...
    for (size_t i = 0; i < n_edges; i++) {
        if (is_fixed(fixed, &edges[i]))
            continue;
        struct tree_bucket *bucket = bucket_of_edge(tree, &edges[i]);
        struct tree_factor *factor = new_factor(tree, bucket, edges[i].cell);
        if (!factor)
            return false;
        set_stride(bucket, factor, edges[i].a, tree->k[edges[i].b]);
        set_stride(bucket, factor, edges[i].b, 1);
    }
    // ... then the messages of children, whose separators are contained in the parent's bucket.
    for (uint32_t i = 0; i < tree->m; i++) {
        const struct tree_bucket *child = &tree->buckets[i];
        if (child->parent == NONE)
            continue;
        struct tree_bucket *bucket = &tree->buckets[child->parent];
        struct tree_factor *factor = new_factor(tree, bucket, child->message);
        if (!factor)
            return false;
        factor->child = i;
        size_t stride = 1;
        for (uint32_t j = child->n_sep; j-- > 0; stride *= tree->k[child->sep[j]])
            set_stride(bucket, factor, child->sep[j], stride);
    }
    return true;
}

// Builds a tree. Allocates tables only if all of them together have at most MOST_CELLS cells.
bool tsr__tree_init(struct tree *tree, tsr_session *session, uint32_t n, const uint32_t *k,
                    const struct tree_edge *edges, size_t n_edges, uint64_t max_cells,
                    uint8_t *fixed, uint64_t *random)
{
    *tree = (struct tree){.n = n, .k = k};
    tsr__arena_init(&tree->arena, session);
    struct builder builder = {
        .tree = tree, .most = log_of(max_cells), .fixed = fixed, .random = random};
    tsr__arena_init(&builder.arena, session);
    tree->buckets = ARENA_ARRAY(&tree->arena, struct tree_bucket, (size_t)n + 1);
    tree->position = ARENA_ARRAY(&tree->arena, uint32_t, (size_t)n + 1);
    bool ok = !tree->arena.failed && builder_init(&builder, edges, n_edges) && find_order(&builder);
    if (builder.arena.failed)
        tree->arena.failed = true;
    tsr__arena_free(&builder.arena);
    if (!ok)
        return false;
    for (uint32_t i = 0; i < tree->m; i++)
        sort_sep(tree, &tree->buckets[i]);
    if (tree->held > MOST_CELLS || !add_factors(tree, edges, n_edges, fixed))
        return false;
    uint32_t most = 0;
    for (uint32_t i = 0; i < tree->m; i++)
        if (tree->buckets[i].n_factors > most)
            most = tree->buckets[i].n_factors;
    tree->acc = ARENA_ARRAY(&tree->arena, int64_t, (size_t)tree->most_k + 1);
    tree->at = ARENA_ARRAY(&tree->arena, uint32_t, (size_t)tree->most_sep + 1);
    tree->offset = ARENA_ARRAY(&tree->arena, size_t, (size_t)most + 1);
    return !tree->arena.failed;
}

void tsr__tree_free(struct tree *tree)
{
    tsr__arena_free(&tree->arena);
}

// ---- passes

// For every choice of the bucket's node, sums its cost and the entries of all factors at `offset`
// in tree->acc. Stride 1 has a loop of its own, so that the compiler vectorizes it.
HOT static void accumulate(const struct tree *tree, const struct tree_bucket *bucket,
                           const int64_t *unary, const size_t *offset)
{
    uint32_t k = tree->k[bucket->node];
    int64_t *acc = tree->acc;
    memcpy(acc, unary, k * sizeof(int64_t));
    for (uint32_t f = 0; f < bucket->n_factors; f++) {
        const int64_t *cell = bucket->factors[f].cell + offset[f];
        size_t own = bucket->factors[f].own;
        if (own == 1)
            for (uint32_t choice = 0; choice < k; choice++) {
                int64_t sum = acc[choice] + cell[choice];
                acc[choice] = sum < NEVER ? sum : NEVER;
            }
        else
            for (uint32_t choice = 0; choice < k; choice++, cell += own) {
                int64_t sum = acc[choice] + *cell;
                acc[choice] = sum < NEVER ? sum : NEVER;
            }
    }
}

// Advances to the next cell of the separator, like an odometer whose last digit turns fastest.
void tsr__tree_step(struct tree *tree, const struct tree_bucket *bucket)
{
    uint32_t *at = tree->at;
    size_t *offset = tree->offset;
    for (uint32_t i = bucket->n_sep; i-- > 0;) {
        uint32_t k = tree->k[bucket->sep[i]];
        if (++at[i] < k) {
            for (uint32_t f = 0; f < bucket->n_factors; f++)
                offset[f] += bucket->factors[f].strides[i];
            return;
        }
        at[i] = 0;
        for (uint32_t f = 0; f < bucket->n_factors; f++)
            offset[f] -= bucket->factors[f].strides[i] * (k - 1);
    }
}

// Sets the first cell: all nodes of the separator take choice 0.
void tsr__tree_start(struct tree *tree, const struct tree_bucket *bucket)
{
    memset(tree->at, 0, bucket->n_sep * sizeof(uint32_t));
    memset(tree->offset, 0, bucket->n_factors * sizeof(size_t));
}

// Sends messages towards the roots and returns the least cost. Children have smaller numbers than
// their parents, so their messages are ready in time.
int64_t tsr__tree_up(struct tree *tree, int64_t *const *unary)
{
    int64_t total = 0;
    for (uint32_t i = 0; i < tree->m; i++) {
        struct tree_bucket *bucket = &tree->buckets[i];
        uint32_t k = tree->k[bucket->node];
        tsr__tree_start(tree, bucket);
        for (size_t cell = 0; cell < bucket->cells; cell++) {
            accumulate(tree, bucket, unary[bucket->node], tree->offset);
            int64_t least = tree->acc[0];
            for (uint32_t choice = 1; choice < k; choice++)
                if (tree->acc[choice] < least)
                    least = tree->acc[choice];
            bucket->message[cell] = least;
            tsr__tree_step(tree, bucket);
        }
        if (bucket->parent == NONE)
            total = plus(total, bucket->message[0]);
    }
    return total;
}

// Computes the offset of each factor for the given choices of the separator's nodes.
void tsr__tree_offsets(struct tree *tree, const struct tree_bucket *bucket, const uint32_t *choice)
{
    size_t *offset = tree->offset;
    for (uint32_t f = 0; f < bucket->n_factors; f++) {
        offset[f] = 0;
        for (uint32_t i = 0; i < bucket->n_sep; i++)
            offset[f] += bucket->factors[f].strides[i] * choice[bucket->sep[i]];
    }
}

// Reads an assignment from the tree. Visits parents first, so all nodes of a bucket's separator
// already have a choice.
void tsr__tree_back(struct tree *tree, int64_t *const *unary, uint32_t *choice)
{
    for (uint32_t i = tree->m; i-- > 0;) {
        const struct tree_bucket *bucket = &tree->buckets[i];
        tsr__tree_offsets(tree, bucket, choice);
        accumulate(tree, bucket, unary[bucket->node], tree->offset);
        uint32_t best = 0;
        for (uint32_t c = 1; c < tree->k[bucket->node]; c++)
            if (tree->acc[c] < tree->acc[best])
                best = c;
        choice[bucket->node] = best;
    }
}

// Updates the down messages of the bucket's children with one cell of the bucket. Subtracts the
// child's own contribution, which is safe: if the sum is not NEVER, none of its terms is.
static void down_cell(struct tree *tree, struct tree_bucket *bucket, size_t cell,
                      const size_t *offset)
{
    int64_t rest = bucket->down ? bucket->down[cell] : 0;
    uint32_t k = tree->k[bucket->node];
    if (rest >= NEVER)
        return;
    for (uint32_t f = 0; f < bucket->n_factors; f++) {
        const struct tree_factor *factor = &bucket->factors[f];
        if (factor->child == NONE)
            continue;
        int64_t *out = tree->buckets[factor->child].down;
        for (uint32_t choice = 0; choice < k; choice++) {
            size_t at = offset[f] + choice * factor->own;
            int64_t sum =
                tree->acc[choice] >= NEVER ? NEVER : tree->acc[choice] + rest - factor->cell[at];
            if (sum < out[at])
                out[at] = sum;
        }
    }
}

// Sends messages from the roots. down[cell] becomes the least cost of the nodes of this tree
// outside the subtree of the bucket. A cell is one combination of choices of the nodes in its
// separator. In the example at the top of this file, b's down message at c = 0 is c's own cost, 0.
bool tsr__tree_down(struct tree *tree, int64_t *const *unary)
{
    for (uint32_t i = 0; i < tree->m; i++) {
        struct tree_bucket *bucket = &tree->buckets[i];
        if (!bucket->down)
            bucket->down = ARENA_ARRAY(&tree->arena, int64_t, bucket->cells);
        if (!bucket->down)
            return false;
        for (size_t c = 0; c < bucket->cells; c++)
            bucket->down[c] = bucket->parent == NONE ? 0 : NEVER;
    }
    // Roots are independent; tsr__tree_marginals adds the minima of the other roots.
    for (uint32_t i = tree->m; i-- > 0;) {
        struct tree_bucket *bucket = &tree->buckets[i];
        tsr__tree_start(tree, bucket);
        for (size_t cell = 0; cell < bucket->cells; cell++) {
            accumulate(tree, bucket, unary[bucket->node], tree->offset);
            down_cell(tree, bucket, cell, tree->offset);
            tsr__tree_step(tree, bucket);
        }
    }
    return true;
}

static uint32_t root_of(const struct tree *tree, uint32_t i)
{
    while (tree->buckets[i].parent != NONE)
        i = tree->buckets[i].parent;
    return i;
}

// Computes the least cost for each choice of a node. The sums of a cell plus its down message cover
// the tree of the node. The minima of the other roots are added.
void tsr__tree_marginals(struct tree *tree, int64_t *const *unary, uint32_t node, int64_t *out)
{
    const struct tree_bucket *bucket = &tree->buckets[tree->position[node]];
    uint32_t k = tree->k[node], root = root_of(tree, tree->position[node]);
    int64_t others = 0;
    for (uint32_t i = 0; i < tree->m; i++)
        if (tree->buckets[i].parent == NONE && i != root)
            others = plus(others, tree->buckets[i].message[0]);
    for (uint32_t choice = 0; choice < k; choice++)
        out[choice] = NEVER;
    tsr__tree_start(tree, bucket);
    for (size_t cell = 0; cell < bucket->cells; cell++) {
        accumulate(tree, bucket, unary[node], tree->offset);
        for (uint32_t choice = 0; choice < k; choice++) {
            int64_t sum = plus(plus(tree->acc[choice], bucket->down[cell]), others);
            if (sum < out[choice])
                out[choice] = sum;
        }
        tsr__tree_step(tree, bucket);
    }
}
