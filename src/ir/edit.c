// SPDX-License-Identifier: Apache-2.0
// edit.c - changing graphs. Every call checks first and then keeps names, uses, producers and specs
// consistent.
#include "ir/internal.h"

// ---- names ----------------------------------------------------------------------------------

// True if some use of w lies in g or below it: a new value of that name in g would hide w from it.
static bool used_within(const tsr_value *w, const tsr_graph *g)
{
    const struct use *u = w->last_use;
    if (!u)
        return false;
    do {
        if (tsr__graph_within(u->node->graph, g))
            return true;
        u = u->next;
    } while (u != w->last_use);
    return false;
}

// True if a reader of v sits in a subgraph that has a value called name on the way out.
static bool hidden_from_users(const tsr_value *v, struct str name)
{
    const struct use *u = v->last_use;
    if (!u)
        return false;
    do {
        for (const tsr_graph *g = u->node->graph; g && g != v->home;
             g = g->owner ? g->owner->graph : NULL)
            if (tsr__graph_own(g, name))
                return true;
        u = u->next;
    } while (u != v->last_use);
    return false;
}

static tsr_status check_name(tsr_graph *g, struct str name, const tsr_value *v)
{
    const tsr_value *own = tsr__graph_own(g, name);
    const tsr_value *outer = g->owner ? tsr__graph_lookup(g->owner->graph, name) : NULL;
    bool waiting = own && !v && (own->flags & V_STANDIN);
    if ((!own || waiting) && !(outer && used_within(outer, g)) &&
        !(v && hidden_from_users(v, name)))
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.file = str_of(g->model->path ? g->model->path : "");
    at.graph = tsr__graph_path(g);
    at.value = name;
    tsr__diag(g->model->session, DIAG_name_taken, &at, "choose another name",
              "there is a value '" STR_FMT "' already", STR_ARG(name));
    return TSR_INVALID;
}

static tsr_status need_name(tsr_graph *g, const char *name)
{
    if (name && *name)
        return check_name(g, str_of(name), NULL);
    struct place at = PLACE_NONE;
    at.graph = tsr__graph_path(g);
    tsr__diag(g->model->session, DIAG_name_empty, &at, NULL, "the value needs a name");
    return TSR_INVALID;
}

// A defined value of that name (checked before), made by a call.
static tsr_value *new_value(tsr_graph *g, struct str name)
{
    struct str kept = tsr__keep(g->model, name);
    tsr_value *v = g->model->arena.failed ? NULL : tsr__value_define(g, kept);
    if (v) {
        v->name = kept;
        v->flags |= V_NEW | V_TEXT;
    }
    return v;
}

tsr_status tsr_value_rename(tsr_value *v, const char *name)
{
    tsr_graph *g = v->home;
    tsr_model *m = g->model;
    struct str text = str_of(name ? name : "");
    if (str_eq(v->name, text))
        return TSR_OK;
    if (!text.n) {
        struct place at = tsr__place_value(v);
        tsr__diag(m->session, DIAG_name_empty, &at, NULL, "a value cannot be renamed to nothing");
        return TSR_INVALID;
    }
    tsr_status st = check_name(g, text, v);
    if (st != TSR_OK)
        return st;
    struct str kept = tsr__keep(m, text);
    void **slot = tsr__map_at(&g->names, kept);
    void **before = v->name.n ? tsr__map_at(&g->names, v->name) : NULL;
    void **file = v->flags & (V_NEW | V_RENAMED) ? NULL : tsr__map_at(&g->renamed, v->name);
    if (m->arena.failed || !slot)
        return TSR_NOMEM;
    slot = tsr__map_at(&g->names, kept); // the table may have moved
    if (before && (before = tsr__map_at(&g->names, v->name)) && *before == v)
        *before = (void *)&tsr__no_value;
    if (file)
        *file = v;
    *slot = v;
    v->name = kept;
    tsr__name_seen(m, kept);
    v->flags |= V_RENAMED | V_TEXT;
    m->renamed = true;
    tsr__touch_graph(g, G_RENAMED);
    return TSR_OK;
}

// ---- types ----------------------------------------------------------------------------------

static bool same_type(const struct vtype *t, tsr_dtype type, int rank, const tsr_dim *dims)
{
    if (!t || t->other.n || t->dtype != type || t->rank != rank)
        return false;
    for (int i = 0; i < rank; i++) {
        const char *symbol = dims[i].value < 0 && dims[i].symbol ? dims[i].symbol : "";
        int64_t value = dims[i].value < 0 ? -1 : dims[i].value;
        if (t->dims[i].value != value || strcmp(t->dims[i].symbol, symbol) != 0)
            return false;
    }
    return true;
}

