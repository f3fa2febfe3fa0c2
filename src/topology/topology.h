// SPDX-License-Identifier: Apache-2.0
// topology.h - devices, links, and the predicted time of communication between them.
//
// A topology is a directed graph: devices with memory and speed, links with latency and bandwidth.
// The time of a collective over a group is that of the algorithm that the transports run for this
// size. Each algorithm is a schedule of steps whose messages are routed over the links, so that
// congestion is computed and not assumed. For one schedule the time is linear in the bytes:
// start-up + latency and messages of all steps + bytes x seconds per byte. So a group is analysed
// once and then evaluated for any size. This module does not depend on tensors.
#ifndef TSR_TOPOLOGY_H
#define TSR_TOPOLOGY_H

#include "base/base.h"

#define TOPOLOGY_MAX_DEVICES 16384
#define TOPOLOGY_MAX_LINKS   ((size_t)1 << 22) // links of all pairs of 2048 devices
#define TOPOLOGY_NEVER       (INT64_MAX / 4)   // time in picoseconds if a device cannot be reached

struct topology_link {
    int from, to;
    double latency;        // seconds
    double bandwidth;      // bytes per second, one way
    double start;          // seconds that a collective takes once if it uses the link
    double message;        // seconds of work at both ends for each message
    int out_port, in_port; // ports at its ends, shared with other links; -1: none
};
// A switch or a network card. It limits the total bandwidth of some or all links of a device, in
// each direction.
struct topology_port {
    int device;
    double bandwidth;
};

// Measured times of a collective that all groups of one size run at the same time. `hosts` is the
// number of hosts that a group spans; 0: any.
#define TOPOLOGY_TIMES 16
struct topology_times {
    enum tsr_collective what;
    int size, hosts, n;
    int64_t bytes[TOPOLOGY_TIMES];  // ascending
    double seconds[TOPOLOGY_TIMES]; // not descending
};

// Profile of the nodes of one operator, or of one kind of work, with one type: measured time
// divided by predicted time, by size (profiles.c).
#define TOPOLOGY_PROFILE_POINTS 32
struct topology_profile {
    bool kind;             // `op` is the name of a kind of work, such as "softmax"
    const char *op, *type; // operator or kind, and the type of its first input
    int n;
    double work[TOPOLOGY_PROFILE_POINTS];  // operations
    double bytes[TOPOLOGY_PROFILE_POINTS]; // read and written
    double times[TOPOLOGY_PROFILE_POINTS];
};
struct profile_point {
    double work, bytes, times;
};

struct tsr_topology {
    tsr_session *session;
    struct arena arena;
    int n;
    struct tsr_topology_device *device;
    VEC(struct topology_link) links;
    VEC(struct topology_port) ports;
    // only links of the first `window` devices are listed, because all hosts are equal; 0: all are
    int window;
    int host;            // number of consecutive devices in one host; 0: unknown
    bool assumed;        // speeds are defaults or those of a predefined machine, not measured
    bool memory_assumed; // the memory size is a default
    const char *basis;   // of the speeds, if it is a predefined machine; NULL: see `assumed`
    int n_grid;          // number of sides of the grid that the devices form, row-major; 0: unknown
    int grid[8];
    VEC(struct topology_times) times;      // measured collectives
    VEC(struct topology_profile) profiles; // profiles of operators and kinds of work
    double wait;     // seconds that ranks lose per synchronization, in addition to the collective
    struct str text; // text of its generator ("ring:4"); empty: it has none, or was changed
    size_t *first;   // by device: its first link (links are sorted), with one more entry at the end
    int **route;     // by source: last link of the route to each device, or -1; made on demand
    int shared_by;   // largest number of ranks on one device; 0: each rank is a device (shares.c)
    int64_t unsharded_penalty; // picoseconds that the planner adds to every unsharded node; 0: none
    bool even;                 // all links have the same latency and bandwidth
    struct topology_work *work; // buffers for finding routes; made on demand
    struct map times_of_groups; // cache of collective_time.c
    VEC(int) key;               // buffer for keys of the cache
    struct meter *meter;        // buffers of collective_time.c; made on demand
    VEC(struct tsr_topology *)
    choices; // topologies of some devices, of which the planner uses the best (subsets.c)
};

