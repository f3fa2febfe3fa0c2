# SPDX-License-Identifier: Apache-2.0
"""Magnitudes of the terms of sums and products. Rounding is relative to them if terms cancel out. They also show whether a part of a sum
can leave the range of its type although the result does not (docs/numbers.md)."""
import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

SUMS = set("""MatMul Gemm Conv ConvTranspose Einsum CumSum ReduceSum ReduceL1 ReduceSumSquare ReduceMean AveragePool GlobalAveragePool
 ReduceL2 ReduceLogSum Resize Upsample""".split())
PRODUCTS = {"ReduceProd", "CumProd"}
# Equivalent sums: their range is that of the squares, or of the argument of the logarithm.
INSIDE = {"ReduceL2": "ReduceSumSquare", "ReduceLogSum": "ReduceL1", "ReduceMean": "ReduceL1"}


def steering(node, i):
    """True for inputs that are not terms: axes, shapes."""
    return i > 0 and (node.op_type.startswith("Reduce") or node.op_type in ("CumSum", "CumProd", "Resize", "Upsample"))


def magnitude(node, a):
    """The contribution of a term to `totals`; for a product, only what increases it."""
    a = np.abs(np.nan_to_num(a, nan=0, posinf=0, neginf=0))
    return np.maximum(a, 1) if node.op_type in PRODUCTS else a


def totals(node, values, opset, term=magnitude):
    """The sum (or product) of the magnitudes of the terms of each element, in double precision; None: unknown for this operator."""
    if node.domain or node.op_type not in SUMS | PRODUCTS:
        return None
    feeds = {}
    for i, name in enumerate(node.input):
        a = values.get(name) if name else None
        if name and (not isinstance(a, np.ndarray) or a.dtype.kind not in "fiu"):
            return None
        if name and not steering(node, i):
            a = term(node, a.astype("f8"))
        if name:
            feeds[name] = a
    copy = onnx.NodeProto.FromString(node.SerializeToString())
    copy.op_type = INSIDE.get(node.op_type, node.op_type)
    for a in copy.attribute:
        if a.name in ("alpha", "beta"):
            a.f = abs(a.f)
    with np.errstate(all="ignore"):
        try:
            return np.asarray(ReferenceEvaluator(alone(copy, feeds, opset)).run(None, feeds)[0], "f8")
        except Exception:
            return in_floats(copy, feeds, opset)


def alone(node, feeds, opset):
    """A model of the node alone."""
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    graph = helper.make_graph([node], "terms", inputs, [helper.make_empty_tensor_value_info(node.output[0])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def in_floats(node, feeds, opset):
    """The same in ONNX Runtime with float32: onnx's reference has no ConvTranspose with groups. None: neither supports it."""
    from graph import run_model
    feeds = {n: a.astype("f4") if a.dtype == np.float64 else a for n, a in feeds.items()}
    try:
        total = np.asarray(next(iter(run_model(alone(node, feeds, opset), feeds).values())), "f8")
        return total if np.isfinite(total).all() else None
    except Exception:
        return None


def vanishes(node, values, opset):
    """True if one part of a product can underflow to 0 while another is infinite: 1e-30 * 1e-30 | inf is NaN, but inf in another order."""
    result = values.get(node.output[0])
    if node.op_type not in PRODUCTS or not isinstance(result, np.ndarray) or result.dtype.kind != "f":
        return False
    shrinking = lambda _, a: np.where(np.isfinite(a) & (a != 0), np.minimum(np.abs(a), 1), 1)  # a 0 is a 0 in the unsharded product, too
    least = totals(node, values, opset, shrinking)
    infinities = totals(node, values, opset, lambda _, a: np.where(np.isinf(a), 2.0, 1.0))
    if least is None or infinities is None:
        return False
    return bool(((infinities > 1) & (least < np.finfo(result.dtype).smallest_subnormal)).any())


def leaves_range(node, values, opset):
    """True if a part of the node's sum or product can exceed the range of its type."""
    result = values.get(node.output[0])
    if not isinstance(result, np.ndarray) or result.dtype.kind not in "fiu":
        return False
    if node.op_type == "AveragePool":
        return False  # its windows are never split
    if vanishes(node, values, opset):
        return True
    total = totals(node, values, opset)
    limit = np.finfo(result.dtype).max if result.dtype.kind == "f" else float(np.iinfo(result.dtype).max) + 1
    if node.op_type in PRODUCTS and result.dtype.kind != "f":
        limit = min(limit, 2.0 ** 53)  # the engine multiplies doubles
    if result.dtype.kind != "f":  # the largest int64 is no double: 2^63 - 1 and 2^63, the magnitude of the smallest, are both 2^63
        limit = np.nextafter(limit, 0)
    return total is not None and total.size > 0 and not bool((total <= limit).all())


def followers(model, names):
    """All values of the main graph that depend on these."""
    from graph import free_names
    reached = set(names)
    for node in model.graph.node:
        if reached & set(free_names(node)):
            reached |= set(node.output)
    return reached


def out_of_range(model, values):
    """Values that depend on a sum or product whose parts can leave the range, including those inside subgraphs."""
    import inside
    opset = next(o.version for o in model.opset_import if not o.domain)
    return inside.marked(model, model.graph.node, values, lambda node, known: node.output if leaves_range(node, known, opset) else [])
