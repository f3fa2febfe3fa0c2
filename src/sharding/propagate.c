// SPDX-License-Identifier: Apache-2.0
// propagate.c - lets shardings go backwards and sideways: what a node needs of an input becomes the wish for the output
// that it reads, and so on up; other readers of that value follow by the flow.
//
// Rounds of one flow forwards (flow.c) and one walk backwards over the nodes, until a walk grants no wish. The order in
// which conflicts are resolved:
//   1. explicit shardings, never overridden: an output that has one gets no wish;
//   2. what arrives at a node by the flow forwards: a wish that does not fit to it is refused;
//   3. what other readers (and model outputs, and subgraphs) have in place: a wish that would make it move is refused;
//   4. of several wishes for one value, that of the first reader in the order of the nodes which can be granted.
// A wish is a layout that cuts something (a whole value has nothing to be divided) and is granted exactly or not at
// all. Model inputs stay whole and initializers follow their readers, so neither has wishes. Refused wishes that matter
// are notes. Knows no costs.
#include "sharding/flow.h"

#define MAX_ROUNDS 64

struct reader {
    size_t node, slot;
};
struct refusal {
    const struct tile_layout *layout;
    size_t in_place; // node that has the value in place; NOBODY: the producer cannot give it
    struct refusal *next;
};
#define NOBODY ((size_t)-1)
#define OUTPUT ((size_t)-2) // the model's output, or a subgraph

struct propagate {
    struct flow_work w;
    struct arena *arena;      // stays
    struct arena trial;       // of one wish
    tsr_node **nodes;         // in order
    size_t *first;            // by value id (and one more): its readers
    struct reader *readers;   // in the order of the nodes
    bool *fixed;              // by value id: explicit
    bool *bound;              // by value id: an output of the model, or read by a subgraph
    struct refusal **refused; // by value id
    bool failed;
};

static uint32_t id_of(const tsr_value *v)
{
    return tsr__value_id(v);
}

static struct tile_layout **lies(struct propagate *p, const tsr_value *v)
{
    return &p->w.f->values[id_of(v)];
}

// ---- who reads what ----------------------------------------------------------------------------

static void count_readers(struct propagate *p)
{
    for (size_t i = 0; i < p->w.f->n_nodes; i++)
        for (size_t k = 0; k < tsr_node_input_count(p->nodes[i]); k++)
            if (tsr_node_input(p->nodes[i], k))
                p->first[id_of(tsr_node_input(p->nodes[i], k)) + 1]++;
}

static bool list_readers(struct propagate *p, size_t n_ids)
{
    count_readers(p);
    for (size_t i = 0; i < n_ids; i++)
        p->first[i + 1] += p->first[i];
    size_t *at = ARENA_ARRAY(p->arena, size_t, n_ids + 1);
    p->readers = ARENA_ARRAY(p->arena, struct reader, p->first[n_ids] + 1);
    if (!at || !p->readers)
        return false;
    for (size_t i = 0; i < p->w.f->n_nodes; i++)
        for (size_t k = 0; k < tsr_node_input_count(p->nodes[i]); k++) {
            const tsr_value *v = tsr_node_input(p->nodes[i], k);
            if (v)
                p->readers[p->first[id_of(v)] + at[id_of(v)]++] = (struct reader){i, k};
        }
    return true;
}

static void mark_fixed(struct propagate *p, const tsr_node *n)
{
    tsr_value **captures;
    size_t n_captures = tsr__node_captures(n, &captures);
    for (size_t k = 0; k < n_captures; k++)
        p->bound[id_of(captures[k])] = true;
    for (size_t k = 0; k < tsr_node_output_count(n); k++) {
        const tsr_value *v = tsr_node_output(n, k);
        if (v && tsr__has_spec(n, p->w.f->config, v))
            p->fixed[id_of(v)] = true;
    }
}

static bool prepare(struct propagate *p)
{
    size_t n_ids = tsr__model_value_ids(p->w.f->model), i = 0;
    tsr_graph *g = tsr_model_graph(p->w.f->model);
    p->nodes = ARENA_ARRAY(p->arena, tsr_node *, p->w.f->n_nodes + 1);
    p->first = ARENA_ARRAY(p->arena, size_t, n_ids + 2);
    p->fixed = ARENA_ARRAY(p->arena, bool, n_ids + 1);
    p->bound = ARENA_ARRAY(p->arena, bool, n_ids + 1);
    p->refused = ARENA_ARRAY(p->arena, struct refusal *, n_ids + 1);
    p->w.wishes = ARENA_ARRAY(p->arena, struct tile_layout *, n_ids + 1);
    if (p->arena->failed)
        return false;
    for (tsr_node *n = tsr_graph_first(g); n && i < p->w.f->n_nodes; n = tsr_node_next(n), i++) {
        p->nodes[i] = n;
        mark_fixed(p, n);
    }
    for (size_t k = 0; k < tsr_graph_output_count(g); k++)
        p->bound[id_of(tsr_graph_output(g, k))] = true;
    return list_readers(p, n_ids);
}

