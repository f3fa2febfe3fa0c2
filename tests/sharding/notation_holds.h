// SPDX-License-Identifier: Apache-2.0
// notation_holds.h - a property of the notation of shardings, for the tests and for fuzz/layout.c:
// bytes are rejected with a reason and a position inside them, or they are accepted and the printed
// layout parses to the same layout.
#ifndef TSR_TEST_NOTATION_HOLDS_H
#define TSR_TEST_NOTATION_HOLDS_H

#include "sharding/sharding.h"

#define HOLDS_MAX 4096 // limit of shards and owners for comparing print and parse

// Parses the bytes for an unknown rank and for ranks 0 to 3, prints each layout and
// parses it again. Returns false if a layout or its text changes, or if an error has no reason or
// position. Skips layouts with more than HOLDS_MAX shards or owners.
static inline bool notation_holds(tsr_session *session, const void *bytes, size_t n)
{
    struct notation_error wrong = {0};
    struct tile_layout *tile_layout = NULL, *again = NULL;
    struct str text = {bytes, n};
    bool holds = true;
    struct arena arena = {.session = session};
    for (int rank = -1; rank < 4 && holds; rank++) {
        tsr_status status =
            tsr__notation_parse(&arena, text, rank, NULL, &tile_layout, NULL, &wrong);
        if (status != TSR_OK)
            holds = wrong.what && wrong.at <= n;
        if (status == TSR_MALFORMED)
            break; // malformed for every rank
        if (status != TSR_OK)
            continue;
        if (tile_layout->n_shards > HOLDS_MAX ||
            tile_layout->first[tile_layout->n_shards] > HOLDS_MAX)
            break;
        struct str canon = tsr__notation_print(&arena, tile_layout);
        holds = tsr__notation_parse(&arena, canon, tile_layout->rank, NULL, &again, NULL, &wrong) ==
                    TSR_OK &&
                tsr__layout_equal(tile_layout, again) &&
                str_eq(canon, tsr__notation_print(&arena, again));
        holds |= arena.failed;
    }
    tsr__arena_free(&arena);
    return holds;
}

#endif
