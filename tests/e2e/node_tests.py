# SPDX-License-Identifier: Apache-2.0
"""Runs the node tests of the onnx package sharded; they are independent of this project.

For each test, every axis of every input (at its first reader) and output is sharded over several devices. The model is partitioned to
files, run, and compared with the unsharded run; random operators are compared by shape. A sharding that `check` refuses or that is
replicated is no failure. A test for which no sharding runs is listed with its reason.

usage: node_tests.py TESSERA [on=DEVICE] [TEST ...] [all]     without `all` one sharding of 120 operators;
on=CUDA:0: every rank there, without `all` one sharding of every operator.
NODE_TESTS: the folder of the tests, if it is not the package's"""
import argparse, collections, concurrent.futures, contextlib, glob, hashlib, importlib, io, json, os, re, sys, tempfile

import onnx

import harness

TESSERA, WORDS, ALL = sys.argv[1], sys.argv[2:], harness.ALL
ONLY = [w for w in WORDS if not w.startswith("on=")]
DEVICE = next((w[3:] for w in WORDS if w.startswith("on=")), "")
OPERATORS = 120  # number of operators without `all`; tests/e2e/empty.py has one sharding of every operator
NODES = os.environ.get("NODE_TESTS", os.path.join(os.path.dirname(onnx.__file__), "backend/test/data/node"))
SINGLE = "nothing to cut: no tensor with two elements along an axis"
os.environ["OMP_NUM_THREADS"] = "1"


def tessera(*args):
    return harness.call(TESSERA, *args)


def sizes(v):
    """Returns the sizes of a value's dimensions, 0 where unknown; [] if it is not a tensor."""
    return [d.dim_value for d in v.type.tensor_type.shape.dim] if v.type.HasField("tensor_type") else []


def cuts_of(m):
    """Yields (node, value, axis, rank, size, is an output) for everything that could be sharded."""
    first = {}
    for k, n in enumerate(m.graph.node):
        for i in n.input:
            first.setdefault(i, k)
    made = {o: k for k, n in enumerate(m.graph.node) for o in n.output}
    for output, values, node in ((False, m.graph.input, first), (True, m.graph.output, made)):
        for v in values:
            shape = sizes(v)
            for axis, size in enumerate(shape):
                if size > 1 and v.name in node:
                    yield node[v.name], v.name, axis, len(shape), size, output


def plan(f):
    """Returns the operator of one test and its shardings: (text, number of devices)."""
    m = onnx.load(f, load_external_data=False)
    out = []
    for node, name, axis, rank, size, output in cuts_of(m):
        for n in (2,) if output and not ALL else (2, 3, 4):
            if size >= n:
                pattern = ",".join(str(n) if k == axis else "1" for k in range(rank))
                out.append(("#%d:%s={%s:%s}" % (node, name, pattern, ",".join(map(str, range(n)))), n))
    ops = [n.op_type for n in m.graph.node]
    return (ops[0] if len(ops) == 1 else "(several)"), out


def first_line(text):
    lines = [re.sub(r"^.*?: (error|warning)\[", "[", x) for x in text.splitlines() if "error[" in x]
    return re.sub(r"'[^']*'", "'...'", lines[0])[:110] if lines else "no message"


def draws(f):
    """True if a node draws random numbers without a seed."""
    names = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
    return any(n.op_type in names and not any(a.name == "seed" for a in n.attribute)
               for n in onnx.load(f, load_external_data=False).graph.node)


def config(n):
    """Returns a configuration of n devices; "c:2=CUDA:0,CUDA:0" with on=CUDA:0."""
    return "c:%d" % n + ("=" + ",".join([DEVICE] * n) if DEVICE else "")


def try_cut(f, edit, n):
    """Returns (word, reason): ran, replicated, refused, engine, provider (the sharded run equals the CPU's, but not the device's own), or
    wrong."""
    with tempfile.TemporaryDirectory() as d:
        cut = d + "/cut.onnx"
        rc, _, err = tessera("annotate", f, "--config", config(n), "--shard", edit, "-o", cut)
        if rc:
            return "wrong", "annotate: exit %d %s" % (rc, err.strip())
        words = ("verify", cut, "--inputs", os.path.join(os.path.dirname(f), "test_data_set_0"), "--json")
        rc, out, err = tessera(*words)
        if DEVICE and rc == 1 and "verify-different" in err and tessera(*words, "--reference", "cpu")[0] == 0:
            return "provider", first_line(err)
    try:
        doc = json.loads(out)
    except ValueError:
        doc = {}
    if rc == 1 and draws(f) and doc.get("outputs") and all(o["max_abs"] is not None for o in doc["outputs"]):
        rc, doc["ok"] = 0, True  # numbers differ each time: only type and shape can be compared
    if rc == 0 and doc.get("ok"):
        reasons = [r["reason"] for r in doc["replicated"]]
        return ("replicated", reasons[0]) if reasons else ("ran", "")
    if rc == 1 and "ok" not in doc:
        return "refused", first_line(err)
    if rc == 7 and "strings cannot be transferred between GPUs" in err:
        return "refused", "strings cannot be transferred between GPUs"
    if rc == 7:
        return "engine", first_line(err)
    return "wrong", "exit %d: %s" % (rc, err.strip().replace("\n", " | ")[:400])


