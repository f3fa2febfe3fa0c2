// SPDX-License-Identifier: Apache-2.0
// summary.c - a partition's summary as text and as JSON, for partition, verify and demo.
#include "summary.h"

void summary_print(FILE *to, const tsr_partition_summary *p)
{
    fprintf(to, "%-7s %14s %12s %12s\n", "device", "weights", "bytes", "files");
    for (size_t i = 0; i < p->devices; i++)
        fprintf(to, "%-7zu %14s %12s %12s\n", i, cli_count(p->weights[i]),
                cli_bytes(p->weight_bytes[i]), cli_bytes(p->file_bytes[i]));
    if (p->common_bytes)
        fprintf(to, "%-35s %12s\n", "common", cli_bytes(p->common_bytes));
    fprintf(to, "%zu of %zu nodes cut; collectives:", p->cut_nodes, p->nodes);
    for (size_t i = 0; i < p->n_collectives; i++)
        fprintf(to, "%s %s %zu", i ? "," : "", p->collectives[i].op, p->collectives[i].count);
    fprintf(to, "%s\n", p->n_collectives ? "" : " none");
    for (size_t i = 0; i < p->n_replicated; i++)
        fprintf(to, "not cut: %s (%s): %s\n", p->replicated[i].node, p->replicated[i].op,
                p->replicated[i].reason);
}

void summary_json(tsr_json *j, const tsr_partition_summary *p)
{
    tsr_json_int(j, "devices", (int64_t)p->devices);
    tsr_json_begin(j, "collectives", '{');
    for (size_t i = 0; i < p->n_collectives; i++)
        tsr_json_int(j, p->collectives[i].op, (int64_t)p->collectives[i].count);
    tsr_json_end(j);
    tsr_json_int(j, "nodes", (int64_t)p->nodes);
    tsr_json_int(j, "cut_nodes", (int64_t)p->cut_nodes);
    tsr_json_begin(j, "weight_bytes", '[');
    for (size_t i = 0; i < p->devices; i++)
        tsr_json_int(j, NULL, p->weight_bytes[i]);
    tsr_json_end(j);
    tsr_json_begin(j, "file_bytes", '[');
    for (size_t i = 0; i < p->devices; i++)
        tsr_json_int(j, NULL, p->file_bytes[i]);
    tsr_json_end(j);
    tsr_json_int(j, "common_bytes", p->common_bytes);
    tsr_json_begin(j, "replicated", '[');
    for (size_t i = 0; i < p->n_replicated; i++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "node", p->replicated[i].node);
        tsr_json_string(j, "op", p->replicated[i].op);
        tsr_json_string(j, "reason", p->replicated[i].reason);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}
