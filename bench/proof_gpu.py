#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""proof_gpu - a float16 model of about 24 GB that one rank with 16 GB of GPU memory rejects, and that two ranks with 16 GB each run.

usage: proof_gpu.py BUILD FOLDER [--devices cuda:2@0] [--limit 16GB] [--size TOKENS,HIDDEN,HEADS,LAYERS]
                    [--seconds 5] [STEP ...]

Steps, all by default; each keeps its results in FOLDER, so they can run in separate commands:
  make     writes the model with random weights (24 GB of disk)
  one      one rank: time and result without a limit, then the errors with it (24 GB of disk, freed at the end)
  measure  measures the GPU, for the predictions
  two      two ranks with the limit: predicted and measured time and memory, difference from one rank (24 GB of disk, freed at the end)
  table    prints the table
The limit is the option gpu_mem_limit of ONNX Runtime's CUDA provider (`tessera run --gpu-memory`) for each rank. Exits with 1 if
a step fails. --devices cpu:2 tests the script without a GPU, in float32. A CPU rank has no limit, so its error is skipped."""
import argparse, contextlib, json, os, re, shutil, subprocess, sys, threading, time

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STEPS = ("make", "one", "measure", "two", "table")
TOLERANCE = 1e-2  # of float16, relative to the largest magnitude, as in `tessera verify`
FOR_LIBRARIES = 512 << 20  # a plan may use the limit minus 1/16, at most this, for rounding and libraries
UNITS = {"GB": 10**9, "GIB": 2**30, "MB": 10**6, "MIB": 2**20, "": 1}


class Failed(Exception):
    pass


def bytes_of(size):
    digits = size.rstrip("GMiIBb")
    return int(float(digits) * UNITS[size[len(digits):].upper()])


def used_bytes():
    """Memory in use on GPU 0 in bytes; None without nvidia-smi."""
    try:
        p = subprocess.run(["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                           capture_output=True, text=True, timeout=60)
        return int(p.stdout.split()[0]) << 20
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return None


@contextlib.contextmanager
def watched(figures, name):
    """Store the peak GPU memory in use while the block runs, minus that before it."""
    before, ended, seen = used_bytes(), threading.Event(), []

    def watch():
        while not ended.wait(0.2):
            seen.append(used_bytes() or 0)

    thread = threading.Thread(target=watch)
    if before is not None:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if before is not None:
            thread.join()
            figures[name] = max(seen, default=before) - before


class Proof:
    def __init__(self, options):
        self.options, self.folder = options, os.path.abspath(options.folder)
        self.tessera = os.path.join(os.path.abspath(options.build), "tessera")
        self.kind, _, at = options.devices.partition(":")
        self.one_device = "%s:1%s" % (self.kind, "@" + at.split("@")[1] if "@" in at else "")
        self.model = self.path("model/model.onnx")
        os.makedirs(self.folder, exist_ok=True)
        self.figures = {}
        if os.path.exists(self.path("figures.json")):
            with open(self.path("figures.json"), encoding="utf-8") as f:
                self.figures = json.load(f)

    def path(self, name):
        return os.path.join(self.folder, name)

    def keep(self):
        with open(self.path("figures.json"), "w", encoding="utf-8") as f:
            json.dump(self.figures, f, indent=1)

    def call(self, *words):
        """(exit code, stdout, stderr) of a tessera command."""
        began = time.time()
        p = subprocess.run([self.tessera, *map(str, words)], capture_output=True, text=True, errors="replace")
        print("# %6.1f s, exit %d: tessera %s" % (time.time() - began, p.returncode, " ".join(map(str, words))), flush=True)
        return p.returncode, p.stdout, p.stderr

    def good(self, *words):
        code, out, err = self.call(*words)
        if code:
            raise Failed("tessera %s: exit %d\n%s%s" % (" ".join(map(str, words)), code, out[-2000:], err[-2000:]))
        return out

    def document(self, *words):
        return json.loads(self.good(*words, "--json"))

    def refused(self, name, code, *words):
        """Run a command that must fail with this error code."""
        got, out, err = self.call(*words)
        lines = [line for line in err.splitlines() if "error[%s]" % code in line]
        if got == 0 or not lines:
            raise Failed("%s: expected error[%s], got exit %d\n%s%s" % (name, code, got, out[-2000:], err[-2000:]))
        self.figures[name] = lines[0]
        print("refused: " + err.strip(), flush=True)

    # ---- steps ----

    def make(self):
        began = time.time()
        words = [sys.executable, os.path.join(ROOT, "tools/block"), self.path("model"), *self.options.size.split(","), "random"]
        words += [] if self.kind == "cpu" else ["float16"]  # ONNX Runtime converts float16 weights to float32 on a CPU
        p = subprocess.run(words, capture_output=True, text=True)
        if p.returncode:
            raise Failed(p.stdout + p.stderr)
        self.figures.update(weights=os.path.getsize(self.path("model/weights.bin")), make_s=time.time() - began)
        print("made %.2f GB of weights in %.0f s" % (self.figures["weights"] / 1e9, self.figures["make_s"]), flush=True)

    def one(self):
        parts = self.path("one")
        plan = ["plan", self.model, "--devices", self.one_device, "--memory", self.limit(), "-o", self.path("none.onnx")]
        self.refused("plan refuses", "plan-infeasible", *plan)
        self.good("partition", self.model, "--devices", self.one_device, "-o", parts, "--force")
        try:
            self.good("run", parts, "--outputs", self.path("one.npz"))
            self.measured("one", parts)
            if self.kind == "cpu":
                print("left out: refusal of one rank at run time, a CPU rank has no limit", flush=True)
            else:
                self.refused("run refuses", "rank-memory", "run", parts, "--gpu-memory", self.limit())
        finally:
            shutil.rmtree(parts, ignore_errors=True)

    def measure(self):
        words = ["--devices", self.options.devices, "--seconds", self.options.seconds]
        self.good("topology", "measure", *words, "-o", self.path("devices.json"))

    def two(self):
        parts = self.path("two")
        devices = self.path("devices.json") if os.path.exists(self.path("devices.json")) else self.options.devices
        plan = self.document("plan", self.model, "--devices", devices, "--memory", self.limit() - min(self.limit() // 16, FOR_LIBRARIES),
                             "-o", self.path("model/planned.onnx"))
        simulated = self.document("simulate", self.path("model/planned.onnx"))
        self.figures["two predicted"] = dict(ms=1e3 * simulated["seconds"], peak=[device["peak"] for device in simulated["timeline"]],
                                             collectives=plan["collectives"])
        self.figures["one predicted"] = dict(ms=1e3 * (simulated["one_device_s"] or 0))
        self.good("partition", self.path("model/planned.onnx"), "-o", parts, "--force")
        limit = [] if self.kind == "cpu" else ["--gpu-memory", self.limit()]
        try:
            with watched(self.figures, "two in use"):
                run = self.document("run", parts, "--outputs", self.path("two.npz"), *limit)
            self.figures["two limits"] = [rank["memory_limit"] for rank in run["ranks"]]
            self.measured("two", parts, *limit)
        finally:
            shutil.rmtree(parts, ignore_errors=True)
        self.compare()

    def limit(self):
        return bytes_of(self.options.limit)

    def measured(self, name, parts, *more):
        """Time of a run, memory of each rank and time to load."""
        transport = ["--transport", "shm"] if self.kind == "cpu" else []
        bench = self.document("bench", parts, "--seconds", self.options.seconds, *transport, *more)
        self.figures[name] = dict(ms=bench["run_ms"]["p50"], peak=bench["memory"], load_s=bench["load_s"])

    def compare(self):
        wanted, got = (dict(np.load(self.path(name))) for name in ("one.npz", "two.npz"))
        worst = max(np.abs(got[k].astype("f8") - wanted[k]).max() / np.abs(wanted[k]).max() for k in wanted)
        self.figures["difference"] = float(worst)
        if not worst <= TOLERANCE:  # NaN too
            raise Failed("two ranks differ from one by %g of the largest magnitude, more than %g" % (worst, TOLERANCE))

    def table(self):
        f = self.figures
        size = lambda peaks: " + ".join("?" if p is None else "%.2f" % (p / 1e9) for p in peaks)
        refusal = lambda name: "refused: " + re.search(r"error\[[\w-]+\]", f[name])[0] if name in f else "(left out: no limit on a CPU)"
        times = lambda name: "%.2f (predicted %.2f)" % (f[name]["ms"], f[name + " predicted"]["ms"])
        peaks = "%s (predicted %s)" % (size(f["two"]["peak"]), size(f["two predicted"]["peak"]))
        print("\nmodel: %.2f GB of weights; limit %.3g GB per rank on %s" % (f["weights"] / 1e9, self.limit() / 1e9, self.options.devices))
        rows = [("", "limit", "peak of each rank, GB", "time of a run, ms", "result"),
                ("1 rank", "none", size(f["one"]["peak"]), times("one"), "the reference"),
                ("1 rank", self.options.limit, "", "", refusal("run refuses")),
                ("1 rank, plan", self.options.limit, "", "", refusal("plan refuses")),
                ("2 ranks", self.options.limit, peaks, times("two"), "difference %.1e of the largest magnitude" % f["difference"])]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        for row in rows:
            print("  ".join([cell.ljust(width) for cell, width in zip(row, widths)] + [row[4]]))
        if "two in use" in f:
            print("GPU memory in use by both ranks with contexts and libraries (nvidia-smi): %.2f GB" % (f["two in use"] / 1e9))
        print("loaded in %.1f s (1 rank) and %.1f s (2 ranks); communication of a run: %s" %
              (f["one"]["load_s"], f["two"]["load_s"], ", ".join("%s %d" % pair for pair in f["two predicted"]["collectives"].items())))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("folder")
    parser.add_argument("steps", nargs="*", metavar="STEP", help="of %s" % ", ".join(STEPS))
    parser.add_argument("--devices", default="cuda:2@0")
    parser.add_argument("--limit", default="16GB")
    parser.add_argument("--seconds", default="5", help="time to measure runs")
    parser.add_argument("--size", default="256,8192,64,15")
    options = parser.parse_intermixed_args()
    wrong = [step for step in options.steps if step not in STEPS]
    if wrong:
        parser.error("no step %s; steps are %s" % (wrong[0], ", ".join(STEPS)))
    proof = Proof(options)
    for step in options.steps or STEPS:
        try:
            getattr(proof, step)()
        except Failed as error:
            print("FAILED %s: %s" % (step, error), flush=True)
            return 1
        finally:
            proof.keep()
        print("ok " + step, flush=True)
    return 0


sys.exit(main())
