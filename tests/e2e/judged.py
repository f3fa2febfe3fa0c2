# SPDX-License-Identifier: Apache-2.0
"""How `verify` judges numbers, and what docs/numbers.md promises where cut and whole may differ.

usage: judged.py TESSERA [CASE...]"""
import json, subprocess, sys, tempfile

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

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
def a_float_product_as_double(p):
    """... is as precise as a float product; a double one is not let off so easily."""
    for kind, to, right in ((T.FLOAT, T.DOUBLE, True), (T.DOUBLE, T.DOUBLE, True)):
        w = tensor(rng.standard_normal((700, 16)).astype("f4" if kind == T.FLOAT else "f8"), "w")
        p.annotate(model([node("MatMul", ["x", "w"], ["h"], name="mm"), node("Cast", ["h"], ["y"], name="c", to=to)],
                         {"x": (kind, [16, 700])}, {"y": (to, [16, 16])}, [w]), "mm:x={1,2:0,1}")
        rc, doc, err = p.verify()
        assert (rc == 0) == right and doc["ok"] == right, err
    assert doc["outputs"][0]["max_rel"] < 1e-12, doc


@case
def weights_of_four_bits(p):
    """The engine fuses DequantizeLinear and MatMul into arithmetic of 8 bits, whole and cut differently: verify has it use floats."""
    w = helper.make_tensor("w", T.INT4, [256, 64], rng.integers(-8, 8, 256 * 64).tolist())
    scale = tensor((rng.random((8, 64)) * 0.1 + 0.05).astype("f4"), "s")
    p.annotate(model([node("DequantizeLinear", ["w", "s"], ["d"], name="dq", axis=0, block_size=32), node("MatMul", ["x", "d"], ["y"], name="mm")],
                     {"x": (T.FLOAT, [8, 256])}, {"y": (T.FLOAT, [8, 64])}, [w, scale]), "mm:d={2,1:0,1}")
    rc, doc, err = p.verify()
    assert rc == 0 and doc["ok"], (doc["outputs"], err)


@case
def outputs_of_random_numbers(p):
    """They are told, and nothing else is let off: y is compared, z is not."""
    p.annotate(model([node("RandomNormalLike", ["x"], ["r"], name="draw"), node("Add", ["r", "x"], ["z"], name="add"), node("Relu", ["x"], ["y"], name="relu"),
                      node("Greater", ["r", "x"], ["b"], name="more")],
                     {"x": (T.FLOAT, [4, 6])}, {"z": (T.FLOAT, [4, 6]), "y": (T.FLOAT, [4, 6]), "b": (T.BOOL, [4, 6])}), "add:x={1,2:0,1}")
    rc, doc, err = p.verify()
    assert rc == 0 and doc["ok"], err
    assert err.count("warning[verify-random]") == 2 and "value 'z'" in err and "value 'b'" in err, err


def main():
    failed, names = 0, sys.argv[2:] or list(CASES)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="tessera-numbers-") as folder:
            try:
                CASES[name](Program(sys.argv[1], folder))
                print("ok " + name)
            except Exception as x:
                failed += 1
                print("not ok %s\n# %s: %s" % (name, type(x).__name__, str(x)[:1500].replace("\n", "\n# ")))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
