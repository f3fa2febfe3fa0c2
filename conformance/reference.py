# SPDX-License-Identifier: Apache-2.0
"""A small reference of ONNX's multi-device fields, written from the published documents. It uses no implementation.

It favours clarity over speed: a layout lists the devices of every shard, and rules are checked shard by shard. Use it
for tensors of a few hundred elements.

    layout_of(spec, shape)       shards of one ShardingSpecProto
    broken_rules(model)          structural rules (schema, proposal, guide) that a model breaks
    propagate(model, ...)        the formalism: rules that nodes break, and the shardings that must be inferred
"""
import itertools
from math import prod

import onnx

# The lists of the formalism. Names outside of ONNX are corrected; comments name what the lists have wrong.
UNARY = set("""Abs Acos Acosh Asin Asinh Atan Atanh Cast Ceil Cos Cosh Dropout Erf Exp Floor Identity IsInf IsNaN Log Neg Not
Reciprocal Round Sigmoid Sign Sin Sinh Tan Tanh""".split())
UNARY_BY_LIST = {"Max", "Min"}  # listed as unary; with several inputs they broadcast
NARY = set("Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Equal Greater Less Mod Mul Or Pow Sub Sum Where Xor".split())
BY_CLASS = {"BitwiseNot": UNARY, "Relu": UNARY, "Sqrt": UNARY, "Div": NARY}  # not listed, or listed in the wrong class
REDUCE = {"Reduce" + name for name in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()}
MATMUL = {"MatMul": (0, 1), "Gemm": (0, 1), "MatMulInteger": (0, 1), "QLinearMatMul": (0, 3)}  # inputs that are factors


# ---- layouts ------------------------------------------------------------------------------------

def meet(*sets):
    """Intersection of device sets; None is a set that no document fixes (any device)."""
    known = [s for s in sets if s is not None]
    return frozenset.intersection(*known) if known else None


def join(sets):
    sets = list(sets)
    return None if None in sets else frozenset().union(*sets)


class Layout:
    """A sharded tensor: `blocks[axis][index]` is the block of an index, `owners[block of each axis]` its set of devices."""

    def __init__(self, blocks, owners):
        self.blocks, self.owners = blocks, owners

    @property
    def shape(self):
        return [len(axis) for axis in self.blocks]

    def is_split(self, axis):
        return len(set(self.blocks[axis])) > 1

    def shards(self):
        """[{"devices": [...] or None, "boxes": [[start, stop], ...]}], in the order of the first element of each shard."""
        found = []
        for coordinate in itertools.product(*(dict.fromkeys(axis) for axis in self.blocks)):
            runs = [_runs([i for i, b in enumerate(axis) if b == at]) for axis, at in zip(self.blocks, coordinate)]
            boxes = [[[r[0] for r in box], [r[1] for r in box]] for box in itertools.product(*runs)]
            owners = self.owners[coordinate]
            found.append({"devices": None if owners is None else sorted(owners), "boxes": boxes})
        return found


def _runs(indices):
    """[0, 1, 4, 5] -> [(0, 2), (4, 6)]"""
    runs = []
    for i in indices:
        if runs and runs[-1][1] == i:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    return runs


def unsharded(shape, devices=None):
    return Layout([[0] * size for size in shape], {(0,) * len(shape): devices})


def groups_of(spec):
    return {entry.key: frozenset(entry.value) for entry in spec.index_to_device_group_map}


