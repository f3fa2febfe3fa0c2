#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the execution provider on a real GPU. Compares ranks that share GPU 0 with a plain CUDA session, with inputs and outputs in host
and in GPU memory, and prints times of a decoder whose caches stay on the GPU. Without a GPU or without onnxruntime-gpu it prints what it
skips.

usage: provider.py LIBRARY MODELS [models | small | large | concat | kept] ...    default: all
models: results of the models in MODELS; small, large: times of a decoder of 8 layers of 4096, or 4 layers of 8192
kept: as small, with 4,096 tokens in caches that stay with the ranks (caches=ranks), while the program's buffers are in host memory
concat: as small, with attention of plain operators, caches that grow by Concat, and ports with other names than exporters give them
bench/decoder_gpu.py uses its functions, too."""
import json
import os
import statistics
import sys
import tempfile
import time

os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # no TF32: float32 products are exact
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../genai"))
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper

import decoder

NVIDIA = 0x10DE
MODEL_NAMES = ("bert_tiny", "llama_tiny", "gpt2_tiny", "vit_tiny", "t5_tiny")
SIZES = {"small": dict(hidden=4096, heads=32, layers=8), "large": dict(hidden=8192, heads=64, layers=4),
         "concat": dict(hidden=4096, heads=32, layers=8, form="concat")}
KEPT, KEPT_PROMPT = dict(hidden=4096, heads=32, layers=8), 4096
# Names of the tokens, of a cache and of the cache in the next run.
PORTS = {"packed": ("input_ids", "past_key_values.%s", "present.%s"), "concat": ("ids", "in.%s", "out.%s")}
KV_HEADS, HEAD, PROMPT, STEPS = 8, 128, 512, 40
DIMS = "batch_size=1,sequence_length=1,total_sequence_length=512,past_sequence_length=511"
failed = 0


def check(name, right, details=""):
    global failed
    failed += not right
    print("%s %s%s" % ("ok" if right else "FAILED", name, "" if right else ": %s" % (details,)), flush=True)


def plain_session(path):
    return onnxruntime.InferenceSession(path, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])


def provider_session(path, device, **options):
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.add_provider_for_devices([device], {"strict": "1", **options})
    return onnxruntime.InferenceSession(path, settings)


def feeds_of(session):
    random = np.random.default_rng(3)
    feeds = {}
    for port in session.get_inputs():
        shape = [size if isinstance(size, int) else 4 for size in port.shape]
        feeds[port.name] = random.integers(0, 2, shape) if "int64" in port.type else random.standard_normal(shape).astype("f4")
    return feeds


def differ(got, wanted):
    """The largest difference, relative to the largest magnitude."""
    return max(float(np.abs(g.astype("f8") - w).max() / max(np.abs(w).max(), 1e-6)) for g, w in zip(got, wanted))


def on_gpu(array, kind=("gpu", 0, NVIDIA)):
    return onnxruntime.OrtValue.ortvalue_from_numpy(array, *kind)


def run_bound(session, feeds, wanted):
    binding = session.io_binding()
    outputs = [on_gpu(np.zeros_like(array)) for array in wanted]
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, on_gpu(array))
    for port, value in zip(session.get_outputs(), outputs):
        binding.bind_ortvalue_output(port.name, value)
    session.run_with_iobinding(binding)
    return [np.array(value.numpy()) for value in outputs]


def small_models(folder, cpu, gpu):
    for name in MODEL_NAMES:
        path = "%s/%s/model.onnx" % (folder, name)
        session = plain_session(path)
        feeds = feeds_of(session)
        wanted = session.run(None, feeds)
        for devices in ("cuda:2@0", "cuda:3@0"):
            for where, device in (("host memory", cpu), ("GPU memory", gpu)):
                try:
                    session = provider_session(path, device, devices=devices)
                    got = [session.run(None, feeds) for _ in range(3)]
                    worst = max(differ(each, wanted) for each in got)
                    check("%s on %s, %s" % (name, devices, where), worst < 1e-4, worst)
                    if device is gpu:
                        worst = differ(run_bound(session, feeds, wanted), wanted)
                        check("%s on %s, bound to GPU memory" % (name, devices), worst < 1e-4, worst)
                except Exception as error:
                    check("%s on %s, %s" % (name, devices, where), False, error)


# ---- the decoder --------------------------------------------------------------------------------


class Builder(decoder.Builder):
    """Weights of the same shape are equal, so that a decoder of several GB is built in seconds."""

    weights = {}

    def project(self, x, name, rows, columns):
        if self.bits == 4:
            return self.project_packed(x, name, rows, columns)
        if (rows, columns) not in self.weights:
            numbers = self.rng.standard_normal(1000003).astype("f4") * np.float32(0.25 / rows**0.5)  # small: the decoder has no norms
            self.weights[rows, columns] = np.resize(numbers.astype("f2"), (rows, columns))
        return self.node("MatMul", [x, self.constant(name + ".weight", self.weights[rows, columns])], [name])


    def project_packed(self, x, name, rows, columns):
        if (rows, columns, 4) not in self.weights:
            self.weights[rows, columns, 4] = np.resize(
                self.rng.integers(0, 256, 1000003).astype("u1"), (columns, rows // decoder.BLOCK, decoder.BLOCK // 2))
        scales = np.full(columns * rows // decoder.BLOCK, 0.05 / rows**0.5, "f2")
        ins = [x, self.constant(name + ".weight", self.weights[rows, columns, 4]), self.constant(name + ".scales", scales)]
        return self.node("MatMulNBits", ins, [name], domain="com.microsoft", K=rows, N=columns, bits=4, block_size=decoder.BLOCK)


def write_decoder(folder, hidden, heads, layers, bits=16, form="packed", context=1024):
    decoder.HIDDEN, decoder.HEAD, decoder.LAYERS, decoder.VOCABULARY, decoder.CONTEXT = hidden, HEAD, layers, 32000, context
    model = Builder(heads, KV_HEADS, form, bits, 0, mlp=3).model()
    for port in [*model.graph.input, *model.graph.output]:  # CUDA supports this attention for float16 only
        if port.type.tensor_type.elem_type == TensorProto.FLOAT:
            port.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("f2"), tensor.name))
    onnx.save(model, folder + "/model.onnx", save_as_external_data=True, location="weights", size_threshold=1024)
    return folder + "/model.onnx"


def prepare(session, kind, layers, shared, form="packed", prompt=PROMPT):
    """Bindings of the prefill and of each step. Each cache has its own memory on the GPU. shared: one buffer of the maximum length is both
    past and present of all steps, as onnxruntime-genai binds it; otherwise each step allocates larger caches."""
    def zeros(shape, dtype):
        return on_gpu(np.zeros(shape, dtype), kind)

    ids, before, after = PORTS[form]
    ports = ["%d.%s" % (k, which) for k in range(layers) for which in ("key", "value")]
    past = {port: zeros((1, KV_HEADS, decoder.CONTEXT if shared else 0, HEAD), "f2") for port in ports}
    bindings = []
    for step in range(STEPS + 1):
        new = prompt if step == 0 else 1
        total = prompt + step
        binding = session.io_binding()
        binding.bind_ortvalue_input(ids, on_gpu((np.arange(new)[None] * 7 + step) % 32000, kind))
        if form != "concat":
            binding.bind_ortvalue_input("attention_mask", on_gpu(np.ones((1, total), "i8"), kind))
        logits = zeros((1, new, 32000), "f2")
        binding.bind_ortvalue_output("logits", logits)
        for port in ports:
            present = past[port] if shared else zeros((1, KV_HEADS, total, HEAD), "f2")
            binding.bind_ortvalue_input(before % port, past[port])
            binding.bind_ortvalue_output(after % port, present)
            past[port] = present
        bindings.append((binding, logits))
    return bindings


def times(session, kind, layers, shared, form="packed", prompt=PROMPT):
    """Milliseconds of the prefill and of a step, and the logits of the last token in each step. A sequence is generated three times. "new
    lengths" are the steps of the first time, whose lengths the session has not seen before; "decode" are those of the other two."""
    bindings = prepare(session, kind, layers, shared, form, prompt)
    took = {"prefill": [], "decode": [], "new lengths": []}
    for turn in range(3):
        for step, (binding, _) in enumerate(bindings):
            began = time.perf_counter()
            session.run_with_iobinding(binding)
            what = "prefill" if step == 0 else "decode" if turn else "new lengths"
            took[what].append(1000 * (time.perf_counter() - began))
    took["prefill"].pop(0)  # the first run tunes and allocates
    return {what: statistics.median(all_) for what, all_ in took.items()}, [np.array(logits.numpy())[0, -1] for _, logits in bindings]


