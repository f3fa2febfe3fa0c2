#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every version of every operator has a row: those of Python's onnx, in all its domains, and those of the newest opset and of
com.microsoft that are listed here. Every row must have a rule, or the reason why its operator cannot be sharded, and its operator must
exist. Prints how many operators can be sharded.

Every factor that a row does not shard must have a reason, too.

Usage: complete.py PRINT_RULE TESSERA
"""
import json, os, re, subprocess, sys
import onnx.defs

# ai.onnx, opset 28: one more than onnx 1.22 knows (27).
OPSET_28 = """
Abs Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization Bernoulli BitCast BitShift
BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Cast CastLike CausalConvWithState Ceil Celu CenterCropPad Clip Col2Im Compress
Concat ConcatFromSequence Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumProd CumSum DFT DeformConv DepthToSpace
DequantizeLinear Det Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements
GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization HammingWindow
HannWindow HardSigmoid HardSwish Hardmax Identity If ImageDecoder InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu
Less LessOrEqual LinearAttention Log LogSoftmax Loop LpNormalization LpPool MatMul MatMulInteger Max MaxPool MaxRoiPool MaxUnpool Mean
MeanVarianceNormalization MelWeightMatrix Min Mish Mod Mul Multinomial Neg NegativeLogLikelihoodLoss NonMaxSuppression NonZero Not OneHot
Optional OptionalGetElement OptionalHasElement Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN RandomNormal
RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
ReduceMin ReduceProd ReduceSum ReduceSumSquare RegexFullMatch Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding Round STFT Scan
Scatter ScatterElements ScatterND Selu SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap
Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split SplitToSequence Sqrt
Squeeze StringConcat StringNormalizer StringSplit Sub Sum SwiGLU Swish Tan Tanh TensorScatter TfIdfVectorizer ThresholdedRelu Tile TopK
Transpose Trilu Unique Unsqueeze Upsample Where Xor
""".split()

# com.microsoft: operators of exported language models and encoders.
MICROSOFT = """
Attention BeamSearch BiasAdd BiasGelu BiasSplitGelu CausalConvWithState DecoderMaskedMultiHeadAttention DynamicQuantizeMatMul
EmbedLayerNormalization FastGelu FusedGemm FusedMatMul GatedRMSNorm GatherBlockQuantized Gelu GemmaRotaryEmbedding GreedySearch GroupNorm
GroupQueryAttention LinearAttention LinearAttentionGate MRotaryEmbedding MatMulBnb4 MatMulIntegerToFloat MatMulNBits MatMulNBitsMlp
MatMulNBitsQkv MoE MultiHeadAttention PackedMultiHeadAttention PagedAttention QAttention QLinearAdd QLinearConcat QLinearMul
QLinearSigmoid QLinearSoftmax QMoE QuickGelu RotaryEmbedding Sampling SkipGroupNorm SkipLayerNormalization
SkipSimplifiedLayerNormalization SparseAttention TransposeMatMul
""".split()


def bodies_told(root):
    """Check changes.def: an operator whose function body (for engines without a kernel) is newer than itself must not be lowered below that
    opset."""
    with open(os.path.join(root, "src", "rules", "changes.def")) as f:
        told = dict(re.findall(r'X\("(\w+)", "[^"]*", ([^)]*)\)', f.read()))
    bad = []
    for s in onnx.defs.get_all_schemas_with_history():
        bodies = list(s.function_opset_versions) + list(s.context_dependent_function_opset_versions)
        first = min(bodies, default=0)
        if not s.domain and first > max(17, s.since_version) and str(first) not in told[s.name].split(", "):
            bad.append("src/rules/changes.def: the body of %s came with opset %d" % (s.name, first))
    return bad


def unexplained(tessera):
    """Factors (and dimensions without one) that a row does not shard must have a reason; others must not."""
    bad = []
    for r in json.loads(subprocess.run([tessera, "rules", "--json"], check=True, capture_output=True, text=True).stdout)["rules"]:
        tensors, *clauses = r["rule"].split(";")
        whole = {f for c in clauses if c.split()[0] in ("rep", "sel") for f in c.split()[1:]}
        whole |= {"_"} if re.search(r"(?<![A-Za-z0-9])_(?![A-Za-z0-9])", tensors) else set()
        groups = [g.split(": ", 1) for g in r["stays"].split("; ") if g]
        told = [f for names, why in groups if len(why) > 10 for f in names.split()]
        if r["whole"]:
            whole = set()
        if set(told) != whole or len(told) != len(set(told)):
            bad.append("%s %s from %d keeps %s whole and says why of %s" % (r["op"], r["domain"], r["since"], sorted(whole), sorted(told)))
    return bad


def main(printer, tessera):
    rows = [json.loads(line) for line in subprocess.run([printer], check=True, capture_output=True, text=True).stdout.splitlines()]
    have = {}
    for r in rows:
        have.setdefault((r["op"], r["domain"]), []).append(r)
    newest, oldest = {}, {}
    for s in onnx.defs.get_all_schemas_with_history():
        newest[s.name, s.domain] = max(s.since_version, newest.get((s.name, s.domain), 0))
        oldest[s.name, s.domain] = min(s.since_version, oldest.get((s.name, s.domain), 1000))
    wanted = set(newest) | {(op, "") for op in OPSET_28} | {(op, "com.microsoft") for op in MICROSOFT}
    bad = ["%s %s has no row: add one to src/rules/table*.c" % key for key in sorted(wanted - set(have))]
    bad += [
        "%s %s: no row for version %d" % (*key, v) for key, v in oldest.items() if key in have and min(r["since"] for r in have[key]) > v
    ]
    bad += ["%s from %d: neither a rule nor a reason" % (r["op"], r["since"]) for r in rows if not r["rule"] and not r["whole"]]
    # This operator exists only in ONNX Runtime, in the domain of ONNX.
    known = wanted | {("SimplifiedLayerNormalization", "")}
    try:
        import onnxruntime.capi.onnxruntime_pybind11_state as ort
        known |= {(s.name, s.domain) for s in ort.get_all_operator_schema()}
        bad += ["%s %s has a row, but neither onnx nor ONNX Runtime has it: raise onnx in tools/requirements.txt and run tools/lock, "
                "or add it to the lists of tests/rules/complete.py" % key for key in sorted(set(have) - known)]
    except ImportError:
        pass
    if len(OPSET_28) != 203 or {op for op, domain in newest if domain == ""} - set(OPSET_28):
        bad.append("OPSET_28 in tests/rules/complete.py must have all operators of onnx, and 203 is their number")
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    made = subprocess.run([sys.executable, os.path.join(root, "tools", "changes")], check=True, capture_output=True, text=True).stdout
    with open(os.path.join(root, "src", "rules", "changes.def")) as f:
        there = set(f.read().splitlines())
    bad += ["src/rules/changes.def lacks %s: run tools/changes" % line for line in made.splitlines() if line not in there]
    bad += bodies_told(root) + unexplained(tessera)
    for line in bad:
        print(line)
    for domain in sorted({d for _, d in have}):
        ops = [key for key in have if key[1] == domain]
        whole = [key for key in ops if all(r["whole"] for r in have[key])]
        print("%s: %d operators, %d may be cut, %d stay whole" % (domain or "ai.onnx", len(ops), len(ops) - len(whole), len(whole)))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
