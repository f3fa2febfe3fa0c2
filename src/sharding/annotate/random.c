// SPDX-License-Identifier: Apache-2.0
// random.c - writes a random valid sharding of every node, the same for the same seed.
//
// Some or all devices, in any order, form a grid of up to three axes. Each axis shards one factor
// of the node's rule, or replicates. Sometimes one of these variants is used:
// - A factor is split first, which gives strided shards.
// - The shards of one factor have different numbers of copies.
// - Each shard is on any one or two devices, so that some devices have several shards and others
//   none.
// The resulting shardings of the inputs are written. Those of outputs are left open, written as
// they result, or requested in another layout. node_placement.c checks the result, so the flow will
// do what is written. Nodes of bodies are sharded in the same way. Sometimes nodes are put into two
// or three stages, each with its own devices. This file uses no costs.
#include "sharding/layouts/node_placement.h"

#include <stdlib.h>

#define SHARES_UNITS 12 // total units of unequal parts
#define GRID_AXES    3
#define ATTEMPTS     12 // per node, before it is left unsharded
#define DIVISORS_MAX 64
#define TURNS        3 // limit of shards per device, on average
#define COPIES       2 // limit of copies per part

// The model that is sharded, and the state of the random generator. `state` is the only source of
// random numbers, so that a seed always gives the same result.
struct dice {
    struct arena *arena;  // for the model
    struct arena scratch; // for one node
    tsr_config *config;
    const struct shapes *shapes;
    struct dim_sizes *sizes;
    int64_t n_all;
    int64_t first, n; // devices of the stage: all, or a run of them
    bool inside;      // in a body, where a symbol may have another value
    uint64_t state;
};

