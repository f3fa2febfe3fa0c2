// SPDX-License-Identifier: Apache-2.0
// test_rules.c - the table, the notation, size expressions, shapes, and rules of single nodes.
// prove.py checks that the rules are correct.
#include "common.h"

#include <stdio.h>

// ---- building models: a dimension is a number or a symbol, as in "batch 3 x" --------------------

static int read_dims(const char *text, tsr_dim *dims, char *buffer, size_t size)
{
    int n = 0;
    assert_true(strlen(text) < size);
    memcpy(buffer, text, strlen(text) + 1);
    for (char *save = NULL, *w = strtok_r(buffer, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        int64_t number;
        bool is_number = tsr__str_int(str_of(w), &number);
        bool open = strcmp(w, "?") == 0;
        dims[n++] =
            (tsr_dim){.value = is_number ? number : -1, .symbol = is_number || open ? "" : w};
    }
    return n;
}

static tsr_value *input(struct bench *b, const char *name, const char *dims)
{
    char buffer[128];
    tsr_dim d[16];
    int n = read_dims(dims, d, buffer, sizeof(buffer));
    tsr_value *v = tsr_graph_add_input(b->graph, name);
    assert_non_null(v);
    assert_int_equal(tsr_value_set_type(v, TSR_FLOAT, n, d), TSR_OK);
    return v;
}

static tsr_value *ints(struct bench *b, const char *name, int64_t n, const int64_t *v)
{
    return tsr_graph_add_initializer(b->graph, name, TSR_INT64, 1, &n, v, (size_t)n * 8);
}

static tsr_node *node(struct bench *b, const char *op, tsr_value *x, tsr_value *y, const char *out)
{
    tsr_value *in[] = {x, y};
    tsr_node *n = tsr_graph_add_node(b->graph, "", op, out, in, y ? 2 : x ? 1 : 0, &out, 1);
    assert_non_null(n);
    return n;
}

static const struct rule *rule_of(struct bench *b, const tsr_node *n)
{
    const struct shapes *s = tsr__shapes_new(&b->arena, b->model);
    assert_non_null(s);
    const struct rule *r = tsr__rule_of(&b->arena, n, s);
    assert_non_null(r);
    return r;
}

// A rule as text for comparison: "[a b],[b c] -> [a c]; red b", without sizes. If the node cannot
// be sharded: the reason.
static const char *rule_text(struct bench *b, const tsr_node *n)
{
    const struct rule *r = rule_of(b, n);
    struct str s = STR("");
    if (r->whole)
        return tsr__arena_printf(&b->arena, "whole: %s", r->whole).p;
    for (int side = 0; side < 2; side++) {
        const struct rule_tensor *t = side ? r->outputs : r->inputs;
        for (int i = 0; i < (side ? r->n_outputs : r->n_inputs); i++) {
            s = tsr__arena_printf(&b->arena, STR_FMT "%s", STR_ARG(s),
                                  i      ? ","
                                  : side ? " -> "
                                         : "");
            if (t[i].host || t[i].absent) {
                s = tsr__arena_printf(&b->arena, STR_FMT "%s", STR_ARG(s), t[i].host ? "." : "-");
                continue;
            }
            s = tsr__arena_printf(&b->arena, STR_FMT "[", STR_ARG(s));
            for (int d = 0; d < t[i].rank; d++) {
                const struct rule_dim *dim = &t[i].dims[d];
                s = tsr__arena_printf(&b->arena, STR_FMT "%s%s", STR_ARG(s), d ? " " : "",
                                      dim->n == 0  ? "1"
                                      : dim->n > 1 ? "("
                                                   : "");
                for (int k = 0; k < dim->n; k++)
                    s = tsr__arena_printf(&b->arena, STR_FMT "%s%s", STR_ARG(s), k ? " " : "",
                                          r->factors[dim->factors[k]].name);
                if (dim->n > 1)
                    s = tsr__arena_printf(&b->arena, STR_FMT ")", STR_ARG(s));
            }
            s = tsr__arena_printf(&b->arena, STR_FMT "]", STR_ARG(s));
        }
    }
    for (int f = 0; f < r->n_factors; f++)
        if (r->factors[f].kind != FACTOR_PAR)
            s = tsr__arena_printf(&b->arena, STR_FMT "; %s %s", STR_ARG(s),
                                  r->factors[f].kind == FACTOR_RED ? "red" : "rep",
                                  r->factors[f].name);
    return s.p;
}

static const char *size_text(struct bench *b, const tsr_node *n, const char *factor)
{
    const struct rule *r = rule_of(b, n);
    for (int f = 0; f < r->n_factors; f++)
        if (strcmp(r->factors[f].name, factor) == 0)
            return r->factors[f].size.value >= 0
                       ? tsr__arena_printf(&b->arena, "%lld", (long long)r->factors[f].size.value).p
                       : r->factors[f].size.symbol;
    return "no such factor";
}

// ---- the table ---------------------------------------------------------------------------------

static void check_table(struct bench *b, const struct op_table *table)
{
    const struct op_row *last = &(struct op_row){.op = ""};
    for (size_t i = 0; i < table->n; i++) {
        const struct op_row *row = &table->rows[i];
        const char *wrong = NULL;
        assert_true(row->rule || row->whole); // a rule, or the reason why there is none
        if (row->rule && !tsr__pattern_parse(&b->arena, str_of(row->rule), &wrong))
            fail_msg("%s: %s", row->op, wrong ? wrong : "out of memory");
        int order = strcmp(last->op, row->op);
        if (order == 0)
            order = strcmp(text_or_none(last->domain), text_or_none(row->domain));
        assert_true(order < 0 || (order == 0 && last->since < row->since));
        assert_true(row->since >= 1);
        assert_ptr_equal(
            tsr__row_in_table(str_of(row->op), str_of(text_or_none(row->domain)), row->since), row);
        last = row;
    }
}

static void test_rows_parse_and_are_sorted(void **state)
{
    check_table(*state, &tsr__onnx_table);
    check_table(*state, &tsr__microsoft_table);
    check_table(*state, &tsr__ml_table);
    assert_ptr_equal(tsr__row_at(tsr__onnx_table.n), &tsr__microsoft_table.rows[0]);
    assert_null(tsr__row_at(tsr__onnx_table.n + tsr__microsoft_table.n + tsr__ml_table.n));
}

static void test_notation_refuses(void **state)
{
    struct bench *b = *state;
    static const struct {
        const char *text, *wrong;
    } cases[] = {
        {"[a] -> [a]; red a:sum", "a reduced factor is in an output"},
        {"[a b] -> [a]", "a factor that only inputs have needs a clause"},
        {"[a] -> [a b]", "a factor that only outputs have needs gen or rep"},
        {"[a b] -> [a]; red b:sum; rep b", "a factor has two clauses"},
        {"[a b] -> [a]; red b", "red needs one of :sum :max :min :prod"},
        {"[a b] -> [a]; red b:mode", "red needs one of :sum :max :min :prod"},
        {"[a] -> [a]; rep c", "a clause names a factor that no tensor has"},
        {"[a] -> [a]; gen a", "a generated factor is in an input"},
        {"[a] -> [a]; shape 1", "shape, once and route need the number of an input"},
        {"[a] -> [a]; frob a", "unknown clause"},
        {"[a] -> [a]; word side a", "word and share need name=factor"},
        {"[a] -> [a]; share list=b", "word and share need name=factor"},
        {"[a] -> [a]; word side=a", "word needs a value for each element"},
        {"[a] -> [a] x", "text after the rule"},
        {"[a] [a]", "expected '->'"},
        {"[a -> [a]", "expected a factor"},
        {"a -> [a]", "expected a tensor: [..] or ·"},
        {"[()] -> []", "empty product"},
        {"[(A b)] -> [A b]", "a pack cannot be in a product"},
        {"[a*] -> [a]", "'*' is for packs (capitals)"},
        {"[a]…,[a] -> [a]", "only the last tensor may repeat"},
        {"[a] -> [a]; blk a", "blk needs a unit: blk f/32"},
        {"[a] -> [a]; attr heads", "attr needs name=factor"},
    };
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        const char *wrong = NULL;
        assert_null(tsr__pattern_parse(&b->arena, str_of(cases[i].text), &wrong));
        assert_non_null(wrong);
        assert_string_equal(wrong, cases[i].wrong);
    }
}

