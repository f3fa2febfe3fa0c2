# SPDX-License-Identifier: Apache-2.0
"""Tests examples/rank0_partitions.c: processes join, rank 0 partitions, all load and run, with 2 and 3 ranks on every available transport.

If a rank dies or makes another call than the others, the others must get an error. No rank may hang.

usage: rank0_partitions.py TESSERA EXAMPLE GROUP_CALLS"""
import os, shutil, subprocess, sys, tempfile, time

import numpy as np
import onnx
from onnx import TensorProto as T, helper as h, numpy_helper as nh

import harness

TESSERA, EXAMPLE, CALLS = map(os.path.abspath, sys.argv[1:4])
BUILD = os.path.dirname(TESSERA)
LAUNCHERS = {"openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"], "mpich": ["mpirun.mpich"]}


def start(words, **variables):
    return subprocess.Popen([str(w) for w in words], env={**harness.environment(), **variables}, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def ends(processes, timeout=harness.HANG_S):
    """Returns (exit code, stdout, stderr) of each process; -999: it did not end in time and was killed."""
    until, found = time.monotonic() + timeout, []
    for p in processes:
        try:
            out, err = p.communicate(timeout=max(0.1, until - time.monotonic()))
            found.append((p.returncode, out, err))
        except subprocess.TimeoutExpired:
            p.kill()
            found.append((-999, *p.communicate()))
    return found


def make(d):
    """Writes a model that is worth sharding, and its inputs. Returns the expected output."""
    rng = np.random.default_rng(4)
    def info(name, shape):
        return h.make_tensor_value_info(name, T.FLOAT, shape)

    nodes = [
        h.make_node("MatMul", ["x", "w"], ["h"], name="up"),
        h.make_node("Relu", ["h"], ["r"], name="act"),
        h.make_node("MatMul", ["r", "v"], ["y"], name="down")
    ]
    weights = [nh.from_array(rng.standard_normal(s).astype("f4"), k) for k, s in (("w", (256, 1536)), ("v", (1536, 256)))]
    onnx.save(
        h.make_model(h.make_graph(nodes, "g", [info("x", [96, 256])], [info("y", [96, 256])], weights), ir_version=10,
                     opset_imports=[h.make_opsetid("", 18)]), d + "/m.onnx")
    x = rng.standard_normal((96, 256)).astype("f4")
    np.savez(d + "/in.npz", x=x)
    a, b = (nh.to_array(w) for w in weights)
    return np.maximum(x @ a, 0) @ b


def by_hand(words, n, transport, port):
    more = {"MASTER_PORT": str(port)} if transport == "ucx" else {}
    return [start([*words, r, n, *([transport] if transport else [])], **more) for r in reversed(range(n))]


def launched(words, n, port):
    return [
        start(words, RANK=str(r), WORLD_SIZE=str(n), LOCAL_RANK=str(r), LOCAL_WORLD_SIZE=str(n), MASTER_ADDR="localhost",
              MASTER_PORT=str(port)) for r in range(n)
    ]


def example(folder, d, want, begin, ranks):
    """Starts the ranks of the example. Each must finish, and the outputs must be right."""
    out = folder + "/out.npz"
    got = ends(begin([EXAMPLE, d + "/m.onnx", folder + "/parts", d + "/in.npz", out]))
    lines = sorted(line for _, text, _ in got for line in text.splitlines())
    assert all(rc == 0 for rc, _, _ in got) and lines == ["rank %d of %d is done" % (r, ranks) for r in range(ranks)], got
    assert np.abs(np.load(out)["y"] - want).max() <= 5e-5 * np.abs(want).max()


def transports():
    yield "shm", lambda n, port: lambda words: by_hand(words, n, "shm", port)
    yield "default", lambda n, port: lambda words: by_hand(words, n, None, port)
    yield "torchrun", lambda n, port: lambda words: launched(words, n, port)
    if os.path.exists(BUILD + "/libtessera_ucx.so"):
        yield "ucx", lambda n, port: lambda words: by_hand(words, n, "ucx", port)
    for family, launch in LAUNCHERS.items():
        if shutil.which(launch[0]) and os.path.exists("%s/libtessera_mpi_%s.so" % (BUILD, family)):
            yield family, lambda n, port, launch=launch: lambda words: [start([*launch, "-n", n, *words])]


def calls(d, script):
    """script: the calls of each rank, one letter per call (see group_calls.c). Returns how each rank ended."""
    return ends([start([CALLS, r, len(script), d + "/at", script[r]]) for r in range(len(script))])


def all_calls(d):
    got = calls(d, ["jbsjxb"] * 3)
    assert all(rc == 0 and out.endswith("rank 1 says 41\n") for rc, out, _ in got), got


def named(d, script):
    """The other ranks must end with an error that names a rank."""
    got = calls(d, script)
    others = [g for g, s in zip(got, script) if s == script[0]]
    assert all(rc == 1 and "rank " in err for rc, _, err in others), got


def one_rank(d):
    got = calls(d, ["jbs"])
    assert got[0][0] == 0 and "rank 0 says 40" in got[0][1], got


def a_root_that_is_no_rank(d):
    got = calls(d, ["jr", "jr"])
    assert all(rc == 1 and "root" in err for rc, _, err in got), got


def rank_0_cannot_partition(d):
    got = ends(by_hand([EXAMPLE, d + "/missing.onnx", d + "/none", d + "/in.npz", d + "/none.npz"], 2, None, 0))
    assert all(rc == 1 for rc, _, _ in got) and any("rank 0 could not" in err for _, _, err in got), got


FAULTS = {"a rank dies before a barrier": ["jb", "jk", "jb"], "a rank ends before a broadcast": ["js", "jq", "js"],
          "a rank makes another call": ["jb", "js", "jb"], "a rank broadcasts another size": ["js", "jl", "js"]}
with tempfile.TemporaryDirectory(prefix="tessera-group-") as shared:
    want = make(shared)
    harness.run([("%s %d" % (name, n), example, shared, want, begin(n, harness.free_port()), n) for name, begin in transports()
                 for n in (2, 3)] + [all_calls, one_rank, a_root_that_is_no_rank, rank_0_cannot_partition] +
                [(name, named, script) for name, script in FAULTS.items()], at_a_time=harness.WAITING)
harness.finish()
