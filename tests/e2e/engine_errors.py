# SPDX-License-Identifier: Apache-2.0
"""Tests graphs that ONNX Runtime computes wrong, and that Tessera's partitions and reference runs must compute right (docs/numbers.md).

They are: a MoE that is the only reader of its input; several Splits of one value, which the engine treats as equal; GroupQueryAttention
caches, which the engine stores in the memory of their past; quantized products of float8, for which fused operators have no kernels;
windows for which ONNX infers a wrong size.
Also: if only one branch of an If has a known rank, the If's rank is unknown.

usage: engine_errors.py TESSERA"""
import json, os, sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto as T, helper as h, numpy_helper as nh

import harness

TESSERA = os.path.abspath(sys.argv[1])
onnxruntime.set_default_logger_severity(3)  # it warns about the sizes that ONNX infers
rng = np.random.default_rng(5)
case = harness.check


def tessera(*words):
    return harness.call(TESSERA, *words)


def info(name, shape, kind=T.FLOAT):
    return h.make_tensor_value_info(name, kind, shape)


def save(path, nodes, inputs, outputs, weights=(), opset=18):
    g = h.make_graph(nodes, "g", inputs, outputs, [nh.from_array(a, k) for k, a in weights])
    opsets = [h.make_opsetid("", opset), h.make_opsetid("com.microsoft", 1)]
    onnx.save(h.make_model(g, ir_version=9, opset_imports=opsets), path)
    return path


def check(name, d, f, feeds, want, shard=None, devices=2):
    """Annotates the model with one sharding (None: replicated). Checks that it verifies and that a run returns `want`."""
    np.savez(d + "/in.npz", **feeds)
    a = d + "/a.onnx"
    words = ["--shard", shard] if shard else []
    rc, _, err = tessera("annotate", f, "--config", "c:%d" % devices, *words, "-o", a)
    case(name + ": annotate", rc == 0, err)
    rc, out, err = tessera("verify", a, "--inputs", d + "/in.npz", "--json")
    case(name + ": verify", rc == 0 and json.loads(out)["ok"], "exit %d %s %s" % (rc, out[-600:], err))
    rc, _, err = tessera("run", a, "--inputs", d + "/in.npz", "--outputs", d + "/out.npz")
    got = dict(np.load(d + "/out.npz")) if rc == 0 else {}
    ok = rc == 0 and all(np.abs(got[k] - v).max() <= 1e-4 * max(1, np.abs(v).max()) for k, v in want.items())
    case(name + ": run", ok, "exit %d %s %s" % (rc, err, {k: (got.get(k), v) for k, v in want.items()}))
    os.path.exists(d + "/out.npz") and os.remove(d + "/out.npz")


def experts(x, r, w1, w2, k):
    """Mixture of experts with relu in numpy: softmax over the scores, then the k highest."""
    y = np.zeros_like(x)
    for t in range(len(x)):
        p = np.exp(r[t] - r[t].max())
        p /= p.sum()
        for e in np.argsort(-r[t])[:k]:
            y[t] += p[e] * (np.maximum(x[t] @ w1[e].T, 0) @ w2[e].T)
    return y


# ONNX Runtime writes the result of MoE over its input while it still reads the input.
def moe(d):
    w1, w2 = (rng.standard_normal(s).astype("f4") * 0.3 for s in ((4, 32, 16), (4, 16, 32)))
    nodes = [h.make_node("Neg", ["x"], ["a"], name="first"),
             h.make_node("MoE", ["a", "r", "w1", "", "w2"], ["m"], domain="com.microsoft", name="moe", k=2, activation_type="relu"),
             h.make_node("Neg", ["m"], ["y"], name="last")]
    x, r = rng.standard_normal((6, 16)).astype("f4"), rng.standard_normal((6, 4)).astype("f4")
    want = {"y": -experts(-x, r, w1, w2, 2)}
    f = save(d + "/moe.onnx", nodes, [info("x", [6, 16]), info("r", [6, 4])], [info("y", [6, 16])], [("w1", w1), ("w2", w2)])
    check("MoE, replicated", d, f, {"x": x, "r": r}, want)
    check("MoE, tokens sharded", d, f, {"x": x, "r": r}, want, "moe:a={2,1:0,1}")
    nodes[1].output[0], nodes = "y", nodes[:2]
    f = save(d + "/moe.onnx", nodes, [info("x", [6, 16]), info("r", [6, 4])], [info("y", [6, 16])], [("w1", w1), ("w2", w2)])
    check("MoE as the last node", d, f, {"x": x, "r": r}, {"y": -want["y"]}, "moe:a={2,1:0,1}")