static void test_notation_reads_clauses(void **state)
{
    struct bench *b = *state;
    const char *wrong;
    struct pattern *p = tsr__pattern_parse(&b->arena,
                                           STR("[A* (h d) k],·?,[k]? -> [A* h d]; red k:max; blk "
                                               "h/4; attr num_heads=h; once 2; P:none; flops 2"),
                                           &wrong);
    assert_non_null(p);
    assert_int_equal(p->n_inputs, 3);
    assert_true(p->inputs[1].host && p->inputs[1].optional);
    assert_int_equal(p->inputs[0].dims[1].n, 2);
    assert_int_equal(p->letters[3].kind, FACTOR_RED);
    assert_int_equal(p->letters[3].combine, COMBINE_MAX);
    assert_int_equal(p->letters[1].unit, 4);
    assert_int_equal(p->n_rewrites, 2);
    assert_string_equal(p->rewrites[0].attribute, "num_heads");
    p = tsr__pattern_parse(
        &b->arena, STR("[v] -> [v]; word direction=v forward reverse; share names=v"), &wrong);
    assert_non_null(p);
    assert_string_equal(p->rewrites[0].word.words, "forward reverse");
    assert_int_equal(p->rewrites[1].kind, REWRITE_SHARE);
    p = tsr__pattern_parse(&b->arena, STR("[A* r] -> [A* r]; stat r"), &wrong);
    assert_non_null(p);
    assert_int_equal(p->letters[1].kind, FACTOR_STAT);
    p = tsr__pattern_parse(&b->arena, STR(" -> [a]; gen a"), &wrong);
    assert_non_null(p);
    assert_int_equal(p->n_inputs, 0);
}

// ---- rules that are built step by step ---------------------------------------------------------

