// SPDX-License-Identifier: Apache-2.0
// arena.c - memory: the session's accounting over its allocator, and arenas by lifetime.
//
// Blocks grow with what the arena holds, 64 KiB to 4 MiB; what is large for the block at hand gets
// one of its own, behind the newest, so that the rest of the newest stays in use.
#include "base/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BLOCK_MIN ((size_t)64 << 10)
#define BLOCK_MAX ((size_t)4 << 20)
#define PAGE_MAX  ((size_t)64 << 10) // no kernel has larger small pages

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
#define LARGEST ((size_t)1 << (PLAIN_MALLOC ? 38 : 62))

// ---- the default allocator ---------------------------------------------------------------------

const bool tsr__default_zeroes = !PLAIN_MALLOC;

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

static void default_free(void *p, size_t bytes)
{
    if (by_pages(bytes))
        munmap(p, (bytes + PAGE_MAX - 1) & ~(PAGE_MAX - 1));
    else
        free(p);
}

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
    if (!by_pages(bytes) && (!old || !by_pages(old_bytes)))
        return realloc(old, bytes);
    void *p = by_pages(bytes) ? pages_get(bytes) : malloc(bytes);
    if (p && old) {
        memcpy(p, old, old_bytes < bytes ? old_bytes : bytes);
        default_free(old, old_bytes);
    }
    return p;
}

// ---- the session's accounting ------------------------------------------------------------------

void *tsr__realloc(tsr_session *s, void *p, size_t old_bytes, size_t bytes)
{
    if (!p)
        old_bytes = 0;
    if (bytes == 0) {
        tsr__free(s, p, old_bytes);
        return NULL;
    }
    size_t others = s->memory_used - old_bytes, limit = s->memory_limit;
    if (s->memory_budget && (!limit || s->memory_budget < limit))
        limit = s->memory_budget;
    bool refused = tsr__fault(s, FAULT_ALLOC) || bytes > PTRDIFF_MAX ||
                   (limit && (others > limit || bytes > limit - others));
    void *q = refused ? NULL : s->alloc_fn(s->alloc_data, p, old_bytes, bytes);
    if (!q) {
        tsr__diag_nomem(s, bytes);
        return NULL;
    }
    s->memory_used = others + bytes;
    if (s->memory_used > s->memory_peak)
        s->memory_peak = s->memory_used;
    return q;
}

void *tsr__alloc(tsr_session *s, size_t bytes)
{
    return tsr__realloc(s, NULL, 0, bytes ? bytes : 1);
}

void tsr__free(tsr_session *s, void *p, size_t bytes)
{
    if (!p)
        return;
    if (bytes == 0)
        bytes = 1; // as tsr__alloc counted it
    s->memory_used -= bytes;
    s->alloc_fn(s->alloc_data, p, bytes, 0);
}

// ---- arenas ------------------------------------------------------------------------------------

struct arena_block {
    struct arena_block *next;
    size_t bytes; // all of it, this head included
};

void tsr__arena_init(struct arena *a, tsr_session *s)
{
    *a = (struct arena){.session = s};
}

void tsr__arena_free(struct arena *a)
{
    for (struct arena_block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        tsr__free(a->session, b, b->bytes);
    }
    tsr__arena_init(a, a->session);
}

static struct arena_block *block_new(struct arena *a, size_t bytes)
{
    struct arena_block *b = tsr__alloc(a->session, bytes);
    if (!b) {
        a->failed = true;
        return NULL;
    }
    bool zeroed =
        a->session->alloc_fn == tsr__default_alloc && tsr__default_zeroes && bytes >= PAGES_BYTES;
    if (!zeroed)
        memset(b, 0, bytes);
    b->bytes = bytes;
    return b;
}

static size_t block_size(const struct arena *a)
{
#ifdef TSR_TORTURE
    (void)a;
    return 0;
#else
    size_t bytes = BLOCK_MIN;
    while (bytes < BLOCK_MAX && bytes < a->bytes)
        bytes *= 2;
    return bytes;
#endif
}

