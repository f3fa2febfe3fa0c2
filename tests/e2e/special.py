# SPDX-License-Identifier: Apache-2.0
"""Tests corner cases of partition, one small model each.

Results are compared with onnx's reference evaluator (evaluator.py) and with the unsharded model in ONNX Runtime (tessera verify).

usage: special.py TESSERA"""
import json, os, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import evaluator, harness

info, tensor = helper.make_tensor_value_info, numpy_helper.from_array
rng = np.random.default_rng(7)


def node(op, ins, outs, **more):
    return helper.make_node(op, ins, outs, name=more.pop("name", outs[0] + "_" + op.lower()), **more)


def model(nodes, ins, outs, init=(), opset=18, ir=10, **more):
    g = helper.make_graph(nodes, "special", ins, outs, list(init))
    imports = [helper.make_opsetid("", opset)] + more.pop("imports", [])
    return helper.make_model(g, opset_imports=imports, ir_version=ir, **more)


def f4(*dims):
    return rng.standard_normal(dims).astype("f4")


CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


# A case returns (model, number of devices, {NODE:VALUE: sharding}, inputs, expected collectives in order or None[, options]). Options:
# reader: False skips the comparison with onnx's reference evaluator, where it is wrong or cannot run the operator; tolerance: of that
# comparison; optimize: the engine's level; stages: {node: stage}; ranks: {operator: ranks that have it}; says: text of a warning of
# partition.

@case
def queries_behind_a_past_of_no_batch():
    """A batch of 1 on two devices: the first shard is empty. That device runs GroupQueryAttention on placeholder data to get the sizes of
    the caches. The kernel refuses lengths below the number of queries, so the placeholder must have enough."""
    names = ["q", "k", "v", "pk", "pv", "lengths", "total"]
    ins = [info(n, T.FLOAT, ["batch", 3, 32]) for n in names[:3]] + [info(n, T.FLOAT, ["batch", 2, "past", 16]) for n in names[3:5]]
    ins += [info("lengths", T.INT32, ["batch"]), info("total", T.INT32, [])]
    outs = [info("y", T.FLOAT, ["batch", 3, 32]), info("nk", T.FLOAT, ["batch", 2, None, 16]), info("nv", T.FLOAT, ["batch", 2, None, 16])]
    m = model([node("GroupQueryAttention", names, ["y", "nk", "nv"], name="attend", domain="com.microsoft", num_heads=2, kv_num_heads=2)],
              ins, outs)
    m.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    values = {"q": f4(1, 3, 32), "k": f4(1, 3, 32), "v": f4(1, 3, 32), "pk": f4(1, 2, 5, 16), "pv": f4(1, 2, 5, 16),
              "lengths": np.array([7], np.int32), "total": np.int32(8)}
    return m, 2, {"attend:q": "{2,1,1:0,1}"}, values, None, {"reader": False}


def named_by_numbers(name):
    """The output has a size whose name looks like a number, and no input has that name. It must be treated as a name."""
    m = model([node("Neg", ["x"], ["y"]), node("Abs", ["y"], ["z"])], [info("x", T.FLOAT, [None, 6])], [info("z", T.FLOAT, [name, 6])])
    return m, 2, {"y_neg:y": "{2,1:0,1}", "z_abs:y": "{1,2:0,1}"}, {"x": f4(4, 6)}, None


CASES.update(
    {"named_by_numbers_%d" % k: lambda name=name: named_by_numbers(name) for k, name in enumerate(["10", "-1", "2*3", "max(1, 2)"])})


def without_turns(spec):
    """A Loop without iterations returns the sizes that the engine knows, and 0 elsewhere. So rank files must declare what the model
    implies."""
    inner = [node("Relu", ["s"], ["next"]), node("Mul", ["next", "scale"], ["each"], name="scaled"), node("Identity", ["go"], ["on"])]
    body = helper.make_graph(inner, "body", [info("i", T.INT64, []), info("go", T.BOOL, []), info("s", T.FLOAT, ["n", 4])],
                             [info("on", T.BOOL, []), info("next", T.FLOAT, ["n", 4]), info("each", T.FLOAT, ["n", 4])])
    m = model(
        [node("Loop", ["turns", "", "x"], ["last", "all"], name="loop", body=body),
         node("MatMul", ["all", "w"], ["y"], name="times")],
        [info("x", T.FLOAT, ["n", 4]), info("turns", T.INT64, [])], [info("y", T.FLOAT, [None, "n", 3])],
        [tensor(f4(4, 3), "w"), tensor(f4(4), "scale")])
    return m, 2, {"loop > body > scaled:each": spec, "times:w": "{1,3:0,1,1}"}, {"x": f4(5, 4),
                                                                                 "turns": np.array(0)}, None, {"reader": False}


CASES.update(
    {"without_turns_%d" % k: lambda spec=spec: without_turns(spec) for k, spec in enumerate(["{1,3:0,1,1}", "{1,2:0,1}", "{2,1:0,1}"])})


@case
def images_for_one_device():
    """A batch of 1 on two devices: the first shard is empty. Rank files must name its batch size, so that ONNX Runtime knows that the
    summands have equal batches. Otherwise it inserts a Reshape to [0, -1, ...], which refuses an empty batch."""
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "v"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["d"]),
        node("Conv", ["d", "u"], ["e"]),
        node("Conv", ["x", "t"], ["f"]),
        node("Add", ["e", "f"], ["y"])
    ]
    init = {"w": f4(8, 16, 1, 1), "v": f4(8, 8, 3, 3), "u": f4(32, 8, 1, 1), "t": f4(32, 16, 1, 1)}
    m = model(nodes, [info("x", T.FLOAT, ["n", 16, 8, 8])], [info("y", T.FLOAT, ["n", 32, 8, 8])], [tensor(v, k) for k, v in init.items()])
    cut = {"%s:%s" % (n.name, n.input[0]): "{2,1,1,1:0,1}" for n in nodes}
    return onnx.shape_inference.infer_shapes(m), 2, cut, {"x": f4(1, 16, 8, 8)}, None, {"reader": False, "optimize": 3}


def nothing_reshaped(rows, kept):
    """Before operator set 14 a 0 in the shape of a Reshape means "same size". Here the -1 becomes 0, and the sharded axis may be empty
    too."""
    m = model([node("Compress", ["x", "keep"], ["c"], name="pick", axis=1),
               node("Reshape", ["c", "shape"], ["y"], name="turn")],
              [info("x", T.FLOAT, ["n", None, 4]), info("keep", T.BOOL, ["m"])], [info("y", T.FLOAT, ["n", 1, None, 1, 4])],
              [tensor(np.array([0, 1, -1, 1, 4]), "shape")], opset=10)
    return m, 4, {"turn:c": "{2,1,2:0,2,1,3}"}, {"x": f4(rows, 5, 4), "keep": np.array(kept)}, None, {"reader": False}


CASES.update({"nothing_reshaped_%d" % k: lambda rows=rows, kept=kept: nothing_reshaped(rows, kept)
              for k, (rows, kept) in enumerate([(5, [False] * 5), (5, [True, False, True, True, False]), (1, [True] * 5)])})


def mean_of_nothing(sizes, kind):
    """The mean of no elements is 0 in ONNX Runtime, not 0 / 0, and division by zero ends the process if the elements are integers."""
    m = model([node("ReduceMean", ["x", "axes"], ["y"], name="mean")], [info("x", kind, sizes)], [info("y", kind, [3, 1, 4])],
              [tensor(np.array([1]), "axes")])
    return m, 2, {"mean:x": "{1,2,1:0,1}"}, {"x": np.zeros((3, 0, 4), helper.tensor_dtype_to_np_dtype(kind))}, None, {"reader": False}


CASES.update({"mean_of_nothing_%s_%s" % (T.DataType.Name(kind).lower(), way): lambda sizes=sizes, kind=kind: mean_of_nothing(sizes, kind)
              for kind in (T.FLOAT, T.INT64) for way, sizes in (("stated", [3, 0, 4]), ("named", [3, "n", 4]))})


@case
def inputs_with_defaults():
    """IR version 3: constants are also inputs."""
    m = model([node("MatMul", ["x", "w"], ["y"])], [info("x", T.FLOAT, [3, 4]), info("w", T.FLOAT, [4, 6])],
              [info("y", T.FLOAT, [3, 6])], [tensor(f4(4, 6), "w")], opset=9, ir=3)
    return m, 2, {"y_matmul:w": "{1,2:0,1}"}, {"x": f4(3, 4)}, ["Reshard"]