// Builds the example of rule_build.c, and compares it with the same rule as text.
static void test_builder_makes_the_rule_of_its_text(void **state)
{
    struct bench *b = *state;
    static struct rule_builder rule;
    const char *wrong;
    tsr__rule_start(&rule, &b->arena);
    tsr__rule_input(&rule);
    tsr__rule_range(&rule, 'd', 0, 2);
    tsr__rule_dims(&rule, "(h k)~");
    tsr__rule_output(&rule);
    tsr__rule_dim(&rule, 'd', 1);
    tsr__rule_dim(&rule, 'd', 0);
    tsr__rule_kind(&rule, FACTOR_STAT, "h");
    tsr__rule_reduce(&rule, tsr__rule_find(&rule, STR("k")), COMBINE_SUM);
    const struct pattern *built = tsr__rule_built(&rule);
    struct pattern *read =
        tsr__pattern_parse(&b->arena, STR("[d0 d1 (h k)~] -> [d1 d0]; stat h; red k:sum"), &wrong);
    assert_non_null(built);
    assert_non_null(read);
    assert_int_equal(built->n_letters, read->n_letters);
    for (int i = 0; i < read->n_letters; i++) {
        assert_true(str_eq(built->letters[i].name, read->letters[i].name));
        assert_int_equal(built->letters[i].kind, read->letters[i].kind);
        assert_int_equal(built->letters[i].in, read->letters[i].in);
        assert_int_equal(built->letters[i].out, read->letters[i].out);
    }
    assert_int_equal(built->inputs[0].n_dims, 3);
    assert_int_equal(built->inputs[0].dims[2].n, 2);
    assert_true(built->inputs[0].dims[2].broadcast);
    assert_int_equal(built->outputs[0].dims[0].letters[0], 1);
}

// After an error, later calls of the builder have no effect.
static void test_builder_keeps_the_first_error(void **state)
{
    struct bench *b = *state;
    static struct rule_builder rule;
    tsr__rule_start(&rule, &b->arena);
    tsr__rule_text(&rule, "[a] -> [a]");
    tsr__rule_kind(&rule, FACTOR_REP, "a");
    tsr__rule_kind(&rule, FACTOR_STAT, "a");
    tsr__rule_patch(&rule, 0, PATCH_SIZE, 0, 0);
    assert_null(tsr__rule_built(&rule));
    assert_string_equal(rule.wrong, "a factor has two clauses");
    assert_int_equal(rule.letters[0].kind, FACTOR_REP);
}

// Patches refer to an entry of the last list, and to a window or factor that exists.
static void test_builder_checks_patches(void **state)
{
    struct bench *b = *state;
    static struct rule_builder rule;
    static const int64_t pads[] = {1, 1};
    for (int entry = 1; entry < 3; entry++) {
        tsr__rule_start(&rule, &b->arena);
        tsr__rule_text(&rule, "[a^] -> [a]");
        tsr__rule_window(&rule, (struct rule_window){.from = 4, .to = 4, .step = 1, .reach = 1});
        tsr__rule_list(&rule, NO_INPUT, "pads", pads, 2);
        tsr__rule_patch(&rule, entry, PATCH_AFTER, 0, 0);
        const struct pattern *built = tsr__rule_built(&rule);
        if (entry == 1)
            assert_int_equal(built->lists[0].patches[0].at, 1);
        else
            assert_null(built);
    }
    tsr__rule_start(&rule, &b->arena);
    tsr__rule_text(&rule, "[a^] -> [a]");
    tsr__rule_window(&rule, (struct rule_window){.factor = NO_LETTER, .step = 1});
    assert_null(tsr__rule_built(&rule));
}

// ---- expressions -------------------------------------------------------------------------------

static tsr_dim symbol(const char *s)
{
    return (tsr_dim){.value = -1, .symbol = s};
}

static void test_sizes_compare(void **state)
{
    struct bench *b = *state;
    struct exprs x;
    tsr__exprs_init(&x, &b->arena);
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"seq*batch", "batch * seq", true},
        {"((batch*seq)//batch)", "seq", true},
        {"2*s*3", "6*s", true},
        {"(a*b)*(c)", "c*(b*a)", true},
        {"past + 1", "past+1", true},
        {"past + 1", "past", false},
        {"(past+1)*h", "h*(past + 1)", true},
        {"a*b", "a*c", false},
        {"a*a", "a", false},
        {"a//b", "a // b", true},
        {"a//2", "a", false},
        {"a**2", "a*2", false},
        {"a/b*b", "a", true},
        {"max(a, b)", "max(a,b)", true},
        {"", "", false},
        {"()", "()", true},
        {"((a", "((a", true},
        {"a*", "a", false},
    };
    for (size_t i = 0; i < TSR_COUNT(cases); i++)
        if (tsr__dim_equal(&x, symbol(cases[i].a), symbol(cases[i].b)) != cases[i].same)
            fail_msg("'%s' and '%s'", cases[i].a, cases[i].b);
    // "2*3" is a name, of any size
    assert_false(tsr__dim_equal(&x, (tsr_dim){.value = 6}, symbol("2*3")));
    assert_false(tsr__dim_equal(&x, (tsr_dim){.value = -1}, (tsr_dim){.value = -1}));
}

static void test_sizes_print(void **state)
{
    struct bench *b = *state;
    static const char *const cases[] = {"b*a*2", "2*a*b", "(p+1)*h", "(p+1)*h", "p + 1", "p + 1"};
    struct exprs x;
    tsr__exprs_init(&x, &b->arena);
    for (size_t i = 0; i < TSR_COUNT(cases); i += 2) {
        struct expr e = tsr__expr_of(&x, symbol(cases[i]));
        tsr_dim d = tsr__expr_dim(&x, e);
        assert_true(tsr__dim_equal(&x, d, symbol(cases[i + 1])));
    }
    struct expr huge = tsr__expr_of(&x, symbol("9223372036854775807*4*a"));
    assert_true(huge.known && huge.poly->n == 1 && huge.poly->terms[0].n == 1); // one symbol
}

// ---- rules of nodes ----------------------------------------------------------------------------

