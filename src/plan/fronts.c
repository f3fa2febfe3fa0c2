// SPDX-License-Identifier: Apache-2.0
// fronts.c - what a range of nodes takes on a block of devices: the front of (time, memory), a point at a time.
//
// A kind of block has one planner, whose candidates serve all ranges. A range without a limit is solved first; only if that
// does not fit it is solved again under the limit. Ranges that are alike (the same strategies, wired the same) share
// their points, so that layers which repeat are solved once.
#include "plan/stages.h"

#define HASTY_WORK UINT64_C(20000000) // cells for one of many ranges
#define KEY_BYTES  ((size_t)1 << 20)  // of a block

// ---- planners of blocks ------------------------------------------------------------------------

bool tsr__planner_fork(const struct planner *root, const unsigned char *staged,
                       const int64_t *devices, size_t n, struct planner *out)
{
    *out = (struct planner){.machine.topology = root->machine.topology, .machine.n = (int64_t)n};
    tsr__planner_start(out, root->model);
    out->budget = root->budget;
    out->shapes.model = root->shapes.model;
    out->shapes.told = root->shapes.told;
    out->shapes.full = root->shapes.full;
    out->values = root->values;
    out->scope.sums_done = true;
    out->ends.stays = root->ends.stays;
    for (size_t i = 0; i < root->ends.states.n; i++) {
        struct state_pair *at = vec_push(&out->arena, &out->ends.states);
        if (at)
            *at = root->ends.states.at[i];
    }
    int64_t *list = ARENA_ARRAY(&out->arena, int64_t, n);
    if (!list)
        return false;
    memcpy(list, devices, n * sizeof *list);
    out->machine.numbers = list;
    if (!tsr__planner_devices(out) || !tsr__planner_list(out))
        return false;
    for (size_t i = 0; staged && i < out->n_nodes; i++)
        if (!staged[tsr__node_id(out->nodes[i].node)])
            out->node_at[tsr__node_id(out->nodes[i].node)] = -1;
    return tsr__planner_candidates(out);
}

static void key_of_device(struct text *key, const tsr_topology_device *device)
{
    tsr__text_printf(key, "%a %a %a", device->flops, device->bandwidth, device->overhead);
    for (int i = 0; i < TSR_RATE_COUNT; i++)
        tsr__text_printf(key, " %a", device->rates[i]);
    tsr__text_printf(key, ";");
}

// Speeds, and what a message takes from each device to each other.
static bool key_of(struct staging *staging, const int64_t *devices, size_t n, struct text *key)
{
    tsr_topology *topology = staging->planner->machine.topology;
    key->max = KEY_BYTES * 64;
    for (size_t i = 0; i < n; i++)
        key_of_device(key, &topology->device[devices[i]]);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            int pair[2] = {(int)devices[i], (int)devices[k]};
            struct topology_groups two = {1, 2, pair};
            if (i != k)
                tsr__text_printf(key, "%lld %lld,",
                                 (long long)tsr__topology_cost(topology, TSR_SEND, &two, 0),
                                 (long long)tsr__topology_cost(topology, TSR_SEND, &two, 1 << 20));
        }
    return !key->failed;
}

static struct kind *kind_new(struct staging *staging, const int64_t *devices, size_t n)
{
    struct kind *kind = ARENA_NEW(&staging->planner->arena, struct kind);
    struct kind **at = kind ? vec_push(&staging->planner->arena, &staging->all_kinds) : NULL;
    if (!at)
        return NULL;
    *at = kind; // from now on freed with the others
    if (!tsr__planner_fork(staging->planner, staging->staged, devices, n, &kind->planner))
        return NULL;
    kind->nodes = kind->planner.nodes;
    kind->planner.scope.outside = staging->staged;
    for (size_t i = 0; i < kind->planner.n_nodes; i++)
        kind->planner.node_at[tsr__node_id(kind->nodes[i].node)] = -1;
    return kind;
}

struct kind *tsr__stages_kind(struct staging *staging, const int64_t *devices, size_t n)
{
    struct text key;
    struct kind *kind = NULL;
    tsr__text_init(&key, staging->planner->session);
    if (key_of(staging, devices, n, &key)) {
        struct str text = {key.p, key.n};
        kind = tsr__map_get(&staging->kinds, text);
        if (!kind) {
            void **at =
                tsr__map_at(&staging->kinds, tsr__arena_str(&staging->planner->arena, text));
            kind = at ? kind_new(staging, devices, n) : NULL;
            if (at)
                *at = kind;
        }
    }
    tsr__text_free(&key);
    return kind;
}

void tsr__stages_free(struct staging *staging)
{
    for (size_t i = 0; i < staging->all_kinds.n; i++)
        tsr__planner_end(&staging->all_kinds.at[i]->planner);
}

