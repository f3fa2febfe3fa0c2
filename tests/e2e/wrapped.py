# SPDX-License-Identifier: Apache-2.0
"""A wrapped partition in Python's own onnxruntime and in Java's: right, also after it was moved; states stay inside; errors carry
our words; what it cannot be.

usage: wrapped.py TESSERA PLUGIN"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

import harness

TESSERA, PLUGIN = map(os.path.abspath, sys.argv[1:3])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODELS = os.path.join(ROOT, "tests/models")
DECODER = os.path.join(ROOT, "tests/folders/genai_tiny/model.onnx")
PROMPT = [1, 7, 11]
case = harness.check


def tessera(*words):
    code, _, err = harness.call(TESSERA, *words)
    return code, err


def session(folder, plugin=PLUGIN):
    options = ort.SessionOptions()
    options.register_custom_ops_library(plugin)
    options.log_severity_level = 4
    return ort.InferenceSession(folder + "/model.onnx", options, providers=["CPUExecutionProvider"])


def recorded(kind, values):
    return {v.name: onnx.numpy_helper.to_array(onnx.load_tensor("%s/bert_tiny/test_data_set_0/%s_%d.pb" % (MODELS, kind, i))) for i, v in enumerate(values)}


def near(got, want):
    return np.abs(got - want).max() <= 5e-5 * np.abs(want).max()


def save(d, name, graph):
    path = os.path.join(d, name)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


class Text:
    """Tokens of a session, one step at a time; feeds present as past, be it a cache or a handle."""

    def __init__(self, session):
        self.session, self.total, self.tokens = session, 0, []
        self.caches = {i.name: np.zeros((1, 2, 0, 16), "f4") for i in session.get_inputs() if i.name.startswith("past")}
        self.give(PROMPT)

    def give(self, ids):
        self.total += len(ids)
        self.feeds = {"input_ids": np.array([ids], "i8"), "attention_mask": np.ones((1, self.total), "i8")}

    def step(self):
        outputs = dict(zip((o.name for o in self.session.get_outputs()), self.session.run(None, {**self.feeds, **self.caches})))
        self.tokens.append(int(outputs["logits"][0, -1].argmax()))
        self.caches = {name: outputs[name.replace("past_key_values", "present")] for name in self.caches}
        self.give(self.tokens[-1:])

    def steps(self, n):
        for _ in range(n):
            self.step()
        return self.tokens


def error_of(call):
    try:
        call()
        return ""
    except Exception as error:
        return str(error)


def cut_decoder(d, out="decoder", *more):
    """The decoder with its heads on two devices, wrapped, its caches kept as states."""
    caches = ["present.%d.%s" % (k, which) for k in range(2) for which in ("key", "value")]
    rc, err = tessera("annotate", DECODER, "--config", "c:2", *[w for c in caches for w in ("--tile", c + "={1,2,1,1}")], "-o", d + "/cut.onnx")
    assert rc == 0, err
    return tessera("partition", d + "/cut.onnx", "--state", "past_key_values.*=present.*", "--layout", "wrapped", "-o", d + "/" + out, *more)


def descendants():
    """Processes that this one has started, and theirs: {number: name}."""
    parents, names = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid) as f:
                name, rest = f.read().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        parents[int(pid)], names[int(pid)] = int(rest.split()[1]), name
    found = {os.getpid()}
    for _ in range(4):
        found |= {pid for pid, parent in parents.items() if parent in found}
    return {pid: names[pid] for pid in found if "tessera-ranks" in names[pid]}


def running(pid):
    """Not one that has ended and that its new parent has not asked for yet."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ended(pids):
    """As gone, of processes whose parent is no more: within the five seconds that a dead rank is given."""
    for _ in range(250):
        if not any(running(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def gone(pids):
    """None of them is left, within two seconds."""
    for _ in range(100):
        if not set(pids) & set(descendants()):
            return True
        time.sleep(0.02)
    return False


def processes(d, want):
    """Ranks as processes of their own: a program that has two children, for each session."""
    rc, err = cut_decoder(d, "apart", "--transport", "shm")
    case("processes: is written", rc == 0, err)
    s = session(d + "/apart")
    text = Text(s)
    case("processes: states stay inside", text.steps(8) == want and all(c.size == 0 for c in text.caches.values()), text.tokens)
    first = descendants()
    case("processes: one for each rank, and their parent", len(first) == 3, first)
    other = Text(session(d + "/apart"))
    case("processes: a second session has its own", other.steps(3) == want[:3] and len(descendants()) == 6 and text.steps(1)[:8] == want, descendants())
    going, text.caches = text.caches, {name: np.zeros((1, 3, 0, 16), "f4") for name in text.caches}
    case("processes: a cache that does not fit is refused", "[input-mismatch]" in error_of(text.step), error_of(text.step))
    text.caches = going
    case("processes: and ends nothing", text.steps(1) == Text(s).steps(10), text.tokens)
    own = set(descendants()) - set(first)
    del other
    case("processes: end with their session", gone(own) and set(descendants()) == set(first), descendants())
    text = Text(s)
    text.steps(2)
    os.kill(max(first), signal.SIGKILL)
    error = error_of(text.step)
    case("processes: a rank that died is named", "Tessera:" in error and "rank 1" in error and "signal 9" in error, error)
    case("processes: nobody is left of them", gone(first), descendants())
    case("processes: its state is no more", "[state-gone]" in error_of(text.step), error_of(text.step))
    case("processes: another run starts them anew", Text(s).steps(8) == want)
    os.kill(min(descendants()), signal.SIGKILL)
    error = error_of(lambda: Text(s).step())
    case("processes: their parent that died is told", "signal 9" in error and "[rank-failed]" in error, error)
    case("processes: anew after that, too", Text(s).steps(2) == want[:2])
    del s, text
    case("processes: none is left at the end", gone(descendants()), descendants())
    host = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), TESSERA, PLUGIN, d + "/apart"], stdout=subprocess.PIPE, text=True)
    ready, theirs = host.stdout.readline(), descendants()
    host.kill()
    host.wait()
    case("processes: end with a host that is killed", ready == "ready\n" and len(theirs) == 3 and ended(theirs), theirs)
    with tempfile.TemporaryDirectory() as alone:
        shutil.copy(PLUGIN, alone)
        error = error_of(lambda: Text(session(d + "/apart", alone + "/" + os.path.basename(PLUGIN))).step())
        case("processes: says that the program is missing", "[rank-start]" in error and "tessera-ranks" in error, error)
    elsewhere(d, want)
    os.remove(d + "/apart/rank1.onnx")
    error = error_of(lambda: Text(session(d + "/apart")).step())
    case("processes: says what is missing", "rank1.onnx" in error, error)
    rc, err = tessera("partition", d + "/cut.onnx", "--transport", "shm", "-o", d + "/plain")
    case("a transport is of wrapped models alone", rc == 5 and "[partition-layout]" in err, err)
    rc, err = cut_decoder(d, "far", "--transport", "mpi")
    case("and is one that they know", rc == 5 and "[partition-layout]" in err and not os.path.exists(d + "/far"), err)


