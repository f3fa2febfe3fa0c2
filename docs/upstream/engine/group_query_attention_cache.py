#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GroupQueryAttention: shape inference gives the present cache the length of the past

The inferred shape of the present key and value has the symbol of the past length. The memory planner then places the
larger cache in a freed buffer of the past.

Expected: a result, y with 8 positions
Actual: an error in the run ("attempting to re-use buffer" or a wrong shape)
Seen with: onnxruntime 1.28.0 and 1.31.1 (not with 1.20.1 and 1.23.2); CPU execution provider, x86-64.

Usage: group_query_attention_cache.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

nodes, hidden = [], "x"
inputs = [value("x", TensorProto.FLOAT, [1, 3, 64]), value("last", TensorProto.INT32, [1]), value("total", TensorProto.INT32, [])]
feeds = {"x": np.ones((1, 3, 64), np.float32), "last": np.array([7], np.int32), "total": np.array(8, np.int32)}
outputs = []
for k in range(3):
    past = ["past%d%s" % (k, which) for which in "kv"]
    nodes += [helper.make_node("Neg", [p], ["neg_" + p]) for p in past]
    nodes.append(helper.make_node("GroupQueryAttention", [hidden, "", "", *("neg_" + p for p in past), "last", "total"],
                                  ["a%d" % k, "key%d" % k, "value%d" % k], domain="com.microsoft", num_heads=4, kv_num_heads=2))
    nodes.append(helper.make_node("MatMul", ["a%d" % k, "w"], ["h%d" % k]))
    nodes += [helper.make_node("Neg", [c + str(k)], ["y%s%d" % (c, k)]) for c in ("key", "value")]
    inputs += [value(p, TensorProto.FLOAT, [1, 2, "past", 8]) for p in past]
    outputs += [value("y%s%d" % (c, k), TensorProto.FLOAT, None) for c in ("key", "value")]
    feeds.update({p: np.ones((1, 2, 5, 8), np.float32) for p in past})
    hidden = "h%d" % k
constants = [constant("w", np.ones((32, 64), np.float32))]
expected = np.ones((1, 2, 8, 8), np.float32)  # the shape and the first five positions are compared

graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8)
if len(sys.argv) > 1:
    onnx.save(model, sys.argv[1])

options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 4, 1
try:
    got = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    fixed = got.shape == expected.shape and np.all(got[:, :, :5] == 1)
except Exception as error:
    got, fixed = error, False
print("onnxruntime", ort.__version__, "has the bug" if not fixed else "does not have the bug")
print("expected", expected.shape, expected.tolist(), "\ngot     ", got if isinstance(got, Exception) else (got.shape, got.tolist()))
sys.exit(not fixed)
