// SPDX-License-Identifier: Apache-2.0
// states.c - states (caches), which stay on their devices from one run to the next.
//
// A state is an output that is an input of the next run. Its input needs memory like a constant and
// is never transferred. Its output stays in its layout. If the layout at the end of a run differs
// from that at the start, an edge of the program charges the resharding. `partition` reads the
// pairs from the metadata.
//
//     Example: past_k=present_k of [1, 12, 512, 64]. present_k may be sharded by heads {1, 4, 1, 1}
//     or replicated, and so may past_k at the attention that reads it. The edge costs 0 for equal
//     layouts, an AllGather from heads to replicated, and a slice from replicated to heads. It is
//     charged for every token.
#include "plan/program/edges.h"

// ---- names -------------------------------------------------------------------------------------

static bool is_filled(struct str pattern, struct str rest, struct str text)
{
    struct str own;
    return tsr__star_matches(pattern, text, &own) && str_eq(own, rest);
}

// Returns the output whose name is the pattern with `rest` in place of its star; NULL: none.
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
    return tsr__fail(planner->session, TSR_INVALID, DIAG_plan_state,
                     &PLACE(.file = str_of(tsr_model_path(planner->model)), .value = text),
                     "write past=present: an input and an output", "%s", what);
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

// Adds a state: the input `past` and the output `present` that updates it. From here on, memory and
// costs treat the input like a constant; its readers may still shard it.
static tsr_status add_pair(struct planner *planner, const tsr_value *past, const tsr_value *present)
{
    struct plan_value *value = &planner->values[tsr__value_id(past)];
    for (size_t i = 0; i < planner->ends.states.n; i++)
        if (planner->ends.states.at[i].past == past &&
            planner->ends.states.at[i].present == present)
            return TSR_OK; // given twice, for example with and without a star
    struct state_pair *at = vec_push(&planner->arena, &planner->ends.states);
    if (!at || !stay(planner, past) || !stay(planner, present))
        return TSR_NOMEM;
    *at = (struct state_pair){past, present};
    planner->values[tsr__value_id(present)].shares_past =
        planner->values[tsr__value_id(present)].updated;
    value->given = false;
    value->constant = true; // its memory is charged like that of a constant
    return TSR_OK;
}

// Reads "past_*=present_*". Pairs every input that matches the left side with the output that has
// the same text in place of the star.
static tsr_status add_state(struct planner *planner, struct str text)
{
    const tsr_graph *graph = tsr_model_graph(planner->model);
    const char *equals = memchr(text.p, '=', text.n);
    size_t found = 0;
    if (!equals)
        return refuse(planner, text, "a state needs two names");
    struct str past = {text.p, (size_t)(equals - text.p)};
    struct str present = {equals + 1, text.n - past.n - 1}, rest;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        if (!tsr__star_matches(past, tsr__value_str(value), &rest) || tsr_value_initializer(value))
            continue;
        const tsr_value *out = output_of(planner->model, present, rest);
        if (!out)
            return refuse(planner, tsr__value_str(value), "the model has no output for this state");
        TRY(add_pair(planner, value, out));
        found++;
    }
    if (found)
        return TSR_OK;
    return refuse(planner, past, "no input of the model has that name");
}