static void typed(tsr_value *v, struct vtype *t)
{
    v->type = t;
    v->flags |= V_TYPED | V_DECODED;
    tsr__touch_graph(v->home, G_INFOS);
}

tsr_status tsr_value_set_type(tsr_value *v, tsr_dtype type, int rank, const tsr_dim *dims)
{
    tsr_model *m = tsr__value_model(v);
    if (rank < -1 || (rank > 0 && !dims) || (unsigned)type >= TSR_DTYPE_COUNT) {
        struct place at = tsr__place_value(v);
        tsr__diag(m->session, DIAG_argument_invalid, &at, NULL, "type %d of rank %d is none",
                  (int)type, rank);
        return TSR_INVALID;
    }
    tsr__type_decode(v);
    if (same_type(v->type, type, rank, dims))
        return TSR_OK;
    struct vtype *t = ARENA_NEW(&m->arena, struct vtype);
    tsr_dim *copy = ARENA_ARRAY(&m->arena, tsr_dim, rank > 0 ? (size_t)rank : 0);
    if (!t || !copy)
        return TSR_NOMEM;
    for (int i = 0; i < rank; i++) {
        bool named = dims[i].value < 0 && dims[i].symbol && dims[i].symbol[0];
        copy[i].value = dims[i].value < 0 ? -1 : dims[i].value;
        copy[i].symbol = named ? tsr__keep(m, str_of(dims[i].symbol)).p : "";
    }
    *t = (struct vtype){.dtype = type, .rank = rank, .dims = copy};
    typed(v, t);
    return model_status(m);
}

tsr_status tsr__value_copy_type(tsr_value *w, const tsr_value *v)
{
    tsr__type_decode((tsr_value *)v);
    if (!v->type)
        return TSR_OK;
    if (!v->type->other.n)
        return tsr_value_set_type(w, v->type->dtype, v->type->rank, v->type->dims);
    tsr_model *m = tsr__value_model(w);
    struct vtype *t = ARENA_NEW(&m->arena, struct vtype);
    if (!t)
        return TSR_NOMEM;
    *t = (struct vtype){.rank = -1, .other = tsr__arena_str(&m->store->arena, v->type->other)};
    typed(w, t);
    return model_status(m);
}

// ---- adding ---------------------------------------------------------------------------------

// Whether a node of g can read v; n (or NULL) is the node.
static tsr_status check_value(const tsr_graph *g, const tsr_value *v, const tsr_node *n)
{
    bool foreign = v && tsr__value_model(v) != g->model;
    if (!v || (!foreign && tsr__graph_within(g, v->home) && !(v->flags & V_GONE)))
        return TSR_OK;
    struct place at = n ? tsr__place_node(n) : PLACE_NONE;
    at.graph = tsr__graph_path(g);
    at.value = v->name;
    if (foreign)
        tsr__diag(g->model->session, DIAG_value_foreign, &at, NULL,
                  "'" STR_FMT "' is a value of another model", STR_ARG(v->name));
    else
        tsr__diag(g->model->session, DIAG_value_out_of_scope, &at, NULL,
                  "'" STR_FMT "' cannot be seen in graph '" STR_FMT "'", STR_ARG(v->name),
                  STR_ARG(at.graph));
    return TSR_INVALID;
}

tsr_value *tsr_graph_add_input(tsr_graph *g, const char *name)
{
    if (need_name(g, name) != TSR_OK)
        return NULL;
    tsr_value *v = new_value(g, str_of(name));
    struct port *p = v ? vec_push(&g->model->arena, &g->inputs) : NULL;
    if (!p)
        return NULL;
    *p = (struct port){.value = v};
    v->flags |= V_INPUT;
    tsr__touch_graph(g, G_INPUTS);
    return v;
}

tsr_status tsr_graph_add_output(tsr_graph *g, tsr_value *v)
{
    struct place at = PLACE_NONE;
    at.graph = tsr__graph_path(g);
    tsr_status st = check_value(g, v, NULL);
    if (st == TSR_OK && !v) {
        tsr__diag(g->model->session, DIAG_argument_invalid, &at, NULL, "an output needs a value");
        st = TSR_INVALID;
    }
    if (st != TSR_OK)
        return st;
    struct port *p = vec_push(&g->model->arena, &g->outputs);
    if (!p)
        return TSR_NOMEM;
    *p = (struct port){.value = v};
    v->n_outputs++;
    tsr__touch_graph(g, G_OUTPUTS);
    return TSR_OK;
}

