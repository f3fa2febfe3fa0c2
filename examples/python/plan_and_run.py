#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans a model for two devices, partitions and runs it, and compares with the unsharded model in onnxruntime.

    python examples/python/plan_and_run.py model.onnx batch=2 seq=9"""
import sys
import tempfile

import numpy as np
import onnxruntime
import tessera

path, dims = sys.argv[1], {name: int(size) for name, size in (word.split("=") for word in sys.argv[2:])}

# 1. Plan: chooses a sharding for every tensor and writes it into the model.
model = tessera.load(path)
plan = model.plan(2, dims=dims)
print("predicted: %.3f ms on %d devices, %.3f ms on one" % (plan.milliseconds, plan.devices, plan.one_device_ms))
print("memory of each device: " + ", ".join("%.1f MiB" % (bytes / 2**20) for bytes in plan.memory))

# 2. Partition: one ordinary ONNX file for each device.
with tempfile.TemporaryDirectory() as folder:
    parts = model.partition(folder + "/parts")
    print("%d of %d nodes are sharded; communication: %s" % (parts.cut_nodes, parts.nodes, parts.collectives or "none"))

    # 3. Run: a PartitionSession has the methods of onnxruntime.InferenceSession.
    unsharded = onnxruntime.InferenceSession(path)
    rng = np.random.default_rng(0)
    feeds = {}
    for value in unsharded.get_inputs():
        shape = [dims.get(size, 1) if isinstance(size, str) else size for size in value.shape]
        feeds[value.name] = rng.random(shape, np.float32) if "float" in value.type else np.ones(shape, np.int64)
    with tessera.PartitionSession(folder + "/parts") as session:
        sharded = session.run(None, feeds)
    for value, got, want in zip(unsharded.get_outputs(), sharded, unsharded.run(None, feeds)):
        print("%s: largest difference %.1e of the largest element" % (value.name, np.abs(got - want).max() / np.abs(want).max()))
