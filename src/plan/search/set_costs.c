// SPDX-License-Identifier: Apache-2.0
// set_costs.c - computes the costs of copies of a device set in addition to their own computation.
// Copies slice their shares out of the inputs, add up sums over the batch, and gather the outputs
// on the first device. A set without the first device is one pipeline stage, which returns the
// outputs itself.
#include "plan/search/device_sets.h"

#include <math.h>

#define REPLICATED 0 // the candidate that every strategy has: replicated on all devices of the set

// Finds the batch dimension by comparing sizes. Example: with 4 copies, a value of [64, 512] in the
// model and [16, 512] in the set has the batch in dimension 0. If two dimensions differ, or one by
// another factor, the result is BATCH_UNCLEAR.
int tsr__set_batch_dim(const struct set_model *model, const tsr_value *value)
{
    const struct plan_value *all = &model->all->values[tsr__value_id(value)];
    const struct plan_value *part = &model->part->values[tsr__value_id(value)];
    int found = BATCH_NOWHERE, rank = all->rank < part->rank ? all->rank : part->rank;
    for (int d = 0; d < rank; d++) {
        if (all->shape[d] == part->shape[d])
            continue;
        if (found >= 0 || all->shape[d] != part->shape[d] * model->set->copies)
            return BATCH_UNCLEAR;
        found = d;
    }
    return found;
}

// ---- nodes that the copies divide --------------------------------------------------------------

// Returns the layout of the value on two copies of the set. Two are enough: whether the sharding of
// a node is possible does not depend on the number of copies, because the model has no number for
// the batch size. NULL: the batch dimension is ambiguous, or out of memory.
static struct tile_layout *on_two_copies(const struct set_model *model, struct arena *arena,
                                         const tsr_value *value, uint32_t layout)
{
    struct tile_repeat two = {.copies = 2, .devices = model->set->n};
    int dim = tsr__set_batch_dim(model, value);
    if (dim == BATCH_UNCLEAR)
        return NULL;
    return tsr__layout_repeat(arena, model->part->layouts.at[layout].tiles, &two, dim);
}

// The layouts of a node's tensors on two copies, by input and output. NULL: the tensor is absent or
// is a small control input. `made` has the outputs before reductions.
struct copied_layouts {
    struct tile_layout **in, **out, **made;
};

// Computes the layouts. False: a batch dimension is ambiguous, or out of memory.
static bool copy_layouts(const struct set_model *model, struct arena *arena,
                         const struct plan_node *node, const struct candidate *candidate,
                         struct copied_layouts *copied)
{
    size_t n_in = tsr_node_input_count(node->node), n_out = tsr_node_output_count(node->node);
    copied->in = ARENA_ARRAY(arena, struct tile_layout *, n_in + 1);
    copied->out = ARENA_ARRAY(arena, struct tile_layout *, n_out + 1);
    copied->made = ARENA_ARRAY(arena, struct tile_layout *, n_out + 1);
    if (arena->failed)
        return false;
    for (size_t i = 0; i < n_in; i++) {
        const tsr_value *value = tsr_node_input(node->node, i);
        if (!value || rule_steers(node->rule, SIDE_INPUT, i))
            continue;
        copied->in[i] = on_two_copies(model, arena, value, candidate->in[i]);
        if (!copied->in[i])
            return false;
    }
    for (size_t i = 0; i < n_out; i++) {
        const tsr_value *value = tsr_node_output(node->node, i);
        if (!value)
            continue;
        copied->out[i] = copied->made[i] = on_two_copies(model, arena, value, candidate->out[i]);
        if (candidate->before[i] != PLAN_NO_LAYOUT)
            copied->made[i] = on_two_copies(model, arena, value, candidate->before[i]);
        if (!copied->out[i] || !copied->made[i])
            return false;
    }
    return true;
}

static bool has_layouts(struct arena *arena, const struct placement *placement,
                        const struct rule_tensor *tensors, struct tile_layout *const *layouts,
                        size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!layouts[i])
            continue;
        const struct tile_layout *got = tsr__placement_project(arena, placement, &tensors[i]);
        if (!got || !tsr__layout_equal(got, layouts[i]))
            return false;
    }
    return true;
}

