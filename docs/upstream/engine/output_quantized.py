#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model output is quantized because a Transpose behind it is

A value is a model output and is also read by Transpose, QuantizeLinear, DequantizeLinear. From optimization level 1
on, the pair is moved in front of the Transpose and the output is replaced by the quantized value.

Expected: -x = [[-0.1, -0.2], [-0.3, -0.4]]
Actual: [[0, 0], [-0.5, -0.5]]
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: output_quantized.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [
    helper.make_node("Neg", ["x"], ["o"]),
    helper.make_node("Transpose", ["o"], ["t"], perm=[1, 0]),
    helper.make_node("QuantizeLinear", ["t", "scale", "zero"], ["q"]),
    helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"])
]
inputs, outputs = [value("x", TensorProto.FLOAT, [2, 2])], [value(n, TensorProto.FLOAT, [2, 2]) for n in ("o", "y")]
constants = [constant("scale", np.float32(0.5)), constant("zero", np.int8(0))]
feeds = {"x": np.array([[0.1, 0.2], [0.3, 0.4]], np.float32)}
expected = -feeds["x"]

graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
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
