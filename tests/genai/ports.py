# SPDX-License-Identifier: Apache-2.0
"""Tests `tessera generate` and `verify` with generation folders whose inputs and outputs differ from the usual ones: other names, positions
with three rows, states that are not KV caches, embeddings in place of token ids. A loop with onnxruntime gives the expected tokens.

usage: ports.py TESSERA"""
import json
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import decoder  # noqa: E402

TESSERA = os.path.abspath(sys.argv[1])
PROMPT, TOKENS = [1, 7, 11], 8
TYPES = {"tensor(int64)": np.int64, "tensor(float)": np.float32}


def expected(folder, names, states):
    """Tokens of the model in onnxruntime. names: the graph's names of ids, mask, positions and logits; states: {past: present}."""
    import onnxruntime
    session = onnxruntime.InferenceSession(folder + "/model.onnx", providers=["CPUExecutionProvider"])
    sizes = {"batch_size": 1, "past_sequence_length": 0, "kv_cache_dim": decoder.HEAD}
    values = {i.name: np.zeros([sizes.get(n, n) for n in i.shape], TYPES[i.type]) for i in session.get_inputs() if i.name in states}
    given, past, found = PROMPT, 0, []
    while len(found) < TOKENS and decoder.VOCABULARY - 1 not in found:  # the last token ends the text
        positions = np.arange(past, past + len(given))
        feed = {names["ids"]: np.array([given]), names["mask"]: np.ones((1, past + len(given)), np.int64), **values}
        for port in session.get_inputs():
            if port.name == names.get("positions"):
                feed[port.name] = np.broadcast_to(positions,
                                                  [n if isinstance(n, int) else 1 for n in port.shape[:-1]] + [len(given)]).copy()
        out = dict(zip([o.name for o in session.get_outputs()], session.run(None, feed)))
        values = {past_name: out[present] for past_name, present in states.items()}
        past, given = past + len(given), [int(out[names["logits"]][0, -1].argmax())]
        found += given
    return found


def usual_states():
    return {"past_key_values.%d.%s" % (k, which): "present.%d.%s" % (k, which) for k in range(decoder.LAYERS) for which in ("key", "value")}


def rewrite(folder, change):
    """Calls change(graph, decoder's part of the configuration) and writes both."""
    model = onnx.load(folder + "/model.onnx")
    with open(folder + "/genai_config.json") as f:
        config = json.load(f)
    change(model.graph, config["model"]["decoder"])
    onnx.save(model, folder + "/model.onnx")
    with open(folder + "/genai_config.json", "w") as f:
        json.dump(config, f)


def check(name, folder, names, states):
    want = expected(folder, names, states)
    for devices in (1, 2, 3):
        words = ["generate", folder, "--devices", devices, "--ids", ",".join(map(str, PROMPT)), "--max-tokens", TOKENS]
        rc, out, err = harness.call(TESSERA, *words)
        harness.check("%s: tokens on %d devices" % (name, devices), rc == 0 and [int(t) for t in out.split()] == want, (out, want, err))
    rc, out, err = harness.call(TESSERA, "verify", folder, "--devices", 2)
    harness.check(name + ": verify", rc == 0, out + err)


def rename(graph, names):
    for port in [*graph.input, *graph.output]:
        port.name = names.get(port.name, port.name)
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]


def configuration_gives_names(d):
    folder = decoder.write(d + "/folder")
    forms = {"key": ("k_%d_old", "k_%d_new"), "value": ("v%d", "w%d")}
    names = {"input_ids": "tokens", "attention_mask": "seen", "logits": "scores"}
    for k in range(decoder.LAYERS):
        for which, (past, present) in forms.items():
            names.update({
                "past_key_values.%d.%s" % (k, which): past.replace("%d", str(k)),
                "present.%d.%s" % (k, which): present.replace("%d", str(k))
            })

    def change(graph, config):
        rename(graph, names)
        config["inputs"] = {
            "input_ids": "tokens", "attention_mask": "seen", "past_key_names": forms["key"][0], "past_value_names": forms["value"][0]
        }
        config["outputs"] = {"logits": "scores", "present_key_names": forms["key"][1], "present_value_names": forms["value"][1]}

    rewrite(folder, change)
    states = {names[past]: names[present] for past, present in usual_states().items()}
    check("names of the configuration", folder, {"ids": "tokens", "mask": "seen", "logits": "scores"}, states)


