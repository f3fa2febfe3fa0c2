// SPDX-License-Identifier: Apache-2.0
// prove.c - the proof before publishing: the draft's communications fold and join parts of the same sizes; and the graphs
// that were built, read again. On every rank the communications ascend in number and hang on one chain of tokens; the
// members of a group have the same operator, type, group and attributes, in the same body of the same node; and all of
// them are there. Loops carry the token as their last state, both branches of an If hand it out last. So no run of the
// parts can wait for a partner that never comes, as long as all take the same turns.
//
//     rank 0: token -> AllReduce 0 -> t0 -> Send 1 (to 2)  -> t1 -> AllGather 2 -> token.out
//     rank 1: token -> AllReduce 0 -> t0                         -> AllGather 2 -> token.out
//     rank 2: token                      -> Recv 1 (of 0) -> t1                 -> token.out
// holds: ranks may leave numbers out, but none goes back, and {0,1}, {0,2}, {0,1} each meet. If rank 1 had AllGather 2
// before AllReduce 0, both ranks would wait for ever; it is refused here, because its numbers do not ascend.
#include "internal.h"

// ---- sizes -------------------------------------------------------------------------------------

// Of sizes that are known at run time alone, the same part of the same cut is as large on both.
static bool same_size(const struct form *form, int axis, int64_t a, int64_t b)
{
    int64_t x[TILE_MAX_FACTORS], y[TILE_MAX_FACTORS], size = form->item->dims[axis].value;
    if (!tsr__device_coords(form->layout, a, axis, x) ||
        !tsr__device_coords(form->layout, b, axis, y))
        return false;
    struct local_size m = tsr__local_size(&form->layout->dims[axis], x),
                      n = tsr__local_size(&form->layout->dims[axis], y);
    if (size >= 0)
        return tsr__local_size_of(&m, size) == tsr__local_size_of(&n, size);
    bool same_part = m.part.first == n.part.first && m.part.stop == n.part.stop;
    return m.unit == n.unit && m.scale == n.scale && same_part && m.part.of == n.part.of;
}

// What tsr__steps_visit hands through.
struct sizes {
    struct draft *draft;
    tsr_status status;
};

// What the two ranks give is as large on both, but for the axis along which it is joined: AllGather along axis 1 takes
// [4,3] and [4,2], and not [4,3] and [3,3].
static bool fit_together(const struct step *st, int64_t a, int64_t b)
{
    const struct form *form = st->inputs[0];
    for (int axis = 0; axis < form->item->rank; axis++) {
        bool joined = comm_has(st->kind, TRAIT_JOINS) && axis == st->axis;
        if (!joined && !same_size(form, axis, a, b))
            return false;
    }
    return true;
}

// A bug of ours, whatever the model: planning should not have joined them.
static void refuse_sizes(struct sizes *sizes, const struct step *st, int64_t rank)
{
    struct place at = PLACE_NONE;
    at.rank = rank;
    at.value = st->inputs[0]->item->name;
    tsr__diag(sizes->draft->session, DIAG_partition_disagrees, &at,
              "please report this with the model",
              "rank %lld: the members of %s %lld have parts of different sizes", (long long)rank,
              tsr__step_op(st), (long long)st->id);
    sizes->status = TSR_BUG;
}

// Each member of a group against the first. One finding is enough: the partition is refused.
static void check_sizes(void *data, const struct step *st)
{
    struct sizes *sizes = data;
    bool folds = comm_has(st->kind, TRAIT_FOLDS), joins = comm_has(st->kind, TRAIT_JOINS);
    if (st->id < 0 || (!folds && !joins) || sizes->status != TSR_OK)
        return;
    for (size_t g = 0; g < st->n_groups; g++) {
        const struct device_group *group = &st->groups[g];
        if (!st->group_live[g])
            continue;
        for (size_t i = 1; i < group->n; i++) {
            if (fit_together(st, group->devices[0], group->devices[i]))
                continue;
            refuse_sizes(sizes, st, group->devices[i]);
            return;
        }
    }
}

// No engine loads a collective without an element type. Planning refuses such values
// (steps/convert.c).
static void check_type(void *data, const struct step *st)
{
    struct sizes *sizes = data;
    if (st->id < 0 || sizes->status != TSR_OK || tsr__step_type(st) != TSR_UNDEFINED)
        return;
    struct place at = PLACE_NONE;
    at.value = st->outputs[0]->item->name;
    tsr__diag(sizes->draft->session, DIAG_partition_disagrees, &at,
              "please report this with the model", "%s %lld has no element type", tsr__step_op(st),
              (long long)st->id);
    sizes->status = TSR_BUG;
}

