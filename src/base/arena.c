// SPDX-License-Identifier: Apache-2.0
// arena.c - memory: the session's accounting over its allocator, and arenas by lifetime.
//
// Blocks grow with what the arena holds, 64 KiB to 4 MiB; what is large for the block at hand gets
// one of its own, behind the newest, so that the rest of the newest stays in use.
//
// Example: an arena that holds 100 KiB takes its next block of 128 KiB. A request of 10 KiB that the newest
// block has no room for opens such a block; one of 40 KiB, more than a quarter of it, gets a block of just its
// size, and the next 10 bytes still come from the newest.
#include "base/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BLOCK_MIN ((size_t)64 << 10)
#define BLOCK_MAX ((size_t)4 << 20)
#define PAGE_MAX  ((size_t)64 << 10) // no kernel has larger small pages
#define CLEAR_MIN ((size_t)1 << 10)  // bytes that are cleared at a time, at least

#if defined(__SANITIZE_ADDRESS__) || defined(TSR_TORTURE)
#define PLAIN_MALLOC 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer) ||                         \
    __has_feature(thread_sanitizer)
#define PLAIN_MALLOC 1
#endif
#endif
#ifndef PLAIN_MALLOC
#define PLAIN_MALLOC 0
#endif

// Sanitizers stop at what their malloc cannot hold, where it should return NULL.
#if PLAIN_MALLOC
#define LARGEST ((size_t)1 << 38)
#else
#define LARGEST ((size_t)1 << 62)
#endif

// ---- the default allocator ---------------------------------------------------------------------

const bool tsr__default_zeroes = !PLAIN_MALLOC;

// Whether memory of that size is mapped or taken from malloc. Freeing decides again by the same
// size, so callers must give the size that they asked for.
static bool by_pages(size_t bytes)
{
    return !PLAIN_MALLOC && bytes >= PAGES_BYTES;
}

