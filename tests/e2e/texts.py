# SPDX-License-Identifier: Apache-2.0
"""Tests strings that are communicated: gathered, resharded and sent between stages, over threads, shared memory and MPI.

Results must equal the unsharded run. Each operator that moves strings is also sharded at random (strided, unequal, on meshes).

usage: texts.py TESSERA [all]     without `all` each sharding over one transport, fewer random shardings"""
import glob, json, os, shutil, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper as h, numpy_helper as nh

import harness

TESSERA = sys.argv[1]
os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=0")  # MPI frees some memory only at exit
WORDS = ["", "a", "Grüße", "日本語", "😀", "x" * 5000, " ", "end"]
SIZES = [9, 6]
TRIALS = 12 if harness.ALL else 5  # random shardings of an operator
CASES = {
    "rows over two": (2, [["one:x={2,1:0,1}"]]),
    "rows over three, unevenly": (3, [["one:x={3,1:0,1,2}"]]),
    "columns over three, unevenly": (3, [["one:x={1,3:0,1,2}"]]),
    "rows, then columns": (2, [["one:x={2,1:0,1}", "two:h={1,2:0,1}"]]),
    "columns, then rows on four": (4, [["one:x={1,4:0,1,2,3}", "two:h={4,1:0,1,2,3}"]]),
    "both at once": (4, [["one:x={2,2:0,1,2,3}", "two:h={4,1:3,2,1,0}"]]),
    "one device to another": (2, [["one:x={1,1:0}", "two:h={1,1:1}"]]),
    "rows, every third": (3, [["one:x={3*3/3,1:2,0,1}"]]),
    "columns, every other, then rows": (2, [["one:x={1,3*2/2:0,1}", "two:h={2,1:0,1}"]]),
    "columns, every other, to every third": (6, [["one:x={1,3*2/2:0,1}", "two:h={1,2*3/3:3,4,5}"]]),
    "two stages": (2, []),
}
# Operators that move strings: name, shapes of string inputs, other constants, attributes, number of outputs. Gather selects single elements
# only, because ONNX Runtime copies only the first string of each row (docs/numbers.md).
MOVERS = [
    ("Identity", [(6, 4)], {}, {}, 1),
    ("Transpose", [(6, 4, 5)], {}, dict(perm=[2, 0, 1]), 1),
    ("Reshape", [(6, 4)], {"shape": [4, 6]}, {}, 1),
    ("Reshape", [(6, 4)], {"shape": [3, 8]}, {}, 1),
    ("Flatten", [(6, 2, 4)], {}, dict(axis=2), 1),
    ("Squeeze", [(6, 1, 4)], {"axes": [1]}, {}, 1),
    ("Unsqueeze", [(6, 4)], {"axes": [1]}, {}, 1),
    ("Slice", [(9, 4)], {"starts": [1], "ends": [8], "axes": [0]}, {}, 1),
    ("Slice", [(9, 8)], {"starts": [7, 1], "ends": [0, 8], "axes": [0, 1], "steps": [-2, 3]}, {}, 1),
    ("Concat", [(3, 4), (5, 4)], {}, dict(axis=0), 1),
    ("Concat", [(6, 3), (6, 4), (6, 1)], {}, dict(axis=1), 1),
    ("Split", [(6, 8)], {"split": [3, 4, 1]}, dict(axis=1), 3),
    ("Expand", [(6, 1)], {"shape": [2, 6, 4]}, {}, 1),
    ("Tile", [(6, 4)], {"repeats": [2, 3]}, {}, 1),
    ("Where", [(6, 4), (6, 4)], {"condition": [[True], [False], [True], [True], [False], [True]]}, {}, 1),
    ("Compress", [(6, 4)], {"condition": [True, False, True, True, False, True]}, dict(axis=0), 1),
    ("Gather", [(6, 4)], {"indices": [3, 0, 0, 2]}, dict(axis=1), 1),
    ("GatherElements", [(6, 4)], {"indices": [[5, 0, 1, 2], [3, 3, 0, 4]]}, dict(axis=0), 1),
    ("GatherND", [(6, 4)], {"indices": [[5], [0], [3], [3]]}, {}, 1),
    ("ScatterElements", [(6, 4), (2, 4)], {"indices": [[5, 0, 1, 2], [3, 3, 0, 4]]}, dict(axis=0), 1),
    ("StringConcat", [(6, 4), (3, 1, 4)], {}, {}, 1),
]


