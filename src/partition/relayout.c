// SPDX-License-Identifier: Apache-2.0
// relayout.c - windows that are made where the value is made. A node that needs windows of a value (the queries, keys and
// values of its own heads, which lie side by side) would have to be sent them. Where the value comes from constants along that
// axis (the columns of a projection), the projection can give just these columns instead: its weights are stored in the order in
// which they are needed, and nothing moves. Only where all who read the value need windows of it, and all else that its
// maker reads is there already.
#include "internal.h"

#define MAX_DEPTH 8

static struct form *relayout(struct plan *p, struct item *it, const struct tile_layout *base,
                             const struct windows *w, int depth);

// The node means the same for any choice of elements of a free factor.
static bool is_plain(const struct rule *r)
{
    bool plain = !r->whole && !r->single && !r->n_windows && !r->n_lists;
    for (int i = 0; i < r->n_rewrites; i++)
        plain = plain &&
                (r->rewrites[i].kind == REWRITE_ATTR || r->rewrites[i].kind == REWRITE_ADD_ONCE);
    return plain;
}

// Windows of one axis, ascending, each device some.
static bool is_simple(const struct windows *w, const struct tile_layout *base)
{
    for (int64_t i = 0; w->n_axes == 1 && i < base->first[base->n_shards]; i++) {
        const struct dim_cut *part = &w->parts[base->owners[i] * w->n_axes];
        for (int64_t k = 0; k < part->n; k++)
            if (k > 0 && part->at[k].start < part->at[k - 1].stop)
                return false;
        if (!part->n)
            return false;
    }
    return w->n_axes == 1;
}

// The same windows of a dimension of which each element is `unit` here.
static struct windows *scaled(struct plan *p, const struct windows *w, int axis, int64_t unit)
{
    struct windows *out = ARENA_NEW(p->arena, struct windows);
    struct dim_cut *parts = ARENA_ARRAY(p->arena, struct dim_cut, (size_t)p->n_ranks + 1);
    if (!out || !parts)
        return NULL;
    *out = (struct windows){.n_axes = 1, .axes = {axis}, .parts = parts};
    for (int64_t r = 0; r < p->n_ranks; r++) {
        int64_t n = w->parts[r].n;
        parts[r].n = n;
        parts[r].at = ARENA_ARRAY(p->arena, struct tile_interval, (size_t)n + 1);
        for (int64_t k = 0; k < n && parts[r].at; k++)
            parts[r].at[k] = (struct tile_interval){w->parts[r].at[k].start * unit,
                                                    w->parts[r].at[k].stop * unit};
    }
    return p->arena->failed ? NULL : out;
}

// ---- how the maker would run -------------------------------------------------------------------

static bool same_devices(struct plan *p, const struct placement *place,
                         const struct tile_layout *base)
{
    int64_t *devices;
    size_t n = tsr__layout_devices(p->arena, base, &devices);
    return n == place->n_devices && !p->arena->failed &&
           memcmp(devices, place->devices, n * sizeof(*devices)) == 0;
}

// Factors of the result as the layout cuts them, all others whole.
static bool place_like(struct plan *p, const struct rule *r, const struct tile_layout *base,
                       const int64_t *devices, size_t n_devices, struct placement *out)
{
    size_t n = (size_t)r->n_factors;
    *out = (struct placement){.rule = r, .n_devices = n_devices};
    out->devices = ARENA_ARRAY(p->arena, int64_t, n_devices + 1);
    out->cuts = ARENA_ARRAY(p->arena, int64_t, n + 1);
    out->coords = ARENA_ARRAY(p->arena, int64_t, n * n_devices + 1);
    if (p->arena->failed || base->rank != r->outputs[0].rank)
        return false;
    memcpy(out->devices, devices, n_devices * sizeof(*devices));
    for (size_t f = 0; f < n; f++)
        out->cuts[f] = 1;
    for (int d = 0; d < base->rank; d++) {
        const struct rule_dim *dim = &r->outputs[0].dims[d];
        if (!tsr__dim_cut(&base->dims[d]))
            continue;
        if (dim->n != 1 || base->dims[d].n != 1 || out->cuts[dim->factors[0]] != 1 ||
            r->factors[dim->factors[0]].kind != FACTOR_PAR)
            return false;
        out->cuts[dim->factors[0]] = base->dims[d].factors[0].cuts;
        for (size_t i = 0; i < n_devices; i++) {
            int64_t coords[TILE_MAX_FACTORS];
            if (!tsr__device_coords(base, devices[i], d, coords))
                return false;
            out->coords[i * n + (size_t)dim->factors[0]] = coords[0];
        }
    }
    return true;
}

// Where the factor stands in a tensor, as the outermost of its dimension: *unit elements for each of it. -1: nowhere; -2: otherwise.
static int find_factor(const struct rule *r, const struct rule_tensor *t, int f, int64_t *unit)
{
    int found = -1;
    *unit = 1;
    for (int d = 0; d < t->rank; d++)
        for (int k = 0; k < t->dims[d].n; k++) {
            if (t->dims[d].factors[k] != f)
                continue;
            if (found != -1 || k > 0)
                return -2;
            found = d;
        }
    for (int k = 1; found >= 0 && k < t->dims[found].n; k++) {
        int64_t size = r->factors[t->dims[found].factors[k]].size.value;
        if (size < 1 || !mul_ok(*unit, size, unit))
            return -2;
    }
    return found;
}

// ---- what it reads -----------------------------------------------------------------------------

