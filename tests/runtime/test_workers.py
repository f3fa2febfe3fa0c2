# SPDX-License-Identifier: Apache-2.0
"""Tests workers: ranks of other hosts, which are loopback addresses here. Results, files, failures of each side, refusals, and
peers that know the secret but are hostile."""
import contextlib
import hashlib
import hmac
import json
import shutil
import signal
import socket
import struct
import threading
import time

from parts import *

TESSERA = os.path.join(BUILD, "tessera")
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../models/bert_tiny/model.onnx")
SET = os.path.join(os.path.dirname(MODEL), "test_data_set_0")
SECRET = "a secret of the tests of workers"
if not os.path.exists(os.path.join(BUILD, "libtessera_ucx.so")):
    print("skipped: no UCX, so no plug-in for it")
    sys.exit(77)


class Worker:
    """A worker on 127.0.0.2 with its own process group."""

    def __init__(self, folder, *more, port=None, secret=SECRET, launch=()):
        self.folder, self.port, self.log = folder, port or free_port(), os.path.join(folder, "worker.log")
        self.cache = os.path.join(folder, "cache")
        write_secret(folder, secret)
        words = [*launch, TESSERA, "worker", "--listen", "127.0.0.2:%d" % self.port, "--secret-file", folder + "/secret"]
        self.process = subprocess.Popen([*words, "--cache", self.cache, *map(str, more)], stdin=subprocess.DEVNULL,
                                        stdout=open(self.log, "w"), stderr=subprocess.STDOUT, start_new_session=True,
                                        env=harness.environment(TESSERA_PLUGINS=BUILD))
        wait_until(lambda: "waits" in self.said() or self.process.poll() is not None, lambda: "the worker does not start")
        assert self.process.poll() is None, self.said()

    def said(self):
        with open(self.log) as f:
            return f.read()

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
        self.process.wait()
        # To a hostile peer, a process that crashes looks like one that refuses.
        assert not any(word in self.said() for word in ("Sanitizer", "runtime error", "signal 11", "signal 6")), self.said()


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.2", 0))
        return s.getsockname()[1]


def write_secret(folder, text):
    with open(folder + "/secret", "w") as f:
        f.write(text + "\n")
    os.chmod(folder + "/secret", 0o600)


def wait_until(is_so, why):
    end = time.monotonic() + harness.HANG_S
    while not is_so():
        assert time.monotonic() < end, why()
        time.sleep(0.05)


def words(worker, hosts="127.0.0.1:1,127.0.0.2:1", secret=None):
    return ["--hosts", hosts, "--port", worker.port, "--secret-file", secret or worker.folder + "/secret"]


def session(worker, *more, command="run", model=MODEL, **how):
    """Runs a command with ranks on two hosts: (exit code, output, diagnostics)."""
    inputs = ["--inputs", SET] if model == MODEL else []
    return harness.call(TESSERA, command, model, *inputs, *words(worker, **how), *more, TESSERA_PLUGINS=BUILD)


def bench(worker, *more):
    """Starts a long session. It runs a partition: of a model, the unsharded one is measured first."""
    parts = worker.folder + "/parts"
    if not os.path.exists(parts):
        harness.good(TESSERA, "partition", MODEL, "--devices", "hosts:2x1", "--dim", "batch=2", "--dim", "seq=9", "-o", parts)
    return subprocess.Popen([TESSERA, "bench", parts, "--inputs", SET, "--seconds", "600", *map(str, words(worker)), *more],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                            env=harness.environment(TESSERA_PLUGINS=BUILD))


def begin(worker, *more):
    """Starts a long session, and returns when its ranks are at work."""
    p = bench(worker, *more)
    wait_until(lambda: "runs a job" in worker.said() or p.poll() is not None, lambda: "the session does not start")
    assert p.poll() is None, p.communicate()
    time.sleep(1)  # the ranks load and run
    return p


def end(p):
    """Waits for a session that must fail: its diagnostics."""
    try:
        out, err = p.communicate(timeout=harness.HANG_S)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        raise
    assert p.returncode > 0, (p.returncode, out, err)
    return err


def still_serves(worker):
    wait_until(lambda: not children_of(worker.process.pid), lambda: "the worker does not end the session\n" + worker.said())
    code, _, err = session(worker)
    assert code == 0, err + worker.said()


