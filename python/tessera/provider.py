# SPDX-License-Identifier: Apache-2.0
"""Registers the execution provider with onnxruntime, and provides a session that uses it.

Importing this module imports onnxruntime. The package does so when one of its names is first used.
"""
from __future__ import annotations

import os
import threading
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

try:
    import onnxruntime
except ModuleNotFoundError:
    raise ImportError("tessera.InferenceSession needs onnxruntime 1.24 or later: pip install 'tessera-onnx[cpu]'") from None

from ._library import FOLDER, Session, TemporaryFolder, library
from .model import Model, check_devices, topology_of

NAME = "TesseraExecutionProvider"
LIBRARY = "libtessera_ep.so"
BY_NAME_SINCE = (1, 27)  # first onnxruntime whose InferenceSession takes registered providers by name

_lock = threading.Lock()


def library_path() -> str:
    """Returns the path of the provider's library, for programs that register it themselves."""
    named = os.environ.get("TESSERA_LIBRARY")
    return os.path.join(os.path.dirname(os.path.abspath(named)) if named else FOLDER, LIBRARY)


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


class InferenceSession(onnxruntime.InferenceSession):
    """An onnxruntime.InferenceSession that runs its model on several devices.

        session = tessera.InferenceSession("model.onnx", devices=2)

    It has the methods and exceptions of onnxruntime's session. Without `devices` it is a plain onnxruntime session,
    unless the model is a partition for an execution provider (`tessera partition --layout context`).
    Further keywords are options of the provider: memory="8GiB", dims={"batch": 1, "seq": 128}, plan=PATH,
    transport="shm", threads=1, cache=FOLDER, strict=False.

    Raises if the provider cannot shard the model. With strict=False, onnxruntime runs it unsharded and logs the
    reason.
    """

    def __init__(self, path_or_bytes: Any, sess_options: Optional[Any] = None, providers: Optional[Sequence[Any]] = None,
                 provider_options: Optional[Sequence[Dict[Any, Any]]] = None, *, devices: Union[int, str, None] = None, memory: Union[int, str, None] = None,
                 dims: Union[Mapping[str, int], str, None] = None, plan: Union[str, os.PathLike, None] = None, transport: Optional[str] = None,
                 threads: Optional[int] = None, cache: Union[str, os.PathLike, None] = None, summary: Union[str, os.PathLike, None] = None,
                 strict: bool = True, **keywords: Any):
        model = path_or_bytes  # onnxruntime's name of the argument
        if isinstance(model, (str, os.PathLike)) and os.path.isdir(model):
            raise ValueError("'%s' is a folder: run a partition with tessera.PartitionSession, a generation folder with tessera.Generator" % model)
        options = dict(memory=memory, dims=dims, plan=plan, transport=transport, threads=threads, cache=cache, summary=summary, strict=strict)
        if not isinstance(model, Model):
            self._open(model, sess_options, providers, provider_options, devices, options, keywords)
            return
        with TemporaryFolder() as folder:  # for a model in memory; the provider reads annotations from a file
            saved = os.path.join(folder, "model.onnx")
            model.save(saved)
            count = _sharded_by_itself(model)
            if count is not None and plan is None:
                options["plan"] = saved
            self._open(model._path or saved, sess_options, providers, provider_options, count if devices is None else devices, options, keywords)

    def _open(self, source: Any, sess_options: Any, providers: Any, provider_options: Any, devices: Union[int, str, None],
              options: Dict[str, Any], keywords: Dict[str, Any]) -> None:
        if devices is None:
            try:
                super().__init__(source, sess_options, providers, provider_options, **keywords)
                return
            except Exception as error:
                if "EPContext" not in str(error):
                    raise
        found = options_text(devices, options)
        sess_options, providers, provider_options = _with_provider(found, sess_options, providers, provider_options)
        keywords.setdefault("enable_fallback", 0)  # otherwise onnxruntime would run on the CPU alone after an error
        super().__init__(source, sess_options, providers, provider_options, **keywords)


def _with_provider(options: Dict[str, str], sess_options: Any, providers: Optional[Sequence[Any]],
                   provider_options: Optional[Sequence[Dict[Any, Any]]]) -> Tuple[Any, Any, Any]:
    """Returns the arguments of onnxruntime's session with our provider first."""
    register()
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    if version < BY_NAME_SINCE:
        sess_options = sess_options or onnxruntime.SessionOptions()
        sess_options.add_provider_for_devices([d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME][:1], options)
        return sess_options, None, None
    others: List[Any] = list(providers if providers is not None else onnxruntime.get_available_providers())
    names = [NAME] + [p for p in others if p != NAME]
    if provider_options is None:
        return sess_options, [(NAME, options)] + names[1:], None
    by_name = dict(zip(others, provider_options))
    return sess_options, names, [options] + [by_name[name] for name in names[1:]]
