# SPDX-License-Identifier: Apache-2.0
"""Makers of bodies with many inputs and outputs, and rewrites of complete models: outputs that are constants, inputs or copies, unused
nodes, constants that are inputs too, and names that tools use themselves (bodies.py has the usual bodies)."""
import numpy as np
import onnx
from onnx import helper, numpy_helper

from bodies import close, graph_of, grow, inner
from nodes import first, ints, shape_of
import nodes
import odd
import shapes

INNER = nodes.MAKERS + shapes.MAKERS[:12] + odd.MAKERS


# ---- bodies ---------------------------------------------------------------------------------------------

def fed(s, names):
    """A subgraph without inputs that reads these outer values, and its random nodes."""
    body, _ = inner(s, [])
    body.pool = [n for n in names if n] + body.pool
    grow(body, s.maker.rng.randint(0, 3), INNER)
    return body


def made_in(body, name):
    """The value as a result of the subgraph: itself, or a copy of an outer value or constant."""
    if any(name in n.output for n in body.nodes):
        return name
    return body.one("Identity", [name], keep=False)


def flag_of(s):
    rng = s.maker.rng
    flag = s.pick(lambda a: a.size == 1, "b")
    if flag and rng.random() < 0.6:
        return flag
    if rng.random() < 0.5:
        return s.fresh(np.array([rng.random() < 0.5]) if rng.random() < 0.3 else np.array(rng.random() < 0.5))
    x = first(s, "f", 1)
    total = s.one("ReduceMax", [x], keepdims=0, keep=False)
    return total and s.one("Greater", [total, s.constant(np.array(0.3, s.values[x].dtype))], keep=False)


def several_results(s):
    """An If with several outputs, whose branches return other sizes, constants, outer values, or one value twice."""
    rng = s.maker.rng
    values = [s.pick(lambda a: a.ndim and a.size, "fi") for _ in range(rng.randint(1, 3))]
    flag = flag_of(s)
    if not all(values) or not flag:
        return None
    graphs, kinds = {}, None
    for branch in ("then_branch", "else_branch"):
        body, outs = fed(s, values), []
        wanted = kinds or [s.values[v].dtype for v in values]
        for k, dtype in enumerate(wanted):
            r = rng.random()
            if r < 0.15:
                made = body.one("Identity", [body.constant(s.maker.numbers(shape_of(rng, 0, 2), dtype))], keep=False)
            elif r < 0.3 and k and wanted[0] == dtype:
                made = body.one("Identity", [outs[0]], keep=False)
            elif r < 0.5:
                made = made_in(body, values[k]) if s.values[values[k]].dtype == dtype else None
            else:
                found = body.pick(lambda a: a.dtype == dtype)
                made = found and made_in(body, found)
            outs.append(made or body.one("Identity", [body.constant(s.maker.numbers((2, 3), dtype))], keep=False))
        if not all(outs) or len(set(outs)) < len(outs):
            return None
        graphs[branch] = graph_of(body, s.maker.name(branch), [], outs, True)
    return close(s, "If", [flag], len(values), 2, **graphs)


def nested(s):
    """An If in an If, which reads values of both outer graphs."""
    rng = s.maker.rng
    x, flag = first(s, "f", 1, 3), flag_of(s)
    if not flag:
        return None
    graphs = {}
    for branch in ("then_branch", "else_branch"):
        body = fed(s, [x])
        made = several_results(body) if rng.random() < 0.7 else rolling(body)
        out = made and made[0] if made and body.values[made[0]].dtype == s.values[x].dtype else None
        out = out or made_in(body, x)
        if not out:
            return None
        graphs[branch] = graph_of(body, s.maker.name(branch), [], [out], True)
    return close(s, "If", [flag], 1, 2, **graphs)


