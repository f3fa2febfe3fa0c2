// SPDX-License-Identifier: Apache-2.0
// stored_weights.c - charges the memory of constants: each is stored once in every layout that is
// needed.
//
//     Example: nodes A, B and C read a weight of 8 MB on two devices. A and B may want it by rows
//     or replicated, C replicated or by columns. Several nodes may want it by rows or replicated,
//     so both layouts have a variable "is stored", with 4 MB and 8 MB. The choices of A and B that
//     want rows are forbidden unless the variable of the rows is set. Only C may want columns, so 4
//     MB are charged to its choices with columns. If A chooses rows and B and C replicated, each
//     device stores 12 MB; if all choose replicated, 8 MB.
#include "plan/program/edges.h"

#define SMALL_SHARE 1024 // a small constant takes at most this part of a device's memory

// Lists the inputs with constants that only this node reads, each constant once. Returns their
// number.
static size_t list_own(const struct plan_node *node, const bool *own, uint32_t *slots)
{
    size_t n = 0;
    for (size_t i = 0; i < tsr__plan_reads(node); i++) {
        const tsr_value *value = tsr__plan_read(node, i);
        bool again = !node->border && read_before(node->node, i);
        if (value && own[tsr__value_id(value)] && !again)
            slots[n++] = (uint32_t)i;
    }
    return n;
}

// Charges all constants that only this node reads, in one table.
static bool use_own(struct planner *planner, const struct plan_node *node, const bool *own)
{
    // The key includes the slots: of two equal nodes, one may share a constant with a third node.
    enum { HEAD = 3 };
    size_t n_in = tsr__plan_reads(node);
    uint32_t *key = ARENA_ARRAY(planner->work, uint32_t, n_in + HEAD);
    if (!key)
        return false;
    key[0] = TABLE_OWN;
    key[1] = node->strategy->id;
    key[2] = planner->memory.division;
    const uint32_t *slots = key + HEAD;
    size_t n_slots = list_own(node, own, key + HEAD);
    if (n_slots == 0)
        return true;
    void **kept = tsr__planner_cached(planner, key, HEAD + n_slots);
    if (!kept)
        return false;
    if (!*kept) {
        struct usage usage;
        if (!tsr__usage_new(&usage, planner, &planner->arena, node->strategy->at.n))
            return false;
        for (size_t c = 0; c < usage.k; c++)
            for (size_t i = 0; i < n_slots; i++) {
                const tsr_value *value = tsr__plan_read(node, slots[i]);
                tsr__usage_add(&usage, c, node->strategy->at.at[c].in[slots[i]],
                               &planner->values[tsr__value_id(value)]);
            }
        *kept = usage.at;
    }
    tsr__usage_take(planner, node->var, node->strategy->at.n, *kept, 0, planner->n_times);
    return true;
}

// The layouts in which the readers of a constant may want it.
struct wanted {
    uint32_t *layout;
    size_t *readers; // number of readers that may want each layout
    size_t *last;    // 1 + the last of these readers
    size_t n;
};

// Returns the index of the layout in the list, and appends it if it is new.
static size_t place_in(struct wanted *wanted, uint32_t layout)
{
    size_t i = 0;
    while (i < wanted->n && wanted->layout[i] != layout)
        i++;
    if (i == wanted->n)
        wanted->layout[wanted->n++] = layout;
    return i;
}

// Counts, for each layout, the readers with a choice that wants it. False: out of memory.
static bool list_wanted(struct edge *edge, struct wanted *wanted)
{
    size_t most = 0; // every choice may want another layout
    for (size_t r = 0; r < edge->readers.n; r++)
        most += tsr__edge_choices(edge->planner, &edge->readers.at[r]);
    *wanted = (struct wanted){.layout = ARENA_ARRAY(edge->arena, uint32_t, most + 1),
                              .readers = ARENA_ARRAY(edge->arena, size_t, most + 1),
                              .last = ARENA_ARRAY(edge->arena, size_t, most + 1)};
    if (edge->arena->failed)
        return false;
    for (size_t r = 0; r < edge->readers.n; r++)
        for (size_t j = 0; j < tsr__edge_choices(edge->planner, &edge->readers.at[r]); j++) {
            size_t i = place_in(wanted, tsr__planner_wanted(edge->planner, &edge->readers.at[r],
                                                            edge->v, (uint32_t)j));
            wanted->readers[i] += wanted->last[i] != r + 1;
            wanted->last[i] = r + 1;
        }
    return true;
}

// Charges a constant that is always stored: a small one, or one that all readers want in the same
// layout.
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

