// SPDX-License-Identifier: Apache-2.0
// dialect.c - communication in the operators of other engines (a file each: dialect_*.c), which have no token. So each of
// them is made to depend on the one before it, by the data where it does so already, else by what the dialect puts in
// between; and a result that nobody reads is an output of the file, so that no engine drops it. What a dialect cannot
// say is found before anything is built, all at once.
//
//     a = AllReduce(x), b = AllGather(u), and u is not made of a:
//         an engine may run either first, and two ranks may choose differently
//         u' is u again, but comes after a: b = AllGather(u')
#include "dialect.h"

static const struct dialect *const dialects[] = {
    [DIALECT_OWN] = NULL,
    [DIALECT_MICROSOFT] = &tsr__dialect_microsoft,
    [DIALECT_TENSORRT] = &tsr__dialect_tensorrt,
};

bool tsr__dialect_find(const char *name, enum comm_dialect *out)
{
    *out = DIALECT_OWN;
    if (!name || strcmp(name, COMM_DOMAIN) == 0)
        return true;
    for (size_t i = 1; i < TSR_COUNT(dialects); i++)
        if (strcmp(name, dialects[i]->name) == 0) {
            *out = (enum comm_dialect)i;
            return true;
        }
    return false;
}

const char *tsr__dialect_name(const struct draft *draft)
{
    return dialects[draft->dialect]->name;
}

const char *tsr__dialect_domain(const struct draft *draft)
{
    if (draft->dialect == DIALECT_OWN)
        return COMM_DOMAIN;
    return dialects[draft->dialect]->domain;
}

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

int64_t tsr__size_on(const struct form *form, int axis, int64_t rank)
{
    int64_t coords[TILE_MAX_FACTORS];
    const struct item *it = form->item;
    if (axis >= it->rank || it->dims[axis].value < 0 ||
        !tsr__device_coords(form->layout, rank, axis, coords))
        return -1;
    struct local_size size = tsr__local_size(&form->layout->dims[axis], coords);
    return tsr__local_size_of(&size, it->dims[axis].value);
}

