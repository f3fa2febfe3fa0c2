# SPDX-License-Identifier: Apache-2.0
"""Tests sequences and optional values: all elements have one sharding, and sequences move only between stages. Cases have the form of
special.py.

usage: lists.py TESSERA"""
import numpy as np
from onnx import TensorProto as T, helper

import special
from special import f4, info, model, node, tensor

special.CASES.clear()
case = special.case
I8 = lambda *v: np.array(v, "i8")


@case
def elements_pass_through():
    """Two sharded tensors become a sequence, and one is read from it. Only the output may be communicated."""
    m = model([node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("SequenceConstruct", ["a", "b"], ["s"], name="list"),
               node("SequenceAt", ["s", "k"], ["c"], name="at"), node("Neg", ["c"], ["y"])],
              [info("x", T.FLOAT, [3, 6])], [info("y", T.FLOAT, [3, 8])], [tensor(f4(6, 8), "w"), tensor(np.int64(1), "k")])
    return m, 2, {"a_matmul:w": "{1,2:0,1}"}, {"x": f4(3, 6)}, ["Reshard"]


# The same sharding, annotated at the sequence and not at the MatMul.
@case
def annotated_list():
    m, n, _, ins, c = special.CASES["elements_pass_through"]()
    return m, n, {"list:a": "{1,2:0,1}"}, ins, c


@case
def split_and_join():
    """A tensor is split by rows into a sequence and concatenated again, with sharded columns."""
    m = model([node("SplitToSequence", ["x", "n"], ["s"], name="split", axis=0), node("SequenceErase", ["s", "k"], ["t"]),
               node("ConcatFromSequence", ["t"], ["y"], name="join", axis=0)],
              [info("x", T.FLOAT, [6, 7])], [info("y", T.FLOAT, [None, 7])], [tensor(I8(1, 2, 3), "n"), tensor(np.int64(1), "k")])
    return m, 3, {"split:x": "{1,3:0,1,2}"}, {"x": f4(6, 7)}, None


# A tensor is split into columns, which are stacked along a new axis; rows of the columns are sharded.
@case
def stacked():
    m = model([
        node("SplitToSequence", ["x"], ["s"], name="split", axis=1, keepdims=0),
        node("ConcatFromSequence", ["s"], ["y"], axis=0, new_axis=1)
    ], [info("x", T.FLOAT, [5, 4])], [info("y", T.FLOAT, [None, 5])])
    return m, 2, {"split:x": "{2,1:0,1}"}, {"x": f4(5, 4)}, None


@case
def along_the_cut():
    """The concatenated axis is sharded: the elements must be gathered first."""
    m = model([
        node("Relu", ["x"], ["a"]),
        node("Neg", ["x"], ["b"]),
        node("SequenceConstruct", ["a", "b"], ["s"]),
        node("ConcatFromSequence", ["s"], ["y"], axis=1)
    ], [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [4, 12])])
    return m, 2, {"a_relu:x": "{1,2:0,1}"}, {"x": f4(4, 6)}, None


@case
def two_that_differ():
    """An inserted element has another sharding than the sequence. The element must be resharded, not the sequence."""
    m = model([
        node("Relu", ["x"], ["a"]),
        node("Neg", ["x"], ["b"]),
        node("SequenceConstruct", ["a"], ["s"]),
        node("SequenceInsert", ["s", "b", "k"], ["t"]),
        node("SequenceLength", ["t"], ["l"]),
        node("SequenceAt", ["t", "k"], ["y"])
    ], [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [4, 6]), info("l", T.INT64, [])], [tensor(np.int64(0), "k")])
    return m, 2, {"a_relu:x": "{1,2:0,1}", "b_neg:x": "{2,1:0,1}"}, {"x": f4(4, 6)}, None


@case
def asked_for_in_parts():
    """A reader wants a sharding that the sequence does not have: the sequence and its reader are replicated."""
    m = model(
        [node("SequenceConstruct", ["x", "w", "x"], ["s"], name="list"),
         node("ConcatFromSequence", ["s"], ["y"], name="join", axis=0)], [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [12, 6])],
        [tensor(f4(4, 6), "w")])
    return m, 3, {"list:x": "{3,1:0,1,2}", "join:y": "{1,3*2/2:0,1}"}, {"x": f4(4, 6)}, None


