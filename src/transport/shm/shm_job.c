// SPDX-License-Identifier: Apache-2.0
// shm_job.c - the shared memory segment of the ranks of one host: created, mapped, freed; the
// failure of the job, and lost ranks.
//
// The segment is an anonymous file (memfd), so nothing is left behind whatever happens to the
// processes. It is large and mostly never touched: only used pages cost memory.
//
// The segment for 2 ranks, in this order; all but the heaps is a few MiB of address space:
//     head        magic, number of ranks, the failure of the job
//     slots       per rank: state, heartbeat, the two entries, its files
//     pairs       [from][to]: calls entered, bytes put and taken
//     parts       [rank][entry][to]: sizes and offsets of an exchange
//     stages      per rank: 4 chunks of 128 KiB
//     rings       [from][to]: 256 KiB
//     mailboxes, pair buffers   [lower][higher]
//     heaps       per rank: 64 GiB of addresses for tensors, pages on demand
#include "transport/shm/shm.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SHM_MAGIC  0x314D4853u
#define HEAP_BYTES ((size_t)64 << 30)  // address space of a rank's tensors
#define HEAP_LEAST ((size_t)256 << 20) // less is not useful
#define HEAP_RANKS 256                 // with more ranks on a host, tensors go through rings
#define HEAP_SHARE 8                   // all heaps use at most 1/8 of a limit on address space

static size_t whole_pages(size_t n)
{
    return (n + 4095) / 4096 * 4096;
}

// Returns the layout of the shared memory of a job. It follows from the number of ranks, so it is
// the same in every process; only the heap size depends on the size of the file.
static struct shm_layout layout_of(int ranks)
{
    size_t n = (size_t)ranks;
    struct shm_layout layout = {.ring_bytes = n <= 64 ? SHM_RING : SHM_RING / 4};
    layout.slots = whole_pages(sizeof(struct shm_head));
    layout.pairs = layout.slots + whole_pages(n * sizeof(struct shm_slot));
    layout.parts = layout.pairs + whole_pages(n * n * sizeof(struct shm_pair));
    layout.stages = layout.parts + whole_pages(2 * n * n * sizeof(struct shm_part));
    layout.rings = layout.stages + n * SHM_STAGES * SHM_CHUNK;
    layout.mailboxes = layout.rings + n * n * layout.ring_bytes;
    layout.pair_buffers = layout.mailboxes + n * n * sizeof(struct mailbox);
    layout.heaps = layout.pair_buffers + n * n * sizeof(struct shm_pair_buffer);
    layout.bytes = layout.heaps;
    return layout;
}

static tsr_status no_segment(tsr_session *session, const char *what)
{
    return tsr__fail(session, TSR_PEER, DIAG_shm_failed, NULL, "free memory, or use fewer ranks",
                     "cannot create the shared memory of the ranks: %s: %s", what, strerror(errno));
}

// Maps the shared memory by its descriptor. A failure adds a diagnostic only if `last` is set.
static tsr_status map_segment(tsr_session *session, struct shm_job *job, bool last)
{
    struct stat st;
    errno = 0;
    if (fstat(job->fd, &st) != 0 || (size_t)st.st_size < job->at.bytes) {
        errno = errno ? errno : EINVAL;
        return last ? no_segment(session, "its size") : TSR_PEER;
    }
    job->at.bytes = (size_t)st.st_size;
    job->base =
        mmap(NULL, job->at.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, job->fd, 0);
    if (job->base == MAP_FAILED) {
        job->base = NULL;
        return last ? no_segment(session, "mmap") : TSR_PEER;
    }
    // Equal shares of what is beyond the fixed part, in whole pages.
    if (job->at.bytes > job->at.heaps)
        job->at.heap_bytes = (job->at.bytes - job->at.heaps) / (size_t)job->n / 4096 * 4096;
    return TSR_OK;
}

