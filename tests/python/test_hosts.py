# SPDX-License-Identifier: Apache-2.0
"""Tests sessions, generation and commands of the Python package with ranks in a worker, which is on another address of the loopback
interface: test_hosts.py BUILD"""
import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import harness
from built import BUILD, MODEL, ROOT, generation_folder
import numpy as np
import tessera

if not os.path.exists(BUILD + "/libtessera_ucx.so"):
    print("skipped: no UCX, so no plug-in for it")
    sys.exit(77)
try:
    import onnxruntime
except ImportError:
    print("skipped: no onnxruntime")
    sys.exit(77)

HOSTS = "127.0.0.1:1,127.0.0.2:1"
IDS = [1, 7, 11]


@contextlib.contextmanager
def worker(d):
    """A worker; yields the options with which sessions reach it."""
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.2", 0))
        port = s.getsockname()[1]
    with open(d + "/secret", "w") as f:
        f.write("a secret of the tests of Python\n")
    p = subprocess.Popen([BUILD + "/tessera", "worker", "--listen", "127.0.0.2:%d" % port, "--secret-file", d + "/secret", "--cache",
                          d + "/cache"], stdout=subprocess.PIPE, text=True, env=harness.environment())
    try:
        assert "waits" in p.stdout.readline()
        yield {"hosts": HOSTS, "port": port, "secret_file": d + "/secret"}
    finally:
        p.terminate()
        p.communicate()


def inference_session(d):
    ids = np.ones((2, 9), np.int64)
    feeds = {"input_ids": ids, "attention_mask": ids, "token_type_ids": ids}
    want = onnxruntime.InferenceSession(MODEL).run(None, feeds)[0]
    with worker(d) as options:
        session = tessera.InferenceSession(MODEL, dims={"batch": 2, "seq": 9}, **options)
        assert np.abs(session.run(None, feeds)[0] - want).max() < 1e-5
        assert [host[:2] for host in session.plan.hosts] == [("127.0.0.1", 1), ("127.0.0.2", 1)] and session.plan.sent_bytes > 0
        assert all(milliseconds > 0 for _, _, milliseconds in session.plan.hosts) and session.plan.devices == 2


def generation(d):
    folder = generation_folder(d + "/folder")
    want = list(tessera.generate(folder, IDS, max_tokens=6))
    with worker(d) as options:
        assert list(tessera.generate(folder, IDS, max_tokens=6, **options)) == want
        try:
            import onnxruntime_genai  # noqa: F401
        except ImportError:
            return
        generator = tessera.Generator(ROOT + "/tests/folders/genai_tiny", summary=d + "/summary.json", **options)
        assert list(generator.generate(IDS, max_tokens=6)) == want
        assert len(json.load(open(d + "/summary.json"))["hosts"]) == 2
        del generator


def commands(d):
    folder = ROOT + "/tests/folders/genai_tiny"
    with worker(d) as options:
        words = ["--hosts", HOSTS, "--port", str(options["port"]), "--secret-file", options["secret_file"]]
        want = harness.good(sys.executable, "-m", "tessera", "generate", folder, "--ids", "1,7,11", PYTHONPATH=BUILD + "/python")
        got = harness.good(sys.executable, "-m", "tessera", "generate", folder, "--ids", "1,7,11", *words, PYTHONPATH=BUILD + "/python")
        assert got == want, (got, want)


def mistakes(d):
    """Each is refused before a worker is reached."""
    secret = {"hosts": "a,b", "secret_file": d + "/secret"}
    for error, text, options in ((ValueError, "list such as", {"hosts": "a:x"}),
                                 (ValueError, "hosts has 2 devices", {"hosts": "a,b", "devices": 3}),
                                 (TypeError, "no effect", {"port": 29500}), (TypeError, "no effect", {"rsh": "ssh"}),
                                 (Exception, "secret_file", {"hosts": "a,b"}),
                                 (Exception, "transport", {**secret, "transport": "shm"}),
                                 (Exception, "secret", {**secret, "secret_file": d + "/absent"}),
                                 (Exception, "port", {**secret, "port": 70000})):
        with open(d + "/secret", "w") as f:
            f.write("secret\n")
        began = time.monotonic()
        try:
            tessera.InferenceSession(MODEL, **options)
        except error as e:
            assert text in str(e), (options, e)
        else:
            raise AssertionError("accepted: %r" % (options,))
        assert time.monotonic() - began < harness.HANG_S / 2


harness.run([inference_session, generation, commands, mistakes])
harness.finish()
