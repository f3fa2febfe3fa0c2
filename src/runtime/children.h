// SPDX-License-Identifier: Apache-2.0
// children.h - a job whose ranks are children that stay, as both sides see it: this process
// (job_children.c) sends notes, each child (servant.c) answers them.
//
// A note is a word and a status, with a file without a name where there is more to say (tensors,
// texts). Every child answers every note; a note that starts a run with the results of its rank, as
// soon as they are there, while the parent may have sent it more. A child that fails ends, which
// ends the others; what they say then is what the parent says from then on.
//
//   parent                          child 0                         child 1
//   (forks them)                    READY                           READY
//   START + whole inputs      -->   runs run 0                      runs run 0
//   START + whole inputs      -->   START + its results of run 0    ...
//   BARRIER                   -->   START + its results of run 1    START + its results of run 0
//                                   BARRIER                         START + ..., BARRIER
//   The parent keeps results that come before the answer that it waits for (struct results).
#ifndef TSR_CHILDREN_H
#define TSR_CHILDREN_H

#include "runtime/spawn.h"

enum word { READY, START, START_CUT, KEEP, BARRIER, TRACE, CLOSE };

struct note {
    int32_t word, status;
};

// Results of runs of one child that came before they were asked for, in order: files.
struct results {
    int fds[RUN_SLOTS];
    uint64_t came, taken;
};

struct children {
    tsr_session *session;
    struct spawn work;
    tsr_run_options options;
    const char *folder;
    bool states; // those that the manifest names are kept
    struct child_set *child_set;
    int (*sockets)[2];       // of each child: the parent's end, the child's
    struct results *results; // of each child
    tsr_status failed;       // what every later call says; TSR_OK: nothing has failed
};

// ---- notes.c
// fd: what goes along; -1: nothing. False: it could not be sent.
bool tsr__note_send(int to, struct note note, int fd);
// False: the other side is gone. *fd is -1 where nothing came along; else the caller's to close.
bool tsr__note_receive(int from, struct note *note, int *fd);
// Sends a note with a message, which is let go whether it could be sent or not.
bool tsr__note_send_message(int to, enum word word, struct message *message);

// ---- servant.c
// What child `rank` does from its start to its end: the work of a spawn whose data are struct
// children.
tsr_status tsr__servant_work(struct spawn *spawn, tsr_session *session, int rank,
                             struct message *out);

#endif
