# SPDX-License-Identifier: Apache-2.0
"""Models that many people know, at their real sizes, with random weights: known.py NAME FOLDER writes FOLDER/model.onnx and weights.bin.
With `graph` as the last argument, weights.bin is not written.

bert-base       12 layers of 768, 128 tokens, float32
resnet-50       224 x 224, normalizations folded into the convolutions, float32
vit-base        12 layers of 768, 224 x 224 in patches of 16, float32
llama-3.2-1b    a folder for onnxruntime-genai: 16 layers of 2048, weights of 4 bits in blocks of 32
llama-2-7b      the same: 32 layers of 4096
qwen3-0.6b      the same: 28 layers of 1024, heads with norms

Weights are filled in parallel with values that depend on nothing but their place, so equal models have equal bytes on every machine."""
import concurrent.futures, json, os, sys

import numpy as np
from onnx import TensorProto, helper

BLOCK = 32  # weights of 4 bits that share a scale
SMALL = 1 << 16  # bytes of a weight that is not large
PIECE = 1 << 24  # bytes that a thread fills at a time
TYPES = {"f4": TensorProto.FLOAT, "u1": TensorProto.UINT8, "i8": TensorProto.INT64, "i4": TensorProto.INT32}


class Net:
    """A graph whose weights are in one file. Without `stored` that file is not written: planning needs the sizes only."""
    stored = True

    def __init__(self):
        self.nodes, self.inits, self.inputs, self.outputs, self.fills, self.bytes, self.n = [], [], [], [], [], 0, 0

    def weight(self, *shape, kind="f4", scale=0.02):
        """Random weights: normal with this deviation, or (u1) bytes, or (scale < 0) positive numbers up to -scale."""
        self.n += 1
        t = TensorProto(name="w%d" % self.n, data_type=TYPES[kind], dims=shape, data_location=TensorProto.EXTERNAL)
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        for key, value in (("location", "weights.bin"), ("offset", self.bytes), ("length", size)):
            t.external_data.add(key=key, value=str(value))
        self.inits.append(t)
        self.fills += [(self.bytes + at, min(PIECE, size - at), kind, scale) for at in range(0, size, PIECE)]
        self.bytes += (size + 4095) // 4096 * 4096
        return t.name

    def constant(self, array):
        self.n += 1
        array = np.asarray(array)
        if not self.stored and array.nbytes > SMALL:
            return self.weight(*array.shape, kind=array.dtype.str[1:])
        self.inits.append(helper.make_tensor("c%d" % self.n, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, array.tobytes(),
                                             raw=True))
        return "c%d" % self.n

    def node(self, op, inputs, outputs=1, domain="", **attributes):
        self.n += 1
        names = ["%s_%d_%d" % (op, self.n, i) for i in range(outputs)] if isinstance(outputs, int) else outputs
        self.nodes.append(helper.make_node(op, inputs, names, name="%s_%d" % (op, self.n), domain=domain, **attributes))
        return names[0] if len(names) == 1 else names

    def input(self, name, kind, *shape):
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[kind], shape))
        return name

    def output(self, name, kind="f4", *shape):
        self.outputs.append(helper.make_tensor_value_info(name, TYPES[kind], shape))

    def save(self, folder):
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.inits)
        domains = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        os.makedirs(folder, exist_ok=True)
        if self.stored:
            self.store(folder + "/weights.bin")
        with open(folder + "/model.onnx", "wb") as file:
            file.write(helper.make_model(graph, ir_version=10, opset_imports=domains).SerializeToString())

    def store(self, path):
        with open(path, "wb") as file:
            file.truncate(self.bytes)
            with concurrent.futures.ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
                list(pool.map(lambda piece: fill(file, *piece), self.fills))  # raises the first error


