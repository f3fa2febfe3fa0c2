// SPDX-License-Identifier: Apache-2.0
// tile.h - index arithmetic: shard bounds, layouts, pieces, copying. Does not depend on models.
//
// A layout describes how an index space is sharded and which devices own each shard. Each dimension
// has an ordered list of factors (size, cuts), outermost first. Nested loops over all sharded
// factors number the shards, and each shard has a set of owners. Intervals, pieces and transfers
// are computed from a layout.
#ifndef TSR_TILE_H
#define TSR_TILE_H

#include "base/base.h"

#define TILE_MAX_RANK      64
#define TILE_MAX_FACTORS   16       // limit per dimension
#define TILE_MAX_LOOPS     64       // limit of sharded factors of a layout
#define TILE_MAX_SHARDS    1048576  // limit per layout
#define TILE_MAX_INTERVALS 16777216 // limit of intervals in one dimension of one piece

// Returns the first index of shard j of n over `size` elements: floor(j * size / n). Shard j is
// [start(j), start(j + 1)). (units.c)
int64_t tsr__tile_start(int64_t size, int64_t n, int64_t j);

// How a factor is divided into unequal parts: it consists of equal units, and each part is a run of
// units. Bit e is set if a part ends after unit e - 1. 0: all parts are equal. Example: parts of 3
// units and 1 unit, in the notation {4:0,0,0,1}, are bits 3 and 4. (units.c)
typedef uint64_t tile_shares;
#define TILE_MAX_UNITS 62

struct tile_factor {
    int64_t size; // number of elements; 0: unknown (at most one factor of a dimension)
    int64_t cuts; // number of parts, at least 1
    tile_shares shares;
};

// A part of a factor in units: units first .. stop - 1 of `of`. For n equal parts, part j is unit j
// of n.
struct tile_units {
    int64_t first, stop, of;
};
struct tile_units tsr__share_units(int64_t cuts, tile_shares shares, int64_t j);
int64_t tsr__units_of(int64_t cuts, tile_shares shares); // number of units
// Return the first index of part j over `size` elements, and its number of elements.
int64_t tsr__share_start(int64_t size, int64_t cuts, tile_shares shares, int64_t j);
int64_t tsr__share_size(int64_t size, int64_t cuts, tile_shares shares, int64_t j);
// Returns the shares of n parts, given by their numbers of units, in lowest terms: 6 and 2 become 3
// and 1. Returns 0 if all parts are equal, or if there are more than TILE_MAX_UNITS units (*fits is
// then false).
tile_shares tsr__shares_of(const int64_t *units, int64_t n, bool *fits);

// How the n members of a group divide an axis: in blocks of `unit` elements, of which the last may
// be shorter. Member j gets shares[j] of the sum of the shares; NULL: equal shares. (units.c)
struct tile_division {
    int64_t unit, n;
    const int64_t *shares;
    struct tile_units part; // of the full axis, which the members divide; of 0: all of it
};
// Returns the first index of the share of member j in the part; with j = n, the end of the part.
// `length` is the size of the full axis. The shares must be valid.
int64_t tsr__division_start(const struct tile_division *division, int64_t length, int64_t j);
// True if there are n shares, none is negative, and their sum is positive and does not overflow.
bool tsr__division_holds(const int64_t *shares, size_t n_shares, int64_t n);

struct tile_dim {
    struct tile_factor *factors; // outermost first
    int n;                       // number of factors; 0: not sharded
};
// One sharded factor.
struct tile_loop {
    int dim, factor;
};
struct tile_layout {
    int rank;
    struct tile_dim *dims;
    struct tile_loop *loops; // sharded factors (cuts > 1), outermost first
    int n_loops;
    int64_t n_shards; // product of the cuts
    int64_t *first;   // n_shards + 1 offsets into owners
    int64_t *owners;  // devices, ascending within a shard
};

// Returns an unsharded layout on the given devices. Its rank is 0 if `rank` is unknown (negative)
// or above TILE_MAX_RANK. Returns NULL if out of memory.
struct tile_layout *tsr__layout_whole(struct arena *arena, int rank, const int64_t *devices,
                                      size_t n);
// Returns a layout with copies of these factors, loops in the order of the dimensions, and no
// owners yet. Returns NULL if out of memory, if there are more than TILE_MAX_SHARDS shards, or if
// the rank or a number of parts is out of range.
struct tile_layout *tsr__layout_cut(struct arena *arena, int rank, const struct tile_dim *dims);
struct tile_owner {
    int64_t shard, device;
};
// Sets the owners of the shards. The pairs may be in any order and are sorted here; duplicates are
// ignored. Returns false if out of memory.
bool tsr__layout_own(struct arena *arena, struct tile_layout *layout, struct tile_owner *pairs,
                     size_t n);
