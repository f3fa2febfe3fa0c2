# SPDX-License-Identifier: Apache-2.0
"""Tests nodes that exporters, quantizers and ONNX Runtime's optimizer write: packed weights that ranks cannot share, values of unknown
element type, CNNs in blocked layout, quantized Gemm, tree ensembles, data files of branches.

usage: exported.py TESSERA"""
import json, os, platform, sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T, helper, numpy_helper

import harness

TESSERA = sys.argv[1]
rng = np.random.default_rng(5)


def save(path, nodes, inputs, outputs, weights, domains=("com.microsoft",)):
    types = {np.dtype("f4"): T.FLOAT, np.dtype("i1"): T.INT8, np.dtype("u1"): T.UINT8}
    info = lambda named: [helper.make_tensor_value_info(k, types[np.dtype(t)], s) for k, (t, s) in named.items()]
    graph = helper.make_graph(nodes, "g", info(inputs), info(outputs), [numpy_helper.from_array(v, k) for k, v in weights.items()])
    opsets = [helper.make_opsetid("", 17)] + [helper.make_opsetid(d, 1) for d in domains]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def tessera(*words, want=0):
    rc, out, err = harness.call(TESSERA, *words)
    assert rc == want, "exit %d: %s %s" % (rc, out[-600:], err[-1200:])
    return out, err


def annotate(path, *edits):
    tessera("annotate", path, *edits, "-o", path[:-5] + ".cut.onnx")
    return path[:-5] + ".cut.onnx"


def packs_symmetric_weights():
    """True if ONNX Runtime uses the kernel that cannot share its packed weights: on x86 with AVX2 (seen with 1.31)."""
    if platform.machine() != "x86_64":
        return False
    with open("/proc/cpuinfo") as f:
        return " avx2 " in f.read()


def unshared_packing(d):
    """int8 weights with zero point 0: ranks that are threads cannot share the packed weights. verify must report that once and be right."""
    scale, zero = np.float32(0.02), np.uint8(7)
    weights = dict(xs=scale, xz=zero, w=rng.integers(-90, 90, (32, 32, 3, 3)).astype("i1"), ws=scale, wz=np.int8(0), ys=np.float32(0.3),
                   yz=zero)
    node = helper.make_node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], name="conv", pads=[1, 1, 1, 1])
    path = save(d + "/q.onnx", [node], dict(x=("u1", (4, 32, 8, 8))), dict(y=("u1", (4, 32, 8, 8))), weights)
    cut = annotate(path, "--config", "c:2", "--shard", "conv:x={2,1,1,1:0,1}", "--shard", "conv:y={2,1,1,1:0,1}")
    _, err = tessera("verify", cut, "--verbose")
    if packs_symmetric_weights():
        assert err.count("packed-unshared") == 1, err
    tessera("verify", cut, "--transport", "shm")


def unknown_type(d):
    """com.microsoft Inverse has no rule, and the model does not declare its result's type. The Reshape adds a shape but no type."""
    nodes = [
        helper.make_node("Inverse", ["x"], ["i"], name="inverse", domain="com.microsoft"),
        helper.make_node("Reshape", ["i", "shape"], ["r"], name="reshape"),
        helper.make_node("Tanh", ["r"], ["t"], name="tanh"),
        helper.make_node("Mul", ["t", "t"], ["y"], name="mul")
    ]
    eye = np.eye(4, dtype="f4")[None].repeat(6, 0) * 2 + rng.standard_normal((6, 4, 4)).astype("f4") / 9
    path = save(d + "/u.onnx", nodes, dict(x=("f4", (6, 4, 4))), dict(y=("f4", (6, 4, 4))), dict(shape=np.array([6, 4, 4])))
    np.savez(d + "/u.npz", x=eye)
    cut = annotate(path, "--config", "c:3", "--tile", "t={3,1,1:0,1,2}")
    said = "".join(tessera("check", cut))
    assert "not-cut-here" in said and "element type" in said, said
    out, _ = tessera("verify", cut, "--inputs", d + "/u.npz", "--json")
    assert json.loads(out)["ok"]
    tessera("verify", path, "--devices", "3", "--inputs", d + "/u.npz", "--random", "12")
    staged = annotate(path, "--config", "c:2", "--stage", "inverse=0", "--stage", "reshape=0", "--stage", "tanh=1", "--stage", "mul=1")
    _, err = tessera("partition", staged, "-o", d + "/never", want=5)
    assert "partition-no-tensor" in err and not os.path.exists(d + "/never"), err


