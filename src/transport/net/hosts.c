// SPDX-License-Identifier: Apache-2.0
// hosts.c - ranks on several hosts: shared memory inside a host, messages between hosts.
//
// A group on one host uses that host's memory. A group that spans hosts uses both (by_hosts.c), or
// messages between all its members. All fold in group order, so the results are equal. When the
// ranks join, they find out by messages which of them share a host and can map the same memory.
// Heartbeats always use messages.
//
// Example: ranks 0 to 3 on host a, 4 to 7 on b: a group {0, 1, 2, 3} uses a's memory, {2, 5}
// messages, {0, 1, 4, 5} both. A failure that is reported on one path is forwarded to the other at
// once, so that ranks which wait in memory and ranks which wait for messages both end.
#include "transport/net/hosts.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static struct endpoint *path_of_group(const struct hosts *hosts, const int64_t *group, int n)
{
    for (int i = 0; i < n; i++)
        if (hosts->host[group[i]] != hosts->host[hosts->net->rank])
            return hosts->net;
    return hosts->shm;
}

static const char *hosts_method(const struct endpoint *endpoint, const int64_t *group, int n)
{
    return tsr__comm_method(path_of_group((const struct hosts *)endpoint, group, n), group, n);
}

// Reports a failure on both paths, the network and the shared memory.
static tsr_status forward_failure(const struct hosts *hosts, tsr_status st,
                                  const struct comm_trouble *why)
{
    if (st != TSR_OK) {
        tsr__comm_give_up(hosts->net, why);
        tsr__comm_give_up(hosts->shm, why);
    }
    return st;
}

// Runs a call on its path. Counts it: a rank that waits, continues and waits again is not part of a
// deadlock (net_beat.c).
static tsr_status run_call(struct hosts *hosts, const struct hosts_call *what,
                           struct comm_trouble *why)
{
    const struct comm_call *call = what->call;
    struct endpoint *path = path_of_group(hosts, call->group, call->n_group);
    bool mine = false;
    atomic_fetch_add(&((struct net *)hosts->net)->calls, 1);
    if (path == hosts->net)
        TRY(tsr__by_hosts(hosts, what, &mine, why));
    if (mine)
        return TSR_OK;
    if (what->exchange)
        return path->transport->exchange(path, call, what->exchange, why);
    tsr_status st = path->transport->all_reduce(path, call, what->in, what->out, why);
    hosts->endpoint.algorithm = path->algorithm;
    return st;
}

static tsr_status hosts_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                                   const void *in, void *out, struct comm_trouble *why)
{
    struct hosts *hosts = (struct hosts *)endpoint;
    struct hosts_call what = {.call = call, .in = in, .out = out};
    return forward_failure(hosts, run_call(hosts, &what, why), why);
}

static tsr_status hosts_exchange(struct endpoint *endpoint, const struct comm_call *call,
                                 struct comm_exchange *exchange, struct comm_trouble *why)
{
    struct hosts *hosts = (struct hosts *)endpoint;
    struct hosts_call what = {.call = call, .exchange = exchange};
    return forward_failure(hosts, run_call(hosts, &what, why), why);
}

static void hosts_fail(struct endpoint *endpoint, tsr_status status, int rank, const char *text)
{
    struct hosts *hosts = (struct hosts *)endpoint;
    hosts->net->transport->fail(hosts->net, status, rank, text);
    hosts->shm->transport->fail(hosts->shm, status, rank, text);
}

static void hosts_leave(struct endpoint *endpoint, tsr_status status, int rank, const char *text)
{
    struct hosts *hosts = (struct hosts *)endpoint;
    hosts->net->transport->leave(hosts->net, status, rank, text);
    hosts->shm->transport->leave(hosts->shm, status, rank, text);
}

static bool hosts_failure(struct endpoint *endpoint, struct comm_trouble *why)
{
    const struct hosts *hosts = (struct hosts *)endpoint;
    struct comm_trouble other;
    bool found = tsr__comm_failure(hosts->shm, why);
    if (found && why->rank != endpoint->rank)
        return true;
    // the cause of this rank's failure may be known to the network alone
    if (!tsr__comm_failure(hosts->net, &other))
        return found;
    *why = other;
    return true;
}

// Frees the struct and the shared memory, but does not close the network endpoint `net`.
static void hosts_free(struct hosts *hosts)
{
    struct arena memory = hosts->memory;
    tsr__comm_close(hosts->shm);
    tsr__shm_free(hosts->session, hosts->job);
    tsr__free(hosts->session, hosts->scratch, hosts->scratch_bytes);
    tsr__arena_free(&memory);
}

