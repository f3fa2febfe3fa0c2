# SPDX-License-Identifier: Apache-2.0
"""Searches for wrong results: random graphs, sharded in several ways, compared with Python's ONNX Runtime without optimization.

usage: hunt.py TESSERA [GRAPHS=n] [SEED=s] [MINUTES=m] [JOBS=k] [CUTS=c] [FOCUS=name] [OUT=folder] [SHRINK=0|1]

FOCUS concentrates on graphs and shardings of one kind, which then occur in most graphs (focus.py): windows (pools and convolutions whose
windows are as large as the input), rounding (statistics of nearly constant values, compared by `verify`), bodies (If, Loop and Scan,
`verify --devices`), names (dimensions with one name and several sizes), groups (more shards than elements, groups that share devices),
odd (rare attributes and inputs), structures (bodies with many results, odd outputs and names).

TESSERA may be the program of another tree or release, in its build folder: to see whether the hunt finds an old bug, hunt in the program
before the fix.

Graph number i of a seed is the same on every machine and in every run, for any JOBS. An interrupted hunt continues if it is started again
with the same OUT and SEED (OUT=tmp: nothing is kept). Failures ("finds") are written to OUT/find-SEED-CUT and reduced by shrink.py."""
import collections
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import focus  # noqa: E402

SILENCE_S = 150  # a worker without output for this time hangs
SEEDS = 10000000  # graphs of a seed

# Codes with which `verify` accepts or explains a difference (src/verify): their numbers show which are needed.
REASONS = ("engine-rounds", "engine-varies", "verify-sensitive", "engine-saturates", "engine-shortcut")

# Rows of the table that are in no graph, and why. Rows that are neither listed here nor generated are printed.
NEVER = {
    "drawn at random, so two runs are never equal (tests/e2e/special.py)": (
        "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
    ),
    "needs a text or image codec, or a map": "ImageDecoder StringSplit ai.onnx.ml:CastMap ai.onnx.ml:DictVectorizer ai.onnx.ml:ZipMap",
    "ONNX Runtime has no CPU kernel": (
        "SequenceMap ai.onnx.preview.training:Adagrad ai.onnx.preview.training:Adam "
        "ai.onnx.preview.training:Gradient ai.onnx.preview.training:Momentum com.microsoft:BiasAdd com.microsoft:BiasSplitGelu "
        "com.microsoft:GemmaRotaryEmbedding com.microsoft:GroupNorm com.microsoft:PackedAttention com.microsoft:PackedMultiHeadAttention "
        "com.microsoft:PagedAttention com.microsoft:SkipGroupNorm com.microsoft:MatMulNBitsMlp com.microsoft:MatMulNBitsQkv"
    ),
    "ONNX Runtime's kernel overwrites what it reads, so its own whole runs are wrong": "com.microsoft:MoE",
    "ONNX Runtime 1.31 knows opsets up to 26, and nothing of the preview": (
        "CausalConvWithState LinearAttention SwiGLU ai.onnx.preview:FlexAttention"
    ),
    "its cases give what no other node makes": "SequenceEmpty com.microsoft:SparseAttention",
    "searches with whole models inside": "com.microsoft:BeamSearch com.microsoft:GreedySearch com.microsoft:Sampling",
}


# ---- one worker -----------------------------------------------------------------------------------------

