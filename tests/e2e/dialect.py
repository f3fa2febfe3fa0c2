# SPDX-License-Identifier: Apache-2.0
"""Partitions whose communication is that of com.microsoft (AllReduce, AllGather, AllToAll, as builds of ONNX Runtime with NCCL
have them). No such build is here, so the files are run by onnx's reference evaluator with these operators written from ONNX Runtime's
description of them; that every communication waits for the one before is read off the graphs.

usage: dialect.py TESSERA MODELS"""
import json, os, sys, tempfile

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import spine, evaluator

TESSERA, MODELS = sys.argv[1], sys.argv[2]
OPS = ("AllReduce", "AllGather", "AllToAll")


def operators(world, rank, n):
    """They know no numbers and no groups: the k-th of one rank meets the k-th of the others."""
    count = [0]

    def meet(op, x):
        count[0] += 1
        xs = world.exchange(rank, count[0], list(range(n)), (op, x))
        assert len({o for o, _ in xs}) == 1, "rank %d is in %s, others in %s" % (rank, op, [o for o, _ in xs])
        assert len({(v.dtype, v.shape) for _, v in xs}) == 1, "parts differ: %s" % [v.shape for _, v in xs]
        return [v for _, v in xs]

    class AllReduce(OpRun):
        op_domain = "com.microsoft"

        def _run(self, x):
            assert x.dtype.kind == "f"
            return (sum(meet("AllReduce", x)),)

    class AllGather(OpRun):
        op_domain = "com.microsoft"

        def _run(self, x, axis=None, group_size=None):
            assert group_size == n
            return (np.concatenate(meet("AllGather", x), axis),)

    class AllToAll(OpRun):
        op_domain = "com.microsoft"

        def _run(self, x, group_size=None):
            assert group_size == n and x.shape[0] % n == 0
            return (np.concatenate([np.split(v, n)[rank] for v in meet("AllToAll", x)]),)

    return [AllReduce, AllGather, AllToAll]


def chained(m):
    """Every communication depends on the one before it, and none is for nothing. Returns their names."""
    after, last, names = {}, 0, []
    for n in m.graph.node:
        at = max([after.get(i, 0) for i in n.input] or [0])
        if n.domain == "com.microsoft" and n.op_type in OPS:
            assert at == last, "%s does not wait for the communication before it" % n.name
            last = at = last + 1
            names.append(n.op_type)
        for o in n.output:
            after[o] = at
    read = {i for n in m.graph.node for i in n.input} | {o.name for o in m.graph.output}
    assert all(n.output[0] in read for n in m.graph.node if n.op_type in OPS), "a communication that an engine may drop"
    return names


def run(folder, inputs):
    with open(folder + "/manifest.json") as f:
        manifest = json.load(f)
    assert manifest["dialect"] == "com.microsoft"
    n = manifest["ranks"]
    world, seen = evaluator.World(n), []

    def outputs_of(r):
        onnx.checker.check_model("%s/rank%d.onnx" % (folder, r))
        m = onnx.load("%s/rank%d.onnx" % (folder, r))
        assert not any(o.domain == "ai.tessera" for o in m.opset_import) and not any(k.domain == "ai.tessera" for k in m.graph.node)
        seen.append(chained(m))
        return evaluator.evaluate(m, inputs, operators(world, r, n))

    results = world.run(outputs_of)
    assert all(s == seen[0] for s in seen), seen
    return results[0], seen[0]


def partition(model, cut, parts, *edits, want=0):
    rc, _, err = evaluator.call(TESSERA, "annotate", model, *edits, "-o", cut)
    assert rc == 0, err
    rc, out, err = evaluator.call(TESSERA, "partition", cut, "-o", parts, "--dialect", "com.microsoft", "--force", "--json")
    assert rc == want, "exit %d: %s" % (rc, err)
    return err


def real_models(d):
    for name, n in (("bert_tiny", 2), ("gpt2_tiny", 4), ("llama_tiny", 2)):
        model = os.path.join(MODELS, name, "model.onnx")
        edits = spine.edits(onnx.load(model, load_external_data=False), n)
        partition(model, d + "/cut.onnx", d + "/parts", *edits)
        inputs, want = evaluator.recorded(model)
        got, seen = run(d + "/parts", inputs)
        assert evaluator.apart({k: got[k] for k in want}, want) <= 5e-5, name
        assert seen and set(seen) == {"AllReduce"}, seen
    rc, _, err = evaluator.call(TESSERA, "run", d + "/parts", "--inputs", os.path.join(MODELS, name, "test_data_set_0"))
    assert rc == 7 and "NCCL" in err, "exit %d: %s" % (rc, err)


