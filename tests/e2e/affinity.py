# SPDX-License-Identifier: Apache-2.0
"""Tests pipeline stages on named devices: stage k runs on device k of the list, and data may return to an earlier device.

Random graphs have branches, If, Loop, sequences, values that skip stages, and outputs on several devices. Every command
must accept them, results must equal the unsharded model's, and several runs in flight must not deadlock.

usage: affinity.py TESSERA GRAPHS SEED"""
import glob, json, os, random, subprocess, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper as h, numpy_helper as nh

import harness

TESSERA = os.path.abspath(sys.argv[1])
NAMES = ["CPU", "NPU", "GPU", "DSP"]
MAP = [w for name in NAMES[1:] for w in ("--map-device", name + "=CPU")]
case = harness.check


def tessera(*words):
    try:
        return harness.call(TESSERA, *words, timeout=100)
    except subprocess.TimeoutExpired:
        return -1, "", "does not end: " + " ".join(map(str, words))


def info(name, shape=(4, 6)):
    return h.make_tensor_value_info(name, T.FLOAT, shape)


def branch(op, value, out):
    return h.make_graph([h.make_node(op, [value], [out])], out, [], [info(out)])


def body():
    """Body of a Loop: each iteration adds the outer value x to the carried value."""
    nodes = [h.make_node("Add", ["carried", "x"], ["next"]), h.make_node("Identity", ["go"], ["goes"])]
    ints, bools = (lambda n: h.make_tensor_value_info(n, T.INT64, [])), (lambda n: h.make_tensor_value_info(n, T.BOOL, []))
    return h.make_graph(nodes, "body", [ints("turn"), bools("go"), info("carried")], [bools("goes"), info("next")])


def random_nodes(dice, count):
    """Each node reads values of any earlier node. The last three values and one other are outputs."""
    nodes, values = [], ["x", "z"]
    for k in range(count):
        a, b, out = dice.choice(values[-3:]), dice.choice(values), "v%d" % k
        kind = dice.choice(["unary", "unary", "binary", "binary", "matmul", "if", "loop", "list"])
        if kind == "unary":
            made = [h.make_node(dice.choice(["Relu", "Neg", "Tanh", "Sigmoid"]), [a], [out])]
        elif kind == "binary":
            made = [h.make_node(dice.choice(["Add", "Mul", "Sub"]), [a, b], [out])]
        elif kind == "matmul":
            made = [h.make_node("MatMul", [a, "w"], [out])]
        elif kind == "if":
            made = [h.make_node("If", ["yes"], [out], then_branch=branch("Relu", a, "t%d" % k), else_branch=branch("Neg", b, "e%d" % k))]
        elif kind == "loop":
            made = [h.make_node("Loop", ["turns", "", a], [out], body=body())]
        else:
            made = [h.make_node("SequenceConstruct", [a, b], ["s%d" % k]), h.make_node("SequenceAt", ["s%d" % k, "one"], [out])]
        nodes += made
        values.append(out)
    outputs = sorted({*values[-3:], dice.choice(values[2:])})
    return nodes, outputs


def save(path, nodes, outputs, devices, stages):
    """Writes the model. `stages` has for each node its stage, or None."""
    inits = [nh.from_array(np.array(v), k) for k, v in (("yes", True), ("turns", np.int64(2)), ("one", np.int64(1)))]
    inits.append(nh.from_array((np.arange(36).reshape(6, 6) % 5 / 8).astype("f4"), "w"))
    for k, node in enumerate(nodes):
        node.name = "n%d" % k
    m = h.make_model(h.make_graph(nodes, "g", [info("x"), info("z")], [info(o) for o in outputs], inits), ir_version=11,
                     opset_imports=[h.make_opsetid("", 18)])
    m.configuration.add(name="c", num_devices=devices, device=NAMES[:devices])
    for node, stage in zip(m.graph.node, stages):
        if stage is not None:
            node.device_configurations.add(configuration_id="c").pipeline_stage = stage
    onnx.save(m, path)
    return m


