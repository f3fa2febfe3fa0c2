// SPDX-License-Identifier: Apache-2.0
// arena.c - memory: the session's allocator with its accounting, and arenas.
//
// Arena blocks grow with the contents of the arena, from 64 KiB to 4 MiB. A large request gets a
// block of its own, which is linked after the newest block. So the free rest of the newest block
// stays in use.
//
//     Example: an arena that holds 100 KiB allocates its next block with 128 KiB. A request of 10
//     KiB that does not fit into the newest block opens such a block. A request of 40 KiB, more
//     than a quarter of 128 KiB, gets a block of just its size. The next 10 bytes still come from
//     the newest block.
#include "base/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BLOCK_MIN   ((size_t)64 << 10)
#define BLOCK_MAX   ((size_t)4 << 20)
#define PAGE_MAX    ((size_t)64 << 10)   // the largest base page size of any kernel
#define BLOCK_ALIGN (2 * sizeof(void *)) // what every malloc guarantees
#define CLEAR_MIN   ((size_t)1 << 10)    // smallest number of bytes that is cleared at a time

#if defined(__SANITIZE_ADDRESS__) || defined(TSR_TORTURE)
#define PLAIN_MALLOC 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer) ||                         \
    __has_feature(thread_sanitizer)
#define PLAIN_MALLOC 1
#endif
#endif
#ifndef PLAIN_MALLOC
#ifdef __linux__
#define PLAIN_MALLOC 0
#else
#define PLAIN_MALLOC 1 // no huge pages to ask for
#endif
#endif

// Sanitizers abort on very large sizes where malloc should return NULL.
#if SIZE_MAX > UINT32_MAX && PLAIN_MALLOC
#define LARGEST ((size_t)1 << 38)
#else
#define LARGEST ((size_t)PTRDIFF_MAX)
#endif

// ---- the default allocator ---------------------------------------------------------------------

const bool tsr__default_zeroes = !PLAIN_MALLOC;

// True if memory of this size comes from mmap instead of malloc. Freeing uses the same test.
static bool by_pages(size_t bytes)
{
    return !PLAIN_MALLOC && bytes >= PAGES_BYTES;
}

// Returns zeroed pages that start on a multiple of PAGES_BYTES. Huge pages make loading a large
// model a third faster. The pages before and after the aligned range are unmapped.
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
    madvise(p + before, want, MADV_HUGEPAGE); // only a hint
    return p + before;
}

// Frees memory of tsr__default_alloc. Rounds the size up as pages_get did.
static void default_free(void *p, size_t bytes)
{
    if (by_pages(bytes))
        munmap(p, (bytes + PAGE_MAX - 1) & ~(PAGE_MAX - 1));
    else
        free(p);
}

// Allocates, resizes or frees memory. A tsr_alloc_fn; bytes 0 frees. If the old or the new memory
// is mapped, the contents are copied.
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
    // realloc can often grow memory in place.
    if (!by_pages(bytes) && (!old || !by_pages(old_bytes)))
        return realloc(old, bytes);
    void *p = by_pages(bytes) ? pages_get(bytes) : malloc(bytes);
    if (p && old) {
        memcpy(p, old, size_min(old_bytes, bytes));
        default_free(old, old_bytes);
    }
    return p;
}

// ---- the session's accounting ------------------------------------------------------------------

