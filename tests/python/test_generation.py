# SPDX-License-Identifier: Apache-2.0
"""Tests text generation: tessera.Generator and tessera chat, compared with onnxruntime-genai on the unsharded folder.

usage: test_generation.py BUILD"""
import contextlib
import importlib.util
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading

import harness
from built import BUILD, ROOT, folder_with, generation_folder, templated_folder, tessera

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


def test_caches_stay_with_the_ranks():
    """The default for folders whose search has no beams. Several generators take turns; no cache is copied."""
    reason = missing("onnxruntime_genai")
    if reason:
        return reason
    want = [unsharded(ids, 12) for ids in (IDS, [5, 9])]
    for options, copies in ((dict(devices=2), False), (dict(devices=3,
                                                            transport="shm"), False), (dict(devices=2, transport="shm",
                                                                                            caches="application"), True)):
        note = TMP.name + "/note.json"
        generator = tessera.Generator(FOLDER, summary=note, **options)
        answers = [generator.generate(ids, max_tokens=12, do_sample=False) for ids in (IDS, [5, 9])]
        assert [list(row) for row in zip(*zip(*answers))] == want, options
        del answers, generator
        assert (json.load(open(note))["copied_cache_bytes"] > 0) == copies, options
    try:
        tessera.Generator(FOLDER, devices=2, caches="here")
        raise AssertionError("no error")
    except RuntimeError as error:
        assert "application or ranks" in str(error), error


def test_beams():
    """Only the best of the complete beams is the answer, whether the caller or the folder asks for beams."""
    reason = missing("onnxruntime_genai")
    if reason:
        return reason
    ids = [1, 1, 11]
    want = unsharded(ids, 20, num_beams=4)
    assert want != unsharded(ids, 20)
    assert list(tessera.Generator(FOLDER, devices=2).generate(ids, max_tokens=20, num_beams=4)) == want
    assert list(tessera.Generator(folder_with(FOLDER, TMP.name + "/beams", num_beams=4), devices=2).generate(ids, max_tokens=20)) == want


def test_arguments_of_generate():
    reason = missing("onnxruntime_genai")
    if reason:
        return reason
    import numpy
    generator = tessera.Generator(FOLDER)
    for kind, hint, prompt, options in ((ValueError, "max_tokens must be 0 or more", IDS,
                                         dict(max_tokens=-1)), (TypeError, "max_tokens must be a number", IDS, dict(max_tokens="3")),
                                        (TypeError, "use max_tokens", IDS, dict(max_length=9)), (TypeError, "batch_size", IDS,
                                                                                                 dict(batch_size=2)),
                                        (ValueError, "the prompt is empty", [], {}), (ValueError, "has 128 tokens; the model supports 128",
                                                                                      [1] * 128, {}), (TypeError, "a list of ndarray",
                                                                                                       numpy.array([IDS]), {})):
        try:
            list(generator.generate(prompt, **options))
            raise AssertionError("no exception for %s" % hint)
        except kind as error:
            assert hint in str(error), error


TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}U {{ m['content'] }}. {%"
    " endfor %}"
)


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
    for k, search in enumerate((dict(repetition_penalty=1.7), dict(repetition_penalty=0.6), dict(no_repeat_ngram_size=1),
                                dict(no_repeat_ngram_size=2), dict(no_repeat_ngram_size=3, repetition_penalty=1.1, min_length=40))):
        folder = folder_with(FOLDER, TMP.name + "/search-%d" % k, **search)
        want = unsharded(ids, 40, folder)
        ran = subprocess.run([BUILD + "/tessera", "generate", folder, "--ids", "1,1,11", "--max-tokens", "40", "--quiet"],
                             capture_output=True, text=True, env=ENV, timeout=120)
        assert want != greedy and list(map(int, ran.stdout.split())) == want, (search, want, ran)
    ran = subprocess.run([
        BUILD + "/tessera", "generate",
        folder_with(FOLDER, TMP.name + "/search-beams", num_beams=3), "--ids", "1,1,11", "--max-tokens", "40"
    ], capture_output=True, text=True, env=ENV, timeout=120)
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
    assert call("generate", FOLDER, "--prompt", "Hello", "--max-tokens", "8", "--stop", "never", "--stop",
                text[3:5]).stdout == text[:text.index(text[3:5])] + "\n"
    for words, hint in ((["--ids", "1,x"], "--ids needs numbers"), ([], "no prompt")):  # reported by the program
        ran = call("generate", FOLDER, *words)
        assert ran.returncode == 2 and hint in ran.stderr and "Traceback" not in ran.stderr, ran
    for words, hint in ((["--ids", ids, "--devices",
                          "nonsense"], "nonsense"), (["--ids",
                                                      "1,999999"], "999999 is not a token id"), (["--prompt", "Hello", "--stop",
                                                                                                  ""], "stop must be")):
        code, said = call_here("generate", FOLDER, *words)
        assert code == 2 and hint in said, (words, code, said)
    # The exit codes are those of the program.
    for words, code in ((["generate", TMP.name + "/none", "--prompt", "Hello"], 3), (["chat", FOLDER, "--devices", "2", "--memory",
                                                                                      "1kB"], 4)):
        assert call_here(*words)[0] == code, (words, code)
    for out, hint in ((os.open("/dev/full", os.O_WRONLY), "No space left"), (closed_pipe(), "Broken pipe")):
        ran = subprocess.run([sys.executable, "-c", PROGRAM, BUILD, "generate", FOLDER, "--ids", ids], stdout=out, stderr=subprocess.PIPE,
                             text=True, env=ENV, timeout=120)
        os.close(out)
        assert ran.returncode == 8 and hint in ran.stderr and len(ran.stderr.splitlines()) == 1, ran
    latin = subprocess.run([sys.executable, "-c", "from tessera import chat; chat.write('\u6f22')"], capture_output=True,
                           env=dict(ENV, PYTHONIOENCODING="latin-1"))
    assert latin.stdout == b"?", latin
    # A package that is installed but cannot be loaded is not reported as missing.
    os.mkdir(TMP.name + "/stub")
    with open(TMP.name + "/stub/onnxruntime_genai.py", "w") as f:
        f.write("raise ImportError('libnone.so: cannot open')")
    stub = dict(ENV, PYTHONPATH=TMP.name + "/stub:" + ENV["PYTHONPATH"])
    ran = subprocess.run([sys.executable, "-c", PROGRAM, BUILD, "generate", FOLDER, "--ids", ids], capture_output=True, text=True, env=stub,
                         timeout=120)
    assert ran.returncode == 7 and ran.stderr == "tessera: libnone.so: cannot open\n", ran
    # --json uses the program's own loop.
    assert json.loads(call("generate", FOLDER, "--ids", ids, "--max-tokens", "4", "--json").stdout)["tokens"] == unsharded(IDS, 4)


class Counted(str):
    """A stop string that counts how often it is read."""
    read = 0

    def startswith(self, *words):
        self.read += 1
        return super().startswith(*words)

    def __getitem__(self, at):
        self.read += 1
        return super().__getitem__(at)


def test_long_stop_texts():
    """A text that may be the beginning of a stop string is held back, and is not compared again at each of its lengths."""
    if missing("onnxruntime_genai", "tokenizers"):
        return missing("onnxruntime_genai", "tokenizers")
    from tessera.generation import until_stop
    pieces = lambda text: [text[i:i + 3] for i in range(0, len(text), 3)]
    for text in ("abab" * 3 + "c", "aab" * 4, "abcabcabd", "aaaa"):
        for stop in ("abababc", "aabb", "abcabd", "b", "aaaaab", "abcabcabd"):
            assert "".join(until_stop(pieces(text), [stop])) == text.partition(stop)[0], (text, stop)
    stop = Counted("a" * 999 + "b")
    assert "".join(until_stop(["a"] * 2000, [stop])) == "a" * 2000 and stop.read <= 3 * 2000, stop.read


