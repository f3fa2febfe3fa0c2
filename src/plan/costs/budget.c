// SPDX-License-Identifier: Apache-2.0
// budget.c - limits the effort of a plan. The limit is in seconds if the caller set one. Otherwise
// it is an amount of work, which is the same on every machine. All solves of one plan share one
// budget. Cancelling the session ends the budget.
//
// Every part of the search that takes long gets half of what is left, and the last part gets all of
// it (tsr__budget_next). Answers that must come soon share QUICK_PART (tsr__budget_quick): experts'
// plans before the search, and advice after it.
//
//     Example: 10 s for 6 experts' plans, all devices at once and two sets. Each expert's plan may
//     take about 0.4 s. If they end after 1 s, all at once get 4.5 s, the first set 2.25 s, and the
//     last set the rest.
#include "plan/costs/planner.h"

#include <math.h>
#include <stdio.h>

#define TOTAL_WORK UINT64_C(1000000000) // cells that all solves may visit: about ten seconds
#define SOLVE_WORK UINT64_C(500000000)  // cells that one solve may visit
#define LEAST_WORK UINT64_C(20000000)   // cells that a solve gets even if the budget is used up
#define QUICK_WORK UINT64_C(50000000)   // cells that a quick answer may visit
#define QUICK_PART 0.25                 // part of the budget for all quick answers of one kind
#define RESERVE    0.05 // fraction of the seconds that is reserved for writing the plan

void tsr__budget_start(struct budget *budget, tsr_session *session, double seconds)
{
    double now = tsr__now_s();
    *budget = (struct budget){.session = session, .begin = now, .work = TOTAL_WORK};
    if (seconds > 0) {
        budget->end = now + seconds * (1 - RESERVE);
        budget->work = UINT64_MAX;
    }
}

bool tsr__budget_over(const struct budget *budget)
{
    return tsr__cancelled(budget->session) || (budget->end > 0 && tsr__now_s() >= budget->end);
}

void tsr__budget_spend(struct budget *budget, uint64_t work)
{
    for (; budget; budget = budget->whole)
        if (!(budget->end > 0)) // otherwise, seconds are the limit
            budget->work -= work < budget->work ? work : budget->work;
}

// ---- progress ----------------------------------------------------------------------------------

// Reports the progress of a solve: "best 12.3 ms, bound 12.1 ms, gap 1.6 %; second 4 of 20"
static void report_progress(void *context, const struct program_progress *progress)
{
    const struct budget *budget = context;
    char text[128];
    double ms = 1e-9, cost = (double)progress->cost * ms, bound = (double)progress->bound * ms;
    double seconds = tsr__now_s() - budget->begin, all = 10;
    const char *unit = "second, of about";
    if (!budget->session->progress_fn)
        return;
    if (budget->end > 0) {
        unit = "second";
        all = budget->end - budget->begin;
    }
    if (progress->cost == COST_FORBIDDEN)
        snprintf(text, sizeof text, "no plan yet, bound %.4g ms; %s", bound, unit);
    else
        snprintf(text, sizeof text, "best %.4g ms, bound %.4g ms, gap %.2g %%; %s", cost, bound,
                 cost > 0 ? 100 * (cost - bound) / cost : 0, unit);
    if (all < seconds + 1)
        all = seconds + 1;
    tsr__progress(budget->session, text, (uint64_t)seconds, (uint64_t)all);
}

void tsr__budget_clear_progress(const struct budget *budget)
{
    tsr__progress(budget->session, "plan", 1, 1);
}

// ---- shares ------------------------------------------------------------------------------------

// Returns a budget with that fraction of the remaining budget.
static struct budget part_of(struct budget *budget, double fraction)
{
    struct budget part = *budget;
    part.whole = budget;
    if (budget->end > 0)
        part.end = tsr__now_s() + fmax((budget->end - tsr__now_s()) * fraction, 1e-3);
    else
        part.work = (uint64_t)((double)budget->work * fraction);
    return part;
}

struct budget tsr__budget_next(struct budget *budget, bool last)
{
    return part_of(budget, last ? 1 : 0.5);
}

struct budget tsr__budget_quick(struct budget *budget, size_t n)
{
    struct budget part = part_of(budget, QUICK_PART / (double)n);
    if (part.work > QUICK_WORK)
        part.work = QUICK_WORK;
    return part;
}

// Without a limit in seconds, a solve gets between LEAST_WORK and SOLVE_WORK.
struct program_options tsr__budget_share(struct budget *budget, double fraction)
{
    struct program_options options = {.progress = report_progress, .context = budget};
    if (budget->end > 0) {
        options.seconds = fmax((budget->end - tsr__now_s()) * fraction, 1e-3);
        return options;
    }
    double work = fmin((double)budget->work * fraction, (double)SOLVE_WORK);
    options.work = (uint64_t)fmax(work, (double)LEAST_WORK);
    return options;
}

bool tsr__planner_late(struct planner *planner)
{
    struct planner_pace *pace = &planner->pace;
    if (pace->late)
        return true;
    if (pace->cancels && tsr__cancelled(planner->session))
        pace->late = true;
    if (pace->end > 0 && tsr__now_s() >= pace->end)
        pace->late = true;
    return pace->late;
}
