#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the suite against implementations and prints a table of results.

    run.py tessera=adapters/tessera.py          names and adapters; an adapter is a program (see README.md)
    run.py onnx=adapters/onnx_checker.py onnx_ir=adapters/onnx_ir.py --markdown

Exit code 0: no wrong answer; 1: some. README.md explains the questions.
"""
import argparse
import concurrent.futures
import fnmatch
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
QUESTIONS = ("check", "rule", "shards", "inferred", "run", "rewrite")
RIGHT, WRONG, SKIPPED = "right", "wrong", "skipped"


class Adapter:
    """A program that answers one JSON line per JSON line."""

    def __init__(self, name, words):
        self.name = name
        program = [sys.executable, *words] if words[0].endswith(".py") else words
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the adapter of %s ended" % self.name)
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def elements(shape):
    if not shape:
        return [()]
    return [(i, *rest) for i in range(shape[0]) for rest in elements(shape[1:])]


def owners(tiles, shape):
    """{element: devices} of tiles (devices, start, stop)."""
    found = {index: set() for index in elements(shape)}
    for devices, start, stop in tiles:
        for offset in elements([b - a for a, b in zip(start, stop)]):
            found[tuple(a + o for a, o in zip(start, offset))] |= set(devices)
    return found


def compare_sharding(row, rows, shape):
    """Compares one sharding of the case with the reply; returns what differs, or None."""
    mine = [r for r in rows if (r["node"], r["value"]) == (row["node"], row["value"])]
    open_devices = any(s["devices"] is None for s in row["shards"])
    if not mine:
        return "no sharding"
    got = owners([([r["device"]], r["start"], r["stop"]) for r in mine], shape)
    if not row["exact"] or open_devices:  # bounds or devices are up to the implementation: every element must be somewhere
        return None if all(got.values()) else "elements on no device"
    wanted = owners([(s["devices"], *box) for s in row["shards"] for box in s["boxes"]], shape)
    different = [k for k in wanted if wanted[k] != got[k]]
    return "element %s is on %s, not %s" % (list(different[0]), sorted(got[different[0]]),
                                            sorted(wanted[different[0]])) if different else None


def close(wanted, got, tolerance):
    if isinstance(wanted, float):
        return (math.isnan(wanted) and math.isnan(got)) or abs(wanted - got) <= tolerance * max(1, abs(wanted))
    return wanted == got


def compare_outputs(case, reply):
    for name, tensor in case["run"]["outputs"].items():
        got = reply["outputs"].get(name)
        if got is None or list(got["shape"]) != tensor["shape"] or got["type"] != tensor["type"]:
            return "%s: another type or shape" % name
        if not all(close(w, g, case["run"]["tolerance"]) for w, g in zip(tensor["data"], got["data"])):
            return "%s: other numbers" % name
    return None


def annotations(path):
    """The multi-device fields of a file, as protobuf text; needs onnx."""
    import onnx
    model = onnx.load(path)
    nodes = [(n.name, [str(e) for e in n.device_configurations]) for n in model.graph.node]
    inner = [(n.name, [str(e) for e in n.device_configurations]) for f in model.functions for n in f.node]
    return [str(c) for c in model.configuration], nodes, inner


class Results:
    def __init__(self, name):
        self.name, self.rows, self.opened = name, [], {}

    def add(self, case, question, result, why=""):
        self.rows.append((case["name"], question, result, why))

    def count(self, question, names=None):
        mine = [r for n, q, r, _ in self.rows if q == question and r != SKIPPED and (names is None or n in names)]
        return sum(r == RIGHT for r in mine), len(mine)


def outcome(reply, compare):
    if reply.get("unsupported"):
        return SKIPPED, ""
    why = reply["error"] if "error" in reply else compare(reply)
    return (WRONG, why) if why else (RIGHT, "")


def ask_check(adapter, case, results, path):
    reply = adapter.ask(question="check", model=path)
    if reply.get("unsupported"):
        return
    valid = reply.get("valid", False)  # a program that fails to read the model refuses it
    if case["verdict"] == "open":
        results.opened[case["name"]] = "accepts" if valid else "refuses"
        return
    right = valid == (case["verdict"] == "valid")
    results.add(case, "check", RIGHT if right else WRONG, reply.get("text") or reply.get("error") or "accepted")
    if case["verdict"] == "invalid" and not valid and reply.get("rules"):
        results.add(case, "rule", RIGHT if case["rule"] in reply["rules"] else WRONG,
                    "reported %s, not %s" % (reply["rules"], case["rule"]))


def ask_shards(adapter, case, results, path):
    for config, about in case["configurations"].items():
        rows = [r for r in about["shardings"] if all(isinstance(s, int) for s in case["tensors"][r["value"]]["shape"])]
        if not rows or case["verdict"] != "valid":
            continue
        reply = adapter.ask(question="shards", model=path, configuration=config, tensors=case["tensors"])
        for question, source in (("shards", "model"), ("inferred", "inferred")):
            mine = [r for r in rows if r["from"] == source]
            if mine:
                def compare(reply):
                    wrong = [(r, compare_sharding(r, reply["shards"], case["tensors"][r["value"]]["shape"])) for r in mine]
                    return "; ".join("%s of %s: %s" % (r["value"], r["node"], w) for r, w in wrong if w)
                results.add(case, question, *outcome(reply, compare))


def ask_run(adapter, case, results, path):
    if not case["run"] or case["verdict"] != "valid":
        return
    for config, about in (case["configurations"] or {None: {"names": []}}).items():
        reply = adapter.ask(question="run", model=path, configuration=config, names=about["names"], inputs=case["run"]["inputs"])
        results.add(case, "run", *outcome(reply, lambda reply: compare_outputs(case, reply)))


def ask_rewrite(adapter, case, results, path):
    if case["verdict"] != "valid":
        return
    with tempfile.TemporaryDirectory() as folder:
        reply = adapter.ask(question="rewrite", model=path, to=folder + "/out.onnx")
        results.add(case, "rewrite",
                    *outcome(reply, lambda _: None if annotations(path) == annotations(folder + "/out.onnx") else "annotations changed"))


def load(pattern="*"):
    folder = os.path.join(HERE, "cases")
    index = json.load(open(os.path.join(folder, "index.json"), encoding="utf-8"))["cases"]
    return [
        json.load(open(os.path.join(folder, row["name"] + ".json"), encoding="utf-8")) for row in index
        if fnmatch.fnmatch(row["name"], pattern)
    ]


def run(name, words, cases, questions, run_every=1, jobs=1):
    """Asks one implementation, with `jobs` processes of its adapter; `run_every`: runs only each n-th case that can run."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        parts = list(pool.map(lambda k: run_part(name, words, cases[k::jobs], questions, run_every), range(jobs)))
    for other in parts[1:]:
        parts[0].rows += other.rows
        parts[0].opened.update(other.opened)
    return parts[0]