struct tile_layout *tsr__layout_copy(struct arena *arena, const struct tile_layout *layout);
// Returns the same layout with its shards numbered in the order of the dimensions, or NULL if out
// of memory.
struct tile_layout *tsr__layout_ordered(struct arena *arena, const struct tile_layout *layout);
bool tsr__layout_is_whole(const struct tile_layout *layout); // nothing is sharded
bool tsr__dim_is_sharded(const struct tile_dim *dim);
bool tsr__layout_shared(const struct tile_layout *layout); // some factor has unequal shares
// Returns the layout with equal parts only: shares of 3 units and 1 unit on devices 0 and 1 become
// {4:0,0,0,1}. Loops are in the order of the dimensions. Returns NULL if out of memory or if there
// are more than TILE_MAX_SHARDS shards. (units.c)
struct tile_layout *tsr__layout_units(struct arena *arena, const struct tile_layout *layout);
// The inverse of tsr__layout_units: {4:0,0,0,1} becomes shares of 3 units and 1 unit, if every
// device then has one shard. Otherwise returns the layout itself. Returns NULL if out of memory.
// (units.c)
const struct tile_layout *tsr__layout_runs(struct arena *arena, const struct tile_layout *layout);
// True if the same factors are sharded in the same way and the same pieces have the same owners, in
// any order of the loops.
bool tsr__layout_equal(const struct tile_layout *a, const struct tile_layout *b);
// Returns the number of owners of the shard and sets *out to them.
size_t tsr__layout_owners(const struct tile_layout *layout, int64_t shard, const int64_t **out);
// True if two shards have the same owners, which are in ascending order.
bool tsr__layout_same_owners(const struct tile_layout *layout, int64_t a, int64_t b);
bool tsr__layout_has_device(const struct tile_layout *layout, int64_t device);
// Returns the first shard >= from that the device owns, or -1.
int64_t tsr__layout_shard_of(const struct tile_layout *layout, int64_t device, int64_t from);

// Copies of a block of devices: copy c has devices c * n .. (c + 1) * n - 1. (repeat.c)
struct tile_repeat {
    int64_t copies, devices; // `devices` is n, the number of devices of one copy
    // maps devices of the block's layout to devices of the first copy; NULL: the same numbers
    const int64_t *device;
};
// Returns the layout of all copies of a block. The copies divide dimension `dim`; -1: each copy has
// the full tensor. Returns NULL if out of memory, if `dim` has unequal shares, or if there are more
// than TILE_MAX_SHARDS shards.
struct tile_layout *tsr__layout_repeat(struct arena *arena, const struct tile_layout *block,
                                       const struct tile_repeat *repeat, int dim);
// The inverse of tsr__layout_repeat: returns the layout of the first copy. Ignores repeat->device.
// Returns NULL if the copies differ, if they cannot divide `dim`, or if out of memory.
struct tile_layout *tsr__layout_once(struct arena *arena, const struct tile_layout *all,
                                     const struct tile_repeat *repeat, int dim);
// Computes the coordinate of shard k in each loop (n_loops entries).
void tsr__layout_coords(const struct tile_layout *layout, int64_t shard, int64_t *coords);
// Returns the difference between the numbers of two shards that are adjacent along the loop.
int64_t tsr__layout_stride(const struct tile_layout *layout, int loop);

// Computes the sizes of the factors of a dimension of `size` elements. Their product is `size`. If
// no factor but the first is sharded, the product may be larger: the last index of the first factor
// is then incomplete. Returns false if the factors do not match `size`. tsr__dim_sizes also returns
// false if a sharded factor has fewer elements than parts (than units, if the parts are unequal).
bool tsr__dim_factor_sizes(const struct tile_dim *dim, int64_t size, int64_t *sizes);
bool tsr__dim_sizes(const struct tile_dim *dim, int64_t size, int64_t *sizes);
// A part of a dimension. An index has one digit per factor, outermost first, and the part has a
// range of each digit; one step of digit i is unit[i] elements. The digits above `run` repeat the
// interval of digit `run` (see piece.c).
struct tile_digits {
    int64_t start[TILE_MAX_FACTORS], stop[TILE_MAX_FACTORS], unit[TILE_MAX_FACTORS];
    int64_t size;  // size of the dimension
    int run;       // lowest digit with a restricted range; -1: none
    int64_t count; // number of intervals
};
// Computes the part of a dimension at the given coordinates, one per factor. Returns false if the
// factors do not match `size` or exceed the limits.
bool tsr__dim_digits(const struct tile_dim *dim, int64_t size, const int64_t *coords,
                     struct tile_digits *digits);
