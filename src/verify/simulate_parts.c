// SPDX-License-Identifier: Apache-2.0
// simulate_parts.c - what each device has to do, read off the graphs of a partition: nodes in order with their prices,
// communications by their numbers, and the bytes that are alive at a time.
//
// The nodes of bodies count once, where their node stands.
#include "verify/simulate.h"
#include "ir/ir.h"
#include "partition/partition.h"
#include "plan/plan.h"
#include "rules/rules.h"
#include "sharding/sharding.h"
#include "topology/topology.h"

#define DOMAIN "ai.tessera"
#define GAPS   4 // of what is alive, an arena loses such a part in gaps (docs/measured.md)

// ---- communications ----------------------------------------------------------------------------

static struct sim_comm *comm_of(struct sim *x, int64_t id, const char *op)
{
    struct str key = tsr__arena_printf(x->arena, "%lld", (long long)id);
    void **at = key.p ? tsr__map_at(&x->by_id, key) : NULL;
    if (at && !*at) {
        struct sim_comm *c = ARENA_NEW(x->arena, struct sim_comm);
        struct sim_comm **listed = vec_push(x->arena, &x->comms);
        if (c && listed) {
            *c = (struct sim_comm){.id = id, .op = op, .from = -1};
            *listed = *at = c;
        }
    }
    return at ? *at : NULL;
}

static int group_of(struct sim *x, struct sim_comm *c, const int64_t *members, size_t n)
{
    for (size_t i = 0; i < c->groups.n; i++)
        if ((size_t)c->groups.at[i].n == n &&
            memcmp(c->groups.at[i].members, members, n * sizeof *members) == 0)
            return (int)i;
    struct sim_group *g = vec_push(x->arena, &c->groups);
    int64_t *copy = ARENA_ARRAY(x->arena, int64_t, n + 1);
    if (!g || !copy)
        return -1;
    memcpy(copy, members, n * sizeof *copy);
    *g = (struct sim_group){.members = copy, .n = (int)n};
    return (int)c->groups.n - 1;
}

// "AllReduceF16" is an AllReduce; a Recv is the other end of a Send.
static const char *plain_name(struct sim *x, const char *op)
{
    size_t n = strlen(op);
    if (strcmp(op, TSR_OP_RECV) == 0 || strcmp(op, TSR_OP_RECV "F16") == 0)
        return TSR_OP_SEND;
    if (n > 3 && strcmp(op + n - 3, "F16") == 0)
        return tsr__arena_str(x->arena, (struct str){op, n - 3}).p;
    return op;
}

// What the busiest device takes in or gives out, from the layouts that a Reshard carries.
static int64_t moved(struct sim *x, const tsr_node *n, const struct shapes *s, size_t elem)
{
    const int64_t *code[2];
    size_t count[2] = {tsr_attr_ints(tsr_node_find_attr(n, "source"), &code[0]),
                       tsr_attr_ints(tsr_node_find_attr(n, "target"), &code[1])};
    int64_t shape[TILE_MAX_RANK], most = 0;
    struct arena a;
    struct reshard *r = NULL;
    tsr__arena_init(&a, x->session);
    struct tile_layout *from = count[0] ? tsr__layout_decode(&a, code[0], count[0]) : NULL;
    struct tile_layout *to = count[1] ? tsr__layout_decode(&a, code[1], count[1]) : NULL;
    int64_t rank = tsr__shapes_ints(s, tsr_node_input(n, 1), shape, TILE_MAX_RANK);
    if (from && to && rank == from->rank && rank == to->rank &&
        tsr__reshard_plan(&a, from, NULL, to, shape, elem, &r) == TSR_OK)
        for (int i = 0; i < r->n_steps; i++)
            most +=
                r->steps[i].received > r->steps[i].sent ? r->steps[i].received : r->steps[i].sent;
    tsr__arena_free(&a);
    return most;
}

static void larger(int64_t *at, int64_t than)
{
    *at = than > *at ? than : *at;
}

