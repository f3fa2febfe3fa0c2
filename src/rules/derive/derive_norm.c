// SPDX-License-Identifier: Apache-2.0
// derive_norm.c - rules of softmax and the normalisations. Dimensions whose statistics a node takes
// are `stat`: whole while the node stands, cut once it is replaced (expand_norm.c); the others
// pass.
//
// Softmax of [2 3 4] along its last axis is "[d0 d1 d2] -> [d0 d1 d2]; stat d2": rows d0 and d1 may
// be cut for nothing; a cut of d2 replaces the node by a greatest, a sum and what goes between.
#include "rules/derive/derive.h"

#define EXPAND_OPSET 11

// ---- softmax -----------------------------------------------------------------------------------

// [d0 d1 d2] -> [d0 d1 d2]; stat of dimensions from .. to-1.
static void same_shape(struct derivation *derivation, int rank, const char *clause, int from,
                       int to)
{
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "] -> [");
    tsr__derive_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "]");
    if (from < to)
        tsr__derive_add(derivation, "; %s ", clause);
    tsr__derive_letters(derivation, 'd', from, to);
}

void tsr__derive_softmax(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", -1, rank);
    if (axis >= 0)
        same_shape(derivation, rank, tsr__derive_stat(derivation, EXPAND_OPSET, EXPAND_FLOATS),
                   axis, axis + 1);
}

// Before opset 13 everything from the axis on is one row.
void tsr__derive_softmax_flat(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    int64_t axis = tsr__derive_int(derivation, "axis", 1);
    if (rank < 0)
        return;
    axis = from_front(axis, rank);
    if (axis < 0 || axis > rank) {
        tsr__derive_none(derivation, DERIVE_NO_AXIS);
        return;
    }
    same_shape(derivation, rank, tsr__derive_stat(derivation, EXPAND_OPSET, EXPAND_FLOATS),
               (int)axis, rank);
}

void tsr__derive_lp_norm(struct derivation *derivation)
{
    tsr__derive_softmax(derivation); // the same dimensions
}

// Mean and variance run over the axes, 0 2 3 unless the node says others: those need statistics of
// all parts ("stat"), or stay whole ("rep"); the others pass through.
void tsr__derive_mvn(struct derivation *derivation)
{
    static const int64_t usual[] = {0, 2, 3};
    const int64_t *axes;
    size_t n = tsr_attr_ints(tsr__attr_of(derivation->shapes, derivation->node, "axes"), &axes);
    bool taken[DERIVE_MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return;
    if (!n) {
        axes = usual;
        n = TSR_COUNT(usual);
    }
    for (size_t i = 0; i < n; i++) {
        int axis = tsr__axis(axes[i], rank);
        if (axis < 0) {
            tsr__derive_none(derivation, DERIVE_NO_AXIS);
            return;
        }
        taken[axis] = true;
    }
    same_shape(derivation, rank, "", 0, 0);
    tsr__derive_add(derivation, "; %s", tsr__derive_stat(derivation, EXPAND_OPSET, EXPAND_FLOATS));
    for (int i = 0; i < rank; i++)
        if (taken[i])
            tsr__derive_add(derivation, " d%d", i);
}

// ---- layer norms -------------------------------------------------------------------------------

// A tensor that broadcasts to the input; its leading dimensions may be missing.
static void add_stretched(struct derivation *derivation, size_t i, int rank)
{
    int own = tsr__derive_in(derivation, i).rank;
    if (own < 0 || own > rank)
        own = rank;
    tsr__derive_add(derivation, ",[");
    for (int k = rank - own; k < rank; k++)
        tsr__derive_add(derivation, "d%d~ ", k);
    tsr__derive_add(derivation, "]?");
}

static void add_statistic(struct derivation *derivation, int axis, int rank)
{
    tsr__derive_add(derivation, ",[");
    tsr__derive_letters(derivation, 'd', 0, axis);
    for (int i = axis; i < rank; i++)
        tsr__derive_add(derivation, "1 ");
    tsr__derive_add(derivation, "]?");
}

// LayerNormalization and its kin: scale and shift, one or two statistics as further outputs.
void tsr__derive_layer_norm(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", -1, rank);
    if (axis < 0)
        return;
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "]");
    add_stretched(derivation, 1, rank);
    add_stretched(derivation, 2, rank);
    tsr__derive_add(derivation, " -> [");
    tsr__derive_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "]");
    add_statistic(derivation, axis, rank);
    add_statistic(derivation, axis, rank);
    tsr__derive_add(derivation, "; %s ", tsr__derive_stat(derivation, EXPAND_OPSET, EXPAND_FLOATS));
    tsr__derive_letters(derivation, 'd', axis, rank);
}