// ---- ranges ------------------------------------------------------------------------------------

struct describing {
    struct staging *staging;
    struct range *range;
    struct arena scratch;
    struct map seen; // values from outside: their number
    struct text key;
    size_t begin, end;
    VEC(const tsr_value *) in, out, leave;
    bool later;
};

static void number_outside(struct describing *describing, const tsr_value *value, bool comes)
{
    uint32_t id = tsr__value_id(value);
    struct str name = {(const char *)&id, sizeof id};
    uintptr_t found = (uintptr_t)tsr__map_get(&describing->seen, name);
    if (!found) {
        void **at = tsr__map_at(&describing->seen, tsr__arena_str(&describing->scratch, name));
        found = describing->seen.n;
        if (at)
            *at = (void *)found;
        const tsr_value **in =
            comes ? vec_push(&describing->staging->planner->arena, &describing->in) : NULL;
        if (in)
            *in = value;
    }
    if (comes) {
        size_t at =
            (size_t)describing->staging->planner->node_at[tsr__node_id(tsr_value_producer(value))];
        describing->range->earliest =
            at < describing->range->earliest ? at : describing->range->earliest;
    }
    const struct plan_value *plan_value = &describing->staging->planner->values[id];
    tsr__text_printf(&describing->key, "%c%zu ",
                     plan_value->constant ? 'c'
                     : plan_value->given  ? 'i'
                                          : 'g',
                     (size_t)found);
}

static void describe_value(struct describing *describing, const tsr_value *value)
{
    const tsr_node *from = value ? tsr_value_producer(value) : NULL;
    int64_t at = from ? describing->staging->planner->node_at[tsr__node_id(from)] : -1;
    bool staged = at >= 0 && describing->staging->staged[tsr__node_id(from)];
    if (!value) {
        tsr__text_printf(&describing->key, "- ");
    } else if (!staged || (size_t)at < describing->begin) {
        number_outside(describing, value, staged);
    } else {
        size_t o = 0;
        while (o + 1 < tsr_node_output_count(from) && tsr_node_output(from, o) != value)
            o++;
        tsr__text_printf(&describing->key, "%zu.%zu ", (size_t)at - describing->begin, o);
    }
}

static bool is_read_later(void *data, tsr_node *node, size_t input)
{
    struct describing *describing = data;
    (void)input;
    while (tsr_graph_owner(tsr_node_graph(node)))
        node = tsr_graph_owner(tsr_node_graph(node));
    int64_t at = describing->staging->planner->node_at[tsr__node_id(node)];
    describing->later = at >= 0 && (size_t)at >= describing->end;
    return !describing->later; // one is enough
}

static void describe_node(struct describing *describing, const struct plan_node *node)
{
    tsr_value **captures;
    size_t n_in = tsr_node_input_count(node->node),
           n_all = n_in + tsr__node_captures(node->node, &captures);
    tsr__text_printf(&describing->key, ";%u:", node->strategy->id);
    for (size_t i = 0; i < n_all; i++)
        describe_value(describing, i < n_in ? tsr_node_input(node->node, i) : captures[i - n_in]);
    for (size_t o = 0; o < tsr_node_output_count(node->node); o++) {
        const tsr_value *value = tsr_node_output(node->node, o);
        tsr__text_printf(&describing->key, ">");
        if (!value)
            continue;
        describing->later = false;
        tsr_value_uses(value, is_read_later, describing);
        const tsr_value **leave =
            describing->later ? vec_push(&describing->staging->planner->arena, &describing->leave)
                              : NULL;
        if (leave)
            *leave = value;
        tsr__text_printf(&describing->key, "%s", describing->later ? "l" : "");
        bool stays = describing->staging->planner->ends.stays &&
                     describing->staging->planner->ends.stays[tsr__value_id(value)];
        tsr__text_printf(&describing->key, "%s", stays ? "s" : "");
        const tsr_value **out =
            tsr_value_is_output(value) && !stays
                ? vec_push(&describing->staging->planner->arena, &describing->out)
                : NULL;
        if (out) {
            *out = value;
            tsr__text_printf(&describing->key, "o");
        }
    }
}

// The number of the structure that the key tells.
static uint32_t structure_of(struct staging *staging, struct str key)
{
    char hex[65];
    struct sha256 h;
    tsr__sha256_init(&h);
    tsr__sha256_add(&h, key.p, key.n);
    tsr__sha256_hex(&h, hex);
    void **at = tsr__map_at(&staging->structures,
                            tsr__arena_str(&staging->planner->arena, (struct str){hex, 64}));
    if (at && !*at)
        *at = (void *)(uintptr_t)staging->structures.n;
    return at ? (uint32_t)((uintptr_t)*at - 1) : 0;
}

