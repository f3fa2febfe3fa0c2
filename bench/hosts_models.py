# SPDX-License-Identifier: Apache-2.0
"""Writes one random 4-bit decoder with the sizes of Qwen3-0.6B in the formats of onnxruntime-genai, distributed-llama and llama.cpp, for
bench/hosts.py. The weights of the formats differ (all are random), the sizes and the arithmetic are the same."""
import struct

import numpy as np

BLOCK = 32
F32, Q4_0 = 0, 2


class Shape:
    def __init__(self, layers=28, vocabulary=151936, hidden=1024, heads=16, kv_heads=8, head=128, mlp=3, context=512):
        self.layers, self.vocabulary, self.hidden, self.heads, self.kv_heads = layers, vocabulary, hidden, heads, kv_heads
        self.head, self.mlp, self.context = head, mlp, context

    def matrices(self):
        """(name in GGUF, rows, columns) of a layer's matrices; an input has `columns` elements."""
        q, kv, inner = self.heads * self.head, self.kv_heads * self.head, self.mlp * self.hidden
        return [("attn_q", q, self.hidden), ("attn_k", kv, self.hidden), ("attn_v", kv, self.hidden), ("attn_output", self.hidden, q),
                ("ffn_gate", inner, self.hidden), ("ffn_down", self.hidden, inner), ("ffn_up", inner, self.hidden)]

    def parameters(self):
        return self.layers * sum(rows * columns for _, rows, columns in self.matrices()) + 2 * self.vocabulary * self.hidden


