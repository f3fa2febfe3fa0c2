# SPDX-License-Identifier: Apache-2.0
"""Tests that `check` reports everything that `partition --strict` refuses, and nothing else.

Both commands run on the node tests of the onnx package and on the small models. Shardings are valid random ones
(annotate --random), and shardings of a single value along any one axis.

usage: check_says.py TESSERA MODELS [all]     without `all` a few shardings of a sample"""
import glob, json, os, random, sys

import onnx

import harness

TESSERA, MODELS = sys.argv[1:3]
NODES = os.path.join(os.path.dirname(onnx.__file__), "backend/test/data/node")
rng = random.Random(1)
DONE = {"cases": 0, "refused": 0}
wrong = []  # where check and partition disagree


def tessera(*args):
    return harness.call(TESSERA, *args, timeout=300)


def single_cuts(m):
    """Yields --shard arguments that shard one value of one node along one axis, for every value with known sizes."""
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
              for v in list(m.graph.input) + list(m.graph.output) + list(m.graph.value_info) if v.type.HasField("tensor_type")}
    shapes.update({t.name: list(t.dims) for t in m.graph.initializer})
    for k, n in enumerate(m.graph.node):
        for name in dict.fromkeys(list(n.input) + list(n.output)):
            for axis, size in enumerate(shapes.get(name, [])):
                if size > 1:
                    pattern = ",".join("2" if a == axis else "1" for a in range(len(shapes[name])))
                    yield '"#%d":"%s"={%s:0,1}' % (k, name, pattern)


def compare(d, model, edits):
    """Runs check and partition on the model with these edits, and records where they disagree."""
    out, parts = d + "/m.onnx", d + "/parts"
    rc, _, err = tessera("annotate", model, "--config", "c:2", *edits, "-o", out)
    if rc:
        return
    code, text, err = tessera("partition", out, "-o", parts, "--strict", "--dry-run")
    rc, found, said = tessera("check", out, "--json")
    assert rc in (0, 1) and code >= 0, "check: exit %d %s; partition: exit %d %s" % (rc, said, code, err)
    doc = json.loads(found)
    uncut = [f for f in doc.get("findings", []) if f["code"] in ("not-cut-here", "placement-ignored")]
    said = doc.get("errors", 0) + doc.get("warnings", 0)
    DONE["cases"] += 1
    DONE["refused"] += code != 0
    silent, early = code != 0 and not said, code == 0 and (uncut or doc.get("errors", 0))
    if silent or early:
        wrong.append("%s %s: partition exit %d, check reports %d: %s" %
                     (os.path.basename(os.path.dirname(model)), " ".join(map(str, edits))[:150], code, said,
                      (err if silent else str(uncut[:1])).replace("\n", " ")[:400]))


def one_hot(path, classes):
    """Writes a OneHot whose output has this number of classes: a number, or a name. With a name its last part cannot be sharded."""
    value = onnx.helper.make_tensor_value_info
    inputs = [
        value("at", onnx.TensorProto.INT64, [3]),
        value("depth", onnx.TensorProto.INT64, []),
        value("off_on", onnx.TensorProto.FLOAT, [2])
    ]
    node = onnx.helper.make_node("OneHot", ["at", "depth", "off_on"], ["y"])
    graph = onnx.helper.make_graph([node], "g", inputs, [value("y", onnx.TensorProto.FLOAT, [3, classes])])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=11), path)


def replaced(d):
    """A OneHot is replaced by simpler nodes, which are sharded if the size is known. If not, check must report the OneHot itself."""
    model = d + "/one_hot.onnx"
    for classes, refused in ((8, 0), ("classes", 1)):
        before = DONE["refused"]
        one_hot(model, classes)
        compare(d, model, ["--shard", '"#0":"y"={1,2:0,1}'])
        assert DONE["refused"] - before == refused and not wrong, (classes, wrong)


def staged_lists(d):
    """A sequence of strings cannot be passed to another stage. check must report that although no value is sharded. Floats can be
    passed."""
    value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    for kind, refused in ((onnx.TensorProto.STRING, 1), (onnx.TensorProto.FLOAT, 0)):
        nodes = [node("SequenceConstruct", ["x", "x"], ["s"], name="list"), node("SequenceAt", ["s", "k"], ["y"], name="at")]
        at = onnx.helper.make_tensor("k", onnx.TensorProto.INT64, [], [1])
        graph = onnx.helper.make_graph(nodes, "g", [value("x", kind, [2, 3])], [value("y", kind, [2, 3])], [at])
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=11), d + "/lists.onnx")
        before = DONE["refused"]
        compare(d, d + "/lists.onnx", ["--stage", "list=0", "--stage", "at=1"])
        assert DONE["refused"] - before == refused and not wrong, (kind, wrong)


def several_tiles(m):
    """Yields --shard arguments that split a value into 4 tiles and assign them to 2 devices at random, adjacent or not."""
    for word in single_cuts(m):
        name, pattern = word.rsplit("={", 1)
        owners = [0, 0, 1, 1]
        rng.shuffle(owners)
        yield "%s={%s:%s}" % (name, pattern.split(":")[0].replace("2", "4"), ",".join(map(str, owners)))


