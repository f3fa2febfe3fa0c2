// SPDX-License-Identifier: Apache-2.0
// summary.h - summaries of partitions and of ranks, as text and as JSON.
#ifndef TSR_CLI_SUMMARY_H
#define TSR_CLI_SUMMARY_H

#include "cli/cli.h"

void summary_print(FILE *to, const tsr_partition_summary *summary);
extern const tsr_json_field summary_fields[]; // of tsr_partition_summary

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
