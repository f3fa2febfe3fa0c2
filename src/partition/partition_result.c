// SPDX-License-Identifier: Apache-2.0
// partition_result.c - the result handle of a partition and its accessors.
#include "partition/partition.h"

tsr_status tsr_partition(tsr_model *model, const char *folder, const tsr_partition_options *options,
                         tsr_partition_result **out)
{
    tsr_partition_summary summary = {.size = sizeof summary};
    tsr_status st = tsr__partition(model, folder, options, &summary);
    if (st != TSR_OK || !out)
        return st;
    tsr_partition_result *result =
        tsr__result_new(tsr_model_session(model), RESULT_PARTITION, sizeof *result);
    if (!result)
        return TSR_NOMEM;
    result->summary = summary;
    *out = result;
    return TSR_OK;
}

void tsr_partition_result_free(tsr_partition_result *result)
{
    tsr__result_free(result);
}

tsr_status tsr_partition_result_about(const tsr_partition_result *result, tsr_partition_facts *out)
{
    const tsr_partition_summary *from = &result->summary;
    tsr_status st = RESULT_CHECK(result->session, out, n_replicated);
    if (st != TSR_OK)
        return st;
    tsr_partition_facts facts = {
        .devices = from->devices,
        .nodes = from->nodes,
        .cut_nodes = from->cut_nodes,
        .weight_bytes = from->weight_bytes,
        .weights = from->weights,
        .file_bytes = from->file_bytes,
        .common_bytes = from->common_bytes,
        .predicted = from->predicted,
        .one_device = from->one_device,
        .n_collectives = from->n_collectives,
        .n_replicated = from->n_replicated,
    };
    tsr__result_write(out, &facts, sizeof facts);
    return TSR_OK;
}

tsr_status tsr_partition_result_collective(const tsr_partition_result *result, size_t i,
                                           tsr_collective_count *out)
{
    const tsr_partition_summary *from = &result->summary;
    return tsr__element_read(result->session,
                             SIZED_LIST(from->collectives, from->n_collectives, count), i, out);
}

tsr_status tsr_partition_result_replicated(const tsr_partition_result *result, size_t i,
                                           tsr_replicated *out)
{
    const tsr_partition_summary *from = &result->summary;
    return tsr__element_read(result->session,
                             SIZED_LIST(from->replicated, from->n_replicated, reason), i, out);
}
