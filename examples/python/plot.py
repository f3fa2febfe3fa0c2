#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws two SVG pictures without other packages: devices with their links, and the timeline of a run.

    python examples/python/plot.py model.onnx hosts:2x2 topology.svg timeline.svg"""
import json
import math
import sys
import tempfile
from html import escape

import numpy as np
import tessera

path, devices, topology_file, timeline_file = sys.argv[1:]


def picture(file, width, height, marks):
    with open(file, "w", encoding="utf-8") as f:
        f.write('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">\n%s\n</svg>\n' %
                (width, height, "\n".join(marks)))


# 1. Devices in a ring, with a line for each link; faster links are broader.
topology = tessera.topology.show(devices)
n = len(topology["devices"])
place = [(250 + 180 * math.sin(2 * math.pi * k / n), 250 - 180 * math.cos(2 * math.pi * k / n)) for k in range(n)]
fastest = max([link["bandwidth"] for link in topology["links"]], default=1)
marks = []
for link in topology["links"]:
    (x1, y1), (x2, y2) = place[link["from"]], place[link["to"]]
    text = "%d to %d: %.1f GB/s, %.1f us" % (link["from"], link["to"], link["bandwidth"] / 1e9, link["latency"] * 1e6)
    marks.append('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#39c" stroke-width="%.1f"><title>%s</title></line>' %
                 (x1, y1, x2, y2, 1 + 5 * link["bandwidth"] / fastest, text))
for k, (x, y) in enumerate(place):
    marks.append('<circle cx="%.1f" cy="%.1f" r="22" fill="#fff" stroke="#333"/><text x="%.1f" y="%.1f" text-anchor="middle">%d</text>' %
                 (x, y, x, y + 4, k))
picture(topology_file, 500, 500, marks)

# 2. A traced run on two devices: a lane for each rank, a bar for each node.
with tempfile.TemporaryDirectory() as folder:
    model = tessera.load(path)
    model.plan(2)
    model.partition(folder + "/parts")
    with tessera.PartitionSession(folder + "/parts", trace=folder + "/trace.json") as session:
        feeds = {
            v.name: np.ones([size if isinstance(size, int) else 2 for size in v.shape], "i8" if "int64" in v.type else "f4")
            for v in session.get_inputs()
        }
        session.run(None, feeds)
        session.trace()
    with open(folder + "/trace.json", encoding="utf-8") as f:
        events = json.load(f)
bars = [e for e in (events["traceEvents"] if isinstance(events, dict) else events) if e.get("ph") == "X" and e.get("dur", 0) > 0]
start, end = min(e["ts"] for e in bars), max(e["ts"] + e["dur"] for e in bars)
ranks = sorted({e["pid"] for e in bars})
marks = []
for e in bars:
    x, width = 1000 * (e["ts"] - start) / (end - start), max(0.3, 1000 * e["dur"] / (end - start))
    marks.append('<rect x="%.2f" y="%d" width="%.2f" height="24" fill="#39c" opacity="0.6"><title>%s: %.0f us</title></rect>' %
                 (x, 30 + 40 * ranks.index(e["pid"]), width, escape(str(e["name"])), e["dur"]))
marks += ['<text x="2" y="%d">rank %d</text>' % (26 + 40 * k, k) for k in range(len(ranks))]
picture(timeline_file, 1000, 40 + 40 * len(ranks), marks)
print("%d devices, %d links; %d marks of %d ranks over %.2f ms" % (n, len(topology["links"]), len(bars), len(ranks), (end - start) / 1e3))
