# SPDX-License-Identifier: Apache-2.0
"""Tests inputs and outputs that stay sharded, and states that stay on their devices (--keep-cut, --state).

A decoder with a cache must generate the same 32 tokens unsharded and on 2 and 4 devices. A batch that stays sharded must run with any
size. Ports that cannot stay sharded must be reported.

usage: ports.py TESSERA DECODE"""
import json, os, sys, tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import evaluator, harness, spine

VOCABULARY, WIDTH, HEADS, HEAD, LAYERS = 48, 32, 4, 8, 2


def decoder(path):
    """Writes a small decoder: embedding, attention over the cache, feed-forward, logits."""
    rng = np.random.default_rng(7)
    nodes, weights, ins, outs = [], [], [], []

    def weight(name, *shape):
        weights.append(numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(shape[0])).astype("f4"), name))
        return name

    def const(name, values):
        weights.append(numpy_helper.from_array(np.array(values, "i8"), name))
        return name

    def op(kind, inputs, name, **attributes):
        nodes.append(helper.make_node(kind, inputs, [name], name="n_" + name, **attributes))
        return name

    ins.append(helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", 1]))
    ins.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]))
    x = op("Gather", [weight("embedding", VOCABULARY, WIDTH), "input_ids"], "embedded")
    mask = op("Cast", ["attention_mask"], "mask_float", to=TensorProto.FLOAT)
    mask = op("Unsqueeze", [mask, const("middle", [1, 2])], "mask")
    split, joined = const("split", [0, 1, HEADS, HEAD]), const("joined", [0, 1, WIDTH])
    for i in range(LAYERS):
        heads = {}
        for p in "qkv":
            y = op("MatMul", [x, weight("w%s%d" % (p, i), WIDTH, WIDTH)], "%s%d" % (p, i))
            y = op("Reshape", [y, split], "%s%d_split" % (p, i))
            heads[p] = op("Transpose", [y], "%s%d_heads" % (p, i), perm=[0, 2, 1, 3])
        for p in "kv":
            past, present = "past_%d_%s" % (i, p), "present_%d_%s" % (i, p)
            ins.append(helper.make_tensor_value_info(past, TensorProto.FLOAT, ["batch", HEADS, "past", HEAD]))
            outs.append(helper.make_tensor_value_info(present, TensorProto.FLOAT, ["batch", HEADS, "past + 1", HEAD]))
            heads[p] = op("Concat", [past, heads[p]], present, axis=2)
        t = op("Transpose", [heads["k"]], "k%d_turned" % i, perm=[0, 1, 3, 2])
        s = op("MatMul", [heads["q"], t], "scores%d" % i)
        s = op("Add", [s, mask], "masked%d" % i)
        s = op("Softmax", [s], "attention%d" % i, axis=-1)
        s = op("MatMul", [s, heads["v"]], "mixed%d" % i)
        s = op("Transpose", [s], "back%d" % i, perm=[0, 2, 1, 3])
        s = op("Reshape", [s, joined], "joined%d" % i)
        s = op("MatMul", [s, weight("wo%d" % i, WIDTH, WIDTH)], "projected%d" % i)
        x = op("Add", [x, s], "residual%d" % i)
        h = op("MatMul", [x, weight("up%d" % i, WIDTH, 2 * WIDTH)], "up_%d" % i)
        h = op("Tanh", [h], "act%d" % i)
        h = op("MatMul", [h, weight("down%d" % i, 2 * WIDTH, WIDTH)], "down_%d" % i)
        x = op("Add", [x, h], "block%d" % i)
    op("MatMul", [x, weight("head", WIDTH, VOCABULARY)], "logits")
    outs.insert(0, helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1, VOCABULARY]))
    graph = helper.make_graph(nodes, "decoder", ins, outs, weights)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(m)
    onnx.save(m, path)


def cuts(n):
    devices = ",".join(map(str, range(n)))
    out = ["--config", "tp:%d" % n]
    for i in range(LAYERS):
        for p in "qkv":
            out += ["--shard", "n_%s%d:w%s%d={1,%d:%s}" % (p, i, p, i, n, devices)]
        out += ["--shard", "n_projected%d:wo%d={%d,1:%s}" % (i, i, n, devices)]
        out += ["--shard", "n_up_%d:up%d={1,%d:%s}" % (i, i, n, devices)]
        out += ["--shard", "n_down_%d:down%d={%d,1:%s}" % (i, i, n, devices)]
    return out + ["--shard", "n_logits:head={1,%d:%s}" % (n, devices)]


