# SPDX-License-Identifier: Apache-2.0
"""Makers of nodes that move, split and join elements, that compute sizes, and that use windows (nodes.py explains makers)."""
import numpy as np

from nodes import first, ints, partner_shape, shape_of

FAR = np.iinfo(np.int64).max


def factorisations(rng, n):
    """Another shape of n elements."""
    out = []
    while n > 1 and len(out) < 3:
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        d = rng.choice(divisors)
        out.append(d)
        n //= d
    return out + [n]


def merged_or_split(rng, shape):
    """Merge two adjacent dimensions, or split one, as exporters do."""
    out = list(shape)
    if len(out) >= 2 and rng.random() < 0.5:
        k = rng.randrange(len(out) - 1)
        out[k:k + 2] = [out[k] * out[k + 1]]
    elif out:
        k = rng.randrange(len(out))
        divisors = [d for d in range(1, out[k] + 1) if out[k] and out[k] % d == 0] or [1]
        d = rng.choice(divisors)
        out[k:k + 1] = [d, out[k] // d]
    return out


def reshape(s):
    rng = s.maker.rng
    x = first(s, None)
    shape = s.values[x].shape
    target = merged_or_split(rng, shape) if rng.random() < 0.7 else factorisations(rng, int(np.prod(shape, dtype=int)))
    rng.random() < 0.1 and target.insert(rng.randint(0, len(target)), 1)
    for k in range(len(target)):
        if k < len(shape) and target[k] == shape[k] and rng.random() < 0.4:
            target[k] = 0
    if rng.random() < 0.5 and target:
        target[rng.randrange(len(target))] = -1
    return s.add("Reshape", [x, s.constant(ints(*target))])


def computed_reshape(s):
    """Shape -> Gather or Slice -> Concat -> Reshape or Expand, as exporters write it."""
    rng = s.maker.rng
    x = first(s, "f", 1)
    shape = s.values[x].shape
    start = rng.randrange(len(shape))
    if rng.random() < 0.5:
        head = s.add("Shape", [x], start=0, end=start, keep=False) if s.maker.opset >= 15 else None
    else:
        whole = s.add("Shape", [x], keep=False)
        head = whole and s.add("Slice", whole + [s.constant(ints(0)), s.constant(ints(start))], keep=False)
    if not head:
        return None
    tail = list(shape[start:])
    divisors = [d for d in range(1, tail[0] + 1) if tail[0] % d == 0] or [1]
    d = rng.choice(divisors)
    new = rng.choice([[d, tail[0] // d] + tail[1:], [int(np.prod(tail))], [-1], tail[::-1]])
    target = s.add("Concat", head + [s.constant(ints(*new))], axis=0, keep=False)
    return target and s.add("Reshape", [x] + target)


def size_arithmetic(s):
    """A size as a number: counted, computed with, used as a shape, a range or a bound."""
    rng = s.maker.rng
    x = first(s, None, 1)
    rank = s.values[x].ndim
    whole = s.add("Shape", [x], keep=False)
    n = whole and s.one("Gather", whole + [s.constant(np.array(rng.randrange(-rank, rank), "i8"))], keep=False)
    if not n:
        return None
    kind = rng.choice(["range", "filled", "slice", "expand", "float"])
    if kind == "range":
        return s.add("Range", [s.constant(np.array(rng.choice([0, 1]), "i8")), n, s.constant(np.array(1, "i8"))])
    if kind == "float":
        f = s.one("Cast", [n], to=1, keep=False)
        y = first(s, "f")
        return f and s.values[y].dtype == np.float32 and s.add(rng.choice(["Mul", "Add"]), [y, f])
    one = s.one("Unsqueeze", [n, s.constant(ints(0))], keep=False)
    if not one:
        return None
    if kind == "filled":
        shape = s.one("Concat", [one, s.constant(ints(rng.choice([2, 3])))], axis=0, keep=False)
        return shape and s.add("ConstantOfShape", [shape])
    if kind == "expand":
        shape = s.one("Concat", [s.constant(ints(rng.choice([2, 3]))), one], axis=0, keep=False)
        y = s.pick(lambda a: a.ndim == 1 and a.size in (1, int(s.values[n])))
        return shape and y and s.add("Expand", [y, shape])
    half = s.one("Div", [one, s.constant(ints(2))], keep=False)
    y = first(s, None, 1)
    axis = s.constant(ints(rng.randrange(s.values[y].ndim)))
    ends = [s.constant(ints(0)), half] if rng.random() < 0.5 else [half, s.constant(ints(FAR))]
    return half and s.add("Slice", [y] + ends + [axis])


def transpose(s):
    x = first(s, None, 1)
    perm = list(range(s.values[x].ndim))
    s.maker.rng.shuffle(perm)
    return s.add("Transpose", [x], perm=perm)


def squeeze(s):
    rng = s.maker.rng
    x = first(s, None, 0, 4)
    shape = s.values[x].shape
    ones = [k for k, d in enumerate(shape) if d == 1]
    if ones and rng.random() < 0.5:
        axes = rng.sample(ones, rng.randint(1, len(ones)))
        return s.add("Squeeze", [x, s.constant(ints(*axes))])
    return s.add("Unsqueeze", [x, s.constant(ints(rng.randint(-len(shape) - 1, len(shape))))])


def flatten(s):
    x = first(s, None, 1)
    rank = s.values[x].ndim
    return s.add("Flatten", [x], axis=s.maker.rng.randint(-rank, rank))


def expand(s):
    rng = s.maker.rng
    x = first(s, None)
    shape = [rng.choice([2, 3, 4]) if d == 1 and rng.random() < 0.6 else rng.choice([d, 1, d]) for d in s.values[x].shape]
    if rng.random() < 0.3:
        shape = [rng.choice([1, 2, 3])] + shape
    return s.add("Expand", [x, s.constant(ints(*shape))])


def tile(s):
    x = first(s, None, 1, 3)
    return s.add("Tile", [x, s.constant(ints(*[s.maker.rng.choice([1, 1, 2, 3]) for _ in s.values[x].shape]))])


def concat(s):
    rng = s.maker.rng
    x = first(s, None, 1)
    a = s.values[x]
    axis = rng.randrange(a.ndim)
    parts = [x]
    for _ in range(rng.choice([1, 1, 2, 3])):
        shape = list(a.shape)
        shape[axis] = rng.choice([shape[axis], rng.choice([1, 2, 3, 5])])
        parts.append(s.like(shape, a.dtype, reuse=0.7))
    rng.shuffle(parts)
    return s.add("Concat", parts, axis=axis - rng.choice([0, a.ndim]))


def split(s):
    rng = s.maker.rng
    x = first(s, None, 1)
    shape = s.values[x].shape
    axis = rng.randrange(len(shape))
    n = rng.randint(2, 3)
    if shape[axis] < n:
        return None
    if rng.random() < 0.5:
        places = sorted(rng.sample(range(1, shape[axis]), n - 1))
        sizes = np.diff([0] + places + [shape[axis]])
        return s.add("Split", [x, s.constant(sizes.astype("i8"))], outputs=n, axis=axis)
    return s.add("Split", [x], outputs=n, axis=axis, num_outputs=n if s.maker.opset >= 18 else None)


def slice_(s):
    rng = s.maker.rng
    x = first(s, None, 1)
    shape = s.values[x].shape
    axes = rng.sample(range(len(shape)), rng.randint(1, len(shape)))
    starts, ends, steps = [], [], []
    for axis in axes:
        d, step = shape[axis], rng.choice([1, 1, 1, 1, 2, 3, -1, -2])
        a, b = sorted((rng.randint(0, d), rng.randint(0, d)))
        if step < 0:
            a, b = rng.choice([(-1, -FAR), (b, a), (-1, -d - 1)])
        else:
            a, b = rng.choice([(a, b)] * 3 + [(a, FAR), (a - d, b - d or FAR), (0, b), (0, d)])
        starts, ends, steps = starts + [a], ends + [b], steps + [step]
    ins = [x, s.constant(ints(*starts)), s.constant(ints(*ends)), s.constant(ints(*axes))]
    made = s.values[x].size and ins + ([s.constant(ints(*steps))] if any(k != 1 for k in steps) else [])
    return made and s.add("Slice", made)


def pad(s):
    rng = s.maker.rng
    x = first(s, "fi", 1, 4)
    a = s.values[x]
    mode = rng.choice(["constant"] * 3 + ["reflect", "edge", "wrap"])
    low = -1 if mode == "constant" and rng.random() < 0.2 else 0
    pads = [rng.randint(low, 2) if rng.random() < 0.5 else 0 for _ in range(2 * a.ndim)]
    ins = [x, s.constant(ints(*pads))]
    if mode == "constant" and rng.random() < 0.5:
        ins.append(s.constant(np.array(3, a.dtype)))
    return s.add("Pad", ins, mode=mode)


def index(s, shape, n, negative=True):
    return s.maker.np.integers(-n if negative and s.maker.rng.random() < 0.4 else 0, max(n, 1),
                               shape).astype(s.maker.rng.choice(["i8", "i8", "i4"]))


def gather(s):
    rng = s.maker.rng
    x = first(s, None, 1, 4)
    shape = s.values[x].shape
    axis = rng.randrange(len(shape))
    return s.add("Gather", [x, s.fresh(index(s, shape_of(rng, 0, 2), shape[axis]))], axis=axis - rng.choice([0, len(shape)]))


def gather_elements(s):
    rng = s.maker.rng
    x = first(s, None, 1, 4)
    a = s.values[x]
    axis = rng.randrange(a.ndim)
    shape = [rng.randint(1, d) if d and rng.random() < 0.3 else d for d in a.shape]
    shape[axis] = rng.randint(1, 5)
    if rng.random() < 0.5:
        return s.add("GatherElements", [x, s.fresh(index(s, shape, a.shape[axis]))], axis=axis)
    shape[axis] = min(shape[axis], a.shape[axis])
    lines = [s.maker.np.permutation(a.shape[axis])[:shape[axis]] for _ in range(int(np.prod(shape)) // max(1, shape[axis]))]
    if not lines or not shape[axis]:
        return None
    rest = [d for k, d in enumerate(shape) if k != axis]
    at = np.moveaxis(np.stack(lines).reshape(rest + [shape[axis]]), -1, axis).astype("i8")
    reduction = rng.choice([None, None, "add", "max"])
    return s.add("ScatterElements", [x, s.fresh(at), s.like(shape, a.dtype)], axis=axis, reduction=reduction)


def gather_nd(s):
    rng = s.maker.rng
    x = first(s, None, 1, 4)
    a = s.values[x]
    if not a.size:
        return None
    depth, rows = rng.randint(1, a.ndim), shape_of(rng, 1, 2)
    at = np.stack([s.maker.np.integers(0, d, rows) for d in a.shape[:depth]], -1).astype("i8")
    if rng.random() < 0.5:
        return s.add("GatherND", [x, s.fresh(at)])
    places = np.unique(at.reshape(-1, depth), axis=0)
    s.maker.np.shuffle(places)
    return s.add("ScatterND", [x, s.fresh(places), s.like((len(places),) + a.shape[depth:], a.dtype)])


def triangle(s):
    rng = s.maker.rng
    x = first(s, "fib", 2)
    if rng.random() < 0.3:
        y = first(s, None, 2, 2)
        return s.add("EyeLike", [y], k=rng.randint(-2, 2), dtype=rng.choice([1, 7]))
    ins = [x] if rng.random() < 0.3 else [x, s.fresh(np.array(rng.randint(-3, 3), "i8"))]
    return s.add("Trilu", ins, upper=rng.randint(0, 1))


def one_hot(s):
    rng = s.maker.rng
    x = s.fresh(s.maker.np.integers(-4, 4, shape_of(rng, 1, 2)).astype("i8"))
    return s.add("OneHot", [x, s.constant(np.array(rng.randint(2, 6), "i8")), s.constant(np.array([0, 1], "f4"))],
                 axis=rng.choice([-1, 0, 1]))


def spatial(s, rank):
    """A value [batch, channels, space ...]: an existing one, or a new one. Windows may be larger than it is."""
    rng = s.maker.rng
    least = rng.choice([1, 3, 3])
    fit = s.pick(lambda a: a.ndim == rank and min(a.shape) > 0 and a.shape[-1] >= least and a.dtype == np.float32, "f")
    if fit and rng.random() < 0.7:
        return fit
    sizes = [1, 2, 3, 4] if rng.random() < 0.2 else [4, 5, 6, 7, 9]
    shape = (rng.choice([1, 2, 2, 8]), rng.choice([2, 3, 4, 6])) + tuple(rng.choice(sizes) for _ in range(rank - 2))
    return s.fresh(s.maker.numbers(shape, "f4"), constant=0.2)


def window_attributes(rng, dims):
    kernel = [rng.choice([1, 2, 3, 3]) for _ in range(dims)]
    out = {"kernel_shape": kernel, "strides": [rng.choice([1, 1, 2, 3]) for _ in range(dims)]}
    if rng.random() < 0.3:
        out["dilations"] = [rng.choice([1, 2]) for _ in range(dims)]
    if rng.random() < 0.25:
        out["auto_pad"] = rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif rng.random() < 0.7:
        out["pads"] = [rng.randint(0, max(0, k - 1)) for k in kernel * 2]
    return out


def convolve(s):
    rng, rank = s.maker.rng, s.maker.rng.choice([3, 4, 4, 5])
    x = spatial(s, rank)
    channels, attributes = s.values[x].shape[1], window_attributes(rng, rank - 2)
    group = rng.choice([g for g in (1, 1, 2, 3, channels) if channels % g == 0])
    out = group * rng.choice([1, 2, 3])
    turned = rng.random() < 0.3
    shape = (channels, out // group) if turned else (out, channels // group)
    ins = [x, s.like(shape + tuple(attributes["kernel_shape"]), "f4")]
    if rng.random() < 0.5:
        ins.append(s.like((out,), "f4"))
    if turned and rng.random() < 0.3:
        attributes["output_padding"] = [rng.randint(0, k - 1) for k in attributes["strides"]]
    elif turned and rng.random() < 0.15:
        attributes["output_shape"] = [max(1, d * k + rng.randint(-2, 1)) for d, k in zip(s.values[x].shape[2:], attributes["strides"])]
    return s.add("ConvTranspose" if turned else "Conv", ins, group=group, **attributes)


def pool(s):
    rng, rank = s.maker.rng, s.maker.rng.choice([3, 4, 4])
    x = spatial(s, rank)
    op = rng.choice(["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
    if op.startswith("Global"):
        return s.add(op, [x])
    attributes = window_attributes(rng, rank - 2)
    attributes["ceil_mode"] = rng.choice([None, None, 1])
    if op == "AveragePool":
        attributes["count_include_pad"] = rng.choice([None, 1])
    return s.add(op, [x], outputs=2 if op == "MaxPool" and rng.random() < 0.3 else 1, **attributes)


def odd_windows(s):
    """Pools and convolutions whose windows are about as large as the input, or larger: dilations, ceil_mode, auto_pad and output_shape then
    decide about sizes of 0, 1 or 2."""
    rng, rank = s.maker.rng, s.maker.rng.choice([3, 4, 4])
    shape = (rng.choice([1, 2, 3]), rng.choice([1, 2, 4])) + tuple(rng.choice([1, 1, 2, 3, 4, 5]) for _ in range(rank - 2))
    x = s.pick(lambda a: a.ndim == rank and a.size and max(a.shape[2:]) < 7 and a.dtype == np.float32, "f") if rng.random() < 0.6 else None
    x = x or s.fresh(s.maker.numbers(shape, "f4"), constant=0.1)
    n, channels, *space = s.values[x].shape
    kernel = [rng.choice([1, 2, 3, d, d + 1]) for d in space]
    attributes = dict(kernel_shape=kernel, strides=[rng.choice([1, 2, 3, 4]) for _ in space])
    if rng.random() < 0.5:
        attributes["dilations"] = [rng.choice([1, 2, 3]) for _ in space]
    if rng.random() < 0.35:
        attributes["auto_pad"] = rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif rng.random() < 0.7:
        attributes["pads"] = [rng.randint(0, max(0, k - 1)) for k in kernel * 2]
    op = rng.choice(["MaxPool", "AveragePool", "LpPool", "ConvTranspose", "ConvTranspose", "ConvTranspose", "Conv"])
    if "Conv" in op:
        more = rng.random()
        if op == "ConvTranspose" and more < 0.4:
            attributes["output_padding"] = [rng.randint(0, k - 1) for k in attributes["strides"]]
        elif op == "ConvTranspose" and more < 0.7:
            attributes["output_shape"] = [max(1, d * k + rng.randint(-2, 2)) for d, k in zip(space, attributes["strides"])]
        return s.add(op, [x, s.like([channels, 1 if op == "Conv" else 2] + kernel, "f4")], group=channels if op == "Conv" else 1,
                     **attributes)
    if op == "AveragePool":
        attributes["count_include_pad"] = rng.choice([None, 1])
    return s.add(op, [x], outputs=2 if op == "MaxPool" and rng.random() < 0.3 else 1, ceil_mode=rng.choice([None, 1]), **attributes)


def nearly_constant(s):
    """A value whose elements differ in the last bits only."""
    maker = s.maker
    shape = shape_of(maker.rng, 2, 4)
    a = np.full(shape, maker.rng.choice([1 / 3, 2.4641871, -0.7, 100.1]), "f4")
    return s.add("Identity",
                 [s.fresh(a * (1 + maker.rng.choice([0, 6e-8, 1e-7, 1e-6]) * maker.np.integers(-1, 2, shape)).astype("f4"), constant=0.2)])


def repeated_lines(s):
    """A value that is constant along some axes: statistics along them are only rounding errors."""
    rng = s.maker.rng
    x = first(s, "f", 2, 4)
    shape = s.values[x].shape
    axes = rng.sample(range(len(shape)), rng.randint(1, len(shape)))
    line = s.like([1 if k in axes else d for k, d in enumerate(shape)], s.values[x].dtype)
    return s.add("Expand", [line, s.constant(ints(*shape))])


def resize(s):
    rng = s.maker.rng
    x = spatial(s, 4)
    n, channels, h, w = s.values[x].shape
    if rng.random() < 0.3:
        b = 2
        if rng.random() < 0.5:
            return s.add("SpaceToDepth", [x], blocksize=b)
        return s.add("DepthToSpace", [x], blocksize=b, mode=rng.choice(["DCR", "CRD"]))
    where = dict(mode=rng.choice(["nearest", "linear", "cubic"]),
                 coordinate_transformation_mode=rng.choice(["asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"]))
    if where["mode"] == "nearest":
        where["nearest_mode"] = rng.choice(["floor", "round_prefer_floor", "ceil"])
    if rng.random() < 0.5:
        scales = np.array([1, 1, rng.choice([1, 2, 1.5, 3]), rng.choice([1, 2, 0.5])], "f4")
        return s.add("Resize", [x, "", s.constant(scales)], **where)
    return s.add("Resize", [x, "", "", s.constant(ints(n, channels, rng.choice([h, 2 * h, h + 1]), rng.choice([w, 2 * w, 3])))], **where)


def found(s):
    """Results whose sizes depend on elements."""
    rng = s.maker.rng
    x = first(s, None, 1, 3)
    kind = rng.choice(["NonZero", "Compress", "Unique"])
    if kind == "NonZero":
        return s.add(kind, [x])
    if kind == "Unique":
        return s.add(kind, [first(s, "i", 1, 2)], outputs=rng.choice([1, 4]))
    axis = rng.randrange(s.values[x].ndim)
    return s.add(kind, [x, s.like((s.values[x].shape[axis],), "?")], axis=axis)


def optionals(s):
    """An optional value, created and read by nodes that run together, since it is not an array."""
    x = first(s, "f", 1, 3)
    if s.maker.opset < 18:
        return None
    made = s.through("Identity", x, {}, "Optional", {}, "OptionalGetElement")
    if made:
        s.maker.count("Optional", "")
        s.maker.count("OptionalGetElement", "")
    return made


def lists(s):
    """Sequences: created, changed, read."""
    rng = s.maker.rng
    x = first(s, "f", 1, 3)
    rank = s.values[x].ndim
    axis = rng.randrange(rank)
    if rng.random() < 0.5:
        made = s.add("SplitToSequence", [x], axis=axis, keepdims=1, keep=False)
    else:
        made = s.add("SequenceConstruct", [x, s.like(s.values[x].shape, s.values[x].dtype), x], keep=False)
    if made and rng.random() < 0.4:
        made = s.add("SequenceInsert", made + [x], keep=False)
    if made and rng.random() < 0.3:
        made = s.add("SequenceErase", made + [s.constant(np.array(rng.choice([0, -1]), "i8"))], keep=False)
    if not made:
        return None
    kind = rng.choice(["at", "join", "length"])
    if kind == "at":
        return s.add("SequenceAt", made + [s.constant(np.array(rng.choice([0, -1]), "i8"))])
    if kind == "length":
        return s.add("SequenceLength", made)
    return s.add("ConcatFromSequence", made, axis=axis)


MAKERS = [(reshape, 8), (computed_reshape, 4), (size_arithmetic, 4), (transpose, 6), (squeeze, 3), (flatten, 2), (expand, 3), (tile, 2),
          (concat, 5), (split, 4), (slice_, 6), (pad, 3), (gather, 4), (gather_elements, 3), (gather_nd, 3), (triangle, 3),
          (one_hot, 1), (repeated_lines, 1), (convolve, 5), (pool, 4), (resize, 3), (found, 1), (lists, 2), (optionals, 1)]
