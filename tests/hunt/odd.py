# SPDX-License-Identifier: Apache-2.0
"""Makers of nodes with inputs and attributes that exporters rarely write: omitted and empty ones, values at the ends of a type, tensors
without elements, ties (nodes.py explains makers)."""
import numpy as np

from nodes import first, ints, partner_shape, shape_of

FAR = np.iinfo(np.int64).max
ENDS = {"f4": [0.0, -0.0, 1e-40, -1e-38, 1.0, 9999.5, -0.5], "f8": [0.0, -0.0, 1e-310, 0.1, -9999.5],
        "i4": [-2 ** 31, 2 ** 31 - 1, -1, 0, 1, 46341], "i8": [-2 ** 63, 2 ** 63 - 1, -1, 0, 3037000500, 2 ** 53 + 1],
        "i1": [-128, 127, -1, 0], "u1": [255, 128, 0, 1], "u4": [2 ** 32 - 1, 2 ** 31, 0], "u8": [2 ** 64 - 1, 2 ** 63, 0],
        "i2": [-2 ** 15, 2 ** 15 - 1, 0], "u2": [2 ** 16 - 1, 0]}


# ---- inputs ---------------------------------------------------------------------------------------------

def ends(s):
    """A value with the least and greatest numbers of its type, or with signed zeros and denormals."""
    rng = s.maker.rng
    dtype = rng.choice(sorted(ENDS))
    return s.add("Identity", [s.fresh(s.maker.np.choice(np.array(ENDS[dtype], dtype), shape_of(rng, 1, 3)), constant=0.2)])


def wrapped(s):
    """Arithmetic that leaves the range of an integer type."""
    rng = s.maker.rng
    x = s.pick(lambda a: a.ndim, "iu") or first(s, "i", 1)
    a = s.values[x]
    op = rng.choice(["Add", "Sub", "Mul", "Neg", "Abs", "Sign", "ReduceSum", "ReduceMax", "ReduceMin", "CumSum", "Cast", "Max", "Clip"])
    if op in ("Neg", "Abs", "Sign"):
        return s.add(op, [x])
    if op == "Cast":
        return s.add(op, [x], to=rng.choice([1, 6, 7, 3, 2, 12, 13, 5, 9]))
    if op.startswith("Reduce"):
        return s.add(op, [x, s.constant(ints(rng.randrange(a.ndim)))], keepdims=0)
    if op == "CumSum":
        return s.add(op, [x, s.constant(np.array(-1, "i4"))])
    if op == "Clip":
        return s.add(op, [x, s.constant(np.array(3, a.dtype)), s.constant(np.array(1, a.dtype))])  # min above max
    return s.add(op, [x, s.like(partner_shape(rng, a.shape), a.dtype, lambda shape, t: s.maker.np.choice(np.array([1, 2, 3], t), shape))])


def nothing(s):
    """A value without elements, along any axis, and what is computed from nothing."""
    rng = s.maker.rng
    x = s.pick(lambda a: a.ndim and not a.size)
    if not x:
        shape = list(shape_of(rng, 1, 3))
        shape[rng.randrange(len(shape))] = 0
        source = s.pick(lambda a: 0 < a.ndim < 4)
        if source and rng.random() < 0.5:
            n = s.values[source].shape[0]
            return s.add("Slice", [source, s.constant(ints(n)), s.constant(ints(FAR)), s.constant(ints(0))])
        return s.add("Identity", [s.fresh(s.maker.numbers(shape, rng.choice(["f4", "f4", "i8", "f8", "?"])), constant=0.3)])
    a = s.values[x]
    hole = a.shape.index(0)
    kind = rng.choice(["join", "sum", "product", "expand", "pad", "gather", "resize", "unary", "where", "split", "shape", "tile"])
    if kind == "join":
        other = [rng.choice([1, 3, 5]) if k == hole else d for k, d in enumerate(a.shape)]
        both = [x, s.like(other, a.dtype)]
        rng.shuffle(both)
        return s.add("Concat", both, axis=hole)
    if kind == "sum":
        return s.add(rng.choice(["ReduceSum", "ReduceMax", "ReduceMean", "ReduceProd", "ReduceL2", "ReduceLogSumExp"]),
                     [x, s.constant(ints(rng.randrange(a.ndim)))], keepdims=rng.randint(0, 1))
    if kind == "product" and a.ndim >= 2:
        return s.add("MatMul", [x, s.like((a.shape[-1], rng.choice([1, 4])), a.dtype)])
    if kind == "expand":
        return s.add("Expand", [x, s.constant(ints(*[rng.choice([2, d]) if d == 1 else 1 for d in a.shape]))])
    if kind == "pad":
        pads = [rng.randint(0, 2) for _ in range(2 * a.ndim)]
        return s.add("Pad", [x, s.constant(ints(*pads))])
    if kind == "gather":
        axis = rng.randrange(a.ndim)
        return s.add("Gather", [x, s.fresh(np.zeros(0 if axis == hole else rng.choice([0, 2]), "i8"))], axis=axis)
    if kind == "resize":
        return s.add("Reshape", [x, s.constant(ints(*rng.choice([(0,), (3, 0), (0, 2, 5), (-1, 2)])))], allowzero=rng.choice([1, None]))
    if kind == "where":
        return s.add("Where", [s.like(a.shape, "?"), x, s.like([1] * a.ndim, a.dtype)])
    if kind == "split":
        return s.add("Split", [x, s.constant(ints(0, 0))], outputs=2, axis=hole)
    if kind == "shape":
        return s.add("Shape", [x])
    if kind == "tile":
        return s.add("Tile", [x, s.constant(ints(*[rng.choice([1, 2, 0]) for _ in a.shape]))])
    return s.add(rng.choice(["Identity", "Neg", "Abs", "Transpose", "NonZero", "Softmax", "Hardmax", "Flatten", "Squeeze"]), [x])