static void test_matmul(void **state)
{
    struct bench *b = *state;
    tsr_value *x = input(b, "x", "batch 1 4 5"), *w = input(b, "w", "3 5 n");
    tsr_node *n = node(b, "MatMul", x, w, "y");
    assert_string_equal(rule_text(b, n), "[B0 1 m k],[B1 k n] -> [B0 B1 m n]; red k");
    assert_string_equal(size_text(b, n, "B0"), "batch");
    assert_string_equal(size_text(b, n, "B1"), "3");
    assert_string_equal(size_text(b, n, "n"), "n");
    const struct shapes *s = tsr__shapes_new(&b->arena, b->model);
    struct shape y = tsr__shapes_of(s, tsr_node_output(n, 0));
    assert_int_equal(y.rank, 4);
    assert_string_equal(y.dims[0].symbol, "batch");
    assert_int_equal(y.dims[2].value, 4);
    assert_int_equal(y.dtype, TSR_FLOAT);
}

// With a sharded k, the bias of a Gemm must be added by one device only.
static void test_gemm_once(void **state)
{
    struct bench *b = *state;
    tsr_value *in[] = {input(b, "x", "5 4"), input(b, "w", "6 5"), input(b, "c", "6")};
    const char *out = "y";
    tsr_node *n = tsr_graph_add_node(b->graph, "", "Gemm", "g", in, 3, &out, 1);
    assert_int_equal(tsr_node_set_int(n, "transA", 1), TSR_OK);
    assert_int_equal(tsr_node_set_int(n, "transB", 1), TSR_OK);
    assert_string_equal(rule_text(b, n), "[k m],[n k],[n] -> [m n]; red k");
    const struct rule *r = rule_of(b, n);
    assert_int_equal(r->n_rewrites, 1);
    assert_int_equal(r->rewrites[0].kind, REWRITE_ADD_ONCE);
    assert_int_equal(r->rewrites[0].input, 2);
    in[2] = NULL;
    out = "z";
    n = tsr_graph_add_node(b->graph, "", "Gemm", "h", in, 2, &out, 1);
    assert_int_equal(rule_of(b, n)->n_rewrites, 0);
}

// A dimension that may or may not be broadcast must not be sharded.
static void test_broadcast_in_doubt_stays_whole(void **state)
{
    struct bench *b = *state;
    tsr_value *x = input(b, "x", "batch seq 4"), *y = input(b, "y", "other 4");
    assert_string_equal(rule_text(b, node(b, "Add", x, y, "a")),
                        "[A0 A1 A2],[A1 A2] -> [A0 A1 A2]; rep A1");
    tsr_value *z = input(b, "z", "7 4");
    assert_string_equal(rule_text(b, node(b, "Add", x, z, "c")),
                        "[A0 A1 A2],[A1 A2] -> [A0 A1 A2]; rep A1");
    tsr_value *u = input(b, "u", "? 4"), *one = input(b, "one", "1 4");
    assert_string_equal(rule_text(b, node(b, "Add", x, u, "d")),
                        "[A0 A1 A2],[A1 A2] -> [A0 A1 A2]; rep A1");
    assert_string_equal(rule_text(b, node(b, "Add", x, one, "e")),
                        "[A0 A1 A2],[1 A2] -> [A0 A1 A2]");
}

// Nodes that cannot be sharded, and the reasons.
static void test_whole_with_reasons(void **state)
{
    struct bench *b = *state;
    tsr_value *x = input(b, "x", "3 4"), *y = input(b, "y", "5");
    tsr_value *open = tsr_graph_add_input(b->graph, "open");
    assert_string_equal(
        rule_text(b, node(b, "Frob", x, NULL, "a")),
        "whole: there is no rule for this operator (of this opset): give all its tensors "
        "shardings, or a rule (--rules)");
    assert_string_equal(
        rule_text(b, node(b, "Gelu", x, NULL, "a2")),
        "whole: there is no rule for this operator (of this opset): give all its tensors "
        "shardings, or a rule (--rules)");
    assert_string_equal(rule_text(b, node(b, "Add", x, y, "c")),
                        "whole: the sizes of the tensors do not fit together");
    assert_string_equal(
        rule_text(b, node(b, "Relu", open, NULL, "d")),
        "whole: the number of dimensions of an input is unknown: declare its shape");
    assert_string_equal(
        rule_text(b, node(b, "ConstantOfShape", open, NULL, "d2")),
        "whole: the number of dimensions of an output is unknown: declare its shape");
    assert_string_equal(rule_text(b, node(b, "Relu", x, y, "e")),
                        "whole: more inputs than the rule has");
    assert_string_equal(rule_text(b, node(b, "Add", x, NULL, "f")), "[A0 A1] -> [A0 A1]");
    assert_string_equal(rule_text(b, node(b, "PRelu", y, x, "g")),
                        "whole: tensors have different numbers of dimensions");
    tsr_node *t = node(b, "Transpose", x, NULL, "h");
    int64_t perm[] = {0, 0};
    assert_int_equal(tsr_node_set_ints(t, "perm", perm, 2), TSR_OK);
    assert_string_equal(rule_text(b, t), "whole: the rule of this node could not be built");
    perm[1] = 2;
    assert_int_equal(tsr_node_set_ints(t, "perm", perm, 2), TSR_OK);
    assert_string_equal(rule_text(b, t), "whole: perm has an invalid dimension");
    // The rule is rejected in the middle of its text: later additions must not overwrite the
    // reason.
    tsr_value *in[] = {input(b, "image", "1 4 8 8"), input(b, "kernel", "6 4 3 3"),
                       input(b, "point", ""), input(b, "points", "n")};
    const char *out = "i";
    tsr_node *conv = tsr_graph_add_node(b->graph, "", "ConvInteger", out, in, 4, &out, 1);
    assert_non_null(conv);
    assert_string_equal(rule_text(b, conv),
                        "whole: a scale may be one for each channel or one for all");
}

