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
#include "plan/stages.h"

#define BLOCK_MOST  64 // devices of a block; a machine of no more is planned as a whole too
#define BLOCK_TRIES 16 // blocks that are looked at

struct block_plan {
    const int64_t *devices; // of the first copy, in numbers of the topology
    int64_t n, copies;      // devices of a block; blocks
    struct planner planner; // with the choices
    bool made;
    struct program_result result;
    int64_t cost; // of the whole: with what it takes to bring outputs together
};

struct blocks {
    struct planner *planner;
    const tsr_plan_options *options;
    const char *batch; // the symbol that copies share; NULL: none
    int64_t batch_size;
    bool whole; // the node at hand cannot be cut: every copy has all of what it takes and gives
    struct block_plan at[BLOCK_TRIES];
    size_t n;
    struct map lifted; // layouts of the block at hand, by number and shared dimension
};

// ---- the batch ---------------------------------------------------------------------------------

static int64_t size_of(const tsr_plan_options *options, const char *symbol)
{
    for (size_t i = 0; i < options->n_sizes; i++)
        if (strcmp(options->sizes[i].name, symbol) == 0)
            return options->sizes[i].size;
    return 0;
}

// The symbol that stands first in an input and has a size; of several the largest.
static void find_batch(struct blocks *blocks)
{
    const tsr_graph *graph = tsr_model_graph(blocks->planner->model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        const char *symbol = tsr_value_rank(value) > 0 ? tsr_value_dim(value, 0).symbol : NULL;
        int64_t size = symbol && symbol[0] ? size_of(blocks->options, symbol) : 0;
        if (size > blocks->batch_size) {
            blocks->batch = symbol;
            blocks->batch_size = size;
        }
    }
}

// The most copies that share the batch evenly.
static int64_t copies_of(const struct blocks *b, int64_t blocks)
{
    int64_t copies = b->batch && blocks < b->batch_size ? blocks : b->batch_size;
    while (copies > 1 && b->batch_size % copies)
        copies--;
    return copies > 1 ? copies : 1;
}

// ---- which blocks ------------------------------------------------------------------------------

static double speed_of(const struct planner *planner, int64_t device)
{
    return planner->machine.topology->device[device].flops;
}

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

// The devices that are at least as fast as one of them, with the first device besides or without it; the number.
static int64_t take_fast(const struct planner *planner, int64_t slowest, bool with_first,
                         int64_t *list)
{
    int64_t n = 0;
    for (int64_t device = 0; device < planner->machine.n; device++)
        if (speed_of(planner, device) >= speed_of(planner, slowest) || (with_first && device == 0))
            list[n++] = device;
    return n;
}

// No device of a lower number has the same speed.
static bool is_first_so_fast(const struct planner *planner, int64_t device)
{
    for (int64_t k = 0; k < device; k++)
        if (speed_of(planner, k) == speed_of(planner, device))
            return false;
    return true;
}

// The devices that are at least as fast as each of them is, where that leaves some out; the same with the first device, which
// gives the outputs; and that one alone.
static bool list_fast(struct blocks *blocks)
{
    struct planner *planner = blocks->planner;
    int64_t *list = ARENA_ARRAY(&planner->arena, int64_t, (size_t)planner->machine.n);
    if (!list)
        return false;
    for (int64_t device = 0; device < planner->machine.n; device++) {
        if (!is_first_so_fast(planner, device))
            continue;
        int64_t n = take_fast(planner, device, false, list);
        bool without = list[0] != 0;
        if (n < planner->machine.n && !add_block(blocks, list, n, 1))
            return false;
        n = take_fast(planner, device, true, list);
        if (without && n < planner->machine.n && !add_block(blocks, list, n, 1))
            return false;
    }
    list[0] = 0;
    return add_block(blocks, list, 1, 1);
}

