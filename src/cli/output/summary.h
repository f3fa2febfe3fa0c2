// SPDX-License-Identifier: Apache-2.0
// summary.h - a partition's summary as text and as JSON.
#ifndef TSR_CLI_SUMMARY_H
#define TSR_CLI_SUMMARY_H

#include "cli/cli.h"

void summary_print(FILE *to, const tsr_partition_summary *summary);
void summary_json(tsr_json *json,
                  const tsr_partition_summary *summary); // adds its fields to an open object

// What a plan of this command says of each rank's memory, and of the time; n 0: nothing was planned.
struct planned_memory {
    const int64_t *bytes;
    size_t n;
    struct prediction prediction;
};
// What the ranks of the last run were (tsr_run_rank).
void ranks_print(FILE *to, tsr_session *session, const struct planned_memory *planned);
void ranks_json(tsr_json *json, tsr_session *session, const struct planned_memory *planned);

#endif
