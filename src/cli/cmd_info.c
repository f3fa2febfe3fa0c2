// SPDX-License-Identifier: Apache-2.0
// cmd_info.c - what is in a model: interface, operators, weights, configurations, shardings,
// stages.
#include "cli.h"

#include <stdlib.h>
#include <string.h>

struct op_count {
    const char *domain, *op;
    size_t n;
};

struct facts {
    struct op_count *ops;
    size_t n_ops, n_nodes, n_specs, n_stages, n_weights;
    int64_t weight_bytes, weight_elements;
    const tsr_value *largest;
    int64_t largest_bytes;
};

static int by_count(const void *a, const void *b)
{
    const struct op_count *x = a, *y = b;
    if (x->n != y->n)
        return x->n < y->n ? 1 : -1;
    int order = strcmp(x->op, y->op);
    return order ? order : strcmp(x->domain, y->domain);
}

static int by_name(const void *a, const void *b)
{
    const struct op_count *x = a, *y = b;
    int order = strcmp(x->op, y->op);
    return order ? order : strcmp(x->domain, y->domain);
}

// Counts equal operators: sort all, then join neighbours.
static bool count_ops(const tsr_model *m, struct facts *f)
{
    for (tsr_node *n = NULL; (n = tsr_model_next_node(m, n));)
        f->n_nodes++;
    f->ops = calloc(f->n_nodes + 1, sizeof *f->ops);
    if (!f->ops)
        return false;
    size_t k = 0;
    for (tsr_node *n = NULL; (n = tsr_model_next_node(m, n));)
        f->ops[k++] = (struct op_count){tsr_node_domain(n), tsr_node_op(n), 1};
    qsort(f->ops, k, sizeof *f->ops, by_name);
    for (size_t i = 0; i < k; i++) {
        if (f->n_ops && !by_name(&f->ops[f->n_ops - 1], &f->ops[i]))
            f->ops[f->n_ops - 1].n++;
        else
            f->ops[f->n_ops++] = f->ops[i];
    }
    qsort(f->ops, f->n_ops, sizeof *f->ops, by_count);
    return true;
}

static void weigh(const tsr_graph *g, struct facts *f)
{
    f->n_weights = tsr_graph_initializer_count(g);
    for (size_t i = 0; i < f->n_weights; i++) {
        const tsr_value *v = tsr_graph_initializer(g, i);
        const tsr_tensor *t = tsr_value_initializer(v);
        int64_t bytes = t ? tsr_tensor_bytes(t) : -1, elements = t ? tsr_tensor_elements(t) : -1;
        if (bytes > 0)
            f->weight_bytes += bytes;
        if (elements > 0)
            f->weight_elements += elements;
        if (bytes > f->largest_bytes) {
            f->largest = v;
            f->largest_bytes = bytes;
        }
    }
}

// "float32 [batch, 64]"; what is not known is "?".
static void type_text(const tsr_value *v, char *out, size_t cap)
{
    size_t k = (size_t)snprintf(out, cap, "%s", tsr_dtype_name(tsr_value_dtype(v)));
    int rank = tsr_value_rank(v);
    for (int i = 0; i <= rank && k < cap; i++) {
        tsr_dim d = i < rank ? tsr_value_dim(v, i) : (tsr_dim){0, ""};
        const char *before = i == 0 ? " [" : i < rank ? ", " : "";
        if (i == rank)
            k += (size_t)snprintf(out + k, cap - k, "%s]", before);
        else if (d.value >= 0)
            k += (size_t)snprintf(out + k, cap - k, "%s%lld", before, (long long)d.value);
        else
            k += (size_t)snprintf(out + k, cap - k, "%s%s", before, d.symbol[0] ? d.symbol : "?");
    }
}

static void print_values(const char *title, const tsr_graph *g, bool outputs)
{
    size_t n = outputs ? tsr_graph_output_count(g) : tsr_graph_input_count(g);
    printf("%s\n", title);
    for (size_t i = 0; i < n; i++) {
        const tsr_value *v = outputs ? tsr_graph_output(g, i) : tsr_graph_input(g, i);
        char type[512];
        type_text(v, type, sizeof type);
        printf("  %-24s %s\n", tsr_value_name(v), type);
    }
}

