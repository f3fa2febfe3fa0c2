# SPDX-License-Identifier: Apache-2.0
"""Tests `tessera simulate`: it must agree with the plan if there are no stages, requests must overlap in stages, the trace must match the
text, and wrong arguments must be refused. Needs no engine, because nothing is run.

usage: simulate.py TESSERA MODELS [all]     without `all` only fast plans for two hosts"""
import json, os, sys

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

import harness

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "genai"))
import decoder  # noqa: E402

TESSERA, MODELS = os.path.abspath(sys.argv[1]), sys.argv[2]
SLOW = ("llama_tiny", "t5_tiny")  # a plan for two hosts takes seconds
ODD = 'evil"\\</script>\n<b>'


def call(*words):
    return harness.call(TESSERA, *words)


def good(*words):
    return harness.good(TESSERA, *words)


def doc(*words):
    return json.loads(good(*words, "--json"))


def chain(path, layers=4, width=256, rows=64):
    f, rng = TensorProto.FLOAT, np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i in range(layers):
        weights.append(numpy_helper.from_array(rng.standard_normal((width, width)).astype("f"), "w%d" % i))
        y = "y" if i + 1 == layers else "h%d" % i
        nodes.append(helper.make_node("MatMul", [x, "w%d" % i], [y], name=ODD if i == 0 else "mm%d" % i))
        x = y
    ends = [helper.make_tensor_value_info(v, f, [rows, width]) for v in ("x", "y")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights), ir_version=10,
                                opset_imports=[helper.make_opsetid("", 18)]), path)


def pooled(path):
    """Writes nodes of kinds for which a device may have no measured speed: a bandwidth-bound convolution and a pool."""
    f, rng = TensorProto.FLOAT, np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="c", group=64, pads=[1] * 4),
        helper.make_node("MaxPool", ["c"], ["y"], name="p", kernel_shape=[3, 3])
    ]
    weights = [numpy_helper.from_array(rng.standard_normal((64, 1, 3, 3)).astype("f"), "w")]
    ends = [helper.make_tensor_value_info(v, f, [8, 64, n, n]) for v, n in (("x", 64), ("y", 62))]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights), ir_version=10,
                                opset_imports=[helper.make_opsetid("", 18)]), path)


# Checks that the simulation of the planned model and of its partition has the plan's time, memory and collectives.
def agrees(model, devices, dims, d):
    planned, parts = d + "/planned.onnx", d + "/parts"
    plan = doc("plan", model, "--devices", devices, *dims, "-o", planned)
    for what in (planned, parts):
        if what == parts:
            good("partition", planned, "-o", parts, "--force")
            if dims:
                continue  # a partition has no sizes for shards of symbolic dimensions
        x = doc("simulate", what, "--devices", devices, *dims)
        assert x["devices"] == plan["devices"] == len(x["timeline"]) and x["requests"] == 1 and x["unsized"] == 0, x
        assert abs(x["seconds"] / (plan["cost"] / 1e12) - 1) < 0.03, (model, devices, what, x["seconds"], plan["cost"] / 1e12)
        most = max(t["memory"] for t in x["timeline"])
        least = 0.85 if devices == "hosts:2x2" else 0.95  # a plan may count a copy that no device makes
        assert least < most / max(plan["memory"]) < 1.05, (model, devices, what, most, plan["memory"])
        pieces = [t["arithmetic_s"] + t["moving_s"] + t["overhead_s"] - t["compute_s"] for t in x["timeline"]]
        assert all(abs(p) < 1e-9 for p in pieces), pieces
        over = sum(l["bytes"] for l in x["links"]) - sum(c["carried"] for c in x["communication"])
        assert abs(over) <= len(x["links"]) + len(x["communication"]), (over, x["links"])  # each number is rounded
        counts = {}
        for c in x["communication"]:
            counts[c["op"]] = counts.get(c["op"], 0) + 1
            assert c["bytes"] > 0 and c["carried"] > 0 and c["seconds"] > 0, c
        assert counts == plan["collectives"] or what == parts, (counts, plan["collectives"])
        if what == planned:
            assert abs(x["one_device_s"] / (plan["one_device"] / 1e12) - 1) < 0.05, (x["one_device_s"], plan["one_device"])
        for t in x["timeline"]:
            total = t["compute_s"] + t["communication_s"] + t["waiting_s"] + t["idle_s"]
            assert abs(total - x["seconds"]) < 1e-9 and 0 < t["weights"] <= t["memory"] and t["weights"] + (2 << 20) <= t["peak"], t


