# SPDX-License-Identifier: Apache-2.0
"""Tests plans of models with If, Loop and Scan: nodes of bodies are sharded, their times and memory count, and plan, partition,
simulation and verification name the same nodes, communication and time. Every planned model runs and equals the unsharded one.

usage: planned_bodies.py TESSERA TRIALS [SEED] [all]     TRIALS: random models; all: five times as many"""
import json, os, random, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

import harness
import random_bodies

TESSERA = sys.argv[1]
WIDE = 256
node = helper.make_node


def info(name, shape, kind=T.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def body(nodes, ins, outs, name="body"):
    return helper.make_graph(nodes, name, ins, outs)


def weights(n, width=WIDE):
    rng = np.random.default_rng(1)
    return [("w%d" % i, (rng.standard_normal((width, width)) / width ** 0.5).astype("f4")) for i in range(n)]


def save(folder, name, nodes, ins, outs, init, ranked=True):
    """ranked: all values have a rank, which onnx's checker demands of outputs."""
    path = os.path.join(folder, name + ".onnx")
    graph = helper.make_graph(nodes, "g", ins, outs, [numpy_helper.from_array(np.asarray(a), n) for n, a in init])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    if ranked:
        onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def chain(n, first="x", tag="m"):
    return [
        node("MatMul", ["%s%d" % (tag, i - 1) if i else first, "w%d" % i], ["%s%d" % (tag, i)], name="%s_%d" % (tag, i)) for i in range(n)
    ]


def doc(*words):
    return json.loads(harness.good(TESSERA, *words, "--json"))


def agree(folder, model, devices, words=(), feeds=None, sized=True):
    """Plans the model. The partition and the simulation must name what the plan names, and the sharded model must be right. Returns the
    plan."""
    out = os.path.join(folder, "planned.onnx")
    plan = doc("plan", model, "--devices", devices, "-o", out, *words)
    config = ("--config", plan["configuration"])
    parts = doc("partition", out, "--dry-run", *config)
    assert (plan["nodes"], plan["cut_nodes"]) == (parts["nodes"], parts["cut_nodes"]), (plan, parts)
    verified = doc("verify", out, *config, *(("--inputs", feeds) if feeds else ()))
    assert verified["ok"] and verified["cut_nodes"] == plan["cut_nodes"], verified
    if sized:
        assert plan["collectives"] == parts["collectives"], (plan["collectives"], parts["collectives"])
        played = doc("simulate", out, *config)["seconds"] * 1e3
        assert abs(played / plan["milliseconds"] - 1) < 0.005, (played, plan["milliseconds"])
    return plan


X, Y, COND = info("x", [64, WIDE]), info("y", [64, WIDE]), info("c", [], T.BOOL)


def flat(folder, n):
    model = save(folder, "flat", chain(n), [X], [info("m%d" % (n - 1), [64, WIDE])], weights(n))
    return doc("plan", model, "--devices", 2, "-o", model + ".planned")["milliseconds"]


def branches(folder, name="if"):
    then = body(chain(4), [], [info("m3", [64, WIDE])], "then")
    other = body([node("Relu", ["x"], ["r"], name="relu")], [], [info("r", [64, WIDE])], "else")
    return save(folder, name, [node("If", ["c"], ["y"], name="choose", then_branch=then, else_branch=other)], [COND, X], [Y], weights(4))


def looped(trips, condition=True):
    """A Loop of one product; its state is [64, WIDE]."""
    nodes = [node("MatMul", ["s", "w0"], ["t"], name="inside"), node("Identity", ["k"], ["k2"], name="again")]
    inner = body(nodes,
                 [info("i", [], T.INT64), info("k", [], T.BOOL), info("s", [64, WIDE])],
                 [info("k2", [], T.BOOL), info("t", [64, WIDE])])
    return node("Loop", ["n", "", "x"], ["y"], name="loop", body=inner), [("n", np.array(trips))] + weights(1)


def if_costs_its_most_expensive_branch(folder):
    plan = agree(folder, branches(folder), 2)
    assert plan["nodes"] == plan["cut_nodes"] == 6, plan
    assert 0.9 < plan["milliseconds"] / flat(folder, 4) < 1.1, plan["milliseconds"]


def branches_slice_before_they_are_chosen(folder):
    """The branch that is not taken reads another input, which is sliced nevertheless."""
    shape = [64, WIDE]
    then = body(chain(4), [], [info("m3", shape)], "then")
    other = body([node("Relu", ["z"], ["r"], name="relu")], [], [info("r", shape)], "else")
    graph = [node("If", ["c"], ["y"], name="choose", then_branch=then, else_branch=other)]
    model = save(folder, "inputs", graph, [COND, X, info("z", shape)], [Y], weights(4))
    for devices in (2, 3, "hosts:2x2"):
        agree(folder, model, devices)


def if_on_hosts_and_other_numbers_of_devices(folder):
    for devices in (3, 4, "hosts:2x2"):
        assert agree(folder, branches(folder), devices)["cut_nodes"] >= 5


def number_of_devices_is_chosen_by_the_same_time(folder):
    rc, _, err = harness.call(TESSERA, "plan", branches(folder), "--devices", "auto:cpu:4", "-o", os.path.join(folder, "a.onnx"))
    assert rc == 0 and "using 4 of 4 devices is fastest" in err, err
    alone = doc("plan", branches(folder), "--devices", 1, "-o", os.path.join(folder, "b.onnx"))["milliseconds"]
    assert "1: %.3g ms" % alone in err, (alone, err)


def loop_costs_its_trips(folder):
    loop, init = looped(4)
    model = save(folder, "loop", [loop], [X], [Y], init)
    plan = agree(folder, model, 2)
    assert plan["nodes"] == 3 and plan["cut_nodes"] == 2, plan
    assert 0.9 < plan["milliseconds"] / flat(folder, 4) < 1.1, plan["milliseconds"]
    loop, init = looped(8)
    twice = doc("plan", save(folder, "longer", [loop], [X], [Y], init), "--devices", 2, "-o", os.path.join(folder, "q.onnx"))
    assert 1.8 < twice["milliseconds"] / plan["milliseconds"] < 2.2, (twice["milliseconds"], plan["milliseconds"])


def lists_ranks_and_optionals():
    """Yields name, nodes, inputs and outputs of models whose bodies pass on values that cannot be sharded: sequences, optional values, and
    tensors whose rank is unknown, or differs between a branch or an iteration and what it returns."""
    def seq(name, shape):
        return helper.make_tensor_sequence_value_info(name, T.FLOAT, shape)

    def maybe(name, shape):
        return helper.make_value_info(name, helper.make_optional_type_proto(helper.make_tensor_type_proto(T.FLOAT, shape)))

    def looped_body(nodes, states, ends):
        return body([node("Identity", ["k"], ["k2"])] + nodes, [info("i", [], T.INT64), info("k", [], T.BOOL)] + states,
                    [info("k2", [], T.BOOL)] + ends)

    def product(of, to):
        return node("MatMul", [of, "w0"], [to], name="product_" + to)

    def choose(out, then, other):
        return node("If", ["c"], [out], name="choose", then_branch=then, else_branch=other)
    out, rows = info("y", ["rows", WIDE]), info("y", [64, WIDE])
    start, join = node("SequenceEmpty", [], ["empty"], dtype=1), node("ConcatFromSequence", ["list"], ["y"], axis=0)
    for kind, shape in (("sized", [64, WIDE]), ("named", ["a", "b"]), ("unknown", None)):
        grow = looped_body([product("x", "t"), node("SequenceInsert", ["s", "t"], ["s2"])], [seq("s", shape)], [seq("s2", shape)])
        yield kind + "_list_grows", [start, node("Loop", ["three", "yes", "empty"], ["list"], body=grow), join], [X], [out]
        then = body([product("x", "t"), node("SequenceInsert", ["s", "t"], ["u"])], [], [seq("u", shape)], "then")
        other = body([node("SequenceInsert", ["s", "x"], ["v"])], [], [seq("v", shape)], "else")
        nested = looped_body([choose("s2", then, other)], [seq("s", shape)], [seq("s2", shape)])
        yield kind + "_list_grows_in_a_branch", [start, node("Loop", ["three", "yes", "empty"], ["list"], body=nested), join], [COND,
                                                                                                                                X], [out]
        then = body([product("x", "t"), node("SequenceConstruct", ["t", "x"], ["u"])], [], [seq("u", shape)], "then")
        other = body([node("SequenceConstruct", ["x", "x"], ["v"])], [], [seq("v", shape)], "else")
        yield kind + "_list_of_a_branch", [choose("list", then, other), join], [COND, X], [out]
        then = body([product("x", "t"), node("Optional", ["t"], ["u"])], [], [maybe("u", shape)], "then")
        other = body([node("Optional", ["x"], ["v"])], [], [maybe("v", shape)], "else")
        yield kind + "_optional_of_a_branch", [choose("o", then, other), node("OptionalGetElement", ["o"], ["y"])], [COND, X], [rows]
        carried = looped_body(
            [node("OptionalGetElement", ["s"], ["e"]),
             product("e", "t"), node("Optional", ["t"], ["s2"])], [maybe("s", shape)], [maybe("s2", shape)])
        yield kind + "_optional_state", [
            node("Optional", ["x"], ["o"]),
            node("Loop", ["three", "yes", "o"], ["p"], body=carried),
            node("OptionalGetElement", ["p"], ["y"])
        ], [X], [rows]
    mapped = body([product("e", "t")], [info("e", ["r", WIDE])], [info("t", ["r", WIDE])])
    yield "map", [node("SplitToSequence", ["x", "parts"], ["s"], axis=0),
                  node("SequenceMap", ["s"], ["list"], body=mapped), join], [X], [out]
    at = body([node("SequenceAt", ["list", "zero"], ["e"]), node("MatMul", ["r", "e"], ["t"], name="t"), node("Add", ["t", "s"], ["s2"])],
              [info("s", [WIDE]), info("r", [64])], [info("s2", [WIDE]), info("z", [WIDE])])
    at.node.append(node("Identity", ["s2"], ["z"]))
    yield "list_read_in_a_scan", [
        node("SequenceConstruct", ["x", "x"], ["list"]),
        node("Transpose", ["x"], ["xt"]),
        node("Scan", ["first", "xt"], ["last", "y"], body=at, num_scan_inputs=1)
    ], [X], [info("y", [WIDE, WIDE])]
    deeper = looped_body([node("Unsqueeze", ["s", "axis"], ["s2"]), product("x", "t")],
                         [helper.make_value_info("s", helper.make_tensor_type_proto(T.FLOAT, None))],
                         [helper.make_value_info("s2", helper.make_tensor_type_proto(T.FLOAT, None)),
                          info("t", [64, WIDE])])
    yield "rank_of_a_state_grows", [node("Loop", ["three", "yes", "x"], ["d", "y"],
                                         body=deeper)], [X], [info("y", [3, 64, WIDE]),
                                                              info("d", [1, 1, 1, 64, WIDE])]
    yield "ranks_of_branches_differ", [
        choose("b", body([product("x", "t")], [], [info("t", [64, WIDE])]),
               body([node("ReduceSum", ["x"], ["u"], keepdims=0)], [], [info("u", [])])),
        node("Add", ["b", "x"], ["y"])
    ], [COND, X], [rows]


def lists_ranks_and_optionals_at_borders(folder):
    init = weights(1) + [("three", np.array(3)), ("yes", np.array(True)), ("parts", np.array([24, 40])), ("zero", np.array(0)),
                         ("first", np.zeros(WIDE, "f4")), ("axis", np.array([0]))]
    feeds = {"x": np.random.default_rng(5).standard_normal((64, WIDE)).astype("f4"), "c": np.array(True)}
    for name, nodes, ins, outs in lists_ranks_and_optionals():
        model, given = save(folder, name, nodes, ins, outs, init), os.path.join(folder, name + ".npz")
        np.savez(given, **{i.name: feeds[i.name] for i in ins})
        for devices in (2, 3):
            try:
                plan = agree(folder, model, devices, feeds=given, sized=False)
            except AssertionError as e:
                raise AssertionError("%s on %d devices: %s" % (name, devices, e))
            assert (plan["cut_nodes"] > 0) == (name != "map"), (name, devices, plan)  # a SequenceMap runs replicated


def loop_without_a_limit_has_16_trips(folder):
    times = []
    for trips in (np.iinfo(np.int64).max, 16):
        loop, init = looped(trips)
        times.append(
            doc("plan", save(folder, "loop", [loop], [X], [Y], init), "--devices", 2, "-o", os.path.join(folder, "q.onnx"))["milliseconds"])
    assert times[0] == times[1], times


def loop_with_a_computed_end(folder):
    """The trip count is an input, and the condition is a float that only one device may decide."""
    nodes = [
        node("MatMul", ["s", "w0"], ["t0"], name="inside"),
        node("Tanh", ["t0"], ["t"], name="curve"),
        node("ReduceSum", ["t"], ["q"], keepdims=0, name="sum"),
        node("Less", ["q", "limit"], ["k2"], name="less"),
        node("Relu", ["t"], ["each"], name="positive")
    ]
    inner = body(nodes, [info("i", [], T.INT64), info("k", [], T.BOOL), info("s", [64, WIDE])],
                 [info("k2", [], T.BOOL), info("t", [64, WIDE]), info("each", [64, WIDE])])
    model = save(folder, "loop", [node("Loop", ["n", "c", "x"], ["y", "all"], name="loop", body=inner)], [info("n", [], T.INT64), COND, X],
                 [Y, info("all", ["trips", 64, WIDE])], weights(1) + [("limit", np.float32(1e9))])
    feeds = os.path.join(folder, "in.npz")
    np.savez(feeds, n=np.array(3), c=np.array(True), x=np.ones((64, WIDE), "f4"))
    plan = agree(folder, model, 2, feeds=feeds, sized=False)  # the number of trips, and so a size, is known only at run time
    assert plan["cut_nodes"] >= 4 and plan["collectives"].get("Broadcast") == 1, plan


def scan_with_axes(folder):
    nodes = [
        node("MatMul", ["s", "w0"], ["a"], name="a"),
        node("MatMul", ["e", "w1"], ["b"], name="b"),
        node("Add", ["a", "b"], ["ab"], name="ab"),
        node("Tanh", ["ab"], ["s2"], name="next"),
        node("MatMul", ["s2", "w2"], ["o"], name="out")
    ]
    inner = body(nodes, [info("s", [32, WIDE]), info("e", [32, WIDE])], [info("s2", [32, WIDE]), info("o", [32, WIDE])])
    scan = node("Scan", ["h", "v"], ["last", "ys"], name="scan", body=inner, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1])
    model = save(folder, "scan", [scan], [info("h", [32, WIDE]), info("v", [32, 20, WIDE])],
                 [info("last", [32, WIDE]), info("ys", [32, 20, WIDE])], weights(3))
    plan = agree(folder, model, 2)
    once = 2 * 32 * WIDE * WIDE * 3 / 50e9 * 1e3  # three products at 50 GFLOP/s
    assert plan["cut_nodes"] == 6 and 20 * once / 2 < plan["milliseconds"] < 20 * once, (plan["milliseconds"], once)


