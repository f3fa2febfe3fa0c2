#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""generate - onnxruntime-genai with the execution provider on ranks of one thread each, against onnxruntime-genai with as many threads.

The model is a random decoder of 8 layers (tests/genai/decoder.py), 550 MB in float32 and 110 MB in int4. Both sides alternate in one
process; the best round of each counts. Prints one line per figure: name, ours, peer, ratio, goal, ok or short. Options: rounds, ranks."""
import os, sys, tempfile, time

ROOT = os.getcwd()  # tools/bench starts it in the project's root
HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["TESSERA_LIBRARY"] = os.path.join(HERE, "..", "libtessera.so")
sys.path[:0] = [os.path.join(HERE, "..", "python"), ROOT + "/tests/genai"]
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
RANKS = int(sys.argv[2]) if len(sys.argv) > 2 else 4 if len(os.sched_getaffinity(0)) >= 4 else 2
PROMPT, TOKENS, GOAL = 256, 32, 0.95
FIELDS = dict(HIDDEN=1024, HEAD=64, LAYERS=8, VOCABULARY=8192, CONTEXT=1024)


def open_models(folder):
    """(sharded, unsharded)"""
    import onnxruntime_genai as genai
    import tessera
    config = genai.Config(folder)
    config.overlay('{"model": {"decoder": {"session_options": {"intra_op_num_threads": %d}}}}' % RANKS)
    return tessera.Generator(folder, devices=RANKS, threads=1).model, genai.Model(config)


def measure(model):
    """Tokens per second of the prompt, and of the tokens after the first."""
    import numpy as np
    import onnxruntime_genai as genai
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=PROMPT + TOKENS, min_length=PROMPT + TOKENS, do_sample=False)
    generator = genai.Generator(model, parameters)
    began = time.perf_counter()
    generator.append_tokens(np.array([[(3 + 31 * i) % FIELDS["VOCABULARY"] for i in range(PROMPT)]], np.int32))
    generator.generate_next_token()
    first, made = time.perf_counter(), 1
    while made < TOKENS and not generator.is_done():
        generator.generate_next_token()
        made += 1
    return PROMPT / (first - began), (made - 1) / (time.perf_counter() - first)


def main(d):
    import decoder
    for name, value in FIELDS.items():
        setattr(decoder, name, value)
    for bits in (32, 4):
        models = open_models(decoder.write("%s/%d" % (d, bits), heads=16, kv_heads=8, bits=bits, mlp=3))
        figures = [[measure(model) for model in models] for _ in range(ROUNDS + 1)][1:]
        for k, what in enumerate(("prefill", "decode")):
            ours, peer = (max(row[side][k] for row in figures) for side in (0, 1))
            print("%-52s %14s %14s %8.2f  %-8s %s" % ("generate: %s, %d bits, %d ranks against %d threads" % (what, bits, RANKS, RANKS),
                  "%.1f/s" % ours, "%.1f/s" % peer, ours / peer, ">=%.2gx" % GOAL, "ok" if ours >= GOAL * peer else "short"), flush=True)


try:
    import onnxruntime_genai  # noqa: F401
except ImportError:
    sys.exit("bench: generate needs onnxruntime-genai")
with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
    main(folder)
