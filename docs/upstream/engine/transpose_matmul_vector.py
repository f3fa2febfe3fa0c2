#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MatMul of a transposed matrix and a vector reads the matrix untransposed

From optimization level 2 on, the result is the product of w and the memory of x, read as [2, 3]. Apparently the
Transpose is fused into the MatMul and then ignored, because the second input is a vector.

Expected: x.T @ w = [16, 22]
Actual: [8, 26], without an error. With ORT_DISABLE_ALL the result is right.
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: transpose_matmul_vector.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), helper.make_node("MatMul", ["t", "w"], ["y"])]
inputs, outputs = [value("x", TensorProto.FLOAT, [3, 2]), value("w", TensorProto.FLOAT, [3])], [value("y", TensorProto.FLOAT, [2])]
constants = []
feeds = {"x": np.arange(6, dtype=np.float32).reshape(3, 2), "w": np.array([1, 2, 3], np.float32)}
expected = feeds["x"].T @ feeds["w"]

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
