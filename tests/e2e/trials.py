# SPDX-License-Identifier: Apache-2.0
"""Tests `tessera verify --random`: models with random valid shardings are run and compared with the unsharded model.

The models are a transformer block with symbolic batch and length, a convolutional net and a mixture of experts; if a folder is given,
also every NAME/model.onnx in it. Also tested: the printed edits repeat a trial, one seed of `annotate --random` gives one sharding, and
`verify` names the first value that differs.

usage: trials.py TESSERA TRIALS [FOLDER]"""
import json, os, sys, tempfile

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

import harness

TESSERA = os.path.abspath(sys.argv[1])
TRIALS = int(sys.argv[2])
check = harness.check


def call(*args):
    return harness.call(TESSERA, *args, timeout=3600)


class Net:
    """Builds a graph node by node; all weights come from one random generator."""

    def __init__(self, seed):
        self.nodes, self.init, self.rng = [], [], np.random.default_rng(seed)

    def weight(self, *dims):
        return self.const((self.rng.standard_normal(dims) / max(1, dims[0]) ** 0.5).astype("f4"))

    def const(self, array):
        name = "w%d" % len(self.init)
        self.init.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *v):
        return self.const(np.array(v, "i8"))

    def __call__(self, op, *inputs, n=1, **attrs):
        outs = ["%s%d_%d" % (op.lower(), len(self.nodes), i) for i in range(n)]
        self.nodes.append(helper.make_node(op, list(inputs), outs, **attrs))
        return outs[0] if n == 1 else outs

    def model(self, inputs, outputs, opset=18):
        info = helper.make_tensor_value_info
        g = helper.make_graph(self.nodes, "made", [info(*i) for i in inputs], [info(o, t, None) for o, t in outputs], self.init)
        m = helper.make_model(g, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        m = onnx.shape_inference.infer_shapes(m)
        del m.graph.value_info[:]  # Tessera must infer the shapes
        return m


def transformer():
    """Two embedding lookups per token, one block with 4 heads of 8 elements and a causal mask, logits. Only the run knows the sizes."""
    f, heads, size = Net(1), 4, 8
    wide = heads * size
    shape = f("Shape", "ids")
    batch, length = f("Gather", shape, f.ints(0), axis=0), f("Gather", shape, f.ints(1), axis=0)
    x = f("Add", f("Gather", f.weight(40, wide), "ids"), f("Gather", f.weight(2, wide), "kinds"))
    h = f("LayerNormalization", x, f.weight(wide), f.weight(wide), axis=-1)
    split = f("Split", f("MatMul", h, f.weight(wide, 3 * wide)), f.ints(wide, wide, wide), axis=-1, n=3)
    to = f("Concat", batch, length, f.ints(heads), f.ints(size), axis=0)
    q, k, v = [f("Transpose", f("Reshape", s, to), perm=[0, 2, 1, 3]) for s in split]
    scores = f("Mul", f("MatMul", q, f("Transpose", k, perm=[0, 1, 3, 2])), f.const(np.float32(size ** -0.5)))
    zero, one = f.const(np.int64(0)), f.const(np.int64(1))
    steps = f("Range", zero, f("Squeeze", length, f.ints(0)), one)
    later = f("Greater", f("Unsqueeze", steps, f.ints(0)), f("Unsqueeze", steps, f.ints(1)))
    scores = f("Where", later, f.const(np.float32(-1e9)), scores)
    y = f("MatMul", f("Softmax", scores, axis=-1), v)
    y = f("Reshape", f("Transpose", y, perm=[0, 2, 1, 3]), f("Concat", batch, length, f.ints(wide), axis=0))
    x = f("Add", x, f("MatMul", y, f.weight(wide, wide)))
    rms = f("Sqrt", f("Add", f("ReduceMean", f("Mul", x, x), f.ints(-1)), f.const(np.float32(1e-6))))
    h = f("Mul", f("Div", x, rms), f.weight(wide))
    up, gate = f("MatMul", h, f.weight(wide, 48)), f("MatMul", h, f.weight(wide, 48))
    x = f("Add", x, f("MatMul", f("Mul", up, f("Sigmoid", gate)), f.weight(48, wide)))
    logits = f("MatMul", x, f.weight(wide, 40))
    flat = f("Reshape", logits, f.ints(-1, 40))
    m = f.model([("ids", T.INT64, ["batch", "length"]), ("kinds", T.INT64, ["batch", "length"])], [(logits, T.FLOAT), (flat, T.FLOAT)])
    r = np.random.default_rng(2)
    return m, {"ids": r.integers(0, 40, (2, 5)), "kinds": r.integers(0, 2, (2, 5))}


def images():
    """Convolutions with padding, stride, groups and normalization, pooling, a classifier."""
    f = Net(3)
    x = f("Relu", f("Conv", "image", f.weight(8, 3, 3, 3), f.weight(8), pads=[1, 1, 1, 1]))
    scale = [f.weight(8), f.weight(8), f.weight(8), f.const(np.abs(f.rng.standard_normal(8)).astype("f4") + 1)]
    x = f("BatchNormalization", x, *scale)
    y = f("Conv", x, f.weight(8, 4, 3, 3), f.weight(8), pads=[1, 1, 1, 1], group=2)
    x = f("Add", x, f("Clip", y, f.const(np.float32(-2)), f.const(np.float32(2))))
    x = f("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = f("Conv", x, f.weight(12, 8, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    x = f("Concat", x, f("Relu", x), axis=1)
    x = f("Pad", x, f.ints(0, 0, 1, 1, 0, 0, 0, 0))
    y = f("AveragePool", x, kernel_shape=[2, 2])
    x = f("Slice", y, f.ints(1, 0), f.ints(23, 3), f.ints(1, 2))
    x = f("Flatten", f("ReduceMean", x, f.ints(2, 3)), axis=1)
    x = f("Gemm", x, f.weight(10, 22), f.weight(10), transB=1)
    m = f.model([("image", T.FLOAT, ["batch", 3, 12, 12])], [(x, T.FLOAT)])
    return m, {"image": np.random.default_rng(4).standard_normal((3, 3, 12, 12)).astype("f4")}


def experts():
    """A router selects 2 of 4 experts per token. Their weights are gathered, and their results are summed with the router's weights."""
    f = Net(5)
    p = f("Softmax", f("MatMul", "x", f.weight(12, 4)), axis=-1)
    top, which = f("TopK", p, f.ints(2), axis=-1, n=2)
    top = f("Div", top, f("ReduceSum", top, f.ints(-1)))
    w = f("Gather", f.weight(4, 12, 16), which, axis=0)
    h = f("MatMul", f("Unsqueeze", f("Unsqueeze", "x", f.ints(1)), f.ints(1)), w)
    h = f("Mul", h, f("Sigmoid", h))
    y = f("Squeeze", f("MatMul", h, f("Gather", f.weight(4, 16, 12), which, axis=0)), f.ints(2))
    y = f("ReduceSum", f("Mul", y, f("Unsqueeze", top, f.ints(2))), f.ints(1), keepdims=0)
    best = f("ArgMax", p, axis=-1, keepdims=0)
    one = f("OneHot", best, f.const(np.int64(4)), f.const(np.array([0, 1], "f4")), axis=-1)
    count = f("ReduceSum", one, f.ints(0), keepdims=0)
    m = f.model([("x", T.FLOAT, ["tokens", 12])], [(f("Add", "x", y), T.FLOAT), (count, T.FLOAT), (best, T.INT64)])
    return m, {"x": np.random.default_rng(6).standard_normal((7, 12)).astype("f4")}


def check_trials(name, rc, doc, err, cut=4):
    trials = doc.get("trials", []) if doc else []
    bad = [t for t in trials if not t["ok"] or t["recorded"] is False]
    check(name, rc == 0 and doc and doc["ok"] and len(trials) == TRIALS and not bad,
          "exit %d: %s %s" % (rc, err, [t["status"] for t in bad][:3]))
    check(name + ": all different", len({json.dumps(t["sharding"]) for t in trials}) == TRIALS)
    nodes = sum(t["nodes"] for t in trials)
    check(name + ": cut", trials and sum(t["cut_nodes"] for t in trials) > nodes * cut // 10,
          [(t["cut_nodes"], t["nodes"]) for t in trials])
    return trials


def repeat(d, path, set_, devices, trial):
    """The edits of a trial must make a model that passes check and verify and has the same collectives."""
    script, again = os.path.join(d, "edits"), os.path.join(d, "again.onnx")
    open(script, "w").write("\n".join(trial["sharding"]) + "\n")
    rc, _, err = call("annotate", path, "--script", script, "-o", again)
    check("repeat: edits", rc == 0, err)
    rc, out, err = call("check", again, "--json")
    check("repeat: check", rc == 0 and json.loads(out)["errors"] == 0, out + err)
    rc, out, err = call("verify", again, "--inputs", set_, "--json")
    check("repeat: the same cut", rc == 0 and json.loads(out)["collectives"] == trial["collectives"], err)


# The same seed must give the same bytes, another seed another sharding.
def seeds(d, path):
    made = [os.path.join(d, "seed%d.onnx" % i) for i in range(3)]
    for at, seed in zip(made, (7, 7, 8)):
        rc, _, err = call("annotate", path, "--config", "r:4", "--dim", "batch=2", "--random", seed, "-o", at)
        check("seed %d" % seed, rc == 0, err)
    a, b, c = [open(at, "rb").read() for at in made]
    check("one seed, one sharding", a == b and a != c)
    rc, _, err = call("annotate", path, "--config", "r:4", "--random", "x", "-o", os.path.join(d, "no.onnx"))
    check("a seed is a number", rc == 2, err)
    rc, _, err = call("verify", path, "--random", 1)
    check("for how many devices?", rc == 2 and "config-choice" in err, "%d %s" % (rc, err))


def first_difference(d):
    """Sums in another order differ in their last digits. With a smaller tolerance verify must name the first value that differs."""
    f = Net(8)
    y = f("MatMul", "x", f.weight(96, 6))
    z = f("Tanh", f("Mul", y, f.weight(6)))
    path, cut = os.path.join(d, "sums.onnx"), os.path.join(d, "sums_cut.onnx")
    onnx.save(f.model([("x", T.FLOAT, ["batch", 96])], [(z, T.FLOAT)]), path)
    rc, _, err = call("annotate", path, "--config", "c:3", "--shard", "%s:w0={3,1:0,1,2}" % y, "-o", cut)
    check("sums: annotated", rc == 0, err)
    words = ["--inputs", "random:1,x:32x96", "--tolerance", "1e-12"]
    rc, out, err = call("verify", cut, *words, "--json")
    doc = json.loads(out)
    check("sums: differs", rc == 1 and doc["ok"] is False and "verify-first" in err, "%d %s" % (rc, err))
    first = doc.get("first", {})
    check("sums: first difference", (first.get("value"), first.get("op"), first.get("node_index")) == (y, "MatMul", 0), first)
    f = Net(9)  # a product of two vectors can only be sharded along its sum
    onnx.save(f.model([("x", T.FLOAT, [1, 999])], [(f("Tanh", f("MatMul", "x", f.weight(999, 1))), T.FLOAT)]), path)
    words[1] = "random:1"
    rc, out, err = call("verify", path, *words, "--devices", 2, "--random", 8, "--json")
    bad = [t for t in json.loads(out)["trials"] if not t["ok"]]
    check("sums: trials", rc == 1 and bad and all(t["first"]["value"] and t["sharding"] for t in bad), err)
    rc, out, err = call("verify", path, *words, "--devices", 2, "--random", 8)
    check("sums: edits are printed", rc == 1 and "--config random:2" in out and "--shard" in out and "FAIL" in out, out)


def rests(d):
    """A symbolic axis is sharded in 2, then in 6. Shards of shards equal the new shards for some lengths only; every length must be
    right."""
    f = Net(9)
    y = f("Relu", "x")
    z = f("Neg", y)
    path, cut = os.path.join(d, "rests.onnx"), os.path.join(d, "rests_cut.onnx")
    onnx.save(f.model([("x", T.FLOAT, ["length", 12])], [(z, T.FLOAT)]), path)
    rc, _, err = call("annotate", path, "--config", "c:6", "--shard", "%s:x={2,3:0,1,2,3,4,5}" % y, "--shard",
                      "%s:%s={6,1:0,1,2,3,4,5}" % (z, y), "-o", cut)
    check("rests: annotated", rc == 0, err)
    for n in range(6, 18):
        rc, _, err = call("verify", cut, "--inputs", "random:1,x:%dx12" % n, "--json")
        check("rests: length %d" % n, rc == 0, err)


def annotated_run(d, path, set_):
    """`run` partitions a model with a configuration. The outputs must be those of the unsharded model."""
    at, ours, whole = [os.path.join(d, n) for n in ("run.onnx", "ours.npz", "whole.npz")]
    call("annotate", path, "--config", "r:3", "--random", 4, "-o", at)
    for m, out in (at, ours), (path, whole):
        rc, _, err = call("run", m, "--inputs", set_, "--outputs", out)
        check("run %s" % os.path.basename(m), rc == 0, err)
    a, b = np.load(ours), np.load(whole)
    check("run: the same", all(np.abs(a[k] - b[k]).max() <= 5e-5 * np.abs(b[k]).max() for k in b.files))
    rc, _, err = call("run", at, "--config", "none", "--inputs", set_)
    check("run: no such configuration", rc == 1 and "none" in err, err)
    os.environ.update(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="1")
    rc, _, err = call("run", at, "--inputs", set_)
    del os.environ["OMPI_COMM_WORLD_RANK"], os.environ["OMPI_COMM_WORLD_SIZE"]
    check("run: as many ranks as devices", rc != 0 and ("has 3 ranks" in err or "MPI" in err), "%d %s" % (rc, err))


def main():
    with tempfile.TemporaryDirectory(prefix="tessera-trials-") as d:
        for make in transformer, images, experts:
            model, inputs = make()
            path, set_ = os.path.join(d, make.__name__ + ".onnx"), os.path.join(d, make.__name__ + ".npz")
            onnx.save(model, path)
            np.savez(set_, **inputs)
            for n in (2, 3, 4) if TRIALS < 50 else (2, 3, 4, 5, 6, 8):
                rc, out, err = call("verify", path, "--devices", n, "--random", TRIALS, "--seed", 100 * n, "--inputs", set_, "--json")
                trials = check_trials("%s on %d" % (make.__name__, n), rc, json.loads(out) if out else None, err)
                if n == 4 and trials:
                    repeat(d, path, set_, n, trials[0])
            if make is transformer:
                seeds(d, path)
                annotated_run(d, path, set_)
                first_difference(d)
                rests(d)
        folder = sys.argv[3] if len(sys.argv) > 3 else None
        for name in sorted(os.listdir(folder)) if folder else []:
            path, set_ = os.path.join(folder, name, "model.onnx"), os.path.join(folder, name, "test_data_set_0")
            for n in (2, 3, 4, 6, 8) if os.path.exists(path) else ():
                rc, out, err = call("verify", path, "--devices", n, "--random", TRIALS, "--seed", 1000 * n, "--inputs", set_, "--json")
                if rc == 7 and "verify-reference" in err:
                    harness.skip("%s on %d" % (name, n), "ONNX Runtime refuses the unsharded model")
                    continue
                check_trials("%s on %d" % (name, n), rc, json.loads(out) if out else None, err, 2)
    harness.finish()


main()
