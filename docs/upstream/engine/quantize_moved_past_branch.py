#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A branch of an If reads a value that was quantized for another reader

QuantizeLinear is moved through a Transpose to the output of a Split. A branch of an If reads the same output and gets
the quantized value. Apparently readers in subgraphs are not counted.

Expected: -x[:3] = [-0.1, -0.7, 0.3]
Actual: multiples of the scale 0.4
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: quantize_moved_past_branch.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

def branch(op):
    return helper.make_graph([helper.make_node(op, ["a"], ["o" + op])], op, [], [value("o" + op, TensorProto.FLOAT, [3])])


nodes = [helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=0),
         helper.make_node("If", ["k"], ["e"], then_branch=branch("Neg"), else_branch=branch("Abs")),
         helper.make_node("Transpose", ["a"], ["t"], perm=[0]), helper.make_node("QuantizeLinear", ["t", "scale", "zero"], ["q"]),
         helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"])]
inputs, outputs = [value("x", TensorProto.FLOAT, [6]), value("k", TensorProto.BOOL, [])], [value(n, TensorProto.FLOAT, [3]) for n in "eyb"]
constants = [constant("sizes", np.array([3, 3])), constant("scale", np.float32(0.4)), constant("zero", np.int8(1))]
feeds = {"x": np.array([0.1, 0.7, -0.3, 1, 2, 3], np.float32), "k": np.array(True)}
expected = -feeds["x"][:3]

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