def untyped_by_hand(d):
    """Operators without a rule, sharded by hand. The value between them is not communicated, so its unknown type must not matter."""
    nodes = [
        helper.make_node("Inverse", ["x"], ["i"], name="a", domain="com.microsoft"),
        helper.make_node("Inverse", ["i"], ["y"], name="b", domain="com.microsoft")
    ]
    path = save(d + "/h.onnx", nodes, dict(x=("f4", (6, 4, 4))), dict(y=("f4", (6, 4, 4))), {})
    np.savez(d + "/h.npz", x=np.eye(4, dtype="f4")[None].repeat(6, 0) * 2 + rng.standard_normal((6, 4, 4)).astype("f4") / 9)
    edits = [w for v in ("a:x", "a:i", "b:i", "b:y") for w in ("--shard", v + "={3,1,1:0,1,2}")]
    out, _ = tessera("verify", annotate(path, "--config", "c:3", *edits), "--inputs", d + "/h.npz", "--json")
    assert json.loads(out)["ok"] and json.loads(out)["cut_nodes"] == 2, out


def blocked_layout(d):
    """A CNN as ONNX Runtime writes it at its highest optimization level (com.microsoft.nchwc). Its batch must be sharded."""
    f4 = lambda *s: rng.standard_normal(s).astype("f4") / 4
    weights = dict(a=f4(32, 16, 3, 3), ab=f4(32), b=f4(32, 32, 3, 3), bb=f4(32), w=f4(32, 10))
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "a", "ab"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["m", "b", "bb"], ["e"], pads=[1, 1, 1, 1]),
        node("Add", ["e", "m"], ["s"]),
        node("Relu", ["s"], ["t"]),
        node("GlobalAveragePool", ["t"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("MatMul", ["f", "w"], ["y"])
    ]
    path = save(d + "/cnn.onnx", nodes, dict(x=("f4", (6, 16, 12, 12))), dict(y=("f4", (6, 10))), weights)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = d + "/level99.onnx"
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    if not any(n.domain == "com.microsoft.nchwc" for n in onnx.load(d + "/level99.onnx").graph.node):
        return "ONNX Runtime has no blocked layout for this CPU"
    out, _ = tessera("verify", d + "/level99.onnx", "--devices", "3", "--random", "10", "--json")
    trials = json.loads(out)["trials"]
    assert all(t["ok"] for t in trials) and max(t["cut_nodes"] for t in trials) > 3, [t["cut_nodes"] for t in trials]


def domain_not_imported(d):
    """ONNX Runtime runs a model that does not import com.microsoft. The rules must apply, and wrong shardings must be refused or
    ignored."""
    nodes = [
        helper.make_node("QuickGelu", ["x"], ["q"], name="gelu", domain="com.microsoft"),
        helper.make_node("Tanh", ["q"], ["y"], name="tanh")
    ]
    path = save(d + "/n.onnx", nodes, dict(x=("f4", (6, 4))), dict(y=("f4", (6, 4))), {}, domains=())
    out, _ = tessera("verify", annotate(path, "--config", "c:2", "--tile", "q={2,1:0,1}"), "--json")
    assert json.loads(out)["ok"] and json.loads(out)["cut_nodes"] == 2, out
    staged = annotate(path, "--config", "c:2", "--stage", "gelu=0", "--stage", "tanh=1")
    assert json.loads(tessera("verify", staged, "--json")[0])["ok"]
    crossed = annotate(path, "--config", "c:2", "--shard", "gelu:x={2,1:0,1}", "--shard", "gelu:q={1,2:0,1}")
    rc, out, err = harness.call(TESSERA, "verify", crossed, "--json")
    assert rc == 2 or json.loads(out)["ok"], "exit %d: %s %s" % (rc, out, err)


def said_of_nodes(d):
    """check must explain why a node of the blocked layout is not sharded. The output type of com.microsoft QLinearConv is its last zero
    point's."""
    pool = helper.make_node("MaxPool", ["x"], ["y"], name="pool", domain="com.microsoft.nchwc", kernel_shape=[2, 2], strides=[2, 2])
    path = save(d + "/p.onnx", [pool], dict(x=("f4", (4, 32, 6, 6))), dict(y=("f4", (4, 32, 3, 3))), {}, domains=("com.microsoft.nchwc",))
    said = "".join(tessera("check", annotate(path, "--config", "c:2", "--shard", "pool:x={1,1,2,1:0,1}")))
    assert "not-cut-here" in said and "operator's rule does not shard" in said, said
    weights = dict(s=np.float32(0.02), xz=np.uint8(7), w=rng.integers(-90, 90, (8, 8, 1, 1)).astype("i1"), z=np.int8(0))
    conv = helper.make_node("QLinearConv", ["x", "s", "xz", "w", "s", "z", "s", "z"], ["q"], name="conv", domain="com.microsoft",
                            channels_last=1)
    path = save(d + "/q.onnx", [conv, helper.make_node("Identity", ["q"], ["y"])], dict(x=("u1", (4, 5, 5, 8))),
                dict(y=("i1", (4, 5, 5, 8))), weights)
    tessera("shapes", path, "-o", d + "/shaped.onnx")
    types = {v.name: v.type.tensor_type.elem_type for v in onnx.load(d + "/shaped.onnx").graph.value_info}
    assert types["q"] == T.INT8, types


def quantized_gemm(d):
    """com.microsoft QGemm: rows or columns are sharded."""
    scale, zero = np.float32(0.02), np.uint8(120)
    weights = dict(xs=scale, xz=zero, w=rng.integers(-90, 90, (12, 16)).astype("i1"), ws=scale, wz=np.int8(0),
                   b=rng.integers(-500, 500, 12).astype("i4"), ys=np.float32(0.3), yz=np.uint8(99))
    gemm = helper.make_node("QGemm", ["x", "xs", "xz", "w", "ws", "wz", "b", "ys", "yz"], ["q"], name="gemm", domain="com.microsoft",
                            transB=1)
    nodes = [gemm, helper.make_node("DequantizeLinear", ["q", "ys", "yz"], ["y"], name="dequantize")]
    path = save(d + "/g.onnx", nodes, dict(x=("u1", (6, 16))), dict(y=("f4", (6, 12))), weights)
    for sharding in ("{3,1:0,1,2}", "{1,3:0,1,2}"):
        out, _ = tessera("verify", annotate(path, "--config", "c:3", "--tile", "q=" + sharding), "--json")
        assert json.loads(out)["ok"] and json.loads(out)["cut_nodes"] == 2, out


def forest(d):
    """100 trees of depth 6 for 20,000 rows take about 80 ms, so plans must shard the rows."""
    inner, ids, trees = 63, range(127), 100
    features, splits = rng.integers(0, 8, 127 * trees), rng.standard_normal(127 * trees)
    leaves = [(t, i) for t in range(trees) for i in ids if i >= inner]
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], name="forest", domain="ai.onnx.ml", n_targets=1,
                            nodes_treeids=[t for t in range(trees)
                                           for _ in ids], nodes_nodeids=list(ids) * trees, nodes_featureids=features.tolist(),
                            nodes_values=splits.tolist(), nodes_modes=["BRANCH_LEQ" if i < inner else "LEAF" for i in ids] * trees,
                            nodes_truenodeids=[2 * i + 1 if i < inner else 0 for i in ids] * trees,
                            nodes_falsenodeids=[2 * i + 2 if i < inner else 0 for i in ids] * trees, target_treeids=[t for t, _ in leaves],
                            target_nodeids=[i for _, i in leaves
                                            ], target_ids=[0] * len(leaves), target_weights=rng.standard_normal(len(leaves)).tolist())
    path = save(d + "/f.onnx", [node], dict(x=("f4", (20000, 8))), dict(y=("f4", (20000, 1))), {}, domains=("ai.onnx.ml",))
    out, _ = tessera("plan", path, "--devices", "2", "--json")
    seconds = json.loads(out)["milliseconds"] / 1000
    assert 0.01 < seconds < 0.2, seconds
    out, _ = tessera("verify", path, "--devices", "2", "--json")
    assert json.loads(out)["ok"] and json.loads(out)["cut_nodes"] == 1, out


