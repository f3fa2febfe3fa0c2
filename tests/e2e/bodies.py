# SPDX-License-Identifier: Apache-2.0
"""Tests If, Loop and Scan with sharded values in their bodies: one small model each, on 2 to 4 devices.

Results are compared with onnx's reference evaluator (evaluator.py) and with the unsharded model in ONNX Runtime (tessera verify).
Cases have the form that special.py describes.

usage: bodies.py TESSERA"""
import numpy as np
from onnx import TensorProto as T, helper

import special
from special import f4, info, model, node, tensor

special.CASES.clear()
case = special.case
I64 = lambda *v: np.array(v, "i8")


def body(nodes, ins, outs, init=(), name="body"):
    return helper.make_graph(nodes, name, ins, outs, list(init))


@case
def if_cut_inside():
    """One branch shards the contracted dimension of its MatMul, the other the columns. The output must be the full tensor."""
    then = body([node("MatMul", ["x", "A"], ["t"], name="a")], [], [info("t", T.FLOAT, None)])
    other = body([node("MatMul", ["x", "B"], ["e0"], name="b"), node("Neg", ["e0"], ["e"], name="n")], [], [info("e", T.FLOAT, None)])
    m = model([node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)],
              [info("x", T.FLOAT, [3, 8]), info("c", T.BOOL, [])], [info("y", T.FLOAT, [3, 6])],
              [tensor(f4(8, 6), "A"), tensor(f4(8, 6), "B")])
    return m, 2, {"if > then_branch > a:A": "{2,1:0,1}", "if > else_branch > b:B": "{1,2:0,1}"}, \
        {"x": f4(3, 8), "c": np.array(False)}, None


# The same model, but the other branch runs.
@case
def if_other_way():
    m, n, s, i, c = special.CASES["if_cut_inside"]()
    return m, n, s, {**i, "c": np.array(True)}, c


@case
def if_declared_as_one_branch():
    """The output is declared with the sizes of the first branch, as onnx infers them. The second branch runs and has other sizes."""
    m = model([
        node("If", ["c"], ["y"], name="if", then_branch=body([node("Identity", ["x"], ["t"], name="t")], [],
                                                             [info("t", T.FLOAT, ["a", "b"])]), else_branch=body(
                                                                 [node("Neg", ["w"], ["e"], name="e")], [], [info("e", T.FLOAT, None)]))
    ], [info("c", T.BOOL, []), info("x", T.FLOAT, ["a", "b"]),
        info("w", T.FLOAT, [9, 1])], [info("y", T.FLOAT, ["a", "b"])])
    return m, 2, {"if > then_branch > t:t": "{2,1:0,1}"}, {"c": np.array(False), "x": f4(7, 1), "w": f4(9, 1)}, None, {"reader": False}


@case
def if_decided_by_floats():
    """The condition is computed from a sharded sum. Rounding could differ between devices, so one device must decide for all."""
    then = body([node("MatMul", ["h", "A"], ["t"], name="a")], [], [info("t", T.FLOAT, None)])
    other = body([node("Neg", ["h"], ["e"], name="n")], [], [info("e", T.FLOAT, None)])
    m = model([node("MatMul", ["x", "W"], ["h"]), node("ReduceSum", ["h"], ["s"], keepdims=0), node("Greater", ["s", "z"], ["c"]),
               node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)],
              [info("x", T.FLOAT, [3, 8])], [info("y", T.FLOAT, [3, 8])],
              [tensor(f4(8, 8), "W"), tensor(f4(8, 8), "A"), tensor(np.float32(0), "z")])
    return m, 3, {"h_matmul:W": "{3,1:0,1,2}", "if > then_branch > a:A": "{3,1:0,1,2}"}, {"x": f4(3, 8)}, None


