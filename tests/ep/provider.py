# SPDX-License-Identifier: Apache-2.0
"""Tests the execution provider: numbers, options, models that it declines, caches, runs in several threads, the end of a registration.

usage: provider.py TESSERA LIBRARY"""
import collections
import json
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
from onnx import TensorProto, helper, numpy_helper

import harness
import host

sys.path.insert(0, host.ROOT + "/tests/genai")
import decoder  # noqa: E402

F = TensorProto.FLOAT


def info(name, shape, type=F):
    return helper.make_tensor_value_info(name, type, shape)


def weight(name, *shape):
    return numpy_helper.from_array(np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32), name)


def chain(folder, n=64, name="chain.onnx"):
    """Writes relu(X W) V: small, and sharded on two devices."""
    nodes = [helper.make_node("MatMul", ["X", "W"], ["t"], "first"), helper.make_node("Relu", ["t"], ["r"], "relu"),
             helper.make_node("MatMul", ["r", "V"], ["Y"], "second")]
    graph = helper.make_graph(nodes, "chain", [info("X", ["batch", n])], [info("Y", ["batch", n])], [weight("W", n, n), weight("V", n, n)])
    return host.save(folder + "/" + name, graph)


def same(model, feeds, **options):
    """The provider must take all nodes, and the session must agree with the plain one."""
    return host.near(host.session(model, devices=2, **options).run(None, feeds), host.plain(model).run(None, feeds))


# ---- numbers ---------------------------------------------------------------------------------------


def models_are_right(folder):
    for name, sizes in (("bert_tiny", dict(batch=2, seq=9)), ("gpt2_tiny", dict(batch=2, seq=5)), ("vit_tiny", dict(batch=2))):
        model = "%s/%s/model.onnx" % (host.MODELS, name)
        note = folder + "/%s.json" % name
        feeds = host.feeds(model, **sizes)
        session = host.session(model, devices=2, dims=",".join("%s=%d" % s for s in sizes.items()), summary=note)
        host.near(session.run(None, feeds), host.plain(model).run(None, feeds))
        facts = json.load(open(note))
        assert facts["devices"] == 2 and facts["cut_nodes"] > 0 and facts["route"] == "file" and not facts["cached"], facts
        assert facts["nodes"] >= facts["cut_nodes"] and facts["milliseconds"] > 0, facts


def sizes_other_than_planned(folder):
    for dims in (host.BERT_DIMS, "batch=8,seq=16"):
        session, plain = host.session(host.BERT, devices=2, dims=dims), host.plain(host.BERT)
        for batch, seq in ((1, 1), (5, 7), (2, 9)):
            feeds = host.feeds(host.BERT, batch=batch, seq=seq)
            host.near(session.run(None, feeds), plain.run(None, feeds))


def models_in_memory(folder):
    feeds, note = host.feeds(host.BERT), folder + "/note.json"
    session = host.session(onnx.load(host.BERT).SerializeToString(), devices=2, dims=host.BERT_DIMS, summary=note)
    host.near(session.run(None, feeds), host.plain(host.BERT).run(None, feeds))
    assert json.load(open(note))["route"] == "graph"


def annotated_models_run_as_annotated(folder):
    code, _, err = harness.call(host.TESSERA, "plan", chain(folder), "--devices", "3", "--dim", "batch=6000", "-o", folder + "/cut.onnx")
    assert code == 0, err
    feeds, note = {"X": np.ones((6, 64), np.float32)}, folder + "/note.json"
    session = host.session(folder + "/cut.onnx", devices=3, summary=note)
    host.near(session.run(None, feeds), host.plain(folder + "/chain.onnx").run(None, feeds))
    code, out, err = harness.call(host.TESSERA, "partition", folder + "/cut.onnx", "-o", folder + "/parts", "--json")
    want, got = json.loads(out), json.load(open(note))
    assert (want["nodes"], want["cut_nodes"]) == (got["nodes"], got["cut_nodes"]) and got["cut_nodes"] > 0, (want, got)
    open_session = "options = host.options(devices=%d); options.log_severity_level = 2; ort.InferenceSession(%r, options)"
    other = "no configuration of the model is for 2 devices"
    assert other in logged(open_session % (2, folder + "/cut.onnx")) and other not in logged(open_session % (3, folder + "/cut.onnx"))


def texts_and_branches(folder):
    """Strings, an If with outer values, an output that is an input, unused inputs."""
    branch = lambda name, op: helper.make_graph([helper.make_node(op, ["t"], [name])], name, [], [info(name, None)])
    nodes = [helper.make_node("MatMul", ["X", "W"], ["t"]),
             helper.make_node("If", ["C"], ["Y"], then_branch=branch("a", "Relu"), else_branch=branch("b", "Neg")),
             helper.make_node("Identity", ["S"], ["T"])]
    graph = helper.make_graph(
        nodes, "g", [info("X", ["n", 32]), info("C", [], TensorProto.BOOL), info("S", ["k"], TensorProto.STRING), info("unused", [2]),
                      info("unused_text", ["k", 2], TensorProto.STRING)],
        [info("Y", ["n", 32]), info("T", ["k"], TensorProto.STRING), info("X", ["n", 32])], [weight("W", 32, 32)])
    model = host.save(folder + "/m.onnx", graph)
    for flag in (True, False):
        feeds = {
            "X": np.ones((4, 32), np.float32), "C": np.array(flag), "S": np.array(["a", "", "ü" * 40], object),
            "unused": np.zeros(2, np.float32), "unused_text": np.array([["a", "b"]] * 3, object)
        }
        same(model, feeds)


def functions_are_inlined(folder):
    body = helper.make_function("my", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 18)])
    nodes = [helper.make_node("MatMul", ["X", "W"], ["t"]), helper.make_node("Twice", ["t"], ["Y"], domain="my")]
    graph = helper.make_graph(nodes, "g", [info("X", ["n", 32])], [info("Y", ["n", 32])], [weight("W", 32, 32)])
    model = host.save(folder + "/m.onnx", graph, opsets=(("", 18), ("my", 1)), functions=[body])
    feeds = {"X": np.ones((4, 32), np.float32)}
    same(model, feeds)
    host.near(host.session(onnx.load(model).SerializeToString(), devices=2).run(None, feeds), host.plain(model).run(None, feeds))


