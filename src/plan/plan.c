// SPDX-License-Identifier: Apache-2.0
// plan.c - tsr_plan: values, candidates, the program, its answer, and the shardings that say it.
#include "plan/stages.h"

// ---- start and end -----------------------------------------------------------------------------

static tsr_status read_topology(struct planner *planner, const tsr_plan_options *options)
{
    planner->machine.n =
        options->topology ? tsr_topology_devices(options->topology) : options->devices;
    int most = options->topology ? PLAN_MAX_DEVICES : PLAN_MAX_AT_ONCE; // of one host: all pairs
    if (planner->machine.n < 1 || planner->machine.n > most) {
        tsr__diag(planner->session, DIAG_plan_devices, NULL,
                  "plan for fewer devices, or for hosts: hosts:1250x8",
                  "%lld devices; plans are made for 1 to %d", (long long)planner->machine.n, most);
        return TSR_UNSUPPORTED;
    }
    tsr_status st = TSR_OK;
    planner->machine.topology = options->topology;
    if (!options->topology) {
        struct str text = tsr__arena_printf(&planner->arena, "%lld", (long long)options->devices);
        st = text.p ? tsr_topology_parse(planner->session, text.p, &planner->machine.topology)
                    : TSR_NOMEM;
    }
    if (st != TSR_OK)
        return st;
    return tsr__planner_devices(planner) ? TSR_OK : TSR_NOMEM;
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
        fitting += tsr_config_devices(config) == planner->machine.n;
        if (named || (!name && tsr_config_devices(config) == planner->machine.n))
            planner->config = config;
    }
    if (!name && fitting != 1)
        planner->config = NULL;
    if (!planner->config)
        return TSR_OK;
    if (tsr_config_devices(planner->config) != planner->machine.n)
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

// ---- the answer --------------------------------------------------------------------------------

static tsr_status summarize(struct planner *planner, const struct program_result *result,
                            const struct block_choice *block, double ms, tsr_plan_summary *out)
{
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    int64_t *memory = block->memory, *peak = block->peak;
    if (!memory) {
        memory = ARENA_ARRAY(arena, int64_t, (size_t)planner->machine.n);
        peak = ARENA_ARRAY(arena, int64_t, (size_t)planner->machine.n);
        if (!memory || !peak || !tsr__planner_memory(planner, memory, peak))
            return TSR_NOMEM;
    }
    *out = (tsr_plan_summary){
        .size = sizeof *out, .devices = (size_t)planner->machine.n, .feasible = true};
    out->optimal = result->optimal;
    out->gap = result->gap;
    out->cost = result->cost;
    out->bound = result->bound;
    out->solve_ms = ms;
    out->stopped = tsr__budget_over(planner->budget) && !result->optimal;
    out->memory = memory;
    out->peak = peak;
    out->used_devices = block->devices ? block->devices : planner->machine.n;
    out->copies = block->devices ? block->copies : 1;
    return tsr__planner_tell(planner, block, out);
}

// ---- the solution ------------------------------------------------------------------------------

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
              (long long)planner->machine.n);
    return status;
}

static tsr_status find_plan(struct planner *planner, const tsr_plan_options *options,
                            struct program_result *result, struct block_choice *block)
{
    bool only = tsr__blocks_only(planner, options), many = planner->machine.n > PLAN_MAX_AT_ONCE;
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
    if (planner->memory.exceeds && !block.devices)
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
    if (st == TSR_OK && !block.devices && !planner->memory.exceeds && !over)
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
    q.machine.topology = planner->machine.topology;
    q.machine.n = planner->machine.n;
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
        planner.memory.may_exceed = planner.machine.topology->memory_assumed &&
                                    plan_options.memory == 0 && !plan_options.with;
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
        tsr_topology_free(planner.machine.topology);
    tsr__planner_end(&planner);
    if (summary && (st == TSR_OK || st == TSR_INFEASIBLE)) {
        size_t n = summary->size && summary->size < sizeof plan_summary ? summary->size
                                                                        : sizeof plan_summary;
        plan_summary.size = n;
        memcpy(summary, &plan_summary, n);
    }
    return st;
}
