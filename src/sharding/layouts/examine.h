// SPDX-License-Identifier: Apache-2.0
// examine.h - one spec examined, for the checker and the reader of layouts.
#ifndef TSR_SHARDING_EXAMINE_H
#define TSR_SHARDING_EXAMINE_H

#include "sharding/sharding.h"

// Where a spec stands, and what is known there.
struct spec_scope {
    tsr_session *session;
    struct arena *arena;  // for scratch and hints
    const tsr_node *node; // NULL: not known
    const char *config;   // "" : not known
    int64_t devices;      // of the configuration; -1: not known, devices are not checked
    bool quiet;           // count errors, report nothing
    bool remarks;         // report warnings and notes too
    size_t errors;
};

// Finds everything that is wrong with the spec itself for a value of that shape (its place at the
// node is the checker's business). Work is linear but for sorting.
void tsr__spec_examine(struct spec_scope *sc, const tsr_spec *spec, const struct shape *shape);
// The shape that a value declares.
struct shape tsr__declared_shape(struct arena *arena, const tsr_value *value);
// Groups of a spec by key: index, or -1.
struct group_index {
    struct group_key {
        int64_t key;
        size_t at;
    } * keys; // ascending
    size_t n;
};
bool tsr__groups_index(struct arena *arena, const tsr_spec *spec, struct group_index *out);
int64_t tsr__groups_find(const struct group_index *index, int64_t key);

// The finding for a text that tsr__notation_parse refused (none for lack of memory); gives the
// status back. (spec_layout.c)
tsr_status tsr__notation_wrong(tsr_session *session, const struct place *at, tsr_status status,
                               struct str text, const struct notation_error *wrong);

// Axis counted from the front, or INT64_MIN where it lies outside or the rank is not known.
//     rank 3: -1 is 2, 3 and -4 are outside; rank not known: 1 is 1, -1 cannot be told
static inline int64_t front_axis(int64_t axis, int rank)
{
    if (rank < 0 && axis >= 0)
        return axis;
    if (rank < 0 || axis < -(int64_t)rank || axis >= rank)
        return INT64_MIN;
    if (axis < 0)
        return axis + rank;
    return axis;
}

// The ending of a counted word: 1 device, 2 devices.
static inline const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
