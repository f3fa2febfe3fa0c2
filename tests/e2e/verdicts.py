# SPDX-License-Identifier: Apache-2.0
"""Verdicts that must not be empty: the sizes that random inputs get, a sharded plan where one device would be faster, and an
error where nothing can be sharded.

usage: verdicts.py TESSERA MODELS"""
import json, os, subprocess, sys, tempfile

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

TESSERA, MODELS = os.path.abspath(sys.argv[1]), sys.argv[2]
BERT = os.path.join(MODELS, "bert_tiny", "model.onnx")
failed = 0


def call(*args, env=None):
    p = subprocess.run([TESSERA, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, env=env)
    return p.returncode, p.stdout, p.stderr


def document(*args):
    rc, out, err = call(*args, "--json")
    return rc, json.loads(out) if out.strip() else {}, err


def check(name, ok, why=""):
    global failed
    failed += not ok
    print("ok %s" % name if ok else "not ok %s: %s" % (name, str(why)[:1500]), flush=True)


def save(path, nodes, inputs, outputs, weights=(), opsets=(("", 18),)):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info(*i) for i in inputs], [info(*o) for o in outputs], list(weights))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opsets], ir_version=10), path)
    return path


def weight(name, *shape):
    return numpy_helper.from_array(np.random.default_rng(1).standard_normal(shape).astype("f4"), name)


def test_sizes(d):
    rc, doc, err = document("verify", BERT, "--devices", 2)
    check("64 positions: 64 instead of 128", rc == 0 and doc["dims"] == {"batch": 64, "seq": 64} and doc["assumed_size"] == 64, (doc, err))
    check("and the model is sharded", doc.get("cut_nodes", 0) > 50 and not doc["forced"], doc)
    rc, out, err = call("verify", BERT, "--devices", 2)
    check("the sizes are printed", "assuming 64 (batch=64, seq=64)" in err, err)
    rc, doc, err = document("verify", BERT, "--devices", 2, "--dim", "batch=2", "--dim", "seq=9")
    check("given sizes are used", rc == 0 and doc["dims"] == {"batch": 2, "seq": 9} and doc["assumed_size"] is None, (doc, err))
    rc, doc, err = document("run", BERT, "--dim", "batch=3")
    check("run has the same rule", rc == 0 and doc["dims"] == {"batch": 3, "seq": 64} and doc["outputs"][0]["shape"][0] == 3, (doc, err))
    rc, doc, err = document("bench", BERT, "--devices", 2, "--seconds", 0.1, "--dim", "batch=2")
    check("bench too", rc == 0 and doc["dims"] == {"batch": 2, "seq": 64}, (doc, err))
    # Every dimension of x is open, and the Reshape fixes the batch: only a batch of one runs.
    m = save(d + "/one.onnx", [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"])],
             [("x", T.FLOAT, ["n", "t", 8])], [("y", T.FLOAT, None)], [numpy_helper.from_array(np.array([1, -1, 8], "i8"), "shape"), weight("w", 1, 8, 8)])
    rc, doc, err = document("run", m)
    check("any batch runs where the model folds it", rc == 0 and doc["dims"] == {"n": 128, "t": 128}, (doc, err))
    m = save(d + "/fixed.onnx", [helper.make_node("Concat", ["x", "z"], ["c"], axis=1), helper.make_node("MatMul", ["c", "w"], ["y"])],
             [("x", T.FLOAT, ["n", "t", 8])], [("y", T.FLOAT, None)], [weight("z", 1, 4, 8), weight("w", 8, 8)])
    rc, doc, err = document("verify", m, "--devices", 2)
    check("a batch of one, and 128 for the others", rc == 0 and doc["dims"] == {"n": 1, "t": 128}, (doc, err))
    m = save(d + "/sum.onnx", [helper.make_node("Concat", ["a", "b"], ["c"], axis=0), helper.make_node("Add", ["c", "x"], ["y"])],
             [("a", T.FLOAT, ["past", 4]), ("b", T.FLOAT, ["now", 4]), ("x", T.FLOAT, ["past + now", 4])], [("y", T.FLOAT, None)])
    rc, doc, err = document("verify", m, "--devices", 2)
    check("an expression is computed", rc == 0 and doc["dims"] == {"past": 128, "now": 128, "past + now": 256}, (doc, err))
    # 128 x 128 x 4096 x 4096 x 2 operations would take minutes.
    m = save(d + "/large.onnx", [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])],
             [("x", T.FLOAT, ["n", "t", "u", 1024])], [("y", T.FLOAT, None)], [weight("w", 1024, 1024)])
    rc, doc, err = document("verify", m, "--devices", 2)
    check("long runs are not tried", rc == 0 and doc["assumed_size"] in (8, 16, 32), (doc, err))
    m = save(d + "/none.onnx", [helper.make_node("Concat", ["a", "b"], ["c"], axis=0), helper.make_node("Add", ["c", "x"], ["y"])],
             [("a", T.FLOAT, ["p", 4]), ("b", T.FLOAT, ["q", 4]), ("x", T.FLOAT, ["r", 4]), ("v", T.FLOAT, ["s", 5])], [("y", T.FLOAT, None)])
    rc, doc, err = document("verify", m, "--devices", 2)
    check("broadcasting: a size at which it runs is found", rc == 0 and doc["assumed_size"] == 1, (rc, doc, err))
    m = save(d + "/never.onnx", [helper.make_node("Concat", ["a", "b"], ["c"], axis=0), helper.make_node("MatMul", ["x", "c"], ["y"])],
             [("a", T.FLOAT, ["p", 4]), ("b", T.FLOAT, ["q", 4]), ("x", T.FLOAT, [2, "r"])], [("y", T.FLOAT, None)])
    rc, doc, err = document("verify", m, "--devices", 2)
    check("no size runs: says so", rc == 1 and any(f["code"] == "inputs-unsized" for f in doc["findings"]), (rc, doc, err))
    rc, doc, err = document("verify", m, "--devices", 2, "--dim", "r=8", "--dim", "p=4", "--dim", "q=4")
    check("given sizes that fit run", rc == 0 and doc["cut_nodes"] > 0, (rc, doc, err))


