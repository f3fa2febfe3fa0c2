// SPDX-License-Identifier: Apache-2.0
// derive_norm.c - rules of Softmax and the normalizations. Dimensions over which a node computes
// statistics are `stat`: sharding them expands the node (expand_norm.c). The others pass through.
//
// Softmax of [2 3 4] along its last axis is "[d0 d1 d2] -> [d0 d1 d2]; stat d2". Sharding d0 or d1
// costs no communication. Sharding d2 replaces the node by a maximum, a sum and the nodes between.
#include "rules/derive/derive.h"

// ---- softmax -----------------------------------------------------------------------------------

// Builds the rule of a softmax, with statistics over dimensions from .. to-1.
static void softmax_over(struct derivation *derivation, int rank, int from, int to)
{
    tsr__rule_axes(&derivation->rule, rank, from);
    tsr__rule_text(&derivation->rule, "[@] -> [@]");
    tsr__rule_kind_range(&derivation->rule, FACTOR_STAT, 'd', from, to);
}

void tsr__derive_softmax(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", -1, rank);
    if (axis >= 0)
        softmax_over(derivation, rank, axis, axis + 1);
}

// Derives the rule of Softmax before opset 13, where all dimensions from the axis on are one row.
void tsr__derive_softmax_flat(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    int64_t axis = tsr__derive_int(derivation, "axis", 1);
    if (rank < 0)
        return;
    axis = from_front(axis, rank);
    if (tsr__derive_none_if(derivation, axis < 0 || axis > rank, DERIVE_NO_AXIS))
        return;
    softmax_over(derivation, rank, (int)axis, rank);
}

