# SPDX-License-Identifier: Apache-2.0
"""Tests nodes sharded along a dimension of which their operator computes statistics, such as the last axis of a Softmax.

For every case of the rules' proof, every such dimension of every input is sharded over 2 and 3 devices (also with unequal shards), and
together with another dimension on a 2x2 mesh. The node must run sharded, with a reduction, and its result must equal the unsharded run.
Sizes are known and unknown before the run. Inputs near 0 are tested too: they show an epsilon that the engine does not have.

usage: expansions.py TESSERA PRINT_RULE [OPERATOR ...] [all]     all: every number of devices for every setting, not a sample"""
import json, os, re, shutil, sys

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rules"))
import cases_net, cases_norm, harness, prove

TESSERA, PRINT_RULE, ONLY = sys.argv[1], sys.argv[2], sys.argv[3:]
TURNS = {}
RAN = []  # number of shardings of each operator
LEAST_OPERATORS, LEAST = 30, 60  # operators and shardings of the short version
TINY = 1e-12
SIZES = {"Attention", "com.microsoft:MultiHeadAttention"}  # expanded only if sizes are known
PLACED = ("EyeLike", "OneHot", "Trilu")  # elements depend on their position only: nothing is communicated
PARTS = {"CumSum", "CumProd", "TopK"}  # computed in parts of at least K elements, else replicated; K is 2 in these cases


def tessera(*args):
    return harness.call(TESSERA, *args)


def model_of(name, since, c, rule, symbolic):
    domain, _, op = name.rpartition(":")
    m = prove.node_model(op, since, c, True, domain)
    m.graph.node[0].name = "node"
    m.ir_version = 10
    for v in m.graph.input if symbolic else []:
        dims = rule["inputs"][int(v.name[1:])]["dims"]
        for d, factors in zip(v.type.tensor_type.shape.dim, dims):
            column = op == "Einsum" and not factors  # dimension of a diagonal, as long as its row
            if d.dim_value > 1 and (len(factors) == 1 or column):  # splitting a product of factors needs its size
                d.dim_param = "size%d" % d.dim_value
    return m


def spec_of(tensor, f, sizes, n, second=None, m=1):
    """Returns the tensor sharded along factor f (and `second`) in the notation, or None if the tensor does not have it."""
    cuts, found = [], 0
    for factors in tensor["dims"]:
        parts = []
        for g in factors:
            k = n if g == f else m if g == second else 1
            found += k > 1
            parts.append((sizes[g], k))
        if len(parts) > 1 and any(k > 1 for _, k in parts):
            cuts.append("*".join("%d/%d" % p if p[1] > 1 else "%d" % p[0] for p in parts))
        else:
            cuts.append(str(max([k for _, k in parts], default=1)))
    if not found:
        return None
    return "{%s:%s}" % (",".join(cuts), ",".join(map(str, range(n * m)))) if found == (2 if m > 1 else 1) else None


def made_whole(d, cut):
    """Returns a value that a device computes in full and then slices, or None if each device computes only its part."""
    rc, _, err = tessera("partition", cut, "-o", os.path.join(d, "parts"))
    if rc:
        return err
    graph = onnx.load(os.path.join(d, "parts", "rank1.onnx"), load_external_data=False).graph
    shutil.rmtree(os.path.join(d, "parts"))
    vector = "node/Reshape"  # a vector of classes, made by a Range
    return next((n.input[0] for n in graph.node if n.op_type == "Slice" and n.input[0].startswith("node/") and vector not in n.input[0]),
                None)


