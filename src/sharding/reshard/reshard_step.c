// SPDX-License-Identifier: Apache-2.0
// reshard_step.c - builds one step from one layout to another: its name, its groups and its bytes.
//
// Steps are recognized from shards and owners, not from meshes. The name tells how regular the step
// is; the elements that each device lacks do not depend on the name. If several devices have
// elements that another device lacks, the one that has sent the least so far sends them.
//
// Examples: [8,6] of 4-byte elements, 192 bytes in all, on devices 0 and 1 (and 2 and 3 if named):
//     {2,1} -> {1,1:0,1}           all-gather: each lacks the other's 4 rows and gets 96 bytes
//     {2,1} -> {1,2}               all-to-all: each lacks [4,3] of the other's and gets 48 bytes
//     {1,1:0} -> {2,1:1,2}         scatter: device 0 sends each a different half, 96 bytes to each
//     {2,1:0,1} -> {1,1:2}         gather: device 2 gets 96 bytes from each
//     {2,1:0,1} -> {2,1:2,3}       permute: full shards, each from one device to one other
//     {1,1:0,1} -> {2,1}           slice: nothing is missing, nothing moves
// If a sum is pending between 0 and 1, the steps also combine. Replicated to replicated is an
// all-reduce. Replicated to {2,1} is a reduce-scatter, in which each gets the other's 96 bytes of
// its half. Replicated to {1,1:0} is a reduce.
#include "sharding/reshard/reshard.h"

#include <stdlib.h>

// Number of elements that each device receives and sends.
struct load {
    int64_t *received, *sent;
};

static bool load_new(const struct pairing *pairing, struct load *load)
{
    load->received = ARENA_ARRAY(pairing->made, int64_t, pairing->n_devices + 1);
    load->sent = ARENA_ARRAY(pairing->made, int64_t, pairing->n_devices + 1);
    return !pairing->made->failed;
}

// Sets the total bytes, and the largest number of bytes that one device receives or sends: all
// devices work at the same time.
static void load_take(const struct pairing *pairing, const struct load *load,
                      struct reshard_step *out)
{
    out->received = out->sent = out->total = 0;
    for (size_t t = 0; t < pairing->n_devices; t++) {
        int64_t got = load->received[t] * pairing->unit, gave = load->sent[t] * pairing->unit;
        out->total += got;
        if (got > out->received)
            out->received = got;
        if (gave > out->sent)
            out->sent = gave;
    }
}

// ---- nothing pending ---------------------------------------------------------------------------

// True if each element of target shard j is on some device.
static bool is_owned(const struct pairing *pairing, int64_t j)
{
    const struct tile_layout *from = pairing->from.layout;
    int64_t there = 0;
    for (int64_t k = 0; k < from->n_shards; k++)
        if (from->first[k] < from->first[k + 1])
            there += pairing_common(pairing, k, j);
    return there >= pairing->to.elements[j];
}

// Computes the number of elements that each device lacks (load->received). Returns false if the
// target needs elements that no device has.
static bool find_missing(const struct pairing *pairing, struct load *load)
{
    bool complete = tsr__owns_all(pairing->from.layout);
    for (size_t t = 0; t < pairing->n_devices; t++)
        for (size_t i = pairing->to.first[t]; i < pairing->to.first[t + 1]; i++) {
            int64_t j = pairing->to.shards[i], has = 0;
            for (size_t h = pairing->from.first[t]; h < pairing->from.first[t + 1]; h++)
                has += pairing_common(pairing, pairing->from.shards[h], j);
            if (!complete && !is_owned(pairing, j))
                return false;
            load->received[t] += pairing->to.elements[j] - has;
        }
    return true;
}

// True if source shard k and target shard j have the same elements, even if the layouts use
// different factors.
static bool same_piece(const struct pairing *pairing, int64_t k, int64_t j)
{
    for (int axis = 0; axis < pairing->rank; axis++) {
        int64_t x = pairing->from.part[k * pairing->rank + axis],
                y = pairing->to.part[j * pairing->rank + axis];
        int64_t common = pairing->common[axis][x * pairing->to.n_parts[axis] + y];
        if (common != pairing->from.parts[axis][x].size ||
            common != pairing->to.parts[axis][y].size)
            return false;
    }
    return true;
}

