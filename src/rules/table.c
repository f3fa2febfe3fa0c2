// SPDX-License-Identifier: Apache-2.0
// table.c - how every operator may be cut: the only place that knows.
//
// Rows are ordered by operator name, then by opset; the newest row whose `since` is not above the
// node's opset applies. Notation: rule_text.c. Where attributes or shapes decide, a derive function
// (derive.c) builds the rule of the node; the row's text then shows the usual form.
//
// How to read a row:
//
//   {"MatMul", .since = 1, .rule = "[B~ m k],[B~ k n] -> [B* m n]; red k:sum", ...}
//
//   .since    from this opset of the domain on, until the next row of the same name
//   .rule     how tensors share factors
//   .whole    the node is never cut, and why; the rule then only serves the shapes
//   .derive   writes the rule of one node, where attributes or ranks change it
//   .shape    finds shapes that the rule does not give; without it the rule gives them
//   .value    follows small integer tensors through the node (known_values.c)
//   .expand   replaces a node of which a `stat` factor is cut
//   .some     factors of which the kernel wants at least one element (empty.c); those with ~ behind them where
//             some_if holds
//   .stays    why factors that it keeps whole (rep, sel and _) are
//   .sum      what the node does with the parts of a sum in one of .sum_inputs: "Neg" passes them on, "Add" adds them
//   .caches   inputs that may have more room than is in use, and the outputs that are the same room (room.c)
//   .kept     inputs whose constants an engine's optimisation leaves as they are (kept_inputs.c)
//   .type     element type of the results, if it is not that of the first input
#include "rules/expand.h"
#include "rules/reasons.h"

// Bits of inputs, for the columns kept, writes and sum_inputs.
#define ALL_INPUTS   (~0u)
#define LATER_INPUTS (~1u) // all but the first

// Rules and reasons that several rows have.
#define UNARY     "[A*] -> [A*]"
#define BINARY    "[A~],[A~] -> [A*]"
#define MANY      "[A~]… -> [A*]"
#define MICROSOFT "com.microsoft"
#define ML        "ai.onnx.ml"
#define PREVIEW   "ai.onnx.preview"
#define TRAINING  "ai.onnx.preview.training"
#define BODIES    "the bodies of this operator are not cut"
#define BRANCHES  "the nodes of both branches are cut; all devices take the same branch"
#define TURNS                                                                                      \
    "the nodes of the body are cut; a carried value has one sharding, the axis of the turns is "   \
    "whole, all devices take the same turns"
#define LISTS      "sequences, maps and optional values are kept whole"
#define LISTS_NOTE "all elements of a list are cut alike; a list moves from stage to stage only"
#define OLD        "this version, from before opset 7, aligns or holds its inputs otherwise"
#define PLACES     "each element depends on where it stands"
#define COMPARED   "rows and columns are compared where they stand; nothing moves"
#define WINDOWS    "parts of space need windows of the input, where sizes are known"
#define SEGMENTS                                                                                   \
    "axis names t; cut where sizes are known: parts need windows of the input; strided parts, an " \
    "equal "                                                                                       \
    "share of every segment, need none"
#define RECURRENT                                                                                  \
    "layout 1 has the batch first; one direction, or parameters of activations: v stays whole"
#define RANDOM "random numbers are drawn whole, so that all devices have the same"

