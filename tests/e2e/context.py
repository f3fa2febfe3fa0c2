# SPDX-License-Identifier: Apache-2.0
"""Tests context parallelism: query rows of an attention are sharded, and every device has all keys and values.

Results must equal the unsharded run of ONNX Runtime: with and without causal masks, for known and unknown lengths, and for fewer rows
than devices.

usage: context.py TESSERA [on=DEVICE] [all]     on=CUDA:0: every rank there, and only the cases that shard rows by hand
all: every variant on 2 and on 3 devices, not on one of these"""
import json, sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness

TESSERA = sys.argv[1]
DEVICE = next((w[3:] for w in sys.argv[2:] if w.startswith("on=")), "")
BATCH, HEADS, GROUP, SIZE = 2, 2, 3, 32  # key heads, query heads for each, elements of a head
draw = np.random.default_rng(3)
floats = lambda *shape: draw.standard_normal(shape).astype(np.float32)


def tessera(*words):
    rc, out, err = harness.call(TESSERA, *map(str, words), "--json")
    return rc, json.loads(out) if out.startswith("{") else {}, err


def save(path, nodes, values, outputs, symbols=(), constants=(), opset=23):
    """Writes a model with these arrays as inputs. symbols: {size: name} of dimensions that get a name instead of a size."""
    info = lambda name, shape, kind: helper.make_tensor_value_info(name, kind, [dict(symbols).get(n, n) for n in shape])
    inputs = [info(n, v.shape, helper.np_dtype_to_tensor_dtype(v.dtype)) for n, v in values.items()]
    graph = helper.make_graph(nodes, "g", inputs, [
        helper.make_tensor_value_info(o, TensorProto.FLOAT16 if values["q"].dtype == np.float16 else TensorProto.FLOAT, None)
        for o in outputs
    ], [numpy_helper.from_array(c, n) for n, c in dict(constants).items()])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset),
                                                helper.make_opsetid("com.microsoft", 1)], ir_version=10), path)
    np.savez(path + ".npz", **values)


def attention(path, rows=7, four=False, mask=None, causal=1, symbolic=False, half=False, opset=23):
    shape = lambda heads: (BATCH, heads, rows, SIZE) if four else (BATCH, rows, heads * SIZE)
    values = {"q": floats(*shape(HEADS * GROUP)), "k": floats(*shape(HEADS)), "v": floats(*shape(HEADS))}
    if mask:
        values["m"] = draw.random(mask) < 0.7 if mask[0] == rows else floats(*mask)
    if half:
        values = {n: v.astype(np.float16) for n, v in values.items()}
    heads = {} if four else dict(q_num_heads=HEADS * GROUP, kv_num_heads=HEADS)
    save(path, [helper.make_node("Attention", list(values), ["y"], "node", is_causal=causal, **heads)], values, ["y"],
         {rows: "seq"} if symbolic else (), opset=opset)
    return "q={1,1,%d,1:%s}" if four else "q={1,%d,1:%s}"


def multi_head(path, rows=7, bias=False, symbolic=False, causal=1):
    values = {n: floats(BATCH, rows, HEADS * SIZE) for n in "qkv"}
    names = list(values) + (["", "", "m"] if bias else [])
    if bias:
        values["m"] = floats(1, HEADS, rows, rows)
    node = helper.make_node("MultiHeadAttention", names, ["y"], "node", domain="com.microsoft", num_heads=HEADS, unidirectional=causal)
    save(path, [node], values, ["y"], {rows: "seq"} if symbolic else ())
    return "q={1,%d,1:%s}"


