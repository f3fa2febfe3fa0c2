# SPDX-License-Identifier: Apache-2.0
"""Models for memory.py, each using memory for another reason: memory_nets.py NAME FOLDER writes FOLDER/model.onnx. Weights are random,
sizes are fixed."""
import sys

import numpy as np

from nets import MAKERS, Net, conv, rng


def products(folder, kind="f4", rows=64, width=1024, layers=6, wide=4):
    """MatMul and Gelu alternate: weights that the engine packs."""
    net = Net(kind)
    x = net.input("x", rows, width)
    for _ in range(layers):
        y = net.node("MatMul", [x, net.weight(width, wide * width)])
        y = net.node("Relu", [net.node("Add", [y, net.weight(wide * width)])])
        x = net.node("Add", [x, net.node("MatMul", [y, net.weight(wide * width, width)])])
    net.save(folder, [(x, [rows, width])])


def gemms(folder, transposed=1):
    """As torch exports Linear: Gemm with weights [out, in]."""
    net = Net()
    x = net.input("x", 64, 1024)
    for inside, out in ((1024, 4096), (4096, 4096), (4096, 1024)):
        shape = (out, inside) if transposed else (inside, out)
        x = net.node("Relu", [net.node("Gemm", [x, net.weight(*shape), net.weight(out)], transB=transposed)])
    net.save(folder, [(x, [64, 1024])])


def activations(folder):
    """Large activations, small weights."""
    net = Net()
    x = net.input("x", 8, 1024, 1024)
    for _ in range(4):
        y = net.node("Mul", [x, net.weight(1024)])
        z = net.node("Add", [net.node("Sigmoid", [y]), net.weight(1024)])
        x = net.node("Add", [x, net.node("Mul", [z, y])])
    net.save(folder, [(net.node("ReduceMean", [x], axes=[-1], keepdims=0), [8, 1024])])


def scores(folder, tokens=1024, heads=16, hidden=512):
    """Softmax over long rows: scores are larger than all weights."""
    net = Net()
    x, shape = net.input("x", 1, tokens, hidden), net.constant(np.array([1, tokens, heads, hidden // heads], "i8"))
    for _ in range(2):
        q, k, v = (net.node("Reshape", [net.node("MatMul", [x, net.weight(hidden, hidden)]), shape]) for _ in range(3))
        q, k, v = (net.node("Transpose", [t], perm=p) for t, p in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3])))
        y = net.node("MatMul", [net.node("Softmax", [net.node("MatMul", [q, k])], axis=-1), v])
        y = net.node("Reshape", [net.node("Transpose", [y], perm=[0, 2, 1, 3]), net.constant(np.array([1, tokens, hidden], "i8"))])
        x = net.node("Add", [x, net.node("MatMul", [y, net.weight(hidden, hidden)])])
    net.save(folder, [(x, [1, tokens, hidden])])


def rows_of(net, x, table, words):
    """The mean of many rows, so that all pages of the table are read, as after many tokens. The indices are inputs."""
    zero = net.node("Cast", [net.node("Mul", [net.node("ReduceMean", [x], keepdims=0), net.constant(np.float32(0))])], to=7)
    ids = net.node("Add", [net.constant(rng.integers(0, words, (1, 4096))), zero])
    return net.node("ReduceMean", [net.node("Gather", [table, ids])], axes=[1], keepdims=1)


def embedding(folder, words=50000, width=512):
    """A table that Gather and, transposed, the last product read."""
    net = Net()
    table = net.weight(words, width)
    x = net.input("x", 1, 32, width)
    x = net.node("Add", [rows_of(net, x, table, words), x])
    x = net.node("LayerNormalization", [x, net.constant(np.ones(width, "f"))])
    net.save(folder, [(net.node("MatMul", [x, net.node("Transpose", [table], perm=[1, 0])]), [1, 32, words])])


def table(folder, words=50000, width=512):
    """A table of which rows are read, and a separate last product."""
    net = Net()
    x = net.input("x", 1, 64, width)
    x = net.node("Add", [rows_of(net, x, net.weight(words, width), words), x])
    for _ in range(2):
        x = net.node("MatMul", [net.node("Relu", [net.node("MatMul", [x, net.weight(width, 4 * width)])]), net.weight(4 * width, width)])
    net.save(folder, [(x, [1, 64, width])])


def recurrent(folder, op="LSTM", size=512, gates=4):
    net = Net()
    x = net.input("x", 64, 4, size)
    for _ in range(3):
        y = net.node(op, [x, net.weight(1, gates * size, size),
                          net.weight(1, gates * size, size),
                          net.weight(1, 2 * gates * size)], hidden_size=size)
        x = net.node("Squeeze", [y, net.constant(np.array([1], "i8"))])
    net.save(folder, [(x, [64, 4, size])])


def vgg(folder):
    """Wide 3 x 3 convolutions, large activations, a large product at the end."""
    net = Net()
    x, width = net.input("x", 1, 3, 128, 128), 3
    for out in (64, 128, 256, 512):
        for _ in range(2):
            x, width = net.node("Relu", [conv(net, x, width, out, 3)]), out
        x = net.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = net.node("Relu", [net.node("Gemm", [net.node("Flatten", [x]), net.weight(512 * 64, 512), net.weight(512)])])
    net.save(folder, [(net.node("Gemm", [x, net.weight(512, 1000), net.weight(1000)]), [1, 1000])])


def groups(folder):
    """Convolutions in 32 groups, as in ResNeXt."""
    net = Net()
    x = net.node("Relu", [conv(net, net.input("x", 1, 64, 28, 28), 64, 512, 1)])
    for _ in range(6):
        y = net.node("Relu", [conv(net, x, 512, 1024, 1)])
        y = net.node("Relu", [conv(net, y, 1024, 1024, 3, 1, 32)])
        x = net.node("Relu", [net.node("Add", [x, conv(net, y, 1024, 512, 1)])])
    net.save(folder, [(net.node("GlobalAveragePool", [x]), [1, 512, 1, 1])])


