// SPDX-License-Identifier: Apache-2.0
// solve_tree.c - bucket elimination.
#include "solve_tree.h"

#include <math.h>
#include <stdlib.h>

static bool is_fixed(const uint8_t *fixed, const struct tree_edge *e)
{
    return fixed && (fixed[e->a] == TREE_FIXED || fixed[e->b] == TREE_FIXED);
}

// ---- the order: always the node whose bucket is smallest

#define LARGE      5000                // nodes
#define MOST_CELLS (UINT64_C(1) << 24) // of all messages together

typedef VEC(uint32_t) ids;
struct heap_entry {
    double weight;
    uint32_t node;
};
struct builder {
    struct tree *t;
    struct arena arena; // of what is needed while building
    ids *near;          // neighbours that are not eliminated yet
    double *weight, *log_k;
    struct heap_entry *heap; // may hold entries that are out of date
    size_t n_heap, cap;
    double most;      // log of the largest bucket allowed
    uint8_t *fixed;   // nodes that are conditioned on, or NULL: none may be
    uint64_t *random; // NULL: too wide a graph is refused
};

static bool before(struct heap_entry a, struct heap_entry b)
{
    return a.weight < b.weight || (a.weight == b.weight && a.node < b.node);
}

static void heap_push(struct builder *b, uint32_t node)
{
    if (b->n_heap == b->cap) {
        size_t cap = b->cap ? b->cap * 2 : 1024;
        struct heap_entry *grown = ARENA_ARRAY(&b->arena, struct heap_entry, cap);
        if (!grown)
            return;
        if (b->n_heap)
            memcpy(grown, b->heap, b->n_heap * sizeof(*grown));
        b->heap = grown;
        b->cap = cap;
    }
    struct heap_entry e = {b->weight[node], node};
    size_t at = b->n_heap++;
    for (; at > 0 && before(e, b->heap[(at - 1) / 2]); at = (at - 1) / 2)
        b->heap[at] = b->heap[(at - 1) / 2];
    b->heap[at] = e;
}

static struct heap_entry heap_pop(struct builder *b)
{
    struct heap_entry top = b->heap[0], last = b->heap[--b->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= b->n_heap)
            break;
        if (child + 1 < b->n_heap && before(b->heap[child + 1], b->heap[child]))
            child++;
        if (!before(b->heap[child], last))
            break;
        b->heap[at] = b->heap[child];
        at = child;
    }
    b->heap[at] = last;
    return top;
}

static bool is_near(const ids *list, uint32_t v)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->at[i] == v)
            return true;
    return false;
}

static void connect(struct builder *b, uint32_t u, uint32_t v)
{
    ids *nu = &b->near[u], *nv = &b->near[v];
    if (nu->n <= nv->n ? is_near(nu, v) : is_near(nv, u))
        return;
    uint32_t *at_u = vec_push(&b->arena, nu), *at_v = vec_push(&b->arena, nv);
    if (at_u && at_v) {
        *at_u = v;
        *at_v = u;
    }
}

static void disconnect(ids *list, uint32_t v)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->at[i] == v) {
            list->at[i] = list->at[--list->n];
            return;
        }
}

static void reweigh(struct builder *b, uint32_t v)
{
    const ids *near = &b->near[v];
    double w = b->log_k[v];
    for (size_t i = 0; i < near->n; i++)
        w += b->log_k[near->at[i]];
    b->weight[v] = w;
}

// Its neighbours become the separator and a clique.
static void eliminate(struct builder *b, uint32_t v, struct tree_bucket *out)
{
    ids *near = &b->near[v];
    out->node = v;
    out->n_sep = (uint32_t)near->n;
    out->sep = ARENA_ARRAY(&b->t->arena, uint32_t, near->n + 1);
    if (!out->sep)
        return;
    for (size_t i = 0; i < near->n; i++) {
        out->sep[i] = near->at[i];
        disconnect(&b->near[near->at[i]], v);
    }
    for (size_t i = 0; i < near->n; i++)
        for (size_t j = i + 1; j < near->n; j++)
            connect(b, near->at[i], near->at[j]);
    for (size_t i = 0; i < near->n; i++) {
        reweigh(b, near->at[i]);
        heap_push(b, near->at[i]);
    }
}

