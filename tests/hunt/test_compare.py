# SPDX-License-Identifier: Apache-2.0
"""Tests how the hunt compares results that differ: what docs/numbers.md does not promise is excused, everything else is a failure.

usage: test_compare.py"""
import types

import numpy as np
from onnx import TensorProto as T, helper as h, numpy_helper as nh

import graph
import compare
import lawful
import make
import promises
import refusals
import terms

import harness

CUT = dict(level=0)
NAN, INF = np.nan, np.inf
f4 = lambda *numbers: np.array(numbers, "f4")


def case_of(nodes, inputs, outputs, constants=(), opset=18):
    """A case with one set, as make.py builds it."""
    infos = [h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()]
    g = h.make_graph(nodes, "g", infos, [h.make_empty_tensor_value_info(o) for o in outputs],
                     [nh.from_array(np.array(a), n) for n, a in constants])
    model = h.make_model(g, opset_imports=[h.make_opsetid("", opset)], ir_version=8)
    return types.SimpleNamespace(model=model, sets=[inputs], wanted=[graph.run_model(model, inputs)])


def verdict(case, **changed):
    """The kind of the verdict if these outputs are changed."""
    return compare.compare(case, CUT, [{**case.wanted[0], **changed}]).kind


def product(x):
    return case_of([h.make_node("ReduceProd", ["x"], ["y"]),
                    h.make_node("Neg", ["y"], ["z"]),
                    h.make_node("ReduceSum", ["x"], ["s"])], dict(x=x), ["z", "s"])


def products_beyond_the_range():
    wide = product(np.array([[1e30, 1e30, 0, 2]], "f4"))
    assert verdict(wide, z=np.full((1, 1), np.nan, "f4")) == "range"
    assert verdict(wide, s=np.zeros((1, 1), "f4")) == "different"  # does not depend on the product
    assert verdict(product(np.array([[1e3, 1e3, 0, 2]], "f4")), z=np.full((1, 1), np.nan, "f4")) == "different"


def products_that_vanish():
    number = np.full((1, 1), 7, "f4")
    assert verdict(product(np.array([[INF, 2, 1e-30, 1e-30]], "f4")), z=number) == "range"
    assert verdict(product(np.array([[INF, 2, 1e-10, 1e-10]], "f4")), z=number) == "different"
    assert verdict(product(np.array([[3, 2, 1e-30, 1e-30]], "f4")), z=number) == "different"


def halves_next_to_nothing():
    """The engine computes in float32 between float16 kernels, so that 1e-14 stays above 0; between devices it becomes 0."""
    above = lambda x: case_of([h.make_node("ReduceProd", ["x"], ["y"]),
                               h.make_node("Greater", ["y", "n"], ["z"])], dict(x=np.array([x], "f2")), ["z"], [("n", np.float16(0))])
    assert verdict(above([0.05, 0.1] * 6), z=np.array([[False]])) == "ill"
    assert verdict(above([0.5, 0.1]), z=np.array([[False]])) == verdict(above([0.5, 0]), z=np.array([[True]])) == "different"


def sums_of_squares():
    square = lambda x: case_of([h.make_node("ReduceSumSquare", ["x"], ["y"])], dict(x=x), ["y"])
    assert verdict(square(np.array([60000, 3], "i4")), y=np.array([7], "i4")) == "range"
    assert verdict(square(np.array([6000, 3], "i4")), y=np.array([7], "i4")) == "different"


def magnitude_of_the_least_integer():
    """Its magnitude, 2^63, is no int64, although it is the double of 2^63 - 1."""
    least = np.iinfo("i8").min
    sums = lambda *numbers: case_of([h.make_node("ReduceL1", ["x"], ["y"])], dict(x=np.array([numbers], "i8")), ["y"])
    assert verdict(sums(least, 2), y=np.array([[7]])) == "range"
    assert verdict(sums(2 ** 62, 2), y=np.array([[7]])) == "different"


def statistics_that_are_written_over():
    """The engine overwrites the old variance with the new one: if it is also the bias of the node, or read by another node, the result
    changes."""
    def trained(bias, other):
        nodes = [
            h.make_node("BatchNormalization", ["x", "s", bias, "m", "v"], ["y", "mean", "var"], training_mode=1),
            h.make_node("Neg", [other], ["z"])
        ]
        inputs = dict(x=np.arange(12, dtype="f4").reshape(2, 3, 2), **{n: f4(1, 2, 3) for n in "sbmv"})
        return case_of(nodes, inputs, ["y", "z"])
    other = dict(y=np.zeros((2, 3, 2), "f4"))
    assert verdict(trained("v", "b"), **other) == "engine" and verdict(trained("b", "b"), **other) == "different"
    assert verdict(trained("b", "v"), z=f4(0, 0, 0)) == "engine" and verdict(trained("b", "b"), z=f4(0, 0, 0)) == "different"


def terms_that_cancel_out():
    """a + b - a - b with rounding in between: a sharded sum cannot keep it to the last bit."""
    w = np.array([[1], [1], [-1], [-1]], "f4")
    x = np.array([[1 / 3, 1 / 7, 1 / 3, 1 / 7]], "f4")
    small = case_of([h.make_node("MatMul", ["x", "w"], ["y"])], dict(x=x), ["y"], [("w", w)])
    assert verdict(small, y=small.wanted[0]["y"] + np.float32(3e-8)) in ("ok", "ill")
    assert verdict(small, y=small.wanted[0]["y"] + np.float32(1e-3)) == "different"
    numbers = case_of([h.make_node("MatMul", ["x", "w"], ["y"])], dict(x=np.array([[3, 5, 3, 5]], "f4")), ["y"], [("w", w)])
    assert verdict(numbers, y=np.array([[1e-4]], "f4")) == "different"  # sums of integers are exact


def terms_of_groups():
    """A ConvTranspose with two groups, which onnx's reference cannot run: one element is 1e-5, of terms of magnitude 1."""
    node = h.make_node("ConvTranspose", ["x", "w"], ["y"], group=2)
    case = case_of([node], dict(x=np.array([[[1, 1], [1, 1]]], "f4"), w=np.array([[[1, -0.99999]], [[2, 1]]], "f4")), ["y"])
    total = terms.totals(node, {**case.sets[0], **case.wanted[0]}, 18)
    assert total.shape == (1, 2, 3) and abs(total[0, 0, 1] - 1.99999) < 1e-4 and abs(case.wanted[0]["y"][0, 0, 1]) < 1e-4


