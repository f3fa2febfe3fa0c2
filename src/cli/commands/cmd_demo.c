// SPDX-License-Identifier: Apache-2.0
// cmd_demo.c - builds a transformer block, shards it, and compares sharded and unsharded runs.
//
// The usual tensor parallelism: query, key, value and up are sharded by columns, output and down by
// rows. Only these six weights are annotated; the rest follows from the operators' rules. Example:
// each of 4 devices has 2 of 8 heads and 512 of 2048 inner columns. Two AllReduces add the partial
// sums of `output` and `down`. The model is built with the public API, node by node.
#include "cli/output/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOKENS = 16, HIDDEN = 512, HEADS = 8, INNER = 2048, DEVICES_MAX = 8 };

// The model that is being built. After the first failure `failed` is set, and no more nodes are
// added.
struct builder {
    tsr_graph *graph;
    tsr_config *config;
    int64_t devices;
    uint64_t random;
    int n; // nodes so far, for names
    bool failed;
};

// Returns the next random number (xorshift), so that the weights are the same on every machine.
static float next_random(struct builder *builder)
{
    builder->random ^= builder->random << 13;
    builder->random ^= builder->random >> 7;
    builder->random ^= builder->random << 17;
    return (float)((double)(builder->random >> 11) / 4503599627370496.0 - 1.0); // [-1, 1)
}

// Adds a matrix of random numbers, or a vector if columns is 0.
static tsr_value *weight(struct builder *builder, const char *name, int64_t rows, int64_t columns,
                         float scale, float shift)
{
    int64_t dims[2] = {rows, columns};
    size_t n = (size_t)(rows * (columns ? columns : 1));
    float *data = cli_alloc(n, sizeof *data);
    for (size_t i = 0; i < n; i++)
        data[i] = shift + scale * next_random(builder);
    tsr_value *value = tsr_graph_add_initializer(builder->graph, name, TSR_FLOAT, columns ? 2 : 1,
                                                 dims, data, n * sizeof *data);
    builder->failed |= !value;
    return value;
}

// Adds a node with one to three inputs (the later ones may be NULL); returns its output.
static tsr_value *node(struct builder *builder, const char *op, tsr_value *x, tsr_value *y,
                       tsr_value *z)
{
    char name[32], out[32];
    const char *outputs[] = {out};
    tsr_value *inputs[] = {x, y, z};
    if (builder->failed)
        return NULL;
    snprintf(name, sizeof name, "%s_%d", op, builder->n);
    snprintf(out, sizeof out, "v%d", builder->n++);
    size_t n_inputs = z ? 3 : y ? 2 : 1;
    tsr_node *n = tsr_graph_add_node(builder->graph, "", op, name, inputs, n_inputs, outputs, 1);
    builder->failed |= !n;
    return n ? tsr_node_output(n, 0) : NULL;
}

static tsr_value *reshape(struct builder *builder, tsr_value *x, const char *name, int64_t rank,
                          const int64_t *sizes)
{
    tsr_value *shape = tsr_graph_value(builder->graph, name);
    if (!shape)
        shape = tsr_graph_add_initializer(builder->graph, name, TSR_INT64, 1, &rank, sizes,
                                          (size_t)rank * sizeof *sizes);
    builder->failed |= !shape;
    return node(builder, "Reshape", x, shape, NULL);
}

static tsr_value *transpose(struct builder *builder, tsr_value *x, const int64_t *perm)
{
    tsr_value *y = node(builder, "Transpose", x, NULL, NULL);
    if (y)
        builder->failed |= tsr_node_set_ints(tsr_value_producer(y), "perm", perm, 4) != TSR_OK;
    return y;
}

