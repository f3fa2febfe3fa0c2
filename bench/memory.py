#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""memory - peak memory predicted by `tessera simulate`, compared with that of the rank with the largest peak in `tessera bench`, for models
that use memory for different reasons. Needs no idle machine. Prints one line per figure: name, predicted, measured, ratio, goal, ok or
short.

usage: memory [BUILD] [--devices cpu:2|cuda:2@0] [--only NAME,...] [--sample]
Ranks on CPUs are processes, ranks that share a GPU are threads. --sample: few models, for a test that fails if one is off by more than the
goal plus a megabyte."""
import argparse, json, os, shutil, sys, tempfile

import figures
from figures import ROOT, say, tessera

GOAL = 0.05
BLOCKS = {"block 256 x 1024": (256, 1024, 16, 2), "block 1024 x 512": (1024, 512, 8, 2), "decode 1 x 2048": (1, 2048, 16, 2)}
NETS = ("activations", "convolutions", "decode", "depthwise", "embedding", "gemms", "gemms-plain", "groups", "gru", "half",
        "decode-float16", "integers", "lines", "lstm", "normed", "products", "quantized-conv", "quantized-pairs", "scores", "table", "unet",
        "vgg", "volumes")
SAMPLE = ("convolutions", "depthwise", "scores")


def make(folder, name):
    if name in BLOCKS:
        figures.make(ROOT + "/tools/block", folder, *map(str, BLOCKS[name]), "random")
    else:
        figures.make(ROOT + "/bench/memory_nets.py", name, folder)


def measure(folder, devices):
    """Predicted and measured peak bytes of the rank with the largest peak."""
    parts = folder + "/parts"
    tessera("plan", folder + "/model.onnx", "--devices", devices, "-o", folder + "/planned.onnx")
    timeline = json.loads(tessera("simulate", folder + "/planned.onnx", "--json"))["timeline"]
    tessera("partition", folder + "/planned.onnx", "-o", parts, "--force")
    transport = ["--transport", "shm"] if devices.startswith("cpu") else []
    run = json.loads(tessera("bench", parts, *transport, "--seconds", "0.2", "--json"))
    return max(t["peak"] for t in timeline), max(m or 0 for m in run["memory"])


def main(args, folder):
    kind, ranks = args.devices.split(":", 1)
    ranks, at, card = ranks.partition("@")
    names, far = (args.only.split(",") if args.only else SAMPLE if args.sample else [*BLOCKS, *NETS]), 0
    for name in names:
        made = folder + "/" + name.replace(" ", "")
        make(made, name)
        for n in sorted({1, int(ranks)}):
            said, took = measure(made, "%s:%d%s%s" % (kind, n, at, card))
            say("memory: %s, %d rank%s" % (name, n, "s" * (n > 1)), "%.1f MiB" % (said / 2 ** 20), "%.1f MiB" % (took / 2 ** 20),
                said / took, GOAL)
            far += abs(said - took) > GOAL * took + 2**20
        shutil.rmtree(made)
    return far if args.sample else 0


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("build", nargs="?")
parser.add_argument("--devices", default="cpu:2")
parser.add_argument("--only", help="names of models, with , between them")
parser.add_argument("--sample", action="store_true")
options = parser.parse_args()
if options.build:
    figures.TESSERA = os.path.join(options.build, "tessera")
with tempfile.TemporaryDirectory(prefix="tessera-memory-") as d:
    sys.exit(main(options, d))
