// SPDX-License-Identifier: Apache-2.0
// device_sets.c - lists the device sets that the search plans besides all devices at once.
//
// Equal devices: copies of a set of 1, 2, 4 ... 64 devices that divide the batch among
// them.
//
//     Batch 64 on hosts:128x8, sets of 16 devices: 64 copies, each with 1 of the batch.
//     Prefill with batch 64 and decode with batch 96: 32 copies, since 32 divides both.
//
// Devices that differ: sets of the faster ones, and all devices with one proportion of the work.
//
// To add a kind of candidate, write a function that calls add_set for each set (or fills
// further fields of struct device_set, as add_fixed_shares does), and a row of `sources`. Nothing
// else needs to know about it: set_plans.c plans every set, and search.c takes the best. Sets that
// do not fit in SETS_MOST are dropped, so list the most promising ones first.
#include "plan/search/device_sets.h"

#define SET_MOST    64   // devices of a set; up to this number are also planned at once
#define EVERY_SET   4    // unlike devices up to which all subsets are tried
#define COPIES_FROM 8    // from more devices on copies are tried, unless
#define GOOD_GAP    0.01 // the plan of all devices has at most this gap

// ---- the batch ---------------------------------------------------------------------------------

struct dim_sizes tsr__sets_sizes(const struct set_search *search, size_t m)
{
    if (m > 0)
        return (struct dim_sizes){search->options->with_sizes, search->options->n_with_sizes};
    return (struct dim_sizes){search->options->sizes, search->options->n_sizes};
}

// The size that the caller gave for a symbol; 0: none.
static int64_t size_of(const struct dim_sizes *sizes, const char *symbol)
{
    for (size_t i = 0; i < sizes->n; i++)
        if (strcmp(sizes->at[i].name, symbol) == 0)
            return sizes->at[i].size;
    return 0;
}

// The largest symbolic first dimension of an input.
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

// All models have the same copies, so their batches are divided by a common divisor.
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

// The largest number of copies that divides the batch evenly: batch 12 on 8 sets gives 6 copies.
static int64_t copies_on(const struct set_search *search, int64_t n_sets)
{
    int64_t copies = int64_min(n_sets, search->batch_size);
    while (copies > 1 && search->batch_size % copies)
        copies--;
    return int64_max(copies, 1);
}

// ---- candidates --------------------------------------------------------------------------------

// Adds a candidate; beyond SETS_MOST it is dropped. False: out of memory.
static bool add_set(struct set_search *search, const int64_t *devices, int64_t n, int64_t copies)
{
    if (search->n == SETS_MOST || n < 1)
        return true;
    int64_t *list = ARENA_ARRAY(&search->models->planners[0]->arena, int64_t, (size_t)n);
    if (!list)
        return false;
    memcpy(list, devices, (size_t)n * sizeof *list);
    search->sets[search->n++] = (struct device_set){.devices = list, .n = n, .copies = copies};
    return true;
}

// Copies of the first 1, 2, 4 ... 64 devices; the batch limits their number. Small sets come first:
// they are solved soon, and the time that they leave over goes to the large ones.
static bool list_copies(struct set_search *search)
{
    int64_t first[SET_MOST], n_devices = search->models->planners[0]->machine.n;
    for (int64_t device = 0; device < SET_MOST; device++)
        first[device] = device;
    for (int64_t n = 1; n <= int64_min(SET_MOST, n_devices / 2); n *= 2)
        if (!add_set(search, first, n, copies_on(search, n_devices / n)))
            return false;
    return true;
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

// All devices, each proportion of the work alone. The program charges every node the time of its
// slowest device, which is too much between synchronization points: with one device slow at
// products and the other at sums, both may finish at the same time. Such plans are found only if a
// single proportion is allowed, and are then compared by their corrected time.
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
        if (search->sets[i].n == n &&
            tsr__sets_equivalent(topology, search->sets[i].devices, devices, n))
            return true;
    return false;
}

// Every proper subset of a few devices, without equivalent ones: a slower device may have better
// links.
static bool list_subsets(struct set_search *search)
{
    int64_t n_devices = search->models->planners[0]->machine.n, list[EVERY_SET];
    for (unsigned set = 1; set + 1 < 1u << n_devices; set++) {
        int64_t n = 0;
        for (int64_t device = 0; device < n_devices; device++)
            if (set >> device & 1)
                list[n++] = device;
        if (!is_listed(search, list, n) && !add_set(search, list, n, 1))
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

// Devices above each speed, with and without device 0, which holds the outputs; and device 0 alone.
// Of speeds 1 4 4 2: {1 2}, {0 1 2}, {1 2 3} and {0}.
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
        if (n < planner->machine.n && !add_set(search, list, n, 1))
            return false;
        n = list_faster(planner, device, true, list);
        if (without_first && n < planner->machine.n && !add_set(search, list, n, 1))
            return false;
    }
    list[0] = 0;
    return add_set(search, list, 1, 1);
}

// ---- which candidates apply --------------------------------------------------------------------

// A configuration that is kept, an exported program and an explained node need all devices.
static bool is_free(const struct models *models, const tsr_plan_options *options)
{
    for (size_t m = 0; m < models->n; m++)
        if (models->planners[m]->config)
            return false;
    return !options->export_lp && !options->explain;
}

bool tsr__sets_only(const struct models *models, const tsr_plan_options *options)
{
    const struct planner *planner = models->planners[0];
    return planner->machine.n > SET_MOST && is_free(models, options) && tsr__planner_alike(planner);
}

// Copies may beat a plan of all devices that is not known to be good, if there is a batch to
// divide.
static bool needs_copies(const struct set_search *search)
{
    const struct planner *planner = search->models->planners[0];
    bool good = search->all->feasible && search->all->gap <= GOOD_GAP;
    if (!tsr__planner_alike(planner))
        return false;
    if (tsr__sets_only(search->models, search->options))
        return true;
    return search->models->n == 1 && planner->machine.n > COPIES_FROM && search->batch_size > 1 &&
           !good;
}

// Two models on devices that differ are planned on all of them only.
static bool is_unlike(const struct set_search *search)
{
    return search->models->n == 1 && !tsr__planner_alike(search->models->planners[0]);
}

// True for a few unlike devices whose links differ too. With equal links between all pairs it only
// matters which speeds a set has.
static bool needs_subsets(const struct set_search *search)
{
    const struct planner_machine *machine = &search->models->planners[0]->machine;
    size_t n = (size_t)machine->topology->n;
    bool same_links = machine->topology->even && machine->topology->links.n == n * (n - 1);
    return is_unlike(search) && machine->n <= EVERY_SET && !same_links;
}

static bool needs_speeds(const struct set_search *search)
{
    return is_unlike(search) && !needs_subsets(search);
}

// The kinds of candidates, in the order in which they are planned.
static const struct set_source {
    bool (*applies)(const struct set_search *search);
    bool (*list)(struct set_search *search); // false: out of memory
} sources[] = {
    {needs_copies, list_copies},
    {is_unlike, list_fixed_shares},
    {needs_subsets, list_subsets},
    {needs_speeds, list_by_speed},
};

bool tsr__sets_list(struct set_search *search)
{
    if (!is_free(search->models, search->options))
        return true;
    find_batch(search);
    for (size_t i = 0; i < TSR_COUNT(sources); i++)
        if (sources[i].applies(search) && !sources[i].list(search))
            return false;
    return true;
}