// Strategies have the same numbers in all kinds: their nodes come in the same order.
static void describe(struct describing *describing)
{
    struct staging *staging = describing->staging;
    const struct kind *kind = staging->all_kinds.at[0];
    describing->range->earliest = SIZE_MAX;
    tsr__arena_init(&describing->scratch, staging->planner->session);
    tsr__map_init(&describing->seen, &describing->scratch, 64);
    tsr__text_init(&describing->key, staging->planner->session);
    describing->key.max = (size_t)1 << 30;
    for (size_t n = describing->begin; n < describing->end; n++)
        if (kind->nodes[n].strategy)
            describe_node(describing, &kind->nodes[n]);
    describing->range->structure =
        structure_of(staging, (struct str){describing->key.p, describing->key.n});
    describing->range->in = describing->in.at;
    describing->range->n_in = describing->in.n;
    describing->range->out = describing->out.at;
    describing->range->n_out = describing->out.n;
    describing->range->leave = describing->leave.at;
    describing->range->n_leave = describing->leave.n;
    describing->range->known =
        !describing->key.failed && !describing->scratch.failed && !staging->planner->arena.failed;
    tsr__text_free(&describing->key);
    tsr__arena_free(&describing->scratch);
}

const struct range *tsr__stages_range(struct staging *staging, size_t i, size_t j)
{
    struct range *range = &staging->ranges[i * (staging->n_ranges + 1) + j];
    struct describing describing = {
        .staging = staging, .range = range, .begin = staging->cut[i], .end = staging->cut[j]};
    if (!range->known)
        describe(&describing);
    return range->known ? range : NULL;
}

// ---- points ------------------------------------------------------------------------------------

static bool is_given(const struct planner *planner, const tsr_value *value)
{
    for (size_t i = 0; i < planner->ends.given.n; i++)
        if (planner->ends.given.at[i] == value)
            return true;
    return false;
}

// What nodes of the range read and no node of it makes, but for constants.
static void list_given(struct planner *planner)
{
    planner->ends.given.n = 0;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        tsr_value **captures;
        const tsr_node *node = planner->nodes[i].node;
        size_t n_in = tsr_node_input_count(node),
               n_all = n_in + tsr__node_captures(node, &captures);
        for (size_t k = 0; planner->nodes[i].strategy && k < n_all; k++) {
            const tsr_value *value = k < n_in ? tsr_node_input(node, k) : captures[k - n_in];
            const tsr_node *from = value ? tsr_value_producer(value) : NULL;
            if (!value || planner->values[tsr__value_id(value)].constant ||
                is_given(planner, value) || (from && planner->node_at[tsr__node_id(from)] >= 0))
                continue;
            const tsr_value **at = vec_push(&planner->arena, &planner->ends.given);
            if (at)
                *at = value;
        }
    }
}

static void select_range(struct staging *staging, struct kind *kind, size_t i, size_t j)
{
    struct planner *planner = &kind->planner;
    for (size_t n = kind->begin; n < kind->end; n++)
        planner->node_at[tsr__node_id(kind->nodes[n].node)] = -1;
    kind->begin = staging->cut[i];
    kind->end = staging->cut[j];
    planner->nodes = &kind->nodes[kind->begin];
    planner->n_nodes = kind->end - kind->begin;
    for (size_t n = 0; n < planner->n_nodes; n++)
        if (planner->nodes[n].strategy)
            planner->node_at[tsr__node_id(planner->nodes[n].node)] = (int64_t)n;
    list_given(planner);
}

static int64_t peak_of(const struct program *program, const uint32_t *choice)
{
    int64_t most = 0;
    for (uint32_t l = 0; l < program->limits.n; l++) {
        int64_t peak = tsr__program_peak(program, l, choice, NULL);
        most = peak > most ? peak : most;
    }
    return most;
}

// Where some device has a limit every program has rows, so that memory is known.
static int64_t limit_of(const struct staging *staging, int64_t memory)
{
    if (staging->limited && memory >= PLAN_NO_LIMIT)
        return PLAN_NO_LIMIT - 1;
    return memory;
}

// Without a limit first: often that fits.
static tsr_status solve_program(struct program *program, int64_t memory, uint64_t work,
                                struct arena *arena, struct program_result *result,
                                struct point *out)
{
    struct program_options options = {.work = work};
    size_t n_limits = program->limits.n;
    *out = (struct point){.limit = PLAN_NO_LIMIT};
    program->limits.n = 0;
    tsr_status st = tsr__program_solve(program, &options, arena, result);
    program->limits.n = n_limits;
    if (st == TSR_OK && result->feasible)
        out->memory = peak_of(program, result->choice);
    if (st == TSR_OK && result->feasible && out->memory > memory) {
        out->limit = memory;
        st = tsr__program_solve(program, &options, arena, result);
        if (st == TSR_OK && result->feasible)
            out->memory = peak_of(program, result->choice);
    }
    out->feasible = st == TSR_OK && result->feasible;
    out->time = out->feasible ? result->cost : 0;
    out->bound = out->feasible ? result->bound : 0;
    return st;
}