@case
def put_in_in_two_ways():
    """Two elements of one sequence have different shardings."""
    m = model([node("SequenceConstruct", ["x", "w"], ["s"], name="list"), node("SequenceInsert", ["s", "x"], ["t"], name="more"),
               node("ConcatFromSequence", ["t"], ["y"], axis=0)],
              [info("x", T.FLOAT, [2, 6])], [info("y", T.FLOAT, [6, 6])], [tensor(f4(2, 6), "w")])
    return m, 6, {"list:x": "{1,4:0,1,(2,4),(3,5)}", "more:x": "{1,5:5,4,1,(0,2),3}"}, {"x": f4(2, 6)}, None


@case
def one_device_has_it():
    """A sequence is annotated for device 1 only, but both devices read it: both must compute it."""
    m = model([
        node("Relu", ["x"], ["a"]),
        node("SequenceConstruct", ["a"], ["s"], name="list"),
        node("SequenceAt", ["s", "k"], ["c"]),
        node("Neg", ["c"], ["y"])
    ], [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [4, 6])], [tensor(np.int64(0), "k")])
    return m, 2, {"list:a": "{1,1:1}", "c_sequenceat:c": "{1,1:0,1}"}, {"x": f4(4, 6)}, None


# A sharded tensor goes through an optional value.
@case
def optional_values():
    m = model(
        [node("Relu", ["x"], ["a"]),
         node("Optional", ["a"], ["o"]),
         node("OptionalGetElement", ["o"], ["c"]),
         node("Neg", ["c"], ["y"])], [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [4, 6])])
    return m, 2, {"a_relu:x": "{1,2:0,1}"}, {"x": f4(4, 6)}, None, {"reader": False}


@case
def tensor_read_as_optional():
    """OptionalGetElement of a tensor returns it. The ranks use Identity instead, because ONNX Runtime refuses some of these nodes on
    CUDA."""
    m = model([node("Relu", ["x"], ["a"]), node("OptionalGetElement", ["a"], ["c"], name="get"), node("Neg", ["c"], ["y"])],
              [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [4, 6])])
    return m, 2, {"get:a": "{1,2:0,1}"}, {"x": f4(4, 6)}, None, {"reader": False, "ranks": {"OptionalGetElement": [], "Identity": [0, 1]}}


@case
def carried_by_a_loop():
    """A sequence grows in each iteration of a loop; its elements come from a sharded MatMul."""
    seq = lambda v: helper.make_tensor_sequence_value_info(v, T.FLOAT, None)
    g = helper.make_graph(
        [node("Identity", ["go"], ["on"]),
         node("MatMul", ["x", "w"], ["h"], name="mm"),
         node("SequenceInsert", ["s", "h"], ["t"])], "body",
        [info("i", T.INT64, []), info("go", T.BOOL, []), seq("s")], [info("on", T.BOOL, []), seq("t")])
    m = model(
        [
            node("SequenceConstruct", ["x"], ["s0"]),
            node("Loop", ["m", "c", "s0"], ["s1"], name="loop", body=g),
            node("ConcatFromSequence", ["s1"], ["y"], axis=0)
        ], [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [None, 6])],
        [tensor(f4(6, 6), "w"), tensor(np.int64(2), "m"), tensor(np.array(True), "c")])
    return m, 2, {"loop > body > mm:w": "{1,2:0,1}"}, {"x": f4(4, 6)}, None


# ---- from stage to stage

def staged(m, devices, stages, ins, ranks, shards=None, **more):
    return m, devices, shards or {}, ins, more.pop("collectives", None), {"stages": stages, "ranks": ranks, **more}


@case
def handed_over():
    """Three tensors of different sizes go to the next stage. The first stage reads the sequence too."""
    m = model([node("SplitToSequence", ["x", "n"], ["s"], name="split", axis=0), node("SequenceLength", ["s"], ["l"], name="count"),
               node("ConcatFromSequence", ["s"], ["c"], name="join", axis=0), node("Mul", ["c", "c"], ["y"], name="end")],
              [info("x", T.FLOAT, [6, 7])], [info("y", T.FLOAT, [None, 7]), info("l", T.INT64, [])], [tensor(I8(1, 2, 3), "n")])
    return staged(m, 2, {"split": 0, "count": 0, "join": 1, "end": 1}, {"x": f4(6, 7)},
                  {"SplitToSequence": [0], "SequenceLength": [0], "ConcatFromSequence": [1]}, collectives=["Broadcast", "Broadcast"])


