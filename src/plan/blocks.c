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
    struct planner *p;
    const tsr_plan_options *o;
    const char *batch; // the symbol that copies share; NULL: none
    int64_t batch_size;
    bool whole; // the node at hand cannot be cut: every copy has all of what it takes and gives
    struct block_plan at[BLOCK_TRIES];
    size_t n;
};

// ---- the batch ---------------------------------------------------------------------------------

static int64_t size_of(const tsr_plan_options *o, const char *symbol)
{
    for (size_t i = 0; i < o->n_sizes; i++)
        if (strcmp(o->sizes[i].name, symbol) == 0)
            return o->sizes[i].size;
    return 0;
}

// The symbol that stands first in an input and has a size; of several the largest.
static void find_batch(struct blocks *b)
{
    const tsr_graph *g = tsr_model_graph(b->p->model);
    for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
        const tsr_value *v = tsr_graph_input(g, i);
        const char *symbol = tsr_value_rank(v) > 0 ? tsr_value_dim(v, 0).symbol : NULL;
        int64_t size = symbol && symbol[0] ? size_of(b->o, symbol) : 0;
        if (size > b->batch_size) {
            b->batch = symbol;
            b->batch_size = size;
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

static double speed_of(const struct planner *p, int64_t device)
{
    return p->topology->device[device].flops;
}

static bool add_block(struct blocks *b, const int64_t *devices, int64_t n, int64_t copies)
{
    if (b->n == BLOCK_TRIES || n < 1)
        return true;
    int64_t *list = ARENA_ARRAY(&b->p->arena, int64_t, (size_t)n);
    if (!list)
        return false;
    memcpy(list, devices, (size_t)n * sizeof *list);
    b->at[b->n++] = (struct block_plan){.devices = list, .n = n, .copies = copies};
    return true;
}

// The devices that are at least as fast as each of them is, where that leaves some out.
static bool list_fast(struct blocks *b)
{
    struct planner *p = b->p;
    int64_t *fast = ARENA_ARRAY(&p->arena, int64_t, (size_t)p->n);
    for (int64_t d = 0; fast && d < p->n; d++) {
        int64_t n = 0;
        bool first = true;
        for (int64_t k = 0; k < p->n; k++) {
            if (speed_of(p, k) >= speed_of(p, d))
                fast[n++] = k;
            first = first && (k >= d || speed_of(p, k) != speed_of(p, d));
        }
        if (first && n < p->n && !add_block(b, fast, n, 1))
            return false;
    }
    return fast != NULL;
}

// Blocks of 1, 2, 4 ... devices from the first on, each as often as the batch allows.
static bool list_alike(struct blocks *b)
{
    struct planner *p = b->p;
    int64_t *first = ARENA_ARRAY(&p->arena, int64_t, BLOCK_MOST);
    for (int64_t d = 0; first && d < BLOCK_MOST; d++)
        first[d] = d;
    for (int64_t n = BLOCK_MOST; first && n >= 1; n /= 2)
        if (n <= p->n && !add_block(b, first, n, copies_of(b, p->n / n)))
            return false;
    return first != NULL;
}

bool tsr__planner_alike(const struct planner *p)
{
    for (int64_t d = 1; d < p->n; d++)
        if (speed_of(p, d) != speed_of(p, 0) ||
            p->topology->device[d].memory != p->topology->device[0].memory)
            return false;
    return true;
}

// ---- one block ---------------------------------------------------------------------------------

// The caller's sizes, with a block's share of the batch.
static const tsr_size *share_of(struct blocks *b, int64_t copies)
{
    tsr_size *sizes = ARENA_ARRAY(&b->p->arena, tsr_size, b->o->n_sizes + 1);
    for (size_t i = 0; sizes && i < b->o->n_sizes; i++) {
        sizes[i] = b->o->sizes[i];
        if (copies > 1 && strcmp(sizes[i].name, b->batch) == 0)
            sizes[i].size /= copies;
    }
    return sizes;
}

static bool start_block(struct blocks *b, struct block_plan *x)
{
    struct planner *q = &x->planner;
    const tsr_size *sizes = share_of(b, x->copies);
    *q = (struct planner){.topology = b->p->topology, .n = x->n};
    tsr__planner_start(q, b->p->model);
    x->made = true;
    q->budget = b->p->budget;
    q->sums_done = true;
    q->may_exceed = b->p->may_exceed;
    q->device = x->devices;
    return sizes && tsr__planner_devices(q) && tsr__planner_values(q, sizes, b->o->n_sizes) &&
           tsr__planner_list(q) && tsr__planner_candidates(q) &&
           tsr__planner_program(q, b->o->memory);
}

// What it takes that all outputs come to the first device, from all copies but its own.
static int64_t gather_time(const struct blocks *b, const struct block_plan *x)
{
    struct planner *p = b->p;
    const tsr_graph *g = tsr_model_graph(p->model);
    int64_t ps = 0, pair[2] = {x->n < p->n ? x->n : 0, 0};
    if (x->copies < 2)
        return 0;
    for (size_t i = 0; i < tsr_graph_output_count(g); i++) {
        double whole = (double)tsr__stages_bytes(p, tsr_graph_output(g, i));
        struct device_group two = {pair, 2};
        ps += tsr__planner_combine(p, TSR_SEND, &two, 1,
                                   (int64_t)(whole * (double)(x->copies - 1) / (double)x->copies));
    }
    return ps;
}

static tsr_status plan_block(struct blocks *b, struct block_plan *x)
{
    if (!start_block(b, x))
        return TSR_NOMEM;
    tsr_status st = tsr__planner_solve(&x->planner, &x->planner.program, &x->result);
    if (st == TSR_OK && x->result.feasible) {
        tsr__planner_take(&x->planner, x->result.choice);
        x->cost = x->result.cost + gather_time(b, x);
    }
    return st;
}

// ---- in the numbers of the whole machine -------------------------------------------------------

// The dimension in which a value has the batch: -1 none, -2 it cannot be told.
static int batch_dim(const struct blocks *b, const struct block_plan *x, const tsr_value *v)
{
    const struct plan_value *all = &b->p->values[tsr__value_id(v)];
    const struct plan_value *part = &x->planner.values[tsr__value_id(v)];
    int found = -1;
    for (int d = 0; d < all->rank && d < part->rank; d++) {
        if (all->shape[d] == part->shape[d])
            continue;
        if (found >= 0 || all->shape[d] != part->shape[d] * x->copies)
            return -2;
        found = d;
    }
    return found;
}

// The layout of one block with dimension d cut `copies` times more, outermost; d -1: every copy has all of it.
static struct tile_layout *lift(struct arena *a, const struct tile_layout *block,
                                const struct block_plan *x, int d)
{
    const struct tile_layout *l = tsr__layout_ordered(a, block);
    struct tile_layout *wide = l ? tsr__layout_copy(a, l) : NULL;
    struct tile_factor *fresh = ARENA_NEW(a, struct tile_factor);
    int64_t cuts = 1, inner = 1, outer;
    if (!wide || !fresh)
        return NULL;
    if (d >= 0 && x->copies > 1) {
        struct tile_dim *dim = &wide->dims[d];
        if (dim->n == 0)
            *dim = (struct tile_dim){fresh, 1};
        cuts = dim->factors[0].cuts > 0 ? dim->factors[0].cuts : 1;
        dim->factors[0].cuts = cuts * x->copies;
        if (dim->factors[0].size > 0)
            dim->factors[0].size *= x->copies;
        wide = tsr__layout_cut(a, l->rank, wide->dims);
        for (int i = 0; i < l->n_loops; i++) // shards behind the coordinate that the copies take
            if (l->loops[i].dim > d || (l->loops[i].dim == d && l->loops[i].factor > 0))
                inner *= l->dims[l->loops[i].dim].factors[l->loops[i].factor].cuts;
    }
    size_t n = (size_t)l->first[l->n_shards] * (size_t)x->copies, k = 0;
    struct tile_owner *pairs = ARENA_ARRAY(a, struct tile_owner, n + 1);
    if (!wide || !pairs)
        return NULL;
    bool spread = d >= 0 && x->copies > 1;
    for (int64_t c = 0; c < x->copies; c++)
        for (int64_t s = 0; s < l->n_shards; s++) {
            int64_t shard = s;
            if (spread) { // (before, own, behind) -> (before, copy and own, behind)
                outer = s / (inner * cuts);
                shard =
                    (outer * x->copies * cuts + c * cuts + s / inner % cuts) * inner + s % inner;
            }
            for (int64_t i = l->first[s]; i < l->first[s + 1]; i++)
                pairs[k++] = (struct tile_owner){shard, c * x->n + x->devices[l->owners[i]]};
        }
    return tsr__layout_own(a, wide, pairs, k) ? wide : NULL;
}

static bool lift_slot(struct blocks *b, const struct block_plan *x, const tsr_value *v,
                      uint32_t layout, uint32_t *out)
{
    *out = PLAN_NO_LAYOUT;
    if (!v || layout == PLAN_NO_LAYOUT)
        return true;
    int d = b->whole ? -1 : batch_dim(b, x, v);
    struct tile_layout *l =
        d == -2 ? NULL : lift(&b->p->arena, x->planner.layouts.at[layout], x, d);
    if (l)
        *out = tsr__planner_layout(b->p, l);
    return *out != PLAN_NO_LAYOUT;
}

// The chosen way of a node as its only one in the planner of the whole machine.
static bool lift_node(struct blocks *b, const struct block_plan *x, size_t i)
{
    const struct plan_node *n = &x->planner.nodes[i];
    struct arena *a = &b->p->arena;
    size_t n_in = tsr_node_input_count(n->node), n_out = tsr_node_output_count(n->node);
    if (!n->strategy)
        return true;
    b->whole = n->strategy->whole != NULL;
    const struct candidate *from = &n->strategy->at.at[n->choice];
    struct strategy *s = ARENA_NEW(a, struct strategy);
    struct candidate *c = s ? vec_push(a, &s->at) : NULL;
    if (!c)
        return false;
    *c = *from;
    c->in = ARENA_ARRAY(a, uint32_t, n_in + 1);
    c->out = ARENA_ARRAY(a, uint32_t, n_out + 1);
    c->before = ARENA_ARRAY(a, uint32_t, n_out + 1);
    if (!c->in || !c->out || !c->before)
        return false;
    for (size_t k = 0; k < n_in; k++)
        if (!lift_slot(b, x, tsr_node_input(n->node, k), from->in[k], &c->in[k]))
            return false;
    for (size_t k = 0; k < n_out; k++) {
        const tsr_value *v = tsr_node_output(n->node, k);
        if (!lift_slot(b, x, v, from->out[k], &c->out[k]) ||
            !lift_slot(b, x, v, from->before[k], &c->before[k]))
            return false;
    }
    c->cut = c->cut || x->copies > 1;
    s->node = n->node;
    s->rule = n->strategy->rule;
    s->whole = n->strategy->whole;
    b->p->nodes[i].strategy = s;
    b->p->nodes[i].choice = 0;
    return true;
}

// False: some value cannot be told so; the nodes are as they were.
static bool lift_all(struct blocks *b, const struct block_plan *x)
{
    struct planner *p = b->p;
    struct plan_node *before = ARENA_ARRAY(&p->arena, struct plan_node, p->n_nodes + 1);
    if (!before)
        return false;
    memcpy(before, p->nodes, p->n_nodes * sizeof *before);
    for (size_t i = 0; i < p->n_nodes; i++)
        if (!lift_node(b, x, i)) {
            memcpy(p->nodes, before, p->n_nodes * sizeof *before);
            return false;
        }
    return true;
}

// Every copy has the memory and the communication of the first; who is in none has nothing.
static bool tell_block(struct blocks *b, struct block_plan *x, struct block_choice *out)
{
    struct arena *a = &b->p->session->results[RESULT_PLAN];
    size_t n = (size_t)x->n, all = (size_t)b->p->n;
    int64_t *own = ARENA_ARRAY(a, int64_t, n), *peak = ARENA_ARRAY(a, int64_t, n);
    *out = (struct block_choice){.devices = x->n * x->copies, .copies = x->copies};
    out->memory = ARENA_ARRAY(a, int64_t, all);
    out->peak = ARENA_ARRAY(a, int64_t, all);
    if (a->failed || !tsr__planner_memory(&x->planner, own, peak))
        return false;
    for (int64_t c = 0; c < x->copies; c++)
        for (size_t d = 0; d < n; d++) {
            out->memory[c * x->n + x->devices[d]] = own[d];
            out->peak[c * x->n + x->devices[d]] = peak[d];
        }
    out->n_collectives = tsr__planner_collectives(&x->planner, out->collectives);
    return true;
}

// ---- the best of them --------------------------------------------------------------------------

// What keeps the memory comes before what does not, then the faster one.
static bool beats(const struct block_plan *a, const struct block_plan *b)
{
    if (a->planner.exceeds != b->planner.exceeds)
        return !a->planner.exceeds;
    return a->cost < b->cost;
}

static struct block_plan *best_of(struct blocks *b)
{
    struct block_plan *best = NULL;
    for (size_t i = 0; i < b->n; i++)
        if (b->at[i].made && b->at[i].result.feasible && (!best || beats(&b->at[i], best)))
            best = &b->at[i];
    return best;
}

// No plan of the blocks that were looked at takes less.
static int64_t least_bound(const struct blocks *b, int64_t least)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->at[i].made && b->at[i].result.bound < least && !b->at[i].result.infeasible)
            least = b->at[i].result.bound;
    return least;
}

