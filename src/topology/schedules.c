// SPDX-License-Identifier: Apache-2.0
// schedules.c - the algorithms of ALGORITHMS (collective.h), each as a schedule of steps of
// messages.
//
// A schedule lists the messages of each step: sender, receiver and bytes. Its listener computes
// times or loads. Reductions are gathers and broadcasts that are mirrored in time and direction. An
// all-reduce is a reduce-scatter followed by an all-gather, or one exchange.
//
// Worked example: 4 devices all-gather 8 bytes, 2 from each.
//   direct: 1 step, every device sends its 2 bytes to the 3 others;
//   ring:   3 steps, in each of them every device sends 2 bytes to the next one.
#include "topology/internal.h"

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

// ---- steps that schedules share

// Gathers round a ring, in the order of the members. A reduce-scatter sends in the same direction.
static bool ring(const struct schedule *at)
{
    int n = at->groups->size, times = repetitions(at, n - 1);
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

// In one step every member sends its piece to every other one.
static bool pieces_to_all(const struct schedule *at, bool mirrored)
{
    return send_to_all(at, mirrored, at->bytes / at->groups->size);
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

// Sends from each member to the next one, in pieces that follow each other, so that all links are
// used at the same time. The first piece waits for every link, which matters only to listeners that
// compute times.
static bool along_members(const struct schedule *at, bool mirrored)
{
    for (int wait = 0; wait < (at->to->exchange ? 2 : 1); wait++) {
        for (int k = 0; k < at->groups->count; k++)
            for (int i = 0; i + 1 < at->groups->size; i++)
                send_member(at, mirrored, k, i, i + 1, wait ? 0 : at->bytes);
        end_step(at, wait ? at->groups->size - 2 : 1);
    }
    return true;
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

// ---- by hosts (by_hosts.c, transport/net/by_hosts.c)

// In one step the members of each host send `piece` bytes to the first `n_lanes` of them, which are
// in lanes; or these to the others.
static void step_near(const struct schedule *at, bool to_lanes, double piece)
{
    for (int h = 0; h < at->parts->n_near; h++) {
        const struct host_members *near = &at->parts->near[h];
        for (int i = 0; i < near->n; i++)
            for (int lane = 0; lane < at->parts->n_lanes; lane++)
                if (i != lane)
                    send_message(at, !to_lanes, near->device[i], near->device[lane], piece);
    }
    end_step(at, 1);
}

// In one step the first member of each host sends `bytes` bytes to the others, or these to it.
static void step_first(const struct schedule *at, bool to_first)
{
    for (int h = 0; h < at->parts->n_near; h++)
        for (int i = 1; i < at->parts->near[h].n; i++)
            send_message(at, to_first, at->parts->near[h].device[0], at->parts->near[h].device[i],
                         at->bytes);
    end_step(at, 1);
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
static bool reduce_by_lanes(const struct schedule *at)
{
    double piece = at->bytes / at->parts->n_lanes;
    step_near(at, true, piece);
    chains(at, piece);
    step_near(at, false, piece);
    return true;
}

// Reduce-scatter: each lane reduces the shards of its members, and of those members of larger hosts
// that are in no lane.
static bool scatter_by_lanes(const struct schedule *at)
{
    const struct groups_by_hosts *parts = at->parts;
    step_near(at, true, at->bytes / parts->n_lanes);
    chains(at, at->bytes / parts->n_lanes);
    for (int h = 0; h < parts->n_near; h++)
        for (int i = parts->n_lanes; i < parts->near[h].n; i++)
            send_message(at, false, parts->near[h].device[i % parts->n_lanes],
                         parts->near[h].device[i], at->bytes / at->groups->size);
    if (parts->most > parts->n_lanes)
        end_step(at, 1);
    return true;
}

// Returns the number of members of a host whose shards a lane moves.
static int lane_share(const struct groups_by_hosts *parts, int host, int lane)
{
    return (parts->near[host].n - lane + parts->n_lanes - 1) / parts->n_lanes;
}

// Sends the shards of each host along the lanes to the other hosts of its group.
static void send_along_lanes(const struct schedule *at, double shard)
{
    const struct groups_by_hosts *parts = at->parts;
    for (int k = 0; k < parts->lanes.count; k++) {
        const int *lane = parts->lanes.device + (size_t)k * (size_t)parts->hosts;
        int first = k / parts->n_lanes * parts->hosts; // host of this group
        for (int from = 0; from < parts->hosts; from++)
            for (int to = 0; to < parts->hosts; to++)
                if (from != to)
                    send_message(at, false, lane[from], lane[to],
                                 shard * lane_share(parts, first + from, k % parts->n_lanes));
    }
    end_step(at, 1);
}

// The members of a host exchange the shards of the other hosts that their lanes have brought.
static void share_lanes(const struct schedule *at, double shard)
{
    const struct groups_by_hosts *parts = at->parts;
    for (int h = 0; h < parts->n_near; h++)
        for (int lane = 0; lane < parts->n_lanes; lane++) {
            int first = h / parts->hosts * parts->hosts, far = 0;
            for (int other = first; other < first + parts->hosts; other++)
                far += other == h ? 0 : lane_share(parts, other, lane);
            for (int i = 0; i < parts->near[h].n; i++)
                if (i != lane)
                    send_message(at, false, parts->near[h].device[lane], parts->near[h].device[i],
                                 shard * far);
        }
    end_step(at, 1);
}

// All-gather: the members of a host exchange their shards, and a lane brings those of its members
// to all hosts.
static bool gather_by_lanes(const struct schedule *at)
{
    const struct groups_by_hosts *parts = at->parts;
    double shard = at->bytes / at->groups->size;
    struct schedule lanes = *at;
    lanes.groups = &parts->lanes;
    for (int h = 0; h < parts->n_near; h++)
        for (int i = 0; i < parts->near[h].n; i++)
            for (int j = 0; j < parts->near[h].n; j++)
                if (i != j)
                    send_message(at, false, parts->near[h].device[i], parts->near[h].device[j],
                                 shard);
    end_step(at, 1);
    if (parts->most == parts->n_lanes) // hosts alike: large lanes are analysed together
        send_to_all(&lanes, false, shard);
    else
        send_along_lanes(at, shard);
    share_lanes(at, shard);
    return true;
}

// Small all-reduce: the first member of each host sends the tensors of its host to those of the
// other hosts, and the sum to its host.
static bool reduce_by_firsts(const struct schedule *at)
{
    const struct groups_by_hosts *parts = at->parts;
    step_first(at, true);
    for (int from = 0; from < parts->n_near; from++)
        for (int to = from / parts->hosts * parts->hosts;
             to < (from / parts->hosts + 1) * parts->hosts; to++)
            if (from != to)
                send_message(at, false, parts->near[from].device[0], parts->near[to].device[0],
                             at->bytes * parts->near[from].n);
    end_step(at, 1);
    step_first(at, false);
    return true;
}

// ---- all-reduce

// In one step, every member sends its full tensor to every other one.
static bool reduce_at_once(const struct schedule *at)
{
    return send_to_all(at, false, at->bytes);
}

// Each member gets its slice of all tensors, and sends the sum to all. In shared memory it reads
// the slices and writes the sums itself, but no member may use the sums before all are written.
static bool reduce_in_slices(const struct schedule *at)
{
    return pieces_to_all(at, true) && pieces_to_all(at, false);
}

static bool reduce_by_ring(const struct schedule *at)
{
    return ring(at) && ring(at);
}

static bool reduce_by_sides(const struct schedule *at)
{
    return by_sides(at, true) && by_sides(at, false);
}

// In one step, the first member reads all tensors and writes the sum to all.
static bool reduce_at_first(const struct schedule *at)
{
    for (int k = 0; k < at->groups->count; k++)
        for (int i = 1; i < at->groups->size; i++) {
            send_member(at, false, k, 0, i, at->bytes);
            send_member(at, true, k, 0, i, at->bytes);
        }
    end_step(at, 1);
    return true;
}

static bool reduce_over_head(const struct schedule *at)
{
    return from_first(at, true) && from_first(at, false);
}

// ---- other collectives

static bool gather_to_all(const struct schedule *at)
{
    return pieces_to_all(at, false);
}

static bool gather_by_sides(const struct schedule *at)
{
    return by_sides(at, false);
}

static bool scatter_to_all(const struct schedule *at)
{
    return pieces_to_all(at, true);
}

static bool scatter_by_sides(const struct schedule *at)
{
    return by_sides(at, true);
}

// Each device has bytes / n and sends an n-th of that to every other one.
static bool exchange_pieces(const struct schedule *at)
{
    return send_to_all(at, false, at->bytes / at->groups->size / at->groups->size);
}

static bool send_from_first(const struct schedule *at)
{
    return from_first(at, false);
}

static bool send_to_first(const struct schedule *at)
{
    return from_first(at, true);
}

static bool broadcast_along(const struct schedule *at)
{
    return along_members(at, false);
}

static bool reduce_along(const struct schedule *at)
{
    return along_members(at, true);
}

// Sends one message from the first member of each pair to the second. Returns false unless all
// groups are pairs.
static bool send_to_second(const struct schedule *at)
{
    return at->groups->size == 2 && from_first(at, false);
}

// ---- the table

// By the names in ALGORITHMS. NCCL chooses among rings, trees and kernels for fast links itself.
static const struct schedules mailbox = {{reduce_at_once}}, one_shot = {{reduce_at_once}},
                              pieces = {{reduce_at_once}}, slices = {{reduce_in_slices}},
                              chunks = {{reduce_in_slices}}, pinned_sums = {{reduce_in_slices}},
                              in_reach = {{reduce_in_slices}}, staged = {{reduce_in_slices}},
                              in_rounds = {{reduce_in_slices}}, in_order = {{reduce_in_slices}},
                              over_host = {{reduce_in_slices}}, at_head = {{reduce_over_head}},
                              first_folds = {{reduce_at_first}}, first_ranks = {{reduce_by_firsts}},
                              lanes_reduce = {{reduce_by_lanes}},
                              lanes_scatter = {{scatter_by_lanes}},
                              lanes_gather = {{gather_by_lanes}}, direct_gather = {{gather_to_all}},
                              direct_scatter = {{scatter_to_all}},
                              direct_all_to_all = {{exchange_pieces}},
                              direct_broadcast = {{send_from_first}},
                              direct_reduce = {{send_to_first}}, one_message = {{send_to_second}};
static const struct schedules nccl_all_reduce = {{reduce_at_once, reduce_in_slices, reduce_by_ring,
                                                  reduce_by_sides}},
                              nccl_all_gather = {{gather_to_all, ring, gather_by_sides}},
                              nccl_reduce_scatter = {{scatter_to_all, ring, scatter_by_sides}},
                              nccl_broadcast = {{send_from_first, broadcast_along}},
                              nccl_reduce = {{send_to_first, reduce_along}};

const struct schedules *tsr__schedules(const struct comm_algorithm *algorithm)
{
    static const struct schedules *const rows[] = {
#define ROW(path, function, name, what, condition) &function,
        ALGORITHMS(ROW)
#undef ROW
    };
    return rows[algorithm - tsr__algorithm_at(0)];
}