// Returns the next random number (splitmix64).
static uint64_t draw(struct dice *dice)
{
    uint64_t z = dice->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// Returns a random number 0 .. n - 1. Its slight bias to small numbers does not matter here.
static int64_t below(struct dice *dice, int64_t n)
{
    return n > 1 ? (int64_t)(draw(dice) % (uint64_t)n) : 0;
}

// True with a probability of `percent`.
static bool chance(struct dice *dice, int percent)
{
    return below(dice, 100) < percent;
}

// Returns a random divisor of n other than 1 and, if `proper`, other than n. Divisors of
// DIVISORS_MAX or more are not considered, except n. Returns 0 if there is none.
static int64_t some_divisor(struct dice *dice, int64_t n, bool proper)
{
    int64_t all[DIVISORS_MAX];
    int count = 0;
    for (int64_t d = 2; d < int64_min(DIVISORS_MAX, n); d++)
        if (n % d == 0)
            all[count++] = d;
    if (!proper && n > 1)
        all[count++] = n;
    return count ? all[below(dice, count)] : 0;
}

// ---- devices in a grid -------------------------------------------------------------------------

// Devices in a grid: devices[i] is at position at[i]. Example: 6 devices on axes {2,3} are at (0,0)
// (1,0) (0,1) (1,1) (0,2) (1,2).
struct grid {
    int64_t *devices;
    int64_t n;
    int64_t axes[GRID_AXES];
    int n_axes;
    int64_t (*at)[GRID_AXES]; // position of each device
    bool even;                // all positions have the same number of devices
    bool turns;               // a device may be at several positions
};

// Chooses some of the devices at random: usually all, and usually in ascending order. Returns false
// if out of memory.
static bool draw_devices(struct dice *dice, struct grid *grid)
{
    size_t capacity = (size_t)dice->n_all * TURNS * COPIES;
    grid->devices = ARENA_ARRAY(&dice->scratch, int64_t, capacity);
    grid->at = tsr__arena_array(&dice->scratch, capacity, sizeof(*grid->at), _Alignof(int64_t));
    if (!grid->devices || !grid->at)
        return false;
    for (int64_t d = 0; d < dice->n; d++) {
        int64_t k = below(dice, d + 1);
        grid->devices[d] = grid->devices[k];
        grid->devices[k] = dice->first + d;
    }
    grid->n = chance(dice, 75) ? dice->n : 1 + below(dice, dice->n);
    if (chance(dice, 65))
        qsort(grid->devices, (size_t)grid->n, sizeof(*grid->devices), by_int64);
    return true;
}

// Places the devices in a grid of up to three axes, with the same number of devices at each
// position. This number is what remains of grid->n after dividing by the axes.
static void place_evenly(struct dice *dice, struct grid *grid)
{
    int64_t rest = grid->n;
    while (rest > 1 && grid->n_axes < GRID_AXES) {
        int64_t d = some_divisor(dice, rest, false);
        grid->axes[grid->n_axes++] = d;
        rest /= d;
    }
    for (int64_t i = 0; i < grid->n; i++) {
        int64_t left = i;
        for (int a = 0; a < grid->n_axes; a++) {
            grid->at[i][a] = left % grid->axes[a];
            left /= grid->axes[a];
        }
    }
    grid->even = true;
}

// Places the devices along one axis. Positions may have different numbers of devices.
static void place_unevenly(struct dice *dice, struct grid *grid)
{
    int64_t parts = 2 + below(dice, grid->n - 2);
    grid->axes[grid->n_axes++] = parts;
    for (int64_t i = 0; i < grid->n; i++) {
        grid->at[i][0] = i >= parts ? below(dice, parts) : i; // every part has at least one device
    }
    grid->even = grid->n == parts;
}

// Draws a grid of some devices, sometimes with different numbers of devices at its positions.
static bool draw_grid(struct dice *dice, struct grid *grid)
{
    *grid = (struct grid){0};
    if (!draw_devices(dice, grid))
        return false;
    if (grid->n > 2 && chance(dice, 15))
        place_unevenly(dice, grid);
    else
        place_evenly(dice, grid);
    return true;
}

// Makes a grid of one or two axes and puts each position on one or two random devices. So a device
// may be at several positions or at none.
static bool place_in_turns(struct dice *dice, struct grid *grid)
{
    int64_t n = grid->n, *devices = ARENA_ARRAY(&dice->scratch, int64_t, (size_t)n);
    if (!devices)
        return false;
    memcpy(devices, grid->devices, (size_t)n * sizeof(*devices));
    grid->turns = true;
    grid->axes[0] = 2 + below(dice, n * TURNS - 1);
    grid->axes[1] = 1;
    if (grid->axes[0] % 2 == 0 && chance(dice, 50)) {
        grid->axes[0] /= 2;
        grid->axes[1] = 2;
    }
    grid->n_axes = 2;
    grid->n = 0;
    for (int64_t part = 0; part < grid->axes[0] * grid->axes[1]; part++) {
        int64_t first = below(dice, n), copies = 1 + (n > 1 && chance(dice, 25));
        for (int64_t k = 0; k < copies; k++) {
            grid->devices[grid->n] = devices[(first + k) % n];
            grid->at[grid->n][0] = part % grid->axes[0];
            grid->at[grid->n++][1] = part / grid->axes[0];
        }
    }
    return true;
}

// Draws a grid as draw_grid does or, in 5 % of the cases outside of bodies, as place_in_turns does.
static bool draw_places(struct dice *dice, struct grid *grid)
{
    if (dice->inside || !chance(dice, 5))
        return draw_grid(dice, grid);
    *grid = (struct grid){0};
    return draw_devices(dice, grid) && place_in_turns(dice, grid);
}

// ---- a placement -------------------------------------------------------------------------------

// Returns the size of a dimension. A symbol has the size that the caller passed for it. Returns -1
// if the size is unknown, as for every symbol in a body; such a dimension is not sharded.
static int64_t size_of(struct dice *dice, tsr_dim dim)
{
    return dice->inside ? dim.value : tsr__dim_sizes_of(dice->sizes, dim);
}

static bool may_cut(struct dice *dice, const struct rule_factor *factor, const struct grid *grid,
                    int64_t cuts)
{
    bool fits = factor->kind == FACTOR_PAR || grid->even ||
                (factor->kind == FACTOR_RED && !grid->turns); // one part of a sum per device
    if (factor->kind == FACTOR_REP || !fits || size_of(dice, factor->size) < cuts)
        return false;
    return factor->kind != FACTOR_STAT || chance(dice, 50); // such nodes are expanded to many nodes
}

// Chooses for each axis of the grid the factor that it shards, or -1 if its devices are replicas.
// Returns false if no axis shards a factor.
static bool draw_factors(struct dice *dice, const struct rule *rule, const struct grid *grid,
                         int *factor)
{
    bool any = false;
    for (int a = 0; a < grid->n_axes; a++) {
        int found[RULE_MAX_FACTORS], n = 0;
        factor[a] = -1;
        for (int f = 0; f < rule->n_factors; f++) {
            bool taken = false;
            for (int b = 0; b < a; b++)
                taken = taken || factor[b] == f;
            if (!taken && may_cut(dice, &rule->factors[f], grid, grid->axes[a]))
                found[n++] = f;
        }
        if (n && (!chance(dice, 10) || (!any && a == grid->n_axes - 1)))
            factor[a] = found[below(dice, n)];
        any = any || factor[a] >= 0;
    }
    return any;
}

// In 10 % of the cases chooses unequal parts, as a number of units for each part. Example: 3 units
// and 1 unit for 2 parts. Returns 0 for equal parts.
static tile_shares draw_shares(struct dice *dice, int64_t parts, int64_t size)
{
    int64_t units[TILE_MAX_UNITS], left = int64_min(size, SHARES_UNITS) - parts;
    bool fits;
    if (parts < 2 || left < 1 || !chance(dice, 10))
        return 0;
    for (int64_t i = 0; i < parts; i++) {
        int64_t more = below(dice, left + 1);
        units[i] = 1 + more;
        left -= more;
    }
    return tsr__shares_of(units, parts, &fits);
}

// A device and its position in the grid, to be sorted by device.
struct seat {
    int64_t device;
    int64_t at;
};

static int by_device(const void *a, const void *b)
{
    const struct seat *x = a, *y = b;
    return int64_order(x->device, y->device);
}

// Assigns the parts of the node's work to the devices of the grid. Only axes that shard a factor
// matter: devices that differ only along other axes do the same work. Devices are sorted first,
// because a placement lists them in ascending order.
static bool place(struct dice *dice, const struct rule *rule, const struct grid *grid,
                  const int *factor, struct placement *placement)
{
    size_t n = (size_t)grid->n, factors = (size_t)rule->n_factors;
    struct seat *seats = ARENA_ARRAY(&dice->scratch, struct seat, n);
    *placement = (struct placement){.rule = rule, .n_devices = n};
    placement->cuts = ARENA_ARRAY(&dice->scratch, int64_t, factors + 1);
    placement->shares = ARENA_ARRAY(&dice->scratch, tile_shares, factors + 1);
    placement->devices = ARENA_ARRAY(&dice->scratch, int64_t, n);
    placement->coords = ARENA_ARRAY(&dice->scratch, int64_t, n * factors + 1);
    if (dice->scratch.failed)
        return false;
    for (size_t i = 0; i < n; i++)
        seats[i] = (struct seat){grid->devices[i], (int64_t)i};
    qsort(seats, n, sizeof(*seats), by_device);
    for (size_t f = 0; f < factors; f++)
        placement->cuts[f] = 1;
    for (int a = 0; a < grid->n_axes; a++) {
        if (factor[a] < 0)
            continue;
        placement->cuts[factor[a]] = grid->axes[a];
        placement->shares[factor[a]] =
            draw_shares(dice, grid->axes[a], size_of(dice, rule->factors[factor[a]].size));
    }
    for (size_t i = 0; i < n; i++) {
        placement->devices[i] = seats[i].device;
        for (int a = 0; a < grid->n_axes; a++)
            if (factor[a] >= 0)
                placement->coords[i * factors + (size_t)factor[a]] = grid->at[seats[i].at][a];
    }
    return true;
}

// In 15 % of the cases splits a random factor in two. Sharding the inner factor gives strided
// shards.
static const struct rule *perhaps_refined(struct dice *dice, const struct rule *rule)
{
    if (!chance(dice, 15) || rule->n_factors == 0 || rule->n_factors >= RULE_MAX_FACTORS - 1)
        return rule;
    int factor = (int)below(dice, rule->n_factors);
    const struct rule_factor *at = &rule->factors[factor];
    int64_t inner = at->size.value > 3 ? some_divisor(dice, at->size.value, true) : 0;
    if (!inner || at->unit != 1 || at->kind == FACTOR_REP || tsr__rule_rewrites(rule, factor))
        return rule;
    const struct rule *finer = tsr__rule_refine(&dice->scratch, rule, factor, inner);
    return finer ? finer : rule;
}

// ---- specs to write -----------------------------------------------------------------------------

// The specs to write for one node.
struct choice {
    tsr_node *node;
    size_t n_in, n_out;
    struct tile_layout **in, **out; // NULL: no spec
};

// Resets the choice to no specs, also after a failed attempt. Returns false if out of memory.
static bool begin_choice(struct dice *dice, tsr_node *node, struct choice *choice)
{
    *choice =
        (struct choice){node, tsr_node_input_count(node), tsr_node_output_count(node), NULL, NULL};
    choice->in = ARENA_ARRAY(&dice->scratch, struct tile_layout *, choice->n_in + 1);
    choice->out = ARENA_ARRAY(&dice->scratch, struct tile_layout *, choice->n_out + 1);
    return !dice->scratch.failed;
}

// Returns the layout of the value of input i. Returns NULL if no use of the value has a layout or
// if the layouts of two uses differ.
static struct tile_layout *joint_layout(const struct choice *choice, size_t i)
{
    struct tile_layout *found = NULL;
    for (size_t k = 0; k < choice->n_in; k++) {
        if (!choice->in[k] || tsr_node_input(choice->node, i) != tsr_node_input(choice->node, k))
            continue;
        if (found && !tsr__layout_equal(found, choice->in[k]))
            return NULL;
        found = choice->in[k];
    }
    return found;
}

// Joins the layouts of a value that the node reads several times, because a value has one spec per
// node. If the layouts differ (Gemm of A, A and A), the value gets no spec.
static bool join_readings(struct dice *dice, struct choice *choice)
{
    struct tile_layout **joined =
        ARENA_ARRAY(&dice->scratch, struct tile_layout *, choice->n_in + 1);
    if (!joined)
        return false;
    for (size_t i = 0; i < choice->n_in; i++)
        if (tsr_node_input(choice->node, i))
            joined[i] = joint_layout(choice, i);
    choice->in = joined;
    return true;
}

// Chooses specs for the inputs: the layouts that the placement needs. In 80 % of the cases all
// inputs get specs, otherwise some.
static bool choose_inputs(struct dice *dice, const struct placement *placement,
                          struct choice *choice)
{
    bool all = chance(dice, 80);
    for (size_t i = 0; i < choice->n_in; i++) {
        const struct rule_tensor *tensor = &placement->rule->inputs[i];
        if (!tsr_node_input(choice->node, i) || tensor->absent || tensor->host ||
            !(all || chance(dice, 60)))
            continue;
        struct tile_layout *layout = tsr__placement_project(&dice->scratch, placement, tensor);
        struct shape shape = tsr__shapes_of(dice->shapes, tsr_node_input(choice->node, i));
        if (!layout)
            return false;
        choice->in[i] = tsr__layout_canonical(&dice->scratch, layout, &shape);
        if (!choice->in[i])
            return false;
        if (!tsr__layout_equal(layout, choice->in[i]))
            choice->in[i] = NULL; // it would be read as fewer shards: write no spec
    }
    return join_readings(dice, choice);
}

// True if node_placement.c finds a valid placement from the specs of the inputs alone. It may
// differ from the random placement. *cut is set if it shards a factor.
static bool is_valid_choice(struct dice *dice, const struct rule *rule, const struct choice *choice,
                            bool *cut)
{
    struct solve solve;
    if (!tsr__solve_init(&solve, &dice->scratch, &dice->scratch, rule, dice->n_all))
        return false;
    if (!dice->inside)
        solve.mode = SOLVE_PARTS;
    for (size_t i = 0; i < choice->n_in; i++) {
        struct shape shape = {.rank = -1};
        if (!choice->in[i])
            continue;
        shape = tsr__shapes_of(dice->shapes, tsr_node_input(choice->node, i));
        solve.strict = tsr__layout_is_whole(choice->in[i]); // as in the checker
        if (!tsr__solve_add(&solve, false, (int)i, choice->in[i], &shape, false, true))
            return false;
    }
    for (int factor = 0; factor < solve.rule->n_factors; factor++)
        *cut = *cut || solve.cuts[factor] > 1;
    return tsr__solve_turns_fit(&solve, choice->node, dice->shapes);
}

// ---- any layout of a tensor --------------------------------------------------------------------

// Shards a dimension in `cuts` parts: the full dimension or, sometimes, one of two factors into
// which it is divided. *factor is the index of the sharded factor.
static bool cut_dim(struct dice *dice, tsr_dim size, int64_t cuts, struct tile_dim *dim,
                    int *factor)
{
    int64_t inner = (size.value > 3 && chance(dice, 20)) ? some_divisor(dice, size.value, true) : 0;
    dim->factors = ARENA_ARRAY(&dice->scratch, struct tile_factor, 2);
    if (!dim->factors)
        return false;
    dim->n = 1;
    *factor = 0;
    dim->factors[0] = (struct tile_factor){.size = 0, .cuts = cuts};
    if (!inner || (inner < cuts && size.value / inner < cuts))
        return true;
    *factor = inner >= cuts && (size.value / inner < cuts || chance(dice, 60));
    dim->n = 2;
    dim->factors[0] = (struct tile_factor){.size = size.value / inner, .cuts = 1};
    dim->factors[1] = (struct tile_factor){.size = inner, .cuts = 1};
    dim->factors[*factor].cuts = cuts;
    return true;
}

// Sets the owners of a layout. axis_of[d] is the axis of the grid that shards dimension d; it is
// not used for unsharded dimensions.
static struct tile_layout *set_owners(struct dice *dice, const struct grid *grid,
                                      struct tile_layout *layout, const int *axis_of)
{
    struct tile_owner *pairs = ARENA_ARRAY(&dice->scratch, struct tile_owner, (size_t)grid->n);
    if (!layout || !pairs)
        return NULL;
    for (int64_t i = 0; i < grid->n; i++) {
        int64_t shard = 0;
        for (int k = 0; k < layout->n_loops; k++) {
            int a = axis_of[layout->loops[k].dim];
            shard = shard * grid->axes[a] + grid->at[i][a];
        }
        pairs[i] = (struct tile_owner){shard, grid->devices[i]};
    }
    return tsr__layout_own(&dice->scratch, layout, pairs, (size_t)grid->n) ? layout : NULL;
}

// Returns a random layout that need not fit the rule of the node, or NULL if out of memory.
static struct tile_layout *any_layout(struct dice *dice, const struct shape *shape)
{
    struct grid grid;
    struct tile_dim dims[TILE_MAX_RANK] = {{0}};
    int axis_of[TILE_MAX_RANK], factor;
    if (!draw_places(dice, &grid))
        return NULL;
    for (int a = 0; a < grid.n_axes; a++) {
        int axis = shape->rank ? (int)below(dice, shape->rank) : -1;
        if (axis < 0 || dims[axis].n || size_of(dice, shape->dims[axis]) < grid.axes[a] ||
            chance(dice, 15))
            continue;
        axis_of[axis] = a;
        if (!cut_dim(dice, shape->dims[axis], grid.axes[a], &dims[axis], &factor))
            return NULL;
        if (dims[axis].n == 1)
            dims[axis].factors[0].shares =
                draw_shares(dice, grid.axes[a], size_of(dice, shape->dims[axis]));
    }
    struct tile_layout *layout =
        set_owners(dice, &grid, tsr__layout_cut(&dice->scratch, shape->rank, dims), axis_of);
    return layout ? tsr__layout_canonical(&dice->scratch, layout, shape) : NULL;
}

// True if a value may be resharded. Types smaller than a byte cannot be transferred in parts, so no
// other layout is requested for them.
static bool movable(const struct shape *shape)
{
    return shape->rank >= 0 && shape->rank <= TILE_MAX_RANK && tsr_dtype_bits(shape->dtype) >= 8;
}

// Chooses for each output no spec (40 %), the layout that the placement gives (35 %), or a random
// layout.
static bool choose_outputs(struct dice *dice, const struct placement *placement,
                           struct choice *choice)
{
    for (size_t i = 0; i < choice->n_out; i++) {
        const tsr_value *value = tsr_node_output(choice->node, i);
        struct shape shape = tsr__shapes_of(dice->shapes, value);
        int64_t roll = below(dice, 100);
        if (!movable(&shape) || roll < 40)
            continue;
        if (roll < 75)
            choice->out[i] =
                tsr__placement_project(&dice->scratch, placement, &placement->rule->outputs[i]);
        else
            choice->out[i] = any_layout(dice, &shape);
        if (!choice->out[i])
            return false;
    }
    return true;
}

// Chooses specs for a node that is not sharded. In 25 % of the cases the outputs get specs with
// random devices, and the node runs only on these.
static bool choose_unsharded(struct dice *dice, struct choice *choice)
{
    struct grid grid;
    if (!chance(dice, 25))
        return true;
    if (!draw_grid(dice, &grid))
        return false;
    qsort(grid.devices, (size_t)grid.n, sizeof(*grid.devices), by_int64);
    for (size_t i = 0; i < choice->n_out; i++) {
        const tsr_value *value = tsr_node_output(choice->node, i);
        struct shape shape = tsr__shapes_of(dice->shapes, value);
        if (!movable(&shape))
            continue;
        choice->out[i] =
            tsr__layout_whole(&dice->scratch, shape.rank, grid.devices, (size_t)grid.n);
        if (!choice->out[i])
            return false;
    }
    return true;
}

static tsr_status write_choice(struct dice *dice, const struct choice *choice)
{
    for (size_t i = 0; i < choice->n_in; i++) {
        if (!choice->in[i])
            continue;
        TRY(tsr__spec_write(choice->node, dice->config, tsr_node_input(choice->node, i),
                            choice->in[i]));
    }
    for (size_t i = 0; i < choice->n_out; i++) {
        if (!choice->out[i])
            continue;
        TRY(tsr__spec_write(choice->node, dice->config, tsr_node_output(choice->node, i),
                            choice->out[i]));
    }
    return TSR_OK;
}

// ---- nodes -------------------------------------------------------------------------------------

// Chooses random specs once. *done is set if they are valid and shard a factor; they are then in
// *choice. Returns false if out of memory.
static bool try_node(struct dice *dice, const struct rule *rule, struct choice *choice, bool *done)
{
    struct grid grid;
    struct placement placement;
    int factor[GRID_AXES];
    bool cut = false;
    const struct rule *finer = perhaps_refined(dice, rule);
    if (!begin_choice(dice, choice->node, choice) || !draw_places(dice, &grid))
        return false;
    if (!draw_factors(dice, finer, &grid, factor))
        return true;
    if (!place(dice, finer, &grid, factor, &placement) || !choose_inputs(dice, &placement, choice))
        return false;
    if (!is_valid_choice(dice, rule, choice, &cut) || !cut)
        return !dice->scratch.failed;
    *done = true;
    return choose_outputs(dice, &placement, choice);
}

// Chooses specs for a node. If no attempt is valid, the node stays unsharded. Returns false if out
// of memory.
static bool choose(struct dice *dice, tsr_node *node, struct choice *choice)
{
    const struct rule *rule = tsr__rule_of(&dice->scratch, node, dice->shapes);
    bool done = false;
    if (!rule || !begin_choice(dice, node, choice))
        return false;
    bool stays = tsr__rule_immovable(dice->shapes, node) != NULL;
    int attempts = (rule->whole || stays) ? 0 : ATTEMPTS;
    for (int i = 0; i < attempts; i++) {
        if (!try_node(dice, rule, choice, &done))
            return false;
        if (done)
            return true;
    }
    return begin_choice(dice, node, choice) && (stays || choose_unsharded(dice, choice));
}

// Removes specs of an earlier draw, so that the result depends only on the seed. Removing the last
// spec may also remove the entry `nc` from the node; `nc` then has no specs, and the loop ends.
static tsr_status clear_node(tsr_node *node, const tsr_config *config)
{
    tsr_node_config *nc = tsr_node_find_config(node, config);
    while (nc && tsr_node_config_spec_count(nc))
        TRY(tsr_spec_remove(tsr_node_config_spec(nc, 0)));
    return TSR_OK;
}

// Shards one node. Frees the temporary memory after each node, because a model may have thousands.
static tsr_status shard_node(struct dice *dice, tsr_node *node)
{
    struct choice choice;
    TRY(clear_node(node, dice->config));
    tsr__arena_init(&dice->scratch, dice->arena->session);
    tsr_status st = choose(dice, node, &choice) ? write_choice(dice, &choice) : TSR_NOMEM;
    tsr__arena_free(&dice->scratch);
    return st;
}

static tsr_status shard_graph(struct dice *dice, tsr_graph *graph);

// Shards the nodes of the bodies over the devices of the stage of `node`.
static tsr_status shard_bodies(struct dice *dice, tsr_node *node)
{
    struct control control;
    tsr_status st = TSR_OK;
    bool around = dice->inside;
    if (!tsr__control_of(node, &control))
        return TSR_OK;
    dice->inside = true;
    for (int k = 0; k < control.n_bodies; k++) {
        st = shard_graph(dice, control.bodies[k]);
        if (st != TSR_OK)
            break;
    }
    dice->inside = around;
    return st;
}

static tsr_status shard_graph(struct dice *dice, tsr_graph *graph)
{
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        TRY(shard_node(dice, node));
        TRY(shard_bodies(dice, node));
    }
    return TSR_OK;
}

