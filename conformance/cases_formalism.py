# SPDX-License-Identifier: Apache-2.0
"""The formalism ("Sharding Formalism"): every listed operator, every rule in its valid and invalid form."""
import numpy as np
from onnx import TensorProto, helper

from build import add, bad, model, node, open_case, shard, value

TOP = "Sharding Formalism"
SEMANTICS, VALIDITY, MISSING = (("formalism", TOP + ": " + s) for s in ("Semantics", "Validity", "Inference of missing elements"))
UNARY, NARY = ("formalism", "Unary elementwise ops"), ("formalism", "Broadcast n-ary elementwise ops")
COMPOSE = ("formalism", "Composing Sharding Specs on Different Axes")
REDUCTION, MATMUL, UNSUPPORTED = (("formalism", s) for s in ("Reduction ops", "MatMul-like ops", "Unsupported ops"))
RANGE = {"Acosh": (1, 3), "Log": (0.5, 3), "Reciprocal": (0.5, 3), "Pow": (0.5, 2)}  # domains of the inputs


# ---- semantics, validity, missing elements -------------------------------------------------------

def pair(op="Add", a="4x6", b="4x6", y="4x6", devices=4, kinds="fff", **more):
    return model(node(op, "a b", "y", **more), {"a": "%s %s" % (kinds[0], a), "b": "%s %s" % (kinds[1], b)}, {"y": "%s %s" % (kinds[2], y)},
                 devices=devices)


def semantics():
    for name, given, wanted in (("other-axis", "2x1:0 1", "1x2:0 1"), ("other-devices", "2x1:0 1", "2x1:2 3"),
                                ("gathered", "2x1:0 1", "1x1:0+1"), ("one-device", "2x1:0 1", "*:3"),
                                ("more-shards", "2x1:0 1", "4x1:0 1 2 3"), ("permuted", "2x2:0 1 2 3",
                                                                            "2x2:3 1 2 0"), ("scattered", "1x1:0+1", "2x1:0 1")):
        m = model(node("Neg", "x", "y"), {"x": "f 4x6"}, {"y": "f 4x6"}, devices=4)
        add("semantics-output-" + name, [SEMANTICS, VALIDITY], shard(m, x=given, y=wanted),
            "The output need not follow from the input: it is resharded from %s to %s." % (given, wanted))
    for name, first, second in (("other-axis", "2x1:0 1", "1x2:0 1"), ("other-devices", "2x1:0 1", "2x1:1 2"), ("uneven-groups",
                                                                                                                "2x1:0+1 2", "1x2:0 1+2")):
        m = model([node("Neg", "x", "h", "A"), node("Abs", "h", "y", "B")], {"x": "f 4x6"}, {"y": "f 4x6"}, devices=3)
        shard(shard(m, "A", x=first), "B", h=second)
        add("semantics-input-" + name, [SEMANTICS], m, "The input of B is repartitioned from %s to %s." % (first, second),
            expect={("c", "A", "h"): first, ("c", "B", "y"): second})


def validity():
    big = dict(a="32x1024", b="32x1024", y="32x1024", devices=2)
    m = shard(pair(**big), a="2x1:0 1", b="1x2:0 1")
    bad("validity-example", [VALIDITY, NARY], m, "Example of the formalism: Add of [32, 1024], axis 0 and axis 1.", "nary-identical", "n",
        "b")
    bad("validity-example-small", [VALIDITY, NARY], shard(pair(), a="2x1:0 1", b="1x2:0 1"), "The same with [4, 6].", "nary-identical", "n",
        "b")
    add("validity-same", [VALIDITY, NARY], shard(pair(), a="2x1:0 1", b="2x1:0 1"), "Both inputs are sharded the same way.",
        expect={("c", "n", "y"): "2x1:0 1"})


