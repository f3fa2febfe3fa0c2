// SPDX-License-Identifier: Apache-2.0
// plan.c - tsr_plan: values, candidates, the program, its answer, and the shardings that say it.
#include "plan/stages.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

// ---- start and end -----------------------------------------------------------------------------

static void keep_less(double *at, double other, bool first)
{
    *at = first || other < *at ? other : *at;
}

// A node that all devices share ends with the slowest: in each number the worst of both.
static void slow_down(tsr_topology_device *at, const tsr_topology_device *d, bool first)
{
    keep_less(&at->flops, d->flops, first);
    keep_less(&at->bandwidth, d->bandwidth, first);
    for (int i = 0; i < TSR_RATE_COUNT; i++)
        keep_less(&at->rates[i], d->rates[i] > 0 ? d->rates[i] : d->flops, first);
    at->overhead = d->overhead > at->overhead ? d->overhead : at->overhead;
}

bool tsr__planner_devices(struct planner *p)
{
    p->all = ARENA_ARRAY(&p->arena, int64_t, (size_t)p->n);
    for (int64_t d = 0; p->all && d < p->n; d++) {
        p->all[d] = d;
        slow_down(&p->slowest, &p->topology->device[tsr__planner_device(p, d)], d == 0);
    }
    return p->all != NULL;
}

static tsr_status read_topology(struct planner *p, const tsr_plan_options *o)
{
    p->n = o->topology ? tsr_topology_devices(o->topology) : o->devices;
    if (p->n < 1 || p->n > PLAN_MAX_DEVICES) {
        tsr__diag(p->session, DIAG_plan_devices, NULL, "plan for fewer devices",
                  "%lld devices; plans are made for 1 to %d", (long long)p->n, PLAN_MAX_DEVICES);
        return TSR_UNSUPPORTED;
    }
    tsr_status st = TSR_OK;
    p->topology = o->topology;
    if (!o->topology) {
        struct str text = tsr__arena_printf(&p->arena, "%lld", (long long)o->devices);
        st = text.p ? tsr_topology_parse(p->session, text.p, &p->topology) : TSR_NOMEM;
    }
    if (st != TSR_OK)
        return st;
    return tsr__planner_devices(p) ? TSR_OK : TSR_NOMEM;
}

void tsr__planner_end(struct planner *p)
{
    if (p->block)
        tsr__planner_end(p->block);
    tsr_model_free(p->copy);
    p->copy = NULL;
    tsr__arena_free(&p->arena);
}

void tsr__planner_start(struct planner *p, tsr_model *m)
{
    p->session = tsr_model_session(m);
    p->model = m;
    p->work = &p->arena;
    tsr__arena_init(&p->arena, p->session);
    tsr__map_init(&p->layout_ids, &p->arena, 256);
    tsr__map_init(&p->prices, &p->arena, 1024);
    tsr__map_init(&p->strategies, &p->arena, 256);
    tsr__map_init(&p->tables, &p->arena, 1024);
    tsr__map_init(&p->held, &p->arena, 0);
}

// ---- the configuration -------------------------------------------------------------------------

static tsr_status refuse_config(struct planner *p, const tsr_config *c, const char *why)
{
    struct place at = PLACE_NONE;
    at.configuration = str_of(tsr_config_name(c));
    tsr__diag(p->session, DIAG_plan_config, &at, "name another configuration, which is then made",
              "%s", why);
    return TSR_INVALID;
}

// Nodes that have a stage in the configuration; with any: that have anything in it.
static bool has_stages(const struct planner *p, const tsr_config *c, bool any)
{
    int64_t stage;
    for (tsr_node *n = tsr_model_next_node(p->model, NULL); n;
         n = tsr_model_next_node(p->model, n)) {
        const tsr_node_config *nc = tsr_node_find_config(n, c);
        if (nc && (any || tsr_node_config_stage(nc, &stage)))
            return true;
    }
    return false;
}

