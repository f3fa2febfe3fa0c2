// SPDX-License-Identifier: Apache-2.0
// schedules.c - the algorithms of collectives, each as a schedule of steps of messages.
//
// A schedule lists the messages of each step: sender, receiver and bytes. Its listener computes
// times or loads. Only gathers are implemented. Scatters mirror them in time and direction. An
// all-reduce is a reduce-scatter followed by an all-gather, or a separate algorithm for small
// tensors.
//
// Worked example: 4 devices all-gather 8 bytes, 2 from each.
//   ring:     3 steps, in each of them every device sends 2 bytes to the next one;
//   doubling: 2 steps, i sends 2 bytes to i ^ 1, then the 4 bytes that it has by then to i ^ 2;
//   direct:   1 step, every device sends its 2 bytes to the 3 others.
// Mirrored, doubling scatters: first 4 bytes between i and i ^ 2, then 2 between i and i ^ 1. A
// broadcast of 8 bytes by tree: 0 to 2, then 0 to 1 and 2 to 3. An all-to-all of 8 bytes, 2 on each
// device, by bruck: i sends 2 of its 4 blocks of half a byte to i + 1, then 2 blocks to i + 2.
#include "topology/internal.h"

#include <math.h>

// Returns the members of group k, in order.
static const int *members_of(const struct topology_groups *groups, int k)
{
    return groups->device + (size_t)k * (size_t)groups->size;
}

static int levels(int n) // returns log2 of a power of two, else -1
{
    int k = 0;
    while ((1 << k) < n)
        k++;
    return (1 << k) == n ? k : -1;
}

// Returns the number of equal steps that are reported together: all for listeners that compute
// times, else 1.
static int repetitions(const struct listener *to, int steps)
{
    return to->exchange ? steps : 1;
}

// Sends a message; mirrored: in the opposite direction.
static void send_message(const struct listener *to, bool mirrored, int from, int dest, double bytes)
{
    if (mirrored)
        to->message(to->data, dest, from, bytes);
    else
        to->message(to->data, from, dest, bytes);
}

// ---- all-gather (mirrored: reduce-scatter)

// Gathers around a ring. Scatters go in the same direction, so that a one-way ring can do both.
static bool ring(const struct topology_groups *groups, double bytes, bool both_ways,
                 const struct listener *to)
{
    // With both_ways, each half of a piece goes in one direction.
    double piece = bytes / groups->size / (both_ways ? 2 : 1);
    int times = repetitions(to, groups->size - 1);
    for (int step = 0; step < groups->size - 1; step += times) {
        for (int k = 0; k < groups->count; k++)
            for (int i = 0; i < groups->size; i++) {
                int a = members_of(groups, k)[i], b = members_of(groups, k)[(i + 1) % groups->size];
                send_message(to, false, a, b, piece);
                if (both_ways)
                    send_message(to, false, b, a, piece);
            }
        to->step_ends(to->data, times);
    }
    return true;
}

// Gathers by recursive doubling: after step s every member has the pieces of 2 << s members.
// Returns false unless the size is a power of two.
static bool doubling(const struct topology_groups *groups, double bytes, bool mirrored,
                     const struct listener *to)
{
    int n = levels(groups->size);
    for (int s = 0; s < n; s++) {
        int bit = 1 << (mirrored ? n - 1 - s : s);
        for (int k = 0; k < groups->count; k++)
            for (int i = 0; i < groups->size; i++)
                send_message(to, mirrored, members_of(groups, k)[i], members_of(groups, k)[i ^ bit],
                             bytes / groups->size * bit);
        to->step_ends(to->data, 1);
    }
    return n >= 0;
}

#define MANY 256 // for larger groups, all pairs are analysed together

// Gathers in one step: every member sends its piece to every other one. Large groups use
// `exchange`: 4096 members would send 16 million messages.
static bool direct(const struct topology_groups *groups, double bytes, bool mirrored,
                   const struct listener *to)
{
    if (to->exchange && groups->size > MANY) { // mirroring makes no difference
        to->exchange(to->data, groups, bytes / groups->size);
        to->step_ends(to->data, 1);
        return true;
    }
    for (int k = 0; k < groups->count; k++)
        for (int i = 0; i < groups->size; i++)
            for (int j = 1; j < groups->size; j++)
                send_message(to, mirrored, members_of(groups, k)[i],
                             members_of(groups, k)[(i + j) % groups->size], bytes / groups->size);
    to->step_ends(to->data, 1);
    return true;
}

// ---- over a grid: rings along one side after the other, or on a torus along all sides at once
// with a share of the bytes each

// A grid of devices without sides of length 1. A row of a 4 x 8 torus has only one such side, so it
// is not a grid (see grid_of).
struct grid {
    int n, side[8];
    int *at; // device of each cell, row-major
};

