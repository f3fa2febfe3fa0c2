# SPDX-License-Identifier: Apache-2.0
"""Tests nodes whose attributes must change when they are sharded, and nodes with a term that must be added only once.

Such attributes count groups of a convolution, heads of an attention, or columns of packed weights. For every such case of the rules'
proof, every factor that may be sharded is sharded, and every two of them on a mesh. The node must run sharded, and its result must
equal the unsharded run.

usage: counts.py TESSERA PRINT_RULE [all]     cases are operators; without `all` two settings of each"""
import itertools, json, os, sys

import numpy as np
import onnx

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rules"))
import cases_net, harness, prove

TESSERA, PRINT_RULE = sys.argv[1:3]
LEFT_OUT = {}  # reason -> number of skipped cases
LEAST = 30  # a smaller number of shardings means that the test no longer finds attributes that count
compared = 0  # number of shardings


def spec_of(tensor, sizes, cuts):
    """Returns the sharding spec of the tensor with these factors sharded {factor: parts}, and how many of them the tensor has."""
    dims, found = [], 0
    for factors in tensor["dims"]:
        found += sum(f in cuts for f in factors)
        if len(factors) > 1:
            dims.append("*".join("%d/%d" % (sizes[f], cuts[f]) if f in cuts else "%d" % sizes[f] for f in factors))
        else:
            dims.append(str(cuts.get(factors[0], 1) if factors else 1))
    return "{%s}" % ",".join(dims), found


def try_cut(d, model, rule, sizes, cuts):
    """Shards one input that has all the factors; the others follow by inference. Returns what is wrong, or None."""
    specs = [(i, *spec_of(t, sizes, cuts)) for i, t in enumerate(rule["inputs"]) if not t["host"] and not t["absent"]]
    i, spec, found = max(specs, key=lambda x: x[2])
    if found < len(cuts):
        return "no input has all of the factors %s" % sorted(cuts)
    n = int(np.prod(list(cuts.values())))
    out = os.path.join(d, "cut.onnx")
    rc, _, err = harness.call(TESSERA, "annotate", model, "--config", "c:%d" % n, "--shard", "node:x%d=%s" % (i, spec), "-o", out)
    if rc:
        return "x%d=%s: annotate: %s" % (i, spec, err[:300])
    rc, text, err = harness.call(TESSERA, "verify", out, "--config", "c", "--inputs", os.path.join(d, "in.npz"), "--json")
    doc = json.loads(text) if text.startswith("{") else {}
    good = rc == 0 and doc.get("ok") and doc.get("cut_nodes") == 1
    return None if good else "x%d=%s: exit %d %s %s" % (i, spec, rc, doc, err[:300])


# Shards every factor of one case. Returns what is wrong, or None.
def try_case(d, name, since, c):
    global compared
    domain, _, op = name.rpartition(":")
    model, plain = os.path.join(d, "shaped.onnx"), os.path.join(d, "plain.onnx")
    m = prove.node_model(op, since, c, True, domain)
    m.graph.node[0].name = "node"
    onnx.save(m, plain)
    rule = json.loads(harness.good(PRINT_RULE, plain))
    if not any(r["kind"] in ("attr", "once") for r in rule["rewrites"]):
        return None  # nothing to rewrite
    why = prove.engine_lacks(prove.node_model(op, since, c, True, domain), c["inputs"])
    if why:
        LEFT_OUT[why] = LEFT_OUT.get(why, 0) + 1
        return None
    rc, _, err = harness.call(TESSERA, "shapes", plain, "-o", model)
    if rc:
        return "shapes: " + err[:300]
    np.savez(os.path.join(d, "in.npz"),
             **{"x%d" % i: v for i, v in enumerate(c["inputs"]) if v is not None and not isinstance(v, prove.Host)})
    sizes = [f["size"] if isinstance(f["size"], int) else 0 for f in rule["factors"]]
    fits = lambda f, n: all(j * sizes[f] // n % rule["factors"][f]["unit"] == 0 for j in range(n))
    counted = {r["factor"]
               for r in rule["rewrites"] if r["kind"] == "attr"} | {i for i, f in enumerate(rule["factors"]) if f["kind"] == "red"}
    counted = [f for f in sorted(counted) if rule["factors"][f]["kind"] in ("par", "red") and sizes[f] > 1]
    cuts = [{f: n} for f in counted for n in (2, 3) if n <= sizes[f] and fits(f, n)]
    cuts += [{f: 2, g: 2} for f, g in itertools.combinations(counted, 2) if fits(f, 2) and fits(g, 2)]
    for x in cuts:
        wrong = try_cut(d, model, rule, sizes, x)
        if wrong:
            return wrong
    compared += len(cuts)
    return None


def operator(d, name, cases, sinces):
    """Tests a sample of the cases of an operator; every factor of each is sharded."""
    domain, bad, before = name.rpartition(":")[0], [], compared
    for c in harness.sample([c for c in cases if not c["whole"]], 2):
        wrong = try_case(d, name, max(s for s in sinces if domain or s <= (c["opset"] or 1000)), c)
        bad += ["%s: %s" % (c["attributes"], wrong)] if wrong else []
    assert not bad, "\n".join(bad)
    return None if compared > before else False


def main():
    rows = [json.loads(line) for line in harness.good(PRINT_RULE).splitlines()]
    cases = cases_net.cases(prove)
    harness.run([(name, operator, name, of, [r["since"] for r in rows if prove.full(r) == name]) for name, of in cases.items()])
    for why in sorted(LEFT_OUT):
        print("# left out, %d cases: %s" % (LEFT_OUT[why], why))
    print("# %d shardings compared" % compared)
    assert compared >= LEAST or harness.PATTERN, "only %d shardings were compared" % compared
    harness.finish()


main()
