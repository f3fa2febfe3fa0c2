// SPDX-License-Identifier: Apache-2.0
// candidates.c - makes one candidate of a node: turns a placement of its rule's factors on the
// devices into layouts and a cost.
//
// Partial sums are combined on all devices, or each device keeps its share (reduce-scatter), or the
// first device gets the sum. Or the sums stay partial, for readers that can add them. Sharding
// inference must reproduce every candidate from its layouts; otherwise the written model would have
// another meaning. Nothing here depends on the operator.
//
// Example: Y = X W on devices 0 and 1, X [8, 6] and W [6, 4]; factors m 8, k 6, n 4. The placement
// shards k in 2, so X has {1, 2}, W has {2, 1}, and each device has a partial sum Y [8, 4]. There
// are up to four candidates:
//
//     "k/2"                 AllReduce: Y replicated                        each device gets 32 sums
//     "k/2 > m"             ReduceScatter: device 1 has rows 4..7 of Y     each device gets 16 sums
//     "k/2 > first device"  Reduce: Y on device 0, if only the caller reads it
//     "k/2 > parts"         nothing: Y stays partial, if its readers can add it (partial_sums.c)
#include "plan/candidates/candidates.h"

#include <math.h>

// Returns a builder. Callers set `place`, then call tsr__builder_take. `arena` holds temporary
// data; data of finished candidates is in the planner's arena.
struct candidate_builder tsr__builder_init(struct planner *planner, struct strategy *strategy,
                                           const tsr_node *node, struct arena *arena)
{
    return (struct candidate_builder){.planner = planner,
                                      .strategy = strategy,
                                      .rule = strategy->rule,
                                      .node = node,
                                      .arena = arena,
                                      .n_in = tsr_node_input_count(node),
                                      .n_out = tsr_node_output_count(node)};
}

// ---- layouts of a placement --------------------------------------------------------------------

// Computes the layouts of a node's tensors under a placement. Absent tensors stay NULL. False: out
// of memory.
static bool project(struct candidate_builder *builder, const struct placement *placement,
                    struct tile_layout **in, struct tile_layout **out)
{
    for (size_t i = 0; i < builder->n_in; i++)
        if (tsr_node_input(builder->node, i)) {
            in[i] = tsr__placement_project(builder->arena, placement, &placement->rule->inputs[i]);
            if (!in[i])
                return false;
        }
    for (size_t i = 0; i < builder->n_out; i++)
        if (tsr_node_output(builder->node, i)) {
            out[i] =
                tsr__placement_project(builder->arena, placement, &placement->rule->outputs[i]);
            if (!out[i])
                return false;
        }
    return true;
}

// True if all layouts of x equal those of y. Absent tensors (NULL in x) are not compared.
static bool same(struct tile_layout *const *x, struct tile_layout *const *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] && !tsr__layout_equal(x[i], y[i]))
            return false;
    return true;
}

// True if inputs with the same value have the same layout: a node has only one sharding per value.
static bool readings_agree(const struct candidate_builder *builder)
{
    for (size_t i = 0; i < builder->n_in; i++) {
        int64_t k = builder->in[i] ? tsr__earlier_reading(builder->node, i) : -1;
        if (k >= 0 && !tsr__layout_equal(builder->in[i], builder->in[k]))
            return false;
    }
    return true;
}

// True if sharding inference derives the layouts of the candidate again from the specs that the
// candidate would write into the model. `out` holds the output layouts of these specs.
static bool comes_back(struct candidate_builder *builder, struct tile_layout *const *out)
{
    struct tile_layout **in = ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_in + 1);
    struct tile_layout **got_in =
        ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_in + 1);
    struct tile_layout **got =
        ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_out + 1);
    struct placement again;
    if (!in || !got_in || !got)
        return false;
    for (size_t i = 0; i < builder->n_in; i++)
        if (!rule_steers(builder->place.rule, SIDE_INPUT, i))
            in[i] = builder->in[i];
    return tsr__placement_explicit(builder->arena, builder->arena, builder->node,
                                   builder->planner->shapes.model, builder->rule,
                                   builder->planner->machine.n, in, out, !builder->stat, &again) &&
           project(builder, &again, got_in, got) && same(in, got_in, builder->n_in) &&
           same(builder->out, got, builder->n_out);
}

// ---- costs -------------------------------------------------------------------------------------

// Sizes of the factors: full sizes, and local sizes of the device with index `place` in the
// placement. With LARGEST_PART, `local` is for the largest shard. Example: 10 rows in 4 shards give
// 3.
struct part_sizes {
    int64_t full[RULE_MAX_FACTORS], local[RULE_MAX_FACTORS];
};