def tell(**what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def write_find(out, case, cut, verdict, number):
    """Write a folder with everything that repeats a failure."""
    import numpy as np
    import onnx
    folder = os.path.join(out, "find-%d-%d" % (case.seed, number))
    os.makedirs(folder, exist_ok=True)
    onnx.save(case.model, os.path.join(folder, "model.onnx"))
    for k, arrays in enumerate(case.sets):
        np.savez(os.path.join(folder, "set%d.npz" % k), **{n: a.astype("U") if a.dtype.kind == "O" else a for n, a in arrays.items()})
    note = dict(seed=case.seed, cut=cut, kind=verdict.kind, text=verdict.text, sizes=case.sizes,
                shapes={n: list(s) for n, s in case.shapes.items()})
    with open(os.path.join(folder, "find.json"), "w") as f:
        json.dump(note, f, indent=1)
    return folder


def draw_cuts(seed, count, mpi):
    import cuts
    rng = random.Random(seed * 7 + 3)
    return [cuts.draw(rng, mpi and rng.random() < 0.02, focus.of(seed).draw) for _ in range(count)]


def try_case(lib, tessera, case, count, mpi, out, work):
    """Try all shardings of one case."""
    import compare
    import onnx
    path = os.path.join(work, "model.onnx")
    onnx.save(case.model, path)
    done = []
    for number, cut in enumerate(draw_cuts(case.seed, count, mpi)):
        tell(seed=case.seed, cut=number, detail=cut)
        verdict = compare.attempt(lib, tessera, path, case, cut, work)
        folder = write_find(out, case, cut, verdict, number) if verdict.find else ""
        done.append(dict(kind=verdict.kind, how=cut["kind"], transport=cut["transport"], level=cut["level"], cut_nodes=verdict.cut_nodes,
                         text=verdict.text[:300], folder=folder, warnings=verdict.warnings))
    return done


def worker(tessera, seeds, count, out):
    import api
    import make
    lib = api.Library(os.path.join(os.path.dirname(tessera), "libtessera.so"))
    mpi = bool(shutil.which("mpirun")) and lib.transport_available(b"openmpi")
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="hunt-", dir=shm) as work:
        for seed in seeds:
            tell(seed=seed, begin=True)
            try:
                case = make.make(seed)
            except Exception as why:
                tell(seed=seed, empty="mistake of the hunter: %r" % why)
                continue
            if case is None or isinstance(case, str):
                tell(seed=seed, empty=case or "nothing came about")
                continue
            done = try_case(lib, tessera, case, count, mpi, out, work)
            tell(seed=seed, operators=case.operators, cuts=done, nodes=len(case.model.graph.node), sets=len(case.sets))


# ---- the hunt ---------------------------------------------------------------------------------------------

class Hunt:
    """Counts of all graphs so far; stored in OUT/progress.json."""

    def __init__(self, tessera, options):
        self.tessera, self.options, self.out = tessera, options, options["OUT"]
        os.makedirs(self.out, exist_ok=True)
        self.file = os.path.join(self.out, "progress.json")
        self.done, self.counts, self.operators, self.finds = set(), collections.Counter(), collections.Counter(), []
        self.counts.update({"verify: " + code: 0 for code in REASONS})
        self.reasons = collections.Counter()  # why shardings were excused, in this run
        if os.path.exists(self.file):
            with open(self.file) as f:
                saved = json.load(f)
            if (saved["seed"], saved.get("focus", "all")) == (options["SEED"], options["FOCUS"]):
                self.done, self.finds = set(range(saved["first"])) | set(saved["more"]), saved["finds"]
                self.counts, self.operators = collections.Counter(saved["counts"]), collections.Counter(saved["operators"])

    def save(self):
        first = 0
        while first in self.done:
            first += 1
        document = dict(seed=self.options["SEED"], focus=self.options["FOCUS"], first=first, more=sorted(n for n in self.done if n > first),
                        finds=self.finds, counts=self.counts, operators=self.operators)
        with open(self.file + ".new", "w") as f:
            json.dump(document, f)
        os.replace(self.file + ".new", self.file)

    def seed_of(self, number):
        return focus.number_of(self.options["FOCUS"]) * focus.RANGE + self.options["SEED"] * SEEDS + number

    def take(self, number, message):
        """Record that one graph is done."""
        self.done.add(number)
        if "empty" in message:
            mistake = message["empty"].startswith("mistake")
            self.counts["mistakes of the hunter" if mistake else "no model"] += 1
            if mistake:
                print("graph %d: %s" % (number, message["empty"]), flush=True)
            return
        self.counts["graphs"] += 1
        self.counts["nodes"] += message["nodes"]
        self.counts["graphs with several sizes"] += message["sets"] > 1
        self.operators.update(message["operators"])
        for c in message["cuts"]:
            self.counts["cuts"] += 1
            self.counts["cuts that cut nodes"] += c["cut_nodes"] > 0
            for key in (c["kind"], "by " + c["how"], "over " + c["transport"], "level %d" % c["level"]):
                self.counts[key] += 1
            self.counts.update("verify: " + code for code in c["warnings"] if code in REASONS)
            if c["text"] and not c["folder"]:
                self.reasons["%s: %s" % (c["kind"], c["text"] if c["kind"] in ("told no", "engine") else "")] += 1
            if c["folder"]:
                self.found(c["folder"], c["kind"], c["text"])

    def found(self, folder, kind, text):
        self.finds.append([folder, kind, text])
        print("FIND %s %s: %s" % (folder, kind, text.replace("\n", " ")[:300]), flush=True)