def layout_of(spec, shape):
    """The layout of a valid ShardingSpecProto.

    Proposal, "Sharding as a Split": nested loops over sharded_dim in list order; shard k belongs to entry k of `device`.
    Sizes that are not divisible: shard j of n has floor(j D / n) to floor((j + 1) D / n). Documents leave that open."""
    loops = []  # (axis, stride, size, shards) of each simple_sharding in list order
    for dim in spec.sharded_dim:
        axis = dim.axis % len(shape)
        sizes = factor_sizes(dim, shape[axis])
        for k, simple in enumerate(dim.simple_sharding):
            loops.append((axis, prod(sizes[k + 1:]), sizes[k], simple.num_shards))
    blocks, names = [], []
    for axis, size in enumerate(shape):
        parts = [[_part((i // stride) % length, length, n) for a, stride, length, n in loops if a == axis] for i in range(size)]
        seen = {}
        blocks.append([seen.setdefault(tuple(p), len(seen)) for p in parts])
        names.append({number: part for part, number in seen.items()})
    groups, owners = groups_of(spec), {}
    sets = [groups.get(d, frozenset([d])) for d in spec.device]
    for coordinate in itertools.product(*(range(len(n)) for n in names)):
        digits = {axis: list(names[axis][block]) for axis, block in enumerate(coordinate)}
        number = 0
        for axis, _, _, n in loops:
            number = number * n + digits[axis].pop(0)
        if not sets:
            owners[coordinate] = None
        else:
            owners[coordinate] = join(sets) if not loops else sets[number]
    return Layout(blocks, owners)


def _part(index, size, n):
    return next(j for j in range(n) if j * size // n <= index < (j + 1) * size // n)


def factor_sizes(dim, size):
    """Sizes of the factors of an axis; one of them may be left out. Several factors: the axis was fused by a reshape."""
    given = [s.dim_value if s.HasField("dim_value") else 0 for s in dim.simple_sharding]
    if len(given) == 1:
        return [size]
    rest = prod(g for g in given if g)
    return [g or size // rest for g in given]


def is_even(spec, shape):
    return all(length % simple.num_shards == 0 for dim in spec.sharded_dim
               for simple, length in zip(dim.simple_sharding, factor_sizes(dim, shape[dim.axis % len(shape)])))


# ---- structural rules ---------------------------------------------------------------------------

def graphs_of(model):
    """(nodes, {value: rank}) of the graph, its subgraphs and the functions."""
    def walk(graph, outer):
        ranks = dict(outer)
        for value in [*graph.input, *graph.output, *graph.value_info]:
            if value.type.tensor_type.HasField("shape"):
                ranks[value.name] = [d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim]
        ranks.update({t.name: list(t.dims) for t in graph.initializer})
        yield graph.node, ranks
        for node in graph.node:
            for attribute in node.attribute:
                for inner in [attribute.g] * attribute.HasField("g") + list(attribute.graphs):
                    yield from walk(inner, ranks)
    yield from walk(model.graph, {})
    for function in model.functions:
        yield function.node, {}


def broken_rules(model):
    """Ids of rules.json that the annotations break, with their place: [(rule, node, value)]."""
    found, devices = [], {}
    for config in model.configuration:
        if not config.name:
            found.append(("config-name", None, None))
        elif config.name in devices:
            found.append(("config-unique", None, None))
        if config.num_devices < 1:
            found.append(("config-devices", None, None))
        if config.device and len(config.device) != config.num_devices:
            found.append(("config-device-names", None, None))
        devices.setdefault(config.name, config.num_devices)
    for nodes, shapes in graphs_of(model):
        for node in nodes:
            ids = [entry.configuration_id for entry in node.device_configurations]
            found += [("entry-unique", node.name, None)] * (len(set(ids)) < len(ids))
            for entry in node.device_configurations:
                if entry.configuration_id not in devices or not entry.configuration_id:
                    found.append(("entry-config", node.name, None))
                    continue
                names = [s.tensor_name for s in entry.sharding_spec]
                found += [("spec-unique", node.name, None)] * (len(set(names)) < len(names))
                for spec in entry.sharding_spec:
                    found += [(rule, node.name, spec.tensor_name) for rule in
                              _spec_rules(spec, node, shapes.get(spec.tensor_name), devices[entry.configuration_id])]
    return found


def _spec_rules(spec, node, shape, n_devices):
    if not spec.tensor_name or spec.tensor_name not in [*node.input, *node.output]:
        return ["spec-tensor"]
    found, axes = [], []
    for dim in spec.sharded_dim:
        known = shape is not None
        if known and not -len(shape) <= dim.axis < len(shape):
            found.append("axis-range")
            continue
        axes.append(dim.axis % len(shape) if known and shape else dim.axis)
        found += _dim_rules(dim, shape[dim.axis] if known else None)
    found += ["axis-once"] * (len(set(axes)) < len(axes))
    keys = [entry.key for entry in spec.index_to_device_group_map]
    groups = groups_of(spec)
    found += ["group-unique"] * (len(set(keys)) < len(keys))
    found += ["group-empty"] * any(not groups[d] for d in spec.device if d in groups)
    members = [m for d in spec.device for m in groups.get(d, [d])]
    found += ["device-range"] * any(not 0 <= m < n_devices for m in members)
    shards = prod(s.num_shards for dim in spec.sharded_dim for s in dim.simple_sharding)
    if not found and spec.device and spec.sharded_dim and len(spec.device) != shards:
        found.append("device-count")
    return found


def _dim_rules(dim, size):
    if any(not s.HasField("num_shards") for s in dim.simple_sharding):
        return ["shards-present"]
    if any(s.num_shards < 1 for s in dim.simple_sharding):
        return ["shards-positive"]
    given = [s.dim_value for s in dim.simple_sharding if s.HasField("dim_value")]
    if size is None or not given:
        return []
    if len(dim.simple_sharding) == 1:
        return ["dim-size"] * (given[0] != size)
    complete = len(given) == len(dim.simple_sharding)
    return ["dim-product"] * (prod(given) != size if complete else size % prod(given) != 0)


# ---- the formalism ------------------------------------------------------------------------------

class Broken(Exception):
    """A node breaks a rule of the formalism."""


class Silent(Exception):
    """No document defines the inference for this node."""


def compose(layouts, rules=("nary-identical", "nary-identical", "nary-replicated", "nary-compose")):
    """The output layout of broadcasting inputs, by "Broadcast n-ary elementwise ops".

    `rules`: what is broken by different splits, and by an empty intersection if no, one or several broadcast axes are split."""
    rank = max(len(l.shape) for l in layouts)
    padded = [([[0]] * (rank - len(l.shape)) + l.blocks, l) for l in layouts]
    blocks, broadcast_splits = [], 0
    for axis in range(rank):
        wide = [b[axis] for b, _ in padded if len(b[axis]) > 1]
        if any(w != wide[0] for w in wide):
            raise Broken(rules[0])
        blocks.append(wide[0] if wide else [0])
        narrow = [b for b, _ in padded if len(b[axis]) == 1]
        broadcast_splits += bool(wide and narrow and len(set(wide[0])) > 1)
    owners = {}
    for coordinate in itertools.product(*(dict.fromkeys(axis) for axis in blocks)):
        sets = []
        for b, layout in padded:
            own = [0 if len(b[axis]) == 1 else at for axis, at in enumerate(coordinate)]
            sets.append(layout.owners[tuple(own[rank - len(layout.shape):])])
        owners[coordinate] = meet(*sets)
        if owners[coordinate] is not None and not owners[coordinate]:
            raise Broken(rules[1 + min(broadcast_splits, 2)])
    return Layout(blocks, owners)


def reduce(layout, axes, keepdims):
    """Reduction: kept axes inherit; the result goes to all devices that take part in the particular reduction."""
    kept = [axis for axis in range(len(layout.shape)) if axis not in axes]
    blocks = [[0] if axis in axes else layout.blocks[axis] for axis in range(len(layout.shape)) if keepdims or axis not in axes]
    owners = {}
    for coordinate in itertools.product(*(dict.fromkeys(layout.blocks[axis]) for axis in kept)):
        at = dict(zip(kept, coordinate))
        union = join(o for c, o in layout.owners.items() if all(c[axis] == b for axis, b in at.items()))
        owners[tuple(at.get(axis, 0) for axis in range(len(layout.shape)) if keepdims or axis in at)] = union
    return Layout(blocks, owners)


def turned(layout, perm):
    return Layout([layout.blocks[p] for p in perm], {tuple(c[p] for p in perm): o for c, o in layout.owners.items()})


def with_axis(layout, axis):
    """Inserts an axis of size 1."""
    blocks = [*layout.blocks[:axis], [0], *layout.blocks[axis:]]
    return Layout(blocks, {(*c[:axis], 0, *c[axis:]): o for c, o in layout.owners.items()})


def product(a, b):
    """MatMul-like ops: [.., M, K, 1] times [.., 1, K, N], then a sum over K."""
    one_a, one_b = len(a.shape) == 1, len(b.shape) == 1
    a = with_axis(a, 0) if one_a else a
    b = with_axis(b, 1) if one_b else b
    rules = ("nary-identical", "matmul-reduction-axes" if a.is_split(-1) else "matmul-devices", "matmul-devices", "matmul-devices")
    if a.blocks[-1] != b.blocks[-2]:
        raise Broken("matmul-reduction-axes")
    a, b = with_axis(a, len(a.shape)), with_axis(b, len(b.shape) - 2)
    out = compose([a, b], rules)
    out = reduce(out, [len(out.shape) - 2], False)
    drop = [len(out.shape) - 2] * one_a + [len(out.shape) - 1] * one_b
    return reduce(out, drop, False)


def einsum(equation, layouts):
    """Special cases of Einsum: every letter once per operand."""
    left, result = equation.replace(" ", "").split("->")
    terms = left.split(",")
    letters = "".join(dict.fromkeys(result + "".join(terms)))
    wide = []
    for term, layout in zip(terms, layouts):
        layout = turned(layout, sorted(range(len(term)), key=lambda k: letters.index(term[k])))
        for axis, letter in enumerate(letters):
            layout = layout if letter in term else with_axis(layout, axis)
        wide.append(layout)
    out = compose(wide, ("matmul-reduction-axes", "matmul-devices", "matmul-devices", "matmul-devices"))
    return reduce(out, [letters.index(c) for c in letters if c not in result], False)


def attributes(node):
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def output_layouts(node, layouts, constants):
    """Inferred layouts of the outputs. `layouts` has one entry per input, None for an absent one."""
    kind, given = node.op_type, attributes(node)
    family = BY_CLASS.get(kind)
    present = [l for l in layouts if l]
    if kind in UNARY or family is UNARY or (kind in UNARY_BY_LIST and len(present) == 1):
        return [present[0]] * len(node.output)
    if kind in NARY or family is NARY:
        return [compose(present)]
    if kind in REDUCE:
        axes = given.get("axes") or (list(constants[node.input[1]]) if len(node.input) > 1 and node.input[1] else None)
        rank = len(layouts[0].shape)
        axes = [int(a) % rank for a in axes] if axes is not None else list(range(rank))
        return [reduce(layouts[0], axes, given.get("keepdims", 1))]
    if kind in MATMUL:
        a, b = (layouts[k] for k in MATMUL[kind])
        if kind == "Gemm":
            a = turned(a, [1, 0]) if given.get("transA") else a
            b = turned(b, [1, 0]) if given.get("transB") else b
        out = product(a, b)
        if kind == "Gemm" and len(layouts) > 2 and layouts[2]:
            out = compose([out, layouts[2]])
        return [out]
    if kind == "Einsum":
        return [einsum(given["equation"].decode(), layouts)]
    raise Silent(kind)


def propagate(model, configuration, shapes, constants):
    """Applies the formalism to the main graph of a structurally valid model, in node order.

    Returns (broken [(rule, node)], silent [node], {node: {value: (Layout, is explicit, is even)}}). An input without a
    sharding has the one of its producer; model inputs and initializers are unsharded, on devices that no document fixes."""
    made, known, broken, silent, unknown = {}, {}, [], [], set()
    for node in model.graph.node:
        entries = [e for e in node.device_configurations if e.configuration_id == configuration]
        specs = {s.tensor_name: s for e in entries for s in e.sharding_spec}
        here = known[node.name] = {}
        for name in [*node.input, *node.output]:
            if name in specs and shapes.get(name) is not None:
                here[name] = (layout_of(specs[name], shapes[name]), True, is_even(specs[name], shapes[name]))
            elif name and name in node.input and name not in unknown and shapes.get(name) is not None:
                layout, _, even = made.get(name) or (unsharded(shapes[name]), False, True)
                here[name] = (layout, False, even)
        even = all(e for _, _, e in here.values())
        try:
            if any(name and name not in here for name in node.input):
                raise Silent(node.op_type)
            outputs = output_layouts(node, [here[n][0] if n in here else None for n in node.input], constants)
            for name, layout in zip(node.output, outputs):
                here.setdefault(name, (layout, False, even))
        except Broken as rule:
            broken.append((str(rule), node.name))
        except Silent:
            silent.append(node.name)
        for name in node.output:
            if name in here:
                made[name] = here[name]
            else:
                unknown.add(name)
    return broken, silent, known
