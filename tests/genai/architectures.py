# SPDX-License-Identifier: Apache-2.0
"""Tests every architecture of onnxruntime-genai's builder, with small random weights, on 2, 3 and 4 devices.

`verify` must pass. The folders of `--layout genai` and the execution provider must give the tokens of the unsharded folder.

usage: architectures.py TESSERA PROVIDER [all]

make_folders.py makes the folders. It needs torch and transformers: in this Python, or in the one that GENAI_PYTHON names.
GENAI_FOLDERS names a folder in which the made folders are kept. CASE selects architectures: CASE='qwen3*'."""
import os
import subprocess
import sys
import tempfile

import harness

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import generation  # noqa: E402
import make_folders  # noqa: E402

TESSERA, PROVIDER = map(os.path.abspath, sys.argv[1:3])
PYTHON = os.environ.get("GENAI_PYTHON", sys.executable)
DEVICES = (2, 3, 4)


def missing():
    """Returns why the folders cannot be made or run here, or ""."""
    found = subprocess.run([PYTHON, "-c", "import torch, transformers, onnxruntime_genai"], capture_output=True, text=True)
    if found.returncode:
        return "%s: %s" % (os.path.basename(PYTHON), (found.stderr.strip().splitlines() or ["no torch"])[-1])
    return generation.missing()


def make_all(folders, names):
    """Makes the folders. Returns {folder name: reason} for those that the installed versions cannot make."""
    made = subprocess.run([PYTHON, "-B", HERE + "/make_folders.py", folders, *names], capture_output=True, text=True)
    skipped = [line.split(" ", 1)[1] for line in made.stdout.splitlines() if line.startswith("skipped ")]
    return {os.path.basename(line.split(": ")[0]): line.split(": ", 1)[1] for line in skipped}


def verify(name, folder):
    for devices in DEVICES:
        rc, out, err = harness.call(TESSERA, "verify", folder, "--devices", devices)
        harness.check("%s: verify on %d devices" % (name, devices), rc == 0, out[-800:] + err)


def generate(name, folder, d):
    want, said = generation.tokens(folder)
    if not want:
        harness.skip(name + ": tokens", "onnxruntime-genai does not run it: " + (said.strip().splitlines() or ["?"])[-1][:200])
        return
    for devices in DEVICES:
        out = "%s/%s-%d" % (d, name, devices)
        rc, _, err = harness.call(TESSERA, "partition", folder, "--devices", devices, "--layout", "genai", "-o", out)
        got, more = generation.tokens(out, devices) if rc == 0 else ([], err)
        harness.check("%s: tokens on %d devices" % (name, devices), generation.same_tokens(got, want, devices),
                      "%s, expected %s %s" % (got, want, more))
        got, more = generation.tokens(folder, provider=(PROVIDER, devices))
        harness.check("%s: tokens of the provider on %d devices" % (name, devices), got == want, "%s, expected %s %s" % (got, want, more))


def main():
    reason = missing()
    if reason:
        harness.skip("architectures", reason)
        return
    with tempfile.TemporaryDirectory(prefix="tessera-genai-") as d:
        folders = os.environ.get("GENAI_FOLDERS", d + "/folders")
        names = [name for name in make_folders.ARCHITECTURES if harness.matches(name)]
        skipped = make_all(folders, names)
        for name in ("%s-%s" % (name, precision) for name in names for precision in make_folders.PRECISIONS):
            if name in skipped:
                harness.skip(name, skipped[name])
                continue
            verify(name, os.path.join(folders, name))
            generate(name, os.path.join(folders, name), d)


main()
harness.finish()