def same_tokens(got, wanted):
    """True if each step selects the same token. Two logits that differ by less than the rounding of float16 may change places."""
    return all(w.max() - w[g.argmax()] <= 4 * np.spacing(np.float16(w.max())) for g, w in zip(got, wanted))


def decoder_times(gpu, name):
    size = SIZES[name]
    form = size.get("form", "packed")
    kinds = (False,) if form == "concat" else (False, True)
    with tempfile.TemporaryDirectory() as folder:
        path = write_decoder(folder, **size)
        print("%s: %.1f GB of weights" % (name, os.path.getsize(folder + "/weights") / 1e9), flush=True)
        session = plain_session(path)
        plain = {shared: times(session, ("cuda", 0), size["layers"], shared, form) for shared in kinds}
        del session
        summary = folder + "/summary.json"
        session = provider_session(path, gpu, devices="cuda:2@0", dims=DIMS, summary=summary)
        with open(summary) as f:
            print("summary", json.dumps(json.load(f)), flush=True)
        for shared, (took, wanted) in plain.items():
            caches = "one buffer" if shared else "growing caches"
            ours, got = times(session, ("gpu", 0, NVIDIA), size["layers"], shared, form)
            worst = differ(got, wanted)
            check("%s decoder on cuda:2@0, %s" % (name, caches), worst < 2e-2, worst)
            check("%s decoder on cuda:2@0, %s: tokens" % (name, caches), same_tokens(got, wanted))
            check("%s decoder on cuda:2@0, %s: new lengths need no planning" % (name, caches), ours["new lengths"] < 5 * ours["decode"],
                  ours)
            for what in ours:
                print("%s cuda:2@0, %s, %s: %.3f ms, plain CUDA session %.3f ms: %.2f" % (
                    name, caches, what, ours[what], took[what], ours[what] / took[what]), flush=True)


