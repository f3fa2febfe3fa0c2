// SPDX-License-Identifier: Apache-2.0
// delay.c - sums that are not combined where they arise but after they were added to others: one communication in place
// of several. Annotations cannot say it; the model's metadata names the values.
//
// A value may stay in parts if all its readers can take parts (rules: linear.c), on the same devices and in the same
// layout, and what they give is the same piece for all members of a group.
#include "sharding/internal.h"

struct delay {
    struct flow *f;
    bool *asked;      // by value id
    int64_t *node_at; // by node id: its place in the flow, or -1
    const struct node_flow *from;
    bool fits;
};

bool tsr__groups_share(const struct device_group *groups, size_t n, const struct tile_layout *l)
{
    for (size_t g = 0; g < n; g++)
        for (size_t i = 0; i < groups[g].n; i++) {
            int64_t shard = tsr__layout_shard_of(l, groups[g].devices[i], 0);
            if (shard < 0 || shard != tsr__layout_shard_of(l, groups[g].devices[0], 0) ||
                tsr__layout_shard_of(l, groups[g].devices[i], shard + 1) >= 0)
                return false;
        }
    return true;
}

static bool same_groups(const struct node_flow *x, const struct node_flow *y)
{
    bool same = x->n_groups == y->n_groups && x->combine == y->combine;
    for (size_t g = 0; same && g < x->n_groups; g++)
        same = x->groups[g].n == y->groups[g].n &&
               memcmp(x->groups[g].devices, y->groups[g].devices,
                      x->groups[g].n * sizeof *x->groups[g].devices) == 0;
    return same;
}

static bool disjoint(const struct node_flow *nf, int64_t n_devices)
{
    for (int64_t d = 0; d < n_devices; d++) {
        size_t times = 0;
        for (size_t g = 0; g < nf->n_groups; g++)
            for (size_t i = 0; i < nf->groups[g].n; i++)
                times += nf->groups[g].devices[i] == d;
        if (times > 1)
            return false;
    }
    return true;
}

static bool same_shape(const struct shapes *s, const tsr_value *x, const tsr_value *y)
{
    struct shape a = tsr__shapes_of(s, x), b = tsr__shapes_of(s, y);
    bool same = a.rank >= 0 && a.rank == b.rank;
    for (int d = 0; same && d < a.rank; d++)
        same = a.dims[d].value >= 0 ? a.dims[d].value == b.dims[d].value
                                    : b.dims[d].value < 0 && a.dims[d].symbol[0] &&
                                          strcmp(a.dims[d].symbol, b.dims[d].symbol) == 0;
    return same;
}

enum sum_way tsr__sum_fits(const struct shapes *s, const tsr_node *n, size_t input)
{
    enum sum_way way = tsr__rule_sum(n, input);
    const tsr_value *y = tsr_node_output_count(n) == 1 ? tsr_node_output(n, 0) : NULL;
    if (!y || (way == SUM_ADDS && !same_shape(s, tsr_node_input(n, input), y)))
        return SUM_STOPS;
    return way;
}

static const struct node_flow *producer(const struct delay *d, const tsr_value *v)
{
    const tsr_node *n = v ? tsr_value_producer(v) : NULL;
    int64_t at = n ? d->node_at[tsr__node_id(n)] : -1;
    return at < 0 ? NULL : &d->f->nodes[at];
}

// What else comes in parts comes from the same groups, and only where it is added.
static bool others_fit(const struct delay *d, const struct node_flow *r, size_t input,
                       enum sum_way way)
{
    for (size_t i = 0; i < tsr_node_input_count(r->node); i++) {
        const struct node_flow *other = producer(d, tsr_node_input(r->node, i));
        if (i != input && other && other->delayed &&
            (way != SUM_ADDS || !same_groups(other, d->from)))
            return false;
        if (i != input && tsr_node_input(r->node, i) == tsr_node_input(r->node, input) &&
            way != SUM_ADDS)
            return false;
    }
    return true;
}

