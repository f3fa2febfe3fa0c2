// SPDX-License-Identifier: Apache-2.0
// plan.c - tsr_plan: checks the options and plans on the best choice of devices (choices.c).
//
// The complete path in numbers, for a matrix product on two devices. X is [8, 6], W is [6, 4], and
// the only node Y = X W has the factors m = 8, k = 6 and n = 4. Its candidates (candidates/) are
// the choices of one variable of the program:
//
//     "whole"  both devices compute all of Y            192 multiplications  nothing is sent
//     "m/2"    device 1 has rows 4..7 of X, all of W     96                  nothing is sent
//     "k/2"    device 1 has half of each sum             96                  AllReduce of 32 sums
//     "n/2"    device 1 has columns 2..3 of W            96                  nothing is sent
//
// Y is an output, so its reader is the caller, who needs the full tensor on device 0. For each
// choice, an edge adds the cost of gathering Y there (program/edges.c). "k/2" and "n/2" store half
// of W on each device. If memory is short, a limit of the program forbids the other two
// (program/stored_weights.c). The cheapest choice within all limits is the plan (solver/solver.h).
#include "plan/plan_once.h"
#include "rules/rules.h"
#include "sharding/sharding.h"
#include "topology/topology.h"

tsr_status tsr__plan_options_owned(tsr_session *session, const tsr_plan_options *options)
{
    tsr_plan_options given;
    tsr_status status = OPTIONS_READ(session, &given, options, seconds);
    if (status == TSR_OK)
        status = tsr__topology_owned(session, given.topology);
    if (status != TSR_OK || !given.with)
        return status;
    return tsr__same_session(session, tsr_model_session(given.with), "other model");
}

// Rejects negative memory or time.
static tsr_status check_limits(tsr_session *session, const tsr_plan_options *options)
{
    if (options->memory >= 0 && options->seconds >= 0)
        return TSR_OK;
    return tsr__fail(session, TSR_INVALID, DIAG_argument_invalid, NULL,
                     "give values from 0 on; 0 means the default",
                     "memory and seconds of a plan must not be negative");
}

// Checks the names of dimensions. A name may belong to either model, because both are often planned
// with the same sizes.
static tsr_status check_dims(tsr_model *model, const tsr_plan_options *options)
{
    tsr_model *models[] = {model, options->with};
    size_t n = options->with ? 2 : 1;
    TRY(tsr__check_dims(models, n, options->sizes, options->n_sizes));
    return tsr__check_dims(models, n, options->with_sizes, options->n_with_sizes);
}

// Replaces function calls by their bodies, which can be sharded. Shardings of a node inside a
// function would apply to all its calls.
static tsr_status inline_calls(tsr_model *model)
{
    if (!tsr__has_calls(model))
        return TSR_OK;
    TRY(tsr__inline_calls(model));
    tsr__diag(tsr_model_session(model), DIAG_functions_inlined, NULL,
              "annotate the model and use `tessera infer` to keep the calls",
              "calls of functions were replaced by their bodies, whose nodes can be sharded");
    return TSR_OK;
}

// Sorts the nodes and inlines function calls. Large constants become initializers.
static tsr_status prepare(tsr_model *model)
{
    TRY(tsr__model_sort(model));
    TRY(inline_calls(model));
    return tsr__lift_constants(model);
}

// Reports that costs are too large. The solver computes in 64 bits and returns TSR_INVALID on
// overflow.
static void report_too_large(tsr_session *session)
{
    tsr__diag(session, DIAG_argument_invalid, NULL, "give smaller sizes with --dim",
              "predicted times or bytes overflow with these sizes");
}

tsr_status tsr__plan(tsr_model *model, const tsr_plan_options *options, tsr_plan_result *out)
{
    TRY(tsr__given(tsr_model_session(model), "options", options));
    tsr_plan_options plan_options;
    tsr_plan_result plan = {0};
    TRY(OPTIONS_READ(tsr_model_session(model), &plan_options, options, seconds));
    TRY(tsr__plan_options_owned(tsr_model_session(model), &plan_options));
    struct diag_mark mark = tsr__diag_mark(tsr_model_session(model));
    TRY(check_limits(tsr_model_session(model), &plan_options));
    TRY(check_dims(model, &plan_options));
    TRY(prepare(model));
    if (plan_options.with)
        TRY(prepare(plan_options.with));
    tsr__warn_missing_rules(model);
    tsr_status st = tsr__plan_choices(model, &plan_options, &plan);
    tsr__model_forget_shapes(model, plan_options.sizes, plan_options.n_sizes);
    if (plan_options.with)
        tsr__model_forget_shapes(plan_options.with, plan_options.with_sizes,
                                 plan_options.n_with_sizes);
    if (st == TSR_INVALID && tsr_model_session(model)->counts[TSR_ERROR] == mark.counts[TSR_ERROR])
        report_too_large(tsr_model_session(model));
    if (out && (st == TSR_OK || st == TSR_INFEASIBLE))
        *out = plan;
    return st;
}
