# SPDX-License-Identifier: Apache-2.0
"""Tests ranks as processes over UCX, started with plain environment variables: same bits as with threads, failures reported in time,
secrets."""
import contextlib
import random
import socket
import time

from parts import *

TESSERA = os.path.join(BUILD, "tessera")
STARTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "started.py")
SEVERAL = subprocess.run(["unshare", "-u", "hostname", "elsewhere"], capture_output=True).returncode == 0
if not os.path.exists(os.path.join(BUILD, "libtessera_ucx.so")):
    print("skipped: no UCX, so no plug-in for it")
    sys.exit(77)


def launch(n, hosts=1):
    return [sys.executable, "-IS", STARTED, str(n), str(hosts), "--"]  # without packages it starts faster


def ucx(path, inputs, n, hosts=1, env=None, **options):
    return run(path, inputs, launch=launch(n, hosts), plugins=BUILD, transport="ucx", env=env, **options)


def ways():
    """How ranks may communicate: shared memory of their host; UCX over shared memory and over TCP, as between hosts."""
    found = [("memory", 1, {})]
    if SEVERAL:
        found += [("messages", 99, {}), ("tcp", 99, {"UCX_TLS": "tcp"})]
    return found


@case
def same_bits_as_threads(d):
    for n, rows in harness.sample(((1, 3), (2, 1), (2, 700), (3, 40), (4, 300)), 2, 1):
        _, parts, x = mlp(n, rows=rows, inner=64, width=96)
        p = partition(d + "/p%d_%d" % (n, rows), parts)
        a = run(p, {"x": x}, threads=1)
        for name, hosts, env in ways():
            b = ucx(p, {"x": x}, n, min(hosts, n), env, threads=1)
            assert a.status == "OK" and b.code == 0, (name, n, str(a), str(b))
            assert a.outputs["y"].tobytes() == b.outputs["y"].tobytes(), (name, n)


@case
def large_tensors(d):
    """Several rounds and chunks: 3 ranks with 36 MB each; a round has 32 MiB."""
    nodes = lambda r: [h.make_node("Mul", ["x", "mine"], ["a"]), comm("AllReduce", "a", "y", 0, range(3), F, reduce="sum", name="sum")]
    parts = [model(nodes(r), [value("x", F, [900, 10000])], [value("y")], {"mine": np.float32(1.1 + r)}) for r in range(3)]
    p, x = partition(d + "/p", parts), np.random.default_rng(1).random((900, 10000), "f4")
    want = run(p, {"x": x}, threads=1)
    for name, hosts, env in harness.sample(ways(), 1, len(ways()) - 1):
        got = ucx(p, {"x": x}, 3, min(hosts, 3), env, threads=1)
        assert got.code == 0 and want.outputs["y"].tobytes() == got.outputs["y"].tobytes(), (name, str(got))


@case
def two_hosts(d):
    """Four ranks that seem to be on two hosts: groups on one host use shared memory, others use messages. Same bits."""
    if not SEVERAL:
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
    p, x = partition(d + "/p", parts), np.random.default_rng(1).normal(size=(300, 70)).astype("f4")
    a, b = run(p, {"x": x}, threads=1, times=2), ucx(p, {"x": x}, 4, 2, {"UCX_TLS": "tcp"}, threads=1, times=2)
    assert a.status == "OK" and b.code == 0, (str(a), str(b))
    assert a.outputs["y"].tobytes() == b.outputs["y"].tobytes()


@case
def every_operator(d):
    """AllGather and Reshard, small and large, several runs."""
    n = 3
    models, want = gathered_and_resharded(n, (6, 60000))
    p = partition(d + "/p", models)
    for name, hosts, env in ways():
        r = ucx(p, {}, n, min(hosts, n), env, times=3)
        assert r.code == 0 and all((r.outputs[y] == value).all() for y, value in want.items()), (name, str(r))


@case
def another_number_of_ranks(d):
    _, parts, x = mlp(2)
    r = ucx(partition(d + "/p", parts), {"x": x}, 3)
    assert r.code == STATUS.index("USAGE") and "ranks-differ" in r.text and "the partition has 2 ranks, but 3 were started" in r.text, str(
        r)


