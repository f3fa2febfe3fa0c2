// SPDX-License-Identifier: Apache-2.0
// rank_facts.c - properties of each rank of a run: device, provider, threads, memory, and the
// transport of each group with which it communicates.
//
// A rank writes its properties as numbers and texts, in the same format for ranks of this process
// and of others. Rank 0, or the parent of the ranks, keeps them until the next run and reads them
// on request.
#include "runtime/job.h"

#include <stdlib.h>

#define FACTS_BYTES ((size_t)32 << 10) // limit per rank; further groups are left out

// ---- memory ------------------------------------------------------------------------------------

// Returns the peak bytes that the rank's engine session has allocated in one kind of memory
// (`where`). 0: this engine does not report it.
static int64_t most_in_use(const struct rank *rank, const OrtMemoryInfo *where)
{
    const OrtApi *api = rank->engine->api;
    OrtAllocator *allocator = NULL;
    OrtKeyValuePairs *stats = NULL;
    int64_t bytes = 0;
    if (rank->engine->minor < ORT_API_STATS)
        return 0;
    OrtStatus *failed = api->CreateAllocator(rank->ort, where, &allocator);
    if (!failed)
        failed = api->AllocatorGetStats(allocator, &stats);
    if (!failed) {
        const char *most = api->GetKeyValue(stats, "MaxInUse");
        if (most)
            bytes = strtoll(most, NULL, 10);
        api->ReleaseKeyValuePairs(stats);
    }
    if (allocator)
        api->ReleaseAllocator(allocator);
    if (failed)
        api->ReleaseStatus(failed);
    return bytes;
}

int64_t tsr__job_gpu_memory(const tsr_job *job, int i)
{
    if (i >= job->n || !job->rank_threads[i].rank.on_gpu)
        return 0;
    return most_in_use(&job->rank_threads[i].rank, job->rank_threads[i].rank.on_gpu);
}

// Returns the memory of a rank. On a GPU the memory arena of ONNX Runtime includes the weights; on
// a CPU, weights are mapped files. If the rank is the only one of its process, the growth of the
// process is measured. Several ranks in one process cannot be distinguished: for them, the arena's
// count and the weights of the rank file are added.
static int64_t memory_of(const tsr_job *job, const struct rank *rank, const char *weights,
                         const struct memory_mark *before)
{
    if (rank->on_gpu)
        return most_in_use(rank, rank->on_gpu);
    if (job->n == 1)
        return tsr__memory_since(before, weights, job->endpoint);
    int64_t arena = most_in_use(rank, rank->engine->memory);
    if (arena == 0)
        return 0;
    return arena + rank->weight_bytes;
}

// ---- writing -----------------------------------------------------------------------------------

// Writes all groups that fit, each as its transport, its number of ranks and the ranks; an empty
// name ends the list.
static void put_groups(struct message *out, const struct rank *rank)
{
    struct ops_group group;
    for (size_t i = 0; rank->ops && tsr__ops_group_at(rank->ops, i, &group); i++) {
        // The message must fit in its buffer (64 KiB), which cannot be flushed: it has no file. 8
        // words are more than the name and the two lengths need.
        if (out->n + ((size_t)group.n + 8) * sizeof(int64_t) > FACTS_BYTES)
            break;
        tsr__message_put_text(out, str_of(tsr__comm_method(rank->endpoint, group.ranks, group.n)));
        tsr__message_put_int(out, group.n);
        tsr__message_put(out, group.ranks, (size_t)group.n * sizeof *group.ranks);
    }
    tsr__message_put_text(out, STR(""));
}

// Writes the properties of a rank in the layout that tsr_run_rank reads: device, provider, threads,
// memory, limit, groups.
static void put_rank(struct message *out, const tsr_job *job, const struct rank *rank,
                     const char *weights, const struct memory_mark *before)
{
    char resolved[DEVICE_NAME];
    struct str device = tsr__device_mapped(rank->device, rank->options);
    device = tsr__device_resolved(job->engine, device, resolved, sizeof resolved);
    if (device.n == 0)
        device = STR("CPU");
    if (device.n > DEVICE_NAME)
        device.n = DEVICE_NAME;
    tsr__message_put_text(out, device);
    tsr__message_put_text(out, str_of(rank->provider));
    tsr__message_put_int(out, rank->threads);
    tsr__message_put_int(out, memory_of(job, rank, weights, before));
    tsr__message_put_int(out, rank->memory_limit);
    put_groups(out, rank);
}

// ---- keeping -----------------------------------------------------------------------------------

// Allocates a list for n ranks. First frees the properties of the previous run, and all texts that
// tsr_run_rank returned from them.
static struct str *new_list(struct engine *engine, int n)
{
    tsr__arena_free(&engine->facts_arena);
    engine->n_facts = 0;
    engine->read_facts = NULL;
    engine->facts = ARENA_ARRAY(&engine->facts_arena, struct str, (size_t)n);
    return engine->facts;
}

// Stores the properties of the ranks in this process, in order.
static tsr_status keep_here(tsr_job *job, const char *weights, const struct memory_mark *before)
{
    struct engine *engine = job->engine;
    if (!new_list(engine, job->n))
        return TSR_NOMEM;
    for (int i = 0; i < job->n; i++) {
        struct message written = {.fd = -1}; // stays in its buffer
        put_rank(&written, job, &job->rank_threads[i].rank, weights, before);
        engine->facts[i] =
            tsr__arena_str(&engine->facts_arena, (struct str){written.buffer, written.n});
        tsr__message_drop(&written);
        if (written.failed || !engine->facts[i].p)
            return TSR_NOMEM;
    }
    engine->n_facts = job->n;
    return TSR_OK;
}

