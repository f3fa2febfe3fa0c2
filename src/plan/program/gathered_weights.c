// SPDX-License-Identifier: Apache-2.0
// gathered_weights.c - weights that devices store sharded and convert in each run to the layout in
// which nodes read them (as FSDP and ZeRO-3 do). That takes time, and saves the memory of all
// weights but the one that is in use. So there are such weights only if memory is short.
//
// A weight may be stored as its reader wants it, or divided among the devices that want the same
// shard. It is read from the transfer of the reader's inputs until the reader has run.
//
//     Example: two devices; one node reads w of 8 MB, replicated or by columns. The variable of w
//     has three states. The node's choices allow those with their layout:
//         by columns                     4 MB all the time
//         replicated                     8 MB all the time
//         replicated, stored by rows     4 MB all the time, 8 MB at the node, time of an AllGather
//
// A weight with several readers has one stored layout, and the partition converts it once to each
// other layout. There is a variable for the stored layout, and one for each wanted layout.
#include "plan/program/edges.h"

#define MOST_STORED 16 // largest number of layouts in which a shared weight may be stored

// ---- the stored layout -------------------------------------------------------------------------

// Returns the number of devices that have each shard; 0: the numbers differ, or a device has two.
static int64_t owners_each(const struct tile_layout *layout)
{
    int64_t n = layout->first[1];
    for (int64_t shard = 1; shard < layout->n_shards; shard++)
        if (layout->first[shard + 1] - layout->first[shard] != n)
            return 0;
    return tsr__owns_once(layout) ? n : 0;
}

// Divides the dimension into `parts` times as many parts. False: some would be empty, or would not
// be parts of those that the dimension has.
static bool divide(struct arena *arena, struct tile_dim *dim, int64_t size, int64_t parts)
{
    struct tile_factor *factors = ARENA_ARRAY(arena, struct tile_factor, 1);
    if (!factors || dim->n > 1)
        return false;
    *factors = (struct tile_factor){.size = size, .cuts = parts};
    if (dim->n == 1) {
        const struct tile_factor *had = &dim->factors[0];
        factors->cuts *= had->cuts;
        if (had->shares || (had->size && had->size != size) || size % factors->cuts)
            return false;
    }
    *dim = (struct tile_dim){factors, 1};
    return size >= factors->cuts;
}

// Returns the shard of `fine` for the owner number `owner` of a shard of `coarse`, of which `fine`
// divides each along the axis among `parts` owners.
static int64_t finer_shard(const struct tile_layout *coarse, int64_t shard,
                           const struct tile_layout *fine, int axis, int64_t parts, int64_t owner)
{
    int64_t coords[TILE_MAX_LOOPS], at = 0;
    tsr__layout_coords(coarse, shard, coords);
    for (int loop = 0; loop < fine->n_loops; loop++) {
        int64_t coord = 0;
        for (int i = 0; i < coarse->n_loops; i++)
            if (coarse->loops[i].dim == fine->loops[loop].dim &&
                coarse->loops[i].factor == fine->loops[loop].factor)
                coord = coords[i];
        if (fine->loops[loop].dim == axis)
            coord = coord * parts + owner;
        at += coord * tsr__layout_stride(fine, loop);
    }
    return at;
}

// Returns the layout in which the owners of each shard divide it along the axis. PLAN_NO_LAYOUT:
// there is none, or out of memory.
static uint32_t divided_along(struct planner *planner, struct arena *arena,
                              const struct tile_layout *layout, const struct plan_value *value,
                              int axis)
{
    int64_t parts = owners_each(layout);
    struct tile_dim dims[TILE_MAX_RANK];
    memcpy(dims, layout->dims, (size_t)layout->rank * sizeof *dims);
    if (!divide(arena, &dims[axis], value->shape[axis], parts))
        return PLAN_NO_LAYOUT;
    struct tile_layout *fine = tsr__layout_cut(arena, layout->rank, dims);
    struct tile_owner *pairs =
        ARENA_ARRAY(arena, struct tile_owner, (size_t)(parts * layout->n_shards));
    if (!fine || !pairs)
        return PLAN_NO_LAYOUT;
    size_t n = 0;
    for (int64_t shard = 0; shard < layout->n_shards; shard++)
        for (int64_t owner = 0; owner < parts; owner++)
            pairs[n++] = (struct tile_owner){finer_shard(layout, shard, fine, axis, parts, owner),
                                             layout->owners[layout->first[shard] + owner]};
    if (!tsr__layout_own(arena, fine, pairs, n))
        return PLAN_NO_LAYOUT;
    return tsr__planner_layout(planner, fine);
}

