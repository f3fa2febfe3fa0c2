// SPDX-License-Identifier: Apache-2.0
// decode_plan.c - plans a model with key/value caches for the run that text generation repeats: one
// new token per sequence.
//
// The planner treats the caches as states, which are never transferred: each rank reads and writes
// its shard in the application's memory (caches.c). Example: 16 heads on 2 devices. Each rank
// computes 8 heads, and a layer needs two AllReduces. Without states the planner would charge
// transfers of all caches, and compute every head on every rank.
//
// Dimensions without a size in the option `dims` get the size that they have for one sequence with
// one new token after PAST_TOKENS tokens.
//
// Prompts run in the same partition. A plan for both (tsr_plan_options.with) is two partitions, so
// every rank would open two sessions, each with its own packed weights. It would gain little:
// prompts of 512 tokens are at most 5 % faster with a plan of their own on CPUs and hosts
// (bench/prompts.py). On several GPUs a small decoder generates fastest on one of them, and its
// prompts alone would use more; a request with 128 tokens spends most of its time on tokens.
#include "ep/internal.h"
#include "ir/ir.h"
#include "plan/plan.h"
#include "sharding/sharding.h"
#include "topology/topology.h"

#include "tessera_cli.h"
#include "tessera_graph.h"

#define PAST_TOKENS 128
#define CACHE_RANK  4

struct decode_plan {
    struct arena arena;
    const tsr_graph *graph;
    VEC(const char *) states; // "past=present"
    VEC(tsr_dim_size) sizes;
};

// ---- caches ------------------------------------------------------------------------------------

// Returns the output that updates the cache `past`; NULL: the input is not a cache.
static const tsr_value *present_of(const tsr_value *past)
{
    // names with these characters cannot be written as a state
    if (strpbrk(tsr_value_name(past), "*=\n"))
        return NULL;
    return tsr_cache_present(past);
}

// ---- sizes -------------------------------------------------------------------------------------

// Sets the size of a dimension that has a name. The first size of a name is kept.
static void set_size(struct decode_plan *plan, const tsr_value *value, int axis, int64_t size)
{
    if (!value || axis >= tsr_value_rank(value))
        return;
    const char *name = tsr_value_dim_name(value, axis);
    if (!name || strpbrk(name, " +-*/()")) // the planner computes expressions
        return;
    for (size_t i = 0; i < plan->sizes.n; i++)
        if (strcmp(plan->sizes.at[i].name, name) == 0)
            return;
    tsr_dim_size *added = vec_push(&plan->arena, &plan->sizes);
    if (added)
        *added = (tsr_dim_size){name, size};
}

// Sets the sizes of inputs [batch, tokens] and of the mask [batch, past + tokens].
static void set_input_sizes(struct decode_plan *plan)
{
    static const char *const names[] = {"input_ids", "inputs_embeds", "position_ids"};
    const tsr_value *mask = tsr_graph_value(plan->graph, "attention_mask");
    for (size_t i = 0; i < TSR_COUNT(names); i++) {
        const tsr_value *input = tsr_graph_value(plan->graph, names[i]);
        set_size(plan, input, 0, 1);
        set_size(plan, input, 1, 1);
    }
    set_size(plan, mask, 0, 1);
    set_size(plan, mask, 1, PAST_TOKENS + 1);
}

// Returns the axis of the tokens: the first one of which past and present have different sizes.
// Default: that of [batch, heads, tokens, head size].
static int token_axis(const tsr_value *past, const tsr_value *present)
{
    for (int axis = 1; axis < CACHE_RANK && tsr_value_rank(present) == CACHE_RANK; axis++) {
        tsr_dim a = tsr_value_dim(past, axis), b = tsr_value_dim(present, axis);
        if (a.value != b.value || (a.value < 0 && strcmp(a.symbol, b.symbol) != 0))
            return axis;
    }
    return 2;
}

static void add_cache(struct decode_plan *plan, const tsr_value *past, const tsr_value *present)
{
    const char **state = vec_push(&plan->arena, &plan->states);
    if (state)
        *state =
            tsr__arena_printf(&plan->arena, "%s=%s", tsr_value_name(past), tsr_value_name(present))
                .p;
    set_size(plan, past, 0, 1);
    if (tsr_value_rank(past) != CACHE_RANK)
        return;
    int axis = token_axis(past, present);
    set_size(plan, past, axis, PAST_TOKENS);
    set_size(plan, present, axis, PAST_TOKENS + 1);
}

