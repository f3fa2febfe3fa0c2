# SPDX-License-Identifier: Apache-2.0
"""Loads the library, and wraps its sessions so that Python can interrupt them.

A session of the library may be used by one thread at a time, and a call may take minutes. So each Session has its
own thread, which makes all of its calls while the caller waits. Ctrl-C interrupts the caller, which then cancels
the call (tsr_session_cancel).
"""
from __future__ import annotations

import argparse
import atexit
import ctypes
import functools
import glob
import importlib.util
import inspect
import os
import queue
import sys
import tempfile
import threading
from typing import Any, Callable, Iterable, List, Mapping, NoReturn, Optional, Set, TypeVar, cast

from . import _api
from .errors import Finding, TesseraError, error_of

WHEEL_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")


def _open() -> ctypes.CDLL:
    """Loads the library: $TESSERA_LIBRARY, else that of the wheel, of this Python's prefix (conda), or of the
    system.
    """
    places = [
        os.environ.get("TESSERA_LIBRARY"),
        os.path.join(WHEEL_FOLDER, "libtessera.so"),
        os.path.join(sys.prefix, "lib", "libtessera.so.1")
    ]
    path = places[0] or next((place for place in places[1:] if place and os.path.exists(place)), "libtessera.so.1")
    opened: ctypes.CDLL = _api.declare(ctypes.CDLL(path))  # type: ignore[no-untyped-call]
    opened.tsr_tensors_text.restype = ctypes.c_void_p  # its text may contain zero bytes
    return opened