def replaced_weights_are_used(folder):
    model = onnx.load(chain(folder))
    onnx.save(model, folder + "/e.onnx", save_as_external_data=True, location="e.data", size_threshold=0)
    new = np.full((64, 64), 0.5, np.float32)
    value = ort.OrtValue.ortvalue_from_numpy(new)
    results = []
    for made in (host.options(devices=2), ort.SessionOptions()):
        made.add_external_initializers(["W"], [value])
        results.append(ort.InferenceSession(folder + "/e.onnx", made).run(None, {"X": np.ones((2, 64), np.float32)}))
    host.near(*results)


def unreadable_weights_are_reported(folder):
    """ONNX Runtime accepts '..' in the path of a data file, Tessera does not. The error must name the file, not memory."""
    graph = helper.make_graph([helper.make_node("MatMul", ["X", "W"], ["t"]), helper.make_node("Add", ["t", "B"], ["Y"])], "g",
                              [info("X", ["n", 32])], [info("Y", ["n", 32])], [weight("W", 32, 32), weight("B", 32)])
    model = onnx.load(host.save(folder + "/m.onnx", graph))
    os.mkdir(folder + "/d")
    onnx.save(model, folder + "/e.onnx", save_as_external_data=True, location="e.data", size_threshold=0)
    model = onnx.load(folder + "/e.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.name == "B":
            tensor.external_data[0].value = "d/../e.data"
    onnx.save(model, folder + "/e.onnx")
    try:
        host.session(folder + "/e.onnx", devices=2)
    except Exception as error:
        assert "e.data" in str(error) and "cannot be read" in str(error) and "out of memory" not in str(error), error
        return
    raise AssertionError("the session was made")


def defaults_of_inputs(folder):
    """An initializer that is also an input is a default, which a run may override."""
    graph = helper.make_graph([helper.make_node("MatMul", ["X", "W"], ["Y"])], "g",
                              [info("X", ["n", 8]), info("W", [8, 8])], [info("Y", ["n", 8])], [weight("W", 8, 8)])
    model = host.save(folder + "/m.onnx", graph)
    feeds = {"X": np.ones((4, 8), np.float32)}
    same(model, feeds)
    same(model, {**feeds, "W": np.ones((8, 8), np.float32)})


def adapters_of_a_run(folder):
    """The options of a run may have LoRA adapters, whose tensors are inputs of the model, with or without default values."""
    shapes = {"A": (64, 4), "B": (4, 256)}
    nodes = [
        helper.make_node("MatMul", ["X", "W"], ["t"]),
        helper.make_node("MatMul", ["X", "A"], ["a"]),
        helper.make_node("MatMul", ["a", "B"], ["b"]),
        helper.make_node("Add", ["t", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("MatMul", ["r", "V"], ["Y"])
    ]
    ports = [info("X", ["batch", 64])] + [info(name, list(shape)) for name, shape in shapes.items()]
    x = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
    for which in (1, 2):
        tensors = {name: np.random.default_rng(which).standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        written = ort.AdapterFormat()
        written.set_adapter_version(1)
        written.set_model_version(1)
        written.set_parameters({name: ort.OrtValue.ortvalue_from_numpy(tensor) for name, tensor in tensors.items()})
        written.export_adapter("%s/%d.onnx_adapter" % (folder, which))
    for defaults in (True, False):
        zeros = [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in shapes.items()] if defaults else []
        model = host.save(
            folder + "/lora.onnx",
            helper.make_graph(nodes, "g", ports, [info("Y", ["batch", 64])],
                              [weight("W", 64, 256), weight("V", 256, 64), *zeros]))
        sharded, plain = host.session(model, devices=2, dims="batch=4"), host.plain(model)
        outputs = []
        for which in (1, 2, 1) + ((0,) if defaults else ()):
            options, adapter = ort.RunOptions(), ort.LoraAdapter()
            if which:
                adapter.Load("%s/%d.onnx_adapter" % (folder, which))
                options.add_active_adapter(adapter)
            # run() of onnxruntime's Python class requires the inputs that the adapter provides
            outputs.append(plain._sess.run(["Y"], {"X": x}, options))
            host.near(sharded._sess.run(["Y"], {"X": x}, options), outputs[-1])
        assert np.array_equal(outputs[0], outputs[2]) and not np.allclose(outputs[0], outputs[1])


# ---- options ---------------------------------------------------------------------------------------


def without_devices_nothing_is_taken(folder):
    feeds = host.feeds(host.BERT)
    host.near(host.session(host.BERT, strict="").run(None, feeds), host.plain(host.BERT).run(None, feeds))
    refuse = {"session.disable_cpu_ep_fallback": "1"}
    host.fails(lambda: host.session(host.BERT, refuse, strict=""), "CPU")
    for option, value in (("strict", 0), ("threads", 1), ("dims", "batch=2"), ("summary",
                                                                               folder + "/note.json")):  # the program wants the provider
        host.fails(lambda: host.session(host.BERT, **{"strict": "", option: value}), "ep-option", "'devices'", "number of devices")
    host.session(host.BERT, refuse, devices=2, dims=host.BERT_DIMS)  # fails unless the provider takes all nodes


def unknown_options_fail_the_session(folder):
    model, texts = chain(folder), host.ROOT + "/tests/folders/genai_tiny/model.onnx"
    for wrong, near in ((dict(device=2), "did you mean 'devices'?"), (dict(devices=2, dim="batch=2"), "did you mean 'dims'?"),
                        (dict(devices=2, sumary="x"), "did you mean 'summary'?"), (dict(devices=2, Threads=1), "did you mean 'threads'?"),
                        (dict(devices=2, quantization="int4"), "docs/provider.md")):
        host.fails(lambda: host.session(model, strict=0, **wrong), "ep-option", list(wrong)[-1], near)
        host.fails(lambda: host.session(texts, strict=0, **wrong), "ep-option", near)


def logged(words):
    """Runs a program with host.py imported; returns what ONNX Runtime's logger has printed."""
    program = "import sys; sys.argv[1:] = %r\nimport host, onnxruntime as ort\nhost.register()\n" % [host.TESSERA, host.LIBRARY] + words
    ended = subprocess.run([sys.executable, "-B", "-c", program], cwd=os.path.dirname(os.path.abspath(__file__)), capture_output=True,
                           text=True, timeout=harness.HANG_S)
    assert ended.returncode == 0, ended.stderr[-1500:]
    return ended.stderr


def sessions_that_shard_nothing_say_so(folder):
    """A warning if one device computes everything; an error with `strict` if nothing can be sharded."""
    none = host.save(
        folder + "/none.onnx",
        helper.make_graph([helper.make_node("NonZero", ["X"], ["Y"])], "g", [info("X", ["n"])],
                          [helper.make_tensor_value_info("Y", onnx.TensorProto.INT64, None)]))
    open_session = "options = host.options(devices=%s, strict=0); options.log_severity_level = 2; ort.InferenceSession(%r, options)"
    assert "ep-unsharded" in logged(open_session % (2, none)) and "ep-unsharded" not in logged(open_session % (1, none))
    host.fails(lambda: host.session(none, devices=2), "ep-declined", "no node of the model is sharded", "strict=0")
    note = folder + "/note.json"
    small = chain(folder, 4, "small.onnx")  # one device is faster, but nodes can be sharded
    assert "ep-unsharded" in logged(open_session % (2, small))
    for n in (2, 3):
        session = host.session(small, devices=n, summary=note)
        assert json.load(open(note))["cut_nodes"] > 0
        feeds = {"X": np.ones((5, 4), np.float32)}
        host.near(session.run(None, feeds), host.plain(small).run(None, feeds))
    host.session(none, devices="auto")  # as many devices as are best


def wrong_options_fail_the_session(folder):
    model = chain(folder)
    for wrong in (dict(devices="nonsense"), dict(devices=0), dict(devices=2, memory="much"), dict(devices=2, memory="0.5"),
                  dict(devices=2, dims="batch"), dict(devices=2, dims="batch=0"), dict(devices=2, transport="pigeon"),
                  dict(devices=2, threads="-1"), dict(devices=2, strict="yes")):
        option, value = list(wrong.items())[-1]
        host.fails(lambda: host.session(model, **wrong), "ep-option", option, str(value))
    host.fails(lambda: host.session(model, devices=2, memory="1KiB", dims="batch=2"), "1 KiB", "(memory=")
    host.fails(lambda: host.session(model, devices=2, memory="1KiB"), "give sizes with dims:")


def memory_and_threads(folder):
    model = chain(folder)
    feeds = {"X": np.ones((4, 64), np.float32)}
    same(model, feeds, memory="1 GiB", threads=2, dims="batch=4")


def declined_models(folder):
    graph = helper.make_graph([helper.make_node("SplitToSequence", ["X"], ["S"], axis=0)], "g", [info("X", [4, 4])],
                              [helper.make_tensor_sequence_value_info("S", F, None)])
    model = host.save(folder + "/seq.onnx", graph)
    host.fails(lambda: host.session(model, devices=2), "ep-declined", "output S is not a tensor",
               "set strict=False in Python, or the provider option strict=0")
    assert len(host.session(model, devices=2, strict=0).run(None, {"X": np.eye(4, dtype=np.float32)})[0]) == 4


def custom_operators_are_declined(folder):
    library = os.path.join(os.path.dirname(host.LIBRARY), "tests/e2e/libuser_ops.so")
    if not os.path.exists(library):
        return "libuser_ops.so was not built"
    relu, twice = helper.make_node("Relu", ["X"], ["t"]), helper.make_node("Twice", ["t"], ["Y"], domain="test.ops", bias=3)
    alone = helper.make_node("Twice", ["X"], ["Y"], domain="test.ops", bias=3)
    feeds = {"X": np.ones(4, np.float32)}
    for nodes in ([relu, twice], [alone]):
        graph = helper.make_graph(nodes, "g", [info("X", ["n"])], [info("Y", ["n"])])
        model = host.save(folder + "/m.onnx", graph, opsets=(("", 18), ("test.ops", 1)))
        for strict in (0, 1):
            made = host.options(devices=2, strict=strict)
            made.register_custom_ops_library(library)
            # Before 1.27, if all nodes are custom operators, the first run fails and not the session.
            use = lambda: ort.InferenceSession(model, made).run(None, feeds)
            if strict:
                host.fails(use, "ep-declined", "test.ops:Twice is a custom operator")
            else:
                assert use()[0].shape == (4,)


def functions_alone_are_taken(folder):
    """A strict session accepts a model whose nodes are all functions: ONNX Runtime inlines them."""
    body = [helper.make_node("MatMul", ["a", "b"], ["m"]), helper.make_node("Relu", ["m"], ["c"])]
    function = helper.make_function("my", "Layer", ["a", "b"], ["c"], body, [helper.make_opsetid("", 18)])
    nodes = [helper.make_node("Layer", ["X", "W"], ["t"], domain="my"), helper.make_node("Layer", ["t", "V"], ["Y"], domain="my")]
    graph = helper.make_graph(nodes, "g", [info("X", ["batch", 64])], [info("Y", ["batch", 64])],
                              [weight("W", 64, 64), weight("V", 64, 64)])
    model = host.save(folder + "/m.onnx", graph, opsets=(("", 18), ("my", 1)), functions=[function])
    same(model, {"X": np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)})


def plans_from_files(folder):
    """A plan document and an annotated model must give the sharding of the command."""
    model, note = chain(folder), folder + "/note.json"
    plan, cut = folder + "/plan.json", folder + "/cut.onnx"
    code, _, err = harness.call(host.TESSERA, "plan", model, "--devices", "2", "--dim", "batch=512", "--plan", plan, "-o", cut)
    assert code == 0, err
    feeds = {"X": np.ones((6, 64), np.float32)}
    for file in (plan, cut):
        session = host.session(model, devices=2, plan=file, summary=note)
        host.near(session.run(None, feeds), host.plain(model).run(None, feeds))
        assert json.load(open(note))["cut_nodes"] > 0, note
    host.fails(lambda: host.session(host.BERT, devices=2, plan=plan), "plan.json")
    code, _, err = harness.call(host.TESSERA, "plan", model, "--devices", "2", "--stages", "2", "--dim", "batch=512", "--plan",
                                folder + "/stages.json")
    assert code == 0, err
    session = host.session(model, devices=2, plan=folder + "/stages.json")
    host.near(session.run(None, feeds), host.plain(model).run(None, feeds))
    host.fails(lambda: host.session(host.BERT, devices=2, plan=cut), "another model")
    host.fails(lambda: host.session(model, devices=2, plan=model), "no configuration")
    host.fails(lambda: host.session(model, devices=2, plan=folder + "/absent"), "absent")


def plans_of_bodies_and_of_named_devices(folder):
    """A plan document may name nodes of bodies, delay sums, and name the devices."""
    nodes = [helper.make_node("MatMul", ["X", "W"], ["t"]), helper.make_node("MatMul", ["t", "V"], ["m"])]
    then = helper.make_graph([helper.make_node("Tanh", ["m"], ["ty"])], "then", [], [info("ty", ["batch", 64])])
    other = helper.make_graph([helper.make_node("MatMul", ["m", "V"], ["ey"])], "else", [], [info("ey", ["batch", 64])])
    nodes += [helper.make_node("If", ["c"], ["i"], then_branch=then, else_branch=other), helper.make_node("Add", ["i", "X"], ["Y"])]
    graph = helper.make_graph(nodes, "g", [info("X", ["batch", 64]), info("c", [], TensorProto.BOOL)], [info("Y", ["batch", 64])],
                              [weight("W", 64, 64), weight("V", 64, 64)])
    model, plan, note = host.save(folder + "/if.onnx", graph), folder + "/plan.json", folder + "/note.json"
    edits = ["--config", "c:2=CPU:0,CPU:1"]
    for at, shard in (("#0", "W={1,2}"), ("#1", "V={2,1}"), ("#2 > else_branch > #0", "V={1,2}"), ("#2 > then_branch > #0", "m={1,2}")):
        edits += ["--shard", '"%s":"%s"=%s' % (at, shard.split("=")[0], shard.split("=")[1])]
    code, _, err = harness.call(host.TESSERA, "annotate", model, *edits, "-o", folder + "/cut.onnx")
    assert code == 0, err
    code, _, err = harness.call(host.TESSERA, "plan", model, "--devices", "CPU,CPU", "--dim", "batch=4096", "--plan", plan)
    assert code == 0 and "_branch > #0" in open(plan).read(), err
    document = json.load(open(plan))
    document["declares"] = "--config c:2=CPU:0,CPU:1"
    document["nodes"][0]["edits"] += ["--delay #1", '--store "#0":"W"={2,1:0,1}']
    json.dump(document, open(plan, "w"))
    for c in (True, False):
        feeds = {"X": np.random.default_rng(1).standard_normal((6, 64)).astype("f4"), "c": np.array(c)}
        for file in (plan, folder + "/cut.onnx"):
            session = host.session(model, devices=2, plan=file, summary=note)
            host.near(session.run(None, feeds), host.plain(model).run(None, feeds))
            assert json.load(open(note))["cut_nodes"] > 1, note


def a_cache_is_used_again(folder):
    model, cache, note = chain(folder), folder + "/cache", folder + "/note.json"
    feeds = {"X": np.ones((4, 64), np.float32)}
    want = host.plain(model).run(None, feeds)

    def cached(path=model, **options):
        session = host.session(path, devices=options.pop("devices", 2), cache=cache, summary=note, **options)
        host.near(session.run(None, feeds), want)
        facts = json.load(open(note))
        assert facts["nodes"] >= 3, facts
        return facts["cached"]
    assert [cached(), cached(), cached(dims="batch=512"), cached(devices=3), cached(devices=3)] == [False, True, False, False, True]
    assert cached(open(model,
                       "rb").read()) is False and cached(open(model, "rb").read()) is True  # a model from memory has another cache entry
    entries = [f for f in os.listdir(cache) if not f.endswith(".use") and f != "lock"]
    assert len(entries) == 4, entries
    for entry in entries:  # a damaged entry must be made again
        with open("%s/%s/rank1.onnx" % (cache, entry), "ab") as f:
            f.write(b"x")
    assert [cached(), cached()] == [False, True]
    other = onnx.load(model)
    other.doc_string = "another file"
    onnx.save(other, model)
    assert cached() is False
    for i in range(20):
        assert cached(memory="%d MB" % (100 + i)) is False
    assert len([f for f in os.listdir(cache) if f.endswith(".use")]) == 16, os.listdir(cache)
    host.fails(lambda: host.session(model, devices=2, cache=model + "/no"), "cache")
    for mode in (0o777, 0o770, 0o720):  # also the group: users often share it
        os.chmod(cache, mode)
        host.fails(lambda: host.session(model, devices=2, cache=cache), "other users", "mode 700")
    os.chmod(cache, 0o755)
    entry = [f[:-4] for f in os.listdir(cache) if f.endswith(".use")]
    cached()
    entry = next(f[:-4] for f in os.listdir(cache) if f.endswith(".use") and f[:-4] not in entry)
    for name in (entry, entry + "/rank0.onnx", entry + ".use"):
        mode = os.stat(cache + "/" + name).st_mode
        os.chmod(cache + "/" + name, mode | 0o020)
        host.fails(cached, "other users", os.path.basename(name))
        os.chmod(cache + "/" + name, mode)
        if os.geteuid() == 0:  # an entry that another user has made
            os.chown(cache + "/" + name, 12345, 12345)
            host.fails(cached, "other users", os.path.basename(name))
            os.chown(cache + "/" + name, 0, 0)
    assert cached() is True
    if os.geteuid() == 0:  # only root can give the folder to another user
        os.chown(cache, 12345, 12345)
        host.fails(lambda: host.session(model, devices=2, cache=cache), "other users")
        os.chown(cache, 0, 0)
    os.remove(cache + "/lock")
    os.symlink(folder + "/elsewhere", cache + "/lock")
    host.fails(lambda: host.session(model, devices=2, cache=cache), "lock")
    assert not os.path.exists(folder + "/elsewhere")


# ---- runs ------------------------------------------------------------------------------------------


def bound_buffers_are_filled(folder):
    session, feeds = host.session(host.BERT, devices=2, dims=host.BERT_DIMS), host.feeds(host.BERT)
    want = host.plain(host.BERT).run(None, feeds)
    binding, place = session.io_binding(), [np.zeros_like(w) for w in want]
    for name, x in feeds.items():
        binding.bind_cpu_input(name, x)
    for value, x in zip(session.get_outputs(), place):
        binding.bind_output(value.name, "cpu", 0, x.dtype.type, x.shape, x.ctypes.data)
    session.run_with_iobinding(binding)
    host.near(place, want)


def memory_of_process(field):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(field))


def outputs_are_joined_with_one_copy(folder):
    """Shards of a large output must be copied straight into the application's buffer."""
    n, rows = 16384, 512
    graph = helper.make_graph([helper.make_node("MatMul", ["X", "W"], ["Y"])], "g", [info("X", ["batch", 32])], [info("Y", ["batch", n])],
                              [weight("W", 32, n)])
    model = host.save(folder + "/wide.onnx", graph)
    x, y = np.ones((rows, 32), np.float32), np.ones((rows, n), np.float32)
    session = host.session(model, devices=2, dims="batch=1", threads=1)
    binding = session.io_binding()
    binding.bind_cpu_input("X", x)
    binding.bind_output("Y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # resets VmHWM
    before = memory_of_process("VmRSS")
    session.run_with_iobinding(binding)
    peak = memory_of_process("VmHWM") - before
    host.near([y], host.plain(model).run(None, {"X": x}))
    assert peak < 1.7 * y.nbytes, (peak, y.nbytes)


def decoding(session, batch, length, shared, steps=6, heads=(2, 16), moving=False):
    """Yields the tokens and the caches after every step of greedy decoding. shared: past and present are one buffer of that length.
    moving: the buffer changes its address in every second step."""
    ids, tokens = np.tile([[1, 7, 11]], (batch, 1)), []
    ids[-1, -1] = 5  # rows differ
    caches = {
        i.name: np.zeros((batch, heads[0], length if shared else 0, heads[1]), np.float32) for i in session.get_inputs()
        if i.name.startswith("past")
    }
    total = 0
    for step in range(steps):
        total += ids.shape[1]
        if moving and step % 2:
            before, caches = caches, {name: x.copy() for name, x in caches.items()}
            for x in before.values():
                x[:] = 7
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", ids)
        binding.bind_cpu_input("attention_mask", np.ones((batch, total), np.int64))
        for name, x in caches.items():
            binding.bind_cpu_input(name, x)
        binding.bind_output("logits")
        for name, x in caches.items():
            present = name.replace("past_key_values", "present")
            if shared:
                binding.bind_output(present, "cpu", 0, np.float32, x.shape, x.ctypes.data)
            else:
                binding.bind_output(present)
        session.run_with_iobinding(binding)
        outputs = dict(zip([o.name for o in session.get_outputs()], binding.copy_outputs_to_cpu()))
        if not shared:
            caches = {name: outputs[name.replace("past_key_values", "present")] for name in caches}
        ids = outputs["logits"][:, -1].argmax(-1)[:, None]
        tokens.append(ids[:, 0].tolist())
        yield tokens, [x[:, :, :total] for x in caches.values()]


def decode(*arguments, **options):
    """Returns tokens and caches after the last step."""
    return list(decoding(*arguments, **options))[-1]


def caches_in_one_buffer(folder):
    """present.* uses the memory of past_key_values.*: it must be updated in place, also if a batch makes shards that are not contiguous."""
    model = host.ROOT + "/tests/folders/genai_tiny/model.onnx"
    for batch in (1, 2):
        for shared in (True, False):
            want, got = decode(host.plain(model), batch, 32, shared), decode(host.session(model, devices=2), batch, 32, shared)
            assert want[0] == got[0], (batch, shared, want[0], got[0])
            host.near(got[1], want[1])
    session = host.session(model, devices=2)  # one session with changing lengths and kinds of buffers
    for length, shared in ((32, True), (32, False), (24, True), (32, True)):
        got, want = decode(session, 1, length, shared), decode(host.plain(model), 1, length, shared)
        assert got[0] == want[0], (length, shared, got[0], want[0])
        host.near(got[1], want[1])
    decode(session, 1, 3, True, steps=1)  # leaves a cache of length 3; in the next run a cache of that length grows
    caches = {i.name: np.zeros((1, 2, 3, 16), np.float32) for i in session.get_inputs() if i.name.startswith("past")}
    feeds = {"input_ids": np.array([[9]]), "attention_mask": np.ones((1, 4), np.int64), **caches}
    host.near(session.run(None, feeds), host.plain(model).run(None, feeds))


def states_in_one_buffer(folder):
    """A state that all ranks compute, s + x, in one buffer for past and present: no rank may read what another has written."""
    nodes = [helper.make_node("MatMul", ["X", "W"], ["t"]), helper.make_node("Add", ["past.0.state", "ONE"], ["present.0.state"]),
             helper.make_node("Mul", ["t", "present.0.state"], ["Y"])]
    graph = helper.make_graph(nodes, "g", [info("X", [64, 256]), info("past.0.state", [1, 1])],
                              [info("Y", [64, 256]), info("present.0.state", [1, 1])],
                              [weight("W", 256, 256), numpy_helper.from_array(np.ones(1, np.float32), "ONE")])
    session = host.session(host.save(folder + "/m.onnx", graph), devices=4)
    once = np.ones((64, 256), np.float32) @ numpy_helper.to_array(graph.initializer[0])
    state = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1), np.float32))
    for step in range(1, 41):
        bound = session.io_binding()
        bound.bind_cpu_input("X", np.ones((64, 256), np.float32))
        bound.bind_ortvalue_input("past.0.state", state)
        bound.bind_ortvalue_output("present.0.state", state)
        bound.bind_output("Y")
        session.run_with_iobinding(bound)
        assert state.numpy().item() == step, (step, state.numpy())
        np.testing.assert_allclose(bound.copy_outputs_to_cpu()[0 if bound.get_outputs()[0].shape() == [64, 256] else 1], step * once,
                                   rtol=1e-3, atol=1e-3)


