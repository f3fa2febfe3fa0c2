# SPDX-License-Identifier: Apache-2.0
"""Sessions that run a partition folder."""
from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import threading
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from . import _api
from ._library import FOLDER, Session, did_you_mean, library, options_of, read, suggests, text_array, transport_of
from .errors import Finding, TesseraError
from .group import Group
from .model import Value, is_count
from .tensors import Tensors, check_places

TRANSPORTS = ("threads", "shm", "mpi", "ucx")
MAX_SECRET = 4096  # characters


def run_options(transport: Optional[str] = None, threads: Optional[int] = None, map_devices: Optional[Mapping[str, str]] = None,
                trace: Optional[str] = None, devices: Any = None, hosts: Optional[str] = None, port: Optional[int] = None,
                secret_file: Union[str, os.PathLike[str], None] = None, interface: Optional[str] = None, rsh: Optional[str] = None) -> Any:
    if transport is not None and transport not in TRANSPORTS:
        raise ValueError("transport must be %s, not %r" % (" or ".join(TRANSPORTS), transport))
    if threads is not None and not (is_count(threads) and 0 <= threads < 2**31):
        raise ValueError("threads must be a number of threads per rank, or 0 for the default, not %r" % (threads,))
    if map_devices is not None and not isinstance(map_devices, Mapping):
        raise TypeError("map_devices must be a dict such as {'NPU:0': 'CPU'}, not %s" % type(map_devices).__name__)
    pairs = text_array(["%s=%s" % pair for pair in (map_devices or {}).items()])
    return options_of(_api.tsr_run_options, transport=transport_of(transport), threads=threads or 0, map_devices=pairs,
                      n_map_devices=len(pairs), trace=os.fsencode(trace) if trace else None, work=os.fsencode(tempfile.gettempdir()),
                      gpu_driver=os.fsencode(os.environ.get("TESSERA_CUDA", "")) or None,
                      gpu_nccl=os.fsencode(os.environ.get("TESSERA_NCCL", "")) or None,
                      hosts=_text(hosts), port=port or 0, secret=_read_secret(secret_file), network_interface=_text(interface),
                      rsh=_text(rsh),
                      plugins=os.fsencode(FOLDER) if os.path.isdir(FOLDER) else None,
                      most_ranks=0 if devices is None else -1)  # if the caller chose the number of devices, it is not limited


def _text(text: Optional[str]) -> Optional[bytes]:
    return text.encode() if text else None


def _read_secret(file: Union[str, os.PathLike[str], None]) -> Optional[bytes]:
    """Reads the secret of workers, the first line of a file that other users cannot write."""
    if file is None:
        return _text(os.environ.get("TESSERA_SECRET"))
    path, session, secret = os.fsencode(file), Session(), ctypes.create_string_buffer(MAX_SECRET + 1)
    try:
        session.do(lambda: session.status(library.tsr_secret_read(session.handle, path, secret, len(secret))))
    finally:
        session.close()
    return secret.value


