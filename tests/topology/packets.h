// SPDX-License-Identifier: Apache-2.0
// packets.h - simulates a collective packet by packet, to check the predicted times of topology.
#ifndef TSR_TEST_PACKETS_H
#define TSR_TEST_PACKETS_H

#include "topology/internal.h"

// Runs the schedule of one algorithm over the links, with queues. Returns picoseconds, or -1 if the
// algorithm does not apply to these groups.
int64_t packets_time(tsr_topology *topology, enum tsr_collective what, const char *algorithm,
                     const struct topology_groups *groups, int64_t bytes);

#endif
