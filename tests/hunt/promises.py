# SPDX-License-Identifier: Apache-2.0
"""The exact list of what docs/numbers.md does not promise: operator, condition on its inputs, and outputs. Values that follow from these
outputs may differ; every other difference is a failure."""
import numpy as np

import inside
import terms
from graph import free_names


def floats(node, values):
    return [a for a in (values.get(i) for i in node.input) if isinstance(a, np.ndarray) and a.dtype.kind == "f"]


def given(node, i, values):
    a = values.get(node.input[i]) if i < len(node.input) else None
    return a if isinstance(a, np.ndarray) and a.dtype.kind == "f" else np.zeros(0, "f4")


def has_nan(node, values):
    return any(np.isnan(a).any() for a in floats(node, values))


def has_infinity(node, values):
    return any(np.isinf(a).any() for a in floats(node, values))


def no_numbers(node, values):
    return has_nan(node, values) or has_infinity(node, values)


def infinity_and_nan(node, values):
    return has_nan(node, values) and has_infinity(node, values)


def to_integers(node, values):
    return no_numbers(node, values) and getattr(values.get(node.output[0]), "dtype", np.dtype("f4")).kind != "f"


def quantised(node, values):
    return no_numbers(node, values) or bool((given(node, 1, values) == 0).any())


def first_infinite(node, values):
    return bool(np.isinf(given(node, 0, values)).any())


def first_no_number(node, values):
    return not bool(np.isfinite(given(node, 0, values)).all())


def scale_infinite(node, values):
    return bool(np.isinf(given(node, 1, values)).any())


def doubles_no_numbers(node, values):
    return given(node, 0, values).dtype == np.float64 and no_numbers(node, values)


def squares_beyond_float(node, values):
    """The sum of the squares of one group exceeds float32, in which the engine computes it."""
    a = given(node, 0, values).astype("f8")
    if a.ndim < 2 or not a.size:
        return False
    groups = np.where(np.isfinite(a), a, 0).reshape(a.shape[0] * inside.attribute(node, "num_groups"), -1)
    with np.errstate(over="ignore"):
        return bool(((groups ** 2).sum(1) > np.finfo("f4").max).any())


def deviation_of_nothing(node, values):
    """All numbers are equal, or differ only by rounding: dividing by their deviation is 0 / 0."""
    a = given(node, 0, values)
    axes = tuple(inside.attribute(node, "axes", [0, 2, 3]))
    if not a.size or max(axes) >= a.ndim:
        return False
    with np.errstate(invalid="ignore"):
        return bool((a.astype("f8").std(axes) <= 4 * np.finfo(a.dtype).eps * np.abs(a).max(axes)).any())


def hidden_no_numbers(node, values):
    """An Attention with a mask whose queries or keys contain NaN or infinity."""
    hides = len(node.input) > 3 and node.input[3] or inside.attribute(node, "is_causal", 0)
    return not node.domain and bool(hides) and not all(np.isfinite(given(node, i, values)).all() for i in (0, 1))


def stacks_nothing(node, values):
    """A Loop without iterations returns [0] if the engine does not know the rank of a result; a shard declares it."""
    return any(getattr(values.get(o), "shape", None) == (0,) for o in node.output[max(0, len(node.input) - 2):])


def summed_before(node, values):
    """An Einsum with an infinity and a letter that is in one operand only and not in the result: it is summed before the product."""
    equation = inside.attribute(node, "equation", b"").decode().replace(" ", "")
    operands, _, result = equation.partition("->")
    alone = lambda letter: letter.isalpha() and letter not in result and sum(letter in o for o in operands.split(",")) == 1
    return "->" in equation and has_infinity(node, values) and any(alone(letter) for letter in operands)


ALL = None
# (operators, condition, outputs): docs/numbers.md has the reasons, in the same order.
NOT_PROMISED = [
    ("ReduceMax ReduceMin ArgMax ArgMin TopK Hardmax MaxPool GlobalMaxPool", has_nan, ALL),
    ("ReduceLogSumExp", infinity_and_nan, ALL),
    ("LogSoftmax", doubles_no_numbers, ALL),
    ("Cast CastLike", to_integers, ALL),
    ("QuantizeLinear", quantised, ALL),
    ("DynamicQuantizeLinear DynamicQuantizeMatMul MatMulIntegerToFloat DynamicQuantizeLSTM", no_numbers, ALL),
    ("Resize", no_numbers, ALL),
    ("DeformConv", first_no_number, ALL),
    ("LRN", no_numbers, ALL),
    ("LayerNormalization", first_infinite, [1]),
    ("InstanceNormalization", scale_infinite, ALL),
    ("GroupNormalization", squares_beyond_float, ALL),
    ("MeanVarianceNormalization", deviation_of_nothing, ALL),
    ("Einsum", summed_before, ALL),
    ("Attention", hidden_no_numbers, ALL),
    ("RNN GRU LSTM", no_numbers, ALL),
    ("Loop", stacks_nothing, ALL),
]