def windows_in_one_buffer(folder):
    """The cache of a window moves its tokens in each step. Ranks that share its only head must not move them twice. The part without tokens
    must keep its contents."""
    model = decoder.write(folder + "/window", heads=4, kv_heads=1, window=8, norms=True) + "/model.onnx"
    for length in (8, 20):
        found = []
        for session in (host.plain(model), host.session(model, devices=2), host.session(model, devices=3)):
            lengths = {i.name: length if "sliding" in i.shape[2] else 64 for i in session.get_inputs() if i.name.startswith("past")}
            buffers = {
                name: ort.OrtValue.ortvalue_from_numpy(np.full((1, 1, n, decoder.HEAD), 3, np.float32)) for name, n in lengths.items()
            }
            found.append([])
            for step in range(24):
                bound = session.io_binding()
                bound.bind_cpu_input("input_ids", np.array([[7 * step % 250]]))
                bound.bind_cpu_input("attention_mask", np.ones((1, step + 1), np.int64))
                bound.bind_output("logits")
                for name, buffer in buffers.items():
                    bound.bind_ortvalue_input(name, buffer)
                    bound.bind_ortvalue_output(name.replace("past_key_values", "present"), buffer)
                session.run_with_iobinding(bound)
                found[-1] += [
                    bound.get_outputs()[0].numpy().copy(),
                    *(buffer.numpy().copy() for name, buffer in buffers.items() if lengths[name] == length)
                ]
        host.near(found[1], found[0])
        host.near(found[2], found[0])


