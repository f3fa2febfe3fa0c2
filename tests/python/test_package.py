# SPDX-License-Identifier: Apache-2.0
"""Tests the Python package with the library of this build: its calls, its errors, its threads, and Ctrl-C.

usage: test_package.py BUILD"""
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import harness
from built import BUILD, MODEL, ROOT, near, partition, tessera

import numpy as np
import onnx
from onnx import TensorProto, helper

MODELS = ROOT + "/tests/models"
DATA = MODELS + "/bert_tiny/test_data_set_0"
proto = onnx.load(MODEL)
FEEDS, WANT = ({v.name: onnx.numpy_helper.to_array(onnx.load_tensor("%s/%s_%d.pb" % (DATA, kind, i))) for i, v in enumerate(values)}
               for kind, values in (("input", proto.graph.input), ("output", proto.graph.output)))
TMP = tempfile.TemporaryDirectory(prefix="tessera-package-")
DIMS = {"batch": 2, "seq": 9}


def small(nodes, inputs, outputs):
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def test_load_and_save():
    for source in (MODEL, proto, open(MODEL, "rb").read()):
        model = tessera.load(source)
        assert [n.operator for n in model.nodes] == [n.op_type for n in proto.graph.node]
        assert [v.name for v in model.inputs()] == list(FEEDS)
    model.save(TMP.name + "/same.onnx")
    assert open(TMP.name + "/same.onnx", "rb").read() == open(MODEL, "rb").read()
    assert model.to_onnx() == proto


def test_layouts():
    folder = ROOT + "/tests/folders/genai_tiny"
    model = tessera.load(folder)
    model.plan(2, dims={"batch_size": 1, "sequence_length": 1, "past_sequence_length": 64, "total_sequence_length": 65})
    model.partition(TMP.name + "/context", layout="context", weights="safetensors")
    assert os.path.exists(TMP.name + "/context/model.onnx") and not [f for f in os.listdir(TMP.name + "/context") if f.endswith(".data")]
    model.partition(TMP.name + "/genai", layout="genai")
    assert sorted(os.listdir(TMP.name + "/genai")) == ["rank0", "rank1"] and os.path.exists(TMP.name + "/genai/rank1/genai_config.json")
    for words, options in (("genai_config.json", dict(layout="genai")), ("unknown layout 'folded'", dict(layout="folded")),
                           ("replaced by 'context'", dict(layout="wrapped")), ("unknown weights 'gguf'", dict(weights="gguf")),
                           ("sizes that change", dict(layout="genai", static=True))):
        other = tessera.load(MODEL)
        other.plan(2, dims=DIMS)
        try:
            other.partition(TMP.name + "/no", **options)
        except ValueError as error:
            assert words in str(error) and not os.path.exists(TMP.name + "/no"), error
            continue
        raise AssertionError("no exception")


def test_partitions_keep_sizes():
    model, folder = tessera.load(MODEL), TMP.name + "/sizes"
    model.plan(2, dims=DIMS)
    for more in ({}, {"static": True}, {"dims": {"batch": 3}, "static": True}):
        model.partition(folder, force=True, **more)
        with open(folder + "/manifest.json") as file:
            manifest = json.load(file)
        assert manifest["dims"] == {**DIMS, **more.get("dims", {})} and manifest.get("static", False) == more.get("static", False), manifest
        shapes = [d for v in onnx.load(folder + "/rank0.onnx").graph.input for d in v.type.tensor_type.shape.dim]
        assert any(d.dim_param for d in shapes) != ("static" in more), shapes
    try:
        model.partition(folder, force=True, dims={"bach": 3})
    except tessera.TesseraError as error:
        assert "bach" in str(error), error
        return
    raise AssertionError("no exception")


def test_missing_file_has_a_finding():
    try:
        tessera.load(TMP.name + "/none.onnx")
    except tessera.TesseraError as error:
        assert error.findings[0].code == "io-open", error.findings
        return
    raise AssertionError("no exception")