static const char *node_label(const tsr_node *n, char *buffer, size_t cap)
{
    if (tsr_node_name(n)[0])
        return tsr_node_name(n);
    snprintf(buffer, cap, "#%lld %s", (long long)tsr_node_index(n), tsr_node_op(n));
    return buffer;
}

// Calls f for every node entry of the model.
static void each_entry(struct cli *c, const tsr_model *m, void *data,
                       void (*f)(struct cli *, void *, const tsr_node *, const tsr_node_config *))
{
    for (tsr_node *n = NULL; (n = tsr_model_next_node(m, n));)
        for (size_t i = 0; i < tsr_node_config_count(n); i++)
            f(c, data, n, tsr_node_config_at(n, i));
}

static const char *config_name(const tsr_node_config *nc)
{
    const tsr_config *c = tsr_node_config_config(nc);
    return c ? tsr_config_name(c) : "";
}

static const char *spec_label(const struct cli *c, const tsr_spec *p, const char *otherwise)
{
    tsr_notation notation = TSR_NOTATION_TILES;
    const char *text = NULL;
    (void)cli_notation(c, &notation);
    return tsr_spec_text_as(p, notation, &text) == TSR_OK ? text : otherwise;
}

static void count_entry(struct cli *c, void *data, const tsr_node *n, const tsr_node_config *nc)
{
    struct facts *f = data;
    int64_t stage;
    (void)c, (void)n;
    f->n_specs += tsr_node_config_spec_count(nc);
    f->n_stages += tsr_node_config_stage(nc, &stage);
}

static void print_entry(struct cli *c, void *data, const tsr_node *n, const tsr_node_config *nc)
{
    char buffer[128];
    const char *label = node_label(n, buffer, sizeof buffer);
    int64_t stage;
    (void)data;
    for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++) {
        const tsr_spec *p = tsr_node_config_spec(nc, i);
        const tsr_value *v = tsr_spec_value(p);
        printf("  %-10s %s:%s %s\n", config_name(nc), label, v ? tsr_value_name(v) : "",
               spec_label(c, p, "(does not describe a sharding; see tessera check)"));
    }
    if (tsr_node_config_stage(nc, &stage))
        printf("  %-10s %s stage %lld\n", config_name(nc), label, (long long)stage);
}

static void print_configs(const tsr_model *m)
{
    size_t n = tsr_model_config_count(m);
    if (!n)
        return;
    printf("configurations\n");
    for (size_t i = 0; i < n; i++) {
        const tsr_config *k = tsr_model_config(m, i);
        printf("  %-10s %lld devices", tsr_config_name(k), (long long)tsr_config_devices(k));
        for (size_t j = 0; j < tsr_config_device_name_count(k) && j < 16; j++)
            printf("%s%s", j ? ", " : ": ", tsr_config_device_name(k, j));
        printf(tsr_config_device_name_count(k) > 16 ? ", ...\n" : "\n");
    }
}

// The topology of each configuration that has one; what is wrong with it is the checker's word.
static void each_topology(struct cli *c, tsr_model *m, void *data,
                          void (*f)(void *data, const tsr_config *config, const tsr_topology *t))
{
    for (size_t i = 0; i < tsr_model_config_count(m); i++) {
        tsr_topology *t = NULL;
        const tsr_config *config = tsr_model_config(m, i);
        if (tsr_model_topology(m, tsr_config_name(config), &t) == TSR_OK && t)
            f(data, config, t);
        tsr_topology_free(t);
    }
    tsr_finding_clear(c->session);
}

#define MAX_SIDES 8

static void print_topology(void *data, const tsr_config *config, const tsr_topology *t)
{
    int sides[MAX_SIDES], n = tsr_topology_grid(t, sides, MAX_SIDES);
    (void)data;
    printf("topology\n  %-10s %d devices, %zu links", tsr_config_name(config),
           tsr_topology_devices(t), tsr_topology_links(t));
    for (int i = 0; i < n && i < MAX_SIDES; i++)
        printf("%s%d", i ? "x" : ", a grid of ", sides[i]);
    printf("\n");
}

