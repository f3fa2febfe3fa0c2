// SPDX-License-Identifier: Apache-2.0
// transplant.c - what other rooms build graphs from: copies of nodes and constants in another graph or model, the
// values that subgraphs read from outside, and the inlining of function calls.
#include "ir/internal.h"

// ---- nodes ----------------------------------------------------------------------------------

static tsr_status check_outputs(tsr_graph *g, const struct str *outputs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const tsr_value *own = tsr__graph_own(g, outputs[i]);
        if (!own || (own->flags & V_STANDIN))
            continue;
        struct place at = PLACE_NONE;
        at.graph = tsr__graph_path(g);
        at.value = outputs[i];
        tsr__diag(g->model->session, DIAG_name_taken, &at, "choose another name",
                  "there is a value '" STR_FMT "' already", STR_ARG(outputs[i]));
        return TSR_INVALID;
    }
    return TSR_OK;
}

static tsr_value *copy_output(tsr_graph *g, struct str name)
{
    struct str kept = tsr__keep(g->model, name);
    tsr_value *v = g->model->arena.failed ? NULL : tsr__value_define(g, kept);
    if (v) {
        v->name = kept; // also of a stand-in that waited for it
        v->flags |= V_NEW | V_TEXT;
    }
    return v;
}

tsr_node *tsr__node_copy_deep(tsr_graph *g, const tsr_node *n, tsr_value *const *inputs,
                              size_t n_inputs, const struct str *outputs, size_t n_outputs,
                              tsr_value *(*map)(void *data, tsr_value *outer), void *data)
{
    if (check_outputs(g, outputs, n_outputs) != TSR_OK)
        return NULL;
    struct cloner c;
    tsr__cloner_init(&c, g->model, n->graph->model);
    c.outer = map;
    c.data = data;
    tsr__attrs_decode((tsr_node *)n);
    tsr_node *w = tsr__clone_node(&c, g, n, n_inputs, n_outputs);
    for (size_t i = 0; w && i < n_outputs; i++) {
        w->outputs[i] = outputs[i].n ? copy_output(g, outputs[i]) : NULL;
        if (w->outputs[i])
            w->outputs[i]->producer = w;
    }
    if (tsr__cloner_end(&c) != TSR_OK || !w)
        return NULL;
    for (size_t i = 0; i < n_inputs; i++)
        tsr__use_link(&w->inputs[i], inputs[i]);
    w->flags |= N_NEW;
    tsr__node_append(g, w);
    tsr__touch_graph(g, G_NODES);
    return w;
}

tsr_node *tsr__node_copy(tsr_graph *g, const tsr_node *n, tsr_value *const *inputs, size_t n_inputs,
                         const struct str *outputs, size_t n_outputs)
{
    return tsr__node_copy_deep(g, n, inputs, n_inputs, outputs, n_outputs, NULL, NULL);
}

// ---- captures -------------------------------------------------------------------------------

struct captures {
    const tsr_node *node;
    struct arena *arena;
    struct arena scratch;
    struct map seen;
    VEC(tsr_value *) list;
};

static bool defined_below(const tsr_graph *g, const tsr_node *n)
{
    for (; g; g = g->owner ? g->owner->graph : NULL)
        if (g->owner == n)
            return true;
    return false;
}

static void capture(struct captures *c, tsr_value *v)
{
    if (!v || defined_below(v->home, c->node))
        return;
    tsr_value **key = ARENA_NEW(&c->scratch, tsr_value *);
    if (!key)
        return;
    *key = v;
    void **slot = tsr__map_at(&c->seen, (struct str){(const char *)key, sizeof(*key)});
    tsr_value **entry = slot && !*slot ? vec_push(c->arena, &c->list) : NULL;
    if (entry)
        *slot = *entry = v;
}

static void captures_of(struct captures *c, const tsr_node *n)
{
    for (tsr_graph *g = tsr__node_subgraph(n); g; g = g->sibling) {
        for (const tsr_node *in = g->first; in; in = in->next) {
            for (size_t i = 0; i < in->n_inputs; i++)
                capture(c, in->inputs[i].value);
            captures_of(c, in);
        }
        for (size_t i = 0; i < g->outputs.n; i++)
            capture(c, g->outputs.at[i].value);
    }
}

size_t tsr__node_captures(const tsr_node *n, tsr_value ***out)
{
    struct captures c = {.node = n, .arena = &n->graph->model->arena};
    *out = NULL;
    if (!(n->flags & N_GRAPHS))
        return 0;
    tsr__arena_init(&c.scratch, n->graph->model->session);
    tsr__map_init(&c.seen, &c.scratch, 0);
    captures_of(&c, n);
    tsr__arena_free(&c.scratch);
    *out = c.list.at;
    return c.list.n;
}

