// SPDX-License-Identifier: Apache-2.0
// reference.c - prints the objects of a model as lines, or writes a model. reference.py compares
// the lines with those of Python's onnx. Usage: api_reference graph LIST | devices FILE | make OUT
// | annotate IN OUT | rename IN OUT
#include "tessera_cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tsr_session *s;

static void must(tsr_status st)
{
    if (st == TSR_OK)
        return;
    for (size_t i = 0; i < tsr_finding_count(s); i++)
        fputs(tsr_finding_text(s, i), stderr);
    exit(1);
}

static const char *name_of(const tsr_value *v)
{
    return v ? tsr_value_name(v) : "";
}

// ---- structure ---------------------------------------------------------------------------------

static unsigned crc32_of(const unsigned char *p, size_t n)
{
    unsigned c = ~0U;
    while (n--) {
        c ^= *p++;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ 0xedb88320U : c >> 1;
    }
    return ~c;
}

static void print_tensor(const char *what, const tsr_tensor *t)
{
    printf("%s %d [", what, (int)tsr_tensor_dtype(t));
    for (int i = 0; i < tsr_tensor_rank(t); i++)
        printf("%s%lld", i ? "," : "", (long long)tsr_tensor_dims(t)[i]);
    const void *bytes = NULL;
    size_t n = 0;
    if (tsr_tensor_dtype(t) == TSR_STRING || tsr_tensor_is_external(t)) {
        printf("] -\n");
        return;
    }
    must(tsr_tensor_data(t, &bytes, &n));
    printf("] %zu %08x\n", n, crc32_of(bytes, n));
}

static void print_type(const tsr_value *v)
{
    printf("%s %d ", tsr_value_name(v), (int)tsr_value_dtype(v));
    if (tsr_value_rank(v) < 0)
        printf("?");
    for (int i = 0; i < tsr_value_rank(v); i++) {
        tsr_dim d = tsr_value_dim(v, i);
        if (d.value >= 0)
            printf("[%lld]", (long long)d.value);
        else
            printf("[%s]", d.symbol);
    }
    printf("\n");
}

static void print_graph(const tsr_graph *g);

static void print_attr(const tsr_attr *a)
{
    const int64_t *v = NULL;
    size_t n = tsr_attr_ints(a, &v);
    printf("attr %s %d", tsr_attr_name(a), (int)tsr_attr_kind_of(a));
    if (tsr_attr_kind_of(a) == TSR_ATTR_INT)
        printf(" %lld", (long long)tsr_attr_int(a, 0));
    if (tsr_attr_kind_of(a) == TSR_ATTR_FLOAT)
        printf(" %a", (double)tsr_attr_float(a, 0));
    if (tsr_attr_kind_of(a) == TSR_ATTR_STRING) {
        const char *text = tsr_attr_string(a, &n);
        printf(" %zu %08x", n, crc32_of((const unsigned char *)text, n));
        n = 0;
    }
    for (size_t i = 0; i < n; i++)
        printf(" %lld", (long long)v[i]);
    printf("\n");
    if (tsr_attr_tensor(a))
        print_tensor("constant", tsr_attr_tensor(a));
    for (size_t i = 0; i < tsr_attr_graph_count(a); i++)
        print_graph(tsr_attr_graph(a, i));
}

static void print_node(const tsr_node *n)
{
    printf("node %s '%s' %s", tsr_node_op(n), tsr_node_domain(n), tsr_node_name(n));
    for (size_t i = 0; i < tsr_node_input_count(n); i++)
        printf(" <%s", name_of(tsr_node_input(n, i)));
    for (size_t i = 0; i < tsr_node_output_count(n); i++)
        printf(" >%s", name_of(tsr_node_output(n, i)));
    printf("\n");
    for (size_t i = 0; i < tsr_node_attr_count(n); i++)
        print_attr(tsr_node_attr(n, i));
}

static void print_graph(const tsr_graph *g)
{
    printf("graph %s\n", tsr_graph_name(g));
    for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
        printf("in ");
        print_type(tsr_graph_input(g, i));
    }
    for (size_t i = 0; i < tsr_graph_initializer_count(g); i++) {
        const tsr_value *v = tsr_graph_initializer(g, i);
        print_tensor(tsr_value_name(v), tsr_value_initializer(v));
    }
    for (const tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n))
        print_node(n);
    for (size_t i = 0; i < tsr_graph_output_count(g); i++) {
        printf("out ");
        print_type(tsr_graph_output(g, i));
    }
    for (const tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n))
        for (size_t i = 0; i < tsr_node_output_count(n); i++)
            if (tsr_node_output(n, i) && !tsr_value_is_output(tsr_node_output(n, i)) &&
                (tsr_value_dtype(tsr_node_output(n, i)) ||
                 tsr_value_rank(tsr_node_output(n, i)) >= 0)) {
                printf("type ");
                print_type(tsr_node_output(n, i));
            }
}

