// SPDX-License-Identifier: Apache-2.0
// pipeline_program.c - all stages of a pipeline as one program: every node with its candidates on
// the devices of its stage, and the cost of each pair of layouts between stages. Crossing values
// get the layout that is best for both sides; ranges by themselves (range_costs.c) send full
// values.
//
//     Example: the first stage has devices 0 and 1, the second device 2. The range of the first
//     stage alone gathers a value of 8 MiB on device 0. Here its halves go to device 2 at the same
//     time, and nothing is gathered.
#include "plan/stages/stages.h"

#define PIPELINE_WORK UINT64_C(20000000) // cells that the program of one pipeline may visit

// A stage whose layouts are translated for the planner of all devices.
struct stage_layouts {
    struct planner *planner;
    const struct stage *stage;
};

// Converts a layout of a stage to one of all devices. Device i of the stage is stage->devices[i].
static uint32_t on_all_devices(void *context, const tsr_value *value, uint32_t layout)
{
    const struct stage_layouts *layouts = context;
    struct planner *planner = layouts->planner;
    const struct stage *stage = layouts->stage;
    struct tile_repeat once = {1, (int64_t)stage->n, stage->devices};
    (void)value;
    return tsr__layout_translate(planner, &stage->kind->planner, layout, &once, BATCH_NOWHERE);
}

bool tsr__stages_candidate(struct planner *planner, const struct stage *stage,
                           const struct plan_node *node, size_t choice, struct candidate *candidate)
{
    struct stage_layouts layouts = {planner, stage};
    return tsr__candidate_translate(planner, node, &node->strategy->at.at[choice], on_all_devices,
                                    &layouts, candidate);
}

// Returns the strategy of a node on the devices of the stage, with the layouts of the planner of
// all devices. Cached.
static struct strategy *strategy_on(struct staging *staging, const struct stage *stage,
                                    const struct plan_node *node)
{
    struct planner *planner = staging->planner;
    struct str head = str_bytes(&node->strategy, sizeof node->strategy);
    struct str devices = str_bytes(stage->devices, stage->n * sizeof *stage->devices);
    char *key = ARENA_ARRAY(&planner->arena, char, head.n + devices.n);
    if (!key)
        return NULL;
    memcpy(key, head.p, head.n);
    memcpy(key + head.n, devices.p, devices.n);
    void **at = tsr__map_at(&staging->strategies, (struct str){key, head.n + devices.n});
    if (!at || *at)
        return at ? *at : NULL;
    const struct strategy *from = node->strategy;
    struct strategy *strategy = ARENA_NEW(&planner->arena, struct strategy);
    if (!strategy)
        return NULL;
    *strategy = (struct strategy){.id = planner->cache.n_strategies++,
                                  .node = from->node,
                                  .rule = from->rule,
                                  .whole = from->whole,
                                  .border = from->border};
    for (size_t i = 0; i < from->at.n; i++) {
        struct candidate *candidate = vec_push(&planner->arena, &strategy->at);
        if (!candidate || !tsr__stages_candidate(planner, stage, node, i, candidate))
            return NULL;
    }
    *at = strategy;
    return strategy;
}

// Gives each node in a stage the candidates on its stage. Nodes outside of stages temporarily have
// none. Returns false if out of memory.
static bool set_strategies(struct pipeline_program *setup)
{
    struct planner *planner = setup->staging->planner;
    for (int64_t device = 0; device < planner->machine.n; device++)
        setup->stage_of[device] = -1;
    for (size_t k = 0; k < setup->pipeline->n; k++) {
        const struct stage *stage = &setup->pipeline->at[k];
        for (size_t i = 0; i < stage->n; i++)
            setup->stage_of[stage->devices[i]] = (int64_t)k;
        for (size_t i = setup->staging->cut[stage->begin]; i < setup->staging->cut[stage->end];
             i++) {
            const struct plan_node *node = &stage->kind->nodes[i];
            planner->nodes[i].strategy = NULL;
            setup->places[i] = (struct device_group){stage->devices, stage->n};
            if (!node->strategy)
                continue;
            planner->nodes[i].strategy = strategy_on(setup->staging, stage, node);
            if (!planner->nodes[i].strategy)
                return false;
        }
    }
    return true;
}

// Removes nodes outside of stages from the program. They run on all devices, so their outputs are
// replicated like inputs of the model.
static void hide_common(struct pipeline_program *setup)
{
    struct planner *planner = setup->staging->planner;
    setup->n_given = planner->ends.given.n;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        int64_t *at = &planner->node_at[tsr__node_id(node->node)];
        if (*at < 0 || setup->staging->staged[tsr__node_id(node->node)])
            continue;
        *at = -1;
        setup->hidden[i] = 1;
        for (size_t o = 0; o < tsr__plan_makes(node); o++) {
            const tsr_value *value = tsr__plan_made(node, o);
            if (value)
                vec_add(&planner->arena, &planner->ends.given, value);
        }
    }
}

void tsr__pipeline_program_show(struct pipeline_program *setup)
{
    struct planner *planner = setup->staging->planner;
    planner->ends.given.n = setup->n_given;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (setup->hidden[i])
            planner->node_at[tsr__node_id(planner->nodes[i].node)] = (int64_t)i;
}

