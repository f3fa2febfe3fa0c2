# SPDX-License-Identifier: Apache-2.0
"""Makers of single nodes with random shapes, types and attributes. Each gets a scope (graph.py), reads existing values, and adds one or a
few nodes. They may try invalid nodes: the engine rejects them, and another maker is tried."""
import numpy as np

FLOAT_UNARY = ["Abs", "Neg", "Relu", "Tanh", "Sigmoid", "Exp", "Sqrt", "Sin", "Cos", "Atan", "Erf", "Softplus", "Softsign",
               "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "ThresholdedRelu", "Gelu", "Mish", "Floor",
               "Ceil", "Round", "Sign", "Reciprocal", "Log", "Identity", "Sinh", "Cosh", "Asinh", "Tan", "IsNaN", "IsInf",
               "Shrink", "Swish"]
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Add", "Mul", "Sum", "Mean", "Pow", "Mod"]
COMPARE = ["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"]
REDUCE = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
          "ReduceLogSumExp", "ReduceSumSquare"]
TYPES = ["f4"] * 12 + ["f2", "f8", "f8", "i4", "i8", "i8", "u1", "i1", "?", "u4", "i2", "u2", "u8"]


def ints(*values):
    return np.array(values, "i8")


def shape_of(rng, low=0, high=4):
    return tuple(rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 4, 6]) for _ in range(rng.randint(low, high)))


def first(s, kinds="f", low=0, high=5):
    """A value for the first input, of rank low to high."""
    name = s.pick(lambda a: low <= a.ndim <= high, kinds)
    if name and s.maker.rng.random() < 0.93:
        return name
    rng = s.maker.rng
    dtype = rng.choice(TYPES) if kinds is None else {"f": "f4", "i": "i8", "b": "?"}[kinds[0]]
    return s.fresh(s.maker.numbers(shape_of(rng, max(low, 1), min(high, 4)), dtype), constant=0.3)


def partner_shape(rng, shape):
    """A shape that broadcasts with another one: dimensions omitted, 1, or added in front."""
    out = [1 if rng.random() < 0.25 else d for d in shape]
    if rng.random() < 0.4 and out:
        out = out[rng.randint(1, len(out)):]
    elif rng.random() < 0.15 and len(out) < 4:
        out = [rng.choice([1, 2, 3])] + out
    return tuple(rng.choice([2, 3, 5]) if d == 1 and rng.random() < 0.15 else d for d in out)


def unary(s):
    op = s.maker.rng.choice(FLOAT_UNARY)
    x = first(s, None if op in ("Abs", "Neg", "Sign", "Identity", "Relu") else "f")
    attributes = {}
    if op in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu") and s.maker.rng.random() < 0.5:
        attributes["alpha"] = 0.3
    if op == "Gelu" and s.maker.rng.random() < 0.5:
        attributes["approximate"] = "tanh"
    return s.add(op, [x], **attributes)


def binary(s):
    rng, op = s.maker.rng, s.maker.rng.choice(BINARY)
    x = first(s, None if rng.random() < 0.3 else "f")
    a = s.values[x]
    others = [
        s.like(partner_shape(rng, a.shape), a.dtype) for _ in range(rng.choice([1, 1, 2]) if op in ("Sum", "Mean", "Max", "Min") else 1)
    ]
    both = [x] + others
    rng.shuffle(both)
    if op in ("Div", "Mod") and a.dtype.kind in "iu" and (s.values[both[1]] == 0).any():
        return None  # the engine crashes
    return s.add(op, both, **({"fmod": 1} if op == "Mod" and a.dtype.kind == "f" else {}))


def same_twice(s):
    """One value as two inputs of a node."""
    x = first(s, "f")
    return s.add(s.maker.rng.choice(["Add", "Mul", "Sub", "Max"]), [x, x])


def compare(s):
    rng = s.maker.rng
    x = first(s, rng.choice(["f", "i"]))
    a = s.values[x]
    both = [x, s.like(partner_shape(rng, a.shape), a.dtype)]
    rng.shuffle(both)
    return s.add(rng.choice(COMPARE), both)


def logic(s):
    rng = s.maker.rng
    x = first(s, "b")
    if rng.random() < 0.2:
        return s.add("Not", [x])
    return s.add(rng.choice(["And", "Or", "Xor"]), [x, s.like(partner_shape(rng, s.values[x].shape), "?")])


