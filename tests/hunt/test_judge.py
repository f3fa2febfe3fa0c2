# SPDX-License-Identifier: Apache-2.0
"""What the hunter's judge makes of results that differ: what docs/numbers.md does not promise is no find, all else is.

usage: test_judge.py"""
import sys
import types

import numpy as np
from onnx import TensorProto as T, helper as h, numpy_helper as nh

import graph
import judge

CUT = dict(level=0)


def case_of(nodes, inputs, outputs, constants=()):
    """A case as make.py gives it, of one set."""
    infos = [h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()]
    g = h.make_graph(nodes, "g", infos, [h.make_empty_tensor_value_info(o) for o in outputs], [nh.from_array(np.array(a), n) for n, a in constants])
    model = h.make_model(g, opset_imports=[h.make_opsetid("", 18)], ir_version=8)
    return types.SimpleNamespace(model=model, sets=[inputs], wanted=[graph.run_model(model, inputs)])


def verdict(case, **changed):
    """The judge's word where these outputs are others."""
    return judge.compare(case, CUT, [{**case.wanted[0], **changed}]).kind


def product(x):
    return case_of([h.make_node("ReduceProd", ["x"], ["y"]), h.make_node("Neg", ["y"], ["z"]), h.make_node("ReduceSum", ["x"], ["s"])], dict(x=x), ["z", "s"])


def products_beyond_the_range():
    wide = product(np.array([[1e30, 1e30, 0, 2]], "f4"))
    assert verdict(wide, z=np.full((1, 1), np.nan, "f4")) == "range"
    assert verdict(wide, s=np.zeros((1, 1), "f4")) == "different"  # what does not follow from the product
    assert verdict(product(np.array([[1e3, 1e3, 0, 2]], "f4")), z=np.full((1, 1), np.nan, "f4")) == "different"


def sums_of_squares():
    square = lambda x: case_of([h.make_node("ReduceSumSquare", ["x"], ["y"])], dict(x=x), ["y"])
    assert verdict(square(np.array([60000, 3], "i4")), y=np.array([7], "i4")) == "range"
    assert verdict(square(np.array([6000, 3], "i4")), y=np.array([7], "i4")) == "different"


def terms_that_cancel_out():
    """Of a + b - a - b with rounding between: nothing that a cut could keep to the last bit."""
    w = np.array([[1], [1], [-1], [-1]], "f4")
    x = np.array([[1 / 3, 1 / 7, 1 / 3, 1 / 7]], "f4")
    small = case_of([h.make_node("MatMul", ["x", "w"], ["y"])], dict(x=x), ["y"], [("w", w)])
    assert verdict(small, y=small.wanted[0]["y"] + np.float32(3e-8)) in ("ok", "ill")
    assert verdict(small, y=small.wanted[0]["y"] + np.float32(1e-3)) == "different"
    numbers = case_of([h.make_node("MatMul", ["x", "w"], ["y"])], dict(x=np.array([[3, 5, 3, 5]], "f4")), ["y"], [("w", w)])
    assert verdict(numbers, y=np.array([[1e-4]], "f4")) == "different"  # whole numbers are exact


def wide_integers():
    case = case_of([h.make_node("Identity", ["x"], ["y"])], dict(x=np.array([2 ** 53 + 1], "i8")), ["y"])
    assert verdict(case, y=np.array([2 ** 53], "i8")) == "different"
    assert verdict(case) == "ok"


failed = 0
for check in (products_beyond_the_range, sums_of_squares, terms_that_cancel_out, wide_integers):
    try:
        check()
        print("ok - " + check.__name__)
    except Exception as why:
        failed += 1
        print("not ok - %s: %r" % (check.__name__, why))
sys.exit(1 if failed else 0)
