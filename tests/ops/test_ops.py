# SPDX-License-Identifier: Apache-2.0
"""Tests the communication operators inside ONNX Runtime: right values for all types, axes and layouts; invalid nodes are rejected by
name."""
import itertools
import random

from parts import *

TYPES = "f4 f8 f2 i1 i2 i4 i8 u1 u2 u4 u8 ?".split()
IDS = 100  # more than a trial has


def outputs_of(d, ranks, feed, n_out=1, **options):
    """Run rank models of which rank 0 returns all results."""
    r = run(partition(d + "/p%d" % len(os.listdir(d)), ranks), feed, **options)
    assert r.status == "OK", str(r)
    return r.outputs


def pieces(n, arrays, nodes, outs):
    """Rank models with their own piece as the constant `mine`; rank 0 returns the results."""
    return [model(nodes(r), [], outs(r), {"mine": arrays[r]}) for r in range(n)]


def merged(models):
    """One model of a rank with the nodes of all models; the names and ids of model k get the number k."""
    nodes, outputs, constants, tokens = [], [], {}, 0
    for k, m in enumerate(models):
        own = lambda name: "%s.%d" % (name, k) if name else name
        for node in m.graph.node:
            if node.output[0] == "ai.tessera.token.out":
                continue  # model() appends it
            node.name = own(node.name)
            node.input[:], node.output[:] = map(own, node.input), map(own, node.output)
            if node.domain == "ai.tessera":
                node.input[-1], node.output[-1] = "token%d" % tokens if tokens else "ai.tessera.token", "token%d" % (tokens + 1)
                tokens += 1
                next(a for a in node.attribute if a.name == "id").i += IDS * k
            nodes.append(node)
        outputs += [value(own(v.name), v.type.tensor_type.elem_type) for v in m.graph.output if v.name != "ai.tessera.token.out"]
        constants.update({own(c.name): nh.to_array(c) for c in m.graph.initializer if c.name != "ai.tessera.token"})
    return model(nodes, [], outputs, constants)


def together(d, function, rows):
    """Runs the trials function(*row). A trial yields its rank models, receives the outputs of rank 0 and checks them. All trials with
    the same number of ranks are one model, because starting the engine takes much longer than a collective."""
    by_ranks = {}
    for row in rows:
        trial = function(*row)
        models = next(trial)
        by_ranks.setdefault(len(models), []).append((trial, models))
    for n, group in by_ranks.items():
        got = outputs_of(d, [merged([models[r] for _, models in group]) for r in range(n)], {})
        for k, (trial, _) in enumerate(group):
            end = ".%d" % k
            try:
                trial.send({name[:-len(end)]: a for name, a in got.items() if name.endswith(end)})
            except StopIteration:
                continue
            raise AssertionError("a trial yields only once")


@case
def all_reduce_types(d):
    rng = np.random.default_rng(0)
    fold = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}

    def trial(t):
        kind = h.np_dtype_to_tensor_dtype(np.dtype(t))
        parts = [(rng.normal(size=(3, 5)) * 3).astype(t) if t != "?" else rng.integers(0, 2, (3, 5)).astype(bool) for _ in range(3)]
        name = "AllReduceF16" if t == "f2" else "AllReduce"
        ops = list(fold)
        nodes = lambda r: [comm(name, "mine", "y_" + o, i, range(3), kind, reduce=o) for i, o in enumerate(ops)]
        got = yield pieces(3, parts, nodes, lambda r: [value("y_" + o, kind) for o in ops])
        for o in ops:
            wide = parts[0].astype("f4") if t == "f2" else parts[0]
            for p in parts[1:]:
                wide = fold[o](wide, p.astype(wide.dtype))
            want = wide.astype(t) if t != "?" else (np.logical_or if o in ("sum", "max") else np.logical_and).reduce(parts)
            assert got["y_" + o].dtype == want.dtype and got["y_" + o].tobytes() == want.tobytes(), (t, o)

    together(d, trial, zip(TYPES))


@case
def all_reduce_shapes(d):
    def trial(shape):
        parts = [np.full(shape, r + 1, "f4") for r in range(4)]
        got = yield pieces(4, parts, lambda r: [comm("AllReduce", "mine", "y", 0, range(4), F, reduce="sum")], lambda r: [value("y")])
        assert got["y"].shape == shape and (got["y"] == 10).all()

    together(d, trial, zip([(), (0,), (1,), (3, 0, 2), (257,), (64, 65)]))