// Stores the properties of all ranks. Under a launcher this is a collective: the other ranks send
// theirs and keep none (n_facts 0).
tsr_status tsr__facts_keep(tsr_job *job, const char *weights, const struct memory_mark *before)
{
    tsr_status st = keep_here(job, weights, before);
    if (st != TSR_OK || !job->endpoint)
        return st;
    struct engine *engine = job->engine;
    struct gather_call about = {.plan = tsr__job_plan(job), .what = "facts"};
    struct str *all = NULL;
    TRY(tsr__gather(job->session, job->endpoint, &about, engine->facts[0], &engine->facts_arena,
                    &all));
    engine->facts = all;
    engine->n_facts = job->endpoint->rank == 0 ? job->endpoint->size : 0;
    return TSR_OK;
}

// Writes the properties of all ranks to a message for the parent process. Called in the child that
// is rank 0, which has gathered them; the parent reads them with tsr__facts_take.
void tsr__facts_put(const tsr_session *session, struct message *out)
{
    const struct engine *engine = session->engine;
    tsr__message_put_int(out, engine->n_facts);
    for (int i = 0; i < engine->n_facts; i++)
        tsr__message_put_text(out, engine->facts[i]);
}

// Reads the properties that a child sent. The bytes come from another process, so the count is
// limited before memory is allocated. An empty list has space for one entry, so that it is not
// NULL.
tsr_status tsr__facts_take(tsr_session *session, struct message *in)
{
    struct engine *engine = session->engine;
    int64_t n = tsr__message_int(in);
    if (n < 0 || n > COMM_MAX_RANKS)
        return TSR_MALFORMED;
    if (!new_list(engine, (int)n + 1))
        return TSR_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        engine->facts[i] = tsr__arena_str(&engine->facts_arena, tsr__message_text(in));
        if (in->failed)
            return TSR_MALFORMED;
        if (!engine->facts[i].p)
            return TSR_NOMEM;
    }
    engine->n_facts = (int)n;
    return TSR_OK;
}

// ---- reading -----------------------------------------------------------------------------------

int tsr_run_ranks(const tsr_session *session)
{
    const struct engine *engine = session->engine;
    return engine ? engine->n_facts : 0;
}

// Reads a group. Returns false at the end of the list (an empty name), and for invalid data: the
// rest is dropped.
static bool read_group(struct message *in, struct arena *arena, tsr_rank_group *out)
{
    struct str method = tsr__message_text(in);
    if (in->failed || method.n == 0)
        return false;
    int64_t n = tsr__message_int(in);
    const void *ranks = NULL;
    if (n > 0 && n <= COMM_MAX_RANKS)
        ranks = tsr__message_get(in, (size_t)n * sizeof(int64_t));
    int64_t *list = ranks ? ARENA_ARRAY(arena, int64_t, (size_t)n) : NULL;
    if (!list)
        return false;
    memcpy(list, ranks, (size_t)n * sizeof *list);
    *out = (tsr_rank_group){list, (size_t)n, tsr__arena_str(arena, method).p};
    return out->way != NULL;
}

static void read_groups(struct message *in, struct arena *arena, tsr_rank_facts *out)
{
    VEC(tsr_rank_group) groups = {0};
    tsr_rank_group group;
    while (read_group(in, arena, &group)) {
        tsr_rank_group *next = vec_push(arena, &groups);
        if (!next)
            break;
        *next = group;
    }
    out->groups = groups.at;
    out->n_groups = groups.n;
}

// Reads the properties of a rank. The texts of a message are not terminated, so they are copied
// into the arena of the properties.
static bool read_rank(struct engine *engine, int rank, tsr_rank_facts *out)
{
    struct arena *arena = &engine->facts_arena;
    struct message in = {.bytes = engine->facts[rank].p, .end = engine->facts[rank].n};
    tsr_rank_facts facts = {0};
    facts.device = tsr__arena_str(arena, tsr__message_text(&in)).p;
    facts.provider = tsr__arena_str(arena, tsr__message_text(&in)).p;
    facts.threads = (int)tsr__message_int(&in);
    facts.memory = tsr__message_int(&in);
    facts.memory_limit = tsr__message_int(&in);
    read_groups(&in, arena, &facts);
    if (in.failed || !facts.device || !facts.provider)
        return false;
    *out = facts;
    return true;
}

// Sets *out to the properties of a rank of the last run. Returns false if there are none. out->size
// is that of the caller's struct, which may be shorter than this version's.
bool tsr_run_rank(tsr_session *session, int rank, tsr_rank_facts *out)
{
    struct engine *engine = session->engine;
    if (!out || !engine || rank < 0 || rank >= engine->n_facts)
        return false;
    if (!engine->read_facts)
        engine->read_facts =
            ARENA_ARRAY(&engine->facts_arena, tsr_rank_facts, (size_t)engine->n_facts);
    tsr_rank_facts *facts = engine->read_facts ? &engine->read_facts[rank] : NULL;
    if (!facts || (!facts->device && !read_rank(engine, rank, facts)))
        return false;
    facts->size = out->size;
    memcpy(out, facts, out->size < sizeof *facts ? out->size : sizeof *facts);
    return true;
}