const struct op_row tsr__op_table[] = {
    {"Abs", .since = 1, .rule = UNARY, .value = tsr__value_abs},
    {"Acos", .since = 7, .rule = UNARY},
    {"Acosh", .since = 9, .rule = UNARY},
    // Optimisers take all parameters, then all gradients, then all states in one list of inputs;
    // the rule shows one of each, and the derive function writes it for as many as the node has.
    {"Adagrad", .since = 1, .domain = TRAINING, .rule = "[],[],[A*],[A*],[A*] -> [A*],[A*]",
     .derive = tsr__derive_adagrad, .shape = tsr__infer_adagrad,
     .note = "several tensors: all parameters, all gradients, all states"},
    {"Adam", .since = 1, .domain = TRAINING, .rule = "[],[],[A*],[A*],[A*],[A*] -> [A*],[A*],[A*]",
     .derive = tsr__derive_adam, .shape = tsr__infer_adam,
     .note = "several tensors: all parameters, all gradients, all states"},
    // Before opset 7 the second operand was aligned by an attribute: such rows serve the shapes
    // alone.
    {"Add", .since = 1, .rule = "[A*],[A~] -> [A*]", .shape = tsr__infer_like_first, .whole = OLD,
     .sum = SUM_ADDS, .sum_inputs = 3},
    {"Add", .since = 7, .rule = BINARY, .value = tsr__value_add, .sum = SUM_ADDS, .sum_inputs = 3},
    {"AffineGrid", .since = 20, .rule = "[n _ _],· -> [n H* _]; rep n H",
     .shape = tsr__infer_affine_grid,
     .whole = "its size names the whole batch, and each element depends on where it stands"},
    {"And", .since = 1, .rule = "[A*],[A~] -> [A*]", .type = TYPE_BOOL,
     .shape = tsr__infer_like_first, .whole = OLD},
    {"And", .since = 7, .rule = BINARY, .type = TYPE_BOOL, .value = tsr__value_and},
    {"ArgMax", .since = 1, .rule = "[A* r] -> [A* 1]; stat r", .derive = tsr__derive_arg,
     .type = TYPE_INT64, .expand = tsr__expand_arg_max, .note = "axis names r"},
    {"ArgMin", .since = 1, .rule = "[A* r] -> [A* 1]; stat r", .derive = tsr__derive_arg,
     .type = TYPE_INT64, .expand = tsr__expand_arg_min, .note = "axis names r"},
    {"ArrayFeatureExtractor", .since = 1, .domain = ML, .rule = "[A* v],[t] -> [A* t]; rep v",
     .derive = tsr__derive_feature_extractor, .shape = tsr__infer_feature_extractor,
     .stays = STAYS({"v", PICKED})},
    {"Asin", .since = 7, .rule = UNARY},
    {"Asinh", .since = 9, .rule = UNARY},
    {"Atan", .since = 7, .rule = UNARY},
    {"Atanh", .since = 9, .rule = UNARY},
    // h heads of keys, each for g heads of queries: (h g). Keys k are `stat`: each device has the
    // scores of its keys, and the softmax over all is put together from parts (expand_attention.c).
    {"Attention", .since = 23,
     .rule = "[b (h g) q d],[b h k d],[b h k v],[b~ (h g)~ q~ _]?,[b h p d]?,[b h p v]?,[b]? -> [b "
             "(h g) q v],[b h _ d]?,[b h _ v]?,[b (h g) q _]?; rep d p; stat k",
     .derive = tsr__derive_attention, .shape = tsr__infer_attention,
     .expand = tsr__expand_attention, .some = "b h q v",
     .note = "three dimensions: [b q (h g d)], [b k (h d)], [b k (h v)]; is_causal: stat q; a "
             "cache keeps k and q whole",
     .stays = STAYS({"d", DOT}, {"p", CACHED}, {"_", CACHED})},
    // The weights of three projections stand side by side, (s h d) with s = 3: a cut of the heads
    // takes three stretches of their columns.
    {"Attention", .since = 1, .domain = MICROSOFT, .kept = LATER_INPUTS,
     .rule = "[b q i],[i (s h d)],[(s h d)]?,[b _]?,[_ b h p d]?,[b~ h~ q~ _]?,·? -> [b q (h "
             "d)],[_ b h _ d]?; rep i s d p q; attr num_heads=h",
     .derive = tsr__derive_projected_attention, .shape = tsr__infer_projected_attention,
     .note = "queries, keys and values of one size",
     .stays = STAYS({"i", PROJECTED}, {"s", SIDES}, {"d", DOT}, {"p", CACHED},
                    {"q", "every row is a key to all others"}, {"_", CACHED})},
    {"AveragePool", .since = 1, .rule = "[n c o^] -> [n c o]", .derive = tsr__derive_pool,
     .shape = tsr__infer_pool, .some = "c s", .note = WINDOWS},
    {"BatchNormalization", .since = 1,
     .rule = "[n c S*],[c],[c],[c],[c] -> [n c S*],[c]?,[c]?,[c]?,[c]?",
     .derive = tsr__derive_batch_norm, .note = "inference form only"},
    // ONNX Runtime writes running means over inputs 3 and 4 where the node has more than one
    // output: `writes`.
    {"BatchNormalization", .since = 14, .rule = "[n c S*],[c],[c],[c],[c] -> [n c S*],[c]?,[c]?",
     .derive = tsr__derive_batch_norm, .type1 = TYPE_AS_FOURTH, .type2 = TYPE_AS_FOURTH,
     .writes = 1u << 3 | 1u << 4, .note = "inference form only"},
    {"BeamSearch", .since = 1, .domain = MICROSOFT, .type = TYPE_INT32, .type1 = TYPE_OPEN,
     .whole = BODIES},
    {"Bernoulli", .since = 15, .rule = UNARY, .type = TYPE_DTYPE, .whole = RANDOM, .single = true},
    {"BiasAdd", .since = 1, .domain = MICROSOFT, .rule = "[A* r],[r],[A* r] -> [A* r]"},
    {"BiasGelu", .since = 1, .domain = MICROSOFT, .rule = "[A* r],[r] -> [A* r]"},
    {"BiasSplitGelu", .since = 1, .domain = MICROSOFT,
     .rule = "[b t (s c)],[(s c)] -> [b t c]; rep s", .derive = tsr__derive_halves,
     .stays = STAYS({"s", "one half steers the other"})},
    {"Binarizer", .since = 1, .domain = ML, .rule = UNARY},
    {"BitCast", .since = 26, .rule = UNARY, .type = TYPE_TO},
    {"BitShift", .since = 11, .rule = BINARY},
    {"BitwiseAnd", .since = 18, .rule = BINARY},
    {"BitwiseNot", .since = 18, .rule = UNARY},
    {"BitwiseOr", .since = 18, .rule = BINARY},
    {"BitwiseXor", .since = 18, .rule = BINARY},
    {"BlackmanWindow", .since = 17, .rule = "· -> [w]; gen w", .type = TYPE_OPEN,
     .shape = tsr__infer_window, .whole = PLACES},
    {"Cast", .since = 1, .rule = UNARY, .type = TYPE_OPEN, .whole = OLD},
    {"Cast", .since = 6, .rule = UNARY, .type = TYPE_TO, .value = tsr__value_cast},
    {"CastLike", .since = 15, .rule = "[A*],· -> [A*]", .type = TYPE_AS_SECOND},
    {"CastMap", .since = 1, .domain = ML, .type = TYPE_OPEN, .whole = LISTS},
    {"CategoryMapper", .since = 1, .domain = ML, .rule = UNARY, .type = TYPE_OPEN,
     .shape = tsr__infer_category_mapper},
    {"CausalConvWithState", .since = 27,
     .rule = "[b c t],[c 1 k],[c]?,[b c _]? -> [b c t],[b c _]; rep t k",
     .derive = tsr__derive_causal_conv, .shape = tsr__infer_causal_conv,
     .stays = STAYS({"t", CAUSAL}, {"k", KERNEL}, {"_", STATE_END})},
    {"CausalConvWithState", .since = 1, .domain = MICROSOFT,
     .rule = "[b c S*],[c 1 K*],[c]?,[b c _]? -> [b c S*],[b c _]; rep S K",
     .derive = tsr__derive_causal_conv, .note = "channels_last: [b t c]",
     .stays = STAYS({"S", CAUSAL}, {"K", KERNEL}, {"_", STATE_END})},
    {"Ceil", .since = 1, .rule = UNARY},
    {"Celu", .since = 12, .rule = UNARY},
    {"CenterCropPad", .since = 18, .rule = "[A* s B*],· -> [A* t B*]; rep s t",
     .derive = tsr__derive_center_crop_pad, .shape = tsr__infer_center_crop_pad,
     .note = "axes names the dimensions s",
     .stays = STAYS({"s t", "the middle is counted from the ends of the whole"})},
    {"Clip", .since = 1, .rule = "[A*],·?,·? -> [A*]"},
    {"Col2Im", .since = 18, .rule = "[n (c k) l],·,· -> [n c O*]; rep k l O",
     .derive = tsr__derive_col2im, .shape = tsr__infer_col2im, .note = "k: elements of a block",
     .stays = STAYS(
         {"k l", "the kernel finds the place of a block by counting blocks from the first"},
         {"O", "blocks overlap: a part of the image needs blocks that count from the first"})},
    // How many elements are chosen is known at run time alone, so t has no parts.
    {"Compress", .since = 9, .rule = "[A* v B*],[v] -> [A* t B*]; rep v t",
     .derive = tsr__derive_compress, .shape = tsr__infer_compress,
     .note = "t depends on the data; without axis nothing is cut", .stays = STAYS({"v t", CHOSEN})},
    // t of the result is not t of an input: part j of the result lies in some inputs and not in
    // others, which windows say (derive_window.c). `other` is a second rule, in which devices have
    // a share of every input.
    {"Concat", .since = 1, .rule = "[A* t^ B*]… -> [A* t B*]", .derive = tsr__derive_concat,
     .other = tsr__derive_concat_strided, .shape = tsr__infer_concat, .value = tsr__value_concat,
     .note = SEGMENTS},
    {"ConcatFromSequence", .since = 11, .rule = "[A* _ B*] -> [A* _ B*]",
     .derive = tsr__derive_concat_from_sequence, .shape = tsr__infer_concat_from_sequence,
     .note = LISTS_NOTE, .stays = STAYS({"_", LENGTHS})},
    {"Constant", .since = 1, .rule = "-> [A*]; gen A", .type = TYPE_OPEN,
     .shape = tsr__infer_constant, .value = tsr__value_constant,
     .whole = "every device has it; parts are sliced off where they are needed"},
    {"ConstantOfShape", .since = 9, .rule = "· -> [A*]; gen A; shape 0", .type = TYPE_OPEN,
     .shape = tsr__infer_constant_of_shape, .value = tsr__value_constant_of_shape},
    // Channels are (group, channel in it). A cut of i gives partial sums, to which one device adds
    // the bias (once 2); a cut of s needs a window of the neighbours; with g cut, attribute `group`
    // counts the local ones.
    {"Conv", .since = 1, .kept = LATER_INPUTS,
     .rule = "[n (g i) s^],[(g o) i _],[(g o)]? -> [n (g o) s]; red i:sum; attr group=g; once 2",
     .derive = tsr__derive_conv, .shape = tsr__infer_conv, .some = "i s", .note = WINDOWS,
     .stays = STAYS({"_", KERNEL})},
    {"ConvInteger", .since = 10, .kept = LATER_INPUTS,
     .rule = "[n (g i) s^],[(g o) i _],[]?,[(g o)]? -> [n (g o) s]; red i:sum; attr group=g",
     .derive = tsr__derive_conv_integer, .type = TYPE_INT32, .shape = tsr__infer_conv,
     .some = "i s", .note = WINDOWS, .stays = STAYS({"_", KERNEL})},
    {"ConvTranspose", .since = 1, .kept = LATER_INPUTS,
     .rule = "[n (g i) s^],[(g i) o _],[(g o)]? -> [n (g o) s]; red i:sum; attr group=g; once 2",
     .derive = tsr__derive_conv_transpose, .shape = tsr__infer_conv_transpose, .some = "s",
     .note = WINDOWS "; pads as numbers, kernels that are not shorter than the stride",
     .stays = STAYS({"_", KERNEL})},
    {"Cos", .since = 7, .rule = UNARY},
    {"Cosh", .since = 9, .rule = UNARY},
    {"CumProd", .since = 26, .rule = "[A* t],· -> [A* t]; stat t", .derive = tsr__derive_cumulate,
     .expand = tsr__expand_cum_prod, .note = "axis names t"},
    {"CumSum", .since = 11, .rule = "[A* t],· -> [A* t]; stat t", .derive = tsr__derive_cumulate,
     .expand = tsr__expand_cum_sum, .note = "axis names t"},
    {"DFT", .since = 17, .rule = "[A* t _],·? -> [A* f _]; rep t f", .derive = tsr__derive_dft_17,
     .shape = tsr__infer_dft_17, .note = "axis says which dimension is t",
     .stays = STAYS({"t f", FOURIER}, {"_", COMPLEX})},
    {"DFT", .since = 20, .rule = "[A* t _],·?,·? -> [A* f _]; rep t f", .derive = tsr__derive_dft,
     .shape = tsr__infer_dft, .note = "axis says which dimension is t",
     .stays = STAYS({"t f", FOURIER}, {"_", COMPLEX})},
    {"DecoderMaskedMultiHeadAttention", .since = 1, .domain = MICROSOFT,
     .rule = "[b q (h d)],[b k (h d)],[b k (h v)],[b _]?,[b~ h~ q~ _]?,[b h p d]?,[b h p "
             "v]?,·?,·?,[_ _ _]?,[(s h d)]? -> [b q (h v)],[b h _ d]?,[b h _ v]?,[b h q _]?; rep q "
             "d k p v s; attr num_heads=h",
     .derive = tsr__derive_masked_multi_head, .shape = tsr__infer_masked_multi_head,
     .stays = STAYS({"q", "there is one new row"}, {"d v", DOT}, {"k p", CACHED}, {"s", SIDES},
                    {"_", CACHED})},
    // Offsets are data: no window can be known, so space of the input is whole and space of the
    // result is cut by other nodes that gather.
    {"DeformConv", .since = 19,
     .rule = "[n (g i) S*],[(g o) i K*],[n _ O*],[(g o)]?,[n _ O*]? -> [n (g o) O*]; red i:sum; "
             "rep S K; stat O; attr group=g; once 3",
     .derive = tsr__derive_deform_conv, .shape = tsr__infer_conv, .expand = tsr__expand_deform_conv,
     .some = "i o",
     .note = "several sets of offsets go along with as many groups, and keep O whole; O: images of "
             "two dimensions, sizes known",
     .stays = STAYS({"S", "an offset may lead anywhere in the image"}, {"K", KERNEL},
                    {"_", "offsets of all elements of the kernel"})},
    {"DepthToSpace", .since = 1, .rule = "[n (p q c) h w] -> [n c (h p) (w q)]; rep p q",
     .derive = tsr__derive_depth_to_space, .note = "mode CRD has (c p q)",
     .stays = STAYS({"p q", BLOCK})},
    {"DequantizeLinear", .since = 10, .rule = "[A* (u z)],[A* u],[A* u]? -> [A* (u z)]; rep z",
     .derive = tsr__derive_quantize, .shape = tsr__infer_dequantize,
     .note = "scales for the tensor, for an axis, or for blocks z", .stays = STAYS({"z", SCALED})},
    {"Det", .since = 11, .rule = "[A* _ _] -> [A*]",
     .stays = STAYS({"_", "every element of a matrix counts"})},
    {"DictVectorizer", .since = 1, .domain = ML, .type = TYPE_OPEN, .whole = LISTS},
    {"Div", .since = 1, .rule = "[A*],[A~] -> [A*]", .shape = tsr__infer_like_first, .whole = OLD,
     .sum = SUM_PASSES, .sum_inputs = 1},
    {"Div", .since = 7, .rule = BINARY, .value = tsr__value_div, .sum = SUM_PASSES,
     .sum_inputs = 1},
    {"Dropout", .since = 1, .rule = "[A*] -> [A*],[A*]?", .whole = OLD, .single = true},
    {"Dropout", .since = 7, .rule = "[A*] -> [A*],[A*]?", .derive = tsr__derive_dropout,
     .note = "inference form only; the mask is of the type of the data"},
    {"Dropout", .since = 10, .rule = "[A*],·?,·? -> [A*],[A*]?", .derive = tsr__derive_dropout,
     .type1 = TYPE_BOOL, .single = true, .single_switch = 2,
     .note = "inference form only: training_mode absent or false"},
    {"DynamicQuantizeLinear", .since = 11, .rule = "[A*] -> [A*],[],[]; stat A",
     .derive = tsr__derive_dynamic_quantize, .type = TYPE_UINT8, .type1 = TYPE_FLOAT,
     .type2 = TYPE_UINT8, .expand = tsr__expand_dynamic_quantize},
    {"DynamicQuantizeMatMul", .since = 1, .domain = MICROSOFT, .kept = LATER_INPUTS,
     .rule = "[B* m k],[k n],[n~],[n~]?,[n~]? -> [B* m n]; stat B m k",
     .derive = tsr__derive_dynamic_quantize_matmul, .expand = tsr__expand_dynamic_quantize_matmul,
     .note = "the left side is quantised by its least and greatest element"},
    // The text is an example; the node's own equation is the rule.
    {"Einsum", .since = 12, .rule = "[i j~],[j~ k] -> [i k]; red j:sum",
     .derive = tsr__derive_einsum, .expand = tsr__expand_einsum, .some = "*",
     .note = "the equation is the rule; of a diagonal (ii), rows may be cut: stat"},
    {"Elu", .since = 1, .rule = UNARY},
    {"EmbedLayerNormalization", .since = 1, .domain = MICROSOFT,
     .rule = "[b t],[b t]?,[v r],[p r],[s r]?,[r],[r],[b t]?,[b~ t]? -> [b t r],[b]?,[b t r]?; rep "
             "r t; sel v p s",
     .derive = tsr__derive_embed_norm, .type = TYPE_AS_THIRD, .type1 = TYPE_INT32,
     .type2 = TYPE_AS_THIRD, .note = "t may be cut where position_ids are given and no mask is",
     .stays = STAYS(
         {"r", NORMED}, {"t", "positions are counted from the first, where they are not given"},
         {"v p s",
          "rows of the tables are added up and normalised on the device that finds them"})},
    {"Equal", .since = 1, .rule = "[A*],[A~] -> [A*]", .type = TYPE_BOOL,
     .shape = tsr__infer_like_first, .whole = OLD},
    {"Equal", .since = 7, .rule = BINARY, .type = TYPE_BOOL, .value = tsr__value_equal},
    {"Erf", .since = 9, .rule = UNARY},
    {"Exp", .since = 1, .rule = UNARY},
    {"Expand", .since = 8, .rule = "[A~],· -> [A*]; shape 1", .derive = tsr__derive_expand,
     .shape = tsr__infer_expand, .value = tsr__value_expand,
     .note = "dimensions that are made may be cut too"},
    {"EyeLike", .since = 9, .rule = "[n m] -> [n m]; stat n m", .derive = tsr__derive_eye_like,
     .type = TYPE_DTYPE, .expand = tsr__expand_eye_like, .note = COMPARED},
    {"FastGelu", .since = 1, .domain = MICROSOFT, .rule = "[A* r],[r]? -> [A* r]"},
    {"FeatureVectorizer", .since = 1, .domain = ML, .rule = "[n _]… -> [n t]; rep t",
     .derive = tsr__derive_rows, .type = TYPE_FLOAT, .shape = tsr__infer_feature_vectorizer,
     .some = "n", .stays = STAYS({"t _", "inputs of unlike lengths are joined"})},
    {"Flatten", .since = 1, .rule = "[a b c] -> [(a b) c]", .derive = tsr__derive_flatten,
     .value = tsr__value_same, .note = "axis says where the two products meet", .sum = SUM_PASSES,
     .sum_inputs = 1},
    {"FlexAttention", .since = 1, .domain = PREVIEW,
     .rule = "[b (h g) q d],[b h k d],[b h k v] -> [b (h g) q v]; rep d k",
     .derive = tsr__derive_flex_attention, .shape = tsr__infer_attention,
     .note = "nodes with subgraphs stay whole",
     .stays = STAYS(
         {"d", DOT},
         {"k", "a softmax runs over all keys, and what changes its scores is a body of the node"})},
    {"Floor", .since = 1, .rule = UNARY},
    {"FusedConv", .since = 1, .domain = MICROSOFT, .kept = LATER_INPUTS,
     .rule = "[n (g i) s^],[(g o) i _],[(g o)]?,[n (g o) s]? -> [n (g o) s]; rep i; attr group=g",
     .derive = tsr__derive_fused_conv, .shape = tsr__infer_conv, .some = "s",
     .note = "an activation comes after the sum over i; " WINDOWS,
     .stays = STAYS({"i", "the activation needs the whole sum"}, {"_", KERNEL})},
    {"FusedGemm", .since = 1, .domain = MICROSOFT, .kept = ALL_INPUTS,
     .rule = "[m k],[k n],[m~ n~]? -> [m n]; stat k", .derive = tsr__derive_fused_gemm,
     .expand = tsr__expand_fused_gemm, .note = "an activation comes after the sum over k"},
    {"FusedMatMul", .since = 1, .domain = MICROSOFT, .kept = ALL_INPUTS,
     .rule = "[B~ m k],[B~ k n] -> [B* m n]; red k:sum", .derive = tsr__derive_fused_matmul,
     .some = "B~ m~ k", .some_if = tsr__stacks_differ,
     .note = "transA and transB exchange the letters"},
    // v are directions: cut in two, each device runs one of them, as attribute `direction` then
    // says.
    {"GRU", .since = 1, .kept = LATER_INPUTS,
     .rule = "[t b i],[v w i],[v w h],[v _]?,[b]?,[v b h]? -> [t v b h]?,[v b h]?; rep t w i h; "
             "word direction=v forward reverse; share activations=v",
     .derive = tsr__derive_recurrent, .shape = tsr__infer_recurrent, .some = "b", .note = RECURRENT,
     .stays = STAYS(
         {"t", "each step needs the one before"}, {"i", SUMMED_GATE},
         {"w", "rows of all gates stand one behind the other, and a part would need some of each"},
         {"h", "each gate of each step reads all of them"},
         {"_", "biases of all gates stand one behind the other"})},
    {"GatedRMSNorm", .since = 1, .domain = MICROSOFT,
     .rule = "[A* (h c)],[c],[A* (h c)] -> [A* (h c)]; rep c", .stays = STAYS({"c", NORMED})},
    // Rows of a table are spread over devices: each looks up those that it has and gives 0 for the
    // others, and the sum is the result (look 1 v). `kept`: constants of such inputs stay as they
    // are in the engine.
    {"Gather", .since = 1, .kept = ALL_INPUTS,
     .rule = "[A* v B*],[I*] -> [A* I* B*]; red v:sum; look 1 v 0", .derive = tsr__derive_gather,
     .value = tsr__value_gather,
     .note = "axis says which dimension is v; a device looks up the rows that it has"},
    {"GatherBlockQuantized", .since = 1, .domain = MICROSOFT, .kept = ALL_INPUTS,
     .rule = "[v (u z)],[I*],[v u],[v u]? -> [I* (u z)]; red v:sum; rep z; look 1 v 1",
     .derive = tsr__derive_gather_quantized, .shape = tsr__infer_gather_quantized,
     .type = TYPE_AS_THIRD, .stays = STAYS({"z", SCALED})},
    {"GatherElements", .since = 11,
     .rule = "[A* v B*],[A* w B*] -> [A* w B*]; red v:sum; look 1 v 0",
     .derive = tsr__derive_gather_elements,
     .note = "A and B where data and indices have the same sizes"},
    {"GatherND", .since = 11, .rule = "[B* v S*],[B* I* _] -> [B* I* S*]; red v:sum; look 1 v 0 0",
     .derive = tsr__derive_gather_nd,
     .note = "the last size of the indices is the number of dimensions V",
     .stays = STAYS({"_", TUPLE})},
    {"Gelu", .since = 20, .rule = UNARY},
    {"Gelu", .since = 1, .domain = MICROSOFT, .rule = UNARY},
    {"Gemm", .since = 1, .kept = ALL_INPUTS,
     .rule = "[m k],[k n],[m~ n~]? -> [m n]; red k:sum; once 2", .derive = tsr__derive_gemm,
     .note = "transA and transB exchange the letters"},
    {"GemmaRotaryEmbedding", .since = 1, .domain = MICROSOFT,
     .rule = "[b t d],[b h t d],[b h t d],[b j t d],[b j t d] -> [b h t d],[b j t d]",
     .type = TYPE_AS_SECOND, .type1 = TYPE_AS_SECOND},
    {"GlobalAveragePool", .since = 1, .rule = "[n c s] -> [n c 1]; stat s",
     .derive = tsr__derive_global_pool, .expand = tsr__expand_global_average_pool,
     .some = "d1 d2 d3 d4 d5"},
    {"GlobalLpPool", .since = 1, .rule = "[n c s] -> [n c 1]; stat s",
     .derive = tsr__derive_global_pool, .expand = tsr__expand_global_lp_pool,
     .some = "d1 d2 d3 d4 d5"},
    {"GlobalMaxPool", .since = 1, .rule = "[n c s] -> [n c 1]; red s:max",
     .derive = tsr__derive_global_max_pool, .some = "d1 d2 d3 d4 d5"},
    {"Gradient", .since = 1, .domain = TRAINING, .type = TYPE_OPEN,
     .whole = "it differentiates other nodes of the graph"},
    {"Greater", .since = 1, .rule = "[A*],[A~] -> [A*]", .type = TYPE_BOOL,
     .shape = tsr__infer_like_first, .whole = OLD},
    {"Greater", .since = 7, .rule = BINARY, .type = TYPE_BOOL, .value = tsr__value_greater},
    {"GreaterOrEqual", .since = 12, .rule = BINARY, .type = TYPE_BOOL,
     .value = tsr__value_greater_or_equal},
    {"GreedySearch", .since = 1, .domain = MICROSOFT, .type = TYPE_INT32, .type1 = TYPE_OPEN,
     .whole = BODIES},
    {"GridSample", .since = 16, .rule = "[n c S*],[n O* _] -> [n c O*]; rep S",
     .shape = tsr__infer_grid_sample,
     .stays = STAYS({"S", "a place of the result may look anywhere"}, {"_", POINT})},
    {"GroupNorm", .since = 1, .domain = MICROSOFT,
     .rule = "[n S* (g c)],[(g c)],[(g c)] -> [n S* (g c)]; rep c S; attr groups=g",
     .derive = tsr__derive_group_norm_last, .stays = STAYS({"c S", NORMED_FUSED})},
    {"GroupNormalization", .since = 18,
     .rule = "[n (g c) S*],[g],[g] -> [n (g c) S*]; rep c S; attr num_groups=g",
     .derive = tsr__derive_group_norm_18, .some = "n", .stays = STAYS({"c S", NORMED_FUSED})},
    {"GroupNormalization", .since = 21,
     .rule = "[n (g c) S*],[(g c)],[(g c)] -> [n (g c) S*]; stat c S; attr num_groups=g",
     .derive = tsr__derive_group_norm, .expand = tsr__expand_group_norm, .some = "n"},
    // Keys and values may be absent, packed behind the queries in input 0. caches: inputs 3 and 4
    // may have more room than tokens, and outputs 1 and 2 are the same room afterwards. num_heads
    // counts (h g), kv_num_heads h.
    {"GroupQueryAttention", .since = 1, .domain = MICROSOFT,
     .rule =
         "[b q (h g d)],[b k (h d)]?,[b k (h d)]?,[b h _ _]?,[b h _ _]?,[b],·,[_ _]?,[_ _]?,[_ "
         "q]?,[b~ (h g)~ q~ _]?,[(h g)]?,[_]?,[_]?,[_]?,[_]? -> [b q (h g d)],[b h _ _]?,[b h _ "
         "_]?,[b (h g) q _]?; rep d q k; attr num_heads=h; attr num_heads=g; attr kv_num_heads=h",
     .derive = tsr__derive_group_query, .shape = tsr__infer_group_query, .some = "b",
     .caches = {{3, 1}, {4, 2}},
     .note = "queries, keys and values side by side in one tensor: parts need windows of it",
     .stays = STAYS({"d", DOT}, {"q k", "rows are numbered by the lengths of the cache"},
                    {"_", CACHED})},
    {"HammingWindow", .since = 17, .rule = "· -> [w]; gen w", .type = TYPE_OPEN,
     .shape = tsr__infer_window, .whole = PLACES},
    {"HannWindow", .since = 17, .rule = "· -> [w]; gen w", .type = TYPE_OPEN,
     .shape = tsr__infer_window, .whole = PLACES},
    {"HardSigmoid", .since = 1, .rule = UNARY},
    {"HardSwish", .since = 14, .rule = UNARY},
    {"Hardmax", .since = 1, .rule = "[A* R*] -> [A* R*]; rep R", .derive = tsr__derive_softmax_flat,
     .note = "R: all dimensions from axis on",
     .stays = STAYS({"R", "before opset 13 the greatest is that of all of them together"})},
    {"Hardmax", .since = 13, .rule = "[A* r B*] -> [A* r B*]; stat r",
     .derive = tsr__derive_softmax, .expand = tsr__expand_hardmax, .note = "axis names r"},
    {"Identity", .since = 1, .rule = UNARY, .type = TYPE_OPEN, .shape = tsr__infer_identity,
     .value = tsr__value_same, .sum = SUM_PASSES, .sum_inputs = 1},
    // `bodies`: the node itself is not cut; the nodes of its branches are, each by its own row.
    {"If", .since = 1, .rule = "· -> [A*]…; gen A", .type = TYPE_OPEN, .shape = tsr__infer_if,
     .bodies = true, .note = BRANCHES},
    {"ImageDecoder", .since = 20, .type = TYPE_UINT8, .shape = tsr__infer_image_decoder,
     .whole = "one stream of bytes is decoded as a whole"},
    {"Imputer", .since = 1, .domain = ML, .rule = "[A* f] -> [A* f]; rep f",
     .stays = STAYS({"f", ATTRIBUTES})},
    {"InstanceNormalization", .since = 1, .rule = "[n c S*],[c],[c] -> [n c S*]; stat S",
     .derive = tsr__derive_instance_norm, .expand = tsr__expand_instance_norm},
    {"IsInf", .since = 10, .rule = UNARY, .type = TYPE_BOOL},
    {"IsNaN", .since = 9, .rule = UNARY, .type = TYPE_BOOL},
    // Each channel is divided by a sum over its neighbours: a window of channels.
    {"LRN", .since = 1, .rule = "[n c^ S*] -> [n c S*]", .derive = tsr__derive_lrn,
     .note = "parts of the channels need windows of the input, where sizes are known"},
    {"LSTM", .since = 1, .kept = LATER_INPUTS,
     .rule = "[t b i],[v w i],[v w h],[v _]?,[b]?,[v b h]?,[v b h]?,[v _]? -> [t v b h]?,[v b "
             "h]?,[v b h]?; rep t w i h; word direction=v forward reverse; share activations=v",
     .derive = tsr__derive_lstm, .shape = tsr__infer_recurrent, .some = "b", .note = RECURRENT,
     .stays = STAYS(
         {"t", "each step needs the one before"}, {"i", SUMMED_GATE},
         {"w", "rows of all gates stand one behind the other, and a part would need some of each"},
         {"h", "each gate of each step reads all of them"},
         {"_", "biases of all gates stand one behind the other"})},
    {"LabelEncoder", .since = 1, .domain = ML, .rule = UNARY, .type = TYPE_OPEN,
     .shape = tsr__infer_category_mapper,
     .whole = "this version turns texts into numbers or back, and texts are not moved"},
    {"LabelEncoder", .since = 2, .domain = ML, .rule = UNARY, .type = TYPE_OPEN,
     .shape = tsr__infer_label_encoder},
    // In the standard since 17; ONNX Runtime has it in all versions, and its own tools write it so.
    {"LayerNormalization", .since = 1,
     .rule = "[A* r],[A~ r~],[A~ r~]? -> [A* r],[A* 1]?,[A* 1]?; stat r",
     .derive = tsr__derive_layer_norm, .type1 = TYPE_FLOAT, .type2 = TYPE_FLOAT,
     .expand = tsr__expand_layer_norm, .note = "R: all dimensions from axis on"},
    {"LeakyRelu", .since = 1, .rule = UNARY},
    {"Less", .since = 1, .rule = "[A*],[A~] -> [A*]", .type = TYPE_BOOL,
     .shape = tsr__infer_like_first, .whole = OLD},
    {"Less", .since = 7, .rule = BINARY, .type = TYPE_BOOL, .value = tsr__value_less},
    {"LessOrEqual", .since = 12, .rule = BINARY, .type = TYPE_BOOL,
     .value = tsr__value_less_or_equal},
    {"LinearAttention", .since = 27,
     .rule = "[b t (h g d)],[b t (h d)],[b t (h e)],[b h d e]?,[b t h]?,[b t h]? -> [b t (h g "
             "e)],[b h d e]; rep t d; attr q_num_heads=h; attr q_num_heads=g; attr kv_num_heads=h",
     .derive = tsr__derive_linear_attention, .shape = tsr__infer_linear_attention,
     .note = "a decay for each element has (h d)",
     .stays = STAYS({"t", "the state is carried from one to the next"},
                    {"d", "each step sums over all of them"})},
    {"LinearAttention", .since = 1, .domain = MICROSOFT,
     .rule = "[b t (h g d)],[b t (h d)],[b t (h e)],[b h d e]?,[b t h]?,[b t h]? -> [b t (h g "
             "e)],[b h d e]; rep t d; attr q_num_heads=h; attr q_num_heads=g; attr kv_num_heads=h",
     .derive = tsr__derive_linear_attention,
     .note = "state_window puts a dimension in front of states",
     .stays = STAYS({"t", "the state is carried from one to the next"},
                    {"d", "each step sums over all of them"})},
    {"LinearAttentionGate", .since = 1, .domain = MICROSOFT,
     .rule = "[b t h],[h],[h],[b t h]? -> [b t h],[b t h]?", .some = "h"},
    {"LinearClassifier", .since = 1, .domain = ML, .rule = "[n f] -> [n],[n c]; rep f c",
     .derive = tsr__derive_rows, .type = TYPE_OPEN, .type1 = TYPE_FLOAT,
     .shape = tsr__infer_classifier, .stays = STAYS({"f c", ATTRIBUTES})},
    {"LinearRegressor", .since = 1, .domain = ML, .rule = "[n f] -> [n c]; rep f c",
     .derive = tsr__derive_rows, .type = TYPE_FLOAT, .shape = tsr__infer_regressor,
     .stays = STAYS({"f c", ATTRIBUTES})},
    {"Log", .since = 1, .rule = UNARY},
    {"LogSoftmax", .since = 1, .rule = "[A* R*] -> [A* R*]; stat R",
     .derive = tsr__derive_softmax_flat, .expand = tsr__expand_log_softmax_flat,
     .note = "R: all dimensions from axis on"},
    {"LogSoftmax", .since = 13, .rule = "[A* r B*] -> [A* r B*]; stat r",
     .derive = tsr__derive_softmax, .expand = tsr__expand_log_softmax, .note = "axis names r"},
    {"Loop", .since = 1, .rule = "·,·,[A*]… -> [A*]…", .type = TYPE_OPEN, .shape = tsr__infer_loop,
     .bodies = true, .note = TURNS},
    {"LpNormalization", .since = 1, .rule = "[A* r B*] -> [A* r B*]; stat r",
     .derive = tsr__derive_lp_norm, .expand = tsr__expand_lp_norm, .note = "axis names r"},
    {"LpPool", .since = 1, .rule = "[n c o^] -> [n c o]", .derive = tsr__derive_pool,
     .shape = tsr__infer_pool, .some = "c s", .note = WINDOWS},
    {"MRotaryEmbedding", .since = 1, .domain = MICROSOFT,
     .rule = "[b t (h d)],[_ b t],[_ _],[_ _] -> [b t (h d)]; rep d; attr num_heads=h",
     .derive = tsr__derive_rotary_positions, .shape = tsr__infer_like_first,
     .stays = STAYS({"d", TURNED}, {"_", ANGLES})},
    // B are dimensions in front that are broadcast. Parts of a sum in one operand give parts of the
    // product, as long as the other is none: sum_inputs 3 are the bits of both.
    {"MatMul", .since = 1, .kept = ALL_INPUTS, .rule = "[B~ m k],[B~ k n] -> [B* m n]; red k:sum",
     .derive = tsr__derive_matmul, .some = "B~ m~ k~", .some_if = tsr__stacks_differ,
     .note = "an operand of one dimension drops m or n", .sum = SUM_PASSES, .sum_inputs = 3},
    {"MatMulBnb4", .since = 1, .domain = MICROSOFT, .kept = LATER_INPUTS,
     .rule = "[B* k],[(n w)],[(n a)] -> [B* n]; rep k w a; attr N=n",
     .derive = tsr__derive_matmul_bnb4, .shape = tsr__infer_matmul_bnb4,
     .note = "where rows of the weight end on blocks",
     .stays = STAYS({"k w a", "blocks of the weight run on from row to row, packed"})},
    {"MatMulInteger", .since = 10, .kept = ALL_INPUTS,
     .rule = "[B~ m k],[B~ k n],[m~]?,[n~]? -> [B* m n]; red k:sum",
     .derive = tsr__derive_matmul_integer, .type = TYPE_INT32, .some = "B~ m~ k",
     .some_if = tsr__stacks_differ},
    {"MatMulIntegerToFloat", .since = 1, .domain = MICROSOFT, .kept = ALL_INPUTS,
     .rule = "[B~ m k],[B~ k n],[],[n~],[]?,[n~]?,[n~]? -> [B* m n]; red k:sum; once 6",
     .type = TYPE_AS_THIRD, .some = "B~ k", .some_if = tsr__stacks_differ},
    // k is (u z): blocks of z elements that share a scale. Cuts go between blocks; attributes N and
    // K count local elements.
    {"MatMulNBits", .since = 1, .domain = MICROSOFT, .kept = LATER_INPUTS,
     .rule = "[B* (u z)],[n u _],[n u],[n u]?,[_]?,[n]? -> [B* n]; red u:sum; rep z; attr N=n; "
             "attr K=u; once 5",
     .derive = tsr__derive_matmul_nbits, .note = "K is cut between blocks z",
     .stays = STAYS({"z", SCALED}, {"_", "packed elements of a block"})},
    {"MatMulNBitsMlp", .since = 1, .domain = MICROSOFT,
     .rule = "[B* k],[B* k]?,[k]?,[n _ _],[n _],[n]?,[n _ _],[n _],[n]? -> [B* n],[B* k]?; rep k; "
             "attr N=n",
     .stays = STAYS({"k", "the activation needs the whole sum"}, {"_", PACKED})},
    {"MatMulNBitsQkv", .since = 1, .domain = MICROSOFT,
     .rule = "[B* k],[B* k]?,[k],[q _ _],[q _],[q]?,[n _ _],[n _],[n]?,[n _ _],[n _],[n]? -> [B* "
             "q],[B* n],[B* n],[B* k]?; rep k; attr Nq=q; attr Nkv=n",
     .stays = STAYS({"k", NORMED}, {"_", PACKED})},
    {"Max", .since = 1, .rule = MANY, .value = tsr__value_max},
    {"MaxPool", .since = 1, .rule = "[n c o^] -> [n c o],[n c o]?", .derive = tsr__derive_pool,
     .type1 = TYPE_INT64, .shape = tsr__infer_pool, .some = "c s",
     .note = WINDOWS "; Indices count through the whole tensor: then all stays whole"},
    {"MaxRoiPool", .since = 1, .rule = "[n c y x],[r _] -> [r c u w]; rep n y x u w",
     .shape = tsr__infer_max_roi_pool,
     .stays = STAYS({"n", REGION_IMAGE},
                    {"y x", "a region may lie anywhere, and a bin without pixels is 0, which is "
                            "more than a negative greatest: parts cannot be combined"},
                    {"u w", BINS}, {"_", REGION})},
    {"MaxUnpool", .since = 9, .rule = "[n c S*],[n c S*],·? -> [n c O*]; rep n c S O",
     .shape = tsr__infer_max_unpool, .whole = "indices count through the whole tensor"},
    {"Mean", .since = 1, .rule = MANY},
    {"MeanVarianceNormalization", .since = 9, .rule = "[A* R*] -> [A* R*]; stat R",
     .derive = tsr__derive_mvn, .expand = tsr__expand_mvn, .note = "axes names r"},
    {"MelWeightMatrix", .since = 17, .rule = "·,·,·,·,· -> [f m]; stat f m", .type = TYPE_OPEN,
     .derive = tsr__derive_mel_weights, .shape = tsr__infer_mel_weights,
     .expand = tsr__expand_mel_weights, .note = "of constants; " COMPARED},
    {"Min", .since = 1, .rule = MANY, .value = tsr__value_min},
    {"Mish", .since = 18, .rule = UNARY},
    // e experts, i hidden elements of each: a cut of i gives partial sums of every token, one of e
    // is done by simpler nodes (expand_experts.c). The bias of the second layer is added once.
    {"MoE", .since = 1, .domain = MICROSOFT, .kept = LATER_INPUTS,
     .rule = "[t m],[t e],[e (f i) m],[e (f i)]?,[e m i],[e m]?,[e i m]?,[e i]? -> [t m]; rep m f; "
             "stat e; red i:sum; once 5",
     .derive = tsr__derive_experts, .shape = tsr__infer_like_first, .expand = tsr__expand_experts,
     .note = "swiglu_fusion 1 has (i f); e: without fused halves, for relu, silu, identity",
     .stays =
         STAYS({"m", "each hidden element needs all of them"}, {"f", "one half steers the other"})},
    {"Mod", .since = 10, .rule = BINARY, .value = tsr__value_mod},
    {"Momentum", .since = 1, .domain = TRAINING, .rule = "[],[],[A*],[A*],[A*] -> [A*],[A*]",
     .derive = tsr__derive_adagrad, .shape = tsr__infer_adagrad,
     .note = "several tensors: all parameters, all gradients, all states"},
    {"Mul", .since = 1, .rule = "[A*],[A~] -> [A*]", .shape = tsr__infer_like_first, .whole = OLD,
     .sum = SUM_PASSES, .sum_inputs = 3},
    {"Mul", .since = 7, .rule = BINARY, .value = tsr__value_mul, .sum = SUM_PASSES,
     .sum_inputs = 3},
    {"MultiHeadAttention", .since = 1, .domain = MICROSOFT,
     .rule = "[b q (h d)],[b k (h d)],[b k (h v)],[(s h d)]?,[b _]?,[b~ h~ q~ _]?,[b h p d]?,[b h "
             "p v]?,·?,[b _ _]? -> [b q (h v)],[b h _ d]?,[b h _ v]?,[b h q _]?; rep d p s; stat "
             "k; attr "
             "num_heads=h",
     .derive = tsr__derive_multi_head, .shape = tsr__infer_multi_head,
     .expand = tsr__expand_multi_head,
     .note = "packed forms: [b q h 3 d], [b k h 2 d]; keys and values may be [b h k d]",
     .stays = STAYS({"d", DOT}, {"p", CACHED}, {"s", SIDES}, {"_", CACHED})},
    {"Multinomial", .since = 7, .rule = "[b c] -> [b s]; rep c s", .type = TYPE_OPEN,
     .shape = tsr__infer_multinomial, .whole = RANDOM, .single = true},
    {"Neg", .since = 1, .rule = UNARY, .value = tsr__value_neg, .sum = SUM_PASSES, .sum_inputs = 1},
    {"NegativeLogLikelihoodLoss", .since = 12, .rule = "[n c D*],[n D*],[c]? -> []; stat c n D",
     .derive = tsr__derive_loss, .shape = tsr__infer_loss, .expand = tsr__expand_loss,
     .note = "reduction none gives [n D*], sum gives red n D"},
    {"NonMaxSuppression", .since = 10, .rule = "[b s _],[b c s],·?,·?,·? -> [t _]; rep b c s t",
     .type = TYPE_INT64, .shape = tsr__infer_non_max_suppression,
     .whole = "the number of results depends on the data"},
    {"NonZero", .since = 9, .rule = "[A*] -> [r t]; rep A r t", .type = TYPE_INT64,
     .shape = tsr__infer_non_zero, .whole = "the number of results depends on the data"},
    {"Normalizer", .since = 1, .domain = ML, .rule = "[A* f] -> [A* f]; rep f", .type = TYPE_FLOAT,
     .stays = STAYS({"f", NORMED})},
    {"Not", .since = 1, .rule = UNARY, .type = TYPE_BOOL, .value = tsr__value_not},
    {"OneHot", .since = 9, .rule = "[A* B*],·,· -> [A* t B*]; stat t",
     .derive = tsr__derive_one_hot, .type = TYPE_AS_THIRD, .shape = tsr__infer_one_hot,
     .expand = tsr__expand_one_hot,
     .note = "axis says where t goes; classes are compared with integer indices, nothing moves"},
    {"OneHotEncoder", .since = 1, .domain = ML, .rule = "[A*] -> [A* c]; rep c", .type = TYPE_FLOAT,
     .shape = tsr__infer_one_hot_encoder, .stays = STAYS({"c", ATTRIBUTES})},
    {"Optional", .since = 15, .rule = "[A*]? -> [A*]", .type = TYPE_OPEN,
     .shape = tsr__infer_optional, .note = LISTS_NOTE},
    {"OptionalGetElement", .since = 15, .rule = UNARY, .type = TYPE_OPEN,
     .shape = tsr__infer_optional_get, .note = LISTS_NOTE},
    {"OptionalHasElement", .since = 15, .type = TYPE_BOOL, .shape = tsr__infer_scalar,
     .whole = LISTS},
    {"Or", .since = 1, .rule = "[A*],[A~] -> [A*]", .type = TYPE_BOOL,
     .shape = tsr__infer_like_first, .whole = OLD},
    {"Or", .since = 7, .rule = BINARY, .type = TYPE_BOOL, .value = tsr__value_or},
    {"PRelu", .since = 1, .rule = "[A*],[A~] -> [A*]", .shape = tsr__infer_like_first,
     .whole = OLD},
    {"PRelu", .since = 7, .rule = "[A*],[A~] -> [A*]", .shape = tsr__infer_stretched},
    {"PackedAttention", .since = 1, .domain = MICROSOFT,
     .rule = "[t i],[i (s h d)],[(s h d)],[_ _],[_],[_ h _ _]? -> [t (h d)]; rep t i s d; attr "
             "num_heads=h",
     .derive = tsr__derive_packed_attention,
     .stays =
         STAYS({"t", "sequences lie one behind the other, at places that are known at run time"},
               {"i", PROJECTED}, {"s", SIDES}, {"d", DOT}, {"_", OF_PACKING})},
    {"PackedMultiHeadAttention", .since = 1, .domain = MICROSOFT,
     .rule = "[t (h d)],[t (h d)]?,[t (h v)]?,[(s h d)]?,[_ _],[_],[_ h _ _]? -> [t (h v)]; rep t "
             "d v s; attr num_heads=h",
     .derive = tsr__derive_packed_multi_head,
     .stays =
         STAYS({"t", "sequences lie one behind the other, at places that are known at run time"},
               {"s", SIDES}, {"d v", DOT}, {"_", OF_PACKING})},
    {"Pad", .since = 1, .rule = "[A* t^],·,·?,·? -> [A* t]", .derive = tsr__derive_pad,
     .shape = tsr__infer_pad, .some = "*~", .some_if = tsr__pads_by_wrapping,
     .note = "t is padded; cut where size and pads are known and the mode is constant"},
    {"PagedAttention", .since = 1, .domain = MICROSOFT,
     .rule = "[t (h g d)],[t (h d)]?,[t (h v)]?,[n m h _],[n m h _]?,[_],[_],[_ _],[_ _]?,[_ "
             "_]?,[t]?,[(h g)]?,[_]?,[_]?,[_]?,[_]?,[_]? -> [t (h g v)],[n m h _]?,[n m h _]?; rep "
             "t n m d v; attr num_heads=h; attr num_heads=g; attr kv_num_heads=h",
     .derive = tsr__derive_paged_attention, .shape = tsr__infer_paged_attention,
     .stays =
         STAYS({"t", "sequences lie one behind the other, at places that are known at run time"},
               {"n m", "pages are found by numbers that are known at run time"}, {"d v", DOT},
               {"_", OF_PACKING})},
    {"Pow", .since = 1, .rule = "[A*],[A~] -> [A*]", .shape = tsr__infer_like_first, .whole = OLD},
    {"Pow", .since = 7, .rule = BINARY},
    {"QAttention", .since = 1, .domain = MICROSOFT, .kept = LATER_INPUTS,
     .rule = "[b q i],[i (s h d)],[(s h d)],[],[(s h d)],[b]?,[]?,[(s h d)]?,[_ b h p d]? -> [b q "
             "(h d)],[_ b h _ d]?; rep i s d p q; attr num_heads=h",
     .derive = tsr__derive_quantized_attention, .shape = tsr__infer_quantized_attention,
     .type = TYPE_AS_THIRD, .type1 = TYPE_AS_THIRD,
     .stays = STAYS({"i", PROJECTED}, {"s", SIDES}, {"d", DOT}, {"p", CACHED},
                    {"q", "every row is a key to all others"}, {"_", CACHED})},
    {"QLinearAdd", .since = 1, .domain = MICROSOFT,
     .rule = "[A~],[],[]?,[A~],[],[]?,[],[]? -> [A*]"},
    {"QLinearAveragePool", .since = 1, .domain = MICROSOFT,
     .rule = "[n c S*],[],[]?,[],[]? -> [n c O*]; rep S O", .derive = tsr__derive_qlinear_pool,
     .some = "c", .stays = STAYS({"S O", "windows of quantised images are not followed"})},
    {"QLinearConcat", .since = 1, .domain = MICROSOFT, .rule = "[],[],[A* _ B*],[],[] -> [A* _ B*]",
     .derive = tsr__derive_qlinear_concat, .type = TYPE_AS_SECOND,
     .note = "axis says which dimension is _",
     .stays = STAYS({"_", "inputs are joined there, each with a scale of its own"})},
    // Rounding to bytes comes after the sum over i, so a cut of i needs the node taken apart.
    {"QLinearConv", .since = 10, .kept = LATER_INPUTS,
     .rule = "[n (g i) s^],[],[],[(g o) i _],[(g o)],[(g o)],[],[],[(g o)]? -> [n (g o) s]; stat "
             "i; attr group=g",
     .derive = tsr__derive_qlinear_conv, .type = TYPE_OPEN, .shape = tsr__infer_qlinear_conv,
     .expand = tsr__expand_qlinear_conv, .some = "o i s",
     .note = "rounding comes after the sum over i; weights with one zero point; " WINDOWS,
     .stays = STAYS({"_", KERNEL})},
    {"QLinearGlobalAveragePool", .since = 1, .domain = MICROSOFT,
     .rule = "[n c s],[],[]?,[],[]? -> [n c 1]; rep s", .derive = tsr__derive_qlinear_global_pool,
     .stays = STAYS({"s", ROUNDED})},
    {"QLinearLeakyRelu", .since = 1, .domain = MICROSOFT, .rule = "[A*],[],[]?,[],[]? -> [A*]"},
    {"QLinearMatMul", .since = 10, .kept = ALL_INPUTS,
     .rule = "[B~ m k],[m~],[m~],[B~ k n],[n~],[n~],[m~],[m~] -> [B* m n]; stat k",
     .derive = tsr__derive_qlinear_matmul, .type = TYPE_OPEN, .shape = tsr__infer_qlinear_matmul,
     .expand = tsr__expand_qlinear_matmul},
    {"QLinearMul", .since = 1, .domain = MICROSOFT,
     .rule = "[A~],[],[]?,[A~],[],[]?,[],[]? -> [A*]"},
    {"QLinearSigmoid", .since = 1, .domain = MICROSOFT, .rule = "[A*],[],[]?,[],[]? -> [A*]"},
    {"QLinearSoftmax", .since = 1, .domain = MICROSOFT,
     .rule = "[A* r],[],[]?,[],[]? -> [A* r]; rep r", .derive = tsr__derive_qlinear_softmax,
     .some = "*", .stays = STAYS({"r", ROUNDED})},
    {"QLinearWhere", .since = 1, .domain = MICROSOFT,
     .rule = "[A~],[A~],[],[],[A~],[],[],[],[] -> [A*]", .type = TYPE_AS_SECOND},
    {"QMoE", .since = 1, .domain = MICROSOFT, .kept = LATER_INPUTS,
     .rule = "[t m],[t e],[e (f u z) _],[e (f u z) _]?,[e (f u z)]?,[e m (u y)],[e m u]?,[e m]? -> "
             "[t m]; rep e m f z y; red u:sum; once 7",
     .derive = tsr__derive_quantized_experts, .shape = tsr__infer_like_first,
     .note = "z: a block; also third layers, zero points and router weights",
     .stays = STAYS({"e", "the router picks experts after it has seen all"},
                    {"m", "each hidden element needs all of them"},
                    {"f", "one half steers the other"}, {"z y", SCALED}, {"_", PACKED})},
    {"QuantizeLinear", .since = 10, .rule = "[A* (u z)],[A* u],[A* u]? -> [A* (u z)]; rep z",
     .derive = tsr__derive_quantize, .shape = tsr__infer_quantize, .some = "*~",
     .some_if = tsr__scales_of_blocks,
     .note = "scales for the tensor, for an axis, or for blocks z", .stays = STAYS({"z", SCALED})},
    {"QuickGelu", .since = 1, .domain = MICROSOFT, .rule = UNARY},
    {"RMSNormalization", .since = 23, .rule = "[A* R*],[A~ R~] -> [A* R*]; stat R",
     .derive = tsr__derive_layer_norm, .type = TYPE_AS_SECOND, .expand = tsr__expand_rms_norm,
     .note = "R: all dimensions from axis on"},
    {"RNN", .since = 1, .kept = LATER_INPUTS,
     .rule = "[t b i],[v w i],[v w h],[v _]?,[b]?,[v b h]? -> [t v b h]?,[v b h]?; rep t w i h; "
             "word direction=v forward reverse; share activations=v",
     .derive = tsr__derive_recurrent, .shape = tsr__infer_recurrent, .note = RECURRENT,
     .stays = STAYS(
         {"t", "each step needs the one before"}, {"i", SUMMED_GATE},
         {"w", "rows of all gates stand one behind the other, and a part would need some of each"},
         {"h", "each gate of each step reads all of them"},
         {"_", "biases of all gates stand one behind the other"})},
    {"RandomNormal", .since = 1, .rule = "-> [A*]; gen A", .type = TYPE_DTYPE_FLOAT,
     .shape = tsr__infer_attribute, .whole = RANDOM, .single = true},
    {"RandomNormalLike", .since = 1, .rule = UNARY, .type = TYPE_DTYPE, .whole = RANDOM,
     .single = true},
    {"RandomUniform", .since = 1, .rule = "-> [A*]; gen A", .type = TYPE_DTYPE_FLOAT,
     .shape = tsr__infer_attribute, .whole = RANDOM, .single = true},
    {"RandomUniformLike", .since = 1, .rule = UNARY, .type = TYPE_DTYPE, .whole = RANDOM,
     .single = true},
    // Made, not moved: each device counts its own part, from its own first number.
    {"Range", .since = 11, .rule = "·,·,· -> [r]; gen r; range 0 r", .derive = tsr__derive_range,
     .shape = tsr__infer_range, .value = tsr__value_range, .note = "integers that count up by one"},
    {"Reciprocal", .since = 1, .rule = UNARY},
    {"ReduceL1", .since = 1, .rule = "[A* r],·? -> [A* 1]; red r:sum",
     .derive = tsr__derive_reduce_sum, .note = "axes names r"},
    {"ReduceL2", .since = 1, .rule = "[A* r],·? -> [A* 1]; stat r",
     .derive = tsr__derive_reduce_stat, .expand = tsr__expand_reduce_l2, .note = "axes names r"},
    {"ReduceLogSum", .since = 1, .rule = "[A* r],·? -> [A* 1]; stat r",
     .derive = tsr__derive_reduce_stat, .expand = tsr__expand_reduce_log_sum,
     .note = "axes names r"},
    {"ReduceLogSumExp", .since = 1, .rule = "[A* r],·? -> [A* 1]; stat r",
     .derive = tsr__derive_reduce_stat, .expand = tsr__expand_reduce_log_sum_exp,
     .note = "axes names r"},
    {"ReduceMax", .since = 1, .rule = "[A* r],·? -> [A* 1]; red r:max",
     .derive = tsr__derive_reduce_max, .note = "axes names r"},
    {"ReduceMean", .since = 1, .rule = "[A* r],·? -> [A* 1]; stat r",
     .derive = tsr__derive_reduce_mean, .expand = tsr__expand_reduce_mean, .note = "axes names r"},
    {"ReduceMin", .since = 1, .rule = "[A* r],·? -> [A* 1]; red r:min",
     .derive = tsr__derive_reduce_min, .note = "axes names r"},
    {"ReduceProd", .since = 1, .rule = "[A* r],·? -> [A* 1]; red r:prod",
     .derive = tsr__derive_reduce_prod, .value = tsr__value_reduce_prod, .note = "axes names r"},
    {"ReduceSum", .since = 1, .rule = "[A* r],·? -> [A* 1]; red r:sum",
     .derive = tsr__derive_reduce_sum, .value = tsr__value_reduce_sum, .note = "axes names r",
     .sum = SUM_PASSES, .sum_inputs = 1},
    {"ReduceSumSquare", .since = 1, .rule = "[A* r],·? -> [A* 1]; red r:sum",
     .derive = tsr__derive_reduce_sum, .note = "axes names r"},
    {"RegexFullMatch", .since = 20, .rule = UNARY, .type = TYPE_BOOL},
    {"Relu", .since = 1, .rule = UNARY},
    {"Reshape", .since = 1, .rule = "[A*] -> [B*]; rep A B", .whole = OLD, .sum = SUM_PASSES,
     .sum_inputs = 1},
    // The text is an example: reshape.c finds the factors that both shapes share.
    {"Reshape", .since = 5, .rule = "[(f g) h],· -> [f (g h)]; shape 1",
     .derive = tsr__derive_reshape, .note = "factors that both shapes share; the others stay whole",
     .value = tsr__value_same, .shape = tsr__infer_reshape, .sum = SUM_PASSES, .sum_inputs = 1},
    {"Resize", .since = 10, .rule = "[A* s],·? -> [A* t]; rep s t", .derive = tsr__derive_resize,
     .shape = tsr__infer_resize_10, .note = "A: dimensions that keep their size",
     .stays = STAYS({"s t", BETWEEN})},
    {"Resize", .since = 11, .rule = "[A* s],·?,·?,·? -> [A* t]; rep s t; shape 3",
     .derive = tsr__derive_resize, .shape = tsr__infer_resize,
     .note = "A: dimensions that keep their size; by a whole number: [s] -> [(s u)], s may be cut: "
             "nearest as it is, linear and cubic with windows of the input",
     .stays = STAYS({"s t", BETWEEN})},
    {"ReverseSequence", .since = 10, .rule = "[t b C*],[b] -> [t b C*]; rep t",
     .derive = tsr__derive_reverse_sequence, .shape = tsr__infer_like_first,
     .note = "time_axis and batch_axis say which dimensions are t and b",
     .stays = STAYS({"t", "where an element goes depends on the length of its sequence"})},
    {"RoiAlign", .since = 10, .rule = "[n c y x],[r _],[r] -> [r c u w]; rep n y x u w",
     .shape = tsr__infer_roi_align,
     .stays = STAYS({"n", REGION_IMAGE}, {"y x", "a region may lie anywhere"}, {"u w", BINS},
                    {"_", REGION})},
    {"RotaryEmbedding", .since = 23,
     .rule = "[b h t d],[_ _],[_ _],[b t]? -> [b h t d]; rep d; attr num_heads=h",
     .derive = tsr__derive_rotary, .shape = tsr__infer_like_first,
     .note = "three dimensions: [b t (h d)]; without positions the angles are [b t _]",
     .stays = STAYS({"d", TURNED}, {"_", ANGLES})},
    {"RotaryEmbedding", .since = 1, .domain = MICROSOFT,
     .rule = "[b t (h d)],[b t],[_ _],[_ _] -> [b t (h d)]; rep d; attr num_heads=h",
     .derive = tsr__derive_rotary_positions, .shape = tsr__infer_like_first,
     .note = "one position for all: t stays whole", .stays = STAYS({"d", TURNED}, {"_", ANGLES})},
    {"Round", .since = 11, .rule = UNARY},
    {"STFT", .since = 17, .rule = "[b f^ _],·,[_]?,·? -> [b f u _]; rep u",
     .derive = tsr__derive_stft, .shape = tsr__infer_stft,
     .note = "parts of the frames f need windows of the signal, where sizes and step are known",
     .stays = STAYS({"u", FOURIER}, {"_", COMPLEX})},
    {"SVMClassifier", .since = 1, .domain = ML, .rule = "[n f] -> [n],[n c]; rep f c",
     .derive = tsr__derive_rows, .type = TYPE_OPEN, .type1 = TYPE_FLOAT,
     .shape = tsr__infer_classifier, .stays = STAYS({"f c", ATTRIBUTES})},
    {"SVMRegressor", .since = 1, .domain = ML, .rule = "[n f] -> [n c]; rep f c",
     .derive = tsr__derive_rows, .type = TYPE_FLOAT, .shape = tsr__infer_regressor,
     .stays = STAYS({"f c", ATTRIBUTES})},
    {"Sampling", .since = 1, .domain = MICROSOFT, .type = TYPE_INT32, .type1 = TYPE_OPEN,
     .whole = BODIES, .single = true},
    {"Scaler", .since = 1, .domain = ML, .rule = "[A* f] -> [A* f]; rep f", .type = TYPE_FLOAT,
     .stays = STAYS({"f", ATTRIBUTES})},
    // Opset 8 has a batch in front and lengths for each: its bodies are followed for shapes, not
    // cut.
    {"Scan", .since = 8, .type = TYPE_OPEN, .shape = tsr__infer_scan_8, .whole = BODIES},
    {"Scan", .since = 9, .rule = "[A*]… -> [A*]…", .type = TYPE_OPEN, .shape = tsr__infer_scan,
     .bodies = true, .note = TURNS},
    {"Scatter", .since = 9, .rule = "[A* v B*],[A* w B*],[A* w B*] -> [A* v B*]; rep w; scat 1 v 0",
     .derive = tsr__derive_scatter_elements, .shape = tsr__infer_like_first,
     .note = "A and B where data and indices have the same sizes", .stays = STAYS({"w", UPDATES})},
    {"ScatterElements", .since = 11,
     .rule = "[A* v B*],[A* w B*],[A* w B*] -> [A* v B*]; rep w; scat 1 v 0",
     .derive = tsr__derive_scatter_elements, .shape = tsr__infer_like_first,
     .note = "A and B where data and indices have the same sizes", .stays = STAYS({"w", UPDATES})},
    // Every device sees all updates and drops those that go to parts of v that others have (scat 1
    // v).
    {"ScatterND", .since = 11, .rule = "[v S*],[I* _],[I* S*] -> [v S*]; rep I; scat 1 v 0 0",
     .derive = tsr__derive_scatter_nd, .shape = tsr__infer_like_first,
     .note = "the last size of the indices is the number of dimensions V",
     .stays = STAYS({"I", UPDATES}, {"_", TUPLE})},
    {"Selu", .since = 1, .rule = UNARY},
    {"SequenceAt", .since = 11, .rule = "[A*],· -> [A*]", .type = TYPE_OPEN,
     .shape = tsr__infer_sequence_at, .note = LISTS_NOTE},
    {"SequenceConstruct", .since = 11, .rule = "[A*]… -> [A*]", .type = TYPE_OPEN,
     .shape = tsr__infer_sequence_construct, .note = LISTS_NOTE},
    {"SequenceEmpty", .since = 11, .type = TYPE_OPEN, .shape = tsr__infer_sequence_empty,
     .whole = LISTS},
    {"SequenceErase", .since = 11, .rule = "[A*],·? -> [A*]", .type = TYPE_OPEN,
     .shape = tsr__infer_identity, .note = LISTS_NOTE},
    {"SequenceInsert", .since = 11, .rule = "[A*],[A*],·? -> [A*]", .type = TYPE_OPEN,
     .shape = tsr__infer_sequence_insert, .note = LISTS_NOTE},
    // All devices have lists of the same length, whose elements are cut: the greatest of equal
    // numbers is it.
    {"SequenceLength", .since = 11, .rule = "[A*] -> []; red A:max", .type = TYPE_INT64,
     .shape = tsr__infer_scalar, .note = LISTS_NOTE},
    {"SequenceMap", .since = 17, .type = TYPE_OPEN, .shape = tsr__infer_sequence_map,
     .whole = BODIES},
    // The local node would give local sizes: it is replaced by sizes of the whole (sizes 0 0 1), on
    // all devices.
    {"Shape", .since = 1, .rule = "[A*] -> ·; drop A; sizes 0 0 1", .derive = tsr__derive_shape,
     .type = TYPE_INT64, .shape = tsr__infer_shape, .value = tsr__value_shape,
     .note = "sizes are those of the whole tensor; where they are not known without it, it is "
             "brought together"},
    {"Shrink", .since = 9, .rule = UNARY},
    {"Sigmoid", .since = 1, .rule = UNARY},
    {"Sign", .since = 9, .rule = UNARY},
    {"SimplifiedLayerNormalization", .since = 1, .rule = "[A* r],[A~ r~] -> [A* r],[A* 1]?; stat r",
     .derive = tsr__derive_layer_norm, .type = TYPE_AS_SECOND, .type1 = TYPE_FLOAT,
     .expand = tsr__expand_simplified_norm, .note = "R: all dimensions from axis on"},
    {"Sin", .since = 7, .rule = UNARY},
    {"Sinh", .since = 9, .rule = UNARY},
    {"Size", .since = 1, .rule = "[A*] -> ·; drop A; size 0 0 1", .derive = tsr__derive_size_of,
     .type = TYPE_INT64, .shape = tsr__infer_scalar, .value = tsr__value_size,
     .note = "sizes are those of the whole tensor; where they are not known without it, it is "
             "brought together"},
    {"SkipGroupNorm", .since = 1, .domain = MICROSOFT,
     .rule = "[n S* (g c)],[(g c)],[(g c)],[n S~ (g c)],[(g c)]? -> [n S* (g c)],[n S* (g c)]?; "
             "rep c S; attr groups=g",
     .derive = tsr__derive_group_norm_last, .stays = STAYS({"c S", NORMED_FUSED})},
    {"SkipLayerNormalization", .since = 1, .domain = MICROSOFT,
     .rule = "[A* r],[A~ r],[r],[r]?,[r]? -> [A* r],[A* 1]?,[A* 1]?,[A* r]?; stat r",
     .derive = tsr__derive_skip_norm, .shape = tsr__infer_skip_norm, .type1 = TYPE_FLOAT,
     .type2 = TYPE_FLOAT, .expand = tsr__expand_skip_layer_norm},
    {"SkipSimplifiedLayerNormalization", .since = 1, .domain = MICROSOFT,
     .rule = "[A* r],[A~ r],[r],[r]? -> [A* r],[A* 1]?,[A* 1]?,[A* r]?; stat r",
     .derive = tsr__derive_skip_norm, .shape = tsr__infer_skip_norm, .type1 = TYPE_FLOAT,
     .type2 = TYPE_FLOAT, .expand = tsr__expand_skip_simplified_norm},
    {"Slice", .since = 1, .rule = "[A* t^],·,·,·?,·? -> [A* t]", .derive = tsr__derive_slice,
     .shape = tsr__infer_slice, .value = tsr__value_slice,
     .note = "t is sliced; cut where size and bounds are known"},
    {"Softmax", .since = 1, .rule = "[A* R*] -> [A* R*]; stat R",
     .derive = tsr__derive_softmax_flat, .expand = tsr__expand_softmax_flat,
     .note = "R: all dimensions from axis on"},
    {"Softmax", .since = 13, .rule = "[A* r B*] -> [A* r B*]; stat r",
     .derive = tsr__derive_softmax, .expand = tsr__expand_softmax, .note = "axis names r"},
    {"SoftmaxCrossEntropyLoss", .since = 12,
     .rule = "[n c D*],[n D*],[c]? -> [],[n c D*]?; stat c n D", .derive = tsr__derive_softmax_loss,
     .shape = tsr__infer_loss, .expand = tsr__expand_softmax_loss, .some = "n",
     .note = "reduction none gives [n D*], sum gives red n D"},
    {"Softplus", .since = 1, .rule = UNARY},
    {"Softsign", .since = 1, .rule = UNARY},
    {"SpaceToDepth", .since = 1, .rule = "[n c (h p) (w q)] -> [n (p q c) h w]; rep p q",
     .derive = tsr__derive_space_to_depth, .stays = STAYS({"p q", BLOCK})},
    {"SparseAttention", .since = 1, .domain = MICROSOFT,
     .rule = "[b q (h g d)],[b k (h d)],[b k (h d)],[b h m d],[b h m d],[_ _],[_ _],·,[b],[_ "
             "_]?,[_ _]? -> [b q (h g d)],[b h m d],[b h m d]; rep q k m d; attr num_heads=h; attr "
             "num_heads=g; attr kv_num_heads=h",
     .derive = tsr__derive_sparse_attention, .note = "heads take the layouts of blocks in turn",
     .stays = STAYS({"q k m", "blocks of keys are chosen by lists that count from the first"},
                    {"d", DOT}, {"_", "lists of blocks"})},
    // The mirror image of Concat, with windows of the one input.
    {"Split", .since = 1, .rule = "[A* t^ B*],·? -> [A* t^ B*]…", .derive = tsr__derive_split,
     .other = tsr__derive_split_strided, .shape = tsr__infer_split, .value = tsr__value_split,
     .note = SEGMENTS},
    {"SplitToSequence", .since = 11, .rule = "[A* _ B*],·? -> [A* _ B*]", .type = TYPE_OPEN,
     .derive = tsr__derive_split_to_sequence, .shape = tsr__infer_split_to_sequence,
     .note = LISTS_NOTE, .stays = STAYS({"_", LENGTHS})},
    {"Sqrt", .since = 1, .rule = UNARY},
    {"Squeeze", .since = 1, .rule = "[A* 1],·? -> [A*]", .derive = tsr__derive_squeeze,
     .shape = tsr__infer_squeeze, .value = tsr__value_same, .note = "axes says which dimensions go",
     .sum = SUM_PASSES, .sum_inputs = 1},
    {"StringConcat", .since = 20, .rule = BINARY},
    {"StringNormalizer", .since = 10, .rule = "[_ c] -> [_ t]; rep c t",
     .shape = tsr__infer_string_normalizer, .whole = "the number of results depends on the data"},
    {"StringSplit", .since = 20, .rule = "[A*] -> [A* t],[A*]; rep A t", .type1 = TYPE_INT64,
     .shape = tsr__infer_string_split, .whole = "the number of results depends on the data"},
    {"Sub", .since = 1, .rule = "[A*],[A~] -> [A*]", .shape = tsr__infer_like_first, .whole = OLD},
    {"Sub", .since = 7, .rule = BINARY, .value = tsr__value_sub},
    {"Sum", .since = 1, .rule = MANY, .sum = SUM_ADDS, .sum_inputs = ~0u},
    {"SwiGLU", .since = 28, .rule = "[A*],[A*] -> [A*]"},
    {"Swish", .since = 24, .rule = UNARY},
    {"Tan", .since = 7, .rule = UNARY},
    {"Tanh", .since = 1, .rule = UNARY},
    {"TensorScatter", .since = 24, .rule = "[b A* t C*],[b A* u C*],[b]? -> [b A* t C*]; rep t u",
     .derive = tsr__derive_tensor_scatter, .shape = tsr__infer_like_first,
     .note = "axis says which dimension is t",
     .stays = STAYS({"t u", "where the update goes is known at run time"})},
    {"TfIdfVectorizer", .since = 9, .rule = "[n l] -> [n v]; rep l v", .derive = tsr__derive_rows,
     .type = TYPE_FLOAT, .shape = tsr__infer_tfidf, .some = "n",
     .stays = STAYS({"l", "grams are runs of a row"}, {"v", ATTRIBUTES})},
    {"ThresholdedRelu", .since = 1, .rule = UNARY},
    {"Tile", .since = 1, .rule = "[A*],·,· -> [B*]; rep A B", .whole = OLD},
    // t copies are made: cut along t a device makes fewer copies, cut along a it has a strided part
    // of them.
    {"Tile", .since = 6, .rule = "[a b],· -> [(t a) (u b)]; gen t u", .derive = tsr__derive_tile,
     .shape = tsr__infer_tile, .note = "a cut a gives strided results"},
    {"TopK", .since = 1, .rule = "[A* v],·? -> [A* k],[A* k]; stat v; rep k",
     .derive = tsr__derive_top_k, .type1 = TYPE_INT64, .shape = tsr__infer_top_k,
     .expand = tsr__expand_top_k, .note = "axis names v",
     .stays = STAYS({"k", "they are the first of all"})},
    {"Transpose", .since = 1, .rule = "[a b c] -> [c b a]", .derive = tsr__derive_transpose,
     .note = "perm orders the factors", .sum = SUM_PASSES, .sum_inputs = 1},
    {"TransposeMatMul", .since = 1, .domain = MICROSOFT,
     .rule = "[B~ m k],[B~ k n] -> [B* m n]; red k:sum", .derive = tsr__derive_fused_matmul,
     .some = "B~ m~ k", .some_if = tsr__stacks_differ,
     .note = "transA and transB exchange the letters"},
    {"TreeEnsemble", .since = 5, .domain = ML, .rule = "[n f] -> [n c]; rep f c",
     .derive = tsr__derive_rows, .shape = tsr__infer_tree_ensemble, .stays = STAYS({"f c", TREES})},
    {"TreeEnsembleClassifier", .since = 1, .domain = ML, .rule = "[n f] -> [n],[n c]; rep f c",
     .derive = tsr__derive_rows, .type = TYPE_OPEN, .type1 = TYPE_FLOAT,
     .shape = tsr__infer_classifier, .stays = STAYS({"f c", TREES})},
    {"TreeEnsembleRegressor", .since = 1, .domain = ML, .rule = "[n f] -> [n c]; rep f c",
     .derive = tsr__derive_rows, .type = TYPE_FLOAT, .shape = tsr__infer_regressor,
     .stays = STAYS({"f c", TREES})},
    {"Trilu", .since = 14, .rule = "[A* n m],·? -> [A* n m]; stat n m", .derive = tsr__derive_trilu,
     .expand = tsr__expand_trilu, .note = COMPARED},
    {"Unique", .since = 11, .rule = "[A*] -> [t],[t]?,[w]?,[t]?; rep A t w", .type1 = TYPE_INT64,
     .type2 = TYPE_INT64, .type3 = TYPE_INT64, .shape = tsr__infer_unique,
     .whole = "the number of results depends on the data"},
    {"Unsqueeze", .since = 1, .rule = "[A*],·? -> [A* 1]", .derive = tsr__derive_unsqueeze,
     .value = tsr__value_same, .note = "axes says which dimensions are made", .sum = SUM_PASSES,
     .sum_inputs = 1},
    {"Upsample", .since = 1, .rule = "[A* s] -> [A* t]; rep s t", .derive = tsr__derive_resize,
     .shape = tsr__infer_upsample, .note = "A: dimensions that keep their size",
     .stays = STAYS({"s t", BETWEEN})},
    {"Upsample", .since = 9, .rule = "[A* s],· -> [A* t]; rep s t", .derive = tsr__derive_resize,
     .shape = tsr__infer_resize_10, .note = "A: dimensions that keep their size",
     .stays = STAYS({"s t", BETWEEN})},
    {"Where", .since = 9, .rule = "[A~],[A~],[A~] -> [A*]", .type = TYPE_AS_SECOND,
     .value = tsr__value_where},
    {"Xor", .since = 1, .rule = "[A*],[A~] -> [A*]", .type = TYPE_BOOL,
     .shape = tsr__infer_like_first, .whole = OLD},
    {"Xor", .since = 7, .rule = BINARY, .type = TYPE_BOOL},
    {"ZipMap", .since = 1, .domain = ML, .type = TYPE_OPEN, .whole = LISTS},
};
const size_t tsr__op_table_count = TSR_COUNT(tsr__op_table);

