// SPDX-License-Identifier: Apache-2.0
// reshard_group.c - recognizes all-gathers and all-to-alls between two layouts.
//
// Both collectives act inside groups of devices that have one shard before and one after. If shards
// have several owners, there are several groups in parallel, each with every shard once.
//
// Examples, in the notation of notation.c:
//     {2,1:(0,1),(2,3)} -> {1,1:0,1,2,3}: tile 0 is on 0 and 1, tile 1 on 2 and 3; the groups {0,2}
//     and {1,3} each have every tile once and gather in parallel
//     {2,1} -> {1,2} on 0 and 1: the rows are joined (axis 0), the columns are split (axis 1): an
//     all-to-all of {0,1}
#include "sharding/reshard/reshard.h"

// True if every device that owns a shard of the target owns exactly one, and exactly one of the
// source.
static bool one_piece_each(const struct pairing *pairing)
{
    for (size_t t = 0; t < pairing->n_devices; t++)
        if (side_count(&pairing->to, t) > 1 ||
            (side_count(&pairing->to, t) && side_count(&pairing->from, t) != 1))
            return false;
    return true;
}

// Appends n empty groups with space for `members` devices each to the step. Returns the first of
// them, or NULL if out of memory.
static struct device_group *add_groups(const struct pairing *pairing, struct reshard_step *out,
                                       size_t n, size_t members)
{
    struct device_group *group = &out->groups[out->n_groups];
    for (size_t i = 0; i < n; i++) {
        group[i].devices = ARENA_ARRAY(pairing->made, int64_t, members + 1);
        if (!group[i].devices)
            return NULL;
    }
    out->n_groups += n;
    return group;
}

static bool groups_new(const struct pairing *pairing, struct reshard_step *out)
{
    out->n_groups = 0;
    out->groups = ARENA_ARRAY(pairing->made, struct device_group, pairing->n_devices + 1);
    return out->groups != NULL;
}

// ---- all-gather --------------------------------------------------------------------------------

// Stores the owners of source shard k that also own target shard j, and returns their number.
static size_t holders(const struct pairing *pairing, int64_t k, int64_t j, int64_t *out)
{
    const int64_t *owners;
    size_t n = tsr__layout_owners(pairing->from.layout, k, &owners), count = 0;
    for (size_t i = 0; i < n; i++)
        if (tsr__side_owns(&pairing->to, pairing_device(pairing, owners[i]), j))
            out[count++] = owners[i];
    return count;
}

// Sets *axis to the axis along which source shard k and target shard j have different sizes. *axis
// is -2 if there was none so far, and becomes -1 if there are several.
static void join_axis(const struct pairing *pairing, int64_t k, int64_t j, int *axis)
{
    for (int d = 0; d < pairing->rank; d++)
        if (pairing->from.parts[d][pairing->from.part[k * pairing->rank + d]].size !=
            pairing->to.parts[d][pairing->to.part[j * pairing->rank + d]].size)
            *axis = *axis == -2 || *axis == d ? d : -1;
}

// Adds the groups that gather target shard j. The shard must consist of complete source shards,
// each on the same number of owners of j. Group i has the i-th of these owners of each source
// shard. Returns false if this is not an all-gather, or if out of memory.
static bool gather_shard(const struct pairing *pairing, struct reshard_step *out, int64_t j,
                         int64_t *scratch)
{
    const int64_t *owners;
    size_t all = tsr__layout_owners(pairing->to.layout, j, &owners), copies = 0, seen = 0;
    struct device_group *groups = NULL;
    for (int64_t k = 0; k < pairing->from.layout->n_shards; k++) {
        int64_t common = pairing_common(pairing, k, j);
        if (common == 0)
            continue;
        size_t n = holders(pairing, k, j, scratch);
        if (common != pairing->from.elements[k] || n == 0 || (groups && n != copies))
            return false;
        if (!groups && !(groups = add_groups(pairing, out, copies = n, all)))
            return false;
        for (size_t i = 0; i < n; i++)
            groups[i].devices[groups[i].n++] = scratch[i];
        seen += n;
        join_axis(pairing, k, j, &out->axis);
    }
    return seen == all;
}