def unet(folder):
    """U-Net: convolutions down, transposed ones up, with skip connections."""
    net = Net()
    x, kept, width = net.input("x", 1, 16, 128, 128), [], 16
    for out in (64, 128, 256):
        x = net.node("Relu", [conv(net, x, width, out, 3)])
        kept.append((x, out))
        x, width = net.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2]), out
    for short, out in reversed(kept):
        x = net.node("ConvTranspose", [x, net.weight(width, out, 2, 2), net.weight(out)], strides=[2, 2])
        x = net.node("Relu", [conv(net, net.node("Concat", [x, short], axis=1), 2 * out, out, 3)])
        width = out
    net.save(folder, [(conv(net, x, width, 8, 1), [1, 8, 128, 128])])


def lines(folder):
    """Convolutions of one axis, as for audio."""
    net = Net()
    x, width = net.input("x", 1, 80, 3000), 80
    for out, stride in ((512, 1), (512, 2), (512, 1), (512, 1)):
        x = net.node("Conv", [x, net.weight(out, width, 3), net.weight(out)], pads=[1, 1], strides=[stride])
        x, width = net.node("Relu", [x]), out
    net.save(folder, [(x, [1, 512, 1500])])


def volumes(folder):
    """Convolutions of three axes."""
    net = Net()
    x, width = net.input("x", 1, 4, 24, 48, 48), 4
    for out in (32, 64, 64):
        x = net.node("Relu", [net.node("Conv", [x, net.weight(out, width, 3, 3, 3), net.weight(out)], pads=[1] * 6)])
        width = out
    net.save(folder, [(x, [1, 64, 24, 48, 48])])


def normed(folder):
    """Convolutions with BatchNormalization, which the engine folds into them."""
    net = Net()
    x, width = net.input("x", 1, 64, 56, 56), 64
    for out in (256, 512, 512, 512):
        y = net.node("Conv", [x, net.weight(out, width, 3, 3)], pads=[1] * 4)
        ones = [net.constant(np.ones(out, "f")) for _ in range(4)]
        x, width = net.node("Relu", [net.node("BatchNormalization", [y, *ones])]), out
    net.save(folder, [(x, [1, 512, 56, 56])])


def integers(folder, width=1024):
    """8-bit products with scales that are computed at run time."""
    net = Net()
    x = net.input("x", 64, width)
    for inside, out in ((width, 4 * width), (4 * width, width)) * 3:
        words = net.constant(rng.integers(-127, 127, (inside, out)).astype("i1"))
        a, scale, zero = net.node("DynamicQuantizeLinear", [x], 3)
        y = net.node("Cast", [net.node("MatMulInteger", [a, words, zero])], to=1)
        x = net.node("Relu", [net.node("Mul", [y, net.node("Mul", [scale, net.constant(np.float32(0.0001))])])])
    net.save(folder, [(x, [64, width])])


def scaled(net, array):
    return net.constant(array), net.constant(np.float32(0.01)), net.constant(np.int8(0))


def quantized_conv(folder):
    """8-bit QLinearConv."""
    net = Net()
    scale, zero = net.constant(np.float32(0.02)), net.constant(np.uint8(128))
    x, width = net.node("QuantizeLinear", [net.input("x", 1, 64, 56, 56), scale, zero]), 64
    for out in (256, 512, 512, 512):
        words = net.constant(rng.integers(-127, 127, (out, width, 3, 3)).astype("i1"))
        x = net.node("QLinearConv",
                     [x, scale, zero, words, net.constant(np.float32(0.001)),
                      net.constant(np.int8(0)), scale, zero], pads=[1] * 4)
        width = out
    net.save(folder, [(net.node("DequantizeLinear", [x, scale, zero]), [1, 512, 56, 56])])


def quantized_pairs(folder, width=1024):
    """Products between QuantizeLinear and DequantizeLinear, which the engine converts to 8-bit products."""
    net = Net()
    scale, zero = net.constant(np.float32(0.02)), net.constant(np.uint8(128))
    x = net.input("x", 64, width)
    for inside, out in ((width, 4 * width), (4 * width, width)) * 2:
        words = net.constant(rng.integers(-127, 127, (inside, out)).astype("i1"))
        w = net.node("DequantizeLinear", [words, net.constant(np.float32(0.001)), net.constant(np.int8(0))])
        a = net.node("DequantizeLinear", [net.node("QuantizeLinear", [x, scale, zero]), scale, zero])
        x = net.node("MatMul", [a, w])
    y = net.node("DequantizeLinear", [net.node("QuantizeLinear", [x, scale, zero]), scale, zero])
    net.save(folder, [(y, [64, width])])


MEMORY_MAKERS = {
    **MAKERS,
    "products": products,
    "half": lambda folder: products(folder, "f2"),
    "gemms": gemms,
    "gemms-plain": lambda folder: gemms(folder, 0),
    "activations": activations,
    "scores": scores,
    "embedding": embedding,
    "table": table,
    "lstm": recurrent,
    "gru": lambda folder: recurrent(folder, "GRU", 512, 3),
    "vgg": vgg,
    "groups": groups,
    "unet": unet,
    "lines": lines,
    "volumes": volumes,
    "normed": normed,
    "integers": integers,
    "quantized-conv": quantized_conv,
    "quantized-pairs": quantized_pairs,
}
if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in MEMORY_MAKERS:
        sys.exit(__doc__)
    MEMORY_MAKERS[sys.argv[1]](sys.argv[2])
