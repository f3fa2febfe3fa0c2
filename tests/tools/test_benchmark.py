# SPDX-License-Identifier: Apache-2.0
"""Runs one short benchmark as `make bench` does, so that its programs and their output keep working: test_benchmark.py BUILD.
Asserts no figure."""
import os
import re
import subprocess
import sys

import harness

BUILD = sys.argv[1]
BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/bench")


def prints_figures(_):
    run = subprocess.run([BENCH, BUILD, "transport_fold"], capture_output=True, text=True, timeout=harness.HANG_S)
    assert run.returncode == 0, run.stdout + run.stderr
    *figures, last = run.stdout.splitlines()
    assert figures and all(re.search(r" [\d.]+ us .* (ok|short)$", line) for line in figures), run.stdout
    assert re.fullmatch(r"%d figures, \d+ short" % len(figures), last), last


def names_an_unknown_group(_):
    run = subprocess.run([BENCH, BUILD, "no_such"], capture_output=True, text=True, timeout=harness.HANG_S)
    assert run.returncode == 1 and "no benchmark named no_such" in run.stderr, run.stderr


harness.run([prints_figures, names_an_unknown_group])
harness.finish()
