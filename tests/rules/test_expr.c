// SPDX-License-Identifier: Apache-2.0
// test_expr.c - size expressions: equality, printing, and arithmetic, compared with plain integers
// on random expressions.
#include "shapes/expr.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

struct bench {
    tsr_session *session;
    struct arena arena;
    struct exprs x;
};

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    assert_non_null(b);
    b->session = tsr_session_new(NULL);
    tsr__arena_init(&b->arena, b->session);
    tsr__exprs_init(&b->x, &b->arena);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    tsr__arena_free(&b->arena);
    tsr_session_free(b->session);
    free(b);
    return 0;
}

static struct expr of(struct bench *b, const char *text)
{
    return tsr__expr_of(&b->x, (tsr_dim){.value = -1, .symbol = text});
}

static void test_equal_texts(void **state)
{
    struct bench *b = *state;
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"past + 1", "1+past", true},
        {"2*seq*batch", "batch*seq*2", true},
        {"((batch*seq)//batch)", "seq", true},
        {"(a + b)*c", "a*c + b*c", true},
        {"(a + 1)*(a - 1)", "a**2 - 1", true},
        {"a - a", "0*b", true},
        {"(2*a + 4)//2", "a + 2", true},
        {"(3*a + 5)//2", "a + 2 + (a + 1)//2", true},
        {"(a*b)//(2*b)", "a//2", true},
        {"floor(a/2)", "a//2", true},
        {"floor(a/2 - 1/2) + 1", "(a + 1)//2", true},
        {"floor(a/3 + b/2)", "(2*a + 3*b)//6", true},
        {"2*(a/4)", "a//2", true},
        {"a*(1/2)", "a//2", true},
        {"a//2 + b//2", "(a + b)//2", false},
        {"FloorDiv(a, 2)", "a//2", true},
        {"Max(1, a)", "max(a, 1)", true},
        {"min(a, a + b)", "a", true},
        {"max(a, a + b)", "a + b", true},
        {"(4*a)%4", "a - a", true},
        {"(4*a + 3)%4", "b - b + 3", true},
        {"10", "10", true},
        {"2*3", "6", false},
        {"Mod(a, 3)", "a%3", true},
        {"a//b", "b//a", false},
        {"a%2", "a%3", false},
        {"a + b", "a*b", false},
        {"batch size", "batch size", true},
        {"2*batch size + 1", "1 + batch size + batch size", true},
        {"(? + 1)//2", "(1 + ?)//2", true},
        {"input:0.1*2", "2*input:0.1", true},
        {"((batch", "batch", false},
        {"a//0", "a//0", true},
        {"9223372036854775807 + 1", "9223372036854775807 + 1", true},
        {"-a", "0 - a", true},
        {"--a", "a", true},
    };
    for (size_t i = 0; i < TSR_COUNT(cases); i++)
        if (expr_equal(of(b, cases[i].a), of(b, cases[i].b)) != cases[i].same)
            fail_msg("'%s' and '%s'", cases[i].a, cases[i].b);
}

static void test_printed(void **state)
{
    struct bench *b = *state;
    struct expr s = of(b, "seq"), p = of(b, "past"), n = expr_number(3);
    struct expr sum = tsr__expr_add(&b->x, p, expr_number(1));
    assert_string_equal(tsr__expr_dim(&b->x, sum).symbol, "past + 1");
    assert_string_equal(tsr__expr_dim(&b->x, tsr__expr_mul(&b->x, sum, s)).symbol,
                        "seq*past + seq");
    assert_string_equal(tsr__expr_dim(&b->x, tsr__expr_div(&b->x, s, n)).symbol, "(seq//3)");
    assert_string_equal(tsr__expr_dim(&b->x, tsr__expr_mod(&b->x, sum, n)).symbol,
                        "((past + 1)%3)");
    assert_string_equal(tsr__expr_dim(&b->x, tsr__expr_max(&b->x, s, p)).symbol, "max(seq, past)");
    assert_string_equal(tsr__expr_dim(&b->x, tsr__expr_min(&b->x, n, s)).symbol, "min(seq, 3)");
    assert_int_equal(tsr__expr_dim(&b->x, tsr__expr_sub(&b->x, sum, p)).value, 1);
    assert_false(dim_known(tsr__expr_dim(&b->x, expr_number(-1))));
    assert_false(dim_known(tsr__expr_dim(&b->x, (struct expr){0})));
    // The spelling of the model is kept.
    struct expr declared = of(b, "zz*yy");
    assert_string_equal(tsr__expr_dim(&b->x, declared).symbol, "zz*yy");
}

