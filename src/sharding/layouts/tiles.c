// SPDX-License-Identifier: Apache-2.0
// tiles.c - lists the elements that each device has under a sharding, as boxes. Used by `tessera
// tiles` and by tests.
//
// Examples, in the notation of notation.c:
//     {2,1:0,1} of [5,3]: device 0 has [0,2) x [0,3), device 1 has [2,5) x [0,3)
//     {2*4/2:0,1} of [8]: device 0 has [0,2) and [4,6), two boxes; device 1 has [2,4) and [6,8)
#include "sharding/layouts/examine.h"

#include <stdlib.h>

#define TILES_MAX 1048576 // limit of boxes per call

// The boxes so far. `left` limits their number in one call.
struct boxes {
    struct arena *arena;
    VEC(tsr_box) list;
    int64_t left; // number of boxes that may still be added
};

// Adds the boxes of a piece for one device: one box for each combination of an interval of each
// dimension. Returns false if there are too many boxes or if out of memory.
static bool add_piece(struct boxes *boxes, const struct tile_piece *piece, int64_t device)
{
    int64_t at[TILE_MAX_RANK] = {0}, count = 1;
    // at[axis] is the index of the interval in each dimension; the last dimension is fastest
    for (int axis = 0; axis < piece->rank; axis++)
        if (!mul_ok(count, piece->dims[axis].n, &count) || count > boxes->left)
            return false;
    boxes->left -= count;
    for (int64_t i = 0; i < count; i++) {
        tsr_box *box = vec_push(boxes->arena, &boxes->list);
        int64_t *bounds = ARENA_ARRAY(boxes->arena, int64_t, 2 * (size_t)piece->rank + 1);
        if (!box || !bounds)
            return false;
        *box = (tsr_box){.device = device, .start = bounds, .stop = bounds + piece->rank};
        for (int axis = 0; axis < piece->rank; axis++) {
            bounds[axis] = piece->dims[axis].at[at[axis]].start;
            bounds[piece->rank + axis] = piece->dims[axis].at[at[axis]].stop;
        }
        for (int axis = piece->rank - 1; axis >= 0 && ++at[axis] == piece->dims[axis].n; axis--)
            at[axis] = 0;
    }
    return true;
}

// A shard of a device; sorted by device.
struct held {
    int64_t device, shard;
};

static int held_order(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    if (x->device != y->device)
        return int64_order(x->device, y->device);
    return int64_order(x->shard, y->shard);
}

// Adds the boxes of all shards, sorted by device and then by shard.
static tsr_status add_all(struct boxes *boxes, struct arena *scratch,
                          const struct tile_layout *layout, const int64_t *shape)
{
    size_t n = (size_t)layout->first[layout->n_shards], at = 0;
    struct held *held = ARENA_ARRAY(scratch, struct held, n + 1);
    if (!held)
        return TSR_NOMEM;
    for (int64_t k = 0; k < layout->n_shards; k++)
        for (int64_t i = layout->first[k]; i < layout->first[k + 1]; i++)
            held[at++] = (struct held){layout->owners[i], k};
    qsort(held, n, sizeof(*held), held_order);
    for (size_t i = 0; i < n; i++) {
        struct tile_piece *piece = tsr__layout_piece(scratch, layout, shape, held[i].shard);
        if (piece && add_piece(boxes, piece, held[i].device))
            continue;
        if (boxes->arena->failed || scratch->failed)
            return TSR_NOMEM;
        return tsr__fail(scratch->session, TSR_INVALID, DIAG_tiles_many, NULL,
                         "use fewer blocks or shards, or a smaller shape",
                         "the sharding has more than %d tiles", TILES_MAX);
    }
    return TSR_OK;
}

