# SPDX-License-Identifier: Apache-2.0
"""Tests that random numbers are drawn once for all devices: every random operator, with and without a seed, in the main graph, bodies and
functions.

Two nodes read the random tensor, one sharded by rows and one by columns. The difference of their results must be 0 everywhere. Ranks of one
process may draw equal numbers by chance, because the engine has one seed per process. So the rank files are checked too: without a seed,
only one of them may have the operator.

usage: draws.py TESSERA [all]     without `all` an operator with a seed is drawn in two ways, not in all"""
import subprocess, sys, tempfile

import numpy as np
import onnx, onnxruntime
from onnx import TensorProto as T, helper, numpy_helper

import harness

info, tensor = helper.make_tensor_value_info, numpy_helper.from_array
MY = helper.make_opsetid("my", 1)
SIZE = [12, 18]
node = helper.make_node
F4, I8 = T.FLOAT, T.INT64

# Nodes that draw "r", a float tensor of SIZE, from "x" (floats between 0 and 1), with the attributes given.
DRAWS = {
    "RandomNormal": lambda **a: [node("RandomNormal", [], ["r"], name="draw", shape=SIZE, **a)],
    "RandomUniform": lambda **a: [node("RandomUniform", [], ["r"], name="draw", shape=SIZE, **a)],
    "RandomNormalLike": lambda **a: [node("RandomNormalLike", ["x"], ["r"], name="draw", **a)],
    "RandomUniformLike": lambda **a: [node("RandomUniformLike", ["x"], ["r"], name="draw", **a)],
    "Bernoulli": lambda **a: [node("Bernoulli", ["x"], ["r"], name="draw", **a)],
    "Multinomial": lambda **a:
    [node("Multinomial", ["x"], ["k"], name="draw", sample_size=18, **a),
     node("Cast", ["k"], ["r"], name="cast", to=F4)],
    "Dropout": lambda **a: [node("Dropout", ["x", "ratio", "on"], ["r"], name="draw", **a)],
    "Dropout mask": lambda **a:
    [node("Dropout", ["x", "ratio", "on"], ["d", "k"], name="draw", **a),
     node("Cast", ["k"], ["r"], name="cast", to=F4)],
    "Dropout switched": lambda **a: [node("Dropout", ["x", "ratio", "switch"], ["r"], name="draw", **a)],
}
OPERATORS = {name.split()[0] for name in DRAWS}
CONSTANTS = [tensor(np.array(0.5, "f4"), "ratio"), tensor(np.array(True), "on")]


def graph(nodes, name, outputs=("r",), inputs=()):
    return helper.make_graph(nodes, name, list(inputs), [info(o, F4, SIZE) for o in outputs])


# How "r" is drawn: by the node itself, or by a node whose body or function contains it. Each function returns (nodes, functions).

def plain(nodes):
    return nodes, []


def branch(nodes):
    other = [node("Constant", [], ["r"], name="none", value=tensor(np.zeros(SIZE, "f4")))]
    return [node("If", ["switch"], ["r"], name="if", then_branch=graph(nodes, "then"), else_branch=graph(other, "else"))], []


def loop(nodes):
    turn = nodes + [node("Identity", ["go"], ["on_and_on"], name="go"), node("Add", ["r", "sum"], ["more"], name="more")]
    body = helper.make_graph(turn, "body", [info("turn", I8, []), info("go", T.BOOL, []), info("sum", F4, SIZE)],
                             [info("on_and_on", T.BOOL, []), info("more", F4, SIZE)])
    start = node("Constant", [], ["start"], name="start", value=tensor(np.zeros(SIZE, "f4")))
    times = node("Constant", [], ["times"], name="times", value=tensor(np.array(3)))
    return [start, times, node("Loop", ["times", "switch", "start"], ["r"], name="loop", body=body)], []


def called(opset):
    def call(nodes):
        reads = ["x", "ratio", "on", "switch"]
        function = helper.make_function("my", "Draw", reads, ["r"], nodes, [helper.make_opsetid("", opset)])
        return [node("Draw", reads, ["r"], name="call", domain="my")], [function]
    return call


def mapped(nodes):
    """A SequenceMap, whose body no rule analyses, with sequences as input and output."""
    body = helper.make_graph(nodes, "each", [info("x", F4, SIZE)], [info("r", F4, SIZE)])
    return [
        node("SequenceConstruct", ["x"], ["xs"], name="list"),
        node("SequenceMap", ["xs"], ["rs"], name="map", body=body),
        node("Constant", [], ["first"], name="first", value=tensor(np.array(0))),
        node("SequenceAt", ["rs", "first"], ["r"], name="at")
    ], []


