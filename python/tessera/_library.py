# SPDX-License-Identifier: Apache-2.0
"""The loaded library, and sessions of it that Python can interrupt.

A session of the library belongs to one thread at a time, and a call may take minutes. So each Session here has a thread of
its own that makes all of its calls; the caller waits for it, and Ctrl-C reaches the caller at once, who then asks the
library to end (tsr_session_cancel).
"""
from __future__ import annotations

import atexit
import ctypes
import glob
import importlib.util
import os
import queue
import threading
from typing import Any, Callable, Optional, Set

from . import _api
from .errors import Finding, TesseraError, error_of

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")


def _open() -> ctypes.CDLL:
    named = os.environ.get("TESSERA_LIBRARY")
    path = named or os.path.join(FOLDER, "libtessera.so")
    opened = _api.declare(ctypes.CDLL(path))
    opened.tsr_tensors_text.restype = ctypes.c_void_p  # its text does not end at a zero
    return opened


library = _open()


def engine_path() -> Optional[str]:
    """ONNX Runtime's library: $TESSERA_ORT, or the one inside this Python's onnxruntime; None: neither is there."""
    named = os.environ.get("TESSERA_ORT")
    if named:
        return named
    spec = importlib.util.find_spec("onnxruntime")
    for place in (spec.submodule_search_locations or []) if spec else []:
        found = sorted(glob.glob(os.path.join(place, "capi", "libonnxruntime.so.*")))
        if found:
            return found[-1]
    return None


_closing: Set[threading.Thread] = set()  # threads of sessions that are closed and may still be at it
CLOSED = "the session is closed"
CLOSE_S = 60.0  # longest wait for them when Python ends


@atexit.register
def _wait_for_closing() -> None:
    """Python ends such threads where they are: ranks and temporary folders would be left behind."""
    for thread in list(_closing):
        thread.join(CLOSE_S)


class _Thread(threading.Thread):
    """Makes the calls that it is given, one after the other."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="tessera")
        self.calls: "queue.SimpleQueue" = queue.SimpleQueue()
        self.gate = threading.Lock()  # around ended and the order of calls
        self.ended = False

    def run(self) -> None:
        while True:
            call = self.calls.get()
            if call is None:
                _closing.discard(self)
                return
            work, answer, done = call
            try:
                answer.append(work())
            except BaseException as error:  # given to the caller, who raises it
                answer.append(error)
            done.set()
            del work, answer, done, call  # an idle thread keeps nothing alive

    def do(self, work: Callable[[], Any], interrupted: Callable[[], None]) -> Any:
        """Has the thread do it; Ctrl-C meanwhile calls interrupted, waits for the end and goes on to the caller."""
        answer: list = []
        done = threading.Event()
        with self.gate:
            if self.ended:
                raise TesseraError(CLOSED)
            self.calls.put((work, answer, done))
        try:
            done.wait()
        except KeyboardInterrupt as interrupt:
            interrupted()
            done.wait()
            interrupt.best = None if isinstance(answer[0], BaseException) else answer[0]  # type: ignore[attr-defined]
            raise
        if isinstance(answer[0], BaseException):
            raise answer[0]
        return answer[0]

    def end(self, work: Callable[[], None]) -> None:
        """Has the thread do it after all that it was given before, and end. Later calls are refused; a second end does nothing."""
        with self.gate:
            if self.ended:
                return
            self.ended = True
            _closing.add(self)
            self.calls.put((work, [], threading.Event()))
            self.calls.put(None)


class Session:
    """A session of the library: findings, progress, and the thread that makes its calls."""

    def __init__(self, progress: Optional[Callable[[str, int, int], None]] = None):
        self._thread = _Thread()
        self._thread.start()
        options = _api.tsr_session_options()
        options.size = ctypes.sizeof(options)
        if progress:
            listener = _api.tsr_progress_fn(lambda data, what, done, total: progress(what.decode(), done, total))
            self._listener = listener  # lives as long as the session
            options.progress = listener
        self.handle = library.tsr_session_new(ctypes.byref(options))
        if not self.handle:
            raise MemoryError("no session")

    def do(self, work: Callable[[], Any]) -> Any:
        """Calls work in the session's thread. Inside, status() judges what the library's functions return; findings of work
        that succeeded are forgotten, so that an error carries its own alone."""
        if threading.current_thread() is self._thread:
            return work()

        def clean() -> Any:
            result = work()
            library.tsr_finding_clear(self.handle)
            return result

        return self._thread.do(clean, self._interrupted)

    def check_open(self) -> None:
        if self._thread.ended:
            raise TesseraError(CLOSED)

    def _interrupted(self) -> None:
        library.tsr_session_cancel(self.handle, True)

    def status(self, status: int) -> None:
        """Raises what a function's status says, with the findings; forgets them."""
        if status == _api.TSR_OK:
            return
        findings = self.findings()
        library.tsr_finding_clear(self.handle)
        library.tsr_session_cancel(self.handle, False)
        raise error_of(status, library.tsr_status_text(status).decode(), findings)

    def findings(self) -> list:
        return [Finding._of(library.tsr_finding_at(self.handle, i)) for i in range(library.tsr_finding_count(self.handle))]

    def open_engine(self) -> None:
        path = engine_path()
        self.status(library.tsr_engine_open(self.handle, path.encode() if path else None, None, None))

    def close(self, free: Callable[[], None] = lambda: None) -> None:
        """Frees what the session owns, then the session, in its thread, which ends."""
        handle = self.handle  # stays: calls of other threads may be under way

        def end() -> None:
            free()
            library.tsr_session_free(handle)

        self._thread.end(end)


def options_of(kind: Any, **fields: Any) -> Any:
    """A struct of options with its size and these fields set."""
    options = kind()
    options.size = ctypes.sizeof(options)
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def text_array(texts: Any) -> Any:
    """const char *const * of some texts."""
    return (ctypes.c_char_p * len(texts))(*[t.encode() for t in texts])


def sizes_array(dims: Optional[dict]) -> Any:
    """tsr_dim_size[] of sizes by name."""
    dims = dims or {}
    for name, size in dims.items():
        if not isinstance(name, str) or not hasattr(size, "__index__"):
            raise TypeError("dims: sizes by name, such as {'batch': 2}, not %r: %r" % (name, size))
        if not 0 <= size.__index__() < 2**63:  # ctypes would take its last 64 bits
            raise ValueError("dimension %r cannot have the size %d" % (name, size))
    kind = _api.tsr_dim_size
    return (kind * len(dims))(*[kind(name.encode(), size) for name, size in dims.items()])