// True if every device has the same shards in source and target.
static bool unchanged(const struct pairing *pairing)
{
    for (size_t t = 0; t < pairing->n_devices; t++) {
        if (side_count(&pairing->from, t) != side_count(&pairing->to, t))
            return false;
        for (size_t i = pairing->to.first[t]; i < pairing->to.first[t + 1]; i++) {
            int64_t j = pairing->to.shards[i];
            bool same = false;
            for (size_t h = pairing->from.first[t]; h < pairing->from.first[t + 1]; h++)
                same = same || same_piece(pairing, pairing->from.shards[h], j);
            if (!same)
                return false;
        }
    }
    return true;
}

typedef VEC(struct reshard_move) move_list;

// Adds the elements of a move to load->sent, and the move to `list` if it is not NULL. Returns
// false if out of memory.
static bool add_move(const struct pairing *pairing, move_list *list, struct load *load, size_t from,
                     size_t to, int64_t k, int64_t j)
{
    int64_t elements = pairing_common(pairing, k, j);
    load->sent[from] += elements;
    struct reshard_move *move = list ? vec_push(pairing->made, list) : NULL;
    if (move)
        *move = (struct reshard_move){pairing->devices[from], pairing->devices[to], k, j, elements};
    return move || !list;
}

// Returns the index of the owner of source shard k that has sent the least so far; on a tie the
// first one. Returns SIZE_MAX if the shard has no owner.
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

// Lists the moves. For each source shard with elements that a device lacks, one owner sends them.
// Returns false if out of memory.
static bool plain_moves(const struct pairing *pairing, struct load *load, move_list *list)
{
    for (size_t t = 0; t < pairing->n_devices; t++)
        for (size_t i = pairing->to.first[t]; i < pairing->to.first[t + 1]; i++)
            for (int64_t k = 0; k < pairing->from.layout->n_shards; k++) {
                int64_t j = pairing->to.shards[i];
                if (pairing_common(pairing, k, j) == 0 || tsr__side_owns(&pairing->from, t, k))
                    continue;
                if (!add_move(pairing, list, load, idle_owner(pairing, load, k), t, k, j))
                    return false;
            }
    return true;
}

// ---- names of point-to-point steps -------------------------------------------------------------

// How regular the moves are.
struct pattern {
    bool in_one, out_one;      // every device receives from one device, sends to one device
    bool whole_from, whole_to; // moves are full shards of `from`, of `to`
    bool apart;                // no device both sends and receives
    bool kept;                 // a sender keeps the elements that it sends
    bool out_same;             // a device sends the same elements in all its moves
};

// Finds out which properties all moves have. first_in and first_out get the first move that each
// device receives and sends; they must be zeroed. A move has at least one element, so 0 elements
// mean no move yet.
static struct pattern pattern_of(const struct pairing *pairing, const struct reshard_move *move,
                                 size_t n, struct reshard_move *first_in,
                                 struct reshard_move *first_out)
{
    struct pattern r = {true, true, true, true, true, false, true};
    for (size_t i = 0; i < n; i++) {
        size_t s = pairing_device(pairing, move[i].from_device);
        size_t t = pairing_device(pairing, move[i].to_device);
        r.whole_from &= move[i].elements == pairing->from.elements[move[i].from];
        r.kept |= tsr__side_owns(&pairing->to, s, move[i].to);
        r.whole_to &= move[i].elements == pairing->to.elements[move[i].to];
        if (first_in[t].elements)
            r.in_one &= first_in[t].from_device == move[i].from_device;
        else
            first_in[t] = move[i];
        if (first_out[s].elements) {
            r.out_one &= first_out[s].to_device == move[i].to_device;
            r.out_same &= first_out[s].to == move[i].to && first_out[s].from == move[i].from;
        } else {
            first_out[s] = move[i];
        }
    }
    for (size_t t = 0; t < pairing->n_devices; t++)
        r.apart &= !first_in[t].elements || !first_out[t].elements;
    return r;
}

static int by_giver(const void *a, const void *b)
{
    const struct reshard_move *x = a, *y = b;
    if (x->from_device != y->from_device)
        return int64_order(x->from_device, y->from_device);
    return int64_order(x->to, y->to);
}

