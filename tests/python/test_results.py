# SPDX-License-Identifier: Apache-2.0
"""Tests arguments and results: misspelt keywords, options without devices, nodes of plans, candidates, shardings, sessions.

usage: test_results.py BUILD"""
import contextlib
import copy
import dataclasses
import importlib
import inspect
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import warnings

import harness
from built import BUILD, MODEL, ROOT, partition, tessera  # before onnxruntime

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

FOLDER = ROOT + "/tests/folders/genai_tiny"
TMP = tempfile.TemporaryDirectory(prefix="tessera-results-")
DIMS = {"batch": 2, "seq": 9}


def refused(kinds, words, work):
    try:
        work()
    except kinds as error:
        for word in [words] if isinstance(words, str) else words:
            assert word in str(error), (word, error)
    else:
        raise AssertionError("no exception")


def two_products():
    """down = MatMul(Relu(MatMul(x, w1)), w2)."""
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"], name="up"), helper.make_node("Relu", ["h"], ["r"], name="act"),
             helper.make_node("MatMul", ["r", "w2"], ["y"], name="down")]
    weights = [onnx.numpy_helper.from_array(np.ones((64, 64), "f4"), name) for name in ("w1", "w2")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [8, 64])],
                              [helper.make_tensor_value_info("y", 1, [8, 64])], weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def with_branch():
    """y = x + 1 if c else Relu(x). The nodes of the branches are `inner` and an unnamed one."""
    one = onnx.numpy_helper.from_array(np.ones(1, "f4"), "one")
    then = helper.make_graph([helper.make_node("Add", ["x", "one"], ["t"], name="inner")], "t", [],
                             [helper.make_tensor_value_info("t", 1, [8, 4])])
    other = helper.make_graph([helper.make_node("Relu", ["x"], ["e"])], "e", [], [helper.make_tensor_value_info("e", 1, [8, 4])])
    node = helper.make_node("If", ["c"], ["y"], name="outer", then_branch=then, else_branch=other)
    inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("x", 1, [8, 4])]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, [8, 4])], [one])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


# ---- arguments

def test_misspelt_keywords_are_type_errors():
    model, parts = tessera.load(MODEL), partition()
    for wanted, work in (("devices", lambda: tessera.InferenceSession(MODEL, device=2)),
                         ("memory", lambda: tessera.InferenceSession(MODEL, devices=2, memry="1KiB")),
                         ("enable_fallback",
                          lambda: tessera.InferenceSession(MODEL, enable_falback=0)), ("devices",
                                                                                       lambda: tessera.Generator(FOLDER, device=2)),
                         ("devices", lambda: tessera.generate(FOLDER, [1], device=2)), ("dims",
                                                                                        lambda: tessera.verify(MODEL, devices=2, dim=DIMS)),
                         ("devices", lambda: tessera.simulate(MODEL, device=2)), ("dims", lambda: tessera.report(MODEL, "x", dim=DIMS)),
                         ("dims", lambda: model.plan(2, dim=DIMS)), ("layout", lambda: model.partition("x", layot="genai")),
                         ("formalism", lambda: model.check(formalsm=True)), ("transport",
                                                                             lambda: tessera.PartitionSession(parts, transprt="shm")),
                         ("partial",
                          lambda: tessera.connect([2], "{2}", "{1}", 2, partal="sum")), ("progress",
                                                                                         lambda: tessera.load(MODEL, progres=None)),
                         ("seconds", lambda: tessera.topology.measure(second=1)), ("ranks", lambda: tessera.Group(rank=0, rnks=1))):
        refused(TypeError, ["unexpected keyword", "did you mean '%s'" % wanted], work)


def public_functions():
    """Yields (name, function) of the public functions, methods and constructors whose arguments have names."""
    for name in [*tessera.__all__, "topology.show", "topology.measure"]:
        found = getattr(tessera.topology, name.partition(".")[2]) if "." in name else getattr(tessera, name)
        if inspect.isfunction(found):
            yield name, found
        elif inspect.isclass(found) and not issubclass(found, Exception):
            for method, function in vars(found).items():
                made = method == "__init__" and not dataclasses.is_dataclass(found)
                if inspect.isfunction(function) and (made or method[0] != "_") and list(inspect.signature(function).parameters)[1:]:
                    yield name + "." + method, function


