// SPDX-License-Identifier: Apache-2.0
// schedules.c - the algorithms of collectives that the transports run, each as a schedule of steps
// of messages. What no transport runs is not listed, so it has no predicted time.
//
// A schedule lists the messages of each step: sender, receiver and bytes. Its listener computes
// times or loads. Reductions are gathers and broadcasts that are mirrored in time and direction. An
// all-reduce is a reduce-scatter followed by an all-gather, or one exchange for small tensors.
//
// Worked example: 4 devices all-gather 8 bytes, 2 from each.
//   direct: 1 step, every device sends its 2 bytes to the 3 others;
//   ring:   3 steps, in each of them every device sends 2 bytes to the next one.
#include "topology/internal.h"
#include "collective/collective.h"

// One run of a schedule: `bytes` is the size of the full tensor of one group.
struct schedule {
    tsr_topology *topology;
    const struct topology_groups *groups;
    double bytes;
    const struct listener *to;
    const struct groups_by_hosts *parts; // of algorithms BY_HOSTS
};

// Returns the number of equal steps that are reported together: all for listeners that compute
// times, else 1.
static int repetitions(const struct schedule *at, int steps)
{
    return at->to->exchange ? steps : 1;
}

static void end_step(const struct schedule *at, int times)
{
    at->to->step_ends(at->to->data, times);
}

// Passes a message to the listener; mirrored: in the opposite direction.
static void send_message(const struct schedule *at, bool mirrored, int from, int dest, double bytes)
{
    at->to->message(at->to->data, mirrored ? dest : from, mirrored ? from : dest, bytes);
}

// Passes a message from member `from` to member `dest` of group k to the listener.
static void send_member(const struct schedule *at, bool mirrored, int k, int from, int dest,
                        double bytes)
{
    const int *members = at->groups->device + (size_t)k * (size_t)at->groups->size;
    send_message(at, mirrored, members[from], members[dest], bytes);
}

// ---- all-gather (mirrored: reduce-scatter)

// Gathers round a ring, in the order of the members. A reduce-scatter sends in the same direction.
static bool ring(const struct schedule *at, bool mirrored)
{
    int n = at->groups->size, times = repetitions(at, n - 1);
    (void)mirrored;
    for (int step = 0; step < n - 1; step += times) {
        for (int k = 0; k < at->groups->count; k++)
            for (int i = 0; i < n; i++)
                send_member(at, false, k, i, (i + 1) % n, at->bytes / n);
        end_step(at, times);
    }
    return true;
}

#define MANY 256 // for larger groups, all pairs are analysed together

// A step in which every member sends `piece` bytes to every other one. Large groups use `exchange`:
// 4096 members would send 16 million messages.
static bool send_to_all(const struct schedule *at, bool mirrored, double piece)
{
    const struct topology_groups *groups = at->groups;
    if (at->to->exchange && groups->size > MANY) // mirroring makes no difference
        at->to->exchange(at->to->data, groups, piece);
    else
        for (int k = 0; k < groups->count; k++)
            for (int i = 0; i < groups->size; i++)
                for (int j = 1; j < groups->size; j++)
                    send_member(at, mirrored, k, i, (i + j) % groups->size, piece);
    end_step(at, 1);
    return true;
}

// Gathers in one step: every member sends its piece to every other one.
static bool direct(const struct schedule *at, bool mirrored)
{
    return send_to_all(at, mirrored, at->bytes / at->groups->size);
}

// ---- over a grid: rings along one side after the other

// A grid of devices with at least two sides, all longer than 1. So a row of a 4 x 8 torus is not a
// grid (see grid_of).
struct grid {
    int n, side[8];
    int *at; // device of each cell, row-major
};

// Finds the rectangular part of the topology's grid that the devices of a single group fill. False:
// there are several groups, the members are not ascending, or they do not fill such a part with at
// least two sides.
static bool grid_of(tsr_topology *topology, const struct topology_groups *groups, struct grid *out)
{
    // The smallest rectangular part of the grid that contains all members.
    int low[8], high[8], cells = 1;
    if (topology->n_grid < 2 || groups->count != 1)
        return false;
    for (int d = 0; d < topology->n_grid; d++)
        low[d] = INT32_MAX, high[d] = -1;
    for (int i = 0; i < groups->size; i++)
        for (int d = topology->n_grid - 1, rest = groups->device[i]; d >= 0; d--) {
            int c = rest % topology->grid[d];
            rest /= topology->grid[d];
            if (c < low[d])
                low[d] = c;
            if (c > high[d])
                high[d] = c;
        }
    out->n = 0;
    for (int d = 0; d < topology->n_grid; d++) {
        cells *= high[d] - low[d] + 1;
        if (high[d] > low[d])
            out->side[out->n++] = high[d] - low[d] + 1;
    }
    out->at = (int *)groups->device; // row-major, because the devices are ascending
    for (int i = 1; i < groups->size; i++)
        if (groups->device[i] <= groups->device[i - 1])
            return false;
    return cells == groups->size && out->n >= 2;
}

