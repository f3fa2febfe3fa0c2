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
static void slow_down(tsr_topology_device *at, const tsr_topology_device *device, bool first)
{
    keep_less(&at->flops, device->flops, first);
    keep_less(&at->bandwidth, device->bandwidth, first);
    for (int i = 0; i < TSR_RATE_COUNT; i++)
        keep_less(&at->rates[i], device->rates[i] > 0 ? device->rates[i] : device->flops, first);
    at->overhead = device->overhead > at->overhead ? device->overhead : at->overhead;
}

bool tsr__planner_devices(struct planner *planner)
{
    planner->all = ARENA_ARRAY(&planner->arena, int64_t, (size_t)planner->n);
    for (int64_t device = 0; planner->all && device < planner->n; device++) {
        planner->all[device] = device;
        slow_down(&planner->slowest,
                  &planner->topology->device[tsr__planner_device(planner, device)], device == 0);
    }
    return planner->all != NULL;
}

static tsr_status read_topology(struct planner *planner, const tsr_plan_options *options)
{
    planner->n = options->topology ? tsr_topology_devices(options->topology) : options->devices;
    int most = options->topology ? PLAN_MAX_DEVICES : PLAN_MAX_AT_ONCE; // of one host: all pairs
    if (planner->n < 1 || planner->n > most) {
        tsr__diag(planner->session, DIAG_plan_devices, NULL,
                  "plan for fewer devices, or for hosts: hosts:1250x8",
                  "%lld devices; plans are made for 1 to %d", (long long)planner->n, most);
        return TSR_UNSUPPORTED;
    }
    tsr_status st = TSR_OK;
    planner->topology = options->topology;
    if (!options->topology) {
        struct str text = tsr__arena_printf(&planner->arena, "%lld", (long long)options->devices);
        st = text.p ? tsr_topology_parse(planner->session, text.p, &planner->topology) : TSR_NOMEM;
    }
    if (st != TSR_OK)
        return st;
    return tsr__planner_devices(planner) ? TSR_OK : TSR_NOMEM;
}

void tsr__planner_end(struct planner *planner)
{
    if (planner->block)
        tsr__planner_end(planner->block);
    tsr_model_free(planner->copy);
    planner->copy = NULL;
    tsr__arena_free(&planner->arena);
}

void tsr__planner_start(struct planner *planner, tsr_model *model)
{
    planner->session = tsr_model_session(model);
    planner->model = model;
    planner->work = &planner->arena;
    tsr__arena_init(&planner->arena, planner->session);
    tsr__map_init(&planner->layout_ids, &planner->arena, 256);
    tsr__map_init(&planner->prices, &planner->arena, 1024);
    tsr__map_init(&planner->strategies, &planner->arena, 256);
    tsr__map_init(&planner->tables, &planner->arena, 1024);
    tsr__map_init(&planner->held, &planner->arena, 0);
}

// ---- the configuration -------------------------------------------------------------------------

static tsr_status refuse_config(struct planner *planner, const tsr_config *config, const char *why)
{
    struct place at = PLACE_NONE;
    at.configuration = str_of(tsr_config_name(config));
    tsr__diag(planner->session, DIAG_plan_config, &at,
              "name another configuration, which is then made", "%s", why);
    return TSR_INVALID;
}

// What nodes may have in a configuration already.
enum had { HAD_STAGE, HAD_SPEC };

static bool some_node_has(const struct planner *planner, const tsr_config *config, enum had what)
{
    int64_t stage;
    for (tsr_node *node = tsr_model_next_node(planner->model, NULL); node;
         node = tsr_model_next_node(planner->model, node)) {
        const tsr_node_config *nc = tsr_node_find_config(node, config);
        if (nc && (what == HAD_SPEC ? tsr_node_config_spec_count(nc) > 0
                                    : tsr_node_config_stage(nc, &stage)))
            return true;
    }
    return false;
}

