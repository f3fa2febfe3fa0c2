#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""BatchNormalization in training mode overwrites its input statistics

The arrays with the running mean and variance that the caller passes are changed by the run.

Expected: the arrays of the caller are unchanged
Actual: mean and variance have new values after the run
Seen with: onnxruntime 1.20.1, 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: batch_normalization_writes_inputs.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes = [helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "rm", "rv"], training_mode=1)]
nodes += [helper.make_node("Identity", [n], ["out_" + n]) for n in ("y", "rm", "rv")]
inputs = [value("x", TensorProto.FLOAT, [4, 2])] + [value(n, TensorProto.FLOAT, [2]) for n in "sbmv"]
outputs = [value("out_y", TensorProto.FLOAT, [4, 2]), value("out_rm", TensorProto.FLOAT, [2]), value("out_rv", TensorProto.FLOAT, [2])]
model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
if len(sys.argv) > 1:
    onnx.save(model, sys.argv[1])

feeds = {"x": np.arange(8, dtype=np.float32).reshape(4, 2), **{n: np.ones(2, np.float32) for n in "sbmv"}}
options = ort.SessionOptions()
options.log_severity_level, options.graph_optimization_level = 4, ort.GraphOptimizationLevel.ORT_DISABLE_ALL
ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)
fixed = np.array_equal(feeds["m"], np.ones(2)) and np.array_equal(feeds["v"], np.ones(2))
print("onnxruntime", ort.__version__, "has the bug" if not fixed else "does not have the bug")
print("expected mean [1, 1] and variance [1, 1] as before the run\ngot     ", feeds["m"].tolist(), feeds["v"].tolist())
sys.exit(not fixed)
