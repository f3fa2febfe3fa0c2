# SPDX-License-Identifier: Apache-2.0
"""Partitions whose communication is TensorRT's DistCollective. No TensorRT is here, so the files are run by onnx's reference
evaluator, one thread per rank, with the operator written from NVIDIA's description of it: attributes, groups, parts of one
size along axis 0, results that only the root has. Each rank runs its nodes in an order of its own, as an engine may, so
that an order which the data do not keep is found.

usage: tensorrt.py TESSERA MODELS [TRIALS]"""
import copy, json, os, random, sys, tempfile

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import random_cuts, spine, stages, evaluator

TESSERA, MODELS = sys.argv[1], sys.argv[2]
TRIALS = int(sys.argv[3]) if len(sys.argv) > 3 else 25
FOLDS, ROOTED, MOVES = {"all_reduce", "reduce", "reduce_scatter"}, {"reduce", "broadcast"}, {"all_gather", "broadcast", "all_to_all"}
TYPES = {np.dtype("f4"), np.dtype("f2"), np.dtype("i4"), np.dtype("i8")}


def attributes(node):
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def check_node(node, rank, ranks):
    """What NVIDIA's description asks of the attributes."""
    a = attributes(node)
    assert node.domain == "" and len(node.input) == len(node.output) == 1, node
    assert set(a) == {"collective_operation", "reduce_op", "root", "nb_rank", "group_size", "groups"}, sorted(a)
    kind, groups = a["collective_operation"].decode(), list(a["groups"])
    assert kind in FOLDS | MOVES, kind
    assert (a["reduce_op"].decode() in ("sum", "max", "min", "prod")) if kind in FOLDS else a["reduce_op"] == b"none", a
    assert a["group_size"] == len(groups), a
    members = groups or list(range(ranks))
    assert len(set(members)) == len(members) == a["nb_rank"] > 1 and rank in members and max(members) < ranks, a
    assert groups != list(range(ranks)), "all ranks need no list"
    assert a["root"] in members if kind in ROOTED else a["root"] == -1, a
    return kind


def operator(world, rank, ranks):
    """DistCollective on one rank: the k-th of a group meets the k-th of its other members."""
    count = {}

    class DistCollective(OpRun):
        op_domain = ""

        def _run(self, x, collective_operation=None, reduce_op=None, root=None, nb_rank=None, group_size=None, groups=None):
            members = tuple(int(g) for g in groups) or tuple(range(ranks))
            count[members] = count.get(members, 0) + 1
            said = (collective_operation, reduce_op, int(root), int(nb_rank), members, x.shape, x.dtype)
            got = world.exchange(rank, (members, count[members]), list(members), (said, x))
            assert len({s for s, _ in got}) == 1, "members differ: %s" % [s for s, _ in got]
            assert x.ndim >= 1 and x.dtype in TYPES, (x.shape, x.dtype)
            xs, me, n = [v for _, v in got], members.index(rank), len(members)
            fold = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}.get(reduce_op)
            kind = collective_operation
            if kind in FOLDS:
                y = xs[0]
                for other in xs[1:]:
                    y = fold(y, other)
            if kind == "all_gather":
                y = np.concatenate(xs)
            if kind == "broadcast":
                y = xs[members.index(root)]
            if kind in ("reduce_scatter", "all_to_all"):
                assert x.shape[0] % n == 0, x.shape
            if kind == "reduce_scatter":
                y = np.split(y, n)[me]
            if kind == "all_to_all":
                y = np.concatenate([np.split(v, n)[me] for v in xs])
            if kind == "reduce" and rank != root:  # whatever was there before
                y = np.full_like(y, np.nan if y.dtype.kind == "f" else np.iinfo(y.dtype).min)
            return (y,)

    return DistCollective


def chained(m, rank, ranks):
    """Every communication depends on the values, not the sizes alone, of the one before it, and none is for nothing."""
    after, last, kinds = {}, 0, []
    for n in m.graph.node:
        at = max([after.get(i, 0) for i in [*n.input, *evaluator.captured(helper.make_graph([n], "g", [], []))]] or [0])
        if n.op_type == "DistCollective":
            kinds.append((check_node(n, rank, ranks), tuple(attributes(n)["groups"]), attributes(n)["reduce_op"].decode()))
            assert at == last, "%s does not wait for the communication before it" % n.name
            last = at = last + 1
        for o in n.output:
            after[o] = 0 if n.op_type in ("Shape", "Size") else at
    read = {i for n in m.graph.node for i in n.input} | {o.name for o in m.graph.output} | evaluator.captured(m.graph)
    assert all(n.output[0] in read for n in m.graph.node if n.op_type == "DistCollective"), "an engine may drop a communication"
    return kinds


