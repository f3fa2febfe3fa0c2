// SPDX-License-Identifier: Apache-2.0
// internal.h - what the files of this room share: building, routes, schedules.
#ifndef TSR_TOPOLOGY_INTERNAL_H
#define TSR_TOPOLOGY_INTERNAL_H

#include "topology/topology.h"

// An empty topology of n devices with the numbers of the default table; NULL: no memory.
tsr_topology *tsr__topology_new(tsr_session *session, int n);
// Hosts that are alike: of machines with more links than TOPOLOGY_LISTED only those of the first hosts are listed.
#define TOPOLOGY_LISTED ((size_t)1 << 18)
#define TOPOLOGY_WINDOW 64 // hosts
// Adds a link; latency and bandwidth 0 mean the default's.
bool tsr__topology_link(tsr_topology *topology, int from, int to, double latency, double bandwidth);
// Adds a port; links name it by its number.
bool tsr__topology_port(tsr_topology *topology, int device, double bandwidth);
// Links and then both ways of the ports are what messages share: each has a number and bytes per second.
static inline size_t tsr__topology_shared(const tsr_topology *topology)
{
    return topology->links.n + 2 * topology->ports.n;
}
static inline int tsr__topology_out(const tsr_topology *topology, const struct topology_link *link)
{
    return link->out_port < 0 ? -1 : (int)topology->links.n + 2 * link->out_port;
}
static inline int tsr__topology_in(const tsr_topology *topology, const struct topology_link *link)
{
    return link->in_port < 0 ? -1 : (int)topology->links.n + 2 * link->in_port + 1;
}
static inline double tsr__topology_speed(const tsr_topology *topology, int shared)
{
    int link = (int)topology->links.n;
    return shared < link ? topology->links.at[shared].bandwidth
                         : topology->ports.at[(shared - link) / 2].bandwidth;
}
// Sorts the links and warns about what is odd. After the last link, before anything else.
tsr_status tsr__topology_finish(tsr_topology *topology, bool listed) TSR_MUST_USE;

// "ring:4", "hosts:2x8"; TSR_MALFORMED with one finding for what is none of them.
tsr_status tsr__topology_make(tsr_session *session, struct str kind, struct str sizes,
                              tsr_topology **out) TSR_MUST_USE;

// rates.c: rates of devices, and ports, as JSON says them.
void tsr__rates_add_json(const tsr_topology_device *device, tsr_json *json);
void tsr__ports_add_json(const tsr_topology *topology, tsr_json *json);
struct json_t;
// False: damaged; *what then says how.
bool tsr__rates_read(const struct json_t *device, tsr_topology_device *out, const char **what);
// After the links are there and sorted.
bool tsr__ports_read(tsr_topology *topology, const struct json_t *list, const char **what);

// seen.c: what was seen of a model's nodes, as JSON says it. False: *what says what is damaged; NULL: no memory.
void tsr__seen_add_json(const tsr_topology *topology, tsr_json *json);
bool tsr__seen_read(tsr_topology *topology, const struct json_t *root, const char **what);
bool tsr__topology_copy_seen(tsr_topology *to, const tsr_topology *from) TSR_MUST_USE;

// shares.c: adds choices in which faster devices have more ranks.
tsr_status tsr__topology_add_shares(tsr_topology *topology) TSR_MUST_USE;

// boxes.c: "h100:8", "hosts:2xh100:8".
bool tsr__topology_is_box(struct str kind, struct str sizes);
tsr_status tsr__topology_box(tsr_session *session, struct str kind, struct str sizes,
                             tsr_topology **out) TSR_MUST_USE;

// ---- routes.c

// Forgets the routes: links were added or have other numbers.
void tsr__topology_reset_routes(tsr_topology *topology);
// One finding if not every device reaches every other; false: no memory.
bool tsr__topology_warn_unreachable(tsr_topology *topology) TSR_MUST_USE;
// Links on the way from a to b, last first; -1: there is none, -2: no memory.
int tsr__topology_path(tsr_topology *topology, int from, int to, int *links, int room);
// The same groups, each in the order from neighbour to nearest neighbour; path has TOPOLOGY_MAX_HOPS. NULL: no memory. (price.c)
const int *tsr__near_groups(tsr_topology *topology, const struct topology_groups *groups,
                            int *path);
#define TOPOLOGY_MAX_HOPS TOPOLOGY_MAX_DEVICES

// One message from a device to each of many, without walking every way link by link.
struct topology_spread {
    const int *last; // by device: the last link on the way to it, -1: none
    int *through;    // by device: how many of the messages come through that link
    double *latency; // by device: seconds of latency on the way to it
};
// The messages go to all devices d other than `from` with group[d] == group[from]; valid until the next call. False:
// one of them cannot be reached, or no memory.
bool tsr__topology_spread(tsr_topology *topology, int from, const int *group,
                          struct topology_spread *out) TSR_MUST_USE;

// ---- schedules: steps of messages, sent to whoever listens

struct listener {
    void *data;
    void (*message)(void *data, int from, int to, double bytes);
    // The step is carried out `times` times, one after the other.
    void (*step_ends)(void *data, int times);
    // Everybody sends so many bytes to everybody else of its group, in this step. NULL: told message by message.
    void (*exchange)(void *data, const struct topology_groups *groups, double bytes);
};
// One algorithm for one collective; false: not for groups of this kind (nothing was sent).
struct algorithm {
    const char *name;
    enum tsr_collective what;
    bool (*schedule)(tsr_topology *topology, const struct topology_groups *groups, double bytes,
                     const struct listener *to);
};
extern const struct algorithm tsr__algorithms[];
extern const size_t tsr__n_algorithms;

#endif