static void part_sizes(const struct candidate_builder *builder, int64_t place,
                       struct part_sizes *out)
{
    const struct placement *placement = &builder->place;
    tsr__planner_sizes(builder->planner->shapes.full, builder->node, placement->rule, out->full);
    for (int factor = 0; factor < placement->rule->n_factors; factor++) {
        out->full[factor] = out->full[factor] < 0 ? 1 : out->full[factor]; // unknown size
        out->local[factor] = div_up(out->full[factor], placement->cuts[factor]);
        if (place == LARGEST_PART)
            continue;
        struct tile_interval part = placement_part(placement, place, factor, out->full[factor]);
        out->local[factor] = part.stop - part.start;
    }
}

// Returns the number of operations of the device with index `place` in the placement.
static double local_work(const struct candidate_builder *builder, int64_t place)
{
    struct part_sizes sizes;
    part_sizes(builder, place, &sizes);
    return tsr__node_work(builder->place.rule, builder->strategy->count, sizes.full, sizes.local);
}

int64_t tsr__builder_bytes(struct candidate_builder *builder, struct tile_layout *layout,
                           const struct plan_value *value)
{
    uint32_t number = tsr__planner_layout(builder->planner, layout);
    return tsr__planner_bytes(builder->planner, number, value);
}

#define ROUTE_NODES 26 // nodes that emit_route.c adds to a mixture of experts
#define ROUTE_MOVES 6  // number of times that they read or write the tokens

// Returns the time of the nodes that select the tokens of local experts; 0: experts are not
// sharded.
static int64_t route_time(struct candidate_builder *builder)
{
    const struct planner *planner = builder->planner;
    const struct rule *rule = builder->place.rule;
    for (int i = 0; i < rule->n_rewrites; i++) {
        const struct rule_rewrite *rewrite = &rule->rewrites[i];
        if (rewrite->kind != REWRITE_ROUTE || builder->place.cuts[rewrite->factor] < 2)
            continue;
        int64_t tokens =
            tsr__builder_bytes(builder, builder->out[0], value_at(builder, SIDE_OUTPUT, 0));
        return ROUTE_NODES *
                   tsr__work_cost(0, builder->strategy->kind, 0, &planner->machine.slowest) +
               tsr__planner_move_time(planner, ROUTE_MOVES * (double)tokens);
    }
    return 0;
}

#define LOOKUP_NODES 10 // nodes that emit_lookup.c adds to a lookup or update of sharded rows
#define INDEX_MOVES  13 // number of times that they read or write the indices, as int64
#define RESULT_MOVES 2  // ... the result of a lookup
#define TABLE_MOVES  4  // ... the table of an update

// Returns the time of the nodes that convert indices to local rows, and that set results of other
// devices' rows to 0; 0: no table is sharded along its rows.
static int64_t lookup_time(struct candidate_builder *builder)
{
    const struct planner *planner = builder->planner;
    const struct rule *rule = builder->place.rule;
    int64_t ps = 0;
    for (int i = 0; i < rule->n_rewrites; i++) {
        const struct rule_rewrite *rewrite = &rule->rewrites[i];
        bool updates = rewrite->kind == REWRITE_SCATTER;
        if ((rewrite->kind != REWRITE_LOOKUP && !updates) ||
            builder->place.cuts[rewrite->factor] < 2)
            continue;
        const struct plan_value *index = value_at(builder, SIDE_INPUT, (size_t)rewrite->input);
        double bytes = (double)tsr__builder_bytes(builder, builder->in[rewrite->input], index) *
                       64 / (double)index->bits * INDEX_MOVES;
        if (updates)
            bytes += TABLE_MOVES * (double)tsr__builder_bytes(builder, builder->in[0],
                                                              value_at(builder, SIDE_INPUT, 0));
        else
            bytes += RESULT_MOVES * (double)tsr__builder_bytes(builder, builder->out[0],
                                                               value_at(builder, SIDE_OUTPUT, 0));
        ps += LOOKUP_NODES *
                  tsr__work_cost(0, builder->strategy->kind, 0, &planner->machine.slowest) +
              tsr__planner_move_time(planner, bytes);
    }
    return ps;
}

// Returns the bytes of an input that the node reads. A lookup reads at most as many bytes of its
// table as the node outputs.
static double bytes_read(const struct candidate_builder *builder, size_t i, int64_t held,
                         double outputs, const int64_t *sizes)
{
    const struct rule *rule = builder->place.rule;
    if (rule_steers(rule, SIDE_INPUT, i))
        return 0;
    double read = (double)held * tsr__node_reads(builder->node, rule, (int)i, sizes);
    if ((int)i < rule->n_inputs && tsr__rule_looks_up(rule, (int)i) && read > outputs)
        return outputs;
    return read;
}

// Returns the bytes of a layout on a device; LARGEST_PART: on the device with the largest shard.
static int64_t bytes_at(struct candidate_builder *builder, uint32_t layout,
                        const struct plan_value *value, int64_t place)
{
    if (place == LARGEST_PART)
        return tsr__planner_bytes(builder->planner, layout, value);
    return tsr__planner_held(builder->planner, builder->arena, layout, value,
                             builder->place.devices[place]);
}