// keep: the nodes get their choices.
static tsr_status solve_range(struct staging *staging, struct kind *kind, size_t i, size_t j,
                              int64_t memory, bool keep, struct point *out)
{
    struct arena scratch;
    struct program_result result = {0};
    struct planner *planner = &kind->planner;
    tsr__arena_init(&scratch, planner->session);
    planner->work = &scratch;
    select_range(staging, kind, i, j);
    tsr_status st = tsr__planner_program(planner, limit_of(staging, memory)) ? TSR_OK : TSR_NOMEM;
    if (st == TSR_OK)
        st =
            solve_program(&planner->program, memory, keep ? 0 : HASTY_WORK, &scratch, &result, out);
    for (size_t n = 0; keep && st == TSR_OK && out->feasible && n < planner->n_nodes; n++)
        if (planner->nodes[n].strategy)
            planner->nodes[n].choice = result.choice[planner->nodes[n].var];
    planner->work = &planner->arena;
    tsr__arena_free(&scratch);
    return st;
}

// The front of ranges of that structure. NULL: out of memory.
static struct front *front_of(struct staging *staging, struct kind *kind, size_t i, size_t j)
{
    const struct range *range = tsr__stages_range(staging, i, j);
    while (range && kind->fronts.n <= range->structure) {
        struct front **next = vec_push(&kind->planner.arena, &kind->fronts);
        if (!next)
            return NULL;
    }
    if (!range)
        return NULL;
    struct front **f = &kind->fronts.at[range->structure];
    if (!*f) {
        *f = ARENA_NEW(&kind->planner.arena, struct front);
        if (*f)
            (*f)->least = -1;
    }
    return *f;
}

// A point solves every limit between what it needs and that under which it is the best.
static const struct point *find_point(const struct front *front, int64_t memory)
{
    for (size_t i = 0; i < front->at.n; i++) {
        const struct point *point = &front->at.at[i];
        if (point->limit >= memory && (!point->feasible || point->memory <= memory))
            return point;
    }
    return NULL;
}

tsr_status tsr__front_at(struct staging *staging, struct kind *kind, size_t i, size_t j,
                         int64_t memory, struct point *out)
{
    struct front *front = front_of(staging, kind, i, j);
    const struct point *point = front ? find_point(front, memory) : NULL;
    if (point) {
        *out = *point;
        return TSR_OK;
    }
    tsr_status st = front ? solve_range(staging, kind, i, j, memory, false, out) : TSR_NOMEM;
    struct point *at = st == TSR_OK ? vec_push(&kind->planner.arena, &front->at) : NULL;
    if (at)
        *at = *out;
    return st == TSR_OK && !at ? TSR_NOMEM : st;
}

tsr_status tsr__front_take(struct staging *staging, struct kind *kind, size_t i, size_t j,
                           int64_t memory, struct point *out)
{
    return solve_range(staging, kind, i, j, memory, true, out);
}

tsr_status tsr__front_least(struct staging *staging, struct kind *kind, size_t i, size_t j,
                            int64_t *out)
{
    struct front *front = front_of(staging, kind, i, j);
    struct program_options options = {.work = HASTY_WORK};
    struct program_least least = {0};
    struct arena scratch;
    if (!front)
        return TSR_NOMEM;
    *out = front->least;
    if (front->least >= 0)
        return TSR_OK;
    tsr__arena_init(&scratch, kind->planner.session);
    kind->planner.work = &scratch;
    select_range(staging, kind, i, j);
    tsr_status st = tsr__planner_program(&kind->planner, PLAN_NO_LIMIT - 1) ? TSR_OK : TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__program_least(&kind->planner.program, &options, &scratch, &least);
    kind->planner.work = &kind->planner.arena;
    tsr__arena_free(&scratch);
    *out = front->least = least.found ? least.least : INT64_MAX;
    return st;
}

tsr_status tsr__front_explain(struct staging *staging, struct kind *kind, size_t i, size_t j,
                              int64_t memory, const char *node, tsr_plan_summary *out)
{
    struct arena scratch;
    struct planner *planner = &kind->planner;
    tsr__arena_init(&scratch, planner->session);
    planner->work = &scratch;
    select_range(staging, kind, i, j);
    tsr_status st = tsr__planner_program(planner, limit_of(staging, memory)) ? TSR_OK : TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__planner_explain(planner, &planner->program, node, out);
    planner->work = &planner->arena;
    tsr__arena_free(&scratch);
    return st;
}