def test_annotate_check_infer():
    model = tessera.load(MODEL)
    model.add_config("tp", 2)
    model.shard("node_MatMul_105", "val_108", "{1,2}")
    assert not [f for f in model.check() if f.severity == "error"]
    model.infer(propagate=True)
    try:
        model.shard("node_MatMul_105", "val_108", "{1,2:0,9}")
    except tessera.TesseraError as error:
        assert error.findings[0].code == "shard-device" and error.findings[0].hint, error.findings
    else:
        raise AssertionError("no exception")


def test_plan_and_infeasible():
    model = tessera.load(MODEL)
    assert tessera.load(MODEL).plan("auto", dims=DIMS).devices >= 1
    assert 1 <= tessera.load(MODEL).plan("auto:ring:4", dims=DIMS).devices <= 4
    plan = model.plan("ring:4", dims=DIMS)
    assert plan.compared and all(c.reason and (c.milliseconds >= plan.milliseconds * (1 - 1e-9) if c.fits else c.milliseconds == 0)
                                 for c in plan.compared), plan.compared
    assert plan.devices == 4 and plan.milliseconds > 0 and plan.cut_nodes > 0 and len(plan.memory) == 4
    try:
        tessera.load(MODEL).plan(2, memory="10KiB", dims=DIMS)
    except tessera.Infeasible as error:
        assert error.needs_bytes > 10240
        hint = error.findings[-1].hint  # names the arguments of this package, not the options of the command
        assert "(memory=%d)" % error.needs_bytes in hint and "--" not in hint, hint
    else:
        raise AssertionError("no exception")


def test_runs_overlap_and_come_in_order():
    session = tessera.PartitionSession(partition())
    feeds = [dict(FEEDS, input_ids=np.roll(FEEDS["input_ids"], k, axis=1)) for k in range(3)]
    one_by_one = [session.run(None, f)[0] for f in feeds]
    for f in feeds:
        session.start(f)
    together = [session.wait()[0] for _ in feeds]
    assert all(np.array_equal(a, b) for a, b in zip(one_by_one, together))
    assert near(one_by_one[0], WANT["logits"])
    session.close()


def test_processes():
    with tessera.PartitionSession(partition(), transport="shm") as session:
        assert [v.name for v in session.get_outputs()] == ["logits"]
        assert near(session.run(["logits"], FEEDS)[0], WANT["logits"])


def test_bad_feeds_leave_the_session_alive():
    session = tessera.PartitionSession(partition())
    wrong = dict(FEEDS, input_ids=FEEDS["input_ids"].astype("f4"))
    for feeds in ({"nothing": np.zeros(3)}, {}, wrong):
        try:
            session.run(None, feeds)
        except tessera.TesseraError as error:
            assert error.findings and error.findings[0].value, error.findings
        else:
            raise AssertionError("no exception")
        assert near(session.run(None, FEEDS)[0], WANT["logits"])


def test_arrays_that_are_not_contiguous_and_dlpack():
    class Other:  # as tensors of torch and cupy
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    x = np.arange(12, dtype="f4").reshape(3, 4)
    model = small([helper.make_node("Relu", ["x"], ["y"])], [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])],
                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "m"])])
    session = tessera.PartitionSession(partition(model, dims={"n": 4, "m": 3}))
    assert np.array_equal(session.run(None, {"x": x.T})[0], x.T)
    assert np.array_equal(session.run(None, {"x": Other(x)})[0], x)
    assert np.array_equal(session.run(None, {"x": x.astype(">f4")})[0], x)


def test_texts_and_sequences():
    texts = small([helper.make_node("Identity", ["x"], ["y"])], [helper.make_tensor_value_info("x", TensorProto.STRING, [3])],
                  [helper.make_tensor_value_info("y", TensorProto.STRING, [3])])
    given = np.array(["a", "", "\u00e9\u00e8"], object)
    assert tessera.PartitionSession(partition(texts)).run(None, {"x": given})[0].tolist() == given.tolist()
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    lists = small([helper.make_node("Identity", ["x"], ["y"])], [helper.make_value_info("x", kind)], [helper.make_value_info("y", kind)])
    arrays = [np.ones(2, "f4"), np.zeros((1, 3), "f4")]
    got = tessera.PartitionSession(partition(lists)).run(None, {"x": arrays})[0]
    assert all(np.array_equal(a, b) for a, b in zip(got, arrays)) and len(got) == 2


