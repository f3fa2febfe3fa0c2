// SPDX-License-Identifier: Apache-2.0
// topology.h - devices, links, and what moving bytes between them costs.
//
// A topology is a directed graph: devices with memory and speed, links with latency and bandwidth.
// The price of a collective on a group is the least over algorithms; every algorithm is a schedule
// of steps whose messages are routed over the links, so that congestion is counted and not assumed.
// Along one schedule the time is a line in the bytes: latency of all steps + bytes x seconds per
// byte, so a group is worked out once and then priced at any size. Knows no tensors.
#ifndef TSR_TOPOLOGY_H
#define TSR_TOPOLOGY_H

#include "base/base.h"

#define TOPOLOGY_MAX_DEVICES 16384
#define TOPOLOGY_MAX_LINKS   ((size_t)1 << 22) // all pairs of 2048 devices
#define TOPOLOGY_NEVER       (INT64_MAX / 4) // the price of what cannot be reached, in picoseconds

struct topology_link {
    int from, to;
    double latency;        // seconds
    double bandwidth;      // bytes per second, one way
    int out_port, in_port; // of its ends, that it shares with other links; -1: none
};
// What all links of a device, or some of them, can carry together, each way (a switch, a network card).
struct topology_port {
    int device;
    double bandwidth;
};

// How long a collective was seen to take over groups of one size, all groups at once.
#define TOPOLOGY_TIMES 16
struct topology_times {
    enum tsr_collective what;
    int size, n;
    int64_t bytes[TOPOLOGY_TIMES];  // ascending
    double seconds[TOPOLOGY_TIMES]; // not descending
};

// How many times as long as their prices nodes of one operator, or of one kind of work, and type were seen to take, by size (seen.c).
#define TOPOLOGY_SEEN_POINTS 32
struct topology_seen {
    bool kind;             // `op` is the word of a kind of work: "softmax"
    const char *op, *type; // of its first input
    int n;
    double work[TOPOLOGY_SEEN_POINTS];  // operations
    double bytes[TOPOLOGY_SEEN_POINTS]; // read and written
    double times[TOPOLOGY_SEEN_POINTS];
};
struct seen_point {
    double work, bytes, times;
};

struct tsr_topology {
    tsr_session *session;
    struct arena arena;
    int n;
    struct tsr_topology_device *device;
    VEC(struct topology_link) links;
    VEC(struct topology_port) ports;
    int window; // devices from the first on that have links, where hosts are too many to list: all are alike; 0: all have
    int host;   // devices that share one, one after the other; 0: not known
    bool assumed;        // speeds are those of the table or of a box, not of devices that exist
    bool memory_assumed; // nobody said how much memory the devices have: it is the table's
    int n_grid; // sides of the grid that the devices form in row-major order, 0: none known
    int grid[8];
    VEC(struct topology_times) times; // collectives that were measured
    VEC(struct topology_seen) seen;   // nodes of a model that was run, and kinds of work
    double wait;     // seconds that ranks lost where they met, besides the price of the collective
    struct str text; // the generator that it is as made by; empty: none, or changed
    size_t *first;   // by device: its first link (they are sorted), one more at the end
    int **route;     // by source: the last link on the way to each device, or -1; made when needed
    int shared_by; // ranks of the device that has most of them, in a choice of ranks; 0: each is a device (shares.c)
    int64_t
        unsharded_penalty; // picoseconds that the planner adds to every node that is not sharded; 0: none
    bool even;             // all links have the same latency and bandwidth
    struct topology_work *work; // what finding routes needs besides; made when needed
    struct map priced;
    VEC(struct tsr_topology *)
    choices; // of which a plan takes the best; none: all devices (subsets.c)
};

// TSR_OK if the topology that a caller gave belongs to the session, or is NULL; else a finding.
tsr_status tsr__topology_owned(tsr_session *session, const tsr_topology *topology) TSR_MUST_USE;

// Groups of one size that all do the same at the same time (the lines of one mesh axis).
struct topology_groups {
    int count, size;
    const int *device; // count x size
};

