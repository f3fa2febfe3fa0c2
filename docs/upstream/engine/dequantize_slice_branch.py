#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Slice of a DequantizeLinear that a branch reads ends the process

From optimization level 1 on, the DequantizeLinear is moved behind the Slice, whose only consumers are inside of
branches.

Expected: [0, -1]
Actual: abort
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: dequantize_slice_branch.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present, also by a signal; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

def branch(name, op):
    return helper.make_graph([helper.make_node(op, ["p"], ["o" + name])], name, [], [value("o" + name, TensorProto.FLOAT, [2])])


nodes = [helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["d"]), helper.make_node("Slice", ["d", "start", "stop"], ["p"]),
         helper.make_node("If", ["k"], ["y"], then_branch=branch("a", "Neg"), else_branch=branch("b", "Abs"))]
inputs, outputs = [value("x", TensorProto.UINT8, [4]), value("k", TensorProto.BOOL, [])], [value("y", TensorProto.FLOAT, [2])]
constants = [
    constant("scale", np.float32(1)),
    constant("zero", np.uint8(0)),
    constant("start", np.array([0])),
    constant("stop", np.array([2]))
]
feeds = {"x": np.arange(4, dtype=np.uint8), "k": np.array(True)}
expected = np.array([0, -1], np.float32)

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