static void json_topology(void *data, const tsr_config *config, const tsr_topology *t)
{
    tsr_json_begin(data, NULL, '{');
    tsr_json_string(data, "configuration", tsr_config_name(config));
    tsr_topology_add_json(t, data);
    tsr_json_end(data);
}

static int print_text(struct cli *c, tsr_model *m, struct facts *f)
{
    const tsr_graph *g = tsr_model_graph(m);
    printf("%s\n  IR version %lld", c->arguments[0], (long long)tsr_model_ir_version(m));
    for (size_t i = 0; i < tsr_model_opset_count(m); i++) {
        const char *domain = tsr_model_opset_domain(m, i);
        printf(", %s %lld", domain[0] ? domain : "ai.onnx",
               (long long)tsr_model_opset_version(m, i));
    }
    if (tsr_model_producer(m)[0])
        printf(", made by %s", tsr_model_producer(m));
    printf("\n  %s nodes of %zu operators:", cli_count((int64_t)f->n_nodes), f->n_ops);
    for (size_t i = 0; i < f->n_ops && i < 8; i++)
        printf("%s %s %zu", i ? "," : "", f->ops[i].op, f->ops[i].n);
    printf("%s\n  weights: %s in %s tensors, %s", f->n_ops > 8 ? ", ..." : "",
           cli_count(f->weight_elements), cli_count((int64_t)f->n_weights),
           cli_bytes(f->weight_bytes));
    if (f->largest)
        printf("; largest %s, %s", tsr_value_name(f->largest), cli_bytes(f->largest_bytes));
    printf("\n");
    print_values("inputs", g, false);
    print_values("outputs", g, true);
    print_configs(m);
    each_topology(c, m, NULL, print_topology);
    each_entry(c, m, f, count_entry);
    if (f->n_specs + f->n_stages) {
        printf("shardings and stages\n");
        each_entry(c, m, NULL, print_entry);
    }
    return EXIT_DONE;
}

static void json_values(tsr_json *j, const char *key, const tsr_graph *g, bool outputs)
{
    size_t n = outputs ? tsr_graph_output_count(g) : tsr_graph_input_count(g);
    tsr_json_begin(j, key, '[');
    for (size_t i = 0; i < n; i++) {
        const tsr_value *v = outputs ? tsr_graph_output(g, i) : tsr_graph_input(g, i);
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "name", tsr_value_name(v));
        tsr_json_string(j, "type", tsr_dtype_name(tsr_value_dtype(v)));
        if (tsr_value_rank(v) < 0) {
            tsr_json_null(j, "shape");
        } else {
            tsr_json_begin(j, "shape", '[');
            for (int k = 0; k < tsr_value_rank(v); k++) {
                tsr_dim d = tsr_value_dim(v, k);
                if (d.value >= 0)
                    tsr_json_int(j, NULL, d.value);
                else
                    tsr_json_string(j, NULL, d.symbol[0] ? d.symbol : NULL);
            }
            tsr_json_end(j);
        }
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static void json_entry(tsr_json *j, const tsr_node *n, const tsr_node_config *nc)
{
    tsr_json_begin(j, NULL, '{');
    tsr_json_string(j, "configuration", config_name(nc));
    tsr_json_string(j, "node", tsr_node_name(n));
    tsr_json_int(j, "index", tsr_node_index(n));
}

static void json_specs(struct cli *c, void *data, const tsr_node *n, const tsr_node_config *nc)
{
    tsr_json *j = data;
    for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++) {
        const tsr_spec *p = tsr_node_config_spec(nc, i);
        const tsr_value *v = tsr_spec_value(p);
        json_entry(j, n, nc);
        tsr_json_string(j, "value", v ? tsr_value_name(v) : NULL);
        tsr_json_string(j, "sharding", spec_label(c, p, NULL));
        tsr_json_end(j);
    }
}

