# SPDX-License-Identifier: Apache-2.0
"""Tessera runs one ONNX model on several devices.

    session = tessera.InferenceSession("model.onnx", devices=2)      # onnxruntime's session, sharded
    outputs = session.run(None, {"input_ids": ids})

    model = tessera.load("model.onnx")                               # or step by step
    model.plan(4, memory="8GiB", dims={"batch": 1, "seq": 128})
    model.partition("parts")                                         # one ONNX file per device
    outputs = tessera.PartitionSession("parts").run(None, {"input_ids": ids})
"""
from typing import TYPE_CHECKING, Any

from . import topology
from ._library import library as _library
from .errors import EngineError, Finding, Infeasible, RankFailed, TesseraError
from .generation import Generator, generate
from .group import Group
from .model import Model, Node, Partition, Plan, Value, load
from .session import PartitionSession
from .tools import Simulation, Verification, report, simulate, verify

if TYPE_CHECKING:
    from .provider import InferenceSession, register

__version__ = _library.tsr_version().decode()
__all__ = ["EngineError", "Finding", "Generator", "Group", "InferenceSession", "Infeasible", "Model", "Node", "Partition", "PartitionSession", "Plan",
           "RankFailed", "Simulation", "TesseraError", "Value", "Verification", "generate", "load", "register", "report", "simulate", "topology", "verify"]


def __getattr__(name: str) -> Any:
    """Imports names that need onnxruntime on first use, so that the rest of the package works without it."""
    if name in ("InferenceSession", "register"):
        from . import provider
        return getattr(provider, name)
    raise AttributeError("module 'tessera' has no attribute %r" % name)
