# SPDX-License-Identifier: Apache-2.0
"""Tests examples/notebooks: executes their code cells with the library of this build.

usage: test_notebooks.py BUILD
Uses nbclient and a Python kernel if both are installed, else runs cell by cell in a separate Python process."""
import glob
import importlib.util
import json
import os
import subprocess
import sys

import harness

BUILD = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NOTEBOOKS = sorted(glob.glob(ROOT + "/examples/notebooks/*.ipynb"))
LIMIT_S = 250
WITH_CLIENT = """import sys, nbformat, nbclient
nbclient.NotebookClient(nbformat.read(sys.argv[1], as_version=4), kernel_name="python3").execute()"""
WITHOUT = """import json, sys
names = {"__name__": "__main__"}
with open(sys.argv[1], encoding="utf-8") as f:
    cells = json.load(f)["cells"]
for i, cell in enumerate(cells):
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), "%s, cell %d" % (sys.argv[1], i), "exec"), names)"""
HAS_CLIENT = all(importlib.util.find_spec(name) for name in ("nbformat", "nbclient", "ipykernel"))
RUNNER = WITH_CLIENT if HAS_CLIENT else WITHOUT


def python(code, folder, *words):
    """Runs code with the package and the command of this build; returns its exit code and output."""
    env = dict(os.environ, TESSERA_LIBRARY=BUILD + "/libtessera.so", PYTHONPATH=BUILD + "/python", TMPDIR=folder,
               PATH=BUILD + os.pathsep + os.environ["PATH"])
    with open(folder + "/output", "w+") as output:
        code = subprocess.run([sys.executable, "-B", "-c", code, *words], cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT,
                              timeout=LIMIT_S).returncode
        output.seek(0)
        return code, output.read()


def reports_a_broken_cell(folder):
    path = folder + "/broken.ipynb"
    cells = [{
        "cell_type": "code", "id": "a", "metadata": {}, "execution_count": None, "outputs": [],
        "source": ["raise ValueError('as expected')"]
    }]
    with open(path, "w") as f:
        json.dump({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, f)
    code, output = python(RUNNER, folder, path)
    assert code != 0 and "as expected" in output, output


def files_exist(folder):
    assert len(NOTEBOOKS) >= 2, NOTEBOOKS


def has_no_outputs(folder, path):
    with open(path, encoding="utf-8") as f:
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in json.load(f)["cells"])


def runs(folder, path):
    code, output = python(RUNNER, folder, path)
    assert code == 0, output


harness.run([reports_a_broken_cell, files_exist] + [("%s %s" % (os.path.basename(path), case.__name__), case, path) for path in NOTEBOOKS
                                                    for case in (has_no_outputs, runs)])
harness.finish()
