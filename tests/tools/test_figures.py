# SPDX-License-Identifier: Apache-2.0
"""Tests tools/figures: README.md, docs/measured.md and the picture show what docs/figures.json has, and a busy machine is refused."""
import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile

import harness

sys.dont_write_bytecode = True
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TOOL = os.path.join(ROOT, "tools", "figures")


def load():
    loader = importlib.machinery.SourceFileLoader("figures", TOOL)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("figures", loader))
    loader.exec_module(module)
    return module


def run(*words):
    ended = subprocess.run([sys.executable, TOOL, *words], capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


def replace(path, old, new):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    assert old in text, (path, old)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace(old, new, 1))


tool = load()
rc, said = run("write", "--check")
harness.check("the pages show the figures", rc == 0, said)

with tempfile.TemporaryDirectory(prefix="tessera-figures-") as folder:
    for name in (*tool.PAGES, tool.PICTURE, "docs/figures.json"):
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        shutil.copy(os.path.join(ROOT, name), os.path.join(folder, name))
    row = tool.stored(folder + "/docs/figures.json")["scaling"]["rows"][0]
    shown = tool.with_range(row["speedup"]["2"], "x")
    replace(folder + "/docs/measured.md", shown, "9.99x (9.00 to 9.99)")
    rc, said = run("write", "--check", "--root", folder)
    harness.check("a page with another figure is found", rc == 1 and "docs/measured.md" in said and "README.md" not in said, said)
    rc, said = run("write", "--root", folder)
    with open(folder + "/docs/measured.md", encoding="utf-8") as f:
        harness.check("write restores it", rc == 0 and shown in f.read(), said)
    other = tool.stored(folder + "/docs/figures.json")["models"]
    other["rows"] = other["rows"][:1]
    other["rows"][0]["speedup"]["8"]["median"] = 6.54
    tool.store(folder + "/other.json", {"models": other})
    rc, said = run("write", "--root", folder, "--from", folder + "/other.json")
    now = tool.stored(folder + "/docs/figures.json")
    with open(folder + "/README.md", encoding="utf-8") as f:
        shows = "to 6.5 times" in f.read()
    harness.check("groups of another file replace the stored ones", rc == 0 and now["models"] == other and shows, said)
    harness.check("the other groups stay", now["scaling"]["rows"][0] == row, now.keys())
    rc, said = run("write", "--root", folder, "--from", folder + "/none.json")
    harness.check("a file without figures is refused", rc == 2 and "has no figures" in said, said)
    figures = tool.stored(folder + "/docs/figures.json")
    figures["scaling"]["rows"][0]["speedup"]["2"]["median"] = 1.01
    figures["scaling"]["rows"][0]["speedup"]["8"]["median"] = 7.77
    figures["scaling"]["about"]["forced"] = True
    tool.store(folder + "/docs/figures.json", figures)
    rc, said = run("write", "--check", "--root", folder)
    harness.check("other figures are found on all pages", rc == 1 and all(page in said for page in (*tool.PAGES, tool.PICTURE)), said)
    rc, said = run("write", "--root", folder)
    with open(folder + "/README.md", encoding="utf-8") as f:
        text = f.read()
    busy = "to 7.8 times" in text and "Other programs used this machine" in text
    harness.check("pages say that the machine was busy", rc == 0 and busy, said)

harness.check("an idle machine is not refused", tool.refusal(0.01, 0.0) == "", "")
harness.check("other programs are a reason to refuse", "40 %" in tool.refusal(0.4, 0.0), "")
harness.check("so is time that other machines take", "10 %" in tool.refusal(0.0, 0.1), "")
used = tool.used_between((100, 10, 1000), (150, 30, 1100))
harness.check("busy and stolen time", used == (0.5, 0.2), used)
found = tool.summary({"1": [10.0, 12.0, 14.0, 10.0, 10.0], "2": [5.0, 6.0, 7.0, 10.0, 4.0]})
of_two = {"2": {"median": 2.0, "least": 1.0, "most": 2.5}}
harness.check("speedups are those of the same round", found["speedup"] == of_two, json.dumps(found))
rates = tool.per_second({"median": 10.0, "least": 5.0, "most": 20.0})
harness.check("the least time is the greatest rate", rates == {"median": 100.0, "least": 50.0, "most": 200.0}, rates)
harness.check("times are medians", found["ms"]["1"] == {"median": 10.0, "least": 10.0, "most": 14.0}, json.dumps(found))
rc, said = run("measure", "build", "--rounds", "4")
harness.check("fewer than five rounds are refused", rc == 2 and "at least 5" in said, said)
harness.finish()
