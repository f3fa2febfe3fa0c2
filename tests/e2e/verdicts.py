# SPDX-License-Identifier: Apache-2.0
"""Tests that `verify` and other commands do not report an empty success: which sizes random inputs get, a sharded plan even if one device
would be faster, an error if nothing can be sharded, and which devices are assumed.

usage: verdicts.py TESSERA MODELS VARYING_OPS RAMP_OPS RARE_OPS"""
import json, os, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

import harness

TESSERA, MODELS, VARYING_OPS, RAMP_OPS, RARE_OPS = os.path.abspath(sys.argv[1]), *sys.argv[2:6]
BERT = os.path.join(MODELS, "bert_tiny", "model.onnx")
check = harness.check


def call(*args, **variables):
    return harness.call(TESSERA, *args, **variables)


def document(*args):
    rc, out, err = call(*args, "--json")
    return rc, json.loads(out) if out.strip() else {}, err


def save(path, nodes, inputs, outputs, weights=(), opsets=(("", 18),)):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info(*i) for i in inputs], [info(*o) for o in outputs], list(weights))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opsets], ir_version=10), path)
    return path


def weight(name, *shape):
    return numpy_helper.from_array(np.random.default_rng(1).standard_normal(shape).astype("f4"), name)


def test_sizes(d):
    rc, doc, err = document("verify", BERT, "--devices", 2)
    check("64 positions: 64 instead of 128", rc == 0 and doc["dims"] == {"batch": 64, "seq": 64} and doc["assumed_size"] == 64, (doc, err))
    check("and the model is sharded", doc.get("cut_nodes", 0) > 50 and not doc["forced"], doc)
    rc, out, err = call("verify", BERT, "--devices", 2)
    check("the sizes are printed", "assuming 64 (batch=64, seq=64)" in err, err)
    rc, doc, err = document("verify", BERT, "--devices", 2, "--dim", "batch=2", "--dim", "seq=9")
    check("given sizes are used", rc == 0 and doc["dims"] == {"batch": 2, "seq": 9} and doc["assumed_size"] is None, (doc, err))
    rc, doc, err = document("run", BERT, "--dim", "batch=3")
    check("run has the same rule", rc == 0 and doc["dims"] == {"batch": 3, "seq": 64} and doc["outputs"][0]["shape"][0] == 3, (doc, err))
    rc, doc, err = document("bench", BERT, "--devices", 2, "--seconds", 0.1, "--dim", "batch=2")
    check("bench too", rc == 0 and doc["dims"] == {"batch": 2, "seq": 64}, (doc, err))
    # The Reshape folds the batch, so any batch runs. Below, the Concat with z needs a batch of one.
    m = save(d + "/one.onnx", [helper.make_node("Reshape", ["x", "shape"], ["r"]),
                               helper.make_node("MatMul", ["r", "w"], ["y"])], [("x", T.FLOAT, ["n", "t", 8])], [("y", T.FLOAT, None)],
             [numpy_helper.from_array(np.array([1, -1, 8], "i8"), "shape"),
              weight("w", 1, 8, 8)])
    rc, doc, err = document("run", m)
    check("any batch runs where the model folds it", rc == 0 and doc["dims"] == {"n": 128, "t": 128}, (doc, err))
    m = save(d + "/fixed.onnx", [helper.make_node("Concat", ["x", "z"], ["c"], axis=1), helper.make_node("MatMul", ["c", "w"], ["y"])],
             [("x", T.FLOAT, ["n", "t", 8])], [("y", T.FLOAT, None)], [weight("z", 1, 4, 8), weight("w", 8, 8)])
    rc, doc, err = document("verify", m, "--devices", 2)
    check("a batch of one, and 128 for the others", rc == 0 and doc["dims"] == {"n": 1, "t": 128}, (doc, err))
    m = save(d + "/sum.onnx", [helper.make_node("Concat", ["a", "b"], ["c"], axis=0), helper.make_node("Add", ["c", "x"], ["y"])],
             [("a", T.FLOAT, ["past", 4]), ("b", T.FLOAT, ["now", 4]), ("x", T.FLOAT, ["past + now", 4])], [("y", T.FLOAT, None)])
    rc, doc, err = document("verify", m, "--devices", 2)
    check("an expression is computed", rc == 0 and doc["dims"] == {"past": 128, "now": 128, "past + now": 256}, (doc, err))
    # With 128 for each dimension a run would take minutes.
    m = save(d + "/large.onnx", [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])],
             [("x", T.FLOAT, ["n", "t", "u", 1024])], [("y", T.FLOAT, None)], [weight("w", 1024, 1024)])
    rc, doc, err = document("verify", m, "--devices", 2)
    check("long runs are not tried", rc == 0 and doc["assumed_size"] in (8, 16, 32), (doc, err))
    m = save(d + "/none.onnx", [helper.make_node("Concat", ["a", "b"], ["c"], axis=0),
                                helper.make_node("Add", ["c", "x"], ["y"])], [("a", T.FLOAT, ["p", 4]), ("b", T.FLOAT, ["q", 4]),
                                                                              ("x", T.FLOAT, ["r", 4]), ("v", T.FLOAT, ["s", 5])],
             [("y", T.FLOAT, None)])
    rc, doc, err = document("verify", m, "--devices", 2)
    check("broadcasting: a size at which it runs is found", rc == 0 and doc["assumed_size"] == 1, (rc, doc, err))
    m = save(d + "/never.onnx", [helper.make_node("Concat", ["a", "b"], ["c"], axis=0), helper.make_node("MatMul", ["x", "c"], ["y"])],
             [("a", T.FLOAT, ["p", 4]), ("b", T.FLOAT, ["q", 4]), ("x", T.FLOAT, [2, "r"])], [("y", T.FLOAT, None)])
    rc, doc, err = document("verify", m, "--devices", 2)
    check("no size runs: says so", rc == 1 and any(f["code"] == "inputs-unsized" for f in doc["findings"]), (rc, doc, err))
    rc, doc, err = document("verify", m, "--devices", 2, "--dim", "r=8", "--dim", "p=4", "--dim", "q=4")
    check("given sizes that fit run", rc == 0 and doc["cut_nodes"] > 0, (rc, doc, err))
    # The CPU has no kernel for this type, so it says nothing about sizes.
    m = save(d + "/bfloat16.onnx", [helper.make_node("MatMul", ["x", "x"], ["y"])], [("x", T.BFLOAT16, ["n", "n"])],
             [("y", T.BFLOAT16, None)])
    rc, doc, err = document("run", m)
    check("no kernel: no word about sizes", rc == 7 and "engine-refused" in str((doc, err)) and "inputs-unsized" not in str((doc, err)),
          (rc, doc, err))
    # A mask that is only added gives the lengths of the sequences: random ones would not fit the other inputs.
    m = save(d + "/mask.onnx", [
        helper.make_node("ReduceSum", ["mask", "axis"], ["length"], keepdims=0),
        helper.make_node("Shape", ["mask"], ["sizes"]),
        helper.make_node("Add", ["other", "other"], ["sum"])
    ], [("mask", T.INT64, [3, 9]), ("other", T.INT64, [3, 9])], [("length", T.INT64, [3]), ("sizes", T.INT64, [2]),
                                                                 ("sum", T.INT64, [3, 9])],
             [numpy_helper.from_array(np.array([1]), "axis")])
    rc, doc, err = document("run", m, "--outputs", d + "/mask.npz")
    with np.load(d + "/mask.npz") as got:
        check("a mask of lengths has no zeros", rc == 0 and (got["length"] == 9).all() and 0 < got["sum"].sum() < 54,
              (rc, got["length"], err))


