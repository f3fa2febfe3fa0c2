#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds what every row's shape function finds against real runs, where the sizes of the inputs are known, named, unknown or 1, and ranks
known or not: an inferred type, rank, size or element never contradicts the run, nor do the dimensions that the rule gives an output.

Each case of prove.py is run by ONNX Runtime (without optimisation) on inputs of several sizes: its own; each dimension, and all of one
size together, as 0, 1 or longer; several dimensions at once as 1. Sizes that ONNX Runtime refuses do not count. Each run is then
described in many ways: for Gemm of [5 6], [6 8], [1 8] also as [? 6], [6 8], [1 8] and as [n 6], [s6 8], [1 m]. The same in older operator
sets, as far as they have the case.

Each of them is then held against the run once more with what Python's onnx infers declared in it: that may be wrong (a Slice keeps the name
of a size that it changes), and what follows from the inputs wins.

Usage: partly.py PRINT_RULE [OPERATOR ...] [all]     (all: many more sizes and descriptions)
"""
import json, os, pickle, random, re, resource, subprocess, sys, tempfile
import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
import prove

import harness

KNOWN, UNKNOWN, NAMED, SHARED, RANKLESS = "kunsr"
# Cases of an operator, other sizes of one case, random subsets of dimensions that are 1, random descriptions of a run.
DEPTH = {False: dict(cases=2, sets=1, sizes=3, ones=1, ways=2), True: dict(cases=1000, sets=1000, sizes=1000, ones=12, ways=12)}
OLDEST = 7  # operator set that the engine still promises
# What this engine lets pass or gives against the standard, found here and left out.
empty = lambda shapes: any(s is not None and 0 in s for s in shapes)
REDUCTIONS = "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
ODD = {**{op: (empty, "an empty input is given back unreduced, or reduced along its first axis alone") for op in REDUCTIONS.split()},
       "QLinearSoftmax": (empty, "an empty input gives no output"), "MatMul": (empty, "sums of nothing: batches of unlike sizes are not stretched"),
       "MaxPool": (lambda shapes: min(shapes[0][2:]) < 2, "com.microsoft.nchwc: a window that is larger than the image counts as one"),
       "GatherND": (lambda shapes: shapes[0][0] != shapes[1][0], "a batch of indices that is longer than that of the data")}
CPU_SECONDS = 5  # for all runs of a case: a size of 0 keeps some kernels busy for ever


def session(model):
    """The engine without optimisation; None: it lacks the operator."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:
        return None


# ---- sizes that are run -------------------------------------------------------------------------------

def resized(value, shape):
    """The same elements, over and over or fewer, so that indices stay valid."""
    if not value.size:
        return np.zeros(shape, value.dtype)
    for axis, size in enumerate(shape):
        if value.shape[axis] != size:
            value = np.take(value, np.arange(size) % max(value.shape[axis], 1), axis)
    return value


def variants(values, depth, dice):
    """Shapes of the inputs to be tried, the case's own first."""
    own = [None if v is None else tuple(v.shape) for v in values]
    dims = [(i, a) for i, s in enumerate(own) if s for a in range(len(s))]
    groups = [[d] for d in dims]
    groups += [[d for d in dims if own[d[0]][d[1]] == size] for size in sorted({own[i][a] for i, a in dims})]
    groups = [g for k, g in enumerate(groups) if g not in groups[:k]]
    tried, result = set(), []
    # All dimensions of a size become 0: for one alone, the engine accepts what the standard forbids.
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
    """For each input that is not constant a text: one letter per dimension, or RANKLESS."""
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
        names[text if isinstance(text, str) else "%s__%d" % (name, axis)] = size  # an unnamed one is called INPUT.AXIS
        dims.append(text)
    return helper.make_tensor_value_info(name, element, dims)


def described(model, values, ways, constants):
    """One graph with the node once for each description, then one behind each; names of sizes and what they are."""
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
    """The same with the shapes that onnx infers declared: what an exporter leaves in a file."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:
        return model


# ---- judging -------------------------------------------------------------------------------------------

def size_of(text, names):
    """None: it holds a name that onnx's inference made up, and may be any number."""
    try:
        return text if isinstance(text, int) else eval(re.sub(r"\.(\d+)", r"__\1", text), {"min": min, "max": max}, dict(names))
    except NameError:
        return None


