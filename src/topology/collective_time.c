// SPDX-License-Identifier: Apache-2.0
// collective_time.c - predicted time of collectives: that of the algorithm that the transports run
// (tsr__algorithm), unless the collective was measured.
//
// Each schedule is run once with one byte. The time of a step is the sum of three maxima: the
// longest latency of a message, the largest message cost of a sender or receiver, and the time of
// the most loaded link. The largest start-up cost of the links used is added once. The sum over the
// steps is linear in the bytes; it is cached by collective and groups.
//
// Example: an all-gather of B bytes round a ring of 4 whose links have 1 us and 1 GB/s, with 8 us
// for the start and 0.5 us per message. Each of the 3 steps takes 1.5 us + B / 4 / 1e9 s:
// 12.5 us + 0.75 ns per byte in total.
#include "topology/internal.h"

#include <math.h>

// ---- the cache

#define ALL_PAIRS (-1) // a key besides the collectives: every member sends one byte to every other

// Returns the cache slot of a collective over groups; NULL: out of memory.
static void **kept_at(tsr_topology *topology, int what, const struct topology_groups *groups)
{
    size_t n = 2 + (size_t)groups->count * (size_t)groups->size;
    while (topology->key.n < n)
        if (!vec_add(&topology->arena, &topology->key, 0))
            return NULL;
    int *key = topology->key.at;
    key[0] = what;
    key[1] = groups->size;
    memcpy(key + 2, groups->device, (n - 2) * sizeof *key);
    return tsr__map_at_copy(&topology->times_of_groups, str_bytes(key, n * sizeof *key));
}

// Returns the cached entry for all pairs; NULL: out of memory. `name` of the entry is NULL until it
// is computed.
static struct timed_algorithm *all_pairs_of(tsr_topology *topology,
                                            const struct topology_groups *groups)
{
    void **at = kept_at(topology, ALL_PAIRS, groups);
    if (at && !*at)
        *at = ARENA_NEW(&topology->arena, struct timed_algorithm);
    return at ? *at : NULL;
}

// ---- running a schedule

// A listener that sums up times. `load` is 0 between steps. `touched` lists the entries that are
// not 0, so that the cost of a step depends on its messages and not on all links.
struct meter {
    tsr_topology *topology;
    size_t shared; // number of links and port directions, for which the buffers were made
    double *load;  // by link and port: bytes of this step
    int *touched;
    size_t n_touched;
    double *posted; // by device: message costs of this step, of sending and of receiving
    int *posting;   // indices of the entries of `posted` that are not 0
    size_t n_posting;
    int *group;               // by device: its group
    double longest;           // largest latency of a message in this step
    double fullest;           // seconds of the most loaded link in this step
    double latency, per_byte; // totals so far
    double start;             // largest start-up time of the links used so far
    bool unreachable;
    int path[TOPOLOGY_MAX_HOPS];
};

// Adds bytes to a link or port in this step.
static void add_load(struct meter *meter, int shared, double bytes)
{
    if (shared < 0 || bytes <= 0)
        return;
    if (meter->load[shared] == 0)
        meter->touched[meter->n_touched++] = shared;
    meter->load[shared] += bytes;
}

// Adds bytes to a link and to the ports at both ends.
static void add_link_loads(struct meter *meter, const struct topology_link *link, double bytes)
{
    add_load(meter, (int)(link - meter->topology->links.at), bytes);
    add_load(meter, tsr__topology_out(meter->topology, link), bytes);
    add_load(meter, tsr__topology_in(meter->topology, link), bytes);
    meter->start = fmax(meter->start, link->start);
}

// Adds the cost of a message. `end` is 2 x device for a sender, 2 x device + 1 for a receiver.
static void add_post(struct meter *meter, int end, double seconds)
{
    if (seconds <= 0)
        return;
    if (meter->posted[end] == 0)
        meter->posting[meter->n_posting++] = end;
    meter->posted[end] += seconds;
}

// Resets the message costs and returns the largest one.
static double take_posts(struct meter *meter)
{
    double most = 0;
    for (size_t i = 0; i < meter->n_posting; i++) {
        most = fmax(most, meter->posted[meter->posting[i]]);
        meter->posted[meter->posting[i]] = 0;
    }
    meter->n_posting = 0;
    return most;
}