def nested(folder):
    """A Loop in one branch; the other branch uses other weights."""
    loop, init = looped(6)
    loop.output[0] = "looped"
    then = body([loop, node("MatMul", ["looped", "w1"], ["ty"], name="after")], [], [info("ty", [64, WIDE])], "then")
    other = body([
        node("MatMul", ["x", "w2"], ["e0"], name="e0"),
        node("Relu", ["e0"], ["e1"], name="e1"),
        node("MatMul", ["e1", "w3"], ["ey"], name="e2")
    ], [], [info("ey", [64, WIDE])], "else")
    return save(folder, "nested", [node("If", ["c"], ["y"], name="choose", then_branch=then, else_branch=other)], [COND, X], [Y],
                init[:1] + weights(4))


def loop_in_a_branch(folder):
    plan = agree(folder, nested(folder), 2)
    assert plan["nodes"] == 8 and plan["cut_nodes"] == 7, plan
    assert 0.9 < plan["milliseconds"] / flat(folder, 7) < 1.1, plan["milliseconds"]


def weights_of_bodies_are_sharded_to_fit(folder):
    """Four weights of 256 KiB; both branches read all of them, and each counts once."""
    then, other = (body(chain(4, tag=t), [], [info(t + "3", [64, WIDE])], t) for t in "ab")
    model = save(folder, "both", [node("If", ["c"], ["y"], name="choose", then_branch=then, else_branch=other)], [COND, X], [Y], weights(4))
    plan = agree(folder, model, 2, ("--memory", "1050KB"))
    assert max(plan["memory"]) <= 1050000, plan["memory"]
    assert max(plan["memory"]) >= 2 * WIDE * WIDE * 4, plan["memory"]


