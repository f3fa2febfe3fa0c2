# SPDX-License-Identifier: Apache-2.0
"""Tests the scripts of examples/python with the library of this build: they must succeed and print what they promise.

usage: test_examples.py BUILD"""
import os
import subprocess
import sys
import tempfile
import xml.dom.minidom

from built import BUILD, MODEL, ROOT, generation_folder

ENV = dict(os.environ, TESSERA_LIBRARY=BUILD + "/libtessera.so", PYTHONPATH=BUILD + "/python")
failed = 0


def case(name, ok, why=""):
    global failed
    failed += not ok
    print("%s python example %s" % ("ok" if ok else "not ok", name))
    if not ok:
        print("#", str(why)[-1500:].replace("\n", "\n# "))


def has(module):
    return subprocess.run([sys.executable, "-c", "import " + module], capture_output=True).returncode == 0


def example(name, *words):
    p = subprocess.run([sys.executable, "%s/examples/python/%s.py" % (ROOT, name), *words], capture_output=True, text=True, env=ENV, timeout=300)
    return p.returncode, p.stdout, p.stdout + p.stderr


def command(*words):
    """Runs the wheel's command `tessera` with the program of this build."""
    code = "import sys; from tessera import _command; _command.FOLDER = sys.argv.pop(1); _command.main()"
    p = subprocess.run([sys.executable, "-c", code, BUILD, *words], capture_output=True, text=True, env=ENV, timeout=300)
    return p.returncode, p.stdout, p.stderr


def text_by_command(folder):
    words = ["generate", folder, "--devices", "2", "--max-tokens", "12"]
    rc, text, said = command(*words, "--prompt", "Hello")
    case("tessera generate --prompt", rc == 0 and 10 < len(text.strip("\n")) <= 12 and not said, (text, said))
    wanted = subprocess.run([sys.executable, "-c", "import sys, tessera; print(''.join(tessera.generate(sys.argv[1], 'Hello', devices=2, max_tokens=12)))", folder],
                            capture_output=True, text=True, env=ENV, timeout=300).stdout
    case("and Python's generate say the same", text == wanted, (text, wanted))
    rc, text, said = command(*words, "--prompt")
    case("a prompt that is missing is told", rc == 2 and "--prompt" in said, said)
    os.remove(folder + "/tokenizer.json")
    rc, text, said = command(*words, "--prompt", "Hello")
    case("a folder without a tokenizer is told", rc == 2 and "has no tokenizer.json" in said and "Traceback" not in said, said)
    rc, text, said = command(*words, "--ids", "1,7,11")
    case("tokens need none", rc == 0 and len(text.split()) == 12, said)


with tempfile.TemporaryDirectory(prefix="tessera-examples-") as d:
    rc, out, said = example("plan_and_run", MODEL, "batch=2", "seq=9")
    apart = [float(line.split("largest difference ")[1].split()[0]) for line in out.splitlines() if "largest difference" in line]
    case("plan_and_run", rc == 0 and "predicted" in out and apart and max(apart) < 5e-5, said)
    rc, out, said = example("annotate_and_check", MODEL)
    case("annotate_and_check", rc == 0 and "refused: " in out and "sharded and unsharded agree" in out, said)
    rc, out, said = example("plot", MODEL, "hosts:2x2", d + "/topology.svg", d + "/timeline.svg")
    case("plot", rc == 0 and "4 devices" in out and "2 ranks" in out, said)
    if rc == 0:
        marks = [len(xml.dom.minidom.parse(d + name).getElementsByTagName(tag)) for name, tag in (("/topology.svg", "circle"), ("/topology.svg", "line"), ("/timeline.svg", "rect"))]
        case("plot draws every device, link and node", marks[0] == 4 and marks[1] > 3 and marks[2] > 20, marks)
    if has("tqdm"):
        rc, out, said = example("progress", MODEL, d + "/parts")
        case("progress", rc == 0 and os.path.exists(d + "/parts/manifest.json") and "weights" in out, said)
    else:
        print("ok python example progress # SKIP no tqdm")
    if has("tokenizers"):
        rc, out, said = example("generate", generation_folder(d + "/folder"), "Hello")
        case("generate", rc == 0 and out.startswith("Hello") and "pieces of text" in out and len(out.splitlines()[0]) > 10, said)
        text_by_command(d + "/folder")
    else:
        print("ok python example generate # SKIP no tokenizers")
sys.exit(1 if failed else 0)
