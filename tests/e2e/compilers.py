#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two builds of the command, by different compilers, must write the same bytes: plans, rank files and manifests.
Partitions name files by digests, so ranks of one job may come from different builds. Part of `make sanitize`.

usage: compilers.py TESSERA OTHER MODELS"""
import os, sys

import harness

COMMANDS, MODELS = [os.path.abspath(p) for p in sys.argv[1:3]], sys.argv[3]


def files(folder):
    return {os.path.relpath(os.path.join(at, name), folder): open(os.path.join(at, name), "rb").read()
            for at, _, names in os.walk(folder) for name in names}


def same(d, model, devices):
    for i, command in enumerate(COMMANDS):
        os.mkdir("%s/%d" % (d, i))
        plan = "%s/%d/plan.onnx" % (d, i)
        harness.good(command, "plan", "%s/%s/model.onnx" % (MODELS, model), "--devices", devices, "-o", plan)
        harness.good(command, "partition", plan, "-o", "%s/%d/parts" % (d, i))
    a, b = files(d + "/0"), files(d + "/1")
    assert len(a) > devices and a.keys() == b.keys(), (a.keys(), b.keys())
    different = [name for name in a if a[name] != b[name]]
    assert not different, different


def case(model, devices):
    def run(d):
        same(d, model, devices)
    run.__name__ = "%s_on_%d" % (model, devices)
    return run


harness.run([case(model, devices) for model in ("bert_tiny", "llama_tiny", "vit_tiny") for devices in (2, 3)])
harness.finish()
