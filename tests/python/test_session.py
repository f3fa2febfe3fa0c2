# SPDX-License-Identifier: Apache-2.0
"""Tests sessions after mistakes: every argument is wrong once, interrupts, forks. Later answers are compared with onnxruntime.

usage: test_session.py BUILD"""
import os
import random
import signal
import tempfile
import time

import harness
from built import MODEL, ROOT, near, partition, tessera  # before onnxruntime

import numpy as np
import onnxruntime

FOLDER = ROOT + "/tests/folders/genai_tiny"
REFERENCE = onnxruntime.InferenceSession(MODEL)
NAMES = [v.name for v in REFERENCE.get_inputs()]
TMP = tempfile.TemporaryDirectory(prefix="tessera-session-")
ENDED_S = 20  # a child process that hangs is killed after this time


def feed(value):
    return {name: np.full((2, 9), value if name == "input_ids" else int(name == "attention_mask"), np.int64) for name in NAMES}


WANT = {value: REFERENCE.run(None, feed(value))[0] for value in range(1, 10)}


def expect_answers(session, what):
    for value in (7, 3, 9):
        assert near(session.run(None, feed(value))[0], WANT[value]), "after %s, run returns another call's answer" % what
    for value in (2, 8):
        session.start(feed(value))
    for value in (2, 8):
        assert near(session.wait()[0], WANT[value]), "after %s, wait returns another call's answer" % what


def expect_error(kinds, words, work):
    try:
        work()
    except kinds as error:
        assert words in str(error), error
        return
    raise AssertionError("no exception")


class Hostile:
    """An array whose conversion fails."""

    shape, dtype = (2, 9), np.dtype(np.int64)

    def __dlpack__(self, **options):
        raise BufferError("gone")

    def __array__(self, *arguments, **options):
        raise BufferError("gone")


class HostileFeeds(dict):
    def items(self):
        raise RuntimeError("no items")


BAD_FEEDS = {
    "a number": 5,
    "no inputs": None,
    "a list": [1, 2],
    "an empty mapping": {},
    "an unknown input": dict(feed(5), nothing=np.zeros(3)),
    "a missing input": {NAMES[0]: feed(5)[NAMES[0]]},
    "a name that is no text": {**feed(5), 5: np.zeros(3)},
    "a wrong type": {k: v.astype("f4") for k, v in feed(5).items()},
    "a wrong rank": {k: v.reshape(18) for k, v in feed(5).items()},
    "sizes that differ": dict(feed(5), attention_mask=np.ones((2, 4), np.int64)),
    "texts": {k: np.array([["a"] * 9] * 2) for k in NAMES},
    "an array that cannot be read": dict(feed(5), attention_mask=Hostile()),
    "a mapping that cannot be read": HostileFeeds(feed(5)),
    "ragged lists": dict(feed(5), attention_mask=[[1, 2], [3]]),
    "None for an array": dict(feed(5), attention_mask=None),
    "values that the engine refuses": feed(1 << 40),
}
BAD_OUTPUTS = {
    "an unknown output": ["nothing"],
    "one text for a list": "logits",
    "a number": 5,
    "numbers": [5],
}
BAD_PLACES = {
    "an array on the host": {"logits": np.zeros((2, 2), np.float32)},
    "an unknown output": {"nothing": np.zeros(3)},
    "no mapping": [np.zeros(3)],
    "a number": {"logits": 5},
}


def mistakes_of_run(session):
    for name, feeds in BAD_FEEDS.items():
        yield "run with feeds: " + name, lambda: session.run(None, feeds)
    for name, names in BAD_OUTPUTS.items():
        yield "run with output_names: " + name, lambda: session.run(names, feed(5))
    for name, out in BAD_PLACES.items():
        yield "run with out: " + name, lambda: session.run(None, feed(5), out=out)
    yield "run with run_options", lambda: session.run(None, feed(5), onnxruntime.RunOptions())
    yield "run with places as run_options", lambda: session.run(None, feed(5), {"logits": np.zeros(3)})
    yield "run with two feeds", lambda: session.run(None, feed(5), input_feed=feed(5))
    yield "run with an unknown keyword", lambda: session.run(None, feed(5), nothing=1)
    yield "run without arguments", lambda: session.run()


def mistakes_of_start(session):
    def start_and_wait(feeds):  # the engine checks an unsharded model's inputs only while it runs
        session.start(feeds)
        session.wait()

    for name, feeds in BAD_FEEDS.items():
        yield "start with " + name, lambda: start_and_wait(feeds)
    yield "start without arguments", lambda: session.start()


