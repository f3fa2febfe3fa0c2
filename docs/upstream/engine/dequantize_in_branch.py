#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MatMul with 4-bit weights inside of a branch fails to load if the weights are in the outer graph

From optimization level 2 on. Apparently the fusion to MatMulNBits searches the weight among the initializers of the
branch only.

Expected: -32 in each column
Actual: "TransposeDQWeightsForMatMulNBits Missing required weight" while the session is created; with 1.20.1 a segmentation fault
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: dequantize_in_branch.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present, also by a signal; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

def branch(name, op):
    nodes = [helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["d" + name], axis=0, block_size=16),
             helper.make_node("MatMul", ["x", "d" + name], ["m" + name]), helper.make_node(op, ["m" + name], ["o" + name])]
    return helper.make_graph(nodes, name, [], [value("o" + name, TensorProto.FLOAT, [1, 8])])


nodes = [helper.make_node("If", ["k"], ["y"], then_branch=branch("a", "Neg"), else_branch=branch("b", "Abs"))]
inputs, outputs = [value("x", TensorProto.FLOAT, [1, 32]), value("k", TensorProto.BOOL, [])], [value("y", TensorProto.FLOAT, [1, 8])]
constants = [helper.make_tensor("w", TensorProto.INT4, [32, 8], [1] * 256), constant("scale", np.ones((2, 8), np.float32)),
             helper.make_tensor("zero", TensorProto.INT4, [2, 8], [0] * 16)]
feeds = {"x": np.ones((1, 32), np.float32), "k": np.array(True)}
expected = -32 * np.ones((1, 8), np.float32)

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
