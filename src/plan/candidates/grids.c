// SPDX-License-Identifier: Apache-2.0
// grids.c - tries placements on a line or a grid of the devices. Each axis of the grid shards one
// factor of the rule or none.
//
//     Example: 12 devices, Y = X W with m = 4, k = 64, n = 48. k and n can be sharded in 12:
//     "k/12", "n/12" on the line. m can be sharded in 4 only, on the first axis of the grid 4 x 3.
//     The second axis then replicates the node ("m/4") or shards another factor ("m/4 k/3", "m/4
//     n/3"). With "m/4 n/3", device 7 is in row 2 and column 1: it has part 2 of m and part 1 of n.
#include "plan/candidates/candidates.h"

#include <math.h>

// number of nodes up to which logical grids have all assignments, without bodies: larger programs
// take too long
#define FREE_NODES  32
#define FASTER_SETS 3 // largest number of sets of faster devices that are tried

// A grid of devices. The coordinate of a device on axis i is device / stride % size.
struct grid {
    int n;
    int64_t size[PLAN_MAX_AXES], stride[PLAN_MAX_AXES];
    const int64_t *devices; // devices of the grid; NULL: all
    int64_t n_devices;
    tile_shares shares; // shares of the devices, if they are unequal
};

// Sets builder->place: factor[i] is the factor that axis i shards, or -1. A factor with several
// axes is sharded by all of them.
static bool place_on(struct candidate_builder *builder, const struct grid *grid, const int *factor)
{
    const struct rule *rule = builder->rule;
    size_t n = (size_t)rule->n_factors;
    struct placement *placement = &builder->place;
    *placement = (struct placement){.rule = rule,
                                    .devices = builder->planner->machine.all,
                                    .n_devices = (size_t)builder->planner->machine.n};
    if (grid->devices) {
        placement->devices = (int64_t *)grid->devices;
        placement->n_devices = (size_t)grid->n_devices;
    }
    placement->cuts = ARENA_ARRAY(builder->arena, int64_t, n + 1);
    placement->coords = ARENA_ARRAY(builder->arena, int64_t, placement->n_devices * n + 1);
    if (!placement->cuts || !placement->coords)
        return false;
    if (grid->shares) {
        placement->shares = ARENA_ARRAY(builder->arena, tile_shares, n + 1);
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

// True for a parallel or reduced factor that can be sharded in `cuts`. Factors of statistics
// (FACTOR_STAT) are tried separately.
static bool may_cut(const struct rule_factor *factor, int64_t size, int64_t cuts)
{
    return (factor->kind == FACTOR_PAR || factor->kind == FACTOR_RED) && size > 1 &&
           tsr__unit_fits(factor, size, cuts);
}

// ---- experts' plans ----------------------------------------------------------------------------

static bool reads_weight(const struct candidate_builder *builder)
{
    for (size_t i = 0; i < builder->n_in; i++) {
        const tsr_value *value = tsr_node_input(builder->node, i);
        if (value && builder->planner->values[tsr__value_id(value)].constant &&
            tsr__value_bytes(builder->planner, value) >= PLAN_SMALL_CONSTANT)
            return true;
    }
    return false;
}

int tsr__rule_experts(const struct rule *rule)
{
    for (int i = 0; i < rule->n_rewrites; i++)
        if (rule->rewrites[i].kind == REWRITE_ROUTE)
            return rule->rewrites[i].factor;
    return -1;
}

// True if the factor belongs to a dimension of a constant that the node reads.
static bool is_of_weight(const struct candidate_builder *builder, int factor)
{
    for (size_t i = 0; i < builder->n_in; i++) {
        const struct rule_tensor *tensor = rule_slot(builder->rule, SIDE_INPUT, i);
        if (tsr_node_input(builder->node, i) && tensor && tsr__rule_has_factor(tensor, factor) &&
            value_at(builder, SIDE_INPUT, i)->constant)
            return true;
    }
    return false;
}

// True if the factor stands for the rows of the sequence: its size is machine.context, the first
// output has this factor, and no weight has it.
static bool is_context(const struct candidate_builder *builder, int f)
{
    int64_t sizes[RULE_MAX_FACTORS];
    tsr__planner_sizes(builder->planner->shapes.known, builder->node, builder->rule, sizes);
    return sizes[f] == builder->planner->machine.context && builder->rule->n_outputs > 0 &&
           tsr__rule_has_factor(&builder->rule->outputs[0], f) && !is_of_weight(builder, f);
}

// True if the current expert plan, if there is one, allows sharding the factor. Sizes that are
// fixed in the model belong to weights or heads; any other size is a number of tokens.
static bool is_allowed(const struct candidate_builder *builder, int f)
{
    enum expert expert = builder->planner->machine.expert;
    const struct rule_factor *factor = &builder->rule->factors[f];
    if (expert == EXPERT_NONE)
        return true;
    if (expert == EXPERT_CONTEXT)
        return is_context(builder, f);
    if (expert == EXPERT_EXPERTS && tsr__rule_experts(builder->rule) >= 0)
        return f == tsr__rule_experts(builder->rule);
    if (factor->kind == FACTOR_STAT)
        return false;
    return factor->size.value >= 0 || (expert == EXPERT_SEQUENCE && !reads_weight(builder));
}

// ---- grids -------------------------------------------------------------------------------------

// Tries a grid with one factor (or -1) for each axis.
static void try_grid(struct candidate_builder *builder, struct grid grid, const int *factor)
{
    int64_t stride = 1;
    if (tsr__planner_late(builder->planner))
        return;
    for (int i = grid.n; i-- > 0; stride *= grid.size[i])
        grid.stride[i] = stride;
    struct arena scratch = {.session = builder->planner->session};
    builder->arena = &scratch;
    if (place_on(builder, &grid, factor))
        (void)tsr__builder_take(builder);
    builder->planner->arena.failed = builder->planner->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
}

// Tries the factor alone, and with every other factor. Example: with 12 devices and 4 parts, this
// factor is sharded in 4 along one axis of the grid, and another factor, or none, in 3 along the
// other axis.
static void try_pairs(struct candidate_builder *builder, int factor, int64_t parts,
                      const int64_t *sizes)
{
    struct grid grid = {.n = 2, .size = {parts, builder->planner->machine.n / parts}};
    builder->spread = parts == sizes[factor];
    try_grid(builder, grid, (int[]){factor, -1});
    builder->spread = false;
    for (int h = 0; h < builder->rule->n_factors; h++)
        if (h != factor && is_allowed(builder, h) &&
            may_cut(&builder->rule->factors[h], sizes[h], grid.size[1]))
            try_grid(builder, grid, (int[]){factor, h});
}

// Returns the number of shards that factor f has if `axis` shards it as well as the earlier axes
// that are assigned to it.
static int64_t cuts_of(const struct grid *grid, const int *factor, int axis, int f)
{
    int64_t cuts = grid->size[axis];
    for (int i = 0; i < axis; i++)
        if (factor[i] == f)
            cuts *= grid->size[i];
    return cuts;
}

int tsr__wired_sides(const tsr_topology *topology, const int64_t *devices, int64_t n,
                     int64_t *sides)
{
    int64_t left = n, inner[TSR_COUNT(topology->grid)];
    int n_sides = 0;
    for (int64_t i = 0; i < n; i++)
        if (devices[i] != i)
            return 0;
    for (int i = topology->n_grid; i-- > 0 && left > 1;) {
        int64_t side = int64_min(topology->grid[i], left);
        if (left % side)
            return 0;
        left /= side;
        if (side > 1)
            inner[n_sides++] = side;
    }
    for (int i = 0; i < n_sides; i++)
        sides[i] = inner[n_sides - 1 - i];
    return left == 1 ? n_sides : 0;
}

// True if the factor may be on this axis of a logical grid. The first axis is for tokens, the last
// for weights and heads; axes in between may have both, but factors of weights only if their size
// is fixed in the model. If all earlier axes are idle, the last axis takes only factors of weights.
// Otherwise it takes factors whose size is fixed in the model. It never repeats a factor of an
// earlier axis.
static bool suits_axis(const struct candidate_builder *builder, const struct grid *grid,
                       const int *factor, int axis, int f)
{
    bool any = false, of_weight = is_of_weight(builder, f);
    for (int i = 0; i < axis; i++) {
        any = any || factor[i] >= 0;
        if (factor[i] == f && axis + 1 == grid->n)
            return false;
    }
    if (axis == 0)
        return !of_weight;
    bool sized = builder->rule->factors[f].size.value >= 0;
    if (axis + 1 < grid->n)
        return !of_weight || sized;
    return any ? sized : of_weight;
}

// Tries assignments of factors to the axes of a grid: for each axis one factor, or none. On a
// logical grid of a large model the factor must suit the axis: with all assignments, programs would
// be too large to solve.
static void try_axes(struct candidate_builder *builder, const struct grid *grid, bool logical,
                     const int64_t *sizes, int *factor, int axis)
{
    // A placement with two or more idle axes is replicated, or is also found on a smaller grid.
    if (axis == grid->n) {
        int idle = 0;
        for (int i = 0; i < grid->n; i++)
            idle += factor[i] < 0;
        if (idle < 2)
            try_grid(builder, *grid, factor);
        return;
    }
    if (axis >= (int)TSR_COUNT(grid->size))
        return;
    for (int f = -1; f < builder->rule->n_factors; f++) {
        if (f >= 0 && logical && !suits_axis(builder, grid, factor, axis, f))
            continue;
        if (f >= 0 &&
            !may_cut(&builder->rule->factors[f], sizes[f], cuts_of(grid, factor, axis, f)))
            continue;
        factor[axis] = f;
        try_axes(builder, grid, logical, sizes, factor, axis + 1);
    }
}

// True if all assignments of a grid may be tried.
static bool is_small(const struct planner *planner)
{
    return planner->n_nodes <= FREE_NODES && !planner->body_outputs;
}

// Tries the logical grid of the device set (machine.grid).
static void try_given(struct candidate_builder *builder, const int64_t *sizes)
{
    const struct planner_machine *machine = &builder->planner->machine;
    struct grid grid = {0};
    int factor[PLAN_MAX_AXES];
    while (grid.n < PLAN_MAX_AXES && machine->grid[grid.n] > 1) {
        grid.size[grid.n] = machine->grid[grid.n];
        grid.n++;
    }
    try_axes(builder, &grid, true, sizes, factor, 0);
    if (grid.n == 2 && is_small(builder->planner))
        try_axes(builder, &grid, false, sizes, factor, 0);
}

// Tries the grid of the physical links, if the planned devices are the first ones of the topology.
// If the grid has too many axes, the last ones are merged.
static void try_wired(struct candidate_builder *builder, const int64_t *sizes)
{
    const struct planner_machine *machine = &builder->planner->machine;
    int64_t sides[TSR_COUNT(machine->topology->grid)];
    struct grid grid = {0};
    int factor[PLAN_MAX_AXES];
    int n = tsr__wired_sides(machine->topology, machine->numbers ? machine->numbers : machine->all,
                             machine->n, sides);
    for (int i = 0; i < n; i++) {
        if (grid.n < PLAN_MAX_AXES)
            grid.size[grid.n++] = sides[i];
        else
            grid.size[grid.n - 1] *= sides[i];
    }
    if (grid.n > 1)
        try_axes(builder, &grid, false, sizes, factor, 0);
}

// ---- some of the devices -----------------------------------------------------------------------

static const tsr_topology_device *device_of(const struct planner *planner, int64_t device)
{
    return &planner->machine.topology->device[tsr__planner_device(planner, device)];
}

// Tries the devices of the list alone: the node replicated on them, and every factor sharded over
// them.
static void try_set(struct candidate_builder *builder, const int64_t *devices, int64_t n,
                    const int64_t *sizes)
{
    struct grid grid = {.n = 1, .size = {n}, .devices = devices, .n_devices = n};
    if (n == 0 || n == builder->planner->machine.n)
        return;
    for (int factor = -1; factor < builder->rule->n_factors; factor++)
        if (factor < 0 || (n > 1 && may_cut(&builder->rule->factors[factor], sizes[factor], n)))
            try_grid(builder, grid, &factor);
}

// Tries the devices with more memory alone, so that the smaller devices need not store the weights.
// Does nothing if the memory of a device is unknown.
static void try_larger(struct candidate_builder *builder, const int64_t *sizes, int64_t *devices)
{
    const struct planner *planner = builder->planner;
    int64_t least = INT64_MAX, n = 0;
    for (int64_t device = 0; device < planner->machine.n; device++)
        least = int64_min(least, device_of(planner, device)->memory);
    for (int64_t device = 0; device < planner->machine.n; device++)
        if (device_of(planner, device)->memory > least)
            devices[n++] = device;
    if (least > 0)
        try_set(builder, devices, n, sizes);
}

// Tries sets of the fastest devices, and the first device, which returns the outputs. Example: with
// speeds 1, 4, 4 and 2, the sets are {1 2}, {1 2 3} and {0}.
static void try_faster(struct candidate_builder *builder, const int64_t *sizes, int64_t *devices)
{
    const struct planner *planner = builder->planner;
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
        try_set(builder, devices, n, sizes);
        bound = next;
    }
    devices[0] = 0;
    if (bound < INFINITY)
        try_set(builder, devices, 1, sizes);
}

static void try_sets(struct candidate_builder *builder, const int64_t *sizes)
{
    struct planner *planner = builder->planner;
    int64_t *devices = ARENA_ARRAY(&planner->arena, int64_t, (size_t)planner->machine.n + 1);
    if (!devices)
        return;
    try_larger(builder, sizes, devices);
    try_faster(builder, sizes, devices);
}

// Shards a factor that is too small for all devices in the largest number of parts that divides the
// number of devices. The other axis of the grid replicates the node or shards another factor.
static void try_fewer(struct candidate_builder *builder, int factor, const int64_t *sizes)
{
    int64_t n = builder->planner->machine.n;
    for (int64_t parts = n - 1; parts > 1; parts--)
        if (n % parts == 0 && may_cut(&builder->rule->factors[factor], sizes[factor], parts)) {
            try_pairs(builder, factor, parts, sizes);
            return;
        }
}

// Tries every factor with these shares (0: equal shards). The factor must have at least as many
// elements as the shares have units.
static void try_share(struct candidate_builder *builder, const int64_t *sizes, tile_shares shares)
{
    int64_t n = builder->planner->machine.n, units = tsr__units_of(n, shares);
    struct grid line = {.n = 1, .size = {n}, .shares = shares};
    for (int f = 0; f < builder->rule->n_factors; f++) {
        const struct rule_factor *factor = &builder->rule->factors[f];
        bool may = factor->kind == FACTOR_PAR || factor->kind == FACTOR_RED;
        bool enough = sizes[f] >= units && (!factor->least || factor->least >= units);
        if (!shares)
            enough = may_cut(factor, sizes[f], n);
        if (may && enough && is_allowed(builder, f))
            try_grid(builder, line, &f);
    }
}

// Tries all unequal shares that a plan of these devices may use.
static void try_shares(struct candidate_builder *builder, const int64_t *sizes)
{
    const struct planner_machine *machine = &builder->planner->machine;
    for (int i = 0; i < tsr__mixed_shares(machine); i++)
        try_share(builder, sizes, machine->shares[i]);
}

// Tries every factor over all devices, or over fewer if it is too small.
static void try_line(struct candidate_builder *builder, const int64_t *sizes)
{
    int64_t n = builder->planner->machine.n;
    struct grid line = {.n = 1, .size = {n}};
    for (int f = 0; f < builder->rule->n_factors; f++) {
        const struct rule_factor *factor = &builder->rule->factors[f];
        if (!is_allowed(builder, f))
            continue;
        builder->stat = factor->kind == FACTOR_STAT;
        if (builder->stat && sizes[f] > 1 && tsr__unit_fits(factor, sizes[f], n))
            try_grid(builder, line, &f);
        builder->stat = false;
        if (may_cut(factor, sizes[f], n))
            try_grid(builder, line, &f);
        else
            try_fewer(builder, f, sizes);
    }
}

// Tries all devices in a line, then grids, sets of larger and of faster devices, and unequal
// shares. An expert plan has neither grids nor sets. With machine.fixed_shares, only the shares
// machine.only_shares are tried.
void tsr__builder_grids(struct candidate_builder *builder)
{
    const struct planner_machine *machine = &builder->planner->machine;
    int64_t sizes[RULE_MAX_FACTORS];
    tsr__planner_sizes(builder->planner->shapes.known, builder->node, builder->rule, sizes);
    if (machine->fixed_shares) {
        try_share(builder, sizes, machine->only_shares);
        return;
    }
    try_line(builder, sizes);
    if (machine->expert == EXPERT_NONE) {
        if (machine->topology->n_grid > 1)
            try_wired(builder, sizes);
        if (machine->grid[0] > 1)
            try_given(builder, sizes);
        try_sets(builder, sizes);
    }
    try_shares(builder, sizes);
}
