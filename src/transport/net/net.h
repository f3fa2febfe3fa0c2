// SPDX-License-Identifier: Apache-2.0
// net.h - a rank as a process: its link to the others, pending messages, heartbeats.
#ifndef TSR_NET_H
#define TSR_NET_H

#include "transport/common/internal.h"
#include "transport/common/link.h"
#include "transport/meeting/meet.h"

#include <pthread.h>
#include <stdatomic.h>

#define NET_CHUNK (64u << 20) // larger messages are split, so that progress can be seen
#define NET_ROUND (32u << 20) // scratch memory of one round of a reduction

struct net_gift;

// Waiting: for ranks to arrive in a call. Moving: they have arrived, and data is in flight.
// Failed: the job has failed. Left: the rank has failed between two calls.
enum beat_state { BEAT_WORKING = 1, BEAT_WAITING, BEAT_MOVING, BEAT_FAILED, BEAT_ENDED, BEAT_LEFT };

// A heartbeat. A rank announces its failure or its end by a heartbeat, too.
struct beat {
    uint32_t magic, state;
    uint32_t job; // number of the job in this process: leftovers of an earlier one are ignored
    int32_t waiting_for; // BEAT_WAITING: rank; BEAT_FAILED, BEAT_LEFT: rank at fault
    int32_t status, pid;
    uint64_t host, calls;
    int64_t id;
    char op[16], node[COMM_NAME];
    char text[256]; // BEAT_FAILED, BEAT_LEFT: why
};

// Another rank, as known from its heartbeats.
struct peer {
    struct beat in, out, latest;
    uint64_t receiving, sending;
    bool is_receiving, is_sending, sent_last;
    double seen_s, sent_s; // time of the last heartbeat from it, to it
};

// A pending message.
struct pending {
    uint64_t request;
    int peer;
    bool receives, done;
    bool is_frame; // the receive of a frame, which can be cancelled
    size_t bytes, got;
};

// Pending messages [from, to).
struct net_range {
    size_t from, to;
};

struct net {
    struct endpoint endpoint; // must be first: endpoints are cast to this struct
    tsr_session *session;
    struct link *link;
    struct meet *meet; // used if no launcher supervises the ranks; else NULL
    double timeout_s;
    bool crowded;
    // messages
    struct pending *pending;
    size_t n_pending, cap_pending;
    char *frames, *scratch;
    size_t frame_bytes, scratch_bytes;
    // files for rank 0 (tsr__comm_give): number of files offered (`given`) and sent (`settled`)
    struct net_gift *gifts[COMM_GIFTS];
    uint64_t given, settled;
    // heartbeats: protected by the lock, except for fields that only the heartbeat thread uses
    pthread_t thread;
    bool has_thread;
    bool frozen; // tsr__beat_freeze: the link is no longer driven
    atomic_bool stop;
    atomic_int failed;
    bool left; // the failure is this rank's, between two calls: others can finish theirs
    atomic_uint_fast64_t calls; // calls of this rank so far
    pthread_mutex_t lock;
    struct comm_trouble trouble;
    struct beat mine;
    struct peer *peers;
    // the ring of ranks that wait for each other, found last (ring_of; 0: none), and since when
    uint64_t ring;
    double ring_since_s;
};

// ---- net_beat.c
tsr_status tsr__beat_start(struct net *net, uint32_t job);
// Stops the heartbeats and announces that this rank ends. *answered is set if all others know.
// Returns false if the heartbeats were stopped before.
bool tsr__beat_stop(struct net *net, bool *answered);
void tsr__beat_freeze(
    // ends the heartbeats without an announcement; the network is not used any more
    struct net *net);
// True if the rank has ended, or knows that the job has failed; it then sends and receives nothing
// more.
bool tsr__beat_knows(struct net *net, int rank);
void tsr__beat_step(struct net *net); // without a heartbeat thread: called while waiting
// Publishes what this rank is doing, and the rank for which it waits (-1: none).
void tsr__beat_publish(struct net *net, const struct comm_call *call, enum beat_state state,
                       int peer);
void tsr__beat_fail(struct net *net, tsr_status status, int rank, const char *text);
// Marks this rank as failed: it makes no more calls, and the others fail only if they wait for it.
void tsr__beat_leave(struct net *net, tsr_status status, int rank, const char *text);
// True if the job has failed or a rank has left.
bool tsr__beat_trouble(struct net *net, struct comm_trouble *why);
// Checks for failures while waiting for a rank: failed, ended or stopped ranks, deadlocks.
tsr_status tsr__beat_check(struct net *net, const struct comm_call *call, int peer,
                           struct comm_trouble *why);
tsr_status tsr__beat_failure(struct net *net, struct comm_trouble *why);

// ---- net_give.c: see tsr__comm_give and the functions after it
tsr_status tsr__net_give(struct endpoint *endpoint, const struct comm_call *call, int fd,
                         size_t bytes, struct comm_trouble *why);
tsr_status tsr__net_settle(struct endpoint *endpoint, const struct comm_call *call,
                           struct comm_trouble *why);
tsr_status tsr__net_take(struct endpoint *endpoint, const struct comm_call *call, int from, int *fd,
                         size_t *bytes, struct comm_trouble *why);
void tsr__net_drop_gifts(struct net *net); // closes files; none may be pending

