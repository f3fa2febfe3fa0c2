# SPDX-License-Identifier: Apache-2.0
"""Tests for which sizes models are planned, run, verified and measured: a partition keeps those of its plan, verify makes the plan of
`plan`, static partitions have numbers only, and bench compares with the unsharded model.

usage: plan_sizes.py TESSERA MODELS"""
import json
import os
import re
import sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper as h, numpy_helper as nh

import harness

TESSERA, MODELS = os.path.abspath(sys.argv[1]), sys.argv[2]
BERT = os.path.join(MODELS, "bert_tiny", "model.onnx")
SIZES = ["--dim", "batch=2", "--dim", "seq=9"]


def call(*words):
    return harness.call(TESSERA, *words)


def good(*words):
    code, out, err = call(*words)
    assert code == 0, (words, code, out, err)
    return out, err


def document(*words):
    return json.loads(good(*words, "--json")[0])


def partition(d, *words, plan=SIZES):
    good("plan", BERT, "--devices", 2, *plan, "-o", d + "/planned.onnx")
    good("partition", d + "/planned.onnx", "-o", d + "/parts", "--force", *words)
    return d + "/parts"


def manifest(folder):
    with open(folder + "/manifest.json", encoding="utf-8") as f:
        return json.load(f)


def collectives(folder):
    return len(manifest(folder)["collectives"])


def partition_uses_its_sizes(d):
    parts = partition(d)
    assert manifest(parts)["dims"] == {"batch": 2, "seq": 9} and "static" not in manifest(parts), manifest(parts)
    for words in (["run"], ["bench", "--seconds", 0.1]):
        found = document(words[0], parts, *words[1:])
        assert found["dims"] == {"batch": 2, "seq": 9} and found["assumed_size"] is None, found
    good("run", parts, "--outputs", d + "/o.npz")
    assert np.load(d + "/o.npz")["logits"].shape[0] == 2


def partition_takes_sizes(d):
    parts = partition(d)
    for words in (["run", "--outputs", d + "/o.npz"], ["bench", "--seconds", 0.1]):
        assert document(words[0], parts, "--dim", "batch=3", *words[1:])["dims"] == {"batch": 3, "seq": 9}
    assert np.load(d + "/o.npz")["logits"].shape[0] == 3
    code, out, err = call("run", parts, "--dim", "btach=3")
    assert code == 2 and "did you mean 'batch'" in err, err
    code, out, err = call("run", parts, "--dim", "batch=3", "--inputs", os.path.join(MODELS, "bert_tiny/test_data_set_0"))
    assert code == 2 and "--dim is for random inputs" in err, err
    good("partition", d + "/planned.onnx", "-o", d + "/other", "--dim", "batch=4")
    assert manifest(d + "/other")["dims"] == {"batch": 4, "seq": 9}


def partition_without_sizes(d):
    """The plan assumes 128, more than the model has positions: the partition runs with the next smaller size."""
    parts = partition(d, plan=[])
    assert "dims" not in manifest(parts)
    found = document("run", parts)
    assert found["dims"] == {"batch": 64, "seq": 64} and found["assumed_size"] == 64, found


def verify_makes_the_plan(d):
    for words in ([], SIZES, ["--dim", "seq=32"]):
        for devices in (2, 3):
            plan, verified = document("plan", BERT, "--devices", devices, *words, "-o",
                                      d + "/p.onnx"), document("verify", BERT, "--devices", devices, *words)
            assert plan["cut_nodes"] == verified["cut_nodes"] > 0 and plan["devices"] == verified["devices"], (words, plan, verified)
            assert verified["ok"] and not verified["forced"], verified
            good("partition", d + "/p.onnx", "-o", d + "/parts", "--force")
            assert collectives(d + "/parts") == sum(verified["collectives"].values()), (collectives(d + "/parts"), verified)
    out, err = good("verify", BERT, "--devices", 2)
    assert re.search(r"assuming 64 \(batch=64, seq=64\)\n\(the plan assumes 128, not sharded; tries", err), err
    assert document("verify", BERT, "--devices", 2)["planned_size"] == 128
    assert document("verify", BERT, "--devices", 2, *SIZES)["planned_size"] is None


def run_makes_the_plan(d):
    plan = document("plan", BERT, "--devices", 2, "-o", d + "/p.onnx")
    assert document("run", BERT, "--devices", 2)["cost"] == plan["cost"]
    assert document("run", BERT, "--devices", 2, *SIZES)["cost"] == document("plan", BERT, "--devices", 2, *SIZES, "-o",
                                                                             d + "/p.onnx")["cost"] != plan["cost"]


def file_inputs_give_sizes(d):
    np.savez(d + "/in.npz", **{name: np.ones((5, 7), "i8") for name in ("input_ids", "attention_mask", "token_type_ids")})
    sizes = ["--dim", "batch=5", "--dim", "seq=7"]
    assert document("run", BERT, "--devices", 2, "--inputs", d + "/in.npz")["cost"] == document("plan", BERT, "--devices", 2, *sizes, "-o",
                                                                                                d + "/p.onnx")["cost"]