static void hosts_close(struct endpoint *endpoint)
{
    struct hosts *hosts = (struct hosts *)endpoint;
    struct endpoint *net = hosts->net;
    hosts_free(hosts);
    tsr__comm_close(net);
}

static void *hosts_alloc(struct endpoint *endpoint, size_t bytes)
{
    return tsr__shm_alloc(((struct hosts *)endpoint)->shm, bytes);
}

static bool hosts_release(struct endpoint *endpoint, void *p)
{
    return tsr__shm_release(((struct hosts *)endpoint)->shm, p);
}

static size_t hosts_held(struct endpoint *endpoint)
{
    return tsr__shm_held(((struct hosts *)endpoint)->shm);
}

// Sends a file to rank 0, by messages: they make progress while the rank computes.
static tsr_status hosts_give(struct endpoint *endpoint, const struct comm_call *call, int fd,
                             size_t bytes, struct comm_trouble *why)
{
    struct hosts *hosts = (struct hosts *)endpoint;
    return forward_failure(hosts, tsr__net_give(hosts->net, call, fd, bytes, why), why);
}

static tsr_status hosts_settle(struct endpoint *endpoint, const struct comm_call *call,
                               struct comm_trouble *why)
{
    struct hosts *hosts = (struct hosts *)endpoint;
    return forward_failure(hosts, tsr__net_settle(hosts->net, call, why), why);
}

static tsr_status hosts_take(struct endpoint *endpoint, const struct comm_call *call, int from,
                             int *fd, size_t *bytes, struct comm_trouble *why)
{
    struct hosts *hosts = (struct hosts *)endpoint;
    return forward_failure(hosts, tsr__net_take(hosts->net, call, from, fd, bytes, why), why);
}

static const struct transport hosts_transport = {
    .name = "mpi",
    .all_reduce = hosts_all_reduce,
    .exchange = hosts_exchange,
    .fail = hosts_fail,
    .leave = hosts_leave,
    .failure = hosts_failure,
    .close = hosts_close,
    .alloc = hosts_alloc,
    .release = hosts_release,
    .held = hosts_held,
    .give = hosts_give,
    .settle = hosts_settle,
    .take = hosts_take,
    .method = hosts_method,
};

// Checks heartbeats and failures of the network while a rank waits in shared memory.
static tsr_status check_net(void *data, const struct comm_call *call, int peer,
                            struct comm_trouble *why)
{
    struct net *net = data;
    tsr__beat_publish(net, call, BEAT_WAITING, peer);
    tsr_status st = tsr__beat_check(net, call, peer, why);
    tsr__beat_publish(net, call, BEAT_WORKING, -1);
    return st;
}

// ---- joining ------------------------------------------------------------------------------------

// Facts that a rank publishes, in three rounds.
struct card {
    uint64_t host;
    int64_t pid, fd, ok;
};

// Returns a number for this host, a hash of boot id and host name. So containers of one machine
// with different names are different hosts.
uint64_t tsr__host_id(void)
{
    char boot[64], name[256] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, boot, sizeof boot) : 0;
    if (fd >= 0)
        close(fd);
    gethostname(name, sizeof name - 1);
    return tsr__hash64(name, strlen(name), tsr__hash64(boot, n > 0 ? (size_t)n : 0, 0));
}

// Exchanges one card with every rank. The number of the round is compared, so that ranks in
// different rounds are detected.
static tsr_status deal(struct endpoint *net, const struct card *mine, struct card *all,
                       int64_t round, struct comm_trouble *why)
{
    struct comm_call call = {
        .id = round, .kind = COMM_HANDSHAKE, .type = TSR_UINT8, .op = "handshake", .node = "hosts"};
    return tsr__comm_share_all(net, &call, mine, sizeof *mine, all, why);
}

// Creates the memory of this host. Its first rank does this; the others open it.
static bool make_memory(struct hosts *hosts, const struct comm_options *options)
{
    return tsr__shm_new(hosts->session, hosts->net->size, options, &hosts->job) == TSR_OK;
}

static bool open_memory(struct hosts *hosts, const struct card *head,
                        const struct comm_options *options)
{
    char path[64];
    if (head->fd < 0)
        return false; // the first rank could not create it
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)head->pid, (long long)head->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    return tsr__shm_map(hosts->session, fd, hosts->net->size, options, &hosts->job) == TSR_OK;
}

