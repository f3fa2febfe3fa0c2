// SPDX-License-Identifier: Apache-2.0
// planner.c - creates and frees a planner: its arena, its devices, and the configuration that it
// writes.
#include "plan/costs/planner.h"

#include <math.h>

// ---- start and end -----------------------------------------------------------------------------

void tsr__planner_end(struct planner *planner)
{
    // The chosen nodes refer to rules and names of the device set's planner, so it lives until now.
    if (planner->block)
        tsr__planner_end(planner->block);
    for (size_t i = 0; planner->trial && i < planner->trial->models.n; i++)
        tsr_model_free(planner->trial->models.at[i]);
    planner->trial = NULL;
    tsr__arena_free(&planner->arena);
}

void tsr__planner_start(struct planner *planner, tsr_model *model)
{
    planner->session = tsr_model_session(model);
    planner->model = model;
    planner->work = &planner->arena;
    tsr__arena_init(&planner->arena, planner->session);
    tsr__map_init(&planner->cache.layouts, &planner->arena, 256);
    tsr__map_init(&planner->cache.times, &planner->arena, 1024);
    tsr__map_init(&planner->cache.sums, &planner->arena, 0);
    tsr__map_init(&planner->cache.strategies, &planner->arena, 256);
    tsr__map_init(&planner->cache.tables, &planner->arena, 1024);
    tsr__map_init(&planner->cache.held, &planner->arena, 0);
    tsr__map_init(&planner->cache.divisions, &planner->arena, 0);
}

// ---- devices -----------------------------------------------------------------------------------

static void keep_less(double *at, double other, bool first)
{
    if (first || other < *at)
        *at = other;
}

// Returns the speed for a type, or flops if there is none. For a kind of work without a speed it
// returns 0, because any other number would mean that the kind was measured.
static double rate_of(const tsr_topology_device *device, int rate)
{
    if (rate >= TSR_RATE_CONVOLUTION)
        return device->rates[rate];
    return device->rates[rate] > 0 ? device->rates[rate] : device->flops;
}

// Sets each figure of `at` to the worse of `at` and `device`. If `first` is set, `at` has no
// figures yet and gets those of `device`. The result is for nodes that run on all devices: such a
// node ends when the slowest device is done.
static void slow_down(tsr_topology_device *at, const tsr_topology_device *device, bool first)
{
    if (first)
        at->name = device->name;
    keep_less(&at->flops, device->flops, first);
    keep_less(&at->bandwidth, device->bandwidth, first);
    for (int i = 0; i < TSR_RATE_COUNT; i++)
        keep_less(&at->rates[i], rate_of(device, i), first);
    for (int i = 0; i < TSR_MOVE_COUNT; i++) {
        keep_less(&at->moves[i], tsr__far_speed(device, i), first);
        keep_less(&at->cached[i], tsr__near_speed(device, i), first);
    }
    at->queued = device->queued && (first || at->queued);
    if (device->overhead > at->overhead)
        at->overhead = device->overhead;
    at->unhidden = fmax(at->unhidden, tsr__unhidden(device));
}

tsr_topology_device tsr__planner_slowest(const struct planner *planner, const int64_t *devices,
                                         size_t n)
{
    tsr_topology_device slowest = {0};
    for (size_t i = 0; i < n; i++)
        slow_down(&slowest,
                  &planner->machine.topology->device[tsr__planner_device(planner, devices[i])],
                  i == 0);
    return slowest;
}

static bool are_unlike(const struct planner *planner)
{
    const tsr_topology_device *first =
        &planner->machine.topology->device[tsr__planner_device(planner, 0)];
    for (int64_t i = 1; i < planner->machine.n; i++) {
        const tsr_topology_device *device =
            &planner->machine.topology->device[tsr__planner_device(planner, i)];
        if (!tsr__speeds_alike(device, first))
            return true;
    }
    return false;
}

// Fills `all`, `slowest` and `unlike`.
bool tsr__planner_devices(struct planner *planner)
{
    struct planner_machine *machine = &planner->machine;
    machine->all = ARENA_ARRAY(&planner->arena, int64_t, (size_t)machine->n);
    if (!machine->all)
        return false;
    for (int64_t device = 0; device < machine->n; device++)
        machine->all[device] = device;
    machine->slowest = tsr__planner_slowest(planner, machine->all, (size_t)machine->n);
    machine->unlike = are_unlike(planner);
    return true;
}

