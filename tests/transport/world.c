// SPDX-License-Identifier: Apache-2.0
// world.c - see world.h. A box holds the messages (letters) from one rank to another on one
// channel, in order, and the posted receives: the k-th message goes to the k-th receive, whichever
// is tested first. As in MPI, small messages are done when sent, large ones when received. Memory
// is freed at the end, since failed jobs leave messages.
#include "world.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define EAGER 4096

struct letter {
    struct letter *next, *all;
    const void *p;
    size_t bytes;
    bool taken;
    int from;
    double comes_s; // not received before that time
    char copy[];
};
// A request: a receive from a box, or a large message that is being sent.
struct ask {
    struct ask *all, *next;
    struct box *box;
    struct letter *letter; // NULL: done when sent
    void *p;
    size_t bytes, got;
    int done; // result of a receive: what `test` returns
    int rank; // rank that receives
};
struct box {
    struct letter *first, **last;
    struct ask *first_ask, **last_ask;
    int sent; // letters so far
};
struct mailbox_link {
    struct link link; // must be the first member
    struct mailbox_net *net;
    bool mute;
    double late_s; // delay of its messages
    int calls;     // number of calls so far
};
struct mailbox_net {
    pthread_mutex_t lock;
    struct box boxes[MAX_WORLD][MAX_WORLD][LINK_CHANNELS];
    struct mailbox_link links[MAX_WORLD];
    struct letter *letters;
    struct ask *asks;
};

static struct ask *ask_new(struct mailbox_net *n, struct ask value, uint64_t *request)
{
    struct ask *a = malloc(sizeof *a);
    *a = value;
    a->all = n->asks;
    n->asks = a;
    *request = (uint64_t)(uintptr_t)a;
    return a;
}

static bool box_send(struct link *l, int peer, int channel, const void *p, size_t bytes,
                     uint64_t *request)
{
    struct mailbox_link *m = (struct mailbox_link *)l;
    bool eager = bytes <= EAGER;
    struct letter *t = calloc(1, sizeof *t + (eager ? bytes : 0));
    t->bytes = bytes;
    t->from = l->rank;
    t->p = eager ? t->copy : p;
    if (eager)
        memcpy(t->copy, p, bytes);
    pthread_mutex_lock(&m->net->lock);
    m->calls++;
    if (channel == LINK_DATA)
        t->comes_s = tsr__now_s() + m->late_s;
    t->all = m->net->letters;
    m->net->letters = t;
    ask_new(m->net, (struct ask){.letter = eager ? NULL : t}, request);
    struct box *b = &m->net->boxes[l->rank][peer][channel];
    b->sent++;
    if (!m->mute) { // otherwise the message is lost
        *b->last = t;
        b->last = &t->next;
    }
    pthread_mutex_unlock(&m->net->lock);
    return true;
}

static bool box_receive(struct link *l, int peer, int channel, void *p, size_t bytes,
                        uint64_t *request)
{
    struct mailbox_link *m = (struct mailbox_link *)l;
    struct box *b = &m->net->boxes[peer][l->rank][channel];
    pthread_mutex_lock(&m->net->lock);
    m->calls++;
    struct ask *ask =
        ask_new(m->net, (struct ask){.box = b, .p = p, .bytes = bytes, .rank = l->rank}, request);
    *b->last_ask = ask;
    b->last_ask = &ask->next;
    pthread_mutex_unlock(&m->net->lock);
    return true;
}

// Matches arrived messages with posted receives, both in order.
static void deliver(struct box *b)
{
    while (b->first && b->first_ask && b->first->comes_s <= tsr__now_s()) {
        struct letter *t = b->first;
        struct ask *ask = b->first_ask;
        b->first = t->next;
        if (!b->first)
            b->last = &b->first;
        b->first_ask = ask->next;
        if (!b->first_ask)
            b->last_ask = &b->first_ask;
        t->taken = true;
        ask->got = t->bytes;
        ask->done = t->bytes > ask->bytes ? -1 : 1; // truncation is an error, as in MPI
        if (ask->done == 1)
            memcpy(ask->p, t->p, t->bytes);
    }
}

