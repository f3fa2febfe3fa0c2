// SPDX-License-Identifier: Apache-2.0
// net_give.c - files that a rank sends to rank 0 outside of the calls of the group, on a channel of
// their own.
//
// The sender maps its file, posts the size and the bytes, and continues; the messages are sent
// while it computes. tsr__net_settle waits for them and releases the file.
//
// On the channel LINK_GIFT, from each rank to rank 0, in the order of the runs: a head (run,
// bytes), then the bytes in chunks of 64 MiB. Rank 0 posts the receives only when it takes the
// file. Example: 150 MiB are one head and three messages: 64, 64 and 22 MiB.
#include "transport/net/net.h"

#include <sys/mman.h>
#include <unistd.h>

// Sent before the bytes.
struct gift_head {
    uint64_t run, bytes;
};
// A file being sent. Owns the file, its mapping and the requests, until the last message has left.
struct net_gift {
    struct gift_head head;
    int fd;
    char *map; // NULL: there are no bytes
    size_t n;  // messages
    uint64_t *requests;
    bool *done;
};

static size_t chunks_of(size_t bytes)
{
    return bytes / NET_CHUNK + (bytes % NET_CHUNK != 0);
}

// Fails the job. Otherwise rank 0 and the sender would wait for each other.
static tsr_status fail(struct net *net, struct comm_trouble *why)
{
    tsr__beat_fail(net, why->status, why->rank, why->text);
    return why->status;
}

static tsr_status lost(struct net *net, const struct comm_call *call, int peer,
                       struct comm_trouble *why)
{
    tsr__trouble(why, TSR_PEER, peer, "the network between rank %d and rank %d failed at %s '%s'",
                 net->endpoint.rank, peer, call->op, call->node);
    return fail(net, why);
}

// Waits for all messages of a list.
static tsr_status complete(struct net *net, const struct comm_call *call, int peer,
                           uint64_t *requests, bool *done, size_t count, struct comm_trouble *why)
{
    struct patience patience = {0};
    size_t at = 0;
    while (at < count) {
        if (!done[at])
            net_step(net);
        int got = done[at] ? 1 : net->link->test(net->link, &requests[at], NULL);
        if (got < 0)
            return lost(net, call, peer, why);
        // Test in order: messages of one channel arrive in the order sent, so a later one is hardly
        // ever done before an earlier one.
        if (got == 1) {
            done[at++] = true;
            patience = (struct patience){0};
            continue;
        }
        if (!net_patience(net, &patience))
            continue;
        tsr__beat_publish(net, call, BEAT_WAITING, peer);
        tsr_status st = tsr__beat_check(net, call, peer, why);
        tsr__beat_publish(net, call, BEAT_WORKING, -1);
        if (st != TSR_OK)
            return fail(net, why);
    }
    return TSR_OK;
}

// Posts a message for each chunk. Requests that were posted before a failure stay with the caller.
static bool post_chunks(struct net *net, int peer, bool receives, char *map, size_t bytes,
                        uint64_t *requests)
{
    for (size_t at = 0; at < bytes; at += NET_CHUNK) {
        size_t m = bytes - at < NET_CHUNK ? bytes - at : NET_CHUNK;
        if (tsr__fault(net->session, receives ? FAULT_RECEIVE : FAULT_SEND))
            return false;
        bool posted = receives
                          ? net->link->receive(net->link, peer, LINK_GIFT, map + at, m, requests++)
                          : net->link->send(net->link, peer, LINK_GIFT, map + at, m, requests++);
        if (!posted)
            return false;
    }
    return true;
}

// ---- the sender ---------------------------------------------------------------------------------

// Frees a file. None of its messages may be pending.
static void gift_drop(struct net *net, struct net_gift *gift)
{
    tsr__free(net->session, gift->requests, gift->n * sizeof *gift->requests);
    tsr__free(net->session, gift->done, gift->n * sizeof *gift->done);
    if (gift->map)
        munmap(gift->map, (size_t)gift->head.bytes);
    close(gift->fd);
    tsr__free(net->session, gift, sizeof *gift);
}

// Maps the file and allocates the requests of its messages. Returns NULL if out of memory or if
// mapping fails; the file is then closed.
static struct net_gift *gift_new(struct net *net, int fd, size_t bytes, uint64_t run)
{
    struct net_gift *gift = tsr__alloc(net->session, sizeof *gift);
    if (!gift) {
        close(fd);
        return NULL;
    }
    *gift = (struct net_gift){.head = {run, bytes}, .fd = fd, .n = 1 + chunks_of(bytes)};
    gift->requests = tsr__alloc(net->session, gift->n * sizeof *gift->requests);
    gift->done = tsr__alloc(net->session, gift->n * sizeof *gift->done);
    void *map = bytes ? mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    gift->map = map == MAP_FAILED ? NULL : map;
    if (!gift->requests || !gift->done || map == MAP_FAILED) {
        gift_drop(net, gift);
        return NULL;
    }
    memset(gift->done, 0, gift->n * sizeof *gift->done);
    return gift;
}

