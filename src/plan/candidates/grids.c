// SPDX-License-Identifier: Apache-2.0
// grids.c - the placements that are tried: the devices are seen as a line or as a grid; each axis
// cuts one factor of the rule or none.
//
//     12 devices, Y = X W with m = 4, k = 64, n = 48.   k and n can be cut in 12: "k/12", "n/12" on the line of 12.
//     m cannot: it is cut in 4 (the most that divides 12 and fits), with the other 3 of the grid 4 x 3 idle ("m/4": each part lies
//     on three devices) or at another factor ("m/4 k/3", "m/4 n/3"). Device 7 is in row 2 and column 1: m part 2, n part 1.
#include "plan/candidates/candidates.h"

#include <math.h>

#define FASTER_SETS 3 // of faster devices

// A grid of devices: coordinate on axis i is device / stride % size.
struct grid {
    int n;
    int64_t size[PLAN_MAX_AXES], stride[PLAN_MAX_AXES];
    const int64_t *devices; // NULL: all
    int64_t n_devices;
    tile_shares shares; // of a line: the parts are not equal
};

// The placement in which each axis of the grid cuts its factor; one that has several axes is cut by
// all of them.
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
    if (grid->shares) {
        placement->shares = ARENA_ARRAY(making->arena, tile_shares, n + 1);
        if (!placement->shares)
            return false;
        placement->shares[factor[0]] = grid->shares;
    }
    for (size_t f = 0; f < n; f++)
        placement->cuts[f] = 1;
    for (int i = 0; i < grid->n; i++) {
        if (factor[i] < 0)
            continue;
        for (size_t device = 0; device < placement->n_devices; device++) {
            int64_t *coord = &placement->coords[device * n + (size_t)factor[i]];
            int64_t on_axis = (int64_t)device / grid->stride[i] % grid->size[i];
            *coord = *coord * grid->size[i] + on_axis;
        }
        placement->cuts[factor[i]] *= grid->size[i];
    }
    return true;
}

// Parallel and reduced factors of at least one unit for each part; statistics are tried apart.
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
    if (tsr__planner_late(making->planner))
        return;
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

// In how many parts a factor is cut by this axis and those before that it has.
static int64_t cuts_of(const struct grid *grid, const int *factor, int axis, int f)
{
    int64_t cuts = grid->size[axis];
    for (int i = 0; i < axis; i++)
        if (factor[i] == f)
            cuts *= grid->size[i];
    return cuts;
}

// On the grid that the devices form: a factor for each axis, or none. One that has several axes is
// cut by all of them.
static void try_axes(struct making *making, const struct grid *grid, const int64_t *sizes,
                     int *factor, int axis)
{
    // All axes have a factor or none. Too many idle axes would repeat what smaller grids give.
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
        if (f >= 0 && !may_cut(&making->rule->factors[f], sizes[f], cuts_of(grid, factor, axis, f)))
            continue;
        factor[axis] = f;
        try_axes(making, grid, sizes, factor, axis + 1);
    }
}

