// SPDX-License-Identifier: Apache-2.0
// hosts.c - ranks on several hosts: those of one host talk through shared memory, others through messages.
//
// A group that lies on one host meets in that host's memory, any other by messages; both fold in group
// order, so it makes no difference to the numbers. Which ranks share a host, and whether they really can map
// the same memory, they find out by messages when they join. Signs of life go by messages always.
#include "transport/net.h"
#include "transport/shm.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

struct hosts {
    struct endpoint endpoint; // first
    tsr_session *session;
    struct endpoint *net, *shm;
    struct shm_job *job;
    bool *here; // [rank]: on this host, and shares memory
};

static struct endpoint *way_of(const struct hosts *h, const struct comm_call *c)
{
    for (int i = 0; i < c->n_group; i++)
        if (!h->here[c->group[i]])
            return h->net;
    return h->shm;
}

// What is learnt on one way is told on the other.
static tsr_status told(const struct hosts *h, tsr_status st, const struct comm_trouble *why)
{
    if (st != TSR_OK) {
        h->net->transport->fail(h->net, why->status, why->rank, why->text);
        h->shm->transport->fail(h->shm, why->status, why->rank, why->text);
    }
    return st;
}

static tsr_status hosts_all_reduce(struct endpoint *e, const struct comm_call *c, const void *in,
                                   void *out, struct comm_trouble *why)
{
    struct hosts *h = (struct hosts *)e;
    struct endpoint *way = way_of(h, c);
    return told(h, way->transport->all_reduce(way, c, in, out, why), why);
}

static tsr_status hosts_exchange(struct endpoint *e, const struct comm_call *c,
                                 struct comm_exchange *x, struct comm_trouble *why)
{
    struct hosts *h = (struct hosts *)e;
    struct endpoint *way = way_of(h, c);
    return told(h, way->transport->exchange(way, c, x, why), why);
}

static void hosts_fail(struct endpoint *e, tsr_status status, int rank, const char *text)
{
    struct hosts *h = (struct hosts *)e;
    h->net->transport->fail(h->net, status, rank, text);
    h->shm->transport->fail(h->shm, status, rank, text);
}

static void hosts_free(struct hosts *h)
{
    tsr_session *s = h->session;
    size_t n = (size_t)h->net->size;
    tsr__comm_close(h->shm);
    tsr__shm_free(s, h->job);
    tsr__free(s, h->here, n * sizeof *h->here);
    tsr__free(s, h, sizeof *h);
}

static void hosts_close(struct endpoint *e)
{
    struct hosts *h = (struct hosts *)e;
    struct endpoint *net = h->net;
    hosts_free(h);
    tsr__comm_close(net);
}

static void *hosts_alloc(struct endpoint *e, size_t bytes)
{
    return tsr__shm_alloc(((struct hosts *)e)->shm, bytes);
}

static bool hosts_release(struct endpoint *e, void *p)
{
    return tsr__shm_release(((struct hosts *)e)->shm, p);
}

static size_t hosts_held(struct endpoint *e)
{
    return tsr__shm_held(((struct hosts *)e)->shm);
}

// What is given goes by messages: they move while the giver works.
static tsr_status hosts_give(struct endpoint *e, const struct comm_call *c, int fd, size_t bytes,
                             struct comm_trouble *why)
{
    struct hosts *h = (struct hosts *)e;
    return told(h, tsr__net_give(h->net, c, fd, bytes, why), why);
}

static tsr_status hosts_settle(struct endpoint *e, const struct comm_call *c,
                               struct comm_trouble *why)
{
    struct hosts *h = (struct hosts *)e;
    return told(h, tsr__net_settle(h->net, c, why), why);
}

static tsr_status hosts_take(struct endpoint *e, const struct comm_call *c, int from, int *fd,
                             size_t *bytes, struct comm_trouble *why)
{
    struct hosts *h = (struct hosts *)e;
    return told(h, tsr__net_take(h->net, c, from, fd, bytes, why), why);
}

static const struct transport hosts_transport = {
    .name = "mpi",
    .all_reduce = hosts_all_reduce,
    .exchange = hosts_exchange,
    .fail = hosts_fail,
    .close = hosts_close,
    .alloc = hosts_alloc,
    .release = hosts_release,
    .held = hosts_held,
    .give = hosts_give,
    .settle = hosts_settle,
    .take = hosts_take,
};

// While a rank waits in shared memory: what do the messages say?
static tsr_status look_at_net(void *data, const struct comm_call *c, int peer,
                              struct comm_trouble *why)
{
    struct net *n = data;
    tsr__beat_tell(n, c, BEAT_WAITING, peer);
    tsr_status st = tsr__beat_look(n, c, peer, why);
    tsr__beat_tell(n, c, BEAT_WORKING, -1);
    return st;
}

// ---- joining -----------------------------------------------------------------------------------

// What a rank tells all others, in three rounds.
struct card {
    uint64_t host;
    int64_t pid, fd, ok;
};