// Returns the layout in which the devices store a weight that is read as `want`: the one from which
// the conversion is fastest. PLAN_NO_LAYOUT: none saves memory.
static uint32_t stored_for(struct planner *planner, uint32_t want, const struct plan_value *value)
{
    struct arena arena = {.session = planner->session};
    const struct tile_layout *layout = planner->layouts.at[want].tiles;
    uint32_t best = PLAN_NO_LAYOUT;
    int64_t least = PLAN_NEVER;
    bool some = layout->rank == value->rank && owners_each(layout) > 1;
    for (int axis = 0; some && axis < layout->rank; axis++) {
        uint32_t stored = divided_along(planner, &arena, layout, value, axis);
        int64_t ps = stored == PLAN_NO_LAYOUT ? PLAN_NEVER
                                              : tsr__resharding_time(planner, stored, want, value);
        if (ps < least) {
            least = ps;
            best = stored;
        }
    }
    planner->arena.failed = planner->arena.failed || arena.failed;
    tsr__arena_free(&arena);
    return best;
}

// ---- weights that may be gathered --------------------------------------------------------------

// True if the partition converts this input of the node like any other value: it reads no windows,
// and simpler nodes do not replace it.
static bool reads_plainly(const struct planner *planner, const struct reader *reader)
{
    const struct plan_node *node = &planner->nodes[reader->node];
    const struct strategy *strategy = node->strategy;
    if (node->border || node->bodies || !in_main_graph(node) || strategy->whole ||
        strategy->expands || rule_steers(strategy->rule, SIDE_INPUT, reader->slot))
        return false;
    for (int i = 0; i < strategy->rule->n_windows; i++)
        if (strategy->rule->windows[i].input == (int)reader->slot)
            return false;
    return true;
}

// True for types of weights whose conversion can wait for results of the model (comm_after).
// Otherwise the engine may convert all weights first.
static bool waits(tsr_dtype type)
{
    return type == TSR_FLOAT || type == TSR_FLOAT16;
}

bool tsr__may_gather(const struct edge *edge)
{
    const struct planner *planner = edge->planner;
    const tsr_tensor *tensor = tsr_value_initializer(edge->v);
    if (!planner->memory.gathers || !tensor || edge->value->wider || edge->value->rank == 0 ||
        !waits(tsr_tensor_dtype(tensor)) || tsr_graph_owner(tsr_value_graph(edge->v)) ||
        edge->readers.n == 0)
        return false;
    for (size_t i = 0; i < edge->readers.n; i++)
        if (edge->readers.at[i].node == SIZE_MAX || edge->readers.at[i].captures ||
            !reads_plainly(planner, &edge->readers.at[i]))
            return false;
    return true;
}

static bool add_gathered(struct edge *edge, uint32_t var, const uint32_t *stored)
{
    struct planner *planner = edge->planner;
    return vec_add(planner->work, &planner->memory.gathered,
                   (struct gathered_weight){edge->v, var, stored});
}

// ---- one reader --------------------------------------------------------------------------------

// The states of a weight with one reader.
struct weight_states {
    size_t n;
    uint32_t *want, *stored; // stored PLAN_NO_LAYOUT: as it is wanted
    int64_t *cost, *to;      // to each choice of the reader
    int64_t *file, *copy;    // bytes at all times, and at the reader
};

