// SPDX-License-Identifier: Apache-2.0
// windows.c - inputs of which a part of the result needs more than a part: the neighbours of a
// convolution, the segments of a concatenation, the range of a slice.
//
// The rule says which elements each part needs. Where a device has them already (a value that is
// whole there), it crops; else the devices exchange what lies beyond their own parts, and nothing
// else. What comes of it is a form of its own kind: its layout says who has a part, its windows say
// which elements that part consists of, and only a node that needs just these reads it.
#include "internal.h"

#include <stdlib.h>

bool tsr__window_cut(const struct node_flow *nf, int input)
{
    const struct rule *r = nf->place.rule;
    for (int i = 0; r && i < r->n_windows; i++)
        if ((input < 0 || r->windows[i].input == input) && nf->place.cuts[r->windows[i].factor] > 1)
            return true;
    return false;
}

struct window_part tsr__window_at(const struct node_flow *nf, int64_t place, int window)
{
    const struct rule *r = nf->place.rule;
    const struct rule_window *w = &r->windows[window];
    return tsr__window_part(w, nf->place.cuts[w->factor],
                            nf->place.coords[place * r->n_factors + w->factor]);
}

// ---- what is needed ----------------------------------------------------------------------------

static void list_axes(const struct node_flow *nf, int input, struct windows *out)
{
    const struct rule *r = nf->place.rule;
    for (int i = 0; i < r->n_windows; i++) {
        const struct rule_window *w = &r->windows[i];
        bool known = w->input != input || nf->place.cuts[w->factor] < 2;
        for (int k = 0; k < out->n_axes && !known; k++)
            known = out->axes[k] == w->dim;
        if (!known)
            out->axes[out->n_axes++] = w->dim;
    }
    for (int i = 1; i < out->n_axes; i++) // ascending; a few
        for (int k = i; k > 0 && out->axes[k] < out->axes[k - 1]; k--) {
            int x = out->axes[k];
            out->axes[k] = out->axes[k - 1];
            out->axes[k - 1] = x;
        }
}

// The intervals that one device needs of one axis.
static bool list_intervals(struct plan *p, const struct node_flow *nf, int input, int axis,
                           int64_t place, struct dim_cut *out)
{
    const struct rule *r = nf->place.rule;
    out->at = ARENA_ARRAY(p->arena, struct tile_interval, (size_t)r->n_windows + 1);
    for (int i = 0; out->at && i < r->n_windows; i++) {
        if (r->windows[i].input != input || r->windows[i].dim != axis)
            continue;
        struct window_part w = tsr__window_at(nf, place, i);
        if (w.start == w.stop)
            continue;
        if (out->n && out->at[out->n - 1].stop == w.start)
            out->at[out->n - 1].stop = w.stop;
        else
            out->at[out->n++] = (struct tile_interval){w.start, w.stop};
    }
    return out->at != NULL;
}

static struct windows *windows_of(struct plan *p, const struct node_flow *nf, int input)
{
    struct windows *w = ARENA_NEW(p->arena, struct windows);
    if (!w)
        return NULL;
    list_axes(nf, input, w);
    w->parts = ARENA_ARRAY(p->arena, struct dim_cut, (size_t)(p->n_ranks * w->n_axes) + 1);
    for (size_t d = 0; w->parts && d < nf->place.n_devices; d++)
        for (int k = 0; k < w->n_axes; k++)
            if (!list_intervals(p, nf, input, w->axes[k], (int64_t)d,
                                &w->parts[nf->place.devices[d] * w->n_axes + k]))
                return NULL;
    return w->parts ? w : NULL;
}

static bool same_intervals(const struct tile_interval *a, int64_t n, const struct tile_interval *b,
                           int64_t m)
{
    return n == m && (n == 0 || memcmp(a, b, (size_t)n * sizeof(*a)) == 0);
}

static bool same_windows(const struct plan *p, const struct windows *a, const struct windows *b)
{
    if (a->n_axes != b->n_axes || memcmp(a->axes, b->axes, (size_t)a->n_axes * sizeof(int)) != 0)
        return false;
    for (int64_t i = 0; i < p->n_ranks * a->n_axes; i++)
        if (!same_intervals(a->parts[i].at, a->parts[i].n, b->parts[i].at, b->parts[i].n))
            return false;
    return true;
}

// Everybody needs its own part and no more.
static bool is_own_part(const struct plan *p, const struct item *it, const struct windows *w,
                        const struct tile_layout *l)
{
    for (int64_t i = 0; i < l->first[l->n_shards]; i++)
        for (int k = 0; k < w->n_axes; k++) {
            int64_t coords[TILE_MAX_FACTORS];
            struct tile_interval at[2];
            int d = w->axes[k];
            const struct dim_cut *need = &w->parts[l->owners[i] * w->n_axes + k];
            if (!tsr__device_coords(l, l->owners[i], d, coords) ||
                tsr__dim_intervals(&l->dims[d], it->dims[d].value, coords, at, 2) != 1 ||
                !same_intervals(at, 1, need->at, need->n))
                return false;
        }
    (void)p;
    return true;
}

// ---- where it comes from -----------------------------------------------------------------------

