# SPDX-License-Identifier: Apache-2.0
"""Tests jobs, which are loaded once and run many times: several pending runs, states that stay on their ranks, failures."""
from parts import *

JOB = os.path.join(os.path.dirname(TOOL), "job_tool")


def job(path, *words, timeout=harness.HANG_S):
    """(exit code, statuses of the words, all text)"""
    p = subprocess.run([JOB, engine(), path, *words], capture_output=True, text=True, errors="replace", timeout=timeout)
    lines = p.stdout.splitlines()
    statuses = [
        int(x.split()[1]) for x, w in zip([x for x in lines if x.split() and x.split()[0] in {w.split(":")[0] for w in words}], words)
    ]
    return p.returncode, statuses, p.stdout + p.stderr


def sets(d, n, make):
    for k in range(n):
        np.savez("%s/in%d.npz" % (d, k), **make(k))


def results(d, n):
    return [dict(np.load("%s/out%d.npz" % (d, k))) for k in range(n)]


@case
def many_runs(d):
    """Results must have the same bits as single runs, for unsharded models and partitions, with one call per run or two."""
    for n in (1, 2, 3):
        whole, parts, x = mlp(n)
        at = partition("%s/p%d" % (d, n), parts)
        onnx.save(whole, d + "/w.onnx")
        sets(d, 3, lambda k: {"x": x * (k + 1)})
        want = [run(at, {"x": x * (k + 1)}).outputs["y"] for k in range(3)]
        for path in (at, "shm:" + at, *[d + "/w.onnx"] * (n == 1)):  # the unsharded model is the same for all n
            for words in (["run:%s/in%d.npz>%s/out%d.npz" % (d, k, d, k) for k in range(3)],
                          ["start:%s/in%d.npz" % (d, k) for k in range(3)] + ["wait:%s/out%d.npz" % (d, k) for k in range(3)]):
                rc, _, text = job(path, *words, "barrier", "ranks")
                assert rc == 0 and ("1 of 1" if path.endswith(".onnx") else "%d of %d" % (n, n)) in text, text
                got = [r["y"] for r in results(d, 3)]
                assert all(np.array_equal(a, b) if not path.endswith(".onnx") else np.allclose(a, b, atol=1e-4) for a, b in zip(got, want))


@case
def order_of_calls(d):
    # At most 16 runs may be pending; a wait without a run and a state after the first run are usage errors.
    _, parts, x = mlp(2)
    at = partition(d + "/p", parts)
    sets(d, 1, lambda k: {"x": x})
    start, wait = "start:%s/in0.npz" % d, "wait:%s/out0.npz" % d
    for at in (at, "shm:" + at):
        rc, st, text = job(at, wait, *[start] * 17, wait, start, *[wait] * 16)
        usage = STATUS.index("USAGE")
        assert rc == 0 and st == [usage] + [0] * 16 + [usage] + [0] * 18 and "run-order" in text, (st, text)
        rc, st, text = job(at, start, "keep:x=y", wait, "keep:x=z")
        assert st[1] == usage and st[3] == usage, text
        rc, st, text = job(at, start, start, start)  # closed with pending runs
        assert rc == 0, text


@case
def inputs_that_do_not_fit_end_nothing(d):
    # Inputs of a wrong shape or name are rejected, and the job stays usable.
    _, parts, x = mlp(2)
    at = partition(d + "/p", parts)
    np.savez(d + "/bad.npz", x=x[:2])
    np.savez(d + "/none.npz", z=x)
    sets(d, 1, lambda k: {"x": x})
    good = "run:%s/in0.npz>%s/out0.npz" % (d, d)
    rc, st, text = job(at, good, "start:%s/bad.npz" % d, good, "start:%s/none.npz" % d, good)
    assert rc == 0 and st == [0, 5, 0, 5, 0] and "input-missing" in text and "input-mismatch" in text, text


