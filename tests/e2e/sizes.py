#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests sizes that are easy to get wrong: small models are sharded by hand, run and compared with ONNX Runtime without optimization.

Usage: sizes.py TESSERA [all]     without `all` each operator set with one number of rows, each reduction along two axes"""
import os, sys
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T, helper, numpy_helper

import harness

info, node = helper.make_tensor_value_info, helper.make_node
rng = np.random.default_rng(3)
f4 = lambda *dims: rng.standard_normal(dims).astype("f4")
i8 = lambda *v: np.array(v, "i8")


def model(nodes, inputs, outputs, constants=(), declared=(), opset=21):
    """inputs: name -> dims; outputs: names, or (name, type); declared: name -> dims of intermediate values."""
    ends = [info(y, T.FLOAT, None) if isinstance(y, str) else info(y[0], y[1], None) for y in outputs]
    graph = helper.make_graph(nodes, "g", [info(x, T.FLOAT, d) for x, d in inputs.items()], ends,
                              [numpy_helper.from_array(v, k) for k, v in dict(constants).items()],
                              value_info=[info(x, T.FLOAT, d) for x, d in dict(declared).items()])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])


def whole(m, feeds):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([y.name for y in session.get_outputs()], session.run(None, feeds)))


def call(tessera, *words):
    code, out, err = harness.call(tessera, *words)
    return code, out + err


def run(tessera, folder, m, shards, feeds, devices=2):
    """Returns (exit code, messages, outputs)."""
    path, cut, given, made = (os.path.join(folder, n) for n in ("m.onnx", "cut.onnx", "in.npz", "out.npz"))
    onnx.save(m, path)
    np.savez(given, **feeds)
    if os.path.exists(made):
        os.remove(made)
    code, text = call(tessera, "annotate", path, "--config", "c:%d" % devices, *[w for s in shards for w in ("--shard", s)], "-o", cut)
    if code:
        return code, "annotate: " + text, {}
    code, text = call(tessera, "run", cut, "--inputs", given, "--outputs", made)
    return code, text, {} if code else dict(np.load(made))


def same(tessera, folder, m, shards, feeds, devices=2):
    """Runs the sharded model. Returns what is wrong, or None."""
    code, text, got = run(tessera, folder, m, shards, feeds, devices)
    if code:
        return "exit %d: %s" % (code, text)
    for name, want in whole(m, feeds).items():
        if got[name].shape != want.shape or not np.allclose(got[name], want, rtol=1e-4, atol=1e-5, equal_nan=True):
            return "%s is %s %s, should be %s %s" % (name, got[name].shape, got[name].ravel()[:4], want.shape, want.ravel()[:4])
    return None


# ---- cases: (name, model, shards, feeds) ----------------------------------------------------------------

SIZES = [node("Shape", ["y"], ["s"], name="shape")]
SEEN = ["y", ("s", T.INT64)]


def reshapes():
    """A 0 in a new shape means the full input size, also if the new dimension consists of other factors."""
    for name, target, dims, shard in (("halves of rows", (2, 0, -1), (4, 6), "{1,3*2/2:0,1}"),
                                      ("the middle", (4, 0, 2), (2, 4, 4), "{1,2,1:0,1}"), ("kept", (0, 2, -1), (4, 6), "{2,1:0,1}")):
        m = model([node("Reshape", ["x", "t"], ["y"], name="r")] + SIZES, {"x": dims}, SEEN, {"t": i8(*target)})
        yield "Reshape to %s: %s" % (list(target), name), m, ["r:x=" + shard], {"x": f4(*dims)}
    m = model(
        [node("Reshape", ["x", "t"], ["h"], name="r"), node("Neg", ["h"], ["y"], name="neg")] + SIZES, {"x": [4, 0, None]}, SEEN,
        {"t": i8(4, -1, 0)})
    yield "Reshape of nothing", m, ["neg:h={1,1,2:0,1}"], {"x": f4(4, 0, 6)}
    m = model([node("Relu", ["x"], ["h"], name="a"), node("Flatten", ["h"], ["y"], name="f", axis=3)] + SIZES, {"x": [0, 8, "n"]}, SEEN)
    yield "Flatten of nothing", m, ["f:h={1,2,1:0,1}"], {"x": f4(0, 8, 7)}
    m = model([node("Reshape", ["x", "t"], ["y"], name="r")] + SIZES, {"x": ["n", 4, "k"]}, SEEN, {"t": i8(4, 0, -1)})
    yield "Reshape of named sizes", m, ["r:x={1,2,1:0,1}"], {"x": f4(2, 4, 6)}
    for opset in (13, 21):
        nodes = [node("Shape", ["x"], ["t"]), node("Reshape", ["x", "flat"], ["h"], name="f"), node("Reshape", ["h", "t"], ["y"], name="r")]
        m = model(nodes + SIZES, {"x": ["n", 8, None, None]}, SEEN, {"flat": i8(0, 8, -1)}, opset=opset)
        yield "back to a shape of unknown sizes, operator set %d" % opset, m, ["r:h={2,1,1:0,1}"], {"x": f4(1, 8, 3, 2)}
        nodes = [
            node("Shape", ["x"], ["all"]),
            node("Gather", ["all", "two"], ["s"]),
            node("Concat", ["rest", "s", "last"], ["t"], axis=0),
            node("Reshape", ["x", "t"], ["y"], name="r")
        ]
        m = model(nodes, {"x": [None, 2, "s", 4]}, ["y"], {"two": i8(2), "rest": i8(-1), "last": i8(4)}, opset=opset)
        yield "what a named size leaves of an unknown one, operator set %d" % opset, m, ["r:x={1,1,2,1:0,1}"], {"x": f4(3, 2, 1, 4)}


def slices():
    """Slices beyond the bounds: the last four of three rows are three rows, rows from the fifth on are none. A Range may be empty."""
    for name, start, end in (("last four", -4, 2 ** 62), ("all but four", 0, -4), ("from the fifth", 4, 2 ** 62), ("in between", 1, -1),
                             ("the last", -1, 2 ** 62)):
        m = model([node("Slice", ["x", "b", "e", "a"], ["y"], name="sl")] + SIZES, {"x": ["n", 6]}, SEEN,
                  {"b": i8(start), "e": i8(end), "a": i8(0)})
        for rows in (0, 1, 3, 9):
            yield "Slice, %s of %d" % (name, rows), m, ["sl:x={1,2:0,1}"], {"x": f4(rows, 6)}
    m = model([
        node("Shape", ["x"], ["d"], name="d", start=0, end=1),
        node("Squeeze", ["d"], ["q"], name="q"),
        node("Sub", ["q", "four"], ["l"], name="l"),
        node("Range", ["zero", "l", "one"], ["r"], name="r"),
        node("Cast", ["r"], ["f"], name="f", to=T.FLOAT),
        node("Shape", ["f"], ["s"], name="s"),
        node("Relu", ["x"], ["y"], name="y")
    ], {"x": ["n", 6]}, SEEN, {"four": np.int64(4), "zero": np.int64(0), "one": np.int64(1)})
    for rows in (3, 9):
        yield "Range to %d - 4" % rows, m, ["y:x={1,2:0,1}"], {"x": f4(rows, 6)}


def stale():
    """Declared sizes of intermediate values that are wrong. The sizes that follow from the inputs must win."""
    for size in (None, "n"):
        m = model([node("Relu", ["x"], ["h"], name="a"), node("Neg", ["h"], ["y"], name="b")] + SIZES, {"x": [size, 6]}, SEEN,
                  declared={"h": [1, 6]})
        yield "declared as 1, the input is %s" % (size or "open"), m, ["a:x={1,2:0,1}", "b:h={1,2:0,1}"], {"x": f4(3, 6)}
    m = model([node("Relu", ["x"], ["h"], name="a"),
               node("Neg", ["h"], ["y"], name="b"),
               node("Abs", ["z"], ["w"], name="c")] + SIZES, {"z": ["n", 6], "x": [None, 6]}, SEEN + ["w"], declared={"h": ["n", 6]})
    yield "declared by the name of another input", m, ["a:x={1,2:0,1}", "b:h={1,2:0,1}"], {"x": f4(3, 6), "z": f4(5, 6)}
    nodes = [node("STFT", ["x", "step", "", "length"], ["f"], name="f"), node("Gather", ["f", "zero"], ["y"], name="g", axis=3)]
    m = model(nodes + SIZES, {"x": ["n", 16, 1]}, SEEN, {"step": np.array(2), "length": np.array(8), "zero": np.array(0)},
              {"f": ["n", 5, 8, 2]})
    yield "twice the frequencies, as onnx infers them", m, ["g:f={1,1,2,1:0,1}"], {"x": f4(2, 16, 1)}


def fractions():
    """A size as torch writes it after a convolution with stride 2: "/" does not round, only floor() does. It cannot be inferred here."""
    nodes = [
        node("Cast", ["e"], ["end"], to=T.INT64),
        node("Slice", ["x", "b", "end", "a"], ["h"], name="cut"),
        node("Shape", ["h"], ["t"], name="t"),
        node("Reshape", ["h", "flat"], ["f"], name="f"),
        node("Reshape", ["f", "t"], ["y"], name="r")
    ]
    half = ["n", 3, "floor(rows/2 - 1/2) + 1"]
    m = model(nodes + SIZES, {"x": ["n", 3, "rows"], "e": [1]}, SEEN, {"b": i8(0), "a": i8(2), "flat": i8(0, -1)}, {"h": half, "y": half})
    for rows in (8, 9):
        yield "half of %d rows, rounded up" % rows, m, ["r:f={2,1:0,1}"], {"x": f4(2, 3, rows), "e": np.array([(rows + 1) // 2], "f4")}


def names():
    """Sizes that are computed from sizes with unusual names."""
    nodes = [node("Conv", ["x", "w"], ["h"], name="c", strides=[2, 2], pads=[1, 1, 1, 1]), node("Relu", ["h"], ["y"], name="y")]
    m = model(nodes + SIZES, {"x": ["n", 3, "?", "image width"]}, SEEN, {"w": f4(4, 3, 3, 3)})
    yield "sizes called ? and image width", m, ["c:x={2,1,1,1:0,1}", "y:h={2,1,1,1:0,1}"], {"x": f4(2, 3, 5, 6)}


def old_sets():
    """Nodes that compute local sizes at run time, in each operator set. Older sets lack comparisons, Where and integer remainders."""
    nodes = [node("Shape", ["z"], ["t"], name="t"), node("Reshape", ["x", "t"], ["h"], name="r"), node("Relu", ["h"], ["y"], name="y")]
    for opset in range(7, 22):
        m = model(nodes + SIZES, {"x": ["k"], "z": ["n", 3]}, SEEN, declared={"h": ["n", 3]}, opset=opset)
        for rows in harness.sample((5, 1, 0), 1, opset):
            yield "operator set %d, %d rows" % (opset, rows), m, ["r:h={2,1:0,1}", "y:h={2,1:0,1}"], {"x": f4(rows * 3), "z": f4(rows, 3)}


def nothing():
    """More devices than elements: kernels of the engine interpret some attributes differently for an empty shard."""
    settings = [((-1, ), 1, "{1,2:0,1}"), ((-1, ), 0, "{2,1:0,1}"), ((1, -2), 1, "{2,1:0,1}"), ((-2, ), 0, "{1,2:0,1}"),
                ((-2, ), 1, "{2,1:0,1}")]
    for k, kind in enumerate(("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")):
        for axes, keep, shard in harness.sample(settings, 2, k):
            m = model([node("Reduce" + kind, ["x", "a"], ["y"], name="r", keepdims=keep)] + SIZES, {"x": ["n", "k"]}, SEEN,
                      {"a": i8(*axes)})
            yield "Reduce%s of one along %s" % (kind, list(axes)), m, ["r:x=" + shard], {"x": np.abs(f4(1, 1))}
        m = model([node("Reduce" + kind, ["x"], ["y"], name="r", axes=[-1])] + SIZES, {"x": ["n", "k"]}, SEEN, opset=11)
        yield "Reduce%s of one by attribute" % kind, m, ["r:x={1,2:0,1}"], {"x": np.abs(f4(3, 1))}
    m = model([node("Transpose", ["x"], ["h"], name="t", perm=[0, 2, 1]),
               node("MatMul", ["h", "w"], ["y"], name="r")] + SIZES, {"x": ["n", 4, 5]}, SEEN, {"w": f4(4, 3)})
    yield "a stack of one, transposed, times a matrix", m, ["t:x={2,1,1:0,1}", "r:h={2,1,1:0,1}"], {"x": f4(1, 4, 5)}
    for between in (node("Concat", ["h", "h"], ["c"], name="c", axis=1), node("ReduceMean", ["h"], ["c"], name="c",
                                                                              axes=[1]), node("Identity", ["h"], ["c"], name="c")):
        m = model([node("Transpose", ["x"], ["h"], name="t", perm=[0, 2, 1]), between,
                   node("MatMul", ["c", "w"], ["y"], name="r")] + SIZES, {"x": ["n", 4, 5]}, SEEN, {"w": f4(4, 3)}, opset=17)
        yield "a stack of one, transposed before %s" % between.op_type, m, ["t:x={2,1,1:0,1}", "c:h={2,1,1:0,1}",
                                                                            "r:c={2,1,1:0,1}"], {"x": f4(1, 4, 5)}
    for op, axis, keep in (("ArgMax", -1, 0), ("ArgMin", -2, 0), ("ArgMax", -1, 1)):
        m = model([node(op, ["x"], ["y"], name="r", axis=axis, keepdims=keep)] + SIZES, {"x": ["n", "k"]}, [("y", T.INT64), ("s", T.INT64)])
        yield "%s of one along %d" % (op, axis), m, ["r:x=%s" % ("{2,1:0,1}" if axis == -1 else "{1,2:0,1}")], {"x": f4(1, 1)}


def turns_of_nothing():
    """A Scan along another axis than the first, with an empty shard on one device."""
    body = helper.make_graph(
        [node("Add", ["c", "i"], ["o"], name="add"), node("Neg", ["i"], ["p"], name="neg")], "turn",
        [info("c", T.FLOAT, [None] * 3), info("i", T.FLOAT, [None] * 3)],
        [info("o", T.FLOAT, [None] * 3), info("p", T.FLOAT, [None] * 3)])
    for axis, dims in ((1, (7, 2, 1, 5)), (-3, (7, 2, 1, 5)), (3, (7, 1, 5, 2)), (0, (2, 7, 1, 5))):
        m = model([node("Scan", ["x0", "x"], ["last", "y"], name="sc", body=body, num_scan_inputs=1, scan_input_axes=[axis])] + SIZES,
                  {"x0": ["a", "b", "c"], "x": ["p", "q", "r", "t"]}, SEEN + ["last"])
        cut = ["2" if size == 1 else "1" for size in dims]
        yield "Scan of nothing along %d" % axis, m, ["sc:x={%s:0,1}" % ",".join(cut)
                                                     ], {"x0": f4(*[d for k, d in enumerate(dims) if k != axis % 4]), "x": f4(*dims)}


def of_four_bits():
    """Sizes of a 4-bit tensor. The engine has no Shape for it, and removes a Cast in front of a Shape."""
    m = model([
        node("Cast", ["x"], ["q"], name="q", to=T.UINT4),
        node("Transpose", ["q"], ["t"], name="t"),
        node("Cast", ["t"], ["y"], name="y", to=T.FLOAT)
    ] + SIZES, {"x": [None]}, SEEN)
    yield "four bits that move", m, ["q:q={2:0,1}", "t:t={2:1,0}"], {"x": np.arange(6, dtype="f4")}


def two_sizes(tessera, folder):
    """One symbol with two sizes at the inputs: each value has the size of the input that it comes from (names.py has more)."""
    m = model([node("Relu", ["z"], ["y"], name="a"), node("Abs", ["x"], ["w"], name="b")] + SIZES, {"x": ["n", 6], "z": ["n", 6]},
              SEEN + ["w"])
    return same(tessera, folder, m, ["a:z={1,2:0,1}"], {"x": f4(4, 6), "z": f4(7, 6)}) or same(tessera, folder, m, ["a:z={2,1:0,1}"],
                                                                                               {"x": f4(4, 6), "z": f4(7, 6)})


def none_wrong(folder, check, *arguments):
    wrong = check(sys.argv[1], folder, *arguments)
    assert not wrong, wrong


def main():
    groups = (reshapes, slices, stale, fractions, names, old_sets, nothing, turns_of_nothing, of_four_bits)
    harness.run([(name, none_wrong, same, m, shards, feeds) for group in groups
                 for name, m, shards, feeds in group()] + [("two sizes for one name", none_wrong, two_sizes)])
    harness.finish()


if __name__ == "__main__":
    main()