// Shardings that the model has for as many devices are kept, and completed.
static tsr_status find_config(struct planner *planner, const char *name, bool stages)
{
    size_t fitting = 0;
    for (size_t i = 0; i < tsr_model_config_count(planner->model); i++) {
        tsr_config *config = tsr_model_config(planner->model, i);
        bool named = name && strcmp(tsr_config_name(config), name) == 0;
        fitting += tsr_config_devices(config) == planner->n;
        if (named || (!name && tsr_config_devices(config) == planner->n))
            planner->config = config;
    }
    if (!name && fitting != 1)
        planner->config = NULL;
    if (!planner->config)
        return TSR_OK;
    if (tsr_config_devices(planner->config) != planner->n)
        return refuse_config(planner, planner->config,
                             "the configuration is for another number of devices");
    planner->hand_staged = some_node_has(planner, planner->config, HAD_STAGE);
    if ((stages || planner->hand_staged) && some_node_has(planner, planner->config, HAD_SPEC)) {
        if (name || planner->hand_staged)
            return refuse_config(planner, planner->config,
                                 "its nodes have shardings, which stages do not keep");
        planner->config = NULL;
        return TSR_OK;
    }
    size_t errors = tsr__diag_errors(planner->session);
    tsr_status st = tsr__check(planner->model, tsr_config_name(planner->config), false);
    if (st == TSR_OK && tsr__diag_errors(planner->session) > errors)
        return TSR_INVALID;
    return st;
}

// Names of the devices, by which ranks choose their providers; NULL: they are what a rank takes anyway, or cannot be said.
static const char **device_names(struct planner *planner)
{
    const char **names = ARENA_ARRAY(&planner->arena, const char *, (size_t)planner->n);
    bool special = false;
    for (int64_t device = 0;
         names && device < planner->n && device < tsr_topology_devices(planner->topology);
         device++) {
        const char *name = tsr_topology_device_at(planner->topology, (int)device)->name;
        names[device] = name && name[0] ? name : "CPU";
        special = special || strcmp(names[device], "CPU") != 0;
        if (strpbrk(names[device], ",\n"))
            return NULL;
    }
    return special ? names : NULL;
}

tsr_status tsr__planner_config(struct planner *planner, const char *name)
{
    const char **names = planner->config ? NULL : device_names(planner);
    struct str text =
        name ? str_of(name) : tsr__arena_printf(&planner->arena, "plan%lld", (long long)planner->n);
    for (int i = 2; text.p && !name && tsr_model_find_config(planner->model, text.p); i++)
        text = tsr__arena_printf(&planner->arena, "plan%lld_%d", (long long)planner->n, i);
    if (!text.p)
        return TSR_NOMEM;
    tsr_status st = planner->config
                        ? TSR_OK
                        : tsr_model_add_config(planner->model, text.p, planner->n, names,
                                               names ? (size_t)planner->n : 0, &planner->config);
    if (st == TSR_OK && tsr_model_ir_version(planner->model) < 11)
        st = tsr_model_set_ir_version(planner->model, 11);
    return st;
}

// ---- the answer --------------------------------------------------------------------------------

tsr_status tsr__planner_export(tsr_session *session, const struct program *program,
                               const char *path)
{
    struct text text;
    struct outfile outfile = {0};
    tsr__text_init(&text, session);
    text.max = (size_t)1 << 32;
    tsr_status st = tsr__program_lp(program, &text);
    if (st == TSR_OK)
        st = tsr__out_open(session, path, &outfile);
    if (st == TSR_OK) {
        tsr__out_write(&outfile, text.p, text.n);
        st = tsr__out_commit(&outfile);
    }
    tsr__out_abort(&outfile);
    tsr__text_free(&text);
    return st;
}

tsr_status tsr__planner_tell(struct planner *planner, const struct block_choice *block,
                             tsr_plan_summary *out)
{
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    struct collective_count counts[PLAN_MAX_OPS];
    tsr_collective_count *list = ARENA_ARRAY(arena, tsr_collective_count, PLAN_MAX_OPS);
    if (!list)
        return TSR_NOMEM;
    if (block && block->devices) {
        memcpy(counts, block->collectives, sizeof counts);
        out->n_collectives = block->n_collectives;
    } else {
        out->n_collectives = tsr__planner_collectives(planner, counts);
    }
    for (size_t i = 0; i < out->n_collectives; i++)
        list[i] = (tsr_collective_count){counts[i].op, counts[i].count};
    out->collectives = list;
    out->config = tsr__arena_str(arena, str_of(tsr_config_name(planner->config))).p;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        out->nodes += planner->nodes[i].strategy != NULL;
        out->cut_nodes += planner->nodes[i].strategy &&
                          planner->nodes[i].strategy->at.at[planner->nodes[i].choice].cut;
    }
    return arena->failed ? TSR_NOMEM : TSR_OK;
}