@case
def a_failure_ends_the_job(d):
    """A rank fails in its second run (the index of its Gather is out of range). Later calls must report the same error."""
    ins, outs = [value("x", F, [3]), value("i", I, [1])], [value("y", F, [1])]
    ranks = [
        model([h.make_node("Gather", ["x", "i"], ["g"]),
               comm("AllReduce", "g", "y", 0, range(2), F, reduce="sum")], ins, outs) for _ in range(2)
    ]
    at = partition(d + "/p", ranks)
    sets(d, 2, lambda k: {"x": np.arange(3, dtype="f4"), "i": np.array([1 + 9 * k])})
    word = lambda k: "run:%s/in%d.npz>%s/out%d.npz" % (d, k, d, k)
    failed = STATUS.index("INVALID")
    onnx.save(model([h.make_node("Gather", ["x", "i"], ["y"])], ins, outs), d + "/w.onnx")
    start, wait = "start:%s/in0.npz" % d, "wait:%s/out0.npz" % d
    for at in (at, "shm:" + at, d + "/w.onnx"):
        rc, st, text = job(at, word(0), word(1), word(0), "barrier", wait, start, wait)
        assert st == [0] + [failed] * 6 and "engine-failed" in text and "run-order" not in text, (at, st, text)


@case
def states_stay_with_their_ranks(d):
    """total' = total + x, kept by an unsharded job and by two ranks. The first run gets total as input; a later one may start again."""
    body = [h.make_node("Add", ["past", "x"], ["present"]), h.make_node("ReduceSum", ["present"], ["s"], keepdims=0)]
    ins = [value("x", F, ["n"]), value("past", F, ["n"])]
    whole = model(body + [h.make_node("Identity", ["s"], ["y"])], ins, [value("y", F, []), value("present", F, ["n"])])
    onnx.save(whole, d + "/w.onnx")
    cut = [
        model(body + [comm("AllReduce", "s", "y", 0, range(2), F, reduce="sum")], ins,
              [value("y", F, []), value("present", F, ["n"])]) for _ in range(2)
    ]
    at = partition(d + "/p", cut)
    sets(d, 4, lambda k: {"x": np.full(3, 10.0 ** k, "f4"), **({"past": np.zeros(3, "f4")} if k in (0, 3) else {})})
    words = ["run:%s/in%d.npz>%s/out%d.npz" % (d, k, d, k) for k in range(4)]
    places = ((d + "/w.onnx", 1), (at, 2), ("shm:" + at, 2))
    for path, ranks in places:
        rc, st, text = job(path, "keep:past=present", words[1])
        assert st == [0, 5] and "first run" in text, text
        rc, st, text = job(path, "keep:past=nothing")
        assert st == [5] and "input-unknown" in text, text
    for path, ranks in places + tuple(("in-place:" + path, ranks) for path, ranks in places):  # a sum may be written in place
        rc, st, text = job(path, "keep:past=present", *words)
        got = results(d, 4)
        assert rc == 0 and all(list(r) == ["y"] for r in got), text
        assert [float(r["y"]) for r in got] == [v * 3 * ranks for v in (1, 11, 111, 1000)], got
        starts = ["start:" + w[4:].split(">")[0] for w in words]
        rc, st, text = job(path, "keep:past=present", *starts, *["wait:%s/out%d.npz" % (d, k) for k in range(4)])
        assert rc == 0 and [float(r["y"]) for r in results(d, 4)] == [v * 3 * ranks for v in (1, 11, 111, 1000)], text


@case
def a_state_may_be_of_one_rank(d):
    """A launcher starts two ranks, as for two stages; only rank 1 has the state, and rank 0 accepts it."""
    x = value("x", F, ["n"])
    sums = lambda v: comm("AllReduce", v, "y", 0, range(2), F, reduce="sum")
    first = model([h.make_node("Identity", ["x"], ["s"]), sums("s")], [x], [value("y", F, ["n"])])
    second = model([h.make_node("Add", ["past", "x"], ["present"]), sums("present")], [x, value("past", F, ["n"])],
                   [value("y", F, ["n"]), value("present", F, ["n"])])
    at = partition(d + "/p", [first, second])
    doc = json.load(open(at + "/manifest.json"))
    for device, m in zip(doc["devices"], (first, second)):
        device["inputs"], device["outputs"] = ([v.name for v in side] for side in (m.graph.input, m.graph.output))
    json.dump(doc, open(at + "/manifest.json", "w"))
    for present, status in (("present", 0), ("nothing", 5)):
        p = subprocess.run(
            [sys.executable,
             os.path.join(os.path.dirname(__file__), "started.py"), "2", "--", JOB,
             engine(), at, "keep:past=" + present], capture_output=True, text=True, errors="replace", timeout=harness.HANG_S)
        assert [x for x in p.stdout.splitlines() if x.startswith("keep ")] == ["keep %d" % status] * 2, p


