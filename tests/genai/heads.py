# SPDX-License-Identifier: Apache-2.0
"""Tests folders of `--layout genai` for different numbers of key heads and devices: stock onnxruntime-genai must generate the tokens of the
unsharded folder. With more devices than key heads, devices share copies of a head.

usage: heads.py TESSERA"""
import json
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import decoder  # noqa: E402
import generation  # noqa: E402

TESSERA = os.path.abspath(sys.argv[1])


def tessera(*words):
    return harness.call(TESSERA, *words)


def rank_config(folder, rank):
    with open("%s/rank%d/genai_config.json" % (folder, rank)) as f:
        found = json.load(f)["model"]["decoder"]
    return found["num_attention_heads"], found["num_key_value_heads"]


def attention_heads(folder, rank):
    model = onnx.load("%s/rank%d/model.onnx" % (folder, rank), load_external_data=False)
    found = {(a.name, a.i) for n in model.graph.node if n.op_type == "GroupQueryAttention" for a in n.attribute
             if a.name.endswith("num_heads")}
    return dict(found)["num_heads"], dict(found)["kv_num_heads"]


def check_folder(d, name, ranks, shares, **changes):
    """Partitions a decoder and checks the heads and tokens. shares: (query heads, key heads) of each rank."""
    name = "%s on %d devices" % (name, ranks)
    folder, out = decoder.write(d + "/folder", **changes), d + "/out"
    rc, said, err = tessera("partition", folder, "--devices", ranks, "--layout", "genai", "-o", out)
    harness.check(name + ": folders", rc == 0 and "of 0 GFLOP/s" not in said, said + err)
    if rc:
        return
    harness.check(name + ": heads in the configurations", [rank_config(out, r) for r in range(ranks)] == shares,
                  [rank_config(out, r) for r in range(ranks)])
    harness.check(name + ": heads of the attention", [attention_heads(out, r) for r in range(ranks)] == shares,
                  [attention_heads(out, r) for r in range(ranks)])
    check_tokens(name, folder, out, ranks)


def check_tokens(name, folder, out, ranks):
    if generation.missing():
        harness.skip(name + ": tokens", generation.missing())
        return
    want = [["unsharded", *map(str, generation.generated(folder))]]
    got, more = generation.tokens(out, ranks)
    harness.check(name + ": tokens", generation.same_tokens(got, want, ranks), "%s, expected %s %s" % (got, want, more))


def repeated_in_packed_weights(d):
    check_folder(d, "2 key heads of 4, packed", 4, [(1, 1)] * 4, heads=4, kv_heads=2)


def repeated_in_packed_4_bit_weights(d):
    check_folder(d, "2 key heads of 4, packed, 4 bits", 3, [(1, 1), (1, 1), (2, 2)], heads=4, kv_heads=2, bits=4)


def repeated_behind_a_norm(d):
    check_folder(d, "1 key head of 4, with norms", 3, [(1, 1), (1, 1), (2, 2)], heads=4, kv_heads=1, form="norm")


def repeated_in_separate_weights(d):
    check_folder(d, "1 key head of 6, separate, 4 bits", 2, [(3, 1)] * 2, heads=6, kv_heads=1, form="separate", bits=4)


def unequal_shares(d):
    check_folder(d, "3 key heads of 6, with norms", 2, [(2, 1), (4, 2)], heads=6, kv_heads=3, form="norm")


def more_devices_than_query_heads(d):
    check_folder(d, "2 heads", 3, [(2, 2)] * 3, heads=2, kv_heads=2)


def wrong_number_of_heads(d):
    folder = decoder.write(d + "/folder", heads=4, kv_heads=2)
    with open(folder + "/genai_config.json") as f:
        config = json.load(f)
    config["model"]["decoder"]["num_attention_heads"] = 12
    with open(folder + "/genai_config.json", "w") as f:
        json.dump(config, f)
    rc, _, err = tessera("partition", folder, "--devices", 5, "--layout", "genai", "-o", d + "/out")
    harness.check("a configuration with other heads than the model", rc == 5 and "[folder-layout]" in err and "query heads" in err and
                  not os.path.exists(d + "/out"), "exit %d %s" % (rc, err))