// True if sharding inference derives the layouts of two copies again from the shardings that would
// be written, as candidates.c requires for the devices of one set. Nodes of bodies cannot shard the
// batch if they compute statistics over it, because they are not replaced by simpler ones.
static bool comes_back(const struct set_model *model, struct arena *arena,
                       const struct plan_node *node, const struct rule *rule,
                       const struct copied_layouts *copied)
{
    struct placement again;
    return rule &&
           tsr__placement_explicit(arena, arena, node->node, model->part->shapes.model, rule,
                                   2 * model->set->n, copied->in, copied->out,
                                   node->strategy->inside, &again) &&
           has_layouts(arena, &again, again.rule->inputs, copied->in,
                       tsr_node_input_count(node->node)) &&
           has_layouts(arena, &again, again.rule->outputs, copied->made,
                       tsr_node_output_count(node->node));
}

// Returns the batch dimension of an inner value as one of the outer value, which also has `axis`.
static int outer_dim(int dim, int axis)
{
    return dim >= 0 && axis >= 0 && dim >= axis ? dim + 1 : dim;
}

// True if the values at the border have the batch in the same dimension outside and inside.
static bool is_alike_inside(const struct set_model *model, const struct plan_node *node)
{
    const struct plan_border *border = node->border;
    const tsr_value *outer = border->leaves ? tsr__plan_made(node, 0) : tsr__plan_read(node, 0);
    size_t n = border->leaves ? tsr__plan_reads(node) : 1;
    int dim = BATCH_UNCLEAR, axis = -1;
    if (outer) {
        axis = tsr__border_axis(border, model->part->values[tsr__value_id(outer)].rank);
        dim = tsr__set_batch_dim(model, outer);
    }
    for (size_t k = 0; k < n; k++) {
        int inner = tsr__set_batch_dim(model, border->leaves ? tsr__plan_read(node, k)
                                                             : tsr__plan_made(node, 0));
        if (inner == BATCH_UNCLEAR || (outer && outer_dim(inner, axis) != dim))
            return false;
    }
    return true;
}

// True if the copies divide the batch at all borders of the bodies. A loop over the batch, for
// example, has the same values inside in every copy, but stacks other results.
static bool divides_borders(const struct set_model *model, const struct plan_bodies *bodies,
                            size_t owner)
{
    const struct plan_node *nodes = model->part->nodes;
    for (size_t k = 0; k < bodies->n_enter; k++)
        if (!is_alike_inside(model, &nodes[enter_border(bodies, owner, k)]))
            return false;
    for (size_t k = 0; k < bodies->n_leave; k++)
        if (!is_alike_inside(model, &nodes[leave_border(bodies, owner, k)]))
            return false;
    return true;
}

// True if each copy can compute its share of the batch with that candidate. Equal nodes share the
// result.
static bool divides(const struct set_model *model, const struct plan_node *node, uint32_t choice)
{
    struct candidate *candidate = &node->strategy->at.at[choice];
    if (node->border)
        return divides_borders(model, node->border->bodies,
                               border_owner(node->border, (size_t)(node - model->part->nodes)));
    if (node->strategy->whole)
        return false;
    if (candidate->copies != COPIES_UNKNOWN)
        return candidate->copies == COPIES_DIVIDE;
    struct arena scratch = {.session = model->part->session};
    struct copied_layouts copied;
    bool ok = copy_layouts(model, &scratch, node, candidate, &copied) &&
              (comes_back(model, &scratch, node, node->strategy->rule, &copied) ||
               comes_back(model, &scratch, node, node->strategy->other, &copied));
    tsr__arena_free(&scratch);
    candidate->copies = ok ? COPIES_DIVIDE : COPIES_REPEAT;
    return ok;
}

// Examples of nodes that copies do not divide: Expand(X, shape) repeats X along the batch, so the
// batch dimension of the result has no factor. Reshape from [batch, seq, 64] to [batch*seq, 64]
// would need the sizes of batch and seq to compute the bounds of the shares.
bool tsr__set_divides(const struct set_model *model, const struct plan_node *node)
{
    return divides(model, node, REPLICATED) &&
           (node->choice == REPLICATED || divides(model, node, node->choice));
}

