# SPDX-License-Identifier: Apache-2.0
"""Errors that are allowed, and why. Any other error is a failure of the test: an error is never accepted just because it is an error.

A verdict is one of:
    ok            every result equals that of the unsharded model, within the tolerance of its type
    ill, range    results differ only as much as rounding (compare.py: noise, terms), or a part leaves the range of its type
    told no       edits drawn by hand that `check` rejects, each with a code of EDITS
    infeasible    a plan with a memory limit in which nothing fits
    engine        the engine rejects or changes the unsharded model too, or ENGINE lists its bug
    different, refused, failed, blamed, crashed, hung     failures ("finds"); blamed: `verify` fails a sharding"""
import re

import onnx
from onnx import TensorProto

import terms

# Codes that random edits may cause: each edit is drawn for one value, without regard to rules or other edits.
EDITS = {
    "stage-order": "stages are drawn for nodes alone: one reads what a later stage makes",
    "spec-disagree": "two values of a node are cut in ways that no placement of its rule has",
}

# Bugs of ONNX Runtime 1.31 that a rank file may trigger although the unsharded model does not: (text, condition on the model, why). Each
# was also seen in an unsharded model with the sizes of the rank file.
ENGINE = [
    (r"(gamma|beta) should have 1 dimension, dimension size known", lambda n: n.op_type == "EmbedLayerNormalization",
     "it wants to know the size of gamma and beta when it loads; what a body gives, of which something is cut, has its size at run time"),
    (r"output_dtype INT8 does not match y_zero_point type UINT8", lambda n: n.op_type == "DequantizeLinear",
     "it moves a DequantizeLinear with one zero point of int8 behind a Reshape, makes it uint8, and says int8 of the new node"),
    (r"Could not find an implementation for QuantizeLinear\(", lambda n: n.op_type == "DequantizeLinear",
     "it moves a DequantizeLinear of int32 behind a Slice, Reshape or Transpose with a QuantizeLinear to int32 between, which it has not"),
    (r"pads\[dim\] < kernel_shape\[dim\]", lambda n: n.op_type == "MaxPool",
     "it puts a Pad into the MaxPool behind it that alone reads it, and refuses pads as large as the window"),
    (r"x_zero_point must be null or have the same rank as x for blocked quantization", lambda n: attribute(n, "block_size") is not None,
     "it makes one zero point of int8 a uint8, and forgets the number of its dimensions"),
    (r"Unexpected data type for Clip 'min' input of 11", lambda n: n.op_type == "Clip",
     "it joins a Relu and a Clip behind it, and does not know how to for doubles"),
    (r"Could not find an implementation for Shape\(", lambda n: n.op_type == "Cast" and attribute(n, "to").i in
     (TensorProto.UINT4, TensorProto.INT4), "it takes a Cast of 4 bits out that a Shape alone reads, and has no Shape of 4 bits"),
]

# The same for an If with a constant condition: optimization replaces it with the branch, and then drops a node that only the branch reads,
# if constants have replaced all its other readers. Also seen in unsharded models (test_compare.py).
CONSTANT_BRANCH = (
    r"Node input '.*' is not a graph input, initializer, or output of a previous node|Missing Input: |must contain a constructed tensor"
)

# The same for a Reshape with a computed shape of which one size comes from another device.
ZERO_AND_OPEN = r"Invalid Target shape product of 0|requested shape:\{(.*,)?(-1,(.*,)?0|0,(.*,)?-1)[,}]"

# The same for inputs with named sizes: (text, condition on the node, why).
OPEN_SIZES = [
    (
        (
            r"cannot be reshaped|do not fit the shape|Incompatible dimensions|not this rank's piece of the source|updates tensor should"
            r" have shape"
        ),
        lambda n, opset: n.op_type in ("Attention", "QAttention"),
        "of weights or values whose size has a name it infers a result without elements, and takes its Shape for that",
    ),
    (
        r"Shape mismatch attempting to re-use buffer",
        lambda n, opset: n.op_type == "Slice" and opset == 10,
        "Slice of operator set 10 keeps the name of a size that it changes, and memory is planned by names",
    ),
]


