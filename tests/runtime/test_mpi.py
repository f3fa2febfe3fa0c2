# SPDX-License-Identifier: Apache-2.0
"""Tests ranks as processes under each installed MPI: same bits as with threads, messages that name the failed rank, and a stock ONNX
Runtime with the plug-in."""
import re
import shutil

from parts import *

FAMILIES = {"openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"], "mpich": ["mpirun.mpich"]}
PLUGIN = os.path.join(BUILD, "libtessera_ops.so")


def families():
    """Installed MPI families with a launcher and a plug-in: name -> launch(n)."""
    found = {}
    for name, words in FAMILIES.items():
        if shutil.which(words[0]) and os.path.exists(os.path.join(BUILD, "libtessera_mpi_%s.so" % name)):
            found[name] = lambda n, words=words: [*words, "-n", str(n)]
    return found


def mpi(path, inputs, launch, **options):
    return run(path, inputs, launch=launch, plugins=BUILD, **options)


def for_each_family(f):
    """Declares a case for all MPIs in the long version. In `make test`, each case runs with one MPI, in turn."""
    k = len(CASES)

    def inner(d):
        if not families():
            return "no MPI with a plug-in"
        skipped = []

        def one(name, launch):
            os.makedirs(os.path.join(d, name))
            skipped.append(f(os.path.join(d, name), launch))
        side_by_side(one, harness.sample(families().items(), 1, k))  # in parallel: a launcher mostly waits
        return next(filter(None, skipped), None)
    inner.__name__ = f.__name__
    return case(inner)


@for_each_family
def same_bits_as_threads(d, launch):
    for n, rows in harness.sample(((1, 3), (2, 1), (2, 700), (3, 40), (4, 300)), 2, 1):
        _, parts, x = mlp(n, rows=rows, inner=64, width=96)
        p = partition(d + "/p%d_%d" % (n, rows), parts)
        a, b = run(p, {"x": x}, threads=1), mpi(p, {"x": x}, launch(n), threads=1)
        c = mpi(p, {"x": x}, launch(n), threads=1, transport="mpi")  # messages only, as between hosts
        assert a.status == "OK" and b.code == 0 and c.code == 0, (str(a), str(b), str(c))
        assert a.outputs["y"].tobytes() == b.outputs["y"].tobytes() == c.outputs["y"].tobytes()


def words(at, launch, *words, timeout=harness.HANG_S, **env):
    """Make the calls of a job on every rank (job_tool): exit code and all output."""
    tool = os.path.join(os.path.dirname(TOOL), "job_tool")
    env = {**os.environ, "JOB_PLUGINS": BUILD, **env}
    p = subprocess.run([*launch, tool, engine(), at, *words], capture_output=True, text=True, errors="replace", timeout=timeout, env=env)
    return p.returncode, p.stdout + p.stderr


@for_each_family
def nobody_leaves_a_barrier_before_all_have_come(d, launch):
    """Ranks arrive 300 ms after each other: the first may leave only after the last has arrived, with and without pending runs."""
    _, parts, x = mlp(3)
    at = partition(d + "/p", parts)
    np.savez(d + "/in.npz", x=x)
    for before, after in (((), ()), (("start:%s/in.npz" % d,) * 2, ("wait:%s/out.npz" % d,) * 2)):
        rc, text = words(at, launch(3), *before, "late:300", "clock", "barrier", "clock", *after)
        clocks = sorted(int(line.split()[1]) for line in text.splitlines() if line.startswith("clock") and line.split()[1] != "0")
        # two ranks arrive before the last; if a rank had left early, its second time would be among the first three
        assert rc == 0 and len(clocks) == 6 and clocks[2] - clocks[0] >= 500, text


@for_each_family
def a_barrier_names_who_does_not_come(d, launch):
    # If rank 1 stops before a barrier, the others must fail and name it. (If it ended, a launcher might kill the others before they
    # report.)
    _, parts, x = mlp(3)
    at = partition(d + "/p", parts)
    rc, text = words(at, launch(3), "stop:1", "barrier", JOB_TIMEOUT="3")
    told = [line.split()[1] for line in text.splitlines() if line.startswith("barrier ")]
    assert rc and text.count("open done") >= 2 and set(told) == {str(STATUS.index("PEER"))} and "rank 1" in text, text