// Returns TSR_OK if the caller's topology is NULL or belongs to the session; otherwise adds a
// diagnostic.
tsr_status tsr__topology_owned(tsr_session *session, const tsr_topology *topology) TSR_MUST_USE;

// Creates a topology of as many devices as `real` has (NULL: `devices`), with their names and
// memory, whose plans shard every node that can be sharded: each unsharded node costs a second.
// `real` must outlive it, because the names belong to it.
tsr_status tsr__topology_forced(tsr_session *session, const tsr_topology *real, int64_t devices,
                                tsr_topology **out) TSR_MUST_USE;

// Groups of equal size that run the same collective at the same time (e.g. the rows of a mesh).
struct topology_groups {
    int count, size;
    const int *device; // the devices of all groups: count x size
};

// The time of one algorithm for a collective, which is linear in the bytes.
struct comm_algorithm;
struct timed_algorithm {
    const char *name;
    const struct comm_algorithm *algorithm; // NULL: measured
    int schedule;                           // of the algorithm's schedules
    double latency;                         // seconds
    double per_byte;                        // seconds per byte of the full tensor
    double start;                           // part of the latency that a collective takes once
};

// Returns the picoseconds of one collective over the groups. bytes: size of the full tensor of one
// group (the result of an all-gather, the input of a reduce-scatter). TOPOLOGY_NEVER: a device
// cannot be reached, the links of the groups are not listed (`window`), or out of memory.
int64_t tsr__topology_cost(tsr_topology *topology, enum tsr_collective what,
                           const struct topology_groups *groups, int64_t bytes);
// Returns the predicted time as tsr__topology_cost, and the algorithm.
int64_t tsr__topology_fastest(tsr_topology *topology, enum tsr_collective what,
                              const struct topology_groups *groups, int64_t bytes,
                              struct timed_algorithm *fastest);
// Adds the bytes that each link carries to by_link.
void tsr__topology_load(tsr_topology *topology, enum tsr_collective what,
                        const struct topology_groups *groups, int64_t bytes, double *by_link);
// True if the collective was measured over such groups; the times include copies in memory.
bool tsr__topology_measured(const tsr_topology *topology, enum tsr_collective what,
                            const struct topology_groups *groups);
// True if both devices have the same speed and memory.
bool tsr__devices_alike(const tsr_topology_device *a, const tsr_topology_device *b);
// True if both devices have the same speed. Their memory may differ.
bool tsr__speeds_alike(const tsr_topology_device *a, const tsr_topology_device *b);
// True if the first `copies` x `devices` devices are `copies` equal blocks of `devices` consecutive
// devices.
bool tsr__topology_repeats(const tsr_topology *topology, int devices, int copies);
// recognise.c: detects the grid, torus or hosts that the links form, if none is known.
void tsr__topology_recognise(tsr_topology *topology);
// parse.c: reads a topology from a file of at most 64 MiB: JSON or any text that tsr_topology_parse
// accepts.
tsr_status tsr__topology_read(tsr_session *session, const char *path,
                              tsr_topology **out) TSR_MUST_USE;
// subsets.c: adds the choices: topologies of only the fastest devices, up to all of them, and
// topologies with more ranks on faster devices. The planner uses the best choice. Example: for the
// speeds 3 and 1, one choice has 3 ranks on the first device and 1 on the second.
tsr_status tsr__topology_choose(tsr_topology *topology) TSR_MUST_USE;
// subsets.c: calls tsr__topology_choose and returns the topology in *out; frees it on failure.
tsr_status tsr__topology_chosen(tsr_topology *topology, tsr_topology **out) TSR_MUST_USE;
// Adds a topology to the choices and takes ownership of it; frees it if memory runs out.
tsr_status tsr__topology_add_choice(tsr_topology *topology, tsr_topology *choice) TSR_MUST_USE;
// Adds measured times and makes them monotonic. False: out of memory. Call it before any time is
// predicted.
bool tsr__topology_add_times(tsr_topology *topology, const struct topology_times *times);
// profiles.c: returns the profile of an operator with that type; NULL: none.
const struct topology_profile *tsr__topology_profile(const tsr_topology *topology, const char *op,
                                                     const char *type);
