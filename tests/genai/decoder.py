# SPDX-License-Identifier: Apache-2.0
"""Writes small decoders with random weights as onnxruntime-genai's builder does, for tests without torch.

    decoder.write(folder, heads=4, kv_heads=1, form="norm", bits=4)

form: how queries, keys and values reach the attention.
    packed    one projection, one input
    separate  three projections; separate-norm: and a norm of each head of queries and keys
    norm      one projection, a Split, and a norm of each head of queries and keys
    concat    attention of plain operators. Caches grow by Concat, and no input or output has a name that exporters use.
mlp: layers have a feed-forward block of mlp times the hidden size. norms: a norm before each block and before the logits, without
which values overflow after some layers. bits 4: projections have 4-bit weights in blocks (MatMulNBits). window: layers with an even
number have a cache of that length. cache_bits 8: 8-bit caches with a scale for each element of a head. last: logits of the last token
alone, as the builder's option prune_lm_head writes them."""
import json
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HIDDEN, HEAD, LAYERS, VOCABULARY, CONTEXT, BLOCK = 64, 16, 2, 256, 256, 32


class Builder:
    def __init__(self, heads, kv_heads, form, bits, window, mlp=0, cache_bits=32, norms=False, last=False, seed=5):
        self.mlp, self.cache_bits, self.norms, self.last = mlp, cache_bits, norms, last
        self.heads, self.kv_heads, self.form, self.bits, self.window = heads, kv_heads, form, bits, window
        self.rng = np.random.default_rng(seed)
        self.inits, self.nodes = [], []

    def constant(self, name, array):
        self.inits.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op, ins, outs, **attributes):
        self.nodes.append(helper.make_node(op, ins, outs, name=outs[0] + "/node", **attributes))
        return outs[0]

    def project(self, x, name, rows, columns):
        """x times random weights [rows, columns]."""
        w = (self.rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype("f4")
        if self.bits != 4:
            return self.node("MatMul", [x, self.constant(name + ".weight", w)], [name])
        blocks = w.T.reshape(columns, rows // BLOCK, BLOCK)
        scale = np.abs(blocks).max(axis=2) / 7
        codes = np.clip(np.round(blocks / scale[..., None]) + 8, 0, 15).astype("u1")
        self.constant(name + ".weight", codes[..., ::2] | codes[..., 1::2] << 4)
        self.constant(name + ".scales", scale.astype("f4"))
        return self.node("MatMulNBits", [x, name + ".weight", name + ".scales"], [name], domain="com.microsoft", K=rows, N=columns, bits=4,
                         block_size=BLOCK, accuracy_level=4)

    def norm(self, x, name, heads):
        """A norm of each head, as the builder writes it: the heads of all tokens become rows."""
        weight = self.constant(name + ".weight", (1 + 0.1 * self.rng.standard_normal(HEAD)).astype("f4"))
        apart = self.node("Reshape", [x, self.constant(name + ".apart", np.array([0, -1, HEAD]))], [name + ".heads"])
        scaled = self.node("SimplifiedLayerNormalization", [apart, weight], [name + ".scaled"], axis=-1, epsilon=1e-6, stash_type=1)
        return self.node("Reshape", [scaled, self.constant(name + ".together", np.array([0, -1, heads * HEAD]))], [name])

    def attended(self, x, k, lengths, total):
        q, kv = self.heads * HEAD, self.kv_heads * HEAD
        ins = ["", "", ""]
        if self.form.startswith("separate"):
            ins = [self.project(x, "%s_proj%d" % (which, k), HIDDEN, size) for which, size in (("q", q), ("k", kv), ("v", kv))]
        else:
            ins[0] = self.project(x, "qkv%d" % k, HIDDEN, q + 2 * kv)
        if self.form == "norm":
            parts = ["%s%d" % (which, k) for which in "qkv"]
            self.node("Split", [ins[0], self.constant("sizes%d" % k, np.array([q, kv, kv]))], parts, axis=-1)
            ins = parts
        if self.form.endswith("norm"):
            ins = [self.norm(ins[0], "q_norm%d" % k, self.heads), self.norm(ins[1], "k_norm%d" % k, self.kv_heads), ins[2]]
        ins += ["past_key_values.%d.%s" % (k, which) for which in ("key", "value")] + [lengths, total, "cos", "sin"]
        outs = ["attended%d" % k, "present.%d.key" % k, "present.%d.value" % k]
        attributes = dict(num_heads=self.heads, kv_num_heads=self.kv_heads, do_rotary=1)
        if self.windowed(k):
            attributes.update(local_window_size=self.window, sliding_window_cache=1)
        if self.cache_bits == 8:
            ins += [""] * 3 + [
                self.constant("%s_scale%d" % (which, k),
                              self.rng.uniform(0.02, 0.05, self.kv_heads * HEAD).astype("f4")) for which in "kv"
            ]
            attributes.update(kv_cache_bit_width=8, k_quant_type="PER_CHANNEL", v_quant_type="PER_CHANNEL")
        return self.node("GroupQueryAttention", ins, outs, domain="com.microsoft", **attributes)

    def causal_bias(self):
        """[tokens, length]: 0 where a token may see a key, else a large negative number."""
        for name, array in (("zero", np.array(0)), ("unit", np.array(1)), ("two", np.array(2)), ("column", np.array([1])),
                            ("group", np.array([2])), ("visible", np.zeros(1, "f4")), ("masked", np.full(1, -1e4, "f4"))):
            self.constant(name, array)
        count, past = (self.node("Gather", [self.node("Shape", [port], [port + ".shape"]), axis], [port + ".length"])
                       for port, axis in (("ids", "unit"), ("in.0.key", "two")))
        total = self.node("Add", [count, past], ["end"])
        rows = self.node("Unsqueeze", [self.node("Range", [past, total, "unit"], ["rows"]), "column"], ["rows_down"])
        allowed = self.node("LessOrEqual", [self.node("Range", ["zero", total, "unit"], ["columns"]), rows], ["allowed"])
        return self.node("Where", [allowed, "visible", "masked"], ["bias"])

    def attended_by_concat(self, x, k, bias):
        kv, groups = self.kv_heads, self.heads // self.kv_heads
        if k == 0:
            for name, sizes in (("q_sizes", [0, 0, kv, groups, HEAD]), ("kv_sizes", [0, 0, kv,
                                                                                     HEAD]), ("hidden_size", [0, 0, self.heads * HEAD])):
                self.constant(name, np.array(sizes))
            self.constant("scale", np.array([HEAD**-0.5], "f4"))
        parts = {}
        for which, heads, order in (("query", self.heads, [0, 2, 3, 1, 4]), ("key", kv, [0, 2, 1, 3]), ("value", kv, [0, 2, 1, 3])):
            name = "%s%d" % (which, k)
            apart = self.node("Reshape", [self.project(x, name, HIDDEN, heads * HEAD), "q_sizes" if which == "query" else "kv_sizes"],
                              [name + ".heads"])
            parts[which] = self.node("Transpose", [apart], [name + ".rows"], perm=order)
        for which in ("key", "value"):
            all_ = self.node("Concat", ["in.%d.%s" % (k, which), parts[which]], ["out.%d.%s" % (k, which)], axis=2)
            parts[which] = self.node("Unsqueeze", [all_, "group"], ["%s%d.group" % (which, k)])
        keys = self.node("Transpose", [parts["key"]], ["keys%d" % k], perm=[0, 1, 2, 4, 3])
        scores = self.node("Mul", [self.node("MatMul", [parts["query"], keys], ["products%d" % k]), "scale"], ["scores%d" % k])
        weights = self.node("Softmax", [self.node("Add", [scores, bias], ["biased%d" % k])], ["weights%d" % k], axis=-1)
        mixed = self.node("MatMul", [weights, parts["value"]], ["mixed%d" % k])
        return self.node("Reshape", [self.node("Transpose", [mixed], ["joined%d" % k], perm=[0, 3, 1, 2, 4]), "hidden_size"],
                         ["attended%d" % k])

    def feed_forward(self, x, k):
        gate, up = (self.project(x, "%s%d" % (which, k), HIDDEN, self.mlp * HIDDEN) for which in ("gate", "up"))
        open_gate = self.node("Mul", [gate, self.node("Sigmoid", [gate], ["sigmoid%d" % k])], ["silu%d" % k])
        return self.project(self.node("Mul", [open_gate, up], ["gated%d" % k]), "down%d" % k, self.mlp * HIDDEN, HIDDEN)

    def normed(self, hidden, block, name):
        """Returns hidden + block and its norm. block None: hidden is the sum already."""
        if not self.norms:
            added = self.node("Add", [hidden, block], [name]) if block else hidden
            return added, added
        weight = self.constant(name + "_norm.weight", np.ones(HIDDEN, "f4"))
        if not block:
            return hidden, self.node("SimplifiedLayerNormalization", [hidden, weight], [name + "_norm"], axis=-1, epsilon=1e-6,
                                     stash_type=1)
        self.node("SkipSimplifiedLayerNormalization", [hidden, block, weight], [name + "_norm", "", "", name], domain="com.microsoft",
                  epsilon=1e-6)
        return name, name + "_norm"

    def windowed(self, k):
        return self.window and k % 2 == 0

    def ports(self):
        value = helper.make_tensor_value_info
        cache_type = TensorProto.INT8 if self.cache_bits == 8 else TensorProto.FLOAT
        concat = self.form == "concat"
        inputs = [value("ids" if concat else "input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])]
        inputs += [] if concat else [value("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"])]
        outputs = [value("logits", TensorProto.FLOAT, ["batch_size", 1 if self.last else "sequence_length", VOCABULARY])]
        for k in range(LAYERS):
            length = "sliding" if self.windowed(k) else "sequence"
            for which in ("key", "value"):
                for side, name, before in ((inputs, "in" if concat else "past_key_values", "past"),
                                           (outputs, "out" if concat else "present", "total")):
                    shape = ["batch_size", self.kv_heads, "%s_%s_length" % (before, length), "kv_cache_dim"]
                    side.append(value("%s.%d.%s" % (name, k, which), cache_type, shape))
        return inputs, outputs

    def mask_lengths(self):
        """Returns the number of tokens before the new ones of each sequence, and the total length, as GroupQueryAttention needs them."""
        for name, value in (("one", np.array([1])), ("axis", np.array(1))):
            self.constant(name, value)
        less = self.node("Sub", [self.node("ReduceSum", ["attention_mask", "one"], ["counted"], keepdims=0), "one"], ["less"])
        lengths = self.node("Cast", [less], ["lengths"], to=TensorProto.INT32)
        picked = self.node("Gather", [self.node("Shape", ["attention_mask"], ["sizes"]), "axis"], ["picked"])
        total = self.node("Cast", [picked], ["total"], to=TensorProto.INT32)
        angles = np.arange(CONTEXT)[:, None] / 10 ** np.arange(HEAD // 2)[None]
        self.constant("cos", np.cos(angles).astype("f4"))
        self.constant("sin", np.sin(angles).astype("f4"))
        return lengths, total

    def model(self):
        concat = self.form == "concat"
        about = (self.causal_bias(),) if concat else self.mask_lengths()
        attend = self.attended_by_concat if concat else self.attended
        embedding = self.constant("embedding", self.rng.standard_normal((VOCABULARY, HIDDEN)).astype("f4"))
        hidden = self.node("Gather", [embedding, "ids" if concat else "input_ids"], ["embedded"])
        hidden, x = self.normed(hidden, None, "first")
        for k in range(LAYERS):
            out = self.project(attend(x, k, *about), "out%d" % k, self.heads * HEAD, HIDDEN)
            hidden, x = self.normed(hidden, out, "hidden%d" % k)
            if self.mlp:
                hidden, x = self.normed(hidden, self.feed_forward(x, k), "added%d" % k)
        if self.last:
            row = self.node("Gather", [x, self.constant("last", np.array(-1))], ["last_row"], axis=1)
            x = self.node("Unsqueeze", [row, self.constant("last_axis", np.array([1]))], ["last_rows"])
        self.project(x, "logits", HIDDEN, VOCABULARY)
        inputs, outputs = self.ports()
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.inits)
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)])


