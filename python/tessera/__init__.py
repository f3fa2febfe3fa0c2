# SPDX-License-Identifier: Apache-2.0
"""Tessera runs one ONNX model on several devices.

    session = tessera.InferenceSession("model.onnx", devices=2)      # onnxruntime's session, sharded
    outputs = session.run(None, {"input_ids": ids})

    model = tessera.load("model.onnx")                               # or step by step
    model.plan(4, memory="8GiB", dims={"batch": 1, "seq": 128})
    model.partition("parts")                                         # one ONNX file per device
    outputs = tessera.PartitionSession("parts").run(None, {"input_ids": ids})
"""
import importlib
import os
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from . import topology
    from .errors import EngineError, Finding, Infeasible, RankFailed, TesseraError
    from .generation import Generator, generate
    from .group import Group
    from .model import Candidate, Model, Node, Partition, Plan, PlannedNode, Value, load
    from .provider import InferenceSession, SessionPlan, register
    from .reshard import Connection, connect
    from .session import PartitionSession
    from .tools import Simulation, Verification, check, report, simulate, verify
    __version__: str

__all__ = [
    "Candidate", "Connection", "EngineError", "Finding", "Generator", "Group", "InferenceSession", "Infeasible", "Model", "Node",
    "Partition", "PartitionSession", "Plan", "PlannedNode", "RankFailed", "SessionPlan", "Simulation", "TesseraError", "Value",
    "Verification", "check", "connect", "generate", "load", "register", "report", "simulate", "topology", "verify"
]

# ONNX Runtime reads it once, when it is loaded: it then sends no telemetry, writes no $TMPDIR/.ses, and does not hang forked
# children at their exit. A value that the user has set is kept.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Modules by the names that they define. They are imported on first use: the command starts without numpy, and what needs no
# onnxruntime works without it.
_MODULES = {
    "errors": ("EngineError", "Finding", "Infeasible", "RankFailed", "TesseraError"), "generation": ("Generator", "generate"),
    "group": ("Group", ), "model": ("Candidate", "Model", "Node", "Partition", "Plan", "PlannedNode", "Value", "load"),
    "provider": ("InferenceSession", "SessionPlan", "register"), "reshard": ("Connection", "connect"), "session": ("PartitionSession", ),
    "tools": ("Simulation", "Verification", "check", "report", "simulate", "verify"), "topology": (), "tensors": ()
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module("." + name, __name__)
    if name == "__version__":
        from ._library import library
        return library.tsr_version().decode()
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError("module 'tessera' has no attribute %r" % name)
    globals()[name] = getattr(importlib.import_module("." + module, __name__), name)
    return globals()[name]


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__, "__version__"})
