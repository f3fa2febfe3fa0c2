# SPDX-License-Identifier: Apache-2.0
"""Tests model-local functions, which are replaced by their bodies before sharding: nested, in bodies, annotated at the call and
inside, with attributes, and written for another operator set. Cases have the form that special.py describes.

usage: functions.py TESSERA"""
import json, os, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper

import harness, special
from special import f4, info, model, node, tensor

special.CASES.clear()
case = special.case
MY = [helper.make_opsetid("my", 1)]


def function(name, ins, outs, nodes, opset=18, attributes=(), **more):
    return helper.make_function("my", name, ins, outs, nodes, [helper.make_opsetid("", opset)] + MY, list(attributes), **more)


def ffn(opset=18):
    return function("Ffn", ["x", "a", "b"], ["y"], [node("MatMul", ["x", "a"], ["h"], name="up"), node("Relu", ["h"], ["g"], name="act"),
                                                   node("MatMul", ["g", "b"], ["y"], name="down")], opset)


def call(op, ins, outs, name, **more):
    return helper.make_node(op, ins, outs, name=name, domain="my", **more)


def twice(f, opset=18):
    return model([call("Ffn", ["x", "a", "b"], ["h"], "one"), call("Ffn", ["h", "c", "d"], ["y"], "two")],
                 [info("x", T.FLOAT, ["n", 6])], [info("y", T.FLOAT, ["n", 6])],
                 [tensor(f4(6, 8), "a"), tensor(f4(8, 6) / 3, "b"), tensor(f4(6, 9), "c"), tensor(f4(9, 6) / 3, "d")],
                 functions=[f], imports=MY, opset=opset)


@case
def annotated_calls():
    """Sharded by columns, then by rows: one reduction per call."""
    return twice(ffn()), 2, {"one:a": "{1,2:0,1}", "one:b": "{2,1:0,1}", "two:c": "{1,2:0,1}"}, {"x": f4(3, 6)}, ["AllReduce", "Reduce"]


@case
def annotated_inside():
    """A sharding inside the function applies to every call."""
    return twice(ffn()), 2, {"function Ffn > up:a": "{1,2:0,1}"}, {"x": f4(3, 6)}, ["AllReduce", "Reduce"]


@case
def other_version():
    """The function was written for operator set 14; its operators mean the same in 18."""
    return twice(ffn(14)), 2, {"one:a": "{1,2:0,1}", "function Ffn > down:b": "{2,1:0,1}"}, {"x": f4(3, 6)}, ["AllReduce", "Reduce"]


# The function was written for operator set 20, the model for 17.
@case
def newer_version():
    return twice(ffn(20), 17), 3, {"two:c": "{1,3:0,1,2}"}, {"x": f4(3, 6)}, ["Reduce"]


# A function calls another one and passes an attribute to it.
@case
def nested_with_attributes():
    inner = function("Scaled", ["x", "w"], ["y"], [ref("Gemm", ["x", "w"], ["y"], "gemm", alpha="scale")], attributes=["scale"])
    outer = function("Block", ["x", "w"], ["y"], [
        call("Scaled", ["x", "w"], ["h"], "s", scale=0.5), node("Tanh", ["h"], ["y"], name="tanh")])
    m = model([call("Block", ["x", "w"], ["h"], "block"), node("Neg", ["h"], ["y"])], [info("x", T.FLOAT, [3, 6])],
              [info("y", T.FLOAT, [3, 6])], [tensor(f4(6, 6), "w")], functions=[inner, outer], imports=MY)
    return m, 2, {"block:w": "{2,1:0,1}"}, {"x": f4(3, 6)}, ["AllReduce"]


def ref(op, ins, outs, name, **names):
    n = node(op, ins, outs, name=name)
    for attribute, of in names.items():
        a = n.attribute.add()
        a.name, a.ref_attr_name, a.type = attribute, of, 1
    return n


