// SPDX-License-Identifier: Apache-2.0
// contest.c - solves a problem of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism
// (google/iopddl): contest FILE(.json|.json.gz) [--seconds S] [--work CELLS] [--progress]. With
// --work the effort is counted, and the result is the same on every machine. Prints {"cost",
// "bound", "choices"}; progress goes to standard error.
#include "contest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void print(const struct contest *c, const struct program_result *r)
{
    printf("{\"cost\": %" PRId64 ", \"bound\": %" PRId64 ", \"gap\": %.6f, \"choices\": [", r->cost,
           r->bound, r->gap);
    for (size_t v = 0; v < c->costs.n; v++)
        printf(v ? ", %" PRIu32 : "%" PRIu32, r->choice[v]);
    printf("]}\n");
}

static void tell(void *context, const struct program_progress *t)
{
    (void)context;
    fprintf(stderr, "%7.2f s %s: %" PRIu32 " nodes, %" PRIu32 " edges, %" PRIu32 " rows, cost ",
            t->seconds, t->step, t->nodes, t->edges, t->rows);
    if (t->cost == COST_FORBIDDEN)
        fprintf(stderr, "none");
    else
        fprintf(stderr, "%" PRId64, t->cost);
    fprintf(stderr, ", bound %" PRId64 "\n", t->bound);
}

int main(int argc, char **argv)
{
    const char *path = NULL;
    double seconds = 60, start = now(), work = 0;
    bool progress = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--work") == 0 && i + 1 < argc)
            work = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--progress") == 0)
            progress = true;
        else
            path = argv[i];
    }
    if (!path || !(seconds > 0)) {
        fprintf(stderr, "usage: contest FILE(.json|.json.gz) [--seconds S] "
                        "[--work CELLS] [--progress]\n");
        return 2;
    }
    struct arena arena;
    struct contest c;
    struct program p;
    struct program_result r;
    tsr_session *s = tsr_session_new(NULL);
    if (!s)
        return 1;
    tsr__arena_init(&arena, s);
    int end = 1;
    if (!contest_read(path, &arena, &c) || !contest_program(&c, &p)) {
        fprintf(stderr, "contest: %s: %s\n", path, c.problem);
    } else {
        // Reserves time for printing and for a busy machine.
        struct program_options o = {.seconds = seconds * 0.95 - (now() - start) - 0.2,
                                    .progress = progress ? tell : NULL};
        if (o.seconds < 0.1)
            o.seconds = 0.1;
        if (work >= 1 && work < 1e18) {
            o.work = (uint64_t)work;
            o.seconds = 0;
        }
        tsr_status st = tsr__program_solve(&p, &o, &arena, &r);
        if (st != TSR_OK)
            fprintf(stderr, "contest: %s\n", tsr_status_text(st));
        else if (!r.feasible)
            printf("{\"cost\": null, \"bound\": %" PRId64 ", \"infeasible\": %s}\n", r.bound,
                   r.infeasible ? "true" : "false");
        else
            print(&c, &r);
        end = st == TSR_OK ? 0 : 1;
    }
    tsr__arena_free(&arena);
    tsr_session_free(s);
    return end;
}