def rolling(s):
    """A Loop with several carried values, some of which change places, stay, or count; scan outputs; perhaps no iteration."""
    rng = s.maker.rng
    starts = [s.pick(lambda a: a.ndim and a.size, "f") for _ in range(rng.randint(1, 3))]
    if not all(starts):
        return None
    if rng.random() < 0.4:
        starts += starts[:1]  # one value as two states
    arrays = [s.values[v] for v in starts]
    counts = rng.random() < 0.4
    if counts:
        starts, arrays = starts + [s.fresh(np.array(0, "i8"), constant=0.7)], arrays + [np.array(0, "i8")]
    turn, go = s.maker.name("i"), s.maker.name("go")
    body, carried = inner(s, arrays)
    body.values[turn], body.values[go] = np.array(0, "i8"), np.array(True)
    if rng.random() < 0.3:
        body.pool.append(turn)
    grow(body, rng.randint(0, 3), INNER)
    outs = []
    for k, (name, a) in enumerate(zip(carried, arrays)):
        if counts and k + 1 == len(arrays):
            outs.append(body.one("Add", [name, body.constant(np.array(1, "i8"))], keep=False))
            continue
        same = [c for c, b in zip(carried, arrays) if b.shape == a.shape and b.dtype == a.dtype]
        made = [n for n in body.pool if any(n in m.output for m in body.nodes)]
        fitting = [n for n in made if getattr(body.values[n], "shape", None) == a.shape and body.values[n].dtype == a.dtype]
        pick = rng.choice(fitting + same + same) if rng.random() < 0.8 else rng.choice(same)
        outs.append(body.one(rng.choice(["Identity", "Neg", "Tanh"]), [pick], keep=False))
    scans = []
    for _ in range(rng.choice([0, 1, 2])):
        found = body.pick(lambda a: a.ndim < 4 and a.size)
        scans.append(found and body.one("Identity", [found], keep=False))
    on = body.one("Less", [turn, body.constant(np.array(rng.choice([0, 1, 9]), "i8"))], keep=False) if rng.random() < 0.4 else \
        body.one("Identity", [go], keep=False)
    if not all(outs + scans) or not on:
        return None
    g = graph_of(body, s.maker.name("rolling"), [turn, go] + carried, [on] + outs + scans, rng.random() < 0.4)
    turns = s.fresh(np.array(rng.choice([0, 1, 2, 3, 4]), "i8"), constant=0.5)
    start = s.constant(np.array(True)) if rng.random() < 0.7 else s.fresh(np.array(rng.random() < 0.8))
    return close(s, "Loop", [turns, rng.choice(["", start]), *starts], len(outs) + len(scans), 1, body=g)


def growing(s):
    """A Loop whose state becomes longer in each iteration, as in the generation of text."""
    rng = s.maker.rng
    start = s.pick(lambda a: a.ndim and a.size, "fi")
    if not start:
        return None
    a = s.values[start]
    axis = rng.randrange(a.ndim)
    turn, go = s.maker.name("i"), s.maker.name("go")
    body, (carried,) = inner(s, [a])
    body.values[turn], body.values[go] = np.array(0, "i8"), np.array(True)
    last = body.add("Slice", [carried, body.constant(ints(-1)), body.constant(ints(odd.FAR)), body.constant(ints(axis))], keep=False)
    last = last and body.one(rng.choice(["Neg", "Identity", "Abs"]), last, keep=False)
    out = last and body.one("Concat", [carried, last], axis=axis, keep=False)
    on = body.one("Identity", [go], keep=False)
    if not out or not on:
        return None
    body.values[carried] = a.reshape(a.shape)
    g = graph_of(body, s.maker.name("growing"), [turn, go, carried], [on, out], True)
    for field in list(g.input)[2:] + list(g.output)[1:]:
        field.type.tensor_type.ClearField("shape")
    return close(s, "Loop", [s.fresh(np.array(rng.choice([0, 1, 3]), "i8"), constant=0.5), "", start], 1, 1, body=g)


