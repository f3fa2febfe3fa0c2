# SPDX-License-Identifier: Apache-2.0
"""Tests weights in safetensors files (--weights safetensors): Python's safetensors must read them, rank files refer to them as external
data, and they must hold the same shards as plain data files. Also tests weights in Constant nodes, which are sharded like initializers.

usage: weights.py TESSERA"""
import json, os, sys, tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness

TESSERA = os.path.abspath(sys.argv[1])
MODELS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "models")
case = harness.check


def tessera(*words):
    code, _, err = harness.call(TESSERA, *words)
    return code, err


def entries(path):
    """Reads a header without a library. Checks its length and JSON, and that there are no gaps between tensors or at the end."""
    with open(path, "rb") as f:
        length = int.from_bytes(f.read(8), "little")
        said = json.loads(f.read(length))
        data = f.read()
    said.pop("__metadata__")
    end = 0
    for entry in sorted(said.values(), key=lambda e: e["data_offsets"]):
        assert entry["data_offsets"][0] == end, entry
        end = entry["data_offsets"][1]
    assert end == len(data) and (8 + length) % 64 == 0, (end, len(data))
    return said, data


def outside(path):
    """Returns the initializers of a rank file that are in other files: name -> (file, offset, length, array)."""
    model = onnx.load(path, load_external_data=False)
    where = {t.name: {e.key: e.value for e in t.external_data} for t in model.graph.initializer if t.external_data}
    whole = {t.name: t for t in onnx.load(path).graph.initializer}
    return {name: (w["location"], int(w["offset"]), int(w["length"]), numpy_helper.to_array(whole[name])) for name, w in where.items()}


def odd_model(d):
    """Writes a model with sizes that leave gaps, a name that needs escapes, and elements of 4 bits and of 2 bytes."""
    rng = np.random.default_rng(1)
    arrays = {
        'a "quoted"\\name': rng.standard_normal((31, 37)).astype("f4"), "half": rng.standard_normal((37, 41)).astype("f2"),
        "last": rng.standard_normal((41, 29)).astype("f4")
    }
    inits = [numpy_helper.from_array(v, k) for k, v in arrays.items()]
    inits.append(helper.make_tensor("nibbles", TensorProto.INT4, [29, 101], rng.integers(-8, 8, 29 * 101)))
    nodes = [
        helper.make_node("MatMul", ["x", list(arrays)[0]], ["b"]),
        helper.make_node("Cast", ["half"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["b", "wide"], ["c"]),
        helper.make_node("MatMul", ["c", "last"], ["e"]),
        helper.make_node("Cast", ["nibbles"], ["n"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["e", "n"], ["y"])
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", TensorProto.FLOAT, [3, 31])], [value("y", TensorProto.FLOAT, [3, 101])], inits)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]), d + "/odd.onnx")
    return d + "/odd.onnx"


def check(d, name, path, inputs, edits):
    rc, err = tessera("annotate", path, "--config", "c:2", *edits, "-o", d + "/cut.onnx")
    rc, err = (rc, err) if rc else tessera("partition", d + "/cut.onnx", "-o", d + "/plain", "--force")
    rc, err = (rc, err) if rc else tessera("partition", d + "/cut.onnx", "--weights", "safetensors", "-o", d + "/safe", "--force")
    case(name + ": is written", rc == 0 and not [f for f in os.listdir(d + "/safe") if f.endswith(".data")], err)
    same, named = True, True
    for rank in range(2):
        plain, safe = (outside("%s/%s/rank%d.onnx" % (d, how, rank)) for how in ("plain", "safe"))
        same = same and plain and plain.keys() == safe.keys() and all(np.array_equal(plain[k][3], safe[k][3]) for k in plain)
        for tensor, (file, offset, length, array) in safe.items():
            said, data = entries(d + "/safe/" + file)
            base = os.path.getsize(d + "/safe/" + file) - len(data)
            named = named and tensor in said and [offset - base, offset - base + length] == said[tensor]["data_offsets"]
    case(name + ": the same pieces", same)
    case(name + ": each is named in its file", named)
    runs = [tessera("run", d + "/" + how, "--inputs", inputs, "--outputs", "%s/%s.npz" % (d, how)) for how in ("plain", "safe")]
    plain, safe = (dict(np.load("%s/%s.npz" % (d, how))) for how in ("plain", "safe"))
    case(name + ": runs, the same bits", runs[0][0] == runs[1][0] == 0 and all(np.array_equal(plain[k], safe[k]) for k in plain), runs)
    try:
        from safetensors import safe_open
    except ImportError:
        harness.skip("%s: Python's safetensors reads it" % name, "not installed")
        return
    good = 0
    for rank in range(2):
        for tensor, (file, _, _, array) in outside("%s/safe/rank%d.onnx" % (d, rank)).items():
            with safe_open(d + "/safe/" + file, "numpy") as f:
                got = f.get_tensor(tensor)
                good += got.dtype == np.uint8 or (got.shape == array.shape and np.array_equal(got, array))
    case(name + ": Python's safetensors reads it", good == sum(len(outside("%s/safe/rank%d.onnx" % (d, rank))) for rank in range(2)) > 0,
         good)


def constants(d):
    """Weights in Constant nodes, as PaddlePaddle exports them; the second is in an external file, the third in a branch."""
    rng = np.random.default_rng(2)
    up, down, branch = (numpy_helper.from_array(rng.standard_normal(shape).astype("f4")) for shape in ((64, 256), (256, 64), (64, 64)))
    for tensor, location in ((down, "down.bin"), (branch, "branch.bin")):
        with open(d + "/" + location, "wb") as f:
            f.write(tensor.raw_data)
        onnx.external_data_helper.set_external_data(tensor, location)
        tensor.ClearField("raw_data")
    value, node = helper.make_tensor_value_info, helper.make_node
    then = helper.make_graph(
        [node("Constant", [], ["wb"], value=branch), node("MatMul", ["z", "wb"], ["t"])], "then", [],
        [value("t", TensorProto.FLOAT, [8, 64])])
    other = helper.make_graph([node("Neg", ["z"], ["e"])], "else", [], [value("e", TensorProto.FLOAT, [8, 64])])
    nodes = [
        node("Constant", [], ["wu"], value=up),
        node("MatMul", ["x", "wu"], ["h"]),
        node("Relu", ["h"], ["a"]),
        node("Constant", [], ["wd"], value=down),
        node("MatMul", ["a", "wd"], ["z"]),
        node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    ]
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [8, 64]), value("c", TensorProto.BOOL, [])], [value("y", TensorProto.FLOAT, [8, 64])])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), d + "/constants.onnx")
    np.savez(d + "/constants.npz", x=rng.standard_normal((8, 64)).astype("f4"), c=np.array(True))
    code, text, err = harness.call(TESSERA, "partition", d + "/constants.onnx", "--devices", 2, "-o", d + "/constants", "--json")
    shapes = [sorted(v[3].shape for v in outside("%s/constants/rank%d.onnx" % (d, rank)).values())
              for rank in range(2)] if code == 0 else err
    case("weights in Constant nodes are sharded", shapes == [[(64, 128), (128, 64)]] * 2, shapes)
    code, text, err = harness.call(TESSERA, "verify", d + "/constants.onnx", "--devices", 2, "--inputs", d + "/constants.npz")
    case("weights in Constant nodes: the same result", code == 0, text + err)


