// SPDX-License-Identifier: Apache-2.0
// standin.h - inside of a library that looks like CUDA's driver and NCCL, and moves host memory.
//
// Streams are threads that work off what was put on them, so that a wait that was forgotten is seen; memory that was freed
// is gone at once. Environment: STANDIN_CARDS (number of GPUs, default 2), STANDIN_LAG (microseconds before each piece of
// work, at most), STANDIN_SLOW (microseconds that a host takes to let a stream wait for an event), STANDIN_FAIL (cuMemAlloc_v2:3 lets the third call fail), STANDIN_FREE (bytes that are said to be free),
// STANDIN_HOST_WAITS (NCCL's all-reduce waits for the others in the call itself).
#ifndef TSR_STANDIN_H
#define TSR_STANDIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

// One piece of work; the data is copied.
struct task {
    void (*work)(void *data);
    void *data;
    struct task *next;
};
struct stream;
// Puts work on a stream (NULL: the default one): the worker calls it with a copy of the data.
void standin_put(void *stream, void (*work)(void *), const void *data, size_t bytes);
// True where a test wants this call to fail.
bool standin_fails(const char *name);
void standin_nap(void); // a few microseconds, while others move on

#endif
