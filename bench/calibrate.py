#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""calibrate - time of single nodes, operator by operator: the prediction from the measured topology of this machine, compared with runs
with one rank and one thread. Measurements and runs alternate, and the best round counts on both sides. Prints one line per figure: name,
predicted, measured, ratio, goal, ok or short. Options: folder of the build, rounds, seconds of each run."""
import json, os, sys, tempfile

import figures
from figures import make, say, tessera

if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]):
    figures.TESSERA = os.path.join(sys.argv.pop(1), "tessera")
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
SECONDS = sys.argv[2] if len(sys.argv) > 2 else "0.5"
TIME = 0.15  # largest relative error of a prediction

MAKE = r'''
import sys
import numpy as np, onnx
from onnx import TensorProto, helper
kinds = {"f4": TensorProto.FLOAT, "f2": TensorProto.FLOAT16, "i8": TensorProto.INT64, "i1": TensorProto.INT8, "u1": TensorProto.UINT8}
rng = np.random.default_rng(1)
def some(kind, *shape):
    if kind in ("i1", "u1"):
        return rng.integers(0, 100, shape).astype(kind)
    return rng.standard_normal(shape).astype(kind)
# name: operator, inputs by run (kind, shape), constants, outputs (kind), attributes, domain
CASES = {
    "MatMul 512x1024x4096": ("MatMul", [("f4", 512, 1024)], [some("f4", 1024, 4096)], "f4", {}),
    "MatMul 64x2048x2048": ("MatMul", [("f4", 64, 2048)], [some("f4", 2048, 2048)], "f4", {}),
    "8 MatMul 1x4096x4096": ("MatMul", [("f4", 1, 4096)], [some("f4", 4096, 4096) for _ in range(8)], "f4", {}),  # no cache holds them
    "MatMul 16 of 512x64x512": ("MatMul", [("f4", 16, 512, 64), ("f4", 16, 64, 512)], [], "f4", {}),
    "Gemm 256x1024x1024": ("Gemm", [("f4", 256, 1024)], [some("f4", 1024, 1024), some("f4", 1024)], "f4", {}),
    "Conv 3x3, 128 to 128, 56x56": ("Conv", [("f4", 1, 128, 56, 56)], [some("f4", 128, 128, 3, 3)], "f4", {"pads": [1] * 4}),
    "Conv 1x1, 256 to 256, 56x56": ("Conv", [("f4", 1, 256, 56, 56)], [some("f4", 256, 256, 1, 1)], "f4", {}),
    "Conv 3x3 in 256 groups, 56x56": ("Conv", [("f4", 1, 256, 56, 56)], [some("f4", 256, 1, 3, 3)], "f4", {"pads": [1] * 4, "group": 256}),
    "Softmax 4096x4096": ("Softmax", [("f4", 4096, 4096)], [], "f4", {}),
    "LayerNormalization 4096x2048": ("LayerNormalization", [("f4", 4096, 2048)], [some("f4", 2048), some("f4", 2048)], "f4", {}),
    "Gelu 4096x4096": ("Gelu", [("f4", 4096, 4096)], [], "f4", {}),
    "Add 4096x4096": ("Add", [("f4", 4096, 4096), ("f4", 4096, 4096)], [], "f4", {}),
    "Sigmoid 4096x4096": ("Sigmoid", [("f4", 4096, 4096)], [], "f4", {}),
    "Transpose 16x512x1024": ("Transpose", [("f4", 16, 512, 1024)], [], "f4", {"perm": [1, 0, 2]}),
    "ReduceMean 4096x4096": ("ReduceMean", [("f4", 4096, 4096)], [np.array([1], "i8")], "f4", {}),
    "MaxPool 2x2, 64, 224x224": ("MaxPool", [("f4", 4, 64, 224, 224)], [], "f4", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "MatMulInteger 512x1024x4096": ("MatMulInteger", [("u1", 512, 1024)], [some("i1", 1024, 4096)], "i4", {}),
    "MatMulNBits 1x4096x4096": ("MatMulNBits", [("f4", 1, 4096)], [some("u1", 4096, 128, 16), some("f4", 4096 * 128)], "f4",
                                  {"K": 4096, "N": 4096, "bits": 4, "block_size": 32}),
    "MatMulNBits 128x4096x4096": ("MatMulNBits", [("f4", 128, 4096)], [some("u1", 4096, 128, 16), some("f4", 4096 * 128)], "f4",
                                  {"K": 4096, "N": 4096, "bits": 4, "block_size": 32}),
    "MultiHeadAttention 1x512x1024": ("MultiHeadAttention", [("f4", 1, 512, 1024)] * 3, [], "f4", {"num_heads": 16}),
    "LSTM 64x16x128, 256": ("LSTM", [("f4", 64, 16, 128)], [some("f4", 1, 1024, 128), some("f4", 1, 1024, 256)], "f4",
                             {"hidden_size": 256}),
}
def make(folder):
    for i, (name, (op, runs, constants, out, attributes)) in enumerate(CASES.items()):
        domain = "com.microsoft" if op in ("MatMulNBits", "MultiHeadAttention") else ""
        inputs = [helper.make_tensor_value_info("x%d" % k, kinds[r[0]], list(r[1:])) for k, r in enumerate(runs)]
        weights = [onnx.numpy_helper.from_array(c, "w%d" % k) for k, c in enumerate(constants)]
        nodes = [helper.make_node(op, [v.name for v in inputs] + [w.name for w in weights], ["y"], name="n", domain=domain, **attributes)]
        if len(constants) == 8:  # one after the other
            nodes = [helper.make_node(op, ["y%d" % k if k else "x0", "w%d" % k], ["y%d" % (k + 1) if k < 7 else "y"], name="n%d" % k)
                     for k in range(8)]
        kind = {"f4": TensorProto.FLOAT, "i4": TensorProto.INT32}[out]
        graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", kind, None)], weights)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, ir_version=10, opset_imports=opsets), "%s/%d.onnx" % (folder, i))
        print(name)
make(sys.argv[1])
'''


def main(folder):
    names, here = make("-c", MAKE, folder).split("\n")[:-1], folder + "/here.json"
    said, took = [1e99] * len(names), [1e99] * len(names)
    for _ in range(ROUNDS):
        tessera("topology", "measure", "--devices", "cpu:1", "--threads", "1", "--seconds", "3", "--quiet", "-o", here)
        for i in range(len(names)):
            model = "%s/%d.onnx" % (folder, i)
            said[i] = min(said[i], 1e3 * json.loads(tessera("simulate", model, "--devices", here, "--json"))["seconds"])
            took[i] = min(took[i], json.loads(tessera("bench", model, "--threads", "1", "--seconds", SECONDS, "--json"))["run_ms"]["min"])
    for name, predicted, measured in zip(names, said, took):
        say("calibrate: " + name, "%.2f ms" % predicted, "%.2f ms" % measured, predicted / measured, TIME)


with tempfile.TemporaryDirectory(prefix="tessera-calibrate-") as d:
    main(d)
