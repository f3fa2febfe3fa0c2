// SPDX-License-Identifier: Apache-2.0
// internal.h - declarations shared by the files of this folder: construction, routes, schedules.
#ifndef TSR_TOPOLOGY_INTERNAL_H
#define TSR_TOPOLOGY_INTERNAL_H

#include "topology/topology.h"
#include "collective/collective.h"

// Creates a topology of n devices with default numbers and no links; NULL: out of memory.
tsr_topology *tsr__topology_new(tsr_session *session, int n);
// A machine of equal hosts with more links than this lists only the links of its first hosts.
#define TOPOLOGY_LISTED ((size_t)1 << 18)
#define TOPOLOGY_WINDOW 64 // number of hosts whose links are listed
// Adds a link and returns it. If latency or bandwidth is 0, the default is used. The pointer is
// valid until the next link is added; NULL: out of memory.
struct topology_link *tsr__topology_link(tsr_topology *topology, int from, int to, double latency,
                                         double bandwidth);
// Adds a port; links refer to it by its number.
bool tsr__topology_port(tsr_topology *topology, int device, double bandwidth);
// Returns the number of resources that messages share: links, then both directions of each port.
// Each has a number and a bandwidth.
static inline size_t tsr__topology_shared(const tsr_topology *topology)
{
    return topology->links.n + 2 * topology->ports.n;
}
// Return the number of the port at the link's sender or receiver among the shared resources; -1:
// none.
static inline int tsr__topology_out(const tsr_topology *topology, const struct topology_link *link)
{
    return link->out_port < 0 ? -1 : (int)topology->links.n + 2 * link->out_port;
}
static inline int tsr__topology_in(const tsr_topology *topology, const struct topology_link *link)
{
    return link->in_port < 0 ? -1 : (int)topology->links.n + 2 * link->in_port + 1;
}
// Returns the bandwidth of a shared resource.
static inline double tsr__topology_speed(const tsr_topology *topology, int shared)
{
    int link = (int)topology->links.n;
    return shared < link ? topology->links.at[shared].bandwidth
                         : topology->ports.at[(shared - link) / 2].bandwidth;
}
// Sorts the links, removes duplicates, warns about unreachable devices and detects grids. Call it
// after all links were added. `listed`: the user listed the links, so it also warns about links of
// a device to itself and one-way links.
tsr_status tsr__topology_finish(tsr_topology *topology, bool listed) TSR_MUST_USE;
// Returns the topology in *out, or frees it if the status is an error. Returns the status.
tsr_status tsr__topology_hand_over(tsr_topology *topology, tsr_status status,
                                   tsr_topology **out) TSR_MUST_USE;
// Copies the profiles of `from` and finishes `to`, which has devices of `from`. Frees `to` after a
// failure, else sets *out to it. The warnings of `from` are not repeated.
tsr_status tsr__topology_finish_copy(tsr_topology *to, const tsr_topology *from,
                                     tsr_topology **out) TSR_MUST_USE;

// Creates a topology from "ring:4" or "hosts:2x8"; TSR_MALFORMED with one diagnostic for other
// text.
tsr_status tsr__topology_make(tsr_session *session, struct str kind, struct str sizes,
                              tsr_topology **out) TSR_MUST_USE;

// rates.c: reads and writes the rates of devices, and ports, in JSON.
void tsr__rates_add_json(const tsr_topology_device *device, tsr_json *json);
void tsr__ports_add_json(const tsr_topology *topology, tsr_json *json);
struct json_t;
// Reads the rates of a device. Returns false if they are malformed, with the reason in *what.
bool tsr__rates_read(const struct json_t *device, tsr_topology_device *out, const char **what);
// Reads the ports. The links must be sorted.
bool tsr__ports_read(tsr_topology *topology, const struct json_t *list, const char **what);

// profiles.c: reads and writes profiles in JSON. False: malformed, and *what is the reason; *what
// NULL: out of memory.
void tsr__profiles_add_json(const tsr_topology *topology, tsr_json *json);
void tsr__json_numbers(tsr_json *json, const char *key, const double *numbers, int n);
bool tsr__profiles_read(tsr_topology *topology, const struct json_t *root, const char **what);
bool tsr__topology_copy_profiles(tsr_topology *to, const tsr_topology *from) TSR_MUST_USE;