def signs_that_rounding_decides():
    """A Where depends on the sign of a sum that is 0 except for rounding. For 26 and 36 pairs, six noises of one sign do not change the
    sign."""
    for pairs in range(24, 40, 2):
        for rest in (-1e-8, 1e-8, 0.5):
            nodes = [
                h.make_node("Tanh", ["x"], ["t"]),
                h.make_node("ReduceSum", ["t"], ["s"]),
                h.make_node("Greater", ["s", "zero"], ["above"]),
                h.make_node("Where", ["above", "x", "t"], ["y"])
            ]
            x = np.append(np.linspace(-1, 1, 2 * pairs), rest).astype("f4")
            case = case_of(nodes, dict(x=x), ["y"], [("zero", np.float32(0))])
            above = (case.wanted[0]["y"] == x).all()
            assert verdict(case, y=np.tanh(x) if above else x) == ("different" if rest == 0.5 else "ill"), (pairs, rest)


def sums_that_may_be_nothing():
    """A sum is 0 or almost 0 by rounding, and a Cast to bool depends on it: random noise never makes it exactly 0."""
    sums = lambda *x: case_of([h.make_node("ReduceMean", ["x"], ["s"]),
                               h.make_node("Cast", ["s"], ["y"], to=T.BOOL)], dict(x=f4(*x)), ["y"])
    assert verdict(sums(0.08975777, -0.08975779), y=np.array([False])) == "ill"
    assert verdict(sums(0.09, -0.08), y=np.array([False])) == "different"


def refused_for_a_nan():
    """A node rejects a NaN that MaxPool returns or not, depending on its position: excused. A NaN from a sum is not."""
    said = "Non-zero status code returned while running Binarizer node. Name:'bin' Status Message: Input data with index: 0 is NaN"
    behind = lambda op, x: case_of([h.make_node(op, ["x"], ["m"]),
                                    h.make_node("Neg", ["m"], ["y"], name="bin")], dict(x=np.array([[x]], "f4")), ["y"])
    assert compare.failing_is_open(behind("GlobalMaxPool", [NAN, 1]), said)
    assert not compare.failing_is_open(behind("GlobalMaxPool", [2, 1]), said) and not compare.failing_is_open(
        behind("GlobalAveragePool", [NAN, 1]), said)


def wide_integers():
    case = case_of([h.make_node("Identity", ["x"], ["y"])], dict(x=np.array([2 ** 53 + 1], "i8")), ["y"])
    assert verdict(case, y=np.array([2 ** 53], "i8")) == "different"
    assert verdict(case) == "ok"


def one_node(op, arrays, outputs=1, **attributes):
    """A single node with an Identity after each of its outputs: inputs a, b ...; results y0, y1 ..."""
    inputs = dict(zip("abc", arrays))
    nodes = [h.make_node(op, list(inputs), ["h%d" % k for k in range(outputs)], **attributes)]
    nodes += [h.make_node("Identity", ["h%d" % k], ["y%d" % k]) for k in range(outputs)]
    return case_of(nodes, inputs, ["y%d" % k for k in range(outputs)])


def judged(case, output="y0"):
    """The kind of the verdict if an output has another number in each element."""
    return verdict(
        case, **{
            output: (case.wanted[0][output] + case.wanted[0][output].dtype.type(77))
            if np.isfinite(case.wanted[0][output]).all() else np.full_like(case.wanted[0][output], 77)
        })


def greatest_of_nan():
    row = lambda *numbers: f4(*numbers).reshape(1, 1, -1)
    for op, more in (("GlobalMaxPool", {}), ("MaxPool", dict(kernel_shape=[4]))):
        places = [one_node(op, [row(*numbers)], **more) for numbers in ((NAN, 1, 2, 3), (1, 2, 3, NAN))]
        assert len({str(c.wanted[0]["y0"]) for c in places}) == 2, "the place of a NaN does not matter any more: promise it"
        assert [judged(c) for c in places] == ["open"] * 2
        assert judged(one_node(op, [row(1, 2, 3, INF)], **more)) == judged(one_node(op, [row(1, 2, 3, 4)], **more)) == "different"


def exponentials_of_nan():
    first, last = (one_node("ReduceLogSumExp", [f4(*x)], keepdims=0) for x in ((NAN, INF), (INF, NAN)))
    assert str(first.wanted[0]["y0"]) != str(last.wanted[0]["y0"]) and judged(first) == judged(last) == "open"
    assert judged(one_node("ReduceLogSumExp", [f4(NAN, 1)], keepdims=0)) == judged(one_node("ReduceLogSumExp", [f4(INF, 1)],
                                                                                            keepdims=0)) == "different"


def means_of_infinities():
    ones = f4(1, 1, 1)
    first, last = (one_node("LayerNormalization", [f4(*x).reshape(1, 3), ones], 3) for x in ((INF, 1, 2), (1, 2, INF)))
    assert str(first.wanted[0]["y1"]) != str(last.wanted[0]["y1"]) and judged(first, "y1") == "open"
    assert judged(first, "y0") == judged(first, "y2") == "different"
    assert judged(one_node("LayerNormalization", [f4(NAN, 1, 2).reshape(1, 3), ones], 3), "y1") == "different"


def sums_that_slide():
    case = one_node("LRN", [f4(NAN, 1, 1, 1, 1, 1).reshape(1, 6, 1, 1)], size=3)
    assert np.isnan(case.wanted[0]["y0"]).all() and judged(case) == "open"
    assert judged(one_node("LRN", [f4(2, 1, 1, 1, 1, 1).reshape(1, 6, 1, 1)], size=3)) == "different"


def infinite_scales():
    x = f4(1, 2, 3, 5).reshape(1, 1, 4)
    case = one_node("InstanceNormalization", [x, f4(INF), f4(0)])
    assert np.isnan(case.wanted[0]["y0"]).all() and judged(case) == "open"
    assert judged(one_node("InstanceNormalization", [x, f4(2), f4(INF)])) == "different"


