// SPDX-License-Identifier: Apache-2.0
// plan.c - the walk over the flow: for each node that matters, its inputs in the layouts that it
// needs, the node, the reduction of its results. What is planned is lists of steps between forms;
// nothing is built here. Explicit output specs that differ from what a node gives are not made here
// either: whoever reads the value asks for its layout, so a reshard happens once, when it is
// needed, and from the best form there is.
#include "internal.h"

#include <stdlib.h>

// ---- items -------------------------------------------------------------------------------------

static void item_sizes(struct plan *p, struct item *it)
{
    it->fixed = it->rank >= 0;
    for (int d = 0; d < it->rank; d++)
        it->fixed &= it->dims[d].value >= 0;
    if (!it->fixed)
        return;
    it->shape = ARENA_ARRAY(p->arena, int64_t, (size_t)it->rank + 1);
    for (int d = 0; d < it->rank && it->shape; d++)
        it->shape[d] = it->dims[d].value;
}

// What a constant is stands in the constant itself.
static void item_type(struct plan *p, struct item *it)
{
    const tsr_tensor *t = tsr_value_initializer(it->value);
    struct shape shape = tsr__shapes_piece(p->flow->shapes, it->value);
    it->list = tsr__shapes_is_list(p->flow->shapes, it->value);
    if (it->list) {
        it->way = tsr__shapes_list_way(p->flow->shapes, it->value);
        it->element = shape.dtype;
        shape.dtype = TSR_UNDEFINED;
    }
    it->dtype = t ? tsr_tensor_dtype(t) : shape.dtype;
    it->rank = t ? tsr_tensor_rank(t) : shape.rank;
    it->dims = shape.dims;
    if (!t || it->rank < 0)
        return;
    tsr_dim *dims = ARENA_ARRAY(p->arena, tsr_dim, (size_t)it->rank + 1);
    for (int d = 0; d < it->rank && dims; d++)
        dims[d] = (tsr_dim){tsr_tensor_dims(t)[d], ""};
    it->dims = dims;
}

// In a loop, a symbol may stand for another size in each turn.
static void forget_symbols(struct plan *p, struct item *it)
{
    tsr_dim *dims = ARENA_ARRAY(p->arena, tsr_dim, (size_t)(it->rank > 0 ? it->rank : 0) + 1);
    for (int d = 0; dims && d < it->rank; d++)
        dims[d] = (tsr_dim){it->dims[d].value, ""};
    it->dims = dims;
}

// NUL-terminated: it becomes a name again. Constants of bodies go to the main graph, where two of
// them must not have one name.
static struct str item_name(struct plan *p, const struct item *it)
{
    struct str name = str_of(tsr_value_name(it->value));
    if (it->scope == &p->main || !tsr_value_initializer(it->value))
        return name;
    uint32_t k = tsr__value_id(it->value);
    do
        name = tsr__arena_printf(p->arena, "%s/%u", tsr_value_name(it->value), k);
    while (name.p && tsr__map_get(&p->names, name) && k++ < UINT32_MAX);
    void **slot = name.p ? tsr__map_at(&p->names, name) : NULL;
    if (slot)
        *slot = p;
    return name;
}

struct item *tsr__item_of(struct plan *p, const tsr_value *v)
{
    struct item **slot = &p->items[tsr__value_id(v)];
    if (*slot)
        return *slot;
    struct item *it = ARENA_NEW(p->arena, struct item);
    if (!it)
        return NULL;
    it->value = v;
    it->scope = tsr__scope_of(p, v);
    it->name = item_name(p, it);
    item_type(p, it);
    if (it->scope->loops)
        forget_symbols(p, it);
    item_sizes(p, it);
    *slot = it;
    // Constants are stored in whatever form is asked for; inputs are given whole to every rank.
    bool constant = tsr_value_initializer(v),
         input = !constant && tsr_value_is_input(v) && it->scope == &p->main;
    if (constant || input) {
        int rank = it->rank < 0 ? 0 : it->rank;
        const struct tile_layout *l =
            input ? tsr__port_layout(p, v, false)
                  : tsr__layout_whole(p->arena, rank, p->all_devices, (size_t)p->n_ranks);
        if (!l || !tsr__form_new(p, it, l, constant ? FORM_CONST : FORM_INPUT))
            return NULL;
    }
    return it;
}