// Adds one message to the step.
static void add_message(void *data, int from, int to, double bytes)
{
    struct meter *meter = data;
    double latency = 0, message = 0;
    int n = tsr__topology_path(meter->topology, from, to, meter->path, TOPOLOGY_MAX_HOPS);
    if (n < 0)
        meter->unreachable = true;
    for (int i = 0; i < n; i++) {
        const struct topology_link *link = &meter->topology->links.at[meter->path[i]];
        latency += link->latency;
        message = fmax(message, link->message);
        add_link_loads(meter, link, bytes);
    }
    add_post(meter, 2 * from, message);
    add_post(meter, 2 * to + 1, message);
    meter->longest = fmax(meter->longest, latency);
}

// Adds loads, latency and message costs of one byte from every member of a group to every other.
// Uses one routing tree per member: a link carries one message for each member behind it. False: a
// device cannot be reached, or out of memory.
static bool load_all_pairs(struct meter *meter, const struct topology_groups *groups)
{
    struct topology_spread spread;
    for (int i = 0; i < meter->topology->n; i++)
        meter->group[i] = -1 - i; // the device is in no group: a unique number
    for (int i = 0; i < groups->count * groups->size; i++)
        meter->group[groups->device[i]] = i / groups->size;
    for (int i = 0; i < groups->count * groups->size; i++) {
        if (!tsr__topology_spread(meter->topology, groups->device[i], meter->group, &spread))
            return false;
        for (int d = 0; d < meter->topology->n; d++) {
            if (!spread.through[d] || spread.last[d] < 0)
                continue;
            add_link_loads(meter, &meter->topology->links.at[spread.last[d]], spread.through[d]);
            if (meter->group[d] != meter->group[groups->device[i]])
                continue;
            add_post(meter, 2 * groups->device[i], spread.message[d]);
            meter->longest = fmax(meter->longest, spread.latency[d]);
        }
    }
    meter->longest += take_posts(meter);
    return true;
}

// Resets the loads and returns the seconds of the most loaded link or port.
static double unload(struct meter *meter)
{
    double fullest = 0;
    for (size_t i = 0; i < meter->n_touched; i++) {
        int k = meter->touched[i];
        fullest = fmax(fullest, meter->load[k] / tsr__topology_speed(meter->topology, k));
        meter->load[k] = 0;
    }
    meter->n_touched = 0;
    return fullest;
}

// Adds an all-to-all step. All collectives with such a step share one cached analysis of their
// groups.
static void exchange(void *data, const struct topology_groups *groups, double bytes)
{
    struct meter *meter = data;
    struct timed_algorithm *one = all_pairs_of(meter->topology, groups);
    if (one && !one->name) {
        double latency = load_all_pairs(meter, groups) ? meter->longest : INFINITY;
        *one = (struct timed_algorithm){.name = "all pairs",
                                        .latency = latency,
                                        .per_byte = unload(meter),
                                        .start = meter->start};
    }
    if (!one || isinf(one->latency)) {
        meter->unreachable = true;
        return;
    }
    meter->longest = one->latency;
    meter->start = fmax(meter->start, one->start);
    meter->fullest = one->per_byte * bytes;
}

// Ends a step. Its time is its longest latency, its message costs and the time of its most loaded
// link, times its repetitions.
static void end_step(void *data, int times)
{
    struct meter *meter = data;
    double fullest = meter->n_touched ? unload(meter) : meter->fullest;
    meter->longest += take_posts(meter);
    for (int i = 0; i < times; i++) {
        meter->latency += meter->longest;
        meter->per_byte += fullest;
    }
    meter->longest = meter->fullest = 0;
}

// Returns the seconds per byte of the reduction itself on the device with the slowest memory. Every
// piece is read once, and the result is written. 0: the collective does not reduce.
static double fold_per_byte(const tsr_topology *topology, enum tsr_collective what,
                            const struct topology_groups *groups)
{
    double slowest = 0;
    if (!comm_has((int)what, TRAIT_REDUCES))
        return 0;
    for (int i = 0; i < groups->count * groups->size; i++)
        slowest = fmax(slowest, 1 / topology->device[groups->device[i]].bandwidth);
    // A device reads n pieces, each 1/n of the tensor, and writes one: (n + 1) / n bytes per byte.
    return slowest * (groups->size + 1) / groups->size;
}

// ---- the algorithms of one collective

