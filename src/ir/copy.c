// SPDX-License-Identifier: Apache-2.0
// copy.c - copies of nodes, subgraphs and whole models whose references point into the copy.
//
// A cloner knows the twin of every value that was copied; values outside go through a function of the caller.
// Bytes of the file are shared (the copy holds the store), objects and names are made anew.
#include "ir/internal.h"

void tsr__model_hold(tsr_model *to, const tsr_model *from)
{
    for (size_t i = 0; i <= from->held.n; i++) {
        struct store *st = i < from->held.n ? from->held.at[i] : from->store;
        bool known = st == to->store;
        for (size_t k = 0; k < to->held.n && !known; k++)
            known = to->held.at[k] == st;
        struct store **slot = known ? NULL : vec_push(&to->arena, &to->held);
        if (slot)
            *slot = tsr__store_hold(st);
    }
}

void tsr__cloner_init(struct cloner *c, tsr_model *to, const tsr_model *from)
{
    *c = (struct cloner){.to = to, .from = from};
    tsr__arena_init(&c->scratch, to->session);
    tsr__map_init(&c->twins, &c->scratch, 0);
    if (to != from)
        tsr__model_hold(to, from);
}

tsr_status tsr__cloner_end(struct cloner *c)
{
    bool failed = c->scratch.failed || c->to->arena.failed || c->to->store->arena.failed;
    tsr__arena_free(&c->scratch);
    return failed ? TSR_NOMEM : TSR_OK;
}

void tsr__twin_set(struct cloner *c, const tsr_value *v, tsr_value *twin)
{
    const tsr_value **key = ARENA_NEW(&c->scratch, const tsr_value *);
    if (!key)
        return;
    *key = v;
    void **slot = tsr__map_at(&c->twins, (struct str){(const char *)key, sizeof(*key)});
    if (slot)
        *slot = twin;
}

tsr_value *tsr__twin(struct cloner *c, tsr_value *v)
{
    if (!v)
        return NULL;
    tsr_value *t = tsr__map_get(&c->twins, (struct str){(const char *)&v, sizeof(v)});
    return t || !c->outer ? t : c->outer(c->data, v);
}

// ---- values ---------------------------------------------------------------------------------

// A view of the file is shared, anything else is copied.
static struct str clone_name(struct cloner *c, struct str name, bool text)
{
    struct str file = c->from->store->bytes;
    bool shared = (uintptr_t)name.p - (uintptr_t)file.p < file.n;
    return shared && !text ? name : tsr__keep(c->to, name);
}

static struct vtype *clone_type(struct cloner *c, const struct vtype *t)
{
    struct vtype *w = ARENA_NEW(&c->to->arena, struct vtype);
    tsr_dim *dims = ARENA_ARRAY(&c->to->arena, tsr_dim, t->rank > 0 ? (size_t)t->rank : 0);
    if (!w || !dims)
        return NULL;
    *w = *t;
    w->dims = dims;
    for (int i = 0; i < t->rank; i++) {
        dims[i] = t->dims[i];
        if (dims[i].symbol[0])
            dims[i].symbol = tsr__keep(c->to, str_of(dims[i].symbol)).p;
    }
    return w;
}

static void clone_value(struct cloner *c, tsr_graph *g, const tsr_value *v)
{
    tsr_value *w = tsr__value_make(g, clone_name(c, v->name, v->flags & V_TEXT));
    if (!w)
        return;
    w->flags = v->flags & ~(uint32_t)(V_DECODED | V_WRITTEN);
    w->info = v->info;
    if ((v->flags & V_TYPED) && v->type) {
        w->type = clone_type(c, v->type);
        w->flags |= V_DECODED;
    }
    tsr__twin_set(c, v, w);
}

