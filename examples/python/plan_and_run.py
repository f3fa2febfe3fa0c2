#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans a model for two devices, cuts it, runs the parts, and compares with the whole one in onnxruntime.

    python examples/python/plan_and_run.py model.onnx batch=2 seq=9"""
import sys
import tempfile

import numpy as np
import onnxruntime
import tessera

path, dims = sys.argv[1], {name: int(size) for name, size in (word.split("=") for word in sys.argv[2:])}

# 1. The plan: how every tensor is cut. It is written into the model.
model = tessera.load(path)
plan = model.plan(2, dims=dims)
print("predicted: %.3f ms on %d devices, %.3f ms on one" % (plan.milliseconds, plan.devices, plan.one_device_ms))
print("memory of each device: " + ", ".join("%.1f MiB" % (bytes / 2**20) for bytes in plan.memory))

# 2. The parts: one ordinary ONNX file for each device.
with tempfile.TemporaryDirectory() as folder:
    parts = model.partition(folder + "/parts")
    print("%d of %d nodes are cut; communication: %s" % (parts.cut_nodes, parts.nodes, parts.collectives or "none"))

    # 3. The run: the calls are those of onnxruntime.InferenceSession.
    whole = onnxruntime.InferenceSession(path)
    rng = np.random.default_rng(0)
    feeds = {}
    for value in whole.get_inputs():
        shape = [dims.get(size, 1) if isinstance(size, str) else size for size in value.shape]
        feeds[value.name] = rng.random(shape, np.float32) if "float" in value.type else np.ones(shape, np.int64)
    with tessera.InferenceSession(folder + "/parts") as session:
        cut = session.run(None, feeds)
    for value, got, want in zip(whole.get_outputs(), cut, whole.run(None, feeds)):
        print("%s: apart by %.1e of the largest element" % (value.name, np.abs(got - want).max() / np.abs(want).max()))
