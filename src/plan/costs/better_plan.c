// SPDX-License-Identifier: Apache-2.0
// better_plan.c - the only comparison of two plans. A plan that fits in memory is better than one
// that does not. Then the time counts, then the number of hosts, then the number of devices, then
// whether the plan needs a logical grid, which has more kinds of groups.
//
//     Example: 20 ms on 8 devices of one host and 19.999 ms on 16 devices of two hosts. The first
//     plan is better, because the second host saves less than PLAN_WORTH.
#include "plan/costs/planner.h"

int64_t tsr__planner_hosts(const struct planner *planner, int64_t devices)
{
    int64_t host = planner->machine.topology->host;
    return host > 0 ? (devices + host - 1) / host : 1;
}

// True if plan `a` uses less of the machine than `b`, or uses it in a plainer way.
static bool is_smaller(const struct plan_standing *a, const struct plan_standing *b)
{
    if (a->hosts != b->hosts)
        return a->hosts < b->hosts;
    if (a->devices != b->devices)
        return a->devices < b->devices;
    return !a->logical && b->logical;
}

bool tsr__plan_is_better(const struct plan_standing *a, const struct plan_standing *b, double worth)
{
    if (!a->any || !b->any)
        return a->any;
    if (a->fits != b->fits)
        return a->fits;
    if ((a->hosts != b->hosts || a->logical != b->logical) && worth < PLAN_WORTH)
        worth = PLAN_WORTH;
    double slack = worth * (double)b->time;
    if (is_smaller(a, b))
        return (double)a->time <= (double)b->time + slack;
    if (is_smaller(b, a))
        return (double)a->time < (double)b->time - slack;
    return a->time < b->time || (a->time == b->time && a->then < b->then);
}