def test_every_public_function_suggests():
    """Without a hint, an unknown keyword names all keywords. Two functions take keywords of onnxruntime or of onnxruntime-genai too."""
    names = [name for name, _ in public_functions()]
    for name, function in public_functions():
        if name not in ("Generator.generate", "InferenceSession.__init__"):
            known = [p for p in inspect.signature(function).parameters if p != "self"]
            refused(TypeError, ["unexpected keyword argument 'qqq'", "; it takes " + ", ".join(known)], lambda: function(qqq=1))
    wanted = {"generate", "load", "register", "topology.show", "Model.__init__", "Model.plan", "Plan.save", "PartitionSession.run"}
    assert wanted <= set(names), names
    for keyword, wanted in (("ids", "prompt"), ("input_ids", "prompt"), ("max_new_tokens", "max_tokens"), ("max_length", "max_tokens")):
        refused(TypeError, "did you mean '%s'" % wanted, lambda: tessera.generate(FOLDER, **{keyword: [1, 2]}))


def test_misspelt_options_of_commands():
    for command, words, wanted in (("chat", [FOLDER, "--devces", "2"], "did you mean '--devices'?"),
                                   ("serve", [FOLDER, "--max-token=2", "--memry=1KiB"], "unrecognized arguments: --max-token=2"),
                                   ("serve", [FOLDER, "--hots", "a:2"], "did you mean '--hosts'?"),
                                   ("chat", [FOLDER, "--secret-file", "x"], "--secret-file has no effect without --hosts"),
                                   ("serve", [FOLDER, "--port", "0", "--worker-port", "1"], "the port of workers has no effect")):
        text = io.StringIO()
        with contextlib.redirect_stderr(text):
            refused(SystemExit, "2", lambda: importlib.import_module("tessera." + command).main(words))
        assert wanted in text.getvalue(), (command, words, text.getvalue())


def test_onnxruntime_keywords_stay():
    feeds = {v.name: np.ones((2, 9), np.int64) for v in onnxruntime.InferenceSession(MODEL).get_inputs()}
    want = onnxruntime.InferenceSession(MODEL).run(None, feeds)[0]
    for keywords in (dict(enable_fallback=1), dict(disabled_optimizers=["ConstantFolding"]), dict(read_config_from_model=0)):
        for devices in ({}, {"devices": 2}):
            assert np.allclose(tessera.InferenceSession(MODEL, **keywords, **devices).run(None, feeds)[0], want, atol=1e-4)


def test_sessions_do_not_parse_onnxruntime():
    """onnxruntime's keywords are listed from its source (27 ms), which only unknown keywords need."""
    parsed = []
    original, inspect.getsource = inspect.getsource, lambda _: parsed.append(1) or ""
    try:
        tessera.InferenceSession(MODEL, devices=2)
    finally:
        inspect.getsource = original
    assert not parsed


def test_options_need_devices():
    for keywords in (dict(plan=TMP.name + "/nothing"), dict(memory="nonsense"), dict(threads=1), dict(cache=TMP.name), dict(strict=False),
                     dict(dims={"batch": 1}), dict(transport="shm"), dict(summary=TMP.name + "/s")):
        option = next(iter(keywords))
        refused(TypeError, [option, "devices"], lambda: tessera.InferenceSession(MODEL, **keywords))
        refused(TypeError, [option, "devices"], lambda: tessera.Generator(FOLDER, **keywords))
    refused(TypeError, "devices", lambda: tessera.generate(FOLDER, [1], transport="shm"))
    refused(TypeError, "devices", lambda: tessera.verify(MODEL, memory="8GiB"))
    assert not os.path.exists(TMP.name + "/s")


def test_options_of_a_context_model_need_no_devices():
    model = tessera.load(MODEL)
    model.plan(2, dims=DIMS)
    model.partition(TMP.name + "/context", layout="context")
    session = tessera.InferenceSession(TMP.name + "/context/model.onnx", threads=1)
    assert session.plan.devices == 2 and session.plan.milliseconds is None, session


def test_devices_by_position():
    assert tessera.verify(MODEL, 2, dims=DIMS).ok and tessera.simulate(MODEL, 2, dims=DIMS).assumed
    assert list(tessera.generate(FOLDER, [1, 2], 2, max_tokens=2)) == list(tessera.generate(FOLDER, [1, 2], devices=2, max_tokens=2))
    tessera.report(MODEL, TMP.name + "/page.html", 2, dims=DIMS)


