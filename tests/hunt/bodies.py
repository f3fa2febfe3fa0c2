# SPDX-License-Identifier: Apache-2.0
"""Makers of If, Loop and Scan, whose subgraphs are random graphs again, and of calls of functions of the model."""
import numpy as np
from onnx import helper, numpy_helper

import nodes
import shapes
from graph import Scope, info, type_number

DEEPEST = 2
INNER = nodes.MAKERS + [m for m in shapes.MAKERS if m[0] not in (shapes.lists, shapes.optionals, shapes.found)]


def depth(s):
    n = 0
    while s.outer:
        s, n = s.outer, n + 1
    return n


def grow(s, count, makers=INNER):
    """Add about `count` nodes by random makers."""
    rng = s.maker.rng
    functions, weights = zip(*makers)
    wanted, tries = len(s.nodes) + count, 6 * count
    while len(s.nodes) < wanted and tries:
        tries -= 1
        maker = rng.choices(functions, weights)[0]
        if depth(s) and depth(s) < DEEPEST and rng.random() < 0.08:
            maker = rng.choice([branches, loop, scan])
        maker(s)


def inner(s, carried):
    """The scope of a subgraph; carried: arrays of its inputs, which get names."""
    body = Scope(s.maker, s)
    names = [s.maker.name("c") for _ in carried]
    for name, a in zip(names, carried):
        body.values[name] = a
        s.maker.shapes[name] = a.shape
        body.pool.append(name)
    if s.maker.rng.random() < 0.6:  # outer values that it may read
        body.pool = [n for n in s.pool[-4:] if isinstance(s.values[n], np.ndarray)] + body.pool
    return body, names


def result(body, like):
    """A value computed in the subgraph, of the shape and type of an array: the last that fits, or a new one."""
    made = {o for n in body.nodes for o in n.output}
    fitting = [n for n in body.pool if n in made and body.values[n].shape == like.shape and body.values[n].dtype == like.dtype]
    if fitting and body.maker.rng.random() < 0.9:
        return fitting[-1]
    same = body.pick(lambda a: a.shape == like.shape and a.dtype == like.dtype)
    return same and body.one("Tanh" if like.dtype.kind == "f" and body.maker.rng.random() < 0.7 else "Identity", [same])


def graph_of(body, name, inputs, outputs, open_shapes):
    """inputs, outputs: names. Shapes of carried values are declared or omitted; the engine wants to know those of scalars."""
    def told(n):
        a = body.values[n]
        return info(n, type_number(a), None if a.ndim and (open_shapes or body.maker.mode != "static") else a.shape)
    inits = [numpy_helper.from_array(a, n) for n, a in body.inits.items()]
    return helper.make_graph(body.nodes, name, [told(n) for n in inputs], [told(n) for n in outputs], inits)


def close(s, op, inputs, outputs, body_count, **attributes):
    """Add the node with its subgraphs and count the nodes inside."""
    before = dict(s.maker.operators)
    made = s.add(op, inputs, outputs=outputs, **attributes)
    if not made:
        s.maker.operators = before
    return made


def branches(s):
    rng = s.maker.rng
    like = s.pick(lambda a: a.ndim and a.size, "f")
    if not like:
        return None
    flag = s.pick(lambda a: a.size == 1 and a.ndim == 0, "b")
    if not flag:
        total = s.one("ReduceSum", [like], keepdims=0, keep=False)
        flag = total and s.one("Greater", [total, s.constant(np.array(0, s.values[like].dtype))], keep=False)
        flag = s.fresh(np.array(rng.random() < 0.5)) if rng.random() < 0.5 or not flag else flag
    graphs = {}
    for name in ("then_branch", "else_branch"):
        body, _ = inner(s, [])
        body.pool = body.pool or [like]
        grow(body, rng.randint(1, 4))
        out = result(body, s.values[like]) or body.one("Neg", [like])
        if not out:
            return None
        graphs[name] = graph_of(body, s.maker.name(name), [], [out], True)
    return close(s, "If", [flag], 1, 2, **graphs)


