#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shape of a pooling with ceil_mode differs from the shape that the kernel returns

MaxPool with kernel 1, stride 3 and ceil_mode of 3 elements. A window that starts beyond the input is left out by the
kernel, and counted by shape inference, whose result replaces the Shape node.

Expected: [1, 1, 1], the shape of the other output
Actual: [1, 1, 2]
Seen with: onnxruntime 1.23.2, 1.28.0 and 1.31.1 (not with 1.20.1); CPU execution provider, x86-64.

Usage: pool_ceil_mode_shape.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [helper.make_node("MaxPool", ["x"], ["t"], kernel_shape=[1], strides=[3], ceil_mode=1), helper.make_node("Shape", ["t"], ["y"])]
inputs, constants = [value("x", TensorProto.FLOAT, [1, 1, 3])], []
outputs = [value("y", TensorProto.INT64, [3]), value("t", TensorProto.FLOAT, [1, 1, None])]
feeds = {"x": np.ones((1, 1, 3), np.float32)}
expected = np.array([1, 1, 1])

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