static tsr_status summarize(struct planner *planner, const struct program_result *result,
                            const struct block_choice *block, double ms, tsr_plan_summary *out)
{
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    int64_t *memory = block->memory, *peak = block->peak;
    if (!memory) {
        memory = ARENA_ARRAY(arena, int64_t, (size_t)planner->n);
        peak = ARENA_ARRAY(arena, int64_t, (size_t)planner->n);
        if (!memory || !peak || !tsr__planner_memory(planner, memory, peak))
            return TSR_NOMEM;
    }
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = (size_t)planner->n, .feasible = true};
    out->optimal = result->optimal;
    out->gap = result->gap;
    out->cost = result->cost;
    out->bound = result->bound;
    out->solve_ms = ms;
    out->stopped = tsr__budget_over(planner->budget) && !result->optimal;
    out->memory = memory;
    out->peak = peak;
    out->used_devices = block->devices ? block->devices : planner->n;
    out->copies = block->devices ? block->copies : 1;
    return tsr__planner_tell(planner, block, out);
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

// Whether the text means this node: its name, its index, or one of its outputs.
static bool is_named(const tsr_node *node, const char *name)
{
    int64_t index = index_of(name);
    if (strcmp(tsr_node_name(node), name) == 0 || (index >= 0 && tsr_node_index(node) == index))
        return true;
    for (size_t o = 0; o < tsr_node_output_count(node); o++) {
        const tsr_value *value = tsr_node_output(node, o);
        if (value && strcmp(tsr_value_name(value), name) == 0)
            return true;
    }
    return false;
}

const struct plan_node *tsr__planner_find(const struct planner *planner, const char *name)
{
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].strategy && is_named(planner->nodes[i].node, name))
            return &planner->nodes[i];
    return NULL;
}

const struct plan_node *tsr__planner_find_common(const struct planner *planner,
                                                 const unsigned char *staged, const char *name)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        uint32_t id = tsr__node_id(planner->nodes[i].node);
        bool common = planner->node_at[id] >= 0 && !staged[id];
        if (common && is_named(planner->nodes[i].node, name))
            return &planner->nodes[i];
    }
    return NULL;
}

// Adds one tensor of a way to the list, unless it is absent.
static void add_tensor(const struct planner *planner, const tsr_value *value, uint32_t layout,
                       tsr_plan_tensor *list, size_t *n)
{
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    if (!value || layout == PLAN_NO_LAYOUT)
        return;
    list[(*n)++] = (tsr_plan_tensor){
        .value = tsr__arena_str(arena, tsr__value_str(value)).p,
        .sharding = tsr__notation_print(arena, planner->layouts.at[layout]).p,
        .in_parts = planner->parts.at[layout] != NULL,
    };
}

// The layouts of a candidate are numbers of this planner.
bool tsr__choice_tensors(const struct planner *planner, const tsr_node *node,
                         const struct candidate *candidate, tsr_plan_choice *out)
{
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    size_t n_in = tsr_node_input_count(node), n_out = tsr_node_output_count(node);
    tsr_plan_tensor *in = ARENA_ARRAY(arena, tsr_plan_tensor, n_in + 1);
    tsr_plan_tensor *made = ARENA_ARRAY(arena, tsr_plan_tensor, n_out + 1);
    if (!in || !made)
        return false;
    out->n_inputs = out->n_outputs = 0;
    for (size_t i = 0; i < n_in; i++)
        add_tensor(planner, tsr_node_input(node, i), candidate->in[i], in, &out->n_inputs);
    for (size_t i = 0; i < n_out; i++)
        add_tensor(planner, tsr_node_output(node, i), candidate->out[i], made, &out->n_outputs);
    out->inputs = in;
    out->outputs = made;
    return !arena->failed;
}