// Finds the groups as cells of the topology's grid. False: they do not form a box of the grid, or
// the box has one side.
static bool grid_of(tsr_topology *topology, const struct topology_groups *groups, struct grid *out)
{
    // The smallest box of the grid that contains all members.
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

// Runs one step of all rings along one side, with half of the piece in each direction. On 2x3 the
// second side has stride 1: cell 2 (row 0, column 2) sends to cell 0.
static void line_step(const struct grid *grid, int size, int side, double piece, bool mirrored,
                      const struct listener *to)
{
    int n = grid->side[side], stride = 1;
    for (int d = grid->n - 1; d > side; d--)
        stride *= grid->side[d];
    for (int i = 0; i < size; i++) {
        int c = i / stride % n, next = i - c * stride + (c + 1) % n * stride;
        send_message(to, mirrored, grid->at[i], grid->at[next], piece / 2);
        send_message(to, mirrored, grid->at[next], grid->at[i], piece / 2);
    }
}

// Returns the number of equal steps from this one on: on 4x8, steps 0 to 2 use both sides, 3 to 6
// only the second.
static int steps_alike(const struct grid *grid, int step, int last)
{
    int until = last;
    for (int d = 0; d < grid->n; d++)
        if (grid->side[d] - 1 > step && grid->side[d] - 1 < until)
            until = grid->side[d] - 1;
    return until - step;
}

// Gathers by rings along the sides. `turns` is the number of shares of the bytes; each share starts
// with a different side. With 1, all bytes go along one side after the other. `first` is the side
// that comes first: the slow one, while little has been gathered. Example, 2 x 3 with 6 bytes, one
// side after the other: along the side of 2 one step with pieces of 1 byte, half of each in either
// direction; then along the side of 3 two steps with pieces of 2 bytes. All sides at once: two
// shares of 3 bytes, of which the second starts with the side of 3.
static void grid_rings(const struct grid *grid, int size, double bytes, int first, int turns,
                       bool mirrored, const struct listener *to)
{
    for (int phase = 0; phase < grid->n; phase++) {
        // If mirrored, the phases run in reverse order.
        int at = mirrored ? grid->n - 1 - phase : phase, longest = 0;
        for (int r = 0; r < turns; r++) {
            int n = grid->side[(first + at + r) % grid->n];
            if (n > longest)
                longest = n;
        }
        // Sides differ in length: a share whose ring is complete is idle for the rest of the phase.
        for (int step = 0, times; step < longest - 1; step += times) {
            times = repetitions(to, steps_alike(grid, step, longest - 1));
            for (int r = 0; r < turns; r++) {
                // Pieces include what earlier sides have gathered: on 4 x 8, the second side moves
                // pieces 4 times as large.
                double piece = bytes / size / turns;
                for (int before = 0; before < at; before++)
                    piece *= grid->side[(first + before + r) % grid->n];
                int side = (first + at + r) % grid->n;
                if (step < grid->side[side] - 1)
                    line_step(grid, size, side, piece, mirrored, to);
            }
            to->step_ends(to->data, times);
        }
    }
}

// ---- rows of the table

// Defines three rows of the table from one function: gather, scatter (mirrored), all-reduce (both).
#define PAIR(name)                                                                                 \
    static bool name##_gather(tsr_topology *t, const struct topology_groups *g, double bytes,      \
                              const struct listener *to)                                           \
    {                                                                                              \
        return name(t, g, bytes, false, to);                                                       \
    }                                                                                              \
    static bool name##_scatter(tsr_topology *t, const struct topology_groups *g, double bytes,     \
                               const struct listener *to)                                          \
    {                                                                                              \
        return name(t, g, bytes, true, to);                                                        \
    }                                                                                              \
    static bool name##_reduce(tsr_topology *t, const struct topology_groups *g, double bytes,      \
                              const struct listener *to)                                           \
    {                                                                                              \
        return name(t, g, bytes, true, to) && name(t, g, bytes, false, to);                        \
    }