// Pieces that do not lie on end are put together beside the tensor.
static int64_t scratch_of(const struct sim_comm *c, const tsr_node *n, const struct shapes *s,
                          int64_t given, int64_t got)
{
    int64_t axis = tsr_attr_int(tsr_node_find_attr(n, "axis"), 0), outer = 1;
    bool gathers = strcmp(c->op, TSR_OP_ALLGATHER) == 0;
    struct shape shape = tsr__shapes_of(s, tsr_node_input(n, 0));
    for (int d = 0; d < shape.rank && d < axis; d++)
        outer = shape.dims[d].value == 1 ? outer : 2;
    if (strcmp(c->op, TSR_OP_TURN) == 0)
        return given;
    if (gathers || strcmp(c->op, TSR_OP_SCATTER) == 0)
        return outer > 1 ? (gathers ? got : given) : 0;
    return strcmp(c->op, TSR_OP_RESHARD) == 0 ? given + got : 0;
}

static tsr_status add_comm(struct sim *x, struct sim_device *d, const tsr_node *n,
                           const struct shapes *s)
{
    const int64_t *members;
    size_t count = tsr_attr_ints(tsr_node_find_attr(n, "group"), &members);
    int64_t id = tsr_attr_int(tsr_node_find_attr(n, "id"), -1);
    bool sized = true, ignored = true;
    struct sim_comm *c = comm_of(x, id, plain_name(x, tsr_node_op(n)));
    int g = c && count ? group_of(x, c, members, count) : -1;
    struct sim_task *t = vec_push(x->arena, &d->tasks);
    for (size_t i = 0; i < count; i++)
        if (members[i] < 0 || members[i] >= x->n)
            g = -1;
    if (g < 0 || !t)
        return x->arena->failed ? TSR_NOMEM : TSR_MALFORMED;
    *t = (struct sim_task){.op = c->op, .node = tsr_node_name(n), .comm = c, .group = g};
    const tsr_value *in = tsr_node_input(n, 0), *out = tsr_node_output(n, 0);
    int64_t given = in ? tsr__price_bytes(s, in, &sized) : 0;
    int64_t got = out ? tsr__price_bytes(s, out, &ignored) : 0; // some get nothing
    larger(&d->scratch, in && out ? scratch_of(c, n, s, given, got) : 0);
    larger(&c->most_in, given);
    larger(&c->most_out, got);
    if (strcmp(c->op, TSR_OP_SEND) == 0)
        c->from = tsr_attr_int(tsr_node_find_attr(n, "from"), -1);
    if (strcmp(c->op, TSR_OP_RESHARD) == 0) {
        int bits = tsr_dtype_bits((tsr_dtype)tsr_attr_int(tsr_node_find_attr(n, "elem_type"), 0));
        larger(&c->moved, moved(x, n, s, (size_t)(bits ? bits + 7 : 8) / 8));
        larger(&c->moved, c->moved ? 0 : got);
    }
    x->unsized += !sized;
    return TSR_OK;
}

// All groups of one size at once; the price is that of the largest groups.
static bool flat_groups(struct sim *x, const struct sim_comm *c, struct topology_groups *out)
{
    int size = 0, count = 0;
    for (size_t i = 0; i < c->groups.n; i++)
        size = c->groups.at[i].n > size ? c->groups.at[i].n : size;
    int *device = ARENA_ARRAY(x->arena, int, c->groups.n *(size_t)size + 1);
    if (!device)
        return false;
    for (size_t i = 0; i < c->groups.n; i++) {
        const struct sim_group *g = &c->groups.at[i];
        for (int k = 0; g->n == size && k < size; k++)
            device[count * size + k] = (int)g->members[k];
        count += g->n == size;
    }
    if (c->from >= 0 && size == 2)
        for (int i = 0; i < count; i++)
            if (device[2 * i] != c->from) {
                device[2 * i + 1] = device[2 * i];
                device[2 * i] = (int)c->from;
            }
    *out = (struct topology_groups){count, size, device};
    return true;
}

