// SPDX-License-Identifier: Apache-2.0
// windows.c - plans inputs of which a node needs more, or other, elements than its shard: the
// neighbours in a convolution, the segments of a Concat, the range of a Slice.
//
// The rule computes which elements each shard of the result needs. If a device has them, it slices;
// otherwise the devices exchange only the missing elements. The result is a form with windows: its
// layout says which devices have it, its windows which elements. Only a node that needs exactly
// these windows reads it.
//
// Examples:
//     Conv with kernel 3, stride 1, pads 1 and 1 over 8 elements, the result sharded in 2:
//         rank 0 produces 0..3 and needs 0..4    rank 1 produces 4..7 and needs 3..7
//         HaloExchange sends element 4 to rank 0 and element 3 to rank 1
//         the local nodes get pads {1,0} and {0,1} in place of {1,1}
//     Concat of a [3] and b [5], the result [8] sharded in 2:
//         rank 0 produces 0..3: all of a, 0..0 of b    rank 1 produces 4..7: 1..4 of b
//         if a is on both ranks, it is cropped to 3 and to 0 elements
#include "internal.h"

// ---- windows of a node --------------------------------------------------------------------------

// Lists the axes along which the node needs windows of this input.
static void list_axes(const struct node_flow *nf, int input, struct windows *out)
{
    const struct rule *rule = nf->place.rule;
    for (int i = 0; i < rule->n_windows; i++) {
        const struct rule_window *window = &rule->windows[i];
        bool known = window->input != input || nf->place.cuts[window->factor] < 2;
        for (int k = 0; k < out->n_axes; k++)
            known |= out->axes[k] == window->dim;
        if (!known)
            out->axes[out->n_axes++] = window->dim;
    }
    for (int i = 1; i < out->n_axes; i++) // insertion sort, ascending
        for (int k = i; k > 0 && out->axes[k] < out->axes[k - 1]; k--) {
            int x = out->axes[k];
            out->axes[k] = out->axes[k - 1];
            out->axes[k - 1] = x;
        }
}

static bool list_intervals(struct draft *draft, const struct node_flow *nf, int input, int axis,
                           int64_t place, struct dim_slice *out)
{
    const struct rule *rule = nf->place.rule;
    out->at = ARENA_ARRAY(draft->arena, struct tile_interval, (size_t)rule->n_windows + 1);
    if (!out->at)
        return false;
    for (int i = 0; i < rule->n_windows; i++) {
        if (rule->windows[i].input != input || rule->windows[i].dim != axis)
            continue;
        struct window_part part = tsr__window_at(nf, place, i);
        if (part.start == part.stop)
            continue;
        if (out->n && out->at[out->n - 1].stop == part.start)
            out->at[out->n - 1].stop = part.stop;
        else
            out->at[out->n++] = (struct tile_interval){part.start, part.stop};
    }
    return true;
}

static struct windows *windows_of(struct draft *draft, const struct node_flow *nf, int input)
{
    struct windows *windows = ARENA_NEW(draft->arena, struct windows);
    if (!windows)
        return NULL;
    list_axes(nf, input, windows);
    windows->parts =
        ARENA_ARRAY(draft->arena, struct dim_slice, (size_t)(draft->n_ranks * windows->n_axes) + 1);
    if (!windows->parts)
        return NULL;
    for (size_t device = 0; device < nf->place.n_devices; device++)
        for (int k = 0; k < windows->n_axes; k++)
            if (!list_intervals(draft, nf, input, windows->axes[k], (int64_t)device,
                                &windows->parts[nf->place.devices[device] * windows->n_axes + k]))
                return NULL;
    return windows;
}

static bool same_intervals(const struct tile_interval *a, int64_t n, const struct tile_interval *b,
                           int64_t m)
{
    return n == m && (n == 0 || memcmp(a, b, (size_t)n * sizeof(*a)) == 0);
}

static bool same_windows(const struct draft *draft, const struct windows *a,
                         const struct windows *b)
{
    if (a->n_axes != b->n_axes || memcmp(a->axes, b->axes, (size_t)a->n_axes * sizeof(int)) != 0)
        return false;
    for (int64_t i = 0; i < draft->n_ranks * a->n_axes; i++)
        if (!same_intervals(a->parts[i].at, a->parts[i].n, b->parts[i].at, b->parts[i].n))
            return false;
    return true;
}

// How windows and the own shards of the devices compare.
enum window_part_kind { WINDOWS_EQUAL, WINDOWS_INSIDE, WINDOWS_BEYOND };

// Returns WINDOWS_EQUAL if the windows of every device are exactly its own shard of the layout,
// WINDOWS_INSIDE if they have no other elements. Example: of a convolution with kernel 1 and stride
// 2 over 8 elements in 2 shards, rank 1 needs 4..6 of its 4..7.
static enum window_part_kind compare_windows(const struct item *it, const struct windows *windows,
                                             const struct tile_layout *layout)
{
    enum window_part_kind kind = WINDOWS_EQUAL;
    for (int64_t i = 0; i < layout->first[layout->n_shards]; i++)
        for (int k = 0; k < windows->n_axes; k++) {
            struct tile_interval own;
            const struct dim_slice *need = &windows->parts[layout->owners[i] * windows->n_axes + k];
            if (!tsr__own_interval(it, layout, layout->owners[i], windows->axes[k], &own))
                return WINDOWS_BEYOND;
            if (!same_intervals(&own, 1, need->at, need->n))
                kind = WINDOWS_INSIDE;
            for (int64_t n = 0; n < need->n; n++)
                if (need->at[n].start < own.start || need->at[n].stop > own.stop)
                    return WINDOWS_BEYOND;
        }
    return kind;
}

