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

// ---- ranks of a host process that must not be forked (served.c)

struct served;
// Starts the program and waits until its ranks are ready. host: the ONNX Runtime of this process;
// the ranks run in the same library. threads: per rank; 0: cores / ranks. *out is to be closed.
tsr_status tsr__served_open(tsr_session *session, const char *folder, const struct OrtApiBase *host,
                            int threads, struct served **out);
// One run. After a failure there are no more: it is to be closed.
tsr_status tsr__served_run(struct served *served, const tsr_tensors *inputs, tsr_tensors *outputs);
void tsr__served_close(struct served *served); // NULL is fine; no process is left
// All that the program tessera-ranks does (served_ranks.c): its exit code.
int tsr__served_work(const char *folder, const char *engine, int threads);

// ---- jobs (job_common.c)

struct OrtRunOptions;
// Options of ONNX Runtime for the following runs of ranks that are threads; their terminate flag
// ends a run. NULL: none. Must be valid until the runs have ended.
void tsr__job_set_run_options(tsr_job *job, const struct OrtRunOptions *options);

// ---- before a run, under a launcher (transports.c)

// Whether a launcher started this process as one of several ranks that are to run together, and
// which it is.
bool tsr__run_launched(tsr_session *session, const tsr_run_options *options, int *rank);
// Broadcasts rank 0's text of that many bytes; all ranks call it.
tsr_status tsr__run_tell(tsr_session *session, char *text, size_t bytes) TSR_MUST_USE;

#endif
