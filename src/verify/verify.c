// SPDX-License-Identifier: Apache-2.0
// verify.c - tsr_verify: prepares a verification, and verifies the model's own sharding or random
// ones (trials.c). The temporary folder is always removed.
//
// Order: join the other ranks, load the model and the inputs, open a temporary folder, then
// partition, run sharded and unsharded, compare (verify_sharding.c). Tolerances follow from the
// model (precision.c). If outputs differ, it checks whether the CPU may be the reason
// (saturation.c), and which value differs first (locate.c).
#include "verify/internal.h"
#include "plan/plan.h"
#include "rules/rules.h"
#include "topology/topology.h"

#include <sys/stat.h>
#include <unistd.h>

static bool is_folder(const char *path)
{
    struct stat info;
    return path && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

// Loads the inputs. A folder of ONNX test data may have recorded outputs, which are also loaded if
// there is a first one.
static tsr_status load_inputs(struct work *work)
{
    const char *set = "random";
    if (work->options->inputs)
        set = work->options->inputs;
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
    tsr_status st = tsr_model_load(work->session, work->path, &work->model);
    if (st == TSR_OK)
        st = tsr_model_check_ports(work->model);
    if (st != TSR_OK)
        return st;
    work->sizes.size = sizeof work->sizes;
    tsr_tensors **sets[] = {&work->inputs, &work->recorded, &work->unsharded};
    for (size_t i = 0; i < TSR_COUNT(sets); i++) {
        st = tsr_tensors_new(work->session, sets[i]);
        if (st != TSR_OK)
            return st;
    }
    work->scratch.model = work->path;
    st = tsr__scratch_open(work->session, &work->arena, work->options->work, &work->scratch);
    if (st != TSR_OK)
        return st;
    return load_inputs(work);
}

const struct shapes *tsr__work_shapes(struct work *work)
{
    if (!work->shapes)
        work->shapes = tsr__shapes_new(&work->arena, work->model);
    return work->shapes;
}

// True if the plan puts different work on different devices.
static bool divides_work(const tsr_plan_summary *plan)
{
    return plan->cut_nodes > 0 || plan->n_stages > 1;
}

// Plans the model for its inputs. If the plan shards nothing, the model is loaded again and planned
// so that as many nodes as possible are sharded.
static tsr_status plan_model(struct work *work, tsr_plan_summary *plan, tsr_verify_summary *result)
{
    tsr_status st = tsr__plan_for(work->model, work->options->plan, work->inputs, plan);
    result->assumed = plan->assumed;
    if (st != TSR_OK || divides_work(plan))
        return st;
    tsr_model *again = NULL;
    st = tsr_model_load(work->session, work->path, &again);
    if (st != TSR_OK)
        return st;
    tsr_model_free(work->model);
    work->model = again;
    work->shapes = NULL;
    st = tsr__plan_sharded(work, work->model, plan);
    if (st != TSR_OK)
        return st;
    result->forced = divides_work(plan);
    if (result->forced || work->options->allow_unsharded)
        return TSR_OK;
    return tsr__verify_unsharded(work, plan->devices);
}

// Verifies the sharding of the model, or of a plan that is made first. Other ranks run what rank 0
// partitions.
static tsr_status verify_own(struct work *work, tsr_verify_summary *result)
{
    struct outcome out = {.recorded = -1};
    tsr_plan_summary plan = {.size = sizeof(plan), .config = work->options->config};
    tsr_status st = TSR_OK;
    if (work->options->plan && work->run.rank == 0)
        st = plan_model(work, &plan, result);
    if (st == TSR_OK)
        st = tsr__verify_sharding(work, work->model, plan.config, &out);
    result->ok = out.ok;
    result->recorded = out.recorded;
    result->partition = out.partition;
    result->outputs = out.outputs;
    result->n_outputs = out.n_outputs;
    result->first = out.first;
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
    if (!run.transport && run.ranks == 0)
        run.transport = TSR_TRANSPORT_THREADS; // one process compares, with or without a launcher
    if (run.transport != TSR_TRANSPORT_THREADS)
        tsr_run_place(&run, &run.rank, &run.ranks); // a rank of a launcher is like any other
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
// for them. So they are valid for the model (a mask shorter than the keys, zero points per
// channel).
static bool engine_lacks(const struct work *work)
{
    return tsr__diag_has(work->session, "engine-failed") && tsr_tensors_count(work->recorded) > 0;
}

static tsr_status verify_opened(struct work *work, tsr_verify_summary *found)
{
    tsr_status st = TSR_OK;
    if (work->run.ranks > 0)
        st = tsr_join(work->session,
                      &work->run); // so that other ranks are informed of later errors
    if (st != TSR_OK)
        return st;
    st = open_all(work);
    if (st != TSR_OK)
        return st;
    found->open_size = work->sizes.open_size;
    found->sizes = work->sizes.sizes;
    found->n_sizes = work->sizes.n_sizes;
    if (work->options->random)
        st = tsr__verify_trials(work, found);
    else
        st = verify_own(work, found);
    if (st == TSR_INVALID && engine_lacks(work))
        return TSR_ENGINE;
    return st;
}

// Verifies a model. The result is set if the model was compared, or at least one trial was made.
tsr_status tsr__verify(tsr_session *session, const char *model, const tsr_verify_options *options,
                       tsr_verify_summary *result)
{
    if (!session)
        return TSR_INVALID;
    tsr_verify_options given;
    tsr_run_options run;
    tsr_status st = OPTIONS_READ(session, &given, options, allow_unsharded);
    if (st == TSR_OK)
        st = OPTIONS_READ(session, &run, given.run, most_ranks);
    given.run = &run;
    if (st == TSR_OK)
        st = check_owners(session, &given);
    if (st != TSR_OK)
        return st;
    if (run.tf32 && given.tolerance == 0)
        given.tolerance = TF32_TOLERANCE;
    struct work work = {.session = session, .path = model, .options = &given};
    work.run = run_options(&given);
    work.results = &session->results[RESULT_VERIFY];
    tsr__arena_free(work.results);
    tsr__arena_init(&work.arena, session);
    tsr_verify_summary found = {.size = sizeof(found), .recorded = -1};
    st = verify_opened(&work, &found);
    close_all(&work);
    if (result && (st == TSR_OK || st == TSR_DIFFERENT || found.n_trials))
        *result = found;
    return st;
}
