// SPDX-License-Identifier: Apache-2.0
// reshard_step.c - one step from one layout to another: what it is called, who takes part, how many bytes.
//
// Steps are recognised on pieces and owners, not on meshes. What every device lacks is the same whatever the step is
// called; the name says how regular it is. Where several devices have what another one lacks, the one that has sent
// least gives it.
#include "sharding/reshard.h"

#include <stdlib.h>

// What the devices take in and give out, in elements.
struct load {
    int64_t *received, *sent;
};

static bool load_new(const struct pairing *p, struct load *l)
{
    l->received = ARENA_ARRAY(p->made, int64_t, p->n_devices + 1);
    l->sent = ARENA_ARRAY(p->made, int64_t, p->n_devices + 1);
    return !p->made->failed;
}

static void load_take(const struct pairing *p, const struct load *l, struct reshard_step *out)
{
    out->received = out->sent = out->total = 0;
    for (size_t t = 0; t < p->n_devices; t++) {
        int64_t got = l->received[t] * p->unit, gave = l->sent[t] * p->unit;
        out->total += got;
        out->received = got > out->received ? got : out->received;
        out->sent = gave > out->sent ? gave : out->sent;
    }
}

// ---- nothing pending ---------------------------------------------------------------------------

// What each device lacks. False: nobody has it.
static bool lacks(const struct pairing *p, struct load *l)
{
    for (size_t t = 0; t < p->n_devices; t++)
        for (size_t i = p->to.first[t]; i < p->to.first[t + 1]; i++) {
            int64_t j = p->to.shards[i], has = 0, there = 0;
            for (int64_t k = 0; k < p->from.l->n_shards; k++)
                if (p->from.l->first[k] < p->from.l->first[k + 1])
                    there += pairing_common(p, k, j);
            for (size_t h = p->from.first[t]; h < p->from.first[t + 1]; h++)
                has += pairing_common(p, p->from.shards[h], j);
            if (there < p->to.elements[j])
                return false;
            l->received[t] += p->to.elements[j] - has;
        }
    return true;
}

// Axis by axis: pieces without elements have sizes too.
static bool same_piece(const struct pairing *p, int64_t k, int64_t j)
{
    for (int d = 0; d < p->rank; d++) {
        int64_t x = p->from.part[k * p->rank + d], y = p->to.part[j * p->rank + d];
        int64_t common = p->common[d][x * p->to.n_parts[d] + y];
        if (common != p->from.parts[d][x].size || common != p->to.parts[d][y].size)
            return false;
    }
    return true;
}

// The same pieces on the same devices.
static bool unchanged(const struct pairing *p)
{
    for (size_t t = 0; t < p->n_devices; t++) {
        if (side_count(&p->from, t) != side_count(&p->to, t))
            return false;
        for (size_t i = p->to.first[t]; i < p->to.first[t + 1]; i++) {
            int64_t j = p->to.shards[i];
            bool same = false;
            for (size_t h = p->from.first[t]; h < p->from.first[t + 1] && !same; h++) {
                same = same_piece(p, p->from.shards[h], j);
            }
            if (!same)
                return false;
        }
    }
    return true;
}

typedef VEC(struct reshard_move) move_list;

// Counts a move, and lists it if there is a list.
static bool add_move(const struct pairing *p, move_list *list, struct load *l, size_t from,
                     size_t to, int64_t k, int64_t j)
{
    int64_t elements = pairing_common(p, k, j);
    l->sent[from] += elements;
    struct reshard_move *m = list ? vec_push(p->made, list) : NULL;
    if (m)
        *m = (struct reshard_move){p->devices[from], p->devices[to], k, j, elements};
    return m || !list;
}

// The owner of shard k that has sent least.
static size_t idle_owner(const struct pairing *p, const struct load *l, int64_t k)
{
    const int64_t *owners;
    size_t n = tsr__layout_owners(p->from.l, k, &owners), best = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        size_t s = tsr__pairing_device(p, owners[i]);
        if (best == SIZE_MAX || l->sent[s] < l->sent[best])
            best = s;
    }
    return best;
}

static bool plain_moves(const struct pairing *p, struct load *l, move_list *list)
{
    for (size_t t = 0; t < p->n_devices; t++)
        for (size_t i = p->to.first[t]; i < p->to.first[t + 1]; i++)
            for (int64_t k = 0; k < p->from.l->n_shards; k++) {
                int64_t j = p->to.shards[i];
                if (pairing_common(p, k, j) == 0 || tsr__side_owns(&p->from, t, k))
                    continue;
                if (!add_move(p, list, l, idle_owner(p, l, k), t, k, j))
                    return false;
            }
    return true;
}