def test_kept_sizes(d):
    rc, _, err = call("plan", BERT, "--devices", 2, "--dim", "batch=2", "--dim", "seq=9", "-o", d + "/p.onnx")
    rc, doc, err = document("verify", d + "/p.onnx")
    check("a planned model is verified with the sizes of its plan", rc == 0 and doc["dims"] == {"batch": 2, "seq": 9}, (doc, err))


def test_forced(d):
    one = ("--dim", "batch=1", "--dim", "seq=1")
    rc, doc, err = document("verify", BERT, "--devices", 2, *one)
    check("one device is faster: a sharded plan is verified", rc == 0 and doc["forced"] and doc["cut_nodes"] > 30, (doc, err))
    rc, out, err = call("verify", BERT, "--devices", 2, *one)
    check("and the text says so", rc == 0 and "one device would be faster; verifying a sharded plan anyway" in err, err)
    scalar = save(d + "/scalar.onnx", [helper.make_node("Mul", ["x", "x"], ["y"])], [("x", T.FLOAT, [1])], [("y", T.FLOAT, [1])])
    loop = save(d + "/unique.onnx", [helper.make_node("Unique", ["x"], ["y"])], [("x", T.FLOAT, ["n"])], [("y", T.FLOAT, None)])
    for model, why in ((scalar, "no dimension"), (loop, "Unique")):
        rc, out, err = call("verify", model, "--devices", 2)
        check("nothing can be sharded: exit 1 (%s)" % why, rc == 1 and "verify-unsharded" in err and why in err and "PASS" not in out, err)
        rc, doc, err = document("verify", model, "--devices", 2, "--allow-unsharded")
        check("unless that is allowed (%s)" % why, rc == 0 and doc["ok"] and doc["cut_nodes"] == 0, (doc, err))
    rc, out, err = call("verify", BERT, "--devices", 2, "--stages", 2, "--dim", "batch=2", "--dim", "seq=9")
    check("stages divide the work too", rc == 0 and "PASS" in out, out + err)


