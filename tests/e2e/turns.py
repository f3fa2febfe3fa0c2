# SPDX-License-Identifier: Apache-2.0
"""Tests devices that hold several separate shards, groups of devices that overlap, and groups of unequal size.

Each device must compute its own shards, and the result must be that of the unsharded model.
Part 1: fixed models, with the expected number of nodes and the stored weights of each rank.
Part 2: random groups. Every shard of one input is on random devices. The node must run with the annotated sharding, and a second node reads
the result in the same or another sharding.

usage: turns.py TESSERA [DRAWS [SEED]] [all]     all: five times as many draws"""
import json, os, random, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

import harness

TESSERA = sys.argv[1]
DRAWS = (int(sys.argv[2]) if len(sys.argv) > 2 else 20) * (5 if harness.ALL else 1)
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
SEVERAL_SUMS = "a device has parts of several sums"
check = harness.check
node = helper.make_node


def call(*words):
    return harness.call(TESSERA, *words)


def save(d, nodes, inputs, outputs, weights=(), opset=18):
    info = lambda k, s: helper.make_tensor_value_info(k, T.FLOAT, s)
    graph = helper.make_graph(nodes, "g", [info(*i) for i in inputs.items()], [info(*o) for o in outputs.items()],
                              [numpy_helper.from_array(v, k) for k, v in dict(weights).items()])
    path = os.path.join(d, "m.onnx")
    onnx.save(helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", opset)]), path)
    return path


def annotate(d, path, devices, shards):
    out = os.path.join(d, "a.onnx")
    rc, _, err = call("annotate", path, "--config", "c:%d" % devices, *[w for s in shards for w in ("--shard", s)], "-o", out)
    return out if rc == 0 else print(err)


def feed(d, inputs, seed, **sizes):
    rng = np.random.default_rng(seed)
    path = os.path.join(d, "in.npz")
    np.savez(path, **{k: rng.standard_normal([sizes.get(n, n) for n in s]).astype("f4") for k, s in inputs.items()})
    return path


def verify(path, inputs, *more):
    rc, out, err = call("verify", path, "--inputs", inputs, "--json", *more)
    try:
        return rc, json.loads(out), err
    except ValueError:
        return rc, {}, out + err


def parts_of(d, path, ranks):
    folder = os.path.join(d, "parts")
    rc, _, err = call("partition", path, "-o", folder, "--force")
    assert rc == 0, err
    return [onnx.load(os.path.join(folder, "rank%d.onnx" % r), load_external_data=False).graph for r in range(ranks)]


def count(graph, op):
    return sum(n.op_type == op for n in graph.node)


# Part 1: fixed models.
def fixed(d):
    x = {"a": [9, 4]}
    chain = [node("Relu", ["a"], ["b"], name="p"), node("Neg", ["b"], ["y"], name="q")]
    for text, shards, most in (("{4,1:0,1,0,1}", 4, (2, 2, 0)), ("{2,2:0,1,2,2}", 4, (1, 1, 2)), ("{2,1:(0,1),(1,2)}", 2, (1, 2, 1))):
        path = annotate(d, save(d, chain, x, {"y": [9, 4]}), 3, ["p:a=" + text])
        rc, doc, err = verify(path, feed(d, x, 1))
        graphs = parts_of(d, path, 3)
        runs = [count(g, "Relu") for g in graphs]
        # Copies of a shard that no rank reads are not computed. The second node has no spec and follows the first.
        right = sum(runs) >= shards and all(n <= m for n, m in zip(runs, most)) and runs == [count(g, "Neg") for g in graphs]
        check("%s: each device runs its shards" % text, rc == 0 and not doc["replicated"] and right, (rc, err, runs))
        check("%s: ranks as processes" % text, verify(path, feed(d, x, 1), "--transport", "shm")[0] == 0)
    x = {"a": ["n", 4]}
    path = annotate(d, save(d, chain, x, {"y": ["n", 4]}), 2, ["p:a={4,1:0,1,0,1}"])
    for n in (1, 2, 3, 8, 13):
        check("%d rows, known at run time" % n, verify(path, feed(d, x, n, n=n))[0] == 0)
    w = np.random.default_rng(0).standard_normal((8, 12)).astype("f4")
    path = annotate(d, save(d, [node("MatMul", ["a", "w"], ["y"], name="mm")], {"a": [4, 8]}, {"y": [4, 12]}, {"w": w}), 2,
                    ["mm:w={1,4:0,1,0,1}"])
    rc, doc, err = verify(path, feed(d, {"a": [4, 8]}, 1))
    stored = [sorted(list(i.dims) for i in g.initializer if len(i.dims) == 2) for g in parts_of(d, path, 2)]
    check("a weight is stored in shards", rc == 0 and stored == [[[8, 3], [8, 3]]] * 2, (rc, err, stored))
    x = {"a": [8, 8]}
    axes = {"k": np.array([0], "i8")}
    path = annotate(d, save(d, [node("ReduceSum", ["a", "k"], ["y"], name="r", keepdims=0)], x, {"y": [8]}, axes), 3, ["r:a={2,1:(0,1),2}"])
    rc, doc, err = verify(path, feed(d, x, 1))
    check("parts of a sum on unequal numbers of devices", rc == 0 and not doc["replicated"], (rc, doc, err))
    for what, nodes, shard in (("a sum of which a device has several parts", [node("ReduceSum", ["a", "k"], ["y"], name="r", keepdims=0)],
                                "r:a={4,1:0,1,0,1}"), ("statistics likewise", [node("Softmax", ["a"], ["y"], name="r",
                                                                                    axis=0)], "r:a={4,1:0,1,0,1}")):
        path = annotate(d, save(d, nodes, x, {"y": [8] if "sum" in what else [8, 8]}, axes if "sum" in what else {}), 2, [shard])
        rc, doc, err = verify(path, feed(d, x, 1))
        check(what, rc == 0 and not doc["replicated"] and doc["cut_nodes"] == 1 and "Reshard" not in doc["collectives"], (rc, doc, err))
    path = annotate(d, save(d, [node("ReduceSum", ["a", "k"], ["y"], name="r", keepdims=0)], x, {"y": [8]}, axes), 2, ["r:a={2,2:0,1,1,0}"])
    rc, doc, err = verify(path, feed(d, x, 1))
    check("parts of two sums: replicated, with the reason", rc == 0 and [r["reason"] for r in doc["replicated"]] == [SEVERAL_SUMS],
          (rc, doc, err))


# numpy type: operators that reduce it
REDUCED = {
    "f4": "Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare", "f8": "Sum Max Prod", "i4": "Sum Max Min Prod",
    "i8": "Sum Max Min Prod", "i1": "Max Min", "u1": "Max Min"
}


def reductions(d):
    """The parts of a sum on devices that have several of them, for every type and way to combine them."""
    info = helper.make_tensor_value_info
    for kind, ops in REDUCED.items():
        code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        for op in ops.split():
            for opset, text in ((18, "{4,1:0,1,0,1}"), (18, "{3,1:(0,1),(0,2),(1,2)}"), (11, "{5,1:0,1,1,0,(1,2)}")):
                if opset < 12 and (op in ("Max", "Min") and kind in ("i1", "u1") or kind == "i8" and op == "Prod"):
                    continue  # no kernel in ONNX Runtime
                names, weights, attributes = ["a"], [], {"axes": [0]}
                if opset == 18:
                    names, weights, attributes = ["a", "k"], [numpy_helper.from_array(np.array([0], "i8"), "k")], {}
                graph = helper.make_graph([node("Reduce" + op, names, ["y"], name="r", **attributes)], "g", [info("a", code, [7, 5])],
                                          [info("y", code, [1, 5])], weights)
                path = os.path.join(d, "m.onnx")
                onnx.save(helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", opset)]), path)
                rng = np.random.default_rng(1)
                values = rng.standard_normal((7, 5)) ** 2 if kind[0] == "f" else rng.integers(1, 4, (7, 5))
                np.savez(d + "/in.npz", a=values.astype(kind))
                rc, doc, err = verify(annotate(d, path, 3, ["r:a=" + text]), d + "/in.npz")
                check("Reduce%s of %s %s, opset %d" % (op, kind, text, opset), rc == 0 and not doc["replicated"], (rc, doc, err))


def joined(d):
    """Types that engines cannot concatenate, and sizes that they infer wrongly."""
    x = {"a": [8, 6]}
    for name in ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "INT8", "BOOL", "BFLOAT16"):
        nodes = [node("Cast", ["a"], ["b"], name="there", to=getattr(T, name)), node("Cast", ["b"], ["y"], name="back", to=T.FLOAT)]
        for more in ([], ["back:b={1,2:0,1}"]):
            path = annotate(d, save(d, nodes, x, {"y": [8, 6]}, opset=19), 2, ["there:a={4,1:0,1,0,1}", *more])
            rc, doc, err = verify(path, feed(d, x, 1))
            check("%s is joined %s" % (name, more), rc == 0 and not doc["replicated"], (rc, doc, err))
    x = {"a": [6, 8, 7]}
    pool = node("AveragePool", ["a"], ["b"], name="p", ceil_mode=1, count_include_pad=1, kernel_shape=[3], pads=[1, 2], strides=[2])
    path = annotate(d, save(d, [pool, node("Relu", ["b"], ["y"], name="r")], x, {"y": ["n", 8, "m"]}, opset=19), 2, ["p:b={2,1,1:(0,1),0}"])
    rc, doc, err = verify(path, feed(d, x, 1))
    check("a pooling that rounds up is replicated", rc == 0, (rc, doc, err))


def sums(d):
    """With the result's sharding, the partial sums would be on groups of unequal size. The result must be resharded after the node
    instead."""
    x = {"a": [4, 8, 8], "w": [1, 8, 3]}
    conv = node("Conv", ["a", "w"], ["y"], name="c", auto_pad="SAME_UPPER", kernel_shape=[3])
    for cut in ("2", "2*4/2"):
        shards = ["c:w={1,%s,1:(0,2,4),(1,3,5)}" % cut, "c:y={1,1,2:(0,1,2),(3,4,5)}"]
        rc, doc, err = verify(annotate(d, save(d, [conv], x, {"y": [4, 1, 8]}), 6, shards), feed(d, x, 1))
        check("a sum, and a result on unequal groups %s" % shards, rc == 0, (rc, doc, err))
    x = {"a": [4, 6], "b": [6, 4]}
    for text in ("{2,1:(0,1,2),(3,4,5)}", "{1,2:(0,1,4),(2,3,5)}", "{2,2:(0,1),2,(3,4),5}"):
        shards = ["m:b={2,1:(0,2,4),(1,3,5)}", "m:y=" + text]
        rc, doc, err = verify(annotate(d, save(d, [node("MatMul", ["a", "b"], ["y"], name="m")], x, {"y": [4, 4]}), 6, shards),
                              feed(d, x, 1))
        check("a sum, and a result on unequal groups %s" % shards, rc == 0, (rc, doc, err))


# operator: (inputs, weights, shape of the result, node, the sharded input, its axes that may be sharded)
RANDOM = {
    "Relu": ({"a": [8, 6]}, {}, [8, 6], lambda: node("Relu", ["a"], ["h"], name="n"), "a", (0, 1)),
    "Add": ({"a": [8, 6], "b": [8, 6]}, {}, [8, 6], lambda: node("Add", ["a", "b"], ["h"], name="n"), "a", (0, 1)),
    "Mul": ({"a": [7, 5], "b": [5]}, {}, [7, 5], lambda: node("Mul", ["a", "b"], ["h"], name="n"), "a", (0, 1)),
    "Sum": ({"a": [8, 1], "b": [1, 6], "c": [8, 6]}, {}, [8, 6], lambda: node("Sum", ["a", "b", "c"], ["h"], name="n"), "c", (0, 1)),
    "ReduceMean": ({"a": [8, 6, 4]}, {}, [8, 1, 4], lambda: node("ReduceMean", ["a", "k"], ["h"], name="n"), "a", (0, 2)),
    "ReduceMean of all axes": ({"a": [8, 6, 4]}, {}, [8, 1, 4], lambda: node("ReduceMean", ["a", "k"], ["h"], name="n"), "a", (0, 1, 2)),
    "ReduceMax": ({"a": [8, 6, 4]}, {}, [8, 1, 4], lambda: node("ReduceMax", ["a", "k"], ["h"], name="n"), "a", (0, 1)),
    "MatMul along the sum": ({"a": [8, 6]}, {"w": [6, 9]}, [8, 9], lambda: node("MatMul", ["a", "w"], ["h"], name="n"), "w", (0,)),
    "Softmax along its axis": ({"a": [8, 6]}, {}, [8, 6], lambda: node("Softmax", ["a"], ["h"], name="n", axis=1), "a", (1,)),
    "MatMul": ({"a": [8, 6]}, {"w": [6, 9]}, [8, 9], lambda: node("MatMul", ["a", "w"], ["h"], name="n"), "a", (0,)),
    "MatMul of weights": ({"a": [8, 6]}, {"w": [6, 9]}, [8, 9], lambda: node("MatMul", ["a", "w"], ["h"], name="n"), "w", (1,)),
    "Gemm": ({"a": [8, 6]}, {"w": [9, 6], "c": [9]}, [8, 9], lambda: node("Gemm", ["a", "w", "c"], ["h"], name="n", transB=1), "w", (0,)),
    "Softmax": ({"a": [8, 6]}, {}, [8, 6], lambda: node("Softmax", ["a"], ["h"], name="n", axis=1), "a", (0,)),
    "Transpose": ({"a": [8, 6]}, {}, [6, 8], lambda: node("Transpose", ["a"], ["h"], name="n", perm=[1, 0]), "a", (0, 1)),
}


def groups(rng, shards, devices):
    """Returns random devices for each shard, as text: mostly one, sometimes two."""
    found = []
    for _ in range(shards):
        members = sorted(rng.sample(range(devices), rng.choice((1, 1, 1, min(2, devices)))))
        found.append("(%s)" % ",".join(map(str, members)) if len(members) > 1 else str(members[0]))
    return ",".join(found)


def sharding(rng, shape, axes, devices):
    cuts = [1] * len(shape)
    for axis in rng.sample(axes, rng.randint(1, len(axes))):
        cuts[axis] = rng.randint(2, 4)
    return "{%s:%s}" % (",".join(map(str, cuts)), groups(rng, int(np.prod(cuts)), devices))


# Part 2: a random operator with random groups.
def draw(d, seed):
    rng = random.Random(seed)
    name = rng.choice(list(RANDOM))
    inputs, weights, result, make, which, axes = RANDOM[name]
    values = {k: np.random.default_rng(seed).standard_normal(s).astype("f4") for k, s in weights.items()}
    if name.startswith("Reduce"):
        values["k"] = np.array([1], "i8")
    path = save(d, [make(), node("Neg", ["h"], ["y"], name="next")], inputs, {"y": result}, values)
    devices = rng.randint(2, 4)
    shards = ["n:%s=%s" % (which, sharding(rng, {**inputs, **weights}[which], axes, devices))]
    if rng.random() < 0.5:
        shards.append("next:h=" + sharding(rng, result, (0, 1) if result[1] > 1 else (0,), devices))
    path = annotate(d, path, devices, shards)
    rc, doc, err = verify(path, feed(d, inputs, seed))
    done = os.path.join(d, "done.onnx")
    inferred = call("infer", path, "-o", done)[0] == 0 and call("check", done)[0] == 0 and verify(done, feed(d, inputs, seed))[0] == 0
    left = [
        r["reason"] for r in doc.get("replicated", [])
        if "along" not in name and "all axes" not in name and name != "ReduceMax" or r["reason"] != SEVERAL_SUMS
    ]
    check("draw %d: %s %s" % (seed, name, " ".join(shards)), rc == 0 and doc["ok"] and not left and inferred,
          (rc, doc.get("replicated"), inferred, err))


harness.run([fixed, joined, sums, reductions, *(("draw %d" % k, draw, SEED * 1000 + k) for k in range(DRAWS))])
harness.finish()
