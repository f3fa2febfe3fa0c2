# SPDX-License-Identifier: Apache-2.0
"""Tests the document of `plan --plan`: every node has its input and output shardings and the reductions that complete its results.

These must agree with the shardings in the planned model and with the collectives of the plan. Replaying the document must give the same
shardings. So a plan must not shard a node that `partition` replicates, such as some Reshapes that merge the batch with another dimension.

usage: plan_document.py TESSERA MODELS"""
import json, os, sys, tempfile
from collections import Counter

import numpy as np
import onnx
from onnx import TensorProto as T, helper as h, numpy_helper as nh

import harness

TESSERA, MODELS = os.path.abspath(sys.argv[1]), sys.argv[2]
REDUCTIONS = ("AllReduce", "ReduceScatter", "Reduce")
case = harness.check


def tessera(*words):
    return harness.call(TESSERA, *words)


def mlp(path, last):
    """Writes two MatMuls and an operator `last`."""
    def info(name, shape):
        return h.make_tensor_value_info(name, T.FLOAT, shape)
    nodes = [h.make_node("MatMul", ["x", "w1"], ["h"], name="up"), h.make_node("Relu", ["h"], ["r"], name="act"),
             h.make_node("MatMul", ["r", "w2"], ["d"], name="down"), h.make_node(last, ["d"], ["y"], name="last")]
    weights = [nh.from_array(np.ones(s, "f4"), k) for k, s in (("w1", (512, 2048)), ("w2", (2048, 512)))]
    g = h.make_graph(nodes, "g", [info("x", [64, 512])], [info("y", [64, 512])], weights)
    onnx.save(h.make_model(g, ir_version=10, opset_imports=[h.make_opsetid("", 18)]), path)
    return path


def merged(path, seq):
    """Writes two products of [batch, seq, 64] with its transpose, which are best sharded along the batch. Between them a MatMul
    reads [batch * seq, 64]: a Reshape merges two dimensions before it, and another one splits them again."""
    def info(name, shape):
        return h.make_tensor_value_info(name, T.FLOAT, shape)
    def product(x, y):
        return [
            h.make_node("Transpose", [x], [y + "t"], name=y + "t", perm=[0, 2, 1]),
            h.make_node("MatMul", [x, y + "t"], [y + "s"], name=y + "s"),
            h.make_node("Softmax", [y + "s"], [y + "p"], name=y + "p"),
            h.make_node("MatMul", [y + "p", x], [y], name=y)
        ]

    nodes = product("x", "a") + [
        h.make_node("Shape", ["x"], ["s"], name="shape"),
        h.make_node("Reshape", ["a", "rows"], ["m"], name="merge"),
        h.make_node("MatMul", ["m", "w"], ["d"], name="up"),
        h.make_node("Reshape", ["d", "s"], ["b"], name="split")
    ] + product("b", "y")
    weights = [nh.from_array(np.ones((64, 64), "f4"), "w"), nh.from_array(np.array([-1, 64]), "rows")]
    g = h.make_graph(nodes, "g", [info("x", ["batch", seq, 64])], [info("y", ["batch", seq, 64])], weights)
    onnx.save(h.make_model(g, ir_version=10, opset_imports=[h.make_opsetid("", 18)]), path)
    return path


def shardings_of(model):
    return json.loads(harness.good(TESSERA, "info", model, "--json"))["shardings"]


def check(name, d, model, *words, only=None, reshards=None):
    planned, document = d + "/planned.onnx", d + "/plan.json"
    rc, out, err = tessera("plan", model, *words, "--plan", document, "-o", planned)
    case(name + ": plan", rc == 0, err)
    if rc:
        return
    plan = json.load(open(document))
    case(name + ": no other communication", reshards is None or plan["collectives"] == {"Reshard": reshards}, plan["collectives"])
    found = Counter(r["collective"] for n in plan["nodes"] for r in n["reductions"])
    want = {k: v for k, v in plan["collectives"].items() if k in REDUCTIONS}
    print("#", name, dict(found))
    case(name + ": as many reductions as the plan has", dict(found) == want and (only is None or only in found), (found, want))
    for n in plan["nodes"]:
        for r in n["reductions"]:
            ok = r["value"] in [o["value"] for o in n["outputs"]] and r["function"] in ("sum", "max", "min", "prod") and all(
                len(g) > 1 for g in r["groups"])
            case("%s: %s of %s" % (name, r["collective"], n["name"]), ok, r)
    wrong, shardings = [], shardings_of(planned)
    for s in shardings:
        node = next(n for n in plan["nodes"] if n["name"] == s["node"])
        has = {t["value"]: t["sharding"] for t in node["inputs"] + node["outputs"]}
        if has.get(s["value"]) != s["sharding"]:
            wrong.append((s, has))
    case(name + ": shardings as in the model", shardings and not wrong, wrong[:2])
    rc, out, err = tessera("annotate", model, "--script", document, "-o", d + "/replayed.onnx")
    case(name + ": replay", rc == 0, err)
    case(name + ": replay has the plan's shardings", shardings_of(d + "/replayed.onnx") == shardings)


with tempfile.TemporaryDirectory(prefix="tessera-plan-document-") as folder:
    check("mlp", folder, mlp(folder + "/m.onnx", "Relu"), "--devices", 4, only="ReduceScatter")
    check("mlp, less memory", folder, folder + "/m.onnx", "--devices", 4, "--memory", "3500KiB")
    check("softmax", folder, mlp(folder + "/s.onnx", "Softmax"), "--devices", 2, "--memory", "6MiB")
    for model, dims in (("llama_tiny", ("batch=1", "seq=8")), ("bert_tiny", ("batch=1", "seq=8")), ("vit_tiny", ())):
        words = [w for dim in dims for w in ("--dim", dim)]
        check(model, folder, "%s/%s/model.onnx" % (MODELS, model), "--devices", 3, *words)
    check("gpt2_tiny", folder, MODELS + "/gpt2_tiny/model.onnx", "--devices", 2, "--dim", "batch=6", "--dim", "seq=24")
    for n in (2, 3, 4):
        check("merged batch on %d" % n, folder, merged(folder + "/b.onnx", 256), "--devices", n, "--dim", "batch=12", reshards=1)
        check("merged batch and sequence on %d" % n, folder, merged(folder + "/t.onnx", "seq"), "--devices", n, "--dim", "batch=12",
              "--dim", "seq=256")
    check("stages", folder, MODELS + "/bert_tiny/model.onnx", "--devices", 4, "--stages", 2, "--dim", "batch=4", "--dim", "seq=64")
harness.finish()
