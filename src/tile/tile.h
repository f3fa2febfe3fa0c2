// SPDX-License-Identifier: Apache-2.0
// tile.h - index arithmetic: bounds of a cut, layouts, pieces, copying. Knows no tensors.
//
// A layout says how an index space of some rank is cut and who owns each shard: per dimension an
// ordered list of factors (size, cuts), first outermost; a loop order over all cut factors that
// numbers the shards; and a set of owners for each shard. Everything else (intervals, boxes, moves)
// is computed from it.
#ifndef TSR_TILE_H
#define TSR_TILE_H

#include "base/base.h"

#define TILE_MAX_RANK      64
#define TILE_MAX_FACTORS   16       // per dimension
#define TILE_MAX_LOOPS     64       // cut factors of a layout (20 at most: each cuts in 2 or more)
#define TILE_MAX_SHARDS    1048576  // per layout
#define TILE_MAX_INTERVALS 16777216 // of one dimension of one piece

// First index of shard j of n over size elements: floor(j * size / n). Shard j is [start(j),
// start(j + 1)).
int64_t tsr__tile_start(int64_t size, int64_t n, int64_t j);

// Parts that are not equal are runs of equal units: parts of 3 units and of 1 are {4:0,0,0,1} with the tiles of a device as
// one. Bit e is set where a part ends behind unit e - 1, so 3 and 1 are bits 3 and 4; 0: all parts are equal. (units.c)
typedef uint64_t tile_shares;
#define TILE_MAX_UNITS 62

struct tile_factor {
    int64_t size; // elements; 0: the rest of its dimension (at most one such per dimension)
    int64_t cuts; // >= 1
    tile_shares shares;
};

// A part of a cut, in units: first .. stop - 1 of `of`. Part j of n equal ones is unit j of n.
struct tile_units {
    int64_t first, stop, of;
};
struct tile_units tsr__share_units(int64_t cuts, tile_shares shares, int64_t j);
int64_t tsr__units_of(int64_t cuts, tile_shares shares); // all units
// First index of part j over size elements, and what the part has of them.
int64_t tsr__share_start(int64_t size, int64_t cuts, tile_shares shares, int64_t j);
int64_t tsr__share_size(int64_t size, int64_t cuts, tile_shares shares, int64_t j);
// Shares of n parts of so many units each, in the least units: 6 and 2 are 3 and 1. 0: they are equal, or there are more
// units than TILE_MAX_UNITS (*fits is false then).
tile_shares tsr__shares_of(const int64_t *units, int64_t n, bool *fits);

// How n members divide an axis among them: in whole units of `unit` elements, the last of which may be short. Member j has
// shares[j] of every so many; NULL: all have as many.
struct tile_division {
    int64_t unit, n;
    const int64_t *shares;
};
// Where the part of member j begins; j = n: where the last one ends. Shares must have been found good. (units.c)
int64_t tsr__division_start(const struct tile_division *division, int64_t length, int64_t j);
// There are shares for n members, none below 0, and their sum is above 0 and can be counted.
bool tsr__division_holds(const int64_t *shares, size_t n_shares, int64_t n);

struct tile_dim {
    struct tile_factor *factors; // outermost first
    int n;                       // 0 or (one factor with cuts 1): not cut
};
// Position of one cut factor in the loop order.
struct tile_loop {
    int dim, factor;
};
struct tile_layout {
    int rank;
    struct tile_dim *dims;
    struct tile_loop *loops; // cut factors (cuts > 1), outermost first
    int n_loops;
    int64_t n_shards; // product of the cuts
    int64_t *first;   // n_shards + 1 offsets into owners
    int64_t *owners;  // devices, ascending within a shard
};

// A layout that is not cut, on the given devices; of rank 0 where the rank is unknown (negative) or
// above TILE_MAX_RANK. NULL: out of memory.
struct tile_layout *tsr__layout_whole(struct arena *arena, int rank, const int64_t *devices,
                                      size_t n);
// Those cuts (copied), loops in dimension order, nobody owns anything yet. NULL: out of memory, or
// more than TILE_MAX_SHARDS shards.
struct tile_layout *tsr__layout_cut(struct arena *arena, int rank, const struct tile_dim *dims);
// Gives shards their owners: pairs in any order, sorted here; a pair that occurs twice counts once.
// False: out of memory.
struct tile_owner {
    int64_t shard, device;
};
bool tsr__layout_own(struct arena *arena, struct tile_layout *layout, struct tile_owner *pairs,
                     size_t n);
struct tile_layout *tsr__layout_copy(struct arena *arena, const struct tile_layout *layout);
// The same layout with its shards numbered in the order of the dimensions. NULL: out of memory.
struct tile_layout *tsr__layout_ordered(struct arena *arena, const struct tile_layout *layout);
bool tsr__layout_is_whole(const struct tile_layout *layout); // nothing is cut
bool tsr__layout_shared(const struct tile_layout *layout);   // some parts are not equal
// The same with equal parts, of which a device has several: parts of 3 units and 1 on devices 0 and 1 as {4:0,0,0,1}. Loops
// are in the order of the dimensions. NULL: out of memory, or more than TILE_MAX_SHARDS shards. (units.c)
struct tile_layout *tsr__layout_units(struct arena *arena, const struct tile_layout *layout);
// The other way: {4:0,0,0,1} as parts of 3 units and 1, if then every device has one shard; else the layout as it is.
// NULL: out of memory. (units.c)
const struct tile_layout *tsr__layout_runs(struct arena *arena, const struct tile_layout *layout);
// Same cuts of the same factors and the same owners for the same pieces (loop order does not
// matter).
bool tsr__layout_equal(const struct tile_layout *a, const struct tile_layout *b);
// Owners of shard k: the count, and where they stand.
size_t tsr__layout_owners(const struct tile_layout *layout, int64_t shard, const int64_t **out);
bool tsr__layout_has_device(const struct tile_layout *layout, int64_t device);
// The first shard >= from that device owns, or -1.
int64_t tsr__layout_shard_of(const struct tile_layout *layout, int64_t device, int64_t from);