def test_threads_beside_each_other():
    errors = []

    def work():
        try:
            assert near(tessera.PartitionSession(partition()).run(None, FEEDS)[0], WANT["logits"])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors, errors


def refused(kind, words, work):
    try:
        work()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError("no exception")


def test_threads_that_share_a_session():
    session, wrong = tessera.PartitionSession(partition()), []
    feeds = [dict(FEEDS, input_ids=np.roll(FEEDS["input_ids"], k, axis=1)) for k in range(3)]
    want = [session.run(None, f)[0] for f in feeds]

    def work(k):
        for _ in range(20):
            try:
                if not np.array_equal(session.run(None, feeds[k])[0], want[k]):
                    wrong.append("outputs of another thread's inputs")
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong, wrong[:3]
    session.start(feeds[0])
    refused(tessera.TesseraError, "in progress", lambda: session.run(None, feeds[1]))
    assert np.array_equal(session.wait()[0], want[0])
    closer = threading.Thread(target=session.close)  # close() while another thread runs: that thread must get an error and not hang
    closer.start()
    refused(tessera.TesseraError, "closed", lambda: [session.run(None, FEEDS) for _ in range(10000)])
    session.close()


def test_texts_and_numbers_keep_their_ends():
    refused(Exception, "null", lambda: tessera.load(MODEL + "\0x"))
    refused(Exception, "64 bits", lambda: tessera.load(MODEL).add_config("c", 1 << 70))
    folder = os.path.join(ROOT, "tests/folders/genai_tiny")
    refused(ValueError, "token", lambda: list(tessera.generate(folder, [1 << 70])))
    refused(ValueError, "token", lambda: list(tessera.generate(folder, [-1])))
    refused((tessera.TesseraError, ValueError), "not a token id", lambda: list(tessera.generate(folder, [64])))


def test_verify_simulate_report_topology():
    found = tessera.verify(MODEL, devices=3, inputs=FEEDS)
    assert found.ok and found.outputs[0].max_rel <= 5e-5 and found.cut_nodes > 0
    tried = tessera.verify(MODEL, devices=2, inputs=FEEDS, random=2)
    assert tried.ok and tried.trials == 2 and tried.failed == 0
    assert tessera.simulate(MODEL, devices="hosts:2x2", dims=DIMS).seconds > 0
    tessera.report(MODEL, TMP.name + "/page.html", devices=2, dims=DIMS)
    assert b"<html" in open(TMP.name + "/page.html", "rb").read(2000)
    assert len(tessera.topology.show("ring:3")["devices"]) == 3


def test_interrupt_ends_a_verification_soon():
    code = (
        "import sys; sys.path.insert(0, %r); import tessera\ntry:\n    print('go', flush=True); tessera.verify(%r, devices=2,"
        " random=100000)\nexcept KeyboardInterrupt:\n    print('stopped')\n"
    )
    # A parent in the background may ignore SIGINT, and children inherit that.
    p = subprocess.Popen([sys.executable, "-c", code % (BUILD + "/python", MODEL)], stdout=subprocess.PIPE, text=True,
                         env=dict(os.environ, TMPDIR=TMP.name), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    p.stdout.readline()
    time.sleep(1)
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=60)
    assert "stopped" in out, out
    assert not [f for f in os.listdir(TMP.name) if f.startswith(("tessera-verify", "tessera-python"))], os.listdir(TMP.name)


def test_nothing_is_left():
    gc.collect()
    deadline = time.time() + 10
    while [t for t in threading.enumerate() if t.name == "tessera"] and time.time() < deadline:
        time.sleep(0.1)
    assert not [t for t in threading.enumerate() if t.name == "tessera"]


harness.run_functions(globals())
harness.finish()