def missing():
    def chain(ops=("Neg", "Abs"), devices=2):
        nodes = [
            node(op, "x" if k == 0 else "v%d" % (k - 1), "v%d" % k if k < len(ops) - 1 else "y", "n%d" % k) for k, op in enumerate(ops)
        ]
        return model(nodes, {"x": "f 4x6"}, {"y": "f 4x6"}, devices=devices)

    add("missing-from-producer-output", [MISSING], shard(chain(), "n0", v0="2x1:0 1"),
        "The producer's output has a sharding; the consumer has none.", expect={("c", "n1", "v0"): "2x1:0 1", ("c", "n1", "y"): "2x1:0 1"})
    add("missing-from-producer-input", [MISSING], shard(chain(), "n0", x="1x2:1 0"), "The producer's output is inferred first.",
        expect={("c", "n0", "v0"): "1x2:1 0", ("c", "n1", "v0"): "1x2:1 0", ("c", "n1", "y"): "1x2:1 0"})
    add("missing-through-five", [MISSING], shard(chain(("Neg", "Abs", "Exp", "Neg", "Tanh")), "n0", x="2x1:0 1"),
        "The sharding reaches the last of five nodes.", expect={("c", "n%d" % k, "v%d" % k if k < 4 else "y"): "2x1:0 1" for k in range(5)})
    add("missing-all", [MISSING], chain(), "Nothing is annotated: everything is unsharded.")
    m = shard(chain(("Neg", "Abs", "Exp")), "n2", v1="2x1:0 1")
    add("missing-not-backwards", [MISSING], m, "Shardings do not spread to producers: n0 and n1 are unsharded.",
        expect={("c", "n2", "y"): "2x1:0 1"})
    two = lambda: model([node("Neg", "a", "p", "A"), node("Abs", "b", "q", "B"),
                         node("Add", "p q", "y", "C")], {"a": "f 4x6", "b": "f 4x6"}, {"y": "f 4x6"})
    m = shard(shard(two(), "A", a="2x1:0 1"), "B", b="2x1:0 1")
    add("missing-two-producers", [MISSING, NARY], m, "Two producers agree.", expect={("c", "C", "p"): "2x1:0 1", ("c", "C", "q"): "2x1:0 1",
                                                                                     ("c", "C", "y"): "2x1:0 1"})
    m = shard(shard(two(), "A", a="2x1:0 1"), "B", b="1x2:0 1")
    bad("missing-two-producers-differ", [MISSING, NARY], m, "The inherited shardings of C contradict each other.", "nary-identical", "C")
    m = shard(shard(shard(two(), "A", a="2x1:0 1"), "B", b="1x2:0 1"), "C", p="1x2:0 1")
    add("missing-overridden", [MISSING, NARY], m, "C states a sharding for p, so p is resharded, and q is inherited.",
        expect={("c", "C", "q"): "1x2:0 1", ("c", "C", "y"): "1x2:0 1"})
    m = shard(shard(two(), "A", a="2x1:0 1"), "B", b="1x2:0 1", q="2x1:0 1")
    add("missing-output-resharded", [MISSING, NARY], m, "B reshards its output, so that C's inputs agree.",
        expect={("c", "C", "q"): "2x1:0 1", ("c", "C", "y"): "2x1:0 1"})
    bad("missing-model-input", [MISSING, NARY], shard(pair(), a="2x1:0 1"), "b is a model input and so unsharded; a is sharded.",
        "nary-identical", "n", "b")
    m = shard(two(), "A", a="2x1:0 1")
    bad("missing-unsharded-producer", [MISSING, NARY], m, "q is unsharded, because b is a model input; p is sharded.", "nary-identical",
        "C")
    m = model(node("Add", "a w", "y"), {"a": "f 4x6"}, {"y": "f 4x6"}, {"w": np.ones((4, 6), np.float32)})
    open_case("missing-initializer", [MISSING, NARY], shard(m, a="2x1:0 1"), "w is an initializer without a sharding; a is sharded.",
              "The text has rules for values of nodes and for model inputs, none for initializers.")
    m = model([
        node("Constant", "", "k", "K", value=helper.make_tensor("t", TensorProto.FLOAT, [4, 6], [1.0] * 24)),
        node("Add", "a k", "y", "n")
    ], {"a": "f 4x6"}, {"y": "f 4x6"})
    m.graph.node[0].ClearField("input")
    open_case("missing-constant-node", [MISSING, NARY], shard(m, a="2x1:0 1"),
              "k is made by a Constant node without a sharding; a is sharded.",
              "A Constant has no inputs from which its output could be inferred; no class covers it.")


# ---- unary ---------------------------------------------------------------------------------------

FLOATS = """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Identity Log Neg Reciprocal Round Sigmoid Sign Sin Sinh Tan
Tanh""".split()


def unary():
    texts = ["2x1:0 1", "1x2:1 0", "2x2:0 1 2 3", "1x3:2 0 1", "2x1:0+1 2+3", "1x1:0+2"]
    k = 0
    def one(op, kinds="ff", outputs="y", **attributes):
        nonlocal k
        text = texts[k % len(texts)]
        k += 1
        m = model(node(op, "x", outputs, **attributes), {"x": kinds[0] + " 4x6"}, {"y": kinds[1] + " 4x6"}, devices=4)
        add("unary-%s" % op.lower(), [UNARY], shard(m, x=text), "%s: any input sharding is allowed and the output has the same." % op,
            expect={("c", "n", "y"): text}, values={"x": RANGE.get(op)})
    for op in FLOATS:
        one(op)
    one("Cast", "fi", to=TensorProto.INT64)
    one("Dropout")
    one("IsInf", "fb")
    one("IsNaN", "fb")
    one("Not", "bb")
    one("Max")
    one("Min")
    for op in ("BitwiseNot",):
        m = model(node(op, "x", "y"), {"x": "i 4x6"}, {"y": "i 4x6"})
        add("unary-bitwisenot", [NARY, UNARY], shard(m, x="2x1:0 1"), "BitwiseNot is listed as n-ary; it has one input.",
            expect={("c", "n", "y"): "2x1:0 1"})
    for op in ("Relu", "Sqrt"):
        m = model(node(op, "x", "y"), {"x": "f 4x6"}, {"y": "f 4x6"})
        add("unary-%s-by-class" % op.lower(), [UNARY, ("guide", "A quick example")], shard(m, x="2x1:0 1"),
            "%s is not listed. It is unary and element-wise." % op, expect={("c", "n", "y"): "2x1:0 1"}, values={"x": (0.5, 3)})
    for name, text, devices in (("block-cyclic", "4x1:0 1 0 1", 2), ("unequal-groups", "2x1:0+1 2", 3),
                                ("overlapping-groups", "2x1:0+1 1+2", 3), ("two-on-one-device", "2x2:0 1 2 2", 3)):
        m = model(node("Neg", "x", "y"), {"x": "f 4x6"}, {"y": "f 4x6"}, devices=devices)
        add("unary-any-" + name, [UNARY], shard(m, x=text), "No constraints on input sharding.", expect={("c", "n", "y"): text})
    m = model(node("ConstantOfShape", "s", "y"), {"s": "i 2"}, {"y": "f axb"})
    open_case("unary-constantofshape", [UNARY], shard(m, s="2:0 1"), "ConstantOfShape with a sharded shape.",
              "It is listed as unary, but its input is a shape: the output cannot have the same sharding.", run=False)
    m = model(node("Max", "a b", "y"), {"a": "f 4x6", "b": "f 4x6"}, {"y": "f 4x6"})
    open_case("unary-max-of-two", [UNARY, NARY], shard(m, a="2x1:0 1", b="1x2:0 1"), "Max of two inputs that are sharded differently.",
              "Max is listed as unary, which has no constraints. With two inputs it broadcasts like Add.")


# ---- n-ary ---------------------------------------------------------------------------------------