static tsr_value *add_tensor(tsr_graph *g, const char *name, tsr_dtype type, int rank,
                             const int64_t *dims, tsr_tensor **out)
{
    tsr_model *m = g->model;
    if (need_name(g, name) != TSR_OK)
        return NULL;
    tsr_tensor *t = ARENA_NEW(&m->arena, tsr_tensor);
    int64_t *copy = ARENA_ARRAY(&m->arena, int64_t, rank > 0 ? (size_t)rank : 0);
    if (!t || !copy)
        return NULL;
    tsr_value *v = new_value(g, str_of(name));
    tsr_value **slot = v ? vec_push(&m->arena, &g->initializers) : NULL;
    if (!slot)
        return NULL;
    for (int i = 0; i < rank; i++)
        copy[i] = dims[i];
    *t = (tsr_tensor){
        .model = m, .value = v, .decoded = true, .type = (int32_t)type, .rank = rank, .dims = copy};
    *slot = v;
    v->tensor = *out = t;
    tsr__touch_graph(g, G_INITIALIZERS);
    return v;
}

static bool bad_tensor(tsr_graph *g, const char *name, tsr_dtype type, int rank,
                       const int64_t *dims, uint64_t n)
{
    struct place at = PLACE_NONE;
    at.graph = tsr__graph_path(g);
    at.value = str_of(name);
    if (rank >= 0 && (rank == 0 || dims) && (unsigned)type < TSR_DTYPE_COUNT) {
        int64_t *copy = (int64_t *)dims;
        tsr_tensor t = {.decoded = true, .type = (int32_t)type, .rank = rank, .dims = copy};
        int64_t want = tsr_tensor_bytes(&t);
        if (want >= 0 && (uint64_t)want == n)
            return false;
        if (type == TSR_STRING && n == 0 && tsr_tensor_elements(&t) == 0)
            return false; // texts that are none have no bytes
        tsr__diag(g->model->session, DIAG_tensor_size, &at, NULL,
                  "%llu bytes were given, the shape asks for %lld", (unsigned long long)n,
                  (long long)want);
        return true;
    }
    tsr__diag(g->model->session, DIAG_argument_invalid, &at, NULL, "type %d of rank %d is none",
              (int)type, rank);
    return true;
}

tsr_value *tsr_graph_add_initializer(tsr_graph *g, const char *name, tsr_dtype type, int rank,
                                     const int64_t *dims, const void *bytes, size_t n)
{
    if (bad_tensor(g, name, type, rank, dims, n))
        return NULL;
    struct str copy = {"", 0};
    if (n) {
        char *to = arena_get(&g->model->store->arena, n, 64); // clones share it
        if (!to)
            return NULL;
        memcpy(to, bytes, n);
        copy = (struct str){to, n};
    }
    tsr_tensor *t = NULL;
    tsr_value *v = add_tensor(g, name, type, rank, dims, &t);
    if (v) {
        t->raw = copy;
        t->has_raw = true;
    }
    return v;
}

tsr_value *tsr__graph_add_external(tsr_graph *g, const char *name, tsr_dtype type, int rank,
                                   const int64_t *dims, const char *location, uint64_t offset,
                                   uint64_t length)
{
    if (bad_tensor(g, name, type, rank, dims, length))
        return NULL;
    tsr_tensor *t = NULL;
    tsr_value *v = add_tensor(g, name, type, rank, dims, &t);
    if (v) {
        t->external = true;
        t->location = tsr__keep(g->model, str_of(location));
        t->offset = offset;
        t->length = length;
    }
    return v;
}

static tsr_status check_new_node(tsr_graph *g, const char *op, tsr_value *const *inputs,
                                 size_t n_inputs, const char *const *outputs, size_t n_outputs)
{
    struct place at = PLACE_NONE;
    at.graph = tsr__graph_path(g);
    at.op = str_of(op);
    tsr_status st = TSR_OK;
    if (!op || !*op) {
        tsr__diag(g->model->session, DIAG_name_empty, &at, NULL, "a node needs an operator");
        st = TSR_INVALID;
    }
    for (size_t i = 0; i < n_inputs && st == TSR_OK; i++)
        st = check_value(g, inputs[i], NULL);
    for (size_t i = 0; i < n_outputs && st == TSR_OK; i++) {
        if (!outputs[i] || !*outputs[i])
            continue;
        st = check_name(g, str_of(outputs[i]), NULL);
        for (size_t k = 0; k < i && st == TSR_OK; k++)
            if (outputs[k] && strcmp(outputs[i], outputs[k]) == 0) {
                tsr__diag(g->model->session, DIAG_name_taken, &at, NULL,
                          "two outputs of the node are called '%s'", outputs[i]);
                st = TSR_INVALID;
            }
    }
    return st;
}