// Fresh zeroed pages that start on a multiple of PAGES_BYTES: with huge pages, loading a large
// model is a third faster. Both ends that the alignment leaves over are given back.
static void *pages_get(size_t bytes)
{
    size_t want = (bytes + PAGE_MAX - 1) & ~(PAGE_MAX - 1);
    char *p =
        mmap(NULL, want + PAGES_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t before = (size_t)(-(uintptr_t)p) & (PAGES_BYTES - 1);
    if (before)
        munmap(p, before);
    munmap(p + before + want, PAGES_BYTES - before);
    madvise(p + before, want, MADV_HUGEPAGE); // a wish; failure costs speed only
    return p + before;
}

// munmap wants the size that was mapped, rounded up as pages_get did.
static void default_free(void *p, size_t bytes)
{
    if (by_pages(bytes))
        munmap(p, (bytes + PAGE_MAX - 1) & ~(PAGE_MAX - 1));
    else
        free(p);
}

// One function for all, as tsr_alloc_fn wants it: bytes 0 frees. realloc does what malloc does from end to end; memory
// that comes from pages, or becomes such, is copied.
void *tsr__default_alloc(void *data, void *old, size_t old_bytes, size_t bytes)
{
    (void)data;
    if (bytes == 0) {
        if (old)
            default_free(old, old_bytes);
        return NULL;
    }
    if (bytes > LARGEST)
        return NULL;
    // Both sizes are malloc's: it can often grow memory where it lies.
    if (!by_pages(bytes) && (!old || !by_pages(old_bytes)))
        return realloc(old, bytes);
    void *p;
    if (by_pages(bytes))
        p = pages_get(bytes);
    else
        p = malloc(bytes);
    if (p && old) {
        memcpy(p, old, size_min(old_bytes, bytes));
        default_free(old, old_bytes);
    }
    return p;
}

// ---- the session's accounting ------------------------------------------------------------------

// memory_used is what is held at this moment, as the callers say it: they must give the size that they asked for when they
// free. The lower one of limit and budget refuses; what is refused has its finding, and the old memory stays.
void *tsr__realloc(tsr_session *session, void *p, size_t old_bytes, size_t bytes)
{
    if (!p)
        old_bytes = 0;
    if (bytes == 0) {
        tsr__free(session, p, old_bytes);
        return NULL;
    }
    // What stays held if the old memory goes: the new size is judged beside it, not beside both.
    // While it is copied both exist for a moment, which is not counted.
    size_t others = session->memory_used - old_bytes, limit = session->memory_limit;
    if (session->memory_budget && (!limit || session->memory_budget < limit))
        limit = session->memory_budget;
    bool refused = tsr__fault(session, FAULT_ALLOC) || bytes > PTRDIFF_MAX ||
                   (limit && (others > limit || bytes > limit - others));
    void *q = NULL;
    if (!refused)
        q = session->alloc_fn(session->alloc_data, p, old_bytes, bytes);
    if (!q) {
        tsr__diag_nomem(session, bytes);
        return NULL;
    }
    session->memory_used = others + bytes;
    if (session->memory_used > session->memory_peak)
        session->memory_peak = session->memory_used;
    return q;
}

void *tsr__alloc(tsr_session *session, size_t bytes)
{
    if (bytes == 0)
        bytes = 1; // 0 would free
    return tsr__realloc(session, NULL, 0, bytes);
}

// The size is the caller's knowledge; a wrong one makes memory_used wrong for good.
void tsr__free(tsr_session *session, void *p, size_t bytes)
{
    if (!p)
        return;
    if (bytes == 0)
        bytes = 1; // as tsr__alloc counted it
    session->memory_used -= bytes;
    session->alloc_fn(session->alloc_data, p, bytes, 0);
}

// ---- arenas ------------------------------------------------------------------------------------

// Stands at the beginning of each block. 16 bytes, so that what follows is aligned as malloc's
// memory is.
struct arena_block {
    struct arena_block *next;
    size_t bytes; // all of it, this head included
};

void tsr__arena_init(struct arena *arena, tsr_session *session)
{
    *arena = (struct arena){.session = session};
}

// Also of an arena that has failed: it may be used again.
void tsr__arena_free(struct arena *arena)
{
    for (struct arena_block *block = arena->blocks, *next; block; block = next) {
        next = block->next;
        tsr__free(arena->session, block, block->bytes);
    }
    tsr__arena_init(arena, arena->session);
}

static struct arena_block *block_new(struct arena *arena, size_t bytes)
{
    struct arena_block *block = tsr__alloc(arena->session, bytes);
    if (!block) {
        arena->failed = true;
        return NULL;
    }
    block->bytes = bytes;
    block->next = NULL;
    return block;
}

static bool is_fresh_pages(const struct arena *arena, size_t bytes)
{
    return arena->session->alloc_fn == tsr__default_alloc && tsr__default_zeroes &&
           bytes >= PAGES_BYTES;
}

// Clears the newest block up to `needed`, and at least as much again as is cleared already.
// Arenas hand out zeroed memory, and many hold a few bytes for a short time: clearing a block of
// 64 KiB at once would be most of their cost. arena->end is the end of the cleared part.
static void clear_up_to(struct arena *arena, const char *needed)
{
    char *block = (char *)arena->blocks, *limit = block + arena->blocks->bytes;
    size_t least = needed > arena->end ? (size_t)(needed - arena->end) : 0;
    size_t step = size_max(least, size_max(CLEAR_MIN, (size_t)(arena->end - block)));
    step = size_min(step, (size_t)(limit - arena->end));
    memset(arena->end, 0, step);
    arena->end += step;
}

// True: the newest block has `bytes` of cleared memory at `p`.
static bool has_room(struct arena *arena, const char *p, size_t bytes)
{
#ifdef TSR_TORTURE
    (void)arena, (void)p, (void)bytes;
    return false;
#else
    if (arena->failed || !arena->at) // without `at`, blocks are those of tsr__arena_raw
        return false;
    const char *limit = (char *)arena->blocks + arena->blocks->bytes;
    if (p > limit || bytes > (size_t)(limit - p))
        return false;
    if (p + bytes > arena->end)
        clear_up_to(arena, p + bytes);
    return true;
#endif
}

// Bytes of the next block: at least what the arena has handed out, so that their number grows with the logarithm.
static size_t block_size(const struct arena *arena)
{
#ifdef TSR_TORTURE
    (void)arena;
    return 0;
#else
    size_t bytes = BLOCK_MIN;
    while (bytes < BLOCK_MAX && bytes < arena->bytes)
        bytes *= 2;
    return bytes;
#endif
}

// The next address that is a multiple of align, a power of two.
static char *align_up(char *p, size_t align)
{
    return p + ((size_t)(-(uintptr_t)p) & (align - 1));
}

// A block that is not cleared, with an aligned place for `bytes`.
static struct arena_block *block_for(struct arena *arena, size_t bytes, size_t align, bool *own)
{
    // malloc's alignment is 16, and so is the head's size: only larger alignments need slack.
    size_t slack = 0;
    if (align > 16)
        slack = align - 16;
    size_t most = SIZE_MAX - sizeof(struct arena_block) - slack;
    if (bytes > most) {
        arena->failed = true;
        tsr__diag_nomem(arena->session, bytes);
        return NULL;
    }
    size_t need = sizeof(struct arena_block) + slack + bytes, usual = block_size(arena);
    *own = need > usual / 4;
    return block_new(arena, *own ? need : usual);
}

// Where the cleared part of the newest block has no room. A request of more than a quarter of a
// block gets one of its own.
void *tsr__arena_slow(struct arena *arena, size_t bytes, size_t align)
{
    if (arena->failed)
        return NULL;
    char *p = NULL;
    if (arena->at)
        p = align_up(arena->at, align);
    if (has_room(arena, p, bytes)) {
        arena->at = p + bytes;
        arena->bytes += bytes;
        return p;
    }
    bool own;
    struct arena_block *block = block_for(arena, bytes, align, &own);
    if (!block)
        return NULL;
    p = align_up((char *)(block + 1), align);
    bool zeroed = is_fresh_pages(arena, block->bytes);
    // Blocks of their own go behind the newest, whose free rest stays the arena's; the first block
    // of an arena is the newest in any case.
    if (own && arena->blocks) {
        block->next = arena->blocks->next;
        arena->blocks->next = block;
        if (!zeroed)
            memset(p, 0, bytes);
    } else {
        block->next = arena->blocks;
        arena->blocks = block;
        arena->at = p + bytes;
        arena->end = zeroed ? (char *)block + block->bytes : (char *)(block + 1);
        if (!zeroed)
            clear_up_to(arena, p + bytes);
    }
    arena->bytes += bytes;
    return p;
}

// For large buffers (a file that is read, a tensor): zeroing them would touch every page once more.
// The result is aligned to 16.
void *tsr__arena_raw(struct arena *arena, size_t bytes)
{
    if (arena->failed)
        return NULL;
    size_t need;
    if (__builtin_add_overflow(bytes, sizeof(struct arena_block), &need))
        need = SIZE_MAX; // refused, with its finding
    struct arena_block *block = tsr__alloc(arena->session, need);
    if (!block) {
        arena->failed = true;
        return NULL;
    }
    block->bytes = need;
    block->next = NULL;
    if (arena->blocks) { // behind the newest, whose rest stays in use
        block->next = arena->blocks->next;
        arena->blocks->next = block;
    } else {
        arena->blocks = block;
    }
    arena->bytes += bytes;
    return block + 1;
}

// n * size that does not fit into a size_t becomes SIZE_MAX, which no arena can give.
void *tsr__arena_array(struct arena *arena, size_t n, size_t size, size_t align)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        bytes = SIZE_MAX; // refused, with its finding
    return arena_get(arena, bytes, align);
}