// Returns the time to gather a value on the first device of the set. The first device of each copy
// has a share of the value.
static int64_t gather_value_time(const struct set_model *model, const tsr_value *value, int dim)
{
    struct planner *all = model->all;
    const struct plan_value *plan_value = &all->values[tsr__value_id(value)];
    struct tile_repeat repeat = {model->set->copies, model->set->n, model->set->devices};
    int64_t ps = PLAN_NEVER, first = 0;
    if (dim < 0 || all->machine.n > EXACT_MOST)
        return tsr__gather_cost(all->machine.topology, model->set->n, model->set->copies,
                                tsr__value_bytes(all, value));
    struct arena scratch = {.session = all->session};
    struct tile_layout *one = tsr__layout_whole(&scratch, plan_value->rank, &first, 1);
    struct tile_layout *to = tsr__layout_whole(&scratch, plan_value->rank, model->set->devices, 1);
    struct tile_layout *shares = one ? tsr__layout_repeat(&scratch, one, &repeat, dim) : NULL;
    if (shares && to)
        ps = tsr__resharding_time(all, tsr__planner_layout(all, shares),
                                  tsr__planner_layout(all, to), plan_value);
    tsr__arena_free(&scratch);
    return ps;
}

// Returns the time of gathering all outputs on the first device. Caches stay in their copy.
static int64_t gather_time(const struct set_model *model)
{
    struct planner *planner = model->all;
    const tsr_graph *graph = tsr_model_graph(planner->model);
    int64_t ps = 0;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        int dim = tsr__set_batch_dim(model, value);
        if (planner_stays(planner, value) || dim == BATCH_NOWHERE)
            continue; // every copy computes the full value
        ps = int64_min(ps + gather_value_time(model, value, dim), PLAN_NEVER);
    }
    return ps;
}

// True if the chosen candidate of the node reads the full value.
static bool reads_full(const struct planner *planner, const struct plan_node *node,
                       const tsr_value *value)
{
    if (!node->strategy)
        return false;
    for (size_t i = 0; i < tsr__plan_reads(node); i++) {
        uint32_t layout = node->strategy->at.at[node->choice].in[i];
        if (tsr__plan_read(node, i) == value && layout != PLAN_NO_LAYOUT &&
            tsr__layout_is_whole(planner->layouts.at[layout].tiles))
            return true;
    }
    return false;
}

static bool some_node_reads_full(const struct planner *planner, const tsr_value *value)
{
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (reads_full(planner, &planner->nodes[i], value))
            return true;
    return false;
}

// Returns the time of slicing one copy's share out of a value that the copy has in full.
static int64_t slice_value_time(const struct set_model *model, const tsr_value *value)
{
    const struct planner *planner = model->part;
    const struct plan_value *part = &planner->values[tsr__value_id(value)];
    double bytes = (double)tsr__value_bytes(planner, value), elements = 8 * bytes / part->bits;
    return tsr__work_cost(elements, tsr__slice_kind(planner->machine.topology, part), 2 * bytes,
                          &planner->machine.slowest);
}

// True if an earlier node, or an earlier input of the node, reads the value in that layout.
static bool read_earlier(const struct planner *planner, size_t node, size_t slot,
                         const tsr_value *value, uint32_t layout)
{
    for (size_t k = 0; k <= node; k++) {
        const struct plan_node *at = &planner->nodes[k];
        size_t n = k == node ? slot : tsr__plan_reads(at);
        for (size_t i = 0; i < n && at->strategy; i++)
            if (tsr__plan_read(at, i) == value && at->strategy->at.at[at->choice].in[i] == layout)
                return true;
    }
    return false;
}

