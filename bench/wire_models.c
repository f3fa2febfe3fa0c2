// SPDX-License-Identifier: Apache-2.0
// wire_models.c - models for the benchmark of reading and writing.
//
// A chain of nodes as an exporter writes it: long names, some attributes, a shape for every value,
// small constants; plain or with an annotation on every node. And one node with 1.5 GiB of weights.
#include "wire_models.h"
#include "wire/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void put_text(struct rope *r, uint32_t number, const char *format, int i)
{
    char text[128];
    int n = snprintf(text, sizeof text, format, i);
    tsr__rope_bytes(r, number, (struct str){text, (size_t)n});
}

#define VALUE "/model/layers.%06d/self_attn/mul_output_0"
#define CONST "model.layers.%06d.weight"

static void put_value_info(struct rope *r, uint32_t number, const char *format, int i)
{
    size_t info = tsr__rope_begin(r, number);
    put_text(r, F_VALUE_INFO_NAME, format, i);
    size_t type = tsr__rope_begin(r, F_VALUE_INFO_TYPE);
    size_t tensor = tsr__rope_begin(r, F_TYPE_TENSOR_TYPE);
    tsr__rope_int(r, F_TYPE_TENSOR_ELEM_TYPE, TSR_FLOAT);
    size_t shape = tsr__rope_begin(r, F_TYPE_TENSOR_SHAPE);
    for (int k = 0; k < 3; k++) {
        size_t dim = tsr__rope_begin(r, F_SHAPE_DIM);
        if (k == 0)
            tsr__rope_bytes(r, F_DIMENSION_DIM_PARAM, STR("batch"));
        else
            tsr__rope_int(r, F_DIMENSION_DIM_VALUE, k * 64);
        tsr__rope_end(r, dim);
    }
    tsr__rope_end(r, shape);
    tsr__rope_end(r, tensor);
    tsr__rope_end(r, type);
    tsr__rope_end(r, info);
}

static void put_spec(struct rope *r, const char *format, int i)
{
    size_t spec = tsr__rope_begin(r, F_NODE_CONFIG_SHARDING_SPEC);
    put_text(r, F_SPEC_TENSOR_NAME, format, i);
    tsr__rope_ints(r, F_SPEC_DEVICE, (const int64_t[]){0, 1, 2, 3}, 4);
    size_t dim = tsr__rope_begin(r, F_SPEC_SHARDED_DIM);
    tsr__rope_int(r, F_SHARDED_DIM_AXIS, 1);
    size_t simple = tsr__rope_begin(r, F_SHARDED_DIM_SIMPLE_SHARDING);
    tsr__rope_int(r, F_SIMPLE_DIM_DIM_VALUE, 64);
    tsr__rope_int(r, F_SIMPLE_DIM_NUM_SHARDS, 4);
    tsr__rope_end(r, simple);
    tsr__rope_end(r, dim);
    tsr__rope_end(r, spec);
}