def change_config(folder, change):
    with open(folder + "/genai_config.json") as f:
        config = json.load(f)
    change(config["model"])
    with open(folder + "/genai_config.json", "w") as f:
        json.dump(config, f)


def caches_of_a_decoder_with_an_encoder(d):
    """onnxruntime-genai allocates the caches that the encoder returns by the decoder's number of key heads, so ranks keep all heads."""
    folder = decoder.write(d + "/folder", heads=4, kv_heads=2)
    change_config(folder, lambda model: model.update(encoder={"filename": "encoder.onnx"}))
    rc, _, err = tessera("partition", folder, "--devices", 2, "--layout", "genai", "-o", d + "/out")
    found = [rank_config(d + "/out", r) for r in range(2)] if rc == 0 else []
    model = onnx.load(d + "/out/rank0/model.onnx", load_external_data=False)
    caches = {port.type.tensor_type.shape.dim[1].dim_value for port in model.graph.input if port.name.startswith("past_key_values")}
    harness.check("a decoder with an encoder", found == [(4, 2)] * 2 and caches == {2}, (rc, found, caches, err))


def names_of_models(d):
    """Another model of the folder is named model.onnx, such as the one for images."""
    folder = decoder.write(d + "/folder", heads=4, kv_heads=2)
    os.rename(folder + "/model.onnx", folder + "/text.onnx")
    with open(folder + "/model.onnx", "w") as f:
        f.write("another model")
    change_config(folder, lambda model: model["decoder"].update(filename="text.onnx"))
    rc, _, err = tessera("partition", folder, "--devices", 2, "--layout", "genai", "-o", d + "/out")
    with open(d + "/out/rank1/model.onnx") as f:
        kept = f.read() == "another model"
    harness.check("a folder with two models", rc == 0 and kept, err)
    check_tokens("a folder with two models", folder, d + "/out", 2)


def write_concat(folder):
    """Writes a decoder whose caches are read by Concat instead of an attention operator: its new token depends on the mean of all keys and
    values."""
    rng, nodes, outs = np.random.default_rng(5), [], []
    constants = {
        "embedding": rng.standard_normal((256, 64)), "out": rng.standard_normal((64, 64)) / 8, "head": rng.standard_normal((64, 256)) / 8
    }
    ports = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])]
    nodes.append(helper.make_node("Gather", ["embedding", "input_ids"], ["x"]))
    for which in ("key", "value"):
        past, present = "past_key_values.0." + which, "present.0." + which
        constants[which] = rng.standard_normal((64, 32)) / 8
        nodes += [
            helper.make_node("MatMul", ["x", which], [which + "_flat"]),
            helper.make_node("Reshape", [which + "_flat", "split"], [which + "_apart"]),
            helper.make_node("Transpose", [which + "_apart"], [which + "_heads"], perm=[0, 2, 1, 3]),
            helper.make_node("Concat", [past, which + "_heads"], [present], axis=2),
            helper.make_node("ReduceMean", [present, "tokens"], [which + "_mean"], keepdims=0),
            helper.make_node("Reshape", [which + "_mean", "joined"], [which + "_row"])
        ]
        ports.append(helper.make_tensor_value_info(past, TensorProto.FLOAT, ["batch", 2, "past", 16]))
        outs.append(helper.make_tensor_value_info(present, TensorProto.FLOAT, ["batch", 2, "total", 16]))
    nodes += [
        helper.make_node("Concat", ["key_row", "value_row"], ["rows"], axis=2),
        helper.make_node("MatMul", ["rows", "out"], ["mixed"]),
        helper.make_node("Add", ["x", "mixed"], ["y"]),
        helper.make_node("MatMul", ["y", "head"], ["logits"])
    ]
    weights = [numpy_helper.from_array(w.astype("f4"), name) for name, w in constants.items()]
    weights += [
        numpy_helper.from_array(np.array(v), name) for name, v in (("split", [0, 0, 2, 16]), ("tokens", [2]), ("joined", [0, 1, 32]))
    ]
    graph = helper.make_graph(nodes, "g", ports, [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "seq", 256]), *outs],
                              weights)
    decoder.write(folder, heads=4, kv_heads=2)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), folder + "/model.onnx")
    change_config(folder, lambda model: model["decoder"].update(num_hidden_layers=1))
    with open(folder + "/genai_config.json") as f:
        config = json.load(f)
    config["search"]["past_present_share_buffer"] = False
    with open(folder + "/genai_config.json", "w") as f:
        json.dump(config, f)


