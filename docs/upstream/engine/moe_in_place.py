#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MoE returns wrong numbers if its result is placed over its input

The kernel of com.microsoft.MoE may write the output over the input while it still reads the input. A second reader of
the input makes the result right.

Expected: the same numbers whether or not the input has a second reader
Actual: different numbers
Seen with: onnxruntime 1.23.2, 1.28.0 and 1.31.1; CPU execution provider, x86-64.

Usage: moe_in_place.py [MODEL.onnx]    (writes the model to that file)
Exit code 1: the bug is present; 0: it is fixed.
"""
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

value, constant = helper.make_tensor_value_info, lambda name, data: numpy_helper.from_array(np.asarray(data), name)

rng = np.random.default_rng(0)
tokens, width, experts, inner = 6, 8, 4, 16
weights = [constant(name, rng.standard_normal(shape).astype(np.float32))
           for name, shape in (("w1", (experts, inner, width)), ("w2", (experts, width, inner)), ("gate", (width, experts)))]
x = rng.standard_normal((tokens, width)).astype(np.float32)


def build(second_reader):
    nodes = [helper.make_node("Add", ["x", "x"], ["h"]), helper.make_node("MatMul", ["x", "gate"], ["r"]),
             helper.make_node("MoE", ["h", "r", "w1", "", "w2"], ["m"], domain="com.microsoft", k=2, activation_type="relu"),
             helper.make_node("Neg", ["m"], ["y"])]
    shape = [tokens, width]
    outputs = [value("y", TensorProto.FLOAT, shape)] + [value("h", TensorProto.FLOAT, shape)] * second_reader
    known = [value("m", TensorProto.FLOAT, shape)] + [value("h", TensorProto.FLOAT, shape)] * (not second_reader)
    graph = helper.make_graph(nodes, "g", [value("x", TensorProto.FLOAT, shape)], outputs, weights, value_info=known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8)


if len(sys.argv) > 1:
    onnx.save(build(False), sys.argv[1])
options = ort.SessionOptions()
options.log_severity_level, options.graph_optimization_level = 4, ort.GraphOptimizationLevel.ORT_DISABLE_ALL
sessions = [ort.InferenceSession(build(s).SerializeToString(), options, providers=["CPUExecutionProvider"]) for s in (False, True)]
got, expected = (session.run(None, {"x": x})[0] for session in sessions)
fixed = np.allclose(got, expected, atol=1e-4)
print("onnxruntime", ort.__version__, "has the bug" if not fixed else "does not have the bug")
print("expected", expected[0].tolist(), "\ngot     ", got[0].tolist())
sys.exit(not fixed)
