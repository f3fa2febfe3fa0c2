#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ranks with different execution providers: one rank on the CPU provider and one on OpenVINO, with the ONNX Runtime of
onnxruntime-openvino.

Small models must return their recorded outputs. The trace must have OpenVINO's nodes on its rank only. The guide's CPU/NPU/GPU decoder must
run with OpenVINO as NPU. tools/setup fetches the wheel (84 MB, 250 MB unpacked) into .deps; without it the test is skipped.

usage: providers.py TESSERA EXAMPLE USER_OPS"""
import collections, glob, json, os, sys, tempfile

import harness

TESSERA, EXAMPLE, OPS = sys.argv[1:4]
MODELS = ("bert_tiny", "gpt2_tiny", "llama_tiny", "vit_tiny")
found = glob.glob(os.environ.get("TESSERA_OPENVINO", ".deps/openvino") + "/onnxruntime/capi/libonnxruntime.so.1.*")
case = harness.check


def call(*words):
    engine = os.path.abspath(found[0])
    return harness.call(*words, TESSERA_ORT=engine, LD_LIBRARY_PATH=os.path.dirname(engine))


def providers_of(trace):
    """Returns provider -> number of nodes, for each rank."""
    ranks = collections.defaultdict(collections.Counter)
    with open(trace) as f:
        for event in json.load(f)["traceEvents"]:
            provider = (event.get("args") or {}).get("provider")
            if provider:
                ranks[event["pid"]][provider] += 1
    return ranks


def run_cut(model, data, folder):
    """Runs the first random sharding that OpenVINO accepts. It refuses some because of its own errors, which the messages describe."""

    for seed in range(1, 9):
        cut = folder + "/cut.onnx"
        call(TESSERA, "annotate", model, "--config", "c:2=CPU,OpenVINO", "--random", str(seed), "-o", cut)
        rc, out, err = call(TESSERA, "run", cut, "--inputs", data, "--trace", folder + "/trace.json", "--json")
        if rc == 0 or not ("before and after a communication" in err or "removed an input of one of its nodes" in err):
            break
    return rc, out, err


def check_model(name, folder):
    model, data = "tests/models/%s/model.onnx" % name, "tests/models/%s/test_data_set_0" % name
    rc, out, err = call(TESSERA, "verify", model, "--inputs", data, "--devices", "CPU,OpenVINO", "--json")
    doc = json.loads(out) if rc == 0 else {}
    case(name + " on CPU and OpenVINO", doc.get("ok") is True and doc.get("recorded") is True, "exit %d %s" % (rc, err))
    rc, out, err = run_cut(model, data, folder)
    ranks = json.loads(out)["ranks"] if rc == 0 else []
    right = [r["provider"] for r in ranks] == ["CPU", "OpenVINO"] and all(r["groups"] for r in ranks)
    case(name + ": cut at random, each rank says its provider", right, "exit %d %s %s" % (rc, out, err))
    seen = providers_of(folder + "/trace.json") if rc == 0 else {}
    right = len(seen) == 2 and "OpenVINOExecutionProvider" not in seen[0] and seen[1]["OpenVINOExecutionProvider"] > 0
    case(name + ": the trace has OpenVINO's nodes on its rank alone", right, seen)


def check_decoder(folder):
    rc, out, err = call(EXAMPLE, OPS, folder)
    case("the guide's decoder is cut for CPU, NPU and GPU", rc == 0, "exit %d %s" % (rc, err))
    rc, out, err = call(TESSERA, "verify", folder + "/decoder.onnx", "--inputs",
                        "random:1,tokens:2x3,embed.weight:50x24,lm_head.weight:24x50", "--ort-ops", OPS, "--map-device", "GPU=OpenVINO",
                        "--json")
    doc = json.loads(out) if rc == 0 else {}
    case("the guide's decoder with OpenVINO for NPU and GPU", doc.get("ok") is True, "exit %d %s" % (rc, err))
    rc, out, err = call(TESSERA, "run", folder + "/parts", "--inputs", "random:1,tokens:2x3,embed.weight:50x24,lm_head.weight:24x50",
                        "--ort-ops", OPS, "--map-device", "GPU=CPU", "--json")
    ranks = json.loads(out)["ranks"] if rc == 0 else []
    case("its ranks have unlike providers", [(r["device"], r["provider"]) for r in ranks] == [("CPU", "CPU"), ("OpenVINO", "OpenVINO"),
                                                                                              ("CPU", "CPU")],
         "exit %d %s %s" % (rc, out, err))


if not found:
    harness.skip("providers", "no onnxruntime-openvino in .deps/openvino (tools/setup fetches it)")
    sys.exit(0)
with tempfile.TemporaryDirectory(prefix="tessera-providers-") as d:
    for name in MODELS:
        check_model(name, d)
    check_decoder(d)
harness.finish()
