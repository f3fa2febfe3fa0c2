# SPDX-License-Identifier: Apache-2.0
"""examples/stock.py: a planned model in Python's own onnxruntime, under every launcher that is here, gives what `tessera run` gives.

usage: stock.py TESSERA EXAMPLE"""
import glob, os, shutil, subprocess, sys, tempfile

import numpy as np

TESSERA, EXAMPLE = map(os.path.abspath, sys.argv[1:3])
BUILD = os.path.dirname(TESSERA)
MODEL = os.path.join(os.path.dirname(os.path.dirname(EXAMPLE)), "tests/models/bert_tiny")
LAUNCHERS = {"openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"], "mpich": ["mpirun.mpich"]}
if b"libasan" in open(BUILD + "/libtessera_ops.so", "rb").read():
    print("Python cannot load a library that is built for a sanitizer")
    sys.exit(77)


def good(words, **k):
    p = subprocess.run(words, capture_output=True, text=True, timeout=120, **k)
    assert p.returncode == 0, (words, p.returncode, p.stdout, p.stderr)


def started(words, n, variables):
    """n processes with a launcher's variables, and no launcher."""
    ranks = [subprocess.Popen(words, env={**os.environ, **variables(r)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for r in range(n)]
    for p in ranks:
        text = p.communicate(timeout=120)[0]
        assert p.returncode == 0, text


def main(d):
    n, planned, parts = 2, d + "/planned.onnx", d + "/parts"
    good([TESSERA, "annotate", MODEL + "/model.onnx", "--config", "two:%d" % n, "--random", "7", "-o", planned])
    good([TESSERA, "partition", planned, "-o", parts])
    given = {os.path.basename(f)[:-3]: f for f in sorted(glob.glob(MODEL + "/test_data_set_0/input_*.pb"))}
    import onnx
    tensors = [onnx.load_tensor(f) for f in given.values()]
    np.savez(d + "/in.npz", **{t.name: onnx.numpy_helper.to_array(t) for t in tensors})
    good([TESSERA, "run", parts, "--inputs", d + "/in.npz", "--outputs", d + "/want.npz", "--threads", "1"])
    want = dict(np.load(d + "/want.npz"))
    words = [sys.executable, "-B", EXAMPLE, parts, BUILD + "/libtessera_ops.so", d + "/in.npz"]
    ways = 0
    for family, launch in LAUNCHERS.items():
        if shutil.which(launch[0]) and os.path.exists("%s/libtessera_mpi_%s.so" % (BUILD, family)):
            good([*launch, "-n", str(n), *words, "%s/%s.npz" % (d, family)])
            ways += 1
    port = "%d" % os.getpid()
    started([*words, d + "/torchrun.npz"], n, lambda r: {"RANK": str(r), "WORLD_SIZE": str(n), "MASTER_ADDR": "localhost", "MASTER_PORT": port})
    started([*words, d + "/slurm.npz"], n, lambda r: {"SLURM_PROCID": str(r), "SLURM_STEP_NUM_TASKS": str(n), "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": port,
                                                       "SLURM_STEP_ID": "0", "SLURM_LOCALID": str(r)})
    for way in [f for f in os.listdir(d) if f.endswith(".npz") and f not in ("in.npz", "want.npz")]:
        got = dict(np.load(d + "/" + way))
        assert set(got) == set(want), (way, list(got), list(want))
        for name, value in want.items():
            assert np.abs(got[name] - value).max() <= 5e-5 * np.abs(value).max(), (way, name)
        print("ok - " + way[:-4])


with tempfile.TemporaryDirectory(prefix="tessera-test-") as folder:
    main(folder)
