# SPDX-License-Identifier: Apache-2.0
"""Sessions that run: onnxruntime's calls, on several devices."""
from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import threading
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from . import _api
from ._library import FOLDER, Session, library, options_of, text_array
from .errors import Finding, TesseraError
from .model import Model, Value, load, topology_of
from .tensors import Tensors


def run_options(transport: Optional[str] = None, threads: Optional[int] = None, map_devices: Optional[Mapping[str, str]] = None,
                trace: Optional[str] = None) -> Any:
    pairs = text_array(["%s=%s" % pair for pair in (map_devices or {}).items()])
    return options_of(_api.tsr_run_options, transport=transport.encode() if transport else None, threads=threads or 0, map_devices=pairs,
                      n_map_devices=len(pairs), trace=os.fsencode(trace) if trace else None,
                      plugins=os.fsencode(FOLDER) if os.path.isdir(FOLDER) else None)


class InferenceSession:
    """Runs a partition, or a model that is planned for so many devices with the sizes of its first inputs, then cut.

    It has the calls of onnxruntime.InferenceSession. Several runs may be under way: start(), start(), wait(), wait()."""

    def __init__(self, model_or_folder: Any, *, devices: Union[int, str, None] = None, transport: str = "threads", threads: Optional[int] = None,
                 map_devices: Optional[Mapping[str, str]] = None, trace: Optional[str] = None):
        self.session = Session()
        self._job = ctypes.c_void_p()
        self._options = run_options(transport, threads, map_devices, trace)
        self._devices = devices
        self._temporary: Optional[str] = None
        self._under_way: List[Tensors] = []
        self._turn = threading.RLock()
        self._manifest: Optional[Dict[str, List[Value]]] = None
        self._folder = model_or_folder if isinstance(model_or_folder, (str, os.PathLike)) and os.path.isdir(model_or_folder) else None
        self._model: Optional[Model] = None
        if not self._folder:
            self._model = model_or_folder if isinstance(model_or_folder, Model) else load(model_or_folder)
        try:
            self.session.do(self._open)
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self.session.open_engine()
        if self._folder:
            self._open_job(library.tsr_job_open, os.fspath(self._folder))

    def _open_job(self, how: Any, path: str) -> None:
        self.session.status(how(self.session.handle, os.fsencode(path), ctypes.byref(self._options), ctypes.byref(self._job)))

    def _cut(self, feeds: Mapping[str, Any]) -> None:
        """Before the first run of a model: plans for the sizes of what it is given, cuts it into a temporary folder, opens that."""
        model = self._model
        assert model is not None
        self._temporary = tempfile.mkdtemp(prefix="tessera-python-")
        folder = os.path.join(self._temporary, "parts")
        if self._devices is not None:
            model.session.do(lambda: plan_for(model, self._devices, feeds))
        if self._devices is None and not library.tsr_model_config_count(model._handle):
            whole = model._path
            if whole is None:
                whole = os.path.join(self._temporary, "model.onnx")
                model.save(whole)
            self.session.do(lambda: self._open_job(library.tsr_job_open_model, whole))
            return
        model.partition(folder)
        self.session.do(lambda: self._open_job(library.tsr_job_open, folder))

    # ---- what it takes and gives

    def get_inputs(self) -> List[Value]:
        return self._model.inputs() if self._model else self._ports("inputs")

    def get_outputs(self) -> List[Value]:
        return self._model.outputs() if self._model else self._ports("outputs")

    def _ports(self, which: str) -> List[Value]:
        """Inputs or outputs of the whole model, as the partition's manifest lists them."""
        if self._manifest is None:
            self._manifest = self.session.do(lambda: read_ports(self.session, os.fspath(self._folder)))
        return self._manifest[which]

    # ---- running

    def run(self, output_names: Optional[Sequence[str]], feeds: Mapping[str, Any], out: Optional[Mapping[str, Any]] = None) -> List[Any]:
        """The outputs of those names (None: all, in the model's order) for these inputs. out: as in wait."""
        with self._turn:  # of several threads each gets the outputs of its own inputs
            if self._under_way:
                raise TesseraError("runs are under way: wait for them first")
            self.start(feeds)
            return self.wait(output_names, out)

    def start(self, feeds: Mapping[str, Any]) -> None:
        """Begins a run; up to 16 may be under way. The arrays must not change until it was waited for."""
        if not isinstance(feeds, Mapping):
            raise TypeError("inputs by name, such as {'x': array}, not %s" % type(feeds).__name__)
        self._check(feeds)
        if not self._job:
            self._cut(feeds)

        def work() -> Tensors:
            inputs = Tensors(self.session)
            try:
                inputs.put_all(feeds)
                self.session.status(library.tsr_job_start(self._job, inputs.handle))
            except BaseException:
                inputs.free()
                raise
            return inputs

        self._under_way.append(self.session.do(work))

    def _check(self, feeds: Mapping[str, Any]) -> None:
        """Names are judged here, so that a misspelt one costs no session, on no transport."""
        self.session.check_open()
        known = [v.name for v in self.get_inputs()]
        findings = [Finding("input-unknown", "error", "the model has no input '%s'" % k, "its inputs: " + ", ".join(known), value=k) for k in feeds if k not in known]
        findings += [Finding("input-missing", "error", "input '%s' is not given" % k, value=k) for k in known if k not in feeds and not self._job]
        if findings:
            raise TesseraError("", findings)

    def wait(self, output_names: Optional[Sequence[str]] = None, out: Optional[Mapping[str, Any]] = None) -> List[Any]:
        """The outputs of the run that was started first. out: tensors on a GPU (DLPack) that outputs of these names are written to,
        and given as; they do not come to the host."""
        if not self._under_way:
            raise TesseraError("no run is under way: call start first")
        inputs = self._under_way.pop(0)

        def work() -> Dict[str, Any]:
            outputs = Tensors(self.session)
            try:
                outputs.put_places(out or {})
                self.session.status(library.tsr_job_wait(self._job, outputs.handle))
                return {**outputs.arrays(), **(out or {})}
            finally:
                outputs.free()
                inputs.free()

        found = self.session.do(work)
        missing = [name for name in output_names or () if name not in found]
        if missing:
            raise TesseraError("the model has no output %s; its outputs: %s" % (", ".join(missing), ", ".join(found)))
        return [found[name] for name in (output_names or [v.name for v in self.get_outputs()])]

    def trace(self, path: Optional[str] = None) -> None:
        """Writes what all ranks did so far for Perfetto, to the file that the session was opened with."""
        self.session.do(lambda: self.session.status(library.tsr_job_trace(self._job)))

    def close(self) -> None:
        """Ends the ranks; runs under way are finished first."""
        job, pending, temporary = self._job, self._under_way, self._temporary

        def free() -> None:
            library.tsr_job_close(job)
            for inputs in pending:
                inputs.free()
            if temporary:
                shutil.rmtree(temporary, ignore_errors=True)

        self.session.close(free)

    def __enter__(self) -> "InferenceSession":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "session", None) is not None:
            self.close()