def kept_times(cpu):
    """Compares caches=ranks with a plain session whose caches are bound to GPU memory. The program's buffers are in host memory, as those
    of onnxruntime-genai, and no byte of them may be copied."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_decoder(folder, context=KEPT_PROMPT + 2 * STEPS, **KEPT)
        session = plain_session(path)
        took, wanted = times(session, ("cuda", 0), KEPT["layers"], True, prompt=KEPT_PROMPT)
        del session
        summary = folder + "/summary.json"
        session = provider_session(path, cpu, devices="cuda:2@0", dims=DIMS, summary=summary, caches="ranks")
        ours, got = times(session, ("cpu", 0), KEPT["layers"], True, prompt=KEPT_PROMPT)
        del session
        with open(summary) as f:
            copied = json.load(f)["copied_cache_bytes"]
        worst = differ(got, wanted)
        check("kept decoder on cuda:2@0", worst < 2e-2, worst)
        check("kept decoder on cuda:2@0: tokens", same_tokens(got, wanted))
        check("kept decoder on cuda:2@0: no copied caches", copied == 0, copied)
        for what in ours:
            print("kept cuda:2@0, %s: %.3f ms, plain CUDA session %.3f ms: %.2f" % (what, ours[what], took[what], ours[what] / took[what]),
                  flush=True)


def register(library):
    """The provider's devices for the CPU and for GPU 0; None if there is no GPU."""
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        print("left out: everything, this onnxruntime has no CUDA provider")
        return None
    onnxruntime.register_execution_provider_library("tessera", os.path.abspath(library))
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "TesseraExecutionProvider"]
    kinds = [device.device.type.name for device in devices]
    print("devices", kinds)
    if "GPU" not in kinds:
        print("left out: everything, there is no GPU")
        return None
    return devices[kinds.index("CPU")], devices[kinds.index("GPU")]


def main():
    devices = register(sys.argv[1])
    if not devices:
        return
    cpu, gpu = devices
    for name in sys.argv[3:] or ("models", *SIZES, "kept"):
        try:
            if name == "models":
                small_models(os.path.abspath(sys.argv[2]), cpu, gpu)
            elif name == "kept":
                kept_times(cpu)
            else:
                decoder_times(gpu, name)
        except Exception as error:
            check(name, False, error)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
