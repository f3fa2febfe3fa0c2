# SPDX-License-Identifier: Apache-2.0
"""Tests empty shards: every factor whose size only the run knows is sharded over three devices, and the run has one element of it.

The first two devices then have no element. The same with two elements whose number the model states: the first device has none, the
specification stays, and no annotation is refused. The result must equal the unsharded model's. The nodes are those of tests/rules/prove.py,
one for every row of the rule table. Sizes have names or are unknown. ONNX Runtime runs at its optimization levels 0 to 3. Sizes with names
are also tested in operator sets 7 to 9, which lack operators that compute shapes in newer sets. Each sharding runs in its own process,
because a kernel may crash (src/rules/empty.c). A case is skipped if ONNX Runtime cannot run the unsharded node with one element, or if
Tessera does not shard it.

usage: empty.py TESSERA PRINT_RULE [OPERATOR ...] [all]     all: every setting of an operator at every level, not a sample
"""
import functools, json, os, subprocess, sys, tempfile

import numpy as np
import onnx

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "rules"), os.path.join(HERE, "..", "hunt")]

import api  # noqa: E402
import cases  # noqa: E402
import children  # noqa: E402
import compare  # noqa: E402
import harness  # noqa: E402
import partly  # noqa: E402
import prove  # noqa: E402

PARTS, SECONDS = 3, 30
NAMED, UNKNOWN, BATCH, STATED = "named", "unknown", "batch", "stated"
OLD = (7, 8, 9)
LEAST_CUTS = 150  # a smaller number means that the test no longer finds the sizes or rules


def sized(c, way):
    """Returns the case with sizes that have names (one name per number), or with unknown sizes. BATCH: only the batch size has a name,
    for rules that need the sizes of weights."""
    free = [None if v is None or isinstance(v, prove.Host) else v for v in c["inputs"]]
    if way == BATCH:
        batch = free[0].shape[0] if free[0] is not None and free[0].ndim else 0
        named = lambda v: ("batch",) + v.shape[1:] if v.ndim and v.shape[0] == batch > 1 else v.shape
        return dict(c, symbols=[() if v is None else v.shape if i in c["fixed"] else named(v) for i, v in enumerate(free)])
    name = {NAMED: "s%d", UNKNOWN: "u%d"}[way]
    return dict(
        c, symbols=[() if v is None else tuple(n if i in c["fixed"] or n == 1 else name % n for n in v.shape) for i, v in enumerate(free)])


def old_sets(rows, name, c):
    """Returns [(operator set, version of the row)] for the sets in OLD that have the operator."""
    domain = name.rpartition(":")[0]
    rows = [r["since"] for r in rows if prove.full(r) == name]
    found = [(k, max((r for r in rows if domain or r <= k), default=None)) for k in OLD]
    return [(k, since) for k, since in found if since is not None and not c["opset"] and name not in cases.UNSOUND]


def jobs_of(printer, only):
    """Returns (operator, version, domain, case, way, rule) for everything to test."""
    rows = [json.loads(line) for line in subprocess.run([printer], check=True, capture_output=True, text=True).stdout.splitlines()]
    cases, jobs = prove.all_cases(), []
    for name in dict.fromkeys(prove.full(r) for r in rows if not r["whole"]):
        if only and name not in only:
            continue
        domain, _, op = name.rpartition(":")
        for c in cases.get(name, prove.one()):
            since = max(r["since"] for r in rows if prove.full(r) == name and (domain or r["since"] <= (c["opset"] or 1000)))
            if not c["symbols"] and not c["whole"]:
                jobs += [(op, since, domain, sized(c, way), way) for way in (NAMED, UNKNOWN, BATCH)]
                jobs += [(op, old, domain, dict(sized(c, NAMED), opset=k), NAMED) for k, old in old_sets(rows, name, c)]
            elif c["symbols"] and c["opset"]:  # an older form of the operator, whose case names the one size that may be empty
                jobs.append((op, since, domain, c, NAMED))
    with tempfile.TemporaryDirectory() as d:
        files = [os.path.join(d, "%d.onnx" % i) for i in range(len(jobs))]
        for path, (op, since, domain, c, way) in zip(files, jobs):
            onnx.save(prove.node_model(op, since, c, True, domain), path)
        lines = subprocess.run([printer] + files, check=True, capture_output=True, text=True).stdout.splitlines()
    return [job + (json.loads(line),) for job, line in zip(jobs, lines)]


def tasks_of(jobs, step):
    """Yields one task for each factor of a rule that may be empty: (job, factor, the input and dimension that is sharded, level).

    step > 1: every step-th factor of an operator, and one case of each (the first or the second, alternating between operators).
    BATCH is used only if the other ways gave no rule for the batch."""
    found = {}
    cut_before = set()  # operators whose first input was sharded along its first dimension without BATCH
    wanted = {op: k % 2 for k, op in enumerate(sorted({job[0] for job in jobs}))}
    for op, since, domain, c, way, rule in sorted(jobs, key=lambda job: job[4] == BATCH):
        for f, factor in enumerate(rule["factors"]):
            if rule["whole"] or factor["kind"] not in ("par", "red") or isinstance(factor["size"], int):
                continue
            where = [(i, d) for i, t in enumerate(rule["inputs"]) if not t["host"] and not t["absent"] for d, fs in enumerate(t["dims"])
                     if fs == [f]]
            if not where or way == BATCH and ((op, domain) in cut_before or (0, 0) not in where):
                continue
            if way != BATCH and (0, 0) in where:
                cut_before.add((op, domain))
            key = op, domain, factor["name"], factor["kind"], tuple(where), c["opset"] in OLD
            found.setdefault(key, []).append((op, since, domain, c, way, factor["name"], where, factor["size"]))
    seen = {}  # operator -> number of factors so far
    for number, (key, tasks) in enumerate(found.items()):
        seen[key[:2]] = seen.get(key[:2], 0) + 1
        if (seen[key[:2]] - 1) % step:
            continue
        for task in tasks if step == 1 else [tasks[min(wanted[key[0]], len(tasks) - 1)]]:
            for level in range(4) if step == 1 else (number % 4,):
                yield task + (level,)
            if task[4] == NAMED and task[3]["opset"] not in OLD:
                yield task[:4] + (STATED,) + task[5:] + (0,)