def with_the_plan(d):
    chain(d + "/chain.onnx")
    for n in (1, 2, 3, 4, 8, "ring:4", "hosts:2x2"):
        agrees(d + "/chain.onnx", n, [], d)
    pooled(d + "/pooled.onnx")
    agrees(d + "/pooled.onnx", 1, [], d)
    for name in ("bert_tiny", "gpt2_tiny", "llama_tiny", "t5_tiny", "vit_tiny"):
        path = os.path.join(MODELS, name, "model.onnx")
        names = {x.dim_param for v in onnx.load(path, load_external_data=False).graph.input for x in v.type.tensor_type.shape.dim}
        dims = [word for k, size in (("batch", 8), ("seq", 32), ("dseq", 32)) if k in names for word in ("--dim", "%s=%d" % (k, size))]
        for n in (2, 4) if name in SLOW and not harness.ALL else (2, 4, "hosts:2x2"):
            agrees(path, n, dims, d)


def convolutions(path):
    """Writes convolutions whose windows overlap and whose channels and positions shards of 3 and 6 devices divide unequally."""
    f, rng = TensorProto.FLOAT, np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i, (c_in, c_out, kernel, stride) in enumerate(((16, 64, 3, 1), (64, 64, 3, 2), (64, 128, 1, 2), (128, 128, 3, 1))):
        weights.append(numpy_helper.from_array(rng.standard_normal((c_out, c_in, kernel, kernel)).astype("f"), "w%d" % i))
        nodes.append(helper.make_node("Conv", [x, "w%d" % i], ["c%d" % i], name="c%d" % i, pads=[kernel // 2] * 4, strides=[stride] * 2))
        nodes.append(helper.make_node("Tanh", ["c%d" % i], ["t%d" % i], name="t%d" % i))
        x = "t%d" % i
    ends = [helper.make_tensor_value_info(v, f, ["batch"] + shape) for v, shape in (("x", [16, 58, 58]), (x, [128, 15, 15]))]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights), ir_version=10,
                                opset_imports=[helper.make_opsetid("", 18)]), path)


def branches(path, lengths):
    """Writes an If whose branches return different lengths, the rows of x, or those of a cache and x; or whose branches compute the
    result from different inputs, which share the name of a dimension and may differ in it."""
    f, rng = TensorProto.FLOAT, np.random.default_rng(0)
    value = lambda name, *shape: helper.make_tensor_value_info(name, f, shape)

    def body(name, nodes):
        out = helper.make_node("MatMul", [nodes[-1].output[0], "w"], [name], name=name + "_matmul")
        return helper.make_graph(nodes + [out], name + "_body", [], [value(name, "batch", None, 1024)])

    some = body("long", [helper.make_node("Concat", ["past", "x"], ["z"], name="z", axis=1) if lengths else
                         helper.make_node("Tanh", ["past"], ["z"], name="z")])
    none = body("short", [helper.make_node("Tanh", ["x"], ["t"], name="t")])
    nodes = [helper.make_node("If", ["c"], ["y"], name="if", then_branch=some, else_branch=none)]
    past, rows = ("p", "p + seq") if lengths else ("seq", "seq")
    inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), value("x", "batch", "seq", 1024),
              value("past", "batch", past, 1024)]
    graph = helper.make_graph(nodes, "g", inputs, [value("y", "batch", rows, 1024)],
                              [numpy_helper.from_array(rng.standard_normal((1024, 1024)).astype("f"), "w")])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)


