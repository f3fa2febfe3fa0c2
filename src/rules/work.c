// SPDX-License-Identifier: Apache-2.0
// work.c - how much arithmetic a node does, read off its rule.
//
// Inputs are contracted from left to right, as an einsum would be: each step costs the product of all
// factors that meet in it, and what neither a result nor a later input has is gone afterwards. A
// dimension that is whole and stands in one input alone was only looked into (the vocabulary of a
// lookup, the image under a window) and costs nothing. Knows no operators.
#include "rules/rules.h"

struct factors {
    bool has[RULE_MAX_FACTORS];
};

static void collect(const struct rule_tensor *t, struct factors *out)
{
    for (int d = 0; d < t->rank && !t->host && !t->absent; d++)
        for (int k = 0; k < t->dims[d].n; k++)
            out->has[t->dims[d].factors[k]] = true;
}

static struct factors of_all(const struct rule_tensor *t, int first, int n)
{
    struct factors f = {{false}};
    for (int i = first; i < n; i++)
        collect(&t[i], &f);
    return f;
}

static double product(const struct rule *r, const struct factors *f, const int64_t *sizes)
{
    double n = 1;
    for (int i = 0; i < r->n_factors; i++)
        if (f->has[i] && sizes[i] > 0)
            n *= (double)sizes[i];
    return n;
}

// A table that is looked up, not read: elements of another input name the rows.
static bool is_table(const struct rule *r, int f)
{
    for (int i = 0; i < r->n_rewrites; i++)
        if (r->rewrites[i].kind == REWRITE_LOOKUP && r->rewrites[i].factor == f)
            return true;
    return false;
}

static bool is_whole_in(const struct rule *r, const struct rule_tensor *t, int f)
{
    for (int d = 0; d < t->rank && !t->host && !t->absent; d++)
        for (int k = 0; k < t->dims[d].n; k++)
            if (t->dims[d].factors[k] == f)
                return r->factors[f].kind == FACTOR_REP;
    return false;
}

bool tsr__rule_looks_up(const struct rule *r, int input)
{
    for (int f = 0; f < r->n_factors; f++) {
        const struct rule_tensor *t = &r->inputs[input];
        struct factors here = {{false}}, others = of_all(r->outputs, 0, r->n_outputs);
        collect(t, &here);
        for (int i = 0; i < r->n_inputs; i++)
            if (i != input)
                collect(&r->inputs[i], &others);
        if (here.has[f] && (is_table(r, f) || (is_whole_in(r, t, f) && !others.has[f])))
            return true;
    }
    return false;
}

double tsr__rule_reads(const struct rule *r, int input)
{
    double share = 1;
    for (int i = 0; i < r->n_windows; i++) {
        const struct rule_window *w = &r->windows[i];
        if (w->input != input || w->from <= 0 || w->to <= 0)
            continue;
        struct window_part all = tsr__window_part(w, 1, 0);
        double reads = (double)(all.stop - all.start) / (double)w->from;
        share *= reads > 0 && reads < 1 ? reads : 1;
    }
    return share;
}

double tsr__rule_work(const struct rule *r, const int64_t *sizes)
{
    struct factors out = of_all(r->outputs, 0, r->n_outputs), held = {{false}};
    struct factors later = of_all(r->inputs, 1, r->n_inputs);
    double work = product(r, &out, sizes);
    bool contracts = false;
    for (int i = 0; i < r->n_inputs; i++) {
        if (r->inputs[i].host || r->inputs[i].absent)
            continue;
        collect(&r->inputs[i], &held);
        for (int f = 0; f < r->n_factors; f++) { // only looked into
            bool whole = i == 0 && r->factors[f].kind == FACTOR_REP && !later.has[f];
            if (held.has[f] && !out.has[f] && (whole || is_table(r, f)))
                held.has[f] = false;
        }
        struct factors met = held;
        later = of_all(r->inputs, i + 1, r->n_inputs);
        for (int f = 0; f < r->n_factors; f++) {
            met.has[f] = met.has[f] || (out.has[f] && i > 0 && r->factors[f].kind == FACTOR_REP);
            if (held.has[f] && !out.has[f] && !later.has[f]) {
                contracts = true;
                held.has[f] = false;
            }
        }
        double step = product(r, &met, sizes);
        work = step > work ? step : work;
    }
    return contracts ? 2 * work : work;
}
