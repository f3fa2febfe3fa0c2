// SPDX-License-Identifier: Apache-2.0
// standin_nccl.c - NCCL of the stand-in, for threads of one process. Members of a group wait for
// each other on their streams, as NCCL's kernels do, and wait forever if one is missing.
#include "standin.h"
#include "transport/transport.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEMBERS 16

struct id {
    char bytes[128];
};
// One message that has not been received yet.
struct mail {
    const void *p;
    size_t bytes;
    bool full;
};
struct group {
    struct id id;
    int members, joined;
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint64_t arrived, left; // counts of all-reduces
    const void *in[MEMBERS];
    struct mail mail[MEMBERS][MEMBERS];
    bool aborted;
    struct group *next;
};
struct comm {
    struct group *group;
    int self;
};
static struct group *groups;
static pthread_mutex_t groups_lock = PTHREAD_MUTEX_INITIALIZER;
static int next_id;

EXPORT int ncclGetVersion(int *out)
{
    *out = 23007;
    return getenv("STANDIN_NO_NCCL") ? 1 : 0;
}

EXPORT const char *ncclGetErrorString(int code)
{
    return code ? "the stand-in was told to fail" : "no error";
}

EXPORT int ncclGetUniqueId(struct id *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&groups_lock);
    int number = ++next_id;
    pthread_mutex_unlock(&groups_lock);
    memcpy(out->bytes, &number, sizeof number);
    return 0;
}

static struct group *group_of(const struct id *id, int members)
{
    struct group *g;
    pthread_mutex_lock(&groups_lock);
    for (g = groups; g; g = g->next)
        if (memcmp(&g->id, id, sizeof *id) == 0)
            break;
    if (!g) {
        g = calloc(1, sizeof *g);
        g->id = *id;
        g->members = members;
        pthread_mutex_init(&g->lock, NULL);
        pthread_cond_init(&g->change, NULL);
        g->next = groups;
        groups = g;
    }
    pthread_mutex_unlock(&groups_lock);
    return g;
}

EXPORT int ncclCommInitRank(void **out, int members, struct id id, int self)
{
    if (standin_fails("ncclCommInitRank"))
        return 1;
    const char *more = getenv("STANDIN_JOINS"); // number of ranks to wait for
    if (more)
        members = (int)strtol(more, NULL, 10);
    struct group *g = group_of(&id, members);
    struct comm *c = calloc(1, sizeof *c);
    *c = (struct comm){g, self};
    pthread_mutex_lock(&g->lock);
    g->joined++;
    pthread_cond_broadcast(&g->change);
    while (g->joined < members && !g->aborted)
        pthread_cond_wait(&g->change, &g->lock);
    pthread_mutex_unlock(&g->lock);
    *out = c;
    return 0;
}

// As in NCCL, this frees the communicator: ranks must not use it afterwards.
EXPORT int ncclCommAbort(void *comm)
{
    struct group *g = ((struct comm *)comm)->group;
    pthread_mutex_lock(&g->lock);
    g->aborted = true;
    pthread_cond_broadcast(&g->change);
    pthread_mutex_unlock(&g->lock);
    free(comm);
    return 0;
}

EXPORT int ncclCommDestroy(void *comm)
{
    free(comm);
    return 0;
}

// ---- all-reduce --------------------------------------------------------------------------------

struct sum {
    struct comm comm;
    const void *in;
    void *out;
    size_t count;
    int type, op;
};

// Waits until all members of the group have incremented the counter.
static bool meet(struct group *g, uint64_t *counter)
{
    uint64_t mine = (*counter)++, goal = (mine / (uint64_t)g->members + 1) * (uint64_t)g->members;
    pthread_cond_broadcast(&g->change);
    while (*counter < goal && !g->aborted)
        pthread_cond_wait(&g->change, &g->lock);
    return !g->aborted;
}