// Gives the file its size, with `heaps` bytes for all heaps, and maps it. This fails if address
// space or file sizes are limited. at.bytes is reset first: an earlier try with more heap may have
// changed it.
static tsr_status map_with(tsr_session *session, struct shm_job *job, size_t heaps, bool last)
{
    job->at.bytes = job->at.heaps;
    if (ftruncate(job->fd, (off_t)(job->at.heaps + heaps)) != 0)
        return last ? no_segment(session, "ftruncate") : TSR_PEER;
    return map_segment(session, job, last);
}

static struct shm_job *job_new(tsr_session *session, int n, const struct comm_options *options)
{
    struct shm_job *job = tsr__alloc(session, sizeof *job);
    if (!job)
        return NULL;
    *job = (struct shm_job){.at = layout_of(n), .n = n, .fd = -1};
    job->timeout_s = options && options->timeout_s > 0 ? options->timeout_s : COMM_STOPPED_S;
    job->host_ranks = n;
    job->host_cores = tsr__cores();
    return job;
}

// Returns the most bytes for the heap of each rank. A limit on address space (ulimit -v) also
// covers weights and libraries, so all heaps together use only 1 / HEAP_SHARE of it.
static size_t largest_heap(size_t ranks)
{
    struct rlimit limit;
    if (ranks > HEAP_RANKS)
        return 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return HEAP_BYTES;
    size_t share = (size_t)limit.rlim_cur / HEAP_SHARE / ranks;
    return share < HEAP_LEAST ? 0 : share < HEAP_BYTES ? whole_pages(share) : HEAP_BYTES;
}

// Creates the shared memory of a job. Requests the largest heap first, and an eighth of it after
// each failure. Without a heap, tensors are copied, which is slower but correct.
tsr_status tsr__shm_new(tsr_session *session, int n, const struct comm_options *options,
                        struct shm_job **out)
{
    struct shm_job *job = job_new(session, n, options);
    if (!job)
        return TSR_NOMEM;
    *out = job;
    job->fd = tsr__fault(session, FAULT_SPAWN) ? -1 : memfd_create("tessera-job", MFD_CLOEXEC);
    if (job->fd < 0)
        return no_segment(session, "memfd_create");
    size_t heap = largest_heap((size_t)n);
    for (;;) {
        bool last = heap == 0;
        tsr_status st = map_with(session, job, (size_t)n * heap, last);
        if (st == TSR_OK)
            break;
        if (last)
            return st;
        heap /= 8;
        if (heap < HEAP_LEAST)
            heap = 0;
    }
    // A new file is all zeros: every rank is SHM_ABSENT, every number 0. The magic is written last,
    // for processes that map the file by its descriptor.
    struct shm_head *head = shm_head(job);
    head->n = (uint32_t)n;
    head->magic = SHM_MAGIC;
    for (int i = 0; i < n; i++)
        atomic_init(&shm_slot(job, i)->waiting_for, -1);
    return TSR_OK;
}

// Maps the memory of a job that another process has created. If mapping fails, *out is set
// nevertheless and holds the descriptor; tsr__shm_free closes it.
tsr_status tsr__shm_map(tsr_session *session, int fd, int n, const struct comm_options *options,
                        struct shm_job **out)
{
    struct shm_job *job = job_new(session, n, options);
    if (!job) {
        close(fd);
        return TSR_NOMEM;
    }
    *out = job;
    job->fd = fd;
    TRY(map_segment(session, job, true));
    if (shm_head(job)->magic == SHM_MAGIC && shm_head(job)->n == (uint32_t)n)
        return TSR_OK;
    errno = EPROTO;
    return no_segment(session, "it belongs to another job");
}

int tsr__shm_fd(const struct shm_job *job)
{
    return job->fd;
}

void tsr__shm_watched(struct shm_job *job)
{
    job->watched = true;
}

void tsr__shm_free(tsr_session *session, struct shm_job *job)
{
    if (!job)
        return;
    if (job->base)
        munmap(job->base, job->at.bytes);
    if (job->fd >= 0)
        close(job->fd);
    tsr__free(session, job, sizeof *job);
}

