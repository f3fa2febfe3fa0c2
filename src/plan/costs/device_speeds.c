// SPDX-License-Identifier: Apache-2.0
// device_speeds.c - estimates how fast each device runs the model, and how many bytes the model
// keeps in memory. Data sheets are not enough: an A100 has more float16 throughput than an L4 but
// less float32. Decoding depends on neither.
//
//     Example: decoding one token reads weights of 15 GB in bfloat16. It takes 9.6 ms at 1555 GB/s
//     and 50 ms at 300 GB/s, so the speeds are 104 and 20 runs per second.
#include "plan/costs/planner.h"

static double bytes_of(const struct planner *planner, const tsr_value *value)
{
    if (!value)
        return 0;
    const struct plan_value *at = &planner->values[tsr__value_id(value)];
    double elements = 1;
    for (int d = 0; d < at->rank; d++)
        elements *= (double)at->shape[d];
    return elements * at->bits / 8;
}

static bool is_updated(const struct planner *planner, const tsr_value *value)
{
    return value && planner->values[tsr__value_id(value)].updated;
}

// Returns the bytes that the unsharded node reads and writes. Caches that it updates in place are
// not counted as outputs. A lookup reads at most as many bytes of its table as the node outputs.
static double bytes_touched(const struct planner *planner, const struct plan_node *node,
                            const int64_t *sizes)
{
    double outputs = 0, inputs = 0;
    for (size_t i = 0; i < tsr_node_output_count(node->node); i++)
        if (!is_updated(planner, tsr_node_output(node->node, i)))
            outputs += bytes_of(planner, tsr_node_output(node->node, i));
    for (size_t i = 0; i < tsr_node_input_count(node->node); i++) {
        if (rule_steers(node->rule, SIDE_INPUT, i) || read_before(node->node, i))
            continue;
        double read = bytes_of(planner, tsr_node_input(node->node, i));
        read *= tsr__node_reads(node->node, node->rule, (int)i, sizes);
        bool looked_up = (int)i < node->rule->n_inputs && tsr__rule_looks_up(node->rule, (int)i);
        if (looked_up && read > outputs)
            read = outputs;
        inputs += read;
    }
    return inputs + outputs;
}

// Adds the time of the unsharded node on the first n devices. Leaves out the engine's overhead,
// because sharding does not reduce it.
static void add_times(struct planner *planner, const struct plan_node *node, int64_t n,
                      double *times)
{
    const struct shapes *shapes = planner->shapes.full;
    int64_t sizes[RULE_MAX_FACTORS];
    tsr__planner_sizes(shapes, node->node, node->rule, sizes);
    for (int factor = 0; factor < node->rule->n_factors; factor++)
        sizes[factor] = int64_max(sizes[factor], 1);
    double count = tsr__node_count(node->node, shapes);
    double work = tsr__node_work(node->rule, count, sizes, sizes);
    double bytes = bytes_touched(planner, node, sizes);
    struct work_kind kind = tsr__work_kind(node->node, shapes, planner->machine.topology);
    struct node_weights weights = tsr__node_weights(node->node, node->rule, sizes);
    double held = 0;
    if (weights.input > 0)
        held = bytes_of(planner, tsr_node_input(node->node, (size_t)weights.input));
    for (int64_t device = 0; device < n; device++) {
        tsr_topology_device at =
            planner->machine.topology->device[tsr__planner_device(planner, device)];
        at.overhead = 0;
        times[device] +=
            (double)node->times * (double)tsr__weights_cost(work, kind, bytes, &weights, held, &at);
    }
}

// Returns the bytes of planner->ends.constants: constants, and values that stay on their devices.
static double kept_bytes(const struct planner *planner)
{
    double bytes = 0;
    for (size_t i = 0; i < planner->ends.constants.n; i++)
        bytes += bytes_of(planner, planner->ends.constants.at[i]);
    return bytes;
}

bool tsr__planner_speed_up(struct planner *planner)
{
    struct planner_machine *machine = &planner->machine;
    machine->speed = ARENA_ARRAY(&planner->arena, double, (size_t)machine->n);
    if (!machine->speed)
        return false;
    int64_t n = tsr__planner_alike(planner) ? 1 : machine->n;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].rule)
            add_times(planner, &planner->nodes[i], n, machine->speed);
    for (int64_t device = 0; device < n; device++)
        machine->speed[device] = 1 / (machine->speed[device] + 1); // at least a picosecond
    for (int64_t device = n; device < machine->n; device++)
        machine->speed[device] = machine->speed[0];
    machine->kept = kept_bytes(planner);
    return true;
}
