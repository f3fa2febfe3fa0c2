# SPDX-License-Identifier: Apache-2.0
"""A wrapped partition in Python's own onnxruntime: right, also after it was moved; errors carry our words; what it cannot be.

usage: wrapped.py TESSERA PLUGIN"""
import os
import shutil
import subprocess
import sys
import tempfile
import threading

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

TESSERA, PLUGIN = map(os.path.abspath, sys.argv[1:3])
MODELS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "models")
failed = 0


def case(name, ok, why=""):
    global failed
    failed += not ok
    print("%s e2e wrapped %s" % ("ok" if ok else "not ok", name))
    if not ok:
        print("#", why)


def tessera(*words):
    p = subprocess.run([TESSERA, *map(str, words)], capture_output=True, text=True)
    return p.returncode, p.stderr


def session(folder):
    options = ort.SessionOptions()
    options.register_custom_ops_library(PLUGIN)
    options.log_severity_level = 4
    return ort.InferenceSession(folder + "/model.onnx", options, providers=["CPUExecutionProvider"])


def recorded(kind, values):
    return {v.name: onnx.numpy_helper.to_array(onnx.load_tensor("%s/bert_tiny/test_data_set_0/%s_%d.pb" % (MODELS, kind, i))) for i, v in enumerate(values)}


def near(got, want):
    return np.abs(got - want).max() <= 5e-5 * np.abs(want).max()


def save(d, name, graph):
    path = os.path.join(d, name)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


with tempfile.TemporaryDirectory(prefix="tessera-wrapped-") as d:
    bert = MODELS + "/bert_tiny/model.onnx"
    proto = onnx.load(bert)
    feeds, want = recorded("input", proto.graph.input), recorded("output", proto.graph.output)
    rc, err = tessera("partition", bert, "--devices", 3, "--layout", "wrapped", "-o", d + "/a")
    case("is written", rc == 0 and len(onnx.load(d + "/a/model.onnx", load_external_data=False).graph.node) == 1, err)
    case("computes what the whole one does", near(session(d + "/a").run(None, feeds)[0], want["logits"]))
    shutil.move(d + "/a", d + "/b")
    s = session(d + "/b")
    case("may be moved", near(s.run(None, feeds)[0], want["logits"]))
    results = []
    threads = [threading.Thread(target=lambda: results.append(s.run(None, feeds)[0])) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    case("may be run by several threads", len(results) == 3 and all(np.array_equal(r, results[0]) for r in results))
    os.remove(d + "/b/rank1.onnx")
    try:
        session(d + "/b").run(None, feeds)
        case("says what is missing", False, "no exception")
    except Exception as error:
        case("says what is missing", "rank1.onnx" in str(error), error)
    case("goes on where it was open", near(s.run(None, feeds)[0], want["logits"]))

    x, y = helper.make_tensor_value_info("x", TensorProto.STRING, [2]), helper.make_tensor_value_info("y", TensorProto.STRING, [2])
    texts = save(d, "texts.onnx", helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y]))
    rc, err = tessera("partition", texts, "--devices", 2, "--layout", "wrapped", "-o", d + "/texts")
    given = np.array(["a", "\u00e9\u00e8"], object)
    case("texts", rc == 0 and session(d + "/texts").run(None, {"x": given})[0].tolist() == given.tolist(), err)
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    lists = save(d, "lists.onnx", helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [helper.make_value_info("x", kind)], [helper.make_value_info("y", kind)]))
    rc, err = tessera("partition", lists, "--devices", 2, "--layout", "wrapped", "-o", d + "/lists")
    case("refuses sequences, and writes nothing", rc == 5 and "partition-layout" in err and not os.path.exists(d + "/lists"), "exit %d %s" % (rc, err))
    rc, err = tessera("partition", bert, "--devices", 2, "--layout", "folded", "-o", d + "/folded")
    case("refuses other layouts", rc == 5 and "partition-layout" in err and not os.path.exists(d + "/folded"), "exit %d %s" % (rc, err))
sys.exit(1 if failed else 0)