@case
def all_reduce_in_groups(d):
    nodes = lambda r: [comm("AllReduce", "mine", "a", 0 if r % 2 == 0 else 1, [r % 2, r % 2 + 2], F, token=0, reduce="sum"),
                       comm("AllReduce", "a", "y", 2, range(4), F, token=1, reduce="max")]
    got = outputs_of(d, pieces(4, [np.full(3, 10 ** r, "f4") for r in range(4)], nodes, lambda r: [value("y")]), {})
    assert (got["y"] == 1010).all()


@case
def chains_keep_their_order(d):
    """Many collectives that ONNX Runtime could run in a different order on each rank."""
    n, count = 3, 12
    def nodes(r):
        order = [comm("AllReduce", "m%d" % i, "s%d" % i, i, range(n), F, reduce="sum") for i in range(count)]
        work = [h.make_node("Mul", ["mine", "c%d" % i], ["m%d" % i]) for i in range(count)]
        tail = [h.make_node("Sum", ["s%d" % i for i in range(count)], ["y"])]
        random.Random(r).shuffle(work)
        return work + order + tail

    ranks = [
        model(nodes(r), [], [value("y")], {"mine": np.full(4, r + 1, "f4"), **{"c%d" % i: np.full(4, i, "f4") for i in range(count)}})
        for r in range(n)
    ]
    assert (outputs_of(d, ranks, {})["y"] == 6 * sum(range(count))).all()


@case
def unused_and_equal_collectives_run(d):
    """Two equal collectives, one with an unused result, one of which only the shape is read: all ranks must run all of them."""
    nodes = lambda r: [
        comm("AllReduce", "mine", "a", 0, range(2), F, reduce="sum"),
        comm("AllReduce", "mine", "b", 1, range(2), F, reduce="sum"),
        comm("AllReduce", "mine", "unused", 2, range(2), F, reduce="sum"),
        comm("AllReduce", "mine", "c", 3, range(2), F, reduce="sum"),
        h.make_node("Shape", ["c"], ["shape"]),
        h.make_node("Add", ["a", "b"], ["y"])
    ]
    for level in range(4):
        got = outputs_of(d, pieces(2, [np.ones(3, "f4")] * 2, nodes, lambda r: [value("y"), value("shape", I)]), {}, optimize=level)
        assert (got["y"] == 4).all() and list(got["shape"]) == [3]


@case
def half_floats_stay_half(d):
    """Between operators that run in float32, the collective must still transfer float16."""
    nodes = lambda r: [
        h.make_node("Sigmoid", ["mine"], ["a"]),
        comm("AllReduceF16", "a", "b", 0, range(2), T.FLOAT16, reduce="sum"),
        h.make_node("Sigmoid", ["b"], ["y"])
    ]
    for level in range(4):
        got = outputs_of(d, pieces(2, [np.ones(3, "f2")] * 2, nodes, lambda r: [value("y", T.FLOAT16)]), {}, optimize=level)
        assert got["y"].dtype == np.float16


@case
def all_gather(d):
    rng = np.random.default_rng(1)

    def trial(t, axis, sizes):
        kind = h.np_dtype_to_tensor_dtype(np.dtype(t))
        shape = lambda k: [k if i == axis % 3 else s for i, s in enumerate((3, 4, 2))]
        parts = [(rng.normal(size=shape(k)) * 9).astype(t) for k in sizes]
        name = "AllGatherF16" if t == "f2" else "AllGather"
        n = len(sizes)
        got = yield pieces(n, parts, lambda r: [comm(name, "mine", "y", 0, range(n), kind, axis=axis)], lambda r: [value("y", kind)])
        want = np.concatenate(parts, axis)
        assert got["y"].shape == want.shape and got["y"].tobytes() == want.tobytes(), (t, axis, sizes)

    together(d, trial, itertools.product(("f4", "f2", "i8", "?"), (0, 1, 2, -1), ((2, 3), (1, 0, 4), (2, 2, 2, 2))))


@case
def all_gather_large(d):
    parts = [np.arange(r * 100000, (r + 1) * 100000, dtype="f4").reshape(100, 1000) for r in range(2)]
    for axis in (0, 1):
        got = outputs_of(d, pieces(2, parts, lambda r: [comm("AllGather", "mine", "y", 0, range(2), F, axis=axis)], lambda r: [value("y")]),
                         {})
        assert (got["y"] == np.concatenate(parts, axis)).all()


