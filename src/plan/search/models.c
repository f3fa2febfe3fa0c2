// SPDX-License-Identifier: Apache-2.0
// models.c - builds one 0-1 program for a list of models: prefill and decode with the same weights.
//
// Each model has its own program. The programs are added, and the costs of the second model are
// multiplied by the number of its runs. An edge for every shared weight forbids choices that would
// store it in two layouts. Devices hold both models. So weights that only one model has also take
// memory while the other runs.
//
// Example: a weight W, one run of prefill and 100 runs of decode. Times in ms:
//
//                      prefill   decode   prefill + 100 x decode
//     W by rows             20       3        320
//     W by columns          12       5        512
//
// Alone, prefill would choose columns and decode rows, and W would be stored twice. The edge
// between the two nodes that read W allows only (rows, rows) and (columns, columns); the first is
// cheaper.
#include "plan/search/models.h"

#define COMPARED_BYTES ((size_t)1 << 10) // smaller weights are matched by name only

// ---- shared weights ----------------------------------------------------------------------------

static bool same_form(const tsr_tensor *a, const tsr_tensor *b)
{
    int rank = tsr_tensor_rank(a);
    return tsr_tensor_dtype(a) == tsr_tensor_dtype(b) && rank == tsr_tensor_rank(b) &&
           memcmp(tsr_tensor_dims(a), tsr_tensor_dims(b), (size_t)rank * sizeof(int64_t)) == 0;
}

// True if both tensors have the same content. External data, and tensors below COMPARED_BYTES, are
// not compared: the result is false.
static bool same_bytes(const tsr_tensor *a, const tsr_tensor *b)
{
    const void *x, *y;
    size_t n, m;
    if (tsr_tensor_bytes(a) < (int64_t)COMPARED_BYTES || tsr_tensor_is_external(a) ||
        tsr_tensor_is_external(b))
        return false;
    return tsr_tensor_data(a, &x, &n) == TSR_OK && tsr_tensor_data(b, &y, &m) == TSR_OK && n == m &&
           memcmp(x, y, n) == 0;
}

static bool is_weight(const struct planner *planner, const tsr_value *value)
{
    return planner->values[tsr__value_id(value)].constant && tsr_value_initializer(value);
}

static void add_shared(struct shared_weights *shared, const tsr_value *a, const tsr_value *b)
{
    shared->twin[0][tsr__value_id(a)] = b;
    shared->twin[1][tsr__value_id(b)] = a;
    shared->n++;
}

// Returns an unmatched weight of the second model with the same content; NULL: none.
static const tsr_value *find_equal(const struct models *models, const tsr_value *value)
{
    const struct planner *second = models->planners[1];
    const tsr_graph *graph = tsr_model_graph(second->model);
    for (size_t k = 0; k < tsr_graph_initializer_count(graph); k++) {
        const tsr_value *w = tsr_graph_initializer(graph, k);
        if (is_weight(second, w) && !models->shared.twin[1][tsr__value_id(w)] &&
            same_form(tsr_value_initializer(value), tsr_value_initializer(w)) &&
            same_bytes(tsr_value_initializer(value), tsr_value_initializer(w)))
            return w;
    }
    return NULL;
}

// Maps names to the weights of the second model.
static void list_names(const struct models *models, struct map *names)
{
    const tsr_graph *graph = tsr_model_graph(models->planners[1]->model);
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        tsr_value *value = tsr_graph_initializer(graph, i);
        if (!is_weight(models->planners[1], value))
            continue;
        tsr__map_set(names, tsr__value_str(value), value);
    }
}

// Matches the unmatched weights of the first model: by name (names not NULL), or by content.
static void match_weights(struct models *models, const struct map *names)
{
    const tsr_graph *graph = tsr_model_graph(models->planners[0]->model);
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i), *twin = NULL;
        if (!is_weight(models->planners[0], value) || models->shared.twin[0][tsr__value_id(value)])
            continue;
        if (names)
            twin = tsr__map_get(names, tsr__value_str(value));
        else
            twin = find_equal(models, value);
        if (twin && same_form(tsr_value_initializer(value), tsr_value_initializer(twin)))
            add_shared(&models->shared, value, twin);
    }
}

