# SPDX-License-Identifier: Apache-2.0
"""Long: two hosts that this test makes itself, as network namespaces with a cable between them, and launching over a real sshd.

What the machine does not allow is skipped, and said so. SSHD: path of the server (default: what is installed)."""
import shutil
import signal
import socket
import time

from parts import *

TESSERA = os.path.abspath(os.path.join(BUILD, "tessera"))
PLUGIN = os.path.join(BUILD, "libtessera_ucx.so")
SECRET = "a secret of this test alone"


class Hosts:
    """Namespaces with a cable: hosts.words(k) starts a command on host k. None of it is left behind."""

    def __init__(self):
        self.names = ["tsr%d%s" % (os.getpid() % 100000, k) for k in "ab"]
        self.addresses = ["10.93.%d.%d" % (os.getpid() % 250, k + 1) for k in range(2)]

    def __enter__(self):
        ip = lambda *words: subprocess.run(["ip", *words], check=True, capture_output=True)
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.names[0], "netns", self.names[0], "type", "veth", "peer", "name", self.names[1], "netns", self.names[1])
        for name, address in zip(self.names, self.addresses):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", address + "/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
        for name in self.names:  # a cable carries nothing at first
            for _ in range(100):
                if b"state UP" in subprocess.run(["ip", "-n", name, "link", "show", name], capture_output=True).stdout:
                    break
                time.sleep(0.05)
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def words(self, k):
        return ["ip", "netns", "exec", self.names[k], "unshare", "--uts", "--ipc", "sh", "-c", 'hostname %s && exec "$@"' % self.names[k], "sh"]

    def received(self, k):
        text = subprocess.run([*self.words(k), "cat", "/proc/net/dev"], capture_output=True, text=True).stdout
        return int(next(l for l in text.splitlines() if l.strip().startswith(self.names[k])).split(":")[1].split()[0])

    def cut(self):
        subprocess.run(["ip", "-n", self.names[0], "link", "set", self.names[0], "down"], check=True)


def why_not():
    if not os.path.exists(PLUGIN):
        return "no UCX"
    try:
        with Hosts() as h:
            if subprocess.run([*h.words(0), "true"], capture_output=True).returncode:
                return "no right to give a process another host name"
    except (OSError, subprocess.CalledProcessError) as e:
        return "no right to make network namespaces (%s)" % e