class Random:
    """Fast random bytes: parts of one pool, each from another place."""

    def __init__(self):
        self.rng = np.random.default_rng(3)
        self.pool = np.frombuffer(self.rng.bytes(1 << 23), np.uint8)

    def bytes(self, n):
        pool = np.roll(self.pool, -int(self.rng.integers(1 << 23)))
        return np.resize(pool, n)

    def floats(self, n, scale=1.0):
        return ((self.bytes(n).astype(np.float32) - 127.5) * (scale / 74)).astype(np.float32)

    def q4_0(self, rows, columns):
        """Blocks of a 16-bit scale and 32 numbers of 4 bits, as distributed-llama and llama.cpp have them."""
        blocks = np.empty((rows * columns // BLOCK, 2 + BLOCK // 2), np.uint8)
        blocks[:, :2] = np.frombuffer(np.float16(0.2 / np.sqrt(columns)).tobytes(), np.uint8)
        blocks[:, 2:] = self.bytes(blocks[:, 2:].size).reshape(len(blocks), -1)
        return blocks.tobytes()


def write_onnx(folder, shape):
    """A folder of onnxruntime-genai. Projections are separate, as its builder writes them for Qwen3, and logits are those of the last token
    alone (its option prune_lm_head), as in the other programs. The random blocks replace the slow
    quantization of tests/genai/decoder.py."""
    import decoder
    for name, value in (("HIDDEN", shape.hidden), ("HEAD", shape.head), ("LAYERS", shape.layers), ("VOCABULARY", shape.vocabulary),
                        ("CONTEXT", shape.context)):
        setattr(decoder, name, value)
    random = Random()

    def project(self, x, name, rows, columns):
        scale = np.full((columns, rows // BLOCK), 0.2 / np.sqrt(rows), np.float32)
        self.constant(name + ".weight", random.bytes(rows * columns // 2).reshape(columns, rows // BLOCK, BLOCK // 2))
        self.constant(name + ".scales", scale)
        return self.node("MatMulNBits", [x, name + ".weight", name + ".scales"], [name], domain="com.microsoft", K=rows, N=columns, bits=4,
                         block_size=BLOCK, accuracy_level=4)

    decoder.Builder.project = project
    return decoder.write(folder, heads=shape.heads, kv_heads=shape.kv_heads, form="separate-norm", bits=4, mlp=shape.mlp, norms=True,
                         last=True)


def write_distributed_llama(model, tokenizer, shape):
    keys = {0: 0, 1: 0xABCD01, 2: shape.hidden, 3: shape.mlp * shape.hidden, 4: shape.layers, 5: shape.heads, 6: shape.kv_heads, 7: 0, 8: 0,
            9: shape.vocabulary, 10: shape.context, 11: 1, 12: 1000000, 13: 2, 19: shape.head, 20: 6}
    random = Random()
    order = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down", "ffn_up")
    matrices = {name: (rows, columns) for name, rows, columns in shape.matrices()}
    with open(model, "wb") as f:
        f.write(struct.pack("<ii", 0xA00ABCD, 8 + 8 * len(keys)) + b"".join(struct.pack("<ii", *pair) for pair in keys.items()))
        f.write(random.floats(shape.vocabulary * shape.hidden).tobytes())
        for _ in range(shape.layers):
            for name in order:
                f.write(random.q4_0(*matrices[name]))
            f.write(np.ones(2 * shape.head + 2 * shape.hidden, np.float32).tobytes())
        f.write(np.ones(shape.hidden, np.float32).tobytes())
        f.write(random.q4_0(shape.vocabulary, shape.hidden))
    # One token per letter, so that the number of tokens of a prompt is known; the last two are special.
    words = [b"%c" % (33 + i) if i < 94 else b"<%d>" % i for i in range(shape.vocabulary)]
    head = {1: shape.vocabulary, 0: 1, 2: max(map(len, words)), 3: shape.vocabulary - 2, 9: 1, 10: 1}
    with open(tokenizer, "wb") as f:
        f.write(struct.pack("<ii", 0x567124, 8 + 8 * len(head)) + b"".join(struct.pack("<ii", *pair) for pair in head.items()))
        f.write(struct.pack("<i", shape.vocabulary - 1))
        f.write(b"".join(struct.pack("<fI", 0.0, len(word)) + word for word in words))


def write_gguf(path, shape):
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()
    facts = [("general.architecture", "qwen3"), ("tokenizer.ggml.model", "no_vocab"), ("qwen3.vocab_size", shape.vocabulary),
             ("qwen3.context_length", shape.context), ("qwen3.embedding_length", shape.hidden), ("qwen3.block_count", shape.layers),
             ("qwen3.feed_forward_length", shape.mlp * shape.hidden), ("qwen3.attention.head_count", shape.heads),
             ("qwen3.attention.head_count_kv", shape.kv_heads), ("qwen3.attention.key_length", shape.head),
             ("qwen3.attention.value_length", shape.head), ("qwen3.attention.layer_norm_rms_epsilon", 1e-6),
             ("qwen3.rope.freq_base", 1e6)]
    random = Random()
    tensors = [("token_embd.weight", (shape.vocabulary, shape.hidden), Q4_0), ("output_norm.weight", (shape.hidden,), F32),
               ("output.weight", (shape.vocabulary, shape.hidden), Q4_0)]
    for k in range(shape.layers):
        tensors += [("blk.%d.%s.weight" % (k, name), (rows, columns), Q4_0) for name, rows, columns in shape.matrices()]
        tensors += [("blk.%d.%s.weight" % (k, name), (size,), F32)
                    for name, size in (("attn_norm", shape.hidden), ("ffn_norm", shape.hidden), ("attn_q_norm", shape.head),
                                       ("attn_k_norm", shape.head))]
    head, at = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts)), 0
    for key, value in facts:
        kind = {str: 8, int: 4, float: 6}[type(value)]
        head += text(key) + struct.pack("<I", kind) + (text(value) if kind == 8 else struct.pack("<I" if kind == 4 else "<f", value))
    sizes = [int(np.prod(dims)) * (4 if kind == F32 else 18 / BLOCK) for _, dims, kind in tensors]
    padded = [int(size + 31) // 32 * 32 for size in sizes]
    for (name, dims, kind), size in zip(tensors, padded):
        head += text(name) + struct.pack("<I%dQIQ" % len(dims), len(dims), *reversed(dims), kind, at)
        at += size
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        for (_, dims, kind), size in zip(tensors, padded):
            data = np.ones(dims, np.float32).tobytes() if kind == F32 else random.q4_0(*dims)
            f.write(data + bytes(size - len(data)))