tsr_node *tsr_graph_add_node(tsr_graph *g, const char *domain, const char *op, const char *name,
                             tsr_value *const *inputs, size_t n_inputs, const char *const *outputs,
                             size_t n_outputs)
{
    tsr_model *m = g->model;
    if (check_new_node(g, op, inputs, n_inputs, outputs, n_outputs) != TSR_OK)
        return NULL;
    tsr_node *n = tsr__node_make(g, str_of(domain), str_of(op), tsr__keep(m, str_of(name)),
                                 n_inputs, n_outputs);
    if (!n)
        return NULL;
    n->flags = N_NEW | N_TEXT | N_ATTRS;
    for (size_t i = 0; i < n_outputs; i++)
        if (outputs[i] && *outputs[i] && !(n->outputs[i] = new_value(g, str_of(outputs[i]))))
            return NULL;
    if (m->arena.failed)
        return NULL;
    for (size_t i = 0; i < n_outputs; i++)
        if (n->outputs[i])
            n->outputs[i]->producer = n;
    for (size_t i = 0; i < n_inputs; i++)
        tsr__use_link(&n->inputs[i], inputs[i]);
    tsr__node_append(g, n);
    tsr__touch_graph(g, G_NODES);
    return n;
}

// ---- moving, removing -----------------------------------------------------------------------

static tsr_status check_there(tsr_node *n)
{
    if (!(n->flags & N_GONE))
        return TSR_OK;
    struct place at = tsr__place_node(n);
    tsr__diag(n->graph->model->session, DIAG_node_removed, &at, NULL,
              "the node is no longer in its graph");
    return TSR_INVALID;
}

// Takes n out of the list; its own next pointer stays, for a walk that stands on it.
static void unlink_node(tsr_graph *g, tsr_node *n)
{
    if (n->prev)
        n->prev->next = n->next;
    else
        g->first = n->next;
    if (n->next)
        n->next->prev = n->prev;
    else
        g->last = n->prev;
    g->flags |= G_ORDER | G_LIST;
}

tsr_status tsr_node_move_before(tsr_node *n, tsr_node *before)
{
    tsr_graph *g = n->graph;
    tsr_status st = check_there(n);
    if (st == TSR_OK && before)
        st = check_there(before);
    if (st == TSR_OK && before && before->graph != g) {
        struct place at = tsr__place_node(n);
        tsr__diag(g->model->session, DIAG_argument_invalid, &at, NULL,
                  "a node moves within its graph only");
        st = TSR_INVALID;
    }
    if (st != TSR_OK || before == n || n->next == before)
        return st;
    unlink_node(g, n);
    n->next = before;
    n->prev = before ? before->prev : g->last;
    if (n->prev)
        n->prev->next = n;
    else
        g->first = n;
    if (before)
        before->prev = n;
    else
        g->last = n;
    tsr__touch_graph(g, G_NODES);
    return TSR_OK;
}

static tsr_status still_used(tsr_node *n, const tsr_value *v)
{
    struct place at = tsr__place_node(n);
    at.value = v->name;
    tsr__diag(n->graph->model->session, DIAG_node_still_used, &at, "replace its uses first",
              "'" STR_FMT "' has %u readers and is %s of a graph", STR_ARG(v->name), v->n_uses,
              v->n_outputs ? "an output" : "no output");
    return TSR_INVALID;
}

static void drop_value(tsr_value *v)
{
    tsr_graph *g = v->home;
    v->flags |= V_GONE;
    void **slot = v->name.n ? tsr__map_at(&g->names, v->name) : NULL;
    if (slot && *slot == v)
        *slot = (void *)&tsr__no_value;
}

static void unlink_uses(tsr_node *n);

void tsr__attr_unlink(tsr_attr *a)
{
    for (size_t k = 0; k < a->n_graphs; k++) {
        tsr_graph *g = a->graphs[k];
        g->flags |= G_GONE;
        for (tsr_node *in = g->first; in; in = in->next)
            unlink_uses(in);
        for (size_t i = 0; i < g->outputs.n; i++)
            if (g->outputs.at[i].value->home != g)
                g->outputs.at[i].value->n_outputs--;
    }
}

static void unlink_uses(tsr_node *n)
{
    for (size_t i = 0; i < n->n_inputs; i++)
        tsr__use_unlink(&n->inputs[i]);
    if (n->flags & N_GRAPHS)
        for (size_t i = 0; i < n->n_attrs; i++)
            tsr__attr_unlink(n->attrs[i]);
}

