// SPDX-License-Identifier: Apache-2.0
// cmd_info.c - the contents of a model: interface, operators, weights, configurations, shardings,
// stages.
//
// Text shows the first entries of long lists, JSON all. Wrong annotations are shown as far as they
// can be read; `check` reports them.
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

struct op_count {
    const char *domain, *op;
    size_t n;
};

// ops: the most frequent first; n_specs, n_stages: annotations of all configurations; largest: the
// largest weight, or NULL.
struct facts {
    struct op_count *ops;
    size_t n_ops, n_nodes, n_specs, n_stages, n_weights;
    int64_t weight_bytes, weight_elements;
    const tsr_value *largest;
    int64_t largest_bytes;
};

static int by_name(const void *a, const void *b)
{
    const struct op_count *x = a, *y = b;
    int order = strcmp(x->op, y->op);
    return order ? order : strcmp(x->domain, y->domain);
}

static int by_count(const void *a, const void *b)
{
    const struct op_count *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n) - (x->n > y->n) : by_name(a, b);
}

// Counts the operators, including those of subgraphs and functions.
static void count_ops(const tsr_model *model, struct facts *facts)
{
    for (tsr_node *node = NULL; (node = tsr_model_next_node(model, node));)
        facts->n_nodes++;
    facts->ops = cli_alloc(facts->n_nodes + 1, sizeof *facts->ops);
    size_t k = 0;
    for (tsr_node *node = NULL; (node = tsr_model_next_node(model, node));)
        facts->ops[k++] = (struct op_count){tsr_node_domain(node), tsr_node_op(node), 1};
    qsort(facts->ops, k, sizeof *facts->ops, by_name);
    for (size_t i = 0; i < k; i++) {
        if (facts->n_ops && !by_name(&facts->ops[facts->n_ops - 1], &facts->ops[i]))
            facts->ops[facts->n_ops - 1].n++;
        else
            facts->ops[facts->n_ops++] = facts->ops[i];
    }
    qsort(facts->ops, facts->n_ops, sizeof *facts->ops, by_count);
}

static void add_weights(const tsr_graph *graph, struct facts *facts)
{
    facts->n_weights = tsr_graph_initializer_count(graph);
    for (size_t i = 0; i < facts->n_weights; i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i);
        const tsr_tensor *tensor = tsr_value_initializer(value);
        if (!tensor)
            continue;
        int64_t bytes = tsr_tensor_bytes(tensor), elements = tsr_tensor_elements(tensor);
        if (bytes > 0)
            facts->weight_bytes += bytes;
        if (elements > 0)
            facts->weight_elements += elements;
        if (bytes > facts->largest_bytes) {
            facts->largest = value;
            facts->largest_bytes = bytes;
        }
    }
}

// Formats a type: "float32 [batch, 64]"; unknown dimensions are "?", an unknown rank has no
// brackets.
static void type_text(const tsr_value *value, char *out, size_t cap)
{
    int rank = tsr_value_rank(value);
    snprintf(out, cap, "%s", tsr_dtype_name(tsr_value_dtype(value)));
    for (int i = 0; i < rank; i++) {
        tsr_dim dim = tsr_value_dim(value, i);
        cli_append(out, cap, "%s", i ? ", " : " [");
        if (dim.value >= 0)
            cli_append(out, cap, "%lld", (long long)dim.value);
        else
            cli_append(out, cap, "%s", cli_text_or(tsr_value_dim_name(value, i), "?"));
    }
    if (rank >= 0)
        cli_append(out, cap, "%s", rank ? "]" : " []");
}

struct interface {
    const char *title;
    size_t (*count)(const tsr_graph *graph);
    tsr_value *(*at)(const tsr_graph *graph, size_t i);
};
static const struct interface inputs = {"inputs", tsr_graph_input_count, tsr_graph_input};
static const struct interface outputs = {"outputs", tsr_graph_output_count, tsr_graph_output};

static void print_values(const struct interface *interface, const tsr_graph *graph)
{
    printf("%s\n", interface->title);
    for (size_t i = 0; i < interface->count(graph); i++) {
        const tsr_value *value = interface->at(graph, i);
        char type[512];
        type_text(value, type, sizeof type);
        printf("  %-24s %s\n", tsr_value_name(value), type);
    }
}