def where(s):
    rng = s.maker.rng
    x = first(s, None)
    a = s.values[x]
    condition = s.like(partner_shape(rng, a.shape), "?")
    pair = [x, s.like(partner_shape(rng, a.shape), a.dtype)]
    rng.shuffle(pair)
    return s.add("Where", [condition] + pair)


def clip(s):
    rng = s.maker.rng
    x = first(s, "fi")
    t = s.values[x].dtype
    low, high = s.fresh(np.array(-1, t)), s.fresh(np.array(2, t))
    return s.add("Clip", rng.choice([[x, low, high], [x, "", high], [x, low]]))


def cast(s):
    rng = s.maker.rng
    x = first(s, None)
    return s.add("Cast", [x], to=rng.choice([1, 1, 1, 10, 11, 6, 7, 9, 3, 2]))


def narrow(s):
    """Types that numpy does not have: cast there, perhaps move elements, and cast back. The value in between is not compared."""
    rng = s.maker.rng
    x = first(s, "f", 1)
    if s.values[x].dtype != np.float32:
        return None
    to = rng.choice([16, 16, 17, 19, 21, 22])  # bfloat16, two float8, uint4, int4
    move = rng.choice([None, "Identity", "Transpose", "Reshape", "Slice"])
    return s.through("Cast", x, dict(to=to), move, dict(to=1))


def matmul(s):
    rng = s.maker.rng
    x = first(s, "f", 1)
    a = s.values[x]
    k, n = a.shape[-1], rng.choice([1, 2, 3, 4, 6, 7, 8])
    batch = list(a.shape[:-2]) if rng.random() < 0.35 else []
    batch = [1 if rng.random() < 0.2 else d for d in batch]
    shape = rng.choice([batch + [k, n]] * 5 + [[k]] + [[rng.choice([2, 3])] + batch + [k, n]])
    if rng.random() < 0.2 and a.ndim >= 2:  # as the right operand
        return s.add("MatMul", [s.like([n, a.shape[-2]], a.dtype, reuse=0.6), x])
    return s.add("MatMul", [x, s.like(shape, a.dtype, reuse=0.6)])


def gemm(s):
    rng = s.maker.rng
    x = first(s, "f", 2, 2)
    a = s.values[x]
    ta, tb, n = rng.random() < 0.3, rng.random() < 0.4, rng.choice([1, 3, 4, 6, 8])
    m, k = a.shape[::-1] if ta else a.shape
    ins = [x, s.like((n, k) if tb else (k, n), a.dtype)]
    if rng.random() < 0.7:
        ins.append(s.like(rng.choice([(n,), (m, n), (1, n), (m, 1), (1,), ()]), a.dtype))
    return s.add("Gemm", ins, transA=int(ta), transB=int(tb), alpha=rng.choice([1.0, 0.5]), beta=rng.choice([1.0, 1.5]))


def einsum(s):
    rng = s.maker.rng
    x = first(s, "f", 1, 3)
    shape = s.values[x].shape
    if 0 in shape:
        return None  # the engine crashes
    left = "abc"[:len(shape)]
    size = dict(zip(left, shape), d=rng.choice([2, 3, 5]))
    right = "".join(rng.sample(left + "d", rng.randint(1, min(3, len(left) + 1))))
    out = "".join(rng.sample(sorted(set(left + right)), rng.randint(0, len(set(left + right)))))
    return s.add("Einsum", [x, s.like([size[i] for i in right], s.values[x].dtype)], equation="%s,%s->%s" % (left, right, out))


def reduce(s):
    rng = s.maker.rng
    x = first(s, "f" if rng.random() < 0.85 else "i")
    rank = s.values[x].ndim
    axes = rng.sample(range(rank), rng.randint(0, rank)) if rank else []
    if s.values[x].size:  # ONNX Runtime misreads negative axes of empty tensors
        axes = [a - rank if rng.random() < 0.3 else a for a in axes]
    op, keep = rng.choice(REDUCE), rng.randint(0, 1)
    if s.maker.opset < 18 and not (op == "ReduceSum" and s.maker.opset >= 13):
        return s.add(op, [x], axes=axes or None, keepdims=keep)
    ins = [x, s.constant(ints(*axes))] if axes or rng.random() < 0.3 else [x]
    return s.add(op, ins, keepdims=keep, noop_with_empty_axes=rng.choice([None, None, 1, 0]))


