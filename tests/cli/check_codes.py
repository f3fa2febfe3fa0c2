# SPDX-License-Identifier: Apache-2.0
"""Tests every code that `tessera check` can report: a wrong model must give it with the exact text of check_codes.json, and the
corrected model must not give it. A code without a case fails, and so does a case whose code the sources no longer have.

usage: check_codes.py TESSERA [--update]"""
import glob, json, os, re, subprocess, sys, tempfile

import harness

TESSERA = os.path.abspath(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "check_codes.json")
ROOT = os.path.join(HERE, "..", "..")
try:
    import onnx
    from onnx import TensorProto as T, helper
except ImportError:
    print("ok check codes # SKIP Python's onnx is not here")
    sys.exit(0)

info = helper.make_tensor_value_info
CASES = {}

# Codes in these source files that `tessera check` cannot report, and the test that triggers each.
ELSEWHERE = {
    "config-foreign": "tests/sharding/test_check.c",  # only by API calls: a file refers to configurations by name
    "config-too-large": "tests/sharding/test_flow.c",  # check skips such a flow
    "sharding-left-out": "tests/sharding/test_spec.c",  # only in the text of an edit
    "sharding-misfit": "tests/sharding/test_spec.c",
    "sharding-text": "tests/sharding/test_spec.c",
    "spec-rank-unknown": "tests/sharding/test_spec.c",  # check reports spec-axis-maybe-twice first
    "stages-many": "tests/sharding/test_stages.c",
    "value-not-ready": "tests/sharding/test_flow.c",
}


class Spec:
    def __init__(self, value, dims=(), devices=(), groups=()):
        """dims: (axis, shards) or (axis, [(size, shards), ...]); groups: (key, members)."""
        self.value, self.dims, self.devices, self.groups = value, dims, devices, groups

    def write(self, p):
        if self.value is not None:
            p.tensor_name = self.value
        p.device.extend(self.devices)
        for key, members in self.groups:
            g = p.index_to_device_group_map.add()
            g.key = key
            g.value.extend(members)
        for axis, cuts in self.dims:
            d = p.sharded_dim.add()
            d.axis = axis
            for size, n in (cuts if isinstance(cuts, list) else [(None, cuts)]):
                s = d.simple_sharding.add()
                if n is not None:
                    s.num_shards = n
                if isinstance(size, str):
                    s.dim_param = size
                elif size is not None:
                    s.dim_value = size


def entry(m, node, *specs, config="c", stage=None):
    """Adds an annotation to the node of this name."""
    n = next(n for n in m.graph.node if n.name == node)
    add_entry(n, *specs, config=config, stage=stage)
    return m


def add_entry(n, *specs, config="c", stage=None):
    c = n.device_configurations.add()
    if config is not None:
        c.configuration_id = config
    if stage is not None:
        c.pipeline_stage = stage
    for s in specs:
        s.write(c.sharding_spec.add())