KINDS = {
    "And": "bbb", "Or": "bbb", "Xor": "bbb", "Equal": "iib", "Greater": "ffb", "Less": "ffb", "BitwiseAnd": "iii", "BitwiseOr": "iii",
    "BitwiseXor": "iii", "Mod": "iii"
}
NARY_OPS = "Add And BitwiseAnd BitwiseOr BitwiseXor Equal Greater Less Mod Mul Or Pow Sub Sum Xor".split()

COMPOSED_OPS = ("Add", "Less", "Mod", "Sum")


def nary():
    for op in NARY_OPS:
        kinds = KINDS.get(op, "fff")
        values = {"a": RANGE.get(op), "b": (1, 9) if op == "Mod" else RANGE.get(op)}
        make = lambda: pair(op, kinds=kinds)
        low = op.lower()
        add("nary-%s" % low, [NARY], shard(make(), a="2x2:0 1 2 3", b="2x2:0 1 2 3"), "%s of equally sharded inputs." % op,
            expect={("c", "n", "y"): "2x2:0 1 2 3"}, values=values)
        bad("nary-%s-differ" % low, [NARY], shard(make(), a="1x2:0 1", b="2x1:0 1"),
            "%s of inputs that are sharded along different axes." % op, "nary-identical", "n", "b")
        if op not in COMPOSED_OPS:
            continue
        m = pair(op, a="4x1", b="1x6", kinds=kinds)
        add("nary-%s-composed" % low, [COMPOSE], shard(m, a="2x1:0+1 2+3", b="1x2:0+2 1+3"), "%s: the figure of the formalism." % op,
            expect={("c", "n", "y"): "2x2:0 1 2 3"}, values=values)
    where = lambda: model(node("Where", "q a b", "y"), {"q": "b 4x6", "a": "f 4x6", "b": "f 4x6"}, {"y": "f 4x6"}, devices=4)
    add("nary-where", [NARY], shard(where(), q="2x1:0 1", a="2x1:0 1", b="2x1:0 1"), "Where of three equally sharded inputs.",
        expect={("c", "n", "y"): "2x1:0 1"})
    bad("nary-where-condition-differs", [NARY], shard(where(), q="1x2:0 1", a="2x1:0 1", b="2x1:0 1"),
        "The condition is sharded along another axis.", "nary-identical", "n")
    shift = model(node("BitShift", "a b", "y", direction="LEFT"), {"a": "u8 4x6", "b": "u8 4x6"}, {"y": "u8 4x6"})
    add("nary-bitshift", [NARY], shard(shift, a="2x1:1 0", b="2x1:1 0"), "BitShift of equally sharded inputs.",
        expect={("c", "n", "y"): "2x1:1 0"}, values={"b": (0, 3)})
    div = shard(pair("Div"), a="2x1:0 1", b="2x1:0 1")
    add("nary-div-by-class", [NARY], div, "Div is not listed. It broadcasts like Mul.", expect={("c", "n", "y"): "2x1:0 1"},
        values={"b": (0.5, 3)})


def nary_rules():
    for name, a, b, about in (("counts", "2x1:0 1", "4x1:0 1 2 3",
                               "2 and 4 shards"), ("device-order", "2x1:0 1", "2x1:1 0",
                                                   "devices in another order"), ("devices", "2x1:0 1", "2x1:2 3", "other devices"),
                              ("replicated", "2x1:0 1", "1x1:0+1", "sharded and replicated"), ("whole-apart", "*:0", "*:1",
                                                                                               "unsharded on different devices")):
        bad("nary-identical-%s" % name, [NARY], shard(pair(), a=a, b=b), "The inputs differ: %s." % about, "nary-identical", "n", "b")
    open_case(
        "nary-identical-groups", [NARY], shard(pair(), a="2x1:0+1 2", b="2x1:0 1+2"), "The same splits; the groups differ and intersect.",
        "'The sharding spec of the inputs must be identical' for an axis. It is open whether that includes devices, or whether, as for "
        "broadcast axes, it is enough that a device has both shards.")
    for name, a, b in (("more-axes", "2x1:0+1 2+3", "2x2:0 1 2 3"), ("crossed-axes", "2x1:0+1 2+3", "1x2:0+2 1+3"),
                       ("crossed-unequal", "2x1:0+1 2", "1x2:0+2 1+2")):
        bad("nary-identical-" + name, [NARY, VALIDITY], shard(pair(), a=a, b=b),
            "%s and %s: an axis that is not broadcast is sharded in one input only, although every pair of shards has a device." % (a, b),
            "nary-identical", "n", "b")
    bad("nary-identical-merged", [NARY], shard(pair(), a="4x1:0 0 1 1", b="2x1:0 1"),
        "4 and 2 shards with the same elements on each device.", "nary-identical", "n", "b")
    open_case("nary-identical-superset", [NARY], shard(pair(), a="*:0 1", b="*:0"), "Unsharded inputs; one is on more devices.",
              "As nary-identical-groups.")
    sum3 = lambda: model(node("Sum", "a b d", "y"), {k: "f 4x6" for k in "abd"}, {"y": "f 4x6"}, devices=4)
    add("nary-three-inputs", [NARY], shard(sum3(), a="1x2:0 1", b="1x2:0 1", d="1x2:0 1"), "The rule holds for two or more inputs.",
        expect={("c", "n", "y"): "1x2:0 1"})
    bad("nary-three-inputs-third", [NARY], shard(sum3(), a="1x2:0 1", b="1x2:0 1", d="2x1:0 1"), "The third input differs.",
        "nary-identical", "n", "d")
    row = lambda: pair(b="1x6")
    add("broadcast-one-replicated", [NARY], shard(row(), a="2x1:0 1", b="1x1:0+1"),
        "The axis of size 1 is replicated on all devices of the node.", expect={("c", "n", "y"): "2x1:0 1"})
    add("broadcast-one-superset", [NARY], shard(row(), a="2x1:0 1", b="1x1:0+1+3"), "It is replicated on one device more.",
        expect={("c", "n", "y"): "2x1:0 1"})
    bad("broadcast-one-missing-device", [NARY], shard(row(), a="2x1:0 1", b="*:0"), "Device 1 has no copy of the row.", "nary-replicated",
        "n", "b")
    bad("broadcast-one-elsewhere", [NARY], shard(row(), a="2x1:0 1", b="1x1:2+3"), "Other devices have the row.", "nary-replicated", "n",
        "b")
    add("broadcast-other-axis", [NARY], shard(row(), a="1x2:0 1", b="1x2:0 1"), "The sharded axis is not the broadcast one.",
        expect={("c", "n", "y"): "1x2:0 1"})
    add("broadcast-two-axes-one-split", [NARY], shard(row(), a="2x2:0 1 2 3", b="1x2:0+2 1+3"),
        "Axis 0 is broadcast, axis 1 is sharded in both.", expect={("c", "n", "y"): "2x2:0 1 2 3"})
    bad("broadcast-other-axis-differs", [NARY], shard(row(), a="1x2:0 1", b="1x3:0 1 2"), "The axis that is not broadcast differs.",
        "nary-identical", "n", "b")
    add("broadcast-inherited", [NARY, MISSING], shard(row(), a="2x1:0 1"), "The row is a model input: unsharded.",
        expect={("c", "n", "y"): "2x1:0 1"})
    vector = lambda: pair(b="6")
    add("broadcast-rank", [NARY], shard(vector(), a="2x1:0 1", b="1:0+1"), "A vector is broadcast along the missing axis.",
        expect={("c", "n", "y"): "2x1:0 1"})
    add("broadcast-rank-split", [NARY], shard(vector(), a="1x2:0 1", b="2:0 1"), "Axis 0 of the vector is axis 1 of the output.",
        expect={("c", "n", "y"): "1x2:0 1"})
    bad("broadcast-rank-differs", [NARY], shard(vector(), a="1x2:0 1", b="3:0 1 2"), "Axis 0 of the vector does not match axis 1.",
        "nary-identical", "n", "b")
    scalar = model(node("Mul", "a b", "y"), {"a": "f 4x6", "b": "f"}, {"y": "f 4x6"})
    add("broadcast-scalar", [NARY], shard(scalar, a="2x1:0 1"), "A scalar has no axes.", expect={("c", "n", "y"): "2x1:0 1"})
    ones = pair(a="4x1", b="4x1", y="4x1")
    add("broadcast-all-ones", [NARY], shard(ones, a="2x1:0+1 2+3", b="2x1:0+1 2+3"),
        "All corresponding axes have size 1: the output axis is replicated too.", expect={("c", "n", "y"): "2x1:0+1 2+3"})
    add("broadcast-all-ones-unsharded", [NARY], shard(pair(a="1x1", b="1x1", y="1x1"), a="1x1:0+1", b="1x1:0+1"), "All axes have size 1.",
        expect={("c", "n", "y"): "1x1:0+1"})


