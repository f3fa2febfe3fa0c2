// SPDX-License-Identifier: Apache-2.0
// small_models.h - random small models and topologies for tests that compare plans and simulations.
#ifndef TSR_TESTS_SMALL_MODELS_H
#define TSR_TESTS_SMALL_MODELS_H

#include "tessera_cli.h"

// Pseudo-random numbers that are the same on every machine.
struct dice {
    uint64_t state;
};
int64_t pick(struct dice *dice, int64_t below); // 0 to below - 1

// Builds a chain of 2 to 7 nodes; some add an earlier value. NULL: the model could not be built.
tsr_model *make_model(tsr_session *session, uint64_t seed);
// Builds a topology of 2 to 4 devices; for about every fourth seed the devices differ.
tsr_topology *make_topology(tsr_session *session, uint64_t seed);

#endif
