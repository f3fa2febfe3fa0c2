// SPDX-License-Identifier: Apache-2.0
// state.c - what stays on its devices from one run to the next: a cache.
//
// A state is an output that is the input of the next run. It is read where it lies, so its input costs room like a
// constant and nothing to bring; it stays where it is made, so its output is brought nowhere; what it costs to lie
// otherwise at the end than at the start is an edge of the program. `partition` reads the same words from the metadata.
#include "plan/internal.h"

#define META_STATE    "ai.tessera.state"
#define META_KEEP_CUT "ai.tessera.keep_cut"

// ---- names -------------------------------------------------------------------------------------

// Text matches a pattern with at most one star; *rest is what the star stands for.
static bool matches(struct str pattern, struct str text, struct str *rest)
{
    const char *star = memchr(pattern.p, '*', pattern.n);
    *rest = (struct str){0};
    if (!star)
        return str_eq(pattern, text);
    size_t head = (size_t)(star - pattern.p), tail = pattern.n - head - 1;
    if (text.n < head + tail || memcmp(text.p, pattern.p, head) != 0 ||
        memcmp(text.p + text.n - tail, star + 1, tail) != 0)
        return false;
    *rest = (struct str){text.p + head, text.n - head - tail};
    return true;
}

static bool is_filled(struct str pattern, struct str rest, struct str text)
{
    struct str own;
    return matches(pattern, text, &own) && str_eq(own, rest);
}

static const tsr_value *output_of(const tsr_model *m, struct str pattern, struct str rest)
{
    const tsr_graph *g = tsr_model_graph(m);
    for (size_t i = 0; i < tsr_graph_output_count(g); i++)
        if (is_filled(pattern, rest, tsr__value_str(tsr_graph_output(g, i))))
            return tsr_graph_output(g, i);
    return NULL;
}

static tsr_status refuse(struct planner *p, struct str text, const char *what)
{
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(p->model));
    at.value = text;
    tsr__diag(p->session, DIAG_plan_state, &at, "write past=present: an input and an output", "%s",
              what);
    return TSR_INVALID;
}

// ---- pairs -------------------------------------------------------------------------------------

static bool stay(struct planner *p, const tsr_value *v)
{
    if (!p->stays)
        p->stays = ARENA_ARRAY(&p->arena, unsigned char, tsr__model_value_ids(p->model) + 1);
    if (p->stays)
        p->stays[tsr__value_id(v)] = 1;
    return p->stays != NULL;
}

static tsr_status add_pair(struct planner *p, const tsr_value *past, const tsr_value *present)
{
    struct plan_value *v = &p->values[tsr__value_id(past)];
    struct state_pair *at = vec_push(&p->arena, &p->states);
    if (!at || !stay(p, past) || !stay(p, present))
        return TSR_NOMEM;
    *at = (struct state_pair){past, present};
    v->given = false;
    v->constant = true; // as far as its room goes
    return TSR_OK;
}

static tsr_status add_state(struct planner *p, struct str text)
{
    const tsr_graph *g = tsr_model_graph(p->model);
    const char *equals = memchr(text.p, '=', text.n);
    size_t found = 0;
    if (!equals)
        return refuse(p, text, "a state is two names");
    struct str past = {text.p, (size_t)(equals - text.p)};
    struct str present = {equals + 1, text.n - past.n - 1}, rest;
    for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
        const tsr_value *v = tsr_graph_input(g, i);
        if (!matches(past, tsr__value_str(v), &rest) || tsr_value_initializer(v))
            continue;
        const tsr_value *out = output_of(p->model, present, rest);
        tsr_status st = out ? add_pair(p, v, out)
                            : refuse(p, tsr__value_str(v), "no output is named as the state says");
        if (st != TSR_OK)
            return st;
        found++;
    }
    return found ? TSR_OK : refuse(p, past, "no input of the model has that name");
}

tsr_status tsr__planner_states(struct planner *p, const char *const *state, size_t n)
{
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < n && st == TSR_OK; i++)
        st = add_state(p, str_of(state[i]));
    const char *text = n ? NULL : tsr_model_metadata(p->model, META_STATE);
    for (; text && *text && st == TSR_OK; text += strcspn(text, "\n"), text += *text == '\n') {
        struct str line = {text, strcspn(text, "\n")};
        st = line.n ? add_state(p, line) : TSR_OK;
    }
    return st;
}

bool tsr__planner_hands_over(struct planner *p, const struct planner *to)
{
    const tsr_graph *g = tsr_model_graph(p->model);
    for (size_t i = 0; i < tsr_graph_output_count(g); i++)
        for (size_t k = 0; k < to->states.n; k++) {
            struct str name = tsr__value_str(to->states.at[k].present);
            if (str_eq(tsr__value_str(tsr_graph_output(g, i)), name) &&
                !stay(p, tsr_graph_output(g, i)))
                return false;
        }
    return true;
}

// ---- edges -------------------------------------------------------------------------------------

