# SPDX-License-Identifier: Apache-2.0
"""Tests attention whose queries, keys and values come from one packed projection, in parts of different sizes, sharded by heads.

Each device must store the columns of the projection that its heads need. Only the sum behind the output projection may be communicated.

usage: packed.py TESSERA"""
import json, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

import harness

TESSERA = sys.argv[1]
HIDDEN, HEADS, KV, EACH = 24, 8, 4, 16
rng = np.random.default_rng(11)
f4 = lambda *s: rng.standard_normal(s).astype("f4") / 4
node = helper.make_node


def save(path, nodes, inputs, outputs, weights):
    kinds = {np.dtype("f4"): T.FLOAT, np.dtype("i4"): T.INT32, np.dtype("i8"): T.INT64}
    g = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(k, kinds[v.dtype], v.shape) for k, v in inputs.items()],
                          [helper.make_tensor_value_info(k, T.FLOAT, s) for k, s in outputs.items()],
                          [numpy_helper.from_array(v, k) for k, v in weights.items()])
    onnx.save(helper.make_model(g, opset_imports=[helper.make_opsetid("", 17),
                                                  helper.make_opsetid("com.microsoft", 1)], ir_version=8), path)
    np.savez(path[:-5] + ".npz", **inputs)


def attention(d, projection):
    """Writes a packed projection, grouped-query attention and an output projection."""
    wide = (HEADS + 2 * KV) * EACH
    weights = dict(wo=f4(HEADS * EACH, HIDDEN), total=np.array(3, np.int32), lens=np.array([2, 2], np.int32))
    if projection == "matmul":
        weights["w"] = f4(HIDDEN, wide)
        front = [node("MatMul", ["x", "w"], ["qkv"], name="proj")]
    elif projection == "bias":
        weights.update(w=f4(HIDDEN, wide), b=f4(wide))
        front = [node("MatMul", ["x", "w"], ["m"], name="proj"), node("Add", ["b", "m"], ["qkv"], name="bias")]
    else:  # 4-bit weights in blocks
        hidden = 32
        weights.update(w=rng.integers(0, 256, (wide, 1, 16)).astype("u1"), scales=np.abs(f4(wide)) / 8,
                       points=rng.integers(0, 256, (wide, )).astype("u1"))
        weights["wo"] = f4(HEADS * EACH, hidden)
        front = [
            node("MatMulNBits", ["x", "w", "scales", "points"], ["qkv"], name="proj", domain="com.microsoft", K=hidden, N=wide, bits=4,
                 block_size=32)
        ]
        x = f4(2, 3, hidden)
    if projection != "bits":
        x = f4(2, 3, HIDDEN)
    back = [
        node("GroupQueryAttention", ["qkv", "", "", "", "", "lens", "total"], ["a", "pk", "pv"], name="attend", domain="com.microsoft",
             num_heads=HEADS, kv_num_heads=KV),
        node("MatMul", ["a", "wo"], ["y"], name="out")
    ]
    save(d + "/m.onnx", front + back, dict(x=x), dict(y=x.shape), weights)
    return weights


def verify(d, n, edits):
    rc, _, err = harness.call(TESSERA, "annotate", d + "/m.onnx", "--config", "c:%d" % n, *edits, "-o", d + "/cut.onnx")
    assert rc == 0, err
    rc, out, err = harness.call(TESSERA, "verify", d + "/cut.onnx", "--inputs", d + "/m.npz", "--json")
    doc = json.loads(out) if out.startswith("{") else {}
    assert rc == 0 and doc["ok"], "exit %d %s %s" % (rc, doc, err)
    found = doc["collectives"]
    assert found == {"AllReduce": 1} or found == {"Reduce": 1}, "something moves: %s" % found
    rc, _, err = harness.call(TESSERA, "partition", d + "/cut.onnx", "-o", d + "/parts", "--force")
    assert rc == 0, err


