#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inputs that share the name of a dimension and differ in size: partitions must give ONNX Runtime's results, or refuse the sizes if sharded
nodes need both to be equal. Shardings are random.

Usage: names.py TESSERA [all]     without `all` a few shardings of each model"""
import json
import os
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T, helper, numpy_helper

import harness

TESSERA = sys.argv[1]
SEEDS = 24 if harness.ALL else 4
rng = np.random.default_rng(11)
node = helper.make_node


def f4(*dims):
    return (rng.standard_normal(dims) / 4).astype("f4")


def info(name, dims, type=T.FLOAT):
    return helper.make_tensor_value_info(name, type, dims)


def graph(name, nodes, inputs, outputs, constants=()):
    """inputs: name -> dims, of bool if there are none; outputs: name -> dims."""
    return helper.make_graph(nodes, name, [info(x, d or [1], T.FLOAT if d else T.BOOL) for x, d in inputs.items()],
                             [info(y, d) for y, d in outputs.items()], [numpy_helper.from_array(v, k) for k, v in dict(constants).items()])


def model(nodes, inputs, outputs, constants):
    return helper.make_model(graph("g", nodes, inputs, outputs, constants), ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


W = {"w": f4(16, 16), "v": f4(16, 16)}
ROWS = ["S", 16]
MATMULS = [node("MatMul", ["a", "w"], ["p"], name="mp"), node("MatMul", ["b", "v"], ["q"], name="mq")]
AB = {"a": ROWS, "b": ROWS}


def apart():
    """Two computations that have nothing in common."""
    nodes = MATMULS + [node("Relu", ["p"], ["y"], name="ry"), node("Tanh", ["q"], ["z"], name="tz")]
    return model(nodes, AB, {"y": ROWS, "z": ROWS},
                 W), [dict(a=f4(m, 16), b=f4(n, 16)) for m, n in ((6, 3), (1, 2), (3, 0), (0, 5), (2, 2))], False


def attended():
    """Rows of a attend to rows of b."""
    nodes = MATMULS + [
        node("Transpose", ["q"], ["t"], name="t", perm=[1, 0]),
        node("MatMul", ["p", "t"], ["s"], name="s"),
        node("Softmax", ["s"], ["o"], name="o", axis=-1),
        node("MatMul", ["o", "b"], ["y"], name="y")
    ]
    return model(nodes, AB, {"y": ROWS}, W), [dict(a=f4(m, 16), b=f4(n, 16)) for m, n in ((6, 3), (1, 5), (4, 1), (3, 3))], False


def added():
    """Rows of a and b are added: with one row of one of them, ONNX Runtime repeats it."""
    nodes = MATMULS + [node("Relu", ["p"], ["h"], name="h"), node("Tanh", ["q"], ["k"], name="k"), node("Add", ["h", "k"], ["y"], name="y")]
    return model(nodes, AB, {"y": None}, W), [dict(a=f4(m, 16), b=f4(n, 16)) for m, n in ((3, 3), (1, 2), (2, 1), (1, 3), (5, 4))], True


def branch(name, nodes, result):
    return graph(name, nodes, {}, {result: ROWS})


def chosen(after=()):
    """Each branch reads one of two inputs."""
    then = branch("then", [node("MatMul", ["past", "w"], ["ty"], name="tm")], "ty")
    other = branch("else", [node("MatMul", ["x", "v"], ["ey"], name="em"), node("Relu", ["ey"], ["er"], name="er")], "er")
    nodes = [node("If", ["c"], ["i"], name="i", then_branch=then, else_branch=other)] + (list(after)
                                                                                         or [node("Identity", ["i"], ["y"], name="y")])
    sets = [
        dict(c=np.array([c]), x=f4(m, 16), past=f4(n, 16))
        for c, m, n in ((False, 6, 0), (True, 6, 3), (False, 2, 1), (True, 1, 2), (True, 4, 0))
    ]
    return model(nodes, {"c": None, "x": ROWS, "past": ROWS}, {"y": ROWS}, W), sets, False


def chosen_and_used():
    """The size of what an If returns depends on the branch."""
    return chosen([node("MatMul", ["i", "v"], ["j"], name="j"), node("Softmax", ["j"], ["y"], name="y", axis=-1)])


def cached():
    """A decoder with caches, as Optimum merges them: one branch does not read the cache, which then has no rows, or one."""
    heads = ["B", 2, "S", 8]
    split = [node("Reshape", ["x", "four"], ["{0}4"], name="{0}r"), node("Transpose", ["{0}4"], ["{0}k"], name="{0}t", perm=[0, 2, 1, 3])]
    tail = [
        node("Transpose", ["{1}"], ["{0}kt"], name="{0}kt", perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "{0}kt"], ["{0}s"], name="{0}s"),
        node("Add", ["{0}s", "bias"], ["{0}b"], name="{0}b"),
        node("Softmax", ["{0}b"], ["{0}o"], name="{0}o", axis=-1),
        node("MatMul", ["{0}o", "{1}"], ["{0}y"], name="{0}y")
    ]

    def named(nodes, *words):
        made = []
        for n in nodes:
            copy = onnx.NodeProto.FromString(n.SerializeToString())
            for field in (copy.input, copy.output):
                field[:] = [name.format(*words) for name in field]
            copy.name = copy.name.format(*words)
            made.append(copy)
        return made

    out = ["B", 2, "Q", 8]
    then = graph("then", named(tail, "t", "past"), {}, {"ty": out})
    other = graph("else", named(split, "e") + named(tail, "e", "ek"), {}, {"ey": out})
    nodes = [
        node("Unsqueeze", ["mask", "one"], ["bias"], name="u"),
        node("If", ["c"], ["y"], name="i", then_branch=then, else_branch=other)
    ]
    m = model(nodes, {"c": None, "mask": ["B", "S"], "q": out, "x": ["B", "S", 16], "past": heads}, {"y": out},
              {"four": np.array([0, 0, 2, 8]), "one": np.array([1, 2])})
    sets = []
    for c, batch, x, past, mask in ((False, 2, 5, 0, 5), (False, 2, 5, 1, 5), (True, 2, 5, 5, 5), (True, 3, 0, 4, 4), (True, 1, 2, 2, 2),
                                    (False, 1, 1, 2, 1), (True, 2, 2, 1, 2)):
        sets.append(dict(c=np.array([c]), mask=f4(batch, mask), q=f4(batch, 2, 3, 8), x=f4(batch, x, 16), past=f4(batch, 2, past, 8)))
    return m, sets, False


def looped():
    """A loop whose body adds rows of both inputs, and one that reads a only."""
    def body(name, nodes):
        return helper.make_graph(
            nodes + [node("Identity", [name + "c"], [name + "d"])], name,
            [info(name + "i", [], T.INT64), info(name + "c", [], T.BOOL),
             info(name + "s", ROWS)], [info(name + "d", [], T.BOOL), info(name + "e", ROWS)])
    one = body("l", [node("MatMul", ["ls", "w"], ["lm"], name="lm"), node("Tanh", ["lm"], ["le"], name="le")])
    two = body("k", [node("MatMul", ["ks", "v"], ["km"], name="km"), node("Add", ["km", "b"], ["ke"], name="ke")])
    nodes = [node("Loop", ["n", "", "a"], ["y"], name="l", body=one), node("Loop", ["n", "", "b"], ["z"], name="k", body=two)]
    return model(nodes, AB, {"y": ROWS, "z": ROWS},
                 {**W, "n": np.array(3)}), [dict(a=f4(m, 16), b=f4(n, 16)) for m, n in ((6, 3), (1, 2), (2, 2))], False


def subsampled():
    """Keys of a shorter sequence than the mask, as in a decoder of speech. Their shape has a size of q, which has seen the mask."""
    nodes = [
        node("ReduceSum", ["mask", "one"], ["sum"], name="s", keepdims=1),
        node("Unsqueeze", ["sum", "one"], ["bias"], name="u"),
        node("Add", ["q", "bias"], ["x"], name="a"),
        node("Shape", ["x"], ["xs"], name="xs"),
        node("Gather", ["xs", "zero"], ["batch"], name="g"),
        node("Shape", ["h"], ["hs"], name="hs"),
        node("Gather", ["hs", "one"], ["rows"], name="r"),
        node("Concat", ["batch", "rows", "heads"], ["target"], name="c", axis=0),
        node("MatMul", ["h", "w"], ["p"], name="m"),
        node("Reshape", ["p", "target"], ["k"], name="k"),
        node("Relu", ["k"], ["y"], name="y"),
        node("MatMul", ["x", "v"], ["z"], name="z")
    ]
    values = {**W, "one": np.array([1]), "zero": np.array([0]), "heads": np.array([2, 8])}
    m = model(nodes, {"mask": ["B", "S"], "q": ["B", "Q", 16], "h": ["B", "S", 16]}, {"y": ["B", "S", 2, 8], "z": ["B", "Q", 16]}, values)
    sets = [dict(mask=f4(b, s), q=f4(b, 3, 16), h=f4(b, n, 16)) for b, s, n in ((2, 20, 5), (1, 1, 4), (3, 4, 4), (2, 2, 0))]
    return m, sets, True


def whole(m, feeds):
    """ONNX Runtime's outputs; None: it refuses these sizes."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    try:
        return dict(zip([y.name for y in session.get_outputs()], session.run(None, feeds)))
    except Exception:
        return None