// ---- constants ------------------------------------------------------------------------------

tsr_value *tsr__graph_copy_initializer(tsr_graph *g, const tsr_value *v, const char *name)
{
    tsr_model *m = g->model;
    tsr_tensor *from = v->tensor;
    struct str text = str_of(name);
    if (!from || check_outputs(g, &text, 1) != TSR_OK)
        return NULL;
    tsr__tensor_decode(from);
    bool inside = (from->external || from->sparse.n) && from->type != TSR_STRING;
    if (inside && tsr__tensor_ready(from) != TSR_OK)
        return NULL;
    if (m != from->model)
        tsr__model_hold(m, from->model);
    tsr_tensor *t = ARENA_NEW(&m->arena, tsr_tensor);
    int64_t *dims = ARENA_ARRAY(&m->arena, int64_t, (size_t)from->rank);
    tsr_value **slot = t && dims ? vec_push(&m->arena, &g->initializers) : NULL;
    if (!slot)
        return NULL;
    tsr_value *w = copy_output(g, text);
    if (!w) {
        g->initializers.n--;
        return NULL;
    }
    *t = *from;
    t->model = m;
    t->value = w;
    t->whole = (struct str){NULL, 0};
    t->store = from->store ? from->store : from->model->store;
    t->dims = dims;
    if (from->rank)
        memcpy(dims, from->dims, (size_t)from->rank * sizeof(*dims));
    t->data_ready = false;
    if (inside) {
        t->raw = (struct str){from->data, from->bytes};
        t->has_raw = t->replaced = true;
        t->external = false;
        t->sparse = (struct str){NULL, 0};
    }
    w->tensor = t;
    *slot = w;
    tsr__touch_graph(g, G_INITIALIZERS);
    return w;
}

// ---- inlining -------------------------------------------------------------------------------

// What functions are found by: two symbols of the model and the overload's text.
struct function_key {
    const struct symbol *domain, *name, *overload;
};

static struct str key_bytes(const struct function_key *key)
{
    return (struct str){(const char *)key, sizeof(*key)};
}

// Functions that were added since the last look-up get their entries; of several alike the first counts.
static void name_functions(tsr_model *m)
{
    for (; m->n_functions_named < m->functions.n; m->n_functions_named++) {
        tsr_function *f = m->functions.at[m->n_functions_named];
        struct function_key *key = ARENA_NEW(&m->arena, struct function_key);
        if (!key)
            return;
        key->domain = tsr__symbol(m, f->domain);
        key->name = tsr__symbol(m, f->name);
        key->overload = tsr__symbol(m, f->overload);
        void **slot = tsr__map_at(&m->function_names, key_bytes(key));
        if (!slot)
            return;
        if (!*slot)
            *slot = f;
    }
}

// By a table: models with thousands of functions and calls are read too.
static tsr_function *function_of(const tsr_node *call)
{
    tsr_model *m = call->graph->model;
    if (!m->functions.n)
        return NULL;
    name_functions(m);
    struct function_key key = {.domain = tsr__symbol(m, call->domain->text),
                               .name = tsr__symbol(m, call->op->text),
                               .overload = tsr__symbol(m, tsr__node_overload(call))};
    return tsr__map_get(&m->function_names, key_bytes(&key));
}

static const opset_list *opsets_at(const tsr_graph *g)
{
    while (g->owner)
        g = g->owner->graph;
    return g->function ? &g->function->opsets : &g->model->opsets;
}

tsr_function *tsr__node_function(const tsr_node *n)
{
    return function_of(n);
}

const tsr_function *tsr__node_home(const tsr_node *n)
{
    const tsr_graph *g = n->graph;
    while (g->owner)
        g = g->owner->graph;
    return g->function;
}

size_t tsr__function_index(const tsr_function *f)
{
    return f->index;
}

struct call_memo *tsr__function_memo(tsr_function *f)
{
    return &f->memo;
}

