#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loop that returns its iteration number returns the last one everywhere

The iteration number is a scan output of the body without an operator in between. Apparently one buffer is used for
all iterations.

Expected: [0, 1, 2, 3]
Actual: [4, 4, 4, 4]
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: loop_iteration_number.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

body = helper.make_graph([helper.make_node("Identity", ["c"], ["d"])], "body",
                         [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, [])],
                         [value("d", TensorProto.BOOL, []), value("i", TensorProto.INT64, [])])
nodes = [helper.make_node("Loop", ["n", "true"], ["y"], body=body)]
inputs, outputs = [value("n", TensorProto.INT64, [])], [value("y", TensorProto.INT64, [None])]
constants = [constant("true", np.array(True))]
feeds = {"n": np.array(4)}
expected = np.arange(4)

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
