# SPDX-License-Identifier: Apache-2.0
"""Compares the rank graphs of small models, as text, with the files in tests/partition/graphs, so that a change of a partition can be read
in a diff.

    tests/run-script tests/partition/graphs.py build/tessera             compare
    tests/run-script tests/partition/graphs.py build/tessera --write     write the files again, after reading the differences

A file has comments, options (`# annotate: ...`, `# partition: ...`), a model in ONNX's text form, and the graphs of all ranks."""
import difflib
import glob
import os
import re
import shlex
import sys

import onnx

import harness

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "graphs")
TESSERA = os.path.abspath(sys.argv[1])
WRITE = "--write" in sys.argv
RANK = "---- rank "


def options(text, command):
    found = re.search(r"^# %s: (.*)$" % command, text, re.M)
    return shlex.split(found.group(1)) if found else []


def call(*words):
    code, out, err = harness.call(TESSERA, *words)
    assert code == 0, "tessera %s: exit code %d\n%s" % (" ".join(words), code, err)


def graph_text(path):
    """A rank file as text, without its header, the plan's fingerprint, which any change of the model changes, and the names of added
    nodes."""
    text = onnx.printer.to_text(onnx.load(path, load_external_data=False))
    text = re.sub(r"\A<.*?^>\n", "", text, flags=re.S | re.M)
    text = re.sub(r'plan: string = "[0-9a-f]*", |\["ai[.]tessera[.]\d+"\] | +$', "", text, flags=re.M)
    return re.sub(r'"ai[.]tessera[.]([\w.]+)"', r"%\1", text)


def rank_graphs(folder, text):
    model = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    onnx.save(onnx.parser.parse_model(model), folder + "/model.onnx")
    call("annotate", folder + "/model.onnx", *options(text, "annotate"), "-o", folder + "/annotated.onnx")
    call("partition", folder + "/annotated.onnx", *options(text, "partition"), "-o", folder + "/parts")
    ranks = sorted(glob.glob(folder + "/parts/rank*.onnx"))
    return "".join("%s%d\n%s\n" % (RANK, k, graph_text(path)) for k, path in enumerate(ranks))


def compares(folder, path):
    with open(path) as file:
        before = file.read()
    head = before.split(RANK)[0]
    after = head + rank_graphs(folder, head)
    if WRITE:
        with open(path, "w") as file:
            file.write(after)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="")
    assert WRITE or before == after, "\n".join(
        lines) + "\nif this is intended: tests/run-script tests/partition/graphs.py build/tessera --write"


harness.run([(os.path.basename(path)[:-4], compares, path) for path in sorted(glob.glob(FOLDER + "/*.txt"))])
harness.finish()