// Runs one step of all rings along one side, with half of the piece in each direction. Example: on
// 2x3 the second side has stride 1, and cell 2 (row 0, column 2) sends to cell 0.
static void line_step(const struct schedule *at, const struct grid *grid, int side, double piece,
                      bool mirrored)
{
    int n = grid->side[side], stride = 1;
    for (int d = grid->n - 1; d > side; d--)
        stride *= grid->side[d];
    for (int i = 0; i < at->groups->size; i++) {
        int c = i / stride % n, next = i - c * stride + (c + 1) % n * stride;
        send_message(at, mirrored, grid->at[i], grid->at[next], piece / 2);
        send_message(at, mirrored, grid->at[next], grid->at[i], piece / 2);
    }
}

// Gathers by rings along one side after the other. The first side, which is between hosts and slow
// in a grid of hosts, comes first, while pieces are small. Example: 2 x 3 with 6 bytes. Along the
// side of 2 there is one step with pieces of 1 byte, half of each in either direction. Then along
// the side of 3 there are two steps with pieces of 2 bytes. False: the devices fill no grid
// (grid_of).
static bool by_sides(const struct schedule *at, bool mirrored)
{
    struct grid grid;
    if (!grid_of(at->topology, at->groups, &grid))
        return false;
    for (int phase = 0; phase < grid.n; phase++) {
        int side = mirrored ? grid.n - 1 - phase : phase, steps = grid.side[side] - 1;
        int times = repetitions(at, steps);
        double piece = at->bytes / at->groups->size; // with what was gathered along earlier sides
        for (int before = 0; before < side; before++)
            piece *= grid.side[before];
        for (int step = 0; step < steps; step += times) {
            line_step(at, &grid, side, piece, mirrored);
            end_step(at, times);
        }
    }
    return true;
}

// ---- all-reduce of small tensors

// In one step, every member sends its full tensor to every other one.
static bool one_shot(const struct schedule *at, bool mirrored)
{
    return send_to_all(at, mirrored, at->bytes);
}

// ---- broadcast (mirrored: reduce)

// The first member sends to each other one.
static bool from_first(const struct schedule *at, bool mirrored)
{
    for (int k = 0; k < at->groups->count; k++)
        for (int i = 1; i < at->groups->size; i++)
            send_member(at, mirrored, k, 0, i, at->bytes);
    end_step(at, 1);
    return true;
}

// ---- all-to-all: each device has bytes / n and sends an n-th of that to every other one

static bool exchange(const struct schedule *at, bool mirrored)
{
    return send_to_all(at, mirrored, at->bytes / at->groups->size / at->groups->size);
}

// ---- by hosts (by_hosts.c, transport/net/by_hosts.c)

// In one step every member of these groups sends `piece` bytes to every other one.
static void exchange_in(const struct schedule *at, const struct topology_groups *groups,
                        bool mirrored, double piece)
{
    struct schedule part = *at;
    part.groups = groups;
    send_to_all(&part, mirrored, piece);
}

// Sends along the chains of all lanes and back. The pieces of a large tensor follow each other, so
// all links are used at the same time, in both directions. The first piece waits for every link,
// which matters only to listeners that compute times.
static void chains(const struct schedule *at, double piece)
{
    const struct topology_groups *lanes = &at->parts->lanes;
    int waits = 2 * (lanes->size - 1) - 1;
    for (int wait = 0; wait < (at->to->exchange ? 2 : 1); wait++) {
        for (int k = 0; k < lanes->count; k++)
            for (int h = 0; h + 1 < lanes->size; h++) {
                const int *lane = lanes->device + (size_t)k * (size_t)lanes->size;
                send_message(at, false, lane[h], lane[h + 1], wait ? 0 : piece);
                send_message(at, true, lane[h], lane[h + 1], wait ? 0 : piece);
            }
        end_step(at, wait ? waits : 1);
    }
}

// All-reduce: each lane reduces its part of the tensor.
static bool lanes_reduce(const struct schedule *at, bool mirrored)
{
    const struct topology_groups *near = &at->parts->near;
    (void)mirrored;
    exchange_in(at, near, true, at->bytes / near->size);
    chains(at, at->bytes / near->size);
    exchange_in(at, near, false, at->bytes / near->size);
    return true;
}

// Reduce-scatter: each lane reduces its part of every shard. Direct messages between the hosts
// would send more.
static bool lanes_scatter(const struct schedule *at, bool mirrored)
{
    const struct topology_groups *near = &at->parts->near;
    (void)mirrored;
    exchange_in(at, near, true, at->bytes / near->size);
    chains(at, at->bytes / near->size);
    exchange_in(at, near, false, at->bytes / at->groups->size / near->size);
    return true;
}

// All-gather: a lane brings the shards of its members to all hosts.
static bool lanes_gather(const struct schedule *at, bool mirrored)
{
    const struct groups_by_hosts *parts = at->parts;
    double shard = at->bytes / at->groups->size;
    exchange_in(at, &parts->near, mirrored, shard);
    exchange_in(at, &parts->lanes, mirrored, shard);
    exchange_in(at, &parts->near, mirrored, shard * (parts->lanes.size - 1));
    return true;
}