// Sets how often each model runs, and finds the weights that both models share. Matches weights by
// name first. Compares contents only of weights for which no name matches.
bool tsr__models_init(struct models *models, const tsr_plan_options *options)
{
    struct arena *arena = &models->planners[0]->arena;
    struct map names;
    models->runs[0] = 1;
    models->runs[1] = int64_max(options->steps, 1);
    models->shared.n = 0;
    if (models->n == 1)
        return true;
    const tsr_graph *second = tsr_model_graph(models->planners[1]->model);
    tsr__map_init(&names, arena, tsr_graph_initializer_count(second));
    for (size_t m = 0; m < models->n; m++) {
        uint32_t n_values = tsr__model_value_ids(models->planners[m]->model);
        models->shared.twin[m] = ARENA_ARRAY(arena, const tsr_value *, n_values + 1);
    }
    if (arena->failed)
        return false;
    list_names(models, &names);
    if (arena->failed)
        return false;
    match_weights(models, &names);
    match_weights(models, NULL);
    return !arena->failed;
}

void tsr__models_with(const struct models *models, struct planner *const *planners,
                      struct models *out)
{
    *out = (struct models){.n = models->n, .shared = models->shared};
    for (size_t m = 0; m < models->n; m++) {
        out->planners[m] = planners[m];
        out->runs[m] = models->runs[m];
    }
}

// ---- the program -------------------------------------------------------------------------------

static double largest_cost(const int64_t *cost, size_t n)
{
    int64_t most = 0;
    for (size_t i = 0; i < n; i++)
        if (cost[i] != COST_FORBIDDEN)
            most = int64_max(most, cost[i]);
    return (double)most;
}

// Chooses how far costs are scaled down, so that the sum of the largest ones is at most half of the
// solver's limit.
static void choose_shift(struct models *models)
{
    double sum = 0;
    for (size_t m = 0; m < models->n; m++) {
        const struct program *program = &models->planners[m]->program;
        double runs = (double)models->runs[m];
        for (size_t i = 0; i < program->nodes.n; i++)
            sum += largest_cost(program->nodes.at[i].cost, program->nodes.at[i].k) * runs;
        for (size_t i = 0; i < program->edges.n; i++) {
            const struct program_edge *edge = &program->edges.at[i];
            size_t cells = (size_t)program->nodes.at[edge->a].k * program->nodes.at[edge->b].k;
            sum += largest_cost(edge->cost, cells) * runs;
        }
    }
    while (sum > (double)PROGRAM_MOST / 2) {
        sum /= 2;
        models->shift++;
    }
}

static struct program_weight weight_of_model(const void *context, uint32_t a, uint32_t b)
{
    (void)a;
    (void)b;
    return *(const struct program_weight *)context;
}

static bool add_program(struct models *models, size_t m)
{
    struct program_weight weight = {models->runs[m], INT64_C(1) << models->shift};
    models->first_limit[m] = (uint32_t)models->joint.limits.n;
    models->first[m] =
        tsr__program_add(&models->joint, &models->planners[m]->program, weight_of_model, &weight);
    return models->first[m] != UINT32_MAX;
}

// ---- links -------------------------------------------------------------------------------------

// Returns the reader's node. NULL: the reader is the caller or a subgraph, which has no candidates.
static const struct plan_node *node_of(const struct planner *planner, const struct reader *reader)
{
    if (reader->node == SIZE_MAX || reader->captures)
        return NULL;
    const struct plan_node *node = &planner->nodes[reader->node];
    return node->strategy ? node : NULL;
}

// One end of a link: an input or output of a node, whose layout depends on the choice.
struct link_end {
    const struct planner *planner;
    const struct plan_node *node;
    enum slot_side side;
    size_t slot;
};

static const struct tile_layout *layout_of(const struct link_end *end, size_t choice)
{
    const struct candidate *candidate = &end->node->strategy->at.at[choice];
    uint32_t layout = candidate_layouts(candidate, end->side)[end->slot];
    return end->planner->layouts.at[layout].tiles;
}

