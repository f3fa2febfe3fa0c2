// SPDX-License-Identifier: Apache-2.0
// player.c - plays steps of devices in time: the planner plays a plan, the simulator the rank
// graphs of a partition. Each device takes its steps one after the other, run after run. A meeting
// (communication) begins when all its devices have arrived, and ends for all of them at once.
//
//     Example: devices 0 and 1 compute A (3 and 5 ms), meet for 2 ms, then compute B (4 and 1 ms):
//         device 0   works 0..3   waits 3..5   meets 5..7   works 7..11
//         device 1   works 0..5                meets 5..7   works 7..8
//     One run ends at 11. In a second run device 1 does A from 8 to 13 and device 0 from 11 to 14.
//     The meeting begins at 14, so the second run ends at 14 + 2 + 4 = 20, and the period is
//     20 - 11 = 9.
//
// Links that several communications use at the same time (only different runs or pipeline stages
// overlap): the time of a communication already includes that its own groups share links. A link
// serves different communications one after the other, in the order in which they begin.
//
//     Example: stage 0 sums over devices 0 and 2 of a line 0-1-2-3, stage 1 over 1 and 3. Both use
//     the link 1-2 for 4 ms and take 5 ms alone. If both begin at 0, the first ends at 5 and the
//     second at 4 + 4 = 8, unless its other links take longer.
#include "topology/topology.h"

#define MOST_LINKS   ((size_t)1 << 16) // larger topologies are played without contention
#define NO_MEETING   SIZE_MAX
#define LEAST_STEADY 6 // with fewer runs, the last two give the period

// ---- links -------------------------------------------------------------------------------------

bool tsr__player_init(struct player *player, struct arena *arena, const tsr_topology *topology,
                      int64_t devices, bool contention)
{
    *player = (struct player){.arena = arena, .topology = topology, .n_devices = devices};
    player->devices = ARENA_ARRAY(arena, struct player_device, (size_t)devices + 1);
    if (contention && topology->links.n <= MOST_LINKS)
        player->load = ARENA_ARRAY(arena, double, topology->links.n + 1);
    return !arena->failed;
}

static void add_use(struct player_uses *uses, size_t link, double seconds)
{
    double ps = seconds * 1e12;
    for (size_t i = 0; i < uses->n; i++)
        if (uses->at[i].link == link) {
            uses->at[i].ps += ps;
            return;
        }
    uses->at[uses->n++] = (struct player_use){link, ps};
}

double *tsr__player_load(struct player *player)
{
    if (player->load)
        memset(player->load, 0, player->topology->links.n * sizeof *player->load);
    return player->load;
}

struct player_uses tsr__player_uses(struct player *player)
{
    const tsr_topology *topology = player->topology;
    struct player_uses uses = {0};
    size_t used = 0;
    for (size_t i = 0; i < topology->links.n; i++)
        used += player->load[i] > 0;
    uses.at = ARENA_ARRAY(player->arena, struct player_use, 3 * used + 1);
    for (size_t i = 0; i < topology->links.n && uses.at; i++) {
        const struct topology_link *link = &topology->links.at[i];
        double bytes = player->load[i];
        if (bytes <= 0)
            continue;
        add_use(&uses, i, bytes / link->bandwidth);
        if (link->out_port >= 0)
            add_use(&uses, topology->links.n + 2 * (size_t)link->out_port,
                    bytes / topology->ports.at[link->out_port].bandwidth);
        if (link->in_port >= 0)
            add_use(&uses, topology->links.n + 2 * (size_t)link->in_port + 1,
                    bytes / topology->ports.at[link->in_port].bandwidth);
    }
    return uses;
}

// ---- steps -------------------------------------------------------------------------------------

static bool add_step(struct player *player, int64_t device, struct player_step step)
{
    return vec_add(player->arena, &player->devices[device].steps, step);
}

bool tsr__player_work(struct player *player, int64_t device, int64_t ps)
{
    struct player_device *at = &player->devices[device];
    struct player_step *last = at->steps.n ? &at->steps.at[at->steps.n - 1] : NULL;
    if (!player->observe && last && last->meeting == NO_MEETING) {
        last->ps += (double)ps;
        return true;
    }
    return add_step(player, device, (struct player_step){(double)ps, NO_MEETING});
}

size_t tsr__player_meeting(struct player *player, const struct player_meeting *meeting)
{
    vec_add(player->arena, &player->meetings, *meeting);
    return player->meetings.n - 1;
}

bool tsr__player_join(struct player *player, int64_t device, size_t meeting)
{
    return add_step(player, device, (struct player_step){0, meeting});
}

// ---- meetings that are ready to begin ----------------------------------------------------------

static bool before(const struct player *player, size_t a, size_t b)
{
    const struct player_meeting *x = &player->meetings.at[a], *y = &player->meetings.at[b];
    return x->latest != y->latest ? x->latest < y->latest : a < b;
}

static void swap(size_t *a, size_t *b)
{
    size_t kept = *a;
    *a = *b;
    *b = kept;
}

