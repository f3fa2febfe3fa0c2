// SPDX-License-Identifier: Apache-2.0
// summary.h - a partition's summary as text and as JSON.
#ifndef TSR_CLI_SUMMARY_H
#define TSR_CLI_SUMMARY_H

#include "cli.h"

void summary_print(FILE *to, const tsr_partition_summary *summary);
void summary_json(tsr_json *json,
                  const tsr_partition_summary *summary); // adds its fields to an open object

#endif
