# SPDX-License-Identifier: Apache-2.0
"""Generates tokens from a generation folder with stock onnxruntime-genai, in one process or in one per rank under mpirun.

usage: generation.py FOLDER                    prints `tokens RANK TOKEN ...`; under mpirun each rank loads FOLDER/rankN
       generation.py FOLDER LIBRARY DEVICES    with the execution provider of that library"""
import os
import shutil
import subprocess
import sys

PROMPT, TOKENS = [1, 72, 101, 108, 108, 111], 24


def missing():
    """Returns why this machine cannot generate under mpirun, or ""."""
    try:
        import onnxruntime_genai  # noqa: F401
    except ImportError:
        return "this Python has no onnxruntime-genai"
    return "" if mpirun() else "no mpirun"


def mpirun():
    return next((p for p in (shutil.which("mpirun.openmpi"), shutil.which("mpirun")) if p), None)


def tokens(folder, ranks=0, provider=()):
    """Returns [[rank, token, ...], ...] as texts, sorted by rank, and the text of stderr. ranks 0: without mpirun. provider:
    library and number of devices of an execution provider."""
    launch = [mpirun(), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] if ranks else []
    try:
        p = subprocess.run(launch + [sys.executable, os.path.abspath(__file__), folder, *map(str, provider)], capture_output=True,
                           text=True, timeout=240)
    except subprocess.TimeoutExpired:
        return [], "no answer after 240 s"
    return sorted(line.split()[1:] for line in p.stdout.splitlines() if line.startswith("tokens ")), p.stderr


def same_tokens(got, want, ranks):
    return bool(want) and len(want[0]) > 2 and [g[0] for g in got] == [str(r) for r in range(ranks)] and all(g[1:] == want[0][1:]
                                                                                                             for g in got)


def provided(og, folder, library, devices):
    """Returns the folder's configuration with the execution provider, which must take the model (strict)."""
    name = "TesseraExecutionProvider"
    og.register_execution_provider_library(name, library)
    config = og.Config(folder)
    config.clear_providers()
    config.append_provider(name)
    for key, value in (("devices", devices), ("strict", "1")):
        config.set_provider_option(name, key, value)
    return config


def generated(folder, *provider):
    """Returns the generated tokens, in this process."""
    import numpy as np
    import onnxruntime_genai as og
    model = og.Model(provided(og, folder, *provider) if provider else folder)
    options = og.GeneratorParams(model)
    most = len(PROMPT) + TOKENS + 10
    options.set_search_options(max_length=most, min_length=most, do_sample=False)  # the end token must not end the generation
    generator = og.Generator(model, options)
    generator.append_tokens(np.array([PROMPT], np.int32))
    found = []
    while not generator.is_done() and len(found) < TOKENS:
        generator.generate_next_token()
        found.append(int(generator.get_next_tokens()[0]))
    return found


def main(folder, *provider):
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
    found = generated(folder if rank is None or provider else "%s/rank%s" % (folder, rank), *provider)
    sys.stdout.write(" ".join(map(str, ["tokens", rank, *found])) + "\n")  # one write, because all ranks write to one pipe
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
