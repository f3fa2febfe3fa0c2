# SPDX-License-Identifier: Apache-2.0
"""Tests weights that ranks store sharded and convert in each run, for plans that do not fit otherwise: `plan`, `partition`, `simulate`,
`verify` and a replay of the document must agree, and ranks must use less memory.

usage: gathered.py TESSERA"""
import json, os, sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness

TESSERA = os.path.abspath(sys.argv[1])
LAYERS, WIDTH, ROWS = 16, 512, 4096
STORED = "ai.tessera.stored"


def tessera(*words):
    code, out, err = harness.call(TESSERA, *words)
    assert code == 0, (words, code, err)
    return json.loads(out) if "--json" in words else out


def products(path, weights):
    """Writes products, of which number i has the weight `weights[i]`."""
    rng, x, nodes = np.random.default_rng(0), "x", []
    for i, w in enumerate(weights):
        nodes.append(helper.make_node("MatMul", [x, "w%d" % w], ["m%d" % i], name="product%d" % i))
        nodes.append(helper.make_node("Relu", ["m%d" % i], ["r%d" % i]))
        x = "r%d" % i
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [ROWS, WIDTH]) for v in ("x", x)]
    arrays = [
        numpy_helper.from_array(rng.standard_normal((WIDTH, WIDTH), dtype="f4") / np.float32(np.sqrt(WIDTH)), "w%d" % w)
        for w in sorted(set(weights))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], arrays)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def stored(path):
    return {p.key: p.value for p in onnx.load(path, load_external_data=False).metadata_props}.get(STORED, "")


def agree(planned, plan):
    """The simulation of the planned model has the time, the memory and the collectives of the plan."""
    x = tessera("simulate", planned, "--json")
    assert abs(x["seconds"] * 1e3 / plan["milliseconds"] - 1) < 1e-6, (x["seconds"], plan["milliseconds"])
    for t, bytes_ in zip(x["timeline"], plan["memory"]):
        assert abs(t["memory"] - bytes_) <= 64, (t["memory"], plan["memory"])
    counts = tessera("partition", planned, "--dry-run", "--json")["collectives"]
    assert counts == plan["collectives"], (counts, plan["collectives"])


def plans_fit_with_gathered_weights(d):
    """Each of 2 devices needs all 16 weights of 1 MiB. With less memory some are gathered, and with 8 MiB less nothing fits."""
    model = products(d + "/model.onnx", range(LAYERS))
    free = tessera("plan", model, "--devices", "2", "-o", d + "/free.onnx", "--json")
    assert not stored(d + "/free.onnx") and free["gathered_weights"] == 0, free
    memory = []
    for less in (3 << 20, 6 << 20):
        limit, planned, document = max(free["memory"]) - less, d + "/planned.onnx", d + "/plan.json"
        plan = tessera("plan", model, "--devices", "2", "--memory", str(limit), "-o", planned, "--plan", document, "--json")
        lines = stored(planned).split("\n")
        assert max(plan["memory"]) <= limit, plan
        assert plan["gathered_weights"] == len(lines) >= 3 and all(line.endswith("={2,1:0,1}") for line in lines), (lines, plan)
        agree(planned, plan)
        tessera("verify", planned)
        tessera("annotate", model, "--script", document, "-o", d + "/again.onnx")
        assert sorted(stored(d + "/again.onnx").split("\n")) == sorted(lines), stored(d + "/again.onnx")
        memory.append(max(tessera("bench", planned, "--transport", "shm", "--seconds", "1", "--json")["memory"]))
    assert abs(memory[0] - memory[1] - (3 << 20)) < 1 << 20, memory  # as predicted
    code, out, _ = harness.call(TESSERA, "plan", model, "--devices", "2", "--memory", str(max(free["memory"]) - (9 << 20)), "--json")
    assert code == 4 and json.loads(out)["needs_bytes"] <= max(free["memory"]) - (6 << 20), out


def readers_share_a_gather(d):
    model = products(d + "/shared.onnx", [0, 1, 1, 2, 3, 3, 4, 5])
    free = tessera("plan", model, "--devices", "2", "-o", d + "/free.onnx", "--json")
    limit = max(free["memory"]) - (5 << 19)
    plan = tessera("plan", model, "--devices", "2", "--memory", str(limit), "-o", d + "/planned.onnx", "--json")
    assert plan["gathered_weights"] == len(stored(d + "/planned.onnx").split("\n")) >= 3, plan
    agree(d + "/planned.onnx", plan)
    tessera("verify", d + "/planned.onnx")


def conversions_wait_for_results(d):
    """Nothing but its third input keeps a gather from running before all others, with the memory of all weights."""
    model, parts = products(d + "/model.onnx", range(4)), d + "/parts"
    edits = ["--config", "two:2"]
    for i in range(4):
        edits += ["--shard", "product%d:m%d={2,1:0,1}" % (i, i), "--store", "product%d:w%d={2,1:0,1}" % (i, i)]
    tessera("annotate", model, *edits, "-o", d + "/stored.onnx")
    tessera("partition", d + "/stored.onnx", "-o", parts)
    for rank in range(2):
        graph = onnx.load(parts + "/rank%d.onnx" % rank, load_external_data=False).graph
        gathers = [n for n in graph.node if n.op_type == "AllGather"]
        waits = [n.input[2:] for n in gathers]
        assert len(gathers) == 4 and all(w and w[0].startswith("r%d" % i) for i, w in enumerate(waits[1:])), waits
        sizes = {t.name: list(t.dims) for t in graph.initializer if t.name.startswith("w")}
        assert sizes == {"w%d" % i: [WIDTH // 2, WIDTH] for i in range(4)}, sizes
    tessera("verify", d + "/stored.onnx")
    tessera("infer", d + "/stored.onnx", "-o", d + "/inferred.onnx")
    assert stored(d + "/inferred.onnx") == stored(d + "/stored.onnx")


def layouts_of_all_kinds(d):
    """A weight may be stored in any layout of its devices: the same conversions are written as for other values."""
    model = products(d + "/model.onnx", range(4))
    kinds = ["{1,2:0,1}", "{2,1:1,0}", "{1:0}", "{2,1:0,1}"]
    reads = ["{1:0,1}", "{2,1:0,1}", "{1:0,1}", "{1,2:0,1}"]
    edits = ["--config", "two:2"]
    for i in range(4):
        edits += ["--shard", "product%d:w%d=%s" % (i, i, reads[i]), "--store", "product%d:w%d=%s" % (i, i, kinds[i])]
    tessera("annotate", model, *edits, "-o", d + "/stored.onnx")
    tessera("verify", d + "/stored.onnx")
    counts = tessera("partition", d + "/stored.onnx", "--dry-run", "--json")["collectives"]
    assert counts.get("AllToAll") and counts.get("Broadcast"), counts


harness.run([plans_fit_with_gathered_weights, readers_share_a_gather, conversions_wait_for_results, layouts_of_all_kinds])
harness.finish()