static tsr_node *reshape(struct bench *b, const char *from, const char *to)
{
    static int count;
    char name[32];
    snprintf(name, sizeof(name), "in%d", count);
    tsr_value *x = input(b, name, from);
    char buffer[128];
    tsr_dim d[16];
    int64_t v[16];
    int n = read_dims(to, d, buffer, sizeof(buffer));
    bool constant = true;
    for (int i = 0; i < n; i++) {
        v[i] = d[i].value;
        if (d[i].value < 0 && strcmp(d[i].symbol, "-1") == 0)
            v[i] = -1;
        else if (d[i].value < 0)
            constant = false;
    }
    snprintf(name, sizeof(name), "shape%d", count);
    tsr_value *shape = constant ? ints(b, name, n, v) : tsr_graph_add_input(b->graph, name);
    snprintf(name, sizeof(name), "out%d", count++);
    tsr_node *r = node(b, "Reshape", x, shape, name);
    if (!constant)
        assert_int_equal(tsr_value_set_type(tsr_node_output(r, 0), TSR_FLOAT, n, d), TSR_OK);
    return r;
}

// Which dimensions of a Reshape are products of common factors.
static void test_reshape_factors(void **state)
{
    struct bench *b = *state;
    static const struct {
        const char *from, *to, *rule;
    } cases[] = {
        {"8 32", "2 4 32", "[(f0 f1) f2],. -> [f0 f1 f2]"},
        {"8 4", "2 16", "[(f0 f1) f2],. -> [f0 (f1 f2)]"},
        {"6 4", "4 6", "[(f0 f1) f2],. -> [(f0 f3) f4]; rep f1; rep f2; rep f3; rep f4"},
        {"4 1 6", "4 6", "[f0 1 f1],. -> [f0 f1]"},
        {"batch seq 64", "-1 64", "[f0 f1 f2],. -> [(f0 f1) f2]"},
        {"seq*batch 64", "batch seq 64", "[(f0 f1) f2],. -> [f0 f1 f2]"},
        {"batch seq 64", "seq*batch 64", "[f0 f1 f2],. -> [(f0 f1) f2]"},
        {"batch seq 64", "batch seq 4 16", "[f0 f1 (f2 f3)],. -> [f0 f1 f2 f3]"},
        {"batch seq 64", "0 0 4 16", "[f0 f1 (f2 f3)],. -> [f0 f1 f2 f3]"},
        {"? 64", "batch seq 64", "[(f1 f2) f0],. -> [f1 f2 f0]"},
        {"batch seq 4", "seq batch 4",
         "[f0 f1 f4],. -> [f2 f3 f4]; rep f0; rep f1; rep f2; rep f3"},
        {"batch 12", "3*batch 4", "[f0 (f1 f2)],. -> [(f0 f1) f2]"},
        {"batch*seq 64", "batch seq 4 16", "[(f0 f1) (f2 f3)],. -> [f0 f1 f2 f3]"},
        {"1", "1 1", "[1],. -> [1 1]"},
    };
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        const char *got = rule_text(b, reshape(b, cases[i].from, cases[i].to));
        if (strcmp(got, cases[i].rule) != 0)
            fail_msg("%s -> %s: %s, not %s", cases[i].from, cases[i].to, got, cases[i].rule);
    }
    assert_string_equal(rule_text(b, reshape(b, "0 4", "0 4")),
                        "whole: a dimension has no elements");
    assert_string_equal(rule_text(b, reshape(b, "12", "5 x")),
                        "whole: the sizes of the tensors do not fit together");
}

// Shape -> Gather -> Concat -> Reshape: only the type of the input is declared.
static void test_values_are_followed(void **state)
{
    struct bench *b = *state;
    tsr_value *x = input(b, "x", "batch seq 64");
    int64_t one = 1, minus[] = {-1}, heads[] = {4};
    tsr_node *shape = node(b, "Shape", x, NULL, "shape");
    tsr_value *of = tsr_node_output(shape, 0);
    tsr_dim three = {.value = 3, .symbol = ""};
    assert_int_equal(tsr_value_set_type(of, TSR_INT64, 1, &three), TSR_OK);
    tsr_node *seq = node(b, "Gather", of, ints(b, "at", 1, &one), "seq");
    tsr_value *parts[] = {ints(b, "m", 1, minus), tsr_node_output(seq, 0), ints(b, "h", 1, heads),
                          ints(b, "d", 1, minus)};
    int64_t sixteen = 16;
    parts[3] = ints(b, "e", 1, &sixteen);
    const char *name = "target";
    tsr_node *cat = tsr_graph_add_node(b->graph, "", "Concat", "cat", parts, 4, &name, 1);
    assert_int_equal(tsr_node_set_int(cat, "axis", 0), TSR_OK);
    tsr_node *r = node(b, "Reshape", x, tsr_node_output(cat, 0), "y");
    assert_string_equal(rule_text(b, r), "[f0 f1 (f2 f3)],. -> [f0 f1 f2 f3]");
    const struct shapes *s = tsr__shapes_new(&b->arena, b->model);
    struct shape y = tsr__shapes_of(s, tsr_node_output(r, 0));
    assert_int_equal(y.rank, 4);
    assert_string_equal(y.dims[0].symbol, "batch");
    int64_t v[4];
    assert_int_equal(tsr__shapes_ints(s, parts[2], v, 4), 1);
    assert_int_equal(v[0], 4);
    assert_int_equal(tsr__shapes_ints(s, tsr_node_output(seq, 0), v, 4), -1);
}

