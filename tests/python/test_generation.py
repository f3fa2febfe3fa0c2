# SPDX-License-Identifier: Apache-2.0
"""Tests text generation: tessera.Generator, tessera chat and tessera serve, compared with onnxruntime-genai on the unsharded folder.

usage: test_generation.py BUILD"""
import contextlib
import http.client
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import harness
from built import BUILD, ROOT, generation_folder, templated_folder, tessera

TMP = tempfile.TemporaryDirectory(prefix="tessera-generation-")
FOLDER = TMP.name + "/folder"
ENV = dict(os.environ, PYTHONPATH=BUILD + "/python")
IDS = [1, 7, 11]
MESSAGES = [{"role": "user", "content": "Hello"}]
PROGRAM = "import sys; from tessera import _command, _library; _library.FOLDER = sys.argv.pop(1); _command.main()"


def missing(*modules):
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return "%s is not installed" % absent[0] if absent else None


def unsharded(ids, count, folder=FOLDER, **search):
    import numpy
    import onnxruntime_genai as genai
    model = genai.Model(genai.Config(folder))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=len(ids) + count, **dict(dict(do_sample=False), **search))
    generator = genai.Generator(model, parameters)
    generator.append_tokens(numpy.array([ids], numpy.int32))
    tokens = []
    while not generator.is_done():
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    return [int(token) for token in generator.get_sequence(0)[len(ids):]] if "num_beams" in search else tokens


def folder_with(name, **search):
    """Copies FOLDER and changes the search settings of its configuration."""
    folder = shutil.copytree(FOLDER, TMP.name + "/" + name)
    with open(folder + "/genai_config.json") as f:
        config = json.load(f)
    config["search"].update(search)
    with open(folder + "/genai_config.json", "w") as f:
        json.dump(config, f)
    return folder


def test_tokens_of_the_unsharded_folder():
    reason = missing("onnxruntime_genai")
    if reason:
        return reason
    want = unsharded(IDS, 20)
    for devices in (None, 2, 3):
        generator = tessera.Generator(FOLDER, devices=devices)
        for _ in range(2):
            assert list(generator.generate(IDS, max_tokens=20, do_sample=False)) == want, devices
    assert list(tessera.generate(FOLDER, IDS, devices=2, max_tokens=20)) == want
    assert list(tessera.generate(FOLDER, IDS, devices=2, max_tokens=0)) == []


def test_beams():
    """Only the best of the complete beams is the answer, whether the caller or the folder asks for beams."""
    reason = missing("onnxruntime_genai")
    if reason:
        return reason
    ids = [1, 1, 11]
    want = unsharded(ids, 20, num_beams=4)
    assert want != unsharded(ids, 20)
    assert list(tessera.Generator(FOLDER, devices=2).generate(ids, max_tokens=20, num_beams=4)) == want
    assert list(tessera.Generator(folder_with("beams", num_beams=4), devices=2).generate(ids, max_tokens=20)) == want


def test_arguments_of_generate():
    reason = missing("onnxruntime_genai")
    if reason:
        return reason
    import numpy
    generator = tessera.Generator(FOLDER)
    for kind, hint, prompt, options in ((ValueError, "max_tokens must be 0 or more", IDS, dict(max_tokens=-1)), (TypeError, "max_tokens must be a number", IDS, dict(max_tokens="3")),
                                        (TypeError, "use max_tokens", IDS, dict(max_length=9)), (TypeError, "batch_size", IDS, dict(batch_size=2)),
                                        (ValueError, "the prompt is empty", [], {}), (ValueError, "has 128 tokens; the model supports 128", [1] * 128, {}),
                                        (TypeError, "a list of ndarray", numpy.array([IDS]), {})):
        try:
            list(generator.generate(prompt, **options))
            raise AssertionError("no exception for %s" % hint)
        except kind as error:
            assert hint in str(error), error


TEMPLATE = "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}U {{ m['content'] }}. {% endfor %}"


def test_chat_templates():
    """A template that fails must not be replaced by another format of the messages."""
    reason = missing("onnxruntime_genai")
    if reason:
        return reason
    text = tessera.Generator(templated_folder(TMP.name + "/template", TEMPLATE)).text
    assert text.conversation(MESSAGES) == "U Hello. "
    assert text.conversation([{"role": "assistant", "content": None}, {"role": "user"}]) == "U . U . ", "no content is an empty text"
    system = [{"role": "system", "content": "Be"}] + MESSAGES
    assert tessera.Generator(templated_folder(TMP.name + "/plain", None)).text.conversation(system) == "Be\nHello"
    for template, hint in ((TEMPLATE, "no system role"), ("{% for", "chat template")):
        broken = tessera.Generator(templated_folder(TMP.name + "/" + hint, template)).text
        try:
            broken.conversation(system)
            raise AssertionError("no exception")
        except ValueError as error:
            assert hint in str(error) and "\n" not in str(error), error


