# SPDX-License-Identifier: Apache-2.0
"""Tests ranks as child processes with shared memory: same bits as with threads. Whatever happens to a rank, all must end soon, the message
names it, and nothing remains."""
import os
import re
import signal
import time

import onnx
from onnx import TensorProto, helper, numpy_helper

from test_shm_tools import *


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
    """Numbers, texts, empty tensors and scalars must be returned by the process of rank 0."""
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
    # A rank that is killed or stopped must be named, with the signal and what the others waited for.
    for i, (sig, rank, words) in enumerate(((signal.SIGKILL, 0, "killed by signal 9"), (signal.SIGTERM, 2, "killed by signal 15"),
                                            (signal.SIGSEGV, 1, ""), (signal.SIGSTOP, 1, "no heartbeat"))):
        os.makedirs("%s/%d" % (d, i))
        b = Bench("%s/%d" % (d, i), 3)
        os.kill(b.kids[rank], sig)
        code = b.end()
        assert code == 6 and "rank %d" % rank in b.err and words in b.err, (sig, code, b.err)
        assert "AllReduce 'down_sum'" in b.err or "'between runs'" in b.err or "handshake" in b.err or "barrier" in b.err, b.err


@case
def slow_is_no_failure(d):
    """A rank that is stopped for less than the timeout must not fail the run; nor must a complete job that is stopped for longer."""
    b = Bench(d, 2, seconds=1.6, timeout=3)
    os.kill(b.kids[1], signal.SIGSTOP)
    time.sleep(1.2)
    os.kill(b.kids[1], signal.SIGCONT)
    os.killpg(b.p.pid, signal.SIGSTOP)
    time.sleep(4)
    os.killpg(b.p.pid, signal.SIGCONT)
    assert b.end() == 0, b.err


@case
def hangup_that_is_ignored(d):
    """Under nohup a closed terminal sends SIGHUP to all processes of the job: none of them may end."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # children inherit it
    try:
        b = Bench(d, 2, seconds=0.8)
    finally:
        signal.signal(signal.SIGHUP, before)
    os.killpg(b.p.pid, signal.SIGHUP)
    assert b.end() == 0, b.err


@case
def parent_killed(d):
    b = Bench(d, 3)
    os.kill(b.p.pid, signal.SIGKILL)
    assert b.end() == -signal.SIGKILL


@case
def another_plan(d):
    _, parts, x = mlp(2)
    other = mlp(2)[1][1]
    for n in other.graph.node:
        for a in n.attribute:
            if a.name == "plan":
                a.s = b"ffffffffffffffff"
    r = run(partition(d + "/p", [parts[0], other]), {"x": x}, transport="shm")
    assert r.status == "PEER" and "different plans" in r.text and "rank" in r.text and "down_sum" in r.text, str(r)


@case
def out_of_memory(d):
    """The engine of a rank cannot allocate the memory it needs."""
    if harness.SANITIZED:
        return "a sanitizer ends the process where memory is refused"
    _, parts, x = mlp(2)
    m = mlp(2)[1][1]
    for n in reversed([
            h.make_node("Shape", ["x"], ["sizes"]),
            h.make_node("Mul", ["sizes", "many"], ["shape"]),
            h.make_node("ConstantOfShape", ["shape"], ["zeros"], name="too_big"),
            h.make_node("ReduceSum", ["zeros"], ["none"], keepdims=0)
    ]):
        m.graph.node.insert(0, n)
    m.graph.initializer.append(nh.from_array(np.array([1 << 22, 1 << 20], np.int64), "many"))
    next(n for n in m.graph.node if n.op_type == "Relu").CopyFrom(h.make_node("Add", ["a", "none"], ["b"]))
    for transport in ("shm", "threads"):
        r = run(partition(d + "/" + transport, [parts[0], m]), {"x": x}, transport=transport)
        assert r.status == "PEER" and "rank 1" in r.text and "rank-memory" in r.text, str(r)
        assert "too_big" in r.text or "while its model was loaded" in r.text, str(r)  # an old engine computes it while loading


@case
def cannot_start(d):
    """Failing start of the shared memory, of the first process, of a later one."""
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
    # The JSON document of `tessera bench` must be consistent.
    _, parts, x = mlp(3)
    p = partition(d + "/p", parts)
    np.savez(d + "/in.npz", x=x)
    for transport in ("shm", "threads"):
        q = subprocess.run([TESSERA, "bench", p, "--seconds", "0.3", "--json", "--inputs", d + "/in.npz", "--transport", transport],
                           capture_output=True, text=True, env={**os.environ, "TESSERA_ORT": engine()})
        assert q.returncode == 0, q.stderr
        doc = json.loads(q.stdout)
        ms = doc["run_ms"]
        assert doc["ranks"] == 3 and doc["runs"] >= 1 and doc["warmups"] >= 3 and len(doc["communication"]) == 3
        assert 0 < ms["min"] <= ms["p50"] <= ms["p90"] <= ms["p95"] <= ms["p99"] <= ms["max"], ms
        assert all(0 < s <= 1 for s in doc["communication"]), doc
        assert abs(doc["seconds"] * 1e3 / doc["runs"] - ms["mean"]) < 1e-6 * ms["mean"] + 1e-9
        if transport == "shm":  # ranks have their own processes
            assert len(doc["memory"]) == 3 and all(0 < m < 1 << 28 for m in doc["memory"]) and doc["process_memory"] is None, doc
        else:
            assert doc["memory"] == [None] * 3 and 0 < doc["process_memory"] < 1 << 28, doc


@case
def memory_is_counted(d):
    """A weight of 32 MiB on every rank and a product of 16 MiB: bench must report both, each once."""
    if harness.SANITIZED:
        return "a sanitizer needs more memory"
    w = np.random.default_rng(0).random((2048, 4096), "f")
    m = helper.make_model(helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("ReduceSum", ["h"], ["y"], keepdims=0)], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1024, 2048])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(w, "w")]), ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(m, d + "/m.onnx")
    q = subprocess.run([TESSERA, "bench", d + "/m.onnx", "--seconds", "0.2", "--json"], capture_output=True, text=True,
                       env={**os.environ, "TESSERA_ORT": engine()})
    assert q.returncode == 0, q.stderr
    held = json.loads(q.stdout)["memory"][0] / 2**20
    assert 40 < held < 96, held


def shared_bytes(pid):
    """Bytes of the job's shared memory that a process has touched; 0 if it has ended."""
    try:
        lines, here, n = open("/proc/%d/smaps" % pid).read().splitlines(), False, 0
    except OSError:
        return 0
    for line in lines:
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            here = "memfd:tessera-job" in line
        elif here and line.startswith("Rss:"):
            n += 1024 * int(line.split()[1])
    return n


