# SPDX-License-Identifier: Apache-2.0
"""Tests `partition --reseal`: rank files that other tools changed.

Changes of an optimizer must be accepted. A change that breaks what other ranks or the caller rely on must be refused with its place, and
nothing may be written.

usage: reseal.py TESSERA [LIBTESSERA_OPS]"""
import json, os, shutil, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper as h, numpy_helper as nh

import harness

TESSERA = sys.argv[1]
LIBRARY = sys.argv[2] if len(sys.argv) > 2 else None


def tessera(*words):
    return harness.call(TESSERA, *words)


def good(*args):
    """Runs the command, which must succeed. Returns all that it printed."""
    rc, out, err = tessera(*args)
    assert rc == 0, (args, rc, out, err)
    return out + err


def parts_of(d):
    """Partitions y = relu(x u + 0) d along its inner dimension: one AllReduce."""
    rng = np.random.default_rng(0)
    nodes = [h.make_node("MatMul", ["x", "u"], ["a"], name="up"), h.make_node("Add", ["a", "zero"], ["z"], name="add"),
             h.make_node("Relu", ["z"], ["b"], name="act"), h.make_node("MatMul", ["b", "d"], ["y"], name="down")]
    inits = [nh.from_array(rng.normal(size=s).astype("f4"), k)
             for k, s in (("u", (64, 96)), ("d", (96, 64)))] + [nh.from_array(np.zeros(1, "f4"), "zero")]
    g = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", T.FLOAT, ["n", 64])], [h.make_tensor_value_info("y", T.FLOAT, ["n", 64])],
                     inits)
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 17)], ir_version=8), d + "/m.onnx")
    good("annotate", d + "/m.onnx", "--config", "c:2", "--shard", "up:u={1,2:0,1}", "--shard", "down:d={2,1:0,1}", "-o", d + "/cut.onnx")
    shutil.rmtree(d + "/parts", ignore_errors=True)
    good("partition", d + "/cut.onnx", "-o", d + "/parts")
    np.savez(d + "/x.npz", x=rng.normal(size=(5, 64)).astype("f4"))
    return d + "/parts"


def answer(d, parts):
    good("run", parts, "--inputs", d + "/x.npz", "--outputs", d + "/y.npz", "--check-files")
    return np.load(d + "/y.npz")["y"]


def fold(m):
    """Changes a model as an optimizer would: removes the Add of zero. The caller then stores the weights inside the file."""
    add = next(n for n in m.graph.node if n.op_type == "Add")
    for n in m.graph.node:
        n.input[:] = [add.input[0] if i == add.output[0] else i for i in n.input]
    m.graph.node.remove(add)


# Rank files without the Add and with their weights elsewhere must run only after resealing, with the same result.
def accepted(d):
    parts = parts_of(d)
    want = answer(d, parts)
    assert "nothing has changed" in good("partition", "--reseal", parts)
    for r in (0, 1):
        m = onnx.load(parts + "/rank%d.onnx" % r)
        fold(m)
        onnx.save(m, parts + "/rank%d.onnx" % r, save_as_external_data=r == 1, location="own.data")
    rc, _, err = tessera("run", parts, "--inputs", d + "/x.npz")
    assert rc == 3 and "rank0.onnx" in err, (rc, err)  # not resealed yet
    rc, out, err = tessera("partition", "--reseal", parts, "--json")
    assert rc == 0 and json.loads(out)["resealed"] == ["rank0.onnx", "rank1.onnx", "own.data"], (rc, out, err)
    manifest = json.load(open(parts + "/manifest.json"))
    assert manifest["devices"][0]["data"] == [] and manifest["devices"][1]["data"] == ["own.data"], manifest["devices"]
    assert np.abs(answer(d, parts) - want).max() <= 1e-5 * np.abs(want).max()
    assert "nothing has changed" in good("partition", "--reseal", parts)


# Rank files that ONNX Runtime itself has optimized.
def optimised_by_onnxruntime(d):
    if not LIBRARY:
        return "the command line names no libtessera_ops.so"
    import onnxruntime as ort
    parts = parts_of(d)
    want = answer(d, parts)
    for r in (0, 1):
        so = ort.SessionOptions()
        so.add_session_config_entry("tessera.rank", str(r))
        so.add_session_config_entry("tessera.size", "2")
        so.add_session_config_entry("tessera.job", "reseal%d" % r)
        so.register_custom_ops_library(LIBRARY)
        so.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        so.optimized_model_filepath = d + "/opt%d.onnx" % r
        ort.InferenceSession(parts + "/rank%d.onnx" % r, so, providers=["CPUExecutionProvider"])
    for r in (0, 1):
        os.replace(d + "/opt%d.onnx" % r, parts + "/rank%d.onnx" % r)
    assert "rank0.onnx: resealed" in good("partition", "--reseal", parts)
    assert np.abs(answer(d, parts) - want).max() <= 1e-5 * np.abs(want).max()


def comm(m):
    return next(n for n in m.graph.node if n.domain == "ai.tessera")


def attribute(m, name):
    return next(a for a in comm(m).attribute if a.name == name)


def rename_input(m):
    m.graph.input[0].name = "other"
    for n in m.graph.node:
        n.input[:] = ["other" if i == "x" else i for i in n.input]


def drop_communication(m):
    n = comm(m)
    m.graph.node.remove(n)
    m.graph.node.extend([h.make_node("Identity", [n.input[0]], [n.output[0]]), h.make_node("Identity", [n.input[-1]], [n.output[-1]])])


def shape_of_the_token(m):
    """An engine knows the shape of the last token and would drop the communication."""
    n = comm(m)
    assert n.output[-1] == "ai.tessera.token.out", n.output
    n.output[-1] = "last"
    m.graph.node.append(h.make_node("Shape", ["last"], ["ai.tessera.token.out"]))