class _Found(ctypes.Structure):
    """Dl_info, the result of dladdr."""
    _fields_ = [("path", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def _plugin_folder() -> str:
    """Returns the folder of the provider and the plug-ins; in a wheel also of the command. In system installations
    it is below the library's folder.
    """
    if os.path.isdir(WHEEL_FOLDER):
        return WHEEL_FOLDER
    found = _Found()
    ctypes.CDLL(None).dladdr(ctypes.cast(library.tsr_version, ctypes.c_void_p), ctypes.byref(found))
    return os.path.join(os.path.dirname(os.fsdecode(found.path or b"")), "tessera")


library = _open()
FOLDER = _plugin_folder()


def engine_path() -> Optional[str]:
    """Returns the path of ONNX Runtime's library: $TESSERA_ORT, or the one in this Python's onnxruntime. None if
    there is neither.
    """
    named = os.environ.get("TESSERA_ORT")
    if named:
        return named
    spec = importlib.util.find_spec("onnxruntime")
    for place in (spec.submodule_search_locations or []) if spec else []:
        found = sorted(glob.glob(os.path.join(place, "capi", "libonnxruntime.so.*")))
        if found:
            return found[-1]
    return None


CLOSED = "the session is closed"
FORKED = "the session was opened before a fork: open a new one in the child process"
CLOSE_S = 60.0  # longest wait for closing sessions when Python ends

_closing: Set[threading.Thread] = set()  # threads of sessions that are being closed
_handles: Set[int] = set()  # sessions of the library that are not freed
_handles_lock = threading.Lock()


@atexit.register
def _end() -> None:
    """Removes the temporary folders of all sessions at exit, because Python stops the sessions' threads without
    clean-up.
    """
    for thread in list(_closing):
        thread.join(CLOSE_S)
    with _handles_lock:
        for handle in list(_handles):
            library.tsr_session_sweep(handle)


def _after_fork() -> None:
    """Marks all sessions as unusable in a forked child: they have no threads there, and their folders belong to the
    parent.
    """
    global _handles_lock
    _closing.clear()
    _handles.clear()
    _handles_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _new_handle(options: Any) -> int:
    handle = library.tsr_session_new(options)
    if not handle:
        raise MemoryError("out of memory: cannot create a session")
    with _handles_lock:
        _handles.add(handle)
    return int(handle)


def _free_handle(handle: int) -> None:
    with _handles_lock:
        _handles.discard(handle)
    library.tsr_session_free(handle)


def _findings(handle: int) -> List[Finding]:
    return [Finding._of(read(_api.tsr_finding, library.tsr_finding_at, handle, i)) for i in range(library.tsr_finding_count(handle))]


def _check(handle: int, status: int) -> None:
    """Raises the exception for a status, with the diagnostics of the session, and clears these."""
    if status == _api.TSR_OK:
        return
    findings = _findings(handle)
    library.tsr_finding_clear(handle)
    raise error_of(status, library.tsr_status_text(status).decode(), findings)


class TemporaryFolder:
    """Context manager for a temporary folder.

    The folder is removed at the end of the block, or at exit. If the process is killed, a later process removes it.
    """

    def __enter__(self) -> str:
        self._pid, self._handle = os.getpid(), _new_handle(None)
        path = ctypes.c_char_p()
        try:
            _check(self._handle, library.tsr_session_temporary(self._handle, os.fsencode(tempfile.gettempdir()), ctypes.byref(path)))
        except BaseException:
            _free_handle(self._handle)
            raise
        return os.fsdecode(path.value or b"")

    def __exit__(self, *error: Any) -> None:
        if self._pid == os.getpid():
            _free_handle(self._handle)


class _Call:
    """Work for a session's thread, and its result. A call without work only marks a position in the queue."""

    def __init__(self, work: Optional[Callable[[], Any]] = None):
        self.work = work
        self.result: Any = None
        self.error: Optional[BaseException] = None
        self._under_way = threading.Lock()  # a plain lock: an interrupt inside Event.wait may leave the event unusable
        self._under_way.acquire()

    def end(self) -> None:
        self.work = None
        self._under_way.release()

    def wait(self) -> None:
        with self._under_way:
            pass


class _Thread(threading.Thread):
    """A thread that makes calls in the order in which they were queued."""

    def __init__(self, cancel: Callable[[bool], None]) -> None:
        super().__init__(daemon=True, name="tessera")
        self.calls: "queue.SimpleQueue[Optional[_Call]]" = queue.SimpleQueue()
        self.gate = threading.Lock()  # around ended, current, and the order of calls
        self.ended = False
        self.current: Optional[_Call] = None
        self.cancel = cancel  # cancels the library's work (True), or allows work again (False)
        self.pid = os.getpid()

    def run(self) -> None:
        while True:
            call = self.calls.get()
            if call is None:
                _closing.discard(self)
                return
            with self.gate:
                self.current, work = call, call.work
            if work is not None:
                try:
                    call.result = work()
                except BaseException as error:  # raised by the caller
                    call.error = error
            with self.gate:
                self.current = None
                self.cancel(False)
            call.end()
            del call, work  # so that an idle thread keeps no objects alive

    def check(self) -> None:
        """Raises if the thread accepts no more calls. A forked child has no such thread, and its locks may be held
        forever.
        """
        if self.pid != os.getpid():
            raise TesseraError(FORKED)
        if self.ended:
            raise TesseraError(CLOSED)

    def do(self, work: Callable[[], Any]) -> Any:
        """Makes the thread run `work`, and waits. If the caller gets an exception meanwhile (Ctrl-C), cancels the
        work, waits for its end, and raises the exception.
        """
        call = _Call(work)
        self.check()
        try:
            with self.gate:
                self.check()
                self.calls.put(call)
            call.wait()
        except TesseraError:  # from check()
            raise
        except BaseException as interrupt:
            self._cancel(call)
            interrupt.best = call.result  # type: ignore[attr-defined]
            raise
        if call.error is not None:
            try:
                raise call.error
            finally:
                call.error = None  # no cycle of the error, this frame and the call
        return call.result

    def _cancel(self, call: _Call) -> None:
        """Cancels this call only, because the current call may be another thread's, and waits until it is over. The
        interrupt may come before the call was queued, so this waits for the end of a later call.
        """
        later = _Call()
        with self.gate:
            if self.current is call:
                self.cancel(True)
            else:
                call.work = None
            ended = self.ended
            if not ended:
                self.calls.put(later)
        self.join() if ended else later.wait()

    def end(self, work: Callable[[], None]) -> None:
        """Runs `work` after all queued calls, then ends the thread. Later calls are refused; a second `end` does
        nothing.
        """
        if self.pid != os.getpid():
            return
        call = _Call(work)  # made outside of the lock: it may start a garbage collection, which may close other sessions
        with self.gate:
            if self.ended:
                return
            self.ended = True
            _closing.add(self)
            self.calls.put(call)
            self.calls.put(None)


Result = TypeVar("Result")


class Session:
    """A session of the library: diagnostics, progress, and the thread that makes its calls."""

    def __init__(self, progress: Optional[Callable[[str, int, int], None]] = None):
        options = _api.tsr_session_options()
        options.size = ctypes.sizeof(options)
        if progress:
            listener = _api.tsr_progress_fn(lambda data, what, done, total: progress(what.decode(), done, total))
            self._listener = listener  # must live as long as the session
            options.progress = listener
        self.handle = handle = _new_handle(ctypes.byref(options))
        self._freed = freed = [False]  # not self in the closure below: the thread would keep the session alive

        def cancel(on: bool) -> None:
            if not freed[0]:
                library.tsr_session_cancel(handle, on)

        self._thread = _Thread(cancel)
        self._thread.start()

    def do(self, work: Callable[[], Result]) -> Result:
        """Runs `work` in the session's thread. Inside, status() checks the results of library functions. After
        success, diagnostics are cleared, so that a later error has only its own.
        """
        if threading.current_thread() is self._thread:
            return work()

        def clean() -> Result:
            result = work()
            library.tsr_finding_clear(self.handle)
            return result

        return cast(Result, self._thread.do(clean))

    def check_open(self) -> None:
        """Raises if the session was closed, or belongs to the parent process."""
        self._thread.check()

    def cancel(self) -> None:
        """Cancels the current call, from any thread."""
        library.tsr_session_cancel(self.handle, True)

    @property
    def closed(self) -> bool:
        """True if the session was closed. Also true in a child process, which cannot use it."""
        return self._thread.ended or self._thread.pid != os.getpid()

    def status(self, status: int) -> None:
        """Raises the exception for a status, with the diagnostics, and clears these."""
        _check(self.handle, status)

    def findings(self) -> List[Finding]:
        return _findings(self.handle)

    def open_engine(self) -> None:
        path = engine_path()
        self.status(library.tsr_engine_open(self.handle, path.encode() if path else None, None, None))

    def later(self, work: Callable[[], None]) -> None:
        """Queues `work` without waiting, from __del__: frees a handle. Takes no lock, because a garbage collection may
        run while this thread holds one.
        """
        self._thread.calls.put(_Call(work))

    def close(self, free: Callable[[], None] = lambda: None) -> None:
        """Frees everything that the session owns and the session itself, in its thread, which then ends."""
        handle, freed = self.handle, self._freed  # the handle stays: other threads may be in a call

        def end() -> None:
            try:
                free()
            finally:
                freed[0] = True
                _free_handle(handle)

        self._thread.end(end)


def options_of(kind: Any, **fields: Any) -> Any:
    """Returns a struct of options with `size` and the given fields set."""
    options = kind()
    options.size = ctypes.sizeof(options)
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def read(kind: Any, function: Callable[..., int], *arguments: Any) -> Any:
    """Calls a library function and returns the struct that it fills, which is its last parameter."""
    out = options_of(kind)
    if function(*arguments, ctypes.byref(out)) != _api.TSR_OK:
        raise IndexError("%s%r" % (function.__name__, arguments))
    return out


def enum_of(prefix: str, name: Optional[str]) -> int:
    """Returns the number of a name in an enumeration of the library, such as TSR_LAYOUT_ and "context". Returns 0,
    the default, for None.
    """
    known = {key[len(prefix):].lower(): value for key, value in vars(_api).items() if key.startswith(prefix)}
    if name is not None and name not in known:
        raise ValueError("unknown %s %r: use one of %s" % (prefix.split("_")[1].lower(), name, ", ".join(sorted(known))))
    return 0 if name is None else int(known[name])


def transport_of(name: Optional[str]) -> int:
    return enum_of("TSR_TRANSPORT_", name)


def text_array(texts: Any) -> Any:
    """Converts strings to const char *const *."""
    return (ctypes.c_char_p * len(texts))(*[t.encode() for t in texts])


def did_you_mean(name: Any, known: List[str]) -> str:
    """Returns "; did you mean 'x'?" for a misspelt name, or an empty string."""
    near = library.tsr_nearest(str(name).encode(errors="replace"), text_array(known), len(known))
    return "; did you mean '%s'?" % near.decode() if near else ""


class Parser(argparse.ArgumentParser):
    """Reads the options of a command. An unknown option is an error that names the one that was meant."""

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, allow_abbrev=False, **keywords)

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2]
        if unknown:
            known = [text for action in self._actions for text in action.option_strings]
            message += did_you_mean(unknown.split()[0].partition("=")[0], known)
        super().error(message)


