#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests which kernels of ONNX Runtime do not support empty tensors. Runs each case of prove.py with no elements of each factor whose size
may be known only at run time. The expected result is that of an empty shard: empty along a factor that passes through, and the neutral
element for a factor that is reduced. If the kernel fails, gives another result or crashes, the column `some` of the row must name the
factor (src/rules/empty.c). If the column names a factor, some case must fail; otherwise the row costs a check at run time for nothing.

A kernel that writes nothing leaves the old contents of memory: MALLOC_PERTURB_ lets glibc fill memory, so that these are not 0. An empty
tensor that a node has computed has a null address (one that is fed has not), so a kernel that reads it crashes.

Usage: empty.py PRINT_RULE [OPERATOR ...]
"""
import collections, json, os, subprocess, sys, tempfile
import numpy as np
import onnx
import onnxruntime as ort
import children
import partly
import prove

import harness

SECONDS = 10
CPU_SECONDS = 0.5  # a case takes milliseconds; some kernels never end
WHOLE_RUNS = {}  # by the identity of the case
NAMED_SIZES = {"s%d" % n: n for n in range(2000)}
NEUTRAL = {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf}
# Negative axes of an empty tensor are misread; the partition uses nonnegative ones (tsr__rule_front_axes).
REDUCTIONS = set(partly.REDUCTIONS.split())
Task = collections.namedtuple("Task", "op since domain case name kind combine some sizes factor rule")


def named(c):
    """The case with a symbol for every size except 1 and sizes that the engine must know."""
    free = [() if v is None or isinstance(v, prove.Host) else v.shape for v in c["inputs"]]
    return dict(c, symbols=[tuple(n if i in c["fixed"] or n == 1 else "s%d" % n for n in shape) for i, shape in enumerate(free)])


def tasks_of(printer, only):
    """One task for each factor of each case that may be empty."""
    rows = [json.loads(line) for line in subprocess.run([printer], check=True, capture_output=True, text=True).stdout.splitlines()]
    cases, jobs = prove.all_cases(), []
    for name in dict.fromkeys(prove.full(r) for r in rows if not r["whole"]):
        domain, _, op = name.rpartition(":")
        for c in cases.get(name, prove.one()) if (not only or name in only) and op not in REDUCTIONS else ():
            since = max(r["since"] for r in rows if prove.full(r) == name and (domain or r["since"] <= (c["opset"] or 1000)))
            if not c["symbols"] and not c["whole"]:
                jobs.append((op, since, domain, named(c)))
    with tempfile.TemporaryDirectory() as d:
        files = [os.path.join(d, "%d.onnx" % i) for i in range(len(jobs))]
        for path, (op, since, domain, c) in zip(files, jobs):
            onnx.save(prove.node_model(op, since, c, True, domain), path)
        lines = subprocess.run([printer] + files, check=True, capture_output=True, text=True).stdout.splitlines()
    for (op, since, domain, c), line in zip(jobs, lines):
        rule = json.loads(line)
        for f, factor in enumerate(rule["factors"]):
            if not rule["whole"] and factor["kind"] in ("par", "red") and isinstance(factor["size"], str) and factor["size"]:
                sizes = [x["size"] if isinstance(x["size"], int) else size_of(x["size"]) for x in rule["factors"]]
                if sizes[f] > 1:
                    yield Task(op, since, domain, c, factor["name"], factor["kind"], factor["combine"], factor["some"], sizes, f, rule)


def size_of(text):
    """The size of "s4", and of expressions of such names."""
    return int(eval(text or "0", {"max": max, "min": min}, NAMED_SIZES))


def local_node(task, whole):
    """(inputs, attributes, shapes of the outputs) of a device with an empty part of the factor."""
    rule, c, cell = task.rule, task.case, {task.factor: (0, 0)}
    values = [v.value if isinstance(v, prove.Host) else v for v in c["inputs"]]
    ins = [
        v if v is None or t["host"] else prove.cut(v, prove.index_of(t, task.sizes, cell, v.shape)).copy()
        for t, v in zip(rule["inputs"], values)
    ]
    outputs = [t for t in rule["outputs"] if not t["absent"]]
    shapes = [tuple(len(x) for x in prove.index_of(t, task.sizes, cell, w.shape)) for t, w in zip(outputs, whole)]
    attributes = dict(c["attributes"])
    for r in rule["rewrites"]:
        if r["kind"] == "shape":
            ins[r["input"]] = np.array(shapes[0], np.int64)
            attributes.update({r["name"]: 1} if r["name"] else {})
        elif r["kind"] == "once" and task.kind == "red":
            ins[r["input"]] = None
        elif r["kind"] == "range" and r["factor"] == task.factor:
            ins[r["input"] + 1] = np.array(values[r["input"]])
    return ins, attributes, shapes


def computed(model, inputs):
    """The model with a Concat after each empty input, whose result has a null address."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, types = model.graph, (onnx.TensorProto.STRING, *range(onnx.TensorProto.FLOAT8E4M3FN, 64))
    for info in graph.input:
        value = inputs[int(info.name[1:])]
        if value.ndim and not value.size and info.type.tensor_type.elem_type not in types:
            for node in graph.node:
                node.input[:] = ["made_" + name if name == info.name else name for name in node.input]
            graph.node.insert(0, onnx.helper.make_node("Concat", [info.name], ["made_" + info.name], axis=0))
    return made