def nothing_left(worker):
    others = lambda: [n for n in os.listdir(worker.cache) if len(n) != 64]
    wait_until(lambda: not others(), lambda: "files of a session are left: %s" % others())


# ---- what works ---------------------------------------------------------------------------------


@case
def same_result_on_hosts(d):
    with Worker(d) as worker:
        code, out, err = session(worker, "--json", command="verify")
        assert code == 0, err
        told = json.loads(out)
        assert told["ok"] and told["cut_nodes"] > 0, told
        code, _, err = session(worker, "--outputs", d + "/two.npz")
        code2, _, err2 = harness.call(TESSERA, "run", MODEL, "--inputs", SET, "--devices", "hosts:2x1", "--outputs", d + "/one.npz")
        assert code == code2 == 0, err + err2
        a, b = np.load(d + "/two.npz"), np.load(d + "/one.npz")
        assert all(a[name].tobytes() == b[name].tobytes() for name in b.files)
        code, out, err = session(worker, "--seconds", "0.5", "--json", command="bench")
        told = json.loads(out)
        assert code == 0 and told["runs"] > 0, err
        # Each rank reports its own communication and memory; this process has none.
        assert min(told["communication"]) > 0 and min(told["memory"]) > 0 and told["process_memory"] is None, told
        nothing_left(worker)


@case
def several_ranks_per_host(d):
    with Worker(d) as worker:
        code, out, err = session(worker, "--json", command="verify", hosts="127.0.0.1:2,127.0.0.2:2")
        assert code == 0 and json.loads(out)["devices"] == 4, err
        code, out, err = session(worker, "--json", command="verify", hosts="127.0.0.1:1,127.0.0.2:2")
        assert code == 0 and json.loads(out)["devices"] == 3, err


@case
def files_travel_once(d):
    with Worker(d) as worker:
        assert session(worker)[0] == 0
        first = {n: os.stat(worker.cache + "/" + n).st_ino for n in os.listdir(worker.cache)}
        assert first and all(hashlib.sha256(open(worker.cache + "/" + n, "rb").read()).hexdigest() == n for n in first)
        assert session(worker)[0] == 0
        assert first == {n: os.stat(worker.cache + "/" + n).st_ino for n in os.listdir(worker.cache)}


@case
def cache_is_bounded(d):
    """Of two models only the last one fits."""
    parts = [partition(d + "/p%d" % i, mlp(2, inner=3000 + i, width=96)[1]) for i in range(2)]
    files = lambda: {n: os.path.getsize(worker.cache + "/" + n) for n in os.listdir(worker.cache) if len(n) == 64}
    with Worker(d, "--cache-size", "2MiB") as worker:
        for p in parts:
            code, _, err = session(worker, model=p)
            assert code == 0, err
            assert 0 < sum(files().values()) <= 2 << 20, files()
    with Worker(d, "--cache-size", "100KiB") as worker:
        code, _, err = session(worker, model=parts[0])
        assert code == 6 and "127.0.0.2" in err and "--cache-size" in err, err
        still = session(worker, model=parts[0])
        assert still[0] == 6, still


@case
def started_by_a_remote_shell(d):
    """Hosts without a worker: --rsh starts one, which ends with the session, also if that is killed."""
    class Place:
        folder, port = d, free_port()
    write_secret(d, SECRET)
    shell = d + "/shell"
    with open(shell, "w") as f:
        f.write('#!/bin/sh\necho "$1" >> %s/hosts\nPATH=%s:$PATH XDG_CACHE_HOME=%s exec sh -c "$2"\n' % (d, BUILD, d))
    os.chmod(shell, 0o700)
    code, _, err = session(Place, "--rsh", shell + " ")
    assert code == 0 and open(d + "/hosts").read() == "127.0.0.2\n", err
    assert SECRET not in err and [n for n in os.listdir(d + "/tessera-worker") if len(n) == 64]
    wait_until(lambda: not is_listening(Place.port), lambda: "the worker is left")
    p = bench(Place, "--rsh", shell)
    wait_until(lambda: is_listening(Place.port) or p.poll() is not None, lambda: "no worker is started")
    os.killpg(p.pid, signal.SIGKILL)
    p.communicate()
    wait_until(lambda: not is_listening(Place.port), lambda: "the worker is left after its session was killed")
    with open(shell, "w") as f:
        f.write("#!/bin/sh\necho no key >&2\nexit 3\n")
    began = time.monotonic()
    code, _, err = session(Place, "--rsh", shell)
    assert code == 6 and "remote shell for 127.0.0.2 ended with exit code 3" in err and "no key" in err, err
    assert time.monotonic() - began < 20
    code, _, err = session(Place, "--rsh", d + "/nothing")
    assert code == 6 and "remote shell for 127.0.0.2" in err, err


