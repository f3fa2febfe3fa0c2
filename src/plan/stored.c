// SPDX-License-Identifier: Apache-2.0
// stored.c - the constants: each is stored in every layout that somebody wants, once.
#include "plan/edges.h"

static bool read_first(const tsr_node *node, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (tsr_node_input(node, k) == tsr_node_input(node, i))
            return false;
    return true;
}

// What only this node reads, in one table.
static bool use_own(struct planner *planner, const struct plan_node *node, const bool *own)
{
    enum { HEAD = 3 };
    size_t n_in = tsr_node_input_count(node->node), n_key = HEAD;
    uint32_t *key = ARENA_ARRAY(planner->work, uint32_t, n_in + HEAD);
    if (!key)
        return false;
    key[0] = TABLE_OWN;
    key[1] = node->strategy->id;
    key[2] = (uint32_t)planner->memory.n_classes;
    for (size_t i = 0; i < n_in; i++)
        if (tsr_node_input(node->node, i) && own[tsr__value_id(tsr_node_input(node->node, i))] &&
            read_first(node->node, i))
            key[n_key++] = (uint32_t)i;
    void **kept = n_key > HEAD ? tsr__planner_cached(planner, key, n_key) : NULL;
    struct usage usage = {planner, node->strategy->at.n, kept ? *kept : NULL};
    if (n_key == HEAD)
        return true;
    if (!kept || (!usage.at && !tsr__usage_new(&usage, planner, &planner->arena, usage.k)))
        return false;
    for (size_t c = 0; !*kept && c < usage.k; c++)
        for (size_t i = HEAD; i < n_key; i++)
            tsr__usage_add(&usage, c, node->strategy->at.at[c].in[key[i]],
                           &planner->values[tsr__value_id(tsr_node_input(node->node, key[i]))]);
    *kept = usage.at;
    tsr__usage_take(planner, node->var, usage.k, usage.at, 0, planner->n_times);
    return true;
}

// The layouts in which the readers of a constant may want it.
#define MANY_LAYOUTS 256
struct wanted {
    uint32_t layout[MANY_LAYOUTS];
    size_t readers[MANY_LAYOUTS]; // that may want it
    size_t n;
    bool too_many;
};

static size_t place_in(struct wanted *wanted, uint32_t layout)
{
    size_t i = 0;
    while (i < wanted->n && wanted->layout[i] != layout)
        i++;
    if (i == MANY_LAYOUTS) {
        wanted->too_many = true;
        return 0;
    }
    if (i == wanted->n) {
        wanted->layout[i] = layout;
        wanted->readers[wanted->n++] = 0;
    }
    return i;
}

static void list_wanted(struct edge *edge, struct wanted *wanted)
{
    for (size_t r = 0; r < edge->readers.n; r++) {
        bool seen[MANY_LAYOUTS] = {false};
        for (size_t j = 0; j < tsr__edge_choices(edge->planner, &edge->readers.at[r]); j++) {
            size_t i = place_in(wanted, tsr__planner_wanted(edge->planner, &edge->readers.at[r],
                                                            edge->v, (uint32_t)j));
            wanted->readers[i] += !seen[i];
            seen[i] = true;
        }
    }
}

// Small ones, and those that all want alike, lie there in any case.
static bool use_fixed(struct edge *edge, const struct wanted *wanted, uint32_t fixed)
{
    struct usage usage;
    if (!tsr__usage_new(&usage, edge->planner, edge->planner->work, 1))
        return false;
    for (size_t i = 0; i < wanted->n; i++)
        tsr__usage_add(&usage, 0, wanted->layout[i], edge->value);
    tsr__usage_take(edge->planner, fixed, 1, usage.at, 0, edge->planner->n_times);
    return true;
}