def data_of_a_branch(d):
    """A constant of a branch is in a data file. Rank files must contain it. If the file is missing, the error must name it."""
    node = lambda op, ins, out: helper.make_node(op, ins, [out])
    graph = lambda name, nodes, out, weights=(): helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(out, T.FLOAT, None)],
                                                                   weights)
    weight = numpy_helper.from_array(rng.standard_normal((64, 64)).astype("f4"), "w")
    with open(d + "/w.data", "wb") as f:
        f.write(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = T.EXTERNAL
    for key, value in (("location", "w.data"), ("offset", "0"), ("length", str(64 * 64 * 4))):
        weight.external_data.add(key=key, value=value)
    branch = helper.make_node("If", ["c"], ["y"], name="if", then_branch=graph("t", [node("MatMul", ["x", "w"], "t")], "t", [weight]),
                              else_branch=graph("e", [node("Relu", ["x"], "e")], "e"))
    info = lambda name, kind, shape: helper.make_tensor_value_info(name, kind, shape)
    main = helper.make_graph([branch], "g", [info("c", T.BOOL, []), info("x", T.FLOAT, [8, 64])], [info("y", T.FLOAT, [8, 64])])
    path = d + "/b.onnx"
    with open(path, "wb") as f:
        f.write(helper.make_model(main, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString())
    np.savez(d + "/in.npz", c=np.array(True), x=rng.standard_normal((8, 64)).astype("f4"))
    tessera("verify", path, "--devices", "2", "--allow-unsharded", "--inputs", d + "/in.npz")
    tessera("verify", annotate(path, "--config", "c:2", "--shard", "if > then_branch > #0:w={1,2:0,1}"), "--inputs", d + "/in.npz")
    os.remove(d + "/w.data")
    for words in (("run", path), ("run", path, "--devices", "2"), ("verify", path, "--devices", "2", "--allow-unsharded"),
                  ("partition", path, "--devices", "2", "-o", d + "/p")):
        _, err = tessera(*words, want=3)
        assert "w.data" in err, err
    assert not os.path.exists(d + "/p")


harness.run([data_of_a_branch, unshared_packing, unknown_type, untyped_by_hand, blocked_layout, domain_not_imported, said_of_nodes,
             quantized_gemm, forest])
harness.finish()
