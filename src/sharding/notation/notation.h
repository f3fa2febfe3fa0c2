// SPDX-License-Identifier: Apache-2.0
// notation.h - the parser state and functions that the two forms of the notation share: tilings in
// notation.c, meshes in notation_mesh.c.
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
    tsr_status status; // status of the first error

    struct tile_dim dims[TILE_MAX_RANK];
    size_t dim_at[TILE_MAX_RANK]; // byte where the entry begins
    int n_dims;
    int dots; // number of entries before "..."; -1: it is not written
    VEC(struct tile_owner) pairs;
};

// ---- notation_words.c

// Records the first error, at that byte. Always returns false.
bool tsr__parser_fail(struct parser *parser, tsr_status status, size_t at, const char *what);
bool tsr__parser_malformed(struct parser *parser,
                           const char *what); // at the current position
#define PARSER_INVALID(reader, at, ...)                                                            \
    tsr__parser_fail(reader, TSR_INVALID, at, tsr__arena_printf((reader)->arena, __VA_ARGS__).p)

// tsr__parser_peek returns the next character that is not a blank (0: the end). If it is the given
// one, tsr__parser_accept skips it and returns true.
char tsr__parser_peek(struct parser *parser);
bool tsr__parser_accept(struct parser *parser, char c);
// Reads a number without sign. `expected` describes it for the error message.
bool tsr__parser_number(struct parser *parser, const char *expected, int64_t *out);
// Reads a device, or -1 for none.
bool tsr__parser_device(struct parser *parser, int64_t *out);
// Skips "..." if it comes next and sets *found. Returns false if it is misspelled or occurs twice.
bool tsr__parser_dots(struct parser *parser, bool *found);
// Records that the device owns the shard.
bool tsr__parser_own(struct parser *parser, int64_t shard, int64_t device);

// ---- notation_mesh.c

// Returns the shard at a position of the mesh. axes[d] lists the n_axes[d] mesh axes that shard
// dimension d. (notation_mesh.c)
int64_t tsr__mesh_shard(const struct notation_mesh *mesh, int rank,
                        const int (*axes)[NOTATION_MAX_MESH], const int *n_axes, int64_t position);
bool tsr__parser_mesh(struct parser *parser);

#endif