static int box_test(struct link *l, uint64_t *request, size_t *bytes)
{
    struct mailbox_link *m = (struct mailbox_link *)l;
    struct ask *a = (struct ask *)(uintptr_t)*request;
    int done = 0;
    pthread_mutex_lock(&m->net->lock);
    m->calls++;
    if (a->box && a->done) {
        done = a->done;
    } else if (!m->mute && a->box) {
        deliver(a->box);
        done = a->done;
        if (done == 1 && bytes)
            *bytes = a->got;
    } else if (!m->mute) {
        done = !a->letter || a->letter->taken;
    }
    pthread_mutex_unlock(&m->net->lock);
    return done;
}

// Call with the lock held. Nothing is delivered to the receive afterwards.
static void end_ask(struct ask *a)
{
    struct ask **at = &a->box->first_ask;
    while (*at && *at != a)
        at = &(*at)->next;
    if (*at) {
        *at = a->next;
        a->done = -1;
    }
    a->box->last_ask = &a->box->first_ask;
    while (*a->box->last_ask)
        a->box->last_ask = &(*a->box->last_ask)->next;
}

static void box_cancel(struct link *l, uint64_t *request)
{
    struct mailbox_link *m = (struct mailbox_link *)l;
    pthread_mutex_lock(&m->net->lock);
    m->calls++;
    end_ask((struct ask *)(uintptr_t)*request);
    pthread_mutex_unlock(&m->net->lock);
}

static void box_failed(struct link *l)
{
    (void)l;
}

static struct mailbox_net *boxes_new(int n, int cores, bool crowded)
{
    struct mailbox_net *b = calloc(1, sizeof *b);
    pthread_mutex_init(&b->lock, NULL);
    for (int i = 0; i < n; i++) {
        b->links[i] = (struct mailbox_link){.net = b,
                                            .link = {.abi = LINK_ABI,
                                                     .rank = i,
                                                     .size = n,
                                                     .host_ranks = n,
                                                     .host_cores = cores,
                                                     .crowded = crowded,
                                                     .threads = true,
                                                     .library = "mailboxes",
                                                     .send = box_send,
                                                     .receive = box_receive,
                                                     .test = box_test,
                                                     .cancel = box_cancel,
                                                     .withdraw = box_cancel,
                                                     .failed = box_failed}};
        for (int k = 0; k < n; k++)
            for (int c = 0; c < LINK_CHANNELS; c++)
                b->boxes[i][k][c] = (struct box){.last = &b->boxes[i][k][c].first,
                                                 .last_ask = &b->boxes[i][k][c].first_ask};
    }
    return b;
}

static void boxes_free(struct mailbox_net *b)
{
    while (b->letters) {
        struct letter *t = b->letters;
        b->letters = t->all;
        free(t);
    }
    while (b->asks) {
        struct ask *a = b->asks;
        b->asks = a->all;
        free(a);
    }
    pthread_mutex_destroy(&b->lock);
    free(b);
}

int world_sent(struct world *w, int from, int to)
{
    pthread_mutex_lock(&w->boxes->lock);
    int sent = w->boxes->boxes[from][to][LINK_DATA].sent;
    pthread_mutex_unlock(&w->boxes->lock);
    return sent;
}

bool world_reaches(struct world *w, int rank, const void *p, size_t bytes)
{
    bool reaches = false;
    const char *from = p, *to = from + bytes;
    pthread_mutex_lock(&w->boxes->lock);
    for (const struct letter *t = w->boxes->letters; t; t = t->all) {
        const char *at = t->p;
        reaches |= t->from == rank && !t->taken && at >= from && at < to;
    }
    for (const struct ask *a = w->boxes->asks; a; a = a->all) {
        const char *at = a->p;
        reaches |= a->box && a->rank == rank && !a->done && at >= from && at < to;
    }
    pthread_mutex_unlock(&w->boxes->lock);
    return reaches;
}

int world_calls(struct world *w, int rank)
{
    pthread_mutex_lock(&w->boxes->lock);
    int calls = w->boxes->links[rank].calls;
    pthread_mutex_unlock(&w->boxes->lock);
    return calls;
}