@for_each_family
def two_hosts(d, launch):
    """Four ranks that seem to be on two hosts: groups on one host use shared memory, others use messages. Same bits."""
    wrap = d + "/on_host"
    with open(wrap, "w") as f:
        f.write(
            '#!/bin/sh\nr=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\nexport r\nexec unshare -u sh -c \'hostname host$((r / 2)) && exec "$@"\' sh'
            ' "$@"\n'
        )
    os.chmod(wrap, 0o755)
    if subprocess.run(["unshare", "-u", "hostname", "elsewhere"], capture_output=True).returncode:
        return "no right to give a process another host name"
    parts = []
    for r in range(4):
        near = [0, 1] if r < 2 else [2, 3]
        nodes = [
            h.make_node("Mul", ["x", "mine"], ["a"]),
            comm("AllReduce", "a", "b", r // 2, near, F, token=0, reduce="sum", name="near"),
            comm("AllReduce", "b", "c", 2, range(4), F, token=1, reduce="sum", name="all"),
            comm("AllGather", "c", "y", 3 + r // 2, near, F, token=2, axis=0, name="pair")
        ]
        parts.append(model(nodes, [value("x", F, [300, 70])], [value("y")], {"mine": np.float32(1.1 + r)}))
    p = partition(d + "/p", parts)
    x = np.random.default_rng(1).normal(size=(300, 70)).astype("f4")
    a, b, c = run(p, {"x": x}, threads=1, times=2), mpi(p, {"x": x}, launch(4), threads=1,
                                                        times=2), mpi(p, {"x": x}, [*launch(4), wrap], threads=1, times=2)
    assert a.status == "OK" and b.code == 0 and c.code == 0, (str(a), str(b), str(c))
    assert a.outputs["y"].tobytes() == b.outputs["y"].tobytes() == c.outputs["y"].tobytes()


@for_each_family
def several_runs_in_one_process(d, launch):
    _, parts, x = mlp(2)
    r = mpi(partition(d + "/p", parts), {"x": x}, launch(2), times=3)
    assert r.code == 0 and list(r.outputs) == ["y"], str(r)


@for_each_family
def every_operator(d, launch):
    """AllGather and Reshard with messages, small and large."""
    n = 3
    models, want = gathered_and_resharded(n, (6, 60000))
    r = mpi(partition(d + "/p", models), {}, launch(n))
    assert r.code == 0 and all((r.outputs[y] == value).all() for y, value in want.items()), str(r)


@for_each_family
def another_number_of_ranks(d, launch):
    # A partition for two ranks must not start with three.
    _, parts, x = mlp(2)
    r = mpi(partition(d + "/p", parts), {"x": x}, launch(3))
    assert r.code == STATUS.index("USAGE") and "ranks-differ" in r.text and "the partition has 2 ranks, but 3 were started" in r.text, str(
        r)


@for_each_family
def a_file_of_one_rank_is_missing(d, launch):
    _, parts, x = mlp(2)
    p = partition(d + "/p", parts)
    os.remove(p + "/rank1.onnx")
    r = mpi(p, {"x": x}, launch(2))
    assert r.code == STATUS.index("IO") and "rank1.onnx" in r.text, str(r)
    os.remove(p + "/manifest.json")
    r = mpi(p, {"x": x}, launch(2))
    assert r.code == STATUS.index("IO") and "manifest.json" in r.text, str(r)


@for_each_family
def another_plan_on_one_rank(d, launch):
    """Two folders with different plans: the ranks must detect it when they connect, before they compute."""
    _, parts, x = mlp(2)
    p, q = partition(d + "/p", parts), partition(d + "/q", parts, plan="f" * 16)
    np.savez(d + "/in.npz", x=x)
    words = [TOOL, "run", "$1", d + "/in.npz", d + "/out.npz", "engine=" + engine(), "plugins=" + BUILD]
    script = 'case ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in 0) set -- %s;; *) set -- %s;; esac; exec %s' % (p, q, " ".join('"%s"' % w
                                                                                                                        for w in words))
    ended = subprocess.run([*launch(2), "sh", "-c", script], capture_output=True, text=True, timeout=harness.HANG_S)
    text = ended.stdout + ended.stderr
    assert ended.returncode == STATUS.index("PEER") and "rank-failed" in text and "different plans" in text, text


@for_each_family
def ranks_that_disagree(d, launch):
    # Ranks whose models disagree must report rank 1 and the node.
    one = lambda **k: [comm("AllReduce", "mine", "y", 0, range(2), F, **{"reduce": "sum", "name": "here", **k})]
    for k, nodes in enumerate([
            one(reduce="max"),
            one(plan="f" * 16), [comm("AllGather", "mine", "y", 0, range(2), F, axis=0)], [h.make_node("Identity", ["mine"], ["y"])]
    ]):
        models = [model(nodes if r else one(), [], [value("y")], {"mine": np.ones(4, "f4")}) for r in range(2)]
        r = mpi(partition(d + "/p%d" % k, models), {}, launch(2))
        assert r.code == STATUS.index("PEER") and "rank 1" in r.text and "here" in r.text, (k, str(r))


@for_each_family
def a_stopped_rank_is_named(d, launch):
    """Rank 1 stops before it works; rank 0 must report it after the timeout, and the job ends."""
    _, parts, x = mlp(2)
    p = partition(d + "/p", parts)
    np.savez(d + "/in.npz", x=x)
    # Rank 1 takes part in a first run, and stops itself before the second.
    words = " ".join('"%s"' % w
                     for w in [TOOL, "run", p, d + "/in.npz", d + "/out.npz", "engine=" + engine(), "plugins=" + BUILD, "timeout=2"])
    script = '[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 0 ] && exec %s times=2; exec %s stop=1' % (words, words)
    ended = subprocess.run([*launch(2), "sh", "-c", script], capture_output=True, text=True, timeout=harness.HANG_S)
    text = ended.stdout + ended.stderr
    assert ended.returncode and "rank 1 has sent no heartbeat" in text, text


@for_each_family
def a_killed_rank_ends_the_job(d, launch):
    # If a rank is killed, the job must end with an error that names the signal, and without it succeed.
    _, parts, x = mlp(2)
    p = partition(d + "/p", parts)
    np.savez(d + "/in.npz", x=x)
    words = " ".join('"%s"' % w for w in [TOOL, "run", p, d + "/in.npz", d + "/out.npz", "engine=" + engine(), "plugins=" + BUILD])
    for kill in ("", "kill=1"):
        script = '[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 0 ] && exec %s; exec %s %s' % (words, words, kill)
        ended = subprocess.run([*launch(2), "sh", "-c", script], capture_output=True, text=True, timeout=harness.HANG_S)
        text = ended.stdout + ended.stderr
        told = re.search(r"signal 9\b|EXIT CODE: 9\b|SIGNAL: 9\b|rank 1", text)
        assert bool(ended.returncode) == bool(kill) and os.path.exists(d + "/out.npz") == (not kill) and (told or not kill), ended
        if not kill:
            os.remove(d + "/out.npz")


STOCK = r"""
import os, sys, numpy as np, onnxruntime as ort
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
o = ort.SessionOptions()
o.intra_op_num_threads = 1
o.register_custom_ops_library(sys.argv[2])
s = ort.InferenceSession(os.path.join(sys.argv[1], "rank%d.onnx" % rank), o, providers=["CPUExecutionProvider"])
for _ in range(3):
    out = s.run(None, dict(np.load(sys.argv[3])))
if rank == 0:
    np.savez(sys.argv[4], **{a.name: b for a, b in zip(s.get_outputs(), out)})
"""


@for_each_family
def stock_python(d, launch):
    # Rank files run in Python's own onnxruntime under mpirun, with the plug-in; same bits as with threads.
    if harness.SANITIZED:
        return "the plug-in is sanitized, Python is not"
    for n in harness.sample((2, 4), 1):
        _, parts, x = mlp(n, rows=20)
        p = partition(d + "/p%d" % n, parts)
        np.savez(d + "/in.npz", x=x)
        ended = subprocess.run([*launch(n), sys.executable, "-c", STOCK, p, PLUGIN, d + "/in.npz", d + "/out.npz"], capture_output=True,
                               text=True, timeout=90)
        assert ended.returncode == 0, ended.stderr
        assert dict(np.load(d + "/out.npz"))["y"].tobytes() == run(p, {"x": x}, threads=1).outputs["y"].tobytes()


THREADS = r"""
import sys, threading, numpy as np, onnxruntime as ort
parts, plugin, inputs, outputs, n = *sys.argv[1:5], int(sys.argv[5])
sessions, outs = [], [None] * n
for r in range(n):
    o = ort.SessionOptions()
    o.intra_op_num_threads = 1
    o.add_session_config_entry("tessera.rank", str(r))
    o.add_session_config_entry("tessera.size", str(n))
    o.register_custom_ops_library(plugin)
    sessions.append(ort.InferenceSession("%s/rank%d.onnx" % (parts, r), o, providers=["CPUExecutionProvider"]))
def work(r):
    outs[r] = sessions[r].run(["y"], dict(np.load(inputs)))
for _ in range(3):
    threads = [threading.Thread(target=work, args=(r,)) for r in range(n)]
    [t.start() for t in threads]
    [t.join() for t in threads]
assert all(o[0].tobytes() == outs[0][0].tobytes() for o in outs)
np.savez(outputs, y=outs[0][0])
"""


@case
def stock_python_with_ranks_as_threads(d):
    # Rank files run in Python's own onnxruntime as threads of one process; same bits as the command.
    if harness.SANITIZED:
        return "the plug-in is sanitized, Python is not"
    _, parts, x = mlp(3, rows=20)
    p = partition(d + "/p", parts)
    np.savez(d + "/in.npz", x=x)
    ended = subprocess.run([sys.executable, "-c", THREADS, p, PLUGIN, d + "/in.npz", d + "/out.npz", "3"], capture_output=True, text=True,
                           timeout=harness.HANG_S)
    assert ended.returncode == 0, ended.stderr
    assert dict(np.load(d + "/out.npz"))["y"].tobytes() == run(p, {"x": x}, threads=1).outputs["y"].tobytes()


@case
def stock_python_alone(d):
    """Without launcher and config entries the model must be rejected, with a message that says what to do."""
    if harness.SANITIZED:
        return "the plug-in is sanitized, Python is not"
    _, parts, x = mlp(2)
    p = partition(d + "/p", parts)
    np.savez(d + "/in.npz", x=x)
    ended = subprocess.run([sys.executable, "-c", STOCK, p, PLUGIN, d + "/in.npz", d + "/out.npz"], capture_output=True, text=True,
                           timeout=harness.HANG_S)
    assert ended.returncode and "start it with mpirun" in ended.stderr and "down_sum" in ended.stderr, ended.stderr


TWICE = r"""
import sys, threading, time, numpy as np, onnxruntime as ort
feed, said, results = dict(np.load(sys.argv[3])), [], []
def session(rank):
    o = ort.SessionOptions()
    o.intra_op_num_threads = 1
    o.add_session_config_entry("tessera.rank", str(rank))
    o.add_session_config_entry("tessera.size", "2")
    o.register_custom_ops_library(sys.argv[2])
    return ort.InferenceSession("%s/rank%d.onnx" % (sys.argv[1], rank), o, providers=["CPUExecutionProvider"])
def work(s):
    try:
        results.append(s.run(["y"], feed)[0])
    except Exception as e:
        said.append(str(e))
first, second = session(0), session(1)
threads = [threading.Thread(target=work, args=(first,), daemon=True) for _ in range(2)]
[t.start() for t in threads]
until = time.time() + 20
while not said and time.time() < until:
    time.sleep(0.01)
assert len(said) == 1 and "two runs of one rank at the same time" in said[0], said
assert not results
work(second)  # now the other rank comes
[t.join(20) for t in threads]
assert len(results) == 2 and len(said) == 1, (results, said)
np.savez(sys.argv[4], y=results[0], z=results[1])
"""


@case
def two_runs_at_a_time(d):
    """A second run at the same time is rejected; the first is not disturbed and ends when the other rank arrives."""
    if harness.SANITIZED:
        return "the plug-in is sanitized, Python is not"
    _, parts, x = mlp(2)
    p = partition(d + "/p", parts)
    np.savez(d + "/in.npz", x=x)
    ended = subprocess.run([sys.executable, "-c", TWICE, p, PLUGIN, d + "/in.npz", d + "/out.npz"], capture_output=True, text=True,
                           timeout=harness.HANG_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    got, want = dict(np.load(d + "/out.npz")), run(p, {"x": x}, threads=1).outputs["y"]
    assert got["y"].tobytes() == got["z"].tobytes() == want.tobytes()


@case
def measured(d):
    """`tessera topology measure` under a launcher: one device per rank, and only rank 0 writes and prints."""
    tessera = os.path.join(BUILD, "tessera")
    if not os.path.exists(tessera):
        return "the command is not built"
    if not families():
        return "no MPI with a plug-in"
    n = 3 if harness.ALL else 2
    for launch in harness.sample(families().values(), 1):
        q = subprocess.run([*launch(n), tessera, "topology", "measure", "--seconds", "0.02", "-o", d + "/t.json"], capture_output=True,
                           text=True, timeout=120, env={**os.environ, "TESSERA_ORT": engine()})
        assert q.returncode == 0, q.stderr
        doc = json.load(open(d + "/t.json"))
        assert len(doc["devices"]) == n and len(doc["links"]) == n * (n - 1) and {c["devices"] for c in doc["collectives"]} == {n}, doc
        assert q.stdout.count("us per node") == 1, q.stdout


@case
def launcher_of_another_family(d):
    """The variables of Open MPI without its mpirun: MPI starts a single process, and a message says so."""
    if "openmpi" not in families():
        return "no Open MPI"
    _, parts, x = mlp(2)
    r = run(partition(d + "/p", parts), {"x": x}, plugins=BUILD, env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
    assert r.status == "ENGINE" and "mpi-failed" in r.text, str(r)


main()
