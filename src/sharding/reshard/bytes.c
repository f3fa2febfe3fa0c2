// SPDX-License-Identifier: Apache-2.0
// bytes.c - counts the bytes that devices send and receive in one operator of a resharding.
//
// Examples: [8,6] of 4-byte elements, 192 bytes in all, on devices 0 and 1 (and 2 if named):
//     {2,1} -> {1,1:0,1}           all-gather: each lacks the other's 4 rows and gets 96 bytes
//     {2,1} -> {1,2}               all-to-all: each lacks [4,3] of the other's and gets 48 bytes
//     {2,1:0,1} -> {1,1:2}         Reshard: device 2 gets 96 bytes from each
// If a sum is pending between 0 and 1: an all-reduce moves 192 bytes in and out of each device, a
// reduce-scatter to {2,1} the other's 96 bytes of its half.
#include "sharding/reshard/reshard.h"

// Number of elements that each device receives and sends. In `once`, copies of the same elements
// count once for their sender, as in a broadcast, where devices forward them.
struct load {
    int64_t *received, *sent, *once;
};

// Stores the largest numbers of bytes and their sum: all devices work at the same time.
static void sum_up(const struct pairing *pairing, const struct load *load,
                   struct reshard_bytes *out)
{
    for (size_t t = 0; t < pairing->n_devices; t++) {
        out->total += load->received[t] * pairing->unit;
        out->received = int64_max(out->received, load->received[t] * pairing->unit);
        out->sent = int64_max(out->sent, load->sent[t] * pairing->unit);
        out->once = int64_max(out->once, load->once[t] * pairing->unit);
    }
}

// Returns the number of elements that the device has on that side.
static int64_t elements_of(const struct side *side, size_t device)
{
    int64_t n = 0;
    for (size_t i = side->first[device]; i < side->first[device + 1]; i++)
        n += side->elements[side->shards[i]];
    return n;
}

// Returns the number of elements that the device has on both sides.
static int64_t kept_by(const struct pairing *pairing, size_t t)
{
    int64_t n = 0;
    for (size_t i = pairing->to.first[t]; i < pairing->to.first[t + 1]; i++)
        for (size_t k = pairing->from.first[t]; k < pairing->from.first[t + 1]; k++)
            n += pairing_common(pairing, pairing->from.shards[k], pairing->to.shards[i]);
    return n;
}

// ---- a Reshard ----------------------------------------------------------------------------------

// Returns the index of the owner of source shard k that has sent the least so far; on a tie the
// first one.
static size_t idle_owner(const struct pairing *pairing, const struct load *load, int64_t k)
{
    const int64_t *owners;
    size_t n = tsr__layout_owners(pairing->from.layout, k, &owners), best = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        size_t s = pairing_device(pairing, owners[i]);
        if (best == SIZE_MAX || load->sent[s] < load->sent[best])
            best = s;
    }
    return best;
}

// True if t is the first owner of target shard j that has not source shard k.
static bool is_first_receiver(const struct pairing *pairing, size_t t, int64_t k, int64_t j)
{
    const int64_t *owners;
    size_t n = tsr__layout_owners(pairing->to.layout, j, &owners);
    for (size_t i = 0; i < n; i++) {
        size_t other = pairing_device(pairing, owners[i]);
        if (!tsr__side_owns(&pairing->from, other, k))
            return other == t;
    }
    return false;
}

// Counts what device t receives: of each source shard that it has not, one owner sends the elements
// that it needs. `given` has what each device sends to t. Returns false if some are nowhere.
static bool receive(const struct pairing *pairing, struct load *load, size_t t, int64_t *given)
{
    int64_t needed = elements_of(&pairing->to, t) - kept_by(pairing, t), found = 0;
    for (size_t i = pairing->to.first[t]; i < pairing->to.first[t + 1]; i++)
        for (int64_t k = 0; k < pairing->from.layout->n_shards; k++) {
            int64_t common = pairing_common(pairing, k, pairing->to.shards[i]);
            size_t s = common && !tsr__side_owns(&pairing->from, t, k)
                           ? idle_owner(pairing, load, k)
                           : SIZE_MAX;
            if (s == SIZE_MAX)
                continue;
            load->sent[s] += common;
            if (is_first_receiver(pairing, t, k, pairing->to.shards[i]))
                load->once[s] += common;
            given[s] += common;
            found += common;
        }
    load->received[t] = needed;
    return found >= needed;
}

