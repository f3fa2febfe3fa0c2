# SPDX-License-Identifier: Apache-2.0
"""Models: load, annotate, check, plan and partition."""
from __future__ import annotations

import ctypes
import html
import operator
import os
import re
from dataclasses import dataclass, field, fields
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _api
from ._library import Session, did_you_mean, enum_of, library, options_of, read, sizes_array, suggests, text_array, transport_of
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


@dataclass(frozen=True)
class TensorSharding:
    """The sharding of an input or output of a node, in the notation of docs/annotate.md. in_parts: the devices have
    partial sums that are reduced later.
    """

    value: str
    sharding: str
    in_parts: bool = False


@dataclass(frozen=True)
class Candidate:
    """One way to shard a node (an OpShardSpec): the shardings that it needs for its inputs, those of its outputs, and
    the collective that completes them.

    name: the factors of the operator's rule that are sharded, such as "m/2"; "whole" for none. milliseconds: predicted
    time of the best plan with this candidate; 0 if there is none (feasible is False). compute_ms and communication_ms
    are of this node alone.
    """

    name: str
    inputs: List[TensorSharding]
    outputs: List[TensorSharding]
    reduction: Optional[str]
    chosen: bool
    feasible: bool
    milliseconds: float
    compute_ms: float
    communication_ms: float
    weight_bytes: int


@dataclass(frozen=True)
class Reduction:
    """A collective that completes an output of a node, among the devices of each group."""

    value: str
    collective: str
    function: str
    groups: List[List[int]]


@dataclass(frozen=True)
class PlannedNode:
    """A node of a plan: the shardings of all its inputs and outputs, its pipeline stage, and its reductions. name: as
    Model.shard takes it. sharded: each device has less work than the whole node.
    """

    name: str
    operator: str
    inputs: List[TensorSharding]
    outputs: List[TensorSharding]
    reductions: List[Reduction]
    sharded: bool
    stage: Optional[int] = None


class PlanNodes(int):
    """The nodes of a plan. It is also their number, as which Plan.nodes was defined first.

        for node in plan.nodes: ...
        plan.nodes["layer.0/mm"].outputs

    The shardings are inferred when they are first read, and stay valid afterwards.
    """

    _read: Optional[Callable[[], List[PlannedNode]]] = None
    _list: Optional[List[PlannedNode]] = None

    def _nodes(self) -> List[PlannedNode]:
        if self._list is None:
            if self._read is None:
                raise TesseraError(
                    "this plan was copied or pickled before its nodes were read: read them from the plan that Model.plan returned")
            self._list = self._read()
        return self._list

    def __iter__(self) -> Iterator[PlannedNode]:
        return iter(self._nodes())

    def __len__(self) -> int:
        return len(self._nodes())

    def __getitem__(self, key: Union[int, str]) -> PlannedNode:
        """Returns a node by its position or its name."""
        if not isinstance(key, str):
            return self._nodes()[key]
        for node in self._nodes():
            if node.name == key:
                return node
        raise KeyError(key)

    def __reduce__(self) -> Tuple[Any, ...]:
        return _planned, (int(self), self._list)


def _planned(count: int, nodes: Optional[List[PlannedNode]]) -> PlanNodes:
    made = PlanNodes(count)
    made._list = nodes
    return made


def html_table(title: str, rows: Sequence[Tuple[str, Any]]) -> str:
    """Returns a table for notebooks. All texts are escaped."""
    cells = "".join("<tr><th style='text-align:left'>%s</th><td style='text-align:left'>%s</td></tr>" %
                    (html.escape(name), html.escape(str(value))) for name, value in rows)
    return "<table><caption style='text-align:left'><b>%s</b></caption>%s</table>" % (html.escape(title), cells)


