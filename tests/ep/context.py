# SPDX-License-Identifier: Apache-2.0
"""Tests EPContext models: written by the provider and by the command, moved, loaded from memory, with states, and those that must be
refused.

usage: context.py TESSERA LIBRARY"""
import hashlib
import json
import os
import shutil
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

import harness
import host


def enable(path):
    return {"ep.context_enable": "1", "ep.context_file_path": path, "ep.context_embed_mode": "0"}


def right(model, feeds=None, **options):
    feeds = feeds or host.feeds(host.BERT)
    return host.near(
        host.session(model, {"session.disable_cpu_ep_fallback": "1"}, **options).run(None, feeds),
        host.plain(host.BERT).run(None, feeds))


def written(folder):
    os.makedirs(folder)
    path = folder + "/bert_ctx.onnx"
    session = host.session(host.BERT, enable(path), devices=2, dims=host.BERT_DIMS)
    feeds = host.feeds(host.BERT)
    host.near(session.run(None, feeds), host.plain(host.BERT).run(None, feeds))  # the session that writes also runs
    return path


def a_session_writes_one(folder):
    path = written(folder + "/a")
    node, = onnx.load(path).graph.node
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert (node.op_type, node.domain) == ("EPContext", "com.microsoft"), node
    assert attributes["ep_cache_context"] == b"bert_ctx.parts/manifest.json" and attributes["source"] == host.NAME.encode(), attributes
    assert sorted(os.listdir(folder + "/a")) == ["bert_ctx.onnx", "bert_ctx.parts"], os.listdir(folder + "/a")
    assert os.path.getsize(path) < 5000, os.path.getsize(path)
    right(path)


def it_can_be_moved(folder):
    path = written(folder + "/a")
    shutil.move(folder + "/a", folder + "/b")
    assert folder.encode() not in open(folder + "/b/bert_ctx.onnx", "rb").read()
    right(folder + "/b/bert_ctx.onnx")
    right(folder + "/b/bert_ctx.onnx", host.feeds(host.BERT, batch=5, seq=7), devices=2)
    right(folder + "/b/bert_ctx.onnx", transport="shm")


def from_memory_it_needs_a_path(folder):
    model = open(written(folder + "/a"), "rb").read()
    host.fails(lambda: host.session(model), "ep-context", "ep.context_file_path")
    feeds = host.feeds(host.BERT)
    got = host.session(model, {"ep.context_file_path": folder + "/a/bert_ctx.onnx"}).run(None, feeds)
    host.near(got, host.plain(host.BERT).run(None, feeds))


def the_compile_interface_writes_one(folder):
    if not hasattr(ort, "ModelCompiler"):
        return "this onnxruntime has no ModelCompiler"
    ort.ModelCompiler(host.options(devices=2, dims=host.BERT_DIMS), host.BERT).compile_to_file(folder + "/out.onnx")
    right(folder + "/out.onnx")


def the_command_writes_one(folder):
    for n in (2, 3):
        out = "%s/out%d" % (folder, n)
        code, _, err = harness.call(host.TESSERA, "partition", host.BERT, "--devices", str(n), "--dim", "batch=2", "--dim", "seq=9",
                                    "--layout", "context", "-o", out)
        assert code == 0, err
        model = onnx.load(out + "/model.onnx")
        assert [n.op_type for n in model.graph.node] == ["EPContext"], model.graph.node
        assert [i.name for i in model.graph.input] == [i.name for i in onnx.load(host.BERT).graph.input]
        right(out + "/model.onnx")
    code, _, err = harness.call(host.TESSERA, "run", folder + "/out2", "--inputs", "random:1")
    assert code == 0, err


def the_summary_counts_nodes(folder):
    first, later = folder + "/first.json", folder + "/later.json"
    host.session(host.BERT, enable(folder + "/bert_ctx.onnx"), devices=2, dims=host.BERT_DIMS, summary=first)
    host.session(folder + "/bert_ctx.onnx", summary=later)
    first, later = (json.load(open(f)) for f in (first, later))
    assert first["nodes"] > first["cut_nodes"] > 0, first
    assert [later[k] for k in ("devices", "nodes", "cut_nodes")] == [first[k] for k in ("devices", "nodes", "cut_nodes")], (first, later)


# ---- states ----------------------------------------------------------------------------------------

DECODER = host.ROOT + "/tests/folders/genai_tiny/model.onnx"
PROMPT = [1, 7, 11]


