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

// Returns the stage as the second model sees it, or the first.
static struct stage stage_for(const struct pipeline *pipeline, size_t k, size_t m)
{
    struct stage stage = pipeline->at[k];
    if (m > 0)
        stage.kind = stage.kind->other;
    return stage;
}

// Gives each node in a stage the candidates on its stage. Nodes outside of stages temporarily have
// none. Returns false if out of memory.
static bool set_strategies(struct pipeline_program *setup, size_t m)
{
    struct staging *staging = tsr__staging_of(setup->staging, m);
    struct planner *planner = staging->planner;
    for (size_t k = 0; k < setup->pipeline->n; k++) {
        const struct stage stage = stage_for(setup->pipeline, k, m);
        for (size_t i = staging->cut[stage.begin]; i < staging->cut[stage.end]; i++) {
            const struct plan_node *node = &stage.kind->nodes[i];
            planner->nodes[i].strategy = NULL;
            setup->of[m].places[i] = (struct device_group){setup->pipeline->at[k].devices, stage.n};
            if (!node->strategy)
                continue;
            planner->nodes[i].strategy = strategy_on(staging, &stage, node);
            if (!planner->nodes[i].strategy)
                return false;
        }
    }
    return true;
}

// Removes nodes outside of stages from the program. They run on all devices, so their outputs are
// replicated like inputs of the model.
static void hide_common(struct pipeline_program *setup, size_t m)
{
    struct staging *staging = tsr__staging_of(setup->staging, m);
    struct planner *planner = staging->planner;
    setup->of[m].n_given = planner->ends.given.n;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        int64_t *at = &planner->node_at[tsr__node_id(node->node)];
        if (*at < 0 || staging->staged[tsr__node_id(node->node)])
            continue;
        *at = -1;
        setup->of[m].hidden[i] = 1;
        for (size_t o = 0; o < tsr__plan_makes(node); o++) {
            const tsr_value *value = tsr__plan_made(node, o);
            if (value)
                vec_add(&planner->arena, &planner->ends.given, value);
        }
    }
}

void tsr__pipeline_program_show(struct pipeline_program *setup)
{
    for (size_t m = 0; m < setup->models.n && setup->of[m].kept; m++) {
        struct planner *planner = setup->models.planners[m];
        planner->ends.given.n = setup->of[m].n_given;
        for (size_t i = 0; i < planner->n_nodes; i++)
            if (setup->of[m].hidden[i])
                planner->node_at[tsr__node_id(planner->nodes[i].node)] = (int64_t)i;
    }
}

static int64_t memory_for(const struct staging *staging)
{
    return !staging->limited || staging->memory < 0 ? PLAN_NO_LIMIT : staging->memory;
}

// Builds the program of one model.
static bool begin_model(struct pipeline_program *setup, size_t m)
{
    double end = setup->needed ? 0 : setup->staging->end;
    struct arena *arena = &setup->scratch;
    struct planner *planner = setup->models.planners[m];
    struct plan_node *nodes = ARENA_ARRAY(arena, struct plan_node, planner->n_nodes + 1);
    setup->of[m].places = ARENA_ARRAY(arena, struct device_group, planner->n_nodes + 1);
    setup->of[m].hidden = ARENA_ARRAY(arena, unsigned char, planner->n_nodes + 1);
    if (arena->failed)
        return false;
    memcpy(nodes, planner->nodes, planner->n_nodes * sizeof *nodes);
    setup->of[m].kept = planner->nodes;
    planner->nodes = nodes;
    hide_common(setup, m);
    planner->work = arena;
    planner->scope.places = setup->of[m].places;
    planner->scope.stage_of = setup->stage_of;
    planner->pace = (struct planner_pace){.end = end, .cancels = end > 0};
    if (!set_strategies(setup, m) || !tsr__planner_program(planner, memory_for(setup->staging)))
        return false;
    setup->late = setup->late || planner->pace.late;
    return true;
}

// Numbers the stages of the devices. Returns false if out of memory.
static bool list_stages(struct pipeline_program *setup)
{
    int64_t n = setup->staging->planner->machine.n;
    setup->stage_of = ARENA_ARRAY(&setup->scratch, int64_t, (size_t)n + 1);
    for (int64_t device = 0; setup->stage_of && device < n; device++)
        setup->stage_of[device] = -1;
    for (size_t k = 0; setup->stage_of && k < setup->pipeline->n; k++)
        for (size_t i = 0; i < setup->pipeline->at[k].n; i++)
            setup->stage_of[setup->pipeline->at[k].devices[i]] = (int64_t)k;
    return setup->stage_of != NULL;
}

