// SPDX-License-Identifier: Apache-2.0
// net_chain.c - a reduction along a chain of ranks, by messages.
//
// Each member folds its inputs after the partial result of the member before it, so elements are
// folded in the order of the chain. The last member sends the result back along the chain. Pieces
// follow each other, so that both directions of a link are used at the same time.
//
// Example: hosts a, b, c with ranks 0 and 1, 2 and 3, 4 and 5. One rank of each host forms a chain.
// The member of a folds x0 + x1 and sends that to b, which sends ((x0 + x1) + x2) + x3 to c. c adds
// x4 and x5, and sends the sum to b, which forwards it to a: the same bits as a sum in rank order.
#include "transport/net/net.h"

#define CHAIN_PIECE (256u << 10) // bytes of a piece of a partial result

// State of one member. The receive of piece p is message parts + p, that of its result results + p.
struct chain {
    struct net *net;
    const struct net_chain *about;
    size_t unit, partial_unit; // bytes of an element, and of an element of a partial result
    int64_t step, pieces;      // elements of a piece
    char *before, *after;      // partial results: of the member before, and of this one
    size_t parts, results;     // first messages that receive parts and results
    int64_t forwarded;         // pieces whose result arrived and was sent on
    const void **ins;
    struct comm_trouble *why;
};

static bool is_last(const struct chain *chain)
{
    return chain->about->me == chain->about->call->n_group - 1;
}

// True if this member gets the result from the next one.
static bool gets_result(const struct chain *chain)
{
    return !is_last(chain) && chain->about->me >= chain->about->first;
}

static int64_t piece_count(const struct chain *chain, int64_t piece)
{
    int64_t left = chain->about->count - piece * chain->step;
    return left < chain->step ? left : chain->step;
}

// Posts the message with one piece of `buffer` from or to the neighbour at this distance.
static tsr_status post_piece(struct chain *chain, int distance, bool receives, void *buffer,
                             size_t unit, int64_t piece)
{
    const struct comm_call *call = chain->about->call;
    return tsr__net_post(chain->net, call, (int)call->group[chain->about->me + distance], receives,
                         (char *)buffer + (size_t)(piece * chain->step) * unit,
                         (size_t)piece_count(chain, piece) * unit, chain->why);
}

// Posts all receives.
static tsr_status post_receives(struct chain *chain)
{
    chain->parts = chain->net->n_pending;
    for (int64_t piece = 0; chain->about->me > 0 && piece < chain->pieces; piece++)
        TRY(post_piece(chain, -1, true, chain->before, chain->partial_unit, piece));
    chain->results = chain->net->n_pending;
    for (int64_t piece = 0; gets_result(chain) && piece < chain->pieces; piece++)
        TRY(post_piece(chain, 1, true, chain->about->out, chain->unit, piece));
    return TSR_OK;
}

static struct net_range message(size_t first, int64_t piece)
{
    return (struct net_range){first + (size_t)piece, first + (size_t)piece + 1};
}

// Folds this member's inputs into a piece and sends it on: the partial result to the next member,
// or the result back.
static tsr_status fold_piece(struct chain *chain, int64_t piece)
{
    const struct net_chain *about = chain->about;
    size_t at = (size_t)(piece * chain->step);
    bool continues = about->me > 0, last = is_last(chain);
    char *out =
        last ? (char *)about->out + at * chain->unit : chain->after + at * chain->partial_unit;
    chain->ins[0] = chain->before + at * chain->partial_unit;
    for (int i = 0; i < about->n_ins; i++)
        chain->ins[i + continues] = (const char *)about->ins[i] + at * chain->unit;
    tsr__reduce_step(about->call->type, about->call->reduce, chain->ins, about->n_ins + continues,
                     continues, last, out, piece_count(chain, piece));
    if (!last)
        return post_piece(chain, 1, false, chain->after, chain->partial_unit, piece);
    if (about->me > about->first)
        return post_piece(chain, -1, false, about->out, chain->unit, piece);
    return TSR_OK;
}

// Sends the results on that have arrived. wait: waits for all of them.
static tsr_status forward_results(struct chain *chain, bool wait)
{
    for (; gets_result(chain) && chain->forwarded < chain->pieces; chain->forwarded++) {
        struct net_range result = message(chain->results, chain->forwarded);
        if (wait)
            TRY(tsr__net_wait(chain->net, chain->about->call, result, chain->why));
        else if (!tsr__net_is_done(chain->net, result))
            return TSR_OK;
        if (chain->about->me > chain->about->first)
            TRY(post_piece(chain, -1, false, chain->about->out, chain->unit, chain->forwarded));
    }
    return TSR_OK;
}

static tsr_status run_chain(struct chain *chain)
{
    TRY(post_receives(chain));
    for (int64_t piece = 0; piece < chain->pieces; piece++) {
        if (chain->about->me > 0)
            TRY(tsr__net_wait(chain->net, chain->about->call, message(chain->parts, piece),
                              chain->why));
        TRY(fold_piece(chain, piece));
        TRY(forward_results(chain, false));
    }
    TRY(forward_results(chain, true));
    return tsr__net_complete(chain->net, chain->about->call, chain->why);
}

tsr_status tsr__net_chain(struct net *net, const struct net_chain *about, struct comm_trouble *why)
{
    struct chain chain = {.net = net, .about = about, .why = why};
    struct arena arena = {.session = net->session}; // of this call
    chain.unit = tsr__elem_bytes(about->call->type);
    chain.partial_unit = tsr__elem_bytes(tsr__partial_type(about->call->type));
    chain.step = (int64_t)(CHAIN_PIECE / chain.partial_unit);
    chain.pieces = (about->count + chain.step - 1) / chain.step;
    size_t bytes = (size_t)about->count * chain.partial_unit;
    chain.ins = ARENA_ARRAY(&arena, const void *, (size_t)about->n_ins + 1);
    tsr_status st = TSR_OK;
    if (!chain.ins || !tsr__net_grow(net->session, &net->scratch, &net->scratch_bytes, 2 * bytes))
        st = tsr__net_out_of_memory(net, why);
    chain.before = net->scratch;
    chain.after = net->scratch + bytes;
    if (st == TSR_OK)
        st = run_chain(&chain);
    tsr__arena_free(&arena);
    return st;
}