def unused(path):
    """Writes a chain of products with sharded results that nobody reads."""
    chain(path, layers=2, width=1024)
    model = onnx.load(path)
    model.graph.node.extend([helper.make_node("Relu", ["h0"], ["u0"], name="u0"), helper.make_node("Exp", ["u0"], ["u1"], name="u1")])
    onnx.save(model, path)


# Small models of which plan and partition must count the same, by name.
TEXTS = {
    "unread_in_branch":  # no rank runs the product in the branch, whose result nobody needs
        """(float[256,256] x, bool c) => (float[256,256] y) {
            y = If (c) <
                then_branch = a () => (float[256,256] t) { unread = MatMul(x, x) t = Tanh(x) },
                else_branch = b () => (float[256,256] s) { s = Sin(x) }
            >
        }""",
    "read_by_nobody":  # a sharded value is read in a branch, where nobody needs the result
        """(float[2048,1024] x, bool c) => (float[1,1] y) {
            z = Sin(x)
            most = ReduceMax(z)
            y = If (c) <
                then_branch = a () => (float[1,1] t) { unread = Exp(z) t = Tanh(most) },
                else_branch = b () => (float[1,1] s) { s = Sin(most) }
            >
        }""",
    "sharded_slice":  # a Slice of an open size reads a part of each shard
        """(float[rows,64,2048] x) => (float[1,64,2048] y) <int64[1] first = {0}, int64[1] end = {1}> {
            z = Sin(x)
            row = Slice(z, first, end)
            y = Tanh(row)
        }""",
    "only_sizes":  # no rank adds in the branch, where only the sizes of the sharded sum are read
        """(float[2048,1024] x, float[1] z, bool c) => (float[2048,1024] y) {
            y = If (c) <
                then_branch = a () => (float[2048,1024] t) {
                    p = Sin(x) q = Add(p, p) sizes = Shape(q) r = Expand(z, sizes) t = Mul(p, r)
                },
                else_branch = b () => (float[2048,1024] s) { s = Identity(x) }
            >
        }""",
    "default":  # the plan assumes that no run replaces the default of an input
        """(float[64,256] x, int64[2] times) => (float[m,n] y) <int64[2] times = {8, 1}> { y = Tile(x, times) }""",
    "filled":  # a tensor that is filled in each run, because its sizes depend on an input
        """(float[64,256] x) => (float[64,256] y) {
            sizes = Shape(x)
            zeros = ConstantOfShape(sizes)
            y = Add(x, zeros)
        }""",
    "read_in_part":  # a Slice of an open size reads one row
        """(float[rows,256] x) => (float[1,256] y) <int64[1] first = {0}, int64[1] end = {1}> {
            row = Slice(x, first, end)
            y = Tanh(row)
        }""",
    "of_constants":  # what depends on constants only is computed in each run, unless they are its inputs
        """(float[4,8] x) => (float[4,8] y, int64[4] most) <float[1] w = {2}, int64 axis = {1}> {
            counts = Constant <value_ints = [4, 8]> ()
            table = Expand(w, counts)
            sums = CumSum(table, axis)
            most = ArgMax <axis = 1, keepdims = 0> (sums)
            y = Add(x, sums)
        }""",
}


def from_text(path, text):
    onnx.save(onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 18]> g ' + text), path)