// ---- stages ------------------------------------------------------------------------------------

// True if the graph already has stages. They stay, and the model is sharded within them.
static bool has_stages(const tsr_graph *graph, const tsr_config *config)
{
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        int64_t stage;
        const tsr_node_config *nc = tsr_node_find_config(node, config);
        if (nc && tsr_node_config_stage(nc, &stage))
            return true;
    }
    return false;
}

// Returns false if a value has a type that cannot be sent from one stage to the next.
static bool all_can_move(const struct dice *dice, const tsr_graph *graph)
{
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        if (!tsr__node_is_constant(node) && tsr__rule_immovable(dice->shapes, node))
            return false;
    return true;
}

// Splits the main graph into two or three stages of consecutive nodes, each on consecutive devices.
static tsr_status shard_stages(struct dice *dice, tsr_graph *graph)
{
    int64_t most = int64_min(dice->n_all, 3), stages = 2 + below(dice, most - 1);
    int64_t nodes = (int64_t)tsr_graph_node_count(graph), at = 0, stage = 0;
    int64_t next = 1 + below(dice, nodes - 1);
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node), at++) {
        if (at == next && stage + 1 < stages) {
            stage++;
            next = at + 1 + below(dice, nodes - at);
        }
        dice->first = tsr__tile_start(dice->n_all, stages, stage);
        dice->n = tsr__tile_start(dice->n_all, stages, stage + 1) - dice->first;
        TRY(tsr_node_set_stage(node, dice->config, stage));
        TRY(shard_node(dice, node));
        TRY(shard_bodies(dice, node));
    }
    return TSR_OK;
}

