// SPDX-License-Identifier: Apache-2.0
// summary.c - the summary of a partition as text and as JSON, for partition, verify and demo.
#include "cli/output/summary.h"

// Prints one line per device, the number of sharded nodes, then each node that could not be sharded
// with its reason. "common": the file of weights that all devices read.
void summary_print(FILE *to, const tsr_partition_summary *summary)
{
    fprintf(to, "%-7s %14s %12s %12s\n", "device", "weights", "bytes", "files");
    for (size_t i = 0; i < summary->devices; i++)
        fprintf(to, "%-7zu %14s %12s %12s\n", i, cli_count(summary->weights[i]),
                cli_bytes(summary->weight_bytes[i]), cli_bytes(summary->file_bytes[i]));
    if (summary->common_bytes)
        fprintf(to, "%-35s %12s\n", "common", cli_bytes(summary->common_bytes));
    fprintf(to, "%zu of %zu nodes sharded; collectives:", summary->cut_nodes, summary->nodes);
    for (size_t i = 0; i < summary->n_collectives; i++)
        fprintf(to, "%s %s %zu", i ? "," : "", summary->collectives[i].op,
                summary->collectives[i].count);
    fprintf(to, "%s\n", summary->n_collectives ? "" : " none");
    for (size_t i = 0; i < summary->n_replicated; i++)
        fprintf(to, "not sharded: %s (%s): %s\n", summary->replicated[i].node,
                summary->replicated[i].op, summary->replicated[i].reason);
}

static const tsr_json_field replicated_fields[] = {
    {JSON_FIELD(tsr_replicated, "node", node)},
    {JSON_FIELD(tsr_replicated, "op", op)},
    {JSON_FIELD(tsr_replicated, "reason", reason)},
    {JSON_END},
};

const tsr_json_field summary_fields[] = {
    {JSON_FIELD(tsr_partition_summary, "devices", devices)},
    {JSON_LIST(tsr_partition_summary, "collectives", collectives, n_collectives)},
    {JSON_FIELD(tsr_partition_summary, "nodes", nodes)},
    {JSON_FIELD(tsr_partition_summary, "cut_nodes", cut_nodes)},
    {JSON_LIST(tsr_partition_summary, "weight_bytes", weight_bytes, devices)},
    {JSON_LIST(tsr_partition_summary, "file_bytes", file_bytes, devices)},
    {JSON_FIELD(tsr_partition_summary, "common_bytes", common_bytes)},
    {JSON_RECORDS(tsr_partition_summary, "replicated", replicated, n_replicated,
                  replicated_fields)},
    {JSON_END},
};
