// SPDX-License-Identifier: Apache-2.0
// plan_once.c - plans a list of models on one topology: reads the options, then searches without
// (search/) or with pipeline stages (stages/).
#include "plan/plan_once.h"
#include "plan/stages/stages.h"

// The planners and options of one call.
struct request {
    struct planner planners[PLAN_MAX_MODELS];
    struct models models;
    // the caller's options, with the sizes that the kept configuration was planned for
    tsr_plan_options options;
};

// ---- devices -----------------------------------------------------------------------------------

// Creates a topology of that number of devices on one host.
static tsr_status make_topology(struct planner *planner, int64_t devices)
{
    struct str text = tsr__arena_printf(&planner->arena, "%lld", (long long)devices);
    if (!text.p)
        return TSR_NOMEM;
    return tsr_topology_parse(planner->session, text.p, &planner->machine.topology);
}

// Sets the caller's topology, or a new one that close_request frees. Reports a number of devices
// that is not supported.
static tsr_status read_topology(struct planner *planner, const tsr_plan_options *options)
{
    int most = PLAN_MAX_AT_ONCE; // limit for one host, where all pairs are linked
    planner->machine.n = options->devices;
    planner->machine.topology = options->topology;
    if (options->topology) {
        most = PLAN_MAX_DEVICES;
        planner->machine.n = tsr_topology_devices(options->topology);
    }
    if (planner->machine.n < 1 || planner->machine.n > most)
        return tsr__fail(planner->session, TSR_UNSUPPORTED, DIAG_plan_devices, NULL,
                         "plan for fewer devices, or for hosts: hosts:1250x8",
                         "%lld devices are not supported; the limit is 1 to %d",
                         (long long)planner->machine.n, most);
    return options->topology ? TSR_OK : make_topology(planner, options->devices);
}

// ---- the configuration -------------------------------------------------------------------------

static tsr_status refuse_config(struct planner *planner, const tsr_config *config, const char *why)
{
    return tsr__fail(planner->session, TSR_INVALID, DIAG_plan_config,
                     &PLACE(.configuration = str_of(tsr_config_name(config))),
                     "give the name of a new configuration (--config)", "%s", why);
}

// Properties that nodes may already have in a configuration.
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

// Returns the configuration with this name; without a name, the only configuration with the number
// of planned devices. NULL: none.
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
    return !name && fitting != 1 ? NULL : chosen;
}

// Finds the configuration to complete, if the model has one for the same number of devices, and
// checks it. Its shardings are kept, unless stages are requested: then a configuration with
// shardings is ignored, or refused if the caller named it or if it has stages.
static tsr_status find_config(struct planner *planner, const char *name, bool stages)
{
    planner->config = choose_config(planner, name);
    if (!planner->config)
        return TSR_OK;
    if (tsr_config_devices(planner->config) != planner->machine.n)
        return refuse_config(planner, planner->config,
                             "the configuration is for another number of devices");
    planner->hand_staged = some_node_has(planner, planner->config, HAD_STAGE);
    // With stages, all nodes are planned anew. But a configuration that the caller named, or that
    // has stages, must not be ignored.
    if ((stages || planner->hand_staged) && some_node_has(planner, planner->config, HAD_SPEC)) {
        if (name || planner->hand_staged)
            return refuse_config(planner, planner->config,
                                 "its nodes have shardings, which planning stages would discard");
        planner->config = NULL;
        return TSR_OK;
    }
    size_t errors = tsr__diag_errors(planner->session);
    TRY(tsr__check(planner->model, tsr_config_name(planner->config)));
    return tsr__diag_errors(planner->session) > errors ? TSR_INVALID : TSR_OK;
}

// ---- the request -------------------------------------------------------------------------------

// True if the caller asks for stages. One stage with the objective latency is a plan without
// stages.
static bool wants_stages(const tsr_plan_options *options)
{
    return options->stages != 0 && (options->stages != 1 || options->objective != TSR_LATENCY);
}

