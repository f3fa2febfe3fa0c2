// SPDX-License-Identifier: Apache-2.0
// core.c - making objects and tying them together: values and their names, uses, nodes, graphs.
//
// Names are looked up innermost graph first. A name that is read before anything defines it gets a
// stand-in, which the definition takes over if it comes. Nothing here knows how a model looks in a
// file.
#include "ir/internal.h"

const tsr_value tsr__no_value = {.flags = V_GONE};

struct store *tsr__store_new(tsr_session *s)
{
    struct store *st = tsr__alloc(s, sizeof(*st));
    if (!st)
        return NULL;
    *st = (struct store){.session = s, .refs = 1};
    tsr__arena_init(&st->arena, s);
    return st;
}

struct store *tsr__store_hold(struct store *st)
{
    st->refs++;
    return st;
}

void tsr__store_drop(struct store *st)
{
    if (!st || --st->refs)
        return;
    tsr__store_close_external(st);
    if (st->has_folder)
        tsr__folder_close(&st->folder);
    tsr__file_unmap(&st->file);
    tsr__arena_free(&st->arena);
    tsr__free(st->session, st, sizeof(*st));
}

tsr_model *tsr__model_make(tsr_session *s)
{
    tsr_model *m = tsr__alloc(s, sizeof(*m));
    if (!m)
        return NULL;
    *m = (tsr_model){.session = s};
    tsr__arena_init(&m->arena, s);
    tsr__arena_init(&m->kept_ranks, s);
    tsr__map_init(&m->symbols, &m->arena, 0);
    tsr__map_init(&m->config_ids, &m->arena, 0);
    tsr__map_init(&m->fresh, &m->arena, 0);
    tsr__map_init(&m->function_names, &m->arena, 0);
    m->store = tsr__store_new(s);
    if (!m->store || m->arena.failed) {
        tsr_model_free(m);
        return NULL;
    }
    return m;
}

void tsr_model_free(tsr_model *m)
{
    if (!m)
        return;
    tsr__store_drop(m->store);
    for (size_t i = 0; i < m->held.n; i++)
        tsr__store_drop(m->held.at[i]);
    tsr_session *s = m->session;
    tsr__arena_free(&m->kept_ranks);
    tsr__arena_free(&m->arena);
    tsr__free(s, m, sizeof(*m));
}

tsr_graph *tsr__graph_make(tsr_model *m, size_t names)
{
    tsr_graph *g = ARENA_NEW(&m->arena, tsr_graph);
    if (!g)
        return NULL;
    g->model = m;
    tsr__map_init(&g->names, &m->arena, names);
    tsr__map_init(&g->renamed, &m->arena, 0);
    g->next = m->graphs;
    m->graphs = g;
    return g;
}

struct str tsr__keep(tsr_model *m, struct str text)
{
    struct str copy = tsr__arena_str(&m->arena, text);
    return copy.p ? copy : STR("");
}

const char *tsr__text(tsr_model *m, struct str *view, uint32_t *flags, uint32_t bit)
{
    if (*flags & bit)
        return view->p;
    if (!view->n)
        return "";
    struct str copy = tsr__arena_str(&m->arena, *view);
    if (!copy.p)
        return "";
    *view = copy;
    *flags |= bit;
    return copy.p;
}

const struct symbol *tsr__symbol(tsr_model *m, struct str text)
{
    static const struct symbol empty = {{"", 0}};
    if (!text.n)
        return &empty;
    if (m->last_op && str_eq(m->last_op->text, text))
        return m->last_op;
    struct symbol *sym = tsr__map_get(&m->symbols, text);
    if (!sym) { // the key is our own copy: the caller's text may go
        sym = ARENA_NEW(&m->arena, struct symbol);
        struct str kept = tsr__arena_str(&m->arena, text);
        void **slot = kept.p ? tsr__map_at(&m->symbols, kept) : NULL;
        if (!sym || !slot)
            return &empty;
        sym->text = kept;
        *slot = sym;
    }
    m->last_op = sym;
    return sym;
}

// ---- values ---------------------------------------------------------------------------------

tsr_value *tsr__value_make(tsr_graph *g, struct str name)
{
    tsr_value *v = ARENA_NEW(&g->model->arena, tsr_value);
    if (!v)
        return NULL;
    v->name = name;
    v->home = g;
    v->id = g->model->n_value_ids++;
    if (g->last_value)
        g->last_value->next = v;
    else
        g->values = v;
    g->last_value = v;
    return v;
}