def shuffled(m, rng):
    """The same graph, its nodes in another order that their inputs allow."""
    made = {o: k for k, n in enumerate(m.graph.node) for o in n.output if o}
    nodes = list(m.graph.node)
    waits = [{made[i] for i in [*n.input, *evaluator.captured(helper.make_graph([n], "g", [], []))] if i in made} for n in nodes]
    order, done = [], set()
    while len(order) < len(nodes):
        k = rng.choice([k for k in range(len(nodes)) if k not in done and waits[k] <= done])
        order.append(nodes[k])
        done.add(k)
    out = copy.deepcopy(m)
    del out.graph.node[:]
    out.graph.node.extend(order)
    return out


def check_file(m):
    """The file is a model of ONNX but for the operator that ONNX does not have."""
    plain = copy.deepcopy(m)
    for n in plain.graph.node:
        if n.op_type == "DistCollective":
            n.domain = "tensorrt"
    plain.opset_import.append(helper.make_opsetid("tensorrt", 1))
    onnx.checker.check_model(plain)
    assert not any(o.domain == "ai.tessera" for o in m.opset_import) and not any(k.domain == "ai.tessera" for k in m.graph.node)


def run(folder, inputs, seed=1):
    """The outputs from the ranks that the manifest says, and what was communicated."""
    with open(folder + "/manifest.json") as f:
        manifest = json.load(f)
    assert manifest["dialect"] == "tensorrt"
    n = manifest["ranks"]
    world, seen = evaluator.World(n), set()

    def outputs_of(r):
        m = onnx.load("%s/rank%d.onnx" % (folder, r))
        check_file(m)
        seen.update(chained(m, r, n))
        return evaluator.evaluate(shuffled(m, random.Random(seed * 100 + r)), inputs, [operator(world, r, n)])

    results = world.run(outputs_of)
    giver = {o["name"]: int(o["sharding"].split(":")[1].rstrip("}")) for o in manifest["outputs"]}
    return {name: results[rank][name] for name, rank in giver.items()}, seen


def partition(model, d, *edits, want=0):
    rc, _, err = evaluator.call(TESSERA, "annotate", model, *edits, "-o", d + "/cut.onnx")
    assert rc == 0, err
    rc, _, err = evaluator.call(TESSERA, "partition", d + "/cut.onnx", "-o", d + "/parts", "--dialect", "tensorrt", "--force", "--json")
    assert rc == want, "exit %d: %s" % (rc, err)
    return err


def real_models(d):
    """Cut as people cut them: blocks over 2 and 4 ranks, and two stages of two ranks each."""
    for name, n in (("bert_tiny", 2), ("gpt2_tiny", 4), ("llama_tiny", 2)):
        model = os.path.join(MODELS, name, "model.onnx")
        graph = onnx.load(model, load_external_data=False)
        inputs, want = evaluator.recorded(model)
        staged, _ = stages.edits(graph, [[0, 1], [2, 3]])
        for edits, groups in ((spine.edits(graph, n), {()}), (staged, None)):
            partition(model, d, *edits)
            got, seen = run(d + "/parts", inputs)
            assert evaluator.apart(got, want) <= 5e-5, name
            assert groups is None or {g for _, g, _ in seen} == groups, seen
    assert "broadcast" in {k for k, _, _ in seen} and any(g for _, g, _ in seen), seen
    rc, _, err = evaluator.call(TESSERA, "run", d + "/parts", "--inputs", os.path.join(MODELS, name, "test_data_set_0"))
    assert rc == 7 and "TensorRT" in err, "exit %d: %s" % (rc, err)