def is_listening(port):
    with contextlib.closing(socket.socket()) as s:
        return s.connect_ex(("127.0.0.2", port)) == 0


# ---- refusals -----------------------------------------------------------------------------------


@case
def other_secret(d):
    os.mkdir(d + "/other")
    write_secret(d + "/other", "something else of the same length")
    with Worker(d) as worker:
        code, _, err = session(worker, secret=d + "/other/secret")
        assert code == 6 and "127.0.0.2" in err and "another secret" in err, err
        still_serves(worker)


@case
def a_secret_that_others_can_access(d):
    """A file that other users can write is refused; one that they can read is reported."""
    write_secret(d, SECRET)
    for mode, wanted, text in ((0o600, 0, ""), (0o400, 0, ""), (0o640, 0, "secret-readable"), (0o604, 0, "secret-readable"),
                               (0o620, 2, "can write"), (0o602, 2, "can write"), (0o666, 2, "can write")):
        os.chmod(d + "/secret", mode)
        code, out, err = harness.call(TESSERA, "worker", "--listen", "127.0.0.2:0", "--secret-file", d + "/secret", "--cache", d + "/cache",
                                      "--check", TESSERA_PLUGINS=BUILD)
        assert code == wanted and (text in err if text else "secret" not in err), (oct(mode), code, out, err)
        assert not text or "chmod 600" in err, err


@case
def nobody_listens(d):
    with Worker(d) as worker:
        pass
    code, _, err = session(worker)
    assert code == 6 and "worker-failed" in err and "127.0.0.2" in err and str(worker.port) in err, err
    code, _, err = session(worker, hosts="127.0.0.1:1,nowhere.invalid:1")
    assert code == 6 and "unknown host 'nowhere.invalid':" in err, err


@case
def one_session_at_a_time(d):
    with Worker(d) as worker:
        p = begin(worker)
        code, _, err = session(worker)
        assert code == 6 and "127.0.0.2" in err and "busy" in err, err
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        still_serves(worker)
    with Worker(d, "--sessions", 2) as worker:
        p = begin(worker)
        code, _, err = session(worker)
        assert code == 0, err
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()


@case
def what_a_session_must_not_ask(d):
    with Worker(d, "--devices", 1) as worker:
        code, _, err = session(worker, hosts="127.0.0.1:1,127.0.0.2:2")
        assert code == 6 and "offers 1 device" in err, err
        for more, what in ((["--ort-ops", "lib.so"], "libraries"), (["--provider-option", "a=b"], "providers")):
            code, _, err = session(worker, *more)
            assert code == 2 and "hosts-invalid" in err and what in err, (more, err)
        for hosts in ("127.0.0.1:1,:2", "a:x,b:1", "a:0,b:1", "[a,b:1", "-a,b", "a,b:1:1", "a,"):
            assert session(worker, hosts=hosts)[0] == 2, hosts
        for devices in ("3", "hosts:2x2"):
            code, _, err = session(worker, "--devices", devices)
            assert code == 2 and "--hosts has 2 devices, but --devices %s" % devices in err, err


# ---- failures -----------------------------------------------------------------------------------


@case
def killed_worker(d):
    with Worker(d) as worker:
        p = begin(worker)
        worker.signal(signal.SIGKILL)
        err = end(p)
        assert "127.0.0.2" in err, err
    with Worker(d, port=worker.port) as worker:
        still_serves(worker)
        nothing_left(worker)


@case
def stopped_worker(d):
    with Worker(d) as worker:
        p = begin(worker, "--timeout", "5")
        worker.signal(signal.SIGSTOP)
        err = end(p)
        assert "127.0.0.2" in err, err
        worker.signal(signal.SIGCONT)
        still_serves(worker)


@case
def killed_session(d):
    with Worker(d) as worker:
        p = begin(worker)
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        still_serves(worker)
        nothing_left(worker)


