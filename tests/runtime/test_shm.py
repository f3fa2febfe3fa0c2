# SPDX-License-Identifier: Apache-2.0
"""Ranks as child processes that share memory: same bits as threads; whatever happens to one, all end soon, it is named, and nothing is left."""
import signal
import time

from parts import *

TESSERA = os.path.join(BUILD, "tessera")
SANITIZED = os.environ.get("TESSERA_SANITIZED") == "1"


def children(pid):
    found = []
    for t in glob.glob("/proc/%d/task/*/children" % pid):
        try:
            found += map(int, open(t).read().split())
        except OSError:
            pass
    return sorted(found)


def alive(pid):
    try:
        return open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def segments():
    return {s for s in os.listdir("/dev/shm") if s.startswith("tessera-")}


class Bench:
    """`tessera bench` over processes, at work when the constructor returns."""

    def __init__(self, d, n, seconds=60, timeout=2, **sizes):
        _, parts, x = mlp(n, **sizes)
        self.n, self.before = n, segments()
        np.savez(d + "/in.npz", x=x)
        words = [TESSERA, "bench", partition(d + "/p", parts), "--transport", "shm", "--seconds", str(seconds), "--timeout", str(timeout), "--inputs", d + "/in.npz"]
        self.p = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "TESSERA_ORT": engine()})
        until = time.time() + 30
        while len(children(self.p.pid)) < n and self.p.poll() is None and time.time() < until:
            time.sleep(0.02)
        time.sleep(0.5)
        self.kids = children(self.p.pid)
        assert len(self.kids) == n and self.p.poll() is None, (self.kids, self.p.poll())

    def end(self, within):
        began = time.time()
        self.out, self.err = self.p.communicate(timeout=60)
        took = time.time() - began
        until = time.time() + 1
        while any(map(alive, self.kids)) and time.time() < until:
            time.sleep(0.02)
        left = [k for k in self.kids if alive(k)]
        for k in left:
            os.kill(k, signal.SIGKILL)
        assert not left, "%d ranks left" % len(left)
        assert segments() == self.before, segments()
        assert took < within, "%.1f s" % took
        return self.p.returncode


@case
def same_bits_as_threads(d):
    for n, rows in ((1, 3), (2, 1), (2, 700), (3, 40), (3, 3000), (4, 300)):
        _, parts, x = mlp(n, rows=rows, inner=64, width=96)
        p = partition(d + "/p%d_%d" % (n, rows), parts)
        a, b = run(p, {"x": x}, threads=1), run(p, {"x": x}, threads=1, transport="shm")
        assert a.status == "OK" and b.status == "OK", (str(a), str(b))
        assert a.outputs["y"].tobytes() == b.outputs["y"].tobytes()


@case
def several_runs(d):
    _, parts, x = mlp(2)
    r = run(partition(d + "/p", parts), {"x": x}, times=3, transport="shm")
    assert r.status == "OK" and list(r.outputs) == ["y"], str(r)


@case
def every_kind_of_output(d):
    """Numbers, texts, empty tensors and scalars come back from the process of rank 0."""
    texts = np.array([["a", "\u00e4\u00f6", ""], ["long " * 99, "b", "c"]], dtype=object)
    nodes = [h.make_node("Identity", [k], ["out_" + k]) for k in ("texts", "scalar", "empty")]
    ins = {"texts": texts, "scalar": np.float16(2.5), "empty": np.zeros((0, 3), np.int64)}
    kinds = {"texts": T.STRING, "scalar": T.FLOAT16, "empty": I}
    m = model(nodes, [value("x", F, [1])], [value("out_" + k, kinds[k]) for k in kinds], ins)
    p = partition(d + "/p", [m, m])
    a, b = run(p, {"x": np.ones(1, "f4")}), run(p, {"x": np.ones(1, "f4")}, transport="shm")
    assert a.status == b.status == "OK" and len(a.outputs) == 3, (str(a), str(b))
    for k, v in a.outputs.items():
        assert b.outputs[k].dtype == v.dtype and b.outputs[k].tobytes() == v.tobytes() and b.outputs[k].shape == v.shape, k


@case
def killed_and_stopped(d):
    for i, (sig, rank, within, words) in enumerate(((signal.SIGKILL, 0, 5, "killed by signal 9"), (signal.SIGTERM, 2, 5, "killed by signal 15"),
                                                    (signal.SIGSEGV, 1, 5, ""), (signal.SIGSTOP, 1, 2 + 5, "no sign of life"))):
        os.makedirs("%s/%d" % (d, i))
        b = Bench("%s/%d" % (d, i), 3)
        os.kill(b.kids[rank], sig)
        code = b.end(within)
        assert code == 6 and "rank %d" % rank in b.err and words in b.err, (sig, code, b.err)
        assert "AllReduce 'down_sum'" in b.err or "'between runs'" in b.err or "handshake" in b.err or "barrier" in b.err, b.err


