// SPDX-License-Identifier: Apache-2.0
// shm_job.c - the memory that ranks of one host share: made, mapped, given back; signs of life.
//
// The memory is a file without a name (memfd), so whatever becomes of the processes, nothing is left
// behind. It is large and mostly never touched: only pages in use cost memory.
#include "transport/shm.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SHM_MAGIC  0x314D4853u
#define BEAT_NS    100000000           // between two signs of life
#define HEAP_BYTES ((size_t)64 << 30)  // address space of a rank's tensors
#define HEAP_LEAST ((size_t)256 << 20) // less is not worth it
#define HEAP_RANKS 256                 // with more ranks on a host, tensors travel through rings

static size_t whole_pages(size_t n)
{
    return (n + 4095) / 4096 * 4096;
}

static struct shm_layout layout_of(int ranks)
{
    size_t n = (size_t)ranks;
    struct shm_layout l = {.ring_bytes = n <= 64 ? SHM_RING : SHM_RING / 4};
    l.slots = whole_pages(sizeof(struct shm_head));
    l.pairs = l.slots + whole_pages(n * sizeof(struct shm_slot));
    l.parts = l.pairs + whole_pages(n * n * sizeof(struct shm_pair));
    l.stages = l.parts + whole_pages(2 * n * n * sizeof(struct shm_part));
    l.rings = l.stages + n * SHM_STAGES * SHM_CHUNK;
    l.desks = l.rings + n * n * l.ring_bytes;
    l.benches = l.desks + n * n * sizeof(struct desk);
    l.heaps = l.benches + n * n * sizeof(struct shm_bench);
    l.bytes = l.heaps;
    return l;
}

static tsr_status no_segment(tsr_session *s, const char *what)
{
    struct place at = PLACE_NONE;
    tsr__diag(s, DIAG_shm_failed, &at, "more memory, or fewer ranks",
              "the memory that the ranks share cannot be made: %s: %s", what, strerror(errno));
    return TSR_PEER;
}

// Maps what the descriptor has; the last time, a finding says why not.
static tsr_status map_segment(tsr_session *s, struct shm_job *j, bool last)
{
    struct stat st;
    errno = 0;
    if (fstat(j->fd, &st) != 0 || (size_t)st.st_size < j->at.bytes) {
        errno = errno ? errno : EINVAL;
        return last ? no_segment(s, "its size") : TSR_PEER;
    }
    j->at.bytes = (size_t)st.st_size;
    j->base = mmap(NULL, j->at.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, j->fd, 0);
    if (j->base == MAP_FAILED) {
        j->base = NULL;
        return last ? no_segment(s, "mmap") : TSR_PEER;
    }
    if (j->at.bytes > j->at.heaps)
        j->at.heap_bytes = (j->at.bytes - j->at.heaps) / (size_t)j->n / 4096 * 4096;
    return TSR_OK;
}

// Makes the memory of that size and maps it; there may be a limit of address space, or of files.
static tsr_status map_with(tsr_session *s, struct shm_job *j, size_t heaps, bool last)
{
    j->at.bytes = j->at.heaps;
    if (ftruncate(j->fd, (off_t)(j->at.heaps + heaps)) != 0)
        return last ? no_segment(s, "ftruncate") : TSR_PEER;
    return map_segment(s, j, last);
}

static struct shm_job *job_new(tsr_session *s, int n, const struct comm_options *o)
{
    struct shm_job *j = tsr__alloc(s, sizeof *j);
    if (!j)
        return NULL;
    *j = (struct shm_job){.at = layout_of(n), .n = n, .fd = -1};
    j->timeout_s = o && o->timeout_s > 0 ? o->timeout_s : COMM_STOPPED_S;
    j->host_ranks = n;
    j->host_cores = tsr__cores();
    return j;
}

tsr_status tsr__shm_new(tsr_session *s, int n, const struct comm_options *o, struct shm_job **out)
{
    struct shm_job *j = job_new(s, n, o);
    if (!j)
        return TSR_NOMEM;
    *out = j;
    j->fd = tsr__fault(s, FAULT_SPAWN) ? -1 : memfd_create("tessera-job", MFD_CLOEXEC);
    if (j->fd < 0)
        return no_segment(s, "memfd_create");
    tsr_status st = TSR_PEER;
    size_t heap = n <= HEAP_RANKS ? HEAP_BYTES : 0;
    for (bool last = false; st != TSR_OK && !last; heap = heap / 8) {
        heap = heap < HEAP_LEAST ? 0 : heap;
        last = heap == 0;
        st = map_with(s, j, (size_t)n * heap, last);
    }
    if (st != TSR_OK)
        return st;
    struct shm_head *h = shm_head(j);
    h->n = (uint32_t)n;
    h->magic = SHM_MAGIC;
    for (int i = 0; i < n; i++)
        atomic_init(&shm_slot(j, i)->waiting_for, -1);
    return TSR_OK;
}