// The body's operator sets must be those of the place where it goes, or new there; of another version
// only where the caller knows better.
static tsr_status check_opsets(tsr_node *call, const tsr_function *f, bool change, bool any_version)
{
    tsr_model *m = call->graph->model;
    const opset_list *here = opsets_at(call->graph);
    for (size_t i = 0; i < f->opsets.n; i++) {
        const struct opset *o = &f->opsets.at[i];
        const struct opset *known = NULL;
        for (size_t k = 0; k < here->n; k++)
            if (str_eq(here->at[k].domain, o->domain))
                known = &here->at[k];
        bool imported = known || here == &m->opsets;
        if (imported && (!known || any_version || known->version == o->version)) {
            tsr_status st =
                !known && change ? tsr_model_set_opset(m, o->domain.p, o->version) : TSR_OK;
            if (st != TSR_OK)
                return st;
            continue;
        }
        struct place at = tsr__place_node(call);
        tsr__diag(m->session, DIAG_inline_opset, &at, "convert the function or the model first",
                  "function '" STR_FMT "' needs version %lld of '" STR_FMT "', here it is %lld",
                  STR_ARG(f->name), (long long)o->version, STR_ARG(o->domain),
                  (long long)(known ? known->version : 0));
        return TSR_UNSUPPORTED;
    }
    return TSR_OK;
}

// Places are told only where something is wrong: the index in one is counted anew after every change of the graph.
static tsr_status check_call(tsr_node *call, bool any_version, const tsr_function **out)
{
    tsr_session *s = call->graph->model->session;
    const tsr_function *f = call->flags & N_GONE ? NULL : function_of(call);
    if (!f) {
        struct place at = tsr__place_node(call);
        tsr__diag(s, DIAG_inline_unknown, &at, NULL,
                  "'" STR_FMT "' is not the name of a function of this model",
                  STR_ARG(call->op->text));
        return TSR_INVALID;
    }
    if (call->n_inputs > f->graph->inputs.n || call->n_outputs > f->graph->outputs.n) {
        struct place at = tsr__place_node(call);
        tsr__diag(s, DIAG_inline_arity, &at, NULL,
                  "function '" STR_FMT "' has %zu inputs and %zu outputs, the call %u and %u",
                  STR_ARG(f->name), f->graph->inputs.n, f->graph->outputs.n, call->n_inputs,
                  call->n_outputs);
        return TSR_INVALID;
    }
    for (const tsr_graph *g = call->graph; g; g = g->owner ? g->owner->graph : NULL)
        if (g->function == f) {
            struct place at = tsr__place_node(call);
            tsr__diag(s, DIAG_inline_unknown, &at, NULL,
                      "function '" STR_FMT "' cannot be put into itself", STR_ARG(f->name));
            return TSR_INVALID;
        }
    *out = f;
    return check_opsets(call, f, false, any_version);
}

static tsr_config *same_config(void *data, tsr_config *c)
{
    (void)data;
    return c;
}

static tsr_value *no_outer(void *data, tsr_value *v)
{
    (void)data;
    (void)v;
    return NULL;
}

// A name for a thing of the body: the call's name (or operator) in front.
static struct str inner_name(tsr_node *call, struct str name)
{
    tsr_model *m = call->graph->model;
    struct str base = call->name.n ? call->name : call->op->text;
    return tsr__arena_printf(&m->arena, STR_FMT "/" STR_FMT, STR_ARG(base), STR_ARG(name));
}

// Values of the body: inputs are the call's, results that the call uses are its outputs, the rest is new.
static void bind_values(struct cloner *c, tsr_node *call, const tsr_function *f)
{
    const tsr_graph *body = f->graph;
    for (size_t i = 0; i < body->inputs.n && i < call->n_inputs; i++)
        if (call->inputs[i].value)
            tsr__twin_set(c, body->inputs.at[i].value, call->inputs[i].value);
    for (size_t i = 0; i < call->n_outputs; i++) {
        tsr_value *r = body->outputs.at[i].value;
        bool bound = tsr__twin(c, r) != NULL;
        if (call->outputs[i] && !bound && r->producer)
            tsr__twin_set(c, r, call->outputs[i]);
    }
    for (const tsr_value *v = body->values; v; v = v->next) {
        if ((v->flags & (V_INPUT | V_GONE)) || tsr__twin(c, (tsr_value *)v))
            continue;
        struct str name = tsr__graph_fresh_name(call->graph, inner_name(call, v->name));
        tsr_value *w = name.n ? tsr__value_define(call->graph, name) : NULL;
        if (!w)
            return;
        w->flags |= V_NEW | V_TEXT | (v->flags & V_STANDIN);
        tsr__twin_set(c, v, w);
        if (tsr__value_copy_type(w, v) != TSR_OK)
            return;
    }
}

static tsr_node *inline_node(struct cloner *c, tsr_node *call, const tsr_node *n)
{
    tsr_node *w = tsr__clone_node(c, call->graph, n, n->n_inputs, n->n_outputs);
    if (!w)
        return NULL;
    if (n->name.n) {
        w->name = inner_name(call, n->name);
        w->flags |= N_TEXT;
    }
    w->flags |= N_NEW;
    for (size_t i = 0; i < n->n_inputs; i++)
        tsr__use_link(&w->inputs[i], tsr__twin(c, n->inputs[i].value));
    for (size_t i = 0; i < n->n_outputs; i++) {
        w->outputs[i] = tsr__twin(c, n->outputs[i]);
        if (w->outputs[i])
            w->outputs[i]->producer = w;
    }
    tsr__node_append(call->graph, w);
    (void)tsr_node_move_before(w, call);
    tsr__clone_configs(c, w, n);
    return w;
}

