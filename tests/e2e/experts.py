# SPDX-License-Identifier: Apache-2.0
"""Tests mixtures of experts with experts on different devices, as MoE operators and as the plain nodes that exporters write.

Results must equal the unsharded run of ONNX Runtime, for every variant that its CPU kernels support. Variants without a CPU kernel (a third
layer, swiglu_fusion 2, weights of 4-bit floats) are planned and partitioned only.

usage: experts.py TESSERA [on=DEVICE] [all]     on=CUDA:0: every rank there, and only the cases that compare with the unsharded run
all: every variant on 2, 3 and 5 devices, not on one of these"""
import json, os, sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness

TESSERA = sys.argv[1]
DEVICE = next((w[3:] for w in sys.argv[2:] if w.startswith("on=")), "")
TOKENS, EXPERTS = 7, 5
HIDDEN, INNER = (64, 128) if DEVICE else (32, 64)  # ONNX Runtime's kernels for GPUs need multiples of 64


def tessera(*words):
    rc, out, err = harness.call(TESSERA, *map(str, words), "--json")
    return rc, json.loads(out) if out.startswith("{") else {}, err


def build(path, operator, bits=0, block=0, halves=1, points=False, bias=False, third=False, router_weights=False, batches=False, half=False,
          tokens=TOKENS, **attributes):
    """Writes one node with 5 experts of 32 x 64 and returns the names of its weights. Token 1 has equal router outputs for all experts."""
    draw = np.random.default_rng(len(path) + bits + block + halves)
    kind = np.float16 if half else np.float32
    floats = lambda *shape: draw.uniform(-1, 1, shape).astype(kind)
    packed = lambda *shape: draw.integers(0, 256, (*shape[:-1], shape[-1] * bits // 8)).astype(np.uint8)
    scales = lambda *shape: (draw.uniform(0.5, 1, (*shape[:-1], shape[-1] // block) if block else shape[:-1]) / 2 ** bits).astype(kind)
    zeros = lambda *shape: draw.integers(0, 256, (*shape[:-1], shape[-1] // block * bits // 8)).astype(np.uint8)
    shapes = (EXPERTS, halves * INNER, HIDDEN), (EXPERTS, HIDDEN, INNER), (EXPERTS, INNER, HIDDEN)
    if operator == "MoE":
        first, second = ([floats(*s) / 4, floats(*s[:-1]) if bias else None] for s in shapes[:2])
        inputs = first + second + ([floats(*shapes[2]) / 4] if third else [])
    else:
        first, second = ([packed(*s), scales(*s), floats(*s[:-1]) if bias else None] for s in shapes[:2])
        inputs = first + second + [None] * 3 + ([zeros(*s) for s in shapes[:2]] if points else [None] * 2) + [None]
    names = ["w%d" % i if w is not None else "" for i, w in enumerate(inputs)]
    row = [2, "seq", HIDDEN] if batches else ["tokens" if tokens is None else tokens, HIDDEN]
    rows = ["2*seq" if batches else row[0], EXPERTS]
    float_type = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    given = [("x", row), ("r", rows)] + ([("s", rows)] if router_weights else [])
    node = helper.make_node(operator, ["x", "r", *names] + (["s"] if router_weights else []), ["y"], "moe", domain="com.microsoft",
                            **attributes)
    if bits:
        node.attribute.append(helper.make_attribute("expert_weight_bits", bits))
    if block:
        node.attribute.append(helper.make_attribute("block_size", block))
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info(n, float_type, s) for n, s in given],
                              [helper.make_tensor_value_info("y", float_type, row)],
                              [numpy_helper.from_array(w, n) for n, w in zip(names, inputs) if n])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17),
                                                      helper.make_opsetid("com.microsoft", 1)], ir_version=10), path)
    n = 2 * TOKENS if batches else tokens or TOKENS
    router = draw.standard_normal((n, EXPERTS)).astype(kind)
    router[1 % n] = 0
    values = {"x": floats(*([2, TOKENS] if batches else [n]), HIDDEN), "r": router}
    if router_weights:
        values["s"] = draw.uniform(0, 1, (n, EXPERTS)).astype(kind)
    np.savez(path + ".npz", **values)
    return [n for n in names if n]


SWIGLU = dict(activation_type="swiglu", swiglu_fusion=1, halves=2, activation_alpha=1.702, activation_beta=1.0, swiglu_limit=0.7)
RUN = {
    "relu": dict(operator="MoE", k=2, activation_type="relu"),
    "one_expert": dict(operator="MoE", k=1, activation_type="gelu", bias=True),
    "four_experts": dict(operator="MoE", k=4, activation_type="silu", bias=True, normalize_routing_weights=1),
    "all_experts": dict(operator="MoE", k=5, activation_type="identity"),
    "batches": dict(operator="MoE", k=2, activation_type="silu", bias=True, batches=True),
    "swiglu": dict(operator="MoE", k=2, bias=True, **SWIGLU),
    "sparse_mixer": dict(operator="MoE", k=2, activation_type="silu", use_sparse_mixer=1),
    "float16": dict(operator="MoE", k=3, activation_type="silu", bias=True, half=True),
    "one_token": dict(operator="MoE", k=1, activation_type="relu", tokens=1),
    "open_tokens": dict(operator="MoE", k=2, activation_type="relu", tokens=None),
    "packed4": dict(operator="QMoE", bits=4, k=2, activation_type="relu"),
    "packed8": dict(operator="QMoE", bits=8, k=2, activation_type="silu", bias=True),
    "packed2": dict(operator="QMoE", bits=2, k=2, activation_type="relu"),
    "packed4_blocks": dict(operator="QMoE", bits=4, block=16, k=3, activation_type="silu", normalize_routing_weights=1),
    "packed8_blocks": dict(operator="QMoE", bits=8, block=32, k=1, activation_type="gelu"),
    "packed4_points": dict(operator="QMoE", bits=4, block=16, points=True, k=2, activation_type="relu"),
    "packed4_swiglu": dict(operator="QMoE", bits=4, block=16, k=2, bias=True, **SWIGLU),
    "packed8_swiglu": dict(operator="QMoE", bits=8, k=4, bias=True, normalize_routing_weights=1, **SWIGLU),
    "packed_batches": dict(operator="QMoE", bits=4, k=2, activation_type="relu", batches=True),
    "packed_float16": dict(operator="QMoE", bits=4, k=2, activation_type="relu", bias=True, half=True),
    "router_weights": dict(operator="QMoE", bits=4, k=2, activation_type="relu", router_weights=True),
    "router_weights_normalized": dict(operator="QMoE", bits=8, k=3, activation_type="relu", router_weights=True,
                                      normalize_routing_weights=1),
}
PLANNED = {
    "third_layer": dict(operator="MoE", k=2, activation_type="silu", third=True),
    "halves_apart": dict(operator="MoE", k=2, bias=True, **dict(SWIGLU, swiglu_fusion=2)),
    "packed_halves_apart": dict(operator="QMoE", bits=4, block=16, k=2, **dict(SWIGLU, swiglu_fusion=2)),
    "float4": dict(operator="QMoE", bits=4, block=32, k=2, activation_type="silu", quant_type="fp4"),
    "prepacked": dict(operator="QMoE", bits=4, k=2, activation_type="silu", weights_prepacked=1),
}


def sharded(d, weights, n, device=DEVICE):
    """Returns the model with every weight sharded by expert."""
    spec = lambda w: "{%s:%s}" % (",".join([str(n)] + ["1"] * w), ",".join(map(str, range(n))))
    rank = {t.name: len(t.dims) for t in onnx.load(d + "/m.onnx").graph.initializer}
    edits = [word for w in weights for word in ("--shard", "moe:%s=%s" % (w, spec(rank[w] - 1)))]
    rc, _, err = tessera("annotate", d + "/m.onnx", "--config", "c:%d" % n + ("=" + ",".join([device] * n) if device else ""), *edits, "-o",
                         d + "/c.onnx")
    assert rc == 0, err
    return d + "/c.onnx"


def verified(doc, rc, err, name):
    assert rc == 0 and doc["ok"] and not doc["replicated"], (name, doc.get("outputs"), doc.get("replicated"), err)


def equal_to_the_unsharded_run(d, name):
    weights = build(d + "/m.onnx", **RUN[name])
    for n in harness.sample((2, 3, 5), 1, sorted(RUN).index(name)):
        rc, doc, err = tessera("verify", sharded(d, weights, n), "--config", "c", "--inputs", d + "/m.onnx.npz", "--threads", 1)
        if DEVICE and "verify-reference" in err:
            return "%s does not run the unsharded model" % DEVICE
        verified(doc, rc, err, (name, n))
        assert doc["cut_nodes"] == 1, doc


def some_token_on_gpus(d, name):
    """The CUDA kernel refuses no tokens: a rank that is meant for a GPU runs its experts on zeros instead. Here the ranks run on CPUs."""
    variant = RUN[name]
    model = sharded(d, build(d + "/m.onnx", **variant), 5, "CUDA:0")
    rc, doc, err = tessera("verify", model, "--config", "c", "--inputs", d + "/m.onnx.npz", "--threads", 1, "--map-device", "CUDA:0=CPU")
    verified(doc, rc, err, name)
    rc, doc, err = tessera("partition", model, "--config", "c", "-o", d + "/parts")
    nodes = onnx.load(d + "/parts/rank3.onnx", load_external_data=False).graph.node
    _, local = [node for node in nodes if node.op_type == variant["operator"]]
    assert next(node.op_type for node in nodes if local.input[0] in node.output) == "Where", [node.op_type for node in nodes]


def weights_of_unknown_sizes(d, name):
    """Only the first weight is a constant with sizes. The others are inputs of the model, and must be sharded with it."""
    first, *others = build(d + "/m.onnx", **RUN[name])
    model = onnx.load(d + "/m.onnx")
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    keep = [t for t in model.graph.initializer if t.name == first]
    del model.graph.initializer[:]
    model.graph.initializer.extend(keep)
    for w in others:
        sizes = ["%s_%d" % (w, axis) for axis in range(arrays[w].ndim)]
        model.graph.input.append(helper.make_tensor_value_info(w, helper.np_dtype_to_tensor_dtype(arrays[w].dtype), sizes))
    onnx.save(model, d + "/m.onnx")
    np.savez(d + "/m.onnx.npz", **np.load(d + "/m.onnx.npz"), **{w: arrays[w] for w in others})
    rc, doc, err = tessera("verify", sharded(d, [first], 2), "--config", "c", "--inputs", d + "/m.onnx.npz", "--threads", 1)
    verified(doc, rc, err, name)


def random_shardings(d, name):
    """Random shardings of experts together with tokens and the inner size."""
    build(d + "/m.onnx", **RUN[name])
    for n in harness.sample((2, 4), 1, sorted(RUN).index(name)):
        rc, doc, err = tessera("verify", d + "/m.onnx", "--devices", n, "--random", 3, "--seed", len(name), "--inputs", d + "/m.onnx.npz",
                               "--threads", 1)
        assert rc == 0, (name, n, doc, err)


def candidate(d, name):
    """The planner must offer to shard the experts, each rank must have 1/5 of them, and the local node must use fewer experts per token."""
    variant = {**RUN, **PLANNED}[name]
    weights = build(d + "/m.onnx", **variant)
    rc, doc, err = tessera("plan", d + "/m.onnx", "--devices", EXPERTS, "--explain", "moe",
                           *(["--dim", "tokens=64"] if variant.get("tokens", 0) is None else []))
    assert rc == 0 and "e/%d" % EXPERTS in [c["name"] for c in doc["choices"]], (doc, err)
    rc, doc, err = tessera("partition", sharded(d, weights, EXPERTS), "--config", "c", "-o", d + "/parts")
    assert rc == 0 and not doc.get("replicated"), (doc, err)
    graph = onnx.load(d + "/parts/rank3.onnx", load_external_data=False).graph
    tiny, local = [n for n in graph.node if n.op_type == variant["operator"]]
    assert [a.i for a in local.attribute if a.name == "k"] == [1] and [a.i
                                                                       for a in tiny.attribute if a.name == "k"] == [variant["k"]], (tiny,
                                                                                                                                     local)
    first = next(t for t in graph.initializer if t.name == local.input[2])
    assert first.dims[0] == 1, first.dims


def memory_spreads_experts(d, name):
    """With memory for a third of the weights, each device gets some experts or a part of each. The plan must be right."""
    build(d + "/m.onnx", **RUN[name])
    size = os.path.getsize(d + "/m.onnx")
    rc, doc, err = tessera("plan", d + "/m.onnx", "--devices", EXPERTS, "--memory", size // 3, "-o", d + "/p.onnx")
    assert rc == 0 and max(doc["memory"]) <= size // 3, (doc, err)
    assert any(x["name"].startswith("experts spread") for x in doc["compared"]), doc["compared"]
    rc, doc, err = tessera("verify", d + "/p.onnx", "--inputs", d + "/m.onnx.npz", "--threads", 1)
    verified(doc, rc, err, name)


def exported(path, form, inner):
    """Writes two of 8 experts per token in plain ONNX, as exporters do. gather, gather_nd: each token gathers the weights of its experts.
    masks: every expert runs on all tokens, and a one-hot mask selects its results. stacked: the same with products of stacked matrices."""
    e, m, k = 8, 16, 2
    draw = np.random.default_rng(5)
    floats = lambda *shape: draw.uniform(-0.5, 0.5, shape).astype(np.float32)
    constants = {
        "gate": floats(m, e), "k": np.array([k]), "first": np.array([1]), "last": np.array([2]), "zero": np.array([0]),
        "depth": np.array(e), "bits": np.array([0, 1],
                                               np.float32), "flat": np.array([-1]), "rows": np.array([-1, m]), "pairs": np.array([-1, k, m])
    }
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "gate"], ["logits"]),
        node("Softmax", ["logits"], ["shares"]),
        node("TopK", ["shares", "k"], ["best", "which"])
    ]
    if form in ("gather", "gather_nd"):
        constants.update(w1=floats(e, inner, m), w2=floats(e, m, inner), copies=np.array([1, k, 1]))
        nodes += [
            node("Reshape", ["which", "flat"], ["ids"]),
            node("Unsqueeze", ["x", "first"], ["x3"]),
            node("Expand", ["x3", "copies"], ["xk"]),
            node("Reshape", ["xk", "rows"], ["xs"]),
            node("Unsqueeze", ["xs", "last"], ["column"])
        ]
        if form == "gather_nd":
            nodes += [
                node("Unsqueeze", ["ids", "first"], ["at"]),
                node("GatherND", ["w1", "at"], ["g1"]),
                node("GatherND", ["w2", "at"], ["g2"])
            ]
        else:
            nodes += [node("Gather", ["w1", "ids"], ["g1"]), node("Gather", ["w2", "ids"], ["g2"])]
        nodes += [
            node("MatMul", ["g1", "column"], ["h"]),
            node("Relu", ["h"], ["r"]),
            node("MatMul", ["g2", "r"], ["o"]),
            node("Reshape", ["o", "pairs"], ["o3"]),
            node("Unsqueeze", ["best", "last"], ["b3"]),
            node("Mul", ["o3", "b3"], ["weighted"]),
            node("ReduceSum", ["weighted", "first"], ["y"], keepdims=0)
        ]
    else:
        nodes += [
            node("OneHot", ["which", "depth", "bits"], ["hot"]),
            node("Unsqueeze", ["best", "last"], ["b3"]),
            node("Mul", ["hot", "b3"], ["hotter"]),
            node("ReduceSum", ["hotter", "first"], ["dense"], keepdims=0)
        ]
        if form == "stacked":
            constants.update(w1=floats(e, m, inner), w2=floats(e, inner, m))
            nodes += [
                node("Unsqueeze", ["x", "zero"], ["x3"]),
                node("MatMul", ["x3", "w1"], ["h"]),
                node("Relu", ["h"], ["r"]),
                node("MatMul", ["r", "w2"], ["o"]),
                node("Transpose", ["dense"], ["by_expert"], perm=[1, 0]),
                node("Unsqueeze", ["by_expert", "last"], ["d3"]),
                node("Mul", ["o", "d3"], ["weighted"]),
                node("ReduceSum", ["weighted", "zero"], ["y"], keepdims=0)
            ]
        else:
            for i in range(e):
                constants.update({"w1_%d" % i: floats(m, inner), "w2_%d" % i: floats(inner, m), "at%d" % i: np.array([i])})
                nodes += [
                    node("MatMul", ["x", "w1_%d" % i], ["h%d" % i]),
                    node("Relu", ["h%d" % i], ["r%d" % i]),
                    node("MatMul", ["r%d" % i, "w2_%d" % i], ["o%d" % i]),
                    node("Gather", ["dense", "at%d" % i], ["d%d" % i], axis=1),
                    node("Mul", ["o%d" % i, "d%d" % i], ["m%d" % i])
                ]
            nodes += [node("Sum", ["m%d" % i for i in range(e)], ["y"])]
    used = {n for x in nodes for n in x.input}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", m])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens", m])],
                              [numpy_helper.from_array(c, n) for n, c in constants.items() if n in used])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    np.savez(path + ".npz", x=floats(6, m))
    return 2 * e * m * inner * 4  # bytes of the experts


