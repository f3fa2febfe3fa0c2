// SPDX-License-Identifier: Apache-2.0
// agree.c - the proof before publishing: the plan's communications fold and join parts of the same sizes; and the graphs
// that were built, read again. On every rank the
// communications ascend in number and hang on one chain of tokens; the members of a group have the
// same operator, type, group and attributes, in the same body of the same node; and all of them are
// there. Loops carry the token as their last state, both branches of an If hand it out last. So no run
// of the parts can wait for a partner that never comes, as long as all take the same turns.
#include "internal.h"

// ---- sizes -------------------------------------------------------------------------------------

static bool same_size(const struct form *f, int d, int64_t a, int64_t b)
{
    int64_t x[TILE_MAX_FACTORS], y[TILE_MAX_FACTORS], size = f->item->dims[d].value;
    if (!tsr__device_coords(f->layout, a, d, x) || !tsr__device_coords(f->layout, b, d, y))
        return false;
    struct local_size m = tsr__local_size(&f->layout->dims[d], x),
                      n = tsr__local_size(&f->layout->dims[d], y);
    if (size >= 0)
        return tsr__local_size_of(&m, size) == tsr__local_size_of(&n, size);
    return m.unit == n.unit && m.scale == n.scale && m.part == n.part && m.parts == n.parts;
}

struct sizes {
    struct plan *plan;
    tsr_status status;
};

// What members of a group fold or put together is as large on each of them, but for the axis along which it is joined.
static void check_sizes(void *data, const struct step *st)
{
    struct sizes *s = data;
    bool folds = st->kind == STEP_REDUCE || st->kind == STEP_REDUCE_SCATTER ||
                 st->kind == STEP_REDUCE_TO,
         joins = st->kind == STEP_GATHER || st->kind == STEP_ALL_TO_ALL;
    const struct form *f = st->id >= 0 && (folds || joins) ? st->inputs[0] : NULL;
    for (size_t g = 0; f && g < st->n_groups; g++)
        for (size_t i = 1; st->group_live[g] && i < st->groups[g].n; i++)
            for (int d = 0; d < f->item->rank; d++) {
                int64_t rank = st->groups[g].devices[i];
                if ((joins && d == st->axis) || same_size(f, d, st->groups[g].devices[0], rank) ||
                    s->status != TSR_OK)
                    continue;
                struct place at = PLACE_NONE;
                at.rank = rank;
                at.value = f->item->name;
                tsr__diag(s->plan->session, DIAG_partition_disagrees, &at,
                          "please report this with the model",
                          "rank %lld: the members of %s %lld have parts of different sizes",
                          (long long)rank, tsr__step_op(st), (long long)st->id);
                s->status = TSR_BUG;
            }
}

tsr_status tsr__sizes_agree(struct plan *p)
{
    struct sizes s = {p, TSR_OK};
    tsr__steps_visit(&p->steps, check_sizes, &s);
    return s.status;
}

// ---- the graphs --------------------------------------------------------------------------------

// One group of one communication, as its lowest rank has it.
struct meeting {
    const tsr_node *node;
    size_t seen;
    struct meeting *next;
};

static tsr_status disagree(struct part *t, const tsr_node *n, const char *what)
{
    struct place at = n ? tsr__place_node(n) : PLACE_NONE;
    at.rank = t->rank;
    tsr__diag(t->plan->session, DIAG_partition_disagrees, &at, "please report this with the model",
              "rank %lld: %s", (long long)t->rank, what);
    return TSR_BUG;
}

static size_t group_of(const tsr_node *n, const int64_t **ranks)
{
    return tsr_attr_ints(tsr_node_find_attr(n, "group"), ranks);
}

static bool attr_equal(const tsr_attr *a, const tsr_attr *b)
{
    if (!a || !b || tsr_attr_kind_of(a) != tsr_attr_kind_of(b))
        return !a && !b;
    const int64_t *x, *y;
    size_t n = tsr_attr_ints(a, &x), n_text, m_text;
    const char *s = tsr_attr_string(a, &n_text), *r = tsr_attr_string(b, &m_text);
    if (s || r)
        return s && r && n_text == m_text && memcmp(s, r, n_text) == 0;
    return tsr_attr_int(a, 0) == tsr_attr_int(b, 0) && n == tsr_attr_ints(b, &y) &&
           (n == 0 || memcmp(x, y, n * sizeof(*x)) == 0);
}