// Blocks of 1, 2, 4 ... devices from the first on, each as often as the batch allows.
static bool list_alike(struct blocks *blocks)
{
    struct planner *planner = blocks->planner;
    int64_t *first = ARENA_ARRAY(&planner->arena, int64_t, BLOCK_MOST);
    for (int64_t device = 0; first && device < BLOCK_MOST; device++)
        first[device] = device;
    for (int64_t n = BLOCK_MOST; first && n >= 1; n /= 2)
        if (n <= planner->machine.n &&
            !add_block(blocks, first, n, copies_of(blocks, planner->machine.n / n)))
            return false;
    return first != NULL;
}

bool tsr__planner_alike(const struct planner *planner)
{
    for (int64_t device = 1; device < planner->machine.n; device++)
        if (speed_of(planner, device) != speed_of(planner, 0) ||
            planner->machine.topology->device[device].memory !=
                planner->machine.topology->device[0].memory)
            return false;
    return true;
}

// ---- one block ---------------------------------------------------------------------------------

// The caller's sizes, with a block's share of the batch.
static const tsr_dim_size *share_of(struct blocks *blocks, int64_t copies)
{
    tsr_dim_size *sizes =
        ARENA_ARRAY(&blocks->planner->arena, tsr_dim_size, blocks->options->n_sizes + 1);
    for (size_t i = 0; sizes && i < blocks->options->n_sizes; i++) {
        sizes[i] = blocks->options->sizes[i];
        if (copies > 1 && strcmp(sizes[i].name, blocks->batch) == 0)
            sizes[i].size /= copies;
    }
    return sizes;
}

static bool start_block(struct blocks *blocks, struct block_plan *plan)
{
    struct planner *planner = &plan->planner;
    const tsr_dim_size *sizes = share_of(blocks, plan->copies);
    *planner = (struct planner){.machine.topology = blocks->planner->machine.topology,
                                .machine.n = plan->n};
    tsr__planner_start(planner, blocks->planner->model);
    plan->made = true;
    planner->budget = blocks->planner->budget;
    planner->scope.sums_done = true;
    planner->memory.may_exceed = blocks->planner->memory.may_exceed;
    planner->machine.numbers = plan->devices;
    return sizes && tsr__planner_devices(planner) &&
           tsr__planner_values(planner, sizes, blocks->options->n_sizes) &&
           tsr__planner_list(planner) && tsr__planner_candidates(planner) &&
           tsr__planner_program(planner, blocks->options->memory);
}

// What it takes that all outputs come to the first device, from all copies but its own.
static int64_t gather_time(const struct blocks *blocks, const struct block_plan *plan)
{
    struct planner *planner = blocks->planner;
    const tsr_graph *graph = tsr_model_graph(planner->model);
    int64_t ps = 0;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++)
        ps += tsr__price_gather(planner->machine.topology, plan->n, plan->copies,
                                tsr__stages_bytes(planner, tsr_graph_output(graph, i)));
    return ps;
}

// A block without the first device sends it the outputs.
static int64_t send_time(const struct blocks *blocks, const struct block_plan *plan)
{
    struct planner *planner = blocks->planner;
    const tsr_graph *graph = tsr_model_graph(planner->model);
    int64_t pair[2] = {plan->devices[0], 0}, ps = 0;
    struct device_group two = {pair, 2};
    if (plan->devices[0] == 0)
        return 0;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++)
        ps += tsr__planner_combine(planner, TSR_SEND, &two, 1,
                                   tsr__stages_bytes(planner, tsr_graph_output(graph, i)));
    return ps;
}

static int batch_dim(const struct blocks *blocks, const struct block_plan *plan,
                     const tsr_value *value);