static tsr_tensor *clone_tensor(tsr_model *to, const tsr_tensor *t, tsr_value *value)
{
    tsr_tensor *w = ARENA_NEW(&to->arena, tsr_tensor);
    if (!w)
        return NULL;
    *w = *t;
    w->model = to;
    w->value = value;
    w->store = t->store ? t->store : t->model->store;
    w->data_ready = false;
    if (t->sparse.n || (t->body.n && !t->replaced)) {
        w->decoded = false;
        return w;
    }
    w->dims = ARENA_ARRAY(&to->arena, int64_t, (size_t)t->rank);
    if (!w->dims)
        return NULL;
    if (t->rank)
        memcpy(w->dims, t->dims, (size_t)t->rank * sizeof(*w->dims));
    if (t->location.n)
        w->location = tsr__keep(to, t->location);
    return w;
}

static void clone_map(struct cloner *c, struct map *to, const struct map *from)
{
    for (size_t i = 0; i < from->cap; i++) {
        const struct map_slot *s = &from->slots[i];
        if (!s->hash || !s->value)
            continue;
        struct str key = {s->p, s->n};
        tsr_value *twin = s->value;
        if (twin != &tsr__no_value)
            twin = tsr__twin(c, twin);
        struct str kept = twin ? tsr__keep(c->to, key) : (struct str){NULL, 0};
        void **slot = twin ? tsr__map_at(to, kept) : NULL;
        if (slot)
            *slot = twin;
        tsr__name_seen(c->to, kept);
    }
}

// ---- attributes -----------------------------------------------------------------------------

static void clone_attr_value(tsr_attr *w, const tsr_attr *a)
{
    tsr_model *m = w->node->graph->model;
    if (a->whole.n || a->rest.n)
        return; // decoded from its bytes when asked for
    w->decoded = w->has_value = true;
    w->integer = a->integer;
    w->real = a->real;
    if (a->kind == TSR_ATTR_STRING) {
        w->text = tsr__keep(m, a->text);
        w->text_ready = true;
    }
    w->ints = ARENA_ARRAY(&m->arena, int64_t, a->n_ints);
    if (!w->ints || !a->n_ints)
        return;
    memcpy(w->ints, a->ints, a->n_ints * sizeof(*w->ints));
    w->n_ints = a->n_ints;
}

static void clone_attr_as(struct cloner *c, tsr_node *n, const tsr_attr *a, struct str name)
{
    tsr_attr *w = tsr__attr_append(n);
    if (!w)
        return;
    bool renamed = !str_eq(a->name, name);
    w->name = tsr__keep(c->to, name);
    w->kind = a->kind;
    w->whole = a->whole;
    w->rest = a->rest;
    w->changed = a->changed || renamed;
    if (a->ref.n)
        w->ref = tsr__keep(c->to, a->ref);
    clone_attr_value(w, a);
    if (!a->n_graphs)
        return;
    w->graphs = ARENA_ARRAY(&c->to->arena, tsr_graph *, a->n_graphs);
    for (size_t i = 0; w->graphs && i < a->n_graphs; i++) {
        tsr_graph *g = tsr__clone_graph(c, a->graphs[i], n, w);
        if (!g)
            return;
        w->graphs[w->n_graphs++] = g;
    }
    w->changed = w->changed || !c->exact;
    n->flags |= N_GRAPHS;
    c->to->has_subgraphs = true;
}

// An attribute of a function's body that stands for one of the call, or for the function's default.
static void substitute(struct cloner *c, tsr_node *n, const tsr_attr *a)
{
    for (size_t i = 0; i < tsr_node_attr_count(c->call); i++)
        if (str_eq(c->call->attrs[i]->name, a->ref)) {
            clone_attr_as(c, n, c->call->attrs[i], a->name);
            return;
        }
    struct str body = tsr__function_default(c->fn, a->ref);
    tsr_attr *w = body.n ? tsr__attr_append(n) : NULL;
    if (!w)
        return; // neither given nor defaulted: absent, as the function means it
    w->name = tsr__keep(c->to, a->name);
    w->kind = a->kind;
    w->rest = body;
    w->changed = true;
}

// ---- nodes ----------------------------------------------------------------------------------