// What the best plan costs in which the node runs in each of its ways.
tsr_status tsr__planner_explain(struct planner *planner, const struct program *program,
                                const char *name, tsr_plan_summary *out)
{
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    const struct plan_node *node = tsr__planner_find(planner, name);
    if (!node) {
        struct place at = PLACE_NONE;
        at.node = str_of(name);
        tsr__diag(planner->session, DIAG_plan_node, &at,
                  "name a node, one of its outputs, or #index",
                  "no node of that name is needed for an output of the model");
        return TSR_INVALID;
    }
    size_t k = node->strategy->at.n;
    struct program_marginal *marginal = ARENA_ARRAY(arena, struct program_marginal, k + 1);
    tsr_plan_choice *list = ARENA_ARRAY(arena, tsr_plan_choice, k + 1);
    if (!marginal || !list)
        return TSR_NOMEM;
    struct program_options options = tsr__budget_share(planner->budget, 1.0 / (double)(k + 1));
    tsr_status st = tsr__program_marginals(program, &options, &planner->arena, node->var, marginal);
    for (size_t i = 0; st == TSR_OK && i < k; i++) {
        const struct candidate *candidate = &node->strategy->at.at[i];
        list[i] = (tsr_plan_choice){.name = tsr__arena_str(arena, candidate->name).p,
                                    .chosen = i == node->choice,
                                    .feasible = marginal[i].feasible,
                                    .cost = marginal[i].feasible ? marginal[i].cost : 0,
                                    .compute = candidate->compute,
                                    .communication = candidate->comm,
                                    .weights = candidate->weights,
                                    .reduction = candidate->reduction};
        if (!tsr__choice_tensors(planner, node->node, candidate, &list[i]))
            st = TSR_NOMEM;
    }
    out->choices = list;
    out->n_choices = k;
    return arena->failed ? TSR_NOMEM : st;
}

// ---- the solution ------------------------------------------------------------------------------

void tsr__planner_take(struct planner *planner, const uint32_t *choice)
{
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].strategy)
            planner->nodes[i].choice = choice[planner->nodes[i].var];
}

static bool fits(const struct program *program, const uint32_t *choice)
{
    for (uint32_t i = 0; i < program->limits.n; i++)
        if (tsr__program_peak(program, i, choice, NULL) > program->limits.at[i].bound)
            return false;
    return true;
}

// Nothing was found, nor excluded: what needs the least memory may do, whatever it costs.
static tsr_status take_least(struct planner *planner, const struct program *program,
                             struct program_result *result)
{
    struct program_least least = {0};
    struct program_options options = tsr__budget_share(planner->budget, 0.5);
    tsr_status st = tsr__program_least(program, &options, &planner->arena, &least);
    tsr__budget_spend(planner->budget, least.work);
    if (st != TSR_OK || !least.found || !fits(program, least.choice))
        return st;
    result->feasible = true;
    result->choice = least.choice;
    result->cost = tsr__program_cost(program, least.choice);
    double size = fabs((double)result->cost) > 1 ? fabs((double)result->cost) : 1;
    result->gap = ((double)result->cost - (double)result->bound) / size;
    result->optimal = result->cost == result->bound;
    return TSR_OK;
}

// Cancelled before there was anything: a plan without limits takes a moment, and is better than none.
static tsr_status solve_hastily(struct planner *planner, const struct program *program,
                                struct program_result *result)
{
    struct program_options options = {.work = UINT64_C(200000000)};
    tsr_session_cancel(planner->session, false);
    tsr_status st = tsr__program_solve(program, &options, &planner->arena, result);
    tsr_session_cancel(planner->session, true);
    return st;
}

tsr_status tsr__planner_solve(struct planner *planner, const struct program *program,
                              struct program_result *result)
{
    struct program free = *program;
    free.limits.n = 0;
    struct program_options options =
        tsr__budget_share(planner->budget, program->limits.n ? 0.3 : 0.9);
    tsr_status st = tsr__program_solve(&free, &options, &planner->arena, result);
    if (st != TSR_OK)
        return st;
    tsr__budget_spend(planner->budget, result->work);
    if (!result->feasible && tsr__cancelled(planner->session))
        st = solve_hastily(planner, &free, result);
    if (st != TSR_OK)
        return st;
    bool best = result->optimal || (result->feasible && result->gap < 1e-9);
    if (program->limits.n == 0 || (best && fits(program, result->choice)))
        return st;
    struct program_result unlimited = *result;
    options = tsr__budget_share(planner->budget, 0.8);
    st = tsr__program_solve(program, &options, &planner->arena, result);
    if (st != TSR_OK)
        return st;
    tsr__budget_spend(planner->budget, result->work);
    if (!result->feasible && !result->infeasible)
        st = take_least(planner, program, result);
    if (st == TSR_OK && !result->feasible && planner->may_exceed && unlimited.feasible) {
        *result = unlimited;
        planner->exceeds = true;
    }
    return st;
}