// The name "10" is not a number: it may have any size, and is not printed where it would be parsed
// as a number.
static void test_names_like_numbers(void **state)
{
    struct bench *b = *state;
    struct expr ten = of(b, "10");
    assert_false(expr_is_number(ten));
    assert_string_equal(tsr__expr_dim(&b->x, ten).symbol, "10");
    assert_false(dim_known(tsr__expr_dim(&b->x, tsr__expr_add(&b->x, ten, of(b, "n")))));
    assert_true(expr_is(tsr__expr_exact(&b->x, tsr__expr_mul(&b->x, ten, expr_number(4)), ten), 4));
}

// Unknown operands, overflow and expressions that are too large give an unknown result.
static void test_not_known_stays_so(void **state)
{
    struct bench *b = *state;
    struct expr no = {0}, a = of(b, "a"), one = expr_number(1);
    assert_false(tsr__expr_add(&b->x, no, a).known);
    assert_false(tsr__expr_mul(&b->x, a, no).known);
    assert_false(tsr__expr_floor(&b->x, a, expr_number(0)).known);
    assert_false(tsr__expr_div(&b->x, expr_number(4), expr_number(0)).known);
    // (a - 1)//m is -1 for a = 0, so its maximum with 0 must not be dropped.
    struct expr part = tsr__expr_floor(&b->x, tsr__expr_sub(&b->x, a, one), of(b, "m"));
    assert_false(tsr__expr_max(&b->x, part, expr_number(0)).known);
    struct expr large = expr_number((INT64_C(1) << 62) + 2), by = expr_number(large.number - 1);
    assert_true(tsr__expr_floor(&b->x, tsr__expr_sub(&b->x, a, large), by).known);
    assert_false(tsr__expr_mod(&b->x, a, expr_number(0)).known);
    assert_false(tsr__expr_exact(&b->x, a, expr_number(2)).known);
    assert_false(tsr__expr_add(&b->x, expr_number(INT64_MAX), one).known);
    assert_false(tsr__expr_sub(&b->x, expr_number(INT64_MIN), one).known);
    assert_false(tsr__expr_mul(&b->x, expr_number(INT64_MIN), expr_number(-1)).known);
    assert_false(
        // may be negative
        tsr__expr_div(&b->x, tsr__expr_sub(&b->x, a, one), expr_number(2)).known);
    assert_int_equal(tsr__expr_div(&b->x, expr_number(-7), expr_number(2)).number, -3);
    assert_int_equal(tsr__expr_mod(&b->x, expr_number(-7), expr_number(2)).number, 1);
    struct expr many = a;
    for (int i = 0; i < 2 * EXPR_MAX_ATOMS; i++)
        many = tsr__expr_mul(&b->x, many, a);
    assert_false(many.known); // too many factors
    struct expr wide = a;
    for (int i = 0; i < 2 * EXPR_MAX_TERMS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "w%d", i);
        wide = tsr__expr_add(&b->x, wide, of(b, name));
    }
    assert_false(wide.known); // too many terms
    struct expr deep = a;
    for (int i = 0; i < 4 * EXPR_MAX_DEPTH; i++)
        deep = tsr__expr_floor(&b->x, tsr__expr_add(&b->x, deep, one), expr_number(2));
    assert_false(deep.known); // too deep
}

static void test_symbols_are_bound(void **state)
{
    struct bench *b = *state;
    assert_true(tsr__exprs_bind(&b->x, STR("batch"), 4));
    assert_true(tsr__exprs_bind(&b->x, STR("x*y"), 6));
    assert_true(expr_is(of(b, "batch"), 4));
    assert_true(expr_is(of(b, "2*batch + 1"), 9));
    assert_true(expr_is(of(b, "x*y"), 6)); // the text as one symbol
    assert_true(tsr__exprs_used(&b->x, STR("batch")));
    assert_false(tsr__exprs_used(&b->x, STR("seq")));
}

// The greatest common divisor of expressions.
static void test_common_factors(void **state)
{
    struct bench *b = *state;
    struct expr g = tsr__expr_gcd(&b->x, of(b, "4*a*b"), of(b, "6*b*c"));
    assert_true(expr_equal(g, of(b, "2*b")));
    g = tsr__expr_gcd(&b->x, of(b, "(p + 1)*h"), of(b, "p + 1"));
    assert_true(expr_equal(g, of(b, "p + 1")));
    g = tsr__expr_gcd(&b->x, of(b, "a"), of(b, "b"));
    assert_true(expr_is(g, 1));
    assert_true(expr_is(tsr__expr_gcd(&b->x, expr_number(12), expr_number(18)), 6));
}

// The broadcast size of two expressions, if it is certain.
static void test_broadcast_sizes(void **state)
{
    struct bench *b = *state;
    struct expr s = of(b, "seq"), none = {0};
    assert_true(expr_equal(tsr__expr_broadcast(&b->x, s, of(b, "min(seq, 64)")), s));
    assert_true(expr_equal(tsr__expr_broadcast(&b->x, of(b, "Max(1, seq)"), s), s));
    assert_true(expr_equal(tsr__expr_broadcast(&b->x, s, expr_number(5)), expr_number(5)));
    assert_false(tsr__expr_broadcast(&b->x, s, of(b, "min(seq, 1)")).known);
    assert_false(tsr__expr_broadcast(&b->x, s, of(b, "max(seq, 2)")).known);
    assert_false(tsr__expr_broadcast(&b->x, s, of(b, "other")).known);
    assert_false(tsr__expr_broadcast(&b->x, s, none).known);
}

