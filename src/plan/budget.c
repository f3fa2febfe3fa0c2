// SPDX-License-Identifier: Apache-2.0
// budget.c - what making a plan may take: seconds where the caller gave some, else work, which is the same on every
// machine. All solves of one plan draw on one budget, and cancelling the session spends what is left.
#include "plan/internal.h"

#include <stdio.h>
#include <time.h>

#define TOTAL_WORK UINT64_C(8000000000) // cells of all solves together: some twenty seconds
#define SOLVE_WORK UINT64_C(4000000000) // of one of them
#define LEAST_WORK UINT64_C(20000000)   // what a solve gets even if nothing is left
#define RESERVE    0.05                 // of the seconds: for writing what was found

double tsr__clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void tsr__budget_start(struct budget *b, tsr_session *s, double seconds)
{
    double now = tsr__clock();
    *b = (struct budget){.session = s, .begin = now, .work = TOTAL_WORK};
    if (seconds > 0) {
        b->end = now + seconds * (1 - RESERVE);
        b->work = UINT64_MAX;
    }
}

bool tsr__budget_over(const struct budget *b)
{
    return tsr__cancelled(b->session) || (b->end > 0 && tsr__clock() >= b->end);
}

void tsr__budget_spend(struct budget *b, uint64_t work)
{
    if (b->end <= 0)
        b->work = b->work > work ? b->work - work : 0;
}

// ---- progress ----------------------------------------------------------------------------------

// "best 12.3 ms, bound 12.1 ms, gap 1.6 %; second 4 of 20"
static void tell(void *context, const struct program_told *told)
{
    const struct budget *b = context;
    char text[128];
    double ms = 1e-9, cost = (double)told->cost * ms, bound = (double)told->bound * ms;
    if (!b->session->progress_fn)
        return;
    const char *unit = b->end > 0 ? "second" : "second, of about";
    if (told->cost == COST_FORBIDDEN)
        snprintf(text, sizeof text, "no plan yet, bound %.4g ms; %s", bound, unit);
    else
        snprintf(text, sizeof text, "best %.4g ms, bound %.4g ms, gap %.2g %%; %s", cost, bound,
                 cost > 0 ? 100 * (cost - bound) / cost : 0, unit);
    double seconds = tsr__clock() - b->begin, all = b->end > 0 ? b->end - b->begin : 20;
    if (all < seconds + 1)
        all = seconds + 1;
    tsr__progress(b->session, text, (uint64_t)seconds, (uint64_t)all);
}

void tsr__budget_told(const struct budget *b)
{
    tsr__progress(b->session, "plan", 1, 1);
}

// ---- shares ------------------------------------------------------------------------------------

// Options of the next solve: `fraction` of what is left, at least a little.
struct program_options tsr__budget_share(struct budget *b, double fraction)
{
    struct program_options o = {.tell = tell, .context = b};
    if (b->end > 0) {
        double left = (b->end - tsr__clock()) * fraction;
        o.seconds = left > 1e-3 ? left : 1e-3;
        return o;
    }
    double work = (double)b->work * fraction;
    o.work = work < (double)SOLVE_WORK ? (uint64_t)work : SOLVE_WORK;
    o.work = o.work > LEAST_WORK ? o.work : LEAST_WORK;
    return o;
}