// ---- names of point-to-point steps -------------------------------------------------------------

// How regular the moves are.
struct pattern {
    bool in_one, out_one;      // every device gets from one, gives to one
    bool whole_from, whole_to; // moves are whole shards of from, of to
    bool apart;                // nobody gets and gives
    bool kept;                 // a giver keeps what it gave
    bool out_same;             // all that a device gives is the same piece
};

static struct pattern pattern_of(const struct pairing *p, const struct reshard_move *m, size_t n,
                                 struct reshard_move *first_in, struct reshard_move *first_out)
{
    struct pattern r = {true, true, true, true, true, false, true};
    for (size_t i = 0; i < n; i++) {
        size_t s = tsr__pairing_device(p, m[i].from_device);
        size_t t = tsr__pairing_device(p, m[i].to_device);
        r.whole_from &= m[i].elements == p->from.elements[m[i].from];
        r.kept |= tsr__side_owns(&p->to, s, m[i].to);
        r.whole_to &= m[i].elements == p->to.elements[m[i].to];
        if (first_in[t].elements)
            r.in_one &= first_in[t].from_device == m[i].from_device;
        else
            first_in[t] = m[i];
        if (first_out[s].elements) {
            r.out_one &= first_out[s].to_device == m[i].to_device;
            r.out_same &= first_out[s].to == m[i].to && first_out[s].from == m[i].from;
        } else {
            first_out[s] = m[i];
        }
    }
    for (size_t t = 0; t < p->n_devices; t++)
        r.apart &= !first_in[t].elements || !first_out[t].elements;
    return r;
}

