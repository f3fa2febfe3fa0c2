# SPDX-License-Identifier: Apache-2.0
"""Models: load, annotate, check, plan and partition."""
from __future__ import annotations

import ctypes
import operator
import os
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Union

from . import _api
from ._library import Session, enum_of, library, options_of, read, sizes_array, text_array, transport_of
from .errors import Finding, Infeasible, TesseraError

UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
OBJECTIVES = {"latency": _api.TSR_LATENCY, "throughput": _api.TSR_THROUGHPUT}


@dataclass(frozen=True)
class Node:
    """A node of the main graph. Omitted inputs have empty names."""

    name: str
    operator: str
    domain: str
    inputs: List[str]
    outputs: List[str]


@dataclass(frozen=True)
class Value:
    """An input or output of a model, like onnxruntime's NodeArg. Sizes are numbers, names, or None."""

    name: str
    type: str
    shape: List[Union[int, str, None]]


@dataclass(frozen=True)
class ComparedPlan:
    """A plan that an expert would write by hand, and why it was not chosen. Its times are 0 if it does not fit in
    memory.
    """

    name: str
    fits: bool
    milliseconds: float
    communication_ms: float
    needs_bytes: int
    reason: str


@dataclass
class Plan:
    """The chosen plan and its predicted costs."""

    devices: int
    optimal: bool
    gap: float
    milliseconds: float
    one_device_ms: float
    memory: List[int]
    configuration: str
    nodes: int
    cut_nodes: int
    collectives: Dict[str, int] = field(default_factory=dict)
    stages: int = 0
    compared: List[ComparedPlan] = field(default_factory=list)


@dataclass(frozen=True)
class Partition:
    """Summary of a partition. replicated: (node, operator, reason) for each node that has a sharding but runs
    replicated.
    """

    devices: int
    nodes: int
    cut_nodes: int
    collectives: Dict[str, int]
    weight_bytes: List[int]
    replicated: List[tuple]


def bytes_of(size: Union[int, str, None]) -> int:
    """Converts "8GiB" to 8589934592, and None to 0."""
    if size is None or size == 0:
        return 0
    digits = str(size).rstrip("BKMGTi ").strip()
    unit = str(size)[len(digits):].strip()
    if unit not in UNITS or not re.fullmatch(r"[0-9]+(\.[0-9]*)?", digits) or not 0 < float(digits) * UNITS[unit] < 2**63:
        raise ValueError("memory must be a size such as '8GiB' or a positive number of bytes, not %r" % (size,))
    return int(digits) * UNITS[unit] if digits.isdigit() else int(float(digits) * UNITS[unit])


def _stages_of(stages: Union[int, str]) -> int:
    if stages == "auto":
        return int(_api.TSR_STAGES_AUTO)
    if not isinstance(stages, int) or stages < 0:
        raise ValueError("stages must be a positive number, 'auto', or 0 for none, not %r" % (stages,))
    return stages


def _text(value: Optional[bytes]) -> str:
    return (value or b"").decode(errors="replace")


def _value(handle: Any) -> Value:
    dims: List[Union[int, str, None]] = []
    for axis in range(max(0, library.tsr_value_rank(handle))):
        dim = library.tsr_value_dim(handle, axis)
        dims.append(dim.value if dim.value >= 0 else _text(dim.symbol) or None)
    return Value(_text(library.tsr_value_name(handle)), "tensor(%s)" % _text(library.tsr_dtype_name(library.tsr_value_dtype(handle))), dims)


def counts_of(count: int, function: Callable[..., int], result: Any) -> Dict[str, int]:
    """Returns the number of communications per operator, from the result of a plan or partition."""
    found = [read(_api.tsr_collective_count, function, result, i) for i in range(count)]
    return {_text(c.op): c.count for c in found}


def partition_counts(result: Any) -> Dict[str, int]:
    facts = read(_api.tsr_partition_facts, library.tsr_partition_result_about, result)
    return counts_of(facts.n_collectives, library.tsr_partition_result_collective, result)


