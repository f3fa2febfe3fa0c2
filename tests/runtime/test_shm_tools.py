# SPDX-License-Identifier: Apache-2.0
"""`tessera bench` with ranks as processes that a test can kill; shared by test_shm.py and soak.py."""
import time

from parts import *

TESSERA = os.path.join(BUILD, "tessera")


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
    """Named segments of shared memory. Folders there are temporary ones of other tests."""
    return {s for s in os.listdir("/dev/shm") if s.startswith("tessera-") and os.path.isfile("/dev/shm/" + s)}


class Bench:
    """`tessera bench` with processes; it is running when the constructor returns."""

    def __init__(self, d, n, seconds=2 * harness.HANG_S, timeout=2, settle=0.5, words=(), **sizes):
        _, parts, x = mlp(n, **sizes)
        self.n, self.before = n, segments()
        os.makedirs(d, exist_ok=True)
        np.savez(d + "/in.npz", x=x)
        words = [
            TESSERA, "bench",
            partition(d + "/p", parts), "--transport", "shm", "--seconds",
            str(seconds), "--timeout",
            str(timeout), "--inputs", d + "/in.npz", *words
        ]
        self.p = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                                  env={**os.environ, "TESSERA_ORT": engine()})
        until = time.time() + harness.HANG_S
        while len(children(self.p.pid)) < n and self.p.poll() is None and time.time() < until:
            time.sleep(0.02)
        time.sleep(settle)
        self.kids = children(self.p.pid)
        assert len(self.kids) == n and self.p.poll() is None, (self.kids, self.p.poll())

    def end(self):
        """Wait until the process has ended, long before the benchmark would; returns the exit code. No process or segment may remain."""
        self.out, self.err = self.p.communicate(timeout=harness.HANG_S)
        until = time.time() + 10
        while (any(map(alive, self.kids)) or segments() - self.before) and time.time() < until:  # other tests have segments for moments
            time.sleep(0.02)
        left = [k for k in self.kids if alive(k)]
        for k in left:
            os.kill(k, signal.SIGKILL)
        assert not left, "%d ranks left" % len(left)
        assert not segments() - self.before, segments()
        return self.p.returncode