def outcome(folder, parts, feeds, want, may_refuse, words):
    """Returns what is wrong with a run of the partition, or None."""
    np.savez(folder + "/in.npz", **feeds)
    code, out, err = harness.call(TESSERA, "run", parts, "--inputs", folder + "/in.npz", "--outputs", folder + "/out.npz", *words)
    if want is None or (code == 1 and may_refuse and "input-mismatch" in err and "'S'" in err):
        return None
    if code:
        return "exit %d: %s" % (code, err)
    got = np.load(folder + "/out.npz")
    for name, value in want.items():
        if got[name].shape != value.shape or not np.allclose(got[name], value, rtol=1e-4, atol=1e-5):
            return "%s is %s, should be %s" % (name, got[name].shape, value.shape)
    return None


def shardings(folder, m):
    """Writes partitions with random shardings, and one that the planner makes; yields their folders, and whether inputs stay sharded."""
    onnx.save(m, folder + "/m.onnx")
    for seed in range(SEEDS):
        devices, cut, parts = 2 + seed % 3, "%s/%d.onnx" % (folder, seed), "%s/parts%d" % (folder, seed)
        code, _, err = harness.call(TESSERA, "annotate", folder + "/m.onnx", "--config", "c:%d" % devices, "--random", seed, "-o", cut)
        assert code == 0, err
        for kept in ([], ["--keep-cut", "*"]):
            code, _, err = harness.call(TESSERA, "partition", cut, *kept, "-o", parts + "k" * len(kept))
            assert code == 0 or "not valid" in err or "partition-no-tensor" in err, err
            if code == 0:
                yield parts + "k" * len(kept), bool(kept)
    code, _, err = harness.call(TESSERA, "partition", folder + "/m.onnx", "--devices", 2, "-o", folder + "/planned")
    assert code == 0, err
    yield folder + "/planned", False


