// SPDX-License-Identifier: Apache-2.0
// memory_classes.c - groups devices of the same memory size into classes. The program has one
// memory limit for each class. A value is charged with its bytes on the fullest device of the
// class. In the program of a pipeline, each stage has classes of its own, because stages store
// different values.
//
//     Example: four devices with 8, 16, 16 and 8 GiB have class_of = {0, 1, 1, 0} and bytes =
//     {8 GiB, 16 GiB}. In two stages of two devices they have class_of = {0, 1, 2, 3}.
#include "plan/costs/planner.h"

// Returns the class for that memory size in a stage, and adds it if it is new. `stages` are those
// of the classes.
static int64_t class_with(struct planner *planner, int64_t memory, int64_t stage, int64_t *stages)
{
    size_t c = 0;
    while (c < planner->memory.n_classes &&
           (planner->memory.bytes[c] != memory || stages[c] != stage))
        c++;
    if (c == planner->memory.n_classes) {
        stages[c] = stage;
        planner->memory.bytes[planner->memory.n_classes++] = memory;
    }
    return (int64_t)c;
}

// Returns the memory for tensors: that of the device minus that of the engine.
static int64_t free_memory(const struct planner *planner, int64_t device)
{
    int64_t bytes = planner->machine.topology->device[tsr__planner_device(planner, device)].memory;
    // Very small devices, which occur in tests only, keep all their memory.
    return bytes > 64 * PLAN_ENGINE_BYTES ? bytes - PLAN_ENGINE_BYTES : bytes;
}

// Returns the memory for tensors of a device. `memory` is the caller's limit for every device
// (PLAN_NO_LIMIT: none). If `memory` is 0, the topology gives the memory; a device whose memory is
// unknown has no limit.
static int64_t memory_of(const struct planner *planner, int64_t memory, int64_t device)
{
    if (memory <= 0)
        memory = free_memory(planner, device);
    return memory <= 0 ? PLAN_NO_LIMIT : int64_min(memory, PLAN_NO_LIMIT);
}

// Numbers the division, so that tables of equal divisions can be shared. False: out of memory.
static bool number_division(struct planner *planner)
{
    struct planner_memory *memory = &planner->memory;
    struct str key = str_bytes(memory->class_of, (size_t)planner->machine.n * sizeof(int64_t));
    void **at = tsr__map_at_copy(&planner->cache.divisions, key);
    if (!at)
        return false;
    if (!*at) {
        uint32_t *number = *at = ARENA_NEW(&planner->arena, uint32_t);
        if (!number)
            return false;
        *number = planner->cache.n_divisions++;
    }
    memory->division = *(uint32_t *)*at;
    return true;
}

// Groups the devices into classes of equal memory. Without a memory limit there are no classes, and
// the program has no memory limits.
bool tsr__planner_classes(struct planner *planner, int64_t memory)
{
    bool limited = false;
    size_t n = (size_t)planner->machine.n;
    int64_t *stages = ARENA_ARRAY(planner->work, int64_t, n + 1);
    planner->memory.class_of = ARENA_ARRAY(planner->work, int64_t, n + 1);
    planner->memory.bytes = ARENA_ARRAY(planner->work, int64_t, n + 1);
    planner->memory.n_classes = 0;
    if (planner->work->failed)
        return false;
    for (int64_t device = 0; device < planner->machine.n; device++) {
        int64_t bytes = memory_of(planner, memory, device);
        int64_t stage = planner->scope.stage_of ? planner->scope.stage_of[device] : 0;
        limited = limited || bytes < PLAN_NO_LIMIT;
        planner->memory.class_of[device] =
            stage < 0 ? -1 : class_with(planner, bytes, stage, stages);
    }
    if (!limited)
        planner->memory.n_classes = 0;
    return number_division(planner);
}

// Adds one memory limit per class to the program. With several classes, each limit is named after
// the first device of its class.
bool tsr__planner_limits(struct planner *planner)
{
    struct planner_memory *memory = &planner->memory;
    memory->limits = ARENA_ARRAY(planner->work, uint32_t, memory->n_classes + 1);
    if (!memory->limits)
        return false;
    for (size_t c = 0; c < memory->n_classes; c++) {
        struct str name = STR("memory of a device");
        int64_t first = 0;
        while (memory->class_of[first] != (int64_t)c)
            first++;
        if (memory->n_classes > 1)
            name = tsr__arena_printf(planner->work, "memory of device %lld", (long long)first);
        memory->limits[c] =
            tsr__program_limit(&planner->program, name, memory->bytes[c], planner->n_times);
    }
    return !planner->arena.failed;
}

static int64_t as_kept(int64_t bytes, const struct plan_value *value)
{
    if (value->shares_past)
        return 0;
    if (bytes >= PLAN_NEVER / (1 + value->wider))
        return PLAN_NEVER;
    return bytes * (1 + value->wider);
}

int64_t tsr__planner_kept(struct planner *planner, struct arena *arena, uint32_t layout,
                          const struct plan_value *value, int64_t device)
{
    return as_kept(tsr__planner_held(planner, arena, layout, value, device), value);
}

// Returns the bytes on the fullest device of the class. Checks every device, because shards of
// unlike devices differ.
static int64_t most_held(struct planner *planner, size_t c, uint32_t layout,
                         const struct plan_value *value)
{
    int64_t most = 0;
    struct arena arena = {.session = planner->session};
    for (int64_t device = 0; device < planner->machine.n; device++)
        if (planner->memory.class_of[device] == (int64_t)c)
            most = int64_max(most, tsr__planner_kept(planner, &arena, layout, value, device));
    planner->arena.failed = planner->arena.failed || arena.failed;
    tsr__arena_free(&arena);
    return most;
}

// With one class, the fullest device is assumed to have the largest shard. With several classes,
// devices are checked one by one, and results are cached.
int64_t tsr__planner_class_bytes(struct planner *planner, size_t c, uint32_t layout,
                                 const struct plan_value *value)
{
    int64_t key[5 + TILE_MAX_RANK] = {(int64_t)c, planner->memory.division, layout,
                                      value->bits * (1 + value->wider), value->rank};
    if (layout == PLAN_NO_LAYOUT || value->shares_past)
        return 0;
    if (planner->memory.n_classes == 1)
        return as_kept(tsr__planner_bytes(planner, layout, value), value);
    memcpy(key + 5, value->shape, (size_t)value->rank * sizeof *key);
    struct str text = str_bytes(key, (5 + (size_t)value->rank) * sizeof *key);
    void **slot = tsr__map_at_copy(&planner->cache.held, text);
    if (slot && *slot)
        return *(int64_t *)*slot;
    int64_t *found = ARENA_NEW(&planner->arena, int64_t);
    if (!slot || !found)
        return PLAN_NEVER;
    *found = most_held(planner, c, layout, value);
    *slot = found;
    return *found;
}