// Returns the time by which slicing an input takes longer in all copies than in one. If the batch
// has no known size, the shard along the other axes is sliced first, out of all copies' shares, and
// then the share of the copy (partition/emit/emit_slice.c). One copy is charged for its share only.
static int64_t slice_all_time(const struct set_model *model, const tsr_value *value)
{
    struct planner *part = model->part;
    const struct plan_value *plan_value = &part->values[tsr__value_id(value)];
    int dim = tsr__set_batch_dim(model, value);
    int64_t ps = 0;
    if (dim < 0 || plan_value->open[dim] >= 0)
        return 0;
    struct arena scratch = {.session = part->session};
    struct tile_layout *full =
        tsr__layout_whole(&scratch, plan_value->rank, part->machine.all, (size_t)part->machine.n);
    uint32_t from = full ? tsr__planner_layout(part, full) : PLAN_NO_LAYOUT;
    tsr__arena_free(&scratch);
    for (size_t k = 0; k < part->n_nodes && from != PLAN_NO_LAYOUT; k++) {
        const struct plan_node *node = &part->nodes[k];
        for (size_t i = 0; i < tsr__plan_reads(node) && node->strategy; i++) {
            uint32_t want = node->strategy->at.at[node->choice].in[i];
            if (tsr__plan_read(node, i) != value || want == PLAN_NO_LAYOUT ||
                tsr__layout_is_whole(part->layouts.at[want].tiles) ||
                part->layouts.at[want].tiles->dims[dim].n > 0 ||
                read_earlier(part, k, i, value, want))
                continue;
            ps = int64_min(ps + times_ps(tsr__resharding_time(part, from, want, plan_value),
                                         model->set->copies),
                           PLAN_NEVER);
        }
    }
    return ps;
}

// Returns the time of slicing the shares of copies out of the inputs. Nodes that read a shard slice
// it in any case, so only inputs that are read in full are charged, and what slicing the shard
// takes longer.
static int64_t slice_time(const struct set_model *model)
{
    const struct planner *planner = model->part;
    const tsr_graph *graph = tsr_model_graph(planner->model);
    int64_t ps = 0;
    if (model->set->copies <= 1)
        return 0;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        if (planner_stays(model->all, value))
            continue;
        if (some_node_reads_full(planner, value) && tsr__set_batch_dim(model, value) >= 0)
            ps += slice_value_time(model, value);
        ps = int64_min(ps + slice_all_time(model, value), PLAN_NEVER);
    }
    return ps;
}

// ---- sums over the batch -----------------------------------------------------------------------

bool tsr__set_reduces_batch(const struct set_model *model, const struct plan_node *node,
                            size_t slot)
{
    const tsr_value *out = tsr_node_output(node->node, slot);
    if (!out || rule_steers(node->rule, SIDE_OUTPUT, slot) ||
        tsr__set_batch_dim(model, out) != BATCH_NOWHERE)
        return false;
    for (size_t i = 0; i < tsr_node_input_count(node->node); i++) {
        const tsr_value *in = tsr_node_input(node->node, i);
        if (in && !rule_steers(node->rule, SIDE_INPUT, i) && tsr__set_batch_dim(model, in) >= 0)
            return true;
    }
    return false;
}

// Returns the time of a collective among the copies of each device, all at the same time. If
// topology->window is set, the topology lists only the links of that number of devices, and only
// the copies on them are included.
static int64_t copies_time(const struct set_model *model, enum tsr_collective what, int64_t bytes)
{
    tsr_topology *topology = model->all->machine.topology;
    int64_t copies = model->set->copies, ps = PLAN_NEVER;
    if (topology->window)
        copies = int64_min(copies, topology->window / model->set->n);
    struct arena scratch = {.session = model->all->session};
    int *devices = ARENA_ARRAY(&scratch, int, (size_t)(model->set->n * copies) + 1);
    if (!devices)
        goto free_scratch;
    for (int64_t device = 0; device < model->set->n; device++)
        for (int64_t copy = 0; copy < copies; copy++)
            devices[device * copies + copy] =
                (int)(copy * model->set->n + model->set->devices[device]);
    struct topology_groups groups = {(int)model->set->n, (int)copies, devices};
    ps = tsr__collective_cost(topology, what, &groups, bytes);
free_scratch:
    tsr__arena_free(&scratch);
    return ps;
}

// Number and time of all sums over the batch.
struct sums {
    size_t n;
    int64_t ps;
};

