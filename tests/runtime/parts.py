# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of runtime: partitions built by hand, and the tool that runs them."""
import glob
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile

import harness
from harness import free_port, side_by_side

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto as T, helper as h, numpy_helper as nh
except ImportError as e:
    print("skipped: %s" % e)
    sys.exit(77)

STATUS = "OK NOMEM IO WRITE MALFORMED INVALID UNSUPPORTED INFEASIBLE ENGINE PEER DIFFERENT USAGE BUG".split()
PLAN = "00112233445566aa"
TOOL = sys.argv[1]
BUILD = sys.argv[2]
F, I = T.FLOAT, T.INT64
os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=0")  # ONNX Runtime and MPI do not free everything at exit


def engine():
    """The ONNX Runtime library of the Python package."""
    found = glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi/libonnxruntime.so.*"))
    if not found and not os.environ.get("TESSERA_ORT"):
        print("skipped: no ONNX Runtime library")
        sys.exit(77)
    return os.environ.get("TESSERA_ORT") or found[0]


class Ran:
    def __init__(self, process, outputs):
        self.text = process.stdout + process.stderr
        self.code = process.returncode
        self.status = STATUS[self.code] if 0 <= self.code < len(STATUS) else str(self.code)
        self.outputs = outputs

    def __str__(self):
        return "%s\n%s" % (self.status, self.text)


def call(what, path, inputs="", launch=(), env=None, timeout=harness.HANG_S, tool=None, **options):
    """Run the tool; inputs is a tensor set, or a dictionary of arrays."""
    with tempfile.TemporaryDirectory() as d:
        if isinstance(inputs, dict):
            np.savez(os.path.join(d, "in.npz"), **inputs)
            inputs = os.path.join(d, "in.npz")
        out = os.path.join(d, "out.npz")
        words = [*launch, tool or TOOL, what, path, inputs, out, *("%s=%s" % kv for kv in options.items())]
        p = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=timeout, env={**os.environ, **(env or {})})
        return Ran(p, dict(np.load(out)) if os.path.exists(out) else {})


def run(path, inputs, **options):
    options.setdefault("engine", engine())
    return call("run", path, inputs, **options)


def comm(op, x, y, number, group, kind, token=None, plan=PLAN, extra=(), name=None, **attributes):
    """A communication node; tokens are numbered in the order of the rank's nodes (token, else number)."""
    token = number if token is None else token
    return h.make_node(op, [x, *extra, "token%d" % token if token else "ai.tessera.token"], [y, "token%d" % (token + 1)], name=name
                       or "%s_%d" % (op, number), domain="ai.tessera", plan=plan, id=number, group=list(group), elem_type=kind,
                       **attributes)


def value(name, kind=F, shape=None):
    return h.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, initializers=None, opset=17):
    """The model of a rank; its last token becomes an output."""
    nodes, outputs = list(nodes), list(outputs)
    tokens = sum(n.domain == "ai.tessera" for n in nodes)
    constants = [nh.from_array(np.asarray(v), k) for k, v in (initializers or {}).items()]
    if tokens:
        constants.append(nh.from_array(np.zeros(1, np.int64), "ai.tessera.token"))
        nodes.append(h.make_node("Identity", ["token%d" % tokens], ["ai.tessera.token.out"]))
        outputs.append(value("ai.tessera.token.out", I, [1]))
    g = h.make_graph(nodes, "rank", inputs, outputs, constants)
    return h.make_model(g, opset_imports=[h.make_opsetid("", opset), h.make_opsetid("ai.tessera", 1)], ir_version=8)