// Returns a table that forbids pairs of choices with different layouts of the value. NULL: out of
// memory.
static int64_t *link_table(struct arena *arena, const struct link_end *a, const struct link_end *b)
{
    size_t n_a = a->node->strategy->at.n, n_b = b->node->strategy->at.n;
    int64_t *table = ARENA_ARRAY(arena, int64_t, n_a * n_b + 1);
    if (!table)
        return NULL;
    for (size_t i = 0; i < n_a; i++)
        for (size_t k = 0; k < n_b; k++) {
            bool same = tsr__layout_equal(layout_of(a, i), layout_of(b, k));
            table[i * n_b + k] = same ? 0 : COST_FORBIDDEN;
        }
    return table;
}

// Returns the table of two ends, cached by strategy and slot. NULL: out of memory.
static const int64_t *cached_table(struct models *models, const struct link_end *a,
                                   const struct link_end *b)
{
    uint32_t key[5] = {a->node->strategy->id, a->side, (uint32_t)a->slot, b->node->strategy->id,
                       (uint32_t)b->slot};
    void **at = tsr__map_at_copy(models->links, str_bytes(key, sizeof key));
    if (at && !*at)
        *at = link_table(models->link_arena, a, b);
    return at ? *at : NULL;
}

// Adds an edge so that two nodes choose the same layout for these inputs or outputs.
static bool link_ends(struct models *models, const struct link_end *a, const struct link_end *b)
{
    const int64_t *table = cached_table(models, a, b);
    if (!table)
        return false;
    tsr__program_edge(&models->joint, models->first[0] + a->node->var,
                      models->first[1] + b->node->var, table);
    return !models->joint.arena->failed;
}

static bool link_readers(struct models *models, const struct reader *x, const struct reader *y)
{
    const struct planner *first = models->planners[0], *second = models->planners[1];
    struct link_end a = {first, node_of(first, x), SIDE_INPUT, x->slot};
    struct link_end b = {second, node_of(second, y), SIDE_INPUT, y->slot};
    // Subgraphs read full tensors.
    return !a.node || !b.node || link_ends(models, &a, &b);
}

// Links the readers of a weight in both models pair by pair; see tsr__reader_or_last.
static bool link_weight(struct models *models, const tsr_value *value, const tsr_value *twin)
{
    struct arena *arena = models->joint.arena;
    struct readers x = tsr__planner_readers(models->planners[0], arena, value);
    struct readers y = tsr__planner_readers(models->planners[1], arena, twin);
    size_t n = size_max(x.n, y.n);
    if (!x.n || !y.n)
        return !arena->failed;
    for (size_t i = 0; i < n; i++)
        if (!link_readers(models, tsr__reader_or_last(&x, i), tsr__reader_or_last(&y, i)))
            return false;
    models->linked[0][tsr__value_id(value)] = 1;
    models->linked[1][tsr__value_id(twin)] = 1;
    return !arena->failed;
}

static bool link_weights(struct models *models)
{
    const tsr_graph *graph = tsr_model_graph(models->planners[0]->model);
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i);
        const tsr_value *twin = models->shared.twin[0][tsr__value_id(value)];
        if (twin && !link_weight(models, value, twin))
            return false;
    }
    return true;
}

// Adds an edge so that the first model leaves a cache in the layout in which the second reads it.
static bool link_cache(struct models *models, const tsr_value *present, const tsr_value *past)
{
    struct planner *first = models->planners[0], *second = models->planners[1];
    struct reader from;
    struct readers readers = tsr__planner_readers(second, models->joint.arena, past);
    const struct reader *to = readers.n ? &readers.at[0] : NULL;
    // No link is needed if no node of the first model produces the cache, or none of the second
    // reads it.
    const struct plan_node *reader = to ? node_of(second, to) : NULL;
    if (!reader || !tsr__planner_made_by(first, present, &from))
        return !models->joint.arena->failed;
    struct link_end made = {first, &first->nodes[from.node], SIDE_OUTPUT, from.slot};
    struct link_end read = {second, reader, SIDE_INPUT, to->slot};
    models->linked[1][tsr__value_id(past)] = 1;
    return link_ends(models, &made, &read);
}

const tsr_value *tsr__models_cache(const struct planner *first, const struct state_pair *pair)
{
    const tsr_graph *graph = tsr_model_graph(first->model);
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        if (str_eq(tsr__value_str(value), tsr__value_str(pair->present)))
            return value;
    }
    return NULL;
}

