// SPDX-License-Identifier: Apache-2.0
// print_rule.c - prints rules for the tests, one JSON line each: all rows of the table, or the
// rules of the first nodes of the given models (for prove.py). With --shapes it prints the inferred
// shapes of all nodes, one JSON line per model (for partly.py).
#include "rules/internal.h"

#include <stdio.h>

static const char *const kinds[] = {"par", "red", "rep", "stat"};
static const char *const combines[] = {"sum", "max", "min", "prod"};
static const char *const rewrites[] = {"shape",   "once",  "attr", "sizes", "size",  "lookup",
                                       "scatter", "range", "word", "share", "route", "causal"};

static void print_size(tsr_dim d)
{
    if (d.value >= 0)
        printf("%lld", (long long)d.value);
    else
        printf("\"%s\"", d.symbol);
}

static void print_tensors(const char *name, const struct rule_tensor *t, int n)
{
    printf(", \"%s\": [", name);
    for (int i = 0; i < n; i++) {
        printf("%s{\"host\": %s, \"absent\": %s, \"dims\": [", i ? ", " : "",
               t[i].host ? "true" : "false", t[i].absent ? "true" : "false");
        for (int d = 0; d < t[i].rank; d++) {
            printf("%s[", d ? ", " : "");
            for (int k = 0; k < t[i].dims[d].n; k++)
                printf("%s%d", k ? ", " : "", t[i].dims[d].factors[k]);
            printf("]");
        }
        printf("], \"window\": [");
        for (int d = 0; d < t[i].rank; d++)
            printf("%s%s", d ? ", " : "", t[i].dims[d].window ? "true" : "false");
        printf("]}");
    }
    printf("]");
}

static void print_shapes(const tsr_node *n, const struct shapes *s)
{
    printf(", \"shapes\": [");
    for (size_t i = 0; i < tsr_node_output_count(n); i++) {
        struct shape of = {.rank = -1};
        if (tsr_node_output(n, i))
            of = tsr__shapes_of(s, tsr_node_output(n, i));
        printf("%s{\"type\": %d, \"rank\": %d, \"dims\": [", i ? ", " : "", (int)of.dtype, of.rank);
        for (int d = 0; d < of.rank; d++) {
            printf("%s", d ? ", " : "");
            print_size(of.dims[d]);
        }
        printf("]}");
    }
    printf("]");
}

static void print_list(const struct rule_list *l)
{
    static const char *const what[] = {"before", "after", "size", "value", "share", "span"};
    printf("{\"input\": %d, \"name\": \"%s\", \"values\": [", l->input, l->name ? l->name : "");
    for (int i = 0; i < l->n; i++)
        printf("%s%lld", i ? ", " : "", (long long)l->values[i]);
    printf("], \"patches\": [");
    for (int i = 0; i < l->n_patches; i++)
        printf("%s{\"at\": %d, \"window\": %d, \"what\": \"%s\", \"value\": %lld, \"factor\": %d}",
               i ? ", " : "", l->patches[i].at, l->patches[i].window, what[l->patches[i].what],
               (long long)l->patches[i].value, l->patches[i].factor);
    printf("]}");
}

static void print_windows(const struct rule *r)
{
    printf(", \"windows\": [");
    for (int i = 0; i < r->n_windows; i++) {
        const struct rule_window *w = &r->windows[i];
        printf("%s{\"input\": %d, \"dim\": %d, \"factor\": %d, \"from\": %lld, \"to\": %lld, "
               "\"step\": %lld, \"shift\": %lld, \"reach\": %lld, \"per\": %lld}",
               i ? ", " : "", w->input, w->dim, w->factor, (long long)w->from, (long long)w->to,
               (long long)w->step, (long long)w->shift, (long long)w->reach, (long long)w->per);
    }
    printf("], \"trims\": [");
    for (int i = 0; i < r->n_trims; i++)
        printf("%s{\"output\": %d, \"dim\": %d, \"window\": %d, \"unit\": %lld}", i ? ", " : "",
               r->trims[i].output, r->trims[i].dim, r->trims[i].window,
               (long long)r->trims[i].unit);
    printf("], \"lists\": [");
    for (int i = 0; i < r->n_lists; i++) {
        printf("%s", i ? ", " : "");
        print_list(&r->lists[i]);
    }
    printf("]");
}

// Prints what all kinds of rewrites have, and what the kind of this one has.
static void print_rewrite(const struct rule_rewrite *rewrite, const char *before)
{
    printf("%s{\"kind\": \"%s\", \"input\": %d, \"factor\": %d, \"name\": \"%s\"", before,
           rewrites[rewrite->kind], rewrite->input, rewrite->factor,
           rewrite->attribute ? rewrite->attribute : "");
    if (rewrite->kind == REWRITE_ATTR)
        printf(", \"unit\": %lld", (long long)rewrite->attr.unit);
    else if (rewrite->kind == REWRITE_LOOKUP)
        printf(", \"element\": %d, \"after\": %d", rewrite->lookup.element, rewrite->lookup.after);
    else if (rewrite->kind == REWRITE_SCATTER)
        printf(", \"element\": %d, \"axis\": %d", rewrite->scatter.element, rewrite->scatter.axis);
    else if (rewrite->kind == REWRITE_WORD)
        printf(", \"words\": \"%s\"", rewrite->word.words);
    else if (rewrite->kind == REWRITE_CAUSAL)
        printf(", \"mask\": %d", rewrite->causal.mask);
    printf("}");
}

