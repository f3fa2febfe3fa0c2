// SPDX-License-Identifier: Apache-2.0
// standin.h - internals of a library that replaces the CUDA driver and NCCL on machines without
// GPUs. "Device" memory is host memory.
//
// Streams are threads that execute queued work later, so that a missing synchronization shows up as
// a wrong result. Freed memory is unmapped at once. Environment variables:
//  STANDIN_CARDS       number of GPUs, default 2
//  STANDIN_LAG         maximum delay before each queued work, in microseconds
//  STANDIN_SLOW        microseconds that the host needs to let a stream wait for an event
//  STANDIN_FAIL        cuMemAlloc_v2:3 lets the third call fail
//  STANDIN_FREE        bytes that are reported as free
//  STANDIN_HOST_WAITS  NCCL's all-reduce waits for the other ranks in the call itself
#ifndef TSR_STANDIN_H
#define TSR_STANDIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

// One item of queued work; the data is copied.
struct task {
    void (*work)(void *data);
    void *data;
    struct task *next;
};
struct stream;
// Queues work on a stream (NULL: the default stream): its thread calls `work` with a copy of the
// data.
void standin_put(void *stream, void (*work)(void *), const void *data, size_t bytes);
// True if STANDIN_FAIL selects this call.
bool standin_fails(const char *name);
void standin_nap(void); // sleeps some microseconds, so that other threads run

#endif