@case
def if_alone_in_a_group():
    """In one branch two devices exchange data that the other two already have: thirds of 4 columns (1, 1, 2) become halves."""
    then = body([node("Neg", ["x"], ["t"], name="a")], [], [info("t", T.FLOAT, None)])
    other = body([node("Tanh", ["x"], ["e"], name="b")], [], [info("e", T.FLOAT, None)])
    m = model([node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)],
              [info("x", T.FLOAT, [3, 4]), info("c", T.BOOL, [])], [info("y", T.FLOAT, [3, 4])])
    return (
        m,
        4,
        {
            "if > then_branch > a:x": "{1,3:0,1,(2,3)}",
            "if > then_branch > a:t": "{1,1:(0,1,2,3)}",
            "if > else_branch > b:e": "{1,2:(0,1),(2,3)}",
        },
        {"x": f4(3, 4), "c": np.array(True)},
        None,
    )


def loop(nodes, state, turns, results=(), init=(), cond=None):
    """Returns a Loop named `loop` with one carried value v -> w and scan outputs r0 ..., and its constants."""
    ins = [info("i", T.INT64, []), info("go", T.BOOL, []), info("v", T.FLOAT, None)]
    outs = [info(cond or "on", T.BOOL, []), info("w", T.FLOAT, None)] + [info(r, T.FLOAT, None) for r in results]
    nodes = ([] if cond else [node("Identity", ["go"], ["on"], name="on")]) + nodes
    return node("Loop", ["m", "t", state], ["y"] + ["y_" + r for r in results], name="loop", body=body(nodes, ins, outs)), \
        [tensor(np.int64(turns), "m"), tensor(np.array(True), "t")] + list(init)


@case
def sizes_in_a_loop():
    """The body reads the shape of a carried value that is sharded along a dimension with a name. The value must be gathered for that."""
    n, init = loop([
        node("Shape", ["v"], ["s"], name="shape"),
        node("ConstantOfShape", ["s"], ["r0"], name="zeros"),
        node("Tanh", ["v"], ["w"], name="tanh")
    ], "h", 2, ["r0"])
    m = model([node("Relu", ["x"], ["h"], name="relu"), n], [info("x", T.FLOAT, ["n", 6])],
              [info("y", T.FLOAT, ["n", 6]), info("y_r0", T.FLOAT, [None, None, None])], init)
    return m, 3, {"relu:x": "{3,1:0,1,2}"}, {"x": f4(5, 6)}, None


@case
def loop_carries_cut():
    """The carried value stays sharded by columns in all iterations, so the body must not communicate."""
    l, init = loop([node("Add", ["v", "b"], ["w"], name="add")], "x", 4)
    m = model([l], [info("x", T.FLOAT, [3, 7])], [info("y", T.FLOAT, [3, 7])], init + [tensor(f4(7), "b")])
    return m, 2, {"loop:x": "{1,2:0,1}"}, {"x": f4(3, 7)}, ["Reshard"]


@case
def loop_sums():
    """The contracted dimension of a MatMul is sharded: one reduction per iteration."""
    l, init = loop([node("MatMul", ["v", "A"], ["h"], name="a"), node("Tanh", ["h"], ["w"], name="tanh")], "x", 3)
    m = model([l], [info("x", T.FLOAT, [3, 8])], [info("y", T.FLOAT, [3, 8])], init + [tensor(f4(8, 8), "A")])
    return m, 2, {"loop > body > a:A": "{2,1:0,1}"}, {"x": f4(3, 8)}, ["AllReduce"]


@case
def loop_gathers():
    """Tensor parallelism in a loop on three devices with unequal shards, a scan output, and an iteration count that is an input."""
    l, init = loop([node("MatMul", ["v", "A"], ["h"], name="a"), node("Relu", ["h"], ["g"], name="relu"),
                    node("MatMul", ["g", "B"], ["w"], name="b"), node("Neg", ["g"], ["r"], name="neg")], "x", 3, ["r"])
    m = model([l], [info("x", T.FLOAT, [3, 8]), info("m", T.INT64, [])], [info("y", T.FLOAT, [3, 8]), info("y_r", T.FLOAT, [None, 3, 10])],
              init[1:] + [tensor(f4(8, 10), "A"), tensor(f4(10, 8) / 4, "B")])
    return m, 3, {"loop > body > a:A": "{1,3:0,1,2}", "loop > body > b:B": "{3,1:0,1,2}"}, {"x": f4(3, 8),
                                                                                            "m": np.int64(4)}, None, {"reader": False}