def annotated_constants(d):
    """A weight is stored the same as initializer and as Constant node of any form, as annotated and after infer."""
    weight = np.random.default_rng(3).standard_normal((256, 256)).astype("f4")
    for at in ("n:k", "k", "n:x", "n:y", "k:k"):
        words = ["--shard" if ":" in at else "--tile", at + "={1,2}"]
        tensor = numpy_helper.from_array(weight, "k")
        stored_alike(d, "MatMul", TensorProto.FLOAT, tensor, {"value": tensor}, words)
    for form, kind, values in (("value_floats", TensorProto.FLOAT, weight.flatten()), ("value_ints", TensorProto.INT64, np.arange(65536))):
        for words in (["--shard", "n:k={2}"], ["--tile", "k={2}"]):
            words += ["--shard", "n:x={1,2}"]
            stored_alike(d, "Add", kind, numpy_helper.from_array(values, "k"), {form: values.tolist()}, words)


def stored_alike(d, operator, kind, weight, attribute, words):
    value, node, stored = helper.make_tensor_value_info, helper.make_node, {}
    for way in ("node", "initializer"):
        nodes, weights = [node(operator, ["x", "k"], ["y"], name="n")], [weight]
        if way == "node":
            nodes, weights = [node("Constant", [], ["k"], name="k", **attribute), *nodes], []
        elif words[1].startswith("k:"):
            words = ["--shard", "n:" + words[1][2:]]  # an initializer has no node of its own
        shape = [4, weight.dims[-1]]
        graph = helper.make_graph(nodes, "g", [value("x", kind, shape)], [value("y", kind, shape)], weights)
        onnx.save(helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 18)]), d + "/k.onnx")
        rc, err = tessera("annotate", d + "/k.onnx", "--config", "c:2", *words, "-o", d + "/ka.onnx")
        assert rc == 0, err
        for then, more in (("as annotated", None), ("infer", []), ("infer --formalism", ["--formalism"])):
            path = d + "/ka.onnx"
            if more is not None:
                rc, err = tessera("infer", path, *more, "-o", d + "/ki.onnx")
                path = d + "/ki.onnx"
            rc, err = (rc, err) if rc else tessera("partition", path, "-o", d + "/kp", "--force")
            sizes = [sum(v[2] for v in outside("%s/kp/rank%d.onnx" % (d, rank)).values()) for rank in range(2)] if rc == 0 else err
            rc, text, err = harness.call(TESSERA, "check", path, "--json")
            stored[way, then] = sizes, rc, json.loads(text)["warnings"]
    half = [len(numpy_helper.to_array(weight).tobytes()) // 2] * 2
    case("a Constant node with %s, %s" % (*attribute, " ".join(words)), set(map(str, stored.values())) == {str((half, 0, 0))}, stored)


with tempfile.TemporaryDirectory(prefix="tessera-weights-") as d:
    annotated_constants(d)
    constants(d)
    bert = MODELS + "/bert_tiny/model.onnx"
    products = [n for n in onnx.load(bert).graph.node if n.op_type in ("MatMul", "Gemm")][:6]
    check(d, "bert", bert, MODELS + "/bert_tiny/test_data_set_0",
          [w for n in products for w in ("--shard", "%s:%s={...,2}" % (n.name or n.output[0], n.output[0]))])
    check(d, "odd sizes", odd_model(d), "random:3", ["--shard", "b:b={1,2}", "--shard", "y:y={1,2}"])
    rc, err = tessera("partition", bert, "--devices", 2, "--weights", "gguf", "-o", d + "/no")
    case("refuses other formats", rc == 2 and "--weights needs data or safetensors, not 'gguf'" in err and not os.path.exists(d + "/no"),
         "exit %d %s" % (rc, err))
harness.finish()