def several(d, paths, single, tiles, random_count):
    """Compares both commands on each model: with shardings of one value, with four tiles, and with valid random shardings."""
    assert paths, "no models"
    for f in paths:
        m = onnx.load(f, load_external_data=False)
        words = list(single_cuts(m)), list(several_tiles(m))
        for found, count in zip(words, (single, tiles)):
            for word in found if count is None else rng.sample(found, min(count, len(found))):
                compare(d, f, ["--shard", word])
        for _ in range(random_count):
            compare(d, f, ["--random", rng.randrange(1000)])
    assert not wrong, "\n".join(wrong[:40])


def node_tests(d):
    tests = sorted(glob.glob(NODES + "/*/model.onnx"))
    several(d, tests if harness.ALL else rng.sample(tests, min(60, len(tests))), *((None, None, 1) if harness.ALL else (2, 1, 1)))


def placed_apart(d):
    """No device has all inputs of a node: whatever its operator, check must report that, and --strict must refuse it."""
    missed, n = [], 0
    for f in harness.sample(sorted(glob.glob(NODES + "/*/model.onnx")), 80):
        m = onnx.load(f, load_external_data=False)
        names = list(dict.fromkeys(v for v in m.graph.node[0].input if v))
        if len(m.graph.node) != 1 or len(names) < 2:
            continue
        before, n = DONE["refused"], n + 1
        compare(d, f,
                ["--shard", '"#0":"%s"={1:1}' % names[-1]] + [w for name in names[:-1] for w in ("--shard", '"#0":"%s"={1:0}' % name)])
        if DONE["refused"] == before:
            missed.append(os.path.basename(os.path.dirname(f)))
    assert n > 30 and not missed and not wrong, (n, missed, wrong)


def few_elements(d):
    """An axis with fewer elements than shards: one device or none has all of it, so nothing that could be sharded stays unsharded."""
    value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    operators = {"Slice": ["from", "to", "axis"], "Pad": ["pads"], "Reshape": ["shape"], "Concat": ["x"], "CumSum": ["axis"],
                 "Flatten": [], "Tile": ["times"]}
    for op, more in operators.items():
        for size in (0, 1, 2):
            known = {"from": [1], "to": [9], "axis": [0], "pads": [1, 0, 1, 0], "shape": [4, size], "times": [2, 1]}
            weights = [onnx.helper.make_tensor(k, onnx.TensorProto.INT64, [] if op == "CumSum" else [len(known[k])], known[k])
                       for k in more if k in known]
            attributes = {"Concat": {"axis": 0}, "Reshape": {"allowzero": 1}, "Flatten": {"axis": 2}}.get(op, {})
            ports = [value("x", onnx.TensorProto.FLOAT, [size, 4])], [value("y", onnx.TensorProto.FLOAT, [None, None])]
            graph = onnx.helper.make_graph([node(op, ["x", *more], ["y"], **attributes)], "g", *ports, weights)
            opsets = [onnx.helper.make_opsetid("", 18)]
            onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=11), d + "/few.onnx")
            compare(d, d + "/few.onnx", ["--shard", '"#0":x={2,1:0,1}'])
            assert not wrong, (op, size, wrong)


def bodies(d):
    """Annotations in bodies that have no effect. Softmax cannot be sharded along its axis inside of a body, Relu can."""
    value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    F, f = onnx.TensorProto.FLOAT, d + "/bodies.onnx"
    branch = lambda op, out: onnx.helper.make_graph([node(op, ["v"], [out], name=out)], out, [], [value(out, F, [4, 6])])
    nodes = [
        node("Relu", ["x"], ["v"], name="first"),
        node("If", ["yes"], ["y"], name="if", then_branch=branch("Softmax", "t"), else_branch=branch("Relu", "e"))
    ]
    graph = onnx.helper.make_graph(nodes, "g", [value("x", F, [4, 6]), value("yes", onnx.TensorProto.BOOL, [])], [value("y", F, [4, 6])])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=11), f)
    for edits, refused in ((["--shard", "if > then_branch > t:v={1,2}"], 1), (["--shard", "if > then_branch > t:v={2,1}"], 0),
                           (["--shard",
                             "if > else_branch > e:v={1,2}"], 0), (["--shard", "if > else_branch > e:v={1:1}", "--shard",
                                                                    "if:yes={1:0}"], 1), (["--shard", "if > else_branch > e:v={1:1}"], 0),
                           (["--stage", "first=0", "--stage", "if=1", "--stage",
                             "if > else_branch > e=0"], 1), (["--stage", "first=0", "--stage", "if=1", "--stage",
                                                              "if > else_branch > e=1"], 0)):
        before = DONE["refused"]
        compare(d, f, edits)
        assert DONE["refused"] - before == refused and not wrong, (edits, wrong)


def models(d):
    several(d, sorted(glob.glob(MODELS + "/*/model.onnx")), *((40, 0, 10) if harness.ALL else (2, 0, 1)))


def enough(d):
    """Checks that enough models were compared, and that partition refused some of them."""
    print("# %(cases)d models, %(refused)d refused" % DONE)
    assert harness.PATTERN or (DONE["cases"] > 100 and DONE["refused"] > 5), DONE


harness.run([replaced, staged_lists, placed_apart, few_elements, bodies, node_tests, models, enough])
harness.finish()