// Returns the name of a node, or "#3 MatMul" for a node without one.
static const char *node_label(const tsr_node *node, char *buffer, size_t cap)
{
    if (tsr_node_name(node)[0])
        return tsr_node_name(node);
    snprintf(buffer, cap, "#%lld %s", (long long)tsr_node_index(node), tsr_node_op(node));
    return buffer;
}

// Calls f for the annotations of every node and configuration.
static void each_entry(struct cli *cli, const tsr_model *model, void *data,
                       void (*f)(struct cli *, void *, const tsr_node *, const tsr_node_config *))
{
    for (tsr_node *node = NULL; (node = tsr_model_next_node(model, node));)
        for (size_t i = 0; i < tsr_node_config_count(node); i++)
            f(cli, data, node, tsr_node_config_at(node, i));
}

// Returns the name of an annotation's configuration; empty if the annotation names none.
static const char *config_name(const tsr_node_config *nc)
{
    const tsr_config *config = tsr_node_config_target(nc);
    return config ? tsr_config_name(config) : "";
}

// Returns a sharding in the notation of --notation; `otherwise` for a spec that is not a valid
// sharding.
static const char *spec_label(const struct cli *cli, const tsr_spec *spec, const char *otherwise)
{
    tsr_notation notation = TSR_NOTATION_TILES;
    const char *text = NULL;
    (void)cli_notation(cli, &notation);
    return tsr_spec_text_as(spec, notation, &text) == TSR_OK ? text : otherwise;
}

static void count_entry(struct cli *cli, void *data, const tsr_node *node,
                        const tsr_node_config *nc)
{
    struct facts *facts = data;
    int64_t stage;
    (void)cli, (void)node;
    facts->n_specs += tsr_node_config_spec_count(nc);
    facts->n_stages += tsr_node_config_stage(nc, &stage);
}

// Prints an annotation: "  tp2        mm:W {2,1:0,1}", "  tp2        mm stage 1".
static void print_entry(struct cli *cli, void *data, const tsr_node *node,
                        const tsr_node_config *nc)
{
    char buffer[128];
    const char *label = node_label(node, buffer, sizeof buffer);
    int64_t stage;
    (void)data;
    for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++) {
        const tsr_spec *spec = tsr_node_config_spec(nc, i);
        const tsr_value *value = tsr_spec_value(spec);
        const char *name = value ? tsr_value_name(value) : "";
        printf("  %-10s %s:%s %s\n", config_name(nc), label, name,
               spec_label(cli, spec, "(not a valid sharding; see tessera check)"));
    }
    if (tsr_node_config_stage(nc, &stage))
        printf("  %-10s %s stage %lld\n", config_name(nc), label, (long long)stage);
}

static void print_configs(const tsr_model *model)
{
    size_t n = tsr_model_config_count(model);
    if (!n)
        return;
    printf("configurations\n");
    for (size_t i = 0; i < n; i++) {
        const tsr_config *config = tsr_model_config(model, i);
        printf("  %-10s %lld devices", tsr_config_name(config),
               (long long)tsr_config_devices(config));
        for (size_t j = 0; j < size_min(tsr_config_device_name_count(config), 16); j++)
            printf("%s%s", j ? ", " : ": ", tsr_config_device_name(config, j));
        printf("%s\n", tsr_config_device_name_count(config) > 16 ? ", ..." : "");
    }
}

// Calls f for each valid topology in the model; drops diagnostics about invalid ones.
static void each_topology(struct cli *cli, tsr_model *model, void *data,
                          void (*f)(void *data, const tsr_config *config,
                                    const tsr_topology *topology))
{
    for (size_t i = 0; i < tsr_model_config_count(model); i++) {
        tsr_topology *t = NULL;
        const tsr_config *config = tsr_model_config(model, i);
        (void)tsr_model_topology(model, tsr_config_name(config), &t);
        if (t)
            f(data, config, t);
        tsr_topology_free(t);
    }
    tsr_finding_clear(cli->session);
}

#define MAX_SIDES 8 // of a grid; 2x4 has two

