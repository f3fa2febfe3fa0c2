# SPDX-License-Identifier: Apache-2.0
"""Tests hand-made pipelines and unusual shardings: the devices of a stage, the ranks that return outputs, the overlap of stages on every
transport, fewer rows than devices, several tiles on one device, and a model that the ranks of a launcher partition together.

usage: pipelines.py TESSERA SLOW_OPS [all]     without `all` each reduction to unequal shards over threads and one other transport"""
import glob, json, os, shutil, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper as h

import evaluator, harness

TESSERA, SLOW_OPS = sys.argv[1:3]
os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=0")  # MPI frees some memory only at exit


def tessera(*args, launch=()):
    return harness.call(TESSERA, *args, launch=launch)


def good(*args, **how):
    return harness.good(TESSERA, *args, **how)


def line(path, operators):
    """Writes a chain of operators; nodes are named n0, n1 ..."""
    nodes = [h.make_node(op, ["h%d" % k], ["h%d" % (k + 1)], name="n%d" % k) for k, op in enumerate(operators)]
    info = lambda name: h.make_tensor_value_info(name, T.FLOAT, [4, 8])
    graph = h.make_graph(nodes, "g", [info("h0")], [info("h%d" % len(operators))])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10), path)
    return path


def ranks_with(parts, operator):
    """Returns the ranks whose file has a node of this operator."""
    files = sorted(glob.glob(parts + "/rank*.onnx"))
    return [r for r in range(len(files)) if any(n.op_type == operator for n in onnx.load("%s/rank%d.onnx" % (parts, r)).graph.node)]


OPERATORS = ["Relu", "Neg", "Exp", "Tanh", "Sqrt"]


def devices_of_stages(d):
    """Rows: number of devices, stage of each node, devices that a spec names at a node, expected devices of each node."""
    table = [(4, [0, 3], {}, [[0, 1], [2, 3]]),  # the order of the numbers counts, not the gaps
             (3, [0, 1, 2], {}, [[0], [1], [2]]),
             (4, [0, 1, 2], {1: [1, 2]}, [[0], [1, 2], [3]]),  # the other stages get the free devices, in order
             (6, [0, 1, 2], {0: [5]}, [[5], [0, 1], [2, 3, 4]]),
             (5, [3, 7], {}, [[0, 1], [2, 3, 4]]),  # equal runs of devices
             (3, [0, 1, 2, 3, 4], {0: [0]}, [[0], [1], [2], [2], [2]]),  # more stages than free devices: they share the last
             (2, [0, 1], {0: [0, 1]}, [[0, 1], [0, 1]])]  # no free device: all of them
    for devices, stages, named, want in table:
        words = ["--config", "c:%d" % devices]
        for k, stage in enumerate(stages):
            words += ["--stage", "n%d=%d" % (k, stage)]
        for k, mine in named.items():
            words += ["--shard", "n%d:h%d={1,%d:%s}" % (k, k, len(mine), ",".join(map(str, mine)))]
        good("annotate", line(d + "/m.onnx", OPERATORS[: len(stages)]), *words, "-o", d + "/s.onnx")
        good("partition", d + "/s.onnx", "-o", d + "/parts", "--force")
        got = [ranks_with(d + "/parts", op) for op in OPERATORS[: len(stages)]]
        ok = all(set(g) <= set(w) and g for g, w in zip(got, want)) and all(got[k] == want[k] for k in named)
        assert ok, (devices, stages, named, got, want)
        assert json.loads(good("verify", d + "/s.onnx", "--json"))["ok"]


def launchers(n):
    """Yields ways to start n ranks: (name, words before the program, options)."""
    yield "threads", [], []
    yield "shm", [], ["--transport", "shm"]
    for mpirun, more in (("mpirun.openmpi", ["--allow-run-as-root", "--oversubscribe"]), ("mpirun.mpich", [])):
        path = shutil.which(mpirun)
        if path:
            yield mpirun, [path, *more, "-n", str(n)], []