static void print_models(const char *list)
{
    char line[4096];
    FILE *f = fopen(list, "r");
    if (!f)
        exit(2);
    while (fgets(line, sizeof(line), f)) {
        tsr_model *m = NULL;
        line[strcspn(line, "\n")] = 0;
        must(tsr_model_load(s, line, &m));
        printf("file %s ir %lld\n", line, (long long)tsr_model_ir_version(m));
        for (size_t i = 0; i < tsr_model_opset_count(m); i++)
            printf("opset '%s' %lld\n", tsr_model_opset_domain(m, i),
                   (long long)tsr_model_opset_version(m, i));
        print_graph(tsr_model_graph(m));
        for (size_t i = 0; i < tsr_model_function_count(m); i++)
            printf("function %s %s %zu\n", tsr_function_domain(tsr_model_function(m, i)),
                   tsr_function_name(tsr_model_function(m, i)),
                   tsr_graph_node_count(tsr_function_graph(tsr_model_function(m, i))));
        tsr_model_free(m);
    }
    fclose(f);
}

// ---- annotations -------------------------------------------------------------------------------

static void print_ints(const char *what, const int64_t *v, size_t n)
{
    printf(" %s", what);
    for (size_t i = 0; i < n; i++)
        printf("%s%lld", i ? "," : " ", (long long)v[i]);
}

static void print_spec(const tsr_spec *p)
{
    const int64_t *v = NULL;
    size_t n = tsr_spec_devices(p, &v);
    printf("  spec %s", tsr_spec_value(p) ? tsr_value_name(tsr_spec_value(p)) : "-");
    print_ints("device", v, n);
    for (size_t i = 0; i < tsr_spec_group_count(p); i++) {
        printf(" group %lld", (long long)tsr_spec_group(p, i, &v, &n));
        print_ints("=", v, n);
    }
    for (size_t i = 0; i < tsr_spec_dim_count(p); i++) {
        printf(" axis %lld", (long long)tsr_spec_dim_axis(p, i));
        for (size_t k = 0; k < tsr_spec_dim_factor_count(p, i); k++) {
            tsr_dim size;
            int64_t shards = tsr_spec_dim_factor(p, i, k, &size);
            if (size.value >= 0)
                printf(" %lld/%lld", (long long)size.value, (long long)shards);
            else
                printf(" %s/%lld", size.symbol[0] ? size.symbol : "?", (long long)shards);
        }
    }
    printf("\n");
}

static void print_devices(const char *path)
{
    tsr_model *m = NULL;
    must(tsr_model_load(s, path, &m));
    for (size_t i = 0; i < tsr_model_config_count(m); i++) {
        const tsr_config *c = tsr_model_config(m, i);
        printf("config %s %lld", tsr_config_name(c), (long long)tsr_config_devices(c));
        for (size_t k = 0; k < tsr_config_device_name_count(c); k++)
            printf(" %s", tsr_config_device_name(c, k));
        printf("\n");
    }
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n))
        for (size_t i = 0; i < tsr_node_config_count(n); i++) {
            const tsr_node_config *nc = tsr_node_config_at(n, i);
            const tsr_config *c = tsr_node_config_target(nc);
            int64_t stage = -1;
            tsr_node_config_stage(nc, &stage);
            printf("%s: %s stage %lld\n", tsr_node_name(n), c ? tsr_config_name(c) : "-",
                   (long long)stage);
            for (size_t k = 0; k < tsr_node_config_spec_count(nc); k++)
                print_spec(tsr_node_config_spec(nc, k));
        }
    tsr_model_free(m);
}

// ---- writing -----------------------------------------------------------------------------------

