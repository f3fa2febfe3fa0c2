// SPDX-License-Identifier: Apache-2.0
// plan.c - tsr_plan: values, candidates, the program, its answer, and the shardings that say it.
//
// A matrix product on two devices, told in numbers. X is [8, 6], W is [6, 4], and the only node Y = X W has the factors
// m = 8, k = 6 and n = 4. Its candidates (strategies.c) are the columns of one variable of the program:
//
//     "whole"  both devices do all of it                         192 multiplications each    nothing is sent
//     "m/2"    device 1 has rows 4..7 of X and all of W           96                          nothing is sent
//     "k/2"    device 1 has columns 3..5 of X and rows 3..5 of W  96                          the sum: AllReduce of 32 numbers
//     "n/2"    device 1 has columns 2..3 of W                     96                          nothing is sent
//
// Y is an output, so its reader is the caller, who wants it whole on device 0: an edge adds to each column what it costs to
// bring it there (edges.c). W lies in half of the memory with "k/2" and "n/2": a row of the program (uses.c, stored.c)
// forbids the others where the devices have no room. The least sum that keeps the rows is the plan (solver/solver.h).
#include "plan/stages/stages.h"

// ---- start and end -----------------------------------------------------------------------------

// A number of devices is a topology too: so many on one host.
static tsr_status make_topology(struct planner *planner, int64_t devices)
{
    struct str text = tsr__arena_printf(&planner->arena, "%lld", (long long)devices);
    if (!text.p)
        return TSR_NOMEM;
    return tsr_topology_parse(planner->session, text.p, &planner->machine.topology);
}

// The caller's topology, or one host of so many devices, which the planner then owns (plan_whole
// frees it).
static tsr_status read_topology(struct planner *planner, const tsr_plan_options *options)
{
    int most = PLAN_MAX_AT_ONCE; // of one host: all pairs
    planner->machine.n = options->devices;
    planner->machine.topology = options->topology;
    if (options->topology) {
        most = PLAN_MAX_DEVICES;
        planner->machine.n = tsr_topology_devices(options->topology);
    }
    if (planner->machine.n < 1 || planner->machine.n > most) {
        tsr__diag(planner->session, DIAG_plan_devices, NULL,
                  "plan for fewer devices, or for hosts: hosts:1250x8",
                  "%lld devices; plans are made for 1 to %d", (long long)planner->machine.n, most);
        return TSR_UNSUPPORTED;
    }
    tsr_status st = TSR_OK;
    if (!options->topology)
        st = make_topology(planner, options->devices);
    if (st != TSR_OK)
        return st;
    if (!tsr__planner_devices(planner))
        return TSR_NOMEM;
    return TSR_OK;
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

static bool has(const tsr_node_config *config, enum had what)
{
    int64_t stage;
    if (what == HAD_SPEC)
        return tsr_node_config_spec_count(config) > 0;
    return tsr_node_config_stage(config, &stage);
}

static bool some_node_has(const struct planner *planner, const tsr_config *config, enum had what)
{
    for (tsr_node *node = tsr_model_next_node(planner->model, NULL); node;
         node = tsr_model_next_node(planner->model, node)) {
        const tsr_node_config *nc = tsr_node_find_config(node, config);
        if (nc && has(nc, what))
            return true;
    }
    return false;
}

// The configuration of that name; without a name the only one for as many devices. NULL: none.
static tsr_config *choose_config(const struct planner *planner, const char *name)
{
    tsr_config *chosen = NULL;
    size_t fitting = 0;
    for (size_t i = 0; i < tsr_model_config_count(planner->model); i++) {
        tsr_config *config = tsr_model_config(planner->model, i);
        bool named = name && strcmp(tsr_config_name(config), name) == 0;
        bool fits = tsr_config_devices(config) == planner->machine.n;
        fitting += fits;
        if (named || (!name && fits))
            chosen = config;
    }
    if (!name && fitting != 1)
        return NULL;
    return chosen;
}

// Shardings that the model has for as many devices are kept, and completed.
static tsr_status find_config(struct planner *planner, const char *name, bool stages)
{
    planner->config = choose_config(planner, name);
    if (!planner->config)
        return TSR_OK;
    if (tsr_config_devices(planner->config) != planner->machine.n)
        return refuse_config(planner, planner->config,
                             "the configuration is for another number of devices");
    planner->hand_staged = some_node_has(planner, planner->config, HAD_STAGE);
    // Stages plan all nodes anew. A configuration that was named, or that has stages by hand,
    // cannot be left aside.
    if ((stages || planner->hand_staged) && some_node_has(planner, planner->config, HAD_SPEC)) {
        if (name || planner->hand_staged)
            return refuse_config(planner, planner->config,
                                 "its nodes have shardings, which stages do not keep");
        planner->config = NULL;
        return TSR_OK;
    }
    size_t errors = tsr__diag_errors(planner->session);
    tsr_status st = tsr__check(planner->model, tsr_config_name(planner->config), false);
    if (st != TSR_OK)
        return st;
    if (tsr__diag_errors(planner->session) > errors)
        return TSR_INVALID;
    return TSR_OK;
}

// ---- the answer --------------------------------------------------------------------------------

// Some ways of the nodes were left out for want of time.
static bool is_narrow(const struct planner *planner)
{
    return planner->pace.ways > 0 || (planner->block && planner->block->pace.ways > 0);
}

// block: all zero where all devices were planned at once; else it has counted the memory already.
// Memory, costs and counts of the plan that was taken. Results live in the session until the next
// plan.
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
    out->stopped = !result->optimal && (tsr__budget_over(planner->budget) || is_narrow(planner));
    out->memory = memory;
    out->peak = peak;
    out->copies = 1;
    out->milliseconds = (double)(result->cost - tsr__planner_not_waited(planner)) / 1e9;
    if (block->devices) {
        out->used_devices = block->devices;
        out->copies = block->copies;
    } else {
        out->used_devices = tsr__planner_used(planner, memory, peak);
    }
    return tsr__planner_tell(planner, block, out);
}

