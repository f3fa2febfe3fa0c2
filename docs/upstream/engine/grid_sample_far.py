#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GridSample counts coordinates far outside of the image as its border

padding_mode=zeros and a coordinate of 1e30, which presumably overflows when it is converted to an integer.

Expected: 0
Actual: 0.25, a share of a pixel of the border
Seen with: onnxruntime 1.28.0 and 1.31.1 (not with 1.20.1 and 1.23.2); CPU execution provider, x86-64.

Usage: grid_sample_far.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [helper.make_node("GridSample", ["x", "grid"], ["y"], padding_mode="zeros")]
inputs = [value("x", TensorProto.FLOAT, [1, 1, 2, 2]), value("grid", TensorProto.FLOAT, [1, 1, 1, 2])]
outputs, constants = [value("y", TensorProto.FLOAT, [1, 1, 1, 1])], []
feeds = {"x": np.ones((1, 1, 2, 2), np.float32), "grid": np.full((1, 1, 1, 2), 1e30, np.float32)}
expected = np.zeros((1, 1, 1, 1), np.float32)

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
