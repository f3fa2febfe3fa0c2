# SPDX-License-Identifier: Apache-2.0
"""Tests the guide's decoder on CPU, NPU and GPU: the example program partitions and runs it with a user-defined operator.

The command line does the same, with threads and with processes. Each rank file must have its device's nodes and no others.

usage: devices.py TESSERA EXAMPLE USER_OPS"""
import json, os, sys

import numpy as np
import onnx

import harness

TESSERA, EXAMPLE, OPS = sys.argv[1:4]
STAND_INS = ["--map-device", "NPU=CPU", "--map-device", "GPU=CPU", "--ort-ops", OPS]
os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=0")  # the user's library frees its operator domain only at exit


def parts_of(folder):
    out = []
    for r in range(3):
        m = onnx.load("%s/rank%d.onnx" % (folder, r))
        out.append([n.op_type for n in m.graph.node if n.domain != "ai.tessera" and n.op_type != "Identity"])
    return out


def check(d):
    rc, out, err = harness.call(EXAMPLE, OPS, d)
    assert rc == 0, "exit %d: %s" % (rc, err)
    lines = out.splitlines()
    assert lines[0].split() == ["embed", "->", "CPU"] and lines[11].split() == ["lm_head", "->", "GPU"
                                                                                ] and lines[1].split()[-1] == "NPU", out
    # One Send from the embedding to the layers, one from the layers to the head, which returns the result itself.
    assert lines[-2] == "Send: 2" and lines[-1] == "largest difference to the whole model: 0", out
    with open(d + "/parts/manifest.json") as f:
        assert [x["device"] for x in json.load(f)["devices"]] == ["CPU", "NPU", "GPU"]
    assert [sorted(set(x)) for x in parts_of(d + "/parts")] == [["Gather"], ["DecoderLayer"], ["MatMul"]], parts_of(d + "/parts")
    assert len(parts_of(d + "/parts")[1]) == 10
    rng = np.random.default_rng(1)
    np.savez(d + "/in.npz", **{"tokens": rng.integers(0, 50, (3, 5)), "embed.weight": rng.standard_normal((50, 24)).astype("f4"),
                               "lm_head.weight": rng.standard_normal((24, 50)).astype("f4")})
    results = []
    for transport in ("threads", "shm"):
        rc, _, err = harness.call(TESSERA, "run", d + "/parts", "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", "--transport",
                                  transport, *STAND_INS)
        assert rc == 0, "%s: exit %d %s" % (transport, rc, err)
        results.append(np.load(d + "/out.npz")["logits"])
    assert results[0].shape == (3, 5, 50) and (results[0] == results[1]).all()
    rc, out, err = harness.call(TESSERA, "verify", d + "/decoder.onnx", "--inputs", d + "/in.npz", "--json", *STAND_INS)
    assert rc == 0 and json.loads(out)["ok"] and json.loads(out)["collectives"] == {"Send": 2}, err
    rc, _, err = harness.call(TESSERA, "run", d + "/parts", "--inputs", d + "/in.npz", "--ort-ops", OPS)
    assert rc == 7 and "NPU" in err, "without stand-ins: exit %d %s" % (rc, err)
    rc, _, err = harness.call(TESSERA, "run", d + "/parts", "--inputs", d + "/in.npz", *STAND_INS[:4])
    assert rc == 7 and "DecoderLayer" in err and "--ort-ops" in err, "without the operator: exit %d %s" % (rc, err)


harness.run([("devices", check)])
harness.finish()
