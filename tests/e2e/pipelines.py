# SPDX-License-Identifier: Apache-2.0
"""Hand-made pipelines: which devices a stage has.

usage: pipelines.py TESSERA"""
import glob, json, os, subprocess, sys, tempfile, traceback

import numpy as np
import onnx
from onnx import TensorProto as T, helper as h

TESSERA = sys.argv[1]


def tessera(*args):
    p = subprocess.run([TESSERA, *map(str, args)], capture_output=True, text=True, errors="replace", timeout=120)
    return p.returncode, p.stdout, p.stderr


def good(*args):
    rc, out, err = tessera(*args)
    assert rc == 0, (args, rc, out, err)
    return out


def line(path, operators):
    """x through one operator after the other; nodes are named n0, n1 ..."""
    nodes = [h.make_node(op, ["h%d" % k], ["h%d" % (k + 1)], name="n%d" % k) for k, op in enumerate(operators)]
    info = lambda name: h.make_tensor_value_info(name, T.FLOAT, [4, 8])
    graph = h.make_graph(nodes, "g", [info("h0")], [info("h%d" % len(operators))])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10), path)
    return path


def ranks_with(parts, operator):
    """The ranks whose file has a node of this operator."""
    files = sorted(glob.glob(parts + "/rank*.onnx"))
    return [r for r in range(len(files)) if any(n.op_type == operator for n in onnx.load("%s/rank%d.onnx" % (parts, r)).graph.node)]


OPERATORS = ["Relu", "Neg", "Exp", "Tanh", "Sqrt"]


def devices_of_stages(d):
    """(devices, stage of each node, devices that a spec names at a node, devices of each node that follow)"""
    table = [(3, [0, 2], {}, [[0], [2]]),                       # gaps count where the highest number is the last device
             (3, [0, 1, 2], {}, [[0], [1], [2]]),
             (4, [0, 1, 2], {1: [1, 2]}, [[0], [1, 2], [3]]),   # the others get what is free, in order
             (6, [0, 1, 2], {0: [5]}, [[5], [0, 1], [2, 3, 4]]),
             (5, [3, 7], {}, [[0, 1], [2, 3, 4]]),              # equal runs
             (3, [0, 1, 2, 3, 4], {0: [0]}, [[0], [1], [2], [2], [2]]),  # more stages than free devices: they share the last
             (2, [0, 1], {0: [0, 1]}, [[0, 1], [0, 1]])]        # none is free: all of them
    for devices, stages, named, want in table:
        words = ["--config", "c:%d" % devices]
        for k, stage in enumerate(stages):
            words += ["--stage", "n%d=%d" % (k, stage)]
        for k, mine in named.items():
            words += ["--shard", "n%d:h%d={1,%d:%s}" % (k, k, len(mine), ",".join(map(str, mine)))]
        good("annotate", line(d + "/m.onnx", OPERATORS[: len(stages)]), *words, "-o", d + "/s.onnx")
        good("partition", d + "/s.onnx", "-o", d + "/parts", "--force")
        got = [ranks_with(d + "/parts", op) for op in OPERATORS[: len(stages)]]
        ok = all(set(g) <= set(w) and g for g, w in zip(got, want)) and all(got[k] == want[k] for k in named)
        assert ok, (devices, stages, named, got, want)
        assert json.loads(good("verify", d + "/s.onnx", "--json"))["ok"]


CASES = [devices_of_stages]


def main():
    failed = 0
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="tessera-pipelines-") as d:
            try:
                case(d)
                print("ok", case.__name__)
            except Exception:
                failed += 1
                print("not ok", case.__name__)
                traceback.print_exc(file=sys.stdout)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