@case
def old_slices():
    """Before operator set 10 a Slice has its bounds as attributes."""
    m = model([node("Relu", ["x"], ["y"])], [info("x", T.FLOAT, [3, 7])], [info("y", T.FLOAT, [3, 7])], opset=9, ir=4)
    return m, 2, {"y_relu:x": "{1,2:0,1}"}, {"x": f4(3, 7)}, ["Reshard"]


@case
def old_and_open():
    """Before operator set 10 a Slice cannot have computed bounds, so a symbolic dimension needs a Reshard."""
    m = model([node("Relu", ["x"], ["y"])], [info("x", T.FLOAT, ["n", 7])], [info("y", T.FLOAT, ["n", 7])], opset=9, ir=4)
    return m, 2, {"y_relu:x": "{2,1:0,1}"}, {"x": f4(5, 7)}, ["Reshard", "Reshard"]


@case
def typed_fields():
    """A constant in float_data is sharded, and large enough to be stored in the data file."""
    w = f4(40, 30)
    t = helper.make_tensor("w", T.FLOAT, [40, 30], w.flatten().tolist())
    m = model([node("MatMul", ["x", "w"], ["y"])], [info("x", T.FLOAT, [3, 40])], [info("y", T.FLOAT, [3, 30])], [t])
    return m, 3, {"y_matmul:w": "{3,1:0,1,2}"}, {"x": f4(3, 40)}, ["Reduce"]


@case
def half_precision():
    w = f4(8, 6).astype("f2")
    m = model([node("MatMul", ["x", "w"], ["y"])], [info("x", T.FLOAT16, ["n", 8])], [info("y", T.FLOAT16, ["n", 6])], [tensor(w, "w")])
    return m, 2, {"y_matmul:w": "{2,1:0,1}"}, {"x": f4(3, 8).astype("f2")}, ["Reduce"], {"tolerance": 1e-2}


@case
def double_precision():
    m = model([node("MatMul", ["x", "w"], ["y"])], [info("x", T.DOUBLE, ["n", 8])], [info("y", T.DOUBLE, ["n", 6])],
              [tensor(rng.standard_normal((8, 6)), "w")])
    return m, 2, {"y_matmul:w": "{2,1:0,1}"}, {"x": rng.standard_normal((3, 8))}, ["Reduce"], {"tolerance": 1e-12}


@case
def four_bits():
    """Elements smaller than a byte are split in the middle of a byte."""
    w = helper.make_tensor("w", T.INT4, [96, 35], rng.integers(-8, 8, 96 * 35).tolist())
    m = model([node("Cast", ["w"], ["c"], to=T.FLOAT), node("MatMul", ["x", "c"], ["y"])], [info("x", T.FLOAT, [3, 96])],
              [info("y", T.FLOAT, [3, 35])], [w], opset=21)
    return m, 2, {"c_cast:w": "{1,2:0,1}", "y_matmul:c": "{1,2:0,1}"}, {"x": f4(3, 96)}, None


def four_bits_move(kind, steps):
    m = model(
        [node("QuantizeLinear", ["x", "s"], ["q"], name="q", output_dtype=kind),
         node("DequantizeLinear", ["q", "s"], ["y"], name="dq")], [info("x", T.FLOAT, [5, 7])], [info("y", T.FLOAT, [5, 7])],
        [tensor(np.array(0.5, "f4"), "s")], opset=21)
    return m, 3, {"q:q": "{1,1:0}", "dq:q": "{1,1:2}"}, {"x": 3 * f4(5, 7)}, steps, {"reader": False}


@case
def signed_four_bits_move():
    """Elements smaller than a byte are sent to another device."""
    return four_bits_move(T.INT4, ["Send", "Send"])


@case
def unsigned_four_bits_move():
    return four_bits_move(T.UINT4, ["Send", "Send"])


@case
def four_bits_of_open_sizes():
    """Sizes that only the run knows, also of a 4-bit tensor. Without optimization the engine has no node that returns them."""
    m = model([
        node("Compress", ["x", "keep"], ["h"], name="h", axis=0),
        node("QuantizeLinear", ["h", "s"], ["q"], name="q", output_dtype=T.INT4),
        node("DequantizeLinear", ["q", "s"], ["y"], name="dq")
    ], [info("x", T.FLOAT, [5, 8])], [info("y", T.FLOAT, [None, 8])],
              [tensor(np.array(0.5, "f4"), "s"), tensor(np.array([1, 0, 1, 1, 0], bool), "keep")], opset=21)
    return m, 3, {"q:q": "{1,2:0,1}", "dq:q": "{1,3:0,1,2}"}, {"x": 3 * f4(5, 8)}, None, {"reader": False, "optimize": 0}


@case
def float8_of_open_sizes():
    """The engine has no Shape of float8 before operator set 21."""
    m = model([
        node("Add", ["x", "b"], ["h"], name="add"),
        node("Cast", ["h"], ["q"], name="q", to=T.FLOAT8E4M3FN),
        node("Identity", ["q"], ["r"], name="same"),
        node("Cast", ["r"], ["y"], name="y", to=T.FLOAT)
    ], [info("x", T.FLOAT, [None, None]), info("b", T.FLOAT, [])], [info("y", T.FLOAT, [None, None])], opset=19, ir=9)
    return m, 3, {"add:h": "{2,1:0,1}", "y:r": "{1,3:0,1,2}"}, {"x": f4(5, 8), "b": f4()}, None, {"reader": False, "optimize": 0}


@case
def weights_that_are_gathered_in_the_run():
    """An Identity with a sharding stores the weight sharded; each rank gathers it and multiplies its own rows."""
    m = model([node("Identity", ["w"], ["full"], name="gather"), node("MatMul", ["x", "full"], ["y"], name="product")],
              [info("x", T.FLOAT, [8, 64])], [info("y", T.FLOAT, [8, 16])], [tensor(f4(64, 16), "w")])
    return m, 2, {"gather:w": "{2,1:0,1}", "gather:full": "{2,1:0,1}", "product:x": "{2,1:0,1}"}, {"x": f4(8, 64)}, ["AllGather", "Reshard"]


@case
def rounded_up():
    """With ceil_mode engines infer one window too many if the last would start in the padding. Readers must not rely on that size."""
    m = model([
        node("MaxPool", ["x"], ["h"], name="pool", ceil_mode=1, kernel_shape=[1, 2], pads=[0, 1, 0, 1], strides=[1, 2]),
        node("LayerNormalization", ["h", "w", "b"], ["y"], name="norm", axis=-3)
    ], [info("x", T.FLOAT, [1, 4, 7, 9])], [info("y", T.FLOAT, [1, 4, 7, 5])],
              [tensor(f4(4, 7, 1), "w"), tensor(f4(4, 7, 5), "b")], opset=21)
    return m, 3, {"norm:b": "{3,1,1:0,1,2}"}, {"x": f4(1, 4, 7, 9)}, None, {"reader": False}


@case
def whole_and_cut():
    """One constant is used replicated and sharded."""
    w = tensor(f4(20, 20), "w")
    m = model([node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "w"], ["y"])], [info("x", T.FLOAT, ["n", 20])],
              [info("y", T.FLOAT, ["n", 20])], [w])
    return m, 2, {"h_matmul:w": "{1,1:0,1}", "y_matmul:w": "{1,2:0,1}"}, {"x": f4(3, 20)}, ["Reshard"]


@case
def outputs_of_all_kinds():
    """Outputs that are an input, a constant, a copy of another output, and sharded."""
    m = model([node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["z"])], [info("x", T.FLOAT, ["n", 4])],
              [info("y", T.FLOAT, ["n", 4]), info("w", T.FLOAT, [2]), info("z", T.FLOAT, ["n", 4])], [tensor(f4(2), "w")])
    return m, 2, {"y_relu:y": "{1,2:0,1}"}, {"x": f4(3, 4)}, None


@case
def one_device_alone():
    """All work is on device 2 of 3; the result is sent to rank 0."""
    m = model([node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])], [info("x", T.FLOAT, ["n", 8])],
              [info("y", T.FLOAT, ["n", 6])], [tensor(f4(8, 6), "w")])
    return m, 3, {"h_matmul:w": "{1,1:2}", "y_relu:h": "{1,1:2}"}, {"x": f4(3, 8)}, ["Send"]


