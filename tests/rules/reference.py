# SPDX-License-Identifier: Apache-2.0
"""Reference implementations in numpy, from the definitions, of operators that neither ONNX Runtime (on the CPU) nor onnx's reference
supports."""
import numpy as np
from onnx import helper

sigmoid = lambda x: 1 / (1 + np.exp(-x))


def group_norm(x, gamma, beta, skip=None, bias=None, groups=1, activation=0, channels_last=1, epsilon=1e-5):
    total = x if skip is None else x + skip
    total = total if bias is None else total + bias
    y = total if channels_last else np.moveaxis(total, 1, -1)
    n, c = y.shape[0], y.shape[-1]
    g = y.reshape(n, -1, groups, c // groups)
    mean, var = g.mean((1, 3), keepdims=True), g.var((1, 3), keepdims=True)
    y = ((g - mean) / np.sqrt(var + epsilon)).reshape(y.shape) * gamma + beta
    y = y * sigmoid(y) if activation else y
    y = y if channels_last else np.moveaxis(y, -1, 1)
    return [y.astype(np.float32)] if skip is None else [y.astype(np.float32), total.astype(np.float32)]


def gelu(x):
    from math import erf
    return x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2


def bias_split_gelu(x, bias):
    left, right = np.split(x + bias, 2, -1)
    return [(left * gelu(right)).astype(np.float32)]


def adam(rate, step, *tensors, alpha=0.9, beta=0.999, epsilon=1e-6, norm_coefficient=0.0, norm_coefficient_post=0.0):
    n, results = len(tensors) // 4, []
    for x, g, v, h in zip(*(tensors[k * n:(k + 1) * n] for k in range(4))):
        g = g + norm_coefficient * x
        v, h = alpha * v + (1 - alpha) * g, beta * h + (1 - beta) * g * g
        results.append([(1 - norm_coefficient_post) * (x - rate * v / (np.sqrt(h) + epsilon)), v, h])
    return [np.asarray(t, np.float32) for kind in zip(*results) for t in kind]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def head_rows(x, heads):
    """[rows, heads * size] -> [heads, rows, size]"""
    return x.reshape(x.shape[0], heads, -1).transpose(1, 0, 2)


def packed_multi_head(q, k, v, bias, offsets, starts, scores_bias=None, num_heads=1, scale=0.0):
    """The tokens of several sequences, concatenated; attention is computed within each sequence."""
    if q.ndim == 4:
        q, k, v = (q[:, :, i].reshape(q.shape[0], -1) for i in range(3))
    if bias is not None:
        q, k, v = q + bias[:q.shape[1]], k + bias[q.shape[1]:2 * q.shape[1]], v + bias[2 * q.shape[1]:]
    rows = []
    for i, (a, b) in enumerate(zip(starts, starts[1:])):
        x, y, z = (head_rows(t[a:b], num_heads) for t in (q, k, v))
        s = x @ y.transpose(0, 2, 1) * (scale or x.shape[-1] ** -0.5)
        s = s if scores_bias is None else s + scores_bias[i % len(scores_bias)][:, :b - a, :b - a]
        rows.append((softmax(s) @ z).transpose(1, 0, 2).reshape(b - a, -1))
    return [np.concatenate(rows).astype(np.float32)]


def packed_attention(x, weights, bias, offsets, starts, scores_bias=None, num_heads=1, **more):
    q, k, v = np.split(x @ weights + bias, 3, -1)
    return packed_multi_head(q, k, v, None, offsets, starts, scores_bias, num_heads)


def paged_attention(q, k, v, keys, values, starts, past, table, cos=None, sin=None, slots=None, sink=None, *more, num_heads=1,
                    kv_num_heads=1, **attributes):
    """New keys and values are stored in the blocks of the table; each query sees the tokens before it."""
    keys, values, block, size = keys.copy(), values.copy(), keys.shape[1], keys.shape[3]
    if k is None:
        q, k, v = np.split(q, [num_heads * size, (num_heads + kv_num_heads) * size], -1)
    place = lambda i, at: (table[i, at // block], at % block)
    rows = []
    for i, (a, b) in enumerate(zip(starts, starts[1:])):
        for t in range(a, b):
            at = past[i] + t - a
            keys[place(i, at)], values[place(i, at)] = k[t].reshape(kv_num_heads, -1), v[t].reshape(kv_num_heads, -1)
            seen = [np.stack([c[place(i, x)] for x in range(at + 1)], 1) for c in (keys, values)]
            y, z = (np.repeat(c, num_heads // kv_num_heads, 0) for c in seen)
            s = (q[t].reshape(num_heads, 1, size) @ y.transpose(0, 2, 1)) * size ** -0.5
            s = s if sink is None else np.concatenate([s, sink.reshape(-1, 1, 1)], 2)
            rows.append((softmax(s)[:, :, :at + 1] @ z).ravel())
    return [np.stack(rows).astype(np.float32), keys, values]


def sparse_attention(q, k, v, keys, values, rows, cols, total, lengths, cos=None, sin=None, num_heads=1, kv_num_heads=1,
                     sparse_block_size=1, scale=0.0, **attributes):
    """Causal attention over the key blocks that the head's layout has for the block of the query. Only for prompts."""
    b, t, each = q.shape[0], q.shape[1], num_heads // kv_num_heads
    keys, values, out = keys.copy(), values.copy(), np.zeros(q.shape, np.float32)
    for i in range(b):
        keys[i, :, :t], values[i, :, :t] = head_rows(k[i], kv_num_heads), head_rows(v[i], kv_num_heads)
        x, parts = head_rows(q[i], num_heads), []
        for h in range(num_heads):
            layout = h % len(rows)
            allowed = np.zeros((t, t), bool)
            for r in range(t):
                line = r // sparse_block_size
                for c in cols[layout][rows[layout][line]:rows[layout][line + 1]]:
                    allowed[r, c * sparse_block_size:(c + 1) * sparse_block_size] = True
            s = x[h] @ keys[i, h // each, :t].T * (scale or x.shape[-1] ** -0.5)
            s = np.where(allowed & np.tri(t, dtype=bool), s, -np.inf)
            parts.append(softmax(s) @ values[i, h // each, :t])
        out[i] = np.concatenate(parts, 1)
    return [out, keys, values]


def unpacked(b, scales, bits, k):
    """Weights [n, k] from [n, blocks, bytes], symmetric quantization."""
    parts = np.stack([(b >> shift) & (2 ** bits - 1) for shift in range(0, 8, bits)], -1).astype(np.float32) - 2 ** (bits - 1)
    return (parts.reshape(*b.shape[:2], -1) * scales[..., None]).reshape(b.shape[0], -1)[:, :k]


def normed(a, skip, scale, epsilon):
    total = a if skip is None else a + skip
    return total, total if scale is None else total / np.sqrt((total * total).mean(-1, keepdims=True) + epsilon) * scale


def nbits_mlp(a, skip, scale, gate, gate_scales, gate_bias, up, up_scales, up_bias=None, K=0, N=0, bits=4, epsilon=1e-5, **more):
    total, x = normed(a, skip, scale, epsilon)
    g, u = x @ unpacked(gate, gate_scales, bits, K).T, x @ unpacked(up, up_scales, bits, K).T
    g, u = g if gate_bias is None else g + gate_bias, u if up_bias is None else u + up_bias
    return [(g * sigmoid(g) * u).astype(np.float32), total]


def nbits_qkv(a, skip, scale, *rest, K=0, bits=4, epsilon=1e-5, **more):
    total, x = normed(a, skip, scale, epsilon)
    rest = list(rest) + [None] * (9 - len(rest))
    outs = [x @ unpacked(*rest[i:i + 2], bits, K).T + (0 if rest[i + 2] is None else rest[i + 2]) for i in (0, 3, 6)]
    return [y.astype(np.float32) for y in outs] + [total]


OPERATORS = {
    "MatMulNBitsMlp": nbits_mlp,
    "MatMulNBitsQkv": nbits_qkv,
    "GemmaRotaryEmbedding": lambda e, q, r, k, s: [(q * np.cos(e)[:, None] + r * np.sin(e)[:, None]).astype(np.float32),
                                                   (k * np.cos(e)[:, None] + s * np.sin(e)[:, None]).astype(np.float32)],
    "BiasSplitGelu": bias_split_gelu,
    "Adam": adam,
    "PackedMultiHeadAttention": packed_multi_head,
    "PackedAttention": packed_attention,
    "PagedAttention": paged_attention,
    "SparseAttention": sparse_attention,
    "SwiGLU": lambda a, b, alpha=1.0: [a * sigmoid(alpha * a) * b],
    "BiasAdd": lambda x, bias, skip: [x + bias + skip],
    "GroupNorm": group_norm,
    "SkipGroupNorm": group_norm,
}


class Session:
    def __init__(self, model):
        self.node, self.run_node = model.graph.node[0], OPERATORS[model.graph.node[0].op_type]
        self.attributes = {a.name: helper.get_attribute_value(a) for a in self.node.attribute}

    def run(self, _, inputs):
        results = self.run_node(*(inputs.get(name) for name in self.node.input), **self.attributes)
        return [y for y, name in zip(results, self.node.output) if name]


class BatchFirst:
    """Recurrent layers with layout 1: layout 0 between two transposes."""

    def __init__(self, model):
        import onnxruntime as ort
        changed = type(model).FromString(model.SerializeToString())
        self.node = changed.graph.node[0]
        kept = [a for a in self.node.attribute if a.name != "layout"]
        del self.node.attribute[:]
        self.node.attribute.extend(kept)
        self.session = ort.InferenceSession(changed.SerializeToString(), providers=["CPUExecutionProvider"])

    def run(self, _, inputs):
        states = set(list(self.node.input)[5:7]) | {self.node.input[0]}
        turned = {name: np.ascontiguousarray(v.swapaxes(0, 1)) if name in states else v for name, v in inputs.items()}
        outs = iter(self.session.run(None, turned))
        outs = [(i, next(outs)) for i, name in enumerate(self.node.output) if name]
        return [y.transpose(2, 0, 1, 3) if i == 0 else y.swapaxes(0, 1) for i, y in outs]


def session(model):
    node = model.graph.node[0]
    if node.op_type in ("LSTM", "GRU", "RNN") and any(a.name == "layout" and a.i for a in node.attribute):
        return BatchFirst(model)
    return Session(model) if node.op_type in OPERATORS else None
