// SPDX-License-Identifier: Apache-2.0
// pipeline_period.c - the time between consecutive runs of a pipeline. A device starts its next run
// when it is done with the one before. Different stages work on different runs at the same time, so
// their communications may need the same link. A link serves them one after the other, in the order
// in which they begin. The simulator does the same (simulate/shared_links.c).
//
//     Example: stage 0 reduces for 5 ms over a network port, and stage 1 receives for 3 ms through
//     the same port. Each stage takes 6 ms in total, so the period is 6 ms without contention. The
//     port is occupied for 8 ms in each run: this is the period.
#include "plan/stages/pipeline_events.h"

// An event of a device: the number of the event, and the index of the device in it.
struct turn {
    size_t event, index;
};
// The events of a device in one run. The device is at event `at` of run `run`.
struct queue {
    struct turn *turns;
    size_t n, at;
    size_t run;
    int64_t clock; // time at which the device is free
};
// A communication that waits for its devices: number of devices that have arrived, and the time at
// which the latest arrived.
struct meeting {
    size_t arrived;
    int64_t latest;
};
// The simulation of consecutive runs.
struct pace {
    const struct event_list *events;
    size_t runs;
    struct queue *queues;     // by device
    struct meeting *meetings; // by event
    VEC(size_t) ready;        // events whose devices have all arrived
    int64_t *ends;            // by run: end of its last event
    int64_t *free;            // by link and port: end of the last use
    size_t *by;               // by link and port: event of the last use, plus 1
    struct arena *arena;
};

// Lists the events of each device.
static bool fill_queues(struct pace *pace, size_t devices)
{
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t e = 0; e < pace->events->n; e++) {
            const struct event *event = &pace->events->at[e];
            for (size_t i = 0; i < event->n; i++) {
                struct queue *queue = &pace->queues[event->devices[i]];
                if (pass)
                    queue->turns[queue->n] = (struct turn){e, i};
                queue->n++;
            }
        }
        for (size_t d = 0; d < devices && !pass; d++) {
            struct queue *queue = &pace->queues[d];
            queue->turns = ARENA_ARRAY(pace->arena, struct turn, queue->n + 1);
            if (!queue->turns)
                return false;
            queue->n = 0;
        }
    }
    return true;
}

static void note_end(struct pace *pace, size_t run, int64_t end)
{
    pace->ends[run] = int64_max(pace->ends[run], end);
}

static void next_turn(struct queue *queue)
{
    if (++queue->at == queue->n) {
        queue->at = 0;
        queue->run++;
    }
}

// Runs the events of the device up to its next communication, where it waits for other devices.
static bool advance(struct pace *pace, struct queue *queue)
{
    while (queue->n && queue->run < pace->runs) {
        const struct turn *turn = &queue->turns[queue->at];
        const struct event *event = &pace->events->at[turn->event];
        if (event->meets) {
            struct meeting *meeting = &pace->meetings[turn->event];
            meeting->latest = int64_max(meeting->latest, queue->clock);
            size_t *ready = NULL;
            if (++meeting->arrived < event->n)
                return true;
            ready = vec_push(pace->arena, &pace->ready);
            if (ready)
                *ready = turn->event;
            return ready != NULL;
        }
        queue->clock += event->each ? event->each[turn->index] : event->ps;
        note_end(pace, queue->run, queue->clock);
        next_turn(queue);
    }
    return true;
}

// Returns the end of a communication. Only other communications delay it: its own time already
// includes that its groups share links.
static int64_t end_of(struct pace *pace, size_t e, int64_t begin)
{
    const struct event *event = &pace->events->at[e];
    int64_t end = begin + event->ps;
    for (size_t i = 0; i < event->uses.n; i++) {
        const struct link_use *use = &event->uses.at[i];
        int64_t *free = &pace->free[use->link], from = begin;
        bool others = pace->by[use->link] != e + 1;
        from = int64_max(from, *free);
        if (others)
            end = int64_max(end, from + use->ps);
        *free = int64_max(*free, from + use->ps);
        pace->by[use->link] = e + 1;
    }
    return end;
}

// Removes the communication that begins first from pace->ready, and returns its event.
static size_t take_first(struct pace *pace)
{
    size_t first = 0;
    for (size_t i = 1; i < pace->ready.n; i++)
        if (pace->meetings[pace->ready.at[i]].latest < pace->meetings[pace->ready.at[first]].latest)
            first = i;
    size_t e = pace->ready.at[first];
    pace->ready.at[first] = pace->ready.at[--pace->ready.n];
    return e;
}

static bool communicate(struct pace *pace, size_t e)
{
    const struct event *event = &pace->events->at[e];
    int64_t end = end_of(pace, e, pace->meetings[e].latest);
    pace->meetings[e] = (struct meeting){0};
    for (size_t i = 0; i < event->n; i++) {
        struct queue *queue = &pace->queues[event->devices[i]];
        queue->clock = end;
        note_end(pace, queue->run, end);
        next_turn(queue);
    }
    for (size_t i = 0; i < event->n; i++)
        if (!advance(pace, &pace->queues[event->devices[i]]))
            return false;
    return true;
}

bool tsr__pipeline_period(const struct planner *planner, struct arena *arena,
                          const struct event_list *events, size_t runs, int64_t *period)
{
    const tsr_topology *topology = planner->machine.topology;
    size_t devices = (size_t)planner->machine.n;
    size_t links = topology->links.n + 2 * topology->ports.n;
    struct pace pace = {.events = events,
                        .runs = runs,
                        .queues = ARENA_ARRAY(arena, struct queue, devices + 1),
                        .meetings = ARENA_ARRAY(arena, struct meeting, events->n + 1),
                        .ends = ARENA_ARRAY(arena, int64_t, runs + 1),
                        .free = ARENA_ARRAY(arena, int64_t, links + 1),
                        .by = ARENA_ARRAY(arena, size_t, links + 1),
                        .arena = arena};
    if (arena->failed || !fill_queues(&pace, devices))
        return false;
    for (size_t d = 0; d < devices; d++)
        if (!advance(&pace, &pace.queues[d]))
            return false;
    while (pace.ready.n)
        if (!communicate(&pace, take_first(&pace)))
            return false;
    // The first third of the runs fills the pipeline. In the last third, fewer and fewer stages
    // share links.
    size_t first = runs / 3, last = 2 * runs / 3;
    *period = (pace.ends[last] - pace.ends[first]) / (int64_t)(last - first);
    return true;
}