void world_mute(struct world *w, int rank)
{
    pthread_mutex_lock(&w->boxes->lock);
    w->boxes->links[rank].mute = true;
    pthread_mutex_unlock(&w->boxes->lock);
}

void world_delay(struct world *w, int rank, double late_s)
{
    pthread_mutex_lock(&w->boxes->lock);
    w->boxes->links[rank].late_s = late_s;
    pthread_mutex_unlock(&w->boxes->lock);
}

// ---- UCX ----------------------------------------------------------------------------------------

struct joiner {
    struct world *w;
    struct comm_options options;
    tsr_status status;
};

static void *join_ucx(void *data)
{
    struct joiner *j = data;
    j->status = tsr__ucx_open(j->w->own[j->options.rank], &j->options, &j->w->e[j->options.rank]);
    return NULL;
}

// Returns a socket bound to a free loopback port. Rank 0 can listen on that port too, because this
// socket does not listen. The system assigns it to no other process until the socket is closed.
static int reserve_port(int *port)
{
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)(void *)&address, bytes), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)(void *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

// Every rank waits for all others while it opens, so each has a thread.
static void open_ucx(struct world *w, int n, double timeout_s)
{
    int port;
    pthread_t threads[MAX_WORLD];
    struct joiner joiners[MAX_WORLD];
    const char *folder = getenv("TESSERA_UCX");
    if (!folder)
        skip();
    int reserved = reserve_port(&port);
    *w = (struct world){.n = n, .net = true, .ucx = true, .session = tsr_session_new(NULL)};
    for (int i = 0; i < n; i++) {
        w->own[i] = tsr_session_new(NULL);
        joiners[i] = (struct joiner){.w = w,
                                     .options = {.timeout_s = timeout_s,
                                                 .plugins = folder,
                                                 .messages_only = true,
                                                 .rank = i,
                                                 .ranks = n,
                                                 .port = port}};
        pthread_create(&threads[i], NULL, join_ucx, &joiners[i]);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    close(reserved);
    for (int i = 0; i < n; i++) {
        for (size_t k = 0; k < tsr_finding_count(w->own[i]); k++)
            print_error("rank %d: %s", i, tsr_finding_text(w->own[i], k));
        assert_int_equal(joiners[i].status, TSR_OK);
        w->messages[i] = w->e[i];
    }
}

// ---- hosts --------------------------------------------------------------------------------------

// A rank that joins the others of its host.
struct lodger {
    struct world *w;
    int rank;
    uint64_t host;
    double timeout_s;
    tsr_status status;
};

static void *join_host(void *data)
{
    struct lodger *lodger = data;
    struct comm_options options = {.timeout_s = lodger->timeout_s};
    struct world *w = lodger->w;
    lodger->status = tsr__hosts_open(w->own[lodger->rank], w->messages[lodger->rank], lodger->host,
                                     &options, &w->e[lodger->rank]);
    return NULL;
}

// Every rank waits for all others while it joins. hosts: a letter per rank; NULL: two halves.
static void join_hosts(struct world *w, const char *hosts, double timeout_s)
{
    pthread_t threads[MAX_WORLD];
    struct lodger lodgers[MAX_WORLD];
    for (int i = 0; i < w->n; i++) {
        uint64_t host = hosts ? (uint64_t)hosts[i] : 1 + (uint64_t)(2 * i >= w->n + w->n % 2);
        lodgers[i] = (struct lodger){.w = w, .rank = i, .host = host, .timeout_s = timeout_s};
        pthread_create(&threads[i], NULL, join_host, &lodgers[i]);
    }
    for (int i = 0; i < w->n; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < w->n; i++)
        assert_int_equal(lodgers[i].status, TSR_OK);
}

void world_open(struct world *w, int n, const char *kind, double timeout_s)
{
    bool hosts = kind && strncmp(kind, "hosts", 5) == 0;
    bool crowded = kind && strcmp(kind, "crowded") == 0;
    bool net = hosts || crowded || (kind && strcmp(kind, "net") == 0);
    bool shm = kind && strcmp(kind, "shm") == 0;
    if (kind && strcmp(kind, "ucx") == 0) {
        open_ucx(w, n, timeout_s);
        return;
    }
    struct comm_options o = {.timeout_s = timeout_s};
    *w = (struct world){.n = n, .net = net, .shm = shm, .session = tsr_session_new(NULL)};
    if (net)
        w->boxes = boxes_new(n, 2, crowded);
    else if (shm)
        assert_int_equal(tsr__shm_new(w->session, n, &o, &w->memory), TSR_OK);
    else
        w->job = tsr__threads_new(w->session, n);
    for (int i = 0; i < n; i++) {
        w->own[i] = tsr_session_new(NULL);
        if (net)
            assert_int_equal(
                tsr__net_open(w->own[i], &w->boxes->links[i].link, NULL, 1, &o, &w->e[i]), TSR_OK);
        else if (shm)
            assert_int_equal(tsr__shm_endpoint(w->own[i], w->memory, i, &w->e[i]), TSR_OK);
        else
            w->e[i] = tsr__threads_endpoint(w->job, i);
        w->messages[i] = w->e[i];
    }
    if (hosts)
        join_hosts(w, kind[5] ? kind + 6 : NULL, timeout_s);
}

struct endpoint *actor_endpoint(struct actor *a)
{
    return a->w->e[a->rank];
}

float input_of(int rank, int64_t i)
{
    return (float)((rank + 1) * 1000003 % 977) / 7.0F + (float)(i * 31 % INPUT_PERIOD) / 3.0F;
}

void repeat_bytes(void *data, size_t bytes, size_t period)
{
    char *p = data;
    for (size_t at = period; at < bytes; at += period)
        memcpy(p + at, p, bytes - at < period ? bytes - at : period);
}

float *sums_of(int n, int64_t count)
{
    float *x = malloc((size_t)(count + 1) * sizeof *x);
    for (int64_t i = 0; i < count && i < INPUT_PERIOD; i++) {
        x[i] = input_of(0, i);
        for (int k = 1; k < n; k++)
            x[i] += input_of(k, i);
    }
    repeat_bytes(x, (size_t)count * sizeof *x, INPUT_PERIOD * sizeof *x);
    return x;
}

float *inputs_of(int rank, int64_t count)
{
    float *x = malloc((size_t)(count + 1) * sizeof *x);
    for (int64_t i = 0; i < count && i < INPUT_PERIOD; i++)
        x[i] = input_of(rank, i);
    repeat_bytes(x, (size_t)count * sizeof *x, INPUT_PERIOD * sizeof *x);
    return x;
}

static void *actor_thread(void *data)
{
    struct actor *a = data;
    a->act(a);
    // otherwise closing frees it; a failure reported by another rank may come that late
    if (a->w->net)
        a->w->failed[a->rank] = atomic_load(&((struct net *)a->w->messages[a->rank])->failed);
    tsr__comm_close(actor_endpoint(a));
    return NULL;
}

void world_run(struct world *w, struct actor *actors, void (*act)(struct actor *), void *data)
{
    pthread_t threads[MAX_WORLD];
    for (int i = 0; i < w->n; i++) {
        actors[i] = (struct actor){.w = w, .rank = i, .act = act, .data = data};
        pthread_create(&threads[i], NULL, actor_thread, &actors[i]);
    }
    for (int i = 0; i < w->n; i++)
        pthread_join(threads[i], NULL);
}

// A process would simply end. A frozen link is never closed, since closing would make it progress.
static void end_ucx(struct net *net)
{
    static struct link *frozen[16];
    static size_t n_frozen;
    if (!net->frozen)
        net->link->close(net->link);
    else if (n_frozen < TSR_COUNT(frozen))
        frozen[n_frozen++] = net->link;
}

void world_close(struct world *w)
{
    tsr__threads_free(w->job);
    tsr__shm_free(w->session, w->memory);
    if (w->boxes)
        boxes_free(w->boxes);
    for (int i = 0; i < w->n; i++) {
        if (w->ucx && w->failed[i])
            end_ucx((struct net *)w->messages[i]);
        if (w->net && w->failed[i])
            tsr__net_free(w->messages[i]);
        tsr_session_free(w->own[i]);
    }
    tsr_session_free(w->session);
}