// Returns the bytes that the device with index `place` reads and writes. A value that is read at
// several inputs is included once. Outputs that are updated in place are not included.
static double bytes_moved(struct candidate_builder *builder, const struct candidate *candidate,
                          int64_t place)
{
    double outputs = 0, bytes = 0;
    struct part_sizes sizes;
    part_sizes(builder, place, &sizes);
    for (size_t i = 0; i < builder->n_out; i++)
        if (tsr_node_output(builder->node, i) && !value_at(builder, SIDE_OUTPUT, i)->updated)
            outputs +=
                (double)bytes_at(builder, tsr__planner_layout(builder->planner, builder->out[i]),
                                 value_at(builder, SIDE_OUTPUT, i), place);
    for (size_t i = 0; i < builder->n_in; i++) {
        if (candidate->in[i] == PLAN_NO_LAYOUT || read_before(builder->node, i))
            continue;
        const struct plan_value *value = value_at(builder, SIDE_INPUT, i);
        bytes += bytes_read(builder, i, bytes_at(builder, candidate->in[i], value, place), outputs,
                            sizes.local) *
                 tsr__window_reach(builder, i, place);
    }
    return bytes + outputs;
}

static bool is_sharded(const struct placement *place)
{
    for (int factor = 0; factor < place->rule->n_factors; factor++)
        if (place->cuts[factor] > 1)
            return true;
    return false;
}

// Returns the bytes that the unsharded node reads and writes according to its rule.
static double unsharded_bytes(const struct candidate_builder *builder, const int64_t *sizes)
{
    const struct planner *planner = builder->planner;
    double outputs = 0, bytes = 0;
    for (size_t i = 0; i < builder->n_out; i++)
        if (tsr_node_output(builder->node, i) && !value_at(builder, SIDE_OUTPUT, i)->updated)
            outputs += (double)tsr__value_bytes(planner, tsr_node_output(builder->node, i));
    for (size_t i = 0; i < builder->n_in; i++)
        if (tsr_node_input(builder->node, i) && !read_before(builder->node, i))
            bytes +=
                bytes_read(builder, i, tsr__value_bytes(planner, tsr_node_input(builder->node, i)),
                           outputs, sizes);
    return bytes + outputs;
}

// Returns the time of the shard of index `place` on a device. The rule of a sharded node has the
// symbols of the model, so it may not know which part of an input is read (a Slice of an open
// size). So the shard does the share of the unsharded node's load that it has by the rule.
static int64_t shard_time(struct candidate_builder *builder, const struct candidate *candidate,
                          struct work_kind kind, int64_t place, const tsr_topology_device *device)
{
    const struct strategy *strategy = builder->strategy;
    if (!is_sharded(&builder->place))
        return tsr__load_cost(&strategy->load, kind, device);
    struct part_sizes sizes;
    part_sizes(builder, place, &sizes);
    struct node_weights weights =
        tsr__node_weights(builder->node, builder->place.rule, sizes.local);
    double held = 0;
    if (weights.input > 0 && candidate->in[weights.input] != PLAN_NO_LAYOUT)
        held = (double)bytes_at(builder, candidate->in[weights.input],
                                value_at(builder, SIDE_INPUT, (size_t)weights.input), place);
    double work = tsr__node_work(builder->place.rule, strategy->count, sizes.full, sizes.full);
    double bytes = unsharded_bytes(builder, sizes.full);
    return tsr__weights_cost(
        local_work(builder, place) * (work > 0 ? strategy->load.work / work : 1), kind,
        bytes_moved(builder, candidate, place) * (bytes > 0 ? strategy->load.bytes / bytes : 1),
        &weights, held, device);
}

// Returns the time of `device`, which has index `place` in the placement; LARGEST_PART: its time
// for the largest part.
static int64_t part_time(struct candidate_builder *builder, const struct candidate *candidate,
                         struct work_kind kind, int64_t place, int64_t device)
{
    const struct planner *planner = builder->planner;
    int64_t number = tsr__planner_device(planner, device);
    return shard_time(builder, candidate, kind, place, &planner->machine.topology->device[number]);
}

// Returns the time of each device for work of this kind, and raises *most to the longest. NULL: out
// of memory.
static int64_t *each_of(struct candidate_builder *builder, const struct candidate *candidate,
                        struct work_kind kind, int64_t *most)
{
    struct planner *planner = builder->planner;
    size_t n = (size_t)planner->machine.n;
    int64_t *each = ARENA_ARRAY(&planner->arena, int64_t, n);
    if (!each)
        return NULL;
    if (builder->place.devices) {
        for (size_t i = 0; i < builder->place.n_devices; i++)
            each[builder->place.devices[i]] =
                part_time(builder, candidate, kind, (int64_t)i, builder->place.devices[i]);
    } else {
        for (size_t device = 0; device < n; device++)
            each[device] = part_time(builder, candidate, kind, LARGEST_PART, (int64_t)device);
    }
    for (size_t device = 0; device < n; device++)
        *most = int64_max(*most, each[device]);
    return each;
}