@case
def sizes_by_expression():
    """The communicated value has the size batch*seq."""
    shape = tensor(np.array([-1, 8], "i8"), "s")
    m = model([node("Reshape", ["x", "s"], ["f"]), node("MatMul", ["f", "w"], ["h"]), node("Relu", ["h"], ["y"])],
              [info("x", T.FLOAT, ["batch", "seq", 8])], [info("y", T.FLOAT, ["batch*seq", 6])], [shape, tensor(f4(8, 6), "w")])
    return m, 2, {"h_matmul:h": "{2,1:1,0}", "y_relu:h": "{1,2:0,1}"}, {"x": f4(3, 5, 8)}, None


@case
def sizes_by_a_long_expression(opset=18):
    """The same with numbers, a power, a remainder and a maximum; inference cannot find the size, because the Reshape reads its target from
    an input."""
    size = "Mod(max(batch, 2)*seq + seq**2 + 2*50, 7*10 + 30) - 5*FloorDiv(seq, 1)"
    m = model([node("Reshape", ["x", "s"], ["f"]),
               node("MatMul", ["f", "w"], ["h"]),
               node("Relu", ["h"], ["y"])],
              [info("x", T.FLOAT, ["batch", "seq", 8]), info("s", T.INT64, [2])], [info("y", T.FLOAT, [size, 6])], [tensor(f4(8, 6), "w")],
              opset=opset)
    m.graph.value_info.extend([info("f", T.FLOAT, [size, 8]), info("h", T.FLOAT, [size, 6])])
    return m, 2, {"h_matmul:h": "{2,1:1,0}", "y_relu:h": "{1,2:0,1}"}, {"x": f4(3, 5, 8), "s": np.array([15, 8], "i8")}, None


@case
def sizes_by_a_long_expression_without_mod():
    """Opset 9 has no Mod."""
    return sizes_by_a_long_expression(9)


@case
def sizes_by_nobody():
    """A size that depends on the data: the value is gathered, and its shape is sent to a device that did not compute it."""
    m = model([node("NonZero", ["x"], ["i"]), node("Neg", ["i"], ["a"]), node("Abs", ["a"], ["b"]), node("Neg", ["b"], ["y"])],
              [info("x", T.FLOAT, [9])], [info("y", T.INT64, [1, None])])
    m.graph.value_info.extend([info(v, T.INT64, [1, None]) for v in "iab"])
    return m, 3, {"a_neg:i": "{1,2:0,1}", "b_abs:a": "{1,1:2}", "y_neg:b": "{1,2:1,2}"}, \
        {"x": np.array([0, 1, 0, 2, 3, 4, 0, 5, 6], "f4")}, None


# A sharded MatMul is read by a function and by the branches of an If.
@case
def subgraphs_and_functions():
    f = helper.make_function("my", "Twice", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], [helper.make_opsetid("", 18)])
    then = helper.make_graph([helper.make_node("Mul", ["h", "w"], ["t"])], "then", [], [info("t", T.FLOAT, None)])
    other = helper.make_graph([helper.make_node("Twice", ["h"], ["e"], domain="my")], "else", [], [info("e", T.FLOAT, None)])
    m = model([node("MatMul", ["x", "W"], ["m"]), node("Twice", ["m"], ["h"], domain="my"),
               node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
              [info("x", T.FLOAT, ["b", 8]), info("c", T.BOOL, [])], [info("y", T.FLOAT, ["b", 6])],
              [tensor(f4(8, 6), "W"), tensor(f4(6), "w")], functions=[f], imports=[helper.make_opsetid("my", 1)])
    return m, 2, {"m_matmul:W": "{1,2:0,1}"}, {"x": f4(3, 8), "c": np.array(True)}, ["Reshard"]


@case
def shapes_at_run_time():
    """The shape of a Reshape is computed, and one of its sizes is sharded unequally."""
    m = model([node("Shape", ["x"], ["s"], start=0, end=2), node("Concat", ["s", "k"], ["t"], axis=0),
               node("MatMul", ["x", "w"], ["h"]), node("Reshape", ["h", "t"], ["y"])],
              [info("x", T.FLOAT, ["batch", "seq", 8])], [info("y", T.FLOAT, ["batch", "seq", 3, 4])],
              [tensor(np.array([3, 4], "i8"), "k"), tensor(f4(8, 12), "w")])
    return m, 2, {"h_matmul:w": "{1,3/2*4:0,1}"}, {"x": f4(2, 5, 8)}, None


@case
def places_at_run_time():
    """Positions and a triangular mask of a length that only the run knows: each device computes its own part."""
    m = model([
        node("Shape", ["x"], ["s"], start=1, end=2),
        node("Squeeze", ["s", "axis"], ["n"]),
        node("Add", ["n", "first"], ["last"]),
        node("Range", ["first", "last", "one"], ["r"]),
        node("Cast", ["r"], ["p"], to=T.FLOAT),
        node("Unsqueeze", ["p", "axis"], ["q"]),
        node("Concat", ["s", "s"], ["ss"], axis=0),
        node("ConstantOfShape", ["ss"], ["full"], value=tensor(np.array([1], "f4"))),
        node("Trilu", ["full", "one"], ["t"], upper=0),
        node("Mul", ["t", "q"], ["w"]),
        node("MatMul", ["w", "x"], ["y"])
    ], [info("x", T.FLOAT, ["batch", "seq", 4])], [info("y", T.FLOAT, ["batch", "seq", 4])],
              [tensor(np.array(v, "i8"), k) for k, v in {"axis": [0], "first": 3, "one": 1}.items()])
    columns = {"r_range:r": "{3:0,1,2}", "t_trilu:t": "{1,3:0,1,2}", "w_mul:w": "{1,3:0,1,2}", "y_matmul:x": "{1,3,1:0,1,2}"}
    return m, 3, columns, {"x": f4(2, 7, 4)}, ["Reduce"]


@case
def one_row_for_two():
    """An input says that a dimension sharded over two devices has size 1: one device has the row, the other has an empty shard."""
    m = model([node("ConstantOfShape", ["s"], ["y"], value=tensor(np.array([2], "f4")))], [info("s", T.INT64, [2])],
              [info("y", T.FLOAT, ["a", "b"])], [])
    return m, 2, {"y_constantofshape:y": "{2,1:0,1}"}, {"s": np.array([1, 3])}, ["AllGather"]


@case
def seventeen_ranks():
    """More data files than partition keeps open at a time."""
    m = model([node("MatMul", ["x", "w"], ["y"])], [info("x", T.FLOAT, [2, 60])], [info("y", T.FLOAT, [2, 400])],
              [tensor(f4(60, 400), "w")])
    return m, 17, {"y_matmul:w": "{1,17:%s}" % ",".join(map(str, range(17)))}, {"x": f4(2, 60)}, ["Reshard"]


@case
def mesh_of_six():
    """Rows and columns of a weight on a 2 x 3 mesh: reductions along one axis, shards along the other."""
    m = model([node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "b"], ["y"])], [info("x", T.FLOAT, ["n", 32])],
              [info("y", T.FLOAT, ["n", 33])], [tensor(f4(32, 33), "w"), tensor(f4(33), "b")])
    return m, 6, {"h_matmul:w": "{2,3:0,1,2,3,4,5}"}, {"x": f4(4, 32)}, ["AllReduce", "Reshard"]


@case
def sum_wanted_cut():
    """Partial sums with sharded readers must be reduced by ReduceScatter; the shards of 7 rows are unequal."""
    m = model([node("MatMul", ["x", "w"], ["h"]),
               node("Relu", ["h"], ["a"]),
               node("Neg", ["h"], ["b"]),
               node("Add", ["a", "b"], ["y"])], [info("x", T.FLOAT, ["n", 32])], [info("y", T.FLOAT, ["n", 33])], [tensor(f4(32, 33), "w")])
    shards = {"h_matmul:w": "{3,1:0,1,2}", "a_relu:h": "{3,1:0,1,2}", "b_neg:h": "{3,1:0,1,2}"}
    return m, 3, shards, {"x": f4(7, 32)}, ["ReduceScatter", "Reshard"]


