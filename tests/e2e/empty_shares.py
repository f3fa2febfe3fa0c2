# SPDX-License-Identifier: Apache-2.0
"""Unequal shards of fewer elements than units: `{8,1:0,0,0,0,0,1,2,2}` of two rows. Some devices have no row, or no window of a pool or a
frame of a signal. Shardings are random; each must be accepted and give the unsharded result.

usage: empty_shares.py TESSERA [all]     without `all` a few shardings of each node"""
import json
import random
import sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

import harness

TESSERA = sys.argv[1]
TRIALS = 40 if harness.ALL else 5
node = helper.make_node


def nodes(size, rng):
    """[(node, shape of x, sharded axis, constants)]"""
    weights = np.random.default_rng(size)
    w = lambda *shape: weights.standard_normal(shape).astype("f4")
    window = rng.choice([1, min(2, size), min(3, size)])
    return [(node("Relu", ["x"], ["y"]), [size, 3], 0, {}), (node("Softmax", ["x"], ["y"], axis=1), [2, size], 1, {}),
            (node("ReduceSum", ["x", "a"], ["y"]), [size, 3], 0, {"a": np.array([0])}),
            (node("MatMul", ["x", "w"], ["y"]), [3, size], 1, {"w": w(size, 2)}),
            (node("MatMul", ["x", "w"], ["y"]), [size, 3], 0, {"w": w(3, 2)}),
            (node("Concat", ["x", "w"], ["y"], axis=1), [size, 2], 0, {"w": w(size, 3)}),
            (node("AveragePool", ["x"], ["y"], kernel_shape=[window], strides=[rng.choice([1, 2])]), [1, 2, size], 2, {}),
            (node("MaxPool", ["x"], ["y"], kernel_shape=[window], strides=[2], pads=[window - 1, 0], ceil_mode=1), [1, 2, size], 2, {}),
            (node("Conv", ["x", "w"], ["y"]), [1, 2, size], 2, {"w": w(3, 2, window)}),
            (node("STFT", ["x", "step", "", "n"], ["y"], onesided=0), [1, 4 * size, 1], 1, {"step": np.array(4),
                                                                                            "n": np.array(4 * window)})]


def sharding(rng, rank, axis):
    """Runs of adjacent shards, each on one device."""
    owners = [d for d in rng.sample(range(4), rng.randint(2, 4)) for _ in range(rng.choice([1, 1, 2, 3, 5]))]
    return "{%s:%s}" % (",".join(str(len(owners)) if k == axis else "1" for k in range(rank)), ",".join(map(str, owners)))


def right(folder, seed, which, sized):
    rng = random.Random("%d %d" % (seed, which))
    size = rng.choice([1, 2, 3, 4])
    made, shape, axis, constants = nodes(size, rng)[which]
    made.name = "n"
    dims = ["s" if not sized and k == axis and "w" not in constants else d for k, d in enumerate(shape)]
    graph = helper.make_graph([made], "g", [helper.make_tensor_value_info("x", T.FLOAT, dims)], [helper.make_empty_tensor_value_info("y")],
                              [numpy_helper.from_array(a, n) for n, a in constants.items()])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), folder + "/m.onnx")
    np.savez(folder + "/in.npz", x=np.random.default_rng(seed).standard_normal(shape).astype("f4"))
    text = sharding(rng, len(shape), axis)
    harness.good(TESSERA, "annotate", folder + "/m.onnx", "--config", "c:4", "--shard", "n:x=" + text, "-o", folder + "/cut.onnx")
    code, out, err = harness.call(TESSERA, "check", "--json", folder + "/cut.onnx")
    assert code == 0, (made.op_type, shape, text, out)
    code, out, err = harness.call(TESSERA, "verify", folder + "/cut.onnx", "--inputs", folder + "/in.npz", "--json", "--allow-unsharded")
    assert code == 0 and json.loads(out)["ok"], (made.op_type, shape, text, out, err)


harness.run([("%s %d, %s, seed %d" % (made[0].op_type, which, "static" if sized else "symbolic", seed), right, seed, which, sized)
             for which, made in enumerate(nodes(2, random.Random(1))) for seed in range(TRIALS) for sized in (True, False)])
harness.finish()