// Adds stages and shardings to all nodes. They depend only on node and axis numbers, so that every
// run writes the same annotations.
static void annotate(tsr_model *m)
{
    tsr_config *two = NULL, *four = NULL;
    const char *names[] = {"CPU", "GPU"};
    must(tsr_model_add_config(m, "two", 0, names, 2, &two));
    must(tsr_model_add_config(m, "four", 4, NULL, 0, &four));
    int64_t count = 0;
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n), count++) {
        must(tsr_node_set_stage(n, two, count % 3));
        for (size_t i = 0; i < tsr_node_input_count(n); i++) {
            tsr_value *v = tsr_node_input(n, i);
            if (!v || tsr_node_sharding_of(n, v, 0) || tsr_value_rank(v) < 1)
                continue;
            int64_t size = tsr_value_dim(v, 0).value;
            if (size < 0 || size >= 2)
                must(tsr_node_shard(n, v, two, 0, 2, (int64_t[]){1, 0}, 2, -1));
            size = tsr_value_dim(v, tsr_value_rank(v) - 1).value;
            if (size < 0 || size >= 4)
                must(tsr_node_shard(n, v, four, -1, 4, NULL, 0, -1));
        }
        tsr_value *out = tsr_node_output(n, 0);
        if (!out)
            continue;
        tsr_spec *p = tsr_node_add_spec(n, four, out);
        must(tsr_spec_set_devices(p, (int64_t[]){-1, -2}, 2));
        must(tsr_spec_add_group(p, -1, (int64_t[]){0, 1}, 2));
        must(tsr_spec_add_group(p, -2, (int64_t[]){2, 3}, 2));
        tsr_dim sizes[] = {{-1, "heads"}, {16, ""}, {-1, ""}};
        must(tsr_spec_add_dim(p, 0, sizes, (int64_t[]){2, 1, 1}, 3));
    }
}

static tsr_model *make(void)
{
    tsr_model *m = NULL;
    must(tsr_model_new(s, "made", 10, &m));
    must(tsr_model_set_opset(m, "", 18));
    tsr_graph *g = tsr_model_graph(m);
    float w[32];
    for (int i = 0; i < 32; i++)
        w[i] = (float)i;
    tsr_value *x = tsr_graph_add_input(g, "x");
    must(tsr_value_set_type(x, TSR_FLOAT, 2, (tsr_dim[]){{-1, "N"}, {4, ""}}));
    tsr_value *in[] = {
        x, tsr_graph_add_initializer(g, "W", TSR_FLOAT, 2, (int64_t[]){4, 8}, w, sizeof(w))};
    tsr_node *mm = tsr_graph_add_node(g, "", "MatMul", "mm", in, 2, (const char *[]){"h"}, 1);
    tsr_value *h = tsr_node_output(mm, 0);
    must(tsr_value_set_type(h, TSR_FLOAT, 2, (tsr_dim[]){{-1, "N"}, {8, ""}}));
    tsr_node *soft = tsr_graph_add_node(g, "", "Softmax", "soft", &h, 1, (const char *[]){"y"}, 1);
    must(tsr_node_set_int(soft, "axis", -1));
    tsr_value *y = tsr_node_output(soft, 0);
    must(tsr_value_set_type(y, TSR_FLOAT, 2, (tsr_dim[]){{-1, "N"}, {8, ""}}));
    must(tsr_graph_add_output(g, y));
    must(tsr_model_set_metadata(m, "made", "here"));
    annotate(m);
    return m;
}

static void rename_all(tsr_model *m)
{
    char name[64];
    unsigned k = 0;
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n))
        for (size_t i = 0; i < tsr_node_output_count(n); i++) {
            tsr_value *v = tsr_node_output(n, i);
            if (!v || tsr_value_is_output(v))
                continue;
            snprintf(name, sizeof(name), "renamed/%u", k++);
            must(tsr_value_rename(v, name));
        }
    for (size_t i = 0; i < tsr_graph_initializer_count(tsr_model_graph(m)); i++) {
        snprintf(name, sizeof(name), "weight/%zu", i);
        must(tsr_value_rename(tsr_graph_initializer(tsr_model_graph(m), i), name));
    }
}

int main(int argc, char **argv)
{
    tsr_model *m = NULL;
    s = tsr_session_new(NULL);
    if (argc < 3 || !s)
        return 2;
    if (strcmp(argv[1], "graph") == 0) {
        print_models(argv[2]);
    } else if (strcmp(argv[1], "devices") == 0) {
        print_devices(argv[2]);
    } else if (strcmp(argv[1], "make") == 0) {
        m = make();
        must(tsr_model_save(m, argv[2]));
    } else if (argc > 3) {
        must(tsr_model_load(s, argv[2], &m));
        if (strcmp(argv[1], "annotate") == 0)
            annotate(m);
        else
            rename_all(m);
        must(tsr_model_save(m, argv[3]));
    }
    tsr_model_free(m);
    tsr_session_free(s);
    return 0;
}
