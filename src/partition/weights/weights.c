// SPDX-License-Identifier: Apache-2.0
// weights.c - decides where constants are stored. Small ones are in the rank file. Unsharded ones
// that several ranks use are stored once, in the common file. Others are in the data file of their
// rank. Offsets are assigned before anything is written (weights_write.c).
//
// Examples:
//     W1 [1024,1024] float, {1,2} on ranks 0 and 1   2 MiB in each rank's file, aligned to 4096
//     emb [8,512] float, on both ranks               16 KiB in common.data, aligned to 64
//     bias [64] float, on both ranks                 256 bytes inside both rank files
//     a shape [4] of int64                           inside: engines need it when they load
#include "internal.h"

#define INLINE_BYTES 1024 // constants up to this size stay in the rank file
#define LARGE_BYTES  (64u << 10)
#define SMALL_ALIGN  64
// integer vectors up to this size may be shapes, which engines need inside the rank file
#define INLINE_VECTOR (64 << 10)

static bool stays_inside(const struct item *it, int64_t bytes)
{
    bool integers = it->dtype == TSR_INT64 || it->dtype == TSR_INT32;
    return bytes <= INLINE_BYTES || (integers && it->rank <= 1 && bytes <= INLINE_VECTOR);
}

// Returns the alignment of a constant of this size. Large ones are aligned to pages, because
// engines map them into memory.
static uint64_t align_of(uint64_t bytes)
{
    return bytes >= LARGE_BYTES ? LARGE_ALIGN : SMALL_ALIGN;
}

// Returns the offset of a new constant in a file that ends at *end, and updates *end. The first
// constant follows the safetensors header, if there is one. With such a header the alignment is
// small, because every gap needs an entry in it.
static uint64_t reserve(const struct draft *draft, uint64_t *end, uint64_t bytes)
{
    uint64_t align = draft->safetensors ? SMALL_ALIGN : align_of(bytes);
    uint64_t first = *end ? *end : draft->safetensors;
    uint64_t at = (first + align - 1) / align * align;
    *end = at + bytes;
    return at;
}

const char *tsr__weights_file(const struct draft *draft, int64_t rank)
{
    const char *ending = draft->as_safetensors ? "safetensors" : "data";
    if (rank == draft->n_ranks)
        return draft->as_safetensors ? MANIFEST_COMMON_SAFE : MANIFEST_COMMON;
    return tsr__arena_printf(draft->arena, "rank%lld.%s", (long long)rank, ending).p;
}

// Copies elements of any number of bits, packed with the lowest bits first.
static void copy_bits(struct runs *runs, const unsigned char *whole, int bits, unsigned char *out)
{
    uint64_t to = 0;
    for (; !runs->done; tsr__runs_next(runs))
        for (uint64_t e = (uint64_t)runs->start * (uint64_t)bits;
             e < (uint64_t)runs->stop * (uint64_t)bits; e++, to++)
            if (whole[e / 8] >> (e % 8) & 1)
                out[to / 8] |= (unsigned char)(1u << (to % 8));
}

static void copy_piece(struct runs *runs, const unsigned char *whole, int bits, unsigned char *out)
{
    if (bits % 8) {
        copy_bits(runs, whole, bits, out);
        return;
    }
    size_t bytes = (size_t)bits / 8;
    for (; !runs->done; tsr__runs_next(runs)) {
        size_t n = (size_t)(runs->stop - runs->start) * bytes;
        memcpy(out, whole + (size_t)runs->start * bytes, n);
        out += n;
    }
}

static tsr_status read_piece(const struct item *it, const struct tile_piece *piece,
                             unsigned char *out)
{
    const void *whole;
    size_t n;
    TRY(tsr_tensor_data(tsr_value_initializer(it->value), &whole, &n));
    struct runs runs;
    tsr__runs_begin(&runs, piece, it->shape);
    copy_piece(&runs, whole, tsr_dtype_bits(it->dtype), out);
    return TSR_OK;
}

// Adds the rank's part of a constant to the rank file itself. Returns an error if the data of the
// constant cannot be read. A dry run only counts bytes: zeros stand for data in another file, which
// may be missing.
static tsr_status add_to_rank_file(struct part *part, struct form *form,
                                   const struct tile_piece *piece, const int64_t *dims,
                                   int64_t bytes, struct str name)
{
    struct item *it = form->item;
    tsr_value **local = &form->local[part->rank];
    bool unread = part->draft->dry_run && tsr_tensor_is_external(tsr_value_initializer(it->value));
    if (!unread && tsr__layout_is_whole(form->layout))
        return tsr__graph_copy_initializer(part->graph, it->value, name.p, local);
    unsigned char *copy = ARENA_ARRAY(part->draft->arena, unsigned char, (size_t)bytes + 1);
    if (!copy)
        return TSR_NOMEM;
    if (!unread)
        TRY(read_piece(it, piece, copy));
    *local = tsr_graph_add_initializer(part->graph, name.p, it->dtype, it->rank, dims, copy,
                                       (size_t)bytes);
    return status_of_alloc(*local);
}

