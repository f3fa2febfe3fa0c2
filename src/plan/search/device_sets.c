// SPDX-License-Identifier: Apache-2.0
// blocks.c - plans that use some of the devices, or the same block of devices many times.
//
// Machines are made of blocks that are alike, and models of batches whose entries do not meet. So a large machine is
// planned as one block of at most BLOCK_MOST devices with its share of the batch, and every other block does the same
// with its own share: what it costs follows the block, not the machine. With no batch to share, or with devices that are
// slower than others, the best block works alone and the rest is idle.
//
//     batch 64 on hosts:128x8, blocks of 16: 64 copies, each with 1 of the batch on 16 devices, outputs gathered at the end
//
// A block's plan is told in the numbers of the whole machine: a value that has the batch in a dimension (its size there is
// a multiple of what it is in the block) is cut there once more, outermost; any other lies in every copy.
//
//     X is [64, 512] with the batch in dimension 0; a block of 2 devices has X as [1, 512], cut in dimension 1: 64 copies
//     of {1, 2} on devices 0 1 become {64, 2} on devices 0 .. 127, and copy 5 (devices 10 and 11) has row 5
//     W is [512, 512] in the block too: no batch. Its halves {1, 2} lie on 0 1 and again on 2 3, 4 5 ...
#include "plan/search/device_sets.h"

#define BLOCK_MOST  64   // devices of a block; a machine of no more is planned as a whole too
#define EVERY_SET   4    // devices of which every set is
#define SHARED_FROM 8    // devices: more are tried as copies of a block too, if
#define GOOD_GAP    0.01 // no plan of all at once was found that is as near to the least

// ---- the batch ---------------------------------------------------------------------------------

// The caller's size of that symbol; 0: none was given.
static int64_t size_of(const tsr_plan_options *options, const char *symbol)
{
    for (size_t i = 0; i < options->n_sizes; i++)
        if (strcmp(options->sizes[i].name, symbol) == 0)
            return options->sizes[i].size;
    return 0;
}

// The symbol in the first dimension of a value; NULL: it has none.
static const char *first_symbol(const tsr_value *value)
{
    return tsr_value_dim_name(value, 0);
}

// The symbol that stands first in an input and has a size; of several the largest.
void tsr__blocks_find_batch(struct blocks *blocks)
{
    const tsr_graph *graph = tsr_model_graph(blocks->planner->model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        const char *symbol = first_symbol(value);
        int64_t size = symbol ? size_of(blocks->options, symbol) : 0;
        if (size > blocks->batch_size) {
            blocks->batch = symbol;
            blocks->batch_size = blocks->shared = size;
        }
    }
}

// The most copies that share the batch evenly.
// Batch 12 on 8 blocks: 6 copies of 2 each, since 8 and 7 do not divide 12. Without a batch 1.
static int64_t copies_of(const struct blocks *blocks, int64_t n_blocks)
{
    if (!blocks->batch)
        return 1;
    int64_t copies = int64_min(n_blocks, blocks->shared);
    while (copies > 1 && blocks->shared % copies)
        copies--;
    return int64_max(copies, 1);
}

// ---- which blocks ------------------------------------------------------------------------------

// Adds a block to be planned; beyond BLOCK_TRIES it is left out without a word. False: out of
// memory.
static bool add_block(struct blocks *blocks, const int64_t *devices, int64_t n, int64_t copies)
{
    if (blocks->n == BLOCK_TRIES || n < 1)
        return true;
    int64_t *list = ARENA_ARRAY(&blocks->planner->arena, int64_t, (size_t)n);
    if (!list)
        return false;
    memcpy(list, devices, (size_t)n * sizeof *list);
    blocks->at[blocks->n++] = (struct block_plan){.devices = list, .n = n, .copies = copies};
    return true;
}

// Which device must be in a list besides the fast ones.
enum besides { NOBODY_BESIDES, FIRST_BESIDES };

// The devices that are at least as fast as `slowest`, with the first device besides or without it; the number.
static int64_t take_fast(const struct planner *planner, int64_t slowest, enum besides besides,
                         int64_t *list)
{
    int64_t n = 0;
    for (int64_t device = 0; device < planner->machine.n; device++) {
        bool fast = tsr__planner_speed(planner, device) >= tsr__planner_speed(planner, slowest);
        if (fast || (besides == FIRST_BESIDES && device == 0))
            list[n++] = device;
    }
    return n;
}