static void print_topology(void *data, const tsr_config *config, const tsr_topology *topology)
{
    int sides[MAX_SIDES], n = tsr_topology_grid(topology, sides, MAX_SIDES);
    (void)data;
    printf("topology\n  %-10s %d devices, %zu links", tsr_config_name(config),
           tsr_topology_devices(topology), tsr_topology_links(topology));
    for (int i = 0; i < n && i < MAX_SIDES; i++)
        printf("%s%d", i ? "x" : ", a grid of ", sides[i]);
    printf("\n");
}

static void json_topology(void *data, const tsr_config *config, const tsr_topology *topology)
{
    tsr_json_begin(data, NULL, '{');
    tsr_json_string(data, "configuration", tsr_config_name(config));
    tsr_topology_add_json(topology, data);
    tsr_json_end(data);
}

static int print_text(struct cli *cli, tsr_model *model, struct facts *facts)
{
    const tsr_graph *graph = tsr_model_graph(model);
    printf("%s\n  IR version %lld", cli->arguments[0], (long long)tsr_model_ir_version(model));
    for (size_t i = 0; i < tsr_model_opset_count(model); i++) {
        const char *domain = tsr_model_opset_domain(model, i);
        printf(", %s %lld", cli_domain(domain), (long long)tsr_model_opset_version(model, i));
    }
    if (tsr_model_producer(model)[0])
        printf(", made by %s", tsr_model_producer(model));
    printf("\n  %s nodes of %zu operators:", cli_count((int64_t)facts->n_nodes), facts->n_ops);
    for (size_t i = 0; i < size_min(facts->n_ops, 8); i++)
        printf("%s %s %zu", i ? "," : "", facts->ops[i].op, facts->ops[i].n);
    printf("%s\n  weights: %s in %s tensors, %s", facts->n_ops > 8 ? ", ..." : "",
           cli_count(facts->weight_elements), cli_count((int64_t)facts->n_weights),
           cli_bytes(facts->weight_bytes));
    if (facts->largest)
        printf("; largest %s, %s", tsr_value_name(facts->largest), cli_bytes(facts->largest_bytes));
    printf("\n");
    print_values(&inputs, graph);
    print_values(&outputs, graph);
    print_configs(model);
    each_topology(cli, model, NULL, print_topology);
    each_entry(cli, model, facts, count_entry);
    if (facts->n_specs + facts->n_stages) {
        printf("shardings and stages\n");
        each_entry(cli, model, NULL, print_entry);
    }
    return EXIT_DONE;
}

// Writes inputs or outputs. An unknown shape is null; a dimension is a number, a symbol, or null.
static void json_values(tsr_json *json, const struct interface *interface, const tsr_graph *graph)
{
    tsr_json_begin(json, interface->title, '[');
    for (size_t i = 0; i < interface->count(graph); i++) {
        const tsr_value *value = interface->at(graph, i);
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "name", tsr_value_name(value));
        tsr_json_string(json, "type", tsr_dtype_name(tsr_value_dtype(value)));
        if (tsr_value_rank(value) < 0) {
            tsr_json_null(json, "shape");
        } else {
            tsr_json_begin(json, "shape", '[');
            for (int k = 0; k < tsr_value_rank(value); k++) {
                tsr_dim dim = tsr_value_dim(value, k);
                if (dim.value >= 0)
                    tsr_json_int(json, NULL, dim.value);
                else
                    tsr_json_string(json, NULL, tsr_value_dim_name(value, k));
            }
            tsr_json_end(json);
        }
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Starts an object with the names of configuration and node. The caller adds keys and closes it.
static void json_entry(tsr_json *json, const tsr_node *node, const tsr_node_config *nc)
{
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "configuration", config_name(nc));
    tsr_json_string(json, "node", tsr_node_name(node));
    tsr_json_int(json, "index", tsr_node_index(node));
}

// Writes the specs of a node. `sharding` is null for an invalid spec.
static void json_specs(struct cli *cli, void *data, const tsr_node *node, const tsr_node_config *nc)
{
    tsr_json *json = data;
    for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++) {
        const tsr_spec *spec = tsr_node_config_spec(nc, i);
        const tsr_value *value = tsr_spec_value(spec);
        json_entry(json, node, nc);
        tsr_json_string(json, "value", value ? tsr_value_name(value) : NULL);
        tsr_json_string(json, "sharding", spec_label(cli, spec, NULL));
        tsr_json_end(json);
    }
}

