#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the results of shape inference with real runs, for partly known inputs: sizes known, named, unknown or 1, ranks known or not. An
inferred type, rank, size or element must not contradict the run, nor may the dimensions that the rule gives an output.

Runs each case of prove.py in ONNX Runtime (without optimization) on inputs of several sizes: its own; each dimension, and all dimensions of
one size together, as 0, 1 or longer; several dimensions as 1. Sizes that ONNX Runtime rejects are ignored. Each run is then described in
many ways: a Gemm of [5 6], [6 8], [1 8] also as [? 6], [6 8], [1 8] and as [n 6], [s6 8], [1 m]. The same is done in older operator sets
that have the case.

Each description is tested a second time with the shapes that Python's onnx infers as declarations. These may be wrong (a Slice keeps the
name of a size that it changes); then the shapes that follow from the inputs must win.

Usage: partly.py PRINT_RULE [OPERATOR ...] [all]     (all: many more sizes and descriptions)
"""
import json, os, random, re, subprocess, sys, tempfile
import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
import children
import prove

import harness

KNOWN, UNKNOWN, NAMED, SHARED, RANKLESS = "kunsr"
# Per operator: cases; other sizes of a case; random subsets of dimensions of size 1; random descriptions of a run.
DEPTH = {False: dict(cases=2, sets=1, sizes=3, ones=1, ways=2), True: dict(cases=1000, sets=1000, sizes=1000, ones=12, ways=12)}
OLDEST = 7  # oldest operator set that the engine supports
# Cases in which the engine deviates from the standard; they are not compared.
empty = lambda shapes: any(s is not None and 0 in s for s in shapes)
REDUCTIONS = (
    "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)
ODD = {
    **{
        op: (empty, "an empty input is given back unreduced, or reduced along its first axis alone") for op in REDUCTIONS.split()
    }, "QLinearSoftmax": (empty, "an empty input gives no output"),
    "MatMul": (empty, "sums of nothing: batches of unlike sizes are not stretched"),
    "MaxPool": (lambda shapes: min(shapes[0][2:]) < 2, "com.microsoft.nchwc: a window that is larger than the image counts as one"),
    "GatherND": (lambda shapes: shapes[0][0] != shapes[1][0], "a batch of indices that is longer than that of the data")
}
CPU_SECONDS = 0.5  # for a run: some kernels never end for a size of 0
SESSION = {}  # the last one: runs of a model follow each other


def session(model):
    """A session without optimization; None: the engine does not support the operator."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:
        return None


# ---- sizes that are run -------------------------------------------------------------------------------

def resized(value, shape):
    """The same elements, repeated or truncated, so that indices stay valid."""
    if not value.size:
        return np.zeros(shape, value.dtype)
    for axis, size in enumerate(shape):
        if value.shape[axis] != size:
            value = np.take(value, np.arange(size) % max(value.shape[axis], 1), axis)
    return value


def variants(values, depth, dice):
    """Shapes of the inputs to try; those of the case first."""
    own = [None if v is None else tuple(v.shape) for v in values]
    dims = [(i, a) for i, s in enumerate(own) if s for a in range(len(s))]
    groups = [[d] for d in dims]
    groups += [[d for d in dims if own[d[0]][d[1]] == size] for size in sorted({own[i][a] for i, a in dims})]
    groups = [g for k, g in enumerate(groups) if g not in groups[:k]]
    tried, result = set(), []
    # All dimensions of a size become 0 together: for a single one, the engine accepts what the standard forbids.
    changes = [({}, 0)] + [({d: None for d in g}, size) for g in groups for size in (1, -1, 2)]
    changes += [({d: None for d in dims if own[d[0]][d[1]] == size}, 0) for size in {own[i][a] for i, a in dims}]
    for _ in range(depth["ones"] if len(dims) > 1 else 0):
        changes.append(({d: None for d in dice.sample(dims, dice.randint(2, len(dims)))}, 1))
    for which, size in changes:
        shapes = [None if s is None else list(s) for s in own]
        for i, a in which:
            shapes[i][a] = size if size in (0, 1) else max(own[i][a] + size, 0)
        key = repr(shapes)
        if key not in tried:
            tried.add(key)
            result.append(shapes)
    return result[:1] + dice.sample(result[1:], min(depth["sizes"], len(result) - 1))


# ---- ways to describe one run --------------------------------------------------------------------------