def caches_of_other_operators(d):
    """Heads that cannot be repeated are kept by all ranks."""
    folder, out = d + "/folder", d + "/out"
    write_concat(folder)
    rc, _, err = tessera("partition", folder, "--devices", 3, "--layout", "genai", "-o", out)
    harness.check("caches of other operators: folders", rc == 0 and [rank_config(out, r) for r in range(3)] == [(4, 2)] * 3, err)
    check_tokens("caches of other operators", folder, out, 3)


def no_number_of_heads(d):
    """A configuration without num_attention_heads: the configurations of the ranks have none either, instead of 0."""
    folder = decoder.write(d + "/folder", heads=4, kv_heads=2)
    with open(folder + "/genai_config.json") as f:
        config = json.load(f)
    del config["model"]["decoder"]["num_attention_heads"]
    with open(folder + "/genai_config.json", "w") as f:
        json.dump(config, f)
    rc, _, err = tessera("partition", folder, "--devices", 2, "--layout", "genai", "-o", d + "/out")
    with open(d + "/out/rank1/genai_config.json") as f:
        found = json.load(f)["model"]["decoder"]
    harness.check("a configuration without heads", rc == 0 and "num_attention_heads" not in found and found["num_key_value_heads"] == 1,
                  "exit %d %s %s" % (rc, err, found))


def quantized_caches(d):
    """A rank must have the scales of its heads."""
    check_folder(d, "caches of 8 bits", 3, [(1, 1), (1, 1), (2, 2)], heads=4, kv_heads=2, cache_bits=8)
    rc, out, err = tessera("verify", d + "/folder", "--devices", 2)
    harness.check("caches of 8 bits: verify", rc == 0, out[-600:] + err)


def cache_windows(d):
    """The cache of a window has its full length from the first token on."""
    check_folder(d, "caches of a window", 2, [(2, 1)] * 2, heads=4, kv_heads=2, window=8)
    folder = d + "/folder"
    rc, out, err = tessera("verify", folder, "--devices", 2)
    harness.check("caches of a window: verify", rc == 0, out[-600:] + err)
    made = [tessera("generate", folder, "--ids", "1,7,11", "--max-tokens", 12, *more) for more in ([], ["--devices", 2])]
    harness.check("caches of a window: generate", made[0][0] == 0 and len(made[0][1].split()) > 1 and made[0][1] == made[1][1], made)


def verify_makes_fitting_inputs(d):
    for form in ("packed", "separate", "norm"):
        folder = decoder.write("%s/%s" % (d, form), heads=4, kv_heads=2, form=form, bits=4)
        rc, out, err = tessera("verify", folder, "--devices", 2)
        harness.check("verify, %s" % form, rc == 0, out[-600:] + err)


harness.run([
    repeated_in_packed_weights, repeated_in_packed_4_bit_weights, repeated_behind_a_norm, repeated_in_separate_weights, unequal_shares,
    more_devices_than_query_heads, caches_of_a_decoder_with_an_encoder, caches_of_other_operators, names_of_models, wrong_number_of_heads,
    no_number_of_heads, quantized_caches, cache_windows, verify_makes_fitting_inputs
])
harness.finish()