bool tsr__planner_made_by(const struct planner *p, const tsr_value *v, struct reader *out)
{
    const tsr_node *n = tsr_value_producer(v);
    int64_t at = n ? p->node_at[tsr__node_id(n)] : -1;
    if (at < 0 || !p->nodes[at].strategy)
        return false;
    size_t slot = 0;
    while (tsr_node_output(n, slot) != v)
        slot++;
    *out = (struct reader){.node = (size_t)at, .slot = slot};
    return true;
}

static int64_t capped(int64_t ps)
{
    return ps < PLAN_NEVER ? ps : COST_FORBIDDEN;
}

// From where one node leaves it (out) or wants it to where another wants it; one node that does both is dearer by that.
static bool add_edge(struct planner *p, const tsr_value *v, const struct reader *x, bool out,
                     const struct reader *y)
{
    static const int64_t zero[1] = {0};
    const struct plan_value *value = &p->values[tsr__value_id(v)];
    const struct strategy *s = p->nodes[x->node].strategy, *t = p->nodes[y->node].strategy;
    bool one = x->node == y->node;
    uint32_t key[7] = {10, out, s->id, (uint32_t)x->slot, t->id, (uint32_t)y->slot, one};
    void **kept = tsr__planner_cached(p, key, TSR_COUNT(key));
    size_t n = one ? 1 : t->at.n;
    int64_t *table = !kept   ? NULL
                     : *kept ? *kept
                             : ARENA_ARRAY(&p->arena, int64_t, s->at.n * n + 1);
    if (!table)
        return false;
    for (size_t i = 0; !*kept && i < s->at.n; i++)
        for (size_t k = 0; k < n; k++) {
            uint32_t from = out ? s->at.at[i].out[x->slot] : s->at.at[i].in[x->slot];
            uint32_t to = t->at.at[one ? i : k].in[y->slot];
            table[i * n + k] = capped(tsr__planner_price(p, from, to, value));
        }
    *kept = table;
    uint32_t end =
        one ? tsr__program_node(&p->program, tsr__value_str(v), 1, zero) : p->nodes[y->node].var;
    tsr__program_edge(&p->program, p->nodes[x->node].var, end, table);
    return true;
}

static const struct reader *first_plain(const struct readers *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->at[i].node != SIZE_MAX && !r->at[i].captures)
            return &r->at[i];
    return NULL;
}

bool tsr__planner_state_edges(struct planner *p)
{
    for (size_t i = 0; i < p->states.n; i++) {
        const struct state_pair *x = &p->states.at[i];
        struct readers r = tsr__planner_readers(p, p->work, x->past);
        const struct reader *first = first_plain(&r);
        struct reader from;
        if (first && tsr__planner_made_by(p, x->present, &from) &&
            !add_edge(p, x->present, &from, true, first))
            return false;
        for (size_t k = 0; first && k < r.n; k++)
            if (r.at[k].node != SIZE_MAX && !r.at[k].captures && &r.at[k] != first &&
                !add_edge(p, x->past, first, false, &r.at[k]))
                return false;
    }
    return !p->work->failed;
}

// ---- the model's own words ---------------------------------------------------------------------

static bool has_line(const char *text, struct str line)
{
    for (; text && *text; text += strcspn(text, "\n"), text += *text == '\n') {
        struct str own = {text, strcspn(text, "\n")};
        if (str_eq(own, line))
            return true;
    }
    return false;
}

static void add_line(struct text *t, const char *before, struct str line)
{
    if (!has_line(before, line))
        tsr__text_printf(t, "%s" STR_FMT, t->n ? "\n" : "", STR_ARG(line));
}

static tsr_status set_lines(struct planner *p, const char *key, struct text *t)
{
    tsr_status st = t->failed ? TSR_NOMEM : TSR_OK;
    if (st == TSR_OK && t->n)
        st = tsr_model_set_metadata(p->model, key, t->p);
    tsr__text_free(t);
    return st;
}

tsr_status tsr__planner_keep_states(struct planner *p)
{
    const tsr_graph *g = tsr_model_graph(p->model);
    const char *before = tsr_model_metadata(p->model, META_STATE);
    struct text t;
    tsr__text_init(&t, p->session);
    tsr__text_printf(&t, "%s", before ? before : "");
    for (size_t i = 0; i < p->states.n; i++) {
        struct str line = tsr__arena_printf(&p->arena, STR_FMT "=" STR_FMT,
                                            STR_ARG(tsr__value_str(p->states.at[i].past)),
                                            STR_ARG(tsr__value_str(p->states.at[i].present)));
        if (!before) // else the words stand there, with stars perhaps
            add_line(&t, NULL, line);
    }
    tsr_status st = set_lines(p, META_STATE, &t);
    before = tsr_model_metadata(p->model, META_KEEP_CUT);
    tsr__text_init(&t, p->session);
    tsr__text_printf(&t, "%s", before ? before : "");
    for (size_t i = 0; st == TSR_OK && p->stays && !p->states.n && i < tsr_graph_output_count(g);
         i++)
        if (p->stays[tsr__value_id(tsr_graph_output(g, i))])
            add_line(&t, before, tsr__value_str(tsr_graph_output(g, i)));
    return st == TSR_OK ? set_lines(p, META_KEEP_CUT, &t) : (tsr__text_free(&t), st);
}