@case
def killed_session_in_a_long_run(d):
    """The worker's ranks would compute for hours; the worker ends them and serves the next session."""
    step = [h.make_node("MatMul", ["x", "W"], ["y"]), h.make_node("Tanh", ["y"], ["z"]), h.make_node("Identity", ["c"], ["d"])]
    body = model(step, [value("i", I, []), value("c", T.BOOL, []), value("x", F, [64, 256])],
                 [value("d", T.BOOL, []), value("z", F, [64, 256])])
    loop = [h.make_node("Loop", ["N", "", "X"], ["Y"], body=body.graph)]
    weights = {"W": np.ones((256, 256), np.float32)}
    onnx.save(model(loop, [value("N", I, []), value("X", F, [64, 256])], [value("Y", F, [64, 256])], weights), d + "/loop.onnx")
    np.savez(d + "/in.npz", N=np.array(10 ** 9), X=np.ones((64, 256), np.float32))
    with Worker(d) as worker:
        p = subprocess.Popen([TESSERA, "run", d + "/loop.onnx", "--inputs", d + "/in.npz", *map(str, words(worker))],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
                             env=harness.environment(TESSERA_PLUGINS=BUILD))
        ranks = lambda: [r for s in children_of(worker.process.pid) for r in children_of(s)]
        wait_until(lambda: p.poll() is not None or sum(map(cpu_of, ranks())) > 1, lambda: "no rank computes\n" + worker.said())
        assert p.poll() is None, p.communicate()
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        still_serves(worker)
        nothing_left(worker)


def cpu_of(pid):
    """Seconds of processor time that a process has used."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0


@case
def killed_rank(d):
    """Only a rank in the worker is killed, not the worker."""
    with Worker(d) as worker:
        p = begin(worker)
        serving = children_of(worker.process.pid)
        ranks = [r for s in serving for r in children_of(s)]
        assert len(serving) == 1 and len(ranks) == 1, (serving, ranks)
        os.kill(ranks[0], signal.SIGKILL)
        err = end(p)
        assert "127.0.0.2" in err and "signal 9" in err, err
        still_serves(worker)


def children_of(pid):
    found = []
    for task in glob.glob("/proc/%d/task/*/children" % pid):
        with open(task) as f:
            found += [int(word) for word in f.read().split()]
    return found


@case
def ipv4_addresses_are_plain(d):
    """A socket of IPv6 that accepts IPv4 too, as a worker's of all addresses, sees "::ffff:127.0.0.1"."""
    port = free_port()
    with Worker(d, "--listen", "[::ffff:127.0.0.2]:%d" % port, port=port) as worker:
        code, _, err = session(worker)
        assert code == 0, err
        wait_until(lambda: "\n127.0.0.1: has ended\n" in worker.said(), worker.said)


@case
def told_to_end(d):
    """A worker that gets SIGTERM during a session ends with its processes, and leaves only its cache."""
    with Worker(d) as worker:
        p = begin(worker)
        every = children_of(worker.process.pid)
        os.kill(worker.process.pid, signal.SIGTERM)
        assert worker.process.wait(harness.HANG_S) in (0, 143)
        assert "127.0.0.2" in end(p)
        wait_until(lambda: not any(os.path.exists("/proc/%d" % pid) for pid in every), lambda: "a process of the session is left")
        nothing_left(worker)


@case
def full_disk(d):
    """The cache is on a file system without space."""
    small = d + "/small"
    os.mkdir(small)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], capture_output=True).returncode:
        return "no right to mount a small file system"
    try:
        with Worker(small, "--cache-size", "1GiB") as worker:
            code, _, err = session(worker)
            assert code == 6 and "127.0.0.2" in err and "No space left" in err, err
            assert session(worker)[0] == 6
            assert worker.process.poll() is None
    finally:
        subprocess.run(["umount", small])


# ---- hostile peers ------------------------------------------------------------------------------


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