def start(hunt, numbers):
    words = [sys.executable, "-B", os.path.abspath(__file__), hunt.tessera, "worker", str(hunt.options["CUTS"]), hunt.out]
    p = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    p.stdin.write((" ".join(str(hunt.seed_of(n)) for n in numbers)).encode())
    p.stdin.close()
    p.numbers, p.rest, p.now, p.heard = list(numbers), b"", None, time.time()
    return p


def listen(hunt, p):
    """Read the output of a worker; False: it has ended."""
    data = os.read(p.stdout.fileno(), 1 << 20)
    p.heard = time.time()
    lines = (p.rest + data).split(b"\n")
    p.rest = lines.pop()
    for line in lines:
        message = json.loads(line)
        if "cuts" in message or "empty" in message:
            number = message["seed"] - hunt.seed_of(0)
            p.numbers = [n for n in p.numbers if n != number]
            p.now = None
            hunt.take(number, message)
        else:
            p.now = message
    return bool(data)


def engine_dies(tessera, seed, cut):
    import deaths
    return deaths.of_the_whole(seed, cut["level"]) or deaths.of_a_part(tessera, seed, cut)


def died(hunt, p, kind):
    """Record the graph in which a worker crashed or hung as a failure; returns the remaining numbers."""
    if not p.now and p.returncode:
        sys.exit("a worker ends before its first graph (exit %s); see: echo 1 | %s %s worker 1 ." %
                 (p.returncode, sys.executable, " ".join(sys.argv[:2])))
    if not p.now:
        return p.numbers
    number = p.now["seed"] - hunt.seed_of(0)
    if "cut" in p.now and p.returncode < 0 and engine_dies(hunt.tessera, p.now["seed"], p.now["detail"]):
        hunt.done.add(number)
        hunt.counts["the engine died"] += 1
        return [n for n in p.numbers if n != number]
    folder = os.path.join(hunt.out, "find-%d-%s" % (p.now["seed"], p.now.get("cut", "make")))
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "find.json"), "w") as f:
        json.dump(dict(seed=p.now["seed"], cut=p.now.get("detail"), kind=kind, text="exit %s" % p.returncode, remake=True), f, indent=1)
    hunt.done.add(number)
    hunt.counts[kind] += 1
    if "cut" in p.now:
        hunt.found(folder, kind, "exit %s in cut %d of graph %d" % (p.returncode, p.now["cut"], number))
    else:
        hunt.counts["the engine died"] += 1
        shutil.rmtree(folder)
    return [n for n in p.numbers if n != number]


def next_numbers(hunt, asked):
    """The next graphs for a worker, in order: few at a time, so that all workers end together and JOBS does not matter."""
    out = []
    while len(out) < 100 and hunt.next < asked:
        if hunt.next not in hunt.done:
            out.append(hunt.next)
        hunt.next += 1
    return out


def go(hunt):
    asked, end = hunt.options["GRAPHS"], time.time() + 60 * hunt.options["MINUTES"]
    hunt.next, workers, shown, begun, before = 0, [], time.time(), time.time(), hunt.counts["graphs"]
    if hunt.options["MINUTES"] and not asked:
        asked = 1 << 40
    while True:
        while len(workers) < hunt.options["JOBS"] and (not hunt.options["MINUTES"] or time.time() < end):
            numbers = next_numbers(hunt, asked)
            if not numbers:
                break
            workers.append(start(hunt, numbers))
        if not workers:
            break
        ready, _, _ = select.select([p.stdout for p in workers], [], [], 1.0)
        for p in list(workers):
            if p.stdout in ready and not listen(hunt, p):
                p.wait()
                workers.remove(p)
                left = died(hunt, p, "crashed") if p.returncode else []
                if left:
                    workers.append(start(hunt, left))
            elif time.time() - p.heard > SILENCE_S:
                p.kill()
                p.wait()
                workers.remove(p)
                left = died(hunt, p, "hung")
                if left:
                    workers.append(start(hunt, left))
        if time.time() - shown > 30:
            shown = time.time()
            hunt.save()
            rate = (hunt.counts["graphs"] - before) / (time.time() - begun)
            print("%d graphs, %d cuts, %d finds, %.1f graphs/s" % (hunt.counts["graphs"], hunt.counts["cuts"], len(hunt.finds), rate),
                  flush=True)
    hunt.save()


