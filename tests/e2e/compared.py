# SPDX-License-Identifier: Apache-2.0
"""Tests how `verify` compares numbers, and what docs/numbers.md promises where sharded and unsharded results may differ.

usage: compared.py TESSERA"""
import json, os, subprocess, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

import harness

info, tensor, node = helper.make_tensor_value_info, numpy_helper.from_array, helper.make_node
rng = np.random.default_rng(5)
CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


def model(nodes, ins, outs, init=(), opset=21):
    g = helper.make_graph(nodes, "numbers", [info(n, *t) for n, t in ins.items()], [info(n, *t) for n, t in outs.items()], list(init))
    return helper.make_model(g, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


class Program:
    def __init__(self, tessera, folder):
        self.tessera, self.at = tessera, folder

    def call(self, *words):
        p = subprocess.run([self.tessera, *words], capture_output=True, text=True, timeout=120)
        return p.returncode, p.stdout, p.stderr

    def annotate(self, m, *shards):
        onnx.save(m, self.at + "/m.onnx")
        words = [w for s in shards for w in ("--shard", s)]
        rc, _, err = self.call("annotate", self.at + "/m.onnx", "--config", "c:2", *words, "-o", self.at + "/a.onnx")
        assert rc == 0, err

    def verify(self, *words):
        rc, out, err = self.call("verify", self.at + "/a.onnx", "--json", *words)
        return rc, json.loads(out), err

    def run(self, **feeds):
        np.savez(self.at + "/in.npz", **feeds)
        rc, _, err = self.call("run", self.at + "/a.onnx", "--inputs", self.at + "/in.npz", "--outputs", self.at + "/out.npz")
        assert rc == 0, err
        return dict(np.load(self.at + "/out.npz"))


@case
def a_declared_rank_that_no_run_has(p):
    """onnx infers one dimension too many for a Squeeze of axes [3, 1]. Tessera must not trust it: it would shard later nodes along wrong
    axes."""
    m = model([
        node("Unsqueeze", ["x"], ["u"], axes=[1, 3]),
        node("Squeeze", ["u"], ["s"], axes=[3, 1]),
        node("Slice", ["s"], ["c"], starts=[-3], ends=[99], axes=[2]),
        node("Relu", ["c"], ["y"])
    ], {"x": (T.FLOAT, ["b", 4, 6])}, {"y": (T.FLOAT, None)}, opset=9)
    m.graph.value_info.extend([info("s", T.FLOAT, ["b", 1, 4, 6]), info("c", T.FLOAT, ["b", 1, 3, 6])])
    onnx.save(m, p.at + "/m.onnx")
    rc, out, err = p.call("verify", p.at + "/m.onnx", "--random", "8", "--devices", "3", "--shape", "x:4x4x6", "--dim", "b=4", "--quiet")
    assert rc == 0, out + err


@case
def a_float_product_as_double(p):
    """The tolerance of a float product that is cast to double is that of float. A double product must be much more precise."""
    for kind, to, right in ((T.FLOAT, T.DOUBLE, True), (T.DOUBLE, T.DOUBLE, True)):
        w = tensor(rng.standard_normal((700, 16)).astype("f4" if kind == T.FLOAT else "f8"), "w")
        p.annotate(model([node("MatMul", ["x", "w"], ["h"], name="mm"), node("Cast", ["h"], ["y"], name="c", to=to)],
                         {"x": (kind, [16, 700])}, {"y": (to, [16, 16])}, [w]), "mm:x={1,2:0,1}")
        rc, doc, err = p.verify()
        assert (rc == 0) == right and doc["ok"] == right, err
    assert doc["outputs"][0]["max_rel"] < 1e-12, doc


@case
def weights_of_four_bits(p):
    """The engine fuses DequantizeLinear and MatMul into 8-bit arithmetic, differently in the sharded model. verify must make it use
    floats."""
    w = helper.make_tensor("w", T.INT4, [256, 64], rng.integers(-8, 8, 256 * 64).tolist())
    scale = tensor((rng.random((8, 64)) * 0.1 + 0.05).astype("f4"), "s")
    p.annotate(
        model([node("DequantizeLinear", ["w", "s"], ["d"], name="dq", axis=0, block_size=32),
               node("MatMul", ["x", "d"], ["y"], name="mm")], {"x": (T.FLOAT, [8, 256])}, {"y": (T.FLOAT, [8, 64])}, [w, scale]),
        "mm:d={2,1:0,1}")
    rc, doc, err = p.verify()
    assert rc == 0 and doc["ok"], (doc["outputs"], err)


@case
def dropouts_that_draw_nothing(p):
    """From opset 7 to 11 a Dropout has only an inference form, so its result is not random and must be compared."""
    for opset in (7, 10, 11, 13):
        p.annotate(
            model([node("Dropout", ["x"], ["d"], name="drop"),
                   node("Relu", ["d"], ["y"], name="relu")], {"x": (T.FLOAT, [4, 6])}, {"y": (T.FLOAT, [4, 6])}, opset=opset),
            "drop:x={1,2:0,1}")
        rc, doc, err = p.verify()
        assert rc == 0 and doc["ok"] and "verify-random" not in err, (opset, err)


@case
def outputs_of_random_numbers(p):
    """Random outputs (z, b) are reported and not compared; y is compared."""
    p.annotate(
        model([
            node("RandomNormalLike", ["x"], ["r"], name="draw"),
            node("Add", ["r", "x"], ["z"], name="add"),
            node("Relu", ["x"], ["y"], name="relu"),
            node("Greater", ["r", "x"], ["b"], name="more")
        ], {"x": (T.FLOAT, [4, 6])}, {"z": (T.FLOAT, [4, 6]), "y": (T.FLOAT, [4, 6]), "b": (T.BOOL, [4, 6])}), "add:x={1,2:0,1}")
    rc, doc, err = p.verify()
    assert rc == 0 and doc["ok"], err
    assert err.count("warning[verify-random]") == 2 and "value 'z'" in err and "value 'b'" in err, err


# Shards, runs and returns the outputs.
def cut(p, nodes, ins, outs, shard, init=(), **feeds):
    p.annotate(model(nodes, ins, outs, init), shard)
    return p.run(**feeds)


AXIS = tensor(np.array([1]), "axis")


@case
def nan_in_sums(p):
    """A row with a NaN anywhere has the result NaN. Other rows are not affected."""
    x = rng.standard_normal((4, 6)).astype("f4")
    x[0, 0] = x[1, 2] = x[2, 5] = np.nan
    for op in ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"):
        y = cut(p, [node(op, ["x", "axis"], ["y"], name="n", keepdims=0)], {"x": (T.FLOAT, [4, 6])}, {"y": (T.FLOAT, [4])}, "n:x={1,2:0,1}",
                [AXIS], x=x)["y"]
        assert np.isnan(y).tolist() == [True, True, True, False], (op, y)
    y = cut(p, [node("Softmax", ["x"], ["y"], name="n", axis=1)], {"x": (T.FLOAT, [4, 6])}, {"y": (T.FLOAT, [4, 6])}, "n:x={1,2:0,1}",
            x=x)["y"]
    assert np.isnan(y[:3]).all() and not np.isnan(y[3]).any(), y


@case
def nan_among_the_greatest(p):
    """With NaN, indices must be inside the axis. Rows without a NaN must be right."""
    x = rng.standard_normal((5, 6)).astype("f4")
    x[0, 0] = x[1, 2] = x[2, 5] = np.nan
    x[3] = np.nan
    for op, right in (("ArgMax", np.argmax), ("ArgMin", np.argmin)):
        for last in (0, 1):
            y = cut(p, [node(op, ["x"], ["y"], name="n", axis=1, keepdims=0, select_last_index=last)], {"x": (T.FLOAT, [5, 6])},
                    {"y": (T.INT64, [5])}, "n:x={1,2:0,1}", x=x)["y"]
            assert (y >= 0).all() and (y < 6).all() and y[4] == right(x[4]), (op, last, y)
    out = cut(p, [node("TopK", ["x", "k"], ["v", "i"], name="n", axis=1)], {"x": (T.FLOAT, [5, 6])},
              {"v": (T.FLOAT, [5, 2]), "i": (T.INT64, [5, 2])}, "n:x={1,2:0,1}", [tensor(np.array([2]), "k")], x=x)
    assert (out["i"] >= 0).all() and (out["i"] < 6).all() and out["i"][4].tolist() == np.argsort(-x[4])[:2].tolist(), out
    for op, right in (("ReduceMax", np.max), ("ReduceMin", np.min)):
        y = cut(p, [node(op, ["x", "axis"], ["y"], name="n", keepdims=0)], {"x": (T.FLOAT, [5, 6])}, {"y": (T.FLOAT, [5])}, "n:x={1,2:0,1}",
                [AXIS], x=x)["y"]
        assert y[4] == right(x[4]) and np.isnan(y[3]), (op, y)


@case
def integer_sums(p):
    """Sums are exact as long as partial sums fit in the type. Overflow gives some number, not a failure."""
    for kind, dtype in ((T.INT32, "i4"), (T.INT64, "i8")):
        for large in (np.iinfo(dtype).max // 8, np.iinfo(dtype).max // 3):
            x = np.array([[large] * 4 + [-large] * 4], dtype)
            y = cut(p, [node("ReduceSum", ["x", "axis"], ["y"], name="n", keepdims=0)], {"x": (kind, [1, 8])}, {"y": (kind, [1])},
                    "n:x={1,2:0,1}", [AXIS], x=x)["y"]
            assert y.dtype == dtype and (y[0] == 0 or large > np.iinfo(dtype).max // 8), (dtype, large, y)


@case
def half_precision_parts(p):
    """Results are finite as long as partial sums are. If these overflow, results must be infinite or NaN, never finite and wrong."""
    for scale, finite in ((10, True), (200, False)):
        x, w = np.full((2, 8), scale, "f2"), np.full((8, 2), scale, "f2")
        w[4:] *= -1
        y = cut(p, [node("MatMul", ["x", "w"], ["y"], name="n")], {"x": (T.FLOAT16, [2, 8])}, {"y": (T.FLOAT16, [2, 2])}, "n:x={1,2:0,1}",
                [tensor(w, "w")], x=x)["y"]
        assert (y == 0).all() if finite else not np.isfinite(y).any(), (scale, y)
        y = cut(p, [node("MatMul", ["x", "w"], ["y"], name="n")], {"x": (T.FLOAT16, [2, 8])}, {"y": (T.FLOAT16, [2, 2])}, "n:x={2,1:0,1}",
                [tensor(w, "w")], x=x)["y"]
        assert (y == 0).all(), "rows: %s" % y


@case
def numbers_of_turns(p):
    """A sharded Loop returns its iteration numbers. With an Identity in the body the unsharded run returns the same."""
    for named in (False, True):
        give = [node("Identity", ["turn"], ["number"], name="number")] if named else []
        body = helper.make_graph([node("Identity", ["go"], ["on"], name="go"),
                                  node("Add", ["v", "v"], ["more"], name="add")] + give, "body",
                                 [info("turn", T.INT64, []), info("go", T.BOOL, []),
                                  info("v", T.FLOAT, [2, 4])],
                                 [info("on", T.BOOL, []),
                                  info("more", T.FLOAT, [2, 4]),
                                  info("number" if named else "turn", T.INT64, [])])
        out = cut(p, [node("Loop", ["times", "", "start"], ["y", "turns"], name="n", body=body)], {"start": (T.FLOAT, [2, 4])},
                  {"y": (T.FLOAT, [2, 4]), "turns": (T.INT64, [3])}, "n:start={1,2:0,1}", [tensor(np.array(3), "times")], start=np.ones(
                      (2, 4), "f4"))
        assert out["turns"].tolist() == [0, 1, 2] and (out["y"] == 8).all(), out
        rc, doc, err = p.verify()
        assert not named or rc == 0, err


@case
def casts_left_out(program):
    """The engine removes the first of two consecutive Casts. verify must report that, and both workarounds in its message must help."""
    def casts(outs):
        return model([node("Cast", ["x"], ["p"], "narrow", to=T.FLOAT16),
                      node("Cast", ["p"], ["y"], "whole", to=T.UINT8)], {"x": (T.FLOAT, [8, 4])}, outs)
    np.savez(program.at + "/in.npz", x=np.full((8, 4), 0.99998, "f4"))
    byte, half = {"y": (T.UINT8, [8, 4])}, {"p": (T.FLOAT16, [8, 4])}
    for outs, second, rc_wanted in ((byte, "{1,2:0,1}", 1), (byte, "{2,1:0,1}", 0), ({**byte, **half}, "{1,2:0,1}", 0)):
        program.annotate(casts(outs), "narrow:p={2,1:0,1}", "whole:y=" + second)
        rc, said, err = program.verify("--inputs", program.at + "/in.npz")
        codes = [f["code"] for f in said["findings"]]
        assert rc == rc_wanted and ("engine-shortcut" in codes) == (rc != 0), (rc, codes, err)
        if rc:
            found = next(f for f in said["findings"] if f["code"] == "engine-shortcut")
            assert "the unsharded model" in found["message"] and "'p'" in str(found) and "in the same way" in str(found), found


@case
def ranks_of_no_turns(p):
    """A sharded Loop without iterations must return a scan output of the declared rank, whether or not the engine can infer the rank."""
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["on"], name="go"),
            node("Add", ["v", "v"], ["more"], name="add"),
            node("Neg", ["more"], ["each"], name="neg")
        ], "body",
        [info("turn", T.INT64, []), info("go", T.BOOL, []), info("v", T.FLOAT, None)],
        [info("on", T.BOOL, []), info("more", T.FLOAT, None),
         info("each", T.FLOAT, None)])
    out = cut(p, [node("Loop", ["times", "", "start"], ["y", "turns"], name="n", body=body)], {"start": (T.FLOAT, [2, 4])},
              {"y": (T.FLOAT, [2, 4]), "turns": (T.FLOAT, None)}, "n:start={1,2:0,1}", [tensor(np.array(0), "times")], start=np.ones((2, 4),
                                                                                                                                     "f4"))
    assert out["turns"].ndim == 3 and out["turns"].shape[0] == 0 and (out["y"] == 1).all(), out["turns"].shape


