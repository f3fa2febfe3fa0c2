// SPDX-License-Identifier: Apache-2.0
// solve_heap.c - memory of the solver, and its effort.
//
// An arena would keep every table that a reduction replaces until the end; the solver replaces most
// of them many times. So each block is had from the session's allocator and linked into one list
// per heap: tsr__heap_done frees what is left, and nobody has to unwind after a failure.
#include "internal.h"

#include <time.h>

// Stands in front of every block that is given out; `bytes` counts it too.
struct heap_block {
    struct heap_block *next, *before;
    size_t bytes;
    size_t pad; // keeps what follows aligned
};

void tsr__heap_init(struct heap *heap, tsr_session *session)
{
    *heap = (struct heap){.session = session};
}

void tsr__heap_done(struct heap *heap)
{
    while (heap->first)
        tsr__heap_free(heap, heap->first + 1);
}

// Makes the block the first of the list and returns the memory behind it, which callers see.
static void *link_block(struct heap *heap, struct heap_block *block, size_t bytes)
{
    *block = (struct heap_block){.next = heap->first, .bytes = bytes};
    if (heap->first)
        heap->first->before = block;
    heap->first = block;
    heap->bytes += bytes;
    return block + 1;
}

static void unlink_block(struct heap *heap, struct heap_block *block)
{
    if (block->before)
        block->before->next = block->next;
    else
        heap->first = block->next;
    if (block->next)
        block->next->before = block->before;
    heap->bytes -= block->bytes;
}

void *tsr__heap_get(struct heap *heap, size_t n, size_t size)
{
    size_t bytes;
    if (heap->failed || __builtin_mul_overflow(n, size, &bytes) ||
        bytes > SIZE_MAX - sizeof(struct heap_block)) {
        heap->failed = true;
        return NULL;
    }
    bytes += sizeof(struct heap_block);
    struct heap_block *block = tsr__alloc(heap->session, bytes);
    if (!block) {
        heap->failed = true;
        return NULL;
    }
    memset(block, 0, bytes);
    return link_block(heap, block, bytes);
}

// Like realloc: the contents move along, p is no longer valid on success and stays valid on
// failure. The block leaves the list before the allocator may move it, because its neighbours point
// to it.
void *tsr__heap_grow(struct heap *heap, void *p, size_t n, size_t size)
{
    if (!p)
        return tsr__heap_get(heap, n, size);
    size_t bytes;
    if (heap->failed || __builtin_mul_overflow(n, size, &bytes)) {
        heap->failed = true;
        return NULL;
    }
    struct heap_block *block = (struct heap_block *)p - 1;
    size_t old = block->bytes;
    bytes += sizeof(struct heap_block);
    unlink_block(heap, block);
    struct heap_block *grown = tsr__realloc(heap->session, block, old, bytes);
    if (!grown) {
        link_block(heap, block, old);
        heap->failed = true;
        return NULL;
    }
    return link_block(heap, grown, bytes);
}

void tsr__heap_free(struct heap *heap, void *p)
{
    if (!p)
        return;
    struct heap_block *block = (struct heap_block *)p - 1;
    unlink_block(heap, block);
    tsr__free(heap->session, block, block->bytes);
}

// 4, 8, 16 ... entries. False: out of memory, and the list is as it was.
bool tsr__list_grow(struct heap *heap, void **at, uint32_t *cap, size_t size)
{
    uint32_t wanted = *cap ? *cap * 2 : 4;
    void *grown = tsr__heap_grow(heap, *at, wanted, size);
    if (!grown)
        return false;
    *at = grown;
    *cap = wanted;
    return true;
}

static double now(void)
{
    struct timespec timespec;
    clock_gettime(CLOCK_MONOTONIC, &timespec);
    return (double)timespec.tv_sec + 1e-9 * (double)timespec.tv_nsec;
}

double tsr__effort_elapsed(const struct effort *effort)
{
    return now() - effort->start;
}

// Cancelled, out of work, or (only where seconds were asked for) out of time; the same for the
// slice of the step at hand. The clock is read last: most calls end before it.
bool tsr__effort_over(const struct effort *effort)
{
    if (effort->session && tsr__cancelled(effort->session))
        return true;
    if (effort->work >= effort->limit || (effort->slice_work && effort->work >= effort->slice_work))
        return true;
    if (effort->seconds <= 0)
        return false;
    double elapsed = now() - effort->start;
    return elapsed >= effort->seconds || (effort->slice_work && elapsed >= effort->slice_end);
}

// Limit 1000, work 200, fraction 0.05: the step is over at work 251 (200 + 50 + 1). 0 ends the
// step, and only the whole limit counts.
void tsr__effort_slice(struct effort *effort, double fraction)
{
    effort->slice_work = 0;
    if (fraction <= 0)
        return;
    double work = (double)effort->work + fraction * (double)effort->limit;
    effort->slice_work = work < 1.8e19 ? (uint64_t)work + 1 : UINT64_MAX;
    effort->slice_end = tsr__effort_elapsed(effort) + fraction * effort->seconds;
}