class Peer:
    """A session that knows the protocol (src/transport/meeting) and sends what it likes."""

    def __init__(self, worker, secret=SECRET):
        self.socket = socket.create_connection(("127.0.0.2", worker.port), harness.HANG_S)
        self.sent = self.received = 0
        self.greeting = self.read(40)
        flags = struct.unpack_from("<H", self.greeting, 6)[0]
        claim = b"TSRM" + struct.pack("<HHII", 2, flags, 1, 2) + os.urandom(32) + bytes(32)
        self.key = hmac.digest(secret.encode(), b"tessera meeting 2\0" + self.greeting + claim, "sha256")
        proof = hmac.digest(self.key, b"proof of others\0", "sha256")
        self.claim = claim[:48] + proof
        self.socket.sendall(self.claim)
        self.verdict = struct.unpack_from("<I", self.read(40), 4)[0]

    def read(self, n):
        got = b""
        while len(got) < n:
            more = self.socket.recv(n - len(got))
            if not more:
                raise EOFError
            got += more
        return got

    def frame(self, kind, data, rank=0):
        head = struct.pack("<III", kind, rank, len(data))
        code = hmac.digest(self.key, b"\1" + struct.pack("<Q", self.sent) + head + sha(data), "sha256")
        self.sent += 1
        return head + data + code

    def send(self, kind, data, rank=0):
        self.socket.sendall(self.frame(kind, data, rank))

    def note(self, word, payload, status=0, rank=0):
        self.send(1, struct.pack("<iiq", word, status, len(payload)), rank)
        for at in range(0, len(payload), 1 << 20):
            self.send(2, payload[at : at + (1 << 20)], rank)

    def receive(self):
        """(word, status, payload) of the next note; None: the connection ended."""
        payload, left = b"", None
        with contextlib.suppress(EOFError, ConnectionError):
            while left is None or left > 0:
                head = self.read(12)
                kind, _, n = struct.unpack("<III", head)
                data = self.read(n)
                assert self.read(32) == hmac.digest(self.key, b"\0" + struct.pack("<Q", self.received) + head + sha(data), "sha256")
                self.received += 1
                if kind == 1:
                    word, status, left = struct.unpack("<iiq", data)
                elif kind == 2:
                    payload, left = payload + data, left - n
            return word, status, payload
        return None

    def refused(self):
        """The worker ends the connection, perhaps with a reason."""
        for _ in range(4):
            got = self.receive()
            if got is None or got[0] == ENDED:
                return True
        return False


HELLO, JOB, WANT, FILE_BYTES, END, ENDED, FILLED = 64, 65, 66, 67, 68, 69, 8
text = lambda s: struct.pack("<q", len(s)) + s


def greeted(worker):
    peer = Peer(worker)
    assert peer.verdict == 1
    version = harness.good(TESSERA, "--version").split()[1]
    peer.note(HELLO, text(version.encode()) + text(engine_version()) + text(b"x86_64") + text(b"a processor"))
    word, status, _ = peer.receive()
    assert (word, status) == (HELLO, 0)
    return peer


def engine_version():
    import onnxruntime
    return onnxruntime.__version__.encode()


def job(files, ranks=2, first=1, here=1, token=b"0123", network=b"", maps=()):
    numbers = [0] * 12
    out = struct.pack("<5q", 1, ranks, first, here, 1) + text(token) + text(network) + struct.pack("<12q", *numbers)
    out += struct.pack("<q", len(maps)) + b"".join(map(text, maps)) + struct.pack("<q", len(files))
    return out + b"".join(text(name) + struct.pack("<q", size) + digest for name, size, digest in files)


@case
def garbage(d):
    with Worker(d) as worker:
        for data in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(79), os.urandom(80), os.urandom(5000), bytes(80)):
            with contextlib.closing(socket.create_connection(("127.0.0.2", worker.port))) as s:
                with contextlib.suppress(ConnectionError):
                    s.sendall(data)
        silent = [socket.create_connection(("127.0.0.2", worker.port)) for _ in range(300)]  # more than are kept
        still_serves(worker)
        for s in silent:
            s.close()
        assert not [n for n in os.listdir(worker.cache) if len(n) != 64]


@case
def replayed_and_changed_frames(d):
    with Worker(d) as worker:
        peer = Peer(worker)
        hello = peer.frame(1, struct.pack("<iiq", HELLO, 0, -1))
        for data in (hello[:-1] + bytes([hello[-1] ^ 1]), hello[:4] + b"\1" + hello[5:], hello[12:]):
            peer = Peer(worker)
            peer.socket.sendall(data)
            peer.socket.shutdown(socket.SHUT_WR)
            assert peer.refused(), data
        peer = Peer(worker)
        peer.socket.sendall(hello)  # of another connection
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.refused()
        assert Peer(worker, "another secret").verdict == 2
        still_serves(worker)