// Adds x * W + bias, with W sharded by columns or rows.
static tsr_value *project(struct builder *builder, tsr_value *x, const char *name, int64_t in,
                          int64_t out, bool rows)
{
    char text[96], bias_name[64];
    // Numbers in [-1, 1) have variance 1/3. With the factor 1.7 / sqrt(in), sums of `in` products
    // keep variance 1.
    tsr_value *w = weight(builder, name, in, out, 1.7f / sqrtf((float)in), 0);
    tsr_value *y = node(builder, "MatMul", x, w, NULL);
    snprintf(text, sizeof text, rows ? "{%d,1}" : "{1,%d}", (int)builder->devices);
    snprintf(bias_name, sizeof bias_name, "%s.bias", name);
    if (y)
        builder->failed |=
            tsr_node_shard_text(tsr_value_producer(y), w, builder->config, text) != TSR_OK;
    tsr_value *bias = weight(builder, bias_name, out, 0, 0.1f, 0);
    return node(builder, "Add", y, bias, NULL);
}

// Projects x and splits the result by heads. The shape changes from [1, tokens, hidden] to [1,
// heads, tokens, hidden / heads]; for keys the last two dimensions are exchanged.
static tsr_value *by_heads(struct builder *builder, tsr_value *x, const char *name, bool exchanged)
{
    const int64_t split[] = {1, TOKENS, HEADS, HIDDEN / HEADS};
    const int64_t perm[2][4] = {{0, 2, 1, 3}, {0, 2, 3, 1}};
    tsr_value *y = project(builder, x, name, HIDDEN, HIDDEN, false);
    return transpose(builder, reshape(builder, y, "to_heads", 4, split), perm[exchanged]);
}

static tsr_value *attention(struct builder *builder, tsr_value *x)
{
    const int64_t flat[] = {1, TOKENS, HIDDEN}, perm[] = {0, 2, 1, 3};
    float scale = 1 / sqrtf(HIDDEN / HEADS);
    tsr_value *factor = tsr_graph_add_initializer(builder->graph, "scale", TSR_FLOAT, 0, NULL,
                                                  &scale, sizeof scale);
    tsr_value *q = by_heads(builder, x, "query", false), *k = by_heads(builder, x, "key", true),
              *v = by_heads(builder, x, "value", false);
    tsr_value *s = node(builder, "MatMul", q, k, NULL);
    s = node(builder, "Softmax", node(builder, "Mul", s, factor, NULL), NULL, NULL);
    tsr_value *y = transpose(builder, node(builder, "MatMul", s, v, NULL), perm);
    return project(builder, reshape(builder, y, "to_flat", 3, flat), "output", HIDDEN, HIDDEN,
                   true);
}

// Adds LayerNormalization(x + y).
static tsr_value *residual_norm(struct builder *builder, tsr_value *x, tsr_value *y,
                                const char *name)
{
    char bias[32];
    snprintf(bias, sizeof bias, "%s.bias", name);
    tsr_value *scale = weight(builder, name, HIDDEN, 0, 0.1f, 1),
              *shift = weight(builder, bias, HIDDEN, 0, 0.1f, 0);
    return node(builder, "LayerNormalization", node(builder, "Add", x, y, NULL), scale, shift);
}

// Adds a transformer block: attention -> add & norm -> up, Relu, down -> add & norm.
static tsr_status add_block(struct builder *builder)
{
    const tsr_dim dims[] = {{1, ""}, {TOKENS, ""}, {HIDDEN, ""}};
    tsr_value *x = tsr_graph_add_input(builder->graph, "x");
    builder->failed = !x || tsr_value_set_type(x, TSR_FLOAT, 3, dims) != TSR_OK;
    tsr_value *value = residual_norm(builder, x, attention(builder, x), "norm1");
    tsr_value *up = project(builder, value, "up", HIDDEN, INNER, false);
    up = node(builder, "Relu", up, NULL, NULL);
    tsr_value *down = project(builder, up, "down", INNER, HIDDEN, true);
    tsr_value *y = residual_norm(builder, value, down, "norm2");
    return builder->failed ? TSR_NOMEM : tsr_graph_add_output(builder->graph, y);
}