def collecting(s):
    """A Loop whose state is a sequence."""
    rng = s.maker.rng
    start = s.pick(lambda a: a.ndim and a.size and a.ndim < 4, "f")
    if not start:
        return None
    a = s.values[start]
    turn, go, state = (s.maker.name(n) for n in ("i", "go", "seq"))
    body, _ = inner(s, [])
    body.pool = [start]
    body.values[turn], body.values[go], body.values[state] = np.array(0, "i8"), np.array(True), [a]
    s.maker.shapes[state] = a.shape
    grow(body, rng.randint(0, 2), nodes.MAKERS)
    same = body.pick(lambda b: b.shape == a.shape and b.dtype == a.dtype)
    out = same and body.one("SequenceInsert", [state, same], keep=False)
    on = body.one("Identity", [go], keep=False)
    first_list = s.one("SequenceConstruct", [start], keep=False)
    if not out or not on or not first_list:
        return None
    sequence = lambda n: helper.make_tensor_sequence_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), None)
    info = lambda n, t: helper.make_tensor_value_info(n, t, [])
    g = helper.make_graph(body.nodes, s.maker.name("collecting"), [info(turn, 7), info(go, 9), sequence(state)],
                          [info(on, 9), sequence(out)],
                          [numpy_helper.from_array(v, n) for n, v in body.inits.items()])
    made = s.add("Loop", [s.constant(np.array(rng.choice([1, 2, 3]), "i8")), "", first_list], body=g, keep=False)
    if not made:
        return None
    s.maker.count("SequenceInsert", "")
    return s.add("ConcatFromSequence", made, axis=0, new_axis=rng.choice([0, 1])) if rng.random() < 0.7 else \
        s.add("SequenceAt", made + [s.constant(np.array(-1, "i8"))])


def scans(s):
    """A Scan with several inputs and axes, perhaps without a state, that returns rows in any direction."""
    rng = s.maker.rng
    x = first(s, "f", 2, 4)
    a = s.values[x]
    if not a.size:
        return None
    axis = rng.randrange(a.ndim)
    rows, axes = [x], [axis]
    for _ in range(rng.choice([0, 1])):
        shape = list(shape_of(rng, 1, 2))
        at = rng.randrange(len(shape) + 1)
        rows.append(s.like(shape[:at] + [a.shape[axis]] + shape[at:], a.dtype))
        axes.append(at)
    start = [s.like(shape_of(rng, 1, 2), "f4") for _ in range(rng.choice([0, 1, 2]))]
    body, carried = inner(s, [s.values[v] for v in start] + [s.values[r].take(0, k) for r, k in zip(rows, axes)])
    grow(body, rng.randint(0, 3), INNER)
    outs = [body.one(rng.choice(["Identity", "Neg", "Tanh"]), [c], keep=False) for c in carried[:len(start)]]
    found = [body.pick(lambda b: b.ndim < 4 and b.size) for _ in range(rng.choice([1, 1, 2]))]
    given = [f and body.one("Identity", [f], keep=False) for f in found]
    if not all(outs + given):
        return None
    out_axes = [rng.randint(-body.values[g].ndim - 1, body.values[g].ndim) for g in given]
    g = graph_of(body, s.maker.name("scan"), carried, outs + given, rng.random() < 0.4)
    return close(s, "Scan", start + rows, len(outs) + len(given), 1, body=g, num_scan_inputs=len(rows),
                 scan_input_axes=[k - rng.choice([0, s.values[r].ndim]) for r, k in zip(rows, axes)],
                 scan_input_directions=[rng.randint(0, 1) for _ in rows], scan_output_axes=out_axes,
                 scan_output_directions=[rng.randint(0, 1) for _ in given])


