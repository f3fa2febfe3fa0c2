// SPDX-License-Identifier: Apache-2.0
// versions.c - the versions after 17 in which operators of ai.onnx came or changed, as the standard has them up to opset 27.
// So that a file can say the lowest opset that means the same.
//
// Acos changed in 22, and only element types came (-22): a node of float32 in a model of opset 24 may
// be written for opset 17. AffineGrid came in 20 and has not changed since: 20.
#include "rules/rules.h"

#include <stdlib.h>

#define FROM   17 // nothing is lowered below
#define NEWEST 27
#define MOST   6

struct versions {
    const char *op;
    // Ascending, 0 behind the last; negative: only new element types came. A version that brought the body by
    // which an engine without a kernel (Relu of int64) makes the operator counts as a change; so does one that brought the
    // body of an operator in that body (HardSwish is made of HardSigmoid), or mended it (tests/e2e/lowered.py proves all).
    int changed[MOST];
};
static const struct versions table[] = {
    {"Abs", {0}},
    {"Acos", {-22}},
    {"Acosh", {-22}},
    {"Add", {0}},
    {"AffineGrid", {20}},
    {"And", {0}},
    {"ArgMax", {0}},
    {"ArgMin", {0}},
    {"Asin", {-22}},
    {"Asinh", {-22}},
    {"Atan", {-22}},
    {"Atanh", {-22}},
    {"Attention", {23, 24}},
    {"AveragePool", {19, -22}},
    {"BatchNormalization", {0}},
    {"Bernoulli", {-22}},
    {"BitCast", {26}},
    {"BitShift", {0}},
    {"BitwiseAnd", {18}},
    {"BitwiseNot", {18}},
    {"BitwiseOr", {18}},
    {"BitwiseXor", {18}},
    {"BlackmanWindow", {0}},
    {"Cast", {-19, -21, -23, -24, -25}},
    {"CastLike", {-19, -21, -23, -24, -25}},
    {"CausalConvWithState", {27}},
    {"Ceil", {0}},
    {"Celu", {0}},
    {"CenterCropPad", {18}},
    {"Clip", {0}},
    {"Col2Im", {18}},
    {"Compress", {0}},
    {"Concat", {0}},
    {"ConcatFromSequence", {0}},
    {"Constant", {-19, -21, -23, -24, -25}},
    {"ConstantOfShape", {-20, -21, -23, -24, -25}},
    {"Conv", {-22}},
    {"ConvInteger", {0}},
    {"ConvTranspose", {-22}},
    {"Cos", {-22}},
    {"Cosh", {-22}},
    {"CumProd", {26}},
    {"CumSum", {0}},
    {"DFT", {20}},
    {"DeformConv", {19, -22}},
    {"DepthToSpace", {0}},
    {"DequantizeLinear", {19, 21, 23, -24, -25}},
    {"Det", {-22}},
    {"Div", {0}},
    {"Dropout", {-22}},
    {"DynamicQuantizeLinear", {0}},
    {"Einsum", {0}},
    {"Elu", {18, -22}},
    {"Equal", {19}},
    {"Erf", {0}},
    {"Exp", {0}},
    {"Expand", {0}},
    {"EyeLike", {-22}},
    {"Flatten", {-21, -23, -24, -25}},
    {"Floor", {0}},
    {"GRU", {-22}},
    {"Gather", {0}},
    {"GatherElements", {0}},
    {"GatherND", {0}},
    {"Gelu", {20}},
    {"Gemm", {0}},
    {"GlobalAveragePool", {-22}},
    {"GlobalLpPool", {-22}},
    {"GlobalMaxPool", {-22}},
    {"Greater", {0}},
    {"GreaterOrEqual", {0}},
    {"GridSample", {20, -22}},
    {"GroupNormalization", {18, 21}},
    {"HammingWindow", {0}},
    {"HannWindow", {0}},
    {"HardSigmoid", {18, -22}},
    {"HardSwish", {18, -22}},
    {"Hardmax", {0}},
    {"Identity", {-19, -21, -23, -24, -25}},
    {"If", {-19, -21, -23, -24, -25}},
    {"ImageDecoder", {20}},
    {"InstanceNormalization", {-22}},
    {"IsInf", {20}},
    {"IsNaN", {-20}},
    {"LRN", {0}},
    {"LSTM", {-22}},
    {"LayerNormalization", {0}},
    {"LeakyRelu", {0}},
    {"Less", {0}},
    {"LessOrEqual", {0}},
    {"LinearAttention", {27}},
    {"Log", {0}},
    {"LogSoftmax", {0}},
    {"Loop", {-19, -21, -23, -24, -25}},
    {"LpNormalization", {-22}},
    {"LpPool", {18, -22}},
    {"MatMul", {0}},
    {"MatMulInteger", {0}},
    {"Max", {0}},
    {"MaxPool", {-22}},
    {"MaxRoiPool", {-22}},
    {"MaxUnpool", {-22}},
    {"Mean", {0}},
    {"MeanVarianceNormalization", {19}},
    {"MelWeightMatrix", {0}},
    {"Min", {0}},
    {"Mish", {18, -22}},
    {"Mod", {0}},
    {"Mul", {0}},
    {"Multinomial", {-22}},
    {"Neg", {0}},
    {"NegativeLogLikelihoodLoss", {-22}},
    {"NonMaxSuppression", {0}},
    {"NonZero", {0}},
    {"Not", {0}},
    {"OneHot", {0}},
    {"Optional", {0}},
    {"OptionalGetElement", {18}},
    {"OptionalHasElement", {18}},
    {"Or", {0}},
    {"PRelu", {0}},
    {"Pad", {18, 19, -21, -23, -24, -25}},
    {"Pow", {0}},
    {"QLinearConv", {0}},
    {"QLinearMatMul", {21}},
    {"QuantizeLinear", {19, 21, 23, -24, 25}},
    {"RMSNormalization", {23}},
    {"RNN", {-22}},
    {"RandomNormal", {-22}},
    {"RandomNormalLike", {-22}},
    {"RandomUniform", {-22}},
    {"RandomUniformLike", {-22}},
    {"Range", {27}},
    {"Reciprocal", {0}},
    {"ReduceL1", {18}},
    {"ReduceL2", {18}},
    {"ReduceLogSum", {18}},
    {"ReduceLogSumExp", {18}},
    {"ReduceMax", {18, 20}},
    {"ReduceMean", {18}},
    {"ReduceMin", {18, 20}},
    {"ReduceProd", {18}},
    {"ReduceSum", {0}},
    {"ReduceSumSquare", {18}},
    {"RegexFullMatch", {20}},
    {"Relu", {18}},
    {"Reshape", {-19, -21, -23, -24, -25}},
    {"Resize", {18, 19}},
    {"ReverseSequence", {0}},
    {"RoiAlign", {-22}},
    {"RotaryEmbedding", {23}},
    {"Round", {-22}},
    {"STFT", {0}},
    {"Scan", {-19, -21, -23, -24, -25}},
    {"Scatter", {0}},
    {"ScatterElements", {18}},
    {"ScatterND", {18}},
    {"Selu", {18, -22}},
    {"SequenceAt", {0}},
    {"SequenceConstruct", {0}},
    {"SequenceEmpty", {0}},
    {"SequenceErase", {0}},
    {"SequenceInsert", {0}},
    {"SequenceLength", {0}},
    {"SequenceMap", {0}},
    {"Shape", {-19, -21, -23, -24, -25}},
    {"Shrink", {18}},
    {"Sigmoid", {0}},
    {"Sign", {0}},
    {"Sin", {-22}},
    {"Sinh", {-22}},
    {"Size", {-19, -21, -23, -24, -25}},
    {"Slice", {0}},
    {"Softmax", {0}},
    {"SoftmaxCrossEntropyLoss", {0}},
    {"Softplus", {18, -22}},
    {"Softsign", {18, -22}},
    {"SpaceToDepth", {0}},
    {"Split", {18}},
    {"SplitToSequence", {-24}},
    {"Sqrt", {0}},
    {"Squeeze", {-21, -23, -24, -25}},
    {"StringConcat", {20}},
    {"StringNormalizer", {0}},
    {"StringSplit", {20}},
    {"Sub", {0}},
    {"Sum", {0}},
    {"Swish", {24}},
    {"Tan", {-22}},
    {"Tanh", {0}},
    {"TensorScatter", {24}},
    {"TfIdfVectorizer", {0}},
    {"ThresholdedRelu", {18, -22}},
    {"Tile", {0}},
    {"TopK", {-24}},
    {"Transpose", {-21, -23, -24, -25}},
    {"Trilu", {0}},
    {"Unique", {0}},
    {"Unsqueeze", {-21, -23, -24, -25}},
    {"Upsample", {0}},
    {"Where", {0}},
    {"Xor", {0}},
};

