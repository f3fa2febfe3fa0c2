# SPDX-License-Identifier: Apache-2.0
"""Tests plans of decoders that normalize queries and keys, as Qwen3, Gemma 3 and OLMo 2 do. A layer must need two AllReduces and nothing
else, because each device can normalize its own heads. A norm over all heads (OLMo 2) needs the sums of queries and keys in addition.

Layers differ in these ways:
    norm       rows: of each head, where rows and heads are one dimension; heads: of each head, in [batch, rows, heads, elements];
               computed: as heads, with sizes computed from the input; all: over all heads
    operator   SimplifiedLayerNormalization, RMSNormalization, or nodes of both
    attention  GroupQueryAttention, MultiHeadAttention, Attention with 3 or 4 dimensions, or plain nodes
    weights    float32, or 4 bits in blocks (MatMulNBits)
    sizes      open: batch, rows and past are symbols; plans are for one row, runs have three. fixed: they are numbers

usage: head_norms.py TESSERA"""
import json, os, sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness

TESSERA = sys.argv[1]
HIDDEN, HEADS, KEYS, SIZE, LAYERS = 256, 8, 4, 32, 2
PAST, RUN_ROWS = 6, 3


class Decoder:
    def __init__(self, norm, operator, attention, weights, sizes):
        self.kind, self.operator, self.attention, self.weights, self.sizes = norm, operator, attention, weights, sizes
        # with 4 bits, two rows would be sharded by rows: the arithmetic takes longer than the weights
        self.rows = 2 if weights == "float32" and sizes == "fixed" else 1
        self.rng = np.random.default_rng(7)
        self.nodes, self.inits, self.ins, self.outs = [], [], [], []
        # MultiHeadAttention has no groups of queries; its caches are those of the other operators
        self.keys = HEADS if attention == "MultiHeadAttention" else KEYS

    def constant(self, name, value):
        self.inits.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op, ins, *outs, domain="", **attributes):
        self.nodes.append(helper.make_node(op, ins, list(outs), name=outs[0] + "/node", domain=domain, **attributes))
        return outs[0]

    def project(self, x, name, rows, columns):
        if self.weights == "float32":
            w = (self.rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype("f4")
            return self.node("MatMul", [x, self.constant(name + ".w", w)], name)
        codes = self.rng.integers(0, 256, (columns, rows // 32, 16), "u1")
        scales = np.full((columns, rows // 32), 0.2 / np.sqrt(rows), "f4")
        return self.node("MatMulNBits", [x, self.constant(name + ".w", codes), self.constant(name + ".s", scales)], name,
                         domain="com.microsoft", K=rows, N=columns, bits=4, block_size=32)

    def normalize(self, x, name, size):
        scale = self.constant(name + ".scale", (1 + 0.1 * self.rng.standard_normal(size)).astype("f4"))
        if self.operator != "nodes":
            return self.node(self.operator, [x, scale], name, axis=-1, epsilon=1e-6)
        square = self.node("Pow", [x, self.constant(name + ".two", np.float32(2))], name + ".square")
        mean = self.node("ReduceMean", [square, self.constant(name + ".last", [-1])], name + ".mean", keepdims=1)
        positive = self.node("Add", [mean, self.constant(name + ".small", np.float32(1e-6))], name + ".positive")
        root = self.node("Sqrt", [positive], name + ".root")
        return self.node("Mul", [scale, self.node("Div", [x, root], name + ".div")], name)

    def split(self, x, name, heads, kind):
        """x [batch, rows, heads * SIZE] with its heads apart."""
        target = self.constant(name + ".target", [0, -1, SIZE] if kind == "rows" else [0, 0, heads, SIZE])
        if kind == "computed":
            lead = self.node("Shape", [x], name + ".lead", start=0, end=2)
            target = self.node("Concat", [lead, self.constant(name + ".own", [-1, SIZE])], name + ".sizes", axis=0)
        return self.node("Reshape", [x, target], name)

    def join(self, x, name, heads):
        return self.node("Reshape", [x, self.constant(name + ".target", [0, -1, heads * SIZE])], name)

    def normalize_heads(self, x, name, heads):
        """Returns [batch, rows, heads * SIZE]."""
        if self.kind == "all":
            return self.normalize(x, name + ".norm", heads * SIZE)
        apart = self.split(x, name + ".apart", heads, self.kind)
        return self.join(self.normalize(apart, name + ".norm", SIZE), name + ".together", heads)

    def transposed(self, x, name, heads):
        return self.node("Transpose", [self.split(x, name + ".split", heads, "heads")], name + ".transposed", perm=[0, 2, 1, 3])

    def plain(self, q, k, v, caches, name):
        """Attention of plain nodes; the past is not masked. Returns [batch, rows, HEADS * SIZE] and both caches."""
        new = [self.node("Concat", [cache, self.transposed(x, which, self.keys)], which + ".all", axis=2)
               for cache, x, which in zip(caches, (k, v), (name + ".k", name + ".v"))]
        groups = self.constant(name + ".groups", [0, self.keys, HEADS // self.keys, -1, SIZE])
        queries = self.node("Reshape", [self.transposed(q, name + ".q", HEADS), groups], name + ".q.groups")
        keys, values = (self.node("Unsqueeze", [x, self.constant(x + ".axis", [2])], x + ".group") for x in new)
        turned = self.node("Transpose", [keys], name + ".turned", perm=[0, 1, 2, 4, 3])
        scores = self.node("Softmax", [self.node("MatMul", [queries, turned], name + ".scores")], name + ".soft", axis=-1)
        mixed = self.node("MatMul", [scores, values], name + ".mixed")
        order = self.node("Transpose", [mixed], name + ".order", perm=[0, 3, 1, 2, 4])
        return self.node("Reshape", [order, self.constant(name + ".full", [0, 0, HEADS * SIZE])], name), new

    def attend(self, q, k, v, caches, name):
        presents = [name + ".present.k", name + ".present.v"]
        if self.attention == "GroupQueryAttention":
            self.node(self.attention, [q, k, v, *caches, "lengths", "total"], name, *presents, domain="com.microsoft", num_heads=HEADS,
                      kv_num_heads=KEYS)
        elif self.attention == "MultiHeadAttention":
            self.node(self.attention, [q, k, v, "", "", "", *caches], name, *presents, domain="com.microsoft", num_heads=HEADS)
        elif self.attention == "Attention 3":
            self.node("Attention", [q, k, v, "", *caches], name, *presents, q_num_heads=HEADS, kv_num_heads=KEYS)
        elif self.attention == "Attention 4":
            apart = [self.transposed(x, "%s.%s" % (name, which), heads)
                     for x, which, heads in ((q, "q", HEADS), (k, "k", KEYS), (v, "v", KEYS))]
            self.node("Attention", [*apart, "", *caches], name + ".apart", *presents)
            self.join(self.node("Transpose", [name + ".apart"], name + ".turned", perm=[0, 2, 1, 3]), name, HEADS)
        else:
            return self.plain(q, k, v, caches, name)
        return name, presents

    def layer(self, x, i):
        name = "layer%d" % i
        n = self.normalize(x, name + ".norm", HIDDEN)
        q, k, v = (self.project(n, "%s.%s" % (name, which), HIDDEN, heads * SIZE)
                   for which, heads in (("q", HEADS), ("k", self.keys), ("v", self.keys)))
        q, k = (self.normalize_heads(value, value, heads) for value, heads in ((q, HEADS), (k, self.keys)))
        caches = ["past.%d.%s" % (i, which) for which in ("key", "value")]
        attended, presents = self.attend(q, k, v, caches, name + ".attended")
        for kind, names, ports in (("past", caches, self.ins), ("total", presents, self.outs)):
            ports += [helper.make_tensor_value_info(port, TensorProto.FLOAT, ["batch", self.keys, kind, SIZE]) for port in names]
        x = self.node("Add", [x, self.project(attended, name + ".out", HEADS * SIZE, HIDDEN)], name + ".mid")
        n = self.normalize(x, name + ".norm2", HIDDEN)
        up = self.node("Relu", [self.project(n, name + ".up", HIDDEN, 4 * HIDDEN)], name + ".relu")
        return self.node("Add", [x, self.project(up, name + ".down", 4 * HIDDEN, HIDDEN)], name + ".end")

    def model(self):
        x = "x"
        if self.attention == "GroupQueryAttention":
            rows = self.rows if self.sizes == "fixed" else RUN_ROWS
            self.constant("lengths", np.array([PAST + rows - 1], "i4"))
            self.constant("total", np.array(PAST + rows, "i4"))
        for i in range(LAYERS):
            x = self.layer(x, i)
        port = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "rows", HIDDEN])
        graph = helper.make_graph(self.nodes, "g", [port("x"), *self.ins], [port(x), *self.outs], self.inits)
        if self.sizes == "fixed":
            for value in [*graph.input, *graph.output]:
                for dim in value.type.tensor_type.shape.dim:
                    if dim.dim_param:
                        dim.dim_value = {"batch": 1, "rows": self.rows, "past": PAST, "total": PAST + self.rows}[dim.dim_param]
        return helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)])


def topology(path, n):
    """Devices with weights in slow memory and links that are fast enough for two AllReduces."""
    doc = {"devices": [{"name": "CPU", "memory": 1 << 34, "flops": 5e10, "bandwidth": 1e10} for d in range(n)],
           "links": [{"from": a, "to": b, "latency": 2e-6, "bandwidth": 1e10} for a in range(n) for b in range(n) if a != b]}
    with open(path, "w") as f:
        json.dump(doc, f)
    return path


def check(d, n, *kind):
    decoder = Decoder(*kind)
    path, planned = os.path.join(d, "model.onnx"), os.path.join(d, "planned.onnx")
    model = decoder.model()
    onnx.save(model, path)
    states = [w for before, after in zip(decoder.ins, decoder.outs) for w in ("--state", "%s=%s" % (before.name, after.name))]
    dims = lambda rows: ["--dim=batch=1", "--dim=rows=%d" % rows, "--dim=past=%d" % PAST] if decoder.sizes == "open" else []
    rc, _, err = harness.call(TESSERA, "plan", path, "--devices", topology(os.path.join(d, "t.json"), n), *states, *dims(1), "-o",
                              planned)
    assert rc == 0, err
    rc, out, err = harness.call(TESSERA, "verify", planned, *dims(RUN_ROWS), "--json")
    assert out.startswith("{"), err
    doc = json.loads(out)
    assert rc == 0 and doc.get("ok"), str(doc)[:600]
    found = dict(doc["collectives"])
    # An AllReduce may be a ReduceScatter and a gather. Heads that were not sharded would need more gathers, of queries and keys.
    scattered = found.pop("ReduceScatter", 0)
    sums, gathers = found.pop("AllReduce", 0) + scattered, sum(found.values())
    want = 4 if decoder.kind == "all" else 2  # all: also the sums of squares of queries and of keys
    assert sums == want * LAYERS and gathers <= scattered, (doc["collectives"], doc["replicated"])


def main():
    simple, rms, nodes = "SimplifiedLayerNormalization", "RMSNormalization", "nodes"
    group, multi, three, four, plain = "GroupQueryAttention", "MultiHeadAttention", "Attention 3", "Attention 4", "plain"
    jobs = []
    for sizes in ("open", "fixed"):
        for norm in ("rows", "heads", "computed"):
            jobs += [(2, norm, simple, group, "int4", sizes), (2, norm, rms, three, "float32", sizes),
                     (2, norm, nodes, plain, "float32", sizes)]
        jobs += [(4, "rows", simple, group, "float32", sizes), (4, "rows", simple, group, "int4", sizes),
                 (2, "heads", rms, four, "int4", sizes), (2, "rows", rms, four, "float32", sizes),
                 (2, "rows", simple, multi, "float32", sizes), (2, "heads", nodes, multi, "int4", sizes),
                 (2, "rows", nodes, plain, "int4", sizes), (2, "all", simple, group, "int4", sizes),
                 (2, "all", rms, three, "float32", sizes), (2, "all", nodes, plain, "float32", sizes)]
    harness.run([("%d %s" % (job[0], ", ".join(job[1:])), check, *job) for job in jobs])
    harness.finish()


main()
