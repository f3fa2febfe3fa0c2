#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Normalizer (L2) loses signs if its result is placed over its input

The kernel may run in place. Apparently it writes to the output before it has read the signs of the input.
Optimization does not matter; the script disables it.

Expected: x / norm(x) for each row
Actual: [[-0.33, -0.67, -0.67], [-0.6, 0, -0.8]]: all signs are equal
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: normalizer_in_place.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [helper.make_node("Neg", ["x"], ["h"]), helper.make_node("Normalizer", ["h"], ["m"], domain="ai.onnx.ml", norm="L2"),
         helper.make_node("Neg", ["m"], ["y"])]
inputs, outputs, constants = [value("x", TensorProto.FLOAT, [2, 3])], [value("y", TensorProto.FLOAT, [2, 3])], []
known = [value(n, TensorProto.FLOAT, [2, 3]) for n in ("h", "m")]  # sizes that the memory planner needs to reuse a buffer
feeds = {"x": np.array([[1, -2, 2], [3, 0, -4]], np.float32)}
expected = feeds["x"] / np.linalg.norm(feeds["x"], axis=1, keepdims=True)

graph = helper.make_graph(nodes, "g", inputs, outputs, constants, value_info=known)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)], ir_version=8)
if len(sys.argv) > 1:
    onnx.save(model, sys.argv[1])

options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 4, 1
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
try:
    got = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    fixed = got.shape == expected.shape and np.allclose(got, expected, atol=1e-5)
except Exception as error:
    got, fixed = error, False
print("onnxruntime", ort.__version__, "has the bug" if not fixed else "does not have the bug")
print("expected", expected.shape, expected.tolist(), "\ngot     ", got if isinstance(got, Exception) else (got.shape, got.tolist()))
sys.exit(not fixed)