def test_assumed(d):
    sizes = ("--dim", "batch=2", "--dim", "seq=9")
    says = "on 4 assumed devices of 50 GFLOP/s; measure yours: tessera topology measure"
    rc, out, err = call("plan", BERT, "--devices", 4, *sizes, "-o", d + "/a.onnx", "--plan", d + "/a.json")
    check("plan: assumed devices", rc == 0 and says in out, out)
    check("and in its document", json.load(open(d + "/a.json"))["assumed"] is True)
    check("simulate: assumed, as the model was planned", says in call("simulate", d + "/a.onnx")[1])
    check("partition: assumed", says in call("partition", BERT, "--devices", 4, *sizes, "-o", d + "/parts")[1])
    for words in (["plan", BERT], ["simulate", BERT], ["verify", BERT], ["run", BERT], ["partition", BERT,
                                                                                        "--dry-run"], ["bench", BERT, "--seconds", 0.1]):
        rc, doc, err = document(*words, "--devices", 2, *sizes)
        check("%s --json: assumed" % words[0], rc == 0 and doc["assumed"] is True, (rc, doc, err))
    rc, doc, err = document("plan", BERT, "--devices", "auto", *sizes)
    check("devices of this machine are not assumed", rc == 0 and doc["assumed"] is False, doc)
    rc, doc, err = document("plan", BERT, "--devices", "h100:2", *sizes)
    check("a box is assumed", rc == 0 and doc["assumed"] is True, doc)
    two = {"devices": [{"flops": 1e11}, {"flops": 1e11}], "links": [{"from": 0, "to": 1}, {"from": 1, "to": 0}]}
    for extra, assumed in (({}, False), ({"assumed": True}, True)):
        json.dump(dict(two, **extra), open(d + "/t.json", "w"))
        rc, doc, err = document("plan", BERT, "--devices", d + "/t.json", *sizes)
        check("a file's devices: assumed %s" % assumed, rc == 0 and doc["assumed"] is assumed, (doc, err))
    rc, doc, err = document("report", BERT, "--devices", 4, *sizes)
    check("the page's headline says it", rc == 0 and doc["verdict"]["assumed"] is True and len(doc["simulation"]["timeline"]) == 4,
          doc.get("verdict"))
    many = 2 * (os.cpu_count() or 1)
    for command in (["run", BERT], ["verify", BERT], ["bench", BERT, "--seconds", 0.1]):
        rc, out, err = call(*command, "--devices", many, *sizes)
        check("%s: more ranks than cores" % command[0], rc == 0 and err.count("warning: %d ranks share " % many) == 1, err)
    rc, out, err = call("plan", BERT, "--devices", "{4,[[1],[0],[3],[2]]}", "--dim", "batch=16", "--dim", "seq=64")
    check("two devices that are not linked to the others", "2 of the 4 devices are used, more would not be faster" in out
          and "least of all candidates" in out, out)
    rc, doc, err = document("plan", BERT, "--devices", 2, "--memory", "240KB", "--time", 0.0001, *sizes)
    check("not found in time is no proof", rc == 4 and doc["feasible"] is None and "found in time" in err, (rc, doc, err))
    rc, doc, err = document("plan", BERT, "--devices", 2, "--memory", "1KB", *sizes)
    check("a proof is one", rc == 4 and doc["feasible"] is False, (rc, doc, err))