def one_answer(d):
    """Plan, partition and simulation name the same communication, sharded nodes and time, on devices in rings, tori, hosts and boxes,
    with sizes and with open sizes."""
    convolutions(d + "/convolutions.onnx")
    branches(d + "/branches.onnx", lengths=True)
    branches(d + "/sources.onnx", lengths=False)
    unused(d + "/unused.onnx")
    for name, text in TEXTS.items():
        from_text(d + "/%s.onnx" % name, text)
    # exporters' decoders: keys and values in one tensor with the queries, or with a norm of each head
    decoder.write(d + "/packed", heads=8, form="packed")
    decoder.write(d + "/norms", form="separate-norm", mlp=2, norms=True)
    decoder.write(d + "/concat", form="concat")  # its products may have empty shards: they are in an If
    names = ("bert_tiny", "gpt2_tiny", "llama_tiny", "t5_tiny", "vit_tiny")
    cases = [(name, devices, sized) for name in names for devices in ("ring:6", "torus:2x3", "hosts:2x4", "hosts:3x2", "h100:8")
             for sized in (False, True)]
    # shards of different size, and partial sums in a stage
    always = [("gpt2_tiny", "hosts:3x2", True), ("gpt2_tiny", 7, True), ("gpt2_tiny", 3, True, "--stages", 2)]
    always += [("bert_tiny", "l40s:4", True)]  # a result of which a device reads only the sizes
    always += [("convolutions", devices, sized) for devices in (3, "ring:6", "torus:2x3", "hosts:2x4") for sized in (False, True)]
    always += [(name, devices, False) for name in ("branches", "sources") for devices in (4, "ring:6", "hosts:2x4")]
    always += [("branches", devices, True) for devices in ("ring:6", "hosts:2x3")]  # branches return different lengths
    always += [("unused", 4, True), ("packed/model", 4, False), ("packed/model", 4, True), ("norms/model", 4, True)]
    always += [("concat/model", devices, True) for devices in (3, 4)]
    always += [(name, devices, False) for name in TEXTS for devices in (2, "hosts:2x3", "l40s:4")]
    always += [("vit_tiny", "l40s:4", False)]  # an Expand to a shape that ranks compute
    for name, devices, sized, *more in always + harness.sample(cases, 10):
        path, planned = os.path.join(MODELS, name, "model.onnx"), d + "/one.onnx"
        if os.path.exists(d + "/%s.onnx" % name):
            path = d + "/%s.onnx" % name
        open_dims = {x.dim_param for v in onnx.load(path, load_external_data=False).graph.input
                     for x in v.type.tensor_type.shape.dim} - {""}
        sizes = {k: 8 if "batch" in k else decoder.HEAD if k == "kv_cache_dim" else 64 for k in sorted(open_dims) if sized}
        dims = [word for k, size in sizes.items() for word in ("--dim", "%s=%d" % (k, size))]
        plan = doc("plan", path, "--devices", devices, *dims, *more, "-o", planned)
        words = ("--config", plan["configuration"]) if plan.get("configuration") else ()
        part = doc("partition", planned, "--dry-run", *words)
        assert plan["collectives"] == part["collectives"], (name, devices, dims, plan["collectives"], part["collectives"])
        assert plan["cut_nodes"] == part["cut_nodes"], (name, devices, dims, plan["cut_nodes"], part["cut_nodes"])
        milliseconds = doc("simulate", planned, "--devices", devices, *words, *dims)["seconds"] * 1e3
        assert abs(milliseconds / plan["milliseconds"] - 1) < 0.005, (name, devices, dims, milliseconds, plan["milliseconds"])


def slices(d):
    """A shard of several intervals is sliced by a Gather; a Slice does the other axes. Plan and simulation count both."""
    f, milliseconds = TensorProto.FLOAT, []
    ends = [helper.make_tensor_value_info(v, f, [64, 64, 256]) for v in "xz"]
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu"), helper.make_node("Tanh", ["y"], ["z"], name="tanh")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), ir_version=10,
                                opset_imports=[helper.make_opsetid("", 18)]), d + "/s.onnx")
    whole = ["--shard", "relu:x={1:0,1,2,3}", "--shard", "relu:y={1:0,1,2,3}"]
    for layout in "{4,1,1:0,1,2,3}", "{1,1,64*4/4:0,1,2,3}", "{2,1,64*4/2:0,1,2,3}":
        shards = [word for v in "yz" for word in ("--shard", "tanh:%s=%s" % (v, layout))]
        good("annotate", d + "/s.onnx", "--config", "c:4", *whole, *shards, "-o", d + "/a.onnx")
        plan = doc("plan", d + "/a.onnx", "--devices", 4, "--config", "c", "-o", d + "/p.onnx")
        seconds = doc("simulate", d + "/p.onnx", "--devices", 4, "--config", "c")["seconds"]
        milliseconds.append(plan["milliseconds"])
        assert abs(seconds * 1e3 / plan["milliseconds"] - 1) < 0.005, (layout, seconds, plan["milliseconds"])
    assert milliseconds[0] < 0.9 * milliseconds[2], milliseconds  # one node slices, or two