static bool one_ring(tsr_topology *topology, const struct topology_groups *groups, double bytes,
                     bool mirrored, const struct listener *to)
{
    (void)topology;
    (void)mirrored;
    return ring(groups, bytes, false, to);
}
static bool two_rings(tsr_topology *topology, const struct topology_groups *groups, double bytes,
                      bool mirrored, const struct listener *to)
{
    (void)topology;
    (void)mirrored;
    return groups->size > 2 && ring(groups, bytes, true, to);
}
static bool double_up(tsr_topology *topology, const struct topology_groups *groups, double bytes,
                      bool mirrored, const struct listener *to)
{
    (void)topology;
    return doubling(groups, bytes, mirrored, to);
}
static bool all_pairs(tsr_topology *topology, const struct topology_groups *groups, double bytes,
                      bool mirrored, const struct listener *to)
{
    (void)topology;
    return direct(groups, bytes, mirrored, to);
}
// Sends all bytes along one side after the other.
static bool by_sides(tsr_topology *topology, const struct topology_groups *groups, double bytes,
                     bool mirrored, const struct listener *to)
{
    struct grid grid;
    if (!grid_of(topology, groups, &grid))
        return false;
    grid_rings(&grid, groups->size, bytes, 0, 1, mirrored, to);
    return true;
}
// Sends one share of the bytes per side, each starting with another side. On a torus all links are
// busy all the time.
static bool all_sides(tsr_topology *topology, const struct topology_groups *groups, double bytes,
                      bool mirrored, const struct listener *to)
{
    struct grid grid;
    if (!grid_of(topology, groups, &grid))
        return false;
    grid_rings(&grid, groups->size, bytes, 0, grid.n, mirrored, to);
    return true;
}
PAIR(one_ring)
PAIR(two_rings)
PAIR(double_up)
PAIR(all_pairs)
PAIR(by_sides)
PAIR(all_sides)

// All-reduce for small tensors: in log2 n steps, every member sends its full tensor to its partner.
static bool whole_doubling(tsr_topology *topology, const struct topology_groups *groups,
                           double bytes, const struct listener *to)
{
    (void)topology;
    int n = levels(groups->size);
    for (int s = 0; s < n; s++) {
        for (int k = 0; k < groups->count; k++)
            for (int i = 0; i < groups->size; i++)
                send_message(to, false, members_of(groups, k)[i],
                             members_of(groups, k)[i ^ (1 << s)], bytes);
        to->step_ends(to->data, 1);
    }
    return n >= 0;
}

// All-reduce in one step: every member sends its full tensor to every other one.
static bool one_shot(tsr_topology *topology, const struct topology_groups *groups, double bytes,
                     const struct listener *to)
{
    (void)topology;
    return direct(groups, bytes * groups->size, false, to);
}

// Sends along a binary tree from the first member, in log2 n steps. With `shares`, sends only the
// part that the receiver's subtree needs. Example: 5 members, 10 bytes: 0 to 4, then 0 to 2, then 0
// to 1 and 2 to 3. With shares, 4 gets 2 bytes, 2 gets 4, 1 and 3 get 2.
static void tree(const struct topology_groups *groups, double bytes, bool shares, bool mirrored,
                 const struct listener *to)
{
    int top = 1;
    while (top < groups->size)
        top *= 2;
    for (int s = 0; (1 << s) < top; s++) {
        int half = mirrored ? 1 << s : top >> (s + 1);
        for (int k = 0; k < groups->count; k++)
            // `below` is the size of the receiver's subtree.
            for (int i = 0; i + half < groups->size; i += 2 * half) {
                int below = groups->size - (i + half) < half ? groups->size - (i + half) : half;
                send_message(to, mirrored, members_of(groups, k)[i],
                             members_of(groups, k)[i + half],
                             shares ? bytes / groups->size * below : bytes);
            }
        to->step_ends(to->data, 1);
    }
}

static bool tree_broadcast(tsr_topology *topology, const struct topology_groups *groups,
                           double bytes, const struct listener *to)
{
    (void)topology;
    tree(groups, bytes, false, false, to);
    return true;
}
static bool tree_reduce(tsr_topology *topology, const struct topology_groups *groups, double bytes,
                        const struct listener *to)
{
    (void)topology;
    tree(groups, bytes, false, true, to);
    return true;
}
static bool tree_all_reduce(tsr_topology *topology, const struct topology_groups *groups,
                            double bytes, const struct listener *to)
{
    return tree_reduce(topology, groups, bytes, to) && tree_broadcast(topology, groups, bytes, to);
}
// Broadcasts large tensors: scatters pieces by a tree, then runs a ring all-gather.
static bool pieces_broadcast(tsr_topology *topology, const struct topology_groups *groups,
                             double bytes, const struct listener *to)
{
    (void)topology;
    tree(groups, bytes, true, false, to);
    return ring(groups, bytes, false, to);
}
// Reduces large tensors: runs a ring reduce-scatter, then gathers the pieces by a tree.
static bool pieces_reduce(tsr_topology *topology, const struct topology_groups *groups,
                          double bytes, const struct listener *to)
{
    (void)topology;
    ring(groups, bytes, false, to);
    tree(groups, bytes, true, true, to);
    return true;
}
static bool direct_broadcast(tsr_topology *topology, const struct topology_groups *groups,
                             double bytes, const struct listener *to)
{
    (void)topology;
    for (int k = 0; k < groups->count; k++)
        for (int i = 1; i < groups->size; i++)
            send_message(to, false, members_of(groups, k)[0], members_of(groups, k)[i], bytes);
    to->step_ends(to->data, 1);
    return true;
}