def composing():
    outer = lambda devices=4: pair(a="4x1", b="1x6", devices=devices)
    add("compose-figure-inputs", [COMPOSE], shard(outer(), a="2x1:0+1 2+3", b="1x2:0+2 1+3"),
        "The figure: each output shard is on one device.", expect={("c", "n", "y"): "2x2:0 1 2 3"})
    add("compose-figure-complete", [COMPOSE], shard(outer(), a="2x1:0+1 2+3", b="1x2:0+2 1+3", y="2x2:0 1 2 3"),
        "The figure with the output.")
    add("compose-columns-first", [COMPOSE], shard(outer(), a="2x1:0+2 1+3", b="1x2:0+1 2+3"), "The devices are arranged by columns.",
        expect={("c", "n", "y"): "2x2:0 2 1 3"})
    bad("compose-empty", [COMPOSE], shard(outer(), a="2x1:0 1", b="1x2:0 1"), "No device has row shard 0 and column shard 1.",
        "nary-compose", "n", "b")
    bad("compose-empty-one", [COMPOSE], shard(outer(), a="2x1:0+1 2+3", b="1x2:0+2 1"), "No device has row shard 1 and column shard 1.",
        "nary-compose", "n", "b")
    bad("compose-parallel-groups", [COMPOSE], shard(outer(), a="2x1:0+1 2+3", b="1x2:0+1 2+3"), "The groups are equal instead of crossed.",
        "nary-compose", "n", "b")
    add("compose-everywhere", [COMPOSE], shard(outer(2), a="2x1:0+1 0+1", b="1x2:0+1 0+1"), "Every device has every shard.",
        expect={("c", "n", "y"): "2x2:0+1 0+1 0+1 0+1"})
    add("compose-unequal", [COMPOSE], shard(outer(5), a="2x1:0+1+2 3+4", b="1x2:0+3 1+2+4"), "Intersections of different sizes.",
        expect={("c", "n", "y"): "2x2:0 1+2 3 4"})
    add("compose-device-of-two-shards", [COMPOSE], shard(outer(3), a="2x1:0+1 2", b="1x2:0+2 1+2"), "Device 2 has two output shards.",
        expect={("c", "n", "y"): "2x2:0 1 2 2"})
    add("compose-6-devices", [COMPOSE], shard(outer(6), a="2x1:0+1+2 3+4+5", b="1x3:0+3 1+4 2+5"), "2 x 3 shards.",
        expect={("c", "n", "y"): "2x3:0 1 2 3 4 5"})
    cube = lambda: model(node("Sum", "a b d", "y"), {"a": "f 4x1x1", "b": "f 1x2x1", "d": "f 1x1x6"}, {"y": "f 4x2x6"}, devices=8)
    add("compose-three-axes", [COMPOSE], shard(cube(), a="2x1x1:0+1+2+3 4+5+6+7", b="1x2x1:0+1+4+5 2+3+6+7", d="1x1x2:0+2+4+6 1+3+5+7"),
        "Three broadcast axes on eight devices.", expect={("c", "n", "y"): "2x2x2:0 1 2 3 4 5 6 7"})
    bad("compose-three-axes-empty", [COMPOSE], shard(cube(), a="2x1x1:0+1+2+3 4+5+6+7", b="1x2x1:0+1+4+5 2+3+6+7", d="1x1x2:0+2+4+6 1+3+5"),
        "No device has the last shards of all three.", "nary-compose", "n", "d")
    with_shared = pair(a="2x4x1", b="2x1x6", y="2x4x6", devices=8)
    add("compose-and-shared-axis", [COMPOSE, NARY], shard(with_shared, a="2x2x1:0+1 2+3 4+5 6+7", b="2x1x2:0+2 1+3 4+6 5+7"),
        "Axis 0 is sharded in both inputs, axes 1 and 2 are broadcast.", expect={("c", "n", "y"): "2x2x2:0 1 2 3 4 5 6 7"})
    open_case(
        "compose-strict-replication",
        [COMPOSE, NARY],
        shard(outer(), a="2x1:0+1 2+3", b="1x1:0+1+2+3"),
        "Only one of two broadcast axes is sharded.",
        "'Any broadcast axis of size 1 must be replicated across all devices of the node' would require that a, whose axis 1 has size 1, is"
        " on all four devices. The figure of the same section does not satisfy this. Shards are given for the rule of intersections.",
    )


