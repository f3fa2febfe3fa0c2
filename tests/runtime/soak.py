# SPDX-License-Identifier: Apache-2.0
"""Kills, stops, interrupts or ignores ranks (processes) at random times: every run must end, name the rank and leave no processes or files.

usage: soak.py RUN_TOOL BUILD TURNS SEED"""
import os
import random
import signal
import sys
import time

import harness

turns, seed = int(sys.argv[3]), int(sys.argv[4])
del sys.argv[3:]
import test_shm_tools as tools  # noqa: E402  (it reads the command line)

KINDS = [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGSTOP, "parent", None]


def turn(d, n, kind, rank, after, rows):
    b = tools.Bench(d, n, timeout=2, settle=0, rows=rows, **({"seconds": 1} if kind is None else {}))
    if kind is not None:
        time.sleep(after)
        os.kill(b.p.pid if kind == "parent" else b.kids[rank], signal.SIGKILL if kind == "parent" else kind)
    code = b.end()
    want = 0 if kind is None else -signal.SIGKILL if kind == "parent" else 6
    assert code == want and (want != 6 or "rank %d" % rank in b.err), "exit %s, %s" % (code, b.err[-200:])


dice = random.Random(seed)
for i in range(turns):
    n, kind = dice.choice((2, 3, 4)), dice.choice(KINDS)
    rank, after = dice.randrange(n), dice.random() * 1.5
    name = "turn %d: %d ranks, rank %d gets %s after %.2f s" % (i, n, rank, getattr(kind, "name", kind), after)
    harness.run([(name, turn, n, kind, rank, after, dice.choice((1, 50, 3000)))])
harness.finish()
