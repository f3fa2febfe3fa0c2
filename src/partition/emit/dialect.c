// SPDX-License-Identifier: Apache-2.0
// dialect.c - communication as ONNX Runtime's own builds with NCCL know it: AllReduce, AllGather and
// AllToAll of com.microsoft, among all ranks, with parts of one size. They have no token. So each of
// them is made to depend on the one before it, by the data where it does so already, else by nothing
// of that one's result put in front of what is given; and a result that nobody reads is an output of
// the file, so that no engine drops it. What they cannot say is found before anything is built, all at
// once.
//
//     a = AllReduce(x), b = AllGather(u), and u is not made of a:
//         an engine may run either first, and two ranks may choose differently
//         u' = Concat(nothing of a, u) is u again, but comes after a: b = AllGather(u')
#include "internal.h"

#define DOMAIN "com.microsoft"

// ---- what they can say -------------------------------------------------------------------------

// A communication that the dialect cannot say, at the node that it is for. All of them are found before the partition ends.
static void refuse(struct draft *draft, const struct step *st, const char *why)
{
    const struct item *it = st->outputs[0]->item;
    const tsr_node *node = item_maker(it);
    struct place at = PLACE_NONE;
    if (st->flow)
        node = st->flow->node;
    if (node)
        at = tsr__place_node(node);
    at.value = it->name;
    at.configuration = str_of(tsr_config_name(draft->flow->config));
    tsr__diag(draft->session, DIAG_partition_dialect, &at,
              "another sharding, or leave --dialect away: Tessera's own operators can do it",
              "%s of '" STR_FMT "': %s", tsr__step_op(st), STR_ARG(it->name), why);
    draft->status = TSR_UNSUPPORTED;
}

// Elements of that axis on a rank; -1: not known, or it has none.
static int64_t size_on(const struct form *form, int axis, int64_t rank)
{
    int64_t coords[TILE_MAX_FACTORS];
    const struct item *it = form->item;
    if (axis >= it->rank || it->dims[axis].value < 0 ||
        !tsr__device_coords(form->layout, rank, axis, coords))
        return -1;
    struct local_size size = tsr__local_size(&form->layout->dims[axis], coords);
    return tsr__local_size_of(&size, it->dims[axis].value);
}

// All ranks have the same number of elements of that axis, and it is known.
static bool even(const struct draft *draft, const struct form *form, int axis)
{
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        if (size_on(form, axis, rank) < 0 || size_on(form, axis, rank) != size_on(form, axis, 0))
            return false;
    return true;
}

// One group of all ranks, in order.
static bool everybody(const struct draft *draft, const struct step *st)
{
    const struct device_group *group = &st->groups[0];
    for (size_t i = 0; i < group->n; i++)
        if (group->devices[i] != (int64_t)i)
            return false;
    return st->n_groups == 1 && (int64_t)group->n == draft->n_ranks;
}

// Sums of floats; what is only moved may also be whole numbers or truths.
static bool type_fits(const struct step *st, tsr_dtype type)
{
    if (type == TSR_FLOAT || type == TSR_FLOAT16 || type == TSR_DOUBLE)
        return true;
    return comm_has(st->kind, TRAIT_JOINS) && (type == TSR_INT64 || type == TSR_BOOL);
}

// NULL: the dialect can say this step. Otherwise the first reason why not, which the finding shows. A gather of
// [4,6] pieces on ranks 0 and 1 is an AllGather there; of [3,6] and [2,6] it is none, since its parts must be
// equal.
static const char *why_not(const struct draft *draft, const struct step *st)
{
    bool reduces = comm_has(st->kind, TRAIT_FOLDS), joins = comm_has(st->kind, TRAIT_JOINS);
    if (!reduces && !joins)
        return DOMAIN " has AllReduce, AllGather and AllToAll only";
    if (!everybody(draft, st))
        return "not all ranks take part, and " DOMAIN " knows no groups";
    if (reduces && st->flow->combine != COMBINE_SUM)
        return DOMAIN "'s AllReduce can only add";
    if (st->outputs[0]->item->rank < 0 || st->outputs[0]->item->rank > TILE_MAX_RANK)
        return "its number of dimensions is not known, or too large";
    if (!type_fits(st, st->outputs[0]->item->dtype))
        return "the operator of " DOMAIN " does not take this element type";
    if (joins && !even(draft, st->inputs[0], st->axis))
        return "the parts have different sizes, or unknown ones";
    if (st->kind == COMM_ALL_TO_ALL && !even(draft, st->outputs[0], st->split_axis))
        return "the parts have different sizes, or unknown ones";
    if (st->kind == COMM_REDUCE_SCATTER && size_on(st->outputs[0], st->axis, 0) < 0)
        return "the size of the axis that is cut is not known";
    return NULL;
}

