// SPDX-License-Identifier: Apache-2.0
// remote.h - ranks in workers on other hosts: what a session and a worker send each other.
//
// For each worker, the session has a child process, the relay (relay.c). It connects to the worker,
// which serves each session in a process of its own (worker_session.c). Both send notes as the
// processes of one host do (children.h), but over an authenticated connection (struct line):
//
//   relay                                  worker
//   HELLO + release, engine, CPU     -->   HELLO + release, engine, CPU
//   JOB + ranks, options, files      -->   looks the files up in its cache
//                                    <--   WANT + which files it lacks
//   FILE_BYTES + a file, for each    -->   writes it to its cache, checks its digest
//                                    <--   FILLED, or why it cannot run this job
//   (FILLED to the session)                forks its ranks
//   notes of the session             <->   notes of the ranks
//   END: the session has closed      -->   ends its ranks
//                                    <--   ENDED + status and diagnostics
//
// The worker sends a beat each second, so the relay detects one that was stopped.
#ifndef TSR_REMOTE_H
#define TSR_REMOTE_H

#include "runtime/children.h"
#include "runtime/runtime.h"

#include <stdatomic.h>

#define REMOTE_RELEASE 64
#define REMOTE_BEAT_S  1.0

// Words between relay and worker, in addition to those of children.h.
enum remote_word { HELLO = 64, JOB, WANT, FILE_BYTES, END, ENDED };

// ---- notes over a line (remote_notes.c) ---------------------------------------------------------

struct remote_note {
    int rank;
    struct note note;
    int fd;        // file that came with it; -1: none
    int64_t bytes; // of the file; -1: none
};
// Receives notes. The first fields are set by the caller.
struct remote_reader {
    struct line *line;
    int64_t most;          // limit of a file in bytes
    double silent_s;       // limit of the wait for the next frame; 0: none
    int into;              // file that gets the bytes; -1: a new unnamed one
    struct sha256 *digest; // of the bytes; or NULL
    char *buffer;
    int write_error;                // errno of a failed write; the note is lost
    atomic_uint_fast64_t *heard_ms; // time of the last frame; or NULL
};
tsr_status tsr__remote_reader(tsr_session *session, struct line *line,
                              struct remote_reader *out) TSR_MUST_USE;
void tsr__remote_reader_free(tsr_session *session, struct remote_reader *reader);
// Receives the next note; the caller closes its file. False: the connection ended, was silent too
// long, or the sender broke the protocol.
bool tsr__remote_receive(struct remote_reader *reader, struct remote_note *out);
// Sends a note with a file (-1: none). counter, if not NULL, counts the bytes. False: the other
// side is gone, the file became shorter, or `stops` returned true between two frames.
struct remote_sender {
    struct line *line;
    char *buffer; // LINE_BYTES
    atomic_uint_fast64_t *counter;
    bool (*stops)(void *data);
    void *data;
};
bool tsr__remote_send(struct remote_sender *sender, int rank, struct note note, int fd);
// Sends a note with a message, which is freed in every case.
bool tsr__remote_send_message(struct remote_sender *sender, int rank, struct note note,
                              struct message *message);
bool tsr__remote_beat(struct line *line);

// ---- between a line and the sockets of ranks (bridge.c) -----------------------------------------

enum bridge_state {
    BRIDGE_OPEN,
    BRIDGE_TOLD,  // the session has ended the job (END)
    BRIDGE_ENDED, // the worker has ended its ranks (ENDED, `last`)
    BRIDGE_LOST
};
struct bridge {
    tsr_session *session;
    struct remote_reader reader;
    struct remote_sender sender;
    struct children *children;
    int first, n; // ranks of the job behind this line
    int end;      // this process's end of their sockets
    bool *closed; // [n]: no more notes come from this socket
    int n_closed;
    int n_told;       // those that were closed by CLOSE
    atomic_int state; // enum bridge_state
    atomic_uint_fast64_t heard_ms;
    struct remote_note last;
    pthread_t thread;
    bool has_thread;
};
// Starts a thread that passes on notes from the line to the sockets.
tsr_status tsr__bridge_start(struct bridge *bridge) TSR_MUST_USE;
// Passes on notes from the sockets to the line; waits at most wait_ms for one. False: no more notes
// come from any socket.
bool tsr__bridge_pass(struct bridge *bridge, int wait_ms);
double tsr__bridge_silent_s(const struct bridge *bridge);
void tsr__bridge_end(struct bridge *bridge); // ends the line and the thread