// Sets the sizes of other inputs [batch, tokens] of integers. Those that are as long as the caches
// have a size already.
static void set_other_sizes(struct decode_plan *plan)
{
    for (size_t i = 0; i < tsr_graph_input_count(plan->graph); i++) {
        const tsr_value *input = tsr_graph_input(plan->graph, i);
        tsr_dtype type = tsr_value_dtype(input);
        if (tsr_value_rank(input) != 2 || (type != TSR_INT64 && type != TSR_INT32))
            continue;
        set_size(plan, input, 0, 1);
        set_size(plan, input, 1, 1);
    }
}

// Lists the caches of the model, and the sizes of a decode step after those that the caller gave.
static tsr_status describe(struct decode_plan *plan, const tsr_plan_options *given)
{
    for (size_t i = 0; i < given->n_sizes; i++) {
        tsr_dim_size *size = vec_push(&plan->arena, &plan->sizes);
        if (size)
            *size = given->sizes[i];
    }
    set_input_sizes(plan);
    for (size_t i = 0; i < tsr_graph_input_count(plan->graph); i++) {
        const tsr_value *past = tsr_graph_input(plan->graph, i);
        const tsr_value *present = present_of(past);
        if (present)
            add_cache(plan, past, present);
    }
    set_other_sizes(plan);
    return arena_status(&plan->arena);
}

// ---- the plan ----------------------------------------------------------------------------------

// Plans with the caches as states. The planner stores the states in the metadata, too. They are
// removed again, because the ranks of the provider do not keep the caches between runs.
static tsr_status plan_step(tsr_model *model, const struct decode_plan *plan,
                            tsr_plan_options options, tsr_plan_result **out)
{
    options.sizes = plan->sizes.at;
    options.n_sizes = plan->sizes.n;
    options.state = plan->states.at;
    options.n_state = plan->states.n;
    TRY(tsr_plan(model, &options, out));
    return tsr_model_set_metadata(model, META_STATE, NULL);
}

static bool divides_work(const tsr_plan_result *plan)
{
    tsr_plan_facts facts = TSR_PLAN_FACTS_INIT;
    return tsr_plan_result_about(plan, &facts) == TSR_OK &&
           (facts.cut_nodes > 0 || facts.n_stages > 1);
}

// Removes the plan, and its configuration from the model.
static tsr_status forget(tsr_model *model, tsr_plan_result **plan)
{
    tsr_plan_facts facts = TSR_PLAN_FACTS_INIT;
    tsr_status st = tsr_plan_result_about(*plan, &facts);
    if (st == TSR_OK)
        st = tsr_model_remove_config_named(model, facts.config, true);
    tsr_plan_result_free(*plan);
    *plan = NULL;
    return st;
}

// Replaces a plan that shards nothing by one that shards every node that can be sharded.
static tsr_status plan_forced(tsr_model *model, const tsr_plan_options *given,
                              tsr_plan_result **out)
{
    tsr_plan_options options = *given;
    tsr_topology *topology = NULL;
    TRY(forget(model, out));
    TRY(tsr__topology_forced(tsr_model_session(model), given->topology, given->devices, &topology));
    options.topology = topology;
    tsr_status st = tsr_plan(model, &options, out);
    tsr_topology_free(topology);
    return st;
}

// Plans a model with caches for one decode step. If one device would be fastest for that step,
// plans with the caller's sizes instead, because the application has requested several devices.
// Models without caches are planned with the caller's sizes, too.
tsr_status tsr__ep_plan(tsr_model *model, const tsr_plan_options *given, bool forced,
                        tsr_plan_result **out)
{
    struct decode_plan plan = {.graph = tsr_model_graph(model)};
    tsr__arena_init(&plan.arena, tsr_model_session(model));
    tsr_status st = describe(&plan, given);
    bool decodes = plan.states.n > 0;
    if (st == TSR_OK && decodes)
        st = plan_step(model, &plan, *given, out);
    tsr__arena_free(&plan.arena);
    if (st != TSR_OK || (decodes && divides_work(*out)))
        return st;
    if (decodes)
        TRY(forget(model, out));
    TRY(tsr_plan(model, given, out));
    return divides_work(*out) || !forced ? TSR_OK : plan_forced(model, given, out);
}