static void add_state(struct weight_states *states, uint32_t want, uint32_t stored, int64_t cost)
{
    states->want[states->n] = want;
    states->stored[states->n] = stored;
    states->cost[states->n++] = cost;
}

// Lists the layouts that the reader may want, each as it is stored and, if that saves memory,
// gathered.
static void list_states(struct edge *edge, struct weight_states *states)
{
    struct planner *planner = edge->planner;
    const struct reader *reader = &edge->readers.at[0];
    for (size_t j = 0; j < tsr__edge_choices(planner, reader); j++) {
        uint32_t want = tsr__planner_wanted(planner, reader, edge->v, (uint32_t)j);
        if (layout_listed(states->want, states->n, want))
            continue;
        add_state(states, want, PLAN_NO_LAYOUT, 0);
        uint32_t stored = stored_for(planner, want, edge->value);
        if (stored != PLAN_NO_LAYOUT)
            add_state(states, want, stored,
                      program_cost_of(tsr__resharding_time(planner, stored, want, edge->value)));
    }
}

static bool fill_states(struct edge *edge, struct weight_states *states)
{
    struct planner *planner = edge->planner;
    struct arena *arena = &planner->arena;
    struct usage file, copy;
    size_t k = tsr__edge_choices(planner, &edge->readers.at[0]);
    states->want = ARENA_ARRAY(arena, uint32_t, 2 * k + 1);
    states->stored = ARENA_ARRAY(arena, uint32_t, 2 * k + 1);
    states->cost = ARENA_ARRAY(arena, int64_t, 2 * k + 1);
    if (arena->failed)
        return false;
    list_states(edge, states);
    states->to = ARENA_ARRAY(arena, int64_t, states->n * k + 1);
    if (!states->to || !tsr__usage_new(&file, planner, arena, states->n) ||
        !tsr__usage_new(&copy, planner, arena, states->n))
        return false;
    for (size_t s = 0; s < states->n; s++) {
        bool gathered = states->stored[s] != PLAN_NO_LAYOUT;
        tsr__usage_add(&file, s, gathered ? states->stored[s] : states->want[s], edge->value);
        if (gathered)
            tsr__usage_add(&copy, s, states->want[s], edge->value);
        for (size_t j = 0; j < k; j++)
            if (tsr__planner_wanted(planner, &edge->readers.at[0], edge->v, (uint32_t)j) !=
                states->want[s])
                states->to[s * k + j] = COST_FORBIDDEN;
    }
    states->file = file.at;
    states->copy = copy.at;
    return true;
}

// Returns the states of a weight with one reader. Equal readers share them.
static struct weight_states *states_of(struct edge *edge)
{
    const struct reader *reader = &edge->readers.at[0];
    uint32_t key[4] = {TABLE_STORED, tsr__edge_key(edge->planner, reader), (uint32_t)reader->slot,
                       edge->planner->memory.division};
    void **kept = tsr__planner_cached(edge->planner, key, TSR_COUNT(key));
    if (!kept)
        return NULL;
    if (*kept)
        return *kept;
    struct weight_states *states = ARENA_NEW(&edge->planner->arena, struct weight_states);
    if (!states || !fill_states(edge, states))
        return NULL;
    *kept = states;
    return states;
}

bool tsr__use_gathered(struct edge *edge)
{
    struct planner *planner = edge->planner;
    struct reader *reader = &edge->readers.at[0];
    struct weight_states *states = states_of(edge);
    if (!states)
        return false;
    uint32_t var = tsr__program_node(&planner->program, tsr__value_str(edge->v),
                                     (uint32_t)states->n, states->cost);
    tsr__program_edge(&planner->program, var, tsr__edge_var(edge, reader), states->to);
    tsr__usage_take(planner, var, states->n, states->file, 0, planner->n_times);
    tsr__usage_take(planner, var, states->n, states->copy, tsr__edge_time(planner, reader),
                    tsr__edge_end(planner, reader));
    return add_gathered(edge, var, states->stored);
}