bool tsr__group_even(const struct device_group *group, const struct form *form, int axis)
{
    int64_t first = tsr__size_on(form, axis, group->devices[0]);
    for (size_t i = 0; i < group->n; i++) {
        int64_t size = tsr__size_on(form, axis, group->devices[i]);
        if (size < 0 || size != first)
            return false;
    }
    return true;
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
        const char *why = dialects[draft->dialect]->why_not(draft, st);
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

// Operators of ONNX that read the sizes of their input and none of its elements, as the table of rules has them: Shape and
// Size.
struct size_ops {
    struct str ops[8];
    size_t n;
};

static void list_size_ops(struct size_ops *out)
{
    struct rule_row_text row;
    out->n = 0;
    for (size_t i = 0; tsr__rule_row(i, &row); i++) {
        bool onnx = !row.domain || !row.domain[0];
        if (onnx && row.rule && strstr(row.rule, "; size") && out->n < TSR_COUNT(out->ops))
            out->ops[out->n++] = str_of(row.op);
    }
}

static bool reads_sizes(const tsr_node *node, const struct size_ops *size_ops)
{
    if (tsr__node_domain_str(node).n)
        return false;
    for (size_t i = 0; i < size_ops->n; i++)
        if (str_eq(tsr__node_op_str(node), size_ops->ops[i]))
            return true;
    return false;
}

// The node reads elements of what follows the last communication, itself or in its subgraphs. Sizes do not follow: an
// engine may know them when it is built.
static bool reads_marked(const tsr_node *node, const unsigned char *marked,
                         const struct size_ops *size_ops)
{
    tsr_value **captures;
    size_t n_captures = tsr__node_captures(node, &captures);
    if (reads_sizes(node, size_ops))
        return false;
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
    const tsr_node *end = tsr_value_producer(x), *last = part->comms.at[part->comms.n - 1].node;
    size_t n = tsr__model_node_ids(part->model);
    unsigned char *marked = ARENA_ARRAY(part->draft->arena, unsigned char, n + 1);
    struct size_ops size_ops;
    *out = false;
    if (!marked)
        return false;
    list_size_ops(&size_ops);
    marked[tsr__node_id(last)] = 1;
    for (const tsr_node *node = tsr_node_next(last); node && end; node = tsr_node_next(node))
        marked[tsr__node_id(node)] = reads_marked(node, marked, &size_ops);
    *out = end && marked[tsr__node_id(end)];
    return true;
}

// x behind the last communication, unless it follows from it already: engines may run independent nodes in any order.
static tsr_value *chain(struct part *part, const struct step *st, tsr_value *x, tsr_dtype type)
{
    struct draft *draft = part->draft;
    const struct dialect *dialect = dialects[draft->dialect];
    bool follows_already = true;
    if (part->comms.n && !follows(part, x, &follows_already))
        return NULL;
    if (follows_already)
        return x;
    const char *why = dialect->why_loose(draft, st);
    if (!why)
        return dialect->behind(part, x, type, &part->comms.at[part->comms.n - 1]);
    refuse(draft, st, why);
    return NULL;
}

// ---- nodes -------------------------------------------------------------------------------------

tsr_node *tsr__part_split(struct part *part, tsr_value *x, size_t n, int axis)
{
    struct draft *draft = part->draft;
    const char **names = ARENA_ARRAY(draft->arena, const char *, n);
    if (!names)
        return NULL;
    for (size_t i = 0; i < n; i++)
        names[i] = tsr__part_fresh(part).p;
    if (draft->arena->failed)
        return NULL;
    tsr_node *split = tsr_graph_add_node(part->graph, "", "Split", names[0], &x, 1, names, n);
    if (!split || tsr_node_set_int(split, "axis", axis) != TSR_OK)
        return NULL;
    if (draft->opset >= 18 && tsr_node_set_int(split, "num_outputs", (int64_t)n) != TSR_OK)
        return NULL;
    return split;
}

tsr_value *tsr__part_joined(struct part *part, tsr_value **parts, size_t n, int axis,
                            struct str out)
{
    if (!out.p)
        out = tsr__part_fresh(part);
    if (!out.p)
        return NULL;
    tsr_node *join = tsr_graph_add_node(part->graph, "", "Concat", out.p, parts, n, &out.p, 1);
    if (join && tsr_node_set_int(join, "axis", axis) == TSR_OK)
        return tsr_node_output(join, 0);
    return NULL;
}

// Of x [4,6] in 2 parts from axis 1 to axis 0: columns 0 to 2, below them columns 3 to 5: [8,3].
tsr_value *tsr__part_turned(struct part *part, tsr_value *x, size_t n, int from, int to,
                            struct str out)
{
    tsr_value **parts = ARENA_ARRAY(part->draft->arena, tsr_value *, n);
    if (!x || !parts)
        return NULL;
    tsr_node *split = tsr__part_split(part, x, n, from);
    if (!split)
        return NULL;
    for (size_t i = 0; i < n; i++)
        parts[i] = tsr_node_output(split, i);
    return tsr__part_joined(part, parts, n, to, out);
}

// Of members that keep 3, 3 and 2 elements, the last takes 6 and 7.
tsr_value *tsr__part_own(struct part *part, const struct dialect_call *call, int axis, tsr_value *x,
                         struct str out)
{
    const struct form *to = call->step->outputs[0];
    int64_t start = 0;
    for (size_t i = 0; i < call->group->n && call->group->devices[i] != part->rank; i++)
        start += tsr__size_on(to, axis, call->group->devices[i]);
    if (!x)
        return NULL;
    return tsr__part_slice(part, x, axis, start, start + tsr__size_on(to, axis, part->rank), out);
}

// With a note of it and of what it gives, for the chain and for the proof.
tsr_node *tsr__dialect_node(struct part *part, const struct dialect_call *call, const char *op,
                            tsr_value *x, struct dialect_comm gives, struct str out)
{
    struct draft *draft = part->draft;
    if (!x)
        return NULL;
    x = chain(part, call->step, x, gives.dtype);
    struct str label = tsr__arena_printf(draft->arena, "%s_%lld", op, (long long)call->step->id);
    if (!out.p)
        out = tsr__part_fresh(part);
    if (draft->arena->failed || !x)
        return NULL;
    gives.node = tsr_graph_add_node(part->graph, dialects[draft->dialect]->domain, op, label.p, &x,
                                    1, &out.p, 1);
    gives.group = call->group;
    struct dialect_comm *slot = vec_push(draft->arena, &part->comms);
    if (!gives.node || !slot)
        return NULL;
    *slot = gives;
    return gives.node;
}

// Every member takes part, also one that keeps nothing, or that keeps what it got as a member of another group: its
// result gets a name that nobody reads.
tsr_status tsr__dialect_emit(struct part *part, struct step *st, size_t group)
{
    struct form *to = st->outputs[0];
    struct dialect_call call = {st, &st->groups[group], -1};
    bool keeps = !to->local[part->rank] && tsr__layout_has_device(to->layout, part->rank);
    tsr_value *x = NULL;
    if (tsr__layout_has_device(st->inputs[0]->layout, part->rank))
        x = local_of(part, st->inputs[0]);
    if (comm_carries(st->kind, ATTRIBUTE_ROOT) || comm_carries(st->kind, ATTRIBUTE_FROM))
        call.root = st->roots[group];
    struct str name;
    if (keeps)
        name = tsr__form_name(part, to);
    else
        name = tsr__part_fresh(part);
    if (!name.p)
        return TSR_NOMEM;
    tsr_value *y = dialects[part->draft->dialect]->emit(part, &call, x, name);
    if (keeps)
        to->local[part->rank] = y;
    if (!y && part->draft->status != TSR_OK)
        return part->draft->status;
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
        const struct dialect_comm *comm = &part->comms.at[i];
        tsr_value *value = tsr_node_output(comm->node, 0);
        if (is_read(part, value))
            continue;
        tsr_status st = tsr_value_set_type(value, comm->dtype, comm->rank, unknown);
        if (st != TSR_OK)
            return st;
        st = tsr_graph_add_output(part->graph, value);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// A text that the node has as an attribute; "": it has none.
static struct str word_of(const tsr_node *node, const char *name)
{
    struct str word = {"", 0};
    size_t length;
    const char *text = tsr_attr_string(tsr_node_find_attr(node, name), &length);
    if (text)
        word = (struct str){text, length};
    return word;
}

// What the members of a communication must say alike: the operator and its numbers, of the same value, in one group.
static bool same(const struct dialect_comm *a, const struct dialect_comm *b)
{
    static const char *const numbers[] = {"axis", "group_size", "nb_rank", "root"};
    static const char *const words[] = {"collective_operation", "reduce_op"};
    if (a->item != b->item || a->group != b->group)
        return false;
    for (size_t i = 0; i < TSR_COUNT(numbers); i++)
        if (tsr_attr_int(tsr_node_find_attr(a->node, numbers[i]), -1) !=
            tsr_attr_int(tsr_node_find_attr(b->node, numbers[i]), -1))
            return false;
    for (size_t i = 0; i < TSR_COUNT(words); i++)
        if (!str_eq(word_of(a->node, words[i]), word_of(b->node, words[i])))
            return false;
    return str_eq(tsr__node_op_str(a->node), tsr__node_op_str(b->node));
}

// The next communication of a rank; NULL: it has had all of them.
static const struct dialect_comm *next_of(const struct part *part, size_t done)
{
    if (done < part->comms.n)
        return &part->comms.at[done];
    return NULL;
}

// The rank's next communication is the next of all its members: they meet, and each goes on to the one after it.
static bool meet(const struct part *parts, int64_t rank, size_t *done)
{
    const struct dialect_comm *comm = next_of(&parts[rank], done[rank]);
    if (!comm)
        return false;
    const struct device_group *group = comm->group;
    for (size_t i = 0; i < group->n; i++) {
        const struct dialect_comm *other =
            next_of(&parts[group->devices[i]], done[group->devices[i]]);
        if (!other || !same(comm, other))
            return false;
    }
    for (size_t i = 0; i < group->n; i++)
        done[group->devices[i]]++;
    return true;
}

// The proof before publishing: ranks that run their communications in the order of their files all meet and all come to
// their ends. Ranks 0 and 1 with {0,1}, {0,1} and 2 and 3 with {2,3} do; rank 0 with {0,1}, {0,2} and rank 2 with {0,2},
// {0,1} would not.
tsr_status tsr__dialect_agree(struct draft *draft, struct part *parts)
{
    size_t *done = ARENA_ARRAY(draft->arena, size_t, (size_t)draft->n_ranks + 1);
    if (!done)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < draft->n_ranks;) {
        if (meet(parts, rank, done))
            rank = 0; // somebody before may go on now
        else
            rank++;
    }
    for (int64_t rank = 0; rank < draft->n_ranks; rank++) {
        if (done[rank] == parts[rank].comms.n)
            continue;
        struct place at = PLACE_NONE;
        at.rank = rank;
        tsr__diag(draft->session, DIAG_partition_disagrees, &at,
                  "please report this with the model",
                  "rank %lld: its communications differ from those of the others", (long long)rank);
        return TSR_BUG;
    }
    return TSR_OK;
}