def slow_line(d, stages, order=None):
    """Writes a chain with one Twice (2 x + 1, takes 10 ms) per stage. order: the device of each stage."""
    nodes = [h.make_node("Twice", ["h%d" % k], ["h%d" % (k + 1)], name="n%d" % k, domain="test.ops", bias=1) for k in range(stages)]
    info = lambda name: h.make_tensor_value_info(name, T.FLOAT, [4, 8])
    graph = h.make_graph(nodes, "g", [info("h0")], [info("h%d" % stages)], value_info=[info("h%d" % k) for k in range(1, stages)])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18), h.make_opsetid("test.ops", 1)], ir_version=10), d + "/slow.onnx")
    words = ["--config", "c:%d" % stages]
    for k in range(stages):
        words += ["--stage", "n%d=%d" % (k, k)]
        if order:
            words += ["--shard", "n%d:h%d={1,1:%d}" % (k, k, order[k])]
    good("annotate", d + "/slow.onnx", *words, "-o", d + "/s.onnx")
    good("partition", d + "/s.onnx", "-o", d + "/parts", "--force")
    return d + "/parts"


def calls_at_once(log):
    """Returns how many calls of SLOW_OPS ran at the same time, at most: each wrote + at its begin and - at its end."""
    calls, most = 0, 0
    for sign in open(log).read():
        calls += 1 if sign == "+" else -1
        most = max(most, calls)
    return most


def stages_overlap(d):
    """With several runs in flight, operators of different stages run at the same time; with one run, they never do. The last stage is
    on the last device or on another."""
    for order in (None, [2, 0, 3, 1]):
        parts = slow_line(d, 4, order)
        last = order[-1] if order else 3
        outputs = {o["name"]: o["sharding"] for o in json.load(open(parts + "/manifest.json"))["outputs"]}
        assert outputs == {"h4": "{1,1:%d}" % last}, outputs
        for what, launch, more in launchers(4):
            if order and launch:
                continue
            log, seen = d + "/log", {}
            for flights, seconds in ((1, 0.1), (6, 1),
                                     (6, 10)):  # if runs take long, processes start several of them only in a longer benchmark
                if seen.get(flights, 0) < 2:
                    good("bench", parts, "--ort-ops", SLOW_OPS, "--seconds", seconds, "--in-flight", flights, *more, launch=launch,
                         OPERATOR_LOG=log)
                    seen[flights] = calls_at_once(log)
                    os.remove(log)
            assert seen[1] == 1 and seen[6] > 1, (what, order, seen)


def outputs_arrive(d):
    """Outputs of several stages must have the order of the model, whichever stage computes them."""
    nodes = [
        h.make_node("Relu", ["x"], ["a"], name="n0"),
        h.make_node("Neg", ["a"], ["b"], name="n1"),
        h.make_node("Shape", ["b"], ["c"], name="n2"),
        h.make_node("Concat", ["t", "t"], ["e"], name="n3", axis=0)
    ]
    outs = [
        h.make_tensor_value_info("c", T.INT64, [2]),
        h.make_tensor_value_info("b", T.FLOAT, [4, 8]),
        h.make_tensor_value_info("a", T.FLOAT, [4, 8]),
        h.make_tensor_value_info("e", T.STRING, [4])
    ]
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", T.FLOAT, [4, 8]), h.make_tensor_value_info("t", T.STRING, [2])], outs)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10), d + "/m.onnx")
    stages = [w for k in range(4) for w in ("--stage", "n%d=%d" % (k, min(k, 2)))]
    good("annotate", d + "/m.onnx", "--config", "c:3", *stages, "-o", d + "/s.onnx")
    good("partition", d + "/s.onnx", "-o", d + "/parts", "--force")
    x = np.random.default_rng(1).standard_normal((4, 8)).astype("f4")
    np.savez(d + "/in.npz", x=x, t=np.array(["one", "two"]))
    a = np.maximum(x, 0)
    want = {"c": np.array([4, 8]), "b": -a, "a": a, "e": np.array(["one", "two"] * 2)}
    for what, launch, more in launchers(3):
        good("run", d + "/parts", "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", *more, launch=launch)
        got = dict(np.load(d + "/out.npz"))
        assert list(got) == list(want) and all((got[k] == want[k]).all() for k in want), (what, got)
        os.remove(d + "/out.npz")


def a_model_under_a_launcher(d):
    """mpirun with a model: rank 0 plans and partitions, all ranks load. No temporary file may be left."""
    line(d + "/m.onnx", ["Relu", "Neg"])
    x = np.random.default_rng(2).standard_normal((4, 8)).astype("f4")
    np.savez(d + "/in.npz", h0=x)
    os.environ["TMPDIR"] = d
    for what, launch, more in launchers(2):
        good("run", d + "/m.onnx", "--devices", 2, "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", *more, launch=launch)
        assert (np.load(d + "/out.npz")["h2"] == -np.maximum(x, 0)).all(), what
        os.remove(d + "/out.npz")
        if launch:
            rc, _, err = tessera("run", d + "/m.onnx", "--devices", 3, "--inputs", d + "/in.npz", launch=launch)
            assert rc != 0 and "has 3 ranks, but 2 were started" in err, (rc, err)
        assert not glob.glob(d + "/tessera-*"), what
    del os.environ["TMPDIR"]