// Adds a meeting to the heap, earliest first.
static bool add_ready(struct player *player, size_t meeting)
{
    if (!vec_add(player->arena, &player->ready, meeting))
        return false;
    size_t *heap = player->ready.at;
    for (size_t i = player->ready.n - 1; i && before(player, heap[i], heap[(i - 1) / 2]);
         i = (i - 1) / 2)
        swap(&heap[i], &heap[(i - 1) / 2]);
    return true;
}

static size_t take_ready(struct player *player)
{
    size_t *heap = player->ready.at, first = heap[0];
    heap[0] = heap[--player->ready.n];
    for (size_t i = 0, k; (k = 2 * i + 1) < player->ready.n; i = k) {
        if (k + 1 < player->ready.n && before(player, heap[k + 1], heap[k]))
            k++;
        if (!before(player, heap[k], heap[i]))
            break;
        swap(&heap[i], &heap[k]);
    }
    return first;
}

// ---- time --------------------------------------------------------------------------------------

// Reports the step to the observer, and advances the device. After its last step a device begins
// the next run at once. A run ends when its last device is done.
static void end_step(struct player *player, int64_t number, double begin, double end)
{
    struct player_device *device = &player->devices[number];
    if (player->observe)
        player->observe(player->data, &(struct player_span){.device = number,
                                                            .step = device->at,
                                                            .run = device->run,
                                                            .arrived = device->now,
                                                            .begin = begin,
                                                            .end = end});
    device->now = end;
    if (++device->at < device->steps.n)
        return;
    if (end > player->ends[device->run])
        player->ends[device->run] = end;
    device->at = 0;
    device->run++;
}

// Takes the steps of a device up to its next meeting, where it waits for the others.
static bool advance(struct player *player, int64_t number)
{
    struct player_device *device = &player->devices[number];
    while (device->steps.n && device->run < player->runs) {
        const struct player_step *step = &device->steps.at[device->at];
        if (step->meeting == NO_MEETING) {
            end_step(player, number, device->now, device->now + step->ps);
            continue;
        }
        struct player_meeting *meeting = &player->meetings.at[step->meeting];
        if (device->now > meeting->latest)
            meeting->latest = device->now;
        if (++meeting->arrived < meeting->n)
            return true;
        return add_ready(player, step->meeting);
    }
    return true;
}

// Returns the end of a meeting. Only other communications delay it. The links are occupied for the
// time of all its groups.
static double end_of(struct player *player, const struct player_meeting *meeting)
{
    double begin = meeting->latest, end = begin + (double)meeting->ps;
    for (size_t i = 0; player->links && i < meeting->uses.n; i++) {
        const struct player_use *use = &meeting->uses.at[i];
        struct player_link *link = &player->links[use->link];
        double until = (link->free > begin ? link->free : begin) + use->ps;
        // Communications are numbered from 0, and a link without a user has 0.
        if (link->by != meeting->id + 1 && until > end)
            end = until;
        if (until > link->free)
            link->free = until;
        link->by = meeting->id + 1;
    }
    return end;
}

static bool meet(struct player *player, struct player_meeting *meeting)
{
    double begin = meeting->latest, end = end_of(player, meeting);
    for (size_t i = 0; i < meeting->n; i++)
        end_step(player, meeting->devices[i], begin, end);
    meeting->arrived = 0; // for the next run
    meeting->latest = 0;
    for (size_t i = 0; i < meeting->n; i++)
        if (!advance(player, meeting->devices[i]))
            return false;
    return true;
}

// Starts all devices at time 0. Links are shared by different runs only.
static bool restart(struct player *player, size_t runs)
{
    const tsr_topology *topology = player->topology;
    player->runs = runs;
    player->ends = ARENA_ARRAY(player->arena, double, runs + 1);
    player->links = NULL;
    if (player->load && runs > 1)
        player->links = ARENA_ARRAY(player->arena, struct player_link,
                                    topology->links.n + 2 * topology->ports.n + 1);
    for (int64_t i = 0; i < player->n_devices; i++) {
        struct player_device *device = &player->devices[i];
        device->at = device->run = 0;
        device->now = 0;
    }
    return !player->arena->failed;
}

bool tsr__player_play(struct player *player, size_t runs)
{
    if (!restart(player, runs))
        return false;
    for (int64_t i = 0; i < player->n_devices; i++)
        if (!advance(player, i))
            return false;
    while (player->ready.n)
        if (!meet(player, &player->meetings.at[take_ready(player)]))
            return false;
    return !player->arena->failed;
}

bool tsr__player_is_done(const struct player *player)
{
    for (int64_t i = 0; i < player->n_devices; i++)
        if (player->devices[i].steps.n && player->devices[i].run < player->runs)
            return false;
    return true;
}

double tsr__player_end(const struct player *player)
{
    double end = 0;
    for (size_t i = 0; i < player->runs; i++)
        end = player->ends[i] > end ? player->ends[i] : end;
    return end;
}

// The first third of the runs fills a pipeline. In the last third, stages become idle one after the
// other, and fewer and fewer runs share links.
double tsr__player_period(const struct player *player)
{
    size_t runs = player->runs, first = runs / 3, last = 2 * runs / 3;
    if (runs < 2)
        return tsr__player_end(player);
    if (runs < LEAST_STEADY) {
        first = runs - 2;
        last = runs - 1;
    }
    return (player->ends[last] - player->ends[first]) / (double)(last - first);
}
