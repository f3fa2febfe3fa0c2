# SPDX-License-Identifier: Apache-2.0
"""Texts that travel between devices: gathered, resharded, handed from stage to stage, over threads, shared memory and MPI; the same as whole.

usage: texts.py TESSERA"""
import glob, json, os, shutil, subprocess, sys, tempfile, traceback

import numpy as np
import onnx
from onnx import TensorProto as T, helper as h, numpy_helper as nh

TESSERA = sys.argv[1]
os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=0")  # MPI keeps things to the end
WORDS = ["", "a", "Grüße", "日本語", "😀", "x" * 5000, " ", "end"]
CASES = {
    "rows over two": (2, [["one:x={2,1:0,1}"]]),
    "rows over three, unevenly": (3, [["one:x={3,1:0,1,2}"]]),
    "columns over three, unevenly": (3, [["one:x={1,3:0,1,2}"]]),
    "rows, then columns": (2, [["one:x={2,1:0,1}", "two:h={1,2:0,1}"]]),
    "columns, then rows on four": (4, [["one:x={1,4:0,1,2,3}", "two:h={4,1:0,1,2,3}"]]),
    "both at once": (4, [["one:x={2,2:0,1,2,3}", "two:h={4,1:3,2,1,0}"]]),
    "one device to another": (2, [["one:x={1,1:0}", "two:h={1,1:1}"]]),
    "two stages": (2, []),
}


def tessera(*args, launch=()):
    p = subprocess.run([*launch, TESSERA, *args], capture_output=True, text=True, errors="replace", timeout=120)
    assert p.returncode == 0, (args, p.returncode, p.stdout, p.stderr)
    return p.stdout


def make(d, sizes):
    """h = x + x (joined), y = h + c, and how many equal the first of c."""
    rng = np.random.default_rng(5)
    rows, columns = 7, 6
    x = np.array([WORDS[k] for k in rng.integers(0, len(WORDS), rows * columns)], dtype=object).reshape(rows, columns)
    c = np.array([WORDS[k] for k in rng.integers(0, len(WORDS), columns)], dtype=object)
    g = h.make_graph([h.make_node("StringConcat", ["x", "x"], ["h"], name="one"), h.make_node("StringConcat", ["h", "c"], ["y"], name="two")], "g",
                     [h.make_tensor_value_info("x", T.STRING, sizes)], [h.make_tensor_value_info("y", T.STRING, sizes)], [nh.from_array(c, "c")])
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 20)], ir_version=9), d + "/m.onnx")
    os.makedirs(d + "/set", exist_ok=True)
    onnx.save_tensor(nh.from_array(x, "x"), d + "/set/input_0.pb")
    return np.array([[a + a + b for a, b in zip(row, c)] for row in x], dtype=object)


def check(d, name, n, edits, sizes):
    want = make(d, sizes)
    words = [w for e in (edits[0] if edits else []) for w in ("--shard", e)] or ["--stage", "one=0", "--stage", "two=1"]
    tessera("annotate", d + "/m.onnx", "--config", "c:%d" % n, *words, "-o", d + "/cut.onnx")
    doc = json.loads(tessera("verify", d + "/cut.onnx", "--inputs", d + "/set", "--json"))
    assert doc["ok"] and sum(doc["collectives"].values()) >= 1, doc
    assert sizes[0] != 7 or not doc["replicated"], doc
    shutil.rmtree(d + "/parts", ignore_errors=True)
    tessera("partition", d + "/cut.onnx", "-o", d + "/parts")
    ways = [(), ("shm",)]
    if shutil.which("mpirun") and glob.glob(os.path.join(os.path.dirname(TESSERA), "libtessera_mpi_openmpi.so")) and n < 4 and sizes[0] == 7:
        ways.append(("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(n)))
    for way in ways:
        shm = way == ("shm",)
        tessera("run", d + "/parts", "--inputs", d + "/set", "--outputs", d + "/y.npy", *(["--transport", "shm"] if shm else []), launch=() if shm else way)
        assert np.array_equal(np.load(d + "/y.npy"), want.astype("U")), way


failed = 0
for name, (n, edits) in CASES.items():
    for sizes in ([7, 6], ["rows", "columns"]):
        try:
            with tempfile.TemporaryDirectory(prefix="tessera-test-") as d:
                check(d, name, n, edits, sizes)
            print("ok - %s, sizes %s" % (name, "known" if sizes[0] == 7 else "not known"), flush=True)
        except Exception:
            failed += 1
            print("not ok - %s, sizes %s" % (name, sizes), flush=True)
            traceback.print_exc()
sys.exit(1 if failed else 0)