static struct form *free_form(struct plan *p, struct item *it, const struct tile_layout *want)
{
    struct scope *here = p->scope;
    tsr__scope_go(p, it->scope);
    struct form *f = tsr__plan_free(p, it, want);
    tsr__scope_go(p, here);
    return f;
}

// Stored in these windows.
static struct form *const_windows(struct plan *p, struct item *it, const struct tile_layout *l,
                                  struct windows *w)
{
    if (!it->fixed || tsr_dtype_bits(it->dtype) == 0)
        return NULL;
    struct form *f = tsr__form_new(p, it, l, FORM_CONST);
    if (f) {
        f->windows = w;
        f->partial = true; // not what its layout says: nobody else may take it
    }
    return f;
}

static struct form *maker_input(struct plan *p, const struct placement *place, int input,
                                const tsr_value *v, int factor, const struct windows *w, int depth)
{
    const struct rule_tensor *t = &place->rule->inputs[input];
    struct item *it = tsr__item_of(p, v);
    int64_t unit;
    int axis = it && !t->host ? find_factor(place->rule, t, factor, &unit) : -1;
    struct tile_layout *l = NULL;
    if (it && axis > -2)
        l = t->host ? tsr__layout_whole(p->arena, it->rank < 0 ? 0 : it->rank, place->devices,
                                        place->n_devices)
                    : tsr__placement_project(p->arena, place, t);
    if (!l)
        return NULL;
    if (axis < 0)
        return free_form(p, it, l);
    struct windows *own = scaled(p, w, axis, unit);
    if (!own)
        return NULL;
    return it->first && it->first->kind == FORM_CONST ? const_windows(p, it, l, own)
                                                      : relayout(p, it, l, own, depth + 1);
}

// ---- the maker ---------------------------------------------------------------------------------

static struct node_flow *maker_flow(struct plan *p, const tsr_node *n,
                                    const struct tile_layout *base)
{
    const struct node_flow *own = p->flows[tsr__node_id(n)];
    const struct rule *r = own && !own->bodies ? tsr__rule_of(p->arena, n, p->flow->shapes) : NULL;
    struct node_flow *nf = ARENA_NEW(p->arena, struct node_flow);
    if (!r || !nf || !is_plain(r) || tsr_node_output_count(n) != 1 ||
        !same_devices(p, &own->place, base) || !tsr__owns_once(base) ||
        !place_like(p, r, base, own->place.devices, own->place.n_devices, &nf->place))
        return NULL;
    nf->node = n;
    nf->outputs = ARENA_ARRAY(p->arena, struct tile_layout *, 1);
    nf->inputs = ARENA_ARRAY(p->arena, struct tile_layout *, tsr_node_input_count(n) + 1);
    return p->arena->failed ? NULL : nf;
}

static struct form *maker_step(struct plan *p, const struct node_flow *nf, struct item *it,
                               const struct tile_layout *base, struct windows *w, int factor,
                               struct form **inputs)
{
    size_t n = tsr_node_input_count(nf->node);
    struct form *f = tsr__form_new(p, it, base, FORM_MADE);
    struct step *st = f ? tsr__step_new(p, STEP_NODE, n, 1) : NULL;
    if (!st)
        return NULL;
    f->windows = w;
    f->partial = true;
    memcpy(st->inputs, inputs, n * sizeof(*inputs));
    st->outputs[0] = f;
    st->n_node_inputs = n;
    st->flow = nf;
    st->made = w;
    st->made_factor = factor;
    return f;
}

static struct form *relayout(struct plan *p, struct item *it, const struct tile_layout *base,
                             const struct windows *w, int depth)
{
    const tsr_node *n = it->value ? tsr_value_producer(it->value) : NULL;
    const struct want *want = it->value ? &p->wants[tsr__value_id(it->value)] : NULL;
    // Of what stands in between, this is the only reader; it is not asked for windows itself.
    if (!n || depth > MAX_DEPTH || !want ||
        (depth ? want->readers != 1 : want->readers != want->windowed))
        return NULL;
    struct node_flow *nf = maker_flow(p, n, base);
    const struct rule_dim *dim = nf ? &nf->place.rule->outputs[0].dims[w->axes[0]] : NULL;
    size_t n_in = tsr_node_input_count(n);
    struct form **inputs = ARENA_ARRAY(p->arena, struct form *, n_in + 1);
    bool any = false;
    if (!dim || !inputs || dim->n != 1 || nf->place.rule->factors[dim->factors[0]].unit != 1)
        return NULL;
    for (size_t i = 0; i < n_in; i++) {
        const tsr_value *v = tsr_node_input(n, i);
        if (!v)
            continue;
        inputs[i] = maker_input(p, &nf->place, (int)i, v, dim->factors[0], w, depth);
        if (!inputs[i])
            return NULL;
        any |= inputs[i]->windows != NULL;
    }
    return any ? maker_step(p, nf, it, base, scaled(p, w, w->axes[0], 1), dim->factors[0], inputs)
               : NULL;
}

struct form *tsr__plan_relayout(struct plan *p, struct item *it, const struct tile_layout *base,
                                const struct windows *w)
{
    return is_simple(w, base) ? relayout(p, it, base, w, 0) : NULL;
}

int64_t tsr__windows_size(const struct windows *w, int64_t rank)
{
    int64_t n = 0;
    for (int64_t k = 0; k < w->parts[rank].n; k++)
        n += w->parts[rank].at[k].stop - w->parts[rank].at[k].start;
    return n;
}