@case
def handed_over_twice():
    """A sequence goes to the next stage, which inserts an element. Both sequences go to the last stage."""
    m = model([
        node("SequenceConstruct", ["x", "w"], ["s"], name="list"),
        node("Neg", ["x"], ["b"], name="neg"),
        node("SequenceInsert", ["s", "b", "k"], ["t"], name="more"),
        node("SequenceAt", ["t", "k"], ["c"], name="at"),
        node("ConcatFromSequence", ["s"], ["d"], name="join", axis=0),
        node("Add", ["c", "d"], ["y"], name="end")
    ], [info("x", T.FLOAT, [1, 6])], [info("y", T.FLOAT, [None, 6])],
              [tensor(f4(3, 6), "w"), tensor(np.int64(0), "k")])
    return staged(m, 3, {"list": 0, "neg": 1, "more": 1, "at": 2, "join": 2, "end": 2}, {"x": f4(1, 6)},
                  {"SequenceConstruct": [0], "SequenceInsert": [1], "SequenceAt": [2], "ConcatFromSequence": [2]})


@case
def cut_list_handed_over():
    """The elements are sharded on the two devices of a stage. They must be gathered for the two devices of the next stage."""
    m = model([
        node("Relu", ["x"], ["a"], name="relu"),
        node("SequenceConstruct", ["a", "x"], ["s"], name="list"),
        node("SequenceAt", ["s", "k"], ["c"], name="at"),
        node("Neg", ["c"], ["y"], name="neg")
    ], [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [4, 6])], [tensor(np.int64(0), "k")])
    return staged(m, 4, {"relu": 0, "list": 0, "at": 1, "neg": 1}, {"x": f4(4, 6)}, {"SequenceConstruct": [0, 1], "SequenceAt": [2, 3]},
                  {"relu:x": "{2,1:0,1}", "neg:c": "{1,2:2,3}"})


def as_long_as_told(n):
    """A loop makes a sequence of n tensors; only the run knows n."""
    seq = lambda v: helper.make_tensor_sequence_value_info(v, T.FLOAT, None)
    g = helper.make_graph([node("Identity", ["go"], ["on"]), node("SequenceInsert", ["s", "x"], ["t"])], "body",
                          [info("i", T.INT64, []), info("go", T.BOOL, []), seq("s")], [info("on", T.BOOL, []), seq("t")])
    m = model([
        node("SequenceEmpty", [], ["s0"], name="empty"),
        node("Loop", ["m", "c", "s0"], ["s1"], name="loop", body=g),
        node("SequenceLength", ["s1"], ["y"], name="count")
    ], [info("x", T.FLOAT, [4, 6]), info("m", T.INT64, [])], [info("y", T.INT64, [])], [tensor(np.array(True), "c")])
    return staged(m, 2, {"empty": 0, "loop": 0, "count": 1}, {"x": f4(4, 6), "m": np.int64(n)}, {"SequenceEmpty": [0, 1]})


# A sequence of three tensors, whose length only the run knows, goes to the next stage.
@case
def as_long_as_the_run_says():
    return as_long_as_told(3)


# The same with an empty sequence.
@case
def empty_list_handed_over():
    return as_long_as_told(0)


@case
def read_inside_a_body():
    """The body of a loop in the second stage reads a sequence of the first stage."""
    g = helper.make_graph(
        [node("Identity", ["go"], ["on"]),
         node("SequenceAt", ["s", "i"], ["e"], name="at"),
         node("Add", ["a", "e"], ["b"])], "body",
        [info("i", T.INT64, []), info("go", T.BOOL, []), info("a", T.FLOAT, [4, 6])],
        [info("on", T.BOOL, []), info("b", T.FLOAT, [4, 6])])
    m = model([
        node("Neg", ["x"], ["h"], name="neg"),
        node("SequenceConstruct", ["x", "h", "x"], ["s"], name="list"),
        node("Loop", ["m", "c", "x"], ["y"], name="loop", body=g)
    ], [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [4, 6])],
              [tensor(np.int64(3), "m"), tensor(np.array(True), "c")])
    return staged(m, 2, {"neg": 0, "list": 0, "loop": 1}, {"x": f4(4, 6)}, {"SequenceConstruct": [0]})


