# SPDX-License-Identifier: Apache-2.0
"""Tests a U-Net (convolutions, pooling, transposed convolution or interpolation, a skip connection) that is sharded in space.

Neighbours must exchange only the rows that they need (HaloExchange). Nothing may be gathered before the output.

usage: unet.py TESSERA"""
import json, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

import harness

TESSERA = sys.argv[1]
node = helper.make_node


def network(grow, rng):
    weights, nodes = {}, []

    def weight(name, *shape):
        weights[name] = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("f4")
        return name

    def conv(x, y, i, o, k=3):
        nodes.append(node("Conv", [x, weight("w" + y, o, i, k, k), weight("b" + y, o)], ["c" + y], name="conv_" + y, pads=[k // 2] * 4))
        nodes.append(node("Relu", ["c" + y], [y], name="relu_" + y))

    conv("x", "a", 3, 6)
    nodes.append(node("MaxPool", ["a"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]))
    conv("p", "b", 6, 8)
    if grow == "linear":
        weights["scales"] = np.array([1, 1, 2, 2], "f4")
        nodes.append(node("Resize", ["b", "", "scales"], ["grown"], name="grow", mode="linear"))
        conv("grown", "u", 8, 6, 1)
    else:
        k = int(grow)
        nodes.append(
            node("ConvTranspose", ["b", weight("wt", 8, 6, k, k), weight("bt", 6)], ["u"], name="grow", strides=[2, 2],
                 pads=[(k - 2) // 2] * 4))
    nodes.append(node("Concat", ["a", "u"], ["j"], name="join", axis=1))
    conv("j", "y", 12, 2)
    g = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", T.FLOAT, [1, 3, 24, 18])],
                          [helper.make_tensor_value_info("y", T.FLOAT, [1, 2, 24, 18])],
                          [numpy_helper.from_array(v, k) for k, v in weights.items()])
    return helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(d, grow, n, axis):
    cut = "{1,1,%s}" % ("%d,1" % n if axis == 2 else "1,%d" % n)
    for args in (["annotate", d + "/m.onnx", "--config", "c:%d" % n, "--shard", "conv_a:ca=" + cut, "-o", d + "/cut.onnx"],
                 ["infer", d + "/cut.onnx", "--propagate", "-o", d + "/all.onnx"]):
        rc, _, err = harness.call(TESSERA, *args)
        assert rc == 0, err
    rc, out, err = harness.call(TESSERA, "verify", d + "/all.onnx", "--inputs", "random:1", "--json")
    doc = json.loads(out) if out.startswith("{") else {}
    assert rc == 0 and doc["ok"], "%s in %d: exit %d %s %s" % (grow, n, rc, doc, err)
    assert doc["cut_nodes"] == doc["nodes"] and not doc["replicated"], doc
    assert set(doc["collectives"]) == {"HaloExchange", "Reshard"} and doc["collectives"]["Reshard"] == 1, doc["collectives"]


def upscaled(d, grow):
    onnx.save(network(grow, np.random.default_rng(3)), d + "/m.onnx")
    for n, axis in ((2, 2), (3, 3), (4, 2)):
        check(d, grow, n, axis)


harness.run([("upscaling %s" % grow, upscaled, grow) for grow in ("2", "4", "linear")])
harness.finish()