// Shardings that the model has for as many devices are kept, and completed.
static tsr_status find_config(struct planner *p, const char *name, bool stages)
{
    size_t fitting = 0;
    for (size_t i = 0; i < tsr_model_config_count(p->model); i++) {
        tsr_config *c = tsr_model_config(p->model, i);
        bool named = name && strcmp(tsr_config_name(c), name) == 0;
        fitting += tsr_config_devices(c) == p->n;
        if (named || (!name && tsr_config_devices(c) == p->n))
            p->config = c;
    }
    if (!name && fitting != 1)
        p->config = NULL;
    if (!p->config)
        return TSR_OK;
    if (tsr_config_devices(p->config) != p->n)
        return refuse_config(p, p->config, "the configuration is for another number of devices");
    if (has_stages(p, p->config, false))
        return refuse_config(p, p->config, "its nodes have pipeline stages, which are not kept");
    if (stages && has_stages(p, p->config, true)) {
        if (name)
            return refuse_config(p, p->config,
                                 "its nodes have shardings, which stages do not keep");
        p->config = NULL;
        return TSR_OK;
    }
    size_t errors = tsr__diag_errors(p->session);
    tsr_status st = tsr__check(p->model, tsr_config_name(p->config), false);
    return st == TSR_OK && tsr__diag_errors(p->session) > errors ? TSR_INVALID : st;
}

// Names of the devices, by which ranks choose their providers; NULL: they are what a rank takes anyway, or cannot be said.
static const char **device_names(struct planner *p)
{
    const char **names = ARENA_ARRAY(&p->arena, const char *, (size_t)p->n);
    bool special = false;
    for (int64_t d = 0; names && d < p->n && d < tsr_topology_devices(p->topology); d++) {
        const char *name = tsr_topology_device_at(p->topology, (int)d)->name;
        names[d] = name && name[0] ? name : "CPU";
        special = special || strcmp(names[d], "CPU") != 0;
        if (strpbrk(names[d], ",\n"))
            return NULL;
    }
    return special ? names : NULL;
}

tsr_status tsr__planner_config(struct planner *p, const char *name)
{
    const char **names = p->config ? NULL : device_names(p);
    struct str text =
        name ? str_of(name) : tsr__arena_printf(&p->arena, "plan%lld", (long long)p->n);
    for (int i = 2; text.p && !name && tsr_model_find_config(p->model, text.p); i++)
        text = tsr__arena_printf(&p->arena, "plan%lld_%d", (long long)p->n, i);
    if (!text.p)
        return TSR_NOMEM;
    tsr_status st = p->config ? TSR_OK
                              : tsr_model_add_config(p->model, text.p, p->n, names,
                                                     names ? (size_t)p->n : 0, &p->config);
    if (st == TSR_OK && tsr_model_ir_version(p->model) < 11)
        st = tsr_model_set_ir_version(p->model, 11);
    return st;
}

// ---- the answer --------------------------------------------------------------------------------

tsr_status tsr__planner_export(tsr_session *s, const struct program *g, const char *path)
{
    struct text t;
    struct outfile o = {0};
    tsr__text_init(&t, s);
    t.max = (size_t)1 << 32;
    tsr_status st = tsr__program_lp(g, &t);
    if (st == TSR_OK)
        st = tsr__out_open(s, path, &o);
    if (st == TSR_OK) {
        tsr__out_write(&o, t.p, t.n);
        st = tsr__out_commit(&o);
    }
    tsr__out_abort(&o);
    tsr__text_free(&t);
    return st;
}