static int64_t price_comm(struct sim *x, const struct sim_comm *c)
{
    static const struct {
        const char *op;
        tsr_collective what;
        bool out, times;
    } ways[] = {
        {TSR_OP_ALLREDUCE, TSR_ALL_REDUCE, false, false},
        {TSR_OP_SCATTER, TSR_REDUCE_SCATTER, false, false},
        {TSR_OP_REDUCE, TSR_REDUCE, false, false},
        {TSR_OP_ALLGATHER, TSR_ALL_GATHER, true, false},
        {TSR_OP_TURN, TSR_ALL_TO_ALL, false, true},
        {TSR_OP_BROADCAST, TSR_BROADCAST, true, false},
        {TSR_OP_SEND, TSR_SEND, false, false},
    };
    struct topology_groups g;
    if (!flat_groups(x, c, &g) || g.size < 2)
        return 0;
    for (size_t i = 0; i < TSR_COUNT(ways); i++)
        if (strcmp(ways[i].op, c->op) == 0)
            return tsr__price_collective(x->topology, ways[i].what, &g,
                                         (ways[i].out ? c->most_out : c->most_in) *
                                             (ways[i].times ? g.size : 1));
    if (strcmp(c->op, TSR_OP_HALO) != 0)
        return tsr__price_exchange(x->topology, &g, c->moved);
    int64_t more = c->most_out > c->most_in ? c->most_out - c->most_in : 1;
    struct topology_groups two = {1, 2, g.device};
    double copied = 2 * (double)c->most_out / x->topology->device[g.device[0]].bandwidth;
    return tsr__price_collective(x->topology, TSR_SEND, &two, more) + (int64_t)(copied * 1e12);
}

// ---- nodes -------------------------------------------------------------------------------------

static bool all_constant(const tsr_node *n)
{
    for (size_t i = 0; i < tsr_node_input_count(n); i++) {
        const tsr_value *v = tsr_node_input(n, i);
        if (v && !tsr_value_initializer(v))
            return false;
    }
    return true;
}

static const char *name_of(const tsr_node *n)
{
    if (tsr_node_name(n)[0])
        return tsr_node_name(n);
    for (size_t i = 0; i < tsr_node_output_count(n); i++)
        if (tsr_node_output(n, i))
            return tsr_value_name(tsr_node_output(n, i));
    return "";
}

static tsr_status add_node(struct sim *x, struct sim_device *d, int64_t device, const tsr_node *n,
                           const struct shapes *s, struct arena *scratch)
{
    bool sized;
    if (strcmp(tsr_node_domain(n), DOMAIN) == 0)
        return add_comm(x, d, n, s);
    if (all_constant(n))
        return TSR_OK; // folded when the model is loaded
    struct sim_task *t = vec_push(x->arena, &d->tasks);
    if (!t)
        return TSR_NOMEM;
    *t = (struct sim_task){.op = tsr_node_op(n), .node = name_of(n)};
    t->ps = tsr__price_node(scratch, n, s, &x->topology->device[device], &sized);
    x->unsized += !sized;
    return TSR_OK;
}

static tsr_status add_graph(struct sim *x, struct sim_device *d, int64_t device, const tsr_graph *g,
                            const struct shapes *s, struct arena *scratch)
{
    tsr_status st = TSR_OK;
    for (const tsr_node *n = tsr_graph_first(g); n && st == TSR_OK; n = tsr_node_next(n)) {
        st = add_node(x, d, device, n, s, scratch);
        for (size_t i = 0; i < tsr_node_attr_count(n) && st == TSR_OK; i++) {
            const tsr_attr *a = tsr_node_attr(n, i);
            for (size_t k = 0; k < tsr_attr_graph_count(a) && st == TSR_OK; k++)
                st = add_graph(x, d, device, tsr_attr_graph(a, k), s, scratch);
        }
    }
    return st;
}

// ---- memory ------------------------------------------------------------------------------------

// Memory that one or several values have one after the other.
struct store {
    int64_t bytes, from, end; // nodes
};
struct stores {
    const tsr_model *model;
    const struct shapes *shapes;
    struct arena *arena;
    int64_t nodes;
    size_t *of; // by value id: its store plus 1; 0: none
    VEC(struct store) list;
};

static bool last_use(void *data, tsr_node *n, size_t input)
{
    int64_t *last = data;
    (void)input;
    while (tsr_graph_owner(tsr_node_graph(n)))
        n = tsr_graph_owner(tsr_node_graph(n));
    int64_t at = tsr_node_index(n);
    *last = at > *last ? at : *last;
    return true;
}

static int64_t end_of(const struct stores *s, const tsr_value *v, int64_t made)
{
    int64_t last = made;
    tsr_value_uses(v, last_use, &last);
    return tsr_value_is_output(v) ? s->nodes : last;
}

