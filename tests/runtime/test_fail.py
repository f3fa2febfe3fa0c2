# SPDX-License-Identifier: Apache-2.0
"""A rank that fails between two exchanges must tell the other rank: every allocation, read and write of one rank fails once (fail_tool.c).

usage: test_fail.py RUN_TOOL BUILD [all]    all: every operation, not a sample"""
import shutil

from parts import *

FAIL = os.path.join(os.path.dirname(TOOL), "fail_tool")
GENAI = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../folders/genai_tiny")
ALLOCATION, READ, WRITE = 0, 1, 2
LEAST = {"run": 8, "bench": 6, "job": 6, "verify": 10, "measure": 2,
         "generate": 6}  # failures of both ranks, so that the test cannot pass without any


def step(work, kind):
    """The sample tries every 31st allocation (of the few in a generation every 11th) and every 4th read and write. A measurement takes more
    than a second of CPU time, so it tries few writes."""
    if harness.ALL:
        return 1
    if work == "measure":
        return 40
    return 4 if kind != ALLOCATION else 11 if work == "generate" else 31


def sweep(d, work, victim, kind):
    """Number of failures of the victim; asserts that the other rank knew of each."""
    folder = tempfile.mkdtemp(dir=d)
    shutil.copytree(GENAI, folder + "/genai")
    words = [FAIL, engine(), folder, work, str(victim), str(kind), "1", str(step(work, kind))]
    p = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=10 * harness.HANG_S)
    assert p.returncode == 0, p.stdout + p.stderr
    return int(p.stdout.split(":")[-1].split()[0])


def fails_everywhere(d, work):
    kinds = (WRITE,) if work == "measure" and not harness.ALL else (ALLOCATION, READ, WRITE)
    failures = [sweep(d, work, victim, kind) for victim in (0, 1) for kind in kinds]
    print("# %s: %d failures" % (work, sum(failures)))
    assert sum(failures) >= LEAST[work], failures


harness.run([(work, fails_everywhere, work) for work in LEAST])
harness.finish()
