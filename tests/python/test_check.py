# SPDX-License-Identifier: Apache-2.0
"""Tests the command tessera-check, which is `tessera check`, without ONNX Runtime: exit codes, text, SARIF, and the files for pre-commit
and GitHub; and the function tessera.check.

usage: test_check.py BUILD"""
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
PROGRAM = "import sys; sys.modules['onnxruntime'] = None; from tessera import _command; _command.check()"


def check(*words, cwd=ROOT):
    """Returns exit code, stdout and stderr of tessera-check."""
    ended = subprocess.run([sys.executable, "-B", "-c", PROGRAM, *words], env=ENVIRONMENT, cwd=cwd, capture_output=True, text=True,
                           timeout=harness.HANG_S)
    return ended.returncode, ended.stdout, ended.stderr


def one_program(folder):
    """tessera-check prints and returns what `tessera check` does."""
    for words in ([GOOD], [BAD, GOOD, OTHER], ["--strict", WARNED], ["--json", BAD], ["--quiet", BAD], [BAD, folder + "/absent.onnx"]):
        ended = subprocess.run([BUILD + "/tessera", "check", *words], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True,
                               timeout=harness.HANG_S)
        assert check(*words) == (ended.returncode, ended.stdout, ended.stderr), words


def exit_codes(folder):
    for models, wanted in (([GOOD], 0), ([GOOD,
                                          GOOD], 0), ([BAD], 1), ([GOOD, BAD,
                                                                   GOOD], 1), ([folder + "/absent.onnx"], 3), ([BAD,
                                                                                                                ROOT + "/README.md"], 3)):
        code, out, err = check(*models)
        assert code == wanted, (models, code, out, err)
    code, out, err = check("--formal", GOOD)
    assert check()[0] == 2 and code == 2 and "did you mean '--formalism'?" in err, err
    code, out, err = check(GOOD, "--config", "no-such")
    assert code == 1 and "error[config-unknown]" in err, err


def text(folder):
    """Of several models, everything that was found is printed, also if one cannot be read."""
    code, out, err = check(GOOD, BAD, folder + "/absent.onnx", OTHER)
    assert code == 3 and "axis-rank2-too-high.onnx: error[shard-axis]" in out, out + err
    assert "device-list-short.onnx: error[spec-owners]" in out and "matmul-k.onnx: 0 errors" in out and "error[io-open]" in err, out + err


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
    assert "axis-rank2-too-high.onnx: error[shard-axis]" in out, out
    code, out, err = check("--sarif", folder + "/absent/out.sarif", GOOD)
    assert code == 8 and "out.sarif" in err, (code, err)
    assert check("--sarif")[0] == 2 and check("--sarif", path)[0] == 2
    code, out, err = check("--sarif", "-", GOOD)
    assert code == 0 and json.loads(out)["runs"][0]["results"] == [], (out, err)


def entry_points(folder):
    """The hook and the examples must call a script that the package has."""
    with open(ROOT + "/pyproject.toml", encoding="utf-8") as f:
        assert re.search(r'^tessera-check = "tessera\._command:check"$', f.read(), flags=re.M)
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


FUNCTION = r"""
import sys
import onnx, onnx_ir, tessera
for model in (sys.argv[1], onnx.load(sys.argv[1]), onnx_ir.load(sys.argv[1]), tessera.load(sys.argv[1]), open(sys.argv[1], "rb").read()):
    print([f.code for f in tessera.check(model) if f.severity == "error"])
print([f.code for f in tessera.check(sys.argv[2], formalism=True) if f.severity == "error"] != [])
try:
    tessera.check(sys.argv[3])
except tessera.TesseraError as error:
    print(error.findings[0].code)
"""


def function(folder):
    """tessera.check takes paths, bytes and models of onnx, onnx_ir and Tessera."""
    if not (importlib.util.find_spec("onnx") and importlib.util.find_spec("onnx_ir")):
        return "onnx or onnx_ir is not installed"
    ended = subprocess.run([sys.executable, "-B", "-c", FUNCTION, BAD, CASES + "missing-model-input.onnx", folder + "/absent.onnx"],
                           env=ENVIRONMENT, capture_output=True, text=True, timeout=harness.HANG_S)
    assert ended.stdout.splitlines() == ["['shard-axis']"] * 5 + ["True", "io-open"], ended


harness.run([one_program, exit_codes, text, names_that_look_like_options, strict, formalism, sarif, entry_points, function])
harness.finish()