// ---- several readers ---------------------------------------------------------------------------

// The layouts in which a weight with several readers may be stored. The first is PLAN_NO_LAYOUT: in
// all layouts that readers want.
struct stored_list {
    uint32_t *at;
    size_t n;
};

static void add_stored(struct stored_list *list, uint32_t layout)
{
    if (list->n < MOST_STORED && !layout_listed(list->at, list->n, layout))
        list->at[list->n++] = layout;
}

// Lists what divides a wanted layout among its owners, and wanted layouts without copies.
static struct stored_list list_stored(struct edge *edge, const uint32_t *wants, size_t n)
{
    struct planner *planner = edge->planner;
    struct stored_list list = {ARENA_ARRAY(planner->work, uint32_t, MOST_STORED), 0};
    if (!list.at)
        return list;
    list.at[list.n++] = PLAN_NO_LAYOUT;
    for (size_t i = 0; i < n; i++) {
        const struct tile_layout *layout = planner->layouts.at[wants[i]].tiles;
        if (layout->rank == edge->value->rank && owners_each(layout) == 1)
            add_stored(&list, wants[i]);
        else
            add_stored(&list, stored_for(planner, wants[i], edge->value));
    }
    return list;
}

// How there is a wanted layout: not at all, because each device stores it, because it is converted,
// or because it is the only one that is stored.
enum presence { ABSENT, STORED, CONVERTED, ONLY_STORED, PRESENCES };

// Returns the costs from each stored layout to each presence of the wanted layout.
static int64_t *presence_table(struct edge *edge, const struct stored_list *list, uint32_t want)
{
    int64_t *table = ARENA_ARRAY(edge->planner->work, int64_t, list->n * PRESENCES);
    for (size_t s = 0; table && s < list->n; s++) {
        int64_t *row = table + s * PRESENCES;
        uint32_t from = list->at[s];
        row[STORED] = from == PLAN_NO_LAYOUT ? 0 : COST_FORBIDDEN;
        row[ONLY_STORED] = from == want ? 0 : COST_FORBIDDEN;
        row[CONVERTED] = COST_FORBIDDEN;
        if (from != PLAN_NO_LAYOUT && from != want)
            row[CONVERTED] =
                program_cost_of(tsr__resharding_time(edge->planner, from, want, edge->value));
    }
    return table;
}

// Forbids choices of the reader that want a layout which is absent.
static bool need_present(struct edge *edge, struct reader *reader, uint32_t var, uint32_t want)
{
    size_t k = tsr__edge_choices(edge->planner, reader);
    int64_t *table = ARENA_ARRAY(edge->planner->work, int64_t, PRESENCES * k + 1);
    for (size_t j = 0; table && j < k; j++)
        if (tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j) == want)
            table[ABSENT * k + j] = COST_FORBIDDEN;
    if (table)
        tsr__program_edge(&edge->planner->program, var, tsr__edge_var(edge, reader), table);
    return table != NULL;
}

// Adds the variable of a wanted layout. A converted one is there from the first reader to the last.
static bool add_wanted(struct edge *edge, uint32_t var, const struct stored_list *list,
                       uint32_t want)
{
    static const int64_t zero[PRESENCES] = {0};
    struct planner *planner = edge->planner;
    struct usage file, copy;
    struct readers *readers = &edge->readers;
    int64_t *table = presence_table(edge, list, want);
    uint32_t at = tsr__program_node(&planner->program, tsr__value_str(edge->v), PRESENCES, zero);
    if (!table || !tsr__usage_new(&file, planner, planner->work, PRESENCES) ||
        !tsr__usage_new(&copy, planner, planner->work, PRESENCES))
        return false;
    tsr__program_edge(&planner->program, var, at, table);
    tsr__usage_add(&file, STORED, want, edge->value);
    tsr__usage_add(&copy, CONVERTED, want, edge->value);
    tsr__usage_take(planner, at, PRESENCES, file.at, 0, planner->n_times);
    tsr__usage_take(planner, at, PRESENCES, copy.at, tsr__edge_time(planner, &readers->at[0]),
                    tsr__edge_end(planner, &readers->at[readers->n - 1]));
    for (size_t r = 0; r < readers->n; r++)
        if (!need_present(edge, &readers->at[r], at, want))
            return false;
    return true;
}