// Factors one after the other, without those of dimensions of one element.
static size_t in_order(const struct rule_tensor *t, struct shape shape, int *out)
{
    size_t n = 0;
    for (int d = 0; d < t->rank && shape.rank == t->rank; d++)
        for (int k = 0; shape.dims[d].value != 1 && k < t->dims[d].n && n < RULE_MAX_FACTORS; k++)
            out[n++] = t->dims[d].factors[k];
    return n;
}

// Elements of the result lie as those of the input do: an engine puts it there if nobody reads the input afterwards, and
// where only the shape differs in any case.
static bool in_place(const struct stores *s, const tsr_node *n, const struct rule *r, size_t input)
{
    int a[RULE_MAX_FACTORS], b[RULE_MAX_FACTORS];
    if ((int)input >= r->n_inputs || r->n_outputs < 1 || r->inputs[input].host ||
        r->inputs[input].absent || r->n_windows || r->n_lists)
        return false;
    size_t k = in_order(&r->inputs[input], tsr__shapes_of(s->shapes, tsr_node_input(n, input)), a);
    return k &&
           k == in_order(&r->outputs[0], tsr__shapes_of(s->shapes, tsr_node_output(n, 0)), b) &&
           memcmp(a, b, k * sizeof *a) == 0;
}

static bool same_shape(const struct rule *r, size_t input)
{
    return r->inputs[input].rank == r->outputs[0].rank;
}

// The store that the first output of the node takes over; 0: none.
static size_t taken_over(struct stores *s, const tsr_node *n, int64_t bytes, int64_t at)
{
    const struct rule *r = tsr__rule_of(s->arena, n, s->shapes);
    bool sized = true;
    for (size_t i = 0; r && i < tsr_node_input_count(n); i++) {
        const tsr_value *v = tsr_node_input(n, i);
        size_t store = v ? s->of[tsr__value_id(v)] : 0;
        if (store && in_place(s, n, r, i) && tsr__price_bytes(s->shapes, v, &sized) == bytes &&
            (!same_shape(r, i) || end_of(s, v, at) <= at))
            return store;
    }
    return 0;
}

static void add_output(struct stores *s, const tsr_node *n, size_t i, int64_t at)
{
    const tsr_value *v = tsr_node_output(n, i);
    bool sized = true;
    int64_t bytes = tsr__price_bytes(s->shapes, v, &sized), end = end_of(s, v, at);
    size_t store =
        i == 0 && strcmp(tsr_node_domain(n), DOMAIN) != 0 ? taken_over(s, n, bytes, at) : 0;
    struct store *fresh = store ? NULL : vec_push(s->arena, &s->list);
    if (fresh) {
        *fresh = (struct store){bytes, at, end};
        store = s->list.n;
    } else if (store && end > s->list.at[store - 1].end) {
        s->list.at[store - 1].end = end;
    }
    s->of[tsr__value_id(v)] = store;
}

static int64_t most_at_once(struct stores *s)
{
    int64_t now = 0, most = 0;
    int64_t *change = ARENA_ARRAY(s->arena, int64_t, (size_t)s->nodes + 2);
    for (size_t i = 0; change && i < s->list.n; i++) {
        change[s->list.at[i].from] += s->list.at[i].bytes;
        change[s->list.at[i].end + 1] -= s->list.at[i].bytes;
    }
    for (int64_t i = 0; change && i <= s->nodes; i++) {
        now += change[i];
        most = now > most ? now : most;
    }
    return most;
}

// Values live from the node that makes them to the last that reads them: each in memory of its own as a plan counts them, then
// with what an engine puts in the same place.
static int64_t live_bytes(struct stores *s, bool own)
{
    s->list.n = 0;
    int64_t at = 0;
    for (const tsr_node *n = tsr_graph_first(tsr_model_graph(s->model)); n;
         n = tsr_node_next(n), at++)
        for (size_t i = 0; i < tsr_node_output_count(n) && !all_constant(n); i++) {
            if (!tsr_node_output(n, i))
                continue;
            add_output(s, n, i, at);
            if (own)
                s->of[tsr__value_id(tsr_node_output(n, i))] = 0;
        }
    return most_at_once(s);
}