def test_engine_varies(d):
    """A user-defined operator returns another result in each call, by 1e-3."""
    m = save(d + "/varies.onnx", [
        helper.make_node("MatMul", ["x", "u"], ["a"]),
        helper.make_node("Twice", ["a"], ["b"], domain="test.ops", bias=3),
        helper.make_node("MatMul", ["b", "w"], ["y"])
    ], [("x", T.FLOAT, [8, 16])], [("y", T.FLOAT, [8, 16])], [weight("u", 16, 24), weight("w", 24, 16)], (("", 17), ("test.ops", 1)))
    rc, doc, err = document("verify", m, "--devices", 2, "--ort-ops", VARYING_OPS)
    codes = [f["code"] for f in doc["findings"]]
    check("an engine that differs from itself is not the sharding's fault", rc == 0 and doc["ok"] and "engine-varies" in codes,
          (rc, doc, err))
    check("both figures are named", doc["outputs"][0]["max_rel"] > 1e-4 and "differs from itself by" in err, err)
    # Differences that a sharding causes are still reported: see first_difference in tests/e2e/trials.py.
    refused = save(d + "/refused.onnx", [helper.make_node("Nothing", ["x"], ["y"], domain="nobody")], [("x", T.FLOAT, [8, 16])],
                   [("y", T.FLOAT, [8, 16])], (), (("", 17), ("nobody", 1)))
    rc, out, err = call("verify", refused, "--devices", 2, "--allow-unsharded")
    check("the unsharded model is refused too", rc == 7 and "verify-reference" in err and "fails to run the unsharded model" in err,
          (rc, err))
    # The partitions run, because they do not have the node that no output needs; the unsharded model does not load.
    unneeded = save(d + "/unneeded.onnx",
                    [helper.make_node("MatMul", ["x", "w"], ["y"]),
                     helper.make_node("Nothing", ["x"], ["z"], domain="nobody")], [("x", T.FLOAT, [8, 16])], [("y", T.FLOAT, [8, 16])],
                    [weight("w", 16, 16)], (("", 17), ("nobody", 1)))
    rc, doc, err = document("verify", unneeded, "--devices", 2, "--random", 3)
    check("no sharding passes without a reference", rc == 7 and not any(trial["ok"] for trial in doc["trials"]), (rc, doc, err))