// ---- messages (remote_words.c) ------------------------------------------------------------------

// What the two compare before anything else.
struct remote_hello {
    char release[REMOTE_RELEASE], engine[REMOTE_RELEASE];
    char machine[REMOTE_RELEASE]; // "x86_64"
    char cpu[128];                // "AMD EPYC 9654"; "": unknown
};
// The engine must be open.
void tsr__remote_hello(tsr_session *session, struct remote_hello *out);
void tsr__remote_put_hello(struct message *message, const struct remote_hello *hello);
bool tsr__remote_get_hello(struct message *message, struct remote_hello *out);

struct remote_file {
    struct str name; // a plain file name
    int64_t bytes;
    char sha256[65];
};
// What a worker must know to run its ranks. It accepts these fields and no others: no libraries,
// options of providers or paths.
struct remote_job {
    int64_t ranks, first, here;
    struct str token, network;
    struct str *map_devices;
    int64_t n_map_devices;
    tsr_run_options options; // only the fields that remote_words.c lists
    bool states;
    struct remote_file *files;
    int64_t n_files;
};
void tsr__remote_put_job(struct message *message, const struct remote_job *job);
// Checks all values. False: not valid.
bool tsr__remote_get_job(struct message *message, struct arena *arena, struct remote_job *out);

// ---- workers that a session starts (worker_start.c) ---------------------------------------------

struct started_worker {
    pid_t pid; // of the remote shell; 0: none
    int input; // its standard input; -1: none
};
// Starts a worker on a host by a remote shell. It runs until tsr__worker_stop.
tsr_status tsr__worker_start(tsr_session *session, const char *shell, const char *host, int port,
                             const char *secret, struct started_worker *out) TSR_MUST_USE;
// Returns the exit code (128 + signal) of a remote shell that ended with an error; 0: it has not.
int tsr__worker_start_failed(const struct started_worker *worker);
void tsr__worker_stop(struct started_worker *worker);

// ---- lists of hosts (hosts.c) -------------------------------------------------------------------

struct host_entry {
    struct str name; // without brackets
    int ranks;
};
// Reads the next entry of a list and moves *list behind it; NULL: it was the last one. False: the
// entry is not valid.
bool tsr__hosts_next(const char **list, struct host_entry *out);

// ---- the session (job_hosts.c, relay.c) ---------------------------------------------------------

struct host_state {
    atomic_uint_fast64_t sent, total; // bytes of files
};
// True if the options name hosts whose ranks live in workers.
bool tsr__run_in_workers(const tsr_run_options *options);
// Reads the list of hosts for a partition and sets the fields of the children.
tsr_status tsr__job_hosts_open(tsr_job *job, struct children *children) TSR_MUST_USE;
void tsr__job_hosts_close(struct job_hosts *hosts); // NULL is allowed
// Reports the hosts of a job; their names are in the arena.
tsr_status tsr__job_hosts_about(const tsr_job *job, struct arena *arena,
                                struct run_hosts *out) TSR_MUST_USE;
void tsr__job_hosts_progress(const struct children *children);
// Writes the address and port of rank 0, for OPEN.
void tsr__job_hosts_put_place(const struct children *children, struct message *message);
// Runs the relay of host `at`.
tsr_status tsr__relay_work(struct children *children, tsr_session *session, int at);

#endif