double tsr__profile_ratio(const struct topology_profile *profile, double work, double bytes);
// Adds a point to a profile, clamped to the allowed range. False: out of memory.
bool tsr__topology_add_profile(tsr_topology *topology, const char *op, const char *type,
                               const struct profile_point *point) TSR_MUST_USE;
// Return and extend the profile of a kind of work, by its name (rates.c). The profile shows the
// sizes at which the work is slower or faster.
const struct topology_profile *tsr__topology_kind_profile(const tsr_topology *topology,
                                                          const char *word, const char *type);
bool tsr__topology_add_kind_profile(tsr_topology *topology, const char *word, const char *type,
                                    const struct profile_point *point) TSR_MUST_USE;
// Returns the name of a tsr_rate, or of the tsr_move if rate is -1.
const char *tsr__kind_word(int rate, int move);
void tsr__topology_set_wait(tsr_topology *topology, double seconds);
// Returns a lower bound in picoseconds for all algorithms: the time of the bytes that must cross
// the slowest bisection that bound.c examines.
int64_t tsr__topology_bound(tsr_topology *topology, enum tsr_collective what,
                            const struct topology_groups *groups, int64_t bytes);

// ---- player.c: steps of devices, played in time ------------------------------------------------

// The time for which a communication occupies a link, or a port in one direction. Ports are
// numbered after the links.
struct player_use {
    size_t link;
    double ps;
};
struct player_uses {
    struct player_use *at;
    size_t n;
};
// A communication of one group, in every run. Groups of one communication have the same id, from 0,
// and do not delay each other.
struct player_meeting {
    const int64_t *devices; // each joins once in a run
    size_t n;
    int64_t ps;
    size_t id;
    struct player_uses uses;
    size_t arrived; // while it is played: number of devices that have arrived
    double latest;  // time of the latest arrival
};
struct player_step {
    double ps;      // of work
    size_t meeting; // SIZE_MAX: work
};
struct player_device {
    VEC(struct player_step) steps; // of one run
    size_t at, run;                // the current step and run
    double now;                    // time at which the device is free
};
struct player_link {
    double free; // end of the last use
    size_t by;   // id of the last user plus 1; 0: none
};
// A step that was played, in picoseconds. The device waited from `arrived` to `begin`.
struct player_span {
    int64_t device;
    size_t step, run;
    double arrived, begin, end;
};
// Picoseconds are doubles, which are exact up to 2.5 hours and never overflow.
struct player {
    struct arena *arena;
    const tsr_topology *topology;
    int64_t n_devices;
    size_t runs;
    struct player_device *devices;
    VEC(struct player_meeting) meetings;
    VEC(size_t) ready;         // heap of meetings whose devices have all arrived
    double *load;              // by link: bytes; NULL: communications do not delay each other
    struct player_link *links; // by link and port
    double *ends;              // by run
    void (*observe)(void *data, const struct player_span *span); // or NULL
    void *data;
};
// Starts a player without steps. contention: communications of different runs that use the same
// link delay each other, unless the topology has too many links. Returns false if out of memory, as
// all functions below that return bool.
bool tsr__player_init(struct player *player, struct arena *arena, const tsr_topology *topology,
                      int64_t devices, bool contention);
// Returns the bytes of each link, all 0, for tsr__topology_load to add to. tsr__player_uses returns
// the uses of the links with these bytes. NULL: there is no contention, and no uses are needed.
double *tsr__player_load(struct player *player);
struct player_uses tsr__player_uses(struct player *player);
// Adds work to the steps of a device. Without an observer, consecutive work becomes one step.
bool tsr__player_work(struct player *player, int64_t device, int64_t ps);
// Adds a meeting and returns its number. Each of its devices must join it.
size_t tsr__player_meeting(struct player *player, const struct player_meeting *meeting);
bool tsr__player_join(struct player *player, int64_t device, size_t meeting);
// Plays the steps of one run that many times. If a device waits for one that never joins,
// tsr__player_is_done is false afterwards.
bool tsr__player_play(struct player *player, size_t runs);
bool tsr__player_is_done(const struct player *player);
// Return the end of the last run, and the mean time between the ends of two runs when all stages
// are busy, in picoseconds.
double tsr__player_end(const struct player *player);
double tsr__player_period(const struct player *player);

#endif
