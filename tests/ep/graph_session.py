# SPDX-License-Identifier: Apache-2.0
"""Shared by the graph_*.py tests: sessions of Python's onnxruntime with and without the execution provider, and their comparison."""
import json
import os

import numpy as np
import onnxruntime

NAME = "TesseraExecutionProvider"


def register(library):
    onnxruntime.set_default_logger_severity(4)
    onnxruntime.register_execution_provider_library("tessera", os.path.abspath(library))


def session_options():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


class Sharded:
    """A session with the provider. `summary` is the provider's summary file. tune(options) changes the session options."""

    def __init__(self, folder, model, devices=2, tune=None, **more):
        note = os.path.join(folder, "summary.json")
        if os.path.exists(note):
            os.remove(note)
        options = session_options()
        if tune:
            tune(options)
        found = [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME]
        more = {"devices": devices, "strict": 1, "summary": note, **more}
        options.add_provider_for_devices(found[:1], {key: str(value) for key, value in more.items()})
        self.session = onnxruntime.InferenceSession(model, options)
        self.summary = json.load(open(note)) if os.path.exists(note) else {}

    def run(self, inputs, names=None):
        return self.session.run(names, inputs)


def plain(model, inputs, tune=None):
    """Runs the model without the provider; returns (names, values)."""
    options = session_options()
    if tune:
        tune(options)
    session = onnxruntime.InferenceSession(model, options)
    names = [o.name for o in session.get_outputs()]
    return names, session.run(names, inputs)


def difference(got, want):
    """Returns why two results differ; "" if they agree within rounding."""
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return "lists of different length"
        return next(filter(None, map(difference, got, want)), "")
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return "%s %s instead of %s %s" % (got.dtype, got.shape, want.dtype, want.shape)
    if want.dtype.kind not in "fc" or not want.size:
        return "" if (got == want).all() else "different values"
    if not (np.isnan(got) == np.isnan(want)).all() or not (np.isinf(got) == np.isinf(want)).all():
        return "other numbers are not finite"
    finite = np.isfinite(want)
    limit = {"float16": 2e-3, "float32": 5e-5, "float64": 1e-9}.get(str(want.dtype), 1e-5)
    wide = complex if want.dtype.kind == "c" else float
    far = np.abs(got[finite].astype(wide) - want[finite].astype(wide)).max(initial=0)
    return "" if far <= limit * max(np.abs(want[finite].astype(wide)).max(initial=0), 1e-30) else "off by %g" % far


def agrees(folder, model, inputs, route="graph", tune=None, **options):
    """Asserts that the provider shards the model, reads it by `route`, and agrees with the plain session. Returns the session."""
    names, want = plain(model, inputs, tune)
    sharded = Sharded(folder, model, tune=tune, **options)
    assert sharded.summary.get("route") == route, sharded.summary
    assert NAME in sharded.session.get_providers()
    for name, g, w in zip(names, sharded.run(inputs, names), want):
        assert not difference(g, w), "%s: %s" % (name, difference(g, w))
    return sharded
