// SPDX-License-Identifier: Apache-2.0
// verify_result.c - the handle of a verification's result, and its accessors.
#include "verify/verify.h"

// Copies the result. The inputs own the sizes, and the partitions become handles.
static tsr_status fill(tsr_verify_result *result, const tsr_verify_summary *summary)
{
    struct arena *memory = result->memory;
    result->summary = *summary;
    tsr_dim_size *sizes = ARENA_ARRAY(memory, tsr_dim_size, summary->n_sizes);
    for (size_t i = 0; sizes && i < summary->n_sizes; i++) {
        sizes[i].name = tsr__arena_str(memory, str_of(summary->sizes[i].name)).p;
        sizes[i].size = summary->sizes[i].size;
    }
    result->summary.sizes = sizes;
    result->partitions = ARENA_ARRAY(memory, tsr_partition_result, summary->n_trials + 1);
    for (size_t i = 0; result->partitions && i <= summary->n_trials; i++) {
        result->partitions[i].session = result->session;
        result->partitions[i].summary = i ? summary->trials[i - 1].partition : summary->partition;
    }
    return arena_status(memory);
}

tsr_status tsr_verify(tsr_session *session, const char *model, const tsr_verify_options *options,
                      tsr_verify_result **out)
{
    if (!session)
        return TSR_INVALID;
    tsr_verify_summary summary = {.size = sizeof summary};
    tsr_status st = tsr__verify(session, model, options, &summary);
    if (!out || (st != TSR_OK && st != TSR_DIFFERENT && !summary.n_trials))
        return st;
    tsr_verify_result *result = tsr__result_new(session, RESULT_VERIFY, sizeof *result);
    if (!result)
        return TSR_NOMEM;
    tsr_status filled = fill(result, &summary);
    if (filled != TSR_OK) {
        tsr_verify_result_free(result);
        return filled;
    }
    *out = result;
    return st;
}

void tsr_verify_result_free(tsr_verify_result *result)
{
    tsr__result_free(result);
}

tsr_status tsr_verify_result_about(const tsr_verify_result *result, tsr_verify_facts *out)
{
    const tsr_verify_summary *from = &result->summary;
    tsr_status st = RESULT_CHECK(result->session, out, n_sizes);
    if (st != TSR_OK)
        return st;
    tsr_verify_facts facts = {
        .ok = from->ok,
        .recorded = from->recorded,
        .forced = from->forced,
        .assumed = from->assumed,
        .open_size = from->open_size,
        .n_outputs = from->n_outputs,
        .n_trials = from->n_trials,
        .n_refused = from->n_refused,
        .sizes = from->sizes,
        .n_sizes = from->n_sizes,
    };
    tsr__result_write(out, &facts, sizeof facts);
    return TSR_OK;
}

tsr_status tsr_verify_result_trial(const tsr_verify_result *result, size_t trial,
                                   tsr_verify_trial *out)
{
    bool exists = trial < result->summary.n_trials;
    tsr_verify_trial read = {0};
    if (exists) {
        const tsr_trial *from = &result->summary.trials[trial];
        read = (tsr_verify_trial){.ok = from->ok,
                                  .recorded = from->recorded,
                                  .status = from->status,
                                  .sharding = from->sharding,
                                  .refused = from->refused,
                                  .n_outputs = from->n_outputs};
    }
    return tsr__element_read(result->session, SIZED_LIST(&read, exists ? 1 : 0, n_outputs), 0, out);
}

tsr_status tsr_verify_result_output(const tsr_verify_result *result, size_t trial, size_t i,
                                    tsr_difference *out)
{
    const tsr_verify_summary *from = &result->summary;
    const tsr_difference *outputs = NULL;
    size_t n = 0;
    if (trial == TSR_NO_TRIAL) {
        outputs = from->outputs;
        n = from->n_outputs;
    } else if (trial < from->n_trials) {
        outputs = from->trials[trial].outputs;
        n = from->trials[trial].n_outputs;
    }
    return tsr__element_read(result->session, SIZED_LIST(outputs, n, ok), i, out);
}

tsr_status tsr_verify_result_first(const tsr_verify_result *result, size_t trial,
                                   tsr_first_difference *out)
{
    const tsr_verify_summary *from = &result->summary;
    const tsr_first_difference *first = NULL;
    if (trial == TSR_NO_TRIAL)
        first = &from->first;
    else if (trial < from->n_trials)
        first = &from->trials[trial].first;
    return tsr__element_read(result->session, SIZED_LIST(first, first ? 1 : 0, max_rel), 0, out);
}

const tsr_partition_result *tsr_verify_result_partition(const tsr_verify_result *result,
                                                        size_t trial)
{
    if (trial == TSR_NO_TRIAL)
        return &result->partitions[0];
    if (trial >= result->summary.n_trials)
        return NULL;
    return &result->partitions[trial + 1];
}