// Before anything is built: what is wrong here would be wrong in every graph.
tsr_status tsr__sizes_agree(struct draft *draft)
{
    struct sizes sizes = {draft, TSR_OK};
    tsr__steps_visit(&draft->steps, check_sizes, &sizes);
    tsr__steps_visit(&draft->steps, check_type, &sizes);
    return sizes.status;
}

// ---- the graphs --------------------------------------------------------------------------------

// One group of one communication, as its lowest rank has it.
// `seen` counts the members that were found with the same node; in the end it must be all of the group.
struct meeting {
    const tsr_node *node;
    size_t seen;
    struct meeting *next;
};

// In graphs that we made it is our bug; in files that others have changed it is theirs.
static tsr_status disagree(struct part *part, const tsr_node *node, const char *what)
{
    struct place at = node ? tsr__place_node(node) : PLACE_NONE;
    at.rank = part->rank;
    if (part->draft->resealing) {
        at.file = str_of(part->draft->resealing->devices[part->rank].file);
        tsr__diag(part->draft->session, DIAG_partition_reseal, &at, RESEAL_HINT, "rank %lld: %s",
                  (long long)part->rank, what);
        return TSR_INVALID;
    }
    tsr__diag(part->draft->session, DIAG_partition_disagrees, &at,
              "please report this with the model", "rank %lld: %s", (long long)part->rank, what);
    return TSR_BUG;
}

// The ranks that take part, as the node has them.
static size_t group_of(const tsr_node *node, const int64_t **ranks)
{
    return tsr_attr_ints(tsr_node_find_attr(node, "group"), ranks);
}

// Both lack it, or both have it with the same kind and value.
static bool attr_equal(const tsr_attr *attr, const tsr_attr *b)
{
    if (!attr || !b || tsr_attr_kind_of(attr) != tsr_attr_kind_of(b))
        return !attr && !b;
    const int64_t *x, *y;
    size_t n = tsr_attr_ints(attr, &x), n_text, m_text;
    const char *s = tsr_attr_string(attr, &n_text), *r = tsr_attr_string(b, &m_text);
    if (s || r)
        return s && r && n_text == m_text && memcmp(s, r, n_text) == 0;
    return tsr_attr_int(attr, 0) == tsr_attr_int(b, 0) && n == tsr_attr_ints(b, &y) &&
           (n == 0 || memcmp(x, y, n * sizeof(*x)) == 0);
}

// The two ends of one collective and element type: a SendF16 and a RecvF16.
static bool two_ends(struct str a, struct str b)
{
    enum comm_kind kind = tsr__collective_find(a);
    return kind != COMM_KIND_COUNT && kind == tsr__collective_find(b) &&
           tsr__collective_is_half(a) == tsr__collective_is_half(b);
}

static bool same_attribute(const tsr_node *a, const tsr_node *b, const char *name)
{
    return attr_equal(tsr_node_find_attr(a, name), tsr_node_find_attr(b, name));
}

// All that the members of a communication must say alike. The two ends of a message may have different operators.
static bool node_equal(const tsr_node *a, const tsr_node *b)
{
    static const char *const all_have[] = {"plan", "id", "group", "elem_type"};
    struct str op = tsr__node_op_str(a), other = tsr__node_op_str(b);
    if (!str_eq(op, other) && !two_ends(op, other))
        return false;
    for (size_t i = 0; i < TSR_COUNT(all_have); i++)
        if (!same_attribute(a, b, all_have[i]))
            return false;
    for (int k = 0; k < ATTRIBUTE_COUNT; k++)
        if (!same_attribute(a, b, tsr__attribute_name((enum comm_attribute)k)))
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
    struct control control, d;
    if (!str_eq(tsr__node_str(x), tsr__node_str(y)) ||
        !str_eq(tsr__node_op_str(x), tsr__node_op_str(y)) || !tsr__control_of(x, &control) ||
        !tsr__control_of(y, &d))
        return false;
    return (control.bodies[0] == g) == (d.bodies[0] == h) && same_place(x, y);
}