// Adds the rank's part of a constant as a reference to a data file, which is written later. The
// offset in the common file is already assigned.
static tsr_status add_reference(struct part *part, struct form *form, const int64_t *dims,
                                int64_t bytes, struct str name)
{
    struct item *it = form->item;
    const struct draft *draft = part->draft;
    const char *file = tsr__weights_file(draft, form->common ? draft->n_ranks : part->rank);
    uint64_t at = form->offset[0];
    if (!form->common)
        at = form->offset[part->rank] = reserve(draft, &part->data_bytes, (uint64_t)bytes);
    form->stored[part->rank] = 1;
    part->uses_common |= form->common;
    if (!file)
        return TSR_NOMEM;
    form->local[part->rank] = tsr__graph_add_external(part->graph, name.p, it->dtype, it->rank,
                                                      dims, file, at, (uint64_t)bytes);
    return status_of_alloc(form->local[part->rank]);
}

// Adds a constant without a fixed element size, such as strings, to the rank file.
static tsr_status place_unsized(struct part *part, struct form *form)
{
    struct str name = tsr__form_name(part, form);
    int64_t n = tsr_tensor_elements(tsr_value_initializer(form->item->value));
    if (n > 0)
        part->weights += n;
    if (!name.p)
        return TSR_NOMEM;
    return tsr__graph_copy_initializer(part->graph, form->item->value, name.p,
                                       &form->local[part->rank]);
}

static tsr_status refuse_size(struct part *part, const struct form *form)
{
    struct place at = tsr__place_value(form->item->value);
    at.file = str_of(tsr_model_path(part->draft->model));
    return tsr__fail(part->draft->session, TSR_INVALID, DIAG_tensor_size, &at,
                     "export the model again", "the number of elements of this constant overflows");
}

static tsr_status place_on(struct part *part, struct form *form)
{
    struct item *it = form->item;
    if (!it->fixed || tsr_dtype_bits(it->dtype) == 0)
        return place_unsized(part, form);
    struct tile_piece *piece = tsr__const_piece(part->draft, form, part->rank);
    if (!piece)
        return TSR_NOMEM;
    int64_t elements = tsr__piece_elements(piece), bytes = -1, dims[TILE_MAX_RANK];
    if (elements >= 0)
        bytes = tsr_dtype_bytes(it->dtype, elements);
    if (bytes < 0)
        return refuse_size(part, form);
    for (int axis = 0; axis < it->rank; axis++)
        dims[axis] = piece->dims[axis].size;
    struct str name = tsr__form_name(part, form);
    if (!name.p)
        return TSR_NOMEM;
    // a callback needs no data, and the file with the data may be missing
    bool absent = part->draft->visitor && tsr_tensor_is_external(tsr_value_initializer(it->value));
    part->weights += elements;
    part->weight_bytes += bytes;
    if (stays_inside(it, bytes) && !absent)
        return add_to_rank_file(part, form, piece, dims, bytes, name);
    return add_reference(part, form, dims, bytes, name);
}

// Places constants in creation order, so that the same model gives the same files.
tsr_status tsr__weights_place(struct draft *draft, struct part *parts)
{
    if (draft->as_safetensors)
        draft->safetensors = tsr__safetensors_header_size(draft);
    for (struct form *form = draft->consts; form; form = form->next_const) {
        int64_t users = 0;
        for (int64_t rank = 0; rank < draft->n_ranks; rank++)
            users += form->live[rank];
        int64_t bytes = tsr_tensor_bytes(tsr_value_initializer(form->item->value));
        form->common = users > 1 && tsr__layout_is_whole(form->layout);
        if (form->common && form->item->fixed && bytes > 0 && !stays_inside(form->item, bytes))
            form->offset[0] = reserve(draft, &draft->common_bytes, (uint64_t)bytes);
        for (int64_t rank = 0; rank < draft->n_ranks; rank++) {
            if (!form->live[rank])
                continue;
            TRY(place_on(&parts[rank], form));
        }
    }
    return TSR_OK;
}

// ---- weights passed to sessions by name ---------------------------------------------------------

static bool is_kept(void *kept, tsr_node *node, size_t input)
{
    *(bool *)kept = tsr__rule_keeps_input(node, input);
    return *(bool *)kept;
}

// True if the runtime may pass the constant to the engine by name. It must be in the common file,
// and the optimizer of ONNX Runtime must leave it unchanged (tsr__rule_keeps_input).
static bool may_pass_by_name(const struct part *part, const struct form *form)
{
    const tsr_value *local = form->local[part->rank];
    bool kept = form->common && form->stored[part->rank] && local && !tsr_value_is_output(local) &&
                !strchr(tsr_value_name(local), '\n');
    if (kept)
        tsr_value_uses(local, is_kept, &kept);
    return kept;
}

// Writes the names of the constants of may_pass_by_name to the metadata, one per line: "w\nemb\n".
tsr_status tsr__weights_name_shared(struct part *part)
{
    size_t bytes = 0, at = 0;
    for (const struct form *form = part->draft->consts; form; form = form->next_const)
        if (may_pass_by_name(part, form))
            bytes += strlen(tsr_value_name(form->local[part->rank])) + 1;
    if (bytes == 0)
        return TSR_OK;
    char *lines = arena_get(part->draft->arena, bytes + 1, 1);
    if (!lines)
        return TSR_NOMEM;
    for (const struct form *form = part->draft->consts; form; form = form->next_const) {
        if (!may_pass_by_name(part, form))
            continue;
        const char *name = tsr_value_name(form->local[part->rank]);
        size_t length = strlen(name);
        memcpy(lines + at, name, length);
        lines[at + length] = '\n';
        at += length + 1;
    }
    lines[at] = 0;
    return tsr_model_set_metadata(part->model, "ai.tessera.shared", lines);
}