// True if the node takes longer where communication separates it from its producer.
static bool may_be_apart(const struct strategy *strategy)
{
    return strategy->apart.move != strategy->kind.move;
}

// Stores the times of each device and charges the slowest, for devices of different speed or
// unequal shards.
static void each_part(struct candidate_builder *builder, struct candidate *candidate)
{
    const struct strategy *strategy = builder->strategy;
    candidate->n_each = (size_t)builder->planner->machine.n;
    candidate->each = each_of(builder, candidate, strategy->kind, &candidate->compute);
    if (may_be_apart(strategy))
        candidate->each_apart = each_of(builder, candidate, strategy->apart, &candidate->apart);
}

// True if the parts of a factor have different sizes.
static bool is_uneven(const struct candidate_builder *builder)
{
    const struct placement *placement = &builder->place;
    struct part_sizes sizes;
    part_sizes(builder, LARGEST_PART, &sizes);
    for (int factor = 0; factor < placement->rule->n_factors; factor++)
        if (sizes.full[factor] % placement->cuts[factor])
            return true;
    return false;
}

static void repeat_each(struct candidate *candidate, int64_t times)
{
    int64_t *lists[] = {(int64_t *)candidate->each, (int64_t *)candidate->each_apart};
    for (size_t k = 0; k < TSR_COUNT(lists); k++) // made for this candidate
        for (size_t i = 0; lists[k] && i < candidate->n_each; i++)
            lists[k][i] = times_ps(lists[k][i], times);
}

static bool has_shares(const struct placement *placement)
{
    for (int factor = 0; factor < placement->rule->n_factors; factor++)
        if (placement_shares(placement, factor))
            return true;
    return false;
}

// True if the node only computes sizes, or if the engine computes it when it loads the model.
static bool runs_at_load(const struct candidate_builder *builder)
{
    for (size_t i = 0; i < builder->n_out; i++)
        if (tsr_node_output(builder->node, i) && value_at(builder, SIDE_OUTPUT, i)->free)
            return true;
    return tsr__node_reads_constants(builder->node);
}

// Fills in `compute` and `weights` of the candidate. `compute` stays 0 for a node that the engine
// runs when it loads the model. For equal devices and shares it is the time of the largest shard.
void tsr__builder_cost(struct candidate_builder *builder, struct candidate *candidate)
{
    for (size_t i = 0; i < builder->n_in; i++) {
        if (candidate->in[i] == PLAN_NO_LAYOUT || read_before(builder->node, i))
            continue;
        const struct plan_value *value = value_at(builder, SIDE_INPUT, i);
        if (value->constant)
            candidate->weights += tsr__planner_bytes(builder->planner, candidate->in[i], value);
    }
    if (runs_at_load(builder))
        return;
    if (has_shares(&builder->place) || builder->planner->machine.unlike) {
        each_part(builder, candidate);
        return;
    }
    tsr_topology_device slowest = builder->planner->machine.slowest;
    if (builder->place.devices)
        slowest = tsr__planner_slowest(builder->planner, builder->place.devices,
                                       builder->place.n_devices);
    struct strategy *strategy = builder->strategy;
    candidate->uneven = is_uneven(builder);
    candidate->compute = shard_time(builder, candidate, strategy->kind, LARGEST_PART, &slowest);
    if (may_be_apart(strategy))
        candidate->apart = shard_time(builder, candidate, strategy->apart, LARGEST_PART, &slowest);
}

// Finds the placement of a candidate again, from its layouts. False: not with this rule.
static bool place_again(struct candidate_builder *builder, const struct candidate *candidate,
                        const struct rule *rule)
{
    struct planner *planner = builder->planner;
    builder->in = ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_in + 1);
    builder->out = ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_out + 1);
    if (!rule || !builder->in || !builder->out)
        return false;
    for (size_t i = 0; i < builder->n_in; i++)
        if (candidate->in[i] != PLAN_NO_LAYOUT && !rule_steers(rule, SIDE_INPUT, i))
            builder->in[i] = (struct tile_layout *)planner->layouts.at[candidate->in[i]].tiles;
    for (size_t i = 0; i < builder->n_out; i++)
        if (candidate->out[i] != PLAN_NO_LAYOUT)
            builder->out[i] = (struct tile_layout *)planner->layouts.at[candidate->out[i]].tiles;
    return tsr__placement_explicit(builder->arena, builder->arena, builder->node,
                                   planner->shapes.model, rule, planner->machine.n, builder->in,
                                   builder->out, true, &builder->place) &&
           project(builder, &builder->place, builder->in, builder->out);
}

// Only candidates that are chosen need the times of all devices.
void tsr__candidate_each(struct planner *planner, struct strategy *strategy,
                         struct candidate *candidate)
{
    if (!candidate->uneven || candidate->each || planner->machine.n > EACH_MOST)
        return;
    candidate->uneven = false; // tried
    struct arena scratch = {.session = planner->session};
    struct candidate_builder builder =
        tsr__builder_init(planner, strategy, strategy->node, &scratch);
    if (place_again(&builder, candidate, strategy->rule) ||
        place_again(&builder, candidate, strategy->other)) {
        each_part(&builder, candidate);
        repeat_each(candidate, strategy->times);
    }
    planner->arena.failed = planner->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
}