// Plans all devices at once.
static tsr_status solve_flat(struct planner *planner, const tsr_plan_options *options,
                             struct program_result *result)
{
    if (!tsr__planner_candidates(planner) || !tsr__planner_program(planner, options->memory))
        return TSR_NOMEM;
    tsr_status st = options->export_lp ? tsr__planner_export(planner->session, &planner->program,
                                                             options->export_lp)
                                       : TSR_OK;
    if (st != TSR_OK)
        return st;
    return tsr__planner_solve(planner, &planner->program, result);
}

// All devices, or a block of them if that is faster; of a large machine blocks alone, if any will do.
// So many devices are planned as blocks that are alike, or not at all.
static tsr_status refuse_many(struct planner *planner, bool blocks, tsr_status status)
{
    tsr__diag(planner->session, DIAG_plan_devices, NULL,
              blocks
                  ? "give the devices more memory"
                  : "plan for devices that are alike, with no shardings, states, stages or exports",
              blocks ? "%lld devices, and no block of at most 64 of them has memory for the model"
                     : "%lld devices that cannot be planned as blocks that do the same",
              (long long)planner->n);
    return status;
}

static tsr_status find_plan(struct planner *planner, const tsr_plan_options *options,
                            struct program_result *result, struct block_choice *block)
{
    bool only = tsr__blocks_only(planner, options), many = planner->n > PLAN_MAX_AT_ONCE;
    if (many && !only)
        return refuse_many(planner, false, TSR_UNSUPPORTED);
    tsr_status st = only ? TSR_OK : solve_flat(planner, options, result);
    if (st == TSR_OK && result->feasible)
        tsr__planner_take(planner, result->choice);
    if (st == TSR_OK)
        st = tsr__plan_blocks(planner, options, result, block);
    if (st != TSR_OK || !only || result->feasible || tsr__cancelled(planner->session))
        return st;
    if (many)
        return refuse_many(planner, true, TSR_INFEASIBLE);
    st = solve_flat(planner, options, result);
    if (st == TSR_OK && result->feasible)
        tsr__planner_take(planner, result->choice);
    return st;
}

static tsr_status write_plan(struct planner *planner, const tsr_plan_options *options)
{
    tsr_status st = tsr__planner_config(planner, options->config);
    if (st != TSR_OK)
        return st;
    st = tsr__planner_write(planner, planner->config);
    if (st != TSR_OK)
        return st;
    st = tsr__planner_keep_topology(planner);
    if (st != TSR_OK)
        return st;
    return tsr__planner_keep_states(planner);
}

static tsr_status solve(struct planner *planner, const tsr_plan_options *options,
                        tsr_plan_summary *out)
{
    struct program_result result = {0};
    struct block_choice block = {0};
    if (!tsr__planner_list(planner))
        return TSR_NOMEM;
    tsr_status st = find_plan(planner, options, &result, &block);
    double ms = 1e3 * (tsr__clock() - planner->budget->begin);
    tsr__budget_told(planner->budget);
    if (st != TSR_OK)
        return st;
    if (!result.feasible)
        return tsr__planner_refuse(planner, options, result.infeasible, out);
    if (planner->exceeds && !block.devices)
        st = tsr__planner_warn_memory(planner);
    if (st == TSR_OK)
        st = write_plan(planner, options);
    if (st == TSR_OK)
        st = summarize(planner, &result, &block, ms, out);
    if (st != TSR_OK)
        return st;
    bool over = tsr__budget_over(planner->budget);
    if (!block.devices)
        out->one_device = tsr__planner_one_device(planner);
    if (!over && (block.devices || !tsr__planner_alike(planner)))
        st = tsr__plan_best_device(planner, options, &out->one_device);
    if (st == TSR_OK && !block.devices && !planner->exceeds && !over)
        st = tsr__plan_better(planner, options, out);
    if (st == TSR_OK && options->explain)
        return tsr__planner_explain(planner, &planner->program, options->explain, out);
    return st;
}