@case
def carried_from_a_stage():
    """A loop in the second stage starts with a sequence of the first stage and extends it."""
    seq = lambda v: helper.make_tensor_sequence_value_info(v, T.FLOAT, None)
    g = helper.make_graph(
        [node("Identity", ["go"], ["on"]),
         node("MatMul", ["x", "w"], ["h"], name="mm"),
         node("SequenceInsert", ["s", "h"], ["t"])], "body",
        [info("i", T.INT64, []), info("go", T.BOOL, []), seq("s")], [info("on", T.BOOL, []), seq("t")])
    m = model(
        [
            node("SequenceConstruct", ["x"], ["s0"], name="list"),
            node("Loop", ["m", "c", "s0"], ["s1"], name="loop", body=g),
            node("ConcatFromSequence", ["s1"], ["y"], name="join", axis=0)
        ], [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [None, 6])],
        [tensor(f4(6, 6), "w"), tensor(np.int64(2), "m"), tensor(np.array(True), "c")])
    return staged(m, 3, {"list": 0, "loop": 1, "join": 1}, {"x": f4(4, 6)}, {"SequenceConstruct": [0], "ConcatFromSequence": [1]},
                  {"loop > body > mm:w": "{1,2:1,2}"})


@case
def scanned_from_an_optional():
    """A Scan needs a state of known rank. This state is read from an optional of another stage, so the rank file must declare the rank."""
    body = helper.make_graph([node("Add", ["a", "e"], ["b"]), node("Identity", ["b"], ["o"])], "scan",
                             [info("a", T.FLOAT, None), info("e", T.FLOAT, None)],
                             [info("b", T.FLOAT, None), info("o", T.FLOAT, None)])
    m = model([
        node("Optional", ["x"], ["s"], name="maybe"),
        node("OptionalGetElement", ["s"], ["c"], name="get"),
        node("Scan", ["c", "w"], ["l", "y"], name="scan", body=body, num_scan_inputs=1)
    ], [info("x", T.FLOAT, [6])], [info("y", T.FLOAT, [3, 6])], [tensor(f4(3, 6), "w")])
    return staged(m, 2, {"maybe": 0, "get": 1, "scan": 1}, {"x": f4(6)}, {"Scan": [1]}, reader=False)


def of_type(kind, x, reads=1, **more):
    m = model([node("SequenceConstruct", ["x", "x"], ["s"], name="list"), node("SequenceAt", ["s", "k"], ["y"], name="at")],
              [info("x", kind, [2, 3])], [info("y", kind, [2, 3])], [tensor(np.int64(1), "k")])
    return staged(m, 2, {"list": 0, "at": 1}, {"x": x}, {"SequenceConstruct": [0], "SequenceAt": [reads]}, **more)


@case
def halves_handed_over():
    return of_type(T.FLOAT16, f4(2, 3).astype("f2"))


@case
def texts_stay():
    """Sequences of strings cannot be sent to another stage, so the reader runs in stage 0, with a warning."""
    return of_type(T.STRING, np.array([["a", "", "ccc"], ["\u00e4\u00f6", "e", "f"]]), reads=0, reader=False, says="outside-stage")


@case
def flags_handed_over():
    return of_type(T.BOOL, f4(2, 3) > 0)


# An optional value goes to the next stage.
@case
def optional_handed_over():
    m = model([
        node("Relu", ["x"], ["a"], name="relu"),
        node("Optional", ["a"], ["o"], name="wrap"),
        node("OptionalGetElement", ["o"], ["c"], name="open"),
        node("Neg", ["c"], ["y"], name="neg")
    ], [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [4, 6])])
    return staged(m, 2, {"relu": 0, "wrap": 0, "open": 1, "neg": 1}, {"x": f4(4, 6)}, {"Relu": [0], "Neg": [1]}, reader=False)


@case
def optional_that_may_be_empty():
    """Only the run knows which branch makes the optional value. Its reader must run in the same stage, and partition must report that."""
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(T.FLOAT, [4, 6]))
    o = helper.make_value_info("o", kind)
    full = helper.make_graph([node("Optional", ["x"], ["o"])], "full", [], [o])
    none = helper.make_graph([helper.make_node("Optional", [], ["o"], type=helper.make_tensor_type_proto(T.FLOAT, [4, 6]))], "none", [],
                             [o])
    m = model([
        node("Identity", ["g"], ["c"], name="go"),
        helper.make_node("If", ["c"], ["w"], name="if", then_branch=full, else_branch=none),
        node("OptionalHasElement", ["w"], ["y"], name="has")
    ], [info("x", T.FLOAT, [4, 6]), info("g", T.BOOL, [])], [info("y", T.BOOL, [])])
    return staged(m, 2, {"go": 0, "if": 0, "has": 1}, {"x": f4(4, 6), "g": np.array(True)}, {"OptionalHasElement": [0]}, reader=False,
                  says="outside-stage")


if __name__ == "__main__":
    special.main()