// Forbids choices of the reader that want the layout while the variable is 0 (layout not stored).
static bool need_stored(struct edge *edge, struct reader *reader, uint32_t var, uint32_t layout)
{
    size_t k = tsr__edge_choices(edge->planner, reader);
    bool any = false;
    int64_t *table = ARENA_ARRAY(edge->planner->work, int64_t, 2 * k + 1);
    if (!table)
        return false;
    for (size_t j = 0; j < k; j++)
        if (tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j) == layout) {
            table[j] = COST_FORBIDDEN;
            any = true;
        }
    if (any)
        tsr__program_edge(&edge->planner->program, var, tsr__edge_var(edge, reader), table);
    return true;
}

// Adds a variable for whether the constant is stored in that layout, and charges its bytes.
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
    for (size_t r = 0; r < edge->readers.n; r++)
        if (!need_stored(edge, &edge->readers.at[r], var, layout))
            return false;
    return true;
}

// Charges to the reader the layouts that no other reader may want.
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

// True if all layouts of a constant of that size take little of the memory of each device.
static bool is_small(const struct planner *planner, int64_t whole)
{
    bool small = whole <= PLAN_SMALL_CONSTANT;
    for (size_t c = 0; c < planner->memory.n_classes; c++)
        small = small && whole <= planner->memory.bytes[c] / SMALL_SHARE;
    return small;
}

// Charges a constant with several readers. False: out of memory, or more than MANY_LAYOUTS layouts.
// A small constant, or one with a single layout, is always stored. Otherwise adds a variable for
// each layout that several readers may want; other layouts are charged to their readers.
static bool use_shared(struct edge *edge, uint32_t fixed)
{
    struct wanted wanted;
    uint32_t layout = tsr__planner_replicated(edge->planner, edge->value->rank);
    int64_t whole = tsr__planner_bytes(edge->planner, layout, edge->value);
    if (!list_wanted(edge, &wanted))
        return false;
    if (is_small(edge->planner, whole))
        return use_fixed(edge, &wanted, fixed);
    if (tsr__may_gather(edge))
        return tsr__use_gathered_shared(edge, wanted.layout, wanted.n);
    if (wanted.n == 1)
        return use_fixed(edge, &wanted, fixed);
    for (size_t i = 0; i < wanted.n; i++)
        if (wanted.readers[i] > 1 && !store(edge, wanted.layout[i]))
            return false;
    for (size_t r = 0; r < edge->readers.n; r++)
        if (!use_lone(edge, &wanted, &edge->readers.at[r]))
            return false;
    return true;
}

// True if only one node reads the constant, at one of its inputs.
static bool has_one_reader(const struct readers *readers)
{
    return readers->n == 1 && readers->at[0].node != SIZE_MAX && !readers->at[0].captures;
}

// True if only one node reads the constant, and each run may gather it for that node.
static bool is_gathered(struct edge *edge)
{
    uint32_t layout = tsr__planner_replicated(edge->planner, edge->value->rank);
    return tsr__may_gather(edge) &&
           !is_small(edge->planner, tsr__planner_bytes(edge->planner, layout, edge->value));
}

// Charges a constant, or marks it in `own` if only one node reads it. Marked constants are charged
// to their node later.
static bool use_constant(struct planner *planner, const tsr_value *value, uint32_t fixed, bool *own)
{
    struct arena arena;
    struct edge edge = {.planner = planner,
                        .arena = &arena,
                        .v = value,
                        .value = &planner->values[tsr__value_id(value)]};
    tsr__arena_init(&arena, planner->session);
    edge.readers = tsr__planner_readers(planner, &arena, value);
    bool ok = !arena.failed, one = has_one_reader(&edge.readers);
    bool gathered = ok && one && edge.value->constant && is_gathered(&edge);
    own[tsr__value_id(value)] = one && edge.value->constant && !gathered;
    if (gathered)
        ok = tsr__use_gathered(&edge);
    if (ok && !one && edge.readers.n && edge.value->constant)
        ok = use_shared(&edge, fixed);
    tsr__arena_free(&arena);
    return ok;
}

// Charges all constants: first those with several readers, then those of single nodes. `fixed` is a
// variable with one choice, to which everything that is always stored is charged.
bool tsr__use_constants(struct planner *planner)
{
    static const int64_t zero[1] = {0};
    if (!planner->memory.n_classes)
        return true;
    bool *own = ARENA_ARRAY(planner->work, bool, tsr__model_value_ids(planner->model) + 1);
    uint32_t fixed = tsr__program_node(&planner->program, STR("constants"), 1, zero);
    if (!own)
        return false;
    for (size_t i = 0; i < planner->ends.constants.n; i++)
        if (!use_constant(planner, planner->ends.constants.at[i], fixed, own))
            return false;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].strategy && !use_own(planner, &planner->nodes[i], own))
            return false;
    return !planner->arena.failed;
}