def unequal_slices(d):
    """Devices slice unequal shards out of an input: the first, which does more afterwards, has a smaller one than the second."""
    from_text(d + "/s.onnx", """(float[10,64,256] x, float[10,64,256] q) => (float[10,64,256] y, float[10,64,256] p) {
        y = Sin(x)
        p = Cos(q)
    }""")
    shards = [word for v in "xy" for word in ("--shard", "#0:%s={4,1,1:0,1,2,3}" % v)]
    good("annotate", d + "/s.onnx", "--config", "c:4", *shards, "-o", d + "/a.onnx")
    plan = doc("plan", d + "/a.onnx", "--devices", 4, "--config", "c", "-o", d + "/p.onnx")
    seconds = doc("simulate", d + "/p.onnx", "--devices", 4, "--config", "c")["seconds"]
    assert abs(seconds * 1e3 / plan["milliseconds"] - 1) < 0.005, (seconds, plan["milliseconds"])


def split(d):
    """A Split reads its whole input and writes it again, as a Relu does."""
    f, milliseconds = TensorProto.FLOAT, {}
    for op, outputs in (("Split", "abc"), ("Relu", "a")):
        ends = [helper.make_tensor_value_info(v, f, [64, 64, 192 // len(outputs)]) for v in outputs]
        node = helper.make_node(op, ["x"], list(outputs), **({"axis": 2, "num_outputs": 3} if op == "Split" else {}))
        graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", f, [64, 64, 192])], ends)
        onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), d + "/s.onnx")
        milliseconds[op] = doc("plan", d + "/s.onnx", "--devices", 1, "-o", d + "/p.onnx")["milliseconds"]
    assert abs(milliseconds["Split"] / milliseconds["Relu"] - 1) < 0.05, milliseconds


def parts_of_parts(d):
    """Two groups of devices have halves of an open batch and divide them further: by a ReduceScatter, an AllToAll and a Slice, whose
    bounds follow from the full size. With every size the result is right."""
    path, cut = d + "/x.onnx", d + "/xa.onnx"
    nodes = [helper.make_node(op, ins, [out], name=out) for op, ins, out in (
        ("MatMul", ["x", "w0"], "y"), ("Relu", ["y"], "z"), ("MatMul", ["z", "w1"], "o"), ("Tanh", ["o"], "t"), ("Sin", ["t"], "s"))]
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, ["batch", 8]) for v in "xs"]
    weights = [numpy_helper.from_array(np.random.default_rng(1).standard_normal((8, 8)).astype("f4"), v) for v in ("w0", "w1")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights), ir_version=10,
                                opset_imports=[helper.make_opsetid("", 18)]), path)
    for edits, operators in ((["y:x={2,2}", "z:y={4,1}", "o:z={4,1}"], {"ReduceScatter": 1}),
                             (["z:y={2,2}", "z:z={2,2}", "o:z={4,1}", "o:o={4,1}"], {"AllToAll": 1}),
                             (["y:x={2,1:(0,1),(2,3)}", "z:y={2,1:(0,1),(2,3)}", "o:z={4,1}"], {})):
        good("annotate", path, "--config", "c:4", *[w for e in edits for w in ("--shard", e)], "-o", cut)
        counts = doc("partition", cut, "--dry-run")["collectives"]
        assert counts.pop("Reshard") == 1 and counts == operators, (edits, counts)
        for batch in (1, 3, 6, 7):
            assert doc("verify", cut, "--dim", "batch=%d" % batch)["ok"], (edits, batch)