// Conditions on the node that has most to do with others, by chance among those that come near. Of
// large graphs only those around a node are looked at.
static bool fix_one(struct builder *b, uint32_t around)
{
    struct tree *t = b->t;
    uint32_t best = NONE;
    double most = -1;
    bool all = t->n <= LARGE;
    for (size_t i = 0; i <= (all ? t->n - 1 : b->near[around].n); i++) {
        uint32_t v = all ? (uint32_t)i : i < b->near[around].n ? b->near[around].at[i] : around;
        if (t->position[v] != NONE || b->fixed[v] == TREE_FIXED)
            continue;
        double score = (double)b->near[v].n * b->log_k[v] * random_unit(b->random);
        if (b->fixed[v] == TREE_FREE)
            score *= 1e-6;
        if (score > most) {
            most = score;
            best = v;
        }
    }
    if (best == NONE)
        return false;
    b->fixed[best] = TREE_FIXED;
    ids *near = &b->near[best];
    for (size_t i = 0; i < near->n; i++) {
        disconnect(&b->near[near->at[i]], best);
        reweigh(b, near->at[i]);
        heap_push(b, near->at[i]);
    }
    near->n = 0;
    return true;
}

static bool builder_init(struct builder *b, const struct tree_edge *edges, size_t n_edges)
{
    struct tree *t = b->t;
    b->near = tsr__arena_array(&b->arena, (size_t)t->n + 1, sizeof(*b->near), 8);
    b->weight = ARENA_ARRAY(&b->arena, double, (size_t)t->n + 1);
    b->log_k = ARENA_ARRAY(&b->arena, double, (size_t)t->n + 1);
    if (b->arena.failed)
        return false;
    for (uint32_t v = 0; v < t->n; v++)
        b->log_k[v] = log2((double)t->k[v]);
    for (size_t i = 0; i < n_edges; i++)
        if (!is_fixed(b->fixed, &edges[i]))
            connect(b, edges[i].a, edges[i].b);
    for (uint32_t v = 0; v < t->n; v++) {
        reweigh(b, v);
        if (!b->fixed || b->fixed[v] != TREE_FIXED)
            heap_push(b, v);
    }
    return !b->arena.failed;
}

static bool find_order(struct builder *b)
{
    struct tree *t = b->t;
    memset(t->position, 0xff, t->n * sizeof(uint32_t));
    while (b->n_heap && !b->arena.failed && !t->arena.failed) {
        struct heap_entry e = heap_pop(b);
        if (t->position[e.node] != NONE || e.weight != b->weight[e.node] ||
            (b->fixed && b->fixed[e.node] == TREE_FIXED))
            continue;
        if (e.weight > b->most) {
            if (!b->random || !fix_one(b, e.node))
                return false;
            if (b->fixed[e.node] != TREE_FIXED)
                heap_push(b, e.node);
            continue;
        }
        t->position[e.node] = t->m;
        eliminate(b, e.node, &t->buckets[t->m++]);
    }
    return !b->arena.failed && !t->arena.failed;
}

// ---- tables of the buckets

static void sort_sep(struct tree *t, struct tree_bucket *b)
{
    for (uint32_t i = 1; i < b->n_sep; i++)
        for (uint32_t j = i; j > 0 && t->position[b->sep[j]] < t->position[b->sep[j - 1]]; j--) {
            uint32_t swap = b->sep[j];
            b->sep[j] = b->sep[j - 1];
            b->sep[j - 1] = swap;
        }
    b->cells = 1;
    for (uint32_t i = 0; i < b->n_sep; i++)
        b->cells *= t->k[b->sep[i]];
    b->parent = b->n_sep ? t->position[b->sep[0]] : NONE;
    if (b->n_sep > t->most_sep)
        t->most_sep = b->n_sep;
    if (t->k[b->node] > t->most_k)
        t->most_k = t->k[b->node];
    t->cells += b->cells * t->k[b->node];
    t->held += b->cells;
}