// Nodes that read the whole share of their copy: each device cuts it out of the inputs, which a block alone would not do.
static int64_t slice_time(const struct blocks *blocks, const struct block_plan *plan)
{
    const struct planner *planner = &plan->planner;
    const tsr_graph *graph = tsr_model_graph(planner->model);
    double bytes = 0;
    for (size_t k = 0; plan->copies > 1 && k < tsr_graph_input_count(graph); k++) {
        const tsr_value *value = tsr_graph_input(graph, k);
        bool read = false;
        for (size_t i = 0; i < planner->n_nodes && !read; i++) {
            const struct plan_node *node = &planner->nodes[i];
            for (size_t j = 0; node->strategy && j < tsr_node_input_count(node->node); j++) {
                uint32_t layout = node->strategy->at.at[node->choice].in[j];
                read =
                    read || (tsr_node_input(node->node, j) == value && layout != PLAN_NO_LAYOUT &&
                             tsr__layout_is_whole(planner->layouts.at[layout].tiles));
            }
        }
        if (read && batch_dim(blocks, plan, value) >= 0)
            bytes += (double)tsr__stages_bytes(blocks->planner, value) / (double)plan->copies;
    }
    return tsr__planner_move_time(planner, 2 * bytes);
}

static tsr_status plan_block(struct blocks *blocks, struct block_plan *plan)
{
    if (!start_block(blocks, plan))
        return TSR_NOMEM;
    tsr_status st = tsr__planner_solve(&plan->planner, &plan->planner.program, &plan->result);
    if (st == TSR_OK && plan->result.feasible) {
        tsr__planner_take(&plan->planner, plan->result.choice);
        plan->cost = plan->result.cost + gather_time(blocks, plan) + send_time(blocks, plan) +
                     slice_time(blocks, plan);
    }
    return st;
}

// ---- in the numbers of the whole machine -------------------------------------------------------

// The dimension in which a value has the batch: -1 none, -2 it cannot be told.
static int batch_dim(const struct blocks *blocks, const struct block_plan *plan,
                     const tsr_value *value)
{
    const struct plan_value *all = &blocks->planner->values[tsr__value_id(value)];
    const struct plan_value *part = &plan->planner.values[tsr__value_id(value)];
    int found = -1;
    for (int d = 0; d < all->rank && d < part->rank; d++) {
        if (all->shape[d] == part->shape[d])
            continue;
        if (found >= 0 || all->shape[d] != part->shape[d] * plan->copies)
            return -2;
        found = d;
    }
    return found;
}

// The number that a layout of the block has in the whole machine; few differ, and each names every device.
static uint32_t lift_layout(struct blocks *blocks, const struct block_plan *plan, uint32_t layout,
                            int dim)
{
    int64_t key[2] = {layout, dim};
    struct str name = {(const char *)key, sizeof key};
    uint32_t *known = tsr__map_get(&blocks->lifted, name);
    if (known)
        return *known;
    struct tile_repeat repeat = {plan->copies, plan->n, plan->devices};
    struct arena scratch;
    tsr__arena_init(&scratch, blocks->planner->session);
    struct tile_layout *all =
        tsr__layout_repeat(&scratch, plan->planner.layouts.at[layout].tiles, &repeat, dim);
    struct tile_layout *kept = all ? tsr__layout_copy(&blocks->planner->arena, all) : NULL;
    tsr__arena_free(&scratch);
    struct str own = tsr__arena_str(&blocks->planner->arena, name);
    uint32_t *number = ARENA_NEW(&blocks->planner->arena, uint32_t);
    void **at = own.p ? tsr__map_at(&blocks->lifted, own) : NULL;
    if (!kept || !number || !at)
        return PLAN_NO_LAYOUT;
    *number = tsr__planner_layout(blocks->planner, kept);
    *at = number;
    return *number;
}

static bool lift_slot(struct blocks *blocks, const struct block_plan *plan, const tsr_value *value,
                      uint32_t layout, uint32_t *out)
{
    *out = PLAN_NO_LAYOUT;
    if (!value || layout == PLAN_NO_LAYOUT)
        return true;
    int d = blocks->whole ? -1 : batch_dim(blocks, plan, value);
    if (d != -2)
        *out = lift_layout(blocks, plan, layout, d);
    return *out != PLAN_NO_LAYOUT;
}

