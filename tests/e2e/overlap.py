#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/overlap.py TESSERA - tests which work overlaps, in real and in simulated runs. A rank computes nothing during its own
transfers. Ranks of different stages compute different requests at the same time. Both are assumptions of the predicted times of stages."""
import bisect, json, sys, tempfile

import numpy as np
import onnx
from onnx import helper as h
from onnx import numpy_helper as nh

import harness

TESSERA = sys.argv[1]
ROWS, OWN = 1024, 192
case = harness.check


def tessera(*words):
    harness.good(TESSERA, *words)


def make(path):
    """Stage 0 sends 4 MiB to stage 1, which computes with it. Stage 0 also has MatMuls that do not depend on the transfer."""
    nodes = [h.make_node("Mul", ["x", "two"], ["y"], name="make")]
    for stage, first in (("near", "a"), ("far", "b")):
        if stage == "far":
            nodes.append(h.make_node("ReduceMax", ["y"], ["b0"], name="far_max", keepdims=0))
            nodes.append(h.make_node("Mul", ["a_far", "b0"], ["b"], name="far_in"))
        last = first
        for i in range(8):
            nodes.append(h.make_node("MatMul", [last, "w"], ["%s%d" % (stage, i)], name="%s_%d" % (stage, i)))
            last = "%s%d" % (stage, i)
    types = [
        h.make_tensor_value_info(n, 1, s)
        for n, s in (("x", [ROWS, ROWS]), ("a", [OWN, OWN]), ("a_far", [OWN, OWN]), ("near7", [OWN, OWN]), ("far7", [OWN, OWN]))
    ]
    weights = [nh.from_array(np.float32(2).reshape(()), "two"), nh.from_array(np.eye(OWN, dtype=np.float32), "w")]
    model = h.make_model(h.make_graph(nodes, "g", types[:3], types[3:], weights), opset_imports=[h.make_opsetid("", 18)], ir_version=11)
    model.configuration.add(name="two", num_devices=2)
    for n in model.graph.node:
        n.device_configurations.add(configuration_id="two").pipeline_stage = int(n.name.startswith("far"))
    onnx.save(model, path)


def spans(trace, *kinds):
    """Returns (rank, begin, end) of the events of these kinds."""
    events = json.load(open(trace))["traceEvents"]
    return [(e["pid"], e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and e.get("cat") in kinds]


def meet(a, b):
    """Counts the pairs of events, one of each list, that overlap for more than a microsecond. For each event of `a`: the events of `b`
    that begin before it ends, minus those that end before it begins."""
    a, b = ([x for x in spans if x[2] - x[1] > 1] for spans in (a, b))
    begins, ends = sorted(y[1] for y in b), sorted(y[2] for y in b)
    return sum(bisect.bisect_left(begins, x[2] - 1) - bisect.bisect_right(ends, x[1] + 1) for x in a)


def own_rank(work, talk):
    return sum(meet([w for w in work if w[0] == rank], [t for t in talk if t[0] == rank]) for rank in (0, 1))


def check(name, trace, several):
    """Checks a trace: no rank computes during its own communication. With several requests, both ranks compute at the same time."""
    work, talk = spans(trace, "Node", "compute"), spans(trace, "communication")
    case(name + ": there are both", len(work) >= 17 and len(talk) >= 2, (len(work), len(talk)))
    case(name + ": a rank computes nothing during its transfers", own_rank(work, talk) == 0, own_rank(work, talk))
    if several:
        both = meet([w for w in work if w[0] == 0], [w for w in work if w[0] == 1])
        case(name + ": stages compute at the same time", both > 0, both)


def main():
    with tempfile.TemporaryDirectory(prefix="tessera-overlap-") as d:
        make(d + "/m.onnx")
        tessera("partition", d + "/m.onnx", "-o", d + "/parts")
        for transport in ("threads", "shm"):
            tessera("run", d + "/parts", "--transport", transport, "--trace", d + "/run.json")
            check("run, " + transport, d + "/run.json", False)
        tessera("bench", d + "/parts", "--transport", "shm", "--seconds", 1, "--in-flight", 3, "--trace", d + "/bench.json")
        check("bench, 3 in flight", d + "/bench.json", True)
        tessera("simulate", d + "/parts", "--devices", 2, "--requests", 4, "--trace", d + "/simulated.json")
        check("simulate, 4 requests", d + "/simulated.json", True)
    harness.finish()


if __name__ == "__main__":
    main()
