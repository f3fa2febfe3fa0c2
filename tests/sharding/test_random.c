// SPDX-License-Identifier: Apache-2.0
// test_random.c - random graphs with random specs. Whatever the flow decides, each device's piece
// of each tensor must be the one that its part of the rule's factors implies, element by element.
#include "../valgrind.h"
#include "common.h"

#include <stdio.h>

#define GRAPHS     (under_valgrind() ? 250u : 1500u)
#define MAX_VALUES 40

struct drawn {
    struct bench *b;
    tsr_model *m;
    tsr_graph *g;
    tsr_config *c;
    int64_t devices;
    uint64_t seed;
    tsr_value *values[MAX_VALUES]; // with their shapes
    int64_t dims[MAX_VALUES][6];
    int rank[MAX_VALUES], n;
    size_t cut, reduced, replicated, refined, turns,
        refused; // counted, so that the test is known not to be empty
};

static uint64_t draw(struct drawn *t, uint64_t below)
{
    t->seed = t->seed * 6364136223846793005u + 1442695040888963407u;
    return (t->seed >> 33) % below;
}

static int add_value(struct drawn *t, tsr_value *v, int rank, const int64_t *dims)
{
    t->values[t->n] = v;
    t->rank[t->n] = rank;
    memcpy(t->dims[t->n], dims, (size_t)rank * sizeof(int64_t));
    return t->n++;
}

static int add_constant(struct drawn *t, int rank, const int64_t *dims)
{
    static const float zeros[24 * 24 * 24];
    char name[32];
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    snprintf(name, sizeof(name), "v%d", t->n);
    tsr_value *v;
    if (draw(t, 2)) {
        v = tsr_graph_add_initializer(t->g, name, TSR_FLOAT, rank, dims, zeros, (size_t)n * 4);
    } else {
        tsr_dim d[6];
        for (int i = 0; i < rank; i++)
            d[i] = (tsr_dim){.value = dims[i], .symbol = ""};
        v = tsr_graph_add_input(t->g, name);
        assert_int_equal(tsr_value_set_type(v, TSR_FLOAT, rank, d), TSR_OK);
    }
    assert_non_null(v);
    return add_value(t, v, rank, dims);
}

static tsr_node *add_node(struct drawn *t, const char *op, int x, tsr_value *second, int rank,
                          const int64_t *dims)
{
    char name[32];
    const char *out = name;
    snprintf(name, sizeof(name), "v%d", t->n);
    tsr_value *in[] = {t->values[x], second};
    tsr_node *n = tsr_graph_add_node(t->g, "", op, name, in, second ? 2 : 1, &out, 1);
    assert_non_null(n);
    add_value(t, tsr_node_output(n, 0), rank, dims);
    return n;
}

static void grow_matmul(struct drawn *t, int x)
{
    int r = t->rank[x];
    int64_t w[] = {t->dims[x][r - 1], (int64_t)(2 + draw(t, 7))}, out[6];
    memcpy(out, t->dims[x], sizeof(out));
    out[r - 1] = w[1];
    int y = add_constant(t, 2, w);
    add_node(t, "MatMul", x, t->values[y], r, out);
}

static void grow_add(struct drawn *t, int x)
{
    int drop = (int)draw(t, (uint64_t)t->rank[x]), rank = t->rank[x] - drop;
    int64_t d[6];
    for (int i = 0; i < rank; i++)
        d[i] = draw(t, 3) ? t->dims[x][drop + i] : 1;
    int y = add_constant(t, rank, d);
    add_node(t, "Add", x, t->values[y], t->rank[x], t->dims[x]);
}

static void grow_transpose(struct drawn *t, int x)
{
    int r = t->rank[x];
    int64_t perm[6], d[6];
    for (int i = 0; i < r; i++)
        perm[i] = i;
    for (int i = r - 1; i > 0; i--) {
        int k = (int)draw(t, (uint64_t)i + 1);
        int64_t keep = perm[i];
        perm[i] = perm[k];
        perm[k] = keep;
    }
    for (int i = 0; i < r; i++)
        d[i] = t->dims[x][perm[i]];
    assert_int_equal(
        tsr_node_set_ints(add_node(t, "Transpose", x, NULL, r, d), "perm", perm, (size_t)r),
        TSR_OK);
}

