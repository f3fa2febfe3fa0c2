// SPDX-License-Identifier: Apache-2.0
// standin_nccl.c - NCCL of the stand-in, for threads of one process. Members of a group wait for
// each other on their streams, as NCCL's kernels do, and wait forever if one is missing.
#include "standin.h"
#include "transport/transport.h"

#include <pthread.h>
#include <stdio.h>
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

// ---- collectives --------------------------------------------------------------------------------

enum what { ALL_REDUCE, REDUCE_SCATTER, REDUCE, ALL_GATHER, BROADCAST };
struct joint_call {
    struct comm comm;
    enum what what;
    const void *in;
    void *out;
    size_t count;
    int type, op, root;
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

static const tsr_dtype types[] = {TSR_INT8,   TSR_UINT8,   TSR_INT32, TSR_UINT32, TSR_INT64,
                                  TSR_UINT64, TSR_FLOAT16, TSR_FLOAT, TSR_DOUBLE, TSR_BFLOAT16};

// NCCL does not specify the order of additions: this adds in reverse order.
static void reduce(const struct joint_call *c, void *out)
{
    static const enum comm_reduce ops[] = {COMM_SUM, COMM_PROD, COMM_MAX, COMM_MIN};
    const struct group *g = c->comm.group;
    const void *in[MEMBERS];
    size_t bytes = c->count * tsr__elem_bytes(types[c->type]);
    size_t at = c->what == REDUCE_SCATTER ? (size_t)c->comm.self * bytes : 0;
    for (int i = 0; i < g->members; i++)
        in[i] = (const char *)g->in[g->members - 1 - i] + at;
    tsr__reduce(types[c->type], ops[c->op], in, g->members, &out, 1, 0, (int64_t)c->count);
}

// Writes the result of this member, of `bytes` bytes for each of the others' inputs. False: it has
// none.
static bool result(const struct joint_call *c, char *out, size_t bytes)
{
    const struct group *g = c->comm.group;
    if (c->what == ALL_GATHER)
        for (int i = 0; i < g->members; i++)
            memcpy(out + (size_t)i * bytes, g->in[i], bytes);
    else if (c->what == BROADCAST)
        memcpy(out, g->in[c->root], bytes);
    else if (c->what != REDUCE || c->root == c->comm.self)
        reduce(c, out);
    else
        return false;
    return true;
}

static void do_collective(void *data)
{
    struct joint_call *c = data;
    struct group *g = c->comm.group;
    size_t bytes = c->count * tsr__elem_bytes(types[c->type]);
    size_t all = bytes * (c->what == ALL_GATHER ? (size_t)g->members : 1);
    char *kept = malloc(all + 1);
    pthread_mutex_lock(&g->lock);
    g->in[c->comm.self] = c->in;
    bool met = meet(g, &g->arrived), has = met && result(c, kept, bytes);
    if (met && meet(g, &g->left) && has)
        memcpy(c->out, kept, all);
    pthread_mutex_unlock(&g->lock);
    free(kept);
}

static int start(const char *name, const struct joint_call *c, void *stream)
{
    char lost[40];
    if (standin_fails(name))
        return 1;
    snprintf(lost, sizeof lost, "lost %s", name);
    if (standin_fails(lost))
        return 0;  // simulates a kernel that never runs
    standin_nap(); // so that an abort can come in between
    struct joint_call kept = *c;
    if (getenv("STANDIN_HOST_WAITS"))
        do_collective(&kept);
    else
        standin_put(stream, do_collective, &kept, sizeof kept);
    return 0;
}

EXPORT int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, void *comm,
                         void *stream)
{
    struct joint_call c = {*(struct comm *)comm, ALL_REDUCE, in, out, count, type, op, 0};
    return start("ncclAllReduce", &c, stream);
}

EXPORT int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op, void *comm,
                             void *stream)
{
    struct joint_call c = {*(struct comm *)comm, REDUCE_SCATTER, in, out, count, type, op, 0};
    return start("ncclReduceScatter", &c, stream);
}

EXPORT int ncclReduce(const void *in, void *out, size_t count, int type, int op, int root,
                      void *comm, void *stream)
{
    struct joint_call c = {*(struct comm *)comm, REDUCE, in, out, count, type, op, root};
    return start("ncclReduce", &c, stream);
}

EXPORT int ncclAllGather(const void *in, void *out, size_t count, int type, void *comm,
                         void *stream)
{
    struct joint_call c = {*(struct comm *)comm, ALL_GATHER, in, out, count, type, 0, 0};
    return start("ncclAllGather", &c, stream);
}

EXPORT int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, void *comm,
                         void *stream)
{
    struct joint_call c = {*(struct comm *)comm, BROADCAST, in, out, count, type, 0, root};
    return start("ncclBroadcast", &c, stream);
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