// A variable that says whether the constant is stored in that layout; whoever wants it so needs that.
static bool store(struct edge *edge, uint32_t layout)
{
    static const int64_t zero[2] = {0, 0};
    struct program *program = &edge->planner->program;
    struct usage usage;
    uint32_t var = tsr__program_node(program, tsr__value_str(edge->v), 2, zero);
    if (!tsr__usage_new(&usage, edge->planner, edge->planner->work, 2))
        return false;
    tsr__usage_add(&usage, 1, layout, edge->value);
    tsr__usage_take(edge->planner, var, 2, usage.at, 0, edge->planner->n_times);
    for (size_t r = 0; r < edge->readers.n; r++) {
        struct reader *reader = &edge->readers.at[r];
        size_t k = tsr__edge_choices(edge->planner, reader);
        bool any = false;
        int64_t *t = ARENA_ARRAY(edge->planner->work, int64_t, 2 * k + 1);
        for (size_t j = 0; t && j < k; j++)
            if (tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j) == layout) {
                t[j] = COST_FORBIDDEN;
                any = true;
            }
        if (any)
            tsr__program_edge(program, var, tsr__edge_var(edge, reader), t);
    }
    return !edge->planner->work->failed;
}

// Layouts that one reader alone may want are that reader's.
static bool use_lone(struct edge *edge, struct wanted *wanted, struct reader *reader)
{
    struct usage usage;
    size_t k = tsr__edge_choices(edge->planner, reader);
    if (!tsr__usage_new(&usage, edge->planner, edge->planner->work, k))
        return false;
    for (size_t j = 0; j < k; j++) {
        uint32_t want = tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j);
        if (wanted->readers[place_in(wanted, want)] == 1)
            tsr__usage_add(&usage, j, want, edge->value);
    }
    tsr__usage_take(edge->planner, tsr__edge_var(edge, reader), k, usage.at, 0,
                    edge->planner->n_times);
    return true;
}

static bool use_shared(struct edge *edge, uint32_t fixed)
{
    struct wanted wanted;
    wanted.n = 0;
    wanted.too_many = false;
    int64_t whole = tsr__planner_bytes(
        edge->planner, tsr__planner_whole(edge->planner, edge->value->rank), edge->value);
    list_wanted(edge, &wanted);
    bool ok = !wanted.too_many || whole == 0;
    if (wanted.n == 1 || whole <= PLAN_SMALL_CONSTANT)
        return use_fixed(edge, &wanted, fixed);
    for (size_t i = 0; ok && i < wanted.n; i++)
        ok = wanted.readers[i] < 2 || store(edge, wanted.layout[i]);
    for (size_t r = 0; ok && r < edge->readers.n; r++)
        ok = use_lone(edge, &wanted, &edge->readers.at[r]);
    return ok;
}

bool tsr__use_constants(struct planner *planner)
{
    static const int64_t zero[1] = {0};
    if (!planner->memory.n_classes)
        return true;
    bool *own = ARENA_ARRAY(planner->work, bool, tsr__model_value_ids(planner->model) + 1);
    uint32_t fixed = tsr__program_node(&planner->program, STR("constants"), 1, zero);
    bool ok = own != NULL;
    for (size_t i = 0; ok && i < planner->ends.constants.n; i++) {
        const tsr_value *value = planner->ends.constants.at[i];
        struct arena arena;
        struct edge edge = {.planner = planner,
                            .arena = &arena,
                            .v = value,
                            .value = &planner->values[tsr__value_id(value)]};
        tsr__arena_init(&arena, planner->session);
        edge.readers = tsr__planner_readers(planner, &arena, value);
        ok = !arena.failed;
        bool one = edge.readers.n == 1 && edge.readers.at[0].node != SIZE_MAX &&
                   !edge.readers.at[0].captures;
        own[tsr__value_id(value)] = one && edge.value->constant;
        if (ok && !one && edge.readers.n && edge.value->constant)
            ok = use_shared(&edge, fixed);
        tsr__arena_free(&arena);
    }
    for (size_t i = 0; ok && i < planner->n_nodes; i++)
        ok = !planner->nodes[i].strategy || use_own(planner, &planner->nodes[i], own);
    return ok && !planner->arena.failed;
}