def cache_buffers_change(folder):
    """Runs of one session get several buffers in turn, and buffers that move: each run must use its own."""
    model = host.ROOT + "/tests/folders/genai_tiny/model.onnx"
    session = host.session(model, devices=2)
    want = decode(host.plain(model), 1, 32, True)
    in_turn = [decoding(session, 1, 32, True, moving=moving) for moving in (False, False, True)]
    for rows in zip(*in_turn):
        pass
    for got in rows:
        assert got[0] == want[0], (got[0], want[0])
        host.near(got[1], want[1])


def operators(cache):
    """Returns the operators of rank 0 in the only cache entry: their number by type, and the heads of the attention."""
    entry, = (name for name in os.listdir(cache) if name != "lock" and not name.endswith(".use"))
    nodes = onnx.load("%s/%s/rank0.onnx" % (cache, entry), load_external_data=False).graph.node
    heads = {helper.get_attribute_value(a) for n in nodes for a in n.attribute if a.name == "num_heads"}
    return collections.Counter(n.op_type for n in nodes), heads


def decoders_are_sharded_by_heads(folder):
    """A model with caches is planned for one token. Each rank must have its heads, and a layer must need two AllReduces."""
    cache = folder + "/cache"
    decoder.HIDDEN, decoder.HEAD = 256, 32
    links = [{"from": a, "to": 1 - a, "latency": 20e-6, "bandwidth": 1e10} for a in (0, 1)]
    with open(folder + "/slow.json", "w", encoding="utf-8") as f:  # resharding heads would take longer than the MatMuls
        json.dump(
            {
                "version": 1, "kind": "tessera-topology", "devices": [{"flops": 1e11, "bandwidth": 1e10, "memory": 1 << 30}] * 2,
                "links": links
            }, f)
    for form, bits in (("packed", 32), ("separate", 4), ("separate-norm", 4), ("norm", 32)):
        model = decoder.write("%s/%s" % (folder, form), heads=8, kv_heads=4, form=form, bits=bits, mlp=3, norms=True,
                              last=form == "separate-norm") + "/model.onnx"
        for options in ({"devices": 2}, {"devices": 2, "dims": "past_sequence_length=512"}, {"devices": folder + "/slow.json"}):
            session = host.session(model, cache=cache, **options)
            count, heads = operators(cache)
            assert count["AllReduce"] == 2 * decoder.LAYERS and heads == {4}, (form, options, count, heads)
            assert set(count) & {"AllGather", "ReduceScatter", "AllToAll", "Reshard", "HaloExchange"} == set(), count
            feeds = host.feeds(model, batch_size=2, sequence_length=1, total_sequence_length=4, past_sequence_length=3,
                               kv_cache_dim=decoder.HEAD)
            feeds["attention_mask"][:] = 1
            host.near(session.run(None, feeds), host.plain(model).run(None, feeds), limit=2e-2 if bits == 4 else 5e-5)
            shutil.rmtree(cache)