def run_part(name, words, cases, questions, run_every):
    adapter, results, runs = Adapter(name, words), Results(name), 0
    for case in cases:
        path = os.path.join(HERE, "cases", case["model"])
        if "check" in questions:
            ask_check(adapter, case, results, path)
        if "shards" in questions:
            ask_shards(adapter, case, results, path)
        if "run" in questions and case["run"] and case["verdict"] == "valid":
            runs += 1
            if runs % run_every == 0:
                ask_run(adapter, case, results, path)
        if "rewrite" in questions:
            ask_rewrite(adapter, case, results, path)
    adapter.close()
    return results


def cell(right, total):
    return "-" if not total else "%d of %d" % (right, total) if right != total else "%d" % total


def tables(cases, all_results):
    """The tables of docs/conformance.md as Markdown."""
    lines = ["| question | cases | " + " | ".join(r.name for r in all_results) + " |", "|---|---|" + "---|" * len(all_results)]
    by_verdict = {v: {c["name"] for c in cases if c["verdict"] == v} for v in ("valid", "invalid")}
    stated = {c["name"] for c in cases if c.get("strength") == "stated"}
    rows = [("accepts valid models", "check", by_verdict["valid"]), ("refuses models that break a stated rule", "check", stated),
            ("refuses models that break an implied rule", "check", by_verdict["invalid"] - stated), ("names the broken rule", "rule", None),
            ("shards per device of stated shardings", "shards", None), ("shards per device of inferred shardings", "inferred", None),
            ("results of a run", "run", None), ("keeps annotations when it rewrites a model", "rewrite", None)]
    for title, question, names in rows:
        total = max(len(names) if names else 0, *(r.count(question, names)[1] for r in all_results))
        lines.append("| %s | %d | %s |" % (title, total, " | ".join(cell(*r.count(question, names)) for r in all_results)))
    lines += [
        "", "| document | section | cases | " + " | ".join(r.name for r in all_results) + " |", "|---|---|---|" + "---|" * len(all_results)
    ]
    sections = {}
    for case in cases:
        for document, section in case["sections"]:
            sections.setdefault((document, section), set()).add(case["name"])
    order = ["schema", "proposal", "guide", "formalism"]
    for (document, section), names in sorted(sections.items(), key=lambda item: order.index(item[0][0])):
        decided = {c["name"] for c in cases if c["name"] in names and c["verdict"] != "open"}
        lines.append("| %s | %s | %d | %s |" %
                     (document, section, len(names), " | ".join(cell(*r.count("check", decided)) for r in all_results)))
    return "\n".join(lines)


def open_table(cases, all_results):
    lines = ["| case | what is open | " + " | ".join(r.name for r in all_results) + " |", "|---|---|" + "---|" * len(all_results)]
    for case in cases:
        if case["verdict"] == "open" and not case["name"].startswith("unsupported-"):
            lines.append("| `%s` | %s %s | %s |" %
                         (case["name"], case["about"], case["open"], " | ".join(r.opened.get(case["name"], "-") for r in all_results)))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapters", nargs="+", metavar="NAME=PROGRAM")
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="shell pattern for names of cases")
    parser.add_argument("--questions", default="check,shards,run,rewrite", help="some of check,shards,run,rewrite")
    parser.add_argument("--jobs", type=int, default=2, help="adapter processes at a time (default 2)")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown, without single answers")
    options = parser.parse_args()
    cases, everything = load(options.cases), []
    for text in options.adapters:
        name, _, program = text.partition("=")
        everything.append(run(name, shlex.split(program), cases, options.questions.split(","), jobs=options.jobs))
    wrong = [(r.name, *row) for r in everything for row in r.rows if row[2] == WRONG]
    if not options.markdown:
        for implementation, name, question, _, why in wrong:
            print("%s: %s: %s: %s" % (implementation, name, question, str(why).strip()[:300]))
    print(tables(cases, everything))
    if options.markdown:
        print("\n" + open_table(cases, everything))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