tsr_node *tsr__clone_node(struct cloner *c, tsr_graph *g, const tsr_node *n, size_t n_inputs,
                          size_t n_outputs)
{
    struct str name = clone_name(c, n->name, n->flags & N_TEXT);
    tsr_node *w = tsr__node_make(g, n->domain->text, n->op->text, name, n_inputs, n_outputs);
    if (!w)
        return NULL;
    w->whole = n->whole;
    w->flags = (n->flags & (N_TEXT | N_NEW | N_CHANGED | N_RESIZED)) | N_ATTRS;
    if (!(n->flags & N_ATTRS) && !c->call) { // nobody has looked at them: they stay bytes
        w->n_attrs = n->n_attrs;
        w->flags &= ~(uint32_t)N_ATTRS;
        return w;
    }
    for (size_t i = 0; i < tsr_node_attr_count(n); i++) {
        if (c->call && n->attrs[i]->ref.n)
            substitute(c, w, n->attrs[i]);
        else
            clone_attr_as(c, w, n->attrs[i], n->attrs[i]->name);
    }
    if (c->call)
        w->flags |= N_ATTRIBUTES;
    tsr__node_relink(w);
    return w;
}

static int64_t *clone_ints(struct cloner *c, const int64_t *from, size_t n)
{
    int64_t *to = ARENA_ARRAY(&c->to->arena, int64_t, n);
    if (to && n)
        memcpy(to, from, n * sizeof(*to));
    return to;
}

static void clone_spec_dim(struct cloner *c, struct spec_dim *to, const struct spec_dim *from)
{
    *to = *from;
    to->factors = ARENA_ARRAY(&c->to->arena, struct spec_factor, from->n);
    for (size_t i = 0; to->factors && i < from->n; i++) {
        to->factors[i] = from->factors[i];
        to->factors[i].size.symbol = tsr__keep(c->to, str_of(from->factors[i].size.symbol)).p;
    }
}

static void clone_spec(struct cloner *c, tsr_node_config *nc, const tsr_spec *p)
{
    tsr_value *twin = p->value ? tsr__twin(c, p->value) : NULL;
    if (p->value && (!twin || (p->value->flags & V_GONE)))
        return; // its value is not there any more
    tsr_spec *w = tsr__spec_make(nc, twin);
    if (!w)
        return;
    w->whole = p->whole;
    w->flags = c->exact ? p->flags : p->flags | S_NAME;
    w->devices.at = clone_ints(c, p->devices.at, p->devices.n);
    w->devices.n = w->devices.cap = w->devices.at ? p->devices.n : 0;
    for (size_t i = 0; i < p->groups.n; i++) {
        struct spec_group *g = vec_push(&c->to->arena, &w->groups);
        if (!g)
            return;
        *g = p->groups.at[i];
        g->members = clone_ints(c, g->members, g->n);
    }
    for (size_t i = 0; i < p->dims.n; i++) {
        struct spec_dim *d = vec_push(&c->to->arena, &w->dims);
        if (!d)
            return;
        clone_spec_dim(c, d, &p->dims.at[i]);
    }
}

void tsr__clone_configs(struct cloner *c, tsr_node *to, const tsr_node *from)
{
    if (!c->config) {
        if (from->n_configs)
            to->flags |= N_CONFIGS; // they do not come along
        return;
    }
    for (size_t i = 0; i < from->n_configs; i++) {
        const tsr_node_config *nc = from->configs[i];
        tsr_config *config = nc->config ? c->config(c->data, nc->config) : NULL;
        tsr_node_config *w = tsr__node_config_make(to, config);
        if (!w)
            return;
        w->whole = nc->whole;
        w->has_stage = nc->has_stage;
        w->stage = nc->stage;
        for (size_t k = 0; k < nc->n_specs; k++)
            clone_spec(c, w, nc->specs[k]);
        w->changed = nc->changed || !c->exact || w->n_specs != nc->n_specs;
        if (w->changed)
            to->flags |= N_CONFIGS;
    }
}

static void clone_inner_node(struct cloner *c, tsr_graph *g, const tsr_node *n)
{
    tsr_node *w = tsr__clone_node(c, g, n, n->n_inputs, n->n_outputs);
    if (!w)
        return;
    for (size_t i = 0; i < n->n_inputs; i++)
        tsr__use_link(&w->inputs[i], tsr__twin(c, n->inputs[i].value));
    for (size_t i = 0; i < n->n_outputs; i++) {
        w->outputs[i] = tsr__twin(c, n->outputs[i]);
        if (w->outputs[i])
            w->outputs[i]->producer = w;
    }
    tsr__node_append(g, w);
    tsr__clone_configs(c, w, n);
    if (!c->exact)
        w->flags |= N_INPUTS; // a captured value may be called otherwise
}