// Shards every node at random. In 20 % of the cases the model is first divided into stages. This
// needs several devices, more than two nodes, no stages yet, and only values that can be
// transferred.
tsr_status tsr_model_shard_random(tsr_model *model, tsr_config *config, uint64_t seed,
                                  const tsr_dim_size *sizes, size_t n)
{
    if (!tsr__config_is_of(config, model))
        return TSR_INVALID;
    tsr_session *session = tsr_model_session(model);
    TRY(tsr__check_dims(&model, 1, sizes, n));
    int64_t devices = tsr_config_devices(config);
    if (devices < 1 || devices > SOLVE_MAX_DEVICES)
        return tsr__fail(session, TSR_INVALID, DIAG_config_too_large,
                         &PLACE(.configuration = str_of(tsr_config_name(config))), NULL,
                         "the configuration has %lld devices; 1 to %d are supported",
                         (long long)devices, SOLVE_MAX_DEVICES);
    struct arena arena;
    struct dice dice = {
        .arena = &arena, .config = config, .n = devices, .n_all = devices, .state = seed};
    tsr__arena_init(&arena, session);
    tsr_status st = TSR_NOMEM;
    dice.shapes = tsr__model_shapes(model);
    if (!dice.shapes)
        goto free_arena;
    dice.sizes = tsr__dim_sizes_new(&arena, sizes, n);
    if (!dice.sizes)
        goto free_arena;
    tsr_graph *graph = tsr_model_graph(model);
    bool stages = devices > 1 && tsr_graph_node_count(graph) > 2 && chance(&dice, 20) &&
                  !has_stages(graph, config) && all_can_move(&dice, graph);
    st = stages ? shard_stages(&dice, graph) : shard_graph(&dice, graph);
free_arena:
    tsr__arena_free(&arena);
    return st;
}