// Sends a file to rank 0: the head first, then the file in chunks. Files wait in a ring of
// COMM_GIFTS until rank 0 has them: `given` counts those begun, `settled` those done.
tsr_status tsr__net_give(struct endpoint *endpoint, const struct comm_call *call, int fd,
                         size_t bytes, struct comm_trouble *why)
{
    struct net *net = (struct net *)endpoint;
    if (net->given - net->settled == COMM_GIFTS) {
        close(fd);
        tsr__trouble(why, TSR_BUG, endpoint->rank, "rank %d returns more data than rank 0 accepts",
                     endpoint->rank);
        return fail(net, why);
    }
    struct net_gift *gift = gift_new(net, fd, bytes, call->run);
    if (!gift) {
        tsr__trouble(why, TSR_NOMEM, endpoint->rank, "rank %d has no memory for its results",
                     endpoint->rank);
        return fail(net, why);
    }
    net->gifts[net->given++ % COMM_GIFTS] = gift;
    if (tsr__fault(net->session, FAULT_SEND) ||
        !net->link->send(net->link, 0, LINK_GIFT, &gift->head, sizeof gift->head,
                         &gift->requests[0]) ||
        !post_chunks(net, 0, false, gift->map, bytes, gift->requests + 1))
        return lost(net, call, 0, why);
    return TSR_OK;
}

// Waits until rank 0 or the network has the oldest file, then frees it.
tsr_status tsr__net_settle(struct endpoint *endpoint, const struct comm_call *call,
                           struct comm_trouble *why)
{
    struct net *net = (struct net *)endpoint;
    struct net_gift *gift = net->gifts[net->settled % COMM_GIFTS];
    TRY(complete(net, call, 0, gift->requests, gift->done, gift->n,
                 why)); // messages may be pending in its memory; the process ends soon
    gift_drop(net, gift);
    net->settled++;
    return TSR_OK;
}

// ---- rank 0 -------------------------------------------------------------------------------------

// Creates a file of `bytes` bytes and maps it for writing. Returns -1 after a failure.
static int make_file(size_t bytes, char **map)
{
    int fd = memfd_create("tessera-gift", MFD_CLOEXEC);
    *map = NULL;
    if (fd < 0 || bytes == 0)
        return fd;
    void *p = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED) {
        *map = p;
        return fd;
    }
    close(fd);
    return -1;
}

static tsr_status receive_bytes(struct net *net, const struct comm_call *call, int from, char *map,
                                size_t bytes, struct comm_trouble *why)
{
    size_t count = chunks_of(bytes);
    struct arena arena = {.session = net->session};
    uint64_t *requests = ARENA_ARRAY(&arena, uint64_t, count + 1);
    bool *done = ARENA_ARRAY(&arena, bool, count + 1);
    tsr_status st = TSR_OK;
    if (!requests || !done) {
        tsr__trouble(why, TSR_NOMEM, 0, "rank 0 is out of memory");
        st = fail(net, why);
    } else if (!post_chunks(net, from, true, map, bytes, requests)) {
        st = lost(net, call, from, why);
    } else {
        st = complete(net, call, from, requests, done, count, why);
    }
    tsr__arena_free(&arena);
    return st;
}

tsr_status tsr__net_take(struct endpoint *endpoint, const struct comm_call *call, int from, int *fd,
                         size_t *bytes, struct comm_trouble *why)
{
    struct net *net = (struct net *)endpoint;
    struct gift_head head = {0};
    uint64_t request;
    bool done = false;
    char *map = NULL;
    if (tsr__fault(net->session, FAULT_RECEIVE) ||
        !net->link->receive(net->link, from, LINK_GIFT, &head, sizeof head, &request))
        return lost(net, call, from, why);
    tsr_status st = complete(net, call, from, &request, &done, 1, why);
    if (st != TSR_OK) {
        if (!done)
            net->link->cancel(net->link, &request);
        return st;
    }
    // A file of another run means that the ranks disagree on the number of runs.
    *fd =
        head.run == call->run && head.bytes <= INT64_MAX ? make_file((size_t)head.bytes, &map) : -1;
    if (*fd < 0) {
        tsr__trouble(why, TSR_PEER, from,
                     "rank 0 cannot receive the results of rank %d for run %llu", from,
                     (unsigned long long)call->run);
        return fail(net, why);
    }
    *bytes = (size_t)head.bytes;
    st = map ? receive_bytes(net, call, from, map, *bytes, why) : TSR_OK;
    if (st != TSR_OK) { // messages may be pending in that memory, so it stays mapped
        close(*fd);
        *fd = -1;
        return st;
    }
    if (map)
        munmap(map, *bytes);
    return TSR_OK;
}

void tsr__net_drop_gifts(struct net *net)
{
    for (; net->settled < net->given; net->settled++)
        gift_drop(net, net->gifts[net->settled % COMM_GIFTS]);
}