def descriptions(shapes, depth, dice):
    """A text for each input that is not constant: one letter per dimension, or RANKLESS."""
    given = [i for i, s in enumerate(shapes) if s is not None]
    every = lambda letter: {i: letter * len(shapes[i]) for i in given}
    result = [every(UNKNOWN), every(NAMED), every(SHARED)]
    for i in given:
        result += [{**every(KNOWN), i: letter * len(shapes[i])} for letter in (UNKNOWN, NAMED)]
        result += [{**every(KNOWN), i: RANKLESS}, {**every(NAMED), i: UNKNOWN * len(shapes[i])}]
    for _ in range(depth["ways"]):
        result.append({i: "".join(dice.choice(KNOWN + UNKNOWN + NAMED + SHARED) for _ in shapes[i]) for i in given})
    return [w for k, w in enumerate(result) if w not in result[:k]]


def declared(name, value, letters, i, names):
    element = helper.np_dtype_to_tensor_dtype(value.dtype)
    if letters == RANKLESS and value.ndim:
        return helper.make_tensor_value_info(name, element, None)
    dims = []
    for axis, (letter, size) in enumerate(zip(letters, value.shape)):
        text = {KNOWN: size, UNKNOWN: None, NAMED: "n%d_%d" % (i, axis), SHARED: "s%d" % size}[letter]
        names[text if isinstance(text, str) else "%s__%d" % (name, axis)] = size  # inference calls an unnamed size INPUT.AXIS
        dims.append(text)
    return helper.make_tensor_value_info(name, element, dims)


def described(model, values, ways, constants):
    """(one graph with a copy of the node for each description and a reader of each copy, {name of a size: its value})."""
    names, inputs, nodes, behind = {}, [], [], []
    for k, way in enumerate(ways):
        node = onnx.NodeProto.FromString(model.graph.node[0].SerializeToString())
        node.name = "way%d" % k
        for i, letters in way.items():
            node.input[i] = "w%d_%d" % (k, i)
            inputs.append(declared(node.input[i], values[i], letters, i, names))
        node.output[:] = [y and "w%d_%s" % (k, y) for y in node.output]
        nodes.append(node)
        behind += [helper.make_node("Identity", [y], [y + "_after"]) for y in node.output[:1]]
    graph = helper.make_graph(nodes + behind, "g", inputs, [], [numpy_helper.from_array(v, "x%d" % i) for i, v in constants.items()])
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=10), names


def with_inferred(model):
    """The model with declarations of the shapes that onnx infers, as an exporter writes them."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:
        return model


# ---- comparing -----------------------------------------------------------------------------------------

def size_of(text, names):
    """The value of a size; None: it contains a name that onnx's inference made up."""
    if isinstance(text, int):
        return text
    name = text.replace(".", "__")
    try:
        return names[name] if name in names else eval(re.sub(r"\.(\d+)", r"__\1", text), {"min": min, "max": max}, dict(names))
    except NameError:
        return None


def wrong_about(found, real, names):
    """How the inferred shape contradicts the run, or None."""
    element = 8 if real.dtype == object else helper.np_dtype_to_tensor_dtype(real.dtype)
    if found["type"] not in (0, element):
        return "type %d, the run gives %d" % (found["type"], element)
    if found["rank_by_rule"] not in (-1, real.ndim):
        return "rank %d by the rule, the run gives %s" % (found["rank_by_rule"], list(real.shape))
    if found["rank"] < 0:
        return None
    if found["rank"] != real.ndim:
        return "rank %d, the run gives %s" % (found["rank"], list(real.shape))
    for d, size in zip(found["dims"], real.shape):
        if d != "" and size_of(d, names) not in (None, size):
            return "%s, the run gives %s" % (found["dims"], list(real.shape))
    if found["values"] is not None:
        flat = real.reshape(-1).tolist()
        if len(flat) != len(found["values"]) or any(e != "" and size_of(e, names) not in (None, int(x))
                                                    for e, x in zip(found["values"], flat)):
            return "elements %s, the run gives %s" % (found["values"], flat)
    return None


def runs_of(op, since, domain, c, depth, dice):
    """(model, inputs, constants) of every variant of a case."""
    model = prove.node_model(op, since, c, False, domain)
    values = [v.value if isinstance(v, prove.Host) else v for v in c["inputs"]]
    constants = {i: v.value for i, v in enumerate(c["inputs"]) if isinstance(v, prove.Host)}
    free = [None if i in constants or i in c["fixed"] else v for i, v in enumerate(values)]
    for shapes in variants(free, depth, dice):
        yield model, [v if s is None else resized(v, s) for v, s in zip(values, shapes)], constants


