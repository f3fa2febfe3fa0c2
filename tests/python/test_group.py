# SPDX-License-Identifier: Apache-2.0
"""Tests tessera.Group: processes join, rank 0 plans and partitions, all load and run.

usage: test_group.py BUILD"""
import glob, os, subprocess, sys

import numpy as np
import onnx

import harness

BUILD = os.path.abspath(sys.argv[1])
os.environ["TESSERA_LIBRARY"] = BUILD + "/libtessera.so"
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../models/bert_tiny/model.onnx")

RANK = """
import sys
sys.path.insert(0, %r)
import numpy as np, tessera
rank, ranks, folder, model = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
feeds = dict(np.load(sys.argv[5]))
with tessera.Group(rank=rank, ranks=ranks, meet=folder) as group:
    assert (group.rank, group.size) == (rank, ranks)
    if rank == 0:
        planned = tessera.load(model)
        planned.plan(ranks, dims={"batch": 2, "seq": 8})
        planned.partition(folder)
    group.barrier()
    assert group.broadcast(b"from the last" if rank == ranks - 1 else None, root=ranks - 1) == b"from the last"
    assert group.broadcast(b"" if rank == 0 else None) == b""
    for _ in range(2):  # a second session uses the same group
        with tessera.PartitionSession(folder, group=group) as session:
            outputs = session.run(None, feeds)
    assert len(outputs) == (rank == 0), outputs
    if rank == 0:
        import onnxruntime
        want = onnxruntime.InferenceSession(model).run(None, feeds)[0]
        assert np.abs(outputs[0] - want).max() <= 5e-5 * np.abs(want).max()
    try:
        tessera.PartitionSession(model, group=group)
    except tessera.TesseraError as error:
        assert "Not a directory" in str(error), error
    else:
        raise AssertionError("a model is no partition")
for wrong in ({"rank": 1}, {"rank": 2, "ranks": 2}):
    try:
        tessera.Group(**wrong)
    except ValueError:
        continue
    raise AssertionError(wrong)
alone = tessera.Group()
assert (alone.rank, alone.size, alone.broadcast(b"x")) == (0, 1, b"x")
alone.close()
print("rank", rank, "is done")
""" % (BUILD + "/python")


def group(d, ranks):
    words = [sys.executable, "-B", "-c", RANK]
    tensors = map(onnx.load_tensor, glob.glob(os.path.dirname(MODEL) + "/test_data_set_0/input_*.pb"))
    np.savez(d + "/inputs.npz", **{t.name: onnx.numpy_helper.to_array(t) for t in tensors})
    started = [
        subprocess.Popen([*words, str(r), str(ranks), d + "/parts", MODEL, d + "/inputs.npz"], stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True) for r in range(ranks)
    ]
    texts = [p.communicate(timeout=120)[0] for p in started]
    assert all(p.returncode == 0 for p in started) and all("is done" in t for t in texts), "\n".join(line for t in texts
                                                                                                     for line in t.splitlines()[-15:])


harness.run([("group of %d" % ranks, group, ranks) for ranks in (2, 3)])
harness.finish()
