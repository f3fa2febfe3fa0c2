# SPDX-License-Identifier: Apache-2.0
"""The calls of libtessera that the hunt needs, through ctypes: load, annotate, check, plan, partition, run, all in one process. The
declarations come from the headers. Expected results are not computed here."""
import ctypes as c
import glob
import importlib.util
import os
import subprocess
import sys
import tempfile

import numpy as np

P, S, I, Z = c.c_void_p, c.c_char_p, c.c_int64, c.c_size_t
OK, INVALID, UNSUPPORTED, INFEASIBLE, ENGINE = 0, 5, 6, 7, 8
ERROR, WARNING = 0, 1
STRING = 8
NUMPY = {1: "f4", 2: "u1", 3: "i1", 4: "u2", 5: "i2", 6: "i4", 7: "i8", 9: "?", 10: "f2", 11: "f8", 12: "u4", 13: "u8"}
NUMBER = {np.dtype(text): number for number, text in NUMPY.items()}


ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def headers():
    """The folder of the headers of the program that is tested, the first argument of the script: it may be of another tree. Default: those
    of this tree."""
    theirs = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "..", "include") if len(sys.argv) > 1 else ""
    return theirs if os.path.exists(os.path.join(theirs, "tessera_cli.h")) else os.path.join(ROOT, "include")


