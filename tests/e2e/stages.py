# SPDX-License-Identifier: Apache-2.0
"""Tests pipeline stages of real models: two and three stages, alone and with feed-forward blocks sharded over the devices of each stage.

Outputs must be the recorded ones. Nodes must be only on the devices of their stage, and weights only where they are used.

usage: stages.py TESSERA MODELS"""
import json, os, sys

import numpy as np
import onnx

import evaluator, harness, spine

TOLERANCE = 5e-5


def stage_of(i, n, stages):
    return i * stages // n


def edits(m, devices):
    """Assigns nodes to stages in file order. devices: the devices of each stage. A block inside one stage is sharded over its devices
    if there are several."""
    at = {n.output[0]: stage_of(i, len(m.graph.node), len(devices)) for i, n in enumerate(m.graph.node)}
    out = ["--config", "pipe:%d" % (1 + max(d for s in devices for d in s))]
    for i, n in enumerate(m.graph.node):
        out += ["--stage", "#%d=%d" % (i, 3 + 2 * at[n.output[0]])]  # stage numbers need only ascend
    cuts, blocks = 0, spine.blocks(m)
    used = {x.output[0] for ups, down in blocks for x in [*ups, down]}
    for s, mine in enumerate(devices):  # one spec names the stage's devices
        first = next(i for i, n in enumerate(m.graph.node) if at[n.output[0]] == s and n.output[0] not in used)
        out += ["--shard", "#%d:%s={1:%s}" % (first, m.graph.node[first].output[0], ",".join(map(str, mine)))]
    for ups, down in blocks:
        stages = {at[x.output[0]] for x in [*ups, down]}
        mine = devices[min(stages)]
        if len(stages) > 1 or len(mine) == 1:
            continue
        cuts += 1
        text = ",".join(map(str, mine))
        for u in ups:
            out += ["--shard", "%s:%s={1,%d:%s}" % (u.name, u.input[1], len(mine), text)]
        out += ["--shard", "%s:%s={%d,1:%s}" % (down.name, down.input[1], len(mine), text)]
    return out, cuts


def parts_of(parts, manifest):
    return [onnx.load(os.path.join(parts, d["file"]), load_external_data=False) for d in manifest["devices"]]


def check_places(m, devices, ranks):
    """Checks that every node is on devices of its stage and on no other. Nodes that no output needs are on none."""
    count, found = len(m.graph.node), 0
    for i, n in enumerate(m.graph.node):
        mine = set(devices[stage_of(i, count, len(devices))])
        have = {r for r, p in enumerate(ranks) for x in p.graph.node if x.name == n.name and x.op_type == n.op_type}
        assert have <= mine, "%s is on %s, its stage has %s" % (n.name, have, mine)
        found += bool(have)
    assert found > count // 2, "only %d of %d nodes are in the rank files" % (found, count)


def check_weights(m, devices, ranks):
    """Checks that a constant is only on devices of the stages that read it."""
    count, readers = len(m.graph.node), {}
    for i, n in enumerate(m.graph.node):
        for v in n.input:
            readers.setdefault(v, set()).update(devices[stage_of(i, count, len(devices))])
    names = {t.name for t in m.graph.initializer}
    for r, p in enumerate(ranks):
        for t in p.graph.initializer:
            assert t.name not in names or r in readers[t.name], "rank %d has %s and no use for it" % (r, t.name)


def check(folder, model, devices):
    tessera = sys.argv[1]
    m = onnx.load(model)
    cut, parts = os.path.join(folder, "cut.onnx"), os.path.join(folder, "parts")
    words, cuts = edits(m, devices)
    rc, _, err = harness.call(tessera, "annotate", model, *words, "-o", cut)
    assert rc == 0, "annotate: exit %d %s" % (rc, err)
    rc, text, err = harness.call(tessera, "verify", cut, "--inputs", os.path.join(os.path.dirname(model), "test_data_set_0"), "--json")
    doc = json.loads(text) if text else {}
    assert rc == 0 and doc["ok"] and doc["recorded"], "verify: exit %d %s %s" % (rc, text, err)
    assert doc["collectives"].get("AllReduce", 0) == cuts, doc["collectives"]
    rc, _, err = harness.call(tessera, "partition", cut, "-o", parts)
    assert rc == 0, "partition: exit %d %s" % (rc, err)
    manifest = evaluator.check_folder(parts)
    ranks = parts_of(parts, manifest)
    if all(set(a).isdisjoint(b) for i, a in enumerate(devices) for b in devices[:i]):
        check_places(m, devices, ranks)
        check_weights(m, devices, ranks)
    ins, want = evaluator.recorded(model)
    for r, p in enumerate(ranks):
        for i in p.graph.input:
            assert any(i.name in n.input for n in p.graph.node) or r == 0, "rank %d has no use for %s" % (r, i.name)
    assert evaluator.apart(evaluator.run(parts, ins), want) <= TOLERANCE, "the independent reader differs"
    return cuts


def unknown_operator(folder):
    """An operator without a rule is not sharded. With a stage it runs on that stage's device, and its result is sent with its run-time
    shape. Without a stage it is replicated. Devices that this machine lacks are mapped to the CPU."""
    tessera = sys.argv[1]
    info = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Relu", ["x"], ["a"], name="first"),
             onnx.helper.make_node("Inverse", ["a"], ["b"], name="odd", domain="com.microsoft"),
             onnx.helper.make_node("MatMul", ["a", "b"], ["y"], name="last")]
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, ["n", "n"])], [info("y", 1, ["n", "n"])], value_info=[info("b", 1, None)])
    m = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18),
                                                     onnx.helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    model, cut, parts, data = (os.path.join(folder, f) for f in ("odd.onnx", "oddcut.onnx", "odd", "odd.npz"))
    onnx.save(m, model)
    np.savez(data, x=(np.eye(4) * 3 + np.arange(16).reshape(4, 4) / 16).astype("f4"))
    stages = ["--stage", "first=0", "--stage", "odd=1", "--stage", "last=2"]
    for words, where in ((stages, {1}), ([], {0})):  # without stages only rank 0 needs the node: it returns the result
        rc, _, err = harness.call(tessera, "annotate", model, "--config", "d:3=CPU,NPU,GPU", *words, "-o", cut)
        assert rc == 0, err
        rc, text, err = harness.call(tessera, "verify", cut, "--inputs", data, "--map-device", "NPU=CPU", "--map-device", "GPU=CPU",
                                     "--json")
        assert rc == 0 and json.loads(text)["ok"], "verify: exit %d %s %s" % (rc, text, err)
        rc, _, err = harness.call(tessera, "partition", cut, "-o", parts, "--force")
        assert rc == 0, err
        ranks = parts_of(parts, evaluator.check_folder(parts))
        assert {r for r, p in enumerate(ranks) if any(n.op_type == "Inverse" for n in p.graph.node)} == where, where


CASES = [[[0], [1]], [[0], [1], [2]], [[0, 1], [2, 3, 4]], [[2, 3], [0], [1, 4, 5]]]


def main():
    models = sys.argv[2]
    harness.run([("%s on %s" % (name, devices), check, os.path.join(models, name, "model.onnx"), devices) for name in spine.NAMES
                 for devices in CASES] + [unknown_operator])
    harness.finish()


if __name__ == "__main__":
    main()