// Bisection by name, then through its rows: a MatMul of opset 13 takes the row since 1 if there is
// none from 2 to 13. Rows of several domains stand among each other.
static const struct op_row *find_row(struct str op, struct str domain, int64_t opset)
{
    size_t lo = 0, hi = tsr__op_table_count;
    while (lo < hi) { // first row that is not below op
        size_t mid = (lo + hi) / 2;
        if (tsr__str_cmp(str_of(tsr__op_table[mid].op), op) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    const struct op_row *found = NULL;
    for (; lo < tsr__op_table_count; lo++) {
        const struct op_row *row = &tsr__op_table[lo];
        if (!str_is(op, row->op))
            break;
        if (str_is(domain, row->domain ? row->domain : "") && row->since <= opset)
            found = row;
    }
    return found;
}

const struct op_row *tsr__row_in_table(struct str op, struct str domain, int64_t opset)
{
    return find_row(op, domain, opset);
}

// Operators and domains are kept once per model, so their addresses are as good as their names.
const struct op_row *tsr__row_of(const struct shapes *shapes, const tsr_node *node)
{
    // An operator without a row is remembered as such.
    static const struct op_row none;
    struct str op = tsr__node_op_str(node), domain = tsr__node_domain_str(node);
    // As bytes, the key of a map: each operator is looked for once in a model, not once for each
    // node.
    struct {
        const char *op, *domain;
        int64_t opset;
    } key = {op.p, domain.p, tsr__node_opset(node)};
    struct str text = {(const char *)&key, sizeof(key)};
    const struct op_row *row = tsr__map_get(shapes->rows, text);
    if (!row) {
        row = tsr__row_find(tsr_model_session(shapes->model), op, domain, key.opset);
        text = tsr__arena_str(shapes->arena, text);
        void **slot = text.p ? tsr__map_at(shapes->rows, text) : NULL;
        if (slot)
            *slot = (void *)(row ? row : &none);
    }
    return row == &none ? NULL : row;
}

// For tools and tests that walk the table without a session.
bool tsr__rule_row(size_t i, struct rule_row_text *out)
{
    if (i >= tsr__op_table_count)
        return false;
    const struct op_row *row = &tsr__op_table[i];
    *out = (struct rule_row_text){.op = row->op,
                                  .domain = text_or_none(row->domain),
                                  .rule = text_or_none(row->rule),
                                  .note = text_or_none(row->note),
                                  .whole = text_or_none(row->whole),
                                  .since = row->since};
    return true;
}