def names_of_caches_do_not_matter(folder):
    """A decoder whose inputs and outputs have other names is planned for one token, too: caches are found by the nodes that append to
    them."""
    cache = folder + "/cache"
    decoder.HIDDEN, decoder.HEAD = 256, 32
    path = decoder.write(folder + "/model", heads=8, kv_heads=4, mlp=3, norms=True) + "/model.onnx"
    plain = host.plain(path)
    feeds = host.feeds(path, batch_size=2, sequence_length=1, total_sequence_length=4, past_sequence_length=3, kv_cache_dim=decoder.HEAD)
    feeds["attention_mask"][:] = 1
    names = {"input_ids": "words", "attention_mask": "seen"}
    for k in range(decoder.LAYERS):
        for which in ("key", "value"):
            names.update(
                {"past_key_values.%d.%s" % (k, which): "%s%d_in" % (which, k),
                 "present.%d.%s" % (k, which): "%s%d_out" % (which, k)})
    model = onnx.load(path)
    for port in [*model.graph.input, *model.graph.output]:
        port.name = names.get(port.name, port.name)
    for node in model.graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
    onnx.save(model, path)
    session = host.session(path, cache=cache, devices=2)
    count, heads = operators(cache)
    assert count["AllReduce"] == 2 * decoder.LAYERS and heads == {4}, (count, heads)
    want = plain.run(None, feeds)
    host.near(session.run(None, {names.get(name, name): value for name, value in feeds.items()}), want)