static bool check_reader(void *data, tsr_node *n, size_t input)
{
    struct delay *d = data;
    int64_t at =
        tsr_node_graph(n) == tsr_model_graph(d->f->model) ? d->node_at[tsr__node_id(n)] : -1;
    const struct node_flow *r = at < 0 ? NULL : &d->f->nodes[at];
    enum sum_way way = tsr__sum_fits(d->f->shapes, n, input);
    d->fits = r && way != SUM_STOPS && !r->n_groups && !r->place.rule->whole && !r->bodies &&
              r->outputs[0] && tsr__layout_equal(r->inputs[input], d->from->outputs[0]) &&
              tsr__groups_share(d->from->groups, d->from->n_groups, r->outputs[0]) &&
              others_fit(d, r, input, way);
    return d->fits;
}

static bool may_delay(struct delay *d, const struct node_flow *nf)
{
    const tsr_value *v = tsr_node_output_count(nf->node) == 1 ? tsr_node_output(nf->node, 0) : NULL;
    if (!v || !d->asked[tsr__value_id(v)] || !nf->n_groups || nf->combine != COMBINE_SUM ||
        nf->wanted[0] || tsr_value_is_output(v) || !disjoint(nf, tsr_config_devices(d->f->config)))
        return false;
    d->from = nf;
    d->fits = false; // somebody must read it
    tsr_value_uses(v, check_reader, d);
    return d->fits;
}

// The parts that come in make parts of what the node gives.
static bool take_parts(struct arena *a, const struct delay *d, struct node_flow *nf)
{
    for (size_t i = 0; i < tsr_node_input_count(nf->node); i++) {
        const struct node_flow *from = producer(d, tsr_node_input(nf->node, i));
        if (!from || !from->delayed)
            continue;
        bool *pending = nf->pending ? (bool *)nf->pending
                                    : ARENA_ARRAY(a, bool, tsr_node_input_count(nf->node) + 1);
        if (!pending)
            return false;
        pending[i] = true;
        nf->pending = pending;
        nf->groups = from->groups;
        nf->n_groups = from->n_groups;
        nf->combine = from->combine;
    }
    return true;
}

void tsr__delayed_names(struct arena *a, const tsr_model *m, const tsr_config *c, struct map *names)
{
    const char *text = tsr_model_metadata(m, META_DELAY);
    struct str config = str_of(tsr_config_name(c));
    tsr__map_init(names, a, 0);
    for (; text && *text; text += strcspn(text, "\n"), text += *text == '\n') {
        struct str line = {text, strcspn(text, "\n")};
        if (line.n <= config.n || line.p[config.n] != ':' ||
            memcmp(line.p, config.p, config.n) != 0)
            continue;
        void **at = tsr__map_at(names, (struct str){line.p + config.n + 1, line.n - config.n - 1});
        if (at)
            *at = names;
    }
}

static bool read_asked(struct arena *a, struct delay *d)
{
    struct map names;
    tsr__delayed_names(a, d->f->model, d->f->config, &names);
    for (const tsr_node *n = tsr_graph_first(tsr_model_graph(d->f->model)); n; n = tsr_node_next(n))
        for (size_t o = 0; o < tsr_node_output_count(n); o++) {
            const tsr_value *v = tsr_node_output(n, o);
            if (v && tsr__map_get(&names, tsr__value_str(v)))
                d->asked[tsr__value_id(v)] = true;
        }
    return !a->failed;
}

bool tsr__flow_delay(struct arena *a, struct flow *f)
{
    if (!tsr_model_metadata(f->model, META_DELAY))
        return true;
    struct delay d = {.f = f};
    size_t ids = tsr__model_node_ids(f->model);
    d.asked = ARENA_ARRAY(a, bool, tsr__model_value_ids(f->model) + 1);
    d.node_at = ARENA_ARRAY(a, int64_t, ids + 1);
    if (!d.asked || !d.node_at)
        return false;
    for (size_t i = 0; i < ids; i++)
        d.node_at[i] = -1;
    for (size_t i = 0; i < f->n_nodes; i++)
        d.node_at[tsr__node_id(f->nodes[i].node)] = (int64_t)i;
    if (!read_asked(a, &d))
        return false;
    for (size_t i = 0; i < f->n_nodes; i++) {
        if (!take_parts(a, &d, &f->nodes[i]))
            return false;
        f->nodes[i].delayed = may_delay(&d, &f->nodes[i]);
    }
    return true;
}