// An algorithm for some groups. Its schedules have the same name; the fastest counts.
struct timed_row {
    const struct comm_algorithm *algorithm;
    int n;
    struct timed_algorithm at[ALGORITHM_SCHEDULES];
};
// What is known of some groups, and the algorithms that were asked for so far.
struct timed_groups {
    struct comm_shape shape;
    VEC(struct timed_row *) rows;
};

// Returns the topology's meter, made on demand: clearing its buffers for every pair of thousands of
// devices would take minutes. NULL: out of memory.
static struct meter *meter_of(tsr_topology *topology)
{
    size_t shared = tsr__topology_shared(topology), n = (size_t)topology->n;
    if (topology->meter && topology->meter->shared == shared)
        return topology->meter;
    struct meter *meter = ARENA_NEW(&topology->arena, struct meter);
    if (!meter)
        return NULL;
    meter->topology = topology;
    meter->shared = shared;
    meter->load = ARENA_ARRAY(&topology->arena, double, shared + 1);
    meter->touched = ARENA_ARRAY(&topology->arena, int, shared + 1);
    meter->posted = ARENA_ARRAY(&topology->arena, double, 2 * n);
    meter->posting = ARENA_ARRAY(&topology->arena, int, 2 * n);
    meter->group = ARENA_ARRAY(&topology->arena, int, n);
    if (topology->arena.failed)
        return NULL;
    topology->meter = meter;
    return meter;
}

// Runs a schedule with one byte. Returns false if it does not apply, or a device is unreachable.
static bool time_schedule(const struct schedules *schedules, int which, struct schedule *run,
                          struct timed_algorithm *out)
{
    struct meter *meter = meter_of(run->topology);
    if (!meter)
        return false;
    meter->latency = meter->per_byte = meter->longest = meter->fullest = meter->start = 0;
    meter->unreachable = false;
    run->to = &(struct listener){meter, add_message, end_step, exchange};
    if (!schedules->at[which](run) || meter->unreachable)
        return false;
    *out = (struct timed_algorithm){.latency = meter->start + meter->latency,
                                    .per_byte = meter->per_byte,
                                    .start = meter->start,
                                    .schedule = which};
    return true;
}

// Computes the times of an algorithm.
static void time_row(tsr_topology *topology, const struct topology_groups *groups,
                     struct timed_row *row)
{
    struct arena scratch = {.session = topology->session};
    struct groups_by_hosts parts;
    const struct schedules *schedules = tsr__schedules(row->algorithm);
    struct schedule run = {topology, groups, &parts, 1, NULL};
    tsr__topology_shape(topology, groups, &scratch, &parts);
    double fold = fold_per_byte(topology, (enum tsr_collective)row->algorithm->kind, groups);
    for (int k = 0; k < ALGORITHM_SCHEDULES && schedules->at[k] && !scratch.failed; k++) {
        struct timed_algorithm *timed = &row->at[row->n];
        if (!time_schedule(schedules, k, &run, timed))
            continue;
        timed->name = row->algorithm->name;
        timed->algorithm = row->algorithm;
        timed->per_byte += fold;
        row->n++;
    }
    topology->arena.failed = topology->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
}

// Returns what is known of these groups; NULL: out of memory.
static struct timed_groups *timed_groups(tsr_topology *topology, enum tsr_collective what,
                                         const struct topology_groups *groups)
{
    struct arena scratch = {.session = topology->session};
    struct groups_by_hosts parts;
    void **at = kept_at(topology, (int)what, groups);
    if (!at || *at)
        return at ? *at : NULL;
    struct timed_groups *timed = ARENA_NEW(&topology->arena, struct timed_groups);
    if (timed)
        timed->shape = tsr__topology_shape(topology, groups, &scratch, &parts);
    topology->arena.failed = topology->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
    *at = timed;
    return topology->arena.failed ? NULL : timed;
}

// Returns the algorithm that runs the collective for that size; NULL: out of memory.
static const struct timed_row *timed_row(tsr_topology *topology, enum tsr_collective what,
                                         const struct topology_groups *groups, int64_t bytes)
{
    struct timed_groups *timed = timed_groups(topology, what, groups);
    if (!timed)
        return NULL;
    timed->shape.bytes = (size_t)bytes;
    const struct comm_algorithm *algorithm = tsr__algorithm((enum comm_kind)what, &timed->shape);
    for (size_t i = 0; i < timed->rows.n; i++)
        if (timed->rows.at[i]->algorithm == algorithm)
            return timed->rows.at[i];
    struct timed_row *row = ARENA_NEW(&topology->arena, struct timed_row);
    if (!row || !vec_add(&topology->arena, &timed->rows, row))
        return NULL;
    row->algorithm = algorithm;
    time_row(topology, groups, row);
    return topology->arena.failed ? NULL : row;
}