tsr_value *tsr__graph_own(const tsr_graph *g, struct str name)
{
    if (!name.n)
        return NULL;
    tsr_value *v = tsr__map_get(&g->names, name);
    return v == &tsr__no_value ? NULL : v;
}

tsr_value *tsr__graph_lookup(const tsr_graph *g, struct str name)
{
    for (; g; g = g->owner ? g->owner->graph : NULL) {
        tsr_value *v = tsr__graph_own(g, name);
        if (v)
            return v;
    }
    return NULL;
}

// Names mostly differ at their end, after a long common path.
static bool same_name(struct str a, struct str b)
{
    return a.n == b.n && a.p[a.n - 1] == b.p[b.n - 1] && memcmp(a.p, b.p, a.n) == 0;
}

void tsr__name_seen(tsr_model *m, struct str name)
{
    void **slot = m->seen.arena && name.n ? tsr__map_at(&m->seen, name) : NULL;
    if (slot)
        *slot = m;
}

// All names of all graphs, once: looking into every graph for every new name would take graphs times names.
static void see_all_names(tsr_model *m)
{
    tsr__map_init(&m->seen, &m->arena, m->n_value_ids);
    for (const tsr_graph *g = m->graphs; g; g = g->next)
        for (size_t i = 0; i < g->names.cap; i++)
            if (g->names.slots[i].hash)
                tsr__name_seen(m, (struct str){g->names.slots[i].p, g->names.slots[i].n});
}

tsr_value *tsr__graph_refer(tsr_graph *g, struct str name)
{
    if (!name.n)
        return NULL;
    if (g->last_value && same_name(g->last_value->name, name)) // a chain reads what was just made
        return g->last_value;
    tsr_value *v = tsr__graph_lookup(g, name);
    if (v)
        return v;
    void **slot = tsr__map_at(&g->names, name);
    v = slot ? tsr__value_make(g, name) : NULL;
    if (!v)
        return NULL;
    v->flags |= V_STANDIN;
    *slot = v;
    tsr__name_seen(g->model, name);
    return v;
}

tsr_value *tsr__value_define(tsr_graph *g, struct str name)
{
    if (!name.n)
        return tsr__value_make(g, name);
    void **slot = tsr__map_at(&g->names, name);
    if (!slot)
        return NULL;
    tsr_value *v = *slot;
    if (v && v != &tsr__no_value && (v->flags & V_STANDIN)) {
        v->flags &= ~(uint32_t)V_STANDIN;
        return v;
    }
    v = tsr__value_make(g, name);
    if (v)
        *slot = v; // a second definition is the one that later readers see
    tsr__name_seen(g->model, name);
    return v;
}

void tsr__use_link(struct use *u, tsr_value *v)
{
    u->value = v;
    if (!v)
        return;
    if (v->last_use) {
        u->next = v->last_use->next;
        u->prev = v->last_use;
        u->next->prev = u;
        v->last_use->next = u;
    } else {
        u->next = u->prev = u;
    }
    v->last_use = u;
    v->n_uses++;
}

void tsr__use_unlink(struct use *u)
{
    tsr_value *v = u->value;
    if (!v || !u->next)
        return;
    if (u->next == u) {
        v->last_use = NULL;
    } else {
        u->prev->next = u->next;
        u->next->prev = u->prev;
        if (v->last_use == u)
            v->last_use = u->prev;
    }
    u->next = u->prev = NULL;
    v->n_uses--;
}

tsr_model *tsr__value_model(const tsr_value *v)
{
    return v->home->model;
}

// ---- nodes ----------------------------------------------------------------------------------

tsr_node *tsr__node_make(tsr_graph *g, struct str domain, struct str op, struct str name,
                         size_t n_inputs, size_t n_outputs)
{
    tsr_model *m = g->model;
    if (n_inputs > UINT32_MAX || n_outputs > UINT32_MAX)
        return NULL;
    tsr_node *n = ARENA_NEW(&m->arena, tsr_node);
    struct use *inputs = ARENA_ARRAY(&m->arena, struct use, n_inputs);
    tsr_value **outputs = ARENA_ARRAY(&m->arena, tsr_value *, n_outputs);
    if (!n || m->arena.failed)
        return NULL;
    n->graph = g;
    n->name = name;
    n->domain = str_is(domain, "ai.onnx") ? tsr__symbol(m, STR("")) : tsr__symbol(m, domain);
    n->op = tsr__symbol(m, op);
    n->inputs = inputs;
    n->outputs = outputs;
    n->n_inputs = (uint32_t)n_inputs;
    n->n_outputs = (uint32_t)n_outputs;
    for (size_t i = 0; i < n_inputs; i++)
        inputs[i].node = n;
    n->id = m->n_node_ids++;
    return n;
}