@case
def loop_until():
    """The loop ends when the norm is small. Rounding could differ between devices, so one device must decide for all."""
    l, init = loop([node("MatMul", ["v", "A"], ["w"], name="a"), node("ReduceL2", ["w"], ["l"], name="norm", keepdims=0),
                    node("Greater", ["l", "eps"], ["on"], name="greater")], "x", 50, cond="on")
    m = model([l], [info("x", T.FLOAT, [3, 8])], [info("y", T.FLOAT, [3, 8])],
              init + [tensor(f4(8, 8) / 4, "A"), tensor(np.float32(0.5), "eps")])
    return m, 2, {"loop > body > a:A": "{1,2:0,1}"}, {"x": f4(3, 8)}, None


@case
def loop_grows():
    """The carried value grows by a row per iteration; its columns are sharded."""
    l, init = loop([node("Concat", ["v", "row"], ["w"], name="cat", axis=0)], "x", 3)
    m = model([l], [info("x", T.FLOAT, ["n", 7])], [info("y", T.FLOAT, [None, 7])], init + [tensor(f4(1, 7), "row")])
    return m, 2, {"loop:x": "{1,2:0,1}"}, {"x": f4(2, 7)}, None


@case
def loop_never():
    """No iteration: the result is the initial value, and no rank may wait for another."""
    l, init = loop([node("MatMul", ["v", "A"], ["w"], name="a")], "x", 0)
    m = model([l], [info("x", T.FLOAT, [3, 8])], [info("y", T.FLOAT, [3, 8])], init + [tensor(f4(8, 8), "A")])
    return m, 2, {"loop > body > a:A": "{2,1:0,1}"}, {"x": f4(3, 8)}, None


@case
def loop_of_turns_alone():
    """Loop(3, "") carries nothing and shards nothing inside. Its second input is absent but still counts as an input."""
    inner = body([node("Identity", ["on"], ["on_out"]), node("Tanh", ["x"], ["t"])],
                 [info("i", T.INT64, []), info("on", T.BOOL, [])], [info("on_out", T.BOOL, []), info("t", T.FLOAT, None)])
    m = model([node("Relu", ["x"], ["h"], name="relu"), node("Loop", ["turns", ""], ["y"], name="loop", body=inner)],
              [info("x", T.FLOAT, [3, 8])], [info("y", T.FLOAT, [3, 3, 8]), info("h", T.FLOAT, [3, 8])], [tensor(I64(3)[0], "turns")])
    return m, 2, {"relu:x": "{1,2:0,1}"}, {"x": f4(3, 8)}, None, {"reader": False}


@case
def loop_reads_outside():
    """The body reads a sharded value of the main graph, once sharded and once in full."""
    l, init = loop([node("Add", ["v", "h"], ["s"], name="add"), node("MatMul", ["s", "B"], ["w"], name="b")], "x", 3)
    m = model([node("MatMul", ["x", "W"], ["h"]), l], [info("x", T.FLOAT, [3, 8])], [info("y", T.FLOAT, [3, 8])],
              init + [tensor(f4(8, 8), "W"), tensor(f4(8, 8) / 4, "B")])
    return m, 2, {"h_matmul:W": "{1,2:0,1}", "loop > body > b:B": "{2,1:0,1}"}, {"x": f4(3, 8)}, None


@case
def loop_of_a_declared_rank():
    """The output declares the rank of the Loop's result. The carried value has an unknown rank and is on one device."""
    g = body([node("Sub", ["e", "e"], ["d"], name="sub"), node("Identity", ["c"], ["on"])],
             [info("i", T.INT64, []), info("c", T.BOOL, []), info("v", T.FLOAT, None)],
             [info("on", T.BOOL, []), info("d", T.FLOAT, None)])
    m = model([node("GatherND", ["x", "k"], ["e"], name="e"),
               node("Loop", ["two", "", "e"], ["y"], name="loop", body=g)],
              [info("x", T.FLOAT, [2, None, "n", 7]), info("k", T.INT64, ["s", "m"])], [info("y", T.FLOAT, [None, None, None])],
              [tensor(np.int64(2), "two")])
    return m, 3, {"loop > body > sub:d": "{2,1:2,1}"}, {"x": f4(2, 3, 4, 7), "k": np.array([[0, 1], [1, 2]])}, None, {"reader": False}