def squares_too_large():
    grouped = lambda *x: one_node("GroupNormalization", [f4(*x).reshape(1, 2, 2), f4(1, 1), f4(0, 0)], num_groups=2)
    assert np.isnan(grouped(1e30, 1, 2, 3).wanted[0]["y0"]).any(), "mended: promise it"
    assert judged(grouped(
        1e30, 1, 2,
        3)) == "open" and judged(grouped(1e18, 1, 2, 3)) == judged(grouped(INF, 1, 2, 3)) == judged(grouped(NAN, 1, 2, 3)) == "different"


def hidden_keys():
    """One query whose mask hides the second of two keys."""
    def attention(key, causal):
        inputs = dict(q=f4(1, 2).reshape(1, 1, 1, 2), k=f4(1, 1, key, 1).reshape(1, 1, 2, 2), v=f4(1, 2, 3, 4).reshape(1, 1, 2, 2))
        inputs.update({} if causal else dict(m=np.array([[True, False]])))
        return case_of([h.make_node("Attention", list(inputs), ["y"], is_causal=causal)], inputs, ["y"], opset=23)
    word = lambda case: verdict(case, y=np.full((1, 1, 1, 2), 77, "f4"))
    for causal in (0, 1):
        odd = [attention(key, causal) for key in (NAN, INF)]
        assert all(np.isnan(case.wanted[0]["y"]).all() for case in odd), "mended: promise it"
        assert [word(case) for case in odd] == ["open"] * 2 and word(attention(3, causal)) == "different"


def pixels_outside():
    """Outside of the image, ONNX Runtime uses pixel 0 with a weight of 0: NaN if it is infinite, 0 if it is finite."""
    node = h.make_node("DeformConv", ["x", "w", "o"], ["y"])
    shifted = lambda pixel, by: case_of([node],
                                        dict(x=f4(pixel, 1, 2, 3).reshape(1, 1, 2, 2), o=f4(0, 0, 0, by, 0, 0, 0, 0).reshape(1, 2, 2, 2)),
                                        ["y"], [("w", np.ones((1, 1, 1, 1), "f4"))], opset=19)
    assert np.isnan(shifted(INF, 9).wanted[0]["y"].ravel()[3]), "mended: promise it"
    assert shifted(7, INF).wanted[0]["y"].ravel()[3] == shifted(7, NAN).wanted[0]["y"].ravel()[3] == 0
    word = lambda case: verdict(case, y=np.full((1, 1, 2, 2), 77, "f4"))
    assert word(shifted(INF, 9)) == word(shifted(NAN, 9)) == "open" and word(shifted(7, INF)) == word(shifted(7, NAN)) == word(shifted(
        7, 9)) == "different"


def letters_summed_before():
    case = one_node("Einsum", [f4(1, -2), f4(INF, 1)], equation="a,d->")
    assert case.wanted[0]["y0"] == -INF and judged(case) == "open"
    assert judged(one_node("Einsum", [f4(1, -2), f4(INF, 1)], equation="a,a->")) == "different"
    assert judged(one_node("Einsum", [f4(1, -2), f4(3, 1)], equation="a,d->")) == "different"
    assert judged(one_node("Einsum", [f4(1, -2), f4(INF, 1)], equation="a,d->ad")) == "different"


def laws():
    """The engine runs these nodes with results that the standard does not define. If it is fixed, the entry of LAWS can be removed."""
    shape = lambda op, arrays, **more: one_node(op, arrays, **more).wanted[0]["y0"].shape
    node = lambda op, **more: h.make_node(op, ["a", "b"], ["y"], **more)
    nothing, one = np.zeros((0, 3), "f4"), np.ones((1, 2), "f4")
    assert shape("ArgMax", [nothing], axis=-1) != (0, 1)
    assert not lawful.lawful(node("ArgMax", axis=-1), dict(a=nothing)) and lawful.lawful(node("ArgMax", axis=1), dict(a=nothing))
    assert not lawful.lawful(node("ReduceSum"), dict(a=nothing, b=np.array([-1]))) and lawful.lawful(
        node("ReduceSum"), dict(a=one, b=np.array([-1])))
    assert shape("GatherND", [np.ones((3, 4), "f4"), np.zeros((1, 3, 1), "i8")], batch_dims=1) == (1, 3)
    assert not lawful.lawful(node("GatherND", batch_dims=1), dict(a=np.ones((3, 4), "f4"), b=np.zeros((1, 3, 1), "i8")))
    assert not lawful.lawful(node("PRelu"), dict(a=f4(1), b=f4(1, 2))) and lawful.lawful(node("PRelu"), dict(a=f4(1, 2), b=f4(1)))
    packed = lambda n, scales: lawful.lawful(h.make_node("MatMulBnb4", ["a", "b", "c"], ["y"], K=32, N=6, block_size=16),
                                             dict(a=np.ones((3, 32), "f4"), b=np.zeros(n, "u1"), c=np.ones(scales, "f4")))
    assert packed(96, 12) and not packed(97, 12) and not packed(96, 24)
    groups = lambda n: lawful.lawful(h.make_node("GroupNormalization", ["a", "b", "c"], ["y"], num_groups=4),
                                     dict(a=np.ones((2, 8, 3), "f4"), b=np.ones(n, "f4"), c=np.ones(8, "f4")))
    assert groups(8) and groups(4) and not groups(1)
    texts = lambda axis: lawful.lawful(node("Gather", axis=axis), dict(a=np.array([["a", "b"]], object), b=np.array([0])))
    assert texts(1) and texts(-1) and not texts(0) and not texts(-2)


def laws_in_functions():
    """The engine counts the four rows of an empty input, and leaves them uninitialized."""
    put = h.make_function("hunt.local", "Put", ["a", "b"], ["c"], [h.make_node("Concat", ["a", "b"], ["c"], axis=0)],
                          [h.make_opsetid("", 18)])
    infos = [h.make_tensor_value_info(n, T.FLOAT, shape) for n, shape in (("x", [5, 2]), ("e", [4, None]))]
    g = h.make_graph([h.make_node("Put", ["x", "e"], ["y"], domain="hunt.local")], "g", infos, [h.make_empty_tensor_value_info("y")])
    model = h.make_model(g, opset_imports=[h.make_opsetid("", 18), h.make_opsetid("hunt.local", 1)], ir_version=8, functions=[put])
    feeds = lambda width: dict(x=np.ones((5, 2), "f4"), e=np.ones((4, width), "f4"))
    assert make.all_lawful(model, feeds(2)) and not make.all_lawful(model, feeds(0))


