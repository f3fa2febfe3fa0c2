# SPDX-License-Identifier: Apache-2.0
"""Functions on models: check, verify, simulate and report."""
from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Union

import numpy as np

from . import _api
from ._library import Session, TemporaryFolder, library, options_of, read, sizes_array, suggests
from .errors import Different, Finding
from .model import Model, Plan, bytes_of, check_devices, html_table, load, partition_counts, plan_of, topology_of
from .session import run_options
from .tensors import array_of

NO_TRIAL = ctypes.c_size_t(-1).value  # TSR_NO_TRIAL


@dataclass(frozen=True)
class Difference:
    """The difference between an output of the sharded and of the unsharded model. max_rel is relative to the
    largest magnitude of the unsharded output.
    """

    name: str
    max_abs: float
    max_rel: float
    ok: bool


@dataclass(frozen=True)
class First:
    """The first value, in the order of the nodes, that differs."""

    value: str
    node: str
    operator: str
    rank: int
    max_rel: float


@dataclass(frozen=True)
class Verification:
    ok: bool
    outputs: List[Difference]
    collectives: Dict[str, int]
    nodes: int
    cut_nodes: int
    trials: int = 0
    failed: int = 0
    first: Optional[First] = None
    recorded: Optional[bool] = None
    forced: bool = False  # one device would be as fast; the plan with the most sharded nodes was verified
    dims: Dict[str, int] = field(default_factory=dict)  # sizes of the symbolic dimensions


@dataclass(frozen=True)
class Simulation:
    """Predicted times in seconds. seconds: until the last request is done; first: until the first is done; period:
    between the last two.
    """

    devices: int
    seconds: float
    first: float
    period: float
    requests: int
    assumed: bool = False  # the devices are assumed, not measured

    def _repr_html_(self) -> str:
        rows = [("last request ends", "%.3f ms" % (1e3 * self.seconds)), ("first request ends", "%.3f ms" % (1e3 * self.first)),
                ("between the last two", "%.3f ms" % (1e3 * self.period))]
        requests = "%d request%s" % (self.requests, "" if self.requests == 1 else "s")
        return html_table("Simulation of %s on %d %sdevices" % (requests, self.devices, "assumed " if self.assumed else ""), rows)


def _text(value: Optional[bytes]) -> str:
    return (value or b"").decode(errors="replace")


def _differences(result: Any, trial: int, count: int) -> List[Difference]:
    found = [read(_api.tsr_difference, library.tsr_verify_result_output, result, trial, i) for i in range(count)]
    return [Difference(_text(d.name), d.max_abs, d.max_rel, d.ok) for d in found]


def _first(result: Any, trial: int) -> Optional[First]:
    first = read(_api.tsr_first_difference, library.tsr_verify_result_first, result, trial)
    return First(_text(first.value), _text(first.node), _text(first.op), first.rank, first.max_rel) if first.value else None


def _model_path(folder: str, model: Any) -> str:
    """Returns the path of a model. A model in memory is saved into the folder first."""
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    path = os.path.join(folder, "model.onnx")
    (model if isinstance(model, Model) else load(model)).save(path)
    return path


def _inputs_path(folder: str, inputs: Union[str, os.PathLike[str], Mapping[str, Any], None]) -> Optional[str]:
    """Returns the path of a set of inputs. Arrays in memory are saved into the folder first."""
    if inputs is None or isinstance(inputs, (str, os.PathLike)):
        return os.fspath(inputs) if inputs is not None else None
    path = os.path.join(folder, "inputs.npz")
    np.savez(path, **{name: array_of(value) for name, value in inputs.items()})  # type: ignore[arg-type]
    return path


def _random_inputs(seed: int, dims: Mapping[str, int]) -> str:
    """Returns the set of random inputs in which the symbolic dimensions have these sizes."""
    return "random:%d%s" % (seed, "".join(",%s=%d" % (name, size) for name, size in dims.items()))


@suggests
def check(model: Any, *, formalism: bool = False) -> List[Finding]:
    """Returns all errors, warnings and notes about the annotations of a model.

    model: a path, bytes, an onnx.ModelProto, an onnx_ir.Model or a Model. formalism: by the published formalism. Raises
    TesseraError if the model cannot be read.
    """
    return (model if isinstance(model, Model) else Model(model)).check(formalism=formalism)


@suggests
def verify(model: Any, devices: Union[int, str, None] = None, *, inputs: Any = None, random: int = 0, seed: int = 0,
           transport: str = "threads", allow_unsharded: bool = False, dims: Optional[Mapping[str, int]] = None,
           memory: Union[int, str, None] = None) -> Verification:
    """Runs a model sharded and unsharded and compares the outputs.

    The model is planned for the devices, or sharded as annotated. random: number of random shardings to verify
    instead. dims: sizes of the symbolic dimensions to plan for and, without inputs, to run. memory: limit of the plan
    for each device. Raises TesseraError if nothing in the model can be sharded, unless allow_unsharded is set.
    """
    given, limit, sizes = check_devices(devices), bytes_of(memory), sizes_array(dims)
    if limit and (given is None or random):
        raise TypeError("verify(): memory limits a plan: add devices=2, without random")
    session = Session()
    try:
        with TemporaryFolder() as folder:
            path, arrays = _model_path(folder, model), _inputs_path(folder, inputs)
            if arrays is None and dims:
                arrays = _random_inputs(seed, dims)
            plan = options_of(_api.tsr_plan_options, memory=limit, sizes=sizes, n_sizes=len(sizes))
            options = options_of(_api.tsr_verify_options, inputs=os.fsencode(arrays) if arrays else None, work=os.fsencode(folder),
                                 random=random, seed=seed, run=ctypes.pointer(run_options(transport,
                                                                                          devices=given)), allow_unsharded=allow_unsharded)
            return session.do(lambda: _verify(session, path, given, plan, options))
    finally:
        session.close()