// True if no device sends the same elements to two others. This distinguishes a scatter from a
// broadcast.
static bool sends_different(const struct pairing *pairing, const struct reshard_move *move,
                            size_t n)
{
    struct reshard_move *sorted = ARENA_ARRAY(pairing->made, struct reshard_move, n);
    if (!sorted)
        return false;
    memcpy(sorted, move, n * sizeof *move);
    qsort(sorted, n, sizeof *move, by_giver);
    for (size_t i = 1; i < n; i++)
        if (by_giver(&sorted[i - 1], &sorted[i]) == 0)
            return false;
    return true;
}

// Forms a group for each device that sends (with `giver`) or receives (without): this device, then
// the devices that it sends to or receives from, in the order of the moves. Returns false if out of
// memory.
static bool star_groups(const struct pairing *pairing, struct reshard_step *out, bool giver)
{
    size_t *count = ARENA_ARRAY(pairing->made, size_t, pairing->n_devices);
    struct device_group *group =
        ARENA_ARRAY(pairing->made, struct device_group, pairing->n_devices);
    if (!count || !group)
        return false;
    for (size_t i = 0; i < out->n_moves; i++)
        count[pairing_device(pairing,
                             giver ? out->moves[i].from_device : out->moves[i].to_device)]++;
    for (size_t i = 0; i < out->n_moves; i++) {
        const struct reshard_move *move = &out->moves[i];
        size_t t = pairing_device(pairing, giver ? move->from_device : move->to_device), k = 1;
        int64_t other = giver ? move->to_device : move->from_device;
        if (!group[t].n && !(group[t].devices = ARENA_ARRAY(pairing->made, int64_t, count[t] + 1)))
            return false;
        if (!group[t].n)
            group[t].devices[group[t].n++] = pairing->devices[t];
        while (k < group[t].n && group[t].devices[k] != other)
            k++;
        if (k == group[t].n)
            group[t].devices[group[t].n++] = other;
    }
    for (size_t t = 0; t < pairing->n_devices; t++)
        if (group[t].n)
            group[out->n_groups++] = group[t];
    out->groups = group;
    return !pairing->made->failed;
}

// Forms one group of all devices.
static bool one_group(const struct pairing *pairing, struct reshard_step *out)
{
    out->groups = ARENA_NEW(pairing->made, struct device_group);
    if (!out->groups)
        return false;
    *out->groups = (struct device_group){pairing->devices, pairing->n_devices};
    out->n_groups = 1;
    return true;
}

// Sets the operation and groups of a step with moves. Tries the most regular operation first,
// because several may fit. Example: {2,1:0,1} -> {2,1:2,3} fits all of them and is a permutation.
static bool name_moves(const struct pairing *pairing, struct reshard_step *out)
{
    struct reshard_move *in = ARENA_ARRAY(pairing->made, struct reshard_move, pairing->n_devices);
    struct reshard_move *from = ARENA_ARRAY(pairing->made, struct reshard_move, pairing->n_devices);
    if (!in || !from)
        return false;
    struct pattern r = pattern_of(pairing, out->moves, out->n_moves, in, from);
    bool whole = r.whole_from && r.whole_to;
    if (whole && r.in_one && r.out_one && r.out_same && !r.kept)
        out->op = RESHARD_PERMUTE;
    else if (whole && r.in_one && r.out_same && r.apart)
        out->op = COMM_BROADCAST;
    else if (r.whole_to && r.in_one && r.apart &&
             sends_different(pairing, out->moves, out->n_moves))
        out->op = RESHARD_SCATTER;
    else if (r.whole_from && r.out_one && r.apart)
        out->op = RESHARD_GATHER;
    else
        out->op = RESHARD_EXCHANGE;
    if (out->op == RESHARD_PERMUTE || out->op == RESHARD_EXCHANGE)
        return one_group(pairing, out);
    return star_groups(pairing, out, out->op != RESHARD_GATHER);
}

// Builds a step without a reduction. Tries all-gather and all-to-all first; only other steps get a
// list of moves.
static tsr_status plain_step(const struct pairing *pairing, struct reshard_step *out)
{
    struct load load;
    move_list moves = {0};
    if (!load_new(pairing, &load))
        return TSR_NOMEM;
    if (!find_missing(pairing, &load))
        return TSR_INVALID;
    load_take(pairing, &load, out);
    if (out->total == 0) {
        out->op = unchanged(pairing) ? RESHARD_NOTHING : RESHARD_SLICE;
        return TSR_OK;
    }
    if (tsr__reshard_gather(pairing, out) || tsr__reshard_exchange_axes(pairing, out))
        return TSR_OK;
    if (pairing->made->failed || !plain_moves(pairing, &load, &moves))
        return TSR_NOMEM;
    out->moves = moves.at;
    out->n_moves = moves.n;
    load_take(pairing, &load, out);
    if (!name_moves(pairing, out))
        return TSR_NOMEM;
    if (out->op == COMM_BROADCAST)
        out->sent = out->received; // each device forwards the value to the next
    return TSR_OK;
}

