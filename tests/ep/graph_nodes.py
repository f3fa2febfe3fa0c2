# SPDX-License-Identifier: Apache-2.0
"""Tests the execution provider with the node tests of the onnx package, given as bytes: results must equal the plain session's.

usage: graph_nodes.py LIBRARY [all]     without `all` a sample"""
import glob
import os
import sys

import onnx
import onnx.backend.test
from onnx import numpy_helper

import harness
from graph_session import Sharded, difference, plain, register

NODES = os.environ.get("NODE_TESTS", os.path.join(os.path.dirname(onnx.backend.test.__file__), "data/node"))
# Operators with random results: two runs of one session differ.
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Dropout")
# Reasons for which the provider declines a model.
DECLINED = ("is not a tensor", "is neither a tensor nor a sequence", "cannot be read from ONNX Runtime")
UNSHARDED = "no node of the model is sharded"
counts = {"equal": 0, "declined": 0, "not run by onnxruntime": 0, "nothing to run": 0}


def read(path, kind):
    """Returns the value of a .pb file."""
    message, convert = onnx.TensorProto(), numpy_helper.to_array
    if kind.HasField("sequence_type"):
        message, convert = onnx.SequenceProto(), numpy_helper.to_list
    if kind.HasField("optional_type"):
        message, convert = onnx.OptionalProto(), numpy_helper.to_optional
    with open(path, "rb") as f:
        message.ParseFromString(f.read())
    return convert(message)


def open_session(folder, model):
    """A session of the provider, also of a model that cannot be sharded, which the option strict refuses."""
    try:
        return Sharded(folder, model)
    except Exception as e:
        if UNSHARDED not in str(e):
            raise
        return Sharded(folder, model, strict=0)


def try_node(folder, path):
    proto = onnx.load(os.path.join(path, "model.onnx"))
    model = proto.SerializeToString()
    if any(n.op_type in RANDOM for n in proto.graph.node):
        return "random"
    try:
        inputs = {v.name: read("%s/test_data_set_0/input_%d.pb" % (path, i), v.type) for i, v in enumerate(proto.graph.input)}
        names, want = plain(model, inputs)
    except Exception:  # an operator or type that onnxruntime does not have
        counts["not run by onnxruntime"] += 1
        return False
    try:
        sharded = open_session(folder, model)
    except Exception as e:
        assert any(reason in str(e) for reason in DECLINED), e
        counts["declined"] += 1
        return False
    if not sharded.summary:  # ONNX Runtime folded all nodes, so the provider got none
        counts["nothing to run"] += 1
        return False
    assert sharded.summary["route"] == "graph", sharded.summary
    for name, g, w in zip(names, sharded.run(inputs, names), want):
        assert not difference(g, w), "%s: %s" % (name, difference(g, w))
    counts["equal"] += 1
    return None


register(sys.argv[1])
tests = harness.sample(sorted(glob.glob(os.path.join(NODES, "*"))), 120)
harness.run([(os.path.basename(t), try_node, t) for t in tests])
print("# %s" % ", ".join("%d %s" % (n, what) for what, n in counts.items()))
harness.check("most_node_tests_run", harness.PATTERN or counts["equal"] > len(tests) * 0.7, counts)
harness.finish()
