# SPDX-License-Identifier: Apache-2.0
"""Tests models whose nodes are not sorted. ONNX Runtime loads them, and float16 converters write them: casts of inputs come last.

usage: unsorted.py TESSERA"""
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness

TESSERA = os.path.abspath(sys.argv[1])
info, node = helper.make_tensor_value_info, helper.make_node


def save(path, nodes):
    rng = np.random.default_rng(4)
    weights = [numpy_helper.from_array(rng.standard_normal((64, 64)).astype("f4") / 8, name) for name in ("v", "w")]
    graph = helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, [32, 64]), info("flag", TensorProto.BOOL, [])],
                              [info("y", TensorProto.FLOAT, [32, 64])], weights)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def check(path):
    rc, out, err = harness.call(TESSERA, "verify", path, "--devices", 2)
    assert rc == 0, out + err


def inputs_of_nodes_come_last(folder):
    path = save(folder + "/m.onnx", [node("MatMul", ["s", "w"], ["t"]), node("Relu", ["t"], ["y"]), node("MatMul", ["x", "v"], ["s"])])
    check(path)
    rc, out, err = harness.call(TESSERA, "plan", path, "--devices", 2, "-o", folder + "/planned.onnx")
    order = [n.output[0] for n in onnx.load(folder + "/planned.onnx").graph.node]
    assert rc == 0 and order == ["s", "t", "y"], (order, err)
    onnx.checker.check_model(folder + "/planned.onnx")


def check_warns(folder):
    """ONNX requires sorted nodes. `check` warns for files that are not sorted. `annotate` and `infer` keep the order of the nodes; `plan`
    sorts them."""
    path = save(folder + "/m.onnx",
                [node("MatMul", ["s", "w"], ["t"], name="second"),
                 node("Relu", ["t"], ["y"]),
                 node("MatMul", ["x", "v"], ["s"])])
    cut, inferred, planned = (folder + "/%s.onnx" % name for name in ("cut", "inferred", "planned"))
    commands = (["annotate", path, "-o", cut, "--config", "tp:2", "--shard", "second:w={1,2}"], ["infer", cut, "-o", inferred],
                ["plan", path, "--devices", 2, "-o", planned])
    for command in commands:
        rc, out, err = harness.call(TESSERA, *command)
        assert rc == 0, (command, out, err)
    for file, wrong in ((path, True), (cut, True), (inferred, True), (planned, False)):
        rc, out, err = harness.call(TESSERA, "check", file)
        assert rc == 0 and ("warning[nodes-unsorted]" in out + err) == wrong, (file, out, err)
        try:
            onnx.checker.check_model(file)
            assert not wrong, file
        except onnx.checker.ValidationError:
            assert wrong, file


def long_chains_are_reversed(folder):
    names = ["x"] + ["a%d" % k for k in range(3000)] + ["y"]
    chain = [node("Relu" if k % 100 else "Neg", [names[k]], [names[k + 1]]) for k in range(len(names) - 2)]
    check(save(folder + "/m.onnx", (chain + [node("MatMul", [names[-2], "w"], ["y"])])[::-1]))


def bodies_read_later_values(folder):
    bodies = [helper.make_graph([node("MatMul", ["late", "w"], [inner]), node("Add", [inner, "late"], [inner + "2"])], inner + "g", [],
                                [info(inner + "2", TensorProto.FLOAT, [32, 64])]) for inner in ("p", "q")]
    check(
        save(folder + "/m.onnx",
             [node("If", ["flag"], ["y"], then_branch=bodies[0], else_branch=bodies[1]),
              node("MatMul", ["x", "v"], ["late"])]))


def refused(path, *words):
    """Every command that reads the model refuses it with the same error."""
    folder = os.path.dirname(path)
    for command in (["check"], ["plan", "--devices", 2, "-o", folder + "/planned.onnx"],
                    ["partition", "--devices", 2, "-o", folder + "/parts"], ["run", "--devices", 2], ["verify", "--devices", 2],
                    ["simulate", "--devices", 2],
                    ["report", "--devices", 2, "-o", folder + "/page.html"]):
        rc, out, err = harness.call(TESSERA, command[0], path, *command[1:])
        text = out + err
        assert rc == 1 and text.count("error[") == 1 and "error[value-not-ready]" in text, (command, rc, text)
        assert all(word in text for word in words), (command, words, text)


def cycles_are_errors(folder):
    refused(save(folder + "/m.onnx", [node("Add", ["x", "b"], ["a"]), node("MatMul", ["a", "w"], ["b"]), node("Relu", ["b"], ["y"])]),
            "computed from the node's own output", "remove the cycle")


def undefined_values_are_errors(folder):
    path = folder + "/m.onnx"
    refused(save(path, [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "missing"], ["y"], name="sum")]),
            "#1 Add 'sum', value 'missing'", "input of this node", "add the node, the input or the initializer")
    refused(save(path, [node("MatMul", ["x", "w"], ["h"])]), "value 'y'", "output of the model")
    bodies = [helper.make_graph([node("Add", ["x", read], [made])], made + "g", [], [info(made, TensorProto.FLOAT, [32, 64])])
              for read, made in (("missing", "p"), ("x", "q"))]
    refused(save(path, [node("If", ["flag"], ["y"], then_branch=bodies[0], else_branch=bodies[1])]), "then_branch", "value 'missing'")


harness.run([inputs_of_nodes_come_last, check_warns, long_chains_are_reversed, bodies_read_later_values, cycles_are_errors,
             undefined_values_are_errors])
harness.finish()
