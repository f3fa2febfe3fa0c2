#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows a tqdm progress bar for long calls (pip install tqdm). Ctrl-C stops at once and leaves no partial files.

    python examples/python/progress.py model.onnx folder"""
import sys

import tessera
from tqdm import tqdm

bars = {}


def progress(what, done, total):
    """Called by a thread of the library: what is being done, and how much of it is done."""
    if what not in bars:
        bars[what] = tqdm(desc=what, total=total or None, file=sys.stdout)
    bars[what].total = total or None
    bars[what].update(done - bars[what].n)


model = tessera.load(sys.argv[1], progress=progress)
model.plan(2)
model.partition(sys.argv[2])
for bar in bars.values():
    bar.close()