// No device of a lower number has the same speed.
static bool is_first_so_fast(const struct planner *planner, int64_t device)
{
    for (int64_t k = 0; k < device; k++)
        if (tsr__planner_speed(planner, k) == tsr__planner_speed(planner, device))
            return false;
    return true;
}

// Each device is linked with each other by the same kind of link: then it does not matter which of those that are alike are taken.
static bool linked_alike(const tsr_topology *topology)
{
    size_t n = (size_t)topology->n;
    return topology->even && topology->links.n == n * (n - 1);
}

// A set that is the same to a plan is listed already.
static bool is_listed(const struct blocks *blocks, const int64_t *devices, int64_t n)
{
    for (size_t i = 0; i < blocks->n; i++)
        if (blocks->at[i].n == n &&
            tsr__same_sets(blocks->planner->machine.topology, blocks->at[i].devices, devices, n))
            return true;
    return false;
}

// Every set of the devices but all of them, one of those that are the same. Links may be such that a slower device is nearer.
static bool list_every(struct blocks *blocks)
{
    int64_t n_devices = blocks->planner->machine.n, list[EVERY_SET];
    for (unsigned set = 1; set + 1 < 1u << n_devices; set++) {
        int64_t n = 0;
        for (int64_t device = 0; device < n_devices; device++)
            if (set >> device & 1)
                list[n++] = device;
        if (!is_listed(blocks, list, n) && !add_block(blocks, list, n, 1))
            return false;
    }
    return true;
}

// All devices with everything cut in the same parts, equal ones (shares 0) or unequal ones. False: out of memory.
static bool add_one_way(struct blocks *blocks, tile_shares shares)
{
    const struct planner_machine *machine = &blocks->planner->machine;
    size_t before = blocks->n;
    if (!add_block(blocks, machine->all, machine->n, 1))
        return false;
    if (blocks->n > before) {
        blocks->at[before].one_way = true;
        blocks->at[before].only = shares;
    }
    return true;
}

// Each way to share, alone. The program adds up the longest part of every node, which is too much where nobody waits: one device is
// slow at products, the other at sums, and both end at the same time. Such plans are not found among mixed ones; so each is made
// alone, and what it really takes counts.
static bool list_one_way(struct blocks *blocks)
{
    const struct planner_machine *machine = &blocks->planner->machine;
    for (int i = 0; i < machine->n_shares; i++)
        if (!add_one_way(blocks, machine->shares[i]))
            return false;
    return machine->n < 2 || add_one_way(blocks, 0);
}

// The devices that are at least as fast as each of them is, where that leaves some out; the same with the first device, which
// gives the outputs; and that one alone. Of speeds 1 4 4 2: {1 2}, {0 1 2}, {1 2 3} and {0}.
static bool list_fast(struct blocks *blocks)
{
    struct planner *planner = blocks->planner;
    if (planner->machine.n <= EVERY_SET && !linked_alike(planner->machine.topology))
        return list_every(blocks);
    int64_t *list = ARENA_ARRAY(&planner->arena, int64_t, (size_t)planner->machine.n);
    if (!list)
        return false;
    for (int64_t device = 0; device < planner->machine.n; device++) {
        if (!is_first_so_fast(planner, device))
            continue;
        int64_t n = take_fast(planner, device, NOBODY_BESIDES, list);
        bool without = list[0] != 0;
        if (n < planner->machine.n && !add_block(blocks, list, n, 1))
            return false;
        n = take_fast(planner, device, FIRST_BESIDES, list);
        if (without && n < planner->machine.n && !add_block(blocks, list, n, 1))
            return false;
    }
    list[0] = 0;
    return add_block(blocks, list, 1, 1);
}

// Blocks of 1, 2, 4 ... 64 devices from the first on, each as often as the batch allows. What the small ones, which are solved
// soon, leave of their time is the large ones'.
bool tsr__blocks_list_alike(struct blocks *blocks)
{
    struct planner *planner = blocks->planner;
    int64_t *first = ARENA_ARRAY(&planner->arena, int64_t, BLOCK_MOST);
    if (!first)
        return false;
    for (int64_t device = 0; device < BLOCK_MOST; device++)
        first[device] = device;
    int64_t most =
        int64_min(BLOCK_MOST, planner->machine.n / 2); // all at once were planned already
    for (int64_t n = 1; n <= most; n *= 2) {
        if (!add_block(blocks, first, n, copies_of(blocks, planner->machine.n / n)))
            return false;
    }
    return true;
}

// ---- one block ---------------------------------------------------------------------------------

