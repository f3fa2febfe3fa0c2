# SPDX-License-Identifier: Apache-2.0
"""Registers the execution provider with onnxruntime, and provides a session that uses it.

Importing this module imports onnxruntime. The package does so when one of its names is first used.
"""
from __future__ import annotations

import inspect
import json
import os
import re
import threading
import warnings
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

try:
    import onnxruntime
except ModuleNotFoundError:
    raise ImportError("tessera.InferenceSession needs onnxruntime 1.24 or later: pip install 'tessera-onnx[cpu]'") from None

from ._library import FOLDER, Session, TemporaryFolder, check_keywords, library, need_devices, suggests
from .errors import TesseraError
from .model import Model, check_devices, devices_on, html_table, topology_of

NAME = "TesseraExecutionProvider"
LIBRARY = "libtessera_ep.so"
BY_NAME_SINCE = (1, 27)  # first onnxruntime whose InferenceSession takes registered providers by name

_lock = threading.Lock()


def library_path() -> str:
    """Returns the path of the provider's library, for programs that register it themselves."""
    named = os.environ.get("TESSERA_LIBRARY")
    return os.path.join(os.path.dirname(os.path.abspath(named)) if named else FOLDER, LIBRARY)


@suggests
def register(runtime: Any = onnxruntime) -> str:
    """Registers the provider with onnxruntime, or with another module that has register_execution_provider_library
    (onnxruntime_genai). Returns the provider's name. Further calls do nothing.
    """
    with _lock:
        if not getattr(runtime, "_tessera_registered", False):
            runtime.register_execution_provider_library(NAME, library_path())
            runtime._tessera_registered = True
    return NAME


def options_text(devices: Union[int, str, None], options: Mapping[str, Any]) -> Dict[str, str]:
    """Converts the options of the provider to strings: 2 and {"dims": {"batch": 1, "seq": 9}} become {"devices":
    "2", "dims": "batch=1,seq=9"}.
    """
    given = check_devices(devices)
    found = {}
    if given is not None:  # an EPContext model has its devices itself
        _check_topology(given)
        found["devices"] = str(given)
    for name, value in options.items():
        if isinstance(value, Mapping):
            found[name] = ",".join("%s=%s" % pair for pair in value.items())
        elif value is not None:
            found[name] = str(int(value)) if isinstance(value, bool) else os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    return found


def _check_topology(devices: Union[int, str]) -> None:
    """Raises if the devices do not exist, before onnxruntime loads the model."""
    session = Session()
    try:
        session.do(lambda: library.tsr_topology_free(topology_of(session, devices)))
    finally:
        session.close()


def _sharded_by_itself(model: Model) -> Optional[int]:
    """Returns the number of devices for which the model was planned or annotated; None if it was not."""
    return model.session.do(model._devices) if library.tsr_model_config_count(model._handle) else None


def _runtime_keywords() -> Set[str]:
    """Returns the keywords that onnxruntime's session reads from its **kwargs."""
    known = {"enable_fallback", "disabled_optimizers", "read_config_from_model"}
    try:
        source = inspect.getsource(onnxruntime.InferenceSession)
    except (OSError, TypeError):
        return known
    return known | set(re.findall(r"kwargs(?:\.get\(|\.pop\(|\[)[\"'](\w+)", source))


@dataclass(frozen=True)
class SessionPlan:
    """How a session runs its model. milliseconds: predicted time of one run; None if the session did not plan the model
    itself (a given plan, annotations, a cache, an EPContext model). prepare_ms: time to plan, partition and start the
    ranks. cached: the partition came from the folder `cache`. hosts: for several hosts, name, number of ranks and
    milliseconds until they were ready. sent_bytes: of files that workers did not have.
    """

    devices: int
    nodes: int
    cut_nodes: int
    milliseconds: Optional[float]
    prepare_ms: float
    cached: bool
    hosts: Tuple[Tuple[str, int, int], ...] = ()
    sent_bytes: int = 0

    def _repr_html_(self) -> str:
        predicted = "unknown" if self.milliseconds is None else "%.3f ms" % self.milliseconds
        return html_table("Session on %d devices" % self.devices, [("sharded nodes", "%d of %d" % (self.cut_nodes, self.nodes)),
                                                                   ("predicted time", predicted)])