def test_device_varies(d):
    """A kernel of a device returns another result in one of six calls, the second of the two ranks: a few runs of the unsharded model do
    not show it. A device NPU that runs on the CPU stands for a GPU."""
    m = save(d + "/rare.onnx", [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Twice", ["a"], ["y"], name="rare", domain="test.ops", bias=3)
    ], [("x", T.FLOAT, [8, 16])], [("y", T.FLOAT, [8, 16])], (), (("", 17), ("test.ops", 1)))
    open(d + "/rules.txt", "w").write("Twice  test.ops  1  [A*] -> [A*]\n")
    rc, out, err = call("annotate", m, "-o", d + "/cut.onnx", "--config", "c:2=NPU,NPU", "--shard", "rare:a={2,1}", "--rules",
                        d + "/rules.txt")
    check("devices with names", rc == 0, err)
    for reference in ((), ("--reference", "cpu")):
        rc, doc, err = document("verify", d + "/cut.onnx", "--ort-ops", RARE_OPS, "--map-device", "NPU=CPU", "--rules", d + "/rules.txt",
                                *reference)
        check("the device differs from itself %s" % (reference, ), rc == 0 and [f["code"] for f in doc["findings"]] == ["engine-varies"],
              (rc, doc, err))


def distances(path, tokens=False, ramp=None):
    """The distance of each x and each y as torch.cdist computes it: sqrt(x x - 2 x y + y y). With tokens, x is read from a table.

    ramp: x and y first pass through Twice of RAMP_OPS, which adds the index of each element times this number."""
    one = helper.make_tensor("one", T.FLOAT, [1], [1.0])
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"])] if tokens else []
    if ramp is not None:
        for name in "xy":
            nodes += [helper.make_node("Div", ["given_" + name, "ramp"], ["scaled_" + name]),
                      helper.make_node("Twice", ["scaled_" + name], ["twice_" + name], name="ramp_" + name, domain="test.ops", bias=0),
                      helper.make_node("Mul", ["twice_" + name, "ramp"], [name])]
    for name in "xy":
        nodes += [
            helper.make_node("Mul", [name, name], [name + "_squares"]),
            helper.make_node("ReduceSum", [name + "_squares", "axis"], [name + "_sums"]),
            helper.make_node("Shape", [name + "_sums"], [name + "_size"]),
            helper.make_node("ConstantOfShape", [name + "_size"], [name + "_ones"], value=one)
        ]
    nodes += [
        helper.make_node("Mul", ["x", "minus_two"], ["x_scaled"]),
        helper.make_node("Concat", ["x_scaled", "x_sums", "x_ones"], ["left"], axis=-1),
        helper.make_node("Concat", ["y", "y_ones", "y_sums"], ["right"], axis=-1),
        helper.make_node("Transpose", ["right"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["left", "turned"], ["squares"], name="product"),
        helper.make_node("Max", ["squares", "zero"], ["positive"]),
        helper.make_node("Sqrt", ["positive"], ["z"])
    ]
    points = (np.random.default_rng(2).standard_normal((48, 64)) + 3).astype("f4")
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in
                 (("axis", np.array([-1])), ("minus_two", np.float32(-2)), ("zero", np.float32(0)), ("ramp", np.float32(ramp or 0)))]
    if tokens:
        constants += [numpy_helper.from_array(points, "table"), numpy_helper.from_array(points[:40], "y")]
        np.savez(path + ".npz", ids=np.arange(48))
        return save(path, nodes, [("ids", T.INT64, [48])], [("z", T.FLOAT, [48, 40])], constants)
    x, y = ("x", "y") if ramp is None else ("given_x", "given_y")
    np.savez(path + ".npz", **{x: points, y: points[:40]})
    return save(path, nodes, [(x, T.FLOAT, [48, 64]), (y, T.FLOAT, [40, 64])], [("z", T.FLOAT, [48, 40])], constants,
                (("", 18),) if ramp is None else (("", 18), ("test.ops", 1)))


def test_rounding_errors_are_amplified(d):
    """The sums of equal points cancel, so their distance is a rounding error. Another order of the sums gives another one."""
    for tokens in (False, True):
        m = distances(d + "/cdist.onnx", tokens)
        rc, out, err = call("annotate", m, "-o", d + "/cut.onnx", "--config", "tp:2", "--shard", "product:left={1,2}", "--shard",
                            "product:turned={2,1}")
        check("a sharded sum", rc == 0, err)
        rc, doc, err = document("verify", d + "/cut.onnx", "--inputs", m + ".npz")
        codes = [f["code"] for f in doc["findings"]]
        check("an output that is as right as the unsharded one passes", rc == 0 and doc["ok"] and codes == ["verify-sensitive"],
              (tokens, rc, doc, err))
        check("both figures are named", doc["outputs"][0]["max_rel"] > 5e-5 and "changes the unsharded output by" in err, err)
        rc, doc, err = document("verify", d + "/cut.onnx", "--inputs", m + ".npz", "--tolerance", 5e-5)
        check("a given tolerance is kept", rc == 1 and not doc["ok"], (rc, doc, err))


