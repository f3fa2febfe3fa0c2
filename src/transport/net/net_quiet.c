// SPDX-License-Identifier: Apache-2.0
// net_quiet.c - after a failed call none of its messages may access the caller's buffers.
//
// Large messages are sent from the caller's tensors and received into them. When a call fails, the
// caller frees these, while the heartbeat thread continues to drive the network, which would still
// read and write there. So a failed call returns only when each of its messages has ended, or when
// this process no longer drives the network:
//
//     1  Receives are cancelled: those without a message end at once, the others when their
//        message has arrived.
//     2  Messages that have left this process end by themselves, and sends to a dead rank fail.
//     3  A message to a rank that knows of the failure is never received, and neither MPI nor UCX
//        can cancel a send (closing UCX's endpoint would, but 1.13 crashes then). So the network is
//        frozen, but only after all ranks know the reason: heartbeats use the same network.
#include "transport/net/net.h"

#include <time.h>

#define INFORM_S 2.0 // longest wait for the others to learn of the failure
#define SETTLE_S 0.2 // longest wait after that for messages that have begun to arrive

static void withdraw_receives(struct net *net)
{
    for (size_t i = 0; i < net->n_pending; i++) {
        struct pending *pending = &net->pending[i];
        if (pending->receives && !pending->done)
            net->link->withdraw(net->link, &pending->request);
    }
}

// True if a message has not ended. A failed message has ended.
static bool is_under_way(struct net *net)
{
    bool open = false;
    net_step(net);
    for (size_t i = 0; i < net->n_pending; i++) {
        struct pending *pending = &net->pending[i];
        if (!pending->done)
            pending->done = net->link->test(net->link, &pending->request, NULL) != 0;
        open |= !pending->done;
    }
    return open;
}

static bool all_know(struct net *net)
{
    for (int rank = 0; rank < net->endpoint.size; rank++)
        if (rank != net->endpoint.rank && !tsr__beat_knows(net, rank))
            return false;
    return true;
}

void tsr__net_quiet(struct net *net)
{
    struct timespec nap = {0, 1000000};
    double until = tsr__now_s() + INFORM_S;
    bool informed = false;
    if (net->frozen) // by an earlier call
        return;
    withdraw_receives(net);
    while (is_under_way(net)) {
        if (!informed && all_know(net)) {
            informed = true;
            until = tsr__now_s() + SETTLE_S;
        }
        if (tsr__now_s() > until) {
            tsr__beat_freeze(net);
            return;
        }
        if (!net->has_thread)
            tsr__beat_step(net);
        nanosleep(&nap, NULL);
    }
}
