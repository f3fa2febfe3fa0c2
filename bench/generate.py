#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""generate - onnxruntime-genai with the execution provider on ranks of one thread each, compared with onnxruntime-genai with the same
number of threads.

The model is a random decoder of 8 layers (tests/genai/decoder.py), 450 MB in float32 and 100 MB in int4. Both sides alternate in one
process with a pause between them; the best round of each counts. In float32 both must generate the same tokens. The last figure limits the
memory of each process to less than the float32 weights, so that only rank processes can run the model.

Prints one line per figure: name, ours, peer, ratio, goal, ok or short.
usage: generate [ROUNDS [RANKS]]"""
import os, resource, shutil, subprocess, sys, tempfile, time

ROOT = os.getcwd()  # tools/bench starts it in the root of the project
HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["TESSERA_LIBRARY"] = os.path.join(HERE, "..", "libtessera.so")
sys.path[:0] = [os.path.join(HERE, "..", "python"), ROOT + "/tests/genai"]
LIMITED = sys.argv[1:2] == ["limited"]  # this process runs one side of the last figure
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 and not LIMITED else 5
RANKS = int(sys.argv[2]) if len(sys.argv) > 2 else 4 if len(os.sched_getaffinity(0)) >= 4 else 2
PROMPT, TOKENS, GOAL = 256, 32, 0.95
# seconds before a measurement; ONNX Runtime's threads spin for tens of milliseconds after a run and would slow down the other side
PAUSE = 0.3
MEMORY = 0.8  # limit of each process in the last figure, as a fraction of the weights
FIELDS = dict(HIDDEN=1024, HEAD=64, LAYERS=8, VOCABULARY=8192, CONTEXT=1024)


def open_model(folder, sharded, **options):
    import onnxruntime_genai as genai
    import tessera
    if sharded:
        return tessera.Generator(folder, devices=RANKS, threads=1, **options).model
    config = genai.Config(folder)
    config.overlay('{"model": {"decoder": {"session_options": {"intra_op_num_threads": %d}}}}' % RANKS)
    return genai.Model(config)


def measure(model):
    """(tokens per second of the prompt, of the tokens after the first; the tokens)."""
    import numpy as np
    import onnxruntime_genai as genai
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=PROMPT + TOKENS, min_length=PROMPT + TOKENS, do_sample=False)
    generator = genai.Generator(model, parameters)
    time.sleep(PAUSE)
    began = time.perf_counter()
    generator.append_tokens(np.array([[(3 + 31 * i) % FIELDS["VOCABULARY"] for i in range(PROMPT)]], np.int32))
    generator.generate_next_token()
    first, made = time.perf_counter(), 1
    while made < TOKENS and not generator.is_done():
        generator.generate_next_token()
        made += 1
    return PROMPT / (first - began), (made - 1) / (time.perf_counter() - first), generator.get_sequence(0)[PROMPT:].tolist()


def say(name, ours, peer, ratio, goal, ok):
    print("%-52s %14s %14s %8s  %-8s %s" % ("generate: " + name, ours, peer, ratio, goal, "ok" if ok else "short"), flush=True)


def compare_speed(folder, bits):
    models = [open_model(folder, sharded) for sharded in (True, False)]
    figures = [[measure(model) for model in models] for _ in range(ROUNDS + 1)][1:]
    if bits == 32 and figures[0][0][2] != figures[0][1][2]:
        sys.exit("bench: the sharded model generates other tokens")
    for k, what in enumerate(("prefill", "decode")):
        ours, peer = (max(row[side][k] for row in figures) for side in (0, 1))
        say("%s, %d bits, %d ranks against %d threads" % (what, bits, RANKS, RANKS), "%.1f/s" % ours, "%.1f/s" % peer,
            "%.2f" % (ours / peer), ">=%.2gx" % GOAL, ours >= GOAL * peer)


# ---- a model that exceeds the memory of one process ---------------------------------------------


def run_limited(folder, side, limit):
    """Generate with a limit on the private memory of this process and its children."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    print("%.1f" % measure(open_model(folder, side == "ours", **({"transport": "shm"} if side == "ours" else {})))[1])


def limited(folder, side, limit):
    """Tokens per second of decoding as text; None: out of memory. numpy would reserve memory for a thread on each core."""
    done = subprocess.run([sys.executable, __file__, "limited", str(RANKS), folder, side,
                           str(limit)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    if done.returncode == 0:
        return done.stdout.split()[-1] + "/s"
    if "alloc" in done.stderr or "memory" in done.stderr:
        return None
    sys.exit("bench: the process with limited memory failed:\n" + done.stderr)


def compare_memory(folder):
    import onnx
    apart = folder + "-external"  # each rank process reads its own part of the weights
    shutil.copytree(folder, apart, ignore=shutil.ignore_patterns("model.onnx"))
    onnx.save(onnx.load(folder + "/model.onnx"), apart + "/model.onnx", save_as_external_data=True, location="model.onnx.data",
              size_threshold=1024)
    weights = os.path.getsize(apart + "/model.onnx.data")
    ours, peer = (limited(apart, side, int(MEMORY * weights)) for side in ("ours", "peer"))
    say("%d MB of weights, %d MB per process" % (weights / 1e6, MEMORY * weights / 1e6), ours or "no memory", peer or "no memory", "",
        "ours", ours and not peer)


def main(d):
    import decoder
    for name, value in FIELDS.items():
        setattr(decoder, name, value)
    for bits in (32, 4):
        compare_speed(decoder.write("%s/%d" % (d, bits), heads=16, kv_heads=8, bits=bits, mlp=3, norms=True), bits)
    compare_memory(d + "/32")


try:
    import onnxruntime_genai  # noqa: F401
except ImportError:
    sys.exit("bench: generate needs onnxruntime-genai")
if LIMITED:
    run_limited(sys.argv[3], sys.argv[4], int(sys.argv[5]))
else:
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        main(folder)
