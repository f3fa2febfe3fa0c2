// SPDX-License-Identifier: Apache-2.0
// derive_scan.c - rules of recurrent layers, signal transforms, optimizers and the classical models
// of ai.onnx.ml. Operators that work row by row can be sharded by rows.
//
//   LSTM of x [t b i]            [t b i],[v w i],[v w h],... -> [t v b h]?,...; rep t w i h
//                                Batch b can be sharded, and the directions v if there are two.
//   STFT, frame 16, step 8       frames f: frames 4..7 of 15 need samples 32..71 of 128 (a window)
//   DFT along 1 of [2 16 2]      [d0 d1 _] -> [d0 f _]; rep d1 f: every frequency needs all samples
//   Adam                         element-wise: parameter, gradient and states are sharded equally
#include "rules/derive/derive.h"

// ---- recurrent layers --------------------------------------------------------------------------

// Returns true if the two directions can be sharded: they are separate layers stored together. A
// list of activations has entries for both directions. Returns false if there are alpha or beta
// values, because it is unknown which of them belong to which direction.
static bool has_directions(const struct derivation *derivation)
{
    const tsr_attr *activations = tsr__derive_attr(derivation, "activations");
    return tsr__derive_text_is(derivation, "direction", "bidirectional") &&
           (!activations || tsr__attr_length(activations) % 2 == 0) &&
           !tsr__derive_attr(derivation, "activation_alpha") &&
           !tsr__derive_attr(derivation, "activation_beta");
}

// Derives the rule of a recurrent layer. v: directions; w: concatenated gates. In layout 1 the
// batch is first. cell: the layer has a second state, the cell (LSTM).
static void recurrent(struct derivation *derivation, bool cell)
{
    struct rule_builder *rule = &derivation->rule;
    bool batch_first = tsr__derive_int(derivation, "layout", 0) != 0;
    const char *state = batch_first ? "[b v h]?" : "[v b h]?";
    tsr__rule_inputs(rule, batch_first ? "[b t i]" : "[t b i]");
    tsr__rule_inputs(rule, "[v w i],[v w h],[v _]?,[b]?");
    tsr__rule_inputs(rule, state);
    if (cell) {
        tsr__rule_inputs(rule, state);
        tsr__rule_inputs(rule, "[v _]?");
    }
    tsr__rule_outputs(rule, batch_first ? "[b t v h]?" : "[t v b h]?");
    tsr__rule_outputs(rule, state);
    if (cell)
        tsr__rule_outputs(rule, state);
    tsr__rule_kind(rule, FACTOR_REP, "t w i h");
    tsr__derive_size(derivation, "v",
                     1 + tsr__derive_text_is(derivation, "direction", "bidirectional"));
    int64_t hidden = tsr__derive_int(derivation, "hidden_size", 0);
    if (hidden > 0)
        tsr__derive_size(derivation, "h", hidden);
    if (has_directions(derivation))
        tsr__rule_clauses(rule, "word direction=v forward reverse; share activations=v");
    else
        tsr__rule_kind(rule, FACTOR_REP, "v");
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

// Derives the rule of a transform. Example: along axis 1 of [b t 2] it has the rule
// "[d0 d1 _],·?,·? -> [d0 f _]; rep d1 f". The last dimension has real and imaginary parts.
// `controls` are the inputs for length and axis.
static void transform(struct derivation *derivation, int64_t axis, const char *controls)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return;
    int at = tsr__axis(axis, rank);
    if (tsr__derive_none_if(derivation, at < 0 || at == rank - 1, DERIVE_NO_AXIS))
        return;
    tsr__rule_axes(rule, rank - 1, at);
    tsr__rule_inputs(rule, "[@ _]");
    tsr__rule_inputs(rule, controls);
    tsr__rule_outputs(rule, "[< f > _]");
    tsr__rule_kind_range(rule, FACTOR_REP, 'd', at, at + 1);
    tsr__rule_kind(rule, FACTOR_REP, "f");
}

void tsr__derive_dft_17(struct derivation *derivation)
{
    transform(derivation, tsr__derive_int(derivation, "axis", 1), "·?");
}