// ---- net_post.c
// A frame is the first message of a call: a header (`comm_header`), and the data if it is small.
// NET_FRAME and NET_INLINE limit that data (collective.h). Members are numbered by their index in
// the group. Returns the frame that member i sent.
char *tsr__net_frame(struct net *net, int i);
// tsr__net_room returns the largest number of data bytes in a frame of this group. tsr__net_inline
// returns how many of a member's `bytes` its frame carries: all, or none.
size_t tsr__net_room(const struct comm_call *call);
size_t tsr__net_inline(const struct comm_call *call, uint64_t bytes);
// Synchronizes the group: returns when all frames have arrived and agree. `send` has the data for
// each member, or one buffer for all if `same` is set.
tsr_status tsr__net_meet(struct net *net, const struct comm_call *call, const int64_t *notes,
                         const struct comm_buffer *send, bool same, struct comm_trouble *why);
// Synchronize with fewer messages and one more step. All members send their frame, with up to
// NET_FRAME bytes of data, to the first member, the head (gather). After the head has processed
// them, it sends one frame back to each (spread).
tsr_status tsr__net_gather(struct net *net, const struct comm_call *call,
                           const struct comm_buffer *data, struct comm_trouble *why);
tsr_status tsr__net_spread(struct net *net, const struct comm_call *call,
                           const struct comm_buffer *data, struct comm_trouble *why);
tsr_status tsr__net_damaged(const struct comm_call *call, int peer, struct comm_trouble *why);
// Sends or receives bytes, in chunks if there are many.
tsr_status tsr__net_post(struct net *net, const struct comm_call *call, int peer, bool receives,
                         void *p, size_t bytes, struct comm_trouble *why);
// Makes progress once for all requests that are tested after it.
static inline void net_step(struct net *net)
{
    if (net->link->step)
        net->link->step(net->link);
}
// As tsr__patience, for waits on the network, where each check is a system call: 32 checks take as
// long as a peer on another core needs to answer. A peer on the same core can answer only if this
// rank yields.
static inline bool net_patience(const struct net *net, struct patience *patience)
{
    return tsr__patience(patience, net->crowded || patience->rounds >= 32);
}
// Waits for some messages of a call. The others make progress meanwhile.
tsr_status tsr__net_wait(struct net *net, const struct comm_call *call, struct net_range range,
                         struct comm_trouble *why);
// True if some messages of a call are done; makes progress once.
bool tsr__net_is_done(struct net *net, struct net_range range);
// Waits for the data of a call and forgets its messages.
tsr_status tsr__net_complete(struct net *net, const struct comm_call *call,
                             struct comm_trouble *why);
// Cancels pending receives after a failure. Returns false if something else is pending; the network
// then cannot be closed normally.
bool tsr__net_cancel(struct net *net);
// Fails the job: the next heartbeat reports it to all ranks, and later calls of this rank return
// it. When it returns, no message of the call accesses the caller's buffers any more, so the caller
// may free them.
tsr_status tsr__net_give_up(struct net *net, struct comm_trouble *why);
tsr_status tsr__net_out_of_memory(struct net *net, struct comm_trouble *why);
// Enlarges net->frames or net->scratch. The old contents are lost: both are rewritten in every
// call.
bool tsr__net_grow(tsr_session *session, char **p, size_t *have, size_t want);

// ---- net_quiet.c
// Ends the messages of a failed call. If some do not end in time, stops using the network.
void tsr__net_quiet(struct net *net);

// ---- net_reduce.c
tsr_status tsr__net_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                               const void *in, void *out, struct comm_trouble *why);

// ---- net_chain.c
// One member's part in a reduction along a chain: each member folds its inputs after those of the
// members before it, and the last one has the result.
struct net_chain {
    const struct comm_call *call; // the group is the chain, from its first member to its last
    int me;                       // index of this member
    const void *const *ins;       // this member's inputs, in the order in which they are folded
    int n_ins;
    int64_t count;
    int first; // the result is sent back from member to member, down to this one
    void *out; // result, on the members from `first` on. Scratch memory or an input is allowed
};
// The members have compared their headers before (tsr__net_meet), and no message is pending.
tsr_status tsr__net_chain(struct net *net, const struct net_chain *chain, struct comm_trouble *why);

// ---- net.c
// The first half of an exchange: headers, notes, and all parts that fit into frames. Receive
// buffers of larger parts are set, and the sizes agree.
tsr_status tsr__net_exchange_small(struct net *net, const struct comm_call *call,
                                   struct comm_exchange *exchange, struct comm_trouble *why);
// Opens an endpoint over a link. The link must outlive it, unless the link has a close function:
// then the endpoint owns it. The endpoint also owns `meet` (or NULL), even after a failure. job:
// number of earlier jobs of this process, plus 1.
tsr_status tsr__net_open(tsr_session *session, struct link *link, struct meet *meet, uint32_t job,
                         const struct comm_options *options, struct endpoint **out);
// ---- hosts.c
// Opens an endpoint for the same job with shared memory between the ranks of each host. host: a
// number, equal for ranks of one host. *out is `net` itself if that is not possible.
tsr_status tsr__hosts_open(tsr_session *session, struct endpoint *net, uint64_t host,
                           const struct comm_options *options, struct endpoint **out);
// Replaces *out by an endpoint of tsr__hosts_open for tsr__host_id; closes *out after a failure.
// All ranks call it, also those that are alone on their host.
tsr_status tsr__hosts_join(tsr_session *session, const struct comm_options *options,
                           struct endpoint **out);
uint64_t tsr__host_id(void); // equal for ranks of one host

// ---- plugins.c
// Opens the plug-in of a family ("ucx", "openmpi"), from that folder (NULL: none) or beside this
// library. NULL: it could not be loaded; `why` has the first error.
void *tsr__plugin_open(const char *family, const char *folder, char *why, size_t n);

// ---- net.c
// Frees an endpoint. Closing does this, unless the job failed: then call it after the network
// itself has ended.
void tsr__net_free(struct endpoint *endpoint);

#endif