// Reports that memory ran out, once until tsr_finding_clear. Allocates nothing: the list of
// diagnostics always has a free slot, and the session has a buffer for the text. The message
// distinguishes three causes: a file that needs far more memory than its size, the limit of the
// session, and the system.
void tsr__nomem(tsr_session *session, size_t bytes)
{
    char *text = session->out_of_memory_text;
    size_t size = sizeof session->out_of_memory_text;
    if (session->out_of_memory)
        return;
    session->out_of_memory = true;
    session->counts[TSR_ERROR]++;
    bool over_budget = session->memory_budget &&
                       session->memory_used + bytes > session->memory_budget &&
                       (!session->memory_limit || session->memory_budget < session->memory_limit);
    if (over_budget && bytes <= PTRDIFF_MAX)
        snprintf(text, size, "loading this file needs more than %zu MiB, far more than its size",
                 session->memory_budget >> 20);
    else if (session->memory_limit && bytes <= PTRDIFF_MAX)
        snprintf(text, size, "cannot allocate %zu bytes; the limit of the session is %zu", bytes,
                 session->memory_limit);
    else
        snprintf(text, size, "cannot allocate %zu bytes", bytes);
    session->diags.at[session->diags.n++] = (struct diag_record){
        .code = DIAG_out_of_memory,
        .severity = TSR_ERROR,
        .place = PLACE_NONE,
        .message = str_of(text),
    };
}

