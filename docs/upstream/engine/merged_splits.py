#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Splits of one value into different numbers of parts are merged

Before operator set 18, Split without sizes has no attribute that tells the number of parts. From optimization level 1
on, apparently common subexpression elimination compares attributes and inputs, but not the number of outputs, and
takes both Splits for the same.

Expected: the last half of each row, 6 elements
Actual: the last third of each row, 4 elements
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: merged_splits.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [
    helper.make_node("Neg", ["x"], ["a"]),
    helper.make_node("Split", ["a"], ["h0", "h1"], axis=1),
    helper.make_node("Relu", ["h1"], ["half"]),
    helper.make_node("Split", ["a"], ["t0", "t1", "t2"], axis=1),
    helper.make_node("Relu", ["t2"], ["third"])
]
inputs = [value("x", TensorProto.FLOAT, ["n", 12])]
outputs, constants = [value("third", TensorProto.FLOAT, ["n", None]), value("half", TensorProto.FLOAT, ["n", None])], []
feeds = {"x": -np.arange(24, dtype=np.float32).reshape(2, 12)}
expected = -feeds["x"][:, 6:]

graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
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