struct form *tsr__form_new(struct plan *p, struct item *it, const struct tile_layout *l,
                           enum form_kind kind)
{
    struct form *f = ARENA_NEW(p->arena, struct form);
    if (!f || !l)
        return NULL;
    f->item = it;
    f->layout = l;
    f->kind = kind;
    f->live = ARENA_ARRAY(p->arena, unsigned char, (size_t)p->n_ranks);
    f->local = ARENA_ARRAY(p->arena, tsr_value *, (size_t)p->n_ranks);
    f->offset = kind == FORM_CONST ? ARENA_ARRAY(p->arena, uint64_t, (size_t)p->n_ranks) : NULL;
    f->stored =
        kind == FORM_CONST ? ARENA_ARRAY(p->arena, unsigned char, (size_t)p->n_ranks) : NULL;
    if (p->arena->failed)
        return NULL;
    f->index = it->last ? it->last->index + 1 : 0;
    *(it->last ? &it->last->next : &it->first) = f;
    it->last = f;
    if (kind == FORM_CONST) {
        *(p->last_const ? &p->last_const->next_const : &p->consts) = f;
        p->last_const = f;
    }
    return f;
}

static bool push_step(struct plan *p, struct step *st)
{
    struct step **slot = vec_push(p->arena, &p->steps);
    if (slot)
        *slot = st;
    return slot != NULL;
}

static struct step *step_make(struct plan *p, enum step_kind kind, size_t n_inputs,
                              size_t n_outputs)
{
    struct step *st = ARENA_NEW(p->arena, struct step);
    if (!st)
        return NULL;
    st->kind = kind;
    st->id = -1;
    st->n_inputs = n_inputs;
    st->n_outputs = n_outputs;
    st->inputs = ARENA_ARRAY(p->arena, struct form *, n_inputs + 1);
    st->outputs = ARENA_ARRAY(p->arena, struct form *, n_outputs + 1);
    return p->arena->failed ? NULL : st;
}

struct step *tsr__step_new(struct plan *p, enum step_kind kind, size_t n_inputs, size_t n_outputs)
{
    struct step *st = step_make(p, kind, n_inputs, n_outputs);
    return st && push_step(p, st) ? st : NULL;
}

// ---- nodes -------------------------------------------------------------------------------------

static struct form *plan_input(struct plan *p, const struct node_flow *nf, tsr_value *v, size_t i)
{
    struct item *it = tsr__item_of(p, v);
    if (it && nf->pending && nf->pending[i])
        return it->first; // the parts, as the producer left them
    if (it && tsr__window_cut(nf, (int)i))
        return tsr__plan_windows(p, nf, it, (int)i);
    return it ? tsr__plan_convert(p, it, nf->inputs[i], nf->node) : NULL;
}

// A subgraph reads whole values: the body runs as it stands.
static struct form *plan_capture(struct plan *p, const struct node_flow *nf, tsr_value *v)
{
    struct item *it = tsr__item_of(p, v);
    int rank = !it || it->rank < 0 ? 0 : it->rank;
    struct tile_layout *want =
        tsr__layout_whole(p->arena, rank, nf->place.devices, nf->place.n_devices);
    return it && want ? tsr__plan_convert(p, it, want, nf->node) : NULL;
}

static bool needs_reduction(const struct node_flow *nf)
{
    for (size_t g = 0; g < nf->n_groups; g++)
        if (nf->groups[g].n > 1)
            return true;
    return false;
}

static bool disjoint(const struct device_group *a, const struct device_group *b)
{
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++)
            if (a->devices[i] == b->devices[k])
                return false;
    return true;
}

