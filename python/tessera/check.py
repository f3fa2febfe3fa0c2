# SPDX-License-Identifier: Apache-2.0
"""The command `tessera-check`: checks the device annotations of several models, for pre-commit and code scanning.
It does not need ONNX Runtime.

    tessera-check models/*.onnx
    tessera-check --sarif results.sarif models/*.onnx
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
from typing import Any, Dict, List, Optional, TextIO, Tuple

from ._library import FOLDER, Parser

SHOWN = {"error": 0, "warning": 1, "note": 2}  # levels of SARIF; notes are shown with --verbose only


def _program() -> str:
    inside = os.path.join(FOLDER, "tessera")
    return inside if os.path.exists(inside) else shutil.which("tessera") or inside


def _check(model: str, words: List[str]) -> Tuple[int, Optional[Dict[str, Any]], str]:
    """Runs `tessera check` on one model. Returns its exit code, the run object of the SARIF document (None if there
    is none), and stderr.
    """
    path = os.path.join(".", model) if model.startswith("-") else model
    ended = subprocess.run([_program(), "check", path, "--sarif", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    try:
        return ended.returncode, json.loads(ended.stdout)["runs"][0], ended.stderr
    except ValueError:
        return ended.returncode or 1, None, ended.stderr


def _print(model: str, run: Dict[str, Any], verbose: bool, out: TextIO) -> None:
    for result in run["results"]:
        if SHOWN[result["level"]] <= 1 + verbose:
            places = result["locations"][0].get("logicalLocations", [])
            at = "".join(" (%s)" % place["fullyQualifiedName"] for place in places)
            out.write("%s: %s[%s]: %s%s\n" % (model, result["level"], result["ruleId"], result["message"]["text"], at))


def _joined(runs: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Merges the runs of all models into one document with one run, in which each rule occurs once."""
    rules = {rule["id"]: rule for run in runs for rule in run["tool"]["driver"]["rules"]}
    driver = {"name": "tessera", **(runs[0]["tool"]["driver"] if runs else {}), "rules": [rules[k] for k in sorted(rules)]}
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
            "runs": [{"tool": {"driver": driver}, "results": [result for run in runs for result in run["results"]]}]}


def _options(arguments: Optional[List[str]]) -> argparse.Namespace:
    parser = Parser(prog="tessera-check", description="Check the device annotations of ONNX models.")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--config", metavar="NAME", help="check only this configuration (default: all)")
    parser.add_argument("--formalism", action="store_true", help="check by the published formalism")
    parser.add_argument("--rules", metavar="FILE", help="rules for custom operators")
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    parser.add_argument("--sarif", metavar="FILE", help="also write one SARIF 2.1.0 document for all models (- is stdout)")
    parser.add_argument("--verbose", action="store_true", help="print notes too")
    return parser.parse_args(arguments)


def main(arguments: Optional[List[str]] = None) -> None:
    """Checks all models. Exit codes: 0: no errors; 1: errors; another code of `tessera check` if a model could not
    be checked.
    """
    options = _options(arguments)
    words = ["--formalism"] * options.formalism
    for name in ("config", "rules"):
        words += ["--" + name, getattr(options, name)] if getattr(options, name) else []
    code, runs = 0, []
    for model in options.models:
        failed, run, errors = _check(model, words)
        if run is None:
            sys.stderr.write(errors or "tessera-check: %s: `tessera check` printed no result\n" % model)
        else:
            runs.append(run)
            _print(model, run, options.verbose, sys.stderr if options.sarif == "-" else sys.stdout)
            if options.strict and any(result["level"] == "warning" for result in run["results"]):
                failed = failed or 1
        code = max(code, failed)
    if options.sarif:
        text = json.dumps(_joined(runs), indent=1) + "\n"
        if options.sarif == "-":
            sys.stdout.write(text)
        else:
            with open(options.sarif, "w", encoding="utf-8") as out:
                out.write(text)
    sys.exit(code)


if __name__ == "__main__":
    main()