@case
def slow_is_no_failure(d):
    """A rank that is stopped for less than the time-out is waited for; so is a job that is stopped whole for longer."""
    b = Bench(d, 2, seconds=3, timeout=3)
    os.kill(b.kids[1], signal.SIGSTOP)
    time.sleep(1.2)
    os.kill(b.kids[1], signal.SIGCONT)
    os.killpg(b.p.pid, signal.SIGSTOP)
    time.sleep(4)
    os.killpg(b.p.pid, signal.SIGCONT)
    assert b.end(10) == 0, b.err


@case
def parent_killed(d):
    b = Bench(d, 3)
    os.kill(b.p.pid, signal.SIGKILL)
    assert b.end(5) == -signal.SIGKILL


@case
def another_plan(d):
    _, parts, x = mlp(2)
    other = mlp(2)[1][1]
    for n in other.graph.node:
        for a in n.attribute:
            if a.name == "plan":
                a.s = b"ffffffffffffffff"
    began = time.time()
    r = run(partition(d + "/p", [parts[0], other]), {"x": x}, transport="shm")
    assert r.status == "PEER" and "another plan" in r.text and "rank" in r.text and "down_sum" in r.text, str(r)
    assert time.time() - began < 5


@case
def out_of_memory(d):
    """A rank whose engine cannot have the memory it wants."""
    _, parts, x = mlp(2)
    m = mlp(2)[1][1]
    for n in reversed([h.make_node("Shape", ["x"], ["sizes"]), h.make_node("Mul", ["sizes", "many"], ["shape"]),
                       h.make_node("ConstantOfShape", ["shape"], ["zeros"], name="too_big"), h.make_node("ReduceSum", ["zeros"], ["none"], keepdims=0)]):
        m.graph.node.insert(0, n)
    m.graph.initializer.append(nh.from_array(np.array([1 << 22, 1 << 20], np.int64), "many"))
    next(n for n in m.graph.node if n.op_type == "Relu").CopyFrom(h.make_node("Add", ["a", "none"], ["b"]))
    for transport in ("shm", "threads"):
        r = run(partition(d + "/" + transport, [parts[0], m]), {"x": x}, transport=transport)
        assert r.status == "PEER" and "rank 1" in r.text and "too_big" in r.text and "rank-memory" in r.text, str(r)


@case
def cannot_start(d):
    """The memory, the first process, a later one."""
    _, parts, x = mlp(3)
    p = partition(d + "/p", parts)
    for n, code in ((1, "shm-failed"), (2, "rank-start"), (4, "rank-start")):
        r = run(p, {"x": x}, transport="shm", spawn=n)
        assert r.status == "PEER" and code in r.text, (n, str(r))


@case
def damaged(d):
    _, parts, x = mlp(2)
    p = partition(d + "/p", parts)
    data = open(p + "/rank1.onnx", "rb").read()
    open(p + "/rank1.onnx", "wb").write(data[:-7])
    r = run(p, {"x": x}, transport="shm")
    assert r.status in ("MALFORMED", "IO") and "rank1.onnx" in r.text, str(r)


@case
def inputs_that_do_not_fit(d):
    _, parts, x = mlp(2)
    r = run(partition(d + "/p", parts), {"x": x[:, :3]}, transport="shm")
    assert r.status == "INVALID" and "input-mismatch" in r.text, str(r)


@case
def bench_says(d):
    _, parts, x = mlp(3)
    p = partition(d + "/p", parts)
    np.savez(d + "/in.npz", x=x)
    for transport in ("shm", "threads"):
        q = subprocess.run([TESSERA, "bench", p, "--seconds", "0.3", "--json", "--inputs", d + "/in.npz", "--transport", transport], capture_output=True,
                           text=True, env={**os.environ, "TESSERA_ORT": engine()})
        assert q.returncode == 0, q.stderr
        doc = json.loads(q.stdout)
        ms = doc["run_ms"]
        assert doc["ranks"] == 3 and doc["runs"] >= 1 and doc["warmups"] >= 3 and len(doc["communication"]) == 3
        assert 0 < ms["min"] <= ms["p50"] <= ms["p90"] <= ms["p95"] <= ms["p99"] <= ms["max"], ms
        assert all(0 < s < 1 for s in doc["communication"]), doc
        assert abs(doc["seconds"] * 1e3 / doc["runs"] - ms["mean"]) < 1e-6 * ms["mean"] + 1e-9


main()