class PartitionSession:
    """Runs a partition folder, with the methods run, get_inputs and get_outputs of onnxruntime.InferenceSession.

    Up to 16 runs may be pending: start(), start(), wait(), wait(). Do not use a session in a child process after
    os.fork(); open a new one there.

    group: this process runs its rank of the partition. Every rank opens the same folder and makes the same runs.
    Rank 0 gets the outputs, the others an empty list.
    """

    @suggests
    def __init__(self, folder: Union[str, os.PathLike[str]], *, transport: str = "threads", threads: Optional[int] = None,
                 map_devices: Optional[Mapping[str, str]] = None, trace: Optional[str] = None, group: Optional[Group] = None):
        self._options = run_options(None if group else transport, threads, map_devices, trace)
        self._group = group
        self._transport, self._trace = transport, trace
        self._job = ctypes.c_void_p()
        self._under_way: List[Tensors] = []  # inputs of pending runs; only the session's thread changes it
        self._opening = threading.Lock()
        self._manifest: Dict[str, List[Value]] = {}
        self._folder = os.fspath(folder)
        self.session = group.session if group else Session()
        try:
            self.session.do(self._open)
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self.session.open_engine()
        self._open_job()
        self._manifest = read_ports(self.session, self._folder)

    def _open_job(self) -> None:
        self.session.status(library.tsr_job_open(self.session.handle, os.fsencode(self._folder), ctypes.byref(self._options),
                                                 ctypes.byref(self._job)))

    # ---- inputs and outputs

    def get_inputs(self) -> List[Value]:
        """Returns the inputs of the unsharded model."""
        return self._ports("inputs")

    def get_outputs(self) -> List[Value]:
        """Returns the outputs of the unsharded model."""
        return self._ports("outputs")

    def _ports(self, which: str) -> List[Value]:
        """Returns the inputs or outputs of the unsharded model, from the partition's manifest."""
        return self._manifest[which]

    # ---- running

    @suggests
    def run(self, output_names: Optional[Sequence[str]], feeds: Optional[Mapping[str, Any]] = None, run_options: None = None, *,
            out: Optional[Mapping[str, Any]] = None, input_feed: Optional[Mapping[str, Any]] = None) -> List[Any]:
        """Runs once. Returns the outputs with these names (None: all, in the model's order).

        feeds: the inputs by name; input_feed is onnxruntime's name for them. run_options: only None is supported.
        out: as in wait().
        """
        if run_options is not None:
            raise TypeError("run_options is not supported (given: %s); tensors on a GPU for outputs are given as out={name: tensor}"
                            % type(run_options).__name__)
        given = input_feed if feeds is None else feeds
        if given is None or (feeds is not None and input_feed is not None):
            raise TypeError("the inputs were given twice: use feeds or input_feed")
        inputs = given
        names, places = self._check_outputs(output_names, out)
        self._prepare(inputs)

        def work() -> Dict[str, Any]:
            if self._under_way:
                raise TesseraError("runs are in progress: wait for them first")
            self._start(inputs)
            return self._finish(places)

        return self._in_order(self.session.do(work), names)

    @suggests
    def start(self, feeds: Mapping[str, Any]) -> None:
        """Starts a run. Up to 16 may be pending. Do not change the arrays until wait() has returned the results of
        this run.
        """
        self._prepare(feeds)
        self.session.do(lambda: self._start(feeds))

    @suggests
    def wait(self, output_names: Optional[Sequence[str]] = None, out: Optional[Mapping[str, Any]] = None) -> List[Any]:
        """Waits for the oldest pending run and returns its outputs. If it raises, that run is discarded, and the
        next wait() is for the next run.

        out: GPU tensors (DLPack) by output name. These outputs are written to the tensors, which are also returned.
        """
        self.session.check_open()

        def work() -> List[Any]:
            if not self._under_way:
                raise TesseraError("no run is in progress: call start first")
            try:
                names, places = self._check_outputs(output_names, out)
            except BaseException:
                self._discard()
                raise
            return self._in_order(self._finish(places), names)

        return self.session.do(work)

    def _prepare(self, feeds: Any) -> None:
        """Checks the names of the inputs, so that a misspelt one does not reach the ranks. Opens the job again
        after a failed run.
        """
        self.session.check_open()
        if not isinstance(feeds, Mapping):
            raise TypeError("feeds must be a dict such as {'x': array}, not %s" % type(feeds).__name__)
        known = [v.name for v in self.get_inputs()]
        findings = [
            Finding("input-unknown", "error", "the model has no input '%s'%s" % (k, did_you_mean(k, known)),
                    "its inputs: " + ", ".join(known), value=str(k)) for k in feeds if k not in known
        ]
        findings += [
            Finding("input-missing", "error", "input '%s' is not given" % k, value=k) for k in known if k not in feeds and not self._job
        ]
        if findings:
            raise TesseraError("", findings)
        with self._opening:
            if not self._job:  # a failed run has closed it
                self.session.do(self._open_job)

    def _check_outputs(self, output_names: Any, out: Any) -> "tuple[List[str], Dict[str, Any]]":
        """Returns the names of the outputs to return, and the tensors to which outputs are written. Raises before
        anything runs.
        """
        if isinstance(output_names, (str, bytes)) or not (output_names is None or isinstance(output_names, Sequence)):
            raise TypeError("output_names must be a list of names, or None for all outputs, not %r" % (output_names,))
        if out is not None and not isinstance(out, Mapping):
            raise TypeError("out must be a dict of GPU tensors by output name, not %s" % type(out).__name__)
        known = [v.name for v in self.get_outputs()]
        unknown = [name for name in [*(output_names or ()), *(out or ())] if name not in known]
        if unknown:
            raise TesseraError("the model has no output '%s'%s; its outputs: %s" %
                               (unknown[0], did_you_mean(unknown[0], known), ", ".join(known)))
        check_places(out or {})
        return list(output_names or known), dict(out or {})

    # These run in the session's thread, so that no interrupt of the caller comes between a change of the job and of _under_way.

    def _start(self, feeds: Mapping[str, Any]) -> None:
        if not self._job:
            raise TesseraError("a run of another thread failed and stopped the ranks: run again to restart them")
        inputs = Tensors(self.session)
        try:
            inputs.put_all(feeds)
            self.session.status(library.tsr_job_start(self._job, inputs.handle))
        except BaseException:
            inputs.free()
            self._end_failed()
            raise
        self._under_way.append(inputs)

    def _finish(self, places: Dict[str, Any]) -> Dict[str, Any]:
        """Collects the oldest run and returns its outputs by name."""
        try:
            with Tensors(self.session) as outputs:
                outputs.put_places(places)
                self.session.status(library.tsr_job_wait(self._job, outputs.handle))
                found = {**outputs.arrays(), **places}
        except BaseException:
            self._discard()
            self._end_failed()
            raise
        self._discard()
        return found

    def _in_order(self, found: Dict[str, Any], names: Sequence[str]) -> List[Any]:
        if self._group and self._group.rank > 0:
            return []
        return [found[name] for name in names]

    def _discard(self) -> None:
        """Discards the oldest run. If it was not collected, waits for it and drops its results."""
        inputs = self._under_way.pop(0)
        if library.tsr_job_under_way(self._job) > len(self._under_way):
            library.tsr_job_wait(self._job, None)
            library.tsr_finding_clear(self.session.handle)  # the caller gets the error that came before
        inputs.free()

    def _end_failed(self) -> None:
        """Closes a job that a failed run has ended, so that the next run opens a new one. Refused inputs do not end
        the job. Not under a launcher, where all ranks would have to do this together.
        """
        if self._under_way or self._group or library.tsr_launcher(None, None, None):
            return
        ended = library.tsr_job_barrier(self._job) != _api.TSR_OK
        library.tsr_finding_clear(self.session.handle)
        if ended:
            library.tsr_job_close(self._job)
            self._job = ctypes.c_void_p()

    @suggests
    def trace(self, path: Optional[str] = None) -> None:
        """Writes a trace of all runs for Perfetto to the file that the session was opened with, and copies it to
        `path`.
        """
        if not self._job:
            raise TesseraError("no run yet, so there is no trace: call run first")
        self.session.do(lambda: self.session.status(library.tsr_job_trace(self._job)))
        if path is not None and self._trace is not None and os.path.abspath(path) != os.path.abspath(self._trace):
            shutil.copyfile(self._trace, path)

    def close(self) -> None:
        """Ends the ranks, after all pending runs are finished."""
        job, pending = self._job, self._under_way

        def free() -> None:
            library.tsr_job_close(job)
            for inputs in pending:
                inputs.free()

        if not self._group:
            self.session.close(free)
        elif not self.session.closed:  # the group's session stays
            self._job, self._under_way = ctypes.c_void_p(), []
            self.session.do(free)

    def __enter__(self) -> "PartitionSession":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "session", None) is not None:
            self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.session.closed else ""
        return "<tessera.PartitionSession %r, transport=%r%s>" % (self._folder, self._transport, state)

    def __reduce__(self) -> Any:
        raise TypeError("a session cannot be pickled: open its folder again in the other process")


def read_ports(session: Session, folder: str) -> Dict[str, List[Value]]:
    """Returns the inputs and outputs in the manifest of a partition. Called in the session's thread."""
    manifest = ctypes.c_void_p()
    session.status(library.tsr_manifest_open(session.handle, os.fsencode(folder), ctypes.byref(manifest)))
    try:
        facts = read(_api.tsr_manifest_facts, library.tsr_manifest_about, manifest)
        return {"inputs": [_port(library.tsr_manifest_input, manifest, i) for i in range(facts.n_inputs)],
                "outputs": [_port(library.tsr_manifest_output, manifest, i) for i in range(facts.n_outputs)]}
    finally:
        library.tsr_manifest_free(manifest)


def _port(get: Any, manifest: Any, index: int) -> Value:
    port = read(_api.tsr_manifest_port, get, manifest, index)
    sizes: List[Union[int, str, None]] = []
    for dim in port.dims[:port.rank] if port.rank > 0 else []:
        sizes.append(dim.value if dim.value >= 0 else dim.symbol.decode() or None if dim.symbol else None)
    return Value(port.name.decode(), "tensor(%s)" % port.type.decode(), sizes)
