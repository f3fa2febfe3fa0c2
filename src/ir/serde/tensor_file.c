// SPDX-License-Identifier: Apache-2.0
// tensor_file.c - reads files of ONNX test data: a TensorProto, or a SequenceProto or OptionalProto
// of tensors.
//
// Each tensor is read as the only initializer of a model, so all checks and conversions of
// initializers apply. For this, its bytes are prefixed with the tags and lengths of field 7 (graph)
// and, in the graph, field 5 (initializer).
#include "ir/serde/serde.h"

#define MAX_TENSOR_FILE (SIZE_MAX / 2)
#define FIELD_GRAPH     (7 << 3 | 2)
#define FIELD_TENSOR    (5 << 3 | 2)
// Fields of SequenceProto and OptionalProto.
#define F_OF_TENSOR   3
#define F_OF_SEQUENCE 5

// Writes tag and length of a field, at most 11 bytes: 2a ac 02 for field 5 with 300 bytes.
static size_t put_head(unsigned char *out, int field, uint64_t length)
{
    size_t n = 0;
    out[n++] = (unsigned char)field;
    for (; length > 127; length >>= 7)
        out[n++] = (unsigned char)(length | 128);
    out[n++] = (unsigned char)length;
    return n;
}

static tsr_status damaged(tsr_session *session, const char *path, const char *what)
{
    return tsr__fail(session, TSR_MALFORMED, DIAG_tensor_file, &PLACE(.file = str_of(path)), NULL,
                     "%s", what);
}

// Builds a model around the bytes of one tensor, which are copied to the arena. *holder may be set
// even if the file is invalid.
static tsr_status read_tensor(tsr_session *session, struct arena *arena, const char *path,
                              struct str tensor, tsr_model **holder, const tsr_tensor **out)
{
    unsigned char inner[16], outer[16];
    size_t n_inner = put_head(inner, FIELD_TENSOR, tensor.n);
    size_t n_outer = put_head(outer, FIELD_GRAPH, n_inner + tensor.n);
    size_t total = n_outer + n_inner + tensor.n;
    if (tensor.n >= MAX_TENSOR_FILE)
        return damaged(session, path, "the tensor is too large");
    char *bytes = arena_get(arena, total, 8);
    if (!bytes)
        return TSR_NOMEM;
    memcpy(bytes, outer, n_outer);
    memcpy(bytes + n_outer, inner, n_inner);
    if (tensor.n)
        memcpy(bytes + n_outer + n_inner, tensor.p, tensor.n);
    TRY(tsr_model_load_bytes(session, bytes, total, holder));
    const tsr_graph *graph = tsr_model_graph(*holder);
    if (!graph || tsr_graph_initializer_count(graph) != 1)
        return damaged(session, path, "the file does not contain a tensor");
    *out = tsr_value_initializer(tsr_graph_initializer(graph, 0));
    return TSR_OK;
}

// Returns how many fields have this number and stores the bodies of the first `cap` in `out`.
// Returns -1 if the bytes are corrupt.
static int64_t fields_of(struct str body, uint32_t number, struct str *out, size_t cap)
{
    int64_t n = 0;
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next_of(&cursor, number, &field)) {
        if ((size_t)n < cap)
            out[n] = field.bytes;
        n++;
    }
    return cursor.wrong ? -1 : n;
}

// Finds the bodies of the tensors. The caller passes `wrapped` (the result of tsr__value_wrapped),
// because the file does not contain its type.
static tsr_status bodies(tsr_session *session, struct arena *arena, const char *path,
                         struct str body, int wrapped, struct tensor_file *file, struct str **out)
{
    int64_t n = 1;
    file->sequence = wrapped == 1 || wrapped == 3;
    if (wrapped == 3) { // an optional sequence may be absent
        n = fields_of(body, F_OF_SEQUENCE, &body, 1);
        file->sequence = n == 1;
    }
    if (wrapped > 0 && n == 1)
        n = fields_of(body, F_OF_TENSOR, NULL, 0);
    if (n < 0 || (n > 1 && !file->sequence))
        return damaged(session, path,
                       "the file does not contain a sequence or optional of tensors");
    file->n = (size_t)n;
    *out = ARENA_ARRAY(arena, struct str, file->n + 1);
    file->at = ARENA_ARRAY(arena, const tsr_tensor *, file->n + 1);
    file->holders = ARENA_ARRAY(arena, tsr_model *, file->n + 1);
    if (arena->failed)
        return TSR_NOMEM;
    if (wrapped > 0)
        fields_of(body, F_OF_TENSOR, *out, file->n);
    else
        (*out)[0] = body;
    return TSR_OK;
}

tsr_status tsr__tensor_file_open(tsr_session *session, struct arena *arena, const char *path,
                                 int wrapped, struct tensor_file *out)
{
    struct mapped map;
    struct str *list = NULL;
    *out = (struct tensor_file){0};
    TRY(tsr__file_map(session, path, &map));
    tsr_status st = bodies(session, arena, path, map.bytes, wrapped, out, &list);
    for (size_t i = 0; st == TSR_OK && i < out->n; i++)
        st = read_tensor(session, arena, path, list[i], &out->holders[i], &out->at[i]);
    tsr__file_unmap(&map);
    return st;
}

// Frees the tensors. May be called after a failed open.
void tsr__tensor_file_close(struct tensor_file *file)
{
    if (!file->holders)
        return;
    for (size_t i = 0; i < file->n; i++)
        tsr_model_free(file->holders[i]);
}