def products_beyond_doubles():
    """The engine multiplies integers as doubles: 363 * 308 * 330 * 391 * 357 * 342 * 394 is 32 less than its result."""
    wide = product(np.array([[363, 308, 330, 391, 357, 342, 394]], "i8"))
    assert verdict(wide, z=np.array([[-693966622461124320]])) == "range"
    assert verdict(product(np.array([[363, 308]], "i8")), z=np.array([[-111805]])) == "different"


def pixels_that_cancel_out():
    """A third of 2 plus two thirds of -1 is 0, except for rounding."""
    signs = lambda first: case_of([
        h.make_node("Resize", ["x", "", "s"], ["r"], mode="linear", coordinate_transformation_mode="asymmetric"),
        h.make_node("Sign", ["r"], ["y"])
    ], dict(x=np.array([[[[first, 2, 5]]]], "f4")), ["y"], [("s", f4(1, 1, 1, 3))])
    other = np.array([[[[-1, -1, 1, 1, 1, 1, 1, 1, 1]]]], "f4")
    assert verdict(signs(-1), y=other) == "ill" and verdict(signs(1), y=other) == "different"


def sizes_of_what_is_greatest():
    """The NonZero of an ArgMax has more or fewer elements if its input contains a NaN."""
    found = lambda *x: case_of([h.make_node("ArgMax", ["x"], ["i"], axis=1),
                                h.make_node("NonZero", ["i"], ["y"])], dict(x=np.array([x], "f4")), ["y"])
    assert compare.failing_is_open(found(NAN, 1), "Reshard_1") and not compare.failing_is_open(found(2, 1), "Reshard_1")


def names_that_slices_keep():
    nodes = [h.make_node("Gather", ["x", "i"], ["g"]), h.make_node("Slice", ["g", "i", "e"], ["y"])]
    case = case_of(nodes, dict(x=np.ones((4, 3), "f4")), ["y"], [("i", np.array([0])), ("e", np.array([2]))])
    case.model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    text = "Shape mismatch attempting to re-use buffer. {2,3,1,9} != {2,6,4,9}"
    assert not refusals.engine_mistake(case.model, text)
    case.model.opset_import[0].version = 10
    assert refusals.engine_mistake(case.model, text)


def turns_of_infinities():
    """A GRU with infinities: the result of a row depends on the other rows of its batch."""
    arrays = dict(x=np.full((2, 4, 2), INF, "f4"), w=np.ones((1, 9, 2), "f4"), r=np.ones((1, 9, 3), "f4"))
    cell = lambda x: case_of([h.make_node("GRU", ["x", "w", "r"], ["", "y"], hidden_size=3)], dict(arrays, x=x), ["y"])
    assert verdict(cell(arrays["x"]), y=np.full((1, 4, 3), 7, "f4")) == "open"
    assert verdict(cell(np.ones((2, 4, 2), "f4")), y=np.full((1, 4, 3), 7, "f4")) == "different"


def stacks_of_nothing():
    """A Loop without iterations whose scan output has no declared rank: other empty sizes are right, another state is not."""
    value = lambda n, t, shape: h.make_tensor_value_info(n, t, shape)
    nodes = [h.make_node("Identity", ["go"], ["on"]), h.make_node("Neg", ["v"], ["w"]), h.make_node("Abs", ["v"], ["each"])]
    body = h.make_graph(nodes, "b",
                        [value("i", T.INT64, []), value("go", T.BOOL, []), value("v", T.FLOAT, None)],
                        [value("on", T.BOOL, []), value("w", T.FLOAT, None), value("each", T.FLOAT, None)])
    case = case_of([h.make_node("Loop", ["n", "", "x"], ["y", "z"], body=body)], dict(x=f4(1, 2), n=np.array(0)), ["y", "z"])
    assert case.wanted[0]["z"].shape == (0,)
    assert verdict(case, z=np.zeros((0, 2), "f4")) == "open" and verdict(case, y=f4(3, 2)) == "different"


def sizes_that_rounding_decides():
    close = case_of([h.make_node("ReduceSum", ["x", "one"], ["s"], keepdims=0),
                     h.make_node("Unique", ["s"], ["y"])], dict(x=np.array([[1 / 3, 1 / 7], [1 / 7, 1 / 3]], "f4")), ["y"],
                    [("one", np.array([1]))])
    apart = case_of([h.make_node("Neg", ["x"], ["y"])], dict(x=f4(1, 2)), ["y"])
    assert compare.failing_is_rounding(close) and not compare.failing_is_rounding(apart)


def operators_of_later_sets():
    assert graph.in_opset("MeanVarianceNormalization", "", 9) and not graph.in_opset("MeanVarianceNormalization", "", 8)


def states_that_grow():
    """A Scan whose state grows from [1 2] to [3 2] in one iteration: the engine runs it, but the standard forbids it."""
    body = h.make_graph([h.make_node("Add", ["s", "r"], ["t"]), h.make_node("Neg", ["r"], ["o"])], "body",
                        [h.make_tensor_value_info(n, T.FLOAT, None) for n in "sr"],
                        [h.make_tensor_value_info(n, T.FLOAT, None) for n in "to"])
    scan = h.make_node("Scan", ["s0", "rows"], ["y", "z"], body=body, num_scan_inputs=1)
    kept = dict(s0=np.ones((3, 2), "f4"), rows=np.ones((1, 3, 2), "f4"))
    grown = dict(kept, s0=np.ones((1, 2), "f4"))
    model = case_of([scan], kept, ["y", "z"]).model
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    ends = {name: graph.run_model(model, feeds) for name, feeds in (("kept", kept), ("grown", grown))}
    assert ends["grown"]["y"].shape == (3, 2), "refused by now: the law can go"
    assert not lawful.lawful(scan, {**grown, **ends["grown"]}) and lawful.lawful(scan, {**kept, **ends["kept"]}) and lawful.lawful(
                                                                                            scan, grown)
    assert not make.all_lawful(model, grown) and make.all_lawful(model, kept)