def partition_of(result: Any) -> Partition:
    facts = read(_api.tsr_partition_facts, library.tsr_partition_result_about, result)
    found = [read(_api.tsr_replicated, library.tsr_partition_result_replicated, result, i) for i in range(facts.n_replicated)]
    replicated = [(_text(r.node), _text(r.op), _text(r.reason)) for r in found]
    return Partition(facts.devices, facts.nodes, facts.cut_nodes, partition_counts(result), facts.weight_bytes[:facts.devices], replicated)


def _model_of(session: Session, folder: str) -> str:
    """Returns the path of the model in a generation folder."""
    handle = ctypes.c_void_p()
    session.status(library.tsr_folder_open(session.handle, os.fsencode(folder), ctypes.byref(handle)))
    path = os.fsdecode(library.tsr_folder_model(handle))
    library.tsr_folder_free(handle)
    return path


def is_count(value: Any) -> bool:
    """True for integers, including those of numpy; False for True, False and arrays of several numbers."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def check_devices(devices: Any) -> Union[int, str, None]:
    """Returns devices as int, str or None. Raises for other types and for numbers below 1."""
    if devices is None or isinstance(devices, str):
        return devices
    if isinstance(devices, os.PathLike):
        return os.fspath(devices)
    if not is_count(devices):
        raise TypeError("devices must be a number or a topology such as 'ring:4', not %r" % (devices,))
    if operator.index(devices) < 1:
        raise ValueError("devices must be 1 or more, not %r" % (devices,))
    return operator.index(devices)


def topology_of(session: Session, devices: Union[int, str]) -> Any:
    """Returns a topology for any value that --devices accepts: a generator, a list, a file, a planned model, or
    "auto" (the best number of devices). The caller frees it.
    """
    handle = ctypes.c_void_p()
    cuda, nccl = (os.environ.get(name, "").encode() or None for name in ("TESSERA_CUDA", "TESSERA_NCCL"))
    session.status(library.tsr_topology_find(session.handle, os.fsencode(str(devices)), cuda, nccl, ctypes.byref(handle)))
    return handle


class Model:
    """An ONNX model in memory, created by load()."""

    def __init__(self, source: Any, progress: Optional[Callable[[str, int, int], None]] = None):
        self.session = Session(progress)
        self._handle = ctypes.c_void_p()
        self._config: Optional[str] = None
        self._bytes: Optional[bytes] = None
        self._path: Optional[str] = None
        self._folder: Optional[str] = None  # a generation folder that it was loaded from
        try:
            self.session.do(lambda: self._load(source))
        except BaseException:
            self.session.close()
            raise

    def _load(self, source: Any) -> None:
        s, out = self.session, ctypes.byref(self._handle)
        if isinstance(source, (str, os.PathLike)):
            self._path = os.fspath(source)
            if library.tsr_is_genai_folder(os.fsencode(self._path)):
                self._folder, self._path = self._path, _model_of(s, self._path)
            s.status(library.tsr_model_load(s.handle, os.fsencode(self._path), out))
            return
        self._bytes = _serialized(source)
        s.status(library.tsr_model_load_bytes(s.handle, self._bytes, len(self._bytes), out))

    def __repr__(self) -> str:
        graph = library.tsr_model_graph(self._handle)
        return "<tessera.Model %s: %d nodes, %d inputs, %d outputs, %d configurations>" % (
            repr(self._path) if self._path else "in memory", library.tsr_graph_node_count(graph), len(self.inputs()),
            library.tsr_graph_output_count(graph), library.tsr_model_config_count(self._handle))

    def __del__(self) -> None:
        session = getattr(self, "session", None)
        if session is not None:
            handle, kept = self._handle, self._bytes
            session.close(lambda: (library.tsr_model_free(handle), kept))  # the model uses these bytes, so they are kept until it is freed

    # ---- contents

    @property
    def nodes(self) -> List[Node]:
        """The nodes of the main graph, in order."""
        return self.session.do(self._nodes)

    def _nodes(self) -> List[Node]:
        names = lambda count, at, n: [_text(library.tsr_value_name(v)) if v else "" for v in (at(n, i) for i in range(count(n)))]
        found, node = [], library.tsr_graph_first(library.tsr_model_graph(self._handle))
        while node:
            found.append(Node(_text(library.tsr_node_name(node)), _text(library.tsr_node_op(node)), _text(library.tsr_node_domain(node)),
                              names(library.tsr_node_input_count, library.tsr_node_input, node),
                              names(library.tsr_node_output_count, library.tsr_node_output, node)))
            node = library.tsr_node_next(node)
        return found

    def inputs(self) -> List[Value]:
        """The inputs that a run needs; inputs with a default are left out."""
        graph = library.tsr_model_graph(self._handle)
        values = [library.tsr_graph_input(graph, i) for i in range(library.tsr_graph_input_count(graph))]
        return [_value(v) for v in values if not library.tsr_value_initializer(v)]

    def outputs(self) -> List[Value]:
        graph = library.tsr_model_graph(self._handle)
        return [_value(library.tsr_graph_output(graph, i)) for i in range(library.tsr_graph_output_count(graph))]

    # ---- annotations

    def add_config(self, name: str, devices: Union[int, Sequence[str]]) -> None:
        """Declares a configuration with a number of devices, or with devices of these names. Later edits apply to
        it.
        """
        names = [] if isinstance(devices, int) else list(devices)
        count = devices if isinstance(devices, int) else len(names)
        config = ctypes.c_void_p()
        array = text_array(names) if names else None
        self.session.do(lambda: self.session.status(library.tsr_model_add_config(self._handle, name.encode(), count, array, len(names), ctypes.byref(config))))
        self._config = name

    def _configuration(self) -> Any:
        count = library.tsr_model_config_count(self._handle)
        if self._config:
            return library.tsr_model_find_config(self._handle, self._config.encode())
        if count == 1:
            return library.tsr_model_config(self._handle, 0)
        raise TesseraError("the edit needs a configuration, but the model has %d: declare one with add_config" % count)

    def _find(self, node: str, value: Optional[str] = None) -> Any:
        """Finds a node by its name or by the name of one of its outputs. With `value`, also finds its input or
        output of that name.
        """
        at = library.tsr_graph_first(library.tsr_model_graph(self._handle))
        while at:
            outputs = [library.tsr_node_output(at, i) for i in range(library.tsr_node_output_count(at))]
            if _text(library.tsr_node_name(at)) == node or any(v and _text(library.tsr_value_name(v)) == node for v in outputs):
                break
            at = library.tsr_node_next(at)
        if not at:
            raise TesseraError("", [Finding("edit-no-node", "error", "no node '%s'" % node, "Model.nodes lists them", node=node)])
        if value is None:
            return at
        inputs = [library.tsr_node_input(at, i) for i in range(library.tsr_node_input_count(at))]
        found = next((v for v in inputs + outputs if v and _text(library.tsr_value_name(v)) == value), None)
        if not found:
            raise TesseraError("", [Finding("edit-no-value", "error", "node '%s' has no value '%s'" % (node, value), node=node, value=value)])
        return at, found

    def shard(self, node: str, value: str, sharding: str) -> None:
        """Shards a value at a node, in the notation of docs/annotate.md: "{1,4}"."""
        def work() -> None:
            at, v = self._find(node, value)
            self.session.status(library.tsr_node_shard_text(at, v, self._configuration(), sharding.encode()))
        self.session.do(work)

    def stage(self, node: str, stage: int) -> None:
        """Assigns a node to a pipeline stage."""
        self.session.do(lambda: self.session.status(library.tsr_node_set_stage(self._find(node), self._configuration(), stage)))

    def check(self) -> List[Finding]:
        """Returns all errors, warnings and notes about the annotations."""
        def work() -> List[Finding]:
            self.session.status(library.tsr_check(self._handle, None))
            return self.session.findings()
        return self.session.do(work)

    def infer(self, propagate: bool = False, formalism: bool = False) -> None:
        """Adds the shardings that follow from those given.

        formalism: an input without a sharding has that of its producer. Raises if the inputs of a node then
        contradict each other.
        """
        if propagate and formalism:
            raise ValueError("propagate and formalism exclude each other")
        name = self._config.encode() if self._config else None
        options = options_of(_api.tsr_infer_options, config=name, propagate=propagate, formalism=formalism)
        self.session.do(lambda: self.session.status(library.tsr_infer(self._handle, ctypes.byref(options))))

    # ---- plan, partition, save

    def plan(self, devices: Union[int, str], *, memory: Union[int, str, None] = None, dims: Optional[Dict[str, int]] = None,
             stages: Union[int, str] = 0, objective: str = "latency", time: Optional[float] = None) -> Plan:
        """Chooses a sharding for every node and writes it into the model. After Ctrl-C, the exception has the best
        plan so far as .best.
        """
        given = check_devices(devices)
        if given is None:
            raise TypeError("devices must be a number or a topology such as 'ring:4', not None")

        def work() -> Plan:
            topology = None if isinstance(given, int) else topology_of(self.session, given)
            try:
                return self._plan(given if isinstance(given, int) else 0, topology, bytes_of(memory), dims, stages, objective, time)
            finally:
                library.tsr_topology_free(topology)
        return self.session.do(work)

    def _plan(self, count: int, topology: Any, memory: int, dims: Optional[Dict[str, int]], stages: Union[int, str], objective: str,
              time: Optional[float]) -> Plan:
        sizes = sizes_array(dims)
        if objective not in OBJECTIVES:
            raise ValueError("objective must be %s, not %r" % (" or ".join(OBJECTIVES), objective))
        fields: Dict[str, Any] = dict(devices=count, topology=topology, memory=memory, sizes=sizes, n_sizes=len(sizes), objective=OBJECTIVES[objective],
                                      stages=_stages_of(stages))
        if time is not None and not time > 0:
            raise ValueError("time must be a positive number of seconds, not %r" % (time,))
        if time is not None:
            fields["seconds"] = time
        result = ctypes.c_void_p()
        status = library.tsr_plan(self._handle, ctypes.byref(options_of(_api.tsr_plan_options, **fields)), ctypes.byref(result))
        library.tsr_session_cancel(self.session.handle, False)
        try:
            self.session.status(status)
            plan = plan_of(result)
        except Infeasible as error:
            facts = read(_api.tsr_plan_facts, library.tsr_plan_result_about, result)
            error.needs_bytes, error.fits_devices = facts.needs_bytes, facts.fits_devices
            raise
        finally:
            library.tsr_plan_result_free(result)
        self._config = plan.configuration
        return plan

    def partition(self, folder: Union[str, os.PathLike], *, state: Union[str, Iterable[str]] = "auto", keep_cut: Iterable[str] = (),
                  layout: Optional[str] = None, weights: Optional[str] = None, transport: Optional[str] = None, force: bool = False) -> Partition:
        """Writes one ONNX file per device into a new folder.

        state: pairs "past=present" that stay on their devices; "auto": those that the model's metadata names.
        layout: "context" also writes model.onnx, an EPContext model that any ONNX Runtime runs with the execution
        provider; "genai" writes one generation folder per device (the model must be loaded from such a folder).
        weights: "safetensors", or plain bytes. transport, for layout "context": ranks are "threads" of the program
        that loads model.onnx, or processes ("shm").
        """
        if layout == "wrapped":
            raise ValueError("the layout 'wrapped' was replaced by 'context', whose model.onnx needs the execution provider (tessera.register)")
        if layout not in (None, "context", "genai"):
            raise ValueError("unknown layout %r: use 'context' or 'genai'" % (layout,))
        if layout == "genai":
            return self.session.do(lambda: self._partition_folder(folder, force))
        return self.session.do(lambda: self._partition(folder, state, keep_cut, layout, weights, transport, force))

    def _partition_folder(self, out: Any, force: bool) -> Partition:
        if self._folder is None:
            raise ValueError("layout 'genai' needs a model that was loaded from a folder with genai_config.json")
        handle, devices = ctypes.c_void_p(), self._devices()
        self.session.status(library.tsr_folder_open(self.session.handle, os.fsencode(self._folder), ctypes.byref(handle)))
        try:
            options = options_of(_api.tsr_folder_options, devices=devices, force=force)
            result = ctypes.c_void_p()
            self.session.status(library.tsr_folder_partition(handle, os.fsencode(out), ctypes.byref(options), ctypes.byref(result)))
            return self._partitioned(result)
        finally:
            library.tsr_folder_free(handle)

    @staticmethod
    def _partitioned(result: Any) -> Partition:
        try:
            return partition_of(result)
        finally:
            library.tsr_partition_result_free(result)

    def _devices(self) -> int:
        """Returns the number of devices of the configuration that was planned or added last."""
        config = library.tsr_model_find_config(self._handle, self._config.encode()) if self._config else None
        if not config:
            raise ValueError("the model has no device configuration: call plan, or add_config")
        return library.tsr_config_devices(config)

    def _partition(self, folder: Any, state: Any, keep_cut: Any, layout: Optional[str], weights: Optional[str],
                   transport: Optional[str], force: bool) -> Partition:
        pairs = text_array([] if state == "auto" else list(state))
        cut = text_array(list(keep_cut))
        name = self._config.encode() if self._config else None
        options = options_of(_api.tsr_partition_options, config=name, force=force, state=pairs, n_state=len(pairs), keep_cut=cut, n_keep_cut=len(cut),
                             layout=enum_of("TSR_LAYOUT_", layout), weights=enum_of("TSR_WEIGHTS_", weights),
                             transport=transport_of(transport))
        result = ctypes.c_void_p()
        self.session.status(library.tsr_partition(self._handle, os.fsencode(folder), ctypes.byref(options), ctypes.byref(result)))
        return self._partitioned(result)

    def save(self, path: Union[str, os.PathLike]) -> None:
        """Writes the model. Parts that were not changed keep their bytes."""
        self.session.do(lambda: self.session.status(library.tsr_model_save(self._handle, os.fsencode(path))))

    def to_bytes(self) -> bytes:
        def work() -> bytes:
            data, n = ctypes.c_void_p(), ctypes.c_size_t()
            self.session.status(library.tsr_model_save_bytes(self._handle, ctypes.byref(data), ctypes.byref(n)))
            text = ctypes.string_at(data, n.value)
            library.tsr_bytes_free(self.session.handle, data, n)
            return text
        return self.session.do(work)

    def to_onnx(self) -> Any:
        """Returns the model as onnx.ModelProto."""
        import onnx
        return onnx.ModelProto.FromString(self.to_bytes())

    def to_ir(self) -> Any:
        """Returns the model as onnx_ir.Model."""
        import onnx_ir
        return onnx_ir.serde.deserialize_model(self.to_onnx())


def plan_of(result: Any) -> Plan:
    facts = read(_api.tsr_plan_facts, library.tsr_plan_result_about, result)
    picoseconds = facts.latency if facts.n_stages else facts.cost
    counts = counts_of(facts.n_collectives, library.tsr_plan_result_collective, result)
    experts = [read(_api.tsr_plan_expert, library.tsr_plan_result_compared, result, i) for i in range(facts.n_compared)]
    compared = [ComparedPlan(_text(e.name), e.fits, e.milliseconds, e.communication_ms, e.needs_bytes, _text(e.reason)) for e in experts]
    return Plan(facts.devices, facts.optimal, facts.gap, picoseconds / 1e9, facts.one_device / 1e9, list(facts.memory[:facts.devices]),
                _text(facts.config), facts.nodes, facts.cut_nodes, counts, facts.n_stages, compared)


def _serialized(source: Any) -> bytes:
    """Returns the bytes of a model that was passed as bytes, onnx.ModelProto or onnx_ir.Model."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if hasattr(source, "SerializeToString"):
        return source.SerializeToString()
    if type(source).__module__.startswith("onnx_ir"):
        import onnx_ir
        return onnx_ir.serde.serialize_model(source).SerializeToString()
    raise TypeError("model must be a path, bytes, onnx.ModelProto or onnx_ir.Model, not %s" % type(source).__name__)


def load(source: Any, *, progress: Optional[Callable[[str, int, int], None]] = None) -> Model:
    """Loads a model from a path, bytes, an onnx.ModelProto or an onnx_ir.Model. progress(what, done, total) is
    called during long operations.
    """
    return Model(source, progress)
