# SPDX-License-Identifier: Apache-2.0
"""Random models of one to three nodes with random specs, compared with the small reference of the documents (conformance/reference.py):
whether `check --formalism` accepts the model, the rule that it breaks, the tiles of every spec, and the shardings that `infer --formalism`
adds.

usage: random_nodes.py TESSERA [FIRST] [all]     FIRST: first seed; `all`: more seeds. A failure names the seed, and FOLDER of `KEEP=FOLDER`
keeps its model."""
import os
import random
import sys

import numpy as np
import onnx

import harness

SUITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "conformance")
sys.path.insert(0, SUITE)
import build  # noqa: E402
import make  # noqa: E402
import reference  # noqa: E402
import run as runner  # noqa: E402

TESSERA = sys.argv[1]
FIRST = int(sys.argv[2]) if len(sys.argv) > 2 else 1
SEEDS, PART = 2000 if harness.ALL else 200, 100
UNARY, BINARY = ["Neg", "Abs", "Relu", "Identity", "Dropout", "Max"], ["Add", "Mul", "Sub", "Equal", "Less", "Sum"]
REDUCE = ["ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2"]


def size(rng):
    return rng.choice([1, 2, 2, 3, 4, 4, 5, 6, 7])


def shape_of(rng, low=0):
    return [size(rng) for _ in range(rng.choice([r for r in (0, 1, 2, 2, 2, 3) if r >= low]))]


def text(kind, shape):
    return (kind + " " + "x".join(map(str, shape))).strip()


# ---- nodes -------------------------------------------------------------------------------------

def unary(rng):
    shape = shape_of(rng)
    return build.node(rng.choice(UNARY), "a", "y"), [shape], shape, {}


def narrower(rng, shape):
    """A shape that broadcasts to another one."""
    out = [1 if rng.random() < 0.3 else d for d in shape]
    return out[rng.randint(0, len(out)):] if rng.random() < 0.3 else out


def binary(rng):
    shape = shape_of(rng)
    one, two = (narrower(rng, shape) if rng.random() < 0.5 else shape for _ in range(2))
    return build.node(rng.choice(BINARY), "a b", "y"), [one, two], list(np.broadcast_shapes(one, two)), {}


def reduction(rng):
    shape, keep = shape_of(rng, 1), rng.randint(0, 1)
    axes = sorted(rng.sample(range(len(shape)), rng.randint(1, len(shape))))
    out = [1 if k in axes else d for k, d in enumerate(shape) if keep or k not in axes]
    axes = [k - len(shape) if rng.random() < 0.3 else k for k in axes]
    return build.node(rng.choice(REDUCE), "a axes", "y", keepdims=keep), [shape], out, {"axes": np.array(axes)}


def product(rng):
    m, k, n = size(rng), size(rng), size(rng)
    batch = [size(rng)] if rng.random() < 0.4 else []
    one = rng.choice([[m, k], batch + [m, k], [k]])
    two = rng.choice([[k, n], batch + [k, n], [k]])
    out = list(np.matmul(np.zeros(one), np.zeros(two)).shape)
    return build.node("MatMul", "a b", "y"), [one, two], out, {}


def gemm(rng):
    """C has no spec: `check` wants it where the products are, the documents where their sum is."""
    m, k, n = size(rng), size(rng), size(rng)
    ta, tb, third = rng.randint(0, 1), rng.randint(0, 1), rng.choice([None, [m, n], [n], [1, n], [m, 1]])
    shapes = [[k, m] if ta else [m, k], [n, k] if tb else [k, n]] + ([third] if third else [])
    return build.node("Gemm", "a b c" if third else "a b", "y", transA=ta, transB=tb), shapes, [m, n], {}


def einsum(rng):
    sizes = {letter: size(rng) for letter in "ijkl"}
    one, two = ("".join(rng.sample("ijkl", rng.randint(1, 3))) for _ in range(2))
    letters = sorted(set(one + two))
    out = "".join(rng.sample(letters, rng.randint(0, len(letters))))
    shapes = [[sizes[c] for c in term] for term in (one, two)]
    return build.node("Einsum", "a b", "y", equation="%s,%s->%s" % (one, two, out)), shapes, [sizes[c] for c in out], {}