// Reads configuration, sizes and states of model m.
static tsr_status read_model(struct request *request, size_t m)
{
    struct planner *planner = &request->planners[m];
    tsr_plan_options *options = &request->options;
    planner->machine.topology = request->planners[0].machine.topology;
    planner->machine.n = request->planners[0].machine.n;
    if (!tsr__planner_devices(planner))
        return TSR_NOMEM;
    TRY(find_config(planner, options->config, wants_stages(options)));
    if (m > 0 && planner->hand_staged)
        return refuse_config(planner, planner->config,
                             "only the first model may have stages already");
    planner->memory.may_exceed =
        planner->machine.topology->memory_assumed && options->memory == 0 && request->models.n == 1;
    if (m == 0 && planner->config &&
        !tsr__plan_sizes(&planner->arena, planner->model, tsr_config_name(planner->config),
                         &options->sizes, &options->n_sizes))
        return TSR_NOMEM;
    const tsr_dim_size *sizes = m > 0 ? options->with_sizes : options->sizes;
    if (!tsr__planner_values(planner, sizes, m > 0 ? options->n_with_sizes : options->n_sizes,
                             NULL))
        return TSR_NOMEM;
    if (m + 1 < request->models.n)
        return TSR_OK; // states belong to the last model
    return tsr__planner_states(planner, options->state, options->n_state);
}

// Opens the request. The caller must close it in any case.
static tsr_status open_request(struct request *request, tsr_model *model,
                               const tsr_plan_options *options, struct budget *budget)
{
    tsr_model *models[PLAN_MAX_MODELS] = {model, options->with};
    size_t n = options->with ? 2 : 1;
    request->options = *options;
    request->models = (struct models){.n = n};
    for (size_t m = 0; m < n; m++) {
        tsr__planner_start(&request->planners[m], models[m]);
        request->planners[m].budget = budget;
        request->models.planners[m] = &request->planners[m];
    }
    if (options->with == model)
        return tsr__fail(budget->session, TSR_INVALID, DIAG_plan_with, NULL,
                         "load the second model separately in the same session",
                         "both models are the same object");
    TRY(read_topology(&request->planners[0], options));
    for (size_t m = 0; m < n; m++)
        TRY(read_model(request, m));
    if (n > 1 && !tsr__planner_hands_over(&request->planners[0], &request->planners[1]))
        return TSR_NOMEM;
    return tsr__models_init(&request->models, options) ? TSR_OK : TSR_NOMEM;
}

// Closes the request. Frees the last planner first, because it may refer to memory of the first
// one.
static void close_request(struct request *request)
{
    if (!request->options.topology)
        tsr_topology_free(request->planners[0].machine.topology);
    for (size_t m = request->models.n; m-- > 0;)
        tsr__planner_end(&request->planners[m]);
}

// Writes the sizes that the models were planned for.
static tsr_status keep_sizes(struct request *request)
{
    const tsr_plan_options *options = &request->options;
    const struct planner *first = &request->planners[0], *second = &request->planners[1];
    tsr_status st = tsr__plan_sizes_keep(first->model, tsr_config_name(first->config),
                                         options->sizes, options->n_sizes);
    if (st != TSR_OK || request->models.n == 1)
        return st;
    return tsr__plan_sizes_keep(second->model, tsr_config_name(second->config), options->with_sizes,
                                options->n_with_sizes);
}

// ---- plans -------------------------------------------------------------------------------------

// Lowers the bound of the summary to `bound`, that of the plan without stages, and updates gap and
// `optimal`.
static void set_bound(tsr_plan_summary *out, int64_t bound)
{
    out->bound = int64_min(out->bound, bound);
    out->optimal = out->cost <= out->bound;
    out->gap = (double)(out->cost - out->bound) / (double)int64_max(out->cost, 1);
}

// Adds the list of expert plans to the summary. `own` are the figures of the chosen plan.
static tsr_status add_compared(const struct request *request, const struct found_plan *found,
                               const struct compared_plan *own, tsr_plan_summary *out)
{
    struct arena *arena = &request->planners[0].session->results[RESULT_PLAN];
    return tsr__compared_write(arena, &found->compared, own, out);
}

#define PIPELINE_SHARE 0.2 // share of the time for the pipeline of hosts
#define PIPELINE_MOST  64  // largest number of devices of such a pipeline

// True if the devices may be on several hosts. If the topology has no host size, unlike devices are
// assumed to be on several hosts.
static bool may_have_hosts(const struct planner *planner)
{
    int64_t host = planner->machine.topology->host;
    return host > 0 ? planner->machine.n > host : !tsr__planner_alike(planner);
}

// True if a pipeline of hosts may be compared with this plan. A pipeline is not compared if the
// caller exports the program or explains a node: both refer to the plan without stages.
static bool allows_pipeline(const struct request *request)
{
    const struct planner *planner = &request->planners[0];
    const tsr_plan_options *options = &request->options;
    return request->models.n == 1 && options->objective == TSR_LATENCY && !planner->config &&
           options->stages != 1 && !options->export_lp && !options->explain &&
           planner->machine.n > 1 && planner->machine.n <= PIPELINE_MOST && may_have_hosts(planner);
}