def test_own_loop_without_genai():
    has_genai = tessera.generation.has_genai
    try:
        tessera.generation.has_genai = lambda folder: False
        own = list(tessera.generate(FOLDER, IDS, devices=2, max_tokens=20))
        try:
            tessera.generate(FOLDER, MESSAGES)
            raise AssertionError("no exception")
        except TypeError as error:
            assert "chat messages need onnxruntime-genai" in str(error)
    finally:
        tessera.generation.has_genai = has_genai
    reason = missing("onnxruntime_genai")
    assert reason or own == unsharded(IDS, 20), own
    return reason


def test_search_settings_of_the_own_loop():
    reason = missing("onnxruntime_genai")
    if reason:
        return reason
    ids = [1, 1, 11]
    greedy = unsharded(ids, 40)
    for k, search in enumerate((dict(repetition_penalty=1.7), dict(repetition_penalty=0.6), dict(no_repeat_ngram_size=1), dict(no_repeat_ngram_size=2),
                                dict(no_repeat_ngram_size=3, repetition_penalty=1.1, min_length=40))):
        folder = folder_with("search-%d" % k, **search)
        want = unsharded(ids, 40, folder)
        ran = subprocess.run([BUILD + "/tessera", "generate", folder, "--ids", "1,1,11", "--max-tokens", "40", "--quiet"], capture_output=True, text=True, env=ENV, timeout=120)
        assert want != greedy and list(map(int, ran.stdout.split())) == want, (search, want, ran)
    ran = subprocess.run([BUILD + "/tessera", "generate", folder_with("search-beams", num_beams=3), "--ids", "1,1,11", "--max-tokens", "40"], capture_output=True, text=True,
                         env=ENV, timeout=120)
    assert list(map(int, ran.stdout.split())) == greedy and "[folder-beams]" in ran.stderr, ran


def call(*words):
    return subprocess.run([sys.executable, "-c", PROGRAM, BUILD, *words], capture_output=True, text=True, env=ENV, timeout=120)


def call_here(*words):
    """Runs the command in this process, which saves the imports. Returns the exit code and stderr."""
    from tessera import _command
    before, said, code = (sys.argv, sys.stdin), io.StringIO(), 0
    sys.argv, sys.stdin = ["tessera", *words], io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            _command.main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv, sys.stdin = before
    return code, said.getvalue()


