# SPDX-License-Identifier: Apache-2.0
"""Tests sessions, generation and commands of the Python package with ranks in a worker, which is on another address of the loopback
interface: test_hosts.py BUILD"""
import contextlib
import http.client
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time

import harness
from built import BUILD, MODEL, ROOT, generation_folder, templated_folder
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
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@contextlib.contextmanager
def worker(d, port=None):
    """A worker; yields the options with which sessions reach it."""
    if port is None:
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
        words = words_of(options)
        want = harness.good(sys.executable, "-m", "tessera", "generate", folder, "--ids", "1,7,11", PYTHONPATH=BUILD + "/python")
        got = harness.good(sys.executable, "-m", "tessera", "generate", folder, "--ids", "1,7,11", *words, PYTHONPATH=BUILD + "/python")
        assert got == want, (got, want)


def missing(*modules):
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return "%s is not installed" % absent[0] if absent else None


def words_of(options, port="--port"):
    return ["--hosts", HOSTS, port, str(options["port"]), "--secret-file", options["secret_file"]]


def chat(d):
    """A conversation of two messages on two hosts gives the answers of one host."""
    reason = missing("onnxruntime_genai", "tokenizers")
    if reason:
        return reason
    command = [sys.executable, "-m", "tessera", "chat", templated_folder(d + "/folder", TEMPLATE), "--max-tokens", "8"]
    talk = lambda *words: subprocess.run([*command, *words], input="Hello\nyou\n", capture_output=True, text=True, timeout=harness.HANG_S,
                                         env=harness.environment(PYTHONPATH=BUILD + "/python"))
    with worker(d) as options:
        alone, together = talk(), talk(*words_of(options))
        assert alone.returncode == together.returncode == 0, (alone.stderr, together.stderr)
        assert len(alone.stdout) > 16 and together.stdout == alone.stdout, (alone.stdout, together.stdout)
    gone = talk(*words_of(options))
    assert gone.returncode > 0 and "127.0.0.2 port %d" % options["port"] in gone.stderr and "Traceback" not in gone.stderr, gone.stderr


def ask(port):
    """Returns status and content of an answer of `tessera serve`."""
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0})
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=harness.HANG_S)) as connection:
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        document = json.load(answer)
        return answer.status, document["choices"][0]["message"]["content"] if "choices" in document else document["error"]["message"]


def serve(d):
    """A server on two hosts goes on when its worker has died and is back."""
    reason = missing("onnxruntime_genai", "tokenizers", "starlette", "uvicorn")
    if reason:
        return reason
    folder = templated_folder(d + "/folder", TEMPLATE)
    with contextlib.ExitStack() as stack:
        with worker(d) as options:
            words = [sys.executable, "-m", "tessera", "serve", folder, "--port", "0", *words_of(options, "--worker-port")]
            server = subprocess.Popen(words, stderr=open(d + "/log", "w"), env=harness.environment(PYTHONPATH=BUILD + "/python"))
            stack.callback(server.wait)
            stack.callback(server.kill)
            printed = lambda: open(d + "/log").read()
            end = time.monotonic() + harness.HANG_S
            while "is ready" not in printed():
                assert server.poll() is None and time.monotonic() < end, printed()
                time.sleep(0.05)
            port = int(re.search(r"127\.0\.0\.1:(\d+)/v1", printed()).group(1))
            want = "".join(tessera.generate(folder, [{"role": "user", "content": "Hello"}], max_tokens=8))
            assert ask(port) == (200, want)
        status, message = ask(port)
        assert status == 500 and "log" in message and "the worker on 127.0.0.2 port %d" % options["port"] in printed(), (message, printed())
        with worker(d, options["port"]):
            assert ask(port) == (200, want), printed()


def mistakes(d):
    """Each is refused before a worker is reached."""
    secret = {"hosts": "a,b", "secret_file": d + "/secret"}
    for error, text, options in ((ValueError, "list such as", {"hosts": "a:x"}),
                                 (ValueError, "hosts has 2 devices", {"hosts": "a,b", "devices": 3}),
                                 (TypeError, "no effect", {"port": 29500}), (TypeError, "no effect", {"rsh": "ssh"}),
                                 *((Exception, name + " has no effect without hosts", {"devices": 2, name: value}) for name, value in
                                   (("port", 29500), ("secret_file", d + "/secret"), ("interface", "lo"), ("rsh", "ssh"))),
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


harness.run([inference_session, generation, commands, chat, serve, mistakes])
harness.finish()