def mistakes_of_wait(session):
    def wait(*arguments, **named):
        session.start(feed(5))
        session.wait(*arguments, **named)

    def wait_for_the_first_of_two():
        session.start(feed(5))
        session.start(feed(6))
        try:
            session.wait(["nothing"])
        finally:
            assert near(session.wait()[0], WANT[6]), "a failed wait takes one run"

    for name, names in BAD_OUTPUTS.items():
        yield "wait with output_names: " + name, lambda: wait(names)
    for name, out in BAD_PLACES.items():
        yield "wait with out: " + name, lambda: wait(out=out)
    yield "wait of two runs", wait_for_the_first_of_two
    yield "wait without a run", lambda: session.wait()


def try_mistakes(session, mistakes):
    expect_answers(session, "nothing")
    for what, work in mistakes(session):
        try:
            work()
        except (tessera.TesseraError, TypeError, ValueError, BufferError, RuntimeError):
            pass
        else:
            raise AssertionError("no exception after " + what)
        expect_answers(session, what)


def each_session():
    """Yields a session with ranks as threads, and one with ranks as processes."""
    folder = partition()
    for transport in ("threads", "shm"):
        with tessera.PartitionSession(folder, transport=transport) as session:
            yield session


def test_every_argument_of_run():
    for session in each_session():
        try_mistakes(session, mistakes_of_run)


def test_every_argument_of_start():
    for session in each_session():
        try_mistakes(session, mistakes_of_start)


def test_every_argument_of_wait():
    for session in each_session():
        try_mistakes(session, mistakes_of_wait)


def test_interrupts():
    """Exceptions of signal handlers may arrive at any time during run, start and wait."""
    def interrupt(number, frame):
        raise KeyboardInterrupt

    session, drawn, hits = tessera.PartitionSession(partition()), random.Random(1), 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, drawn.uniform(1e-5, 2e-3))
                session.run(None, feed(4))
                session.start(feed(5))
                session.wait()
                time.sleep(0.01)
            except KeyboardInterrupt:
                hits += 1
            while session._under_way:  # the interrupt came between start and wait
                assert near(session.wait()[0], WANT[5])
            expect_answers(session, "an interrupt")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits > 20, hits
    session.close()


def test_a_failed_run_beside_others():
    """A failed run among several must not get another run's answer, and no other run may get its error as an answer."""
    session = tessera.PartitionSession(partition())
    expect_answers(session, "nothing")
    started = []
    for value in (5, 1 << 40, 6):
        try:
            session.start(feed(value))
            started.append(value)
        except tessera.TesseraError as error:  # the second run has failed already
            assert value == 6 and "indices element out of data bounds" in str(error), error
    for value in started:
        try:
            answer = session.wait()[0]
            assert value in WANT, "the failed run has an answer"
            assert near(answer, WANT[value]), "the answer of another run"
        except tessera.TesseraError as error:  # a failed run may also end the runs in flight with it
            assert "indices element out of data bounds" in str(error), error
    expect_error(tessera.TesseraError, "no run is in progress", session.wait)
    expect_answers(session, "a failed run of three")


def test_devices_are_checked_by_the_constructor():
    for devices in (0, -1, True, False, 1.5, [2], "nonsense", "", "0", "cuda:64", 10**30):
        expect_error((tessera.TesseraError, TypeError, ValueError), "", lambda: tessera.InferenceSession(MODEL, devices=devices))
        expect_error((tessera.TesseraError, TypeError, ValueError), "", lambda: tessera.load(MODEL).plan(devices))
        expect_error((tessera.TesseraError, TypeError, ValueError), "", lambda: tessera.verify(MODEL, devices=devices))
        expect_error((tessera.TesseraError, TypeError, ValueError), "", lambda: list(tessera.generate(FOLDER, [1], devices=devices)))
    for wrong in (dict(transport="pigeon"), dict(threads=-1), dict(threads="2"), dict(map_devices=["NPU:0"])):
        expect_error((TypeError, ValueError), list(wrong)[0], lambda: tessera.PartitionSession(partition(), **wrong))
    for devices in (np.int64(2), "2", "cpu:2"):
        assert near(tessera.InferenceSession(MODEL, devices=devices).run(None, feed(3))[0], WANT[3]), devices


def test_arguments_have_the_names_of_onnxruntime():
    import inspect
    import onnxruntime
    names = list(inspect.signature(onnxruntime.InferenceSession.__init__).parameters)
    assert list(inspect.signature(tessera.InferenceSession.__init__).parameters)[:5] == names[:5]
    assert tessera.InferenceSession(path_or_bytes=MODEL, devices=2, dims={"batch": 2,
                                                                          "seq": 9}).get_providers()[0] == "TesseraExecutionProvider"


