// SPDX-License-Identifier: Apache-2.0
// small_models.h - random small models and machines for the tests that compare plans with simulations.
#ifndef TSR_TESTS_SMALL_MODELS_H
#define TSR_TESTS_SMALL_MODELS_H

#include "tessera_cli.h"

// Numbers that are the same on every machine.
struct dice {
    uint64_t state;
};
int64_t pick(struct dice *dice, int64_t below); // 0 to below - 1

// A chain of 2 to 7 nodes with sums of what came before; NULL: it could not be made.
tsr_model *make_model(tsr_session *session, uint64_t seed);
// 2 to 4 devices; of every fourth seed or so they are unlike.
tsr_topology *make_topology(tsr_session *session, uint64_t seed);

#endif