static tsr_status build(struct cli *cli, int64_t devices, tsr_model **out)
{
    tsr_shapes_summary shapes = {.size = sizeof shapes};
    struct builder builder = {.devices = devices, .random = 88172645463325252u};
    tsr_status status = tsr_model_new(cli->session, "block", 11, out);
    if (status == TSR_OK)
        status = tsr_model_set_opset(*out, "", 18);
    if (status == TSR_OK)
        status = tsr_model_add_config(*out, "demo", devices, NULL, 0, &builder.config);
    if (status != TSR_OK)
        return status;
    builder.graph = tsr_model_graph(*out);
    status = add_block(&builder);
    return status == TSR_OK ? tsr_shapes(*out, NULL, 0, &shapes) : status;
}

static int report(struct cli *cli, const tsr_verify_result *result, int code)
{
    const tsr_partition_result *partition = tsr_verify_result_partition(result, TSR_NO_TRIAL);
    tsr_verify_facts facts = TSR_VERIFY_FACTS_INIT;
    tsr_difference *outputs;
    (void)tsr_verify_result_about(result, &facts);
    READ_LIST(outputs, facts.n_outputs, tsr_verify_result_output, result, TSR_NO_TRIAL);
    bool pass = code == EXIT_DONE && facts.ok;
    double worst = 0;
    for (size_t i = 0; i < facts.n_outputs; i++)
        worst = fmax(worst, outputs[i].max_rel);
    if (cli->json) {
        tsr_json *json = cli_json(cli);
        tsr_json_bool(json, "ok", pass);
        partition_json(json, partition);
        tsr_json_number(json, "max_rel", worst);
        return cli_print_json(cli, json, code);
    }
    printf("a transformer block (%d tokens, hidden %d, %d heads, inner %d) on %zu devices\n\n",
           TOKENS, HIDDEN, HEADS, INNER, partition_view(partition).facts.devices);
    partition_print(stdout, partition);
    printf("largest difference from the unsharded model: %.2g of the largest value\n\n%s\n", worst,
           pass ? "PASS" : "FAIL");
    return code;
}

// Writes the model to `path` and, with --keep FILE, also to FILE.
static tsr_status save_block(struct cli *cli, int64_t devices, const char *path)
{
    const char *keep = cli_value(cli, "--keep");
    tsr_model *model = NULL;
    tsr_status status = build(cli, devices, &model);
    if (status == TSR_OK)
        status = tsr_model_save(model, path);
    if (status == TSR_OK && keep)
        status = tsr_model_save(model, keep);
    tsr_model_free(model);
    return status;
}

static int verify_in(struct cli *cli, const char *folder, int64_t devices)
{
    char path[4096];
    tsr_verify_options options = {.size = sizeof options, .inputs = "random:1", .work = folder};
    tsr_verify_result *result = NULL;
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    tsr_status status = save_block(cli, devices, path);
    if (status == TSR_OK)
        status = tsr_verify(cli->session, path, &options, &result);
    int code = cli_finish(cli, status);
    if (result)
        code = report(cli, result, code);
    tsr_verify_result_free(result);
    return code;
}

static int run_demo(struct cli *cli)
{
    const char *text = cli_value(cli, "--devices"), *folder = NULL;
    double devices = 4;
    if (text && (!cli_number(text, &devices) || devices > DEVICES_MAX || devices != (int)devices))
        return cli_usage(cli, "--devices needs a number from 1 to %d, not '%s'", DEVICES_MAX, text);
    tsr_status status = cli_engine(cli, NULL, NULL);
    if (status == TSR_OK)
        status = tsr_session_temporary(cli->session, cli_temporary(), &folder);
    if (status != TSR_OK)
        return cli_finish(cli, status);
    return verify_in(cli, folder, (int64_t)devices);
}

static const struct option options_table[] = {
    {"--devices", "N", "number of devices, 1 to 8 (default 4)"},
    {"--keep", "FILE", "write the annotated model to this file"},
    END_OF_OPTIONS,
};

const struct command cmd_demo = {
    .name = "demo",
    .arguments = "",
    .summary = "shard a transformer block over 4 devices, run it, compare with the unsharded block",
    .example = "tessera demo",
    .options = options_table,
    .run = run_demo,
};