bool tsr__device_widens(const tsr_topology_device *device)
{
    return device->cached[TSR_MOVE_STREAM] > 0 && !device->queued;
}

// ---- the configuration -------------------------------------------------------------------------

// Returns the names by which ranks choose their providers. NULL: all are "CPU", which is the
// default, or a name contains a comma or a line break, or memory has run out.
static const char **device_names(struct planner *planner)
{
    const char **names = ARENA_ARRAY(&planner->arena, const char *, (size_t)planner->machine.n);
    int64_t n = int64_min(planner->machine.n, tsr_topology_devices(planner->machine.topology));
    bool special = false;
    if (!names)
        return NULL;
    for (int64_t device = 0; device < n; device++) {
        const char *name = tsr_topology_device_at(planner->machine.topology, (int)device)->name;
        names[device] = name && name[0] ? name : "CPU";
        special = special || strcmp(names[device], "CPU") != 0;
        if (strpbrk(names[device], ",\n"))
            return NULL;
    }
    return special ? names : NULL;
}

// Returns an unused configuration name. Example: "plan4" for 4 devices, or else "plan4_2",
// "plan4_3" ...
static struct str free_name(struct planner *planner)
{
    long long n = (long long)planner->machine.n;
    struct str name = tsr__arena_printf(&planner->arena, "plan%lld", n);
    int i = 2;
    while (name.p && tsr_model_find_config(planner->model, name.p))
        name = tsr__arena_printf(&planner->arena, "plan%lld_%d", n, i++);
    return name;
}

// Creates the configuration. name NULL: chooses an unused name.
static tsr_status make_config(struct planner *planner, const char *name)
{
    const char **names = device_names(planner);
    size_t n_names = names ? (size_t)planner->machine.n : 0;
    struct str text = name ? str_of(name) : free_name(planner);
    if (!text.p)
        return TSR_NOMEM;
    return tsr_model_add_config(planner->model, text.p, planner->machine.n, names, n_names,
                                &planner->config);
}

tsr_status tsr__planner_config(struct planner *planner, const char *name)
{
    TRY(planner->config ? TSR_OK : make_config(planner, name));
    return tsr__model_allow_configs(planner->model);
}

// Returns an upper bound of the speed relative to the slowest device: no node is faster by more. A
// small shard may have the speed of caches (`cached`). Queueing hides at most one of two equal
// times.
static double times_as_fast(const struct planner *planner, int64_t device)
{
    const tsr_topology_device *fast =
        &planner->machine.topology->device[tsr__planner_device(planner, device)];
    const tsr_topology_device *slow = &planner->machine.slowest;
    double times = fmax(fast->flops / slow->flops, fast->bandwidth / slow->bandwidth);
    for (int rate = 0; rate < TSR_RATE_COUNT; rate++)
        if (slow->rates[rate] > 0)
            times = fmax(times, rate_of(fast, rate) / slow->rates[rate]);
    for (int move = 0; move < TSR_MOVE_COUNT; move++) {
        double speed = fmax(tsr__far_speed(fast, move), tsr__near_speed(fast, move));
        times = fmax(times, speed / slow->moves[move]);
    }
    if (slow->overhead > 0)
        times = fmax(times, slow->overhead / fast->overhead);
    times *= (1 + slow->unhidden) / (1 + tsr__unhidden(fast));
    return fast->queued && !slow->queued ? 2 * times : times;
}

double tsr__planner_speeds(const struct planner *planner)
{
    double speeds = 0;
    for (int64_t device = 0; device < planner->machine.n; device++)
        speeds += times_as_fast(planner, device);
    return speeds;
}

bool tsr__planner_alike(const struct planner *planner)
{
    const tsr_topology_device *devices = planner->machine.topology->device;
    int64_t memory = devices[tsr__planner_device(planner, 0)].memory;
    for (int64_t device = 1; device < planner->machine.n; device++)
        if (devices[tsr__planner_device(planner, device)].memory != memory)
            return false;
    return !planner->machine.unlike;
}