def tessera(*args, **how):
    return harness.good(TESSERA, *args, **how)


def make(d, sizes):
    """Writes h = x + x and y = h + c, where + joins strings. Returns the expected y."""
    rng = np.random.default_rng(5)
    rows, columns = SIZES
    x = np.array([WORDS[k] for k in rng.integers(0, len(WORDS), rows * columns)], dtype=object).reshape(rows, columns)
    c = np.array([WORDS[k] for k in rng.integers(0, len(WORDS), columns)], dtype=object)
    g = h.make_graph(
        [h.make_node("StringConcat", ["x", "x"], ["h"], name="one"),
         h.make_node("StringConcat", ["h", "c"], ["y"], name="two")], "g", [h.make_tensor_value_info("x", T.STRING, sizes)],
        [h.make_tensor_value_info("y", T.STRING, sizes)], [nh.from_array(c, "c")])
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 20)], ir_version=9), d + "/m.onnx")
    os.makedirs(d + "/set", exist_ok=True)
    onnx.save_tensor(nh.from_array(x, "x"), d + "/set/input_0.pb")
    return np.array([[a + a + b for a, b in zip(row, c)] for row in x], dtype=object)


# Runs sharding k of the model over threads, shared memory and MPI; in the short version over one of them.
def check(d, n, edits, sizes, k):
    want = make(d, sizes)
    words = [w for e in (edits[0] if edits else []) for w in ("--shard", e)] or ["--stage", "one=0", "--stage", "two=1"]
    tessera("annotate", d + "/m.onnx", "--config", "c:%d" % n, *words, "-o", d + "/cut.onnx")
    doc = json.loads(tessera("verify", d + "/cut.onnx", "--inputs", d + "/set", "--json"))
    assert doc["ok"] and sum(doc["collectives"].values()) >= 1, doc
    assert sizes != SIZES or not doc["replicated"], doc
    shutil.rmtree(d + "/parts", ignore_errors=True)
    tessera("partition", d + "/cut.onnx", "-o", d + "/parts")
    ways = [(), ("shm",)]
    if shutil.which("mpirun") and glob.glob(os.path.join(os.path.dirname(TESSERA),
                                                         "libtessera_mpi_openmpi.so")) and n < 4 and sizes == SIZES:
        ways.append(("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(n)))
    for way in harness.sample(ways, 1, k):
        shm = way == ("shm",)
        tessera("run", d + "/parts", "--inputs", d + "/set", "--outputs", d + "/y.npy", *(["--transport", "shm"] if shm else []),
                launch=() if shm else way)
        assert np.array_equal(np.load(d + "/y.npy"), want.astype("U")), way


def check_mover(d, op, shapes, constants, attributes, n_outputs):
    """The operator is between two StringConcats, so that it reads and returns shards. It is sharded at random."""
    rng = np.random.default_rng(7)
    words = np.array(WORDS, dtype=object)
    inputs = {"x%d" % i: words[rng.integers(0, len(WORDS), shape)] for i, shape in enumerate(shapes)}
    mark = nh.from_array(np.array("+", dtype=object).reshape(1), "mark")
    before = [h.make_node("StringConcat", [n, "mark"], [n + "a"], name="before_" + n) for n in inputs]
    outputs = ["y%d" % i for i in range(n_outputs)]
    after = [h.make_node("StringConcat", [y + "a", "mark"], [y], name="after_" + y) for y in outputs]
    texts = [n + "a" for n in inputs]
    order = list(constants) + texts if op == "Where" else texts[:1] + list(constants) + texts[1:]
    node = h.make_node(op, order, [y + "a" for y in outputs], name="mover", **attributes)
    numbers = [nh.from_array(np.array(v), k) for k, v in constants.items()]
    g = h.make_graph(before + [node] + after, "g", [h.make_tensor_value_info(n, T.STRING, x.shape) for n, x in inputs.items()],
                     [h.make_tensor_value_info(y, T.STRING, None) for y in outputs], numbers + [mark])
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 20)], ir_version=9), d + "/m.onnx")
    np.savez(d + "/x.npz", **{n: x.astype("U") for n, x in inputs.items()})
    doc = json.loads(tessera("verify", d + "/m.onnx", "--random", str(TRIALS), "--devices", "4", "--inputs", d + "/x.npz", "--json"))
    assert doc["ok"] and len(doc["trials"]) == TRIALS, doc