// Which nodes are valid in a graph of another opset.
static void test_versions_fit(void **state)
{
    (void)state;
    static const struct {
        const char *op, *domain;
        int64_t from, to;
        bool fits;
    } cases[] = {
        {"Relu", "", 14, 18, true},       {"Relu", "", 18, 14, true},
        {"Relu", "", 5, 6, false},        {"ReduceSum", "", 11, 18, false},
        {"ReduceMean", "", 13, 17, true}, {"ReduceMean", "", 17, 18, false},
        {"Cast", "", 13, 24, true},       {"Cast", "", 24, 13, false}, // changed in 24
        {"Split", "", 13, 18, false},     {"Gelu", "", 20, 18, false}, // not available before
        {"Softmax", "", 12, 13, false},   {"MatMul", "", 1, 28, true},
        {"RoiAlign", "", 15, 16, false},  {"Strange", "", 1, 2, false},
        {"Strange", "my", 1, 2, false},   {"Strange", "my", 2, 2, true},
        {"Relu", "my", 14, 18, false},
    };
    for (size_t i = 0; i < TSR_COUNT(cases); i++)
        if (tsr__version_fits(str_of(cases[i].op), str_of(cases[i].domain), cases[i].from,
                              cases[i].to) != cases[i].fits)
            fail_msg("%s of '%s' from %d to %d", cases[i].op, cases[i].domain, (int)cases[i].from,
                     (int)cases[i].to);
}

// Rules that the user adds with tsr_rules_add.
static void test_rows_of_the_user(void **state)
{
    struct bench *b = *state;
    tsr_value *x = tsr_graph_add_input(b->graph, "x");
    const char *y = "y";
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 2, (tsr_dim[]){{8, ""}, {6, ""}}), TSR_OK);
    assert_int_equal(tsr_model_set_opset(b->model, "my", 3), TSR_OK);
    tsr_node *n = tsr_graph_add_node(b->graph, "my", "Rows", "r", &x, 1, &y, 1);
    const struct rule *r = tsr__rule_of(&b->arena, n, tsr__shapes_new(&b->arena, b->model));
    assert_true(r->open && r->whole);

    // one line is invalid: none is added
    assert_int_equal(tsr_rules_add(b->session, "Rows my 1 [m k] -> [m]; red k:sum\nRows my 2 [m"),
                     TSR_MALFORMED);
    tsr_finding f = tsr_finding_value(b->session, 0);
    assert_string_equal(f.code, "rule-text");
    assert_non_null(strstr(f.message, "line 2"));
    assert_true(tsr__rule_of(&b->arena, n, tsr__shapes_new(&b->arena, b->model))->open);

    assert_int_equal(tsr_rules_add(b->session, "# two versions\n\nRows my 1 whole: it is old\n"
                                               "Rows my 2 [m k] -> [m]; red k:sum\n"
                                               "Rows my 4 whole: it is new\n"),
                     TSR_OK);
    const struct shapes *s = tsr__shapes_new(&b->arena, b->model);
    r = tsr__rule_of(&b->arena, n, s);
    assert_null(r->whole);
    assert_int_equal(r->n_factors, 2);
    assert_int_equal(tsr__shapes_of(s, tsr_node_output(n, 0)).rank, 1);
    assert_int_equal(tsr__shapes_of(s, tsr_node_output(n, 0)).dims[0].value, 8);
    assert_int_equal(tsr_rules_add(b->session, "Add ai.onnx 1 [A*],[A*] -> [A*]"), TSR_MALFORMED);
    assert_int_equal(tsr_rules_add(b->session, "Own my 1 [m^] -> [m]; win 0 0 m 4 2 2 0 2"),
                     TSR_MALFORMED);
}

// Without an import of the domain, the newest row is used, as ONNX Runtime uses its newest
// operator.
static void test_domain_not_imported(void **state)
{
    struct bench *b = *state;
    tsr_value *x = tsr_graph_add_input(b->graph, "x");
    const char *y = "y", *z = "z";
    tsr_dim dims[] = {{4, ""}, {32, ""}, {6, ""}, {5, ""}};
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 4, dims), TSR_OK);
    tsr_node *pool =
        tsr_graph_add_node(b->graph, "com.microsoft.nchwc", "GlobalMaxPool", "p", &x, 1, &y, 1);
    tsr_node *own = tsr_graph_add_node(b->graph, "my", "Rows", "r", &x, 1, &z, 1);
    assert_int_equal(tsr_rules_add(b->session, "Rows my 1 whole: it is old\n"
                                               "Rows my 4 [n A*] -> [n]; rep A\n"),
                     TSR_OK);
    const struct shapes *s = tsr__shapes_new(&b->arena, b->model);
    assert_null(tsr__rule_of(&b->arena, pool, s)->whole);
    struct shape pooled = tsr__shapes_of(s, tsr_node_output(pool, 0));
    assert_int_equal(pooled.dtype, TSR_FLOAT);
    assert_int_equal(pooled.rank, 4);
    assert_int_equal(pooled.dims[3].value, 1);
    assert_null(tsr__rule_of(&b->arena, own, s)->whole);
    assert_int_equal(tsr__shapes_of(s, tsr_node_output(own, 0)).rank, 1);
}