def names_of_sizes_may_be_wrong(folder):
    """ONNX Runtime only warns if an output has another size than its declared name says. The provider must return the real size."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Concat", ["x", "x"], ["z"], axis=0),
             helper.make_node("Compress", ["x", "mask"], ["some"], axis=0), helper.make_node("MatMul", ["some", "w"], ["v"])]
    graph = helper.make_graph(nodes, "g", [info("x", ["n", 64]), info("mask", ["n"], TensorProto.BOOL)],
                              [info("y", ["n", 256]), info("z", ["n", 64]), info("v", ["n", 256])], [weight("w", 64, 256)])
    model = host.save(folder + "/m.onnx", graph)
    session, plain = host.session(model, devices=2), host.plain(model)
    for n, kept in ((3, 3), (3, 3), (5, 5), (8, 8), (8, 2), (8, 8), (8, 8), (8, 1)):
        feeds = {"x": np.random.default_rng(n).standard_normal((n, 64)).astype("f4"), "mask": np.arange(n) < kept}
        host.near(session.run(None, feeds), plain.run(None, feeds))


def caches_of_branches(folder):
    """A decoder as optimum merges it. The first run gives caches of any length to a branch that does not read them. If it has the length of
    the new cache, the run keeps the shape, but the next one does not."""
    def branch(name, nodes):
        outputs = [info(name + port, ["b", 4, size, None]) for port, size in (("k", None), ("e", None), ("y", "t"))]
        return helper.make_graph(nodes, name, [], outputs)
    new = lambda name: [helper.make_node("MatMul", ["x", "w"], [name + "n"]), helper.make_node("MatMul", ["hidden", "w"], [name + "h"])]
    scores = lambda name: [helper.make_node("Transpose", [name + "k"], [name + "kt"], perm=[0, 1, 3, 2]),
                           helper.make_node("MatMul", [name + "n", name + "kt"], [name + "y"])]
    first = new("f") + [helper.make_node("Identity", ["fn"], ["fk"]), helper.make_node("Identity", ["fh"], ["fe"])] + scores("f")
    later = new("l") + [helper.make_node("Concat", ["past.key", "ln"], ["lk"], axis=2), helper.make_node("Identity", ["past.e"], ["le"])
                        ] + scores("l")
    node = helper.make_node("If", ["cached"], ["present.key", "present.e", "y"],
                            then_branch=branch("l", later), else_branch=branch("f", first))
    inputs = [info("cached", [1], TensorProto.BOOL), info("x", ["b", 4, "t", 32]), info("hidden", ["b", 4, "s", 32]),
              info("past.key", ["b", 4, "p", 16]), info("past.e", ["b", 4, "s", 16])]
    outputs = [info("present.key", ["b", 4, "p + t", 16]), info("present.e", ["b", 4, "s", 16]), info("y", ["b", 4, "t", "p + t"])]
    model = host.save(folder + "/m.onnx", helper.make_graph([node], "g", inputs, outputs, [weight("w", 32, 16)]))
    plain, random = host.plain(model), np.random.default_rng(3)
    for devices, options in ((2, {}), (3, {}), (2, dict(transport="shm"))):
        session = host.session(model, devices=devices, **options)
        for batch, length, dummy in ((1, 6, 0), (1, 6, 1), (2, 6, 1), (2, 1, 1), (2, 5, 1), (1, 6, 8), (1, 5, 6)):
            caches = {name: np.zeros((batch, 4, dummy, 16), "f4") for name in ("past.key", "past.e")}
            hidden = random.standard_normal((batch, 4, length, 32)).astype("f4")
            for step in range(4):
                feeds = dict(caches, cached=np.array([step > 0]), x=random.standard_normal((batch, 4, 1, 32)).astype("f4"), hidden=hidden)
                want = plain.run(None, feeds)
                host.near(session.run(None, feeds), want)
                caches = {"past.key": want[0], "past.e": want[1]}


def only_used_tokens_are_copied(session, length):
    caches = [np.zeros((4, 4, length, 32), np.float32) for _ in range(2 * decoder.LAYERS)]
    past = [i.name for i in session.get_inputs() if i.name.startswith("past")]
    for total in (1, 2, 3):
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", np.full((4, 1), total, np.int64))
        binding.bind_cpu_input("attention_mask", np.ones((4, total), np.int64))
        for name, x in zip(past, caches):
            binding.bind_cpu_input(name, x)
            binding.bind_output(name.replace("past_key_values", "present"), "cpu", 0, np.float32, x.shape, x.ctypes.data)
        binding.bind_output("logits")
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
        before = memory_of_process("VmRSS")
        session.run_with_iobinding(binding)
        if total == 1:
            for x in caches:
                x[:, :, 1:] = 7  # unused tokens: they must not be copied
    peak, size = memory_of_process("VmHWM") - before, sum(x.nbytes for x in caches)
    assert peak < size / 4, (peak, size)
    for x in caches:
        assert (x[:, :, 3:] == 7).all() and (x[:, :, :3] != 7).all()


def caches_of_several_sequences(folder):
    """In a buffer for several sequences the heads of a rank are not contiguous. Only the tokens in use may be copied."""
    decoder.HIDDEN, decoder.HEAD = 256, 32
    model = decoder.write(folder + "/model", heads=8, kv_heads=4, mlp=3, norms=True) + "/model.onnx"
    session, plain, length = host.session(model, devices=2, threads=1), host.plain(model), 4096
    want, got = ([decode(s, batch, length, True, heads=(4, 32)) for batch in (3, 1, 2)] for s in (plain, session))
    for g, w in zip(got, want):
        assert g[0] == w[0], (g[0], w[0])
        host.near(g[1], w[1])
    only_used_tokens_are_copied(session, length)
    entries = {"ep.context_enable": "1", "ep.context_file_path": folder + "/ctx.onnx", "ep.context_embed_mode": "0"}
    host.session(model, entries, devices=2, threads=1)
    only_used_tokens_are_copied(host.session(folder + "/ctx.onnx", threads=1), length)


def small_decoders_are_sharded(folder):
    """One token of a small model is faster on one device, but the application has requested two."""
    model, note = host.ROOT + "/tests/folders/genai_tiny/model.onnx", folder + "/note.json"
    host.session(model, devices=2, summary=note)
    assert json.load(open(note))["cut_nodes"] > 0, open(note).read()


def threads_and_sessions(folder):
    feeds = host.feeds(host.BERT)
    want = host.plain(host.BERT).run(None, feeds)
    parallel = host.options(devices=2)
    parallel.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    parallel.inter_op_num_threads = 2
    sessions = [host.session(host.BERT, devices=2), host.session(host.BERT, devices=3), ort.InferenceSession(host.BERT, parallel)]
    wrong = []

    def work(session):
        try:
            for _ in range(3):
                host.near(session.run(None, feeds), want)
        except Exception as error:
            wrong.append(error)
    threads = [threading.Thread(target=work, args=(s,)) for s in sessions for _ in range(3)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not wrong, wrong[0]


def no_thread_beside_the_ranks(folder):
    """The thread of the application makes the runs of rank 0, also if another thread did so before."""
    before = len(os.listdir("/proc/self/task"))
    session, feeds = host.session(host.BERT, devices=3, dims=host.BERT_DIMS, threads=1), host.feeds(host.BERT)
    assert len(os.listdir("/proc/self/task")) == before + 2
    want = host.plain(host.BERT).run(None, feeds)
    results = []
    for _ in range(2):
        host.near(session.run(None, feeds), want)
        other = threading.Thread(target=lambda: results.append(session.run(None, feeds)))
        other.start(), other.join()
    for got in results:
        host.near(got, want)
    assert len(results) == 2


def asynchronous_runs(folder):
    made = host.options(devices=2)
    made.intra_op_num_threads = 2  # RunAsync needs a thread pool
    session, feeds, done, results = ort.InferenceSession(host.BERT, made), host.feeds(host.BERT), threading.Semaphore(0), []

    def take(outputs, _, error):
        results.append(error or outputs)
        done.release()
    for _ in range(4):
        session.run_async(None, feeds, take, None)
    for _ in range(4):
        assert done.acquire(timeout=harness.HANG_S)
    for got in results:
        host.near(got, host.plain(host.BERT).run(None, feeds))


def loop(folder):
    """Writes a model that takes as long as its input N says."""
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["y"]),
         helper.make_node("Tanh", ["y"], ["z"]),
         helper.make_node("Identity", ["c"], ["d"])], "body",
        [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL),
         info("x", [64, 256])], [info("d", [], TensorProto.BOOL), info("z", [64, 256])])
    graph = helper.make_graph([helper.make_node("Loop", ["N", "", "X"], ["Y"], body=body)], "g",
                              [info("N", [], TensorProto.INT64), info("X", [64, 256])], [info("Y", [64, 256])], [weight("W", 256, 256)])
    return host.save(folder + "/loop.onnx", graph)


def a_run_can_be_terminated(folder):
    """A long loop must end soon after terminate is set, and the session must run again."""
    session = host.session(loop(folder), devices=2, strict=0)
    x, options = np.ones((64, 256), np.float32), ort.RunOptions()
    threading.Timer(0.5, lambda: setattr(options, "terminate", True)).start()
    began = time.monotonic()
    host.fails(lambda: session.run(None, {"N": np.array(10 ** 7), "X": x}, options), "erminat")
    assert time.monotonic() - began < 60
    assert session.run(None, {"N": np.array(2), "X": x})[0].shape == (64, 256)


def wrong_inputs_leave_the_session_usable(folder):
    session, feeds = host.session(host.BERT, devices=2, dims=host.BERT_DIMS), host.feeds(host.BERT)
    other = dict(feeds)
    other["attention_mask"] = other["attention_mask"][:, :-1]
    host.fails(lambda: session.run(None, other), "input-mismatch", "attention_mask")
    host.near(session.run(None, feeds), host.plain(host.BERT).run(None, feeds))


def ranks_as_processes(folder):
    feeds = host.feeds(host.BERT)
    session = host.session(host.BERT, devices=2, dims=host.BERT_DIMS, transport="shm")
    for _ in range(2):
        host.near(session.run(None, feeds), host.plain(host.BERT).run(None, feeds))
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "comm="], capture_output=True, text=True).stdout
    assert "tessera-ranks" in children, children
    del session
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "comm="], capture_output=True, text=True).stdout
    assert "tessera-ranks" not in children, children


def started(program, *words):
    """Starts a Python program that uses the provider, with words as its arguments after those of this script."""
    return subprocess.Popen([sys.executable, "-B", "-c", program, host.TESSERA, host.LIBRARY, *words], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, cwd=os.path.dirname(os.path.abspath(__file__)))


def a_killed_program_leaves_no_ranks(folder):
    """It is killed in the middle of a long run of ranks that are processes."""
    program = """