def test_verify_takes_dims_and_memory():
    found = tessera.verify(MODEL, devices=2, dims={"batch": 3, "seq": 5})
    assert found.ok and found.dims == {"batch": 3, "seq": 5}, found.dims
    refused(tessera.Infeasible, "", lambda: tessera.verify(MODEL, devices=2, dims=DIMS, memory="10KiB"))
    refused(tessera.TesseraError, "dim", lambda: tessera.verify(MODEL, devices=2, dims={"bach": 3}))


# ---- plans

def test_a_plan_has_its_nodes():
    model = tessera.load(two_products())
    model.add_config("tp", 2)
    model.shard("up", "w1", "{1,2}")
    model.shard("down", "w2", "{2,1}")
    plan = model.plan(2)
    assert plan.assumed and "assumed=True" in repr(plan)
    assert int(plan.nodes) == len(plan.nodes) == 3 and [n.name for n in plan.nodes] == ["up", "act", "down"]
    assert plan.nodes["act"].outputs == [type(plan.nodes["act"].outputs[0])("r", "{1,2:0,1}")], plan.nodes["act"]
    down = plan.nodes[2]
    assert down.sharded and down.stage is None and [t.value for t in down.inputs] == ["r", "w2"]
    assert [(r.value, r.function, r.groups) for r in down.reductions] == [("y", "sum", [[0, 1]])], down.reductions
    refused(KeyError, "nothing", lambda: plan.nodes["nothing"])
    assert model.plan("ring:2").assumed


def test_stages_are_nodes_too():
    model = tessera.load(MODEL)
    plan = model.plan(2, dims=DIMS, stages=2)
    assert {node.stage for node in plan.nodes} - {None} == {0, 1}  # None: nodes that compute sizes run everywhere


def test_an_old_plan_is_not_read_from_a_changed_model():
    model = tessera.load(two_products())
    first, read = model.plan(2), model.plan(2)
    refused(tessera.TesseraError, "changed", lambda: list(first.nodes))
    refused(tessera.TesseraError, "changed", lambda: first.save(TMP.name + "/old.json"))
    before = list(read.nodes)
    model.infer()
    assert list(read.nodes) == before  # was read before the change
    refused(tessera.TesseraError, "changed", lambda: read.save(TMP.name + "/old.json"))


def test_plans_are_saved():
    path = TMP.name + "/plan.json"
    tessera.load(MODEL).plan("ring:2", dims=DIMS).save(path)  # the model is only kept by the plan
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    assert document["kind"] == "tessera-plan" and document["topology"] and document["dims"] == DIMS and document["model"]["sha256"]
    session = tessera.InferenceSession(MODEL, devices=2, plan=path)
    assert session.sharded_nodes > 0


def test_plans_are_copied_and_pickled():
    model = tessera.load(two_products())
    plan = model.plan(2)
    for other in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert other == plan and int(other.nodes) == 3
        refused(tessera.TesseraError, "Model.plan", lambda: list(other.nodes))
        refused(tessera.TesseraError, "Model.plan", lambda: other.save(TMP.name + "/x"))
    names = [node.name for node in plan.nodes]
    assert [node.name for node in pickle.loads(pickle.dumps(plan)).nodes] == names
    assert json.loads(json.dumps(dataclasses.asdict(plan)))["nodes"] == 3


def test_pages_for_notebooks():
    odd = two_products()
    odd.graph.input[0].name = odd.graph.node[0].input[0] = "<script>"
    model = tessera.load(odd)
    for shown in (model.plan(2), model, tessera.simulate(odd, devices=2), tessera.InferenceSession(MODEL, devices=2, dims=DIMS).plan):
        page = shown._repr_html_()
        assert page.startswith("<table>") and "<script>" not in page and page.count("<tr>") == page.count("</tr>") > 0, page
    assert "assumed" in model.plan(2)._repr_html_() and "&lt;script&gt;" in model._repr_html_()


# ---- models

def test_candidates():
    model = tessera.load(two_products())
    before = model.to_bytes()
    found = model.candidates("down", devices=2)
    assert len(found) >= 3 and sum(c.chosen for c in found) == 1 and model.to_bytes() == before
    k = next(c for c in found if c.name == "k/2")
    assert [(t.value, t.sharding) for t in k.inputs] == [("r", "{1,2:0,1}"),
                                                         ("w2", "{2,1:0,1}")] and k.reduction == "AllReduce" and k.communication_ms > 0, k
    assert next(c for c in found if c.name == "whole").reduction is None
    refused(tessera.TesseraError, "did you mean 'down'", lambda: model.candidates("dwn", devices=2))


