// SPDX-License-Identifier: Apache-2.0
// node.c - prices that need no plan: of a node as it stands in a graph, and of a collective with the copies that it takes.
#include "plan/internal.h"

// Arithmetic hides what is moved meanwhile, or the other way round, but for this share.
#define UNHIDDEN 0.25

int tsr__node_rate(const tsr_node *n, const struct shapes *s)
{
    static const struct {
        tsr_dtype type;
        tsr_rate rate;
    } rates[] = {
        {TSR_FLOAT16, TSR_RATE_FLOAT16},   {TSR_BFLOAT16, TSR_RATE_BFLOAT16},
        {TSR_DOUBLE, TSR_RATE_FLOAT64},    {TSR_INT8, TSR_RATE_INT8},
        {TSR_UINT8, TSR_RATE_INT8},        {TSR_INT4, TSR_RATE_INT4},
        {TSR_UINT4, TSR_RATE_INT4},        {TSR_FLOAT8E4M3FN, TSR_RATE_FLOAT8},
        {TSR_FLOAT8E5M2, TSR_RATE_FLOAT8},
    };
    const tsr_value *first = tsr_node_input_count(n) ? tsr_node_input(n, 0) : NULL;
    tsr_dtype type = first ? tsr__shapes_of(s, first).dtype : TSR_FLOAT;
    for (size_t i = 0; i < TSR_COUNT(rates); i++)
        if (rates[i].type == type)
            return (int)rates[i].rate;
    return -1;
}

int64_t tsr__price_work(double work, int rate, double bytes, const tsr_topology_device *d)
{
    double flops = rate >= 0 && d->rates[rate] > 0 ? d->rates[rate] : d->flops;
    double seconds = work / flops, moving = bytes / d->bandwidth;
    double most = seconds > moving ? seconds : moving, least = seconds + moving - most;
    double ps = (most + least * UNHIDDEN + d->overhead) * 1e12;
    return ps < (double)PLAN_NEVER ? (int64_t)ps : PLAN_NEVER;
}

int64_t tsr__price_bytes(const struct shapes *s, const tsr_value *v, bool *sized)
{
    struct shape x = tsr__shapes_of(s, v);
    int64_t n = 1;
    *sized = *sized && x.rank >= 0;
    for (int d = 0; d < x.rank; d++) {
        *sized = *sized && x.dims[d].value >= 0;
        if (!mul_ok(n, x.dims[d].value >= 0 ? x.dims[d].value : 1, &n))
            return PLAN_NEVER;
    }
    int bits = tsr_dtype_bits(x.dtype) ? tsr_dtype_bits(x.dtype) : 8;
    return n < PLAN_NEVER / bits ? (n * bits + 7) / 8 : PLAN_NEVER;
}

static bool read_before(const tsr_node *n, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (tsr_node_input(n, k) == tsr_node_input(n, i))
            return true;
    return false;
}

static bool steers(const struct rule *r, size_t i)
{
    return (int)i < r->n_inputs && r->inputs[i].host;
}

static double bytes_touched(const tsr_node *n, const struct shapes *s, const struct rule *r,
                            bool *sized)
{
    double outputs = 0, bytes = 0;
    for (size_t i = 0; i < tsr_node_output_count(n); i++)
        if (tsr_node_output(n, i))
            outputs += (double)tsr__price_bytes(s, tsr_node_output(n, i), sized);
    for (size_t i = 0; i < tsr_node_input_count(n); i++) {
        const tsr_value *v = tsr_node_input(n, i);
        if (!v || read_before(n, i) || steers(r, i))
            continue;
        double read = (double)tsr__price_bytes(s, v, sized) * tsr__rule_reads(r, (int)i);
        if ((int)i < r->n_inputs && tsr__rule_looks_up(r, (int)i) && read > outputs)
            read = outputs;
        bytes += read;
    }
    return bytes + outputs;
}

int64_t tsr__price_node(struct arena *a, const tsr_node *n, const struct shapes *s,
                        const tsr_topology_device *d, bool *sized)
{
    int64_t sizes[RULE_MAX_FACTORS];
    const struct rule *r = tsr__rule_of(a, n, s);
    *sized = true;
    if (!r)
        return 0;
    tsr__planner_sizes(s, n, r, sizes);
    for (int f = 0; f < r->n_factors; f++)
        sizes[f] = sizes[f] < 0 ? 1 : sizes[f];
    double bytes = bytes_touched(n, s, r, sized);
    double work = tsr__node_work(r, tsr__node_count(n, s), sizes, sizes);
    return tsr__price_work(work, tsr__node_rate(n, s), bytes, d);
}

// What a device takes in goes through its memory, however many links bring it: read and written. (What is
// folded is read as it comes, which the topology counts.)
static double copied(enum tsr_collective what, double bytes, double n)
{
    double share = what == TSR_ALL_TO_ALL                             ? (n - 1) / (n * n)
                   : what == TSR_REDUCE_SCATTER || what == TSR_REDUCE ? 0
                   : what == TSR_ALL_GATHER || what == TSR_ALL_REDUCE ? (n - 1) / n
                                                                      : 1;
    return 2 * share * bytes;
}

int64_t tsr__price_collective(tsr_topology *t, tsr_collective what,
                              const struct topology_groups *groups, int64_t bytes)
{
    if (groups->size < 2)
        return 0;
    int64_t ps = tsr__topology_cost(t, what, groups, bytes);
    if (ps >= PLAN_NEVER)
        return PLAN_NEVER;
    if (tsr__topology_measured(t, what, groups->size))
        return ps; // with its copies
    double slowest = 0;
    for (int i = 0; i < groups->count * groups->size; i++) {
        double each = 1 / t->device[groups->device[i]].bandwidth;
        slowest = each > slowest ? each : slowest;
    }
    double more = copied(what, (double)bytes, groups->size) * slowest * 1e12;
    return more < (double)(PLAN_NEVER - ps) ? ps + (int64_t)more : PLAN_NEVER;
}

int64_t tsr__price_exchange(tsr_topology *t, const struct topology_groups *groups, int64_t bytes)
{
    double n = groups->size, whole = n > 1 ? (double)bytes * n * n / (n - 1) : 0;
    return tsr__price_collective(t, TSR_ALL_TO_ALL, groups,
                                 whole < (double)PLAN_NEVER ? (int64_t)whole : PLAN_NEVER);
}
