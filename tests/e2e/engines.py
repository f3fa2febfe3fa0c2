# SPDX-License-Identifier: Apache-2.0
"""Tests models with newer operator sets than the engine supports.

Rank files use the lowest operator set with the same meaning. If there is none, one error names the operator and both versions.
Runs with any ONNX Runtime: TESSERA_ORT, as `make compat` sets it, or the usual one.

usage: engines.py TESSERA"""
import json, re, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

import harness

TESSERA = sys.argv[1]
rng = np.random.default_rng(5)
f4 = lambda *s: rng.standard_normal(s).astype("f4")


def save(path, nodes, inputs, outputs, weights, opset, ir=10):
    g = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(k, T.FLOAT, s) for k, s in inputs.items()],
                          [helper.make_tensor_value_info(k, T.FLOAT, s) for k, s in outputs.items()],
                          [numpy_helper.from_array(v, k) for k, v in weights.items()])
    onnx.save(helper.make_model(g, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir), path)


def opsets(parts, n):
    return {{o.domain: o.version for o in onnx.load("%s/rank%d.onnx" % (parts, r), load_external_data=False).opset_import}[""]
            for r in range(n)}


def lowered(d):
    """After operator set 18 these operators only got more types, so rank files must work with an engine of 2022."""
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["c", "to"], ["r"], name="reshape"),
        helper.make_node("Transpose", ["r"], ["t"], name="turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "w"], ["m"], name="mm"),
        helper.make_node("Cast", ["m"], ["m64"], name="cast", to=T.DOUBLE),
        helper.make_node("Cast", ["m64"], ["y"], name="back", to=T.FLOAT)
    ]
    weights = dict(k=f4(8, 3, 3, 3), w=f4(8, 6), to=np.array([2, 8, 16], np.int64))
    for opset in (21, 22, 23, 25):
        save(d + "/m.onnx", nodes, dict(x=[2, 3, 4, 4]), dict(y=[2, 16, 6]), weights, opset)
        rc, _, err = harness.call(TESSERA, "annotate", d + "/m.onnx", "--config", "c:2", "--shard", "mm:w={1,2}", "--shard",
                                  "conv:k={2,1,1,1}", "-o", d + "/cut.onnx")
        assert rc == 0, err
        rc, _, err = harness.call(TESSERA, "partition", d + "/cut.onnx", "-o", d + "/parts", "--force")
        assert rc == 0 and opsets(d + "/parts", 2) == {17}, (rc, err, opsets(d + "/parts", 2))
        rc, out, err = harness.call(TESSERA, "verify", d + "/cut.onnx", "--inputs", "random:1", "--json")
        assert rc == 0 and json.loads(out)["ok"], "opset %d: exit %d %s" % (opset, rc, err)


def kept(d):
    """Newer element types need the operator set that introduced them. A MaxPool with ceil_mode is written with explicit pads instead."""
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], name="cast", to=T.BFLOAT16),
        helper.make_node("Reshape", ["h", "to"], ["r"], name="reshape"),
        helper.make_node("Cast", ["r"], ["y"], name="back", to=T.FLOAT)
    ]
    save(d + "/m.onnx", nodes, dict(x=[4, 6]), dict(y=[6, 4]), dict(to=np.array([6, 4], np.int64)), 21)
    pool = [helper.make_node("MaxPool", ["x"], ["y"], name="pool", kernel_shape=[2], strides=[2], ceil_mode=1)]
    save(d + "/p.onnx", pool, dict(x=[2, 3, 7]), dict(y=[2, 3, 4]), {}, 22)
    for model, edit, want in ((d + "/m.onnx", "cast:x={2,1}", 21), (d + "/p.onnx", "pool:x={2,1,1}", 17)):
        rc, _, err = harness.call(TESSERA, "annotate", model, "--config", "c:2", "--shard", edit, "-o", d + "/cut.onnx")
        assert rc == 0, err
        rc, _, err = harness.call(TESSERA, "partition", d + "/cut.onnx", "-o", d + "/parts", "--force")
        assert rc == 0 and opsets(d + "/parts", 2) == {want}, (rc, err, opsets(d + "/parts", 2))


def refused(d):
    """For an operator that no lower set has, the error must name it, the set that it needs and the set that the engine supports."""
    rc, out, _ = harness.call(TESSERA, "doctor")
    version = re.search(r"ONNX Runtime\s+ok\s+(1\.\d+\.\d+)", out).group(1)
    new = int(version.split(".")[1]) >= 23
    node = helper.make_node("LinearAttention" if new else "Attention", ["x", "x", "x"], ["y"], name="attend", q_num_heads=2, kv_num_heads=2)
    opset = 27 if new else 23
    save(d + "/m.onnx", [node, helper.make_node("Relu", ["y"], ["z"], name="relu")], dict(x=[2, 3, 8]), dict(z=[2, 3, 8]), {}, opset)
    rc, _, err = harness.call(TESSERA, "annotate", d + "/m.onnx", "--config", "c:2", "--shard", "relu:y={2,1,1}", "-o", d + "/cut.onnx")
    assert rc == 0, err
    rc, _, err = harness.call(TESSERA, "partition", d + "/cut.onnx", "-o", d + "/parts")
    assert rc == 0 and opsets(d + "/parts", 2) == {opset}, err
    rc, _, err = harness.call(TESSERA, "run", d + "/parts", "--inputs", "random:1")
    words = ("engine-opset", "%s 'attend'" % node.op_type, "operator set", " %d" % opset, version)
    assert rc == 7 and all(w in err for w in words), "exit %d: %s" % (rc, err)
    assert re.search(r"supports operator set \d+ of ai.onnx at most, but this file needs %d" % opset, err), err
    rc, _, err = harness.call(TESSERA, "run", d + "/m.onnx", "--inputs", "random:1")
    assert rc == 7 and "engine-opset" in err, "whole: exit %d: %s" % (rc, err)


harness.run([lowered, kept, refused])
harness.finish()