static void do_sum(void *data)
{
    static const tsr_dtype types[] = {TSR_INT8,   TSR_UINT8,   TSR_INT32, TSR_UINT32, TSR_INT64,
                                      TSR_UINT64, TSR_FLOAT16, TSR_FLOAT, TSR_DOUBLE, TSR_BFLOAT16};
    static const enum comm_reduce ops[] = {COMM_SUM, COMM_PROD, COMM_MAX, COMM_MIN};
    struct sum *s = data;
    struct group *g = s->comm.group;
    size_t bytes = s->count * tsr__elem_bytes(types[s->type]);
    void *kept = malloc(bytes + 1);
    pthread_mutex_lock(&g->lock);
    g->in[s->comm.self] = s->in;
    bool all = meet(g, &g->arrived);
    if (all)
        tsr__reduce(types[s->type], ops[s->op], g->in, g->members, &kept, 1, 0, (int64_t)s->count);
    if (all && meet(g, &g->left))
        memcpy(s->out, kept, bytes);
    pthread_mutex_unlock(&g->lock);
    free(kept);
}

EXPORT int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, void *comm,
                         void *stream)
{
    if (standin_fails("ncclAllReduce"))
        return 1;
    if (standin_fails("lost ncclAllReduce"))
        return 0;  // simulates a kernel that never runs
    standin_nap(); // so that an abort can come in between
    struct sum s = {*(struct comm *)comm, in, out, count, type, op};
    if (getenv("STANDIN_HOST_WAITS"))
        do_sum(&s);
    else
        standin_put(stream, do_sum, &s, sizeof s);
    return 0;
}

// ---- messages ----------------------------------------------------------------------------------

struct message {
    void *p;
    size_t bytes;
    int peer;
    bool send;
};
struct bundle {
    struct comm comm;
    struct message at[2 * MEMBERS];
    int n;
};
static _Thread_local struct bundle open_bundle;
static _Thread_local void *bundle_stream;

EXPORT int ncclGroupStart(void)
{
    memset(&open_bundle, 0, sizeof open_bundle);
    return 0;
}

static int add(void *p, size_t bytes, int peer, void *comm, void *stream, bool send)
{
    standin_nap();
    open_bundle.comm = *(struct comm *)comm;
    bundle_stream = stream;
    open_bundle.at[open_bundle.n++] = (struct message){p, bytes, peer, send};
    return 0;
}

EXPORT int ncclSend(const void *p, size_t count, int type, int peer, void *comm, void *stream)
{
    (void)type;
    return add((void *)p, count, peer, comm, stream, true);
}

EXPORT int ncclRecv(void *p, size_t count, int type, int peer, void *comm, void *stream)
{
    (void)type;
    return add(p, count, peer, comm, stream, false);
}

// Posts all sends, then receives everything, then waits until all sends were received.
static void do_bundle(void *data)
{
    struct bundle *b = data;
    struct group *g = b->comm.group;
    int self = b->comm.self;
    pthread_mutex_lock(&g->lock);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < b->n; i++) {
            struct message *m = &b->at[i];
            struct mail *out = &g->mail[self][m->peer], *in = &g->mail[m->peer][self];
            while (round == 0 && m->send && out->full && !g->aborted)
                pthread_cond_wait(&g->change, &g->lock);
            if (round == 0 && m->send)
                *out = (struct mail){m->p, m->bytes, true};
            while (round == 1 && !m->send && !in->full && !g->aborted)
                pthread_cond_wait(&g->change, &g->lock);
            if (round == 1 && !m->send && in->full && !g->aborted) {
                memcpy(m->p, in->p, in->bytes < m->bytes ? in->bytes : m->bytes);
                in->full = false;
            }
            while (round == 2 && m->send && out->full && !g->aborted)
                pthread_cond_wait(&g->change, &g->lock);
            pthread_cond_broadcast(&g->change);
        }
    pthread_mutex_unlock(&g->lock);
}

EXPORT int ncclGroupEnd(void)
{
    if (open_bundle.n)
        standin_put(bundle_stream, do_bundle, &open_bundle, sizeof open_bundle);
    return 0;
}
