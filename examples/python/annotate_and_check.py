#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says by hand how tensors are cut, has every mistake found at once, and proves what is left.

    python examples/python/annotate_and_check.py model.onnx"""
import sys

import tessera

model = tessera.load(sys.argv[1])
model.add_config("by hand", 2)
products = [node for node in model.nodes if node.operator == "MatMul"]

# A mistake: nothing can be cut along an axis that it does not have.
first = products[0]
try:
    model.shard(first.name, first.outputs[0], "{1,1,1,1,1,2}")
except tessera.TesseraError as error:
    print("refused: " + error.findings[0].message)

# Columns of every product on both devices; what follows from that is completed.
for node in products:
    model.shard(node.name, node.outputs[0], "{1,1,2}" if node is first else "{...,2}")
for finding in model.check():
    print("%s %s: %s" % (finding.severity, finding.code, finding.message))
    if finding.hint:
        print("    " + finding.hint)
model.infer()

# Cut and whole on the same random inputs, and the first tensor where they part if they do.
found = tessera.verify(model)
print("cut and whole agree" if found.ok else "they part at %s" % found.first)
