# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes, killed, stopped, ended or left alone at random moments: every run ends in time, names the rank, leaves nothing."""
import os
import random
import signal
import sys
import time

turns, seed = int(sys.argv[3]), int(sys.argv[4])
del sys.argv[3:]
import test_shm_tools as tools  # noqa: E402  (it reads the command line)

KINDS = {signal.SIGKILL: 5, signal.SIGTERM: 5, signal.SIGSEGV: 5, signal.SIGSTOP: 2 + 5, "parent": 5, None: 20}


def turn(d, dice):
    """One run; what fell short, or None."""
    n, kind = dice.choice((2, 3, 4)), dice.choice(list(KINDS))
    rank, after = dice.randrange(n), dice.random() * 1.5
    what = "%d ranks, rank %d gets %s after %.2f s" % (n, rank, getattr(kind, "name", kind), after)
    b = tools.Bench(d, n, seconds=1 if kind is None else 60, timeout=2, settle=0, rows=dice.choice((1, 50, 3000)))
    if kind is not None:
        time.sleep(after)
        os.kill(b.p.pid if kind == "parent" else b.kids[rank], signal.SIGKILL if kind == "parent" else kind)
    try:
        code = b.end(KINDS[kind])
    except AssertionError as e:
        return "%s: %s" % (what, e)
    want = 0 if kind is None else -signal.SIGKILL if kind == "parent" else 6
    if code != want or (want == 6 and "rank %d" % rank not in b.err):
        return "%s: exit %s, %s" % (what, code, b.err[-200:])


dice, short = random.Random(seed), []
for i in range(turns):
    with tools.tempfile.TemporaryDirectory(prefix="tessera-soak-") as d:
        why = turn(d, dice)
    if why:
        short.append(why)
        print("short: %s" % why, flush=True)
print("%d of %d turns hold (seed %d)" % (turns - len(short), turns, seed))
sys.exit(1 if short else 0)