// A body has no place where the order of communications could be kept by data.
static void check_body(void *data, const struct step *st)
{
    if (st->id >= 0)
        refuse(data, st, "inside a body, where its order cannot be kept without tokens");
}

// Ranks wait for each other in it; a group of one, which copies, stands in no graph.
static bool waits(const struct step *st)
{
    if (st->id < 0)
        return false;
    for (size_t group = 0; group < st->n_groups; group++)
        if (st->group_live[group] && st->groups[group].n > 1)
            return true;
    return comm_has(st->kind, TRAIT_COPIES_WITHIN);
}

// All findings at once, so that a sharding can be mended in one go.
tsr_status tsr__dialect_check(struct draft *draft)
{
    for (size_t i = 0; i < draft->steps.n; i++) {
        const struct step *st = draft->steps.at[i];
        for (int k = 0; k < st->n_bodies; k++)
            tsr__steps_visit(&st->bodies[k].steps, check_body, draft);
        if (!waits(st))
            continue;
        const char *why = why_not(draft, st);
        if (why)
            refuse(draft, st, why);
    }
    return draft->status;
}

// ---- one after the other -----------------------------------------------------------------------

// A node that follows the last communication makes the value.
static bool is_marked(const tsr_value *value, const unsigned char *marked)
{
    if (!value || !tsr_value_producer(value))
        return false;
    return marked[tsr__node_id(tsr_value_producer(value))];
}

// The node reads something that follows the last communication, itself or in its subgraphs.
static bool reads_marked(const tsr_node *node, const unsigned char *marked)
{
    tsr_value **captures;
    size_t n_captures = tsr__node_captures(node, &captures);
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        if (is_marked(tsr_node_input(node, i), marked))
            return true;
    for (size_t i = 0; i < n_captures; i++)
        if (is_marked(captures[i], marked))
            return true;
    return false;
}

// x is made of what the last communication gave. Nodes are made in order: only later ones can be.
static bool follows(struct part *part, const tsr_value *x, bool *out)
{
    const tsr_node *end = tsr_value_producer(x), *last = part->comms.at[part->comms.n - 1];
    size_t n = tsr__model_node_ids(part->model);
    unsigned char *marked = ARENA_ARRAY(part->draft->arena, unsigned char, n + 1);
    *out = false;
    if (!marked)
        return false;
    marked[tsr__node_id(last)] = 1;
    for (const tsr_node *node = tsr_node_next(last); node && end; node = tsr_node_next(node))
        marked[tsr__node_id(node)] = reads_marked(node, marked);
    *out = end && marked[tsr__node_id(end)];
    return true;
}

// x with nothing in front of it: no element of `before`, in the shape of x. Of x [4,6] and before [2,3]:
//     none = Reshape(before, [-1]) [6], Slice [0:0] -> [0], Reshape to [0,6]; Concat(none, x) along axis 0 is x [4,6]
// and cannot be computed before `before` is there.
static tsr_value *behind(struct part *part, tsr_value *x, tsr_value *before, tsr_dtype from,
                         tsr_dtype to)
{
    static const int64_t all[1] = {-1}, zero[1] = {0}, one[1] = {1}, end[1] = {INT64_MAX};
    const struct str any = {0};
    tsr_value *none = tsr__part_node(part, "Reshape", any, 2, before, tsr__part_ints(part, all, 1));
    tsr_value *at = tsr__part_ints(part, zero, 1);
    none = tsr__part_node(part, "Slice", any, 4, none, at, at, at);
    if (from != to)
        none = tsr__with_int(tsr__part_node(part, "Cast", any, 1, none), "to", to);
    tsr_value *shape = tsr__part_node(part, "Shape", any, 1, x);
    shape = tsr__part_node(part, "Slice", any, 4, shape, tsr__part_ints(part, one, 1),
                           tsr__part_ints(part, end, 1), at);
    shape = tsr__with_int(tsr__part_node(part, "Concat", any, 2, at, shape), "axis", 0);
    none = tsr__part_node(part, "Reshape", any, 2, none, shape);
    none = tsr__with_int(none, "allowzero", 1);
    return tsr__with_int(tsr__part_node(part, "Concat", any, 2, none, x), "axis", 0);
}