def few_rows(d):
    """Fewer rows than devices, so some shards are empty: a sharded sum, a transposed axis, a mean, and a maximum over rows."""
    w = np.random.default_rng(3).standard_normal((8, 6)).astype("f4")
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["a"], name="mm"),
        h.make_node("Relu", ["a"], ["b"], name="relu"),
        h.make_node("Transpose", ["b"], ["c"], name="turn", perm=[1, 0]),
        h.make_node("MatMul", ["c", "b"], ["y"], name="gram"),
        h.make_node("ReduceMax", ["b"], ["z"], name="most", axes=[0], keepdims=0),
        h.make_node("ReduceMean", ["b"], ["u"], name="mean", axes=[0], keepdims=1),
        h.make_node("Sub", ["b", "u"], ["v"], name="sub")
    ]
    info = lambda name, dims: h.make_tensor_value_info(name, T.FLOAT, dims)
    graph = h.make_graph(nodes, "g", [info("x", ["n", 8])],
                         [info("y", [6, 6]), info("z", [6]), info("v", ["n", 6])], [onnx.numpy_helper.from_array(w, "w")])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), d + "/m.onnx")
    good("annotate", d + "/m.onnx", "--config", "c:3", "--shard", "mm:x={3,1:0,1,2}", "--shard", "sub:b={3,1:0,1,2}", "-o", d + "/s.onnx")
    for n in (7, 3, 2, 1):
        np.savez(d + "/in.npz", x=np.random.default_rng(n).standard_normal((n, 8)).astype("f4"))
        rc, out, err = tessera("verify", d + "/s.onnx", "--inputs", d + "/in.npz", "--json")
        assert rc == 0 and json.loads(out)["ok"], (n, rc, out, err)


def several_tiles(d):
    """Adjacent tiles on one device must be processed as one, whatever their number; nothing may be replicated."""
    for text, cut in (("{4,1:0,0,1,1}", "{2,1:0,1}"), ("{1,6:0,0,0,1,1,1}", "{1,2:0,1}"), ("{2,4:0,0,1,1,0,0,1,1}", "{1,2:0,1}"),
                      ("{3,1:0,0,0}", "{1,1:0}")):
        line(d + "/m.onnx", ["Relu", "Neg"])
        good("annotate", d + "/m.onnx", "--config", "c:2", "--shard", "n0:h0=" + text, "-o", d + "/s.onnx")
        good("partition", d + "/s.onnx", "-o", d + "/parts", "--force", "--strict")
        out = json.loads(good("verify", d + "/s.onnx", "--json"))
        assert out["ok"] and not out["replicated"], (text, out)
        good("annotate", d + "/m.onnx", "--config", "c:2", "--shard", "n0:h0=" + cut, "-o", d + "/t.onnx")
        good("partition", d + "/t.onnx", "-o", d + "/same", "--force")
        shapes = lambda parts: [[(n.op_type, len(n.attribute)) for n in onnx.load("%s/rank%d.onnx" % (parts, r)).graph.node]
                                for r in (0, 1)]
        assert shapes(d + "/parts") == shapes(d + "/same"), text


REDUCTIONS = {
    "ReduceSum": (np.add, ["f4", "f8", "i4", "i8"]), "ReduceProd": (np.multiply, ["f4", "i4", "i8"]),
    "ReduceMax": (np.maximum, ["f4", "f8", "i1", "u1", "i4", "i8"]), "ReduceMin": (np.minimum, ["f4", "f8", "i1", "u1", "i4", "i8"])
}


