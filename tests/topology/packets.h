// SPDX-License-Identifier: Apache-2.0
// packets.h - simulates a collective packet by packet, to check the predicted times of topology.
#ifndef TSR_TEST_PACKETS_H
#define TSR_TEST_PACKETS_H

#include "topology/internal.h"

// Runs one schedule of an algorithm over the links, with queues. Returns picoseconds, or -1 if it
// does not apply to these groups.
int64_t packets_time(tsr_topology *topology, const struct comm_algorithm *algorithm, int which,
                     const struct topology_groups *groups, int64_t bytes);

#endif
