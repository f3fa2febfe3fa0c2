// SPDX-License-Identifier: Apache-2.0
// spawn.h - ranks as child processes: their work function and their messages.
#ifndef TSR_SPAWN_H
#define TSR_SPAWN_H

#include "runtime/internal.h"

// A message between two processes of a job: one writes, the other reads in the same order. After a
// failed read, all reads return 0, "" or NULL.
struct message {
    int fd;
    char *buffer; // for writing
    size_t n;
    const char *bytes;      // for reading
    size_t at, end, mapped; // the map may be longer than the message
    bool failed;
};
struct message tsr__message_new(void);            // for writing; its fd is -1 after a failure
bool tsr__message_flush(struct message *message); // false: not everything was written
void tsr__message_put(struct message *message, const void *bytes, size_t n);
void tsr__message_drop(struct message *message); // frees the buffer
void tsr__message_put_int(struct message *message, int64_t v);
void tsr__message_put_text(struct message *message, struct str text);
void tsr__message_put_tensors(struct message *message, const tsr_tensors *tensors);
void tsr__message_put_findings(struct message *message, const tsr_session *session);
// Opens a received message for reading; after TSR_OK it must be closed. The descriptor is closed
// here. TSR_BUG: the sender attached no file, or an empty one. TSR_NOMEM: it cannot be mapped.
tsr_status tsr__message_open(int fd, struct message *message) TSR_MUST_USE;
void tsr__message_close(const struct message *message);
// Read from the message. The results point into it.
const void *tsr__message_get(struct message *message, size_t n); // NULL: fewer bytes are left
int64_t tsr__message_int(struct message *message);
struct str tsr__message_text(struct message *message);
tsr_status tsr__message_tensors(struct message *message, tsr_tensors *to);
// Reads diagnostics, and adds them to the session if `add` is set. Returns true if one of them
// shows that the rank failed by itself, not because of another.
bool tsr__message_findings(struct message *message, tsr_session *session, bool add);

// What children do: each child calls `work`, and the parent reads its results with `take`. In a
// child the session is a copy, in which tsr__run_join returns the child's endpoint.
struct spawn {
    int n;
    const tsr_run_options *options;
    // persistent: the parent may not poll for a while, so the children detect each other's death
    bool stays;
    int first;       // rank of the first child, if they are apart
    char ended[128]; // if they are apart: the first one that died by itself, and how
    char where[256]; // ranks on other hosts, for messages; empty: none
    int pinned;      // number of the first children that share the cores; 0: all
    bool apart; // children join each other by themselves; shared memory has their heartbeats only
    double grace_s; // time for children that are no ranks to exit after a failure; 0: GRACE_S
    tsr_status (*work)(struct spawn *spawn, tsr_session *session, int rank, struct message *out);
    tsr_status (*take)(struct spawn *spawn, tsr_session *session, int rank, struct message *in);
    void *data;
};
// Starts one process per rank, in order, waits for all, and reads their results. No child is left
// when it returns.
tsr_status tsr__spawn(tsr_session *session, struct spawn *spawn);

// As tsr__spawn, for the ranks of a partition or, with `unsharded`, for one child that runs a
// model, so that this process does not use its GPU. Children are forks: they inherit `inputs`
// without a copy, but not GPU memory of this process.
tsr_status tsr__spawn_runs(tsr_session *session, const char *path, bool unsharded,
                           const tsr_tensors *inputs, struct spawn *spawn);

// As tsr__spawn, in steps, for persistent children. tsr__child_set_open starts them.
// tsr__child_set_over is true once one of them has ended or the job has failed.
// tsr__child_set_stop limits the time in which they must exit. tsr__child_set_close waits for them
// and reads their results. If *out is not NULL, it must be closed even after a failure.
struct child_set;
tsr_status tsr__child_set_open(tsr_session *session, struct spawn *spawn, struct child_set **out);
bool tsr__child_set_over(struct child_set *child_set);
void tsr__child_set_stop(struct child_set *child_set);
tsr_status tsr__child_set_close(struct child_set *child_set);

// ---- transports.c
// True if this process is not a rank itself and its ranks must be child processes.
bool tsr__run_spawns(tsr_session *session, const tsr_run_options *options);

// ---- run_checks.c
// Checks the files of a partition, opens ONNX Runtime for the children, and returns the number of
// ranks.
tsr_status tsr__run_prepare(tsr_session *session, const char *folder,
                            const tsr_run_options *options, int *ranks);

#endif