@case
def a_file_of_one_rank_is_missing(d):
    _, parts, x = mlp(2)
    p = partition(d + "/p", parts)
    os.remove(p + "/rank1.onnx")
    for name, hosts, env in harness.sample(ways(), 1, 1):
        r = ucx(p, {"x": x}, 2, min(hosts, 2), env)
        assert r.code in (STATUS.index("IO"), STATUS.index("PEER")) and "rank1.onnx" in r.text, (name, str(r))


@case
def ranks_that_disagree(d):
    one = lambda **k: [comm("AllReduce", "mine", "y", 0, range(2), F, **{"reduce": "sum", "name": "here", **k})]
    for k, nodes in enumerate([
            one(reduce="max"),
            one(plan="f" * 16), [comm("AllGather", "mine", "y", 0, range(2), F, axis=0)], [h.make_node("Identity", ["mine"], ["y"])]
    ]):
        p = partition(d + "/p%d" % k, [model(nodes if r else one(), [], [value("y")], {"mine": np.ones(4, "f4")}) for r in range(2)])
        for name, hosts, env in harness.sample(ways(), 1, k):
            r = ucx(p, {}, 2, min(hosts, 2), env)
            assert r.code == STATUS.index("PEER") and "rank 1" in r.text and "here" in r.text, (k, name, str(r))


def end_of_rank(d, victim, how, env, n=3):
    """Ranks on n hosts; one ends itself after a first run. Returns the ended process and the output of the ranks."""
    _, parts, x = mlp(n)
    d = tempfile.mkdtemp(dir=d)  # several jobs run at a time
    p = partition(d + "/p", parts)
    np.savez(d + "/in.npz", x=x)
    words = " ".join(
        '"%s"' % w
        for w in [TOOL, "run", p, d + "/in.npz", d + "/out.npz", "engine=" + engine(), "plugins=" + BUILD, "transport=ucx", "timeout=3"])
    script = '[ $RANK != %d ] && exec %s times=2; exec %s %s' % (victim, words, words, how)
    ended = subprocess.run([*launch(n, n if SEVERAL else 1), "sh", "-c", script], capture_output=True, text=True, timeout=harness.HANG_S,
                           env={**os.environ, **env})
    return ended, ended.stdout + ended.stderr


@case
def a_killed_rank_is_named(d):
    def one(env, victim):
        ended, text = end_of_rank(d, victim, "kill=2 times=2", env)
        assert ended.returncode and "rank %d died" % victim in text, (env, victim, text)
        assert text.count("rank %d" % victim) >= 2, text  # both other ranks name it
        assert "did not end by itself" not in text, text  # started.py waits for 10 s
    side_by_side(one, harness.sample([(env, victim) for env in ({}, {"UCX_TLS": "tcp"}) for victim in (0, 1, 2)], 3))


@case
def a_stopped_rank_is_named(d):
    def one(env):
        ended, text = end_of_rank(d, 1, "stop=1", env)
        assert ended.returncode and "rank 1 has sent no heartbeat" in text, (env, text)
    side_by_side(one, [({},), ({"UCX_TLS": "tcp"},)])


# ---- secrets, and connections of other programs --------------------------------------------------------------------------


def free_row(n):
    """The first of n consecutive free ports, below those that the system assigns."""
    for _ in range(100):
        first = random.randrange(20000, 32000)
        try:
            with contextlib.ExitStack() as held:
                for port in range(first, first + n):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
        except OSError:
            pass
    raise OSError("no %d free ports in a row" % n)


def ranks_of(d, n, tell, timeout=harness.HANG_S):
    """Run n ranks over UCX; tell(rank) gives (variables, options) of each, and another folder. (code, text) of each, and the outputs."""
    _, parts, x = mlp(n)
    p = partition(d + "/parts", parts)
    np.savez(d + "/in.npz", x=x)
    started = []
    for r in reversed(range(n)):
        env, options, *folder = tell(r)
        words = [TESSERA, "run", *(folder or [p]), "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", *options]
        started.insert(0, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                           env={**without_ranks(), "TESSERA_ORT": engine(), "TESSERA_PLUGINS": BUILD, **env}))
    said = [q.communicate(timeout=timeout)[0] for q in started]
    return [(q.returncode, text) for q, text in zip(started, said)]