def memory_of_values_in_bodies_counts(folder):
    wide = [node("MatMul", ["x", "up"], ["u"], name="up"), node("MatMul", ["u", "down"], ["d"], name="down")]
    other = body([node("Relu", ["x"], ["r"], name="relu")], [], [info("r", [64, WIDE])], "else")
    big = 64 * 8192 * 4
    init = [("up", np.zeros((WIDE, 8192), "f4")), ("down", np.zeros((8192, WIDE), "f4"))]
    model = save(folder, "wide",
                 [node("If", ["c"], ["y"], name="choose", then_branch=body(wide, [], [info("d", [64, WIDE])], "then"), else_branch=other)],
                 [COND, X], [Y], init)
    plan = doc("plan", model, "--devices", 1, "-o", os.path.join(folder, "q.onnx"))
    assert plan["memory"][0] >= 2 * WIDE * 8192 * 4 + big, plan["memory"]


def stages_do_not_divide_bodies(folder):
    loop, init = looped(4)
    loop.input[2], loop.output[0] = "m1", "looped"
    tail = [node("MatMul", ["looped", "w2"], ["z"], name="tail"), node("Relu", ["z"], ["y"], name="end")]
    model = save(folder, "staged", chain(2) + [loop] + tail, [X], [Y], init[:1] + weights(3))
    for words in (("--stages", 2), ("--stages", 3), ("--stages", 2, "--objective", "throughput"), ("--stages", 2, "--memory", "900KB")):
        plan = agree(folder, model, 4, words, sized=False)
        assert sum(s["nodes"] for s in plan["stages"]) == plan["nodes"] == 7, plan["stages"]
        assert all(0 <= s["first"] <= s["last"] <= 4 for s in plan["stages"]), plan["stages"]


