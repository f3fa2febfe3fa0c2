# SPDX-License-Identifier: Apache-2.0
"""Cases for prove.py: reductions, norms, quantised operators, losses, fused operators."""
import random

import numpy as np
from onnx import TensorProto as T

MS = "com.microsoft:"


def random_equations(p, count):
    """Einsums of up to three operands: letters summed in one operand only, diagonals, sizes of 1 that are broadcast."""
    dice, numbers, result = random.Random(11), np.random.default_rng(11), []
    while len(result) < count:
        letters = "abcdef"[:dice.randint(2, 6)]
        sizes = {letter: dice.randint(1, 5) for letter in letters}
        terms = [[dice.choice(letters) for _ in range(dice.randint(1, 4))] for _ in range(dice.randint(1, 3))]
        if dice.random() < 0.7:
            terms = [list(dict.fromkeys(term)) for term in terms]  # no diagonals
        used = sorted(set(sum(terms, [])))
        out = dice.sample(used, dice.randint(0, len(used)))
        stretched = dice.random() < 0.3 and all(len(set(term)) == len(term) for term in terms)
        shapes = [[1 if stretched and i and letter in terms[0] and dice.random() < 0.3 else sizes[letter] for letter in term]
                  for i, term in enumerate(terms)]
        operands = [numbers.uniform(-2, 2, shape).astype(np.float32) for shape in shapes]
        result.append(p.case(*operands, equation="%s->%s" % (",".join(map("".join, terms)), "".join(out))))
    return result