@case
def replayed_handshake(d):
    """Everything that a session has sent is sent again: the worker answers with another nonce, so the proof is not valid."""
    with Worker(d) as worker:
        peer = Peer(worker)
        assert peer.verdict == 1
        recorded, hello = peer.claim, peer.frame(1, struct.pack("<iiq", HELLO, 0, -1))
        peer.socket.close()
        wait_until(lambda: "ended before it sent a job" in worker.said(), worker.said)
        for data in (recorded + hello, recorded):
            with contextlib.closing(socket.create_connection(("127.0.0.2", worker.port), harness.HANG_S)) as s:
                assert s.recv(40, socket.MSG_WAITALL) != peer.greeting
                s.sendall(data)
                verdict = s.recv(40, socket.MSG_WAITALL)
                assert struct.unpack_from("<I", verdict, 4)[0] == 2, verdict
                with contextlib.suppress(ConnectionResetError):  # if it has not read everything
                    assert s.recv(100) == b""
        assert worker.said().count("has connected") == 1, worker.said()
        still_serves(worker)


@case
def other_releases(d):
    """Each side refuses the other by itself, and names what differs."""
    release = harness.good(TESSERA, "--version").split()[1].encode()
    with Worker(d) as worker:
        for told in (b"0.0.1", engine_version()), (release, b"1.2.3"), (release + b" " * 80, engine_version()), (b"\n", b""):
            peer = Peer(worker)
            peer.note(HELLO, text(told[0]) + text(told[1]) + text(b"x86_64") + text(b"a processor"))
            assert peer.refused(), told
            peer.socket.close()
            wait_until(lambda: not children_of(worker.process.pid), lambda: "the worker keeps a session")
        still_serves(worker)
    for told, expected in ((b"0.0.1", engine_version()), "Tessera 0.0.1"), ((release, b"1.2.3"), "ONNX Runtime 1.2.3"), (
            (b"\x1b[2J", b""), "another message"):
        fake = FakeWorker(text(told[0]) + text(told[1]) + text(b"x86_64") + text(b"a processor"))
        worker.port = fake.port
        code, _, err = session(worker)
        assert code == 6 and expected in err and "127.0.0.2" in err, (told, err)
        fake.thread.join()


@case
def hostile_worker(d):
    """A worker that does not know the secret is not told anything; one that does, and sends nonsense, fails the session."""
    write_secret(d, SECRET)
    class Place:
        folder = d
    release = harness.good(TESSERA, "--version").split()[1].encode()
    fake = FakeWorker(text(release) + text(engine_version()) + text(b"x86_64") + text(b"another processor"))
    Place.port = fake.port
    code, _, err = session(Place, "--timeout", 8)
    assert code == 6 and "worker-unlike" in err and "another processor" in err and "has sent nothing for 8 s" in err, err
    for hello, secret in ((b"", SECRET), (os.urandom(200), SECRET), (text(b"x"), SECRET), (b"", "another secret")):
        fake = FakeWorker(hello, secret)
        Place.port = fake.port
        code, _, err = session(Place, "--timeout", 8)
        assert code == 6 and "127.0.0.2" in err, err
        fake.thread.join()
        assert (fake.heard == b"") == (secret != SECRET), fake.heard


class FakeWorker:
    """Meets one session and answers its first note with `hello`."""

    def __init__(self, hello, secret=SECRET):
        self.listener, self.heard = socket.create_server(("127.0.0.2", 0)), b""
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, args=(hello, secret))
        self.thread.start()

    def serve(self, hello, secret):
        self.listener.settimeout(harness.HANG_S)
        with self.listener, self.listener.accept()[0] as s:
            greeting = b"TSRM" + struct.pack("<HH", 2, 3) + os.urandom(32)
            s.sendall(greeting)
            answer = s.recv(80, socket.MSG_WAITALL)
            key = hmac.digest(secret.encode(), b"tessera meeting 2\0" + greeting + answer[:48] + bytes(32), "sha256")
            s.sendall(b"TSRM" + struct.pack("<I", 1) + hmac.digest(key, b"verdict of rank 0, number \1\0\0\0\0", "sha256"))
            self.heard = s.recv(100000)
            for number, (kind, data) in enumerate(((1, struct.pack("<iiq", HELLO, 0, len(hello))), (2, hello))):
                head = struct.pack("<III", kind, 0, len(data))
                with contextlib.suppress(ConnectionError):
                    s.sendall(head + data + hmac.digest(key, b"\0" + struct.pack("<Q", number) + head + sha(data), "sha256"))
            s.settimeout(harness.HANG_S)
            with contextlib.suppress(OSError):
                while s.recv(1000):
                    pass