// The caller's sizes, with a block's share of the batch.
static const tsr_dim_size *share_of(struct blocks *blocks, int64_t copies)
{
    tsr_dim_size *sizes =
        ARENA_ARRAY(&blocks->planner->arena, tsr_dim_size, blocks->options->n_sizes + 1);
    if (!sizes)
        return NULL;
    for (size_t i = 0; i < blocks->options->n_sizes; i++) {
        sizes[i] = blocks->options->sizes[i];
        if (copies > 1 && strcmp(sizes[i].name, blocks->batch) == 0)
            sizes[i].size /= copies;
    }
    return sizes;
}

tsr_status tsr__block_open(struct blocks *blocks, struct block_plan *plan)
{
    struct planner *planner = &plan->planner;
    const tsr_plan_options *options = blocks->options;
    const tsr_dim_size *sizes = share_of(blocks, plan->copies);
    *planner = (struct planner){.machine.topology = blocks->planner->machine.topology,
                                .machine.n = plan->n};
    tsr__planner_start(planner, blocks->planner->model);
    plan->made = true;
    planner->budget = &plan->budget;
    // Other copies know nothing of parts of sums, so none may leave the block.
    planner->scope.sums_done = true;
    planner->memory.may_exceed = blocks->planner->memory.may_exceed;
    planner->machine.numbers = plan->devices;
    planner->machine.one_way = plan->one_way;
    planner->machine.only = plan->only;
    if (!sizes || !tsr__planner_devices(planner) ||
        !tsr__planner_values(planner, sizes, options->n_sizes))
        return TSR_NOMEM;
    return tsr__planner_states(planner, options->state, options->n_state);
}

// left: blocks that are still to be planned, with this one; each has an equal share of what is left of the budget. beat: what a
// plan that is there already takes; 0: there is none.
static tsr_status plan_block(struct blocks *blocks, struct block_plan *plan, size_t left,
                             int64_t beat)
{
    struct budget *all = blocks->planner->budget;
    plan->budget = tsr__budget_part(all, 1.0 / (double)left);
    uint64_t work = plan->budget.work;
    tsr_status st = tsr__block_open(blocks, plan);
    if (st != TSR_OK)
        return st;
    if (!tsr__planner_list(&plan->planner) ||
        !tsr__planner_build(&plan->planner, blocks->options->memory))
        return TSR_NOMEM;
    plan->planner.beat = beat;
    st = tsr__planner_solve(&plan->planner, &plan->planner.program, &plan->result);
    tsr__budget_spend(all, work - plan->budget.work);
    plan->planner.budget = all;
    if (st != TSR_OK || !plan->result.feasible)
        return st;
    tsr__planner_take(&plan->planner, plan->result.choice);
    plan->cost = plan->result.cost + tsr__block_price(blocks, plan);
    plan->time = plan->cost - tsr__planner_not_waited(&plan->planner);
    return TSR_OK;
}

// ---- in the numbers of the whole machine -------------------------------------------------------

// The number that a layout of the block has in the whole machine; few differ, and each names every device.
static uint32_t lift_layout(struct blocks *blocks, const struct block_plan *plan, uint32_t layout,
                            int dim)
{
    int64_t key[2] = {layout, dim};
    struct str name = str_bytes(key, sizeof key);
    uint32_t *known = tsr__map_get(&blocks->lifted, name);
    if (known)
        return *known;
    struct tile_repeat repeat = {plan->copies, plan->n, plan->devices};
    // A repeated layout names every device of the machine; only the copy that is numbered is kept.
    struct arena scratch;
    tsr__arena_init(&scratch, blocks->planner->session);
    struct tile_layout *all =
        tsr__layout_repeat(&scratch, plan->planner.layouts.at[layout].tiles, &repeat, dim);
    struct tile_layout *kept = all ? tsr__layout_copy(&blocks->planner->arena, all) : NULL;
    tsr__arena_free(&scratch);
    uint32_t *number = ARENA_NEW(&blocks->planner->arena, uint32_t);
    void **at = tsr__map_at_copy(&blocks->lifted, name);
    if (!kept || !number || !at)
        return PLAN_NO_LAYOUT;
    *number = tsr__planner_layout(blocks->planner, kept);
    *at = number;
    return *number;
}

