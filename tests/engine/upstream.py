#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the scripts of docs/upstream/engine with the installed packages: upstream.py

Each script must give a clear result: the bug is present (exit code 1, or a signal if its text says so) or fixed (0). For the latest version
in the README's table, the bug must be present. For other versions a fixed bug is only reported."""
import glob
import os
import re
import runpy
import sys

import onnx
import onnxruntime as ort

import harness

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "upstream", "engine")
with open(os.path.join(FOLDER, "README.md"), encoding="utf-8") as page:
    LISTED = dict(re.findall(r"^\| \[(\w+)\.py\].*\| ([^|]*) \|$", page.read(), flags=re.M))


def run_script(path):
    sys.argv = [path]
    runpy.run_path(path, run_name="__main__")


def answer(path):
    """(has the bug or None: no clear answer, output) of one script."""
    code, output = harness.forked(run_script, path)
    text = "exit code %d\n%s" % (code, output)
    with open(path, encoding="utf-8") as script:
        may_die = "also by a signal" in script.read()
    if code < 0:
        return (True if may_die else None), text
    said = {0: "does not have the bug", 1: "has the bug"}.get(code)
    return (code == 1 if said and said in text else None), text


def all_scripts(folder):
    paths = sorted(glob.glob(FOLDER + "/*.py"))
    names = [os.path.basename(path)[:-3] for path in paths]
    harness.check("all are listed", set(names) == set(LISTED), set(names) ^ set(LISTED))
    for name, (present, text) in zip(names, map(answer, paths)):
        installed = onnx.__version__ if name.startswith("onnx_") else ort.__version__
        if present is False and installed != LISTED[name].split()[-1]:
            name += " # fixed in %s" % installed
        else:
            text = "the README says that this version has it\n" + text if present is False else text
        harness.check(name, present or "# fixed" in name, text)


harness.run([all_scripts])
harness.finish()
