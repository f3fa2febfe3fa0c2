# SPDX-License-Identifier: Apache-2.0
"""Makers of blocks as exporters write them: many nodes of which one computes the sizes of another. A maker gives up where the engine
refuses one of its nodes; what it has added until then stays, and is read or becomes an output like everything else."""
import numpy as np

from nodes import first, ints

FAR = np.iinfo(np.int64).max


class Given(Exception):
    """The engine has refused a node: the block ends here."""


class Block:
    """Short words for a scope: each gives the one result of a node, or ends the block."""

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
        """int64[1], in one of the ways in which it is exported."""
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
    """GroupNorm of before opset 18: groups as channels of an InstanceNormalization, then back to the Shape that was."""
    x = first(b.s, "f", 3, 4)
    channels = b.shape(x)[1]
    groups = b.rng.choice([g for g in (1, 2, 3, channels) if channels and channels % g == 0])
    y = b.reshape(x, 0, groups, -1)
    scale, shift = (b.s.constant(np.full(groups, v, b.s.values[x].dtype)) for v in (1, 0.5))
    y = b.op("Reshape", b.op("InstanceNormalization", y, scale, shift), b.op("Shape", x, keep=False))
    return b.op("Mul", y, b.weight(channels, *[1] * (len(b.shape(x)) - 2), like=x))


def rolled(b):
    """A cyclic shift along an axis, as Slice and Concat."""
    x = first(b.s, "f", 2, 4)
    axis, by = b.rng.randrange(len(b.shape(x))), b.rng.choice([1, -1])
    return b.op("Concat", b.cut(x, by, FAR, axis), b.cut(x, 0, by, axis), axis=axis)


def cut_short(block):
    def maker(s):
        try:
            return block(Block(s))
        except Given:
            return None
    return maker


MAKERS = [(cut_short(block), weight) for block, weight in ((normalised_groups, 3), (rolled, 2))]
