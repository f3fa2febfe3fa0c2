# SPDX-License-Identifier: Apache-2.0
"""libtessera through ctypes, and partitions made by hand: what the tests of running share."""
import ctypes as C
import glob
import hashlib
import json
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper as h, numpy_helper as nh

BUILD = os.environ.get("TESSERA_BUILD", "build")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
STATUS = "OK NOMEM IO WRITE MALFORMED INVALID UNSUPPORTED INFEASIBLE ENGINE PEER DIFFERENT USAGE BUG".split()
PLAN = "00112233445566aa"


class RunOptions(C.Structure):
    _fields_ = [("size", C.c_size_t), ("transport", C.c_char_p), ("ort_ops", C.c_char_p), ("optimize", C.c_int), ("threads", C.c_int),
                ("timeout_s", C.c_double), ("check_files", C.c_bool), ("plugins", C.c_char_p)]


class Finding(C.Structure):
    _fields_ = [("code", C.c_char_p), ("severity", C.c_int), ("message", C.c_char_p), ("hint", C.c_char_p)] + [
        (name, C.c_char_p) for name in "file graph node op value configuration".split()] + [
        ("offset", C.c_uint64), ("node_index", C.c_int64), ("axis", C.c_int64), ("rank", C.c_int64)]


lib = C.CDLL(os.path.join(BUILD, "libtessera.so"))
for name, result in {"tsr_session_new": C.c_void_p, "tsr_finding_at": Finding, "tsr_finding_count": C.c_size_t, "tsr_tensors_count": C.c_size_t,
                     "tsr_tensors_name": C.c_char_p, "tsr_tensors_dims": C.POINTER(C.c_int64), "tsr_tensors_data": C.c_void_p,
                     "tsr_finding_text": C.c_char_p}.items():
    getattr(lib, name).restype = result


def engine():
    """ONNX Runtime's library inside the Python package, or None."""
    import importlib.util
    spec = importlib.util.find_spec("onnxruntime")
    found = glob.glob(os.path.join(spec.submodule_search_locations[0], "capi/libonnxruntime.so.*")) if spec else []
    return os.environ.get("TESSERA_ORT") or (found[0] if found else None)


class Session:
    def __init__(self, with_engine=True):
        self.p = C.c_void_p(lib.tsr_session_new(None))
        if with_engine:
            if not engine():
                print("left out: no ONNX Runtime library")
                sys.exit(77)
            assert self.status(lib.tsr_engine_open(self.p, engine().encode(), None, None)) == "OK", self.findings()

    def __del__(self):
        lib.tsr_session_free(self.p)

    def status(self, code):
        return STATUS[code]

    def findings(self):
        return [lib.tsr_finding_at(self.p, C.c_size_t(i)) for i in range(lib.tsr_finding_count(self.p))]

    def text(self):
        return "".join(lib.tsr_finding_text(self.p, C.c_size_t(i)).decode() for i in range(lib.tsr_finding_count(self.p)))

    def codes(self):
        return [f.code.decode() for f in self.findings()]

    def tensors(self, arrays={}):
        t = C.c_void_p()
        assert lib.tsr_tensors_new(self.p, C.byref(t)) == 0
        for key, a in arrays.items():
            a = np.ascontiguousarray(a)
            kind = h.np_dtype_to_tensor_dtype(a.dtype)
            assert lib.tsr_tensors_put(t, key.encode(), kind, a.ndim, (C.c_int64 * max(a.ndim, 1))(*a.shape), a.ctypes.data_as(C.c_void_p)) == 0
        return t

    def arrays(self, t):
        out = {}
        for i in range(lib.tsr_tensors_count(t)):
            i = C.c_size_t(i)
            n = C.c_size_t()
            p = lib.tsr_tensors_data(t, i, C.byref(n))
            dims = lib.tsr_tensors_dims(t, i)[:lib.tsr_tensors_rank(t, i)]
            kind = h.tensor_dtype_to_np_dtype(lib.tsr_tensors_dtype(t, i))
            out[lib.tsr_tensors_name(t, i).decode()] = np.frombuffer(C.string_at(p, n.value), kind).reshape(dims)
        return out

    def run(self, path, inputs, **options):
        o = RunOptions(size=C.sizeof(RunOptions))
        for key, value in options.items():
            setattr(o, key, value)
        a, b = self.tensors(inputs), self.tensors()
        call = lib.tsr_run if os.path.isdir(path) else lib.tsr_run_model
        status = self.status(call(self.p, path.encode(), C.byref(o), a, b))
        out = self.arrays(b)
        lib.tsr_tensors_free(a)
        lib.tsr_tensors_free(b)
        return status, out


