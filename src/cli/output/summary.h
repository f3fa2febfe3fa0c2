// SPDX-License-Identifier: Apache-2.0
// summary.h - results of partitions and of ranks, as text and as JSON.
#ifndef TSR_CLI_SUMMARY_H
#define TSR_CLI_SUMMARY_H

#include "cli/cli.h"

// What the command reads from the result of a partition.
struct partition_view {
    tsr_partition_facts facts;
    tsr_collective_count *collectives;
    tsr_replicated *replicated;
};
struct partition_view partition_view(const tsr_partition_result *result);
void partition_print(FILE *to, const tsr_partition_result *result);
void partition_json(tsr_json *json, const tsr_partition_result *result); // into the open object

// Predicted memory per rank and time of a plan; n 0: the model was not planned.
struct planned_memory {
    const int64_t *bytes;
    size_t n;
    struct prediction prediction;
};
// Prints the ranks of the last run (tsr_run_rank).
void ranks_print(FILE *to, tsr_session *session, const struct planned_memory *planned);
void ranks_json(tsr_json *json, tsr_session *session, const struct planned_memory *planned);

#endif