// The grid that the topology is wired as; what more axes there are than are tried goes into the
// last.
static void try_wired(struct making *making, const int64_t *sizes)
{
    const tsr_topology *topology = making->planner->machine.topology;
    struct grid grid = {0};
    int64_t left = making->planner->machine.n;
    int factor[PLAN_MAX_AXES];
    for (int i = 0; i < topology->n_grid; i++) {
        if (grid.n == PLAN_MAX_AXES || left <= 1)
            break;
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

// ---- some of the devices -----------------------------------------------------------------------

static const tsr_topology_device *device_of(const struct planner *planner, int64_t device)
{
    return &planner->machine.topology->device[tsr__planner_device(planner, device)];
}

// Whole on the devices of the list, and every factor cut among them.
static void try_set(struct making *making, const int64_t *devices, int64_t n, const int64_t *sizes)
{
    struct grid grid = {.n = 1, .size = {n}, .devices = devices, .n_devices = n};
    if (n == 0 || n == making->planner->machine.n)
        return;
    for (int factor = -1; factor < making->rule->n_factors; factor++)
        if (factor < 0 || (n > 1 && may_cut(&making->rule->factors[factor], sizes[factor], n)))
            try_grid(making, grid, &factor);
}

// Devices that have more memory than others may do a node alone: the smaller ones are spared its
// weights.
static void try_larger(struct making *making, const int64_t *sizes, int64_t *devices)
{
    const struct planner *planner = making->planner;
    int64_t least = INT64_MAX, n = 0;
    for (int64_t device = 0; device < planner->machine.n; device++)
        least = int64_min(least, device_of(planner, device)->memory);
    for (int64_t device = 0; device < planner->machine.n; device++)
        if (device_of(planner, device)->memory > least)
            devices[n++] = device;
    if (least > 0)
        try_set(making, devices, n, sizes);
}

// Devices that are at least as fast as one of them may do a node alone, and so may the first, which
// gives the outputs: the others would only make them wait. Of speeds 1 4 4 2: {1 2}, {1 2 3} and
// {0}.
static void try_faster(struct making *making, const int64_t *sizes, int64_t *devices)
{
    const struct planner *planner = making->planner;
    double least = INFINITY, bound = INFINITY;
    for (int64_t device = 0; device < planner->machine.n; device++)
        least = fmin(least, tsr__planner_speed(planner, device));
    for (int set = 0; set < FASTER_SETS; set++) {
        double next = 0;
        int64_t n = 0;
        for (int64_t device = 0; device < planner->machine.n; device++) {
            double speed = tsr__planner_speed(planner, device);
            if (speed < bound && speed > next)
                next = speed;
        }
        if (next <= least)
            break;
        for (int64_t device = 0; device < planner->machine.n; device++)
            if (tsr__planner_speed(planner, device) >= next)
                devices[n++] = device;
        try_set(making, devices, n, sizes);
        bound = next;
    }
    devices[0] = 0;
    if (bound < INFINITY)
        try_set(making, devices, 1, sizes);
}

static void try_sets(struct making *making, const int64_t *sizes)
{
    struct planner *planner = making->planner;
    int64_t *devices = ARENA_ARRAY(&planner->arena, int64_t, (size_t)planner->machine.n + 1);
    if (!devices)
        return;
    try_larger(making, sizes, devices);
    try_faster(making, sizes, devices);
}

// A factor that is too small for all devices is cut as often as it can be, with the other devices
// idle or at another factor.
static void try_fewer(struct making *making, int factor, const int64_t *sizes)
{
    int64_t n = making->planner->machine.n;
    for (int64_t parts = n - 1; parts > 1; parts--)
        if (n % parts == 0 && may_cut(&making->rule->factors[factor], sizes[factor], parts)) {
            try_pairs(making, factor, parts, sizes);
            return;
        }
}

// Every factor in these parts, if it has as many elements as they have units. shares 0: equal parts.
static void try_share(struct making *making, const int64_t *sizes, tile_shares shares)
{
    int64_t n = making->planner->machine.n, units = tsr__units_of(n, shares);
    struct grid line = {.n = 1, .size = {n}, .shares = shares};
    for (int f = 0; f < making->rule->n_factors; f++) {
        const struct rule_factor *factor = &making->rule->factors[f];
        bool may = factor->kind == FACTOR_PAR || factor->kind == FACTOR_RED;
        bool enough = sizes[f] >= units && (!factor->least || factor->least >= units);
        if (!shares)
            enough = may_cut(factor, sizes[f], n);
        if (may && enough)
            try_grid(making, line, &f);
    }
}

// The ways that a plan of these devices may mix.
static void try_shares(struct making *making, const int64_t *sizes)
{
    const struct planner_machine *machine = &making->planner->machine;
    for (int i = 0; i < tsr__mixed_shares(machine); i++)
        try_share(making, sizes, machine->shares[i]);
}

// Every factor alone over all devices, or over fewer; then the grid of the topology, sets of
// larger and of faster devices, and unequal parts.
void tsr__making_grids(struct making *making)
{
    int64_t sizes[RULE_MAX_FACTORS], n = making->planner->machine.n;
    tsr__planner_sizes(making->planner->shapes.told, making->node, making->rule, sizes);
    struct grid line = {.n = 1, .size = {n}};
    if (making->planner->machine.one_way) {
        try_share(making, sizes, making->planner->machine.only);
        return;
    }
    for (int f = 0; f < making->rule->n_factors; f++) {
        const struct rule_factor *factor = &making->rule->factors[f];
        making->stat = factor->kind == FACTOR_STAT;
        if (making->stat && sizes[f] > 1 && tsr__unit_fits(factor, sizes[f], n))
            try_grid(making, line, &f);
        making->stat = false;
        if (may_cut(factor, sizes[f], n))
            try_grid(making, line, &f);
        else
            try_fewer(making, f, sizes);
    }
    if (!making->planner->machine.numbers && making->planner->machine.topology->n_grid > 1)
        try_wired(making, sizes);
    try_sets(making, sizes);
    try_shares(making, sizes);
}