tsr_status tsr__planner_tell(struct planner *p, const struct block_choice *block,
                             tsr_plan_summary *out)
{
    struct arena *a = &p->session->results[RESULT_PLAN];
    struct collective_count counts[PLAN_MAX_OPS];
    tsr_collective_count *list = ARENA_ARRAY(a, tsr_collective_count, PLAN_MAX_OPS);
    if (!list)
        return TSR_NOMEM;
    if (block && block->devices) {
        memcpy(counts, block->collectives, sizeof counts);
        out->n_collectives = block->n_collectives;
    } else {
        out->n_collectives = tsr__planner_collectives(p, counts);
    }
    for (size_t i = 0; i < out->n_collectives; i++)
        list[i] = (tsr_collective_count){counts[i].op, counts[i].count};
    out->collectives = list;
    out->config = tsr__arena_str(a, str_of(tsr_config_name(p->config))).p;
    for (size_t i = 0; i < p->n_nodes; i++) {
        out->nodes += p->nodes[i].strategy != NULL;
        out->cut_nodes +=
            p->nodes[i].strategy && p->nodes[i].strategy->at.at[p->nodes[i].choice].cut;
    }
    return a->failed ? TSR_NOMEM : TSR_OK;
}

static tsr_status summarize(struct planner *p, const struct program_result *r,
                            const struct block_choice *block, double ms, tsr_plan_summary *out)
{
    struct arena *a = &p->session->results[RESULT_PLAN];
    int64_t *memory = block->memory, *peak = block->peak;
    if (!memory) {
        memory = ARENA_ARRAY(a, int64_t, (size_t)p->n);
        peak = ARENA_ARRAY(a, int64_t, (size_t)p->n);
        if (!memory || !peak || !tsr__planner_memory(p, memory, peak))
            return TSR_NOMEM;
    }
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = (size_t)p->n, .feasible = true};
    out->optimal = r->optimal;
    out->gap = r->gap;
    out->cost = r->cost;
    out->bound = r->bound;
    out->solve_ms = ms;
    out->stopped = tsr__budget_over(p->budget) && !r->optimal;
    out->memory = memory;
    out->peak = peak;
    out->used_devices = block->devices ? block->devices : p->n;
    out->copies = block->devices ? block->copies : 1;
    return tsr__planner_tell(p, block, out);
}

// ---- why ---------------------------------------------------------------------------------------

// "#60" -> 60; -1: it is no number of a node.
static int64_t index_of(const char *name)
{
    char *end;
    if (name[0] != '#' || name[1] < '0' || name[1] > '9')
        return -1;
    errno = 0;
    long long i = strtoll(name + 1, &end, 10);
    return errno || *end ? -1 : i;
}

const struct plan_node *tsr__planner_find(const struct planner *p, const char *name)
{
    int64_t index = index_of(name);
    for (size_t i = 0; i < p->n_nodes; i++) {
        const struct plan_node *n = &p->nodes[i];
        bool here = n->strategy && (strcmp(tsr_node_name(n->node), name) == 0 ||
                                    (index >= 0 && tsr_node_index(n->node) == index));
        for (size_t o = 0; n->strategy && o < tsr_node_output_count(n->node); o++) {
            const tsr_value *v = tsr_node_output(n->node, o);
            here = here || (v && strcmp(tsr_value_name(v), name) == 0);
        }
        if (here)
            return n;
    }
    return NULL;
}

// Adds one tensor of a way to the list, unless it is absent.
static void add_tensor(const struct planner *p, const tsr_value *v, uint32_t layout,
                       tsr_plan_tensor *list, size_t *n)
{
    struct arena *a = &p->session->results[RESULT_PLAN];
    if (!v || layout == PLAN_NO_LAYOUT)
        return;
    list[(*n)++] = (tsr_plan_tensor){
        .value = tsr__arena_str(a, tsr__value_str(v)).p,
        .sharding = tsr__notation_print(a, p->layouts.at[layout]).p,
        .in_parts = p->parts.at[layout] != NULL,
    };
}

