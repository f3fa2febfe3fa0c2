// SPDX-License-Identifier: Apache-2.0
// grids.c - the placements that are tried: the devices are seen as a line or as a grid; each axis cuts one factor of the
// rule or none.
#include "plan/candidates.h"

// A grid of devices: coordinate on axis i is device / stride % size.
struct grid {
    int n;
    int64_t size[PLAN_MAX_AXES], stride[PLAN_MAX_AXES];
    const int64_t *devices; // NULL: all
    int64_t n_devices;
};

static bool place_on(struct making *making, const struct grid *grid, const int *factor)
{
    const struct rule *rule = making->rule;
    size_t n = (size_t)rule->n_factors;
    struct placement *placement = &making->place;
    *placement = (struct placement){.rule = rule,
                                    .devices = making->planner->machine.all,
                                    .n_devices = (size_t)making->planner->machine.n};
    if (grid->devices) {
        placement->devices = (int64_t *)grid->devices;
        placement->n_devices = (size_t)grid->n_devices;
    }
    placement->cuts = ARENA_ARRAY(making->arena, int64_t, n + 1);
    placement->coords = ARENA_ARRAY(making->arena, int64_t, placement->n_devices * n + 1);
    if (!placement->cuts || !placement->coords)
        return false;
    for (size_t f = 0; f < n; f++)
        placement->cuts[f] = 1;
    for (int i = 0; i < grid->n; i++) {
        if (factor[i] < 0)
            continue;
        for (size_t device = 0; device < placement->n_devices; device++)
            placement->coords[device * n + (size_t)factor[i]] =
                placement->coords[device * n + (size_t)factor[i]] * grid->size[i] +
                (int64_t)device / grid->stride[i] % grid->size[i];
        placement->cuts[factor[i]] *= grid->size[i];
    }
    return true;
}

static bool may_cut(const struct rule_factor *factor, int64_t size, int64_t cuts)
{
    return (factor->kind == FACTOR_PAR || factor->kind == FACTOR_RED) && size > 1 &&
           tsr__unit_fits(factor, size, cuts);
}

// Takes one grid with one factor (or -1) for each axis.
static void try_grid(struct making *making, struct grid grid, const int *factor)
{
    struct arena scratch;
    int64_t stride = 1;
    for (int i = grid.n; i-- > 0; stride *= grid.size[i])
        grid.stride[i] = stride;
    tsr__arena_init(&scratch, making->planner->session);
    making->arena = &scratch;
    if (place_on(making, &grid, factor))
        (void)tsr__making_take(making);
    making->planner->arena.failed = making->planner->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
}

// 12 devices, 4 parts: the factor is cut in 4 along one axis, and another one in 3 along the other.
static void try_pairs(struct making *making, int factor, int64_t parts, const int64_t *sizes)
{
    struct grid grid = {.n = 2, .size = {parts, making->planner->machine.n / parts}};
    making->spread = parts == sizes[factor];
    try_grid(making, grid, (int[]){factor, -1});
    making->spread = false;
    for (int h = 0; h < making->rule->n_factors; h++)
        if (h != factor && may_cut(&making->rule->factors[h], sizes[h], grid.size[1]))
            try_grid(making, grid, (int[]){factor, h});
}

// On the grid that the devices form: a factor for each axis, or none. One that has several axes is cut by all of them.
static void try_axes(struct making *making, const struct grid *grid, const int64_t *sizes,
                     int *factor, int axis)
{
    if (axis == grid->n) {
        int idle = 0;
        for (int i = 0; i < grid->n; i++)
            idle += factor[i] < 0;
        if (idle < 2) // of three; of two, whole nodes are candidates already
            try_grid(making, *grid, factor);
        return;
    }
    if (axis >= (int)TSR_COUNT(grid->size))
        return;
    for (int f = -1; f < making->rule->n_factors; f++) {
        int64_t cuts = grid->size[axis];
        for (int i = 0; f >= 0 && i < axis; i++)
            cuts *= factor[i] == f ? grid->size[i] : 1;
        if (f >= 0 && !may_cut(&making->rule->factors[f], sizes[f], cuts))
            continue;
        factor[axis] = f;
        try_axes(making, grid, sizes, factor, axis + 1);
    }
}

static void try_wired(struct making *making, const int64_t *sizes)
{
    const tsr_topology *topology = making->planner->machine.topology;
    struct grid grid = {0};
    int64_t left = making->planner->machine.n;
    int factor[PLAN_MAX_AXES];
    for (int i = 0; i < topology->n_grid && grid.n < PLAN_MAX_AXES && left > 1; i++) {
        bool last = grid.n == PLAN_MAX_AXES - 1 || i == topology->n_grid - 1;
        int64_t size = last ? left : topology->grid[i];
        if (size < 2 || left % size)
            continue;
        grid.size[grid.n++] = size;
        left /= size;
    }
    if (grid.n > 1 && left == 1)
        try_axes(making, &grid, sizes, factor, 0);
}

// Devices that have more memory than others may do a node alone: the smaller ones are spared its weights.
static void try_larger(struct making *making, const int64_t *sizes)
{
    struct planner *planner = making->planner;
    int64_t *larger = ARENA_ARRAY(&planner->arena, int64_t, (size_t)planner->machine.n + 1);
    int64_t least = INT64_MAX, n = 0;
    for (int64_t device = 0; larger && device < planner->machine.n; device++) {
        int64_t memory =
            planner->machine.topology->device[tsr__planner_device(planner, device)].memory;
        least = memory < least ? memory : least;
    }
    for (int64_t device = 0; larger && device < planner->machine.n; device++)
        if (planner->machine.topology->device[tsr__planner_device(planner, device)].memory > least)
            larger[n++] = device;
    struct grid grid = {.n = 1, .size = {n}, .devices = larger, .n_devices = n};
    for (int factor = -1; n > 0 && least > 0 && factor < making->rule->n_factors; factor++)
        if (factor < 0 || (n > 1 && may_cut(&making->rule->factors[factor], sizes[factor], n)))
            try_grid(making, grid, &factor);
}

// Every factor alone over all devices; those that are too small for that as often as they can be, with the other
// devices idle or at another factor.
void tsr__making_grids(struct making *making)
{
    int64_t sizes[RULE_MAX_FACTORS];
    tsr__planner_sizes(making->planner->shapes.told, making->node, making->rule, sizes);
    struct grid line = {.n = 1, .size = {making->planner->machine.n}};
    for (int f = 0; f < making->rule->n_factors; f++) {
        const struct rule_factor *factor = &making->rule->factors[f];
        making->stat = factor->kind == FACTOR_STAT;
        if (making->stat && sizes[f] > 1 &&
            tsr__unit_fits(factor, sizes[f], making->planner->machine.n))
            try_grid(making, line, &f);
        making->stat = false;
        if (may_cut(factor, sizes[f], making->planner->machine.n)) {
            try_grid(making, line, &f);
            continue;
        }
        for (int64_t parts = making->planner->machine.n - 1; parts > 1; parts--)
            if (making->planner->machine.n % parts == 0 && may_cut(factor, sizes[f], parts)) {
                try_pairs(making, f, parts, sizes);
                break;
            }
    }
    if (!making->planner->machine.numbers && making->planner->machine.topology->n_grid > 1)
        try_wired(making, sizes);
    try_larger(making, sizes);
}