bool tsr__type_plain(tsr_dtype type)
{
    static const tsr_dtype all[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_INT64,  TSR_INT32,
                                    TSR_INT16, TSR_INT8,   TSR_UINT64,  TSR_UINT32, TSR_UINT16,
                                    TSR_UINT8, TSR_BOOL,   TSR_STRING};
    for (size_t i = 0; i < TSR_COUNT(all); i++)
        if (all[i] == type)
            return true;
    return false;
}

static int by_name(const void *key, const void *row)
{
    const struct str *name = key;
    const char *op = ((const struct versions *)row)->op;
    size_t n = strlen(op), least = n < name->n ? n : name->n;
    int order = memcmp(name->p, op, least);
    return order ? order : (name->n > n) - (name->n < n);
}

// What came with a new version beside types, and is absent unless it is used.
static bool uses_more(const tsr_node *node)
{
    static const char *const names[] = {"saturate", "round_mode", "ceil_mode"};
    for (size_t i = 0; i < TSR_COUNT(names); i++)
        if (tsr_node_find_attr(node, names[i]))
            return true;
    return false;
}

int64_t tsr__rule_changed(const tsr_node *node, int64_t opset, bool plain)
{
    struct str op = tsr__node_op_str(node);
    const struct versions *row =
        opset > NEWEST ? NULL : bsearch(&op, table, TSR_COUNT(table), sizeof(*table), by_name);
    if (!row || opset <= FROM)
        return opset;
    int64_t last = FROM;
    plain = plain && !uses_more(node);
    for (int i = 0; i < MOST; i++) {
        if (!row->changed[i])
            break;
        bool types = row->changed[i] < 0;
        int64_t version = types ? -row->changed[i] : row->changed[i];
        if (version <= opset && !(types && plain))
            last = version;
    }
    return last;
}