// Reads the pairs of the caller, or those of the metadata if the caller gave none.
tsr_status tsr__planner_states(struct planner *planner, const char *const *state, size_t n)
{
    planner->ends.states_given = n > 0;
    for (size_t i = 0; i < n; i++)
        TRY(add_state(planner, str_of(state[i])));
    const char *text = n ? NULL : tsr_model_metadata(planner->model, META_STATE);
    while (text && *text) {
        struct str line = next_line(&text);
        if (!line.n)
            continue;
        TRY(add_state(planner, line));
    }
    return TSR_OK;
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

// Two ends of a state: the node that produces it (SIDE_OUTPUT) or reads it first, and another node
// that reads it.
struct state_ends {
    const struct reader *from, *to;
    enum slot_side side; // side of `from` at its node
};

// Fills in the costs from each choice of one node to each choice of the other. If one node is at
// both ends, there is one cost for each choice.
static void fill_state(struct planner *planner, const struct state_ends *ends,
                       const struct plan_value *value, int64_t *table)
{
    const struct strategy *s = planner->nodes[ends->from->node].strategy;
    const struct strategy *t = planner->nodes[ends->to->node].strategy;
    bool one = ends->from->node == ends->to->node;
    size_t n = one ? 1 : t->at.n;
    for (size_t i = 0; i < s->at.n; i++)
        for (size_t k = 0; k < n; k++) {
            uint32_t from = candidate_layouts(&s->at.at[i], ends->side)[ends->from->slot];
            uint32_t to = t->at.at[one ? i : k].in[ends->to->slot];
            int64_t ps = tsr__resharding_time(planner, from, to, value);
            table[i * n + k] = program_cost_of(ps);
        }
}

// Returns the cost table of the two ends, which is cached. NULL: out of memory.
static int64_t *state_table(struct planner *planner, const struct state_ends *ends,
                            const struct plan_value *value)
{
    const struct strategy *s = planner->nodes[ends->from->node].strategy;
    const struct strategy *t = planner->nodes[ends->to->node].strategy;
    bool one = ends->from->node == ends->to->node;
    uint32_t key[7] = {
        TABLE_STATE, ends->side, s->id, (uint32_t)ends->from->slot, t->id, (uint32_t)ends->to->slot,
        one};
    void **kept = tsr__planner_cached(planner, key, TSR_COUNT(key));
    if (!kept)
        return NULL;
    if (*kept)
        return *kept;
    int64_t *table = ARENA_ARRAY(&planner->arena, int64_t, s->at.n * (one ? 1 : t->at.n) + 1);
    if (!table)
        return NULL;
    fill_state(planner, ends, value, table);
    *kept = table;
    return table;
}

// Charges the resharding if the layouts at the two ends differ. If one node is at both ends, the
// cost is added to this node.
static bool add_edge(struct planner *planner, const tsr_value *value, const struct state_ends *ends)
{
    static const int64_t zero[1] = {0};
    int64_t *table = state_table(planner, ends, &planner->values[tsr__value_id(value)]);
    if (!table)
        return false;
    uint32_t end = planner->nodes[ends->to->node].var;
    if (ends->from->node == ends->to->node)
        end = tsr__program_node(&planner->program, tsr__value_str(value), 1, zero);
    tsr__program_edge(&planner->program, planner->nodes[ends->from->node].var, end, table);
    return true;
}

// True if a node reads the state at an input, not in a subgraph.
static bool is_plain(const struct reader *reader)
{
    return reader->node != SIZE_MAX && !reader->captures;
}

static const struct reader *first_plain(const struct readers *readers)
{
    for (size_t i = 0; i < readers->n; i++)
        if (is_plain(&readers->at[i]))
            return &readers->at[i];
    return NULL;
}

// Adds edges from the producer of the present value to the first reader of the past value, and from
// that reader to the other readers.
static bool connect_state(struct planner *planner, const struct state_pair *pair)
{
    struct readers readers = tsr__planner_readers(planner, planner->work, pair->past);
    const struct reader *first = first_plain(&readers);
    struct reader from;
    if (!first)
        return true;
    if (tsr__planner_made_by(planner, pair->present, &from) &&
        !add_edge(planner, pair->present, &(struct state_ends){&from, first, SIDE_OUTPUT}))
        return false;
    for (size_t k = 0; k < readers.n; k++) {
        const struct reader *other = &readers.at[k];
        if (other != first && is_plain(other) &&
            !add_edge(planner, pair->past, &(struct state_ends){first, other, SIDE_INPUT}))
            return false;
    }
    return true;
}

bool tsr__planner_state_edges(struct planner *planner)
{
    for (size_t i = 0; i < planner->ends.states.n; i++)
        if (!connect_state(planner, &planner->ends.states.at[i]))
            return false;
    return !planner->work->failed;
}

// ---- metadata of the model ----------------------------------------------------------------------

static bool has_line(const char *text, struct str line)
{
    while (text && *text)
        if (str_eq(next_line(&text), line))
            return true;
    return false;
}

// Adds the line unless the metadata contains it.
static void add_line(struct text *text, const char *before, struct str line)
{
    if (!has_line(before, line))
        tsr__text_printf(text, "%s" STR_FMT, text->n ? "\n" : "", STR_ARG(line));
}

// Writes the text, unless it is empty, and frees it in any case.
static tsr_status set_lines(struct planner *planner, const char *key, struct text *text)
{
    tsr_status st = text_status(text);
    if (st == TSR_OK && text->n)
        st = tsr_model_set_metadata(planner->model, key, text->p);
    tsr__text_free(text);
    return st;
}

// Writes one line per state of the caller into the metadata, in place of earlier states. States
// that come from the metadata stay as they are there, with stars.
static tsr_status keep_pairs(struct planner *planner)
{
    struct text text = {.session = planner->session};
    for (size_t i = 0; i < planner->ends.states.n && planner->ends.states_given; i++) {
        const struct state_pair *pair = &planner->ends.states.at[i];
        tsr__text_printf(&text, "%s" STR_FMT "=" STR_FMT, text.n ? "\n" : "",
                         STR_ARG(tsr__value_str(pair->past)),
                         STR_ARG(tsr__value_str(pair->present)));
    }
    return set_lines(planner, META_STATE, &text);
}

// Stores the states as metadata. A model without states may still produce caches for another model.
// Then the names of its outputs that stay on the devices are stored.
tsr_status tsr__planner_keep_states(struct planner *planner)
{
    const tsr_graph *graph = tsr_model_graph(planner->model);
    TRY(keep_pairs(planner));
    const char *before = tsr_model_metadata(planner->model, META_KEEP_CUT);
    struct text text = {.session = planner->session};
    tsr__text_printf(&text, "%s", before ? before : "");
    bool hands_over = !planner->ends.states.n;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        if (hands_over && planner_stays(planner, value))
            add_line(&text, before, tsr__value_str(value));
    }
    return set_lines(planner, META_KEEP_CUT, &text);
}