def listed(nodes):
    """A sequence that only the drawing device has."""
    give = lambda ns, name: helper.make_graph(ns + [node("SequenceConstruct", ["r"], ["rs"], name="list_" + name)], name, [],
                                              [helper.make_tensor_sequence_value_info("rs", F4, SIZE)])
    other = [node("Constant", [], ["r"], name="none", value=tensor(np.zeros(SIZE, "f4")))]
    return [
        node("If", ["switch"], ["list"], name="if", then_branch=give(nodes, "then"), else_branch=give(other, "else")),
        node("Constant", [], ["first"], name="first", value=tensor(np.array(0))),
        node("SequenceAt", ["list", "first"], ["r"], name="at")
    ], []


WAYS = {"list": listed, "plain": plain, "branch": branch, "loop": loop, "function": called(18), "map": mapped}


def build(op, way, attributes):
    nodes, functions = WAYS[way](DRAWS[op](**attributes))
    nodes += [node("Neg", ["r"], ["a"], name="rows"), node("Abs", ["r"], ["p"], name="columns"), node("Abs", ["a"], ["q"], name="again"),
              node("Sub", ["p", "q"], ["z"], name="sub")]
    g = helper.make_graph(nodes, "draws", [info("x", F4, SIZE), info("switch", T.BOOL, [])],
                          [info("z", F4, SIZE), info("r", F4, SIZE)], CONSTANTS)
    return helper.make_model(g, opset_imports=[helper.make_opsetid("", 18), MY], functions=functions, ir_version=10)


def draws(graph, functions):
    """True if a node of the graph, of its bodies or of the functions that it calls draws without a seed."""
    for n in graph.node:
        names = [a.name for a in n.attribute]
        if n.op_type in OPERATORS and "seed" not in names:
            return True
        if any(draws(a.g, functions)
               for a in n.attribute if a.HasField("g")) or n.op_type in functions and draws(functions[n.op_type], functions):
            return True
    return False


def run(tessera, d, m, devices):
    """Partitions and runs the model. Returns None, or what is wrong."""
    parts = tempfile.mkdtemp(dir=d) + "/parts"
    onnx.save(m, d + "/m.onnx")
    np.savez(d + "/in.npz", x=np.random.default_rng(1).random(SIZE, "f4"), switch=np.array(True))
    of = ",".join(map(str, range(devices)))
    steps = [["annotate", d + "/m.onnx", "--config", "c:%d" % devices, "--shard", "rows:r={%d,1:%s}" % (devices, of),
              "--shard", "columns:r={1,%d:%s}" % (devices, of), "-o", d + "/a.onnx"],
             ["partition", d + "/a.onnx", "-o", parts], ["run", parts, "--inputs", d + "/in.npz", "--outputs", d + "/out.npz"]]
    for step in steps:
        p = subprocess.run([tessera] + step, capture_output=True, text=True, timeout=60)
        if p.returncode:
            return "%s: exit %d %s" % (step[0], p.returncode, p.stderr)
    ranks = [onnx.load("%s/rank%d.onnx" % (parts, r), load_external_data=False) for r in range(devices)]
    if sum(draws(r.graph, {f.name: f for f in r.functions}) for r in ranks) > 1:
        return "several ranks draw"
    out = dict(np.load(d + "/out.npz"))
    if np.abs(out["r"]).max() == 0 or np.unique(out["r"]).size < 2:
        return "nothing was drawn"
    return None if not out["z"].any() else "%d of %d elements were drawn twice" % (np.count_nonzero(out["z"]), out["z"].size)


def engine_takes(m):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return True
    except Exception:
        return False


def compare(d, op, way, seed):
    attributes = {"seed": 7 if op.startswith("Dropout") else 7.0} if seed else {}
    m = build(op, way, attributes)
    if not engine_takes(m):
        return "the engine does not run the unsharded model"
    wrong = run(sys.argv[1], d, m, 3)
    assert not wrong, wrong


if __name__ == "__main__":
    seeded = {(op, way) for k, op in enumerate(DRAWS) for way in harness.sample(WAYS, 2, k)}
    harness.run([("%s, %s%s" % (op, way, ", seed" if seed else ""), compare, op, way, seed)
                 for op in DRAWS for way in WAYS for seed in (False, True) if not seed or (op, way) in seeded])
    harness.finish()