// Marks the devices whose shard of a factor may be empty, although the node's kernel needs
// elements: the size of the factor is unknown, and it is not the last shard. NULL: none.
static const bool *find_guards(const struct candidate_builder *builder)
{
    struct planner *planner = builder->planner;
    const struct placement *place = &builder->place;
    const char *name = planner->machine.topology->device[0].name;
    bool cuda = name && tsr__device_is_cuda(str_of(name)), *guards = NULL;
    for (int factor = 0; factor < place->rule->n_factors; factor++) {
        if (place->cuts[factor] < 2 || place->rule->factors[factor].size.value >= 0 ||
            !tsr__rule_wants_some(builder->node, place->rule, planner->shapes.model, factor, cuda))
            continue;
        if (!guards)
            guards = ARENA_ARRAY(&planner->arena, bool, (size_t)planner->machine.n);
        for (size_t i = 0; guards && i < place->n_devices; i++) {
            int64_t at = place->coords[i * (size_t)place->rule->n_factors + (size_t)factor];
            guards[place->devices[i]] |= at != place->cuts[factor] - 1;
        }
    }
    return guards;
}

const bool *tsr__candidate_guards(struct planner *planner, struct strategy *strategy,
                                  struct candidate *candidate)
{
    if (candidate->guards_known || planner->machine.n > EACH_MOST)
        return candidate->guards;
    struct arena scratch = {.session = planner->session};
    struct candidate_builder builder =
        tsr__builder_init(planner, strategy, strategy->node, &scratch);
    candidate->guards_known = true;
    if (place_again(&builder, candidate, strategy->rule) ||
        place_again(&builder, candidate, strategy->other))
        candidate->guards = find_guards(&builder);
    planner->arena.failed = planner->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
    return candidate->guards;
}

// ---- one candidate -----------------------------------------------------------------------------

// Formats the number of shards: "4", or their units "3+1" if they are unequal.
static struct str parts_text(const struct candidate_builder *builder,
                             const struct placement *placement, int factor)
{
    struct arena *arena = &builder->planner->arena;
    int64_t cuts = placement->cuts[factor];
    tile_shares shares = placement_shares(placement, factor);
    if (!shares)
        return tsr__arena_printf(arena, "%lld", (long long)cuts);
    struct str text = STR("");
    for (int64_t j = 0; j < cuts; j++) {
        struct tile_units part = tsr__share_units(cuts, shares, j);
        text = tsr__arena_printf(arena, STR_FMT "%s%lld", STR_ARG(text), j ? "+" : "",
                                 (long long)(part.stop - part.first));
    }
    return text;
}

// Formats the name of a candidate: the sharded factors, and after ">" how sums are combined
// (`suffix`). Example: "m/4 k/2 > m" shards m in 4 and k in 2, and a reduce-scatter shards the
// result along m.
static struct str name_of(const struct candidate_builder *builder, const char *suffix)
{
    const struct placement *placement = &builder->place;
    struct str text = STR("");
    for (int factor = 0; factor < placement->rule->n_factors; factor++) {
        if (placement->cuts[factor] < 2)
            continue;
        struct str parts = parts_text(builder, placement, factor);
        text = tsr__arena_printf(&builder->planner->arena, STR_FMT "%s%s/" STR_FMT, STR_ARG(text),
                                 text.n ? " " : "", placement->rule->factors[factor].name,
                                 STR_ARG(parts));
    }
    if (!text.n)
        text = STR("whole");
    if (builder->pending)
        text = tsr__arena_printf(&builder->planner->arena, STR_FMT " of parts", STR_ARG(text));
    if (suffix)
        return tsr__arena_printf(&builder->planner->arena, STR_FMT " > %s", STR_ARG(text), suffix);
    return text;
}

static uint32_t number_of(struct candidate_builder *builder, const struct tile_layout *layout)
{
    return layout ? tsr__planner_layout(builder->planner, layout) : PLAN_NO_LAYOUT;
}

// Fills in the layout numbers of the candidate: its inputs, its outputs `out`, and the outputs
// before a reduction.
bool tsr__builder_number(struct candidate_builder *builder, struct tile_layout *const *out,
                         struct candidate *candidate)
{
    candidate->in = ARENA_ARRAY(&builder->planner->arena, uint32_t, builder->n_in + 1);
    candidate->out = ARENA_ARRAY(&builder->planner->arena, uint32_t, builder->n_out + 1);
    candidate->before = ARENA_ARRAY(&builder->planner->arena, uint32_t, builder->n_out + 1);
    if (!candidate->in || !candidate->out || !candidate->before)
        return false;
    for (size_t i = 0; i < builder->n_in; i++) {
        candidate->in[i] = number_of(builder, builder->in[i]);
        if (builder->pending && builder->pending[i] != PLAN_NO_LAYOUT)
            candidate->in[i] = builder->pending[i];
    }
    for (size_t i = 0; i < builder->n_out; i++) {
        candidate->out[i] = number_of(builder, out[i]);
        candidate->before[i] = PLAN_NO_LAYOUT;
        if (out[i] && builder->n_groups)
            candidate->before[i] =
                tsr__planner_parts(builder->planner, number_of(builder, builder->out[i]),
                                   builder->groups, builder->n_groups);
    }
    return !builder->planner->arena.failed;
}