def bytes_text(size: float) -> str:
    """Converts 8589934592 to "8.00 GiB"."""
    if size < 1024:
        return "%d B" % size
    units = ["KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 * 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return "%.2f %s" % (size / 1024, units[0])


def counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join("%s %d" % pair for pair in counts.items()) or "none"


@dataclass
class Plan:
    """The chosen plan and its predicted costs. assumed: the devices are assumed (a number, a generator such as
    "ring:4"), not measured. nodes: the nodes with their shardings, and their number.
    """

    devices: int
    optimal: bool
    gap: float
    milliseconds: float
    one_device_ms: float
    memory: List[int]
    configuration: str
    nodes: PlanNodes
    cut_nodes: int
    collectives: Dict[str, int] = field(default_factory=dict)
    stages: int = 0
    compared: List[ComparedPlan] = field(default_factory=list)
    assumed: bool = False

    @suggests
    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the plan as a JSON document, as `tessera plan --plan` does. InferenceSession(plan=path) and
        `tessera annotate --script` read it.
        """
        made = self.__dict__.get("_made")
        if made is None:
            raise TesseraError("this plan was copied or pickled: save the plan that Model.plan returned")
        made.save(path)

    def __getstate__(self) -> Dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # without what refers to the model

    def _repr_html_(self) -> str:
        one = "%.3f ms" % self.one_device_ms if self.one_device_ms else "does not fit"
        rows: List[Tuple[str, Any]] = [
            ("predicted time", "%.3f ms (%s)" % (self.milliseconds, "optimal" if self.optimal else "gap %.1f %%" % (100 * self.gap))),
            ("on one device", one), ("sharded nodes", "%d of %d" % (self.cut_nodes, int(self.nodes))),
            ("communication", counts_text(self.collectives)), ("memory of the fullest device", bytes_text(max(self.memory, default=0)))
        ]
        rows += [("stages", self.stages)] if self.stages else []
        rows += [(plan.name, plan.reason) for plan in self.compared]
        return html_table("Plan for %d %sdevices" % (self.devices, "assumed " if self.assumed else ""), rows)


class _Made:
    """What a plan needs of its model: the result of the library, and the options it was made with."""

    def __init__(self, model: "Model", result: Any, options: Any, configuration: str):
        self.model, self.result, self.options = model, result, options
        self.configuration, self.edits = configuration, model._edits

    def _check(self) -> None:
        if self.edits != self.model._edits:
            raise TesseraError("the model was changed after this plan was made: read its nodes, or save it, before the next change")

    def nodes(self) -> List[PlannedNode]:
        def work() -> List[PlannedNode]:
            self._check()
            return self.model._planned_nodes(self.configuration)
        return self.model.session.do(work)

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        def work() -> None:
            self._check()
            self.model.session.status(library.tsr_plan_save(self.model._handle, ctypes.byref(self.options), self.result, os.fsencode(path)))
        self.model.session.do(work)

    def __del__(self) -> None:
        result, topology = self.result, self.options.topology

        def free() -> None:
            library.tsr_plan_result_free(result)
            library.tsr_topology_free(topology)

        self.model.session.later(free)


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
    replicated: List[Tuple[str, str, str]]


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


def _tensors(list_: Any, count: int) -> List[TensorSharding]:
    return [TensorSharding(_text(t.value), _text(t.sharding), t.in_parts) for t in list_[:count]]


def _groups(list_: Any, count: int) -> List[List[int]]:
    return [list(group.devices[:group.n]) for group in list_[:count]]


def _planned_node(node: Any) -> PlannedNode:
    reductions = [
        Reduction(_text(r.value), _text(r.collective), _text(r.function), _groups(r.groups, r.n_groups))
        for r in node.reductions[:node.n_reductions]
    ]
    return PlannedNode(_text(node.name), _text(node.op), _tensors(node.inputs, node.n_inputs), _tensors(node.outputs, node.n_outputs),
                       reductions, node.sharded, None if node.stage < 0 else node.stage)


def _candidate(c: Any) -> Candidate:
    return Candidate(_text(c.name), _tensors(c.inputs, c.n_inputs), _tensors(c.outputs, c.n_outputs),
                     _text(c.reduction) or None, c.chosen, c.feasible, c.cost / 1e9, c.compute / 1e9, c.communication / 1e9, c.weights)


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
        return str(os.fspath(devices))
    if not is_count(devices):
        raise TypeError("devices must be a number or a topology such as 'ring:4', not %r" % (devices,))
    if operator.index(devices) < 1:
        raise ValueError("devices must be 1 or more, not %r" % (devices,))
    return operator.index(devices)


HOST_OPTIONS = ("hosts", "port", "secret_file", "interface", "rsh")


def devices_on(hosts: Optional[str], devices: Any) -> Any:
    """Returns the devices of a list of hosts such as "a:2,b:2", unless a topology is given."""
    if hosts is None or (devices is not None and not is_count(devices)):
        return devices
    topology = ctypes.create_string_buffer(48)
    count = library.tsr_hosts_read(hosts.encode(), topology, len(topology))
    if count == 0:
        raise ValueError("hosts must be a list such as 'a:4,b:4', this host first, not %r" % (hosts,))
    if devices not in (None, count):
        raise ValueError("hosts has %d devices, but devices is %r" % (count, devices))
    text = topology.value.decode()
    return int(text) if text.isdigit() else text


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

    @suggests
    def __init__(self, source: Any, progress: Optional[Callable[[str, int, int], None]] = None):
        self.session = Session(progress)
        self._handle = ctypes.c_void_p()
        self._config: Optional[str] = None
        self._bytes: Optional[bytes] = None
        self._path: Optional[str] = None
        self._folder: Optional[str] = None  # a generation folder that it was loaded from
        self._edits = 0  # number of changes so far, so that an older plan is not read from a changed model
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

    def __reduce__(self) -> Tuple[Any, ...]:
        """Pickles the model with its annotations, as bytes. One with weights in other files would lose them."""
        if self.session.do(self._has_external_data):
            raise TypeError(
                "a model with external data cannot be pickled, because its bytes do not contain the weights: pickle its path and load it"
                " there"
            )
        return _unpickled, (self.to_bytes(), self._config)

    def _has_external_data(self) -> bool:
        graph = library.tsr_model_graph(self._handle)
        values = (library.tsr_graph_initializer(graph, i) for i in range(library.tsr_graph_initializer_count(graph)))
        tensors = (library.tsr_value_initializer(value) for value in values)
        return any(tensor and library.tsr_tensor_is_external(tensor) for tensor in tensors)

    def _repr_html_(self) -> str:
        rows: List[Tuple[str, Any]] = [("nodes", library.tsr_graph_node_count(library.tsr_model_graph(self._handle)))]
        rows += [("input " + v.name, "%s %s" % (v.type, v.shape))
                 for v in self.inputs()] + [("output " + v.name, "%s %s" % (v.type, v.shape)) for v in self.outputs()]
        configs = [library.tsr_model_config(self._handle, i) for i in range(library.tsr_model_config_count(self._handle))]
        rows += [("configuration " + _text(library.tsr_config_name(c)), "%d devices" % library.tsr_config_devices(c)) for c in configs]
        return html_table("Model %s" % (self._path or "in memory"), rows)

    # ---- contents

    @property
    def nodes(self) -> List[Node]:
        """The nodes of the main graph, in order. Calls that take a node also find those of subgraphs, by paths such as
        "outer > then_branch > inner".
        """
        return self.session.do(self._nodes)

    def _nodes(self) -> List[Node]:
        names: Callable[
            [Any, Any, Any],
            List[str]] = lambda count, at, n: [_text(library.tsr_value_name(v)) if v else "" for v in (at(n, i) for i in range(count(n)))]
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

    @suggests
    def add_config(self, name: str, devices: Union[int, Sequence[str]]) -> None:
        """Declares a configuration with a number of devices, or with devices of these names. Later edits apply to
        it.
        """
        names = [] if isinstance(devices, int) else list(devices)
        count = devices if isinstance(devices, int) else len(names)
        config = ctypes.c_void_p()
        array = text_array(names) if names else None
        self.session.do(lambda: self.session.status(
            library.tsr_model_add_config(self._handle, name.encode(), count, array, len(names), ctypes.byref(config))))
        self._config = name  # no edit of an earlier plan, which has a configuration of its own

    def _configuration(self, name: Optional[str] = None) -> Any:
        """Returns a configuration by its name; default: that of the last edit or plan, or the only one."""
        count = library.tsr_model_config_count(self._handle)
        if name or self._config:
            found = library.tsr_model_find_config(self._handle, (name or self._config or "").encode())
            if not found:
                raise TesseraError("the model has no configuration '%s': declare it with add_config" % (name or self._config))
            return found
        if count == 1:
            return library.tsr_model_config(self._handle, 0)
        raise TesseraError("the model has %d configurations: declare one with add_config" % count)

    def _find(self, node: str) -> Any:
        """Finds a node by its name, one of its outputs, "#3", or a path such as "outer > then_branch > inner"."""
        found = library.tsr_model_find_node(self._handle, node.encode())
        if not found:
            names = [n.name for n in self._nodes() if n.name]
            hint = "Model.nodes lists the nodes; those of subgraphs are named 'outer > then_branch > inner'; '#3' is the fourth node"
            several = " (several nodes have this name)" if node in names else did_you_mean(node, names)
            raise TesseraError("", [Finding("edit-no-node", "error", "no node '%s'%s" % (node, several), hint, node=node)])
        return found

    def _find_value(self, node: str, value: str) -> Any:
        """Finds a node, and its input or output of that name."""
        at = self._find(node)
        values = [library.tsr_node_input(at, i) for i in range(library.tsr_node_input_count(at))]
        values += [library.tsr_node_output(at, i) for i in range(library.tsr_node_output_count(at))]
        known = {_text(library.tsr_value_name(v)): v for v in values if v}
        if value not in known:
            raise TesseraError("", [
                Finding("edit-no-value", "error", "node '%s' has no value '%s'%s" %
                        (node, value, did_you_mean(value, list(known))), "its values: " + ", ".join(known), node=node, value=value)
            ])
        return at, known[value]

    @suggests
    def shard(self, node: str, value: str, sharding: Optional[str] = None, *, axis: Optional[int] = None, num_shards: Optional[int] = None,
              devices: Sequence[int] = ()) -> None:
        """Shards an input or output of a node. Shardings of its other values stay.

        sharding: the complete sharding of the value, in the notation of docs/annotate.md: "{1,4}". It replaces an
        earlier one of this value. Or axis and num_shards: one sharded axis. Further calls add axes to the sharding,
        the first one outermost. devices: of the shards; default: 0, 1, ...
        """
        if (sharding is None) == (axis is None or num_shards is None):
            raise TypeError("shard(): give a sharding such as '{1,4}', or both axis and num_shards")
        if sharding is not None and devices:
            raise TypeError("shard(): devices are for axis and num_shards; a sharding names its own: '{1,2:0,1}'")
        ids = (ctypes.c_int64 * len(devices))(*devices)

        def work() -> None:
            at, v = self._find_value(node, value)
            config = self._configuration()
            self._edits += 1
            if sharding is not None:
                self.session.status(library.tsr_node_shard_text(at, v, config, sharding.encode()))
            else:
                self.session.status(library.tsr_node_shard(at, v, config, axis, num_shards, ids, len(devices), -1))
        self.session.do(work)

    @suggests
    def shardings(self, node: str, *, config: Optional[str] = None) -> Dict[str, str]:
        """Returns the shardings that a node has in the model, by value: {"w": "{1,2:0,1}"}. config: the configuration;
        default: that of the last edit or plan, or the only one.
        """
        def work() -> Dict[str, str]:
            at = self._find(node)
            annotation = library.tsr_node_find_config(at, self._configuration(config))
            found = {}
            for i in range(library.tsr_node_config_spec_count(annotation) if annotation else 0):
                spec, text = library.tsr_node_config_spec(annotation, i), ctypes.c_char_p()
                self.session.status(library.tsr_spec_text(spec, ctypes.byref(text)))
                value = library.tsr_spec_value(spec)
                found[_text(library.tsr_value_name(value)) if value else ""] = _text(text.value)
            return found
        return self.session.do(work)

    @suggests
    def candidates(self, node: str, devices: Union[int, str], *, memory: Union[int, str, None] = None,
                   dims: Optional[Mapping[str, int]] = None) -> List[Candidate]:
        """Returns the ways in which a node can be sharded on these devices, with the predicted time of the best plan
        for each. Plans a copy of the model: the model itself does not change.
        """
        def work() -> List[Candidate]:
            self._find(node)  # reports a misspelt name
            options, copy = self._plan_options(devices, memory, dims, explain=node.encode()), ctypes.c_void_p()
            try:
                self.session.status(library.tsr_model_clone(self._handle, ctypes.byref(copy)))
                return self._explained(copy, options)
            finally:
                library.tsr_topology_free(options.topology)
                library.tsr_model_free(copy)
        return self.session.do(work)

    def _explained(self, model: Any, options: Any) -> List[Candidate]:
        result = ctypes.c_void_p()
        status = library.tsr_plan(model, ctypes.byref(options), ctypes.byref(result))
        try:
            self.session.status(status)
            facts = read(_api.tsr_plan_facts, library.tsr_plan_result_about, result)
            return [_candidate(read(_api.tsr_plan_choice, library.tsr_plan_result_choice, result, i)) for i in range(facts.n_choices)]
        finally:
            library.tsr_plan_result_free(result)

    @suggests
    def stage(self, node: str, stage: int) -> None:
        """Assigns a node to a pipeline stage."""
        def work() -> None:
            at, config = self._find(node), self._configuration()
            self._edits += 1
            self.session.status(library.tsr_node_set_stage(at, config, stage))
        self.session.do(work)

    @suggests
    def check(self, formalism: bool = False) -> List[Finding]:
        """Returns all errors, warnings and notes about the annotations. formalism: by the published formalism, in
        which an input without a sharding has that of its producer.
        """
        options = options_of(_api.tsr_check_options, formalism=formalism)

        def work() -> List[Finding]:
            self.session.status(library.tsr_check(self._handle, ctypes.byref(options)))
            return self.session.findings()
        return self.session.do(work)

    @suggests
    def infer(self, propagate: bool = False, formalism: bool = False) -> None:
        """Adds the shardings that follow from those given.

        formalism: an input without a sharding has that of its producer. Raises if the inputs of a node then
        contradict each other.
        """
        if propagate and formalism:
            raise ValueError("propagate and formalism exclude each other")
        name = self._config.encode() if self._config else None
        options = options_of(_api.tsr_infer_options, config=name, propagate=propagate, formalism=formalism)
        self._edits += 1
        self.session.do(lambda: self.session.status(library.tsr_infer(self._handle, ctypes.byref(options))))

    # ---- plan, partition, save

    @suggests
    def plan(self, devices: Union[int, str], *, memory: Union[int, str, None] = None, dims: Optional[Mapping[str, int]] = None,
             stages: Union[int, str] = 0, objective: str = "latency", time: Optional[float] = None) -> Plan:
        """Chooses a sharding for every node and writes it into the model. After Ctrl-C, the exception has the best
        plan so far as .best.
        """
        return self.session.do(lambda: self._plan(self._plan_options(devices, memory, dims, stages, objective, time)))

    def _plan_options(self, devices: Union[int, str], memory: Union[int, str,
                                                                    None], dims: Optional[Mapping[str, int]], stages: Union[int, str] = 0,
                      objective: str = "latency", time: Optional[float] = None, explain: Optional[bytes] = None) -> Any:
        """Returns the options of the library for a plan. The caller frees their topology."""
        given, sizes = check_devices(devices), sizes_array(dims)
        if given is None:
            raise TypeError("devices must be a number or a topology such as 'ring:4', not None")
        if objective not in OBJECTIVES:
            raise ValueError("objective must be %s, not %r" % (" or ".join(OBJECTIVES), objective))
        if time is not None and not time > 0:
            raise ValueError("time must be a positive number of seconds, not %r" % (time,))
        options = options_of(_api.tsr_plan_options, memory=bytes_of(memory), sizes=sizes, n_sizes=len(sizes),
                             objective=OBJECTIVES[objective], stages=_stages_of(stages), seconds=time or 0, explain=explain)
        if isinstance(given, int):
            options.devices = given
        else:
            options.topology = topology_of(self.session, given)
        return options

    def _plan(self, options: Any) -> Plan:
        result = ctypes.c_void_p()
        self._edits += 1
        status = library.tsr_plan(self._handle, ctypes.byref(options), ctypes.byref(result))
        library.tsr_session_cancel(self.session.handle, False)
        try:
            self.session.status(status)
            plan = plan_of(result)
        except BaseException as error:
            if isinstance(error, Infeasible):
                facts = read(_api.tsr_plan_facts, library.tsr_plan_result_about, result)
                error.needs_bytes, error.fits_devices = facts.needs_bytes, facts.fits_devices
            library.tsr_plan_result_free(result)
            library.tsr_topology_free(options.topology)
            raise
        self._config = plan.configuration
        made = _Made(self, result, options, plan.configuration)
        plan.__dict__["_made"] = made  # no field of the dataclass: it is neither compared nor copied
        plan.nodes._read = made.nodes
        return plan

    def _planned_nodes(self, configuration: str) -> List[PlannedNode]:
        nodes = ctypes.c_void_p()
        self.session.status(library.tsr_plan_nodes_new(self._handle, configuration.encode(), ctypes.byref(nodes)))
        try:
            return [
                _planned_node(read(_api.tsr_plan_node, library.tsr_plan_nodes_at, nodes, i))
                for i in range(library.tsr_plan_nodes_count(nodes))
            ]
        finally:
            library.tsr_plan_nodes_free(nodes)

    @suggests
    def partition(self, folder: Union[str, os.PathLike[str]], *, state: Union[str, Iterable[str]] = "auto", keep_cut: Iterable[str] = (),
                  layout: Optional[str] = None, weights: Optional[str] = None, transport: Optional[str] = None, force: bool = False,
                  dims: Optional[Mapping[str, int]] = None, static: bool = False) -> Partition:
        """Writes one ONNX file per device into a new folder.

        state: pairs "past=present" that stay on their devices; "auto": those that the model's metadata names.
        layout: "context" also writes model.onnx, an EPContext model that any ONNX Runtime runs with the execution
        provider; "genai" writes one generation folder per device (the model must be loaded from such a folder).
        weights: "safetensors", or plain bytes. transport, for layout "context": ranks are "threads" of the program
        that loads model.onnx, or processes ("shm").
        dims: sizes of symbolic dimensions, the defaults of runs; they win over those of the plan. static: the files are
        for these sizes only.
        """
        if layout == "wrapped":
            raise ValueError(
                "the layout 'wrapped' was replaced by 'context', whose model.onnx needs the execution provider (tessera.register)")
        if layout not in (None, "context", "genai"):
            raise ValueError("unknown layout %r: use 'context' or 'genai'" % (layout,))
        if layout == "genai" and (dims or static):
            raise ValueError("the layout 'genai' takes no dims and no static: generation needs sizes that change")
        if layout == "genai":
            return self.session.do(lambda: self._partition_folder(folder, force))
        return self.session.do(lambda: self._partition(folder, state, keep_cut, layout, weights, transport, force, dims, static))

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
        return int(library.tsr_config_devices(config))

    def _partition(self, folder: Any, state: Any, keep_cut: Any, layout: Optional[str], weights: Optional[str],
                   transport: Optional[str], force: bool, dims: Optional[Mapping[str, int]], static: bool) -> Partition:
        sizes = sizes_array(dims)
        pairs = text_array([] if state == "auto" else list(state))
        cut = text_array(list(keep_cut))
        name = self._config.encode() if self._config else None
        options = options_of(_api.tsr_partition_options, config=name, force=force, state=pairs, n_state=len(pairs), keep_cut=cut,
                             n_keep_cut=len(cut), layout=enum_of("TSR_LAYOUT_", layout), weights=enum_of("TSR_WEIGHTS_", weights),
                             transport=transport_of(transport), sizes=sizes, n_sizes=len(sizes), static_sizes=static)
        result = ctypes.c_void_p()
        self.session.status(library.tsr_partition(self._handle, os.fsencode(folder), ctypes.byref(options), ctypes.byref(result)))
        return self._partitioned(result)

    @suggests
    def save(self, path: Union[str, os.PathLike[str]]) -> None:
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
    counts = counts_of(facts.n_collectives, library.tsr_plan_result_collective, result)
    experts = [read(_api.tsr_plan_expert, library.tsr_plan_result_compared, result, i) for i in range(facts.n_compared)]
    compared = [ComparedPlan(_text(e.name), e.fits, e.milliseconds, e.communication_ms, e.needs_bytes, _text(e.reason)) for e in experts]
    return Plan(facts.devices, facts.optimal, facts.gap, facts.milliseconds, facts.one_device / 1e9, list(facts.memory[:facts.devices]),
                _text(facts.config), PlanNodes(facts.nodes), facts.cut_nodes, counts, facts.n_stages, compared, facts.assumed)


def _serialized(source: Any) -> bytes:
    """Returns the bytes of a model that was passed as bytes, onnx.ModelProto or onnx_ir.Model."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if hasattr(source, "SerializeToString"):
        return bytes(source.SerializeToString())
    if type(source).__module__.startswith("onnx_ir"):
        import onnx_ir
        return bytes(onnx_ir.serde.serialize_model(source).SerializeToString())
    raise TypeError("model must be a path, bytes, onnx.ModelProto or onnx_ir.Model, not %s" % type(source).__name__)


def _unpickled(data: bytes, config: Optional[str]) -> Model:
    model = Model(data)
    model._config = config
    return model


@suggests
def load(source: Any, *, progress: Optional[Callable[[str, int, int], None]] = None) -> Model:
    """Loads a model from a path, bytes, an onnx.ModelProto or an onnx_ir.Model. progress(what, done, total) is
    called during long operations.
    """
    return Model(source, progress)
