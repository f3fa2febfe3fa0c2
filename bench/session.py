#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""session - the time to create tessera.InferenceSession on 2 devices, compared with onnxruntime.InferenceSession.

The models have an open batch and sequence (nets.py). Their sequence is sharded, or with a given batch of 8 their batch. Both sides
alternate in one process; the shortest of each counts: seconds, and CPU seconds of all threads. Ours opens the model, plans and partitions
it, and opens a session for each of the two ranks.

Prints one line per figure: name, ours, peer, ratio, goal, ok or short.
usage: session [ROUNDS]"""
import os, sys, tempfile, time

ROOT, HERE = os.getcwd(), os.path.dirname(os.path.abspath(__file__))  # tools/bench starts it in the root of the project
os.environ["TESSERA_LIBRARY"] = os.path.join(HERE, "..", "libtessera.so")
sys.path[:0] = [HERE, os.path.join(HERE, "..", "python")]
import figures

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
GOALS = (("time", 2.0), ("CPU time", 2.5))
SIZES = (("sequence", {}), ("batch", {"dims": {"batch": 8, "seq": 64}}))


def spent(create):
    """Seconds, and CPU seconds of all threads."""
    began, used = time.perf_counter(), time.process_time()
    session = create()
    times = time.perf_counter() - began, time.process_time() - used
    del session
    return times


def main(folder):
    for net in ("wide-blocks", "narrow-blocks"):
        figures.make(ROOT + "/bench/nets.py", net, folder)
        model = folder + "/model.onnx"
        for sharded, options in SIZES:
            sides = (lambda: tessera.InferenceSession(model, devices=2, **options),
                     lambda: onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]))
            rounds = [[spent(side) for side in sides] for _ in range(ROUNDS + 1)][1:]
            for k, (what, goal) in enumerate(GOALS):
                ours, peer = (min(row[side][k] for row in rounds) for side in (0, 1))
                name = "session: %s, %s sharded, %s" % (net, sharded, what)
                print("%-52s %14s %14s %8.2f  %-8s %s" % (name, "%.3f s" % ours, "%.3f s" % peer, ours / peer, "<=%.2gx" % goal,
                                                          "ok" if ours <= goal * peer else "short"), flush=True)


try:
    import onnxruntime, tessera
except ImportError as error:
    sys.exit("bench: session needs onnxruntime and the package tessera: %s" % error)
with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
    main(folder)