#define PIPELINE "pipeline of hosts, tensor parallel inside" // name of an expert's plan

// Plans the pipeline of hosts. `write`: writes it into the model, too.
static tsr_status plan_pipeline(struct request *request, bool write, struct compared_plan *pipeline,
                                tsr_plan_summary *out)
{
    struct request staged = {0};
    struct budget *budget = request->planners[0].budget;
    struct budget part = tsr__budget_part(budget, PIPELINE_SHARE);
    uint64_t work = part.work;
    struct stage_rival rival = {.cost = PLAN_NEVER, .by_hosts = true};
    struct diag_mark before = tsr__diag_mark(budget->session);
    tsr_status st = open_request(&staged, request->planners[0].model, &request->options, &part);
    if (st == TSR_OK)
        st = tsr__plan_stages(&staged.models, &staged.options, write, &rival, out);
    tsr__budget_spend(budget, work - part.work);
    if (write)
        request->planners[0].config = staged.planners[0].config; // keep_sizes needs it
    else
        tsr__diag_back(budget->session, &before, false);
    *pipeline = (struct compared_plan){
        .name = PIPELINE, .fits = rival.time > 0, .time = rival.time, .compute = rival.compute};
    close_request(&staged);
    return st;
}

// True if the pipeline is faster than the plan without stages, or the only one that fits.
static bool pipeline_wins(const struct compared_plan *pipeline, const struct request *request,
                          const struct found_plan *found)
{
    if (!pipeline->fits)
        return false;
    return !found->result.feasible || request->planners[0].memory.exceeds ||
           pipeline->time < tsr__search_figures(found).time;
}

// Reports why there is no plan, and adds the expert plans that were tried.
static tsr_status refuse(struct request *request, const struct found_plan *found,
                         tsr_plan_summary *out)
{
    struct compared_plan none = {0};
    tsr_status added = TSR_OK, st = tsr__plan_refuse(&request->models, &request->options,
                                                     found->result.infeasible, out);
    if (st == TSR_INFEASIBLE)
        added = add_compared(request, found, &none, out);
    return added == TSR_OK ? st : added;
}

// Makes the pipeline the result. It does so even if time is up or the caller cancelled, because
// this takes little time. It gets the work of a new budget: with less than plan_pipeline had
// before, it might find another pipeline.
static tsr_status take_pipeline(struct request *request, const struct found_plan *found, bool write,
                                tsr_plan_summary *out)
{
    struct budget *budget = request->planners[0].budget, before = *budget;
    bool cancelled = tsr__cancelled(budget->session), stopped = tsr__budget_over(budget);
    struct compared_plan pipeline;
    tsr_session_cancel(budget->session, false);
    tsr__budget_start(budget, budget->session, 0);
    tsr_status st = plan_pipeline(request, write, &pipeline, out);
    *budget = before;
    tsr_session_cancel(budget->session, cancelled);
    if (st != TSR_OK)
        return st;
    out->bound = out->cost;
    if (!found->result.infeasible)
        set_bound(out, found->result.bound);
    out->stopped = stopped && !out->optimal;
    out->used_devices = request->planners[0].machine.n;
    out->copies = 1;
    return add_compared(request, found, &pipeline, out);
}

static tsr_status plan_unstaged(struct request *request, bool write, tsr_plan_summary *out)
{
    struct found_plan found;
    struct compared_plan pipeline = {0};
    if (allows_pipeline(request))
        TRY(plan_pipeline(request, false, &pipeline, out));
    tsr_status st = tsr__search_find(&request->models, &request->options, &found);
    out->undecided = st == TSR_INFEASIBLE && found.undecided;
    if (st != TSR_OK)
        return st;
    if (pipeline.fits && !tsr__compared_add(&request->planners[0].arena, &found.compared, pipeline))
        return TSR_NOMEM;
    if (!pipeline_wins(&pipeline, request, &found)) {
        if (!found.result.feasible)
            return refuse(request, &found, out);
        return tsr__search_take(&found, &request->options, write, out);
    }
    return take_pipeline(request, &found, write, out);
}