def coverage(hunt, lib_path):
    """Print which rows of the table were in graphs, and why others never are. Returns what is wrong with the list NEVER, or with the
    operators drawn."""
    import api
    rows = {(r["domain"] + ":" if r["domain"] else "") + r["op"] for r in api.Library(lib_path).rules()}
    reasons = {op: why for why, ops in NEVER.items() for op in ops.split()}
    drawn = rows & set(hunt.operators)
    missing = sorted(rows - drawn)
    print("operators: %d of %d rows of the table were in graphs" % (len(drawn), len(rows)))
    for why in sorted({reasons.get(op, "not drawn so far") for op in missing}):
        print("  never (%s): %s" % (why, " ".join(op for op in missing if reasons.get(op, "not drawn so far") == why)))
    wrong = ["%s of NEVER is not in the table" % op for op in sorted(set(reasons) - rows)]
    wrong += ["%s of NEVER was drawn" % op for op in sorted(set(reasons) & drawn)]
    least = min(hunt.counts["graphs"], len(rows) // 2)
    return wrong + (["only %d operators, at least %d are expected" % (len(drawn), least)] if len(drawn) < least else [])


def main():
    tessera = os.path.abspath(sys.argv[1])
    if sys.argv[2:3] == ["worker"]:
        return worker(tessera, map(int, sys.stdin.read().split()), int(sys.argv[3]), sys.argv[4])
    options = dict(GRAPHS=0, SEED=1, MINUTES=0, JOBS=os.cpu_count(), CUTS=3, FOCUS="all", OUT="hunt-out", SHRINK=1)
    for word in sys.argv[2:]:
        key, _, value = word.partition("=")
        if key not in options or not value:
            sys.exit("%s: not an option; %s" % (word, __doc__))
        options[key] = value if key in ("OUT", "FOCUS") else float(value) if key == "MINUTES" else int(value)
    if options["FOCUS"] not in focus.FOCUSES or not 0 <= options["SEED"] < focus.RANGE // SEEDS:
        sys.exit("FOCUS is one of %s; SEED is below %d" % (" ".join(focus.FOCUSES), focus.RANGE // SEEDS))
    if not options["GRAPHS"] and not options["MINUTES"]:
        options["GRAPHS"] = 1000
    if options["OUT"] == "tmp":
        with tempfile.TemporaryDirectory(prefix="tessera-hunt-") as folder:
            return run(tessera, dict(options, OUT=folder))
    return run(tessera, dict(options, OUT=os.path.abspath(options["OUT"])))


def run(tessera, options):
    hunt = Hunt(tessera, options)
    try:
        go(hunt)
    except KeyboardInterrupt:  # graphs that are done count
        hunt.save()
        print("interrupted; the same SEED and OUT go on here")
    print(", ".join("%s %d" % x for x in sorted(hunt.counts.items())))
    for why, count in hunt.reasons.most_common():
        print("  %d %s" % (count, why))
    wrong = coverage(hunt, os.path.join(os.path.dirname(tessera), "libtessera.so"))
    if options["SHRINK"] and hunt.finds:
        subprocess.run([sys.executable, "-B", os.path.join(HERE, "shrink.py"), tessera] + [f[0] for f in hunt.finds[:20]])
    import harness
    harness.check("no wrong result", not hunt.finds, hunt.finds)
    harness.check("coverage", not wrong or options["FOCUS"] != "all", wrong)
    harness.check("the generator works", not hunt.counts["mistakes of the hunter"], hunt.counts)
    print("# %d graphs, %d finds" % (hunt.counts["graphs"], len(hunt.finds)))
    harness.finish()


if __name__ == "__main__":
    sys.exit(main())
