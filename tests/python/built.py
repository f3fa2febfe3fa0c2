# SPDX-License-Identifier: Apache-2.0
"""Imports the Python package of a build, whose folder is the first argument of the script. Import this module before onnxruntime:
the package turns telemetry off. With telemetry, forked children hang at exit."""
import os
import sys
import tempfile

BUILD = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = ROOT + "/tests/models/bert_tiny/model.onnx"
os.environ["TESSERA_LIBRARY"] = BUILD + "/libtessera.so"
sys.path.insert(0, BUILD + "/python")
import numpy as np  # noqa: E402
import tessera  # noqa: E402,F401
from genai_folders import folder_with, generation_folder, templated_folder  # noqa: E402,F401


PARTS = tempfile.TemporaryDirectory(prefix="tessera-parts-")


def partition(model=MODEL, devices=2, dims=None):
    """Writes a new partition of a model and returns its folder. dims: sizes to plan for."""
    folder = tempfile.mkdtemp(dir=PARTS.name) + "/parts"
    loaded = tessera.load(model)
    loaded.plan(devices, dims={"batch": 2, "seq": 9} if model == MODEL else dims)
    loaded.partition(folder)
    return folder


def near(got, want):
    return np.abs(got - want).max() <= 5e-5 * np.abs(want).max()
