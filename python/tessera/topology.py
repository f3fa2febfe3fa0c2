# SPDX-License-Identifier: Apache-2.0
"""Devices and links: describe them, or measure this machine."""
from __future__ import annotations

import ctypes
import json
from typing import Any, Dict, Optional, Union

from . import _api
from ._library import Session, library, options_of, suggests
from .model import topology_of


def _document(session: Session, handle: Any) -> Dict[str, Any]:
    """Returns the topology as the JSON document that `plan --devices FILE` accepts."""
    text = library.tsr_json_new(session.handle)
    try:
        library.tsr_json_begin(text, None, b"{")
        library.tsr_topology_add_json(handle, text)
        library.tsr_json_end(text)
        document: Dict[str, Any] = json.loads(library.tsr_json_text(text))
        return document
    finally:
        library.tsr_json_free(text)
        library.tsr_topology_free(handle)


@suggests
def show(devices: Union[int, str]) -> Dict[str, Any]:
    """Returns the devices and links for any value that --devices accepts: 4, "hosts:2x8", a file."""
    session = Session()
    try:
        return session.do(lambda: _document(session, topology_of(session, devices)))
    finally:
        session.close()


@suggests
def measure(devices: int = 0, *, seconds: float = 5.0, path: Optional[str] = None, model: Optional[str] = None) -> Dict[str, Any]:
    """Measures the ranks of this machine: arithmetic, memory and links. path: also writes the result there, for
    plan(path). model: also runs this model, so that plans use the measured times of its nodes.
    """
    session = Session()

    def work() -> Dict[str, Any]:
        session.open_engine()
        found = ctypes.c_void_p()
        options = options_of(_api.tsr_measure_options, devices=devices, seconds=seconds, model=model.encode() if model else None)
        session.status(library.tsr_topology_measure(session.handle, ctypes.byref(options), ctypes.byref(found)))
        return _document(session, found)

    try:
        document = session.do(work)
    finally:
        session.close()
    if path:
        with open(path, "w", encoding="utf-8") as f:
            json.dump(document, f, indent=2)
    return document