// The layouts of a candidate are numbers of this planner.
bool tsr__choice_tensors(const struct planner *p, const tsr_node *node, const struct candidate *c,
                         tsr_plan_choice *out)
{
    struct arena *a = &p->session->results[RESULT_PLAN];
    size_t n_in = tsr_node_input_count(node), n_out = tsr_node_output_count(node);
    tsr_plan_tensor *in = ARENA_ARRAY(a, tsr_plan_tensor, n_in + 1);
    tsr_plan_tensor *made = ARENA_ARRAY(a, tsr_plan_tensor, n_out + 1);
    if (!in || !made)
        return false;
    out->n_inputs = out->n_outputs = 0;
    for (size_t i = 0; i < n_in; i++)
        add_tensor(p, tsr_node_input(node, i), c->in[i], in, &out->n_inputs);
    for (size_t i = 0; i < n_out; i++)
        add_tensor(p, tsr_node_output(node, i), c->out[i], made, &out->n_outputs);
    out->inputs = in;
    out->outputs = made;
    return !a->failed;
}

// What the best plan costs in which the node runs in each of its ways.
tsr_status tsr__planner_explain(struct planner *p, const struct program *g, const char *name,
                                tsr_plan_summary *out)
{
    struct arena *a = &p->session->results[RESULT_PLAN];
    const struct plan_node *n = tsr__planner_find(p, name);
    if (!n) {
        struct place at = PLACE_NONE;
        at.node = str_of(name);
        tsr__diag(p->session, DIAG_plan_node, &at, "name a node, one of its outputs, or #index",
                  "no node of that name is needed for an output of the model");
        return TSR_INVALID;
    }
    size_t k = n->strategy->at.n;
    struct program_marginal *m = ARENA_ARRAY(a, struct program_marginal, k + 1);
    tsr_plan_choice *list = ARENA_ARRAY(a, tsr_plan_choice, k + 1);
    if (!m || !list)
        return TSR_NOMEM;
    struct program_options o = tsr__budget_share(p->budget, 1.0 / (double)(k + 1));
    tsr_status st = tsr__program_marginals(g, &o, &p->arena, n->var, m);
    for (size_t i = 0; st == TSR_OK && i < k; i++) {
        const struct candidate *c = &n->strategy->at.at[i];
        list[i] = (tsr_plan_choice){.name = tsr__arena_str(a, c->name).p,
                                    .chosen = i == n->choice,
                                    .feasible = m[i].feasible,
                                    .cost = m[i].feasible ? m[i].cost : 0,
                                    .compute = c->compute,
                                    .communication = c->comm,
                                    .weights = c->weights,
                                    .reduction = c->reduction};
        if (!tsr__choice_tensors(p, n->node, c, &list[i]))
            st = TSR_NOMEM;
    }
    out->choices = list;
    out->n_choices = k;
    return a->failed ? TSR_NOMEM : st;
}

// ---- the solution ------------------------------------------------------------------------------

void tsr__planner_take(struct planner *p, const uint32_t *choice)
{
    for (size_t i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].strategy)
            p->nodes[i].choice = choice[p->nodes[i].var];
}

static bool fits(const struct program *g, const uint32_t *choice)
{
    for (uint32_t i = 0; i < g->limits.n; i++)
        if (tsr__program_peak(g, i, choice, NULL) > g->limits.at[i].bound)
            return false;
    return true;
}

// Nothing was found, nor excluded: what needs the least memory may do, whatever it costs.
static tsr_status take_least(struct planner *p, const struct program *g, struct program_result *r)
{
    struct program_least least = {0};
    struct program_options o = tsr__budget_share(p->budget, 0.5);
    tsr_status st = tsr__program_least(g, &o, &p->arena, &least);
    tsr__budget_spend(p->budget, least.work);
    if (st != TSR_OK || !least.found || !fits(g, least.choice))
        return st;
    r->feasible = true;
    r->choice = least.choice;
    r->cost = tsr__program_cost(g, least.choice);
    double size = fabs((double)r->cost) > 1 ? fabs((double)r->cost) : 1;
    r->gap = ((double)r->cost - (double)r->bound) / size;
    r->optimal = r->cost == r->bound;
    return TSR_OK;
}

// Cancelled before there was anything: a plan without limits takes a moment, and is better than none.
static tsr_status solve_hastily(struct planner *p, const struct program *g,
                                struct program_result *r)
{
    struct program_options o = {.work = UINT64_C(200000000)};
    tsr_session_cancel(p->session, false);
    tsr_status st = tsr__program_solve(g, &o, &p->arena, r);
    tsr_session_cancel(p->session, true);
    return st;
}