def check_old(d):
    """Every third row, in an operator set without Compress."""
    x = np.array(["%d, %d" % (i // 6, i % 6) for i in range(54)], dtype=object).reshape(SIZES)
    turn = h.make_node("Transpose", ["x"], ["y"], name="turn", perm=[1, 0])
    g = h.make_graph([turn], "g", [h.make_tensor_value_info("x", T.STRING, SIZES)], [h.make_tensor_value_info("y", T.STRING, SIZES[::-1])])
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 8)], ir_version=9), d + "/m.onnx")
    np.save(d + "/x.npy", x.astype("U"))
    tessera("annotate", d + "/m.onnx", "--config", "c:3", "--shard", "turn:x={3*3/3,1:0,1,2}", "-o", d + "/cut.onnx")
    doc = json.loads(tessera("verify", d + "/cut.onnx", "--inputs", d + "/x.npy", "--json"))
    assert doc["ok"] and doc["cut_nodes"] == 1, doc


def check_any_rank(d):
    """Strings of unknown rank (a GatherND with indices of unknown size) are sent from one device to the others."""
    x = np.array(WORDS * 4, dtype=object)[:12].reshape(3, 4)
    nodes = [h.make_node("GatherND", ["x", "i"], ["g"], name="pick"), h.make_node("StringConcat", ["g", "mark"], ["y"], name="join")]
    g = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", T.STRING, [3, 4]), h.make_tensor_value_info("i", T.INT64, ["n", "k"])],
                     [h.make_empty_tensor_value_info("y")], [nh.from_array(np.array("+", dtype=object), "mark")])
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 20)], ir_version=9), d + "/m.onnx")
    tessera("annotate", d + "/m.onnx", "--config", "c:3", "--shard", "pick:g={1:2}", "--shard", "join:y={1:(1,0)}", "-o", d + "/cut.onnx")
    for indices in ([[0, 1], [2, 3]], [[1]], np.zeros((0, 2))):
        np.savez(d + "/x.npz", x=x.astype("U"), i=np.array(indices, "i8"))
        doc = json.loads(tessera("verify", d + "/cut.onnx", "--inputs", d + "/x.npz", "--json"))
        assert doc["ok"], doc
    tessera("partition", d + "/cut.onnx", "-o", d + "/parts")
    part = onnx.load(d + "/parts/rank2.onnx").graph
    assert "Broadcast" in [n.op_type for n in part.node], part


harness.run([("%s of texts, sharded at random" % case[0], check_mover, *case)
             for case in MOVERS] + [("opset 8", check_old), ("any rank", check_any_rank)])
for k, (name, (n, edits)) in enumerate(CASES.items()):
    strided = "*" in str(edits)  # needs known sizes
    for sizes in [SIZES] if strided else [SIZES, ["rows", "columns"]]:
        harness.run([("%s, sizes %s" % (name, "known" if sizes == SIZES else "not known"), check, n, edits, sizes, k)])
harness.finish()