def check_places(name, m, parts):
    """Checks with onnx that every staged node is in the rank file of its device and in no other."""
    devices = json.load(open(parts + "/manifest.json"))["devices"]
    ranks = [onnx.load(os.path.join(parts, d["file"]), load_external_data=False) for d in devices]
    case(name + ": names of devices", [d["device"] for d in devices] == list(m.configuration[0].device), devices)
    wrong, found = [], 0
    for node in m.graph.node:
        for entry in node.device_configurations:
            have = [r for r, p in enumerate(ranks) if any(x.name == node.name and x.op_type == node.op_type for x in p.graph.node)]
            found += bool(have)
            if have not in ([], [entry.pipeline_stage]):  # none: no output needs the node
                wrong.append((node.name, entry.pipeline_stage, have))
    case(name + ": stage k is device k", found and not wrong, (found, wrong))


# Runs every command on the model and checks results, places of nodes, and runs in flight.
def check_model(name, d, m, f):
    rc, out, err = tessera("verify", f, *MAP, "--json")
    case(name + ": verify", rc == 0 and json.loads(out)["ok"], "exit %d %s %s" % (rc, out, err))
    rc, out, err = tessera("infer", f, "-o", d + "/inferred.onnx")
    case(name + ": infer", rc == 0, err)
    rc, out, err = tessera("verify", d + "/inferred.onnx", *MAP, "--json")
    case(name + ": what infer writes verifies", rc == 0 and json.loads(out)["ok"], "exit %d %s %s" % (rc, out, err))
    rc, out, err = tessera("partition", f, "-o", d + "/parts", "--force")
    case(name + ": partition", rc == 0, err)
    if rc == 0:
        check_places(name, m, d + "/parts")
        transport = "shm" if name.startswith("chain") else "threads"
        rc, out, err = tessera("bench", d + "/parts", *MAP, "--transport", transport, "--seconds", "0.15", "--in-flight", "3", "--json")
        case(name + ": runs in flight", rc == 0 and json.loads(out)["runs_per_s"] > 0, "exit %d %s %s" % (rc, out, err))
    rc, out, err = tessera("simulate", f, "--requests", "3", "--json")
    case(name + ": simulate", rc == 0 and json.loads(out)["seconds"] > 0, "exit %d %s" % (rc, err))
    rc, out, err = tessera("report", f, "-o", d + "/page.html")
    case(name + ": report", rc == 0, err)


def chain(path, names, stages):
    nodes = [
        h.make_node(op, ["x" if k == 0 else "v%d" % (k - 1)], ["v%d" % k])
        for k, op in enumerate(["Relu", "Neg", "Abs", "Tanh"][:len(stages)])
    ]
    return save(path, nodes, ["v%d" % (len(stages) - 1)], len(names), stages)


def places(d, f):
    """Returns the rank of each operator of a chain, or a list if there are several."""
    rc, out, err = tessera("partition", f, "-o", d + "/places", "--force")
    ranks = [[n.op_type for n in onnx.load(p).graph.node] for p in sorted(glob.glob(d + "/places/rank*.onnx"))] if rc == 0 else []
    found = [[k for k, ops in enumerate(ranks) if op in ops] for op in ("Relu", "Neg", "Abs", "Tanh")]
    return [k[0] if len(k) == 1 else k for k in found]


def findings(f):
    rc, out, err = tessera("check", f, "--json")
    doc = json.loads(out)
    return rc, [x["code"] for x in doc["findings"] if x["code"].startswith("stage")], doc