static void set_stride(struct tree_bucket *b, struct tree_factor *f, uint32_t node, size_t stride)
{
    if (node == b->node)
        f->own = stride;
    for (uint32_t i = 0; i < b->n_sep; i++)
        if (b->sep[i] == node)
            f->strides[i] = stride;
}

static struct tree_factor *new_factor(struct tree *t, struct tree_bucket *b, const int64_t *cell)
{
    struct tree_factor *f = &b->factors[b->n_factors++];
    *f = (struct tree_factor){.cell = cell, .child = NONE};
    f->strides = ARENA_ARRAY(&t->arena, size_t, (size_t)b->n_sep + 1);
    return f->strides ? f : NULL;
}

static struct tree_bucket *bucket_of_edge(struct tree *t, const struct tree_edge *e)
{
    uint32_t a = t->position[e->a], b = t->position[e->b];
    return &t->buckets[a < b ? a : b];
}

static bool add_factors(struct tree *t, const struct tree_edge *edges, size_t n_edges,
                        const uint8_t *fixed)
{
    for (size_t i = 0; i < n_edges; i++)
        if (!is_fixed(fixed, &edges[i]))
            bucket_of_edge(t, &edges[i])->n_factors++;
    for (uint32_t i = 0; i < t->m; i++)
        if (t->buckets[i].parent != NONE)
            t->buckets[t->buckets[i].parent].n_factors++;
    for (uint32_t i = 0; i < t->m; i++) {
        struct tree_bucket *b = &t->buckets[i];
        b->factors = ARENA_ARRAY(&t->arena, struct tree_factor, (size_t)b->n_factors + 1);
        b->n_factors = 0;
        b->message = ARENA_ARRAY(&t->arena, int64_t, b->cells);
        if (!b->factors || !b->message)
            return false;
    }
    for (size_t i = 0; i < n_edges; i++) {
        if (is_fixed(fixed, &edges[i]))
            continue;
        struct tree_bucket *b = bucket_of_edge(t, &edges[i]);
        struct tree_factor *f = new_factor(t, b, edges[i].cell);
        if (!f)
            return false;
        set_stride(b, f, edges[i].a, t->k[edges[i].b]);
        set_stride(b, f, edges[i].b, 1);
    }
    for (uint32_t i = 0; i < t->m; i++) {
        const struct tree_bucket *child = &t->buckets[i];
        if (child->parent == NONE)
            continue;
        struct tree_bucket *b = &t->buckets[child->parent];
        struct tree_factor *f = new_factor(t, b, child->message);
        if (!f)
            return false;
        f->child = i;
        size_t stride = 1;
        for (uint32_t j = child->n_sep; j-- > 0; stride *= t->k[child->sep[j]])
            set_stride(b, f, child->sep[j], stride);
    }
    return true;
}