def made(d, sizes=(8, 12, 16), opset=18):
    """Two branches that know nothing of each other, a sum that is wanted cut, an axis that changes, gathers, neighbours."""
    b, k, h = sizes
    rng = np.random.default_rng(3)
    f4 = lambda *s: rng.standard_normal(s).astype("f4")
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["a"], name="up"), helper.make_node("Relu", ["a"], ["r"], name="relu"),
             helper.make_node("MatMul", ["r", "w2"], ["s"], name="down"), helper.make_node("Tanh", ["s"], ["t"], name="tanh"),
             helper.make_node("Softmax", ["t"], ["u"], name="soft", axis=0), helper.make_node("Sigmoid", ["x"], ["v"], name="sig"),
             helper.make_node("Softmax", ["v"], ["z"], name="soft2", axis=0),
             helper.make_node("Unsqueeze", ["x", "axis"], ["c"], name="image"), helper.make_node("Conv", ["c", "wc"], ["e"], name="conv", pads=[1, 1])]
    g = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", T.FLOAT, [b, k])],
                          [helper.make_tensor_value_info("u", T.FLOAT, [b, k]), helper.make_tensor_value_info("z", T.FLOAT, [b, k]), helper.make_tensor_value_info("e", T.FLOAT, [b, 1, k])],
                          [numpy_helper.from_array(f4(k, h), "w1"), numpy_helper.from_array(f4(h, k), "w2"), numpy_helper.from_array(f4(1, 1, 3), "wc"),
                           numpy_helper.from_array(np.array([1], "i8"), "axis")])
    m = helper.make_model(g, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(m, d + "/made.onnx")
    x = f4(b, k)
    return m, x, ReferenceEvaluator(m).run(None, {"x": x})


def kinds(d):
    m, x, want = made(d)
    all_seen = set()
    for n in (2, 4):
        one = lambda axis: "{%s}" % ",".join(str(n) if a == axis else "1" for a in (0, 1))
        for edits in (["up:w1=" + one(1), "down:w2=" + one(0), "tanh:s=" + one(0)],  # a sum, wanted cut
                      ["up:x=" + one(0), "tanh:s=" + one(0), "tanh:t=" + one(0), "soft:t=" + one(1), "sig:x=" + one(0), "soft2:v=" + one(1)],  # axes change
                      ["up:x=" + one(0), "tanh:s=" + one(0), "sig:x=" + one(1), "soft2:v=" + one(1)],
                      ["up:w1=" + one(1), "down:w2=" + one(0), "sig:x=" + one(1), "soft2:z=" + one(1)],
                      ["image:x=" + one(1), "image:c={1,1,%d}" % n, "conv:c={1,1,%d}" % n, "conv:e={1,1,%d}" % n]):
            partition(d + "/made.onnx", d + "/cut.onnx", d + "/parts", "--config", "c:%d" % n, *[w for e in edits for w in ("--shard", e)])
            got, seen = run(d + "/parts", {"x": x})
            assert np.abs(got["u"] - want[0]).max() < 1e-5 and np.abs(got["z"] - want[1]).max() < 1e-5 and np.abs(got["e"] - want[2]).max() < 1e-5, (edits, seen)
            all_seen |= set(seen)
    assert all_seen == set(OPS), all_seen


def refusals(d):
    """All that does not suffice, at once, with its node; nothing is written."""
    made(d)
    os.system("rm -rf '%s/parts'" % d)
    groups = ["--config", "c:4", "--shard", "up:w1={1,2:(0,1),(2,3)}", "--shard", "down:w2={2,1:(0,1),(2,3)}"]
    uneven = ["--config", "c:3", "--shard", "sig:x={3,1}", "--shard", "tanh:s={3,1}"]
    shares = ["--config", "c:2", "--shard", "sig:x={4,1:0,0,0,1}", "--shard", "tanh:s={4,1:0,0,0,1}"]
    stages = ["--config", "c:2", "--stage", "up=0", "--stage", "relu=0", "--stage", "down=1", "--stage", "tanh=1", "--stage", "soft=1", "--stage", "sig=1", "--stage", "soft2=1"]
    greatest = ["--config", "c:2", "--shard", "soft:t={2,1}", "--shard", "soft2:v={2,1}"]
    for edits, words, least in ((groups, "knows no groups", 1), (uneven, "different sizes", 2), (shares, "unequal shares", 2), (stages, "AllReduce, AllGather and AllToAll only", 1), (greatest, "can only add", 2)):
        err = partition(d + "/made.onnx", d + "/cut.onnx", d + "/parts", *edits, want=5)
        assert err.count("partition-dialect") >= least and words in err, err
        assert not os.path.exists(d + "/parts")
    rc, _, err = evaluator.call(TESSERA, "partition", d + "/cut.onnx", "-o", d + "/parts", "--dialect", "org.nobody")
    assert rc == 5 and "org.nobody" in err, "exit %d: %s" % (rc, err)


bad = 0
for case in (real_models, kinds, refusals):
    with tempfile.TemporaryDirectory() as d:
        try:
            case(d)
            print("ok - dialect", case.__name__)
        except AssertionError as e:
            bad += 1
            print("not ok - dialect", case.__name__, str(e)[:2000])
sys.exit(bad > 0)