@case
def heads_to_tokens():
    """From sharded heads to sharded tokens and back, with unknown sizes: two AllToAlls."""
    m = model([node("Relu", ["x"], ["h"]), node("Neg", ["h"], ["t"]),
               node("Relu", ["t"], ["y"])], [info("x", T.FLOAT, ["n", 12])], [info("y", T.FLOAT, ["n", 12])])
    return m, 3, {"h_relu:h": "{1,6/3*2:0,1,2}", "t_neg:h": "{3,1:0,1,2}",
                  "y_relu:t": "{1,3:0,1,2}"}, {"x": f4(7, 12)}, ["AllToAll", "AllToAll", "Reshard"]


@case
def one_to_all():
    """Computed on one device, read by all."""
    m = model([node("Relu", ["x"], ["h"]), node("Neg", ["h"], ["y"])], [info("x", T.FLOAT, ["n", 12])], [info("y", T.FLOAT, ["n", 12])])
    return m, 3, {"h_relu:x": "{1,1:1}", "y_neg:h": "{1,3:0,1,2}", "y_neg:y": "{1,1:0,1,2}"}, {"x": f4(7, 12)}, None


@case
def neighbours():
    """Two convolutions over an image that is sharded in three stripes, and stays so."""
    m = model([
        node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        node("Conv", ["h", "v"], ["y"], strides=[2, 2], pads=[2, 2, 2, 2], dilations=[2, 2])
    ], [info("x", T.FLOAT, ["n", 3, 11, 7])], [info("y", T.FLOAT, ["n", 2, 6, 4])],
              [tensor(f4(4, 3, 3, 3), "w"), tensor(f4(2, 4, 3, 3), "v")])
    return m, 3, {"h_conv:h": "{1,1,3,1:0,1,2}", "y_conv:h": "{1,1,3,1:0,1,2}"}, {"x": f4(2, 3, 11, 7)}, ["HaloExchange", "Reshard"]