def loop(s):
    rng = s.maker.rng
    start = s.pick(lambda a: a.ndim and a.size, "f")
    if not start:
        return None
    a = s.values[start]
    turn, go = s.maker.name("i"), s.maker.name("go")
    body, (carried,) = inner(s, [a])
    body.values[turn], body.values[go] = np.array(0, "i8"), np.array(True)
    grow(body, rng.randint(1, 4))
    out = result(body, a)
    on = body.one("Identity", [go], keep=False)
    if not out or not on:
        return None
    if rng.random() < 0.3:
        total = body.one("ReduceMax", [out], keepdims=0, keep=False)
        on = total and body.one("Greater", [total, body.constant(np.array(-0.5, a.dtype))], keep=False) or on
    scans = [n for n in [body.pick(lambda b: b.size and b.ndim < 4)] if n and n != out and any(n in m.output for m in body.nodes)]
    g = graph_of(body, s.maker.name("loop"), [turn, go, carried], [on, out] + scans, rng.random() < 0.3)
    turns = s.fresh(np.array(rng.choice([1, 2, 3]), "i8"), constant=0.7) if rng.random() < 0.85 else ""
    if not turns and on:
        turns = s.constant(np.array(2, "i8"))
    return close(s, "Loop", [turns, s.constant(np.array(True)), start], 1 + len(scans), 1, body=g)


def turns_alone(s):
    """A Loop without carried values and condition: Loop(turns, ""). Its second input is omitted, but counts as an input."""
    rng = s.maker.rng
    body, _ = inner(s, [])
    turn, go = s.maker.name("i"), s.maker.name("go")
    body.values[turn], body.values[go] = np.array(0, "i8"), np.array(True)
    body.pool = body.pool or [n for n in s.pool[-3:] if isinstance(s.values[n], np.ndarray)]
    if not body.pool:
        return None
    grow(body, rng.randint(1, 3))
    on, out = body.one("Identity", [go], keep=False), body.pick(lambda b: b.size and b.ndim < 4)
    if not on or not out or not any(out in m.output for m in body.nodes):
        return None
    g = graph_of(body, s.maker.name("turns"), [turn, go], [on, out], rng.random() < 0.3)
    return close(s, "Loop", [s.constant(np.array(rng.choice([1, 2, 3]), "i8")), ""], 1, 1, body=g)


def scan(s):
    rng = s.maker.rng
    start = s.pick(lambda a: a.ndim and a.size and a.ndim < 4, "f")
    if not start:
        return None
    a = s.values[start]
    turns, axis = rng.choice([1, 2, 3]), rng.randint(0, a.ndim)
    shape = a.shape[:axis] + (turns,) + a.shape[axis:]
    rows = s.like(shape, a.dtype, reuse=0.8)
    body, (carried, row) = inner(s, [a, s.values[rows].take(0, axis)])
    grow(body, rng.randint(1, 4))
    mixed = body.one("Add", [carried, row])
    out = result(body, a)
    extra = body.pick(lambda b: b.size and b.ndim < 4)
    if not mixed or not out or not extra or not any(extra in m.output for m in body.nodes) or extra == out:
        return None
    g = graph_of(body, s.maker.name("scan"), [carried, row], [out, extra], rng.random() < 0.3)
    return close(s, "Scan", [start, rows], 2, 1, body=g, num_scan_inputs=1, scan_input_axes=[axis],
                 scan_input_directions=[rng.randint(0, 1)], scan_output_axes=[rng.choice([0, -1])])


def function(s):
    """A call of a function of the model: a new random graph of one or two inputs, or an existing function."""
    rng, maker = s.maker.rng, s.maker
    if s.outer or maker.opset < 18:
        return None
    x = nodes.first(s, "f", 1)
    if maker.functions and rng.random() < 0.4:
        f = rng.choice(maker.functions)
        others = [s.like(s.values[x].shape, s.values[x].dtype) for _ in f.input[1:]]
        return s.add(f.name, [x] + others, outputs=len(f.output), domain="hunt.local")
    body = Scope(maker, None)
    arrays = [s.values[x]] + ([s.values[x]] if rng.random() < 0.5 else [])
    names = [maker.name("f") for _ in arrays]
    for name, a in zip(names, arrays):
        body.values[name] = a
        body.pool.append(name)
    body.outer = s  # constants of a function must be nodes: moved out of the initializers below
    before = dict(maker.main.inits)
    grow(body, rng.randint(2, 5), nodes.MAKERS + shapes.MAKERS[:12])
    out = body.pool[-1]
    wanted = dict(body.inits, **{n: a for n, a in maker.main.inits.items() if n not in before})
    maker.main.inits = before
    constants = [helper.make_node("Constant", [], [n], value=numpy_helper.from_array(a, n)) for n, a in wanted.items()]
    if out in names or not isinstance(body.values[out], np.ndarray):
        return None
    f = helper.make_function("hunt.local", maker.name("Fn"), names, [out], constants + body.nodes, maker.imports()[:3])
    maker.functions.append(f)
    made = s.add(f.name, [x] + [s.like(a.shape, a.dtype) for a in arrays[1:]], domain="hunt.local")
    if not made:
        maker.functions.pop()
    return made


MAKERS = [(branches, 2), (loop, 2), (turns_alone, 1), (scan, 2), (function, 2)]