tsr_status tsr__shm_map(tsr_session *s, int fd, int n, const struct comm_options *o,
                        struct shm_job **out)
{
    struct shm_job *j = job_new(s, n, o);
    if (!j) {
        close(fd);
        return TSR_NOMEM;
    }
    *out = j;
    j->fd = fd;
    tsr_status st = map_segment(s, j, true);
    if (st == TSR_OK && (shm_head(j)->magic != SHM_MAGIC || shm_head(j)->n != (uint32_t)n)) {
        errno = EPROTO;
        return no_segment(s, "it belongs to another job");
    }
    return st;
}

int tsr__shm_fd(const struct shm_job *j)
{
    return j->fd;
}

void tsr__shm_watched(struct shm_job *j)
{
    j->watched = true;
}

void tsr__shm_free(tsr_session *s, struct shm_job *j)
{
    if (!j)
        return;
    if (j->base)
        munmap(j->base, j->at.bytes);
    if (j->fd >= 0)
        close(j->fd);
    tsr__free(s, j, sizeof *j);
}

// ---- failure -----------------------------------------------------------------------------------

void tsr__shm_fail(struct shm_job *j, tsr_status status, int rank, const char *text)
{
    struct shm_head *h = shm_head(j);
    int none = 0;
    if (!atomic_compare_exchange_strong(&h->failed, &none, 1))
        return;
    tsr__trouble(&h->trouble, status, rank, "%s", text);
    atomic_store(&h->failed, 2);
}

// Whoever wrote it may have died doing so: not for ever.
tsr_status tsr__shm_told(const struct shm_job *j, struct comm_trouble *why)
{
    struct shm_head *h = shm_head(j);
    struct timespec nap = {0, 100000};
    for (int i = 0; i < 1000 && atomic_load(&h->failed) == 1; i++)
        nanosleep(&nap, NULL);
    if (atomic_load(&h->failed) != 2)
        return tsr__trouble(why, TSR_PEER, -1, "a rank died while it told why it failed");
    *why = h->trouble;
    why->text[sizeof why->text - 1] = 0;
    if (why->status == TSR_OK || why->status > TSR_CANCELLED)
        why->status = TSR_PEER;
    return why->status;
}

bool tsr__shm_trouble(const struct shm_job *j, struct comm_trouble *why)
{
    if (!atomic_load(&shm_head(j)->failed))
        return false;
    tsr__shm_told(j, why);
    return true;
}

// ---- for whoever watches the processes ---------------------------------------------------------

uint64_t tsr__shm_beat(const struct shm_job *j, int rank)
{
    return atomic_load(&shm_slot(j, rank)->beat);
}

bool tsr__shm_ended(const struct shm_job *j, int rank)
{
    return atomic_load(&shm_slot(j, rank)->state) == SHM_GONE;
}

// What a rank is at, or was last: "AllReduce 'fc' (id 3)".
static bool at_what(const struct shm_slot *s, char *out, size_t n)
{
    const struct shm_entry *e = &s->entries[atomic_load(&s->showing) & 1];
    if (e->header.magic != HEADER_MAGIC)
        return false;
    snprintf(out, n, "%.15s '%.47s' (id %lld)", e->header.op, e->header.node,
             (long long)e->header.id);
    return true;
}

bool tsr__shm_lost(struct shm_job *j, int rank, const char *what, bool last)
{
    char text[400], at[128] = "";
    for (int i = 0; i < j->n; i++) {
        const struct shm_slot *s = shm_slot(j, i);
        if (i == rank || atomic_load(&s->waiting_for) != rank || !at_what(s, at, sizeof at))
            continue;
        snprintf(text, sizeof text, "rank %d %s; rank %d waits for it at %s", rank, what, i, at);
        tsr__shm_fail(j, TSR_PEER, rank, text);
        return true;
    }
    if (!last && !atomic_load(&shm_head(j)->failed))
        return false;
    if (at_what(shm_slot(j, rank), at, sizeof at))
        snprintf(text, sizeof text, "rank %d %s; nobody waits for it yet, its last call was %s",
                 rank, what, at);
    else
        snprintf(text, sizeof text, "rank %d %s before the ranks met", rank, what);
    tsr__shm_fail(j, TSR_PEER, rank, text);
    return true;
}

// ---- one rank ----------------------------------------------------------------------------------

static void *beat_thread(void *data)
{
    struct shm *me = data;
    struct timespec nap = {0, BEAT_NS};
    while (!atomic_load(&me->stop)) {
        atomic_fetch_add(&me->slot->beat, 1);
        nanosleep(&nap, NULL);
    }
    return NULL;
}