// A message has a sender and a receiver.
static bool two_ends(const tsr_node *a, const tsr_node *b)
{
    static const char *const ends[][2] = {{TSR_OP_SEND, TSR_OP_RECV},
                                          {TSR_OP_SEND "F16", TSR_OP_RECV "F16"}};
    struct str x = tsr__node_op_str(a), y = tsr__node_op_str(b);
    for (size_t i = 0; i < TSR_COUNT(ends); i++)
        if ((str_is(x, ends[i][0]) && str_is(y, ends[i][1])) ||
            (str_is(x, ends[i][1]) && str_is(y, ends[i][0])))
            return true;
    return false;
}

static bool node_equal(const tsr_node *a, const tsr_node *b)
{
    static const char *const names[] = {"plan", "id",   "group",  "elem_type", "reduce",
                                        "axis", "unit", "source", "target",    "split_axis",
                                        "root", "from", "to",     "axes",      "windows"};
    if (!str_eq(tsr__node_op_str(a), tsr__node_op_str(b)) && !two_ends(a, b))
        return false;
    for (size_t i = 0; i < TSR_COUNT(names); i++)
        if (!attr_equal(tsr_node_find_attr(a, names[i]), tsr_node_find_attr(b, names[i])))
            return false;
    return true;
}

// Both stand in the same body of the same node, or in the main graph.
static bool same_place(const tsr_node *a, const tsr_node *b)
{
    const tsr_graph *g = tsr_node_graph(a), *h = tsr_node_graph(b);
    const tsr_node *x = tsr_graph_owner(g), *y = tsr_graph_owner(h);
    if (!x || !y)
        return !x && !y;
    struct control c, d;
    if (!str_eq(tsr__node_str(x), tsr__node_str(y)) ||
        !str_eq(tsr__node_op_str(x), tsr__node_op_str(y)) || !tsr__control_of(x, &c) ||
        !tsr__control_of(y, &d))
        return false;
    return (c.bodies[0] == g) == (d.bodies[0] == h) && same_place(x, y);
}

static tsr_status meet(struct part *t, const tsr_node *n, struct meeting **table)
{
    struct plan *p = t->plan;
    const int64_t *ranks, *others;
    size_t count = group_of(n, &ranks);
    int64_t id = tsr_attr_int(tsr_node_find_attr(n, "id"), -1);
    bool member = false;
    for (size_t i = 0; i < count; i++)
        member |= ranks[i] == t->rank;
    if (!member || id < 0 || id >= p->n_comms)
        return disagree(t, n, "a communication that this rank is no part of");
    for (struct meeting *m = table[id]; m; m = m->next) {
        if (group_of(m->node, &others) == 0 || others[0] != ranks[0])
            continue;
        m->seen++;
        return node_equal(m->node, n) && same_place(m->node, n)
                   ? TSR_OK
                   : disagree(t, n, "the members of a communication differ about it");
    }
    if (ranks[0] != t->rank)
        return disagree(t, n, "a communication that its lowest rank does not have");
    struct meeting *m = ARENA_NEW(p->arena, struct meeting);
    if (!m)
        return TSR_NOMEM;
    *m = (struct meeting){n, 1, table[id]};
    table[id] = m;
    return TSR_OK;
}

struct walk {
    struct part *part;
    struct meeting **table;
    int64_t before;         // number of the last communication
    const tsr_value *token; // the last one
};

static tsr_status walk_graph(struct walk *w, const tsr_graph *g);

static tsr_status walk_comm(struct walk *w, const tsr_node *n)
{
    int64_t id = tsr_attr_int(tsr_node_find_attr(n, "id"), -1);
    size_t last = tsr_node_input_count(n);
    if (id <= w->before)
        return disagree(w->part, n, "communications do not ascend");
    if (last == 0 || tsr_node_input(n, last - 1) != w->token)
        return disagree(w->part, n, "a communication is not on the chain of tokens");
    w->before = id;
    w->token = tsr_node_output(n, 1);
    return meet(w->part, n, w->table);
}

