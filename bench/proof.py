#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""proof - a model that does not fit in a memory-limited environment, and runs as two ranks in two environments of that size.

usage: proof.py BUILD [small | large] [--limit-by cgroup|address-space] [--folder DIR] [--no-hosts]
large (default): 3.2 GB of weights, about 7 GB of disk. small: 0.3 GB, for a test. DIR: for the files (default: TMPDIR)

One environment is a control group (cgroup v2, without swap) or, where none can be made, a limit on address space. First a probe shows
that the limit is effective. Then, with random float32 weights that are written in blocks:
  1. ONNX Runtime runs the unsharded model without a limit, if this machine has the memory: what it needs
  2. ONNX Runtime runs the unsharded model in one environment: it must end for lack of memory
  3. ONNX Runtime runs the layers one after the other in one environment: the reference, and the control for step 2
  4. tessera plans and partitions the model in one environment
  5. two ranks run in two environments, over shared memory
  6. two ranks run in two environments on two hosts made of network namespaces, over UCX (needs root)
Exits with 1 if a step has another result than expected."""
import argparse, glob, os, resource, shutil, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIZES = {"large": (32, 4096, 32, 4), "small": (16, 1024, 8, 6)}  # tokens, hidden size, heads, layers
SHARE = 0.6  # the limit is this share of the weights, plus `base` of the environment for programs and libraries
TOLERANCE = 5e-5  # of float32, relative to the largest magnitude, as in `tessera verify`
GROUPS = "/sys/fs/cgroup"
SECRET = "a secret of this proof alone"
STEP_S = 900  # a step that takes longer counts as hanging


class Failed(Exception):
    pass


# ---- environments -------------------------------------------------------------------------------


class AddressSpace:
    """RLIMIT_AS of one process. It counts every mapping, also those of files."""

    text = "of address space (RLIMIT_AS)"
    base = 256 << 20

    def __init__(self, size):
        self.size = size

    def enter(self):
        """Called in the new process before it executes the program."""
        resource.setrlimit(resource.RLIMIT_AS, (self.size, self.size))

    def counted(self, pid):
        """The peak so far of the memory that the limit counts."""
        return status(pid).get("VmPeak", 0)

    def ended(self):
        return ""


class Group:
    """A control group (v2). It counts anonymous memory and the page cache. The kernel drops cached pages of files before it kills a
    process."""

    text = "of memory (cgroup v2, memory.max, no swap)"
    base = 64 << 20  # most pages of programs and libraries are file pages

    def __init__(self, size):
        self.size = size
        self.folder = tempfile.mkdtemp(prefix="tessera-proof-", dir=GROUPS)
        try:
            self.write("memory.max", size)
            if os.path.exists(self.folder + "/memory.swap.max"):
                self.write("memory.swap.max", 0)
        except OSError:
            os.rmdir(self.folder)
            raise

    def write(self, name, value):
        with open(os.path.join(self.folder, name), "w") as f:
            f.write(str(value))

    def read(self, name):
        try:
            with open(os.path.join(self.folder, name)) as f:
                return f.read()
        except OSError:
            return ""

    def enter(self):
        self.write("cgroup.procs", os.getpid())

    def counted(self, _):
        return int(self.read("memory.peak") or self.read("memory.current") or 0)

    def ended(self):
        """Remove the group. Returns why the kernel killed its process, or nothing."""
        events = dict(line.split() for line in self.read("memory.events").splitlines())
        for _ in range(100):  # until the kernel has removed the last process
            try:
                os.rmdir(self.folder)
                break
            except OSError:
                time.sleep(0.05)
        return "killed by the kernel (oom_kill)" if int(events.get("oom_kill", 0)) else ""


class Unlimited(AddressSpace):
    def enter(self):
        pass


def status(pid):
    """Sizes of /proc/PID/status in bytes."""
    try:
        with open("/proc/%d/status" % pid) as f:
            return {line.split(":")[0]: int(line.split()[1]) << 10 for line in f if line.endswith("kB\n")}
    except (OSError, ProcessLookupError):
        return {}


def group_problem():
    """Why no control group can be created here; None if one can."""
    try:
        with open(GROUPS + "/cgroup.controllers") as f:
            if "memory" not in f.read().split():
                return "cgroup v2 without the memory controller"
        with open(GROUPS + "/cgroup.subtree_control") as f:
            if "memory" not in f.read().split():
                return "the memory controller is not enabled for new control groups"
        Group(1 << 30).ended()
    except FileNotFoundError:
        return "no cgroup v2"
    except OSError as error:
        return str(error)


class Ran:
    """A program that ran in an environment: exit code, output, seconds, largest counted and anonymous memory."""

    def __init__(self, limit, words, env):
        self.limit, self.began, self.counted, self.anonymous, self.code = limit, time.time(), 0, 0, None
        self.out = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=self.out, stderr=subprocess.STDOUT,
                                        preexec_fn=limit.enter)

    def poll(self):
        """Take a sample; true while the program runs."""
        if self.code is not None:
            return False
        self.counted = max(self.counted, self.limit.counted(self.process.pid))
        self.anonymous = max(self.anonymous, status(self.process.pid).get("RssAnon", 0))
        if time.time() - self.began > STEP_S:
            self.process.kill()
        if self.process.poll() is None:
            return True
        self.code, self.seconds = self.process.returncode, time.time() - self.began
        self.counted = max(self.counted, self.limit.counted(self.process.pid))
        self.out.seek(0)
        self.text = self.out.read()
        self.killed = self.limit.ended()
        return False

    def out_of_memory(self):
        """The reason, if the program ended for lack of memory."""
        if self.killed:
            return self.killed
        words = ("bad_alloc", "MemoryError", "llocate memory", "out of memory")
        return next(("allocation failed: %s" % word for word in words if self.code and word in self.text), "")


def run(limits, commands, env, variables=({}, {})):
    """Run each command in its environment, all at the same time."""
    started = [Ran(limit, words, {**env, **more}) for limit, words, more in zip(limits, commands, variables)]
    while any([ran.poll() for ran in started]):
        time.sleep(0.01)
    return started


# ---- the unsharded model, in its own process ----------------------------------------------------


def run_unsharded(folder, result, layers):
    """Run the model, or one layer after the other, in ONNX Runtime with two threads. Writes the output."""
    import numpy as np
    import onnx
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 4
    value = dict(np.load(folder + "/in.npz"))["x"]
    names = ["layer%d" % k for k in range(layers)] if layers else ["model"]
    for name in names:
        session = onnxruntime.InferenceSession("%s/%s.onnx" % (folder, name), options, providers=["CPUExecutionProvider"])
        value = session.run(None, {session.get_inputs()[0].name: value})[0]
        del session
    np.save(result, value)


def write_layers(folder, layers):
    """Write one model per layer, with weights in the same file."""
    import onnx
    model = onnx.load(folder + "/model.onnx", load_external_data=False)
    for k in range(layers):
        nodes = [node for node in model.graph.node if node.name.startswith("layer%d_" % k)]
        used, made = {name for node in nodes for name in node.input}, {name for node in nodes for name in node.output}
        weights = [tensor for tensor in model.graph.initializer if tensor.name in used]
        ends = []
        for name in ("layer%d_sum2" % (k - 1) if k else "x", "layer%d_sum2" % k):
            end = onnx.ValueInfoProto()
            end.CopyFrom(model.graph.input[0])
            end.name = name
            ends.append(end)
        assert used - made - {tensor.name for tensor in weights} == {ends[0].name}, used
        part = onnx.helper.make_model(onnx.helper.make_graph(nodes, "layer", ends[:1], ends[1:], weights),
                                      ir_version=model.ir_version, opset_imports=model.opset_import)
        with open("%s/layer%d.onnx" % (folder, k), "wb") as f:
            f.write(part.SerializeToString())


# ---- the proof ----------------------------------------------------------------------------------


def gigabytes(size):
    return "%.2f GB" % (size / 1e9)


class Proof:
    def __init__(self, options, folder):
        self.folder, self.size, self.rows, self.hosts = folder, SIZES[options.size], [], not options.no_hosts
        self.build = os.path.abspath(options.build)
        self.tessera = self.build + "/tessera"
        self.env = {**os.environ, "TESSERA_PLUGINS": self.build, "MALLOC_ARENA_MAX": "1"}  # an arena reserves 64 MiB of address space
        if not self.env.get("TESSERA_ORT"):
            import onnxruntime
            self.env["TESSERA_ORT"] = sorted(glob.glob(os.path.dirname(onnxruntime.__file__) + "/capi/libonnxruntime.so*"))[-1]
        problem = group_problem()
        if options.limit_by == "cgroup" and problem:
            raise Failed("no control group can be made: " + problem)
        self.limit_kind = Group if options.limit_by != "address-space" and not problem else AddressSpace
        if self.limit_kind is AddressSpace:
            print("limit: address space, because %s" % (problem or "it was requested"), flush=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def limit(self):
        return self.limit_kind(self.limit_bytes)

    def row(self, what, limit, peaks, anonymous, seconds, result):
        self.rows.append((what, limit, peaks, anonymous, "%.1f s" % seconds, result))
        print("# %s: %s, %.1f s, %s" % (what, peaks, seconds, result), flush=True)

    def add(self, what, ran, result, limited=True):
        # Without a limit, address space is measured: a control group would not count it.
        counted = ", ".join(gigabytes(r.counted) for r in ran) if limited or self.limit_kind is AddressSpace else ""
        self.row(what, gigabytes(self.limit_bytes) if limited else "none", counted,
                 ", ".join(gigabytes(r.anonymous) for r in ran), max(r.seconds for r in ran), result)

    def make(self):
        import numpy as np
        words = [sys.executable, ROOT + "/tools/block", self.folder, *map(str, self.size), "random"]
        began = time.time()
        subprocess.run(words, check=True)
        tokens, hidden = self.size[:2]
        np.savez(self.path("in.npz"), x=np.random.default_rng(1).standard_normal((1, tokens, hidden), dtype="f4"))
        write_layers(self.folder, self.size[3])
        self.weights = os.path.getsize(self.path("weights.bin"))
        self.limit_bytes = int(SHARE * self.weights) + self.limit_kind.base
        print("# %s of weights made in %.0f s" % (gigabytes(self.weights), time.time() - began), flush=True)

    def probe(self):
        """A program that fills half of the limit must run; one that fills all of it must not."""
        for share, expected in ((0.5, True), (1, False)):
            words = [sys.executable, "-c", "b = bytearray(%d)\nfor i in range(0, len(b), 4096): b[i] = 1" % (self.limit_bytes * share)]
            ran, = run([self.limit()], [words], self.env)
            if (ran.code == 0) != expected or not expected and not ran.out_of_memory():
                raise Failed("the limit is not effective: a program that fills %g of it exits with %d\n%s" % (share, ran.code, ran.text))
        print("# the limit of %s %s is effective" % (gigabytes(self.limit_bytes), self.limit_kind.text), flush=True)

    def unsharded(self, limit, result, layers=0):
        return run([limit], [[sys.executable, os.path.abspath(__file__), "--unsharded", self.folder, result, str(layers)]], self.env)[0]

    def difference(self, name):
        import numpy as np
        wanted = np.load(self.path("reference.npy"))
        got = np.load(self.path(name))
        got = got if isinstance(got, np.ndarray) else got[got.files[0]]
        worst = np.abs(got - wanted).max() / np.abs(wanted).max()
        if not worst <= TOLERANCE:  # NaN too
            raise Failed("%s differs from the reference by %g of the largest magnitude, more than %g" % (name, worst, TOLERANCE))
        return "difference %.1e" % worst

    def reference(self):
        ran = self.unsharded(self.limit(), self.path("reference.npy"), self.size[3])
        if ran.code:
            raise Failed("the layers do not run one by one: exit %d\n%s" % (ran.code, ran.text))
        self.add("ONNX Runtime, layer by layer", [ran], "the reference")

    def whole(self):
        """Run the unsharded model in one environment, and before that without a limit if there is enough memory."""
        needed = 1.2 * self.weights + AddressSpace.base
        with open("/proc/meminfo") as f:
            available = next(int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable"))
        if available < needed:
            print("# skipped: unsharded without a limit needs %s, available are %s" % (gigabytes(needed), gigabytes(available)), flush=True)
        else:
            ran = self.unsharded(Unlimited(0), self.path("whole.npy"))
            if ran.code:
                raise Failed("the unsharded model does not run without a limit: exit %d\n%s" % (ran.code, ran.text))
            self.add("ONNX Runtime, unsharded", [ran], self.difference("whole.npy"), limited=False)
            if ran.anonymous <= self.limit_bytes:
                print("# note: its anonymous memory alone, %s, is below the limit; address space also counts libraries" %
                      gigabytes(ran.anonymous), flush=True)
        ran = self.unsharded(self.limit(), self.path("whole.npy"))
        reason = ran.out_of_memory()
        if ran.code == 0 or not reason:
            raise Failed("the unsharded model did not run out of memory in %s: exit %d\n%s" %
                         (gigabytes(self.limit_bytes), ran.code, ran.text))
        self.row("ONNX Runtime, unsharded", gigabytes(self.limit_bytes),
                 ("killed" if ran.killed else "ended") + " at " + gigabytes(ran.counted), gigabytes(ran.anonymous), ran.seconds, reason)

    def partition(self):
        """Plan and partition the model, each in one environment."""
        plan = [
            self.tessera, "plan",
            self.path("model.onnx"), "--devices", "2", "--memory",
            str(self.limit_bytes - self.limit_kind.base), "-o",
            self.path("planned.onnx")
        ]
        partition = [self.tessera, "partition", self.path("planned.onnx"), "-o", self.path("parts")]
        for name, words in (("tessera plan", plan), ("tessera partition", partition)):
            ran, = run([self.limit()], [words], self.env)
            if ran.code:
                raise Failed("%s: exit %d\n%s" % (name, ran.code, ran.text))
            self.add(name, [ran], "")

    def ranks(self, what, result, commands, variables=({}, {})):
        ran = run([self.limit(), self.limit()], commands, self.env, variables)
        if any(r.code for r in ran):
            raise Failed("%s: exit %s\n%s" % (what, [r.code for r in ran], "\n".join(r.text for r in ran)))
        self.add(what, ran, self.difference(result))

    def rank_command(self, result):
        return [self.tessera, "run", self.path("parts"), "--inputs", self.path("in.npz"), "--outputs", self.path(result), "--threads", "1"]

    def one_host(self):
        command = self.rank_command("shm.npz")
        self.ranks("2 ranks on one host", "shm.npz", [[*command, "--rank", str(k), "--ranks", "2"] for k in range(2)])

    def two_hosts(self):
        if not self.hosts:
            return "--no-hosts"
        if not os.path.exists(self.build + "/libtessera_ucx.so"):
            return "this build has no UCX plug-in"
        if os.getuid():
            return "network namespaces need root"
        sys.path.insert(0, ROOT + "/tests/runtime")
        from namespaces import Hosts
        try:
            with Hosts() as hosts:
                if subprocess.run([*hosts.words(0), "true"], capture_output=True).returncode:
                    return "no right to set a host name"
                before = hosts.received(0)
                variables = [{"RANK": str(k), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": hosts.addresses[0],
                              "MASTER_PORT": "29511", "TESSERA_SECRET": SECRET} for k in range(2)]
                self.ranks("2 ranks on two hosts", "ucx.npz", [[*hosts.words(k), *self.rank_command("ucx.npz")] for k in range(2)],
                           variables)
                received = hosts.received(0) - before
        except (OSError, subprocess.CalledProcessError) as error:
            return "no right to make network namespaces (%s)" % error
        if received < self.size[0] * self.size[1] * 4:
            raise Failed("the hosts exchanged only %d bytes" % received)
        print("# host 0 received %.1f MB" % (received / 1e6), flush=True)

    def table(self):
        print("\n%s of float32 weights; limit of each environment: %s %s" %
              (gigabytes(self.weights), gigabytes(self.limit_bytes), self.limit_kind.text))
        rows = [("", "limit", "peak, counted", "peak, anonymous", "time", "result"), *self.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        for row in rows:
            print("  ".join([cell.ljust(width) for cell, width in zip(row, widths)] + [row[5]]).rstrip())

    def run(self):
        for step in (self.make, self.probe, self.reference, self.whole, self.partition, self.one_host, self.two_hosts):
            reason = step()
            if reason:
                print("# skipped: %s: %s" % (step.__name__.replace("_", " "), reason), flush=True)
        self.table()


def main():
    if sys.argv[1:2] == ["--unsharded"]:
        return run_unsharded(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("size", nargs="?", default="large", choices=sorted(SIZES))
    parser.add_argument("--limit-by", choices=("cgroup", "address-space"))
    parser.add_argument("--folder", help="for the files, which are deleted at the end")
    parser.add_argument("--no-hosts", action="store_true", help="make no network namespaces")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="tessera-proof-", dir=options.folder)
    try:
        Proof(options, folder).run()
    except Failed as error:
        sys.exit("FAILED: %s" % error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