// Reshapes to another factorization of the same number of elements.
static void grow_reshape(struct drawn *t, int x)
{
    int64_t rest = 1, d[6];
    int r = 0;
    for (int i = 0; i < t->rank[x]; i++)
        rest *= t->dims[x][i];
    while (r < 4 && rest > 1) {
        int64_t f = (int64_t)(2 + draw(t, 11));
        if (r == 3 || rest % f == 0) {
            d[r] = r == 3 ? rest : f;
            rest /= d[r++];
        } else if (!draw(t, 12)) {
            d[r++] = rest;
            rest = 1;
        }
    }
    if (!r)
        d[r++] = 1;
    char name[32];
    int64_t rank = r;
    snprintf(name, sizeof(name), "s%d", t->n);
    tsr_value *shape = tsr_graph_add_initializer(t->g, name, TSR_INT64, 1, &rank, d, (size_t)r * 8);
    add_node(t, "Reshape", x, shape, r, d);
}

static void grow(struct drawn *t)
{
    int x = (int)draw(t, (uint64_t)t->n);
    if (t->rank[x] == 0)
        return;
    switch (draw(t, 6)) {
    case 0:
        grow_matmul(t, x);
        break;
    case 1:
        grow_add(t, x);
        break;
    case 2:
        grow_transpose(t, x);
        break;
    case 3:
    case 4:
        grow_reshape(t, x);
        break;
    default:
        add_node(t, draw(t, 3) ? "Relu" : "Frob", x, NULL, t->rank[x], t->dims[x]);
    }
}

// Adds a random sharding of one value at one node, by text; those that do not fit are ignored.
static void annotate(struct drawn *t)
{
    int v = (int)draw(t, (uint64_t)t->n),
        axis = t->rank[v] ? (int)draw(t, (uint64_t)t->rank[v]) : 0;
    char text[256], dims[128] = "";
    int64_t shards = 1, size = t->rank[v] ? t->dims[v][axis] : 1;
    size_t at = 0;
    for (int i = 0; i < t->rank[v]; i++) {
        int64_t cuts = i == axis ? (int64_t)(1 + draw(t, size < 4 ? (uint64_t)size : 4)) : 1;
        int64_t inner = (int64_t)(2 + draw(t, 4));
        const char *comma = i ? "," : "";
        if (cuts > 1 && size % inner == 0 && size / inner >= cuts && draw(t, 2))
            at += (size_t)snprintf(dims + at, sizeof(dims) - at, "%s%d/%d*%d", comma,
                                   (int)(size / inner), (int)cuts, (int)inner);
        else if (cuts > 1 && size % inner == 0 && inner >= cuts && draw(t, 3) == 0)
            at += (size_t)snprintf(dims + at, sizeof(dims) - at, "%s%d*%d/%d", comma,
                                   (int)(size / inner), (int)inner, (int)cuts);
        else
            at += (size_t)snprintf(dims + at, sizeof(dims) - at, "%s%d", comma, (int)cuts);
        shards *= cuts;
    }
    at = (size_t)snprintf(text, sizeof(text), "{%s:", t->rank[v] ? dims : "1");
    bool groups = draw(t, 2) && shards > 1 && t->devices % shards == 0, any = draw(t, 5) == 0;
    for (int64_t k = 0; k < shards; k++) {
        int64_t per = groups ? t->devices / shards : 1;
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", k ? "," : "",
                               per > 1 ? "(" : "");
        for (int64_t i = 0; i < per; i++)
            at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%d", i ? "," : "",
                                   (int)(any ? (int64_t)draw(t, (uint64_t)t->devices)
                                         : groups && draw(t, 2) ? k + i * shards
                                                                : k * per + i));
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s", per > 1 ? ")" : "");
    }
    snprintf(text + at, sizeof(text) - at, "}");
    for (tsr_node *n = tsr_graph_first(t->g); n; n = tsr_node_next(n))
        for (size_t i = 0; i <= tsr_node_input_count(n); i++) {
            bool out = i == tsr_node_input_count(n);
            if ((out ? tsr_node_output(n, 0) : tsr_node_input(n, i)) == t->values[v] && draw(t, 2))
                (void)tsr_node_shard_text(n, t->values[v], t->c, text);
        }
    tsr_finding_clear(t->b->session);
}

// ---- expected properties -----------------------------------------------------------------------

