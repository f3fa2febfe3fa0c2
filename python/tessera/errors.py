# SPDX-License-Identifier: Apache-2.0
"""Diagnostics of the library, and the exceptions that contain them."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, List, Optional

from . import _api

SEVERITIES = {_api.TSR_ERROR: "error", _api.TSR_WARNING: "warning", _api.TSR_NOTE: "note"}
ARGUMENTS = {
    "devices": "devices", "dim": "dims", "map-device": "map_devices", "memory": "memory", "stages": "stages", "threads": "threads",
    "time": "time", "transport": "transport"
}  # options of the command that calls of this package have too, with their names
OPTION = re.compile(r"--(%s)\b(?: ([A-Z0-9][\w.]*(?![\w=])))?" % "|".join(ARGUMENTS))


def _with_arguments(hint: str) -> str:
    """Replaces options of the command by arguments: "--memory 246081" becomes "memory=246081". Commands in backquotes stay."""
    parts = hint.split("`")
    parts[::2] = [OPTION.sub(lambda m: ARGUMENTS[m[1]] + ("=" + m[2] if m[2] else ""), part) for part in parts[::2]]
    return "`".join(parts)


@dataclass(frozen=True)
class Finding:
    """A diagnostic: an error, warning or note with its place and a remedy. Texts that do not apply are empty."""

    code: str
    severity: str
    message: str
    hint: str = ""
    node: str = ""
    value: str = ""
    operator: str = ""
    configuration: str = ""
    file: str = ""
    axis: Optional[int] = None
    rank: Optional[int] = None

    @classmethod
    def _of(cls, f: Any) -> "Finding":
        def text(value: Optional[bytes]) -> str:
            return (value or b"").decode(errors="replace")

        return cls(text(f.code), SEVERITIES[f.severity], text(f.message), _with_arguments(text(f.hint)), text(f.node), text(f.value),
                   text(f.op), text(f.configuration), text(f.file), None if f.axis == -2 ** 63 else f.axis, None if f.rank < 0 else f.rank)

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.node and "node '%s'" % self.node, self.value and "value '%s'" % self.value)))
        lines = ["%s[%s]: %s" % (self.severity, self.code, self.message), place and "  at " + place, self.hint and "  help: " + self.hint]
        return "\n".join(filter(None, lines))


class TesseraError(Exception):
    """Base class of all errors of the library. `findings` contains the diagnostics."""

    status: Optional[int] = None  # tsr_status of the call that failed

    def __init__(self, message: str, findings: Optional[List[Finding]] = None):
        self.findings = findings or []
        errors = [f for f in self.findings if f.severity == "error"] or self.findings
        super().__init__("\n".join(map(str, errors)) if errors else message)


class Infeasible(TesseraError):
    """No plan fits in memory. needs_bytes per device, or fits_devices devices, would be enough (0: unknown)."""

    needs_bytes: int = 0
    fits_devices: int = 0


class RankFailed(TesseraError):
    """A rank or the network failed. `rank` is its number, if it is known."""

    @property
    def rank(self) -> Optional[int]:
        return next((f.rank for f in self.findings if f.rank is not None), None)


class EngineError(TesseraError):
    """ONNX Runtime, a provider or a plug-in is missing, or refused the model."""


class Different(TesseraError):
    """The outputs of the sharded and the unsharded model differ."""


KINDS = {_api.TSR_INFEASIBLE: Infeasible, _api.TSR_PEER: RankFailed, _api.TSR_ENGINE: EngineError, _api.TSR_DIFFERENT: Different}


def error_of(status: int, text: str, findings: List[Finding]) -> Exception:
    if status == _api.TSR_NOMEM and not findings:
        return MemoryError(text)
    error = KINDS.get(status, TesseraError)(text, findings)
    error.status = status
    return error
