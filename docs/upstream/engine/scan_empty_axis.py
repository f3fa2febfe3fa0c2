#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scan along an axis other than 0 of an empty tensor divides by zero

The scan input has the shape [7, 2, 0, 5] and is scanned along axis 1, so that it is transposed internally. Presumably
this divides by a number of elements.

Expected: y with shape [2, 7, 0, 5]
Actual: the process is killed by SIGFPE
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: scan_empty_axis.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present, also by a signal; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

inner = [value(n, TensorProto.FLOAT, [None] * 3) for n in ("c", "i", "o", "p")]
body = helper.make_graph([helper.make_node("Add", ["c", "i"], ["o"]), helper.make_node("Neg", ["i"], ["p"])], "body", inner[:2], inner[2:])
nodes = [helper.make_node("Scan", ["a", "x"], ["b", "y"], body=body, num_scan_inputs=1, scan_input_axes=[1])]
inputs = [value("a", TensorProto.FLOAT, ["a", "b", "c"]), value("x", TensorProto.FLOAT, ["p", "q", "r", "t"])]
outputs = [value("b", TensorProto.FLOAT, ["a", "b", "c"]), value("y", TensorProto.FLOAT, ["q", "a", "b", "c"])]
constants = []
feeds = {"a": np.ones((7, 0, 5), np.float32), "x": np.zeros((7, 2, 0, 5), np.float32)}
expected = np.zeros((2, 7, 0, 5), np.float32)

graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
if len(sys.argv) > 1:
    onnx.save(model, sys.argv[1])

options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 4, 1
try:
    got = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)[1]
    fixed = got.shape == expected.shape and np.array_equal(got, expected)
except Exception as error:
    got, fixed = error, False
print("onnxruntime", ort.__version__, "has the bug" if not fixed else "does not have the bug")
print("expected", expected.shape, expected.tolist(), "\ngot     ", got if isinstance(got, Exception) else (got.shape, got.tolist()))
sys.exit(not fixed)