void tsr__node_append(tsr_graph *g, tsr_node *n)
{
    n->graph = g;
    n->prev = g->last;
    n->next = NULL;
    if (g->last)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
    n->index = (uint32_t)g->n_nodes++;
    if (n->flags & N_NEW)
        g->flags |= G_LIST;
}

static void mark_graph(tsr_graph *g, uint32_t bits);

void tsr__touch_node(tsr_node *n, uint32_t bits)
{
    if (bits != N_CONFIGS)
        n->graph->model->n_edits++;
    if ((n->flags & bits) == bits)
        return;
    n->flags |= bits;
    mark_graph(n->graph, G_NODES);
}

void tsr__touch_graph(tsr_graph *g, uint32_t bits)
{
    g->model->n_edits++;
    mark_graph(g, bits);
}

// Marks the graph, and the nodes that hold it, as changed.
static void mark_graph(tsr_graph *g, uint32_t bits)
{
    if ((g->flags & bits) == bits && g->model->changed)
        return;
    g->flags |= bits;
    g->model->changed = true;
    if (g->attr)
        g->attr->changed = true;
    if (g->owner)
        tsr__touch_node(g->owner, N_ATTRIBUTES);
}

bool tsr__graph_within(const tsr_graph *inner, const tsr_graph *outer)
{
    for (; inner; inner = inner->owner ? inner->owner->graph : NULL)
        if (inner == outer)
            return true;
    return false;
}

tsr_graph *tsr__node_subgraph(const tsr_node *n)
{
    for (size_t i = 0; (n->flags & N_GRAPHS) && i < n->n_attrs; i++)
        if (n->attrs[i]->n_graphs)
            return n->attrs[i]->graphs[0];
    return NULL;
}

void tsr__node_relink(tsr_node *n)
{
    tsr_graph *before = NULL;
    for (size_t i = 0; i < n->n_attrs; i++)
        for (size_t k = 0; k < n->attrs[i]->n_graphs; k++) {
            tsr_graph *g = n->attrs[i]->graphs[k];
            g->sibling = NULL;
            if (before)
                before->sibling = g;
            before = g;
        }
}

size_t tsr__room_for(size_t n)
{
    size_t room = 1;
    while (room < n)
        room *= 2;
    return room;
}

void *tsr__room(struct arena *a, void *at, size_t n)
{
    if (n & (n - 1)) // not full
        return at;
    void **more = ARENA_ARRAY(a, void *, n ? 2 * n : 1);
    if (more && n)
        memcpy(more, at, n * sizeof(*more));
    return more;
}

bool tsr__node_has(const tsr_node *n, const tsr_value *v)
{
    for (size_t i = 0; i < n->n_inputs; i++)
        if (n->inputs[i].value == v)
            return true;
    for (size_t i = 0; i < n->n_outputs; i++)
        if (n->outputs[i] == v)
            return true;
    return false;
}

// ---- numbers, texts and places for other rooms ----------------------------------------------

struct arena *tsr__model_arena(tsr_model *m)
{
    return &m->arena;
}
uint32_t tsr__node_id(const tsr_node *n)
{
    return n->id;
}
uint32_t tsr__value_id(const tsr_value *v)
{
    return v->id;
}
uint32_t tsr__model_node_ids(const tsr_model *m)
{
    return m->n_node_ids;
}
uint32_t tsr__model_value_ids(const tsr_model *m)
{
    return m->n_value_ids;
}

const int *tsr__model_ranks(const tsr_model *m)
{
    return m->ranks_n_edits == m->n_edits ? m->ranks : NULL;
}

