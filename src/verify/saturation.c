// SPDX-License-Identifier: Apache-2.0
// saturation.c - finds out whether this engine saturates 8-bit products on this CPU
// (QUIRK_saturated_products). x86 CPUs without VNNI multiply unsigned by signed bytes and add two
// such products in 16 bits: 2 * 255 * 127 = 64,770 becomes 32,767. ONNX Runtime's kernels use that
// instruction if there is no better one. So results depend on which products are added first, and a
// sharding that changes the order changes the result by up to 20 %. A small product tests the
// engine itself.
#include "verify/internal.h"
#include "rules/rules.h"

#define ROWS  4
#define INNER 64
#define COLS  16

// Writes the model y = x w, where x has unsigned and w signed bytes.
static tsr_status save_probe(tsr_session *session, const char *path)
{
    static const int64_t w_dims[2] = {INNER, COLS};
    static const tsr_dim x_dims[2] = {{ROWS, ""}, {INNER, ""}},
                         y_dims[2] = {{ROWS, ""}, {COLS, ""}};
    int8_t largest[INNER * COLS];
    memset(largest, 127, sizeof(largest));
    tsr_model *model = NULL;
    TRY(tsr_model_new(session, "probe", 8, &model));
    const char *y = "y";
    tsr_graph *graph = tsr_model_graph(model);
    tsr_status st = tsr_model_set_opset(model, "", 17);
    tsr_value *reads[2] = {
        tsr_graph_add_input(graph, "x"),
        tsr_graph_add_initializer(graph, "w", TSR_INT8, 2, w_dims, largest, sizeof(largest))};
    tsr_node *node = NULL;
    if (st == TSR_OK && reads[0] && reads[1])
        node = tsr_graph_add_node(graph, "", tsr__rule_byte_product(), "product", reads, 2, &y, 1);
    bool made = node && tsr_value_set_type(reads[0], TSR_UINT8, 2, x_dims) == TSR_OK &&
                tsr_value_set_type(tsr_node_output(node, 0), TSR_INT32, 2, y_dims) == TSR_OK &&
                tsr_graph_add_output(graph, tsr_node_output(node, 0)) == TSR_OK;
    if (st == TSR_OK)
        st = made ? tsr_model_save(model, path) : TSR_NOMEM;
    tsr_model_free(model);
    return st;
}

// Runs the probe with the largest bytes. The first element of the product is 64 * 255 * 127 =
// 2,072,640 if nothing saturates. *out is true for any other number: sums of pairs overflowed.
static tsr_status run_probe(tsr_session *session, const char *path, bool *out)
{
    static const int64_t dims[2] = {ROWS, INNER};
    uint8_t largest[ROWS * INNER];
    memset(largest, 255, sizeof(largest));
    tsr_run_options options = {.size = sizeof(options), .transport = TSR_TRANSPORT_THREADS};
    tsr_tensors *in = NULL, *got = NULL;
    tsr_status st = tsr_tensors_new(session, &in);
    if (st == TSR_OK)
        st = tsr_tensors_new(session, &got);
    if (st == TSR_OK)
        st = tsr_tensors_put(in, "x", TSR_UINT8, 2, dims, largest);
    if (st == TSR_OK)
        st = tsr_run_model(session, path, &options, in, got);
    if (st == TSR_OK) {
        size_t bytes = 0;
        const int32_t *y = tsr_tensors_data(got, 0, &bytes);
        *out = bytes >= sizeof(*y) && *y != INNER * 255 * 127;
    }
    tsr_tensors_free(got);
    tsr_tensors_free(in);
    return st;
}

// Finds out whether the engine saturates 8-bit products on this CPU. *out is set on success only.
// The probe model is in a temporary folder, which is always removed.
tsr_status tsr_engine_saturates(tsr_session *session, const char *work, bool *out)
{
    struct scratch at = {0};
    TRY(tsr__given(session, "out", out));
    struct arena arena = {.session = session};
    tsr_status st = tsr__scratch_open(session, &arena, work, &at);
    struct str path = {0};
    if (st == TSR_OK) {
        path = tsr__arena_printf(&arena, "%s/probe.onnx", at.folder);
        st = path.p ? save_probe(session, path.p) : TSR_NOMEM;
    }
    if (st == TSR_OK)
        st = run_probe(session, path.p, out);
    tsr__scratch_close(&at);
    tsr__arena_free(&arena);
    return st;
}

// Returns the first node of the main graph with an input of signed bytes, which it may multiply;
// NULL: there is none.
static const tsr_node *reads_signed_bytes(const struct work *work, const struct shapes *shapes)
{
    const tsr_graph *graph = tsr_model_graph(work->model);
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        for (size_t i = 0; i < tsr_node_input_count(node); i++) {
            const tsr_value *value = tsr_node_input(node, i);
            if (value && tsr__shapes_element(shapes, value).dtype == TSR_INT8)
                return node;
        }
    }
    return NULL;
}

// Warns if the model reads signed bytes and this engine saturates. That is only a possible reason
// for the difference.
void tsr__verify_saturation(struct work *work)
{
    const struct shapes *shapes = tsr__model_shapes(work->model);
    const tsr_node *node = shapes ? reads_signed_bytes(work, shapes) : NULL;
    bool saturates = false;
    struct diag_mark mark = tsr__diag_mark(work->session);
    if (!node || tsr_engine_saturates(work->session, work->options->work, &saturates) != TSR_OK) {
        tsr__diag_back(work->session, &mark, false); // the difference itself was already reported
        return;
    }
    if (!saturates)
        return;
    tsr__diag(
        work->session, DIAG_engine_saturates, PLACE_AT(tsr__place_node(node)),
        "quantize weights to 7 bits (reduce_range) or to unsigned bytes, or run on a CPU with VNNI",
        "ONNX Runtime adds 8-bit products in 16 bits on this CPU, which may explain the difference "
        "between sharded and unsharded outputs");
}
