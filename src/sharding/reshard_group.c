// SPDX-License-Identifier: Apache-2.0
// reshard_group.c - recognises all-gathers and all-to-alls between two layouts.
//
// Both act inside groups of devices of which each has one piece before and one after. Where pieces have several owners
// there are as many groups side by side, each with every piece once.
#include "sharding/reshard.h"

// Every device of the target has one piece before and one after.
static bool one_piece_each(const struct pairing *p)
{
    for (size_t t = 0; t < p->n_devices; t++)
        if (side_count(&p->to, t) > 1 || (side_count(&p->to, t) && side_count(&p->from, t) != 1))
            return false;
    return true;
}

static struct device_group *add_groups(const struct pairing *p, struct reshard_step *out, size_t n,
                                       size_t members)
{
    struct device_group *g = &out->groups[out->n_groups];
    for (size_t i = 0; i < n; i++) {
        g[i].devices = ARENA_ARRAY(p->made, int64_t, members + 1);
        if (!g[i].devices)
            return NULL;
    }
    out->n_groups += n;
    return g;
}

static bool groups_new(const struct pairing *p, struct reshard_step *out)
{
    out->n_groups = 0;
    out->groups = ARENA_ARRAY(p->made, struct device_group, p->n_devices + 1);
    return out->groups != NULL;
}

// ---- all-gather --------------------------------------------------------------------------------

// Owners of shard k that get shard j.
static size_t holders(const struct pairing *p, int64_t k, int64_t j, int64_t *out)
{
    const int64_t *owners;
    size_t n = tsr__layout_owners(p->from.l, k, &owners), count = 0;
    for (size_t i = 0; i < n; i++)
        if (tsr__side_owns(&p->to, tsr__pairing_device(p, owners[i]), j))
            out[count++] = owners[i];
    return count;
}

// The axis along which the pieces of k make j: it, or -1 if there are several.
static void join_axis(const struct pairing *p, int64_t k, int64_t j, int *axis)
{
    for (int d = 0; d < p->rank; d++)
        if (p->from.parts[d][p->from.part[k * p->rank + d]].size !=
            p->to.parts[d][p->to.part[j * p->rank + d]].size)
            *axis = *axis == -2 || *axis == d ? d : -1;
}

static bool gather_shard(const struct pairing *p, struct reshard_step *out, int64_t j,
                         int64_t *room)
{
    const int64_t *owners;
    size_t all = tsr__layout_owners(p->to.l, j, &owners), copies = 0, seen = 0;
    struct device_group *groups = NULL;
    for (int64_t k = 0; k < p->from.l->n_shards; k++) {
        int64_t common = pairing_common(p, k, j);
        if (common == 0)
            continue;
        size_t n = holders(p, k, j, room);
        if (common != p->from.elements[k] || n == 0 || (groups && n != copies))
            return false;
        if (!groups && !(groups = add_groups(p, out, copies = n, all)))
            return false;
        for (size_t i = 0; i < n; i++)
            groups[i].devices[groups[i].n++] = room[i];
        seen += n;
        join_axis(p, k, j, &out->axis);
    }
    return seen == all;
}

bool tsr__reshard_gather(const struct pairing *p, struct reshard_step *out)
{
    int64_t *room = ARENA_ARRAY(p->made, int64_t, p->n_devices + 1);
    bool is = room && one_piece_each(p) && groups_new(p, out);
    out->axis = -2;
    for (int64_t j = 0; j < p->to.l->n_shards && is; j++)
        is = p->to.l->first[j] == p->to.l->first[j + 1] || gather_shard(p, out, j, room);
    if (is) {
        out->op = RESHARD_ALL_GATHER;
        out->sent = out->received; // in a ring everybody passes on as much as he gets
        return true;
    }
    out->axis = -1;
    out->groups = NULL;
    out->n_groups = 0;
    return false;
}

// ---- all-to-all --------------------------------------------------------------------------------

// Part of dimension d that a device has before, and after.
static int64_t before(const struct pairing *p, size_t t, int d)
{
    return p->from.part[p->from.shards[p->from.first[t]] * p->rank + d];
}
static int64_t after(const struct pairing *p, size_t t, int d)
{
    return p->to.part[p->to.shards[p->to.first[t]] * p->rank + d];
}

// One axis is joined and one is cut, on all devices alike; the others stay.
static bool find_axes(const struct pairing *p, int *joined, int *cut)
{
    *joined = *cut = -1;
    for (size_t t = 0; t < p->n_devices; t++) {
        if (side_count(&p->from, t) != 1 || side_count(&p->to, t) != 1)
            return false;
        for (int d = 0; d < p->rank; d++) {
            int64_t x = before(p, t, d), y = after(p, t, d);
            int64_t n = p->from.parts[d][x].size, m = p->to.parts[d][y].size;
            int64_t common = p->common[d][x * p->to.n_parts[d] + y];
            int *axis = n < m ? joined : cut;
            if (common != (n < m ? n : m))
                return false;
            if (n != m && *axis >= 0 && *axis != d)
                return false;
            if (n != m)
                *axis = d;
        }
    }
    return *joined >= 0 && *cut >= 0 && *joined != *cut;
}