@case
def loop_constants_inside():
    """Two bodies have a constant of the same name; both constants are sharded."""
    def one(name):
        ins = [info("i" + name, T.INT64, []), info("go" + name, T.BOOL, []), info("v" + name, T.FLOAT, None)]
        outs = [info("on" + name, T.BOOL, []), info("w" + name, T.FLOAT, None)]
        return helper.make_graph(
            [node("Identity", ["go" + name], ["on" + name]),
             node("MatMul", ["v" + name, "K"], ["w" + name], name="k")], "body" + name, ins, outs, [tensor(f4(8, 8) / 3, "K")])

    m = model(
        [node("Loop", ["m", "t", "x"], ["h"], name="one", body=one("1")),
         node("Loop", ["m", "t", "h"], ["y"], name="two", body=one("2"))], [info("x", T.FLOAT, [3, 8])], [info("y", T.FLOAT, [3, 8])],
        [tensor(np.int64(2), "m"), tensor(np.array(True), "t")])
    return m, 2, {"one > body > k:K": "{2,1:0,1}", "two > body > k:K": "{1,2:0,1}"}, {"x": f4(3, 8)}, None


# A Loop inside an If inside a Loop, with sharded weights in both branches.
@case
def loop_in_if_in_loop():
    inner = body([node("Identity", ["go2"], ["on2"], name="on2"), node("MatMul", ["v2", "A"], ["w2"], name="a")],
                 [info("i2", T.INT64, []), info("go2", T.BOOL, []), info("v2", T.FLOAT, None)],
                 [info("on2", T.BOOL, []), info("w2", T.FLOAT, None)])
    then = body([node("Loop", ["m", "t", "v"], ["z"], name="inner", body=inner)], [], [info("z", T.FLOAT, None)])
    other = body([node("MatMul", ["v", "B"], ["q"], name="b")], [], [info("q", T.FLOAT, None)])
    l, init = loop([node("Mod", ["i", "two"], ["r"]), node("Cast", ["r"], ["odd"], to=T.BOOL),
                    node("If", ["odd"], ["w"], name="if", then_branch=then, else_branch=other)], "x", 3)
    m = model([l], [info("x", T.FLOAT, [3, 8])], [info("y", T.FLOAT, [3, 8])],
              init + [tensor(np.int64(2), "two"), tensor(f4(8, 8) / 3, "A"), tensor(f4(8, 8) / 3, "B")])
    return m, 3, {"loop > body > if > then_branch > inner > body > a:A": "{3,1:0,1,2}",
                  "loop > body > if > else_branch > b:B": "{1,3:0,1,2}"}, {"x": f4(3, 8)}, None


def scan(nodes, **more):
    g = body(nodes, [info("s", T.FLOAT, None), info("e", T.FLOAT, None)], [info("s2", T.FLOAT, None), info("o", T.FLOAT, None)])
    return node("Scan", ["s0", "x"], ["last", "y"], name="scan", body=g, num_scan_inputs=1, **more)


@case
def scan_recurrent():
    """A small recurrent network: the hidden size is sharded, and the state is gathered in each iteration."""
    sc = scan([
        node("MatMul", ["s", "U"], ["u"], name="u"),
        node("MatMul", ["e", "W"], ["w"], name="w"),
        node("Add", ["u", "w"], ["p"], name="p"),
        node("Tanh", ["p"], ["s2"], name="tanh"),
        node("Identity", ["s2"], ["o"], name="o")
    ])
    m = model([sc], [info("s0", T.FLOAT, [2, 9]), info("x", T.FLOAT, [5, 2, 4])],
              [info("last", T.FLOAT, [2, 9]), info("y", T.FLOAT, [5, 2, 9])],
              [tensor(f4(9, 9) / 3, "U"), tensor(f4(4, 9), "W")])
    return m, 2, {"scan > body > u:U": "{1,2:0,1}", "scan > body > w:W": "{1,2:0,1}"}, {"s0": f4(2, 9), "x": f4(5, 2, 4)}, None