def turns_of_other_shapes():
    """A Loop whose iterations return [2 3] and [1 6]: the engine stacks them as [2 2 3]."""
    body = h.make_graph([
        h.make_node("Flatten", ["c"], ["flat"], axis=2),
        h.make_node("Transpose", ["c"], ["out"], perm=[1, 0]),
        h.make_node("Identity", ["go"], ["on"])
    ], "body", [
        h.make_tensor_value_info("i", T.INT64, []),
        h.make_tensor_value_info("go", T.BOOL, []),
        h.make_tensor_value_info("c", T.FLOAT, None)
    ], [h.make_tensor_value_info("on", T.BOOL, [])] + [h.make_tensor_value_info(n, T.FLOAT, None) for n in ("flat", "out")])
    turns = nh.from_array(np.array(2), "turns")
    loop = [h.make_node("Constant", [], ["turns"], value=turns), h.make_node("Loop", ["turns", "", "x"], ["y", "z"], body=body)]
    model = case_of(loop, dict(x=np.ones((3, 2), "f4")), ["y", "z"]).model
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    assert graph.run_model(model, dict(x=np.ones((3, 2), "f4")))["z"].shape == (2, 2, 3), "refused by now: the law can go"
    assert make.all_lawful(model, dict(x=np.ones((3, 1), "f4"))) and not make.all_lawful(model, dict(x=np.ones((3, 2), "f4")))


def mistakes_of_the_engine():
    """The error text alone is not an excuse: the model must contain what the bug needs."""
    text = "Node (v_q) Op (QuantizeLinear) [TypeInferenceError] output_dtype INT8 does not match y_zero_point type UINT8."
    plain = h.make_model(h.make_graph([h.make_node("Abs", ["x"], ["y"])], "g", [h.make_tensor_value_info("x", T.FLOAT, ["n"])], []))
    byte = h.make_model(h.make_graph([h.make_node("DequantizeLinear", ["x", "s", "z"], ["y"])], "g", [], []))
    assert refusals.engine_mistake(byte, text) and not refusals.engine_mistake(plain, text) and not refusals.engine_mistake(byte, "another")
    attention = lambda size: h.make_model(h.make_graph([h.make_node("Attention", ["x", "w", "b"], ["y"], domain="com.microsoft")], "g",
                                                       [h.make_tensor_value_info("b", T.FLOAT, [size])], []))
    assert refusals.engine_mistake(attention("n"), "The input tensor cannot be reshaped") and not refusals.engine_mistake(
        attention(96), "The input tensor cannot be reshaped")


def shapes_of_open_weights():
    """The entry of OPEN_SIZES for Attention, in an unsharded model: from level 1 on its Shape ends with 0."""
    nodes = [h.make_node("Attention", ["x", "w", "b"], ["y"], domain="com.microsoft", num_heads=2), h.make_node("Shape", ["y"], ["s"])]
    infos = [h.make_tensor_value_info(n, T.FLOAT, dims) for n, dims in dict(x=[1, 3, 4], w=[4, "n"], b=["n"]).items()]
    model = h.make_model(h.make_graph(nodes, "g", infos, [h.make_empty_tensor_value_info(n) for n in "ys"]), ir_version=8,
                         opset_imports=[h.make_opsetid("", 18), h.make_opsetid("com.microsoft", 1)])
    feeds = dict(x=np.ones((1, 3, 4), "f4"), w=np.ones((4, 24), "f4"), b=np.ones(24, "f4"))
    assert graph.run_model(model, feeds)["s"].tolist() == [1, 3, 8]
    assert graph.run_model(model, feeds, 1)["s"].tolist() == [1, 3, 0], "mended: the entry can go"
    text = "Reshard 'Reshard_2': the input is not this rank's piece of the source"
    assert refusals.engine_mistake(model, text)
    for i in model.graph.input[1:]:
        i.type.tensor_type.shape.dim[-1].dim_value = 24
    assert graph.run_model(model, feeds, 1)["s"].tolist() == [1, 3, 8] and not refusals.engine_mistake(model, text)


def sizes_as_declared():
    """A set of inputs that gives another size than the model declares is not a case: shards of that size do not fit."""
    case = case_of([h.make_node("NonZero", ["x"], ["y"])], dict(x=f4(1, 0, 2)), ["y"])
    declare = lambda *dims: case.model.graph.output[0].CopyFrom(h.make_tensor_value_info("y", T.INT64, dims))
    more = graph.run_model(case.model, dict(x=f4(1, NAN, 2)))
    assert more["y"].shape == (1, 3) and graph.as_declared(case.model, more)  # nothing is declared
    for dims, few_fit, more_fit in [((1, 2), True, False), ((1, None), True, True), ((2,), False, False)]:
        declare(*dims)
        assert graph.as_declared(case.model, case.wanted[0]) == few_fit and graph.as_declared(case.model, more) == more_fit


def judged_mistake(model, feeds, level):
    """The excuse of refusals.py for an unsharded model that the engine rejects or fails to run."""
    try:
        graph.run_model(model, feeds, level)
    except Exception as why:
        return refusals.engine_mistake(model, str(why))
    raise AssertionError("mended: the entry can go")


def branches_put_in_place():
    """A Scan whose first output is read by a Shape, which becomes a constant, and whose second by an If with a constant condition: from
    level 1 on the engine drops it."""
    body = h.make_graph([h.make_node("Add", ["c", "r"], ["o"]), h.make_node("Tanh", ["x"], ["t"])], "body",
                        [h.make_tensor_value_info(n, T.FLOAT, None) for n in "cr"],
                        [h.make_tensor_value_info(n, T.FLOAT, None) for n in "to"])
    branch = lambda op: h.make_graph([h.make_node(op, ["stack"], [op])], op, [], [h.make_tensor_value_info(op, T.FLOAT, None)])
    nodes = [
        h.make_node("Scan", ["x", "rows"], ["state", "stack"], body=body, num_scan_inputs=1),
        h.make_node("If", ["on"], ["p"], then_branch=branch("Neg"), else_branch=branch("Tanh")),
        h.make_node("Shape", ["state"], ["s"]),
        h.make_node("Gather", ["s", "one"], ["n"]),
        h.make_node("Cast", ["n"], ["f"], to=T.FLOAT),
        h.make_node("Neg", ["p"], ["q"]),
        h.make_node("Mul", ["q", "f"], ["y"])
    ]
    case = case_of(nodes, dict(x=np.ones((6, 3), "f4")), ["y"], [("rows", np.ones((1, 6, 3), "f4")), ("on", np.array(False)),
                                                                 ("one", np.array(1))])
    assert judged_mistake(case.model, case.sets[0], 1)
    case.model.graph.node[1].input[0] = "given"
    assert not refusals.engine_mistake(case.model, "Node input 'stack' is not a graph input, initializer, or output of a previous node")


