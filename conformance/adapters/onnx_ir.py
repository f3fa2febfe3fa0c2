#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapter for the package onnx_ir: its internal checker of device configurations, and loading and saving."""
import json
import os
import sys

sys.path = [p for p in sys.path
            if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]  # this file has the package's name
import onnx_ir
import onnx_ir._multi_device as multi_device


def check(request):
    found = multi_device._check_device_configurations(onnx_ir.load(request["model"]))
    return {"valid": not found, "text": "; ".join(found)}


def rewrite(request):
    onnx_ir.save(onnx_ir.load(request["model"]), request["to"])
    return {}


for line in sys.stdin:
    asked = json.loads(line)
    question = {"check": check, "rewrite": rewrite}.get(asked["question"])
    try:
        reply = question(asked) if question else {"unsupported": True}
    except Exception as error:  # any failure of the package is the answer
        reply = {"error": "%s: %s" % (type(error).__name__, error)}
    print(json.dumps(reply), flush=True)
