# SPDX-License-Identifier: Apache-2.0
"""The machine as nemesis.py sees it: launchers, processes, shared memory; and the partitions that it runs."""
import glob
import os
import shutil
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../runtime"))
import namespaces  # noqa: E402

TRANSPORTS = ["threads", "shm", "env", "ucx", "openmpi", "openmpi-messages", "mpich", "mpich-messages", "workers", "cable"]
LAUNCHERS = {"openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"], "mpich": ["mpirun.mpich"]}
STARTED_BY_US = ("env", "ucx")  # one process per rank, identified by environment variables
OF_OTHERS = {".ses"}  # ONNX Runtime leaves it in TMPDIR


def family(transport):
    return transport.replace("-messages", "")


def transport_words(transport):
    if transport in ("threads", "shm", "ucx"):
        return ["--transport", transport]
    return ["--transport", "mpi"] if transport.endswith("-messages") else []


def launcher(transport, ranks):
    words = LAUNCHERS.get(family(transport))
    return [*words, "-n", str(ranks)] if words else []


def lacks(transport, build):
    """Why a transport cannot be tested here, or nothing."""
    words = LAUNCHERS.get(family(transport))
    if words and not shutil.which(words[0]):
        return "no %s" % words[0]
    if words and not os.path.exists(os.path.join(build, "libtessera_mpi_%s.so" % family(transport))):
        return "no plug-in for it"
    if transport in ("ucx", "workers", "cable") and not os.path.exists(os.path.join(build, "libtessera_ucx.so")):
        return "no plug-in for it"
    return namespaces.why_not() if transport == "cable" else ""


def free_port():
    """A free port on which the ranks of one run connect."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


CRASHES = {signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV}


def is_launchers_code(transport, code, text):
    """True if this is the exit code of a launcher. mpirun has own codes for a rank that was killed (but not for a crash): 128 plus the
    signal, 9 or 15, or 1. Open MPI 4.1 may crash when it ends, in its own orte_finalize. MPICH may die of SIGPIPE if its proxy ends
    first."""
    if family(transport) not in LAUNCHERS:
        return False
    if code == -signal.SIGPIPE:
        return family(transport) == "mpich"
    if code == -signal.SIGSEGV:
        return "orte_finalize" in text
    return code in (1, 9, 15) or code > 128 and code - 128 not in CRASHES


def left_early(text):
    """True if Open MPI reports a rank that succeeded without MPI_Finalize; then it kills the others."""
    return "exiting improperly" in text


def of_launcher(transport, text):
    words = (
        "BAD TERMINATION",
        "exiting improperly",
        "exited on signal",
        "noticed that process rank",
        "lost communication",
        "KILLED BY SIGNAL",
        "process manager error",
        "returned\na non-zero exit code",
        "Shared memory error",  # printed by MPICH while it starts
        "called MPI_Abort",
        "MPI_ABORT was invoked")  # by ranks that have ended and wait in vain for another
    return family(transport) in LAUNCHERS and any(w in text for w in words)


def is_launchers_file(name):
    return name.startswith(("ompi.", "pmix", "openmpi-sessions", "hwloc"))


# ---- processes ----------------------------------------------------------------------------------------

def state_of(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_running(pid):
    return state_of(pid) not in "ZX"


def is_stopped(pid):
    return state_of(pid) in "Tt"


def is_tessera(pid):
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid)) == "tessera"
    except OSError:
        return False


def below(pid):
    """All descendants of a process."""
    found = []
    for path in glob.glob("/proc/%d/task/*/children" % pid):
        try:
            with open(path) as f:
                found += map(int, f.read().split())
        except OSError:
            pass
    return found + [deeper for child in found for deeper in below(child)]


def with_environment(word):
    """Running processes whose environment contains this word."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/environ" % entry, "rb") as f:
                if word in f.read().split(b"\0") and is_running(int(entry)):
                    found.append(int(entry))
        except OSError:
            pass
    return found


def with_word(word):
    """Running processes that were started with an argument that contains this text."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % entry, "rb") as f:
                if word in f.read() and is_running(int(entry)):
                    found.append(int(entry))
        except OSError:
            pass
    return found


def seconds_used(pids):
    """CPU seconds of these processes together."""
    ticks = 0
    for pid in pids:
        try:
            with open("/proc/%d/stat" % pid) as f:
                ticks += sum(map(int, f.read().rpartition(")")[2].split()[11:13]))
        except OSError:
            pass
    return ticks / os.sysconf("SC_CLK_TCK")


def describe(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as f:
            words = f.read().replace(b"\0", b" ").decode(errors="replace")[:200]
        with open("/proc/%d/wchan" % pid) as f:
            return "%d (%s, %s): %s" % (pid, state_of(pid), f.read(), words)
    except OSError:
        return str(pid)


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def segments():
    """Our named shared memory: there should be none. Segments of a killed mpirun do not count."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("tessera") and os.path.isfile("/dev/shm/" + name)}


# ---- partitions to run ----------------------------------------------------------------------------------

def environment():
    """The environment with TESSERA_ORT if Python has an engine, and without variables of a launcher, except the user's settings for Open
    MPI."""
    told = ("OMPI_MCA_plm", "OMPI_ALLOW_RUN")  # how it starts ranks on machines without ssh
    env = {
        k: v for k, v in os.environ.items()
        if k.startswith(told) or not k.startswith(("OMPI_", "PMI", "RANK", "WORLD_", "MASTER_", "LOCAL_"))
    }
    if "TESSERA_ORT" not in env:
        import onnxruntime
        found = glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi/libonnxruntime.so.*"))
        env["TESSERA_ORT"] = found[0]
    return env


def make_inputs(tessera, folder, env):
    """Write partitions of a small transformer for 2, 3 and 4 ranks, a set of inputs, and the expected outputs of each."""
    def call(*words):
        subprocess.run([tessera, *words, "--quiet"], check=True, cwd=folder, env=env, stdout=subprocess.DEVNULL)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    model = os.path.join(root, "tests/models/bert_tiny/model.onnx")
    shutil.copytree(os.path.join(root, "tests/models/bert_tiny/test_data_set_0"), os.path.join(folder, "in"))
    right = {}
    for ranks in (2, 3, 4):
        call("partition", model, "--devices", str(ranks), "-o", "parts%d" % ranks)
        call("run", "parts%d" % ranks, "--inputs", "in", "--threads", "1", "--outputs", "right%d.npz" % ranks)
        with open(os.path.join(folder, "right%d.npz" % ranks), "rb") as f:
            right[ranks] = f.read()
    return right


def same_tensors(path, right):
    """True if the outputs have the expected bits; these are the same on every transport, since reductions use the order of the ranks."""
    try:
        with open(path, "rb") as f:
            return f.read() == right
    except OSError:
        return False