def comm(op, x, y, token, number, group, kind, plan=PLAN, extra=(), **attributes):
    """A communication node; token is the number of the one before (0: the first)."""
    return h.make_node(op, [x, *extra, "ai.tessera.token" if token == 0 else "token%d" % token], [y, "token%d" % (token + 1)],
                       name=attributes.pop("name", "%s_%d" % (op, number)), domain="ai.tessera", plan=plan, id=number, group=list(group), elem_type=kind, **attributes)


def model(nodes, inputs, outputs, initializers=(), tokens=0):
    """A rank's model: the last token becomes an output."""
    nodes = list(nodes)
    outputs = list(outputs)
    initializers = [nh.from_array(np.asarray(v), k) for k, v in dict(initializers).items()]
    if tokens:
        initializers.append(nh.from_array(np.zeros(1, np.int64), "ai.tessera.token"))
        nodes.append(h.make_node("Identity", ["token%d" % tokens], ["ai.tessera.token.out"]))
        outputs.append(h.make_tensor_value_info("ai.tessera.token.out", T.INT64, [1]))
    g = h.make_graph(nodes, "rank", inputs, outputs, initializers)
    return h.make_model(g, opset_imports=[h.make_opsetid("", 17), h.make_opsetid("ai.tessera", 1)], ir_version=8)


def partition(folder, models, inputs=(), outputs=(), plan=PLAN):
    """Writes rank files and a manifest."""
    os.makedirs(folder, exist_ok=True)
    files, sizes = {}, {}
    for r, m in enumerate(models):
        data = m.SerializeToString()
        name = "rank%d.onnx" % r
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)
        files[name], sizes[name] = hashlib.sha256(data).hexdigest(), len(data)
    port = lambda v: {"name": v.name, "type": "float32", "shape": [d.dim_value for d in v.type.tensor_type.shape.dim], "sharding": ""}
    doc = {"version": 1, "generator": "test", "model": {"name": "hand", "sha256": "0" * 64}, "configuration": "c", "plan": plan, "ranks": len(models),
           "devices": [{"rank": r, "device": "", "file": "rank%d.onnx" % r, "data": []} for r in range(len(models))],
           "inputs": [port(v) for v in inputs], "outputs": [port(v) for v in outputs], "collectives": [], "replicated": [],
           "weights": [{"elements": 0, "bytes": 0}] * len(models), "files": files, "sizes": sizes}
    with open(os.path.join(folder, "manifest.json"), "w") as f:
        json.dump(doc, f)
    return folder


def mlp(n, rows=5, inner=12, width=7, kind=np.float32, seed=1):
    """A feed-forward block whole and cut column-then-row for n ranks: (whole, [rank models], input, inputs, outputs)."""
    rng = np.random.default_rng(seed)
    up, down = rng.normal(size=(width, inner)).astype(kind), rng.normal(size=(inner, width)).astype(kind)
    t = h.np_dtype_to_tensor_dtype(np.dtype(kind))
    ins, outs = [h.make_tensor_value_info("x", t, [rows, width])], [h.make_tensor_value_info("y", t, [rows, width])]
    whole = model([h.make_node("MatMul", ["x", "up"], ["a"]), h.make_node("Relu", ["a"], ["b"]), h.make_node("MatMul", ["b", "down"], ["y"])],
                  ins, outs, {"up": up, "down": down})
    parts = []
    for r in range(n):
        a, b = r * inner // n, (r + 1) * inner // n
        parts.append(model([h.make_node("MatMul", ["x", "up"], ["a"]), h.make_node("Relu", ["a"], ["b"]), h.make_node("MatMul", ["b", "down"], ["c"]),
                            comm("AllReduce", "c", "y", 0, 0, range(n), t, reduce="sum", name="down_sum")],
                           ins, outs, {"up": up[:, a:b], "down": down[a:b]}, tokens=1))
    return whole, parts, rng.normal(size=(rows, width)).astype(kind), ins, outs
