# SPDX-License-Identifier: Apache-2.0
"""Tests shardings that need more than a smaller node: windows of neighbours (convolutions, slices, concatenations) and lookups in a sharded
table.

For every such case of the rules' proof, every such factor is sharded in 2, 3 and 4 parts, and pairs of factors on a mesh: once with
replicated inputs (devices slice) and once with sharded inputs (devices exchange). The node must run sharded, and its result must equal
the unsharded run. Sharded inputs must not be gathered.

usage: recipes.py TESSERA PRINT_RULE [all]     cases are operators; without `all` a sample of settings and shardings of each"""
import itertools, json, os, random, sys

import numpy as np
import onnx
from onnx import helper

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rules"))
import harness, prove

TESSERA, PRINT_RULE = sys.argv[1:3]
LEFT_OUT = {}  # reason -> number of skipped cases
LEAST = 60  # a smaller number of shardings means that the test no longer finds windows and lookups


def spec_of(tensor, sizes, cuts, order):
    """Returns the spec of the tensor with these factors sharded {factor: parts}. order: the factors of the mesh, outermost first."""
    dims, here = [], []
    for factors in tensor["dims"]:
        here += [f for f in factors if f in cuts]
        if len(factors) > 1:
            dims.append("*".join("%d/%d" % (sizes[f], cuts[f]) if f in cuts else "%d" % sizes[f] for f in factors))
        else:
            dims.append(str(cuts.get(factors[0], 1) if factors else 1))
    groups = {}
    for device, at in enumerate(itertools.product(*(range(cuts[f]) for f in order))):
        groups.setdefault(tuple(at[order.index(f)] for f in here), []).append(str(device))
    owners = [g[0] if len(g) == 1 else "(%s)" % ",".join(g) for _, g in sorted(groups.items())]
    if not here:
        owners = ["%d" % d for d in range(int(np.prod(list(cuts.values()))))]
    return "{%s:%s}" % (",".join(dims), ",".join(owners)), len(here)


def with_producers(m, rule):
    """Returns the model with an Identity before each input of the node."""
    out = onnx.ModelProto()
    out.CopyFrom(m)
    node = out.graph.node[0]
    for i, name in enumerate(list(node.input)):
        if name and not rule["inputs"][i]["host"] and any(v.name == name for v in out.graph.input):
            node.input[i] = "p" + name
            out.graph.node.insert(len(out.graph.node) - 1, helper.make_node("Identity", [name], ["p" + name], name="make" + name))
    return out


def try_cut(d, model, rule, sizes, cuts, apart, constants):
    """Shards and runs the node. Returns what is wrong, or None."""
    order, n = sorted(cuts), int(np.prod(list(cuts.values())))
    edits = []
    for side in ("inputs", "outputs"):
        for i, t in enumerate(rule[side]):
            if t["host"] or t["absent"] or not t["dims"] or side == "inputs" and apart and i in constants:
                continue
            spec, found = spec_of(t, sizes, cuts, order)
            value = "%s%d" % ("x" if side == "inputs" else "y", i)
            if side == "inputs" and apart:
                edits += ["--shard", "make%s:p%s=%s" % (value, value, spec), "--shard", "node:p%s=%s" % (value, spec)]
            elif not apart and side == ("inputs" if any(rule["factors"][f]["kind"] == "red" for f in cuts) else "outputs"):
                edits += ["--shard", "node:%s=%s" % (value, spec)]
    out = os.path.join(d, "cut.onnx")
    rc, _, err = harness.call(TESSERA, "annotate", model, "--config", "c:%d" % n, *edits, "-o", out)
    if rc:
        return "annotate: %s" % err[:400]
    rc, text, err = harness.call(TESSERA, "verify", out, "--config", "c", "--inputs", os.path.join(d, "in.npz"), "--json")
    doc = json.loads(text) if text.startswith("{") else {}
    if rc or not doc.get("ok"):
        return "%s: exit %d %s %s" % (edits, rc, doc, err[:400])
    if doc["replicated"] or doc["cut_nodes"] < 1:
        return "%s: not cut: %s" % (edits, doc)
    if apart and rule["windows"] and doc["collectives"].get("AllGather"):
        return "%s: brought together: %s" % (edits, doc["collectives"])
    return None


