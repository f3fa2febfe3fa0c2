# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of the execution provider: Python's onnxruntime is the host, and the library is registered with it."""
import os
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

TESSERA, LIBRARY = map(os.path.abspath, sys.argv[1:3])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODELS = os.path.join(ROOT, "tests/models")
NAME = "TesseraExecutionProvider"
BERT = MODELS + "/bert_tiny/model.onnx"
BERT_DIMS = "batch=2,seq=9"


def register(library=LIBRARY, name="tessera"):
    ort.register_execution_provider_library(name, library)


def devices():
    return [d for d in ort.get_ep_devices() if d.ep_name == NAME]


def options(entries=(), **provider_options):
    """Session options with the provider. Nodes that it declines are an error unless strict=0."""
    made = ort.SessionOptions()
    made.log_severity_level = 3
    made.intra_op_num_threads = 1
    provider_options.setdefault("strict", 1)
    for key, value in dict(entries).items():
        made.add_session_config_entry(key, value)
    made.add_provider_for_devices(devices()[:1], {k: str(v) for k, v in provider_options.items()})
    return made


def session(model, entries=(), **provider_options):
    return ort.InferenceSession(model, options(entries, **provider_options))


def plain(model):
    made = ort.SessionOptions()
    made.log_severity_level = 3
    made.intra_op_num_threads = 1
    return ort.InferenceSession(model, made, providers=["CPUExecutionProvider"])


def feeds(model, **sizes):
    """Returns inputs for a model of tests/models: random numbers of the given sizes (3 for others)."""
    made, random = {}, np.random.default_rng(1)
    for value in plain(model).get_inputs():
        shape = [d if isinstance(d, int) else sizes.get(d, 3) for d in value.shape]
        if value.type == "tensor(int64)":
            made[value.name] = random.integers(0, 2, shape)
        elif value.type == "tensor(bool)":
            made[value.name] = random.integers(0, 2, shape).astype(bool)
        else:
            made[value.name] = random.standard_normal(shape).astype(np.float32)
    return made


def near(got, want, limit=5e-5):
    assert len(got) == len(want), (len(got), len(want))
    for g, w in zip(got, want):
        assert g.shape == w.shape and g.dtype == w.dtype, (g.shape, w.shape, g.dtype, w.dtype)
        if w.dtype.kind in "OSUb" or not w.size:
            assert np.array_equal(g, w), (g, w)
            continue
        worst = np.abs(g.astype("f8") - w.astype("f8")).max() / max(np.abs(w.astype("f8")).max(), 1e-30)
        assert worst <= limit, "differs by %g" % worst
    return True


def fails(function, *words):
    """Checks that the call raises, and that the message has all of the words."""
    try:
        function()
    except Exception as error:  # onnxruntime's exceptions have no common base class
        assert all(word in str(error) for word in words), error
        return True
    raise AssertionError("no error")


def save(path, graph, ir=10, opsets=(("", 18),), **more):
    onnx.save(helper.make_model(graph, ir_version=ir, opset_imports=[helper.make_opsetid(*o) for o in opsets], **more), path)
    return path
