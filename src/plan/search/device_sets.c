// SPDX-License-Identifier: Apache-2.0
// device_sets.c - lists the device sets that the search plans in addition to all devices at once.
//
// Equal devices: copies of a set of 1, 2, 4 ... 64 devices, or of another number that leaves fewer
// devices idle, which divide the batch among them. Each set, and all devices, are also planned as
// logical grids.
//
//     Example: batch 64 on 128 hosts of 8 devices (hosts:128x8) with sets of 16 devices. There are
//     64 copies, each with one sample of the batch. Example: prefill with batch 64 and decode with
//     batch 96 have 32 copies, since 32 divides both.
//
// Devices that differ: unions of hosts, sets of the faster devices, and all devices with one
// proportion of the work.
//
// To add a kind of candidate, write a function that calls add_set for each set (or fills further
// fields of struct device_set, as add_fixed_shares does), and a row of `sources`. Nothing else
// needs to know about it: set_plans.c plans every set, and search.c takes the best. Sets that do
// not fit in SETS_MOST are dropped, so list the most promising ones first.
#include "plan/search/device_sets.h"

// largest device set; machines up to this number of devices are also planned at once
#define SET_MOST    64
#define EVERY_SET   4  // number of unlike devices up to which all subsets are tried
#define EVERY_UNION 6  // number of hosts up to which all unions are tried
#define EVERY_COUNT 8  // largest number of devices, or of full hosts, of an uneven set
#define FEW_SETS    16 // with more sets, the devices that are left over are too few to matter
#define MORE_USED   8  // an uneven set uses at least 1/8 more devices than larger sets
#define GRID_MOST   16 // largest number of devices of a logical grid; of larger ones, only a bound
#define CUBE_MOST   8  // largest number of devices of a grid of three sides if there is a plan
#define CUBE_NODES  32 // number of nodes up to which grids of three sides are always planned

// ---- the batch ---------------------------------------------------------------------------------

struct dim_sizes tsr__sets_sizes(const struct set_search *search, size_t m)
{
    if (m > 0)
        return (struct dim_sizes){search->options->with_sizes, search->options->n_with_sizes};
    return (struct dim_sizes){search->options->sizes, search->options->n_sizes};
}

// Returns the size that the caller gave for a symbol; 0: none.
static int64_t size_of(const struct dim_sizes *sizes, const char *symbol)
{
    for (size_t i = 0; i < sizes->n; i++)
        if (strcmp(sizes->at[i].name, symbol) == 0)
            return sizes->at[i].size;
    return 0;
}

// Returns the largest symbolic first dimension of an input, among those whose size the caller gave.
static struct batch_dim batch_of(const struct set_search *search, size_t m)
{
    const tsr_graph *graph = tsr_model_graph(search->models->planners[m]->model);
    struct dim_sizes sizes = tsr__sets_sizes(search, m);
    struct batch_dim batch = {0};
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const char *symbol = tsr_value_dim_name(tsr_graph_input(graph, i), 0);
        int64_t size = symbol ? size_of(&sizes, symbol) : 0;
        if (size > batch.size)
            batch = (struct batch_dim){symbol, size};
    }
    return batch;
}

// Finds the batch size. All models have the same number of copies, which must divide the batch of
// each model.
static void find_batch(struct set_search *search)
{
    search->batch_size = 0;
    for (size_t m = 0; m < search->models->n; m++) {
        search->batch[m] = batch_of(search, m);
        if (!search->batch[m].symbol) {
            search->batch_size = 1;
            return;
        }
        search->batch_size = common_divisor(search->batch_size, search->batch[m].size);
    }
}

// Returns the largest number of copies, at most n_sets, that divides the batch evenly. Example:
// batch 12 on 8 sets gives 6 copies.
static int64_t copies_on(const struct set_search *search, int64_t n_sets)
{
    int64_t copies = int64_min(n_sets, search->batch_size);
    while (copies > 1 && search->batch_size % copies)
        copies--;
    return int64_max(copies, 1);
}

// ---- candidates --------------------------------------------------------------------------------

