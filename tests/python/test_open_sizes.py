# SPDX-License-Identifier: Apache-2.0
"""Tests that a verdict does not depend on how many elements an axis has, nor on whether its size is a number or a symbol.

Nodes of many operators get random shardings, often with more shards than elements. Each is checked with small sizes (0 and 1 too), with
large ones, and with symbols. Errors must be the same, with and without the formalism, and small sizes must not add warnings. A sample
also runs.

usage: test_open_sizes.py BUILD [all]     `all`: more seeds. A failure names the seed"""
import collections
import random

import harness
from built import tessera  # before onnxruntime

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

SEEDS, PART, RUN_EVERY = 4000 if harness.ALL else 800, 200, 20
# Operator, shapes of the inputs and of the output, attributes. A letter is a size, and "1" is 1 in every version of the model. Sizes that
# only their operator can relate (the pooled axes of a MaxPool) have no letter in the output: it is not declared.
NODES = [
    ("Relu", "ab", "ab", {}),
    ("Add", "ab ab", "ab", {}),
    ("Add", "ab 1b", "ab", {}),
    ("Mul", "ab b", "ab", {}),
    ("Less", "a1 1b", "ab", {}),
    ("Sum", "ab ab ab", "ab", {}),
    ("Where", "ab ab ab", "ab", {}),
    ("MatMul", "ab bc", "ac", {}),
    ("MatMul", "dab dbc", "dac", {}),
    ("MatMul", "dab bc", "dac", {}),
    ("MatMul", "ab b", "a", {}),
    ("Gemm", "ab bc", "ac", {}),
    ("Gemm", "ba cb c", "ac", {"transA": 1, "transB": 1}),
    ("Einsum", "ab bc", "ac", {"equation": "ij,jk->ik"}),
    ("Einsum", "ab ab", "a", {"equation": "ij,ij->i"}),
    ("ReduceMax", "ab", "1b", {"axes": [0]}),
    ("ReduceMean", "ab", "a", {"axes": [1], "keepdims": 0}),
    ("ArgMax", "ab", "1b", {"axis": 0}),
    ("Softmax", "ab", "ab", {"axis": -1}),
    ("LayerNormalization", "ab b b", "ab", {}),
    ("BatchNormalization", "ncab c c c c", "ncab", {}),
    ("Transpose", "abc", "cab", {"perm": [2, 0, 1]}),
    ("Squeeze", "a1b", "ab", {"axes": [1]}),
    ("Concat", "ab ab", "", {"axis": 1}),
    ("Gather", "ab i", "ib", {}),
    ("Conv", "nchw oc11", "nohw", {}),
    ("MaxPool", "nchw", "nchw", {"kernel_shape": [1, 1]}),
]
SYMBOL, LARGE = {c: c for c in "abcdnchwoi"}, {c: 48 * (k + 3) for k, c in enumerate("abcdnchwoi")}
SIZED = ("Concat", "Gather")  # their rules shard some axes only if the size is known
OLD = ("ReduceMax", "ReduceMean", "Squeeze")  # their axes are attributes up to set 12


def shape_of(letters, sizes):
    return [1 if c == "1" else sizes[c] for c in letters]


def types_of(op, n_inputs):
    first = {"Where": TensorProto.BOOL}.get(op, TensorProto.FLOAT)
    inputs = [first] + [TensorProto.INT64 if op == "Gather" else TensorProto.FLOAT] * (n_inputs - 1)
    return inputs, {"Less": TensorProto.BOOL, "ArgMax": TensorProto.INT64}.get(op, TensorProto.FLOAT)


def model_of(case, sizes):
    op, inputs, output, attributes = case
    inputs = inputs.split()
    types, result = types_of(op, len(inputs))
    values = [helper.make_tensor_value_info("x%d" % i, t, shape_of(s, sizes)) for i, (s, t) in enumerate(zip(inputs, types))]
    node = helper.make_node(op, [v.name for v in values], ["y"], name="n", **attributes)
    declared = helper.make_tensor_value_info("y", result, shape_of(output, sizes) if output else None)
    graph = helper.make_graph([node], "g", values, [declared])
    return helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 12 if op in OLD else 18)])


def sharding_of(rng, letters, devices):
    """A text such as {3,1:0,(1,2),0}. Axes of size 1 that no symbol replaces are not sharded."""
    cuts = [1] * len(letters)
    free = [k for k, c in enumerate(letters) if c != "1"]
    for axis in rng.sample(free, min(len(free), rng.choice([0, 1, 1, 1, 2]))):
        cuts[axis] = rng.choice([2, 2, 3, 4])
    n, order = int(np.prod(cuts)), rng.sample(range(devices), devices)
    style = rng.choice(["each", "each", "any", "groups", "overlapping"])
    owners = []
    for k in range(n):
        members = {"each": [order[k % devices]], "any": [rng.randrange(devices)], "groups": order[k::n] or [order[0]],
                   "overlapping": rng.sample(range(devices), rng.randint(1, 2))}[style]
        owners.append("(%s)" % ",".join(map(str, sorted(members))))
    if n == 1:
        owners = map(str, sorted(rng.sample(range(devices), rng.randint(1, devices))))
    return "{%s:%s}" % (",".join(map(str, cuts)), ",".join(owners))