def runs(model, inputs, before):
    """The results for these inputs, after a run of the same session with `before`."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads, options.enable_cpu_mem_arena = 4, 1, False
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for given in (before, inputs):
        feeds = {"x%d" % i: v for i, v in enumerate(given) if v is not None and inputs[i] is not None}
        try:
            results = session.run(None, feeds)
        except Exception:
            if given is inputs:
                raise
    return results


def moved(rule, factor):
    """True if the local node needs more than a part of each tensor: indices into the factor, windows of it, or an attribute that counts it.
    Sizes as outputs are those of the full tensor."""
    counted = any(r["kind"] in ("attr", "share", "word") and r["factor"] == factor for r in rule["rewrites"])
    return counted or any(r["kind"] in ("lookup", "scatter", "sizes", "size", "route")
                          for r in rule["rewrites"]) or any(w["factor"] == factor for w in rule["windows"])


def whole_run(task, values):
    """The results of the unsharded node, computed once for all factors of a case; None: the engine does not support it."""
    if id(task.case) not in WHOLE_RUNS:
        machine = prove.Machine(prove.node_model(task.op, task.since, task.case, False, task.domain))
        WHOLE_RUNS[id(task.case)] = None if machine.reference else [np.asarray(w) for w in machine(values)]
    return WHOLE_RUNS[id(task.case)]


def work(task):
    """None: the engine cannot run the unsharded node; "": correct; otherwise the error."""
    values = [v.value if isinstance(v, prove.Host) else v for v in task.case["inputs"]]
    whole = whole_run(task, values)
    if whole is None or moved(task.rule, task.factor):
        return None
    inputs, attributes, shapes = local_node(task, whole)
    given = prove.node_model(task.op, task.since, dict(task.case, inputs=inputs, attributes=attributes), False, task.domain)
    for model in (given, computed(given, inputs)):
        results = [np.asarray(r) for r in runs(model, inputs, values)]
        if [r.shape for r in results] != shapes:
            return "gives %s, not %s" % ([r.shape for r in results], shapes)
        if task.kind == "red" and any((r != NEUTRAL[task.combine]).any() for r in results):
            return "gives something else than %s" % NEUTRAL[task.combine]
    return ""


def main(printer, *only):
    tasks = list(tasks_of(printer, only))
    results, found, lacking, letters = children.results_of(work, tasks, SECONDS, CPU_SECONDS), set(), 0, {}
    partly_said = {(t.domain, t.op) for t in tasks if not t.some}  # other rows need elements of all factors: one letter stands for all
    for task, text in zip(tasks, results):
        letter = (task.domain, task.op, task.name.rstrip("0123456789") if (task.domain, task.op) in partly_said else "*")
        letters.setdefault(letter, []).append(task.some)
        if text:
            found.add(letter)
        if text and not task.some:
            lacking += 1
            shapes = [None if v is None else list((v.value if isinstance(v, prove.Host) else v).shape) for v in task.case["inputs"]]
            print("%s %s %s: nothing of %s (%s) %s, and the row does not say so" %
                  (task.op, shapes, task.case["attributes"], task.name, task.kind, text[:200]))
    needless = sorted(k for k, said in letters.items() if all(said) and k not in found)
    for domain, op, letter in needless:
        print("%s: the row wants elements of %s, and every case runs without" % (domain + ":" + op if domain else op, letter))
    ran = sum(r is not None for r in results)
    bad = lacking + len(needless)
    harness.check("rows say where kernels need elements", not bad and (ran >= 500 or only),
                  "%d runs without elements, %d rows differ" % (ran, bad))
    harness.finish()


if __name__ == "__main__":
    if not os.environ.get("MALLOC_PERTURB_"):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "MALLOC_PERTURB_": "90"})
    main(*sys.argv[1:])