// Small all-reduce: the first member of each host sends the tensors of its host to those of the
// other hosts, and the sum to its host.
static bool first_ranks(const struct schedule *at, bool mirrored)
{
    const struct topology_groups *near = &at->parts->near, *lanes = &at->parts->lanes;
    struct schedule part = *at;
    (void)mirrored;
    part.groups = near;
    (void)from_first(&part, true);
    for (int k = 0; k < lanes->count; k += near->size) {
        const int *firsts = lanes->device + (size_t)k * (size_t)lanes->size;
        for (int from = 0; from < lanes->size; from++)
            for (int to = 0; to < lanes->size; to++)
                if (from != to)
                    send_message(at, false, firsts[from], firsts[to], at->bytes * near->size);
    }
    end_step(at, 1);
    return from_first(&part, false);
}

// ---- the table

// Sends one message from the first member of each pair to the second. Returns false unless all
// groups are pairs.
static bool one_message(const struct schedule *at, bool mirrored)
{
    return at->groups->size == 2 && from_first(at, mirrored);
}

// The order matters only for measured collectives: tsr__topology_load runs the first one that
// applies. Between CPUs (transport/threads, shm, net) and in our own GPU kernels all collectives
// are direct, except between hosts; an all-reduce of a small tensor is one shot, which costs least
// below about the same sizes for which the transports choose it. Between GPUs NCCL reduces round
// rings and by hosts; its other collectives are grouped sends (transport/gpu/device_nccl.c).
const struct algorithm tsr__algorithms[] = {
#define ROW(function, name, what, condition, size)                                                 \
    {name, TSR_##what, function, RUN_FORWARD, BY_HOSTS},
    HOSTS_ALGORITHMS(ROW)
#undef ROW
        {"direct", TSR_ALL_GATHER, direct, RUN_FORWARD, NOT_HOSTS},
    {"direct", TSR_REDUCE_SCATTER, direct, RUN_MIRRORED, ANY_GROUPS},
    {"direct", TSR_ALL_REDUCE, direct, RUN_BOTH, UNORDERED},
    {"one shot", TSR_ALL_REDUCE, one_shot, RUN_FORWARD, NOT_HOSTS},
    {"ring", TSR_ALL_REDUCE, ring, RUN_BOTH, BETWEEN_GPUS},
    {"by sides", TSR_ALL_REDUCE, by_sides, RUN_BOTH, BETWEEN_GPUS},
    {"direct", TSR_BROADCAST, from_first, RUN_FORWARD, ANY_GROUPS},
    {"direct", TSR_REDUCE, from_first, RUN_MIRRORED, ANY_GROUPS},
    {"direct", TSR_ALL_TO_ALL, exchange, RUN_FORWARD, ANY_GROUPS},
    {"message", TSR_SEND, one_message, RUN_FORWARD, ANY_GROUPS},
};
const size_t tsr__n_algorithms = TSR_COUNT(tsr__algorithms);

static bool all_gpus(const tsr_topology *topology, const struct topology_groups *groups)
{
    for (int i = 0; i < groups->count * groups->size; i++)
        if (!tsr__device_is_cuda(str_of(topology->device[groups->device[i]].name)))
            return false;
    return true;
}

// True if the condition of the algorithm's row in HOSTS_ALGORITHMS holds.
static bool condition_holds(const struct algorithm *algorithm, const struct group_shape shape)
{
    const bool holds[] = {
#define ROW(function, name, what, condition, size) condition,
        HOSTS_ALGORITHMS(ROW)
#undef ROW
    };
    return holds[algorithm - tsr__algorithms];
}

// True if the algorithm is run for such groups. Divides them by hosts if that matters.
static bool applies(const struct algorithm *algorithm, tsr_topology *topology,
                    const struct topology_groups *groups, struct arena *arena,
                    struct groups_by_hosts *parts)
{
    if (algorithm->groups == ANY_GROUPS)
        return true;
    if (algorithm->groups == BETWEEN_GPUS)
        return all_gpus(topology, groups);
    bool by_hosts = tsr__groups_by_hosts(topology, groups, arena, parts);
    if (algorithm->groups == UNORDERED)
        return !by_hosts || !parts->in_order;
    if (algorithm->groups == NOT_HOSTS)
        return !by_hosts;
    return by_hosts &&
           condition_holds(algorithm,
                           (struct group_shape){groups->size, parts->lanes.size, parts->in_order});
}

bool tsr__run_algorithm(const struct algorithm *algorithm, tsr_topology *topology,
                        const struct topology_groups *groups, double bytes,
                        const struct listener *to)
{
    struct arena scratch = {.session = topology->session};
    struct groups_by_hosts parts;
    struct schedule at = {topology, groups, bytes, to, &parts};
    bool ran = applies(algorithm, topology, groups, &scratch, &parts);
    if (ran && algorithm->run != RUN_FORWARD)
        ran = algorithm->schedule(&at, true);
    if (ran && algorithm->run != RUN_MIRRORED)
        ran = algorithm->schedule(&at, false);
    topology->arena.failed = topology->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
    return ran;
}
