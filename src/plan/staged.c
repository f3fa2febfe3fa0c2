// SPDX-License-Identifier: Apache-2.0
// staged.c - a plan in pipeline stages: finds the cuts and the stages, plans each stage's nodes on its devices, and says it
// all in the numbers of the whole topology, so that what writes and counts plans needs to know nothing of stages.
#include "plan/stages.h"

// ---- from the devices of a block to those of the topology --------------------------------------

static uint32_t globally(struct planner *p, const struct planner *q, const struct stage *x,
                         uint32_t layout)
{
    if (layout == PLAN_NO_LAYOUT)
        return layout;
    const struct tile_layout *l = q->layouts.at[layout];
    struct tile_layout *copy = tsr__layout_copy(&p->arena, l);
    size_t n = (size_t)l->first[l->n_shards], k = 0;
    struct tile_owner *pairs = ARENA_ARRAY(&p->arena, struct tile_owner, n + 1);
    for (int64_t s = 0; pairs && s < l->n_shards; s++)
        for (int64_t i = l->first[s]; i < l->first[s + 1]; i++)
            pairs[k++] = (struct tile_owner){s, x->devices[l->owners[i]]};
    if (!copy || !pairs || !tsr__layout_own(&p->arena, copy, pairs, k))
        return PLAN_NO_LAYOUT;
    return tsr__planner_layout(p, copy);
}

static bool map_candidate(struct planner *p, const struct planner *q, const struct stage *x,
                          const struct plan_node *n, size_t choice, struct candidate *c)
{
    size_t n_in = tsr_node_input_count(n->node), n_out = tsr_node_output_count(n->node);
    const struct candidate *from = &n->strategy->at.at[choice];
    *c = *from;
    c->in = ARENA_ARRAY(&p->arena, uint32_t, n_in + 1);
    c->out = ARENA_ARRAY(&p->arena, uint32_t, n_out + 1);
    for (size_t i = 0; c->in && i < n_in; i++)
        c->in[i] = globally(p, q, x, from->in[i]);
    c->before = ARENA_ARRAY(&p->arena, uint32_t, n_out + 1);
    for (size_t i = 0; c->out && c->before && i < n_out; i++) {
        c->out[i] = globally(p, q, x, from->out[i]);
        c->before[i] = globally(p, q, x, from->before[i]);
    }
    return !p->arena.failed;
}

// The chosen way of each node of the stage as its only one in the planner of all.
static bool take_stage(struct planner *p, const struct stage *x)
{
    const struct planner *q = &x->kind->p;
    for (size_t i = 0; i < q->n_nodes; i++) {
        const struct plan_node *n = &q->nodes[i];
        if (!n->strategy)
            continue;
        struct strategy *s = ARENA_NEW(&p->arena, struct strategy);
        struct candidate *c = s ? vec_push(&p->arena, &s->at) : NULL;
        if (!c || !map_candidate(p, q, x, n, n->choice, c))
            return false;
        s->node = n->node;
        s->rule = n->strategy->rule;
        s->whole = n->strategy->whole;
        struct plan_node *to = &p->nodes[x->kind->begin + i];
        to->strategy = s;
        to->choice = 0;
    }
    return true;
}

static bool memory_of_stage(struct staging *s, const struct stage *x, int64_t *memory,
                            int64_t *peak)
{
    int64_t *bytes = ARENA_ARRAY(&s->p->arena, int64_t, x->n);
    int64_t *most = ARENA_ARRAY(&s->p->arena, int64_t, x->n);
    if (!bytes || !most || !tsr__planner_memory(&x->kind->p, bytes, most))
        return false;
    for (size_t d = 0; d < x->n; d++) {
        memory[x->devices[d]] = bytes[d];
        peak[x->devices[d]] = most[d];
    }
    return true;
}

// ---- the answer --------------------------------------------------------------------------------