bool tsr__tree_init(struct tree *t, tsr_session *s, uint32_t n, const uint32_t *k,
                    const struct tree_edge *edges, size_t n_edges, uint64_t max_cells,
                    uint8_t *fixed, uint64_t *random)
{
    *t = (struct tree){.n = n, .k = k};
    tsr__arena_init(&t->arena, s);
    struct builder b = {.t = t, .most = log2((double)max_cells), .fixed = fixed, .random = random};
    tsr__arena_init(&b.arena, s);
    t->buckets = ARENA_ARRAY(&t->arena, struct tree_bucket, (size_t)n + 1);
    t->position = ARENA_ARRAY(&t->arena, uint32_t, (size_t)n + 1);
    bool ok = !t->arena.failed && builder_init(&b, edges, n_edges) && find_order(&b);
    if (b.arena.failed)
        t->arena.failed = true;
    tsr__arena_free(&b.arena);
    for (uint32_t i = 0; ok && i < t->m; i++)
        sort_sep(t, &t->buckets[i]);
    ok = ok && t->held <= MOST_CELLS && add_factors(t, edges, n_edges, fixed);
    uint32_t most = 0;
    for (uint32_t i = 0; ok && i < t->m; i++)
        most = t->buckets[i].n_factors > most ? t->buckets[i].n_factors : most;
    if (!ok)
        return false;
    t->acc = ARENA_ARRAY(&t->arena, int64_t, (size_t)t->most_k + 1);
    t->at = ARENA_ARRAY(&t->arena, uint32_t, (size_t)t->most_sep + 1);
    t->offset = ARENA_ARRAY(&t->arena, size_t, (size_t)most + 1);
    return !t->arena.failed;
}

void tsr__tree_free(struct tree *t)
{
    tsr__arena_free(&t->arena);
}

// ---- passes

// Sums for every choice of the bucket's node, given the offsets of its factors; skip: a factor that
// is left out.
HOT static void accumulate(const struct tree *t, const struct tree_bucket *b, const int64_t *unary,
                           const size_t *offset)
{
    uint32_t k = t->k[b->node];
    int64_t *acc = t->acc;
    memcpy(acc, unary, k * sizeof(int64_t));
    for (uint32_t f = 0; f < b->n_factors; f++) {
        const int64_t *cell = b->factors[f].cell + offset[f];
        size_t own = b->factors[f].own;
        if (own == 1)
            for (uint32_t c = 0; c < k; c++) {
                int64_t sum = acc[c] + cell[c];
                acc[c] = sum < NEVER ? sum : NEVER;
            }
        else
            for (uint32_t c = 0; c < k; c++, cell += own) {
                int64_t sum = acc[c] + *cell;
                acc[c] = sum < NEVER ? sum : NEVER;
            }
    }
}

// Offsets of the factors at the next cell of the separator.
void tsr__tree_step(struct tree *t, const struct tree_bucket *b)
{
    uint32_t *at = t->at;
    size_t *offset = t->offset;
    for (uint32_t i = b->n_sep; i-- > 0;) {
        uint32_t k = t->k[b->sep[i]];
        if (++at[i] < k) {
            for (uint32_t f = 0; f < b->n_factors; f++)
                offset[f] += b->factors[f].strides[i];
            return;
        }
        at[i] = 0;
        for (uint32_t f = 0; f < b->n_factors; f++)
            offset[f] -= b->factors[f].strides[i] * (k - 1);
    }
}

void tsr__tree_start(struct tree *t, const struct tree_bucket *b)
{
    memset(t->at, 0, b->n_sep * sizeof(uint32_t));
    memset(t->offset, 0, b->n_factors * sizeof(size_t));
}

int64_t tsr__tree_up(struct tree *t, int64_t *const *unary)
{
    int64_t total = 0;
    for (uint32_t i = 0; i < t->m; i++) {
        struct tree_bucket *b = &t->buckets[i];
        uint32_t k = t->k[b->node];
        tsr__tree_start(t, b);
        for (size_t cell = 0; cell < b->cells; cell++) {
            accumulate(t, b, unary[b->node], t->offset);
            int64_t least = t->acc[0];
            for (uint32_t c = 1; c < k; c++)
                least = t->acc[c] < least ? t->acc[c] : least;
            b->message[cell] = least;
            tsr__tree_step(t, b);
        }
        if (b->parent == NONE)
            total = plus(total, b->message[0]);
    }
    return total;
}

