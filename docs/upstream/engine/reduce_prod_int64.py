#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ReduceProd of int64 has the precision of float64

Products beyond 2^53 lose their last bits, as in float64.

Expected: 363 * 308 * 330 * 391 * 357 * 342 * 394
Actual: wrong by 32
Seen with: onnxruntime 1.28.0 and 1.31.1 (not with 1.20.1 and 1.23.2); CPU execution provider, x86-64.

Usage: reduce_prod_int64.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [helper.make_node("ReduceProd", ["x"], ["y"], keepdims=0)]
inputs, outputs, constants = [value("x", TensorProto.INT64, [7])], [value("y", TensorProto.INT64, [])], []
feeds = {"x": np.array([363, 308, 330, 391, 357, 342, 394])}
expected = feeds["x"].prod()

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
