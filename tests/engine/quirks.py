#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests whether the installed ONNX Runtime still has the quirks of src/engine/quirks.def.

Each reproduction below is a small unsharded model that triggers the quirk. It runs in its own process, since some crash the process. If
quirks.def lists a quirk for this version but it does not reproduce, it is reported as "no longer needed". If the row ends before this
version but the quirk still reproduces, the test fails.

Usage: quirks.py [NAME ...]
"""
import glob
import os
import re
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T, helper as h, numpy_helper

import harness

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(HERE, "..", "..", "src")
ROWS = os.path.join(SOURCES, "engine", "quirks.def")
REPRODUCED, ABSENT = 10, 11  # exit codes of a reproduction
BROKEN = 12                  # the script itself fails


def rows():
    """{name: (first minor version, last or 0, test)} of quirks.def."""
    text = open(ROWS, encoding="utf-8").read()
    text = re.sub(r"^//.*$", "", text, flags=re.M)
    found = re.findall(r"QUIRK\((\w+), (\d+), (\d+),((?:\s*\"(?:[^\"\\]|\\.)*\"\s*,?)+)\)", text)
    table = {}
    for name, since, until, texts in found:
        joined = re.sub(r"\"\s*\"", "", texts)
        table[name] = (int(since), int(until), re.findall(r"\"((?:[^\"\\]|\\.)*)\"", joined))
    return table


def value(name, kind, shape):
    return h.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, initializers=(), opset=17, ir=8, domains=()):
    graph = h.make_graph(nodes, "g", inputs, outputs, list(initializers))
    imports = [h.make_opsetid("", opset)] + [h.make_opsetid(d, 1) for d in domains]
    return h.make_model(graph, opset_imports=imports, ir_version=ir)


def run(m, feeds, level=None, extra=None):
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if level is not None:
        options.graph_optimization_level = level
    if extra:
        extra(options)
    session = ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def refuses(m, feeds=None):
    try:
        run(m, feeds or {})
    except Exception:
        return True
    return False


OFF = ort.GraphOptimizationLevel.ORT_DISABLE_ALL


# ---- reproductions: each returns True if the engine has the quirk ----------------------------------

def ir_version_11():
    m = model([h.make_node("Relu", ["x"], ["y"])], [value("x", T.FLOAT, [2])], [value("y", T.FLOAT, [2])], ir=11)
    return refuses(m, {"x": np.zeros(2, np.float32)})


def string_gather_rows():
    x = np.array([["a", "b"], ["c", "d"], ["e", "f"]], object)
    m = model([h.make_node("Gather", ["x", "i"], ["y"], axis=0)], [value("x", T.STRING, [3, 2])], [value("y", T.STRING, [2, 2])],
              [numpy_helper.from_array(np.array([0, 2]), "i")])
    return run(m, {"x": x})[0].tolist() != [["a", "b"], ["e", "f"]]


def scan_axis_of_empty():
    inner = [value(n, T.FLOAT, [None] * 3) for n in ("c", "i", "o", "p")]
    body = h.make_graph([h.make_node("Add", ["c", "i"], ["o"]), h.make_node("Neg", ["i"], ["p"])], "turn", inner[:2], inner[2:])
    m = model([h.make_node("Scan", ["a", "x"], ["b", "y"], body=body, num_scan_inputs=1, scan_input_axes=[1])],
              [value("a", T.FLOAT, ["a", "b", "c"]), value("x", T.FLOAT, ["p", "q", "r", "t"])],
              [value("b", T.FLOAT, None), value("y", T.FLOAT, None)])
    results = run(m, {"a": np.ones((7, 0, 5), np.float32), "x": np.zeros((7, 2, 0, 5), np.float32)})
    return results[1].shape != (2, 7, 0, 5)


def negative_axes_of_empty():
    m = model([h.make_node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], [value("x", T.FLOAT, ["n", 3])], [value("y", T.FLOAT, None)],
              [numpy_helper.from_array(np.array([-1]), "a")])
    return run(m, {"x": np.zeros((0, 3), np.float32)})[0].shape != (0,)


def gemm_of_empty():
    c = np.ones((2, 3), np.float32)
    m = model([h.make_node("Gemm", ["a", "b", "c"], ["y"])],
              [value("a", T.FLOAT, [2, "k"]), value("b", T.FLOAT, ["k", 3]), value("c", T.FLOAT, [2, 3])], [value("y", T.FLOAT, [2, 3])])
    y = run(m, {"a": np.zeros((2, 0), np.float32), "b": np.zeros((0, 3), np.float32), "c": c})[0]
    return not np.array_equal(y, c)


def matmul_of_empty_stack():
    m = model([h.make_node("Exp", ["x"], ["e"]), h.make_node("ReduceSum", ["e"], ["f"]), h.make_node("MatMul", ["a", "b"], ["m"]),
               h.make_node("Add", ["m", "f"], ["y"])],
              [value("x", T.FLOAT, [64]), value("a", T.FLOAT, [64, "k"]), value("b", T.FLOAT, ["k"])], [value("y", T.FLOAT, [64])])
    feeds = {"x": np.zeros(64, np.float32), "a": np.zeros((64, 0), np.float32), "b": np.zeros(0, np.float32)}
    return any(np.any(run(m, feeds, OFF)[0] != 64) for _ in range(20))


def quantize_moved_through_pool():
    """0.1 and 0.2 are the same byte, so the index becomes that of the first."""
    m = model([h.make_node("MaxPool", ["x"], ["p", "i"], kernel_shape=[2]), h.make_node("QuantizeLinear", ["p", "s", "z"], ["q"]),
               h.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])], [value("x", T.FLOAT, [1, 1, 2])],
              [value("y", T.FLOAT, None), value("i", T.INT64, None)],
              [numpy_helper.from_array(np.float32(1), "s"), numpy_helper.from_array(np.uint8(0), "z")])
    return run(m, {"x": np.array([[[0.1, 0.2]]], np.float32)})[1].item() != 1


def merged_splits():
    x, nodes, outputs, want = np.arange(48, dtype=np.float32).reshape(4, 12), [h.make_node("Neg", ["x"], ["a"])], [], []
    for n in (2, 3, 4):
        names = ["s%d_%d" % (n, i) for i in range(n)]
        nodes += [h.make_node("Split", ["a"], names, axis=1), h.make_node("Relu", [names[-1]], ["y%d" % n])]
        outputs.append(value("y%d" % n, T.FLOAT, None))
        want.append(12 // n)
    m = model(nodes, [value("x", T.FLOAT, ["n", 12])], outputs, opset=13)
    return [r.shape[1] for r in run(m, {"x": x})] != want


def written_statistics():
    nodes = [h.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "rm", "rv"], training_mode=1)]
    nodes += [h.make_node("Identity", [n], ["out_" + n]) for n in ("y", "rm", "rv")]
    ins = [value("x", T.FLOAT, [4, 2])] + [value(n, T.FLOAT, [2]) for n in "sbmv"]
    m = model(nodes, ins, [value("out_" + n, T.FLOAT, None) for n in ("y", "rm", "rv")])
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(4, 2)}
    feeds.update({n: np.ones(2, np.float32) for n in "sbmv"})
    run(m, feeds, OFF)
    return not (np.array_equal(feeds["m"], np.ones(2)) and np.array_equal(feeds["v"], np.ones(2)))


def moe_over_its_input():
    rng = np.random.default_rng(0)
    n, d, e, inter = 6, 8, 4, 16
    ini = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), name)
           for name, s in (("w1", (e, inter, d)), ("w2", (e, d, inter)), ("g", (d, e)))]
    def build(spare):
        nodes = [h.make_node("Add", ["x", "x"], ["h"]), h.make_node("MatMul", ["x", "g"], ["r"]),
                 h.make_node("MoE", ["h", "r", "w1", "", "w2"], ["m"], domain="com.microsoft", k=2, activation_type="relu"),
                 h.make_node("Neg", ["m"], ["y"])]
        outs = [value("y", T.FLOAT, [n, d])]
        if spare:
            outs.append(value("h", T.FLOAT, [n, d]))
        m = model(nodes, [value("x", T.FLOAT, [n, d])], outs, ini, domains=["com.microsoft"])
        m.graph.value_info.extend([value("m", T.FLOAT, [n, d])] + ([] if spare else [value("h", T.FLOAT, [n, d])]))
        return m
    x = rng.standard_normal((n, d)).astype(np.float32)
    return not np.allclose(run(build(False), {"x": x}, OFF)[0], run(build(True), {"x": x}, OFF)[0], atol=1e-4)


def normalizer_over_its_input():
    nodes = [h.make_node("Neg", ["x"], ["h"]), h.make_node("Normalizer", ["h"], ["m"], domain="ai.onnx.ml", norm="L2"),
             h.make_node("Neg", ["m"], ["y"])]
    m = model(nodes, [value("x", T.FLOAT, [2, 3])], [value("y", T.FLOAT, [2, 3])], domains=["ai.onnx.ml"])
    m.graph.value_info.extend([value("h", T.FLOAT, [2, 3]), value("m", T.FLOAT, [2, 3])])
    x = np.array([[1, -2, 2], [3, 0, -4]], np.float32)
    return not np.allclose(run(m, {"x": x}, OFF)[0], x / np.linalg.norm(x, axis=1, keepdims=True), atol=1e-5)


def turned_constants():
    w, x = np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((2, 3), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        m = model([h.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), h.make_node("Add", ["t", "w"], ["a"]),
                   h.make_node("Transpose", ["a"], ["y"], perm=[1, 0])], [value("x", T.FLOAT, [2, 3])], [value("y", T.FLOAT, [2, 3])],
                  [numpy_helper.from_array(w, "w")])
        path = os.path.join(folder, "m.onnx")
        onnx.save_model(m, path, save_as_external_data=True, location="m.data", size_threshold=0)
        options, given = ort.SessionOptions(), ort.OrtValue.ortvalue_from_numpy(w)
        options.add_initializer("w", given)
        options.log_severity_level = 4
        y = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    return not np.array_equal(y, x + w.T)


def cast_before_shape():
    m = model([h.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), h.make_node("Cast", ["q"], ["c"], to=T.INT32),
               h.make_node("Shape", ["c"], ["y"])], [value("x", T.FLOAT, ["n"])], [value("y", T.INT64, [1])],
              [numpy_helper.from_array(np.float32(1), "s"), h.make_tensor("z", T.INT4, [], [0])], opset=21, ir=10)
    return refuses(m, {"x": np.zeros(3, np.float32)})


def identity_of_4_bits():
    m = model([h.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), h.make_node("Slice", ["q", "a", "b"], ["p"]),
               h.make_node("DequantizeLinear", ["p", "s", "z"], ["y"])], [value("x", T.FLOAT, [4])], [value("y", T.FLOAT, [2])],
              [numpy_helper.from_array(np.float32(1), "s"), h.make_tensor("z", T.INT4, [], [0]),
               numpy_helper.from_array(np.array([0]), "a"), numpy_helper.from_array(np.array([2]), "b")], opset=21, ir=10)
    return refuses(m, {"x": np.zeros(4, np.float32)})


def slice_of_float8():
    m = model([h.make_node("Cast", ["x"], ["f"], to=T.FLOAT8E4M3FN), h.make_node("Slice", ["f", "a", "b"], ["p"]),
               h.make_node("Cast", ["p"], ["y"], to=T.FLOAT)], [value("x", T.FLOAT, [4])], [value("y", T.FLOAT, [2])],
              [numpy_helper.from_array(np.array([0]), "a"), numpy_helper.from_array(np.array([2]), "b")], opset=19, ir=9)
    return refuses(m, {"x": np.zeros(4, np.float32)})


def loop_of_one_input():
    body = h.make_graph([h.make_node("Identity", ["c"], ["d"]), h.make_node("Cast", ["i"], ["s"], to=T.FLOAT)], "b",
                        [value("i", T.INT64, []), value("c", T.BOOL, [])], [value("d", T.BOOL, []), value("s", T.FLOAT, [])])
    m = model([h.make_node("Loop", ["n"], ["y"], body=body)], [value("n", T.INT64, [])], [value("y", T.FLOAT, None)])
    return refuses(m, {"n": np.int64(3)})


def scan_without_rank():
    body = h.make_graph([h.make_node("Identity", ["p"], ["q"])], "b", [value("p", T.FLOAT, None)], [value("q", T.FLOAT, None)])
    m = model([h.make_node("Reshape", ["x", "s"], ["r"]), h.make_node("Scan", ["r"], ["y"], body=body, num_scan_inputs=1)],
              [value("x", T.FLOAT, [6]), value("s", T.INT64, ["k"])], [value("y", T.FLOAT, None)])
    return refuses(m, {"x": np.zeros(6, np.float32), "s": np.array([2, 3])})


def pads_with_dilations():
    m = model([h.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2], dilations=[2], auto_pad="SAME_UPPER")],
              [value("x", T.FLOAT, [1, 1, "n"])], [value("y", T.FLOAT, None)])
    return run(m, {"x": np.arange(4, dtype=np.float32).reshape(1, 1, 4)})[0].shape != (1, 1, 4)


def misread_windows():
    """ONNX infers two windows, the kernel returns one: the second would start behind the image."""
    one = numpy_helper.from_array(np.ones((1, 1, 1), np.float32), "one")
    m = model([
        h.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2], strides=[3], pads=[1, 1], ceil_mode=1),
        h.make_node("Concat", ["y", "one"], ["z"], axis=0)
    ], [value("x", T.FLOAT, [1, 1, 2])], [value("z", T.FLOAT, None)], [one])
    return refuses(m, {"x": np.ones((1, 1, 2), np.float32)})


def dequantize_moved_behind_slice():
    body = lambda name: h.make_graph([h.make_node("Neg" if name == "t" else "Abs", ["p"], ["o" + name])], name, [],
                                     [value("o" + name, T.FLOAT, None)])
    m = model([h.make_node("DequantizeLinear", ["x", "s", "z"], ["d"]), h.make_node("Slice", ["d", "a", "b"], ["p"]),
               h.make_node("If", ["c"], ["y"], then_branch=body("t"), else_branch=body("e"))],
              [value("x", T.UINT8, [4]), value("c", T.BOOL, [])], [value("y", T.FLOAT, None)],
              [numpy_helper.from_array(np.float32(1), "s"), numpy_helper.from_array(np.uint8(0), "z"),
               numpy_helper.from_array(np.array([0]), "a"), numpy_helper.from_array(np.array([2]), "b")])
    return run(m, {"x": np.arange(4, dtype=np.uint8), "c": np.array(True)})[0].tolist() != [0, -1]


def quantize_moved_through_transpose():
    def body(op):
        return h.make_graph([h.make_node(op, ["a"], ["o" + op])], op, [], [value("o" + op, T.FLOAT, None)])
    m = model([h.make_node("Split", ["x", "three"], ["a", "b"], axis=0),
               h.make_node("If", ["c"], ["e"], then_branch=body("Neg"), else_branch=body("Abs")),
               h.make_node("Transpose", ["a"], ["t"], perm=[0]), h.make_node("QuantizeLinear", ["t", "s", "zero"], ["q"]),
               h.make_node("DequantizeLinear", ["q", "s", "zero"], ["y"])],
              [value("x", T.FLOAT, [6]), value("c", T.BOOL, [])], [value(n, T.FLOAT, None) for n in ("e", "y", "b")],
              [numpy_helper.from_array(np.array([3, 3]), "three"), numpy_helper.from_array(np.float32(0.4), "s"),
               numpy_helper.from_array(np.int8(1), "zero")], opset=21, ir=10)
    x = np.array([0.1, 0.7, -0.3, 1, 2, 3], np.float32)
    return not np.allclose(run(m, {"x": x, "c": np.array(True)})[0], -x[:3])


def refused_opset():
    m = model([h.make_node("Relu", ["x"], ["y"])], [value("x", T.FLOAT, [2])], [value("y", T.FLOAT, [2])], opset=23, ir=10)
    return refuses(m, {"x": np.zeros(2, np.float32)})


def float8_fused():
    kind = T.FLOAT8E4M3FN
    m = model(
        [
            h.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            h.make_node("DequantizeLinear", ["q", "s", "z"], ["a"]),
            h.make_node("DequantizeLinear", ["w", "s", "z"], ["b"]),
            h.make_node("MatMul", ["a", "b"], ["y"])
        ], [value("x", T.FLOAT, [2, 4])], [value("y", T.FLOAT, [2, 3])],
        [h.make_tensor("w", kind, [4, 3], np.ones(12)),
         h.make_tensor("z", kind, [], [0.0]),
         numpy_helper.from_array(np.float32(1), "s")], opset=19, ir=9)
    return refuses(m, {"x": np.ones((2, 4), np.float32)})


def cache_of_its_past():
    nodes, feeds, hidden = [], {"x": np.ones((1, 3, 64), np.float32), "last": np.array([7], np.int32), "total": np.array(8, np.int32)}, "x"
    inputs, outputs = [value("x", T.FLOAT, [1, 3, 64]), value("last", T.INT32, [1]), value("total", T.INT32, [])], []
    for k in range(3):
        past = ["past%d%s" % (k, which) for which in "kv"]
        nodes += [h.make_node("Neg", [p], ["neg_" + p]) for p in past]
        nodes.append(h.make_node("GroupQueryAttention", [hidden, "", "", *("neg_" + p for p in past), "last", "total"],
                                 ["a%d" % k, "key%d" % k, "value%d" % k], domain="com.microsoft", num_heads=4, kv_num_heads=2))
        nodes.append(h.make_node("MatMul", ["a%d" % k, "w"], ["h%d" % k]))
        nodes += [h.make_node("Neg", [c + str(k)], ["y%s%d" % (c, k)]) for c in ("key", "value")]
        inputs += [value(p, T.FLOAT, [1, 2, "past", 8]) for p in past]
        outputs += [value("y%s%d" % (c, k), T.FLOAT, None) for c in ("key", "value")]
        feeds.update({p: np.ones((1, 2, 5, 8), np.float32) for p in past})
        hidden = "h%d" % k
    w = numpy_helper.from_array(np.ones((32, 64), np.float32), "w")
    return refuses(model(nodes, inputs, outputs, [w], domains=["com.microsoft"]), feeds)


# ---- the report -----------------------------------------------------------------------------------

def outcome(name):
    """(REPRODUCED, ABSENT or BROKEN, details). An error of ONNX Runtime counts as REPRODUCED; any other error of the script is BROKEN."""
    code, text = harness.forked(lambda: sys.exit(REPRODUCED if globals()[name]() else ABSENT))
    if code < 0:
        return REPRODUCED, "ends the process (signal %d)" % -code
    if code in (REPRODUCED, ABSENT):
        return code, ""
    error = (text.strip().splitlines() or ["?"])[-1]
    return REPRODUCED if error.startswith("onnxruntime.") else BROKEN, "error: " + error[:140]


def report(name, row, minor):
    since, until, _ = row
    code, why = outcome(name)
    expected = since <= minor and (not until or minor <= until)
    if code == BROKEN:
        return print("not ok %s # %s" % (name, why))
    if code == REPRODUCED and until and minor > until:
        return print("not ok %s # ONNX Runtime 1.%d still has it, the row says until 1.%d" % (name, minor, until))
    if code == ABSENT and expected:
        return print("ok %s # no longer needed with ONNX Runtime 1.%d: end the row" % (name, minor))
    print("ok %s # 1.%d %s%s" % (name, minor, "has it" if code == REPRODUCED else "does not have it", why and ", " + why))


def stale(texts):
    """Names of files and functions in a row that do not exist any more."""
    gone, at = [], ""
    for word in re.findall(r"[a-z_0-9]+\.c\b|\b[a-z0-9]+(?:_[a-z0-9]+)+\b", texts[1]):
        if word.endswith(".c"):
            found = glob.glob(os.path.join(SOURCES, "**", word), recursive=True)
            at = "".join(open(path, encoding="utf-8").read() for path in found)
        if not at or (not word.endswith(".c") and word not in at):
            gone.append(word)
    return gone


def main(wanted):
    table = rows()
    minor = int(ort.__version__.split(".")[1])
    for name, row in table.items():
        if wanted and name not in wanted:
            continue
        if stale(row[2]):
            print("not ok %s # the row names %s" % (name, ", ".join(stale(row[2]))))
        if name in globals():
            report(name, row, minor)
        else:
            print("ok %s # SKIP reproduced by %s" % (name, row[2][-1]))


if __name__ == "__main__":
    main(sys.argv[1:])
