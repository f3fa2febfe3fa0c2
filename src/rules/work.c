// SPDX-License-Identifier: Apache-2.0
// work.c - the number of arithmetic operations of a node, computed from its rule. The computation
// depends only on the rule, not on the operator.
//
// Inputs are contracted from left to right, as in an einsum. Each step costs the product of all
// factors in it. Factors that neither a result nor a later input has are removed afterwards. A
// factor that is never sharded and that only the first input has is only indexed (the vocabulary of
// a lookup, the image under a window) and costs nothing.
//
// Example: MatMul of [4 5] and [5 6]. The first input alone costs 4 * 5; with the second, 4 * 5 * 6
// = 120, and k is removed. A product and a sum for each are 240 operations. Add of [4 5] does 20.
#include "rules/internal.h"

#include <math.h>

struct factors {
    bool has[RULE_MAX_FACTORS];
};

static void collect(const struct rule_tensor *tensor, struct factors *out)
{
    if (tensor->host || tensor->absent)
        return;
    for (int d = 0; d < tensor->rank; d++)
        for (int k = 0; k < tensor->dims[d].n; k++)
            out->has[tensor->dims[d].factors[k]] = true;
}

static struct factors of_all(const struct rule_tensor *tensor, int n)
{
    struct factors factors = {{false}};
    for (int i = 0; i < n; i++)
        collect(&tensor[i], &factors);
    return factors;
}

// By factor: the last input that has it; -1: none.
struct last_inputs {
    int at[RULE_MAX_FACTORS];
};

static struct last_inputs last_inputs(const struct rule *rule)
{
    struct last_inputs last;
    for (int factor = 0; factor < RULE_MAX_FACTORS; factor++)
        last.at[factor] = -1;
    for (int i = 0; i < rule->n_inputs; i++) {
        const struct rule_tensor *tensor = &rule->inputs[i];
        if (tensor->host || tensor->absent)
            continue;
        for (int d = 0; d < tensor->rank; d++)
            for (int k = 0; k < tensor->dims[d].n; k++)
                last.at[tensor->dims[d].factors[k]] = i;
    }
    return last;
}

static double product(const struct rule *rule, const struct factors *factors, const int64_t *sizes)
{
    double n = 1;
    for (int i = 0; i < rule->n_factors; i++)
        if (factors->has[i] && sizes[i] > 0)
            n *= (double)sizes[i];
    return n;
}

// True if the factor counts the rows of a lookup table: elements of another input are indices into
// it.
static bool is_table(const struct rule *rule, int factor)
{
    for (int i = 0; i < rule->n_rewrites; i++)
        if (rule->rewrites[i].kind == REWRITE_LOOKUP && rule->rewrites[i].factor == factor)
            return true;
    return false;
}

bool tsr__rule_has_factor(const struct rule_tensor *tensor, int factor)
{
    if (tensor->host || tensor->absent)
        return false;
    for (int d = 0; d < tensor->rank; d++)
        for (int k = 0; k < tensor->dims[d].n; k++)
            if (tensor->dims[d].factors[k] == factor)
                return true;
    return false;
}

// True if another input or an output also has the factor.
static bool occurs_elsewhere(const struct rule *rule, int input, int factor)
{
    for (int i = 0; i < rule->n_outputs; i++)
        if (tsr__rule_has_factor(&rule->outputs[i], factor))
            return true;
    for (int i = 0; i < rule->n_inputs; i++)
        if (i != input && tsr__rule_has_factor(&rule->inputs[i], factor))
            return true;
    return false;
}

// Returns the number of factors of the dimension that contains this factor; 0: no dimension does.
static int factors_beside(const struct rule_tensor *tensor, int factor)
{
    for (int d = 0; d < tensor->rank; d++)
        for (int k = 0; k < tensor->dims[d].n; k++)
            if (tensor->dims[d].factors[k] == factor)
                return tensor->dims[d].n;
    return 0;
}

// True if indices select elements of the input. Example: in Gather of a table [100 8] by indices
// [3], only the table has the factor v of size 100, so v is indexed, not read. A factor that shares
// its dimension with others is not an index, such as the halves f of fused weights [e (f i) m].
bool tsr__rule_looks_up(const struct rule *rule, int input)
{
    for (int factor = 0; factor < rule->n_factors; factor++) {
        if (!tsr__rule_has_factor(&rule->inputs[input], factor))
            continue;
        if (is_table(rule, factor) ||
            (rule->factors[factor].kind == FACTOR_REP && !occurs_elsewhere(rule, input, factor) &&
             factors_beside(&rule->inputs[input], factor) == 1))
            return true;
    }
    return false;
}