// The call's placement for a node of the body that says nothing itself.
static void place_like_call(tsr_node *w, const tsr_node *call)
{
    for (size_t i = 0; i < call->n_configs; i++) {
        const tsr_node_config *from = call->configs[i];
        tsr_node_config *nc = tsr_node_find_config(w, from->config);
        if (!nc && !(nc = tsr__node_config_make(w, from->config)))
            return;
        nc->changed = true;
        if (from->has_stage && !nc->has_stage) {
            nc->has_stage = true;
            nc->stage = from->stage;
        }
        for (size_t k = 0; k < from->n_specs; k++) {
            tsr_spec *p = from->specs[k];
            if (!p->value || !tsr__node_has(w, p->value) || tsr__entry_spec(nc, p->value))
                continue;
            tsr_spec *q = tsr__spec_make(nc, p->value);
            if (!q)
                return;
            *q = (tsr_spec){.entry = nc, .value = p->value, .whole = p->whole, .flags = p->flags};
            q->devices.at = p->devices.at; // never changed in place
            q->devices.n = q->devices.cap = p->devices.n;
            q->groups.at = p->groups.at;
            q->groups.n = q->groups.cap = p->groups.n;
            q->dims.at = p->dims.at;
            q->dims.n = q->dims.cap = p->dims.n;
        }
    }
}

// A value of a subgraph must not have the name of one that can be seen around it.
static void unshadow(const tsr_node *n)
{
    for (tsr_graph *g = tsr__node_subgraph(n); g; g = g->sibling) {
        for (tsr_value *v = g->values; v; v = v->next) {
            if (!v->name.n || (v->flags & (V_STANDIN | V_GONE)) ||
                !tsr__graph_lookup(n->graph, v->name))
                continue;
            struct str name = tsr__graph_fresh_name(g, v->name);
            if (!name.n || tsr_value_rename(v, name.p) != TSR_OK)
                return;
        }
        for (const tsr_node *in = g->first; in; in = in->next)
            unshadow(in);
    }
}

// A result that is an input of the function, or given twice, is handed on by a node of its own.
static tsr_status hand_on(struct cloner *c, tsr_node *call, size_t i)
{
    tsr_value *out = call->outputs[i], *body = c->fn->graph->outputs.at[i].value;
    tsr_value *from = tsr__twin(c, body);
    if (!out || out == from || !from)
        return TSR_OK;
    tsr_node *w = tsr__node_make(call->graph, STR(""), STR("Identity"), STR(""), 1, 1);
    if (!w)
        return TSR_NOMEM;
    w->flags |= N_NEW | N_ATTRS;
    tsr__use_link(&w->inputs[0], from);
    w->outputs[0] = out;
    out->producer = w;
    tsr__node_append(call->graph, w);
    place_like_call(w, call);
    return tsr_node_move_before(w, call);
}

static tsr_status inline_call(tsr_node *call, bool any_version)
{
    const tsr_function *f = NULL;
    tsr_status st = check_call(call, any_version, &f);
    if (st == TSR_OK)
        st = check_opsets(call, f, true, any_version);
    if (st != TSR_OK)
        return st;
    tsr_graph *g = call->graph;
    struct cloner c;
    tsr__cloner_init(&c, g->model, g->model);
    c.call = call;
    c.fn = f;
    c.config = same_config;
    c.outer = no_outer;
    bind_values(&c, call, f);
    for (const tsr_node *n = f->graph->first; n && !g->model->arena.failed; n = n->next) {
        tsr_node *w = inline_node(&c, call, n);
        if (!w)
            break;
        place_like_call(w, call);
        unshadow(w);
    }
    for (size_t i = 0; i < call->n_outputs && st == TSR_OK; i++)
        st = hand_on(&c, call, i);
    if (tsr__cloner_end(&c) != TSR_OK)
        return TSR_NOMEM;
    for (size_t i = 0; i < call->n_outputs; i++)
        call->outputs[i] = NULL; // they are the body's now
    g->model->changed = true;
    return st == TSR_OK ? tsr_node_remove(call) : st;
}

tsr_status tsr_node_inline(tsr_node *call)
{
    return inline_call(call, false);
}

tsr_status tsr__node_inline_here(tsr_node *call)
{
    return inline_call(call, true);
}