def _check_dims(session: Session, path: str, plan: Any) -> None:
    """Raises for sizes of dimensions that the model does not have."""
    model = ctypes.c_void_p()
    session.status(library.tsr_model_load(session.handle, os.fsencode(path), ctypes.byref(model)))
    try:
        session.status(library.tsr_model_check_dims(model, plan.sizes, plan.n_sizes))
    finally:
        library.tsr_model_free(model)


def _verify(session: Session, path: str, devices: Union[int, str, None], plan: Any, options: Any) -> Verification:
    if plan.n_sizes:
        _check_dims(session, path, plan)
    topology = topology_of(session, devices) if isinstance(devices, str) else None
    plan.devices, plan.topology = devices if isinstance(devices, int) else 0, topology
    if options.random:
        options.devices = plan.devices or library.tsr_topology_devices(topology)
    elif devices is not None:
        options.plan = ctypes.pointer(plan)
    result = ctypes.c_void_p()
    try:
        session.open_engine()
        status = library.tsr_verify(session.handle, os.fsencode(path), ctypes.byref(options), ctypes.byref(result))
        if not result:
            session.status(status)
        return _verification(result)
    finally:
        library.tsr_verify_result_free(result)
        library.tsr_topology_free(topology)


def _verification(result: Any) -> Verification:
    facts = read(_api.tsr_verify_facts, library.tsr_verify_result_about, result)
    trials = [read(_api.tsr_verify_trial, library.tsr_verify_result_trial, result, i) for i in range(facts.n_trials)]
    failed = [i for i, trial in enumerate(trials) if not trial.ok]
    outputs = _differences(result, NO_TRIAL,
                           facts.n_outputs) or [d for i, t in enumerate(trials) for d in _differences(result, i, t.n_outputs)]
    partition = library.tsr_verify_result_partition(result, NO_TRIAL)
    nodes = read(_api.tsr_partition_facts, library.tsr_partition_result_about, partition)
    recorded = {1: True, 0: False}.get(facts.recorded)
    return Verification(facts.ok, outputs, partition_counts(partition), nodes.nodes, nodes.cut_nodes, len(trials), len(failed),
                        _first(result, failed[0] if failed else NO_TRIAL), recorded, facts.forced,
                        {_text(d.name): d.size for d in facts.sizes[:facts.n_sizes]})


def _prepared(model: Any, devices: Union[int, str, None], dims: Optional[Mapping[str, int]]) -> "tuple[Model, Optional[Plan]]":
    """Returns a separate copy of the model, planned for the devices if any are given."""
    own = load(model.to_bytes() if isinstance(model, Model) else model)
    return own, own.plan(devices, dims=dims) if devices is not None else None


def _simulated(own: Model, dims: Optional[Mapping[str, int]], requests: int, one_device: bool = False) -> Any:
    sizes = sizes_array(dims)
    options = options_of(_api.tsr_simulate_options, sizes=sizes, n_sizes=len(sizes), requests=requests, one_device=one_device,
                         config=own._config.encode() if own._config else None)
    found = ctypes.c_void_p()
    own.session.status(library.tsr_simulate(own._handle, ctypes.byref(options), ctypes.byref(found)))
    return found


@suggests
def simulate(model: Any, devices: Union[int, str, None] = None, *, dims: Optional[Mapping[str, int]] = None,
             requests: int = 1) -> Simulation:
    """Predicts the time of a run on devices that need not exist. Plans the model for them, or uses its annotations."""
    own, _ = _prepared(model, devices, dims)

    def work() -> Simulation:
        found = _simulated(own, dims, requests)
        try:
            facts = read(_api.tsr_simulation_facts, library.tsr_simulation_about, found)
            return Simulation(facts.devices, facts.seconds, facts.first, facts.period, facts.requests, facts.assumed)
        finally:
            library.tsr_simulation_free(found)

    return own.session.do(work)


@suggests
def report(model: Any, path: Union[str, os.PathLike[str]], devices: Union[int, str, None] = None, *,
           dims: Optional[Mapping[str, int]] = None) -> None:
    """Writes one HTML page that loads nothing from the network: summary, memory, time, communication, shardings and
    timeline.
    """
    own, _ = _prepared(model, devices, dims)

    def work() -> None:
        topology, found = ctypes.c_void_p(), None
        own.session.status(library.tsr_model_topology(own._handle, own._config.encode() if own._config else None, ctypes.byref(topology)))
        try:
            found = _simulated(own, dims, 1, one_device=True)
            sizes = sizes_array(dims)
            title = own._path and os.path.basename(own._path).encode()
            options = options_of(_api.tsr_report_options, title=title, config=own._config.encode() if own._config else None,
                                 topology=topology, simulation=found, sizes=sizes, n_sizes=len(sizes))
            own.session.status(library.tsr_report(own._handle, ctypes.byref(options), os.fsencode(path)))
        finally:
            library.tsr_simulation_free(found)
            library.tsr_topology_free(topology)

    own.session.do(work)


__all__ = ["Difference", "Different", "First", "Simulation", "Verification", "report", "simulate", "verify", "plan_of"]