def partition(folder, models, inputs=None, plan=PLAN):
    """Write rank files and a manifest."""
    os.makedirs(folder, exist_ok=True)
    files, sizes = {}, {}
    for r, m in enumerate(models):
        data = m.SerializeToString()
        name = "rank%d.onnx" % r
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)
        files[name], sizes[name] = hashlib.sha256(data).hexdigest(), len(data)
    dtype = lambda v: h.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type).name if v.type.tensor_type.elem_type else "float32"
    port = lambda v: {"name": v.name, "type": dtype(v), "shape": [], "sharding": ""}
    doc = {
        "version": 1, "generator": "test", "model": {"name": "hand", "sha256": "0" * 64}, "configuration": "c", "plan": plan,
        "ranks": len(models), "devices": [{"rank": r, "device": "", "file": "rank%d.onnx" % r, "data": []}
                                          for r in range(len(models))], "inputs": [port(v) for v in models[0].graph.input],
        "outputs": [port(v) for v in models[0].graph.output if not v.name.startswith("ai.tessera")], "collectives": [], "replicated": [],
        "weights": [{"elements": 0, "bytes": 0}] * len(models), "files": files, "sizes": sizes
    }
    with open(os.path.join(folder, "manifest.json"), "w") as f:
        json.dump(doc, f)
    return folder


def mlp(n, rows=5, inner=12, width=7, seed=1):
    """A feed-forward block, unsharded and sharded by columns and rows for n ranks: (unsharded model, [rank models], input)."""
    rng = np.random.default_rng(seed)
    up, down = rng.normal(size=(width, inner)).astype("f4"), rng.normal(size=(inner, width)).astype("f4")
    ins, outs = [value("x", F, [rows, width])], [value("y", F, [rows, width])]
    body = [h.make_node("MatMul", ["x", "up"], ["a"]), h.make_node("Relu", ["a"], ["b"])]
    whole = model(body + [h.make_node("MatMul", ["b", "down"], ["y"])], ins, outs, {"up": up, "down": down})
    parts = []
    for r in range(n):
        a, b = r * inner // n, (r + 1) * inner // n
        parts.append(
            model(
                body +
                [h.make_node("MatMul", ["b", "down"], ["c"]),
                 comm("AllReduce", "c", "y", 0, range(n), F, reduce="sum", name="down_sum")], ins, outs,
                {"up": up[:, a:b], "down": down[a:b]}))
    return whole, parts, rng.normal(size=(rows, width)).astype("f4")


CASES = []


def case(f):
    CASES.append(f)
    return f


def main():
    """Run all cases."""
    harness.run(CASES)
    harness.finish()


def own_address():
    """An address of this host other than the loopback; None if there is none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect(("192.0.2.1", 9))  # sends no packet
            return s.getsockname()[0]
    except OSError:
        return None


def without_ranks():
    """The environment without the variables that a launcher sets."""
    return {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TESSERA_SECRET")}


def gathered_and_resharded(n, lengths):
    """Models of n ranks that gather, reshard and reduce vectors of these lengths; and the expected outputs by name."""
    cut, whole = [1, 1, 0, n, 1, 0, 0, n] + [v for r in range(n) for v in (1, r)], [1, 0, 0, 1, n] + list(range(n))
    nodes, constants, want = [], [{"two": np.float32(2)} for _ in range(n)], {}
    for k, length in enumerate(lengths):
        mine, a, b, c, e, y, s = ("%s%d" % (name, k) for name in ("mine", "a", "b", "c", "e", "y", "s"))
        nodes += [comm("AllGather", mine, a, 4 * k, range(n), F, axis=0), h.make_node("Mul", [a, "two"], [b]),
                  comm("Reshard", b, c, 4 * k + 1, range(n), F, extra=[s], source=whole, target=cut),
                  comm("Reshard", c, e, 4 * k + 2, range(n), F, extra=[s], source=cut, target=whole),
                  comm("AllReduce", e, y, 4 * k + 3, range(n), F, reduce="max")]
        pieces = [np.arange(length // n, dtype="f4") + 1000 * r for r in range(n)]
        for r in range(n):
            constants[r].update({mine: pieces[r], s: np.array([length])})
        want[y] = 2 * np.concatenate(pieces)
    return [model(nodes, [], [value(y) for y in want], constants[r]) for r in range(n)], want