def test_shardings_are_read_back_and_merged():
    model = tessera.load(two_products())
    model.add_config("mesh", 4)
    assert model.shardings("up") == {}
    model.shard("up", "w1", "{1,4}")
    model.shard("up", "x", "{4,1}")
    model.shard("up", "w1", "{4,1}")  # replaces that of w1, not that of x
    assert model.shardings("up") == {"w1": "{4,1:0,1,2,3}", "x": "{4,1:0,1,2,3}"}
    model.shard("down", "w2", axis=0, num_shards=2, devices=(0, 1, 2, 3))
    model.shard("down", "w2", axis=1, num_shards=2)
    assert model.shardings("down") == {"w2": "{2,2:0,1,2,3}"}
    model.add_config("other", 2)
    assert model.shardings("up") == {} and model.shardings("up", config="mesh")
    for words, work in (("either|both", lambda: model.shard("up", "w1")), ("both", lambda: model.shard("up", "w1", axis=1)),
                        ("devices", lambda: model.shard("up", "w1", "{1,2}", devices=[0, 1]))):
        refused(TypeError, words.split("|")[-1], work)
    refused(tessera.TesseraError, "no configuration 'none'", lambda: model.shardings("up", config="none"))
    refused(tessera.TesseraError, "its values: x, w1, h", lambda: model.shard("up", "w", "{1,2}"))


def test_nodes_of_subgraphs():
    model = tessera.load(with_branch())
    model.add_config("tp", 2)
    model.shard("outer > then_branch > inner", "x", "{2,1}")
    model.shard("outer > else_branch > #0", "x", "{2,1}")
    assert model.shardings("outer > then_branch > t") == {"x": "{2,1:0,1}"}  # by its output
    model.stage("outer > then_branch > inner", 0)
    for name in ("inner", "outer > then_branch", "outer > body > inner", "nothing > then_branch > inner"):
        refused(tessera.TesseraError, ["no node", "outer > then_branch > inner"], lambda: model.shard(name, "x", "{2,1}"))
    assert tessera.load(model.to_bytes()).shardings("outer > else_branch > e") == {"x": "{2,1:0,1}"}
    names = [node.name for node in tessera.load(with_branch()).plan(2).nodes]
    assert names[0] == "outer" and sorted(names[1:]) == ["outer > else_branch > #0", "outer > then_branch > inner"], names


def test_check_by_the_formalism():
    nodes = [
        helper.make_node("Relu", ["x"], ["p"], name="p"),
        helper.make_node("Neg", ["x"], ["q"], name="q"),
        helper.make_node("Add", ["p", "q"], ["y"], name="sum")
    ]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [8, 4])], [helper.make_tensor_value_info("y", 1, [8, 4])])
    model = tessera.load(helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 18)]))
    model.add_config("tp", 2)
    model.shard("p", "p", "{2,1}")
    model.shard("q", "q", "{1,2}")  # the inputs of the sum disagree: it has no sharding of its own
    assert not [f for f in model.check() if f.severity == "error"]
    assert [(f.code, f.node) for f in model.check(formalism=True) if f.severity == "error"] == [("spec-disagree", "sum")]


def test_models_are_pickled():
    model = tessera.load(MODEL)
    model.plan(2, dims=DIMS)
    other = pickle.loads(pickle.dumps(model))
    assert other.to_bytes() == model.to_bytes() and other.shardings("node_MatMul_105") == model.shardings("node_MatMul_105") != {}
    proto = two_products()
    onnx.save(proto, TMP.name + "/external.onnx", save_as_external_data=True, size_threshold=0, location="external.data")
    refused(TypeError, "external data", lambda: pickle.dumps(tessera.load(TMP.name + "/external.onnx")))
    refused(TypeError, "open its folder", lambda: pickle.dumps(tessera.PartitionSession(partition())))
    refused(TypeError, "open the model", lambda: pickle.dumps(tessera.InferenceSession(MODEL)))