@case
def hosts_by_hand(d):
    """--hosts a,b --rank K with a secret in a file, without any launcher."""
    port = str(free_port())
    with open(d + "/secret", "w") as f:
        f.write("a long secret of this test\n")
    has_ipv6 = os.path.exists("/proc/net/if_inet6") and any(l.startswith("0" * 31 + "1 ") for l in open("/proc/net/if_inet6"))
    for hosts in ("127.0.0.1,localhost", "127.0.0.1:2", *["[::1]:2"] * has_ipv6):
        said = ranks_of(d, 2, lambda r: ({}, ["--hosts", hosts, "--rank", str(r), "--port", port, "--secret-file", d + "/secret"]))
        assert [c for c, _ in said] == [0, 0] and os.path.exists(d + "/out.npz"), said
        os.remove(d + "/out.npz")
    said = ranks_of(d, 2, lambda r:
                    ({}, ["--transport", "ucx", "--rank", str(r), "--ranks", "2"]))  # on this host, identified by the folder's name
    assert [c for c, _ in said] == [0, 0] and os.path.exists(d + "/out.npz"), said


@case
def a_name_of_this_host(d):
    """Rank 0 at an address that other hosts can reach: accepted with a secret, rejected without."""
    address, port = own_address(), str(free_port())
    if not address:
        return "this host has no address but its loopback"
    told = lambda r: {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": port, "LOCAL_WORLD_SIZE": "1"}
    said = ranks_of(d, 2, lambda r: ({**told(r), "TESSERA_SECRET": "x" * 40}, []))  # several hosts: UCX is the default
    assert [c for c, _ in said] == [0, 0], said
    said = ranks_of(d, 2, lambda r: (told(r), ["--transport", "ucx"]))
    assert [c for c, _ in said] == [2, 2] and all("without a secret" in t and "TESSERA_SECRET" in t for _, t in said), said


@case
def variables_of_launchers(d):
    """The variables of Slurm (without PMI), of a LeaderWorkerSet, of torchrun while its store listens on MASTER_PORT, and of mpirun."""
    store = socket.socket()
    port = str(free_row(3))
    store.bind(("127.0.0.1", int(port)))
    store.listen()
    job = str(os.getpid())
    for tell in (
            lambda r: {
                "SLURM_PROCID": str(r), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "localhost",
                "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0"
            }, lambda r:
        {"LWS_WORKER_INDEX": str(r), "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "127.0.0.1", "MASTER_PORT": str(int(port) + 2)}, lambda r:
        {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"},
            lambda r:
        {"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job" + job}):
        said = ranks_of(d, 2, lambda r: ({**tell(r), "TESSERA_SECRET": "s" * 30}, ["--transport", "ucx"]))
        assert [c for c, _ in said] == [0, 0] and os.path.exists(d + "/out.npz"), (tell(0), said)
        os.remove(d + "/out.npz")
    store.close()


@case
def verified_over_ucx(d):
    """`verify` under a launcher with ranks as processes: rank 0 compares, the others take part."""
    whole, _, x = mlp(2)
    onnx.save(whole, d + "/m.onnx")
    np.savez(d + "/in.npz", x=x)
    q = subprocess.run([*launch(2), TESSERA, "verify", d + "/m.onnx", "--devices", "2", "--inputs", d + "/in.npz", "--transport", "ucx"],
                       capture_output=True, text=True, timeout=harness.HANG_S,
                       env={**os.environ, "TESSERA_ORT": engine(), "TESSERA_PLUGINS": BUILD})
    assert q.returncode == 0 and q.stdout.count("PASS") == 1 and "FAIL" not in q.stdout, (q.stdout, q.stderr)


@case
def the_script_for_torchrun(d):
    """examples/cluster/torchrun.sh with a substitute that sets the variables of torchrun."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/cluster/torchrun.sh")
    _, parts, x = mlp(2)
    partition(d + "/parts", parts)
    np.savez(d + "/in.npz", x=x)
    with open(d + "/torchrun", "w") as f:
        f.write(
            '#!/bin/sh\n[ "$1 $2" = "--no-python --nproc-per-node" ] || exit 9\nn=$3; shift 3\nexport WORLD_SIZE=$n LOCAL_WORLD_SIZE=$n'
            ' MASTER_ADDR=127.0.0.1 MASTER_PORT=%d TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=x%d\nfor r in $(seq 1 $((n - 1)));'
            ' do RANK=$r LOCAL_RANK=$r "$@" & done\nRANK=0 LOCAL_RANK=0 "$@"; code=$?; wait; exit $code\n' % (free_port(), os.getpid())
        )
    os.chmod(d + "/torchrun", 0o755)
    os.symlink(os.path.abspath(TESSERA), d + "/tessera")
    env = {**os.environ, "PATH": d + ":" + os.environ["PATH"], "TESSERA_ORT": engine(), "TESSERA_PLUGINS": os.path.abspath(BUILD)}
    q = subprocess.run([script, "2"], cwd=d, env=env, capture_output=True, text=True, timeout=harness.HANG_S)
    assert q.returncode == 0 and os.path.exists(d + "/out.npz"), (q.stdout, q.stderr)


@case
def another_secret_is_refused(d):
    """A rank with another secret tries until its timeout, then reports the reason; rank 0 reports which rank is missing, and why."""
    def one(secrets):
        port = str(free_port())
        said = ranks_of(
            tempfile.mkdtemp(dir=d), 2, lambda r:
            ({"TESSERA_SECRET": secrets[r]}, ["--transport", "ucx", "--rank",
                                              str(r), "--ranks", "2", "--port", port, "--timeout", "3"]))
        assert said[1][0] == 6 and "have different secrets" in said[1][1], said
        assert said[0][0] == 6 and "rank 1 did not connect" in said[0][1] and "used another secret" in said[0][1], said
        assert "right" not in said[0][1] + said[1][1] and "wrong" not in said[0][1] + said[1][1], said
    side_by_side(one, [(secrets,) for secrets in (("right", "wrong"), ("right", ""), ("", "wrong"))])


@case
def another_count_and_a_rank_twice(d):
    # Ranks with another number of ranks, and two processes with the same rank, must be reported.
    port = str(free_port())
    three = partition(d + "/three", mlp(3)[1])
    words = ["--transport", "ucx", "--port", port, "--timeout", "3", "--meet", "here"]
    said = ranks_of(d, 2, lambda r: ({}, [*words, "--rank", str(r), "--ranks", str(2 + r)], *[three] * r))
    assert said[1][0] == 6 and "expects 3 ranks" in said[1][1], said
    said = ranks_of(d, 3, lambda r: ({}, ["--transport", "ucx", "--rank", "01"[r > 0], "--ranks", "3", "--port", port, "--timeout", "3"]))
    assert sum("another process is already rank 1" in t for _, t in said) == 1 and "rank 2 did not connect" in said[0][1], said


@case
def strangers_do_not_disturb(d):
    """Connections that send nothing, garbage or half a message: the ranks must connect nevertheless."""
    port = free_port()
    bad = [
        b"", b"GET / HTTP/1.0\r\n\r\n", b"TSRM" + b"\xff" * 76, b"TSRM\x01\x00\x00\x00" + b"\x01\0\0\0\x02\0\0\0" + b"\0" * 64,
        os.urandom(4000)
    ]
    _, parts, x = mlp(2)
    p = partition(d + "/parts", parts)
    np.savez(d + "/in.npz", x=x)
    words = [
        TESSERA, "run", p, "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", "--transport", "ucx", "--ranks", "2", "--port",
        str(port), "--rank"
    ]
    env = {**os.environ, "TESSERA_ORT": engine(), "TESSERA_PLUGINS": BUILD, "TESSERA_SECRET": "of this test"}
    zero = subprocess.Popen([*words, "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    kept = []
    for data in bad:
        for _ in range(100):
            try:
                kept.append(socket.create_connection(("127.0.0.1", port)))
                break
            except OSError:
                time.sleep(0.05)
        kept[-1].sendall(data)
        if len(kept) % 2:
            kept[-1].close()
    one = subprocess.run([*words, "1"], capture_output=True, text=True, env=env, timeout=harness.HANG_S)
    text = zero.communicate(timeout=harness.HANG_S)[0]
    assert zero.returncode == 0 and one.returncode == 0, (text, one.stdout + one.stderr)


def listening(pids):
    """(address, port) of the TCP sockets on which these processes listen; addresses as in /proc."""
    sockets = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            sockets |= {os.readlink("/proc/%d/fd/%s" % (pid, fd)) for fd in os.listdir("/proc/%d/fd" % pid)}
    rows = [l.split() for name in ("tcp", "tcp6") for l in open("/proc/net/" + name).read().splitlines()[1:]]
    return [(row[1].split(":")[0], int(row[1].split(":")[1], 16)) for row in rows if row[3] == "0A" and "socket:[%s]" % row[9] in sockets]


def can_connect(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return True
    except OSError:
        return False


def children(pid):
    return [int(c) for c in open("/proc/%d/task/%d/children" % (pid, pid)).read().split()]


def disturb(port, rng):
    """Send UCX frames to a port: its magic number, then messages of random type and content. True: the connection was accepted."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.2) as s:
            s.sendall((0xCAFEBABE12345678).to_bytes(8, "little"))
            for _ in range(20):
                length = rng.randrange(1, 200)
                s.sendall(bytes([rng.randrange(32)]) + length.to_bytes(4, "little") + rng.randbytes(length))
            return True
    except OSError:
        return False


@case
def strangers_at_the_ports_of_ucx(d):
    """Ranks of one host must listen only on the loopback, with or without a secret. Once connected, they must accept no other process."""
    _, parts, x = mlp(2)
    p = partition(d + "/parts", parts)
    np.savez(d + "/in.npz", x=x)
    plain = without_ranks()
    plain.update(TESSERA_ORT=engine(), TESSERA_PLUGINS=os.path.abspath(BUILD), UCX_TLS="tcp")
    seconds, rounds = (5, 10) if harness.ALL else (3, 4)  # a rejected connection takes up to 0.2 s
    bench = [TESSERA, "bench", p, "--inputs", d + "/in.npz", "--seconds", str(seconds), "--transport", "ucx"]
    rng = random.Random(1)

    def one(words, ranks_in):
        job = subprocess.Popen(words, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        until = time.time() + 30
        while len(listening(ranks_in(job.pid))) < 2 and time.time() < until:
            time.sleep(0.05)
        time.sleep(1)  # the ranks are connected by then
        doors = listening(ranks_in(job.pid))
        let_in = sum(disturb(port, rng) for _ in range(rounds) for _, port in doors)
        text = job.communicate(timeout=harness.HANG_S)[0]
        assert len(doors) == 2 and all(address == "0100007F" for address, _ in doors), doors
        assert job.returncode == 0 and let_in == 0, (let_in, text)

    one([TESSERA, "launch", "--hosts", "localhost:2", "--", *bench], children)
    one(["sh", "-c", '"$@" --rank 1 --ranks 2 & "$@" --rank 0 --ranks 2; code=$?; wait; exit $code', "sh", *bench], children)


@case
def silent_connections_do_not_stop_the_ranks(d):
    """200 connections that send nothing, before and while a rank with the right secret connects."""
    port = free_port()
    _, parts, x = mlp(2)
    p = partition(d + "/parts", parts)
    np.savez(d + "/in.npz", x=x)
    words = [
        TESSERA, "run", p, "--inputs", d + "/in.npz", "--transport", "ucx", "--ranks", "2", "--port",
        str(port), "--timeout", "20", "--rank"
    ]
    env = {**os.environ, "TESSERA_ORT": engine(), "TESSERA_PLUGINS": BUILD, "TESSERA_SECRET": "of this test"}
    zero = subprocess.Popen([*words, "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    with contextlib.ExitStack() as held:
        until = time.time() + 20
        while not can_connect(port) and time.time() < until:
            time.sleep(0.05)
        for _ in range(200):
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        one = subprocess.run([*words, "1"], capture_output=True, text=True, env=env, timeout=harness.HANG_S)
        text = zero.communicate(timeout=harness.HANG_S)[0]
    assert zero.returncode == 0 and one.returncode == 0, (text, one.stdout + one.stderr)


@case
def another_user_is_no_rank(d):
    """Without a secret, a process of another user must be rejected, both on the loopback and on the Unix socket."""
    if os.getuid() != 0:
        return "only root can be another user"
    port = free_port()
    _, parts, x = mlp(2)
    p = partition(d + "/parts", parts)
    np.savez(d + "/in.npz", x=x)
    words = [
        TESSERA, "run", p, "--inputs", d + "/in.npz", "--transport", "ucx", "--ranks", "2", "--port",
        str(port), "--timeout", "8", "--rank", "0"
    ]
    zero = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, "TESSERA_ORT": engine(), "TESSERA_PLUGINS": BUILD})
    stranger = r"""
import hashlib, hmac, os, socket, struct, sys, time
os.setuid(65534)
def call(family, address):
    s = socket.socket(family)
    s.settimeout(5)
    until = time.time() + 5
    while True:
        try:
            s.connect(address)
            break
        except OSError:
            if time.time() > until: return b"no connection"
            time.sleep(0.05)
    def read(n):
        got = b""
        while len(got) < n:
            more = s.recv(n - len(got))
            if not more: return got
            got += more
        return got
    try:
        greeting = read(40)
        if len(greeting) < 40: return b"closed"
        claim = b"TSRM" + struct.pack("<HHII", 2, 0, 1, 2) + bytes(32)
        key = hmac.new(b"", b"tessera meeting 2\0" + greeting + claim + bytes(32), hashlib.sha256).digest()
        s.sendall(claim + hmac.new(key, b"proof of others\0", hashlib.sha256).digest())
        return read(40)
    except OSError:
        return b"closed"
port = int(sys.argv[1])
print(call(socket.AF_UNIX, "\0tessera-0-meet-%d" % port)[:8])
print(call(socket.AF_INET, ("127.0.0.1", port))[:8])
"""
    said = subprocess.run([sys.executable, "-c", stranger, str(port)], capture_output=True, text=True, timeout=harness.HANG_S)
    text = zero.communicate(timeout=harness.HANG_S)[0]
    assert said.stdout.splitlines() == ["b'closed'", repr(b"TSRM\x02\0\0\0")], (said.stdout, said.stderr)
    assert zero.returncode == 6 and "rank 1 did not connect" in text, text


@case
def a_refusal_without_a_signature_is_not_believed(d):
    """An impostor on rank 0's port first answers "another secret"; when the true rank 0 has started, the ranks must connect."""
    port = free_port()
    _, parts, x = mlp(2)
    p = partition(d + "/parts", parts)
    np.savez(d + "/in.npz", x=x)
    words = [
        TESSERA, "run", p, "--inputs", d + "/in.npz", "--transport", "ucx", "--ranks", "2", "--port",
        str(port), "--timeout", "20", "--rank"
    ]
    env = {**os.environ, "TESSERA_ORT": engine(), "TESSERA_PLUGINS": BUILD, "TESSERA_SECRET": "of this test"}
    with socket.socket() as impostor:
        impostor.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        impostor.bind(("127.0.0.1", port))
        impostor.listen()
        one = subprocess.Popen([*words, "1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        for verdict in (2, 4):
            with impostor.accept()[0] as c:
                c.sendall(b"TSRM\x02\0\x01\0" + bytes(32))
                c.recv(80, socket.MSG_WAITALL)
                c.sendall(b"TSRM" + verdict.to_bytes(4, "little") + bytes(32))
                c.recv(1)
    zero = subprocess.run([*words, "0"], capture_output=True, text=True, env=env, timeout=harness.HANG_S)
    text = one.communicate(timeout=harness.HANG_S)[0]
    assert zero.returncode == 0 and one.returncode == 0, (text, zero.stdout + zero.stderr)


@case
def ucx_without_a_network(d):
    """UCX_TLS names a missing transport: all ranks must report an error that names UCX's variables, without waiting."""
    _, parts, x = mlp(2)
    r = ucx(partition(d + "/p", parts), {"x": x}, 2, env={"UCX_TLS": "nothing"})
    assert r.code == STATUS.index("ENGINE") and "ucx-failed" in r.text and "UCX_TLS" in r.text, str(r)


@case
def without_the_plugin(d):
    # A missing plug-in and missing launcher variables must be reported.
    _, parts, x = mlp(2)
    r = run(partition(d + "/p", parts), {"x": x}, transport="ucx", env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"})
    assert r.code == STATUS.index("ENGINE") and "plugin-absent" in r.text and "libucx-dev" in r.text, str(r)
    r = run(partition(d + "/p", parts), {"x": x}, transport="ucx", plugins=BUILD)
    assert r.code == STATUS.index("USAGE") and "transport-absent" in r.text and "--hosts" in r.text, str(r)


main()
