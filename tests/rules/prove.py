#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests every row of the table of rules by running it: shards the inputs as the rule says, runs the local nodes, combines the results as
the rule says, and compares with the unsharded run. Tries every factor alone and pairs of factors, in 2, 3 and 4 parts, also unequal ones.

Usage: prove.py PRINT_RULE [OPERATOR ...]    (the program built from print_rule.c)
"""
import itertools, json, os, subprocess, sys, tempfile
import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper
import cases_net
import cases_norm

import harness

OPSET = 21  # rows of newer operators use their own opset
rng = np.random.default_rng(7)


# ---- data -------------------------------------------------------------------------------------------

# Not testable with one node and tensors: subgraphs (see tests/e2e/bodies.py, random_bodies.py) and sequences (tests/e2e/lists.py).
ELSEWHERE = ("If", "Loop", "Scan", "ConcatFromSequence", "Optional", "OptionalGetElement", "SequenceAt", "SequenceConstruct",
             "SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence")

# Random operators (Dropout only in training): no two runs are equal.
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Dropout")


def floats(*shape, low=-2.0, high=2.0):
    return rng.uniform(low, high, shape).astype(np.float32)


def ints(*shape, low=-9, high=9, dtype=np.int64):
    return rng.integers(low, high, shape).astype(dtype)


def bools(*shape):
    return rng.integers(0, 2, shape).astype(bool)


def tensor(value):
    return numpy_helper.from_array(value)


class Host:
    """An input that determines shapes or parameters, and is known when the rule is made."""

    def __init__(self, value):
        self.value = np.asarray(value)


# ---- cases: (inputs, attributes, number of outputs, symbols) ------------------------------------------

def case(*inputs, outputs=1, symbols=None, declare=None, whole=False, opset=None, fixed=(), **attributes):
    """outputs: their number, or which ("y..y": the first and the fourth). fixed: inputs whose sizes the engine must know."""
    attributes.update(attributes.pop("attributes", {}))  # those whose names are parameters of this function
    return dict(inputs=inputs, outputs=outputs, attributes=attributes, symbols=symbols, declare=declare, whole=whole, opset=opset,
                fixed=fixed)


SHAPES = [((3, 4, 5), (3, 4, 5)), ((3, 1, 5), (4, 1)), ((4, 5), (3, 1, 5)), ((5,), ()), ((1, 4), (4, 1)),
          ((1, 1), (1, 1)), ((2, 7), (1, 7))]


def two(make, make2=None, **attributes):
    return [case(make(*a), (make2 or make)(*b), **attributes) for a, b in SHAPES]


def many(make):
    return [case(make(3, 4), make(4), make(3, 1)), case(make(5, 2)), case(make(2, 3), make(2, 3))]


def one(make=floats, **k):
    attributes = {x: k.pop(x) for x in list(k) if x not in ("low", "high", "dtype")}
    return [case(make(3, 4, 5, **k), **attributes), case(make(7, **k), **attributes), case(make(**k), **attributes)]


unsigned = lambda *s: ints(*s, low=0, high=5, dtype=np.uint32)
positive = lambda *s: ints(*s, low=1, high=9)
away = lambda *s: floats(*s, low=0.5, high=2)
special = lambda *s: np.where(bools(*s), floats(*s), np.float32(np.inf)).astype(np.float32)
nans = lambda *s: np.where(bools(*s), floats(*s), np.float32(np.nan)).astype(np.float32)

GEMM = [case(floats(*((5, 4) if a else (4, 5))), floats(*((6, 5) if b else (5, 6))), *([] if c is None else [floats(*c)]),
             transA=a, transB=b, alpha=0.5, beta=1.5)
        for a in (0, 1) for b in (0, 1) for c in (None, (), (6,), (1, 6), (4, 1), (4, 6))]
GEMM += [
    case(floats(*((5, 4) if a else (4, 5))), floats(*((6, 5) if b else (5, 6))), floats(6), transA=a, transB=b, opset=9) for a in (0, 1)
    for b in (0, 1)
]
MATMUL = [case(floats(*a), floats(*b)) for a, b in
          [((4, 5), (5, 6)), ((2, 4, 5), (5, 6)), ((2, 3, 4, 5), (2, 3, 5, 6)), ((3, 1, 4, 5), (2, 5, 6)), ((1, 4, 5), (3, 5, 6)),
           ((5,), (5, 6)), ((5,), (3, 5, 6)), ((4, 5), (5,)), ((2, 4, 5), (5,)), ((5,), (5,))]]
RESHAPE = [case(floats(*a), Host(np.array(b, np.int64)), **k) for a, b, k in [
    ((8, 6), (2, 4, 6), {}), ((8, 4), (2, 16), {}), ((2, 3, 4), (24,), {}), ((24,), (2, 3, 4), {}), ((6, 4), (4, 6), {}),
    ((4, 1, 6), (4, 6), {}), ((4, 6), (4, 1, 6, 1), {}), ((2, 3, 4), (0, -1), {}), ((2, 3, 4), (-1, 4), {}), ((6,), (-1, 3), {}),
    ((2, 6, 5), (3, 4, 5), {}), ((5, 4, 6), (5, 8, 3), {}), ((12, 7), (-1, 14), {}), ((1,), (), {}), ((), (1, 1), {}),
    ((7, 4), (7, 4), {}), ((6, 10), (4, 15), {}), ((2, 2, 9), (6, 6), {})]]
RESHAPE += [
    case(floats(2, 3, 8), Host(np.array([-1, 8], np.int64)), symbols=[("batch", "seq", 8)], declare=[("seq*batch", 8)]),
    case(floats(6, 8), Host(np.array([2, 3, 8], np.int64)), symbols=[("seq*batch", 8)], declare=[("batch", "seq", 8)]),
    case(floats(6, 8), np.array([2, 3, 4, 2], np.int64), symbols=[("seq*batch", 8), (4,)], declare=[("batch", "seq", 4, 2)]),
    case(floats(2, 3, 8), np.array([2, 24], np.int64), symbols=[("batch", "seq", 8), (2,)], declare=[("batch", "seq*8")]),
    case(floats(2, 12), np.array([6, 4], np.int64), symbols=[("batch", 12), (2,)], declare=[("3*batch", 4)]),
    case(floats(2, 3, 4), np.array([3, 2, 4], np.int64), symbols=[("batch", "seq", 4), (3,)], declare=[("seq", "batch", 4)]),
    case(floats(1, 2, 5, 4), Host(np.array([2, -1, 4], np.int64)), symbols=[(1, 2, "seq", 4)], opset=13),
]
SYMBOLIC = [case(floats(2, 3, 4), floats(3, 4), symbols=[("batch", "seq", 4), ("seq", 4)]),
            case(floats(2, 3, 4), floats(2, 1, 4), symbols=[("batch", "seq", 4), ("batch", "other", 4)]),
            case(floats(6, 4), floats(6, 4), symbols=[("seq*batch", 4), ("batch * seq", 4)])]

index = lambda *s, n: ints(*s, low=-n, high=n)
host = lambda *v: Host(np.array(v, np.int64))


def scatter_index(shape, axis, n):
    """Indices along an axis, unique within each line."""
    line = np.stack([rng.permutation(n)[:shape[axis]] for _ in range(int(np.prod(shape) // shape[axis]))])
    rest = [d for k, d in enumerate(shape) if k != axis]
    return np.moveaxis(line.reshape(rest + [shape[axis]]), -1, axis).astype(np.int64)


CONCAT = [case(floats(3, 4, 2), floats(3, 8, 2), floats(3, 4, 2), axis=1)
          ] + [case(floats(3, 2, 5), floats(3, 4, 5), floats(3, 1, 5), axis=a) for a in (1, -2)] + [
              case(floats(2, 5), floats(3, 5), axis=0),
              case(ints(4, 3), axis=0),
              case(floats(2, 3), floats(2, 4), axis=1, symbols=[("batch", 3), ("batch", 4)]),
              case(floats(2, 3), floats(2, 3), axis=1, symbols=[("batch", "seq"), ("batch", 3)])
          ]
SPLIT = [
    case(floats(3, 24), host(12, 6, 6), outputs=3, axis=1),
    case(floats(2, 12, 2), outputs=3, axis=1, num_outputs=3),
    case(floats(2, 10), outputs=2, axis=1, opset=13),
    case(floats(3, 6, 5), host(1, 2, 3), outputs=3, axis=1),
    case(floats(3, 6), outputs=2, axis=-1, num_outputs=2),
    case(floats(4, 7), outputs=3, axis=1, num_outputs=3),
    case(floats(2, 4), host(3, 1), outputs=2, axis=1)
]
BIG = np.iinfo(np.int64).max
SLICE = [
    case(floats(4, 5, 6), host(1), host(4), host(1)),
    case(floats(4, 5, 6), host(0, -3), host(BIG, BIG), host(0, 2)),
    case(floats(4, 5, 6), host(1, 2), host(3, 5)),
    case(floats(4, 9), host(8), host(-BIG), host(1), host(-2)),
    case(floats(4, 9), host(-1), host(BIG), host(1), host(-2)),
    case(floats(4, 9), host(-BIG), host(BIG), host(1), host(-1)),
    case(floats(4, 9), host(BIG), host(-9), host(1), host(-3)),
    case(floats(4, 5), host(0, 0), host(4, 3), host(0, 1), host(1, 2)),
    case(floats(2, 3, 4), host(1), host(BIG), host(1), symbols=[("batch", "seq", 4)]),
    case(floats(4, 5), np.array([1], np.int64), np.array([3], np.int64), Host(np.array([1], np.int64)))
]
PAD = [case(floats(3, 4, 5), host(0, 1, 0, 0, 2, 0)), case(floats(3, 4, 5), host(0, 0, 1, 0, 0, 1), Host(np.float32(7))),
       case(floats(3, 4), host(0, 2, 0, 1), mode="reflect"), case(floats(3, 4, 5), host(1, 1), None, host(-1)),
       case(floats(3, 6), host(0, -1, 0, -2)), case(floats(3, 4, 5), host(0, 2, 0, 0, 1, 0), mode="wrap")]
EXPAND = [
    case(floats(3, 1, 5), host(3, 4, 5)),
    case(floats(4, 1), host(2, 1, 6)),
    case(floats(3, 1), host(1, 1)),
    case(floats(4, ), host(3, 4)),
    case(floats(2, 1, 4), np.array([2, 3, 4], np.int64), symbols=[("batch", 1, 4), (3, )], declare=[("batch", "seq", 4)]),
    case(floats(2, 3), np.array([2, 3], np.int64), symbols=[("batch", "seq"), (2, )], declare=[("batch", "seq")])
]
TILE = [case(floats(3, 4), host(1, 2)), case(floats(3, 4), host(2, 3)), case(floats(3, 4), host(1, 1)), case(floats(5), host(3))]
OLD_SPLIT = [
    case(floats(3, 18), outputs=3, axis=1, split=[9, 3, 6], opset=11),
    case(floats(3, 6, 5), outputs=3, axis=1, split=[1, 2, 3], opset=11),
    case(floats(3, 6), outputs=2, axis=1, opset=11)
]
OLD_SLICE = [case(floats(4, 5, 6), starts=[1], ends=[4], axes=[1], opset=9), case(floats(4, 5, 6), starts=[1, 0], ends=[3, BIG], opset=9)]
OLD_PAD = [case(floats(3, 4, 5), pads=[0, 1, 0, 0, 2, 0], opset=10)]
GATHER = [case(floats(5, 4), index(2, 3, n=5)), case(floats(3, 5, 4), index(6, n=5), axis=1), case(floats(3, 4), index(n=4), axis=-1),
          case(floats(6, 3), index(2, 3, n=6), symbols=[(6, 3), ("batch", "seq")]), case(ints(7), index(4, n=7))]
GATHER_ELEMENTS = [case(floats(3, 5, 4), index(3, 2, 4, n=5), axis=1), case(floats(4, 3), index(4, 6, n=3), axis=-1),
                   case(floats(5, 4), index(7, 3, n=5)), case(floats(6), index(4, n=6))]
SCATTER_ELEMENTS = [case(floats(3, 5, 4), scatter_index((3, 2, 4), 1, 5), floats(3, 2, 4), axis=1),
                    case(floats(5, 4), scatter_index((3, 4), 0, 5), floats(3, 4)),
                    case(floats(4, 5), ints(4, 3, low=0, high=5), floats(4, 3), axis=1, reduction="add")]
GATHER_ND = [
    case(floats(4, 5, 6), index(3, 2, n=4)),
    case(floats(4, 5, 6), index(7, 1, n=4)),
    case(floats(3, 4, 5), index(3, 2, 1, n=4), batch_dims=1),
    case(floats(4, 5), index(2, 3, 2, n=4))
]
SCATTER_ND = [case(floats(5, 4, 3), np.array([[0], [3]], np.int64), floats(2, 4, 3)),
              case(floats(4, 4, 6), np.array([[0, 1], [2, 3], [1, 1]], np.int64), floats(3, 6)),
              case(floats(5, 4), np.array([[1], [1], [2]], np.int64), floats(3, 4), reduction="add")]

CASES = {
    "Bernoulli": [case(floats(3, 4, low=0, high=1), whole=True)],
    "CenterCropPad": [
        case(floats(3, 4, 5), host(7), axes=[1]),
        case(floats(3, 4, 5), host(2, 9), axes=[0, -1]),
        case(floats(3, 4), host(2, 9), whole=True)
    ],
    "Compress": [
        case(floats(3, 5, 4), Host(np.array([True, False, True, True, False])), axis=1),
        case(floats(3, 4), Host(np.array([True, False])), axis=-1),
        case(floats(3, 4), Host(np.array([True, False])), whole=True)
    ],
    "Concat": CONCAT,
    "Split": SPLIT + OLD_SPLIT,
    "Slice": SLICE + OLD_SLICE,
    "Pad": PAD + OLD_PAD,
    "Expand": EXPAND,
    "Tile": TILE,
    "Constant": [case(value_ints=[1, 2, 3], whole=True)],
    "ConstantOfShape": [
        case(host(3, 4)),
        case(host(5), value=numpy_helper.from_array(np.array([7], np.int64))),
        case(host()),
        case(np.array([2, 3], np.int64), symbols=[(2, )], declare=[("batch", "seq")])
    ],
    "DepthToSpace": [
        case(floats(2, 12, 3, 2), blocksize=2),
        case(floats(2, 12, 3, 2), blocksize=2, mode="CRD"),
        case(floats(1, 9, 2, 2), blocksize=3)
    ],
    "SpaceToDepth": [case(floats(2, 3, 4, 6), blocksize=2), case(floats(2, 3, 6, 9), blocksize=3)],
    "EyeLike": [
        case(floats(3, 4)),
        case(ints(5, 4), k=-1),
        case(floats(4, 7), k=2, dtype=T.INT64),
        case(floats(4, 4), k=9, dtype=T.DOUBLE)
    ],
    "Flatten": [case(floats(2, 3, 4), axis=a) for a in (0, 1, 2, 3, -1)] + [case(floats(5))],
    "Gather": GATHER,
    "GatherElements": GATHER_ELEMENTS,
    "GatherND": GATHER_ND,
    "NonZero": [case(floats(3, 4), whole=True)],
    "OneHot": [case(ints(3, 4, low=-8, high=9), Host(np.int64(5)), Host(np.array([0, 1], np.float32)), axis=a) for a in (-1, 0, 1)] + [
        case(ints(6, low=-4, high=5, dtype=np.int32), Host(np.array([4], np.int32)), Host(np.array([-1, 7], np.float32))),
        case(ints(3, 4, low=-8, high=9), Host(np.int64(5)), Host(np.array([3, 9], np.int64)), axis=1, opset=11),
        case(floats(3, 4), Host(np.int64(5)), Host(np.array([3, 9], np.int64)))
    ],
    "RandomNormal": [case(shape=[3, 4], whole=True)],
    "RandomNormalLike": [case(floats(3, 4), whole=True)],
    "RandomUniform": [case(shape=[3, 4], whole=True)],
    "RandomUniformLike": [case(floats(3, 4), whole=True)],
    "Range": [
        case(Host(np.int64(0)), Host(np.int64(9)), Host(np.int64(1))),
        case(Host(np.int64(-3)), Host(np.int64(4)), Host(np.int64(1)), opset=12),
        case(Host(np.int64(0)), Host(np.int64(9)), Host(np.int64(2))),
        case(Host(np.float32(0)), Host(np.float32(9)), Host(np.float32(1))),
        case(np.array(2, np.int64), np.array(5, np.int64), Host(np.int64(1)))
    ],
    "Resize": [
        case(floats(2, 3, 4, 5), None, Host(np.array([1, 1, 2, 2], np.float32)), mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor", opset=18),
        case(floats(2, 3, 4, 5), None, None, host(2, 3, 12, 10), mode="nearest", nearest_mode="round_prefer_ceil", opset=13),
        case(floats(2, 3, 4, 5), None, Host(np.array([1, 1, 3, 4], np.float32)), mode="nearest", opset=19),
        case(floats(2, 3, 4, 5), None, Host(np.array([1, 1, 2, 3], np.float32)), mode="nearest",
             coordinate_transformation_mode="align_corners"),
        case(floats(2, 3, 4, 5), None, Host(np.array([1, 1, 2, 3], np.float32)), mode="nearest",
             coordinate_transformation_mode="asymmetric"),
        case(floats(2, 3, 4, 5), None, Host(np.array([1, 1, 2, 3], np.float32)), mode="nearest"),
        case(floats(2, 3, 4, 5), None, None, host(2, 3, 8, 5), mode="linear"),
        case(floats(2, 3, 4, 5), None, None, host(2, 3, 12, 10), mode="linear", coordinate_transformation_mode="pytorch_half_pixel",
             opset=13),
        case(floats(1, 2, 5, 4), None, Host(np.array([1, 1, 2, 4], np.float32)), mode="linear", coordinate_transformation_mode="asymmetric",
             opset=18),
        case(floats(2, 2, 6, 5), None, Host(np.array([1, 1, 2, 2], np.float32)), mode="cubic"),
        case(floats(1, 2, 7, 5), None, None, host(1, 2, 14, 10), mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1, opset=18),
        case(floats(2, 3, 4, 5), None, None, host(2, 3, 8, 10), mode="linear", coordinate_transformation_mode="align_corners"),
        case(floats(2, 3, 4, 5), None, None, host(8, 10), axes=[2, 3], mode="nearest"),
        case(floats(2, 3, 4, 5), None, None, host(4, 10), axes=[2, 3], mode="nearest"),
        case(floats(2, 3, 4, 5), None, None, host(1, 4), axes=[2, 3], mode="linear", keep_aspect_ratio_policy="not_smaller", opset=18),
        case(floats(2, 3, 4, 5), None, Host(np.array([1, 1, 1.2, 3], np.float32)), mode="linear"),
        case(floats(2, 3, 4, 5), Host(np.array([1, 1, 2, 3], np.float32)), opset=10, mode="nearest")
    ],
    "ReverseSequence": [
        case(floats(5, 3, 4), np.array([2, 5, 1], np.int64)),
        case(floats(3, 5, 4), np.array([2, 5, 1], np.int64), time_axis=1, batch_axis=0)
    ],
    "Scatter": [case(floats(5, 4), scatter_index((3, 4), 0, 5), floats(3, 4), opset=10)],
    "ScatterElements": SCATTER_ELEMENTS,
    "ScatterND": SCATTER_ND,
    "Shape": [
        case(floats(3, 4)),
        case(floats(3, 4, 5), start=1),
        case(floats(3, 4, 5), start=-2, end=-1),
        case(floats(2, 3), symbols=[("batch", "seq")])
    ],
    "Size": [case(floats(3, 4)), case(floats(2, 3), symbols=[("batch", "seq")])],
    "Squeeze": [
        case(floats(3, 1, 4), host(1)),
        case(floats(1, 5, 1), host(0, -1)),
        case(floats(1, 5), whole=True),
        case(floats(3, 1, 4), axes=[1], opset=11)
    ],
    "Unsqueeze": [
        case(floats(3, 4), host(1)),
        case(floats(5), host(0, -1)),
        case(floats(2, 3), host(3, 0)),
        case(floats(3, 4), axes=[1], opset=11)
    ],
    "TensorScatter": [case(floats(2, 3, 6, 4), floats(2, 3, 2, 4), np.array([1, 3], np.int64)),
                      case(floats(3, 5, 4), floats(3, 2, 4))],
    "Trilu": [
        case(floats(3, 4, 5)),
        case(floats(2, 3, 4, 4), Host(np.int64(1)), upper=0),
        case(floats(2, 2, 3)),
        case(nans(2, 7, 4), Host(np.int64(-2))),
        case(ints(5, 6), np.array(-1, np.int64), upper=0),
        case(bools(6, 6), Host(np.int64(1))),
        case(floats(4, 3), Host(np.int64(9))),
        case(floats(4, 5), Host(np.int64(-9)), upper=0)
    ],
    "Unique": [case(floats(3, 4), whole=True)],
    "Upsample": [
        case(floats(2, 3, 2, 2), opset=8, mode="nearest", scales=[1.0, 1.0, 2.0, 3.0]),
        case(floats(2, 3, 2, 2), Host(np.array([1, 1, 2, 3], np.float32)), opset=9, mode="nearest")
    ],
    "Acos": one(low=-0.9, high=0.9),
    "Acosh": one(low=1.1, high=3),
    "Asin": one(low=-0.9, high=0.9),
    "Atanh": one(low=-0.9, high=0.9),
    "Add": two(floats) + SYMBOLIC,
    "And": two(bools),
    "BitShift": two(unsigned, direction="LEFT"),
    "BitwiseAnd": two(ints),
    "BitwiseNot": one(ints),
    "BitwiseOr": two(ints),
    "BitwiseXor": two(ints),
    "Cast": one(to=T.INT32),
    "CastLike": [case(floats(3, 4), Host(np.int64(1))), case(ints(5), Host(floats(2)))],
    "Clip": [
        case(floats(3, 4), Host(np.float32(-1)), Host(np.float32(1))),
        case(floats(5), None, Host(np.float32(0.5))),
        case(floats(2, 2))
    ],
    "Div": two(floats, away),
    "Mod": two(ints, positive) + [case(floats(3, 4), away(4), fmod=1)],
    "Dropout": one() + [
        case(floats(3, 4), outputs=2, opset=9),
        case(floats(3, 4), Host(np.float32(0.5)), outputs=2),
        case(floats(6), None, Host(np.bool_(False))),
        case(floats(3, 4), None, Host(np.bool_(True)), whole=True)
    ],
    "Equal": two(ints),
    "Greater": two(floats),
    "GreaterOrEqual": two(ints),
    "Less": two(floats),
    "LessOrEqual": two(ints),
    "Gelu": one() + one(approximate="tanh"),
    "Gemm": GEMM,
    "MatMul": MATMUL,
    "IsInf": one(special),
    "IsNaN": one(nans),
    "Log": one(low=0.1, high=3),
    "Max": many(floats),
    "Mean": many(floats),
    "Min": many(floats),
    "Sum": many(floats),
    "Mul": two(floats),
    "Not": one(bools),
    "Or": two(bools),
    "PRelu": [case(floats(3, 4), floats(4)), case(floats(2, 3, 4), floats(3, 1)),
              case(floats(5), floats(1))],
    "Pow": two(away),
    "Reciprocal": one(low=0.5, high=2),
    "Reshape": RESHAPE,
    "Sqrt": one(low=0, high=3),
    "Sub": two(floats),
    "Tan": one(low=-1, high=1),
    "Xor": two(bools),
    "LeakyRelu": one(alpha=0.1),
    "Celu": one(alpha=0.7),
    "Elu": one(alpha=0.7),
    "Transpose": [
        case(floats(2, 3, 4)),
        case(floats(2, 3, 4), perm=[1, 2, 0]),
        case(floats(5, 2), perm=[1, 0]),
        case(floats()),
        case(floats(4))
    ],
    "Where": [
        case(bools(3, 4), floats(4), floats(3, 1)),
        case(bools(4), floats(3, 4), floats()),
        case(bools(2, 1, 3), floats(5, 1), floats(1))
    ],
}


# ---- running a node, in ONNX Runtime or in the reference -----------------------------------------------

def node_model(op, since, c, static, domain=""):
    """static: shapes and host values as the rule may know them; otherwise only the ranks are declared."""
    names, inputs, constants, symbols = [], [], [], c["symbols"] or []
    for i, v in enumerate(c["inputs"]):
        name = "" if v is None else "x%d" % i
        names.append(name)
        if v is None:
            continue
        value = v.value if isinstance(v, Host) else v
        if static and isinstance(v, Host):
            constants.append(numpy_helper.from_array(value, name))
            continue
        dims = symbols[i] if static and i < len(symbols) else value.shape if static or i in c["fixed"] else [None] * value.ndim
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), dims))
    wanted = c["outputs"] if isinstance(c["outputs"], str) else "y" * c["outputs"]
    made = ["y%d" % i if x == "y" else "" for i, x in enumerate(wanted)]
    node = helper.make_node(op, names, made, domain=domain, **c["attributes"])
    outputs = [helper.make_empty_tensor_value_info(y) for y in made if y]
    declared = [helper.make_tensor_value_info("y%d" % i, T.FLOAT, d) for i, d in enumerate(c["declare"] or [])] if static else []
    graph = helper.make_graph([node], "g", inputs, outputs, constants, value_info=declared)
    version = c["opset"] or (OPSET if domain else max(since, OPSET))
    opsets = [helper.make_opsetid("", version)] + ([helper.make_opsetid(domain, since)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


class Machine:
    def __init__(self, model):
        import onnxruntime as ort
        import reference
        self.count, self.session, self.reference = 0, reference.session(model), True
        if self.session:
            return
        try:
            options = ort.SessionOptions()
            options.log_severity_level, options.intra_op_num_threads = 4, 1
            self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            self.reference = False
        except Exception:  # not implemented by ONNX Runtime on the CPU
            from onnx.reference import ReferenceEvaluator
            self.session = ReferenceEvaluator(model)

    def __call__(self, inputs):
        self.count += 1
        return self.session.run(None, {"x%d" % i: v for i, v in enumerate(inputs) if v is not None})


def engine_lacks(model, inputs):
    """The reason why ONNX Runtime cannot run the node, or None."""
    import onnxruntime
    n = model.graph.node[0]
    name = "%s%s of opset %d" % (n.domain and n.domain + ":", n.op_type, max(o.version for o in model.opset_import if o.domain == n.domain))
    try:
        machine = Machine(model)
        if machine.reference:
            return "ONNX Runtime %s has no %s" % (onnxruntime.__version__, name)
        names = {v.name for v in model.graph.input}
        machine([None if "x%d" % i not in names else v.value if isinstance(v, Host) else v for i, v in enumerate(inputs)])
    except Exception:
        return "ONNX Runtime %s has no %s, or not with these inputs" % (onnxruntime.__version__, name)
    return None


# ---- sharding by a rule ------------------------------------------------------------------------------------

def bounds(size, n, j):
    return j * size // n, (j + 1) * size // n


class Window:
    """The input range that part j of n of a windowed result needs: an independent implementation of struct rule_window."""

    def __init__(self, w, n, j):
        self.a, self.b = bounds(w["to"], n, j)
        if w["per"]:  # element i is at position i * per; the local node returns all positions that its elements reach
            places = range(self.a * w["step"] + w["shift"], (self.b - 1) * w["step"] + w["shift"] + w["reach"])
            self.indices = [i for i in range(w["from"]) if i * w["per"] in places]
            reached = range(self.indices[0] * w["per"] - w["shift"] - w["reach"] + 1, self.indices[-1] * w["per"] - w["shift"] + 1)
            self.before, self.after = self.a - reached[0], reached[-1] + 1 - self.b
            return
        wanted = sorted(o * w["step"] + w["shift"] + k for o in (self.a, self.b - 1) for k in (0, w["reach"] - 1))
        all_of_it = range(wanted[0], wanted[-1] + 1)
        self.indices = [i for i in all_of_it if 0 <= i < w["from"]]
        self.before = sum(i < 0 for i in all_of_it)
        self.after = sum(i >= w["from"] for i in all_of_it)


def windows_of(rule, coords, counts):
    return [Window(w, counts[w["factor"]], coords[w["factor"]]) if w["factor"] in coords else None for w in rule["windows"]]


def index_of(tensor, sizes, cell, shape, windows=(), coords=None, counts=None):
    """Indices of the cell (one part of each factor) in each dimension; the outermost factor first."""
    result = []
    for d, factors in enumerate(tensor["dims"]):
        at = np.zeros(1, np.int64)
        if not any(f in cell for f in factors):
            result.append(np.arange(shape[d]))  # not sharded; may have size 1
            continue
        if d in dict(windows):
            result.append(np.array([i for k, w in windows if k == d for i in w.indices], np.int64))
            continue
        if d < len(tensor["window"]) and tensor["window"][d]:
            result.append(np.arange(*bounds(shape[d], counts[factors[0]], coords[factors[0]])))
            continue
        for f in factors:
            lo, hi = cell.get(f, (0, sizes[f]))
            at = (at[:, None] * sizes[f] + np.arange(lo, hi)[None, :]).ravel()
        result.append(at)
    return result


def cut(value, index):
    return value[np.ix_(*index)] if value.ndim else value


def close(a, b, given):
    """given: the largest magnitude of the inputs, to which the error of a sum that cancels out is relative."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind not in "fc":
        return np.array_equal(a, b)
    finite = np.abs(b[np.isfinite(b)])
    scale = finite.max() if finite.size else 1
    return np.allclose(a, b, rtol=0, atol=max(1e-5 * scale, 1e-6 * given, 1e-35), equal_nan=True)


COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def parts_of(rule, sizes, cuts):
    """Every cell of the sharding: {factor: (start, stop)}."""
    choices = [[(f, bounds(sizes[f], n, j), j) for j in range(n)] for f, n in cuts]
    for combination in itertools.product(*choices):
        yield {f: b for f, b, _ in combination}, {f: j for f, _, j in combination}


def routed(router, attributes):
    """Weights of all experts for each token; 0 for experts that the router does not select. QMoE takes the softmax over the selected
    ones."""
    chosen = np.argsort(router, 1)[:, -attributes["k"]:]
    shares = np.exp(router - router.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    weights = np.zeros_like(shares)
    np.put_along_axis(weights, chosen, np.take_along_axis(shares, chosen, 1), 1)
    if attributes.get("normalize_routing_weights") or "expert_weight_bits" in attributes:
        weights /= weights.sum(1, keepdims=True)
    return weights


def prove(rule, sizes, cuts, c, machine, local, whole):
    """Run all cells of a sharding; returns the error, or None."""
    values = [v.value if isinstance(v, Host) else v for v in c["inputs"]]
    results = [np.full(w.shape, 0, w.dtype) for w in whole]
    filled = [np.zeros(w.shape, np.int64) for w in whole]
    reduced = [f for f, _ in cuts if rule["factors"][f]["kind"] == "red"]
    counts = dict(cuts)
    for cell, coords in parts_of(rule, sizes, cuts):
        windows = windows_of(rule, coords, counts)
        first = all(coords[f] == 0 for f in reduced)
        ins, left_out, attributes, elsewhere, spares, scale = [], [], {}, None, [], None
        for i, (t, v) in enumerate(zip(rule["inputs"], values)):
            here = [(w["dim"], x) for w, x in zip(rule["windows"], windows) if w["input"] == i and x]
            ins.append(v if v is None or t["host"] else cut(v, index_of(t, sizes, cell, v.shape, here, coords, counts)).copy())
        given = [t for t in rule["outputs"] if not t["absent"]]
        where = [index_of(t, sizes, cell, w.shape, (), coords, counts) for t, w in zip(given, whole)]
        shared = any(patch["factor"] in cell for l in rule["lists"] for patch in l["patches"])
        for l in rule["lists"] if any(windows) or shared else ():
            numbers = list(l["values"])
            for patch in l["patches"]:
                if patch["what"] == "share":
                    lo, hi = cell.get(patch["factor"], (0, sizes[patch["factor"]]))
                    numbers[patch["at"]] = numbers[patch["at"]] // sizes[patch["factor"]] * (hi - lo)
                    continue
                w = windows[patch["window"]]
                if w:
                    numbers[patch["at"]] = {"before": w.before, "after": w.after, "size": w.b - w.a, "value": patch["value"],
                                                "span": len(w.indices) * patch["value"]}[patch["what"]]
            if l["input"] >= 0:
                ins += [None] * (l["input"] + 1 - len(ins))
                ins[l["input"]] = np.array(numbers, np.int64)
                attributes[""] = None  # the local node differs from the unsharded one
            else:
                attributes[l["name"]] = tuple(numbers) if numbers else None
        for r in rule["rewrites"]:
            if r["kind"] == "shape":
                ins[r["input"]] = np.array([len(x) for x in where[0]], np.int64)
            elif r["kind"] in ("sizes", "size"):  # sizes of the full tensor
                ins[r["input"]] = values[r["input"]]
            elif r["kind"] in ("lookup", "scatter") and r["factor"] in cell:
                lo, hi = cell[r["factor"]]
                given, element = ins[r["input"]].copy(), r["element"]
                at = given if element < 0 else given[..., element]
                at = np.where(at < 0, at + sizes[r["factor"]], at) - lo
                missing = (at < 0) | (at >= hi - lo)
                local_index = np.where(missing, hi - lo if r["kind"] == "scatter" else 0, at).astype(given.dtype)
                if element < 0:
                    given = local_index
                else:
                    given[..., element] = local_index
                ins[r["input"]] = given
                if r["kind"] == "scatter":  # one more row, for elements of other devices
                    spares.append((r["axis"], hi - lo))
                    ins[0] = np.concatenate([ins[0], np.take(ins[0], [0], r["axis"])], r["axis"])
                else:
                    missing = missing.reshape(missing.shape + (1,) * r["after"])
                    elsewhere = missing if elsewhere is None else elsewhere | missing
            elif r["kind"] == "causal" and r["factor"] in cell:  # by a mask instead of a cache
                lo, hi = cell[r["factor"]]
                seen, mask = np.tri(hi - lo, sizes[r["factor"]], lo, bool), r["mask"]
                ins += [None] * (mask + 1 - len(ins))
                given = np.zeros((), np.float32) if ins[mask] is None else ins[mask]
                hidden = np.where(seen, given, False if given.dtype == bool else -np.inf).astype(given.dtype)
                ins[mask] = hidden if hidden.ndim != 2 or mask == 3 else hidden[None, None]
                attributes.update(is_causal=0) if mask == 3 else attributes.update(unidirectional=0)
            elif r["kind"] == "range" and r["factor"] in cell:
                lo, hi = cell[r["factor"]]
                ins[r["input"]], ins[r["input"] + 1] = np.array(values[r["input"]] + lo), np.array(values[r["input"]] + hi)
                attributes[""] = None  # the local node differs from the unsharded one
            elif r["kind"] == "once":  # an input that has the reduced factor itself is added by each device
                own = {g for dim in rule["inputs"][r["input"]]["dims"] for g in dim}
                left_out += [r["input"]] if any(coords[f] for f in reduced if f not in own) else []
            elif r["kind"] == "route" and r["factor"] in cell:
                lo, hi = cell[r["factor"]]
                weights = routed(ins[r["input"]], c["attributes"])[:, lo:hi]
                scale = weights.sum(1)
                ins[r["input"]] = np.log(np.where(scale[:, None] > 0, np.maximum(weights, 1e-30), 1)).astype(np.float32)
                attributes["k"] = min(c["attributes"]["k"], hi - lo)
            elif r["kind"] == "word" and r["factor"] in cell and cell[r["factor"]][1] - cell[r["factor"]][0] == 1:
                attributes[r["name"]] = r["words"].split()[cell[r["factor"]][0]]
            elif r["kind"] == "share" and r["factor"] in cell and r["name"] in c["attributes"]:
                entries = c["attributes"][r["name"]]
                each = len(entries) // sizes[r["factor"]]
                attributes[r["name"]] = tuple(entries[cell[r["factor"]][0] * each:cell[r["factor"]][1] * each])
            elif r["kind"] == "attr" and r["factor"] in cell and r["name"] in c["attributes"]:
                size = cell[r["factor"]][1] - cell[r["factor"]][0]
                count = np.array(attributes.get(r["name"], c["attributes"][r["name"]])) // sizes[r["factor"]] * size
                attributes[r["name"]] = tuple(count.tolist()) if count.ndim else int(count)
        try:
            changed = left_out or attributes or c["fixed"]
            run = local(tuple(left_out), tuple(attributes.items()), ins) if changed else machine
            outs = run([None if i in left_out else v for i, v in enumerate(ins)])
        except Exception as e:
            return "cell %s does not run: %s" % (coords, str(e)[:200])
        for k, (out, at) in enumerate(zip(outs, where)):
            for axis, rows in spares:
                out = np.take(out, np.arange(rows), axis)
            for t in rule["trims"]:
                w = windows[t["window"]] if t["output"] == k else None
                if w:
                    out = np.take(out, np.arange((w.a - w.indices[0]) * t["unit"], (w.b - w.indices[0]) * t["unit"]), t["dim"])
            if scale is not None:
                scale = scale.reshape(*out.shape[:-1], 1).astype(np.float32)
                out = np.where(scale > 0, out * scale, np.float32(0))
            out = np.asarray(out) if elsewhere is None else np.where(elsewhere, np.zeros((), out.dtype), out)
            if out.shape != tuple(len(x) for x in at):
                return "cell %s gives shape %s" % (coords, out.shape)
            box = np.ix_(*at) if at else ()
            old = results[k][box]
            results[k][box] = out if first else COMBINE[rule["factors"][reduced[0]]["combine"]](old, out)
            filled[k][box] += 1
    if any((n == 0).any() for n in filled):
        return "the cells do not cover the output"
    given = max([float(np.abs(v[np.isfinite(v)]).max(initial=0)) for v in values if v is not None and v.dtype.kind == "f"], default=0)
    if not all(close(r, np.asarray(w), given if reduced else 0) for r, w in zip(results, whole)):
        return "the result differs"
    return None


def check_shapes(rule, whole, names):
    given = [s for s, t in zip(rule["shapes"], rule["outputs"]) if not t["absent"]]
    for s, w in zip(given, whole):
        if s["rank"] != w.ndim or s["type"] not in (0, helper.np_dtype_to_tensor_dtype(w.dtype)):
            return "shape inference: rank %d, type %d" % (s["rank"], s["type"])
        for d, size in zip(s["dims"], w.shape):
            if (d if isinstance(d, int) else eval(d or "size", {"size": size}, names)) != size:
                return "shape inference: %s where %s is right" % (s["dims"], w.shape)
    return None


def prove_case(op, since, domain, c, rule):
    """(number of tested shardings, error)"""
    if c["whole"]:
        return (1, None) if rule["whole"] else (0, "should not be cut")
    if rule["whole"]:
        return 0, "not cut: " + rule["whole"]
    machine, cache = Machine(node_model(op, since, c, False, domain)), {}
    values = [v.value if isinstance(v, Host) else v for v in c["inputs"]]
    names = {}
    for shape, v in zip(c["symbols"] or [], values):
        names.update({s: n for s, n in zip(shape, () if v is None else v.shape) if isinstance(s, str) and s.isidentifier()})
    names = dict({"batch": 2, "seq": 3}, **names)
    sizes = [f["size"] if isinstance(f["size"], int) else eval(f["size"] or "0", {}, names) for f in rule["factors"]]
    whole = [np.asarray(w) for w in machine(values)]
    wrong = check_shapes(rule, whole, names)
    if wrong:
        return 0, wrong

    def local(left_out, attributes, ins):
        key = left_out, attributes, tuple(ins[i].shape if ins[i] is not None else None for i in c["fixed"])
        if key not in cache:
            inputs = [None if i in left_out else v for i, v in enumerate(ins)]
            together = dict(c["attributes"], **dict(attributes))
            changed = dict(c, inputs=inputs, attributes={k: v for k, v in together.items() if v is not None})
            cache[key] = Machine(node_model(op, since, changed, False, domain))
        return cache[key]

    free = [i for i, f in enumerate(rule["factors"]) if f["kind"] in ("par", "red") and sizes[i] > 1]
    fits = lambda f, n: all(bounds(sizes[f], n, j)[0] % rule["factors"][f]["unit"] == 0 for j in range(n))
    most = [min(s, f["least"] or s) for s, f in zip(sizes, rule["factors"])]
    cuts = [[(f, n)] for f in free for n in (2, 3, 4) if n <= most[f] and fits(f, n)]
    pairs = [((f, 2), (g, min(3, most[g]))) for f, g in itertools.combinations(free, 2)]
    cuts += [list(pair) for pair in pairs if all(fits(*x) and x[1] <= most[x[0]] for x in pair)]
    for x in cuts:
        wrong = prove(rule, sizes, x, c, machine, local, whole)
        if wrong:
            named = ", ".join("%s in %d" % (rule["factors"][f]["name"], n) for f, n in x)
            return 0, "%s: %s" % (named, wrong)
    return len(cuts), None


def full(row):
    return row["domain"] + ":" + row["op"] if row["domain"] else row["op"]


def all_cases():
    return dict(CASES, **cases_norm.cases(sys.modules[__name__]), **cases_net.cases(sys.modules[__name__]))


def main(printer, only):
    cases = all_cases()
    rows = [json.loads(line) for line in subprocess.run([printer], check=True, capture_output=True, text=True).stdout.splitlines()]
    known = {full(r) for r in rows}
    rows = [r for r in rows if (not only or full(r) in only) and harness.matches(full(r))]
    jobs = []  # each case with the row of its opset
    for name in dict.fromkeys(full(r) for r in rows):
        sinces = [r["since"] for r in rows if full(r) == name]
        domain, _, op = name.rpartition(":")
        refused = all(r["whole"] for r in rows if full(r) == name)
        for c in cases.get(name, [] if refused else one()):
            jobs.append((op, max(s for s in sinces if domain or s <= (c["opset"] or 1000)), domain, c))
    with tempfile.TemporaryDirectory() as d:
        files = []
        for i, (op, since, domain, c) in enumerate(jobs):
            files.append(os.path.join(d, "%d.onnx" % i))
            onnx.save(node_model(op, since, c, True, domain), files[-1])
        rules = [
            json.loads(line) for line in subprocess.run([printer] + files, check=True, capture_output=True, text=True).stdout.splitlines()
        ]
    assert len(rules) == len(jobs), "a rule is missing"
    proved, wrong_of, cut_rows = 0, {full(r): [] for r in rows}, set()
    for (op, since, domain, c), rule in zip(jobs, rules):
        try:
            n, wrong = prove_case(op, since, domain, c, rule)
            if rule["other"] and not wrong:
                more, wrong = prove_case(op, since, domain, c, rule["other"])
                n += more
        except Exception as e:
            n, wrong = 0, "cannot be run whole: " + str(e)[:300]
        proved += n
        if n or not wrong and all(f["kind"] == "stat" for f in rule["factors"]):  # sharded only by expansion
            cut_rows.add((op, since, domain))
        if wrong:
            shapes = [None if v is None else list((v.value if isinstance(v, Host) else v).shape) for v in c["inputs"]]
            wrong_of[full(dict(op=op, domain=domain))].append("%s %s: %s" % (shapes, c["attributes"], wrong))
    for r in rows:
        if (r["op"], r["since"], r["domain"]) not in cut_rows and not r["whole"] and r["op"] not in ELSEWHERE:
            wrong_of[full(r)].append("from opset %d: no sharding was proved" % r["since"])
    for name, wrong in wrong_of.items():
        harness.check(name, not wrong, "\n".join(wrong))
    harness.check("every case has a row", not set(cases) - known, sorted(set(cases) - known))
    print("# %d rows, %d nodes, %d shardings proved" % (len(rows), len(jobs), proved))
    harness.finish()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