static struct sums sums_of(const struct set_model *model)
{
    const struct planner *planner = model->part;
    struct sums sums = {0};
    if (model->set->copies <= 1)
        return sums;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy || node->border || !tsr__set_divides(model, node))
            continue;
        for (size_t slot = 0; slot < tsr__plan_makes(node); slot++) {
            uint32_t layout = node->strategy->at.at[node->choice].out[slot];
            if (layout == PLAN_NO_LAYOUT || !tsr__set_reduces_batch(model, node, slot))
                continue;
            const struct plan_value *value =
                &planner->values[tsr__value_id(tsr_node_output(node->node, slot))];
            int64_t bytes = tsr__planner_bytes(planner, layout, value);
            int64_t ps = times_ps(copies_time(model, TSR_ALL_REDUCE, bytes), value->times);
            sums.ps = int64_min(sums.ps + ps, PLAN_NEVER);
            sums.n++;
        }
    }
    return sums;
}

size_t tsr__set_sums(const struct set_model *model)
{
    return sums_of(model).n;
}

// ---- decisions ---------------------------------------------------------------------------------

// Returns the time of broadcasting a decision to all copies, as often as it is taken; 0: all
// devices compute the same bits.
static int64_t decision_time(const struct set_model *model, const tsr_value *value)
{
    if (!value || tsr__control_exact(model->part->shapes.model, value))
        return 0;
    return times_ps(copies_time(model, TSR_BROADCAST, 1),
                    model->part->values[tsr__value_id(value)].times);
}

// Returns the time of the broadcasts for bodies of which each copy computes a share.
static int64_t decisions_time(const struct set_model *model)
{
    const struct planner *planner = model->part;
    int64_t ps = 0;
    for (size_t i = 0; i < planner->n_nodes && model->set->copies > 1; i++) {
        const struct plan_node *node = &planner->nodes[i];
        bool shared = false;
        if (!node->bodies || node->bodies->exact || !node->strategy)
            continue;
        for (size_t k = bodies_begin(node->bodies, i); k < i && !shared; k++)
            shared = planner->nodes[k].strategy && !planner->nodes[k].border &&
                     tsr__set_divides(model, &planner->nodes[k]);
        for (size_t k = 0; k < tsr__plan_reads(node) && shared; k++)
            ps += decision_time(model, tsr__plan_read(node, k));
        if (shared && node->bodies->control.condition)
            ps += decision_time(model, tsr_graph_output(node->bodies->control.bodies[0], 0));
    }
    return int64_min(ps, PLAN_NEVER);
}

// Returns the time of moving axes at borders that only the copies shard.
static int64_t borders_time(const struct set_model *model)
{
    const struct planner *planner = model->part;
    int64_t ps = 0;
    for (size_t i = 0; i < planner->n_nodes && model->set->copies > 1; i++) {
        const struct plan_node *node = &planner->nodes[i];
        const tsr_value *made = node->border ? tsr__plan_made(node, 0) : NULL;
        if (!made || !node->strategy || node->strategy->at.at[node->choice].cut ||
            tsr__set_batch_dim(model, made) < 0 || !tsr__set_divides(model, node))
            continue;
        const struct candidate *candidate = &node->strategy->at.at[node->choice];
        ps += tsr__border_transposed(planner, node,
                                     node->border->leaves ? candidate->out[0] : candidate->in[0]);
    }
    return int64_min(ps, PLAN_NEVER);
}

// ---- nodes that cannot share the batch ---------------------------------------------------------

// True if the copies have different shares of the value.
static bool is_divided(const struct set_model *model, const tsr_value *value)
{
    int64_t at = tsr__planned_producer(model->part, value);
    return at >= 0 && tsr__set_batch_dim(model, value) != BATCH_NOWHERE &&
           tsr__set_divides(model, &model->part->nodes[at]);
}

// Returns the time of gathering the inputs of a node that every copy computes in full.
static int64_t regather_time(const struct set_model *model, const struct plan_node *node)
{
    int64_t ps = 0;
    for (size_t k = 0; k < tsr__plan_reads(node); k++) {
        const tsr_value *value = tsr__plan_read(node, k);
        if (!value ||
            (!node->border &&
             (rule_steers(node->rule, SIDE_INPUT, k) || read_before(node->node, k))) ||
            !is_divided(model, value))
            continue;
        int64_t gather = copies_time(model, TSR_ALL_GATHER, tsr__value_bytes(model->all, value));
        ps = int64_min(ps + times_ps(gather, model->all->values[tsr__value_id(value)].times),
                       PLAN_NEVER);
    }
    return ps;
}