// Derives the rule of MeanVarianceNormalization. Mean and variance are computed over the axes, by
// default 0 2 3; the others pass through.
void tsr__derive_mvn(struct derivation *derivation)
{
    static const int64_t usual[] = {0, 2, 3};
    const int64_t *axes;
    size_t n = tsr__derive_list(derivation, "axes", &axes);
    bool taken[DERIVE_MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return;
    if (!n) {
        axes = usual;
        n = TSR_COUNT(usual);
    }
    if (!tsr__derive_mark(derivation, rank, axes, (int64_t)n, taken))
        return;
    tsr__rule_axes(&derivation->rule, rank, 0);
    tsr__rule_text(&derivation->rule, "[@] -> [@]");
    for (int i = 0; i < rank; i++)
        if (taken[i])
            tsr__rule_kind_range(&derivation->rule, FACTOR_STAT, 'd', i, i + 1);
}

// ---- layer norms -------------------------------------------------------------------------------

// Adds input i, which broadcasts to input 0; its leading dimensions may be missing.
static void add_stretched(struct derivation *derivation, size_t i, int rank)
{
    int own = tsr__derive_in(derivation, i).rank;
    if (own < 0 || own > rank)
        own = rank;
    tsr__rule_input(&derivation->rule);
    for (int k = rank - own; k < rank; k++)
        tsr__rule_marked_dim(&derivation->rule, 'd', k, DIM_BROADCAST);
    tsr__rule_optional(&derivation->rule);
}

// Adds an output "[d0 d1 1]?" for a mean or a deviation.
static void add_statistic(struct rule_builder *rule, int axis, int rank)
{
    tsr__rule_output(rule);
    tsr__rule_range(rule, 'd', 0, axis);
    tsr__rule_ones(rule, rank - axis);
    tsr__rule_optional(rule);
}

// Derives the rule of LayerNormalization and similar operators. They have a scale and a shift, and
// may return statistics.
void tsr__derive_layer_norm(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", -1, rank);
    if (axis < 0)
        return;
    tsr__rule_input(rule);
    tsr__rule_range(rule, 'd', 0, rank);
    add_stretched(derivation, 1, rank);
    add_stretched(derivation, 2, rank);
    tsr__rule_output(rule);
    tsr__rule_range(rule, 'd', 0, rank);
    add_statistic(rule, axis, rank);
    add_statistic(rule, axis, rank);
    tsr__rule_kind_range(rule, FACTOR_STAT, 'd', axis, rank);
}

// True if ONNX Runtime may repeat the skip. It repeats a skip of [2 3 6] to add it to an input of
// [4 3 6], and such a batch cannot be sharded. For an input of [n 3 6] this is unknown before the
// run.
static bool skip_repeats(const struct derivation *derivation)
{
    struct shape input = tsr__derive_in(derivation, 0), skip = tsr__derive_in(derivation, 1);
    if (skip.rank < 3 || skip.rank != input.rank)
        return false;
    int64_t rows = skip.dims[0].value;
    return rows > 1 && rows != input.dims[0].value;
}

// Derives the rule of SkipLayerNormalization. Input and skip are added first; further outputs are
// two statistics and that sum.
void tsr__derive_skip_norm(struct derivation *derivation)
{
    if (skip_repeats(derivation)) {
        tsr__derive_none(derivation, "the skip input may have another batch size than the input");
        return;
    }
    // Inference does not use statistics as outputs; nodes that have them are not expanded.
    bool plain = !tsr_node_output(derivation->node, 1) && !tsr_node_output(derivation->node, 2);
    tsr__rule_inputs(&derivation->rule, "[A* r],[A~ r],[r],[r]?,[r]?");
    tsr__rule_outputs(&derivation->rule, "[A* r],[A* 1]?,[A* 1]?,[A* r]?");
    tsr__rule_kind(&derivation->rule, stat_if(plain), "r");
}

// Derives the rule of EmbedLayerNormalization. The sequence can be sharded if positions are an
// input and there is no mask: default positions count from its start, and a mask is summed over it.
// Without a mask the second output is 0 for every row.
void tsr__derive_embed_norm(struct derivation *derivation)
{
    bool shards = tsr__derive_has(derivation, 8) && !tsr__derive_has(derivation, 7);
    tsr__rule_inputs(&derivation->rule, "[b t],[b t]?,[_ r],[_ r],[_ r]?,[r],[r],[b t]?,[b~ t]?");
    tsr__rule_outputs(&derivation->rule, "[b t r],[b]?,[b t r]?");
    tsr__rule_kind(&derivation->rule, FACTOR_REP, shards ? "r" : "r t");
}

// ---- channels ----------------------------------------------------------------------------------

// Sets the size of g, the number of groups of channels (g c). Groups can be sharded; statistics are
// computed over the channels c of a group. False: unknown, and the derivation has ended.
static bool take_groups(struct derivation *derivation, const char *name)
{
    int64_t groups = tsr__derive_int(derivation, name, 0);
    if (groups < 1)
        return tsr__derive_none(derivation, "the number of groups is not known");
    tsr__derive_size(derivation, "g", groups);
    return true;
}

void tsr__derive_group_norm(struct derivation *derivation)
{
    struct shape x = tsr__derive_in(derivation, 0);
    bool channels_known = x.rank > 1 && x.dims[1].value > 0;
    if (!take_groups(derivation, "num_groups"))
        return;
    tsr__rule_text(&derivation->rule,
                   "[n (g c) S*],[(g c)],[(g c)] -> [n (g c) S*]; attr num_groups=g");
    tsr__rule_kind(&derivation->rule, stat_if(channels_known), "c S");
}

// Derives the rule of GroupNormalization in opset 18, where scale and shift were per group.
void tsr__derive_group_norm_18(struct derivation *derivation)
{
    take_groups(derivation, "num_groups");
}

// Derives the rule of com.microsoft GroupNorm. Channels are last by default; a skip and a bias may
// be added first.
void tsr__derive_group_norm_last(struct derivation *derivation)
{
    if (!take_groups(derivation, "groups"))
        return;
    if (tsr__derive_int(derivation, "channels_last", 1))
        derivation->text = "[n S* (g c)],[(g c)],[(g c)],[n S~ (g c)]?,[(g c)]? -> "
                           "[n S* (g c)],[n S* (g c)]?; rep c S; attr groups=g";
    else
        derivation->text = "[n (g c) S*],[(g c)],[(g c)],[n (g c) S~]?,[(g c)]? -> "
                           "[n (g c) S*],[n (g c) S*]?; rep c S; attr groups=g";
}

// Derives the rule of BatchNormalization: the rule text of the operator table. A node in training
// computes statistics of the full batch and is not sharded.
void tsr__derive_batch_norm(struct derivation *derivation)
{
    int64_t opset = tsr__node_opset(derivation->node);
    bool training = false;
    if (opset >= 14)
        training = tsr__derive_int(derivation, "training_mode", 0) != 0;
    else if (opset < 7)
        training = tsr__derive_int(derivation, "is_test", 0) == 0;
    if (training || !tsr__derive_outputs_end(derivation, 1))
        derivation->whole = "training takes the mean and variance of the full batch";
    if (opset < 9 && !tsr__derive_int(derivation, "spatial", 1))
        tsr__derive_none(derivation, "statistics per element of space are not supported");
}