// Returns a lower bound: the work divided evenly over the devices of all copies.
static int64_t least_time(const struct set_search *search, const struct device_set *set)
{
    double time = 0;
    for (size_t m = 0; m < search->models->n; m++) {
        const struct planner *planner = search->models->planners[m];
        double speed = 0;
        for (int64_t i = 0; i < set->n && planner->machine.speed; i++)
            speed += planner->machine.speed[set->devices[i]];
        if (speed > 0)
            time += (double)search->models->runs[m] / (speed * (double)set->copies);
    }
    return whole_number(time);
}

// Returns the bytes of the model's weights.
static double weight_bytes(const struct planner *planner)
{
    double weights = 0;
    for (size_t i = 0; i < planner->ends.constants.n; i++)
        if (tsr_value_initializer(planner->ends.constants.at[i])) // a weight, not a cache
            weights += (double)tsr__value_bytes(planner, planner->ends.constants.at[i]);
    return weights;
}

// True if the weights of the first model exceed the memory of all devices of the set together.
// False if the memory of a device is unknown or only assumed.
static bool is_too_small(const struct set_search *search, const int64_t *devices, int64_t n)
{
    const struct planner *planner = search->models->planners[0];
    int64_t limit = tsr__models_limit(search->models, search->options);
    double memory = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t own = planner->machine.topology->device[devices[i]].memory;
        memory += (double)(limit > 0 ? limit : own);
        if (limit <= 0 && own <= 0)
            return false;
    }
    return weight_bytes(planner) > memory && !planner->memory.may_exceed;
}

bool tsr__sets_too_small(const struct set_search *search)
{
    struct planner *planner = search->models->planners[0];
    // of one device there are no sets, for which the weights would be listed already
    if (planner->machine.n < 2 && !tsr__planner_list(planner))
        return false;
    return is_too_small(search, planner->machine.all, planner->machine.n);
}

// Records that the weights do not fit on the set. Does nothing for unlike devices, which have too
// many such sets to list.
static bool record_too_small(struct set_search *search, const struct device_set *set)
{
    struct planner *planner = search->models->planners[0];
    int64_t limit = tsr__models_limit(search->models, search->options);
    if (!tsr__planner_alike(planner))
        return true;
    struct compared_plan compared = {
        .name = tsr__expert_name(search, set),
        .proved = true,
        .weights_only = true,
        .needs = whole_number(weight_bytes(planner) / (double)set->n),
        .limit = limit > 0 ? limit : planner->machine.topology->device[set->devices[0]].memory};
    return tsr__compared_add(&planner->arena, &search->compared, compared);
}

// Adds a device set. If there are SETS_MOST sets already, only its lower bound is kept. If the
// weights do not fit on it, only records this for the summary. False: out of memory.
static bool add_set(struct set_search *search, const int64_t *devices, int64_t n, int64_t copies)
{
    struct device_set tried = {
        .devices = devices, .n = n, .copies = copies, .expert = EXPERT_TENSOR};
    if (n < 1)
        return true;
    if (is_too_small(search, devices, n))
        return record_too_small(search, &tried);
    if (search->n == SETS_MOST) {
        search->dropped = int64_min(search->dropped, least_time(search, &tried));
        return true;
    }
    int64_t *list = ARENA_ARRAY(&search->models->planners[0]->arena, int64_t, (size_t)n);
    if (!list)
        return false;
    memcpy(list, devices, (size_t)n * sizeof *list);
    struct device_set *set = &search->sets[search->n++];
    *set = (struct device_set){.devices = list, .n = n, .copies = copies, .estimate = PLAN_NEVER};
    set->least = least_time(search, set);
    return true;
}

struct device_set tsr__sets_all(const struct set_search *search)
{
    const struct planner_machine *machine = &search->models->planners[0]->machine;
    struct device_set all = {
        .devices = machine->all, .n = machine->n, .copies = 1, .estimate = PLAN_NEVER};
    all.least = least_time(search, &all);
    return all;
}

// True if sets of n devices divide the machine evenly: they are part of a host, or 1, 2, 4 ... full
// hosts. On a machine of at most SET_MOST devices, also true if n divides the number of devices.
// Examples: 1, 2, 4, 8, 16, 32, 64 of hosts:1250x8, and 1, 2, 3, 6 of 12 devices.
static bool is_even(const struct planner_machine *machine, int64_t n)
{
    int64_t host = machine->topology->host, hosts = host > 0 ? n / host : n;
    if (machine->n <= SET_MOST && machine->n % n == 0)
        return true;
    if (host > 0 && n < host)
        return host % n == 0;
    return (host <= 0 || n % host == 0) && (hosts & (hosts - 1)) == 0;
}