# Shards every special factor of one case. Returns what is wrong, or None.
def try_case(d, name, since, c, counts, rng):
    domain, _, op = name.rpartition(":")
    whole = prove.node_model(op, since, c, True, domain)
    whole.graph.node[0].name = "node"
    plain = os.path.join(d, "plain.onnx")
    onnx.save(whole, plain)
    rule = json.loads(harness.good(PRINT_RULE, plain))
    special = {w["factor"]
               for w in rule["windows"]} | {r["factor"] for r in rule["rewrites"] if r["kind"] in ("lookup", "scatter", "range")}
    if not special:
        return None
    why = prove.engine_lacks(prove.node_model(op, since, c, True, domain), c["inputs"])
    if why:
        LEFT_OUT[why] = LEFT_OUT.get(why, 0) + 1
        return None
    np.savez(os.path.join(d, "in.npz"),
             **{"x%d" % i: v for i, v in enumerate(c["inputs"]) if v is not None and not isinstance(v, prove.Host)})
    sizes = [f["size"] if isinstance(f["size"], int) else 0 for f in rule["factors"]]
    most = [min(s, f["least"] or s) for s, f in zip(sizes, rule["factors"])]
    free = [i for i, f in enumerate(rule["factors"]) if f["kind"] in ("par", "red") and most[i] > 1 and f["unit"] == 1]
    cuts = [{f: n} for f in sorted(special) for n in (2, 3, 4) if f in free and n <= most[f]]
    cuts += [{f: 2, g: min(3, most[g])} for f in sorted(special) for g in free if f in free and f != g and not (g in special and g < f)]
    if not harness.ALL:
        cuts = rng.sample(cuts, min(2, len(cuts)))
    constants = {i for i, v in enumerate(c["inputs"]) if isinstance(v, prove.Host)}
    for apart in (False, True) if any(not t["host"] for t in rule["inputs"]) else (False,):
        model = os.path.join(d, "shaped.onnx")
        onnx.save(with_producers(whole, rule) if apart else whole, plain)
        rc, _, err = harness.call(TESSERA, "shapes", plain, "-o", model)
        if rc:
            return "shapes: " + err[:300]
        for x in cuts if harness.ALL or len(cuts) < 2 else cuts[apart:apart + 1]:
            wrong = try_cut(d, model, rule, sizes, x, apart, constants)
            counts[op] = counts.get(op, 0) + 1
            if wrong:
                return wrong
    return None


def operator(d, name, cases, sinces, counts, rng):
    """Tests a sample of the cases of an operator."""
    domain, bad = name.rpartition(":")[0], []
    fitting = lambda c: [s for s in sinces if domain or s <= (c["opset"] or 1000)]
    for c in harness.sample([c for c in cases if not c["whole"] and fitting(c)], 2):
        wrong = try_case(d, name, max(fitting(c)), c, counts, rng)
        shapes = [None if v is None else getattr(v, "shape", None) for v in c["inputs"]]
        bad += ["%s %s %s" % (shapes, c["attributes"], wrong)] if wrong else []
    assert not bad, "\n".join(bad)
    return None if name.rpartition(":")[2] in counts else False


def main():
    rows = [json.loads(line) for line in harness.good(PRINT_RULE).splitlines()]
    sinces = lambda name: [r["since"] for r in rows if prove.full(r) == name and not r["whole"]]
    counts, rng = {}, random.Random(1)
    harness.run([(name, operator, name, cases, sinces(name), counts, rng) for name, cases in prove.all_cases().items() if sinces(name)])
    for why in sorted(LEFT_OUT):
        print("# left out, %d cases: %s" % (LEFT_OUT[why], why))
    print("# %d shardings compared: %s" % (sum(counts.values()), counts))
    assert sum(counts.values()) >= LEAST or harness.PATTERN, "only %d shardings were compared" % sum(counts.values())
    harness.finish()


main()