// One way to carry out a collective, as a line in the bytes.
struct topology_way {
    const char *algorithm;
    double latency;  // seconds
    double per_byte; // seconds per byte of the whole tensor
    bool near;       // each group in the order from neighbour to nearest neighbour, not as given
};

// Picoseconds of one collective over the groups; bytes: of the whole tensor over one group (what an
// all-gather ends with and a reduce-scatter begins with). TOPOLOGY_NEVER: some device cannot be
// reached or there was no memory.
int64_t tsr__topology_cost(tsr_topology *topology, enum tsr_collective what,
                           const struct topology_groups *groups, int64_t bytes);
// The same with the way that was the cheapest.
int64_t tsr__topology_way(tsr_topology *topology, enum tsr_collective what,
                          const struct topology_groups *groups, int64_t bytes,
                          struct topology_way *way);
// Adds to by_link, which has an entry for each link, the bytes that it carries on that way.
void tsr__topology_load(tsr_topology *topology, enum tsr_collective what,
                        const struct topology_groups *groups, int64_t bytes, double *by_link);
// The collective was measured over groups of that size: its price is a time that was seen, copies through memory included.
bool tsr__topology_measured(const tsr_topology *topology, enum tsr_collective what, int size);
// Every node takes as long on either, and as much memory is there; their names may differ. (repeats.c)
bool tsr__devices_alike(const tsr_topology_device *a, const tsr_topology_device *b);
// The first `devices` of them, and each block of as many that follows, are alike and linked alike inside. (repeats.c)
bool tsr__topology_repeats(const tsr_topology *topology, int devices, int copies);
// Sets the grid that its links form, if they form one and none is known: a grid, a torus, hosts. (recognise.c)
void tsr__topology_recognise(tsr_topology *topology);
// Reads a topology from a file of at most 64 MiB: JSON or any text that tsr_topology_parse takes. (parse.c)
tsr_status tsr__topology_read(tsr_session *session, const char *path,
                              tsr_topology **out) TSR_MUST_USE;
// Gives the topology choices: smaller topologies with its fastest devices, of which a plan takes the best. Of
// speeds 3 and 1 one choice also has 3 ranks that divide the first device and 1 on the second. (subsets.c)
tsr_status tsr__topology_choose(tsr_topology *topology) TSR_MUST_USE;
// tsr__topology_choose, and gives the topology out; freed if that fails. (subsets.c)
tsr_status tsr__topology_chosen(tsr_topology *topology, tsr_topology **out) TSR_MUST_USE;
// Adds a smaller topology to its choices, which then belongs to it; freed if there is no memory.
tsr_status tsr__topology_add_choice(tsr_topology *topology, tsr_topology *choice) TSR_MUST_USE;
// Adds such times, made fit to be kept; before anything is priced.
bool tsr__topology_add_times(tsr_topology *topology, const struct topology_times *times);
// What was seen of an operator with that type; NULL: nothing. (seen.c)
const struct topology_seen *tsr__topology_seen(const tsr_topology *topology, const char *op,
                                               const char *type);
double tsr__seen_times(const struct topology_seen *seen, double work, double bytes);
// Adds a point; out of bounds it is the nearest number within them. False: no memory.
bool tsr__topology_add_seen(tsr_topology *topology, const char *op, const char *type,
                            const struct seen_point *point) TSR_MUST_USE;
// The same of a kind of work, by its word (rates.c): sizes at which it is slower or faster than its speed says.
const struct topology_seen *tsr__topology_sizes(const tsr_topology *topology, const char *word,
                                                const char *type);
bool tsr__topology_add_size(tsr_topology *topology, const char *word, const char *type,
                            const struct seen_point *point) TSR_MUST_USE;
// The word of a tsr_rate, or, where a kind has none (-1), of its tsr_move.
const char *tsr__kind_word(int rate, int move);
void tsr__topology_set_wait(tsr_topology *topology, double seconds);
// No algorithm can be faster: what must cross the worst of the cuts that are looked at.
int64_t tsr__topology_bound(tsr_topology *topology, enum tsr_collective what,
                            const struct topology_groups *groups, int64_t bytes);

#endif
