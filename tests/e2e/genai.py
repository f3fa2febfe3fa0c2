# SPDX-License-Identifier: Apache-2.0
"""Tests generation folders (onnxruntime-genai): commands accept them like models, and `partition` writes one folder per device.

A stock onnxruntime-genai must generate the same tokens with these folders as with the unsharded one.

usage: genai.py TESSERA
       genai.py make FOLDER HIDDEN HEADS KV_HEADS HEAD LAYERS VOCABULARY CONTEXT    writes such a folder, to be measured"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness

TESSERA = os.path.abspath(sys.argv[1])
HIDDEN, HEADS, KV_HEADS, HEAD, LAYERS, VOCABULARY, CONTEXT = 256, 4, 2, 64, 2, 256, 1024
if sys.argv[1] == "make":
    HIDDEN, HEADS, KV_HEADS, HEAD, LAYERS, VOCABULARY, CONTEXT = map(int, sys.argv[3:])
case = harness.check


def tessera(*words):
    return harness.call(TESSERA, *words)


def decoder():
    """Returns a small decoder as onnxruntime-genai's builder writes it: packed projection, GroupQueryAttention, caches."""
    rng = np.random.default_rng(5)
    inits, nodes = [], []

    def weight(name, *shape):
        inits.append(numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(shape[0])).astype("f4"), name))
        return name

    def node(op, ins, outs, **attributes):
        nodes.append(helper.make_node(op, ins, outs, name=outs[0] + "/node", **attributes))
        return outs[0]

    for name, value in (("one", np.array([1], "i8")), ("zero", np.array(1, "i8"))):
        inits.append(numpy_helper.from_array(value, name))
    counted = node("ReduceSum", ["attention_mask", "one"], ["counted"], keepdims=1)
    lengths = node("Cast", [node("Sub", [counted, "one"], ["less"])], ["lengths"], to=TensorProto.INT32)
    total = node("Cast", [node("Gather", [node("Shape", ["attention_mask"], ["sizes"]), "zero"], ["picked"])], ["total"],
                 to=TensorProto.INT32)
    hidden = node("Gather", [weight("embedding", VOCABULARY, HIDDEN), "input_ids"], ["embedded"])
    angles = np.arange(CONTEXT)[:, None] / 10 ** np.arange(HEAD // 2)[None]
    inits.extend([numpy_helper.from_array(np.cos(angles).astype("f4"), "cos"), numpy_helper.from_array(np.sin(angles).astype("f4"), "sin")])
    for k in range(LAYERS):
        packed = node("MatMul", [hidden, weight("qkv%d" % k, HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD)], ["packed%d" % k])
        attended = node(
            "GroupQueryAttention",
            [packed, "", "", "past_key_values.%d.key" % k,
             "past_key_values.%d.value" % k, lengths, total, "cos", "sin"],
            ["attended%d" % k, "present.%d.key" % k, "present.%d.value" % k], domain="com.microsoft", num_heads=HEADS,
            kv_num_heads=KV_HEADS, do_rotary=1)
        hidden = node("Add", [hidden, node("MatMul", [attended, weight("out%d" % k, HEADS * HEAD, HIDDEN)], ["projected%d" % k])],
                      ["hidden%d" % k])
    node("MatMul", [hidden, weight("head", HIDDEN, VOCABULARY)], ["logits"])
    value = helper.make_tensor_value_info
    cache = lambda name, length: value(name, TensorProto.FLOAT, ["batch_size", KV_HEADS, length, HEAD])
    inputs = [
        value("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
        value("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"])
    ]
    outputs = [value("logits", TensorProto.FLOAT, ["batch_size", "sequence_length", VOCABULARY])]
    for k in range(LAYERS):
        for which in ("key", "value"):
            inputs.append(cache("past_key_values.%d.%s" % (k, which), "past_sequence_length"))
            outputs.append(cache("present.%d.%s" % (k, which), "total_sequence_length"))
    graph = helper.make_graph(nodes, "g", inputs, outputs, inits)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)])


