#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes decoders in the sizes of published models, to plan machines for them. They have no weights: planning needs only shapes.

usage: decoder.py 8b|70b|405b|8x7b [float16|int4|float8] [LAYERS]

`decoder.py 70b int4` writes 70b-int4-tokens.onnx, which makes one token for each of `batch` requests with caches of `past` tokens, and
70b-int4-prompts.onnx, which reads prompts of `seq` tokens (without int4: 70b-tokens.onnx, 70b-prompts.onnx). Needs the package onnx."""
import sys

import onnx
from onnx import TensorProto, helper

HALF = TensorProto.FLOAT16
# layers, hidden size, heads, key-value heads, inner size, vocabulary, experts (of which a token uses 2)
SIZES = {
    "8b": (32, 4096, 32, 8, 14336, 128256, 0),
    "70b": (80, 8192, 64, 8, 28672, 128256, 0),
    "405b": (126, 16384, 128, 8, 53248, 128256, 0),
    "8x7b": (32, 4096, 32, 8, 14336, 32000, 8)
}


class Decoder:

    def __init__(self, size, kind, layers, prompts):
        self.layers, self.hidden, self.heads, self.kv, self.inner, self.vocabulary, self.experts = SIZES[size]
        self.layers, self.kind, self.prompts = layers or self.layers, kind, prompts
        self.head = self.hidden // self.heads
        self.nodes, self.weights = [], []

    def weight(self, name, dims, kind=HALF):
        t = TensorProto(name=name, data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
        t.external_data.add(key="location", value="absent.bin")
        self.weights.append(t)
        return name

    def constant(self, name, values):
        self.weights.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
        return name

    def node(self, op, inputs, output, more=(), **attributes):
        domain = "com.microsoft" if op in ("GroupQueryAttention", "MatMulNBits", "MoE") else ""
        self.nodes.append(helper.make_node(op, inputs, [output, *more], name=output, domain=domain, **attributes))
        return output

    def norm(self, x, name):
        return self.node("SimplifiedLayerNormalization", [x, self.weight(name + ".scale", [self.hidden])], name, axis=-1, epsilon=1e-5)

    def product(self, x, name, rows, columns):
        if self.kind == "int4":
            packed = self.weight(name + ".weight", [columns, rows // 32, 16], TensorProto.UINT8)
            scales = self.weight(name + ".scales", [columns * rows // 32])
            return self.node("MatMulNBits", [x, packed, scales], name, K=rows, N=columns, bits=4, block_size=32)
        weight = name + ".weight"
        if self.kind == "float8":
            stored = self.weight(weight, [rows, columns], TensorProto.FLOAT8E4M3FN)
            weight = self.node("DequantizeLinear", [stored, self.weight(name + ".scale", [columns])], weight + ".half", axis=1)
        else:
            self.weight(weight, [rows, columns])
        return self.node("MatMul", [x, weight], name)

    def attention(self, x, p):
        heads = {"q": self.heads, "k": self.kv, "v": self.kv}
        qkv = [self.product(x, p + name, self.hidden, n * self.head) for name, n in heads.items()]
        caches = ["", ""] if self.prompts else [p + "past_k", p + "past_v"]
        self.node("GroupQueryAttention", [*qkv, *caches, "lengths", "total"], p + "attention", [p + "present_k", p + "present_v"],
                  num_heads=self.heads, kv_num_heads=self.kv)
        return self.product(p + "attention", p + "o", self.heads * self.head, self.hidden)

    def gated(self, x, p):
        gate, up = self.product(x, p + "gate", self.hidden, self.inner), self.product(x, p + "up", self.hidden, self.inner)
        silu = self.node("Mul", [gate, self.node("Sigmoid", [gate], p + "sigmoid")], p + "silu")
        return self.product(self.node("Mul", [silu, up], p + "inner"), p + "down", self.inner, self.hidden)

    def mixture(self, x, p):
        rows = self.node("Reshape", [x, self.constant(p + "rows", [-1, self.hidden])], p + "tokens")
        router = self.node("MatMul", [rows, self.weight(p + "router.weight", [self.hidden, self.experts])], p + "router")
        w1, w3 = (self.weight(p + w, [self.experts, self.inner, self.hidden]) for w in ("w1", "w3"))
        w2 = self.weight(p + "w2", [self.experts, self.hidden, self.inner])
        y = self.node("MoE", [rows, router, w1, "", w2, "", w3], p + "moe", k=2, activation_type="silu", normalize_routing_weights=1)
        return self.node("Reshape", [y, self.constant(p + "shape", [-1, 1 if not self.prompts else 0, self.hidden])], p + "joined")

    def caches(self, word, tokens):
        dims = ["batch", self.kv, tokens, self.head]
        return [helper.make_tensor_value_info("layer%d.%s_%s" % (i, word, kv), HALF, dims) for i in range(self.layers) for kv in "kv"]

    def write(self, path):
        info, length = helper.make_tensor_value_info, "seq" if self.prompts else 1
        x = self.node("Gather", [self.weight("embedding", [self.vocabulary, self.hidden]), "ids"], "embedded", axis=0)
        for i in range(self.layers):
            p = "layer%d." % i
            x = self.node("Add", [x, self.attention(self.norm(x, p + "norm"), p)], p + "sum")
            n = self.norm(x, p + "norm2")
            x = self.node("Add", [x, self.mixture(n, p) if self.experts else self.gated(n, p)], p + "out")
        x = self.norm(x, "norm")
        if self.prompts:
            x = self.node("Slice", [x, self.constant("from", [-1]), self.constant("to", [2**31 - 1]), self.constant("axis", [1])], "last")
        self.node("MatMul", [x, self.weight("logits.weight", [self.hidden, self.vocabulary])], "logits")
        inputs = [info("ids", TensorProto.INT64, ["batch", length])]
        inputs += [info("lengths", TensorProto.INT32, ["batch"]), info("total", TensorProto.INT32, [1])]
        outputs = [info("logits", HALF, ["batch", 1, self.vocabulary])]
        if not self.prompts:
            inputs += self.caches("past", "past")
        outputs += self.caches("present", "seq" if self.prompts else "past")
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def main():
    if not 2 <= len(sys.argv) <= 4 or sys.argv[1] not in SIZES or sys.argv[2:3] not in ([], ["float16"], ["int4"], ["float8"]):
        sys.exit(__doc__)
    kind, layers = (sys.argv[2:3] or ["float16"])[0], int((sys.argv[3:4] or [0])[0])
    for what in ("tokens", "prompts"):
        Decoder(sys.argv[1], kind, layers, what == "prompts").write("-".join([*sys.argv[1:3], what]) + ".onnx")


if __name__ == "__main__":
    main()
