// SPDX-License-Identifier: Apache-2.0
// shards.c - inputs and outputs that are sharded over the ranks: takes the shards of a full input,
// and joins the shards of an output. The manifest says which rank has which shard; sizes come from
// the tensors.
//
// Example: an output [8, 6] is sharded as {2, 1} (2 shards of axis 0, 1 of axis 1) over ranks 0 and
// 1: each rank returns [4, 6]. Joining adds 4 and 4 to 8 rows, takes 6 columns from shard 0, and
// copies both to their places in [8, 6]. Shard k of 7 rows begins at row floor(7 k / 2), so shards
// of 3 and 4 rows fit, but 4 and 3 are refused.
#include "runtime/internal.h"
#include "runtime/runtime.h"
#include "bundle/bundle.h"

// ---- sharding inputs ----------------------------------------------------------------------------

static tsr_status refuse_input(tsr_session *session, const char *name, const char *hint,
                               const char *text)
{
    return tsr__fail(session, TSR_INVALID, DIAG_input_mismatch, &PLACE(.value = str_of(name)), hint,
                     "%s", text);
}

// True if the tensor has the rank of the layout and can be sharded. Strings, sequences, and types
// smaller than a byte cannot.
static bool has_pieces(const struct tile_layout *layout, const struct tensor *tensor)
{
    return tensor->rank == layout->rank && tsr_dtype_bits(tensor->type) >= 8 && !tensor->sequence;
}

struct tile_piece *tsr__shards_full_piece(struct arena *arena, const struct tensor *tensor)
{
    struct tile_layout *layout = tsr__layout_whole(arena, tensor->rank, (int64_t[]){0}, 1);
    if (layout)
        return tsr__layout_piece(arena, layout, tensor->dims, 0);
    return NULL;
}

// Returns the first element of a piece that is one contiguous range of the full tensor, else -1.
// Example: of [1, 8, 512, 64], a shard of the second axis is contiguous; of [2, 8, 512, 64] it is
// not.
static int64_t contiguous_start(const struct tile_piece *piece, const struct tensor *full)
{
    int64_t start = 0, stride = 1;
    bool partial = false; // an axis behind this one is sharded
    for (int axis = full->rank - 1; axis >= 0; axis--) {
        if (partial && full->dims[axis] != 1)
            return -1;
        if (piece->dims[axis].size != full->dims[axis]) {
            if (piece->dims[axis].n != 1)
                return -1;
            start = piece->dims[axis].at[0].start * stride;
            partial = true;
        }
        stride *= full->dims[axis];
    }
    return start;
}

// Kernels on GPUs read several elements at once, so views begin where allocations may begin.
#define GPU_ALIGNMENT 256

bool tsr__shards_view(struct arena *arena, const struct manifest_port *port, int64_t shard,
                      const struct tensor *full, struct shard_view *out)
{
    if (!has_pieces(port->kept, full) || full->rank > RUN_MAX_RANK)
        return false;
    struct tile_piece *piece = tsr__layout_piece(arena, port->kept, full->dims, shard);
    int64_t start = piece ? contiguous_start(piece, full) : -1;
    if (start < 0)
        return false;
    size_t bytes = (size_t)tsr_dtype_bits(full->type) / 8, offset = (size_t)start * bytes;
    if (full->device && offset % GPU_ALIGNMENT != 0)
        return false;
    char *data = full->device ? full->device_data : full->data;
    out->data = data ? data + offset : NULL; // NULL: `full` has no memory yet, or no elements
    out->bytes = (size_t)tsr__piece_elements(piece) * bytes;
    out->device = full->device;
    for (int axis = 0; axis < full->rank; axis++)
        out->dims[axis] = piece->dims[axis].size;
    return true;
}

// Returns the piece of a shard. If the input is a buffer in host memory with spare capacity (struct
// used_length), the spare part is left out. A sharded axis keeps its full length. NULL: out of
// memory, or the shape does not fit.
static struct tile_piece *used_piece(struct arena *arena, const struct manifest_port *port,
                                     int64_t shard, const struct tensor *tensor,
                                     const struct gpu_inputs *gpu)
{
    int64_t dims[RUN_MAX_RANK];
    memcpy(dims, tensor->dims, (size_t)tensor->rank * sizeof *dims);
    for (size_t i = 0; i < gpu->n_used && !tensor->device; i++) {
        const struct used_length *used = &gpu->used[i];
        if (strcmp(used->input, port->name) != 0 || used->axis >= tensor->rank)
            continue;
        dims[used->axis] = used->used;
        struct tile_piece *piece = tsr__layout_piece(arena, port->kept, dims, shard);
        if (piece && piece->dims[used->axis].size == used->used)
            return piece;
    }
    return tsr__layout_piece(arena, port->kept, tensor->dims, shard);
}

