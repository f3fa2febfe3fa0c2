# SPDX-License-Identifier: Apache-2.0
"""Compares the number of operations of nodes with an independent count. The count steps through each scalar multiplication of the
operator's definition on small random shapes. `tessera simulate`, on a device with one operation per second, must give the same number of
seconds.

counts.py TESSERA [ROUNDS] [SEED]. Prints ok or not ok for each operator."""
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile

import harness

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper
except ImportError:
    print("ok counts # SKIP Python's onnx is not here")
    sys.exit(0)

TESSERA = os.path.abspath(sys.argv[1])
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 4
MS, ML = "com.microsoft", "ai.onnx.ml"
RATE = 1e6


def steps(*ranges):
    """Number of multiplications of a loop nest, counted one by one."""
    return sum(1 for _ in itertools.product(*map(range, ranges)))


class Case:
    """A node, its inputs (shape, or an array for weights), the shapes of its outputs, and its multiplications."""

    def __init__(self, op, inputs, outputs, multiplications, domain="", opset=21, each=2, version=1, type=TensorProto.FLOAT, **attributes):
        self.op, self.inputs, self.outputs, self.macs, self.domain, self.opset, self.each, self.attributes = (
            op,
            inputs,
            outputs,
            multiplications,
            domain,
            opset,
            each,
            attributes,
        )
        self.version, self.type = version, type  # version of `domain`; type of inputs and outputs


def conv(r):
    n, group, m, c = r(1, 3), r(1, 2), r(1, 3), r(1, 3)
    k, out = [r(1, 3), r(1, 3)], [r(2, 6), r(2, 6)]
    x = [n, group * c, out[0] + k[0] - 1, out[1] + k[1] - 1]
    return Case("Conv", [x, np.zeros([group * m, c] + k, "f4")], [[n, group * m] + out], steps(n, group * m, *out, c, *k), group=group)


def conv_transpose(r):
    n, group, m, c, k, x, stride = r(1, 3), r(1, 2), r(1, 3), r(1, 3), [r(1, 3), r(1, 3)], [r(2, 6), r(2, 6)], r(1, 3)
    out = [(a - 1) * stride + b for a, b in zip(x, k)]
    return Case("ConvTranspose", [[n, group * c] + x, np.zeros([group * c, m] + k, "f4")], [[n, group * m] + out],
                steps(n, group * c, *x, m, *k), group=group, strides=[stride] * 2)


def quantized_conv(r):
    case, scale, zero = conv(r), np.array(0.5, "f4"), np.array(0, "u1")
    case.op, case.type = "QLinearConv", TensorProto.UINT8
    case.inputs = [case.inputs[0], scale, zero, case.inputs[1].astype("u1"), scale, zero, scale, zero]
    return case


def max_pool(r):
    n, c, k, out = r(1, 3), r(1, 4), [r(1, 3), r(1, 3)], [r(2, 6), r(2, 6)]
    return Case("MaxPool", [[n, c, out[0] + k[0] - 1, out[1] + k[1] - 1]], [[n, c] + out], steps(n, c, *out, *k), each=1, kernel_shape=k)


def matmul(r):
    b, m, k, n = r(1, 4), r(1, 8), r(2, 8), r(1, 8)
    return Case("MatMul", [[b, m, k], np.zeros([k, n], "f4")], [[b, m, n]], steps(b, m, n, k))


def gemm(r):
    m, k, n = r(1, 8), r(2, 8), r(1, 8)
    return Case("Gemm", [[m, k], np.zeros([n, k], "f4")], [[m, n]], steps(m, n, k), transB=1)


