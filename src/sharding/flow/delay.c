// SPDX-License-Identifier: Apache-2.0
// delay.c - delays the all-reduce of partial sums until they have been added to other partial sums.
// This replaces several communications by one. The model's metadata names the delayed values,
// because annotations cannot express this.
//
// A value may stay a partial sum if all its readers accept partial inputs (rules: linear.c), on the
// same devices and in the same layout. All members of a group must have the same shard of the
// reader's output.
//
// Example:
//     Y = A x B, Z = C x D, R = Y + Z; the inner dimensions are sharded over devices 0 and 1.
//     at once: device 0 has Y0, device 1 has Y1; AllReduce(Y0, Y1); AllReduce(Z0, Z1); R = Y + Z
//     delayed: each device adds its own, R0 = Y0 + Z0 and R1 = Y1 + Z1; one AllReduce(R0, R1)
//
// If a bias is replicated, R = Y + bias, only one of the two devices may add it: R0 = Y0 + bias and
// R1 = Y1. So a node that reads partial sums records which of its inputs are partial (pending). Its
// own output is then a partial sum, with the groups and the reduction of its producer.
#include "sharding/layouts/internal.h"

// State of the pass. check_reader tests one reader of `from` at a time and clears `fits` if the
// reader does not accept a partial sum.
struct delay {
    struct flow *flow;
    bool *asked;                      // by value id: the metadata requests a delay
    const struct node_flow **of_node; // by node id, or NULL
    const struct node_flow *from;
    bool fits;
};

bool tsr__groups_share(const struct device_group *groups, size_t n,
                       const struct tile_layout *layout)
{
    for (size_t group = 0; group < n; group++)
        for (size_t i = 0; i < groups[group].n; i++) {
            int64_t shard = tsr__layout_shard_of(layout, groups[group].devices[i], 0);
            if (shard < 0 || shard != tsr__layout_shard_of(layout, groups[group].devices[0], 0) ||
                tsr__layout_shard_of(layout, groups[group].devices[i], shard + 1) >= 0)
                return false;
        }
    return true;
}

// True if both nodes have the same kind of reduction over the same groups of devices, in the same
// order.
static bool same_groups(const struct node_flow *x, const struct node_flow *y)
{
    if (x->n_groups != y->n_groups || x->combine != y->combine)
        return false;
    for (size_t group = 0; group < x->n_groups; group++) {
        const struct device_group *a = &x->groups[group], *b = &y->groups[group];
        if (a->n != b->n || memcmp(a->devices, b->devices, a->n * sizeof *a->devices) != 0)
            return false;
    }
    return true;
}

// True if both sizes are the same number or the same symbol. Two unknown sizes may differ.
static bool same_size(const tsr_dim *a, const tsr_dim *b)
{
    if (a->value >= 0 || b->value >= 0)
        return a->value == b->value;
    return a->symbol[0] && strcmp(a->symbol, b->symbol) == 0;
}

// True if two values are known to have the same shape.
static bool same_shape(const struct shapes *shapes, const tsr_value *x, const tsr_value *y)
{
    struct shape a = tsr__shapes_of(shapes, x), b = tsr__shapes_of(shapes, y);
    if (a.rank < 0 || a.rank != b.rank)
        return false;
    for (int axis = 0; axis < a.rank; axis++)
        if (!same_size(&a.dims[axis], &b.dims[axis]))
            return false;
    return true;
}

// Returns how the node passes on a partial sum at this input; SUM_STOPS: it must be reduced first.
// Example: adding a partial sum [8,1] to [8,6] is rejected. The result would be a partial sum of
// shape [8,6], which has more elements to reduce.
enum sum_mode tsr__sum_fits(const struct shapes *shapes, const tsr_node *node, size_t input)
{
    enum sum_mode mode = tsr__rule_sum(node, input);
    const tsr_value *y = tsr_node_output_count(node) == 1 ? tsr_node_output(node, 0) : NULL;
    if (!y || (mode == SUM_ADDS && !same_shape(shapes, tsr_node_input(node, input), y)))
        return SUM_STOPS;
    return mode;
}

// Returns the flow of the node that produces a value. NULL: the value is an input of the model, a
// constant, or produced in a body.
static const struct node_flow *producer(const struct delay *delay, const tsr_value *value)
{
    const tsr_node *node = value ? tsr_value_producer(value) : NULL;
    return node ? delay->of_node[tsr__node_id(node)] : NULL;
}

// True if the node `flow` may read a partial sum at this input, given its other inputs. Examples:
// Mul(P, 2) may read a partial P. Mul(P, Q) with a partial Q may not, because (p0 + p1)(q0 + q1) is
// not p0 q0 + p1 q1; nor may Mul(P, P). If another input is partial too, it must have the same
// groups, and the node must add the two inputs.
static bool others_fit(const struct delay *delay, const struct node_flow *flow, size_t input,
                       enum sum_mode mode)
{
    for (size_t i = 0; i < tsr_node_input_count(flow->node); i++) {
        const struct node_flow *other = producer(delay, tsr_node_input(flow->node, i));
        if (i != input && other && other->delayed &&
            (mode != SUM_ADDS || !same_groups(other, delay->from)))
            return false;
        if (i != input && tsr_node_input(flow->node, i) == tsr_node_input(flow->node, input) &&
            mode != SUM_ADDS)
            return false;
    }
    return true;
}