static char *align_up(char *p, size_t align)
{
    return p + ((size_t)(-(uintptr_t)p) & (align - 1));
}

void *tsr__arena_slow(struct arena *a, size_t bytes, size_t align)
{
    if (a->failed)
        return NULL;
    // malloc's alignment is 16, and so is the head's size: only larger alignments need slack.
    size_t slack = align > 16 ? align - 16 : 0;
    size_t most = SIZE_MAX - sizeof(struct arena_block) - slack;
    if (bytes > most) {
        a->failed = true;
        tsr__diag_nomem(a->session, bytes);
        return NULL;
    }
    size_t need = sizeof(struct arena_block) + slack + bytes, usual = block_size(a);
    bool own = need > usual / 4;
    struct arena_block *b = block_new(a, own ? need : usual);
    if (!b)
        return NULL;
    char *p = align_up((char *)(b + 1), align);
    if (own && a->blocks) {
        b->next = a->blocks->next;
        a->blocks->next = b;
    } else {
        b->next = a->blocks;
        a->blocks = b;
        a->at = p + bytes;
        a->end = (char *)b + b->bytes;
    }
    a->bytes += bytes;
    return p;
}

void *tsr__arena_raw(struct arena *a, size_t bytes)
{
    if (a->failed)
        return NULL;
    size_t need;
    if (__builtin_add_overflow(bytes, sizeof(struct arena_block), &need))
        need = SIZE_MAX; // refused, with its finding
    struct arena_block *b = tsr__alloc(a->session, need);
    if (!b) {
        a->failed = true;
        return NULL;
    }
    b->bytes = need;
    b->next = NULL;
    if (a->blocks) { // behind the newest, whose rest stays in use
        b->next = a->blocks->next;
        a->blocks->next = b;
    } else {
        a->blocks = b;
    }
    a->bytes += bytes;
    return b + 1;
}

void *tsr__arena_array(struct arena *a, size_t n, size_t size, size_t align)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        bytes = SIZE_MAX; // refused, with its finding
    return arena_get(a, bytes, align);
}

struct str tsr__arena_str(struct arena *a, struct str s)
{
    char *p = s.n == SIZE_MAX ? NULL : arena_get(a, s.n + 1, 1);
    if (!p)
        return (struct str){NULL, 0};
    if (s.n)
        memcpy(p, s.p, s.n);
    return (struct str){p, s.n};
}

struct str tsr__arena_printf(struct arena *a, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *p = n < 0 ? NULL : arena_get(a, (size_t)n + 1, 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, format, again);
    va_end(again);
    return p ? (struct str){p, (size_t)n} : (struct str){NULL, 0};
}

// Storage at the end of the newest block grows where it is.
static bool grow_in_place(struct arena *a, const char *at, size_t old_bytes, size_t bytes)
{
#ifdef TSR_TORTURE
    (void)a, (void)at, (void)old_bytes, (void)bytes;
    return false;
#else
    if (a->failed || !at || at + old_bytes != a->at || bytes - old_bytes > (size_t)(a->end - a->at))
        return false;
    a->at += bytes - old_bytes;
    a->bytes += bytes - old_bytes;
    return true;
#endif
}

bool tsr__vec_grow(struct arena *a, void **at, size_t n, size_t *cap, size_t size)
{
    void *old, *grown;
    size_t more = *cap ? *cap + *cap / 2 + 1 : 8, bytes;
    memcpy(&old, at, sizeof old); // *at is a pointer of another type
    if (__builtin_mul_overflow(more, size, &bytes))
        bytes = SIZE_MAX;
    if (bytes != SIZE_MAX && grow_in_place(a, old, *cap * size, bytes)) {
        *cap = more;
        return true;
    }
    grown = arena_get(a, bytes, 16);
    if (!grown)
        return false;
    if (n)
        memcpy(grown, old, n * size);
    memcpy(at, &grown, sizeof grown);
    *cap = more;
    return true;
}
