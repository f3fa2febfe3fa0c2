// SPDX-License-Identifier: Apache-2.0
// net.h - a rank that is a process: its link to the others, messages under way, signs of life.
#ifndef TSR_NET_H
#define TSR_NET_H

#include "transport/common/internal.h"
#include "transport/common/link.h"
#include "transport/meeting/meet.h"

#include <pthread.h>
#include <stdatomic.h>

#define NET_FRAME                                                                                  \
    (64u                                                                                           \
     << 10) // data that travels with the headers of a call: what a member sends to all others together,
#define NET_INLINE (8u << 10)  // but at least this much to each
#define NET_CHUNK  (64u << 20) // larger messages are cut, so that progress can be seen
#define NET_ROUND  (32u << 20) // scratch memory of one round of a reduction

struct net_gift;

// Waiting: for ranks to come to a call; moving: they have, and data is under way.
enum beat_state { BEAT_WORKING = 1, BEAT_WAITING, BEAT_MOVING, BEAT_FAILED, BEAT_ENDED };

// A sign of life; also how failure and end are told.
struct beat {
    uint32_t magic, state;
    uint32_t job; // number of the job in this process: leftovers of an earlier one do not count
    int32_t waiting_for; // BEAT_WAITING: rank; BEAT_FAILED: rank at fault
    int32_t status, pid;
    uint64_t host, calls;
    int64_t id;
    char op[16], node[COMM_NAME];
    char text[256]; // BEAT_FAILED: why
};

// One other rank, as its signs of life tell.
struct peer {
    struct beat in, out, latest;
    uint64_t receiving, sending;
    bool is_receiving, is_sending, told_end;
    double seen_s, sent_s; // last sign from it, to it
};

// A message under way.
struct pending {
    uint64_t request;
    int peer;
    bool receives, done;
    bool is_frame; // the receive of a frame, which can be taken back
    size_t bytes, got;
};

// Messages [from, to) of those under way.
struct net_range {
    size_t from, to;
};

struct net {
    struct endpoint endpoint; // first
    tsr_session *session;
    struct link *link;
    struct meet *meet; // of ranks that nobody else looks after, or NULL
    double timeout_s;
    bool crowded;
    // messages
    struct pending *pending;
    size_t n_pending, cap_pending;
    char *frames, *scratch;
    size_t frame_bytes, scratch_bytes;
    // what was given to rank 0 beside the calls, and how much of it has left
    struct net_gift *gifts[COMM_GIFTS];
    uint64_t given, settled;
    // signs of life: guarded by the lock, but for what only the beating thread touches
    pthread_t thread;
    bool has_thread;
    bool frozen; // tsr__beat_freeze: nobody drives the link any more
    atomic_bool stop;
    atomic_int failed;
    atomic_uint_fast64_t calls; // frames sent to a group so far
    pthread_mutex_t lock;
    struct comm_trouble trouble;
    struct beat mine;
    struct peer *peers;
    uint64_t ring;
    double ring_since_s;
};

// ---- net_beat.c
tsr_status tsr__beat_start(struct net *net, uint32_t job);
// Tells the others that this rank ends; *answered: all of them know. False: it was stopped before.
bool tsr__beat_stop(struct net *net, bool *answered);
void tsr__beat_freeze(
    struct net *net); // ends the signs of life without a word: the network is driven no more
// That rank has ended, or knows that the job has failed: it takes and sends nothing more.
bool tsr__beat_knows(struct net *net, int rank);
void tsr__beat_step(struct net *net); // where there is no thread for it: called while waiting
// What this rank does now, and which rank it waits for (-1: none).
void tsr__beat_tell(struct net *net, const struct comm_call *call, enum beat_state state, int peer);
void tsr__beat_fail(struct net *net, tsr_status status, int rank, const char *text);
// Looks around while waiting for a rank: has somebody failed, ended, stopped; does everybody wait?
tsr_status tsr__beat_look(struct net *net, const struct comm_call *call, int peer,
                          struct comm_trouble *why);
tsr_status tsr__beat_told(struct net *net, struct comm_trouble *why);

// ---- net_give.c: as tsr__comm_give and those behind it
tsr_status tsr__net_give(struct endpoint *endpoint, const struct comm_call *call, int fd,
                         size_t bytes, struct comm_trouble *why);
tsr_status tsr__net_settle(struct endpoint *endpoint, const struct comm_call *call,
                           struct comm_trouble *why);
tsr_status tsr__net_take(struct endpoint *endpoint, const struct comm_call *call, int from, int *fd,
                         size_t *bytes, struct comm_trouble *why);
