#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests size expressions of Slice. For an input of symbolic size, the inferred expression must give the size that ONNX Runtime gives. Tries
every size up to 8, and all bounds near the ends, far beyond them and at the limits of the types, forward and backward.

Usage: slices.py TESSERA
"""
import itertools, os, subprocess, sys, tempfile
import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper as h, numpy_helper as nh

INT32, INT64 = 2 ** 31 - 1, 2 ** 63 - 1
BOUNDS = [-INT64 - 1, -INT64, -INT32 - 1, -INT32, -7, -3, -2, -1, 0, 1, 2, 3, 7, INT32, INT32 + 5, INT64]
STEPS, SIZES = [-3, -2, -1, 1, 2, 3], range(9)
LISTS = "starts", "ends", "axes", "steps"


def model_of(slices):
    """One graph with all slices of one input of n elements."""
    nodes = [h.make_node("Slice", ["x"] + ["%s%d" % (name, i) for name in LISTS], ["y%d" % i]) for i in range(len(slices))]
    lists = [nh.from_array(np.array([number]), "%s%d" % (name, i)) for i, (start, end, step) in enumerate(slices)
             for name, number in zip(LISTS, (start, end, 0, step))]
    outputs = [h.make_tensor_value_info("y%d" % i, onnx.TensorProto.FLOAT, None) for i in range(len(slices))]
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])], outputs, lists)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)


def found(tessera, model):
    """The size of each output: a number, an expression in n, or "" if unknown."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = (os.path.join(folder, name) for name in ("in.onnx", "out.onnx"))
        onnx.save(model, source)
        subprocess.run([tessera, "shapes", source, "-o", result], check=True, capture_output=True)
        dims = [o.type.tensor_type.shape.dim[0] for o in onnx.load(result).graph.output]
    return [str(d.dim_value) if d.HasField("dim_value") else d.dim_param for d in dims]


def main(tessera):
    slices = list(itertools.product(BOUNDS, BOUNDS, STEPS))
    model, options, wrong = model_of(slices), ort.SessionOptions(), 0
    sizes = found(tessera, model)
    options.graph_optimization_level, options.log_severity_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, 4
    engine = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for n in SIZES:
        for what, size, result in zip(slices, sizes, engine.run(None, {"x": np.zeros(n, "f4")})):
            if size and eval(size, {"min": min, "max": max, "n": n}) != len(result):
                wrong += 1
                print("%s:%s:%s of %d: %s, the run gives %d" % (*what, n, size, len(result)))
    known = sum(size != "" for size in sizes)
    # Only a backward slice with an end between the largest numbers of two types may have an unknown size.
    print("%s - %d slices, %d of them known, %d sizes wrong" % ("not ok" if wrong else "ok", len(slices), known, wrong))
    return 1 if wrong or known < 0.95 * len(slices) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