// False: the value cannot be told in the numbers of the whole machine, or there is no memory.
static bool lift_slot(struct blocks *blocks, const struct block_plan *plan, const tsr_value *value,
                      uint32_t layout, uint32_t *out)
{
    *out = PLAN_NO_LAYOUT;
    if (!value || layout == PLAN_NO_LAYOUT)
        return true;
    int dim = blocks->whole ? BATCH_NOWHERE : tsr__block_batch_dim(blocks, plan, value);
    if (dim != BATCH_UNCLEAR)
        *out = lift_layout(blocks, plan, layout, dim);
    return *out != PLAN_NO_LAYOUT;
}

// Layouts of all tensors of the candidate, told for the whole machine. False: as for lift_slot.
static bool lift_slots(struct blocks *blocks, const struct block_plan *plan, const tsr_node *node,
                       const struct candidate *from, struct candidate *to)
{
    struct arena *arena = &blocks->planner->arena;
    size_t n_in = tsr_node_input_count(node), n_out = tsr_node_output_count(node);
    to->in = ARENA_ARRAY(arena, uint32_t, n_in + 1);
    to->out = ARENA_ARRAY(arena, uint32_t, n_out + 1);
    to->before = ARENA_ARRAY(arena, uint32_t, n_out + 1);
    if (!to->in || !to->out || !to->before)
        return false;
    for (size_t i = 0; i < n_in; i++)
        if (!lift_slot(blocks, plan, tsr_node_input(node, i), from->in[i], &to->in[i]))
            return false;
    for (size_t i = 0; i < n_out; i++) {
        const tsr_value *value = tsr_node_output(node, i);
        if (!lift_slot(blocks, plan, value, from->out[i], &to->out[i]) ||
            !lift_slot(blocks, plan, value, from->before[i], &to->before[i]))
            return false;
    }
    return true;
}

// The chosen way of a node as its only one in the planner of the whole machine.
static bool lift_node(struct blocks *blocks, const struct block_plan *plan, size_t i)
{
    const struct plan_node *node = &plan->planner.nodes[i];
    struct arena *arena = &blocks->planner->arena;
    if (!node->strategy)
        return true;
    blocks->whole = node->strategy->whole != NULL;
    const struct candidate *from = &node->strategy->at.at[node->choice];
    struct strategy *strategy = ARENA_NEW(arena, struct strategy);
    struct candidate *candidate = strategy ? vec_push(arena, &strategy->at) : NULL;
    if (!candidate)
        return false;
    *candidate = *from;
    if (!lift_slots(blocks, plan, node->node, from, candidate))
        return false;
    candidate->cut = candidate->cut || plan->copies > 1;
    strategy->node = node->node;
    strategy->rule = node->strategy->rule;
    strategy->whole = node->strategy->whole;
    blocks->planner->nodes[i].strategy = strategy;
    blocks->planner->nodes[i].choice = 0;
    return true;
}

// False: some value cannot be told so; the nodes are as they were.
bool tsr__block_lift(struct blocks *blocks, const struct block_plan *plan)
{
    struct planner *planner = blocks->planner;
    struct plan_node *before = ARENA_ARRAY(&planner->arena, struct plan_node, planner->n_nodes + 1);
    if (!before)
        return false;
    memcpy(before, planner->nodes, planner->n_nodes * sizeof *before);
    tsr__map_init(&blocks->lifted, &planner->arena, 64);
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (!lift_node(blocks, plan, i)) {
            memcpy(planner->nodes, before, planner->n_nodes * sizeof *before);
            return false;
        }
    return true;
}

// Adds the sums that copies take together to the collectives.
static void count_sums(struct block_choice *out, size_t n)
{
    const char *op = tsr__collective(COMM_ALL_REDUCE)->op;
    size_t i = 0;
    while (i < out->n_collectives && strcmp(out->collectives[i].op, op) != 0)
        i++;
    if (n == 0 || i == PLAN_MAX_OPS)
        return;
    if (i == out->n_collectives)
        out->collectives[out->n_collectives++] = (struct collective_count){.op = op};
    out->collectives[i].count += n;
}

// Every copy has the memory and the communication of the first; who is in none has nothing.
bool tsr__block_tell(struct blocks *blocks, struct block_plan *plan, struct block_choice *out)
{
    struct arena *arena = &blocks->planner->session->results[RESULT_PLAN];
    size_t n = (size_t)plan->n, all = (size_t)blocks->planner->machine.n;
    int64_t *own = ARENA_ARRAY(arena, int64_t, n), *peak = ARENA_ARRAY(arena, int64_t, n);
    *out = (struct block_choice){.devices = plan->n * plan->copies, .copies = plan->copies};
    out->memory = ARENA_ARRAY(arena, int64_t, all);
    out->peak = ARENA_ARRAY(arena, int64_t, all);
    if (arena->failed || !tsr__planner_memory(&plan->planner, own, peak))
        return false;
    int64_t inputs = tsr__block_inputs(blocks, plan);
    for (int64_t c = 0; c < plan->copies; c++)
        for (size_t device = 0; device < n; device++) {
            out->memory[c * plan->n + plan->devices[device]] = own[device] + inputs;
            out->peak[c * plan->n + plan->devices[device]] = peak[device] + inputs;
        }
    out->n_collectives = tsr__planner_collectives(&plan->planner, out->collectives);
    count_sums(out, tsr__block_sums(blocks, plan));
    return true;
}

