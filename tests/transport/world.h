// SPDX-License-Identifier: Apache-2.0
// world.h - jobs of a few ranks as threads of a test: over threads.c, over net.c with mailboxes as
// a network ("net"), over shm_*.c ("shm"), or over UCX messages ("ucx"; TESSERA_UCX is the folder
// of its plug-in, without it the test is skipped).
#ifndef TSR_TEST_WORLD_H
#define TSR_TEST_WORLD_H

#include "transport/net/net.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#define MAX_WORLD 8
#define PATIENT   60 // timeout in seconds where nothing should fail, even on a busy machine

struct mailbox_net;
struct world {
    int n;
    bool net, shm, ucx; // ucx implies net
    struct shm_job *memory;
    tsr_session *session;
    tsr_session *own[MAX_WORLD]; // net: one session per rank, as processes have
    struct thread_job *job;
    struct mailbox_net *boxes;
    struct endpoint *e[MAX_WORLD];
    struct endpoint *messages[MAX_WORLD]; // net: the endpoint that sends messages
    bool failed[MAX_WORLD];
};

// What one rank does; its result is in status and why.
struct actor {
    struct world *w;
    int rank;
    void (*act)(struct actor *a);
    void *data;
    tsr_status status;
    struct comm_trouble why;
};

// kind: NULL (threads), "net", "crowded" (net, of ranks that share cores), "shm", "ucx", "hosts"
// (two hosts, with equal numbers of ranks or one more on the first), or "hosts " and the host of
// each rank: "hosts aab".
void world_open(struct world *w, int n, const char *kind, double timeout_s);
void world_run(struct world *w, struct actor *actors, void (*act)(struct actor *), void *data);
void world_close(struct world *w);
void world_mute(struct world *w, int rank); // net: messages of this rank are lost from now on
// net: messages of this rank arrive `late_s` seconds later than its heartbeats.
void world_delay(struct world *w, int rank, double late_s);
int world_sent(struct world *w, int from, int to); // net: messages of collectives so far
// net: true if a transfer of this rank from or into that memory is pending.
bool world_reaches(struct world *w, int rank, const void *p, size_t bytes);
int world_calls(struct world *w, int rank);
struct endpoint *actor_endpoint(struct actor *a);

// Test data of a rank, and its sums over n ranks, added in the order of the ranks. Element
// i + INPUT_PERIOD is equal to element i. Free the arrays.
#define INPUT_PERIOD 1009
float input_of(int rank, int64_t i);
float *inputs_of(int rank, int64_t count);
float *sums_of(int n, int64_t count);
// Fills `data` with copies of its first `period` bytes.
void repeat_bytes(void *data, size_t bytes, size_t period);

#endif