static void print_one(const tsr_node *n, const struct rule *r, const struct shapes *s)
{
    printf("{\"op\": \"%s\", \"whole\": ", tsr_node_op(n));
    printf(r->whole ? "\"%s\"" : "null%s", r->whole ? r->whole : "");
    printf(", \"factors\": [");
    for (int i = 0; i < r->n_factors; i++) {
        const struct rule_factor *f = &r->factors[i];
        printf("%s{\"name\": \"%s\", \"kind\": \"%s\", \"combine\": \"%s\", \"unit\": %lld, "
               "\"least\": %lld, \"some\": %s, \"size\": ",
               i ? ", " : "", f->name, kinds[f->kind], combines[f->combine], (long long)f->unit,
               (long long)f->least, tsr__rule_wants_some(n, r, s, i, false) ? "true" : "false");
        print_size(f->size);
        printf("}");
    }
    printf("]");
    print_tensors("inputs", r->inputs, r->n_inputs);
    print_tensors("outputs", r->outputs, r->n_outputs);
    printf(", \"rewrites\": [");
    for (int i = 0; i < r->n_rewrites; i++)
        print_rewrite(&r->rewrites[i], i ? ", " : "");
    printf("]");
    print_windows(r);
    print_shapes(n, s);
}

static void print_rule(const tsr_node *n, const struct rule *r, const struct rule *other,
                       const struct shapes *s)
{
    print_one(n, r, s);
    printf(", \"other\": ");
    if (other) {
        print_one(n, other, s);
        printf("}");
    } else {
        printf("null");
    }
    printf("}\n");
}

// Prints the known elements, "" for an unknown one; null: none is known.
static void print_elements(struct exprs *x, struct known_value v)
{
    if (!v.elements) {
        printf("null");
        return;
    }
    printf("[");
    for (int64_t i = 0; i < v.n; i++) {
        struct expr e = v.elements[i];
        printf("%s", i ? ", " : "");
        if (expr_is_number(e))
            printf("%lld", (long long)e.number);
        else
            print_size(tsr__expr_dim(x, e));
    }
    printf("]");
}

// The rank that the rule gives output i; -1: the rule has none.
static int rank_by(const struct rule *r, size_t i)
{
    if (!r || r->whole || i >= (size_t)r->n_outputs || r->outputs[i].host || r->outputs[i].absent)
        return -1;
    return r->outputs[i].rank;
}

static void print_output(const struct shapes *s, const tsr_value *v, int rank_by_rule)
{
    struct shape of = {.rank = -1};
    struct known_value value = {0};
    if (v) {
        of = tsr__shapes_of(s, v);
        value = tsr__value_known(s, v);
    }
    printf("{\"absent\": %s, \"type\": %d, \"rank\": %d, \"dims\": [", v ? "false" : "true",
           (int)of.dtype, of.rank);
    for (int d = 0; d < of.rank; d++) {
        printf("%s", d ? ", " : "");
        print_size(of.dims[d]);
    }
    printf("], \"values\": ");
    print_elements(s->exprs, value);
    printf(", \"rank_by_rule\": %d}", rank_by_rule);
}

static int print_known(tsr_session *session, const char *path)
{
    tsr_model *m;
    if (tsr_model_load(session, path, &m) != TSR_OK)
        return 1;
    struct arena a;
    tsr__arena_init(&a, session);
    const struct shapes *s = tsr__shapes_new(&a, m);
    const tsr_node *first = s ? tsr_graph_first(tsr_model_graph(m)) : NULL;
    printf("[");
    for (const tsr_node *n = first; n; n = tsr_node_next(n)) {
        printf("%s[", n == first ? "" : ", ");
        const struct rule *r = tsr__rule_of(&a, n, s);
        for (size_t i = 0; i < tsr_node_output_count(n); i++) {
            printf("%s", i ? ", " : "");
            print_output(s, tsr_node_output(n, i), rank_by(r, i));
        }
        printf("]");
    }
    printf("]\n");
    tsr__arena_free(&a);
    tsr_model_free(m);
    return s ? 0 : 1;
}

static int print_model(tsr_session *session, const char *path)
{
    tsr_model *m;
    if (tsr_model_load(session, path, &m) != TSR_OK)
        return 1;
    struct arena a;
    tsr__arena_init(&a, session);
    const struct shapes *s = tsr__shapes_new(&a, m);
    const tsr_node *n = tsr_graph_first(tsr_model_graph(m));
    const struct rule *r = s ? tsr__rule_of(&a, n, s) : NULL;
    if (r)
        print_rule(n, r, tsr__rule_strided(&a, n, s), s);
    tsr__arena_free(&a);
    tsr_model_free(m);
    return r ? 0 : 1;
}

int main(int argc, char **argv)
{
    const struct op_row *row;
    for (size_t i = 0; argc == 1 && (row = tsr__row_at(i)); i++)
        printf("{\"op\": \"%s\", \"domain\": \"%s\", \"since\": %lld, \"whole\": %s, \"rule\": %s, "
               "\"writes\": %u}\n",
               row->op, text_or_none(row->domain), (long long)row->since,
               row->whole ? "true" : "false", row->rule ? "true" : "false", row->writes);
    tsr_session *session = tsr_session_new(NULL);
    bool known = argc > 1 && strcmp(argv[1], "--shapes") == 0;
    int failed = session == NULL;
    for (int i = known ? 2 : 1; i < argc && !failed; i++)
        failed = known ? print_known(session, argv[i]) : print_model(session, argv[i]);
    for (size_t i = 0; session && i < tsr_finding_count(session); i++)
        fprintf(stderr, "%s", tsr_finding_text(session, i));
    tsr_session_free(session);
    return failed;
}
