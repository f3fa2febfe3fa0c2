# SPDX-License-Identifier: Apache-2.0
"""Tests that telemetry of ONNX Runtime is off in the command and in tessera-ranks: they look up no host and do not write $TMPDIR/.ses.
The user's own value of ORT_DISABLE_TELEMETRY is kept, and the libraries do not change the environment of a program.

usage: telemetry.py TESSERA PROVIDER"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import harness

TESSERA, PROVIDER = map(os.path.abspath, sys.argv[1:3])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL, DATA = ROOT + "/tests/models/bert_tiny/model.onnx", ROOT + "/tests/models/bert_tiny/test_data_set_0"
LIMIT_S = 120
HOST = r'''
import sys, numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
onnxruntime.register_execution_provider_library("tessera", sys.argv[1])
options.add_provider_for_devices([d for d in onnxruntime.get_ep_devices() if d.ep_name == "TesseraExecutionProvider"], {"strict": "1"})
session = onnxruntime.InferenceSession(sys.argv[2], options)
session.run(None, {v.name: np.ones((2, 9), np.int64) for v in session.get_inputs()})
'''
LOADS = r'''
import ctypes, sys, onnxruntime
onnxruntime.SessionOptions().register_custom_ops_library(sys.argv[1] + "/libtessera_ops.so")
onnxruntime.register_execution_provider_library("tessera", sys.argv[2])
tessera = ctypes.CDLL(sys.argv[1] + "/libtessera.so")
tessera.tsr_session_new.restype = ctypes.c_void_p
session = ctypes.c_void_p(tessera.tsr_session_new(None))
assert tessera.tsr_engine_open(session, sys.argv[3].encode(), None, None) == 0
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(getenv(b"ORT_DISABLE_TELEMETRY"))
'''
PACKAGE = """import os, sys
sys.path.insert(0, sys.argv[1] + "/python")
import tessera
print(os.environ["ORT_DISABLE_TELEMETRY"])
"""
case = harness.check


def choice_of_the_user(tmp):
    """Checks the variable in a program that the command starts, in Python after `import tessera`, and in a program that loads the
    libraries."""
    build = os.path.dirname(TESSERA)
    command = [TESSERA, "launch", "--hosts", "localhost:1", "--no-prefix", "--", "printenv", "ORT_DISABLE_TELEMETRY"]
    package, loads = [sys.executable, "-c", PACKAGE,
                      build], [sys.executable, "-c", LOADS, build, PROVIDER,
                               harness.environment()["TESSERA_ORT"]]
    rows = [("the command", command, "1", "mine")]
    if harness.SANITIZED:
        harness.skip("libraries keep the user's choice", "Python cannot load a library that is built for a sanitizer")
    else:
        rows += [("the Python package", package, "1", "mine"), ("a program that loads the libraries", loads, "None", "b'mine'")]
    for name, words, unset, kept in rows:
        for variables, want in (({}, unset), ({"ORT_DISABLE_TELEMETRY": "mine"}, kept)):
            ran = run(words, tmp, TESSERA_LIBRARY=build + "/libtessera.so", **variables)
            case("%s: %s" % (name, "the user's value is kept" if variables else "no value was set"), ran.returncode == 0
                 and ran.stdout.strip() == want, ran)


def run(words, tmp, **variables):
    env = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    return subprocess.run(words, env=dict(env, TMPDIR=tmp, **variables), capture_output=True, text=True, timeout=LIMIT_S)


def traced(words, tmp, trace):
    """Runs a command under strace. Returns the result and the traced lines."""
    ran = run(["strace", "-f", "-qq", "-e", "trace=connect,sendto,openat,execve,clone,clone3,fork,vfork", "-o", trace, *words], tmp)
    with open(trace, errors="replace") as file:
        return ran, file.read().splitlines()


def suspicious(lines):
    return [line for line in lines if "/.ses" in line or "resolv.conf" in line or re.search(r"AF_INET.*\b53\b", line)]


def of_program(lines, name):
    """Returns the lines of processes that have started this program, and of their children."""
    pids, found = set(), []
    for line in lines:
        pid, call = line.split(None, 1)
        if call.startswith("execve(") and "/%s\"" % name in call:
            pids.add(pid)
        made = re.match(r"(?:clone3?|v?fork|<\.\.\. (?:clone3?|v?fork)).*= (\d+)$", call)
        if pid in pids:
            found.append(line)
            if made:
                pids.add(made.group(1))
    return found


with tempfile.TemporaryDirectory() as d:
    tmp, parts, context = d + "/tmp", d + "/parts", d + "/context"
    os.mkdir(tmp)
    for words in ((parts,), (context, "--layout", "context", "--transport", "shm")):
        ran = run([TESSERA, "partition", MODEL, "--devices", "2", "--dim", "batch=2", "--dim", "seq=9", "-o", *words], tmp)
        case("partition into " + os.path.basename(words[0]), ran.returncode == 0, ran.stderr)
    runs = {"a model": [MODEL], "threads": [parts], "processes": [parts, "--transport", "shm"]}
    for name, words in runs.items():
        ran = run([TESSERA, "run", *words, "--inputs", DATA, "--outputs", d + "/out.npz"], tmp)
        case("run of %s writes no .ses" % name, ran.returncode == 0 and os.listdir(tmp) == [], (ran.stderr, os.listdir(tmp)))
    choice_of_the_user(d)
    strace = shutil.which("strace") and run(["strace", "-o", d + "/trace", "true"], tmp).returncode == 0
    if not strace:
        harness.skip("what is opened and connected", "strace is not installed or not allowed")
    else:
        for name, words in runs.items():
            ran, lines = traced([TESSERA, "run", *words, "--inputs", DATA, "--outputs", d + "/out.npz"], tmp, d + "/trace")
            case("run of %s looks up no host" % name, ran.returncode == 0 and not suspicious(lines), (ran.stderr, suspicious(lines)[:3]))
        ran, lines = traced([sys.executable, "-c", HOST, PROVIDER, context + "/model.onnx"], tmp, d + "/trace")
        ranks = of_program(lines, "tessera-ranks")
        case("tessera-ranks looks up no host", ran.returncode == 0 and len(ranks) > 10 and not suspicious(ranks),
             (ran.stderr[-300:], len(ranks), suspicious(ranks)[:3]))
harness.finish()
