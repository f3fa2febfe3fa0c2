// SPDX-License-Identifier: Apache-2.0
// plan_once.c - plans a list of models on one topology: reads the options, searches for plans on a
// device set (search/) and in pipeline stages (stages/), and takes the best.
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

#define PIPELINE_MOST 64 // largest number of devices for which a pipeline of hosts is tried
#define PLANS_MOST    2

// The plans of a request, in the order in which they were searched. The last one is of the kind for
// which the caller asks: with one range of nodes, or in stages. The one before it, if any, is of
// the other kind and may be the answer, too.
struct plans {
    struct request *request;
    struct plan at[PLANS_MOST];
    size_t n;
    struct budget part; // of the first of two plans
};

static bool asks_for_stages(const struct request *request)
{
    return wants_stages(&request->options) || request->planners[0].hand_staged;
}

static struct plan *asked_plan(struct plans *plans)
{
    return &plans->at[plans->n - 1];
}

// True if the devices may be on several hosts. If the topology has no host size, unlike devices are
// assumed to be on several hosts.
static bool may_have_hosts(const struct planner *planner)
{
    int64_t host = planner->machine.topology->host;
    return host > 0 ? planner->machine.n > host : !tsr__planner_alike(planner);
}

// True if a plan of the other kind may be the answer: a pipeline of hosts to a request without
// stages, or a plan without stages if the number of stages is automatic. The exported program and
// the explained node are always those of the kind that is asked for.
static bool allows_other(const struct request *request)
{
    const struct planner *planner = &request->planners[0];
    const tsr_plan_options *options = &request->options;
    if (request->models.n > 1 || options->export_lp || options->explain)
        return false;
    if (asks_for_stages(request))
        return options->stages == TSR_STAGES_AUTO && !planner->hand_staged;
    return options->objective == TSR_LATENCY && !planner->config && options->stages != 1 &&
           planner->machine.n > 1 && planner->machine.n <= PIPELINE_MOST && may_have_hosts(planner);
}

// Finds the best plan of a kind. Pipelines must beat the plan that was found before them.
static tsr_status find_plan(struct plans *plans, bool staged)
{
    struct request *request = plans->request;
    const tsr_plan_options *options = &request->options;
    struct plan *plan = &plans->at[plans->n++];
    int64_t beat = plan > plans->at && plan[-1].standing.any ? plan[-1].time : PLAN_NEVER;
    tsr_status st = TSR_OK;
    if (staged)
        st =
            tsr__plan_stages_find(&request->models, options, beat, !asks_for_stages(request), plan);
    else
        st = tsr__search_find(&request->models, options, plan);
    if (st == TSR_OK)
        plan->standing = tsr__plan_standing(plan, options);
    return st;
}

// Finds the best plan of the kind that is not asked for. It is no error if none fits. Discards the
// diagnostics, because the plan that is asked for has the same ones.
static tsr_status find_other(struct plans *plans)
{
    struct planner *planner = &plans->request->planners[0];
    struct budget *budget = planner->budget;
    struct diag_mark before = tsr__diag_mark(planner->session);
    bool staged = !asks_for_stages(plans->request);
    plans->part = staged ? tsr__budget_quick(budget, 1) : tsr__budget_next(budget, false);
    planner->budget = &plans->part;
    tsr_status st = find_plan(plans, staged);
    planner->budget = budget;
    if (st != TSR_OK && st != TSR_INFEASIBLE && st != TSR_UNSUPPORTED)
        return st;
    tsr__diag_back(planner->session, &before, false);
    plans->at[0].standing.any = plans->at[0].standing.any && plans->at[0].standing.fits;
    return TSR_OK;
}

// Finds the plans. One without stages comes before those in stages: it has candidates that stages
// lack, such as delayed partial sums, and is found sooner on unlike devices.
static tsr_status find_plans(struct plans *plans)
{
    if (allows_other(plans->request))
        TRY(find_other(plans));
    return find_plan(plans, asks_for_stages(plans->request));
}

// Returns the best plan. Of equal plans, it is the one for which the caller asked.
static struct plan *best_plan(struct plans *plans)
{
    struct plan *best = asked_plan(plans);
    for (size_t i = 0; i + 1 < plans->n; i++)
        if (tsr__plan_is_better(&plans->at[i].standing, &best->standing, 0))
            best = &plans->at[i];
    return best;
}

// Returns a lower bound of all plans that were searched.
static int64_t least_of(const struct plans *plans, const struct plan *answer)
{
    int64_t bound = PLAN_NEVER;
    for (size_t i = 0; i < plans->n; i++) {
        const struct plan *plan = &plans->at[i];
        bool counts = plan->standing.any && !plan->tried_one;
        if (!plan->result.infeasible && (counts || i + 1 == plans->n || plan == answer))
            bound = int64_min(bound, plan->result.bound);
    }
    return bound;
}