// Called for each reader of delay->from; sets delay->fits and returns true if the reader accepts a
// partial sum at this input. It must be a node of the main graph that is placed by its rule and has
// no reduction of its own. It must read the value in the producer's layout. All members of a group
// must have the same shard of the reader's output.
static bool check_reader(void *data, tsr_node *node, size_t input)
{
    struct delay *delay = data;
    bool in_main = tsr_node_graph(node) == tsr_model_graph(delay->flow->model);
    const struct node_flow *flow = in_main ? delay->of_node[tsr__node_id(node)] : NULL;
    enum sum_mode mode = tsr__sum_fits(delay->flow->shapes, node, input);
    delay->fits = flow && mode != SUM_STOPS && !flow->n_groups && !flow->place.rule->whole &&
                  !flow->bodies && flow->outputs[0] &&
                  tsr__layout_equal(flow->inputs[input], delay->from->outputs[0]) &&
                  tsr__groups_share(delay->from->groups, delay->from->n_groups, flow->outputs[0]) &&
                  others_fit(delay, flow, input, mode);
    return delay->fits;
}

// True if the reduction of the node can be delayed. Its only output must be a sum that the metadata
// lists and not an output of the model. All its readers must accept partial sums, and no spec may
// request another layout. No device may be in two groups or have several turns, because it would
// have two different partial sums.
static bool may_delay(struct arena *arena, struct delay *delay, const struct node_flow *nf)
{
    const tsr_value *value =
        tsr_node_output_count(nf->node) == 1 ? tsr_node_output(nf->node, 0) : NULL;
    if (!value || !delay->asked[tsr__value_id(value)] || !nf->n_groups ||
        nf->combine != COMBINE_SUM || nf->wanted[0] || tsr_value_is_output(value) ||
        tsr__placement_has_turns(&nf->place) ||
        !tsr__groups_disjoint(arena, nf->groups, nf->n_groups))
        return false;
    delay->from = nf;
    delay->fits = false; // it must have a reader
    tsr_value_uses(value, check_reader, delay);
    return delay->fits;
}

// If inputs of the node are partial sums, marks them in nf->pending and gives the node the groups
// of their producer. Returns false if out of memory.
static bool take_parts(struct arena *arena, const struct delay *delay, struct node_flow *nf)
{
    for (size_t i = 0; i < tsr_node_input_count(nf->node); i++) {
        const struct node_flow *from = producer(delay, tsr_node_input(nf->node, i));
        if (!from || !from->delayed)
            continue;
        bool *pending = (bool *)nf->pending;
        if (!pending)
            pending = ARENA_ARRAY(arena, bool, tsr_node_input_count(nf->node) + 1);
        if (!pending)
            return false;
        pending[i] = true;
        nf->pending = pending;
        nf->groups = from->groups;
        nf->n_groups = from->n_groups;
        nf->combine = from->combine;
    }
    return true;
}

void tsr__delayed_names(struct arena *arena, const tsr_model *model, const tsr_config *c,
                        struct map *names)
{
    const char *text = tsr_model_metadata(model, META_DELAY);
    struct str config = str_of(tsr_config_name(c));
    tsr__map_init(names, arena, 0);
    if (!text)
        return;
    while (*text) {
        struct str line = {text, strcspn(text, "\n")};
        text += line.n;
        text += *text == '\n';
        if (line.n <= config.n || line.p[config.n] != ':' ||
            memcmp(line.p, config.p, config.n) != 0)
            continue;
        tsr__map_set(names, (struct str){line.p + config.n + 1, line.n - config.n - 1}, names);
    }
}

static bool read_asked(struct arena *arena, struct delay *delay)
{
    struct map names;
    tsr__delayed_names(arena, delay->flow->model, delay->flow->config, &names);
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(delay->flow->model)); node;
         node = tsr_node_next(node))
        for (size_t o = 0; o < tsr_node_output_count(node); o++) {
            const tsr_value *value = tsr_node_output(node, o);
            if (value && tsr__map_get(&names, tsr__value_str(value)))
                delay->asked[tsr__value_id(value)] = true;
        }
    return !arena->failed;
}

// Marks the nodes whose reductions are delayed. Visits the nodes in order, so that delays can be
// chained: first take_parts makes the output of a node with partial inputs a partial sum, then
// may_delay checks the readers of that output.
bool tsr__flow_delay(struct arena *arena, struct flow *flow)
{
    if (!tsr_model_metadata(flow->model, META_DELAY))
        return true;
    struct delay delay = {.flow = flow};
    size_t ids = tsr__model_node_ids(flow->model);
    delay.asked = ARENA_ARRAY(arena, bool, tsr__model_value_ids(flow->model) + 1);
    delay.of_node = ARENA_ARRAY(arena, const struct node_flow *, ids + 1);
    if (!delay.asked || !delay.of_node)
        return false;
    for (size_t i = 0; i < flow->n_nodes; i++)
        delay.of_node[tsr__node_id(flow->nodes[i].node)] = &flow->nodes[i];
    if (!read_asked(arena, &delay))
        return false;
    for (size_t i = 0; i < flow->n_nodes; i++) {
        if (!take_parts(arena, &delay, &flow->nodes[i]))
            return false;
        flow->nodes[i].delayed = may_delay(arena, &delay, &flow->nodes[i]);
    }
    return true;
}