BREACHES = {
    "an input by another name": (rename_input, "other"),
    "an output is gone": (lambda m: m.graph.output.pop(0), "output is not in the manifest"),
    "another type": (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", T.DOUBLE), "element type"),
    "another size": (lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 65), "sizes"),
    "one more input": (lambda m: m.graph.input.append(h.make_tensor_value_info("more", T.FLOAT, [1])), "more"),
    "a communication is gone": (drop_communication, "missing on one of its ranks"),
    "another reduction": (lambda m: setattr(attribute(m, "reduce"), "s", b"max"), "disagree on its attributes"),
    "another number": (lambda m: setattr(attribute(m, "id"), "i", 7), "group does not contain this rank"),
    "another plan": (lambda m: setattr(attribute(m, "plan"), "s", b"0" * 16), "differs from the manifest"),
    "off the chain of tokens": (lambda m: comm(m).input.__setitem__(len(comm(m).input) - 1, "token2") or m.graph.initializer.append(
        nh.from_array(np.zeros(1, "i8"), "token2")), "chain of tokens"),
    "another node after the last token": (shape_of_the_token, "is not the last token"),
    "weights elsewhere": (
        lambda m: [setattr(e, "value", "below/w.data") for t in m.graph.initializer for e in t.external_data
                   if e.key == "location"], "outside of the folder"),
}


# Every change in BREACHES must be refused, and the manifest must stay as it was.
def refused(d):
    parts = parts_of(d)
    for what, (change, said) in BREACHES.items():
        shutil.copytree(parts, d + "/p")
        os.makedirs(d + "/p/below")
        for f in os.listdir(parts):
            if f.endswith(".data"):
                shutil.copy(parts + "/" + f, d + "/p/below/w.data")
        before = open(d + "/p/manifest.json").read()
        m = onnx.load(d + "/p/rank1.onnx" if what != "an output is gone" else d + "/p/rank0.onnx", load_external_data=False)
        change(m)
        onnx.save(m, d + "/p/rank1.onnx" if what != "an output is gone" else d + "/p/rank0.onnx")
        rc, _, err = tessera("partition", "--reseal", d + "/p")
        assert rc == 1 and "partition-reseal" in err and said in err, (what, rc, err)
        assert open(d + "/p/manifest.json").read() == before, what
        shutil.rmtree(d + "/p")
    # Ranks that agree with each other must also agree with the manifest.
    shutil.copytree(parts, d + "/p")
    for r in (0, 1):
        m = onnx.load(d + "/p/rank%d.onnx" % r, load_external_data=False)
        drop_communication(m)
        onnx.save(m, d + "/p/rank%d.onnx" % r)
    rc, _, err = tessera("partition", "--reseal", d + "/p")
    assert rc == 1 and "Reduce 0 of the manifest is missing" in err, (rc, err)
    shutil.rmtree(d + "/p")
    # If only a data file changed, it is damaged. A folder without a manifest is not a partition.
    data = next(f for f in sorted(os.listdir(parts)) if f.endswith(".data"))
    raw = bytearray(open(parts + "/" + data, "rb").read())
    raw[0] ^= 1
    open(parts + "/" + data, "wb").write(raw)
    rc, _, err = tessera("partition", "--reseal", parts)
    assert rc == 3 and data in err, (rc, err)
    assert tessera("partition", "--reseal", d)[0] == 3
    assert tessera("partition", "--reseal", parts, d + "/m.onnx")[0] == 2
    assert tessera("partition")[0] == 2
    # Manifests of older releases do not list the inputs of a device.
    manifest = json.load(open(parts + "/manifest.json"))
    manifest["devices"][0].pop("inputs")
    json.dump(manifest, open(parts + "/manifest.json", "w"))
    rc, _, err = tessera("partition", "--reseal", parts)
    assert rc == 5 and "partition-reseal" in err, (rc, err)


def shared_file(d):
    """Ranks 0 and 2 share one file, and rank 1 has a copy of it. Only the file that changed may be resealed, not the one that was read
    last."""
    nodes = [h.make_node("Add", ["x", "zero"], ["a"], name="add"), h.make_node("Relu", ["a"], ["y"], name="act")]
    ports = [h.make_tensor_value_info(name, T.FLOAT, ["n", 64]) for name in "xy"]
    g = h.make_graph(nodes, "g", ports[:1], ports[1:], [nh.from_array(np.zeros(1, "f4"), "zero")])
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 17)], ir_version=8), d + "/m.onnx")
    good("annotate", d + "/m.onnx", "--config", "c:3", "-o", d + "/cut.onnx")
    good("partition", d + "/cut.onnx", "-o", d + "/parts")
    manifest = json.load(open(d + "/parts/manifest.json"))
    manifest["devices"][1:] = [{**manifest["devices"][0], "rank": 1, "file": "rank1.onnx"}, {**manifest["devices"][0], "rank": 2}]
    for words in ("files", "sizes"):
        manifest[words]["rank1.onnx"] = manifest[words]["rank0.onnx"]
    json.dump(manifest, open(d + "/parts/manifest.json", "w"))
    shutil.copy(d + "/parts/rank0.onnx", d + "/parts/rank1.onnx")
    assert "nothing has changed" in good("partition", "--reseal", d + "/parts")
    m = onnx.load(d + "/parts/rank0.onnx")
    fold(m)
    onnx.save(m, d + "/parts/rank0.onnx")
    rc, out, err = tessera("partition", "--reseal", d + "/parts", "--json")
    assert rc == 0 and json.loads(out)["resealed"] == ["rank0.onnx"], (rc, out, err)


harness.run([accepted, optimised_by_onnxruntime, refused, shared_file])
harness.finish()