// ---- one wish ----------------------------------------------------------------------------------

// What node i would do now, without doing it. False: out of memory.
static bool try_node(struct propagate *p, size_t i, struct node_flow *nf)
{
    struct arena *arena = p->w.arena;
    *nf = (struct node_flow){0};
    p->w.arena = &p->trial;
    p->w.trial = true;
    p->w.say = 0;
    bool ok = tsr__flow_node(&p->w, p->nodes[i], nf);
    p->w.arena = arena;
    p->w.trial = false;
    p->failed = p->failed || !ok;
    return ok;
}

// The first of the readers of v (which lay as `before` and lies otherwise now) that had it in place and has not
// any more.
static size_t disturbed(struct propagate *p, const tsr_value *v, const struct tile_layout *before)
{
    uint32_t id = id_of(v);
    struct node_flow nf = {0};
    size_t tried = NOBODY;
    if (p->bound[id] && tsr__layout_is_whole(before))
        return OUTPUT;
    for (size_t k = p->first[id]; k < p->first[id + 1] && !p->failed; k++) {
        struct reader r = p->readers[k];
        if (!tsr__flow_held(before, p->w.f->nodes[r.node].inputs[r.slot]))
            continue;
        if (tried != r.node && !try_node(p, r.node, &nf))
            return NOBODY;
        tried = r.node;
        if (!tsr__flow_held(*lies(p, v), nf.inputs[r.slot]))
            return r.node;
    }
    return NOBODY;
}

// True if the node moves no input that it had in place.
static bool inputs_rest(struct propagate *p, size_t i, const struct node_flow *nf)
{
    for (size_t k = 0; k < tsr_node_input_count(p->nodes[i]); k++) {
        const tsr_value *v = tsr_node_input(p->nodes[i], k);
        if (v && tsr__flow_held(*lies(p, v), p->w.f->nodes[i].inputs[k]) &&
            !tsr__flow_held(*lies(p, v), nf->inputs[k]))
            return false;
    }
    return true;
}

// True if nobody minds that the outputs of node i lie as the trial says; else *who.
static bool outputs_rest(struct propagate *p, size_t i, const struct node_flow *nf, size_t *who)
{
    for (size_t k = 0; k < tsr_node_output_count(p->nodes[i]); k++) {
        const tsr_value *v = tsr_node_output(p->nodes[i], k);
        struct tile_layout *before = v ? *lies(p, v) : NULL;
        struct tile_layout *after = nf->wanted[k] ? nf->wanted[k] : nf->outputs[k];
        if (!v || tsr__layout_equal(before, after))
            continue;
        *lies(p, v) = after;
        *who = disturbed(p, v, before);
        *lies(p, v) = before;
        if (*who != NOBODY || p->failed)
            return false;
    }
    return true;
}

static bool fits(struct propagate *p, size_t i, size_t out, size_t *who)
{
    struct node_flow nf;
    const tsr_value *v = tsr_node_output(p->nodes[i], out);
    *who = NOBODY;
    return try_node(p, i, &nf) && tsr__layout_equal(nf.outputs[out], p->w.wishes[id_of(v)]) &&
           inputs_rest(p, i, &nf) && outputs_rest(p, i, &nf, who);
}

static const struct refusal *refusal_of(const struct propagate *p, uint32_t id,
                                        const struct tile_layout *l)
{
    const struct refusal *r = p->refused[id];
    while (r && !tsr__layout_equal(r->layout, l))
        r = r->next;
    return r;
}

static void refuse(struct propagate *p, uint32_t id, size_t in_place)
{
    struct refusal *r = ARENA_NEW(p->arena, struct refusal);
    if (r) {
        *r = (struct refusal){p->w.wishes[id], in_place, p->refused[id]};
        p->refused[id] = r;
    }
    p->failed = p->failed || !r;
    p->w.wishes[id] = NULL;
}

// True if output `out` of node i lies as `need` from now on.
static bool grant(struct propagate *p, size_t i, size_t out, const struct tile_layout *need)
{
    uint32_t id = id_of(tsr_node_output(p->nodes[i], out));
    size_t who;
    p->w.wishes[id] = tsr__layout_copy(p->arena, need);
    p->failed = p->failed || !p->w.wishes[id];
    if (p->failed)
        return false;
    tsr__arena_init(&p->trial, p->arena->session);
    bool ok = fits(p, i, out, &who);
    tsr__arena_free(&p->trial);
    if (!ok) {
        refuse(p, id, who);
        return false;
    }
    p->w.f->nodes[i] = (struct node_flow){0};
    p->failed = !tsr__flow_node(&p->w, p->nodes[i], &p->w.f->nodes[i]);
    return true;
}

// ---- rounds ------------------------------------------------------------------------------------