def wrong_about(found, real, names):
    """What the shape function said that the run contradicts, or None."""
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
        if len(flat) != len(found["values"]) or any(e != "" and size_of(e, names) not in (None, int(x)) for e, x in zip(found["values"], flat)):
            return "elements %s, the run gives %s" % (found["values"], flat)
    return None


def run_from(first, model, inputs, write):
    """In a child: runs inputs[first:], and writes what each gives (None: sizes that do not fit together)."""
    engine = session(model)
    for k in range(first, len(inputs) if engine else first):
        try:
            outputs = engine.run(None, {"x%d" % i: v for i, v in enumerate(inputs[k]) if v is not None})
        except Exception:
            outputs = None
        pickle.dump((k, outputs), write)
        write.flush()


def run_all(model, inputs):
    """Outputs of each set of inputs. The engine dies of some (a division by a size of 0): those count as refused."""
    results, first = [None] * len(inputs), 0
    while first < len(inputs):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            with os.fdopen(writer, "wb") as write:
                run_from(first, model, inputs, write)
            os._exit(0)
        os.close(writer)
        done = first - 1
        with os.fdopen(reader, "rb") as read:
            while True:
                try:
                    done, outputs = pickle.load(read)
                    results[done] = outputs
                except EOFError:
                    break
        _, status = os.waitpid(child, 0)
        if status == 0:
            break
        first = done + 2
    return results


def runs_of(op, since, domain, c, depth, dice):
    """(model, inputs, constants, outputs) of every variant that the engine takes."""
    model = prove.node_model(op, since, c, False, domain)
    values = [v.value if isinstance(v, prove.Host) else v for v in c["inputs"]]
    constants = {i: v.value for i, v in enumerate(c["inputs"]) if isinstance(v, prove.Host)}
    free = [None if i in constants or i in c["fixed"] else v for i, v in enumerate(values)]
    inputs = [[v if s is None else resized(v, s) for v, s in zip(values, shapes)] for shapes in variants(free, depth, dice)]
    for given, outputs in zip(inputs, run_all(model, inputs)):
        if outputs is not None:
            yield model, given, constants, outputs


def operator_sets(op, domain, c, depth, dice):
    """The case's own operator set, and older ones, of which each has another definition of the operator; many of them refuse the case."""
    older = set()
    at = c["opset"] or prove.OPSET
    while not domain and at > 1 and onnx.defs.has(op, at):
        at = onnx.defs.get_schema(op, at).since_version - 1
        older.add(at)
    older = sorted(v for v in older if v >= OLDEST and onnx.defs.has(op, v))
    return [c["opset"]] + dice.sample(older, min(depth["sets"], len(older)))


def jobs(printer, only, depth, dice):
    """Cases of each operator, with the row that its opset has."""
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
        for op, since, domain, c in jobs(printer, only, depth, dice):
            for model, inputs, constants, outputs in runs_of(op, since, domain, c, depth, dice):
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
            lines += subprocess.run([printer, "--shapes"] + files[i:i + 2000], check=True, capture_output=True, text=True).stdout.splitlines()
    checked, wrong_of = 0, {}
    for (op, declares, attributes, inputs, ways, names, outputs), line in zip(claims, lines):
        nodes = json.loads(line)
        for way, found, after in zip(ways, nodes, nodes[len(ways):]):
            checked += 1
            made = [f for f in found if not f["absent"]]
            if op in ODD and ODD[op][0]([None if v is None else v.shape for v in inputs]):
                continue
            claims_made = list(zip(made, outputs)) + list(zip(after, outputs) if made and made[0]["rank"] >= 0 else [])  # else declarations alone speak
            wrong = next(filter(None, (wrong_about(f, np.asarray(o), names) for f, o in claims_made)), None)
            found = wrong_of.setdefault(op, [])
            if wrong:
                found.append("%s of %s described as %s%s: %s" % (attributes, [None if v is None else list(v.shape) for v in inputs], list(way.values()), declares, wrong))
    for op, wrong in wrong_of.items():
        harness.check(op, not wrong, "\n".join(wrong[:5]))
    print("# %d descriptions of %d runs" % (checked, runs))
    assert len(lines) == len(files), "%d answers about %d files" % (len(lines), len(files))
    harness.finish()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
