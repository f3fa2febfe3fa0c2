#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scan fails if the rank of its input is not known when the model is loaded

The input is the result of a Reshape to a computed shape. ONNX does not require the rank.

Expected: the reshaped input
Actual: "Subgraph must have the shape set for all outputs" in the run
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: scan_unknown_rank.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

body = helper.make_graph([helper.make_node("Identity", ["p"], ["q"])], "body",
                         [helper.make_tensor_value_info("p", TensorProto.FLOAT, None)],
                         [helper.make_tensor_value_info("q", TensorProto.FLOAT, None)])
nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Scan", ["r"], ["s"], body=body, num_scan_inputs=1),
         helper.make_node("Reshape", ["s", "flat"], ["y"])]
inputs, outputs = [value("x", TensorProto.FLOAT, [6]), value("shape", TensorProto.INT64, ["k"])], [value("y", TensorProto.FLOAT, [6])]
constants = [constant("flat", np.array([6]))]
feeds = {"x": np.arange(6, dtype=np.float32), "shape": np.array([2, 3])}
expected = feeds["x"]

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