def arg(s):
    rng = s.maker.rng
    x = first(s, rng.choice("fi"), 1)
    rank = s.values[x].ndim
    return s.add(rng.choice(["ArgMax", "ArgMin"]), [x], axis=rng.randrange(-rank, rank), keepdims=rng.randint(0, 1),
                 select_last_index=rng.choice([None, 1]))


def along(s):
    """Operators along one axis."""
    rng = s.maker.rng
    x = first(s, "f", 1)
    rank = s.values[x].ndim
    axis = rng.randrange(-rank, rank)
    op = rng.choice(["Softmax", "Softmax", "LogSoftmax", "Hardmax", "CumSum", "TopK", "LpNormalization"])
    if op == "CumSum":
        return s.add(op, [x, s.constant(np.array(axis, "i8"))], exclusive=rng.randint(0, 1), reverse=rng.randint(0, 1))
    if op == "TopK":
        k = rng.randint(1, max(1, s.values[x].shape[axis]))
        return s.add(op, [x, s.constant(ints(k))], outputs=2, axis=axis, largest=rng.randint(0, 1))
    return s.add(op, [x], axis=axis, **({"p": rng.choice([1, 2])} if op == "LpNormalization" else {}))


def norm(s):
    rng = s.maker.rng
    op = rng.choice(["LayerNormalization", "LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization",
                     "BatchNormalization", "MeanVarianceNormalization"])
    x = first(s, "f", 1 if op[0] in "LR" else 3, 5)
    a = s.values[x]
    if op in ("LayerNormalization", "RMSNormalization"):
        axis = rng.randrange(-a.ndim, a.ndim)
        tail = a.shape[axis:]
        ins = [x, s.like(tail if rng.random() < 0.7 else partner_shape(rng, tail), a.dtype)]
        if op[0] == "L" and rng.random() < 0.6:
            ins.append(s.like(tail, a.dtype))
        return s.add(op, ins, outputs=rng.choice(["y", "y", "yyy", "y.y"]) if op[0] == "L" else 1, axis=axis)
    if op == "MeanVarianceNormalization":
        return s.add(op, [x], axes=rng.sample(range(a.ndim), rng.randint(1, a.ndim)))
    channel = [s.like((a.shape[1],), a.dtype) for _ in range(2)]
    if op == "BatchNormalization":
        positive = lambda shape, t: np.abs(s.maker.numbers(shape, t)) + np.array(0.5, t)
        return s.add(op, [x] + channel + [s.like((a.shape[1],), a.dtype), s.fresh(positive((a.shape[1],), a.dtype))])
    groups = [g for g in (1, 2, 3) if a.shape[1] and a.shape[1] % g == 0] or [1]
    return s.add(op, [x] + channel, **({"num_groups": rng.choice(groups)} if op[0] == "G" else {}))


def quantize(s):
    rng = s.maker.rng
    x = first(s, "f", 1)
    a = s.values[x]
    kind, axis = rng.choice(["tensor", "axis", "block", "dynamic"]), rng.randrange(a.ndim)
    t = rng.choice(["u1", "i1"])
    if kind == "dynamic":
        made = s.add("DynamicQuantizeLinear", [x], outputs=3, keep=False)
        return made and s.add("DequantizeLinear", made)
    shape, attributes = (), {}
    if kind == "axis":
        shape, attributes = (a.shape[axis],), {"axis": axis}
    if kind == "block":
        block = rng.choice([2, 3, 4])
        shape = a.shape[:axis] + (-(-a.shape[axis] // block),) + a.shape[axis + 1:]
        attributes = {"axis": axis, "block_size": block}
    scale = s.constant((np.abs(s.maker.np.standard_normal(shape)) * 0.05 + 0.03).astype(a.dtype))
    tail = [s.constant(s.maker.np.integers(0, 9, shape).astype(t))]
    made = s.add("QuantizeLinear", [x, scale] + tail, **attributes)
    return made and s.add("DequantizeLinear", made + [scale] + tail, **attributes)


def dropout(s):
    return s.add("Dropout", [first(s, "f")], outputs=s.maker.rng.choice([1, 2]))


MAKERS = [(unary, 10), (binary, 12), (same_twice, 2), (compare, 3), (logic, 2), (where, 3), (clip, 2), (cast, 4), (narrow, 2), (matmul, 9),
          (gemm, 4), (einsum, 2), (reduce, 7), (arg, 2), (along, 6), (norm, 5), (quantize, 3), (dropout, 1)]
