// SPDX-License-Identifier: Apache-2.0
// shm_heap.c - memory of a rank that the other ranks can read and write where it lies.
//
// Sizes are rounded up to eighths of powers of two; a block that is given back waits for the next of
// its size. What a run of a model needs is much the same from run to run, so little is left over; where sizes change, what waits
// in vain gives its pages back.
#include "transport/shm.h"

#include <stdlib.h>
#include <sys/mman.h>

#define BLOCK_HEAD 64          // before each block: its size class
#define PAGE       4096        // or a part of one
#define TRIM_BLOCK (1u << 20)  // smaller ones are kept
#define TRIM_FROM  (64u << 20) // waiting bytes from which on pages are given back

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
        me->heap_free -= class_bytes(class);
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

static bool is_own(const struct shm *me, const void *p)
{
    const struct shm_layout *at = &me->job->at;
    uintptr_t first =
        (uintptr_t)me->job->base + at->heaps + (uintptr_t)me->endpoint.rank * at->heap_bytes;
    return (uintptr_t)p >= first && (uintptr_t)p - first < me->heap_used;
}

// Gives the pages of a block back that waits for the next of its size, while more waits than is in use.
static void give_pages(const struct shm *me, char *p, size_t bytes)
{
    if (bytes < TRIM_BLOCK || me->heap_free < TRIM_FROM || me->heap_free < me->heap_used / 2)
        return;
    uintptr_t first = ((uintptr_t)p + PAGE) / PAGE * PAGE,
              end = ((uintptr_t)p + bytes) / PAGE * PAGE;
    madvise((void *)first, end - first, MADV_REMOVE); // that it stays is no harm
}

bool tsr__shm_release(struct endpoint *e, void *p)
{
    struct shm *me = (struct shm *)e;
    unsigned class;
    if (!is_own(me, p))
        return false;
    memcpy(&class, (char *)p - BLOCK_HEAD, sizeof class);
    if (class >= SHM_CLASSES)
        return true; // somebody wrote over it: better lost than given twice
    pthread_mutex_lock(&me->heap_lock);
    memcpy(p, &me->free[class], sizeof me->free[class]);
    me->free[class] = p;
    me->heap_free += class_bytes(class);
    give_pages(me, p, class_bytes(class));
    pthread_mutex_unlock(&me->heap_lock);
    return true;
}