def lookups(d):
    """The sharded axis is addressed by indices: the plan must charge the nodes that make the indices local."""
    path, cut, planned = d + "/g.onnx", d + "/cut.onnx", d + "/planned.onnx"
    node = helper.make_node("GatherElements", ["x", "at"], ["y"], name="pick", axis=1)
    ends = [
        helper.make_tensor_value_info(v, t, [256, 512])
        for v, t in (("x", TensorProto.FLOAT), ("at", TensorProto.INT64), ("y", TensorProto.FLOAT))
    ]
    onnx.save(
        helper.make_model(helper.make_graph([node], "g", ends[:2], ends[2:]), ir_version=10, opset_imports=[helper.make_opsetid("", 18)]),
        path)
    good("annotate", path, "--config", "c:2", "--shard", "pick:x={1,2:0,1}", "-o", cut)
    plan = doc("plan", cut, "--devices", 2, "--config", "c", "-o", planned)
    seconds = doc("simulate", planned, "--devices", 2)["seconds"]
    assert abs(seconds / (plan["cost"] / 1e12) - 1) < 0.05, (seconds, plan["cost"] / 1e12)


def merged_tokens(d):
    """Batch and sequence of unknown size are merged: data parallel devices gather the value, reshape all of it and slice the result.
    The plan's estimate must be the time of these shardings."""
    path, cut = d + "/t.onnx", d + "/cut.onnx"
    pair = lambda x, y: [
        helper.make_node("Transpose", [x], [y + "t"], name=y + "t", perm=[0, 2, 1]),
        helper.make_node("MatMul", [x, y + "t"], [y + "s"], name=y + "s"),
        helper.make_node("MatMul", [y + "s", x], [y], name=y)
    ]
    nodes = pair("x", "a") + [
        helper.make_node("Shape", ["x"], ["s"], name="s"),
        helper.make_node("Reshape", ["a", "rows"], ["m"], name="m"),
        helper.make_node("Tanh", ["m"], ["t"], name="t"),
        helper.make_node("Reshape", ["t", "s"], ["b"], name="b")
    ] + pair("b", "y")
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, ["batch", "seq", 64]) for v in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(np.array([-1, 64]), "rows")])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)
    dims = ("--dim", "batch=8", "--dim", "seq=128")
    estimate = next(c["milliseconds"] for c in doc("plan", path, "--devices", 2, *dims)["compared"]
                    if c["name"].startswith("data parallel"))
    edits = ["%s:%s={2,1,1:0,1}" % (n.name, v) for n in nodes if n.op_type in ("MatMul", "Transpose")
             for v in n.input] + ["t:m={2,1:0,1}", "m:a={1,1,1:0,1}", "b:t={1,1:0,1}"]
    good("annotate", path, "--config", "c:2", *[w for e in edits for w in ("--shard", e)], "-o", cut)
    milliseconds = doc("simulate", cut, "--devices", 2, *dims)["seconds"] * 1e3
    assert abs(milliseconds / estimate - 1) < 0.05, (milliseconds, estimate)