// Adds the experts' plans and the times on fewer devices of the other searches to the answer.
static bool join_lists(const struct plans *plans, struct plan *answer)
{
    struct arena *arena = &plans->request->planners[0].arena;
    bool ok = true;
    for (size_t i = 0; i < plans->n; i++) {
        const struct plan *plan = &plans->at[i];
        for (size_t k = 0; plan != answer && k < plan->compared.n; k++)
            ok = ok && tsr__compared_add(arena, &answer->compared, plan->compared.at[k]);
        for (size_t k = 0; plan != answer && k < plan->times.n; k++)
            ok = ok && vec_add(arena, &answer->times, plan->times.at[k]);
    }
    return ok;
}

// Reports why there is no plan, and adds the expert plans that were tried. If the plan would not be
// written, another choice is reported: only says whether it is proved that there is none.
static tsr_status refuse(struct plans *plans, bool write, tsr_plan_result *out)
{
    struct plan *plan = asked_plan(plans);
    out->facts.undecided = !plan->result.infeasible;
    if (!write && !tsr__cancelled(plans->request->planners[0].session))
        return TSR_INFEASIBLE;
    if (plan->stages)
        return tsr__stages_refuse(plan, out);
    struct models *models = plan->set ? &plan->set->models : plan->models;
    tsr_status added = TSR_OK, st = tsr__plan_refuse(plan, models, &plans->request->options, out);
    if (st == TSR_INFEASIBLE)
        added = tsr__compared_write(plan, out);
    return added == TSR_OK ? st : added;
}

// Writes the best plan. If there is none, reports why.
static tsr_status take_best(struct plans *plans, bool write, tsr_plan_result *out)
{
    const tsr_plan_options *options = &plans->request->options;
    struct plan *plan = best_plan(plans);
    if (!join_lists(plans, plan))
        return TSR_NOMEM;
    if (!plan->standing.any)
        return refuse(plans, write, out);
    tsr__plan_settle(&plan->result, least_of(plans, plan));
    TRY(tsr__plan_take(plan, options, write, out));
    if (!write || !options->explain)
        return TSR_OK;
    if (plan->stages)
        return tsr__stages_explain(plan, options->explain, out);
    return tsr__plan_explain(&plan->set->models, 0, options->explain, out);
}

// Plans the request with one range of nodes or in stages.
static tsr_status plan_request(struct request *request, bool write, tsr_plan_result *out)
{
    struct plans *plans = ARENA_NEW(&request->planners[0].arena, struct plans);
    if (!plans)
        return TSR_NOMEM;
    plans->request = request;
    tsr_status st = find_plans(plans);
    out->facts.undecided = st == TSR_INFEASIBLE && asked_plan(plans)->undecided;
    if (st == TSR_OK)
        st = take_best(plans, write, out);
    for (size_t i = 0; i < plans->n; i++)
        tsr__plan_stages_end(&plans->at[i]);
    return st;
}

// Corrects the cost of the explained node's chosen candidate. The solve per candidate has less time
// than that of the plan, so its result may be worse than the plan, or missing.
static void correct_chosen(const tsr_plan_result *plan)
{
    tsr_plan_choice *list = (tsr_plan_choice *)plan->choices;
    for (size_t i = 0; i < plan->facts.n_choices; i++)
        if (list[i].chosen && (!list[i].feasible || list[i].cost > plan->facts.cost)) {
            list[i].feasible = true;
            list[i].undecided = false;
            list[i].cost = plan->facts.cost;
        }
}

tsr_status tsr__plan_once(tsr_model *model, const tsr_plan_options *options, bool write,
                          tsr_plan_result *plan)
{
    struct request request = {0};
    struct budget budget;
    tsr_session *session = tsr_model_session(model);
    tsr__budget_start(&budget, session, options->seconds);
    // Results of the previous plan become invalid here.
    tsr__arena_free(&session->results[RESULT_PLAN]);
    tsr_status st = open_request(&request, model, options, &budget);
    if (st == TSR_OK)
        st = plan_request(&request, write, plan);
    if (st == TSR_OK && write)
        st = keep_sizes(&request);
    correct_chosen(plan);
    const tsr_topology *topology = request.planners[0].machine.topology;
    if (topology) {
        plan->facts.assumed = topology->assumed;
        plan->facts.device_flops = topology->device[0].flops;
    }
    close_request(&request);
    return st;
}