// ---- the solution ------------------------------------------------------------------------------

// Plans all devices at once.
static tsr_status solve_flat(struct planner *planner, const tsr_plan_options *options,
                             struct program_result *result)
{
    if (!tsr__planner_build(planner, options->memory))
        return TSR_NOMEM;
    tsr_status st = TSR_OK;
    if (options->export_lp)
        st = tsr__planner_export(planner->session, &planner->program, options->export_lp);
    if (st != TSR_OK)
        return st;
    return tsr__planner_solve(planner, &planner->program, result);
}

// So many devices are planned as blocks that are alike, or not at all.
static tsr_status refuse_unlike(struct planner *planner)
{
    tsr__diag(planner->session, DIAG_plan_devices, NULL,
              "plan for devices that are alike, with no shardings, stages or exports",
              "%lld devices that cannot be planned as blocks that do the same",
              (long long)planner->machine.n);
    return TSR_UNSUPPORTED;
}

static tsr_status refuse_small(struct planner *planner)
{
    tsr__diag(planner->session, DIAG_plan_devices, NULL, "give the devices more memory",
              "%lld devices, and no block of at most 64 of them has memory for the model",
              (long long)planner->machine.n);
    return TSR_INFEASIBLE;
}

static tsr_status take_flat(struct planner *planner, const tsr_plan_options *options,
                            struct program_result *result)
{
    tsr_status st = solve_flat(planner, options, result);
    if (st == TSR_OK && result->feasible)
        tsr__planner_take(planner, result->choice);
    return st;
}

// All devices, or a block of them if that is faster; of a large machine blocks alone, if any will do.
static tsr_status find_plan(struct planner *planner, const tsr_plan_options *options,
                            struct program_result *result, struct block_choice *block)
{
    // At most 64 devices, or unlike ones: flat first, then perhaps a block. 65 to 1024 that are alike:
    // blocks, and flat only where no block fits. More: blocks or nothing.
    bool only_blocks = tsr__blocks_only(planner, options);
    bool many = planner->machine.n > PLAN_MAX_AT_ONCE;
    if (many && !only_blocks)
        return refuse_unlike(planner);
    tsr_status st = TSR_OK;
    if (!only_blocks)
        st = take_flat(planner, options, result);
    if (st != TSR_OK)
        return st;
    st = tsr__plan_blocks(planner, options, result, block);
    if (st != TSR_OK || !only_blocks || result->feasible || tsr__cancelled(planner->session))
        return st;
    if (many)
        return refuse_small(planner);
    return take_flat(planner, options, result);
}