// ---- random expressions compared with integers -------------------------------------------------

#define SYMBOLS 3

static int64_t value_of(const struct exprs *x, struct expr e, const int64_t *symbols)
{
    if (!e.poly)
        return e.number;
    int64_t sum = 0;
    for (int i = 0; i < e.poly->n; i++) {
        int64_t product = e.poly->terms[i].number;
        for (int k = 0; k < e.poly->terms[i].n; k++) {
            const struct atom *a = &x->atoms.at[e.poly->terms[i].atoms[k]];
            if (a->kind == ATOM_NAME) {
                product *= symbols[a->name.p[0] - 'a'];
                continue;
            }
            int64_t p = value_of(x, a->a, symbols), q = value_of(x, a->b, symbols);
            product *= a->kind == ATOM_DIV   ? p / q
                       : a->kind == ATOM_MOD ? p % q
                       : a->kind == ATOM_MAX ? (p > q ? p : q)
                                             : (p < q ? p : q);
        }
        sum += product;
    }
    return sum;
}

static uint64_t seed = 12345;

static int64_t draw(int64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)below);
}

// A random expression and its value; false: it has none (division by zero, overflow).
static bool make(struct bench *b, int depth, const int64_t *symbols, struct expr *e, int64_t *value)
{
    struct expr p, q;
    int64_t x, y;
    if (depth == 0 || draw(4) == 0) {
        int64_t k = draw(SYMBOLS + 2);
        const char name[] = {(char)('a' + k), 0};
        *value = k < SYMBOLS ? symbols[k] : draw(6);
        *e = k < SYMBOLS ? of(b, name) : expr_number(*value);
        return true;
    }
    if (!make(b, depth - 1, symbols, &p, &x) || !make(b, depth - 1, symbols, &q, &y))
        return false;
    int64_t kind = draw(7);
    if ((kind == 3 || kind == 4) && (y <= 0 || x < 0))
        return false;
    *e = kind == 0   ? tsr__expr_add(&b->x, p, q)
         : kind == 1 ? tsr__expr_sub(&b->x, p, q)
         : kind == 2 ? tsr__expr_mul(&b->x, p, q)
         : kind == 3 ? tsr__expr_div(&b->x, p, q)
         : kind == 4 ? tsr__expr_mod(&b->x, p, q)
         : kind == 5 ? tsr__expr_max(&b->x, p, q)
                     : tsr__expr_min(&b->x, p, q);
    *value = kind == 0   ? x + y
             : kind == 1 ? x - y
             : kind == 2 ? x * y
             : kind == 3 ? x / y
             : kind == 4 ? x % y
             : kind == 5 ? (x > y ? x : y)
                         : (x < y ? x : y);
    return e->known;
}

static void test_random_expressions(void **state)
{
    struct bench *b = *state;
    int known = 0;
    for (int i = 0; i < 100000; i++) {
        int64_t symbols[SYMBOLS] = {1 + draw(9), 1 + draw(9), 1 + draw(9)}, value;
        struct expr e;
        if (!make(b, 4, symbols, &e, &value))
            continue;
        known++;
        tsr_dim d = tsr__expr_dim(&b->x, e);
        if (value_of(&b->x, e, symbols) != value)
            fail_msg("%s is %lld, not %lld", dim_known(d) ? d.symbol : "a number",
                     (long long)value_of(&b->x, e, symbols), (long long)value);
        if (e.poly && dim_known(d))
            assert_true(expr_equal(of(b, d.symbol), e)); // parsing gives the same expression
    }
    assert_true(known > 30000);
}

// Texts that no exporter writes must be parsed as one symbol or as an expression.
static void test_random_texts(void **state)
{
    struct bench *b = *state;
    static const char signs[] = "ab1290+-*/%(), .MaxMinfloor";
    for (int i = 0; i < 100000; i++) {
        char text[40];
        size_t n = (size_t)draw(sizeof(text) - 1);
        for (size_t k = 0; k < n; k++)
            text[k] = signs[draw(sizeof(signs) - 1)];
        text[n] = 0;
        struct expr e = of(b, text);
        assert_true(e.known == (n > 0) || b->x.texts.n >= EXPR_MAX_POOL / 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_equal_texts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names_like_numbers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_printed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_known_stays_so, setup, teardown),
        cmocka_unit_test_setup_teardown(test_symbols_are_bound, setup, teardown),
        cmocka_unit_test_setup_teardown(test_common_factors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_broadcast_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_random_expressions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_random_texts, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
