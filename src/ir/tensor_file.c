// SPDX-License-Identifier: Apache-2.0
// tensor_file.c - a file that holds one TensorProto (ONNX test data), read as the one initializer of a model.
//
// The tensor's bytes get the two small heads in front that make them a model: field 7 (graph), in it field 5
// (initializer). So everything that is checked and converted for initializers holds here too.
#include "ir/ir.h"

#define MAX_TENSOR_FILE ((size_t)1 << 40)
#define FIELD_GRAPH     (7 << 3 | 2)
#define FIELD_TENSOR    (5 << 3 | 2)

static size_t put_head(unsigned char *out, int field, uint64_t length)
{
    size_t n = 0;
    out[n++] = (unsigned char)field;
    for (; length > 127; length >>= 7)
        out[n++] = (unsigned char)(length | 128);
    out[n++] = (unsigned char)length;
    return n;
}

tsr_status tsr__tensor_load(tsr_session *s, struct arena *a, const char *path, tsr_model **holder,
                            const tsr_tensor **out)
{
    struct mapped map;
    unsigned char inner[16], outer[16];
    tsr_status st = tsr__file_map(s, path, &map);
    if (st != TSR_OK)
        return st;
    size_t n_inner = put_head(inner, FIELD_TENSOR, map.bytes.n);
    size_t n_outer = put_head(outer, FIELD_GRAPH, n_inner + map.bytes.n);
    size_t total = n_outer + n_inner + map.bytes.n;
    char *bytes = map.bytes.n < MAX_TENSOR_FILE ? arena_get(a, total, 8) : NULL;
    if (bytes) {
        memcpy(bytes, outer, n_outer);
        memcpy(bytes + n_outer, inner, n_inner);
        if (map.bytes.n)
            memcpy(bytes + n_outer + n_inner, map.bytes.p, map.bytes.n);
    }
    tsr__file_unmap(&map);
    tsr_model *m = NULL;
    st = bytes ? tsr_model_load_bytes(s, bytes, total, &m) : TSR_NOMEM;
    if (st != TSR_OK)
        return st;
    const tsr_graph *g = tsr_model_graph(m);
    const tsr_tensor *t = NULL;
    if (g && tsr_graph_initializer_count(g) == 1)
        t = tsr_value_initializer(tsr_graph_initializer(g, 0));
    if (t) {
        *holder = m;
        *out = t;
        return TSR_OK;
    }
    struct place at = PLACE_NONE;
    at.file = str_of(path);
    tsr__diag(s, DIAG_tensor_file, &at, NULL, "this file does not hold one tensor");
    tsr_model_free(m);
    return TSR_MALFORMED;
}