def shared_by_bodies(s):
    """Outputs of one node, sharded perhaps in different ways, that the main graph and a body read."""
    rng = s.maker.rng
    x = first(s, "f", 1, 3)
    if not s.values[x].size:
        return None
    op = rng.choice(["Split", "TopK", "Unique"])
    axis = rng.randrange(s.values[x].ndim)
    n = s.values[x].shape[axis]
    made = s.add("Split", [x, s.constant(ints(n // 2, n - n // 2))], outputs=2, axis=axis) if op == "Split" else \
        s.add("TopK", [x, s.constant(ints(max(1, n // 2)))], outputs=2, axis=axis) if op == "TopK" else s.add(op, [x], outputs=4)
    if not made:
        return None
    s.add("Neg", made[:1])
    return rng.choice([several_results, nested, rolling])(s)


MAKERS = [(several_results, 5), (nested, 3), (rolling, 5), (growing, 2), (collecting, 2), (scans, 4), (shared_by_bodies, 3)]


# ---- rewrites of complete models ------------------------------------------------------------------------

def more_outputs(rng, model, values):
    """Model outputs that are inputs, constants, or copies of other outputs."""
    graph = model.graph
    have = {o.name for o in graph.output}
    for i in list(graph.input):
        if i.name not in have and rng.random() < 0.2:
            graph.output.append(i)
    for t in list(graph.initializer):
        if t.name not in have and rng.random() < 0.1:
            graph.output.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    for o in list(graph.output):
        if rng.random() < 0.2:
            copy = onnx.ValueInfoProto.FromString(o.SerializeToString())
            copy.name = o.name + "_copy"
            graph.node.append(helper.make_node("Identity", [o.name], [copy.name]))
            graph.output.append(copy)


def unused(rng, model, values):
    """Nodes and constants without readers, and inputs that nothing reads."""
    graph = model.graph
    made = [o for n in graph.node for o in n.output if o and isinstance(values.get(o), np.ndarray) and values[o].dtype.kind == "f"]
    for name in rng.sample(made, min(len(made), 2)):
        graph.node.append(helper.make_node("Relu", [name], [name + "_unused"]))
        graph.node.append(helper.make_node("Exp", [name + "_unused"], [name + "_unused2"]))
    graph.initializer.append(numpy_helper.from_array(np.arange(5, dtype="f4"), "unused_weight"))


def fewer_outputs(rng, model, values):
    """Some outputs are dropped: what makes them is unused."""
    kept = [o for o in model.graph.output if rng.random() < 0.6]
    if kept:
        del model.graph.output[:]
        model.graph.output.extend(kept)


def constants_as_inputs(rng, model, values):
    """Constants that callers may replace: they are inputs too."""
    for t in list(model.graph.initializer):
        if rng.random() < 0.3:
            model.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))


# Names of values and nodes that tools might generate or take for something else.
NAMES = ["tessera_rounding_0", "tessera_rounding_run", "x y", "a/b:0", "a.b", "*", "k=v", "%s",
         "\u00fc\u4e2d", "0", "-1", "null", "a\tb", "\"q\"", "a,b;c", "{2,1:0,1}", "w", "output", "input", "A" * 300, "../x", "$(x)", "<b>"]


def rename(graph, names):
    """Renames values of a graph and its subgraphs."""
    for node in graph.node:
        for field in (node.input, node.output):
            for k, name in enumerate(field):
                field[k] = names.get(name, name)
        for a in node.attribute:
            if a.HasField("g"):
                rename(a.g, names)
    for field in (graph.input, graph.output, graph.initializer, graph.value_info):
        for v in field:
            v.name = names.get(v.name, v.name)


def other_names(rng, model, values):
    """Some values have odd names, or names that differ in their end from others, as generated names do."""
    made = [n for n in values if n]
    chosen = rng.sample(made, min(len(made), rng.randint(1, 8)))
    fresh = rng.sample(NAMES, min(len(NAMES), len(chosen)))
    names = dict(zip(chosen, fresh))
    rest = [n for n in made if n not in names]
    for name in rng.sample(rest, min(len(rest), 4)):
        other = rng.choice(rest)
        text = other + rng.choice(["_0", "_1", "_rank0", "/0", ".0", "_2", "_before", "_copy"])
        if other not in names and text not in made and text not in names.values():
            names[name] = text
    if any(n in fresh for n in made):
        return {}
    rename(model.graph, names)
    for node in model.graph.node:
        if rng.random() < 0.3:
            node.name = rng.choice([node.output[0], "", node.output[0] + rng.choice(NAMES)])
    return names


REWRITES = [more_outputs, unused, fewer_outputs, constants_as_inputs]


def rewrite(rng, model, values):
    """Rewrites a model whose values are known; returns the new names of those that have one."""
    for change in REWRITES:
        if rng.random() < 0.4:
            change(rng, model, values)
    return other_names(rng, model, values) if rng.random() < 0.4 else {}