def group_query(path, rows=7, lengths=(7, 7), rotary=0, width=SIZE, places=False, symbolic=False, present=False, half=False, heads=HEADS):
    """A prompt without a cache. lengths: number of tokens of each sequence; the rest is padding."""
    kind = np.float16 if half else np.float32
    values = {
        "q": floats(BATCH, rows, heads * GROUP * SIZE).astype(kind),
        **{n: floats(BATCH, rows, heads * SIZE).astype(kind) for n in "kv"}, "lengths": np.array(lengths, np.int32) - 1
    }
    constants = {"total": np.array([rows], np.int32)}
    angles = draw.random((16, width // 2)) * 6
    if rotary:
        constants.update(cos=np.cos(angles).astype(kind), sin=np.sin(angles).astype(kind))
    if places:
        values["places"] = np.stack([np.arange(rows), np.arange(rows)])
    names = ["q", "k", "v", "", "", "lengths", "total"] + (["cos", "sin"] if rotary else []) + (["places"] if places else [])
    outputs = ["y", "present_k", "present_v"]
    node = helper.make_node("GroupQueryAttention", names, outputs, "node", domain="com.microsoft", num_heads=heads * GROUP,
                            kv_num_heads=heads, do_rotary=rotary, rotary_interleaved=int(rotary and width < SIZE))
    save(path, [node], values, outputs[:3 if present else 1], {rows: "seq", BATCH: "batch"} if symbolic else (), constants)
    return "q={1,%d,1:%s}"


VARIANTS = {
    "attention": (attention, {}),
    "attention24": (attention, dict(opset=24)),
    "attention_heads": (attention, dict(four=True)),
    "attention_half": (attention, dict(half=True)),
    "attention_mask": (attention, dict(mask=(1, 1, 7, 7))),
    "attention_bool_mask": (attention, dict(mask=(7, 7))),
    "attention_head_masks": (attention, dict(mask=(BATCH, HEADS * GROUP, 7, 7), four=True)),
    "attention_not_causal": (attention, dict(causal=0)),
    "attention_open": (attention, dict(symbolic=True)),
    "attention_heads_open": (attention, dict(symbolic=True, four=True)),
    "attention_one_row": (attention, dict(symbolic=True, rows=1)),
    "multi_head": (multi_head, {}),
    "multi_head_bias": (multi_head, dict(bias=True)),
    "group_query": (group_query, {}),
    "group_query_padded": (group_query, dict(lengths=(7, 4))),
    "group_query_rotary": (group_query, dict(rotary=1, lengths=(5, 7))),
    "group_query_half_rotated": (group_query, dict(rotary=1, width=16)),
    "group_query_places": (group_query, dict(rotary=1, places=True)),
    "group_query_one_head": (group_query, dict(heads=1)),
    "group_query_open": (group_query, dict(rotary=1, symbolic=True)),
    "group_query_present": (group_query, dict(rotary=1, present=True)),
    "group_query_half": (group_query, dict(half=True)),
    "multi_head_open": (multi_head, dict(symbolic=True)),
    "multi_head_not_causal": (multi_head, dict(causal=0)),
    "multi_head_one_row": (multi_head, dict(symbolic=True, rows=1)),
}


# Query rows are sharded over 2 and 3 devices by hand.
def rows_on_devices(d, name):
    build, how = VARIANTS[name]
    spec = build(d + "/m.onnx", **how)
    for n in harness.sample((2, 3), 1, sorted(VARIANTS).index(name)):
        rc, _, err = tessera("annotate", d + "/m.onnx", "--config", "c:%d" % n + ("=" + ",".join([DEVICE] * n) if DEVICE else ""),
                             "--shard", "node:" + spec % (n, ",".join(map(str, range(n)))), "-o", d + "/c.onnx")
        assert rc == 0, err
        rc, doc, err = tessera("verify", d + "/c.onnx", "--config", "c", "--inputs", d + "/m.onnx.npz", "--threads", 1)
        assert rc == 0 and doc["ok"] and not doc["replicated"] and doc["cut_nodes"] == 1, (name, n, doc, err)
        rc, doc, err = tessera("partition", d + "/c.onnx", "--config", "c", "-o", d + "/parts%d" % n)
        kinds = {node.op_type for node in onnx.load(d + "/parts%d/rank1.onnx" % n, load_external_data=False).graph.node}
        assert "Softmax" not in kinds, kinds  # the score matrix of all rows and keys must not exist


def random_shardings(d, name):
    """Random shardings of rows together with heads and batch."""
    build, how = VARIANTS[name]
    build(d + "/m.onnx", **how)
    rc, doc, err = tessera("verify", d + "/m.onnx", "--devices", 4, "--random", 4, "--seed", len(name), "--inputs", d + "/m.onnx.npz",
                           "--threads", 1)
    assert rc == 0, (name, doc, err)


def guarded_on_gpus(d, name):
    """The CUDA kernel refuses no rows: a rank that is meant for a GPU tests at run time whether it has some. Here the ranks run on CPUs."""
    build, how = VARIANTS[name]
    spec = build(d + "/m.onnx", **how)
    for device, guards in (("CUDA:0", 1), ("GPU:0", 1), ("CPU", 0)):
        rc, _, err = tessera("annotate", d + "/m.onnx", "--config", "c:2=%s,%s" % (device, device), "--shard", "node:" + spec % (2, "0,1"),
                             "-o", d + "/c.onnx")
        assert rc == 0, err
        rc, doc, err = tessera("verify", d + "/c.onnx", "--config", "c", "--inputs", d + "/m.onnx.npz", "--threads", 1, "--map-device",
                               device + "=CPU")
        assert rc == 0 and doc["ok"] and not doc["replicated"], (device, doc, err)
        rc, doc, err = tessera("partition", d + "/c.onnx", "--config", "c", "-o", d + "/" + device.replace(":", ""))
        nodes = onnx.load(d + "/%s/rank0.onnx" % device.replace(":", ""), load_external_data=False).graph.node
        assert sum(node.op_type == "If" for node in nodes) == guards, (device, [node.op_type for node in nodes])


LONG, SHORT = 131072, 19
ON_CPU = [word for i in range(8) for word in ("--map-device", "CUDA:%d=CPU" % i)]


def layer(path, kind, batch="batch"):
    """Writes a decoder layer with 2 query heads. `kind` is the attention operator, or "parts": products and a softmax with a mask as
    input."""
    constants = {n: floats(64, 32 if n in "kv" else 64) / 8 for n in ("wq", "wk", "wv", "wo")}
    constants["wk"], constants["wv"] = (floats(64, 64 if kind in ("parts", "multi_head") else 32) / 8 for _ in range(2))
    nodes = [helper.make_node("MatMul", ["x", "w" + n], [n]) for n in "qkv"]
    inputs = {"x": [batch, "seq", 64]}
    if kind == "group_query":
        inputs.update(lengths=[batch], total=[1])
        nodes += [
            helper.make_node("GroupQueryAttention", ["q", "k", "v", "", "", "lengths", "total"], ["a", "pk", "pv"], "attention",
                             domain="com.microsoft", num_heads=2, kv_num_heads=1)
        ]
    elif kind == "multi_head":
        nodes += [
            helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["a"], "attention", domain="com.microsoft", num_heads=2,
                             unidirectional=1)
        ]
    elif kind == "attention":
        nodes += [helper.make_node("Attention", ["q", "k", "v"], ["a"], "attention", is_causal=1, q_num_heads=2, kv_num_heads=1)]
    else:
        inputs["mask"] = ["seq", "seq"]
        constants.update(heads=np.array([0, 0, 2, 32]), flat=np.array([0, 0, 64]))
        for n in "qkv":
            nodes += [
                helper.make_node("Reshape", [n, "heads"], [n + "4"]),
                helper.make_node("Transpose", [n + "4"], [n + "h"], perm=[0, 2, 3, 1] if n == "k" else [0, 2, 1, 3])
            ]
        nodes += [
            helper.make_node("MatMul", ["qh", "kh"], ["s"], "attention"),
            helper.make_node("Add", ["s", "mask"], ["m"]),
            helper.make_node("Softmax", ["m"], ["p"]),
            helper.make_node("MatMul", ["p", "vh"], ["o4"]),
            helper.make_node("Transpose", ["o4"], ["ot"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", ["ot", "flat"], ["a"])
        ]
    nodes += [helper.make_node("MatMul", ["a", "wo"], ["o"]), helper.make_node("Add", ["o", "x"], ["y"])]
    info = [
        helper.make_tensor_value_info(n, TensorProto.INT32 if n in ("lengths", "total") else TensorProto.FLOAT, s)
        for n, s in inputs.items()
    ]
    graph = helper.make_graph(nodes, "g", info, [helper.make_tensor_value_info("y", TensorProto.FLOAT, inputs["x"])],
                              [numpy_helper.from_array(c, n) for n, c in constants.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23),
                                                      helper.make_opsetid("com.microsoft", 1)], ir_version=10), path)
    values = {
        "x": floats(1, SHORT, 64), "lengths": np.array([SHORT - 1], np.int32), "total": np.array([SHORT], np.int32),
        "mask": np.where(np.tri(SHORT), 0, -np.inf).astype(np.float32)
    }
    np.savez(path + ".npz", **{n: values[n] for n in inputs})


def long_prompt(d, kind):
    """128k tokens (32k with a mask input) and fewer heads than devices: the plan must shard rows, alone or with the heads. It must be right
    for a short prompt too."""
    layer(d + "/m.onnx", kind)
    given = "--devices", "h100:8", "--dim", "batch=1", "--dim", "seq=%d" % (LONG // 4 if kind == "parts" else LONG)
    rc, doc, err = tessera("plan", d + "/m.onnx", *given, "--explain", "attention", "-o", d + "/p.onnx")
    assert rc == 0, err
    rows = "m" if kind == "parts" else "q"
    chosen, = [dict(word.split("/") for word in c["name"].split()) for c in doc["choices"] if c.get("chosen")]
    assert int(chosen[rows]) >= 4 and np.prod([int(n) for n in chosen.values()]) == 8, doc["choices"]
    rc, doc, err = tessera("plan", d + "/m.onnx", *given, "-o", d + "/p.onnx")
    times = {x["name"]: x["milliseconds"] for x in doc["compared"]}
    assert doc["milliseconds"] <= times["context parallel on 8 devices"] * 1.001 and times[
        "context parallel on 8 devices"] < times["one device"] / 4, (doc["milliseconds"], times)
    rc, doc, err = tessera("verify", d + "/p.onnx", "--inputs", d + "/m.onnx.npz", "--threads", 1, *ON_CPU)
    assert rc == 0 and doc["ok"] and not doc["replicated"], (doc, err)


# For a short prompt no context parallel plan may be compared.
def short_prompt(d, kind):
    layer(d + "/m.onnx", kind)
    rc, doc, err = tessera("plan", d + "/m.onnx", "--devices", "h100:8", "--dim", "batch=1", "--dim", "seq=64")
    assert rc == 0 and not any(x["name"].startswith("context") for x in doc["compared"]), (doc["compared"], err)


KINDS = ["group_query", "multi_head", "attention", "parts"]
CASES = [(rows_on_devices, sorted(VARIANTS)), (random_shardings, sorted(VARIANTS)), (guarded_on_gpus, ["multi_head_one_row"]),
         (long_prompt, KINDS), (short_prompt, KINDS[:1])]
if DEVICE:
    CASES = CASES[:1]
harness.run([("%s (%s)" % (function.__name__, name), lambda d, function=function, name=name: function(d, name)) for function, names in CASES
             for name in names])
harness.finish()