static tsr_status find_memory(struct sim_device *d, const tsr_model *m, const struct shapes *shapes,
                              struct arena *scratch)
{
    const tsr_graph *g = tsr_model_graph(m);
    struct stores s = {m, shapes, scratch, (int64_t)tsr_graph_node_count(g), NULL, {0}};
    int64_t inputs = 0;
    bool sized = true;
    s.of = ARENA_ARRAY(scratch, size_t, tsr__model_value_ids(m) + 1);
    if (!s.of)
        return TSR_NOMEM;
    for (size_t i = 0; i < tsr_graph_input_count(g); i++)
        inputs += tsr__price_bytes(shapes, tsr_graph_input(g, i), &sized);
    d->memory = d->weights + inputs + live_bytes(&s, true);
    int64_t live = live_bytes(&s, false);
    d->peak = d->weights + inputs + d->scratch + live + live / GAPS + PLAN_ENGINE_BYTES;
    return scratch->failed ? TSR_NOMEM : TSR_OK;
}

// ---- all of it ---------------------------------------------------------------------------------

bool tsr__sim_sizes(struct arena *a, const tsr_model *m, const tsr_size *sizes, size_t n,
                    tsr_size **out, size_t *n_out)
{
    const tsr_graph *g = tsr_model_graph(m);
    VEC(tsr_size) all = {0};
    for (size_t i = 0; i < n; i++) {
        tsr_size *at = vec_push(a, &all);
        if (at)
            *at = sizes[i];
    }
    for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
        const tsr_value *v = tsr_graph_input(g, i);
        for (int d = 0; d < tsr_value_rank(v); d++) {
            tsr_dim dim = tsr_value_dim(v, d);
            bool known = dim.value >= 0 || !dim.symbol || !dim.symbol[0];
            for (size_t k = 0; k < all.n && !known; k++)
                known = strcmp(all.at[k].name, dim.symbol) == 0;
            tsr_size *at = known ? NULL : vec_push(a, &all);
            if (at)
                *at = (tsr_size){dim.symbol, PLAN_USUAL_SIZE};
        }
    }
    *out = all.at;
    *n_out = all.n;
    return !a->failed;
}

static tsr_status read_part(struct sim *x, int64_t device, const struct partition_part *part,
                            const tsr_size *sizes, size_t n_sizes)
{
    struct arena scratch;
    struct sim_device *d = &x->devices[device];
    tsr_size *all;
    size_t n;
    tsr__arena_init(&scratch, x->session);
    d->weights = part->weight_bytes;
    struct shapes *s = tsr__sim_sizes(&scratch, part->model, sizes, n_sizes, &all, &n)
                           ? tsr__shapes_bound(&scratch, part->model, all, n, false)
                           : NULL;
    tsr_status st = s ? TSR_OK : TSR_NOMEM;
    if (st == TSR_OK)
        st = add_graph(x, d, device, tsr_model_graph(part->model), s, &scratch);
    if (st == TSR_OK)
        st = find_memory(d, part->model, s, &scratch);
    // Names outlive the models.
    for (size_t i = 0; i < d->tasks.n && st == TSR_OK; i++) {
        struct sim_task *t = &d->tasks.at[i];
        t->op = tsr__arena_str(x->arena, str_of(t->op)).p;
        t->node = tsr__arena_str(x->arena, str_of(t->node)).p;
    }
    st = st == TSR_OK && scratch.failed ? TSR_NOMEM : st;
    tsr__arena_free(&scratch);
    return st;
}

tsr_status tsr__sim_read(struct sim *x, const struct partition_part *parts, int64_t n,
                         const tsr_size *sizes, size_t n_sizes)
{
    tsr_status st = TSR_OK;
    x->n = n;
    x->devices = ARENA_ARRAY(x->arena, struct sim_device, (size_t)n);
    tsr__map_init(&x->by_id, x->arena, 64);
    if (!x->devices)
        return TSR_NOMEM;
    for (int64_t i = 0; i < n && st == TSR_OK; i++)
        st = read_part(x, i, &parts[i], sizes, n_sizes);
    for (size_t i = 0; i < x->comms.n && st == TSR_OK; i++) {
        struct sim_comm *c = x->comms.at[i];
        c->op = tsr__arena_str(x->arena, str_of(c->op)).p;
        c->ps = price_comm(x, c);
    }
    if (st == TSR_MALFORMED)
        tsr__diag(x->session, DIAG_partition_disagrees, NULL, "cut the model again",
                  "a communication names no group, or devices that are not there");
    return st == TSR_MALFORMED ? TSR_INVALID : x->arena->failed ? TSR_NOMEM : st;
}