// True if no candidate has the same layouts. Two placements may give the same layouts. Example:
// "m/4" on a line of 4 devices, and on a grid of 2 x 2 whose axes both shard m. The first one is
// kept.
static bool is_new(const struct candidate_builder *builder, const struct candidate *candidate)
{
    for (size_t i = 0; i < builder->strategy->at.n; i++) {
        const struct candidate *other = &builder->strategy->at.at[i];
        if (memcmp(other->in, candidate->in, builder->n_in * sizeof *candidate->in) == 0 &&
            memcmp(other->out, candidate->out, builder->n_out * sizeof *candidate->out) == 0)
            return false;
    }
    return true;
}

static void mark_spread(struct planner *planner, const uint32_t *layouts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (layouts[i] != PLAN_NO_LAYOUT)
            planner->layouts.at[layouts[i]].spread = true;
}

void tsr__candidate_repeat(struct candidate *candidate, int64_t times)
{
    candidate->compute = times_ps(candidate->compute, times);
    candidate->apart = times_ps(candidate->apart, times);
    candidate->comm = times_ps(candidate->comm, times);
    candidate->halo = times_ps(candidate->halo, times);
    candidate->free_halo = times_ps(candidate->free_halo, times);
    candidate->crop = times_ps(candidate->crop, times);
    repeat_each(candidate, times);
}

// Adds the candidate, with its cost and name, to the strategy. Does nothing if it is a duplicate or
// the strategy is full.
static void keep(struct candidate_builder *builder, struct candidate *candidate, const char *suffix)
{
    if (builder->strategy->at.n >= PLAN_MAX_CANDIDATES || !is_new(builder, candidate))
        return;
    tsr__builder_cost(builder, candidate);
    for (int i = 0; builder->place.rule->n_windows && i < builder->place.rule->n_inputs; i++)
        tsr__builder_add_windows(builder, i, candidate);
    candidate->comm += candidate->halo;
    candidate->compute += candidate->crop + route_time(builder) + lookup_time(builder);
    candidate->cut = candidate->cut || is_sharded(&builder->place);
    candidate->name = name_of(builder, suffix);
    tsr__candidate_repeat(candidate, builder->strategy->times);
    vec_add(&builder->planner->arena, &builder->strategy->at, *candidate);
    if (builder->spread) {
        mark_spread(builder->planner, candidate->in, builder->n_in);
        mark_spread(builder->planner, candidate->out, builder->n_out);
    }
}

// How a candidate combines its partial sums: the collective, and its suffix in the candidate's
// name, or NULL.
struct combining {
    enum tsr_collective what;
    const char *suffix;
};

// Returns the bytes charged for combining output i: those of a partial sum. A reduce-scatter with
// unequal shards is charged as if all were the largest. Example: 64 KiB in shards of 3 and 1 units
// cost as much as 96 KiB.
static int64_t combined_bytes(struct candidate_builder *builder, struct tile_layout *const *out,
                              size_t i)
{
    const struct plan_value *value = value_at(builder, SIDE_OUTPUT, i);
    if (tsr__layout_shared(out[i]) && !tsr__layout_shared(builder->out[i]))
        return (int64_t)builder->groups[0].n * tsr__builder_bytes(builder, out[i], value);
    return tsr__builder_bytes(builder, builder->out[i], value);
}

// Adds a candidate with the outputs `out`, and the cost of combining each output in the groups.
static void add(struct candidate_builder *builder, struct tile_layout *const *out,
                const struct combining *combining)
{
    struct candidate candidate = {0};
    if (builder->n_groups)
        candidate.reduction = tsr__collective((int)combining->what)->op;
    if (!tsr__builder_number(builder, out, &candidate))
        return;
    for (size_t i = 0; i < builder->n_out; i++)
        if (builder->n_groups && builder->out[i])
            candidate.comm +=
                tsr__planner_combine(builder->planner, combining->what, builder->groups,
                                     builder->n_groups, combined_bytes(builder, out, i));
    keep(builder, &candidate, combining->suffix);
}

// Adds the candidate whose output stays a partial sum, if its parts are combined by adding them.
static void add_parts(struct candidate_builder *builder)
{
    struct candidate candidate = {0};
    if (builder->combine != COMBINE_SUM ||
        !tsr__builder_number(builder, builder->out, &candidate) ||
        !tsr__groups_share(builder->groups, builder->n_groups, builder->out[0]))
        return;
    candidate.before[0] = PLAN_NO_LAYOUT;
    candidate.out[0] =
        tsr__planner_parts(builder->planner, candidate.out[0], builder->groups, builder->n_groups);
    if (candidate.out[0] != PLAN_NO_LAYOUT)
        keep(builder, &candidate, "parts");
}