def explained(folder):
    """A node of a body, a border by the name of its value, and the node with the bodies."""
    for name, at_least in (("after", 4), ("inside", 4), ("y", 2), ("choose", 1)):
        plan = doc("plan", nested(folder), "--devices", 4, "--explain", name, "-o", os.path.join(folder, "q.onnx"))
        assert len(plan["choices"]) >= at_least and sum(c["chosen"] for c in plan["choices"]) == 1, (name, plan["choices"])


def caches_that_only_branches_read(folder):
    """A state keeps its sharding through an If, as in decoders that Optimum merges."""
    def branch(tag, op):
        nodes = [
            node("MatMul", ["x", "wk"], [tag + "n"], name=tag + "n"),
            node("Reshape", [tag + "n", "heads"], [tag + "h"], name=tag + "h"),
            node("Transpose", [tag + "h"], [tag + "t"], perm=[0, 2, 1, 3], name=tag + "t"),
            node("Concat", ["past", tag + "t"], [tag + "p"], axis=2, name=tag + "p"),
            node(op, [tag + "p"], [tag + "o"], name=tag + "o"),
            node("ReduceSum", [tag + "o", "axes"], [tag + "s"], keepdims=0, name=tag + "s")
        ]
        return body(nodes, [], [info(tag + "s", [2, 8, 64]), info(tag + "p", [2, 8, 33, 64])], tag)
    graph = [node("If", ["c"], ["y", "present"], name="choose", then_branch=branch("a", "Tanh"), else_branch=branch("b", "Relu"))]
    model = save(folder, "cache", graph, [COND, info("x", [2, 1, WIDE]), info("past", [2, 8, 32, 64])],
                 [info("y", [2, 8, 64]), info("present", [2, 8, 33, 64])], [("wk", np.ones((WIDE, 512), "f4") / WIDE),
                                                                            ("heads", np.array([2, 1, 8, 64])), ("axes", np.array([2]))])
    out = os.path.join(folder, "planned.onnx")
    plan = doc("plan", model, "--devices", 2, "--state", "past=present", "-o", out)
    parts = doc("partition", out, "--dry-run")
    assert plan["cut_nodes"] and parts["collectives"] == plan["collectives"], (plan["collectives"], parts["collectives"])
    assert sum(parts["collectives"].values()) <= 2, parts["collectives"]


