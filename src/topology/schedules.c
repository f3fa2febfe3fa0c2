// SPDX-License-Identifier: Apache-2.0
// schedules.c - the algorithms of collectives, each as a schedule of steps of messages.
//
// A schedule lists the messages of each step: sender, receiver and bytes. Its listener computes
// times or loads. Scatters and reductions are gathers and broadcasts that are mirrored in time and
// direction. An all-reduce is a reduce-scatter followed by an all-gather, a reduction followed by a
// broadcast, or a separate algorithm for small tensors.
//
// Worked example: 4 devices all-gather 8 bytes, 2 from each.
//   ring:     3 steps, in each of them every device sends 2 bytes to the next one;
//   doubling: 2 steps, i sends 2 bytes to i ^ 1, then the 4 bytes that it has by then to i ^ 2;
//   direct:   1 step, every device sends its 2 bytes to the 3 others.
// Mirrored, doubling scatters: first 4 bytes between i and i ^ 2, then 2 between i and i ^ 1. A
// broadcast of 8 bytes by tree: 0 to 2, then 0 to 1 and 2 to 3. An all-to-all of 8 bytes, 2 on each
// device, by bruck: i sends 2 of its 4 blocks of half a byte to i + 1, then 2 blocks to i + 2.
#include "topology/internal.h"

// One run of a schedule: `bytes` is the size of the full tensor of one group.
struct schedule {
    tsr_topology *topology;
    const struct topology_groups *groups;
    double bytes;
    const struct listener *to;
};

static int levels(int n) // returns log2 of a power of two, else -1
{
    int k = 0;
    while ((1 << k) < n)
        k++;
    return (1 << k) == n ? k : -1;
}

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

// A step in which every member sends to the member that is `by` further round the group.
static void shift_step(const struct schedule *at, int by, double bytes)
{
    for (int k = 0; k < at->groups->count; k++)
        for (int i = 0; i < at->groups->size; i++)
            send_member(at, false, k, i, (i + by) % at->groups->size, bytes);
    end_step(at, 1);
}

// A step in which every member sends to the member whose number differs in that bit.
static void partner_step(const struct schedule *at, bool mirrored, int bit, double bytes)
{
    for (int k = 0; k < at->groups->count; k++)
        for (int i = 0; i < at->groups->size; i++)
            send_member(at, mirrored, k, i, i ^ bit, bytes);
    end_step(at, 1);
}

// ---- all-gather (mirrored: reduce-scatter)

// Schedules a ring all-gather. A reduce-scatter sends in the same direction, so that a one-way ring
// supports both.
static bool ring(const struct schedule *at, bool both_ways)
{
    // With both_ways, half of each piece goes in each direction.
    int n = at->groups->size, times = repetitions(at, n - 1);
    double piece = at->bytes / n / (both_ways ? 2 : 1);
    for (int step = 0; step < n - 1; step += times) {
        for (int k = 0; k < at->groups->count; k++)
            for (int i = 0; i < n; i++) {
                send_member(at, false, k, i, (i + 1) % n, piece);
                if (both_ways)
                    send_member(at, true, k, i, (i + 1) % n, piece);
            }
        end_step(at, times);
    }
    return true;
}

static bool one_ring(const struct schedule *at, bool mirrored)
{
    (void)mirrored;
    return ring(at, false);
}

static bool two_rings(const struct schedule *at, bool mirrored)
{
    (void)mirrored;
    return at->groups->size > 2 && ring(at, true);
}

