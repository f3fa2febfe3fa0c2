// SPDX-License-Identifier: Apache-2.0
// verify.c - tsr_verify: prepares a verification, and verifies the model's own sharding or random
// ones (trials.c). The temporary folder is always removed.
//
// Order: join the other ranks, load the model, open a temporary folder, load the inputs, partition,
// run unsharded and sharded, compare (verify_sharding.c). Tolerances follow from the model
// (precision.c). If outputs differ, these files look for the reason: self_difference.c,
// float_products.c and sensitivity.c, which may accept the difference, then saturation.c and
// locate.c.
#include "verify/internal.h"
#include "plan/plan.h"
#include "runtime/runtime.h"
#include "topology/topology.h"
#include "rules/rules.h"

#include <sys/stat.h>
#include <unistd.h>

static bool is_folder(const char *path)
{
    struct stat info;
    return path && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

// Loads the inputs. A folder of ONNX test data may have recorded outputs: if output_0.pb exists,
// they are loaded too.
static tsr_status load_inputs(struct work *work)
{
    const char *set = work->options->inputs ? work->options->inputs : "random";
    tsr_status st = tsr_inputs_load(work->inputs, set, work->model, &work->run, &work->sizes);
    if (st != TSR_OK || !is_folder(set))
        return st;
    struct str first = tsr__arena_printf(&work->arena, "%s/output_0.pb", set);
    if (!first.p)
        return TSR_NOMEM;
    if (access(first.p, F_OK) == 0)
        return tsr_tensors_load(work->recorded, set, work->model, true);
    return TSR_OK;
}

// Loads the model and its inputs. close_all must be called in every case.
static tsr_status open_all(struct work *work)
{
    TRY(tsr_model_load(work->session, work->path, &work->model));
    TRY(tsr_model_check_ports(work->model));
    work->sizes.size = sizeof work->sizes;
    tsr_tensors **sets[] = {&work->inputs, &work->recorded, &work->unsharded};
    for (size_t i = 0; i < TSR_COUNT(sets); i++)
        TRY(tsr_tensors_new(work->session, sets[i]));
    work->scratch.model = work->path;
    TRY(tsr__scratch_open(work->session, &work->arena, work->options->work, &work->scratch));
    return load_inputs(work);
}

// ---- a plan that shards as much as possible -----------------------------------------------------

// Plans the model for the devices of the options so that as many nodes as possible are sharded,
// also if one device would be faster.
static tsr_status plan_sharded(struct work *work, tsr_model *model, tsr_plan_result **out)
{
    tsr_topology *topology = NULL;
    tsr_plan_options options = {.size = sizeof options};
    memcpy(&options, work->options->plan, size_min(work->options->plan->size, sizeof options));
    TRY(tsr__topology_forced(work->session, options.topology, options.devices, &topology));
    options.topology = topology;
    options.stages = 0;
    tsr_status st =
        tsr_plan_for_sizes(model, &options, work->sizes.given, work->sizes.n_given, out);
    tsr_topology_free(topology);
    return st;
}

// ---- nothing can be sharded --------------------------------------------------------------------

// Returns why a node of the main graph cannot be sharded, for the first node with a reason; NULL:
// no node has one, so the tensors are too small.
static const char *first_reason(struct work *work, const tsr_node **node)
{
    const struct shapes *shapes = tsr__model_shapes(work->model);
    for (*node = tsr_graph_first(tsr_model_graph(work->model)); *node && shapes;
         *node = tsr_node_next(*node)) {
        const struct rule *rule = tsr__rule_of(&work->arena, *node, shapes);
        const char *why = rule ? rule->whole : NULL;
        if (!why)
            why = tsr__rule_immovable(shapes, *node);
        if (why && !tsr__node_is_constant(*node))
            return why;
    }
    return NULL;
}

// Reports why no node is sharded and returns TSR_INVALID.
static tsr_status refuse_unsharded(struct work *work, size_t devices)
{
    const tsr_node *node = NULL;
    const char *why = NULL;
    struct place at = PLACE(.file = str_of(work->path));
    if (devices > 1)
        why = first_reason(work, &node);
    if (why) {
        at = tsr__place_node(node);
        return tsr__fail(
            work->session, TSR_INVALID, DIAG_verify_unsharded, &at,
            "use --allow-unsharded to verify the unsharded model anyway",
            "no node of the model can be sharded across %zu devices, so there is nothing to "
            "verify; the first node: %s",
            devices, why);
    }
    why = "its tensors have no dimension that can be divided among the devices";
    if (devices < 2)
        why = "a plan for one device shards nothing";
    return tsr__fail(
        work->session, TSR_INVALID, DIAG_verify_unsharded, &at,
        "give larger sizes with --dim or --inputs, or use more devices; --allow-unsharded verifies "
        "the unsharded model anyway",
        "no node of the model is sharded across %zu device%s, so there is nothing to verify: %s",
        devices, devices == 1 ? "" : "s", why);
}

// ---- the verification ---------------------------------------------------------------------------

// True if the plan puts different work on different devices.
static bool divides_work(const tsr_plan_facts *plan)
{
    return plan->cut_nodes > 0 || plan->n_stages > 1;
}

// Plans the model as `tessera plan` does: for the sizes that the caller gave. If the plan does not
// divide the work among devices, loads the model again and plans it so that as many nodes as
// possible are sharded. Fails if that shards nothing either, unless the options allow it.
static tsr_status plan_model(struct work *work, tsr_plan_result **plan, tsr_verify_facts *facts)
{
    tsr_plan_facts planned = TSR_PLAN_FACTS_INIT;
    TRY(tsr_plan_for_sizes(work->model, work->options->plan, work->sizes.given, work->sizes.n_given,
                           plan));
    TRY(tsr_plan_result_about(*plan, &planned));
    facts->assumed = planned.assumed;
    if (divides_work(&planned))
        return TSR_OK;
    tsr_model *again = NULL;
    TRY(tsr_model_load(work->session, work->path, &again));
    tsr_model_free(work->model);
    work->model = again;
    tsr_plan_result_free(*plan);
    *plan = NULL;
    TRY(plan_sharded(work, work->model, plan));
    TRY(tsr_plan_result_about(*plan, &planned));
    facts->forced = divides_work(&planned);
    if (facts->forced || work->options->allow_unsharded)
        return TSR_OK;
    return refuse_unsharded(work, planned.devices);
}

void tsr__verify_step(const struct work *work, int step)
{
    static const char *const names[STEPS + 1] = {"verify, planning",      "verify, partitioning",
                                                 "verify, unsharded run", "verify, sharded run",
                                                 "verify, comparing",     "verify"};
    if (work->run.rank == 0 && (!work->options->random || step == STEPS))
        tsr__progress_step(work->session, names[step], (uint64_t)step, STEPS);
}

// Verifies the sharding of the model, or of a plan that is made first. Other ranks run what rank 0
// partitions.
static tsr_status verify_own(struct work *work, tsr_verify_result *result)
{
    const struct outcome *own = &result->own;
    tsr_plan_result *plan = NULL;
    tsr_plan_facts planned = {.size = sizeof planned, .config = work->options->config};
    tsr_status st = TSR_OK;
    if (work->options->plan && work->run.rank == 0) {
        tsr__verify_step(work, STEP_PLAN);
        st = plan_model(work, &plan, &result->facts);
    }
    if (st == TSR_OK && plan)
        st = tsr_plan_result_about(plan, &planned);
    if (st == TSR_OK)
        st = tsr__verify_sharding(work, work->model, planned.config, &result->own);
    tsr_plan_result_free(plan);
    result->facts.ok = own->facts.ok;
    result->facts.recorded = own->facts.recorded;
    result->facts.n_outputs = own->facts.n_outputs;
    return st;
}

// Frees everything in reverse order of opening. Whatever was not opened is NULL.
static void close_all(struct work *work)
{
    tsr__scratch_close(&work->scratch);
    tsr_tensors_free(work->unsharded);
    tsr_tensors_free(work->recorded);
    tsr_tensors_free(work->inputs);
    tsr_model_free(work->model);
    tsr__arena_free(&work->arena);
}

// TF32 has 11 bits of precision. This is 4 units of 2^-11, the usual difference of sums of such
// products.
#define TF32_TOLERANCE 2e-3

// Copies the run options, with additions that a verification needs.
static tsr_run_options run_options(const tsr_verify_options *options)
{
    tsr_run_options run = *options->run;
    if (!run.work)
        run.work = options->work;
    // Sharded and unsharded models are fused differently; with 8-bit arithmetic that difference
    // would dominate.
    run.float_products = true;
    if (!run.transport && run.ranks == 0 && !run.hosts)
        run.transport = TSR_TRANSPORT_THREADS; // default: all ranks are threads of this process
    if (run.transport != TSR_TRANSPORT_THREADS)
        tsr_run_place(&run, &run.rank, &run.ranks); // from the launcher, if there is one
    return run;
}

static tsr_status check_owners(tsr_session *session, const tsr_verify_options *options)
{
    tsr_status st = tsr__topology_owned(session, options->topology);
    if (st != TSR_OK || !options->plan)
        return st;
    return tsr__plan_options_owned(session, options->plan);
}

// True if the engine lacks a feature: a kernel refused the inputs, although outputs were recorded
// for them. So the inputs are valid for the model. Examples: a mask that is shorter than the keys,
// zero points per channel.
static bool engine_lacks(const struct work *work)
{
    return tsr__diag_has(work->session, "engine-failed") && tsr_tensors_count(work->recorded) > 0;
}

// Copies the sizes of the inputs, which the session keeps only until it loads others.
static tsr_status keep_sizes(const struct work *work, tsr_verify_facts *facts)
{
    const tsr_input_sizes *from = &work->sizes;
    tsr_dim_size *sizes = ARENA_ARRAY(work->results, tsr_dim_size, from->n_sizes);
    for (size_t i = 0; sizes && i < from->n_sizes; i++) {
        sizes[i].name = tsr__arena_str(work->results, str_of(from->sizes[i].name)).p;
        sizes[i].size = from->sizes[i].size;
    }
    facts->sizes = sizes;
    facts->n_sizes = from->n_sizes;
    facts->open_size = from->open_size;
    facts->planned_size = work->options->plan ? from->planned_size : 0;
    return arena_status(work->results);
}

// Makes the result and fills it in.
static tsr_status verify_opened(struct work *work, tsr_verify_result **out)
{
    tsr_status st = TSR_OK;
    if (work->run.ranks > 0)
        st = tsr_join(work->session,
                      &work->run); // so that other ranks are informed of later errors
    if (st != TSR_OK)
        return st;
    tsr_verify_result *result = *out = tsr__result_new(work->session, sizeof *result);
    if (!result)
        return TSR_NOMEM;
    work->results = result->head.memory;
    result->facts.recorded = result->own.facts.recorded = -1;
    TRY(open_all(work));
    TRY(keep_sizes(work, &result->facts));
    st = work->options->random ? tsr__verify_trials(work, result) : verify_own(work, result);
    tsr__verify_step(work, STEPS);
    return st == TSR_INVALID && engine_lacks(work) ? TSR_ENGINE : st;
}

// True if the model was compared, or all trials were made.
static bool is_valid(const tsr_verify_result *result, tsr_status st)
{
    if (st == TSR_NOMEM || st == TSR_CANCELLED)
        return false;
    return st == TSR_OK || st == TSR_DIFFERENT || result->facts.n_trials;
}

static tsr_status verify(tsr_session *session, const char *model, const tsr_verify_options *options,
                         tsr_verify_result **out)
{
    tsr_verify_options given;
    tsr_run_options run;
    TRY(OPTIONS_READ(session, &given, options, allow_unsharded));
    TRY(OPTIONS_READ(session, &run, given.run, most_ranks));
    given.run = &run;
    TRY(check_owners(session, &given));
    if (run.tf32 && given.tolerance == 0)
        given.tolerance = TF32_TOLERANCE;
    struct work work = {.session = session, .path = model, .options = &given};
    work.run = run_options(&given);
    tsr__arena_init(&work.arena, session);
    tsr_status st = verify_opened(&work, out);
    if (st != TSR_DIFFERENT) // the ranks have run and compared
        st = tsr__run_end(session, &work.run, st);
    close_all(&work);
    return st;
}

// ---- the result handle --------------------------------------------------------------------------

// Returns the outcome of a trial, or of the model's own sharding; NULL: there is no such trial.
static const struct outcome *find_outcome(const tsr_verify_result *result, size_t trial)
{
    if (trial == TSR_NO_TRIAL)
        return &result->own;
    return trial < result->facts.n_trials ? &result->trials[trial] : NULL;
}

// Gives an outcome without a partition an empty one.
static tsr_status complete(tsr_session *session, struct outcome *outcome)
{
    if (!outcome->partition)
        outcome->partition = tsr__result_new(session, sizeof *outcome->partition);
    return outcome->partition ? TSR_OK : TSR_NOMEM;
}

static tsr_status complete_all(tsr_verify_result *result)
{
    TRY(complete(result->head.session, &result->own));
    for (size_t i = 0; i < result->facts.n_trials; i++)
        TRY(complete(result->head.session, &result->trials[i]));
    return TSR_OK;
}

tsr_status tsr_verify(tsr_session *session, const char *model, const tsr_verify_options *options,
                      tsr_verify_result **out)
{
    if (!session)
        return TSR_INVALID;
    tsr_verify_result *result = NULL;
    tsr_status st = verify(session, model, options, &result);
    if (!out || !result || !is_valid(result, st)) {
        tsr_verify_result_free(result);
        return st;
    }
    tsr_status completed = complete_all(result);
    if (completed != TSR_OK) {
        tsr_verify_result_free(result);
        return completed;
    }
    *out = result;
    return st;
}

void tsr_verify_result_free(tsr_verify_result *result)
{
    if (!result)
        return;
    tsr_partition_result_free(result->own.partition);
    for (size_t i = 0; i < result->facts.n_trials; i++)
        tsr_partition_result_free(result->trials[i].partition);
    tsr__result_free(result);
}

tsr_status tsr_verify_result_about(const tsr_verify_result *result, tsr_verify_facts *out)
{
    return tsr__element_read(result->head.session, SIZED_LIST(&result->facts, 1, n_sizes), 0, out);
}

tsr_status tsr_verify_result_trial(const tsr_verify_result *result, size_t trial,
                                   tsr_verify_trial *out)
{
    const struct outcome *of = trial == TSR_NO_TRIAL ? NULL : find_outcome(result, trial);
    return tsr__element_read(result->head.session,
                             SIZED_LIST(of ? &of->facts : NULL, of != NULL, n_outputs), 0, out);
}

tsr_status tsr_verify_result_output(const tsr_verify_result *result, size_t trial, size_t i,
                                    tsr_difference *out)
{
    const struct outcome *of = find_outcome(result, trial);
    return tsr__element_read(result->head.session,
                             SIZED_LIST(of ? of->outputs : NULL, of ? of->facts.n_outputs : 0, ok),
                             i, out);
}

tsr_status tsr_verify_result_first(const tsr_verify_result *result, size_t trial,
                                   tsr_first_difference *out)
{
    const struct outcome *of = find_outcome(result, trial);
    return tsr__element_read(result->head.session,
                             SIZED_LIST(of ? &of->first : NULL, of != NULL, max_rel), 0, out);
}

const tsr_partition_result *tsr_verify_result_partition(const tsr_verify_result *result,
                                                        size_t trial)
{
    const struct outcome *of = find_outcome(result, trial);
    return of ? of->partition : NULL;
}