// Fills *out and returns true if the step between the two layouts is an all-gather. The caller has
// set out->received.
bool tsr__reshard_gather(const struct pairing *pairing, struct reshard_step *out)
{
    int64_t *scratch = ARENA_ARRAY(pairing->made, int64_t, pairing->n_devices + 1);
    bool is = scratch && one_piece_each(pairing) && groups_new(pairing, out);
    out->axis = -2;
    for (int64_t j = 0; j < pairing->to.layout->n_shards && is; j++)
        is = pairing->to.layout->first[j] == pairing->to.layout->first[j + 1] ||
             gather_shard(pairing, out, j, scratch);
    if (is) {
        out->op = COMM_ALL_GATHER;
        out->sent = out->received; // in a ring each device forwards as much as it receives
        return true;
    }
    out->axis = -1;
    out->groups = NULL;
    out->n_groups = 0;
    return false;
}

// ---- all-to-all --------------------------------------------------------------------------------

// `before` and `after` return the part of dimension `axis` that the device has before and after the
// step.
static int64_t before(const struct pairing *pairing, size_t t, int axis)
{
    return pairing->from.part[pairing->from.shards[pairing->from.first[t]] * pairing->rank + axis];
}
static int64_t after(const struct pairing *pairing, size_t t, int axis)
{
    return pairing->to.part[pairing->to.shards[pairing->to.first[t]] * pairing->rank + axis];
}

