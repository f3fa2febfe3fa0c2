# SPDX-License-Identifier: Apache-2.0
"""EPContext models: written by the provider and by the command, moved, from memory, and those that must be refused.

usage: context.py TESSERA LIBRARY"""
import os
import shutil

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
    return host.near(host.session(model, {"session.disable_cpu_ep_fallback": "1"}, **options).run(None, feeds), host.plain(host.BERT).run(None, feeds))


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
        code, _, err = harness.call(host.TESSERA, "partition", host.BERT, "--devices", str(n), "--dim", "batch=2", "--dim", "seq=9", "--layout", "context", "-o", out)
        assert code == 0, err
        model = onnx.load(out + "/model.onnx")
        assert [n.op_type for n in model.graph.node] == ["EPContext"], model.graph.node
        assert [i.name for i in model.graph.input] == [i.name for i in onnx.load(host.BERT).graph.input]
        right(out + "/model.onnx")
    code, _, err = harness.call(host.TESSERA, "run", folder + "/out2", "--inputs", "random:1")
    assert code == 0, err


def what_is_refused(folder):
    path = written(folder + "/a")
    for named, words in (("../a/bert_ctx.parts/manifest.json", "below"), (folder + "/a/bert_ctx.parts/manifest.json", "below"), ("", "below"),
                         ("bert_ctx.parts/../../x", "below"), ("absent/manifest.json", "absent")):
        model = onnx.load(path)
        for attribute in model.graph.node[0].attribute:
            if attribute.name == "ep_cache_context":
                attribute.s = named.encode()
        onnx.save(model, folder + "/a/wrong.onnx")
        host.fails(lambda: host.session(folder + "/a/wrong.onnx"), words)
    os.remove(folder + "/a/bert_ctx.parts/rank1.onnx")
    host.fails(lambda: host.session(path), "rank1.onnx")
    host.fails(lambda: host.plain(path), host.NAME)  # without the provider


def nothing_is_left(folder):
    here = {f for f in os.listdir("/tmp") if f.startswith("tessera-ep-%d-" % os.getpid())}
    assert not here, here


host.register()
harness.run([a_session_writes_one, it_can_be_moved, from_memory_it_needs_a_path, the_compile_interface_writes_one, the_command_writes_one, what_is_refused,
             nothing_is_left])
harness.finish()
