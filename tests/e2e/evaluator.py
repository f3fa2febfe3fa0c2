# SPDX-License-Identifier: Apache-2.0
"""Runs partitions without Tessera: rank files in onnx's reference evaluator, one thread per rank.

The communication operators are written from docs/formats.md only. If this evaluator and Tessera return the same results, the files mean
what the documentation says."""
import hashlib, itertools, json, os, threading, warnings

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun


warnings.filterwarnings("ignore", category=RuntimeWarning)  # the reference evaluator warns about log(0), which is intended


class World:
    """Data that the ranks of one run share: values by (id, rank). Every communication is a barrier of its group."""

    def __init__(self, ranks):
        self.lock = threading.Condition()
        self.ranks, self.given, self.failed, self.times = ranks, {}, None, {}

    def exchange(self, rank, key, group, value):
        with self.lock:
            times = self.times[key, rank] = self.times.get((key, rank), 0) + 1  # counts iterations of a loop
            at = self.given.setdefault((key, times), {})
            assert rank in group and rank not in at, "rank %d in %s twice" % (rank, key)
            at[rank] = value
            self.lock.notify_all()
            while len(at) < len(group) and not self.failed:
                if not self.lock.wait(60):
                    self.failed = "rank %d waits in %s, there are %s" % (rank, key, sorted(at))
            if self.failed:
                raise RuntimeError(self.failed)
            return [at[r] for r in group]

    def run(self, outputs_of):
        """Runs outputs_of(rank) for every rank in its own thread and returns {rank: result}. If a rank fails, all end, and its error is
        raised."""
        results, errors = {}, []

        def rank_main(rank):
            try:
                results[rank] = outputs_of(rank)
            except BaseException as error:
                errors.append(error)
                with self.lock:
                    self.failed = self.failed or "rank %d: %r" % (rank, error)
                    self.lock.notify_all()

        threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(self.ranks)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        if errors:
            raise errors[0]
        return results


def evaluate(model, inputs, operators):
    """Returns the outputs of a rank's graph by name."""
    evaluator = ReferenceEvaluator(model, new_ops=operators)
    return dict(zip([o.name for o in model.graph.output], evaluator.run(None, {i.name: inputs[i.name] for i in model.graph.input})))


def bounds(size, n, j):
    return j * size // n, (j + 1) * size // n


def ends(cuts):
    """Returns where parts end, in units: equal parts, or for a negative number the positions of the set bits."""
    return list(range(cuts + 1)) if cuts > 0 else [0] + [e for e in range(1, 63) if -cuts >> e & 1]


def shared(size, cuts, j):
    at = ends(cuts)
    return at[j] * size // at[-1], at[j + 1] * size // at[-1]


