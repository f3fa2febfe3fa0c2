// SPDX-License-Identifier: Apache-2.0
// handover.c - moves outputs from the ranks that have them to the caller of the run.
//
// The manifest says which rank has an output or a shard of it; the default is rank 0. If ranks are
// processes, each other rank sends its outputs of a run to rank 0 as one message, outside of the
// communication of the model, and continues.
//
// Three outputs of a partition for 4 ranks, as in the manifest:
//     loss     no ranks listed       rank 0 has it: moved out of rank 0's set
//     logits   full, on rank 3       rank 3 gives it: moved out of rank 3's set
//     hidden   sharded over 1 and 2  the shards of ranks 1 and 2 are joined (shards.c)
// If several ranks have a shard, its first owner gives it.
#include "runtime/job.h"

#include <unistd.h>

// ---- which rank gives an output -----------------------------------------------------------------

bool tsr__hand_is_result(const tsr_job *job, const char *name)
{
    for (size_t k = 0; k < job->n_states; k++)
        if (strcmp(job->states[k], name) == 0)
            return false;
    return true;
}

// True if the manifest says which ranks have this output, and it is not a state.
static bool is_placed(const tsr_job *job, const struct manifest_port *port)
{
    return port->kept && tsr__hand_is_result(job, port->name);
}

// True if the manifest says which ranks have an output, so that outputs may have to be sent to rank
// 0 or joined. The result is the same on all ranks. States count too, although they stay on their
// ranks; is_placed excludes them per output.
bool tsr__job_handed(const tsr_job *job)
{
    const struct manifest *manifest = &job->bundle.manifest;
    return job->has_bundle && tsr__shards_any(manifest->outputs, manifest->n_outputs);
}

// True if the rank is the first owner of a shard. Every shard has an owner: the reader of manifests
// has checked it.
static bool gives_of(const struct tile_layout *layout, int64_t rank)
{
    for (int64_t k = 0; k < layout->n_shards; k++)
        if (tsr__shards_giver(layout, k) == rank)
            return true;
    return false;
}

bool tsr__hand_gives(const tsr_job *job, int64_t rank)
{
    const struct manifest *manifest = &job->bundle.manifest;
    for (size_t i = 0; i < manifest->n_outputs; i++)
        if (is_placed(job, &manifest->outputs[i]) && gives_of(manifest->outputs[i].kept, rank))
            return true;
    return false;
}

// ---- joining ------------------------------------------------------------------------------------

// Moves a tensor from one set to the other. Does nothing if it is missing.
static tsr_status move_named(tsr_tensors *from, const char *name, tsr_tensors *to)
{
    int64_t at = from ? tsr_tensors_find(from, name) : -1;
    if (at < 0)
        return TSR_OK;
    return tsr__tensors_move(from, (size_t)at, to);
}

