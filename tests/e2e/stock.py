# SPDX-License-Identifier: Apache-2.0
"""Tests examples/stock.py: a planned model in Python's own onnxruntime, under every installed launcher, must return what `tessera run`
returns.

usage: stock.py TESSERA EXAMPLE"""
import glob, os, shutil, subprocess, sys, tempfile

import numpy as np
import onnx

import harness

TESSERA, EXAMPLE = map(os.path.abspath, sys.argv[1:3])
BUILD = os.path.dirname(TESSERA)
MODEL = os.path.join(os.path.dirname(os.path.dirname(EXAMPLE)), "tests/models/bert_tiny")
RANKS = 2
LAUNCHERS = {"openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"], "mpich": ["mpirun.mpich"]}
if b"libasan" in open(BUILD + "/libtessera_ops.so", "rb").read():
    print("Python cannot load a library that is built for a sanitizer")
    sys.exit(77)


def started(words, variables):
    """Starts RANKS processes with the environment variables of a launcher, but without the launcher."""
    ranks = [
        subprocess.Popen(words, env=harness.environment(**variables(r)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for r in range(RANKS)
    ]
    for p in ranks:
        text = p.communicate(timeout=120)[0]
        assert p.returncode == 0, text


def under_mpi(out, words, family):
    launch = LAUNCHERS[family]
    if not shutil.which(launch[0]) or not os.path.exists("%s/libtessera_mpi_%s.so" % (BUILD, family)):
        return "no %s" % launch[0]
    harness.good(*launch, "-n", RANKS, *words, out)


def like_torchrun(out, words):
    port = str(harness.free_port())
    started([*words, out], lambda r: {"RANK": str(r), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "localhost", "MASTER_PORT": port})


def like_slurm(out, words):
    started(
        [*words, out], lambda r: {
            "SLURM_PROCID": str(r), "SLURM_STEP_NUM_TASKS": str(RANKS), "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_STEP_ID": "0", "SLURM_LOCALID": str(r)
        })


def same(folder, launch, words, want, *more):
    """The example under a launcher must return the outputs of `tessera run`."""
    out = folder + "/out.npz"
    missing = launch(out, words, *more)
    if missing:
        return missing
    got = dict(np.load(out))
    assert set(got) == set(want), (list(got), list(want))
    for name, value in want.items():
        assert np.abs(got[name] - value).max() <= 5e-5 * np.abs(value).max(), name


def main(d):
    planned, parts = d + "/planned.onnx", d + "/parts"
    harness.good(TESSERA, "annotate", MODEL + "/model.onnx", "--config", "two:%d" % RANKS, "--random", "7", "-o", planned)
    harness.good(TESSERA, "partition", planned, "-o", parts)
    tensors = [onnx.load_tensor(f) for f in sorted(glob.glob(MODEL + "/test_data_set_0/input_*.pb"))]
    np.savez(d + "/in.npz", **{t.name: onnx.numpy_helper.to_array(t) for t in tensors})
    harness.good(TESSERA, "run", parts, "--inputs", d + "/in.npz", "--outputs", d + "/want.npz", "--threads", "1")
    want = dict(np.load(d + "/want.npz"))
    words = [sys.executable, "-B", EXAMPLE, parts, BUILD + "/libtessera_ops.so", d + "/in.npz"]
    harness.run([(family, same, under_mpi, words, want, family) for family in LAUNCHERS]
                + [("torchrun", same, like_torchrun, words, want), ("slurm", same, like_slurm, words, want)])


with tempfile.TemporaryDirectory(prefix="tessera-test-") as folder:
    main(folder)
harness.finish()
