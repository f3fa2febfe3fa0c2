# SPDX-License-Identifier: Apache-2.0
"""Values of all nodes inside a model, for the comparison: function calls are inlined, and the subgraphs of If, Loop and Scan are run step
by step as separate models."""
import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

from graph import free_names, info, run_model, type_number

MOST_STEPS = 64  # maximum per loop


def inlined(model):
    """The model with its function calls inlined; unchanged if that is impossible."""
    if not model.functions:
        return model
    try:
        return inliner.inline_local_functions(model)
    except Exception:
        return model


def attribute(node, name, default=None):
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def typed(name, a):
    return info(name, type_number(a), a.shape)


def step(model, body, given):
    """All values of a subgraph that runs once; `given`: its own inputs and outer values. None: the engine cannot run it."""
    made = {t.name for t in body.initializer} | {o for n in body.node for o in n.output}
    needed = {n for x in body.node for n in free_names(x)} | {o.name for o in body.output}
    feeds = {n: a for n, a in given.items() if n in needed and n not in made}
    if not all(isinstance(a, np.ndarray) for a in feeds.values()):
        return None
    alone = onnx.ModelProto()
    alone.CopyFrom(model)
    graph = alone.graph
    graph.CopyFrom(helper.make_graph([], "step", [typed(n, a) for n, a in feeds.items()], []))
    graph.node.extend(body.node)
    graph.initializer.extend(body.initializer)
    for name in {o.name for o in body.output} - made:  # returned unchanged
        graph.node.append(helper.make_node("Identity", [name], [name + "_handed"]))
    graph.output.extend(helper.make_empty_tensor_value_info(o) for n in graph.node for o in n.output if o)
    try:
        values = run_model(alone, feeds)
    except Exception:
        return None
    return {**{t.name: numpy_helper.to_array(t) for t in body.initializer}, **feeds, **values}


def branch(model, node, values):
    """The branch of an If that runs."""
    body = attribute(node, "then_branch" if np.asarray(values[node.input[0]]).ravel()[0] else "else_branch")
    found = step(model, body, values)
    return [(body, {**values, **found})] if found else []


def loop(model, node, values):
    """Every iteration of a Loop."""
    body, out = attribute(node, "body"), []
    most = int(values[node.input[0]].ravel()[0]) if node.input[0] else MOST_STEPS
    goes = bool(values[node.input[1]].ravel()[0]) if node.input[1] else True
    state = [values.get(n) for n in node.input[2:]]
    for k in range(min(most, MOST_STEPS)):
        own = dict(zip([i.name for i in body.input], [np.array(k, "i8"), np.array(goes)] + state))
        found = step(model, body, {**values, **own}) if goes else None
        if found is None:
            break
        found = {**values, **own, **found}
        out.append((body, found))
        goes, state = bool(found[body.output[0].name]), [found[o.name] for o in body.output[1:1 + len(state)]]
    return out


def scan(model, node, values):
    """Every iteration of a Scan (opset 9 and later)."""
    body, out, n = attribute(node, "body"), [], attribute(node, "num_scan_inputs")
    carried = len(node.input) - n
    axes = attribute(node, "scan_input_axes", [0] * n)
    backwards = attribute(node, "scan_input_directions", [0] * n)
    state, read = [values[i] for i in node.input[:carried]], [values[i] for i in node.input[carried:]]
    steps = read[0].shape[axes[0]]
    for k in range(min(steps, MOST_STEPS)):
        rows = [np.take(a, steps - 1 - k if back else k, axis) for a, axis, back in zip(read, axes, backwards)]
        own = dict(zip([i.name for i in body.input], state + rows))
        found = step(model, body, {**values, **own})
        if found is None:
            break
        found = {**values, **own, **found}
        out.append((body, found))
        state = [found[o.name] for o in body.output[:carried]]
    return out


WAYS = {"If": branch, "Loop": loop, "Scan": scan}


def steps(model, node, values):
    """[(subgraph, its values and outer ones)] of every iteration of the node's subgraphs; empty if they are unknown."""
    try:
        return WAYS[node.op_type](model, node, values) if node.op_type in WAYS else []
    except (KeyError, AttributeError, IndexError, TypeError, ValueError):
        return []


def marked(model, nodes, values, is_odd):
    """Values, in the order of the nodes, that follow from the outputs which is_odd(node, values) returns. If a value in a subgraph is
    marked, so are all outputs of its node."""
    reached = set()
    for node in nodes:
        reached |= set(is_odd(node, values))
        if reached & set(free_names(node)):
            reached |= set(node.output)
        for body, inner in steps(model, node, values):
            inside = marked(model, body.node, inner, is_odd)
            if inside & {o.name for o in body.output}:
                reached |= set(node.output)
                break
    return reached