def advice_of_more_devices(folder):
    """It is given only where more devices need less memory each."""
    magic = onnx.helper.make_model(
        helper.make_graph([node("Magic", ["x", "w0"], ["y"], domain="my")], "g", [X], [Y],
                          [numpy_helper.from_array(a, n) for n, a in weights(1)]), ir_version=10,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("my", 1)])
    path = os.path.join(folder, "magic.onnx")
    onnx.save(magic, path)
    for model, words, helps in ((path, ("cpu:2", "200KB"), False), (path, ("2", "200KB"), False),
                                (branches(folder), ("cpu:2", "400KB"), True), (branches(folder), ("cpu:1", "400KB"), True)):
        rc, _, err = harness.call(TESSERA, "plan", model, "--devices", words[0], "--memory", words[1], "-o", os.path.join(folder, "q.onnx"))
        assert rc == 4 and ("more devices" in err) == helps, (model, words, err)


def branches_of_two_ranks(folder):
    """One branch sums the rows and columns that the other returns: the rank of the result is known to neither the model nor the planner."""
    then = body(chain(1) + [node("ReduceSum", ["m0"], ["t"], name="sum", keepdims=0)], [], [info("t", None)], "then")
    other = body(chain(1, tag="n"), [], [info("n0", None)], "else")
    model = save(folder, "ranks", [node("If", ["c"], ["y"], name="i", then_branch=then, else_branch=other)], [X, COND], [info("y", None)],
                 weights(1), ranked=False)
    for devices in (2, 3):
        assert agree(folder, model, devices, sized=False)["nodes"] == 4


