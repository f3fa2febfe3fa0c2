# SPDX-License-Identifier: Apache-2.0
"""Makers of blocks of nodes as exporters write them, in which some nodes compute the sizes of others. A maker ends if the engine rejects
one of its nodes; the nodes that it has added stay in the graph."""
import numpy as np

from nodes import first, ints

FAR = np.iinfo(np.int64).max


class Given(Exception):
    """The engine has rejected a node: the block ends."""


class Block:
    """Short methods for a scope: each returns the only result of a node, or ends the block."""

    def __init__(self, s):
        self.s, self.rng, self.opset = s, s.maker.rng, s.maker.opset

    def op(self, name, *inputs, **attributes):
        made = self.s.add(name, list(inputs), **attributes)
        if not made:
            raise Given
        return made[0]

    def several(self, name, n, *inputs, **attributes):
        made = self.s.add(name, list(inputs), outputs=n, **attributes)
        if not made:
            raise Given
        return made

    def shape(self, x):
        return self.s.values[x].shape

    def const(self, *values):
        return self.s.constant(ints(*values))

    def number(self, value):
        return self.s.constant(np.array(value, "i8"))

    def weight(self, *shape, like):
        return self.s.constant(self.s.maker.numbers(shape, self.s.values[like].dtype) * np.array(0.5, self.s.values[like].dtype))

    def unsqueeze(self, x, *axes):
        return self.op("Unsqueeze", x, self.const(*axes)) if self.opset >= 13 else self.op("Unsqueeze", x, axes=list(axes))

    def size(self, x, axis):
        """A size as int64[1], in one of the forms that exporters write."""
        if self.opset >= 15 and self.rng.random() < 0.3:
            return self.op("Shape", x, start=axis, end=axis + 1, keep=False)
        whole = self.op("Shape", x, keep=False)
        if self.rng.random() < 0.5:
            return self.op("Gather", whole, self.const(axis), keep=False)
        return self.op("Slice", whole, self.const(axis), self.const(axis + 1), self.const(0), keep=False)

    def scalar(self, x, axis):
        return self.op("Gather", self.op("Shape", x, keep=False), self.number(axis), keep=False)

    def reshape(self, x, *entries):
        """entries: numbers, or names of int64[1]."""
        if all(isinstance(e, int) for e in entries):
            return self.op("Reshape", x, self.const(*entries))
        return self.op("Reshape", x, self.op("Concat", *[self.const(e) if isinstance(e, int) else e for e in entries], axis=0, keep=False))

    def cut(self, x, start, stop, axis):
        return self.op("Slice", x, self.const(start), self.const(stop), self.const(axis))


def normalised_groups(b):
    """GroupNorm before opset 18: groups as channels of an InstanceNormalization, then reshaped back."""
    x = first(b.s, "f", 3, 4)
    channels = b.shape(x)[1]
    if not channels:
        raise Given
    groups = b.rng.choice([g for g in (1, 2, 3, channels) if channels % g == 0])
    y = b.reshape(x, 0, groups, -1)
    scale, shift = (b.s.constant(np.full(groups, v, b.s.values[x].dtype)) for v in (1, 0.5))
    y = b.op("Reshape", b.op("InstanceNormalization", y, scale, shift), b.op("Shape", x, keep=False))
    return b.op("Mul", y, b.weight(channels, *[1] * (len(b.shape(x)) - 2), like=x))


def heads_of(b, x, heads):
    """[b s h*d] as [b h s d]."""
    depth = b.shape(x)[2] // heads
    entries = b.rng.choice([(0, 0, heads, depth), (0, -1, heads, depth), None])
    y = b.reshape(x, *(entries or (b.size(x, 0), b.size(x, 1), heads, depth)))
    return b.op("Transpose", y, perm=[0, 2, 1, 3])