@case
def hostile_jobs(d):
    """Each is refused; nothing appears outside of the cache, and nothing is left in it."""
    good = b"a" * 64
    bad = [job([(name, 10, good)]) for name in (b"../x", b"/etc/passwd", b"a/b", b"..", b".", b"", b"x\0y", b"x\ny", b"n" * 300)]
    bad += [job([(b"a", *file)]) for file in ((-1, good), (1 << 62, good), (1, b"A" * 64), (1, b"/" * 64))]
    bad += [job([]), b"", b"\0" * 40, os.urandom(400)]
    fields = ({"ranks": 1}, {"first": 0}, {"here": 2}, {"ranks": 1 << 40}, {"token": b"a b"}, {"network": b"$(x)"}, {"maps": [b"x"] * 65})
    bad += [job([(b"a", 1, good)], **more) for more in fields]
    bad += [job([(b"a", 1, good)])[:-n] for n in (1, 8, 64, 70)] + [struct.pack("<5q", 1, 2, 1, 1, 0) + struct.pack("<q", 1 << 60)]
    with Worker(d) as worker:
        for data in bad:
            peer = greeted(worker)
            peer.note(JOB, data)
            assert peer.refused(), data[:200]
            peer.socket.close()
            wait_until(lambda: not children_of(worker.process.pid), lambda: "the worker keeps a session")
        nothing_left(worker)
        still_serves(worker)


@case
def hostile_files(d):
    """Wrong digests, lengths and partitions."""
    content = b"{}" * 40
    right = hashlib.sha256(content).hexdigest().encode()
    with Worker(d) as worker:
        for name, digest, data in ((b"manifest.json", b"0" * 64, content), (b"manifest.json", right, content[:-1]),
                                   (b"manifest.json", right, content * 2), (b"manifest.json", right, content),
                                   (b"rank1.onnx", right, content)):
            peer = greeted(worker)
            peer.note(JOB, job([(name, 80, digest)]))
            word, _, _ = peer.receive()
            assert word == WANT
            peer.note(FILE_BYTES, data)
            peer.socket.shutdown(socket.SHUT_WR)
            assert peer.refused(), (name, data)
            peer.socket.close()
            wait_until(lambda: not children_of(worker.process.pid), lambda: "the worker keeps a session")
            assert set(os.listdir(worker.cache)) <= {right.decode()}, os.listdir(worker.cache)
            with contextlib.suppress(FileNotFoundError):
                os.remove(worker.cache + "/" + right.decode())
        still_serves(worker)


@case
def link_in_the_cache(d):
    """Another program of this user has put a link where a digest should be: it is not followed."""
    with Worker(d) as worker:
        assert session(worker)[0] == 0
        names = os.listdir(worker.cache)
        for n in names:
            shutil.move(worker.cache + "/" + n, d + "/" + n)
            os.symlink(d + "/" + n, worker.cache + "/" + n)
        code, _, err = session(worker)
        assert code == 6 and "127.0.0.2" in err, err
        for n in names:
            os.remove(worker.cache + "/" + n)
        still_serves(worker)


@case
def cache_of_others(d):
    """A worker does not start with a cache that other users may change."""
    os.mkdir(d + "/cache")
    os.chmod(d + "/cache", 0o777)
    write_secret(d, SECRET)
    code, _, err = harness.call(TESSERA, "worker", "--listen", "127.0.0.2:%d" % free_port(), "--secret-file", d + "/secret", "--cache",
                                d + "/cache", TESSERA_PLUGINS=BUILD)
    assert code == 3 and "other users" in err, err


@case
def worker_and_rank(d):
    """A rank that is started by hand finds a worker at the port of rank 0, and a worker is no rank 0."""
    p = partition(d + "/p", mlp(2, inner=8, width=4)[1])
    with Worker(d) as worker:
        code, _, err = harness.call(TESSERA, "run", p, "--rank", 1, "--timeout", 3, *words(worker, "127.0.0.2:1,127.0.0.1:1"),
                                    TESSERA_PLUGINS=BUILD)
        assert code == 6 and "worker" in err, err
        still_serves(worker)


harness.run(CASES, at_a_time=3)
harness.finish()