def closed_pipe():
    """Returns the writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_command():
    """tessera generate: token ids, text and stop texts. Each mistake must give one line of error."""
    reason = missing("onnxruntime_genai", "tokenizers")
    if reason:
        return reason
    ids = ",".join(map(str, IDS))
    ran = call("generate", FOLDER, "--devices", "2", "--ids", ids, "--max-tokens", "20")
    assert ran.returncode == 0 and list(map(int, ran.stdout.split())) == unsharded(IDS, 20) and not ran.stderr, ran
    text = call("generate", FOLDER, "--devices", "2", "--prompt=Hello", "--max-tokens", "8").stdout.rstrip("\n")
    assert text == "".join(tessera.generate(FOLDER, "Hello", max_tokens=8)) and len(text) > 5, text
    assert call("generate", FOLDER, "--prompt", "Hello", "--max-tokens", "8", "--stop", "never", "--stop", text[3:5]).stdout == text[:text.index(text[3:5])] + "\n"
    for words, hint in ((["--ids", "1,x"], "--ids needs numbers"), ([], "no prompt")):  # reported by the program
        ran = call("generate", FOLDER, *words)
        assert ran.returncode == 2 and hint in ran.stderr and "Traceback" not in ran.stderr, ran
    for words, hint in ((["--ids", ids, "--devices", "nonsense"], "nonsense"), (["--ids", "1,999999"], "999999 is not a token id"), (["--prompt", "Hello", "--stop", ""], "stop must be")):
        code, said = call_here("generate", FOLDER, *words)
        assert code == 2 and hint in said, (words, code, said)
    # The exit codes are those of the program.
    for words, code in ((["generate", TMP.name + "/none", "--prompt", "Hello"], 3), (["chat", FOLDER, "--devices", "2", "--memory", "1kB"], 4)):
        assert call_here(*words)[0] == code, (words, code)
    for out, hint in ((os.open("/dev/full", os.O_WRONLY), "No space left"), (closed_pipe(), "Broken pipe")):
        ran = subprocess.run([sys.executable, "-c", PROGRAM, BUILD, "generate", FOLDER, "--ids", ids], stdout=out, stderr=subprocess.PIPE, text=True, env=ENV, timeout=120)
        os.close(out)
        assert ran.returncode == 8 and hint in ran.stderr and len(ran.stderr.splitlines()) == 1, ran
    latin = subprocess.run([sys.executable, "-c", "from tessera import chat; chat.write('\u6f22')"], capture_output=True, env=dict(ENV, PYTHONIOENCODING="latin-1"))
    assert latin.stdout == b"?", latin
    # A package that is installed but cannot be loaded is not reported as missing.
    os.mkdir(TMP.name + "/stub")
    with open(TMP.name + "/stub/onnxruntime_genai.py", "w") as f:
        f.write("raise ImportError('libnone.so: cannot open')")
    stub = dict(ENV, PYTHONPATH=TMP.name + "/stub:" + ENV["PYTHONPATH"])
    ran = subprocess.run([sys.executable, "-c", PROGRAM, BUILD, "generate", FOLDER, "--ids", ids], capture_output=True, text=True, env=stub, timeout=120)
    assert ran.returncode == 7 and ran.stderr == "tessera: libnone.so: cannot open\n", ran
    # --json uses the program's own loop.
    assert json.loads(call("generate", FOLDER, "--ids", ids, "--max-tokens", "4", "--json").stdout)["tokens"] == unsharded(IDS, 4)


def test_stop_texts():
    reason = missing("onnxruntime_genai", "tokenizers")
    if reason:
        return reason
    from tessera.generation import until_stop
    join = lambda pieces, stop: "".join(piece for piece, _ in until_stop(pieces, stop))
    assert [join(["ab", "c", "d"], stop) for stop in ([], ["bc"], ["x", "d"], ["da"], ["a"], ["cd", "bcd"])] == ["abcd", "a", "abc", "abcd", "", "a"]
    generator = tessera.Generator(FOLDER, devices=2)
    whole = "".join(generator.generate("Hello", max_tokens=8, do_sample=False))
    assert "".join(generator.generate("Hello", max_tokens=8, do_sample=False, stop=whole[3:5])) == whole[:whole.index(whole[3:5])]
    for make in (lambda: generator.generate(IDS, stop="a"), lambda: tessera.generate(FOLDER, IDS, stop=["a"]), lambda: generator.generate("Hello", stop=[""])):
        try:
            make()
            raise AssertionError("no exception")
        except TypeError as error:
            assert "stop" in str(error), error


def test_threads_share_a_generator():
    reason = missing("onnxruntime_genai")
    if reason:
        return reason
    generator, found = tessera.Generator(FOLDER, devices=2), {}
    prompts = [[1, 7 + k] for k in range(3)]
    threads = [threading.Thread(target=lambda k=k: found.update({k: list(generator.generate(prompts[k], max_tokens=12, do_sample=False))})) for k in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert [found.get(k) for k in range(3)] == [unsharded(p, 12) for p in prompts]


def test_chat():
    reason = missing("onnxruntime_genai", "tokenizers")
    if reason:
        return reason
    words = ["chat", FOLDER, "--devices", "2", "--max-tokens", "8"]
    ran = subprocess.run([sys.executable, "-c", PROGRAM, BUILD, *words], input="Hello\n\nHello\n", capture_output=True, text=True, env=ENV, timeout=120)
    first = "".join(tessera.generate(FOLDER, MESSAGES, devices=2, max_tokens=8))
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0 and lines[0] == first and len(lines) >= 2, ran
    broken = TMP.name + "/broken"
    shutil.copytree(FOLDER, broken)
    with open(broken + "/tokenizer.json", "w") as f:
        f.write("{")
    for words, hint in ((["chat", TMP.name], "no genai_config.json"), (["serve", TMP.name], "no genai_config.json"),
                        (["chat", broken], "broken/tokenizer.json is not a tokenizer"), (["chat", FOLDER, "--max-tokens", "0"], "--max-tokens: needs a number from 1 up"),
                        (["chat", FOLDER, "--top-p", "2"], "--top-p: needs a number from 0 to 1"), (["chat", FOLDER, "--devices", "nonsense"], "nonsense"), (["chat", FOLDER, "--threads", "1"], "--devices"),
                        (["chat", ROOT + "/tests/folders/genai_tiny"], "tokenizer.json"), (["serve", ROOT + "/tests/folders/genai_tiny"], "tokenizer.json"),
                        (["serve", FOLDER, "--port", "99999"], "--port")):
        code, said = call_here(*words)
        assert code == (3 if ".json" in hint and "broken" not in hint else 2) and hint in said, (words, code, said)
    ran = call("chat", TMP.name + "/none")
    assert ran.returncode == 3 and "none does not exist" in ran.stderr and "Traceback" not in ran.stderr, ran


def test_chat_goes_on():
    """Ctrl-C must end the answer and not the program. An invalid UTF-8 line or a conversation longer than the context must not end it either."""
    reason = missing("onnxruntime_genai", "tokenizers")
    if reason:
        return reason
    words = ["chat", FOLDER, "--devices", "2", "--max-tokens", "100"]
    chat = subprocess.Popen([sys.executable, "-c", PROGRAM, BUILD, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
    chat.stdin.write(b"Hello\n")
    chat.stdin.flush()
    chat.stdout.read(5)
    chat.send_signal(signal.SIGINT)
    chat.stdout.readline()
    out, err = chat.communicate(b"\xff\n" + b"a" * 300 + b"\nHi\n", timeout=harness.HANG_S)
    assert chat.returncode == 0 and out.strip() and b"not valid UTF-8" in err and b"the model supports 128" in err and b"Traceback" not in err, (chat.returncode, out, err)


class Server:
    """Runs tessera serve on a free port of the loopback address."""

    def __init__(self, folder=FOLDER):
        self.folder = folder

    def __enter__(self):
        words = ["serve", self.folder, "--devices", "2", "--port", "0", "--name", "tiny"]
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, BUILD, *words], stderr=subprocess.PIPE, text=True, env=ENV)
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
        connection.request("POST", "/v1/chat/completions", json.dumps(dict(messages=MESSAGES, max_tokens=count, stream=True)), {"Host": "localhost"})
        return connection.getresponse()

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()

    def ask(self, path, body=None, host="localhost"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json", "Host": host})
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
              json.dumps(dict(messages=MESSAGES, n=2)).encode(), b" " * (5 << 20), json.dumps(dict(messages=MESSAGES, stop="x" * 4000000)).encode(),
              json.dumps(dict(messages=MESSAGES, stop=["x"] * 100000)).encode(), json.dumps(dict(messages=MESSAGES, seed=2**31)).encode())
# Fields that change an answer are refused instead of ignored, each with its name; values that change nothing are accepted.
NOT_SUPPORTED = dict(n=2, logprobs=True, top_logprobs=2, logit_bias={"5": 1}, presence_penalty=1, frequency_penalty=0.5, top_k=3, response_format={"type": "json_object"},
                     tools=[{"type": "function"}], tool_choice="required", audio={"voice": "x"}, stream_options=5)
NEUTRAL = dict(n=1, logprobs=False, logit_bias={}, presence_penalty=0, frequency_penalty=0.0, response_format={"type": "text"}, tools=[], tool_choice="auto", user="me")
STRANGE_MESSAGES = ([{"role": 5, "content": None}], [{"role": "user", "content": "\ud800"}], [{}], [{"role": "user", "content": [{"type": "image"}]}])


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
        assert server.content(temperature=1, top_p=0) == server.content(temperature=1, top_p=0, seed=5) == (want, "length"), "only one token is left"
        assert json.loads(server.ask("/v1/completions", dict(prompt=["Hello"], max_tokens=8))[1])["choices"][0]["text"] == want
        for name, value in NOT_SUPPORTED.items():
            status, text = server.ask("/v1/chat/completions", dict(messages=MESSAGES, max_tokens=2, **{name: value}))
            assert status == 400 and name in json.loads(text)["error"]["message"], (name, status, text)
        assert server.content(**NEUTRAL) == (want, "length")
        status, text = server.ask("/v1/chat/completions", dict(messages=MESSAGES, max_tokens=8, stream=True, stream_options={"include_usage": True}))
        last = json.loads(text.strip().split("\n\n")[-2][len("data: "):])
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == 8, last
        parts = [{"type": "text", "text": text} for text in ("Hello", "you")]
        assert server.content(messages=[{"role": "user", "content": parts[:1]}]) == (want, "length")
        assert server.content(messages=[{"role": "user", "content": parts}]) == server.content(messages=[{"role": "user", "content": "Hello\nyou"}])
        status, text = server.ask("/v1/chat/completions", dict(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]))
        assert status == 400 and "image_url" in json.loads(text)["error"]["message"], (status, text)
        for messages in STRANGE_MESSAGES:
            status, text = server.ask("/v1/chat/completions", dict(messages=messages, max_tokens=2))
            assert status in (200, 400) and json.loads(text), (messages, status, text)
        assert server.ask("/v1/models", host="example.org")[0] == 400, "another Host"
        for seed in [None] + [5] * 5:  # requests with a seed wait for each other
            gone = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            gone.request("POST", "/v1/chat/completions", json.dumps(dict(messages=MESSAGES, max_tokens=40, stream=True, temperature=1, seed=seed)))
            gone.getresponse().read(10)
            gone.close()
        gone = socket.create_connection(("127.0.0.1", server.port))  # in the middle of the body
        gone.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
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
    """A backend that generates until its client disconnects."""

    def __init__(self):
        self.began, self.ended = threading.Event(), threading.Event()

    def tokens(self, request, gone):
        self.began.set()
        try:
            while not gone.wait(0.01):
                yield 1, ""
            raise RuntimeError("gone")
        finally:
            self.ended.set()


class Letters:
    ends = ()

    def encode(self, prompt):
        return [1]

    def decoder(self):
        return lambda token: "a"


def test_serve_ends_answers_of_departed_clients():
    reason = missing("starlette", "uvicorn")
    if reason:
        return reason
    import uvicorn
    from tessera import serve
    server = serve.Server.__new__(serve.Server)
    server.name, server.text, server.context, server.backend = "tiny", Letters(), 1 << 20, Endless()
    listener = serve.listen("127.0.0.1", 0)
    listener.listen()
    web = uvicorn.Server(uvicorn.Config(server.app(["localhost"]), log_level="error"))
    thread = threading.Thread(target=lambda: web.run(sockets=[listener]), daemon=True)
    thread.start()
    for stream in (False, True):
        server.backend = Endless()
        client = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=60)
        client.request("POST", "/v1/chat/completions", json.dumps(dict(messages=MESSAGES, stream=stream)), {"Host": "localhost"})
        assert server.backend.began.wait(30) and not server.backend.ended.is_set()
        client.close()
        assert server.backend.ended.wait(30), "the answer is generated although its client has gone (stream: %s)" % stream
    web.should_exit = True
    thread.join(30)


def test_batches_cancel_requests():
    """If a client disconnects, its request must leave the engine, and other requests must not be affected."""
    reason = missing("onnxruntime_genai", "tokenizers")
    if reason:
        return reason
    from tessera import serve
    generator = tessera.Generator(FOLDER, devices=2)
    for backend in (serve.Batches(generator), serve.OneByOne(generator)):
        request = serve.Request(generator.text.encode(MESSAGES), 100, 0.0, 1.0, None, [])
        want = [token for token, _ in backend.tokens(request._replace(max_tokens=8), threading.Event())]
        gone = threading.Event()
        tokens = backend.tokens(request, gone)
        next(tokens)
        gone.set()
        try:
            count = len(list(tokens))
        except RuntimeError as error:
            assert "closed the connection" in str(error), error
        else:
            raise AssertionError("all %d tokens were generated" % (1 + count))
        for bad in (request._replace(max_tokens=-1), request._replace(ids=[2**40]), request._replace(ids=["text"])):
            try:
                list(backend.tokens(bad, threading.Event()))
            except (RuntimeError, ValueError, OverflowError, TypeError):
                pass  # the next request is not affected
        assert [token for token, _ in backend.tokens(request._replace(max_tokens=8), threading.Event())] == want
        assert not getattr(backend, "_answers", None), backend._answers
        backend.close()


def test_serve_ends_cleanly():
    reason = missing("onnxruntime_genai", "tokenizers", "starlette", "uvicorn")
    if reason:
        return reason
    with Server() as server:
        answer = server.stream(100)
        answer.read(200)
        words = ["serve", FOLDER, "--port", str(server.port)]
        second = subprocess.run([sys.executable, "-c", PROGRAM, BUILD, *words], capture_output=True, text=True, env=ENV, timeout=harness.HANG_S)
        assert second.returncode == 2 and "port %d: Address already in use" % server.port in second.stderr and len(second.stderr.splitlines()) == 1, second
        answer.read()
        code, said = server.end(signal.SIGINT)
        assert code == 0 and "Traceback" not in said and len(said.splitlines()) == 1, (code, said)


def test_serve_settings_that_the_engine_refuses():
    reason = missing("onnxruntime_genai", "tokenizers", "starlette", "uvicorn")
    if reason:
        return reason
    folder = folder_with("refused", min_length=40, num_beams=2)
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