// ---- pending reductions -------------------------------------------------------------------------

// Returns the group of a device that has a shard.
static const struct device_group *group_at(const struct pairing *pairing, size_t device)
{
    return &pairing->pending->groups[pairing->group[device]];
}

// Returns the index of the group that sends source shard k to device t. It is the group of t if t
// owns the shard, else the group of the owner that has sent the least so far. Returns SIZE_MAX if
// the shard has no owner.
static size_t sending_group(const struct pairing *pairing, const struct load *load, size_t t,
                            int64_t k)
{
    if (tsr__side_owns(&pairing->from, t, k))
        return pairing->group[t];
    size_t s = idle_owner(pairing, load, k);
    return s == SIZE_MAX ? SIZE_MAX : pairing->group[s];
}

// Counts the moves of a reduction, and lists them if `list` is not NULL. Every device receives the
// partial results of its target shards from all members of a group and combines them. *own becomes
// false if a device needs a source shard that it does not own: another group then sends the shard.
static tsr_status combine_moves(const struct pairing *pairing, struct load *load, move_list *list,
                                bool *own)
{
    for (size_t t = 0; t < pairing->n_devices; t++)
        for (size_t i = pairing->to.first[t]; i < pairing->to.first[t + 1]; i++)
            for (int64_t k = 0; k < pairing->from.layout->n_shards; k++) {
                int64_t j = pairing->to.shards[i], common = pairing_common(pairing, k, j);
                size_t group = common ? sending_group(pairing, load, t, k) : 0;
                if (common == 0)
                    continue;
                if (group == SIZE_MAX)
                    return TSR_INVALID;
                *own &= tsr__side_owns(&pairing->from, t, k);
                for (size_t m = 0; m < pairing->pending->groups[group].n; m++) {
                    size_t s = pairing_device(pairing, pairing->pending->groups[group].devices[m]);
                    load->received[t] += s == t ? 0 : common;
                    if (s != t && !add_move(pairing, list, load, s, t, k, j))
                        return TSR_NOMEM;
                }
            }
    return TSR_OK;
}

// Returns the number of group members that own a shard of the target. *apart becomes false if two
// members own the same shard.
static size_t count_receivers(const struct pairing *pairing, const struct device_group *group,
                              bool *apart)
{
    size_t n = 0;
    for (size_t i = 0; i < group->n; i++) {
        size_t t = pairing_device(pairing, group->devices[i]);
        n += side_count(&pairing->to, t) > 0;
        for (size_t h = pairing->to.first[t]; h < pairing->to.first[t + 1]; h++)
            for (size_t k = 0; k < i; k++)
                *apart &= !tsr__side_owns(&pairing->to, pairing_device(pairing, group->devices[k]),
                                          pairing->to.shards[h]);
    }
    return n;
}

// Returns the operation of a step with a reduction: a collective or RESHARD_EXCHANGE. With `own`,
// every device receives only from its own group.
static int name_combination(const struct pairing *pairing, bool own)
{
    bool apart = true, one = true;
    if (own && unchanged(pairing))
        return COMM_ALL_REDUCE;
    for (size_t group = 0; group < pairing->pending->n_groups; group++)
        one &= count_receivers(pairing, &pairing->pending->groups[group], &apart) <= 1;
    if (!own || !apart)
        return RESHARD_EXCHANGE;
    return one ? COMM_REDUCE : COMM_REDUCE_SCATTER;
}

// Sets the elements that each device sends and receives in an all-reduce: each member combines one
// part, then all gather the parts.
static void load_all_reduce(const struct pairing *pairing, struct load *load)
{
    for (size_t t = 0; t < pairing->n_devices; t++) {
        int64_t all = 0, n = (int64_t)group_at(pairing, t)->n, mine = 0;
        while (group_at(pairing, t)->devices[mine] != pairing->devices[t])
            mine++;
        for (size_t h = pairing->from.first[t]; h < pairing->from.first[t + 1]; h++)
            all += pairing->from.elements[pairing->from.shards[h]];
        int64_t stretch = tsr__tile_start(all, n, mine + 1) - tsr__tile_start(all, n, mine);
        load->sent[t] = load->received[t] = (n - 1) * stretch + all - stretch;
    }
}

