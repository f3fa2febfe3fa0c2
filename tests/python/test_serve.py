# SPDX-License-Identifier: Apache-2.0
"""Tests tessera serve: its answers, its limits for slow, silent and numerous clients, and how it ends.

usage: test_serve.py BUILD"""
import asyncio
import contextlib
import glob
import http.client
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import harness
from built import BUILD, folder_with, generation_folder, tessera

TMP = tempfile.TemporaryDirectory(prefix="tessera-serve-")
FOLDER = TMP.name + "/folder"
ENV = dict(os.environ, PYTHONPATH=BUILD + "/python")
MESSAGES = [{"role": "user", "content": "Hello"}]
HEADERS = {"Host": "localhost", "Content-Type": "application/json"}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
PROGRAM = "import sys; from tessera import _command, _library; _library.FOLDER = sys.argv.pop(1); _command.main()"


def missing(*modules):
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return "%s is not installed" % absent[0] if absent else None


class Server:
    """Runs tessera serve on a free port of the loopback address."""

    def __init__(self, folder=FOLDER, more=(), **start):
        self.folder, self.more, self.start = folder, more, start

    def __enter__(self):
        words = ["serve", self.folder, "--devices", "2", "--port", "0", "--name", "tiny", *self.more]
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, BUILD, *words], stderr=subprocess.PIPE, text=True, env=ENV,
                                        **self.start)
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                self.reader = threading.Thread(target=lambda: self.said.append(self.process.stderr.read()), daemon=True)
                self.reader.start()
                return self
        raise AssertionError("".join(self.said))

    def end(self, number):
        """Sends a signal. Returns the exit code and what the server printed."""
        self.process.send_signal(number)
        code = self.process.wait(timeout=harness.HANG_S)
        self.reader.join()
        return code, "".join(self.said)

    def stream(self, count):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps(dict(messages=MESSAGES, max_tokens=count, stream=True)), HEADERS)
        return connection.getresponse()

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()

    def ask(self, path, body=None, host="localhost", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", path, data, dict(HEADERS, Host=host, **headers))
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def content(self, **body):
        status, text = self.ask("/v1/chat/completions", dict(dict(model="tiny", messages=MESSAGES, max_tokens=8), **body))
        assert status == 200, (status, text)
        choice = json.loads(text)["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]


def streamed(text):
    events = [line[len("data: "):] for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]", events[-1]
    return "".join(json.loads(e)["choices"][0]["delta"]["content"] for e in events[:-1])


BAD_BODIES = (b"", b"{", b"[]", b"1", b'{"messages": 5}', b'{"messages": []}', b'{"messages": [5]}', b"[" * 100000,
              json.dumps(dict(messages=MESSAGES, max_tokens=-1)).encode(), json.dumps(dict(messages=MESSAGES, max_tokens="5")).encode(),
              json.dumps(dict(messages=MESSAGES, stop=5)).encode(), json.dumps(dict(messages=MESSAGES, temperature=-1)).encode(),
              json.dumps(dict(messages=MESSAGES, n=2)).encode(), b" " * (5 << 20), json.dumps(dict(messages=MESSAGES,
                                                                                                   stop="x" * 4000000)).encode(),
              json.dumps(dict(messages=MESSAGES, stop=["x"] * 100000)).encode(), json.dumps(dict(messages=MESSAGES, seed=2 ** 31)).encode())
# Fields that change an answer are refused instead of ignored, each with its name; values that change nothing are accepted.
NOT_SUPPORTED = dict(n=2, logprobs=True, top_logprobs=2, logit_bias={"5": 1}, presence_penalty=1, frequency_penalty=0.5, top_k=3,
                     response_format={"type": "json_object"}, tools=[{"type": "function"}], tool_choice="required", audio={"voice": "x"},
                     reasoning_effort="high", web_search_options={}, max_token=4, ignore_eos=True, prompt="Hello", seed=1.5, stream="false",
                     stream_options=5)
NEUTRAL = dict(n=1, logprobs=False, logit_bias={}, presence_penalty=0, frequency_penalty=0.0, response_format={"type": "text"}, tools=[],
               tool_choice="auto", reasoning_effort="none", user="me", store=True, metadata={"a": "b"}, service_tier="auto",
               safety_identifier="x", prompt_cache_key="y", parallel_tool_calls=False)
STRANGE_MESSAGES = ([{"role": 5, "content": None}], [{"role": "user",
                                                      "content": "\ud800"}], [{}], [{"role": "user", "content": [{"type": "image"}]}])


def test_serve():
    reason = missing("onnxruntime_genai", "tokenizers", "starlette", "uvicorn")
    if reason:
        return reason
    want = "".join(tessera.generate(FOLDER, MESSAGES, devices=2, max_tokens=8))
    with Server() as server:
        assert json.loads(server.ask("/v1/models")[1])["data"][0]["id"] == "tiny"
        assert server.content() == (want, "length")
        assert streamed(server.ask("/v1/chat/completions", dict(messages=MESSAGES, max_tokens=8, stream=True))[1]) == want
        assert server.content(stop=[want[3:5]]) == (want[:want.index(want[3:5])], "stop")
        assert json.loads(server.ask("/v1/completions", dict(prompt="Hello", max_tokens=8))[1])["choices"][0]["text"] == want
        for body in BAD_BODIES:
            status, text = server.ask("/v1/chat/completions", body)
            assert status == 400 and json.loads(text)["error"]["message"], (body[:60], status, text)
        status, text = server.ask("/v1/chat/completions", dict(messages=[{"role": "user", "content": "word " * 200}]))
        assert status == 400 and "the model supports 128 together with the answer" in text, (status, text)
        assert server.content(max_tokens=1000)[1] in ("length", "stop")  # ends with the context
        assert server.content(seed=5) == (want, "length")
        seeded = [server.content(temperature=1, seed=seed)[0] for seed in (5, 6, 7, 5, 6, 7)]
        assert seeded[:3] == seeded[3:] and len(set(seeded)) > 1, "the same seed must give the same answer: %s" % seeded
        assert server.content(temperature=1, top_p=0) == server.content(temperature=1, top_p=0,
                                                                        seed=5) == (want, "length"), "only one token is left"
        assert json.loads(server.ask("/v1/completions", dict(prompt=["Hello"], max_tokens=8))[1])["choices"][0]["text"] == want
        for name, value in NOT_SUPPORTED.items():
            status, text = server.ask("/v1/chat/completions", dict(messages=MESSAGES, max_tokens=2, **{name: value}))
            assert status == 400 and name in json.loads(text)["error"]["message"], (name, status, text)
        for name, hint in (("max_token", "did you mean 'max_tokens'?"), ("\ud800", "unknown field"), ("x" * 4000000, "unknown field")):
            status, text = server.ask("/v1/chat/completions", dict(messages=MESSAGES, **{name: 1}))
            assert status == 400 and hint in json.loads(text)["error"]["message"] and len(text) < 1000, text[:1000]
        assert server.content(**NEUTRAL) == (want, "length")
        status, text = server.ask("/v1/chat/completions",
                                  dict(messages=MESSAGES, max_tokens=8, stream=True, stream_options={"include_usage": True}))
        last = json.loads(text.strip().split("\n\n")[-2][len("data: "):])
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == 8, last
        parts = [{"type": "text", "text": text} for text in ("Hello", "you")]
        assert server.content(messages=[{"role": "user", "content": parts[:1]}]) == (want, "length")
        assert server.content(messages=[{"role": "user", "content": parts}]) == server.content(
            messages=[{"role": "user", "content": "Hello\nyou"}])
        status, text = server.ask("/v1/chat/completions",
                                  dict(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]))
        assert status == 400 and "image_url" in json.loads(text)["error"]["message"], (status, text)
        for messages in STRANGE_MESSAGES:
            status, text = server.ask("/v1/chat/completions", dict(messages=messages, max_tokens=2))
            assert status in (200, 400) and json.loads(text), (messages, status, text)
        assert server.ask("/v1/models", host="example.org")[0] == 400, "another Host"
        for origin, status in (("http://example.org", 403), ("null", 403), ("http://localhost.example.org", 403), ("http://localhost",
                                                                                                                   200)):
            assert server.ask("/v1/completions", dict(prompt="Hello", max_tokens=2), Origin=origin)[0] == status, origin
        for kind, status in (("text/plain", 415), ("application/x-www-form-urlencoded", 415), ("", 415), ("Application/JSON; charset=utf-8",
                                                                                                          200)):
            assert server.ask("/v1/completions", dict(prompt="Hello", max_tokens=2), **{"Content-Type": kind})[0] == status, kind
        for seed in [None] + [5] * 5:  # requests with a seed wait for each other
            gone = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            gone.request("POST", "/v1/chat/completions",
                         json.dumps(dict(messages=MESSAGES, max_tokens=40, stream=True, temperature=1, seed=seed)), HEADERS)
            gone.getresponse().read(10)
            gone.close()
        gone = socket.create_connection(("127.0.0.1", server.port))  # in the middle of the body
        gone.sendall(HEAD % 1000 + b"{")
        gone.close()
        found = []
        threads = [threading.Thread(target=lambda: found.append(server.content())) for _ in range(4)]
        threads.append(threading.Thread(target=lambda: server.content(temperature=1, seed=5)))  # beside the others
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert found == [(want, "length")] * 4, found
        code, said = server.end(signal.SIGTERM)
        assert code == -signal.SIGTERM and "Traceback" not in said, (code, said)


class Endless:
    """A backend that generates until its client disconnects, for any number of clients."""

    def __init__(self, pause_s=0.01):
        self.began, self.ended, self.pause_s, self.stopped = threading.Event(), threading.Event(), pause_s, False

    def begin(self, request, answer):
        self.began.set()
        threading.Thread(target=self.generate, args=(answer,), daemon=True).start()

    def generate(self, answer):
        while not answer.closed and not self.stopped:
            answer.put((1, ""))
            time.sleep(self.pause_s)
        answer.put((None, "stop"))

    def end(self, answer):
        answer.closed = True
        self.ended.set()

    def stop(self):
        self.stopped = True


class Letters:
    ends = ()

    def __init__(self, size=1):
        self.size = size

    def encode(self, prompt):
        return [1]

    def decoder(self):
        return lambda token: "a" * self.size


@contextlib.contextmanager
def serving(backend, text, **limits):
    """Runs a server with this backend and tokenizer in a thread. limits: constants of tessera.serve and tessera.connections to change.
    Yields the port."""
    from tessera import connections, serve
    server = serve.Server(backend, "tiny", text, 1 << 20)
    homes = {name: serve if hasattr(serve, name) else connections for name in limits}
    before = {name: getattr(home, name) for name, home in homes.items()}
    for name, value in limits.items():
        setattr(homes[name], name, value)
    listener = serve.listen("127.0.0.1", 0)
    listener.listen()
    web = connections.web_server(server.app(["localhost"]), listener, lambda: None, 1)
    thread = threading.Thread(target=lambda: web.run(sockets=[listener]), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        backend.stop()
        web.should_exit = True
        thread.join(30)
        for name, value in before.items():
            setattr(homes[name], name, value)


def post(port, **body):
    """Sends a request and returns its connection."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    client.request("POST", "/v1/chat/completions", json.dumps(dict(messages=MESSAGES, **body)), HEADERS)
    return client


def health(port):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    client.request("GET", "/health", headers={"Host": "localhost"})
    status = client.getresponse().status
    client.close()
    return status


def is_closed(client):
    """True if the server closes the connection. Reads what it sends before."""
    client.settimeout(60)
    try:
        while client.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    return True


def stalled(port, **body):
    """Sends a request for a stream and never reads the answer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    data = json.dumps(dict(messages=MESSAGES, stream=True, **body)).encode()
    client.sendall(HEAD % len(data) + data)
    return client


def test_serve_ends_answers_of_departed_clients():
    reason = missing("starlette", "uvicorn")
    if reason:
        return reason
    for stream in (False, True):
        backend = Endless()
        with serving(backend, Letters()) as port:
            client = post(port, stream=stream)
            assert backend.began.wait(30) and not backend.ended.is_set()
            client.close()
            assert backend.ended.wait(30), "the answer is generated although its client has gone (stream: %s)" % stream


def test_time_limits_for_requests():
    """Clients that send nothing, parts of a head, a head in many pieces or half a body are disconnected."""
    reason = missing("starlette", "uvicorn")
    if reason:
        return reason
    with serving(Endless(), Letters(), RECEIVE_S=2) as port:
        silent, head, body, kept = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        head.sendall((HEAD % 10)[:30])
        body.sendall(HEAD % 1000 + b"{")
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in kept.recv(4096)
        kept.sendall(b"GET /hea")
        trickle = socket.create_connection(("127.0.0.1", port))
        with contextlib.suppress(ConnectionError):
            for byte in HEAD[:100] * 5:  # a byte each 0.1 s is no reason to wait longer
                trickle.sendall(bytes([byte]))
                time.sleep(0.1)
            raise AssertionError("500 bytes were accepted")
        assert all(map(is_closed, (silent, head, body, kept)))
        assert health(port) == 200


def test_time_limit_for_readers():
    """A client that does not read its answer is disconnected; one that reads is not."""
    reason = missing("starlette", "uvicorn")
    if reason:
        return reason
    backend = Endless()
    with serving(backend, Letters(1 << 16), SEND_S=2) as port:
        client = stalled(port)
        assert backend.ended.wait(60), "a stream is generated for a client that does not read"
        assert is_closed(client)
        reader = post(port, stream=True).getresponse()
        end = time.monotonic() + 5
        while time.monotonic() < end:
            assert reader.read(1 << 16)


def test_readers_that_are_behind():
    """The tokens that wait for a slow client are bounded."""
    reason = missing("starlette", "uvicorn")
    if reason:
        return reason
    backend = Endless(0.0001)
    with serving(backend, Letters(1 << 16), MOST_BEHIND=50) as port:
        client = stalled(port)
        client.settimeout(60)
        assert backend.began.wait(30)
        time.sleep(2)
        text = b""
        while b"[DONE]" not in text[-100:] and b"too slowly" not in text[-1000:]:
            more = client.recv(1 << 20)
            text = text[-1000:] + more
            assert more, text
        assert b"too slowly" in text, text


def test_limit_of_connections():
    """Silent connections make room for others."""
    reason = missing("starlette", "uvicorn")
    if reason:
        return reason
    with serving(Endless(), Letters(), MAX_CONNECTIONS=8) as port:
        stream = post(port, stream=True).getresponse()
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
        for client in silent:
            with contextlib.suppress(ConnectionError):
                client.sendall((HEAD % 10)[:30])
        assert health(port) == 200
        assert sum(map(is_closed, silent[:20])) == 20
        assert stream.read(10000), "an answer ends for a silent connection"


def test_limit_of_requests():
    """Requests beyond the limit get status 503, until others end."""
    reason = missing("starlette", "uvicorn")
    if reason:
        return reason
    with serving(Endless(), Letters(), MAX_REQUESTS=6) as port:
        streams = [post(port, stream=True) for _ in range(10)]
        found = sorted(stream.getresponse().status for stream in streams)
        assert found == [200] * 6 + [503] * 4 and health(port) == 200, found
        for stream in streams:
            stream.close()
        for _ in range(10 * harness.HANG_S):  # until the server has noticed
            if post(port, stream=True).getresponse().status == 200:
                return None
            time.sleep(0.1)
        raise AssertionError("the requests are still counted")


def test_large_bodies_together():
    """The memory for bodies that are being received is bounded."""
    reason = missing("starlette", "uvicorn")
    if reason:
        return reason
    with serving(Endless(), Letters(), RECEIVE_S=10) as port:
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        refused = 0
        for client in clients:
            client.settimeout(60)
            client.sendall(HEAD % (4 << 20))
            with contextlib.suppress(ConnectionError):  # the server may refuse it before the end
                client.sendall(b" " * ((4 << 20) - 1))
        for client in clients:
            with contextlib.suppress(ConnectionError):
                refused += b"503" in client.recv(100)
        assert 1 <= refused < 10, refused


def test_descriptors():
    """At the limit of descriptors the server answers, and its log does not grow."""
    reason = missing("onnxruntime_genai", "tokenizers", "starlette", "uvicorn")
    if reason:
        return reason
    with Server(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(250)]
        for client in silent:
            with contextlib.suppress(ConnectionError):
                client.sendall((HEAD % 10)[:30])
        for _ in range(3):
            assert health(server.port) == 200
            time.sleep(1)
        code, said = server.end(signal.SIGTERM)
        assert len(said.splitlines()) == 1, said[-2000:]


def answers(backend, request):
    """Returns the tokens that a backend generates."""
    async def collect():
        from tessera import serve
        answer, found, reason = serve.Answer(), [], ""
        backend.begin(request, answer)
        try:
            while not reason:
                token, reason = await answer.get()
                found.append(token)
        finally:
            backend.end(answer)
        return found
    return asyncio.run(collect())


def test_batches_cancel_requests():
    """If a client disconnects, its request must leave the engine, and other requests must not be affected."""
    reason = missing("onnxruntime_genai", "tokenizers")
    if reason:
        return reason
    from tessera import serve
    generator = tessera.Generator(FOLDER, devices=2)

    async def leave(backend, request):
        answer = serve.Answer()
        backend.begin(request, answer)
        await answer.get()
        backend.end(answer)
        while not answer._found.empty():
            await answer.get()
        return answer

    for backend in (serve.Batches(generator), serve.OneByOne(generator)):
        request = serve.Request(generator.text.encode(MESSAGES), 100, 0.0, 1.0, None, [])
        want = answers(backend, request._replace(max_tokens=8))
        left = asyncio.run(leave(backend, request))
        assert left.closed
        for bad in (request._replace(max_tokens=-1), request._replace(ids=[2**40]), request._replace(ids=["text"])):
            try:
                answers(backend, bad)
            except (RuntimeError, ValueError, OverflowError, TypeError):
                pass  # the next request is not affected
        assert answers(backend, request._replace(max_tokens=8)) == want
        backend.close()
        assert not getattr(backend, "_answers", None), backend._answers
        try:
            answers(backend, request)
            raise AssertionError("an answer after the end")
        except RuntimeError as error:
            assert serve.STOPPED in str(error), error


def test_stalled_readers_block_nobody():
    """A seeded request, which is generated alone, does not wait for the client of another. Waiting requests need no threads."""
    reason = missing("onnxruntime_genai", "tokenizers", "starlette", "uvicorn")
    if reason:
        return reason
    from tessera import serve
    generator = tessera.Generator(FOLDER, devices=2)
    backend, text = serve.Batches(generator), Letters(1 << 16)
    text.encode = generator.text.encode
    seeded = dict(temperature=1, max_tokens=100)
    with serving(backend, text) as port:
        clients = [stalled(port, seed=seed, **seeded) for seed in range(60)]
        threads = threading.active_count()
        assert post(port, max_tokens=2).getresponse().status == 200, "a request without a seed"
        assert post(port, seed=5, temperature=1, max_tokens=2).getresponse().status == 200, "a request with a seed"
        assert threads < 60, threads
        for client in clients:
            client.close()
        assert post(port, max_tokens=2).getresponse().status == 200
    backend.close()


def test_many_requests():
    reason = missing("onnxruntime_genai", "tokenizers", "starlette", "uvicorn")
    if reason:
        return reason
    with Server() as server:
        want, found = server.content(max_tokens=4), []
        threads = [threading.Thread(target=lambda: found.append(server.content(max_tokens=4))) for _ in range(200)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert found == [want] * 200, (len(found), set(found))


def children(pid):
    found = []
    for path in glob.glob("/proc/%d/task/*/children" % pid):
        with open(path) as f:
            found += map(int, f.read().split())
    return found


def test_a_rank_dies():
    """The client reads that the model failed, not that its request was wrong. The next request works."""
    reason = missing("onnxruntime_genai", "tokenizers", "starlette", "uvicorn")
    if reason:
        return reason
    with Server(more=["--transport", "shm"]) as server:
        want = server.content()
        for body in (dict(), dict(temperature=1, seed=5)):
            ranks = children(server.process.pid)
            assert ranks, "no process is a rank"
            for rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGKILL)
            status, text = server.ask("/v1/chat/completions", dict(messages=MESSAGES, max_tokens=20, **body))
            assert status == 500 and ("killed" in text or "log of the server" in text), (status, text)
            assert server.content() == want
        code, said = server.end(signal.SIGTERM)
        assert "killed by signal 9" in said, said


def test_serve_ends_cleanly():
    reason = missing("onnxruntime_genai", "tokenizers", "starlette", "uvicorn")
    if reason:
        return reason
    with Server() as server:
        answer = server.stream(100)
        answer.read(200)
        words = ["serve", FOLDER, "--port", str(server.port)]
        second = subprocess.run([sys.executable, "-c", PROGRAM, BUILD, *words], capture_output=True, text=True, env=ENV,
                                timeout=harness.HANG_S)
        assert second.returncode == 2 and "port %d: Address already in use" % server.port in second.stderr and len(
            second.stderr.splitlines()) == 1, second
        answer.read()
        code, said = server.end(signal.SIGINT)
        assert code == 0 and "Traceback" not in said and len(said.splitlines()) == 1, (code, said)


def test_serve_settings_that_the_engine_refuses():
    reason = missing("onnxruntime_genai", "tokenizers", "starlette", "uvicorn")
    if reason:
        return reason
    folder = folder_with(FOLDER, TMP.name + "/refused", min_length=40, num_beams=2)
    with Server(folder) as server:
        assert server.content(max_tokens=20) == ("".join(tessera.generate(folder, MESSAGES, max_tokens=20)), "length")


def test_serve_continues_after_a_failure():
    """The configuration claims a longer context than the model has. A long answer must fail, and later requests must succeed."""
    reason = missing("onnxruntime_genai", "tokenizers", "starlette", "uvicorn")
    if reason:
        return reason
    folder = shutil.copytree(FOLDER, TMP.name + "/long")
    with open(folder + "/genai_config.json") as f:
        config = f.read()
    with open(folder + "/genai_config.json", "w") as f:
        f.write(config.replace(": 128,", ": 4096,"))
    with Server(folder) as server:
        want = server.content()
        for _ in range(2):
            assert "the model failed" in server.stream(4000).read().decode()
            assert server.content() == want
        answer = server.stream(4000)
        answer.read(200)
        code, said = server.end(signal.SIGINT)  # in the middle of an answer
        assert code == 0 and "Traceback" not in said, (code, said)


generation_folder(FOLDER)
harness.run_functions(globals())
harness.finish()
