# SPDX-License-Identifier: Apache-2.0
"""Tests the provider in a C program (ep_host.c): it registers the provider, runs sessions in several threads, makes wrong calls and
unregisters.

It also runs in builds with a sanitizer, and under valgrind in the long version.

usage: host_program.py PROGRAM LIBRARY [all]"""
import os
import re
import shutil
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness

PROGRAM, LIBRARY = map(os.path.abspath, sys.argv[1:3])
TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools")
OURS = ("tsr_", "src/ep/", "libtessera_ep")  # leaks of ONNX Runtime itself are ignored


def words(folder):
    """Returns the arguments of the program; writes a model to the folder."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) / 8, name)
        for name, shape in (("w1", (64, 256)), ("w2", (256, 64)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["y"])
    ]
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 64])] for name in "xy"]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", *ports, weights), opset_imports=[helper.make_opsetid("", 18)], ir_version=10),
              folder + "/model.onnx")
    return harness.environment().get("TESSERA_ORT", ""), LIBRARY, folder + "/model.onnx", folder


def program(folder):
    races = "suppressions=%s exitcode=66" % os.path.join(TOOLS, "tsan.supp")
    code, out, err = harness.call(PROGRAM, *words(folder), LSAN_OPTIONS="exitcode=0", TSAN_OPTIONS=races)
    leaks = [part for part in err.split("\n\n") if " leak of " in part and any(name in part for name in OURS)]
    others = err.split("ERROR: LeakSanitizer")[0]
    assert code == 0 and out == "ok\n" and not leaks and "Sanitizer" not in others and "runtime error" not in others, (
        code, out, "\n".join(leaks)[-3000:], others[-3000:])


def valgrind(folder):
    if not harness.ALL or harness.SANITIZED:
        return False
    if not shutil.which("valgrind"):
        return "no valgrind"
    options = [
        "--quiet", "--fair-sched=yes", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite",
        "--suppressions=" + os.path.join(TOOLS, "valgrind.supp")
    ]
    code, out, err = harness.call("valgrind", *options, PROGRAM, *words(folder), timeout=1200)
    ours = [part for part in re.split(r"\n==\d+== *\n", err) if any(name in part for name in OURS)]
    assert out == "ok\n" and not ours, (code, out, "\n".join(ours)[-3000:])
    return None


harness.run([program, valgrind])
harness.finish()