// True if sets of n devices leave devices idle, but have equal copies, at most FEW_SETS: up to
// EVERY_COUNT devices of one host, or full hosts. Example: 7 devices have two equal sets of 3.
static bool is_uneven(const struct planner_machine *machine, int64_t n, int64_t copies)
{
    int64_t host = machine->topology->host;
    if (copies < 2 || machine->n / n > FEW_SETS)
        return false;
    if (host > 0 && n > host)
        return n % host == 0 && n / host <= EVERY_COUNT;
    return machine->n <= SET_MOST && n <= EVERY_COUNT &&
           tsr__topology_repeats(machine->topology, (int)n, (int)copies);
}

// Sets copies[n] for the sets of n devices that are tried; 0: not tried. An uneven set is tried if
// it uses at least 1/MORE_USED more devices than all larger sets. Example: 9 hosts of 8 devices
// have two copies of 32 devices, which leaves a host idle, and three copies of 24 devices.
static void choose_sizes(const struct set_search *search, int64_t most, int64_t *copies)
{
    const struct planner_machine *machine = &search->models->planners[0]->machine;
    int64_t used = 0;
    for (int64_t n = most; n >= 1; n--) {
        int64_t c = copies_on(search, machine->n / n);
        bool more = n * c * MORE_USED >= used * (MORE_USED + 1);
        bool tried = is_even(machine, n) || (more && is_uneven(machine, n, c));
        copies[n] = tried ? c : 0;
        if (tried)
            used = int64_max(used, n * c);
    }
}

// Adds the first n devices without copies. They have no expert's plan.
static bool add_uneven(struct set_search *search, const int64_t *first, int64_t n)
{
    size_t before = search->n;
    if (!add_set(search, first, n, 1))
        return false;
    if (search->n > before)
        search->sets[before].uneven = true;
    return true;
}

// True if the devices form no grid because their number is prime, but all devices but one do.
static bool is_prime(int64_t n)
{
    for (int64_t side = 2; side * side <= n; side++)
        if (n % side == 0)
            return false;
    return n > 4;
}

// Adds sets of the first n devices that are repeated as copies; the batch limits the number of
// copies. Also adds the first host alone, because it may be as fast as several hosts, and all
// devices but one of a prime number: as a grid they may be faster.
static bool list_copies(struct set_search *search)
{
    const struct planner_machine *machine = &search->models->planners[0]->machine;
    int64_t first[SET_MOST], copies[SET_MOST + 1], host = machine->topology->host;
    int64_t most = int64_min(SET_MOST, machine->n - 1);
    for (int64_t device = 0; device < SET_MOST; device++)
        first[device] = device;
    choose_sizes(search, most, copies);
    for (int64_t n = 1; n <= most; n++) {
        size_t before = search->n;
        if (!copies[n])
            continue;
        if (!add_set(search, first, n, copies[n]))
            return false;
        if (search->n > before)
            search->sets[before].uneven = !is_even(machine, n);
        if (n == host && copies[n] > 1 && !add_set(search, first, n, 1))
            return false;
    }
    return !is_prime(machine->n) || machine->n > GRID_MOST || copies[machine->n - 1] == 1 ||
           add_uneven(search, first, machine->n - 1);
}

static bool add_fixed_shares(struct set_search *search, tile_shares shares)
{
    const struct planner_machine *machine = &search->models->planners[0]->machine;
    size_t before = search->n;
    if (!add_set(search, machine->all, machine->n, 1))
        return false;
    if (search->n > before) {
        search->sets[before].fixed_shares = true;
        search->sets[before].shares = shares;
    }
    return true;
}

// Adds all devices once for each division of the work. The program charges every node the time of
// its slowest device. That is too much between synchronization points: if one device is slow at
// products and the other at sums, both may finish at the same time. Such plans are found only if a
// single division is allowed, and are then compared by their corrected time.
static bool list_fixed_shares(struct set_search *search)
{
    const struct planner_machine *machine = &search->models->planners[0]->machine;
    for (int i = 0; i < machine->n_shares; i++)
        if (!add_fixed_shares(search, machine->shares[i]))
            return false;
    return machine->n < 2 || add_fixed_shares(search, 0);
}