void tsr__net_drop_gifts(struct net *net); // that nobody took; nothing may be under way

// ---- net_post.c
// Members are numbered by their place in the group. The frame that came from member i, its header first.
char *tsr__net_frame(struct net *net, int i);
// The most data that a frame of that group takes along; and how many of the bytes for a member do: all, or none.
size_t tsr__net_room(const struct comm_call *call);
size_t tsr__net_inline(const struct comm_call *call, uint64_t bytes);
// Meets the group: all frames are here and say the same. send is what goes to each member, one for all with same.
tsr_status tsr__net_meet(struct net *net, const struct comm_call *call, const int64_t *notes,
                         const struct comm_buffer *send, bool same, struct comm_trouble *why);
// The other way to meet, with fewer messages and one step more: all send the first member (the head) their frame with up to NET_FRAME bytes of data, and
// get one back, which the head sends (spread) when it has made something of what came (gather).
tsr_status tsr__net_gather(struct net *net, const struct comm_call *call,
                           const struct comm_buffer *data, struct comm_trouble *why);
tsr_status tsr__net_spread(struct net *net, const struct comm_call *call,
                           const struct comm_buffer *data, struct comm_trouble *why);
tsr_status tsr__net_damaged(const struct comm_call *call, int peer, struct comm_trouble *why);
// Sends or receives bytes, in chunks where they are many.
tsr_status tsr__net_post(struct net *net, const struct comm_call *call, int peer, bool receives,
                         void *p, size_t bytes, struct comm_trouble *why);
// Lets the network work, once for all requests that are tested after it.
static inline void net_step(struct net *net)
{
    if (net->link->step)
        net->link->step(net->link);
}
// tsr__patience for those who look at the network, which asks the system each time: 32 looks take as long as a peer on
// another core needs to answer. One that shares this core answers only when it is given away.
static inline bool net_patience(const struct net *net, struct patience *patience)
{
    return tsr__patience(patience, net->crowded || patience->rounds >= 32);
}
// Waits for some messages of a call, while the others move along.
tsr_status tsr__net_wait(struct net *net, const struct comm_call *call, struct net_range range,
                         struct comm_trouble *why);
// Waits for the data of a call; what was posted for it is done with.
tsr_status tsr__net_complete(struct net *net, const struct comm_call *call,
                             struct comm_trouble *why);
// After a failure: takes receives back that nothing will come for. False: something else is under way, and the
// network cannot be ended in order.
bool tsr__net_cancel(struct net *net);
// The failure is told to all ranks by the next sign of life, and kept for later calls of this one. Nothing of the call is under way
// then: its caller may free its memory.
tsr_status tsr__net_give_up(struct net *net, struct comm_trouble *why);
tsr_status tsr__net_out_of_memory(struct net *net, struct comm_trouble *why);
// The old contents are lost: both buffers are written anew in every call.
bool tsr__net_grow(tsr_session *session, char **p, size_t *have, size_t want);

// ---- net_quiet.c
void tsr__net_quiet(struct net *net); // ends the messages of a failed call, or driving the network

// ---- net_reduce.c
tsr_status tsr__net_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                               const void *in, void *out, struct comm_trouble *why);

// ---- net.c
// An endpoint over a link, which must outlive it unless it has a close of its own: then the link is the endpoint's. That and meet (or NULL) are so
// even after a failure. job: how many this process had before, plus 1.
tsr_status tsr__net_open(tsr_session *session, struct link *link, struct meet *meet, uint32_t job,
                         const struct comm_options *options, struct endpoint **out);
// ---- hosts.c
// The same job, with shared memory between the ranks of each host; *out is net itself where that cannot be had.
tsr_status tsr__hosts_open(tsr_session *session, struct endpoint *net,
                           const struct comm_options *options, struct endpoint **out);
// The same for *out, which is closed where that fails. All ranks call it, those alone on their host too.
tsr_status tsr__hosts_join(tsr_session *session, const struct comm_options *options,
                           struct endpoint **out);
uint64_t tsr__host_id(void); // the same for ranks of one host

// ---- plugins.c
// The plug-in of a family ("ucx", "openmpi"), from that folder (NULL: none) or beside this library. NULL: why says the first reason.
void *tsr__plugin_open(const char *family, const char *folder, char *why, size_t n);

// ---- net.c
// Frees a closed endpoint whose job failed: only when the network itself is gone.
void tsr__net_free(struct endpoint *endpoint);

#endif