def small(c, where, size, elements):
    """Returns inputs with this number of elements along the factor, and along every dimension whose size has the same name."""
    values = [v.value if isinstance(v, prove.Host) else v for v in c["inputs"]]
    out = []
    for i, v in enumerate(values):
        free = v is not None and not isinstance(c["inputs"][i], prove.Host) and v.ndim
        one = [bool(free) and ((i, d) in where or c["symbols"][i][d] == size != "") for d in range(v.ndim if v is not None else 0)]
        out.append(v if not free else partly.resized(v, tuple(elements if x else n for x, n in zip(one, v.shape))))
    return out


def whole_run(model, values):
    engine = partly.session(model)
    try:
        return engine and engine.run(None, {"x%d" % i: v for i, v in enumerate(values) if v is not None})
    except Exception:
        return None


def one_task(lib, task):
    """Runs one task. Returns None if there is nothing to compare, "" if the results are equal, else what is wrong."""
    op, since, domain, c, way, name, where, size, level = task
    values = small(c, where, size, 2 if way == STATED else 1)
    if way == STATED:
        kept = [type(v)(x) if isinstance(v, prove.Host) else x for v, x in zip(c["inputs"], values)]
        shown = prove.node_model(op, since, dict(c, inputs=kept, symbols=None, declare=None), True, domain)
    else:
        shown = prove.node_model(op, since, c, True, domain)
    if way == UNKNOWN:
        for v in shown.graph.input:
            for d in v.type.tensor_type.shape.dim:
                if d.dim_param:
                    d.ClearField("dim_param")
    want = whole_run(shown, [None if isinstance(v, prove.Host) else x for v, x in zip(c["inputs"], values)])
    if want is None or any(a.dtype not in api.NUMBER and a.dtype != object for a in values if a is not None):
        return None
    i, axis = where[0]
    cut = "{%s:%s}" % (",".join(str(PARTS) if d == axis else "1" for d in range(values[i].ndim)), ",".join(map(str, range(PARTS))))
    feeds = {"x%d" % k: v for k, v in enumerate(values) if v is not None and not isinstance(c["inputs"][k], prove.Host)}
    with tempfile.TemporaryDirectory() as d, api.Session(lib) as session:
        path = os.path.join(d, "m.onnx")
        onnx.save(shown, path)
        model = session.load(path)
        model.add_config("c", PARTS)
        node, named = model.nodes()[0]
        if lib.node_shard_text(node, named["x%d" % i], model.config, cut.encode()) != api.OK:
            return None
        try:
            cut_nodes = model.partition(os.path.join(d, "parts"))[1]
        except api.Failed as e:
            return None if e.status == api.UNSUPPORTED else "not partitioned: %s" % e
        if not cut_nodes and way != STATED:
            return None
        got = session.run(os.path.join(d, "parts"), [feeds], optimize=level)[0]
    names = [o.name for o in shown.graph.output]
    for y, w in zip(names, want):
        gap = compare.apart(got[y], np.asarray(w))
        if gap > 1e-4:
            return "%s is %g apart, %s and %s" % (y, gap, got[y].shape, np.asarray(w).shape)
    return ""


@functools.lru_cache(maxsize=None)
def library(path):
    """Opens the library in the child process, because an engine does not survive a fork."""
    return api.Library(path)


def shown(task):
    op, since, domain, c, way, name, where, size, level = task
    shapes = [None if v is None else list((v.value if isinstance(v, prove.Host) else v).shape) for v in c["inputs"]]
    return "%s %s %s, no elements of %s (input %d), sizes %s, level %d" % (op, shapes, c["attributes"], name, where[0][0], way, level)


def main(tessera, printer, *only):
    path = os.path.join(os.path.dirname(tessera), "libtessera.so")
    jobs, done = [job for job in jobs_of(printer, only) if not harness.PATTERN or harness.matches(job[0])], []
    for step in (1,) if harness.ALL else (5, 3):  # 3: only operators of which no sharding could be compared with step 5
        compared = {task[0] for task, result in done if result is not None}
        tasks = [task for task in tasks_of(jobs, step) if task[0] not in compared]
        done += zip(tasks, children.results_of(lambda task: one_task(library(path), task), tasks, SECONDS))
    by_operator = {}
    for task, result in done:
        if result is not None:
            by_operator.setdefault(task[0], []).extend(["%s: %s" % (shown(task), result)] if result else [])
    for op, wrong in by_operator.items():
        harness.check(op, not wrong, "\n".join(wrong))
    same = sum(result == "" for _, result in done)
    print("# %d shardings tried, %d equal to the unsharded run" % (len(done), same))
    assert same >= LEAST_CUTS or only or harness.PATTERN, same
    harness.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