// The first wish for each output of node i that can be granted.
static bool walk_node(struct propagate *p, size_t i)
{
    bool granted = false;
    for (size_t out = 0; out < tsr_node_output_count(p->nodes[i]); out++) {
        const tsr_value *v = tsr_node_output(p->nodes[i], out);
        if (!v || p->fixed[id_of(v)])
            continue;
        uint32_t id = id_of(v);
        for (size_t k = p->first[id]; k < p->first[id + 1] && !p->w.wishes[id] && !p->failed; k++) {
            const struct tile_layout *need =
                p->w.f->nodes[p->readers[k].node].inputs[p->readers[k].slot];
            if (!tsr__layout_is_whole(need) && !tsr__layout_equal(need, *lies(p, v)) &&
                !refusal_of(p, id, need))
                granted = grant(p, i, out, need) || granted;
        }
    }
    return granted;
}

// Wishes that the flow could not keep, because something else arrives now, are refused from now on.
static void drop_unmet(struct propagate *p)
{
    for (size_t i = 0; i < p->w.f->n_nodes; i++)
        for (size_t k = 0; k < tsr_node_output_count(p->nodes[i]); k++) {
            const tsr_value *v = tsr_node_output(p->nodes[i], k);
            if (v && p->w.wishes[id_of(v)] &&
                !tsr__layout_equal(*lies(p, v), p->w.wishes[id_of(v)]))
                refuse(p, id_of(v), NOBODY);
        }
}

// One flow forwards, one walk backwards. False: nothing is left to grant.
static bool round_trip(struct propagate *p, bool last)
{
    bool granted = false;
    if (!tsr__flow_forward(&p->w, 0, NULL)) {
        p->failed = true;
        return false;
    }
    drop_unmet(p);
    for (size_t i = p->w.f->n_nodes; i > 0 && !last && !p->failed; i--)
        granted = walk_node(p, i - 1) || granted;
    return granted;
}

// ---- notes -------------------------------------------------------------------------------------

// Why the wish of a reader was not granted, if that is worth a note: it has to be moved, or somebody else has it in
// place.
static const char *reason(struct propagate *p, const tsr_value *v, const struct tile_layout *need)
{
    const struct refusal *r = refusal_of(p, id_of(v), need);
    bool moves = !tsr__flow_held(*lies(p, v), need);
    if (r && r->in_place == OUTPUT)
        return "the model's output, or a subgraph, has it whole";
    if (r && r->in_place != NOBODY)
        return tsr__arena_printf(p->arena, "node #%zu has it in place", r->in_place).p;
    if (r && moves)
        return "the node that makes it cannot give it so without moving what it reads";
    return moves && p->w.wishes[id_of(v)] ? "another node comes first" : NULL;
}

static void note(struct propagate *p, const tsr_value *v, const struct reader *r)
{
    const struct tile_layout *need = p->w.f->nodes[r->node].inputs[r->slot];
    if (tsr__layout_is_whole(need) || tsr__layout_equal(need, *lies(p, v)))
        return;
    const char *why = reason(p, v, need);
    struct flow_noted *n = why ? ARENA_NEW(p->arena, struct flow_noted) : NULL;
    if (!n)
        return;
    *n = (struct flow_noted){tsr__layout_copy(p->arena, need), p->w.noted[id_of(v)]};
    if (!n->layout)
        return;
    p->w.noted[id_of(v)] = n; // the flow need not say it again
    struct place at = tsr__place_node(p->nodes[r->node]);
    at.configuration = str_of(tsr_config_name(p->w.f->config));
    at.value = tsr__value_str(v);
    struct str from = tsr__notation_print(p->arena, *lies(p, v));
    struct str to = tsr__notation_print(p->arena, need);
    tsr__diag(p->arena->session, DIAG_demand_dropped, &at,
              "shard the output of the node that makes it explicitly, to decide it yourself",
              "the node needs the value as " STR_FMT ", but it lies as " STR_FMT ": %s",
              STR_ARG(to), STR_ARG(from), why);
}

static void note_all(struct propagate *p)
{
    for (size_t i = 0; i < p->w.f->n_nodes; i++)
        for (size_t out = 0; out < tsr_node_output_count(p->nodes[i]); out++) {
            const tsr_value *v = tsr_node_output(p->nodes[i], out);
            if (!v || p->fixed[id_of(v)])
                continue;
            for (size_t k = p->first[id_of(v)]; k < p->first[id_of(v) + 1]; k++)
                note(p, v, &p->readers[k]);
        }
}

static void settle(struct propagate *p)
{
    bool more = true;
    for (int i = 0; more && !p->failed; i++) {
        struct arena round; // results of a round are not needed after it
        tsr__arena_init(&round, p->arena->session);
        p->w.arena = &round;
        more = round_trip(p, i == MAX_ROUNDS);
        if (!more && !p->failed)
            note_all(p);
        p->w.arena = p->arena;
        tsr__arena_free(&round);
    }
}

struct flow *tsr__flow_propagated(struct arena *a, tsr_model *m, const tsr_config *c)
{
    struct propagate p = {.arena = a};
    if (!tsr__flow_start(&p.w, a, m, c) || !prepare(&p))
        return NULL;
    settle(&p);
    return !p.failed && tsr__flow_forward(&p.w, SAY_UNCUT | SAY_MOVES, NULL) ? p.w.f : NULL;
}