def _configured(source: Any, devices: Any) -> Optional[Model]:
    """Returns the model of bytes that are annotated for this number of devices, with no other configuration; else
    None. (The provider reads annotations from files only: onnxruntime drops them from its graph.)
    """
    given = check_devices(devices)
    if given is None or not isinstance(source, (bytes, bytearray, memoryview)):
        return None
    try:
        model = Model(source)
    except TesseraError:
        return None  # onnxruntime reports the error
    count = given if isinstance(given, int) else model.session.do(lambda: _device_count(model.session, given))
    configs = [library.tsr_model_config(model._handle, i) for i in range(library.tsr_model_config_count(model._handle))]
    fitting = [config for config in configs if library.tsr_config_devices(config) == count]
    if configs and not fitting:
        declared = ", ".join("%s (%d)" % (library.tsr_config_name(config).decode(), library.tsr_config_devices(config))
                             for config in configs)
        warnings.warn("no configuration of the model is for %d devices, so it is planned anew; it has %s" % (count, declared), stacklevel=3)
    for config in configs:
        if fitting and config != fitting[0]:
            model.session.do(lambda: model.session.status(library.tsr_model_remove_config(model._handle, config, True)))
    return model if fitting else None


def _device_count(session: Session, devices: str) -> int:
    topology = topology_of(session, devices)
    try:
        return int(library.tsr_topology_devices(topology))
    finally:
        library.tsr_topology_free(topology)


def _is_context(source: Any) -> bool:
    """True for an EPContext model, which has its devices itself."""
    try:
        return any(node.operator == "EPContext" for node in Model(source).nodes)
    except (TesseraError, TypeError):
        return False  # onnxruntime reports the error


class InferenceSession(onnxruntime.InferenceSession):
    """An onnxruntime.InferenceSession that runs its model on several devices.

        session = tessera.InferenceSession("model.onnx", devices=2)

    It has the methods and exceptions of onnxruntime's session. Without `devices` it is a plain onnxruntime session,
    unless the model is a partition for an execution provider (`tessera partition --layout context`).
    Further keywords are options of the provider: memory="8GiB", dims={"batch": 1, "seq": 128}, plan=PATH,
    transport="shm", threads=1, cache=FOLDER, strict=False, caches="ranks". onnxruntime's own keywords are passed on.

    hosts="a:2,b:2", secret_file=PATH: devices of several hosts, this one first; the others run `tessera worker` with the
    same secret. port: of the workers (29500). interface: network interface. rsh="ssh -o BatchMode=yes": starts workers
    on hosts that have none.

    A model that is annotated for this number of devices keeps its shardings, also if it is given as bytes or as a
    tessera.Model. The attributes plan and sharded_nodes say how the model runs.

    Raises if the provider cannot shard the model. With strict=False, onnxruntime runs it unsharded and logs the
    reason.
    """

    def __init__(self, path_or_bytes: Any, sess_options: Optional[Any] = None, providers: Optional[Sequence[Any]] = None,
                 provider_options: Optional[Sequence[Dict[Any, Any]]] = None, *, devices: Union[int, str, None] = None,
                 memory: Union[int, str, None] = None, dims: Union[Mapping[str, int], str, None] = None, plan: Union[str, os.PathLike[str],
                                                                                                                     None] = None,
                 transport: Optional[str] = None, threads: Optional[int] = None, cache: Union[str, os.PathLike[str], None] = None,
                 summary: Union[str, os.PathLike[str], None] = None, strict: bool = True, caches: Optional[str] = None,
                 hosts: Optional[str] = None, port: Optional[int] = None, secret_file: Union[str, os.PathLike[str], None] = None,
                 interface: Optional[str] = None, rsh: Optional[str] = None, **keywords: Any):
        model = path_or_bytes  # onnxruntime's name of the argument
        if keywords:
            known = set(inspect.signature(InferenceSession.__init__).parameters) - {"self", "keywords"}
            check_keywords("InferenceSession", keywords, sorted(known | _runtime_keywords()))
        if isinstance(model, (str, os.PathLike)) and os.path.isdir(model):
            raise ValueError("'%s' is a folder: run a partition with tessera.PartitionSession, a generation folder with tessera.Generator" %
                             model)
        options = dict(memory=memory, dims=dims, plan=plan, transport=transport, threads=threads, cache=cache, summary=summary,
                       strict=strict, caches=caches, hosts=hosts, port=port, secret_file=secret_file, interface=interface, rsh=rsh)
        devices = devices_on(hosts, devices)
        self._plan: Optional[SessionPlan] = None
        self._name = repr(os.fspath(model)) if isinstance(model, (str, os.PathLike)) else "in memory"
        annotated = model if isinstance(model, Model) else None if plan is not None else _configured(model, devices)
        if annotated is None:
            self._open(model, sess_options, providers, provider_options, devices, options, keywords)
            return
        with TemporaryFolder() as folder:  # for a model in memory; the provider reads annotations from a file
            saved = os.path.join(folder, "model.onnx")
            annotated.save(saved)
            count = _sharded_by_itself(annotated) if annotated is model else devices
            if count is not None and plan is None:
                options["plan"] = saved
            source = annotated._path or saved if annotated is model else model
            self._open(source, sess_options, providers, provider_options, count if devices is None else devices, options, keywords)

    def _open(self, source: Any, sess_options: Any, providers: Any, provider_options: Any, devices: Union[int, str, None],
              options: Dict[str, Any], keywords: Dict[str, Any]) -> None:
        if devices is None:
            given = {**options, "strict": None if options["strict"] else False}
            if any(value is not None for value in given.values()) and not _is_context(source):
                need_devices("InferenceSession", given)
            try:
                super().__init__(source, sess_options, providers, provider_options, **keywords)
                return
            except Exception as error:
                if "EPContext" not in str(error):
                    raise
        keywords.setdefault("enable_fallback", 0)  # otherwise onnxruntime would run on the CPU alone after an error
        with TemporaryFolder() as folder:
            summary = options["summary"] or os.path.join(folder, "summary.json")
            before = _stamp(summary)
            found = options_text(devices, {**options, "summary": summary})
            given, providers, provider_options = _with_provider(found, sess_options, providers, provider_options)
            super().__init__(source, given, providers, provider_options, **keywords)
            self._plan = _read_summary(summary) if _stamp(summary) != before else None  # None: onnxruntime runs the model itself
        if providers is None and not options["summary"]:  # the caller's session options have kept the path
            given.add_session_config_entry("ep.%s.summary" % NAME.lower(), "")

    @property
    def plan(self) -> Optional[SessionPlan]:
        """How the model runs on the devices; None if it is not sharded."""
        return self._plan

    @property
    def sharded_nodes(self) -> int:
        """The number of nodes whose work is divided among the devices."""
        return self._plan.cut_nodes if self._plan else 0

    def __repr__(self) -> str:
        if not self._plan:
            return "<tessera.InferenceSession %s, unsharded, %s>" % (self._name, ", ".join(self.get_providers()))
        predicted = "" if self._plan.milliseconds is None else ", predicted %.3f ms" % self._plan.milliseconds
        return "<tessera.InferenceSession %s, devices=%d, %d of %d nodes sharded%s>" % (
            self._name, self._plan.devices, self._plan.cut_nodes, self._plan.nodes, predicted)

    def __reduce__(self) -> Any:
        raise TypeError("a session cannot be pickled: open the model again in the other process")