def tokens(decode, *args):
    rc, text, err = harness.call(decode, *args)
    assert rc == 0, "decode: exit %d %s" % (rc, err)
    return text.split()


def call(tessera, *args, expect=0):
    rc, text, err = harness.call(tessera, *args)
    assert rc == expect, "%s: exit %d %s" % (args[0], rc, err)
    return text, err


def decodes(tessera, decode, folder):
    """The tokens must be the same unsharded and sharded. The cache must never be communicated."""
    model, cut, parts = (os.path.join(folder, f) for f in ("m.onnx", "cut.onnx", "parts"))
    decoder(model)
    want = tokens(decode, model)
    assert len(want) == 32 and len(set(want)) > 3, want
    for n in (2, 4):
        call(tessera, "annotate", model, *cuts(n), "-o", cut)
        call(tessera, "partition", cut, "-o", parts, "--force", "--state", "past_*=present_*", "--keep-cut", "logits")
        manifest = evaluator.check_folder(parts)
        assert [c["op"] for c in manifest["collectives"]] == ["AllReduce"] * (2 * LAYERS), manifest["collectives"]
        assert len(manifest["states"]) == 2 * LAYERS
        ports = {p["name"]: p["sharding"] for p in manifest["inputs"] + manifest["outputs"]}
        heads, devices = "{1,%d,1,1:%%s}" % n, ",".join(map(str, range(n)))
        assert ports["past_0_k"] == ports["present_0_k"] == heads % devices, ports
        assert ports["logits"] == "{1,1,%d:%s}" % (n, devices), ports
        got = tokens(decode, model, parts)
        assert got == want, "%d devices: %s, whole %s" % (n, got, want)


