#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LRN spreads a NaN of one channel to all later channels

Apparently the kernel keeps a running sum over channels: it adds the new channel and subtracts the old one, so that a
NaN never leaves the sum.

Expected: with size 3, channels 0 and 1 are NaN
Actual: all channels are NaN
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: lrn_nan.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [helper.make_node("LRN", ["x"], ["y"], size=3)]
inputs, outputs, constants = [value("x", TensorProto.FLOAT, [1, 6, 1, 1])], [value("y", TensorProto.FLOAT, [1, 6, 1, 1])], []
feeds = {"x": np.ones((1, 6, 1, 1), np.float32)}
feeds["x"][0, 0] = np.nan
expected = np.array([np.nan, np.nan, 1, 1, 1, 1], np.float32).reshape(1, 6, 1, 1)

graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
if len(sys.argv) > 1:
    onnx.save(model, sys.argv[1])

options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 4, 1
try:
    got = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    fixed = got.shape == expected.shape and np.array_equal(np.isnan(got), np.isnan(expected))
except Exception as error:
    got, fixed = error, False
print("onnxruntime", ort.__version__, "has the bug" if not fixed else "does not have the bug")
print("expected", expected.shape, expected.tolist(), "\ngot     ", got if isinstance(got, Exception) else (got.shape, got.tolist()))
sys.exit(not fixed)