def positions_have_rows(d):
    folder = decoder.write(d + "/folder")

    def change(graph, config):
        rng = np.random.default_rng(3)
        graph.initializer.append(numpy_helper.from_array(rng.standard_normal((decoder.CONTEXT, decoder.HIDDEN)).astype("f4"), "places"))
        graph.initializer.append(numpy_helper.from_array(np.array(2), "last"))
        graph.input.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, [3, "batch_size", "sequence_length"]))
        rename(graph, {"embedded": "embedded_ids"})
        at = [node.output[0] for node in graph.node].index("embedded_ids")
        for node in [n for n in graph.node if "embedded_ids" in n.input]:
            node.input[:] = ["embedded" if n == "embedded_ids" else n for n in node.input]
        added = [
            helper.make_node("Gather", ["position_ids", "last"], ["row"], axis=0),
            helper.make_node("Gather", ["places", "row"], ["placed"]),
            helper.make_node("Add", ["embedded_ids", "placed"], ["embedded"])
        ]
        nodes = list(graph.node)
        del graph.node[:]
        graph.node.extend(nodes[:at + 1] + added + nodes[at + 1:])

    rewrite(folder, change)
    check("positions with three rows", folder,
          {"ids": "input_ids", "mask": "attention_mask", "positions": "position_ids", "logits": "logits"}, usual_states())


def add_window(graph, config):
    """Adds a state with the last two embeddings, [batch, hidden, 2]; their sum is added to the values before the logits."""
    for name, value in (("two", np.array([2])), ("from", np.array([-2])), ("end", np.array([1 << 40]))):
        graph.initializer.append(numpy_helper.from_array(value, name))
    shape = ["batch_size", decoder.HIDDEN, 2]
    graph.input.append(helper.make_tensor_value_info("past.0.conv", TensorProto.FLOAT, shape))
    graph.output.append(helper.make_tensor_value_info("present.0.conv", TensorProto.FLOAT, shape))
    node = next(n for n in graph.node if n.output[0] == "logits")
    added = [helper.make_node("Transpose", ["embedded"], ["columns"], perm=[0, 2, 1]),
             helper.make_node("Concat", ["past.0.conv", "columns"], ["history"], axis=2),
             helper.make_node("Slice", ["history", "from", "end", "two"], ["present.0.conv"]),
             helper.make_node("ReduceSum", ["past.0.conv", "two"], ["summed"], keepdims=1),
             helper.make_node("Transpose", ["summed"], ["before"], perm=[0, 2, 1]),
             helper.make_node("Add", [node.input[0], "before"], ["mixed"])]
    node.input[0] = "mixed"
    nodes = list(graph.node)
    at = nodes.index(node)
    del graph.node[:]
    graph.node.extend(nodes[:at] + added + nodes[at:])


def states_need_not_be_caches(d):
    folder = decoder.write(d + "/folder")
    rewrite(folder, add_window)
    check("a state of fixed size", folder, {"ids": "input_ids", "mask": "attention_mask", "logits": "logits"},
          {**usual_states(), "past.0.conv": "present.0.conv"})


def embeddings_are_not_made(d):
    folder = decoder.write(d + "/folder")

    def change(graph, config):
        at = next(i for i, node in enumerate(graph.node) if node.output[0] == "embedded")
        del graph.node[at]
        rename(graph, {"embedded": "inputs_embeds"})
        del graph.input[0]
        graph.input.append(
            helper.make_tensor_value_info("inputs_embeds", TensorProto.FLOAT, ["batch_size", "sequence_length", decoder.HIDDEN]))
        config["inputs"]["inputs_embeds"] = "inputs_embeds"

    rewrite(folder, change)
    rc, out, err = harness.call(TESSERA, "verify", folder, "--devices", 2)
    harness.check("embeddings: verify", rc == 0, out + err)
    rc, out, err = harness.call(TESSERA, "generate", folder, "--devices", 2, "--ids", "1,7")
    harness.check("embeddings: generate names the input", rc == 5 and "[folder-inputs]" in err and "inputs_embeds" in err, (rc, out, err))