// Together with another model.
static tsr_status solve_with(struct planner *planner, const tsr_plan_options *options,
                             tsr_plan_summary *out)
{
    struct planner q = {0};
    if (options->stages || options->with == planner->model) {
        tsr__diag(planner->session, DIAG_plan_with, NULL,
                  "load the other model on its own in the same session, and ask for no stages",
                  options->stages ? "two models are not planned together in stages"
                                  : "the two models are one");
        return TSR_INVALID;
    }
    tsr__planner_start(&q, options->with);
    q.budget = planner->budget;
    q.topology = planner->topology;
    q.n = planner->n;
    tsr_status st = tsr__planner_devices(&q) ? find_config(&q, options->config, false) : TSR_NOMEM;
    if (st == TSR_OK && !tsr__planner_values(&q, options->with_sizes, options->n_with_sizes))
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__planner_states(&q, options->state, options->n_state);
    if (st == TSR_OK && !tsr__planner_hands_over(planner, &q))
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__plan_joint(planner, &q, options, out);
    if (st == TSR_OK)
        st = tsr__planner_keep_sizes(&q, options->with_sizes, options->n_with_sizes);
    tsr__planner_end(&q);
    return st;
}

// Picoseconds of one run of the model itself.
static int64_t own_time(const tsr_plan_summary *summary)
{
    if (summary->n_parts)
        return summary->parts[0].cost;
    return summary->n_stages ? summary->latency : summary->cost;
}

tsr_status tsr__plan_options_owned(tsr_session *session, const tsr_plan_options *options)
{
    tsr_plan_options given = {.size = sizeof given};
    memcpy(&given, options, options->size < sizeof given ? options->size : sizeof given);
    tsr_status status = tsr__topology_owned(session, given.topology);
    if (status != TSR_OK || !given.with)
        return status;
    return tsr__same_session(session, tsr_model_session(given.with), "other model");
}

tsr_status tsr_plan(tsr_model *model, const tsr_plan_options *options, tsr_plan_summary *summary)
{
    struct planner planner = {0};
    struct budget budget;
    tsr_plan_options plan_options = {.size = sizeof plan_options};
    tsr_plan_summary plan_summary = {.size = sizeof plan_summary};
    tsr_status st = tsr__plan_options_owned(tsr_model_session(model), options);
    if (st != TSR_OK)
        return st;
    memcpy(&plan_options, options,
           options->size < sizeof plan_options ? options->size : sizeof plan_options);
    tsr__planner_start(&planner, model);
    tsr__budget_start(&budget, planner.session, plan_options.seconds);
    planner.budget = &budget;
    tsr__arena_free(&planner.session->results[RESULT_PLAN]);
    st = read_topology(&planner, &plan_options);
    if (st == TSR_OK)
        st = find_config(&planner, plan_options.config, plan_options.stages != 0);
    if (st == TSR_OK)
        planner.may_exceed =
            planner.topology->memory_assumed && plan_options.memory == 0 && !plan_options.with;
    if (st == TSR_OK && planner.config &&
        !tsr__plan_sizes(&planner.arena, model, tsr_config_name(planner.config),
                         &plan_options.sizes, &plan_options.n_sizes))
        st = TSR_NOMEM;
    if (st == TSR_OK && !tsr__planner_values(&planner, plan_options.sizes, plan_options.n_sizes))
        st = TSR_NOMEM;
    if (st == TSR_OK && !plan_options.with)
        st = tsr__planner_states(&planner, plan_options.state, plan_options.n_state);
    if (st == TSR_OK)
        st = plan_options.with ? solve_with(&planner, &plan_options, &plan_summary)
             : plan_options.stages || planner.hand_staged
                 ? tsr__plan_stages(&planner, &plan_options, &plan_summary)
                 : solve(&planner, &plan_options, &plan_summary);
    if (st == TSR_OK)
        st = tsr__planner_keep_sizes(&planner, plan_options.sizes, plan_options.n_sizes);
    if (plan_summary.feasible)
        plan_summary.milliseconds = (double)own_time(&plan_summary) / 1e9;
    if (!plan_options.topology)
        tsr_topology_free(planner.topology);
    tsr__planner_end(&planner);
    if (summary && (st == TSR_OK || st == TSR_INFEASIBLE)) {
        size_t n = summary->size && summary->size < sizeof plan_summary ? summary->size
                                                                        : sizeof plan_summary;
        plan_summary.size = n;
        memcpy(summary, &plan_summary, n);
    }
    return st;
}