tsr_status tsr__model_keep_ranks(tsr_model *m, const int *ranks)
{
    tsr__arena_free(&m->kept_ranks);
    tsr__arena_init(&m->kept_ranks, m->session);
    int *kept = ARENA_ARRAY(&m->kept_ranks, int, (size_t)m->n_value_ids + 1);
    m->ranks = kept;
    m->ranks_n_edits = m->n_edits;
    if (!kept)
        return TSR_NOMEM;
    memcpy(kept, ranks, m->n_value_ids * sizeof *kept);
    return TSR_OK;
}
struct str tsr__value_str(const tsr_value *v)
{
    return v->name;
}
struct str tsr__node_str(const tsr_node *n)
{
    return n->name;
}
struct str tsr__node_op_str(const tsr_node *n)
{
    return n->op->text;
}
struct str tsr__node_domain_str(const tsr_node *n)
{
    return n->domain->text;
}

struct str tsr__graph_path(const tsr_graph *cg)
{
    tsr_graph *g = (tsr_graph *)cg;
    struct arena *a = &g->model->arena;
    if (g->path.n)
        return g->path;
    if (g->function) {
        g->path = tsr__arena_printf(a, "function " STR_FMT, STR_ARG(g->function->name));
    } else if (g->owner) {
        struct str outer = tsr__graph_path(g->owner->graph);
        g->path =
            tsr__arena_printf(a, STR_FMT " > #%lld " STR_FMT " " STR_FMT, STR_ARG(outer),
                              (long long)tsr_node_index(g->owner), STR_ARG(g->owner->op->text),
                              STR_ARG(g->attr ? g->attr->name : STR("")));
    } else {
        return STR("main");
    }
    return g->path.p ? g->path : STR("main");
}

// "outer > branch", "function f": what stands before the name of a node in an edit.
static struct str graph_words(tsr_graph *g)
{
    struct arena *a = &g->model->arena;
    if (g->words.n || (!g->owner && !g->function))
        return g->words;
    if (g->function)
        return g->words = tsr__graph_path(g);
    struct str outer = graph_words(g->owner->graph), name = g->owner->name;
    if (!name.n)
        name = tsr__arena_printf(a, "#%lld", (long long)tsr_node_index(g->owner));
    return g->words = tsr__arena_printf(a, STR_FMT "%s" STR_FMT " > " STR_FMT, STR_ARG(outer),
                                        outer.n ? " > " : "", STR_ARG(name),
                                        STR_ARG(g->attr ? g->attr->name : STR("")));
}

struct place tsr__place_node(const tsr_node *n)
{
    struct place at = PLACE_NONE;
    at.within = graph_words(n->graph);
    at.file = str_of(n->graph->model->path ? n->graph->model->path : "");
    at.graph = tsr__graph_path(n->graph);
    at.node_index = n->flags & N_GONE ? -1 : tsr_node_index(n);
    at.node = n->name;
    at.op = n->op->text;
    return at;
}

struct place tsr__place_value(const tsr_value *v)
{
    struct place at = PLACE_NONE;
    tsr_model *m = tsr__value_model(v);
    at.file = str_of(m->path ? m->path : "");
    at.graph = tsr__graph_path(v->home);
    at.value = v->name;
    return at;
}

int64_t tsr__graph_opset(const tsr_graph *g, struct str domain)
{
    while (g->owner)
        g = g->owner->graph;
    const opset_list *list = g->function ? &g->function->opsets : &g->model->opsets;
    for (size_t i = 0; i < list->n; i++)
        if (str_eq(list->at[i].domain, domain))
            return list->at[i].version;
    return 0;
}

int64_t tsr__node_opset(const tsr_node *n)
{
    return tsr__graph_opset(n->graph, n->domain->text);
}

struct str tsr__graph_fresh_name(tsr_graph *g, struct str base)
{
    tsr_model *m = g->model;
    struct str name = tsr__keep(m, base.n ? base : STR("v"));
    void **slot = tsr__map_at(&m->fresh, name);
    uintptr_t count = slot ? (uintptr_t)*slot : 0;
    if (!m->seen.arena)
        see_all_names(m);
    for (;; count++) {
        struct str try = name;
        if (count)
            try = tsr__arena_printf(&m->arena, STR_FMT "_%llu", STR_ARG(name),
                                    (unsigned long long)count);
        if (m->arena.failed)
            return STR("");
        if (tsr__map_get(&m->seen, try))
            continue;
        tsr__name_seen(m, try);
        if (slot)
            *slot = (void *)(count + 1);
        return try;
    }
}