class Text:
    """Greedy generation that passes every `present` to the next run as `past`."""

    def __init__(self, session, heads=2):
        self.session, self.total, self.tokens = session, 0, []
        self.caches = {i.name: np.zeros((1, heads, 0, 16), np.float32) for i in session.get_inputs() if i.name.startswith("past")}
        self.give(PROMPT)

    def give(self, ids):
        self.total += len(ids)
        self.feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, self.total), np.int64)}

    def step(self):
        outputs = dict(zip((o.name for o in self.session.get_outputs()), self.session.run(None, {**self.feeds, **self.caches})))
        self.tokens.append(int(outputs["logits"][0, -1].argmax()))
        self.caches = {name: outputs[name.replace("past_key_values", "present")] for name in self.caches}
        self.give(self.tokens[-1:])

    def steps(self, n):
        for _ in range(n):
            self.step()
        return self.tokens


def with_states(folder, *more):
    """Writes the decoder as an EPContext model whose caches stay with the ranks."""
    code, _, err = harness.call(host.TESSERA, "partition", DECODER, "--devices", "2", "--state", "past_key_values.*=present.*",
                                "--layout", "context", "-o", folder, *more)
    assert code == 0, err
    return folder + "/model.onnx"


def states_stay_with_the_ranks(folder):
    model, want = with_states(folder + "/states"), Text(host.plain(DECODER)).steps(8)
    session = host.session(model)
    text = Text(session)
    assert text.steps(8) == want and all(c.size == 0 for c in text.caches.values()), text.tokens
    assert Text(session).steps(8) == want  # empty caches start a new sequence
    texts = [Text(host.session(model)) for _ in range(3)]  # each session has its own states
    for k in range(8):
        for text in texts[: 1 + k % 3]:
            text.step()
    assert all(t.tokens == want[: len(t.tokens)] for t in texts) and len(texts[1].tokens) == 5, [t.tokens for t in texts]


def states_in_processes(folder):
    text = Text(host.session(with_states(folder + "/states", "--transport", "shm")))
    assert text.steps(6) == Text(host.plain(DECODER)).steps(6) and all(c.size == 0 for c in text.caches.values()), text.tokens
    last, text.caches = text.caches, Text(text.session, heads=3).caches
    host.fails(text.step, "input-mismatch", "dimension 1 is 3")
    text.caches = last
    assert text.steps(2) == Text(host.plain(DECODER)).steps(8)  # a refused input does not end the sequence


def expired_states_are_refused(folder):
    model = with_states(folder + "/states")
    text = Text(host.session(model))
    text.steps(2)
    old = dict(text.caches)
    text.step()
    last, text.caches = text.caches, old
    host.fails(text.step, "state-gone", "run 2")
    text.caches = {name: np.zeros((1, 3, 0, 16), np.float32) for name in old}
    host.fails(text.step, "input-mismatch", "dimension 1 is 3")
    text.caches = last
    assert text.steps(1) == Text(host.plain(DECODER)).steps(4)
    other = Text(host.session(model))
    other.caches = text.caches  # handles of another session
    host.fails(other.step, "state-gone")


def states_in_metadata(folder):
    """The provider ignores states in the model's metadata: the session returns all outputs."""
    model = onnx.load(DECODER)
    helper.set_model_props(model, {"ai.tessera.state": "past_key_values.*=present.*"})
    onnx.save(model, folder + "/model.onnx")
    want = Text(host.plain(DECODER)).steps(4)
    text = Text(host.session(folder + "/model.onnx", devices=2))
    assert text.steps(4) == want and all(c.size for c in text.caches.values()), text.tokens
    Text(host.session(folder + "/model.onnx", enable(folder + "/ctx.onnx"), devices=2))
    assert Text(host.session(folder + "/ctx.onnx")).steps(4) == want


def states_need_a_rank(folder):
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy")
    model = host.save(folder + "/free.onnx", helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y]))
    code, _, err = harness.call(host.TESSERA, "partition", model, "--devices", "2", "--state", "x=y", "--layout", "context", "-o",
                                folder + "/free")
    assert code == 5 and "partition-layout" in err and "known rank" in err and not os.path.exists(folder + "/free"), (code, err)