// The chosen way of a node as its only one in the planner of the whole machine.
static bool lift_node(struct blocks *blocks, const struct block_plan *plan, size_t i)
{
    const struct plan_node *node = &plan->planner.nodes[i];
    struct arena *arena = &blocks->planner->arena;
    size_t n_in = tsr_node_input_count(node->node), n_out = tsr_node_output_count(node->node);
    if (!node->strategy)
        return true;
    blocks->whole = node->strategy->whole != NULL;
    const struct candidate *from = &node->strategy->at.at[node->choice];
    struct strategy *strategy = ARENA_NEW(arena, struct strategy);
    struct candidate *candidate = strategy ? vec_push(arena, &strategy->at) : NULL;
    if (!candidate)
        return false;
    *candidate = *from;
    candidate->in = ARENA_ARRAY(arena, uint32_t, n_in + 1);
    candidate->out = ARENA_ARRAY(arena, uint32_t, n_out + 1);
    candidate->before = ARENA_ARRAY(arena, uint32_t, n_out + 1);
    if (!candidate->in || !candidate->out || !candidate->before)
        return false;
    for (size_t k = 0; k < n_in; k++)
        if (!lift_slot(blocks, plan, tsr_node_input(node->node, k), from->in[k], &candidate->in[k]))
            return false;
    for (size_t k = 0; k < n_out; k++) {
        const tsr_value *value = tsr_node_output(node->node, k);
        if (!lift_slot(blocks, plan, value, from->out[k], &candidate->out[k]) ||
            !lift_slot(blocks, plan, value, from->before[k], &candidate->before[k]))
            return false;
    }
    candidate->cut = candidate->cut || plan->copies > 1;
    strategy->node = node->node;
    strategy->rule = node->strategy->rule;
    strategy->whole = node->strategy->whole;
    blocks->planner->nodes[i].strategy = strategy;
    blocks->planner->nodes[i].choice = 0;
    return true;
}

// False: some value cannot be told so; the nodes are as they were.
static bool lift_all(struct blocks *blocks, const struct block_plan *plan)
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

// Every copy has the memory and the communication of the first; who is in none has nothing.
static bool tell_block(struct blocks *blocks, struct block_plan *plan, struct block_choice *out)
{
    struct arena *arena = &blocks->planner->session->results[RESULT_PLAN];
    size_t n = (size_t)plan->n, all = (size_t)blocks->planner->machine.n;
    int64_t *own = ARENA_ARRAY(arena, int64_t, n), *peak = ARENA_ARRAY(arena, int64_t, n);
    *out = (struct block_choice){.devices = plan->n * plan->copies, .copies = plan->copies};
    out->memory = ARENA_ARRAY(arena, int64_t, all);
    out->peak = ARENA_ARRAY(arena, int64_t, all);
    if (arena->failed || !tsr__planner_memory(&plan->planner, own, peak))
        return false;
    for (int64_t c = 0; c < plan->copies; c++)
        for (size_t device = 0; device < n; device++) {
            out->memory[c * plan->n + plan->devices[device]] = own[device];
            out->peak[c * plan->n + plan->devices[device]] = peak[device];
        }
    out->n_collectives = tsr__planner_collectives(&plan->planner, out->collectives);
    return true;
}

// ---- the best of them --------------------------------------------------------------------------

// What keeps the memory comes before what does not, then the faster one.
static bool beats(const struct block_plan *a, const struct block_plan *b)
{
    if (a->planner.memory.exceeds != b->planner.memory.exceeds)
        return !a->planner.memory.exceeds;
    return a->cost < b->cost;
}

static struct block_plan *best_of(struct blocks *blocks)
{
    struct block_plan *best = NULL;
    for (size_t i = 0; i < blocks->n; i++)
        if (blocks->at[i].made && blocks->at[i].result.feasible &&
            (!best || beats(&blocks->at[i], best)))
            best = &blocks->at[i];
    return best;
}