# ---- specs -------------------------------------------------------------------------------------

def divided(rng, d, dim):
    """Adds one factor, or two of which the sizes are given; returns the number of shards."""
    if d > 3 and d % 2 == 0 and rng.random() < 0.2:
        counts = rng.choice([(1, 2), (2, 1), (2, 2)])
        for length, n in zip((d // 2, 2), counts):
            dim.simple_sharding.add(dim_value=length, num_shards=n)
        return counts[0] * counts[1]
    n = min(d, rng.choice([1, 2, 2, 3, 4, 5]))  # documents compare elements or texts if some shards are empty: undecided
    one = dim.simple_sharding.add(num_shards=n)
    if rng.random() < 0.2:
        one.dim_value = d
    return n


def fill_devices(rng, spec, shards, devices):
    """One entry for each shard: devices or groups, which may share devices."""
    style, keys = rng.choice(["each", "each", "each", "any", "groups", "overlapping"]), rng.choice([-1, -1, 100])
    if shards > devices:
        style = "each"
    free = rng.sample(range(devices), devices)
    for k in range(shards):
        members = {"each": [free[k % devices]], "any": [rng.randrange(devices)], "groups": free[k::shards] or [free[0]],
                   "overlapping": rng.sample(range(devices), rng.randint(1, 2))}[style]
        if len(members) > 1 or rng.random() < 0.05:
            key = (keys - k) if keys < 0 else keys + k
            spec.index_to_device_group_map.add(key=key, value=members)
            spec.device.append(key)
        else:
            spec.device.append(members[0])


def fill_spec(rng, spec, shape, devices):
    shards = 1
    for axis in rng.sample(range(len(shape)), min(len(shape), rng.choice([0, 1, 1, 1, 2]))):
        dim = spec.sharded_dim.add(axis=axis - (len(shape) if rng.random() < 0.3 else 0))
        shards *= divided(rng, shape[axis], dim)
    fill_devices(rng, spec, shards if spec.sharded_dim else rng.randint(1, 2),
                 devices)  # documents do not decide about specs without devices


def spoil(rng, spec, shape, devices):
    """Breaks a structural rule, perhaps."""
    kind = rng.choice(["axis", "twice", "count", "device", "shards", "size"])
    if kind == "axis":
        spec.sharded_dim.add(axis=len(shape)).simple_sharding.add(num_shards=1)
    elif kind == "twice" and spec.sharded_dim:
        spec.sharded_dim.add().CopyFrom(spec.sharded_dim[0])
    elif kind == "count" and any(s.num_shards > 1 for d in spec.sharded_dim
                                 for s in d.simple_sharding):  # one shard may be listed for several devices
        spec.device.append(rng.randrange(devices))
    elif kind == "device":
        spec.device.append(devices)
    elif kind == "shards" and spec.sharded_dim:
        spec.sharded_dim[0].simple_sharding[0].num_shards = 0
    elif kind == "size" and spec.sharded_dim:
        spec.sharded_dim[0].simple_sharding[0].dim_value = 11


def merges(spec, shape):
    """True if neighbours along an axis are always on the same devices. The documents do not say whether {1,2:0,0} is sharded."""
    layout = reference.layout_of(spec, shape)
    for axis, blocks in enumerate(layout.blocks):
        order = list(dict.fromkeys(blocks))
        for one, two in zip(order, order[1:]):
            if all(layout.owners[(*at[:axis], two, *at[axis + 1:])] == owners for at, owners in layout.owners.items() if at[axis] == one):
                return True
    return False


def copies(spec, shape, other):
    """True if the spec fits the other shape, too. The sizes of factors must be those of the axis; Tessera also takes a last unit that is
    short."""
    factors = any(len(d.simple_sharding) > 1 for d in spec.sharded_dim)
    shards = all(n.num_shards <= min(other, default=1) for d in spec.sharded_dim for n in d.simple_sharding)
    return len(shape) == len(other) and (shape == other or shards and not factors)


def copy_spec(rng, spec, other):
    """The sharding of another value, which then agrees with it more often."""
    name = spec.tensor_name
    spec.CopyFrom(other)
    spec.tensor_name = name


def made(seed):
    """The model of a seed."""
    rng = random.Random(seed)
    devices = rng.choice([2, 3, 4])
    node, shapes, out, constants = rng.choice([unary, binary, binary, reduction, reduction, product, product, gemm, einsum])(rng)
    kind = "b" if node.op_type in ("Equal", "Less") else "f"
    names = [n for n in node.input if n not in constants]
    nodes, inputs = [node], {name: text("f", shape) for name, shape in zip(names, shapes)}
    if rng.random() < 0.3:  # an input comes from a node, whose sharding it inherits
        nodes.insert(0, build.node("Abs", "x", "a", "before"))
        inputs = {"x": inputs.pop("a"), **inputs}
    if rng.random() < 0.3:
        nodes.append(build.node("Identity", "y", "z", "after"))
    last = nodes[-1].output[0]
    model = build.model(nodes, inputs, {last: text(kind, out)}, constants, devices=devices)
    sized = dict(zip(names, shapes), y=out, x=shapes[0], z=out)
    model.graph.value_info.extend(
        build.value(n, text(kind if n == "y" else "f", sized[n])) for n in ("a", "y") if n not in inputs and n != last)
    seen = None
    for one in nodes:
        for name in dict.fromkeys([*one.input, *one.output]):
            if name in constants or name == "c" or rng.random() > (0.75 if name in one.input else 0.2):
                continue
            spec = build.spec(model, name, one.name)
            if seen is not None and copies(seen, sized[seen.tensor_name], sized[name]) and rng.random() < 0.5:
                copy_spec(rng, spec, seen)
            else:
                while True:
                    spec.CopyFrom(onnx.ShardingSpecProto(tensor_name=name))
                    fill_spec(rng, spec, sized[name], devices)
                    if not merges(spec, sized[name]):
                        break
            if rng.random() < 0.04:
                spoil(rng, spec, sized[name], devices)
            seen = spec
    return model


def verdict(seed, model, folder):
    """The case in the form of the suite, with `rules`: those that it breaks. None if the documents do not decide."""
    path = os.path.join(folder, "seed%d.onnx" % seed)
    onnx.save(model, path)
    tensors = make.tensors_of(model)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    rules, silent, known = [rule for rule, _, _ in reference.broken_rules(model)], [], {}
    if not rules:
        broken, silent, known = reference.propagate(model, "c", {k: t["shape"] for k, t in tensors.items()}, constants)
        rules = [rule for rule, _ in broken]
    if silent:
        return None
    rows = [dict(row, exact=True)
            for row in make.shardings_of(known)]  # also where sizes are not divisible: Tessera has the bounds of the reference
    return {
        "name": "seed%d" % seed, "model": path, "verdict": "invalid" if rules else "valid", "rule": rules[0] if rules else None,
        "rules": set(rules), "tensors": tensors, "configurations": {"c": {"shardings": rows}}, "run": None
    }


def part(folder, first):
    """PART seeds with one process of the adapter."""
    cases = [c for c in (verdict(seed, made(seed), folder) for seed in range(first, first + PART)) if c]
    os.environ.update(harness.environment())
    results = runner.run("tessera", [os.path.join(SUITE, "adapters", "tessera.py"), TESSERA], cases, ["check", "shards"])
    several = {c["name"] for c in cases if len(c["rules"]) > 1}
    wrong = ["%s: %s: %s" % (name, question, why) for name, question, result, why in results.rows
             if result == runner.WRONG and not (question == "rule" and name in several)]
    valid = sum(c["verdict"] == "valid" for c in cases)
    for name in {w.partition(":")[0] for w in wrong} if os.environ.get("KEEP") else ():
        os.makedirs(os.environ["KEEP"], exist_ok=True)
        os.replace(os.path.join(folder, name + ".onnx"), os.path.join(os.environ["KEEP"], name + ".onnx"))
    assert not wrong, "%d of %d\n%s" % (len(wrong), len(results.rows), "\n".join(wrong))
    assert valid > PART // 5 and len(cases) - valid > PART // 5, "%d valid of %d: the test no longer finds both" % (valid, len(cases))


if __name__ == "__main__":
    harness.run([("seeds %d to %d" % (first, first + PART - 1), part, first) for first in range(FIRST, FIRST + SEEDS, PART)])
    harness.finish()