// ---- the best of them --------------------------------------------------------------------------

// What keeps the memory comes before what does not, then the faster one.
static bool beats(const struct block_plan *a, const struct block_plan *b)
{
    if (a->planner.memory.exceeds != b->planner.memory.exceeds)
        return !a->planner.memory.exceeds;
    return a->time < b->time;
}

// Among those that were planned and have an answer; NULL: none.
static struct block_plan *best_of(struct blocks *blocks)
{
    struct block_plan *best = NULL;
    for (size_t i = 0; i < blocks->n; i++)
        if (blocks->at[i].made && blocks->at[i].result.feasible &&
            (!best || beats(&blocks->at[i], best)))
            best = &blocks->at[i];
    return best;
}

// Of a block that nobody had the time to plan: its devices share out the work of one device at best.
// One of 4 copies takes 8 s on one device: 32 s of work, which 64 devices that are alike do in 0.5 s.
static int64_t unplanned_bound(const struct blocks *blocks, const struct block_plan *planned)
{
    double work = (double)tsr__planner_whole_time(&planned->planner) * (double)planned->copies;
    return (int64_t)(work / tsr__planner_speeds(blocks->planner));
}

// No plan of the blocks takes less, of those that are not planned neither.
static int64_t least_bound(const struct blocks *blocks, int64_t least)
{
    const struct block_plan *planned = NULL;
    bool all = true;
    for (size_t i = 0; i < blocks->n; i++) {
        const struct block_plan *plan = &blocks->at[i];
        all = all && plan->made;
        if (!plan->made || plan->result.infeasible)
            continue;
        least = int64_min(least, plan->result.bound);
        planned = plan;
    }
    if (planned && !all)
        least = int64_min(least, unplanned_bound(blocks, planned));
    return least;
}

// When the time is over, or the caller wants what there is and there is something, blocks that are left are not planned.
static bool is_enough(struct blocks *blocks, const struct program_result *all)
{
    bool any = all->feasible || best_of(blocks);
    bool cancelled = tsr__cancelled(blocks->planner->session);
    return tsr__budget_over(blocks->planner->budget) && (any || !cancelled);
}

// The time of the best plan that keeps the memory; 0: none does.
static int64_t time_to_beat(struct blocks *blocks, const struct program_result *all)
{
    int64_t time = 0;
    const struct block_plan *best = best_of(blocks);
    if (all->feasible && !blocks->planner->memory.exceeds)
        time = all->cost;
    if (best && !best->planner.memory.exceeds && (!time || best->cost < time))
        time = best->cost;
    return time;
}