def right(folder, make, transport="threads"):
    m, sets, may_refuse = make()
    wants = [whole(m, feeds) for feeds in sets]
    assert any(w is not None for w in wants)
    n = 0
    for parts, kept in shardings(folder, m):
        for feeds, want in zip(sets, wants):
            sizes = {k: v.shape for k, v in feeds.items()}
            # a rank has only its part of an input that stays sharded, so the full size is read from another
            wrong = outcome(folder, parts, feeds, want, may_refuse or kept, ["--transport", transport])
            assert not wrong, (os.path.basename(parts), sizes, wrong)
            n += want is not None
    assert n > SEEDS


def refused_before_a_run(folder):
    """A sharded sum of inputs of different sizes is refused with place and remedy; the partition lists the dimensions. Columns may be
    sharded."""
    m, _, _ = added()
    onnx.save(m, folder + "/m.onnx")
    for name, shard, equal in (("rows", "{2,1:0,1}", 2), ("columns", "{1,2:0,1}", 0)):
        cut, parts = "%s/%s.onnx" % (folder, name), "%s/%s" % (folder, name)
        shards = [w for at in ("y:h", "y:k", "y:y") for w in ("--shard", "%s=%s" % (at, shard))]
        assert harness.call(TESSERA, "annotate", folder + "/m.onnx", "--config", "c:2", *shards, "-o", cut)[0] == 0
        code, _, err = harness.call(TESSERA, "partition", cut, "-o", parts)
        assert code == 0, err
        with open(parts + "/manifest.json") as f:
            same = json.load(f)["same_sizes"]
        assert sum(len(group) for group in same) == equal, same
        for m_rows, n_rows in ((1, 2), (3, 3)):
            feeds = dict(a=f4(m_rows, 16), b=f4(n_rows, 16))
            wrong = outcome(folder, parts, feeds, whole(m, feeds), False, [])
            refused = name == "rows" and m_rows != n_rows
            assert bool(wrong) == refused, (name, m_rows, wrong)
            assert not wrong or all(w in wrong
                                    for w in ("input-mismatch", "'S' is 1", "value 'b', axis 0", "give both the same size")), wrong


