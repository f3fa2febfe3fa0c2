# SPDX-License-Identifier: Apache-2.0
"""Tests the conformance suite: suite.py TESSERA [all]

Checks that the files of conformance/cases are those that make.py writes, that every rule has cases, and that `tessera`, onnx and onnx_ir
give the results that docs/conformance.md lists. `make test` runs a sample of the models; `all` runs all of them."""
import filecmp
import importlib.metadata
import json
import os
import re
import subprocess
import sys

import harness

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
SUITE = os.path.join(ROOT, "conformance")
sys.path.insert(0, SUITE)
import run as runner

TESSERA = sys.argv[1]
CASES = runner.load()
SAMPLE = 1 if harness.ALL else 18  # every n-th model is run and rewritten
with open(os.path.join(ROOT, "docs", "conformance.md"), encoding="utf-8") as page:
    PAGE = page.read()


def listed_version(name):
    """The version of a package as docs/conformance.md states it."""
    return re.search(r"\b%s (\d[\d.]*\d)" % re.escape(name), PAGE).group(1)


def files_are_current(folder):
    out = folder + "/cases"
    subprocess.run([sys.executable, "-B", os.path.join(SUITE, "make.py"), out], check=True, capture_output=True, timeout=harness.HANG_S)
    old = os.path.join(SUITE, "cases")
    names = sorted(os.listdir(out))
    assert names == sorted(os.listdir(old)), "run conformance/make.py"
    same_onnx = importlib.metadata.version("onnx") == listed_version(
        "onnx")  # the files depend on its shape inference and reference outputs
    changed = [
        n for n in names
        if (same_onnx or n.endswith(".onnx")) and not filecmp.cmp(os.path.join(out, n), os.path.join(old, n), shallow=False)
    ]
    assert not changed, "%d files differ, first %s; run conformance/make.py" % (len(changed), changed[0])


def every_rule_has_cases(folder):
    with open(os.path.join(SUITE, "rules.json"), encoding="utf-8") as f:
        rules = json.load(f)["rules"]
    used = {c["rule"] for c in CASES if "rule" in c}
    assert used == set(rules), used ^ set(rules)


def table_rows(text):
    """{first cells: cells} of the tables of docs/conformance.md or of the runner."""
    found = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) > 2 and not cells[0].startswith("---"):
            found[tuple(cells[:2]) if cells[0] in ("schema", "proposal", "guide", "formalism") else cells[0]] = cells
    return found


def compare_page(results, column, skipped=()):
    """Compare these results with a column of the tables in docs/conformance.md."""
    text = runner.tables(CASES, [results]) + "\n" + runner.open_table(CASES, [results])
    page, wrong = table_rows(PAGE), []
    for key, cells in table_rows(text).items():
        if key in ("question", "document", "case") or key in skipped:
            continue
        if key not in page or page[key][len(cells) - 1 + column] != cells[-1]:
            wrong.append("%s: %s, the page has %s" % (key, cells[-1], page.get(key)))
    assert not wrong, "\n".join(wrong)


def tessera_answers(folder):
    words = [os.path.join(SUITE, "adapters", "tessera.py"), TESSERA]
    os.environ.update(harness.environment())
    results = runner.run("tessera", words, CASES, ["check", "shards"], jobs=harness.WAITING)
    some = runner.run("tessera", words, harness.sample(CASES, len(CASES) // SAMPLE), ["run", "rewrite"], jobs=harness.WAITING)
    results.rows += some.rows
    wrong = ["%s: %s: %s" % (name, question, why) for name, question, result, why in results.rows if result == runner.WRONG]
    assert not wrong, "\n".join(wrong)
    compare_page(results, 0, () if harness.ALL else ("results of a run", "keeps annotations when it rewrites a model"))


def package_answers(name, adapter, column):
    def answers(folder):
        version, listed = importlib.metadata.version(name), listed_version(name)
        if version != listed:
            return "docs/conformance.md has %s %s, installed is %s" % (name, listed, version)
        results = runner.run(name, [os.path.join(SUITE, "adapters", adapter)], CASES, ["check", "shards", "run", "rewrite"])
        compare_page(results, column)
    return answers


harness.run([files_are_current, every_rule_has_cases, tessera_answers, ("onnx_answers", package_answers("onnx", "onnx_checker.py", 1)),
             ("onnx_ir_answers", package_answers("onnx-ir", "onnx_ir.py", 2))])
harness.finish()