// Of a file that others have changed: the communication is the one that the manifest has under this number.
static bool as_resealed(const struct draft *p, const tsr_node *node, int64_t id)
{
    const struct manifest_collective *collective = &p->resealing->collectives[id];
    const int64_t *ranks;
    size_t count = group_of(node, &ranks), fingerprint_bytes = 0;
    int64_t type = tsr_attr_int(tsr_node_find_attr(node, "elem_type"), 0);
    const tsr_attr *fingerprint = tsr_node_find_attr(node, "plan");
    const char *text = fingerprint ? tsr_attr_string(fingerprint, &fingerprint_bytes) : NULL;
    if (!text || !str_is((struct str){text, fingerprint_bytes}, p->resealing->plan) ||
        !str_is(tsr__collective_plain(tsr__node_op_str(node)), collective->op) ||
        strcmp(tsr_dtype_name((tsr_dtype)type), collective->type) != 0)
        return false;
    for (size_t group = 0; group < collective->n_groups; group++)
        if (collective->groups[group].n == count &&
            memcmp(collective->groups[group].ranks, ranks, count * sizeof(*ranks)) == 0)
            return true;
    return false;
}

// Ranks are walked in ascending order, so the lowest of a group comes first and opens the meeting; the others must
// find it and bring the same node. Groups of one communication share its number; their lowest ranks tell them
// apart.
static tsr_status meet(struct part *part, const tsr_node *node, struct meeting **table)
{
    struct draft *draft = part->draft;
    const int64_t *ranks, *others;
    size_t count = group_of(node, &ranks);
    int64_t id = tsr_attr_int(tsr_node_find_attr(node, "id"), -1);
    bool member = false;
    for (size_t i = 0; i < count; i++)
        member |= ranks[i] == part->rank;
    if (!member || id < 0 || id >= draft->n_comms)
        return disagree(part, node, "a communication that this rank is no part of");
    if (draft->resealing && !as_resealed(draft, node, id))
        return disagree(part, node, "a communication is not the one that was written");
    for (struct meeting *meeting = table[id]; meeting; meeting = meeting->next) {
        if (group_of(meeting->node, &others) == 0 || others[0] != ranks[0])
            continue;
        meeting->seen++;
        if (node_equal(meeting->node, node) && same_place(meeting->node, node))
            return TSR_OK;
        return disagree(part, node, "the members of a communication differ about it");
    }
    if (ranks[0] != part->rank)
        return disagree(part, node, "a communication that its lowest rank does not have");
    struct meeting *meeting = ARENA_NEW(draft->arena, struct meeting);
    if (!meeting)
        return TSR_NOMEM;
    *meeting = (struct meeting){node, 1, table[id]};
    table[id] = meeting;
    return TSR_OK;
}

struct walk {
    struct part *part;
    struct meeting **table;
    int64_t before;         // number of the last communication
    const tsr_value *token; // the last one
};

static tsr_status walk_graph(struct walk *walk, const tsr_graph *graph);

// The next communication of a rank: it is behind the last one, by its number and by its token.
static tsr_status walk_comm(struct walk *w, const tsr_node *node)
{
    int64_t id = tsr_attr_int(tsr_node_find_attr(node, "id"), -1);
    size_t last = tsr_node_input_count(node);
    if (id <= w->before)
        return disagree(w->part, node, "communications do not ascend");
    if (last == 0 || tsr_node_input(node, last - 1) != w->token)
        return disagree(w->part, node, "a communication is not on the chain of tokens");
    w->before = id;
    w->token = tsr_node_output(node, 1);
    return meet(w->part, node, w->table);
}

// Some communication stands in the graph, or in a body of one of its nodes.
static bool communicates(const tsr_graph *graph)
{
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        if (str_is(tsr__node_domain_str(node), COMM_DOMAIN))
            return true;
        for (size_t i = 0; i < tsr_node_attr_count(node); i++)
            for (size_t k = 0; k < tsr_attr_graph_count(tsr_node_attr(node, i)); k++)
                if (communicates(tsr_attr_graph(tsr_node_attr(node, i), k)))
                    return true;
    }
    return false;
}

// What a node with one input copies; the value itself, if it is no copy.
static const tsr_value *copied(const tsr_value *value)
{
    const tsr_node *node =
        value ? tsr_value_producer(value) : NULL; // a copy: an output is made in its graph
    if (node && !str_is(tsr__node_domain_str(node), COMM_DOMAIN) && tsr_node_input_count(node) == 1)
        return tsr_node_input(node, 0);
    return value;
}