def base(devices=2, ir=11, rows=4, configs=(("c", None, ()),)):
    """A model with mm: y = x w [rows, 8] and act: z = Relu(y)."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"), helper.make_node("Relu", ["y"], ["z"], name="act")]
    g = helper.make_graph(nodes, "g", [info("x", T.FLOAT, [rows, 6]), info("w", T.FLOAT, [6, 8])], [info("z", T.FLOAT, [rows, 8])])
    g.value_info.append(info("y", T.FLOAT, [rows, 8]))
    m = helper.make_model(g, ir_version=ir, opset_imports=[helper.make_opsetid("", 18)])
    for name, n, names in configs:
        c = m.configuration.add()
        c.name = name
        c.num_devices = devices if n is None else n
        c.device.extend(names)
    return m


def case(code, wrong, right):
    assert code not in CASES, code
    CASES[code] = (wrong, right)


def at_w(*args, **more):
    """The base model with one spec, of w at mm."""
    return lambda: entry(base(**more), "mm", Spec("w", *args))


GOOD = at_w([(1, 2)], [0, 1])



def stored(line):
    """A model with a weight, and metadata that says how it is stored."""
    m = entry(base(), "mm", Spec("w", [(1, 2)], [0, 1]))
    m.graph.initializer.append(helper.make_tensor("w", T.FLOAT, [6, 8], [0.0] * 48))
    del m.graph.input[1]
    helper.set_model_props(m, {"ai.tessera.stored": line})
    return m


# ---- configurations

case("config-device-count", lambda: base(configs=[("c", 0, ["CPU", "NPU"])]), lambda: base(configs=[("c", 2, ["CPU", "NPU"])]))
case("config-device-names", lambda: base(configs=[("c", 3, ["CPU", "NPU"])]), lambda: base(configs=[("c", 2, ["CPU", "NPU"])]))
case("config-name-empty", lambda: base(configs=[("", None, ())]), base)
case("config-twice", lambda: base(configs=[("c", None, ())] * 2), lambda: base(configs=[("c", None, ()), ("d", None, ())]))
case("config-unknown", lambda: entry(base(configs=[("tp2", None, ())]), "mm", config="tp"),
     lambda: entry(base(configs=[("tp2", None, ())]), "mm", config="tp2"))
case("annotation-no-config", lambda: entry(base(), "mm", config=None), lambda: entry(base(), "mm"))
case("annotation-twice", lambda: entry(entry(base(), "mm"), "mm"), lambda: entry(entry(base(), "mm"), "act"))
case("annotation-ir-version", lambda: base(ir=10), base)

# ---- order of nodes

def unsorted():
    """The base model with its nodes in the wrong order."""
    m = base()
    nodes = list(m.graph.node)[::-1]
    del m.graph.node[:]
    m.graph.node.extend(nodes)
    return m


case("nodes-unsorted", unsorted, base)

# ---- inputs and outputs

def zipped():
    """The base model with a ZipMap of its output, which is a sequence of maps."""
    m = base()
    m.graph.node.append(
        helper.make_node("ZipMap", ["z"], ["probabilities"], name="zip", domain="ai.onnx.ml", classlabels_int64s=list(range(8))))
    out = m.graph.output.add(name="probabilities")
    out.type.sequence_type.elem_type.map_type.key_type = T.INT64
    out.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = T.FLOAT
    m.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    return m


case("port-type", zipped, base)

# ---- specs by themselves

case("spec-no-value", lambda: entry(base(), "mm", Spec(None, [(1, 2)], [0, 1])), GOOD)
case("spec-value-unknown", lambda: entry(base(), "mm", Spec("W", [(1, 2)], [0, 1])), GOOD)
case("shard-value", lambda: entry(base(), "mm", Spec("z", [(1, 2)], [0, 1])), GOOD)
case("spec-twice", lambda: entry(base(), "mm", Spec("w", [(1, 2)], [0, 1]), Spec("w", [(1, 2)], [0, 1])), GOOD)
case("shard-axis", at_w([(2, 2)], [0, 1]), GOOD)
case("shard-axis-twice", at_w([(1, 2), (-1, 1)], [0, 1]), GOOD)
case("shard-count", at_w([(1, 0)], [0, 1]), GOOD)
case("shard-size", at_w([(0, 7)], list(range(7)), devices=8), at_w([(0, 6)], list(range(6)), devices=8))
case("shard-device", at_w([(1, 2)], [0, 2]), GOOD)
case("spec-dim-empty", at_w([(1, [])], [0, 1]), GOOD)
case("spec-size", at_w([(1, [(9, 2)])], [0, 1]), at_w([(1, [(8, 2)])], [0, 1]))
case("spec-symbol", lambda: entry(base(rows="batch"), "mm", Spec("x", [(0, [("bach", 2)])], [0, 1])),
     lambda: entry(base(rows="batch"), "mm", Spec("x", [(0, [("batch", 2)])], [0, 1])))
case("spec-factors", at_w([(1, [(3, 1), (4, 2)])], [0, 1]), at_w([(1, [(2, 2), (4, 1)])], [0, 1]))
case("spec-size-open", at_w([(1, [(None, 2), ("k", 2)])], [0, 1, 2, 3], devices=4), at_w([(1, [(None, 2), (4, 2)])], [0, 1, 2, 3],
                                                                                         devices=4))
case("stored-weight", lambda: stored("c:w={2,1:0,2}"), lambda: stored("c:w={2,1:0,1}"))
case("spec-owners", at_w([(1, 2)], [0, 1, 1]), GOOD)
case("spec-devices-open", at_w([(1, 2)]), GOOD)
case("spec-empty", at_w(), GOOD)
case("spec-large", at_w([(0, [(1 << 20, 1 << 11), (1 << 20, 1 << 11)]), (1, 2)], [0]), GOOD)
case("spec-axis-order", at_w([(1, 2), (0, 2)], [0, 1, 2, 3], devices=4), at_w([(0, 2), (1, 2)], [0, 1, 2, 3], devices=4))
case("device-twice", at_w([(1, 2)], [0, 0]), GOOD)


def strange(axes):
    """The base model with a node whose output has an unknown rank."""
    m = base(devices=4)
    m.graph.node.append(helper.make_node("Strange", ["z"], ["s"], name="strange", domain="my"))
    m.graph.output.append(helper.make_empty_tensor_value_info("s"))
    m.opset_import.append(helper.make_opsetid("my", 1))
    return entry(m, "strange", Spec("s", axes, [0, 1, 2, 3]))


case("spec-axis-maybe-twice", lambda: strange([(0, 2), (-1, 2)]), lambda: strange([(0, 2), (1, 2)]))

# ---- groups

case("group-empty", at_w([(1, 2)], [-1, 0], [(-1, [])]), at_w([(1, 2)], [-1, 0], [(-1, [1])]))
case("group-key-twice", at_w((), [-1], [(-1, [0]), (-1, [1])]), at_w((), [-1], [(-1, [0, 1])]))
case("group-member-twice", at_w((), [-1], [(-1, [0, 0])]), at_w((), [-1], [(-1, [0, 1])]))
case("group-key-device", at_w((), [1], [(1, [0, 1])]), at_w((), [-1], [(-1, [0, 1])]))
case("group-unused", at_w([(1, 2)], [0, 1], [(-1, [0, 1])]), GOOD)

# ---- rules of nodes, and the flow

case("spec-disagree", lambda: entry(base(), "mm", Spec("x", [(1, 2)], [0, 1]), Spec("w", [(0, 2)], [1, 0])),
     lambda: entry(base(), "mm", Spec("x", [(1, 2)], [0, 1]), Spec("w", [(0, 2)], [0, 1])))


def resized(axis):
    nodes = [helper.make_node("Unique", ["x"], ["y"], name="unique", axis=0)]
    g = helper.make_graph(nodes, "g", [info("x", T.FLOAT, [4, 6])], [info("y", T.FLOAT, [None, 6])])
    m = helper.make_model(g, ir_version=11, opset_imports=[helper.make_opsetid("", 18)])
    c = m.configuration.add()
    c.name, c.num_devices = "c", 2
    return entry(m, "unique", Spec("x", [(axis, 2)], [0, 1])) if axis is not None else m


case("not-cut-here", lambda: resized(0), lambda: resized(None))
case("placement-ignored", lambda: entry(base(), "mm", Spec("x", devices=[0]), Spec("w", devices=[1])),
     lambda: entry(base(), "mm", Spec("x", devices=[0, 1]), Spec("w", devices=[1])))
case("reshard-implied", lambda: entry(entry(base(), "mm", Spec("w", [(1, 2)], [0, 1])), "act", Spec("z", [(0, 2)], [0, 1])),
     lambda: entry(entry(base(), "mm", Spec("w", [(1, 2)], [0, 1])), "act", Spec("z", [(1, 2)], [0, 1])))
case("work-twice", at_w([(1, 2)], [-1, -2], [(-1, [0, 1]), (-2, [2, 3])], devices=4), at_w([(1, 4)], [0, 1, 2, 3], devices=4))


def branches(then_axis, else_axis):
    graphs = {}
    for name, axis in (("then_branch", then_axis), ("else_branch", else_axis)):
        n = helper.make_node("Neg", ["x"], [name + "_out"], name="inner")
        add_entry(n, Spec(name + "_out", [(axis, 2)], [0, 1]))
        graphs[name] = helper.make_graph([n], name, [], [info(name + "_out", T.FLOAT, [4, 6])])
    g = helper.make_graph([helper.make_node("If", ["c"], ["y"], name="choose", **graphs)], "g",
                          [info("x", T.FLOAT, [4, 6]), info("c", T.BOOL, [])], [info("y", T.FLOAT, [4, 6])])
    m = helper.make_model(g, ir_version=11, opset_imports=[helper.make_opsetid("", 18)])
    c = m.configuration.add()
    c.name, c.num_devices = "c", 2
    return m


case("body-disagree", lambda: branches(0, 1), lambda: branches(1, 1))

# ---- stages

case("stage-range", lambda: entry(base(), "mm", stage=-1), lambda: entry(base(), "mm", stage=0))
case("stage-order", lambda: entry(entry(base(), "mm", stage=1), "act", stage=0),
     lambda: entry(entry(base(), "mm", stage=0), "act", stage=1))
NAMED = [("c", 2, ("CPU", "NPU"))]
case("stage-beyond", lambda: entry(base(configs=NAMED), "mm", stage=2), lambda: entry(base(configs=NAMED), "mm", stage=1))


def in_body(stage):
    m = entry(branches(0, 0), "choose", stage=1)
    body = next(a.g for a in m.graph.node[0].attribute if a.name == "then_branch")
    body.node[0].device_configurations[0].pipeline_stage = stage
    return m


case("outside-stage", lambda: in_body(0), lambda: in_body(1))
case("stage-return", lambda: entry(entry(base(configs=NAMED), "mm", stage=1), "act", stage=0),
     lambda: entry(entry(base(configs=NAMED), "mm", stage=0), "act", stage=1))


def many_configs(n):
    m = base(configs=[("c%d" % i, None, ()) for i in range(n)])
    m.graph.node.append(helper.make_node("Neg", ["x"], ["o"], name="other"))
    for i in range(n):
        entry(m, "mm", config="c%d" % i, stage=1)
        entry(m, "other", config="c%d" % i, stage=0)  # mm does not need it, so it is no mistake, but check must follow it
    return m


case("stage-unchecked", lambda: many_configs(257), lambda: many_configs(256))


def long_chain(n):
    """Two configurations: the first one is always checked completely."""
    m = base(configs=(("c", 2, ()), ("again", 2, ())))
    before = "z"
    for i in range(n):
        m.graph.node.append(helper.make_node("Neg", [before], ["n%d" % i], name="n%d" % i))
        before = "n%d" % i
    return entry(entry(m, "mm", Spec("w", [(1, 2)], [0, 1])), "mm", Spec("w", [(1, 2)], [0, 1]), config="again")


case("flow-unchecked", lambda: long_chain(20000), lambda: long_chain(20))


# ---- comparison

def codes_of_sources():
    found = set()
    for name in ("check", "examine", "agree", "flow", "flow_body", "flow_lists", "flow_model", "misplaced", "stage_devices", "spec_layout",
                 "stored"):
        with open(*glob.glob(os.path.join(ROOT, "src", "sharding", "**", name + ".c"), recursive=True)) as f:
            text = f.read()
        found |= set(re.findall(r"\bDIAG_([a-z]\w+)", text)) | set(re.findall(r"\b(?:ERROR|REMARK)\(sc, \w+, (\w+)", text)) - {"code"}
    return {c.replace("_", "-") for c in found}


def compares_with(test, code):
    """True if the test's source has the code as a string, outside of comments. The test itself fails if the code is not reported."""
    with open(os.path.join(ROOT, test)) as f:
        return any('"%s"' % code in re.split(r"\s#|//", line)[0] for line in f)


