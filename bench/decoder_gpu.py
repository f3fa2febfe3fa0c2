#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""decoder_gpu - predicted and measured times of decoders on 1, 2 and 4 ranks that share GPU 0. They run in the execution provider with
caches in GPU memory: float16 and 4-bit weights (MatMulNBits), a prompt of 512 tokens and one token after it. The predictions use the
topology that `tessera topology measure` writes for the same number of ranks.

usage: decoder_gpu.py BUILD [--ranks 1,2,4] [--bits 16,4] [--layers 4] [--seconds 2] [--out FOLDER]
Needs onnxruntime-gpu. --out keeps the measured topologies."""
import argparse, json, os, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/gpu"))
import provider

SIZES = {"prefill": (provider.PROMPT, provider.PROMPT, 0), "decode": (1, 512, 511)}  # tokens, all tokens, tokens in the cache


def tessera(build, *words):
    p = subprocess.run([os.path.join(build, "tessera"), *map(str, words)], capture_output=True, text=True)
    if p.returncode:
        sys.exit("decoder_gpu: tessera %s: %s" % (" ".join(map(str, words)), p.stderr))
    return p.stdout


def dims(what):
    new, total, past = SIZES[what]
    named = dict(batch_size=1, sequence_length=new, total_sequence_length=total, past_sequence_length=past or 1, kv_cache_dim=provider.HEAD)
    return [word for pair in named.items() for word in ("--dim", "%s=%d" % pair)]


def predicted(build, folder, devices):
    """Predicted milliseconds per phase, for the plan of one token, which the provider runs."""
    model, planned = folder + "/model.onnx", folder + "/planned.onnx"
    tessera(build, "plan", model, "--devices", devices, *dims("decode"), "--state", "past_key_values.*=present.*", "-o", planned, "--quiet")
    times = {what: json.loads(tessera(build, "simulate", planned, *dims(what), "--json")) for what in SIZES}
    return {what: 1e3 * doc["seconds"] for what, doc in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--bits", default="16,4")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seconds", default="2")
    parser.add_argument("--out")
    options = parser.parse_args()
    devices = provider.register(options.build + "/libtessera_ep.so")
    if not devices:
        return
    with tempfile.TemporaryDirectory() as d:
        topologies = {}
        for ranks in map(int, options.ranks.split(",")):
            topologies[ranks] = "%s/cuda%d.json" % (options.out or d, ranks)
            if not os.path.exists(topologies[ranks]):
                tessera(options.build, "topology", "measure", "--devices", "cuda:%d@0" % ranks, "--seconds", options.seconds, "--quiet",
                        "-o", topologies[ranks])
        print("%-8s %-8s %5s %10s %10s %7s" % ("weights", "phase", "ranks", "predicted", "measured", "ratio"), flush=True)
        for bits in map(int, options.bits.split(",")):
            folder = "%s/%d" % (d, bits)
            os.mkdir(folder)
            path = provider.write_decoder(folder, 4096, 32, options.layers, bits)
            for ranks, topology in topologies.items():
                said = predicted(options.build, folder, topology)
                if ranks == 1:
                    session, kind = provider.plain_session(path), ("cuda", 0)
                else:
                    session, kind = provider.provider_session(path, devices[1], devices=topology,
                                                              dims=provider.DIMS), ("gpu", 0, provider.NVIDIA)
                took, _ = provider.times(session, kind, options.layers, True)
                del session
                for what in SIZES:
                    print(
                        "%-8s %-8s %5d %10.3f %10.3f %7.2f" %
                        ("float16" if bits == 16 else "int4", what, ranks, said[what], took[what], said[what] / took[what]), flush=True)


main()