def test_random_sequence(d):
    """There are no random sequences. The hint must not ask for a shape, which does not help."""
    sequence = helper.make_tensor_sequence_value_info("s", T.FLOAT, ["n", 6])
    graph = helper.make_graph([helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)], "g", [sequence],
                              [helper.make_tensor_value_info("y", T.FLOAT, None)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), d + "/sequence.onnx")
    rc, out, err = call("verify", d + "/sequence.onnx", "--devices", 2, "--allow-unsharded")
    check("random inputs for a sequence", rc == 5 and "this input is not a tensor" in err and "input_0.pb" in err and "--shape" not in err,
          (rc, err))


def test_results_near_zero(d):
    """Sigmoid of about -19: the engine computes 1 - x, so all results are a few rounding errors of 1."""
    rng = np.random.default_rng(1)
    np.savez(d + "/near.npz", x=rng.standard_normal((64, 256)).astype("f4"))
    w = numpy_helper.from_array((rng.standard_normal((256, 64)) / 16).astype("f4"), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Sub", ["p", "b"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["y"])
    ]
    m = save(d + "/near.onnx", nodes, [("x", T.FLOAT, [64, 256])], [("y", T.FLOAT, [64, 64])],
             [w, numpy_helper.from_array(np.float32(19), "b")])
    rc, out, err = call("annotate", m, "-o", d + "/cut.onnx", "--config", "tp:2", "--shard", "product:w={2,1}")
    check("a sharded sum before Sigmoid", rc == 0, err)
    rc, doc, err = document("verify", d + "/cut.onnx", "--inputs", d + "/near.npz")
    check("results that are rounding errors pass", rc == 0 and doc["ok"] and [f["code"] for f in doc["findings"]] == ["verify-sensitive"],
          (rc, doc, err))
    check("their relative difference is large", doc["outputs"][0]["max_rel"] > 0.05, doc)


def test_doubles_computed_as_floats(d):
    """GroupNormalization computes in the type of stash_type, by default float32, also for doubles: the tolerance is that of float32."""
    rng = np.random.default_rng(4)
    np.savez(d + "/group.npz", x=rng.standard_normal((4, 6, 8)))
    scales = [numpy_helper.from_array(rng.standard_normal(6), name) for name in "sb"]
    for more in ({}, dict(stash_type=T.DOUBLE)):
        m = save(d + "/group.onnx", [helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], name="norm", num_groups=2, **more)],
                 [("x", T.DOUBLE, [4, 6, 8])], [("y", T.DOUBLE, [4, 6, 8])], scales, (("", 21), ))
        rc, out, err = call("annotate", m, "-o", d + "/cut.onnx", "--config", "tp:2", "--shard", "norm:x={1,1,2}")
        check("shards of parts of groups", rc == 0, err)
        rc, doc, err = document("verify", d + "/cut.onnx", "--inputs", d + "/group.npz")
        check("they agree %s" % more, rc == 0 and doc["ok"] and not doc["findings"], (rc, doc, err))
        rough = doc["outputs"][0]["max_rel"] > 1e-12
        check("the difference is that of the type %s" % more, rough == (not more), doc)