def reductions(d, rng, n, rows):
    """Writes every reduction of every type that has a kernel, over a sharded axis; the results have random unequal shards.

    rows: their number, or None if only the run knows it. Returns (operator, type) of each reduction."""
    nodes, ins, outs, words, dims = [], [], [], ["--config", "c:%d" % n], ["n" if rows is None else rows, 7, 13]
    kind = lambda t: h.np_dtype_to_tensor_dtype(np.dtype(t))
    info = lambda name, t, size: h.make_tensor_value_info(name, kind(t), size)
    for op, (_, types) in REDUCTIONS.items():
        for t in types:
            k = "%s_%s" % (op, t)
            axes = {"inputs": ["x" + k, "axis"]} if op == "ReduceSum" else {"inputs": ["x" + k], "axes": [1]}
            nodes += [
                h.make_node(op, outputs=["y" + k], name=k, keepdims=0, **axes),
                h.make_node("Transpose", ["y" + k], ["z" + k], name="t" + k, perm=[1, 0])
            ]
            ins.append(info("x" + k, t, dims))
            outs.append(info("z" + k, t, [13, dims[0]]))
            units = [int(u) for u in rng.integers(1, 4, n)]
            owners = ",".join(str(r) for r in range(n) for _ in range(units[r]))
            axis = int(rng.integers(0, 4)) == 0  # axis of the result that is sharded; mostly rows
            cut = ["{%d,1:%s}", "{1,%d:%s}"][axis] % (sum(units), owners)
            turned = ["{1,%d:%s}", "{%d,1:%s}"][axis] % (sum(units), owners)
            words += [
                "--shard",
                "%s:x%s={1,%d,1}" % (k, k, n), "--shard",
                "%s:y%s=%s" % (k, k, cut), "--shard",
                "t%s:y%s=%s" % (k, k, cut), "--shard",
                "t%s:z%s=%s" % (k, k, turned)
            ]
    graph = h.make_graph(nodes, "g", ins, outs, [onnx.numpy_helper.from_array(np.array([1]), "axis")])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), d + "/m.onnx")
    good("annotate", d + "/m.onnx", *words, "-o", d + "/s.onnx")
    good("partition", d + "/s.onnx", "-o", d + "/parts", "--force")
    return [(op, t) for op, (_, types) in REDUCTIONS.items() for t in types]


def sums_in_unequal_parts(d):
    """A reduction to unequal shards must use ReduceScatter on every transport, with rows for all devices, for some and for none."""
    rng = np.random.default_rng(8)
    for k, (n, sizes) in enumerate(((2, (None, 9, 1)), (3, (None, 2, 0)), (4, (None, 11, 3)), (3, (17, 17)))):
        threads, *others = launchers(n)
        made = reductions(d, rng, n, sizes[0])
        ops = [node.op_type for node in onnx.load(d + "/parts/rank0.onnx").graph.node]
        assert ops.count("ReduceScatter") == len(made) and "AllReduce" not in ops, ops
        for rows in sizes[1:]:
            inputs = {"x%s_%s" % (op, t): rng.integers(0, 3, (rows, 7, 13)).astype(t) for op, t in made}
            want = {"z%s_%s" % (op, t): REDUCTIONS[op][0].reduce(inputs["x%s_%s" % (op, t)], 1).T.astype(t) for op, t in made}
            np.savez(d + "/in.npz", **inputs)
            for what, launch, more in [threads] + (harness.sample(others, 1, k) if rows == sizes[1] else []):
                good("run", d + "/parts", "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", *more, launch=launch)
                got = dict(np.load(d + "/out.npz"))
                os.remove(d + "/out.npz")
                assert all(got[k].shape == w.shape and (got[k] == w).all() for k, w in want.items()), (n, rows, what)
            got = evaluator.run(d + "/parts", inputs)
            assert all((got[k] == w).all() for k, w in want.items()), (n, rows, "evaluator")


