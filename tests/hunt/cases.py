# SPDX-License-Identifier: Apache-2.0
"""Nodes of every operator of the table: the cases of tests/rules/prove.py, with other sizes and with inputs that other nodes computed."""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rules"))
import prove  # noqa: E402

CASES = [(name, c) for name, cases in sorted(prove.all_cases().items()) for c in cases]
NEWEST = 26  # the cases of newer operators have no opset; ONNX Runtime 1.31 does not support 27
OPSETS = sorted({c["opset"] for _, c in CASES if c["opset"]} | {NEWEST})
# ONNX Runtime 1.31 stores the result in the memory of the input and then reads that: wrong results if there are other nodes.
UNSOUND = ("com.microsoft:MoE",)
BY_NAME = {}
for _name, _case in CASES:
    if _name not in prove.RANDOM + UNSOUND:  # tests/e2e/special.py tests shardings of random values
        BY_NAME.setdefault(_name, []).append(_case)
NAMES = sorted(BY_NAME)


def other_sizes(rng, arrays):
    """Another size for each size of the case; equal sizes stay equal."""
    sizes = sorted({d for a in arrays if a is not None for d in a.shape if d > 1})
    return {d: 0 if rng.random() < 0.01 else rng.choice([d, d, d + 1, 2 * d, 1, 2, 3, 4, 6, 8]) for d in sizes}


def resized(s, a, sizes):
    """Numbers of the same kind in another shape."""
    shape = tuple(sizes.get(d, d) for d in a.shape)
    if shape == a.shape or not a.size:
        return a
    if a.dtype.kind == "f" and np.isfinite(a).all():
        return s.maker.np.uniform(a.min(), a.max(), shape).astype(a.dtype)
    return s.maker.np.choice(a.ravel(), shape).astype(a.dtype)


def retyped(rng, arrays):
    """The arrays, sometimes with floats of another type."""
    to = rng.choice(["f2", "f8"]) if rng.random() < 0.12 else "f4"
    return [a if a is None or a.dtype != np.float32 else a.astype(to) for a in arrays]


def adapted(s, shape, dtype):
    """A value of the pool converted to that shape: flattened, repeated or truncated, reshaped; None if there is no such value."""
    n = int(np.prod(shape, dtype=int))
    x = s.pick(lambda a: a.dtype == dtype and a.size)
    if not x or not n or s.maker.opset < 13:
        return None
    size, ints = s.values[x].size, lambda *v: s.constant(np.array(v, "i8"))
    flat = s.one("Reshape", [x, ints(-1)], keep=False)
    if flat and size < n:
        flat = s.one("Tile", [flat, ints(-(-n // size))], keep=False)
    if flat and s.values[flat].size > n:
        flat = s.one("Slice", [flat, ints(0), ints(n)], keep=False)
    return flat and s.one("Reshape", [flat, ints(*shape)], keep=False)


def inputs_of(s, arrays, hosts, own):
    """Names for the inputs of a case. own: all are new, with the numbers of the case."""
    rng, out = s.maker.rng, []
    for i, a in enumerate(arrays):
        if a is None:
            out.append("")
        elif hosts[i]:
            out.append(s.constant(a))
        else:
            name = None
            if not own and a.dtype.kind == "f" and rng.random() < 0.6:  # integers are positions or sizes: only those of the case are valid
                name = s.pick(lambda b: b.shape == a.shape and b.dtype == a.dtype)
                if not name:
                    name = adapted(s, a.shape, a.dtype)
            out.append(name or s.fresh(a))
    return out


def case(s):
    rng = s.maker.rng
    name = rng.choice(NAMES)
    fitting = [c for c in BY_NAME[name] if c["opset"] in (None, s.maker.opset)]
    if not fitting:
        return None
    c = rng.choice(fitting)
    domain, _, op = name.rpartition(":")
    hosts = [isinstance(v, prove.Host) for v in c["inputs"]]
    arrays = [v.value if h else v for v, h in zip(c["inputs"], hosts)]
    plain = [None if h else a for a, h in zip(arrays, hosts)]
    for attempt in range(3):
        sizes = other_sizes(rng, plain) if attempt < 2 else {}
        here = [a if a is None or h else resized(s, a, sizes) for a, h in zip(arrays, hosts)]
        here = retyped(rng, here) if attempt == 0 else here
        mark = len(s.nodes), len(s.pool), dict(s.maker.inputs), dict(s.inits), dict(s.maker.operators)
        made = s.add(op, inputs_of(s, here, hosts, attempt == 2), outputs=c["outputs"], domain=domain, **c["attributes"])
        if made:
            return made
        forget(s, mark)
    return None


def forget(s, mark):
    """Remove what was added for a node that the engine then rejected."""
    count, pool, inputs, inits, operators = mark
    s.nodes, s.pool = s.nodes[:count], s.pool[:pool]
    s.maker.inputs, s.inits, s.maker.operators = inputs, inits, operators


MAKERS = [(case, 30)]
