# SPDX-License-Identifier: Apache-2.0
"""Builds a case from a seed: a model, sets of inputs of one or several sizes, and the results of the unsharded model in Python's ONNX
Runtime without optimization for each set."""
import numpy as np

import blocks
import bodies
import cases
import focus
import inside
import nodes
import odd
import shapes
import structures
import compare
from graph import Maker, as_declared, fits, free_names, one_size_each, run_model
from lawful import LAWS, LAWS_OF_TURNS, lawful
from refusals import all_nodes

MAKERS = nodes.MAKERS + shapes.MAKERS + bodies.MAKERS + cases.MAKERS
FAMILIES = [MAKERS, MAKERS, nodes.MAKERS + shapes.MAKERS, nodes.MAKERS + bodies.MAKERS * 4 + shapes.MAKERS, cases.MAKERS + nodes.MAKERS[:3],
            blocks.MAKERS + nodes.MAKERS[:2] + shapes.MAKERS, odd.MAKERS * 2 + nodes.MAKERS + shapes.MAKERS,
            structures.MAKERS * 3 + nodes.MAKERS + shapes.MAKERS]


class Case:
    """A model to shard and compare. sets: inputs; wanted: results of the unsharded model for each set; sizes: symbol -> size in each set.
    shapes: of all values, including subgraphs, for the first set."""

    def __init__(self, seed, model, sets, sizes, wanted, maker):
        assert focus.of(seed).names or all(one_size_each(model, s) for s in sets), "one name for two sizes"
        self.seed, self.model, self.sets, self.sizes, self.wanted = seed, model, sets, sizes, wanted
        self.operators, self.shapes = maker.operators, maker.shapes
        self.least_symbols = {n: min(s[n] for s in sizes) for n in sizes[0]}
        self.least = {}  # size in the first set -> the smallest that a value of that size may have in another set
        for n, size in sizes[0].items():
            self.least[size] = min(self.least.get(size, size), self.least_symbols[n])


def draw_outputs(maker):
    """Values without readers, and sometimes one with readers; some sequences."""
    main = maker.main
    made = [o for n in main.nodes for o in n.output if o]
    read = set()
    for n in main.nodes:
        read |= set(free_names(n))
    good = [v for v in made if v in main.values and (not isinstance(main.values[v], list) or maker.rng.random() < 0.3)]
    out = [v for v in good if v not in read]
    out += [v for v in good if v in read and maker.rng.random() < 0.08]
    return out


def prune(model):
    """Remove unused inputs and constants."""
    used = {n for node in model.graph.node for n in free_names(node)} | {o.name for o in model.graph.output}
    for field in (model.graph.input, model.graph.initializer):
        kept = [v for v in field if v.name in used]
        del field[:]
        field.extend(kept)


def has_a_law(node):
    return node.op_type in LAWS or node.op_type in LAWS_OF_TURNS


def nodes_lawful(model, nodes, values):
    """True if these nodes are lawful, also in every iteration of their subgraphs that contain a node with a condition."""
    for node in nodes:
        if not lawful(node, values):
            return False
        of_turns = LAWS_OF_TURNS.get(node.op_type)
        has_law = of_turns or any(has_a_law(n) for a in node.attribute if a.HasField("g") for n in all_nodes(a.g))
        steps = inside.steps(model, node, values) if has_law else []
        if has_law and node.op_type == "If" and not steps:  # alone, with declared sizes, the engine rejects it
            return False
        if of_turns and not of_turns(node, steps):
            return False
        for body, inner in steps:
            if not nodes_lawful(model, body.node, inner):
                return False
    return True


def all_lawful(model, feeds):
    """True if all nodes are still lawful in other sizes."""
    model = inside.inlined(model)
    if not any(has_a_law(n) for n in all_nodes(model.graph)):
        return True
    return nodes_lawful(model, model.graph.node, compare.known_values(model, feeds))


def other_set(maker, model, sizes, names):
    """Inputs with other values of the symbols that the unsharded model accepts; (inputs, sizes, results) or None."""
    rng = maker.rng
    if any("Loss" in op for op in maker.operators):
        return None  # ONNX Runtime reads labels that do not exist
    symbols = [n for n in names if any(n in dims for dims in sizes.values())]
    tries = [symbols] + [[n] for n in symbols] if len(symbols) > 1 else [symbols]
    for changed in tries[:4]:
        if not changed:
            return None
        now = dict(names, **{n: rng.choice([1, 2, 3, 5, 6, 9, names[n] + 1, 2 * names[n]]) for n in changed})
        feeds = {}
        for i in model.graph.input:
            if i.name not in maker.inputs:  # a constant
                continue
            old = maker.inputs[i.name]
            shape = tuple(now.get(d, d) for d in sizes[i.name])
            if shape == old.shape:
                feeds[i.name] = old
            elif old.dtype.kind in "fb" or not old.size:
                feeds[i.name] = maker.numbers(shape, old.dtype)
            else:
                feeds[i.name] = maker.np.choice(old.ravel(), shape).astype(old.dtype)
        try:
            results = run_model(model, feeds)
        except Exception:
            continue
        if all(fits(a) for a in results.values()) and as_declared(model, results) and all_lawful(model, feeds):
            return feeds, now, results
    return None