// Adds the shard of an input to the pieces. Example: of [8, 6] sharded as {2, 1}, shard 1 is a view
// of rows 4..7 of the full tensor. Sharded as {1, 2} it is a copy of columns 3..5.
static tsr_status copy_shard(struct arena *arena, const struct manifest_port *port, int64_t shard,
                             const struct tensor *tensor, struct gpu_inputs *gpu,
                             tsr_tensors *pieces)
{
    int64_t dims[RUN_MAX_RANK];
    struct tensor *to;
    if (!has_pieces(port->kept, tensor) || tensor->rank > RUN_MAX_RANK)
        return refuse_input(pieces->session, port->name,
                            "give a tensor of the shape that the model declares",
                            "not a tensor that can be sharded as the partition requires");
    struct shard_view view;
    if ((!tensor->device || tsr__rank_has_on_gpu(gpu->rank, tensor)) &&
        tsr__shards_view(arena, port, shard, tensor, &view))
        return tsr__tensors_add_foreign(
            pieces, str_of(port->name), tensor->type, tensor->rank, view.dims,
            &(struct foreign){.data = view.data, .device = view.device});
    struct tile_piece *all = tsr__shards_full_piece(arena, tensor);
    struct tile_piece *piece = used_piece(arena, port, shard, tensor, gpu);
    if (arena->failed)
        return TSR_NOMEM;
    // The arena has not failed, so NULL means that the layout does not fit this shape.
    if (!all || !piece)
        return refuse_input(
            pieces->session, port->name,
            "use a larger shape (--shape for random inputs), or partition the model for "
            "fewer devices",
            "a dimension has fewer elements than shards");
    for (int axis = 0; axis < tensor->rank; axis++)
        dims[axis] = piece->dims[axis].size;
    if (tensor->device)
        return tsr__gpu_shard(gpu, &(struct gpu_shard){tensor, all, piece, dims}, pieces);
    tsr_status st =
        tsr__tensors_add(pieces, str_of(port->name), tensor->type, tensor->rank, dims, &to);
    if (st == TSR_OK)
        tsr__piece_copy(all, tensor->data, piece, to->data,
                        (size_t)tsr_dtype_bits(tensor->type) / 8);
    return st;
}

// Adds the rank's shard of an input to the pieces. Does nothing if the rank has kept a view of the
// shard, if the input is not sharded or was not given, or if the rank has no shard of it. Then
// tsr__rank_bind uses the view or the full tensor, or reports the missing input.
static tsr_status shard_input(struct arena *arena, const struct manifest_port *port, int64_t rank,
                              const tsr_tensors *full, struct gpu_inputs *gpu, tsr_tensors *pieces)
{
    const struct tile_layout *layout = port->kept;
    if (!layout || tsr__layout_is_whole(layout))
        return TSR_OK;
    int64_t at = tsr_tensors_find(full, port->name);
    if (at < 0)
        return TSR_OK;
    int64_t shard = tsr__layout_shard_of(layout, rank, 0);
    if (shard < 0 || tsr__rank_has_view(gpu->rank, full->at[at]))
        return TSR_OK;
    return copy_shard(arena, port, shard, full->at[at], gpu, pieces);
}

// Shards all inputs of a rank. pieces may be filled in part after a failure; the caller frees the
// set.
tsr_status tsr__shards_of_inputs(const struct manifest *manifest, int64_t rank,
                                 const tsr_tensors *full, struct gpu_inputs *gpu,
                                 tsr_tensors *pieces)
{
    struct arena arena = {.session = pieces->session};
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < manifest->n_inputs; i++) {
        st = shard_input(&arena, &manifest->inputs[i], rank, full, gpu, pieces);
        if (st != TSR_OK)
            break;
    }
    if (st == TSR_OK)
        st = tsr__gpu_shards_wait(gpu, pieces->session);
    tsr__arena_free(&arena);
    return st;
}

// ---- joining outputs ----------------------------------------------------------------------------

bool tsr__shards_any(const struct manifest_port *ports, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ports[i].kept)
            return true;
    return false;
}

// Returns the first owner. The reader of manifests has checked that every shard has one.
int64_t tsr__shards_giver(const struct tile_layout *layout, int64_t shard)
{
    const int64_t *owners;
    if (tsr__layout_owners(layout, shard, &owners))
        return owners[0];
    return -1;
}