// ---- graphs ---------------------------------------------------------------------------------

static void clone_ports(struct cloner *c, tsr_graph *to, const tsr_graph *from)
{
    for (size_t i = 0; i < from->inputs.n; i++) {
        struct port *p = vec_push(&c->to->arena, &to->inputs);
        if (!p)
            return;
        *p = from->inputs.at[i];
        p->value = tsr__twin(c, p->value);
    }
    for (size_t i = 0; i < from->outputs.n; i++) {
        struct port *p = vec_push(&c->to->arena, &to->outputs);
        if (!p)
            return;
        *p = from->outputs.at[i];
        tsr_value *twin = tsr__twin(c, p->value);
        p->replaced = p->replaced || (!c->exact && p->value->home != from);
        p->value = twin;
        if (twin)
            twin->n_outputs++;
    }
    for (size_t i = 0; i < from->initializers.n; i++) {
        tsr_value **slot = vec_push(&c->to->arena, &to->initializers);
        tsr_value *twin = tsr__twin(c, from->initializers.at[i]);
        if (!slot || !twin)
            return;
        *slot = twin;
        twin->tensor = clone_tensor(c->to, from->initializers.at[i]->tensor, twin);
    }
    for (size_t i = 0; i < from->sparse.n; i++) {
        tsr_value **slot = vec_push(&c->to->arena, &to->sparse);
        tsr_value *twin = tsr__twin(c, from->sparse.at[i]);
        if (!slot || !twin)
            return;
        *slot = twin;
        twin->tensor = clone_tensor(c->to, from->sparse.at[i]->tensor, twin);
    }
}

tsr_graph *tsr__clone_graph(struct cloner *c, const tsr_graph *g, tsr_node *owner, tsr_attr *attr)
{
    tsr_graph *w = tsr__graph_make(c->to, g->names.n);
    if (!w)
        return NULL;
    w->owner = owner;
    w->attr = attr;
    w->body = g->body;
    w->infos = g->infos;
    w->absent = g->absent;
    w->n_fields = g->n_fields;
    w->name = clone_name(c, g->name, g->flags & G_TEXT);
    w->flags = g->flags & ~(uint32_t)G_ORDER;
    for (const tsr_value *v = g->values; v; v = v->next)
        clone_value(c, w, v);
    clone_map(c, &w->names, &g->names);
    clone_map(c, &w->renamed, &g->renamed);
    for (const tsr_node *n = g->first; n && !c->to->arena.failed; n = n->next)
        clone_inner_node(c, w, n);
    clone_ports(c, w, g);
    if (!c->exact)
        w->flags |= G_NODES | G_OUTPUTS | G_LIST;
    return w;
}

// ---- whole models ---------------------------------------------------------------------------

static tsr_config *config_twin(void *data, tsr_config *c)
{
    (void)data;
    return c->twin;
}

static tsr_config *clone_config(tsr_model *to, tsr_config *c)
{
    tsr_config *w = ARENA_NEW(&to->arena, tsr_config);
    struct str *names = ARENA_ARRAY(&to->arena, struct str, c->n_names);
    if (!w || !names)
        return NULL;
    *w = *c;
    w->model = to;
    w->twin = NULL;
    w->name = tsr__keep(to, c->name);
    w->names = names;
    for (size_t i = 0; i < c->n_names; i++)
        names[i] = tsr__keep(to, c->names[i]);
    return c->twin = w;
}