// ---- measured times

bool tsr__topology_add_times(tsr_topology *topology, const struct topology_times *times)
{
    struct topology_times *at = vec_push(&topology->arena, &topology->times);
    if (!at)
        return false;
    *at = *times;
    for (int i = 1; i < at->n; i++) // make the times monotonic
        at->seconds[i] = at->seconds[i] > at->seconds[i - 1] ? at->seconds[i] : at->seconds[i - 1];
    topology->text = STR("");
    return true;
}

// Returns the number of hosts that the first group spans; 1 if hosts are unknown. Members of one
// host need not be consecutive. Example: {0 8 1 9} on hosts of 8 devices spans two hosts.
static int hosts_spanned(const tsr_topology *topology, const struct topology_groups *groups)
{
    int hosts = 0;
    for (int i = 0; i < groups->size && topology->host > 0; i++) {
        bool seen = false;
        for (int k = 0; k < i && !seen; k++)
            seen = groups->device[k] / topology->host == groups->device[i] / topology->host;
        hosts += !seen;
    }
    return hosts > 0 ? hosts : 1;
}

// Returns the measured times of groups of that size that span the same number of hosts, else those
// that were recorded without a number of hosts. NULL: not measured.
static const struct topology_times *times_of(const tsr_topology *topology, enum tsr_collective what,
                                             const struct topology_groups *groups)
{
    const struct topology_times *any = NULL;
    for (size_t i = 0; i < topology->times.n; i++) {
        const struct topology_times *times = &topology->times.at[i];
        if (times->what != what || times->size != groups->size)
            continue;
        if (times->hosts && times->hosts == hosts_spanned(topology, groups))
            return times;
        if (!times->hosts && !any)
            any = times;
    }
    return any;
}

bool tsr__topology_measured(const tsr_topology *topology, enum tsr_collective what,
                            const struct topology_groups *groups)
{
    return times_of(topology, what, groups) != NULL;
}

// Returns the measured seconds for a size: interpolates linearly, and extrapolates the last
// segment. Sizes below the first point take its time. Example: measured 10 us at 1 KiB and 26 us at
// 17 KiB: 9 KiB take 18 us, as 9 us plus 1 us per KiB.
static double measured_time(const struct topology_times *times, double bytes,
                            struct timed_algorithm *fastest)
{
    int k = 1;
    while (k + 1 < times->n && (double)times->bytes[k] < bytes)
        k++;
    double slope = (times->seconds[k] - times->seconds[k - 1]) /
                   (double)(times->bytes[k] - times->bytes[k - 1]);
    double past = bytes - (double)times->bytes[k - 1];
    *fastest = (struct timed_algorithm){.name = "measured",
                                        .latency = times->seconds[k - 1] -
                                                   slope * (double)times->bytes[k - 1],
                                        .per_byte = slope};
    return times->seconds[k - 1] + (past > 0 ? slope * past : 0);
}

// Finds an equivalent pair of devices in the first two hosts. They have the same indices in their
// hosts as the given pair, and are on one host if the given pair is.
static void equivalent_pair(const tsr_topology *topology, const int *device, int *pair)
{
    int host = topology->host;
    bool together = device[0] / host == device[1] / host;
    pair[0] = device[0] % host;
    pair[1] = device[1] % host + (together ? 0 : host);
}

// With a window (`topology->window`), only the links of the first devices are listed.
static bool has_links(const tsr_topology *topology, const struct topology_groups *groups)
{
    for (int i = 0; topology->window && i < groups->count * groups->size; i++)
        if (groups->device[i] >= topology->window)
            return false;
    return true;
}

bool tsr__topology_listed(const tsr_topology *topology, const struct topology_groups *groups,
                          struct listed_groups *out)
{
    out->groups = *groups;
    if (has_links(topology, groups))
        return true;
    if (groups->count != 1 || groups->size != 2)
        return false;
    equivalent_pair(topology, groups->device, out->pair);
    out->groups.device = out->pair;
    return true;
}