// Plans with any number of stages, or none. First finds a plan without stages, which stages must
// beat. That plan has candidates that stages lack, such as delayed partial sums, and on unlike
// devices it is found sooner.
static tsr_status plan_auto(struct request *request, struct request *plain, bool write,
                            tsr_plan_summary *out)
{
    struct found_plan found;
    struct budget *budget = request->planners[0].budget;
    struct budget half = tsr__budget_part(budget, 0.5);
    uint64_t work = half.work;
    struct diag_mark before = tsr__diag_mark(budget->session);
    TRY(open_request(plain, request->planners[0].model, &request->options, &half));
    tsr_status st = TSR_OK, unstaged = tsr__search_find(&plain->models, &plain->options, &found);
    tsr__budget_spend(budget, work - half.work);
    // Discards diagnostics, also the one that no such plan fits. They are repeated if this plan is
    // chosen.
    tsr__diag_back(budget->session, &before, false);
    if (unstaged != TSR_OK && unstaged != TSR_INFEASIBLE && unstaged != TSR_UNSUPPORTED)
        return unstaged;
    struct stage_rival rival = {.cost = PLAN_NEVER};
    if (unstaged == TSR_OK && found.result.feasible && !plain->planners[0].memory.exceeds)
        rival.cost = found.result.cost;
    TRY(tsr__plan_stages(&request->models, &request->options, write, &rival, out));
    int64_t bound = int64_min(found.result.bound, rival.bound);
    if (rival.wins) {
        plain->planners[0].budget = budget;
        st = tsr__search_take(&found, &plain->options, write, out);
        request->planners[0].config = plain->planners[0].config; // keep_sizes needs it
    }
    if (st == TSR_OK && rival.cost < PLAN_NEVER)
        set_bound(out, bound);
    if (st != TSR_OK || rival.wins)
        return st;
    struct compared_plan own = {.time = rival.time};
    if (out->objective == TSR_LATENCY)
        own.compute = rival.compute;
    return add_compared(plain, &found, &own, out);
}

// Plans with stages. A plan without stages is tried as well if the number of stages is automatic,
// except with manual stages, two models, an exported program or an explained node.
static tsr_status plan_staged(struct request *request, bool write, tsr_plan_summary *out)
{
    const tsr_plan_options *options = &request->options;
    if (options->stages != TSR_STAGES_AUTO || request->planners[0].hand_staged ||
        options->export_lp || options->explain || request->models.n > 1)
        return tsr__plan_stages(&request->models, options, write, NULL, out);
    struct request plain = {0};
    tsr_status st = plan_auto(request, &plain, write, out);
    close_request(&plain);
    return st;
}

// Returns the predicted time of one run of the first model.
static int64_t own_time(const tsr_plan_summary *summary)
{
    if (summary->n_parts)
        return summary->parts[0].cost;
    return summary->n_stages ? summary->latency : summary->cost;
}

// Corrects the cost of the explained node's chosen candidate. The solve per candidate has less time
// than that of the plan, so its result may be worse than the plan, or missing.
static void correct_chosen(const tsr_plan_summary *summary)
{
    tsr_plan_choice *list = (tsr_plan_choice *)summary->choices;
    for (size_t i = 0; i < summary->n_choices; i++)
        if (list[i].chosen && (!list[i].feasible || list[i].cost > summary->cost)) {
            list[i].feasible = true;
            list[i].undecided = false;
            list[i].cost = summary->cost;
        }
}

tsr_status tsr__plan_once(tsr_model *model, const tsr_plan_options *options, bool write,
                          tsr_plan_summary *summary)
{
    struct request request = {0};
    struct budget budget;
    tsr_session *session = tsr_model_session(model);
    tsr__budget_start(&budget, session, options->seconds);
    // Results of the previous plan become invalid here.
    tsr__arena_free(&session->results[RESULT_PLAN]);
    tsr_status st = open_request(&request, model, options, &budget);
    if (st == TSR_OK && (wants_stages(options) || request.planners[0].hand_staged))
        st = plan_staged(&request, write, summary);
    else if (st == TSR_OK)
        st = plan_unstaged(&request, write, summary);
    if (st == TSR_OK && write)
        st = keep_sizes(&request);
    correct_chosen(summary);
    const tsr_topology *topology = request.planners[0].machine.topology;
    if (topology) {
        summary->assumed = topology->assumed;
        summary->device_flops = topology->device[0].flops;
    }
    if (summary->feasible && !(summary->milliseconds > 0))
        summary->milliseconds = (double)own_time(summary) / 1e9;
    close_request(&request);
    return st;
}