// Marks the elements of a dimension that a device has by its part of the factors.
static void by_factors(const struct placement *p, size_t device, const struct rule_dim *d,
                       int64_t size, char *mark)
{
    for (int64_t e = 0; e < size; e++) {
        int64_t rest = e;
        bool in = true;
        for (int k = d->n - 1; k >= 0; k--) {
            int f = d->factors[k];
            int64_t n = p->rule->factors[f].size.value, at = rest % n;
            struct tile_interval part = placement_part(p, (int64_t)device, f, n);
            in = in && at >= part.start && at < part.stop;
            rest /= n;
        }
        mark[e] = in;
    }
}

static void by_layout(struct bench *b, const struct tile_layout *l, int64_t device,
                      const int64_t *shape, int dim, char *mark)
{
    int64_t shard = tsr__layout_shard_of(l, device, 0);
    assert_true(shard >= 0);
    const struct tile_piece *piece = tsr__layout_piece(&b->arena, l, shape, shard);
    assert_non_null(piece);
    memset(mark, 0, (size_t)shape[dim]);
    for (int64_t i = 0; i < piece->dims[dim].n; i++)
        for (int64_t e = piece->dims[dim].at[i].start; e < piece->dims[dim].at[i].stop; e++)
            mark[e] = 1;
}

static void check_tensor(struct drawn *t, const struct placement *p, const struct rule_tensor *r,
                         const struct tile_layout *l, const tsr_value *v)
{
    int id = 0;
    char want[4096], got[4096];
    while (id < t->n && t->values[id] != v)
        id++;
    if (id == t->n || r->host)
        return; // a shape tensor
    assert_int_equal(l->rank, t->rank[id]);
    for (size_t i = 0; i < p->n_devices; i++)
        for (int d = 0; d < l->rank; d++) {
            assert_true(t->dims[id][d] <= 4096);
            by_factors(p, i, &r->dims[d], t->dims[id][d], want);
            by_layout(t->b, l, p->devices[i], t->dims[id], d, got);
            assert_memory_equal(want, got, (size_t)t->dims[id][d]);
        }
}

// Each group has every part of the reduced factors once, and its members agree in all other
// factors. A member may have several parts.
static void check_groups(const struct node_flow *nf)
{
    const struct placement *p = &nf->place;
    size_t rows = 0, factors = (size_t)p->rule->n_factors;
    for (size_t g = 0; g < nf->n_groups; g++) {
        int64_t seen = 0, parts = 1;
        size_t first = 0;
        while (p->devices[first] != nf->groups[g].devices[0])
            first++;
        for (size_t a = 0; a < p->n_devices; a++) {
            int64_t part = 0;
            size_t i = 0;
            while (i < nf->groups[g].n && p->devices[a] != nf->groups[g].devices[i])
                i++;
            if (i == nf->groups[g].n)
                continue;
            parts = 1;
            rows++;
            for (size_t f = 0; f < factors; f++) {
                if (p->rule->factors[f].kind == FACTOR_RED) {
                    part = part * p->cuts[f] + p->coords[a * factors + f];
                    parts *= p->cuts[f];
                } else {
                    assert_int_equal(p->coords[a * factors + f], p->coords[first * factors + f]);
                }
            }
            assert_false(seen >> part & 1);
            seen |= (int64_t)1 << part;
        }
        assert_int_equal(seen, ((int64_t)1 << parts) - 1);
    }
    assert_true(nf->n_groups == 0 || rows == p->n_devices);
}

// A device with several shards computes them in turns. The layouts of each turn must match its part
// of the placement, and the turns together must cover all shards once.
static void check_turns(struct drawn *t, const struct node_flow *nf)
{
    const struct placement *all = &nf->place;
    struct arena *arena = &t->b->arena;
    size_t seen = 0;
    for (size_t turn = 0; seen < all->n_devices; turn++) {
        struct placement p;
        assert_true(tsr__placement_turn(arena, all, turn, &p) && p.n_devices > 0);
        for (size_t i = 0; i < tsr_node_input_count(nf->node); i++)
            check_tensor(t, &p, &p.rule->inputs[i],
                         tsr__placement_project(arena, &p, &p.rule->inputs[i]),
                         tsr_node_input(nf->node, i));
        check_tensor(t, &p, &p.rule->outputs[0],
                     tsr__placement_project(arena, &p, &p.rule->outputs[0]),
                     tsr_node_output(nf->node, 0));
        seen += p.n_devices;
        t->turns += turn > 0;
    }
    assert_int_equal(seen, all->n_devices);
    assert_true(tsr__layout_equal(nf->outputs[0],
                                  tsr__placement_project(arena, all, &all->rule->outputs[0])));
}

