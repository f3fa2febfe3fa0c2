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
#include "runtime/handover.h"
#include "runtime/spawn.h"
#include "bundle/bundle.h"

#include <unistd.h>

// ---- which rank gives an output -----------------------------------------------------------------

bool tsr__hand_is_result(const struct handover *handover, const char *name)
{
    for (size_t k = 0; k < handover->n_states; k++)
        if (strcmp(handover->states[k], name) == 0)
            return false;
    return true;
}

// True if the manifest says which ranks have this output, and it is not a state.
static bool is_placed(const struct handover *handover, const struct manifest_port *port)
{
    return port->kept && tsr__hand_is_result(handover, port->name);
}

// True if the manifest says which ranks have an output, so that outputs may have to be sent to rank
// 0 or joined. The result is the same on all ranks. States count too, although they stay on their
// ranks; is_placed excludes them per output.
bool tsr__hand_any(const struct handover *handover)
{
    return tsr__shards_any(handover->manifest->outputs, handover->manifest->n_outputs);
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

bool tsr__hand_gives(const struct handover *handover, int64_t rank)
{
    const struct manifest *manifest = handover->manifest;
    for (size_t i = 0; i < manifest->n_outputs; i++)
        if (is_placed(handover, &manifest->outputs[i]) && gives_of(manifest->outputs[i].kept, rank))
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

tsr_status tsr__hand_join(const struct handover *handover, tsr_tensors *const *sets,
                          tsr_tensors *outputs)
{
    const struct manifest *manifest = handover->manifest;
    for (size_t i = 0; i < manifest->n_outputs; i++) {
        const struct manifest_port *port = &manifest->outputs[i];
        tsr_status st = TSR_OK;
        if ((handover->places && tsr_tensors_find(handover->places, port->name) >= 0) ||
            (handover->placed && handover->placed[i]))
            continue;
        if (!port->kept)
            st = move_named(sets[0], port->name, outputs);
        else if (is_placed(handover, port) && tsr__layout_is_whole(port->kept))
            st = move_named(sets[tsr__shards_giver(port->kept, 0)], port->name, outputs);
        else if (is_placed(handover, port))
            st = tsr__shards_join(port, sets, outputs);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// ---- between processes --------------------------------------------------------------------------

// Describes the transfer of the outputs of a run. Both sides compare the description before they
// use the data, so that both refer to the same partition and run.
static struct comm_call call_of(const struct handover *handover, uint64_t run)
{
    return (struct comm_call){.plan = handover->plan,
                              .run = run,
                              .kind = COMM_SEND,
                              .type = TSR_UINT8,
                              .op = "outputs",
                              .node = "end of a run"};
}

// Sends this rank's outputs to rank 0. tsr__comm_give takes over the file and closes it, also after
// a failure.
tsr_status tsr__hand_give(const struct handover *handover, uint64_t run, const tsr_tensors *mine)
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
    struct comm_call call = call_of(handover, run);
    if (tsr__comm_give(handover->place, &call, message.fd, (size_t)bytes, &why) == TSR_OK)
        return TSR_OK;
    return tsr__run_peer_failed(handover->session, &why);
}

// Waits until rank 0 has read the oldest unread message of this rank. Called once per message, in
// the order of the runs.
tsr_status tsr__hand_settle(const struct handover *handover, uint64_t run)
{
    struct comm_trouble why = {0};
    struct comm_call call = call_of(handover, run);
    if (tsr__comm_settle(handover->place, &call, &why) == TSR_OK)
        return TSR_OK;
    return tsr__run_peer_failed(handover->session, &why);
}

static tsr_status take_from(const struct handover *handover, uint64_t run, int from,
                            tsr_tensors *to)
{
    struct comm_trouble why = {0};
    struct comm_call call = call_of(handover, run);
    struct message message;
    int fd = -1;
    size_t bytes = 0;
    if (tsr__comm_take(handover->place, &call, from, &fd, &bytes, &why) != TSR_OK)
        return tsr__run_peer_failed(handover->session, &why);
    TRY(tsr__message_open(fd, &message));
    // The file may be longer: only the first `bytes` are the message.
    message.end = bytes < message.end ? bytes : message.end;
    tsr_status st = tsr__message_tensors(&message, to);
    tsr__message_close(&message);
    return st;
}

// Receives the outputs of all ranks that send some, in rank order. Each rank sends before it waits,
// so this cannot deadlock.
tsr_status tsr__hand_take(const struct handover *handover, uint64_t run, tsr_tensors *const *sets)
{
    for (int r = 1; r < handover->place->size; r++) {
        if (tsr__hand_gives(handover, r))
            TRY(take_from(handover, run, r, sets[r]));
    }
    return TSR_OK;
}
