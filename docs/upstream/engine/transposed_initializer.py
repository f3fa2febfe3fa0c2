#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An initializer that the caller provides is transposed in place

SessionOptions.add_initializer gives the session a weight of the caller by name. The transpose optimizer moves a
Transpose past an Add and transposes the constant in the model, but the session still uses the caller's data with the
new shape.

Expected: x + w.T
Actual: an error in the run, or another result: the shape of w does not match its data
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: transposed_initializer.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import os
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

w, x = np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((2, 3), np.float32)
nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), helper.make_node("Add", ["t", "w"], ["a"]),
         helper.make_node("Transpose", ["a"], ["y"], perm=[1, 0])]
graph = helper.make_graph(nodes, "g", [value("x", TensorProto.FLOAT, [2, 3])], [value("y", TensorProto.FLOAT, [2, 3])], [constant("w", w)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
with tempfile.TemporaryDirectory() as folder:
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(folder, "model.onnx")
    onnx.save_model(model, path, save_as_external_data=True, location="model.data", size_threshold=0)
    options, provided = ort.SessionOptions(), ort.OrtValue.ortvalue_from_numpy(w)
    options.log_severity_level = 4
    options.add_initializer("w", provided)
    try:
        got = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0].tolist()
    except Exception as error:
        got = error
expected = (x + w.T).tolist()
fixed = got == expected
print("onnxruntime", ort.__version__, "has the bug" if not fixed else "does not have the bug")
print("expected", expected, "\ngot     ", got)
sys.exit(not fixed)