static void check_node(struct drawn *t, const struct node_flow *nf)
{
    const struct placement *p = &nf->place;
    assert_true(p->n_devices > 0);
    t->replicated += nf->replicated != NULL;
    t->reduced += nf->n_groups > 0;
    if (p->rule->whole)
        return;
    check_turns(t, nf);
    check_groups(nf);
    for (int f = 0; f < p->rule->n_factors; f++) {
        t->cut += p->cuts[f] > 1;
        t->refined += strchr(p->rule->factors[f].name, '_') != NULL;
    }
}

static void forget(struct drawn *t)
{
    tsr_finding_clear(t->b->session);
    tsr__arena_free(&t->b->arena);
    tsr_model_free(t->m);
}

static void build(struct drawn *t, uint64_t seed)
{
    int64_t x[] = {(int64_t)(2 + seed % 5), 6, 8};
    t->n = 0;
    t->seed = seed * 7919 + 13;
    t->devices = (int64_t)(1 + draw(t, 8)) * (seed % 3 ? 2 : 1);
    assert_int_equal(tsr_model_new(t->b->session, "g", 11, &t->m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(t->m, "", 18), TSR_OK);
    assert_int_equal(tsr_model_add_config(t->m, "c", t->devices, NULL, 0, &t->c), TSR_OK);
    t->g = tsr_model_graph(t->m);
    add_constant(t, 3, x);
    for (uint64_t i = 0, n = 3 + draw(t, 10); i < n; i++)
        grow(t);
    for (uint64_t i = 0, n = 1 + draw(t, 8); i < n; i++)
        annotate(t);
}

static void one_graph(struct drawn *t, uint64_t seed)
{
    build(t, seed);
    const struct flow *f = tsr__flow_new(&t->b->arena, t->m, t->c);
    for (size_t i = 0; !f && i < tsr_finding_count(t->b->session); i++)
        print_message("seed %d: %s", (int)seed, tsr_finding_text(t->b->session, i));
    assert_non_null(f);
    for (size_t i = 0; i < f->n_nodes; i++)
        check_node(t, &f->nodes[i]);
    tsr_finding_clear(t->b->session);
    // contradictory shardings are rejected; the flow had replicated such a node
    tsr_status inferred = tsr_infer(t->m, NULL);
    if (inferred == TSR_INVALID) {
        size_t whole = 0;
        for (size_t i = 0; i < f->n_nodes; i++)
            whole += f->nodes[i].replicated != NULL;
        assert_true(whole > 0 && found(t->b->session, "spec-disagree"));
        t->refused++;
        forget(t);
        return;
    }
    // inferring must succeed, change no decision, and change nothing the second time
    assert_int_equal(inferred, TSR_OK);
    void *first, *second;
    size_t n1, n2;
    assert_int_equal(tsr_model_save_bytes(t->m, &first, &n1), TSR_OK);
    assert_int_equal(tsr_infer(t->m, NULL), TSR_OK);
    assert_int_equal(tsr_model_save_bytes(t->m, &second, &n2), TSR_OK);
    assert_true(n1 == n2 && memcmp(first, second, n1) == 0);
    const struct flow *again = tsr__flow_new(&t->b->arena, t->m, t->c);
    assert_non_null(again);
    for (size_t i = 0; i < f->n_nodes; i++) {
        assert_true(tsr__layout_equal(f->nodes[i].outputs[0], again->nodes[i].outputs[0]));
        for (size_t k = 0; k < tsr_node_input_count(f->nodes[i].node); k++)
            assert_true(tsr__layout_equal(f->nodes[i].inputs[k], again->nodes[i].inputs[k]));
    }
    tsr_bytes_free(t->b->session, first, n1);
    tsr_bytes_free(t->b->session, second, n2);
    forget(t);
}

static void test_random_graphs(void **state)
{
    struct drawn t = {.b = *state};
    for (uint64_t seed = 0; seed < GRAPHS; seed++)
        one_graph(&t, seed);
    print_message("%zu cut factors, %zu reductions, %zu refined factors, %zu nodes left whole, "
                  "%zu turns\n",
                  t.cut, t.reduced, t.refined, t.replicated, t.turns);
    assert_true(t.turns > GRAPHS / 30);
    assert_true(t.cut > GRAPHS && t.reduced > GRAPHS / 15 && t.refined > GRAPHS / 30 &&
                t.replicated > GRAPHS / 30);
    assert_true(t.refused > 0 && t.refused < GRAPHS / 4);
}

// ---- backwards and sideways --------------------------------------------------------------------

static size_t cut_specs(const struct drawn *t)
{
    size_t n = 0;
    for (const tsr_node *at = tsr_graph_first(t->g); at; at = tsr_node_next(at)) {
        const tsr_node_config *nc = tsr_node_find_config(at, t->c);
        for (size_t i = 0; nc && i < tsr_node_config_spec_count(nc); i++)
            n += tsr_spec_dim_count(tsr_node_config_spec(nc, i)) > 0;
    }
    return n;
}

// The explicit specs of t must be unchanged in the copy after inference.
static void check_explicit(struct drawn *t, const tsr_model *copy, const tsr_config *c)
{
    const struct shapes *shapes = tsr__shapes_new(&t->b->arena, t->m);
    const tsr_node *twin = tsr_graph_first(tsr_model_graph(copy));
    for (const tsr_node *n = tsr_graph_first(t->g); n; n = tsr_node_next(n)) {
        const tsr_node_config *was = tsr_node_find_config(n, t->c);
        const tsr_node_config *is = tsr_node_find_config(twin, c);
        for (size_t i = 0; was && i < tsr_node_config_spec_count(was); i++) {
            const tsr_spec *p = tsr_node_config_spec(was, i), *q = tsr_node_config_spec(is, i);
            struct shape shape = tsr__shapes_of(shapes, tsr_spec_value(p));
            struct tile_layout *l = NULL, *k = NULL;
            assert_string_equal(tsr_value_name(tsr_spec_value(p)),
                                tsr_value_name(tsr_spec_value(q)));
            assert_int_equal(tsr__spec_layout(&t->b->arena, p, &shape, true, &l), TSR_OK);
            assert_int_equal(tsr__spec_layout(&t->b->arena, q, &shape, true, &k), TSR_OK);
            assert_true((!l && !k) || tsr__layout_equal(l, k));
        }
        twin = tsr_node_next(twin);
    }
}

static void one_propagation(struct drawn *t, uint64_t seed, size_t *plain, size_t *more)
{
    tsr_model *original;
    void *first, *second;
    size_t n1, n2;
    build(t, seed);
    assert_int_equal(tsr_model_clone(t->m, &original), TSR_OK);
    if (tsr_infer(original, NULL) == TSR_OK) {
        struct drawn simple = *t;
        simple.g = tsr_model_graph(original);
        simple.c = tsr_model_config(original, 0);
        *plain += cut_specs(&simple);
        tsr_model *copy;
        assert_int_equal(tsr_model_clone(t->m, &copy), TSR_OK);
        assert_int_equal(tsr_infer(copy, &(tsr_infer_options){.size = sizeof(tsr_infer_options),
                                                              .propagate = true}),
                         TSR_OK);
        check_explicit(t, copy, tsr_model_config(copy, 0));
        simple.g = tsr_model_graph(copy);
        simple.c = tsr_model_config(copy, 0);
        *more += cut_specs(&simple);
        assert_int_equal(tsr_model_save_bytes(copy, &first, &n1), TSR_OK);
        tsr_finding_clear(t->b->session);
        assert_int_equal(tsr__check(copy, NULL), TSR_OK);
        for (size_t i = 0; i < tsr_finding_count(t->b->session); i++)
            assert_int_not_equal(tsr_finding_value(t->b->session, i).severity, TSR_ERROR);
        assert_int_equal(tsr_infer(copy, &(tsr_infer_options){.size = sizeof(tsr_infer_options),
                                                              .propagate = seed % 2}),
                         TSR_OK);
        assert_int_equal(tsr_model_save_bytes(copy, &second, &n2), TSR_OK);
        assert_true(n1 == n2 && memcmp(first, second, n1) == 0);
        tsr_bytes_free(t->b->session, first, n1);
        tsr_bytes_free(t->b->session, second, n2);
        tsr_model_free(copy);
    }
    tsr_model_free(original);
    forget(t);
}

static void test_random_propagation(void **state)
{
    struct drawn t = {.b = *state};
    size_t plain = 0, more = 0;
    for (uint64_t seed = 0; seed < GRAPHS; seed++)
        one_propagation(&t, seed, &plain, &more);
    print_message("%zu shardings that cut without propagation, %zu with it\n", plain, more);
    assert_true(more > plain + GRAPHS / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_random_graphs, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_random_propagation, bench_setup, bench_teardown),
    };
    return cmocka_run_group_tests_name("random", tests, NULL, NULL);
}
