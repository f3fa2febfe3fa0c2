# SPDX-License-Identifier: Apache-2.0
"""Tests models planned for 2, 3, 4 and 8 devices without hand edits: they must run and equal the unsharded model. Also random small
models with random memory limits, and sums of partial results that must be reduced once.

usage: planned.py TESSERA MODELS [all]     without `all` a sample of the numbers of devices, models and random graphs"""
import json, os, random, sys

import numpy as np
import onnx
import onnx.inliner
from onnx import TensorProto, helper, numpy_helper

import harness

TESSERA, MODELS = sys.argv[1:3]


def call(*args):
    rc, out, err = harness.call(TESSERA, *args)
    return rc, json.loads(out) if out.startswith("{") else {}, err


def save(path, nodes, inputs, outputs, weights):
    typed = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in x] for x in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", typed[0], typed[1], [numpy_helper.from_array(w, n) for n, w in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


class Net:
    """A random graph: values with their shapes, and weights that are created when they are needed."""

    def __init__(self, seed):
        self.pick = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.nodes, self.weights, self.n = [], {}, 0
        self.values = []
        self.inputs = [("x%d" % i, [self.pick.choice((4, 6, 8)), self.pick.choice((8, 12, 16))]) for i in range(self.pick.randint(1, 2))]
        self.values += self.inputs

    def weight(self, *shape):
        self.weights["w%d" % len(self.weights)] = (self.numbers.standard_normal(shape) / max(1, shape[0]) ** 0.5).astype(np.float32)
        return "w%d" % (len(self.weights) - 1)

    def add(self, op, inputs, shape, **attributes):
        name = "v%d" % self.n
        self.n += 1
        self.nodes.append(helper.make_node(op, inputs, [name], "n_" + name, **attributes))
        self.values.append((name, list(shape)))
        return name

    def step(self):
        x, shape = self.pick.choice(self.values[-3:])
        kind = self.pick.choice(["product", "product", "product", "add", "relu", "softmax", "norm", "turn", "shape", "join", "sum"])
        if kind == "product":
            n = self.pick.choice((8, 12, 24))
            self.add("MatMul", [x, self.weight(shape[-1], n)], shape[:-1] + [n])
        elif kind == "add":
            same = [v for v, s in self.values if s == shape and v != x]
            self.add("Add", [x, self.pick.choice(same) if same else self.weight(shape[-1])], shape)
        elif kind == "relu":
            self.add("Relu", [x], shape)
        elif kind == "softmax":
            self.add("Softmax", [x], shape, axis=-1)
        elif kind == "norm":
            self.add("LayerNormalization", [x, self.weight(shape[-1])], shape, axis=-1)
        elif kind == "turn":
            self.add("Transpose", [x], shape[::-1], perm=list(range(len(shape)))[::-1])
        elif kind == "shape" and len(shape) == 2 and shape[1] % 4 == 0:
            self.weights["s%d" % self.n] = np.array([shape[0], 4, shape[1] // 4], np.int64)
            self.add("Reshape", [x, "s%d" % self.n], [shape[0], 4, shape[1] // 4])
        elif kind == "join":
            self.add("Concat", [x, x], shape[:-1] + [2 * shape[-1]], axis=-1)
        elif kind == "sum" and len(shape) == 3:
            self.weights["s%d" % self.n] = np.array([1], np.int64)
            self.add("ReduceSum", [x, "s%d" % self.n], [shape[0], shape[2]], keepdims=0)

    def save(self, path):
        for _ in range(self.pick.randint(4, 14)):
            self.step()
        if not self.nodes:
            self.add("Relu", [self.inputs[0][0]], self.inputs[0][1])
        read = {i for n in self.nodes for i in n.input}
        outputs = [v for v in self.values if v[0] not in read and v[0].startswith("v")]
        save(path, self.nodes, [v for v in self.inputs], outputs, self.weights)


def verify(path, *args):
    rc, doc, err = call("verify", path, *args, "--json")
    assert rc == 0 and doc.get("ok"), "verify %s: exit %d %s %s" % (args, rc, doc.get("outputs"), err)
    assert doc.get("recorded") is not False, doc
    return doc


# A model of tests/models, planned and compared with its recorded outputs.
def model(d, name, n):
    folder = os.path.join(MODELS, name)
    assert verify(os.path.join(folder, "model.onnx"), "--devices", n, "--inputs", os.path.join(folder, "test_data_set_0"))["recorded"]


# A random graph with several memory limits: plans must stay within each, and none may fit into less than the reported minimum.
def drawn(d, seed):
    path, planned = os.path.join(d, "m.onnx"), os.path.join(d, "p.onnx")
    Net(seed).save(path)
    n = (2, 3, 4, 8)[seed % 4]
    rc, free, err = call("plan", path, "--devices", n, "-o", planned, "--json")
    assert rc == 0 and free["optimal"], err
    rc, least, err = call("plan", path, "--devices", n, "--memory", 1, "--json")
    assert rc == 4 and least["needs_bytes"] > 0 and least["binding"], err
    needs, most = least["needs_bytes"], max(free["memory"])
    for memory in sorted({needs, needs + max(0, most - needs) // 2, max(needs, most)}):
        rc, doc, err = call("plan", path, "--devices", n, "--memory", memory, "-o", planned, "--json")
        assert rc == 0 and max(doc["memory"]) <= memory and doc["cost"] >= free["cost"], (memory, doc.get("memory"), err)
        rc, _, err = call("check", planned)
        assert rc == 0, err
        verify(planned, "--inputs", "random:%d" % seed)
    less = needs * 99 // 100 - 1  # needs_bytes is exact within 1 %
    rc, _, _ = call("plan", path, "--devices", n, "--memory", less)
    assert rc == 4, "fits into %d, although it needs %d" % (less, needs)


def parts(d, n):
    """x + a(x) + b(x): the partial sums of a and b must be added before one reduction, and x must be added once."""
    path, planned = os.path.join(d, "m.onnx"), os.path.join(d, "p.onnx")
    draw = np.random.default_rng(n)
    weights, nodes = {}, []
    for b in "ab":
        weights[b + "1"], weights[b + "2"] = (draw.standard_normal(s).astype(np.float32) / 16 for s in ((64, 256), (256, 64)))
        nodes += [helper.make_node("MatMul", ["x", b + "1"], [b + "h"]), helper.make_node("Relu", [b + "h"], [b + "r"]),
                  helper.make_node("MatMul", [b + "r", b + "2"], [b + "y"])]
    nodes += [
        helper.make_node("Add", ["x", "ay"], ["s"]),
        helper.make_node("Add", ["s", "by"], ["t"]),
        helper.make_node("Tanh", ["t"], ["y"])
    ]
    save(path, nodes, [("x", [16, 64])], [("y", [16, 64])], weights)
    rc, doc, err = call("plan", path, "--devices", n, "--memory", 4 * 65536 // n + 40000, "-o", planned, "--json")
    assert rc == 0, err
    got = verify(planned, "--inputs", "random:1")
    sums = {k: v for k, v in got["collectives"].items() if k in ("AllReduce", "ReduceScatter", "Reduce")}
    assert sum(sums.values()) == 1, got["collectives"]
    assert "ai.tessera.delay" in [p.key for p in onnx.load(planned).metadata_props]
    written, again = os.path.join(d, "plan.json"), os.path.join(d, "again.onnx")
    rc, _, err = call("plan", path, "--devices", n, "--memory", 4 * 65536 // n + 40000, "--plan", written)
    assert rc == 0, err
    rc, _, err = call("annotate", path, "--script", written, "-o", again)
    assert rc == 0, err
    assert verify(again, "--inputs", "random:1")["collectives"] == got["collectives"]


def calls(d, n):
    """Two calls of a function that calls another one: the plan must be that of the model with inlined functions."""
    path, inlined, planned = (os.path.join(d, name) for name in ("m.onnx", "i.onnx", "p.onnx"))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    linear = helper.make_function("my", "Linear", ["x", "w"], ["y"],
                                  [helper.make_node("MatMul", ["x", "w"], ["m"]),
                                   helper.make_node("Tanh", ["m"], ["y"])], opsets)
    block = helper.make_function("my", "Block", ["x", "a", "b"], ["y"], [helper.make_node("Linear", ["x", "a"], ["h"], domain="my"),
                                                                       helper.make_node("Linear", ["h", "b"], ["y"], domain="my")], opsets)
    draw = np.random.default_rng(n)
    weights = {
        name: draw.standard_normal(s).astype(np.float32) / 16
        for name, s in (("a", (64, 256)), ("b", (256, 64)), ("c", (64, 256)), ("d", (256, 64)))
    }
    save(path,
         [helper.make_node("Block", ["x", "a", "b"], ["h"], domain="my"),
          helper.make_node("Block", ["h", "c", "d"], ["y"], domain="my")], [("x", [512, 64])], [("y", [512, 64])], weights)
    m = onnx.load(path)
    m.functions.extend([linear, block])
    m.opset_import.append(opsets[1])
    onnx.save(m, path)
    onnx.save(onnx.inliner.inline_local_functions(m), inlined)
    (rc, want, err), (again, got, more) = (call("plan", source, "--devices", n, "-o", planned, "--json") for source in (inlined, path))
    assert rc == again == 0 and got["cut_nodes"] == want["cut_nodes"] == 8 and got["cost"] == want["cost"], (want, got, err, more)
    assert verify(planned, "--inputs", "random:1")["cut_nodes"] == 8


def stubborn(d, n):
    """Readers that cannot use partial sums: h must be reduced at once, whatever the metadata ai.tessera.delay says."""
    path, cut = os.path.join(d, "m.onnx"), os.path.join(d, "c.onnx")
    weights = {"w": np.random.default_rng(n).standard_normal((64, 32)).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "mul"),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Add", ["h", "t"], ["y"])
    ]
    save(path, nodes, [("x", [8, 64])], [("y", [8, 32])], weights)
    m = onnx.load(path)
    helper.set_model_props(m, {"ai.tessera.delay": "c:h\nc:nobody\n:\nc:\n\nother:t\nc:y"})
    onnx.save(m, path)
    rc, _, err = call("annotate", path, "--config", "c:%d" % n, "--shard", "mul:w={%d,1}" % n, "-o", cut)
    assert rc == 0, err
    assert verify(cut, "--inputs", "random:1")["collectives"] == {"AllReduce": 1}


def logits(d, n):
    """Softmax and TopK of one token: the logits must stay sharded by vocabulary."""
    path, planned = os.path.join(d, "m.onnx"), os.path.join(d, "p.onnx")
    draw = np.random.default_rng(n)
    weights = {"w": (draw.standard_normal((64, 24000)) / 8).astype(np.float32), "k": np.array([5], np.int64)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["l"]),
        helper.make_node("Softmax", ["l"], ["p"], axis=-1),
        helper.make_node("TopK", ["p", "k"], ["y", "i"])
    ]
    save(path, nodes, [("x", [1, 64])], [("y", [1, 5])], weights)
    rc, doc, err = call("plan", path, "--devices", n, "--memory", 64 * 24000 * 4 // n + 500000, "-o", planned, "--json")
    assert rc == 0 and doc["cut_nodes"] == 3, (err, doc)
    assert verify(planned, "--inputs", "random:1")["cut_nodes"] == 3


def many_kinds(d, n):
    """A thousand different nodes that may be expanded. Memory must grow linearly with the model; quadratic growth would need 700 MB."""
    path = os.path.join(d, "m.onnx")
    shapes = [[8, 64 + i] for i in range(1000)]
    save(path, [helper.make_node("Softmax", ["x%d" % i], ["y%d" % i]) for i in range(len(shapes))],
         [("x%d" % i, s) for i, s in enumerate(shapes)], [("y%d" % i, s) for i, s in enumerate(shapes)], {})
    rc, _, err = call("plan", path, "--devices", n, "--memory-limit", "150MiB", "--json")
    assert rc == 0, err


def unlike(d, name):
    """Two devices with little memory and one with more, which must take what does not fit on the others."""
    path, planned, devices = (os.path.join(d, n) for n in ("t.json", "p.onnx", "u.json"))
    rc, _, err = call("topology", "make", "full:3", "-o", path)
    assert rc == 0, err
    with open(path) as f:
        topology = json.load(f)
    memory = [150000, 150000, 900000]
    for device, bytes_of in zip(topology["devices"], memory):
        device["memory"] = bytes_of
    with open(devices, "w") as f:
        json.dump(topology, f)
    folder = os.path.join(MODELS, name)
    rc, doc, err = call("plan", os.path.join(folder, "model.onnx"), "--devices", devices, "--dim", "batch=1", "--dim", "seq=8", "-o",
                        planned, "--json")
    assert rc == 0 and all(a <= b for a, b in zip(doc["memory"], memory)) and doc["memory"][2] > memory[0], (doc.get("memory"), err)
    verify(planned, "--inputs", os.path.join(folder, "test_data_set_0"))


def experts(d, n):
    """The document must list the plans that an expert would make, and none may be faster."""
    planned = os.path.join(d, "p.onnx")
    rc, doc, err = call("plan", os.path.join(MODELS, "llama_tiny", "model.onnx"), "--devices", n, "--dim", "batch=8", "--dim", "seq=32",
                        "-o", planned, "--json")
    assert rc == 0, err
    times = {x["name"]: x["milliseconds"] for x in doc["compared"]}
    assert {"one device", "data parallel on %d devices" % n, "tensor parallel on %d devices" % n} <= set(times), times
    assert all(t >= doc["milliseconds"] * 0.999 for t in times.values()), (doc["milliseconds"], times)
    verify(planned, "--inputs", "random:1", "--dim", "batch=8", "--dim", "seq=32")


def three_sides(d, n):
    """Eight signals in a [2 2 2] grid: only a grid of 2 x 2 x 2 devices has enough memory, one signal on each."""
    path, planned = os.path.join(d, "m.onnx"), os.path.join(d, "p.onnx")
    nodes = [
        helper.make_node("Mul", ["x", "ramp"], ["a"]),
        helper.make_node("DFT", ["a", "", "axis"], ["f"], "transform"),
        helper.make_node("ReduceMax", ["f", "axes"], ["y"], keepdims=0)
    ]
    constants = {"ramp": np.linspace(0, 1, 65536, dtype=np.float32).reshape(-1, 1), "axis": np.array(3), "axes": np.array([3, 4])}
    info = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "g", [info("x", [2, 2, 2, 1, 1])], [info("y", [2, 2, 2])],
                              [numpy_helper.from_array(c, name) for name, c in constants.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    rc, doc, err = call("plan", path, "--devices", n, "--memory", "1500KB", "-o", planned, "--json")
    assert rc == 0 and max(doc["memory"]) <= 1500000, (doc, err)
    verify(planned)


def far_hosts(d, first):
    """Four equal devices, and a slow one over a slow link: the plan must be as fast as without the fifth, which gets hardly any data."""
    path, planned, devices, four = (os.path.join(d, n) for n in ("t.json", "p.onnx", "u.json", "f.json"))
    rc, _, err = call("topology", "make", "full:5", "-o", path)
    assert rc == 0, err
    with open(path) as f:
        topology = json.load(f)
    far = 4 if first == 0 else 0
    topology["devices"][far]["flops"] /= 2
    for link in topology["links"]:
        if far in (link["from"], link["to"]):
            link["bandwidth"], link["latency"] = link["bandwidth"] / 100, link["latency"] * 100
    topology.pop("grid", None)
    with open(devices, "w") as f:
        json.dump(topology, f)
    rc, _, err = call("topology", "make", "full:4", "-o", four)
    assert rc == 0, err
    model, dims = os.path.join(MODELS, "llama_tiny", "model.onnx"), ("--dim", "batch=8", "--dim", "seq=32")
    times = []
    for name in (devices, four):
        rc, doc, err = call("plan", model, "--devices", name, *dims, "-o", planned, "--json")
        assert rc == 0 and sum(m > max(doc["memory"]) / 20 for m in doc["memory"]) == 4, (doc, err)
        times.append(doc["milliseconds"])
        verify(planned, "--inputs", "random:1", *dims)
    assert times[0] <= 1.001 * times[1], times


def jobs():
    names = sorted(m for m in os.listdir(MODELS) if os.path.exists(os.path.join(MODELS, m, "model.onnx")))
    assert names, "no models in " + MODELS
    yield "many kinds on 4", many_kinds, 4
    yield "experts on 4", experts, 4
    yield "three sides on 8", three_sides, 8
    for first in (0, 1):
        yield "far hosts, devices from %d on" % first, far_hosts, first
    for name in harness.sample(("bert_tiny", "gpt2_tiny", "llama_tiny"), 1):
        yield "unlike devices, %s" % name, unlike, name
    yield "calls on 2", calls, 2
    for function, counts, sampled in ((parts, (2, 3, 4, 8), 2), (stubborn, (2, 3), 1), (logits, (4, 8), 1)):
        for n in harness.sample(counts, sampled):
            yield "%s on %d" % (function.__name__, n), function, n
    for seed in harness.sample(range(1, 13), 3):
        yield "random model %d" % seed, drawn, seed
    for k, name in enumerate(names):
        for n in harness.sample((2, 3, 4, 8), 1, k):
            yield "%s on %d" % (name, n), model, name, n


if __name__ == "__main__":
    harness.run(list(jobs()))
    harness.finish()
