# SPDX-License-Identifier: Apache-2.0
"""Tests the command tessera-check on several models without ONNX Runtime: exit codes, text, SARIF, and the files for pre-commit and GitHub.

usage: test_check.py BUILD"""
import atexit
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import harness

BUILD = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CASES = ROOT + "/conformance/cases/"
GOOD, BAD, OTHER = (CASES + name + ".onnx" for name in ("matmul-k", "axis-rank2-too-high", "device-list-short"))
WARNED = CASES + "group-unused.onnx"
ENVIRONMENT = {"PATH": BUILD + ":" + os.environ["PATH"], "PYTHONPATH": BUILD + "/python", "TESSERA_LIBRARY": BUILD + "/libtessera.so",
               "TESSERA_ORT": "/nonexistent"}
# Makes an import of onnxruntime fail as if it were not installed.
PROGRAM = "import sys; sys.modules['onnxruntime'] = None; import tessera.check; "
# Runs the command for every line of stdin, which has its folder and arguments. Prints the exit code, stdout and stderr as a line.
LOOP = PROGRAM + r"""
import contextlib, io, json, os
for line in sys.stdin:
    folder, *sys.argv[1:] = json.loads(line)
    out, err, code = io.StringIO(), io.StringIO(), 0
    os.chdir(folder)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            tessera.check.main()
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


@functools.cache
def loop():
    process = subprocess.Popen([sys.executable, "-B", "-c", LOOP], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
    atexit.register(process.kill)
    return process


def check(*words, cwd=ROOT):
    """Returns exit code, stdout and stderr. One process makes all calls: a start takes longer than a check."""
    print(json.dumps([cwd, *words]), file=loop().stdin, flush=True)
    return json.loads(loop().stdout.readline())


def as_process(folder):
    for models, wanted in (([GOOD], 0), ([BAD], 1)):
        ended = subprocess.run([sys.executable, "-B", "-c", PROGRAM + "tessera.check.main()", *models], env=ENVIRONMENT,
                               capture_output=True, text=True, timeout=harness.HANG_S)
        assert ended.returncode == wanted and [ended.returncode, ended.stdout, ended.stderr] == check(*models), ended


def exit_codes(folder):
    for models, wanted in (([GOOD], 0), ([GOOD,
                                          GOOD], 0), ([BAD], 1), ([GOOD, BAD,
                                                                   GOOD], 1), ([folder + "/absent.onnx"], 3), ([BAD,
                                                                                                                ROOT + "/README.md"], 3)):
        code, out, err = check(*models)
        assert code == wanted, (models, code, out, err)
    assert check()[0] == 2
    code, out, _ = check(GOOD, "--config", "no-such")
    assert code == 1 and "error[config-unknown]" in out, out


def text(folder):
    code, out, err = check(GOOD, BAD, OTHER)
    assert re.search(r"axis-rank2-too-high\.onnx: error\[shard-axis\]: .*\(main#0 n:x\)$", out, flags=re.M), out + err
    assert "device-list-short.onnx: error[spec-owners]" in out and "matmul-k" not in out and "note[" not in out, out
    assert "note[spec-devices-open]" in check("--verbose", BAD)[1]


def names_that_look_like_options(folder):
    shutil.copy(BAD, folder + "/-model.onnx")
    code, out, err = check("--", "-model.onnx", cwd=folder)
    assert code == 1 and "error[shard-axis]" in out, (code, out, err)


def strict(folder):
    assert check(WARNED)[0] == 0 and check("--strict", WARNED)[0] == 1 and check("--strict", GOOD)[0] == 0


def formalism(folder):
    model = CASES + "missing-model-input.onnx"
    assert check(model)[0] == 0 and check("--formalism", model)[0] == 1


def sarif(folder):
    path = folder + "/out.sarif"
    code, out, err = check("--sarif", path, BAD, GOOD, OTHER, ROOT + "/README.md")
    with open(path, encoding="utf-8") as f:
        document = json.load(f)
    run, = document["runs"]
    used = {r["ruleId"] for r in run["results"]}
    assert code == 3 and document["version"] == "2.1.0" and {"shard-axis", "spec-owners", "model-kind"} <= used, (code, document)
    ids = [r["id"] for r in run["tool"]["driver"]["rules"]]
    assert sorted(ids) == sorted(used) and run["tool"]["driver"]["name"] == "tessera", ids
    code, out, err = check("--sarif", "-", GOOD)
    assert code == 0 and json.loads(out)["runs"][0]["results"] == [], (out, err)


def entry_points(folder):
    """The hook and the examples must call a script that the package has."""
    with open(ROOT + "/pyproject.toml", encoding="utf-8") as f:
        assert re.search(r'^tessera-check = "tessera\.check:main"$', f.read(), flags=re.M)
    if not importlib.util.find_spec("yaml"):
        return "PyYAML is not installed"
    import yaml
    load = lambda name: yaml.safe_load(open(os.path.join(ROOT, name), encoding="utf-8"))
    hook, = load(".pre-commit-hooks.yaml")
    local = load("examples/check/pre-commit-config.yaml")["repos"][0]["hooks"][0]
    for made in (hook, local):
        assert made["entry"] == "tessera-check" and re.search(made["files"],
                                                              "models/a.onnx") and not re.search(made["files"], "a.onnx.data"), made
    steps = load("examples/check/github-workflow.yml")["jobs"]["check"]["steps"]
    written = re.search(r"tessera-check --sarif (\S+)", " ".join(step.get("run", "") for step in steps)).group(1)
    assert [s["with"]["sarif_file"] for s in steps if "upload-sarif" in s.get("uses", "")] == [written], steps


harness.run([as_process, exit_codes, text, names_that_look_like_options, strict, formalism, sarif, entry_points])
harness.finish()