// Returns how much larger the full node is than the share of one copy, by the sizes of its tensors.
// 1: the node does not read the batch. Examples: 8 for a batch in 8 copies, and 64 for scores
// [rows, rows] if the copies divide the rows by 8.
static double growth(const struct set_model *model, const struct plan_node *node)
{
    double most = 1;
    bool reads = false;
    for (int side = SIDE_INPUT; side <= SIDE_OUTPUT; side++) {
        size_t n = side == SIDE_OUTPUT ? tsr__plan_makes(node) : tsr__plan_reads(node);
        for (size_t i = 0; i < n; i++) {
            const tsr_value *value = plan_value_at(node, (enum slot_side)side, i);
            if (!value || tsr__set_batch_dim(model, value) == BATCH_NOWHERE)
                continue;
            reads = reads || side == SIDE_INPUT;
            most = fmax(most, (double)tsr__value_bytes(model->all, value) /
                                  fmax((double)tsr__value_bytes(model->part, value), 1));
        }
    }
    return reads ? most : 1;
}

// A model, and whether a reader of a value was found that the copies divide.
struct divided_reader {
    const struct set_model *model;
    bool found;
};

// Called for each reader of a value. Stops at one that the copies divide.
static bool find_divided(void *data, tsr_node *node, size_t input)
{
    struct divided_reader *reader = data;
    const struct planner *part = reader->model->part;
    int64_t at = part->node_at[tsr__node_id(node)];
    (void)input;
    reader->found =
        at >= 0 && part->nodes[at].strategy && tsr__set_divides(reader->model, &part->nodes[at]);
    return !reader->found;
}

// Returns the time of slicing shares out of the results of a node that every copy computes in full,
// for readers that the copies divide.
static int64_t reslice_time(const struct set_model *model, const struct plan_node *node)
{
    int64_t ps = 0;
    for (size_t i = 0; i < tsr__plan_makes(node); i++) {
        const tsr_value *value = tsr__plan_made(node, i);
        if (!value || tsr__set_batch_dim(model, value) < 0)
            continue;
        struct divided_reader reader = {.model = model};
        tsr_value_uses(value, find_divided, &reader);
        if (reader.found)
            ps += times_ps(slice_value_time(model, value),
                           model->all->values[tsr__value_id(value)].times);
    }
    return ps;
}

int64_t tsr__set_full_time(const struct set_model *model, const struct plan_node *node)
{
    int64_t compute = node->strategy->at.at[node->choice].compute;
    int64_t overhead = whole_number(1e12 * model->part->machine.slowest.overhead);
    int64_t fixed = int64_min(compute, times_ps(overhead, node->times));
    return fixed + whole_number((double)(compute - fixed) * growth(model, node));
}

// Returns the additional time of all nodes that the copies do not divide. Every copy gathers the
// inputs of such a node. With `computes`, includes the time of computing the full node instead of
// one copy's share, and of slicing its results.
static int64_t undivided_time(const struct set_model *model, bool computes)
{
    int64_t ps = 0;
    for (size_t i = 0; i < model->part->n_nodes && model->set->copies > 1; i++) {
        const struct plan_node *node = &model->part->nodes[i];
        if (!node->strategy ||
            (computes ? tsr__set_divides(model, node) : divides(model, node, REPLICATED)))
            continue;
        ps = int64_min(ps + regather_time(model, node), PLAN_NEVER);
        if (computes)
            ps = int64_min(ps + reslice_time(model, node) + tsr__set_full_time(model, node) -
                               node->strategy->at.at[node->choice].compute,
                           PLAN_NEVER);
    }
    return ps;
}

// Returns the bytes of a node's tensors beyond the share of one copy.
static int64_t bytes_beyond(const struct set_model *model, const struct plan_node *node)
{
    int64_t bytes = 0;
    for (int side = SIDE_INPUT; side <= SIDE_OUTPUT; side++) {
        size_t n = side == SIDE_OUTPUT ? tsr__plan_makes(node) : tsr__plan_reads(node);
        for (size_t i = 0; i < n; i++) {
            const tsr_value *value = plan_value_at(node, (enum slot_side)side, i);
            if (value && tsr__set_batch_dim(model, value) != BATCH_NOWHERE)
                bytes += tsr__value_bytes(model->all, value) - tsr__value_bytes(model->part, value);
        }
    }
    return bytes;
}

