// SPDX-License-Identifier: Apache-2.0
// shm_heap.c - memory of a rank that the other ranks can read and write in place.
//
// Small blocks have a region of their own. Their sizes are rounded up to size classes (class_of),
// and a freed block is kept for the next request of its class. Large blocks are split from the
// smallest free block that fits, and merged with free neighbours when they are freed, so that a run
// takes little more than its peak of live memory.
//
//     Example: blocks of 8, 4 and 6 MiB; the first two are freed and become one of 12. 7 MiB are
//     split from it, and 5 stay free. 9 MiB fit nowhere and begin after the last block; if the last
//     block had been free, it would have grown by 3 MiB.
//
// Large blocks are contiguous; each stores the size of the one before it in its header.
#include "transport/shm/shm.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE        4096               // page size of the system, or a divisor of it
#define LINE        64                 // alignment of blocks
#define LARGE       ((size_t)64 << 10) // from this size on blocks are split and merged
#define SMALL_SHARE 64                 // 1/64 of the heap is for small blocks
#define TRIM_BLOCK  (1u << 20)         // smaller blocks keep their pages
// Pages are returned to the system if the heap holds more than twice its peak use plus this.
#define TRIM_FROM (64u << 20)
#define MARK      UINT64_C(0x7e55e7ab10c4b10c)

// The header of each block, on its own cache line. The magic number depends on the address, so that
// an overwritten header is detected.
struct block {
    uint64_t mark;
    size_t bytes;  // with the header
    size_t before; // bytes of the large block before it; 0: it is the first
    size_t given;  // bytes whose pages were given back
    unsigned class;
    bool free;
    struct block *next, *previous; // neighbours in the free list of its class
};
_Static_assert(sizeof(struct block) <= LINE, "heads are one line");

static uint64_t mark_of(const struct block *block)
{
    return MARK ^ (uintptr_t)block;
}

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

// Returns the size class of a block. There are 8 classes between two powers of two. Example:
// between 64 (2 to the power of 6) and 128 they have steps of 8; sizes 97 to 104 are class 6 * 8 +
// 4. Sizes below 64 share the class of 64.
static unsigned class_of(size_t bytes)
{
    size_t last = (bytes < LINE ? LINE : bytes) - 1;
    unsigned top = 63 - (unsigned)__builtin_clzll(last);
    return top * 8 + ((unsigned)(last >> (top - 3)) & 7);
}

// Returns the largest size of a class.
static size_t class_bytes(unsigned class)
{
    return ((size_t)8 + class % 8 + 1) << (class / 8 - 3);
}

// ---- addresses ----------------------------------------------------------------------------------

static char *heap_base(const struct shm *me)
{
    const struct shm_layout *at = &me->job->at;
    return me->job->base + at->heaps + (size_t)me->endpoint.rank * at->heap_bytes;
}

static size_t small_bytes(const struct shm *me)
{
    return me->job->at.heap_bytes / SMALL_SHARE / PAGE * PAGE;
}

static struct block *first_large(const struct shm *me)
{
    return (struct block *)(heap_base(me) + small_bytes(me));
}

// Returns the block behind this one. NULL: it is the last block.
static struct block *after(const struct shm *me, struct block *block)
{
    char *end = (char *)first_large(me) + me->heap.large;
    char *next = (char *)block + block->bytes;
    return next < end ? (struct block *)next : NULL;
}

static struct block *before(struct block *block)
{
    return block->before ? (struct block *)((char *)block - block->before) : NULL;
}

// ---- lists of free blocks -----------------------------------------------------------------------

static void list_free(struct shm_heap *heap, struct block *block)
{
    struct block **list = &heap->free[block->class];
    block->free = true;
    block->previous = NULL;
    block->next = *list;
    if (*list)
        (*list)->previous = block;
    *list = block;
    heap->waiting += block->bytes;
    heap->given += block->given;
}

