// SPDX-License-Identifier: Apache-2.0
// planner.c - a planner before it knows anything: its arena, its devices, and the configuration that it writes.
#include "plan/internal.h"

// ---- start and end -----------------------------------------------------------------------------

void tsr__planner_end(struct planner *planner)
{
    if (planner->block)
        tsr__planner_end(planner->block);
    tsr_model_free(planner->trial.model);
    planner->trial.model = NULL;
    tsr__arena_free(&planner->arena);
}

void tsr__planner_start(struct planner *planner, tsr_model *model)
{
    planner->session = tsr_model_session(model);
    planner->model = model;
    planner->work = &planner->arena;
    tsr__arena_init(&planner->arena, planner->session);
    tsr__map_init(&planner->cache.layouts, &planner->arena, 256);
    tsr__map_init(&planner->cache.prices, &planner->arena, 1024);
    tsr__map_init(&planner->cache.strategies, &planner->arena, 256);
    tsr__map_init(&planner->cache.tables, &planner->arena, 1024);
    tsr__map_init(&planner->cache.held, &planner->arena, 0);
}

// ---- devices -----------------------------------------------------------------------------------

static void keep_less(double *at, double other, bool first)
{
    *at = first || other < *at ? other : *at;
}

// A node that all devices share ends with the slowest: in each number the worst of both.
static void slow_down(tsr_topology_device *at, const tsr_topology_device *device, bool first)
{
    keep_less(&at->flops, device->flops, first);
    keep_less(&at->bandwidth, device->bandwidth, first);
    for (int i = 0; i < TSR_RATE_COUNT; i++)
        keep_less(&at->rates[i], device->rates[i] > 0 ? device->rates[i] : device->flops, first);
    at->overhead = device->overhead > at->overhead ? device->overhead : at->overhead;
}

bool tsr__planner_devices(struct planner *planner)
{
    planner->machine.all = ARENA_ARRAY(&planner->arena, int64_t, (size_t)planner->machine.n);
    for (int64_t device = 0; planner->machine.all && device < planner->machine.n; device++) {
        planner->machine.all[device] = device;
        slow_down(&planner->machine.slowest,
                  &planner->machine.topology->device[tsr__planner_device(planner, device)],
                  device == 0);
    }
    return planner->machine.all != NULL;
}

// ---- the configuration -------------------------------------------------------------------------

// Names of the devices, by which ranks choose their providers; NULL: they are what a rank takes anyway, or cannot be said.
static const char **device_names(struct planner *planner)
{
    const char **names = ARENA_ARRAY(&planner->arena, const char *, (size_t)planner->machine.n);
    bool special = false;
    for (int64_t device = 0; names && device < planner->machine.n &&
                             device < tsr_topology_devices(planner->machine.topology);
         device++) {
        const char *name = tsr_topology_device_at(planner->machine.topology, (int)device)->name;
        names[device] = name && name[0] ? name : "CPU";
        special = special || strcmp(names[device], "CPU") != 0;
        if (strpbrk(names[device], ",\n"))
            return NULL;
    }
    return special ? names : NULL;
}

tsr_status tsr__planner_config(struct planner *planner, const char *name)
{
    const char **names = planner->config ? NULL : device_names(planner);
    struct str text =
        name ? str_of(name)
             : tsr__arena_printf(&planner->arena, "plan%lld", (long long)planner->machine.n);
    for (int i = 2; text.p && !name && tsr_model_find_config(planner->model, text.p); i++)
        text = tsr__arena_printf(&planner->arena, "plan%lld_%d", (long long)planner->machine.n, i);
    if (!text.p)
        return TSR_NOMEM;
    tsr_status st =
        planner->config
            ? TSR_OK
            : tsr_model_add_config(planner->model, text.p, planner->machine.n, names,
                                   names ? (size_t)planner->machine.n : 0, &planner->config);
    if (st == TSR_OK && tsr_model_ir_version(planner->model) < 11)
        st = tsr_model_set_ir_version(planner->model, 11);
    return st;
}