def config(heads, kv_heads, window):
    decoder = {"session_options": {"provider_options": []}, "filename": "model.onnx", "head_size": HEAD, "hidden_size": HIDDEN,
               "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask",
                          "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"},
               "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
               "num_attention_heads": heads, "num_hidden_layers": LAYERS, "num_key_value_heads": kv_heads}
    if window:
        decoder["sliding_window"] = {"window_size": window, "slide_key_value_cache": False, "slide_inputs": False,
                                     "layers": list(range(0, LAYERS, 2)), "cache_slack": 0}
    return {"model": {"bos_token_id": 1, "context_length": CONTEXT, "eos_token_id": VOCABULARY - 1, "pad_token_id": 0, "type": "llama",
                      "vocab_size": VOCABULARY, "decoder": decoder},
            "search": {"do_sample": False, "max_length": CONTEXT, "past_present_share_buffer": True}}


def write(folder, heads=4, kv_heads=2, form="packed", bits=32, window=0, mlp=0, cache_bits=32, norms=False, last=False):
    os.makedirs(folder)
    onnx.save(Builder(heads, kv_heads, form, bits, window, mlp, cache_bits, norms, last).model(), folder + "/model.onnx")
    for name, text in (("genai_config.json", json.dumps(config(heads, kv_heads, window))), ("tokenizer_config.json", "{}")):
        with open(folder + "/" + name, "w") as f:
            f.write(text)
    return folder