static void json_stages(struct cli *c, void *data, const tsr_node *n, const tsr_node_config *nc)
{
    int64_t stage;
    (void)c;
    if (!tsr_node_config_stage(nc, &stage))
        return;
    json_entry(data, n, nc);
    tsr_json_int(data, "stage", stage);
    tsr_json_end(data);
}

static void json_head(tsr_json *j, const tsr_model *m, const struct facts *f)
{
    tsr_json_int(j, "ir_version", tsr_model_ir_version(m));
    tsr_json_begin(j, "opsets", '{');
    for (size_t i = 0; i < tsr_model_opset_count(m); i++)
        tsr_json_int(j, tsr_model_opset_domain(m, i), tsr_model_opset_version(m, i));
    tsr_json_end(j);
    tsr_json_string(j, "producer", tsr_model_producer(m));
    tsr_json_int(j, "nodes", (int64_t)f->n_nodes);
    tsr_json_begin(j, "operators", '{');
    for (size_t i = 0; i < f->n_ops; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s%s", f->ops[i].domain, f->ops[i].domain[0] ? "." : "",
                 f->ops[i].op);
        tsr_json_int(j, name, (int64_t)f->ops[i].n);
    }
    tsr_json_end(j);
    tsr_json_int(j, "initializers", (int64_t)f->n_weights);
    tsr_json_int(j, "weights", f->weight_elements);
    tsr_json_int(j, "weight_bytes", f->weight_bytes);
}

static int print_info_json(struct cli *c, tsr_model *m, const struct facts *f)
{
    tsr_json *j = cli_json(c);
    if (!j)
        return cli_print_json(c, j, EXIT_READ);
    json_head(j, m, f);
    json_values(j, "inputs", tsr_model_graph(m), false);
    json_values(j, "outputs", tsr_model_graph(m), true);
    tsr_json_begin(j, "configurations", '[');
    for (size_t i = 0; i < tsr_model_config_count(m); i++) {
        const tsr_config *k = tsr_model_config(m, i);
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "name", tsr_config_name(k));
        tsr_json_int(j, "devices", tsr_config_devices(k));
        tsr_json_begin(j, "device_names", '[');
        for (size_t d = 0; d < tsr_config_device_name_count(k); d++)
            tsr_json_string(j, NULL, tsr_config_device_name(k, d));
        tsr_json_end(j);
        tsr_json_end(j);
    }
    tsr_json_end(j);
    tsr_json_begin(j, "topologies", '[');
    each_topology(c, m, j, json_topology);
    tsr_json_end(j);
    tsr_json_begin(j, "shardings", '[');
    each_entry(c, m, j, json_specs);
    tsr_json_end(j);
    tsr_json_begin(j, "stages", '[');
    each_entry(c, m, j, json_stages);
    tsr_json_end(j);
    return cli_print_json(c, j, EXIT_DONE);
}

static int run(struct cli *c)
{
    tsr_model *m = NULL;
    tsr_notation notation;
    if (!cli_notation(c, &notation))
        return cli_usage(c, "--notation is tiles, mesh or sets");
    tsr_status status = tsr_model_load(c->session, c->arguments[0], &m);
    if (status != TSR_OK)
        return cli_finish(c, status);
    struct facts f = {0};
    int code = EXIT_READ;
    if (count_ops(m, &f)) {
        weigh(tsr_model_graph(m), &f);
        code = c->json ? print_info_json(c, m, &f) : print_text(c, m, &f);
    }
    free(f.ops);
    tsr_model_free(m);
    return code;
}

static const struct option options[] = {
    {"--notation", "NAME",
     "of shardings: tiles ({2,1:0,1}, the default), mesh (S0,R@2x2) or sets (({0},{})@2x2)"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_info = {
    .name = "info",
    .arguments = "MODEL",
    .summary = "what is in a model, what it weighs, how it is annotated",
    .example = "tessera info tests/models/bert_tiny/model.onnx",
    .options = options,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
