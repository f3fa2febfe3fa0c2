// SPDX-License-Identifier: Apache-2.0
// prove.c - proves before anything is written that the ranks agree on their communication.
//
// In the steps: shards that are reduced or concatenated have matching sizes. In the graphs: on
// every rank the communications ascend by number and form one chain of tokens. All members of a
// group have the communication, with the same operator, type, group and attributes, in the same
// body of the same node. Loops carry the token as their last state, and both branches of an If
// return it last. So no rank waits for a partner that never comes, provided that all run the same
// number of iterations.
//
// Example (correct):
//     rank 0: token -> AllReduce 0 -> t0 -> Send 1 (to 2)   -> t1 -> AllGather 2 -> token.out
//     rank 1: token -> AllReduce 0 -> t0                          -> AllGather 2 -> token.out
//     rank 2: token                      -> Recv 1 (from 0) -> t1                -> token.out
// A rank may lack some numbers, but those that it has must ascend. All members of the groups {0,1},
// {0,2} and {0,1} have their communication. If rank 1 had AllGather 2 before AllReduce 0, ranks 0
// and 1 would deadlock. The check finds this because the numbers of rank 1 do not ascend.
#include "internal.h"

// ---- sizes -------------------------------------------------------------------------------------

// True if shards of the form on devices a and b have the same size along `axis`. If the full size
// is unknown, both must be the same part of the axis.
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

// Data for the callback of tsr__steps_visit.
struct sizes {
    struct draft *draft;
    tsr_status status;
};

// True if the shards of devices a and b have equal sizes, except along the axis along which the
// step concatenates them. Example: AllGather along axis 1 accepts [4,3] and [4,2], but not [4,3]
// and [3,3].
static bool sizes_match(const struct step *st, int64_t a, int64_t b)
{
    const struct form *form = st->inputs[0];
    for (int axis = 0; axis < form->item->rank; axis++) {
        bool joined = comm_has(st->kind, TRAIT_JOINS) && axis == st->axis;
        if (!joined && !same_size(form, axis, a, b))
            return false;
    }
    return true;
}

static void refuse_sizes(struct sizes *sizes, const struct step *st, int64_t rank)
{
    struct place at = PLACE_NONE;
    at.rank = rank;
    at.value = st->inputs[0]->item->name;
    tsr__diag(sizes->draft->session, DIAG_partition_disagrees, &at,
              "please report this with the model",
              "rank %lld: the ranks of %s %lld have shards of different sizes", (long long)rank,
              tsr__step_op(st), (long long)st->id);
    sizes->status = TSR_BUG;
}

// Checks a step that reduces or concatenates: in each group, the shard of every member must match
// the shard of the first member.
static void check_sizes(void *data, const struct step *st)
{
    struct sizes *sizes = data;
    bool folds = comm_has(st->kind, TRAIT_REDUCES), joins = comm_has(st->kind, TRAIT_JOINS);
    if (st->id < 0 || (!folds && !joins) || sizes->status != TSR_OK)
        return;
    for (size_t g = 0; g < st->n_groups; g++) {
        const struct device_group *group = &st->groups[g];
        if (!st->group_live[g])
            continue;
        for (size_t i = 1; i < group->n; i++) {
            if (sizes_match(st, group->devices[0], group->devices[i]))
                continue;
            refuse_sizes(sizes, st, group->devices[i]);
            return;
        }
    }
}

// Checks that a collective has an element type; engines do not load it otherwise. Planning already
// rejects such values (steps/convert.c).
static void check_type(void *data, const struct step *st)
{
    struct sizes *sizes = data;
    if (st->id < 0 || sizes->status != TSR_OK || tsr__step_type(st) != TSR_UNDEFINED)
        return;
    tsr__diag(sizes->draft->session, DIAG_partition_disagrees,
              &PLACE(.value = st->outputs[0]->item->name), "please report this with the model",
              "%s %lld has no element type", tsr__step_op(st), (long long)st->id);
    sizes->status = TSR_BUG;
}

tsr_status tsr__sizes_agree(struct draft *draft)
{
    struct sizes sizes = {draft, TSR_OK};
    tsr__steps_visit(&draft->steps, check_sizes, &sizes);
    tsr__steps_visit(&draft->steps, check_type, &sizes);
    return sizes.status;
}

// ---- the graphs --------------------------------------------------------------------------------

// One group of one communication, as in the file of its lowest rank. `seen` counts the members that
// have the same node; at the end it must be the size of the group.
struct meeting {
    const tsr_node *node;
    size_t seen;
    struct meeting *next;
};