static bool is_listed(const struct set_search *search, const int64_t *devices, int64_t n)
{
    const tsr_topology *topology = search->models->planners[0]->machine.topology;
    for (size_t i = 0; i < search->n; i++)
        if (search->sets[i].n == n && search->sets[i].copies == 1 &&
            !search->sets[i].fixed_shares &&
            tsr__sets_equivalent(topology, search->sets[i].devices, devices, n))
            return true;
    return false;
}

// Adds sets that divide the devices into copies, if the devices are equal and have consecutive
// numbers. The copies divide the batch. Example: four A100 as two pairs.
static bool add_copies_in(struct set_search *search, const int64_t *devices, int64_t n)
{
    const tsr_topology *topology = search->models->planners[0]->machine.topology;
    for (int64_t i = 1; i < n; i++)
        if (devices[i] != devices[0] + i ||
            !tsr__devices_alike(&topology->device[devices[0]], &topology->device[devices[i]]))
            return true;
    for (int64_t part = 1; part <= n / 2; part++) {
        int64_t copies = n % part == 0 ? copies_on(search, n / part) : 1;
        if (copies > 1 && !add_set(search, devices, part, copies))
            return false;
    }
    return true;
}

// Adds some of the devices, unless an equivalent set is listed. Also adds sets that divide them
// into copies.
static bool add_part(struct set_search *search, const int64_t *devices, int64_t n)
{
    if (n == search->models->planners[0]->machine.n || is_listed(search, devices, n))
        return true;
    return add_set(search, devices, n, 1) && add_copies_in(search, devices, n);
}

// Adds every proper subset of a few devices, except equivalent ones. Subsets with slower devices
// are included, because a slower device may have better links.
static bool list_subsets(struct set_search *search)
{
    int64_t n_devices = search->models->planners[0]->machine.n, list[EVERY_SET];
    for (unsigned set = 1; set + 1 < 1u << n_devices; set++) {
        int64_t n = 0;
        for (int64_t device = 0; device < n_devices; device++)
            if (set >> device & 1)
                list[n++] = device;
        if (!add_part(search, list, n))
            return false;
    }
    return true;
}

// True for unions that are tried if there are many clusters: one cluster, two clusters, or all but
// one.
static bool is_simple_union(unsigned set, int n_clusters)
{
    int n = 0;
    for (int i = 0; i < n_clusters; i++)
        n += set >> i & 1;
    return n <= 2 || n == n_clusters - 1;
}

// Adds the unions of clusters (devices with fast links, usually hosts), except the union of all. If
// there are more than EVERY_UNION clusters, adds only those of is_simple_union. The cluster with
// the fastest devices may be better alone.
static bool list_unions(struct set_search *search)
{
    struct planner *planner = search->models->planners[0];
    size_t n_devices = (size_t)planner->machine.n;
    int64_t *list = ARENA_ARRAY(&planner->arena, int64_t, n_devices);
    int *cluster = ARENA_ARRAY(&planner->arena, int, n_devices);
    if (!list || !cluster)
        return false;
    int n_clusters = tsr__clusters_find(planner, cluster);
    for (unsigned set = 1; n_clusters > 1 && set + 1 < 1u << n_clusters; set++) {
        int64_t n = 0;
        if (n_clusters > EVERY_UNION && !is_simple_union(set, n_clusters))
            continue;
        for (size_t device = 0; device < n_devices; device++)
            if (set >> cluster[device] & 1)
                list[n++] = (int64_t)device;
        if (!add_part(search, list, n))
            return false;
    }
    return true;
}

// Lists the devices that are at least as fast as `slowest`, and device 0 if `with_first`. Returns
// their number.
static int64_t list_faster(const struct planner *planner, int64_t slowest, bool with_first,
                           int64_t *list)
{
    int64_t n = 0;
    double speed = tsr__planner_speed(planner, slowest);
    for (int64_t device = 0; device < planner->machine.n; device++)
        if (tsr__planner_speed(planner, device) >= speed || (with_first && device == 0))
            list[n++] = device;
    return n;
}

