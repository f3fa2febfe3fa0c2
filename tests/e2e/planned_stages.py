# SPDX-License-Identifier: Apache-2.0
"""Tests stages that the planner chose: each model in 2, 3 and the best number of stages, for latency and for throughput.

The planned model is checked, partitioned, run and compared with the recorded outputs, without hand edits. Nodes must be on the
devices of their stage and on no other, and stages must cover the nodes in order.

usage: planned_stages.py TESSERA MODELS [all]     without `all` every setting with one of the models"""
import json, os, sys

import numpy as np
import onnx

import evaluator, harness, spine

TOLERANCE = 5e-5
# Stages, objective, devices. Different devices: a JSON topology.
UNLIKE = {"devices": [{"memory": 40 << 20, "flops": 5e10}, {"memory": 40 << 20, "flops": 5e10}, {"memory": 1 << 30, "flops": 2e11}],
          "links": [{"from": a, "to": b, "latency": 1e-6, "bandwidth": 1e10} for a in range(3) for b in range(3) if a != b]}
CASES = [("2", "throughput", "4"), ("3", "latency", "3"), ("auto", "throughput", "4"), ("3", "throughput", "unlike")]


def sizes(model, inputs):
    out = {}
    for i in onnx.load(model, load_external_data=False).graph.input:
        for k, d in enumerate(i.type.tensor_type.shape.dim):
            if d.dim_param and i.name in inputs:
                out[d.dim_param] = inputs[i.name].shape[k]
    return [w for name, size in out.items() for w in ("--dim", "%s=%d" % (name, size))]


def stage_in(n):
    return [c.pipeline_stage for c in n.device_configurations if c.HasField("pipeline_stage")]


def check_places(planned, stages, ranks):
    """Checks that nodes with a stage are only on its devices, and in the order of the stages."""
    last, staged, found = -1, 0, 0
    for i, n in enumerate(planned.graph.node):
        mine = stage_in(n)
        if not mine:
            continue
        assert mine[0] >= last, "#%d goes back to stage %d" % (i, mine[0])
        last = mine[0]
        s = stages[last]
        assert s["first"] <= i <= s["last"], (i, s)
        have = {r for r, p in enumerate(ranks) for x in p.graph.node if n.name and x.name == n.name and x.op_type == n.op_type}
        assert have <= set(s["devices"]), "%s is on %s, its stage has %s" % (n.name, have, s["devices"])
        staged, found = staged + 1, found + bool(have)
    assert 2 * found >= staged, "only %d of %d nodes are in the rank files" % (found, staged)
    assert last == (len(stages) - 1 if len(stages) > 1 else -1)


def follow(planned, devices, dims, doc, objective):
    """Checks that the simulation of the partition agrees with the plan, for one request and for many in a row."""
    rc, text, err = harness.call(TESSERA, "simulate", planned, "--devices", devices, *dims, "--requests", "20", "--json")
    assert rc == 0, "simulate: exit %d %s" % (rc, err)
    seen = json.loads(text)
    for what, told, came in (("latency", doc["latency"], seen["first_s"]), ("period", doc["period"], seen["period_s"])):
        off = came * 1e12 / told
        near = {"latency": 0.005, "period": 0.03}[what]
        assert abs(off - 1) < near or (what == "period"
                                       and objective == "latency"), "%s: planned %g ms, simulated %g ms" % (what, told / 1e9, came * 1e3)


# Plans, checks, partitions, simulates and runs one model with one setting.
def check(folder, model, case):
    stages, objective, devices = case
    planned, parts, unlike = (os.path.join(folder, f) for f in ("planned.onnx", "parts", "unlike.json"))
    ins, want = evaluator.recorded(model)
    if devices == "unlike":
        json.dump(UNLIKE, open(unlike, "w"))
        devices = unlike
    words = ["--devices", devices, "--stages", stages, "--objective", objective, *sizes(model, ins)]
    rc, text, err = harness.call(TESSERA, "plan", model, *words, "-o", planned, "--json")
    assert rc == 0, "plan: exit %d %s" % (rc, err)
    doc = json.loads(text)
    # The bound of the traffic between stages of several devices is loose, and throughput counts this traffic twice.
    assert doc["objective"] == objective and (doc["optimal"] or doc["gap"] < {"latency": 0.03, "throughput": 0.2}[objective]), text
    assert stages == "auto" or len(doc["stages"]) == int(stages), text
    own = [s["time"] + s["transfer"] for s in doc["stages"]]
    follow(planned, devices, sizes(model, ins), doc, objective)
    assert max(own) <= doc["latency"] and doc["period"] <= doc["latency"], text
    assert doc["cost"] >= 0.999 * doc[{"latency": "latency", "throughput": "period"}[objective]], text
    rc, text, err = harness.call(TESSERA, "check", planned, "--json")
    assert rc == 0 and json.loads(text)["warnings"] == 0, "check: exit %d %s" % (rc, text)
    rc, text, err = harness.call(TESSERA, "partition", planned, "-o", parts, "--json")
    assert rc == 0, "partition: exit %d %s" % (rc, err)
    written = json.loads(text)
    for key in ("collectives", "cut_nodes"):
        assert written[key] == doc[key], "%s: planned %s, written %s" % (key, doc[key], written[key])
    manifest = evaluator.check_folder(parts)
    check_places(onnx.load(planned, load_external_data=False), doc["stages"],
                 [onnx.load(os.path.join(parts, d["file"]), load_external_data=False) for d in manifest["devices"]])
    rc, text, err = harness.call(TESSERA, "verify", planned, "--inputs", os.path.join(os.path.dirname(model), "test_data_set_0"), "--json")
    found = json.loads(text) if text else {}
    assert rc == 0 and found["ok"] and found["recorded"] and not found["replicated"], "verify: exit %d %s %s" % (rc, text, err)
    assert evaluator.apart(evaluator.run(parts, ins), want) <= TOLERANCE, "the independent reader differs"
    assert stages == "auto" or len(doc["stages"]) > 1