// Reports a difference: an internal error in a graph that Tessera built, the user's error in a file
// that was changed.
static tsr_status report_difference(struct part *part, const tsr_node *node, const char *what)
{
    struct place at = node ? tsr__place_node(node) : PLACE_NONE;
    at.rank = part->rank;
    if (part->draft->resealing) {
        at.file = str_of(part->draft->resealing->devices[part->rank].file);
        return tsr__fail(part->draft->session, TSR_INVALID, DIAG_partition_reseal, &at, RESEAL_HINT,
                         "rank %lld: %s", (long long)part->rank, what);
    }
    return tsr__fail(part->draft->session, TSR_BUG, DIAG_partition_disagrees, &at,
                     "please report this with the model", "rank %lld: %s", (long long)part->rank,
                     what);
}

static size_t group_of(const tsr_node *node, const int64_t **ranks)
{
    return tsr_attr_ints(tsr_node_find_attr(node, "group"), ranks);
}

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

// True if a and b are names of the same communication, such as Send and Recv. Both or neither must
// be for float16 (suffix F16).
static bool is_send_recv_pair(struct str a, struct str b)
{
    enum comm_kind kind = tsr__collective_find(a);
    return kind != COMM_KIND_COUNT && kind == tsr__collective_find(b) &&
           tsr__collective_is_half(a) == tsr__collective_is_half(b);
}

static bool same_attribute(const tsr_node *a, const tsr_node *b, const char *name)
{
    return attr_equal(tsr_node_find_attr(a, name), tsr_node_find_attr(b, name));
}

// True if two communication nodes have the same operator, or are Send and Recv, and the same
// attributes.
static bool node_equal(const tsr_node *a, const tsr_node *b)
{
    static const char *const all_have[] = {"plan", "id", "group", "elem_type"};
    struct str op = tsr__node_op_str(a), other = tsr__node_op_str(b);
    if (!str_eq(op, other) && !is_send_recv_pair(op, other))
        return false;
    for (size_t i = 0; i < TSR_COUNT(all_have); i++)
        if (!same_attribute(a, b, all_have[i]))
            return false;
    for (int k = 0; k < ATTRIBUTE_COUNT; k++)
        if (!same_attribute(a, b, tsr__attribute_name((enum comm_attribute)k)))
            return false;
    return true;
}

// True if two nodes of different ranks are at the same place. Both are in the main graph, or both
// are in the same body of nodes that have equal names and operators and are at the same place.
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

// True if the node is the communication that the manifest lists under this number. Used for rank
// files that another program changed.
static bool matches_manifest(const struct draft *p, const tsr_node *node, int64_t id)
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

// Checks a communication node of one rank. Ranks are checked in ascending order: the lowest rank of
// a group adds an entry to the table, and the nodes of the other members must match it. Groups of
// one communication have the same number and different lowest ranks.
static tsr_status check_member(struct part *part, const tsr_node *node, struct meeting **table)
{
    struct draft *draft = part->draft;
    const int64_t *ranks, *others;
    size_t count = group_of(node, &ranks);
    int64_t id = tsr_attr_int(tsr_node_find_attr(node, "id"), -1);
    bool member = false;
    for (size_t i = 0; i < count; i++)
        member |= ranks[i] == part->rank;
    if (!member || id < 0 || id >= draft->n_comms)
        return report_difference(part, node,
                                 "a communication whose group does not contain this rank");
    if (draft->resealing && !matches_manifest(draft, node, id))
        return report_difference(part, node, "a communication differs from the manifest");
    for (struct meeting *meeting = table[id]; meeting; meeting = meeting->next) {
        if (group_of(meeting->node, &others) == 0 || others[0] != ranks[0])
            continue;
        meeting->seen++;
        if (node_equal(meeting->node, node) && same_place(meeting->node, node))
            return TSR_OK;
        return report_difference(part, node,
                                 "the ranks of a communication disagree on its attributes");
    }
    if (ranks[0] != part->rank)
        return report_difference(part, node, "a communication is missing on its lowest rank");
    struct meeting *meeting = ARENA_NEW(draft->arena, struct meeting);
    if (!meeting)
        return TSR_NOMEM;
    *meeting = (struct meeting){node, 1, table[id]};
    table[id] = meeting;
    return TSR_OK;
}

struct rank_check {
    struct part *part;
    struct meeting **table;
    int64_t before;         // number of the previous communication
    const tsr_value *token; // output of the previous communication
};

static tsr_status check_graph(struct rank_check *check, const tsr_graph *graph);

// Checks that a communication follows the previous one, both by its number and by its token.
static tsr_status check_comm(struct rank_check *check, const tsr_node *node)
{
    int64_t id = tsr_attr_int(tsr_node_find_attr(node, "id"), -1);
    enum comm_kind kind = tsr__collective_find(tsr__node_op_str(node));
    size_t token = kind == COMM_KIND_COUNT ? SIZE_MAX : comm_token((int)kind);
    if (id <= check->before)
        return report_difference(check->part, node, "communications are not in ascending order");
    if (token >= tsr_node_input_count(node) || tsr_node_input(node, token) != check->token)
        return report_difference(check->part, node,
                                 "a communication is not in the chain of tokens");
    check->before = id;
    check->token = tsr_node_output(node, 1);
    return check_member(check->part, node, check->table);
}

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