// True if no device of a lower number has the same speed.
static bool is_first_of_speed(const struct planner *planner, int64_t device)
{
    for (int64_t k = 0; k < device; k++)
        if (tsr__planner_speed(planner, k) == tsr__planner_speed(planner, device))
            return false;
    return true;
}

// For each speed, adds the devices that are at least as fast, with and without device 0, which
// returns the outputs. Also adds device 0 alone. Example: speeds 1, 4, 4 and 2 give {1 2}, {0 1 2},
// {1 2 3} and {0}.
static bool list_by_speed(struct set_search *search)
{
    struct planner *planner = search->models->planners[0];
    int64_t *list = ARENA_ARRAY(&planner->arena, int64_t, (size_t)planner->machine.n);
    if (!list)
        return false;
    for (int64_t device = 0; device < planner->machine.n; device++) {
        if (!is_first_of_speed(planner, device))
            continue;
        int64_t n = list_faster(planner, device, false, list);
        bool without_first = list[0] != 0;
        if (!add_part(search, list, n))
            return false;
        n = list_faster(planner, device, true, list);
        if (without_first && !add_part(search, list, n))
            return false;
    }
    list[0] = 0;
    return add_part(search, list, 1);
}

// ---- logical grids -----------------------------------------------------------------------------

// True if the devices of the set have the same speed and memory.
static bool is_alike(const struct set_search *search, const struct device_set *set)
{
    const tsr_topology_device *devices = search->models->planners[0]->machine.topology->device;
    for (int64_t i = 1; i < set->n; i++)
        if (!tsr__devices_alike(&devices[set->devices[0]], &devices[set->devices[i]]))
            return false;
    return true;
}

// True if the links of the devices form that grid: the set has its candidates anyway.
static bool is_wired(const struct set_search *search, const struct device_set *set,
                     const int64_t *grid, int n)
{
    const tsr_topology *topology = search->models->planners[0]->machine.topology;
    int64_t sides[TSR_COUNT(topology->grid)];
    return tsr__wired_sides(topology, set->devices, set->n, sides) == n &&
           memcmp(sides, grid, (size_t)n * sizeof *sides) == 0;
}

static bool add_grid(struct set_search *search, const struct device_set *set, const int64_t *grid,
                     int sides)
{
    size_t before = search->n;
    if (is_wired(search, set, grid, sides))
        return true;
    if (!add_set(search, set->devices, set->n, set->copies))
        return false;
    if (search->n > before) {
        memcpy(search->sets[before].grid, grid, (size_t)sides * sizeof *grid);
        search->sets[before].only_bound = set->n > GRID_MOST;
    }
    return true;
}

// Adds the logical grids of a set that have these first sides and `left` sides more. Example: 2 x 4
// and 4 x 2 for eight devices and two sides.
static bool list_grids(struct set_search *search, const struct device_set *set, int64_t *grid,
                       int side, int left)
{
    int64_t n = set->n;
    for (int i = 0; i < side; i++)
        n /= grid[i];
    for (int64_t size = 2; left > 1 && size <= n / 2; size++) {
        grid[side] = size;
        if (n % size == 0 && !list_grids(search, set, grid, side + 1, left - 1))
            return false;
    }
    if (left > 1)
        return true;
    grid[side] = n;
    return add_grid(search, set, grid, side + 1);
}

// True if all devices were planned at once, so that their grids are listed too.
static bool has_grids_of_all(const struct set_search *search, const struct device_set *all)
{
    return search->at_once && is_alike(search, all);
}

// Adds the logical grids of two sides of all devices and of the sets that are listed, which are in
// the order of their estimates: those of the fastest come first.
static bool list_grids_of_sets(struct set_search *search)
{
    struct device_set all = tsr__sets_all(search);
    int64_t grid[PLAN_MAX_AXES];
    bool due = has_grids_of_all(search, &all);
    int64_t time = due && search->at_once->result.feasible ? search->at_once->time : PLAN_NEVER;
    for (size_t i = 0, n = search->n; i < n; i++) {
        struct device_set set = search->sets[i];
        if (due && time <= set.estimate && !list_grids(search, &all, grid, 0, 2))
            return false;
        due = due && time > set.estimate;
        if (!set.fixed_shares && is_alike(search, &set) && !list_grids(search, &set, grid, 0, 2))
            return false;
    }
    return !due || list_grids(search, &all, grid, 0, 2);
}

