// SPDX-License-Identifier: Apache-2.0
// solve_heap.c - the memory of the solver, and its effort limits.
//
// The solver replaces most tables many times. An arena would keep all of them. So each block comes
// from the session's allocator and is linked into the list of the heap. tsr__heap_done frees the
// blocks that are left, also after a failure.
#include "internal.h"

// Header of every block. `bytes` includes it.
struct heap_block {
    struct heap_block *next, *before;
    size_t bytes;
    size_t pad; // aligns the memory after the header
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

// Puts the block at the front of the list and returns the memory after its header.
static void *link_block(struct heap *heap, struct heap_block *block, size_t bytes)
{
    *block = (struct heap_block){.next = heap->first, .bytes = bytes};
    if (heap->first)
        heap->first->before = block;
    heap->first = block;
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

// Changes the size of a block like realloc: after a failure p stays valid. Unlinks the block first,
// because its neighbours point to it.
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

// Grows a list: its capacity becomes 4, 8, 16 ... entries. Returns false if out of memory; the list
// is then unchanged.
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

bool tsr__list_reserve(struct heap *heap, void **at, uint32_t *cap, size_t n, size_t size)
{
    void *grown = n < UINT32_MAX / 2 ? tsr__heap_grow(heap, *at, 2 * n, size) : NULL;
    if (!grown)
        return false;
    *at = grown;
    *cap = (uint32_t)(2 * n);
    return true;
}

double tsr__effort_elapsed(const struct effort *effort)
{
    return tsr__now_s() - effort->start;
}

// True if the session is cancelled, or if the work or time limit of the solve or of the current
// slice is reached. Reads the clock last, because that is slow.
bool tsr__effort_over(const struct effort *effort)
{
    if (effort->session && tsr__cancelled(effort->session))
        return true;
    if (effort->work >= effort->limit || (effort->slice_work && effort->work >= effort->slice_work))
        return true;
    if (effort->seconds <= 0)
        return false;
    double elapsed = tsr__now_s() - effort->start;
    return elapsed >= effort->seconds || (effort->slice_work && elapsed >= effort->slice_end);
}

// Limits the work and time of the next part. Example: limit 1000, work 200, fraction 0.05: the
// slice ends at work 251 (200 + 50 + 1).
void tsr__effort_slice(struct effort *effort, double fraction)
{
    effort->slice_work = 0;
    if (fraction <= 0)
        return;
    double work = (double)effort->work + fraction * (double)effort->limit;
    effort->slice_work = work < 1.8e19 ? (uint64_t)work + 1 : UINT64_MAX;
    effort->slice_end = tsr__effort_elapsed(effort) + fraction * effort->seconds;
}