// ---- failure ------------------------------------------------------------------------------------

// Marks the job as failed, with the reason. Only the first rank that fails writes it. While
// `failed` is 1, readers wait until the text is complete.
void tsr__shm_fail(struct shm_job *job, tsr_status status, int rank, const char *text)
{
    struct shm_head *head = shm_head(job);
    int none = 0;
    if (!atomic_compare_exchange_strong(&head->failed, &none, 1))
        return;
    tsr__trouble(&head->trouble, status, rank, "%s", text);
    atomic_store(&head->failed, 2);
}

// Checks a failure that was read from shared memory.
static tsr_status checked(struct comm_trouble *why)
{
    why->text[sizeof why->text - 1] = 0;
    if (why->status == TSR_OK || why->status > TSR_CANCELLED)
        why->status = TSR_PEER;
    return why->status;
}

tsr_status tsr__shm_left(const struct shm_job *job, int rank, struct comm_trouble *why)
{
    const struct shm_slot *slot = shm_slot(job, rank);
    if (!atomic_load(&slot->left))
        return TSR_OK;
    *why = slot->why;
    why->left = true;
    return checked(why);
}

// Returns the failure of the job. Waits at most 0.1 s for a text that is being written, because the
// writer may have died.
tsr_status tsr__shm_failure(const struct shm_job *job, struct comm_trouble *why)
{
    struct shm_head *head = shm_head(job);
    struct timespec nap = {0, 100000};
    for (int i = 0; i < 1000; i++) {
        if (atomic_load(&head->failed) != 1)
            break;
        nanosleep(&nap, NULL);
    }
    if (atomic_load(&head->failed) != 2)
        return tsr__trouble(why, TSR_PEER, -1, "a rank died while it reported an error");
    *why = head->trouble;
    return checked(why);
}

bool tsr__shm_trouble(const struct shm_job *job, struct comm_trouble *why)
{
    if (!atomic_load(&shm_head(job)->failed))
        return false;
    tsr__shm_failure(job, why);
    return true;
}

// ---- for the process that supervises the ranks --------------------------------------------------

uint64_t tsr__shm_beat(const struct shm_job *job, int rank)
{
    return atomic_load(&shm_slot(job, rank)->beat);
}

// Describes the current or last call of a rank: "AllReduce 'fc' (id 3)". The entry may change while
// it is read: at worst the text mixes two calls of that rank. False: it has made no call yet.
static bool at_what(const struct shm_slot *slot, char *out, size_t n)
{
    const struct shm_entry *entry = &slot->entries[atomic_load(&slot->showing) & 1];
    if (entry->header.magic != HEADER_MAGIC)
        return false;
    snprintf(out, n, "%.15s '%.47s' (id %lld)", entry->header.op, entry->header.node,
             (long long)entry->header.id);
    return true;
}

bool tsr__shm_lost(struct shm_job *job, int rank, const char *what, bool last)
{
    char text[400], at[128] = "";
    for (int i = 0; i < job->n; i++) {
        const struct shm_slot *slot = shm_slot(job, i);
        if (i == rank || atomic_load(&slot->waiting_for) != rank || !at_what(slot, at, sizeof at))
            continue;
        snprintf(text, sizeof text, "rank %d %s; rank %d waits for it at %s", rank, what, i, at);
        tsr__shm_fail(job, TSR_PEER, rank, text);
        return true;
    }
    if (!last && !atomic_load(&shm_head(job)->failed))
        return false;
    if (at_what(shm_slot(job, rank), at, sizeof at))
        snprintf(text, sizeof text, "rank %d %s; no rank waits for it yet; its last call was %s",
                 rank, what, at);
    else
        snprintf(text, sizeof text, "rank %d %s before the ranks were connected", rank, what);
    tsr__shm_fail(job, TSR_PEER, rank, text);
    return true;
}