def branches_put_in_bodies():
    """The same inside another branch: after the Shape of an If becomes a constant, the engine drops the If, although it has another
    reader."""
    info = lambda n: h.make_tensor_value_info(n, T.FLOAT, None)
    one = lambda op: h.make_graph([h.make_node(op, ["x"], [op])], op, [], [info(op)])
    inner = [
        h.make_node("If", ["on"], ["p"], then_branch=one("Neg"), else_branch=one("Tanh")),
        h.make_node("Shape", ["p"], ["s"]),
        h.make_node("Cast", ["s"], ["f"], to=T.FLOAT),
        h.make_node("Add", ["p", "f"], ["r"])
    ]
    body = h.make_graph(inner, "body", [], [info("r")], [nh.from_array(np.array(True), "on")])
    case = case_of([h.make_node("If", ["c"], ["y"], then_branch=body, else_branch=one("Abs"))], dict(x=f4(1, 2), c=np.array(True)), ["y"])
    assert judged_mistake(case.model, case.sets[0], 1)


def splits_taken_for_one():
    nodes = [h.make_node("Split", ["x"], list("abc"), axis=0),
             h.make_node("Split", ["x"], list("de"), axis=0)] + [h.make_node("Neg", [n], ["n" + n]) for n in "abcde"]
    outputs = [h.make_empty_tensor_value_info("n" + n) for n in "abcde"]
    model = h.make_model(h.make_graph(nodes, "g", [h.make_tensor_value_info("x", T.FLOAT, ["n", 2])], outputs),
                         opset_imports=[h.make_opsetid("", 13)], ir_version=8)
    assert graph.run_model(model, dict(x=np.ones((6, 2), "f4")), 1)["na"].shape == (3, 2), "mended: promise it"
    assert "na" in promises.split_as_others(model, 1) and not promises.split_as_others(model, 0)
    del model.graph.node[0].output[2:]
    assert not promises.split_as_others(model, 1)


def sets_after_an_excuse():
    """An excuse for one set of inputs must not excuse the next set."""
    case = one_node("ReduceMax", [f4(NAN, 1)], keepdims=0)
    case.sets.append(dict(a=f4(2, 1)))
    case.wanted.append(graph.run_model(case.model, case.sets[1]))
    wrong = dict(y0=np.float32(77).reshape(()))
    assert compare.compare(case, CUT, [wrong, case.wanted[1]]).kind == "open"
    assert compare.compare(case, CUT, [wrong, wrong]).kind == "different"


def rounding_and_what_is_not_promised():
    """A maximum of a NaN is not promised, also if noise moves it. A sum that noise moves is no excuse: `verify` must know it."""
    cut = dict(CUT, kind="random", oracle="verify")
    reported = lambda case: compare.excused_verdict(case, cut, 0, [("verify-different", "")], [dict(name="y0", ok=False, max_rel=None)])
    nodes = [h.make_node("ReduceSum", ["x"], ["s"], keepdims=1), h.make_node("Sqrt", ["s"], ["r"]),
             h.make_node("Concat", ["r", "one"], ["pair"], axis=0), h.make_node("ReduceMax", ["pair"], ["y0"])]
    case = case_of(nodes, dict(x=f4(1, -1.0000001), one=f4(1)), ["y0"])
    assert reported(case).kind == "open"
    assert reported(one_node("ReduceSum", [f4(1e8, 1, -1e8)], keepdims=0)) is None


def scales_of_nothing():
    quantised = lambda scale: case_of([h.make_node("QuantizeLinear", ["x", "s"], ["y"])], dict(x=f4(0, 1), s=np.array(scale, "f4")), ["y"])
    assert verdict(quantised(0), y=np.array([9, 9], "u1")) == "open"
    assert verdict(quantised(0.5), y=np.array([9, 9], "u1")) == "different"


def deviations_of_nothing():
    """All numbers are equal: the engine returns -1 here, and NaN for numbers whose mean is exact."""
    same = lambda *column: one_node("MeanVarianceNormalization", [np.array(column, "f4").reshape(-1, 1)], axes=[0])
    case = same(*[2.4641871452331543] * 6)
    assert (case.wanted[0]["y0"] == -1).all() and verdict(case, y0=np.full((6, 1), NAN, "f4")) == "open"
    assert verdict(same(1, 2, 3), y0=np.full((3, 1), NAN, "f4")) == "different"


def inside_of_bodies():
    """A Loop that continues while the maximum is above 0; the position of a NaN decides that."""
    body = h.make_graph([
        h.make_node("Tanh", ["v"], ["w"]),
        h.make_node("ReduceMax", ["w"], ["m"], keepdims=0),
        h.make_node("Greater", ["m", "zero"], ["on"])
    ], "body", [
        h.make_tensor_value_info("i", T.INT64, []),
        h.make_tensor_value_info("go", T.BOOL, []),
        h.make_tensor_value_info("v", T.FLOAT, None)
    ], [h.make_tensor_value_info("on", T.BOOL, []),
        h.make_tensor_value_info("w", T.FLOAT, None)])
    looped = lambda *x: case_of([h.make_node("Loop", ["n", "", "x"], ["y"], body=body)], dict(x=f4(*x)), ["y"], [("n", np.array(3)),
                                                                                                                 ("zero", np.float32(0))])
    assert verdict(looped(NAN, 1), y=f4(7, 7)) == "open" and verdict(looped(2, 1), y=f4(7, 7)) == "different"
    assert compare.failing_is_open(looped(
        NAN, 1), "") and not compare.failing_is_open(looped(2, 1), "") and not compare.failing_is_open(looped(INF, 1), "")
    side = h.make_graph([h.make_node("ReduceProd", ["k"], ["p"], keepdims=0)], "side", [], [h.make_tensor_value_info("p", T.INT64, [])])
    branches = lambda *k: case_of([h.make_node("If", ["c"], ["y"], then_branch=side, else_branch=side)], dict(c=np.array(True)), ["y"], [(
        "k", np.array(k))])
    assert verdict(branches(2 ** 40, 2 ** 40), y=np.array(5)) == "range" and verdict(branches(2, 3), y=np.array(5)) == "different"


