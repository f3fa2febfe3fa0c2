# SPDX-License-Identifier: Apache-2.0
"""Tests random shardings of small models of MatMul, Gemm, element-wise operators, Transpose and Reshape with symbolic sizes.

Shardings are along the batch, unequal, on meshes, in groups, on one device, and different at the producer and reader of a value. Each
sharded model is run by Tessera and compared with the unsharded one. Some partitions are also run by evaluator.py.

usage: random_cuts.py TESSERA TRIALS [SEED] [all]     all: five times as many trials"""
import json, os, random, sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import evaluator, harness

F, I = TensorProto.FLOAT, TensorProto.INT64


class Maker:
    """Builds a model: values with their dimensions (numbers or symbols)."""

    def __init__(self, rng):
        self.rng, self.nodes, self.init, self.inputs, self.n = rng, [], [], [], 0
        self.shape = {}

    def name(self, kind):
        self.n += 1
        return "%s%d" % (kind, self.n)

    def add_input(self, dims, type=F):
        v = self.name("in")
        self.inputs.append(helper.make_tensor_value_info(v, type, dims))
        self.shape[v] = list(dims)
        return v

    def const(self, array):
        v = self.name("w")
        self.init.append(numpy_helper.from_array(array, v))
        self.shape[v] = list(array.shape)
        return v

    def weight(self, *dims):
        r = np.random.default_rng(self.rng.randrange(1 << 30))
        return self.const((r.standard_normal(dims) / max(1, dims[-1]) ** 0.5).astype("f4"))

    def node(self, op, inputs, dims, **attrs):
        out = self.name("v")
        self.nodes.append(helper.make_node(op, inputs, [out], name="%s_%s" % (op.lower(), out), **attrs))
        self.shape[out] = list(dims)
        return out

    def model(self, outputs, opset=18):
        outs = [helper.make_tensor_value_info(o, F, self.shape[o]) for o in outputs]
        g = helper.make_graph(self.nodes, "made", self.inputs, outs, self.init)
        m = helper.make_model(g, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        onnx.checker.check_model(m)
        return m


def step(m, v):
    """Adds one operator that reads v."""
    d, rng = m.shape[v], m.rng
    kind = rng.choice(["matmul", "gemm", "relu", "add", "bias", "transpose", "split", "merge", "mul", "dynamic"])
    if kind == "matmul" and isinstance(d[-1], int) and len(d) >= 2:
        n = rng.choice([4, 6, 7, 8, 12])
        return m.node("MatMul", [v, m.weight(d[-1], n)], d[:-1] + [n])
    if kind == "gemm" and len(d) == 2 and isinstance(d[-1], int):
        n, t = rng.choice([5, 6, 8]), rng.random() < 0.4
        w = m.weight(n, d[-1]) if t else m.weight(d[-1], n)
        ins = [v, w] + ([m.weight(n)] if rng.random() < 0.7 else [])
        return m.node("Gemm", ins, [d[0], n], transB=int(t), alpha=0.5, beta=2.0)
    if kind == "relu":
        return m.node(rng.choice(["Relu", "Tanh", "Sigmoid", "Neg"]), [v], d)
    if kind == "add" and m.rng.random() < 0.7:
        return m.node("Add", [v, v], d)
    if kind == "bias" and isinstance(d[-1], int):
        return m.node("Add", [v, m.weight(d[-1])] if rng.random() < 0.5 else [m.weight(d[-1]), v], d)
    if kind == "mul" and isinstance(d[-1], int):
        dims = [x if isinstance(x, int) and rng.random() < 0.5 else 1 for x in d[:-1]] + [d[-1]]
        return m.node("Mul", [v, m.weight(*dims)], d)
    if kind == "transpose" and len(d) >= 2:
        p = list(range(len(d)))
        rng.shuffle(p)
        return m.node("Transpose", [v], [d[i] for i in p], perm=p)
    if kind == "split" and len(d) <= 3 and isinstance(d[-1], int) and d[-1] % 2 == 0:
        h = 2 if d[-1] % 4 or rng.random() < 0.5 else 4
        k = d.index("batch") if "batch" in d else -1  # index of the batch; 0 in the target means: same size as the input
        target = [0] * (len(d) - 1) + [h, d[-1] // h]
        if k == 0 and rng.random() < 0.5:
            target[0] = -1
        return m.node("Reshape", [v, m.const(np.array(target, "i8"))], d[:-1] + [h, d[-1] // h])
    if kind == "merge" and len(d) >= 3 and isinstance(d[-1], int) and isinstance(d[-2], int):
        target = [0] * (len(d) - 2) + [rng.choice([-1, d[-1] * d[-2]])]
        return m.node("Reshape", [v, m.const(np.array(target, "i8"))], d[:-2] + [d[-1] * d[-2]])
    if kind == "dynamic" and len(d) == 3 and d[0] == "batch" and isinstance(d[-1], int) and d[-1] % 2 == 0:
        x = m.inputs[0].name  # an input gives the shape at run time
        s = m.node("Shape", [x], [2 if len(m.shape[x]) == 2 else 3], start=0, end=2)
        tail = m.const(np.array([d[-1] // 2, 2], "i8"))
        if m.shape[x][:2] != d[:2]:
            return v
        return m.node("Reshape", [v, m.node("Concat", [s, tail], [4], axis=0)], d[:2] + [d[-1] // 2, 2])
    return v


def make(rng):
    m = Maker(rng)
    d = rng.choice([["batch", 8], ["batch", "seq", 8], ["batch", 6, 12], [7, 8], [4, 6, 8], ["batch", "seq", 12]])
    x = m.add_input(d)
    v = x
    side = []
    while len(m.nodes) < rng.choice([2, 4, 6, 9]) or not m.nodes:
        v = step(m, v)
        if rng.random() < 0.2:
            side.append(v)
    for s in side:  # a second branch that is added to the first, or is an output
        if m.shape[s] == m.shape[v] and s != v:
            v = m.node("Add", [s, v], m.shape[v])
    outs = [v] + [s for s in side if rng.random() < 0.3 and s != v and s != x]
    if v == x:
        v = m.node("Relu", [x], d)
        outs = [v]
    return m, m.model(list(dict.fromkeys(outs)))


def sharding(rng, dims, n, sizes):
    """Returns a random sharding of a value for up to n devices, as text."""
    devices = list(range(n))
    if rng.random() < 0.2:
        rng.shuffle(devices)
    kind = rng.random()
    if kind < 0.12:
        k = rng.choice(devices)
        return "{%s:%d}" % (",".join("1" * max(1, len(dims))), k)
    cuts, left = [1] * len(dims), n
    texts = None
    for axis in rng.sample(range(len(dims)), len(dims)):
        size = sizes(dims[axis])
        options = [c for c in (2, 3, 4) if left % c == 0 and c <= size]
        if options and rng.random() < 0.7:
            cuts[axis] = rng.choice(options)
            left //= cuts[axis]
    texts = [str(c) for c in cuts]
    axis = rng.randrange(len(dims)) if dims else None
    if axis is not None and cuts[axis] > 1 and isinstance(dims[axis], int):
        for unit in (2, 3, 4):  # blocks or strides of `unit` elements
            if dims[axis] % unit == 0 and dims[axis] // unit >= cuts[axis] and rng.random() < 0.2:
                texts[axis] = "%d/%d*%d" % (dims[axis] // unit, cuts[axis], unit)
                if unit >= cuts[axis] and rng.random() < 0.4:
                    texts[axis] = "%d*%d/%d" % (dims[axis] // unit, unit, cuts[axis])
                break
    shards = int(np.prod(cuts))
    if shards == 1 and n > 1 and rng.random() < 0.5:
        return "{%s:%s}" % (",".join(texts), ",".join(map(str, devices)))
    each = n // shards if rng.random() < 0.7 else 1
    entries = []
    for k in range(shards):
        mine = devices[k * each:(k + 1) * each]
        entries.append(str(mine[0]) if len(mine) == 1 else "(%s)" % ",".join(map(str, sorted(mine))))
    return "{%s:%s}" % (",".join(texts), ",".join(entries))


def edits(rng, m, n, sizes):
    out = ["--config", "c:%d" % n]
    density = rng.choice([0.3, 0.6, 1.0])
    for node in m.nodes:
        for v in dict.fromkeys([*node.input, *node.output]):
            if node.op_type in ("Shape", "Concat") or (node.op_type == "Reshape" and v == node.input[1]):
                continue
            if node.op_type == "MatMul" and v == node.input[1] and rng.random() < 0.3 and m.shape[v][0] >= n:
                devices = ",".join(map(str, rng.sample(range(n), n)))  # shards the contracted dimension: results are partial sums
                out += ["--shard", "%s:%s={%d,1:%s}" % (node.name, v, n, devices)]
            elif rng.random() < density * 0.5 and m.shape[v]:
                out += ["--shard", "%s:%s=%s" % (node.name, v, sharding(rng, m.shape[v], n, sizes))]
    return out


def trial(tessera, seed, folder, counts):
    rng = random.Random(seed)
    m, model = make(rng)
    n = rng.choice([2, 3, 4, 4, 6])
    run_sizes = {"batch": rng.choice([4, 5, 7]), "seq": rng.choice([4, 6, 9])}
    sizes = lambda d: run_sizes[d] if isinstance(d, str) else d
    plain, cut, data = (os.path.join(folder, f) for f in ("plain.onnx", "cut.onnx", "in.npz"))
    onnx.save(model, plain)
    e = edits(rng, m, n, sizes)
    rc, _, err = harness.call(tessera, "annotate", plain, *e, "-o", cut)
    if rc:
        return "annotate %s: exit %d %s" % (e, rc, err)
    r = np.random.default_rng(seed)
    ins = {i.name: r.standard_normal([sizes(d) for d in m.shape[i.name]]).astype("f4") for i in m.inputs}
    np.savez(data, **ins)
    rc, out, err = harness.call(tessera, "verify", cut, "--inputs", data, "--json")
    if rc == 1 and '"ok"' not in out and "partition-refused" in err + out:
        counts["refused"] = counts.get("refused", 0) + 1
        return None
    try:
        doc = json.loads(out)
    except ValueError:
        doc = {}
    if rc or not doc.get("ok"):
        return "verify %s: exit %d %s %s" % (" ".join(e), rc, out[-1500:], err[-1500:])
    counts["verified"] = counts.get("verified", 0) + 1
    counts["cut"] = counts.get("cut", 0) + (doc.get("cut_nodes", 0) > 0)
    for op, k in doc["collectives"].items():
        counts[op] = counts.get(op, 0) + k
    if seed % 4 == 0:  # also run the files in the independent evaluator
        parts = os.path.join(folder, "parts")
        rc, _, err = harness.call(tessera, "partition", cut, "-o", parts, "--force")
        if rc:
            return "partition: exit %d %s" % (rc, err)
        from onnx.reference import ReferenceEvaluator
        want = dict(zip([o.name for o in model.graph.output], ReferenceEvaluator(model).run(None, ins)))
        far = evaluator.apart(evaluator.run(parts, ins), want)
        counts["read"] = counts.get("read", 0) + 1
        if not far <= 5e-5:
            return "the evaluator differs by %g: %s" % (far, " ".join(e))
    return None


def main():
    trials, first, counts = int(sys.argv[2]) * (5 if harness.ALL else 1), int(sys.argv[3]) if len(sys.argv) > 3 else 1, {}

    def seed_holds(folder, seed):
        wrong = trial(sys.argv[1], seed, folder, counts)
        assert not wrong, wrong

    harness.run([("seed %d" % seed, seed_holds, seed) for seed in range(first, first + trials)])
    print("#", counts)
    if trials >= 40 and not harness.PATTERN:  # a generator that shards nothing, or only slices, would test nothing
        counts["reduced"] = sum(counts.get(k, 0) for k in ("AllReduce", "ReduceScatter", "Reduce"))
        wanted = ("verified", "cut", "reduced", "Reshard", "AllToAll")
        harness.check("the random models shard, reduce and reshard", all(counts.get(k, 0) >= trials // 10 for k in wanted), counts)
    harness.finish()


if __name__ == "__main__":
    main()