def together(folder, model):
    """One model planned at once for many tokens and for one token: without stages, and in two stages."""
    plan_together(folder, model, [])
    plan_together(folder, model, ["--stages", "2"])


def plan_together(folder, model, words):
    """Plans the model twice at once. Both must be right and must store every weight with the same sharding in the same stage."""
    many, one = (os.path.join(folder, f) for f in ("many.onnx", "one.onnx"))
    ins, _ = evaluator.recorded(model)
    dims = sizes(model, ins)
    small = [w.replace("seq=%s" % w.split("=")[-1], "seq=1") for w in dims[1::2] if w.startswith("seq=")]
    command = [
        "plan", model, "--devices", "4", *dims, "--with", model, *[x for w in small for x in ("--with-dim", w)], "--steps", "64", "--json",
        *words
    ]
    rc, text, err = harness.call(TESSERA, *command, "-o", many, "--with-output", one)
    assert rc == 0 and small, "plan: exit %d %s" % (rc, err)
    doc = json.loads(text)
    told = doc["parts"][0]["cost"] + 64 * doc["parts"][1]["cost"]
    assert doc["optimal"] and (doc["cost"] >= told if words else doc["cost"] == told), text

    def weights(path):
        m = onnx.load(path, load_external_data=False)
        names = {t.name for t in m.graph.initializer}
        return [(n.name, c.pipeline_stage, s.SerializeToString()) for n in m.graph.node for c in n.device_configurations
                for s in c.sharding_spec if s.tensor_name in names]

    assert weights(many) == weights(one), "weights lie differently"
    for node in (weights(many)[0][0], weights(many)[-1][0]):  # the plan has the best candidate, also of the first and last stage
        rc, text, err = harness.call(TESSERA, *command, "--explain", node)
        costs = [c["cost"] for c in json.loads(text)["choices"] if c["feasible"]]
        assert rc == 0 and min(costs) == doc["cost"], "explain: exit %d %s %s" % (rc, costs, doc["cost"])
    for path in (many, one):
        rc, text, err = harness.call(TESSERA, "verify", path, "--inputs", os.path.join(os.path.dirname(model), "test_data_set_0"), "--json")
        found = json.loads(text) if text else {}
        assert rc == 0 and found["ok"] and found["recorded"], "verify %s: exit %d %s %s" % (path, rc, text, err)


