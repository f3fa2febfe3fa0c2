// SPDX-License-Identifier: Apache-2.0
// shm_heap.c - memory of a rank that the other ranks can read and write where it lies.
//
// Sizes are rounded up to eighths of powers of two; a block that is given back waits for the next of
// its size. What a run of a model needs is much the same from run to run, so little is left over.
#include "transport/shm.h"

#include <stdlib.h>

#define BLOCK_HEAD 64 // before each block: its size class

static unsigned class_of(size_t bytes)
{
    unsigned top = 63 - (unsigned)__builtin_clzll((bytes < 64 ? 64 : bytes - 1) | 1);
    unsigned eighth = (unsigned)(((bytes < 64 ? 64 : bytes) - 1) >> (top - 3)) & 7;
    return top * 8 + eighth;
}

// The largest size of a class.
static size_t class_bytes(unsigned class)
{
    unsigned top = class / 8;
    return ((size_t)8 + class % 8 + 1) << (top - 3);
}

static void *take_block(struct shm *me, unsigned class)
{
    char *first = me->free[class];
    if (first) {
        memcpy(&me->free[class], first, sizeof first);
        return first;
    }
    size_t bytes = (class_bytes(class) + BLOCK_HEAD + 63) / 64 * 64;
    if (bytes > me->job->at.heap_bytes - me->heap_used)
        return NULL;
    char *base = me->job->base + me->job->at.heaps +
                 (size_t)me->endpoint.rank * me->job->at.heap_bytes + me->heap_used;
    me->heap_used += bytes;
    memcpy(base, &class, sizeof class);
    return base + BLOCK_HEAD;
}

void *tsr__shm_alloc(struct endpoint *e, size_t bytes)
{
    struct shm *me = (struct shm *)e;
    if (bytes > me->job->at.heap_bytes)
        return NULL;
    pthread_mutex_lock(&me->heap_lock);
    void *p = take_block(me, class_of(bytes));
    pthread_mutex_unlock(&me->heap_lock);
    return p;
}

void tsr__shm_release(struct endpoint *e, void *p)
{
    struct shm *me = (struct shm *)e;
    unsigned class;
    if (!p)
        return;
    memcpy(&class, (char *)p - BLOCK_HEAD, sizeof class);
    if (class >= SHM_CLASSES)
        return; // somebody wrote over it: better lost than given twice
    pthread_mutex_lock(&me->heap_lock);
    memcpy(p, &me->free[class], sizeof me->free[class]);
    me->free[class] = p;
    pthread_mutex_unlock(&me->heap_lock);
}