# All ranks together must store the projection's weights once, and each rank complete heads.
def grouped(d):
    for projection in ("matmul", "bias", "bits"):
        weights = attention(d, projection)
        for n in (2, 3, 4):
            verify(d, n, [
                "--shard",
                "attend:a={1,1,%d/%d*%d}" % (KV, n, HEADS // KV * EACH), "--shard",
                "out:wo={%d/%d*%d,1}" % (KV, n, HEADS // KV * EACH)
            ])
            each = []
            for r in range(n):
                part = onnx.load("%s/parts/rank%d.onnx" % (d, r))
                w = next(t for t in part.graph.initializer if t.name.split("/")[0] == "w")
                proj = next(k for k in part.graph.node if k.name == "proj")
                each.append(w.dims[0 if projection == "bits" else 1])
                if projection == "bits":
                    assert {a.name: a.i for a in proj.attribute}["N"] == each[-1]
                assert sum(k.name == "proj" for k in part.graph.node) == 1
            assert sum(each) == (HEADS + 2 * KV) * EACH and all(e % (4 * EACH) == 0 for e in each), each


def split(d):
    """The three parts are taken from the packed result by a Split, or by three Slices."""
    sizes = [HEADS * EACH, KV * EACH, KV * EACH]
    ends = np.cumsum([0] + sizes)
    for way in ("split", "slices"):
        weights = dict(w=f4(HIDDEN, sum(sizes)), wo=f4(HEADS * EACH, HIDDEN), sizes=np.array(sizes, np.int64), total=np.array(3, np.int32),
                       lens=np.array([2, 2], np.int32), axis=np.array([2], np.int64),
                       **{"e%d" % i: np.array([e], np.int64) for i, e in enumerate(ends)})
        three = [node("Split", ["qkv", "sizes"], ["q", "k", "v"], name="split", axis=2)] if way == "split" else \
                [node("Slice", ["qkv", "e%d" % i, "e%d" % (i + 1), "axis"], [o], name="take" + o) for i, o in enumerate("qkv")]
        nodes = [
            node("MatMul", ["x", "w"], ["qkv"], name="proj"), *three,
            node("GroupQueryAttention", ["q", "k", "v", "", "", "lens", "total"], ["a", "pk", "pv"], name="attend", domain="com.microsoft",
                 num_heads=HEADS, kv_num_heads=KV),
            node("MatMul", ["a", "wo"], ["y"], name="out")
        ]
        if way == "split":
            weights = {k: v for k, v in weights.items() if k not in ("axis", *("e%d" % i for i in range(4)))}
        else:
            del weights["sizes"]
        save(d + "/m.onnx", nodes, dict(x=f4(2, 3, HIDDEN)), dict(y=(2, 3, HIDDEN)), weights)
        for n in (2, 4):
            verify(d, n, [
                "--shard",
                "attend:q={1,1,%d/%d*%d}" % (KV, n, HEADS // KV * EACH), "--shard",
                "out:wo={%d/%d*%d,1}" % (KV, n, HEADS // KV * EACH)
            ])


def also_read_whole(d):
    """Another node also reads the packed result: it is computed once and communicated."""
    attention(d, "matmul")
    m = onnx.load(d + "/m.onnx")
    m.graph.node.append(node("Relu", ["qkv"], ["z"], name="other"))
    m.graph.output.append(helper.make_tensor_value_info("z", T.FLOAT, [2, 3, (HEADS + 2 * KV) * EACH]))
    onnx.save(m, d + "/m.onnx")
    rc, _, err = harness.call(TESSERA, "annotate", d + "/m.onnx", "--config", "c:2", "--shard", "attend:qkv={1,1,2}", "--shard",
                              "proj:w={1,2}", "-o", d + "/cut.onnx")
    assert rc == 0, err
    rc, out, err = harness.call(TESSERA, "verify", d + "/cut.onnx", "--inputs", d + "/m.npz", "--json")
    assert rc == 0 and json.loads(out)["ok"] and "HaloExchange" in json.loads(out)["collectives"], (out, err)


harness.run([grouped, split, also_read_whole])
harness.finish()
