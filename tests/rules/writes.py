#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests which kernels of ONNX Runtime overwrite their inputs. Runs each case of prove.py with its results inside a graph (graph outputs
would get their own memory) and compares its inputs before and after. The rows of the table must agree.

Also tests which kernels read values that they have overwritten. If inputs are computed by other nodes and sizes are declared, ONNX Runtime
stores results in the memory of inputs where a kernel allows it. The results must be those of the node alone, except for UNSOUND
(docs/numbers.md).

Usage: writes.py PRINT_RULE
"""
import json, subprocess, sys
import numpy as np
import onnxruntime as ort
from onnx import helper
import prove

import harness

UNSOUND = {"com.microsoft:MoE", "ai.onnx.ml:Normalizer"}


def run(model, feeds):
    """The results of a run without optimization; None: the engine cannot run the model."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)
    except Exception:
        return None


def told(info, name, array):
    """A declaration of this value, with the type of `info` or `array`."""
    return helper.make_tensor_value_info(name, info.type.tensor_type.elem_type if info else helper.np_dtype_to_tensor_dtype(array.dtype),
                                         array.shape)


def inner(model):
    """The model with a node after every output."""
    outputs = [o.name for o in model.graph.output]
    del model.graph.output[:]
    for name in outputs:
        model.graph.node.append(helper.make_node("Identity", [name], ["after_" + name]))
        model.graph.output.append(helper.make_empty_tensor_value_info("after_" + name))
    return model


def written(op, since, domain, c):
    """For each input, whether a run changes it, as bits; None: the engine cannot run the case."""
    given = [np.array(v.value if isinstance(v, prove.Host) else v) for v in c["inputs"]]
    feeds = {"x%d" % i: a for i, (a, v) in enumerate(zip(given, c["inputs"])) if v is not None}
    before = [a.copy() for a in given]
    if run(inner(prove.node_model(op, since, c, False, domain)), feeds) is None:
        return None
    changed = [a.dtype != object and a.tobytes() != b.tobytes() for a, b in zip(given, before)]
    return sum(1 << i for i, one in enumerate(changed) if one)


def between(model, feeds, results):
    """The model with a node before every input and after every output, and declared sizes of all values."""
    graph = model.graph
    for i in graph.input:
        graph.value_info.append(told(i, "made_" + i.name, feeds[i.name]))
        i.CopyFrom(told(i, i.name, feeds[i.name]))
    made = [i.name for i in graph.input if feeds[i.name].ndim]
    node = graph.node[0]
    node.input[:] = ["made_" + name if name in made else name for name in node.input]
    for name in made:
        graph.node.insert(0, helper.make_node("Concat", [name], ["made_" + name], axis=0))
    graph.value_info.extend(told(None, o.name, a) for o, a in zip(graph.output, results))
    return inner(model)


def same(a, b):
    return a.shape == b.shape and (a.tobytes() == b.tobytes() if a.dtype != object else (a == b).all())


def is_spoiled(op, since, domain, c):
    """True if nodes around the node change its results; None: the engine cannot run it, or its results are not tensors."""
    model = prove.node_model(op, since, c, True, domain)
    names = {i.name for i in model.graph.input}
    feeds = {"x%d" % i: v for i, v in enumerate(c["inputs"]) if "x%d" % i in names}
    alone = run(model, feeds)
    if alone is None or not all(isinstance(a, np.ndarray) and a.dtype != object for a in alone):
        return None
    among = run(between(model, feeds, alone), feeds)
    return among and not all(map(same, alone, among))


def main(printer):
    rows = [json.loads(line) for line in subprocess.run([printer], check=True, capture_output=True, text=True).stdout.splitlines()]
    cases, bad, runs, found, spoiled, among = prove.all_cases(), 0, 0, {}, set(), 0
    for name in dict.fromkeys(prove.full(r) for r in rows):
        domain, _, op = name.rpartition(":")
        mine = [r for r in rows if prove.full(r) == name]
        for c in cases.get(name, []):
            since = max(r["since"] for r in mine if domain or r["since"] <= (c["opset"] or 1000))
            bits = written(op, since, domain, c)
            runs += bits is not None
            found[name, since] = found.get((name, since), 0) | (bits or 0)
            wrong = is_spoiled(op, since, domain, c) if name not in prove.RANDOM else None
            among += wrong is not None
            if wrong:
                spoiled.add(name)
    for r in rows:
        bits = found.get((prove.full(r), r["since"]), 0)
        if bits != r["writes"]:
            bad += 1
            print("%s: ONNX Runtime writes over inputs %s, the row says %s" % (prove.full(r), bin(bits), bin(r["writes"])))
    for name in sorted(spoiled ^ UNSOUND):
        bad += 1
        print("%s: ONNX Runtime %s" % (name, "reads what it has written over" if name in spoiled else "is sound by now: UNSOUND has it"))
    harness.check("rows say which inputs a kernel may overwrite", not bad and min(runs, among) >= 500,
                  "%d runs, %d among other nodes, %d rows differ" % (runs, among, bad))
    harness.finish()


if __name__ == "__main__":
    main(sys.argv[1])