# Keywords of other libraries and of the command -> ours.
SYNONYMS = {
    "ids": "prompt", "input_ids": "prompt", "text": "prompt", "messages": "prompt", "max_length": "max_tokens",
    "max_new_tokens": "max_tokens", "num_devices": "devices"
}


def check_keywords(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError for the first keyword that a function does not have, and names the one that was meant, or all."""
    names = list(known)
    for keyword in given:
        if keyword in names:
            continue
        meant = SYNONYMS.get(keyword)
        hint = "; did you mean '%s'?" % meant if meant in names else did_you_mean(keyword, names)
        raise TypeError("%s() got an unexpected keyword argument '%s'%s" % (name, keyword, hint or "; it takes " + ", ".join(names)))


Function = TypeVar("Function", bound=Callable[..., Any])


def suggests(function: Function) -> Function:
    """Decorates a public function: a misspelt keyword is a TypeError with "did you mean"."""
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]
    name = function.__qualname__.replace(".__init__", "")

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        check_keywords(name, keywords, known)
        return function(*arguments, **keywords)

    return cast(Function, call)


def need_devices(name: str, options: Mapping[str, Any]) -> None:
    """Raises TypeError if an option is given that has no effect without devices."""
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise TypeError("%s(): the option %s has no effect without devices: add devices=2, or remove it" % (name, given[0]))


def sizes_array(dims: Optional[Mapping[str, int]]) -> Any:
    """Converts a dict of sizes to tsr_dim_size[]."""
    dims = dims or {}
    for name, size in dims.items():
        if not isinstance(name, str) or not hasattr(size, "__index__"):
            raise TypeError("dims must be a dict such as {'batch': 2}, not %r: %r" % (name, size))
        if not 0 <= size.__index__() < 2**63:  # ctypes would take its last 64 bits
            raise ValueError("dimension %r cannot have size %d" % (name, size))
    kind = _api.tsr_dim_size
    return (kind * len(dims))(*[kind(name.encode(), size) for name, size in dims.items()])
