// SPDX-License-Identifier: Apache-2.0
// solve_heap.c - memory of the solver, and its effort.
#include "internal.h"

#include <time.h>

struct heap_block {
    struct heap_block *next, *before;
    size_t bytes;
    size_t pad; // keeps what follows aligned
};

void tsr__heap_init(struct heap *h, tsr_session *s)
{
    *h = (struct heap){.session = s};
}

void tsr__heap_done(struct heap *h)
{
    while (h->first)
        tsr__heap_free(h, h->first + 1);
}

static void *link_block(struct heap *h, struct heap_block *b, size_t bytes)
{
    *b = (struct heap_block){.next = h->first, .bytes = bytes};
    if (h->first)
        h->first->before = b;
    h->first = b;
    h->bytes += bytes;
    return b + 1;
}

static void unlink_block(struct heap *h, struct heap_block *b)
{
    if (b->before)
        b->before->next = b->next;
    else
        h->first = b->next;
    if (b->next)
        b->next->before = b->before;
    h->bytes -= b->bytes;
}

void *tsr__heap_get(struct heap *h, size_t n, size_t size)
{
    size_t bytes;
    if (h->failed || __builtin_mul_overflow(n, size, &bytes) ||
        bytes > SIZE_MAX - sizeof(struct heap_block)) {
        h->failed = true;
        return NULL;
    }
    bytes += sizeof(struct heap_block);
    struct heap_block *b = tsr__alloc(h->session, bytes);
    if (!b) {
        h->failed = true;
        return NULL;
    }
    memset(b, 0, bytes);
    return link_block(h, b, bytes);
}

void *tsr__heap_grow(struct heap *h, void *p, size_t n, size_t size)
{
    if (!p)
        return tsr__heap_get(h, n, size);
    size_t bytes;
    if (h->failed || __builtin_mul_overflow(n, size, &bytes)) {
        h->failed = true;
        return NULL;
    }
    struct heap_block *b = (struct heap_block *)p - 1;
    size_t old = b->bytes;
    bytes += sizeof(struct heap_block);
    unlink_block(h, b);
    struct heap_block *grown = tsr__realloc(h->session, b, old, bytes);
    if (!grown) {
        link_block(h, b, old);
        h->failed = true;
        return NULL;
    }
    return link_block(h, grown, bytes);
}

void tsr__heap_free(struct heap *h, void *p)
{
    if (!p)
        return;
    struct heap_block *b = (struct heap_block *)p - 1;
    unlink_block(h, b);
    tsr__free(h->session, b, b->bytes);
}

bool tsr__list_grow(struct heap *h, void **at, uint32_t *cap, size_t size)
{
    uint32_t wanted = *cap ? *cap * 2 : 4;
    void *grown = tsr__heap_grow(h, *at, wanted, size);
    if (!grown)
        return false;
    *at = grown;
    *cap = wanted;
    return true;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double tsr__effort_elapsed(const struct effort *e)
{
    return now() - e->start;
}

bool tsr__effort_over(const struct effort *e)
{
    if (e->session && tsr__cancelled(e->session))
        return true;
    if (e->work >= e->limit || (e->slice_work && e->work >= e->slice_work))
        return true;
    if (e->seconds <= 0)
        return false;
    double elapsed = now() - e->start;
    return elapsed >= e->seconds || (e->slice_work && elapsed >= e->slice_end);
}

void tsr__effort_slice(struct effort *e, double fraction)
{
    e->slice_work = 0;
    if (fraction <= 0)
        return;
    double work = (double)e->work + fraction * (double)e->limit;
    e->slice_work = work < 1.8e19 ? (uint64_t)work + 1 : UINT64_MAX;
    e->slice_end = tsr__effort_elapsed(e) + fraction * e->seconds;
}