// Returns the predicted time; measured times take precedence.
int64_t tsr__topology_fastest(tsr_topology *topology, enum tsr_collective what,
                              const struct topology_groups *given, int64_t bytes,
                              struct timed_algorithm *fastest)
{
    struct listed_groups listed;
    const struct topology_groups *groups = &listed.groups;
    *fastest = (struct timed_algorithm){.name = "nothing"};
    if (!tsr__topology_listed(topology, given, &listed))
        return TOPOLOGY_NEVER;
    if (groups->size < 2 || bytes <= 0)
        return 0;
    const struct topology_times *times = times_of(topology, what, groups);
    const struct timed_row *row = NULL;
    double least = INFINITY;
    if (times)
        least = measured_time(times, (double)bytes, fastest);
    else
        row = timed_row(topology, what, groups, bytes);
    for (int i = 0; row && i < row->n; i++) {
        double time = row->at[i].latency + row->at[i].per_byte * (double)bytes;
        if (time < least)
            least = time, *fastest = row->at[i];
    }
    return least * 1e12 < (double)TOPOLOGY_NEVER ? (int64_t)ceil(least * 1e12) : TOPOLOGY_NEVER;
}

int64_t tsr__topology_cost(tsr_topology *topology, enum tsr_collective what,
                           const struct topology_groups *groups, int64_t bytes)
{
    struct timed_algorithm fastest;
    return tsr__topology_fastest(topology, what, groups, bytes, &fastest);
}

// ---- bytes by link: the schedule is run again, and bytes are summed up by link and not by step.
// Example: two devices that send 1 MiB to each other through a third one load four links with 1 MiB
// each.

struct carried {
    tsr_topology *topology;
    double *by_link;
    int path[TOPOLOGY_MAX_HOPS];
};

// Adds the bytes of a message to the links of its route.
static void add_carried(void *data, int from, int to, double bytes)
{
    struct carried *carried = data;
    int n = tsr__topology_path(carried->topology, from, to, carried->path, TOPOLOGY_MAX_HOPS);
    for (int i = 0; i < n; i++)
        carried->by_link[carried->path[i]] += bytes;
}

static void ignore_step(void *data, int times)
{
    (void)data;
    (void)times; // always 1 for listeners without `exchange`
}

// Adds the bytes that the collective sends over each link. Adds nothing if it has no predicted time
// or only one member. Of a measured collective the algorithm is known, and not its schedule.
void tsr__topology_load(tsr_topology *topology, enum tsr_collective what,
                        const struct topology_groups *groups, int64_t bytes, double *by_link)
{
    struct timed_algorithm fastest;
    struct carried carried = {.topology = topology, .by_link = by_link};
    const struct listener to = {&carried, add_carried, ignore_step, NULL};
    struct arena scratch = {.session = topology->session};
    struct groups_by_hosts parts;
    if (tsr__topology_fastest(topology, what, groups, bytes, &fastest) >= TOPOLOGY_NEVER ||
        groups->size < 2)
        return;
    struct comm_shape shape = tsr__topology_shape(topology, groups, &scratch, &parts);
    shape.bytes = (size_t)bytes;
    struct schedule run = {topology, groups, &parts, (double)bytes, &to};
    if (!scratch.failed)
        tsr__schedules(tsr__algorithm((enum comm_kind)what, &shape))->at[fastest.schedule](&run);
    topology->arena.failed = topology->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
}

// ---- public call

// Predicts the time of a collective. Checks the device numbers, which come from the caller.
tsr_status tsr_topology_cost(tsr_topology *topology, tsr_collective what, const int *group, int n,
                             int64_t bytes, tsr_topology_price *out)
{
    struct topology_groups groups = {1, n, group};
    struct timed_algorithm fastest;
    if (n > 0 && !group)
        return tsr__missing(topology->session, "group");
    TRY(tsr__given(topology->session, "out", out));
    for (int i = 0; i < n; i++)
        if (group[i] < 0 || group[i] >= topology->n)
            return tsr__fail(
                topology->session, TSR_INVALID, DIAG_topology_device, NULL, "count devices from 0",
                "device %d is not in this topology, which has %d devices", group[i], topology->n);
    out->picoseconds = tsr__topology_fastest(topology, what, &groups, bytes, &fastest);
    out->bound = tsr__topology_bound(topology, what, &groups, bytes);
    if (tsr__topology_measured(topology, what, &groups) && out->bound > out->picoseconds)
        // the bound assumes links that were measured one pair at a time
        out->bound = out->picoseconds;
    out->algorithm = fastest.name;
    return arena_status(&topology->arena);
}
