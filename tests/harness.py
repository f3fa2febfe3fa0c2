# SPDX-License-Identifier: Apache-2.0
"""Helpers that all test scripts share: run and count cases, and start programs. tests/run-script puts this folder on Python's path.

    import harness

    def adds_two_numbers(folder):      # a case: its first argument is an empty folder of its own; it fails by raising
        assert 1 + 1 == 2

    harness.run([adds_two_numbers])    # prints `ok adds_two_numbers`
    harness.finish()                   # exits with 1 if a case failed

A case returns None if it passed. It returns a text to be skipped: the reason why this machine cannot run it. It returns False
if it found nothing to test; then nothing is printed. A function that makes several checks calls
harness.check(name, is_right, details), which prints a line for each.

CASE=PATTERN in the environment selects cases by a shell pattern (`*`, `?`). If no function's name matches, all functions run,
and only the checks inside them whose names match are counted. harness.ALL is true in the long version of a test, whose
command line ends with `all`; in `make test`, sample() picks some of the values."""
import concurrent.futures
import contextlib
import fnmatch
import glob
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback

PATTERN = os.environ.get("CASE", "")
ALL = sys.argv[-1] == "all"
DETAILS_MAX = 2000  # shown of the details of a failed check, in characters
SANITIZED = os.environ.get("TESSERA_SANITIZED") == "1"
WAITING = 1 if SANITIZED else 3  # how many calls that mostly wait run at the same time
HANG_S = 150  # a program that runs longer counts as hanging; shorter limits would fail on a busy machine

if ALL:
    sys.argv.pop()

_failed = _ran = _skipped = 0
_only_checks = bool(PATTERN)  # true while PATTERN selects checks, not functions
_lock = threading.Lock()


def matches(name):
    return not PATTERN or fnmatch.fnmatchcase(name, PATTERN)


def _result(name, good, details=""):
    global _failed, _ran
    with _lock:
        _failed, _ran = _failed + (not good), _ran + 1
        lines = ["%s %s" % ("ok" if good else "not ok", name)]
        if not good and details != "":
            lines += ["# " + line for line in str(details)[-DETAILS_MAX:].splitlines()]
        print("\n".join(lines), flush=True)
    return bool(good)


def check(name, good, details=""):
    """Prints and counts the result of one check; returns `good`."""
    return bool(good) if _only_checks and not matches(name) else _result(name, good, details)


def _skip(name, reason):
    global _skipped
    with _lock:
        _skipped += 1
        print("ok %s # SKIP %s" % (name, reason), flush=True)


def skip(name, reason):
    if matches(name) or not _only_checks:
        _skip(name, reason)


def _run_one(name, function, arguments, folder, alone=True):
    before = _ran
    try:
        with contextlib.nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="tessera-test-") as own:
            reason = function(own, *arguments)
        if isinstance(reason, str):
            _skip(name, reason)
        elif (_ran == before
              or not alone) and not _only_checks and reason is not False:  # a function that made checks is not counted itself
            _result(name, True)
    except BaseException:  # KeyboardInterrupt and SystemExit too: some tests cause them
        _result(name, False, traceback.format_exc())


def run(cases, *arguments, at_a_time=1, folder=None):
    """Runs cases, each a function or (name, function, argument...), and prints a line for each.

    A case is called as function(folder, argument..., *arguments), with `folder` for all cases, or an empty folder for each.
    at_a_time > 1 runs that many cases at the same time in threads. Use it for cases that mostly wait and that do not call check()."""
    global _only_checks
    rows = [(case.__name__, case, ()) if callable(case) else (case[0], case[1], case[2:]) for case in cases]
    found = [row for row in rows if matches(row[0])]
    _only_checks = bool(PATTERN) and not found and at_a_time == 1
    rows = rows if _only_checks else found
    if at_a_time > 1:
        with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
            for name, function, more in rows:
                pool.submit(_run_one, name, function, (*more, *arguments), folder, False)
    else:
        for name, function, more in rows:
            _run_one(name, function, (*more, *arguments), folder)
    _only_checks = bool(PATTERN)


def run_functions(names):
    """Runs all functions test_NAME() of a module in their order; `names` is its globals()."""
    run([(name[5:], lambda _, test: test(), test) for name, test in list(names.items()) if name.startswith("test_")])


def side_by_side(function, rows, at_a_time=WAITING):
    """Calls function(*row) for every row, at_a_time of them at once, for calls that mostly wait. Raises the error of the first failed
    call."""
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        return [done.result() for done in [pool.submit(function, *row) for row in rows]]


def sample(values, count, offset=0):
    """Returns all values in the long version of a test. In `make test`, returns `count` of them, evenly spread."""
    values = list(values)
    step = len(values) / count if count else 1
    return values if ALL or count >= len(values) else [values[int(k * step + offset) % len(values)] for k in range(count)]


def finish():
    """Ends the script: exit code 1 if a case failed or, without CASE, if there was none; 77 (skipped) if all were skipped."""
    nothing = 0 if PATTERN else 77 if _skipped else 1
    sys.exit(1 if _failed else 0 if _ran else nothing)


def environment(**more):
    """Returns the environment for programs. The engine is the ONNX Runtime of this Python unless TESSERA_ORT names another."""
    env = {**os.environ, **more}
    if not env.get("TESSERA_ORT"):
        package = importlib.util.find_spec("onnxruntime")
        found = sorted(glob.glob(os.path.join(os.path.dirname(package.origin), "capi", "libonnxruntime.so*"))) if package else []
        if found:
            env["TESSERA_ORT"] = found[-1]
    return env


def call(*words, timeout=HANG_S, launch=(), cwd=None, **variables):
    """Runs a program with these additional environment variables and returns (exit code, stdout, stderr)."""
    p = subprocess.run([str(word) for word in (*launch, *words)], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, cwd=cwd,
                       env=environment(**variables))
    return p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace")


def good(*words, **how):
    """Runs a program that must succeed and returns its stdout."""
    code, out, err = call(*words, **how)
    assert code == 0, "exit %d of %s\n%s\n%s" % (code, " ".join(map(str, words)), out[-DETAILS_MAX:], err[-DETAILS_MAX:])
    return out


def forked(function, *arguments):
    """Calls a function in a copy of this process and returns (exit code, output); the code is negative after a signal. This saves the
    time to import packages again. The caller must not have run the engine: its threads do not survive a fork."""
    sys.stdout.flush()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        child = os.fork()
        if child == 0:
            _exit_after(function, arguments, output)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        text = output.read()
    assert code != -signal.SIGALRM, "%s%s hangs\n%s" % (function.__name__, arguments, text[-DETAILS_MAX:])
    return code, text


def _exit_after(function, arguments, output):
    """Ends the process after a call, as Python does after a script."""
    code = 1
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        signal.alarm(HANG_S)
        function(*arguments)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def free_port():
    """Returns a TCP port that is free now."""
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
