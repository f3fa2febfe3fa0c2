#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MatMul of [n, 0] and [0] returns uninitialized memory

A product over an empty inner dimension is 0. For a vector as second input the output buffer is not written.

Expected: 64 zeros
Actual: old contents of the memory, in most runs
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: matmul_empty_inner.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

inputs = [value("a", TensorProto.FLOAT, [64, "k"]), value("b", TensorProto.FLOAT, ["k"])]
graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "g", inputs, [value("y", TensorProto.FLOAT, [64])])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
if len(sys.argv) > 1:
    onnx.save(model, sys.argv[1])

feeds, wrong = {"a": np.zeros((64, 0), np.float32), "b": np.zeros(0, np.float32)}, None
for _ in range(100):  # the contents of fresh memory may be zeros
    used = [np.full(64, 7, np.float32) for _ in range(50)]
    del used
    got = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    if got.any():
        wrong = got
        break
print("onnxruntime", ort.__version__, "has the bug" if wrong is not None else "does not have the bug")
print("expected zeros\ngot     ", (got if wrong is None else wrong)[:8].tolist(), "...")
sys.exit(wrong is not None)
