// SPDX-License-Identifier: Apache-2.0
// derive.h - derive functions of reductions, norms, quantised operators and losses, and what they
// share. Private to the rules room.
#ifndef TSR_RULES_DERIVE_H
#define TSR_RULES_DERIVE_H

#include "rules/internal.h"

#define DERIVE_MAX_RANK  (RULE_MAX_FACTORS / 4)
#define DERIVE_NO_SHAPE  "the shape of an input is not known"
#define DERIVE_NO_AXIS   "the axis is not one of the input's"
#define DERIVE_NO_MEMBER "an attribute has a value that is not known here"

// A piece of a rule's text that stands there only if something holds: text_if(!heads, " h").
static inline const char *text_if(bool holds, const char *text)
{
    return holds ? text : "";
}

int64_t tsr__derive_int(const struct derivation *derivation, const char *name, int64_t otherwise);
bool tsr__derive_has(const struct derivation *derivation, size_t i); // input i is given
// Integers of an attribute, or (in later opsets) of a constant input: the count, -1: not known, -2:
// not given.
int64_t tsr__derive_ints(const struct derivation *derivation, const char *name, size_t i,
                         int64_t *out, int64_t cap);
// Rank of input i; -1: not known, and the derivation has ended.
int tsr__derive_rank(struct derivation *derivation, size_t i);
// The attribute as an axis of that rank; -1: it is none, and the derivation has ended.
int tsr__derive_axis(struct derivation *derivation, const char *name, int64_t otherwise, int rank);
// "d0 d1 ": letters of dimensions from .. to-1.
void tsr__derive_letters(struct derivation *derivation, char letter, int from, int to);
// "stat" where a node of this kind can be replaced by simpler ones (expand.c), else "rep": from that
// opset of ai.onnx on, and for element types of input 0 that the simpler ones have.
enum expand_types { EXPAND_FLOATS, EXPAND_NUMBERS };
const char *tsr__derive_stat(const struct derivation *derivation, int64_t opset,
                             enum expand_types types);
// Elements of input 1 look up rows v of input 0: "v" is summed over parts of the table, or whole
// where the result's type (that of input `like`) cannot be. The result has that many dimensions
// behind those of the indices.
void tsr__derive_lookup(struct derivation *derivation, size_t like, int behind);
// Opset of ai.onnx in the node's model; 0: not imported.
int64_t tsr__onnx_opset(const tsr_node *node);
// Bit i: dimension i is reduced. False: not known, and the derivation has ended.
bool tsr__reduce_axes(struct derivation *derivation, int rank, bool *reduced);

void tsr__derive_reduce_sum(struct derivation *derivation);
void tsr__derive_reduce_max(struct derivation *derivation);
void tsr__derive_reduce_min(struct derivation *derivation);
void tsr__derive_reduce_prod(struct derivation *derivation);
void tsr__derive_reduce_stat(struct derivation *derivation);
void tsr__derive_reduce_mean(struct derivation *derivation);
void tsr__derive_arg(struct derivation *derivation);
void tsr__derive_global_pool(struct derivation *derivation);
void tsr__derive_global_max_pool(struct derivation *derivation);
void tsr__derive_softmax(struct derivation *derivation);
void tsr__derive_softmax_flat(struct derivation *derivation);
void tsr__derive_layer_norm(struct derivation *derivation);
void tsr__derive_group_norm(struct derivation *derivation);
void tsr__derive_group_norm_18(struct derivation *derivation);
void tsr__derive_instance_norm(struct derivation *derivation);
void tsr__derive_batch_norm(struct derivation *derivation);
void tsr__derive_lp_norm(struct derivation *derivation);
void tsr__derive_mvn(struct derivation *derivation);
void tsr__derive_skip_norm(struct derivation *derivation);
void tsr__derive_embed_norm(struct derivation *derivation);
void tsr__derive_group_norm_last(struct derivation *derivation);
void tsr__derive_top_k(struct derivation *derivation);
// A value of one element. Or: the bytes of a constant, all alike; false: they are not, or not known.
bool tsr__derive_single(struct shape shape);
bool tsr__derive_alike(const tsr_value *value, tsr_dtype type, int *out);
void tsr__derive_trilu(struct derivation *derivation);
void tsr__derive_range(struct derivation *derivation);
void tsr__derive_eye_like(struct derivation *derivation);
void tsr__derive_cumulate(struct derivation *derivation);
void tsr__derive_einsum(struct derivation *derivation);
void tsr__derive_matmul_integer(struct derivation *derivation);
void tsr__derive_qlinear_matmul(struct derivation *derivation);
void tsr__derive_quantize(struct derivation *derivation);
void tsr__derive_dynamic_quantize(struct derivation *derivation);
void tsr__derive_dynamic_quantize_matmul(struct derivation *derivation);
void tsr__derive_loss(struct derivation *derivation);
void tsr__derive_softmax_loss(struct derivation *derivation);
void tsr__derive_fused_matmul(struct derivation *derivation);
void tsr__derive_fused_gemm(struct derivation *derivation);
void tsr__derive_matmul_nbits(struct derivation *derivation);
void tsr__derive_matmul_bnb4(struct derivation *derivation);
void tsr__derive_gather_quantized(struct derivation *derivation);
void tsr__derive_qlinear_softmax(struct derivation *derivation);
void tsr__derive_qlinear_concat(struct derivation *derivation);
void tsr__derive_qlinear_pool(struct derivation *derivation);
void tsr__derive_qlinear_global_pool(struct derivation *derivation);

