// SPDX-License-Identifier: Apache-2.0
// simulate_heap.c - a best-fit heap. A block is allocated in the smallest gap that is large enough,
// and adjacent gaps are merged, as in the heap of the ranks (transport/shm/shm_heap.c).
//
//     Allocate 8, 4 and 6: [0, 8), [8, 12), [12, 18).
//     Free the first two: a gap of 12 bytes.
//     Allocate 7 and 9: [0, 7) and [18, 27). The top is 27, although only 22 bytes are in use.
#include "simulate/simulate.h"

// Returns the index of the smallest gap that is large enough, or the number of gaps if there is
// none.
static size_t best_gap(const struct sim_heap *heap, int64_t bytes)
{
    size_t best = heap->gaps.n;
    for (size_t i = 0; i < heap->gaps.n; i++) {
        int64_t size = heap->gaps.at[i].end - heap->gaps.at[i].from;
        if (size < bytes)
            continue;
        if (best == heap->gaps.n || size < heap->gaps.at[best].end - heap->gaps.at[best].from)
            best = i;
    }
    return best;
}

static void remove_gap(struct sim_heap *heap, size_t i)
{
    heap->gaps.n--;
    memmove(&heap->gaps.at[i], &heap->gaps.at[i + 1], (heap->gaps.n - i) * sizeof *heap->gaps.at);
}

// Allocates at the top of the heap. If the last gap ends at the top, the block begins in that gap,
// and the heap grows only by the difference.
static int64_t take_on_top(struct sim_heap *heap, int64_t bytes)
{
    int64_t from = heap->top;
    size_t n = heap->gaps.n;
    if (n && heap->gaps.at[n - 1].end == heap->top) {
        from = heap->gaps.at[n - 1].from;
        remove_gap(heap, n - 1);
    }
    heap->top = sum_of(from, bytes);
    return from;
}

int64_t tsr__sim_take(struct sim_heap *heap, int64_t bytes)
{
    size_t i = best_gap(heap, bytes);
    if (i == heap->gaps.n)
        return take_on_top(heap, bytes);
    int64_t from = heap->gaps.at[i].from;
    heap->gaps.at[i].from += bytes;
    if (heap->gaps.at[i].from == heap->gaps.at[i].end)
        remove_gap(heap, i);
    return from;
}

// Frees a block. Gaps are sorted by address, and adjacent gaps are merged.
void tsr__sim_give(struct arena *arena, struct sim_heap *heap, int64_t from, int64_t bytes)
{
    size_t i = 0;
    int64_t end = sum_of(from, bytes);
    while (i < heap->gaps.n && heap->gaps.at[i].end < from)
        i++;
    bool before = i < heap->gaps.n && heap->gaps.at[i].end == from;
    size_t next = before ? i + 1 : i;
    bool after = next < heap->gaps.n && heap->gaps.at[next].from == end;
    if (before && after) {
        heap->gaps.at[i].end = heap->gaps.at[next].end;
        remove_gap(heap, next);
    } else if (before) {
        heap->gaps.at[i].end = end;
    } else if (after) {
        heap->gaps.at[next].from = from;
    } else if (vec_push(arena, &heap->gaps)) {
        memmove(&heap->gaps.at[i + 1], &heap->gaps.at[i],
                (heap->gaps.n - 1 - i) * sizeof *heap->gaps.at);
        heap->gaps.at[i] = (struct sim_gap){from, end};
    }
}