def run(task):
    """In a child process: the outputs of one run; None: the operator is not supported, or the sizes do not fit together."""
    _, _, (model, inputs, _) = task
    if SESSION.get("model") is not model:
        SESSION.update(model=model, session=session(model))
    try:
        return SESSION["session"] and SESSION["session"].run(None, {"x%d" % i: v for i, v in enumerate(inputs) if v is not None})
    except Exception:
        return None


def operator_sets(op, domain, c, depth, dice):
    """The operator set of the case, and older ones with other definitions of the operator; many of them reject the case."""
    older = set()
    at = c["opset"] or prove.OPSET
    while not domain and at > 1 and onnx.defs.has(op, at):
        at = onnx.defs.get_schema(op, at).since_version - 1
        older.add(at)
    older = sorted(v for v in older if v >= OLDEST and onnx.defs.has(op, v))
    return [c["opset"]] + dice.sample(older, min(depth["sets"], len(older)))


def jobs(printer, only, depth, dice):
    """Cases of each operator, with the row of their opset."""
    rows = [json.loads(line) for line in subprocess.run([printer], check=True, capture_output=True, text=True).stdout.splitlines()]
    cases = prove.all_cases()
    for name in dict.fromkeys(prove.full(r) for r in rows):
        domain, _, op = name.rpartition(":")
        if only and name not in only or not harness.matches(op):
            continue
        sinces = [r["since"] for r in rows if prove.full(r) == name]
        refused = all(r["whole"] for r in rows if prove.full(r) == name)
        all_of_it = cases.get(name, [] if refused else prove.one()[:1])
        for c in dice.sample(all_of_it, min(depth["cases"], len(all_of_it))):
            for opset in operator_sets(op, domain, c, depth, dice):
                yield op, max((s for s in sinces if domain or s <= (opset or 1000)), default=1), domain, {**c, "opset": opset}


def main(printer, only):
    depth = DEPTH[harness.ALL]
    dice, claims, runs = random.Random(5), [], 0
    with tempfile.TemporaryDirectory() as folder:
        files = []
        tasks = [(op, c, model_run) for op, since, domain, c in jobs(printer, only, depth, dice)
                 for model_run in runs_of(op, since, domain, c, depth, dice)]
        for (op, c, (model, inputs, constants)), outputs in zip(tasks, children.results_of(run, tasks, harness.HANG_S, CPU_SECONDS)):
            if isinstance(outputs, list):  # otherwise the engine rejects the sizes, or crashes (division by a size of 0)
                free = [None if v is None or i in constants else v.shape for i, v in enumerate(inputs)]
                ways = descriptions(free, depth, dice)
                text, names = described(model, inputs, ways, constants)
                for declares, written in (("", text), (", declared as onnx infers", with_inferred(text))):
                    files.append(os.path.join(folder, "%d.onnx" % len(files)))
                    onnx.save(written, files[-1])
                    claims.append((op, declares, c["attributes"], inputs, ways, names, outputs))
                runs += 1
        lines = []
        for i in range(0, len(files), 2000):
            lines += subprocess.run([printer, "--shapes"] + files[i:i + 2000], check=True, capture_output=True,
                                    text=True).stdout.splitlines()
    checked, wrong_of = 0, {}
    for (op, declares, attributes, inputs, ways, names, outputs), line in zip(claims, lines):
        nodes = json.loads(line)
        for way, found, after in zip(ways, nodes, nodes[len(ways):]):
            checked += 1
            made = [f for f in found if not f["absent"]]
            if op in ODD and ODD[op][0]([None if v is None else v.shape for v in inputs]):
                continue
            # otherwise only declarations are known
            claims_made = list(zip(made, outputs)) + list(zip(after, outputs) if made and made[0]["rank"] >= 0 else [])
            wrong = next(filter(None, (wrong_about(f, np.asarray(o), names) for f, o in claims_made)), None)
            found = wrong_of.setdefault(op, [])
            if wrong:
                found.append("%s of %s described as %s%s: %s" % (attributes, [None if v is None else list(v.shape)
                                                                              for v in inputs], list(way.values()), declares, wrong))
    for op, wrong in wrong_of.items():
        harness.check(op, not wrong, "\n".join(wrong[:5]))
    print("# %d descriptions of %d runs" % (checked, runs))
    assert len(lines) == len(files), "%d answers about %d files" % (len(lines), len(files))
    harness.finish()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