static tsr_status plan_all(struct blocks *b)
{
    for (size_t i = 0; i < b->n; i++) {
        if (tsr__budget_over(b->p->budget) && best_of(b))
            break;
        tsr_status st = plan_block(b, &b->at[i]);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// All but one, whose rules and names the chosen nodes have.
static void free_others(struct blocks *b, const struct planner *kept)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->at[i].made && &b->at[i].planner != kept)
            tsr__planner_end(&b->at[i].planner);
}

// Takes the best block that can be told, if it beats what is there.
static tsr_status take_best(struct blocks *b, struct program_result *all, struct block_choice *out)
{
    struct planner *p = b->p;
    int64_t bound = least_bound(b, PLAN_NEVER);
    for (struct block_plan *best = best_of(b); best; best = best_of(b)) {
        bool better = !all->feasible || (p->exceeds && !best->planner.exceeds) ||
                      (p->exceeds == best->planner.exceeds && best->cost < all->cost);
        if (!better)
            return TSR_OK;
        if (!lift_all(b, best)) {
            if (p->arena.failed)
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
        p->staged = true;
        p->exceeds = best->planner.exceeds;
        p->block = &best->planner;
        return tell_block(b, best, out) ? TSR_OK : TSR_NOMEM;
    }
    return TSR_OK;
}

// Other wishes want the devices as they are.
static bool may_choose(const struct planner *p, const tsr_plan_options *o)
{
    return !p->config && !o->export_lp && !o->explain && !o->n_state && !p->states.n;
}

bool tsr__blocks_only(const struct planner *p, const tsr_plan_options *o)
{
    return p->n > BLOCK_MOST && may_choose(p, o) && tsr__planner_alike(p);
}

tsr_status tsr__plan_blocks(struct planner *p, const tsr_plan_options *o,
                            struct program_result *all, struct block_choice *out)
{
    struct blocks *b = ARENA_NEW(&p->arena, struct blocks);
    bool large = tsr__blocks_only(p, o);
    *out = (struct block_choice){0};
    if (!b)
        return TSR_NOMEM;
    if (!may_choose(p, o) || (!large && tsr__planner_alike(p)))
        return TSR_OK;
    b->p = p;
    b->o = o;
    if (large)
        find_batch(b);
    bool listed = large ? list_alike(b) : list_fast(b);
    tsr_status st = listed ? plan_all(b) : TSR_NOMEM;
    if (st == TSR_OK)
        st = take_best(b, all, out);
    free_others(b, p->block);
    return st;
}

tsr_status tsr__plan_best_device(struct planner *p, const tsr_plan_options *o, int64_t *time)
{
    struct blocks *b = ARENA_NEW(&p->arena, struct blocks);
    int64_t best = 0;
    *time = 0;
    if (!b)
        return TSR_NOMEM;
    b->p = p;
    b->o = o;
    for (int64_t d = 1; d < p->n; d++)
        best = speed_of(p, d) > speed_of(p, best) ? d : best;
    tsr_status st = add_block(b, &best, 1, 1) ? plan_block(b, &b->at[0]) : TSR_NOMEM;
    if (st == TSR_OK && b->at[0].result.feasible && !b->at[0].planner.exceeds)
        *time = b->at[0].cost;
    free_others(b, NULL);
    return st;
}
