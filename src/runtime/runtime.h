// SPDX-License-Identifier: Apache-2.0
// runtime.h - runs models: ONNX Runtime as the engine, one session per rank, ranks as threads or
// MPI processes. What other rooms may call is in tessera.h, section 8. This room knows device
// graphs, not how they came about.
#ifndef TSR_RUNTIME_H
#define TSR_RUNTIME_H

#include "base/base.h"

#define RUN_TOKEN_OUTPUT "ai.tessera.token.out" // output of a rank's graph that is no result

#endif