def start(hosts, ranks, command):
    """Ranks in halves on both hosts, with a launcher's variables."""
    started = []
    for r in reversed(range(ranks)):
        env = {**os.environ, "RANK": str(r), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks // 2), "MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": "29511",
               "TESSERA_SECRET": SECRET, "TESSERA_ORT": engine(), "TESSERA_PLUGINS": os.path.abspath(BUILD)}
        started.insert(0, subprocess.Popen([*hosts.words(2 * r // ranks), *command], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    return started


def end(started, timeout=120):
    said = [p.communicate(timeout=timeout)[0] for p in started]
    return [p.returncode for p in started], said


def big(d, n):
    """8 MB to add up on every rank."""
    nodes = lambda r: [h.make_node("Mul", ["x", "mine"], ["a"]), comm("AllReduce", "a", "y", 0, range(n), F, reduce="sum", name="sum")]
    parts = [model(nodes(r), [value("x", F, [1000, 2000])], [value("y")], {"mine": np.float32(1.1 + r)}) for r in range(n)]
    x = np.random.default_rng(1).normal(size=(1000, 2000)).astype("f4")
    np.savez(d + "/in.npz", x=x)
    return partition(d + "/parts", parts), x


@case
def two_hosts(d):
    """Two and four ranks: the same bits as threads, and the data went over the cable."""
    if why_not():
        return why_not()
    for n in (2, 4):
        p, x = big(d, n)
        want = run(p, {"x": x}, threads=1).outputs["y"].tobytes()
        with Hosts() as hosts:
            before = hosts.received(0)
            codes, said = end(start(hosts, n, [TESSERA, "run", p, "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", "--threads", "1"]))
            assert codes == [0] * n, said
            assert hosts.received(0) - before >= x.nbytes / 2, hosts.received(0) - before
        assert dict(np.load(d + "/out.npz"))["y"].tobytes() == want
        os.remove(d + "/out.npz")


@case
def a_rank_is_killed(d):
    """On the other host: named, and all ended within 5 seconds."""
    if why_not():
        return why_not()
    p, _ = big(d, 4)
    for victim in (3, 0):
        with Hosts() as hosts:
            ranks = start(hosts, 4, [TESSERA, "bench", p, "--inputs", d + "/in.npz", "--seconds", "60", "--threads", "1"])
            time.sleep(4)
            assert all(r.poll() is None for r in ranks), end(ranks)
            ranks[victim].send_signal(signal.SIGKILL)  # `ip netns exec`, unshare and sh have become the command
            began = time.time()
            codes, said = end(ranks, 30)
            seconds = time.time() - began
        assert codes[victim] == -9 and all(c == 6 for r, c in enumerate(codes) if r != victim), (codes, said)
        assert seconds < 5 and sum("rank %d" % victim in t for t in said) == 3, (seconds, said)


@case
def the_cable_is_cut(d):
    """Nobody has died, but nobody is heard: both sides end after the time-out, and say so."""
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
def another_secret_on_the_other_host(d):
    if why_not():
        return why_not()
    p, _ = big(d, 2)
    with Hosts() as hosts:
        ranks = start(hosts, 2, ["sh", "-c", '[ $RANK = 1 ] && export TESSERA_SECRET=other; exec "$@"', "sh", TESSERA, "run", p, "--inputs", d + "/in.npz"])
        text = ranks[1].communicate(timeout=30)[0]
        ranks[0].kill()
        ranks[0].communicate()
    assert ranks[1].returncode == 6 and "do not have the same secret" in text, text


# ---- ssh -----------------------------------------------------------------------------------------------------------------


def sshd(d):
    """A server on the loopback with keys of its own: (process, words of the remote shell), or why there is none."""
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
    with open(d + "/config", "w") as f:
        f.write("Port %d\nListenAddress 127.0.0.2\nListenAddress 127.0.0.3\nHostKey %s/host\nAuthorizedKeysFile %s/authorized\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n"
                "AcceptEnv TESSERA_ORT\n" % (port, d, d))
    process = subprocess.Popen([os.path.abspath(server), "-D", "-e", "-f", d + "/config"], stdout=subprocess.DEVNULL, stderr=open(d + "/log", "w"))
    shell = "ssh -x -p %d -i %s/own -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o SendEnv=TESSERA_ORT" % (port, d)
    for _ in range(100):
        if process.poll() is not None:
            return None, "sshd does not start: " + open(d + "/log").read().strip()
        if subprocess.run([*shell.split(), "127.0.0.2", "true"], capture_output=True).returncode == 0:
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
        go = lambda *command, hosts="127.0.0.2:2,127.0.0.3:2": subprocess.run([TESSERA, "launch", "--hosts", hosts, "--", *command], capture_output=True, text=True, timeout=120, env=env)
        q = go(TESSERA, "run", p, "--inputs", d + "/in.npz", "--outputs", d + "/out.npz", "--threads", "1", "--transport", "ucx")
        assert q.returncode == 0 and q.stdout.startswith("[0] y"), (q.stdout, q.stderr)
        assert dict(np.load(d + "/out.npz"))["y"].tobytes() == want
        began = time.time()
        q = go("sh", "-c", "[ $RANK = 1 ] && exit 7; echo $$ >%s/pid; exec sleep 977" % d, hosts="127.0.0.2,127.0.0.3")
        assert q.returncode == 7 and time.time() - began < 30, (q.returncode, q.stderr)
        ranks = subprocess.Popen([TESSERA, "launch", "--hosts", "127.0.0.2", "--", "sh", "-c", "echo $$ >%s/new; mv %s/new %s/lives; exec sleep 977" % (d, d, d)], env=env)
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


main()
