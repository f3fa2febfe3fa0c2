// SPDX-License-Identifier: Apache-2.0
// summary.c - a partition's summary as text and as JSON, for partition, verify and demo.
//
// Read from the summary that tsr_partition, tsr_verify and tsr_folder_partition fill; its lists are
// the session's.
#include "cli/output/summary.h"

// A line for each device, then what was cut, then each node that was meant to be cut and was not,
// with its reason. "common" are weights that all devices read from one file.
void summary_print(FILE *to, const tsr_partition_summary *summary)
{
    fprintf(to, "%-7s %14s %12s %12s\n", "device", "weights", "bytes", "files");
    for (size_t i = 0; i < summary->devices; i++)
        fprintf(to, "%-7zu %14s %12s %12s\n", i, cli_count(summary->weights[i]),
                cli_bytes(summary->weight_bytes[i]), cli_bytes(summary->file_bytes[i]));
    if (summary->common_bytes)
        fprintf(to, "%-35s %12s\n", "common", cli_bytes(summary->common_bytes));
    fprintf(to, "%zu of %zu nodes cut; collectives:", summary->cut_nodes, summary->nodes);
    for (size_t i = 0; i < summary->n_collectives; i++)
        fprintf(to, "%s %s %zu", cli_between(i, ","), summary->collectives[i].op,
                summary->collectives[i].count);
    fprintf(to, "%s\n", cli_text_if(!summary->n_collectives, " none"));
    for (size_t i = 0; i < summary->n_replicated; i++)
        fprintf(to, "not cut: %s (%s): %s\n", summary->replicated[i].node,
                summary->replicated[i].op, summary->replicated[i].reason);
}

// Lists by device have one entry for each of them; `common_bytes` is the size of common.data.
void summary_json(tsr_json *json, const tsr_partition_summary *summary)
{
    tsr_json_int(json, "devices", (int64_t)summary->devices);
    tsr_json_collectives(json, "collectives", summary->collectives, summary->n_collectives);
    tsr_json_int(json, "nodes", (int64_t)summary->nodes);
    tsr_json_int(json, "cut_nodes", (int64_t)summary->cut_nodes);
    tsr_json_ints(json, "weight_bytes", summary->weight_bytes, summary->devices);
    tsr_json_ints(json, "file_bytes", summary->file_bytes, summary->devices);
    tsr_json_int(json, "common_bytes", summary->common_bytes);
    tsr_json_begin(json, "replicated", '[');
    for (size_t i = 0; i < summary->n_replicated; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "node", summary->replicated[i].node);
        tsr_json_string(json, "op", summary->replicated[i].op);
        tsr_json_string(json, "reason", summary->replicated[i].reason);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}