// What one device would take, and whether fewer devices would do: asked only while there is time left.
static tsr_status compare_devices(struct planner *planner, const tsr_plan_options *options,
                                  const struct block_choice *block, tsr_plan_summary *out)
{
    bool over = tsr__budget_over(planner->budget);
    tsr_status st = TSR_OK;
    if (!block->devices)
        out->one_device = tsr__planner_one_device(planner);
    if (!over && (block->devices || !tsr__planner_alike(planner)))
        st = tsr__plan_best_device(planner, options, &out->one_device);
    if (st != TSR_OK || over || block->devices || planner->memory.exceeds)
        return st;
    return tsr__plan_better(planner, options, out);
}

// Says what the plan lacks: memory, where nobody said how much there is, and time.
static tsr_status say_lacks(struct planner *planner, const struct block_choice *block)
{
    if (is_narrow(planner))
        tsr__pace_say(planner);
    if (planner->memory.exceeds && !block->devices)
        return tsr__planner_warn_memory(planner);
    return TSR_OK;
}

// A plan without stages that was found, and when.
struct found_plan {
    struct program_result result;
    struct block_choice block;
    double ms;
};

static tsr_status find(struct planner *planner, const tsr_plan_options *options,
                       struct found_plan *out)
{
    if (!tsr__planner_list(planner))
        return TSR_NOMEM;
    tsr_status st = find_plan(planner, options, &out->result, &out->block);
    out->ms = 1e3 * (tsr__clock() - planner->budget->begin);
    tsr__budget_told(planner->budget);
    return st;
}

// Writes what was found into the model, and sums it up.
static tsr_status take_found(struct planner *planner, const tsr_plan_options *options,
                             const struct found_plan *found, tsr_plan_summary *out)
{
    tsr_status st = say_lacks(planner, &found->block);
    if (st != TSR_OK)
        return st;
    st = tsr__planner_write(planner, options->config);
    if (st != TSR_OK)
        return st;
    st = summarize(planner, &found->result, &found->block, found->ms, out);
    if (st != TSR_OK)
        return st;
    st = compare_devices(planner, options, &found->block, out);
    if (st != TSR_OK || !options->explain)
        return st;
    return tsr__planner_explain(planner, &planner->program, options->explain, out);
}

// Plans the model on all devices or on blocks of them, writes the plan into it, and sums it up.
static tsr_status solve(struct planner *planner, const tsr_plan_options *options,
                        tsr_plan_summary *out)
{
    struct found_plan found = {0};
    tsr_status st = find(planner, options, &found);
    if (st != TSR_OK)
        return st;
    if (!found.result.feasible)
        return tsr__planner_refuse(planner, options, found.result.infeasible, out);
    return take_found(planner, options, &found, out);
}

// Both on all devices at once; of a large machine as blocks that do the same, if any will do.
static tsr_status plan_both(struct planner *planner, struct planner *other,
                            const tsr_plan_options *options, tsr_plan_summary *out)
{
    bool found = false, many = planner->machine.n > PLAN_MAX_AT_ONCE;
    if (!tsr__blocks_only(planner, options) || !tsr__blocks_only(other, options)) {
        if (many)
            return refuse_unlike(planner);
        return tsr__plan_joint(planner, other, options, out);
    }
    tsr_status st = tsr__plan_joint_blocks(planner, other, options, out, &found);
    if (st != TSR_OK || found)
        return st;
    if (many)
        return refuse_small(planner);
    return tsr__plan_joint(planner, other, options, out);
}

// Reads what is said of the other model, and plans both.
static tsr_status solve_both(struct planner *planner, struct planner *other,
                             const tsr_plan_options *options, tsr_plan_summary *out)
{
    if (!tsr__planner_devices(other))
        return TSR_NOMEM;
    tsr_status st = find_config(other, options->config, options->stages != 0);
    if (st != TSR_OK)
        return st;
    if (other->hand_staged)
        return refuse_config(other, other->config, "stages by hand are the first model's");
    if (!tsr__planner_values(other, options->with_sizes, options->n_with_sizes))
        return TSR_NOMEM;
    st = tsr__planner_states(other, options->state, options->n_state);
    if (st != TSR_OK)
        return st;
    if (!tsr__planner_hands_over(planner, other))
        return TSR_NOMEM;
    if (options->stages || planner->hand_staged)
        st = tsr__plan_stages(planner, other, options, NULL, out);
    else
        st = plan_both(planner, other, options, out);
    if (st != TSR_OK)
        return st;
    return tsr__planner_keep_sizes(other, options->with_sizes, options->n_with_sizes);
}