// Sets the elements that each device sends and receives in a reduce. The sum goes from member to
// member: it starts at member 1, which receives nothing, and ends at member 0, which gets the
// result.
static void load_reduce(const struct pairing *pairing, struct load *load,
                        const struct reshard_step *out)
{
    for (size_t g = 0; g < out->n_groups; g++) {
        const struct device_group *group = &out->groups[g];
        size_t root = pairing_device(pairing, group->devices[0]);
        int64_t all = 0;
        for (size_t h = pairing->to.first[root]; h < pairing->to.first[root + 1]; h++)
            all += pairing->to.elements[pairing->to.shards[h]];
        for (size_t i = 0; i < group->n; i++) {
            size_t t = pairing_device(pairing, group->devices[i]);
            load->received[t] = (i == 1 || group->n == 1) ? 0 : all;
            load->sent[t] = i == 0 ? 0 : all;
        }
    }
}

// Sets the groups of the step to those of the pending reduction. For a reduce, the receiver comes
// first, and groups without a receiver are left out. Returns false if out of memory.
static bool combining_groups(const struct pairing *pairing, struct reshard_step *out)
{
    out->groups = ARENA_ARRAY(pairing->made, struct device_group, pairing->pending->n_groups + 1);
    if (!out->groups)
        return false;
    for (size_t group = 0; group < pairing->pending->n_groups; group++) {
        const struct device_group *from = &pairing->pending->groups[group];
        struct device_group *to = &out->groups[out->n_groups];
        to->devices = ARENA_ARRAY(pairing->made, int64_t, from->n + 1);
        if (!to->devices)
            return false;
        memcpy(to->devices, from->devices, from->n * sizeof *to->devices);
        to->n = from->n;
        bool needed = out->op != COMM_REDUCE;
        for (size_t i = 0; i < to->n && !needed; i++)
            if (side_count(&pairing->to, pairing_device(pairing, to->devices[i]))) {
                int64_t root = to->devices[i];
                memmove(to->devices + 1, to->devices, i * sizeof root);
                to->devices[0] = root;
                needed = true;
            }
        out->n_groups += needed;
    }
    return true;
}

// Builds a step that completes a pending reduction. First counts bytes as for a reduce-scatter:
// each member sends its partial result to every device that needs it. A reduce and an all-reduce
// send less, so their bytes are counted again. An exchange is counted again to list its moves,
// unless pairing->brief is set.
static tsr_status combining_step(const struct pairing *pairing, struct reshard_step *out)
{
    struct load load;
    move_list moves = {0};
    bool own = true;
    if (!load_new(pairing, &load))
        return TSR_NOMEM;
    tsr_status status = combine_moves(pairing, &load, NULL, &own);
    if (status != TSR_OK)
        return status;
    out->combines = true;
    out->op = name_combination(pairing, own);
    if (out->op == RESHARD_EXCHANGE ? !one_group(pairing, out) : !combining_groups(pairing, out))
        return TSR_NOMEM;
    if (out->op == COMM_REDUCE_SCATTER || (out->op == RESHARD_EXCHANGE && pairing->brief)) {
        load_take(pairing, &load, out);
        return TSR_OK;
    }
    memset(load.received, 0, pairing->n_devices * sizeof *load.received);
    memset(load.sent, 0, pairing->n_devices * sizeof *load.sent);
    if (out->op == COMM_REDUCE)
        load_reduce(pairing, &load, out);
    else if (out->op == COMM_ALL_REDUCE)
        load_all_reduce(pairing, &load);
    else
        status = combine_moves(pairing, &load, &moves, &own);
    out->moves = moves.at;
    out->n_moves = moves.n;
    load_take(pairing, &load, out);
    return status;
}

tsr_status tsr__reshard_step(const struct pairing *pairing, struct reshard_step *out)
{
    *out = (struct reshard_step){
        .op = RESHARD_NOTHING, .axis = -1, .to_axis = -1, .layout = pairing->to.layout};
    return pairing->pending ? combining_step(pairing, out) : plain_step(pairing, out);
}