static void unlist(struct shm_heap *heap, struct block *block)
{
    block->free = false;
    if (block->previous)
        block->previous->next = block->next;
    else
        heap->free[block->class] = block->next;
    if (block->next)
        block->next->previous = block->previous;
    heap->waiting -= block->bytes;
    heap->given -= block->given;
}

// Returns the smallest free block of the class with at least that many bytes. NULL: there is none.
static struct block *smallest_of(const struct shm_heap *heap, unsigned class, size_t bytes)
{
    struct block *best = NULL;
    for (struct block *block = heap->free[class]; block; block = block->next)
        if (block->bytes >= bytes && (!best || block->bytes < best->bytes))
            best = block;
    return best;
}

// ---- large blocks -------------------------------------------------------------------------------

// Sets the size of a block, also in the next block (or in the heap, for the last one), so that both
// always agree.
static void set_bytes(struct shm *me, struct block *block, size_t bytes)
{
    block->bytes = bytes;
    block->class = class_of(bytes);
    struct block *next = after(me, block);
    if (next)
        next->before = bytes;
    else
        me->heap.last = bytes;
}

// Splits off the rest of a block behind the first `bytes`, if it is large enough for a block. Pages
// that were returned to the system (`given`) are counted in the rest, because the front is about to
// be written.
static void cut_off(struct shm *me, struct block *block, size_t bytes)
{
    size_t rest = block->bytes - bytes, given = block->given;
    block->given = 0;
    if (rest < LARGE)
        return;
    struct block *second = (struct block *)((char *)block + bytes);
    *second = (struct block){.bytes = rest, .before = bytes};
    second->mark = mark_of(second);
    second->given = given < rest - LINE ? given : rest - LINE;
    set_bytes(me, second, rest);
    set_bytes(me, block, bytes);
    list_free(&me->heap, second);
}

// Grows the last block if it is free, else adds a block after it. NULL: the heap is full.
static struct block *extend(struct shm *me, size_t bytes)
{
    struct shm_heap *heap = &me->heap;
    struct block *last = NULL;
    if (heap->large)
        last = (struct block *)((char *)first_large(me) + heap->large - heap->last);
    bool grows = last && last->free;
    size_t more = grows ? bytes - last->bytes : bytes;
    if (more > me->job->at.heap_bytes - small_bytes(me) - heap->large)
        return NULL;
    struct block *block = (struct block *)((char *)first_large(me) + heap->large);
    if (grows) {
        block = last;
        unlist(heap, block);
        block->given = 0;
    } else {
        *block = (struct block){.before = heap->last};
        block->mark = mark_of(block);
    }
    heap->large += more;
    set_bytes(me, block, bytes);
    return block;
}

// Takes a large block from the heap. Called with the lock held. NULL: the heap is full.
static struct block *take_large(struct shm *me, size_t bytes)
{
    struct shm_heap *heap = &me->heap;
    unsigned class = class_of(bytes);
    struct block *block = NULL;
    for (; class < SHM_CLASSES && !block; class ++)
        block = smallest_of(heap, class, bytes);
    if (!block)
        return extend(me, bytes);
    unlist(heap, block);
    cut_off(me, block, bytes);
    return block;
}

// Merges two neighbours that are free and in no free list into the first.
static void join(struct shm *me, struct block *first, struct block *second)
{
    size_t bytes = first->bytes + second->bytes;
    first->given += second->given;
    second->mark = 0;
    set_bytes(me, first, bytes);
}

// Returns the pages of a large free block to the system, if the heap holds much more than its peak
// use.
static void give_pages(struct shm_heap *heap, struct block *block)
{
    size_t held = heap->small + heap->large - heap->given - block->given;
    if (block->bytes < TRIM_BLOCK || held < 2 * heap->most + TRIM_FROM)
        return;
    // Whole pages inside the block; the header is before `first` and stays.
    uintptr_t first = ((uintptr_t)block + LINE + PAGE - 1) / PAGE * PAGE;
    uintptr_t end = ((uintptr_t)block + block->bytes) / PAGE * PAGE;
    if (madvise((void *)first, end - first, MADV_REMOVE) == 0) // a failure does no harm
        block->given = end - first;
}

