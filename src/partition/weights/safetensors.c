// SPDX-License-Identifier: Apache-2.0
// safetensors.c - writes headers of data files that are also safetensors files (--weights
// safetensors). The tensors follow as in other data files, so rank files refer to them as external
// data.
//
// The header is 8 bytes of length, then JSON, padded with spaces: {"w": {"dtype": "F32", "shape":
// [4, 8], "data_offsets": [0, 128]}, ...}. Its maximal size is computed before constants are
// placed, so offsets never change. The format allows no gaps: alignment gaps become tensors of
// bytes, such as "pad.64" at byte 64.
#include "internal.h"

#include <stdio.h>

#define PER_ENTRY 600 // bytes for a tensor and the gap before it, without name and shape
#define PER_DIM   40
#define PER_BYTE  6 // bytes for an escaped character of a name

// Returns the name of an element type in safetensors, or NULL if the format has no such type.
static const char *type_word(tsr_dtype type)
{
    static const struct {
        tsr_dtype type;
        const char *word;
    } words[] = {{TSR_BOOL, "BOOL"},         {TSR_UINT8, "U8"},
                 {TSR_INT8, "I8"},           {TSR_UINT16, "U16"},
                 {TSR_INT16, "I16"},         {TSR_UINT32, "U32"},
                 {TSR_INT32, "I32"},         {TSR_UINT64, "U64"},
                 {TSR_INT64, "I64"},         {TSR_FLOAT16, "F16"},
                 {TSR_BFLOAT16, "BF16"},     {TSR_FLOAT, "F32"},
                 {TSR_DOUBLE, "F64"},        {TSR_FLOAT8E4M3FN, "F8_E4M3"},
                 {TSR_FLOAT8E5M2, "F8_E5M2"}};
    for (size_t i = 0; i < TSR_COUNT(words); i++)
        if (words[i].type == type)
            return words[i].word;
    return NULL; // such tensors are written as bytes
}

// Returns the size of the header of each data file. It is the same for all files, as if each file
// had every constant.
uint64_t tsr__safetensors_header_size(const struct draft *draft)
{
    uint64_t bytes = 8 + PER_ENTRY;
    for (const struct form *form = draft->consts; form; form = form->next_const)
        bytes += PER_ENTRY + PER_DIM * (uint64_t)(form->item->rank > 0 ? form->item->rank : 0) +
                 PER_BYTE * (uint64_t)form->item->name.n;
    return (bytes + LARGE_ALIGN - 1) / LARGE_ALIGN * LARGE_ALIGN;
}

// ---- the entries of one file -------------------------------------------------------------------

// A header while it is being built.
struct header {
    struct draft *draft;
    tsr_json *json;
    int64_t rank; // rank of the file; n_ranks: the common file
    uint64_t end; // end of the last entry, from the start of the data
};

static void add_entry(struct header *header, const char *name, const char *type,
                      const int64_t *dims, size_t rank, uint64_t bytes)
{
    int64_t offsets[2] = {(int64_t)header->end, (int64_t)(header->end + bytes)};
    tsr_json_begin(header->json, name, '{');
    tsr_json_string(header->json, "dtype", type);
    tsr_json_ints(header->json, "shape", dims, rank);
    tsr_json_ints(header->json, "data_offsets", offsets, 2);
    tsr_json_end(header->json);
    header->end += bytes;
}

static void add_gap(struct header *header, uint64_t start)
{
    char name[40];
    int64_t bytes = (int64_t)(start - header->end);
    if (bytes == 0)
        return;
    snprintf(name, sizeof name, "pad.%llu", (unsigned long long)header->end);
    add_entry(header, name, "U8", &bytes, 1, (uint64_t)bytes);
}

// Returns the rank whose part of the constant is in this file; -1: none.
static int64_t owner_in(const struct header *header, const struct form *form)
{
    bool common = header->rank == header->draft->n_ranks;
    if (!common)
        return form->stored[header->rank] && !form->common ? header->rank : -1;
    for (int64_t rank = 0; form->common && rank < header->draft->n_ranks; rank++)
        if (form->stored[rank])
            return rank;
    return -1;
}

// Adds the entry of a constant, if it is in this file. Offsets in the header count from the end of
// the header, form->offset from the start of the file.
static tsr_status add_form(struct header *header, const struct form *form)
{
    int64_t rank = owner_in(header, form), dims[TILE_MAX_RANK];
    if (rank < 0)
        return TSR_OK;
    const struct tile_piece *piece = tsr__const_piece(header->draft, form, rank);
    if (!piece)
        return TSR_NOMEM;
    const struct item *it = form->item;
    for (int axis = 0; axis < it->rank; axis++)
        dims[axis] = piece->dims[axis].size;
    int64_t bytes = tsr_dtype_bytes(it->dtype, tsr__piece_elements(piece));
    uint64_t at = form->offset[form->common ? 0 : rank] - header->draft->safetensors;
    const char *type = type_word(it->dtype);
    add_gap(header, at);
    if (type)
        add_entry(header, tsr_value_name(form->local[rank]), type, dims, (size_t)it->rank,
                  (uint64_t)bytes);
    else
        add_entry(header, tsr_value_name(form->local[rank]), "U8", &bytes, 1, (uint64_t)bytes);
    return TSR_OK;
}

static tsr_status add_forms(struct header *header)
{
    tsr_json_begin(header->json, NULL, '{');
    tsr_json_begin(header->json, "__metadata__", '{');
    tsr_json_string(header->json, "generator", "tessera");
    tsr_json_end(header->json);
    for (const struct form *form = header->draft->consts; form; form = form->next_const)
        TRY(add_form(header, form));
    tsr_json_end(header->json);
    return TSR_OK;
}

// Completes the header: the length, the text, and spaces up to the computed size.
static tsr_status pad_header(struct draft *draft, const char *text, unsigned char **out)
{
    uint64_t room = draft->safetensors, length = room - 8, n = strlen(text);
    if (n > length)
        return TSR_BUG; // PER_ENTRY and PER_BYTE are too small
    unsigned char *bytes = ARENA_ARRAY(draft->arena, unsigned char, (size_t)room);
    if (!bytes)
        return TSR_NOMEM;
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(length >> (8 * i));
    memset(bytes + 8, ' ', (size_t)length);
    memcpy(bytes + 8, text, (size_t)n);
    *out = bytes;
    return TSR_OK;
}

tsr_status tsr__safetensors_header(struct draft *draft, int64_t rank, unsigned char **out)
{
    struct header header = {.draft = draft, .json = tsr_json_new(draft->session), .rank = rank};
    if (!header.json)
        return TSR_NOMEM;
    tsr_status st = add_forms(&header);
    const char *text = st == TSR_OK ? tsr_json_text(header.json) : NULL;
    if (st == TSR_OK)
        st = text ? pad_header(draft, text, out) : TSR_NOMEM;
    tsr_json_free(header.json);
    return st;
}