@case
def a_state_may_be_one_buffer(d):
    """A state of 8 MiB; each of 40 runs writes one element, to a copy or in place. Half-way it starts again."""
    body = [h.make_node("ScatterElements", ["past", "at", "x"], ["present"]), h.make_node("ReduceSum", ["present"], ["y"], keepdims=0)]
    n = 2 << 20
    ins = [value("past", F, [n]), value("at", onnx.TensorProto.INT64, [1]), value("x", F, [1])]
    onnx.save(model(body, ins, [value("y", F, []), value("present", F, [n])]), d + "/w.onnx")
    sets(d, 40, lambda k: {"at": np.array([k], "i8"), "x": np.ones(1, "f4"), **({"past": np.zeros(n, "f4")} if k % 20 == 0 else {})})
    words = ["run:%s/in%d.npz>%s/out%d.npz" % (d, k, d, k) for k in range(40)]
    for how in ("", "in-place:"):
        rc, st, text = job(how + d + "/w.onnx", "keep:past=present", *words)
        assert rc == 0 and [float(r["y"]) for r in results(d, 40)] == [1 + k % 20 for k in range(40)], text


SMALL = 80 << 20  # more than a process with an engine needs without caches


def peak_of(path, *words):
    """Peak resident bytes of a job."""
    with tempfile.TemporaryFile() as text:
        p = subprocess.Popen([JOB, engine(), path, *words], stdout=text, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        text.seek(0)
        said = text.read().decode(errors="replace")
    assert p.returncode == 0, said
    return used.ru_maxrss * 1024


@case
def a_run_keeps_the_buffers_that_the_plan_counts(d):
    """A cache with one declared size must be one buffer in plan and run. A cache that may grow is two, even if the planned sizes are
    equal."""
    tokens, heads, size = 147456, 2, 64  # 36 MiB per rank and cache: malloc returns that much to the system
    cache, predicted, measured, answers = 2 * heads * tokens * size * 4, {}, {}, {}
    draw = np.random.default_rng(3)
    rows = [{
        "q": draw.standard_normal((1, 1, heads * size), "f4"), "k": draw.standard_normal((1, 1, heads * size), "f4"),
        "v": draw.standard_normal((1, 1, heads * size), "f4"), "lengths": np.array([k], "i4"), "total": np.array([k + 1], "i4")
    } for k in range(3)]
    rows[0].update({"past_" + c: np.zeros((1, heads, tokens, size), "f4") for c in "kv"})
    for k, row in enumerate(rows):
        np.savez_compressed("%s/in%d.npz" % (d, k), **row)
    node = h.make_node("GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "lengths", "total"], ["y", "present_k", "present_v"],
                       name="attention", domain="com.microsoft", num_heads=heads, kv_num_heads=heads)
    row, one = [1, 1, heads * size], T.INT32
    for how, past, present in (("fixed", tokens, tokens), ("named", "length", "length"), ("grows", "past", "now")):
        ins = [value(n, F, row)
               for n in "qkv"] + [value("past_" + c, F, [1, heads, past, size])
                                  for c in "kv"] + [value("lengths", one, [1]), value("total", one, [1])]
        outs = [value("y", F, row)] + [value("present_" + c, F, [1, heads, present, size]) for c in "kv"]
        onnx.save(
            h.make_model(h.make_graph([node], "g", ins, outs), ir_version=10,
                         opset_imports=[h.make_opsetid("", 21), h.make_opsetid("com.microsoft", 1)]), d + "/m.onnx")
        tessera = lambda *words: subprocess.run([os.path.join(BUILD, "tessera"), *words], check=True, capture_output=True, text=True).stdout
        spec = "{1,1,2:0,1}"
        tessera("annotate", d + "/m.onnx", "--config", "c:2", *(w for n in "qkv" for w in ("--shard", "attention:%s=%s" % (n, spec))), "-o",
                d + "/c.onnx")
        sizes = [w for n in sorted({past, present} - {tokens}) for w in ("--dim", "%s=%d" % (n, tokens))]
        plan = json.loads(
            tessera("plan", d + "/c.onnx", "--config", "c", "--devices", "2", "--state", "past_*=present_*", *sizes, "-o", d + "/p.onnx",
                    "--json"))
        tessera("partition", d + "/p.onnx", "--config", "c", "-o", d + "/parts", "--force")
        states = json.load(open(d + "/parts/manifest.json"))["states"]
        assert len(states) == 2 and all(s["in_place"] == (how != "grows") for s in states), states
        predicted[how] = sum(plan["memory"])
        measured[how] = peak_of(d + "/parts", *("run:%s/in%d.npz>%s/out%d.npz" % (d, k, d, k) for k in range(3)))
        answers[how] = [r["y"] for r in results(d, 3)]
        assert all(list(r) == ["y"] for r in results(d, 3))
    for k in range(3):
        assert np.array_equal(answers["fixed"][k], answers["grows"][k]) and np.array_equal(answers["named"][k], answers["grows"][k]), k
    assert abs(predicted["fixed"] / predicted["named"] - 1) < 0.01, predicted
    assert 0.95 * cache < predicted["grows"] - predicted["fixed"] < 1.05 * cache, (predicted, cache)
    if b"__asan_init" not in open(JOB, "rb").read():  # AddressSanitizer keeps freed memory
        used = {how: measured[how] - cache for how in measured}  # without the tensors that the caller passed to the first run
        for how in ("fixed", "named"):
            assert predicted[how] <= used[how] < predicted[how] + SMALL, (predicted, used)
        assert predicted["grows"] <= used["grows"], (predicted, used)  # more: the arena of ONNX Runtime doubles its blocks


@case
def a_set_for_each_rank(d):
    """A separate tensor set for each rank, both for inputs and for outputs."""
    ins, outs = [value("x", F, ["n"])], [value("y", F, ["n"]), value("sum", F, [])]
    ranks = [model([h.make_node("Relu", ["x"], ["y"]), h.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
                    comm("AllReduce", "s", "sum", 0, range(3), F, reduce="sum")], ins, outs) for _ in range(3)]
    at = partition(d + "/p", ranks)
    x = np.arange(-3, 4, dtype="f4")
    for r, piece in enumerate(np.array_split(x, 3)):
        np.savez("%s/in%d.npz" % (d, r), x=piece)
    names = lambda kind: ",".join("%s/%s%d.npz" % (d, kind, r) for r in range(3))
    for at in (at, "shm:" + at):
        rc, st, text = job(at, "startcut:" + names("in"), "waitcut:" + names("out"))
        got = results(d, 3)
        assert rc == 0 and np.array_equal(np.concatenate([r["y"] for r in got]), np.maximum(x, 0)), text
        assert all(float(r["sum"]) == x.sum() for r in got)


def command_line(path):
    """Contents of a file in /proc; empty if the process has ended."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


@case
def a_child_that_dies_ends_the_job(d):
    """A child dies between runs, or with pending runs: it must be named, later calls report the same, and no process remains."""
    _, parts, x = mlp(3)
    at = "shm:" + partition(d + "/p", parts)
    sets(d, 1, lambda k: {"x": x})
    good, start, wait = "run:%s/in0.npz>%s/out0.npz" % (d, d), "start:%s/in0.npz" % d, "wait:%s/out0.npz" % d
    peer = STATUS.index("PEER")
    for words, first in (([good, "kill:1", good, good, "barrier"], 2), ([good, start, "kill:2", start, wait,
                                                                         wait], 4), (["kill:0", "barrier", wait, start, wait], 1)):
        rc, st, text = job(at, *words)
        bad = [i for i, s in enumerate(st) if s]
        assert rc == peer and bad and all(st[i] == peer for i in range(bad[0], len(st))), (words, st, text)
        killed = next(w for w in words if w.startswith("kill"))[5:]
        assert "rank %s" % killed in text, (words, text)
    left = [p for p in glob.glob("/proc/[0-9]*/cmdline") if d.encode() in command_line(p)]
    assert not left, left


@case
def a_barrier_collects_what_was_started(d):
    """Runs without a wait call are done when the barrier returns: the results are available at once, in order."""
    _, parts, x = mlp(3)
    at = partition(d + "/p", parts)
    sets(d, 3, lambda k: {"x": x * (k + 1)})
    want = [run(at, {"x": x * (k + 1)}).outputs["y"] for k in range(3)]
    starts, waits = (["%s:%s/%s%d.npz" % (word, d, name, k) for k in range(3)] for word, name in (("start", "in"), ("wait", "out")))
    for path in (at, "shm:" + at):
        rc, st, text = job(path, "barrier", *starts, "barrier", *waits, "barrier", "barrier")
        assert rc == 0 and not any(st), text
        assert all(np.array_equal(r["y"], w) for r, w in zip(results(d, 3), want)), text


@case
def common_weights_are_held_once(d):
    """Two ranks share 48 MiB of weights in common.data, which kernels pack: they must be packed once, not once per rank."""
    rng = np.random.default_rng(0)
    names, size = ["w%d" % k for k in range(3)], 2048
    data = (rng.random((3, size, size), "f4") - 0.5) / 13
    at = d + "/p"
    os.makedirs(at)
    data.tofile(at + "/common.data")
    chain = [h.make_node("MatMul", ["x" if k == 0 else "a%d" % k, n], ["a%d" % (k + 1)]) for k, n in enumerate(names)]
    ranks = []
    for r in range(2):
        m = model(chain + [comm("AllReduce", "a3", "y", 0, range(2), F, reduce="sum")], [value("x", F, [4, size])],
                  [value("y", F, [4, size])])
        for k, n in enumerate(names):
            t = m.graph.initializer.add(name=n, data_type=F, dims=[size, size], data_location=T.EXTERNAL)
            for key, v in (("location", "common.data"), ("offset", k * size * size * 4), ("length", size * size * 4)):
                t.external_data.add(key=key, value=str(v))
        m.metadata_props.add(key="ai.tessera.shared", value="\n".join(names))
        ranks.append(m)
    partition(at, ranks)
    doc = json.load(open(at + "/manifest.json"))
    whole = open(at + "/common.data", "rb").read()
    doc["files"]["common.data"], doc["sizes"]["common.data"] = hashlib.sha256(whole).hexdigest(), len(whole)
    for dev in doc["devices"]:
        dev["data"] = ["common.data"]
    json.dump(doc, open(at + "/manifest.json", "w"))
    x = rng.normal(size=(4, size)).astype("f4")
    np.savez(d + "/x.npz", x=x)
    rc, _, text = job(at, "memory", "run:%s/x.npz>%s/y.npz" % (d, d), "memory")
    want = 2 * (x @ data[0] @ data[1] @ data[2])
    assert rc == 0 and np.abs(np.load(d + "/y.npz")["y"] - want).max() <= 5e-4 * np.abs(want).max(), text
    held = [int(x.split()[1]) / 1024 for x in text.splitlines() if x.startswith("anonymous")]
    if b"__asan_init" in open(JOB, "rb").read():
        return "a sanitizer keeps what is freed"
    assert held[-1] < 48 + 30, "%s MiB" % held  # packed per rank: above 96


@case
def runs_through_stages(d):
    """Two stages with eight pending runs must give the results of a single run."""
    work = 40
    x = np.random.default_rng(0).normal(size=(160, 160)).astype("f4") / 13
    chain = lambda a, b: [
        h.make_node("MatMul", ["%s%d" % (a, k) if k else a, "w"], ["%s%d" % (a, k + 1) if k + 1 < work else b]) for k in range(work)
    ]
    first = model(
        chain("x", "a") + [comm("Send", "a", "none", 0, range(2), F, **{"from": 0, "to": 1})], [value("x", F, x.shape)],
        [value("none", F, None)], {"w": x})
    empty = {"w": x, "empty": np.zeros(0, "f4")}
    second = model([comm("Recv", "empty", "b", 0, range(2), F, **{"from": 0, "to": 1})] + chain("b", "y"), [], [value("y", F, x.shape)],
                   empty)
    at = partition(d + "/p", [first, second])
    sets(d, 2, lambda k: {"x": x + k})
    files = ",".join("%s/o%d.npz" % (d, r) for r in range(2))
    one = ["start:%s/in1.npz" % d, "waitcut:" + files]
    rc, _, text = job(at, *one)
    assert rc == 0, text
    want = np.load(d + "/o1.npz")["y"]
    for at in (at, "shm:" + at):
        rc, _, text = job(at, *[one[0]] * 8, *[one[1]] * 8)
        assert rc == 0 and np.array_equal(np.load(d + "/o1.npz")["y"], want), text


main()
