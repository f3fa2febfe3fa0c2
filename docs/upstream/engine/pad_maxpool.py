#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pad with zeros before MaxPool is merged into the pads of MaxPool, which pad with -infinity

From optimization level 1 on, a constant Pad is merged into the pads of MaxPool. Pad adds zeros; the pads of MaxPool
never win. The result differs where all elements of a window are negative.

Expected: [0, -1, -1, -1]: the first window has the padded 0
Actual: [-1, -1, -1, -1]. With ORT_DISABLE_ALL the result is right.
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: pad_maxpool.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [helper.make_node("Pad", ["x", "pads"], ["t"]), helper.make_node("MaxPool", ["t"], ["y"], kernel_shape=[2])]
inputs, outputs = [value("x", TensorProto.FLOAT, [1, 1, 4])], [value("y", TensorProto.FLOAT, [1, 1, 4])]
constants = [constant("pads", np.array([0, 0, 1, 0, 0, 0]))]
feeds = {"x": -np.ones((1, 1, 4), np.float32)}
expected = np.array([[[0, -1, -1, -1]]], np.float32)

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