def test_time_of_a_token_does_not_grow():
    """Tokens become text as if all were decoded together, but only the last ones are decoded."""
    if missing("tokenizers"):
        return missing("tokenizers")
    from tokenizers import Tokenizer, decoders, models
    from tessera.generation import Pieces

    class Watched:
        most = 0

        def __init__(self, decoder):
            words = ["\u2581Hello", "\u2581you", "s", "\u2581", ","] + ["<0x%02X>" % b for b in range(256)]
            self.tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], byte_fallback=True))
            self.tokenizer.decoder = decoder

        def decode(self, ids):
            self.most = max(self.most, len(ids))
            return self.tokenizer.decode(ids)

    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    emoji, broken = [5 + b for b in "\U0001f600\u00e9".encode()], [5 + 0xff] * 40
    for ids in ([0, 1, 2, 4, 3, 1], [0, *emoji, 2, *emoji], [3, 0] * 200, [*emoji] * 50, [0, *broken, 1]):
        watched = Watched(decoders.Sequence(steps))
        decode = Pieces(watched).decode
        text = "".join(map(decode, ids))
        assert text == watched.tokenizer.decode(ids) or broken[0] in ids and text.endswith(" you"), (ids, text)
        watched.most = 0
        for token in ids * 3:
            decode(token)
        assert watched.most <= 40, watched.most


def test_stop_texts():
    reason = missing("onnxruntime_genai", "tokenizers")
    if reason:
        return reason
    from tessera.generation import until_stop
    join = lambda pieces, stop: "".join(until_stop(pieces, stop))
    assert [join(["ab", "c", "d"], stop)
            for stop in ([], ["bc"], ["x", "d"], ["da"], ["a"], ["cd", "bcd"])] == ["abcd", "a", "abc", "abcd", "", "a"]
    generator = tessera.Generator(FOLDER, devices=2)
    whole = "".join(generator.generate("Hello", max_tokens=8, do_sample=False))
    assert "".join(generator.generate("Hello", max_tokens=8, do_sample=False, stop=whole[3:5])) == whole[:whole.index(whole[3:5])]
    for make in (lambda: generator.generate(IDS, stop="a"), lambda: tessera.generate(FOLDER, IDS, stop=["a"]),
                 lambda: generator.generate("Hello", stop=[""])):
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
    threads = [
        threading.Thread(target=lambda k=k: found.update({k: list(generator.generate(prompts[k], max_tokens=12, do_sample=False))}))
        for k in range(3)
    ]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert [found.get(k) for k in range(3)] == [unsharded(p, 12) for p in prompts]


def test_chat():
    reason = missing("onnxruntime_genai", "tokenizers")
    if reason:
        return reason
    words = ["chat", FOLDER, "--devices", "2", "--max-tokens", "8"]
    ran = subprocess.run([sys.executable, "-c", PROGRAM, BUILD, *words], input="Hello\n\nHello\n", capture_output=True, text=True, env=ENV,
                         timeout=120)
    first = "".join(tessera.generate(FOLDER, MESSAGES, devices=2, max_tokens=8))
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0 and lines[0] == first and len(lines) >= 2, ran
    broken = TMP.name + "/broken"
    shutil.copytree(FOLDER, broken)
    with open(broken + "/tokenizer.json", "w") as f:
        f.write("{")
    for words, hint in ((["chat", TMP.name], "no genai_config.json"), (["serve", TMP.name], "no genai_config.json"),
                        (["chat", broken], "broken/tokenizer.json is not a tokenizer"), (["chat", FOLDER, "--max-tokens",
                                                                                          "0"], "--max-tokens: needs a number from 1 up"),
                        (["chat", FOLDER, "--top-p",
                          "2"], "--top-p: needs a number from 0 to 1"), (["chat", FOLDER, "--devices", "nonsense"], "nonsense"),
                        (["chat", FOLDER, "--threads", "1"], "--devices"), (["chat", ROOT + "/tests/folders/genai_tiny"], "tokenizer.json"),
                        (["serve", ROOT + "/tests/folders/genai_tiny"], "tokenizer.json"), (["serve", FOLDER, "--port",
                                                                                             "99999"], "--port")):
        code, said = call_here(*words)
        assert code == (3 if ".json" in hint and "broken" not in hint else 2) and hint in said, (words, code, said)
    ran = call("chat", TMP.name + "/none")
    assert ran.returncode == 3 and "none does not exist" in ran.stderr and "Traceback" not in ran.stderr, ran


