#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two QuantizeLinear and DequantizeLinear pairs with different scales are merged into one

Rounding with scale 0.1 and then with 0.25 is replaced by rounding once with another scale. No element of the correct
result has the values that are returned.

Expected: multiples of 0.25: [0, 0, -0.25, -0.5, -0.5]
Actual: [-0.1, -0.1, -0.3, -0.4, -0.4]. With ORT_DISABLE_ALL the result is right.
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: double_qdq_merged.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [
    helper.make_node("QuantizeLinear", ["x", "s0", "zero"], ["q0"]),
    helper.make_node("DequantizeLinear", ["q0", "s0", "zero"], ["d0"]),
    helper.make_node("QuantizeLinear", ["d0", "s1", "zero"], ["q1"]),
    helper.make_node("DequantizeLinear", ["q1", "s1", "zero"], ["d1"]),
    helper.make_node("Neg", ["d1"], ["y"])
]
inputs, outputs = [value("x", TensorProto.FLOAT, [5])], [value("y", TensorProto.FLOAT, [5])]
constants = [constant("s0", np.float32(0.1)), constant("s1", np.float32(0.25)), constant("zero", np.int8(0))]
feeds = {"x": np.array([0.12, 0.13, 0.3, 0.37, 0.38], np.float32)}
expected = -np.array([0, 0, 0.25, 0.5, 0.5], np.float32)

graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
if len(sys.argv) > 1:
    onnx.save(model, sys.argv[1])

options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 4, 1
try:
    got = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    fixed = got.shape == expected.shape and np.array_equal(got, expected)
except Exception as error:
    got, fixed = error, False
print("onnxruntime", ort.__version__, "has the bug" if not fixed else "does not have the bug")
print("expected", expected.shape, expected.tolist(), "\ngot     ", got if isinstance(got, Exception) else (got.shape, got.tolist()))
sys.exit(not fixed)
