# SPDX-License-Identifier: Apache-2.0
"""Tests the main path: feed-forward blocks of real models, sharded by columns and then rows over 2, 3 and 4 devices.

They run as threads and as processes of every installed MPI, and are compared with the recorded outputs. Each block must need one
AllReduce and nothing else.

usage: spine.py TESSERA MODELS [threads|mpi] [all]     without `all` one number of devices less for each model"""
import json, os, shutil, sys

import numpy as np
import onnx

import evaluator, harness

TOLERANCE = 5e-5  # relative to the largest magnitude
ELEMENTWISE = "Add Mul Div Erf Tanh Pow Relu Gelu Sigmoid Sub Sqrt Cast Reshape".split()
NAMES = ["bert_tiny", "gpt2_tiny", "llama_tiny", "t5_tiny", "vit_tiny"]


def blocks(m):
    """Returns [(up projections, down projection)]: goes from each weight matrix back through element-wise nodes to others."""
    init = {t.name: list(t.dims) for t in m.graph.initializer}
    made = {o: n for n in m.graph.node for o in n.output}
    dense = lambda n: n is not None and n.op_type in ("MatMul", "Gemm") and n.input[1] in init
    found = []
    for down in filter(dense, m.graph.node):
        todo, ups = [down.input[0]], []
        while todo:
            n = made.get(todo.pop())
            if dense(n):
                ups.append(n)
            elif n is not None and n.op_type in ELEMENTWISE:
                first = n.input[:1] if n.op_type == "Reshape" else n.input
                todo += [i for i in first if i and i not in init]
            else:
                ups = []
                break
        inner, outer = init[down.input[1]]
        ups = list({u.name: u for u in ups}.values())
        if ups and inner != outer and all(init[u.input[1]][1] == inner for u in ups):
            found.append((ups, down))
    return found


def edits(m, n):
    devices = ",".join(map(str, range(n)))
    out = ["--config", "tp:%d" % n]
    for ups, down in blocks(m):
        for u in ups:
            out += ["--shard", "%s:%s={1,%d:%s}" % (u.name, u.input[1], n, devices)]
        out += ["--shard", "%s:%s={%d,1:%s}" % (down.name, down.input[1], n, devices)]
    return out


def families():
    """Returns the launchers of the installed MPIs."""
    os.environ["ASAN_OPTIONS"] = "detect_leaks=0"  # both MPIs free some memory only at exit
    out = []
    for name, args in (("openmpi", ["--allow-run-as-root", "--oversubscribe"]), ("mpich", [])):
        path = shutil.which("mpirun." + name)
        if path:
            out.append((name, [path, *args]))
    return out


def run(tessera, parts, data, out, launcher=()):
    if os.path.exists(out):
        os.remove(out)
    rc, said, err = harness.call(*launcher, tessera, "run", parts, "--inputs", data, "--outputs", out, timeout=300)
    return rc, dict(np.load(out)) if os.path.exists(out) else {}, said + err


def check(folder, model, n, mpi):
    tessera = sys.argv[1]
    m = onnx.load(model)
    found = blocks(m)
    cut, parts, data, out = (os.path.join(folder, f) for f in ("cut.onnx", "parts", "in.npz", "out.npz"))
    ins, want = evaluator.recorded(model)
    np.savez(data, **ins)
    rc, _, err = harness.call(tessera, "annotate", model, *edits(m, n), "-o", cut)
    assert found and rc == 0, "annotate: exit %d %s" % (rc, err)
    rc, _, err = harness.call(tessera, "partition", cut, "-o", parts)
    assert rc == 0, "partition: exit %d %s" % (rc, err)
    rc, got, said = run(tessera, parts, data, out)
    assert rc == 0 and evaluator.apart(got, want) <= TOLERANCE, "threads: exit %d %s" % (rc, said)
    for family, launcher in families() if mpi else []:
        rc, other, said = run(tessera, parts, data, out, [*launcher, "-n", n])
        assert rc == 0, "%s: exit %d %s" % (family, rc, said)
        assert all(got[k].tobytes() == other[k].tobytes() for k in want), "%s has other bits than threads" % family
    if mpi:
        return
    manifest = evaluator.check_folder(parts)
    assert [c["op"] for c in manifest["collectives"]] == ["AllReduce"] * len(found), manifest["collectives"]
    assert evaluator.apart(evaluator.run(parts, ins), want) <= TOLERANCE, "the independent reader differs"
    rc, text, err = harness.call(tessera, "verify", cut, "--inputs", os.path.join(os.path.dirname(model), "test_data_set_0"), "--json")
    doc = json.loads(text)
    assert rc == 0 and doc["ok"] and doc["recorded"] and doc["devices"] == n, "verify: exit %d %s %s" % (rc, text, err)
    assert doc["collectives"] == {"AllReduce": len(found)}, doc["collectives"]
    # No rank may have all of a sharded weight.
    cuts = {w.input[1] for ups, down in found for w in [*ups, down]}
    whole = {t.name: list(t.dims) for t in m.graph.initializer if t.name in cuts}
    for r in range(n):
        part = onnx.load(os.path.join(parts, "rank%d.onnx" % r), load_external_data=False)
        for t in part.graph.initializer:
            assert list(t.dims) != whole.get(t.name), "rank %d has all of %s" % (r, t.name)


def main():
    models, mpi = sys.argv[2], sys.argv[3:] == ["mpi"]
    if mpi and not families():
        print("no MPI launcher here")
        sys.exit(77)
    counts = (2, 4) if mpi else (2, 3, 4)
    jobs = [(name, n) for k, name in enumerate(NAMES) for n in harness.sample(counts, len(counts) - 1, k)]
    harness.run([("%s on %d" % job, check, os.path.join(models, job[0], "model.onnx"), job[1], mpi) for job in jobs])
    harness.finish()


if __name__ == "__main__":
    main()