static bool communicates(const tsr_graph *g)
{
    for (const tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n)) {
        if (str_is(tsr__node_domain_str(n), COMM_DOMAIN))
            return true;
        for (size_t i = 0; i < tsr_node_attr_count(n); i++)
            for (size_t k = 0; k < tsr_attr_graph_count(tsr_node_attr(n, i)); k++)
                if (communicates(tsr_attr_graph(tsr_node_attr(n, i), k)))
                    return true;
    }
    return false;
}

static const tsr_value *copied(const tsr_value *v)
{
    const tsr_node *n = v ? tsr_value_producer(v) : NULL; // a copy: an output is made in its graph
    return n && !str_is(tsr__node_domain_str(n), COMM_DOMAIN) && tsr_node_input_count(n) == 1
               ? tsr_node_input(n, 0)
               : v;
}

// A node whose bodies communicate: the token goes through each of them.
static tsr_status walk_bodies(struct walk *w, const tsr_node *n)
{
    struct control c = {0};
    bool any = false;
    if (!tsr__control_of(n, &c))
        return TSR_OK;
    for (int k = 0; k < c.n_bodies; k++)
        any |= communicates(c.bodies[k]);
    if (!any)
        return TSR_OK;
    int at = (c.loops ? c.n_states : c.n_results) - 1;
    const tsr_value *outside = w->token;
    if (at < 0 || (c.loops && tsr_node_input(n, (size_t)(c.n_steer + at)) != outside))
        return disagree(w->part, n, "a body communicates off the chain of tokens");
    for (int k = 0; k < c.n_bodies; k++) {
        w->token = c.loops ? tsr_graph_input(c.bodies[k], (size_t)(c.n_numbers + at)) : outside;
        tsr_status st = walk_graph(w, c.bodies[k]);
        if (st != TSR_OK)
            return st;
        const tsr_value *end = tsr_graph_output(c.bodies[k], (size_t)(c.condition + at));
        if (end != w->token && copied(end) != w->token)
            return disagree(w->part, n, "a body does not give the last token");
    }
    w->token = tsr_node_output(n, (size_t)at);
    return TSR_OK;
}

static bool has_bodies(const tsr_node *n)
{
    for (size_t i = 0; i < tsr_node_attr_count(n); i++)
        if (tsr_attr_graph_count(tsr_node_attr(n, i)))
            return true;
    return false;
}

static tsr_status walk_graph(struct walk *w, const tsr_graph *g)
{
    tsr_status st = TSR_OK;
    for (tsr_node *n = tsr_graph_first(g); n && st == TSR_OK; n = tsr_node_next(n)) {
        if (str_is(tsr__node_domain_str(n), COMM_DOMAIN))
            st = walk_comm(w, n);
        else if (has_bodies(n))
            st = walk_bodies(w, n);
    }
    return st;
}

static tsr_status walk(struct part *t, struct meeting **table)
{
    struct walk w = {.part = t, .table = table, .before = -1};
    w.token = tsr_graph_value(t->graph, TOKEN_NAME);
    return walk_graph(&w, t->graph);
}

tsr_status tsr__parts_agree(struct plan *p, struct part *parts)
{
    struct meeting **table = ARENA_ARRAY(p->arena, struct meeting *, (size_t)p->n_comms + 1);
    if (!table)
        return TSR_NOMEM;
    for (int64_t r = 0; r < p->n_ranks; r++) {
        tsr_status st = walk(&parts[r], table);
        if (st != TSR_OK)
            return st;
    }
    for (int64_t id = 0; id < p->n_comms; id++)
        for (struct meeting *m = table[id]; m; m = m->next) {
            const int64_t *ranks;
            if (m->seen != group_of(m->node, &ranks))
                return disagree(&parts[ranks[0]], m->node, "a member of a communication lacks it");
        }
    return TSR_OK;
}
