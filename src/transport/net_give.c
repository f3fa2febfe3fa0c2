// SPDX-License-Identifier: Apache-2.0
// net_give.c - what a rank leaves for rank 0 beside the calls of the group, as messages on a channel of their own.
//
// The giver maps its file, posts the size and the bytes, and goes on; the messages leave while it works. It waits for
// them, and lets the file go, when it settles.
#include "transport/net.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

// What goes before the bytes.
struct gift_head {
    uint64_t run, bytes;
};
// One file under way.
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

static tsr_status fail(struct net *n, struct comm_trouble *why)
{
    tsr__beat_fail(n, why->status, why->rank, why->text);
    return why->status;
}

static tsr_status lost(struct net *n, const struct comm_call *c, int peer, struct comm_trouble *why)
{
    tsr__trouble(why, TSR_PEER, peer, "the network between rank %d and rank %d failed at %s '%s'",
                 n->endpoint.rank, peer, c->op, c->node);
    return fail(n, why);
}

// Waits for all messages of a list.
static tsr_status complete(struct net *n, const struct comm_call *c, int peer, uint64_t *requests,
                           bool *done, size_t count, struct comm_trouble *why)
{
    struct patience p = {0};
    size_t at = 0;
    while (at < count) {
        int got = done[at] ? 1 : n->link->test(n->link, &requests[at], NULL);
        if (got < 0)
            return lost(n, c, peer, why);
        if (got == 1) {
            done[at++] = true;
            p = (struct patience){0};
            continue;
        }
        if (!tsr__patience(&p, n->crowded))
            continue;
        tsr__beat_tell(n, c, BEAT_WAITING, peer);
        tsr_status st = tsr__beat_look(n, c, peer, why);
        tsr__beat_tell(n, c, BEAT_WORKING, -1);
        if (st != TSR_OK)
            return fail(n, why);
    }
    return TSR_OK;
}

// Posts a message for each chunk of the bytes.
static bool post_chunks(struct net *n, int peer, bool receives, char *map, size_t bytes,
                        uint64_t *requests)
{
    for (size_t at = 0; at < bytes; at += NET_CHUNK) {
        size_t m = bytes - at < NET_CHUNK ? bytes - at : NET_CHUNK;
        bool posted = receives ? n->link->receive(n->link, peer, LINK_GIFT, map + at, m, requests++)
                               : n->link->send(n->link, peer, LINK_GIFT, map + at, m, requests++);
        if (!posted)
            return false;
    }
    return true;
}

// ---- the giver -----------------------------------------------------------------------------------

static void gift_drop(struct net *n, struct net_gift *g)
{
    tsr__free(n->session, g->requests, g->n * sizeof *g->requests);
    tsr__free(n->session, g->done, g->n * sizeof *g->done);
    if (g->map)
        munmap(g->map, (size_t)g->head.bytes);
    close(g->fd);
    tsr__free(n->session, g, sizeof *g);
}

// The file, mapped, with room for the requests of its messages. NULL: out of memory; the file is closed.
static struct net_gift *gift_new(struct net *n, int fd, size_t bytes, uint64_t run)
{
    struct net_gift *g = tsr__alloc(n->session, sizeof *g);
    if (!g) {
        close(fd);
        return NULL;
    }
    *g = (struct net_gift){.head = {run, bytes}, .fd = fd, .n = 1 + chunks_of(bytes)};
    g->requests = tsr__alloc(n->session, g->n * sizeof *g->requests);
    g->done = tsr__alloc(n->session, g->n * sizeof *g->done);
    void *map = bytes ? mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    g->map = map == MAP_FAILED ? NULL : map;
    if (!g->requests || !g->done || map == MAP_FAILED) {
        gift_drop(n, g);
        return NULL;
    }
    memset(g->done, 0, g->n * sizeof *g->done);
    return g;
}

tsr_status tsr__net_give(struct endpoint *e, const struct comm_call *c, int fd, size_t bytes,
                         struct comm_trouble *why)
{
    struct net *n = (struct net *)e;
    struct net_gift *g = n->given - n->settled < COMM_GIFTS ? gift_new(n, fd, bytes, c->run) : NULL;
    if (!g) {
        tsr__trouble(why, TSR_NOMEM, e->rank, "rank %d has no memory for what it gives", e->rank);
        return fail(n, why);
    }
    n->gifts[n->given++ % COMM_GIFTS] = g;
    if (!n->link->send(n->link, 0, LINK_GIFT, &g->head, sizeof g->head, &g->requests[0]) ||
        !post_chunks(n, 0, false, g->map, bytes, g->requests + 1))
        return lost(n, c, 0, why);
    return TSR_OK;
}

tsr_status tsr__net_settle(struct endpoint *e, const struct comm_call *c, struct comm_trouble *why)
{
    struct net *n = (struct net *)e;
    struct net_gift *g = n->gifts[n->settled % COMM_GIFTS];
    tsr_status st = complete(n, c, 0, g->requests, g->done, g->n, why);
    if (st != TSR_OK)
        return st; // messages may be under way in its memory; the process ends soon
    gift_drop(n, g);
    n->settled++;
    return TSR_OK;
}

// ---- rank 0 --------------------------------------------------------------------------------------

// A file of that many bytes, mapped for writing. -1: there is none.
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

static tsr_status receive_bytes(struct net *n, const struct comm_call *c, int from, char *map,
                                size_t bytes, struct comm_trouble *why)
{
    struct arena a;
    size_t count = chunks_of(bytes);
    tsr__arena_init(&a, n->session);
    uint64_t *requests = ARENA_ARRAY(&a, uint64_t, count + 1);
    bool *done = ARENA_ARRAY(&a, bool, count + 1);
    tsr_status st = TSR_OK;
    if (!requests || !done) {
        tsr__trouble(why, TSR_NOMEM, 0, "rank 0 is out of memory");
        st = fail(n, why);
    } else if (!post_chunks(n, from, true, map, bytes, requests)) {
        st = lost(n, c, from, why);
    } else {
        st = complete(n, c, from, requests, done, count, why);
    }
    tsr__arena_free(&a);
    return st;
}

tsr_status tsr__net_take(struct endpoint *e, const struct comm_call *c, int from, int *fd,
                         size_t *bytes, struct comm_trouble *why)
{
    struct net *n = (struct net *)e;
    struct gift_head head = {0};
    uint64_t request;
    bool done = false;
    char *map = NULL;
    if (!n->link->receive(n->link, from, LINK_GIFT, &head, sizeof head, &request))
        return lost(n, c, from, why);
    tsr_status st = complete(n, c, from, &request, &done, 1, why);
    if (st != TSR_OK) {
        if (!done)
            n->link->cancel(n->link, &request);
        return st;
    }
    *fd = head.run == c->run && head.bytes <= INT64_MAX ? make_file((size_t)head.bytes, &map) : -1;
    if (*fd < 0) {
        tsr__trouble(why, TSR_PEER, from, "what rank %d gives of run %llu cannot be taken", from,
                     (unsigned long long)c->run);
        return fail(n, why);
    }
    *bytes = (size_t)head.bytes;
    st = map ? receive_bytes(n, c, from, map, *bytes, why) : TSR_OK;
    if (st != TSR_OK)
        return st; // messages may be under way in that memory
    if (map)
        munmap(map, *bytes);
    return TSR_OK;
}

void tsr__net_drop_gifts(struct net *n)
{
    for (; n->settled < n->given; n->settled++)
        gift_drop(n, n->gifts[n->settled % COMM_GIFTS]);
}
