// SPDX-License-Identifier: Apache-2.0
// derive_scan.c - rules of recurrent layers, signal transforms, optimizers and the classical models
// of ai.onnx.ml: whatever works row by row can be sharded by rows.
//
//   LSTM of x [t b i]            [t b i],[v w i],[v w h],... -> [t v b h]?,...; rep t w i h: the
//                                batch
//                                b can be sharded, and the directions v if there are two
//   STFT, frame 16, step 8       frames f: frames 4..7 of 15 need samples 32..71 of 128 (a window)
//   DFT along 1 of [2 16 2]      [d0 d1 _] -> [d0 f _]; rep d1 f: every frequency needs all samples
//   Adam                         element-wise: parameter, gradient and states are sharded equally
#include "rules/derive/derive.h"

// ---- recurrent layers --------------------------------------------------------------------------

// Forward and backward are separate layers stored together: a device may have one of them. Lists of
// activations have an entry for each; which of their parameters belong to which is unknown.
static bool has_directions(const struct derivation *derivation)
{
    const tsr_attr *activations = tsr__attr_of(derivation->shapes, derivation->node, "activations");
    return tsr__derive_text_is(derivation, "direction", "bidirectional") &&
           (!activations || tsr__attr_length(activations) % 2 == 0) &&
           !tsr__attr_of(derivation->shapes, derivation->node, "activation_alpha") &&
           !tsr__attr_of(derivation->shapes, derivation->node, "activation_beta");
}

// v directions, w gates side by side. Layout 1 has the batch first.
static void recurrent(struct derivation *derivation, bool cell)
{
    static const struct {
        const char *input, *state, *result;
    } layouts[] = {{"[t b i]", "[v b h]", "[t v b h]"}, {"[b t i]", "[b v h]", "[b t v h]"}};
    bool batch_first = tsr__derive_int(derivation, "layout", 0) != 0;
    const char *state = layouts[batch_first].state;
    tsr__derive_add(derivation, "%s,[v w i],[v w h],[v _]?,[b]?,%s?", layouts[batch_first].input,
                    state);
    if (cell)
        tsr__derive_add(derivation, ",%s?,[v _]?", state);
    tsr__derive_add(derivation, " -> %s?,%s?", layouts[batch_first].result, state);
    if (cell)
        tsr__derive_add(derivation, ",%s?", state);
    tsr__derive_add(derivation, "; rep t w i h");
    if (!has_directions(derivation)) {
        tsr__derive_add(derivation, " v");
        return;
    }
    tsr__derive_size(derivation, STR("v"), (tsr_dim){2, ""});
    tsr__derive_add(derivation, "; word direction=v forward reverse; share activations=v");
}

void tsr__derive_lstm(struct derivation *derivation)
{
    recurrent(derivation, true);
}

void tsr__derive_recurrent(struct derivation *derivation) // GRU and RNN
{
    recurrent(derivation, false);
}

// ---- signals -----------------------------------------------------------------------------------

// A transform along axis 1 of [b t 2]: "[d0 d1 _],·?,·? -> [d0 f _]; rep d1 f". `hosts`: length and
// axis as inputs.
static void transform(struct derivation *derivation, int axis, int rank, const char *hosts)
{
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'd', 0, rank - 1);
    tsr__derive_add(derivation, "_]%s -> [", hosts);
    tsr__derive_letters(derivation, 'd', 0, axis);
    tsr__derive_add(derivation, "f ");
    tsr__derive_letters(derivation, 'd', axis + 1, rank - 1);
    tsr__derive_add(derivation, "_]; rep d%d f", axis);
}

// The last dimension holds real and imaginary parts.
static void transform_axis(struct derivation *derivation, int64_t axis, const char *hosts)
{
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return;
    int at = tsr__axis(axis, rank);
    if (at < 0 || at == rank - 1)
        tsr__derive_none(derivation, DERIVE_NO_AXIS);
    else
        transform(derivation, at, rank, hosts);
}

void tsr__derive_dft_17(struct derivation *derivation)
{
    transform_axis(derivation, tsr__derive_int(derivation, "axis", 1), ",·?");
}