# ---- reductions ----------------------------------------------------------------------------------

REDUCE_OPS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()


def reduce(op, axes, keep, shape="4x6", devices=4):
    sizes = [int(s) for s in shape.split("x")]
    front = [a % len(sizes) for a in axes] if axes is not None else range(len(sizes))
    out = [1 if a in front else s for a, s in enumerate(sizes) if keep or a not in front]
    inputs = {"x": "f " + shape}
    if axes is None:
        made = node(op, "x", "y", keepdims=int(keep))
        constants = {}
    else:
        made = node(op, "x axes", "y", keepdims=int(keep))
        constants = {"axes": np.array(axes, np.int64)}
    return model(made, inputs, {"y": "f " + "x".join(map(str, out)) if out else "f"}, constants, devices=devices)


def reductions():
    for k, name in enumerate(REDUCE_OPS):
        op, keep = "Reduce" + name, k % 2 == 0
        values = {"x": (0.5, 3)}
        add("reduce-%s-kept-axis" % name.lower(), [REDUCTION], shard(reduce(op, [1], keep), x="2x1:0 1"),
            "%s; the sharded axis is kept." % op, values=values, expect={("c", "n", "y"): "2x1:0 1" if keep else "2:0 1"})
        add("reduce-%s-reduced-axis" % name.lower(), [REDUCTION], shard(reduce(op, [1], keep), x="1x2:0 1"),
            "%s along the sharded axis: the result is on all participating devices." % op, expect={("c", "n", "y"): "*:0 1"}, values=values)
    for name, axes, keep, text, wanted in (
            ("both-axes", [1], True, "2x2:0 1 2 3", "2x1:0+1 2+3"), ("both-axes-dropped", [1], False, "2x2:0 1 2 3", "2:0+1 2+3"),
            ("both-axes-first", [0], True, "2x2:0 1 2 3", "1x2:0+2 1+3"), ("all-axes", None, True, "2x2:0 1 2 3", "*:0 1 2 3"),
            ("all-axes-dropped", None, False, "2x1:1 3", "*:1 3"), ("negative-axis", [-1], True, "1x2:0 1", "*:0 1"),
            ("groups", [1], True, "1x2:0+1 2+3", "*:0 1 2 3"), ("kept-groups", [1], False, "2x1:0+1 2", "2:0+1 2"),
            ("unequal-groups", [0], False, "2x1:0+1 2", "*:0 1 2"), ("three-shards", [1], False, "1x3:2 0 1", "*:0 1 2"),
            ("replicated", [1], True, "1x1:0+1", "*:0 1"), ("shared-device", [0], True, "2x1:0+1 1+2", "*:0 1 2"),
            ("block-cyclic", [0], False, "4x1:0 1 0 1", "*:0 1"), ("several-sums", [0], False, "2x2:0 1 1 2", "2:0+1 1+2")):
        add("reduce-" + name, [REDUCTION], shard(reduce("ReduceSum", axes, keep), x=text),
            "ReduceSum of %s, axes %s, keepdims %d." % (text, axes, keep), expect={("c", "n", "y"): wanted})
    add("reduce-distinguished", [REDUCTION], shard(reduce("ReduceSum", [1], False), x="1x2:0 1", y="*:0"),
        "The result is stored on one device only.")
    add("reduce-scattered", [REDUCTION, SEMANTICS], shard(reduce("ReduceSum", [1], False), x="1x2:0 1", y="2:0 1"),
        "The result is scattered.")
    m = reduce("ReduceMean", [1], False, "4x5")
    add("reduce-mean-uneven", [REDUCTION], shard(m, x="1x2:0 1"), "A mean over shards of different sizes is not the mean of their means.",
        expect={("c", "n", "y"): "*:0 1"})
    m = reduce("ReduceSum", [1], True, "2x4x6")
    add("reduce-middle-axis", [REDUCTION], shard(m, x="2x1x2:0 1 2 3"), "Axes 0 and 2 are kept.", expect={("c", "n", "y"): "2x1x2:0 1 2 3"})
    m = model(node("ArgMax", "x", "y", axis=1, keepdims=0), {"x": "f 4x6"}, {"y": "i 4"})
    open_case("reduce-argmax", [REDUCTION], shard(m, x="1x2:0 1"), "ArgMax along the sharded axis.",
              "'Reduction ops' has no list. ArgMax reduces an axis, but needs the position of each shard.")


# ---- MatMul-like ---------------------------------------------------------------------------------