@case
def results_of_no_turns(p):
    """The model does not declare what a Loop stacks. Without iterations ONNX Runtime returns [0] then, in which readers find no columns."""
    for dims in ([8, 4], ["a", "b"]):
        body = helper.make_graph([node("Identity", ["go"], ["on"]), node("Tanh", ["v"], ["next"]), node("Neg", ["v"], ["each"])], "body",
                                 [info("turn", T.INT64, []), info("go", T.BOOL, []), info("v", T.FLOAT, None)],
                                 [info("on", T.BOOL, []), info("next", T.FLOAT, None), info("each", T.FLOAT, None)])
        nodes = [node("Loop", ["times", "", "start"], ["y", "turns"], name="loop", body=body), node("Abs", ["turns"], ["z"], name="abs")]
        m = model(nodes, {"start": (T.FLOAT, dims), "times": (T.INT64, [])}, {n: (T.FLOAT, None) for n in ("y", "turns", "z")})
        p.annotate(m, "abs:turns={1,1,2:1,0}", "abs:z={1,1,2:0,1}")
        for times in (0, 2):
            np.savez(p.at + "/in.npz", start=np.ones((8, 4), "f4"), times=np.array(times))
            rc, out, err = p.call("verify", p.at + "/a.onnx", "--inputs", p.at + "/in.npz")
            assert rc == 0, (dims, times, out, err)