def try_cut(d, m, inputs, c, rule, sizes, f, n, second=None, k=1):
    """Shards and runs the node. Returns (True if it was sharded, what is wrong or None)."""
    edits = []
    for i, t in enumerate(rule["inputs"]):
        if t["host"] or t["absent"] or isinstance(c["inputs"][i], prove.Host):
            continue
        text = spec_of(t, f, sizes, n, second, k)
        if text:
            edits = ["--shard", "node:x%d=%s" % (i, text)]
            break
    for i, t in enumerate(rule["outputs"] if not edits else []):  # factors that only the outputs have
        text = spec_of(t, f, sizes, n, second, k)
        edits = edits or (["--shard", "node:y%d=%s" % (i, text)] if text else [])
    if not edits:
        return False, None
    src, cut = os.path.join(d, "m.onnx"), os.path.join(d, "cut.onnx")
    onnx.save(m, src)
    rc, _, err = tessera("annotate", src, "--config", "c:%d" % (n * k), *edits, "-o", cut)
    if rc:
        return True, "annotate %s: %s" % (edits, err)
    rc, out, err = tessera("verify", cut, "--config", "c", "--inputs", inputs, "--json")
    known = all(dim.dim_value for v in m.graph.input for dim in v.type.tensor_type.shape.dim)
    whole = made_whole(d, cut) if m.graph.node[0].op_type in PLACED and known else None
    os.remove(cut)
    if whole:
        return True, "%s: made whole: %s" % (edits, whole)
    try:
        doc = json.loads(out)
    except ValueError:
        return True, "%s: exit %d %s" % (edits, rc, err)
    if rc or not doc["ok"]:
        return True, "%s: %s %s" % (edits, doc.get("outputs"), err)
    if doc["replicated"]:
        uneven = m.graph.node[0].op_type == "TopK" and -(-sizes[f] // n) < 2  # parts with fewer than K elements
        return not uneven, None if uneven else "%s: replicated %s" % (edits, doc["replicated"])
    if doc["cut_nodes"] < 1:
        return True, "%s: not cut" % edits
    if m.graph.node[0].op_type in PLACED:
        return True, None if sum(doc["collectives"].values()) == 1 else "%s: more than the result moved: %s" % (edits, doc["collectives"])
    if rule["factors"][f]["name"] == "q" or m.graph.node[0].op_type == "Einsum":
        return True, None  # rows of a causal query or of a diagonal differ only in position, so no reduction is needed
    if not {"AllGather"} & set(doc["collectives"]) if m.graph.node[0].op_type in PARTS else not {"AllReduce", "Reduce", "ReduceScatter"
                                                                                                 } & set(doc["collectives"]):
        return True, "%s: no collective: %s" % (edits, doc["collectives"])
    return True, None


def arrays(c, factor):
    """Returns a case's inputs, the first one multiplied by a factor."""
    given = {"x%d" % i: v for i, v in enumerate(c["inputs"]) if v is not None and not isinstance(v, prove.Host)}
    if "x0" in given and given["x0"].dtype.kind == "f":
        given["x0"] = given["x0"] * np.asarray(factor, given["x0"].dtype)
    return given


# Shards every statistics dimension of one case in these forms, (symbolic, factor of the inputs). Returns the number of shardings that ran,
# and what is wrong or None.
def prove_case(d, name, since, c, rule, forms):
    names = {"batch": 2, "seq": 3}
    sizes = [f["size"] if isinstance(f["size"], int) else eval(f["size"] or "0", {}, names) for f in rule["factors"]]
    stats = [i for i, f in enumerate(rule["factors"]) if f["kind"] == "stat" and sizes[i] > 1]
    free = [i for i, f in enumerate(rule["factors"]) if f["kind"] == "par" and sizes[i] > 1]
    inputs, count = os.path.join(d, "in.npz"), 0
    for symbolic, factor in forms:
        np.savez(inputs, **arrays(c, factor))
        m = model_of(name, since, c, rule, symbolic)
        compound = {g for t in rule["inputs"] for dim in t["dims"] for g in dim if len(dim) > 1}
        cuts = [(f, n, None, 1) for f in stats for n in (2, 3) if n <= sizes[f] and not (symbolic and f in compound)]
        cuts += [(f, 2, g, 2) for f in stats for g in free[:1] if not symbolic]
        turn = TURNS.setdefault(name, [0])
        turn[0] += 1  # in the short version, a different sharding for each case
        for cut in cuts if harness.ALL else cuts[turn[0] % max(len(cuts), 1):][:1]:
            ran, wrong = try_cut(d, m, inputs, c, rule, sizes, *cut)
            count += ran
            if wrong:
                return count, "%s%s" % ("symbolic " if symbolic else "tiny " if factor != 1 else "", wrong)
    return count, None


def lacks(name, since, c):
    """Returns why the engine cannot be the reference for the case, or None."""
    domain, _, op = name.rpartition(":")
    old = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 20)
    if old and op == "SkipSimplifiedLayerNormalization" and len(c["inputs"]) > 3:
        return "%s of ONNX Runtime %s leaves its bias out" % (op, onnxruntime.__version__)
    return prove.engine_lacks(prove.node_model(op, since, c, True, domain), c["inputs"])


def forms_of(name, c, k, count):
    """Returns the forms of case k of an operator. In the short version, two cases share them."""
    forms = ((False, 1), (False, TINY)) if name in PARTS or c["declare"] or name in SIZES else ((False, 1), (False, TINY), (True, 1))
    return forms if harness.ALL or count == 1 else forms[k % 2::2]


def has_diagonal(equation):
    """True if a term has a letter twice: the only Einsums that have such a dimension."""
    terms = [re.sub("[^a-zA-Z]", "", term) for term in equation.split("->")[0].split(",")]
    return any(len(set(term)) < len(term) for term in terms)


def operator(d, name, cases, sinces, left_out):
    """Tests a sample of the cases of an operator."""
    domain, _, op = name.rpartition(":")
    total, bad = 0, []
    if op == "Einsum":
        cases = [c for c in cases if has_diagonal(c["attributes"]["equation"])]
    for k, c in enumerate(harness.sample(cases, 2)):
        since = max(s for s in sinces if domain or s <= (c["opset"] or 1000))
        file = os.path.join(d, "rule.onnx")
        onnx.save(prove.node_model(op, since, c, True, domain), file)
        rule = json.loads(harness.good(PRINT_RULE, file))
        if rule["whole"] or not any(f["kind"] == "stat" for f in rule["factors"]):
            continue
        why = lacks(name, since, c)
        if why:
            left_out[why] = left_out.get(why, 0) + 1
            continue
        n, wrong = prove_case(d, name, since, c, rule, forms_of(name, c, k, len(cases)))
        total += n
        shapes = [None if v is None else list(np.shape(getattr(v, "value", v))) for v in c["inputs"]]
        bad += ["%s %s: %s" % (shapes, c["attributes"], wrong[:500])] if wrong else []
    assert not bad, "\n".join(bad)
    RAN.append(total)
    return None if total else False


def main():
    rows = [json.loads(line) for line in harness.good(PRINT_RULE).splitlines()]
    left_out = {}
    cases = {**cases_norm.cases(prove), **cases_net.cases(prove), **{p: prove.CASES[p] for p in PLACED if p in prove.CASES}}
    harness.run([(name, operator, name, of, [r["since"] for r in rows if prove.full(r) == name], left_out)
                 for name, of in cases.items() if not ONLY or name in ONLY])
    for why in sorted(left_out):
        print("# left out, %d cases: %s" % (left_out[why], why))
    print("# %d shardings of %d operators" % (sum(RAN), sum(map(bool, RAN))))
    if not ONLY and not harness.PATTERN:
        harness.check("enough shardings", sum(RAN) >= LEAST and sum(map(bool, RAN)) >= LEAST_OPERATORS, RAN)
    harness.finish()


main()
