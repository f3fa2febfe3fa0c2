# SPDX-License-Identifier: Apache-2.0
"""Tests engines that add pairs of 8-bit products in 16 bits (ONNX Runtime on x86 without VNNI), so that sums may saturate.

`doctor` must report that. `verify` must report it if it may explain a difference between the sharded and the unsharded run. Numbers
that cannot saturate must be exact. With a CPU name as second argument, TESSERA must be a program that runs on that emulated CPU; on
Haswell it must saturate. Without it, the test also runs on an emulated Haswell if qemu is installed.

usage: saturation.py TESSERA [CPU]"""
import json, os, shutil, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

import harness

CPU = "Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm"  # without the features that qemu cannot emulate
rng = np.random.default_rng(2)


def call(tessera, *words):
    return harness.call(*tessera, *words, timeout=300)


def product(folder, tessera, largest):
    """Runs a MatMulInteger over 66 products, sharded into 2 times 33, so that the second shard adds other pairs. `largest`: the largest
    weight."""
    w = rng.integers(-largest, largest + 1, (66, 16)).astype("i1")
    g = helper.make_graph([helper.make_node("MatMulInteger", ["x", "w"], ["y"], name="mm")], "g",
                          [helper.make_tensor_value_info("x", T.UINT8, [8, 66])], [helper.make_tensor_value_info("y", T.INT32, [8, 16])],
                          [numpy_helper.from_array(w, "w")])
    onnx.save(helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder + "/m.onnx")
    np.savez(folder + "/in.npz", x=rng.integers(200, 256, (8, 66)).astype("u1"))
    rc, _, err = call(tessera, "annotate", folder + "/m.onnx", "--config", "c:2", "--shard", "mm:x={1,2:0,1}", "-o", folder + "/a.onnx")
    assert rc == 0, err
    return call(tessera, "verify", folder + "/a.onnx", "--inputs", folder + "/in.npz")


def check(folder, tessera, must):
    """must: True if this engine is known to saturate; None if unknown."""
    rc, out, err = call(tessera, "doctor", "--json")
    assert rc == 0, err
    state = [i["state"] for i in json.loads(out)["items"] if i["what"] == "8-bit products"]
    assert state and state[0] in ("ok", "inexact"), state
    assert must is None or (state == ["inexact"]) == must, state
    rc, out, err = product(folder, tessera, 60)
    assert rc == 0, "small weights: %s" % err
    rc, out, err = product(folder, tessera, 127)
    if state == ["ok"]:
        assert rc == 0 and "engine-saturates" not in err, err
    elif rc:
        assert "warning[engine-saturates]" in err and "reduce_range" in err, err
    return rc


def saturates(folder, words, must):
    rc = check(folder, words, must)
    assert not must or rc == 1, "saturated products did not differ"


def main():
    tessera, cpu = [sys.argv[1]], sys.argv[2] if len(sys.argv) > 2 else None
    cases = {"this CPU" if not cpu else cpu: (tessera, True if cpu == "Haswell" else None)}
    if not cpu and shutil.which("qemu-x86_64") and os.uname().machine == "x86_64":
        cases["an emulated Haswell"] = (["qemu-x86_64", "-cpu", CPU] + tessera, True)
    harness.run([(name, saturates, words, must) for name, (words, must) in cases.items()])
    if not cpu and len(cases) == 1:
        harness.skip("an emulated Haswell", "there is no qemu-x86_64: tools/setup emulate")
    harness.finish()


if __name__ == "__main__":
    main()