// Types and shapes (shape_norm.c).
void tsr__infer_top_k(struct shape_job *job);
void tsr__infer_multinomial(struct shape_job *job);
void tsr__infer_quantize(struct shape_job *job);
void tsr__infer_dequantize(struct shape_job *job);
void tsr__infer_qlinear_matmul(struct shape_job *job);
void tsr__infer_matmul_bnb4(struct shape_job *job);
void tsr__infer_skip_norm(struct shape_job *job);
void tsr__infer_loss(struct shape_job *job);
void tsr__infer_gather_quantized(struct shape_job *job);

// Attention, convolutions, recurrent layers, experts, rows.
void tsr__derive_heads(struct derivation *derivation, int64_t kv, int64_t each); // sizes of h and g
bool tsr__derive_mask(struct derivation *derivation, size_t i, const char *heads);
// The mask (if there is one) is [q k] or [b heads q k], with a number of rows and as many columns as
// input 1 has in dimension `keys`.
bool tsr__derive_mask_fits(const struct derivation *derivation, size_t i, int keys);
void tsr__derive_conv(struct derivation *derivation);
void tsr__derive_fused_conv(struct derivation *derivation);
void tsr__derive_conv_transpose(struct derivation *derivation);
void tsr__derive_lrn(struct derivation *derivation);
void tsr__derive_conv_integer(struct derivation *derivation);
void tsr__derive_qlinear_conv(struct derivation *derivation);
void tsr__derive_deform_conv(struct derivation *derivation);
bool tsr__deform_expands(const struct derivation *derivation); // expand_deform.c
void tsr__derive_mel_weights(struct derivation *derivation);
void tsr__derive_causal_conv(struct derivation *derivation);
void tsr__derive_pool(struct derivation *derivation);
void tsr__derive_col2im(struct derivation *derivation);
void tsr__derive_attention(struct derivation *derivation);
void tsr__derive_flex_attention(struct derivation *derivation);
void tsr__derive_linear_attention(struct derivation *derivation);
void tsr__derive_rotary(struct derivation *derivation);
void tsr__derive_rotary_positions(struct derivation *derivation);
void tsr__derive_multi_head(struct derivation *derivation);
void tsr__derive_masked_multi_head(struct derivation *derivation);
void tsr__derive_projected_attention(struct derivation *derivation);
void tsr__derive_packed_attention(struct derivation *derivation);
void tsr__derive_quantized_attention(struct derivation *derivation);
void tsr__derive_group_query(struct derivation *derivation);
void tsr__derive_sparse_attention(struct derivation *derivation);
void tsr__derive_packed_multi_head(struct derivation *derivation);
void tsr__derive_paged_attention(struct derivation *derivation);
void tsr__derive_experts(struct derivation *derivation);
void tsr__derive_quantized_experts(struct derivation *derivation);
void tsr__derive_lstm(struct derivation *derivation);
void tsr__derive_recurrent(struct derivation *derivation);
void tsr__derive_dft_17(struct derivation *derivation);
void tsr__derive_dft(struct derivation *derivation);
void tsr__derive_stft(struct derivation *derivation);
void tsr__derive_adagrad(struct derivation *derivation);
void tsr__derive_adam(struct derivation *derivation);
void tsr__derive_halves(struct derivation *derivation);
void tsr__derive_rows(struct derivation *derivation);
void tsr__derive_feature_extractor(struct derivation *derivation);

void tsr__infer_multi_head(struct shape_job *job);
void tsr__infer_masked_multi_head(struct shape_job *job);
void tsr__infer_group_query(struct shape_job *job);
void tsr__infer_projected_attention(struct shape_job *job);
void tsr__infer_quantized_attention(struct shape_job *job);
void tsr__infer_paged_attention(struct shape_job *job);
void tsr__infer_regressor(struct shape_job *job);
void tsr__infer_classifier(struct shape_job *job);
void tsr__infer_one_hot_encoder(struct shape_job *job);
void tsr__infer_feature_vectorizer(struct shape_job *job);
void tsr__infer_category_mapper(struct shape_job *job);

#endif
