// SPDX-License-Identifier: Apache-2.0
// profile.c - assigns the time of an engine's node to a node of the graph.
//
// Engines fuse nodes and rename the result; the new names begin with the name of a node or of its
// output:
//
//     profile                                       graph
//     layer0_q, MatMul                              the node layer0_q
//     layer0_scores/MatMulScaleFusion/, FusedMatMul the node layer0_scores
//     Relu_4_0_nchwc, Conv                          the Conv before the Relu whose output is
//                                                   Relu_4_0
//     ReorderInput                                  none: it counts in the sum alone
#include "measure/profile.h"

#include <jansson.h>
#include <stdio.h>

#define MOST_BYTES ((size_t)64 << 20) // traces are limited to 16 MiB
#define TAIL       "_kernel_time"
// minimum share of a node's time after subtracting the overhead of the profile
#define LEAST_SHARE 0.3
#define MOST_STEPS  4 // number of producers to search before the named node

// ---- reading -----------------------------------------------------------------------------------

// Returns the name of the kernel in an event, without its suffix; empty: the event is not a kernel.
static struct str kernel_name(const json_t *event)
{
    const char *kind = json_string_value(json_object_get(event, "cat"));
    const char *name = json_string_value(json_object_get(event, "name"));
    size_t tail = strlen(TAIL);
    if (!kind || !name || strcmp(kind, "Node") != 0)
        return STR("");
    size_t length = strlen(name);
    if (length <= tail || strcmp(name + length - tail, TAIL) != 0)
        return STR("");
    return (struct str){name, length - tail};
}

// Adds a profiled event. If a node runs several times, the shortest time is used, because other
// load only makes times longer.
static bool add_event(struct arena *arena, const json_t *event, struct profile *out)
{
    struct str name = kernel_name(event);
    const char *op = json_string_value(json_object_get(json_object_get(event, "args"), "op_name"));
    double seconds = json_number_value(json_object_get(event, "dur")) / 1e6;
    int rank = (int)json_integer_value(json_object_get(event, "pid"));
    if (!name.n || !op)
        return true;
    struct str key = tsr__arena_printf(arena, "%d %.*s", rank, (int)name.n, name.p);
    void **at = key.p ? tsr__map_at(&out->by_name, key) : NULL;
    if (!at)
        return false;
    size_t number = (size_t)(uintptr_t)*at; // counted from 1
    if (number) {
        struct profile_node *known = &out->nodes.at[number - 1];
        if (seconds < known->seconds)
            known->seconds = seconds;
        return true;
    }
    if (!vec_add(arena, &out->nodes,
                 (struct profile_node){rank, tsr__arena_str(arena, name).p,
                                       tsr__arena_str(arena, str_of(op)).p, seconds}))
        return false;
    *at = (void *)(uintptr_t)out->nodes.n;
    return !arena->failed;
}

tsr_status tsr__profile_read(tsr_session *session, struct arena *arena, const char *path,
                             struct profile *out)
{
    struct str text;
    json_error_t error;
    json_t *root = NULL;
    *out = (struct profile){0};
    tsr__map_init(&out->by_name, arena, 256);
    TRY(tsr__file_read(session, arena, path, MOST_BYTES, &text));
    tsr_status st = tsr__json_load(session, text, 0, &error, &root);
    if (st != TSR_OK)
        return st;
    const json_t *events = json_object_get(root, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); i++)
        if (!add_event(arena, json_array_get(events, i), out)) {
            st = TSR_NOMEM;
            break;
        }
    json_decref(root);
    return st;
}

// ---- assigning times to nodes -------------------------------------------------------------------

// Maps the names of nodes and outputs to the tasks of a device, counted from 1.
static bool name_tasks(struct arena *arena, const struct sim_device *device, struct map *names)
{
    tsr__map_init(names, arena, 2 * device->tasks.n);
    for (size_t i = 0; i < device->tasks.n; i++) {
        const tsr_node *node = device->tasks.at[i].from;
        if (!node)
            continue;
        void **at = tsr__map_at(names, str_of(tsr_node_name(node)));
        if (!at)
            return false;
        if (!*at && tsr_node_name(node)[0])
            *at = (void *)(uintptr_t)(i + 1);
        for (size_t k = 0; k < tsr_node_output_count(node); k++) {
            const tsr_value *made = tsr_node_output(node, k);
            at = made ? tsr__map_at(names, str_of(tsr_value_name(made))) : NULL;
            if (at && !*at)
                *at = (void *)(uintptr_t)(i + 1);
        }
    }
    return !arena->failed;
}

// Returns the number, from 1, of the task with the longest name that is a prefix of `name`; 0:
// none. After the prefix, `name` must end or go on with one of the characters "_/ :".
static size_t task_named(const struct map *names, const char *name)
{
    for (size_t length = strlen(name); length > 0; length--) {
        if (name[length] && !strchr("_/ :", name[length]))
            continue;
        void *at = tsr__map_get(names, (struct str){name, length});
        if (at)
            return (size_t)(uintptr_t)at;
    }
    return 0;
}

// Returns the node if its operator is `op`, else a producer with that operator at most `steps`
// steps before it; NULL: none.
static const tsr_node *before(const tsr_node *node, const char *op, int steps)
{
    if (strcmp(tsr_node_op(node), op) == 0)
        return node;
    if (steps == 0)
        return NULL;
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *read = tsr_node_input(node, i);
        const tsr_node *maker = read ? tsr_value_producer(read) : NULL;
        const tsr_node *found = maker ? before(maker, op, steps - 1) : NULL;
        if (found)
            return found;
    }
    return NULL;
}

// Returns the task of a node of the engine; NULL: none. It is the task whose name is a prefix of
// the engine's name, or a producer before that task with the engine's operator.
static struct sim_task *task_of(const struct map *names, struct sim_device *device,
                                const struct profile_node *from)
{
    size_t number = task_named(names, from->name);
    if (!number)
        return NULL;
    struct sim_task *named = &device->tasks.at[number - 1];
    const tsr_node *node = before(named->from, from->op, MOST_STEPS);
    if (!node || node == named->from)
        return named;
    const tsr_value *made = tsr_node_output_count(node) ? tsr_node_output(node, 0) : NULL;
    void *at = made ? tsr__map_get(names, str_of(tsr_value_name(made))) : NULL;
    return at ? &device->tasks.at[(size_t)(uintptr_t)at - 1] : named;
}

// Sets the times of the tasks from a profile. Example: a node of 9 us with an overhead of 2 us
// gives 7 us. A very short node keeps LEAST_SHARE of its time.
double tsr__profile_share_out(const struct profile *profile, struct sim *sim, int rank,
                              double overhead)
{
    struct sim_device *device = &sim->devices[rank];
    struct map names;
    double sum = 0;
    for (size_t i = 0; i < device->tasks.n; i++)
        device->tasks.at[i].seen = 0;
    if (!name_tasks(sim->arena, device, &names))
        return 0;
    for (size_t i = 0; i < profile->nodes.n; i++) {
        const struct profile_node *node = &profile->nodes.at[i];
        if (node->rank != rank)
            continue;
        double own = node->seconds - overhead;
        if (own < LEAST_SHARE * node->seconds)
            own = LEAST_SHARE * node->seconds;
        sum += own;
        struct sim_task *task = task_of(&names, device, node);
        if (task)
            task->seen += own;
    }
    return sum;
}