// Resizes memory of the session. Returns NULL with a diagnostic if the allocator fails, or if
// memory_used would exceed the lower one of memory_limit and memory_budget. The old memory then
// stays valid.
void *tsr__realloc(tsr_session *session, void *p, size_t old_bytes, size_t bytes)
{
    if (!p)
        old_bytes = 0;
    if (bytes == 0) {
        tsr__free(session, p, old_bytes);
        return NULL;
    }
    // Compare the new size with the limit minus all other memory. While the contents are copied,
    // both the old and the new memory exist; this is not counted.
    size_t others = session->memory_used - old_bytes, limit = session->memory_limit;
    if (session->memory_budget && (!limit || session->memory_budget < limit))
        limit = session->memory_budget;
    bool refused = tsr__fault(session, FAULT_ALLOC) || bytes > PTRDIFF_MAX ||
                   (limit && (others > limit || bytes > limit - others));
    void *q = refused ? NULL : session->alloc_fn(session->alloc_data, p, old_bytes, bytes);
    if (!q) {
        tsr__nomem(session, bytes);
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

// Frees memory of the session. `bytes` must be the size that was allocated, otherwise memory_used
// becomes wrong.
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

// Header of each block. It has BLOCK_ALIGN bytes, so that the memory after it is aligned as the
// block is.
struct arena_block {
    struct arena_block *next;
    size_t bytes; // including this header
};

void tsr__arena_init(struct arena *arena, tsr_session *session)
{
    *arena = (struct arena){.session = session};
}

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

// Zeroes the newest block up to `needed`, and at least doubles the zeroed part. Many arenas hold
// only a few bytes for a short time; zeroing 64 KiB in each would take longer than their use.
// arena->end is the end of the zeroed part.
static void clear_up_to(struct arena *arena, const char *needed)
{
    char *block = (char *)arena->blocks, *limit = block + arena->blocks->bytes;
    size_t least = needed > arena->end ? (size_t)(needed - arena->end) : 0;
    size_t step = size_max(least, size_max(CLEAR_MIN, (size_t)(arena->end - block)));
    step = size_min(step, (size_t)(limit - arena->end));
    memset(arena->end, 0, step);
    arena->end += step;
}

// True if the newest block has space for `bytes` bytes at `p`. Zeroes this space.
static bool has_space(struct arena *arena, const char *p, size_t bytes)
{
#ifdef TSR_TORTURE
    (void)arena, (void)p, (void)bytes;
    return false;
#else
    if (arena->failed || !arena->at) // `at` NULL: all blocks come from tsr__arena_raw
        return false;
    const char *limit = (char *)arena->blocks + arena->blocks->bytes;
    if (p > limit || bytes > (size_t)(limit - p))
        return false;
    if (p + bytes > arena->end)
        clear_up_to(arena, p + bytes);
    return true;
#endif
}

// Returns the size of the next block: the smallest power of two that is at least arena->bytes,
// limited to BLOCK_MIN .. BLOCK_MAX. So a growing arena has few blocks.
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

static char *align_up(char *p, size_t align)
{
    return p + ((size_t)(-(uintptr_t)p) & (align - 1));
}

// Allocates a block with aligned space for `bytes`, not zeroed. *own is set if the block is for
// this request alone.
static struct arena_block *block_for(struct arena *arena, size_t bytes, size_t align, bool *own)
{
    // Blocks and their headers are aligned to BLOCK_ALIGN, so only larger alignments need more.
    size_t slack = align > BLOCK_ALIGN ? align - BLOCK_ALIGN : 0;
    size_t most = SIZE_MAX - sizeof(struct arena_block) - slack;
    if (bytes > most) {
        arena->failed = true;
        tsr__nomem(arena->session, bytes);
        return NULL;
    }
    size_t need = sizeof(struct arena_block) + slack + bytes, usual = block_size(arena);
    *own = need > usual / 4;
    return block_new(arena, *own ? need : usual);
}

// Allocates zeroed memory. arena_get calls it if the zeroed part of the newest block is too small.
// A request of more than a quarter of a block gets a block of its own.
void *tsr__arena_slow(struct arena *arena, size_t bytes, size_t align)
{
    if (arena->failed)
        return NULL;
    char *p = arena->at ? align_up(arena->at, align) : NULL;
    if (has_space(arena, p, bytes)) {
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
    // A block made for one large request goes behind the newest block, which still has free memory.
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

// Allocates memory that is not zeroed, aligned as malloc does.
void *tsr__arena_raw(struct arena *arena, size_t bytes)
{
    if (arena->failed)
        return NULL;
    size_t need;
    if (__builtin_add_overflow(bytes, sizeof(struct arena_block), &need))
        need = SIZE_MAX; // too large for any allocator
    struct arena_block *block = block_new(arena, need);
    if (!block)
        return NULL;
    if (arena->blocks) { // goes after the newest, which stays in use
        block->next = arena->blocks->next;
        arena->blocks->next = block;
    } else {
        arena->blocks = block;
    }
    arena->bytes += bytes;
    return block + 1;
}

void *tsr__arena_array(struct arena *arena, size_t n, size_t size, size_t align)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        bytes = SIZE_MAX; // too large for any allocator
    return arena_get(arena, bytes, align);
}

// Copies a text to the arena, with a NUL. Returns {NULL, 0} if out of memory.
struct str tsr__arena_str(struct arena *arena, struct str text)
{
    char *p = text.n != SIZE_MAX ? arena_get(arena, text.n + 1, 1) : NULL;
    if (!p)
        return (struct str){NULL, 0};
    if (text.n)
        memcpy(p, text.p, text.n);
    return (struct str){p, text.n};
}

// Formats a text in the arena. Returns {NULL, 0} if out of memory or if the format fails.
struct str tsr__arena_printf(struct arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *p = n >= 0 ? arena_get(arena, (size_t)n + 1, 1) : NULL;
    if (p)
        vsnprintf(p, (size_t)n + 1, format, again);
    va_end(again);
    return p ? (struct str){p, (size_t)n} : (struct str){NULL, 0};
}

// Extends storage that ends where the free part of the newest block begins, without copying.
// Returns false if that is not possible.
static bool grow_in_place(struct arena *arena, const char *at, size_t old_bytes, size_t bytes)
{
#ifdef TSR_TORTURE
    (void)arena, (void)at, (void)old_bytes, (void)bytes;
    return false;
#else
    if (!at || at + old_bytes != arena->at || !has_space(arena, at + old_bytes, bytes - old_bytes))
        return false;
    arena->at += bytes - old_bytes;
    arena->bytes += bytes - old_bytes;
    return true;
#endif
}

// Enlarges the vector for one more element. Capacities are 8, 13, 20, 31, ... If the array cannot
// grow in place, the old one stays unused in the arena. All old ones together have at most twice
// the size of the current one.
bool tsr__vec_grow(struct arena *arena, void **at, size_t n, size_t *cap, size_t size)
{
    void *old, *grown;
    size_t more = *cap ? *cap + *cap / 2 + 1 : 8, bytes;
    // *at has another pointer type, so reading it through void ** would break aliasing rules.
    memcpy(&old, at, sizeof old);
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
