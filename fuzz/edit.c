// SPDX-License-Identifier: Apache-2.0
// edit.c - fuzzes editing: loads a model from memory, applies edits, and checks all invariants.
//
// Input: number of edits k, k times three bytes (what, which, with), the model. After the edits
// every use must be linked once, every producer must have its output, and the saved bytes must load
// to a model with the same nodes and names.
#include "tessera_cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)
#define NODES 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct table {
    tsr_model *m;
    tsr_node *nodes[NODES];
    size_t n;
};

static void fill(struct table *t)
{
    t->n = 0;
    for (tsr_node *n = tsr_model_next_node(t->m, NULL); n && t->n < NODES;
         n = tsr_model_next_node(t->m, n))
        t->nodes[t->n++] = n;
}

static tsr_value *value_of(const tsr_node *n, uint8_t which)
{
    size_t in = tsr_node_input_count(n), all = in + tsr_node_output_count(n);
    if (!all)
        return NULL;
    size_t i = which % all;
    return i < in ? tsr_node_input(n, i) : tsr_node_output(n, i - in);
}

static tsr_config *config_of(struct table *t, uint8_t with)
{
    size_t n = tsr_model_config_count(t->m);
    return n ? tsr_model_config(t->m, with % n) : NULL;
}

static void annotate(struct table *t, tsr_node *n, uint8_t which, uint8_t with)
{
    tsr_config *c = config_of(t, with);
    tsr_value *v = value_of(n, which);
    switch (which % 7) {
    case 0:
        (void)!tsr_node_shard(n, v, c, (int8_t)with, 2, (int64_t[]){0, 1}, 2, with % 4 - 1);
        break;
    case 1:
        (void)!tsr_node_set_stage(n, c, with);
        break;
    case 2:
        (void)!tsr_node_unshard(n, v, with & 1 ? c : NULL);
        break;
    case 3:
        (void)!tsr_node_unset_stage(n, c);
        break;
    case 4: {
        tsr_spec *p = tsr_node_add_spec(n, c, v);
        if (p && with & 1)
            (void)!tsr_spec_add_dim(p, with, &(tsr_dim){-1, "N"}, (int64_t[]){2}, 1);
        if (p && with & 2)
            (void)!tsr_spec_add_group(p, -1, (int64_t[]){0, 1}, 2);
        break;
    }
    case 5:
        if (tsr_node_config_count(n))
            (void)!tsr_node_remove_config(n,
                                          tsr_node_config_at(n, with % tsr_node_config_count(n)));
        break;
    default:
        if (c)
            (void)!(with & 1 ? tsr_model_remove_config(t->m, c, with & 2)
                             : tsr_config_rename(c, with & 2 ? "p" : "q"));
    }
}

static void build(struct table *t, tsr_node *n, uint8_t which, uint8_t with)
{
    char name[16];
    tsr_graph *g = tsr_node_graph(n);
    tsr_value *v = value_of(n, which);
    snprintf(name, sizeof name, "f%d", with % 8);
    switch (which % 5) {
    case 0:
        (void)!tsr_graph_add_node(g, "", "Neg", name, &v, 1, (const char *[]){name}, 1);
        break;
    case 1:
        (void)!tsr_graph_add_initializer(g, name, TSR_FLOAT, 0, NULL, "1234", 4);
        break;
    case 2:
        (void)!tsr_graph_add_input(g, name);
        break;
    case 3:
        if (v)
            (void)!tsr_graph_add_output(g, v);
        break;
    default:
        (void)!tsr_model_add_config(t->m, name, with % 4, NULL, 0, NULL);
    }
}