// Returns the number of elements that two parts of one dimension have in common, or -1 if out of
// memory or if there are too many intervals. (overlap.c)
int64_t tsr__digits_overlap(struct arena *arena, const struct tile_digits *x,
                            const struct tile_digits *y);
struct tile_interval {
    int64_t start, stop;
};
// Computes the intervals of a dimension, ascending, at the given coordinates (0 for factors that
// are not sharded). Writes at most `cap` of them to `out`, which may be NULL. Returns their number,
// or -1 if the factors do not match `size`. tsr__digits_intervals does the same for known digits.
int64_t tsr__dim_intervals(const struct tile_dim *dim, int64_t size, const int64_t *coords,
                           struct tile_interval *out, int64_t cap);
void tsr__digits_intervals(const struct tile_digits *digits, struct tile_interval *out,
                           int64_t cap);

// A piece of a tensor: the product of a list of intervals per dimension, stored row-major.
struct tile_piece {
    int rank;
    struct {
        struct tile_interval *at;
        int64_t n, size; // number of intervals; sum of their lengths
    } * dims;
};
// Returns the piece of a shard. It may be empty if a dimension has fewer elements than shards.
// Returns NULL if out of memory, if the factors do not match the shape, if there is no such shard,
// or if a dimension has more than TILE_MAX_INTERVALS intervals.
struct tile_piece *tsr__layout_piece(struct arena *arena, const struct tile_layout *layout,
                                     const int64_t *shape, int64_t shard);
int64_t tsr__piece_elements(const struct tile_piece *piece);
// Copies the common elements from src (stored as piece `from`) to dst (stored as piece `to`).
// Returns their number.
int64_t tsr__piece_copy(const struct tile_piece *from, const void *src, const struct tile_piece *to,
                        void *dst, size_t elem_bytes);
// Pack the common elements into a contiguous message, or unpack them, in row-major order. Each side
// computes this order itself. Both return the number of elements.
int64_t tsr__piece_pack(const struct tile_piece *mine, const void *src,
                        const struct tile_piece *theirs, void *message, size_t elem_bytes);
int64_t tsr__piece_unpack(const struct tile_piece *mine, void *dst, const struct tile_piece *theirs,
                          const void *message, size_t elem_bytes);

// The general form of the three functions above: `from` and `to` are the pieces of source and
// destination, and one of the two may be packed as a message. If `mover` is not NULL, it gets every
// contiguous range in order, and addresses are not dereferenced (they may be GPU addresses).
enum tile_packed { TILE_NOT_PACKED, TILE_PACKED_FROM, TILE_PACKED_TO };
struct tile_mover {
    void (*move)(void *data, void *to, const void *from, size_t bytes);
    void *data;
};
int64_t tsr__piece_move(const struct tile_piece *from, const void *src, const struct tile_piece *to,
                        void *dst, size_t elem_bytes, enum tile_packed packed,
                        const struct tile_mover *mover);

// Rows at equal distances: row i goes from `from` + i * `from_pitch` to `to` + i * `to_pitch`.
struct tile_rows {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, rows; // bytes; number of rows
};
// As tsr__piece_move, for memory where each copy is expensive (GPUs): contiguous ranges are
// combined to rows. Stops at the first nonzero code of `move` and returns it; otherwise returns 0.
// (rows.c)
struct tile_rows_mover {
    int (*move)(void *data, const struct tile_rows *rows);
    void *data;
};
int tsr__piece_rows(const struct tile_piece *from, const void *src, const struct tile_piece *to,
                    void *dst, size_t elem_bytes, enum tile_packed packed,
                    const struct tile_rows_mover *mover);

// A layout as a list of integers, for attributes of operators: rank; per dimension the number n of
// factors and n pairs (size, cuts); n_loops and as many pairs (dim, factor); n_shards; per shard
// the number of owners and the owners. Unequal shares are encoded as negative cuts (encode.c).
// Decoding checks untrusted input.
// Encodes a layout. Returns the length of the list. Writes at most `cap` numbers, none if `out` is
// NULL.
size_t tsr__layout_encode(const struct tile_layout *layout, int64_t *out, size_t cap);
// Decodes a layout. Returns NULL if the list is malformed or if out of memory.
struct tile_layout *tsr__layout_decode(struct arena *arena, const int64_t *v, size_t n);

#endif