def sums_in_unequal_groups(d):
    """Two groups each reduce half of the rows, with different shares: four of eight shards are the same rows as one of two shards."""
    w = onnx.numpy_helper.from_array(np.random.default_rng(9).standard_normal((6, 8)).astype("f4"), "w")
    info = lambda name, dims: h.make_tensor_value_info(name, T.FLOAT, dims)
    rows, columns = "{8,1:0,0,0,1,2,3,3,3}", "{2,4:0,0,0,1,2,2,2,3}"
    for size, cut, want in ((17, rows, [[3, 1], [1, 3]]), ("n", rows, [[3, 1], [1, 3]]), ("n", columns, [[3, 1], [3, 1]])):
        nodes = [h.make_node("MatMul", ["x", "w"], ["y"], name="fc"), h.make_node("Relu", ["y"], ["z"], name="act")]
        graph = h.make_graph(nodes, "g", [info("x", [size, 6])], [info("z", [size, 8])], [w])
        onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), d + "/m.onnx")
        edits = ["fc:x={2,2}", "fc:w={2,1:(0,2),(1,3)}", "fc:y=" + cut, "act:y=" + cut, "act:z=" + cut]
        good("annotate", d + "/m.onnx", "--config", "c:4", *[word for e in edits for word in ("--shard", e)], "-o", d + "/s.onnx")
        for n in (17,) if size == 17 else (17, 19, 3):
            assert json.loads(good("verify", d + "/s.onnx", "--shape", "x:%dx6" % n, "--json"))["ok"], (size, cut, n)
        good("partition", d + "/s.onnx", "-o", d + "/parts", "--force")
        found = [[
            list(a.ints) for node in onnx.load("%s/parts/rank%d.onnx" % (d, r)).graph.node for a in node.attribute if a.name == "shares"
        ] for r in (0, 2)]
        assert found == [[s] for s in want], (size, cut, found)


def unequal_shares(d):
    """A device with three of four tiles must process them as one: one node, three quarters of the weights, one reduction."""
    rng = np.random.default_rng(4)
    w = {"w": rng.standard_normal((6, 8)).astype("f4"), "v": rng.standard_normal((8, 5)).astype("f4")}
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["a"], name="up"),
        h.make_node("Relu", ["a"], ["b"], name="relu"),
        h.make_node("MatMul", ["b", "v"], ["y"], name="down")
    ]
    info = lambda name, dims: h.make_tensor_value_info(name, T.FLOAT, dims)
    graph = h.make_graph(nodes, "g", [info("x", ["n", 6])], [info("y", ["n", 5])],
                         [onnx.numpy_helper.from_array(v, k) for k, v in w.items()])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), d + "/m.onnx")
    good("annotate", d + "/m.onnx", "--config", "c:2", "--shard", "up:w={1,4:0,0,0,1}", "--shard", "down:v={4,1:0,0,0,1}", "-o",
         d + "/s.onnx")
    assert json.loads(good("check", d + "/s.onnx", "--json"))["warnings"] == 0
    good("partition", d + "/s.onnx", "-o", d + "/parts", "--strict")
    parts = [onnx.load("%s/rank%d.onnx" % (d + "/parts", r)) for r in (0, 1)]
    assert [[n.op_type for n in p.graph.node if n.domain == ""] for p in parts] == [["MatMul", "Relu", "MatMul"]] * 2
    assert [{t.name: list(t.dims) for t in p.graph.initializer}["w"] for p in parts] == [[6, 6], [6, 2]]
    # Also rows, whose number only the run knows: 1 row goes to the second device, of 9 rows the first device gets 6.
    good("annotate", d + "/m.onnx", "--config", "c:2", "--shard", "up:x={4,1:0,0,0,1}", "-o", d + "/r.onnx")
    for model, n in (("s", 3), ("r", 1), ("r", 2), ("r", 9)):
        np.savez(d + "/in.npz", x=rng.standard_normal((n, 6)).astype("f4"))
        out = json.loads(good("verify", "%s/%s.onnx" % (d, model), "--inputs", d + "/in.npz", "--json"))
        assert out["ok"] and not out["replicated"], (model, n, out)
    # A sum that is reduced to halves and read in unequal shards must be scattered and then resharded, so that no device stores all of it.
    good("annotate", d + "/m.onnx", "--config", "c:2", "--shard", "up:w={2,1:0,1}", "--shard", "up:a={1,2:0,1}", "--shard",
         "relu:a={1,4:0,0,0,1}", "-o", d + "/t.onnx")
    np.savez(d + "/in.npz", x=rng.standard_normal((5, 6)).astype("f4"))
    out = json.loads(good("verify", d + "/t.onnx", "--inputs", d + "/in.npz", "--json"))
    assert out["ok"], out
    good("partition", d + "/t.onnx", "-o", d + "/moved")
    ops = [n.op_type for n in onnx.load(d + "/moved/rank0.onnx").graph.node]
    assert "ReduceScatter" in ops and "AllReduce" not in ops, ops


CASES = [devices_of_stages, outputs_arrive, few_rows, several_tiles, unequal_shares, sums_in_unequal_parts, sums_in_unequal_groups,
         a_model_under_a_launcher, stages_overlap]

if __name__ == "__main__":
    harness.run(CASES)
    harness.finish()