// The input with the axes of the windows whole, the rest as the node needs it.
static struct tile_layout *open_layout(struct plan *p, const struct node_flow *nf, int input)
{
    const struct rule *r = nf->place.rule;
    struct placement open = nf->place;
    size_t n = nf->place.n_devices * (size_t)r->n_factors;
    open.cuts = ARENA_ARRAY(p->arena, int64_t, (size_t)r->n_factors + 1);
    open.coords = ARENA_ARRAY(p->arena, int64_t, n + 1);
    if (!open.cuts || !open.coords)
        return NULL;
    memcpy(open.cuts, nf->place.cuts, (size_t)r->n_factors * sizeof(*open.cuts));
    memcpy(open.coords, nf->place.coords, n * sizeof(*open.coords));
    for (int i = 0; i < r->n_windows; i++) {
        int f = r->windows[i].factor;
        if (r->windows[i].input != input)
            continue;
        open.cuts[f] = 1;
        for (size_t d = 0; d < nf->place.n_devices; d++)
            open.coords[d * (size_t)r->n_factors + (size_t)f] = 0;
    }
    return tsr__placement_project(p->arena, &open, &r->inputs[input]);
}

static struct form *window_form(struct plan *p, struct form *from, const struct tile_layout *l,
                                struct windows *w, enum step_kind kind, struct step **out)
{
    struct form *f = tsr__form_new(p, from->item, l, FORM_MADE);
    *out = f ? tsr__step_new(p, kind, 2, 1) : NULL;
    if (!*out)
        return NULL;
    f->windows = w;
    f->partial = true; // not what its layout says: nobody else may take it
    (*out)->inputs[0] = from;
    (*out)->outputs[0] = f;
    return f;
}

static struct form *exchange(struct plan *p, struct item *it, const struct tile_layout *base,
                             struct windows *w, const tsr_node *reader)
{
    struct form *from = tsr__plan_convert(p, it, base, reader);
    struct device_group *group = ARENA_NEW(p->arena, struct device_group);
    struct step *st;
    struct form *f = from && group ? window_form(p, from, base, w, STEP_HALO, &st) : NULL;
    if (!f)
        return NULL;
    group->n = tsr__layout_devices(p->arena, base, &group->devices);
    st->groups = group;
    st->n_groups = 1;
    st->group_live = ARENA_ARRAY(p->arena, unsigned char, 2);
    return p->arena->failed ? NULL : f;
}

static struct form *plan_windows(struct plan *p, const struct node_flow *nf, struct item *it,
                                 int input)
{
    const struct tile_layout *base = nf->inputs[input];
    struct windows *w = windows_of(p, nf, input);
    struct tile_layout *open = w ? open_layout(p, nf, input) : NULL;
    struct step *st;
    if (!open)
        return NULL;
    if (is_own_part(p, it, w, base))
        return tsr__plan_convert(p, it, base, nf->node);
    for (struct form *f = it->first; f; f = f->next)
        if (f->windows && tsr__layout_same(f->layout, base) && same_windows(p, f->windows, w))
            return f;
    struct form *made = tsr__plan_relayout(p, it, base, w);
    if (made || p->arena->failed)
        return made;
    struct form *from = tsr__plan_free(p, it, open);
    if (!from && plan_status(p) != TSR_OK)
        return NULL;
    bool moves = tsr_dtype_bits(it->dtype) >= 8 && tsr__shape_known(p, it) && tsr__owns_once(base);
    if (!from && moves)
        return exchange(p, it, base, w, nf->node);
    if (!from)
        from = tsr__plan_convert(p, it, open, nf->node);
    return from ? window_form(p, from, base, w, STEP_CROP, &st) : NULL;
}

struct form *tsr__plan_windows(struct plan *p, const struct node_flow *nf, struct item *it,
                               int input)
{
    struct scope *here = p->scope;
    tsr__scope_go(p, it->scope);
    struct form *f = plan_windows(p, nf, it, input);
    tsr__scope_go(p, here);
    return f;
}

// ---- what the local node is told ---------------------------------------------------------------

bool tsr__lists_apply(const struct node_flow *nf)
{
    const struct rule *r = nf->place.rule;
    for (int i = 0; r && i < r->n_lists; i++)
        for (int k = 0; k < r->lists[i].n_puts; k++)
            if (r->lists[i].puts[k].factor >= 0 && nf->place.cuts[r->lists[i].puts[k].factor] > 1)
                return true;
    return tsr__window_cut(nf, -1);
}

static int64_t share_of(const struct node_flow *nf, int64_t place, int f, int64_t whole)
{
    const struct rule *r = nf->place.rule;
    int64_t size = r->factors[f].size.value;
    struct local_size part = {1, 1, nf->place.coords[place * r->n_factors + f], nf->place.cuts[f]};
    return size > 0 ? whole / size * tsr__local_size_of(&part, size) : whole;
}

tsr_status tsr__window_numbers(const struct part *t, const struct node_flow *nf, int64_t place,
                               const struct rule_list *l, int64_t **out)
{
    *out = ARENA_ARRAY(t->plan->arena, int64_t, (size_t)l->n + 1);
    if (!*out)
        return TSR_NOMEM;
    if (l->n)
        memcpy(*out, l->values, (size_t)l->n * sizeof(**out));
    for (int i = 0; i < l->n_puts; i++) {
        const struct rule_put *put = &l->puts[i];
        if (put->what == PUT_SHARE) {
            (*out)[put->at] = share_of(nf, place, put->factor, (*out)[put->at]);
            continue;
        }
        if (nf->place.cuts[nf->place.rule->windows[put->window].factor] < 2)
            continue;
        struct window_part w = tsr__window_at(nf, place, put->window);
        (*out)[put->at] = put->what == PUT_BEFORE  ? w.before
                          : put->what == PUT_AFTER ? w.after
                          : put->what == PUT_SIZE  ? w.b - w.a
                          : put->what == PUT_SPAN  ? (w.stop - w.start) * put->value
                                                   : put->value;
    }
    return TSR_OK;
}
