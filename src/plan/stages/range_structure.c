// SPDX-License-Identifier: Apache-2.0
// ranges.c - which ranges of nodes are alike, and what crosses their ends.
#include "plan/stages/stages.h"

// A range while its key is written. Two ranges have the same key if their nodes have the same strategies and read the same
// things in the same order: "3.0" output 0 of the range's node 3, "g2" the third value from outside (c: constant, i: input
// of the model, g: made elsewhere). After the outputs stand l (read later), s (stays) and o (given to the caller):
//
//     ;17:g1 c2 >  ;4:0.0 g1 >l     MatMul of what comes in and a weight; Add of that and what comes in, read later
struct describing {
    struct staging *staging;
    struct range *range;
    struct arena scratch;
    struct map seen; // values from outside: their number
    struct text key;
    size_t begin, end;
    VEC(const tsr_value *) in, out, leave;
    bool later; // some node after the range reads the value at hand
};

static char letter_of(const struct plan_value *value)
{
    if (value->constant)
        return 'c';
    if (value->given)
        return 'i';
    return 'g';
}

// The number of a value from outside, counted from 1. comes: an earlier range makes it.
static uintptr_t number_of(struct describing *describing, const tsr_value *value, bool comes)
{
    uint32_t id = tsr__value_id(value);
    void **at = tsr__map_at_copy(&describing->seen, str_bytes(&id, sizeof id));
    if (at && *at)
        return (uintptr_t)*at;
    uintptr_t found = describing->seen.n;
    if (at)
        *at = (void *)found;
    if (comes) {
        const tsr_value **in = vec_push(&describing->staging->planner->arena, &describing->in);
        if (in)
            *in = value;
    }
    return found;
}

// Adds a value from outside to the key. Of those that come from an earlier range the earliest maker
// is noted: stages.c asks whether that is the stage just before.
static void number_outside(struct describing *describing, const tsr_value *value, bool comes)
{
    const struct planner *planner = describing->staging->planner;
    uintptr_t number = number_of(describing, value, comes);
    if (comes) {
        size_t at = (size_t)planner->node_at[tsr__node_id(tsr_value_producer(value))];
        if (at < describing->range->earliest)
            describing->range->earliest = at;
    }
    tsr__text_printf(&describing->key, "%c%zu ", letter_of(&planner->values[tsr__value_id(value)]),
                     (size_t)number);
}

// Adds an input to the key: "-" where the node has none in that slot.
static void describe_value(struct describing *describing, const tsr_value *value)
{
    if (!value) {
        tsr__text_printf(&describing->key, "- ");
        return;
    }
    const tsr_node *from = tsr_value_producer(value);
    int64_t at = from ? describing->staging->planner->node_at[tsr__node_id(from)] : -1;
    bool staged = at >= 0 && describing->staging->staged[tsr__node_id(from)];
    if (!staged || (size_t)at < describing->begin) {
        number_outside(describing, value, staged);
        return;
    }
    size_t slot = 0;
    while (slot + 1 < tsr_node_output_count(from) && tsr_node_output(from, slot) != value)
        slot++;
    tsr__text_printf(&describing->key, "%zu.%zu ", (size_t)at - describing->begin, slot);
}

// A node inside of a body counts as the node of the main graph that has the body.
static bool is_read_later(void *data, tsr_node *node, size_t input)
{
    struct describing *describing = data;
    (void)input;
    while (tsr_graph_owner(tsr_node_graph(node)))
        node = tsr_graph_owner(tsr_node_graph(node));
    int64_t at = describing->staging->planner->node_at[tsr__node_id(node)];
    describing->later = at >= 0 && (size_t)at >= describing->end;
    return !describing->later; // one is enough
}

// Adds l, s and o, and lists what leaves the range and what the caller gets of it.
static void describe_output(struct describing *describing, const tsr_value *value)
{
    struct planner *planner = describing->staging->planner;
    describing->later = false;
    tsr_value_uses(value, is_read_later, describing);
    if (describing->later) {
        const tsr_value **leave = vec_push(&planner->arena, &describing->leave);
        if (leave)
            *leave = value;
        tsr__text_printf(&describing->key, "l");
    }
    if (planner_stays(planner, value)) {
        tsr__text_printf(&describing->key, "s");
    } else if (tsr_value_is_output(value)) {
        const tsr_value **out = vec_push(&planner->arena, &describing->out);
        if (out)
            *out = value;
        tsr__text_printf(&describing->key, "o");
    }
}

// Adds ";", the number of its strategy, what it reads, and a ">" for each output.
static void describe_node(struct describing *describing, const struct plan_node *node)
{
    tsr_value **captures;
    size_t n_reads = tsr__reads_count(node->node, &captures);
    tsr__text_printf(&describing->key, ";%u:", node->strategy->id);
    for (size_t i = 0; i < n_reads; i++)
        describe_value(describing, tsr__reads_at(node->node, captures, i));
    for (size_t o = 0; o < tsr_node_output_count(node->node); o++) {
        const tsr_value *value = tsr_node_output(node->node, o);
        tsr__text_printf(&describing->key, ">");
        if (value)
            describe_output(describing, value);
    }
}

// Keys are long and many: their digests are kept in place of them.
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

// Strategies have the same numbers in all kinds: their nodes come in the same order.
static void describe(struct describing *describing)
{
    struct staging *staging = describing->staging;
    const struct kind *kind = staging->all_kinds.at[0];
    describing->range->earliest = SIZE_MAX;
    tsr__arena_init(&describing->scratch, staging->planner->session);
    tsr__map_init(&describing->seen, &describing->scratch, 64);
    tsr__text_init(&describing->key, staging->planner->session);
    describing->key.max = (size_t)1 << 30;
    for (size_t n = describing->begin; n < describing->end; n++)
        if (kind->nodes[n].strategy)
            describe_node(describing, &kind->nodes[n]);
    describing->range->structure =
        tsr__stages_structure(staging, (struct str){describing->key.p, describing->key.n});
    describing->range->in = describing->in.at;
    describing->range->n_in = describing->in.n;
    describing->range->out = describing->out.at;
    describing->range->n_out = describing->out.n;
    describing->range->leave = describing->leave.at;
    describing->range->n_leave = describing->leave.n;
    describing->range->known =
        !describing->key.failed && !describing->scratch.failed && !staging->planner->arena.failed;
    tsr__text_free(&describing->key);
    tsr__arena_free(&describing->scratch);
}

// Described once, when it is first asked for. NULL: out of memory.
const struct range *tsr__stages_range(struct staging *staging, size_t i, size_t j)
{
    struct range *range = &staging->ranges[i * (staging->n_ranges + 1) + j];
    struct describing describing = {
        .staging = staging, .range = range, .begin = staging->cut[i], .end = staging->cut[j]};
    if (!range->known)
        describe(&describing);
    if (!range->known)
        return NULL;
    return range;
}
