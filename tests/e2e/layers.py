# SPDX-License-Identifier: Apache-2.0
"""Writes a transformer with a given number of layers of 33 nodes each, with the names that exporters give and random weights."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(path, layers, hidden=64, heads=8, batch=8, tokens=32):
    rng, nodes, weights = np.random.default_rng(0), [], []

    def weight(name, *shape):
        weights.append(numpy_helper.from_array((rng.standard_normal(shape) / 8).astype("f"), name))
        return name

    def node(op, layer, what, inputs, **attributes):
        name = "/model/layers.%d/%s/%s" % (layer, what, op)
        nodes.append(helper.make_node(op, inputs, [name + "_output_0"], name=name, **attributes))
        return name + "_output_0"

    for name, value in (("split", [batch, tokens, heads, hidden // heads]), ("joined", [batch, tokens, hidden])):
        weights.append(numpy_helper.from_array(np.array(value, "int64"), name))
    for name, value in (("scale", (hidden // heads) ** -0.5), ("root", 2 ** 0.5), ("one", 1), ("half", 0.5)):
        weights.append(numpy_helper.from_array(np.array(value, "f"), name))
    x = "x"
    for i in range(layers):
        at = "model.layers.%d." % i
        norm = node("LayerNormalization", i, "input_norm",
                    [x, weight(at + "input_norm.weight", hidden),
                     weight(at + "input_norm.bias", hidden)])
        parts = []
        for part in "qkv":
            y = node("MatMul", i, "attn/%s_proj" % part, [norm, weight(at + "attn.%s_proj.weight" % part, hidden, hidden)])
            y = node("Add", i, "attn/%s_proj" % part, [y, weight(at + "attn.%s_proj.bias" % part, hidden)])
            y = node("Reshape", i, "attn/%s" % part, [y, "split"])
            parts.append(node("Transpose", i, "attn/%s" % part, [y], perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]))
        y = node("MatMul", i, "attn/scores", parts[:2])
        y = node("Softmax", i, "attn", [node("Mul", i, "attn", [y, "scale"])], axis=-1)
        y = node("Transpose", i, "attn/out", [node("MatMul", i, "attn/mix", [y, parts[2]])], perm=[0, 2, 1, 3])
        y = node("MatMul", i, "attn/o_proj",
                 [node("Reshape", i, "attn/out", [y, "joined"]),
                  weight(at + "attn.o_proj.weight", hidden, hidden)])
        x = node("Add", i, "attn/residual", [x, node("Add", i, "attn/o_proj", [y, weight(at + "attn.o_proj.bias", hidden)])])
        norm = node(
            "LayerNormalization", i, "post_norm",
            [x, weight(at + "post_norm.weight", hidden), weight(at + "post_norm.bias", hidden)])
        y = node(
            "Add", i, "mlp/up",
            [node("MatMul", i, "mlp/up", [norm, weight(at + "mlp.up.weight", hidden, 4 * hidden)]),
             weight(at + "mlp.up.bias", 4 * hidden)])
        gate = node("Add", i, "mlp/act", [node("Erf", i, "mlp/act", [node("Div", i, "mlp/act", [y, "root"])]), "one"])
        y = node("Mul", i, "mlp/half", [node("Mul", i, "mlp/act", [y, gate]), "half"])
        y = node(
            "Add", i, "mlp/down",
            [node("MatMul", i, "mlp/down", [y, weight(at + "mlp.down.weight", 4 * hidden, hidden)]),
             weight(at + "mlp.down.bias", hidden)])
        x = node("Add", i, "mlp/residual", [x, y])
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [batch, tokens, hidden]) for v in ("x", x)]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), path)
    return len(nodes)
