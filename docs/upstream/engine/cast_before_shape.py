#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cast of a 4-bit tensor before Shape is removed, and Shape has no 4-bit kernel

From optimization level 1 on, the Cast is removed because Shape does not read elements. The model then fails to load.

Expected: [3]
Actual: "Could not find an implementation for Shape" while the session is created
Seen with: onnxruntime 1.20.1, 1.28.0 and 1.31.1 (not with 1.23.2); CPU execution provider, x86-64.

Usage: cast_before_shape.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]), helper.make_node("Cast", ["q"], ["c"], to=TensorProto.INT32),
         helper.make_node("Shape", ["c"], ["y"])]
inputs, outputs = [value("x", TensorProto.FLOAT, ["n"])], [value("y", TensorProto.INT64, [1])]
constants = [constant("scale", np.float32(1)), helper.make_tensor("zero", TensorProto.INT4, [], [0])]
feeds = {"x": np.zeros(3, np.float32)}
expected = np.array([3])

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