// Moves the outputs of the ranks (sets: by rank) into `outputs`, in the order of the model. Shards
// are joined. Outputs that are already in the caller's memory are not moved.
static tsr_status join(const tsr_job *job, tsr_tensors *const *sets, tsr_tensors *outputs)
{
    const struct manifest *manifest = &job->bundle.manifest;
    const tsr_tensors *places = job->n ? job->rank_threads[0].rank.places : NULL;
    for (size_t i = 0; i < manifest->n_outputs; i++) {
        const struct manifest_port *port = &manifest->outputs[i];
        tsr_status st = TSR_OK;
        if ((places && tsr_tensors_find(places, port->name) >= 0) ||
            (job->placed && job->placed[i]))
            continue;
        if (!port->kept)
            st = move_named(sets[0], port->name, outputs);
        else if (is_placed(job, port) && tsr__layout_is_whole(port->kept))
            st = move_named(sets[tsr__shards_giver(port->kept, 0)], port->name, outputs);
        else if (is_placed(job, port))
            st = tsr__shards_join(port, sets, outputs);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// Creates one set per rank of the partition, not only for ranks in this process: rank 0 of a
// launched job receives the outputs of the others. After a failure the missing entries are NULL.
static tsr_status sets_new(const tsr_job *job, struct arena *arena, tsr_tensors ***out)
{
    int64_t ranks = job->bundle.manifest.n_ranks;
    tsr_tensors **sets = ARENA_ARRAY(arena, tsr_tensors *, (size_t)ranks);
    *out = sets;
    if (!sets)
        return TSR_NOMEM;
    for (int64_t i = 0; i < ranks; i++)
        TRY(tsr_tensors_new(job->session, &sets[i]));
    return TSR_OK;
}

tsr_status tsr__hand_collect(tsr_job *job, hand_take *take, void *data, tsr_tensors *outputs)
{
    struct arena arena = {.session = job->session};
    tsr_tensors **sets = NULL;
    tsr_status st = sets_new(job, &arena, &sets);
    // The run is over even if there is no memory for the sets.
    tsr_status taken = take(job, data, st == TSR_OK ? sets : NULL);
    if (st == TSR_OK)
        st = taken;
    if (st == TSR_OK && outputs)
        st = join(job, sets, outputs);
    for (int64_t i = 0; sets && i < job->bundle.manifest.n_ranks; i++)
        tsr_tensors_free(sets[i]);
    tsr__arena_free(&arena);
    return st;
}

// ---- between processes --------------------------------------------------------------------------

// Describes the transfer of the outputs of a run. Both sides compare the description before they
// use the data, so that both refer to the same partition and run.
static struct comm_call call_of(const tsr_job *job, uint64_t run)
{
    return (struct comm_call){.plan = tsr__job_plan(job),
                              .run = run,
                              .kind = COMM_SEND,
                              .type = TSR_UINT8,
                              .op = "outputs",
                              .node = "end of a run"};
}

// Sends this rank's outputs to rank 0. tsr__comm_give takes over the file and closes it, also after
// a failure.
tsr_status tsr__hand_give(const tsr_job *job, uint64_t run, const tsr_tensors *mine)
{
    struct message message = tsr__message_new();
    struct comm_trouble why = {0};
    tsr__message_put_tensors(&message, mine);
    bool written = tsr__message_flush(&message);
    // Frees only the buffer. The file has the bytes; its length is the current write position.
    tsr__message_drop(&message);
    off_t bytes = written ? lseek(message.fd, 0, SEEK_CUR) : -1;
    if (bytes < 0) {
        if (message.fd >= 0)
            close(message.fd);
        return TSR_NOMEM;
    }
    struct comm_call call = call_of(job, run);
    if (tsr__comm_give(job->endpoint, &call, message.fd, (size_t)bytes, &why) == TSR_OK)
        return TSR_OK;
    return tsr__run_peer_failed(job->session, &why);
}

// Waits until rank 0 has read the oldest unread message of this rank. Called once per message, in
// the order of the runs.
tsr_status tsr__hand_settle(const tsr_job *job, uint64_t run)
{
    struct comm_trouble why = {0};
    struct comm_call call = call_of(job, run);
    if (tsr__comm_settle(job->endpoint, &call, &why) == TSR_OK)
        return TSR_OK;
    return tsr__run_peer_failed(job->session, &why);
}

static tsr_status take_from(const tsr_job *job, uint64_t run, int from, tsr_tensors *to)
{
    struct comm_trouble why = {0};
    struct comm_call call = call_of(job, run);
    struct message message;
    int fd = -1;
    size_t bytes = 0;
    if (tsr__comm_take(job->endpoint, &call, from, &fd, &bytes, &why) != TSR_OK)
        return tsr__run_peer_failed(job->session, &why);
    TRY(tsr__message_open(fd, &message));
    // The file may be longer: only the first `bytes` are the message.
    message.end = bytes < message.end ? bytes : message.end;
    tsr_status st = tsr__message_tensors(&message, to);
    tsr__message_close(&message);
    return st;
}

// Receives the outputs of all ranks that send some, in rank order. Each rank sends before it waits,
// so this cannot deadlock.
tsr_status tsr__hand_take(const tsr_job *job, uint64_t run, tsr_tensors *const *sets)
{
    for (int r = 1; r < job->endpoint->size; r++) {
        if (tsr__hand_gives(job, r))
            TRY(take_from(job, run, r, sets[r]));
    }
    return TSR_OK;
}