static int64_t memory_for(const struct staging *staging)
{
    return !staging->limited || staging->memory < 0 ? PLAN_NO_LIMIT : staging->memory;
}

bool tsr__pipeline_program_begin(struct pipeline_program *setup, struct staging *staging,
                                 const struct pipeline *pipeline)
{
    struct planner *planner = staging->planner;
    *setup = (struct pipeline_program){.staging = staging, .pipeline = pipeline};
    tsr__arena_init(&setup->scratch, planner->session);
    setup->places = ARENA_ARRAY(&setup->scratch, struct device_group, planner->n_nodes + 1);
    setup->hidden = ARENA_ARRAY(&setup->scratch, unsigned char, planner->n_nodes + 1);
    setup->stage_of = ARENA_ARRAY(&setup->scratch, int64_t, (size_t)planner->machine.n + 1);
    struct plan_node *nodes = ARENA_ARRAY(&setup->scratch, struct plan_node, planner->n_nodes + 1);
    if (setup->scratch.failed)
        return false;
    memcpy(nodes, planner->nodes, planner->n_nodes * sizeof *nodes);
    setup->kept = planner->nodes;
    planner->nodes = nodes;
    hide_common(setup);
    planner->work = &setup->scratch;
    planner->scope.places = setup->places;
    planner->scope.stage_of = setup->stage_of;
    planner->pace = (struct planner_pace){.end = staging->end, .cancels = staging->end > 0};
    if (!set_strategies(setup) || !tsr__planner_program(planner, memory_for(staging)))
        return false;
    setup->late = planner->pace.late;
    return true;
}

bool tsr__pipeline_program_complete(struct pipeline_program *setup, struct staging *staging,
                                    const struct pipeline *pipeline)
{
    double end = staging->end;
    staging->end = 0;
    bool made = tsr__pipeline_program_begin(setup, staging, pipeline);
    staging->end = end;
    return made;
}

void tsr__pipeline_program_end(struct pipeline_program *setup)
{
    struct planner *planner = setup->staging->planner;
    if (setup->kept) {
        planner->nodes = setup->kept;
        tsr__pipeline_program_show(setup);
    }
    // Tables of an unfinished program are wrong.
    if (planner->pace.late)
        tsr__map_init(&planner->cache.tables, &planner->arena, 256);
    planner->pace = (struct planner_pace){0};
    planner->work = &planner->arena;
    planner->scope.places = NULL;
    planner->scope.stage_of = NULL;
    tsr__arena_free(&setup->scratch);
}

struct program_options tsr__pipeline_program_options(const struct pipeline_program *setup)
{
    struct program_options options = {.work = PIPELINE_WORK};
    double end = setup->staging->end;
    if (end > 0)
        options.seconds = int64_max(1, (int64_t)(1e3 * (end - tsr__now_s()))) / 1e3;
    return options;
}

// Stores the choices by node index.
static bool keep_choices(struct pipeline_program *setup, const struct program_result *result,
                         struct pipeline_answer *out)
{
    struct planner *planner = setup->staging->planner;
    out->choice = ARENA_ARRAY(&planner->arena, uint32_t, planner->n_nodes + 1);
    if (!out->choice)
        return false;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].strategy)
            out->choice[i] = result->choice[planner->nodes[i].var];
    return true;
}

tsr_status tsr__pipeline_solve(struct staging *staging, const struct pipeline *pipeline,
                               struct pipeline_answer *out)
{
    struct pipeline_program setup;
    struct program_result result = {0};
    *out = (struct pipeline_answer){0};
    tsr_status st = TSR_NOMEM;
    if (!tsr__pipeline_program_begin(&setup, staging, pipeline))
        goto end;
    st = TSR_OK;
    if (setup.late)
        goto end;
    struct program_options options = tsr__pipeline_program_options(&setup);
    st = tsr__program_solve(&staging->planner->program, &options, &setup.scratch, &result);
    if (st != TSR_OK || !result.feasible)
        goto end;
    *out = (struct pipeline_answer){.feasible = true, .cost = result.cost, .bound = result.bound};
    if (!keep_choices(&setup, &result, out))
        st = TSR_NOMEM;
end:
    tsr__pipeline_program_end(&setup);
    return st;
}

tsr_status tsr__pipeline_explain(struct staging *staging, const struct pipeline *pipeline,
                                 const char *name, tsr_plan_result *out)
{
    struct pipeline_program setup;
    struct planner *planner = staging->planner;
    tsr_status st = TSR_NOMEM;
    if (!tsr__pipeline_program_complete(&setup, staging, pipeline))
        goto end;
    for (size_t i = 0; i < planner->n_nodes; i++)
        planner->nodes[i].choice = pipeline->answer.choice[i];
    st = tsr__planner_explain(planner, &planner->program, name, out);
    tsr_plan_choice *list = (tsr_plan_choice *)out->choices;
    for (size_t i = 0; i < out->facts.n_choices; i++)
        if (list[i].feasible)
            list[i].cost += staging->common;
end:
    tsr__pipeline_program_end(&setup);
    return st;
}