@case
def inputs_that_are_known_to_fit(p):
    """The engine refuses these inputs. With recorded outputs it lacks a feature (exit 7), else the inputs may be wrong (exit 1)."""
    arrays = {"x": np.ones((1, 1, 3, 3), "u1"), "w": np.ones((2, 1, 2, 2), "u1"), "zx": np.array(1, "u1"), "zw": np.ones(2, "u1")}
    m = model([node("ConvInteger", list(arrays), ["y"], name="n")], {n: (T.UINT8, a.shape) for n, a in arrays.items()},
              {"y": (T.INT32, [1, 2, 2, 2])})
    p.annotate(m, "n:w={2,1,1,1:0,1}")
    folder = p.at + "/test_data_set_0/"
    os.mkdir(folder)
    for k, (name, a) in enumerate(arrays.items()):
        onnx.save_tensor(tensor(a, name), folder + "input_%d.pb" % k)
    assert p.call("verify", p.at + "/a.onnx", "--inputs", folder)[0] == 1
    onnx.save_tensor(tensor(np.zeros((1, 2, 2, 2), "i4"), "y"), folder + "output_0.pb")
    assert p.call("verify", p.at + "/a.onnx", "--inputs", folder)[0] == 7


if __name__ == "__main__":
    harness.run([(name, lambda folder, case: case(Program(sys.argv[1], folder)), case) for name, case in CASES.items()])
    harness.finish()