// Finds the axis along which shards become larger (*joined) and the one along which they become
// smaller (*cut). Returns false unless there is exactly one of each, the same on all devices.
static bool find_axes(const struct pairing *pairing, int *joined, int *cut)
{
    *joined = *cut = -1;
    for (size_t t = 0; t < pairing->n_devices; t++) {
        if (side_count(&pairing->from, t) != 1 || side_count(&pairing->to, t) != 1)
            return false;
        for (int d = 0; d < pairing->rank; d++) {
            int64_t x = before(pairing, t, d), y = after(pairing, t, d);
            int64_t n = pairing->from.parts[d][x].size, m = pairing->to.parts[d][y].size;
            int64_t common = pairing->common[d][x * pairing->to.n_parts[d] + y];
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

// True if devices s and t are in the same region (see tsr__reshard_exchange_axes).
static bool same_region(const struct pairing *pairing, size_t s, size_t t, int joined)
{
    for (int axis = 0; axis < pairing->rank; axis++)
        if (axis == joined ? after(pairing, s, axis) != after(pairing, t, axis)
                           : before(pairing, s, axis) != before(pairing, t, axis))
            return false;
    return true;
}

// Numbers the different values in `part` from 0 and returns how many there are. Example: 4 7 4 9
// gives the index 0 1 0 2 and returns 3.
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

// The members of a region, as edges from their source part to their target part.
struct region {
    size_t n, parts;              // number of members; number of parts on either side
    size_t *members, *has, *gets; // by member: device index, source part, target part
    bool *used, *seen; // by member: already in a group; by target part: visited by match()
    size_t *taken;     // by target part: the member that uses it, plus 1
};

// Finds an unused member with source part x for the current group: one augmenting path of a
// bipartite matching. taken[y] is the member that has target part y in the group. It can be
// replaced if another member with the same source part is found for another target part. Returns
// false if there is no such path.
static bool match(struct region *region, size_t x)
{
    for (size_t i = 0; i < region->n; i++) {
        size_t y = region->gets[i];
        if (region->has[i] != x || region->used[i] || region->seen[y])
            continue;
        region->seen[y] = true;
        if (region->taken[y] == 0 || match(region, region->has[region->taken[y] - 1])) {
            region->taken[y] = i + 1;
            return true;
        }
    }
    return false;
}

// Splits the region into groups in which every source part and every target part occurs once. Each
// group is a matching of the remaining members. Returns false if there is no matching (then this is
// not an all-to-all), or if out of memory.
static bool split_region(const struct pairing *pairing, struct region *region,
                         struct reshard_step *out)
{
    size_t copies = region->n / region->parts;
    struct device_group *groups = add_groups(pairing, out, copies, region->parts);
    if (!groups)
        return false;
    for (size_t group = 0; group < copies; group++) {
        memset(region->taken, 0, region->parts * sizeof *region->taken);
        for (size_t x = 0; x < region->parts; x++) {
            memset(region->seen, 0, region->parts * sizeof *region->seen);
            if (!match(region, x))
                return false;
        }
        for (size_t i = 0; i < region->n; i++)
            if (region->taken[region->gets[i]] == i + 1) {
                region->used[i] = true;
                groups[group].devices[groups[group].n++] = pairing->devices[region->members[i]];
            }
    }
    return true;
}

// Forms the groups of a region. Returns false if the source parts do not cover the joined axis of
// the result (`had` is their total size), if parts do not match, or if out of memory.
static bool region_groups(const struct pairing *pairing, struct region *region, int joined, int cut,
                          struct reshard_step *out)
{
    int64_t *part = ARENA_ARRAY(pairing->made, int64_t, region->n), had = 0;
    if (!part)
        return false;
    for (size_t i = 0; i < region->n; i++)
        part[i] = before(pairing, region->members[i], joined);
    size_t n = number_parts(part, region->n, region->has);
    for (size_t i = 0, k = 0; i < region->n; i++)
        if (region->has[i] == k) {
            had += pairing->from.parts[joined][part[i]].size;
            k++;
        }
    for (size_t i = 0; i < region->n; i++)
        part[i] = after(pairing, region->members[i], cut);
    region->parts = number_parts(part, region->n, region->gets);
    // together the source parts cover the joined axis of the result
    return n == region->parts && region->n % n == 0 &&
           had == pairing->to.parts[joined][after(pairing, region->members[0], joined)].size &&
           split_region(pairing, region, out);
}

static bool region_new(const struct pairing *pairing, struct region *region)
{
    size_t n = pairing->n_devices + 1;
    *region = (struct region){.members = ARENA_ARRAY(pairing->made, size_t, n),
                              .has = ARENA_ARRAY(pairing->made, size_t, n),
                              .gets = ARENA_ARRAY(pairing->made, size_t, n),
                              .used = ARENA_ARRAY(pairing->made, bool, n),
                              .seen = ARENA_ARRAY(pairing->made, bool, n),
                              .taken = ARENA_ARRAY(pairing->made, size_t, n)};
    return !pairing->made->failed;
}

// Sets out->sent to the largest number of bytes that a member sends to the others of its group: a
// step takes as long as its slowest member.
static void count_sent(const struct pairing *pairing, struct reshard_step *out)
{
    out->sent = 0;
    for (size_t group = 0; group < out->n_groups; group++)
        for (size_t i = 0; i < out->groups[group].n; i++) {
            size_t s = pairing_device(pairing, out->groups[group].devices[i]);
            int64_t n = 0;
            for (size_t k = 0; k < out->groups[group].n; k++) {
                size_t t = pairing_device(pairing, out->groups[group].devices[k]);
                if (t != s)
                    n += pairing_common(pairing, pairing->from.shards[pairing->from.first[s]],
                                        pairing->to.shards[pairing->to.first[t]]);
            }
            if (n * pairing->unit > out->sent)
                out->sent = n * pairing->unit;
        }
}

// Fills *out and returns true if the step between the two layouts is an all-to-all. A region is a
// set of devices whose source shards differ only in the joined axis and whose target shards differ
// only in the split axis. These devices exchange only with each other. Example: {2,1} to {1,2} on
// two devices is one region, in which each device sends half of its data. Every region must consist
// of full groups, otherwise this is not an all-to-all.
bool tsr__reshard_exchange_axes(const struct pairing *pairing, struct reshard_step *out)
{
    struct region region;
    int joined, cut;
    bool *done = ARENA_ARRAY(pairing->made, bool, pairing->n_devices + 1);
    bool is = done && find_axes(pairing, &joined, &cut) && region_new(pairing, &region) &&
              groups_new(pairing, out);
    for (size_t s = 0; is && s < pairing->n_devices; s++) {
        if (done[s])
            continue;
        region.n = 0;
        memset(region.used, 0, pairing->n_devices);
        for (size_t t = s; t < pairing->n_devices; t++)
            if (!done[t] && same_region(pairing, s, t, joined)) {
                done[t] = true;
                region.members[region.n++] = t;
            }
        is = region_groups(pairing, &region, joined, cut, out);
    }
    if (!is) {
        out->groups = NULL;
        out->n_groups = 0;
        return false;
    }
    out->op = COMM_ALL_TO_ALL;
    out->axis = joined;
    out->to_axis = cut;
    count_sent(pairing, out);
    return true;
}