static tsr_status set_stages(struct staging *s, const struct line *line)
{
    for (size_t k = 0; k < line->n && line->n > 1; k++)
        for (size_t i = s->cut[line->at[k].begin]; i < s->cut[line->at[k].end]; i++) {
            struct plan_node *n = &s->p->nodes[i];
            tsr_status st =
                n->strategy ? tsr_node_set_stage(n->node, s->p->config, (int64_t)k) : TSR_OK;
            if (st != TSR_OK)
                return st;
        }
    return TSR_OK;
}

static bool tell_stage(struct staging *s, const struct stage *x, const int64_t *memory,
                       tsr_plan_stage *out)
{
    struct arena *a = &s->p->session->results[RESULT_PLAN];
    int64_t *devices = ARENA_ARRAY(a, int64_t, x->n);
    if (!devices)
        return false;
    memcpy(devices, x->devices, x->n * sizeof *devices);
    *out = (tsr_plan_stage){.devices = devices, .n_devices = x->n, .first = -1, .last = -1};
    out->time = x->point.time;
    out->transfer = x->transfer;
    for (size_t i = 0; i < x->n; i++)
        out->memory = memory[devices[i]] > out->memory ? memory[devices[i]] : out->memory;
    for (size_t i = s->cut[x->begin]; i < s->cut[x->end]; i++) {
        if (!s->p->nodes[i].strategy)
            continue;
        out->nodes++;
        out->first = out->first < 0 ? (int64_t)i : out->first;
        out->last = (int64_t)i;
    }
    return true;
}

static int64_t sum_of(const tsr_plan_stage *at, size_t from, size_t to)
{
    int64_t sum = 0;
    for (size_t k = from; k <= to; k++)
        sum += at[k].time + at[k].transfer;
    return sum;
}

static size_t stage_of(const struct staging *s, const struct line *line, size_t node)
{
    size_t k = 0;
    while (k + 1 < line->n && s->cut[line->at[k].end] <= node)
        k++;
    return k;
}

// The stage of device 0; that of the last if it has none to do.
static size_t first_device(const struct line *line)
{
    for (size_t k = 0; k < line->n; k++)
        for (size_t d = 0; d < line->at[k].n; d++)
            if (line->at[k].devices[d] == 0)
                return k;
    return line->n - 1;
}

// Between runs: the slowest stage, with what it takes in and hands over; but what a stage gives to a later one than the next keeps it, and those between, waiting;
// and device 0 is not done before it has the outputs.
static int64_t period_of(struct staging *s, const struct line *line, const tsr_plan_stage *at)
{
    int64_t most = 0;
    for (size_t k = 0, gives = first_device(line); k < line->n; k++) {
        const struct range *r = tsr__stages_range(s, line->at[k].begin, line->at[k].end);
        size_t from = r && r->n_in ? stage_of(s, line, r->earliest) : k;
        int64_t own = sum_of(at, k, k) + (k + 1 < line->n ? at[k + 1].transfer : 0);
        int64_t more = from + 1 < k ? sum_of(at, from, k - 1) : own;
        if (r && r->n_out && gives != k && gives != k + 1)
            own = gives < k ? sum_of(at, gives, k) : sum_of(at, k, gives - 1);
        own = own > more ? own : more;
        most = own > most ? own : most;
    }
    return most;
}

static bool tell(struct staging *s, const struct line *line, tsr_plan_summary *out)
{
    struct arena *a = &s->p->session->results[RESULT_PLAN];
    tsr_plan_stage *list = ARENA_ARRAY(a, tsr_plan_stage, line->n);
    for (size_t k = 0; k < line->n; k++) {
        if (!list || !tell_stage(s, &line->at[k], out->memory, &list[k]))
            return false;
        out->latency += list[k].time + list[k].transfer;
    }
    out->latency += s->common;
    out->period = period_of(s, line, list) + s->common;
    out->stages = list;
    out->n_stages = line->n;
    return true;
}