// ---- sources of the windows ---------------------------------------------------------------------

// Returns the layout in which the node reads the input, but unsharded along the axes of the
// windows. Returns NULL if out of memory.
static struct tile_layout *unsharded_along_windows(struct draft *draft, const struct node_flow *nf,
                                                   int input)
{
    const struct rule *rule = nf->place.rule;
    struct placement open = nf->place;
    size_t n = nf->place.n_devices * (size_t)rule->n_factors;
    open.cuts = ARENA_ARRAY(draft->arena, int64_t, (size_t)rule->n_factors + 1);
    open.coords = ARENA_ARRAY(draft->arena, int64_t, n + 1);
    if (!open.cuts || !open.coords)
        return NULL;
    memcpy(open.cuts, nf->place.cuts, (size_t)rule->n_factors * sizeof(*open.cuts));
    memcpy(open.coords, nf->place.coords, n * sizeof(*open.coords));
    for (int i = 0; i < rule->n_windows; i++) {
        int factor = rule->windows[i].factor;
        if (rule->windows[i].input != input)
            continue;
        open.cuts[factor] = 1;
        for (size_t device = 0; device < nf->place.n_devices; device++)
            open.coords[device * (size_t)rule->n_factors + (size_t)factor] = 0;
    }
    return tsr__placement_project(draft->arena, &open, &rule->inputs[input]);
}

// Creates a step that produces windows. Returns NULL if out of memory.
static struct step *window_step(struct draft *draft, int kind, struct form *from,
                                const struct tile_layout *layout, struct windows *windows)
{
    struct form *form = tsr__form_new(draft, from->item, layout, FORM_MADE);
    struct step *st = tsr__step_between(draft, kind, from, form);
    if (!st)
        return NULL;
    form->windows = windows;
    // its elements differ from those of the layout, so no other node may use it
    form->partial = true;
    return st;
}

// Plans a HaloExchange, which gives each device the elements of its windows that it lacks. All
// owners take part, even those that lack none.
static struct form *exchange(struct draft *draft, struct item *it, const struct tile_layout *base,
                             struct windows *windows, const tsr_node *reader)
{
    struct form *from = tsr__draft_convert(draft, it, base, reader);
    struct device_group *group = ARENA_NEW(draft->arena, struct device_group);
    if (!from || !group)
        return NULL;
    struct step *st = window_step(draft, COMM_HALO, from, base, windows);
    group->n = tsr__layout_devices(draft->arena, base, &group->devices);
    struct form *form = tsr__step_set_groups(draft, st, group, 1);
    return draft->arena->failed ? NULL : form;
}

// Returns a form with the windows of an input. Takes the first of these that is possible: the own
// shards of the ranks; a form with the same windows; the producer computes the windows
// (relayout.c); a slice of a form that the ranks have; a slice of the own shards; an exchange of
// missing elements; a slice of the gathered value.
static struct form *draft_windows(struct draft *draft, const struct node_flow *nf, struct item *it,
                                  int input)
{
    const struct tile_layout *base = nf->inputs[input];
    struct windows *windows = windows_of(draft, nf, input);
    if (!windows)
        return NULL;
    struct tile_layout *open = unsharded_along_windows(draft, nf, input);
    if (!open)
        return NULL;
    enum window_part_kind kind = compare_windows(it, windows, base);
    if (kind == WINDOWS_EQUAL)
        return tsr__draft_convert(draft, it, base, nf->node);
    for (struct form *form = it->first; form; form = form->next)
        if (form->windows && tsr__layout_same(form->layout, base) &&
            same_windows(draft, form->windows, windows))
            return form;
    struct form *made = tsr__draft_relayout(draft, it, base, windows);
    if (made || draft->arena->failed)
        return made;
    struct form *from = tsr__draft_source(draft, it, open);
    if (!from && draft_status(draft) != TSR_OK)
        return NULL;
    bool moves = tsr_dtype_bits(it->dtype) >= 8 && tsr__shape_known(draft, it) &&
                 !tsr__shape_varies(draft, it) && tsr__owns_once(base);
    if (!from && moves && kind == WINDOWS_BEYOND)
        return exchange(draft, it, base, windows, nf->node);
    if (!from)
        from = tsr__draft_convert(draft, it, kind == WINDOWS_INSIDE ? base : open, nf->node);
    struct step *crop = from ? window_step(draft, STEP_SLICE, from, base, windows) : NULL;
    return crop ? crop->outputs[0] : NULL;
}

// Returns a form with the windows of an input. Adds steps to the scope of the value, which may be
// outside of the body that reads it.
struct form *tsr__draft_windows(struct draft *draft, const struct node_flow *nf, struct item *it,
                                int input)
{
    struct scope *here = draft->scope;
    tsr__scope_enter(draft, it->scope);
    struct form *form = draft_windows(draft, nf, it, input);
    tsr__scope_enter(draft, here);
    form_read(draft, it, form);
    return form;
}
