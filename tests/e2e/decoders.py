# SPDX-License-Identifier: Apache-2.0
"""Tests decoders sharded as in Megatron: attention by heads, MLP by columns and then rows. Each layer must need two AllReduces and nothing
else.

Special cases: heads that do not divide (4 on 3 devices); fewer key heads than devices (2 on 4: each on two devices); one matrix for
queries, keys and values (equal shares of each); an embedding table sharded by rows.

usage: decoders.py TESSERA MODELS"""
import json, os, sys

import onnx

import harness

TESSERA, MODELS = sys.argv[1], sys.argv[2]


def llama(m, n):
    """Edits for q, k, v, o, gate, up and down of each layer; 4 heads of 16 elements, 2 key heads."""
    linear = [x for x in m.graph.node if x.op_type == "MatMul" and x.name.startswith("node_linear")][:-1]
    keys = {2: "{1,2/2*16:0,1}", 3: "{1,1:0,1,2}", 4: "{1,2/2*16:(0,1),(2,3)}"}[n]
    specs = ["{1,4/%d*16}" % n, keys, keys, "{4/%d*16,1}" % n, "{1,%d}" % n, "{1,%d}" % n, "{%d,1}" % n]
    return ["%s:%s=%s" % (x.name, x.input[1], specs[i % 7]) for i, x in enumerate(linear)], len(linear) // 7


def gpt2(m, n):
    specs = {"c_attn": "{1,3*4/%d*16}" % n, "attn.c_proj": "{4/%d*16,1}" % n, "c_fc": "{1,%d}" % n, "mlp.c_proj": "{%d,1}" % n}
    edits = ["%s:%s=%s" % (x.name, x.input[1], s) for x in m.graph.node if x.op_type == "Gemm" for k, s in specs.items() if k in x.input[1]]
    return edits, len(edits) // 4


def embedding(m, n):
    node = next(x for x in m.graph.node if x.op_type == "Gather")
    return ["%s:%s={%d,1}" % (node.name, node.input[0], n)], 0


# Shards a model and checks its recorded outputs and its collectives.
def check(d, name, edits_of, n, want):
    path = os.path.join(MODELS, name, "model.onnx")
    edits, layers = edits_of(onnx.load(path, load_external_data=False), n)
    cut = os.path.join(d, "cut.onnx")
    rc, _, err = harness.call(TESSERA, "annotate", path, "--config", "c:%d" % n, *[w for e in edits for w in ("--shard", e)], "-o", cut)
    assert rc == 0, err
    rc, out, err = harness.call(TESSERA, "verify", cut, "--config", "c", "--inputs", os.path.join(MODELS, name, "test_data_set_0"),
                                "--json")
    assert out.startswith("{"), err
    doc = json.loads(out)
    assert rc == 0 and doc["ok"] and doc["recorded"] and not doc["replicated"], doc
    assert doc["collectives"] == want(layers), doc["collectives"]


def main():
    two = lambda layers: {"AllReduce": 2 * layers}
    jobs = [("llama_tiny", llama, n, two) for n in (2, 3, 4)] + [("gpt2_tiny", gpt2, n, two) for n in (2, 3, 4)]
    jobs += [("llama_tiny", embedding, n, lambda layers: {"AllReduce": 1}) for n in (2, 3)]
    harness.run([("%s %s on %d" % (name, edits.__name__, n), check, name, edits, n, want) for name, edits, n, want in jobs])
    harness.finish()


main()
