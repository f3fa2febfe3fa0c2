// SPDX-License-Identifier: Apache-2.0
// state.c - what stays on its devices from one run to the next: a cache.
//
// A state is an output that is the input of the next run. It is read where it lies, so its input costs room like a
// constant and nothing to bring; it stays where it is made, so its output is brought nowhere; what it costs to lie
// otherwise at the end than at the start is an edge of the program. `partition` reads the same words from the metadata.
#include "plan/edges.h"

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

static const tsr_value *output_of(const tsr_model *model, struct str pattern, struct str rest)
{
    const tsr_graph *graph = tsr_model_graph(model);
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++)
        if (is_filled(pattern, rest, tsr__value_str(tsr_graph_output(graph, i))))
            return tsr_graph_output(graph, i);
    return NULL;
}

static tsr_status refuse(struct planner *planner, struct str text, const char *what)
{
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(planner->model));
    at.value = text;
    tsr__diag(planner->session, DIAG_plan_state, &at, "write past=present: an input and an output",
              "%s", what);
    return TSR_INVALID;
}

// ---- pairs -------------------------------------------------------------------------------------

static bool stay(struct planner *planner, const tsr_value *value)
{
    if (!planner->ends.stays)
        planner->ends.stays =
            ARENA_ARRAY(&planner->arena, unsigned char, tsr__model_value_ids(planner->model) + 1);
    if (planner->ends.stays)
        planner->ends.stays[tsr__value_id(value)] = 1;
    return planner->ends.stays != NULL;
}

static tsr_status add_pair(struct planner *planner, const tsr_value *past, const tsr_value *present)
{
    struct plan_value *value = &planner->values[tsr__value_id(past)];
    struct state_pair *at = vec_push(&planner->arena, &planner->ends.states);
    if (!at || !stay(planner, past) || !stay(planner, present))
        return TSR_NOMEM;
    *at = (struct state_pair){past, present};
    value->given = false;
    value->constant = true; // as far as its room goes
    return TSR_OK;
}

static tsr_status add_state(struct planner *planner, struct str text)
{
    const tsr_graph *graph = tsr_model_graph(planner->model);
    const char *equals = memchr(text.p, '=', text.n);
    size_t found = 0;
    if (!equals)
        return refuse(planner, text, "a state is two names");
    struct str past = {text.p, (size_t)(equals - text.p)};
    struct str present = {equals + 1, text.n - past.n - 1}, rest;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        if (!matches(past, tsr__value_str(value), &rest) || tsr_value_initializer(value))
            continue;
        const tsr_value *out = output_of(planner->model, present, rest);
        tsr_status st =
            out ? add_pair(planner, value, out)
                : refuse(planner, tsr__value_str(value), "no output is named as the state says");
        if (st != TSR_OK)
            return st;
        found++;
    }
    if (found)
        return TSR_OK;
    return refuse(planner, past, "no input of the model has that name");
}

tsr_status tsr__planner_states(struct planner *planner, const char *const *state, size_t n)
{
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < n && st == TSR_OK; i++)
        st = add_state(planner, str_of(state[i]));
    const char *text = n ? NULL : tsr_model_metadata(planner->model, META_STATE);
    for (; text && *text && st == TSR_OK; text += strcspn(text, "\n"), text += *text == '\n') {
        struct str line = {text, strcspn(text, "\n")};
        st = line.n ? add_state(planner, line) : TSR_OK;
    }
    return st;
}

bool tsr__planner_hands_over(struct planner *planner, const struct planner *to)
{
    const tsr_graph *graph = tsr_model_graph(planner->model);
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++)
        for (size_t k = 0; k < to->ends.states.n; k++) {
            struct str name = tsr__value_str(to->ends.states.at[k].present);
            if (str_eq(tsr__value_str(tsr_graph_output(graph, i)), name) &&
                !stay(planner, tsr_graph_output(graph, i)))
                return false;
        }
    return true;
}

// ---- edges -------------------------------------------------------------------------------------

