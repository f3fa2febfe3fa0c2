// SPDX-License-Identifier: Apache-2.0
// shm_heap.c - memory of a rank that the other ranks can read and write where it lies.
//
// Sizes are rounded up to eighths of powers of two; a block that is given back waits for the next of
// its size. What a run of a model needs is much the same from run to run, so little is left over; where sizes change, what waits
// in vain gives its pages back.
//
// 100 bytes: 100 - 1 = 99 lies between 64 and 128, in steps of 8; class 6 * 8 + 4, whose largest
// size is 104. With its head the block takes 192 bytes, a multiple of 64. Blocks are never joined
// or split; `used` only grows.
#include "transport/shm.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE       4096       // or a part of one
#define TRIM_BLOCK (1u << 20) // smaller ones keep their pages
#define TRIM_FROM                                                                                  \
    (64u << 20) // bytes beyond twice the most in use from which on pages are given back

// Before each block, on a line of its own.
struct block_head {
    unsigned class;
    size_t given; // bytes whose pages were given back while it waits
};
#define BLOCK_HEAD 64

static struct block_head *head_of(void *p)
{
    return (struct block_head *)((char *)p - BLOCK_HEAD);
}

// top is the power of two below, eighth the step above it; sizes below 64 share the class of 128.
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

// Under the lock, with a block waiting. Pages that were given back come again, as zeros, when they
// are touched.
static void *reuse(struct shm *me, unsigned class)
{
    struct shm_heap *heap = &me->heap;
    char *first = heap->free[class];
    memcpy(&heap->free[class], first,
           sizeof(char *)); // the next one, which free memory begins with
    heap->waiting -= class_bytes(class);
    heap->given -= head_of(first)->given;
    head_of(first)->given = 0;
    return first;
}

// Under the lock. NULL: the heap is used up, and the caller takes ordinary memory.
static void *take_block(struct shm *me, unsigned class)
{
    struct shm_heap *heap = &me->heap;
    size_t bytes = (class_bytes(class) + BLOCK_HEAD + 63) / 64 * 64;
    if (class >= SHM_CLASSES)
        return NULL;
    if (heap->free[class])
        return reuse(me, class);
    if (bytes > me->job->at.heap_bytes - heap->used)
        return NULL;
    char *base = me->job->base + me->job->at.heaps +
                 (size_t)me->endpoint.rank * me->job->at.heap_bytes + heap->used;
    heap->used += bytes;
    *head_of(base + BLOCK_HEAD) = (struct block_head){.class = class};
    return base + BLOCK_HEAD;
}

// By any thread of the rank's engine.
void *tsr__shm_alloc(struct endpoint *endpoint, size_t bytes)
{
    struct shm *me = (struct shm *)endpoint;
    if (bytes > me->job->at.heap_bytes)
        return NULL;
    pthread_mutex_lock(&me->heap.lock);
    void *p = take_block(me, class_of(bytes));
    size_t in_use = me->heap.used - me->heap.waiting;
    me->heap.most = in_use > me->heap.most ? in_use : me->heap.most;
    pthread_mutex_unlock(&me->heap.lock);
    return p;
}

// Other ranks' heaps are mapped here too, but never freed here.
static bool is_own(const struct shm *me, const void *p)
{
    const struct shm_layout *at = &me->job->at;
    uintptr_t first =
        (uintptr_t)me->job->base + at->heaps + (uintptr_t)me->endpoint.rank * at->heap_bytes;
    return (uintptr_t)p >= first && (uintptr_t)p - first < at->heap_bytes;
}

// Gives the pages of a block back that waits for the next of its size, where much more waits than was ever needed at a time.
static void give_pages(struct shm_heap *heap, char *p, size_t bytes)
{
    if (bytes < TRIM_BLOCK || heap->used - heap->given < 2 * heap->most + TRIM_FROM)
        return;
    // Whole pages inside the block; the head and the link to the next free block lie before `first`
    // and stay.
    uintptr_t first = ((uintptr_t)p + PAGE) / PAGE * PAGE;
    uintptr_t end = ((uintptr_t)p + bytes) / PAGE * PAGE;
    if (madvise((void *)first, end - first, MADV_REMOVE) != 0)
        return; // that it stays is no harm
    head_of(p)->given = end - first;
    heap->given += end - first;
}

// The block's first bytes become the link to the next free one of its class.
bool tsr__shm_release(struct endpoint *endpoint, void *p)
{
    struct shm *me = (struct shm *)endpoint;
    struct shm_heap *heap = &me->heap;
    if (!is_own(me, p))
        return false;
    unsigned class = head_of(p)->class;
    if (class >= SHM_CLASSES)
        return true; // somebody wrote over it: better lost than given twice
    pthread_mutex_lock(&heap->lock);
    memcpy(p, &heap->free[class], sizeof heap->free[class]);
    heap->free[class] = p;
    heap->waiting += class_bytes(class);
    give_pages(heap, p, class_bytes(class));
    pthread_mutex_unlock(&heap->lock);
    return true;
}

size_t tsr__shm_held(struct endpoint *endpoint)
{
    struct shm_heap *heap = &((struct shm *)endpoint)->heap;
    pthread_mutex_lock(&heap->lock);
    size_t n = heap->used - heap->given;
    pthread_mutex_unlock(&heap->lock);
    return n;
}
