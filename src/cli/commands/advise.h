// SPDX-License-Identifier: Apache-2.0
// advise.h - what the files of `tessera advise` share: the question, one row for each machine, and
// the queue of requests at a machine.
#ifndef TSR_ADVISE_H
#define TSR_ADVISE_H

#include "cli/cli.h"

#define MAX_BOXES 64
#define MAX_KINDS 16 // of requests

// Limits in milliseconds; 0: none.
struct limits {
    double tpot, ttft;
};

// Requests of one kind: --load rate=2,answer=500,seq=4096.
struct kind {
    double rate;    // requests per second
    int64_t answer; // tokens
    struct cli_dims dims;
};

// What a machine does. BOTH: it reads prompts and generates, with one set of weights.
enum role { BOTH, PROMPTS, ANSWERS };

// One machine and its best plan. Times are in milliseconds.
struct row {
    const char *box;
    const char *basis; // what its speeds rest on
    enum role role;
    int devices;
    int64_t batch;             // 0: no plan meets the limits
    int64_t count;             // machines that serve all users or the load; else 1
    double milliseconds;       // one run of that batch, or of one request if even one is too slow
    double token;              // per output token and request, with the time of others' prompts
    double ttft;               // one prompt; 0: not planned
    double prompts[MAX_KINDS]; // one prompt of each kind
    double rate;               // requests per second that one machine serves; 0: no --load
    double ttft_95, tpot_95;   // within which 95 % of the requests stay at the load
    int64_t *memory, *prefill_memory; // bytes by device, or NULL
    int64_t needs_bytes; // memory that each device needs, if even one request does not fit
    double dollars;      // per hour and machine; 0: unknown
};

struct advice {
    struct cli *cli;
    struct limits limits;
    const char *batch;   // name of the dimension that counts requests
    const char *prefill; // model that reads prompts, or NULL
    const char *prompts; // name of the dimension that counts its prompts
    int64_t memory, most, users, answer;
    int64_t together; // prompts that are read in one run
    double seconds;
    bool pools;
    struct cli_dims dims, prefill_dims;
    const char **states;
    size_t n_states;
    struct kind kinds[MAX_KINDS];
    size_t n_kinds;
    struct row rows[2 * MAX_BOXES];
    size_t n_rows;
};

// Finds the best plan of the row's machine (advise_plans.c). Returns 0 or an exit code.
int advise_machine(struct advice *advice, struct row *row);
// Sets a size; if `larger`, only to a larger one.
void advise_set_size(struct cli_dims *dims, const char *name, int64_t size, bool larger);
// Sizes of the model that reads prompts: of one kind, or (NULL) the largest of all kinds.
void advise_prompt_sizes(const struct advice *advice, const struct kind *kind,
                         struct cli_dims *out);
// Requests per second of all kinds, and the mean length of their answers.
double advise_rate(const struct advice *advice);
double advise_answer(const struct advice *advice);

// ---- the queue of a machine (advise_queue.c) ---------------------------------------------------

// A machine that serves a mix of requests. Times are in milliseconds.
struct queue {
    const struct kind *kinds;
    size_t n_kinds;
    const double *prompts; // by kind; NULL: other machines read the prompts
    double step;           // of one token of all requests in the batch
    int64_t slots;         // requests in the batch; 0: other machines generate
    int64_t together;      // prompts that are read in one run
};
struct service {
    double ttft, tpot; // within which 95 % of the requests stay
};

// Plays requests that arrive at random, `rate` per second in all.
struct service advise_play(const struct queue *queue, double rate);
// Returns the largest rate at which 95 % of the requests stay within each limit; 0: none.
double advise_largest_rate(const struct queue *queue, const struct limits *limits);

#endif
