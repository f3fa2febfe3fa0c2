# SPDX-License-Identifier: Apache-2.0
"""Tessera: cuts ONNX models over several devices, proves the cut, runs the parts together.

    model = tessera.load("model.onnx")
    model.plan(4, memory="8GiB", dims={"batch": 1, "seq": 128})
    model.partition("parts")
    session = tessera.InferenceSession("parts")          # run, get_inputs, get_outputs as in onnxruntime
    outputs = session.run(None, {"input_ids": ids})
"""
from . import topology
from ._library import library as _library
from .errors import EngineError, Finding, Infeasible, RankFailed, TesseraError
from .generation import generate
from .group import Group
from .model import Model, Node, Partition, Plan, Value, load
from .session import InferenceSession
from .tools import Simulation, Verification, report, simulate, verify

__version__ = _library.tsr_version().decode()
__all__ = ["EngineError", "Finding", "Group", "InferenceSession", "Infeasible", "Model", "Node", "Partition", "Plan", "RankFailed", "Simulation",
           "TesseraError", "Value", "Verification", "generate", "load", "report", "simulate", "topology", "verify"]
