# SPDX-License-Identifier: Apache-2.0
"""Tests the scripts of examples/python with the library of this build: they must succeed and print what they promise.

usage: test_examples.py BUILD"""
import importlib.util
import os
import subprocess
import sys
import xml.dom.minidom

import harness
from built import BUILD, MODEL, ROOT, generation_folder, tessera

case = harness.check
ENV = dict(os.environ, TESSERA_LIBRARY=BUILD + "/libtessera.so", PYTHONPATH=BUILD + "/python")


def has(module):
    return importlib.util.find_spec(module) is not None


def example(name, *words):
    p = subprocess.run([sys.executable, "%s/examples/python/%s.py" % (ROOT, name), *words], capture_output=True, text=True, env=ENV,
                       timeout=300)
    return p.returncode, p.stdout, p.stdout + p.stderr


def command(*words):
    """Runs the wheel's command `tessera` with the program of this build."""
    code = "import sys; from tessera import _command, _library; _library.FOLDER = sys.argv.pop(1); _command.main()"
    p = subprocess.run([sys.executable, "-c", code, BUILD, *words], capture_output=True, text=True, env=ENV, timeout=300)
    return p.returncode, p.stdout, p.stderr


def plan_and_run(d):
    rc, out, said = example("plan_and_run", MODEL, "batch=2", "seq=9")
    apart = [float(line.split("largest difference ")[1].split()[0]) for line in out.splitlines() if "largest difference" in line]
    assert rc == 0 and "predicted" in out and apart and max(apart) < 5e-5, said


def annotate_and_check(d):
    rc, out, said = example("annotate_and_check", MODEL)
    assert rc == 0 and "refused: " in out and "sharded and unsharded agree" in out, said


def plot(d):
    rc, out, said = example("plot", MODEL, "hosts:2x2", d + "/topology.svg", d + "/timeline.svg")
    assert rc == 0 and "4 devices" in out and "2 ranks" in out, said
    marks = [
        len(xml.dom.minidom.parse(d + name).getElementsByTagName(tag))
        for name, tag in (("/topology.svg", "circle"), ("/topology.svg", "line"), ("/timeline.svg", "rect"))
    ]
    assert marks[0] == 4 and marks[1] > 3 and marks[2] > 20, marks  # every device, link and node


def progress(d):
    if not has("tqdm"):
        return "no tqdm"
    rc, out, said = example("progress", MODEL, d + "/parts")
    assert rc == 0 and os.path.exists(d + "/parts/manifest.json") and "weights" in out, said


def decoder(d):
    if not has("onnx"):
        return "no onnx"
    import onnx
    here = os.getcwd()
    os.chdir(d)
    for size, kind in (("8b", "int4"), ("8x7b", "float8")):
        rc, out, said = example("decoder", size, kind, "1")
        assert rc == 0, said
        for what in ("tokens", "prompts"):
            names = [i.name for i in onnx.load("%s-%s-%s.onnx" % (size, kind, what), load_external_data=False).graph.input]
            assert ("layer0.past_k" in names) == (what == "tokens"), names
    os.chdir(here)
    assert example("decoder", "9b")[0] != 0


def generate(d):
    if not has("tokenizers"):
        return "no tokenizers"
    rc, out, said = example("generate", generation_folder(d + "/folder"), "Hello")
    assert rc == 0 and out.startswith("Hello") and "pieces of text" in out and len(out.splitlines()[0]) > 10, said


def text_by_command(d):
    if not has("tokenizers"):
        return "no tokenizers"
    folder = generation_folder(d + "/folder")
    words = ["generate", folder, "--devices", "2", "--max-tokens", "12"]
    rc, text, said = command(*words, "--prompt", "Hello")
    case("tessera generate --prompt", rc == 0 and 10 < len(text.strip("\n")) <= 12 and not said, (text, said))
    wanted = "".join(tessera.generate(folder, "Hello", devices=2, max_tokens=12)) + "\n"
    case("and Python's generate say the same", text == wanted, (text, wanted))
    rc, text, said = command(*words, "--prompt")
    case("a prompt that is missing is told", rc == 2 and "--prompt" in said, said)
    os.remove(folder + "/tokenizer.json")
    rc, text, said = command(*words, "--prompt", "Hello")
    case("a folder without a tokenizer is told", rc == 3 and "has no tokenizer.json" in said and "Traceback" not in said, said)
    rc, text, said = command(*words, "--ids", "1,7,11")
    case("tokens need none", rc == 0 and len(text.split()) == 12, said)


harness.run([plan_and_run, annotate_and_check, decoder, plot, progress, generate, text_by_command])
harness.finish()
