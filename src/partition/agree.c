// SPDX-License-Identifier: Apache-2.0
// agree.c - the proof before publishing: the graphs that were built, read again. On every rank the
// communications ascend in number and hang on one chain of tokens; the members of a group have the
// same operator, type, group and attributes; and all of them are there. So no run of the parts can
// wait for a partner that never comes.
#include "internal.h"

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
                                        "root", "from", "to"};
    if (!str_eq(tsr__node_op_str(a), tsr__node_op_str(b)) && !two_ends(a, b))
        return false;
    for (size_t i = 0; i < TSR_COUNT(names); i++)
        if (!attr_equal(tsr_node_find_attr(a, names[i]), tsr_node_find_attr(b, names[i])))
            return false;
    return true;
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
        return node_equal(m->node, n)
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

static tsr_status walk(struct part *t, struct meeting **table)
{
    int64_t before = -1;
    const tsr_value *token = tsr_graph_value(t->graph, TOKEN_NAME);
    for (tsr_node *n = tsr_graph_first(t->graph); n; n = tsr_node_next(n)) {
        if (!str_is(tsr__node_domain_str(n), COMM_DOMAIN))
            continue;
        int64_t id = tsr_attr_int(tsr_node_find_attr(n, "id"), -1);
        size_t last = tsr_node_input_count(n);
        if (id <= before)
            return disagree(t, n, "communications do not ascend");
        if (last == 0 || tsr_node_input(n, last - 1) != token)
            return disagree(t, n, "a communication is not on the chain of tokens");
        tsr_status st = meet(t, n, table);
        if (st != TSR_OK)
            return st;
        before = id;
        token = tsr_node_output(n, 1);
    }
    return TSR_OK;
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