// No plan of the blocks that were looked at takes less.
static int64_t least_bound(const struct blocks *blocks, int64_t least)
{
    for (size_t i = 0; i < blocks->n; i++)
        if (blocks->at[i].made && blocks->at[i].result.bound < least &&
            !blocks->at[i].result.infeasible)
            least = blocks->at[i].result.bound;
    return least;
}

static tsr_status plan_all(struct blocks *blocks)
{
    for (size_t i = 0; i < blocks->n; i++) {
        if (tsr__budget_over(blocks->planner->budget) && best_of(blocks))
            break;
        tsr_status st = plan_block(blocks, &blocks->at[i]);
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

// Takes the best block that can be told, if it beats what is there.
static tsr_status take_best(struct blocks *blocks, struct program_result *all,
                            struct block_choice *out)
{
    struct planner *planner = blocks->planner;
    int64_t bound = least_bound(blocks, PLAN_NEVER);
    for (struct block_plan *best = best_of(blocks); best; best = best_of(blocks)) {
        bool better =
            !all->feasible || (planner->memory.exceeds && !best->planner.memory.exceeds) ||
            (planner->memory.exceeds == best->planner.memory.exceeds && best->cost < all->cost);
        if (!better)
            return TSR_OK;
        if (!lift_all(blocks, best)) {
            if (planner->arena.failed)
                return TSR_NOMEM;
            best->result.feasible = false; // the next one then
            continue;
        }
        bound = all->feasible && all->bound < bound ? all->bound : bound;
        bound = bound < best->cost ? bound : best->cost;
        all->feasible = true;
        all->cost = best->cost;
        all->bound = bound;
        all->optimal = bound == best->cost;
        all->gap = (double)(best->cost - bound) / (double)(best->cost > 1 ? best->cost : 1);
        planner->scope.staged = true;
        planner->memory.exceeds = best->planner.memory.exceeds;
        planner->block = &best->planner;
        return tell_block(blocks, best, out) ? TSR_OK : TSR_NOMEM;
    }
    return TSR_OK;
}

// Other wishes want the devices as they are.
static bool may_choose(const struct planner *planner, const tsr_plan_options *options)
{
    return !planner->config && !options->export_lp && !options->explain && !options->n_state &&
           !planner->ends.states.n;
}

bool tsr__blocks_only(const struct planner *planner, const tsr_plan_options *options)
{
    return planner->machine.n > BLOCK_MOST && may_choose(planner, options) &&
           tsr__planner_alike(planner);
}

tsr_status tsr__plan_blocks(struct planner *planner, const tsr_plan_options *options,
                            struct program_result *all, struct block_choice *out)
{
    struct blocks *blocks = ARENA_NEW(&planner->arena, struct blocks);
    bool large = tsr__blocks_only(planner, options);
    *out = (struct block_choice){0};
    if (!blocks)
        return TSR_NOMEM;
    if (!may_choose(planner, options) || (!large && tsr__planner_alike(planner)))
        return TSR_OK;
    blocks->planner = planner;
    blocks->options = options;
    if (large)
        find_batch(blocks);
    bool listed = large ? list_alike(blocks) : list_fast(blocks);
    tsr_status st = listed ? plan_all(blocks) : TSR_NOMEM;
    if (st == TSR_OK)
        st = take_best(blocks, all, out);
    free_others(blocks, planner->block);
    return st;
}

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
        best = speed_of(planner, device) > speed_of(planner, best) ? device : best;
    tsr_status st = add_block(blocks, &best, 1, 1) ? plan_block(blocks, &blocks->at[0]) : TSR_NOMEM;
    if (st == TSR_OK && blocks->at[0].result.feasible && !blocks->at[0].planner.memory.exceeds)
        *time = blocks->at[0].cost;
    free_others(blocks, NULL);
    return st;
}
