#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replaces the collectives of a static partition by those of another engine.

usage: convert_collectives.py PARTS microsoft|tensorrt OUT      (PARTS: written by `tessera partition --static`)

microsoft: AllReduce, AllGather and AllToAll of ONNX Runtime's NCCL build. They have no groups: every rank must take part.
tensorrt: DistCollective, which has groups. It divides and joins tensors along axis 0 only, so other axes are moved by Split and Concat.
What cannot be converted is refused with the operator, its id and the reason. docs/one_file_per_accelerator.md describes the operators."""
import os
import shutil
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

REFUSED = ("Send", "Recv", "HaloExchange")
SUMS = ("AllReduce", "ReduceScatter", "Reduce", "Broadcast")  # converted to com.microsoft's AllReduce
TOKEN = "ai.tessera.token"  # begins the names of tokens
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
MICROSOFT_TYPES = ((*FLOATS, TensorProto.INT64, TensorProto.BOOL), FLOATS)


class Refused(Exception):
    pass


def ends(cuts):
    """Where the parts of a factor end: equal parts, or for a negative number the positions of its set bits."""
    return list(range(cuts + 1)) if cuts > 0 else [0] + [e for e in range(1, 63) if -cuts >> e & 1]


def layout_indices(numbers, rank, shape):
    """The indices that a rank owns along each dimension in a layout of docs/formats.md; None: it owns nothing."""
    it = iter(numbers)
    factors = [[(next(it), next(it)) for _ in range(next(it))] for _ in range(next(it))]
    loops = [(next(it), next(it)) for _ in range(next(it))]
    owners = [[next(it) for _ in range(next(it))] for _ in range(next(it))]
    counts = [len(ends(factors[d][f][1])) - 1 for d, f in loops]
    mine = [k for k, o in enumerate(owners) if rank in o]
    if not mine:
        return None
    at, found = dict(zip(loops, np.unravel_index(mine[0], counts) if counts else ())), []
    for d, size in enumerate(shape):
        known = int(np.prod([s or 1 for s, _ in factors[d]], dtype=int))
        if size % known or len(mine) > 1:
            raise Refused("its layout has a short unit, or several shards on a rank")
        index = np.zeros(1, np.int64)
        for f, (s, cuts) in enumerate(factors[d] or [(0, 1)]):  # an axis made of factors, such as heads and their elements
            s, e, j = s or size // known, ends(cuts), at.get((d, f), 0)
            index = (index[:, None] * s + np.arange(s * e[j] // e[-1], s * e[j + 1] // e[-1]) if (d, f) in at else
                     index[:, None] * s + np.arange(s)).ravel()
        found.append(index)
    return found


class Rank:
    """One rank file that is being converted. `shapes` and `types` are those of the file's values."""

    def __init__(self, path, rank, ranks, engine):
        self.model, self.rank, self.ranks, self.engine = onnx.load(path, load_external_data=False), rank, ranks, engine
        graph = self.model.graph
        values = {v.name: v.type.tensor_type for v in [*graph.value_info, *graph.input, *graph.output]}
        self.types = {k: t.elem_type for k, t in values.items()} | {t.name: t.data_type for t in graph.initializer}
        fixed = {k: t.shape.dim for k, t in values.items() if all(d.HasField("dim_value") for d in t.shape.dim)}
        self.shapes = {k: [d.dim_value for d in dims] for k, dims in fixed.items()}
        self.shapes |= {t.name: list(t.dims) for t in graph.initializer}
        self.constants = {t.name: t for t in graph.initializer}
        self.constants |= {n.output[0]: n.attribute[0].t for n in graph.node if [a.name for a in n.attribute] == ["value"]}
        self.nodes, self.made = [], 0
        self.last, self.before = None, {}  # the last collective; by value, the collectives that it depends on

    def add(self, op, inputs, domain="", outputs=1, to=None, **attributes):
        names = [to] if to else ["converted.%d" % (self.made + i) for i in range(outputs)]
        self.made += outputs
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attributes))
        return names if outputs > 1 else names[0]

    def constant(self, array):
        return self.add("Constant", [], value=numpy_helper.from_array(np.asarray(array)))

    def collective(self, op, x, group, reduce="NONE", root=-1):
        """A collective that divides or joins along axis 0."""
        n = len(group)
        if self.engine == "tensorrt":
            return self.add("DistCollective", [x], collective_operation=op, reduce_op=reduce, root=root, nb_rank=n, groups=group,
                            group_size=n)
        if op == "ALL_REDUCE":
            return self.add("AllReduce", [x], "com.microsoft")
        return self.add({"ALL_GATHER": "AllGather", "ALL_TO_ALL": "AllToAll"}[op], [x], "com.microsoft", group_size=n,
                        **({"axis": 0} if op == "ALL_GATHER" else {}))

    def moved(self, x, n, split_axis, axis):
        """Divides x into n parts along split_axis and joins them along axis."""
        if n == 1 or split_axis == axis:
            return x
        return self.add("Concat", self.add("Split", [x], outputs=n, axis=split_axis, num_outputs=n), axis=axis)