static bool direct_reduce(tsr_topology *topology, const struct topology_groups *groups,
                          double bytes, const struct listener *to)
{
    (void)topology;
    for (int k = 0; k < groups->count; k++)
        for (int i = 1; i < groups->size; i++)
            send_message(to, true, members_of(groups, k)[0], members_of(groups, k)[i], bytes);
    to->step_ends(to->data, 1);
    return true;
}

// All-to-all in n - 1 steps: each device has bytes / n and sends an n-th of that to every other
// one. Never faster than `direct`, so it is skipped for large groups.
static bool pairwise(tsr_topology *topology, const struct topology_groups *groups, double bytes,
                     const struct listener *to)
{
    (void)topology;
    if (groups->size > MANY)
        return false;
    for (int j = 1; j < groups->size; j++) {
        for (int k = 0; k < groups->count; k++)
            for (int i = 0; i < groups->size; i++)
                send_message(to, false, members_of(groups, k)[i],
                             members_of(groups, k)[(i + j) % groups->size],
                             bytes / groups->size / groups->size);
        to->step_ends(to->data, 1);
    }
    return true;
}
static bool all_pairs_exchange(tsr_topology *topology, const struct topology_groups *groups,
                               double bytes, const struct listener *to)
{
    (void)topology;
    return direct(groups, bytes / groups->size, false, to);
}
// All-to-all by Bruck's algorithm. Block b goes to the device with a number that is b larger, in
// the steps of its bits: block 5 in the first and the third.
static bool bruck(tsr_topology *topology, const struct topology_groups *groups, double bytes,
                  const struct listener *to)
{
    (void)topology;
    for (int bit = 1; bit < groups->size; bit *= 2) {
        int blocks = 0;
        for (int b = 0; b < groups->size; b++)
            blocks += (b & bit) != 0;
        for (int k = 0; k < groups->count; k++)
            for (int i = 0; i < groups->size; i++)
                send_message(to, false, members_of(groups, k)[i],
                             members_of(groups, k)[(i + bit) % groups->size],
                             bytes / groups->size / groups->size * blocks);
        to->step_ends(to->data, 1);
    }
    return true;
}

// Sends one message from the first member of each pair to the second.
static bool one_message(tsr_topology *topology, const struct topology_groups *groups, double bytes,
                        const struct listener *to)
{
    (void)topology;
    for (int k = 0; k < groups->count; k++)
        send_message(to, false, members_of(groups, k)[0], members_of(groups, k)[1], bytes);
    to->step_ends(to->data, 1);
    return groups->size == 2;
}

#define THREE(name, function)                                                                      \
    {name, TSR_ALL_GATHER, function##_gather}, {name, TSR_REDUCE_SCATTER, function##_scatter},     \
    {                                                                                              \
        name, TSR_ALL_REDUCE, function##_reduce                                                    \
    }

// The order matters only for measured collectives: load.c runs the first one that applies.
const struct algorithm tsr__algorithms[] = {
    THREE("ring", one_ring),
    THREE("two rings", two_rings),
    THREE("doubling", double_up),
    THREE("direct", all_pairs),
    THREE("by sides", by_sides),
    THREE("all sides", all_sides),
    {"whole doubling", TSR_ALL_REDUCE, whole_doubling},
    {"one shot", TSR_ALL_REDUCE, one_shot},
    {"tree", TSR_ALL_REDUCE, tree_all_reduce},
    {"tree", TSR_BROADCAST, tree_broadcast},
    {"pieces", TSR_BROADCAST, pieces_broadcast},
    {"direct", TSR_BROADCAST, direct_broadcast},
    {"tree", TSR_REDUCE, tree_reduce},
    {"pieces", TSR_REDUCE, pieces_reduce},
    {"direct", TSR_REDUCE, direct_reduce},
    // An all-reduce includes the reduction to one device.
    {"ring", TSR_REDUCE, one_ring_reduce},
    {"two rings", TSR_REDUCE, two_rings_reduce},
    {"doubling", TSR_REDUCE, double_up_reduce},
    {"all pairs", TSR_REDUCE, all_pairs_reduce},
    {"by sides", TSR_REDUCE, by_sides_reduce},
    {"all sides", TSR_REDUCE, all_sides_reduce},
    {"whole doubling", TSR_REDUCE, whole_doubling},
    {"one shot", TSR_REDUCE, one_shot},
    {"pairwise", TSR_ALL_TO_ALL, pairwise},
    {"direct", TSR_ALL_TO_ALL, all_pairs_exchange},
    {"bruck", TSR_ALL_TO_ALL, bruck},
    {"message", TSR_SEND, one_message},
};
const size_t tsr__n_algorithms = TSR_COUNT(tsr__algorithms);