import os, subprocess, sys, threading, time
import host, numpy as np
host.register()
session = host.session(sys.argv[3], devices=2, strict=0, transport="shm")
run = lambda n: session.run(None, {"N": np.array(n), "X": np.ones((64, 256), np.float32)})
run(1)
list = lambda pid: subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
parent = subprocess.run(["pgrep", "-P", str(os.getpid()), "tessera-ranks"], capture_output=True, text=True).stdout.strip()
print(parent, *list(parent), flush=True)
threading.Timer(1, lambda: print("runs", flush=True)).start()
run(10 ** 9)
"""
    running = started(program, loop(folder))
    ranks, runs = running.stdout.readline().split(), running.stdout.readline()
    assert len(ranks) == 3 and runs == "runs\n", (ranks, runs, running.kill(), running.stderr.read())
    running.kill()
    running.wait()
    end = time.monotonic() + harness.HANG_S
    left = lambda: [pid for pid in ranks if os.path.exists("/proc/%s/exe" % pid)]
    while left():
        assert time.monotonic() < end, [left(), *(os.kill(int(pid), signal.SIGKILL) for pid in left())]
        time.sleep(0.05)


def unregistered_with_live_sessions(folder):
    program = """
import host, onnxruntime as ort
host.register()
feeds, session = host.feeds(host.BERT), host.session(host.BERT, devices=2)
want = session.run(None, feeds)
ort.unregister_execution_provider_library("tessera")
host.near(session.run(None, feeds), want)
host.register(name="again")
other = host.session(host.BERT, devices=2)
host.near(other.run(None, feeds), want)
del session
print("right")
"""
    ended = started(program)
    out, err = ended.communicate(timeout=harness.HANG_S)
    assert ended.returncode == 0 and "right" in out, (ended.returncode, out, err[-1500:])


def nothing_is_left(folder):
    here = {f for f in os.listdir(tempfile.gettempdir()) if f.startswith("tessera-ep-%d-" % os.getpid())}
    assert not here, here


host.register()
harness.run([
    models_are_right, sizes_other_than_planned, models_in_memory, annotated_models_run_as_annotated, texts_and_branches,
    functions_are_inlined, replaced_weights_are_used, unreadable_weights_are_reported, defaults_of_inputs, adapters_of_a_run,
    without_devices_nothing_is_taken, unknown_options_fail_the_session, sessions_that_shard_nothing_say_so, wrong_options_fail_the_session,
    memory_and_threads, plans_from_files, plans_of_bodies_and_of_named_devices, a_cache_is_used_again, declined_models,
    custom_operators_are_declined, functions_alone_are_taken,
    bound_buffers_are_filled, outputs_are_joined_with_one_copy, caches_in_one_buffer, states_in_one_buffer, windows_in_one_buffer,
    cache_buffers_change, decoders_are_sharded_by_heads, names_of_caches_do_not_matter, names_of_sizes_may_be_wrong, caches_of_branches,
    caches_of_several_sequences, small_decoders_are_sharded, threads_and_sessions, no_thread_beside_the_ranks, asynchronous_runs,
    a_run_can_be_terminated, wrong_inputs_leave_the_session_usable, ranks_as_processes, a_killed_program_leaves_no_ranks,
    unregistered_with_live_sessions, nothing_is_left
])
harness.finish()