def open_outputs(node, values):
    """Outputs of the node that are not promised for these values."""
    for operators, holds, outputs in NOT_PROMISED:
        if node.op_type in operators.split() and holds(node, values):
            states = len(node.input) - 2 if node.op_type == "Loop" else 0
            return [o for i, o in enumerate(node.output) if o and i >= states and (outputs is ALL or i in outputs)]
    return []


def not_promised(model, values):
    """All values of the main graph that follow from such outputs, including those inside subgraphs."""
    return inside.marked(model, model.graph.node, values, open_outputs)


def not_promised_by_verify(model, values):
    """The same without what `verify` recognises: rounding errors, loops without iterations."""
    known = ("MeanVarianceNormalization", "Loop")
    return inside.marked(model, model.graph.node, values, lambda node, inner: [] if node.op_type in known else open_outputs(node, inner))


# Operators whose output sizes depend on the values of an input, and the first such input.
SIZED_BY = {**dict.fromkeys("NonZero Unique NonMaxSuppression Range ConstantOfShape".split(), 0),
            **dict.fromkeys("Compress Expand Reshape Tile Slice Pad Resize Upsample OneHot TopK".split(), 1)}


def turns_not_promised(model, nodes, values):
    """True if something that is not promised decides about iterations, branches or sizes. Examples: a NaN in a maximum ends a Loop; the
    NonZero of an ArgMax has more elements or fewer."""
    reached = inside.marked(model, nodes, values, open_outputs)
    for node in nodes:
        if node.op_type == "If" and node.input[0] in reached:
            return True
        if node.op_type in SIZED_BY and reached & set(node.input[SIZED_BY[node.op_type]:]):
            return True
        for body, inner in inside.steps(model, node, values):
            ends = inside.marked(model, body.node, inner, open_outputs)
            if node.op_type == "Loop" and body.output[0].name in ends or turns_not_promised(model, body.node, inner):
                return True
    return False


# Operators through which ONNX Runtime moves a QuantizeLinear backwards.
HANDED_BACK = set("Transpose Reshape Squeeze Unsqueeze Slice MaxPool".split())


def quantised_outputs(model, level):
    """Outputs that only a Transpose reads, followed by a QuantizeLinear: from optimization level 1 on, ONNX Runtime quantizes the output
    too, also in unsharded models (docs/numbers.md). A rank file may have this pattern where the unsharded model has another node before
    it."""
    readers = {}
    for node in model.graph.node:
        for name in free_names(node):
            readers.setdefault(name, []).append(node)
    found = set()
    for output in model.graph.output if level else []:
        behind = readers.get(output.name, [])
        if not any(n.op_type == "Transpose" for n in behind):
            continue
        while len(behind) == 1 and behind[0].op_type in HANDED_BACK:
            behind = readers.get(behind[0].output[0], [])
        if len(behind) == 1 and behind[0].op_type == "QuantizeLinear":
            found.add(output.name)
    return found


# Operators that ONNX Runtime removes if they change nothing.
TAKEN_OUT = set("Identity Dropout Cast Slice Expand".split())


def quantised_twice(model, level):
    """Values that follow from a DequantizeLinear between two QuantizeLinear nodes. From optimization level 1 on, ONNX Runtime merges the
    two quantizations into one with its own scale, if the values in between have no other reader. It does so in unsharded models too
    (docs/numbers.md). A rank file lacks readers whose results are unused, and the unused mask of a Dropout: then the Dropout is removed
    first."""
    makers = {o: n for n in model.graph.node for o in n.output}

    def maker(name, op):
        node = makers.get(name)
        while node is not None and node.op_type in TAKEN_OUT:
            node = makers.get(node.input[0])
        return node if node is not None and node.op_type == op else None

    def is_second(node):
        first = maker(node.input[0], "DequantizeLinear") if node.op_type == "QuantizeLinear" else None
        return first is not None and maker(first.input[0], "QuantizeLinear") is not None
    pairs = [n for n in model.graph.node if is_second(n)]
    return terms.followers(model, [n.output[0] for n in pairs]) if level and pairs else set()


def split_as_others(model, level):
    """Values that follow from Splits of one value without sizes, with different numbers of outputs. From optimization level 1 on, ONNX
    Runtime replaces the second by the first, if no output is a model output. It does so in unsharded models too (docs/numbers.md). From
    opset 18 on a Split states the number of its outputs."""
    equal = [
        n for n in model.graph.node
        if n.op_type == "Split" and len(n.input) == 1 and not any(a.name in ("split", "num_outputs") for a in n.attribute)
    ]
    unlike = [n for n in equal if any(n.input[0] == m.input[0] and len(n.output) != len(m.output) for m in equal)]
    return terms.followers(model, [o for n in unlike for o in n.output]) if level and unlike else set()
