#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""predict - time and peak memory of synthetic models, unsharded and sharded: the prediction from the measured topology of this machine,
compared with runs. Measurements and runs alternate, and the best round counts on both sides, so that other load affects both. Prints one
line per figure: name, predicted, measured, ratio, goal, ok or short; then predicted time and the engine's profile by operator.

usage: predict [BUILD] [--quick] [--seen [only]] [--budget S] [--devices cpu:2|cuda:2@0] [--rounds N] [--seconds S] [--only NAME;...] [--out
FOLDER]
--seen: each model again with a topology profiled on it (topology measure --model); --seen only: only that.
--budget S: start no model after S seconds.
Ranks on CPUs are processes, ranks that share a GPU are threads. --quick: one round, fewer models."""
import argparse, copy, json, os, shutil, tempfile, time

import figures
from figures import ROOT, say, tessera

TIME, MEMORY, AGREE = 0.15, 0.05, 0.03  # largest relative errors; difference of plan and simulation
SHORTEST_MS = 1.0  # shorter runs have no goal
BLOCKS = {  # tokens, hidden, heads, layers
    "block 256 x 1024": (256, 1024, 16, 2),
    "block 1024 x 512": (1024, 512, 8, 2),
    "block 64 x 1024": (64, 1024, 16, 2),
    "decode 1 x 2048, float32": (1, 2048, 16, 2),
}
LARGE_BLOCKS = {"block 1024 x 4096": (1024, 4096, 32, 1), "decode 1 x 4096": (1, 4096, 32, 2)}
NETS = {"convolutions": "convolutions", "depthwise convolutions": "depthwise", "decode, GQA and 4 bits": "decode"}
GPU_NETS = {"convolutions": "convolutions", "decode, GQA and 4 bits, float16": "decode-float16"}


def make(folder, name):
    if name in NETS or name in GPU_NETS:
        words = [ROOT + "/bench/nets.py", {**NETS, **GPU_NETS}[name], folder]
    else:
        sizes, half = name.split(", float16")[0], ["float16"] * name.endswith("float16")
        words = [ROOT + "/tools/block", folder, *map(str, {**BLOCKS, **LARGE_BLOCKS}[sizes]), "random", *half]
    figures.make(*words)


class Machine:
    """A number of ranks: their topology is measured in each round."""

    def __init__(self, devices, ranks, folder, seconds):
        self.gpu = devices.startswith("cuda")
        self.devices = ("cuda:%d@%s" % (ranks, devices.split("@")[1]) if "@" in devices else "cuda:%d" %
                        ranks) if self.gpu else "cpu:%d" % ranks
        self.ranks, self.here, self.seconds = ranks, "%s/here%d.json" % (folder, ranks), seconds
        self.transport = [] if self.gpu else ["--transport", "shm"]

    def measure(self):
        tessera("topology", "measure", "--devices", self.devices, *self.transport, "--seconds", self.seconds, "--quiet", "-o", self.here)

    def seen(self, model, folder):
        """The same ranks, with a topology measured with that model."""
        other = copy.copy(self)
        other.here = "%s/seen%d.json" % (folder, self.ranks)
        tessera("topology", "measure", "--devices", self.here, *self.transport, "--seconds", self.seconds, "--model", model, "--quiet",
                "-o", other.here)
        return other


def by_operator(events, named):
    """Milliseconds per operator on device 0; the minimum of repeated runs for each node."""
    nodes = {}
    for e in events:
        if e.get("ph") != "X" or e.get("pid") or not named(e):
            continue
        op, node = named(e)
        nodes[op, node] = min(nodes.get((op, node), 1e99), e["dur"] / 1e3)
    sums = {}
    for (op, _), ms in nodes.items():
        sums[op] = sums.get(op, 0) + ms
    return sums


def simulated(e):
    return (e["name"], e["args"]["node"]) if e.get("cat") == "compute" else None


def profiled(e):
    return (e["args"]["op_name"], e["name"]) if e.get("cat") == "Node" and e["name"].endswith("_kernel_time") else None


def operators(name, planned, parts, machine, folder):
    tessera("simulate", planned, "--trace", folder + "/sim.json", "--json")
    tessera("bench", parts, *machine.transport, "--seconds", "0.3", "--trace", folder + "/run.json", "--json")
    read = lambda file: json.load(open(folder + "/" + file))["traceEvents"]
    said, took = by_operator(read("sim.json"), simulated), by_operator(read("run.json"), profiled)
    for op in sorted({*said, *took}, key=lambda o: -max(said.get(o, 0), took.get(o, 0))):
        p, m = said.get(op), took.get(op)
        if max(p or 0, m or 0) < 0.02 * sum(took.values()):
            continue
        show = lambda ms: "-" if ms is None else "%.3f" % ms
        print("operators: %-46s %-26s %10s %10s %8s" % (name, op, show(p), show(m), "%.2f" % (p / m) if p and m else "-"), flush=True)


def figure(name, model, machine, rounds, seconds, folder):
    """One model on that number of ranks: the best round on both sides."""
    planned, parts = folder + "/planned.onnx", folder + "/parts%d" % machine.ranks
    plans, sims, runs = [], [], []
    for i in range(rounds):
        if i:
            machine.measure()
        plans.append(json.loads(tessera("plan", model, "--devices", machine.here, "-o", planned, "--json")))
        sims.append(json.loads(tessera("simulate", planned, "--json")))
        tessera("partition", planned, "-o", parts, "--force")
        for _ in range(2):  # memory placement differs between processes
            runs.append(json.loads(tessera("bench", parts, *machine.transport, "--seconds", seconds, "--json")))
    name = "%s, %d rank%s" % (name, machine.ranks, "s" * (machine.ranks > 1))
    said, took = min(p["cost"] / 1e9 for p in plans), min(r["run_ms"]["min"] for r in runs)
    if took >= SHORTEST_MS or machine.gpu:
        say("predict: " + name + ", time", "%.2f ms" % said, "%.2f ms" % took, said / took, TIME)
    played = min(1e3 * s["seconds"] for s in sims)
    say("predict: " + name + ", plan and simulation", "%.2f ms" % said, "%.2f ms" % played, said / played, AGREE)
    said, took = max(t["peak"] for s in sims for t in s["timeline"]) / 2**20, max(max(m or 0 for m in r["memory"]) for r in runs) / 2**20
    if took > 0:
        say("predict: " + name + ", memory", "%.1f MiB" % said, "%.1f MiB" % took, said / took, MEMORY)
    return name, planned, parts


def main(args, folder):
    began = time.monotonic()
    ranks = int(args.devices.split(":")[1].split("@")[0])
    machines = [Machine(args.devices, n, folder, args.measure) for n in sorted({1, ranks})]
    for machine in machines:
        machine.measure()
    gpu = machines[0].gpu
    names = [*LARGE_BLOCKS, *[n + ", float16" for n in LARGE_BLOCKS], *GPU_NETS] if gpu else [*BLOCKS, *NETS]
    if args.quick and not gpu:
        names = [n for n in names if n not in ("block 1024 x 512", "block 64 x 1024")]
    for name in names:
        if args.only and name not in args.only.split(";") or time.monotonic() - began > args.budget:
            continue
        made = folder + "/" + "".join(c for c in name if c.isalnum())
        make(made, name)
        for machine in machines:
            if args.seen != "only":
                known = figure(name, made + "/model.onnx", machine, args.rounds, args.seconds, made)
                if not gpu:  # GPU profiles have launch times, not kernel times
                    operators(*known, machine, made)
            if args.seen:
                figure(name + ", seen", made + "/model.onnx", machine.seen(made + "/model.onnx", folder), 1, args.seconds, made)
                shutil.move("%s/seen%d.json" % (folder, machine.ranks),
                            "%s/%s-seen%d.json" % (folder, os.path.basename(made), machine.ranks))
        shutil.rmtree(made)
    if args.out:
        for machine in machines:
            shutil.copy(machine.here, args.out)
        for name in os.listdir(folder):
            if "-seen" in name:
                shutil.copy(folder + "/" + name, args.out)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("build", nargs="?")
parser.add_argument("--quick", action="store_true")
parser.add_argument("--seen", nargs="?", const="too", choices=["too", "only"])
parser.add_argument("--budget", type=float, default=1e9)
parser.add_argument("--devices", default="cpu:%d" % min(2, len(os.sched_getaffinity(0))))
parser.add_argument("--rounds", type=int)
parser.add_argument("--seconds", default="1")
parser.add_argument("--measure", default="5", help="seconds of each measuring")
parser.add_argument("--only", help="names of models, with ; between them")
parser.add_argument("--out", help="where the measured topologies are kept")
options = parser.parse_args()
options.rounds = options.rounds or (1 if options.quick else 3)
if options.build:
    figures.TESSERA = os.path.join(options.build, "tessera")
with tempfile.TemporaryDirectory(prefix="tessera-predict-") as d:
    main(options, d)
