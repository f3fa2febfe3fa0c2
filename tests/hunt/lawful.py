# SPDX-License-Identifier: Apache-2.0
"""Nodes that ONNX Runtime runs although the standard gives them no meaning, or another one. No case may contain them, because there is no
expected result. Each entry of LAWS is a condition on a node and its input arrays."""
import numpy as np


def attribute(node, name, otherwise=None):
    for a in node.attribute:
        if a.name == name:
            return list(a.ints) if a.ints else a.i if a.type == a.INT else a.s.decode()
    return otherwise


def skip_fits(node, inputs):
    """The added input must have the shape of the first, or broadcast to it; ONNX Runtime reads a larger one from its beginning."""
    try:
        return np.broadcast_shapes(inputs[0].shape, inputs[1].shape) == inputs[0].shape
    except ValueError:
        return False


def parts_fit(node, inputs):
    """Concatenated inputs must agree in all other dimensions; ONNX Runtime does not check those of empty inputs."""
    axis = attribute(node, "axis", 1) % max(inputs[0].ndim, 1)
    shapes = [a.shape[:axis] + a.shape[axis + 1:] for a in inputs if a is not None]
    return all(shape == shapes[0] for shape in shapes)


def heads_are_even(node, inputs):
    """Rotary embedding rotates pairs of elements; ONNX Runtime leaves the last element of an odd head uninitialized."""
    heads = attribute(node, "num_heads", 0)
    width = inputs[0].shape[-1] if inputs[0].ndim == 4 or not heads else inputs[0].shape[-1] // heads
    return width % 2 == 0


def slopes_fit(node, inputs):
    """Slopes must broadcast to the input, not the input to them."""
    return inputs[1] is None or skip_fits(node, inputs)


def batches_agree(node, inputs):
    """Indices and data must have the same leading dimensions; ONNX Runtime uses those of the indices."""
    n = attribute(node, "batch_dims", 0)
    return inputs[1] is None or inputs[0].shape[:n] == inputs[1].shape[:n]


def axes_are_read(node, inputs):
    """ONNX Runtime misreads a negative axis of an empty tensor: [0 3] reduced along -1 stays [0 3]."""
    axes = attribute(node, "axes") or [attribute(node, "axis", 0)]
    if len(inputs) > 1 and inputs[1] is not None:
        axes = inputs[1].tolist()
    return inputs[0].size > 0 or min(axes, default=0) >= 0


def bytes_are_all_used(node, inputs):
    """A byte holds two weights, and a block has one scale; ONNX Runtime accepts more of both than there are weights, and ignores the
    rest."""
    weights, block = attribute(node, "K", 0) * attribute(node, "N", 0), attribute(node, "block_size", 16)
    scales = inputs[2] if len(inputs) > 2 else None
    return (inputs[1] is None or inputs[1].size == (weights + 1) // 2) and (scales is None or scales.size == (weights + block - 1) // block)


def texts_are_single(node, inputs):
    """ONNX Runtime's Gather copies only the first text of a row (docs/numbers.md): rows of texts must have one element."""
    if inputs[0].dtype != object or not inputs[0].ndim:
        return True
    axis = attribute(node, "axis", 0) % inputs[0].ndim
    return int(np.prod(inputs[0].shape[axis + 1:])) <= 1


def group_scales_fit(node, inputs):
    """Scale and bias must have one element per channel (per group before opset 21); ONNX Runtime broadcasts a single one."""
    sizes = (inputs[0].shape[1], attribute(node, "num_groups"))
    return all(a is None or a.size in sizes for a in inputs[1:])


def states_keep_shape(node, inputs, outputs):
    """The state of a Scan must keep its shape. ONNX Runtime lets [1 6] grow to [3 6] in a single iteration if it does not know the shape
    when it loads the model; otherwise it rejects the model."""
    carried = len(node.input) - attribute(node, "num_scan_inputs", 0)
    ends = list(zip(inputs, outputs))[:carried]
    return all(getattr(a, "shape", None) == getattr(b, "shape", None) for a, b in ends if a is not None and b is not None)


def turns_agree(node, turns):
    """The scan outputs of a Loop must have the same shape in all iterations. ONNX Runtime compares only the number of elements: it stacks
    [5 5] and [1 25] as [2 5 5]. turns: the values of each iteration."""
    carried = max(len(node.input) - 2, 0)
    given = [[getattr(values.get(o.name), "shape", None) for o in body.output[1 + carried:]] for body, values in turns]
    return all(shapes == given[0] for shapes in given)


LAWS = {"Concat": parts_fit}
LAWS["RotaryEmbedding"] = heads_are_even
LAWS["PRelu"] = slopes_fit
LAWS["MatMulBnb4"] = bytes_are_all_used
LAWS["GatherND"] = batches_agree
LAWS["Gather"] = texts_are_single
LAWS.update({op: axes_are_read for op in "ArgMax ArgMin".split()})
LAWS.update({"Reduce" + kind: axes_are_read for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()})
LAWS["GroupNormalization"] = group_scales_fit
LAWS["Scan"] = states_keep_shape  # uses its outputs too: see below
LAWS.update({op: skip_fits for op in "SkipLayerNormalization SkipSimplifiedLayerNormalization".split()})


LAWS_OF_TURNS = {"Loop": turns_agree}  # conditions on a node and the values of all its iterations (make.py)


def lawful(node, values):
    """values: name -> array, at least for the inputs of the node (for a Scan, also for its outputs); missing values are not checked."""
    law = LAWS.get(node.op_type)
    inputs = [values.get(name) if name else None for name in node.input]
    if node.op_type == "Scan":
        return states_keep_shape(node, inputs, [values.get(name) if name else None for name in node.output])
    if not law or not isinstance(inputs[0], np.ndarray):
        return True
    return law(node, [a if isinstance(a, np.ndarray) else None for a in inputs])