def test_kept_sizes(d):
    rc, _, err = call("plan", BERT, "--devices", 2, "--dim", "batch=2", "--dim", "seq=9", "-o", d + "/p.onnx")
    rc, doc, err = document("verify", d + "/p.onnx")
    check("a planned model is verified with the sizes of its plan", rc == 0 and doc["dims"] == {"batch": 2, "seq": 9}, (doc, err))


def test_forced(d):
    one = ("--dim", "batch=1", "--dim", "seq=1")
    rc, doc, err = document("verify", BERT, "--devices", 2, *one)
    check("one device is faster: a sharded plan is verified", rc == 0 and doc["forced"] and doc["cut_nodes"] > 30, (doc, err))
    rc, out, err = call("verify", BERT, "--devices", 2, *one)
    check("and the text says so", rc == 0 and "one device would be faster; verifying a sharded plan anyway" in err, err)
    scalar = save(d + "/scalar.onnx", [helper.make_node("Mul", ["x", "x"], ["y"])], [("x", T.FLOAT, [1])], [("y", T.FLOAT, [1])])
    loop = save(d + "/unique.onnx", [helper.make_node("Unique", ["x"], ["y"])], [("x", T.FLOAT, ["n"])], [("y", T.FLOAT, None)])
    for model, why in ((scalar, "no dimension"), (loop, "Unique")):
        rc, out, err = call("verify", model, "--devices", 2)
        check("nothing can be sharded: exit 1 (%s)" % why, rc == 1 and "verify-unsharded" in err and why in err and "PASS" not in out, err)
        rc, doc, err = document("verify", model, "--devices", 2, "--allow-unsharded")
        check("unless that is allowed (%s)" % why, rc == 0 and doc["ok"] and doc["cut_nodes"] == 0, (doc, err))
    rc, out, err = call("verify", BERT, "--devices", 2, "--stages", 2, "--dim", "batch=2", "--dim", "seq=9")
    check("stages divide the work too", rc == 0 and "PASS" in out, out + err)


with tempfile.TemporaryDirectory() as folder:
    for test in (test_sizes, test_kept_sizes, test_forced):
        test(folder)
sys.exit(failed > 0)