void tsr__tree_offsets(struct tree *t, const struct tree_bucket *b, const uint32_t *choice)
{
    size_t *offset = t->offset;
    for (uint32_t f = 0; f < b->n_factors; f++) {
        offset[f] = 0;
        for (uint32_t i = 0; i < b->n_sep; i++)
            offset[f] += b->factors[f].strides[i] * choice[b->sep[i]];
    }
}

void tsr__tree_back(struct tree *t, int64_t *const *unary, uint32_t *choice)
{
    for (uint32_t i = t->m; i-- > 0;) {
        const struct tree_bucket *b = &t->buckets[i];
        tsr__tree_offsets(t, b, choice);
        accumulate(t, b, unary[b->node], t->offset);
        uint32_t best = 0;
        for (uint32_t c = 1; c < t->k[b->node]; c++)
            if (t->acc[c] < t->acc[best])
                best = c;
        choice[b->node] = best;
    }
}

// Minimum of bucket b's sums plus its own down message into the down messages of its children. What a
// child contributed is taken off again: where the sum is allowed, all of its parts are.
static void down_cell(struct tree *t, struct tree_bucket *b, size_t cell, const size_t *offset)
{
    int64_t rest = b->down ? b->down[cell] : 0;
    uint32_t k = t->k[b->node];
    if (rest >= NEVER)
        return;
    for (uint32_t f = 0; f < b->n_factors; f++) {
        const struct tree_factor *x = &b->factors[f];
        if (x->child == NONE)
            continue;
        int64_t *out = t->buckets[x->child].down;
        for (uint32_t c = 0; c < k; c++) {
            size_t at = offset[f] + c * x->own;
            int64_t sum = t->acc[c] >= NEVER ? NEVER : t->acc[c] + rest - x->cell[at];
            if (sum < out[at])
                out[at] = sum;
        }
    }
}

bool tsr__tree_down(struct tree *t, int64_t *const *unary)
{
    bool ok = true;
    for (uint32_t i = 0; ok && i < t->m; i++) {
        struct tree_bucket *b = &t->buckets[i];
        if (!b->down)
            b->down = ARENA_ARRAY(&t->arena, int64_t, b->cells);
        ok = b->down != NULL;
        for (size_t c = 0; ok && c < b->cells; c++)
            b->down[c] = b->parent == NONE ? 0 : NEVER;
    }
    // Roots know nothing of each other: their minima are added at the end by tsr__tree_marginals.
    for (uint32_t i = t->m; ok && i-- > 0;) {
        struct tree_bucket *b = &t->buckets[i];
        tsr__tree_start(t, b);
        for (size_t cell = 0; cell < b->cells; cell++) {
            accumulate(t, b, unary[b->node], t->offset);
            down_cell(t, b, cell, t->offset);
            tsr__tree_step(t, b);
        }
    }
    return ok;
}

static uint32_t root_of(const struct tree *t, uint32_t i)
{
    while (t->buckets[i].parent != NONE)
        i = t->buckets[i].parent;
    return i;
}

void tsr__tree_marginals(struct tree *t, int64_t *const *unary, uint32_t node, int64_t *out)
{
    const struct tree_bucket *b = &t->buckets[t->position[node]];
    uint32_t k = t->k[node], root = root_of(t, t->position[node]);
    int64_t others = 0;
    for (uint32_t i = 0; i < t->m; i++)
        if (t->buckets[i].parent == NONE && i != root)
            others = plus(others, t->buckets[i].message[0]);
    for (uint32_t c = 0; c < k; c++)
        out[c] = NEVER;
    tsr__tree_start(t, b);
    for (size_t cell = 0; cell < b->cells; cell++) {
        accumulate(t, b, unary[node], t->offset);
        for (uint32_t c = 0; c < k; c++) {
            int64_t sum = plus(plus(t->acc[c], b->down[cell]), others);
            out[c] = sum < out[c] ? sum : out[c];
        }
        tsr__tree_step(t, b);
    }
}