# The body of a Loop calls a function.
@case
def in_a_loop():
    g = helper.make_graph(
        [node("Identity", ["go"], ["on"]), call("Ffn", ["v", "a", "b"], ["w"], "call")], "body",
        [info("i", T.INT64, []), info("go", T.BOOL, []), info("v", T.FLOAT, None)],
        [info("on", T.BOOL, []), info("w", T.FLOAT, None)])
    m = model([node("Loop", ["m", "t", "x"], ["y"], name="loop", body=g)], [info("x", T.FLOAT, [3, 6])], [info("y", T.FLOAT, [3, 6])],
              [tensor(f4(6, 8), "a"), tensor(f4(8, 6) / 3, "b"), tensor(np.int64(3), "m"), tensor(np.array(True), "t")],
              functions=[ffn()], imports=MY)
    return m, 2, {"loop > body > call:a": "{1,2:0,1}"}, {"x": f4(3, 6)}, ["AllReduce"]


@case
def scanned_from_a_norm():
    """A Scan needs a state of known rank. ONNX defines MeanVarianceNormalization by a function, for whose result the engine knows no
    rank."""
    body = helper.make_graph([node("Add", ["a", "e"], ["b"]), node("Identity", ["b"], ["o"])], "scan",
                             [info("a", T.FLOAT, None), info("e", T.FLOAT, None)],
                             [info("b", T.FLOAT, None), info("o", T.FLOAT, None)])
    norm = function("Norm", ["x"], ["y"], [node("MeanVarianceNormalization", ["x"], ["y"], axes=[0])])
    m = model([
        node("MatMul", ["x", "w"], ["h"], name="mm"),
        call("Norm", ["h"], ["c"], "norm"),
        node("Scan", ["c", "s"], ["l", "y"], name="scan", body=body, num_scan_inputs=1)
    ], [info("x", T.FLOAT, [3, 6])], [info("y", T.FLOAT, [2, 3, 4])],
              [tensor(f4(6, 4), "w"), tensor(f4(2, 3, 4), "s")], functions=[norm], imports=MY)
    return m, 2, {"mm:w": "{2,1:0,1}"}, {"x": f4(3, 6)}, ["AllReduce"]


def operators(path):
    """Returns the operators of the nodes of the main graph and of its subgraphs."""
    found, graphs = [], [onnx.load(path).graph]
    for graph in graphs:  # grows
        found += [n.op_type for n in graph.node]
        graphs += [a.g for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    return found


def infer_keeps_calls_and_plan_notes_that_it_inlines(folder, name):
    """Only plan replaces calls by their bodies, and says so in a note."""
    m, devices, shards, *_ = special.CASES[name]()
    plain, cut, full, planned = (os.path.join(folder, f) for f in ("plain.onnx", "cut.onnx", "full.onnx", "planned.onnx"))
    onnx.save(m, plain)
    edits = [word for at, text in shards.items() for word in ("--shard", "%s=%s" % (at, text))]
    tessera = sys.argv[1]
    harness.good(tessera, "annotate", plain, "--config", "c:%d" % devices, *edits, "-o", cut)
    harness.good(tessera, "infer", cut, "-o", full)
    assert operators(full) == operators(plain), (operators(full), operators(plain))
    assert len(onnx.load(full).functions) == len(m.functions)
    codes = [f["code"] for f in json.loads(harness.good(tessera, "plan", plain, "--devices", devices, "-o", planned, "--json"))["findings"]]
    calls = {f.name for f in m.functions}
    assert codes.count("functions-inlined") == 1 and not calls & set(operators(planned)), (codes, operators(planned))
    rc, _, err = harness.call(tessera, "plan", plain, "--devices", devices, "-o", planned, "--verbose")
    assert rc == 0 and "note[functions-inlined]" in err, err
    rc, _, err = harness.call(tessera, "plan", planned, "--devices", devices, "-o", plain, "--verbose")  # has no calls any more
    assert rc == 0 and "functions-inlined" not in err, err


if __name__ == "__main__":
    harness.run([("calls of " + name, infer_keeps_calls_and_plan_notes_that_it_inlines, name) for name in special.CASES])
    special.main()
