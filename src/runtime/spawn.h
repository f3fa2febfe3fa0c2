// SPDX-License-Identifier: Apache-2.0
// spawn.h - ranks as child processes: what they do, and what they hand back.
#ifndef TSR_SPAWN_H
#define TSR_SPAWN_H

#include "runtime/internal.h"

// A child writes, its parent reads, in the same order. Failure is sticky: zeros are read after it.
struct message {
    int fd;
    char *buffer; // writing
    size_t n;
    const char *bytes; // reading
    size_t at, end;
    bool failed;
};
struct message tsr__message_new(void);            // to write into; its fd is -1 after a failure
bool tsr__message_flush(struct message *message); // false: not all of it was written
void tsr__message_put(struct message *message, const void *bytes, size_t n);
void tsr__message_drop(struct message *message); // its buffer
void tsr__message_put_int(struct message *message, int64_t v);
void tsr__message_put_text(struct message *message, struct str text);
void tsr__message_put_tensors(struct message *message, const tsr_tensors *tensors);
void tsr__message_put_findings(struct message *message, const tsr_session *session);
// Opens a message that came along for reading, to be closed; the descriptor is closed.
bool tsr__message_open(int fd, struct message *message);
void tsr__message_close(const struct message *message);
// Reading gives views into the message.
const void *tsr__message_get(struct message *message, size_t n); // NULL: fewer are left
int64_t tsr__message_int(struct message *message);
struct str tsr__message_text(struct message *message);
tsr_status tsr__message_tensors(struct message *message, tsr_tensors *to);
// Adds the findings to s. True if one of them says that the rank failed by itself, not because
// another did.
bool tsr__message_findings(struct message *message, tsr_session *session, bool add);

// What the children do, and what happens with their results. s is the caller's session: in a child
// it is the child's copy, and knows its rank in the job (tsr__run_join).
struct spawn {
    int n;
    const tsr_run_options *options;
    // persistent: the parent may not poll for a while, so the children detect each other's death
    bool stays;
    tsr_status (*work)(struct spawn *spawn, tsr_session *session, int rank, struct message *out);
    tsr_status (*take)(struct spawn *spawn, tsr_session *session, int rank, struct message *in);
    void *data;
};
// Starts one process per rank, in their order, waits for all, takes what they hand back. Whatever
// happens, no child is left when it returns.
tsr_status tsr__spawn(tsr_session *session, struct spawn *spawn);

// The same in steps, for children that stay: started; true once one of them has ended or the job
// has failed; waited for, heard and let go, as above. *out is to be closed even after a failure, if
// it is not NULL.
struct child_set;
tsr_status tsr__child_set_open(tsr_session *session, struct spawn *spawn, struct child_set **out);
bool tsr__child_set_over(struct child_set *child_set);
tsr_status tsr__child_set_close(struct child_set *child_set);

// ---- transports.c
// True where this process is no rank itself and the ranks are to be its children.
bool tsr__run_spawns(tsr_session *session, const tsr_run_options *options);

// ---- processes.c
// Number of ranks of a partition whose files are all there and whole; ONNX Runtime is opened too,
// so that children have it.
tsr_status tsr__run_prepare(tsr_session *session, const char *folder,
                            const tsr_run_options *options, int *ranks);

#endif