def runs_whole(f):
    """Returns (True if the engine runs the unsharded test, its error message)."""
    there = ["--map-device", "CPU=" + DEVICE] if DEVICE else []
    rc, _, err = tessera("run", f, "--inputs", os.path.join(os.path.dirname(f), "test_data_set_0"), "--quiet", *there)
    return rc == 0, first_line(err)


def compare(f, cuts):
    """Runs all shardings of one test. Returns counts by word, the first reason of each, and what is wrong."""
    words, reasons, wrong = collections.Counter(), {}, []
    for edit, n in cuts:
        word, why = try_cut(f, edit, n)
        if word == "engine":
            ok, said = runs_whole(f)
            word, why = ("wrong", "runs whole, not cut: " + why) if ok else ("engine", said)
        words[word] += 1
        reasons.setdefault(word, why)
        if word == "wrong":
            wrong.append("%s --shard '%s': %s" % (os.path.basename(os.path.dirname(f)), edit, why))
        if word == "engine":
            break  # no other sharding will run either
    return words, reasons, wrong


def quick(tests):
    """Yields one sharding of some operators, spread over tests, axes and device counts by a hash of their names."""
    by_op = collections.defaultdict(list)
    for f, (op, cuts) in tests.items():
        for c in cuts:
            by_op[op].append((hashlib.sha256((f.split("/node/")[1] + c[0]).encode()).hexdigest(), f, c))
    for op in sorted(by_op) if DEVICE else harness.sample(sorted(by_op), OPERATORS):
        _, f, c = min(by_op[op])
        yield f, [c]


def report(tests, results, left_out):
    """Prints which tests never ran sharded, by reason. Returns how many did."""
    ran, why = set(), {}
    for f, (words, reasons, _) in results:
        if words["ran"]:
            ran.add(f)
        for word in ("wrong", "provider", "engine", "replicated", "refused"):
            if word in reasons:
                why.setdefault(f, "%s: %s" % (word, reasons[word]))
    groups = collections.defaultdict(list)
    for f in tests:
        if f not in ran and f not in left_out:
            groups[why.get(f, SINGLE)].append(os.path.basename(os.path.dirname(f))[5:])
    for reason in sorted(groups, key=lambda r: -len(groups[r])):
        names = groups[reason]
        print("not covered, %d: %s\n    %s%s" % (len(names), reason, " ".join(names[:12]), " ..." if len(names) > 12 else ""))
    return len(ran)


def node_files(folder):
    """Returns the models of all node tests. A package without the files (onnx 1.23) has code that writes them into `folder`."""
    files = sorted(glob.glob(NODES + "/*/model.onnx"))
    if files:
        return files
    try:
        tools = importlib.import_module("onnx.backend.test.cmd_tools")
    except ImportError:
        return []
    os.makedirs(folder + "/node")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        tools.generate_data(argparse.Namespace(output=folder, clean=False, op_type=None, diff=False))
    return sorted(glob.glob(folder + "/node/*/model.onnx"))


def name_of(f):
    return os.path.basename(os.path.dirname(f))


def main(folder):
    files = node_files(folder)
    if not files:
        harness.skip("node tests", "onnx %s has neither their files nor the code that makes them" % onnx.__version__)
        sys.exit(0)
    tests = {f: plan(f) for f in files if (not ONLY or any(w in f for w in ONLY)) and harness.matches(name_of(f))}
    every = ALL or ONLY or harness.PATTERN
    work = [(f, c) for f, (_, c) in tests.items()] if every else list(quick(tests))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(zip([f for f, _ in work], pool.map(lambda w: compare(*w), work)))
    for f, (_, _, wrong) in results:
        harness.check(name_of(f), not wrong, "\n".join(wrong))
    total = sum((r[0] for _, r in results), collections.Counter())
    covered = report(tests, results, set()) if every else len({tests[f][0] for f, r in results if r[0]["ran"]})
    print("# shardings: %(ran)d ran and equal, %(replicated)d replicated, %(refused)d refused, %(engine)d that the engine cannot run, "
          "%(provider)d that the provider gets wrong unsharded, %(wrong)d wrong" % collections.defaultdict(int, total))
    print("# %d of %d %s ran sharded" %
          (covered, len(tests) if every else len({op for op, _ in tests.values()}), "tests" if every else "operators"))
    if not every:
        runs = {tests[f][0] for f, r in results if not r[0]["engine"]}
        harness.check("half of the operators ran sharded", covered >= len(runs) // 2, covered)
    harness.finish()


with tempfile.TemporaryDirectory(prefix="tessera-node-tests-") as made:
    main(made)
