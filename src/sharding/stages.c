// SPDX-License-Identifier: Apache-2.0
// stages.c - pipeline stages: which devices each node may run on.
//
// The distinct numbers in use, ascending, are the stages in line. The devices of a stage are those
// that the specs of its nodes name. Where no stage has specs and the highest number is that of the
// last device, stage k is device k, gaps included; else the devices that no stage names are dealt
// out in equal runs. A node without a stage goes with the latest stage that it depends on; one that
// depends on none may run anywhere. Knows no layouts beyond the devices they name.
#include "sharding/flow.h"

#include <stdlib.h>

#define STAGES_MAX_CELLS ((size_t)1 << 24) // stages x devices

static const tsr_node_config *entry_of(const tsr_node *n, const tsr_config *c)
{
    for (size_t i = 0; i < tsr_node_config_count(n); i++)
        if (tsr_node_config_config(tsr_node_config_at(n, i)) == c)
            return tsr_node_config_at(n, i);
    return NULL;
}

// -1: none.
static int64_t own_stage(const tsr_node *n, const tsr_config *c)
{
    int64_t stage;
    const tsr_node_config *nc = entry_of(n, c);
    return nc && tsr_node_config_stage(nc, &stage) && stage >= 0 ? stage : -1;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// ---- devices -------------------------------------------------------------------------------------

static bool add_device(struct stages *s, bool *on, int64_t device)
{
    if (device < 0 || device >= s->n_all)
        return false;
    on[device] = true;
    return true;
}

// An entry of a spec's list of devices is a group if it is a key of one.
static bool add_group(struct stages *s, bool *on, const tsr_spec *p, int64_t key)
{
    for (size_t g = 0; g < tsr_spec_group_count(p); g++) {
        const int64_t *members;
        size_t n;
        if (tsr_spec_group(p, g, &members, &n) != key)
            continue;
        for (size_t i = 0; i < n; i++)
            add_device(s, on, members[i]);
        return true;
    }
    return false;
}

static bool add_specs(struct stages *s, bool *on, const tsr_node_config *nc)
{
    bool any = false;
    for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++) {
        const tsr_spec *p = tsr_node_config_spec(nc, i);
        const int64_t *devices;
        size_t n = tsr_spec_devices(p, &devices);
        any |= n > 0;
        for (size_t k = 0; k < n; k++)
            if (!add_group(s, on, p, devices[k]))
                add_device(s, on, devices[k]);
    }
    return any;
}

// The devices that no stage names by its specs, ascending; where every device is named, all of them.
static size_t free_devices(const struct stages *s, const bool *named, int64_t *out)
{
    size_t n = 0;
    for (int64_t d = 0; d < s->n_all; d++) {
        bool taken = false;
        for (size_t k = 0; k < s->n; k++)
            taken |= named[k] && s->on[k][d];
        if (!taken)
            out[n++] = d;
    }
    for (int64_t d = 0; n == 0 && d < s->n_all; d++)
        out[d] = d;
    return n ? n : (size_t)s->n_all;
}

// Deals the free devices out to the stages without specs, in equal runs: 5 devices for 2 stages give
// 2 and 3. Stages beyond the number of devices share the last one.
static void deal_devices(struct stages *s, const bool *named, const int64_t *devices, size_t n)
{
    int64_t unnamed = 0, at = 0, n_free = (int64_t)n;
    for (size_t k = 0; k < s->n; k++)
        unnamed += !named[k];
    for (size_t k = 0; k < s->n; k++) {
        if (named[k])
            continue;
        int64_t first = tsr__tile_start(n_free, unnamed, at);
        int64_t stop = tsr__tile_start(n_free, unnamed, at + 1);
        if (n_free < unnamed) {
            first = at < n_free ? at : n_free - 1;
            stop = first + 1;
        }
        for (int64_t i = first; i < stop; i++)
            s->on[k][devices[i]] = true;
        at++;
    }
}

// Devices of the stages that name none by specs.
static bool default_devices(struct stages *s, struct arena *a, const bool *named)
{
    bool any_named = false;
    for (size_t k = 0; k < s->n; k++)
        any_named |= named[k];
    if (!any_named && s->numbers[s->n - 1] == s->n_all - 1) {
        for (size_t k = 0; k < s->n; k++)
            s->on[k][s->numbers[k]] = true;
        return true;
    }
    int64_t *devices = ARENA_ARRAY(a, int64_t, (size_t)s->n_all);
    if (!devices)
        return false;
    deal_devices(s, named, devices, free_devices(s, named, devices));
    return true;
}