def test_absent_libraries_of_other_providers():
    """The wheel of onnxruntime for GPUs lists TensorRT, which is rarely installed. It must not be opened."""
    import onnxruntime
    from tessera import provider
    known = onnxruntime.get_available_providers
    onnxruntime.get_available_providers = lambda: ["TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"] + known()
    try:
        _, providers, _ = provider._with_provider({"devices": "2"}, None, None, None)
    finally:
        onnxruntime.get_available_providers = known
    names = [p if isinstance(p, str) else p[0] for p in providers or []]
    assert not any("tensorrt" in name.lower() for name in names) and (not names or names[-1] == "CPUExecutionProvider"), names


def test_context_models_need_no_devices():
    """An EPContext model has its devices itself. onnxruntime alone refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        model = tessera.load(MODEL)
        model.plan(2, dims={"batch": 2, "seq": 9})
        model.partition(folder + "/parts", layout="context")
        for devices in (None, 2):
            session = tessera.InferenceSession(folder + "/parts/model.onnx", devices=devices)
            assert near(session.run(None, feed(3))[0], WANT[3]), devices


def test_generate_checks_its_arguments():
    expect_error(TypeError, "prompt", lambda: tessera.generate(FOLDER, 5))
    expect_error(TypeError, "prompt", lambda: tessera.generate(FOLDER, ["a", "b"]))
    expect_error(TypeError, "prompt", lambda: tessera.generate(FOLDER, {"role": "user"}))
    expect_error(ValueError, "max_tokens", lambda: tessera.generate(FOLDER, [1], max_tokens=-1))
    expect_error(TypeError, "max_tokens", lambda: tessera.generate(FOLDER, [1], max_tokens="4"))
    assert list(tessera.generate(FOLDER, [1, 7], max_tokens=0, devices=2)) == []
    assert len(list(tessera.generate(FOLDER, np.array([1, 7]), max_tokens=3, devices=2))) == 3


def test_names_that_are_misspelt():
    session = tessera.PartitionSession(partition())
    expect_error(tessera.TesseraError, "did you mean 'input_ids'", lambda: session.run(None, dict(feed(1), input_id=np.zeros(3))))
    expect_error(tessera.TesseraError, "did you mean 'logits'", lambda: session.run(["logit"], feed(1)))
    for work in (lambda: tessera.load(MODEL).plan(2, dims={"batchh": 2}), lambda: tessera.simulate(MODEL, devices=2, dims={"batchh": 2}),
                 lambda: tessera.report(MODEL, TMP.name + "/r.html", devices=2, dims={"batchh": 2})):
        expect_error(tessera.TesseraError, "did you mean 'batch'", work)


def test_reprs():
    model = tessera.load(MODEL)
    assert "model.onnx" in repr(model) and "nodes" in repr(model), model
    assert "in memory" in repr(tessera.load(open(MODEL, "rb").read()))
    session = tessera.PartitionSession(partition())
    assert "parts" in repr(session) and "closed" not in repr(session), session
    session.close()
    assert "closed" in repr(session), session


def in_child(work):
    """Runs `work` in a forked child. Returns its exit status: 1 if it raises, -9 if it hangs."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            print("child: %r" % error, flush=True)
        finally:
            os._exit(status)
    deadline = time.time() + ENDED_S
    while time.time() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -9


def test_forks():
    session, closed = tessera.PartitionSession(partition()), tessera.PartitionSession(partition())
    expect_answers(session, "nothing")
    closed.close()
    session.start(feed(4))
    model, tokens = tessera.load(MODEL), tessera.generate(FOLDER, [1, 7], max_tokens=40, devices=2)
    next(tokens)

    def refused():
        for work in (lambda: session.run(None, feed(2)), lambda: session.start(feed(2)), session.wait, lambda: model.plan(2),
                     lambda: model.nodes, lambda: model.save(TMP.name + "/child.onnx"), lambda: next(tokens),
                     lambda: tessera.InferenceSession(model, devices=2).run(None, feed(2))):
            expect_error((tessera.TesseraError, RuntimeError), "fork", work)
        repr(session), repr(model), closed.close(), session.close()

    def new_ones():
        with tessera.PartitionSession(partition()) as new:
            expect_answers(new, "a fork")
        assert tessera.verify(MODEL, devices=2, inputs=feed(3)).ok
        assert len(list(tessera.generate(FOLDER, [1, 7], max_tokens=3, devices=2))) == 3

    assert in_child(refused) == 0
    assert in_child(new_ones) == 0
    assert near(session.wait()[0], WANT[4])
    expect_answers(session, "a fork")
    assert len(list(tokens)) > 0


harness.run_functions(globals())
harness.finish()