// Together with another model.
static tsr_status solve_with(struct planner *planner, const tsr_plan_options *options,
                             tsr_plan_summary *out)
{
    struct planner other = {0};
    if (options->with == planner->model) {
        tsr__diag(planner->session, DIAG_plan_with, NULL,
                  "load the other model on its own in the same session", "the two models are one");
        return TSR_INVALID;
    }
    tsr__planner_start(&other, options->with);
    other.budget = planner->budget;
    other.machine.topology = planner->machine.topology;
    other.machine.n = planner->machine.n;
    tsr_status st = solve_both(planner, &other, options, out);
    tsr__planner_end(&other);
    return st;
}

// Picoseconds of one run of the model itself, as the program counts them.
static int64_t own_time(const tsr_plan_summary *summary)
{
    if (summary->n_parts)
        return summary->parts[0].cost;
    if (summary->n_stages)
        return summary->latency;
    return summary->cost;
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

// Reads the options into the planner: devices, configuration, sizes, states. The sizes that a configuration was planned for
// count where the caller gives none: they are added to the options.
static tsr_status read_options(struct planner *planner, tsr_plan_options *options)
{
    tsr_status st = read_topology(planner, options);
    if (st != TSR_OK)
        return st;
    st = find_config(planner, options->config, options->stages != 0);
    if (st != TSR_OK)
        return st;
    planner->memory.may_exceed =
        planner->machine.topology->memory_assumed && options->memory == 0 && !options->with;
    if (planner->config &&
        !tsr__plan_sizes(&planner->arena, planner->model, tsr_config_name(planner->config),
                         &options->sizes, &options->n_sizes))
        return TSR_NOMEM;
    if (!tsr__planner_values(planner, options->sizes, options->n_sizes))
        return TSR_NOMEM;
    if (options->with)
        return TSR_OK; // states are the other model's
    return tsr__planner_states(planner, options->state, options->n_state);
}

// Of plans with and without stages none takes less than the least that was proved of either.
static void set_bound(tsr_plan_summary *out, int64_t bound)
{
    out->bound = int64_min(out->bound, bound);
    out->optimal = out->cost <= out->bound;
    out->gap = (double)(out->cost - out->bound) / (double)int64_max(out->cost, 1);
}

// As many stages as are best, or none: a plan without stages is made first, which stages have to beat. It has ways that stages do
// not have, such as sums that stay in parts, and on unlike devices it is found sooner.
static tsr_status solve_auto(struct planner *planner, struct planner *plain,
                             const tsr_plan_options *options, tsr_plan_summary *out)
{
    struct found_plan found = {0};
    struct budget half = tsr__budget_part(planner->budget, 0.5);
    tsr_plan_options given = *options;
    struct diag_mark before = tsr__diag_mark(planner->session);
    plain->budget = &half;
    tsr_status st = read_options(plain, &given);
    if (st != TSR_OK)
        return st;
    st = find(plain, &given, &found);
    // What is said of it is said again where it is taken; that it cannot be is no news here.
    tsr__diag_back(planner->session, &before, false);
    if (st != TSR_OK && st != TSR_INFEASIBLE && st != TSR_UNSUPPORTED)
        return st;
    struct stage_rival rival = {.cost = PLAN_NEVER};
    if (st == TSR_OK && found.result.feasible && !plain->memory.exceeds)
        rival.cost = found.result.cost;
    st = tsr__plan_stages(planner, NULL, options, &rival, out);
    if (st != TSR_OK)
        return st;
    int64_t bound = int64_min(found.result.bound, rival.bound);
    if (rival.wins) {
        plain->budget = planner->budget;
        st = take_found(plain, options, &found, out);
        planner->config = plain->config; // in which the sizes are kept
    }
    if (st == TSR_OK && rival.cost < PLAN_NEVER)
        set_bound(out, bound);
    return st;
}

// The topology that read_options makes where the caller gave none is the planner's.
static void free_topology(const tsr_plan_options *options, const struct planner *planner)
{
    if (!options->topology)
        tsr_topology_free(planner->machine.topology);
}

// With stages as they are asked for. Programs that are to be seen are those of stages.
static tsr_status solve_stages(struct planner *planner, const tsr_plan_options *options,
                               tsr_plan_summary *out)
{
    bool seen = options->export_lp || options->explain;
    if (options->stages != TSR_STAGES_AUTO || planner->hand_staged || seen)
        return tsr__plan_stages(planner, NULL, options, NULL, out);
    struct planner plain = {0};
    tsr__planner_start(&plain, planner->model);
    tsr_status st = solve_auto(planner, &plain, options, out);
    free_topology(options, &plain);
    tsr__planner_end(&plain);
    return st;
}

// Two models, stages, or all devices at once; in each case the sizes are written down with the
// plan.
static tsr_status plan_model(struct planner *planner, tsr_plan_options *options,
                             tsr_plan_summary *out)
{
    tsr_status st = read_options(planner, options);
    if (st != TSR_OK)
        return st;
    if (options->with)
        st = solve_with(planner, options, out);
    else if (options->stages || planner->hand_staged)
        st = solve_stages(planner, options, out);
    else
        st = solve(planner, options, out);
    if (st != TSR_OK)
        return st;
    return tsr__planner_keep_sizes(planner, options->sizes, options->n_sizes);
}

// Options and summary are whole here.
static tsr_status plan_whole(tsr_model *model, tsr_plan_options *options, tsr_plan_summary *summary)
{
    struct planner planner = {0};
    struct budget budget;
    tsr__planner_start(&planner, model);
    tsr__budget_start(&budget, planner.session, options->seconds);
    planner.budget = &budget;
    // The results of the plan before are gone from here on.
    tsr__arena_free(&planner.session->results[RESULT_PLAN]);
    tsr_status st = plan_model(&planner, options, summary);
    const tsr_topology *topology = planner.machine.topology;
    if (topology) {
        summary->assumed = topology->assumed;
        summary->device_flops = topology->device[0].flops;
    }
    if (summary->feasible && !(summary->milliseconds > 0))
        summary->milliseconds = (double)own_time(summary) / 1e9;
    free_topology(options, &planner);
    tsr__planner_end(&planner);
    return st;
}

// Both structs begin with their size: an older caller's are shorter, and what they lack is zero.
// Numbers that no device and no clock has.
static tsr_status check_limits(tsr_session *session, const tsr_plan_options *options)
{
    if (options->memory >= 0 && options->seconds >= 0)
        return TSR_OK;
    tsr__diag(session, DIAG_argument_invalid, NULL, "give what is there, or 0 for the usual",
              "memory and seconds of a plan are numbers from 0 on");
    return TSR_INVALID;
}

// Either model may have the dimension: both are often planned with the same sizes.
static tsr_status check_dims(tsr_model *model, const tsr_plan_options *options)
{
    tsr_model *models[] = {model, options->with};
    size_t n = options->with ? 2 : 1;
    tsr_status st = tsr__check_dims(models, n, options->sizes, options->n_sizes);
    if (st == TSR_OK)
        st = tsr__check_dims(models, n, options->with_sizes, options->n_with_sizes);
    return st;
}

// The solver counts in 64 bits and says no more than that the numbers do not fit.
static void say_too_large(tsr_session *session)
{
    tsr__diag(session, DIAG_argument_invalid, NULL,
              "give smaller sizes to the dimensions (--dim), as runs will have them",
              "with these sizes times or bytes of the plan are too large to be counted");
}

tsr_status tsr_plan(tsr_model *model, const tsr_plan_options *options, tsr_plan_summary *summary)
{
    if (!options)
        return tsr__missing(tsr_model_session(model), "options");
    tsr_plan_options plan_options = {.size = sizeof plan_options};
    tsr_plan_summary plan_summary = {.size = sizeof plan_summary};
    tsr_status st = tsr__plan_options_owned(tsr_model_session(model), options);
    if (st != TSR_OK)
        return st;
    memcpy(&plan_options, options,
           options->size < sizeof plan_options ? options->size : sizeof plan_options);
    plan_options.size = sizeof plan_options;
    struct diag_mark mark = tsr__diag_mark(tsr_model_session(model));
    st = check_limits(tsr_model_session(model), &plan_options);
    if (st == TSR_OK)
        st = check_dims(model, &plan_options);
    if (st != TSR_OK)
        return st;
    tsr__warn_missing_rules(model);
    if (plan_options.topology && plan_options.topology->choices.n)
        st = tsr__plan_choices(model, &plan_options, &plan_summary);
    else
        st = plan_whole(model, &plan_options, &plan_summary);
    if (st == TSR_INVALID && tsr_model_session(model)->counts[TSR_ERROR] == mark.counts[TSR_ERROR])
        say_too_large(tsr_model_session(model));
    if (summary && (st == TSR_OK || st == TSR_INFEASIBLE)) {
        size_t n = sizeof plan_summary;
        if (summary->size && summary->size < n)
            n = summary->size;
        plan_summary.size = n;
        memcpy(summary, &plan_summary, n);
    }
    return st;
}