def elsewhere(d, want):
    """The plug-in was loaded by a name that means another file now: what lies there is not started."""
    home, hostile, was = d + "/home", d + "/hostile", os.getcwd()
    for folder in (home, hostile):
        os.makedirs(folder + "/plug")
    for name in (os.path.basename(PLUGIN), "tessera-ranks"):
        shutil.copy(os.path.join(os.path.dirname(PLUGIN), name), home + "/plug")
    with open(hostile + "/plug/tessera-ranks", "w") as out:
        out.write("#!/bin/sh\ntouch %s/started\n" % hostile)
    os.chmod(hostile + "/plug/tessera-ranks", 0o755)
    try:
        os.chdir(home)
        s = session(d + "/apart", "plug/" + os.path.basename(PLUGIN))
        os.chdir(hostile)
        text = Text(s)
        tokens = error_of(lambda: text.steps(2)) or text.tokens
    finally:
        os.chdir(was)
    case("processes: the working directory is searched for nothing", tokens == want[:2] and not os.path.exists(hostile + "/started"), tokens)


def states(d):
    rc, err = cut_decoder(d)
    case("states are taken", rc == 0, err)
    want = Text(ort.InferenceSession(DECODER)).steps(8)
    s = session(d + "/decoder")
    text = Text(s)
    case("states stay inside", text.steps(8) == want and all(c.size == 0 for c in text.caches.values()), text.tokens)
    case("a cache begins anew", Text(s).steps(8) == want)
    texts = [Text(session(d + "/decoder")) for _ in range(3)]
    for k in range(8):
        for text in texts[: 1 + k % 3]:
            text.step()
    case("each session has its own", all(t.tokens == want[: len(t.tokens)] for t in texts) and len(texts[1].tokens) == 5, [t.tokens for t in texts])
    text = texts[0]
    old, going = dict(text.caches), None
    text.step()
    going, text.caches = text.caches, old
    case("a state of the past is refused", "[state-gone]" in error_of(text.step) and "run 8" in error_of(text.step), error_of(text.step))
    text.caches = {name: np.zeros((1, 3, 0, 16), "f4") for name in old}
    case("a cache that does not fit is refused", "[input-mismatch]" in error_of(text.step), error_of(text.step))
    text.caches = going
    tokens = text.steps(1)
    text = Text(s)
    case("neither ends anything", tokens == text.steps(10), tokens)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    free = save(d, "free.onnx", helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]))
    rc, err = tessera("partition", free, "--devices", 2, "--state", "x=y", "--layout", "wrapped", "-o", d + "/free")
    case("refuses states of unknown rank", rc == 5 and "partition-layout" in err and not os.path.exists(d + "/free"), "exit %d %s" % (rc, err))
    return want


