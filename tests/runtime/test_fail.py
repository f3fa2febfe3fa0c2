# SPDX-License-Identifier: Apache-2.0
"""A rank that fails between two exchanges must tell the other rank: every allocation, read and write of one rank fails once (fail_tool.c).

usage: test_fail.py RUN_TOOL BUILD [all]    all: every allocation, not every fifth"""
from parts import *

FAIL = os.path.join(os.path.dirname(TOOL), "fail_tool")
ALLOCATION, READ, WRITE = 0, 1, 2
EVERY = 1 if "all" in sys.argv[3:] else 5
LEAST = {"run": 25, "bench": 15, "job": 10, "verify": 40, "measure": 10}  # failures of both ranks, so that the test cannot pass without any


def sweep(d, work, victim, kind):
    """Number of failures of the victim; asserts that the other rank knew of each."""
    words = [FAIL, engine(), tempfile.mkdtemp(dir=d), work, str(victim), str(kind), "1", str(EVERY if kind == ALLOCATION else 1)]
    p = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=10 * harness.HANG_S)
    assert p.returncode == 0, p.stdout + p.stderr
    return int(p.stdout.split(":")[-1].split()[0])


def fails_everywhere(d, work):
    failures = [sweep(d, work, victim, kind) for victim in (0, 1) for kind in (ALLOCATION, READ, WRITE)]
    print("# %s: %d failures" % (work, sum(failures)))
    assert sum(failures) >= LEAST[work], failures


harness.run([(work, fails_everywhere, work) for work in LEAST])
harness.finish()