// Gathers by recursive doubling: after step s every member has the pieces of 2 << s members.
// Returns false unless the size is a power of two.
static bool doubling(const struct schedule *at, bool mirrored)
{
    int n = levels(at->groups->size);
    for (int s = 0; s < n; s++) {
        int bit = 1 << (mirrored ? n - 1 - s : s);
        partner_step(at, mirrored, bit, at->bytes / at->groups->size * bit);
    }
    return n >= 0;
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

// ---- over a grid: rings along one side after the other, or on a torus along all sides at once
// with a share of the bytes each

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

// Returns the number of equal steps from this one on. Example: on 4x8, steps 0 to 2 use both sides,
// and steps 3 to 6 only the second.
static int steps_alike(const struct grid *grid, int step, int last)
{
    int until = last;
    for (int d = 0; d < grid->n; d++)
        if (grid->side[d] - 1 > step && grid->side[d] - 1 < until)
            until = grid->side[d] - 1;
    return until - step;
}

// Gathers by rings along the sides. `turns` is the number of shares of the bytes; each share starts
// with a different side. With 1, all bytes go along one side after the other. The first side, which
// is between hosts and slow in a grid of hosts, comes first, while pieces are small. Example: 2 x 3
// with 6 bytes, one side after the other. Along the side of 2 there is one step with pieces of 1
// byte, half of each in either direction. Then along the side of 3 there are two steps with pieces
// of 2 bytes. With all sides at once there are two shares of 3 bytes, and the second share starts
// with the side of 3.
static void grid_rings(const struct schedule *at, const struct grid *grid, int turns, bool mirrored)
{
    for (int phase = 0; phase < grid->n; phase++) {
        // If mirrored, the phases run in reverse order.
        int turn = mirrored ? grid->n - 1 - phase : phase, longest = 0;
        for (int r = 0; r < turns; r++) {
            int n = grid->side[(turn + r) % grid->n];
            longest = n > longest ? n : longest;
        }
        // Sides differ in length: a share whose ring is complete is idle for the rest of the phase.
        for (int step = 0, times; step < longest - 1; step += times) {
            times = repetitions(at, steps_alike(grid, step, longest - 1));
            for (int r = 0; r < turns; r++) {
                // Pieces include what was gathered along earlier sides: on 4 x 8, the second side
                // moves pieces 4 times as large.
                double piece = at->bytes / at->groups->size / turns;
                for (int before = 0; before < turn; before++)
                    piece *= grid->side[(before + r) % grid->n];
                int side = (turn + r) % grid->n;
                if (step < grid->side[side] - 1)
                    line_step(at, grid, side, piece, mirrored);
            }
            end_step(at, times);
        }
    }
}

// Sends all bytes along one side after the other. False: the devices fill no grid (grid_of).
static bool by_sides(const struct schedule *at, bool mirrored)
{
    struct grid grid;
    if (!grid_of(at->topology, at->groups, &grid))
        return false;
    grid_rings(at, &grid, 1, mirrored);
    return true;
}

// Divides the bytes into one share per side of the grid; each share starts with another side. On a
// torus all links are busy all the time. False: the devices fill no grid (grid_of).
static bool all_sides(const struct schedule *at, bool mirrored)
{
    struct grid grid;
    if (!grid_of(at->topology, at->groups, &grid))
        return false;
    grid_rings(at, &grid, grid.n, mirrored);
    return true;
}

// ---- all-reduce of small tensors

// In log2 n steps, every member sends its full tensor to its partner. Returns false unless n is a
// power of two.
static bool whole_doubling(const struct schedule *at, bool mirrored)
{
    int n = levels(at->groups->size);
    for (int s = 0; s < n; s++)
        partner_step(at, mirrored, 1 << s, at->bytes);
    return n >= 0;
}

// In one step, every member sends its full tensor to every other one.
static bool one_shot(const struct schedule *at, bool mirrored)
{
    return send_to_all(at, mirrored, at->bytes);
}

// ---- broadcast (mirrored: reduce)

// Sends along a binary tree from the first member, in log2 n steps. With `shares`, sends only the
// part that the receiver's subtree needs. Example: with 5 members and 10 bytes, 0 sends to 4, then
// 0 to 2, then 0 to 1 and 2 to 3. With shares, 4 gets 2 bytes, 2 gets 4, and 1 and 3 get 2 each.
static void send_down(const struct schedule *at, bool shares, bool mirrored)
{
    int top = 1, n = at->groups->size;
    while (top < n)
        top *= 2;
    for (int s = 0; (1 << s) < top; s++) {
        int half = mirrored ? 1 << s : top >> (s + 1);
        for (int k = 0; k < at->groups->count; k++)
            // `below` is the size of the receiver's subtree.
            for (int i = 0; i + half < n; i += 2 * half) {
                int below = n - (i + half) < half ? n - (i + half) : half;
                send_member(at, mirrored, k, i, i + half,
                            shares ? at->bytes / n * below : at->bytes);
            }
        end_step(at, 1);
    }
}

static bool tree(const struct schedule *at, bool mirrored)
{
    send_down(at, false, mirrored);
    return true;
}

// Broadcasts large tensors: scatters pieces by a tree, then runs a ring all-gather. Mirrored: runs
// a ring reduce-scatter, then gathers the pieces by a tree.
static bool pieces(const struct schedule *at, bool mirrored)
{
    if (mirrored)
        ring(at, false);
    send_down(at, true, mirrored);
    return mirrored || ring(at, false);
}

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

// All-to-all in n - 1 steps: in step j every member sends to the member j further round the group.
// Never faster than `exchange`, so it is skipped for large groups.
static bool pairwise(const struct schedule *at, bool mirrored)
{
    int n = at->groups->size;
    (void)mirrored;
    for (int j = 1; j < n && n <= MANY; j++)
        shift_step(at, j, at->bytes / n / n);
    return n <= MANY;
}

static bool exchange(const struct schedule *at, bool mirrored)
{
    return send_to_all(at, mirrored, at->bytes / at->groups->size / at->groups->size);
}

// All-to-all by Bruck's algorithm. Block b must move b members further. It moves in the steps of
// the bits that are set in b. Example: block 5 moves by 1 in the first step and by 4 in the third.
static bool bruck(const struct schedule *at, bool mirrored)
{
    int n = at->groups->size;
    (void)mirrored;
    for (int bit = 1; bit < n; bit *= 2) {
        int blocks = 0;
        for (int b = 0; b < n; b++)
            blocks += (b & bit) != 0;
        shift_step(at, bit, at->bytes / n / n * blocks);
    }
    return true;
}

// ---- the table

// Sends one message from the first member of each pair to the second. Returns false unless all
// groups are pairs.
static bool one_message(const struct schedule *at, bool mirrored)
{
    return at->groups->size == 2 && from_first(at, mirrored);
}

#define THREE(name, function)                                                                      \
    {name, TSR_ALL_GATHER, function, RUN_FORWARD},                                                 \
        {name, TSR_REDUCE_SCATTER, function, RUN_MIRRORED},                                        \
    {                                                                                              \
        name, TSR_ALL_REDUCE, function, RUN_BOTH                                                   \
    }

// The order matters only for measured collectives: tsr__topology_load runs the first one that
// applies.
const struct algorithm tsr__algorithms[] = {
    THREE("ring", one_ring),
    THREE("two rings", two_rings),
    THREE("doubling", doubling),
    THREE("direct", direct),
    THREE("by sides", by_sides),
    THREE("all sides", all_sides),
    {"whole doubling", TSR_ALL_REDUCE, whole_doubling, RUN_FORWARD},
    {"one shot", TSR_ALL_REDUCE, one_shot, RUN_FORWARD},
    {"tree", TSR_ALL_REDUCE, tree, RUN_BOTH},
    {"tree", TSR_BROADCAST, tree, RUN_FORWARD},
    {"pieces", TSR_BROADCAST, pieces, RUN_FORWARD},
    {"direct", TSR_BROADCAST, from_first, RUN_FORWARD},
    {"tree", TSR_REDUCE, tree, RUN_MIRRORED},
    {"pieces", TSR_REDUCE, pieces, RUN_MIRRORED},
    {"direct", TSR_REDUCE, from_first, RUN_MIRRORED},
    // An all-reduce includes the reduction to one device.
    {"ring", TSR_REDUCE, one_ring, RUN_BOTH},
    {"two rings", TSR_REDUCE, two_rings, RUN_BOTH},
    {"doubling", TSR_REDUCE, doubling, RUN_BOTH},
    {"all pairs", TSR_REDUCE, direct, RUN_BOTH},
    {"by sides", TSR_REDUCE, by_sides, RUN_BOTH},
    {"all sides", TSR_REDUCE, all_sides, RUN_BOTH},
    {"whole doubling", TSR_REDUCE, whole_doubling, RUN_FORWARD},
    {"one shot", TSR_REDUCE, one_shot, RUN_FORWARD},
    {"pairwise", TSR_ALL_TO_ALL, pairwise, RUN_FORWARD},
    {"direct", TSR_ALL_TO_ALL, exchange, RUN_FORWARD},
    {"bruck", TSR_ALL_TO_ALL, bruck, RUN_FORWARD},
    {"message", TSR_SEND, one_message, RUN_FORWARD},
};
const size_t tsr__n_algorithms = TSR_COUNT(tsr__algorithms);

bool tsr__run_algorithm(const struct algorithm *algorithm, tsr_topology *topology,
                        const struct topology_groups *groups, double bytes,
                        const struct listener *to)
{
    struct schedule at = {topology, groups, bytes, to};
    if (algorithm->run != RUN_FORWARD && !algorithm->schedule(&at, true))
        return false;
    return algorithm->run == RUN_MIRRORED || algorithm->schedule(&at, false);
}
