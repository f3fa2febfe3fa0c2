// SPDX-License-Identifier: Apache-2.0
// net_reduce.c - all-reduce of ranks that are processes, made of messages between pairs.
//
// A large reduction is cut into slices: each member gets all members' parts of its slice, folds them in group order,
// and sends the result to all. So every element is folded once, in one place, in one order: the same bits on all
// ranks and transports.
//
// Three members and 10 MiB of float32: each sends the others its header (count, type, no data).
// Then member 1 gets elements of the second third from members 0 and 2, adds the three in the order
// 0, 1, 2, and sends the sum of its third to both. With 1 KiB the data travels behind the header,
// and every member adds all three itself.
#include "transport/net.h"

static void fold_frames(struct net *net, const struct comm_call *call, const void *in, void *out,
                        const void **ins)
{
    for (int i = 0; i < call->n_group; i++)
        ins[i] = call->group[i] == net->endpoint.rank
                     ? in
                     : tsr__net_frame(net, i) + sizeof(struct comm_header);
    tsr__reduce(call->type, call->reduce, ins, call->n_group, &out, 1, 0, call->count);
}

// One round: elements [base, base + count), each member folds a slice of them.
static tsr_status reduce_round(struct net *net, const struct comm_call *call, const char *in,
                               char *out, int64_t count, const void **ins, struct comm_trouble *why)
{
    size_t unit = tsr__elem_bytes(call->type);
    int64_t first, length, my_first = 0, my_length = 0;
    for (int i = 0; i < call->n_group; i++)
        if (call->group[i] == net->endpoint.rank)
            tsr__slice(count, unit, call->n_group, i, &my_first, &my_length);
    if (!tsr__net_grow(net->session, &net->scratch, &net->scratch_bytes,
                       (size_t)call->n_group * (size_t)my_length * unit))
        return tsr__net_out_of_memory(net, why);
    // First half: my slice of everybody else's input comes in, their slices of mine go out.
    tsr_status st;
    for (int i = 0; i < call->n_group; i++) {
        char *part = net->scratch + (size_t)i * (size_t)my_length * unit;
        bool self = call->group[i] == net->endpoint.rank;
        ins[i] = self ? in + (size_t)my_first * unit : part;
        if (self)
            continue;
        tsr__slice(count, unit, call->n_group, i, &first, &length);
        st = tsr__net_post(net, call, (int)call->group[i], true, part, (size_t)my_length * unit,
                           why);
        if (st != TSR_OK)
            return st;
        st = tsr__net_post(net, call, (int)call->group[i], false, (char *)in + (size_t)first * unit,
                           (size_t)length * unit, why);
        if (st != TSR_OK)
            return st;
    }
    st = tsr__net_complete(net, call, why);
    if (st != TSR_OK)
        return st;
    // Second half: the fold of my slice goes to everybody, theirs come straight into out. in == out
    // is fine: my inputs of other slices have left by then.
    void *mine = out + (size_t)my_first * unit;
    tsr__reduce(call->type, call->reduce, ins, call->n_group, &mine, 1, 0, my_length);
    for (int i = 0; i < call->n_group; i++) {
        if (call->group[i] == net->endpoint.rank)
            continue;
        tsr__slice(count, unit, call->n_group, i, &first, &length);
        st = tsr__net_post(net, call, (int)call->group[i], true, out + (size_t)first * unit,
                           (size_t)length * unit, why);
        if (st != TSR_OK)
            return st;
        st = tsr__net_post(net, call, (int)call->group[i], false, mine, (size_t)my_length * unit,
                           why);
        if (st != TSR_OK)
            return st;
    }
    return tsr__net_complete(net, call, why);
}

// All rounds of a reduction; 100 MiB in rounds of 32 MiB are 32, 32, 32 and 4.
static tsr_status reduce_rounds(struct net *net, const struct comm_call *call, const char *in,
                                char *out, const void **ins, struct comm_trouble *why)
{
    size_t unit = tsr__elem_bytes(call->type);
    int64_t step = (int64_t)(NET_ROUND / unit);
    for (int64_t at = 0; at < call->count; at += step) {
        size_t offset = (size_t)at * unit;
        int64_t count = call->count - at < step ? call->count - at : step;
        tsr_status st = reduce_round(net, call, in + offset, out + offset, count, ins, why);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// What is small comes along when the members meet, and is folded there.
tsr_status tsr__net_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                               const void *in, void *out, struct comm_trouble *why)
{
    struct net *net = (struct net *)endpoint;
    size_t bytes = (size_t)call->count * tsr__elem_bytes(call->type);
    struct comm_buffer whole = {.p = (void *)in, .bytes = tsr__net_inline(bytes)};
    struct arena arena; // of this call
    tsr__arena_init(&arena, net->session);
    const void **ins = ARENA_ARRAY(&arena, const void *, (size_t)call->n_group);
    tsr_status st =
        ins ? tsr__net_meet(net, call, NULL, &whole, true, why) : tsr__net_out_of_memory(net, why);
    if (st != TSR_OK)
        goto free_arena;
    if (bytes <= NET_INLINE)
        fold_frames(net, call, in, out, ins);
    else
        st = reduce_rounds(net, call, in, out, ins, why);
free_arena:
    tsr__arena_free(&arena);
    if (st != TSR_OK)
        return tsr__net_give_up(net, why);
    return st;
}