def normalized(path, others=True, constant=False):
    """MeanVarianceNormalization of rows, of which eight have equal values: x - mean is then only the rounding error of the mean. With
    others=False all have. With constant=True the rows are a Constant node, not an input."""
    rows = np.random.default_rng(3).standard_normal((12, 7)).astype("f4")
    rows[:8] = rows[:8, :1]
    rows = rows if others else rows[:8]
    nodes = [
        helper.make_node("MatMul", ["x", "one"], ["a"], name="product"),
        helper.make_node("MeanVarianceNormalization", ["a"], ["y"], name="norm", axes=[1])
    ]
    nodes[:0] = [helper.make_node("Constant", [], ["x"], value=numpy_helper.from_array(rows))] if constant else []
    np.savez(path + ".npz", **({} if constant else {"x": rows}))
    return save(path, nodes, [] if constant else [("x", T.FLOAT, rows.shape)], [("y", T.FLOAT, rows.shape)],
                [numpy_helper.from_array(np.eye(7, dtype="f4"), "one")])


def test_rounding_errors_alone(d):
    """A sharded mean of equal values rounds in another way: the result is 1, -1, a number between or NaN, and each is as wrong."""
    for others, constant in ((True, False), (True, True), (False, False)):
        m = normalized(d + "/norm.onnx", others, constant)
        rc, out, err = call("annotate", m, "-o", d + "/cut.onnx", "--config", "tp:2", "--shard", "norm:a={1,2}")
        check("a sharded mean", rc == 0, err)
        rc, doc, err = document("verify", d + "/cut.onnx", "--inputs", m + ".npz")
        output = doc["outputs"][0]
        check("they differ", output["max_rel"] is None or output["max_rel"] > 0.05, output)
        if others:
            check("elements of rounding errors are left out", rc == 0 and [f["code"] for f in doc["findings"]] == ["verify-sensitive"]
                  and "of 84 elements are rounding errors" in err, (rc, err))
        else:
            check("at least one element must be compared", rc == 1 and doc["findings"][0]["code"] == "verify-different", (rc, err))


def test_rounding_errors_of_long_sums(d):
    """864 numbers that differ from -0.7 in the last bits: their normalization is mostly the error of their mean, which is several bits."""
    rng = np.random.default_rng(5)
    x = (np.float32(-0.7) + rng.integers(-8, 9, (6, 144)) * np.float32(2.0 ** -24)).astype("f4")
    np.savez(d + "/nearly.npz", x=x)
    scale = numpy_helper.from_array(rng.standard_normal((6, 144)).astype("f4"), "scale")
    m = save(d + "/nearly.onnx", [helper.make_node("LayerNormalization", ["x", "scale"], ["y"], name="norm", axis=0)],
             [("x", T.FLOAT, [6, 144])], [("y", T.FLOAT, [6, 144])], [scale])
    rc, out, err = call("annotate", m, "-o", d + "/cut.onnx", "--config", "tp:2", "--shard", "norm:x={1,2}")
    check("a sharded mean of many", rc == 0, err)
    rc, doc, err = document("verify", d + "/cut.onnx", "--inputs", d + "/nearly.npz")
    check("an error of several bits passes", rc == 0 and doc["ok"] and [f["code"] for f in doc["findings"]] == ["verify-sensitive"],
          (rc, doc, err))


def test_ties_of_rounded_numbers(d):
    """Norms of normalized columns are all the same but for rounding, which decides which is the largest. ONNX Runtime has no random
    operators of opset 22 and later."""
    differ = 0
    for seed in range(12):
        opset = (11, 18, 22, 26)[seed % 4]
        np.savez(d + "/tie.npz", x=np.random.default_rng(seed).standard_normal((16, 2, 7, 24)).astype("f4"))
        nodes = [
            helper.make_node("LpNormalization", ["x"], ["u"], name="unit", axis=1),
            helper.make_node("ReduceL2", ["u", "axes"], ["norm"], name="norm", keepdims=0) if opset > 17 else
            helper.make_node("ReduceL2", ["u"], ["norm"], name="norm", keepdims=0, axes=[0, 1, 2]),
            helper.make_node("ArgMax", ["norm"], ["y"], axis=0)
        ]
        m = save(d + "/tie.onnx", nodes, [("x", T.FLOAT, [16, 2, 7, 24])], [("y", T.INT64, [1]), ("norm", T.FLOAT, [24])],
                 [numpy_helper.from_array(np.array([0, 1, 2]), "axes")], [("", opset)])
        rc, out, err = call("annotate", m, "-o", d + "/cut.onnx", "--config", "tp:4", "--shard", "norm:u={4,1,1,1}")
        check("sharded norms", rc == 0, err)
        rc, doc, err = document("verify", d + "/cut.onnx", "--inputs", d + "/tie.npz")
        differ += doc["outputs"][0]["max_abs"] > 0
        codes = {f["code"] for f in doc["findings"]}
        check("a tie that rounding decides passes in opset %d" % opset, rc == 0 and codes <= {"verify-sensitive"}, (rc, err))
    check("rounding decides", differ, differ)


