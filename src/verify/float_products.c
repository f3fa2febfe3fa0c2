// SPDX-License-Identifier: Apache-2.0
// float_products.c - compares again without rounding of activations, if outputs differ.
//
// Some kernels for packed weights round the other factor to 8 bits (MatMulNBits with accuracy_level
// 4). Sharded and unsharded sums differ by about 1e-7 of their magnitude. If such a difference
// crosses a rounding border, the factor changes by 1/127 of the largest one in its block, and
// outputs differ by 1e-3 and more. That is no error of the sharding: both models are run again with
// products in float32, and must agree then.
#include "verify/internal.h"
#include "rules/rules.h"

#define LEVEL_FLOAT 1 // products in float32

// Makes all nodes whose kernels round activations compute their products in float32. *any is set if
// there are such nodes.
static tsr_status use_floats(tsr_model *model, bool *any)
{
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node)) {
        const char *level = tsr__node_rounding_level(node);
        if (!level)
            continue;
        *any = true;
        TRY(tsr_node_set_int(node, level, LEVEL_FLOAT));
    }
    return TSR_OK;
}

tsr_status tsr__reference_use_floats(const struct work *work, tsr_model *model)
{
    bool any;
    return work->floats ? use_floats(model, &any) : TSR_OK;
}

// Drops the results of the unsharded run, so that the unsharded model runs again (as a copy with
// float32 products).
static tsr_status forget_reference(struct work *work)
{
    work->ran_unsharded = false;
    tsr_tensors_free(work->unsharded);
    work->unsharded = NULL;
    return tsr_tensors_new(work->session, &work->unsharded);
}

static void report_rounding(struct work *work, const struct outcome *rounded)
{
    const tsr_difference *worst = &rounded->outputs[0];
    for (size_t i = 1; i < rounded->facts.n_outputs; i++)
        if (rounded->outputs[i].max_rel > worst->max_rel)
            worst = &rounded->outputs[i];
    tsr__diag(work->session, DIAG_engine_rounds,
              &PLACE(.file = str_of(work->path), .value = str_of(worst->name)),
              "nothing needs to be done; accuracy_level 1 avoids the rounding",
              "sharded and unsharded differ by %.3g (%.3g of the largest magnitude) because the "
              "engine rounds activations to 8 bits (accuracy_level); without the rounding they "
              "agree",
              worst->max_abs, worst->max_rel);
}

// Makes `model` and work->model compute products in float32, and drops the unsharded results.
// work->model changes too because later trials shard copies of it. *any stays false if no kernel
// rounds activations to 8 bits; then nothing changes.
static tsr_status prepare_float_model(struct work *work, tsr_model *model, bool *any)
{
    tsr_status st = use_floats(model, any);
    if (st == TSR_OK && *any && model != work->model)
        st = use_floats(work->model, any);
    if (st != TSR_OK || !*any)
        return st;
    work->floats = true;
    return forget_reference(work);
}

tsr_status tsr__verify_floats(struct work *work, tsr_model *model, const char *config,
                              struct outcome *out)
{
    struct outcome rounded = *out;
    bool any = false;
    if (work->floats)
        return TSR_DIFFERENT;
    tsr_status st = prepare_float_model(work, model, &any);
    if (st != TSR_OK || !any)
        return st == TSR_OK ? TSR_DIFFERENT : st;
    st = tsr__verify_sharding(work, model, config, out);
    if (st == TSR_OK && rounded.facts.n_outputs)
        report_rounding(work, &rounded);
    return st;
}
