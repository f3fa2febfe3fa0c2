#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes shardings by hand, checks them, and verifies the result.

    python examples/python/annotate_and_check.py model.onnx"""
import sys

import tessera

model = tessera.load(sys.argv[1])
model.add_config("by hand", 2)
products = [node for node in model.nodes if node.operator == "MatMul"]

# An error: the tensor has no such axis.
first = products[0]
try:
    model.shard(first.name, first.outputs[0], "{1,1,1,1,1,2}")
except tessera.TesseraError as error:
    print("refused: " + error.findings[0].message)

# Shards the columns of every MatMul over both devices; infer() completes what follows from that.
for node in products:
    model.shard(node.name, node.outputs[0], "{1,1,2}" if node is first else "{...,2}")
for finding in model.check():
    print("%s %s: %s" % (finding.severity, finding.code, finding.message))
    if finding.hint:
        print("    " + finding.hint)
model.infer()

# Compares sharded and unsharded runs on the same random inputs; `first` is the first tensor that differs.
found = tessera.verify(model)
print("sharded and unsharded agree" if found.ok else "they differ at %s" % found.first)