// Counts the messages of a Reshard, and finds the largest one: the operator takes at least as long.
static tsr_status count_exchange(const struct pairing *pairing, struct load *load,
                                 struct reshard_bytes *out)
{
    int64_t *given = ARENA_ARRAY(pairing->arena, int64_t, pairing->n_devices + 1);
    if (!given)
        return TSR_NOMEM;
    for (size_t t = 0; t < pairing->n_devices; t++) {
        memset(given, 0, pairing->n_devices * sizeof *given);
        if (!receive(pairing, load, t, given))
            return TSR_INVALID;
        for (size_t s = 0; s < pairing->n_devices; s++)
            if (given[s] * pairing->unit > out->largest.bytes)
                out->largest = (struct reshard_pair){pairing->devices[s], pairing->devices[t],
                                                     given[s] * pairing->unit};
    }
    return TSR_OK;
}

// ---- collectives --------------------------------------------------------------------------------

// Counts the elements of member i of a group that reduces a sum. In an all-reduce each member
// combines one part, then all gather the parts. In a reduce the sum goes from member to member and
// ends at the root; the first one receives nothing.
static void count_reduction(const struct pairing *pairing, struct load *load,
                            const struct reshard_operator *operator, size_t g, size_t i)
{
    const struct device_group *group = &operator->groups[g];
    size_t t = pairing_device(pairing, group->devices[i]);
    int64_t n = (int64_t)group->n, all = elements_of(&pairing->from, t), at = (int64_t)i,
            part = tsr__tile_start(all, n, at + 1) - tsr__tile_start(all, n, at);
    if (operator->op == COMM_REDUCE) {
        int64_t root = operator->roots[g], first = group->devices[group->devices[0] == root];
        load->received[t] = group->devices[i] == first && n > 1 ? 0 : all;
        load->sent[t] = group->devices[i] == root ? 0 : all;
        return;
    }
    if (operator->op == COMM_REDUCE_SCATTER)
        part = elements_of(&pairing->to, t);
    load->received[t] = (n - 1) * part;
    load->sent[t] = all - part;
    if (operator->op == COMM_ALL_REDUCE)
        load->sent[t] = load->received[t] += all - part;
}

// Counts the elements that each device lacks. In a ring of a gather each device forwards as much as
// it receives; else it sends all that it does not keep.
static void count_missing(const struct pairing *pairing, struct load *load, bool gathers)
{
    for (size_t t = 0; t < pairing->n_devices; t++) {
        int64_t kept = kept_by(pairing, t);
        load->received[t] = elements_of(&pairing->to, t) - kept;
        load->sent[t] = gathers ? load->received[t] : elements_of(&pairing->from, t) - kept;
    }
}

tsr_status tsr__operator_bytes(const struct pairing *pairing,
                               const struct reshard_operator *operator, struct reshard_bytes * out)
{
    struct load load = {ARENA_ARRAY(pairing->arena, int64_t, pairing->n_devices + 1),
                        ARENA_ARRAY(pairing->arena, int64_t, pairing->n_devices + 1),
                        ARENA_ARRAY(pairing->arena, int64_t, pairing->n_devices + 1)};
    *out = (struct reshard_bytes){0};
    if (pairing->arena->failed)
        return TSR_NOMEM;
    if (operator->op == RESHARD_NOTHING || operator->op == RESHARD_SLICE)
        return TSR_OK;
    if (operator->op == COMM_RESHARD || operator->op == COMM_SEND)
        TRY(count_exchange(pairing, &load, out));
    for (size_t g = 0; comm_has(operator->op, TRAIT_REDUCES) && g < operator->n_groups; g++)
        for (size_t i = 0; i < operator->groups[g].n; i++)
            count_reduction(pairing, &load, operator, g, i);
    bool gathers = operator->op == COMM_ALL_GATHER || operator->op == COMM_BROADCAST;
    if (gathers || operator->op == COMM_ALL_TO_ALL)
        count_missing(pairing, &load, gathers);
    sum_up(pairing, &load, out);
    return TSR_OK;
}

tsr_status tsr__missing_bytes(const struct pairing *pairing, struct reshard_bytes *out)
{
    TRY(tsr__operator_bytes(pairing, &(struct reshard_operator){.op = COMM_ALL_GATHER}, out));
    out->sent = 0;
    return TSR_OK;
}

tsr_status tsr__reshard_exchange(struct arena *arena, const struct tile_layout *from,
                                 const struct tile_layout *to, const int64_t *shape,
                                 size_t elem_bytes, struct reshard_exchange *out)
{
    struct pairing pairing;
    struct reshard_bytes bytes;
    TRY(tsr__pairing_new(arena, from, NULL, to, shape, elem_bytes, &pairing));
    TRY(tsr__operator_bytes(&pairing, &(struct reshard_operator){.op = COMM_RESHARD}, &bytes));
    *out = (struct reshard_exchange){int64_max(bytes.received, bytes.once), bytes.largest};
    return TSR_OK;
}