def stages(d):
    """Four equal layers on two devices: the second request must start while the first is in the second stage, on whichever device
    the last stage is."""
    chain(d + "/s.onnx")
    good("annotate", d + "/s.onnx", "--config", "pipe:2", *sum((["--stage", "#%d=%d" % (i, i // 2)] for i in range(4)), []), "-o",
         d + "/staged.onnx")
    one = doc("simulate", d + "/staged.onnx")
    many = doc("simulate", d + "/staged.onnx", "--requests", 10)
    assert 0.5 * one["seconds"] <= many["period_s"] < 0.6 * one["seconds"], (one, many)
    where = ["--shard", "#0:h0={1:1}", "--shard", "#2:h2={1:0}"]
    good("annotate", d + "/staged.onnx", "--config", "pipe", *where, "-o", d + "/turned.onnx")
    good("partition", d + "/turned.onnx", "-o", d + "/parts")
    one = doc("simulate", d + "/parts")
    many = doc("simulate", d + "/parts", "--requests", 10)
    assert many["first_s"] <= one["seconds"] * 1.001 and many["requests"] == 10
    assert 0.5 * one["seconds"] <= many["period_s"] < 0.6 * one["seconds"], (one, many)
    assert abs(many["requests_per_s"] * many["period_s"] - 1) < 1e-9
    assert abs(many["seconds"] - many["first_s"] - 9 * many["period_s"]) < 0.02 * many["seconds"], many
    text = good("simulate", d + "/parts", "--requests", 10)
    assert "one every" in text and text.count("|") == 4, text


def planned_stages(d):
    """The simulated time between runs must be the planned one, including the time of sending on both sides. The plan assumes that full
    tensors cross between stages; equal shardings on both sides take less."""
    chain(d + "/c.onnx")
    for devices, stages in ((2, 2), (4, 2), (3, 3), (4, 4)):
        plan = doc("plan", d + "/c.onnx", "--devices", devices, "--stages", stages, "--objective", "throughput", "-o",
                   d + "/c%d.onnx" % devices)
        x = doc("simulate", d + "/c%d.onnx" % devices, "--requests", 12)
        said, least = plan["period"] / 1e12, 0.98 if devices == stages else 0.85
        assert len(plan["stages"]) == stages and least * said < x["period_s"] < 1.05 * said, (devices, stages, x["period_s"], plan)
        assert x["first_s"] < 1.02 * plan["latency"] / 1e12, (x, plan)


# The trace must have the spans, sums and names of the document, and spans of one device must not overlap.
def trace(d):
    chain(d + "/t.onnx")
    path = d + "/trace.json"
    x = doc("simulate", d + "/t.onnx", "--devices", 2, "--requests", 3, "--trace", path)
    events = json.load(open(path))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == x["spans"] and {e["pid"] for e in spans} == {0, 1} and {e["args"]["request"] for e in spans} == {0, 1, 2}
    assert any(e["args"]["node"] == ODD for e in spans), "the name is lost"
    model = open(d + "/t.onnx", "rb").read()
    open(d + "/u.onnx", "wb").write(model.replace(b"mm1", b"m\xff1"))
    good("simulate", d + "/u.onnx", "--devices", 2, "--trace", d + "/u.json")
    assert r"m\xFF1" in {e.get("args", {}).get("node")
                         for e in json.load(open(d + "/u.json", encoding="utf-8"))["traceEvents"]}, "invalid UTF-8"
    for pid in (0, 1):
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["pid"] == pid)
        assert all(a[1] <= b[0] + 1e-3 for a, b in zip(mine, mine[1:])), "spans of one device overlap"
        assert abs(max(e for _, e in mine) - x["seconds"] * 1e6) < 1e-2 or pid > 0
        for kind in ("compute", "communication", "waiting"):
            told = sum(e["dur"] for e in spans if e["pid"] == pid and e["cat"] == kind)
            assert abs(told - x["timeline"][pid][kind + "_s"] * 1e6) < 1e-2, (kind, told)
    starts = [e for e in events if e["ph"] == "s"]
    assert len(starts) == 3 * sum(doc("plan", d + "/t.onnx", "--devices", 2)["collectives"].values()), len(starts)


def speeds_count(d):
    """Twice the speed must give half the time. A slow device must delay the others."""
    chain(d + "/v.onnx")
    good("plan", d + "/v.onnx", "--devices", 2, "-o", d + "/v2.onnx")
    good("topology", "make", "cpu:2", "--flops", "1e9", "--bandwidth", "1e12", "--link-bandwidth", "1e12", "--latency", "1e-9", "-o",
         d + "/a.json")
    topology = json.load(open(d + "/a.json"))
    base = doc("simulate", d + "/v2.onnx", "--devices", d + "/a.json")
    for speeds in ((2e9, 2e9), (2e9, 1e9)):
        for device, speed in zip(topology["devices"], speeds):
            device["flops"] = speed
        json.dump(topology, open(d + "/b.json", "w"))
        x = doc("simulate", d + "/v2.onnx", "--devices", d + "/b.json")
        assert abs(x["seconds"] / base["seconds"] - (0.5 if min(speeds) == 2e9 else 1)) < 0.01, (x, base)
        if speeds[1] == 1e9:
            assert x["timeline"][0]["waiting_s"] + x["timeline"][0]["idle_s"] > 0.4 * x["seconds"], x


def in_place(d):
    """Ten Relus that an engine runs in place: the plan counts two tensors at a time, but the peak of the process has one."""
    f = TensorProto.FLOAT
    nodes = [helper.make_node("MatMul", ["x", "w"], ["v0"])] + [helper.make_node("Relu", ["v%d" % i], ["v%d" % (i + 1)]) for i in range(10)]
    nodes.append(helper.make_node("ReduceMax", ["v10"], ["y"], keepdims=0))
    g = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", f, [1024, 16])], [helper.make_tensor_value_info("y", f, [])],
                          [numpy_helper.from_array(np.zeros((16, 4096), "f"), "w")])
    onnx.save(helper.make_model(g, ir_version=10, opset_imports=[helper.make_opsetid("", 13)]), d + "/p.onnx")
    t = doc("simulate", d + "/p.onnx", "--devices", 1)["timeline"][0]
    assert 2 * (16 << 20) <= t["memory"] < 2.1 * (16 << 20) and (16 << 20) < t["peak"] < 1.6 * (16 << 20), t


def without_weights(d):
    """Only sizes are needed: the file with the weights may be missing."""
    chain(d + "/w.onnx")
    plain = doc("simulate", d + "/w.onnx", "--devices", 4)
    onnx.save(onnx.load(d + "/w.onnx"), d + "/w.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    os.remove(d + "/w.data")
    assert doc("simulate", d + "/w.onnx", "--devices", 4) == plain


def caches(d):
    """Each copy of a block keeps its share of a cache. The cache must not be communicated: in the plan, in the simulation and in a run."""
    info = lambda name, *dims: onnx.helper.make_tensor_value_info(name, 1, ["batch", *dims])
    nodes = [
        onnx.helper.make_node(op, ins, [out])
        for op, ins, out in (("MatMul", ["x", "w"], "k"), ("Add", ["past", "k"], "present"), ("Relu", ["k"], "y"))
    ]
    weight = onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32), "w")
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, 64), info("past", 16, 64)],
                                   [info("y", 1, 64), info("present", 16, 64)], [weight])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=11), d + "/c.onnx")
    plan = doc("plan", d + "/c.onnx", "--devices", "hosts:65x2", "--dim", "batch=132", "--state", "past=present", "-o", d + "/p.onnx")
    seconds = doc("simulate", d + "/p.onnx")["seconds"]
    assert plan["copies"] > 1 and abs(1e3 * seconds / plan["milliseconds"] - 1) < 0.03, (plan["copies"], plan["milliseconds"], seconds)
    assert "PASS" in good("verify", d + "/p.onnx", "--ranks", 130)


def refused(d):
    chain(d + "/r.onnx")
    good("plan", d + "/r.onnx", "--devices", 4, "-o", d + "/r4.onnx")
    for rc, *words in ((1, d + "/r4.onnx", "--devices", "ring:2"), (1, d + "/r4.onnx", "--devices", "2"),
                       (2, d + "/r4.onnx", "--requests", "0"), (2, d + "/r4.onnx", "--requests", "x"),
                       (1, d + "/r4.onnx", "--config", "none"), (3, d + "/absent.onnx"), (3, d), (8, d + "/r4.onnx", "--trace",
                                                                                                  d + "/no/such/t.json")):
        got, _, err = call("simulate", *words)
        assert got == rc and err, (words, got, err)
    assert good("simulate", d + "/r4.onnx", "--quiet") and "plan4" in good("info", d + "/r4.onnx")


harness.run([
    with_the_plan, one_answer, slices, unequal_slices, split, parts_of_parts, lookups, merged_tokens, stages, planned_stages, trace,
    speeds_count, in_place, without_weights, caches, refused
])
harness.finish()
