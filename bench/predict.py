#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""predict - what a plan for the measured topology of this machine says of made transformer blocks, against runs of them: time, and the memory
of the fullest rank. Ranks are processes. Measuring and running take turns, and the best of all rounds counts on both sides: what
else the machine does then hurts both. Prints one line per figure: name, predicted, measured, ratio, goal, ok or short.
Options: rounds, seconds of each run, numbers of ranks (1,2,4; default: 1 and 2, as far as there are cores)."""
import json, os, subprocess, sys, tempfile

from figures import ROOT, say, tessera

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
SECONDS = sys.argv[2] if len(sys.argv) > 2 else "2"
CORES = len(os.sched_getaffinity(0))
RANKS = [int(n) for n in sys.argv[3].split(",")] if len(sys.argv) > 3 else [n for n in (1, 2) if n <= CORES]
BLOCKS = [(256, 1024, 16, 4), (1024, 512, 8, 2), (64, 1024, 16, 2), (512, 1024, 16, 1), (1, 2048, 16, 2)]
TIME, MEMORY = 0.25, 0.10  # how far a prediction may be off


def block(d, n, sizes):
    model, here, planned, parts = d + "/model.onnx", d + "/here%d.json" % n, d + "/planned.onnx", d + "/parts%d" % n
    plans, peaks, runs = [], [], []
    for i in range(ROUNDS):
        tessera("topology", "measure", "--devices", "cpu:%d" % n, "--transport", "shm", "--seconds", "3", "--quiet", "-o", here)
        plans.append(json.loads(tessera("plan", model, "--devices", here, "-o", planned, "--json")))
        peaks += [t["peak"] for t in json.loads(tessera("simulate", planned, "--json"))["timeline"]]
        tessera("partition", planned, "-o", parts, "--force")
        runs.append(json.loads(tessera("bench", parts, "--transport", "shm", "--seconds", SECONDS, "--json")))
    name = "predict: %d x %d, %d layers, %d x %d" % (sizes[0], sizes[1], sizes[3], n, max(1, CORES // n))
    said, took = min(p["cost"] / 1e9 for p in plans), min(r["run_ms"]["min"] for r in runs)
    if took >= 5:  # shorter runs are not promised
        say(name + " threads, time", "%.2f ms" % said, "%.2f ms" % took, said / took, TIME)
    said, took = max(peaks) / 2**20, max(max(r["memory"]) for r in runs) / 2**20
    say(name + " threads, memory", "%.1f MiB" % said, "%.1f MiB" % took, said / took, MEMORY)


for sizes in BLOCKS:
    with tempfile.TemporaryDirectory(prefix="tessera-predict-") as folder:
        made = subprocess.run([ROOT + "/tests/witness", ROOT + "/tools/block", folder, *map(str, sizes), "random"], capture_output=True, text=True)
        if made.returncode:
            sys.exit("bench: the model could not be made: " + made.stdout + made.stderr)
        for ranks in RANKS:
            block(folder, ranks, sizes)
