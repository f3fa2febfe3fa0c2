#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which of ONNX Runtime's kernels write over what they are given: each case of prove.py is run with its results inside of a graph (those
that are outputs of it get memory of their own), and its inputs are compared with what they were. The table's rows say the same.

Usage: writes.py PRINT_RULE
"""
import json, subprocess, sys
import numpy as np
import onnxruntime as ort
from onnx import helper
import prove


def inner(model):
    """The model with a node behind every output."""
    outputs = [o.name for o in model.graph.output]
    del model.graph.output[:]
    for name in outputs:
        model.graph.node.append(helper.make_node("Identity", [name], ["after_" + name]))
        model.graph.output.append(helper.make_empty_tensor_value_info("after_" + name))
    return model


def written(op, since, domain, c):
    """Bits of the inputs that a run changes; None: the engine does not run the case."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    given = [np.array(v.value if isinstance(v, prove.Host) else v) for v in c["inputs"]]
    feeds = {"x%d" % i: a for i, (a, v) in enumerate(zip(given, c["inputs"])) if v is not None}
    before = [a.copy() for a in given]
    try:
        session = ort.InferenceSession(inner(prove.node_model(op, since, c, False, domain)).SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.run(None, feeds)
    except Exception:
        return None
    changed = [a.dtype != object and a.tobytes() != b.tobytes() for a, b in zip(given, before)]
    return sum(1 << i for i, one in enumerate(changed) if one)


def main(printer):
    rows = [json.loads(line) for line in subprocess.run([printer], check=True, capture_output=True, text=True).stdout.splitlines()]
    cases, bad, runs, found = prove.all_cases(), 0, 0, {}
    for name in dict.fromkeys(prove.full(r) for r in rows):
        domain, _, op = name.rpartition(":")
        mine = [r for r in rows if prove.full(r) == name]
        for c in cases.get(name, []):
            since = max(r["since"] for r in mine if domain or r["since"] <= (c["opset"] or 1000))
            bits = written(op, since, domain, c)
            runs += bits is not None
            found[name, since] = found.get((name, since), 0) | (bits or 0)
    for r in rows:
        bits = found.get((prove.full(r), r["since"]), 0)
        if bits != r["writes"]:
            bad += 1
            print("%s: ONNX Runtime writes over inputs %s, the row says %s" % (prove.full(r), bin(bits), bin(r["writes"])))
    print("%s - %d runs, %d rows differ" % ("not ok" if bad else "ok", runs, bad))
    return 1 if bad or runs < 500 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