def repeated(b, x, times):
    """Repeat key or value heads that several query heads share."""
    heads, depth = b.shape(x)[1], b.shape(x)[3]
    way = b.rng.choice(["tile", "expand", "computed"])
    y = b.unsqueeze(x, 2)
    if way == "tile":
        y = b.op("Tile", y, b.const(1, 1, times, 1, 1))
    elif way == "expand":
        y = b.op("Expand", y, b.const(1, 1, times, 1, 1))
    else:
        sizes = [b.size(x, 0), b.size(x, 1), b.const(times), b.size(x, 2), b.size(x, 3)]
        y = b.op("Expand", y, b.op("Concat", *sizes, axis=0, keep=False))
    return b.reshape(y, b.size(x, 0), heads * times, b.rng.choice([-1, b.size(x, 2)]), depth)


def turned(b, x):
    """Rotary position embedding, by halves or by neighbours, with angles of a Range over the sequence."""
    depth = b.shape(x)[3]
    steps = b.op("Cast", b.op("Range", b.number(0), b.scalar(x, 2), b.number(1), keep=False), to=1)
    angles = b.op("Mul", b.unsqueeze(steps, 1), b.s.constant(np.geomspace(1, 0.1, depth // 2).astype("f4")))
    angles = b.op("Concat", angles, angles, axis=1)
    if b.rng.random() < 0.6:
        rest = b.op("Concat", b.op("Neg", b.cut(x, depth // 2, FAR, 3)), b.cut(x, 0, depth // 2, 3), axis=3)
    else:
        pairs = b.reshape(x, 0, 0, 0, depth // 2, 2)
        one, two = (b.op("Gather", pairs, b.number(k), axis=4) for k in (0, 1))
        pairs = b.op("Concat", b.unsqueeze(b.op("Neg", two), 4), b.unsqueeze(one, 4), axis=4)
        rest = b.op("Reshape", pairs, b.op("Shape", x, keep=False)) if b.rng.random() < 0.5 else b.reshape(pairs, 0, 0, 0, -1)
    return b.op("Add", b.op("Mul", x, b.op("Cos", angles)), b.op("Mul", rest, b.op("Sin", angles)))


def hidden(b, scores):
    """A position mask: causal, and sometimes with a window of the last few positions."""
    steps = [b.op("Range", b.number(0), b.scalar(scores, axis), b.number(1), keep=False) for axis in (2, 3)]
    query, key = b.unsqueeze(steps[0], 1), b.unsqueeze(steps[1], 0)
    seen = b.op("Not", b.op("Greater", key, query))
    if b.rng.random() < 0.3:
        seen = b.op("And", seen, b.op("Greater", key, b.op("Sub", query, b.number(2))))
    if b.rng.random() < 0.4:
        seen = b.unsqueeze(seen, 0, 1)
    low, nothing = (b.s.constant(np.array(v, "f4")) for v in (-100, 0))
    return b.op("Add", scores, b.op("Where", seen, nothing, low)) if b.rng.random() < 0.6 else b.op("Where", seen, scores, low)


def attention(b):
    """Attention: queries, keys and values of one projection or of three, positions, shared heads, a cache, a mask, and the output
    projection."""
    x = b.s.pick(lambda a: a.ndim == 3 and a.size and a.dtype == np.float32, "f") or b.s.fresh(b.s.maker.numbers((2, 5, 6)), constant=0)
    heads, shared, depth = b.rng.choice([2, 4]), b.rng.choice([1, 2]), b.rng.choice([2, 4])
    wide, narrow = heads * depth, heads // shared * depth
    width = b.shape(x)[2]
    if b.rng.random() < 0.5:
        all_three = b.op("MatMul", x, b.weight(width, wide + 2 * narrow, like=x))
        q, k, v = (b.cut(all_three, at, at + n, 2) for at, n in ((0, wide), (wide, narrow), (wide + narrow, narrow)))
    else:
        q, k, v = (b.op("MatMul", x, b.weight(width, n, like=x)) for n in (wide, narrow, narrow))
    q, k, v = heads_of(b, q, heads), heads_of(b, k, heads // shared), heads_of(b, v, heads // shared)
    if b.rng.random() < 0.5 and b.opset >= 11:
        q, k = turned(b, q), turned(b, k)
    if b.rng.random() < 0.3 and not b.s.outer:
        past = (b.shape(x)[0], heads // shared, b.rng.choice([1, 3]), depth)
        k, v = (b.op("Concat", b.s.fresh(b.s.maker.numbers(past), constant=0), y, axis=2) for y in (k, v))
    if shared > 1:
        k, v = repeated(b, k, shared), repeated(b, v, shared)
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
    if b.rng.random() < 0.6 and b.opset >= 11:
        scores = hidden(b, scores)
    y = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores, axis=-1 if b.opset >= 13 else 3), v), perm=[0, 2, 1, 3])
    y = b.reshape(y, 0, 0, wide) if b.rng.random() < 0.5 else b.reshape(y, b.size(x, 0), b.size(x, 1), -1)
    return b.op("MatMul", y, b.weight(wide, width, like=x))


def rolled(b):
    """A cyclic shift along an axis, as Slice and Concat."""
    x = first(b.s, "f", 2, 4)
    axis, by = b.rng.randrange(len(b.shape(x))), b.rng.choice([1, -1])
    return b.op("Concat", b.cut(x, by, FAR, axis), b.cut(x, 0, by, axis), axis=axis)


def windows(b):
    """[n h w c] in windows of 2 x 2, some computation in each, and back."""
    x = b.s.pick(lambda a: a.ndim == 4 and a.size and a.shape[1] % 2 == 0 and a.shape[2] % 2 == 0, "f")
    x = x or b.s.fresh(b.s.maker.numbers((2, 4, 6, 3)), constant=0)
    n, high, wide, c = b.shape(x)
    y = b.reshape(x, b.rng.choice([-1, 0, b.size(x, 0)]), high // 2, 2, wide // 2, 2, c)
    y = b.reshape(b.op("Transpose", y, perm=[0, 1, 3, 2, 4, 5]), -1, 4, c)
    y = b.op("Softmax", y, axis=-1 if b.opset >= 13 else 2)
    y = b.op("Transpose", b.reshape(y, -1, high // 2, wide // 2, 2, 2, c), perm=[0, 1, 3, 2, 4, 5])
    return b.op("Reshape", y, b.op("Shape", x, keep=False)) if b.rng.random() < 0.5 else b.reshape(y, -1, high, wide, c)


def experts(b):
    """Mixture of experts: select the rows that a router assigns to each expert, multiply them, and add them at their positions."""
    x = b.s.pick(lambda a: a.ndim == 2 and a.size and a.dtype == np.float32, "f") or b.s.fresh(b.s.maker.numbers((5, 4)), constant=0)
    width, n = b.shape(x)[1], b.rng.choice([2, 3])
    best = b.op("ArgMax", b.op("MatMul", x, b.weight(width, n, like=x)), axis=1, keepdims=0)
    total, nothing = b.op("Mul", x, b.s.constant(np.array(0, "f4"))), b.number(0)
    for e in range(n):
        rows = b.op("NonZero", b.op("Equal", best, b.number(e)))
        rows = b.op("Gather", rows, nothing, axis=0)
        part = b.op("MatMul", b.op("Gather", x, rows, axis=0), b.weight(width, width, like=x))
        total = b.op("ScatterND", total, b.unsqueeze(rows, 1), part, reduction="add" if b.opset >= 16 else None)
    return total


def cut_short(block):
    def maker(s):
        try:
            return block(Block(s))
        except Given:
            return None
    return maker


MAKERS = [(cut_short(block), weight) for block, weight in ((normalised_groups, 3), (attention, 4), (rolled, 2), (windows, 1), (experts, 1))]
