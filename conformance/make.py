#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the models and verdicts of the suite: make.py [FOLDER] (default: cases, beside this file).

A verdict is stated by hand in cases_*.py. The small reference computes it again from the documents, and this program stops if the
two differ. The same sources give the same bytes.
"""
import collections
import hashlib
import json
import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import numpy as np
import onnx
import onnx.reference
from onnx import numpy_helper

import build
import reference

import cases_schema, cases_proposal, cases_guide, cases_formalism  # noqa: E401,F401 - each adds its cases to build.CASES

VERSION = "2.0.0"
FORMAT = 1
WIDTH = 120  # columns of the JSON files
RULES = json.load(open(os.path.join(HERE, "rules.json"), encoding="utf-8"))["rules"]
SPAN = (-0.75, 0.75)  # of float inputs, unless a case says otherwise


def type_name(value):
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)).name


def tensors_of(model):
    """{name: {"type", "shape"}} of all values of the main graph; the shape has a symbol or null where the size is unknown."""
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except Exception:  # annotations of broken models do not matter here, but some graphs are partial on purpose
        pass
    found = {}
    for value in [*model.graph.input, *model.graph.value_info, *model.graph.output]:
        kind = value.type.tensor_type
        if value.type.HasField("tensor_type") and kind.HasField("shape"):
            found[value.name] = {
                "type": type_name(value),
                "shape": [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim]
            }
    for tensor in model.graph.initializer:
        found[tensor.name] = {"type": numpy_helper.to_array(tensor).dtype.name, "shape": list(tensor.dims)}
    return found


def numbers(name, kind, count, values):
    """Deterministic input data: a scrambled ramp over a span of numbers."""
    if isinstance(values, list):
        return values
    salt = sum(map(ord, name))
    steps = [((k + salt) * 37) % 101 / 101 for k in range(count)]
    if kind == "bool":
        return [bool(int(s * 101) % 2) for s in steps]
    low, high = values or (SPAN if kind.startswith("float") else (0, 9))
    if kind.startswith("float"):
        return [round((low + (high - low) * s) * 64) / 64 for s in steps]
    return [int(low + (high - low) * s) for s in steps]


def listed(array):
    if array.dtype.kind == "f":
        return [float("%.7g" % v) for v in array.ravel()]
    return array.ravel().tolist()


def described(array):
    return {"type": array.dtype.name, "shape": list(array.shape), "data": listed(array)}


def run_of(case, tensors):
    """Inputs and expected outputs: annotations never change what a model computes, so the unsharded model gives the outputs."""
    inputs = {}
    for value in case.model.graph.input:
        kind, shape = tensors[value.name]["type"], tensors[value.name]["shape"]
        data = numbers(value.name, kind, int(np.prod(shape, dtype=int)), case.values.get(value.name))
        inputs[value.name] = np.array(data, kind).reshape(shape)
    plain = onnx.ModelProto()
    plain.CopyFrom(case.model)
    outputs = onnx.reference.ReferenceEvaluator(plain).run(None, inputs)
    names = [o.name for o in case.model.graph.output]
    return {"inputs": {k: described(a) for k, a in inputs.items()},
            "outputs": {k: described(np.asarray(a)) for k, a in zip(names, outputs)}, "tolerance": 1e-5}


def compare_by_hand(case, known, shapes):
    for (config, node, value), text in case.expect.items():
        layout, explicit, _ = known[config][node][value]
        wanted = reference.layout_of(build.notation_spec(text), shapes[value])
        assert not explicit, "%s: %s of %s is explicit" % (case.name, value, node)
        assert devices_of_elements(layout) == devices_of_elements(wanted), "%s: %s of %s is %s" % (case.name, value, node, layout.shards())


def devices_of_elements(layout):
    return {index: layout.owners[tuple(axis[i] for axis, i in zip(layout.blocks, index))] for index in np.ndindex(*layout.shape)}


def shardings_of(known):
    """What a model states and what must be inferred. Values that are unsharded on unspecified devices are left out."""
    rows = []
    for node, values in known.items():
        for value, (layout, explicit, even) in values.items():
            shards = layout.shards()
            if explicit or len(shards) > 1 or shards[0]["devices"] is not None:
                rows.append({"node": node, "value": value, "from": "model" if explicit else "inferred", "exact": even, "shards": shards})
    return rows


def confirm(case, shapes):
    """Compares the verdict with the reference; returns {configuration: known layouts} of a structurally valid model."""
    broken = reference.broken_rules(case.model)
    found, known = {rule for rule, _, _ in broken}, {}
    constants = {t.name: numpy_helper.to_array(t) for t in case.model.graph.initializer}
    if not broken:
        for config in case.model.configuration:
            wrong, _, known[config.name] = reference.propagate(case.model, config.name, shapes, constants)
            found |= {rule for rule, _ in wrong}
    if case.verdict != "open":
        expected = {case.rule} if case.rule else set()
        assert found == expected, "%s: by hand %s, by the reference %s" % (case.name, expected, found)
    compare_by_hand(case, known, shapes)
    return known


def document(case, data):
    tensors = tensors_of(case.model)
    shapes = {k: t["shape"] for k, t in tensors.items() if all(isinstance(s, int) for s in t["shape"])}
    known = confirm(case, shapes)
    configurations = {}
    for config in case.model.configuration:
        stages = {n.name: e.pipeline_stage for n in case.model.graph.node for e in n.device_configurations
                  if e.configuration_id == config.name and e.HasField("pipeline_stage")}
        rows = shardings_of(known.get(config.name, {})) if case.verdict == "valid" else \
            [r for r in shardings_of(known.get(config.name, {})) if r["from"] == "model"] if case.verdict == "open" else []
        configurations[config.name] = {"devices": config.num_devices, "names": list(config.device), "stages": stages, "shardings": rows}
    runs = case.run and case.verdict != "invalid"
    sections = [list(s) for s in case.sections]
    made = {"format": FORMAT, "suite": VERSION, "name": case.name, "about": case.about, "model": case.name + ".onnx",
            "sha256": hashlib.sha256(data).hexdigest(), "sections": sections, "verdict": case.verdict}
    if case.rule:
        made.update(rule=case.rule, strength=RULES[case.rule][2], place={"node": case.place[0], "value": case.place[1]})
    if case.why:
        made["open"] = case.why
    made.update(tensors=tensors, configurations=configurations, run=run_of(case, tensors) if runs else None)
    return made


def pretty(value, indent=0):
    """JSON with short values and lists of numbers on one line."""
    line = json.dumps(value)
    if not isinstance(value,
                      (dict, list)) or len(line) + indent <= WIDTH or (isinstance(value, list) and not isinstance(value[0], (dict, list))):
        return line
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        rows = ["%s%s: %s" % (inner, json.dumps(k), pretty(v, indent + 1)) for k, v in value.items()]
    else:
        rows = [inner + pretty(v, indent + 1) for v in value]
    return "%s\n%s\n%s%s" % ("{["[isinstance(value, list)], ",\n".join(rows), " " * indent, "}]"[isinstance(value, list)])


def sections_page(index):
    """Markdown: section -> cases."""
    found = collections.OrderedDict()
    for row in index:
        for document, section in row["sections"]:
            found.setdefault((document, section), []).append("`%s`" % row["name"])
    order = ["schema", "proposal", "guide", "formalism"]
    lines = [
        "# Cases by section", "", "Written by make.py. A case may belong to several sections.", "", "| document | section | cases |",
        "|---|---|---|"
    ]
    lines += [
        "| %s | %s | %s |" % (*key, ", ".join(names)) for key, names in sorted(found.items(), key=lambda item: order.index(item[0][0]))
    ]
    return "\n".join(lines) + "\n"


def main(folder):
    os.makedirs(folder, exist_ok=True)
    names = [case.name for case in build.CASES]
    twice = [n for n, count in collections.Counter(names).items() if count > 1]
    assert not twice, "names occur twice: %s" % twice
    index = []
    for case in build.CASES:
        data = case.model.SerializeToString(deterministic=True)
        made = document(case, data)
        for ending, content in ((".onnx", data), (".json", (pretty(made) + "\n").encode())):
            with open(os.path.join(folder, case.name + ending), "wb") as out:
                out.write(content)
        index.append({"name": case.name, "verdict": case.verdict, "sections": made["sections"], "sha256": made["sha256"]})
    with open(os.path.join(folder, "index.json"), "w", encoding="utf-8") as out:
        rows = ",\n".join(" " + json.dumps(row) for row in index)
        out.write('{"suite": "%s", "format": %d, "cases": [\n%s\n]}\n' % (VERSION, FORMAT, rows))
    with open(os.path.join(folder, "sections.md"), "w", encoding="utf-8") as out:
        out.write(sections_page(index))
    stale = set(os.listdir(folder)) - {n + e for n in names for e in (".onnx", ".json")} - {"index.json", "sections.md"}
    for name in stale:
        os.remove(os.path.join(folder, name))
    counts = collections.Counter(case.verdict for case in build.CASES)
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print("%d cases (%s), %d KiB" % (len(names), ", ".join("%s %d" % item for item in sorted(counts.items())), size // 1024))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "cases"))