// {NULL, 0} without memory; an empty text gives a pointer to its NUL, so the two can be told apart.
struct str tsr__arena_str(struct arena *arena, struct str text)
{
    char *p = NULL;
    if (text.n != SIZE_MAX)
        p = arena_get(arena, text.n + 1, 1);
    if (!p)
        return (struct str){NULL, 0};
    if (text.n)
        memcpy(p, text.p, text.n);
    return (struct str){p, text.n};
}

// Formats twice: the first time to learn the length.
// A format that fails (n < 0) reads as no memory would, without setting `failed`.
struct str tsr__arena_printf(struct arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *p = NULL;
    if (n >= 0)
        p = arena_get(arena, (size_t)n + 1, 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, format, again);
    va_end(again);
    if (p)
        return (struct str){p, (size_t)n};
    return (struct str){NULL, 0};
}

// Storage at the end of the newest block grows where it is.
// True where the vector is the last thing that was handed out and the block has room: nothing is
// copied.
static bool grow_in_place(struct arena *arena, const char *at, size_t old_bytes, size_t bytes)
{
#ifdef TSR_TORTURE
    (void)arena, (void)at, (void)old_bytes, (void)bytes;
    return false;
#else
    if (!at || at + old_bytes != arena->at || !has_room(arena, at + old_bytes, bytes - old_bytes))
        return false;
    arena->at += bytes - old_bytes;
    arena->bytes += bytes - old_bytes;
    return true;
#endif
}

// Room for 8, then half as much again and one more: 8, 13, 20, 31. What is left behind is at most twice what is kept.
bool tsr__vec_grow(struct arena *arena, void **at, size_t n, size_t *cap, size_t size)
{
    void *old, *grown;
    size_t more = 8, bytes;
    if (*cap)
        more = *cap + *cap / 2 + 1;
    // Reading it through void ** would be another type than the one that it was declared with.
    memcpy(&old, at, sizeof old); // *at is a pointer of another type
    if (__builtin_mul_overflow(more, size, &bytes))
        bytes = SIZE_MAX;
    if (bytes != SIZE_MAX && grow_in_place(arena, old, *cap * size, bytes)) {
        *cap = more;
        return true;
    }
    grown = arena_get(arena, bytes, 16);
    if (!grown)
        return false;
    if (n)
        memcpy(grown, old, n * size);
    memcpy(at, &grown, sizeof grown);
    *cap = more;
    return true;
}
