#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapter for the command `tessera`: tessera.py [COMMAND]. Needs numpy for runs."""
import json
import os
import subprocess
import sys
import tempfile

COMMAND = sys.argv[1] if len(sys.argv) > 1 else "tessera"
RULES = {"config-name-empty": ["config-name"], "config-twice": ["config-unique"], "config-device-count": ["config-devices"],
         "config-too-large": ["config-devices"], "config-device-names": ["config-device-names"], "config-unknown": ["entry-config"],
         "annotation-no-config": ["entry-config"], "annotation-twice": ["entry-unique"], "spec-no-value": ["spec-tensor"],
         "spec-value-unknown": ["spec-tensor"], "shard-value": ["spec-tensor"], "spec-twice": ["spec-unique"],
         "shard-axis": ["axis-range"], "shard-axis-twice": ["axis-once"], "shard-count": ["shards-positive", "shards-present"],
         "spec-size": ["dim-size"], "spec-factors": ["dim-product"], "shard-device": ["device-range"], "spec-owners": ["device-count"],
         "group-key-twice": ["group-unique"], "group-empty": ["group-empty"],
         "spec-disagree": ["nary-identical", "nary-replicated", "nary-compose", "matmul-reduction-axes", "matmul-devices"]}
tiles = {}  # (shape, sharding): reply of `tessera tiles`


def call(*words):
    ended = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=120)
    return ended.returncode, ended.stdout, ended.stderr


def check(request, folder):
    code, out, _ = call("check", "--formalism", "--json", request["model"])
    errors = [f for f in json.loads(out)["findings"] if f["severity"] == "error"]
    rules = [rule for f in errors for rule in RULES.get(f["code"], [])]
    return {"valid": code == 0, "rules": rules, "text": "; ".join(f["message"] for f in errors)}


def shards(request, folder):
    path, rows = folder + "/complete.onnx", []
    code, _, err = call("infer", "--formalism", request["model"], "--config", request["configuration"], "-o", path)
    if code != 0:
        return {"error": err}
    for found in json.loads(call("info", "--json", path)[1])["shardings"]:
        shape = request["tensors"].get(found["value"], {}).get("shape")
        if found["configuration"] != request["configuration"] or shape is None or not all(isinstance(s, int) for s in shape):
            continue
        key = ("x".join(map(str, shape or [1])), found["sharding"])  # `tiles` has no notation for a scalar
        if key not in tiles:
            tiles[key] = json.loads(call("tiles", "--json", "--shape", key[0], "--sharding", key[1])[1])["tiles"]
        rows += [{"node": found["node"], "value": found["value"], "device": t["device"], "start": t["start"][:len(shape)],
                  "stop": t["stop"][:len(shape)]} for t in tiles[key]]
    return {"shards": rows}


def run(request, folder):
    import numpy as np
    inputs = {k: np.array(t["data"], t["type"]).reshape(t["shape"]) for k, t in request["inputs"].items()}
    np.savez(folder + "/in.npz", **inputs)
    config = ["--config", request["configuration"]] if request["configuration"] else []
    maps = [w for name in request["names"] for w in ("--map-device", name + "=CPU")]
    code, _, err = call("run", request["model"], *config, *maps, "--inputs", folder + "/in.npz", "--outputs", folder + "/out.npz")
    if code != 0:
        return {"error": err}
    return {
        "outputs": {
            k: {"type": a.dtype.name, "shape": a.shape, "data": a.ravel().tolist()} for k, a in np.load(folder + "/out.npz").items()
        }
    }


def rewrite(request, folder):
    code, _, err = call("shapes", request["model"], "-o", request["to"])
    return {} if code == 0 else {"error": err}


with tempfile.TemporaryDirectory() as folder:
    for line in sys.stdin:
        asked = json.loads(line)
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))
        try:
            reply = {"check": check, "shards": shards, "run": run, "rewrite": rewrite}[asked["question"]](asked, folder)
        except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            reply = {"error": "%s: %s" % (type(error).__name__, error)}
        print(json.dumps(reply), flush=True)