def test_rounding_of_exact_inputs(d):
    """The inputs are integers, so they are exact; the roots of equal numbers are equal, and InstanceNormalization rounds their mean."""
    np.savez(d + "/root.npz", x=np.full((2, 3, 8), 7, "f4"))
    weights = [numpy_helper.from_array(np.ones(3, "f4"), "s"), numpy_helper.from_array(np.full(3, 0.1, "f4"), "b")]
    m = save(d + "/root.onnx", [helper.make_node("Sqrt", ["x"], ["e"]),
                                helper.make_node("InstanceNormalization", ["e", "s", "b"], ["y"], name="norm")],
             [("x", T.FLOAT, [2, 3, 8])], [("y", T.FLOAT, [2, 3, 8])], weights)
    rc, out, err = call("annotate", m, "-o", d + "/cut.onnx", "--config", "tp:2", "--shard", "norm:e={1,1,2}")
    check("sharded roots", rc == 0, err)
    rc, doc, err = document("verify", d + "/cut.onnx", "--inputs", d + "/root.npz")
    check("rounding of a mean passes", rc == 0 and [f["code"] for f in doc["findings"]] == ["verify-sensitive"], (rc, err))


def test_amplified_errors_are_found(d):
    """An operator adds to each element its index in the tensor, so its rule is wrong: in the second shard the indices start with 0 again.

    The errors are 6e-9, 3e-3 and 0.09 in each element of x. The second is not larger than the rounding errors of equal points, but in all
    points; the third is less than 5 % of the largest distance."""
    open(d + "/rules.txt", "w").write("Twice  test.ops  1  [A*] -> [A*]\n")
    for ramp, code in ((0.5 ** 38, "verify-sensitive"), (0.5 ** 19, "verify-different"), (0.5 ** 14, "verify-different")):
        m = distances(d + "/cdist.onnx", ramp=ramp)
        rc, out, err = call("annotate", m, "-o", d + "/cut.onnx", "--config", "tp:2", "--shard", "ramp_x:scaled_x={2,1}", "--shard",
                            "product:left={1,2}", "--shard", "product:turned={2,1}", "--rules", d + "/rules.txt")
        check("a wrong rule is annotated", rc == 0, err)
        rc, doc, err = document("verify", d + "/cut.onnx", "--inputs", m + ".npz", "--rules", d + "/rules.txt", "--ort-ops", RAMP_OPS)
        good = code == "verify-sensitive"
        check("ramp %g: %s" % (ramp, code), rc == (0 if good else 1) and doc["ok"] == good and doc["findings"][0]["code"] == code,
              (rc, doc, err))
        check("ramp %g: less than 5 %%" % ramp, doc["outputs"][0]["max_rel"] < 0.05, doc)
        check("ramp %g: the first difference" % ramp, good or doc["first"]["value"] == "twice_x", doc)


harness.run([
    test_sizes, test_kept_sizes, test_forced, test_assumed, test_engine_varies, test_device_varies, test_rounding_errors_are_amplified,
    test_random_sequence, test_results_near_zero, test_doubles_computed_as_floats, test_rounding_errors_alone,
    test_rounding_errors_of_long_sums, test_ties_of_rounded_numbers, test_rounding_of_exact_inputs, test_amplified_errors_are_found
])
harness.finish()