static void json_stages(struct cli *cli, void *data, const tsr_node *node,
                        const tsr_node_config *nc)
{
    int64_t stage;
    (void)cli;
    if (!tsr_node_config_stage(nc, &stage))
        return;
    json_entry(data, node, nc);
    tsr_json_int(data, "stage", stage);
    tsr_json_end(data);
}

static const tsr_json_field weight_fields[] = {
    {JSON_FIELD(struct facts, "initializers", n_weights)},
    {JSON_FIELD(struct facts, "weights", weight_elements)},
    {JSON_FIELD(struct facts, "weight_bytes", weight_bytes)},
    {JSON_END},
};

// Writes versions and counts. Keys of "operators" are "MatMul" for ai.onnx and
// "com.microsoft.Gelu" for other domains.
static void json_head(tsr_json *json, const tsr_model *model, const struct facts *facts)
{
    tsr_json_int(json, "ir_version", tsr_model_ir_version(model));
    tsr_json_begin(json, "opsets", '{');
    for (size_t i = 0; i < tsr_model_opset_count(model); i++)
        tsr_json_int(json, tsr_model_opset_domain(model, i), tsr_model_opset_version(model, i));
    tsr_json_end(json);
    tsr_json_string(json, "producer", tsr_model_producer(model));
    tsr_json_int(json, "nodes", (int64_t)facts->n_nodes);
    tsr_json_begin(json, "operators", '{');
    for (size_t i = 0; i < facts->n_ops; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s%s", facts->ops[i].domain,
                 facts->ops[i].domain[0] ? "." : "", facts->ops[i].op);
        tsr_json_int(json, name, (int64_t)facts->ops[i].n);
    }
    tsr_json_end(json);
    tsr_json_fields(json, weight_fields, facts);
}

static int print_info_json(struct cli *cli, tsr_model *model, const struct facts *facts)
{
    tsr_json *json = cli_json(cli);
    json_head(json, model, facts);
    json_values(json, &inputs, tsr_model_graph(model));
    json_values(json, &outputs, tsr_model_graph(model));
    tsr_json_begin(json, "configurations", '[');
    for (size_t i = 0; i < tsr_model_config_count(model); i++) {
        const tsr_config *config = tsr_model_config(model, i);
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "name", tsr_config_name(config));
        tsr_json_int(json, "devices", tsr_config_devices(config));
        tsr_json_begin(json, "device_names", '[');
        for (size_t d = 0; d < tsr_config_device_name_count(config); d++)
            tsr_json_string(json, NULL, tsr_config_device_name(config, d));
        tsr_json_end(json);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    tsr_json_begin(json, "topologies", '[');
    each_topology(cli, model, json, json_topology);
    tsr_json_end(json);
    tsr_json_begin(json, "shardings", '[');
    each_entry(cli, model, json, json_specs);
    tsr_json_end(json);
    tsr_json_begin(json, "stages", '[');
    each_entry(cli, model, json, json_stages);
    tsr_json_end(json);
    return cli_print_json(cli, json, EXIT_DONE);
}

static int run_info(struct cli *cli)
{
    tsr_model *model = NULL;
    tsr_notation notation;
    if (!cli_notation(cli, &notation))
        return cli_usage(cli, "--notation needs tiles, mesh or sets");
    tsr_status status = tsr_model_load(cli->session, cli->arguments[0], &model);
    if (status != TSR_OK)
        return cli_finish(cli, status);
    struct facts facts = {0};
    count_ops(model, &facts);
    add_weights(tsr_model_graph(model), &facts);
    int code = cli->json ? print_info_json(cli, model, &facts) : print_text(cli, model, &facts);
    tsr_model_free(model);
    return code;
}

static const struct option options[] = {
    {"--notation", "NAME",
     "notation of shardings: tiles ({2,1:0,1}, default), mesh (S0,R@2x2) or sets (({0},{})@2x2)"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_info = {
    .name = "info",
    .arguments = "MODEL",
    .summary = "show the contents of a model: operators, weights, shardings",
    .example = "tessera info tests/models/bert_tiny/model.onnx",
    .options = options,
    .takes = {1, 1},
    .run = run_info,
};