// Copies of one block of devices: copy c has devices c n .. (c + 1) n - 1. (repeat.c)
struct tile_repeat {
    int64_t copies, devices; // n: of one copy
    const int64_t
        *device; // of the first copy: what the block's layout calls 0, 1 ...; NULL: the same
};
// The layout of a block in all its copies, which share dimension dim; -1: each has all of it. NULL: out of memory.
struct tile_layout *tsr__layout_repeat(struct arena *arena, const struct tile_layout *block,
                                       const struct tile_repeat *repeat, int dim);
// The other way: the layout of the first copy. NULL: it is not the same in all copies (or the arena has failed).
struct tile_layout *tsr__layout_once(struct arena *arena, const struct tile_layout *all,
                                     const struct tile_repeat *repeat, int dim);
// Coordinate of shard k in each loop (n_loops entries).
void tsr__layout_coords(const struct tile_layout *layout, int64_t shard, int64_t *coords);

// Sizes of the factors of a dimension of that many elements. They multiply to it; only where
// nothing but the first factor is cut, its last unit may be short. False: they do not fit, or a
// factor is smaller than its cuts.
bool tsr__dim_sizes(const struct tile_dim *dim, int64_t size, int64_t *sizes);
// A part of a dimension as ranges of digits, outermost first. The digits above `run` repeat it.
struct tile_digits {
    int64_t start[TILE_MAX_FACTORS], stop[TILE_MAX_FACTORS], unit[TILE_MAX_FACTORS];
    int64_t size;  // of the dimension: its last unit may be short
    int run;       // lowest digit that is not taken whole; -1: all are
    int64_t count; // of intervals
};
// The part that a choice of coordinates covers. False: sizes do not fit.
bool tsr__dim_digits(const struct tile_dim *dim, int64_t size, const int64_t *coords,
                     struct tile_digits *digits);
// Elements that two parts of one dimension share; -1: out of memory, or too many to count. (overlap.c)
int64_t tsr__digits_overlap(struct arena *arena, const struct tile_digits *x,
                            const struct tile_digits *y);
// For one dimension of given size: the intervals, ascending, that a choice of coordinates (one per
// factor of the dimension; 0 for uncut ones) covers. Returns the count, or -1 if sizes do not fit.
// With out NULL only counts.
struct tile_interval {
    int64_t start, stop;
};
int64_t tsr__dim_intervals(const struct tile_dim *dim, int64_t size, const int64_t *coords,
                           struct tile_interval *out, int64_t cap);
void tsr__digits_intervals(const struct tile_digits *digits, struct tile_interval *out,
                           int64_t cap);

// A piece: per dimension a list of intervals; its elements are their product, stored row-major.
struct tile_piece {
    int rank;
    struct {
        struct tile_interval *at;
        int64_t n, size; // intervals; sum of their lengths
    } * dims;
};
// Piece of shard k for a shape; empty where a dimension has fewer elements than shards. NULL: out of memory, or factors
// that do not make the shape's sizes.
struct tile_piece *tsr__layout_piece(struct arena *arena, const struct tile_layout *layout,
                                     const int64_t *shape, int64_t shard);
int64_t tsr__piece_elements(const struct tile_piece *piece);
// Copies the elements that both pieces have from src (stored as piece from) to dst (stored as piece
// to). Returns the number of elements copied.
int64_t tsr__piece_copy(const struct tile_piece *from, const void *src, const struct tile_piece *to,
                        void *dst, size_t elem_bytes);
// Packs into / unpacks from a contiguous message the elements that both pieces have, in row-major
// order of the intersection; both sides of a transfer compute the same order. Returns the count.
int64_t tsr__piece_pack(const struct tile_piece *mine, const void *src,
                        const struct tile_piece *theirs, void *message, size_t elem_bytes);
int64_t tsr__piece_unpack(const struct tile_piece *mine, void *dst, const struct tile_piece *theirs,
                          const void *message, size_t elem_bytes);

// All three as one: from and to are the pieces of both ends, one of which may be packed. A mover is told every stretch
// of neighbouring bytes instead, in order: addresses are handed on, not looked at (a GPU's, say).
enum tile_packed { TILE_NOT_PACKED, TILE_PACKED_FROM, TILE_PACKED_TO };
struct tile_mover {
    void (*move)(void *data, void *to, const void *from, size_t bytes);
    void *data;
};
int64_t tsr__piece_move(const struct tile_piece *from, const void *src, const struct tile_piece *to,
                        void *dst, size_t elem_bytes, enum tile_packed packed,
                        const struct tile_mover *mover);

// A layout as a list of integers, for an operator's attribute, and back (untrusted: checked). Form:
// rank, per dim [n, (size, cuts)*n], n_loops, (dim, factor)*, n_shards, per shard [n, device*n]. Cuts in unequal parts are
// their shares as a negative number (tsr__cuts_number).
int64_t tsr__cuts_number(const struct tile_factor *factor);
size_t tsr__layout_encode(const struct tile_layout *layout, int64_t *out,
                          size_t cap); // count needed
struct tile_layout *tsr__layout_decode(struct arena *arena, const int64_t *v,
                                       size_t n); // NULL: malformed

#endif
