#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapter for the package onnx: check_model, the reference evaluator, and shape inference as a program that rewrites models."""
import json
import sys

import numpy as np
import onnx
import onnx.checker
import onnx.reference
import onnx.shape_inference


def check(request):
    try:
        onnx.checker.check_model(request["model"], full_check=True)
        return {"valid": True}
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return {"valid": False, "text": str(error)}


def run(request):
    inputs = {k: np.array(t["data"], t["type"]).reshape(t["shape"]) for k, t in request["inputs"].items()}
    model = onnx.load(request["model"])
    outputs = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
    arrays = {o.name: np.asarray(a) for o, a in zip(model.graph.output, outputs)}
    return {"outputs": {k: {"type": a.dtype.name, "shape": a.shape, "data": a.ravel().tolist()} for k, a in arrays.items()}}


def rewrite(request):
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(request["model"])), request["to"])
    return {}


for line in sys.stdin:
    asked = json.loads(line)
    question = {"check": check, "run": run, "rewrite": rewrite}.get(asked["question"])
    try:
        reply = question(asked) if question else {"unsupported": True}
    except Exception as error:  # any failure of the package is the answer
        reply = {"error": "%s: %s" % (type(error).__name__, error)}
    print(json.dumps(reply), flush=True)