def product(op="MatMul", a="4x6", b="6x8", y="4x8", devices=8, **attributes):
    return model(node(op, "a b", "y", **attributes), {"a": "f " + a, "b": "f " + b}, {"y": "f " + y}, devices=devices)


def matmul():
    for name, a, b, wanted, about in (
            ("m", "2x1:0 1", "1x1:0+1", "2x1:0 1", "M is sharded"), ("n", "1x1:0+1", "1x2:0 1", "1x2:0 1", "N is sharded"),
            ("k", "1x2:0 1", "2x1:0 1", "*:0 1", "K is sharded: the sum is on both devices"),
            ("k3", "1x3:2 0 1", "3x1:2 0 1", "*:0 1 2", "K is in 3 shards"),
            ("mn", "2x1:0+1 2+3", "1x2:0+2 1+3", "2x2:0 1 2 3", "M and N are sharded: intersections"),
            ("mk", "2x2:0 1 2 3", "2x1:0+2 1+3", "2x1:0+1 2+3", "M and K are sharded"),
            ("nk", "1x2:0+1 2+3", "2x2:0 1 2 3", "1x2:0+2 1+3", "N and K are sharded"),
            ("mnk", "2x2:0+1 2+3 4+5 6+7", "2x2:0+4 1+5 2+6 3+7", "2x2:0+2 1+3 4+6 5+7", "M, N and K are sharded on eight devices"),
            ("replicated", "1x1:0+1", "1x1:0+1", "1x1:0+1", "both inputs are replicated"),
            ("superset", "2x1:0 1", "1x1:0+1+2", "2x1:0 1", "b is on one device more"),
            ("k-shared-device", "1x2:0+1 1+2", "2x1:0 1+2", "*:0 1 2", "the parts of K are on {0} and {1, 2}: all get the sum"),
            ("k-intersections", "1x2:0+1+2 2+3", "2x1:0+1 2+3", "*:0 1 2 3", "the parts of K are on {0, 1} and {2, 3}"),
            ("k-block-cyclic", "1x3:0 1 0", "3x1:0 1 0", "*:0 1", "device 0 has two parts of K")):
        add("matmul-" + name, [MATMUL], shard(product(), a=a, b=b), "MatMul: %s." % about, expect={("c", "n", "y"): wanted})
    add("matmul-b-inherited", [MATMUL, MISSING], shard(product(), a="2x1:0 1"), "b is a model input: unsharded. M is sharded.",
        expect={("c", "n", "y"): "2x1:0 1"})
    for name, a, b, rule, about in (("k-of-a-only", "1x2:0 1", "1x1:0+1", "matmul-reduction-axes", "K is sharded in a only"),
                                    ("k-of-b-only", "1x1:0+1", "2x1:0 1", "matmul-reduction-axes", "K is sharded in b only"),
                                    ("k-counts", "1x2:0 1", "3x1:0 1 2", "matmul-reduction-axes", "K is in 2 and in 3 shards"),
                                    ("k-against-n", "1x2:0 1", "1x2:0 1", "matmul-reduction-axes",
                                     "K of a and N of b"), ("k-device-order", "1x2:0 1", "2x1:1 0", "matmul-reduction-axes",
                                                            "the shards of K that belong together are on different devices"),
                                    ("m-missing-device", "2x1:0 1", "*:0", "matmul-devices", "device 1 has no copy of b"),
                                    ("mn-uncrossed", "2x1:0 1", "1x2:0 1", "matmul-devices",
                                     "no device has row shard 0 and column shard 1"), ("apart", "*:0", "*:1", "matmul-devices",
                                                                                       "unsharded on different devices")):
        bad("matmul-bad-" + name, [MATMUL], shard(product(), a=a, b=b), "MatMul: %s." % about, rule, "n", "b")
    bad("matmul-bad-inherited", [MATMUL, MISSING], shard(product(), a="1x2:0 1"), "b is a model input and so unsharded; K of a is sharded.",
        "matmul-reduction-axes", "n", "b")
    add("matmul-output-scattered", [MATMUL, SEMANTICS], shard(product(), a="1x2:0 1", b="2x1:0 1", y="2x1:0 1"),
        "K is sharded, the sum is scattered.")
    batch = lambda: product(a="2x4x6", b="2x6x8", y="2x4x8")
    add("matmul-batch", [MATMUL, NARY], shard(batch(), a="2x1x1:0 1", b="2x1x1:0 1"), "The batch axis is sharded.",
        expect={("c", "n", "y"): "2x1x1:0 1"})
    bad("matmul-batch-differs", [MATMUL, NARY], shard(batch(), a="2x1x1:0 1", b="1x1x1:0+1"), "The batch axis is sharded in a only.",
        "nary-identical", "n", "b")
    m = product(a="2x4x6", b="6x8", y="2x4x8")
    add("matmul-batch-broadcast", [MATMUL, NARY], shard(m, a="2x1x1:0 1", b="1x1:0+1"), "b has no batch axis.",
        expect={("c", "n", "y"): "2x1x1:0 1"})
    add("matmul-vector", [MATMUL], shard(product(b="6", y="4"), a="2x1:0 1", b="1:0+1"), "b is a vector.",
        expect={("c", "n", "y"): "2:0 1"})
    add(
        "matmul-two-in-a-row", [MATMUL, MISSING],
        shard(
            shard(
                model([node("MatMul", "x u", "h", "A"), node("MatMul", "h v", "y", "B")], {"x": "f 4x6", "u": "f 6x8", "v": "f 8x2"},
                      {"y": "f 4x2"}), "A", u="1x2:0 1"), "B", v="2x1:0 1"), "Columns, then rows: one reduction at the end.",
        expect={("c", "A", "h"): "1x2:0 1", ("c", "B", "h"): "1x2:0 1", ("c", "B", "y"): "*:0 1"})