static void clone_configurations(tsr_model *to, const tsr_model *from)
{
    for (size_t i = 0; i < from->configs.n; i++) {
        tsr_config **slot = vec_push(&to->arena, &to->configs);
        tsr_config *w = clone_config(to, from->configs.at[i]);
        if (!slot || !w)
            return;
        *slot = w;
    }
    // Those that only nodes know: stand-ins, and ones taken off the model.
    for (tsr_node *n = tsr_model_next_node(from, NULL); n; n = tsr_model_next_node(from, n))
        for (size_t i = 0; i < n->n_configs; i++) {
            tsr_config *c = n->configs[i]->config;
            if (!c || (c->twin && c->twin->model == to))
                continue;
            tsr_config *w = clone_config(to, c);
            void **slot = w && w->standin ? tsr__map_at(&to->config_ids, w->name) : NULL;
            if (slot)
                *slot = w;
        }
}

static void clone_opsets(tsr_model *to, opset_list *list, const opset_list *old)
{
    for (size_t i = 0; i < old->n; i++) {
        struct opset *o = vec_push(&to->arena, list);
        if (!o)
            return;
        *o = old->at[i];
        o->domain = tsr__keep(to, o->domain);
    }
}

static void clone_functions(struct cloner *c)
{
    for (size_t i = 0; i < c->from->functions.n; i++) {
        const tsr_function *f = c->from->functions.at[i];
        tsr_function *w = ARENA_NEW(&c->to->arena, tsr_function);
        tsr_function **slot = vec_push(&c->to->arena, &c->to->functions);
        if (!w || !slot)
            return;
        *w = (tsr_function){.model = c->to, .whole = f->whole, .index = i};
        w->name = tsr__keep(c->to, f->name);
        w->domain = tsr__keep(c->to, f->domain);
        w->overload = tsr__keep(c->to, f->overload);
        clone_opsets(c->to, &w->opsets, &f->opsets);
        w->graph = tsr__clone_graph(c, f->graph, NULL, NULL);
        if (w->graph)
            w->graph->function = w;
        *slot = w;
    }
}

tsr_status tsr__model_copy_functions(tsr_model *to, const tsr_model *from)
{
    struct cloner c;
    size_t before = to->functions.n;
    tsr__cloner_init(&c, to, from);
    clone_functions(&c);
    tsr_status st = tsr__cloner_end(&c);
    for (size_t i = before; st == TSR_OK && i < to->functions.n; i++)
        if (!to->functions.at[i]->graph)
            st = TSR_NOMEM;
    to->changed = true;
    return st;
}

static void clone_head(tsr_model *to, const tsr_model *m)
{
    to->path = m->path ? tsr__keep(to, str_of(m->path)).p : NULL;
    to->ir_version = m->ir_version;
    to->has_ir_version = m->has_ir_version;
    to->ir_changed = m->ir_changed;
    to->changed = m->changed;
    to->renamed = m->renamed;
    to->devices_touched = m->devices_touched;
    to->producer = tsr__keep(to, m->producer);
    to->opsets_changed = m->opsets_changed;
    to->metadata_changed = m->metadata_changed;
    to->configs_changed = m->configs_changed;
    clone_opsets(to, &to->opsets, &m->opsets);
    for (size_t i = 0; i < m->metadata.n; i++) {
        struct metadata *e = vec_push(&to->arena, &to->metadata);
        if (!e)
            return;
        *e = m->metadata.at[i];
        e->key = tsr__keep(to, e->key);
        e->value = tsr__keep(to, e->value);
    }
}

tsr_status tsr_model_clone(const tsr_model *m, tsr_model **out)
{
    tsr_model *to = tsr__model_make(m->session);
    if (!to)
        return TSR_NOMEM;
    tsr__store_drop(to->store);
    to->store = tsr__store_hold(m->store);
    struct cloner c;
    tsr__cloner_init(&c, to, m);
    c.exact = true;
    c.config = config_twin;
    clone_head(to, m);
    clone_configurations(to, m);
    to->graph = tsr__clone_graph(&c, m->graph, NULL, NULL);
    clone_functions(&c);
    tsr_status st = tsr__cloner_end(&c);
    for (size_t i = 0; st == TSR_OK && i < m->functions.n; i++)
        if (!to->functions.at[i]->graph)
            st = TSR_NOMEM;
    if (st != TSR_OK || !to->graph) {
        tsr_model_free(to);
        return TSR_NOMEM;
    }
    *out = to;
    return TSR_OK;
}
