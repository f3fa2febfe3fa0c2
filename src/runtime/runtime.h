// SPDX-License-Identifier: Apache-2.0
// runtime.h - runs models: ONNX Runtime as the engine, one session per rank, ranks as threads or
// MPI processes. What other rooms may call is in tessera.h, section 9. This room knows device
// graphs, not how they came about.
#ifndef TSR_RUNTIME_H
#define TSR_RUNTIME_H

#include "base/base.h"

#define RUN_TOKEN_OUTPUT "ai.tessera.token.out" // output of a rank's graph that is no result

// ---- a partition as one operator of a stock ONNX Runtime (wrapped.c; the plug-in registers it)

struct OrtApiBase;
struct OrtStatus;
struct OrtSessionOptions;
struct OrtStatus *tsr__wrapped_add(const struct OrtApiBase *base,
                                   struct OrtSessionOptions *options);
// All that the program tessera-ranks does (served_ranks.c): its exit code.
int tsr__served_work(const char *folder, const char *engine);

// ---- before a run, under a launcher (transports.c)

// Whether a launcher started this process as one of several ranks that are to run together, and
// which it is.
bool tsr__run_launched(tsr_session *session, const tsr_run_options *options, int *rank);
// Broadcasts rank 0's text of that many bytes; all ranks call it.
tsr_status tsr__run_tell(tsr_session *session, char *text, size_t bytes) TSR_MUST_USE;

#endif