// True if `value` is the token or an Identity of it. Another node would not do: engines replace the
// Shape of a token by a constant and drop the communication.
static bool is_token(const tsr_value *value, const tsr_value *token)
{
    const tsr_node *node = value ? tsr_value_producer(value) : NULL;
    return value == token || (node && tsr__node_is_identity(node) &&
                              tsr_node_input_count(node) == 1 && tsr_node_input(node, 0) == token);
}

// If a body of the node communicates, checks that the token passes through each body and through
// the node.
static tsr_status check_bodies(struct rank_check *check, const tsr_node *node)
{
    struct control control = {0};
    bool any = false;
    if (!tsr__control_of(node, &control))
        return TSR_OK;
    for (int k = 0; k < control.n_bodies; k++)
        any |= communicates(control.bodies[k]);
    if (!any)
        return TSR_OK;
    int at = control.n_results - 1; // index of the token
    if (control.loops)
        at = control.n_states - 1;
    const tsr_value *outside = check->token;
    if (at < 0 ||
        (control.loops && tsr_node_input(node, (size_t)(control.n_steer + at)) != outside))
        return report_difference(check->part, node,
                                 "a subgraph communicates outside of the chain of tokens");
    for (int k = 0; k < control.n_bodies; k++) {
        if (control.loops)
            check->token = tsr_graph_input(control.bodies[k], (size_t)(control.n_numbers + at));
        else
            check->token = outside;
        TRY(check_graph(check, control.bodies[k]));
        const tsr_value *end =
            tsr_graph_output(control.bodies[k], (size_t)(control.condition + at));
        if (!is_token(end, check->token))
            return report_difference(check->part, node,
                                     "a subgraph does not return the last token");
    }
    check->token = tsr_node_output(node, (size_t)at);
    return TSR_OK;
}

static tsr_status check_graph(struct rank_check *check, const tsr_graph *graph)
{
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        if (str_is(tsr__node_domain_str(node), COMM_DOMAIN))
            TRY(check_comm(check, node));
        else if (tsr__node_has_graphs(node))
            TRY(check_bodies(check, node));
    }
    return TSR_OK;
}

// Checks the graph of one rank. In a changed file (resealing) that communicates, TOKEN_OUT must
// still be the last token: engines run only nodes that an output needs.
static tsr_status check_rank(struct part *part, struct meeting **table)
{
    struct rank_check check = {.part = part, .table = table, .before = -1};
    check.token = tsr_graph_value(part->graph, TOKEN_NAME);
    tsr_status st = check_graph(&check, part->graph);
    if (st != TSR_OK || !part->draft->resealing || check.before < 0)
        return st;
    const tsr_value *end = tsr_graph_value(part->graph, TOKEN_OUT);
    if (!is_token(end, check.token))
        return report_difference(part, NULL, "the output " TOKEN_OUT " is not the last token");
    return TSR_OK;
}

static tsr_status check_none_lost(struct draft *draft, struct part *parts, struct meeting **table)
{
    for (size_t id = 0; id < draft->resealing->n_collectives; id++) {
        const struct manifest_collective *collective = &draft->resealing->collectives[id];
        size_t met = 0;
        for (struct meeting *meeting = table[id]; meeting; meeting = meeting->next)
            met++;
        if (met == collective->n_groups)
            continue;
        const char *what =
            tsr__arena_printf(draft->arena, "%s %zu of the manifest is missing", collective->op, id)
                .p;
        if (!what)
            return TSR_NOMEM;
        struct part *first = &parts[0];
        if (collective->n_groups)
            first = &parts[collective->groups[0].ranks[0]];
        return report_difference(first, NULL, what);
    }
    return TSR_OK;
}

tsr_status tsr__parts_agree(struct draft *draft, struct part *parts)
{
    struct meeting **table =
        ARENA_ARRAY(draft->arena, struct meeting *, (size_t)draft->n_comms + 1);
    if (!table)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        TRY(check_rank(&parts[rank], table));
    for (int64_t id = 0; id < draft->n_comms; id++)
        for (struct meeting *meeting = table[id]; meeting; meeting = meeting->next) {
            const int64_t *ranks;
            if (meeting->seen != group_of(meeting->node, &ranks))
                return report_difference(&parts[ranks[0]], meeting->node,
                                         "a communication is missing on one of its ranks");
        }
    return draft->resealing ? check_none_lost(draft, parts, table) : TSR_OK;
}