// all: the plan of all devices at once, if there is one.
static tsr_status plan_all(struct blocks *blocks, const struct program_result *all)
{
    for (size_t i = 0; i < blocks->n; i++) {
        if (is_enough(blocks, all))
            break;
        tsr_status st =
            plan_block(blocks, &blocks->at[i], blocks->n - i, time_to_beat(blocks, all));
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// All but one, whose rules and names the chosen nodes have.
static void free_others(struct blocks *blocks, const struct planner *kept)
{
    for (size_t i = 0; i < blocks->n; i++)
        if (blocks->at[i].made && &blocks->at[i].planner != kept)
            tsr__planner_end(&blocks->at[i].planner);
}

// A plan that keeps the memory beats one that does not, and a faster one any other.
static bool is_better(const struct blocks *blocks, const struct program_result *all,
                      const struct block_plan *best)
{
    const struct planner *planner = blocks->planner;
    if (!all->feasible)
        return true;
    if (planner->memory.exceeds != best->planner.memory.exceeds)
        return planner->memory.exceeds;
    return best->time < blocks->all_time;
}

// The block's plan becomes the answer. bound: no plan of the blocks takes less.
static void set_result(struct program_result *all, const struct block_plan *best, int64_t bound)
{
    if (all->bound > 0 && !all->infeasible) // all devices at once were looked at
        bound = int64_min(bound, all->bound);
    bound = int64_min(bound, best->cost);
    all->feasible = true;
    all->cost = best->cost;
    all->bound = bound;
    all->optimal = bound == best->cost;
    all->gap = (double)(best->cost - bound) / (double)int64_max(best->cost, 1);
}

// Takes the best block that can be told, if it beats what is there.
static tsr_status take_best(struct blocks *blocks, struct program_result *all,
                            struct block_choice *out)
{
    struct planner *planner = blocks->planner;
    int64_t bound = least_bound(blocks, PLAN_NEVER);
    for (struct block_plan *best = best_of(blocks); best; best = best_of(blocks)) {
        if (!is_better(blocks, all, best))
            return TSR_OK;
        if (!tsr__block_lift(blocks, best)) {
            if (planner->arena.failed)
                return TSR_NOMEM;
            best->result.feasible = false; // the next one then
            continue;
        }
        set_result(all, best, bound);
        // Nodes of a block have devices of their own, like those of a stage: shardings are written
        // even where they run whole.
        planner->scope.staged = true;
        planner->scope.one_stage = best->devices[0] != 0;
        planner->memory.exceeds = best->planner.memory.exceeds;
        planner->block = &best->planner;
        if (!tsr__block_tell(blocks, best, out))
            return TSR_NOMEM;
        return TSR_OK;
    }
    return TSR_OK;
}

// Other wishes want the devices as they are.
static bool may_choose(const struct planner *planner, const tsr_plan_options *options)
{
    return !planner->config && !options->export_lp && !options->explain;
}

// Copies of a smaller block may be better than what was found for all devices at once, if that is not known to be good and there
// is a batch to share.
static bool may_share(const struct blocks *blocks, const struct program_result *all)
{
    bool good = all->feasible && all->gap <= GOOD_GAP;
    return blocks->planner->machine.n > SHARED_FROM && blocks->batch && blocks->batch_size > 1 &&
           !good;
}

bool tsr__blocks_only(const struct planner *planner, const tsr_plan_options *options)
{
    return planner->machine.n > BLOCK_MOST && may_choose(planner, options) &&
           tsr__planner_alike(planner);
}

// Devices that are alike are tried as copies of a block, unlike ones as sets of the faster ones.
// `all` holds the plan of all devices at once, if there is one, and gets the better of the two.
tsr_status tsr__plan_blocks(struct planner *planner, const tsr_plan_options *options,
                            struct program_result *all, struct block_choice *out)
{
    struct blocks *blocks = ARENA_NEW(&planner->arena, struct blocks);
    bool large = tsr__blocks_only(planner, options);
    *out = (struct block_choice){0};
    if (!blocks)
        return TSR_NOMEM;
    if (!may_choose(planner, options))
        return TSR_OK;
    blocks->planner = planner;
    blocks->options = options;
    tsr__blocks_find_batch(blocks);
    bool alike = tsr__planner_alike(planner);
    if (alike && !large && !may_share(blocks, all))
        return TSR_OK;
    if (all->feasible)
        blocks->all_time = all->cost - tsr__planner_not_waited(planner);
    bool listed =
        alike ? tsr__blocks_list_alike(blocks) : list_one_way(blocks) && list_fast(blocks);
    if (!listed)
        return TSR_NOMEM;
    tsr_status st = plan_all(blocks, all);
    if (st == TSR_OK)
        st = take_best(blocks, all, out);
    free_others(blocks, planner->block);
    return st;
}

// A block of one device, planned like any other.
tsr_status tsr__plan_best_device(struct planner *planner, const tsr_plan_options *options,
                                 int64_t *time)
{
    struct blocks *blocks = ARENA_NEW(&planner->arena, struct blocks);
    int64_t best = 0;
    *time = 0;
    if (!blocks)
        return TSR_NOMEM;
    blocks->planner = planner;
    blocks->options = options;
    for (int64_t device = 1; device < planner->machine.n; device++)
        if (tsr__planner_speed(planner, device) > tsr__planner_speed(planner, best))
            best = device;
    if (!add_block(blocks, &best, 1, 1))
        return TSR_NOMEM;
    tsr_status st = plan_block(blocks, &blocks->at[0], 1, 0);
    if (st == TSR_OK && blocks->at[0].result.feasible && !blocks->at[0].planner.memory.exceeds)
        *time = blocks->at[0].cost;
    free_others(blocks, NULL);
    return st;
}