def inside_of_functions():
    """A float16 product inside a function that returns float32: the tolerance must be that of float16."""
    nodes = [h.make_node("MatMul", ["a", "b"], ["p"]), h.make_node("Cast", ["p"], ["q"], to=T.FLOAT)]
    call = case_of([h.make_node("Cast", ["x"], ["y"], to=T.FLOAT)], dict(x=np.full((2, 8), 1 / 3, "f2")), ["y"])
    call.model.graph.node[0].CopyFrom(h.make_node("Half", ["x", "w"], ["y"], domain="hunt.local"))
    call.model.graph.initializer.append(nh.from_array(np.full((8, 2), 1 / 7, "f2"), "w"))
    call.model.functions.append(h.make_function("hunt.local", "Half", ["a", "b"], ["q"], nodes, [h.make_opsetid("", 18)]))
    call.model.opset_import.append(h.make_opsetid("hunt.local", 1))
    call.wanted = [graph.run_model(call.model, call.sets[0])]
    assert verdict(call, y=call.wanted[0]["y"] * np.float32(1.001)) == "ill"
    assert verdict(call, y=call.wanted[0]["y"] * np.float32(1.1)) == "different"


def outputs_quantised_too():
    """A bug of ONNX Runtime from level 1 on: Abs returns values that were quantized by a later node."""
    def chain(*behind):
        nodes = [
            h.make_node("Abs", ["x"], ["v"]),
            h.make_node(*behind),
            h.make_node("QuantizeLinear", ["t", "s", "z"], ["q"]),
            h.make_node("DequantizeLinear", ["q", "s", "z"], ["d"])
        ]
        return case_of(nodes, dict(x=f4(1.1, 2.3, -3.1, 4).reshape(2, 2)), ["v", "d"], [("s", np.float32(0.4)), ("z", np.uint8(0))])
    turned, kept = chain("Transpose", ["v"], ["t"]), chain("Neg", ["v"], ["t"])
    assert compare.apart(graph.run_model(turned.model, turned.sets[0], 1)["v"], turned.wanted[0]["v"]) > 0.01, "mended: promise it"
    word = lambda case, level, name: compare.compare(case, dict(level=level),
                                                     [{**case.wanted[0], name: case.wanted[0][name] + np.float32(0.1)}]).kind
    assert word(turned, 1, "v") == "engine" and word(turned, 0, "v") == word(turned, 1, "d") == word(kept, 1, "v") == "different"


def rows_of_doubles():
    """The engine's LogSoftmax of doubles ignores a NaN."""
    doubles = one_node("LogSoftmax", [np.array([1, NAN, 2])], axis=0)
    assert not np.isnan(doubles.wanted[0]["y0"]).all(), "mended: promise it"
    assert judged(doubles) == "open" and judged(one_node("LogSoftmax", [f4(1, NAN, 2)], axis=0)) == judged(
        one_node("LogSoftmax", [np.array([1.0, 2])], axis=0)) == "different"


def halves_between_casts():
    """The engine omits the rounding to float16 between a product and a Cast; integers are the same either way."""
    made = lambda *x: case_of([h.make_node("Mul", ["x", "x"], ["p"]),
                               h.make_node("Cast", ["p"], ["y"], to=T.FLOAT)], dict(x=np.array(x, "f2")), ["y"])
    case, numbers = made(1.1, 1.3), made(2, 3)
    assert verdict(case, y=case.wanted[0]["y"] * np.float32(1.0003)) == "ill" and verdict(
        case, y=case.wanted[0]["y"] * np.float32(1.1)) == "different"
    assert verdict(numbers, y=numbers.wanted[0]["y"] * np.float32(1.001)) == "different"
    twice = lambda x: case_of([h.make_node("Cast", ["x"], ["p"], to=T.FLOAT16),
                               h.make_node("Cast", ["p"], ["y"], to=T.UINT8)], dict(x=f4(x)), ["y"])
    assert twice(0.99998).wanted[0]["y"] == 0, "mended: promise it"
    assert verdict(twice(0.99998), y=np.array(
        [1], "u1")) == "ill" and verdict(twice(0.9), y=np.array([1], "u1")) == verdict(twice(1), y=np.array([0], "u1")) == "different"


def values_quantised_twice():
    """A bug of ONNX Runtime from level 1 on: two quantizations are merged into one with another scale."""
    nodes = [
        h.make_node("QuantizeLinear", ["x", "s", "z"], ["a"]),
        h.make_node("DequantizeLinear", ["a", "s", "z"], ["b"]),
        h.make_node("QuantizeLinear", ["b", "t", "z"], ["c"]),
        h.make_node("DequantizeLinear", ["c", "t", "z"], ["y"])
    ]
    numbers = dict(x=np.linspace(-1.3, 1.3, 35).astype("f4"))
    case = case_of(nodes, numbers, ["y"], [("s", np.float32(0.11087)), ("t", np.float32(0.109155)), ("z", np.int8(3))])
    assert compare.apart(graph.run_model(case.model, case.sets[0], 1)["y"], case.wanted[0]["y"]) > 1e-3, "mended: promise it"
    word = lambda level: compare.compare(case, dict(level=level), [dict(y=case.wanted[0]["y"] + np.float32(0.1))]).kind
    assert word(0) == "different" and promises.quantised_twice(case.model, 1) == {"c", "y"} and not promises.quantised_twice(case.model, 0)
    between = [h.make_node("Dropout", ["b"], ["d", "mask"]), h.make_node("QuantizeLinear", ["d", "t", "z"], ["c"])]
    case = case_of(nodes[:2] + between + nodes[3:], numbers, ["y"], [("s", np.float32(0.11087)), ("t", np.float32(0.109155)),
                                                                     ("z", np.int8(3))])
    assert compare.apart(graph.run_model(case.model, case.sets[0], 1)["y"], case.wanted[0]["y"]) > 1e-3, "mended: promise it"
    assert promises.quantised_twice(case.model, 1) == {"c", "y"}