// Every tenth node reads a constant and has an attribute, like linear layers among element-wise
// ones.
static void put_node(struct rope *r, int i, bool annotated)
{
    static const char *const ops[] = {"MatMul", "Add", "Relu", "Mul", "Sigmoid",
                                      "Add",    "Sub", "Tanh", "Div", "Softmax"};
    size_t node = tsr__rope_begin(r, F_GRAPH_NODE);
    put_text(r, F_NODE_INPUT, i ? VALUE : "input%.0d", i ? i - 1 : 0);
    if (i % 10 == 0)
        put_text(r, F_NODE_INPUT, CONST, i / 10);
    else if (i % 2 && i > 2)
        put_text(r, F_NODE_INPUT, VALUE, i - 2);
    put_text(r, F_NODE_OUTPUT, VALUE, i);
    put_text(r, F_NODE_NAME, "/model/layers.%06d/self_attn/mul", i);
    tsr__rope_bytes(r, F_NODE_OP_TYPE, str_of(ops[i % 10]));
    if (i % 10 == 9) {
        size_t attr = tsr__rope_begin(r, F_NODE_ATTRIBUTE);
        tsr__rope_bytes(r, F_ATTRIBUTE_NAME, STR("axis"));
        tsr__rope_int(r, F_ATTRIBUTE_I, -1);
        tsr__rope_int(r, F_ATTRIBUTE_TYPE, TSR_ATTR_INT);
        tsr__rope_end(r, attr);
    }
    if (annotated) {
        size_t entry = tsr__rope_begin(r, F_NODE_DEVICE_CONFIGURATIONS);
        tsr__rope_bytes(r, F_NODE_CONFIG_CONFIGURATION_ID, STR("tp4"));
        if (i)
            put_spec(r, VALUE, i - 1);
        put_spec(r, VALUE, i);
        tsr__rope_int(r, F_NODE_CONFIG_PIPELINE_STAGE, 0);
        tsr__rope_end(r, entry);
    }
    tsr__rope_end(r, node);
}

static void put_constant(struct rope *r, int i, struct str raw)
{
    size_t tensor = tsr__rope_begin(r, F_GRAPH_INITIALIZER);
    tsr__rope_ints(r, F_TENSOR_DIMS, (const int64_t[]){(int64_t)raw.n / 4}, 1);
    tsr__rope_int(r, F_TENSOR_DATA_TYPE, TSR_FLOAT);
    put_text(r, F_TENSOR_NAME, CONST, i);
    tsr__rope_bytes(r, F_TENSOR_RAW_DATA, raw);
    tsr__rope_end(r, tensor);
}

static void put_head(struct rope *r)
{
    tsr__rope_int(r, F_MODEL_IR_VERSION, 11);
    tsr__rope_bytes(r, F_MODEL_PRODUCER_NAME, STR("bench"));
}

static void put_tail(struct rope *r, bool annotated)
{
    size_t opset = tsr__rope_begin(r, F_MODEL_OPSET_IMPORT);
    tsr__rope_bytes(r, F_OPSET_DOMAIN, STR(""));
    tsr__rope_int(r, F_OPSET_VERSION, 18);
    tsr__rope_end(r, opset);
    if (!annotated)
        return;
    size_t config = tsr__rope_begin(r, F_MODEL_CONFIGURATION);
    tsr__rope_bytes(r, F_CONFIG_NAME, STR("tp4"));
    tsr__rope_int(r, F_CONFIG_NUM_DEVICES, 4);
    tsr__rope_end(r, config);
}

static tsr_status write_out(tsr_session *s, const struct rope *r, const char *path)
{
    struct outfile o;
    tsr_status st = r->arena->failed ? TSR_NOMEM : tsr__out_open(s, path, &o);
    if (st != TSR_OK)
        return st;
    tsr__rope_write(r, &o, (struct str){0}, -1);
    st = tsr__out_commit(&o);
    tsr__out_abort(&o);
    return st;
}

bool bench_make_chain(const char *path, int nodes, bool annotated)
{
    tsr_session *s = tsr_session_new(NULL);
    struct arena a;
    struct rope r;
    char raw[64] = {0};
    tsr__arena_init(&a, s);
    tsr__rope_init(&r, &a);
    put_head(&r);
    size_t graph = tsr__rope_begin(&r, F_MODEL_GRAPH);
    for (int i = 0; i < nodes; i++)
        put_node(&r, i, annotated);
    tsr__rope_bytes(&r, F_GRAPH_NAME, STR("chain"));
    for (int i = 0; i < nodes / 10 + 2; i++)
        put_constant(&r, i, (struct str){raw, sizeof raw});
    put_value_info(&r, F_GRAPH_INPUT, "input%.0d", 0);
    put_value_info(&r, F_GRAPH_OUTPUT, VALUE, nodes - 1);
    for (int i = 0; i < nodes - 1; i++)
        put_value_info(&r, F_GRAPH_VALUE_INFO, VALUE, i);
    tsr__rope_end(&r, graph);
    put_tail(&r, annotated);
    tsr_status st = write_out(s, &r, path);
    tsr__arena_free(&a);
    tsr_session_free(s);
    return st == TSR_OK;
}

