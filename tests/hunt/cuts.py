# SPDX-License-Identifier: Apache-2.0
"""Shardings of a model: chosen by the program (`--random`), drawn here ("hand"), or planned. A sharding ("cut") is a dictionary for JSON:

    devices, kind ("random", "hand", "plan"), seed, memory, stages     how it is made; "forced": `verify MODEL --devices N` makes it
    scarce, shared: "hand": how often a value has more shards than elements; how often shards are on groups that share devices
    edits: [[first output of the node, value or null, sharding text or stage]]   after it was made: these alone repeat it
    metadata: {key: text}     additional results of a plan
    infer: null, "infer" or "propagate";  transport;  level (ONNX Runtime's optimization)
    keep: share of the inputs and outputs that stay sharded, from 0 to 1
    oracle: "verify": `tessera verify` compares with its own unsharded run; default: Python's ONNX Runtime
"""
import random

import numpy as np

import api

TRANSPORTS = ["threads"] * 12 + ["shm"]
METADATA = ("ai.tessera.delay", "ai.tessera.keep_cut", "ai.tessera.state")


# ---- texts of shardings ----------------------------------------------------------------------------------

def text_of(words, rank):
    """A spec in the compact notation, from its raw fields. The notation numbers shards in the order of the dimensions. If the spec lists
    its axes in another order, its owners are reordered."""
    dims, owners = words
    dims = [(axis + rank if axis < 0 else axis, factors) for axis, factors in dims]
    counts = [n for _, factors in dims for _, n in factors]
    if dims and len(owners) == int(np.prod(counts)):
        numbers = np.arange(len(owners)).reshape(counts)
        places = [(axis, k) for axis, factors in dims for k in range(len(factors))]
        order = numbers.transpose([places.index(p) for p in sorted(places)]).ravel()
        owners = [owners[k] for k in order]
    parts = ["1"] * max(1, rank)
    for axis, factors in dims:
        parts[axis] = str(factors[0][1])
        if len(factors) > 1:
            parts[axis] = "*".join("%s/%d" % (size, n) if n > 1 else str(size) for size, n in factors)
    listed = ["%d" % o[0] if len(o) == 1 else "(%s)" % ",".join(map(str, o)) for o in owners]
    return "{%s:%s}" % (",".join(parts), ",".join(listed))


def draw_shares(rng, rank, order, sizes):
    """Unequal parts: adjacent shards on one device, as {6,1:2,2,2,0,1,1}; sometimes one device has two such runs. None: too few
    elements."""
    runs = [(device, rng.choice([1, 1, 2, 3, 4])) for device in order[:rng.randint(min(2, len(order)), len(order))]]
    if rng.random() < 0.1:
        runs.append((runs[0][0], rng.choice([1, 2])))
    axis, listed = rng.randrange(rank), [device for device, count in runs for _ in range(count)]
    if len(listed) > sizes[axis]:
        return None
    return "{%s:%s}" % (",".join(str(len(listed)) if k == axis else "1" for k in range(rank)), ",".join(map(str, listed)))


def share_devices(rng, groups, devices):
    """Groups that overlap: a device may hold several shards."""
    return [sorted(set(group) | {rng.randrange(devices) for _ in range(rng.choice([0, 1, 1, 2]))}) for group in groups]