@case
def tensors_lie_in_shared_memory(d):
    """An all-reduce reads its inputs in shared memory without a copy; if there is no space for that, the results are the same."""
    sizes = dict(rows=2048, inner=8, width=1024)  # 8 MiB
    b, touched = Bench(d + "/b", 2, seconds=1, settle=0, **sizes), [0]
    while min(touched) <= 8 << 20 and all(map(alive, b.kids)):
        touched = [shared_bytes(k) for k in b.kids]
        time.sleep(0.02)
    assert b.end() == 0, b.err
    assert min(touched) > 8 << 20, touched
    if harness.SANITIZED:
        return None  # it cannot start with a memory limit
    _, parts, x = mlp(2, **sizes)
    p = partition(d + "/p", parts)
    runs = [run(p, {"x": x}, threads=1), run(p, {"x": x}, threads=1, transport="shm"),
            run(p, {"x": x}, threads=1, transport="shm", launch=("prlimit", "--as=%d" % (24 << 30)))]
    for r in runs:
        assert r.status == "OK" and r.outputs["y"].tobytes() == runs[0].outputs["y"].tobytes(), str(r)


@case
def keeps_to_cores(d):
    """Ranks run on separate cores, unless there are too few or an option disables that."""
    cores = os.sched_getaffinity(0)
    for n, words in ((2, []), (2, ["--no-pin"]), (len(cores) + 1, [])):
        b = Bench(d + "/%d%s" % (n, "".join(words)), n, seconds=0.6, words=words)
        sets = [os.sched_getaffinity(k) for k in b.kids]
        if words or n > len(cores):
            assert all(s == cores for s in sets), sets
        else:
            assert sum(map(len, sets)) == len(set().union(*sets)) == len(cores), sets
        assert b.end() == 0, b.err


PORT = [20000]


def plain(d, path, x, n, tool=None, **options):
    """Start n ranks with plain environment variables, as torchrun does: the output of each, and the results of rank 0."""
    PORT[0] += 1
    np.savez(d + "/in.npz", x=x)
    ranks = []
    for r in reversed(range(n)):  # the other ranks wait for rank 0
        env = {
            **os.environ, "RANK": str(r), "WORLD_SIZE": str(n), "MASTER_ADDR": "localhost", "MASTER_PORT": "%d%d" % (os.getpid(), PORT[0]),
            "LOCAL_WORLD_SIZE": str(n)
        }
        env.update({k: str(v) for k, v in options.get("env", {}).items()})
        words = [
            TOOL, "run", path, d + "/in.npz",
            "%s/out%d.npz" % (d, r), "engine=" + engine(), *options.get("words", {}).get(r, []), "threads=1"
        ]
        ranks.insert(0, subprocess.Popen(tool or words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env))
    said = [ranks[0].communicate(timeout=harness.HANG_S)[0]]
    if options.get("kill"):
        ranks[1].kill()
    said += [p.communicate(timeout=harness.HANG_S)[0] for p in ranks[1:]]
    out = d + "/out0.npz"
    return [p.returncode for p in ranks], said, dict(np.load(out)) if os.path.exists(out) else {}


@case
def plain_environment(d):
    for n in (1, 2, 4):
        _, parts, x = mlp(n, rows=200, inner=64, width=96)
        p = partition(d + "/p%d" % n, parts)
        a = run(p, {"x": x}, threads=1)
        codes, said, outputs = plain(d, p, x, n, words={r: ["times=2"] for r in range(n)})
        assert codes == [0] * n, said
        assert outputs["y"].tobytes() == a.outputs["y"].tobytes()
        os.remove(d + "/out0.npz")


@case
def plain_environment_fails_clearly(d):
    # Wrong variables, a wrong transport and a stopped rank must give clear errors.
    _, parts, x = mlp(2)
    p = partition(d + "/p", parts)
    codes, said, _ = plain(d, p, x, 2, env={"LOCAL_WORLD_SIZE": 1})
    assert all(STATUS[c] == "USAGE" for c in codes) and all("several hosts" in t for t in said), (codes, said)
    codes, said, _ = plain(d, p, x, 2, words={0: ["transport=mpi"], 1: ["transport=mpi"]})
    assert all(STATUS[c] == "USAGE" for c in codes) and all("MPI launcher" in t for t in said), (codes, said)
    codes, said, _ = plain(d, p, x, 2, words={0: ["times=2", "timeout=2"], 1: ["stop=1"]}, kill=True)
    assert STATUS[codes[0]] == "PEER" and "rank 1 has sent no heartbeat" in said[0], (codes, said)


main()