bool bench_make_heavy(const char *path, size_t weights, size_t bytes_each)
{
    tsr_session *s = tsr_session_new(NULL);
    struct arena a;
    struct rope r;
    tsr__arena_init(&a, s);
    tsr__rope_init(&r, &a);
    char *raw = calloc(1, bytes_each);
    if (!raw)
        return false;
    for (size_t i = 0; i < bytes_each; i += 61)
        raw[i] = (char)(i >> 8);
    put_head(&r);
    size_t graph = tsr__rope_begin(&r, F_MODEL_GRAPH);
    put_node(&r, 0, false);
    tsr__rope_bytes(&r, F_GRAPH_NAME, STR("heavy"));
    for (size_t i = 0; i < weights; i++)
        put_constant(&r, (int)i, (struct str){raw, bytes_each});
    put_value_info(&r, F_GRAPH_INPUT, "input%.0d", 0);
    put_value_info(&r, F_GRAPH_OUTPUT, VALUE, 0);
    tsr__rope_end(&r, graph);
    put_tail(&r, false);
    tsr_status st = write_out(s, &r, path);
    free(raw);
    tsr__arena_free(&a);
    tsr_session_free(s);
    return st == TSR_OK;
}

bool bench_make_external(const char *path, const char *data_path, uint64_t data_bytes)
{
    FILE *f = fopen(data_path, "wb");
    bool ok = f && ftruncate(fileno(f), (off_t)data_bytes) == 0; // sparse
    ok = f && fclose(f) == 0 && ok;
    tsr_session *s = tsr_session_new(NULL);
    struct arena a;
    struct rope r;
    tsr__arena_init(&a, s);
    tsr__rope_init(&r, &a);
    const char *slash = strrchr(data_path, '/');
    struct str length = tsr__arena_printf(&a, "%llu", (unsigned long long)data_bytes);
    struct str pairs[][2] = {
        {STR("location"), str_of(slash + 1)}, {STR("offset"), STR("0")}, {STR("length"), length}};
    put_head(&r);
    size_t graph = tsr__rope_begin(&r, F_MODEL_GRAPH);
    put_node(&r, 0, false);
    tsr__rope_bytes(&r, F_GRAPH_NAME, STR("external"));
    size_t tensor = tsr__rope_begin(&r, F_GRAPH_INITIALIZER);
    tsr__rope_int(&r, F_TENSOR_DIMS, (int64_t)(data_bytes / 4));
    tsr__rope_int(&r, F_TENSOR_DATA_TYPE, TSR_FLOAT);
    put_text(&r, F_TENSOR_NAME, CONST, 0);
    for (size_t i = 0; i < TSR_COUNT(pairs); i++) {
        size_t pair = tsr__rope_begin(&r, F_TENSOR_EXTERNAL_DATA);
        tsr__rope_bytes(&r, F_STRING_PAIR_KEY, pairs[i][0]);
        tsr__rope_bytes(&r, F_STRING_PAIR_VALUE, pairs[i][1]);
        tsr__rope_end(&r, pair);
    }
    tsr__rope_int(&r, F_TENSOR_DATA_LOCATION, 1);
    tsr__rope_end(&r, tensor);
    put_value_info(&r, F_GRAPH_INPUT, "input%.0d", 0);
    put_value_info(&r, F_GRAPH_OUTPUT, VALUE, 0);
    tsr__rope_end(&r, graph);
    put_tail(&r, false);
    ok = write_out(s, &r, path) == TSR_OK && ok;
    tsr__arena_free(&a);
    tsr_session_free(s);
    return ok;
}