// Returns a large block to the heap and joins it with free neighbours. Called with the lock held.
// Neighbours with overwritten headers are left alone.
static void free_large(struct shm *me, struct block *block)
{
    struct shm_heap *heap = &me->heap;
    struct block *next = after(me, block), *previous = before(block);
    if (next && next->free && next->mark == mark_of(next)) {
        unlist(heap, next);
        join(me, block, next);
    }
    if (previous && previous->free && previous->mark == mark_of(previous)) {
        unlist(heap, previous);
        join(me, previous, block);
        block = previous;
    }
    give_pages(heap, block);
    list_free(heap, block);
}

// ---- small blocks -------------------------------------------------------------------------------

// Takes a small block from the heap. Called with the lock held. NULL: the region is full.
static struct block *take_small(struct shm *me, size_t bytes)
{
    struct shm_heap *heap = &me->heap;
    unsigned class = class_of(bytes);
    struct block *block = heap->free[class];
    if (block) {
        unlist(heap, block);
        return block;
    }
    size_t all = lines(class_bytes(class)) + LINE;
    if (all > small_bytes(me) - heap->small)
        return NULL;
    block = (struct block *)(heap_base(me) + heap->small);
    *block = (struct block){.bytes = all, .class = class};
    block->mark = mark_of(block);
    heap->small += all;
    return block;
}

static bool is_small(const struct shm *me, const struct block *block)
{
    return block < first_large(me);
}

// ---- entry points -------------------------------------------------------------------------------

// Allocates shared memory of this rank, from any thread of its engine. Returns NULL if there is
// none; the caller then uses ordinary memory.
void *tsr__shm_alloc(struct endpoint *endpoint, size_t bytes)
{
    struct shm *me = (struct shm *)endpoint;
    struct shm_heap *heap = &me->heap;
    if (bytes >= me->job->at.heap_bytes)
        return NULL;
    pthread_mutex_lock(&heap->lock);
    struct block *block = bytes < LARGE ? take_small(me, bytes) : NULL;
    if (!block)
        block = take_large(me, lines(bytes < LARGE ? LARGE : bytes) + LINE);
    size_t in_use = heap->small + heap->large - heap->waiting;
    heap->most = in_use > heap->most ? in_use : heap->most;
    pthread_mutex_unlock(&heap->lock);
    return block ? (char *)block + LINE : NULL;
}

// True if the address is in this rank's own heap. Other ranks' heaps are mapped here too, but never
// freed here.
static bool is_own(const struct shm *me, const void *p)
{
    uintptr_t first = (uintptr_t)heap_base(me);
    return (uintptr_t)p >= first && (uintptr_t)p - first < me->job->at.heap_bytes;
}

// Frees shared memory of this rank. False: the address is not in its heap. A block with an
// overwritten header is leaked rather than reused.
bool tsr__shm_release(struct endpoint *endpoint, void *p)
{
    struct shm *me = (struct shm *)endpoint;
    struct shm_heap *heap = &me->heap;
    if (!is_own(me, p))
        return false;
    struct block *block = (struct block *)((char *)p - LINE);
    pthread_mutex_lock(&heap->lock);
    bool whole = block->mark == mark_of(block) && !block->free;
    if (whole && is_small(me, block))
        list_free(heap, block);
    else if (whole)
        free_large(me, block);
    pthread_mutex_unlock(&heap->lock);
    return true;
}

size_t tsr__shm_held(struct endpoint *endpoint)
{
    struct shm_heap *heap = &((struct shm *)endpoint)->heap;
    pthread_mutex_lock(&heap->lock);
    size_t n = heap->small + heap->large - heap->given;
    pthread_mutex_unlock(&heap->lock);
    return n;
}