const struct rule_rewrite *tsr__rule_sizes(const struct rule *rule)
{
    for (int i = 0; rule && i < rule->n_rewrites; i++)
        if (rule->rewrites[i].kind == REWRITE_SIZES || rule->rewrites[i].kind == REWRITE_SIZE)
            return &rule->rewrites[i];
    return NULL;
}

static bool reads_sizes(const struct rule *rule, int input)
{
    const struct rule_rewrite *rewrite = tsr__rule_sizes(rule);
    return rewrite && rewrite->input == input;
}

const struct expert_inputs *tsr__node_experts(const tsr_node *node)
{
    const struct op_row *row = tsr__row_of_node(node);
    return row ? row->experts : NULL;
}

// Returns the expected share of the local experts that at least one token uses, if tokens choose
// evenly. Example: with 8 experts and 2 per token, one token uses 1/4, and 8 tokens use 1 - (3/4)^8
// = 90 %. The busiest device uses at least one expert: with one expert per device, its share is 1.
static double share_of_experts(const tsr_node *node, const struct rule *rule, int input,
                               const int64_t *sizes)
{
    const struct expert_inputs *inputs = tsr__node_experts(node);
    if (!inputs || rule->n_inputs <= inputs->first || rule->inputs[inputs->first].rank != 3 ||
        rule->inputs[inputs->first].dims[0].n != 1)
        return 1;
    const struct rule_tensor *router = &rule->inputs[1];
    int expert = rule->inputs[inputs->first].dims[0].factors[0];
    double tokens = 1, experts = (double)rule->factors[expert].size.value;
    double used = (double)tsr_attr_int(tsr_node_find_attr(node, "k"), 1);
    if (!tsr__rule_has_factor(&rule->inputs[input], expert) || experts <= 0 || used >= experts)
        return 1;
    for (int d = 0; d < router->rank - 1; d++)
        for (int k = 0; k < router->dims[d].n; k++)
            tokens *= (double)sizes[router->dims[d].factors[k]];
    return fmax(1 - pow(1 - used / experts, tokens), 1 / fmax((double)sizes[expert], 1));
}

// Returns the share of a dimension of the input that the windows read. The outputs of a Split have
// windows of their own, which add up. 1 if it is unknown.
static double window_share(const struct rule *rule, int input, int dim)
{
    double reads = 0;
    for (int i = 0; i < rule->n_windows; i++) {
        const struct rule_window *window = &rule->windows[i];
        if (window->input != input || window->dim != dim || window->from <= 0 || window->to <= 0)
            continue;
        struct window_part all = tsr__window_part(window, 1, 0, 1);
        reads += (double)(all.stop - all.start) / (double)window->from;
    }
    return reads > 0 && reads < 1 ? reads : 1;
}

double tsr__node_reads(const tsr_node *node, const struct rule *rule, int input,
                       const int64_t *sizes)
{
    if (input >= rule->n_inputs)
        return 1;
    double share = share_of_experts(node, rule, input, sizes);
    if (reads_sizes(rule, input))
        return 0;
    for (int dim = 0; dim < rule->inputs[input].rank; dim++)
        share *= window_share(rule, input, dim);
    return share;
}

// Returns the operations of the most expensive step, but at least one for each element of the
// results. Step i combines input i with the result of the inputs before it. If a factor is summed,
// each product has an addition: twice the number.
double tsr__rule_work(const struct rule *rule, const int64_t *sizes)
{
    struct factors out = of_all(rule->outputs, rule->n_outputs), held = {{false}};
    struct last_inputs last = last_inputs(rule);
    double work = product(rule, &out, sizes);
    bool contracts = false;
    for (int i = 0; i < rule->n_inputs; i++) {
        if (rule->inputs[i].host || rule->inputs[i].absent || reads_sizes(rule, i))
            continue;
        collect(&rule->inputs[i], &held);
        // factors that are only indexed cost nothing
        for (int factor = 0; factor < rule->n_factors; factor++) {
            bool whole = i == 0 && rule->factors[factor].kind == FACTOR_REP && last.at[factor] < 1;
            if (held.has[factor] && !out.has[factor] && (whole || is_table(rule, factor)))
                held.has[factor] = false;
        }
        struct factors met = held;
        for (int factor = 0; factor < rule->n_factors; factor++) {
            met.has[factor] = met.has[factor] || (out.has[factor] && i > 0 &&
                                                  rule->factors[factor].kind == FACTOR_REP);
            if (held.has[factor] && !out.has[factor] && last.at[factor] <= i) {
                contracts = true;
                held.has[factor] = false;
            }
        }
        double step = product(rule, &met, sizes);
        work = step > work ? step : work;
    }
    return contracts ? 2 * work : work;
}