static void edit(struct table *t, const uint8_t *op)
{
    char name[16];
    fill(t);
    if (!t->n)
        return;
    tsr_node *n = t->nodes[op[1] % t->n], *other = t->nodes[op[2] % t->n];
    tsr_value *v = value_of(n, op[2]), *w = value_of(other, op[1]);
    snprintf(name, sizeof name, "r%d", op[2] % 8);
    switch (op[0] % 12) {
    case 0:
        (void)!(v ? tsr_value_rename(v, name) : TSR_OK);
        break;
    case 1:
        (void)!tsr_node_replace_input(n, op[2] % 4, w);
        break;
    case 2:
        (void)!(v ? tsr_value_replace_uses(v, w, op[2] & 1) : TSR_OK);
        break;
    case 3:
        (void)!tsr_node_remove(n);
        break;
    case 4:
        (void)!tsr_node_move_before(n, op[2] & 1 ? other : NULL);
        break;
    case 5:
        (void)!tsr_node_resize_outputs(n, op[2] % 4);
        break;
    case 6:
        (void)!tsr_node_inline(n);
        break;
    case 7:
        (void)!(op[2] & 1 ? tsr_node_set_ints(n, "axes", (int64_t[]){op[2]}, 1)
                          : tsr_node_remove_attr(n, "axes"));
        break;
    case 8:
        (void)!(v ? tsr_value_set_type(v, op[1] % 20, op[2] % 3, (tsr_dim[]){{2, ""}, {-1, "N"}})
                  : TSR_OK);
        break;
    case 9:
        build(t, n, op[1], op[2]);
        break;
    case 10:
        annotate(t, n, op[1], op[2]);
        break;
    default: {
        tsr_model *copy = NULL;
        if (tsr_model_clone(t->m, &copy) != TSR_OK)
            return;
        tsr_model_free(t->m);
        t->m = copy;
    }
    }
}

struct count {
    const tsr_node *node;
    size_t input, seen, all;
};

static bool count(void *data, tsr_node *n, size_t input)
{
    struct count *c = data;
    c->seen += n == c->node && input == c->input;
    c->all++;
    return true;
}

static void check(const tsr_model *m)
{
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n)) {
        for (size_t i = 0; i < tsr_node_input_count(n); i++) {
            struct count c = {n, i, 0, 0};
            tsr_value *v = tsr_node_input(n, i);
            if (!v)
                continue;
            tsr_value_uses(v, count, &c);
            MUST(c.seen == 1 && c.all == tsr_value_use_count(v));
        }
        for (size_t i = 0; i < tsr_node_output_count(n); i++)
            MUST(!tsr_node_output(n, i) || tsr_value_producer(tsr_node_output(n, i)) == n);
    }
}

static const char *name_of(const tsr_value *v)
{
    return v ? tsr_value_name(v) : "";
}

static void compare(const tsr_model *a, const tsr_model *b)
{
    tsr_node *n = tsr_model_next_node(a, NULL), *k = tsr_model_next_node(b, NULL);
    for (; n && k; n = tsr_model_next_node(a, n), k = tsr_model_next_node(b, k)) {
        MUST(strcmp(tsr_node_op(n), tsr_node_op(k)) == 0);
        MUST(tsr_node_input_count(n) == tsr_node_input_count(k));
        MUST(tsr_node_output_count(n) == tsr_node_output_count(k));
        MUST(tsr_node_attr_count(n) == tsr_node_attr_count(k));
        MUST(tsr_node_config_count(n) == tsr_node_config_count(k));
        for (size_t i = 0; i < tsr_node_input_count(n); i++)
            MUST(strcmp(name_of(tsr_node_input(n, i)), name_of(tsr_node_input(k, i))) == 0);
        for (size_t i = 0; i < tsr_node_output_count(n); i++)
            MUST(strcmp(name_of(tsr_node_output(n, i)), name_of(tsr_node_output(k, i))) == 0);
    }
    MUST(!n && !k);
    MUST(tsr_model_config_count(a) == tsr_model_config_count(b));
    MUST(tsr_graph_output_count(tsr_model_graph(a)) == tsr_graph_output_count(tsr_model_graph(b)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1 || n < 1 + 3 * (size_t)(data[0] % 32))
        return 0;
    size_t edits = data[0] % 32;
    const uint8_t *ops = data + 1, *model = ops + 3 * edits;
    tsr_session_options options = {.size = sizeof options, .memory_limit = (size_t)256 << 20};
    tsr_session *s = tsr_session_new(&options);
    struct table t = {0};
    if (tsr_model_load_bytes(s, model, n - (size_t)(model - data), &t.m) == TSR_OK) {
        for (size_t i = 0; i < edits; i++)
            edit(&t, ops + 3 * i);
        check(t.m);
        void *bytes;
        size_t size;
        tsr_model *again = NULL;
        if (tsr_model_save_bytes(t.m, &bytes, &size) == TSR_OK) {
            if (tsr_model_load_bytes(s, bytes, size, &again) == TSR_OK) {
                compare(t.m, again);
                check(again);
            }
            tsr_model_free(again);
            tsr_bytes_free(s, bytes, size);
        }
    }
    tsr_model_free(t.m);
    tsr_session_free(s);
    return 0;
}