# Chains with fixed stage numbers: what check reports, and where stages beyond the list run.
def rules_of_stages(d):
    f = d + "/chain.onnx"
    for stages, devices, want in (([0, 1, 2, 0], 3, ["stage-return"]), ([0, 0, 1, 1], 4, []), ([1, 1, 1,
                                                                                                1], 3, []), ([2, 1, 0,
                                                                                                              3], 4, ["stage-return"])):
        m = chain(f, NAMES[:devices], stages)
        rc, codes, doc = findings(f)
        case("check %s" % stages, rc == 0 and codes == want, doc)
        check_model("chain %s" % stages, d, m, f)
    for stages, devices, want, note in (([1, 1, 2, 2], 2, [0, 0, 1, 1], "n2"), ([0, 1, 2, 3], 2, [0, 1, 1, 1], "n2"), ([5, 9, 5,
                                                                                                                        9], 3, [0, 1, 0,
                                                                                                                                1], "n0")):
        chain(f, NAMES[:devices], stages)
        rc, codes, doc = findings(f)
        found = [x["node"] for x in doc["findings"] if x["code"] == "stage-beyond"]
        case("stages %s of %d names: a note" % (stages, devices), rc == 0 and found == [note], doc)
        rc, out, err = tessera("verify", f, *MAP)
        case("... verify", rc == 0, err)
        got = places(d, f)
        case("... in order", got == want, got)
    # Shardings of one stage may name other devices: here stage 1 has two, stage 2 another. The other stages stay.
    m = chain(f, NAMES[:4], [0, 1, 2, 0])
    rc, out, err = tessera("annotate", f, "--config", "c", "--shard", "n1:v0={2,1:1,2}", "--shard", "n2:v2={1:3}", "-o", d + "/spec.onnx")
    case("shardings that name other devices", rc == 0 and findings(d + "/spec.onnx")[:2] == (0, ["stage-return"]), err)
    case("... leave the other stages", places(d, d + "/spec.onnx") == [0, [1, 2], 3, 0], places(d, d + "/spec.onnx"))
    rc, out, err = tessera("verify", d + "/spec.onnx", *MAP)
    case("... run", rc == 0, err)
    chain(f, NAMES[:4], [0, 1, 2, 2])
    for word, want in (("n0:v0={1:2}", [2, 1, 2, 2]), ("n1:v0={2,1:1,2}", [0, [1, 2], 2, 2]), ("n1:v1={2,1:0,3}", [0, [0, 3], 2, 2])):
        rc, out, err = tessera("annotate", f, "--config", "c", "--shard", word, "-o", d + "/spec.onnx")
        got = places(d, d + "/spec.onnx")
        case("%s moves its own stage only" % word, got == want, (got, err))
    del m.configuration[0].device[:]
    onnx.save(m, f)
    case("no names", findings(f)[:2] == (1, ["stage-order"]))


# The order of stages counts inside of functions and for values that bodies read.
def order_of_stages(d):
    f = d + "/order.onnx"
    stage = lambda n, k: setattr(n.device_configurations.add(configuration_id="c"), "pipeline_stage", k)
    inner = [h.make_node("Neg", ["a"], ["m"], name="first"), h.make_node("Abs", ["m"], ["b"], name="second")]
    stage(inner[1], 0)
    call, reader = h.make_node("F", ["x"], ["y"], name="call",
                               domain="own"), h.make_node("If", ["yes"], ["y"], name="if", then_branch=branch("Relu", "v", "t"),
                                                          else_branch=branch("Neg", "v", "e"))
    producer = h.make_node("Relu", ["x"], ["v"], name="producer")
    for n, k in ((call, 1), (producer, 1), (reader, 0)):
        stage(n, k)
    fun = h.make_function("own", "F", ["a"], ["b"], inner, [h.make_opsetid("", 18)])
    for name, nodes, at in (("in a function", [call], "call/second"), ("of a captured value", [producer, reader], "if")):
        g = h.make_graph(nodes, "g", [info("x")], [info("y")], [nh.from_array(np.array(True), "yes")])
        m = h.make_model(g, ir_version=11, opset_imports=[h.make_opsetid("", 18), h.make_opsetid("own", 1)], functions=[fun])
        m.configuration.add(name="c", num_devices=2)
        onnx.save(m, f)
        rc, codes, doc = findings(f)
        case("stage order %s: an error" % name, rc == 1 and codes == ["stage-order"] and doc["findings"][0]["node"] == at, doc)
        m.configuration[0].device.extend(NAMES[:2])
        onnx.save(m, f)
        rc, codes, doc = findings(f)
        case("stage order %s, with names: a note" % name, rc == 0 and codes == ["stage-return"], doc)


def random_graphs(d, count, seed):
    for k in range(count):
        dice = random.Random(seed * 1000 + k)
        devices = dice.choice([2, 3, 4])
        nodes, outputs = random_nodes(dice, dice.choice([5, 8, 12]))
        stages = [dice.choice([None, *range(devices), *range(devices)]) for _ in nodes]
        f = d + "/random.onnx"
        check_model("graph %d" % k, d, save(f, nodes, outputs, devices, stages), f)


harness.run([rules_of_stages, order_of_stages])
harness.run([random_graphs], int(sys.argv[2]), int(sys.argv[3]))
harness.finish()