// tsr_cache_has_room is true for caches that an operator can update in place.
static void test_caches_with_room(void **state)
{
    struct bench *b = *state;
    static const char *const names[] = {"packed", "past_key", "past_value", "lengths", "total"};
    static const char *const outs[] = {"y", "present_key", "present_value"};
    const char *grown = "grown", *seen = "seen";
    tsr_value *in[5];
    for (size_t i = 0; i < TSR_COUNT(in); i++)
        in[i] = tsr_graph_add_input(b->graph, names[i]);
    assert_int_equal(tsr_model_set_opset(b->model, "com.microsoft", 1), TSR_OK);
    tsr_value *all[] = {in[0], NULL, NULL, in[1], in[2], in[3], in[4]};
    tsr_node *node = tsr_graph_add_node(b->graph, "com.microsoft", "GroupQueryAttention", "a", all,
                                        TSR_COUNT(all), outs, TSR_COUNT(outs));
    tsr_value *key = tsr_node_output(node, 1), *value = tsr_node_output(node, 2);
    assert_true(tsr_cache_has_room(in[1], key));
    assert_true(tsr_cache_has_room(in[2], value));
    assert_false(tsr_cache_has_room(in[1], value)); // the output of the other cache
    assert_false(tsr_cache_has_room(in[0], tsr_node_output(node, 0)));

    // a cache that grows, and one that another node reads
    tsr_value *pair[] = {in[3], in[4]};
    tsr_node *join = tsr_graph_add_node(b->graph, "", "Concat", "c", pair, 2, &grown, 1);
    assert_false(tsr_cache_has_room(in[3], tsr_node_output(join, 0)));
    assert_non_null(tsr_graph_add_node(b->graph, "", "Shape", "s", &in[1], 1, &seen, 1));
    assert_false(tsr_cache_has_room(in[1], key));
}

// Adds an input [b, h, t, d] of floats.
static tsr_value *cache_input(struct bench *b, const char *name)
{
    tsr_dim dims[] = {{-1, "b"}, {4, ""}, {-1, "t"}, {16, ""}};
    tsr_value *value = tsr_graph_add_input(b->graph, name);
    assert_int_equal(tsr_value_set_type(value, TSR_FLOAT, 4, dims), TSR_OK);
    return value;
}

// Caches are found by the usual names, and by the node that appends to them.
static void test_cache_pairs(void **state)
{
    struct bench *b = *state;
    assert_true(tsr_cache_names_match("past_key_values.3.key", "present.3.key"));
    assert_true(tsr_cache_names_match("past_key_values.3.key", "present_key_values.3.key"));
    assert_true(tsr_cache_names_match("decoder.past_3", "decoder.present_3"));
    assert_false(tsr_cache_names_match("past_3", "present_30"));
    assert_false(tsr_cache_names_match("past_3", "present_4"));
    assert_false(tsr_cache_names_match("x", "present"));

    static const char *const ins[] = {"q", "k", "v", "k_in", "v_in"};
    static const char *const outs[] = {"y", "k_out", "v_out"};
    tsr_value *in[5];
    for (size_t i = 0; i < TSR_COUNT(in); i++)
        in[i] = cache_input(b, ins[i]);
    tsr_value *all[] = {in[0], in[1], in[2], NULL, in[3], in[4]};
    assert_int_equal(tsr_model_set_opset(b->model, "", 23), TSR_OK);
    tsr_node *node = tsr_graph_add_node(b->graph, "", "Attention", "a", all, TSR_COUNT(all), outs,
                                        TSR_COUNT(outs));
    assert_null(tsr_cache_present(in[3])); // not an output of the model yet
    for (size_t i = 0; i < TSR_COUNT(outs); i++)
        assert_int_equal(tsr_graph_add_output(b->graph, tsr_node_output(node, i)), TSR_OK);
    assert_ptr_equal(tsr_cache_present(in[3]), tsr_node_output(node, 1));
    assert_ptr_equal(tsr_cache_present(in[4]), tsr_node_output(node, 2));
    assert_null(tsr_cache_present(in[0]));

    // A Concat extends a cache if the model reads its result.
    const char *grown = "grown", *read = "read";
    tsr_value *pair[] = {cache_input(b, "c_in"), in[1]};
    tsr_node *join = tsr_graph_add_node(b->graph, "", "Concat", "c", pair, 2, &grown, 1);
    tsr_value *result = tsr_node_output(join, 0);
    assert_int_equal(tsr_graph_add_output(b->graph, result), TSR_OK);
    assert_null(tsr_cache_present(pair[0]));
    assert_non_null(tsr_graph_add_node(b->graph, "", "Relu", "r", &result, 1, &read, 1));
    assert_ptr_equal(tsr_cache_present(pair[0]), result);
    assert_null(tsr_cache_present(in[1])); // the new tokens

    // The new tokens are not a cache.
    struct cache_growth growth;
    assert_int_equal(tsr_node_set_int(join, "axis", -2), TSR_OK);
    assert_true(tsr__cache_grows(pair[0], result, &growth));
    assert_ptr_equal(growth.tokens, in[1]);
    assert_int_equal(growth.axis, 2);
    assert_false(tsr__cache_grows(in[1], result, &growth));
    assert_true(tsr__cache_grows(in[4], tsr_node_output(node, 2), &growth));
    assert_ptr_equal(growth.tokens, in[2]);
    assert_int_equal(growth.axis, 2);
    assert_false(tsr__cache_grows(in[4], tsr_node_output(node, 1), &growth));
}