def draw_sharding(rng, shape, devices, sizes, fixed, scarcity=0.04, shared=0):
    """A random sharding of a value; sizes: the smallest of each dimension in any run; fixed: they are the same in all runs."""
    order = list(range(devices))
    rng.shuffle(order)
    rank = len(shape)
    if rng.random() < 0.12 or not rank:
        held = sorted(order[:rng.randint(1, devices)])
        return "{%s:%s}" % (",".join(["1"] * max(1, rank)), ",".join(map(str, held)))
    shares = draw_shares(rng, rank, order, sizes) if rng.random() < 0.12 else None
    if shares:
        return shares
    parts, shards = ["1"] * rank, 1
    scarce = rng.random() < scarcity  # more parts than elements: some are empty
    for axis in rng.sample(range(rank), rng.choice([1, 1, 2]) if rank > 1 else 1):
        most = devices // shards if scarce else min(sizes[axis], devices // shards)
        if most < 2:
            continue
        n = rng.randint(2, most)
        shards *= n
        parts[axis] = str(n)
        units = [u for u in (2, 3, 4) if fixed and shape[axis] % u == 0]
        if units and rng.random() < 0.25:
            unit = rng.choice(units)
            outer = shape[axis] // unit
            if n == 4 and outer > 1 and rng.random() < 0.6:
                parts[axis] = "%d/2*%d/2" % (outer, unit)
            elif n <= outer and rng.random() < 0.6:
                parts[axis] = "%d/%d*%d" % (outer, n, unit)
            elif n <= unit:
                parts[axis] = "%d*%d/%d" % (outer, unit, n)
    several = rng.choice([2, 2, 3]) if rng.random() < 0.04 else 1  # shards per device
    groups = [[order[k // several]] for k in range(shards)]
    if rng.random() < 0.4 and several == 1:  # the other devices hold replicas
        for k, device in enumerate(order[shards:]):
            groups[k % shards if rng.random() < 0.8 else rng.randrange(shards)].append(device)
    if rng.random() < 0.6:
        groups.sort()
    if shared and rng.random() < shared:
        groups = share_devices(rng, groups, devices)
    listed = ["%d" % g[0] if len(g) == 1 else "(%s)" % ",".join(map(str, sorted(g))) for g in groups]
    return "{%s:%s}" % (",".join(parts), ",".join(listed))


# ---- drawing and applying --------------------------------------------------------------------------------------

def draw(rng, mpi, change=lambda rng, cut: None):
    """Draw a sharding; `apply` adds it to a model. change: the focus of the hunt."""
    kind = rng.choice(["random", "random", "hand", "hand", "plan"])
    cut = dict(kind=kind, devices=rng.choice([2, 2, 3, 3, 4, 4, 5, 6, 8]), seed=rng.randrange(1 << 30), level=rng.choice([0, 0, 1, 2, 3]),
               transport=rng.choice(TRANSPORTS + ["mpi"] * mpi), infer=rng.choice([None] * 6 + ["infer", "propagate"]))
    if kind == "plan":
        cut.update(devices=rng.choice([2, 3, 4, 4, 8]), memory=rng.choice([0, 0, 0, 20000, 4000]), stages=rng.choice([0, 0, 0, 2, -1]))
    if kind == "hand":
        cut["stages"] = rng.choice([0, 0, 0, 0, 2, 3])
    cut["keep"] = rng.choice([0] * 9 + [0.3, 1])
    if rng.random() < 0.25 and cut["transport"] == "threads":  # the unsharded run is that of `verify`
        cut.update(oracle="verify", keep=0)
    change(rng, cut)
    return cut


def keep_cut(case, model, cut):
    """Write into the model which of its inputs and outputs stay sharded."""
    rng = random.Random(cut["seed"] + 1)
    names = list(case.sets[0]) + [v.name for v in case.model.graph.output]  # not of constants that are inputs too
    kept = [n for n in names if rng.random() < cut.get("keep", 0)]
    if kept:
        model.lib.model_set_metadata(model.handle, b"ai.tessera.keep_cut", "\n".join(kept).encode())


def least_sizes(case, name):
    """The smallest sizes of a value in all runs, as far as they are known."""
    shape = case.shapes.get(name)
    return shape and [min(d, case.least.get(d, d)) for d in shape]


def by_hand(case, model, cut):
    """Random shardings of values at their nodes, and stages in the order of the nodes."""
    rng = random.Random(cut["seed"])
    density, edits, nodes = rng.choice([0.15, 0.4, 0.8]), [], model.nodes()
    stages = sorted(rng.choices(range(cut["stages"]), k=len(nodes))) if cut["stages"] else None
    for k, (node, values) in enumerate(nodes):
        first = api.first_output(model.lib, node)
        inside = bool(model.lib.graph_owner(model.lib.node_graph(node)))
        if stages and not inside:
            edits.append([first, None, stages[k]])
            continue
        for v in values:
            shape = case.shapes.get(v)
            if shape is not None and rng.random() < density * 0.6:
                edits.append([
                    first, v,
                    draw_sharding(rng, shape, cut["devices"], least_sizes(case, v), not case.sizes[0], cut.get("scarce", 0.04),
                                  cut.get("shared", 0))
                ])
    return edits


def put(model, edits):
    """Apply edits to a model with a configuration; returns those that the program rejected."""
    nodes = {api.first_output(model.lib, node): (node, values) for node, values in model.nodes()}
    refused = []
    for first, value, what in edits:
        if first not in nodes or value is not None and value not in nodes[first][1]:
            continue
        node, values = nodes[first]
        if value is None:
            status = model.lib.node_set_stage(node, model.config, what)
        else:
            status = model.lib.node_shard_text(node, values[value], model.config, what.encode())
        if status != api.OK:
            refused.append(([first, value, what], [f[:2] for f in model.session.findings()]))
            model.lib.finding_clear(model.session.handle)
    return refused


def settle(session, path, cut, edits):
    """A model with as many of the edits as `check` accepts: edits with errors are dropped, value by value."""
    for _ in range(12):
        model = session.load(path)
        model.add_config("c", cut["devices"])
        put(model, edits)
        errors = model.check()
        if not errors:
            return model, edits
        values, before = {f[4] for f in errors if f[4]}, len(edits)
        edits = [e for e in edits if e[1] not in values]
        if len(edits) == before:
            edits = edits[:before // 2]
    return model, edits


def apply(session, path, case, cut):
    """The annotated model; cut["edits"] then repeats it. None: nothing fits (reported by the planner)."""
    if cut["kind"] == "forced":
        return session.load(path)
    if cut.get("edits") is not None:
        model = session.load(path)
        model.add_config("c", cut["devices"])
        for key, text in cut.get("metadata", {}).items():
            model.lib.model_set_metadata(model.handle, key.encode(), text.encode())
        put(model, cut["edits"])
    elif cut["kind"] == "hand":
        probe = session.load(path)
        model, cut["edits"] = settle(session, path, cut, by_hand(case, probe, cut))
    elif cut["kind"] == "random":
        model = session.load(path)
        model.add_config("c", cut["devices"])
        names = {d.dim_param for v in case.model.graph.input for d in v.type.tensor_type.shape.dim}  # removed inputs had other names
        model.shard_random(cut["seed"], {k: v for k, v in case.least_symbols.items() if k in names})
    else:
        model = session.load(path)
        try:
            model.plan(cut["devices"], case.sets[0], cut["memory"], cut["stages"])
        except api.Failed as why:
            too_few_nodes = cut["stages"] > 1 and any(f[0] == "plan-stages" for f in why.findings)
            if why.status == api.INFEASIBLE or too_few_nodes:
                return None
            raise
    if cut["infer"]:
        model.infer(cut["infer"] == "propagate")
    if "metadata" not in cut:
        keep_cut(case, model, cut)
    return model


def remember(case, model, cut):
    """Fill in the edits and metadata of a random or planned sharding, so that they can be reduced."""
    edits = []
    for first, value, what in model.annotations():
        if value is None:
            edits.append([first, None, what])
            continue
        shape = case.shapes.get(value)
        if shape is None:  # a sequence: only the given axes are known
            shape = [0] * (1 + max([axis for axis, _ in what[0]], default=0))
        edits.append([first, value, text_of(what, len(shape))])
    if cut["kind"] == "forced":
        return
    cut["edits"], cut["infer"] = edits, None
    texts = {k: model.lib.model_metadata(model.handle, k.encode()) for k in METADATA}
    cut["metadata"] = {k: t.decode() for k, t in texts.items() if t}