static tsr_status start_beat(struct shm *me)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    me->has_thread = !tsr__fault(me->session, FAULT_SPAWN) &&
                     pthread_create(&me->thread, NULL, beat_thread, me) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (me->has_thread)
        return TSR_OK;
    tsr__diag(me->session, DIAG_rank_start, NULL, "a higher limit of threads",
              "the thread for signs of life could not be started");
    return TSR_PEER;
}

static void shm_free(struct shm *me)
{
    tsr_session *s = me->session;
    size_t n = (size_t)me->job->n;
    tsr__free(s, me->peers, n * sizeof *me->peers);
    for (size_t i = 0; i < TSR_COUNT(me->readers); i++) {
        tsr__free(s, me->readers[i].meeting, n * sizeof *me->readers[i].meeting);
        tsr__free(s, me->readers[i].list, n * sizeof *me->readers[i].list);
    }
    tsr__free(s, (void *)me->ins, n * sizeof *me->ins);
    tsr__free(s, me->outs, n * sizeof *me->outs);
    tsr__free(s, me->sent, n * sizeof *me->sent);
    tsr__free(s, me->got, n * sizeof *me->got);
    tsr__free(s, me->notes, n * sizeof *me->notes);
    pthread_mutex_destroy(&me->heap.lock);
    tsr__free(s, me, sizeof *me);
}

static void *zeroed(tsr_session *s, size_t bytes)
{
    void *p = tsr__alloc(s, bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

static bool shm_alloc(struct shm *me)
{
    tsr_session *s = me->session;
    size_t n = (size_t)me->job->n;
    bool ok = (me->peers = zeroed(s, n * sizeof *me->peers));
    for (size_t i = 0; i < TSR_COUNT(me->readers); i++) {
        ok = ok && (me->readers[i].meeting = zeroed(s, n * sizeof *me->readers[i].meeting));
        ok = ok && (me->readers[i].list = zeroed(s, n * sizeof *me->readers[i].list));
    }
    ok = ok && (me->ins = zeroed(s, n * sizeof *me->ins));
    ok = ok && (me->outs = zeroed(s, n * sizeof *me->outs));
    ok = ok && (me->sent = zeroed(s, n * sizeof *me->sent));
    ok = ok && (me->got = zeroed(s, n * sizeof *me->got));
    return ok && (me->notes = zeroed(s, n * sizeof *me->notes));
}

static void shm_close(struct endpoint *e)
{
    struct shm *me = (struct shm *)e;
    tsr__shm_drop_gifts(me);
    atomic_store(&me->slot->state, SHM_GONE);
    atomic_store(&me->stop, true);
    if (me->has_thread)
        pthread_join(me->thread, NULL);
    struct shm_job *owned = me->owns_job ? me->job : NULL;
    tsr_session *s = me->session;
    shm_free(me);
    tsr__shm_free(s, owned);
}

static void shm_fail(struct endpoint *e, tsr_status status, int rank, const char *text)
{
    tsr__shm_fail(((struct shm *)e)->job, status, rank, text);
}

static const struct transport shm_transport = {
    .name = "shm",
    .all_reduce = tsr__shm_all_reduce,
    .exchange = tsr__shm_exchange,
    .fail = shm_fail,
    .close = shm_close,
    .alloc = tsr__shm_alloc,
    .release = tsr__shm_release,
    .held = tsr__shm_held,
    .give = tsr__shm_give,
    .settle = tsr__shm_settle,
    .take = tsr__shm_take,
};

tsr_status tsr__shm_endpoint(tsr_session *s, struct shm_job *j, int rank, struct endpoint **out)
{
    struct shm *me = zeroed(s, sizeof *me);
    if (!me)
        return TSR_NOMEM;
    me->endpoint = (struct endpoint){.transport = &shm_transport,
                                     .rank = rank,
                                     .size = j->n,
                                     .host_ranks = j->host_ranks,
                                     .host_cores = j->host_cores};
    me->job = j;
    pthread_mutex_init(&me->heap.lock, NULL);
    me->session = s;
    me->slot = shm_slot(j, rank);
    me->crowded = j->host_ranks > j->host_cores;
    tsr_status st = shm_alloc(me) ? start_beat(me) : TSR_NOMEM;
    if (st != TSR_OK) {
        shm_free(me);
        return st;
    }
    atomic_store(&me->slot->pid, (int)getpid());
    atomic_store(&me->slot->waiting_for, -1);
    atomic_store(&me->slot->state, SHM_AT_WORK);
    atomic_fetch_add(&shm_head(j)->attached, 1);
    *out = &me->endpoint;
    return TSR_OK;
}

int tsr__shm_attached(const struct shm_job *j)
{
    return atomic_load(&shm_head(j)->attached);
}