// Returns the largest result of bytes_beyond for a node that the copies do not divide.
static int64_t undivided_bytes(const struct set_model *model)
{
    int64_t most = 0;
    for (size_t i = 0; i < model->part->n_nodes && model->set->copies > 1; i++) {
        const struct plan_node *node = &model->part->nodes[i];
        if (node->strategy && !tsr__set_divides(model, node))
            most = int64_max(most, bytes_beyond(model, node));
    }
    return most;
}

// Returns the bytes of the full inputs beyond one copy's share. Each device keeps them during the
// run, but the plan of the set charges only the share.
int64_t tsr__set_input_bytes(const struct set_model *model)
{
    const tsr_graph *graph = tsr_model_graph(model->part->model);
    int64_t bytes = 0;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        int64_t full = tsr__value_bytes(model->all, value);
        if (!planner_stays(model->all, value) && tsr__set_batch_dim(model, value) >= 0)
            bytes = int64_min(bytes + full - tsr__value_bytes(model->part, value), PLAN_NEVER);
    }
    return bytes;
}

int64_t tsr__set_more_bytes(const struct set_model *model)
{
    return int64_min(undivided_bytes(model) + tsr__set_input_bytes(model), PLAN_NEVER);
}

// Returns the bytes on the first device while it gathers the outputs, without weights and caches.
// These are its copy's share of inputs and outputs, and the full outputs.
static int64_t gathering_bytes(const struct set_model *model)
{
    const tsr_graph *graph = tsr_model_graph(model->all->model);
    int64_t bytes = 0;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        if (!planner_stays(model->all, value) && !tsr_value_initializer(value))
            bytes = int64_min(bytes + tsr__value_bytes(model->part, value), PLAN_NEVER);
    }
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        if (!planner_stays(model->all, value) && tsr__set_batch_dim(model, value) != BATCH_NOWHERE)
            bytes = int64_min(bytes + tsr__value_bytes(model->all, value) +
                                  tsr__value_bytes(model->part, value),
                              PLAN_NEVER);
    }
    return bytes;
}

// True if every device has enough memory, or if there are no copies or no limit to check. The
// program of the set respects the limit only for the share of one copy. Each device needs more
// memory for the copies, and the first device gathers the outputs. Returns false if out of memory.
bool tsr__set_fits(const struct set_model *model, int64_t reserved)
{
    struct planner *part = model->part;
    int64_t more = tsr__set_more_bytes(model) - reserved, n = part->machine.n;
    bool fits = false;
    if (model->set->copies <= 1 || part->memory.n_classes == 0 || part->memory.may_exceed)
        return true;
    struct arena scratch = {.session = part->session};
    unsigned char *shared =
        ARENA_ARRAY(&scratch, unsigned char, tsr__model_value_ids(part->model) + 1);
    int64_t *own = ARENA_ARRAY(&scratch, int64_t, (size_t)n);
    int64_t *most = ARENA_ARRAY(&scratch, int64_t, (size_t)n);
    if (shared && own && most && tsr__planner_add_own(part, shared, own) &&
        tsr__planner_memory(part, most, NULL)) {
        most[0] = int64_max(most[0], own[0] + gathering_bytes(model));
        fits = true;
        for (int64_t i = 0; i < n; i++)
            fits = fits && most[i] + more <= part->memory.bytes[part->memory.class_of[i]];
    }
    tsr__arena_free(&scratch);
    return fits;
}

int64_t tsr__set_copies_time(const struct set_model *model)
{
    return gather_time(model) + slice_time(model) + sums_of(model).ps +
           tsr__set_unplayed_time(model) + undivided_time(model, true);
}

int64_t tsr__set_unplayed_time(const struct set_model *model)
{
    return decisions_time(model) + borders_time(model);
}

// Returns a lower bound for the additional time of copies. On a set of one device each node has one
// candidate, so the bound is exact.
int64_t tsr__set_least_time(const struct set_model *model)
{
    if (model->set->n == 1)
        return tsr__set_copies_time(model);
    return gather_time(model) + undivided_time(model, false);
}
