# SPDX-License-Identifier: Apache-2.0
"""Sequences and optional values: their elements are cut alike, and they never move. As special.py.

usage: lists.py TESSERA [CASE...]"""
import numpy as np
from onnx import TensorProto as T, helper

import special
from special import f4, info, model, node, tensor

special.CASES.clear()
case = special.case
I8 = lambda *v: np.array(v, "i8")


@case
def elements_pass_through():
    """Two cut tensors into a list and one out of it: no communication but for the end."""
    m = model([node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("SequenceConstruct", ["a", "b"], ["s"], name="list"),
               node("SequenceAt", ["s", "k"], ["c"], name="at"), node("Neg", ["c"], ["y"])],
              [info("x", T.FLOAT, [3, 6])], [info("y", T.FLOAT, [3, 8])], [tensor(f4(6, 8), "w"), tensor(np.int64(1), "k")])
    return m, 2, {"a_matmul:w": "{1,2:0,1}"}, {"x": f4(3, 6)}, ["Reshard"]


@case
def annotated_list():
    m, n, _, ins, c = special.CASES["elements_pass_through"]()
    return m, n, {"list:a": "{1,2:0,1}"}, ins, c


@case
def split_and_join():
    """Taken apart along the rows and put together again, with the columns cut."""
    m = model([node("SplitToSequence", ["x", "n"], ["s"], name="split", axis=0), node("SequenceErase", ["s", "k"], ["t"]),
               node("ConcatFromSequence", ["t"], ["y"], name="join", axis=0)],
              [info("x", T.FLOAT, [6, 7])], [info("y", T.FLOAT, [None, 7])], [tensor(I8(1, 2, 3), "n"), tensor(np.int64(1), "k")])
    return m, 3, {"split:x": "{1,3:0,1,2}"}, {"x": f4(6, 7)}, None


@case
def stacked():
    m = model([node("SplitToSequence", ["x"], ["s"], name="split", axis=1, keepdims=0), node("ConcatFromSequence", ["s"], ["y"], axis=0, new_axis=1)],
              [info("x", T.FLOAT, [5, 4])], [info("y", T.FLOAT, [None, 5])])
    return m, 2, {"split:x": "{2,1:0,1}"}, {"x": f4(5, 4)}, None


@case
def along_the_cut():
    """The axis that is joined is cut: the list is made whole, and right."""
    m = model([node("Relu", ["x"], ["a"]), node("Neg", ["x"], ["b"]), node("SequenceConstruct", ["a", "b"], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=1)],
              [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [4, 12])])
    return m, 2, {"a_relu:x": "{1,2:0,1}"}, {"x": f4(4, 6)}, None


@case
def two_that_differ():
    """What is put into the list lies otherwise: it is brought to the list, not the list to it."""
    m = model([node("Relu", ["x"], ["a"]), node("Neg", ["x"], ["b"]), node("SequenceConstruct", ["a"], ["s"]), node("SequenceInsert", ["s", "b", "k"], ["t"]),
               node("SequenceLength", ["t"], ["l"]), node("SequenceAt", ["t", "k"], ["y"])],
              [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [4, 6]), info("l", T.INT64, [])], [tensor(np.int64(0), "k")])
    return m, 2, {"a_relu:x": "{1,2:0,1}", "b_neg:x": "{2,1:0,1}"}, {"x": f4(4, 6)}, None


@case
def asked_for_in_parts():
    """What joins a list is asked for in parts that the list does not have: the list lies whole, and so does its reader."""
    m = model([node("SequenceConstruct", ["x", "w", "x"], ["s"], name="list"), node("ConcatFromSequence", ["s"], ["y"], name="join", axis=0)],
              [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [12, 6])], [tensor(f4(4, 6), "w")])
    return m, 3, {"list:x": "{3,1:0,1,2}", "join:y": "{1,3*2/2:0,1}"}, {"x": f4(4, 6)}, None


@case
def put_in_in_two_ways():
    """Two elements of a list in other parts than each other."""
    m = model([node("SequenceConstruct", ["x", "w"], ["s"], name="list"), node("SequenceInsert", ["s", "x"], ["t"], name="more"),
               node("ConcatFromSequence", ["t"], ["y"], axis=0)],
              [info("x", T.FLOAT, [2, 6])], [info("y", T.FLOAT, [6, 6])], [tensor(f4(2, 6), "w")])
    return m, 6, {"list:x": "{1,4:0,1,(2,4),(3,5)}", "more:x": "{1,5:5,4,1,(0,2),3}"}, {"x": f4(2, 6)}, None


@case
def one_device_has_it():
    """A list on device 1 alone, read on both: it is made on both."""
    m = model([node("Relu", ["x"], ["a"]), node("SequenceConstruct", ["a"], ["s"], name="list"), node("SequenceAt", ["s", "k"], ["c"]), node("Neg", ["c"], ["y"])],
              [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [4, 6])], [tensor(np.int64(0), "k")])
    return m, 2, {"list:a": "{1,1:1}", "c_sequenceat:c": "{1,1:0,1}"}, {"x": f4(4, 6)}, None


@case
def optional_values():
    m = model([node("Relu", ["x"], ["a"]), node("Optional", ["a"], ["o"]), node("OptionalGetElement", ["o"], ["c"]), node("Neg", ["c"], ["y"])],
              [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [4, 6])])
    return m, 2, {"a_relu:x": "{1,2:0,1}"}, {"x": f4(4, 6)}, None, {"reader": False}


@case
def carried_by_a_loop():
    """The list grows in each turn; its elements come from a product that is cut."""
    seq = lambda v: helper.make_tensor_sequence_value_info(v, T.FLOAT, None)
    g = helper.make_graph([node("Identity", ["go"], ["on"]), node("MatMul", ["x", "w"], ["h"], name="mm"), node("SequenceInsert", ["s", "h"], ["t"])], "body",
                          [info("i", T.INT64, []), info("go", T.BOOL, []), seq("s")], [info("on", T.BOOL, []), seq("t")])
    m = model([node("SequenceConstruct", ["x"], ["s0"]), node("Loop", ["m", "c", "s0"], ["s1"], name="loop", body=g), node("ConcatFromSequence", ["s1"], ["y"], axis=0)],
              [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [None, 6])], [tensor(f4(6, 6), "w"), tensor(np.int64(2), "m"), tensor(np.array(True), "c")])
    return m, 2, {"loop > body > mm:w": "{1,2:0,1}"}, {"x": f4(4, 6)}, None


if __name__ == "__main__":
    special.main()