def fill(file, at, size, kind, scale):
    rng = np.random.default_rng(at)
    if kind == "u1":
        data = rng.bytes(size)
    elif scale < 0:
        data = (rng.random(size // 4, dtype="f4") * np.float32(-scale)).tobytes()
    else:
        data = (rng.standard_normal(size // 4, dtype="f4") * np.float32(scale)).tobytes()
    os.pwrite(file.fileno(), data, at)


# ---- encoders and images ---------------------------------------------------------------------------


def linear(net, x, inside, out):
    return net.node("Add", [net.node("MatMul", [x, net.weight(inside, out)]), net.weight(out)])


def norm(net, x, width):
    return net.node("LayerNormalization", [x, net.constant(np.ones(width, "f4")), net.weight(width)], epsilon=1e-12)


def attention(net, x, tokens, width, heads):
    apart = net.constant(np.array([1, tokens, heads, width // heads]))
    q, k, v = (net.node("Transpose", [net.node("Reshape", [linear(net, x, width, width), apart])], perm=perm)
               for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    scores = net.node("Mul", [net.node("MatMul", [q, k]), net.constant(np.float32((width // heads)**-0.5))])
    mixed = net.node("Transpose", [net.node("MatMul", [net.node("Softmax", [scores], axis=-1), v])], perm=[0, 2, 1, 3])
    return linear(net, net.node("Reshape", [mixed, net.constant(np.array([1, tokens, width]))]), width, width)


def feed_forward(net, x, width):
    return linear(net, net.node("Gelu", [linear(net, x, width, 4 * width)]), 4 * width, width)


def bert_base(folder, tokens=128, width=768, layers=12, vocabulary=30522):
    net = Net()
    ids, kinds = (net.input(name, "i8", 1, tokens) for name in ("input_ids", "token_type_ids"))
    x = net.node("Add", [net.node("Gather", [net.weight(vocabulary, width), ids]), net.weight(tokens, width)])
    x = norm(net, net.node("Add", [x, net.node("Gather", [net.weight(2, width), kinds])]), width)
    for _ in range(layers):
        x = norm(net, net.node("Add", [x, attention(net, x, tokens, width, 12)]), width)
        x = norm(net, net.node("Add", [x, feed_forward(net, x, width)]), width)
    first = net.node("Gather", [x, net.constant(np.array(0))], axis=1)
    net.output(x, "f4", 1, tokens, width)
    net.output(net.node("Tanh", [net.node("Gemm", [first, net.weight(width, width), net.weight(width)])]), "f4", 1, width)
    net.save(folder)


def vit_base(folder, width=768, layers=12):
    net = Net()
    patches = net.node("Conv", [net.input("pixel_values", "f4", 1, 3, 224, 224), net.weight(width, 3, 16, 16), net.weight(width)],
                       kernel_shape=[16, 16], strides=[16, 16])
    flat = net.node("Transpose", [net.node("Reshape", [patches, net.constant(np.array([1, width, 196]))])], perm=[0, 2, 1])
    x = net.node("Add", [net.node("Concat", [net.weight(1, 1, width), flat], axis=1), net.weight(1, 197, width)])
    for _ in range(layers):
        x = net.node("Add", [x, attention(net, norm(net, x, width), 197, width, 12)])
        x = net.node("Add", [x, feed_forward(net, norm(net, x, width), width)])
    first = net.node("Gather", [norm(net, x, width), net.constant(np.array(0))], axis=1)
    net.output(net.node("Gemm", [first, net.weight(width, 1000), net.weight(1000)]), "f4", 1, 1000)
    net.save(folder)


def resnet_50(folder):
    net = Net()

    def conv(x, inside, out, side, stride=1):
        return net.node("Conv", [x, net.weight(out, inside, side, side), net.weight(out)], kernel_shape=[side, side],
                        pads=[side // 2] * 4, strides=[stride] * 2)

    x, width = net.node("Relu", [conv(net.input("pixel_values", "f4", 1, 3, 224, 224), 3, 64, 7, 2)]), 64
    x = net.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner, out = 64 << stage, 256 << stage
        for block in range(blocks):
            stride = 2 if stage and block == 0 else 1
            y = net.node("Relu", [conv(x, width, inner, 1)])
            y = conv(net.node("Relu", [conv(y, inner, inner, 3, stride)]), inner, out, 1)
            short = x if width == out else conv(x, width, out, 1, stride)
            x, width = net.node("Relu", [net.node("Add", [y, short])]), out
    flat = net.node("Flatten", [net.node("GlobalAveragePool", [x])])
    net.output(net.node("Gemm", [flat, net.weight(width, 1000), net.weight(1000)]), "f4", 1, 1000)
    net.save(folder)


# ---- decoders --------------------------------------------------------------------------------------


def packed(net, x, inside, out):
    words = net.weight(out, inside // BLOCK, BLOCK // 2, kind="u1")
    scales = net.weight(out * inside // BLOCK, scale=-0.3 / inside**0.5)
    return net.node("MatMulNBits", [x, words, scales], domain="com.microsoft", K=inside, N=out, bits=4, block_size=BLOCK, accuracy_level=4)


def rms(net, x, width):
    return net.node("SimplifiedLayerNormalization", [x, net.constant(np.ones(width, "f4"))], axis=-1, epsilon=1e-5, stash_type=1)


def head_norm(net, x, heads, head):
    """A norm of each head, as the builder of onnxruntime-genai writes it."""
    apart = net.node("Reshape", [x, net.constant(np.array([0, -1, head]))])
    return net.node("Reshape", [rms(net, apart, head), net.constant(np.array([0, -1, heads * head]))])


def decoder(folder, family, layers, width, heads, kv, head, inner, vocabulary, normed, context=2048):
    net = Net()
    ids = net.input("input_ids", "i8", "batch_size", "sequence_length")
    mask = net.input("attention_mask", "i8", "batch_size", "total_sequence_length")
    counted = net.node("ReduceSum", [mask, net.constant(np.array([1]))], keepdims=1)
    lengths = net.node("Cast", [net.node("Sub", [counted, net.constant(np.array([1]))])], to=TensorProto.INT32)
    total = net.node("Cast", [net.node("Gather", [net.node("Shape", [mask]), net.constant(np.array(1))])], to=TensorProto.INT32)
    angles = np.arange(context)[:, None] / 10000**(np.arange(head // 2) * 2 / head)[None]
    cos, sin = net.constant(np.cos(angles).astype("f4")), net.constant(np.sin(angles).astype("f4"))
    x = net.node("Gather", [net.weight(vocabulary, width, scale=1), ids])
    for k in range(layers):
        past = [net.input("past_key_values.%d.%s" % (k, which), "f4", "batch_size", kv, "past_sequence_length", head)
                for which in ("key", "value")]
        present = ["present.%d.%s" % (k, which) for which in ("key", "value")]
        n = rms(net, x, width)
        q, keys, values = (packed(net, n, width, size * head) for size in (heads, kv, kv))
        if normed:
            q, keys = head_norm(net, q, heads, head), head_norm(net, keys, kv, head)
        attended, *_ = net.node("GroupQueryAttention", [q, keys, values, *past, lengths, total, cos, sin], ["attended%d" % k, *present],
                                "com.microsoft", num_heads=heads, kv_num_heads=kv, do_rotary=1, scale=head**-0.5)
        for name in present:
            net.output(name, "f4", "batch_size", kv, "total_sequence_length", head)
        x = net.node("Add", [x, packed(net, attended, heads * head, width)])
        n = rms(net, x, width)
        gate, up = packed(net, n, width, inner), packed(net, n, width, inner)
        gate = net.node("Mul", [gate, net.node("Sigmoid", [gate])])
        x = net.node("Add", [x, packed(net, net.node("Mul", [gate, up]), inner, width)])
    logits = packed(net, rms(net, x, width), width, vocabulary)
    net.outputs.insert(0, helper.make_tensor_value_info("logits", TYPES["f4"], ["batch_size", "sequence_length", vocabulary]))
    net.node("Identity", [logits], ["logits"])
    net.save(folder)
    config = {
        "model": {
            "bos_token_id": 1, "context_length": context, "eos_token_id": vocabulary - 1, "pad_token_id": 0, "type": family,
            "vocab_size": vocabulary, "decoder": {
                "session_options": {"provider_options": []}, "filename": "model.onnx", "head_size": head, "hidden_size": width,
                "inputs": {
                    "input_ids": "input_ids", "attention_mask": "attention_mask", "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value"
                },
                "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
                "num_attention_heads": heads, "num_hidden_layers": layers, "num_key_value_heads": kv
            }
        },
        "search": {"do_sample": False, "max_length": context, "past_present_share_buffer": True},
    }
    for name, text in (("genai_config.json", json.dumps(config)), ("tokenizer_config.json", "{}")):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)


MAKERS = {
    "bert-base": bert_base, "resnet-50": resnet_50, "vit-base": vit_base,
    "llama-3.2-1b": lambda folder: decoder(folder, "llama", 16, 2048, 32, 8, 64, 8192, 128256, False),
    "llama-2-7b": lambda folder: decoder(folder, "llama", 32, 4096, 32, 32, 128, 11008, 32000, False),
    "qwen3-0.6b": lambda folder: decoder(folder, "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, True),
}
if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in MAKERS or sys.argv[3:] not in ([], ["graph"]):
        sys.exit(__doc__)
    Net.stored = len(sys.argv) == 3
    MAKERS[sys.argv[1]](sys.argv[2])
