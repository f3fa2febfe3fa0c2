// SPDX-License-Identifier: Apache-2.0
// model.c - fuzzes loading, reading, annotating, checking, cloning and saving of models from
// memory.
//
// A model that loads must save to the same bytes. After changes it must save to bytes that load
// again. Memory is limited as in SECURITY.md.
#include "fuzz.h"

static void look_at_value(const tsr_value *v)
{
    if (!v)
        return;
    MUST(strlen(tsr_value_name(v)) < SIZE_MAX);
    tsr_value_dtype(v);
    for (int axis = 0; axis < tsr_value_rank(v) && axis < 16; axis++)
        MUST(tsr_value_dim(v, axis).symbol != NULL);
    tsr_value_use_count(v);
    tsr_value_producer(v);
    const tsr_tensor *t = tsr_value_initializer(v);
    const void *bytes;
    size_t size;
    if (t) {
        tsr_tensor_elements(t);
        if (tsr_tensor_bytes(t) < 1 << 20 && tsr_tensor_data(t, &bytes, &size) == TSR_OK)
            MUST(size == 0 || bytes != NULL);
    }
}

static void look_at_attr(const tsr_attr *a)
{
    const int64_t *ints;
    size_t size;
    const void *bytes;
    MUST(tsr_attr_name(a) != NULL);
    tsr_attr_int(a, 0);
    tsr_attr_float(a, 0);
    tsr_attr_string(a, &size);
    if (tsr_attr_ints(a, &ints))
        MUST(ints != NULL);
    const tsr_tensor *t = tsr_attr_tensor(a);
    if (t && tsr_tensor_bytes(t) < 1 << 20)
        (void)!tsr_tensor_data(t, &bytes, &size);
}

static void look_at_node(const tsr_node *n)
{
    tsr_node_index(n);
    MUST(tsr_node_name(n) && tsr_node_op(n) && tsr_node_domain(n));
    for (size_t i = 0; i < tsr_node_input_count(n); i++)
        look_at_value(tsr_node_input(n, i));
    for (size_t i = 0; i < tsr_node_output_count(n); i++)
        look_at_value(tsr_node_output(n, i));
    for (size_t i = 0; i < tsr_node_attr_count(n); i++)
        look_at_attr(tsr_node_attr(n, i));
    for (size_t i = 0; i < tsr_node_config_count(n); i++) {
        const tsr_node_config *nc = tsr_node_config_at(n, i);
        for (size_t k = 0; k < tsr_node_config_spec_count(nc); k++) {
            const char *text;
            (void)!tsr_spec_text(tsr_node_config_spec(nc, k), &text);
        }
    }
}

static void look_at_graph(const tsr_graph *g)
{
    for (size_t i = 0; i < tsr_graph_input_count(g); i++)
        look_at_value(tsr_graph_input(g, i));
    for (size_t i = 0; i < tsr_graph_output_count(g); i++)
        look_at_value(tsr_graph_output(g, i));
    for (size_t i = 0; i < tsr_graph_initializer_count(g); i++)
        look_at_value(tsr_graph_initializer(g, i));
}

// The bytes must load again and save to the same bytes.
static void again(tsr_session *s, const void *bytes, size_t n)
{
    tsr_model *m;
    void *out;
    size_t size;
    MUST(tsr_model_load_bytes(s, bytes, n, &m) == TSR_OK);
    MUST(tsr_model_save_bytes(m, &out, &size) == TSR_OK);
    MUST(size == n && memcmp(out, bytes, n) == 0);
    tsr_bytes_free(s, out, size);
    tsr_model_free(m);
}

static void change(tsr_session *s, tsr_model *m, uint8_t dice)
{
    tsr_config *c = NULL;
    if (dice & 1 && tsr_model_add_config(m, "fuzz", 2, NULL, 0, &c) != TSR_OK)
        c = NULL;
    int left = 20;
    for (tsr_node *n = tsr_model_next_node(m, NULL); n && left-- > 0;
         n = tsr_model_next_node(m, n)) {
        tsr_value *v = tsr_node_input_count(n) ? tsr_node_input(n, 0) : NULL;
        if (v && c)
            (void)!tsr_node_shard(n, v, c, 0, 2, (const int64_t[]){0, 1}, 2, -1);
        if (v && dice & 2 && tsr_value_graph(v))
            (void)!tsr_value_rename(v, "renamed");
        if (dice & 4)
            (void)!tsr_node_set_int(n, "axis", dice);
        if (dice & 8)
            (void)!tsr_node_remove(n);
        if (dice & 16)
            (void)!tsr_node_inline(n);
    }
    if (dice & 32)
        (void)!tsr_model_set_metadata(m, "key", "value");
    if (dice & 64)
        (void)!tsr_model_set_opset(m, "", 18);
    void *out;
    size_t size;
    if (tsr_model_save_bytes(m, &out, &size) == TSR_OK) {
        again(s, out, size);
        tsr_bytes_free(s, out, size);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    uint8_t dice = data[0];
    data++, n--;
    tsr_session_options options = {.size = sizeof options,
                                   .memory_limit = 8 * n + ((size_t)64 << 20)};
    tsr_session *s = tsr_session_new(&options);
    tsr_model *m = NULL, *twin = NULL;
    tsr_status st = tsr_model_load_bytes(s, data, n, &m);
    MUST(st == TSR_OK || tsr_finding_count(s) == 1);
    if (st == TSR_OK) {
        void *out;
        size_t size;
        look_at_graph(tsr_model_graph(m));
        for (tsr_node *v = tsr_model_next_node(m, NULL); v; v = tsr_model_next_node(m, v))
            look_at_node(v);
        if (dice % 32 == 0) // much slower than the rest
            (void)!tsr_check(m, NULL);
        MUST(tsr_model_save_bytes(m, &out, &size) == TSR_OK);
        MUST(size == n && (n == 0 || memcmp(out, data, n) == 0));
        tsr_bytes_free(s, out, size);
        MUST(tsr_model_clone(m, &twin) == TSR_OK);
        change(s, dice & 128 ? twin : m, dice);
        for (size_t i = 0; i < tsr_finding_count(s); i++)
            MUST(tsr_finding_text(s, i) != NULL);
    }
    tsr_model_free(twin);
    tsr_model_free(m);
    tsr_session_free(s);
    return 0;
}
