# SPDX-License-Identifier: Apache-2.0
"""Shared by predict.py and calibrate.py: runs tessera, and prints a figure."""
import importlib.util, os, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
TESSERA, ROOT = os.path.join(HERE, "..", "tessera"), os.getcwd()  # tools/bench starts them in the root of the project


def make(*words):
    """Run a script that writes models, with this Python if it has onnx, otherwise with that of the tests."""
    python = [sys.executable] if importlib.util.find_spec("onnx") else [ROOT + "/tests/run-script"]
    made = subprocess.run([*python, *words], capture_output=True, text=True)
    if made.returncode:
        sys.exit("bench: the models could not be made: " + made.stdout + made.stderr)
    return made.stdout


def tessera(*words):
    q = subprocess.run([TESSERA, *map(str, words)], capture_output=True, text=True)
    if q.returncode:
        sys.exit("bench: tessera %s: %s" % (" ".join(map(str, words)), q.stderr))
    return q.stdout


def say(name, predicted, measured, ratio, off):
    print(
        "%-52s %14s %14s %8.2f  %-12s %s" % (name, predicted, measured, ratio, "%.2f..%.2f" %
                                             (1 - off, 1 + off), "ok" if abs(ratio - 1) <= off else "short"), flush=True)