bool tsr__shards_read_by_writer(const struct manifest_port *past,
                                const struct manifest_port *present)
{
    const int64_t *owners;
    if (!past || !past->kept || !present || !present->kept ||
        strcmp(past->sharding, present->sharding) != 0)
        return false;
    for (int64_t k = 0; k < present->kept->n_shards; k++)
        if (tsr__layout_owners(present->kept, k, &owners) != 1)
            return false;
    return true;
}

size_t tsr__shards_bytes(const struct manifest_port *port, int64_t n_ranks, size_t bytes)
{
    const int64_t *owners;
    size_t copies = 0;
    if (!port || !port->kept || port->kept->n_shards < 1)
        return bytes * (size_t)n_ranks;
    for (int64_t k = 0; k < port->kept->n_shards; k++)
        copies += tsr__layout_owners(port->kept, k, &owners);
    return bytes / (size_t)port->kept->n_shards * copies;
}

// Adds the size of a shard along each axis, but only for shards that are first along all other
// axes. So each part of an axis is counted once when all shards have been added.
void tsr__shards_add_sizes(const struct tile_layout *layout, int64_t shard,
                           const struct tensor *tensor, int64_t *shape)
{
    int64_t coords[TILE_MAX_LOOPS];
    tsr__layout_coords(layout, shard, coords);
    for (int axis = 0; axis < layout->rank; axis++) {
        bool first = true;
        for (int i = 0; i < layout->n_loops; i++)
            first = first && (layout->loops[i].dim == axis || coords[i] == 0);
        shape[axis] += first ? tensor->dims[axis] : 0;
    }
}

static tsr_status differ(tsr_session *session, const char *name)
{
    return tsr__fail(session, TSR_MALFORMED, DIAG_pieces_differ, &PLACE(.value = str_of(name)),
                     "partition the model again",
                     "the shards of this output that the ranks returned do not fit together");
}

bool tsr__shards_fit(const struct tile_piece *piece, const struct tensor *tensor)
{
    for (int axis = 0; axis < tensor->rank; axis++)
        if (piece->dims[axis].size != tensor->dims[axis])
            return false;
    return true;
}

// Joins the shards of an output. pieces: one per shard. The size of the full tensor is the sum of
// their sizes. Each piece must then have the size of its shard in that tensor; otherwise the join
// is refused.
static tsr_status join_pieces(struct arena *arena, const struct manifest_port *port,
                              const struct tensor *const *pieces, tsr_tensors *outputs)
{
    const struct tile_layout *layout = port->kept;
    int64_t shape[RUN_MAX_RANK] = {0};
    struct tensor *full;
    for (int64_t k = 0; k < layout->n_shards; k++) {
        if (!pieces[k] || !has_pieces(layout, pieces[k]) || layout->rank > RUN_MAX_RANK ||
            pieces[k]->type != pieces[0]->type)
            return differ(outputs->session, port->name);
        tsr__shards_add_sizes(layout, k, pieces[k], shape);
    }
    TRY(tsr__tensors_add(outputs, str_of(port->name), pieces[0]->type, layout->rank, shape, &full));
    struct tile_piece *all = tsr__shards_full_piece(arena, full);
    for (int64_t k = 0; k < layout->n_shards; k++) {
        struct tile_piece *piece = tsr__layout_piece(arena, layout, shape, k);
        if (arena->failed)
            return TSR_NOMEM;
        if (!all || !piece || !tsr__shards_fit(piece, pieces[k]))
            return differ(outputs->session, port->name);
        tsr__piece_copy(piece, pieces[k]->data, all, full->data,
                        (size_t)tsr_dtype_bits(full->type) / 8);
    }
    return TSR_OK;
}

tsr_status tsr__shards_join(const struct manifest_port *port, tsr_tensors *const *sets,
                            tsr_tensors *outputs)
{
    const struct tile_layout *layout = port->kept;
    struct arena arena = {.session = outputs->session};
    const struct tensor **pieces =
        ARENA_ARRAY(&arena, const struct tensor *, (size_t)layout->n_shards);
    if (!pieces)
        return TSR_NOMEM;
    // A missing piece is NULL, and join_pieces reports that the pieces do not fit together.
    for (int64_t k = 0; k < layout->n_shards; k++)
        pieces[k] = tsr__tensors_get(sets[tsr__shards_giver(layout, k)], port->name);
    tsr_status st = join_pieces(&arena, port, pieces, outputs);
    tsr__arena_free(&arena);
    return st;
}
