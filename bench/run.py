#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run - a model sharded over two ranks with one thread each, compared with unsharded ONNX Runtime with two threads.

The model is that of docs/measured.md (tools/block). Both sides alternate, and the best run of all rounds counts, so that other load affects
both. Prints one line per figure: name, ours, peer, ratio, goal, ok or short. Options: rounds, seconds of each."""
import json, os, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TESSERA, ROOT = os.path.join(HERE, "..", "tessera"), os.getcwd() # tools/bench starts it in the root of the project
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
SECONDS = sys.argv[2] if len(sys.argv) > 2 else "2"
GOAL = 0.90


def tessera(*words):
    q = subprocess.run([TESSERA, *words], capture_output=True, text=True)
    if q.returncode:
        sys.exit("bench: tessera %s: %s" % (" ".join(words), q.stderr))
    return q.stdout


def bench(*words):
    return json.loads(tessera("bench", *words, "--seconds", SECONDS, "--json"))["run_ms"]["min"]


def main(d):
    model, planned, parts = d + "/model.onnx", d + "/planned.onnx", d + "/parts"
    made = subprocess.run([ROOT + "/tests/run-script", ROOT + "/tools/block", d, "random"], capture_output=True, text=True)
    if made.returncode:
        sys.exit("bench: the model could not be made: " + made.stdout + made.stderr)
    tessera("plan", model, "--devices", "2", "-o", planned)
    tessera("partition", planned, "-o", parts)
    cut = {"threads": [], "shm": []}
    whole = []
    for _ in range(ROUNDS):
        whole.append(bench(model, "--threads", "2"))
        for way, times in cut.items():
            times.append(bench(parts, "--threads", "1", "--transport", way))
    for way, times in cut.items():
        ratio = min(whole) / min(times)
        print("%-52s %14s %14s %8.2f  %-8s %s" % ("run: block, 2 ranks x 1 (%s) against 2 threads" % way, "%.2f ms" % min(times),
              "%.2f ms" % min(whole), ratio, ">=%.2gx" % GOAL, "ok" if ratio >= GOAL else "short"))


with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
    main(folder)