def what_is_refused(folder):
    path = written(folder + "/a")
    shutil.copytree(folder + "/a/bert_ctx.parts", folder + "/elsewhere")
    os.symlink(folder + "/elsewhere", folder + "/a/out")
    os.symlink("bert_ctx.parts", folder + "/a/within")
    for named, words in (("../a/bert_ctx.parts/manifest.json", "'..'"), (folder + "/a/bert_ctx.parts/manifest.json",
                                                                         "absolute"), ("", "empty"), ("bert_ctx.parts/../../x", "'..'"),
                         ("absent/manifest.json", "absent"), ("out/manifest.json", "leads outside"), ("within/manifest.json", None)):
        model = onnx.load(path)
        for attribute in model.graph.node[0].attribute:
            if attribute.name == "ep_cache_context":
                attribute.s = named.encode()
        onnx.save(model, folder + "/a/wrong.onnx")
        if words:
            host.fails(lambda: host.session(folder + "/a/wrong.onnx"), words)
        else:
            host.session(folder + "/a/wrong.onnx")
    os.remove(folder + "/a/bert_ctx.parts/rank1.onnx")
    host.fails(lambda: host.session(path), "rank1.onnx")
    host.fails(lambda: host.plain(path), host.NAME)  # a session without the provider must fail


def links_that_lead_out(folder):
    """No file of a partition is read through a link out of its folder, also if the folder or its parent is a link, and in processes."""
    made, outside = written(folder + "/a"), folder + "/outside"
    shutil.copytree(folder + "/a/bert_ctx.parts", outside)
    files = sorted(os.listdir(outside))
    assert {"manifest.json", "rank0.onnx", "rank1.onnx", "common.data"} <= set(files), files
    for k, name in enumerate(files):  # each file of the partition, as a link of any kind
        for kind, target in (("absolute", outside + "/" + name), ("relative", "../../outside/" + name), ("two", "hop")):
            here = "%s/%d%s" % (folder, k, kind)
            shutil.copytree(folder + "/a", here)
            os.remove(here + "/bert_ctx.parts/" + name)
            os.symlink(target, here + "/bert_ctx.parts/" + name)
            if kind == "two":
                os.symlink("../../outside/" + name, here + "/bert_ctx.parts/hop")
            for transport in ("threads", "shm")[:1 + (name == "rank1.onnx")]:
                host.fails(lambda: host.session(here + "/bert_ctx.onnx", transport=transport), "leads outside")
    os.makedirs(folder + "/up/x")
    shutil.copy(made, folder + "/up/x")
    os.symlink("../../a/bert_ctx.parts", folder + "/up/x/bert_ctx.parts")
    host.fails(lambda: host.session(folder + "/up/x/bert_ctx.onnx"), "leads outside")
    os.symlink(folder + "/a", folder + "/linked")  # the folder of the model may be reached through a link
    right(folder + "/linked/bert_ctx.onnx")


def forge(path):
    """Records a changed file in the manifest, as an attacker would."""
    manifest, data = os.path.dirname(path) + "/manifest.json", open(path, "rb").read()
    document = json.load(open(manifest))
    document["files"][os.path.basename(path)] = hashlib.sha256(data).hexdigest()
    document["sizes"][os.path.basename(path)] = len(data)
    with open(manifest, "w") as f:
        json.dump(document, f)


def external_data_stays_inside(folder):
    """A rank file cannot name data outside of the partition."""
    for k, location in enumerate(("../secret", "/etc/passwd", "sub/../../secret", folder + "/secret")):
        made = written("%s/%d" % (folder, k))
        rank = os.path.dirname(made) + "/bert_ctx.parts/rank0.onnx"
        model = onnx.load(rank, load_external_data=False)
        tensors = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
        assert tensors, "no external data"
        for entry in tensors[0].external_data:
            if entry.key == "location":
                entry.value = location
        onnx.save(model, rank)
        shutil.copy(os.path.dirname(made) + "/bert_ctx.parts/common.data", folder + "/secret")
        forge(rank)
        host.fails(lambda: host.session(made), "outside")


def nothing_is_left(folder):
    here = {f for f in os.listdir(tempfile.gettempdir()) if f.startswith("tessera-ep-%d-" % os.getpid())}
    assert not here, here


host.register()
harness.run([
    a_session_writes_one, it_can_be_moved, from_memory_it_needs_a_path, the_compile_interface_writes_one, the_command_writes_one,
    the_summary_counts_nodes, states_stay_with_the_ranks, states_in_processes, expired_states_are_refused, states_in_metadata,
    states_need_a_rank, what_is_refused, links_that_lead_out,
    external_data_stays_inside, nothing_is_left
])
harness.finish()