static int by_giver(const void *a, const void *b)
{
    const struct reshard_move *x = a, *y = b;
    if (x->from_device != y->from_device)
        return x->from_device < y->from_device ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

// No device gives one piece to two others.
static bool gives_different(const struct pairing *p, const struct reshard_move *m, size_t n)
{
    struct reshard_move *sorted = ARENA_ARRAY(p->made, struct reshard_move, n);
    if (!sorted)
        return false;
    memcpy(sorted, m, n * sizeof *m);
    qsort(sorted, n, sizeof *m, by_giver);
    for (size_t i = 1; i < n; i++)
        if (by_giver(&sorted[i - 1], &sorted[i]) == 0)
            return false;
    return true;
}

// Groups around the device that gives (or gets): it first, then the others, ascending.
static bool star_groups(const struct pairing *p, struct reshard_step *out, bool giver)
{
    size_t *count = ARENA_ARRAY(p->made, size_t, p->n_devices);
    struct device_group *g = ARENA_ARRAY(p->made, struct device_group, p->n_devices);
    for (size_t i = 0; count && i < out->n_moves; i++)
        count[tsr__pairing_device(p,
                                  giver ? out->moves[i].from_device : out->moves[i].to_device)]++;
    for (size_t i = 0; count && g && i < out->n_moves; i++) {
        const struct reshard_move *m = &out->moves[i];
        size_t t = tsr__pairing_device(p, giver ? m->from_device : m->to_device), k = 1;
        int64_t other = giver ? m->to_device : m->from_device;
        if (!g[t].n && !(g[t].devices = ARENA_ARRAY(p->made, int64_t, count[t] + 1)))
            return false;
        if (!g[t].n)
            g[t].devices[g[t].n++] = p->devices[t];
        while (k < g[t].n && g[t].devices[k] != other)
            k++;
        if (k == g[t].n)
            g[t].devices[g[t].n++] = other;
    }
    for (size_t t = 0; g && t < p->n_devices; t++)
        if (g[t].n)
            g[out->n_groups++] = g[t];
    out->groups = g;
    return !p->made->failed;
}

static bool one_group(const struct pairing *p, struct reshard_step *out)
{
    out->groups = ARENA_NEW(p->made, struct device_group);
    if (!out->groups)
        return false;
    *out->groups = (struct device_group){p->devices, p->n_devices};
    out->n_groups = 1;
    return true;
}

static bool name_moves(const struct pairing *p, struct reshard_step *out)
{
    struct reshard_move *in = ARENA_ARRAY(p->made, struct reshard_move, p->n_devices);
    struct reshard_move *from = ARENA_ARRAY(p->made, struct reshard_move, p->n_devices);
    if (!in || !from)
        return false;
    struct pattern r = pattern_of(p, out->moves, out->n_moves, in, from);
    bool whole = r.whole_from && r.whole_to;
    if (whole && r.in_one && r.out_one && r.out_same && !r.kept)
        out->op = RESHARD_PERMUTE;
    else if (whole && r.in_one && r.out_same && r.apart)
        out->op = RESHARD_BROADCAST;
    else if (r.whole_to && r.in_one && r.apart && gives_different(p, out->moves, out->n_moves))
        out->op = RESHARD_SCATTER;
    else if (r.whole_from && r.out_one && r.apart)
        out->op = RESHARD_GATHER;
    else
        out->op = RESHARD_EXCHANGE;
    if (out->op == RESHARD_PERMUTE || out->op == RESHARD_EXCHANGE)
        return one_group(p, out);
    return star_groups(p, out, out->op != RESHARD_GATHER);
}

static tsr_status plain_step(const struct pairing *p, struct reshard_step *out)
{
    struct load l;
    move_list moves = {0};
    if (!load_new(p, &l))
        return TSR_NOMEM;
    if (!lacks(p, &l))
        return TSR_INVALID;
    load_take(p, &l, out);
    if (out->total == 0) {
        out->op = unchanged(p) ? RESHARD_NOTHING : RESHARD_SLICE;
        return TSR_OK;
    }
    if (tsr__reshard_gather(p, out) || tsr__reshard_exchange_axes(p, out))
        return TSR_OK;
    if (p->made->failed || !plain_moves(p, &l, &moves))
        return TSR_NOMEM;
    out->moves = moves.at;
    out->n_moves = moves.n;
    load_take(p, &l, out);
    if (!name_moves(p, out))
        return TSR_NOMEM;
    if (out->op == RESHARD_BROADCAST)
        out->sent = out->received; // it is passed on from one to the next
    return TSR_OK;
}

// ---- pending -----------------------------------------------------------------------------------

static const struct device_group *group_at(const struct pairing *p, size_t device)
{
    return &p->pending->groups[p->group[device]];
}

// The group that gives shard k to device t: its own, or the one that has sent least. SIZE_MAX: none.
static size_t giving_group(const struct pairing *p, const struct load *l, size_t t, int64_t k)
{
    if (tsr__side_owns(&p->from, t, k))
        return p->group[t];
    size_t s = idle_owner(p, l, k);
    return s == SIZE_MAX ? SIZE_MAX : p->group[s];
}

// Every device gets what the members of a group hold of its pieces and combines it. *own: always its own group.
static tsr_status combine_moves(const struct pairing *p, struct load *l, move_list *list, bool *own)
{
    for (size_t t = 0; t < p->n_devices; t++)
        for (size_t i = p->to.first[t]; i < p->to.first[t + 1]; i++)
            for (int64_t k = 0; k < p->from.l->n_shards; k++) {
                int64_t j = p->to.shards[i], common = pairing_common(p, k, j);
                size_t g = common ? giving_group(p, l, t, k) : 0;
                if (common == 0)
                    continue;
                if (g == SIZE_MAX)
                    return TSR_INVALID;
                *own &= tsr__side_owns(&p->from, t, k);
                for (size_t m = 0; m < p->pending->groups[g].n; m++) {
                    size_t s = tsr__pairing_device(p, p->pending->groups[g].devices[m]);
                    l->received[t] += s == t ? 0 : common;
                    if (s != t && !add_move(p, list, l, s, t, k, j))
                        return TSR_NOMEM;
                }
            }
    return TSR_OK;
}

// Members of the group that own something afterwards; *apart: no two of them the same.
static size_t getters(const struct pairing *p, const struct device_group *g, bool *apart)
{
    size_t n = 0;
    for (size_t i = 0; i < g->n; i++) {
        size_t t = tsr__pairing_device(p, g->devices[i]);
        n += side_count(&p->to, t) > 0;
        for (size_t h = p->to.first[t]; h < p->to.first[t + 1]; h++)
            for (size_t k = 0; k < i; k++)
                *apart &=
                    !tsr__side_owns(&p->to, tsr__pairing_device(p, g->devices[k]), p->to.shards[h]);
    }
    return n;
}

static enum reshard_op name_combination(const struct pairing *p, bool own)
{
    bool apart = true, one = true;
    if (own && unchanged(p))
        return RESHARD_ALL_REDUCE;
    for (size_t g = 0; g < p->pending->n_groups; g++)
        one &= getters(p, &p->pending->groups[g], &apart) <= 1;
    if (!own || !apart)
        return RESHARD_EXCHANGE;
    return one ? RESHARD_REDUCE : RESHARD_REDUCE_SCATTER;
}

// All members combine a stretch each, then all collect the stretches.
static void load_all_reduce(const struct pairing *p, struct load *l)
{
    for (size_t t = 0; t < p->n_devices; t++) {
        int64_t all = 0, n = (int64_t)group_at(p, t)->n, mine = 0;
        while (group_at(p, t)->devices[mine] != p->devices[t])
            mine++;
        for (size_t h = p->from.first[t]; h < p->from.first[t + 1]; h++)
            all += p->from.elements[p->from.shards[h]];
        int64_t stretch = tsr__tile_start(all, n, mine + 1) - tsr__tile_start(all, n, mine);
        l->sent[t] = l->received[t] = (n - 1) * stretch + all - stretch;
    }
}

// From one to the next, the one that gets it last; the first has nothing to wait for.
static void load_reduce(const struct pairing *p, struct load *l, const struct reshard_step *out)
{
    for (size_t g = 0; g < out->n_groups; g++) {
        const struct device_group *group = &out->groups[g];
        size_t root = tsr__pairing_device(p, group->devices[0]);
        int64_t all = 0;
        for (size_t h = p->to.first[root]; h < p->to.first[root + 1]; h++)
            all += p->to.elements[p->to.shards[h]];
        for (size_t i = 0; i < group->n; i++) {
            size_t t = tsr__pairing_device(p, group->devices[i]);
            l->received[t] = i == 1 || group->n == 1 ? 0 : all;
            l->sent[t] = i == 0 ? 0 : all;
        }
    }
}

// The groups as they are; for a reduction to one, that one first.
static bool combining_groups(const struct pairing *p, struct reshard_step *out)
{
    out->groups = ARENA_ARRAY(p->made, struct device_group, p->pending->n_groups + 1);
    for (size_t g = 0; out->groups && g < p->pending->n_groups; g++) {
        const struct device_group *from = &p->pending->groups[g];
        struct device_group *to = &out->groups[out->n_groups];
        to->devices = ARENA_ARRAY(p->made, int64_t, from->n + 1);
        if (!to->devices)
            return false;
        memcpy(to->devices, from->devices, from->n * sizeof *to->devices);
        to->n = from->n;
        bool needed = out->op != RESHARD_REDUCE;
        for (size_t i = 0; i < to->n && !needed; i++)
            if (side_count(&p->to, tsr__pairing_device(p, to->devices[i]))) {
                int64_t root = to->devices[i];
                memmove(to->devices + 1, to->devices, i * sizeof root);
                to->devices[0] = root;
                needed = true;
            }
        out->n_groups += needed;
    }
    return out->groups != NULL;
}

static tsr_status combining_step(const struct pairing *p, struct reshard_step *out)
{
    struct load l;
    move_list moves = {0};
    bool own = true;
    if (!load_new(p, &l))
        return TSR_NOMEM;
    tsr_status status = combine_moves(p, &l, NULL, &own);
    if (status != TSR_OK)
        return status;
    out->combines = true;
    out->op = name_combination(p, own);
    if (out->op == RESHARD_EXCHANGE ? !one_group(p, out) : !combining_groups(p, out))
        return TSR_NOMEM;
    if (out->op == RESHARD_REDUCE_SCATTER || (out->op == RESHARD_EXCHANGE && p->brief)) {
        load_take(p, &l, out);
        return TSR_OK;
    }
    memset(l.received, 0, p->n_devices * sizeof *l.received);
    memset(l.sent, 0, p->n_devices * sizeof *l.sent);
    if (out->op == RESHARD_REDUCE)
        load_reduce(p, &l, out);
    else if (out->op == RESHARD_ALL_REDUCE)
        load_all_reduce(p, &l);
    else
        status = combine_moves(p, &l, &moves, &own);
    out->moves = moves.at;
    out->n_moves = moves.n;
    load_take(p, &l, out);
    return status;
}

tsr_status tsr__reshard_step(const struct pairing *p, struct reshard_step *out)
{
    *out = (struct reshard_step){.axis = -1, .to_axis = -1, .layout = p->to.l};
    return p->pending ? combining_step(p, out) : plain_step(p, out);
}