def _stamp(path: Union[str, os.PathLike[str]]) -> Any:
    """Identifies the present version of a file; None: there is no file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _read_summary(path: Union[str, os.PathLike[str]]) -> SessionPlan:
    with open(path, encoding="utf-8") as file:
        facts = json.load(file)
    return SessionPlan(facts["devices"], facts["nodes"], facts["cut_nodes"], facts.get("predicted_ms"), facts["milliseconds"],
                       facts["cached"], tuple((host["name"], host["ranks"], host["milliseconds"]) for host in facts["hosts"]),
                       facts["sent_bytes"])


def _with_provider(options: Dict[str, str], sess_options: Any, providers: Optional[Sequence[Any]],
                   provider_options: Optional[Sequence[Dict[Any, Any]]]) -> Tuple[Any, Any, Any]:
    """Returns the arguments of onnxruntime's session with our provider first."""
    register()
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    if version < BY_NAME_SINCE:
        sess_options = sess_options or onnxruntime.SessionOptions()
        sess_options.add_provider_for_devices([d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME][:1], options)
        return sess_options, None, None
    # onnxruntime's own default falls back where TensorRT is not installed, which is usual beside its wheel for GPUs.
    usual = [p for p in onnxruntime.get_available_providers() if "tensorrt" not in p.lower()]
    others: List[Any] = list(providers if providers is not None else usual)
    names = [NAME] + [p for p in others if p != NAME]
    if provider_options is None:
        return sess_options, [(NAME, options)] + names[1:], None
    by_name = dict(zip(others, provider_options))
    return sess_options, names, [options] + [by_name[name] for name in names[1:]]