def models_need_caches(d):
    folder = decoder.write(d + "/folder")

    def change(graph, config):
        """Removes the inputs of the caches, as in an export without them."""
        for port in [port for port in graph.input if port.name.startswith("past_key_values")]:
            graph.input.remove(port)
        for node in graph.node:
            if node.op_type == "GroupQueryAttention":
                node.input[3] = node.input[4] = ""

    rewrite(folder, change)
    rc, out, err = harness.call(TESSERA, "generate", folder, "--devices", 2, "--ids", "1,7")
    harness.check("no caches: generate refuses before the first token", rc == 5 and not out and "[folder-inputs]" in err
                  and "-with-past" in err, (rc, out, err))


def models_of_several_files(d):
    folder = decoder.write(d + "/folder")
    os.remove(folder + "/genai_config.json")
    os.rename(folder + "/model.onnx", folder + "/decoder_model.onnx")
    with open(folder + "/config.json", "w") as f:
        f.write("{}")
    for words in (["verify"], ["plan"], ["bench"], ["partition", "-o", d + "/out"]):
        rc, out, err = harness.call(TESSERA, words[0], folder, *words[1:], "--devices", 2)
        harness.check("several files: %s names the models" % words[0], rc == 3
                      and "give one of its models: %s/decoder_model.onnx" % folder in err, (rc, out, err))
    rc, out, err = harness.call(TESSERA, "generate", folder, "--ids", "1,7")
    harness.check("several files: generate names what can run them", rc == 2 and "with Optimum and the execution provider" in err,
                  (rc, out, err))


def types_of_logits(d):
    """Logits may be float16 or bfloat16; other types are refused."""
    words = ["--devices", 2, "--ids", ",".join(map(str, PROMPT)), "--max-tokens", TOKENS]
    want = harness.call(TESSERA, "generate", decoder.write(d + "/folder"), *words)[1]
    for name in ("FLOAT16", "BFLOAT16", "DOUBLE"):
        def cast(graph, _, kind=getattr(TensorProto, name)):
            graph.node.append(helper.make_node("Cast", ["wide"], ["logits"], to=kind))
            next(o for o in graph.output if o.name == "logits").type.tensor_type.elem_type = kind
        folder = decoder.write(d + "/" + name)
        rewrite(folder, lambda graph, _: [n.output.__setitem__(0, "wide") for n in graph.node if n.output[0] == "logits"])
        rewrite(folder, cast)
        rc, out, err = harness.call(TESSERA, "generate", folder, *words)
        if name == "DOUBLE":
            harness.check("logits: DOUBLE is refused", rc == 5 and "no output logits of a supported type" in err, (rc, out, err))
        else:
            harness.check("logits: " + name, rc == 0 and out == want != "", (out, want, err))


def pipelines_are_refused(d):
    folder = decoder.write(d + "/folder")
    rewrite(folder, lambda graph, config: config.update(pipeline=[{"all": {"filename": config.pop("filename")}}]))
    for words in (["verify"], ["generate", "--ids", "1,7"], ["partition", "--layout", "genai", "-o", d + "/out"]):
        rc, out, err = harness.call(TESSERA, words[0], folder, *words[1:], "--devices", 2)
        harness.check("a pipeline: " + words[0], rc == 5 and "[folder-layout]" in err and "pipeline" in err, (rc, out, err))


def main():
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        harness.skip("ports", "this Python has no onnxruntime")
        return
    harness.run([configuration_gives_names, positions_have_rows, states_need_not_be_caches, embeddings_are_not_made,
                 models_need_caches, models_of_several_files, types_of_logits, pipelines_are_refused])


main()
harness.finish()