def cases(p):
    case, Host, floats, ints = p.case, p.Host, p.floats, p.ints
    host = lambda *v: Host(np.array(v, np.int64))
    u8 = lambda *s: ints(*s, low=0, high=255, dtype=np.uint8)
    i8 = lambda *s: ints(*s, low=-60, high=60, dtype=np.int8
                         )  # sums of two products with bytes stay below 2 ** 15, so that no kernel saturates
    f = lambda v: np.array(v, np.float32)
    away = lambda *s: floats(*s, low=0.5, high=2)
    byte = lambda v: np.array(v, np.uint8)

    def reduce(make=floats, axes_input=18):
        """axes as an input, and as an attribute before that opset."""
        before = axes_input - 1
        return [
            case(make(3, 4, 5), host(1)),
            case(make(3, 4, 5), host(0, -1), keepdims=0),
            case(make(4, 5), None),
            case(make(4, 5), keepdims=0),
            case(make(3, 4), None, noop_with_empty_axes=1),
            case(make(3, 4), host(), noop_with_empty_axes=1),
            case(make(5), host(0)),
            case(make()),
            case(make(3, 4, 5), opset=before, axes=[-2]),
            case(make(3, 4, 5), opset=before, axes=[0, 2], keepdims=0),
            case(make(4, 5), opset=11),
            case(make(2, 3, 4), host(1), symbols=[("batch", "seq", 4)]),
            case(make(3, 4), np.array([1], np.int64), whole=True),
            case(make(3, 4), np.zeros(0, np.int64))
        ] + (make is not ints) * [
            case(make(3, 4, 5), np.array([1], np.int64), declare=[(3, 1, 5)]),
            case(make(3, 4, 5), np.array([1], np.int64), keepdims=0, declare=[(3, 5)]),
            case(make(3, 3), np.array([1], np.int64), keepdims=0, declare=[(3, )], whole=True)
        ]

    norm = dict(opset=None)
    layer = [
        case(floats(3, 4, 6), floats(6), floats(6)),
        case(floats(3, 4, 6), floats(6), outputs=3),
        case(floats(3, 4, 6), floats(4, 6), floats(4, 6), axis=1),
        case(floats(5, 6), floats(6), floats(6), axis=-1, epsilon=0.1),
        case(floats(2, 3, 4, 5), floats(4, 5), axis=2),
        case(floats(2, 3, 6), floats(6), symbols=[("batch", "seq", 6), (6, )])
    ]
    simplified = [case(floats(3, 4, 6), floats(6), epsilon=0.01), case(floats(5, 6), floats(6))]

    def point(a, b, *more, **k):
        return case(a, b, *more, **k)

    integer = [
        point(u8(4, 6), u8(6, 5)),
        point(u8(4, 6), i8(6, 5), byte(7), np.array(-3, np.int8)),
        point(u8(2, 4, 6), i8(6, 5), byte(7), i8(5)),
        point(u8(2, 4, 6), u8(2, 6, 5), byte(3), byte(2)),
        point(u8(4, 6), u8(6, 5), None, byte(9))
    ]

    def qlinear(a, b, bs=None, bz=None):
        return case(a, f(0.02), byte(120), b, f(0.03) if bs is None else bs, byte(99) if bz is None else bz, f(0.1), byte(100))

    def qlinear_two():
        return [
            case(u8(*a), f(0.02), byte(120), u8(*b), f(0.03), byte(99), f(0.05), byte(100))
            for a, b in [((3, 4), (3, 4)), ((3, 4), (4, )), ((2, 3, 4), (3, 1))]
        ]

    def nbits(rows, k, n, block, bits=4, points=None, bias=False, flat=False, bad=False):
        blocks = -(-k // block)
        bytes_of = -(-blocks * bits // 8)
        shape = (lambda *s: (int(np.prod(s)),)) if flat else (lambda *s: s)
        extra = [None, None, None]
        if points == "packed":
            extra[0] = u8(*shape(n, bytes_of))
        elif points == "float":
            extra[0] = floats(n, blocks)
        if bias:
            extra[2] = floats(n)
        while extra and extra[-1] is None:
            extra.pop()
        return case(floats(*rows, k), u8(n, blocks, block * bits // 8), away(*shape(n, blocks)), *extra, K=k, N=n, bits=bits,
                    block_size=block, fixed=(5, ) if bias else ())

    probabilities = lambda *s: np.log(away(*s))
    labels = lambda n, *s: ints(*s, low=0, high=n)
    losses = lambda make: [
        case(make(6, 5), labels(5, 6), reduction="none"),
        case(make(3, 5, 4), labels(5, 3, 4), floats(5), reduction="none"),
        case(make(6, 5), labels(5, 6), reduction="sum"),
        case(make(3, 5, 4), labels(5, 3, 4), away(5), reduction="sum"),
        case(make(3, 5, 4), labels(5, 3, 4), reduction="sum", ignore_index=2),
        case(make(6, 5), labels(5, 6))
    ]
    double = lambda *s: floats(*s).astype(np.float64)
    layer += [case(floats(2, 3, 6) / np.float32(500), floats(6))]
    layer += [case(double(2, 3, 6), double(6), double(6), outputs=3)]  # statistics are floats
    layer += [case(floats(3, 4, 6), floats(6), floats(6), opset=v) for v in (11, 13)]  # as ONNX Runtime's own tools write it
    small = lambda *s: floats(*s) / np.float32(500)  # so that the default epsilon matters
    skip = [
        case(small(2, 3, 6), small(2, 3, 6), floats(6)),
        case(floats(2, 3, 6), floats(2, 3, 6), floats(6)),
        case(floats(2, 3, 6), floats(2, 3, 6), floats(6), outputs="y..y")
    ]
    tables = (2, 3, 4, 5, 6)
    embed = [
        case(ints(4, 3, low=0, high=9, dtype=np.int32), None, floats(9, 8), floats(6, 8), None, away(8), floats(8), outputs=2,
             fixed=tables),
        case(ints(4, 3, low=0, high=9, dtype=np.int32), ints(4, 3, low=0, high=2, dtype=np.int32), floats(9, 8), floats(6, 8), floats(2, 8),
             away(8), floats(8), None, ints(4, 3, low=0, high=6, dtype=np.int32), outputs=2, fixed=tables),
        case(ints(4, 3, low=0, high=9, dtype=np.int32), None, floats(9, 8), floats(6, 8), None, away(8), floats(8),
             ints(4, 3, low=0, high=2, dtype=np.int32), outputs=2, fixed=tables)
    ]
    images = lambda c: floats(2, c, 4, 3)
    pool = [case(u8(2, 3, 4, 4), f(0.02), byte(120), f(0.03), byte(99), kernel_shape=[2, 2])]
    sums = ["ReduceL1", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL2", "ReduceMean"]
    return {
        **{op: reduce() for op in sums},
        "ReduceSum": reduce(axes_input=13) + reduce(ints, 13),
        "ReduceLogSumExp": reduce(),
        "ReduceLogSum": reduce(away),
        "ArgMax": [case(floats(3, 4, 5), axis=a, keepdims=k) for a in (0, 1, -1)
                   for k in (0, 1)] + [case(ints(3, 4), axis=1, select_last_index=1)],
        "ArgMin": [case(floats(3, 4, 5), axis=a, keepdims=k) for a in (0, 1, -1) for k in (0, 1)],
        "GlobalAveragePool": [case(images(3)), case(floats(3, 4, 5))],
        "GlobalLpPool": [case(images(3)), case(images(3), p=1)],
        "GlobalMaxPool": [case(images(3)), case(floats(3, 4, 5)), case(floats(2, 2, 3, 2, 3))],
        **{
            op: [case(floats(3, 4, 5), axis=a) for a in (0, 1, -1)] + [
                case(floats(3, 4)), case(floats(2, 3, 4), opset=11),
                case(floats(2, 3, 4), opset=11, axis=2)
            ] for op in ("Softmax", "LogSoftmax", "Hardmax")
        },
        "LayerNormalization": layer,
        "RMSNormalization": [c for c in layer if len(c["inputs"]) == 2 and c["outputs"] == 1] + simplified,
        "SimplifiedLayerNormalization": simplified,
        MS + "SkipLayerNormalization": skip +
        [case(floats(2, 3, 6), floats(2, 3, 6), floats(6), floats(6), floats(6)),
         case(floats(5, 6), floats(5, 6), floats(6))],
        MS + "SkipSimplifiedLayerNormalization": skip + [case(floats(2, 3, 6), floats(2, 3, 6), floats(6), floats(6))],
        MS + "EmbedLayerNormalization": embed,
        "GroupNormalization": [
            case(images(8), floats(8), floats(8), num_groups=4),
            case(floats(3, 6, 5), floats(6), floats(6), num_groups=3),
            case(images(6), floats(3), floats(3), num_groups=3, opset=20)
        ],
        MS + "GroupNorm": [
            case(floats(2, 4, 3, 8), floats(8), floats(8), groups=4, activation=1),
            case(images(6), floats(6), floats(6), groups=3, activation=0, channels_last=0)
        ],
        MS + "SkipGroupNorm": [
            case(floats(2, 4, 3, 8), floats(8), floats(8), floats(2, 4, 3, 8), floats(8), groups=4, activation=1, outputs=2)
        ],
        "InstanceNormalization": [case(images(5), floats(5), floats(5)),
                                  case(floats(3, 4, 6), floats(4), floats(4), epsilon=0.1)],
        "BatchNormalization": [
            case(images(5), floats(5), floats(5), floats(5), away(5)),
            case(floats(4, 3), floats(3), floats(3), floats(3), away(3)),
            case(images(5), floats(5), floats(5), floats(5), away(5), opset=9),
            case(images(5), floats(5), floats(5), floats(5), away(5), training_mode=1, outputs=3, whole=True)
        ],
        "LpNormalization": [case(floats(3, 4, 5), axis=a, p=k) for a in (0, -1) for k in (1, 2)],
        "MeanVarianceNormalization": [case(images(5)), case(floats(3, 4), axes=[0])],
        "LRN": [case(images(6), size=3), case(images(7), size=5, alpha=0.5, beta=0.75, bias=2.0)],
        "TopK": [case(floats(3, 6, 4), host(2), axis=a, outputs=2) for a in (0, 1, -1)] +
        [case(floats(3, 6), np.array([2], np.int64), outputs=2),
         case(floats(3, 6), opset=9, k=2, outputs=2)],
        "CumSum": [case(floats(3, 4, 5), Host(np.int64(a))) for a in (0, 1, -1)] + [
            case(ints(3, 4), Host(np.int64(1)), exclusive=1, reverse=1),
            case(floats(6), np.array(0, np.int64)),
            case(floats(3, 4), np.array(1, np.int64), whole=True)
        ],
        "CumProd": [case(floats(3, 4, 5), Host(np.int64(a))) for a in (0, -1)],
        "Einsum": [
            case(*(floats(*s) for s in shapes), equation=e)
            for e, shapes in [("ij,jk->ik", [(3, 4), (4, 5)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
                              ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]), ("...ij,...jk", [(2, 1, 3, 4), (3, 4, 5)]),
                              ("ii->i", [(4, 4)]), ("bii", [(2, 4, 4)]), ("...ii->...i", [(2, 3, 4, 4)]), ("ii->", [(5, 5)]),
                              ("ibi,ij->bj", [(4, 3, 4), (4, 2)]), ("iij,jj", [(3, 3, 4), (4, 4)]), ("iii->i", [(4, 4, 4)]),
                              ("i,j->ij", [(3, ), (4, )]), ("ij->ji", [(3, 4)]), ("ij", [(3, 4)]), ("ba", [(3, 4)]), ("abc->", [(2, 3, 4)]),
                              (" b n h d , b m h d -> b h n m ", [(2, 3, 2, 4), (2, 5, 2, 4)]), ("i,i,i->", [(5, ), (5, ), (5, )]),
                              ("iA,Aj->ij", [(3, 4), (4, 2)]), ("...->...", [(3, 4)])]
        ] + [case(ints(3, 4), ints(4, 2), equation="ij,jk->ik"),
             case(floats(3, 4), equation="ij,jk->ik", whole=True)] + random_equations(p, 60),
        "MatMulInteger": integer,
        "QLinearMatMul": [
            case(u8(4, 6), f([0.02]), byte([120]), u8(6, 5), f([0.03]), byte([99]), f([0.1]), byte([100])),
            qlinear(u8(4, 6), u8(6, 5)),
            qlinear(u8(2, 4, 6), u8(2, 6, 5)),
            qlinear(u8(4, 6), u8(6, 5),
                    away(5) / 50, u8(5))
        ],
        "QuantizeLinear": [
            case(floats(3, 4), f(0.02), byte(3)),
            case(floats(3, 4), f(0.02)),
            case(floats(3, 4, 5),
                 away(4) / 20, u8(4)),
            case(floats(3, 4),
                 away(3) / 20, i8(3), axis=0),
            case(floats(3, 8),
                 away(3, 4) / 20, u8(3, 4), axis=1, block_size=2),
            case(floats(6, 4),
                 away(2, 4) / 20, axis=0, block_size=3),
            case(floats(3, 7),
                 away(3, 4) / 20, axis=1, block_size=2),
            case(floats(3, 4), away(1), u8(1)),
            case(floats(3, 4), f(0.02), output_dtype=T.INT8)
        ],
        "DequantizeLinear": [
            case(i8(6), away(2), i8(2), axis=0, block_size=4),
            case(i8(6), away(2), i8(2), axis=0, block_size=4, symbols=[("n", ), (2, ), (2, )]),
            case(u8(3, 4), f(0.02), byte(3)),
            case(i8(3, 4), f(0.02)),
            case(u8(3, 4, 5), away(4), u8(4)),
            case(i8(3, 4), away(3), i8(3), axis=0),
            case(u8(3, 8), away(3, 4), u8(3, 4), axis=1, block_size=2),
            case(u8(6, 4), away(2, 4), axis=0, block_size=3),
            case(ints(3, 4, dtype=np.int32), f(0.5)),
            case(u8(3, 4), f(0.02), byte(3), opset=10)
        ],
        "DynamicQuantizeLinear": [case(floats(3, 4), outputs=3)],
        "NegativeLogLikelihoodLoss": losses(probabilities),
        "SoftmaxCrossEntropyLoss": losses(floats) +
        [case(floats(6, 5), labels(5, 6), reduction="none", outputs=2),
         case(floats(6, 5), labels(5, 6), outputs=2)],
        "Det": [case(floats(3, 4, 4)), case(floats(2, 3, 2, 2)), case(floats(3, 3))],
        "Multinomial": [case(floats(3, 4), whole=True)],
        "BitCast": p.one(to=T.INT32),
        "SwiGLU": [case(floats(3, 4), floats(3, 4)), case(floats(5), floats(5))],
        MS + "Gelu": p.one(),
        MS + "QuickGelu": p.one(),
        MS + "BiasGelu": [case(floats(3, 4, 5), floats(5)), case(floats(4, 6), floats(6))],
        MS + "FastGelu": [case(floats(3, 4, 5), floats(5)), case(floats(4, 6))],
        MS + "BiasAdd": [case(floats(2, 3, 4), floats(4), floats(2, 3, 4))],
        MS + "FusedMatMul": [
            case(floats(*((2, 6, 4) if a else (2, 4, 6))), floats(*((2, 5, 6) if b else (2, 6, 5))), transA=a, transB=b, alpha=0.5)
            for a in (0, 1) for b in (0, 1)
        ] +
        [case(floats(4, 6), floats(6)), case(floats(2, 4, 6), floats(2, 6, 5), transBatchA=1, whole=True)],
        MS + "TransposeMatMul": [case(floats(2, 6, 4), floats(2, 5, 6), transA=1, transB=1)],
        MS + "FusedGemm": [
            case(floats(4, 6), floats(6, 5), floats(5), activation="Relu"),
            case(floats(6, 4), floats(5, 6), transA=1, transB=1, activation="Tanh")
        ],
        MS + "MatMulNBits": [
            nbits((3, ), 64, 6, 16),
            nbits((2, 3), 64, 6, 16, points="packed"),
            nbits((3, ), 64, 6, 16, points="float", bias=True),
            nbits((3, ), 96, 6, 16, points="packed", bias=True),
            nbits((3, ), 64, 6, 16, points="packed", flat=True),
            nbits((3, ), 72, 6, 16),
            nbits((3, ), 48, 6, 16, points="packed", flat=True),
            nbits((3, ), 128, 6, 32, bits=8)
        ],
        MS + "MatMulBnb4": [
            case(floats(3, 32), u8(6 * 32 // 2), away(6 * 32 // 16), K=32, N=6, block_size=16, quant_type=1),
            case(floats(3, 24), u8(6 * 24 // 2), away(6 * 24 // 16), K=24, N=6, block_size=16, quant_type=1, whole=True)
        ],
        MS + "DynamicQuantizeMatMul": [
            case(floats(4, 6), u8(6, 5), f(0.02), byte(99)),
            case(floats(2, 4, 6), i8(6, 5),
                 away(5) / 20,
                 i8(5) * 0, floats(5))
        ],
        MS + "MatMulIntegerToFloat": [
            case(u8(4, 6), u8(6, 5), f(0.02), f(0.03), byte(120), byte(99)),
            case(u8(2, 4, 6), i8(6, 5), f(0.02),
                 away(5) / 20, byte(120), i8(5), floats(5)),
            case(u8(4, 6), u8(6, 5), f(0.02), f(0.03))
        ],
        MS + "GatherBlockQuantized": [
            case(u8(7, 16), ints(3, 2, low=0, high=7), away(7, 2), u8(7, 1), block_size=16, bits=4, fixed=(0, 1, 2, 3)),
            case(u8(7, 48), ints(5, low=0, high=7), away(7, 6), u8(7, 3), block_size=16, bits=4, fixed=(0, 1, 2, 3)),
            case(u8(7, 64), ints(5, low=0, high=7), away(7, 4), block_size=16, bits=8)
        ],
        MS + "QLinearAdd": qlinear_two(),
        MS + "QLinearMul": qlinear_two(),
        MS + "QLinearAveragePool": pool,
        MS + "QLinearGlobalAveragePool": [
            case(u8(2, 3, 4, 4), f(0.02), byte(120), f(0.03), byte(99), channels_last=0),
            case(u8(2, 4, 4, 3), f(0.02), byte(120), f(0.03), byte(99), channels_last=1)
        ],
        MS + "QLinearConcat": [case(f(0.03), byte(99), u8(3, 2), f(0.02), byte(120), u8(3, 4), f(0.05), byte(0), axis=1)],
        MS + "QLinearLeakyRelu": [case(u8(3, 4), f(0.02), byte(120), f(0.03), byte(99), alpha=0.1)],
        MS + "QLinearSigmoid": [case(u8(3, 4), f(0.02), byte(120), f(0.03), byte(99))],
        MS + "QLinearSoftmax": [case(u8(3, 4, 5), f(0.02), byte(120), f(0.004), byte(0), axis=-1, attributes={"opset": 13})],
        MS + "QLinearWhere": [case(p.bools(3, 4), u8(3, 4), f(0.02), byte(120), u8(4), f(0.05), byte(0), f(0.03), byte(99))],
    }