void tsr__derive_dft(struct derivation *derivation)
{
    const tsr_value *value = input_at(derivation->node, 2);
    int64_t axis = -2;
    if (value && tsr__shapes_ints(derivation->shapes, value, &axis, 1) != 1)
        tsr__derive_none(derivation, "the axis is not known");
    else
        transform_axis(derivation, axis, ",·?,·?");
}

// A frame begins every `step` elements and has `frame` of them; frames a .. b - 1 need no more than
// (b - 1 - a) * step + frame elements of the signal.
void tsr__derive_stft(struct derivation *derivation)
{
    struct shape signal = tsr__derive_in(derivation, 0), window = tsr__derive_in(derivation, 2);
    const tsr_value *steps = input_at(derivation->node, 1);
    int64_t step = 0, frame = -1, length = -1;
    if (window.rank == 1)
        frame = window.dims[0].value;
    if (signal.rank == 3)
        length = signal.dims[1].value;
    derivation->text = "[b t _],·,[_]?,·? -> [b f u _]; rep t f u";
    if (tsr__derive_has(derivation, 3) &&
        tsr__shapes_ints(derivation->shapes, tsr_node_input(derivation->node, 3), &frame, 1) != 1)
        return;
    if (!derivation->arena || !steps ||
        tsr__shapes_ints(derivation->shapes, steps, &step, 1) != 1 || step < 1 || frame < 1 ||
        length < frame || length > INT32_MAX)
        return;
    tsr__derive_add(derivation,
                    "[b f^ _],·,[_]?,·? -> [b f u _]; rep u; win 0 1 f %lld %lld %lld 0 %lld",
                    (long long)length, (long long)((length - frame) / step + 1), (long long)step,
                    (long long)frame);
}

// ---- optimizers --------------------------------------------------------------------------------

// R and T, then n tensors of each kind: parameters, gradients, one or two states. Element by
// element. Two parameters of Adagrad: "[],[],[A0*],[A1*],[A0*],[A1*],[A0*],[A1*] ->
// [A0*],[A1*],[A0*],[A1*]".
static void optimizer(struct derivation *derivation, int kinds)
{
    int inputs = (int)tsr_node_input_count(derivation->node), n = (inputs - 2) / kinds;
    if (n < 1 || inputs != 2 + n * kinds || n * 8 > RULE_MAX_FACTORS) {
        tsr__derive_none(derivation, "another number of inputs than expected");
        return;
    }
    tsr__derive_add(derivation, "[],[]");
    for (int i = 0; i < n * kinds; i++)
        tsr__derive_add(derivation, ",[A%d*]", i % n);
    tsr__derive_add(derivation, " -> ");
    for (int i = 0; i < n * (kinds - 1); i++)
        tsr__derive_add(derivation, "%s[A%d*]", text_if(i > 0, ","), i % n);
}

void tsr__derive_adagrad(struct derivation *derivation) // and Momentum
{
    optimizer(derivation, 3);
}

void tsr__derive_adam(struct derivation *derivation)
{
    optimizer(derivation, 4);
}

// ---- rows --------------------------------------------------------------------------------------

// One row alone has no dimension for rows.
void tsr__derive_rows(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    if (rank >= 0 && rank != 2)
        tsr__derive_none(derivation, "there is one row only");
}

// Columns of [A* v] by their numbers: one list of them is a factor t of the result, a matrix of
// them is taken flat and stays whole.
void tsr__derive_feature_extractor(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0), at = tsr__derive_rank(derivation, 1);
    if (rank < 0 || at < 0)
        return;
    if (rank < 2 || at < 1 || at > DERIVE_MAX_RANK) {
        tsr__derive_none(derivation, "there is one row only");
        return;
    }
    if (at == 1) {
        derivation->text = "[A* v],[t] -> [A* t]; rep v";
        return;
    }
    tsr__derive_add(derivation, "[A* v],[");
    for (int i = 0; i < at; i++)
        tsr__derive_add(derivation, "_ ");
    tsr__derive_add(derivation, "] -> [A* t]; rep v t");
}

// Two halves side by side, one of which steers the other.
void tsr__derive_halves(struct derivation *derivation)
{
    tsr__derive_size(derivation, STR("s"), (tsr_dim){2, ""});
}