@case
def upsampling():
    """A sharded Resize by 2, then a convolution: only halo rows may be communicated."""
    m = model([
        node("Relu", ["x"], ["a"]),
        node("Resize", ["a", "", "s"], ["h"], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        node("Conv", ["h", "w"], ["y"], pads=[1, 1, 1, 1])
    ], [info("x", T.FLOAT, ["n", 3, 7, 4])], [info("y", T.FLOAT, ["n", 2, 14, 8])],
              [tensor(np.array([1, 1, 2, 2], "f4"), "s"), tensor(f4(2, 3, 3, 3), "w")])
    return m, 3, {"a_relu:x": "{1,1,3,1:0,1,2}", "y_conv:h": "{1,1,3,1:0,1,2}"}, {"x": f4(2, 3, 7, 4)}, None


@case
def segments():
    """Concat and Split along the sharded dimension."""
    m = model([
        node("Relu", ["x"], ["a"]),
        node("Neg", ["x"], ["b"]),
        node("Concat", ["a", "b"], ["c"], axis=1),
        node("Split", ["c", "k"], ["d", "e"], axis=1),
        node("Add", ["d", "z"], ["y"]),
        node("Relu", ["e"], ["f"])
    ], [info("x", T.FLOAT, ["n", 7])], [info("y", T.FLOAT, ["n", 5]), info("f", T.FLOAT, ["n", 9])],
              [tensor(np.array([5, 9], "i8"), "k"), tensor(f4(5), "z")])
    return m, 3, {"a_relu:x": "{1,3:0,1,2}", "b_neg:x": "{1,3:0,1,2}", "c_concat:a": "{1,3:0,1,2}",
                  "d_split:c": "{1,3:0,1,2}"}, {"x": f4(4, 7)}, None


@case
def equal_shares():
    """A fused projection: each device has its heads of all three parts (4, 2 and 2 heads). Only the sum is communicated."""
    m = model([
        node("MatMul", ["x", "w"], ["q"]),
        node("Split", ["q", "k"], ["a", "b", "c"], axis=1),
        node("Mul", ["b", "c"], ["d"]),
        node("Concat", ["a", "d"], ["e"], axis=1),
        node("MatMul", ["e", "v"], ["y"])
    ], [info("x", T.FLOAT, ["n", 8])], [info("y", T.FLOAT, ["n", 5])],
              [tensor(np.array([16, 8, 8], "i8"), "k"),
               tensor(f4(8, 32), "w"), tensor(f4(24, 5), "v")])
    return m, 2, {"q_matmul:w": "{1,4*8/2:0,1}", "y_matmul:v": "{3*8/2,1:0,1}"}, {"x": f4(4, 8)}, ["Reduce"]


@case
def bias_once():
    """If the contracted dimension of a Gemm is sharded, only one device may add the bias."""
    m = model([node("Gemm", ["x", "w", "b"], ["y"], alpha=0.5, beta=3.0)], [info("x", T.FLOAT, ["n", 8])],
              [info("y", T.FLOAT, ["n", 6])], [tensor(f4(8, 6), "w"), tensor(f4(6), "b")])
    return m, 4, {"y_gemm:w": "{4,1:0,1,2,3}"}, {"x": f4(3, 8)}, ["Reduce"]


@case
def bias_with_something():
    """A contracted dimension of 1 on three devices: a device without elements must not add the bias, because ONNX Runtime ignores beta
    there."""
    m = model([node("Gemm", ["x", "w", "b"], ["y"], alpha=0.5, beta=3.0)], [info("x", T.FLOAT, ["n", "k"]), info("w", T.FLOAT, ["k", 6])],
              [info("y", T.FLOAT, ["n", 6])], [tensor(f4(6), "b")])
    return m, 3, {"y_gemm:w": "{3,1:0,1,2}"}, {"x": f4(3, 1), "w": f4(1, 6)}, ["Reduce"], {"reader": False}


@case
def strided_pieces():
    """Every second pair of columns, and back."""
    m = model([node("Relu", ["x"], ["h"]), node("Neg", ["h"], ["y"])], [info("x", T.FLOAT, ["n", 8])], [info("y", T.FLOAT, ["n", 8])])
    return m, 2, {"h_relu:h": "{1,2*4/2:0,1}"}, {"x": f4(3, 8)}, None


@case
def projection_in_slices():
    """Three Slices of a fused projection: it is computed per slice, as three nodes. One of them keeps the name, which must stay unique."""
    m = model([node("MatMul", ["x", "w"], ["v"], name="qkv"),
               node("Relu", ["p0"], ["r"], name="qkv_1")] +
              [node("Slice", ["v", "b%d" % k, "e%d" % k, "a"], ["p%d" % k], name="sl%d" % k) for k in range(3)],
              [info("x", T.FLOAT, [4, 6])], [info("r", T.FLOAT, [4, 8])] + [info("p%d" % k, T.FLOAT, [4, 8]) for k in range(3)],
              [tensor(f4(6, 24), "w"), tensor(np.array([1]), "a")] + [tensor(np.array([8 * k]), "b%d" % k) for k in range(3)] +
              [tensor(np.array([8 * k + 8]), "e%d" % k) for k in range(3)])
    m.graph.node.append(m.graph.node.pop(1))
    return m, 2, {"sl%d:p%d" % (k, k): "{1,2:0,1}" for k in range(3)}, {"x": f4(4, 6)}, None


@case
def named_as_an_output():
    """A node has the name of an output, for which partition adds a node."""
    m = model([node("Relu", ["x"], ["h"], name="y"), node("Neg", ["h"], ["y"], name="other")], [info("x", T.FLOAT, [4, 6])],
              [info("y", T.FLOAT, [4, 6])])
    return m, 2, {"y:h": "{1,2:0,1}"}, {"x": f4(4, 6)}, None


def sparse(name, dense, coordinates):
    at = np.flatnonzero(dense)
    indices = np.stack(np.unravel_index(at, dense.shape), 1) if coordinates else at
    return helper.make_sparse_tensor(tensor(dense.reshape(-1)[at], name), tensor(indices.astype("i8"), name + "_at"), dense.shape)


@case
def sparse_weights():
    """Sparse weights: sharded by columns, by rows, replicated, and one in a branch."""
    thin = lambda *dims: (f4(*dims) * (rng.random(dims) < 0.3)).astype("f4")
    branch = lambda name, x, w: helper.make_graph([node("MatMul", [x, w], [name], name="in_" + name)], name, [],
                                                  [info(name, T.FLOAT, [3, 6])])
    one, other = branch("one", "c", "w3"), branch("other", "a", "w1")
    one.sparse_initializer.append(sparse("w3", thin(6, 6), True))
    m = model([
        node("MatMul", ["x", "w0"], ["a"], name="up"),
        node("MatMul", ["a", "w1"], ["b"], name="down"),
        node("Add", ["b", "w2"], ["c"], name="bias"),
        node("If", ["on"], ["y"], name="if", then_branch=one, else_branch=other)
    ], [info("x", T.FLOAT, [3, 6]), info("on", T.BOOL, [])], [info("y", T.FLOAT, [3, 6])])
    m.graph.sparse_initializer.extend([sparse("w0", thin(6, 8), False), sparse("w1", thin(8, 6), True), sparse("w2", thin(1, 6), False)])
    return m, 2, {"up:w0": "{1,2:0,1}", "down:w1": "{2,1:0,1}"}, {"x": f4(3, 6), "on": np.array(True)}, None, {"reader": False}


@case
def units_of_an_open_size():
    """A sharding gives the factors of a dimension of unknown size."""
    m = model([node("Reshape", ["x", "s"], ["y"])], [info("x", T.FLOAT, [None])], [info("y", T.FLOAT, [8, 2])],
              [tensor(np.array([8, 2]), "s")])
    return m, 4, {"y_reshape:x": "{8/2*2/2:1,0,2,3}"}, {"x": f4(16)}, None


@case
def sizes_behind_communication():
    """An output without declared sizes is communicated, and its reader needs the sizes at load time."""
    ids, table = np.array([[1, 0, 3], [2, 2, 1]], "i4"), lambda n: tensor(f4(n, 4), "t%d" % n)
    embed = node("EmbedLayerNormalization", ["ids", "", "t5", "at", "", "scale", "shift"], ["z", "m"], domain="com.microsoft")
    m = model([node("Reshape", ["x", "s"], ["at"], name="fold"), embed],
              [info("x", T.FLOAT, [24]), info("ids", T.INT32, [2, 3])],
              [info("at", T.FLOAT, [None, None]), info("z", T.FLOAT, [2, 3, 4])],
              [tensor(np.array([6, 4]), "s"), table(5),
               tensor(f4(4), "scale"), tensor(f4(4), "shift")], imports=[helper.make_opsetid("com.microsoft", 1)])
    return m, 2, {"fold:at": "{2,1:0,1}"}, {"x": f4(24), "ids": ids}, None, {"reader": False}


@case
def sizes_in_old_opsets():
    """The size of a slice needs an integer Min, which operator set 10 does not have; set 9 has no Mod either."""
    at = lambda name, *v: tensor(np.array(v, "i8"), name)
    m = model([node("Relu", ["x"], ["h"]), node("Slice", ["h", "b", "e", "a"], ["y"], name="part")], [info("x", T.FLOAT, ["n", 3])],
              [info("y", T.FLOAT, [None, 3])], [at("b", 0, 0), at("e", 3, 4), at("a", 1, 0)], opset=10, ir=5)
    return m, 2, {"part:h": "{1,2:0,1}"}, {"x": f4(5, 3)}, None


@case
def constants_of_another_stage():
    """A Constant in an earlier stage gives a new shape, and a later node needs the sizes at load time. The constant must not be sent."""
    ids = np.array([[1, 0, 3], [2, 2, 1]], "i4")
    embed = node("EmbedLayerNormalization", ["ids", "", "t5", "at", "", "scale", "shift"], ["z", "m"], name="embed", domain="com.microsoft")
    m = model([
        node("Constant", [], ["s"], name="shape", value=tensor(np.array([6, 4]))),
        node("Reshape", ["x", "s"], ["at"], name="fold"), embed
    ], [info("x", T.FLOAT, [24]), info("ids", T.INT32, [2, 3])], [info("z", T.FLOAT, [2, 3, 4])],
              [tensor(f4(5, 4), "t5"), tensor(f4(4), "scale"), tensor(f4(4), "shift")], imports=[helper.make_opsetid("com.microsoft", 1)])
    return m, 2, {}, {"x": f4(24), "ids": ids}, [], {"reader": False, "stages": {"shape": 0, "fold": 1, "embed": 1}}


@case
def constants_told_to_lie_elsewhere():
    """The new shape is annotated for one device, but both need it."""
    m = model([
        node("Constant", [], ["s"], name="shape", value=tensor(np.array([4, 6]))),
        node("Reshape", ["x", "s"], ["h"], name="fold"),
        node("Relu", ["h"], ["y"])
    ], [info("x", T.FLOAT, [24])], [info("y", T.FLOAT, [4, 6])])
    return m, 2, {"shape:s": "{1:1}", "fold:x": "{1:0,1}"}, {"x": f4(24)}, []


def sliced_for_a_body(level):
    """A body reads half of a DequantizeLinear's output. ONNX Runtime would move the DequantizeLinear behind the Slice and crash."""
    body = helper.make_graph(
        [node("Round", ["d"], ["r"], name="round"), node("Identity", ["go"], ["on"])], "body",
        [info("i", T.INT64, []), info("go", T.BOOL, []), info("v", T.FLOAT, [4, 3])],
        [info("on", T.BOOL, []), info("r", T.FLOAT, [4, 3])])
    m = model([node("QuantizeLinear", ["x", "scale", "zero"], ["q"]), node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
               node("Loop", ["n", "", "x"], ["y"], name="loop", body=body)], [info("x", T.FLOAT, [4, 3])], [info("y", T.FLOAT, [4, 3])],
              [tensor(np.float32(0.5), "scale"), tensor(np.int8(1), "zero"), tensor(np.int64(2), "n")])
    return m, 2, {"loop > body > round:d": "{2,1:0,1}"}, {"x": f4(4, 3)}, None, {"optimize": level, "reader": False}


CASES.update({"sliced_for_a_body_level_%d" % level: lambda level=level: sliced_for_a_body(level) for level in range(4)})


def sliced_for_a_choice(level, n):
    """The same with a body that partition adds: a product that needs elements, while the first device may have none."""
    m = model([
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        node("MatMul", ["d", "w"], ["y"], name="mul")
    ], [info("x", T.FLOAT, ["n"]), info("w", T.FLOAT, ["n", "m"])], [info("y", T.FLOAT, ["m"])],
              [tensor(np.float32(0.5), "scale"), tensor(np.uint8(3), "zero")])
    return m, 2, {"mul:d": "{2:0,1}"}, {"x": f4(n), "w": f4(n, 2)}, None, {"optimize": level, "reader": False}


CASES.update({
    "sliced_for_a_choice_level_%d_of_%d" % (level, n): lambda level=level, n=n: sliced_for_a_choice(level, n) for level in range(4)
    for n in (1, 5)
})


@case
def branches_of_unlike_sizes():
    """One branch returns 10 rows, sharded as 5 pairs; the other returns n rows. The common result cannot have that sharding."""
    one = helper.make_graph([node("Neg", ["a"], ["t"])], "then", [], [info("t", T.FLOAT, [None, 2])])
    other = helper.make_graph([node("Add", ["b", "w"], ["e"], name="add")], "else", [], [info("e", T.FLOAT, [10, 2])])
    m = model([node("If", ["on"], ["y"], name="if", then_branch=one, else_branch=other)],
              [info("a", T.FLOAT, ["n", 2]), info("b", T.FLOAT, [10, 2]),
               info("on", T.BOOL, [])], [info("y", T.FLOAT, [None, 2])], [tensor(f4(10, 2), "w")])
    return m, 2, {"if > else_branch > add:e": "{5*2/2,1:0,1}"}, {"a": f4(14, 2), "b": f4(10, 2), "on": np.array(True)}, None


@case
def states_of_open_sizes():
    """A Loop carries an unknown number of rows. Its input is sharded as 5 pairs, which is true in the first iteration only."""
    body = helper.make_graph(
        [node("Tanh", ["v"], ["h"], name="tanh"),
         node("Concat", ["h", "h"], ["r"], axis=0),
         node("Identity", ["go"], ["on"])], "body",
        [info("i", T.INT64, []), info("go", T.BOOL, []), info("v", T.FLOAT, None)],
        [info("on", T.BOOL, []), info("r", T.FLOAT, None)])
    m = model([node("Loop", ["n", "", "x"], ["y"], name="loop", body=body)], [info("x", T.FLOAT, [10, 2])], [info("y", T.FLOAT, [None, 2])],
              [tensor(np.int64(2), "n")])
    return m, 2, {"loop:x": "{5*2/2,1:0,1}"}, {"x": f4(10, 2)}, None


@case
def rows_of_an_open_attention():
    """Weights of unknown sizes do not give the width of the result, but its rank. The Scan of a received value must declare the rank."""
    body = helper.make_graph(
        [node("Add", ["c", "r"], ["e"]), node("Clip", ["c", "", "top"], ["o"], name="clip")], "body",
        [info("c", T.FLOAT, None), info("r", T.FLOAT, None)], [info("e", T.FLOAT, None), info("o", T.FLOAT, None)])
    m = model([
        node("Attention", ["x", "w", "b"], ["h"], num_heads=2, domain="com.microsoft"),
        node("Scan", ["h", "rows"], ["u", "v"], name="scan", body=body, num_scan_inputs=1),
        node("ReduceSum", ["u"], ["y"], keepdims=0),
        node("ReduceSum", ["v"], ["z"], keepdims=0)
    ], [info("w", T.FLOAT, [None, None]), info("rows", T.FLOAT, [None, None, None, None])],
              [info("y", T.FLOAT, []), info("z", T.FLOAT, [])],
              [tensor(f4(2, 3, 4), "x"), tensor(f4(12), "b"), tensor(np.float32(0.5), "top")],
              imports=[helper.make_opsetid("com.microsoft", 1)])
    return m, 2, {"scan:rows": "{1:0,1}", "scan > body > clip:top": "{1:1}"}, {"w": f4(4, 12), "rows": f4(2, 2, 3,
                                                                                                          4)}, None, {"reader": False}


@case
def directions():
    """Directions of an LSTM on different devices, each with its own activations; each direction is on two devices."""
    weights = [tensor(f4(2, 12, 4), "w"), tensor(f4(2, 12, 3), "r"), tensor(f4(2, 24), "b")]
    names = ["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Relu", "Tanh"]
    m = model(
        [node("LSTM", ["x", "w", "r", "b"], ["y", "", "c"], name="both", hidden_size=3, direction="bidirectional", activations=names)],
        [info("x", T.FLOAT, [5, 6, 4])], [info("y", T.FLOAT, [5, 2, 6, 3]), info("c", T.FLOAT, [2, 6, 3])], weights)
    return m, 4, {"both:y": "{1,2,2,1:0,1,2,3}"}, {"x": f4(5, 6, 4)}, None, {"reader": False}


@case
def frames():
    """STFT: each device transforms some of the overlapping frames."""
    m = model([node("STFT", ["x", "step", "window"], ["y"], name="waves")], [info("x", T.FLOAT, [2, 40, 1])],
              [info("y", T.FLOAT, [2, 9, 5, 2])], [tensor(np.int64(4), "step"), tensor(f4(8), "window")])
    return m, 2, {"waves:y": "{1,2,1,1:0,1}"}, {"x": f4(2, 40, 1)}, None, {"reader": False}


def reshape_of_nothing(shape, rows):
    """One device or all have no row: a 0 in the shape must stay 0, and the -1 must be replaced by its size."""
    m = model([node("Reshape", ["x", "s"], ["y"], name="fold"), node("Relu", ["y"], ["z"])], [info("x", T.FLOAT, ["n", "m", 4])],
              [info("z", T.FLOAT, [None] * len(shape))], [tensor(np.array(shape), "s")])
    return m, 2, {"fold:x": "{2,1,1:0,1}"}, {"x": f4(rows, 3, 4)}, None, {"reader": False}


CASES.update({"reshape_%d_rows_%s" % (rows, "_".join(map(str, shape))): lambda shape=shape, rows=rows: reshape_of_nothing(shape, rows)
              for rows, shape in [(1, [0, -1]), (1, [0, 0, -1]), (1, [0, -1, 2, 2]), (1, [-1, 0, 2, 2]), (0, [0, 12]), (3, [0, -1])]})


def reshape_of_open_sizes(sizes, given, shape, cut):
    """The -1 follows from sizes without a name, or that do not divide. A 0 means a size of the full tensor, which may be elsewhere in a
    shard."""
    m = model([node("Reshape", ["x", "s"], ["y"], name="fold"), node("Relu", ["y"], ["z"])], [info("x", T.FLOAT, sizes)],
              [info("z", T.FLOAT, [None] * len(shape))], [tensor(np.array(shape), "s")])
    return m, cut.count(",", cut.index(":")) + 1, {"fold:x": cut}, {"x": f4(*given)}, None, {"reader": False}


OPEN_SIZES = [([None], [3], [0, -1], "{4:0,1,2,3}"), ([None, None, 4], [1, 3, 4], [0, -1], "{2,1,1:0,1}"),
              ([None, None], [3, 8], [0, 4, -1], "{4,1:0,1,2,3}"), (["n", "n", "m", "k"], [4, 4, 7, 7], [1, 0, 4, 7, -1,
                                                                                                         1], "{2,1,1,1:0,1}"),
              (["n", "n", "m", "k"], [1, 1, 7, 8], [1, 0, 2, 7, -1, 1], "{2,1,1,1:0,1}"),
              ([6, "b", "n", "n", 9], [6, 1, 6, 6, 9], [6, 1, 1, 0, 6, -1], "{1,1,5,1,1:0,1,2,3,4}"),
              ([None, 6], [5, 6], [-1, 2, 3], "{2,1:0,1}")]
CASES.update({"reshape_of_open_sizes_%d" % i: lambda words=words: reshape_of_open_sizes(*words) for i, words in enumerate(OPEN_SIZES)})


def tile_of_open_size(times, given):
    """[n] sharded in two and tiled is {2*?/2} or {3*?/2}; the Reshape wants columns: {?*2/2} or {?*3/2}. Neither gives the unknown size."""
    m = model([node("Tile", ["x", "r"], ["t"], name="tile"), node("Reshape", ["t", "s"], ["y"], name="fold")], [info("x", T.FLOAT, ["n"])],
              [info("y", T.FLOAT, [None, times])], [tensor(np.array([times]), "r"), tensor(np.array([-1, times]), "s")])
    return m, 2, {"tile:x": "{2:0,1}", "fold:y": "{1,2:0,1}"}, {"x": f4(given)}, None


CASES.update(
    {"tile_%d_of_open_size" % times: lambda times=times, given=given: tile_of_open_size(times, given) for times, given in [(2, 6), (3, 5)]})


def body_in_a_body(op):
    """Device 1 has a shard of h, but the inner body needs all of it: the full h must get there under another name."""
    reads = helper.make_graph([node(op, ["h"] if op == "Neg" else ["h", "at"], ["inner"])], "reads", [],
                              [info("inner", T.FLOAT, [None, None])])
    other = helper.make_graph([node("Neg", ["h"], ["none"])], "other", [], [info("none", T.FLOAT, [None, None])])
    inside = helper.make_graph([node("If", ["on"], ["nested"], then_branch=reads, else_branch=other)], "inside", [],
                               [info("nested", T.FLOAT, [None, None])])
    beside = helper.make_graph([node("Abs", ["h"], ["beside"])], "beside", [], [info("beside", T.FLOAT, [None, None])])
    m = model([
        node("Exp", ["x"], ["h"], name="exp"),
        node("Tanh", ["h"], ["z"], name="tanh"),
        node("If", ["on"], ["y"], name="if", then_branch=inside, else_branch=beside)
    ], [info("x", T.FLOAT, [4, 3]), info("on", T.BOOL, [])],
              [info("z", T.FLOAT, [4, 3]), info("y", T.FLOAT, [None, None])], [tensor(np.array([3, 0]), "at")])
    return m, 2, {"exp:h": "{1,1:0}", "tanh:h": "{2,1:0,1}", "if:on": "{1:1}"}, {"x": f4(4, 3), "on": np.array(True)}, None


CASES.update({"body_in_a_body_%s" % op.lower(): lambda op=op: body_in_a_body(op) for op in ["Neg", "Gather"]})


@case
def scatter_of_nothing():
    """Rows of one element on two devices: one device has no element to update."""
    m = model([node("ScatterND", ["x", "at", "u"], ["y"], name="put")],
              [info("x", T.FLOAT, [4, "n"]), info("at", T.INT64, ["k", 1]),
               info("u", T.FLOAT, ["k", "n"])], [info("y", T.FLOAT, [4, "n"])])
    return m, 2, {"put:y": "{1,2:0,1}"}, {"x": f4(4, 1), "at": np.array([[1], [3]]), "u": f4(2, 1)}, None, {"reader": False}


def stacked_along_the_last(given):
    """The engine transposes what a Scan stacks along another axis than the first. It divides by zero if the shard is empty."""
    body = helper.make_graph([node("Add", ["c", "i"], ["o"]), node("Neg", ["i"], ["each"], name="each")], "body",
                             [info("c", T.FLOAT, None), info("i", T.FLOAT, None)],
                             [info("o", T.FLOAT, None), info("each", T.FLOAT, None)])
    m = model([
        node("Scan", ["x", "rows"], ["last", "all"], name="scan", body=body, num_scan_inputs=1, scan_output_axes=[-1]),
        node("Relu", ["all"], ["y"], name="relu")
    ], [info("x", T.FLOAT, ["n", 2]), info("rows", T.FLOAT, [3, "n", 2])],
              [info("last", T.FLOAT, ["n", 2]), info("y", T.FLOAT, ["n", 2, 3])])
    return m, 2, {"relu:all": "{2,1,1:0,1}", "scan:all": "{2,1,1:0,1}"}, {"x": f4(given, 2), "rows": f4(3, given,
                                                                                                        2)}, None, {"reader": False}


CASES.update({"stacked_%d_along_the_last" % n: lambda n=n: stacked_along_the_last(n) for n in (1, 5)})


@case
def scale_with_a_name():
    """A scale of size n: only the run knows whether it is one scale for the tensor or one per column."""
    m = model([node("QuantizeLinear", ["x", "s", "z"], ["y"], name="q")],
              [info("x", T.FLOAT, [3, 8]), info("s", T.FLOAT, ["n"]),
               info("z", T.UINT8, [None])], [info("y", T.UINT8, [3, 8])], opset=21)
    return m, 4, {"q:y": "{1,4:0,1,2,3}"}, {"x": f4(3, 8), "s": np.array([0.1], "f4"), "z": np.array([128], "u1")}, None, {"reader": False}


@case
def more_scales_than_blocks():
    """6 columns need 12 scales; the tensor has 24, and the engine ignores the rest. A shard must use the scales of its columns."""
    m = model([node("MatMulBnb4", ["x", "w", "a"], ["y"], name="mm", domain="com.microsoft", K=32, N=6, block_size=16, quant_type=1)],
              [info("x", T.FLOAT, [2, 32])], [info("y", T.FLOAT, [2, 6])],
              [tensor(rng.integers(0, 255, 96).astype("u1"), "w"), tensor(f4(24), "a")], imports=[helper.make_opsetid("com.microsoft", 1)])
    return m, 3, {"mm:y": "{1,3:0,1,2}"}, {"x": f4(2, 32)}, None, {"reader": False}


@case
def sums_of_nothing():
    """CumSum and InstanceNormalization of tensors that are empty for all inputs."""
    m = model([node("CumSum", ["x", "axis"], ["s"], name="sum"),
               node("InstanceNormalization", ["i", "g", "g"], ["n"], name="norm")],
              [info("x", T.FLOAT, [0, 4, "seq"]), info("i", T.FLOAT, [3, 6, 0])],
              [info("s", T.FLOAT, [0, 4, "seq"]), info("n", T.FLOAT, [3, 6, 0])],
              [tensor(np.array(1), "axis"), tensor(f4(6), "g")])
    return m, 3, {"sum:x": "{1,3,1:0,1,2}", "norm:i": "{1,3,1:0,1,2}"}, {"x": f4(0, 4, 3), "i": f4(3, 6, 0)}, None, {"reader": False}


@case
def one_scale_for_channels_with_a_name():
    """The engine broadcasts a scale of one element. That does not mean that there is one channel."""
    m = model([node("GroupNormalization", ["x", "s", "s"], ["y"], name="norm", num_groups=1)], [info("x", T.FLOAT, ["batch", "c", "w"])],
              [info("y", T.FLOAT, ["batch", "c", "w"])], [tensor(f4(1), "s")], opset=21)
    return m, 4, {"norm:x": "{4,1,1:0,1,2,3}"}, {"x": f4(8, 9, 4)}, None, {"reader": False}


@case
def wrapped_around_nothing():
    """2 columns on 3 devices: one shard is empty, and the engine cannot wrap an empty tensor."""
    m = model([node("Pad", ["x", "p"], ["y"], name="pad", mode="wrap")], [info("x", T.FLOAT, ["n", 3, "w"])],
              [info("y", T.FLOAT, ["n", 5, "w"])], [tensor(np.array([0, 2, 0, 0, 0, 0]), "p")], opset=21)
    return m, 3, {"pad:x": "{1,1,3:0,1,2}"}, {"x": f4(1, 3, 2)}, None, {"reader": False}


@case
def quantised_beside_a_branch():
    """From level 1 the engine moves QuantizeLinear in front of the Transpose, and overlooks that a branch added by partition reads the
    value too."""
    nodes = [
        node("Split", ["x", "three"], ["a", "b"], name="split", axis=0),
        node("Einsum", ["a", "z"], ["e"], name="einsum", equation="a,d->ad"),
        node("Transpose", ["a"], ["t"], perm=[0]),
        node("QuantizeLinear", ["t", "s", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "s", "zero"], ["y"])
    ]
    m = model(nodes, [info("x", T.FLOAT, [6]), info("z", T.FLOAT, ["n"])],
              [info("e", T.FLOAT, [3, "n"]), info("y", T.FLOAT, [3]),
               info("b", T.FLOAT, [3])],
              [tensor(np.array([3, 3]), "three"),
               tensor(np.float32(0.4), "s"), tensor(np.int8(1), "zero")], opset=21)
    return m, 3, {"einsum:e": "{1,3:0,1,2}"}, {"x": f4(6), "z": f4(5)}, None, {"reader": False, "optimize": 1}


@case
def indices_of_a_quantised_pool():
    """From level 1 the engine moves QuantizeLinear in front of the Transpose and the MaxPool, whose indices would be those of equal
    bytes."""
    nodes = [
        node("MaxPool", ["x"], ["p", "i"], name="pool", kernel_shape=[2]),
        node("Transpose", ["p"], ["t"], perm=[0, 2, 1]),
        node("QuantizeLinear", ["t", "s", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "s", "zero"], ["y"])
    ]
    m = model(nodes, [info("x", T.FLOAT, [2, 3, 9])], [info("i", T.INT64, [2, 3, 8]), info("y", T.FLOAT, [2, 8, 3])],
              [tensor(np.float32(0.4), "s"), tensor(np.int8(1), "zero")], opset=21)
    return m, 2, {"pool:x": "{2,1,1:0,1}"}, {"x": f4(2, 3, 9)}, None, {"optimize": 1}


@case
def size_with_a_minus():
    """Width minus kernel, both symbols: the expression of the result's size begins with a minus."""
    m = model([
        node("Conv", ["x", "w"], ["h"], name="conv"),
        node("Relu", ["h"], ["r"], name="relu"),
        node("Shape", ["r"], ["s"], name="shape"),
        node("Neg", ["r"], ["y"])
    ], [info("x", T.FLOAT, [2, 3, "width"]), info("w", T.FLOAT, [4, 3, "kernel"])],
              [info("y", T.FLOAT, [2, 4, None]), info("s", T.INT64, [3])])
    return m, 2, {"relu:r": "{1,2,1:0,1}", "shape:r": "{1,2,1:0,1}"}, {"x": f4(2, 3, 9), "w": f4(4, 3, 2)}, None


@case
def bias_of_one_channel():
    """Only the bias says that a group has one channel. The channel is sharded in three, so two shards are empty."""
    m = model([node("ConvTranspose", ["x", "w", "b"], ["y"], group=3, kernel_shape=[3])],
              [info("x", T.FLOAT, [2, 6, 4]), info("w", T.FLOAT, [6, "each", 3])], [info("y", T.FLOAT, [2, None, None])],
              [tensor(f4(3), "b")])
    return m, 6, {"y_convtranspose:w": "{1,3,1:(0,2,4),(1,3),5}"}, {"x": f4(2, 6, 4), "w": f4(6, 1, 3)}, None, {"reader": False}


def one_bias(shards):
    """The bias has one element, and the weights have it as a symbol."""
    m = model([node("ConvTranspose", ["x", "w", "b"], ["y"], kernel_shape=[3])],
              [info("x", T.FLOAT, [2, 2, 4]), info("w", T.FLOAT, [2, "each", 3])], [info("y", T.FLOAT, [2, None, None])],
              [tensor(f4(1), "b")])
    return m, 6, {"y_convtranspose:w": shards}, {"x": f4(2, 2, 4), "w": f4(2, 1, 3)}, None, {"reader": False}


@case
def bias_of_one_element():
    return one_bias("{1,3,1:(0,2,4),(1,3),5}")


@case
def bias_of_one_element_and_sums():
    return one_bias("{2,3,1:0,1,2,3,4,5}")


@case
def no_channels_in_a_group():
    """Two groups of two channels, sharded in four: a device with an empty shard runs the node on one channel of each group."""
    m = model([node("Conv", ["x", "w"], ["y"], group=2)],
              [info("x", T.FLOAT, ["n", None, None]), info("w", T.FLOAT, ["m", "each", None])], [info("y", T.FLOAT, [None, None, None])])
    return m, 4, {"y_conv:w": "{1,4,1:0,1,2,3}"}, {"x": f4(1, 4, 6), "w": f4(4, 2, 3)}, None


@case
def result_cut_finer():
    """An input is sharded in halves, the result in quarters: the node computes halves, which are sliced afterwards."""
    m = model([node("Add", ["x", "z"], ["y"], name="add"), node("Relu", ["y"], ["r"])], [info(n, T.FLOAT, [6]) for n in "xz"],
              [info("r", T.FLOAT, [6])])
    return m, 4, {"add:z": "{2:(1,3),(0,2)}", "add:y": "{2/2*3/2:1,3,0,2}"}, {"x": f4(6), "z": f4(6)}, None


@case
def declared_for_another_call():
    """The body of a function declares the sizes of its first call; the second call has others."""
    body = helper.make_graph(
        [node("Tanh", ["c"], ["d"], name="tanh"), node("Identity", ["go"], ["on"])], "body",
        [info("i", T.INT64, []), info("go", T.BOOL, []), info("c", T.FLOAT, [5, 4])],
        [info("on", T.BOOL, []), info("d", T.FLOAT, [5, 4])])
    nodes = [node("Constant", [], ["n"], value=tensor(np.array(3), "n")), node("Constant", [], ["t"], value=tensor(np.array(True), "t")),
             node("Loop", ["n", "t", "a"], ["l"], body=body, name="loop")]
    nodes += [node("Constant", [], [k], value=tensor(np.array([v]), k)) for k, v in (("from", 0), ("to", 2), ("along", 0))]
    function = helper.make_function("special.local", "Twice", ["a"], ["b"],
                                    nodes + [node("Slice", ["l", "from", "to", "along"], ["b"], name="slice")],
                                    [helper.make_opsetid("", 18)])
    m = model([
        helper.make_node("Twice", ["x"], ["h"], name="one", domain="special.local"),
        helper.make_node("Twice", ["h"], ["y"], name="two", domain="special.local")
    ], [info("x", T.FLOAT, [5, 4])], [info("y", T.FLOAT, [2, 4])], imports=[helper.make_opsetid("special.local", 1)], functions=[function])
    return m, 2, {"function Twice > loop > body > tanh:c": "{2,1:0,1}"}, {"x": f4(5, 4)}, None


@case
def nothing_to_cut():
    """No sharding: three replicas, no communication."""
    m = model([node("Relu", ["x"], ["y"])], [info("x", T.FLOAT, ["n"])], [info("y", T.FLOAT, ["n"])])
    return m, 3, {}, {"x": f4(4)}, []


def training(constant):
    """The engine overwrites the statistics of a BatchNormalization in training mode, and all devices read them."""
    nodes = [
        node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "m1", "v1"], training_mode=1),
        node("Exp", ["m1"], ["p"]),
        node("Exp", ["v1"], ["q"])
    ]
    statistics = {"m": f4(6), "v": f4(6) ** 2}
    ins = [info("x", T.FLOAT, [2, 6, 4])] + [info(n, T.FLOAT, [6]) for n in statistics if not constant]
    init = [tensor(np.ones(6, "f4"), n) for n in "sb"] + [tensor(a, n) for n, a in statistics.items() if constant]
    m = model(nodes, ins, [info("y", T.FLOAT, [2, 6, 4])] + [info(n, T.FLOAT, [6]) for n in "pq"], init)
    shards = {"y_batchnormalization:x": "{1,1,1:0,1,2}", "p_exp:p": "{3:0,1,2}", "q_exp:q": "{3:0,1,2}"}
    return m, 3, shards, {"x": f4(2, 6, 4), **({} if constant else statistics)}, None