def made(d, b=8, k=12, h=16, opset=18):
    """Two branches that know nothing of each other, a sum, a convolution, a choice by truths, a single number."""
    rng = np.random.default_rng(3)
    f4 = lambda *s: rng.standard_normal(s).astype("f4")
    N = helper.make_node
    nodes = [N("MatMul", ["x", "w1"], ["a"], name="up"), N("Relu", ["a"], ["r"], name="relu"), N("MatMul", ["r", "w2"], ["s"], name="down"),
             N("Tanh", ["s"], ["t"], name="tanh"), N("Softmax", ["t"], ["u"], name="soft", axis=0),
             N("Sigmoid", ["x"], ["v"], name="sig"), N("Softmax", ["v"], ["z"], name="soft2", axis=0),
             N("Less", ["x", "v"], ["l"], name="less"), N("Where", ["l", "x", "v"], ["q"], name="where"),
             N("ReduceMax", ["x"], ["g"], name="greatest", keepdims=0), N("Mul", ["q", "g"], ["o"], name="times"),
             N("Shape", ["t"], ["sizes"], name="shape"), N("Expand", ["w3", "sizes"], ["wide"], name="expand"), N("MatMul", ["wide", "w4"], ["m"], name="last"),
             N("Unsqueeze", ["x", "axis"], ["c"], name="image"), N("Conv", ["c", "wc"], ["e"], name="conv", pads=[1, 1])]
    init = {"w1": f4(k, h), "w2": f4(h, k), "w3": f4(1, k), "w4": f4(k, h), "wc": f4(1, 1, 3), "axis": np.array([1], "i8")}
    shapes = {"u": [b, k], "z": [b, k], "o": [b, k], "e": [b, 1, k], "m": [b, h]}
    g = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", T.FLOAT, [b, k])],
                          [helper.make_tensor_value_info(n, T.FLOAT, s) for n, s in shapes.items()], [numpy_helper.from_array(v, n) for n, v in init.items()])
    m = helper.make_model(g, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(m, d + "/made.onnx")
    x = f4(b, k)
    return {"x": x}, dict(zip(shapes, ReferenceEvaluator(m).run(None, {"x": x})))


def shards(*texts):
    return [w for t in texts for w in ("--shard", t)]


def kinds(d):
    """Every collective that a plan has, even and uneven, in groups and among all, on every axis."""
    inputs, want = made(d)
    one = lambda axis, n: "{%s}" % ",".join(str(n) if a == axis else "1" for a in (0, 1))
    seen = set()
    for n in (2, 3, 4):
        for edits in (["up:w1=" + one(1, n), "down:w2=" + one(0, n), "tanh:s=" + one(0, n)],  # a sum, wanted cut
                      ["up:w1=" + one(1, n), "down:w2=" + one(0, n), "tanh:s=" + one(1, n)],
                      ["up:w1=" + one(1, n), "down:w2=" + one(0, n), "tanh:s={1,1:1}"],  # wanted by one
                      ["up:x=" + one(0, n), "tanh:s=" + one(0, n), "tanh:t=" + one(0, n), "soft:t=" + one(1, n), "sig:x=" + one(0, n), "soft2:v=" + one(1, n)],  # axes change
                      ["sig:x=" + one(1, n), "sig:v=" + one(1, n), "soft2:v=" + one(0, n), "less:l=" + one(1, n), "where:l=" + one(0, n)],
                      ["up:x=" + one(0, n), "tanh:s=" + one(0, n), "sig:x=" + one(1, n), "soft2:v=" + one(1, n)],
                      ["up:w1=" + one(1, n), "down:w2=" + one(0, n), "last:w4=" + one(0, n)],  # a sum, of whose sizes alone another is made
                      ["up:w1=" + one(1, n), "down:w2=" + one(0, n), "sig:x=" + one(1, n), "soft2:z=" + one(1, n)],
                      ["soft:t=" + one(0, n), "soft2:v=" + one(0, n), "greatest:x=" + one(1, n), "less:l=" + one(0, n), "where:l={1,1:0}"],  # greatest
                      ["image:x=" + one(1, n), "image:c={1,1,%d}" % n, "conv:c={1,1,%d}" % n, "conv:e={1,1,%d}" % n],  # neighbours
                      ["tanh:t={1,1:1}", "soft:t={1,1:0}", "less:l={1,1:1}", "where:l={1,1:0}", "greatest:g={1:1}", "times:g={1:0}"]):  # messages
            partition(d + "/made.onnx", d, "--config", "c:%d" % n, *shards(*edits))
            got, more = run(d + "/parts", inputs)
            assert evaluator.apart(got, want) <= 1e-5, (edits, more)
            seen |= more
    for edits in (["up:w1={1,2}", "down:w2={2,1}", "tanh:s={4,1:0,0,0,1}"], ["up:w1={1,2}", "down:w2={2,1}", "tanh:s={1,3:0,1,1}"]):  # a sum, wanted in unequal parts
        partition(d + "/made.onnx", d, "--config", "c:2", *shards(*edits))
        got, more = run(d + "/parts", inputs)
        assert evaluator.apart(got, want) <= 1e-5 and "all_reduce" in {k for k, _, _ in more}, (edits, more)
    for edits in (["up:w1={1,2:(0,1),(2,3)}", "down:w2={2,1:(0,1),(2,3)}", "tanh:s={2,1:(0,1),(2,3)}"],
                  ["up:w1={1,2:(0,2),(1,3)}", "up:x={2,1:(0,1),(2,3)}", "up:a={2,2}", "relu:a={2,2}", "down:r={2,2}", "down:w2={2,1:(0,2),(1,3)}"],
                  ["sig:x={2,2}", "sig:v={2,2}", "soft2:v={1,2:(0,1),(2,3)}"], ["up:x={1,1:2,3}", "sig:x={2,1:3,2}", "soft2:v={1,2:2,3}"]):
        partition(d + "/made.onnx", d, "--config", "c:4", *shards(*edits))
        got, more = run(d + "/parts", inputs)
        assert evaluator.apart(got, want) <= 1e-5, (edits, more)
        seen |= more
    assert {k for k, _, _ in seen} == FOLDS | MOVES, seen
    assert {c for _, _, c in seen} >= {"none", "sum", "max"}, seen
    for kind in ("all_reduce", "all_gather", "broadcast"):
        assert {bool(g) for k, g, _ in seen if k == kind} == {False, True}, (kind, seen)


def half(d):
    """Other element types travel as they are."""
    for type, kind in ((T.FLOAT16, "f2"), (T.INT64, "i8"), (T.INT32, "i4")):
        N = helper.make_node
        g = helper.make_graph([N("Add", ["x", "x"], ["a"], name="add"), N("Mul", ["a", "a"], ["y"], name="mul")], "g",
                              [helper.make_tensor_value_info("x", type, [6, 5])], [helper.make_tensor_value_info("y", type, [6, 5])])
        m = helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(m, d + "/plain.onnx")
        inputs = {"x": np.arange(30).reshape(6, 5).astype(kind)}
        partition(d + "/plain.onnx", d, "--config", "c:3", *shards("add:x={3,1}", "mul:a={1,3}"))
        got, seen = run(d + "/parts", inputs)
        assert (got["y"] == (2 * inputs["x"]) ** 2).all() and seen, (kind, seen)


def at_random(d):
    """Random models and shardings that agree with each other: all of them can be said, and give what the whole model gives."""
    counts = {"held": 0, "refused": 0}
    for seed in range(1, TRIALS + 1):
        rng = random.Random(seed)
        m, model = random_cuts.make(rng)
        n, size = rng.choice([2, 3, 4, 4]), {"batch": rng.choice([4, 5, 7]), "seq": rng.choice([4, 6, 9])}
        for v in [*model.graph.input, *model.graph.output]:
            for dim in v.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_value = size[dim.dim_param]
        sizes = lambda x: size[x] if isinstance(x, str) else x
        onnx.save(model, d + "/plain.onnx")
        inputs = {i.name: np.random.default_rng(seed).standard_normal([sizes(x) for x in m.shape[i.name]]).astype("f4") for i in m.inputs}
        rc, _, err = evaluator.call(TESSERA, "annotate", d + "/plain.onnx", *random_cuts.edits(rng, m, n, sizes), "-o", d + "/cut.onnx")
        assert rc == 0, err
        os.system("rm -rf '%s/parts'" % d)
        rc, _, err = evaluator.call(TESSERA, "partition", d + "/cut.onnx", "-o", d + "/parts", "--dialect", "tensorrt", "--json")
        if rc:
            assert rc == 1 and "partition-refused" in err, "seed %d: exit %d %s" % (seed, rc, err)  # shardings that do not agree
            assert not os.path.exists(d + "/parts")
            counts["refused"] += 1
            continue
        want = dict(zip([o.name for o in model.graph.output], ReferenceEvaluator(model).run(None, inputs)))
        got, _ = run(d + "/parts", inputs, seed)
        assert evaluator.apart(got, want) <= 5e-5, "seed %d" % seed
        counts["held"] += 1
    assert counts["held"] >= 0.8 * TRIALS, counts


def refusals(d):
    """All that does not suffice, at once, with its node and what can be done; nothing is written."""
    N = helper.make_node
    def plain(type, dims, opset):
        g = helper.make_graph([N("Add", ["x", "x"], ["a"], name="add"), N("Add", ["a", "a"], ["y"], name="more")], "g",
                              [helper.make_tensor_value_info("x", type, dims)], [helper.make_tensor_value_info("y", type, dims)])
        onnx.save(helper.make_model(g, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), d + "/plain.onnx")
    for type, dims, opset, words in ((T.DOUBLE, [4, 4], 18, "element type"), (T.FLOAT, [4, 4], 10, "operator set 11"),
                                     (T.FLOAT, ["n", 4], 18, "tessera shapes --dim"), (T.FLOAT, [4, 0], 18, "no elements")):
        plain(type, dims, opset)
        cuts = ("add:a={2,1}", "more:a={1,2}") if dims[1] else ("add:a={1,1:0}", "more:a={1,1:1}", "more:y={1,1:1}")
        err = partition(d + "/plain.onnx", d, "--config", "c:2", *shards(*cuts), want=5)
        assert "partition-dialect" in err and words in err and "add" in err, err
        assert not os.path.exists(d + "/parts")


bad = 0
for case in (kinds, half, real_models, at_random, refusals):
    with tempfile.TemporaryDirectory() as d:
        try:
            case(d)
            print("ok - tensorrt", case.__name__)
        except AssertionError as e:
            bad += 1
            print("not ok - tensorrt", case.__name__, str(e)[:2000])
sys.exit(bad > 0)