def static(d):
    parts = partition(d, "--static")
    assert manifest(parts)["static"] is True and manifest(parts)["dims"] == {"batch": 2, "seq": 9}
    nodes = len(onnx.load(BERT).graph.node)
    for rank in (0, 1):
        model = onnx.load("%s/rank%d.onnx" % (parts, rank), load_external_data=False)
        values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
        assert not [v.name for v in values if any(dim.dim_param for dim in v.type.tensor_type.shape.dim)], values
        kinds = {n.op_type for n in model.graph.node}
        assert len(model.graph.node) < nodes and not {"Shape", "Range", "Max"} & kinds, (len(model.graph.node), kinds)
    assert document("run", parts)["dims"] == {}  # nothing is symbolic
    good("run", parts, *SIZES)
    code, out, err = call("run", parts, "--dim", "batch=3")
    assert code == 2 and "partitioned with --static for batch=2" in err and "--dim batch=3" in err, err
    code, out, err = call("run", parts, "--dim", "rows=3")
    assert code == 2 and "no dimension 'rows'" in err, err
    np.savez(d + "/in.npz", **{name: np.ones((3, 9), "i8") for name in ("input_ids", "attention_mask", "token_type_ids")})
    code, out, err = call("run", parts, "--inputs", d + "/in.npz")
    assert code == 1 and "input-mismatch" in err and "without --static" in err, (code, err)
    good("run", parts, "--outputs", d + "/static.npz")
    good("run", partition(d), "--outputs", d + "/open.npz")
    assert np.allclose(*(np.load(d + "/%s.npz" % k)["logits"] for k in ("static", "open")), atol=1e-5)


def static_needs_all_sizes(d):
    for words, missing in (([], ("batch", "seq")), (["--dim", "seq=9"], ("batch",))):
        code, out, err = call("partition", BERT, "--devices", 2, *words, "--static", "-o", d + "/parts")
        assert code == 1 and "partition-open-size" in err and all("(%s)" % name in err
                                                                  for name in missing) and not os.path.exists(d + "/parts"), (code, err)
    good("partition", BERT, "--devices", 2, *SIZES, "--static", "-o", d + "/parts")
    assert manifest(d + "/parts")["dims"] == {"batch": 2, "seq": 9}


def static_expressions(d):
    """A dimension that is an expression of others gets its number too."""
    w = nh.from_array(np.eye(8, dtype="f4"), "w")
    g = h.make_graph([h.make_node("Concat", ["a", "b"], ["c"], axis=0, name="cat"),
                      h.make_node("MatMul", ["c", "w"], ["y"], name="mm")], "g",
                     [h.make_tensor_value_info("a", T.FLOAT, ["n", 8]),
                      h.make_tensor_value_info("b", T.FLOAT, ["2*n", 8])], [h.make_tensor_value_info("y", T.FLOAT, ["m", 8])], [w])
    onnx.save(h.make_model(g, ir_version=10, opset_imports=[h.make_opsetid("", 18)]), d + "/m.onnx")
    good("annotate", d + "/m.onnx", "--config", "c:2", "--shard", "mm:w={1,2:0,1}", "-o", d + "/cut.onnx")
    good("partition", d + "/cut.onnx", "--dim", "n=4", "--static", "-o", d + "/parts")
    shapes = {v["name"]: v["shape"] for v in manifest(d + "/parts")["inputs"] + manifest(d + "/parts")["outputs"]}
    assert shapes == {"a": [4, 8], "b": [8, 8], "y": [12, 8]}, shapes


def bench_compares(d):
    found = document("bench", BERT, "--devices", 2, *SIZES, "--seconds", 0.3)
    low, high = found["speedup_range"]
    assert 0 < low <= found["speedup"] <= high and found["unsharded_ms"]["p50"] > 0 and found["unsharded_threads"] >= 1 and found[
        "ranks"] == 2, found
    assert found["runs"] > 0 and found["run_ms"]["min"] <= found["run_ms"]["p50"] <= found["run_ms"]["max"], found
    out, err = good("bench", BERT, "--devices", 2, *SIZES, "--seconds", 0.3, "--threads", 1, "--transport", "shm")
    assert re.search(r"^unsharded, 2 threads: [\d.]+ ms \([\d.]+ to [\d.]+ in \d+ runs\); speedup [\d.]+ \([\d.]+ to [\d.]+ in 3 turns\)$",
                     out, re.M), out
    assert "speedup" not in good("bench", BERT, *SIZES, "--seconds", 0.1)[0]
    code, out, err = call("bench", BERT, "--devices", 2, *SIZES, "--seconds", 0.1, "--memory-limit", "700KiB", "--json")
    assert code == 3 or json.loads(out)["unsharded_ms"] is None, (code, out, err)


harness.run([
    partition_uses_its_sizes, partition_takes_sizes, partition_without_sizes, verify_makes_the_plan, run_makes_the_plan,
    file_inputs_give_sizes, static, static_needs_all_sizes, static_expressions, bench_compares
])
harness.finish()