def odd_set(maker, feeds, names, model):
    """The same inputs with a few NaN and infinities; (inputs, sizes, results) or None."""
    changed, rng = {}, maker.rng
    for name, a in feeds.items():
        changed[name] = a
        if a.dtype.kind == "f" and a.size and rng.random() < 0.7:
            at = maker.np.random(a.shape) < rng.choice([0.02, 0.1, 0.5])
            changed[name] = np.where(
                at, maker.np.choice(np.array(rng.choice([[np.nan], [np.inf], [-np.inf, np.inf], [np.nan, -np.inf]])), a.shape),
                a).astype(a.dtype)
    try:
        results = run_model(model, changed)
    except Exception:
        return None
    return (changed, names, results) if as_declared(model, results) else None


def share_names(maker, model, names):
    """Gives some dimensions of inputs the name of another one, whose size may differ."""
    for i in model.graph.input:
        for d in i.type.tensor_type.shape.dim:
            if d.dim_param and maker.rng.random() < 0.4:
                d.dim_param = maker.rng.choice(list(names))
    del model.graph.value_info[:]
    for o in model.graph.output:
        o.type.tensor_type.ClearField("shape")


def rewritten(maker, model, sizes):
    """Rewrites the model (structures.py); returns the sizes of its inputs by their new names."""
    values = {n: a for n, a in maker.main.values.items() if n in maker.shapes}
    names = structures.rewrite(maker.rng, model, values)
    renamed = lambda table: {names.get(n, n): x for n, x in table.items()}
    maker.inputs, maker.shapes, maker.main.values = renamed(maker.inputs), renamed(maker.shapes), renamed(maker.main.values)
    return renamed(sizes)


def same(a, b):
    """True if the run of the complete model equals the runs of single nodes; otherwise the engine reads uninitialized memory."""
    if isinstance(a, list) or a.dtype.kind != "f":
        return True
    if a.shape != b.shape:
        return False
    gap = np.abs(a.astype("f8") - b.astype("f8")).max(initial=0)
    return gap <= 1e-2 * max(np.abs(b).max(initial=0), 1e-2)


def make(seed):
    """A case, or None if none could be built."""
    opset_draw = Maker(seed).rng.random()
    opset = 21 if opset_draw < 0.6 else 18 if opset_draw < 0.7 else 23 if opset_draw < 0.82 else 24 if opset_draw < 0.9 else cases.NEWEST
    if opset_draw > 0.87:
        opset = cases.OPSETS[seed % len(cases.OPSETS)]
    maker, aim = Maker(seed * 2 + 1, opset), focus.of(seed)
    rng, s = maker.rng, maker.main
    if aim.modes:
        maker.mode = rng.choice(aim.modes)
    for _ in range(rng.randint(1, 3)):
        shape = nodes.shape_of(rng, 1, 4)
        if rng.random() < 0.04:
            shape = tuple(0 if k == 0 else d for k, d in enumerate(shape))
        maker.add_input(maker.numbers(shape, "f4" if rng.random() < 0.75 else rng.choice(nodes.TYPES)))
    bodies.grow(s, min(rng.randint(*aim.nodes), rng.randint(*aim.nodes)), rng.choice(aim.families or FAMILIES))
    outputs = draw_outputs(maker)
    if not outputs:
        return None
    model, sizes, names = maker.model(outputs)
    prune(model)
    if rng.random() < aim.rewrite:
        sizes = rewritten(maker, model, sizes)
    if aim.names and names:
        share_names(maker, model, names)
    feeds = {i.name: maker.inputs[i.name] for i in model.graph.input if i.name in maker.inputs}
    try:
        wanted = run_model(model, feeds)
    except Exception as why:
        return str(why)
    if not all(same(wanted[n], s.values[n]) for n in wanted if n in s.values):
        return "the engine gives another result when it runs a node alone"
    sets = [(feeds, names, wanted)]
    if names and rng.random() < 0.7:
        more = other_set(maker, model, sizes, names)
        sets += [more] if more else []
    odd = odd_set(maker, feeds, names, model) if rng.random() < 0.15 else None
    sets += [odd] if odd else []
    return Case(seed, model, [x[0] for x in sets], [x[1] for x in sets], [x[2] for x in sets], maker)
