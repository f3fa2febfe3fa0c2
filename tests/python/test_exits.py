# SPDX-License-Identifier: Apache-2.0
"""Tests programs that end in every way, while a model is sharded and afterwards. Either no temporary files are left, or the next program
removes them. Also tests that ONNX Runtime's telemetry is off.

usage: test_exits.py BUILD"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import harness

BUILD = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = ROOT + "/tests/models/bert_tiny/model.onnx"
LIMIT_S = 60

# The program's arguments: the model, and how it ends.
PROGRAM = r'''
import os, signal, sys
import numpy as np, tessera, onnxruntime
model, how = sys.argv[1:3]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1  # a child of fork hangs at exit while onnxruntime destroys the threads that it does not have
session = tessera.InferenceSession(model, options, devices=2)
session.run(None, {v.name: np.ones((2, 9), np.int64) for v in session.get_inputs()})
print("ends with", [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("tessera")], flush=True)
if how == "exception": raise RuntimeError("meant")
if how == "sys.exit": sys.exit(0)
if how == "os._exit": os._exit(0)
if how.startswith("SIG"): os.kill(os.getpid(), getattr(signal, how))
'''
# A forked child of a program with an open session must end normally.
FORKS = PROGRAM + r'''
pid = os.fork()
if pid == 0: sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
'''


def environment(tmp, **variables):
    env = dict(os.environ, TMPDIR=tmp, TESSERA_LIBRARY=BUILD + "/libtessera.so", PYTHONPATH=BUILD + "/python", **variables)
    if "ORT_DISABLE_TELEMETRY" not in variables:
        env.pop("ORT_DISABLE_TELEMETRY", None)
    return env


def run(program, tmp, *arguments, **variables):
    return subprocess.run([sys.executable, "-c", program, MODEL, *arguments], env=environment(tmp, **variables), capture_output=True,
                          text=True, timeout=LIMIT_S)


def end_while_sharding(tmp, number):
    """Sends the signal as soon as the program has a temporary folder. Returns the exit status."""
    # A parent in the background may ignore SIGINT, and children inherit that.
    with subprocess.Popen([sys.executable, "-c", PROGRAM, MODEL, "normal"], env=environment(tmp), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as process:
        while process.poll() is None and not left(tmp):
            time.sleep(0.0002)
        process.send_signal(number)
        return process.wait(LIMIT_S)


def left(tmp):
    return [name for name in os.listdir(tmp) if name.startswith("tessera")]


def test_ends_that_remove_everything():
    for how in ("exception", "sys.exit", "SIGINT"):  # test_telemetry_is_off ends normally
        with tempfile.TemporaryDirectory() as tmp:
            ran = run(PROGRAM, tmp, how)
            assert "ends with ['tessera" in ran.stdout and not left(tmp), (how, left(tmp), ran)


def test_kills_are_swept_by_the_next_program():
    with tempfile.TemporaryDirectory() as tmp:
        before = []
        for how in ("SIGTERM", "os._exit", "SIGKILL"):
            run(PROGRAM, tmp, how)
            assert len(left(tmp)) == 1 and left(tmp) != before, (how, before, left(tmp))
            before = left(tmp)
        ran = run(PROGRAM, tmp, "normal")
        assert ran.returncode == 0 and not left(tmp), (how, left(tmp), ran)


def test_signals_while_sharding():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with tempfile.TemporaryDirectory() as tmp:
            status = end_while_sharding(tmp, number)
            assert status != 0, "the program ended before the signal"
            assert bool(left(tmp)) == (number != signal.SIGINT), (number, left(tmp))
            if left(tmp):
                ran = run(PROGRAM, tmp, "normal")
                assert ran.returncode == 0 and not left(tmp), (number, left(tmp), ran)


def test_telemetry_is_off():
    """With telemetry on, ONNX Runtime writes $TMPDIR/.ses and hangs forked children at exit."""
    with tempfile.TemporaryDirectory() as tmp:
        ran = run(FORKS, tmp, "normal")
        assert ran.returncode == 0 and "ends with ['tessera" in ran.stdout and os.listdir(tmp) == [], (os.listdir(tmp), ran)
    with tempfile.TemporaryDirectory() as tmp:
        ran = run("import os, tessera; print(os.environ['ORT_DISABLE_TELEMETRY'])", tmp, ORT_DISABLE_TELEMETRY="0")
        assert ran.stdout == "0\n", "the user's choice is kept"


def test_no_host_is_looked_up():
    if not shutil.which("strace"):
        return "strace is not installed"
    with tempfile.TemporaryDirectory() as tmp:
        traced = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,openat", "-o", tmp + "/trace", sys.executable]
        ran = subprocess.run([*traced, "-c", PROGRAM, MODEL, "normal"], env=environment(tmp), capture_output=True, text=True,
                             timeout=LIMIT_S)
        if ran.returncode and "ptrace" in ran.stderr:
            return "this container does not allow strace"
        with open(tmp + "/trace", errors="replace") as trace:
            calls = [line for line in trace if "AF_INET" in line or "/.ses" in line or "/etc/resolv.conf" in line]
        assert ran.returncode == 0 and not calls, (ran, calls[:5])


harness.run_functions(globals())
harness.finish()