// Plans the nodes of every stage once more, with choices.
static tsr_status take_line(struct staging *s, struct line *line, int64_t *memory, int64_t *peak)
{
    for (size_t k = 0; k < line->n; k++) {
        struct stage *x = &line->at[k];
        tsr_status st = tsr__front_take(s, x->kind, x->begin, x->end, x->memory, &x->point);
        if (st == TSR_OK && (!take_stage(s->p, x) || !memory_of_stage(s, x, memory, peak)))
            st = TSR_NOMEM;
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// What is proved: the same search over what no plan of a range is below.
static tsr_status prove(struct staging *s, const tsr_plan_options *o, tsr_plan_summary *out)
{
    struct line line;
    tsr_status st = tsr__stages_search(s, o, MEASURE_BOUND, &line);
    if (st != TSR_OK)
        return st;
    out->objective = o->objective;
    out->cost = o->objective == TSR_THROUGHPUT ? out->period : out->latency;
    out->bound = (o->objective == TSR_THROUGHPUT ? line.most : line.sum) + s->common;
    out->bound = out->bound < out->cost ? out->bound : out->cost;
    out->optimal = out->bound == out->cost;
    out->gap = (double)(out->cost - out->bound) / (double)(out->cost > 1 ? out->cost : 1);
    return TSR_OK;
}

static tsr_status one_device(struct staging *s, tsr_plan_summary *out)
{
    struct point point = {0};
    int64_t first = 0, memory = s->memory;
    if (memory == 0)
        memory = s->p->topology->device[0].memory;
    struct kind *k = tsr__stages_kind(s, &first, 1);
    if (!k)
        return TSR_NOMEM;
    tsr_status st =
        tsr__front_at(s, k, 0, s->n_ranges, memory > 0 ? memory : PLAN_NO_LIMIT, &point);
    out->one_device = point.feasible ? point.time + s->common : 0;
    return st;
}

// What the whole plan costs if a stage takes so long.
static int64_t cost_with(struct staging *s, const struct line *line, const tsr_plan_summary *p,
                         size_t stage, int64_t time)
{
    tsr_plan_stage at[STAGES_MOST];
    for (size_t k = 0; k < p->n_stages; k++)
        at[k] = p->stages[k];
    at[stage].time = time;
    return s->common + (p->objective == TSR_THROUGHPUT ? period_of(s, line, at)
                                                       : sum_of(at, 0, p->n_stages - 1));
}

// The planner of a stage counts its devices from 0: the shardings once more, by the devices of the whole.
static tsr_status name_devices(struct planner *p, const struct stage *x, const char *name,
                               tsr_plan_summary *out)
{
    const struct planner *q = &x->kind->p;
    const struct plan_node *n = tsr__planner_find(q, name);
    tsr_plan_choice *list = (tsr_plan_choice *)out->choices;
    for (size_t i = 0; i < out->n_choices; i++) {
        struct candidate c;
        if (!map_candidate(p, q, x, n, i, &c) || !tsr__choice_tensors(p, n->node, &c, &list[i]))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// The stages stay as they are; in one of them the node runs otherwise.
static tsr_status explain(struct staging *s, const struct line *line, const char *name,
                          tsr_plan_summary *out)
{
    const struct plan_node *n = tsr__planner_find(s->p, name);
    size_t at = n ? (size_t)(n - s->p->nodes) : SIZE_MAX, k = 0;
    while (n && s->cut[line->at[k].end] <= at)
        k++;
    const struct stage *x = &line->at[k];
    tsr_status st = tsr__front_explain(s, x->kind, x->begin, x->end, x->memory, name, out);
    tsr_plan_choice *list = (tsr_plan_choice *)out->choices;
    for (size_t i = 0; st == TSR_OK && i < out->n_choices; i++)
        list[i].cost = list[i].feasible ? cost_with(s, line, out, k, list[i].cost) : 0;
    return st == TSR_OK ? name_devices(s->p, x, name, out) : st;
}

// ---- why not -----------------------------------------------------------------------------------

static tsr_status refuse(struct staging *s, const tsr_plan_options *o, tsr_plan_summary *out)
{
    struct line line;
    tsr_status st = tsr__stages_search(s, o, MEASURE_MEMORY, &line);
    if (st != TSR_OK)
        return st;
    out->needs_bytes = line.n ? line.most : 0;
    struct planner *p = s->p;
    bool over = tsr__budget_over(p->budget);
    struct str need = tsr__bytes_text(&p->arena, out->needs_bytes);
    struct str hint = tsr__arena_printf(
        &p->arena, "give each device " STR_FMT " (--memory %lld), or use more devices",
        STR_ARG(need), (long long)out->needs_bytes);
    if (!need.p || !hint.p)
        return TSR_NOMEM;
    tsr__diag(p->session, over ? DIAG_plan_time : DIAG_plan_infeasible, NULL, hint.p,
              "no plan in stages %s the memory of the devices; " STR_FMT " on each would do",
              over ? "was found in time that fits into" : "fits into", STR_ARG(need));
    if (tsr__cancelled(p->session))
        return TSR_CANCELLED;
    return TSR_INFEASIBLE;
}

static tsr_status check_number(const struct staging *s, int64_t stages)
{
    int64_t most = s->p->n < (int64_t)s->n_ranges ? s->p->n : (int64_t)s->n_ranges;
    most = most < STAGES_MOST ? most : STAGES_MOST;
    if (stages <= most)
        return TSR_OK;
    tsr__diag(s->p->session, DIAG_plan_stages, NULL, "ask for fewer stages, or for auto",
              "%lld stages; on %lld devices this model can have %lld", (long long)stages,
              (long long)s->p->n, (long long)most);
    return TSR_INVALID;
}

static tsr_status staged(struct staging *s, const tsr_plan_options *o, tsr_plan_summary *out)
{
    struct line line;
    struct arena *a = &s->p->session->results[RESULT_PLAN];
    if (!tsr__stages_cuts(s))
        return TSR_NOMEM;
    tsr_status st = check_number(s, o->stages);
    if (st == TSR_OK)
        st = tsr__stages_search(s, o, MEASURE_TIME, &line);
    if (st != TSR_OK)
        return st;
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = (size_t)s->p->n};
    out->solve_ms = 1e3 * (tsr__clock() - s->p->budget->begin);
    if (!line.n)
        return refuse(s, o, out);
    int64_t *memory = ARENA_ARRAY(a, int64_t, (size_t)s->p->n);
    int64_t *peak = ARENA_ARRAY(a, int64_t, (size_t)s->p->n);
    st = memory && peak ? take_line(s, &line, memory, peak) : TSR_NOMEM;
    out->memory = memory;
    out->peak = peak;
    out->feasible = true;
    if (st == TSR_OK && !tell(s, &line, out))
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = prove(s, o, out);
    if (st == TSR_OK)
        st = one_device(s, out);
    out->solve_ms = 1e3 * (tsr__clock() - s->p->budget->begin);
    if (st == TSR_OK)
        st = tsr__planner_config(s->p, o->config);
    if (st == TSR_OK)
        st = tsr__planner_write(s->p, s->p->config);
    if (st == TSR_OK)
        st = set_stages(s, &line);
    if (st == TSR_OK)
        st = tsr__planner_keep_topology(s->p);
    if (st == TSR_OK)
        st = tsr__planner_keep_states(s->p);
    if (st == TSR_OK)
        st = tsr__planner_tell(s->p, NULL, out);
    return st == TSR_OK && o->explain ? explain(s, &line, o->explain, out) : st;
}

tsr_status tsr__plan_stages(struct planner *p, const tsr_plan_options *o, tsr_plan_summary *out)
{
    struct staging s = {.p = p, .memory = o->memory > 0 || o->topology ? o->memory : -1};
    for (int64_t d = 0; d < p->n; d++)
        s.limited =
            s.limited || s.memory > 0 || (s.memory == 0 && p->topology->device[d].memory > 0);
    if (!tsr__planner_list(p))
        return TSR_NOMEM;
    tsr__map_init(&s.structures, &p->arena, 256);
    tsr__map_init(&s.kinds, &p->arena, 64);
    p->staged = true;
    tsr_status st = staged(&s, o, out);
    tsr__stages_free(&s);
    return st;
}