def packed(r):
    m, k, n, block = r(1, 8), 32 * r(1, 3), r(1, 8), 32
    return Case("MatMulNBits", [[m, k], np.zeros([n, k // block, block // 2], "u1"),
                                np.zeros([n * (k // block)], "f4")], [[m, n]], steps(m, n, k), MS, K=k, N=n, bits=4, block_size=block)


def recurrence(op, gates):
    def make(r):
        steps_, batch, inputs, hidden = r(1, 4), r(1, 3), r(1, 5), r(1, 5)
        macs = steps(steps_, batch, gates * hidden, inputs) + steps(steps_, batch, gates * hidden, hidden)
        return Case(op, [[steps_, batch, inputs],
                         np.zeros([1, gates * hidden, inputs], "f4"),
                         np.zeros([1, gates * hidden, hidden], "f4")], [[steps_, 1, batch, hidden]], macs, hidden_size=hidden)
    return make


def attention(r):
    b, kv, times, s, t, d, e, past = r(1, 3), r(1, 2), r(1, 3), r(1, 5), r(1, 5), r(1, 4), r(1, 4), r(0, 4)
    h, inputs = kv * times, None
    inputs = [[b, h, s, d], [b, kv, t, d], [b, kv, t, e]]
    outputs = [[b, h, s, e]]
    if past:
        inputs += [None, [b, kv, past, d], [b, kv, past, e]]
        outputs += [[b, kv, past + t, d], [b, kv, past + t, e]]
    return Case("Attention", inputs, outputs, steps(b, h, s, t + past, d) + steps(b, h, s, t + past, e), opset=23)


def heads(r):
    b, h, s, t, d = r(1, 3), r(1, 3), r(1, 5), r(1, 5), r(1, 4)
    return Case("MultiHeadAttention", [[b, s, h * d], [b, t, h * d], [b, t, h * d]], [[b, s, h * d]], 2 * steps(b, h, s, t, d), MS,
                num_heads=h)


def group_query(r):
    b, kv, times, s, d, past = r(1, 3), r(1, 2), r(1, 3), 1, 8 * r(1, 2), r(1, 9)
    h = kv * times
    inputs = [[b, s, h * d], [b, s, kv * d], [b, s, kv * d], [b, kv, past, d], [b, kv, past, d],
              np.full([b], past, "i4"),
              np.array(past + s, "i4")]
    present = [b, kv, past + s, d]
    return Case("GroupQueryAttention", inputs, [[b, s, h * d], present, present], 2 * steps(b, h, s, past + s, d), MS, num_heads=h,
                kv_num_heads=kv)


def projected(r):
    b, s, inputs, h, d = r(1, 3), r(1, 5), r(2, 6), r(1, 3), r(1, 4)
    w = h * d
    return Case("Attention",
                [[b, s, inputs], np.zeros([inputs, 3 * w], "f4"), np.zeros([3 * w], "f4")], [[b, s, w]],
                steps(b, s, inputs, 3 * w) + 2 * steps(b, h, s, s, d), MS, num_heads=h)


def experts(r):
    tokens, hidden, inner, n, k = r(1, 6), r(2, 5), r(2, 5), r(2, 4), r(1, 2)
    inputs = [[tokens, hidden], [tokens, n], np.zeros([n, inner, hidden], "f4"), None, np.zeros([n, hidden, inner], "f4")]
    copied = steps(tokens, hidden) / 2  # rank files read the input once more, one operation per element (docs/numbers.md)
    return Case("MoE", inputs, [[tokens, hidden]], steps(tokens, k, hidden, inner) + steps(tokens, k, inner, hidden) + copied, MS, k=k)


def walked(rows, trees, depth, weights):
    """Number of nodes that the rows visit in complete trees; four weights of a leaf take as long as a node."""
    visits = 0
    for _ in itertools.product(range(rows), range(trees)):
        node = 0
        while node < 2**depth - 1:
            node, visits = 2 * node + 1 + visits % 2, visits + 1
    return visits + rows * trees * weights / 4


def complete_trees(trees, depth):
    inner, ids = 2**depth - 1, range(2 ** (depth + 1) - 1)
    return dict(nodes_treeids=[t for t in range(trees)
                               for _ in ids], nodes_nodeids=list(ids) * trees, nodes_featureids=[0] * len(ids) * trees,
                nodes_values=[0.5] * len(ids) * trees, nodes_modes=["BRANCH_LEQ" if i < inner else "LEAF" for i in ids] * trees,
                nodes_truenodeids=[2 * i + 1 if i < inner else 0 for i in ids] * trees,
                nodes_falsenodeids=[2 * i + 2 if i < inner else 0 for i in ids] * trees), [(t, i) for t in range(trees) for i in ids
                                                                                           if i >= inner]


def tree_regressor(r):
    rows, trees, depth, targets = r(1, 9), r(1, 4), r(1, 4), r(1, 3)
    nodes, leaves = complete_trees(trees, depth)
    ends = [(t, i, k) for t, i in leaves for k in range(targets)]
    return Case("TreeEnsembleRegressor", [[rows, 4]], [[rows, targets]], walked(rows, trees, depth, targets), ML, each=1, n_targets=targets,
                target_treeids=[e[0] for e in ends], target_nodeids=[e[1] for e in ends], target_ids=[e[2] for e in ends],
                target_weights=[1.0] * len(ends), **nodes)


def tree_classifier(r):
    rows, trees, depth, classes = r(1, 9), r(1, 4), r(1, 4), r(2, 4)
    nodes, leaves = complete_trees(trees, depth)
    ends = [(t, i, k) for t, i in leaves for k in range(classes)]
    return Case("TreeEnsembleClassifier", [[rows, 4]], [[rows], [rows, classes]], walked(rows, trees, depth, classes), ML, each=1,
                classlabels_int64s=list(range(classes)), class_treeids=[e[0] for e in ends], class_nodeids=[e[1] for e in ends],
                class_ids=[e[2] for e in ends], class_weights=[1.0] * len(ends), **nodes)


def tree_ensemble(r):
    rows, trees, depth = r(1, 9), r(1, 4), r(1, 4)
    inner, n = 2**depth - 1, trees * (2**depth - 1)
    at = [(t, i) for t in range(trees) for i in range(inner)]  # inner nodes; the children of the last layer are leaves
    children = [[t * inner + 2 * i + k if 2 * i + k < inner else t * (inner + 1) + 2 * i + k - inner for t, i in at] for k in (1, 2)]
    leaves = [[int(2 * i + k >= inner) for t, i in at] for k in (1, 2)]
    array = onnx.numpy_helper.from_array
    return Case("TreeEnsemble", [[rows, 4]], [[rows, 1]], walked(rows, trees, depth, 1), ML, each=1, version=5, n_targets=1,
                tree_roots=[t * inner for t in range(trees)], nodes_featureids=[0] * n, nodes_splits=array(np.full(n, 0.5, "f4")),
                nodes_modes=array(np.zeros(n, "u1")), nodes_truenodeids=children[0], nodes_falsenodeids=children[1],
                nodes_trueleafs=leaves[0], nodes_falseleafs=leaves[1], leaf_targetids=[0] * (trees * (inner + 1)),
                leaf_weights=array(np.ones(trees * (inner + 1), "f4")))


def svm_regressor(r):
    rows, features, vectors = r(1, 9), r(1, 6), r(1, 5)
    kernel, each = [("LINEAR", 2 * features), ("RBF", 3 * features + 12), ("POLY", features / 8 + 20)][r(0, 2)]
    return Case("SVMRegressor", [[rows, features]], [[rows, 1]],
                steps(rows, vectors) * each, ML, each=1, kernel_type=kernel, kernel_params=[1.0, 0.0, 3.0], n_supports=vectors,
                support_vectors=[0.5] * (vectors * features), coefficients=[1.0] * vectors, rho=[0.0])


def svm_classifier(r):
    rows, features, vectors = r(1, 9), r(1, 6), [r(1, 3), r(1, 3)]
    return Case("SVMClassifier", [[rows, features]], [[rows], [rows, 2]],
                steps(rows, sum(vectors)) * (3 * features + 12), ML, each=1, kernel_type="RBF", kernel_params=[1.0, 0.0, 3.0],
                vectors_per_class=vectors, support_vectors=[0.5] * (sum(vectors) * features), coefficients=[1.0] * sum(vectors), rho=[0.0],
                classlabels_ints=[0, 1])


def linear_regressor(r):
    rows, features, targets = r(1, 9), r(2, 6), r(1, 4)
    return Case("LinearRegressor", [[rows, features]], [[rows, targets]], steps(rows, features, targets), ML,
                coefficients=[0.5] * (features * targets), targets=targets)


MAKERS = {
    "Conv": conv, "QLinearConv": quantized_conv, "ConvTranspose": conv_transpose, "MaxPool": max_pool, "MatMul": matmul, "Gemm": gemm,
    "MatMulNBits": packed, "LSTM": recurrence("LSTM", 4), "GRU": recurrence("GRU", 3), "RNN": recurrence("RNN", 1), "Attention": attention,
    "MultiHeadAttention": heads, "GroupQueryAttention": group_query, "Attention of com.microsoft": projected, "MoE": experts,
    "TreeEnsembleRegressor": tree_regressor, "TreeEnsembleClassifier": tree_classifier, "TreeEnsemble": tree_ensemble,
    "SVMRegressor": svm_regressor, "SVMClassifier": svm_classifier, "LinearRegressor": linear_regressor
}


def model_of(case, path):
    names, inputs, weights = [], [], []
    for i, x in enumerate(case.inputs):
        names.append("" if x is None else "i%d" % i)
        if isinstance(x, list):
            inputs.append(helper.make_tensor_value_info(names[-1], case.type, x))
        elif x is not None:
            weights.append(onnx.numpy_helper.from_array(x, names[-1]))
    outputs = [
        helper.make_tensor_value_info("o%d" % i, TensorProto.INT64 if len(s) == 1 else case.type, s) for i, s in enumerate(case.outputs)
    ]
    node = helper.make_node(case.op, names, [o.name for o in outputs], name="n", domain=case.domain, **case.attributes)
    graph = helper.make_graph([node], "g", inputs, outputs, weights)
    sets = [helper.make_opsetid("", case.opset)] + ([helper.make_opsetid(case.domain, case.version)] if case.domain else [])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=sets), path)


def main():
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    with tempfile.TemporaryDirectory() as d:
        machine, path = os.path.join(d, "one.json"), os.path.join(d, "m.onnx")
        with open(machine, "w") as f:  # not a CPU, which also unpacks weights
            json.dump({"devices": [{"name": "NPU", "memory": 1 << 34,
                                     "flops": RATE, "bandwidth": 1e24, "rates": {"trees": RATE, "kernels": RATE}}], "links": []}, f)
        for name, make in MAKERS.items():
            if not harness.matches(name):
                continue
            draw = random.Random("%s %d" % (name, seed))
            wrong = []
            for _ in range(ROUNDS):
                case = make(draw.randint)
                model_of(case, path)
                p = subprocess.run([TESSERA, "simulate", path, "--devices", machine, "--json"], capture_output=True, timeout=60)
                got = json.loads(p.stdout)["seconds"] * RATE if p.returncode == 0 else 0
                want = case.each * case.macs
                if not 0.99 * want <= got <= 1.01 * want:
                    wrong.append("%s %s: %g of %g %s" %
                                 (case.inputs and [getattr(x, "shape", x)
                                                   for x in case.inputs], case.attributes, got, want, p.stderr.decode()))
            harness.check(name, not wrong, "\n".join(wrong))
    harness.finish()


main()