@case
def signs_behind_a_slice():
    """ONNX Runtime's Normalizer loses signs if it writes over its input, which it does if both have the same known size."""
    m = model([node("Normalizer", ["x"], ["n"], domain="ai.onnx.ml", norm="L2"),
               node("Reshape", ["n", "s"], ["y"])], [info("x", T.FLOAT, [3, 3])], [info("y", T.FLOAT, [9])], [tensor(np.array([-1]), "s")],
              imports=[helper.make_opsetid("ai.onnx.ml", 3)])
    return m, 3, {"n_normalizer:x": "{2,1:0,(1,2)}", "n_normalizer:n": "{1,1:(0,1,2)}"}, {"x": f4(3, 3)}, None, {"reader": False}


@case
def statistics_that_are_given():
    return training(False)


@case
def statistics_that_are_constant():
    return training(True)


# Runs one case: annotate, infer, check, partition, evaluator.py (unless `reader` is False) and verify.
def check(folder, name):
    tessera = sys.argv[1]
    m, devices, shards, ins, collectives, *more = CASES[name]()
    options = more[0] if more else {}
    plain, cut, full, parts, data = (os.path.join(folder, f) for f in ("plain.onnx", "cut.onnx", "full.onnx", "parts", "in.npz"))
    onnx.checker.check_model(m)
    onnx.save(m, plain)
    edits = ["--config", "c:%d" % devices]
    for at, text in shards.items():
        edits += ["--shard", "%s=%s" % (at, text)]
    for at, stage in options.get("stages", {}).items():
        edits += ["--stage", "%s=%d" % (at, stage)]
    rc, out, err = harness.call(tessera, "annotate", plain, *edits, "-o", cut)
    assert rc == 0, "annotate: %s" % err
    rc, out, err = harness.call(tessera, "infer", cut, "-o", full)
    assert rc == 0, "infer: exit %d %s" % (rc, err)
    rc, out, err = harness.call(tessera, "check", full)
    assert rc == 0, "what infer wrote, check refuses: %s" % out
    rc, out, err = harness.call(tessera, "partition", cut, "-o", parts)
    assert rc == 0 and "error" not in err, "partition: exit %d %s" % (rc, err)
    assert options.get("says", "") in err, "partition says %r" % err
    with open(os.path.join(parts, "manifest.json")) as f:
        got = [c["op"] for c in json.load(f)["collectives"]]
    assert collectives is None or got == collectives, "collectives %s, expected %s" % (got, collectives)
    for op, ranks in options.get("ranks", {}).items():  # ranks whose files must have nodes of these operators
        have = [r for r in range(devices) if any(n.op_type == op for n in onnx.load("%s/rank%d.onnx" % (parts, r)).graph.node)]
        assert have == ranks, "%s is on ranks %s, expected %s" % (op, have, ranks)
    if options.get("reader", True):  # see `reader` above
        want = dict(zip([o.name for o in m.graph.output], ReferenceEvaluator(m).run(None, {**defaults(m), **ins})))
        far = evaluator.apart(evaluator.run(parts, ins), want)
        assert far <= options.get("tolerance", 5e-5), "the independent reader differs by %g" % far
    np.savez(data, **ins)
    level = ["--optimize", str(options["optimize"])] if "optimize" in options else []
    rc, out, err = harness.call(tessera, "verify", cut, "--inputs", data, "--json", *level)
    if rc == 7 and os.environ.get("TESSERA_ORT") and "model.onnx: error[engine-refused]" in err:
        return "this engine does not run the unsharded model"
    assert rc == 0 and json.loads(out)["ok"], "verify: exit %d %s %s" % (rc, out, err)


def defaults(m):
    """Returns the inputs of an IR 3 model that have a constant of the same name."""

    init = {t.name: numpy_helper.to_array(t) for t in m.graph.initializer}
    return {i.name: init[i.name] for i in m.graph.input if i.name in init}


def main():
    harness.run([(name, check, name) for name in CASES])
    harness.finish()


if __name__ == "__main__":
    main()