def test_connect():
    found = tessera.connect([8, 8], "{2,1}", "{1,2}", devices=2)
    assert [s.operation for s in found.steps] == ["all-to-all"] and found.milliseconds > 0
    step = found.steps[0]
    assert (step.axis, step.to_axis, step.received, step.total, step.groups) == (0, 1, 64, 128, [[0, 1]]) and step.sharding == "{1,2:0,1}"
    assert tessera.connect([8, 8], "{2,1}", "{2,1}", 2) == tessera.connect([8, 8], "({0},{})", "({0},{})", 2)
    assert [s.operation for s in tessera.connect([8, 8], "({0},{})", "({},{})", "grid:2x2").steps] == ["all-gather"]
    assert tessera.connect([8, 8], "R,R", "S0,R", 2, partial="sum", type="float64").steps[0].received == 256
    for kinds, words, work in ((tessera.TesseraError, "sharding-misfit", lambda: tessera.connect([8, 8], "{8,1}", "{1:0}", 2)),
                               (tessera.TesseraError, "reduction", lambda: tessera.connect([8], "{2}", "{1:0}", 2, partial="mean")),
                               (ValueError, "float32", lambda: tessera.connect([8], "{2}", "{1:0}", 2, type="flaot32")),
                               (TypeError, "devices", lambda: tessera.connect([8], "{2}", "{1:0}", None)),
                               (TypeError, "'rows' is not a number", lambda: tessera.connect(["rows"], "{2}", "{1:0}", 2))):
        refused(kinds, words, work)


# ---- sessions

def test_a_session_knows_its_plan():
    session = tessera.InferenceSession(MODEL, devices=2, dims=DIMS)
    plan = tessera.load(MODEL).plan(2, dims=DIMS)
    assert session.plan.devices == 2 and session.sharded_nodes == session.plan.cut_nodes == plan.cut_nodes
    assert abs(session.plan.milliseconds - plan.milliseconds) <= 1e-9 and not session.plan.cached
    assert "model.onnx" in repr(session) and "devices=2" in repr(session) and "0x" not in repr(session), session
    plain = tessera.InferenceSession(MODEL)
    assert plain.plan is None and plain.sharded_nodes == 0 and "unsharded" in repr(plain)
    assert "0x" not in repr(tessera.PartitionSession(partition()))


def test_a_summary_of_the_user_stays():
    path = TMP.name + "/summary.json"
    assert tessera.InferenceSession(MODEL, devices=2, dims=DIMS, summary=path).plan.devices == 2
    assert json.load(open(path, encoding="utf-8"))["devices"] == 2
    options = onnxruntime.SessionOptions()
    for _ in range(2):  # the options do not keep a path that is gone
        assert tessera.InferenceSession(MODEL, options, devices=3, dims=DIMS).plan.devices == 3


def test_annotated_bytes_keep_their_shardings():
    model = tessera.load(two_products())
    model.add_config("tp", 2)
    model.shard("up", "w1", "{1,2}")
    model.shard("down", "w2", "{2,1}")
    model.add_config("three", 3)
    feeds = {"x": np.ones((8, 64), "f4")}
    session = tessera.InferenceSession(model.to_bytes(), devices=2)
    assert session.plan.milliseconds is None and session.sharded_nodes == 3, session.plan  # not planned anew
    assert np.allclose(session.run(None, feeds)[0], 64 * 64)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert tessera.InferenceSession(model.to_bytes(), devices=4).plan.milliseconds is not None
    assert ["tp (2), three (3)" in str(w.message) for w in said] == [True], said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tessera.InferenceSession(two_products().SerializeToString(), devices=2)


# ---- launchers

RANK = dict(os.environ, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2", PYTHONPATH=BUILD + "/python",
            TESSERA_LIBRARY=BUILD + "/libtessera.so")


def test_ranks_of_a_launcher_are_refused():
    for words in (["-m", "tessera", "serve", FOLDER, "--devices", "2", "--port", "1"], ["-m", "tessera", "chat", FOLDER],
                  ["-c", "import tessera; tessera.Generator(%r, devices=2)" % FOLDER]):
        ended = subprocess.run([sys.executable, *words], env=RANK, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                               timeout=harness.HANG_S)
        assert ended.returncode and "rank 1 of 2" in ended.stderr and "without the launcher" in ended.stderr, ended
        assert "Traceback" not in ended.stderr or words[0] == "-c", ended.stderr


harness.run_functions(globals())
harness.finish()