static bool shape_fits(tsr_session *session, int rank, const int64_t *shape)
{
    bool fits = rank >= 0 && rank <= TILE_MAX_RANK;
    for (int axis = 0; fits && axis < rank; axis++)
        fits = shape[axis] >= 0;
    if (!fits)
        tsr__diag(session, DIAG_sharding_misfit, NULL,
                  "use at most 64 dimensions of 0 or more elements", "the shape is invalid");
    return fits;
}

// Reports an error and returns false if the layout names a device >= `devices`. If `devices` <= 0,
// any device is allowed.
static bool devices_fit(tsr_session *session, const struct tile_layout *layout, int64_t devices)
{
    int64_t most = -1;
    for (int64_t i = 0; i < layout->first[layout->n_shards]; i++)
        most = int64_max(most, layout->owners[i]);
    if (devices <= 0 || most < devices)
        return true;
    tsr__diag(session, DIAG_shard_device, NULL, "use smaller device numbers",
              "the sharding names device %lld, but there are %lld devices", (long long)most,
              (long long)devices);
    return false;
}

// Lists the elements of each device as boxes. The session owns the boxes; the next call of this
// function frees them.
tsr_status tsr_tiles(tsr_session *session, const char *text, int rank, const int64_t *shape,
                     int64_t devices, const tsr_box **out, size_t *n)
{
    if (!shape && rank > 0)
        return tsr__missing(session, "shape");
    TRY(tsr__given(session, "out", out));
    TRY(tsr__given(session, "n", n));
    struct arena *kept = &session->results[RESULT_TILES], scratch;
    struct tile_layout *layout = NULL;
    struct notation_error wrong = {0};
    if (!shape_fits(session, rank, shape))
        return TSR_INVALID;
    tsr__arena_free(kept);
    tsr__arena_init(kept, session);
    tsr__arena_init(&scratch, session);
    struct boxes boxes = {.arena = kept, .left = TILES_MAX};
    struct notation_mesh mesh = {.sizes = {devices}, .n = 1};
    struct notation_ask ask = {.rank = rank, .sizes = shape};
    struct notation_answer answer = {0};
    if (devices > 0 && devices <= TILE_MAX_SHARDS)
        ask.mesh = &mesh;
    tsr_status status = tsr__notation_read(&scratch, str_of(text), &ask, &answer, &wrong);
    layout = answer.layout;
    if (status != TSR_OK)
        (void)tsr__notation_wrong(session, NULL, status, str_of(text), &wrong);
    else if (!devices_fit(session, layout, devices))
        status = TSR_INVALID;
    else
        status = add_all(&boxes, &scratch, layout, shape);
    tsr__arena_free(&scratch);
    if (status != TSR_OK)
        return status;
    *out = boxes.list.at;
    *n = boxes.list.n;
    return TSR_OK;
}

struct tsr_tiling {
    struct result_head head;
    const tsr_box *boxes;
    size_t n;
};

tsr_status tsr_tiling_new(tsr_session *session, const char *sharding, int rank,
                          const int64_t *shape, int64_t devices, tsr_tiling **out)
{
    const tsr_box *boxes;
    size_t n;
    if (!session)
        return TSR_INVALID;
    TRY(tsr__given(session, "out", out));
    TRY(tsr_tiles(session, sharding, rank, shape, devices, &boxes, &n));
    tsr_tiling *tiling = tsr__result_take(session, RESULT_TILES, sizeof *tiling);
    if (!tiling)
        return TSR_NOMEM;
    tiling->boxes = boxes;
    tiling->n = n;
    *out = tiling;
    return TSR_OK;
}

void tsr_tiling_free(tsr_tiling *tiling)
{
    tsr__result_free(tiling);
}

size_t tsr_tiling_count(const tsr_tiling *tiling)
{
    return tiling->n;
}

tsr_status tsr_tiling_box(const tsr_tiling *tiling, size_t i, tsr_box *out)
{
    return tsr__element_read(tiling->head.session, SIZED_LIST(tiling->boxes, tiling->n, stop), i,
                             out);
}