CONFIG = {
    "model": {
        "bos_token_id": 1, "context_length": CONTEXT, "eos_token_id": VOCABULARY - 1, "pad_token_id": 0, "type": "llama",
        "vocab_size": VOCABULARY, "decoder": {
            "session_options": {"provider_options": []}, "filename": "model.onnx", "head_size": HEAD, "hidden_size": HIDDEN, "inputs": {
                "input_ids": "input_ids", "attention_mask": "attention_mask", "past_key_names": "past_key_values.%d.key",
                "past_value_names": "past_key_values.%d.value"
            }, "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
            "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_key_value_heads": KV_HEADS
        }
    },
    "search": {"do_sample": False, "max_length": CONTEXT, "past_present_share_buffer": True},
}
GENERATE = r"""
import os, sys, numpy as np, onnxruntime_genai as og
rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
model = og.Model(sys.argv[1] if rank is None else "%s/rank%s" % (sys.argv[1], rank))
options = og.GeneratorParams(model)
options.set_search_options(max_length=40, do_sample=False)
generator = og.Generator(model, options)
generator.append_tokens(np.array([[1, 7, 11]], np.int32))
tokens = []
while not generator.is_done() and len(tokens) < 20:
    generator.generate_next_token()
    tokens.append(int(generator.get_next_tokens()[0]))
sys.stdout.write(" ".join(map(str, ["tokens", rank, *tokens])) + "\n")  # at once: both ranks write to one pipe
sys.stdout.flush()
"""


def write_folder(folder):
    os.makedirs(folder)
    onnx.save(decoder(), folder + "/model.onnx")
    for name, text in (("genai_config.json", json.dumps(CONFIG)), ("tokenizer_config.json", "{}")):
        with open(folder + "/" + name, "w") as f:
            f.write(text)


if sys.argv[1] == "make":
    write_folder(sys.argv[2])
    sys.exit(0)


def generated(launch, folder):
    p = subprocess.run(launch + [sys.executable, "-c", GENERATE, folder], capture_output=True, text=True, timeout=240)
    return sorted(line.split()[1:] for line in p.stdout.splitlines() if line.startswith("tokens ")), p.stderr


