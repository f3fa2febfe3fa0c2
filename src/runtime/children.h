// SPDX-License-Identifier: Apache-2.0
// children.h - a job whose ranks are persistent child processes, as seen by both sides: the parent
// (job_children.c) sends notes, and each child (child_loop.c) answers them.
//
// A note is a command word and a status; tensors and texts are sent along as an unnamed file. Every
// child answers every note but CLOSE, unless it fails. To a note that starts a run, it answers with
// the results of its rank as soon as they are computed. The parent may have sent more notes
// meanwhile. A child that fails exits, which ends the other children. From then on the parent
// reports their diagnostics.
//
//   parent                          child 0                         child 1
//   (forks them)                    READY                           READY
//   START + full inputs       -->   runs run 0                      runs run 0
//   START + full inputs       -->   START + its results of run 0    ...
//   BARRIER                   -->   START + its results of run 1    START + its results of run 0
//                                   BARRIER                         START + ..., BARRIER
//   USE                       -->   USE + what it has used          ...
//
//   The parent keeps results that come before the answer that it waits for (struct results).
//
// With ranks on other hosts (remote.h), the ranks of this host are children as above. A further
// child, the relay, has the connection to a worker and the sockets of its ranks. It passes on notes
// in both directions, so the parent and each rank exchange the same notes as on one host. These
// ranks wait for OPEN, which says where rank 0 is, and join each other over UCX.
#ifndef TSR_CHILDREN_H
#define TSR_CHILDREN_H

#include "runtime/spawn.h"

enum word { READY, START, START_CUT, KEEP, BARRIER, TRACE, USE, CLOSE, OPEN, FILLED };

struct note {
    int32_t word, status;
};

// Files with results of one child that arrived before the caller asked for them, in order. came,
// taken: number of files that arrived, and of those that the caller has taken.
struct results {
    int fds[RUN_SLOTS];
    uint64_t came, taken;
};

// The hosts of a job's ranks. The first is this one; the others have workers.
struct job_host {
    const char *name; // without brackets
    int first, ranks;
    double ready_s; // from the start of the job until its ranks were ready
};
struct job_hosts {
    struct job_host *at;
    int n;
    int port;                  // of the workers
    const char *secret;        // shared with the workers
    const char *token;         // public text from which the secret of this job is derived
    struct host_state *states; // [n], in memory that this process shares with its children
};

struct children {
    tsr_session *session;
    struct spawn work;
    tsr_run_options options;
    const char *folder;
    bool states; // keep the states that the manifest names
    struct child_set *child_set;
    int ranks;               // number of sockets, one per rank
    int first;               // rank of the first socket
    int here;                // the first `here` ranks are children of this process
    bool apart;              // ranks join each other over UCX, after OPEN
    int64_t memory;          // limit of the data of each child in bytes; 0: none
    struct job_hosts *hosts; // NULL: no ranks on other hosts
    struct line *line;       // of a worker: closed in its ranks
    int (*sockets)[2];       // per rank: the parent's end, the child's end
    struct results *results; // per rank
    tsr_status failed;       // status that every later call returns; TSR_OK: nothing has failed
};

// ---- message.c
// Sends a note without a message. Returns false if the note could not be sent.
bool tsr__note_send(int to, struct note note);
// Receives a note. Returns false if the other side is gone. *fd is -1 if no file was sent along;
// otherwise the caller closes it.
bool tsr__note_receive(int from, struct note *note, int *fd);
// Sends a note with a message. The message is freed in every case. Both sides have a descriptor of
// its file, so this side need not keep the file open until the other side reads it. Returns false
// with errno EPIPE if the other side has closed the socket.
bool tsr__note_send_message(int to, struct note note, struct message *message);

// ---- job_children.c
// Creates the sockets of a set of children. Adds a diagnostic.
tsr_status tsr__children_sockets(struct children *children, struct arena *arena);
// Forks the children. The parent's ends of their sockets stay open. After a failure the set must
// still be closed.
tsr_status tsr__children_fork(struct children *children);
void tsr__children_close_sockets(const struct children *children);

// ---- child_loop.c
// Runs the main loop of child `rank`: the work function of a spawn whose data are struct children.
tsr_status tsr__child_loop_work(struct spawn *spawn, tsr_session *session, int rank,
                                struct message *out);

#endif
