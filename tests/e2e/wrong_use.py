# SPDX-License-Identifier: Apache-2.0
"""Tests that wrong use has a clear exit code and message: damaged partitions, wrong rank counts, another plan, wrong recordings.

usage: wrong_use.py TESSERA MODELS"""
import json, os, shutil, sys, tempfile

import numpy as np
import onnx
from onnx import numpy_helper

import evaluator, harness, spine


class Case:
    def __init__(self, tessera, models, folder):
        self.tessera, self.folder = tessera, folder
        self.model = os.path.join(models, "bert_tiny", "model.onnx")
        self.ins, self.want = evaluator.recorded(self.model)
        self.data = self.at("in.npz")
        np.savez(self.data, **self.ins)
        self.cut = self.at("cut.onnx")
        self.parts = self.partition("parts", self.cut, 4)

    def at(self, name):
        return os.path.join(self.folder, name)

    def partition(self, name, cut, n):
        rc, _, err = harness.call(self.tessera, "annotate", self.model, *spine.edits(onnx.load(self.model), n), "-o", cut)
        assert rc == 0, err
        rc, _, err = harness.call(self.tessera, "partition", cut, "-o", self.at(name))
        assert rc == 0, err
        return self.at(name)

    def copy(self, name):
        shutil.rmtree(self.at(name), ignore_errors=True)
        return shutil.copytree(self.parts, self.at(name))

    def run(self, parts, *more, launcher=()):
        rc, out, err = harness.call(*launcher, self.tessera, "run", parts, "--inputs", self.data, *more)
        return rc, out + err


def expect(what, got, code, *words):
    rc, said = got
    assert rc == code and all(w in said for w in words), "%s: exit %d, wanted %d with %s; said %s" % (what, rc, code, words, said[:1500])


def damaged_files(c):
    for name in ("rank2.onnx", "rank1.data", "common.data", "manifest.json"):
        at = c.copy("lost")
        os.remove(os.path.join(at, name))
        expect("missing " + name, c.run(at), 3, name)
    for name in ("rank2.onnx", "rank1.data", "common.data"):
        at = c.copy("short")
        with open(os.path.join(at, name), "r+b") as f:
            f.truncate(os.path.getsize(os.path.join(at, name)) - 1)
        expect("short " + name, c.run(at), 3, name)
        at = c.copy("changed")
        with open(os.path.join(at, name), "r+b") as f:
            f.seek(os.path.getsize(os.path.join(at, name)) // 2)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 1]))
        expect("changed " + name, c.run(at, "--check-files"), 3, name)
    at = c.copy("torn")
    with open(os.path.join(at, "manifest.json"), "r+b") as f:
        f.truncate(200)
    expect("torn manifest", c.run(at), 3, "manifest.json")
    expect("no such folder", c.run(c.at("nowhere")), 3, "nowhere")


def wrong_number_of_ranks(c):
    if not spine.families():
        return "no MPI launcher here"
    for family, launcher in spine.families():
        expect("3 for 4, " + family, c.run(c.parts, launcher=[*launcher, "-n", 3]), 2, "4", "3")


def another_plan(c):
    """One rank gets the folder of another partition of the same model: the run must fail."""
    other = c.partition("other", c.at("other.onnx"), 4)
    mine, theirs = (json.load(open(os.path.join(p, "manifest.json")))["plan"] for p in (c.parts, other))
    assert mine == theirs, "the same edits give another plan"
    m = onnx.load(c.cut)
    down = spine.blocks(m)[0][1]
    rc, _, err = harness.call(c.tessera, "annotate", c.cut, "--config", "tp", "--unshard", "%s:%s" % (down.name, down.input[1]), "-o",
                              c.at("less.onnx"))
    assert rc == 0, err
    less = c.at("less")
    rc, _, err = harness.call(c.tessera, "partition", c.at("less.onnx"), "-o", less)
    assert rc == 0, err
    assert json.load(open(os.path.join(less, "manifest.json")))["plan"] != mine
    if not spine.families():
        return "no MPI launcher here: the plans were compared, but not run together"
    for family, launcher in spine.families():
        script = c.at("start")
        with open(script, "w") as f:
            f.write('#!/bin/sh\nr=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\nfolder="%s"\n[ "$r" = 2 ] && folder="%s"\n'
                    'exec "%s" run "$folder" --inputs "%s"\n' % (c.parts, less, c.tessera, c.data))
        os.chmod(script, 0o755)
        rc, out, err = harness.call(*launcher, "-n", 4, script)
        assert rc != 0 and "plan" in out + err, "another plan, %s: exit %d %s" % (family, rc, (out + err)[:1500])


def comparisons(c):
    set0 = os.path.join(os.path.dirname(c.model), "test_data_set_0")
    rc, out, err = harness.call(c.tessera, "verify", c.cut, "--inputs", set0, "--tolerance", "1e-15")
    expect("no tolerance", (rc, out + err), 1, "verify-different", "logits")
    wrong = c.at("test_data_set_9")
    shutil.copytree(set0, wrong)
    t = numpy_helper.to_array(onnx.load_tensor(os.path.join(wrong, "output_0.pb")))
    with open(os.path.join(wrong, "output_0.pb"), "wb") as f:
        f.write(numpy_helper.from_array(t + 1, "logits").SerializeToString())
    rc, out, err = harness.call(c.tessera, "verify", c.cut, "--inputs", wrong)
    expect("other recording", (rc, out + err), 0, "verify-recorded")
    left = [f for f in os.listdir(c.folder) if f.startswith("tessera-verify")]
    assert not left, left


def refusals(c):
    rc, out, err = harness.call(c.tessera, "partition", c.model, "-o", c.at("none"))
    expect("no configuration", (rc, out + err), 1, "partition-no-configuration")
    rc, out, err = harness.call(c.tessera, "partition", c.cut, "-o", c.parts)
    expect("folder exists", (rc, out + err), 8, "output-exists")
    rc, out, err = harness.call(c.tessera, "verify", c.cut, TESSERA_ORT=c.at("no-engine.so"))
    expect("no engine", (rc, out + err), 7, "engine-absent")
    assert not os.path.exists(c.at("none"))


with tempfile.TemporaryDirectory(prefix="tessera-wrong-") as shared:
    os.environ["TMPDIR"] = tempfile.tempdir = shared
    c = Case(sys.argv[1], sys.argv[2], shared)
    harness.run([(case.__name__, lambda _, case: case(c), case)
                 for case in (damaged_files, wrong_number_of_ranks, another_plan, comparisons, refusals)])
harness.finish()