// ONNX Runtime adds a skip of [2 3 6] to an input of [4 3 6] repeatedly: such a batch cannot be
// sharded, and whether an input of [n 3 6] is such a case is unknown before the run.
static bool skip_repeats(const struct derivation *derivation)
{
    struct shape input = tsr__derive_in(derivation, 0), skip = tsr__derive_in(derivation, 1);
    if (skip.rank < 3 || skip.rank != input.rank)
        return false;
    int64_t rows = skip.dims[0].value;
    return rows > 1 && rows != input.dims[0].value;
}

// Input and skip are added first: further outputs are two statistics and the sum.
void tsr__derive_skip_norm(struct derivation *derivation)
{
    if (skip_repeats(derivation)) {
        tsr__derive_none(derivation, "the batch of the skip is not known to be that of the input");
        return;
    }
    const char *stat = tsr__derive_stat(derivation, 13, EXPAND_FLOATS);
    // Inference does not use statistics as outputs; nodes that have them are not replaced.
    if (output_at(derivation->node, 1) || output_at(derivation->node, 2))
        stat = "rep";
    tsr__derive_add(derivation,
                    "[A* r],[A~ r],[r],[r]?,[r]? -> [A* r],[A* 1]?,[A* 1]?,[A* r]?; %s r", stat);
}

// Positions count from the start of the sequence unless they are given: then it may be cut, where
// no mask is summed over it.
void tsr__derive_embed_norm(struct derivation *derivation)
{
    bool cut = tsr__derive_has(derivation, 8) && !tsr__derive_has(derivation, 7);
    tsr__derive_add(derivation,
                    "[b t],[b t]?,[_ r],[_ r],[_ r]?,[r],[r],[b t]?,[b~ t]? -> "
                    "[b t r],[b]?,[b t r]?; rep r%s",
                    text_if(!cut, " t"));
    // Without a mask the second output is zero for every row.
}

// ---- channels ----------------------------------------------------------------------------------

// Channels are (g c): groups g are free, their insides c are what statistics run over.
static bool take_groups(struct derivation *derivation, const char *name)
{
    int64_t groups = tsr__derive_int(derivation, name, 0);
    if (groups < 1) {
        tsr__derive_none(derivation, "the number of groups is not known");
        return false;
    }
    tsr__derive_size(derivation, STR("g"), (tsr_dim){groups, ""});
    return true;
}

void tsr__derive_group_norm(struct derivation *derivation)
{
    struct shape x = tsr__derive_in(derivation, 0);
    bool known = x.rank > 1 && x.dims[1].value > 0; // the channels are, so they can be grouped
    if (take_groups(derivation, "num_groups"))
        tsr__derive_add(derivation,
                        "[n (g c) S*],[(g c)],[(g c)] -> [n (g c) S*]; %s c S; attr num_groups=g",
                        tsr__derive_stat_if(known, derivation, EXPAND_OPSET, EXPAND_FLOATS));
}

// Scale and shift were per group at first.
void tsr__derive_group_norm_18(struct derivation *derivation)
{
    if (take_groups(derivation, "num_groups"))
        tsr__derive_add(derivation,
                        "[n (g c) S*],[g],[g] -> [n (g c) S*]; rep c S; attr num_groups=g");
}

// Channels last; a skip and a bias may be added first.
void tsr__derive_group_norm_last(struct derivation *derivation)
{
    if (!take_groups(derivation, "groups"))
        return;
    if (tsr__derive_int(derivation, "channels_last", 1))
        tsr__derive_add(derivation, "[n S* (g c)],[(g c)],[(g c)],[n S~ (g c)]?,[(g c)]? -> "
                                    "[n S* (g c)],[n S* (g c)]?; rep c S; attr groups=g");
    else
        tsr__derive_add(derivation, "[n (g c) S*],[(g c)],[(g c)],[n (g c) S~]?,[(g c)]? -> "
                                    "[n (g c) S*],[n (g c) S*]?; rep c S; attr groups=g");
}

void tsr__derive_instance_norm(struct derivation *derivation)
{
    tsr__derive_add(derivation, "[n c S*],[c],[c] -> [n c S*]; %s S",
                    tsr__derive_stat(derivation, EXPAND_OPSET, EXPAND_FLOATS));
}

// Training takes statistics of the batch and gives them back.
void tsr__derive_batch_norm(struct derivation *derivation)
{
    int64_t opset = tsr__node_opset(derivation->node);
    bool training = false;
    if (opset >= 14)
        training = tsr__derive_int(derivation, "training_mode", 0) != 0;
    else if (opset < 7)
        training = tsr__derive_int(derivation, "is_test", 0) == 0;
    for (size_t i = 1; i < tsr_node_output_count(derivation->node); i++)
        training = training || tsr_node_output(derivation->node, i);
    if (training)
        derivation->whole = "training takes the mean and variance of the whole batch";
    if (opset < 9 && !tsr__derive_int(derivation, "spatial", 1))
        tsr__derive_none(derivation, "statistics per element of space are not supported");
}