def drawn(seed):
    """A case with its small sizes, number of devices and shardings; values of one rank often have the same one."""
    rng = random.Random(seed)
    case = rng.choice(NODES)
    sizes = {c: rng.choice((0, 1, 1, 1, 2, 3, 4)) for c in SYMBOL}
    if case[0] == "Concat":  # of axes without elements, which have no shards, only the total could be sharded
        sizes["b"] += 1
    devices, shardings, by_rank = rng.choice([2, 3, 4]), {}, {}
    values = [("x%d" % i, s) for i, s in enumerate(case[1].split())] + [("y", case[2])]
    for name, letters in values:
        if letters and rng.random() < (0.85 if name != "y" else 0.3):
            text = sharding_of(rng, letters, devices)
            if "1" not in letters and rng.random() < 0.5:
                text = by_rank.get(len(letters), text)
            if "1" not in letters:
                by_rank[len(letters)] = text
            shardings[name] = text
    return case, sizes, devices, shardings


def annotated(model, devices, shardings):
    model = tessera.load(model)
    model.add_config("c", devices)
    for value, text in shardings.items():
        model.shard("n", value, text)
    return model


def codes(model, formalism):
    """The codes of errors and of warnings."""
    found = collections.defaultdict(set)
    for finding in model.check(formalism=formalism):
        found[finding.severity].add(finding.code)
    return found["error"], found["warning"]


def stretches(case, sizes):
    """True if an axis of one element meets another one that broadcasts: by the formalism it is then replicated, while a symbol stands for
    an axis that does not broadcast."""
    return len(case[1].split()) > 1 and any("1" in s for s in case[1].split()) and 1 in [sizes[c] for c in case[1] if c in sizes]


def differences(seed):
    case, sizes, devices, shardings = drawn(seed)
    small, large, symbols = (annotated(model_of(case, s), devices, shardings) for s in (sizes, LARGE, SYMBOL))
    for formalism in (False, True):
        (errors, warnings), (wanted, known), (unsized, more) = (codes(m, formalism) for m in (small, large, symbols))
        if bool(errors) != bool(wanted) and not (formalism and stretches(case, sizes)):
            yield "formalism" * formalism, "small", sorted(errors), "large", sorted(wanted)
        if bool(unsized) != bool(wanted) and not more and case[0] not in SIZED:
            yield "formalism" * formalism, "symbols", sorted(unsized), "large", sorted(wanted)
        if not errors and warnings - known - more:
            yield "formalism" * formalism, "small", sorted(warnings), "large", sorted(known), "symbols", sorted(more)


def verdicts(folder, first):
    wrong, errors = [], 0
    for seed in range(first, first + PART):
        wrong += ["seed %d: %s: %s" % (seed, drawn(seed), found) for found in differences(seed)]
        case, sizes, devices, shardings = drawn(seed)
        errors += bool(codes(annotated(model_of(case, sizes), devices, shardings), False)[0])
    assert not wrong, "\n".join(wrong)
    assert PART // 10 < errors < PART * 9 // 10, "%d of %d are errors: the test no longer finds both" % (errors, PART)


def inputs_of(case, sizes):
    rng = np.random.default_rng(1)
    shapes, types = case[1].split(), types_of(case[0], len(case[1].split()))[0]
    feeds = {"x%d" % i: rng.random(shape_of(s, sizes)) + 0.1 for i, s in enumerate(shapes)}
    if case[0] == "Gather":
        feeds["x1"] = rng.integers(0, max(sizes["a"], 1), shape_of(shapes[1], sizes))
    return {name: np.asarray(v, helper.tensor_dtype_to_np_dtype(t)) for (name, v), t in zip(feeds.items(), types)}


def accepted(model, feeds):
    """False if ONNX Runtime has no kernel for these sizes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)
    except Exception:  # its exceptions have no common class
        return False
    return True


def results(folder, first):
    ran = 0
    for seed in range(first, first + PART, RUN_EVERY):
        case, sizes, devices, shardings = drawn(seed)
        feeds = inputs_of(case, sizes)
        for model in (model_of(case, sizes), model_of(case, SYMBOL)):
            sharded = annotated(model, devices, shardings)
            if accepted(model, feeds) and not codes(sharded, False)[0]:
                done = tessera.verify(sharded.to_onnx(), inputs=feeds, allow_unsharded=True)
                assert done.ok, (seed, drawn(seed), done)
                ran += 1
    assert ran, "nothing ran"


if __name__ == "__main__":
    for what in (verdicts, results):
        harness.run([("%s of seeds %d to %d" % (what.__name__, first, first + PART - 1), what, first) for first in range(0, SEEDS, PART)])
    harness.finish()
