// SPDX-License-Identifier: Apache-2.0
// internal.h - declarations that the files of wire share.
#ifndef TSR_WIRE_INTERNAL_H
#define TSR_WIRE_INTERNAL_H

#include "wire/wire.h"

// Indexed by message and field number; unknown fields have no name.
extern const struct wire_row tsr__wire_rows[WIRE_MESSAGE_COUNT][WIRE_MAX_NUMBER + 1];

#define VARINT_MAX 10 // length of the longest varint that is read
#define TAG_MAX    5  // length of the longest tag that is read

static inline size_t varint_size(uint64_t v)
{
    return 1 + (size_t)(63 - __builtin_clzll(v | 1)) / 7;
}

// Writes v as a varint of up to VARINT_MAX bytes and returns the end.
static inline char *varint_put(char *p, uint64_t v)
{
    while (v >= 128) {
        *p++ = (char)(unsigned char)(v | 128);
        v >>= 7;
    }
    *p++ = (char)(unsigned char)v;
    return p;
}

#endif