// True if the factor can be sharded in `cuts`. Each dimension with this factor must have at least
// one element per shard. No shard may end inside a group of factor->unit elements, such as a head.
// Example: 12 elements in heads of 4 can be sharded in 3, not in 2: the border at 6 would be inside
// a head.
bool tsr__unit_fits(const struct rule_factor *factor, int64_t size, int64_t cuts)
{
    if (factor->least > 0 && factor->least < cuts)
        return false;
    if (factor->unit == 1)
        return size >= cuts;
    for (int64_t j = 1; j < cuts; j++)
        if (tsr__tile_start(size, cuts, j) % factor->unit)
            return false;
    return size >= cuts;
}

static bool belongs_to(const struct device_group *group, int64_t device, size_t *place)
{
    for (size_t i = 0; i < group->n; i++)
        if (group->devices[i] == device) {
            *place = i;
            return true;
        }
    return false;
}

// Builds the placement in which the members of each group also shard the factor: in unequal shares,
// or equally if shares is 0. Returns false if out of memory.
static bool scatter_along(struct candidate_builder *builder, int factor, tile_shares shares,
                          struct placement *out)
{
    size_t n = (size_t)builder->place.rule->n_factors, place;
    *out = builder->place;
    out->cuts = ARENA_ARRAY(builder->arena, int64_t, n + 1);
    out->coords = ARENA_ARRAY(builder->arena, int64_t, out->n_devices * n + 1);
    out->shares = ARENA_ARRAY(builder->arena, tile_shares, n + 1);
    if (!out->cuts || !out->coords || !out->shares)
        return false;
    for (int i = 0; i < builder->place.rule->n_factors; i++)
        out->shares[i] = placement_shares(&builder->place, i);
    out->shares[factor] = shares;
    memcpy(out->cuts, builder->place.cuts, n * sizeof *out->cuts);
    memcpy(out->coords, builder->place.coords, out->n_devices * n * sizeof *out->coords);
    out->cuts[factor] = (int64_t)builder->groups[0].n;
    for (size_t device = 0; device < out->n_devices; device++)
        for (size_t g = 0; g < builder->n_groups; g++)
            if (belongs_to(&builder->groups[g], out->devices[device], &place))
                out->coords[device * n + (size_t)factor] = (int64_t)place;
    return true;
}

// True if the factor has at least as many elements as the shares have units, and no part ends
// inside a group of factor->unit elements, such as a head.
static bool shares_fit(const struct rule_factor *factor, int64_t size, int64_t parts,
                       tile_shares shares)
{
    int64_t units = tsr__units_of(parts, shares);
    if (size < units || (factor->least > 0 && factor->least < units))
        return false;
    for (int64_t j = 1; j < parts; j++)
        if (tsr__share_start(size, parts, shares, j) % factor->unit)
            return false;
    return true;
}

// Adds a candidate with a reduce-scatter: each group member keeps one shard of the only output,
// along this factor. Adds none if the largest unequal part makes the reduce-scatter as expensive as
// an all-reduce: partition would then write the same for both.
static void add_scattered_along(struct candidate_builder *builder, int factor, tile_shares shares)
{
    const struct rule *rule = builder->place.rule;
    const struct plan_value *value = value_at(builder, SIDE_OUTPUT, 0);
    struct placement scattered;
    struct tile_layout **out =
        ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_out + 1);
    if (!out || !scatter_along(builder, factor, shares, &scattered))
        return;
    out[0] = tsr__placement_project(builder->arena, &scattered, &rule->outputs[0]);
    if (!out[0] || tsr__layout_equal(out[0], builder->out[0]) || !comes_back(builder, out))
        return;
    struct combining combining = {TSR_REDUCE_SCATTER, rule->factors[factor].name};
    if (shares) {
        if (combined_bytes(builder, out, 0) >=
            2 * tsr__builder_bytes(builder, builder->out[0], value))
            return;
        struct str parts = parts_text(builder, &scattered, factor);
        combining.suffix = tsr__arena_printf(&builder->planner->arena, "%s/" STR_FMT,
                                             combining.suffix, STR_ARG(parts))
                               .p;
    }
    if (combining.suffix)
        add(builder, out, &combining);
}

// True if a single group contains all devices, in the order in which unequal shares are assigned.
static bool all_add_up(const struct candidate_builder *builder)
{
    const struct planner_machine *machine = &builder->planner->machine;
    return builder->n_groups == 1 && builder->groups[0].n == (size_t)machine->n &&
           memcmp(builder->groups[0].devices, machine->all,
                  (size_t)machine->n * sizeof *machine->all) == 0;
}