def steering_folder(path):
    """A generation folder whose tokens set the title of a terminal, move its cursor, and use C1 controls."""
    generation_folder(path)
    with open(path + "/tokenizer.json") as f:
        tokenizer = json.load(f)
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {c if c == "?" else "\x1b]0;%s\x07\r\x9b2J\t\n\u200d" % c: i for c, i in vocabulary.items()}
    with open(path + "/tokenizer.json", "w") as f:
        json.dump(tokenizer, f)
    return path


def in_terminal(*words, typed=b""):
    """Runs a command in a pseudo-terminal and returns what it prints there."""
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[1] &= ~termios.OPOST  # no "\r" before a newline
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    with subprocess.Popen([sys.executable, "-c", PROGRAM, BUILD, *words], stdin=subprocess.PIPE, stdout=theirs, stderr=theirs,
                          env=ENV) as process:
        os.close(theirs)
        process.stdin.write(typed)
        process.stdin.close()
        text = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while True:
                text += os.read(ours, 4096)
    os.close(ours)
    return text.decode()


def test_text_for_terminals():
    """A terminal does not obey a model: control characters are escaped, except newline and tab. A pipe gets them as they are."""
    reason = missing("onnxruntime_genai", "tokenizers")
    if reason:
        return reason
    folder = steering_folder(TMP.name + "/steers")
    for words, typed in ((["generate", folder, "--prompt", "?", "--max-tokens", "4"], b""), (["chat", folder, "--max-tokens",
                                                                                              "4"], b"?\n")):
        text = in_terminal(*words, typed=typed)
        controls = set(re.findall("[\x00-\x1f\x7f-\x9f]", text))
        assert "\\x1B]0;" in text and "\\x9B2J\t\n\u200d" in text and controls <= {"\t", "\n"}, (words, text)
        piped = subprocess.run([sys.executable, "-c", PROGRAM, BUILD, *words], input=typed, capture_output=True, env=ENV,
                               timeout=harness.HANG_S)
        assert b"\x1b]0;" in piped.stdout and b"\\x1B" not in piped.stdout, (words, piped)
    template = templated_folder(TMP.name + "/raises", "{{ raise_exception('\x1b]0;A\x07') }}")
    text = in_terminal("chat", template, typed=b"Hello\n")
    assert "\x1b" not in text and "\\x1B]0;A" in text, text


def test_chat_goes_on():
    """Ctrl-C must end the answer and not the program. An invalid UTF-8 line or a conversation longer than the context must not end it
    either."""
    reason = missing("onnxruntime_genai", "tokenizers")
    if reason:
        return reason
    words = ["chat", FOLDER, "--devices", "2", "--max-tokens", "100"]
    chat = subprocess.Popen([sys.executable, "-c", PROGRAM, BUILD, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=ENV)
    chat.stdin.write(b"Hello\n")
    chat.stdin.flush()
    chat.stdout.read(5)
    chat.send_signal(signal.SIGINT)
    chat.stdout.readline()
    out, err = chat.communicate(b"\xff\n" + b"a" * 300 + b"\nHi\n", timeout=harness.HANG_S)
    assert chat.returncode == 0 and out.strip(
    ) and b"not valid UTF-8" in err and b"the model supports 128" in err and b"Traceback" not in err, (chat.returncode, out, err)


generation_folder(FOLDER)
harness.run_functions(globals())
harness.finish()