bool tsr__pipeline_program_begin(struct pipeline_program *setup, struct staging *staging,
                                 const struct pipeline *pipeline, bool needed)
{
    *setup = (struct pipeline_program){.staging = staging, .pipeline = pipeline, .needed = needed};
    struct models *models = &setup->models;
    tsr__models_with(staging->models, staging->models->planners, models);
    tsr__arena_init(&setup->scratch, staging->planner->session);
    tsr__map_init(&setup->links, &setup->scratch, 0);
    models->links = &setup->links;
    models->link_arena = &setup->scratch;
    if (!list_stages(setup))
        return false;
    for (size_t m = 0; m < models->n && !setup->late; m++)
        if (!begin_model(setup, m))
            return false;
    return setup->late || tsr__models_program(models);
}

void tsr__pipeline_program_end(struct pipeline_program *setup)
{
    tsr__pipeline_program_show(setup);
    for (size_t m = 0; m < setup->models.n && setup->of[m].kept; m++) {
        struct planner *planner = setup->models.planners[m];
        planner->nodes = setup->of[m].kept;
        // Tables of an unfinished program are wrong.
        if (planner->pace.late)
            tsr__map_init(&planner->cache.tables, &planner->arena, 256);
        planner->pace = (struct planner_pace){0};
        planner->work = &planner->arena;
        planner->scope.places = NULL;
        planner->scope.stage_of = NULL;
    }
    tsr__arena_free(&setup->scratch);
}

// ---- solutions ---------------------------------------------------------------------------------

// Solves the program, within the time limit unless an answer is needed. If the session was
// cancelled, the solver would stop at once.
static tsr_status solve(struct pipeline_program *setup, struct program_result *result)
{
    tsr_session *session = setup->staging->planner->session;
    struct program_options options = {.work = PIPELINE_WORK};
    double end = setup->staging->end;
    bool cancelled = setup->needed && tsr__cancelled(session);
    if (end > 0 && !setup->needed)
        options.seconds = int64_max(1, (int64_t)(1e3 * (end - tsr__now_s()))) / 1e3;
    if (cancelled)
        tsr_session_cancel(session, false);
    tsr_status st = tsr__program_solve(setup->models.program, &options, &setup->scratch, result);
    if (cancelled)
        tsr_session_cancel(session, true);
    return st;
}

tsr_status tsr__pipeline_program_solve(struct pipeline_program *setup, struct pipeline_answer *out)
{
    const struct models *models = &setup->models;
    struct program_result result = {0};
    *out = (struct pipeline_answer){0};
    if (setup->late)
        return TSR_OK;
    TRY(solve(setup, &result));
    if (!result.feasible)
        return TSR_OK;
    out->feasible = true;
    out->cost = tsr__models_cost(models, result.choice);
    out->bound = int64_min(tsr__models_unscaled(models, result.bound), out->cost);
    for (size_t m = 0; m < models->n; m++)
        for (size_t i = 0; i < models->planners[m]->n_nodes; i++) {
            struct plan_node *node = &models->planners[m]->nodes[i];
            if (node->strategy)
                node->choice = result.choice[models->first[m] + node->var];
        }
    return TSR_OK;
}

bool tsr__pipeline_program_keep(const struct pipeline_program *setup, struct pipeline_answer *out)
{
    struct arena *arena = &setup->staging->planner->arena;
    for (size_t m = 0; m < setup->models.n; m++) {
        const struct planner *planner = setup->models.planners[m];
        if (!out->choice[m])
            out->choice[m] = ARENA_ARRAY(arena, uint32_t, planner->n_nodes + 1);
        for (size_t i = 0; out->choice[m] && i < planner->n_nodes; i++)
            out->choice[m][i] = planner->nodes[i].choice;
    }
    return !arena->failed;
}

tsr_status tsr__pipeline_solve(struct staging *staging, const struct pipeline *pipeline,
                               bool needed, struct pipeline_answer *out)
{
    struct pipeline_program setup;
    tsr_status st = TSR_NOMEM;
    *out = (struct pipeline_answer){0};
    if (tsr__pipeline_program_begin(&setup, staging, pipeline, needed))
        st = tsr__pipeline_program_solve(&setup, out);
    if (st == TSR_OK && out->feasible && !tsr__pipeline_program_keep(&setup, out))
        st = TSR_NOMEM;
    tsr__pipeline_program_end(&setup);
    return st;
}

tsr_status tsr__pipeline_export(struct staging *staging, const struct pipeline *pipeline,
                                const char *path)
{
    struct pipeline_program setup;
    tsr_status st = TSR_NOMEM;
    if (tsr__pipeline_program_begin(&setup, staging, pipeline, true))
        st = tsr__planner_export(staging->planner->session, setup.models.program, path);
    tsr__pipeline_program_end(&setup);
    return st;
}