// shares.c: adds choices with more ranks on faster devices.
tsr_status tsr__topology_add_shares(tsr_topology *topology) TSR_MUST_USE;

// boxes.c: creates predefined machines such as "h100:8" and "hosts:2xh100:8".
bool tsr__topology_is_box(struct str kind, struct str sizes);
tsr_status tsr__topology_box(tsr_session *session, struct str kind, struct str sizes,
                             tsr_topology **out) TSR_MUST_USE;

// ---- routes.c

// Drops the routes after links have changed.
void tsr__topology_reset_routes(tsr_topology *topology);
// Warns if not every device reaches every other; false: out of memory.
bool tsr__topology_warn_unreachable(tsr_topology *topology) TSR_MUST_USE;
// Lists the links of the route, last first, and returns their number. -1: no route, or more than
// `capacity` links; -2: out of memory.
int tsr__topology_path(tsr_topology *topology, int from, int to, int *links, int capacity);
#define TOPOLOGY_MAX_HOPS TOPOLOGY_MAX_DEVICES
// Groups whose links are listed. Do not copy: `groups` may point to `pair`.
struct listed_groups {
    struct topology_groups groups;
    int pair[2];
};
// Returns the groups, or for a pair of devices outside the window an equivalent pair inside. False:
// links of other groups are not listed.
bool tsr__topology_listed(const tsr_topology *topology, const struct topology_groups *groups,
                          struct listed_groups *out);

// The loads of one message from a device to each of many others, computed without following every
// route.
struct topology_spread {
    const int *last; // by device: the last link of the route to the device; -1: none
    int *through;    // by device: number of messages through that last link
    double *latency; // by device: latency of the route to the device
    double *message; // by device: largest message cost of a link of the route
};
// Computes the loads of one message from `from` to every other device d with group[d] ==
// group[from]. The result is valid until the next call. False: a device cannot be reached, or out
// of memory.
bool tsr__topology_spread(tsr_topology *topology, int from, const int *group,
                          struct topology_spread *out) TSR_MUST_USE;

// ---- schedules: steps of messages, passed to a listener

struct listener {
    void *data;
    void (*message)(void *data, int from, int to, double bytes);
    // Ends a step, which is repeated `times` times.
    void (*step_ends)(void *data, int times);
    // Adds all messages of an all-to-all step at once: every member sends that number of bytes to
    // every other member. Called only for large groups. NULL: the schedule passes single messages,
    // and each step once (`times` is 1).
    void (*exchange)(void *data, const struct topology_groups *groups, double bytes);
};
// Groups in the parts by which hosts they have (by_hosts.c). All groups have as many hosts, with as
// many members on the smallest and on the largest.
struct host_members {
    const int *device;
    int n;
};
struct groups_by_hosts {
    struct host_members *near; // the members of each host, of one group after the other
    int n_near;
    struct topology_groups lanes; // one member of each host: `n_lanes` for each group
    int n_lanes, hosts, most;     // most: members of the largest host
    bool in_order;                // the members of each host follow each other in their group
    int *members;                 // of all hosts
};
// Returns what the members of the groups know when they choose an algorithm, except the size of the
// tensor. *parts gets the groups by hosts; 0 hosts: they differ, or out of memory.
struct comm_shape tsr__topology_shape(const tsr_topology *topology,
                                      const struct topology_groups *groups, struct arena *arena,
                                      struct groups_by_hosts *parts);

// The schedules of an algorithm, each a list of steps of messages. Where a library chooses among
// several algorithms itself, there are several, of which the fastest counts.
#define ALGORITHM_SCHEDULES 4
// One run of a schedule over groups: `bytes` is the size of the full tensor of one group. `parts`:
// see tsr__topology_shape.
struct schedule {
    tsr_topology *topology;
    const struct topology_groups *groups;
    const struct groups_by_hosts *parts;
    double bytes;
    const struct listener *to;
};
struct schedules {
    // Each passes its messages to the listener. False: it does not apply to these groups.
    bool (*at[ALGORITHM_SCHEDULES])(const struct schedule *schedule);
};
// Returns the schedules of a row of ALGORITHMS (collective.h).
const struct schedules *tsr__schedules(const struct comm_algorithm *algorithm);

#endif