void tsr__derive_dft(struct derivation *derivation)
{
    int64_t axis = -2;
    if (tsr__derive_has(derivation, 2) && !tsr__derive_number(derivation, 2, &axis))
        tsr__derive_none(derivation, "the axis is known only at run time: make it an initializer");
    else
        transform(derivation, axis, "·?,·?");
}

// Derives the rule of STFT. A frame starts every `step` elements and has `frame` elements. Frames a
// .. b - 1 need (b - 1 - a) * step + frame elements of the signal. If one of these numbers or the
// length of the signal is unknown, only the batch is sharded.
void tsr__derive_stft(struct derivation *derivation)
{
    struct shape signal = tsr__derive_in(derivation, 0), window = tsr__derive_in(derivation, 2);
    int64_t step = 0, frame = -1, length = -1;
    if (window.rank == 1)
        frame = window.dims[0].value;
    if (signal.rank == 3)
        length = signal.dims[1].value;
    derivation->text = "[b t _],·,[_]?,·? -> [b f u _]; rep t f u";
    if (tsr__derive_has(derivation, 3) && !tsr__derive_number(derivation, 3, &frame))
        return;
    if (derivation->shapes_only || !tsr__derive_number(derivation, 1, &step) || step < 1 ||
        frame < 1 || length < frame || length > INT32_MAX)
        return;
    tsr__rule_text(&derivation->rule, "[b f^ _],·,[_]?,·? -> [b f u _]; rep u");
    tsr__rule_window(&derivation->rule,
                     (struct rule_window){.dim = 1,
                                          .factor = tsr__rule_find(&derivation->rule, STR("f")),
                                          .from = length,
                                          .to = (length - frame) / step + 1,
                                          .step = step,
                                          .reach = frame});
}

// ---- optimizers --------------------------------------------------------------------------------

// Derives the rule of an optimizer. The inputs are R and T, then n tensors of each kind:
// parameters, gradients, states. The outputs have all kinds but the gradients. The computation is
// element-wise. Example: Adagrad with two parameters has the rule
// "[],[],[A0*],[A1*],[A0*],[A1*],[A0*],[A1*] -> [A0*],[A1*],[A0*],[A1*]".
void tsr__derive_optimizer(struct derivation *derivation)
{
    int inputs = (int)tsr_node_input_count(derivation->node) - 2,
        outputs = (int)tsr_node_output_count(derivation->node), n = inputs - outputs;
    if (tsr__derive_none_if(derivation, n < 1 || inputs % n || n * 8 > RULE_MAX_FACTORS,
                            "another number of inputs than expected"))
        return;
    tsr__rule_inputs(&derivation->rule, "[],[]");
    for (int i = 0; i < inputs + outputs; i++) {
        tsr__rule_tensor(&derivation->rule, i < inputs ? SIDE_IN : SIDE_OUT);
        tsr__rule_dim(&derivation->rule, 'A', i % n);
    }
}

// ---- rows --------------------------------------------------------------------------------------

// Derives the rule of operators that work row by row: the rule text of the operator table. An input
// that is not [rows, columns] is not sharded.
void tsr__derive_rows(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    if (rank >= 0 && rank != 2)
        tsr__derive_none(derivation, "there is one row only");
}

// Derives the rule of ArrayFeatureExtractor, which selects columns of [A* v] by their numbers. A
// list of numbers is a factor t of the result; a matrix of numbers is flattened and not sharded.
void tsr__derive_feature_extractor(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0), at = tsr__derive_rank(derivation, 1);
    if (rank < 0 || at < 0)
        return;
    if (tsr__derive_none_if(derivation, rank < 2 || at < 1 || at > DERIVE_MAX_RANK,
                            "there is one row only"))
        return;
    if (at == 1)
        return; // the rule is the text of the row
    tsr__rule_inputs(&derivation->rule, "[A* v],[]");
    tsr__rule_any(&derivation->rule, at);
    tsr__rule_outputs(&derivation->rule, "[A* t]");
    tsr__rule_kind(&derivation->rule, FACTOR_REP, "v t");
}

// Derives the rule of an operator whose input is two concatenated halves, of which one gates the
// other.
void tsr__derive_halves(struct derivation *derivation)
{
    tsr__derive_size(derivation, "s", 2);
}