def refused_by_the_engine(nodes, arrays, level, dims=(), opset=18):
    """The engine's error for an unsharded model that it rejects, as refusals.py explains it."""
    case = case_of([h.make_node("Identity", [next(iter(arrays))], ["same"])], arrays, ["same"])
    case.model.graph.node.extend(nodes)
    del case.model.graph.output[:]
    case.model.graph.output.append(h.make_empty_tensor_value_info(nodes[-1].output[0]))
    case.model.opset_import[0].version = opset
    case.model.opset_import.append(h.make_opsetid("com.microsoft", 1))
    for i, names in dims:
        for dim, name in zip(case.model.graph.input[i].type.tensor_type.shape.dim, names):
            dim.dim_param = name
    return judged_mistake(case.model, arrays, level)


def doubles_clipped():
    nodes = [
        h.make_node("Relu", ["x"], ["r"]),
        h.make_node("Constant", [], ["low"], value=nh.from_array(np.float64(-1))),
        h.make_node("Clip", ["r", "low"], ["y"])
    ]
    assert refused_by_the_engine(nodes, dict(x=np.array([1.0, 2.0])), 1)


def wide_integers_moved():
    scale = h.make_node("Constant", [], ["s"], value=nh.from_array(np.float32(0.5)))
    assert refused_by_the_engine([scale, h.make_node("DequantizeLinear", ["x", "s"], ["d"]),
                                  h.make_node("Transpose", ["d"], ["y"])], dict(x=np.array([[1, 2]], "i4")), 1, opset=21)


def pads_put_into_windows():
    pads = h.make_node("Constant", [], ["p"], value=nh.from_array(np.array([0, 0, 2, 0, 0, 2])))
    nodes = [pads, h.make_node("Pad", ["x", "p"], ["d"]), h.make_node("MaxPool", ["d"], ["y"], kernel_shape=[2])]
    assert refused_by_the_engine(nodes, dict(x=np.ones((1, 1, 6), "f4")), 1)


def shapes_of_four_bits():
    nodes = [
        h.make_node("Cast", ["x"], ["q"], to=T.UINT4),
        h.make_node("Transpose", ["q"], ["t"]),
        h.make_node("Cast", ["t"], ["f"], to=T.FLOAT),
        h.make_node("Shape", ["f"], ["y"])
    ]
    assert refused_by_the_engine(nodes, dict(x=f4(1, 2).reshape(1, 2)), 1, [(0, ("n", "m"))], opset=21)


def sizes_wanted_early():
    nodes = [h.make_node("EmbedLayerNormalization", ["i", "", "t", "t", "", "g", "g"], ["y", "k"], domain="com.microsoft")]
    arrays = dict(i=np.zeros((1, 2), "i4"), t=np.ones((3, 4), "f4"), g=np.ones(4, "f4"))
    assert refused_by_the_engine(nodes, arrays, 0, [(2, ("n",))])


def zeros_beside_open_sizes():
    nodes = [
        h.make_node("Constant", [], ["zero"], value=nh.from_array(np.array([0]))),
        h.make_node("Concat", ["n", "zero"], ["s"], axis=0),
        h.make_node("Reshape", ["x", "s"], ["y"])
    ]
    assert refused_by_the_engine(nodes, dict(x=np.ones((4, 0, 1), "f4"), n=np.array([4])), 2)
    nodes[1:1] = [h.make_node("Shape", ["x"], ["n"], start=0, end=1)]
    assert refused_by_the_engine(nodes, dict(x=np.ones((1, 0), "f4")), 1, [(0, ("a", "b"))])


def letters_of_one():
    nodes = [
        h.make_node("Neg", ["x"], ["n"]),
        h.make_node("Pow", ["n", "n"], ["p"]),
        h.make_node("Einsum", ["p", "z"], ["e"], equation="a,da->a"),
        h.make_node("Pow", ["e", "e"], ["y"])
    ]
    assert refused_by_the_engine(nodes, dict(x=f4(2), z=np.ones((1, 3), "f4")), 0, [(1, ("m", "n"))])
    nodes = [h.make_node("Einsum", ["x", "z"], ["e"], equation="ab,a->ba"), h.make_node("Shape", ["e"], ["y"])]
    case = case_of(nodes, dict(x=np.ones((1, 6), "f4"), z=np.ones(6, "f4")), ["y"])
    case.model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "n"
    assert list(graph.run_model(case.model, case.sets[0], 1)["y"]) == [6, 1], "mended: its Shape is that of the result"
    text = "Reshard 'Reshard_1': the input is not this rank's piece of the source"
    assert refusals.engine_mistake(case.model, text)
    case.model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 6
    assert not refusals.engine_mistake(case.model, text)


CHECKS = [
    products_beyond_the_range, products_that_vanish, halves_next_to_nothing, sums_of_squares, magnitude_of_the_least_integer,
    statistics_that_are_written_over, terms_that_cancel_out, terms_of_groups, signs_that_rounding_decides,
    sums_that_may_be_nothing, refused_for_a_nan, wide_integers, greatest_of_nan, exponentials_of_nan,
    means_of_infinities, sums_that_slide, infinite_scales, squares_too_large, hidden_keys, pixels_outside,
    letters_summed_before, sets_after_an_excuse, rounding_and_what_is_not_promised, scales_of_nothing,
    deviations_of_nothing, inside_of_bodies,
    inside_of_functions, outputs_quantised_too, laws, laws_in_functions, operators_of_later_sets,
    products_beyond_doubles, pixels_that_cancel_out, sizes_of_what_is_greatest, names_that_slices_keep,
    turns_of_infinities, stacks_of_nothing, sizes_that_rounding_decides, states_that_grow, turns_of_other_shapes,
    mistakes_of_the_engine, shapes_of_open_weights, sizes_as_declared, branches_put_in_place, branches_put_in_bodies,
    splits_taken_for_one, rows_of_doubles, halves_between_casts, values_quantised_twice, doubles_clipped,
    wide_integers_moved, pads_put_into_windows, shapes_of_four_bits, sizes_wanted_early,
    zeros_beside_open_sizes, letters_of_one,
]
harness.run([(check.__name__, lambda _, check: check(), check) for check in CHECKS])
harness.finish()