// One round of a reduction: groups that do not meet. Returns how many of `left` stay for another
// round.
static size_t take_round(struct device_group *left, size_t n, struct device_group *round,
                         size_t *n_round)
{
    size_t kept = 0;
    *n_round = 0;
    for (size_t g = 0; g < n; g++) {
        bool free = true;
        for (size_t k = 0; k < *n_round && free; k++)
            free = disjoint(&left[g], &round[k]);
        if (free)
            round[(*n_round)++] = left[g];
        else
            left[kept++] = left[g];
    }
    return kept;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// The flow lists members by coordinate; a communication lists them by number.
static bool sorted_group(struct arena *a, const struct device_group *from, struct device_group *to)
{
    to->n = from->n;
    to->devices = ARENA_ARRAY(a, int64_t, from->n + 1);
    if (!to->devices)
        return false;
    memcpy(to->devices, from->devices, from->n * sizeof(*to->devices));
    qsort(to->devices, to->n, sizeof(*to->devices), by_number);
    return true;
}

// All who read the value want it in one layout, and it is not the one in which its parts lie: it is
// combined where it is wanted. A sum that is wanted cut is a reduce-scatter.
static bool plan_reduce_as_wanted(struct plan *p, const struct node_flow *nf, struct form *partial)
{
    const tsr_value *v = partial->item->value;
    const struct want *w = v ? &p->wants[tsr__value_id(v)] : NULL;
    if (!w || !w->layout || w->differ || tsr__layout_same(w->layout, partial->layout))
        return false;
    for (size_t g = 0; g < nf->n_groups; g++)
        for (size_t k = 0; k < g; k++)
            if (!disjoint(&nf->groups[g], &nf->groups[k]))
                return false;
    return tsr__plan_lower(p, partial, nf, w->layout) != NULL;
}

// Usually one round: a device is in two groups only where copies of a part are unequal in number.
static bool plan_reduce(struct plan *p, const struct node_flow *nf, struct form *partial)
{
    struct device_group *left = ARENA_ARRAY(p->arena, struct device_group, nf->n_groups + 1);
    if (!left)
        return false;
    for (size_t g = 0; g < nf->n_groups; g++)
        if (!sorted_group(p->arena, &nf->groups[g], &left[g]))
            return false;
    partial->partial = true;
    if (plan_reduce_as_wanted(p, nf, partial))
        return true;
    struct form *whole = tsr__form_new(p, partial->item, partial->layout, FORM_MADE);
    if (!whole)
        return false;
    for (size_t n = nf->n_groups; n > 0;) {
        struct step *st = tsr__step_new(p, STEP_REDUCE, 1, 1);
        struct device_group *round = ARENA_ARRAY(p->arena, struct device_group, n);
        if (!st || !round)
            return false;
        n = take_round(left, n, round, &st->n_groups);
        st->flow = nf;
        st->inputs[0] = partial;
        st->outputs[0] = whole;
        st->groups = round;
        st->group_live = ARENA_ARRAY(p->arena, unsigned char, st->n_groups + 1);
    }
    return !p->arena->failed;
}

static bool plan_node(struct plan *p, const struct node_flow *nf)
{
    const tsr_node *n = nf->node;
    tsr_value **captures;
    size_t n_in = tsr_node_input_count(n), n_out = tsr_node_output_count(n);
    size_t n_captures = nf->bodies ? 0 : tsr__node_captures(n, &captures);
    struct form **inputs = ARENA_ARRAY(p->arena, struct form *, n_in + n_captures + 1);
    for (size_t i = 0; i < n_in + n_captures && inputs; i++) {
        tsr_value *v = i < n_in ? tsr_node_input(n, i) : captures[i - n_in];
        if (!v)
            continue;
        inputs[i] = i < n_in ? plan_input(p, nf, v, i) : plan_capture(p, nf, v);
        if (!inputs[i])
            return false;
    }
    struct step *st = inputs ? step_make(p, STEP_NODE, 0, n_out) : NULL;
    if (!st)
        return false;
    st->flow = nf;
    st->inputs = inputs; // converted first: their steps come before this one
    st->n_inputs = n_in + n_captures;
    st->n_node_inputs = n_in;
    if (nf->bodies && !tsr__plan_bodies(p, st)) // and those of what its bodies read
        return false;
    if (!push_step(p, st))
        return false;
    for (size_t i = 0; i < n_out; i++) {
        tsr_value *v = tsr_node_output(n, i);
        struct item *it = v ? tsr__item_of(p, v) : NULL;
        if (v && (!it || !(st->outputs[i] = tsr__form_new(p, it, nf->outputs[i], FORM_MADE))))
            return false;
    }
    for (size_t i = 0; i < n_out && needs_reduction(nf); i++) {
        if (st->outputs[i] && nf->delayed)
            st->outputs[i]->partial = true;
        else if (st->outputs[i] && !plan_reduce(p, nf, st->outputs[i]))
            return false;
    }
    return true;
}

// ---- what matters ------------------------------------------------------------------------------

// A node matters if an output of the model needs it.
static bool mark_needed(const tsr_node *n, unsigned char *needed)
{
    bool any = false;
    for (size_t i = 0; i < tsr_node_output_count(n); i++) {
        const tsr_value *v = tsr_node_output(n, i);
        any |= v && needed[tsr__value_id(v)];
    }
    if (!any)
        return false;
    tsr_value **captures;
    size_t n_captures = tsr__node_captures(n, &captures);
    for (size_t i = 0; i < tsr_node_input_count(n); i++)
        if (tsr_node_input(n, i))
            needed[tsr__value_id(tsr_node_input(n, i))] = 1;
    for (size_t i = 0; i < n_captures; i++)
        needed[tsr__value_id(captures[i])] = 1;
    return true;
}

// ---- who wants what ----------------------------------------------------------------------------

void tsr__plan_want(struct plan *p, const tsr_value *v, const struct tile_layout *l)
{
    struct want *w = &p->wants[tsr__value_id(v)];
    w->readers++;
    w->differ = w->differ || !l || (w->layout && !tsr__layout_same(w->layout, l));
    if (!w->layout)
        w->layout = l;
}

static void collect_wants(struct plan *p, const struct node_flow *nf)
{
    tsr_value **captures;
    size_t n_captures = tsr__node_captures(nf->node, &captures);
    for (size_t k = 0; k < tsr_node_input_count(nf->node); k++) {
        const tsr_value *v = tsr_node_input(nf->node, k);
        if (!v || tsr__gives_sizes(nf))
            continue;
        tsr__plan_want(p, v, nf->inputs[k]);
        p->wants[tsr__value_id(v)].windowed += tsr__window_cut(nf, (int)k);
    }
    for (size_t k = 0; k < n_captures; k++)
        tsr__plan_want(p, captures[k], NULL);
}

// ---- stages ------------------------------------------------------------------------------------

// -1: none of its own.
static int64_t stage_of(const struct plan *p, const tsr_node *n)
{
    int64_t stage;
    const tsr_node_config *nc = tsr_node_find_config((tsr_node *)n, p->flow->config);
    return nc && tsr_node_config_stage(nc, &stage) && stage >= 0 ? stage : -1;
}

static bool bring_inputs(struct plan *p, const struct node_flow *nf, int64_t stage)
{
    for (size_t k = 0; k < tsr_node_input_count(nf->node); k++) {
        tsr_value *v = tsr_node_input(nf->node, k);
        const tsr_node *from = v ? tsr_value_producer(v) : NULL;
        int64_t made = from ? stage_of(p, from) : -1;
        struct item *it = made >= 0 && made != stage ? tsr__item_of(p, v) : NULL;
        bool plain = it && it->first && !it->first->partial && !(nf->pending && nf->pending[k]) &&
                     !tsr__window_cut(nf, (int)k);
        if (plain && !tsr__plan_convert(p, it, nf->inputs[k], nf->node))
            return false;
    }
    return true;
}

// All that a stage gets from those before is handed over at its start. Who waits in the middle of a stage for what was
// made long ago keeps the giver from its next run.
static bool begin_stage(struct plan *p, const struct node_flow *nodes, size_t n, const bool *takes)
{
    int64_t stage = stage_of(p, nodes[0].node);
    for (size_t i = 0; i < n; i++)
        if (takes[i] && stage_of(p, nodes[i].node) == stage && !bring_inputs(p, &nodes[i], stage))
            return false;
    return true;
}

static bool is_first_of_stage(const struct plan *p, const struct node_flow *nodes, size_t i,
                              int64_t *seen)
{
    int64_t stage = p->scope->outer ? -1 : stage_of(p, nodes[i].node);
    bool later = stage > *seen;
    *seen = later ? stage : *seen;
    return later;
}

bool tsr__plan_nodes(struct plan *p, const struct node_flow *nodes, size_t n, unsigned char *needed)
{
    int64_t seen = -1; // stages, as their numbers ascend
    bool *takes_part = ARENA_ARRAY(p->arena, bool, n + 1);
    if (!takes_part)
        return false;
    for (size_t i = n; i-- > 0;)
        takes_part[i] = mark_needed(nodes[i].node, needed);
    for (size_t i = 0; i < n; i++) {
        p->flows[tsr__node_id(nodes[i].node)] = &nodes[i];
        if (takes_part[i])
            collect_wants(p, &nodes[i]);
    }
    for (size_t i = 0; i < n; i++)
        if (takes_part[i] && ((is_first_of_stage(p, nodes, i, &seen) &&
                               !begin_stage(p, nodes + i, n - i, takes_part + i)) ||
                              !plan_node(p, &nodes[i])))
            return false;
    return true;
}

// Rank 0 gives every output whole, unless it is kept as it lies.
static bool plan_outputs(struct plan *p)
{
    tsr_graph *g = tsr_model_graph(p->model);
    for (size_t i = 0; i < tsr_graph_output_count(g); i++) {
        struct item *it = tsr__item_of(p, tsr_graph_output(g, i));
        const struct tile_layout *l = it ? tsr__port_layout(p, tsr_graph_output(g, i), true) : NULL;
        struct form *f = l ? tsr__plan_convert(p, it, l, NULL) : NULL;
        struct form **slot = f ? vec_push(p->arena, &p->outputs) : NULL;
        if (!slot)
            return false;
        *slot = f;
    }
    return true;
}

static void take_name(struct plan *p, const tsr_value *v)
{
    void **slot = v ? tsr__map_at(&p->names, tsr__value_str(v)) : NULL;
    if (slot)
        *slot = p;
}

// Names of all graphs: one that is made up must not hide any.
static void collect_names(struct plan *p)
{
    tsr_graph *g = tsr_model_graph(p->model);
    tsr__map_init(&p->names, p->arena, tsr__model_value_ids(p->model));
    for (size_t i = 0; i < tsr_graph_input_count(g); i++)
        take_name(p, tsr_graph_input(g, i));
    for (size_t i = 0; i < tsr_graph_initializer_count(g); i++)
        take_name(p, tsr_graph_initializer(g, i));
    for (tsr_node *n = tsr_model_next_node(p->model, NULL); n;
         n = tsr_model_next_node(p->model, n)) {
        for (size_t i = 0; i < tsr_node_output_count(n); i++)
            take_name(p, tsr_node_output(n, i));
        for (size_t i = 0; i < tsr_node_input_count(n); i++) // inputs and constants of subgraphs
            take_name(p, tsr_node_input(n, i));
    }
}

// Our own names would be there twice: the model is a part already.
static tsr_status refuse_reserved(struct plan *p)
{
    static const char *const reserved[] = {TOKEN_NAME, TOKEN_OUT};
    for (size_t i = 0; i < TSR_COUNT(reserved); i++) {
        if (!tsr__map_get(&p->names, str_of(reserved[i])))
            continue;
        struct place at = PLACE_NONE;
        at.file = str_of(tsr_model_path(p->model));
        at.value = str_of(reserved[i]);
        tsr__diag(p->session, DIAG_partition_refused, &at, "partition the whole model",
                  "this model is a part of a partition");
        return TSR_INVALID;
    }
    return TSR_OK;
}

tsr_status tsr__plan_build(struct plan *p)
{
    p->items = ARENA_ARRAY(p->arena, struct item *, tsr__model_value_ids(p->model) + 1);
    unsigned char *needed =
        ARENA_ARRAY(p->arena, unsigned char, tsr__model_value_ids(p->model) + 1);
    tsr_graph *g = tsr_model_graph(p->model);
    p->wants = ARENA_ARRAY(p->arena, struct want, tsr__model_value_ids(p->model) + 1);
    p->flows = ARENA_ARRAY(p->arena, const struct node_flow *, tsr__model_node_ids(p->model) + 1);
    if (!p->items || !p->wants || !p->flows || !needed)
        return TSR_NOMEM;
    for (size_t i = 0; i < tsr_graph_output_count(g); i++) {
        const tsr_value *v = tsr_graph_output(g, i);
        needed[tsr__value_id(v)] = 1;
        tsr__plan_want(p, v, tsr__port_layout(p, v, true));
    }
    p->main.graph = g;
    p->scope = &p->main;
    collect_names(p);
    tsr_status st = refuse_reserved(p);
    if (st != TSR_OK)
        return st;
    tsr__plan_find_sizes(p);
    if (!tsr__plan_nodes(p, p->flow->nodes, p->flow->n_nodes, needed) || !plan_outputs(p))
        return plan_status(p) == TSR_OK ? TSR_BUG : plan_status(p);
    tsr__plan_live(p);
    return plan_status(p);
}
