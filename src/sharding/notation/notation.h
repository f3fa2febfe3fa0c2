// SPDX-License-Identifier: Apache-2.0
// notation.h - private to the notation: the parser that its two forms (tilings in notation.c,
// meshes in notation_mesh.c) share, and the words that both are made of.
#ifndef TSR_SHARDING_NOTATION_H
#define TSR_SHARDING_NOTATION_H

#include "sharding/sharding.h"

struct parser {
    struct arena *arena;
    struct str text;
    size_t at;
    const struct notation_ask *ask;
    int suppressed;
    struct notation_error *wrong;
    tsr_status status; // of the first thing that is wrong

    struct tile_dim dims[TILE_MAX_RANK];
    size_t dim_at[TILE_MAX_RANK]; // byte where the entry begins
    int n_dims;
    int dots; // entries before "..."; -1: it is not written
    VEC(struct tile_owner) pairs;
};

// ---- notation_words.c

// Notes the first thing that is wrong, at that byte; always false.
bool tsr__parser_fail(struct parser *parser, tsr_status status, size_t at, const char *what);
bool tsr__parser_malformed(struct parser *parser,
                           const char *what); // at the place that was reached
#define PARSER_INVALID(reader, at, ...)                                                            \
    tsr__parser_fail(reader, TSR_INVALID, at, tsr__arena_printf((reader)->arena, __VA_ARGS__).p)

// The next character that is no blank (0: the end), and whether it is that one, which is then
// passed.
char tsr__parser_peek(struct parser *parser);
bool tsr__parser_accept(struct parser *parser, char c);
// A number without sign; `expected` describes it for the error.
bool tsr__parser_number(struct parser *parser, const char *expected, int64_t *out);
// A device, or -1 for none.
bool tsr__parser_device(struct parser *parser, int64_t *out);
// Passes "..." if it stands here: *found. False: it is written wrongly or twice.
bool tsr__parser_dots(struct parser *parser, bool *found);
// Notes that the device has the shard.
bool tsr__parser_own(struct parser *parser, int64_t shard, int64_t device);

// ---- notation_mesh.c

bool tsr__parser_mesh(struct parser *parser);

#endif
