#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reference evaluator of onnx: QLinearMatMul adds the zero point before it rounds

The operator's text says: for (x / y_scale), it is rounding to nearest ties to even; then the zero point is added.
onnx.reference adds an odd zero point first, so that ties are rounded the other way. This is a bug of the package
onnx; ONNX Runtime is right.

Expected: round(0.5) + 3 = 3
Actual: 4 (round(3.5))
Seen with: onnx 1.22.0.

Usage: onnx_reference_qlinear_matmul.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

u8, f32 = (lambda v: np.array(v, np.uint8)), (lambda v: np.array(v, np.float32))
names = ["a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero"]
numbers = [f32(1), u8(0), f32(1), u8(0), f32(2), u8(3)]
constants = [constant(n, d) for n, d in zip((n for n in names if len(n) > 1), numbers)]
inputs = [value("a", TensorProto.UINT8, [1, 1]), value("b", TensorProto.UINT8, [1, 1])]
graph = helper.make_graph([helper.make_node("QLinearMatMul", names, ["y"])], "g", inputs, [value("y", TensorProto.UINT8, [1, 1])],
                          constants)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
if len(sys.argv) > 1:
    onnx.save(model, sys.argv[1])

feeds = {"a": u8([[1]]), "b": u8([[1]])}
got = int(onnx.reference.ReferenceEvaluator(model).run(None, feeds)[0][0, 0])
other = int(ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0][0, 0])
print("onnx", onnx.__version__, "has the bug" if got != 3 else "does not have the bug")
print("expected 3\ngot     ", got, "\nonnxruntime", other)
sys.exit(got != 3)