// ---- which candidates apply --------------------------------------------------------------------

bool tsr__sets_free(const struct models *models)
{
    for (size_t m = 0; m < models->n; m++)
        if (models->planners[m]->config)
            return false;
    return true;
}

bool tsr__sets_only(const struct models *models)
{
    const struct planner *planner = models->planners[0];
    return planner->machine.n > SET_MOST && tsr__sets_free(models) && tsr__planner_alike(planner);
}

static bool needs_copies(const struct set_search *search)
{
    if (!tsr__planner_alike(search->models->planners[0]))
        return false;
    return tsr__sets_only(search->models) || search->models->n == 1;
}

// True for one model on devices that differ. Two models are planned only on all devices at once if
// these differ.
static bool is_unlike(const struct set_search *search)
{
    return search->models->n == 1 && !tsr__planner_alike(search->models->planners[0]);
}

// True if all pairs of devices have equal links. Then two sets with the same speeds are equivalent.
static bool has_same_links(const struct set_search *search)
{
    const tsr_topology *topology = search->models->planners[0]->machine.topology;
    size_t n = (size_t)topology->n;
    return topology->even && topology->links.n == n * (n - 1);
}

// True if no path of links leads from the first device to some other one, so that one connected
// part may be better alone. Example: {4,[[1],[0],[3],[2]]} has two pairs.
static bool is_disconnected(const struct set_search *search)
{
    const tsr_topology *topology = search->models->planners[0]->machine.topology;
    uint64_t reached = 1, before = 0;
    if (topology->n > SET_MOST || topology->links.n == 0)
        return false;
    while (reached != before) {
        before = reached;
        for (size_t i = 0; i < topology->links.n; i++)
            if (reached >> topology->links.at[i].from & 1)
                reached |= (uint64_t)1 << topology->links.at[i].to;
    }
    return reached != UINT64_MAX >> (64 - topology->n);
}

// Lists the candidates; false: out of memory. Speeds are computed first, for lower bounds and for
// the sets of faster devices.
bool tsr__sets_list(struct set_search *search)
{
    if (!tsr__sets_free(search->models) || search->models->planners[0]->machine.n < 2)
        return true;
    for (size_t m = 0; m < search->models->n; m++) {
        struct planner *planner = search->models->planners[m];
        if (!tsr__planner_list(planner) || !tsr__planner_rules(planner) ||
            !tsr__planner_shares(planner) || !tsr__planner_speed_up(planner))
            return false;
    }
    find_batch(search);
    // Of a few devices with different links, all subsets are listed, otherwise unions of clusters
    // and sets of the fastest devices.
    bool unlike = is_unlike(search), linked = unlike && !has_same_links(search);
    bool subsets = linked && search->models->planners[0]->machine.n <= EVERY_SET;
    bool unions = (linked && !subsets) || (!unlike && is_disconnected(search));
    return (!needs_copies(search) || list_copies(search)) && (!subsets || list_subsets(search)) &&
           (!unions || list_unions(search)) && (!unlike || list_fixed_shares(search)) &&
           (!unlike || subsets || list_by_speed(search));
}

// True if grids of three sides of all devices are worth their time. Their programs are large, so
// the model must be small, or memory short on few devices, or no other plan may exist.
static bool is_cube_worth(const struct set_search *search)
{
    const struct set_plan *all = search->at_once;
    if (!search->best)
        return true;
    return all->set.n <= CUBE_MOST &&
           (all->planners[0].memory.binds || all->planners[0].n_nodes <= CUBE_NODES);
}

bool tsr__sets_add_grids(struct set_search *search, int sides)
{
    struct device_set all = tsr__sets_all(search);
    int64_t grid[PLAN_MAX_AXES];
    if (search->models->n > 1 || !tsr__sets_free(search->models))
        return true;
    if (sides == 2)
        return list_grids_of_sets(search);
    return !has_grids_of_all(search, &all) || all.n > GRID_MOST || !is_cube_worth(search) ||
           list_grids(search, &all, grid, 0, sides);
}
