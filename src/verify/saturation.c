// SPDX-License-Identifier: Apache-2.0
// saturation.c - does this engine lose digits of products of 8-bit numbers on this CPU? x86 CPUs without VNNI multiply
// unsigned by signed bytes and add two such products in 16 bits: 2 * 255 * 127 = 64,770 becomes 32,767. ONNX Runtime's
// kernels take that instruction where nothing better is there, so results depend on which products stand beside each
// other, and a cut that changes that changes the result by up to 20 %. Asked of the engine itself, by one product.
#include "verify/internal.h"
#include "rules/rules.h"

#define ROWS  4
#define INNER 64
#define COLS  16

// y = x w, bytes by signed bytes.
static tsr_status save_probe(tsr_session *s, const char *path)
{
    static const int64_t w_dims[2] = {INNER, COLS};
    static const tsr_dim x_dims[2] = {{ROWS, ""}, {INNER, ""}},
                         y_dims[2] = {{ROWS, ""}, {COLS, ""}};
    int8_t largest[INNER * COLS];
    memset(largest, 127, sizeof(largest));
    tsr_model *m = NULL;
    tsr_status st = tsr_model_new(s, "probe", 8, &m);
    if (st != TSR_OK)
        return st;
    const char *y = "y";
    tsr_graph *g = tsr_model_graph(m);
    st = tsr_model_set_opset(m, "", 17);
    tsr_value *reads[2] = {
        tsr_graph_add_input(g, "x"),
        tsr_graph_add_initializer(g, "w", TSR_INT8, 2, w_dims, largest, sizeof(largest))};
    tsr_node *n = NULL;
    if (st == TSR_OK && reads[0] && reads[1])
        n = tsr_graph_add_node(g, "", tsr__rule_byte_product(), "product", reads, 2, &y, 1);
    bool made = n && tsr_value_set_type(reads[0], TSR_UINT8, 2, x_dims) == TSR_OK &&
                tsr_value_set_type(tsr_node_output(n, 0), TSR_INT32, 2, y_dims) == TSR_OK &&
                tsr_graph_add_output(g, tsr_node_output(n, 0)) == TSR_OK;
    if (st == TSR_OK)
        st = made ? tsr_model_save(m, path) : TSR_NOMEM;
    tsr_model_free(m);
    return st;
}

static tsr_status run_probe(tsr_session *s, const char *path, bool *out)
{
    static const int64_t dims[2] = {ROWS, INNER};
    uint8_t largest[ROWS * INNER];
    memset(largest, 255, sizeof(largest));
    tsr_run_options options = {.size = sizeof(options), .transport = "threads"};
    tsr_tensors *in = NULL, *got = NULL;
    tsr_status st = tsr_tensors_new(s, &in);
    if (st == TSR_OK)
        st = tsr_tensors_new(s, &got);
    if (st == TSR_OK)
        st = tsr_tensors_put(in, "x", TSR_UINT8, 2, dims, largest);
    if (st == TSR_OK)
        st = tsr_run_model(s, path, &options, in, got);
    if (st == TSR_OK) {
        size_t bytes = 0;
        const int32_t *y = tsr_tensors_data(got, 0, &bytes);
        *out = bytes >= sizeof(*y) && *y != INNER * 255 * 127;
    }
    tsr_tensors_free(got);
    tsr_tensors_free(in);
    return st;
}

tsr_status tsr_engine_saturates(tsr_session *s, const char *work, bool *out)
{
    struct arena a;
    struct scratch at = {0};
    tsr__arena_init(&a, s);
    tsr_status st = tsr__scratch_open(s, &a, work, &at);
    struct str path = {0};
    if (st == TSR_OK) {
        path = tsr__arena_printf(&a, "%s/probe.onnx", at.folder);
        st = path.p ? save_probe(s, path.p) : TSR_NOMEM;
    }
    if (st == TSR_OK)
        st = run_probe(s, path.p, out);
    tsr__scratch_close(&at);
    tsr__arena_free(&a);
    return st;
}

// A node that reads signed bytes may multiply by them.
static const tsr_node *reads_signed_bytes(const struct work *w, const struct shapes *shapes)
{
    const tsr_graph *g = tsr_model_graph(w->model);
    for (const tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n)) {
        for (size_t i = 0; i < tsr_node_input_count(n); i++) {
            const tsr_value *v = tsr_node_input(n, i);
            if (v && tsr__shapes_piece(shapes, v).dtype == TSR_INT8)
                return n;
        }
    }
    return NULL;
}

void tsr__verify_saturation(struct work *w)
{
    const struct shapes *shapes = tsr__shapes_new(&w->arena, w->model);
    const tsr_node *n = shapes ? reads_signed_bytes(w, shapes) : NULL;
    bool saturates = false;
    struct diag_mark mark = tsr__diag_mark(w->session);
    if (!n || tsr_engine_saturates(w->session, w->options->work, &saturates) != TSR_OK) {
        tsr__diag_back(w->session, &mark, false); // the difference itself has been told
        return;
    }
    if (!saturates)
        return;
    struct place at = tsr__place_node(n);
    tsr__diag(
        w->session, DIAG_engine_saturates, &at,
        "quantise weights to 7 bits (reduce_range) or to unsigned bytes, or run on a CPU with VNNI",
        "this engine adds products of 8-bit numbers in 16 bits on this CPU, which may be why "
        "cut and whole differ");
}
