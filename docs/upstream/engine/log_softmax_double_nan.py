#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LogSoftmax of float64 ignores a NaN that is not the first of its row

The float32 kernel returns NaN for the row. The float64 kernel returns positive logarithms of probabilities.

Expected: NaN for the row, as in float32
Actual: [45.05, nan, 46.05, 47.05]
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: log_softmax_double_nan.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [helper.make_node("LogSoftmax", ["x"], ["y"])]
inputs, outputs, constants = [value("x", TensorProto.DOUBLE, [1, 4])], [value("y", TensorProto.DOUBLE, [1, 4])], []
feeds = {"x": np.array([[1, np.nan, 2, 3]])}
expected = np.full((1, 4), np.nan)

graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
if len(sys.argv) > 1:
    onnx.save(model, sys.argv[1])

options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 4, 1
try:
    got = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    fixed = got.shape == expected.shape and np.array_equal(got, expected, equal_nan=True)
except Exception as error:
    got, fixed = error, False
print("onnxruntime", ort.__version__, "has the bug" if not fixed else "does not have the bug")
print("expected", expected.shape, expected.tolist(), "\ngot     ", got if isinstance(got, Exception) else (got.shape, got.tolist()))
sys.exit(not fixed)