tsr_status tsr__planner_solve(struct planner *p, const struct program *g, struct program_result *r)
{
    struct program free = *g;
    free.limits.n = 0;
    struct program_options o = tsr__budget_share(p->budget, g->limits.n ? 0.3 : 0.9);
    tsr_status st = tsr__program_solve(&free, &o, &p->arena, r);
    if (st != TSR_OK)
        return st;
    tsr__budget_spend(p->budget, r->work);
    if (!r->feasible && tsr__cancelled(p->session))
        st = solve_hastily(p, &free, r);
    if (st != TSR_OK)
        return st;
    bool best = r->optimal || (r->feasible && r->gap < 1e-9);
    if (g->limits.n == 0 || (best && fits(g, r->choice)))
        return st;
    struct program_result unlimited = *r;
    o = tsr__budget_share(p->budget, 0.8);
    st = tsr__program_solve(g, &o, &p->arena, r);
    if (st != TSR_OK)
        return st;
    tsr__budget_spend(p->budget, r->work);
    if (!r->feasible && !r->infeasible)
        st = take_least(p, g, r);
    if (st == TSR_OK && !r->feasible && p->may_exceed && unlimited.feasible) {
        *r = unlimited;
        p->exceeds = true;
    }
    return st;
}

// Plans all devices at once.
static tsr_status solve_flat(struct planner *p, const tsr_plan_options *o, struct program_result *r)
{
    if (!tsr__planner_candidates(p) || !tsr__planner_program(p, o->memory))
        return TSR_NOMEM;
    tsr_status st =
        o->export_lp ? tsr__planner_export(p->session, &p->program, o->export_lp) : TSR_OK;
    return st == TSR_OK ? tsr__planner_solve(p, &p->program, r) : st;
}

// All devices, or a block of them if that is faster; of a large machine blocks alone, if any will do.
static tsr_status find_plan(struct planner *p, const tsr_plan_options *o, struct program_result *r,
                            struct block_choice *block)
{
    bool only = tsr__blocks_only(p, o);
    tsr_status st = only ? TSR_OK : solve_flat(p, o, r);
    if (st == TSR_OK && r->feasible)
        tsr__planner_take(p, r->choice);
    if (st == TSR_OK)
        st = tsr__plan_blocks(p, o, r, block);
    if (st != TSR_OK || !only || r->feasible || tsr__cancelled(p->session))
        return st;
    st = solve_flat(p, o, r);
    if (st == TSR_OK && r->feasible)
        tsr__planner_take(p, r->choice);
    return st;
}

static tsr_status write_plan(struct planner *p, const tsr_plan_options *o)
{
    tsr_status st = tsr__planner_config(p, o->config);
    if (st != TSR_OK)
        return st;
    st = tsr__planner_write(p, p->config);
    if (st != TSR_OK)
        return st;
    st = tsr__planner_keep_topology(p);
    return st == TSR_OK ? tsr__planner_keep_states(p) : st;
}

static tsr_status solve(struct planner *p, const tsr_plan_options *o, tsr_plan_summary *out)
{
    struct program_result r = {0};
    struct block_choice block = {0};
    if (!tsr__planner_list(p))
        return TSR_NOMEM;
    tsr_status st = find_plan(p, o, &r, &block);
    double ms = 1e3 * (tsr__clock() - p->budget->begin);
    tsr__budget_told(p->budget);
    if (st != TSR_OK)
        return st;
    if (!r.feasible)
        return tsr__planner_refuse(p, o, r.infeasible, out);
    if (p->exceeds && !block.devices)
        st = tsr__planner_warn_memory(p);
    if (st == TSR_OK)
        st = write_plan(p, o);
    if (st == TSR_OK)
        st = summarize(p, &r, &block, ms, out);
    if (st != TSR_OK)
        return st;
    bool over = tsr__budget_over(p->budget);
    if (!block.devices)
        out->one_device = tsr__planner_one_device(p);
    if (!over && (block.devices || !tsr__planner_alike(p)))
        st = tsr__plan_best_device(p, o, &out->one_device);
    if (st == TSR_OK && !block.devices && !p->exceeds && !over)
        st = tsr__plan_better(p, o, out);
    return st == TSR_OK && o->explain ? tsr__planner_explain(p, &p->program, o->explain, out) : st;
}