def read_ports(session: Session, folder: str) -> Dict[str, List[Value]]:
    """Inputs and outputs that the manifest of a partition lists; called in the session's thread."""
    manifest = ctypes.c_void_p()
    session.status(library.tsr_manifest_open(session.handle, os.fsencode(folder), ctypes.byref(manifest)))
    try:
        facts = options_of(_api.tsr_manifest_facts)
        library.tsr_manifest_about(manifest, ctypes.byref(facts))
        return {"inputs": [_port(library.tsr_manifest_input, manifest, i) for i in range(facts.n_inputs)],
                "outputs": [_port(library.tsr_manifest_output, manifest, i) for i in range(facts.n_outputs)]}
    finally:
        library.tsr_manifest_free(manifest)


def _port(get: Any, manifest: Any, index: int) -> Value:
    port = options_of(_api.tsr_manifest_port)
    get(manifest, index, ctypes.byref(port))
    sizes: List[Union[int, str, None]] = []
    for dim in port.dims[:port.rank] if port.rank > 0 else []:
        sizes.append(dim.value if dim.value >= 0 else dim.symbol.decode() or None if dim.symbol else None)
    return Value(port.name.decode(), "tensor(%s)" % port.type.decode(), sizes)


def plan_for(model: Model, devices: Union[int, str, None], feeds: Mapping[str, Any]) -> None:
    """Plans a model, in its session, for the sizes of these inputs."""
    session = model.session
    topology = None if isinstance(devices, int) else topology_of(session, str(devices))
    inputs = Tensors(session)
    try:
        inputs.put_all(feeds)
        options = options_of(_api.tsr_plan_options, devices=devices if isinstance(devices, int) else 0, topology=topology)
        summary = options_of(_api.tsr_plan_summary)
        session.status(library.tsr_plan_for(model._handle, ctypes.byref(options), inputs.handle, ctypes.byref(summary)))
        model._config = summary.config.decode()
    finally:
        inputs.free()
        library.tsr_topology_free(topology)
