# SPDX-License-Identifier: Apache-2.0
"""Models for predict and session: nets.py NAME FOLDER writes FOLDER/model.onnx. Weights are random, sizes are fixed (blocks: open).

convolutions    residual blocks of 3 x 3 and 1 x 1 convolutions, as in ResNet-50, 112 x 112
depthwise       inverted residuals with convolutions of single channels, as in MobileNet, 112 x 112
decode          one token of a decoder of 4 layers with a cache of 1,024: GroupQueryAttention, weights of 4 bits
decode-float16  the same with float16 activations, for GPUs
wide-blocks     8 transformer blocks of width 512, 200 nodes, 100 MB
narrow-blocks   40 transformer blocks of width 256, 1,000 nodes, 126 MB"""
import os, sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(3)


class Net:
    def __init__(self, kind="f4"):
        self.kind, self.nodes, self.inits, self.inputs, self.n = kind, [], [], [], 0
        self.type = TensorProto.FLOAT16 if kind == "f2" else TensorProto.FLOAT

    def input(self, name, *shape):
        self.inputs.append(helper.make_tensor_value_info(name, self.type, shape))
        return name

    def constant(self, array):
        self.n += 1
        self.inits.append(numpy_helper.from_array(array, "w%d" % self.n))
        return "w%d" % self.n

    def weight(self, *shape):
        return self.constant((rng.standard_normal(shape, "f") * 0.02).astype(self.kind))

    def node(self, op, inputs, outputs=1, domain="", **attributes):
        self.n += 1
        names = ["%s_%d_%d" % (op, self.n, i) for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name="%s_%d" % (op, self.n), domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def save(self, folder, outputs):
        outputs = [helper.make_tensor_value_info(name, self.type, shape) for name, shape in outputs]
        graph = helper.make_graph(self.nodes, "g", self.inputs, outputs, self.inits)
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = onnx.shape_inference.infer_shapes(helper.make_model(graph, ir_version=10, opset_imports=domains))
        os.makedirs(folder, exist_ok=True)
        onnx.save(model, folder + "/model.onnx")


def conv(net, x, inside, out, side, stride=1, group=1):
    pads = [side // 2] * 4
    return net.node("Conv",
                    [x, net.weight(out, inside // group, side, side), net.weight(out)], pads=pads, strides=[stride] * 2, group=group)


def convolutions(folder):
    net = Net()
    x = net.node("Relu", [conv(net, net.input("x", 1, 3, 112, 112), 3, 64, 7, 2)])
    x, width = net.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for out, stride in ((256, 1), (256, 1), (512, 2), (512, 1), (1024, 2), (1024, 1), (2048, 2), (2048, 1)):
        y = net.node("Relu", [conv(net, x, width, out // 4, 1)])
        y = conv(net, net.node("Relu", [conv(net, y, out // 4, out // 4, 3, stride)]), out // 4, out, 1)
        short = x if width == out else conv(net, x, width, out, 1, stride)
        x, width = net.node("Relu", [net.node("Add", [y, short])]), out
    flat = net.node("Flatten", [net.node("GlobalAveragePool", [x])])
    net.save(folder, [(net.node("Gemm", [flat, net.weight(width, 1000), net.weight(1000)]), None)])


def depthwise(folder):
    net = Net()
    x, width = net.node("Relu", [conv(net, net.input("x", 4, 3, 112, 112), 3, 32, 3, 2)]), 32
    for out, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        wide = 6 * width
        y = net.node("Relu", [conv(net, x, width, wide, 1)])
        y = conv(net, net.node("Relu", [conv(net, y, wide, wide, 3, stride, wide)]), wide, out, 1)
        x, width = net.node("Add", [x, y]) if width == out and stride == 1 else y, out
    flat = net.node("Flatten", [net.node("GlobalAveragePool", [x])])
    net.save(folder, [(net.node("Gemm", [flat, net.weight(width, 1000), net.weight(1000)]), None)])


def packed(net, x, inside, out):
    """A product with weights of 4 bits in blocks of 32."""
    words = net.constant(rng.integers(0, 256, (out, inside // 32, 16)).astype("u1"))
    scales = net.constant((rng.random(out * inside // 32, "f") * 0.002).astype(net.kind))
    return net.node("MatMulNBits", [x, words, scales], domain="com.microsoft", K=inside, N=out, bits=4, block_size=32)


def decode(folder, kind="f4", hidden=2048, heads=32, kv=8, head=64, layers=4, past=1024, vocabulary=16384):
    net = Net(kind)
    x, lengths, total = net.input("x", 1, 1, hidden), net.constant(np.array([past], "i4")), net.constant(np.array(past + 1, "i4"))
    angles = np.arange(past + 1)[:, None] / 10 ** np.arange(head // 2)[None]
    cos, sin = net.constant(np.cos(angles).astype(kind)), net.constant(np.sin(angles).astype(kind))
    presents, width = [], (heads + 2 * kv) * head
    for k in range(layers):
        caches = [net.input("past.%d.%s" % (k, which), 1, kv, past, head) for which in ("key", "value")]
        norm = net.node("LayerNormalization", [x, net.constant(np.ones(hidden, kind))])
        attended, *present = net.node("GroupQueryAttention", [packed(net, norm, hidden, width), "", "", *caches, lengths, total, cos, sin],
                                      3, "com.microsoft", num_heads=heads, kv_num_heads=kv, do_rotary=1)
        presents += present
        x = net.node("Add", [x, packed(net, attended, heads * head, hidden)])
        norm = net.node("LayerNormalization", [x, net.constant(np.ones(hidden, kind))])
        gate = packed(net, norm, hidden, 4 * hidden)
        gate = net.node("Mul", [gate, net.node("Sigmoid", [gate])])
        x = net.node("Add", [x, packed(net, net.node("Mul", [gate, packed(net, norm, hidden, 4 * hidden)]), 4 * hidden, hidden)])
    net.save(folder, [(packed(net, x, hidden, vocabulary), [1, 1, vocabulary]), *[(p, [1, kv, past + 1, head]) for p in presents]])


def blocks(folder, layers, hidden, head=32):
    net = Net()
    x, heads = net.input("x", "batch", "seq", hidden), net.constant(np.array([0, 0, hidden // head, head]))
    for _ in range(layers):
        norm = net.node("LayerNormalization", [x, net.constant(np.ones(hidden, "f"))])
        q, k, v = (net.node("Reshape", [net.node("MatMul", [norm, net.weight(hidden, hidden)]), heads]) for _ in range(3))
        q, k, v = (net.node("Transpose", [t], perm=[0, 2, *last]) for t, last in ((q, (1, 3)), (k, (3, 1)), (v, (1, 3))))
        scores = net.node("Mul", [net.node("MatMul", [q, k]), net.constant(np.float32(head**-0.5))])
        mixed = net.node("Transpose", [net.node("MatMul", [net.node("Softmax", [scores]), v])], perm=[0, 2, 1, 3])
        mixed = net.node("Reshape", [mixed, net.constant(np.array([0, 0, hidden]))])
        x = net.node("Add", [x, net.node("MatMul", [mixed, net.weight(hidden, hidden)])])
        norm = net.node("LayerNormalization", [x, net.constant(np.ones(hidden, "f"))])
        wide = net.node("Relu", [net.node("Add", [net.node("MatMul", [norm, net.weight(hidden, 4 * hidden)]), net.weight(4 * hidden)])])
        x = net.node("Add", [x, net.node("Add", [net.node("MatMul", [wide, net.weight(4 * hidden, hidden)]), net.weight(hidden)])])
    net.save(folder, [(x, ["batch", "seq", hidden])])


MAKERS = {"convolutions": convolutions, "depthwise": depthwise, "decode": decode, "decode-float16": lambda folder: decode(folder, "f2"),
          "wide-blocks": lambda folder: blocks(folder, 8, 512), "narrow-blocks": lambda folder: blocks(folder, 40, 256)}
if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in MAKERS:
        sys.exit(__doc__)
    MAKERS[sys.argv[1]](sys.argv[2])
