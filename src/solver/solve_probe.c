// SPDX-License-Identifier: Apache-2.0
// solve_probe.c - probing: fixes each choice in turn and propagates its consequences (arc
// consistency). If a node has no choice left, or the least usage violates a row, the choice is
// infeasible and is removed.
//
//     Example: the row's bound is 10. u = 1 uses 5 and allows only v = 1, which uses 6. Neither
//     choice violates the row by itself, but u = 1 needs 11, so it is removed.
//
// solve_reduce.c probes when its other reductions find nothing.
#include "internal.h"

#define REACH 200 // limit of nodes that one trial changes

// State of the trials. Between trials `dead` is all 0, `left` is k, `extra` is 0, and both lists
// are empty.
struct probe {
    struct core *core;
    uint8_t **dead; // by node
    uint32_t *left;
    uint32_t *changed, n_changed, *queue, n_queue;
    uint8_t *known, *queued; // whether the node is in `changed`; in `queue`
    int64_t *extra;          // by row
};

// Starts a probe with all choices alive. Returns false if out of memory.
static bool probe_init(struct probe *probe, struct core *core, struct arena *arena)
{
    size_t n = (size_t)core->n_nodes + 1;
    *probe = (struct probe){.core = core,
                            .dead = ARENA_ARRAY(arena, uint8_t *, n),
                            .left = ARENA_ARRAY(arena, uint32_t, n),
                            .changed = ARENA_ARRAY(arena, uint32_t, REACH + 1),
                            .queue = ARENA_ARRAY(arena, uint32_t, REACH + 1),
                            .known = ARENA_ARRAY(arena, uint8_t, n),
                            .queued = ARENA_ARRAY(arena, uint8_t, n),
                            .extra = ARENA_ARRAY(arena, int64_t, (size_t)core->n_rows + 1)};
    for (uint32_t v = 0; v < core->n_nodes && !arena->failed; v++) {
        if (core->nodes[v].gone)
            continue;
        probe->dead[v] = ARENA_ARRAY(arena, uint8_t, core->nodes[v].k);
        probe->left[v] = core->nodes[v].k;
    }
    return !arena->failed;
}

// Records a node whose choices change, and queues it. Returns false if that would exceed REACH
// nodes.
static bool mark_changed(struct probe *probe, uint32_t v)
{
    if (!probe->known[v]) {
        if (probe->n_changed == REACH)
            return false;
        probe->known[v] = 1;
        probe->changed[probe->n_changed++] = v;
    }
    if (!probe->queued[v]) {
        probe->queued[v] = 1;
        probe->queue[probe->n_queue++] = v;
    }
    return true;
}

// Removes the choices of the edge's other end that have no allowed partner at v. Returns false if
// none is left.
static bool remove_unsupported(struct probe *probe, const struct core_edge *edge, uint32_t v)
{
    uint32_t o = edge_other(edge, v), k = probe->core->nodes[o].k;
    for (uint32_t j = 0; j < k; j++)
        if (!probe->dead[o][j] && !tsr__core_supported(probe->core, edge, o, j, probe->dead)) {
            if (!mark_changed(probe, o))
                break; // REACH is exceeded; the removals so far remain valid
            probe->dead[o][j] = 1;
            probe->left[o]--;
        }
    probe->core->effort->work += (uint64_t)k * (probe->left[v] < 8 ? probe->left[v] : 8);
    return probe->left[o] > 0;
}

// Propagates until nothing changes; changes beyond REACH nodes are left out. Returns false if a
// node has no choice left.
static bool propagate(struct probe *probe)
{
    const struct core *core = probe->core;
    while (probe->n_queue) {
        uint32_t v = probe->queue[--probe->n_queue];
        probe->queued[v] = 0;
        for (uint32_t i = 0; i < core->nodes[v].edges.n; i++)
            if (!remove_unsupported(probe, &core->edges.at[core->nodes[v].edges.at[i]], v))
                return false;
    }
    return true;
}

// True if the least usage of the changed nodes satisfies all rows.
static bool keeps_rows(struct probe *probe)
{
    const struct core *core = probe->core;
    uint32_t begin = core->n_rows, end = 0;
    for (uint32_t i = 0; i < probe->n_changed; i++) {
        const struct core_node *node = &core->nodes[probe->changed[i]];
        for (uint32_t u = 0; u < node->uses.n; u++) {
            const struct core_use *use = &node->uses.at[u];
            int64_t least = INT64_MAX;
            for (uint32_t k = 0; k < node->k; k++)
                if (!probe->dead[probe->changed[i]][k] && use->usage[k] < least)
                    least = use->usage[k];
            probe->extra[use->begin] += least;
            probe->extra[use->end] -= least;
            if (use->begin < begin)
                begin = use->begin;
            if (use->end > end)
                end = use->end;
        }
        core->effort->work += node->uses.n * (uint64_t)node->k;
    }
    // The least usage of all other nodes is 0, because trim_uses has subtracted it from the bounds.
    bool ok = true;
    int64_t sum = 0;
    for (uint32_t row = begin; row < end; row++) {
        sum += probe->extra[row];
        ok &= sum <= core->row_bound[row];
        probe->extra[row] = 0;
    }
    probe->extra[end] = 0;
    core->effort->work += end > begin ? end - begin : 0;
    return ok;
}

// Tries one choice, propagates its consequences, and restores the state. True if no contradiction
// was found.
static bool is_feasible(struct probe *probe, uint32_t v, uint32_t choice)
{
    const struct core *core = probe->core;
    memset(probe->dead[v], 1, core->nodes[v].k);
    probe->dead[v][choice] = 0;
    probe->left[v] = 1;
    mark_changed(probe, v);
    bool ok = propagate(probe) && keeps_rows(probe);
    while (probe->n_queue)
        probe->queued[probe->queue[--probe->n_queue]] = 0;
    for (uint32_t i = 0; i < probe->n_changed; i++) {
        uint32_t u = probe->changed[i];
        memset(probe->dead[u], 0, core->nodes[u].k);
        probe->left[u] = core->nodes[u].k;
        probe->known[u] = 0;
    }
    probe->n_changed = 0;
    return ok;
}

// Probes all choices. Removes infeasible choices before the next node, so that later trials can use
// the removals.
uint32_t tsr__core_probe(struct core *core, uint8_t *dead, uint8_t *lost)
{
    struct probe probe;
    struct arena arena = {.session = core->heap->session};
    uint32_t n = 0;
    memset(lost, 0, core->n_nodes);
    uint32_t n_nodes = probe_init(&probe, core, &arena) ? core->n_nodes : 0;
    for (uint32_t v = 0; v < n_nodes; v++) {
        uint32_t k = core->nodes[v].k, gone = 0;
        if (core->infeasible || core->heap->failed)
            break;
        if (core->nodes[v].gone || k < 2)
            continue;
        if (tsr__effort_over(core->effort))
            break;
        for (uint32_t i = 0; i < k; i++)
            gone += dead[i] = !is_feasible(&probe, v, i);
        if (!gone)
            continue;
        tsr__core_remove(core, v, dead);
        probe.left[v] = core->nodes[v].k;
        lost[v] = 1;
        n += gone;
    }
    core->heap->failed |= arena.failed;
    tsr__arena_free(&arena);
    return n;
}