def java(d, want):
    """examples/Wrapped.java: two sessions in turns, then a handle of the past."""
    jar = os.path.join(ROOT, ".deps/onnxruntime.jar")
    if not shutil.which("javac") or not os.path.exists(jar):
        harness.skip("from Java", "no JDK, or no .deps/onnxruntime.jar (tools/setup)")
        return
    words = ["java", "-cp", jar, ROOT + "/examples/Wrapped.java", d + "/decoder/model.onnx", PLUGIN, "2", "16", ",".join(map(str, PROMPT))]
    p = subprocess.run(words, capture_output=True, text=True, timeout=200)
    case("from Java", p.returncode == 0 and "one %s\n" % want in p.stdout and "other %s\n" % want[:4] in p.stdout, p.stdout + p.stderr)
    case("Java's exception has our words", "[state-gone]" in p.stdout and "run 8 of this session" in p.stdout, p.stdout + p.stderr)


if len(sys.argv) > 3:  # a host that is to be killed (processes)
    text = Text(session(sys.argv[3]))
    text.step()
    print("ready", flush=True)
    time.sleep(60)

with tempfile.TemporaryDirectory(prefix="tessera-wrapped-") as d:
    tokens = states(d)
    java(d, tokens)
    processes(d, tokens)
    bert = MODELS + "/bert_tiny/model.onnx"
    proto = onnx.load(bert)
    feeds, want = recorded("input", proto.graph.input), recorded("output", proto.graph.output)
    rc, err = tessera("partition", bert, "--devices", 3, "--layout", "wrapped", "-o", d + "/a")
    case("is written", rc == 0 and len(onnx.load(d + "/a/model.onnx", load_external_data=False).graph.node) == 1, err)
    case("computes what the whole one does", near(session(d + "/a").run(None, feeds)[0], want["logits"]))
    shutil.move(d + "/a", d + "/b")
    s = session(d + "/b")
    case("may be moved", near(s.run(None, feeds)[0], want["logits"]))
    written = open(d + "/b/model.onnx", "rb").read()
    case("has no path of this machine in it", d.encode() not in written and os.getcwd().encode() not in written)
    for folder, mark in ((d + "/b", "kept"), (d + "/b", "inside"), ("../b", "kept"), ("", "inside")):
        m, lone = onnx.load(d + "/b/model.onnx", load_external_data=False), tempfile.mkdtemp(dir=d)
        if folder:
            m.graph.node[0].attribute.append(helper.make_attribute("folder", folder))
        if mark == "inside":  # nothing of the partition is beside the model
            m.graph.initializer[0].CopyFrom(helper.make_tensor(m.graph.initializer[0].name, TensorProto.UINT8, list(m.graph.initializer[0].dims), b"0" * m.graph.initializer[0].dims[0], raw=True))
        else:
            shutil.copy(d + "/b/wrapped.id", lone)
        onnx.save(m, lone + "/model.onnx")
        why = error_of(lambda: session(lone).run(None, feeds))
        case("opens no folder elsewhere: %r, mark %s" % (folder and folder[0], mark), "Tessera:" in why and ("absolute path" in why if folder else "is not known" in why), why)
    results = []
    threads = [threading.Thread(target=lambda: results.append(s.run(None, feeds)[0])) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    case("may be run by several threads", len(results) == 3 and all(np.array_equal(r, results[0]) for r in results))
    os.remove(d + "/b/rank1.onnx")
    try:
        session(d + "/b").run(None, feeds)
        case("says what is missing", False, "no exception")
    except Exception as error:
        case("says what is missing", "rank1.onnx" in str(error), error)
    case("goes on where it was open", near(s.run(None, feeds)[0], want["logits"]))

    x, y = helper.make_tensor_value_info("x", TensorProto.STRING, [2]), helper.make_tensor_value_info("y", TensorProto.STRING, [2])
    texts = save(d, "texts.onnx", helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y]))
    rc, err = tessera("partition", texts, "--devices", 2, "--layout", "wrapped", "-o", d + "/texts")
    given = np.array(["a", "\u00e9\u00e8"], object)
    case("texts", rc == 0 and session(d + "/texts").run(None, {"x": given})[0].tolist() == given.tolist(), err)
    through = save(d, "through.onnx", helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [x, y]))
    rc, err = tessera("partition", through, "--devices", 2, "--layout", "wrapped", "-o", d + "/through")
    case("an input that is an output too", rc == 0 and all(v.tolist() == given.tolist() for v in session(d + "/through").run(None, {"x": given})), err)
    twice = save(d, "twice.onnx", helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y, x, y, x]))
    rc, err = tessera("partition", twice, "--devices", 2, "--layout", "wrapped", "-o", d + "/twice")
    case("outputs that are given twice", rc == 0 and [v.tolist() for v in session(d + "/twice").run(None, {"x": given})] == [given.tolist()] * 4, err)
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    lists = save(d, "lists.onnx", helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [helper.make_value_info("x", kind)], [helper.make_value_info("y", kind)]))
    rc, err = tessera("partition", lists, "--devices", 2, "--layout", "wrapped", "-o", d + "/lists")
    case("refuses sequences, and writes nothing", rc == 5 and "partition-layout" in err and not os.path.exists(d + "/lists"), "exit %d %s" % (rc, err))
    rc, err = tessera("partition", bert, "--devices", 2, "--layout", "folded", "-o", d + "/folded")
    case("refuses other layouts", rc == 5 and "partition-layout" in err and not os.path.exists(d + "/folded"), "exit %d %s" % (rc, err))
harness.finish()
