# SPDX-License-Identifier: Apache-2.0
"""Tests random small models with nested If, Loop and Scan, and random shardings of nodes inside and outside their bodies.

Each sharded model is run by Tessera and compared with the unsharded one.

usage: random_bodies.py TESSERA TRIALS [SEED] [all]     all: five times as many trials"""
import json, os, random, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

import harness

info = helper.make_tensor_value_info


class Maker:
    """Builds a random model. Every value that bodies carry is float [R, C]; names are unique in the model."""

    def __init__(self, rng):
        self.rng, self.n = rng, 0
        self.rows, self.columns = rng.choice([4, 5, 6]), rng.choice([6, 7, 8])
        self.open = rng.random() < 0.4  # the number of rows is a symbol
        self.init, self.places = [], []  # places: (path, [(value, dims)])
        self.np = np.random.default_rng(rng.randrange(1 << 30))

    def name(self, kind):
        self.n += 1
        return "%s%d" % (kind, self.n)

    def const(self, array, init=None):
        v = self.name("k")
        (self.init if init is None else init).append(numpy_helper.from_array(np.asarray(array), v))
        return v

    def weight(self, *dims, init=None):
        return self.const((self.np.standard_normal(dims) / max(dims) ** 0.5).astype("f4"), init)

    def op(self, nodes, path, op, ins, dims, dims_in=None, **attrs):
        out, name = self.name("v"), self.name(op.lower())
        nodes.append(helper.make_node(op, ins, [out], name=name, **attrs))
        at = [(i, d) for i, d in zip(ins, dims_in or [dims] * len(ins)) if d] + [(out, dims)]
        self.places.append((path + name, at))
        return out

    def step(self, nodes, path, v, outer, init, depth):
        r, d = self.rng, [self.rows, self.columns]
        kind = r.choice(["matmul", "matmul", "two", "bias", "tanh", "softmax", "sum", "turn", "outer", "if", "loop", "scan"])
        if kind in ("if", "loop", "scan") and depth > 2:
            kind = "bias"
        if kind == "matmul":
            w = self.weight(self.columns, self.columns, init=init if r.random() < 0.5 else None)
            return self.op(nodes, path, "MatMul", [v, w], d, [d, [self.columns] * 2])
        if kind == "two":
            h = 9
            a, b = self.weight(self.columns, h), self.weight(h, self.columns)
            x = self.op(nodes, path, "MatMul", [v, a], [self.rows, h], [d, [self.columns, h]])
            x = self.op(nodes, path, "Relu", [x], [self.rows, h])
            return self.op(nodes, path, "MatMul", [x, b], d, [[self.rows, h], [h, self.columns]])
        if kind == "bias":
            return self.op(nodes, path, "Add", [v, self.weight(self.columns)], d, [d, [self.columns]])
        if kind == "softmax":
            return self.op(nodes, path, "Softmax", [v], d, axis=r.choice([0, 1]))
        if kind == "sum":
            axes = self.const(np.array([r.choice([0, 1])], "i8"))
            s = self.op(nodes, path, "ReduceSum", [v, axes], [], [d, None], keepdims=1)
            return self.op(nodes, path, "Sub", [v, s], d, [d, None])
        if kind == "turn":
            t = self.op(nodes, path, "Transpose", [v], d[::-1], [d], perm=[1, 0])
            t = self.op(nodes, path, "Tanh", [t], d[::-1])
            return self.op(nodes, path, "Transpose", [t], d, [d[::-1]], perm=[1, 0])
        if kind == "outer":
            return self.op(nodes, path, "Add", [v, r.choice(outer)], d)
        if kind in ("if", "loop", "scan"):
            return getattr(self, "make_" + kind)(nodes, path, v, outer, depth)
        return self.op(nodes, path, "Tanh", [v], d)

    def chain(self, path, v, outer, depth, init):
        nodes = []
        outer = list(outer)
        for _ in range(self.rng.randint(1, 3)):
            v = self.step(nodes, path, v, outer, init, depth)
            outer.append(v)
        return nodes, self.op(nodes, path, "Tanh", [v], [self.rows, self.columns]), outer

    def decision(self, nodes, path, v):
        r = self.rng
        if r.random() < 0.5:
            return "flag"
        s = self.op(nodes, path, "ReduceSum", [v], [], [[self.rows, self.columns]], keepdims=0)
        return self.op(nodes, path, "Greater", [s, self.const(np.float32(0))], [], [None, None])

    def shape(self):
        return ["rows" if self.open else self.rows, self.columns]

    def make_if(self, nodes, path, v, outer, depth):
        c, name, out = self.decision(nodes, path, v), self.name("if"), self.name("v")
        graphs = {}
        for branch in ("then_branch", "else_branch"):
            init = []
            inner, last, _ = self.chain("%s%s > %s > " % (path, name, branch), v, outer, depth + 1, init)
            graphs[branch] = helper.make_graph(inner, branch, [], [info(last, T.FLOAT, None)], init)
        nodes.append(helper.make_node("If", [c], [out], name=name, **graphs))
        self.places.append((path + name, [(out, [self.rows, self.columns])]))
        return out

    def make_loop(self, nodes, path, v, outer, depth):
        name, out, stacked = self.name("loop"), self.name("v"), self.name("s")
        i, go, s, on, init = self.name("i"), self.name("go"), self.name("s"), self.name("on"), []
        inner, last, seen = self.chain("%s%s > body > " % (path, name), s, outer + [s], depth + 1, init)
        if self.rng.random() < 0.5:
            inner.append(helper.make_node("Identity", [go], [on], name=self.name("identity")))
        else:
            total = self.op(inner, "%s%s > body > " % (path, name), "ReduceL2", [last], [], [[self.rows, self.columns]], keepdims=0)
            inner.append(helper.make_node("Greater", [total, self.const(np.float32(0.5))], [on], name=self.name("greater")))
        g = helper.make_graph(inner, name, [info(i, T.INT64, []), info(go, T.BOOL, []), info(s, T.FLOAT, self.shape())],
                              [info(on, T.BOOL, []), info(last, T.FLOAT, None), info(seen[-1], T.FLOAT, None)], init)
        turns = self.const(np.int64(self.rng.randint(0, 3)))
        nodes.append(helper.make_node("Loop", [turns, self.const(np.array(True)), v], [out, stacked], name=name, body=g))
        self.places.append((path + name, [(v, [self.rows, self.columns]), (out, [self.rows, self.columns])]))
        return out

    def make_scan(self, nodes, path, v, outer, depth):
        """A Scan over three copies of v, stacked along a random axis."""
        r, d, init = self.rng, [self.rows, self.columns], []
        axis, name, out, stacked, s, e = r.choice([0, 1,
                                                   2]), self.name("scan"), self.name("v"), self.name("s"), self.name("s"), self.name("e")
        one = self.op(nodes, path, "Unsqueeze", [v, self.const(np.array([axis], "i8"))], [], [d, None])
        turns = self.op(nodes, path, "Concat", [one] * 3, [], [None] * 3, axis=axis)
        inner, last, seen = self.chain("%s%s > body > " % (path, name), s, outer + [e], depth + 1, init)
        last = self.op(inner, "%s%s > body > " % (path, name), "Add", [last, e], d)
        extra = self.op(inner, "%s%s > body > " % (path, name), "Neg", [seen[-1]], d)
        g = helper.make_graph(inner, name, [info(s, T.FLOAT, self.shape()), info(e, T.FLOAT, self.shape())],
                              [info(last, T.FLOAT, self.shape()), info(extra, T.FLOAT, self.shape())], init)
        nodes.append(helper.make_node("Scan", [v, turns], [out, stacked], name=name, body=g, num_scan_inputs=1,
                                      scan_input_axes=[axis], scan_output_axes=[r.choice([0, 1, -1])]))
        whole = d[:axis] + [1] + d[axis:]
        self.places.append((path + name, [(v, d), (out, d), (turns, whole)]))
        return out

    def model(self):
        nodes, outer = [], ["x"]
        v, seen = "x", ["x"]
        for _ in range(self.rng.randint(1, 3)):
            v = self.step(nodes, "", v, seen, None, 0)
            seen.append(v)
        v = self.make_if(nodes, "", v, seen, 1) if self.rng.random() < 0.3 else \
            self.make_loop(nodes, "", v, seen, 1) if self.rng.random() < 0.5 else self.make_scan(nodes, "", v, seen, 1)
        outs = [info(v, T.FLOAT, self.shape())]
        g = helper.make_graph(nodes, "made", [info("x", T.FLOAT, self.shape()), info("flag", T.BOOL, [])], outs, self.init)
        m = helper.make_model(g, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        onnx.checker.check_model(m)
        return m

    def sharding(self, dims, devices):
        r = self.rng
        order = list(range(devices))
        r.shuffle(order)
        if r.random() < 0.15 or not dims:
            return "{%s:%s}" % (",".join(["1"] * max(1, len(dims))), ",".join(map(str, sorted(order[:r.randint(1, devices)]))))
        axis = r.randrange(len(dims))
        n = r.randint(2, min(devices, dims[axis])) if dims[axis] > 1 else 1
        cuts = ["1"] * len(dims)
        cuts[axis] = str(n)
        if n == 1:
            return "{%s:%s}" % (",".join(cuts), ",".join(map(str, order)))
        if n == 2 and devices == 4 and r.random() < 0.5:
            return "{%s:(0,1),(2,3)}" % ",".join(cuts)
        return "{%s:%s}" % (",".join(cuts), ",".join(map(str, order[:n])))

    def edits(self, devices):
        out = {}
        for path, values in self.places:
            if self.rng.random() < 0.35:
                v, dims = self.rng.choice([p for p in values if p[1]] or [(None, None)])
                if v:
                    out["%s:%s" % (path, v)] = self.sharding(dims, devices)
        return out


def trial(tessera, seed, folder):
    rng = random.Random(seed)
    maker = Maker(rng)
    m = maker.model()
    plain, cut, data = (os.path.join(folder, f) for f in ("plain.onnx", "cut.onnx", "in.npz"))
    onnx.save(m, plain)
    np.savez(data, x=maker.np.standard_normal((maker.rows, maker.columns)).astype("f4"), flag=np.array(rng.random() < 0.5))
    devices = rng.choice([2, 2, 3, 3, 4])
    edits = maker.edits(devices)
    for attempt in range(6):
        words = [w for at, text in edits.items() for w in ("--shard", "%s=%s" % (at, text))]
        rc, out, err = harness.call(tessera, "annotate", plain, "--config", "c:%d" % devices, *words, "-o", cut)
        assert rc == 0, "annotate: exit %d %s" % (rc, err)
        rc, out, err = harness.call(tessera, "check", cut, "--json")
        if rc == 0:
            break
        for f in json.loads(out)["findings"]:  # drop the shardings that check refuses
            if f["severity"] == "error":
                edits = {k: v for k, v in edits.items() if not k.endswith(":" + f["value"])}
    assert rc == 0, "check: exit %d %s" % (rc, out)
    inferred = cut + ".inferred"
    rc, out, err = harness.call(tessera, "infer", cut, "-o", inferred)
    assert rc == 0, "infer: exit %d %s" % (rc, err)
    rc, out, err = harness.call(tessera, "check", inferred)
    assert rc == 0, "check of what was inferred: exit %d %s" % (rc, err)
    rc, out, err = harness.call(tessera, "infer", inferred, "-o", inferred + "2")
    assert rc == 0, "infer again: exit %d %s" % (rc, err)
    assert open(inferred, "rb").read() == open(inferred + "2", "rb").read(), "inferring twice changes something"
    rc, out, err = harness.call(tessera, "verify", cut, "--inputs", data, "--json", "--timeout", "20")
    if rc != 0 or not json.loads(out)["ok"]:
        onnx.save(m, os.path.join(os.environ["KEEP"], "failed_%d.onnx" % seed)) if os.environ.get("KEEP") else None
        raise AssertionError("verify: exit %d %s %s\n%d devices %s" %
                             (rc, out[:600], err if len(err) < 4000 else err[:2400] + " ... " + err[-1500:], devices, edits))
    return sum(json.loads(out)["collectives"].values())


def drawn(tessera, seed, folder):
    """Random shardings by `verify --random`, which also shard bodies and sometimes use stages. Written as edits, they must mean the
    same."""
    plain, data, script, cut = (os.path.join(folder, f) for f in ("plain.onnx", "in.npz", "edits.txt", "drawn.onnx"))
    rc, out, err = harness.call(tessera, "verify", plain, "--inputs", data, "--random", "2", "--seed", seed, "--devices", 2 + seed % 3,
                                "--json", "--timeout", "20")
    assert rc == 0, "drawn: exit %d %s" % (rc, err[:2000])
    stages = 0
    for t in json.loads(out)["trials"]:
        with open(script, "w") as f:
            f.write("\n".join(t["sharding"]) + "\n")
        rc, _, err = harness.call(tessera, "annotate", plain, "--script", script, "-o", cut)
        assert rc == 0, "edits: exit %d %s\n%s" % (rc, err, t["sharding"])
        rc, again, err = harness.call(tessera, "partition", cut, "-o", os.path.join(folder, "parts"), "--force", "--json")
        assert rc == 0 and json.loads(again)["cut_nodes"] == t["cut_nodes"] and json.loads(again)["collectives"] == t["collectives"], (
            again, err)
        stages += any("--stage" in e for e in t["sharding"])
    return any(" > " in e for t in json.loads(out)["trials"] for e in t["sharding"]), stages


def main():
    trials, first = int(sys.argv[2]) * (5 if harness.ALL else 1), int(sys.argv[3]) if len(sys.argv) > 3 else 1
    seen = dict(sent=0, inside=0, stages=0)

    def seed_holds(folder, seed):
        sent = trial(sys.argv[1], seed, folder)
        inside, stages = drawn(sys.argv[1], seed, folder)
        for name, found in (("sent", sent > 0), ("inside", inside), ("stages", stages)):
            seen[name] += found

    harness.run([("seed %d" % seed, seed_holds, seed) for seed in range(first, first + trials)])
    if not harness.PATTERN:
        good = seen["sent"] >= trials // 3 and seen["inside"] >= trials // 2 and seen["stages"] >= trials // 10
        harness.check("the random models communicate, shard bodies and have stages", good, seen)
    harness.finish()


if __name__ == "__main__":
    main()