def of_any_rank(declared, shards, body_dims=None):
    """Returns a Scan whose state has a shape that only the run knows. The engine does not know its rank unless it is declared."""
    inner = body(
        [node("Add", ["h", "t"], ["g"], name="add"), node("Neg", ["g"], ["r"], name="neg")],
        [info("h", T.FLOAT, body_dims), info("t", T.FLOAT, body_dims)],
        [info("g", T.FLOAT, body_dims), info("r", T.FLOAT, body_dims)])
    m = model([
        node("Expand", ["x", "s"], ["e"], name="e"),
        node("Scan", ["e", "z"], ["f", "k"], name="scan", body=inner, num_scan_inputs=1),
        node("Relu", ["f"], ["y"], name="y")
    ], [info("x", T.FLOAT, [1, 4]), info("s", T.INT64, ["n"]),
        info("z", T.FLOAT, [2, 3, 4])], [info("y", T.FLOAT, [None, None])] + ([info("e", T.FLOAT, [None, None])] if declared else []))
    return m, 2, shards, {"x": f4(1, 4), "s": I64(3, 1), "z": f4(2, 3, 4)}, None, {"reader": False}


@case
def scan_of_a_declared_rank():
    """The model declares the state as an output, which one device returns. The other device must know the rank too."""
    return of_any_rank(True, {"y:f": "{1,1:1}"})


@case
def scan_body_knows_the_rank():
    """Only the body declares the rank: the state is sharded inside and full outside."""
    return of_any_rank(False, {"scan > body > add:g": "{1,2:1,0}"}, [3, 4])


@case
def scan_batch():
    """The batch stays sharded. The Scan runs backwards along another axis. Only inputs and outputs may be communicated."""
    sc = scan([node("Add", ["s", "e"], ["s2"], name="add"), node("Neg", ["s2"], ["o"], name="neg")],
              scan_input_axes=[1], scan_output_axes=[-2], scan_input_directions=[1])
    m = model([sc], [info("s0", T.FLOAT, [5, 3]), info("x", T.FLOAT, [5, 4, 3])],
              [info("last", T.FLOAT, [5, 3]), info("y", T.FLOAT, [5, 4, 3])])
    return m, 3, {"scan:s0": "{3,1:0,1,2}", "scan:x": "{3,1,1:0,1,2}"}, {"s0": f4(5, 3), "x": f4(5, 4, 3)}, ["Reshard",
                                                                                                             "Reshard"], {"reader": False}


@case
def loop_returns_what_looks_like_a_cache():
    """A node in the body adds elements to an input of the model, and the body reads the result and returns it: it is no cache of the
    model, which does not have that output."""
    lp = node("Loop", ["two", "on", "s0"], ["last"], name="loop", body=body(
        [node("ScatterElements", ["cache", "at", "new"], ["grown"], name="scatter", axis=2), node("Identity", ["go"], ["go2"]),
         node("ReduceMax", ["grown"], ["m"], keepdims=0), node("Greater", ["m", "zero"], ["unused"])],
        [info("i", T.INT64, []), info("go", T.BOOL, []), info("s", T.FLOAT, [2, 3, 4, 5])],
        [info("go2", T.BOOL, []), info("grown", T.FLOAT, [2, 3, 4, 5])]))
    m = model([lp, node("Neg", ["cache"], ["y"], name="neg")],
              [info("cache", T.FLOAT, [2, 3, 4, 5]), info("s0", T.FLOAT, [2, 3, 4, 5])],
              [info("last", T.FLOAT, [2, 3, 4, 5]), info("y", T.FLOAT, [2, 3, 4, 5])],
              [tensor(I64(2).reshape(()), "two"), tensor(np.array(True), "on"), tensor(np.zeros((2, 3, 1, 5), "i8"), "at"),
               tensor(f4(2, 3, 1, 5), "new"), tensor(np.float32(0).reshape(()), "zero")])
    return m, 2, {"neg:cache": "{2,1,1,1:0,1}"}, {"cache": f4(2, 3, 4, 5), "s0": f4(2, 3, 4, 5)}, None, {"reader": False}


if __name__ == "__main__":
    special.main()