bool tsr__use_gathered_shared(struct edge *edge, const uint32_t *wants, size_t n)
{
    struct planner *planner = edge->planner;
    struct usage file;
    struct stored_list list = list_stored(edge, wants, n);
    int64_t *zero = ARENA_ARRAY(planner->work, int64_t, MOST_STORED);
    if (!list.n || !zero || !tsr__usage_new(&file, planner, planner->work, list.n))
        return false;
    for (size_t s = 1; s < list.n; s++)
        tsr__usage_add(&file, s, list.at[s], edge->value);
    uint32_t var =
        tsr__program_node(&planner->program, tsr__value_str(edge->v), (uint32_t)list.n, zero);
    tsr__usage_take(planner, var, list.n, file.at, 0, planner->n_times);
    for (size_t i = 0; i < n; i++)
        if (!add_wanted(edge, var, &list, wants[i]))
            return false;
    return add_gathered(edge, var, list.at);
}

// ---- the solution ------------------------------------------------------------------------------

// Sets the stored layout of a weight at a node that reads it. False: out of memory.
static bool set_stored(struct planner *planner, const struct reader *reader, uint32_t layout)
{
    struct plan_node *node = &planner->nodes[reader->node];
    size_t n = tsr__plan_reads(node);
    if (!node->stored) {
        node->stored = ARENA_ARRAY(&planner->arena, uint32_t, n + 1);
        for (size_t i = 0; node->stored && i < n; i++)
            node->stored[i] = PLAN_NO_LAYOUT;
    }
    for (size_t i = 0; node->stored && i < n; i++) // a node may read a weight twice
        if (tsr__plan_read(node, i) == tsr__plan_read(node, reader->slot))
            node->stored[i] = layout;
    return node->stored != NULL;
}

void tsr__planner_take_stored(struct planner *planner, const uint32_t *choice)
{
    struct arena arena = {.session = planner->session};
    for (size_t i = 0; i < planner->memory.gathered.n; i++) {
        const struct gathered_weight *weight = &planner->memory.gathered.at[i];
        uint32_t layout = weight->stored[choice[weight->var]];
        struct readers readers = {0};
        if (layout != PLAN_NO_LAYOUT)
            readers = tsr__planner_readers(planner, &arena, weight->value);
        for (size_t r = 0; r < readers.n; r++)
            (void)set_stored(planner, &readers.at[r], layout);
    }
    planner->arena.failed = planner->arena.failed || arena.failed;
    tsr__arena_free(&arena);
}

uint32_t tsr__plan_stored(const struct planner *planner, const struct reader *reader)
{
    const struct plan_node *node =
        reader->node == SIZE_MAX || reader->captures ? NULL : &planner->nodes[reader->node];
    return node && node->stored ? node->stored[reader->slot] : PLAN_NO_LAYOUT;
}

size_t tsr__planner_gathered(const struct planner *planner)
{
    struct arena arena = {.session = planner->session};
    size_t n = 0;
    bool *seen = ARENA_ARRAY(&arena, bool, tsr__model_value_ids(planner->model) + 1);
    for (size_t i = 0; seen && i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        for (size_t k = 0; node->strategy && node->stored && k < tsr__plan_reads(node); k++) {
            uint32_t id =
                node->stored[k] == PLAN_NO_LAYOUT ? 0 : tsr__value_id(tsr__plan_read(node, k)) + 1;
            n += id && !seen[id - 1];
            if (id)
                seen[id - 1] = true;
        }
    }
    tsr__arena_free(&arena);
    return n;
}