def exported_experts_are_spread(d, form):
    """Plans for one token on 4 devices, each with memory for 40 % of the experts. An inner size of 509 has no equal parts, but experts
    have."""

    for inner in (512, 509):
        limit = exported(d + "/m.onnx", form, inner) * 4 // 10
        rc, doc, err = tessera("plan", d + "/m.onnx", "--devices", 4, "--dim", "tokens=1", "--memory", limit, "-o", d + "/p.onnx")
        assert rc == 0 and max(doc["memory"]) <= limit, (form, inner, limit, doc.get("memory"), err)
        rc, doc, err = tessera("verify", d + "/p.onnx", "--inputs", d + "/m.onnx.npz", "--threads", 1)
        assert rc == 0 and doc["ok"], (form, inner, doc.get("outputs"), err)
        rc, doc, err = tessera("partition", d + "/p.onnx", "-o", d + "/parts%d" % inner)
        assert rc == 0 and max(doc["weight_bytes"]) + doc["common_bytes"] <= limit, (form, inner, doc, err)


CASES = [(equal_to_the_unsharded_run, sorted(RUN)), (some_token_on_gpus, ["one_token", "float16", "packed4"]),
         (weights_of_unknown_sizes, ["relu", "packed4", "packed4_blocks", "packed4_points", "packed8_swiglu"]),
         (random_shardings, sorted(RUN)), (candidate, sorted(PLANNED) + ["swiglu", "packed4_swiglu", "router_weights"]),
         (memory_spreads_experts, ["swiglu", "packed8_swiglu"]), (exported_experts_are_spread, ["gather", "gather_nd", "masks", "stacked"])]
if DEVICE:
    CASES = CASES[:1]
harness.run([("%s (%s)" % (function.__name__, name), lambda d, function=function, name=name: function(d, name)) for function, names in CASES
             for name in names])
harness.finish()