static bool link_caches(struct models *models)
{
    for (size_t i = 0; i < models->planners[1]->ends.states.n; i++) {
        const struct state_pair *pair = &models->planners[1]->ends.states.at[i];
        const tsr_value *cache = tsr__models_cache(models->planners[0], pair);
        if (cache && !link_cache(models, cache, pair->past))
            return false;
    }
    return true;
}

// ---- memory of weights that only one model has -------------------------------------------------

// Returns, by choice of the node, the bytes of constants that the other model does not have. NULL:
// there are none, or out of memory.
static int64_t *own_bytes(struct models *models, size_t m, const struct plan_node *node,
                          size_t class)
{
    struct planner *planner = models->planners[m];
    size_t n_choices = node->strategy->at.n;
    int64_t *bytes = NULL;
    for (size_t i = 0; i < tsr__plan_reads(node); i++) {
        const tsr_value *value = tsr__plan_read(node, i);
        if (!value || !planner->values[tsr__value_id(value)].constant ||
            models->linked[m][tsr__value_id(value)] ||
            (!node->border && read_before(node->node, i)))
            continue;
        if (!bytes)
            bytes = ARENA_ARRAY(models->joint.arena, int64_t, n_choices + 1);
        if (!bytes)
            return NULL; // out of memory, which add_own_bytes reports
        for (size_t c = 0; c < n_choices; c++)
            bytes[c] += tsr__planner_class_bytes(planner, class, node->strategy->at.at[c].in[i],
                                                 &planner->values[tsr__value_id(value)]);
    }
    return bytes;
}

// Charges the weights of model m that the other model lacks, while the other model runs.
static bool add_own_bytes(struct models *models, size_t m)
{
    const struct planner *planner = models->planners[m], *other = models->planners[1 - m];
    size_t n_classes = size_min(planner->memory.n_classes, other->memory.n_classes);
    for (size_t c = 0; c < n_classes; c++)
        for (size_t i = 0; i < planner->n_nodes; i++) {
            const struct plan_node *node = &planner->nodes[i];
            int64_t *bytes = node->strategy ? own_bytes(models, m, node, c) : NULL;
            if (bytes)
                tsr__program_use(&models->joint,
                                 models->first_limit[1 - m] + other->memory.limits[c],
                                 models->first[m] + node->var, 0, other->n_times, bytes);
        }
    return !models->joint.arena->failed;
}

bool tsr__models_program(struct models *models)
{
    struct arena *arena = models->planners[0]->work;
    models->program = &models->planners[0]->program;
    if (models->n == 1)
        return true;
    for (size_t m = 0; m < models->n; m++) {
        uint32_t n_values = tsr__model_value_ids(models->planners[m]->model);
        models->linked[m] = ARENA_ARRAY(arena, unsigned char, n_values + 1);
    }
    if (arena->failed)
        return false;
    models->program = &models->joint;
    tsr__program_init(&models->joint, arena);
    choose_shift(models);
    return add_program(models, 0) && add_program(models, 1) && link_weights(models) &&
           link_caches(models) && add_own_bytes(models, 0) && add_own_bytes(models, 1);
}

// Combines `pace` of all planners (deadline, limit of candidates, lower bound) in the first
// planner. If one model lacks candidates, the joint program lacks them, too. Its lower bound is the
// sum of the models' bounds.
static void join_paces(struct models *models)
{
    struct planner_pace *pace = &models->planners[0]->pace;
    int64_t least[PLAN_MAX_MODELS] = {0};
    for (size_t m = 0; m < models->n; m++) {
        const struct planner_pace *other = &models->planners[m]->pace;
        pace->late = pace->late || other->late;
        if (pace->candidates == 0)
            pace->candidates = other->candidates;
        least[m] = other->least;
    }
    pace->least = tsr__models_time(models, least) >> models->shift;
}