with tempfile.TemporaryDirectory(prefix="tessera-genai-") as d:
    whole = d + "/whole"
    write_folder(whole)
    rc, out, err = tessera("info", whole)
    case("info takes the folder", rc == 0 and "GroupQueryAttention" in out, err)
    rc, out, err = tessera("verify", whole, "--devices", 2)
    case("verify makes inputs that fit together", rc == 0, out + err)
    rc, out, err = tessera("plan", whole, "--devices", 2, "-o", d + "/planned.onnx")
    case("plan needs no sizes", rc == 0 and "assumed" not in err, out + err)
    rc, out, err = tessera("plan", whole, "--devices", 2, "--state", "past_key_values.*=present.*", "--dim",
                           "past_sequence_length=%d" % (CONTEXT // 2), "-o", d + "/planned.onnx")
    case("plan with states", rc == 0, out + err)
    rc, out, err = tessera("info", d + "/planned.onnx", "--json")
    cut = {s["sharding"] for s in json.loads(out)["shardings"] if s["value"] in ("present.0.key", "present.1.value")}
    case("the plan cuts the caches", rc == 0 and cut == {"{1,2,1,1:0,1}"}, cut)  # as `generate` plans; else nothing is sharded below
    small = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "folders/genai_tiny")
    rc, out, err = tessera("partition", small, "--devices", 2, "--dry-run")
    case("says where one device is as fast, with figures", rc == 0 and "one device is as fast: predicted time 0." in err, out + err)
    good = "one device is as fast: predicted time 0."
    rc, out, err = tessera("partition", small, "--devices", 2, "--layout", "genai", "-o", d + "/small")
    case("also of a folder for each device", rc == 0 and good in err, out + err)
    rc, out, err = tessera("partition", small, "--devices", 2, "--layout", "genai", "-o", d + "/small", "--force", "--json")
    said = json.loads(out) if rc == 0 else {}
    left = [name for name in os.listdir(d) if name.startswith(".tessera")]
    case("its own folders are replaced, whole", rc == 0 and sorted(os.listdir(d + "/small")) == ["rank0", "rank1"] and not left, left)
    case("and in JSON, as plan has it", 0 < said.get("one_device", 0) <= said.get("cost", 0) and good not in err, out + err)
    for mine in ("/small/mine", "/small/rank1/mine"):
        os.mkdir(d + mine)
        rc, out, err = tessera("partition", small, "--devices", 2, "--layout", "genai", "-o", d + "/small", "--force")
        case("a folder with somebody's own in it is not replaced, " + mine, rc == 8 and "[output-exists]" in err
             and os.path.isdir(d + mine), err)
        os.rmdir(d + mine)
    rc, out, err = tessera("generate", small, "--devices", 2, "--ids", "1,7", "--max-tokens", 2)
    case("also of tokens", rc == 0 and good in err, out + err)
    rc, out, err = tessera("generate", small, "--devices", 2, "--ids", "1,7", "--max-tokens", 2, "--json")
    said = json.loads(out) if rc == 0 else {}
    case("and of tokens in JSON", 0 < said.get("one_device", 0) <= said.get("cost", 0) and good not in err, out + err)
    rc, out, err = tessera("generate", small, "--ids", "1,7", "--max-tokens", 2, "--json")
    case("a whole model has nothing predicted", rc == 0 and "one_device" not in json.loads(out), out + err)
    rc, out, err = tessera("generate", small, "--ids", "1,7", "--max-tokens", 200)
    case("it ends where the model's context does", rc == 0 and len(out.split()) == 127, (out, err))
    rc, out, err = tessera("generate", small, "--ids", ",".join(["1"] * 129))
    case("a prompt longer than that is refused", rc == 1 and "[input-mismatch]" in err and "context 128" in err, (out, err))
    rc, out, err = tessera("generate", small, "--ids", "1,64")
    case("and an unknown token id", rc == 1 and "[input-mismatch]" in err and "64 is not a token id" in err, (out, err))
    rc, out, err = tessera("run", small, "--devices", 2, "--json")
    said = json.loads(out) if rc == 0 else {}
    case("run says it too", 0 < said.get("one_device", 0) <= said.get("cost", 0), out + err)
    rc, out, err = tessera("partition", whole, "--devices", 2, "--layout", "genai", "-o", d + "/cut")
    case("without a warning about what it does inside", "warning" not in err, err)
    files = set(os.listdir(d + "/cut/rank1")) if rc == 0 else set()
    case("one folder for each device", rc == 0
         and {"model.onnx", "genai_config.json", "tokenizer_config.json", "libtessera_ops.so"} <= files, err)
    if rc == 0:
        with open(d + "/cut/rank1/genai_config.json") as f:
            own = json.load(f)["model"]["decoder"]
        case("with the numbers of its heads", (own["num_attention_heads"], own["num_key_value_heads"]) == (HEADS // 2, KV_HEADS // 2), own)
    for name, broken in (("model.decoder", {"model": {"type": "llama", "num_key_value_heads": KV_HEADS}}),
                         ("session_options",
                          {"model": {**CONFIG["model"], "decoder": {**CONFIG["model"]["decoder"], "session_options": 7}}})):
        shutil.copytree(whole, d + "/broken")
        with open(d + "/broken/genai_config.json", "w") as f:
            json.dump(broken, f)
        rc, out, err = tessera("partition", d + "/broken", "--devices", 2, "--layout", "genai", "-o", d + "/none")
        case("a configuration without a right %s is refused" % name, rc == 5 and "[folder-layout]" in err and name in err
             and not os.path.exists(d + "/none"), err)
        shutil.rmtree(d + "/broken")
    words = ["generate", whole, "--ids", "1,7,11", "--max-tokens", 12]
    rc, alone, err = tessera(*words)
    case("generate gives tokens", rc == 0 and 1 < len(alone.split()) <= 12, err)
    for more in (["--devices", 2], ["--devices", 2, "--transport", "shm"]):
        rc, cut, err = tessera(*words, *more)
        case("the same tokens, " + " ".join(map(str, more)), rc == 0 and cut == alone, cut + err)
    seen = onnx.load(whole + "/model.onnx")  # another node reads the size of a cache, so the cache must not have spare capacity
    seen.graph.node.append(helper.make_node("Size", ["past_key_values.0.key"], ["size"]))
    seen.graph.output.append(helper.make_tensor_value_info("size", TensorProto.INT64, []))
    shutil.copytree(whole, d + "/seen")
    onnx.save(seen, d + "/seen/model.onnx")
    for more in ([], ["--devices", 2]):
        rc, cut, err = tessera("generate", d + "/seen", *words[2:], *more)
        case("the same tokens where caches grow " + " ".join(map(str, more)), rc == 0 and cut == alone, cut + err)
    drawn = [tessera(*words, "--devices", 2, "--temperature", 5, "--top-k", 30, "--top-p", 0.95, "--seed", k) for k in (1, 1, 2, 3, 4)]
    tokens = [out for _, out, _ in drawn]
    case("drawn tokens follow the seed", all(rc == 0 for rc, _, _ in drawn) and tokens[0] == tokens[1] and len(set(tokens)) > 1, drawn)
    rc, out, err = tessera("bench", whole, "--devices", 2, "--seconds", 0.2, "--prompt-tokens", 9, "--max-tokens", 5, "--json")
    said = json.loads(out) if rc == 0 else {}
    case(
        "bench has tokens per second", rc == 0 and said["devices"] == 2 and said["ours"]["prefill_per_s"] > 0
        and said["ours"]["decode_per_s"] > 0 and said["ours"]["rounds"] > 1, out + err)
    try:
        import onnxruntime_genai  # noqa: F401
        case(
            "bench has its peer beside it", said["peer"]["rounds"] > 0
            and abs(said["decode_ratio"] * said["peer"]["decode_per_s"] / said["ours"]["decode_per_s"] - 1) < 1e-6, out)
    except ImportError:
        harness.skip("bench has its peer beside it", "this Python has no onnxruntime-genai")
    # Every command accepts every form of --devices.
    tessera("topology", "make", "ring:2", "-o", d + "/ring.json")
    for text, devices in (("ring:2", 2), ("{2, [[1],[0]]}", 2), (d + "/ring.json", 2), (d + "/planned.onnx", 2), ("CPU,CPU", 2),
                          ("cpu:1", 1), ("auto:cpu:2", None), ("auto", None)):
        name = os.path.basename(text)
        rc, cut, err = tessera(*words, "--devices", text)
        case("generate on " + name, rc == 0 and cut == alone, cut + err)
        rc, out, err = tessera("partition", whole, "--devices", text, "--layout", "genai", "-o", d + "/forms", "--force", "--json")
        folders = len(os.listdir(d + "/forms")) if rc == 0 else 0
        case("folders for " + name, folders == json.loads(out)["devices"]
             and (folders == devices or (devices is None and folders in (1, 2))), out + err)
    said = {}
    for text in ("cpu:1", "cpu:2", "auto:cpu:2"):
        said[text] = json.loads(
            tessera("partition", small, "--devices", text, "--layout", "genai", "-o", d + "/forms", "--force", "--json")[1] or "{}")
    rc, out, err = tessera("partition", small, "--devices", 1, "--layout", "genai", "-o", d + "/forms", "--force")
    case("one device is no warning", rc == 0 and "warning" not in err, err)
    case("auto takes what is best for the layout", said["auto:cpu:2"].get("cost") == min(said["cpu:1"]["cost"], said["cpu:2"]["cost"]),
         said)
    rc, out, err = tessera("bench", whole, "--devices", d + "/planned.onnx", "--seconds", 0.01, "--prompt-tokens", 2, "--max-tokens", 2,
                           "--json")
    text = tessera("bench", whole, "--devices", 2, "--seconds", 0.01, "--prompt-tokens", 2, "--max-tokens", 3)[1].splitlines()
    case("bench prints a table", text[0].endswith("2 prompt tokens and 3 new tokens") and text[2].startswith("2 ranks, ")
         and len(text) in (4, 5), text)
    case("bench on a planned model", rc == 0 and json.loads(out)["devices"] == 2, out + err)
    rc, out, err = tessera("bench", small, "--devices", "auto:cpu:2", "--seconds", 0.01, "--prompt-tokens", 2, "--max-tokens", 2, "--json")
    case("bench says how many devices were best", rc == 0 and json.loads(out)["devices"] == 1, out + err)
    for text, code, said in (("nosuch.json", 3, "[io-open]"), ("wrong", 2, "unknown topology 'wrong'"), ("0", 2, "from 1 up"),
                             (whole + "/model.onnx", 1, "not written by `tessera plan`"), ("cuda:2", 7, "this machine has 0 GPUs")):
        if text == "cuda:2" and shutil.which("nvidia-smi"):
            continue
        for call in (words, ["bench", whole], ["partition", whole, "--layout", "genai", "-o", d + "/no"]):
            rc, out, err = tessera(*call, "--devices", text)
            case("%s refuses %s" % (call[0], os.path.basename(text)), rc == code and said in err and "full:" not in err.split("help:")[0],
                 "exit %d %s" % (rc, err))
    rc, out, err = tessera("bench", whole, "--stages", 2)
    case("bench of a folder refuses what it cannot follow", rc == 2 and "--stages" in err, err)
    rc, out, err = tessera("bench", whole, "--prompt-tokens", "many")
    case("bench wants numbers", rc == 2 and "--prompt-tokens" in err, err)
    rc, out, err = tessera("generate", whole, "--prompt", "Hello")
    case("text says what to install", rc == 2 and "tokenizers" in err, err)
    rc, out, err = tessera("generate", whole, "--devices", 2, "--ids", "1,7", "--max-tokens", 0)
    case("no tokens are made where none are wanted", rc == 0 and out.strip() == "", (rc, out, err))
    rc, out, err = tessera("generate", whole, "--ids", "1,x")
    case("wrong tokens are told", rc == 2 and "--ids" in err, err)
    package = os.path.join(os.path.dirname(TESSERA), "python")
    if os.path.exists(package + "/tessera/generation.py"):
        os.environ["TESSERA_LIBRARY"] = os.path.join(os.path.dirname(TESSERA), "libtessera.so")
        sys.path.insert(0, package)
        import importlib
        module = importlib.import_module("tessera")
        got = list(module.generate(whole, [1, 7, 11], devices=2, max_tokens=12))
        case("Python's tokens are the same", got == list(map(int, alone.split())), got)
        for text in ("ring:2", d + "/ring.json", d + "/planned.onnx", "auto"):
            again = list(module.generate(whole, [1, 7, 11], devices=text, max_tokens=12))
            case("and on " + os.path.basename(text), again == got, again)
        some = module.generate(whole, [1, 7, 11], devices=2, max_tokens=100)
        first = [next(some), next(some)]
        some.close()
        case("a caller may stop early", first == got[:2], first)
    rc, out, err = tessera("partition", whole + "/model.onnx", "--devices", 2, "--layout", "genai", "-o", d + "/no")
    case("refuses a model without a folder", rc == 2, "exit %d %s" % (rc, err))
    with open(whole + "/genai_config.json", "w") as f:
        f.write("[")
    rc, out, err = tessera("info", whole)
    case("a broken configuration is told", rc == 3 and "folder-malformed" in err, "exit %d %s" % (rc, err))
    huge = json.loads(json.dumps(CONFIG))
    huge["model"]["decoder"]["num_key_value_heads"] = (1 << 63) - 1
    with open(whole + "/genai_config.json", "w") as f:
        f.write(json.dumps(huge))
    rc, out, err = tessera("generate", whole, "--devices", 2, "--ids", "1,7", "--max-tokens", 2)
    case("heads that no model can have are refused", rc == 3 and "num_key_value_heads" in err, "exit %d %s" % (rc, err))
    with open(whole + "/genai_config.json", "w") as f:
        f.write(json.dumps(CONFIG))
    mpirun = next((p for p in (shutil.which("mpirun.openmpi"), shutil.which("mpirun")) if p), None)
    for more in ([], ["--temperature", 5, "--seed", 3]) if mpirun else ():
        rc, one, err = tessera(*words, "--devices", 2, *more)
        launch = [mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2", TESSERA, *words, "--devices", 2, *more]
        ran = subprocess.run(list(map(str, launch)), capture_output=True, text=True, timeout=harness.HANG_S)
        case("all ranks of a launcher generate the same tokens " + " ".join(map(str, more)), rc == 0 and ran.returncode == 0
             and ran.stdout == one, ran.stdout + ran.stderr + one + err)
    try:
        import onnxruntime_genai  # noqa: F401
        missing = "" if mpirun else "no mpirun"
    except ImportError:
        missing = "this Python has no onnxruntime-genai"
    if missing:
        harness.skip("a stock onnxruntime-genai generates with it", missing)
    else:
        want, err = generated([], whole)
        got, said = generated([mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"], d + "/cut")
        case("a stock onnxruntime-genai generates with it",
             bool(want) and len(want[0]) > 2 and [g[0] for g in got] == ["0", "1"] and all(g[1:] == want[0][1:] for g in got),
             "%s, expected %s %s" % (got, want, err + said))
harness.finish()