# ---- attributes -----------------------------------------------------------------------------------------

def open_slice(s):
    """Slice without axes, with int32 positions, far outside of the value, or of nothing."""
    rng = s.maker.rng
    x = first(s, None, 1)
    shape, t = s.values[x].shape, rng.choice(["i4", "i8"])
    if not s.values[x].size:
        return None
    n = rng.randint(1, len(shape))
    starts = [rng.choice([0, 1, -1, -d, d - 1, -100]) for d in shape[:n]]
    stops = [rng.choice([d, -1, 1, d + 100, 0, -d]) for d in shape[:n]]
    words = [s.constant(np.array(v, t)) for v in (starts, stops)]
    if rng.random() < 0.5:
        axes = [a - rng.choice([0, len(shape)]) for a in rng.sample(range(len(shape)), n)]
        words.append(s.constant(np.array(axes, t)))
        if rng.random() < 0.5:
            words.append(s.constant(np.array([rng.choice([1, -1, 2, 5, -3]) for _ in axes], t)))
    elif rng.random() < 0.3:
        words += ["", s.constant(np.array([rng.choice([1, 2, -1]) for _ in starts], t))]
    return s.add("Slice", [x] + words)


def open_axes(s):
    """Axes that are omitted, empty, several, or negative: as inputs, or as attributes of older opsets."""
    rng = s.maker.rng
    x = first(s, "f", 0, 4)
    a = s.values[x]
    op = rng.choice(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSum", "ReduceSumSquare", "Squeeze", "Unsqueeze"])
    if op == "Squeeze":
        return s.add(op, [x])
    if op == "Unsqueeze":
        rank = a.ndim + 2
        axes = [k - rng.choice([0, rank]) for k in rng.sample(range(rank), 2)]
    else:
        axes = [k - rng.choice([0, a.ndim]) for k in rng.sample(range(a.ndim), rng.randint(0, a.ndim))] if a.size else []
    attributes = {} if op == "Unsqueeze" else {"keepdims": rng.choice([0, 1, None])}
    if s.maker.opset < 13 or s.maker.opset < 18 and op not in ("ReduceSum", "Unsqueeze"):
        return s.add(op, [x], axes=axes or None, **attributes)
    if op != "Unsqueeze":
        attributes["noop_with_empty_axes"] = rng.choice([None, 0, 1])
    ins = rng.choice([[x, s.constant(np.array(axes, "i8"))], [x], [x, ""]]) if op != "Unsqueeze" else [x, s.constant(ints(*axes))]
    return s.add(op, ins, **attributes)


def defaults(s):
    """Operators with every attribute omitted."""
    rng = s.maker.rng
    op = rng.choice(["Transpose", "Softmax", "LogSoftmax", "Hardmax", "Flatten", "ArgMax", "LpNormalization", "Shape", "Size", "Gelu",
                     "MeanVarianceNormalization", "Max", "Sum", "Concat", "Clip", "Dropout", "Unique", "Compress", "IsInf", "Swish"])
    x = first(s, "f", 4 if op.startswith("Mean") else 1, 4)
    if op == "Compress":
        n = s.values[x].size
        return s.add(op, [x, s.like((rng.choice([n, max(1, n // 2), 1]),), "?")])
    return s.add(op, [x], **({"axis": 0} if op == "Concat" else {}))


def letters(s):
    """Einsum with one or three operands, an ellipsis, a diagonal, or without a result."""
    rng = s.maker.rng
    x = first(s, "f", 1, 3)
    a = s.values[x]
    if not a.size:
        return None
    names, t = "abc"[:a.ndim], a.dtype
    kind = rng.choice(["one", "three", "dots", "implicit", "same"])
    if kind == "one":
        return s.add("Einsum", [x], equation="%s->%s" % (names, "".join(rng.sample(names, rng.randint(0, len(names))))))
    if kind == "three":
        size = dict(zip(names, a.shape), d=3)
        words = [names] + ["".join(rng.sample(names + "d", rng.randint(1, 2))) for _ in range(2)]
        out = "".join(rng.sample(sorted(set("".join(words))), rng.randint(0, min(2, len(set("".join(words)))))))
        return s.add("Einsum", [x] + [s.like([size[i] for i in w], t) for w in words[1:]], equation="%s->%s" % (",".join(words), out))
    if kind == "dots":
        last = a.shape[-1]
        return s.add("Einsum", [x, s.like((last, 4), t)], equation=rng.choice(["...i,ij->...j", "...i,ij->j...", "... i , i j"]))
    if kind == "implicit":
        return s.add("Einsum", [x, s.like((a.shape[-1], 2), t)], equation="%s,%sz" % (names, names[-1]))
    y = s.like((a.shape[0], a.shape[0]), t)
    return s.add("Einsum", [y], equation=rng.choice(["aa->a", "aa->", "aa"]))


def vectors(s):
    """Products of vectors, of batches of different rank, and of sizes of 1."""
    rng = s.maker.rng
    x = first(s, "f", 1, 4)
    a = s.values[x]
    k, t = a.shape[-1], a.dtype
    if rng.random() < 0.5:
        return s.add("MatMul", [x, s.like(rng.choice([(k,), (k, 1), (1, k, 2), (2, 1, k, 3)]), t)])
    if a.ndim > 1:
        return s.add("MatMul", [s.like(rng.choice([(a.shape[-2],), (1, a.shape[-2]), (2, 1, 3, a.shape[-2])]), t), x])
    return s.add("MatMul", [x, x])


def moved(s):
    """Shape with bounds outside of the rank, Reshape with zeros and -1, Tile, Expand to fewer dimensions, Split in unequal parts."""
    rng = s.maker.rng
    x = first(s, None, 1, 4)
    a = s.values[x]
    op = rng.choice(["Shape", "Reshape", "Tile", "Expand", "Split", "CenterCropPad", "Pad", "ReverseSequence", "Transpose", "Flatten"])
    if op == "Shape":
        return s.add(op, [x], start=rng.choice([-9, -1, 0, 1]), end=rng.choice([None, -1, 9, 0]))
    if op == "Reshape":
        dims = [0] * a.ndim
        dims[rng.randrange(a.ndim)] = -1
        return s.add(op, [x, s.constant(ints(*dims))], allowzero=rng.choice([None, 0]))
    if op == "Tile":
        return s.add(op, [x, s.constant(ints(*[rng.choice([1, 2, 3, 0 if rng.random() < 0.2 else 1]) for _ in a.shape]))])
    if op == "Expand":
        return s.add(op, [x, s.constant(rng.choice([ints(1), np.zeros(0, "i8"), ints(a.shape[-1]), ints(2, *[1] * a.ndim)]))])
    if op == "Split":
        axis, n = rng.randrange(a.ndim), rng.randint(2, 5)
        if s.maker.opset >= 18 and rng.random() < 0.6:
            return s.add(op, [x], outputs=n, axis=axis - rng.choice([0, a.ndim]), num_outputs=n)
        places = sorted(rng.randint(0, a.shape[axis]) for _ in range(n - 1))  # some parts are empty
        return s.add(op, [x, s.constant(np.diff([0] + places + [a.shape[axis]]).astype("i8"))], outputs=n, axis=axis)
    if op == "CenterCropPad":
        axes = rng.sample(range(a.ndim), rng.randint(1, a.ndim))
        return s.add(op, [x, s.constant(ints(*[rng.randint(1, 7) for _ in axes]))], axes=[k - rng.choice([0, a.ndim]) for k in axes])
    if op == "Pad":
        axes = rng.sample(range(a.ndim), rng.randint(1, a.ndim))
        pads = [rng.randint(-1, 2) for _ in axes * 2]
        mode = rng.choice(["constant", "edge", "reflect", "wrap"])
        return s.add(op, [x, s.constant(ints(*pads)), "", s.constant(ints(*[k - rng.choice([0, a.ndim]) for k in axes]))], mode=mode)
    if op == "ReverseSequence" and a.ndim >= 2:
        time = rng.randint(0, 1)
        lengths = s.maker.np.integers(1, max(a.shape[time], 1) + 1, a.shape[1 - time]).astype("i8")
        return s.add(op, [x, s.fresh(lengths)], time_axis=time, batch_axis=1 - time)
    if op == "Flatten":
        return s.add(op, [x], axis=rng.choice([0, a.ndim, -a.ndim]))
    return s.add("Transpose", [x])


def at_places(s):
    """Gather and Scatter with batch dimensions, repeated places, scalars, and every reduction."""
    rng = s.maker.rng
    x = first(s, None, 1, 4)
    a = s.values[x]
    if not a.size:
        return None
    pick = lambda shape, n: s.maker.np.integers(-n, n, shape).astype("i8")
    op = rng.choice(["Gather", "GatherND", "ScatterND", "ScatterElements", "GatherElements", "OneHot", "Compress"])
    reduction = rng.choice(["add", "mul", "max", "min"])
    if op == "Gather":
        axis = rng.randrange(a.ndim)
        return s.add(op, [x, s.fresh(pick(rng.choice([(), (1,), (2, 3), (0,)]), a.shape[axis]))], axis=axis)
    if op == "GatherND" and a.ndim > 1:
        n = rng.randint(1, a.ndim - 1)
        depth = rng.randint(1, a.ndim - n)
        at = np.stack([pick(a.shape[:n] + (2,), d) for d in a.shape[n:n + depth]], -1)
        return s.add(op, [x, s.fresh(at)], batch_dims=n)
    if op == "ScatterND":
        depth, rows = rng.randint(1, a.ndim), rng.choice([(3,), (2, 2), (1,)])
        at = np.stack([pick(rows, d) for d in a.shape[:depth]], -1)
        return s.add(op, [x, s.fresh(at), s.like(rows + a.shape[depth:], a.dtype)], reduction=reduction)
    if op in ("ScatterElements", "GatherElements"):
        axis = rng.randrange(a.ndim)
        shape = [rng.randint(1, d) for d in a.shape]
        ins = [x, s.fresh(pick(shape, a.shape[axis]))]
        if op == "GatherElements":
            return s.add(op, ins, axis=axis - a.ndim)
        return s.add(op, ins + [s.like(shape, a.dtype)], axis=axis - a.ndim, reduction=reduction)
    if op == "OneHot":
        at = s.fresh(rng.choice([np.array(2, "i8"), np.array([[7, -9], [1, 0]], "i4"), np.array([1.0, 3.0], "f4")]))
        return s.add(op, [at, s.constant(np.array(4, "i8")), s.constant(np.array([5, -1], "f4"))], axis=rng.choice([-1, 0]))
    axis = rng.randrange(a.ndim)
    return s.add("Compress", [x, s.fresh(s.maker.numbers((rng.randint(1, a.shape[axis]),), "?"))], axis=axis - rng.choice([0, a.ndim]))


def numbers(s):
    """Bits, ranges, remainders, and other operators on integers and doubles."""
    rng = s.maker.rng
    op = rng.choice(["BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Range", "Mod", "Pow", "Cast", "CastLike", "Div",
                     "Max", "Where", "IsNaN", "Round", "Clip", "ArgMin", "TopK"])
    if op == "Range":
        t = rng.choice(["f4", "i4", "i8", "f8"])
        start, stop, step = rng.choice([(0, 5, 1), (5, -1, -2), (3, 3, 1), (0, 1, 3), (2, 9, 2)])
        return s.add(op, [s.fresh(np.array(v, t), constant=0.8) for v in (start, stop, step)])
    if op.startswith("Bit"):
        t = rng.choice(["u1", "u4", "u8"]) if op == "BitShift" else rng.choice(["i4", "u1", "i8"])
        x = s.fresh(s.maker.np.integers(0, 120, shape_of(rng, 1, 3)).astype(t), constant=0.2)
        if op == "BitwiseNot":
            return s.add(op, [x])
        y = s.fresh(s.maker.np.integers(0, 7, partner_shape(rng, s.values[x].shape)).astype(t))
        return s.add(op, [x, y], **({"direction": rng.choice(["LEFT", "RIGHT"])} if op == "BitShift" else {}))
    x = first(s, rng.choice(["i", "f"]), 1)
    a = s.values[x]
    if op in ("Mod", "Div"):
        y = s.fresh(s.maker.np.choice(np.array([-3, 2, 5], a.dtype), partner_shape(rng, a.shape)))
        return s.add(op, [x, y], **({"fmod": 1} if op == "Mod" and (a.dtype.kind == "f" or rng.random() < 0.5) else {}))
    if op == "Pow":
        return s.add(op, [x, s.fresh(np.array(rng.choice([2, 3, 0, 1]), rng.choice(["f4", "i8", "i4"])))])
    if op == "CastLike":
        return s.add(op, [x, s.like((1,), rng.choice(["i4", "f8", "?", "f2", "u1"]))])
    if op == "Cast":
        return s.add(op, [x], to=rng.choice([10, 11, 9, 8, 12, 5]), saturate=rng.choice([None, 0]) if s.maker.opset >= 19 else None)
    if op == "TopK":
        axis = rng.randrange(a.ndim)
        k = s.fresh(ints(rng.choice([0, 1, a.shape[axis], a.shape[axis]])))
        return s.add(op, [x, k], outputs=rng.choice(["yy", ".y", "y"]), axis=axis - rng.choice([0, a.ndim]), largest=rng.randint(0, 1))
    if op == "ArgMin":
        return s.add(op, [x], axis=-1, keepdims=0, select_last_index=1)
    if op == "Clip":
        return s.add(op, [x, "", s.fresh(np.array(1, a.dtype))])
    if op == "Where":
        return s.add(op, [s.fresh(np.array(rng.random() < 0.5)), x, s.like((1,), a.dtype)])
    return s.add(op, [x] * (3 if op == "Max" else 1))


# ---- ties -----------------------------------------------------------------------------------------------

DECIDE = ["ArgMax", "ArgMin", "Hardmax", "TopK", "Round", "Floor", "Ceil", "Sign", "Equal", "Greater", "Cast", "Unique", "Less"]


def ties(s):
    """Sums that are equal except for rounding, and an operator that decides between them."""
    rng = s.maker.rng
    base = first(s, "f", 2, 3)
    a = s.values[base]
    if a.dtype != np.float32 or not a.size:
        return None
    rows = s.one("Expand", [s.constant(s.maker.numbers((1,) + a.shape[1:])), s.constant(ints(max(2, a.shape[0]), *a.shape[1:]))])
    rows = rows and rng.choice([rows, base])
    kind = rng.choice(["mean", "matmul", "norm", "softmax", "l2"])
    if kind == "matmul" and rows:
        total = s.one("MatMul", [rows, s.constant(np.full((s.values[rows].shape[-1], rng.choice([2, 4])), 1 / 3, "f4"))])
    elif rows:
        op = {"mean": "ReduceMean", "norm": "LpNormalization", "softmax": "Softmax", "l2": "ReduceL2"}[kind]
        axis = rng.randrange(1, s.values[rows].ndim)
        total = s.add(op, [rows], axis=axis) if kind in ("norm", "softmax") else \
            s.add(op, [rows, s.constant(ints(axis))] if s.maker.opset >= 18 else [rows],
                  keepdims=1, axes=None if s.maker.opset >= 18 else [axis])
        total = total and total[0]
    if not rows or not total:
        return None
    return decide(s, total)


def decide(s, total=None):
    """An operator whose result changes by a step where its input changes by rounding."""
    rng = s.maker.rng
    total = total or first(s, "f", 1, 4)
    a, op = s.values[total], rng.choice(DECIDE)
    axis = rng.randrange(max(1, a.ndim))
    if not a.ndim or not a.size:
        return None
    if op in ("ArgMax", "ArgMin"):
        return s.add(op, [total], axis=axis, keepdims=0, select_last_index=rng.choice([None, 1]))
    if op == "Hardmax":
        return s.add(op, [total], axis=axis)
    if op == "TopK":
        return s.add(op, [total, s.constant(ints(max(1, a.shape[axis] - 1)))], outputs=2, axis=axis)
    if op in ("Equal", "Greater", "Less"):
        other = s.add("Slice", [total, s.constant(ints(0)), s.constant(ints(1)), s.constant(ints(axis))])
        return other and s.add(op, [total] + other)
    if op == "Cast":
        scaled = s.one("Mul", [total, s.constant(np.array(rng.choice([3, 1, 1e3]), a.dtype))])
        return scaled and s.add(op, [scaled], to=rng.choice([6, 7, 3]))
    if op == "Unique":
        return s.add(op, [total], outputs=rng.choice([1, 4]))
    return s.add(op, [total])


MAKERS = [(ends, 3), (wrapped, 4), (nothing, 5), (open_slice, 4), (open_axes, 5), (defaults, 4), (letters, 3), (vectors, 3), (moved, 6),
          (at_places, 5), (numbers, 6), (ties, 2), (decide, 2)]