def gathered(r, x, group, axis):
    return r.moved(r.collective("ALL_GATHER", x, group), len(group), 0, axis)


def my_part(r, group, size, a):
    """Begin and end of this rank's part of an axis, and whether all parts are equal."""
    if a.get("part"):
        raise Refused("it divides a part of an axis")
    shares, units, j = a.get("shares") or [1] * len(group), -(-size // a["unit"]), group.index(r.rank)
    ends = [min(sum(shares[:k]) * units // sum(shares) * a["unit"], size) for k in range(len(group) + 1)]
    return ends[j], ends[j + 1], len(set(np.diff(ends))) == 1


def numbered(shapes):
    """The positions of all elements of the pieces in the result of `picked`'s collective, and the length of a piece there."""
    longest = max(np.prod(s, dtype=int) for s in shapes)
    return [np.arange(np.prod(s, dtype=int)).reshape(s) + k * longest for k, s in enumerate(shapes)], longest


def picked(r, x, group, shapes, index):
    """Gathers the elements of all ranks, filled up to equal numbers, and takes those at `index`. Moves more than is needed."""
    missing = numbered(shapes)[1] - np.prod(shapes[group.index(r.rank)], dtype=int)
    flat = r.add("Reshape", [x, r.constant(np.array([-1]))])
    if missing:
        flat = r.add("Concat", [flat, r.add("CastLike", [r.constant(np.zeros(missing, np.float32)), flat])], axis=0)
    return r.add("Gather", [r.collective("ALL_GATHER", flat, group), r.constant(index)], axis=0)


def reshard(r, x, shape, a, group, shapes):
    """A rank that owns nothing in the target layout gets anything: it does not use the result."""
    full, wanted = np.zeros(shape, np.int64), layout_indices(a["target"], r.rank, shape)
    pieces = numbered(shapes)[0]
    for rank, piece in zip(group, pieces):
        owned = layout_indices(a["source"], rank, shape)
        if owned is not None:
            full[np.ix_(*owned)] = piece
    for axis in range(len(shape) if all(s == shapes[0] for s in shapes) else 0):  # the full tensor by a plain AllGather
        if np.array_equal(np.concatenate(pieces, axis), full):
            y = gathered(r, x, group, axis)
            for d, index in enumerate(wanted or []):
                if len(index) < shape[d]:
                    y = r.add("Gather", [y, r.constant(index)], axis=d)
            return y
    return picked(r, x, group, shapes, full[np.ix_(*wanted)] if wanted else np.zeros(1, np.int64))


def convert_node(r, node, peers):
    """Adds the nodes for one collective. peers: by rank of the group, the shape of its input. Returns the result's name."""
    a = {x.name: helper.get_attribute_value(x) for x in node.attribute}
    op, group, x = node.op_type.removesuffix("F16"), list(a["group"]), node.input[0]
    reduce, shapes, trt = a.get("reduce", b"").decode().upper(), [peers[rank] for rank in group], r.engine == "tensorrt"
    if op in REFUSED:
        raise Refused("the engine has no such operator")
    if not trt and group != list(range(r.ranks)):
        raise Refused("only ranks %s take part, and com.microsoft has no groups" % group)
    if not trt and reduce not in ("", "SUM"):
        raise Refused("com.microsoft's AllReduce only sums")
    if not trt and a["elem_type"] not in MICROSOFT_TYPES[op in SUMS]:
        raise Refused("com.microsoft's operator does not support %s" % TensorProto.DataType.Name(a["elem_type"]))
    if op == "Broadcast" and r.rank != a["root"]:
        x = r.constant(np.zeros(peers[a["root"]], helper.tensor_dtype_to_np_dtype(a["elem_type"])))
        r.shapes[x] = peers[a["root"]]
    if r.last and r.last not in r.before.get(x, ()):
        x = ordered(r, x, r.last)
    if op == "Reshard":
        return reshard(r, x, [int(s) for s in numpy_helper.to_array(r.constants[node.input[1]])], a, group, shapes)
    if op == "AllReduce":
        return r.collective("ALL_REDUCE", x, group, reduce)
    if op == "Reduce":
        return r.collective("REDUCE", x, group, reduce, a["root"]) if trt else r.collective("ALL_REDUCE", x, group)
    if op == "Broadcast":  # com.microsoft: a sum with zeros
        return r.collective("BROADCAST", x, group, "NONE", a["root"]) if trt else r.collective("ALL_REDUCE", x, group)
    even = all(s == shapes[0] for s in shapes)
    if op == "AllGather":
        return gathered(r, x, group, a["axis"]) if even else picked(r, x, group, shapes, np.concatenate(numbered(shapes)[0], a["axis"]))
    at = a["axis"] if op == "ReduceScatter" else a["split_axis"]
    begin, end, equal = my_part(r, group, shapes[0][at], a)
    if op == "ReduceScatter" and equal and trt:
        return r.collective("REDUCE_SCATTER", r.moved(x, len(group), at, 0), group, reduce)
    if op == "ReduceScatter":
        y = r.collective("ALL_REDUCE", x, group, reduce)
        return r.add("Slice", [y, *(r.constant(np.array([k])) for k in (begin, end, at))])
    if equal and even:
        return r.moved(r.collective("ALL_TO_ALL", r.moved(x, len(group), at, 0), group), len(group), 0, a["axis"])
    parts = [p.take(range(begin, end), at) for p in numbered(shapes)[0]]
    return picked(r, x, group, shapes, np.concatenate(parts, a["axis"]))


def ordered(r, x, last):
    """x, after the collective `last`: joins an empty slice of it, so that no engine runs them in another order."""
    zero, flat = r.constant(np.array([0])), r.constant(np.array([-1]))
    none = r.add("Slice", [r.add("Reshape", [last, flat]), zero, zero])
    joined = r.add("Concat", [r.add("Reshape", [x, flat]), r.add("CastLike", [none, x])], axis=0)
    return r.add("Reshape", [joined, r.constant(np.array(r.shapes[x]))])


def convert(parts, engine, out):
    ranks = len([f for f in os.listdir(parts) if f.startswith("rank") and f.endswith(".onnx")])
    files = [Rank(os.path.join(parts, "rank%d.onnx" % k), k, ranks, engine) for k in range(ranks)]
    is_ours = lambda n: n.domain == "ai.tessera"
    peers = {}  # shapes of the inputs, by id and rank
    for r in files:
        for n in filter(is_ours, r.model.graph.node):
            id_of = next(a.i for a in n.attribute if a.name == "id")
            peers.setdefault(id_of, {})[r.rank] = r.shapes.get(n.input[0])
    for r in files:
        for node in r.model.graph.node:
            seen = {c for i in node.input for c in r.before.get(i, ())}
            if is_ours(node):
                id_of = next(a.i for a in node.attribute if a.name == "id")
                try:
                    if None in peers[id_of].values():
                        raise Refused("its shape is unknown; use tessera partition --static")
                    result = convert_node(r, node, peers[id_of])
                except Refused as why:
                    raise Refused("rank%d.onnx: %s (id %d) cannot be converted: %s" % (r.rank, node.op_type, id_of, why)) from None
                r.nodes.append(helper.make_node("Identity", [result], [node.output[0]]))
                seen = r.before[result] = {*seen, *r.before.get(r.last, ()), result}
                r.last, r.types[result] = result, next(a.i for a in node.attribute if a.name == "elem_type")
            elif not all(o.startswith(TOKEN) for o in node.output):  # only a rank without collectives has such a node
                r.nodes.append(node)
            r.before.update({o: seen for o in node.output})
        finish(r)
    os.makedirs(out, exist_ok=True)
    for r in files:
        onnx.save(r.model, os.path.join(out, "rank%d.onnx" % r.rank))
    for name in os.listdir(parts):
        if name.endswith(".data"):
            shutil.copy(os.path.join(parts, name), out)


def finish(r):
    """Drops the tokens. A collective whose result this rank does not use becomes an output, or an engine would leave it out."""
    graph = r.model.graph
    outputs = [o for o in graph.output if not o.name.startswith(TOKEN)]
    used = {i for n in r.nodes for i in n.input} | {o.name for o in outputs}
    outputs += [helper.make_tensor_value_info(n.output[0], r.types[n.input[0]], None)
                for n in r.nodes if n.op_type == "Identity" and n.input[0] in r.types and n.output[0] not in used]
    for field, kept in ((graph.node, r.nodes), (graph.output, outputs),
                        (graph.initializer, [t for t in graph.initializer if not t.name.startswith(TOKEN)])):
        kept = list(kept)
        del field[:]
        field.extend(kept)
    imports = {o.domain: o.version for o in r.model.opset_import if o.domain != "ai.tessera"}
    imports[""] = max(imports[""], 18)  # Split with num_outputs
    if r.engine == "microsoft":
        imports["com.microsoft"] = 1
    del r.model.opset_import[:]
    r.model.opset_import.extend(helper.make_opsetid(d, v) for d, v in imports.items())


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[2] not in ("microsoft", "tensorrt"):
        sys.exit(__doc__)
    try:
        convert(*sys.argv[1:])
    except Refused as error:
        sys.exit("convert_collectives: %s" % error)
