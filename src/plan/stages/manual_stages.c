// SPDX-License-Identifier: Apache-2.0
// manual_stages.c - keeps the stages that nodes of the model already have. The planner assigns the
// other nodes.
//
// Stages are ranges in node order, so a stage ends between its last manual node and the first one
// of a later stage. Example: nodes a b c d e, where a has stage 0, d has stage 1 and the others
// have none. Stage 0 ends before b, c or d.
#include "plan/stages/stages.h"

#include <stdlib.h>

// Reports an error. node NULL: the diagnostic is not about a single node.
static tsr_status refuse(const struct staging *staging, const tsr_node *node, const char *hint,
                         const char *what)
{
    struct place at = node ? tsr__place_node(node) : PLACE_NONE;
    at.configuration = str_of(tsr_config_name(staging->planner->config));
    return tsr__fail(staging->planner->session, TSR_INVALID, DIAG_plan_stages, &at, hint, "%s",
                     what);
}

// Returns the stage of the node in the model; -1: none.
static int64_t stage_of(const struct staging *staging, size_t i)
{
    int64_t stage;
    const tsr_node_config *config =
        tsr_node_find_config(staging->planner->nodes[i].node, staging->planner->config);
    return config && tsr_node_config_stage(config, &stage) ? stage : -1;
}

// Lists the distinct stage numbers in ascending order. Example: stages 5 and 2 have the indices 1
// and 0.
static bool list_numbers(struct staging *staging)
{
    size_t n_nodes = staging->planner->n_nodes, n = 0, distinct = 0;
    int64_t *numbers = ARENA_ARRAY(&staging->planner->arena, int64_t, n_nodes + 1);
    int64_t *hand = ARENA_ARRAY(&staging->planner->arena, int64_t, n_nodes + 1);
    if (!numbers || !hand)
        return false;
    for (size_t i = 0; i < n_nodes; i++) {
        hand[i] = stage_of(staging, i);
        if (hand[i] >= 0)
            numbers[n++] = hand[i];
    }
    qsort(numbers, n, sizeof *numbers, by_int64);
    for (size_t i = 0; i < n; i++)
        if (distinct == 0 || numbers[distinct - 1] != numbers[i])
            numbers[distinct++] = numbers[i];
    // Convert numbers to indexes; every number of a node is in the list.
    for (size_t i = 0; i < n_nodes; i++) {
        int64_t place = 0;
        if (hand[i] < 0)
            continue;
        while (numbers[place] != hand[i])
            place++;
        hand[i] = place;
    }
    staging->numbers = numbers;
    staging->n_hand = distinct;
    staging->hand = hand;
    return true;
}

// Narrows the windows in which stages may end: the node's stage and later ones end after the node,
// earlier ones before it.
static void narrow(const struct staging *staging, struct stage_window *windows, size_t i)
{
    for (size_t k = 0; k < staging->n_hand; k++) {
        if (staging->hand[i] <= (int64_t)k)
            windows[k].low = i + 1;
        else if (i < windows[k].high)
            windows[k].high = i;
    }
}

// Finds where each stage may end, if nodes already have stages. If there is no such place, reports
// the node that is out of order. Also reports a number of stages that differs from `asked` (0: not
// given).
tsr_status tsr__manual_stages(struct staging *staging, int64_t asked)
{
    size_t n_nodes = staging->planner->n_nodes;
    if (!staging->planner->hand_staged)
        return TSR_OK;
    if (!list_numbers(staging))
        return TSR_NOMEM;
    if (asked > 0 && asked != (int64_t)staging->n_hand)
        return refuse(staging, NULL, "omit --stages, or remove the stages of the nodes",
                      "the number of stages that nodes already have differs from --stages");
    struct stage_window *windows =
        ARENA_ARRAY(&staging->planner->arena, struct stage_window, staging->n_hand + 1);
    if (!windows)
        return TSR_NOMEM;
    for (size_t k = 0; k < staging->n_hand; k++)
        windows[k] = (struct stage_window){.low = 0, .high = n_nodes};
    for (size_t i = 0; i < n_nodes; i++)
        if (staging->hand[i] >= 0)
            narrow(staging, windows, i);
    for (size_t k = 0; k + 1 < staging->n_hand; k++)
        if (windows[k].low > windows[k].high)
            return refuse(staging, staging->planner->nodes[windows[k].high].node,
                          "reorder the nodes, or change their stages",
                          "this node comes before a node of an earlier stage");
    staging->windows = windows;
    return TSR_OK;
}

// True if stage k may end before node `before`. The last stage always ends with the graph.
bool tsr__stages_may_end(const struct staging *staging, size_t k, size_t before)
{
    if (!staging->windows || k + 1 >= staging->n_hand)
        return true;
    return before >= staging->windows[k].low && before <= staging->windows[k].high;
}