# ONNX Runtime merges Splits of one value that have different numbers of outputs.
def splits(d):
    x = rng.standard_normal((4, 12)).astype("f4")
    for opset in (11, 13):
        nodes, outputs, want = [h.make_node("Neg", ["x"], ["a"], name="first")], [], {}
        for n in (2, 3, 4):
            names = ["s%d_%d" % (n, i) for i in range(n)]
            nodes.append(h.make_node("Split", ["a"], names, name="split%d" % n, axis=1))
            nodes.append(h.make_node("Relu", [names[-1]], ["y%d" % n], name="relu%d" % n))
            nodes.append(h.make_node("Exp", [names[0]], ["z%d" % n], name="exp%d" % n))
            parts = np.split(-x, n, axis=1)
            want["y%d" % n], want["z%d" % n] = np.maximum(parts[-1], 0), np.exp(parts[0])
            outputs += [info("y%d" % n, [4, 12 // n]), info("z%d" % n, [4, 12 // n])]
        f = save(d + "/splits.onnx", nodes, [info("x", ["n", 12])],
                 [info(o.name, ["n", o.type.tensor_type.shape.dim[1].dim_value]) for o in outputs], opset=opset)
        check("Splits of operator set %d, replicated" % opset, d, f, {"x": x}, want)
        check("Splits of operator set %d, rows sharded" % opset, d, f, {"x": x}, want, "first:x={2,1:0,1}")


def caches(d):
    """Attention layers with 2 key heads of 8 elements; 5 tokens are in the caches, 3 are new."""
    nodes, inputs, outputs, hidden = [], [info("x", [1, 3, 64]), info("last", [1], T.INT32), info("total", [], T.INT32)], [], "x"
    feeds = {"x": rng.standard_normal((1, 3, 64)).astype("f4"), "last": np.array([7], "i4"), "total": np.array(8, "i4")}
    w = rng.standard_normal((32, 64)).astype("f4") * 0.2
    for k in range(3):
        past = ["past%d%s" % (k, which) for which in "kv"]
        present = ["present%d%s" % (k, which) for which in "kv"]
        nodes.append(
            h.make_node("GroupQueryAttention", [hidden, "", "", *past, "last", "total"], ["a%d" % k, *present], name="attention%d" % k,
                        domain="com.microsoft", num_heads=4, kv_num_heads=2))
        nodes.append(h.make_node("MatMul", ["a%d" % k, "w"], ["h%d" % k], name="out%d" % k))
        hidden = "h%d" % k
        inputs += [info(p, [1, 2, "past", 8]) for p in past]
        outputs += [info(p, [1, 2, None, 8]) for p in present]
        feeds.update({p: rng.standard_normal((1, 2, 5, 8)).astype("f4") for p in past})
    f = save(d + "/caches.onnx", nodes, inputs, outputs + [info(hidden, [1, 3, 64])], [("w", w)])
    words = [word for k in range(3) for word in ("--shard", "attention%d:past%dk={1,2,1,1:0,1}" % (k, k))]
    rc, _, err = tessera("annotate", f, "--config", "c:2", *words, "-o", d + "/a.onnx")
    case("caches: annotate", rc == 0, err)
    np.savez(d + "/in.npz", **feeds)
    for level in (0, 3):
        rc, out, err = tessera("verify", d + "/a.onnx", "--inputs", d + "/in.npz", "--optimize", level)
        case("caches of sharded heads, optimization level %d" % level, rc == 0, out[-600:] + err)


def rounded_activations(d):
    """A MatMul with 4-bit weights rounds a sharded sum to 8 bits. Some elements are rounded differently; verify must report
    [engine-rounds]."""
    rng = np.random.default_rng(1)  # not every draw has elements that round differently
    rows, inner, columns = 64, 600, 1024
    w = rng.standard_normal((inner, columns)).astype("f4")
    blocks = rng.standard_normal((32, columns // 32, 32))
    scales = np.abs(blocks).max(axis=2) / 7
    codes = np.clip(np.round(blocks / scales[..., None]) + 8, 0, 15).astype("u1")
    weights = [("w", w), ("q", codes[..., ::2] | codes[..., 1::2] << 4), ("s", scales.astype("f4"))]
    x = rng.standard_normal((rows, inner)).astype("f4")
    for level, said in ((4, True), (1, False)):
        nodes = [
            h.make_node("MatMul", ["x", "w"], ["a"], name="first"),
            h.make_node("MatMulNBits", ["a", "q", "s"], ["y"], name="second", domain="com.microsoft", K=columns, N=32, bits=4,
                        block_size=32, accuracy_level=level)
        ]
        f = save(d + "/rounded.onnx", nodes, [info("x", [rows, inner])], [info("y", [rows, 32])], weights)
        np.savez(d + "/in.npz", x=x)
        harness.good(TESSERA, "annotate", f, "--config", "c:2", "--shard", "first:x={1,2:0,1}", "-o", d + "/a.onnx")
        rc, out, err = tessera("verify", d + "/a.onnx", "--inputs", d + "/in.npz")
        case("activations of level %d" % level, rc == 0 and ("[engine-rounds]" in err) == said, "exit %d %s %s" % (rc, out[-600:], err))


def float8_products(d):
    """The engine fuses quantized operators, also of float8, for which the fused operators have no kernels. All values are exact in
    float8."""
    x, w = rng.integers(-3, 4, (6, 16)).astype("f4"), np.eye(16, 8, dtype="f4")
    for kind in (T.FLOAT8E4M3FN, T.FLOAT8E5M2):
        for quantized in (False, True):  # fused into MatMulIntegerToFloat or QLinearMatMul
            nodes = [
                h.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
                h.make_node("DequantizeLinear", ["xq", "s", "z"], ["a"]),
                h.make_node("DequantizeLinear", ["wq", "s", "z"], ["b"]),
                h.make_node("MatMul", ["a", "b"], ["p" if quantized else "y"], name="product")
            ]
            if quantized:
                nodes += [h.make_node("QuantizeLinear", ["p", "s", "z"], ["q"]), h.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])]
            f = save(d + "/float8.onnx", nodes, [info("x", [6, 16])], [info("y", [6, 8])], [("s", np.float32(1))], opset=19)
            m = onnx.load(f)
            m.graph.initializer.extend([h.make_tensor("wq", kind, [16, 8], w.ravel()), h.make_tensor("z", kind, [], [0.0])])
            onnx.save(m, f)
            for shard in ("product:a={1,2:0,1}", "product:b={1,2:0,1}"):
                check("float8 of kind %d, result %s, %s" % (kind, "quantized" if quantized else "of floats", shard), d, f, {"x": x},
                      {"y": x @ w}, shard)


def branches(d):
    """One branch squeezes axes that only the run knows, so its rank is unknown. The model declares the rank of the other branch."""
    for declared in (2, None):
        yes = h.make_graph([h.make_node("Relu", ["x"], ["t"])], "yes", [], [info("t", [4, 6])])
        no = h.make_graph([h.make_node("Squeeze", ["z"], ["e"])], "no", [], [h.make_empty_tensor_value_info("e")])
        no.output[0].type.tensor_type.elem_type = T.FLOAT
        nodes = [h.make_node("If", ["c"], ["b"], name="if", then_branch=yes, else_branch=no), h.make_node("Neg", ["b"], ["y"], name="last")]
        out = h.make_tensor_value_info("y", T.FLOAT, None)
        f = save(d + "/if.onnx", nodes, [info("x", [4, 6]), info("z", ["p", "q", "r"]), info("c", [], T.BOOL)], [out])
        if declared:
            m = onnx.load(f)
            m.graph.value_info.append(info("b", [4, 6]))
            onnx.save(m, f)
        x, z = rng.standard_normal((4, 6)).astype("f4"), rng.standard_normal((2, 3, 5)).astype("f4")
        for c in (True, False):
            feeds = {"x": x, "z": z, "c": np.array(c)}
            check("If of ranks 2 and 3, %s, %s" % (c, "declared" if declared else "open"), d, f, feeds,
                  {"y": -(np.maximum(x, 0) if c else z)})
        rc, out, err = tessera("shapes", f, "-o", d + "/shapes.onnx")
        m = onnx.load(d + "/shapes.onnx") if rc == 0 else None
        told = [v for v in [*m.graph.value_info, *m.graph.output]
                if v.name == "y" and v.type.tensor_type.HasField("shape")] if m else ["failed"]
        case("the rank of the result is open, %s" % ("declared" if declared else "open"), not told, told)


def windows(d):
    """Windows for which ONNX infers another size than the kernel returns. Each device has two shards, and joins them with those of the
    other."""
    x, w = rng.standard_normal((4, 2, 4, 4)).astype("f4"), rng.standard_normal((2, 3, 3, 3)).astype("f4")
    transposed = dict(auto_pad="SAME_UPPER", strides=[2, 1])
    for name, op, attributes in (("a last window that starts behind the image", "MaxPool",
                                  dict(kernel_shape=[2, 2], strides=[3, 3], pads=[1, 1, 1, 1],
                                       ceil_mode=1)), ("dilations and automatic pads", "MaxPool",
                                                       dict(kernel_shape=[3, 2], dilations=[2, 1],
                                                            auto_pad="SAME_LOWER")), ("output_padding and automatic pads", "ConvTranspose",
                                                                                      dict(transposed, output_padding=[1, 0])),
                                 ("output_shape", "ConvTranspose", dict(pads=[2, 2, 2, 2], strides=[1, 1], output_shape=[2, 2]))):
        names = ["x", "w"] if op == "ConvTranspose" else ["x"]
        nodes = [
            h.make_node(op, names, ["y", "at"][:1 + ("ceil_mode" in attributes)], name="op", **attributes),
            h.make_node("Neg", ["y"], ["z"], name="last")
        ]
        f = save(d + "/windows.onnx", nodes, [info("x", [4, 2, 4, 4])], [info("z", None)], [("w", w)] * (len(names) - 1))
        want = onnxruntime.InferenceSession(f).run(None, {"x": x})[0]
        for shard in ("op:y={4,1,1,1:0,1,0,1}", "op:x={1,2,1,1:0,1}", "last:y={4,1,1,1:0,1,0,1}"):
            check("%s: %s, %s" % (op, name, shard), d, f, {"x": x}, {"z": want}, shard)


# Small graphs with such windows that random shardings broke: (nodes, inputs, weights, output, devices, shardings).
WINDOWS_AND_MORE = {
    "a window larger than its input": ([
        h.make_node("MaxPool", ["x"], ["p"], kernel_shape=[3], dilations=[2], strides=[3]),
        h.make_node("Split", ["p", "parts"], ["a", "y"], name="n", axis=-2)
    ], dict(x=(2, 4, 3)), dict(parts=np.array([3, 1])), "y", 2, ["n:y={2,1,1:1,0}"]),
    "a window larger than its input along one axis": ([
        h.make_node("MaxPool", ["x"], ["p"], kernel_shape=[3, 3], dilations=[2, 2], pads=[0, 0, 1, 1], strides=[2, 3]),
        h.make_node("Softmax", ["p"], ["y"], name="n", axis=-4)
    ], dict(x=(3, 6, 8, 2)), {}, "y", 3, ["n:y={1,1,2,1:1,2}"]),
    "no window": ([h.make_node("MaxPool", ["x"], ["y"], name="n", kernel_shape=[2, 1], dilations=[2, 1], strides=[2, 3],
                               ceil_mode=1)], dict(x=(4, 2, 1, 3)), {}, "y", 5, ["n:x={3,1,1,1:(0,3,4),1,2}"]),
    "several shards on each device": ([
        h.make_node("ConvTranspose", ["x", "w"], ["y"], name="n", auto_pad="SAME_UPPER", output_padding=[0, 1], strides=[1, 2])
    ], dict(x=(8, 3, 4, 4)), dict(w=(3, 2, 2, 3)), "y", 4, ["n:y={8,2,1,1:0,(0,1),1,2,1,2,1,2,1,(0,2),3,0,2,2,2,2}"]),
    "memory planned for another size": ([
        h.make_node("GlobalAveragePool", ["b"], ["y0"]),
        h.make_node("MatMul", ["c", "b"], ["y1"]),
        h.make_node("ConvTranspose", ["v", "w", "e"], ["y2"], name="n", auto_pad="SAME_UPPER", output_padding=[1, 0], strides=[2, 1]),
        h.make_node("Resize", ["w", "", "", "sizes"], ["y3"], name="r", mode="linear", coordinate_transformation_mode="pytorch_half_pixel"),
        h.make_node("Cast", ["y1"], ["y4"], name="d", to=T.DOUBLE),
        h.make_node("Mul", ["a", "y1"], ["y5"]),
        h.make_node("Gemm", ["c", "g"], ["y6"], alpha=0.5, beta=0.0, transB=1)
    ], dict(a=(1, ), b=(2, 2, 3, 1), c=(8, 3), e=(2, ), v=(2, 2, 1, 1)), dict(w=(2, 2, 2, 3), sizes=np.array([2, 2, 2, 9]),
                                                                              g=(4, 3)), "y0 y1 y2 y3 y4 y5 y6", 3,
                                        ["n:w={2,1,1,1:(0,2),1}", "r:y3={1,1,1,3:0,2,1}", "d:y1={1,1,3,1:0,1,2}"]),
}


def windows_and_more(d):
    """With numbers and without as sizes of the inputs."""
    for name, (nodes, inputs, weights, outputs, devices, shards) in WINDOWS_AND_MORE.items():
        feeds = {k: rng.standard_normal(shape).astype("f4") for k, shape in inputs.items()}
        weights = [(k, v if isinstance(v, np.ndarray) else rng.standard_normal(v).astype("f4")) for k, v in weights.items()]
        np.savez(d + "/in.npz", **feeds)
        for static in (True, False):
            declared = [info(k, shape if static else [None] * len(shape)) for k, shape in inputs.items()]
            outs = [h.make_tensor_value_info(o, T.DOUBLE if o == "y4" else T.FLOAT, None) for o in outputs.split()]
            f = save(d + "/more.onnx", nodes, declared, outs, weights)
            rc, _, err = tessera("annotate", f, "--config", "c:%d" % devices, *[w for s in shards for w in ("--shard", s)], "-o",
                                 d + "/a.onnx")
            case("%s: annotate" % name, rc == 0, err)
            for level in (0, 3):
                rc, out, err = tessera("verify", d + "/a.onnx", "--inputs", d + "/in.npz", "--optimize", level)
                case("%s, %s, level %d" % (name, "numbers" if static else "open", level), rc == 0, out[-300:] + err)


def no_result(d):
    """QLinearSoftmax gives no result for an empty tensor: the error says so. Empty shards of a tensor with elements do not matter."""
    weights = [("xs", np.float32(0.1)), ("xz", np.uint8(3)), ("ys", np.float32(1 / 256)), ("yz", np.uint8(0))]
    nodes = [h.make_node("QLinearSoftmax", ["x", "xs", "xz", "ys", "yz"], ["y"], name="n", domain="com.microsoft", axis=-1, opset=13)]
    x, y = (info(name, ["B", 3, 8], T.UINT8) for name in "xy")
    f = save(d + "/q.onnx", nodes, [x], [y], [(k, np.array(v)) for k, v in weights])
    rc, _, err = tessera("annotate", f, "--config", "c:2", "--shard", "n:x={2,1,1}", "--shard", "n:y={2,1,1}", "-o", d + "/a.onnx")
    case("softmax: annotate", rc == 0, err)
    for rows in (1, 2):
        np.savez(d + "/in.npz", x=rng.integers(0, 255, (rows, 3, 8)).astype("u1"))
        rc, out, err = tessera("verify", d + "/a.onnx", "--inputs", d + "/in.npz")
        case("softmax of %d rows" % rows, rc == 0, out + err)
    np.savez(d + "/in.npz", x=np.zeros((0, 3, 8), "u1"))
    rc, out, err = tessera("verify", f, "--devices", 2, "--inputs", d + "/in.npz")
    case("softmax of no rows", rc == 1 and "gives no result for an empty tensor" in err, "exit %d %s %s" % (rc, out, err))


harness.run([no_result, moe, splits, caches, rounded_activations, float8_products, branches, windows, windows_and_more])
harness.finish()
