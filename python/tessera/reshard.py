# SPDX-License-Identifier: Apache-2.0
"""Resharding: the steps and the time from one sharding of a tensor to another."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Union

from . import _api
from ._library import Session, did_you_mean, library, options_of, read, suggests
from .model import check_devices, topology_of


@dataclass(frozen=True)
class Step:
    """One operation of a resharding. received, sent: the largest number of bytes of one device; total: of all devices.
    axis, to_axis: of a gather; an all-to-all moves the sharding from axis to to_axis. sharding: after the step.
    """

    operation: str
    axis: Optional[int]
    to_axis: Optional[int]
    received: int
    sent: int
    total: int
    sharding: str
    groups: List[List[int]]


@dataclass(frozen=True)
class Connection:
    """The cheapest way from one sharding to another. steps: empty if nothing is to be done. milliseconds: predicted."""

    steps: List[Step]
    milliseconds: float


def _step(resharding: Any, index: int) -> Step:
    s = read(_api.tsr_step, library.tsr_resharding_step, resharding, index)
    axis, to_axis = (None if number < 0 else number for number in (s.axis, s.to_axis))
    groups = [list(group.devices[:group.n]) for group in s.groups[:s.n_groups]]
    return Step(s.op.decode(), axis, to_axis, s.received, s.sent, s.total, s.sharding.decode(), groups)


def _type_of(name: str) -> int:
    known = {library.tsr_dtype_name(number).decode(): number for number in range(1, _api.TSR_DTYPE_COUNT)}
    if name not in known:
        raise ValueError("unknown element type %r%s" % (name, did_you_mean(name, list(known))))
    return known[name]


@suggests
def connect(shape: Sequence[int], from_: str, to: str, devices: Union[int, str], *, type: str = "float32",
            partial: Optional[str] = None) -> Connection:
    """Finds the cheapest operations from one sharding of a tensor to another, and predicts their time.

        tessera.connect([8, 8], "{2,1}", "{1,2}", devices=2).steps      # an all-to-all
        tessera.connect([8, 8], "({0},{})", "({},{0})", devices="grid:2x2").milliseconds

    devices: a number or a topology such as "hosts:2x4"; its grid is the mesh of shardings without "@". partial: "sum",
    "max", "min" or "prod" if the devices have partial results.
    """
    given = check_devices(devices)
    for size in shape:
        if not hasattr(size, "__index__"):
            raise TypeError("shape must be a list of sizes such as [8, 8]: %r is not a number" % (size,))
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    if given is None:
        raise TypeError("devices must be a number or a topology such as 'ring:4', not None")
    session = Session()

    def work() -> Connection:
        topology, found = topology_of(session, given), ctypes.c_void_p()
        try:
            options = options_of(_api.tsr_reshard_options, pending=partial.encode() if partial else None, type=_type_of(type),
                                 topology=topology)
            session.status(
                library.tsr_resharding_new(session.handle, from_.encode(), to.encode(), len(shape), sizes, ctypes.byref(options),
                                           ctypes.byref(found)))
            steps = [_step(found, i) for i in range(library.tsr_resharding_count(found))]
            return Connection(steps, library.tsr_resharding_time(found) / 1e9)
        finally:
            library.tsr_resharding_free(found)
            library.tsr_topology_free(topology)

    try:
        return session.do(work)
    finally:
        session.close()