// Adds candidates with a reduce-scatter along every factor that is not sharded yet: in equal parts,
// or in unequal parts for unlike devices.
static void add_scattered(struct candidate_builder *builder)
{
    const struct rule *rule = builder->place.rule;
    const struct planner_machine *machine = &builder->planner->machine;
    int64_t sizes[RULE_MAX_FACTORS], parts = (int64_t)builder->groups[0].n;
    int n_shares = all_add_up(builder) ? tsr__mixed_shares(machine) : 0;
    tsr__planner_sizes(builder->planner->shapes.known, builder->node, rule, sizes);
    for (int i = 0; i < rule->n_factors; i++) {
        const struct rule_factor *factor = &rule->factors[i];
        if (factor->kind != FACTOR_PAR || builder->place.cuts[i] > 1)
            continue;
        if (tsr__unit_fits(factor, sizes[i], parts))
            add_scattered_along(builder, i, 0);
        for (int k = 0; k < n_shares; k++)
            if (shares_fit(factor, sizes[i], parts, machine->shares[k]))
                add_scattered_along(builder, i, machine->shares[k]);
    }
}

static size_t outputs_of(const struct candidate_builder *builder)
{
    size_t n = 0;
    for (size_t i = 0; i < builder->n_out; i++)
        n += tsr_node_output(builder->node, i) != NULL;
    return n;
}

// Adds the candidate that shards a factor over which the node computes statistics, such as a mean.
// The node is replaced by simpler nodes whose sums are combined.
static void add_stat(struct candidate_builder *builder)
{
    struct candidate candidate = {.reduction = tsr__collective(COMM_ALL_REDUCE)->op};
    if (builder->n_groups || !builder->out[0] || !tsr__builder_expands(builder) ||
        !tsr__builder_number(builder, builder->out, &candidate))
        return;
    struct expanded_cost cost = tsr__builder_expanded(builder);
    candidate.reductions = cost.sums;
    candidate.comm = cost.comm;
    // `keep` may reject the candidate. It also charges the original node, so the cost is set again
    // below.
    size_t before = builder->strategy->at.n;
    keep(builder, &candidate, NULL);
    if (builder->strategy->at.n > before) {
        builder->strategy->at.at[before].compute = cost.compute;
        builder->strategy->at.at[before].each = builder->strategy->at.at[before].each_apart = NULL;
    }
}

// Adds the candidate that reduces a sum to the first device, which returns it. Called only if no
// node reads the sum.
static void add_rooted(struct candidate_builder *builder)
{
    struct tile_layout **out =
        ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_out + 1);
    const struct tile_layout *whole = builder->out[0];
    if (!out || builder->n_groups != 1 || !tsr__layout_is_whole(whole) ||
        builder->groups[0].devices[0] != builder->planner->machine.all[0])
        return;
    out[0] = tsr__layout_whole(builder->arena, whole->rank, builder->planner->machine.all, 1);
    if (out[0] && comes_back(builder, out))
        add(builder, out, &(struct combining){TSR_REDUCE, "first device"});
}

// Adds all candidates of this placement.
static void add_all(struct candidate_builder *builder)
{
    if (builder->stat) {
        add_stat(builder);
        return;
    }
    bool one = outputs_of(builder) == 1 && builder->out[0];
    add(builder, builder->out, &(struct combining){TSR_ALL_REDUCE, NULL});
    if (!builder->n_groups || !one)
        return;
    enum expert expert = builder->planner->machine.expert;
    if (expert == EXPERT_NONE || expert == EXPERT_SEQUENCE)
        add_scattered(builder);
    if (builder->strategy->gives)
        add_rooted(builder);
    if (builder->strategy->delays)
        add_parts(builder);
}

// Computes the layouts and groups of the placement. False: inputs with the same value get different
// layouts, sharding inference would not reproduce the placement, or out of memory.
static bool lay_out(struct candidate_builder *builder)
{
    builder->in = ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_in + 1);
    builder->out = ARENA_ARRAY(builder->arena, struct tile_layout *, builder->n_out + 1);
    builder->n_groups = 0;
    return builder->in && builder->out &&
           project(builder, &builder->place, builder->in, builder->out) &&
           readings_agree(builder) && comes_back(builder, builder->out) &&
           tsr__placement_groups(builder->arena, &builder->place, &builder->groups,
                                 &builder->n_groups, &builder->combine);
}

bool tsr__builder_take(struct candidate_builder *builder)
{
    size_t before = builder->strategy->at.n;
    if (lay_out(builder))
        add_all(builder);
    return builder->strategy->at.n > before;
}

bool tsr__builder_take_parts(struct candidate_builder *builder, const struct parts *parts)
{
    size_t before = builder->strategy->at.n;
    if (!lay_out(builder) || builder->n_groups || outputs_of(builder) != 1 || !builder->out[0] ||
        !tsr__groups_share(parts->groups, parts->n, builder->out[0]))
        return false;
    builder->groups = (struct device_group *)parts->groups;
    builder->n_groups = parts->n;
    builder->combine = COMBINE_SUM;
    add_all(builder);
    return builder->strategy->at.n > before;
}