def attribute(node, name):
    return next((a for a in node.attribute if a.name == name), None)


def all_nodes(graph):
    for node in graph.node:
        yield node
        for a in node.attribute:
            if a.HasField("g"):
                yield from all_nodes(a.g)


def all_graphs(graph):
    yield graph
    for node in all_nodes(graph):
        yield from (a.g for a in node.attribute if a.HasField("g"))


def edits_may(findings):
    """True if all errors are among those that random edits may cause."""
    return bool(findings) and all(f[0] in EDITS for f in findings)


def engine_mistake(model, text):
    """Why an error is a bug of the engine; "": it is not known as one."""
    for pattern, holds, why in ENGINE:
        nodes = list(all_nodes(model.graph)) + [n for f in model.functions for n in f.node]
        if re.search(pattern, text) and any(holds(n) for n in nodes):
            return why
    if re.search(CONSTANT_BRANCH, text) and constant_branch(model):
        return "it drops a node that only a branch reads, when it puts the branch in the place of an If with a constant condition"
    if re.search(ZERO_AND_OPEN, text) and computed_shape(model):
        return "of a Reshape to sizes that are computed it takes one that it does not know for a -1, and refuses a 0 beside it"
    return open_size_mistake(model, text)


def constant_branch(model):
    """True if an If of the model has a constant condition."""
    constants = {t.name for g in all_graphs(model.graph)
                 for t in g.initializer} | {n.output[0] for n in all_nodes(model.graph) if n.op_type == "Constant"}
    return any(n.op_type == "If" and n.input[0] in constants for n in all_nodes(model.graph))


def computed_shape(model):
    """True if a Reshape of the model has a shape that other nodes compute."""
    made = {o for n in all_nodes(model.graph) for o in n.output if n.op_type != "Constant"}
    return any(n.op_type == "Reshape" and n.input[1] in made for n in all_nodes(model.graph))


def open_size_mistake(model, text):
    """The same for bugs that need a named size: the input of the node follows from a model input with one."""
    opset = next(o.version for o in model.opset_import if not o.domain)
    named = terms.followers(model,
                            {i.name for i in model.graph.input if any(not d.HasField("dim_value") for d in i.type.tensor_type.shape.dim)})
    for pattern, holds, why in OPEN_SIZES:
        if re.search(pattern, text) and any(holds(n, opset) and named & set(n.input) for n in model.graph.node):
            return why
    if re.search(r"Shape mismatch attempting to re-use buffer|not this rank's piece of the source|but the computed output shape",
                 text) and letter_of_two_sizes(model):
        return (
            "of an Einsum letter that has a number in one operand and a name in another it infers one of the two, though either may be 1"
            " and the result the other; it plans memory and Shape by that"
        )
    return ""


def letter_of_two_sizes(model):
    """True if an Einsum has a letter that is a number in one operand and named or unknown in another."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except onnx.shape_inference.InferenceError:  # for operators without a schema in onnx
        graph = model.graph
    dims = {v.name: list(v.type.tensor_type.shape.dim) for v in [*graph.input, *graph.value_info]}
    dims.update({t.name: [onnx.TensorShapeProto.Dimension(dim_value=d) for d in t.dims] for t in graph.initializer})
    for node in graph.node:
        if node.op_type != "Einsum":
            continue
        operands = attribute(node, "equation").s.decode().replace(" ", "").partition("->")[0].split(",")
        sizes = [(letter, d) for name, letters in zip(node.input, operands) for letter, d in zip(letters, dims.get(name, []))]
        numbers = {letter for letter, d in sizes if d.HasField("dim_value")}
        if any(letter in numbers and not d.HasField("dim_value") for letter, d in sizes):
            return True
    return False