// Puts x behind the last communication, unless it follows from it already: engines may run independent nodes in any order.
static tsr_status chain(struct part *part, const struct step *st, tsr_value **x)
{
    bool follows_already = true;
    const struct item *it = st->outputs[0]->item;
    if (part->comms.n && !follows(part, *x, &follows_already))
        return TSR_NOMEM;
    if (follows_already)
        return TSR_OK;
    const char *why = NULL;
    if (it->rank < 1)
        why = "a single number, which cannot be put behind the communication before";
    else if (part->draft->opset < 14)
        why = "it cannot be put behind the communication before it in this opset";
    if (why) {
        refuse(part->draft, st, why);
        return TSR_UNSUPPORTED;
    }
    size_t last = part->comms.n - 1;
    *x = behind(part, *x, tsr_node_output(part->comms.at[last], 0), part->items.at[last]->dtype,
                it->dtype);
    return made(*x);
}

// ---- nodes -------------------------------------------------------------------------------------

// Parts of x along one axis, one after the other along another.
static tsr_value *turned(struct part *part, tsr_value *x, int from, int to, struct str out)
{
    struct draft *draft = part->draft;
    size_t n = (size_t)draft->n_ranks;
    if (!x)
        return NULL;
    const char **names = ARENA_ARRAY(draft->arena, const char *, n);
    tsr_value **parts = ARENA_ARRAY(draft->arena, tsr_value *, n);
    for (size_t i = 0; i < n && names; i++)
        names[i] = tsr__part_fresh(part).p;
    if (!out.p)
        out = tsr__part_fresh(part);
    if (draft->arena->failed)
        return NULL;
    tsr_node *split = tsr_graph_add_node(part->graph, "", "Split", names[0], &x, 1, names, n);
    if (!split || tsr_node_set_int(split, "axis", from) != TSR_OK ||
        (draft->opset >= 18 && tsr_node_set_int(split, "num_outputs", (int64_t)n) != TSR_OK))
        return NULL;
    for (size_t i = 0; i < n; i++)
        parts[i] = tsr_node_output(split, i);
    tsr_node *join = tsr_graph_add_node(part->graph, "", "Concat", out.p, parts, n, &out.p, 1);
    if (join && tsr_node_set_int(join, "axis", to) == TSR_OK)
        return tsr_node_output(join, 0);
    return NULL;
}

// The node itself, and a note of it and of what it gives, for the chain and for the proof.
static tsr_value *comm_node(struct part *part, const struct step *st, const char *op, tsr_value *x,
                            struct str out)
{
    struct draft *draft = part->draft;
    struct str label = tsr__arena_printf(draft->arena, "%s_%lld", op, (long long)st->id);
    if (!out.p)
        out = tsr__part_fresh(part);
    if (draft->arena->failed || !x)
        return NULL;
    tsr_node *node = tsr_graph_add_node(part->graph, DOMAIN, op, label.p, &x, 1, &out.p, 1);
    bool sized = comm_has(st->kind, TRAIT_JOINS);
    if (!node || (sized && tsr_node_set_int(node, "group_size", draft->n_ranks) != TSR_OK) ||
        (st->kind == COMM_ALL_GATHER && tsr_node_set_int(node, "axis", st->axis) != TSR_OK))
        return NULL;
    tsr_node **slot = vec_push(draft->arena, &part->comms);
    const struct item **item = vec_push(draft->arena, &part->items);
    if (!slot || !item)
        return NULL;
    *slot = node;
    *item = st->outputs[0]->item;
    return tsr_node_output(node, 0);
}

// Of a sum that all have, the part that this rank wants.
static tsr_value *own_part(struct part *part, const struct step *st, tsr_value *x, struct str out)
{
    int64_t start = 0, stop = size_on(st->outputs[0], st->axis, part->rank), axis = st->axis;
    for (int64_t rank = 0; rank < part->rank; rank++)
        start += size_on(st->outputs[0], st->axis, rank);
    stop += start;
    return tsr__part_node(part, "Slice", out, 4, x, tsr__part_ints(part, &start, 1),
                          tsr__part_ints(part, &stop, 1), tsr__part_ints(part, &axis, 1));
}

