// SPDX-License-Identifier: Apache-2.0
// range_structure.c - finds ranges with equal nodes, and the values that cross their borders.
#include "plan/stages/stages.h"

// A range while its key is written. Two ranges have the same key if their nodes have the same
// strategies and read the same values in the same order. "3.0" is output 0 of node 3 of the range,
// "g2" the second value from outside (c: constant, i: input of the model, g: produced elsewhere).
// Outputs are followed by l (read later), s (stays) and o (returned to the caller). Example:
// ";17:g1 c2 >;4:0.0 g1 >l" is a MatMul (strategy 17) of g1 and the weight c2, and an Add (strategy
// 4) of its result and g1, whose output is read later.
struct range_key {
    struct staging *staging;
    struct range *range;
    struct arena scratch;
    struct map seen; // numbers of values from outside
    struct text key;
    size_t begin, end;
    VEC(const tsr_value *) in, out, leave;
    bool later; // a node after the range reads the current value
};

static char letter_of(const struct plan_value *value)
{
    if (value->constant)
        return 'c';
    return value->given ? 'i' : 'g';
}

// Returns the number of a value from outside, counted from 1. comes: an earlier range produces it.
static uintptr_t number_of(struct range_key *range_key, const tsr_value *value, bool comes)
{
    uint32_t id = tsr__value_id(value);
    void **at = tsr__map_at_copy(&range_key->seen, str_bytes(&id, sizeof id));
    if (at && *at)
        return (uintptr_t)*at;
    uintptr_t found = range_key->seen.n;
    if (at)
        *at = (void *)found;
    if (comes)
        vec_add(&range_key->staging->planner->arena, &range_key->in, value);
    return found;
}

// Adds a value from outside to the key. Updates range->earliest, the earliest producer of such
// values.
static void number_outside(struct range_key *range_key, const tsr_value *value, bool comes)
{
    const struct planner *planner = range_key->staging->planner;
    uintptr_t number = number_of(range_key, value, comes);
    if (comes) {
        size_t at = (size_t)tsr__planned_producer(planner, value);
        if (at < range_key->range->earliest)
            range_key->range->earliest = at;
    }
    tsr__text_printf(&range_key->key, "%c%zu ", letter_of(&planner->values[tsr__value_id(value)]),
                     (size_t)number);
}

// Adds an input to the key: "-" if the slot is empty, a number from number_outside if the value
// comes from outside the range, otherwise the position of its node in the range and its output
// slot.
static void describe_value(struct range_key *range_key, const tsr_value *value)
{
    if (!value) {
        tsr__text_printf(&range_key->key, "- ");
        return;
    }
    const struct planner *planner = range_key->staging->planner;
    int64_t at = tsr__planned_producer(planner, value);
    bool staged = at >= 0 && range_key->staging->staged[tsr__node_id(planner->nodes[at].node)];
    if (!staged || (size_t)at < range_key->begin) {
        number_outside(range_key, value, staged);
        return;
    }
    tsr__text_printf(&range_key->key, "%zu.%zu ", (size_t)at - range_key->begin,
                     tsr__plan_made_slot(&planner->nodes[at], value));
}

// Sets range_key->later if the reader `node` comes after the range; a callback of tsr_value_uses. A
// node inside a subgraph counts as the node of the main graph that contains it.
static bool is_read_later(void *data, tsr_node *node, size_t input)
{
    struct range_key *range_key = data;
    (void)input;
    while (tsr_graph_owner(tsr_node_graph(node)))
        node = tsr_graph_owner(tsr_node_graph(node));
    int64_t at = range_key->staging->planner->node_at[tsr__node_id(node)];
    range_key->later = at >= 0 && (size_t)at >= range_key->end;
    return !range_key->later; // one is enough
}

// Adds the letters of an output to the key (l, s, o: see struct range_key), and lists the values
// that leave the range or are returned.
static void describe_output(struct range_key *range_key, const tsr_value *value)
{
    struct planner *planner = range_key->staging->planner;
    range_key->later = false;
    tsr_value_uses(value, is_read_later, range_key);
    if (range_key->later) {
        vec_add(&planner->arena, &range_key->leave, value);
        tsr__text_printf(&range_key->key, "l");
    }
    if (planner_stays(planner, value)) {
        tsr__text_printf(&range_key->key, "s");
    } else if (planner->values[tsr__value_id(value)].returned) {
        vec_add(&planner->arena, &range_key->out, value);
        tsr__text_printf(&range_key->key, "o");
    }
}

// Adds a node to the key: ";", the number of its strategy, its inputs, and ">" for each output.
static void describe_node(struct range_key *range_key, const struct plan_node *node)
{
    tsr_value **captures;
    size_t n_reads = tsr__plan_all_reads(node, &captures);
    tsr__text_printf(&range_key->key, ";%u:", node->strategy->id);
    for (size_t i = 0; i < n_reads; i++)
        describe_value(range_key, plan_any_read(node, captures, i));
    for (size_t o = 0; o < tsr__plan_makes(node); o++) {
        const tsr_value *value = tsr__plan_made(node, o);
        tsr__text_printf(&range_key->key, ">");
        if (value)
            describe_output(range_key, value);
    }
}

// Returns the number of a structure. Keys are long, and there are many of them, so their digests
// are stored.
uint32_t tsr__stages_structure(struct staging *staging, struct str key)
{
    char hex[65];
    struct sha256 h;
    tsr__sha256_init(&h);
    tsr__sha256_add(&h, key.p, key.n);
    tsr__sha256_hex(&h, hex);
    void **at = tsr__map_at_copy(&staging->structures, (struct str){hex, 64});
    if (!at)
        return UINT32_MAX;
    if (!*at)
        *at = (void *)(uintptr_t)staging->structures.n;
    return (uint32_t)((uintptr_t)*at - 1);
}

// Describes the nodes of a range. Strategies have the same numbers in all kinds, since their nodes
// are in the same order.
static void describe(struct range_key *range_key)
{
    struct staging *staging = range_key->staging;
    const struct kind *kind = staging->all_kinds.at[0];
    range_key->range->earliest = SIZE_MAX;
    tsr__arena_init(&range_key->scratch, staging->planner->session);
    tsr__map_init(&range_key->seen, &range_key->scratch, 64);
    tsr__text_init(&range_key->key, staging->planner->session);
    range_key->key.max = (size_t)1 << 30;
    for (size_t n = range_key->begin; n < range_key->end; n++)
        if (kind->nodes[n].strategy)
            describe_node(range_key, &kind->nodes[n]);
    range_key->range->structure =
        tsr__stages_structure(staging, (struct str){range_key->key.p, range_key->key.n});
    range_key->range->in = range_key->in.at;
    range_key->range->n_in = range_key->in.n;
    range_key->range->out = range_key->out.at;
    range_key->range->n_out = range_key->out.n;
    range_key->range->leave = range_key->leave.at;
    range_key->range->n_leave = range_key->leave.n;
    range_key->range->known =
        !range_key->key.failed && !range_key->scratch.failed && !staging->planner->arena.failed;
    tsr__text_free(&range_key->key);
    tsr__arena_free(&range_key->scratch);
}

// Returns the range from i to j, described on first use. NULL: out of memory.
const struct range *tsr__stages_range(struct staging *staging, size_t i, size_t j)
{
    struct range *range = &staging->ranges[i * (staging->n_ranges + 1) + j];
    struct range_key range_key = {
        .staging = staging, .range = range, .begin = staging->cut[i], .end = staging->cut[j]};
    if (!range->known)
        describe(&range_key);
    return range->known ? range : NULL;
}
