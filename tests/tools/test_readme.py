# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the README and of the pages of docs/, and compares their output with what the pages show.

usage: test_readme.py BUILD

In a ```console block, a line `$ ...` is a command and the lines after it are its output: each must appear, in that order; `...` matches
anything. Numbers of docs/advise.md, which are predictions, may differ by 7 %. The commands of a page run in an empty folder with links
to the repository's tests and examples.
"""
import functools
import os
import re
import shutil
import subprocess
import sys

import harness

BUILD = os.path.abspath(sys.argv[1])
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
NEEDS_ENGINE = re.compile(r"tessera (demo|run|verify|generate|bench|topology measure)")


def examples(text):
    """(command, expected lines) of every console block, in order."""
    for block in re.findall(r"^```console\n(.*?)^```", text, flags=re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, *expected = part.rstrip("\n").split("\n")
            yield command, [line.rstrip() for line in expected if line.strip() not in ("", "...")]


def is_near(want, line):
    """True if the lines differ only in blanks and, by at most 7 %, in numbers."""
    number = lambda word: float(word) if re.fullmatch(r"\d+(\.\d+)?", word) else None
    same = lambda a, b: a == b or (None not in (number(a), number(b)) and abs(number(a) - number(b)) <= 0.07 * number(a) + 0.05)
    return len(want.split()) == len(line.split()) and all(map(same, want.split(), line.split()))


def missing(expected, output, near=False):
    """The first expected line that is missing, or out of order; None if there is none."""
    lines = iter(line.rstrip() for line in output.splitlines())
    for want in expected:
        pattern = re.compile(".*".join(map(re.escape, want.split("..."))))
        if not any(pattern.fullmatch(line) or (near and is_near(want, line)) for line in lines):
            return want
    return None


def environment():
    python = os.path.join(ROOT, ".venv", "bin")
    env = dict(os.environ, PATH=os.pathsep.join([BUILD, python, os.environ["PATH"]]))
    env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",  # the README describes these in words
               OMPI_MCA_rmaps_base_oversubscribe="1", PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
    return env


@functools.cache
def has_engine():
    doctor = subprocess.run(["tessera", "doctor"], env=environment(), capture_output=True, text=True).stdout
    return re.search(r"^ONNX Runtime\s+ok", doctor, flags=re.M) is not None


@functools.cache
def has_onnx():
    return subprocess.run(["python3", "-c", "import onnx"], env=environment(), capture_output=True).returncode == 0


def left_out(command):
    """The reason why this machine cannot run the command, or nothing."""
    if NEEDS_ENGINE.search(command) and not has_engine():
        return "no ONNX Runtime"
    if command.startswith("python3 ") and not has_onnx():
        return "no onnx package"
    if command.startswith("mpirun") and not shutil.which("mpirun"):
        return "no MPI"
    return ""


def try_command(name, command, expected, folder, env, near):
    """Run one command; it must succeed and print what the page shows. near: numbers may differ a little."""
    reason = left_out(command)
    if reason:
        harness.skip(name, reason)
        return
    if command.startswith("mpirun"):
        env = dict(env, ASAN_OPTIONS="detect_leaks=0")  # MPI frees its memory late or never
    ended = subprocess.run(command, shell=True, cwd=folder, env=env, text=True, errors="replace",
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=2 * harness.HANG_S)
    want = missing(expected, ended.stdout + ended.stderr, near) and missing(expected, ended.stderr + ended.stdout, near)
    harness.check(name, ended.returncode == 0 and want is None,
                  "exit %d, not shown: %s\n%s%s" % (ended.returncode, want, ended.stdout, ended.stderr))


def broken_links(page, text):
    """Linked files that do not exist."""
    here = os.path.dirname(os.path.join(ROOT, page))
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        if not os.path.exists(os.path.join(here, link)):
            yield link


def page_is_true(folder, page, env):
    """All links must work, and the commands must print what the page shows. They run in order, since later ones use earlier results."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        text = f.read()
    harness.check("%s: links" % page, not list(broken_links(page, text)), list(broken_links(page, text)))
    todo = list(examples(text))
    if page in ("README.md", "docs/tour.md"):
        harness.check("%s: has examples" % page, todo)
    for name in ("tests", "examples"):
        os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
    if page == "docs/advise.md" and not has_onnx():
        harness.skip(page, "no onnx package")
        return
    for command, expected in todo:
        try_command("%s: %s" % (page, " ".join(command.split()[:3])), command, expected, folder, env, page == "docs/advise.md")


pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] + sorted(
    "docs/" + name for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md"))
harness.run([(page, page_is_true, page, environment()) for page in pages])
harness.finish()
