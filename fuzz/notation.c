// SPDX-License-Identifier: Apache-2.0
// notation.c - fuzzes the text form of shardings: a parsed sharding must print and parse to the
// same.
#include "fuzz.h"

// A model with one node over values of the given rank.
static tsr_model *make(tsr_session *s, int rank, tsr_node **node, tsr_value **value, tsr_config **c)
{
    tsr_model *m;
    tsr_dim dims[4] = {{12, ""}, {8, ""}, {64, ""}, {-1, "batch"}};
    MUST(tsr_model_new(s, "g", 11, &m) == TSR_OK);
    *value = tsr_graph_add_input(tsr_model_graph(m), "x");
    MUST(*value && tsr_value_set_type(*value, TSR_FLOAT, rank, dims) == TSR_OK);
    const char *out = "y";
    *node = tsr_graph_add_node(tsr_model_graph(m), "", "Relu", "relu", value, 1, &out, 1);
    MUST(*node);
    MUST(tsr_model_add_config(m, "c", 8, NULL, 0, c) == TSR_OK);
    return m;
}

// All tiles must be inside the shape.
static void tile(tsr_session *s, const char *text, int rank)
{
    static const int64_t shape[4] = {12, 7, 64, 3};
    const tsr_box *boxes;
    size_t n;
    if (tsr_tiles(s, text, rank, shape, 8, &boxes, &n) != TSR_OK)
        return;
    for (size_t i = 0; i < n; i++)
        for (int d = 0; d < rank; d++)
            MUST(boxes[i].start[d] >= 0 && boxes[i].start[d] <= boxes[i].stop[d] &&
                 boxes[i].stop[d] <= shape[d]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1 || n > 512)
        return 0;
    int rank = data[0] % 5;
    char *text = malloc(n);
    MUST(text);
    memcpy(text, data + 1, n - 1);
    text[n - 1] = 0;
    tsr_session *s = tsr_session_new(NULL);
    tsr_node *node;
    tsr_value *v;
    tsr_config *c;
    tsr_model *m = make(s, rank, &node, &v, &c);
    tile(s, text, rank);
    tsr_finding_clear(s);
    tsr_status st = tsr_node_shard_text(node, v, c, text);
    if (st == TSR_OK) {
        const char *first, *second;
        tsr_spec *p = tsr_node_sharding_of(node, v, 0);
        MUST(p && tsr_spec_text(p, &first) == TSR_OK);
        char *copy = strdup(first);
        MUST(copy && tsr_node_shard_text(node, v, c, copy) == TSR_OK);
        p = tsr_node_sharding_of(node, v, 0);
        MUST(p && !tsr_node_sharding_of(node, v, 1));
        MUST(tsr_spec_text(p, &second) == TSR_OK && strcmp(copy, second) == 0);
        free(copy);
    } else {
        MUST((st == TSR_MALFORMED || st == TSR_INVALID) && tsr_finding_count(s) >= 1);
        MUST(!tsr_node_sharding_of(node, v, 0));
    }
    tsr_model_free(m);
    tsr_session_free(s);
    free(text);
    return 0;
}