def check(m, path):
    onnx.save(m, path)
    p = subprocess.run([TESSERA, "check", path, "--json"], capture_output=True, timeout=60)
    assert p.returncode in (0, 1), p.stderr
    return json.loads(p.stdout)["findings"]


def main():
    golden, tell = {}, lambda good, name, why="": harness.check(name, good, why)
    wanted = {} if "--update" in sys.argv else json.load(open(GOLDEN))
    sources = codes_of_sources()
    for code in sorted(sources - set(CASES) - set(ELSEWHERE)):
        tell(False, code, "no case: add one to tests/cli/check_codes.py, then run it with --update")
    for code in sorted((set(CASES) | set(ELSEWHERE)) - sources):
        tell(False, code, "the checker does not have it")
    for code, test in ELSEWHERE.items():
        tell(compares_with(test, code), code + " elsewhere", "not in " + test)
    with tempfile.TemporaryDirectory(prefix="tessera-codes-") as folder:
        path = os.path.join(folder, "m.onnx")
        for code, (wrong, right) in CASES.items():
            found = [f for f in check(wrong(), path) if f["code"] == code]
            golden[code] = {k: found[0][k]
                            for k in ("severity", "message", "hint", "node", "value", "axis", "configuration")} if found else None
            tell(len(found) > 0, code + " is found")
            if wanted and found:
                tell(golden[code] == wanted.get(code), code + " word for word",
                     "check_codes.json has another text than %s: if this one is right, run check_codes.py --update" % golden[code])
            found = [f for f in check(right(), path) if f["code"] == code or f["severity"] == "error"]
            tell(not found, code + " is not found in what is right", found)
    if "--update" in sys.argv:
        with open(GOLDEN, "w") as f:
            json.dump(golden, f, indent=1, sort_keys=True)
            f.write("\n")
    harness.finish()


if __name__ == "__main__":
    main()