def is_planned(tessera, decode, folder):
    """The planner must keep the cache sharded by heads on the devices of its layer, also with stages. partition reads that in the model."""
    model, cut, parts = (os.path.join(folder, f) for f in ("m.onnx", "planned.onnx", "parts"))
    decoder(model)
    want = tokens(decode, model)
    sizes = ["--dim", "batch=1", "--dim", "past=4000", "--dim", "total=4001"]
    for n, words in ((2, ()), (4, ()), (4, ("--stages", "2", "--objective", "throughput"))):
        whole = json.loads(call(tessera, "plan", model, "--devices", str(n), *sizes, *words, "--json")[0])["cost"]
        doc = json.loads(
            call(tessera, "plan", model, "--devices", str(n), *sizes, *words, "--state", "past_*=present_*", "-o", cut, "--json")[0])
        assert doc["cost"] < whole, "a cache that stays costs %d, one that moves %d" % (doc["cost"], whole)
        call(tessera, "partition", cut, "-o", parts, "--force")
        manifest = evaluator.check_folder(parts)
        assert len(manifest["states"]) == 2 * LAYERS
        ports = {p["name"]: p["sharding"] for p in manifest["inputs"] + manifest["outputs"]}
        of = lambda i: doc["stages"][i * len(doc["stages"]) // LAYERS]["devices"] if words else range(n)
        for i in (0, LAYERS - 1):
            heads = "{1,%d,1,1:%s}" % (len(of(i)), ",".join(map(str, of(i))))
            assert ports["past_%d_k" % i] == ports["present_%d_k" % i] == heads, (n, words, ports)
        got = tokens(decode, model, parts)
        assert got == want, "%d devices %s: %s, whole %s" % (n, words, got, want)
    call(tessera, "plan", model, "--devices", "2", "--state", "past_*=nothing_*", expect=1)
    call(tessera, "plan", model, "--devices", "2", "--state", "past_0_k", expect=1)


def runs_once(tessera, folder):
    """`run` must accept and return full tensors, whatever stays sharded. Here the model's metadata says what stays sharded."""
    model, cut, parts, data, out = (os.path.join(folder, f) for f in ("m.onnx", "cut.onnx", "once", "in.npz", "out.npz"))
    rng = np.random.default_rng(3)
    shape = (2, HEADS, 5, HEAD)
    ins = {"past_%d_%s" % (i, p): rng.standard_normal(shape).astype("f4") for i in range(LAYERS) for p in "kv"}
    ins.update(input_ids=np.array([[3], [9]]), attention_mask=np.ones([2, 6], "i8"))
    np.savez(data, **ins)
    s = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    want = dict(zip([o.name for o in s.get_outputs()], s.run(None, ins)))
    m = onnx.load(model)
    helper.set_model_props(m, {"ai.tessera.state": "past_*=present_*\n", "ai.tessera.keep_cut": "logits"})
    marked = os.path.join(folder, "marked.onnx")
    onnx.save(m, marked)
    call(tessera, "annotate", marked, *cuts(2), "-o", cut)
    call(tessera, "partition", cut, "-o", parts)
    assert len(evaluator.check_folder(parts)["states"]) == 2 * LAYERS
    launchers = [()] + [[*launcher, "-n", 2] for _, launcher in spine.families()]
    for launcher in launchers:
        rc, got, said = spine.run(tessera, parts, data, out, launcher)
        assert rc == 0 and evaluator.apart(got, want) <= 5e-5, "%s: exit %d %s" % (launcher, rc, said)
    rc, text, err = harness.call(tessera, "verify", cut, "--inputs", data, "--json")
    assert rc == 0 and json.loads(text)["ok"], err


def any_batch(tessera, folder):
    """A batch that stays sharded must run with every size, without a new partition."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((6, 4)).astype("f4")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"), helper.make_node("Shape", ["x"], ["s"], name="shape"),
             helper.make_node("ReduceSum", ["h"], ["total"], name="sum", keepdims=0), helper.make_node("Abs", ["h"], ["y"], name="abs")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])], [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4]),
        helper.make_tensor_value_info("s", TensorProto.INT64, [2]),
        helper.make_tensor_value_info("total", TensorProto.FLOAT, [])
    ], [numpy_helper.from_array(w, "w")])
    model, cut, parts, data, out = (os.path.join(folder, f) for f in ("b.onnx", "bcut.onnx", "bparts", "bin.npz", "bout.npz"))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), model)
    call(tessera, "annotate", model, "--config", "c:3", "--shard", "mm:x={3,1:0,1,2}", "-o", cut)
    call(tessera, "partition", cut, "-o", parts, "--keep-cut", "x", "--keep-cut", "y")
    for r in range(3):  # no operator here changed after set 17, so older engines must be able to read the files
        part = onnx.load(os.path.join(parts, "rank%d.onnx" % r), load_external_data=False)
        assert {o.domain: o.version for o in part.opset_import}[""] == 17, part.opset_import
    for size in (3, 4, 7, 64, 2, 1):  # with fewer rows than devices some shards are empty
        x = rng.standard_normal((size, 6)).astype("f4")
        np.savez(data, x=x)
        rc, got, said = spine.run(tessera, parts, data, out)
        assert rc == 0, "batch %d: exit %d %s" % (size, rc, said)
        want = dict(y=np.abs(x @ w), s=np.array([size, 6]), total=(x @ w).sum())
        assert all(np.allclose(got[k], v, rtol=1e-4, atol=1e-4) for k, v in want.items()), "batch %d: %s" % (size, got)


def size_alone(tessera, folder):
    """The model reads only the shape of an input, and it is known. The input stays sharded, also on devices without rank 0."""
    model, cut, parts, data, result = (os.path.join(folder, f)
                                       for f in ("size.onnx", "size_cut.onnx", "size_parts", "size.npz", "size_out.npz"))
    nodes = [helper.make_node("Shape", ["x"], ["s"], name="shape"), helper.make_node("Neg", ["s"], ["y"], name="neg")]
    g = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])],
                          [helper.make_tensor_value_info("y", TensorProto.INT64, [1])])
    onnx.save(helper.make_model(g, opset_imports=[helper.make_opsetid("", 18)], ir_version=11), model)
    np.savez(data, x=np.zeros(6, "f4"))
    for spec in ("{2:2,3}", "{2:0,1}", "{4:3,2,1,0}"):
        call(tessera, "annotate", model, "--config", "c:4", "--shard", "shape:x=" + spec, "-o", cut)
        call(tessera, "partition", cut, "-o", parts, "--force", "--keep-cut", "x")
        call(tessera, "run", parts, "--inputs", data, "--outputs", result)
        assert np.load(result)["y"].tolist() == [-6], spec


# Names that are not inputs or outputs are an error. An output that cannot stay sharded is a warning.
def is_refused(tessera, folder):
    model, parts = os.path.join(folder, "bcut.onnx"), os.path.join(folder, "none")
    for option, value in (("--keep-cut", "z"), ("--state", "x=z"), ("--state", "x"), ("--state", "x=s")):
        _, err = call(tessera, "partition", model, "-o", parts, option, value, expect=1)
        assert "partition-no-port" in err and not os.path.exists(parts), err
    _, err = call(tessera, "partition", model, "-o", parts, "--keep-cut", "s")
    assert "partition-port-whole" in err, err


def dry(tessera, folder):
    """A dry run must report the sizes of the files and write nothing."""
    model, parts = os.path.join(folder, "bcut.onnx"), os.path.join(folder, "dry")
    text, _ = call(tessera, "partition", model, "--dry-run", "--json")
    doc = json.loads(text)
    assert doc["folder"] is None and len(doc["file_bytes"]) == 3 and doc["devices"] == 3
    call(tessera, "partition", model, "-o", parts)
    sizes = json.load(open(os.path.join(parts, "manifest.json")))["sizes"]
    assert doc["file_bytes"] == [sum(v for k, v in sizes.items() if k.startswith("rank%d." % r)) for r in range(3)], (doc, sizes)


def dry_without_data(tessera, folder):
    """A dry run counts the same bytes if the files of external data are missing, and other runs name the missing file."""
    model, planned = os.path.join(folder, "model.onnx"), os.path.join(folder, "planned.onnx")
    rng = np.random.default_rng(1)
    weights = [numpy_helper.from_array(rng.standard_normal(shape).astype("f4"), name)
               for name, shape in (("big", [64, 512]), ("bias", [512]), ("norm", [64]))]
    nodes = [helper.make_node("Mul", ["x", "norm"], ["h"]), helper.make_node("MatMul", ["h", "big"], ["p"]),
             helper.make_node("Add", ["p", "bias"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [32, n]) for name, n in (("x", 64), ("y", 512))]
    proto = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights), ir_version=11,
                              opset_imports=[helper.make_opsetid("", 22)])
    onnx.save(proto, model, save_as_external_data=True, location="weights.bin", size_threshold=0)
    call(tessera, "plan", model, "--devices", "2", "-o", planned)
    for words in ([], ["--weights", "safetensors"]):
        there, _ = call(tessera, "partition", planned, "--dry-run", "--json", *words)
        os.rename(folder + "/weights.bin", folder + "/moved.bin")
        gone, _ = call(tessera, "partition", planned, "--dry-run", "--json", *words)
        code, _, said = harness.call(tessera, "partition", planned, "-o", folder + "/parts", *words)
        os.rename(folder + "/moved.bin", folder + "/weights.bin")
        assert json.loads(there)["file_bytes"] == json.loads(gone)["file_bytes"], (there, gone)
        assert code == 3 and "weights.bin" in said, (code, said)
        call(tessera, "partition", planned, "-o", folder + "/whole", "--force", *words)
        sizes = json.load(open(folder + "/whole/manifest.json"))["sizes"]
        written = [sum(v for k, v in sizes.items() if k.startswith("rank%d." % r)) for r in range(2)]
        assert json.loads(gone)["file_bytes"] == written, (gone, sizes)


def main():
    tessera, decode = sys.argv[1:3]
    case = lambda folder, function, *args: function(tessera, *args, folder)
    with tempfile.TemporaryDirectory(prefix="tessera-ports-") as folder:
        with_decoder = [(f.__name__, case, f, decode) for f in (decodes, is_planned)]
        alone = (runs_once, any_batch, size_alone, is_refused, dry, dry_without_data)
        harness.run(with_decoder + [(f.__name__, case, f) for f in alone], folder=folder)
    harness.finish()


if __name__ == "__main__":
    main()