class Layout:
    """A layout, `source` or `target` of a Reshard, decoded as docs/formats.md says."""

    def __init__(self, numbers):
        it = iter(int(x) for x in numbers)
        self.dims = [[(next(it), next(it)) for _ in range(next(it))] for _ in range(next(it))]
        self.loops = [(next(it), next(it)) for _ in range(next(it))]
        self.owners = [[next(it) for _ in range(next(it))] for _ in range(next(it))]
        assert next(it, None) is None
        cuts = [len(ends(self.dims[d][f][1])) - 1 for d, f in self.loops]
        assert np.prod(cuts, dtype=int) == len(self.owners)
        self.coords = list(itertools.product(*map(range, cuts)))

    def indices(self, rank, shape):
        """Returns for each dimension the indices that the rank owns, or None if it owns no shard."""
        shard = next((k for k, o in enumerate(self.owners) if rank in o), None)
        if shard is None:
            return None
        at = dict(zip(self.loops, self.coords[shard]))
        out = []
        for d, size in enumerate(shape):
            factors = self.dims[d] or [(0, 1)]
            rest = 1
            for s, _ in factors:
                rest *= s or 1
            first = -(-size // rest) if not factors[0][0] else factors[0][0]  # only the last unit may be short
            sizes = [s or (first if f == 0 else size // rest) for f, (s, _) in enumerate(factors)]
            picks = [range(*shared(s, c, at.get((d, f), 0))) for f, (s, (_, c)) in enumerate(zip(sizes, factors))]
            flat = []
            for digits in itertools.product(*picks):
                n = 0
                for digit, s in zip(digits, sizes):
                    n = n * s + digit
                if n < size:
                    flat.append(n)
            out.append(flat)
        return out


def part(x, axis, unit, group, rank, shares=None):
    """Returns the rank's part of an axis that is divided among its group."""
    size, j = x.shape[axis], list(group).index(rank)
    shares = [1] * len(group) if shares is None else list(shares)
    assert len(shares) == len(group) and min(shares) >= 0 < sum(shares), "shares %s of %d members" % (shares, len(group))
    a, b = (sum(shares[:i]) * -(-size // unit) // sum(shares) for i in (j, j + 1))
    return x.take(range(a * unit, min(b * unit, size)), axis)


def reshard(rank, pieces, group, source, target, shape):
    source, target = Layout(source), Layout(target)
    shape = [int(x) for x in shape]
    whole = np.zeros(shape, pieces[0].dtype)
    seen = np.zeros(shape, bool)
    for r, piece in zip(group, pieces):
        where = source.indices(r, shape)
        if where is None:
            assert piece.shape == (0,), "rank %d owns nothing and gives %s" % (r, piece.shape)
            continue
        assert piece.shape == tuple(map(len, where)), "rank %d gives %s, owns %s" % (r, piece.shape, [len(w) for w in where])
        whole[np.ix_(*where)] = piece
        seen[np.ix_(*where)] = True
    assert seen.all(), "nobody gave a part"
    mine = target.indices(rank, shape)
    return np.zeros([0], whole.dtype) if mine is None else whole[np.ix_(*mine)]


def operators(world, rank, plan):
    """Returns the communication operators, as classes for the evaluator of one rank."""

    def common(op, plan_of, elem_type, id, x):
        assert plan_of == plan, "another plan"
        assert onnx.helper.tensor_dtype_to_np_dtype(elem_type) == x.dtype, "another type"

    def folded(op, x, group, id, reduce):
        xs = world.exchange(rank, (op, id, tuple(group)), list(group), x)
        fold = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[reduce]
        y = xs[0]
        for other in xs[1:]:
            y = fold(y, other)
        return y

    class AllReduce(OpRun):
        op_domain = "ai.tessera"

        def _run(self, x, token, elem_type=None, group=None, id=None, plan=None, reduce=None):
            common(self, plan, elem_type, id, x)
            return folded("AllReduce", x, group, id, reduce), token

    class ReduceScatter(OpRun):
        op_domain = "ai.tessera"

        def _run(self, x, token, axis=None, elem_type=None, group=None, id=None, plan=None, reduce=None, shares=None, unit=None):
            common(self, plan, elem_type, id, x)
            return part(folded("ReduceScatter", x, group, id, reduce), axis, unit, group, rank, shares), token

    class Reduce(OpRun):
        op_domain = "ai.tessera"

        def _run(self, x, token, elem_type=None, group=None, id=None, plan=None, reduce=None, root=None):
            common(self, plan, elem_type, id, x)
            y = folded("Reduce", x, group, id, reduce)
            return y if rank == root else np.zeros([0], x.dtype), token

    class AllToAll(OpRun):
        op_domain = "ai.tessera"

        def _run(self, x, token, axis=None, elem_type=None, group=None, id=None, plan=None, split_axis=None, unit=None):
            common(self, plan, elem_type, id, x)
            xs = world.exchange(rank, ("AllToAll", id, tuple(group)), list(group), x)
            return np.concatenate([part(y, split_axis, unit, group, rank) for y in xs], axis), token

    class Broadcast(OpRun):
        op_domain = "ai.tessera"

        def _run(self, x, token, elem_type=None, group=None, id=None, plan=None, root=None):
            common(self, plan, elem_type, id, x)
            assert rank == root or x.shape == (0,)
            return world.exchange(rank, ("Broadcast", id, tuple(group)), list(group), x)[list(group).index(root)], token

    class HaloExchange(OpRun):
        op_domain = "ai.tessera"

        def _run(self, x, shape, token, axes=None, elem_type=None, group=None, id=None, plan=None, source=None, windows=None):
            common(self, plan, elem_type, id, x)
            got = world.exchange(rank, ("HaloExchange", id, tuple(group)), list(group), x)
            layout, it, asked = Layout(source), iter(windows), {}
            for r in group:
                for a in axes:
                    asked[r, a] = [i for _ in range(next(it)) for i in range(next(it), next(it))]
            assert next(it, None) is None
            whole = np.zeros([int(s) for s in shape], x.dtype)
            for r, piece in zip(group, got):
                whole[np.ix_(*layout.indices(r, whole.shape))] = piece
            mine = layout.indices(rank, whole.shape)
            return whole[np.ix_(*[asked.get((rank, d), at) for d, at in enumerate(mine)])], token

    def message(op, x, group, id, sender, getter):
        assert list(group) == sorted([sender, getter]) and rank == (sender if op == "Send" else getter)
        xs = world.exchange(rank, ("Send", id, tuple(group)), list(group), x)
        return np.zeros([0], x.dtype) if op == "Send" else xs[list(group).index(sender)]

    class Send(OpRun):
        op_domain = "ai.tessera"

        def _run(self, x, token, **a):
            common(self, a["plan"], a["elem_type"], a["id"], x)
            return message("Send", x, a["group"], a["id"], a["from"], a["to"]), token

    class Recv(OpRun):
        op_domain = "ai.tessera"

        def _run(self, x, token, **a):
            common(self, a["plan"], a["elem_type"], a["id"], x)
            assert x.shape == (0,)
            return message("Recv", x, a["group"], a["id"], a["from"], a["to"]), token

    class AllGather(OpRun):
        op_domain = "ai.tessera"

        def _run(self, x, token, axis=None, elem_type=None, group=None, id=None, plan=None):
            common(self, plan, elem_type, id, x)
            return np.concatenate(world.exchange(rank, ("AllGather", id, tuple(group)), list(group), x), axis), token

    class Reshard(OpRun):
        op_domain = "ai.tessera"

        def _run(self, x, shape, token, elem_type=None, group=None, id=None, plan=None, source=None, target=None):
            common(self, plan, elem_type, id, x)
            got = world.exchange(rank, ("Reshard", id, tuple(group)), list(group), (x, list(shape)))
            assert all(s == list(shape) for _, s in got), "ranks differ about the shape: %s" % [s for _, s in got]
            return reshard(rank, [p for p, _ in got], list(group), source, target, shape), token

    named = {}
    plain = [AllReduce, ReduceScatter, Reduce, AllGather, AllToAll, Broadcast, Send, Recv, Reshard, HaloExchange]
    for c in plain:
        named[c.__name__ + "F16"] = type(c.__name__ + "F16", (c,), {})
    return [*plain, *named.values()]


def check_folder(folder):
    """Checks digests, sizes, and every rank file with onnx.checker. Returns the manifest."""
    with open(os.path.join(folder, "manifest.json")) as f:
        manifest = json.load(f)
    assert manifest["version"] == 1
    names = set(os.listdir(folder)) - {"manifest.json"}
    assert names == set(manifest["files"]) == set(manifest["sizes"]), "files: %s" % names
    for name, digest in manifest["files"].items():
        with open(os.path.join(folder, name), "rb") as f:
            data = f.read()
        assert hashlib.sha256(data).hexdigest() == digest, name
        assert len(data) == manifest["sizes"][name], name
    for r in range(manifest["ranks"]):
        path = os.path.join(folder, "rank%d.onnx" % r)
        onnx.checker.check_model(path)
        m = onnx.load(path, load_external_data=False)
        meta = {p.key: p.value for p in m.metadata_props}
        assert meta["ai.tessera.plan"] == manifest["plan"] and meta["ai.tessera.rank"] == str(r)
        assert not m.configuration and not any(n.device_configurations for n in m.graph.node)
        assert m.ir_version <= 10
        used = {i for n in m.graph.node for i in n.input} | {o.name for o in m.graph.output} | captured(m.graph)
        unused = [t.name for t in m.graph.initializer if t.name not in used | {"ai.tessera.token"}]
        assert not unused, "rank %d does not use %s" % (r, unused)
    return manifest


def captured(graph):
    """Returns the names that subgraphs read."""
    names = set()
    for n in graph.node:
        for a in n.attribute:
            for g in [a.g] if a.type == onnx.AttributeProto.GRAPH else a.graphs:
                names |= {i for x in g.node for i in x.input} | {o.name for o in g.output} | captured(g)
    return names


def run(folder, inputs):
    """Runs a partition and returns the outputs by name, from the ranks in the manifest; each is a full tensor."""
    manifest = check_folder(folder)
    world = World(manifest["ranks"])
    results = world.run(lambda r: evaluate(onnx.load(os.path.join(folder, "rank%d.onnx" % r)), inputs, operators(
        world, r, manifest["plan"])))
    giver = {o["name"]: int(o["sharding"].split(":")[1].rstrip("}")) for o in manifest["outputs"]}
    for r, got in results.items():
        assert set(got) == {"ai.tessera.token.out"} | {name
                                                       for name, rank in giver.items() if rank == r}, "rank %d gives %s" % (r, list(got))
    return {name: results[rank][name] for name, rank in giver.items()}


def apart(got, want):
    """Returns the largest difference relative to the largest magnitude; infinite if shape, type or a NaN differs."""
    worst = 0.0
    assert set(got) == set(want), (list(got), list(want))
    for k, w in want.items():
        g = got[k]
        if g.shape != w.shape or g.dtype != w.dtype:
            return float("inf")
        if w.dtype.kind in "OSU":
            worst = max(worst, 0.0 if (g == w).all() else float("inf"))
            continue
        a, b = g.astype("f8"), w.astype("f8")
        gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
        if np.isnan(gap).any():
            return float("inf")
        if gap.any():
            worst = max(worst, float(gap.max() / max(np.nanmax(np.abs(b)), 1e-30)))
    return worst


def recorded(model):
    """Returns the inputs and outputs of test_data_set_0 next to the model."""
    m = onnx.load(model, load_external_data=False)
    at = os.path.join(os.path.dirname(model), "test_data_set_0")
    load = lambda kind, vs: {v.name: numpy_helper.to_array(onnx.load_tensor("%s/%s_%d.pb" % (at, kind, k))) for k, v in enumerate(vs)}
    return load("input", m.graph.input), load("output", m.graph.output)