// From where one node leaves it (out) or wants it to where another wants it; one node that does both is dearer by that.
static bool add_edge(struct planner *planner, const tsr_value *v, const struct reader *x, bool out,
                     const struct reader *y)
{
    static const int64_t zero[1] = {0};
    const struct plan_value *value = &planner->values[tsr__value_id(v)];
    const struct strategy *s = planner->nodes[x->node].strategy,
                          *t = planner->nodes[y->node].strategy;
    bool one = x->node == y->node;
    uint32_t key[7] = {TABLE_STATE, out, s->id, (uint32_t)x->slot, t->id, (uint32_t)y->slot, one};
    void **kept = tsr__planner_cached(planner, key, TSR_COUNT(key));
    size_t n = one ? 1 : t->at.n;
    int64_t *table = !kept   ? NULL
                     : *kept ? *kept
                             : ARENA_ARRAY(&planner->arena, int64_t, s->at.n * n + 1);
    if (!table)
        return false;
    for (size_t i = 0; !*kept && i < s->at.n; i++)
        for (size_t k = 0; k < n; k++) {
            uint32_t from = out ? s->at.at[i].out[x->slot] : s->at.at[i].in[x->slot];
            uint32_t to = t->at.at[one ? i : k].in[y->slot];
            table[i * n + k] = program_cost_of(tsr__planner_price(planner, from, to, value));
        }
    *kept = table;
    uint32_t end = one ? tsr__program_node(&planner->program, tsr__value_str(v), 1, zero)
                       : planner->nodes[y->node].var;
    tsr__program_edge(&planner->program, planner->nodes[x->node].var, end, table);
    return true;
}

static const struct reader *first_plain(const struct readers *readers)
{
    for (size_t i = 0; i < readers->n; i++)
        if (readers->at[i].node != SIZE_MAX && !readers->at[i].captures)
            return &readers->at[i];
    return NULL;
}

bool tsr__planner_state_edges(struct planner *planner)
{
    for (size_t i = 0; i < planner->ends.states.n; i++) {
        const struct state_pair *pair = &planner->ends.states.at[i];
        struct readers readers = tsr__planner_readers(planner, planner->work, pair->past);
        const struct reader *first = first_plain(&readers);
        struct reader from;
        if (first && tsr__planner_made_by(planner, pair->present, &from) &&
            !add_edge(planner, pair->present, &from, true, first))
            return false;
        for (size_t k = 0; first && k < readers.n; k++)
            if (readers.at[k].node != SIZE_MAX && !readers.at[k].captures &&
                &readers.at[k] != first &&
                !add_edge(planner, pair->past, first, false, &readers.at[k]))
                return false;
    }
    return !planner->work->failed;
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

static void add_line(struct text *text, const char *before, struct str line)
{
    if (!has_line(before, line))
        tsr__text_printf(text, "%s" STR_FMT, text->n ? "\n" : "", STR_ARG(line));
}

static tsr_status set_lines(struct planner *planner, const char *key, struct text *text)
{
    tsr_status st = text->failed ? TSR_NOMEM : TSR_OK;
    if (st == TSR_OK && text->n)
        st = tsr_model_set_metadata(planner->model, key, text->p);
    tsr__text_free(text);
    return st;
}

tsr_status tsr__planner_keep_states(struct planner *planner)
{
    const tsr_graph *graph = tsr_model_graph(planner->model);
    const char *before = tsr_model_metadata(planner->model, META_STATE);
    struct text text;
    tsr__text_init(&text, planner->session);
    tsr__text_printf(&text, "%s", before ? before : "");
    for (size_t i = 0; i < planner->ends.states.n; i++) {
        struct str line =
            tsr__arena_printf(&planner->arena, STR_FMT "=" STR_FMT,
                              STR_ARG(tsr__value_str(planner->ends.states.at[i].past)),
                              STR_ARG(tsr__value_str(planner->ends.states.at[i].present)));
        if (!before) // else the words stand there, with stars perhaps
            add_line(&text, NULL, line);
    }
    tsr_status st = set_lines(planner, META_STATE, &text);
    before = tsr_model_metadata(planner->model, META_KEEP_CUT);
    tsr__text_init(&text, planner->session);
    tsr__text_printf(&text, "%s", before ? before : "");
    for (size_t i = 0; st == TSR_OK && planner->ends.stays && !planner->ends.states.n &&
                       i < tsr_graph_output_count(graph);
         i++)
        if (planner->ends.stays[tsr__value_id(tsr_graph_output(graph, i))])
            add_line(&text, before, tsr__value_str(tsr_graph_output(graph, i)));
    if (st != TSR_OK)
        return (tsr__text_free(&text), st);
    return set_lines(planner, META_KEEP_CUT, &text);
}