// Devices of one region: they hold the same but for the axis that is joined, and will but for the one that is cut.
static bool same_region(const struct pairing *p, size_t s, size_t t, int joined)
{
    for (int d = 0; d < p->rank; d++)
        if (d == joined ? after(p, s, d) != after(p, t, d) : before(p, s, d) != before(p, t, d))
            return false;
    return true;
}

// Numbers the different parts that members have: index of each, and the count.
static size_t number_parts(const int64_t *part, size_t n, size_t *index)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < i && part[k] != part[i])
            k++;
        index[i] = k < i ? index[k] : count++;
    }
    return count;
}

// Members of a region as edges from the part they have to the part they get.
struct region {
    size_t n, parts; // members; parts on either side
    size_t *members, *has, *gets;
    bool *used, *seen;
    size_t *taken; // by part that is got: member + 1
};

// Finds a member that has part x and is not used yet, moving others out of the way.
static bool match(struct region *r, size_t x)
{
    for (size_t i = 0; i < r->n; i++) {
        size_t y = r->gets[i];
        if (r->has[i] != x || r->used[i] || r->seen[y])
            continue;
        r->seen[y] = true;
        if (r->taken[y] == 0 || match(r, r->has[r->taken[y] - 1])) {
            r->taken[y] = i + 1;
            return true;
        }
    }
    return false;
}

// Splits the region into groups in which every part is had once and got once.
static bool split_region(const struct pairing *p, struct region *r, struct reshard_step *out)
{
    size_t copies = r->n / r->parts;
    struct device_group *groups = add_groups(p, out, copies, r->parts);
    for (size_t g = 0; groups && g < copies; g++) {
        memset(r->taken, 0, r->parts * sizeof *r->taken);
        for (size_t x = 0; x < r->parts; x++) {
            memset(r->seen, 0, r->parts * sizeof *r->seen);
            if (!match(r, x))
                return false;
        }
        for (size_t i = 0; i < r->n; i++)
            if (r->taken[r->gets[i]] == i + 1) {
                r->used[i] = true;
                groups[g].devices[groups[g].n++] = p->devices[r->members[i]];
            }
    }
    return groups != NULL;
}

static bool region_groups(const struct pairing *p, struct region *r, int joined, int cut,
                          struct reshard_step *out)
{
    int64_t *part = ARENA_ARRAY(p->made, int64_t, r->n), had = 0;
    if (!part)
        return false;
    for (size_t i = 0; i < r->n; i++)
        part[i] = before(p, r->members[i], joined);
    size_t n = number_parts(part, r->n, r->has);
    for (size_t i = 0, k = 0; i < r->n; i++)
        if (r->has[i] == k) {
            had += p->from.parts[joined][part[i]].size;
            k++;
        }
    for (size_t i = 0; i < r->n; i++)
        part[i] = after(p, r->members[i], cut);
    r->parts = number_parts(part, r->n, r->gets);
    // together they have all of what each of them will have
    return n == r->parts && r->n % n == 0 &&
           had == p->to.parts[joined][after(p, r->members[0], joined)].size &&
           split_region(p, r, out);
}

static bool region_new(const struct pairing *p, struct region *r)
{
    size_t n = p->n_devices + 1;
    *r = (struct region){.members = ARENA_ARRAY(p->made, size_t, n),
                         .has = ARENA_ARRAY(p->made, size_t, n),
                         .gets = ARENA_ARRAY(p->made, size_t, n),
                         .used = ARENA_ARRAY(p->made, bool, n),
                         .seen = ARENA_ARRAY(p->made, bool, n),
                         .taken = ARENA_ARRAY(p->made, size_t, n)};
    return !p->made->failed;
}

// Bytes that every member gives to the others of its group.
static void give(const struct pairing *p, struct reshard_step *out)
{
    out->sent = 0;
    for (size_t g = 0; g < out->n_groups; g++)
        for (size_t i = 0; i < out->groups[g].n; i++) {
            size_t s = tsr__pairing_device(p, out->groups[g].devices[i]);
            int64_t n = 0;
            for (size_t k = 0; k < out->groups[g].n; k++) {
                size_t t = tsr__pairing_device(p, out->groups[g].devices[k]);
                if (t != s)
                    n += pairing_common(p, p->from.shards[p->from.first[s]],
                                        p->to.shards[p->to.first[t]]);
            }
            out->sent = n * p->unit > out->sent ? n * p->unit : out->sent;
        }
}

bool tsr__reshard_exchange_axes(const struct pairing *p, struct reshard_step *out)
{
    struct region r;
    int joined, cut;
    bool *done = ARENA_ARRAY(p->made, bool, p->n_devices + 1);
    bool is = done && find_axes(p, &joined, &cut) && region_new(p, &r) && groups_new(p, out);
    for (size_t s = 0; is && s < p->n_devices; s++) {
        if (done[s])
            continue;
        r.n = 0;
        memset(r.used, 0, p->n_devices);
        for (size_t t = s; t < p->n_devices; t++)
            if (!done[t] && same_region(p, s, t, joined)) {
                done[t] = true;
                r.members[r.n++] = t;
            }
        is = region_groups(p, &r, joined, cut, out);
    }
    if (!is) {
        out->groups = NULL;
        out->n_groups = 0;
        return false;
    }
    out->op = RESHARD_ALL_TO_ALL;
    out->axis = joined;
    out->to_axis = cut;
    give(p, out);
    return true;
}
