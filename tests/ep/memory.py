# SPDX-License-Identifier: Apache-2.0
"""Tests the memory of a session with external weights: with the execution provider it must not hold a weight twice.

usage: memory.py LIBRARY [all]     without `all` 64 MiB of weights, else 1 GiB
Prints anonymous memory (RssAnon) after the creation of the session and at its peak. ONNX Runtime copies weights once, to pack them
for its kernels; the plain session does that too."""
import json
import os
import subprocess
import sys
import threading

import numpy as np
import onnx
from onnx import TensorProto, helper

import harness

LIBRARY = sys.argv[1]
LAYERS = 8
WIDTH = 2048 if harness.ALL else 512  # weights of WIDTH x 4 WIDTH and back
WEIGHT_BYTES = WIDTH * 4 * WIDTH * 4
TOTAL = 2 * LAYERS * WEIGHT_BYTES
MIB = 1 << 20


def anonymous():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon"))


class Peak(threading.Thread):
    """Samples the anonymous memory of this process every millisecond."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.done = 0, threading.Event()

    def run(self):
        while not self.done.wait(0.001):
            self.most = max(self.most, anonymous())


def create(how, path):
    """Creates and runs one session in this process, and prints its memory use."""
    from graph_session import Sharded, register, session_options
    import onnxruntime
    folder = os.path.dirname(path)
    register(LIBRARY)
    before, peak = anonymous(), Peak()
    peak.start()
    if how == "plain":
        session = onnxruntime.InferenceSession(path, session_options())
        route = ""
    else:
        options = {"tune": None}
        model = path
        if how == "graph":  # from memory, with the folder of its weights
            options["tune"] = lambda o: o.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
            with open(path, "rb") as f:
                model = f.read()
        sharded = Sharded(folder, model, devices=2, threads=1, **options)
        session, route = sharded.session, sharded.summary["route"]
    peak.done.set()
    peak.join()
    after = anonymous()
    y = session.run(None, {"x": np.ones((1, WIDTH), np.float32)})[0]
    print(json.dumps({"after": after - before, "peak": peak.most - before, "route": route, "sum": float(np.abs(y).sum())}))


def write_model(path):
    """Writes a stack of MatMuls whose weights are ranges of one file. The weights are written in pieces, so that they are never all in
    memory."""
    random = np.random.default_rng(0)
    initializers, nodes, value = [], [], "x"
    with open(os.path.join(os.path.dirname(path), "weights.data"), "wb") as f:
        for i in range(2 * LAYERS):
            shape = (WIDTH, 4 * WIDTH) if i % 2 == 0 else (4 * WIDTH, WIDTH)
            tensor = TensorProto(name="w%d" % i, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
            for key, text in (("location", "weights.data"), ("offset", f.tell()), ("length", WEIGHT_BYTES)):
                tensor.external_data.add(key=key, value=str(text))
            initializers.append(tensor)
            for _ in range(64):
                f.write((random.standard_normal(WEIGHT_BYTES // 4 // 64, dtype=np.float32) / WIDTH ** 0.5).tobytes())
            nodes += [helper.make_node("MatMul", [value, "w%d" % i], ["m%d" % i]), helper.make_node("Tanh", ["m%d" % i], ["v%d" % i])]
            value = "v%d" % i
    nodes[-1].output[0] = "y"
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", WIDTH])] for name in "xy"]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", *ports, initializers), opset_imports=[helper.make_opsetid("", 18)], ir_version=10),
        path)


def measure(how, path):
    words = [sys.executable, "-B", os.path.abspath(__file__), LIBRARY, how, path] + (["all"] if harness.ALL else [])
    p = subprocess.run(words, capture_output=True, text=True, timeout=harness.HANG_S * 4)
    assert p.returncode == 0, p.stderr[-harness.DETAILS_MAX:]
    return json.loads(p.stdout.splitlines()[-1])


def no_weight_twice(folder):
    path = os.path.join(folder, "model.onnx")
    write_model(path)
    found = {how: measure(how, path) for how in ("plain", "file", "graph")}
    for how, seen in found.items():
        print("# %-5s %4d MiB after, %4d MiB at the peak, of %d MiB of weights" %
              (how, seen["after"] // MIB, seen["peak"] // MIB, TOTAL // MIB))
    spare = TOTAL // 16 + 16 * MIB
    for how in ("file", "graph"):
        seen = found[how]
        harness.check(how + "_route", seen["route"] == how, seen)
        harness.check(how + "_computes_the_same", abs(seen["sum"] - found["plain"]["sum"]) <= 1e-4 * found["plain"]["sum"], found)
        harness.check(how + "_after_creation", seen["after"] <= found["plain"]["after"] + spare, found)
        harness.check(how + "_at_the_peak", seen["peak"] <= found["plain"]["peak"] + spare, found)


if len(sys.argv) > 2:
    create(*sys.argv[2:])
    sys.exit(0)
harness.run([no_weight_twice])
harness.finish()