// Adds one node with one or two inputs, and returns its output.
static tsr_value *add(struct bench *b, const char *op, const char *out, tsr_value *x, tsr_value *y)
{
    tsr_value *in[] = {x, y};
    return tsr_node_output(tsr_graph_add_node(b->graph, "", op, out, in, y ? 2 : 1, &out, 1), 0);
}

// Adds an attention node with this total length and returns one of its caches.
static tsr_value *add_cache(struct bench *b, tsr_value *const *in, tsr_value *total,
                            const char *name)
{
    char present[32];
    snprintf(present, sizeof present, "%s_present", name);
    const char *outs[] = {name, present};
    tsr_value *all[] = {in[0], NULL, NULL, in[1], in[2], in[3], total};
    return tsr_node_output(tsr_graph_add_node(b->graph, "com.microsoft", "GroupQueryAttention",
                                              name, all, TSR_COUNT(all), outs, 2),
                           1);
}

// tsr__cache_length finds the input whose size is the length of a cache.
static void test_lengths_of_caches(void **state)
{
    struct bench *b = *state;
    static const char *const names[] = {"packed", "past_key", "past_value", "lengths", "mask"};
    const tsr_dim sizes[] = {{-1, "batch"}, {-1, "total"}};
    const int64_t last = -1, one = 1;
    int axis = -1;
    tsr_value *in[5];
    for (size_t i = 0; i < TSR_COUNT(in); i++)
        in[i] = tsr_graph_add_input(b->graph, names[i]);
    assert_int_equal(tsr_value_set_type(in[4], TSR_INT64, 2, sizes), TSR_OK);
    assert_int_equal(tsr_model_set_opset(b->model, "com.microsoft", 1), TSR_OK);
    tsr_value *index =
        tsr_graph_add_initializer(b->graph, "last", TSR_INT64, 0, NULL, &last, sizeof last);
    tsr_value *more =
        tsr_graph_add_initializer(b->graph, "one", TSR_INT64, 0, NULL, &one, sizeof one);
    tsr_value *size = add(b, "Gather", "size", add(b, "Shape", "shape", in[4], NULL), index);
    tsr_value *total = add(b, "Cast", "total", size, NULL);
    assert_int_equal(tsr_node_set_int(tsr_value_producer(total), "to", TSR_INT32), TSR_OK);
    tsr_value *present = add_cache(b, in, total, "a");
    assert_ptr_equal(tsr__cache_length(present, &axis), in[4]);
    assert_int_equal(axis, 1);
    // The lengths of the sequences, and the input that has as many elements as there are new tokens.
    const tsr_dim tokens[] = {{-1, "batch"}, {-1, "new"}, {64, ""}};
    tsr_cache_lengths lengths;
    assert_false(tsr_cache_find_lengths(b->model, present, &lengths)); // the queries have no shape
    assert_int_equal(tsr_value_set_type(in[0], TSR_FLOAT, 3, tokens), TSR_OK);
    assert_true(tsr_cache_find_lengths(b->model, present, &lengths));
    assert_ptr_equal(lengths.last, in[3]);
    assert_ptr_equal(lengths.total, total);
    assert_string_equal(lengths.tokens, "packed");
    assert_int_equal(lengths.tokens_axis, 1);
    assert_false(tsr_cache_find_lengths(b->model, total, &lengths)); // no cache
    // A cache of a sliding window keeps its length.
    tsr_node *attention = tsr_value_producer(present);
    assert_int_equal(tsr_node_set_int(attention, "sliding_window_cache", 1), TSR_OK);
    assert_null(tsr__cache_length(present, &axis));
    // Other computations: a sum, a number from the contents of an input, a conversion to bool.
    assert_null(tsr__cache_length(add_cache(b, in, add(b, "Add", "sum", size, more), "c"), &axis));
    assert_null(
        tsr__cache_length(add_cache(b, in, add(b, "Gather", "entry", in[3], more), "d"), &axis));
    assert_int_equal(tsr_node_set_int(tsr_value_producer(total), "to", TSR_BOOL), TSR_OK);
    assert_null(tsr__cache_length(add_cache(b, in, total, "e"), &axis));
    assert_null(tsr__cache_length(add_cache(b, in, in[3], "f"), &axis));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_rows_parse_and_are_sorted),
        TEST(test_notation_refuses),
        TEST(test_notation_reads_clauses),
        TEST(test_builder_makes_the_rule_of_its_text),
        TEST(test_builder_keeps_the_first_error),
        TEST(test_builder_checks_patches),
        TEST(test_sizes_compare),
        TEST(test_sizes_print),
        TEST(test_matmul),
        TEST(test_gemm_once),
        TEST(test_broadcast_in_doubt_stays_whole),
        TEST(test_whole_with_reasons),
        TEST(test_versions_fit),
        TEST(test_reshape_factors),
        TEST(test_values_are_followed),
        TEST(test_rows_of_the_user),
        TEST(test_domain_not_imported),
        TEST(test_caches_with_room),
        TEST(test_cache_pairs),
        TEST(test_lengths_of_caches),
    };
    return cmocka_run_group_tests_name("rules", tests, NULL, NULL);
}