def gemm():
    def make(a="4x6", b="6x8", c=None, **attributes):
        inputs = {"a": "f " + a, "b": "f " + b, **({"d": "f " + c} if c else {})}
        return model(node("Gemm", "a b" + (" d" if c else ""), "y", **attributes), inputs, {"y": "f 4x8"}, devices=4)
    add("gemm-k", [MATMUL], shard(make(), a="1x2:0 1", b="2x1:0 1"), "Gemm along K.", expect={("c", "n", "y"): "*:0 1"})
    add("gemm-transposed", [MATMUL], shard(make("6x4", "8x6", transA=1, transB=1), a="1x2:0+1 2+3", b="2x1:0+2 1+3"),
        "Gemm with both inputs transposed.", expect={("c", "n", "y"): "2x2:0 1 2 3"})
    bad("gemm-transposed-k-differs", [MATMUL], shard(make("6x4", transA=1), a="2x1:0 1", b="1x2:0 1"),
        "K is axis 0 of a and not sharded in b.", "matmul-reduction-axes", "n", "b")
    add("gemm-c", [MATMUL, NARY], shard(make(c="8"), a="1x1:0+1", b="1x2:0 1", d="2:0 1"), "C is sharded like N.",
        expect={("c", "n", "y"): "1x2:0 1"})
    add("gemm-c-row", [MATMUL, NARY], shard(make(c="4x1"), a="2x1:0 1", b="1x1:0+1", d="2x1:0 1"), "C is sharded like M.",
        expect={("c", "n", "y"): "2x1:0 1"})
    bad("gemm-c-differs", [MATMUL, NARY], shard(make(c="4x8"), a="1x1:0+1", b="1x2:0 1", d="2x1:0 1"),
        "C is sharded along M, the product along N.", "nary-identical", "n", "d")


def quantized():
    def integer():
        return model(node("MatMulInteger", "a b", "y"), {"a": "u8 4x6", "b": "i8 6x8"}, {"y": "i32 4x8"}, devices=4)
    def qlinear():
        # 1.9: no result is halfway between two integers, where rounding before and after adding the zero point differ
        u8, f = lambda v: np.array(v, np.uint8), lambda v: np.array(v, np.float32)
        return model(node("QLinearMatMul", "a sa za b sb zb sy zy", "y"), {"a": "u8 4x6", "b": "u8 6x8"}, {"y": "u8 4x8"},
                     {"sa": f(0.5), "za": u8(1), "sb": f(0.5), "zb": u8(2), "sy": f(1.9), "zy": u8(3)}, devices=4)
    for name, make in (("integer", integer), ("qlinear", qlinear)):
        add("matmul-%s-m" % name, [MATMUL], shard(make(), a="2x1:0 1", b="1x1:0+1"), "Quantized product, M is sharded.",
            expect={("c", "n", "y"): "2x1:0 1"})
        add("matmul-%s-n" % name, [MATMUL], shard(make(), a="1x1:0+1", b="1x2:0 1"), "Quantized product, N is sharded.",
            expect={("c", "n", "y"): "1x2:0 1"})
        add("matmul-%s-k" % name, [MATMUL], shard(make(), a="1x2:0 1", b="2x1:0 1"), "Quantized product, K is sharded.",
            expect={("c", "n", "y"): "*:0 1"})
        bad("matmul-%s-k-differs" % name, [MATMUL], shard(make(), a="1x2:0 1", b="1x2:0 1"), "Quantized product, K is sharded in a only.",
            "matmul-reduction-axes", "n", "b")


def einsums():
    def make(equation, a, b, y):
        return product("Einsum", a, b, y, equation=equation)
    add("einsum-matmul", [MATMUL], shard(make("ij,jk->ik", "4x6", "6x8", "4x8"), a="1x2:0 1", b="2x1:0 1"), "ij,jk->ik with j sharded.",
        expect={("c", "n", "y"): "*:0 1"})
    add("einsum-mn", [MATMUL], shard(make("ij,jk->ik", "4x6", "6x8", "4x8"), a="2x1:0+1 2+3", b="1x2:0+2 1+3"),
        "ij,jk->ik with i and k sharded.", expect={("c", "n", "y"): "2x2:0 1 2 3"})
    add("einsum-transposed", [MATMUL], shard(make("ij,jk->ki", "4x6", "6x8", "8x4"), a="2x1:0 1", b="1x1:0+1"), "The output is transposed.",
        expect={("c", "n", "y"): "1x2:0 1"})
    add("einsum-attention", [MATMUL], shard(make("bhqd,bhkd->bhqk", "1x4x2x3", "1x4x2x3", "1x4x2x2"), a="1x2x1x1:0 1", b="1x2x1x1:0 1"),
        "Heads are sharded.", expect={("c", "n", "y"): "1x2x1x1:0 1"})
    bad("einsum-k-differs", [MATMUL], shard(make("ij,jk->ik", "4x6", "6x8", "4x8"), a="1x2:0 1", b="1x2:0 1"), "j is sharded in a only.",
        "matmul-reduction-axes", "n", "b")


# ---- operators that the formalism does not support -----------------------------------------------