bool tsr__models_build(struct models *models, int64_t memory)
{
    struct map links;
    bool late = false;
    for (size_t m = 0; m < models->n; m++) {
        struct planner *planner = models->planners[m];
        if (!tsr__planner_list(planner) || !tsr__planner_build(planner, memory))
            return false;
        late = late || planner->pace.late;
    }
    models->program = NULL;
    models->link_arena = &models->planners[0]->arena;
    models->links = &links;
    tsr__map_init(&links, models->link_arena, 256);
    if (!late && !tsr__models_program(models))
        return false;
    models->links = NULL;
    join_paces(models);
    return true;
}

// ---- solutions ---------------------------------------------------------------------------------

void tsr__models_take(const struct models *models, const uint32_t *choice)
{
    for (size_t m = 0; m < models->n; m++)
        tsr__planner_take(models->planners[m], choice + models->first[m]);
}

int64_t tsr__models_time(const struct models *models, const int64_t *run)
{
    int64_t all = run[0], others;
    for (size_t m = 1; m < models->n; m++) {
        if (!mul_ok(models->runs[m], run[m], &others) || others >= PLAN_NEVER - all)
            return PLAN_NEVER;
        all += others;
    }
    return all;
}

int64_t tsr__models_cost(const struct models *models, const uint32_t *choice)
{
    int64_t run[PLAN_MAX_MODELS] = {0};
    for (size_t m = 0; m < models->n; m++)
        run[m] = tsr__program_cost(&models->planners[m]->program, choice + models->first[m]);
    return tsr__models_time(models, run);
}

int64_t tsr__models_unscaled(const struct models *models, int64_t cost)
{
    return cost << models->shift;
}

int64_t tsr__models_limit(const struct models *models, const tsr_plan_options *options)
{
    if (models->n == 1 || options->memory > 0 || options->topology)
        return options->memory;
    return PLAN_NO_LIMIT;
}

// ---- memory ------------------------------------------------------------------------------------

bool tsr__model_memory_init(struct model_memory *memory, struct arena *arena, size_t n)
{
    memory->memory = ARENA_ARRAY(arena, int64_t, n);
    memory->peak = ARENA_ARRAY(arena, int64_t, n);
    memory->own = ARENA_ARRAY(arena, int64_t, n);
    return memory->memory && memory->peak && memory->own;
}

// Marks the values of model m that the other model has too: weights, and caches that the first
// model produces for the second. NULL: out of memory.
static unsigned char *mark_shared(const struct models *models, size_t m, struct arena *arena)
{
    uint32_t n_values = tsr__model_value_ids(models->planners[m]->model);
    unsigned char *shared = ARENA_ARRAY(arena, unsigned char, n_values + 1);
    const struct planner_ends *ends = &models->planners[1]->ends;
    if (!shared)
        return NULL;
    for (uint32_t id = 0; id < n_values; id++)
        shared[id] = models->shared.twin[m][id] != NULL;
    for (size_t i = 0; m == 1 && i < ends->states.n; i++)
        if (tsr__models_cache(models->planners[0], &ends->states.at[i]))
            shared[tsr__value_id(ends->states.at[i].past)] = 1;
    return shared;
}

bool tsr__models_memory(const struct models *models, size_t m, const struct model_memory *out)
{
    if (!tsr__planner_memory(models->planners[m], out->memory, out->peak))
        return false;
    if (models->n == 1)
        return true;
    struct arena scratch = {.session = models->planners[m]->session};
    unsigned char *shared = mark_shared(models, m, &scratch);
    bool ok = shared && tsr__planner_add_own(models->planners[m], shared, out->own);
    tsr__arena_free(&scratch);
    return ok;
}

// Computes the joint peak memory. Example: prefill needs 3 GiB, and decode 2 GiB for a table that
// prefill does not have. The peak is 3 + 2 GiB while prefill runs.
void tsr__models_join_memory(const struct models *models, const struct model_memory *each, size_t n,
                             const struct model_memory *out)
{
    for (size_t device = 0; device < n; device++) {
        int64_t memory = 0, peak = 0, own = 0;
        for (size_t m = 0; m < models->n; m++)
            own += each[m].own[device];
        for (size_t m = 0; m < models->n; m++) {
            int64_t others = own - each[m].own[device];
            memory = int64_max(memory, each[m].memory[device] + others);
            peak = int64_max(peak, each[m].peak[device] + others);
        }
        out->memory[device] = memory;
        out->peak[device] = peak;
    }
}
