// SPDX-License-Identifier: Apache-2.0
// examine.h - checks one sharding spec, for the checker and for spec_layout.c.
#ifndef TSR_SHARDING_EXAMINE_H
#define TSR_SHARDING_EXAMINE_H

#include "sharding/sharding.h"

// Where a spec is, and how to report its errors.
struct spec_scope {
    tsr_session *session;
    struct arena *arena;  // for temporary memory and hints
    const tsr_node *node; // NULL: unknown
    const char *config;   // "": unknown
    // number of devices of the configuration; -1: unknown, only negative device numbers are errors
    int64_t devices;
    bool quiet;   // count errors, but report nothing
    bool remarks; // report warnings and notes too
    size_t errors;
};

// Reports everything that is wrong with the spec itself, for a value of that shape. Whether the
// spec fits the node is left to the checker. The work is linear, except for sorting.
void tsr__spec_examine(struct spec_scope *sc, const tsr_spec *spec, const struct shape *shape);
// Returns the shape that a value declares.
struct shape tsr__declared_shape(struct arena *arena, const tsr_value *value);
// The groups of a spec, sorted by key. tsr__groups_find returns the index of a group, or -1.
struct group_index {
    struct group_key {
        int64_t key;
        size_t at;
    } * keys; // ascending
    size_t n;
};
bool tsr__groups_index(struct arena *arena, const tsr_spec *spec, struct group_index *out);
int64_t tsr__groups_find(const struct group_index *index, int64_t key);

// Reports a text that tsr__notation_parse rejected, and returns the status. Out of memory is not
// reported. (spec_layout.c)
tsr_status tsr__notation_wrong(tsr_session *session, const struct place *at, tsr_status status,
                               struct str text, const struct notation_error *wrong);

// Returns the axis counted from the front. Returns INT64_MIN if it is out of range, or if it is
// negative and the rank is unknown (-1). Examples:
//     rank 3: -1 is 2; 3 and -4 are out of range. Rank unknown: 1 is 1; -1 cannot be converted.
static inline int64_t front_axis(int64_t axis, int rank)
{
    if (rank < 0 && axis >= 0)
        return axis;
    if (rank < 0 || axis < -(int64_t)rank || axis >= rank)
        return INT64_MIN;
    return axis < 0 ? axis + rank : axis;
}

// Returns the ending of a counted word: 1 device, 2 devices.
static inline const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