# ---- dividing an axis: part j of n in complete units

def bounds(length, unit, n, j, shares=None):
    units, shares = -(-length // unit), shares or [1] * n
    return tuple(min(sum(shares[:i]) * units // sum(shares) * unit, length) for i in (j, j + 1))


def f16(op, t):
    return op + ("F16" if t == "f2" else "")


@case
def reduce_scatter(d):
    rng = np.random.default_rng(4)
    fold = {"sum": np.add, "max": np.maximum}

    def trial(t, axis, n, unit, op):
        kind = h.np_dtype_to_tensor_dtype(np.dtype(t))
        parts = [rng.integers(-5, 6, (7, 6, 8)).astype(t) for _ in range(n)]
        whole = parts[0]
        for p in parts[1:]:
            whole = fold[op](whole, p)
        nodes = lambda r: [comm(f16("ReduceScatter", t), "mine", "y", 0, range(n), kind, reduce=op, axis=axis, unit=unit),
                           comm(f16("AllGather", t), "y", "back", 1, range(n), kind, axis=axis)]
        got = yield pieces(n, parts, nodes, lambda r: [value("y", kind), value("back", kind)])
        a, b = bounds(whole.shape[axis], unit, n, 0)
        assert got["back"].tobytes() == whole.tobytes(), (t, axis, n, unit, op)
        assert (got["y"] == whole.take(range(a, b), axis)).all() and got["y"].shape[axis] == b - a

    rows = itertools.product(("f4", "f2", "i8", "?"), (0, 1, -1), (2, 3), (1, 2), fold)
    together(d, trial, (row for row in rows if row[0] != "?" or row[4] != "sum"))


@case
def reduce_scatter_in_shares(d):
    """All types and reductions with random shares (some are 0), units and sizes; every member sends its part to rank 0."""
    rng = np.random.default_rng(6)
    fold = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}

    def trial(t):
        kind = h.np_dtype_to_tensor_dtype(np.dtype(t))
        n, unit, axis, shape = int(rng.integers(2,
                                                5)), int(rng.integers(1,
                                                                      4)), int(rng.integers(0,
                                                                                            2)), [int(s) for s in rng.integers(0, 12, 2)]
        shares = [int(s) for s in rng.integers(0, 4, n)]
        shares[int(rng.integers(0, n))] += 1
        parts = [rng.integers(0, 3, shape).astype(t) for _ in range(n)]
        nodes = lambda r: [node for k, o in enumerate(fold) for node in (
            comm(f16("ReduceScatter", t), "mine", "y_" + o, 2 * k, range(n), kind, reduce=o, axis=axis, unit=unit, shares=shares),
            comm(f16("AllGather", t), "y_" + o, "back_" + o, 2 * k + 1, range(n), kind, axis=axis))]
        outs = lambda r: [value(v + o, kind) for o in fold for v in ("y_", "back_")]
        got = yield pieces(n, parts, nodes, outs)
        a, b = bounds(shape[axis], unit, n, 0, shares)
        for o in fold:
            whole = parts[0]
            for p in parts[1:]:
                whole = fold[o](whole, p) if t != "?" else (np.logical_or if o in ("sum", "max") else np.logical_and)(whole, p)
            told = (t, o, n, unit, axis, shape, shares)
            assert got["back_" + o].shape == whole.shape and got["back_" + o].tobytes() == whole.tobytes(), told
            own = whole.take(range(a, b), axis)
            assert got["y_" + o].shape == own.shape and got["y_" + o].tobytes() == own.tobytes(), told

    together(d, trial, zip(TYPES))


@case
def reduce_to_one(d):
    def trial(t, n, root):
        kind = h.np_dtype_to_tensor_dtype(np.dtype(t))
        parts = [np.full((3, 2), 10 ** r, t) for r in range(n)]
        nodes = lambda r: [comm(f16("Reduce", t), "mine", "y", 0, range(n), kind, reduce="sum", root=root),
                           comm(f16("Broadcast", t), "y", "back", 1, range(n), kind, root=root)]
        got = yield pieces(n, parts, nodes, lambda r: [value("y", kind), value("back", kind)])
        assert got["y"].shape == ((3, 2) if root == 0 else (0,)), got["y"].shape
        assert got["back"].shape == (3, 2) and (got["back"] == sum(parts)).all()

    together(d, trial, itertools.product(("f4", "f2", "i4"), (2, 3), (0, 1)))


@case
def all_to_all(d):
    """From sharded along one axis to sharded along another, and back."""
    rng = np.random.default_rng(5)

    def trial(t, axes, n, unit):
        (a, b), kind = axes, h.np_dtype_to_tensor_dtype(np.dtype(t))
        x = (rng.normal(size=(7, 6, 8)) * 9).astype(t)
        mine = lambda axis, u, r: x.take(range(*bounds(x.shape[axis], u, n, r)), axis)
        nodes = lambda r: [comm(f16("AllToAll", t), "mine", "y", 0, range(n), kind, split_axis=b, axis=a, unit=unit),
                           comm(f16("AllToAll", t), "y", "back", 1, range(n), kind, split_axis=a, axis=b, unit=1)]
        got = yield pieces(n, [mine(a, 1, r) for r in range(n)], nodes, lambda r: [value("y", kind), value("back", kind)])
        assert got["y"].shape == mine(b, unit, 0).shape and got["y"].tobytes() == mine(b, unit, 0).tobytes(), (t, a, b, n, unit)
        assert got["back"].tobytes() == mine(a, 1, 0).tobytes()

    together(d, trial, itertools.product(("f4", "f2", "?"), ((0, 1), (1, 0), (2, 0), (0, -1)), (2, 3), (1, 2)))


@case
def send_and_receive(d):
    def trial(t, shape):
        kind = h.np_dtype_to_tensor_dtype(np.dtype(t))
        x = np.arange(int(np.prod(shape))).reshape(shape).astype(t)
        nodes = lambda r: [comm(f16("Recv" if r == 0 else "Send", t), "mine", "y", 0, [0, 2], kind, **{"from": 2, "to": 0})
                           ] if r != 1 else [h.make_node("Identity", ["mine"], ["y"])]
        got = yield pieces(3, [np.zeros(0, t), np.zeros(0, t), x], nodes, lambda r: [value("y", kind)])
        assert got["y"].shape == shape and got["y"].tobytes() == x.tobytes(), (t, shape)

    together(d, trial, itertools.product(("f4", "f2", "i8", "?"), ((), (0,), (3, 4))))


@case
def fewer_units_than_members(d):
    """Empty parts in a ReduceScatter and in an exchange, and all parts gathered again."""
    def trial(t, shape, unit, axes):
        n, (a, b), kind = 3, axes, h.np_dtype_to_tensor_dtype(np.dtype(t))
        x = (np.arange(int(np.prod(shape))).reshape(shape) % 3).astype(t)
        mine = lambda axis, u, r: x.take(range(*bounds(x.shape[axis], u, n, r)), axis)
        told = (t, shape, unit, a)
        nodes = lambda r: [comm(f16("ReduceScatter", t), "mine", "y", 0, range(n), kind, reduce="max", axis=a, unit=unit),
                           comm(f16("AllToAll", t), "y", "turned", 1, range(n), kind, split_axis=b, axis=a, unit=unit),
                           comm(f16("AllGather", t), "turned", "back", 2, range(n), kind, axis=b)]
        outs = lambda r: [value(v, kind) for v in ("y", "turned", "back")]
        got = yield pieces(n, [x] * n, nodes, outs)
        assert got["y"].shape == mine(a, unit, 0).shape and (got["y"] == mine(a, unit, 0)).all(), told
        assert got["turned"].shape == mine(b, unit, 0).shape and (got["turned"] == mine(b, unit, 0)).all(), told
        assert got["back"].shape == x.shape and (got["back"] == x).all(), told

    together(d, trial, itertools.product(("f4", "f2", "?"), ((1, 4), (2, 1), (0, 3), (2, 5)), (1, 4), ((0, 1), (1, 0))))


@case
def collectives_that_cannot_be(d):
    """Invalid attributes and tensors of the operators above: the error must contain the node's name."""
    mine = np.ones((1, 4), "f4")
    cases = [("ReduceScatter", dict(reduce="sum", axis=0, unit=0), "unit"), ("ReduceScatter", dict(reduce="sum", axis=5, unit=1), "axis 5"),
             ("ReduceScatter", dict(reduce="sum", axis=0), "unit"),
             *[("ReduceScatter", dict(reduce="sum", axis=0, unit=1, shares=s), "shares")
               for s in ([1], [0, 0], [2, -1], [1, 1, 1], [2 ** 63 - 1, 1])], ("Reduce", dict(reduce="sum", root=7), "root"),
             ("Reduce", dict(reduce="sum"), "root"), ("Broadcast", dict(root=-1), "root"),
             ("AllToAll", dict(axis=0, split_axis=0, unit=1), "both axes"), ("AllToAll", dict(axis=1, split_axis=99, unit=1), "split_axis"),
             ("Send", {"from": 0, "to": 0}, "two different ranks"), ("Send", {"from": 0}, "to"), ("Recv", {"from": 0, "to": 3}, "to"),
             ("Recv", {"from": 0, "to": 1}, "this is rank")]
    for k, (op, attributes, words) in enumerate(cases):
        ranks = pieces(2, [mine] * 2, lambda r: [comm(op, "mine", "y", 0, range(2), F, name="suspect", **attributes)],
                       lambda r: [value("y")])
        r = run(partition(d + "/c%d" % k, ranks), {})
        assert r.status != "OK" and "suspect" in r.text and words in r.text, (op, attributes, str(r))


# ---- Reshard: layouts by the definition of docs/formats.md, in numpy

class Layout:
    def __init__(self, dims, loops, owners):
        self.dims, self.loops, self.owners = dims, loops, owners  # dims: [[(size, cuts)...]]

    def ints(self):
        out = [len(self.dims)]
        for d in self.dims:
            out += [len(d)] + [v for f in d for v in f]
        out += [len(self.loops)] + [v for l in self.loops for v in l] + [len(self.owners)]
        for o in self.owners:
            out += [len(o)] + list(o)
        return out

    def indices(self, shape, shard):
        """The indices of a shard in each dimension."""
        coords, rest = {}, shard
        for d, f in reversed(self.loops):
            cuts = self.dims[d][f][1]
            coords[d, f] = rest % cuts
            rest //= cuts
        result = []
        for d, factors in enumerate(self.dims):
            known = int(np.prod([s for s, _ in factors if s]))
            sizes = [s or shape[d] // known for s, _ in factors] or [shape[d]]
            grid = np.arange(shape[d]).reshape(sizes)
            for f, (_, cuts) in enumerate(factors):
                j = coords.get((d, f), 0)
                grid = grid.take(range(j * sizes[f] // cuts, (j + 1) * sizes[f] // cuts), axis=f)
            result.append(grid.reshape(-1))
        return result

    def piece(self, x, rank):
        for shard, owners in enumerate(self.owners):
            if rank in owners:
                return x[np.ix_(*self.indices(x.shape, shard))] if x.ndim else x
        return None


def random_layout(rng, shape, ranks):
    """Random shards, factors and owners; each rank owns at most one shard."""
    while True:
        dims, loops = [], []
        for d, size in enumerate(shape):
            choice = rng.randrange(4)
            if choice == 0 or size < 2:
                dims.append([])
            elif choice == 1 or size % 2:
                dims.append([(0, rng.randint(1, min(3, size)))])
            elif choice == 2:
                dims.append([(2, rng.randint(1, 2)), (0, rng.randint(1, min(2, size // 2)))])
            else:
                dims.append([(0, 1), (2, 2)])
            loops += [(d, f) for f, (_, cuts) in enumerate(dims[-1]) if cuts > 1]
        shards = int(np.prod([c for d in dims for _, c in d]))
        if shards <= ranks:
            break
    rng.shuffle(loops)
    free = list(range(ranks))
    rng.shuffle(free)
    owners = [[free.pop()] for _ in range(shards)]
    for r in free:
        if rng.random() < 0.7:
            owners[rng.randrange(shards)].append(r)
    return Layout(dims, loops, [sorted(o) for o in owners])


@case
def reshard(d):
    rng = random.Random(3)

    def trial(number):
        ranks = rng.randint(1, 5)
        shape = tuple(rng.choice((1, 2, 3, 4, 6, 7)) for _ in range(rng.randint(0, 3)))
        x = np.arange(int(np.prod(shape)), dtype=rng.choice(("f4", "i8", "f2", "u1"))).reshape(shape)
        a, b = random_layout(rng, shape, ranks), random_layout(rng, shape, ranks)
        kind = h.np_dtype_to_tensor_dtype(x.dtype)
        name = "ReshardF16" if x.dtype == np.float16 else "Reshard"
        everybody = Layout([[] for _ in shape], [], [list(range(ranks))])
        nodes = lambda r: [comm(name, "mine", "y", 0, range(ranks), kind, extra=["shape"], source=a.ints(), target=b.ints()),
                           comm(name, "y", "back", 1, range(ranks), kind, extra=["shape"], source=b.ints(), target=everybody.ints())]
        models = []
        for r in range(ranks):
            mine = a.piece(x, r)
            models.append(model(nodes(r), [], [value("y", kind), value("back", kind)],
                                {"mine": np.zeros(0, x.dtype) if mine is None else mine, "shape": np.array(shape, np.int64)}))
        got = yield models
        want = b.piece(x, 0)
        assert got["back"].tobytes() == x.tobytes() and got["back"].shape == x.shape, (number, shape, a.ints(), b.ints())
        want = np.zeros(0, x.dtype) if want is None else want
        assert got["y"].shape == want.shape and got["y"].tobytes() == want.tobytes(), (number, shape, a.ints(), b.ints())

    together(d, trial, zip(range(40)))


@case
def reshard_follows_the_shape(d):
    """One node with other shapes in later runs: symbolic sizes."""
    cut, whole = Layout([[(0, 2)]], [(0, 0)], [[0], [1]]), Layout([[]], [], [[0, 1]])
    ins = [value("x", F, ["n"])]
    nodes = lambda r: [h.make_node("Shape", ["x"], ["s"]), h.make_node("Identity", ["x"], ["w"]),
                       comm("Reshard", "w", "c", 0, range(2), F, extra=["s"], source=whole.ints(), target=cut.ints()),
                       comm("Reshard", "c", "y", 1, range(2), F, extra=["s"], source=cut.ints(), target=whole.ints())]
    p = partition(d + "/p", [model(nodes(r), ins, [value("y")]) for r in range(2)])
    for n in (2, 5, 1000, 1, 0):  # fewer elements than shards: some shards are empty
        r = run(p, {"x": np.arange(n, dtype="f4")})
        assert r.status == "OK" and r.outputs["y"].shape == (n,) and (r.outputs["y"] == np.arange(n)).all(), str(r)


@case
def bad_attributes(d):
    """Each invalid attribute must be rejected before the run, with the node's name."""
    base = dict(op="AllReduce", x="mine", y="y", number=0, group=[0, 1], kind=F, reduce="sum", name="suspect")
    cut = Layout([[(0, 2)]], [(0, 0)], [[0], [1]]).ints()
    reshard = dict(base, op="Reshard", extra=["shape"], source=cut, target=cut)
    del reshard["reduce"]
    bad = [
        dict(base, plan="xyz"),
        dict(base, plan="0" * 17),
        dict(base, group=[0, 5]),
        dict(base, group=[1, 0]),
        dict(base, group=[0, 0]),
        dict(base, group=[0, 1, 2]),
        dict(base, group=[-1, 0, 1]),
        dict(base, kind=T.STRING),
        dict(base, kind=T.INT4),
        dict(base, kind=0),
        dict(base, kind=99),
        dict(base, reduce="mean"),
        dict(base, op="AllGather", axis=10 ** 12),
        dict(base, op="AllReduceF16"),
        dict(reshard, source=[1]),
        dict(reshard, source=cut + [0]),
        dict(reshard, source=[2 ** 62] * 4),
        dict(reshard, target=[0, 0, 1, 2, 0, 1]),
        dict(reshard, source=Layout([[(0, 2)]], [(0, 0)], [[0], []]).ints()),
        dict(reshard, target=Layout([[(0, 2)]], [(0, 0)], [[0], [0]]).ints()),
        dict(reshard, target=Layout([[(0, 2)]], [(0, 0)], [[0], [7]]).ints())
    ]
    for k, attributes in enumerate(bad):
        ranks = pieces(2, [np.ones(4, "f4")] * 2, lambda r: [comm(**dict(attributes))],
                       lambda r: [value("y", attributes["kind"] if attributes["kind"] in (F, T.FLOAT16) else F)])
        for m in ranks:
            m.graph.initializer.append(nh.from_array(np.array([8], np.int64), "shape"))
        r = run(partition(d + "/bad%d" % k, ranks), {})
        assert r.status == "ENGINE" and "suspect" in r.text, (k, str(r))
    node = comm(**base)
    for missing in ("plan", "id", "group", "elem_type", "reduce"):
        keep = [a for a in node.attribute if a.name != missing]
        short = h.make_node("AllReduce", node.input, node.output, name="suspect", domain="ai.tessera")
        short.attribute.extend(keep)
        r = run(partition(d + "/without_" + missing, pieces(2, [np.ones(4, "f4")] * 2, lambda r: [short], lambda r: [value("y")])), {})
        assert r.status == "ENGINE" and "suspect" in r.text and missing in r.text, str(r)


@case
def bad_tensors(d):
    """Wrong types and shapes of tensors, which are found at run time."""
    whole, cut = Layout([[]], [], [[0, 1]]).ints(), Layout([[(0, 2)]], [(0, 0)], [[0], [1]]).ints()
    cases = [("AllReduce", dict(kind=T.DOUBLE, reduce="sum"), np.ones(4, "f4"), "expected float64"),
             ("AllGather", dict(kind=F, axis=1), np.ones(4, "f4"), "axis 1"),
             ("Reshard", dict(kind=F, extra=["shape"], source=cut, target=whole), np.ones(7, "f4"), "not this rank's piece")]
    for k, (op, attributes, mine, words) in enumerate(cases):
        kind = attributes["kind"]
        ranks = pieces(2, [mine] * 2, lambda r: [comm(op, "mine", "y", 0, range(2), name="suspect", **dict(attributes))],
                       lambda r: [h.make_tensor_value_info("y", F, None)])
        for m in ranks:
            m.graph.initializer.append(nh.from_array(np.array([8], np.int64), "shape"))
        r = run(partition(d + "/t%d" % k, ranks), {})
        assert r.status != "OK" and "suspect" in r.text and words in r.text, str(r)


@case
def ranks_that_disagree(d):
    """Deliberately wrong partitions: an error, never a hang or wrong numbers."""
    one = lambda **k: [comm("AllReduce", "mine", "y", 0, range(3), F, **{"reduce": "sum", **k})]
    two = lambda a, b: [
        comm("AllReduce", "mine", "a", a, range(3), F, token=0, reduce="sum"),
        comm("AllReduce", "a", "y", b, range(3), F, token=1, reduce="sum")
    ]
    defects = {
        "reduction": one(reduce="max"), "other id": one(name="x")
        and [comm("AllReduce", "mine", "y", 9, range(3), F, token=0, reduce="sum")], "other plan": one(plan="f" * 16),
        "smaller group": [comm("AllReduce", "mine", "y", 0, [1, 2], F,
                               reduce="sum")], "other operator": [comm("AllGather", "mine", "y", 0, range(3), F,
                                                                       axis=0)], "missing": [h.make_node("Identity", ["mine"],
                                                                                                         ["y"])], "two more": two(0, 1)
    }
    for name, nodes in defects.items():
        ranks = pieces(3, [np.ones(4, "f4")] * 3, lambda r: nodes if r == 1 else one(), lambda r: [value("y")])
        r = run(partition(d + "/" + name, ranks), {})
        assert r.status == "PEER" and "rank 1" in r.text, (name, str(r))
    for name, other in (("type", np.ones(4, "f8")), ("count", np.ones(5, "f4"))):
        kind = h.np_dtype_to_tensor_dtype(other.dtype)
        ranks = pieces(3, [np.ones(4, "f4"), other, np.ones(4, "f4")],
                       lambda r: [comm("AllReduce", "mine", "y", 0, range(3), kind
                                       if r == 1 else F, reduce="sum")], lambda r: [value("y", kind if r == 1 else F)])
        r = run(partition(d + "/" + name, ranks), {})
        assert r.status == "PEER" and "rank 1" in r.text, (name, str(r))
    ranks = pieces(3, [np.ones(4, "f4")] * 3, lambda r: two(1, 0) if r == 1 else two(0, 1), lambda r: [value("y")])
    r = run(partition(d + "/order", ranks), {})
    assert r.status == "PEER" and "different ids" in r.text, str(r)
    ranks = pieces(2, [np.ones((2, 3), "f4"), np.ones((2, 4), "f4")], lambda r: [comm("AllGather", "mine", "y", 0, range(2), F, axis=0)],
                   lambda r: [value("y")])
    r = run(partition(d + "/shapes", ranks), {})
    assert r.status == "PEER" and "different shape" in r.text, str(r)


main()