// ---- nodes ---------------------------------------------------------------------------------------

// The latest stage (place in line) that inputs and captured values depend on; -1: none.
static int latest_of(const tsr_node *n, const int *of_value)
{
    tsr_value **captures;
    int latest = -1;
    size_t n_in = tsr_node_input_count(n), n_captures = tsr__node_captures(n, &captures);
    for (size_t i = 0; i < n_in + n_captures; i++) {
        const tsr_value *v = i < n_in ? tsr_node_input(n, i) : captures[i - n_in];
        if (v && of_value[tsr__value_id(v)] - 1 > latest)
            latest = of_value[tsr__value_id(v)] - 1;
    }
    return latest;
}

static int place_in_line(const struct stages *s, int64_t number)
{
    const int64_t *at = bsearch(&number, s->numbers, s->n, sizeof(*s->numbers), by_number);
    return at ? (int)(at - s->numbers) : -1;
}

// Gives every node its place in line, in the order of the graph, and collects the devices that the
// specs of each stage name.
static bool follow_nodes(struct stages *s, struct arena *a, tsr_model *m, const tsr_config *c)
{
    int *of_value = ARENA_ARRAY(a, int, tsr__model_value_ids(m) + 1); // plus 1
    bool *named = ARENA_ARRAY(a, bool, s->n + 1);
    if (!of_value || !named)
        return false;
    for (tsr_node *n = tsr_graph_first(tsr_model_graph(m)); n; n = tsr_node_next(n)) {
        int64_t own = own_stage(n, c);
        int at = own >= 0 ? place_in_line(s, own) : latest_of(n, of_value);
        s->of_node[tsr__node_id(n)] = (struct stage_of){at, own >= 0};
        if (own >= 0)
            named[at] |= add_specs(s, s->on[at], entry_of(n, c));
        for (size_t k = 0; k < tsr_node_output_count(n); k++)
            if (tsr_node_output(n, k))
                of_value[tsr__value_id(tsr_node_output(n, k))] = at + 1;
    }
    return default_devices(s, a, named);
}

static size_t distinct(struct arena *a, tsr_model *m, const tsr_config *c, int64_t **out)
{
    size_t n = 0, kept = 0, cap = tsr_graph_node_count(tsr_model_graph(m));
    int64_t *all = ARENA_ARRAY(a, int64_t, cap + 1);
    for (tsr_node *node = tsr_graph_first(tsr_model_graph(m)); node && all && n < cap;
         node = tsr_node_next(node)) {
        int64_t own = own_stage(node, c);
        if (own >= 0 && (n == 0 || all[n - 1] != own))
            all[n++] = own;
    }
    if (n)
        qsort(all, n, sizeof(*all), by_number);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || all[kept - 1] != all[i])
            all[kept++] = all[i];
    *out = all;
    return kept;
}

static bool too_many(tsr_session *s, const tsr_config *c, size_t n)
{
    struct place at = PLACE_NONE;
    at.configuration = str_of(tsr_config_name(c));
    tsr__diag(s, DIAG_stages_many, &at, "use fewer numbers: nodes of one stage share one",
              "%zu pipeline stages on %lld devices are more than can be followed", n,
              (long long)tsr_config_devices(c));
    return false;
}

bool tsr__stages_find(struct arena *a, tsr_model *m, const tsr_config *c, struct stages *s)
{
    *s = (struct stages){.n_all = tsr_config_devices(c)};
    s->n = distinct(a, m, c, &s->numbers);
    if (!s->n || a->failed)
        return !a->failed;
    if (s->n > STAGES_MAX_CELLS / (size_t)s->n_all)
        return too_many(a->session, c, s->n);
    s->on = ARENA_ARRAY(a, bool *, s->n);
    for (size_t k = 0; k < s->n && s->on; k++)
        s->on[k] = ARENA_ARRAY(a, bool, (size_t)s->n_all + 1);
    s->of_node = ARENA_ARRAY(a, struct stage_of, tsr__model_node_ids(m) + 1);
    return !a->failed && follow_nodes(s, a, m, c);
}

const bool *tsr__stages_devices(const struct stages *s, const tsr_node *n, bool explicit_specs)
{
    if (!s->n)
        return NULL;
    struct stage_of at = s->of_node[tsr__node_id(n)];
    return at.place < 0 || (explicit_specs && !at.own) ? NULL : s->on[at.place];
}