// Together with another model.
static tsr_status solve_with(struct planner *p, const tsr_plan_options *o, tsr_plan_summary *out)
{
    struct planner q = {0};
    if (o->stages || o->with == p->model || tsr_model_session(o->with) != p->session) {
        tsr__diag(p->session, DIAG_plan_with, NULL,
                  "load the other model on its own in the same session, and ask for no stages",
                  o->stages ? "two models are not planned together in stages"
                            : "the two models are one, or of different sessions");
        return TSR_INVALID;
    }
    tsr__planner_start(&q, o->with);
    q.budget = p->budget;
    q.topology = p->topology;
    q.n = p->n;
    tsr_status st = tsr__planner_devices(&q) ? find_config(&q, o->config, false) : TSR_NOMEM;
    if (st == TSR_OK && !tsr__planner_values(&q, o->with_sizes, o->n_with_sizes))
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__planner_states(&q, o->state, o->n_state);
    if (st == TSR_OK && !tsr__planner_hands_over(p, &q))
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__plan_joint(p, &q, o, out);
    if (st == TSR_OK)
        st = tsr__planner_keep_sizes(&q, o->with_sizes, o->n_with_sizes);
    tsr__planner_end(&q);
    return st;
}

// Picoseconds of one run of the model itself.
static int64_t own_time(const tsr_plan_summary *s)
{
    if (s->n_parts)
        return s->parts[0].cost;
    return s->n_stages ? s->latency : s->cost;
}

tsr_status tsr_plan(tsr_model *m, const tsr_plan_options *options, tsr_plan_summary *summary)
{
    struct planner p = {0};
    struct budget budget;
    tsr_plan_options o = {.size = sizeof o};
    tsr_plan_summary s = {.size = sizeof s};
    memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    tsr__planner_start(&p, m);
    tsr__budget_start(&budget, p.session, o.seconds);
    p.budget = &budget;
    tsr__arena_free(&p.session->results[RESULT_PLAN]);
    tsr_status st = read_topology(&p, &o);
    if (st == TSR_OK)
        st = find_config(&p, o.config, o.stages != 0);
    if (st == TSR_OK)
        p.may_exceed = p.topology->memory_assumed && o.memory == 0 && !o.with;
    if (st == TSR_OK && p.config &&
        !tsr__plan_sizes(&p.arena, m, tsr_config_name(p.config), &o.sizes, &o.n_sizes))
        st = TSR_NOMEM;
    if (st == TSR_OK && !tsr__planner_values(&p, o.sizes, o.n_sizes))
        st = TSR_NOMEM;
    if (st == TSR_OK && !o.with)
        st = tsr__planner_states(&p, o.state, o.n_state);
    if (st == TSR_OK)
        st = o.with     ? solve_with(&p, &o, &s)
             : o.stages ? tsr__plan_stages(&p, &o, &s)
                        : solve(&p, &o, &s);
    if (st == TSR_OK)
        st = tsr__planner_keep_sizes(&p, o.sizes, o.n_sizes);
    if (s.feasible)
        s.milliseconds = (double)own_time(&s) / 1e9;
    if (!o.topology)
        tsr_topology_free(p.topology);
    tsr__planner_end(&p);
    if (summary && (st == TSR_OK || st == TSR_INFEASIBLE)) {
        size_t n = summary->size && summary->size < sizeof s ? summary->size : sizeof s;
        s.size = n;
        memcpy(summary, &s, n);
    }
    return st;
}