def by_hand(folder, model):
    """Some nodes already have a stage, with gaps in the numbers. They must keep it, and the planner puts the others between them."""
    m = onnx.load(model)
    nodes, given = list(m.graph.node), {}
    m.ir_version = max(m.ir_version, 11)
    m.configuration.add(name="hand", num_devices=3)
    for share, stage in ((0.4, 1), (0.6, 4), (0.9, 9)):
        at = int(share * len(nodes))
        while not any(nodes[at].op_type == op for op in ("MatMul", "Add", "Mul", "Gemm")):
            at += 1
        given[at] = stage
        nodes[at].device_configurations.add(configuration_id="hand").pipeline_stage = stage
    start, done = folder + "/hand.onnx", folder + "/done.onnx"
    onnx.save(m, start)
    rc, text, err = harness.call(TESSERA, "plan", start, "--devices", "3", "-o", done, "--json")
    assert rc == 0 and len(json.loads(text)["stages"]) == 3, "plan: exit %d %s" % (rc, err)
    found = [stage_in(n) for n in onnx.load(done).graph.node]
    assert all(found[at] == [stage] for at, stage in given.items()), given
    numbers = [f[0] for f in found if f]
    assert numbers == sorted(numbers) and set(numbers) == {1, 4, 9}, numbers
    rc, text, err = harness.call(TESSERA, "verify", done, "--inputs", os.path.join(os.path.dirname(model), "test_data_set_0"), "--json")
    assert rc == 0 and json.loads(text)["ok"] and json.loads(text)["recorded"], "verify: exit %d %s %s" % (rc, text, err)
    rc, _, err = harness.call(TESSERA, "plan", start, "--devices", "3", "--stages", "2", "-o", folder + "/no.onnx")
    assert rc == 1 and "plan-stages" in err, "another number of stages: exit %d %s" % (rc, err)
    # Branches may be in another order than their stages. Stages are then not ranges of nodes, which is an error.
    h, one = onnx.helper, [onnx.helper.make_tensor_value_info(k, 1, [4, 4]) for k in "xyz"]
    branches = h.make_model(
        h.make_graph([h.make_node("Relu", ["x"], ["y"], name="late"),
                      h.make_node("Neg", ["x"], ["z"], name="early")], "g", one[:1], one[1:]), ir_version=11)
    branches.configuration.add(name="hand", num_devices=2)
    for node, stage in zip(branches.graph.node, (1, 0)):
        node.device_configurations.add(configuration_id="hand").pipeline_stage = stage
    onnx.save(branches, start)
    rc, _, err = harness.call(TESSERA, "plan", start, "--devices", "2", "-o", folder + "/no.onnx")
    assert rc == 1 and "plan-stages" in err and "'late'" in err, "branches: exit %d %s" % (rc, err)
    rc, text, err = harness.call(TESSERA, "plan", model, "--devices", "2", "--stages", "2", "--explain", "#0", "-o", folder + "/e.onnx",
                                 "--json")
    doc = json.loads(text) if text else {}
    assert rc == 0 and doc["choices"] and doc["choices"][0]["chosen"], "explain: exit %d %s" % (rc, err)


def odd_shares(folder, model):
    """Equal shares of the devices whose number is no power of two."""
    dims = [w for name, size in (("batch", 8), ("seq", 64), ("dseq", 64)) for w in ("--dim", "%s=%d" % (name, size))]
    for devices, stages in (("torus:2x3", 2), ("cpu:10", 3)):
        rc, text, err = harness.call(TESSERA, "plan", model, "--devices", devices, "--stages", str(stages), *dims, "-o", folder + "/p.onnx",
                                     "--json")
        assert rc == 0 and len(json.loads(text)["stages"]) == stages, "%s: exit %d %s" % (devices, rc, err)


def one_stage(folder, model):
    """The best number of stages is 1, on some of the devices: outputs stay on the first of them."""
    planned = folder + "/p.onnx"
    doc = json.loads(harness.good(TESSERA, "plan", model, "--devices", "ring:6", "--stages", "auto", "-o", planned, "--json"))
    written = json.loads(harness.good(TESSERA, "partition", planned, "--dry-run", "--json"))
    assert len(doc["stages"]) == 1 and doc["collectives"] == written["collectives"], (doc, written)


def constants(folder, model):
    """Every stage has its own copy of a small Constant: its value is never sent."""
    h = onnx.helper
    one = h.make_node("Constant", [], ["one"], value_float=1.0)
    nodes = [one, h.make_node("Add", ["x", "one"], ["x0"])]
    nodes += [h.make_node("MatMul", ["x%d" % i, "w%d" % i], ["x%d" % (i + 1)]) for i in range(6)]
    weights = [onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w%d" % i) for i in range(6)]
    info = [h.make_tensor_value_info(name, 1, [8, 64]) for name in ("x", "x6")]
    start, planned = folder + "/c.onnx", folder + "/p.onnx"
    onnx.save(h.make_model(h.make_graph(nodes, "g", info[:1], info[1:], weights), ir_version=11), start)
    for devices in ("l40s:4", "cpu:4"):
        doc = json.loads(harness.good(TESSERA, "plan", start, "--devices", devices, "--stages", "2", "-o", planned, "--json"))
        written = json.loads(harness.good(TESSERA, "partition", planned, "--dry-run", "--json"))
        assert doc["collectives"] == written["collectives"] and doc["stages"][0]["nodes"] > 1, (doc, written)


def jobs(models):
    """Yields all settings with all models; a sample has each setting with another model."""
    for k, (name, function, *more) in enumerate([("%s stages for %s on %s" % case, check, case)
                                                 for case in CASES] + [("by hand", by_hand), ("together", together)]):
        names = ("gpt2_tiny", "llama_tiny") if name == "together" else spine.NAMES
        for model in harness.sample(names, 1, k):
            yield "%s: %s" % (model, name), function, os.path.join(models, model, "model.onnx"), *more
    yield "bert_tiny: one stage", one_stage, os.path.join(models, "bert_tiny", "model.onnx")
    yield "constants", constants, None
    yield "t5_tiny: odd shares", odd_shares, os.path.join(models, "t5_tiny", "model.onnx")


if __name__ == "__main__":
    TESSERA = sys.argv[1]
    harness.run(list(jobs(sys.argv[2])))
    harness.finish()
