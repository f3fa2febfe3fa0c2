// SPDX-License-Identifier: Apache-2.0
// gather.c - gathers one text of any length from every process of a job on rank 0.
//
// It is a single exchange: the lengths are sent as notes, numbers that arrive before the data, so
// that rank 0 can allocate memory first. Used for facts and traces, by all ranks of a job in the
// same order.
#include "runtime/internal.h"

#include <stdio.h>

// Argument of lengths_arrived: where rank 0 stores the texts. recv has an entry for each rank; on
// other ranks all are empty.
struct gathered {
    struct comm_buffer *recv;
    struct arena *arena;
    int ranks, self;
};

// Allocates memory for the texts, whose lengths are in the notes. Rank 0 allocates memory for all
// texts; other ranks receive nothing.
static tsr_status lengths_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                  struct comm_trouble *why)
{
    struct gathered *gathered = data;
    if (gathered->self != 0)
        return TSR_OK;
    for (int i = 0; i < gathered->ranks; i++) {
        struct comm_buffer *into = &gathered->recv[i];
        into->bytes = (size_t)notes[i][0];
        // One byte more than the text: an empty text is not NULL, and all are terminated, because
        // arenas return zeroed memory.
        into->p = arena_get(gathered->arena, into->bytes + 1, 1);
        if (into->p)
            continue;
        *why = (struct comm_trouble){.status = TSR_NOMEM, .rank = 0};
        snprintf(why->text, sizeof why->text, "rank 0 is out of memory for the data of all ranks");
        return TSR_NOMEM;
    }
    return TSR_OK;
}

// Exchanges the texts. Example: three ranks have "a", "" and "bcd"; rank 0 gets these three texts,
// the other ranks get three empty ones.
static tsr_status exchange(struct endpoint *endpoint, const struct gather_call *about,
                           struct str mine, struct gathered *gathered, struct comm_trouble *why)
{
    size_t n = (size_t)endpoint->size;
    struct comm_buffer *send = ARENA_ARRAY(gathered->arena, struct comm_buffer, n);
    int64_t *group = ARENA_ARRAY(gathered->arena, int64_t, n);
    gathered->recv = ARENA_ARRAY(gathered->arena, struct comm_buffer, n);
    if (gathered->arena->failed) { // the other ranks are about to wait for this one
        *why = (struct comm_trouble){.status = TSR_NOMEM, .rank = endpoint->rank};
        snprintf(why->text, sizeof why->text, "rank %d is out of memory", endpoint->rank);
        tsr__comm_fail(endpoint, TSR_NOMEM, why->text);
        return TSR_NOMEM;
    }
    for (int i = 0; i < endpoint->size; i++)
        group[i] = i;
    // Entries are in the order of the group, which is all ranks; only the one for rank 0 is filled.
    send[0] = (struct comm_buffer){.p = (void *)(mine.p ? mine.p : ""), .bytes = mine.n};
    struct comm_call call = {.plan = about->plan,
                             .id = -1,
                             .kind = COMM_HANDSHAKE,
                             .type = TSR_UINT8,
                             .group = group,
                             .n_group = endpoint->size,
                             .op = about->what,
                             .node = ""};
    struct comm_exchange exchange = {
        .send = send, .recv = gathered->recv, .arrived = lengths_arrived, .data = gathered};
    exchange.notes[0] = (int64_t)mine.n;
    return tsr__comm_exchange(endpoint, &call, &exchange, why);
}

tsr_status tsr__gather(tsr_session *session, struct endpoint *endpoint,
                       const struct gather_call *about, struct str mine, struct arena *arena,
                       struct str **out)
{
    struct comm_trouble why = {.rank = -1};
    struct gathered gathered = {.arena = arena, .ranks = endpoint->size, .self = endpoint->rank};
    struct str *texts = ARENA_ARRAY(arena, struct str, (size_t)endpoint->size);
    tsr_status st = exchange(endpoint, about, mine, &gathered, &why);
    if (st != TSR_OK) {
        struct place at = PLACE_NONE;
        at.rank = why.rank;
        tsr__diag(session, DIAG_rank_failed, &at, NULL,
                  "the data of all ranks (%s) could not be gathered: %s", about->what, why.text);
        return st;
    }
    for (int i = 0; i < endpoint->size; i++)
        texts[i] = (struct str){gathered.recv[i].p, gathered.recv[i].bytes};
    *out = texts;
    return TSR_OK;
}
