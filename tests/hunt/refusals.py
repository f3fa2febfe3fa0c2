# SPDX-License-Identifier: Apache-2.0
"""What may say no, and why that is right. A refusal that no entry names is a find: no error is fine because it is an error.

A verdict is one of:
    ok            every result is the whole model's, within the tolerance of its type
    ill, range    results differ by no more than rounding does (judge.py: noise, terms), or a part leaves the range of its type
    told no       edits drawn by hand that `check` refuses, each with a code of EDITS
    infeasible    a plan within a limit of memory that nothing fits
    engine        the engine refuses or changes the whole model too, or ENGINE knows its mistake
    different, refused, failed, crashed, hung     finds"""
import re

# Codes of findings that random edits by hand may earn: they are drawn for each value alone, and know neither rules nor other edits.
EDITS = {
    "stage-order": "stages are drawn for nodes alone: one reads what a later stage makes",
    "spec-disagree": "two values of a node are cut in ways that no placement of its rule has",
}

# Mistakes of ONNX Runtime 1.31 that a part can have where the whole model has not: (text, what the model must hold, why).
ENGINE = [
    (r"Shape mismatch attempting to re-use buffer", lambda n: rounds_up(n) or pads_by_itself(n),
     "it plans memory by sizes that ONNX infers wrongly for poolings: one window too many when rounding up, pads of SAME with dilations"),
]


def attribute(node, name):
    return next((a for a in node.attribute if a.name == name), None)


def rounds_up(node):
    a = attribute(node, "ceil_mode")
    return a is not None and a.i != 0


def pads_by_itself(node):
    a, dilations = attribute(node, "auto_pad"), attribute(node, "dilations")
    return a is not None and a.s.startswith(b"SAME") and dilations is not None and max(dilations.ints) > 1


def all_nodes(graph):
    for node in graph.node:
        yield node
        for a in node.attribute:
            if a.HasField("g"):
                yield from all_nodes(a.g)


def edits_may(findings):
    """Whether all errors of hand-made edits are ones that such edits may earn."""
    return bool(findings) and all(f[0] in EDITS for f in findings)


def engine_mistake(model, text):
    """Why a refusal is the engine's own mistake; "": it is not known as one."""
    for pattern, holds, why in ENGINE:
        nodes = list(all_nodes(model.graph)) + [n for f in model.functions for n in f.node]
        if re.search(pattern, text) and any(holds(n) for n in nodes):
            return why
    return ""