static uint64_t host_id(void)
{
    char boot[64], name[256] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, boot, sizeof boot) : 0;
    if (fd >= 0)
        close(fd);
    gethostname(name, sizeof name - 1);
    return tsr__hash64(name, strlen(name), tsr__hash64(boot, n > 0 ? (size_t)n : 0, 0));
}

static tsr_status deal(struct endpoint *net, const struct card *mine, struct card *all,
                       struct comm_buffer *buffers, int64_t *group, int64_t round,
                       struct comm_trouble *why)
{
    int n = net->size;
    for (int i = 0; i < n; i++) {
        group[i] = i;
        buffers[i] = (struct comm_buffer){.p = (void *)mine, .bytes = sizeof *mine};
        buffers[n + i] = (struct comm_buffer){.p = &all[i], .bytes = sizeof *mine};
    }
    struct comm_call c = {.id = round,
                          .kind = COMM_HANDSHAKE,
                          .type = TSR_UINT8,
                          .group = group,
                          .n_group = n,
                          .op = "handshake",
                          .node = "hosts"};
    return tsr__comm_all_to_all(net, &c, buffers, buffers + n, why);
}

// The memory of this host: made by its first rank, opened by the others.
static bool open_memory(struct hosts *h, const struct card *all, int head, bool make,
                        const struct comm_options *o)
{
    char path[64];
    if (make)
        return tsr__shm_new(h->session, h->net->size, o, &h->job) == TSR_OK;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)all[head].pid,
             (long long)all[head].fd);
    int fd = all[head].fd >= 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
    return fd >= 0 && tsr__shm_map(h->session, fd, h->net->size, o, &h->job) == TSR_OK;
}

// Three rounds: who is on this host; its first rank has made the memory; who could open it.
static tsr_status meet_host(struct hosts *h, const struct comm_options *o, struct card *all,
                            struct comm_buffer *buffers, int64_t *group, struct comm_trouble *why)
{
    struct endpoint *net = h->net;
    struct card mine = {.host = host_id(), .pid = getpid(), .fd = -1};
    tsr_status st = deal(net, &mine, all, buffers, group, 1, why);
    int head = 0;
    while (st == TSR_OK && all[head].host != mine.host)
        head++;
    if (st == TSR_OK && head == net->rank && open_memory(h, all, head, true, o)) {
        mine.fd = tsr__shm_fd(h->job);
        mine.ok = 1;
    }
    if (st == TSR_OK)
        st = deal(net, &mine, all, buffers, group, 2, why);
    if (st == TSR_OK && head != net->rank)
        mine.ok = open_memory(h, all, head, false, o);
    if (st == TSR_OK && mine.ok) {
        h->job->host_ranks = net->host_ranks;
        h->job->host_cores = net->host_cores;
        mine.ok = tsr__shm_endpoint(h->session, h->job, net->rank, &h->shm) == TSR_OK;
    }
    if (!mine.ok)
        tsr_finding_clear(h->session); // without shared memory there are messages
    if (st == TSR_OK)
        st = deal(net, &mine, all, buffers, group, 3, why);
    for (int i = 0; i < net->size && st == TSR_OK; i++)
        h->here[i] = mine.ok && all[i].ok && all[i].host == mine.host;
    return st;
}

tsr_status tsr__hosts_open(tsr_session *s, struct endpoint *net, const struct comm_options *o,
                           struct endpoint **out)
{
    struct arena a;
    struct comm_trouble why = {0};
    size_t n = (size_t)net->size;
    tsr__arena_init(&a, s);
    struct card *all = ARENA_ARRAY(&a, struct card, n);
    struct comm_buffer *buffers = ARENA_ARRAY(&a, struct comm_buffer, 2 * n);
    int64_t *group = ARENA_ARRAY(&a, int64_t, n);
    struct hosts *h = a.failed ? NULL : tsr__alloc(s, sizeof *h);
    bool *here = h ? tsr__alloc(s, n * sizeof *here) : NULL;
    tsr_status st = here ? TSR_OK : TSR_NOMEM;
    if (here) {
        memset(here, 0, n * sizeof *here);
        *h = (struct hosts){.session = s, .net = net, .here = here};
        st = meet_host(h, o, all, buffers, group, &why);
    } else {
        tsr__free(s, h, h ? sizeof *h : 0);
    }
    tsr__arena_free(&a);
    *out = net;
    if (st == TSR_OK && h->shm) {
        struct shm *shm = (struct shm *)h->shm;
        shm->also = look_at_net;
        shm->also_data = net;
        h->endpoint = *net;
        h->endpoint.transport = &hosts_transport;
        *out = &h->endpoint;
        return TSR_OK;
    }
    if (here)
        hosts_free(h);
    if (st != TSR_OK && why.text[0])
        tsr__diag(s, DIAG_rank_failed, NULL, "see what that rank says", "%s", why.text);
    return st;
}