def states_whose_rank_depends_on_sizes(folder):
    """Squeeze without axes: only the sizes of a run give the rank of the state."""
    inner = body([
        node("Squeeze", ["x"], ["q"], name="q"),
        node("MatMul", ["s", "w0"], ["m"], name="m"),
        node("Add", ["q", "m"], ["z"], name="z"),
        node("Identity", ["go"], ["on"], name="on")
    ], [info("k", [], T.INT64), info("go", [], T.BOOL), info("s", None)], [info("on", [], T.BOOL), info("z", None)])
    nodes = [node("Squeeze", ["x"], ["first"], name="f"), node("Loop", ["n", "", "first"], ["y"], name="l", body=inner)]
    model = save(folder, "squeezed", nodes, [info("x", ["a", "b", WIDE])], [info("y", None)],
                 weights(1) + [("n", np.array(3))], ranked=False)
    plan = doc("plan", model, "--devices", 2, "--dim", "a=1", "--dim", "b=64", "-o", os.path.join(folder, "planned.onnx"))
    assert doc("verify", os.path.join(folder, "planned.onnx"), "--dim", "a=1", "--dim", "b=64",
               "--allow-unsharded")["ok"] and plan["nodes"] == 6, plan


def slow_devices(path, n, rng):
    """Writes a topology of slow devices with quick links, on which even tiny models are worth sharding."""
    devices = [{"name": "CPU", "memory": 1 << 30, "flops": rng.choice([1e6, 1e7]), "bandwidth": 1e8}] * n
    links = [{"from": i, "to": k, "latency": 1e-7, "bandwidth": 1e10} for i in range(n) for k in range(n) if i != k]
    with open(path, "w") as f:
        json.dump({"devices": devices, "links": links}, f)
    return path


def random_model(folder, seed, seen):
    rng = random.Random(seed)
    maker = random_bodies.Maker(rng)
    model, feeds = os.path.join(folder, "model.onnx"), os.path.join(folder, "in.npz")
    onnx.save(maker.model(), model)
    np.savez(feeds, x=maker.np.standard_normal((maker.rows, maker.columns)).astype("f4"), flag=np.array(rng.random() < 0.5))
    devices = slow_devices(os.path.join(folder, "slow.json"), rng.choice([2, 2, 3, 4]), rng)
    words = ["--dim", "rows=%d" % maker.rows] if maker.open and rng.random() < 0.7 else []
    graph = onnx.load(model).graph
    words += ["--stages", 2] if rng.random() < 0.2 and len(graph.node) > 2 else []
    plan = agree(folder, model, devices, words, feeds, sized=False)
    seen.append(plan["cut_nodes"] > len(graph.node))


def main():
    trials, first = int(sys.argv[2]) * (5 if harness.ALL else 1), int(sys.argv[3]) if len(sys.argv) > 3 else 1
    seen = []
    harness.run([
        if_costs_its_most_expensive_branch, if_on_hosts_and_other_numbers_of_devices, branches_slice_before_they_are_chosen,
        number_of_devices_is_chosen_by_the_same_time,
        loop_costs_its_trips, lists_ranks_and_optionals_at_borders, loop_without_a_limit_has_16_trips, loop_with_a_computed_end,
        scan_with_axes, loop_in_a_branch, weights_of_bodies_are_sharded_to_fit, memory_of_values_in_bodies_counts,
        stages_do_not_divide_bodies, branches_of_two_ranks, states_whose_rank_depends_on_sizes, explained, caches_that_only_branches_read,
        advice_of_more_devices
    ])
    harness.run([("seed %d" % seed, random_model, seed, seen) for seed in range(first, first + trials)])
    if not harness.PATTERN:
        harness.check("random plans shard nodes of bodies", sum(seen) >= trials // 2, seen)
    harness.finish()


if __name__ == "__main__":
    main()