def heads_need_no_equal_rows(folder):
    """A Reshape that is sharded along axes of known size does not depend on the sizes before them."""
    m, sets, _ = subsampled()
    onnx.save(m, folder + "/m.onnx")
    for name, shard, refuses in (("heads", "{1,1,2,1:0,1}", False), ("rows", "{1,2,1,1:0,1}", True)):
        cut, parts = "%s/%s.onnx" % (folder, name), "%s/%s" % (folder, name)
        shards = [w for at in ("k:k", "y:k", "y:y") for w in ("--shard", "%s=%s" % (at, shard))]
        assert harness.call(TESSERA, "annotate", folder + "/m.onnx", "--config", "c:2", *shards, "-o", cut)[0] == 0
        code, _, err = harness.call(TESSERA, "partition", cut, "-o", parts)
        assert code == 0, err
        for feeds in sets:
            wrong = outcome(folder, parts, feeds, whole(m, feeds), refuses, [])
            assert not wrong, (name, wrong)


def refused_in_a_branch(folder):
    """A branch that combines rows of two inputs checks them when it runs, and only then."""
    then = branch("then", [node("Add", ["a", "b"], ["ty"], name="ta")], "ty")
    other = branch("else", [node("Neg", ["b"], ["ey"], name="en")], "ey")
    nodes = [node("If", ["c"], ["y"], name="i", then_branch=then, else_branch=other)]
    m = model(nodes, {"c": None, **AB}, {"y": None}, {})
    onnx.save(m, folder + "/m.onnx")
    shards = [
        w for at in ("i > then_branch > ta:a", "i > then_branch > ta:b", "i > else_branch > en:b") for w in ("--shard", "%s={2,1:0,1}" % at)
    ]
    code, _, err = harness.call(TESSERA, "annotate", folder + "/m.onnx", "--config", "c:2", *shards, "-o", folder + "/cut.onnx")
    assert code == 0, err
    for kept in ("", "a", "b", "*"):
        parts = folder + "/parts" + kept.replace("*", "both")
        code, _, err = harness.call(TESSERA, "partition", folder + "/cut.onnx", *(["--keep-cut", kept] if kept else []), "-o", parts)
        assert code == 0, err
        for c, rows in ((True, (2, 2)), (True, (3, 3)), (True, (1, 2)), (False, (1, 2)), (False, (0, 3))):
            feeds = dict(c=np.array([c]), a=f4(rows[0], 16), b=f4(rows[1], 16))
            wrong = outcome(folder, parts, feeds, whole(m, feeds), False, [])
            assert bool(wrong) == (c and rows == (1, 2)), (kept, c, rows, wrong)
            assert not wrong or ("input-mismatch" in wrong and "branch or loop" in wrong and "'S' is 1" in wrong), (kept, wrong)


def compared_by_the_runtime(folder):
    """A branch whose ranks have only shards of an input, or lack it, cannot compare its sizes: the runtime does, or the branch asks for the
    input."""
    then = branch("then", [node("Add", ["a", "b"], ["ty"], name="ta")], "ty")
    other = branch("else", [node("Neg", ["b"], ["ey"], name="en")], "ey")
    nodes = [node("If", ["c"], ["h"], name="i", then_branch=then, else_branch=other), node("Relu", ["h"], ["y"], name="r")]
    m = model(nodes, {"c": None, **AB}, {"y": None}, {})
    onnx.save(m, folder + "/m.onnx")
    for name, devices, words in (("kept", "0,1", ["--keep-cut", "a"]), ("two of three", "1,2", [])):
        shards = [w for at in ("ta:a", "ta:b", "ta:ty") for w in ("--shard", "i > then_branch > %s={2,1:%s}" % (at, devices))]
        cut, parts = folder + "/cut.onnx", folder + "/" + name
        code, _, err = harness.call(TESSERA, "annotate", folder + "/m.onnx", "--config", "c:3", *shards, "-o", cut)
        assert code == 0, err
        code, _, err = harness.call(TESSERA, "partition", cut, *words, "-o", parts)
        assert code == 0, err
        feeds = dict(c=np.array([True]), a=f4(4, 16), b=f4(4, 16))
        wrong = outcome(folder, parts, feeds, whole(m, feeds), False, [])
        assert not wrong, (name, wrong)


def main():
    cases = [("%s, %s" % (make.__name__, transport), right, make, transport)
             for make in (apart, attended, added, chosen, chosen_and_used, cached, looped, subsampled)
             for transport in (("threads", "shm") if harness.ALL or make is chosen else ("threads", ))]
    harness.run(cases + [refused_before_a_run, heads_need_no_equal_rows, refused_in_a_branch, compared_by_the_runtime])
    harness.finish()


main()