def unsupported():
    text = "'The following ops are not supported in this version': a checker may accept or refuse a sharding, a runtime may ignore it."
    def case(op, inputs, outputs, sharding, opset=18, run=True, constants=None, arguments=None, **attributes):
        names = arguments if arguments is not None else " ".join([*inputs, *(constants or {})])
        m = model(node(op, names, " ".join(outputs), **attributes), inputs, outputs, constants or {}, opset=opset)
        open_case("unsupported-" + op.lower(), [UNSUPPORTED], shard(m, **sharding), "%s with a sharded input." % op, text, run=run)
    image, f32 = {"x": "f 2x4x6x6"}, lambda *s: np.ones(s, np.float32)
    pool = dict(kernel_shape=[2, 2])
    case("AveragePool", image, {"y": "f 2x4x5x5"}, {"x": "2x1x1x1:0 1"}, **pool)
    case("GlobalAveragePool", image, {"y": "f 2x4x1x1"}, {"x": "2x1x1x1:0 1"})
    case("GlobalLpPool", image, {"y": "f 2x4x1x1"}, {"x": "1x2x1x1:0 1"}, run=False)
    case("GlobalMaxPool", image, {"y": "f 2x4x1x1"}, {"x": "1x2x1x1:0 1"})
    case("LpPool", image, {"y": "f 2x4x5x5"}, {"x": "2x1x1x1:0 1"}, **pool)
    case("MaxPool", image, {"y": "f 2x4x5x5"}, {"x": "2x1x1x1:0 1"}, **pool)
    case("MaxRoiPool", {**image, "r": "f 1x5"}, {"y": "f 1x4x2x2"}, {"x": "1x2x1x1:0 1"}, run=False, pooled_shape=[2, 2])
    case("Conv", image, {"y": "f 2x2x6x6"}, {"x": "2x1x1x1:0 1"}, constants={"w": f32(2, 4, 1, 1)})
    case("ConvInteger", {"x": "u8 2x4x6x6"}, {"y": "i32 2x2x6x6"}, {"x": "2x1x1x1:0 1"}, constants={"w": np.ones((2, 4, 1, 1), np.uint8)})
    case("ConvTranspose", image, {"y": "f 2x2x6x6"}, {"x": "2x1x1x1:0 1"}, constants={"w": f32(4, 2, 1, 1)})
    case("DeformConv", image, {"y": "f 2x2x6x6"}, {"x": "2x1x1x1:0 1"}, opset=19, run=False,
         constants={"w": f32(2, 4, 1, 1), "o": np.zeros((2, 2, 6, 6), np.float32)})
    case("InstanceNormalization", image, {"y": "f 2x4x6x6"}, {"x": "2x1x1x1:0 1"}, constants={"s": f32(4), "b": f32(4)})
    case("LpNormalization", {"x": "f 4x6"}, {"y": "f 4x6"}, {"x": "2x1:0 1"}, run=False)
    case("LayerNormalization", {"x": "f 4x6"}, {"y": "f 4x6"}, {"x": "2x1:0 1"}, constants={"s": f32(6)})
    for op, gates in (("GRU", 3), ("LSTM", 4), ("RNN", 1)):
        case(op, {"x": "f 3x2x4"}, {"y": "f 3x1x2x2"}, {"x": "1x2x1:0 1"}, constants={"w": f32(1, 2 * gates, 4), "r": f32(1, 2 * gates, 2)},
             hidden_size=2)
    case("DFT", {"x": "f 2x4x1"}, {"y": "f 2x4x2"}, {"x": "2x1x1:0 1"}, run=False, opset=20, arguments="x")
    case("STFT", {"x": "f 2x8x1"}, {"y": "f 2x3x3x2"}, {"x": "2x1x1:0 1"}, run=False, constants={"k": np.int64(2), "w": f32(4)},
         arguments="x k w")
    case("MelWeightMatrix", {"k": "i"}, {"y": "f ?"}, {"y": "2x1:0 1"}, run=False, arguments="k d r l u",
         constants={"d": np.int64(8), "r": np.int64(8000), "l": np.float32(0), "u": np.float32(4000)})
    case("TfIdfVectorizer", {"x": "i 2x4"}, {"y": "f 2x3"}, {"x": "2x1:0 1"}, run=False, mode="TF", min_gram_length=1, max_gram_length=1,
         max_skip_count=0, ngram_counts=[0], ngram_indexes=[0, 1, 2], pool_int64s=[1, 2, 3])
    branch = lambda op, name: helper.make_graph([node(op, "x", name, op)], name, [], [value(name, "f 4x6")])
    m = model(helper.make_node("If", ["q"], ["y"], name="n", then_branch=branch("Neg", "t"), else_branch=branch("Abs", "e")),
              {"q": "b", "x": "f 4x6"}, {"y": "f 4x6"})
    open_case("unsupported-if", [UNSUPPORTED], shard(m, y="2x1:0 1"), "If with a sharded output.", text)
    body = helper.make_graph([node("Add", "s i", "t", "add"), node("Neg", "i", "o", "neg")], "body", [value("s", "f 6"), value("i", "f 6")],
                             [value("t", "f 6"), value("o", "f 6")])
    m = model(helper.make_node("Scan", ["z", "x"], ["f", "y"], name="n", body=body, num_scan_inputs=1), {"z": "f 6", "x": "f 4x6"},
              {"f": "f 6", "y": "f 4x6"})
    open_case("unsupported-scan", [UNSUPPORTED], shard(m, x="1x2:0 1"), "Scan with a sharded input.", text)
    body = helper.make_graph([node("Identity", "q", "p", "keep"), node("Neg", "s", "t", "neg")], "body",
                             [value("i", "i"), value("q", "b"), value("s", "f 4x6")],
                             [value("p", "b"), value("t", "f 4x6")])
    m = model(helper.make_node("Loop", ["k", "", "x"], ["y"], name="n", body=body), {"x": "f 4x6"}, {"y": "f 4x6"}, {"k": np.int64(3)})
    open_case("unsupported-loop", [UNSUPPORTED], shard(m, x="2x1:0 1"), "Loop with a sharded state.", text)
    m = model([node("SequenceConstruct", "x z", "s", "n"), node("SequenceAt", "s k", "y", "at")], {"x": "f 4x6", "z": "f 4x6"},
              {"y": "f 4x6"}, {"k": np.int64(1)})
    open_case("unsupported-sequence", [UNSUPPORTED], shard(m, x="2x1:0 1", z="2x1:0 1"), "SequenceConstruct with sharded inputs.", text)


for part in (semantics, validity, missing, unary, nary, nary_rules, composing, reductions, matmul, gemm, quantized, einsums, unsupported):
    part()
