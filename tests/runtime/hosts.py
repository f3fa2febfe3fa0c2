# SPDX-License-Identifier: Apache-2.0
"""Tests runs on two hosts, which it creates as connected network namespaces: UCX, a real sshd, a real Slurm. A long test.

Cases that the machine does not allow are skipped with a message. SSHD: path of the server (default: the installed one)."""
import contextlib
import shutil
import signal
import socket
import time

import namespaces
from namespaces import Hosts
from parts import *

TESSERA = os.path.abspath(os.path.join(BUILD, "tessera"))
PLUGIN = os.path.join(BUILD, "libtessera_ucx.so")
SECRET = "a secret of this test alone"


def why_not():
    if not os.path.exists(PLUGIN):
        return "no UCX"
    return namespaces.why_not()


def start(hosts, ranks, command):
    """Start half of the ranks on each host, with the variables of a launcher."""
    started = []
    for r in reversed(range(ranks)):
        env = {
            **os.environ, "RANK": str(r), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks // 2), "MASTER_ADDR": hosts.addresses[0],
            "MASTER_PORT": "29511", "TESSERA_SECRET": SECRET, "TESSERA_ORT": engine(), "TESSERA_PLUGINS": os.path.abspath(BUILD)
        }
        started.insert(
            0,
            subprocess.Popen([*hosts.words(2 * r // ranks), *command], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True))
    return started


def end(started, timeout=120):
    said = [p.communicate(timeout=timeout)[0] for p in started]
    return [p.returncode for p in started], said


def big(d, n):
    """A partition that sums 8 MB over all ranks."""
    nodes = lambda r: [h.make_node("Mul", ["x", "mine"], ["a"]), comm("AllReduce", "a", "y", 0, range(n), F, reduce="sum", name="sum")]
    parts = [model(nodes(r), [value("x", F, [1000, 2000])], [value("y")], {"mine": np.float32(1.1 + r)}) for r in range(n)]
    x = np.random.default_rng(1).normal(size=(1000, 2000)).astype("f4")
    np.savez(d + "/in.npz", x=x)
    return partition(d + "/parts", parts), x


@case
def two_hosts(d):
    """Two and four ranks: the same bits as with threads, and the data must pass through the network."""
    if why_not():
        return why_not()
    for n in (2, 4):
        p, x = big(d, n)
        want = run(p, {"x": x}, threads=1).outputs["y"].tobytes()
        with Hosts() as hosts:
            before = hosts.received(0)
            codes, said = end(start(hosts, n,
                                    [TESSERA, "run", p, "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", "--threads", "1"]))
            assert codes == [0] * n, said
            assert hosts.received(0) - before >= x.nbytes / 2, hosts.received(0) - before
        assert dict(np.load(d + "/out.npz"))["y"].tobytes() == want
        os.remove(d + "/out.npz")


@case
def a_rank_is_killed(d):
    """A rank on the other host is killed: the message must name it, and all must end within 5 seconds."""
    if why_not():
        return why_not()
    p, _ = big(d, 4)
    for victim in (3, 0):
        with Hosts() as hosts:
            ranks = start(hosts, 4, [TESSERA, "bench", p, "--inputs", d + "/in.npz", "--seconds", "60", "--threads", "1"])
            time.sleep(4)
            assert all(r.poll() is None for r in ranks), end(ranks)
            ranks[victim].send_signal(signal.SIGKILL)  # `ip netns exec`, unshare and sh have replaced themselves by the command
            began = time.time()
            codes, said = end(ranks, 30)
            seconds = time.time() - began
        assert codes[victim] == -9 and all(c == 6 for r, c in enumerate(codes) if r != victim), (codes, said)
        assert seconds < 5 and sum("rank %d" % victim in t for t in said) == 3, (seconds, said)


@case
def the_cable_is_cut(d):
    """All ranks live, but the network is disconnected: both sides must end after the timeout, with a message."""
    if why_not():
        return why_not()
    p, _ = big(d, 2)
    with Hosts() as hosts:
        ranks = start(hosts, 2, [TESSERA, "bench", p, "--inputs", d + "/in.npz", "--seconds", "60", "--threads", "1", "--timeout", "5"])
        time.sleep(4)
        assert all(r.poll() is None for r in ranks), end(ranks)
        hosts.cut()
        began = time.time()
        codes, said = end(ranks, 60)
    assert codes == [6, 6] and time.time() - began < 20, (codes, said, time.time() - began)
    assert "rank 1" in said[0] and "rank 0" in said[1], said


@case
def the_cable_of_a_worker_is_cut(d):
    """The session ends after its timeout and names the worker. The worker ends the session's ranks when the kernel gives up the
    connection (15 s), and goes on."""
    if why_not():
        return why_not()
    p, _ = big(d, 2)
    with open(d + "/secret", "w") as f:
        f.write(SECRET + "\n")
    env = harness.environment(TESSERA_PLUGINS=BUILD)
    with Hosts() as hosts:
        secret = ["--secret-file", d + "/secret"]
        worker = subprocess.Popen([*hosts.words(1), TESSERA, "worker", "--listen", hosts.addresses[1], *secret, "--cache", d + "/cache"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=env)
        time.sleep(2)
        session = subprocess.Popen([*hosts.words(0), TESSERA, "bench", p, "--inputs", d + "/in.npz", "--seconds", "60", "--timeout", "5",
                                    "--hosts", "%s:1,%s:1" % tuple(hosts.addresses), *secret], stderr=subprocess.PIPE, text=True, env=env)
        time.sleep(4)
        assert session.poll() is None, session.communicate()
        hosts.cut()
        began = time.time()
        said = session.communicate(timeout=60)[1]
        took = time.time() - began
        assert session.returncode == 6 and took < 10 and "worker on " + hosts.addresses[1] in said, (took, said)
        while subprocess.run(["pgrep", "-P", str(worker.pid)], stdout=subprocess.DEVNULL).returncode == 0:
            assert time.time() - began < 25, "the worker keeps the session"
            time.sleep(0.1)
        assert worker.poll() is None and all(len(n) == 64 for n in os.listdir(d + "/cache")), os.listdir(d + "/cache")
        worker.kill()
        worker.wait()


@case
def another_secret_on_the_other_host(d):
    if why_not():
        return why_not()
    p, _ = big(d, 2)
    with Hosts() as hosts:
        ranks = start(
            hosts, 2,
            ["sh", "-c", '[ $RANK = 1 ] && export TESSERA_SECRET=other; exec "$@"', "sh", TESSERA, "run", p, "--inputs", d + "/in.npz"])
        text = ranks[1].communicate(timeout=30)[0]
        ranks[0].kill()
        ranks[0].communicate()
    assert ranks[1].returncode == 6 and "have different secrets" in text, text


def listening(words):
    """(address, port) on which processes called tessera listen in that namespace."""
    lines = subprocess.run([*words, "ss", "-ltnpH"], capture_output=True, text=True).stdout.splitlines()
    return [tuple(l.split()[3].rsplit(":", 1)) for l in lines if '"tessera"' in l]


def can_connect(words, address, port):
    return subprocess.run(
        [*words, "timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/%s/%s" % (address, port)], capture_output=True).returncode == 0


@case
def one_interface(d):
    """UCX must listen on the interface that leads to rank 0, or on the requested one; a missing interface is an error."""
    if why_not():
        return why_not()
    p, _ = big(d, 2)
    with Hosts() as hosts:
        a, b = hosts.names  # a second connection
        subprocess.run(["ip", "link", "add", "other", "netns", a, "type", "veth", "peer", "name", "other", "netns", b], check=True)
        for k, name in enumerate(hosts.names):
            subprocess.run(["ip", "-n", name, "addr", "add", "10.94.0.%d/24" % (k + 1), "dev", "other"], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "other", "up"], check=True)
        bench = [TESSERA, "bench", p, "--inputs", d + "/in.npz", "--seconds", "6", "--threads", "1"]
        for more in ([], ["--interface", hosts.addresses[0].rsplit(".", 1)[0] + ".0/24"]):
            ranks = start(hosts, 2, [*bench, *more])
            time.sleep(3)
            heard = [listening(hosts.words(k)) for k in range(2)]
            let_in = [can_connect(hosts.words(k), *heard[0][0]) for k in range(2) if heard[0]]
            codes, said = end(ranks)
            assert codes == [0, 0] and [[a for a, _ in found] for found in heard] == [[a] for a in hosts.addresses], (codes, heard, said)
            assert let_in == [False, False], let_in
        codes, said = end(start(hosts, 2, [*bench, "--interface", "eth99"]))
        assert codes == [2, 2] and all("no network interface 'eth99'" in t for t in said), (codes, said)


# ---- ssh -----------------------------------------------------------------------------------------------------------------


def sshd(d, words=(), addresses=("127.0.0.2", "127.0.0.3"), path=""):
    """Start a server with new keys: (process, words of the remote shell), or (None, the reason why that is impossible). path: PATH of the
    commands that it runs, if not the usual one."""
    server = os.environ.get("SSHD") or shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if not server or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        return None, "no sshd"
    for key in ("host", "own"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "%s/%s" % (d, key)], check=True)
    shutil.copy(d + "/own.pub", d + "/authorized")
    os.chmod(d, 0o700)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    if os.getuid() == 0:
        os.makedirs("/run/sshd", 0o755, exist_ok=True)
    with open(d + "/config", "w") as f:
        f.write("".join("ListenAddress %s\n" % a for a in addresses))
        f.write("Port %d\nHostKey %s/host\nAuthorizedKeysFile %s/authorized\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n"
                "AcceptEnv TESSERA_ORT\n%s" % (port, d, d, "SetEnv PATH=%s\n" % path if path else ""))
    process = subprocess.Popen([*words, os.path.abspath(server), "-D", "-e", "-f", d + "/config"], stdout=subprocess.DEVNULL,
                               stderr=open(d + "/log", "w"))
    shell = (
        "ssh -x -p %d -i %s/own -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o"
        " SendEnv=TESSERA_ORT" % (port, d)
    )
    for _ in range(100):
        if process.poll() is not None:
            return None, "sshd does not start: " + open(d + "/log").read().strip()
        if subprocess.run([*words, *shell.split(), addresses[0], "true"], capture_output=True).returncode == 0:
            return process, shell
        time.sleep(0.1)
    process.kill()
    return None, "sshd lets nobody in: " + open(d + "/log").read().strip()


@case
def launch_over_ssh(d):
    if not os.path.exists(PLUGIN):
        return "no UCX"
    process, shell = sshd(d)
    if not process:
        return shell
    try:
        p, x = big(d, 4)
        want = run(p, {"x": x}, threads=1).outputs["y"].tobytes()
        env = {**os.environ, "TESSERA_RSH": shell, "TESSERA_ORT": engine()}
        go = lambda *command, hosts="127.0.0.2:2,127.0.0.3:2": subprocess.run([TESSERA, "launch", "--hosts", hosts, "--", *command],
                                                                              capture_output=True, text=True, timeout=120, env=env)
        q = go(TESSERA, "run", p, "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", "--threads", "1", "--transport", "ucx")
        assert q.returncode == 0 and q.stdout.startswith("[0] y"), (q.stdout, q.stderr)
        assert dict(np.load(d + "/out.npz"))["y"].tobytes() == want
        began = time.time()
        q = go("sh", "-c", "[ $RANK = 1 ] && exit 7; echo $$ >%s/pid; exec sleep 977" % d, hosts="127.0.0.2,127.0.0.3")
        assert q.returncode == 7 and time.time() - began < 30, (q.returncode, q.stderr)
        ranks = subprocess.Popen([
            TESSERA, "launch", "--hosts", "127.0.0.2", "--", "sh", "-c",
            "echo $$ >%s/new; mv %s/new %s/lives; exec sleep 977" % (d, d, d)
        ], env=env)
        while not os.path.exists(d + "/lives"):
            time.sleep(0.05)
        ranks.send_signal(signal.SIGTERM)
        ranks.wait(20)
        pid, until = open(d + "/lives").read().strip(), time.time() + 10
        while os.path.exists("/proc/" + pid) and time.time() < until:
            time.sleep(0.05)
        assert not os.path.exists("/proc/" + pid), "a rank outlives its launcher"
    finally:
        process.terminate()
        process.wait()


def workers_at(port):
    """Processes of a worker that --rsh has started: the shell's script, the worker, its sessions and their ranks."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open("/proc/%s/cmdline" % entry, "rb") as f:
            words = f.read()
            if b"worker" in words and b"127.0.0.2:%d" % port in words:
                found.append(int(entry))
    return found


def wait_for(is_so, seconds):
    until = time.time() + seconds
    while not is_so() and time.time() < until:
        time.sleep(0.05)
    return is_so()


@case
def workers_over_ssh(d):
    """run --rsh ssh starts a worker on the other host, which ends with the session, also if that is killed. If `tessera` is not in the
    PATH there, the error names the host."""
    if not os.path.exists(PLUGIN):
        return "no UCX"
    p, x = big(d, 2)
    want = run(p, {"x": x}, threads=1).outputs["y"].tobytes()
    with open(d + "/secret", "w") as f:
        f.write(SECRET + "\n")
    with socket.socket() as s:
        s.bind(("127.0.0.2", 0))
        port = s.getsockname()[1]
    env = harness.environment(TESSERA_PLUGINS=os.path.abspath(BUILD), TESSERA_ORT=engine(), XDG_CACHE_HOME=d)
    words = ["--inputs", d + "/in.npz", "--threads", "1", "--hosts", "127.0.0.1:1,127.0.0.2:1", "--secret-file", d + "/secret", "--port",
             port]
    call = lambda shell: subprocess.run([TESSERA, "run", p, "--outputs", d + "/out.npz", *map(str, words), "--rsh", shell],
                                        capture_output=True, text=True, timeout=120, env=env)
    for path in (os.path.abspath(BUILD) + ":/usr/bin:/bin", "/usr/bin:/bin"):
        keys = tempfile.mkdtemp(dir=d)
        process, shell = sshd(keys, path=path)
        if not process:
            return shell
        try:
            began = time.time()
            q = call(shell)
            if not path.startswith(os.path.abspath(BUILD)):
                assert q.returncode == 6 and "127.0.0.2" in q.stderr and "PATH" in q.stderr and time.time() - began < 15, q.stderr
                continue
            assert q.returncode == 0 and dict(np.load(d + "/out.npz"))["y"].tobytes() == want and SECRET not in q.stderr, q.stderr
            assert wait_for(lambda: not workers_at(port), 10), "the worker outlives its session"
            session = subprocess.Popen([TESSERA, "bench", p, "--seconds", "600", *map(str, words), "--rsh", shell], env=env,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            began = wait_for(lambda: len(workers_at(port)) >= 5 or session.poll() is not None, 60)
            left = session.poll()
            session.kill()
            session.wait()
            assert began and left is None, "the session does not start"
            assert wait_for(lambda: not workers_at(port), 30), "the worker outlives a session that was killed"
        finally:
            process.terminate()
            process.wait()


@case
def launch_between_hosts(d):
    """Launch from one host to the other. This host is known by its address and by `localhost`; the other gets an address that it can
    reach."""
    if why_not():
        return why_not()
    p, x = big(d, 2)
    want = run(p, {"x": x}, threads=1).outputs["y"].tobytes()
    with Hosts() as hosts:
        process, shell = sshd(d, hosts.words(1), hosts.addresses[1:])  # only on the other host
        if not process:
            return shell
        try:
            env = {**os.environ, "TESSERA_RSH": shell, "TESSERA_ORT": engine(), "TESSERA_PLUGINS": os.path.abspath(BUILD)}
            for zero in (hosts.addresses[0], "localhost", hosts.names[0]):
                q = subprocess.run([
                    *hosts.words(0), TESSERA, "launch", "--hosts",
                    "%s:1,%s:1" % (zero, hosts.addresses[1]), "--", "sh", "-c", 'echo "at $MASTER_ADDR"; exec "$@"', "sh", TESSERA, "run",
                    p, "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", "--threads", "1"
                ], capture_output=True, text=True, timeout=120, env=env)
                assert q.returncode == 0 and q.stdout.count("at %s\n" % hosts.addresses[0]) == 2, (zero, q.stdout, q.stderr)
                assert dict(np.load(d + "/out.npz"))["y"].tobytes() == want
                os.remove(d + "/out.npz")
        finally:
            process.terminate()
            process.wait()


# ---- Slurm ---------------------------------------------------------------------------------------------------------------

SLURM = """
ClusterName=tessera
SlurmctldHost=%(a)s(%(a_at)s)
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=%(d)s/munge/socket
StateSaveLocation=%(d)s/state
SlurmdSpoolDir=%(d)s/spool.%%n
SlurmctldPidFile=%(d)s/slurmctld.pid
SlurmdPidFile=%(d)s/slurmd.%%n.pid
SlurmctldLogFile=%(d)s/slurmctld.log
SlurmdLogFile=%(d)s/slurmd.%%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=%(a)s NodeAddr=%(a_at)s CPUs=4 State=UNKNOWN
NodeName=%(b)s NodeAddr=%(b_at)s CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A Slurm cluster of two nodes on the two hosts; it is removed completely at the end."""

    def __init__(self, d, hosts):
        self.d, self.hosts, self.started = d, hosts, []
        self.env = {
            **os.environ, "SLURM_CONF": d + "/slurm.conf", "TESSERA_ORT": engine(), "TESSERA_PLUGINS": os.path.abspath(BUILD),
            "PATH": d + "/bin:" + os.environ["PATH"] + ":/usr/sbin"
        }

    def daemon(self, k, *words):
        self.started.append(
            subprocess.Popen([*self.hosts.words(k), *words], env=self.env, stdout=subprocess.DEVNULL,
                             stderr=open(self.d + "/daemons.log", "a")))

    def call(self, *words, timeout=120):
        return subprocess.run([*self.hosts.words(0), *words], env=self.env, cwd=self.d, capture_output=True, text=True, timeout=timeout)

    def __enter__(self):
        d, (a, b), (a_at, b_at) = self.d, self.hosts.names, self.hosts.addresses
        os.chmod(d, 0o755)
        for name in ("munge", "state", "bin"):
            os.mkdir(d + "/" + name, 0o755)
        os.symlink(TESSERA, d + "/bin/tessera")
        with open(d + "/munge/key", "wb", opener=lambda p, f: os.open(p, f, 0o400)) as f:
            f.write(os.urandom(128))
        with open(d + "/slurm.conf", "w") as f:
            f.write(SLURM % locals())
        with open(d + "/cgroup.conf", "w") as f:
            f.write("CgroupPlugin=cgroup/v1\n")  # there are no control groups in a namespace
        for name in (a, b):
            os.mkdir("%s/spool.%s" % (d, name))
        try:
            self.start_daemons()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_daemons(self):
        d = self.d
        self.daemon(0, "munged", "--foreground", "--force", *["--%s=%s/munge/%s" % (k, d, v) for k, v in
                    (("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))])
        self.daemon(0, "slurmctld", "-D")
        for k in range(2):
            self.daemon(k, "slurmd", "-D", "-N", self.hosts.names[k])
        until = time.time() + 6
        while self.call("timeout", "10", "srun", "-N2", "-n2", "-t1", "true").returncode:
            if time.time() > until:
                raise AssertionError("Slurm does not start: " +
                                     "".join(open(d + "/" + f).read()[-1500:] for f in os.listdir(d) if f.endswith(".log")))
            time.sleep(1)

    def __exit__(self, *_):
        for p in reversed(self.started):
            p.terminate()
        for p in self.started:
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()


@case
def slurm(d):
    """srun on one host (shared memory) and on two (UCX), with PMI if this Slurm supports it, and examples/cluster/slurm.sh with sbatch."""
    if why_not():
        return why_not()
    path = os.environ["PATH"] + ":/usr/sbin"
    absent = [name for name in ("slurmctld", "slurmd", "munged", "srun", "sbatch") if not shutil.which(name, path=path)]
    if absent:
        return "no %s (Debian: slurm-wlm, munge)" % absent[0]
    p, x = big(d, 2)
    want = run(p, {"x": x}, threads=1).outputs["y"].tobytes()
    with Hosts() as hosts, Slurm(d, hosts) as s:
        s.env["TESSERA_SECRET"] = SECRET
        command = ["tessera", "run", p, "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", "--threads", "1", "--verbose"]
        offered = s.call("srun", "--mpi=list")
        ways = [(["-N1"], [], "shm with"), (["-N2"], ["--transport", "ucx"], "ucx with")]
        ways += [(["-N1", "--mpi=" + mpi], [], " with ranks 0+1") for mpi in ("pmi2", "pmix")
                 if mpi in (offered.stdout + offered.stderr).split()]
        for nodes, more, seen in ways:
            q = s.call("srun", "-n2", "-t2", *nodes, *command, *more)
            assert q.returncode == 0 and seen in q.stdout, (nodes, q.stdout, q.stderr)
            assert dict(np.load(d + "/out.npz"))["y"].tobytes() == want
            os.remove(d + "/out.npz")
        p, x = big(d, 8)
        want = run(p, {"x": x}, threads=1).outputs["y"].tobytes()
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/cluster/slurm.sh")
        q = s.call("sbatch", "--wait", script, timeout=200)
        said = "".join(open(d + "/" + f).read() for f in os.listdir(d) if f.startswith("slurm-"))
        assert q.returncode == 0 and os.path.exists(d + "/out.npz"), (q.stdout, q.stderr, said)
        got = dict(np.load(d + "/out.npz"))["y"]
        assert np.abs(got - np.frombuffer(want, "f4").reshape(got.shape)).max() <= 1e-4 * np.abs(got).max()


main()