// Connects the ranks of this host. In three rounds all ranks exchange: their host; the memory that
// the first rank of each host has created; whether they could open it.
static tsr_status meet_host(struct hosts *hosts, uint64_t host, const struct comm_options *options,
                            struct card *all, struct comm_trouble *why)
{
    struct endpoint *net = hosts->net;
    struct card mine = {.host = host, .pid = getpid(), .fd = -1};
    TRY(deal(net, &mine, all, 1, why));
    int head = 0;
    // Ends at this rank at the latest.
    while (all[head].host != mine.host)
        head++;
    if (head == net->rank && make_memory(hosts, options)) {
        mine.fd = tsr__shm_fd(hosts->job);
        mine.ok = 1;
    }
    if (!mine.ok)
        tsr_finding_clear(hosts->session); // without shared memory, messages are used
    TRY(deal(net, &mine, all, 2, why));
    if (head != net->rank)
        mine.ok = open_memory(hosts, &all[head], options);
    if (mine.ok) {
        hosts->job->host_ranks = net->host_ranks;
        hosts->job->host_cores = net->host_cores;
        mine.ok = tsr__shm_endpoint(hosts->session, hosts->job, net->rank, &hosts->shm) == TSR_OK;
    }
    if (!mine.ok)
        tsr_finding_clear(hosts->session);
    TRY(deal(net, &mine, all, 3, why));
    // A rank that could not open the memory is reached by messages, also from its own host: it gets
    // a number of its own.
    hosts->joined = true;
    for (int i = 0; i < net->size; i++) {
        hosts->joined &= all[i].ok != 0;
        hosts->host[i] = all[i].ok ? all[i].host : all[i].host + 1 + (uint64_t)i;
    }
    return TSR_OK;
}

static struct hosts *hosts_new(tsr_session *session, struct endpoint *net)
{
    struct arena memory = {.session = session};
    struct hosts *hosts = ARENA_NEW(&memory, struct hosts);
    uint64_t *host = ARENA_ARRAY(&memory, uint64_t, (size_t)net->size);
    if (memory.failed) {
        tsr__arena_free(&memory);
        return NULL;
    }
    *hosts = (struct hosts){.session = session, .memory = memory, .net = net, .host = host};
    return hosts;
}

// Finds the ranks of this host: allocates the list for meet_host and calls it.
static tsr_status find_host(struct hosts *hosts, uint64_t host, const struct comm_options *options,
                            struct comm_trouble *why)
{
    struct arena arena = {.session = hosts->session};
    struct card *all = ARENA_ARRAY(&arena, struct card, (size_t)hosts->net->size);
    tsr_status st = all ? meet_host(hosts, host, options, all, why) : TSR_NOMEM;
    tsr__arena_free(&arena);
    return st;
}

// Opens the endpoint: ranks on one host share memory, all others use the network. A rank that
// cannot open its host's memory keeps the network's endpoint.
tsr_status tsr__hosts_open(tsr_session *session, struct endpoint *net, uint64_t host,
                           const struct comm_options *options, struct endpoint **out)
{
    struct comm_trouble why = {0};
    struct hosts *hosts = hosts_new(session, net);
    *out = net;
    if (!hosts)
        return TSR_NOMEM;
    tsr_status st = find_host(hosts, host, options, &why);
    if (st != TSR_OK && why.text[0])
        tsr__diag(session, DIAG_rank_failed, NULL, "see the messages of that rank", "%s", why.text);
    if (st != TSR_OK || !hosts->shm) {
        hosts_free(hosts);
        return st;
    }
    struct shm *shm = (struct shm *)hosts->shm;
    // A rank that waits in memory still checks the heartbeats, which go by messages.
    shm->also = check_net;
    shm->also_data = net;
    hosts->endpoint = *net;
    hosts->endpoint.transport = &hosts_transport;
    *out = &hosts->endpoint;
    return TSR_OK;
}

tsr_status tsr__hosts_join(tsr_session *session, const struct comm_options *options,
                           struct endpoint **out)
{
    struct endpoint *net = *out;
    tsr_status st = tsr__hosts_open(session, net, tsr__host_id(), options, out);
    if (st == TSR_OK)
        return st;
    tsr__comm_fail(net, st, "the ranks of a host could not be connected");
    tsr__comm_close(net);
    *out = NULL;
    return st;
}