tsr_status tsr_node_remove(tsr_node *n)
{
    tsr_graph *g = n->graph;
    tsr_status st = check_there(n);
    for (size_t i = 0; i < n->n_outputs && st == TSR_OK; i++)
        if (n->outputs[i] && (n->outputs[i]->n_uses || n->outputs[i]->n_outputs))
            st = still_used(n, n->outputs[i]);
    if (st != TSR_OK)
        return st;
    unlink_uses(n);
    for (size_t i = 0; i < n->n_outputs; i++)
        if (n->outputs[i])
            drop_value(n->outputs[i]);
    unlink_node(g, n);
    g->n_nodes--;
    n->flags |= N_GONE;
    tsr__touch_graph(g, G_NODES);
    return model_status(g->model);
}

// ---- replacing ------------------------------------------------------------------------------

static tsr_status bad_index(tsr_node *n, size_t i)
{
    struct place at = tsr__place_node(n);
    tsr__diag(n->graph->model->session, DIAG_index_range, &at, NULL, "the node has no slot %zu", i);
    return TSR_INVALID;
}

tsr_status tsr_node_replace_input(tsr_node *n, size_t i, tsr_value *v)
{
    tsr_status st = check_there(n);
    if (st == TSR_OK && i >= n->n_inputs)
        st = bad_index(n, i);
    if (st == TSR_OK)
        st = check_value(n->graph, v, n);
    if (st != TSR_OK)
        return st;
    tsr_value *old = n->inputs[i].value;
    if (old == v)
        return TSR_OK;
    tsr__use_unlink(&n->inputs[i]);
    tsr__use_link(&n->inputs[i], v);
    tsr__touch_node(n, N_INPUTS);
    tsr__specs_follow(n, old, v);
    return model_status(n->graph->model);
}

// Graph outputs of g and of graphs below it that are v become by.
static void replace_outputs(tsr_value *v, tsr_value *by)
{
    for (tsr_graph *g = v->home->model->graphs; g && v->n_outputs; g = g->next)
        for (size_t i = 0; i < g->outputs.n; i++) {
            if (g->outputs.at[i].value != v || (g->flags & G_GONE))
                continue;
            g->outputs.at[i].value = by;
            g->outputs.at[i].replaced = true;
            v->n_outputs--;
            by->n_outputs++;
            tsr__touch_graph(g, G_OUTPUTS);
        }
}

tsr_status tsr_value_replace_uses(tsr_value *v, tsr_value *by, bool outputs)
{
    if (v == by)
        return TSR_OK;
    const struct use *u = v->last_use;
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < v->n_uses && st == TSR_OK; i++, u = u->next)
        st = check_value(u->node->graph, by, u->node);
    if (st == TSR_OK && !by) {
        struct place at = tsr__place_value(v);
        tsr__diag(tsr__value_model(v)->session, DIAG_argument_invalid, &at, NULL,
                  "a value is replaced by another one, not by none");
        st = TSR_INVALID;
    }
    if (st == TSR_OK && outputs)
        st = check_value(v->home, by, NULL);
    if (st != TSR_OK)
        return st;
    while (v->last_use && st == TSR_OK) {
        struct use *first = v->last_use->next;
        st = tsr_node_replace_input(first->node, (size_t)(first - first->node->inputs), by);
    }
    if (st == TSR_OK && outputs)
        replace_outputs(v, by);
    return st;
}

tsr_status tsr_node_resize_outputs(tsr_node *n, size_t count)
{
    tsr_model *m = n->graph->model;
    tsr_status st = check_there(n);
    if (st == TSR_OK && count > UINT32_MAX)
        st = bad_index(n, count);
    for (size_t i = count; i < n->n_outputs && st == TSR_OK; i++)
        if (n->outputs[i] && (n->outputs[i]->n_uses || n->outputs[i]->n_outputs))
            st = still_used(n, n->outputs[i]);
    if (st != TSR_OK || count == n->n_outputs)
        return st;
    tsr_value **more = ARENA_ARRAY(&m->arena, tsr_value *, count);
    if (!more)
        return TSR_NOMEM;
    tsr_value **old = n->outputs;
    size_t n_old = n->n_outputs;
    for (size_t i = 0; i < count && i < n_old; i++)
        more[i] = old[i];
    n->outputs = more;
    n->n_outputs = (uint32_t)count;
    n->flags |= N_RESIZED;
    for (size_t i = count; i < n_old; i++) {
        if (!old[i])
            continue;
        tsr__specs_follow(n, old[i], NULL);
        drop_value(old[i]);
    }
    tsr__touch_node(n, N_OUTPUTS);
    return model_status(m);
}