// A node whose bodies communicate: the token goes through each of them.
static tsr_status walk_bodies(struct walk *w, const tsr_node *node)
{
    struct control control = {0};
    bool any = false;
    if (!tsr__control_of(node, &control))
        return TSR_OK;
    for (int k = 0; k < control.n_bodies; k++)
        any |= communicates(control.bodies[k]);
    if (!any)
        return TSR_OK;
    int at = control.n_results - 1; // the last, which is the token's place
    if (control.loops)
        at = control.n_states - 1;
    const tsr_value *outside = w->token;
    if (at < 0 ||
        (control.loops && tsr_node_input(node, (size_t)(control.n_steer + at)) != outside))
        return disagree(w->part, node, "a body communicates off the chain of tokens");
    for (int k = 0; k < control.n_bodies; k++) {
        if (control.loops)
            w->token = tsr_graph_input(control.bodies[k], (size_t)(control.n_numbers + at));
        else
            w->token = outside;
        tsr_status st = walk_graph(w, control.bodies[k]);
        if (st != TSR_OK)
            return st;
        const tsr_value *end =
            tsr_graph_output(control.bodies[k], (size_t)(control.condition + at));
        if (end != w->token && copied(end) != w->token)
            return disagree(w->part, node, "a body does not give the last token");
    }
    w->token = tsr_node_output(node, (size_t)at);
    return TSR_OK;
}

static bool has_bodies(const tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_attr_count(node); i++)
        if (tsr_attr_graph_count(tsr_node_attr(node, i)))
            return true;
    return false;
}

// In the order of the graph, bodies where their node stands.
static tsr_status walk_graph(struct walk *w, const tsr_graph *graph)
{
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        tsr_status st = TSR_OK;
        if (str_is(tsr__node_domain_str(node), COMM_DOMAIN))
            st = walk_comm(w, node);
        else if (has_bodies(node))
            st = walk_bodies(w, node);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// One rank. Of files that others have changed, the output must still be the last token: engines run only what outputs need.
static tsr_status walk(struct part *part, struct meeting **table)
{
    struct walk w = {.part = part, .table = table, .before = -1};
    w.token = tsr_graph_value(part->graph, TOKEN_NAME);
    tsr_status st = walk_graph(&w, part->graph);
    if (st != TSR_OK || !part->draft->resealing || w.before < 0)
        return st;
    const tsr_value *end = tsr_graph_value(part->graph, TOKEN_OUT);
    if (end != w.token && copied(end) != w.token)
        return disagree(part, NULL, "the output " TOKEN_OUT " is not the last token");
    return TSR_OK;
}

// Every communication of the manifest is in the files.
static tsr_status none_lost(struct draft *draft, struct part *parts, struct meeting **table)
{
    for (size_t id = 0; id < draft->resealing->n_collectives; id++) {
        const struct manifest_collective *collective = &draft->resealing->collectives[id];
        size_t met = 0;
        for (struct meeting *meeting = table[id]; meeting; meeting = meeting->next)
            met++;
        if (met == collective->n_groups)
            continue;
        const char *what =
            tsr__arena_printf(draft->arena, "%s %zu, which was written, is not there",
                              collective->op, id)
                .p;
        if (!what)
            return TSR_NOMEM;
        struct part *first = &parts[0];
        if (collective->n_groups)
            first = &parts[collective->groups[0].ranks[0]];
        return disagree(first, NULL, what);
    }
    return TSR_OK;
}

// Rank by rank into one table of communications; then each must have been met by as many as its group has.
tsr_status tsr__parts_agree(struct draft *draft, struct part *parts)
{
    struct meeting **table =
        ARENA_ARRAY(draft->arena, struct meeting *, (size_t)draft->n_comms + 1);
    if (!table)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < draft->n_ranks; rank++) {
        tsr_status st = walk(&parts[rank], table);
        if (st != TSR_OK)
            return st;
    }
    for (int64_t id = 0; id < draft->n_comms; id++)
        for (struct meeting *meeting = table[id]; meeting; meeting = meeting->next) {
            const int64_t *ranks;
            if (meeting->seen != group_of(meeting->node, &ranks))
                return disagree(&parts[ranks[0]], meeting->node,
                                "a member of a communication lacks it");
        }
    if (draft->resealing)
        return none_lost(draft, parts, table);
    return TSR_OK;
}