def declarations():
    """The module that tools/bindings generates from the headers."""
    with tempfile.TemporaryDirectory(prefix="tessera-hunt-") as folder:
        path = os.path.join(folder, "declarations.py")
        files = [os.path.join(headers(), name) for name in ("tessera.h", "tessera_graph.h", "tessera_cli.h")]
        subprocess.run([sys.executable, os.path.join(ROOT, "tools/bindings"), path, *files], check=True)
        spec = importlib.util.spec_from_file_location("declarations", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


API = declarations()
Size, Dim, Rule = API.tsr_dim_size, API.tsr_dim, API.tsr_rule


def sized(kind, **fields):
    return kind(size=c.sizeof(kind), **fields)


def engine_library():
    """The C library of ONNX Runtime: TESSERA_ORT, or that of this Python."""
    if os.environ.get("TESSERA_ORT"):
        return os.environ["TESSERA_ORT"]
    import onnxruntime
    return sorted(glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi", "libonnxruntime.so*")))[-1]


class Failed(Exception):
    """A call of the library did not return TSR_OK: the call, the status, the diagnostics."""

    def __init__(self, what, status, findings, text):
        Exception.__init__(self, "%s: %s; %s" % (what, text, "; ".join("%s: %s" % f[:2] for f in findings[:3])))
        self.what, self.status, self.findings = what, status, findings


class Library:
    def __init__(self, path):
        self.lib = API.declare(c.CDLL(path))
        self.lib.tsr_tensors_text.restype = P  # its text does not end at a zero byte
        for name in API.FUNCTIONS:
            setattr(self, name[4:], getattr(self.lib, name))

    def rules(self):
        """All rows of the table, as dictionaries."""
        session, row, out, i = self.session_new(None), Rule(), [], 0
        row.size = c.sizeof(Rule)
        while self.rule_at(session, i, c.byref(row)):
            out.append(dict(op=row.op.decode(), domain=row.domain.decode(), since=row.since, whole=row.whole.decode(),
                            bodies=row.bodies))
            i += 1
        self.session_free(session)
        return out


def sizes_array(sizes):
    return (Size * max(1, len(sizes)))(*[Size(name.encode(), size) for name, size in sizes.items()]), len(sizes)


def first_output(lib, node):
    """The name of a node's first output, which identifies the node: names of values are unique in the models of the hunt."""
    for i in range(lib.node_output_count(node)):
        v = lib.node_output(node, i)
        if v:
            return lib.value_name(v).decode()
    return ""


class Session:
    """A session and its objects, which are freed together."""

    def __init__(self, lib):
        self.lib, self.handle, self.models = lib, lib.session_new(None), []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for m in self.models:
            self.lib.model_free(m)
        self.lib.session_free(self.handle)

    def findings(self):
        out = []
        for i in range(self.lib.finding_count(self.handle)):
            f = self.lib.finding_value(self.handle, i)
            text = lambda b: b.decode(errors="replace")
            out.append((text(f.code), text(f.message), f.severity, text(f.node), text(f.value), text(f.op)))
        return out

    def must(self, what, status):
        if status != OK:
            text = self.lib.status_text(status).decode()
            raise Failed(what, status, [f for f in self.findings() if f[2] == ERROR] or self.findings(), text)

    def load(self, path):
        out = P()
        self.must("load", self.lib.model_load(self.handle, path.encode(), c.byref(out)))
        self.models.append(out)
        return Model(self, out)

    def tensors(self, arrays=None):
        out = P()
        self.must("tensors", self.lib.tensors_new(self.handle, c.byref(out)))
        for name, a in (arrays or {}).items():
            a = np.ascontiguousarray(a).reshape(np.shape(a))
            dims = (I * max(1, a.ndim))(*a.shape)
            if a.dtype.kind in "OUST":
                texts = (S * max(1, a.size))(*[str(t).encode() for t in a.ravel()])
                self.must("put", self.lib.tensors_put_texts(out, name.encode(), a.ndim, dims, texts, None))
            else:
                number = NUMBER[a.dtype]
                self.must("put", self.lib.tensors_put(out, name.encode(), number, a.ndim, dims, a.ctypes.data))
        return out

    def arrays(self, tensors):
        """A tensor set as arrays; a sequence is a list; None: an optional without a value."""
        lib, out = self.lib, {}
        for i in range(lib.tensors_count(tensors)):
            rank, number = lib.tensors_rank(tensors, i), lib.tensors_dtype(tensors, i)
            name, bytes_ = lib.tensors_name(tensors, i).decode(), Z()
            if rank < 0:
                elements = lib.tensors_sequence(tensors, i)
                out[name] = list(self.arrays(elements).values()) if elements else None
                continue
            dims = [lib.tensors_dims(tensors, i)[k] for k in range(rank)]
            if number == STRING:
                count = int(np.prod(dims, dtype=int))
                texts = [c.string_at(lib.tensors_text(tensors, i, k, c.byref(bytes_)), bytes_.value).decode()
                         for k in range(count)]
                out[name] = np.array(texts, dtype=object).reshape(dims)
                continue
            data = lib.tensors_data(tensors, i, c.byref(bytes_))
            raw = c.string_at(data, bytes_.value) if bytes_.value else b""
            out[name] = np.frombuffer(raw, dtype=NUMPY.get(number, "u1")).reshape(dims if number in NUMPY else [-1])
        return out

    def run(self, folder, sets, transport="threads", optimize=None, timeout=60.0):
        """Run a partition for each set of inputs, one after the other in one job; returns the results."""
        options = sized(API.tsr_run_options, transport=getattr(API, "TSR_TRANSPORT_" + transport.upper()), threads=1, timeout_s=timeout,
                        optimize=0 if optimize is None else optimize + 1, no_pin=True)
        self.must("engine", self.lib.engine_open(self.handle, engine_library().encode(), None, None))
        job, results = P(), []
        self.must("open", self.lib.job_open(self.handle, folder.encode(), c.byref(options), c.byref(job)))
        try:
            for arrays in sets:
                inputs, outputs = self.tensors(arrays), self.tensors()
                status = self.lib.job_run(job, inputs, outputs)
                if status == OK:
                    results.append(self.arrays(outputs))
                self.lib.tensors_free(inputs)
                self.lib.tensors_free(outputs)
                self.must("run", status)
        finally:
            self.lib.job_close(job)
        return results


class Model:
    def __init__(self, session, handle):
        self.session, self.lib, self.handle, self.config = session, session.lib, handle, None

    def add_config(self, name, devices):
        out = P()
        status = self.lib.model_add_config(self.handle, name.encode(), devices, None, 0, c.byref(out))
        self.session.must("config", status)
        self.config = out

    def nodes(self):
        """All nodes, including those of subgraphs: (handle, {value name: handle}, inputs before outputs)."""
        node, out = self.lib.model_next_node(self.handle, None), []
        while node:
            values = {}
            for count, at in (("node_input_count", "node_input"), ("node_output_count", "node_output")):
                for i in range(getattr(self.lib, count)(node)):
                    v = getattr(self.lib, at)(node, i)
                    if v:
                        values[self.lib.value_name(v).decode()] = v
            out.append((node, values))
            node = self.lib.model_next_node(self.handle, node)
        return out

    def spec_words(self, spec):
        """The raw fields of a spec: (axes: [(axis, [(size or symbol or None, shards)])], devices: a list for each shard)."""
        lib, dims = self.lib, []
        for i in range(lib.spec_dim_count(spec)):
            factors = []
            for k in range(lib.spec_dim_factor_count(spec, i)):
                size = Dim()
                shards = lib.spec_dim_factor(spec, i, k, c.byref(size))
                factors.append((size.value if size.value >= 0 else (size.symbol or b"").decode() or None, shards))
            dims.append((lib.spec_dim_axis(spec, i), factors))
        groups = {}
        for i in range(lib.spec_group_count(spec)):
            members, n = c.POINTER(I)(), Z()
            key = lib.spec_group(spec, i, c.byref(members), c.byref(n))
            groups[key] = [members[k] for k in range(n.value)]
        devices = c.POINTER(I)()
        n = lib.spec_devices(spec, c.byref(devices))
        return dims, [groups.get(devices[k], [devices[k]]) for k in range(n)]

    def annotations(self):
        """All specs and stages: (first output of the node, value, spec words) and (first output, None, stage)."""
        lib, out = self.lib, []
        for node, values in self.nodes():
            name = first_output(lib, node)
            for i in range(lib.node_config_count(node)):
                entry, stage = lib.node_config_at(node, i), I()
                if lib.node_config_stage(entry, c.byref(stage)):
                    out.append((name, None, stage.value))
                for k in range(lib.node_config_spec_count(entry)):
                    spec = lib.node_config_spec(entry, k)
                    out.append((name, lib.value_name(lib.spec_value(spec)).decode(), self.spec_words(spec)))
        return out

    def edits(self):
        out = S()
        self.session.must("edits", self.lib.config_edits(self.handle, self.config, c.byref(out)))
        return out.value.decode().splitlines()

    def shard_random(self, seed, sizes):
        array, n = sizes_array(sizes)
        status = self.lib.model_shard_random(self.handle, self.config, seed, array, n)
        self.session.must("random", status)

    def check(self):
        """Errors that the checker reports for the annotations."""
        self.lib.finding_clear(self.session.handle)
        self.session.must("check", self.lib.check(self.handle, None))
        out = [f for f in self.session.findings() if f[2] == ERROR]
        self.lib.finding_clear(self.session.handle)
        return out

    def infer(self, propagate):
        options = sized(API.tsr_infer_options, propagate=propagate)
        self.session.must("infer", self.lib.infer(self.handle, c.byref(options)))

    def plan(self, devices, inputs, memory=0, stages=0):
        tensors = self.session.tensors(inputs)
        options = sized(API.tsr_plan_options, devices=devices, memory=memory, stages=stages)
        status = self.lib.plan_for_inputs(self.handle, c.byref(options), tensors, None)
        self.lib.tensors_free(tensors)
        self.session.must("plan", status)
        self.config = P(self.lib.model_config(self.handle, 0))

    def partition(self, folder, force=False):
        """Write the partition; (number of nodes, number of sharded ones)."""
        options, facts = sized(API.tsr_partition_options, force=force), sized(API.tsr_partition_facts)
        result = P()
        status = self.lib.partition(self.handle, folder.encode(), c.byref(options), c.byref(result))
        self.session.must("partition", status)
        self.lib.partition_result_about(result, c.byref(facts))
        self.lib.partition_result_free(result)
        return facts.nodes, facts.cut_nodes

    def save(self, path):
        self.session.must("save", self.lib.model_save(self.handle, path.encode()))