// The dialect's AllToAll splits and joins along axis 0 only, so other axes are brought there and back.
static tsr_value *emit_one(struct part *part, const struct step *st, tsr_value *x, struct str out)
{
    const struct str any = {0};
    switch (st->kind) {
    case COMM_ALL_GATHER:
        return comm_node(part, st, "AllGather", x, out);
    case COMM_ALL_TO_ALL:
        if (st->split_axis != 0)
            x = turned(part, x, st->split_axis, 0, any);
        if (st->axis == 0)
            return comm_node(part, st, "AllToAll", x, out);
        x = comm_node(part, st, "AllToAll", x, any);
        return turned(part, x, 0, st->axis, out);
    case COMM_REDUCE_SCATTER:
        x = comm_node(part, st, "AllReduce", x, any);
        return own_part(part, st, x, out);
    default:
        return comm_node(part, st, "AllReduce", x, out);
    }
}

// Every rank takes part, also one that keeps nothing: its result gets a name that nobody reads.
tsr_status tsr__dialect_emit(struct part *part, struct step *st)
{
    struct form *to = st->outputs[0];
    bool keeps = tsr__layout_has_device(to->layout, part->rank);
    tsr_value *x = local_of(part, st->inputs[0]);
    if (!x)
        return TSR_NOMEM;
    tsr_status status = chain(part, st, &x);
    if (status != TSR_OK)
        return status;
    struct str name;
    if (keeps)
        name = tsr__form_name(part, to);
    else
        name = tsr__part_fresh(part);
    if (!name.p)
        return TSR_NOMEM;
    tsr_value *y = emit_one(part, st, x, name);
    if (keeps)
        to->local[part->rank] = y;
    return made(y);
}

// ---- the end -----------------------------------------------------------------------------------

// Somebody in the graph needs it: a node, one of its subgraphs, or the outside.
static bool is_read(const struct part *part, const tsr_value *value)
{
    for (size_t i = 0; i < tsr_graph_output_count(part->graph); i++)
        if (tsr_graph_output(part->graph, i) == value)
            return true;
    for (const tsr_node *node = tsr_node_next(tsr_value_producer(value)); node;
         node = tsr_node_next(node)) {
        tsr_value **captures;
        size_t n_captures = tsr__node_captures(node, &captures);
        for (size_t i = 0; i < tsr_node_input_count(node); i++)
            if (tsr_node_input(node, i) == value)
                return true;
        for (size_t i = 0; i < n_captures; i++)
            if (captures[i] == value)
                return true;
    }
    return false;
}

// What nobody reads is an output, or the engine would drop it and the others would wait for ever.
tsr_status tsr__dialect_outputs(struct part *part)
{
    tsr_dim unknown[TILE_MAX_RANK];
    for (int axis = 0; axis < TILE_MAX_RANK; axis++)
        unknown[axis] = (tsr_dim){-1, ""};
    for (size_t i = 0; i < part->comms.n; i++) {
        tsr_value *value = tsr_node_output(part->comms.at[i], 0);
        const struct item *it = part->items.at[i];
        if (is_read(part, value))
            continue;
        tsr_status st = tsr_value_set_type(value, it->dtype, it->rank, unknown);
        if (st != TSR_OK)
            return st;
        st = tsr_graph_add_output(part->graph, value);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// What NCCL compares between ranks: the operator and its numbers.
static bool same(const tsr_node *a, const tsr_node *b)
{
    static const char *const names[] = {"axis", "group_size"};
    for (size_t i = 0; i < TSR_COUNT(names); i++)
        if (tsr_attr_int(tsr_node_find_attr(a, names[i]), -1) !=
            tsr_attr_int(tsr_node_find_attr(b, names[i]), -1))
            return false;
    return str_eq(tsr__node_op_str(a), tsr__node_op_str(b));
}

static bool agrees(const struct part *part, const struct part *first)
{
    if (part->comms.n != first->comms.n)
        return false;
    for (size_t i = 0; i < part->comms.n; i++)
        if (!same(part->comms.at[i], first->comms.at[i]) || part->items.at[i] != first->items.at[i])
            return false;
    return true;
}

// The proof before publishing: every rank has the same operators, in one order that its data keep.
tsr_status tsr__dialect_agree(struct draft *draft, struct part *parts)
{
    for (int64_t rank = 1; rank < draft->n_ranks; rank++) {
        const struct part *part = &parts[rank];
        if (agrees(part, &parts[0]))
            continue;
        struct place at = PLACE_NONE;
        at.rank = rank;
        tsr__diag(draft->session, DIAG_partition_disagrees, &at,
                  "please report this with the model",
                  "rank %lld: its communications differ from those of rank 0", (long long)rank);
        return TSR_BUG;
    }
    return TSR_OK;
}
