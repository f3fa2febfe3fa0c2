# SPDX-License-Identifier: Apache-2.0
"""Uses the results of `make dist` like a recipient: dist.py DIST ROOT. The wheel in an empty environment (which needs a package index for
numpy and onnxruntime) gives tokens, text from Python and an EPContext model whose ranks are processes; the tarball has the tree; the
package has what it says. Part of `make distcheck`, which is long."""
import glob
import os
import re
import subprocess
import sys
import tarfile

import harness

DIST, ROOT = map(os.path.abspath, sys.argv[1:3])
FOLDER = ROOT + "/tests/folders/genai_tiny"
ENV = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA") and k not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
CONTEXT = r'''
import glob, os, sys, numpy as np, onnxruntime as ort, tessera
model = tessera.load(sys.argv[1] + "/tests/models/bert_tiny/model.onnx")
plan = model.plan(2, dims={"batch": 2, "seq": 9})
model.partition(sys.argv[2] + "/context", layout="context", transport="shm")
ort.register_execution_provider_library("tessera", os.path.join(os.path.dirname(tessera.__file__), "lib", "libtessera_ep.so"))
options = ort.SessionOptions()
options.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == "TesseraExecutionProvider"], {"strict": "1"})
session = ort.InferenceSession(sys.argv[2] + "/context/model.onnx", options)
feeds = {i.name: np.ones((2, 9), {"tensor(int64)": "i8", "tensor(int32)": "i4"}.get(i.type, "f4")) for i in session.get_inputs()}
whole = ort.InferenceSession(sys.argv[1] + "/tests/models/bert_tiny/model.onnx").run(None, feeds)[0]
print("apart by", float(np.abs(session.run(None, feeds)[0] - whole).max() / np.abs(whole).max()))
'''


def run(words, **more):
    p = subprocess.run(words, capture_output=True, text=True, timeout=900, env=ENV, **more)
    assert p.returncode == 0, (words, p.returncode, p.stdout[-800:], p.stderr[-1500:])
    return p.stdout


def only(pattern):
    found = glob.glob(os.path.join(DIST, pattern))
    assert len(found) == 1, (pattern, found)
    return found[0]


def the_wheel(d):
    wheel = only("tessera_onnx-*.whl")
    assert re.search(r"-py3-none-manylinux_2_\d+_(x86_64|aarch64)\.whl$", wheel), wheel
    run([sys.executable, "-m", "venv", d + "/v"])
    run([d + "/v/bin/python", "-m", "pip", "-q", "install", wheel, "onnxruntime", "tokenizers"], cwd=d)
    tokens = run([d + "/v/bin/tessera", "generate", FOLDER, "--devices", "2", "--ids", "1,7,11", "--max-tokens", "8"], cwd=d).split()
    assert len(tokens) == 8, tokens
    said = run([d + "/v/bin/python", "-c", "import sys, tessera; print(*tessera.generate(sys.argv[1], [1, 7, 11], devices=2, max_tokens=8))", FOLDER], cwd=d).split()
    assert said == tokens, (said, tokens)
    apart = float(run([d + "/v/bin/python", "-c", CONTEXT, ROOT, d], cwd=d).split()[-1])
    assert apart < 5e-5, apart


def the_tarball(d):
    with tarfile.open(only("tessera-*.tar.xz")) as tar:
        names = {name.split("/", 1)[-1] for name in tar.getnames()}
    assert {"README.md", "meson.build", "pyproject.toml", "include/tessera.h", "src/libtessera.c"} <= names, len(names)


def the_package(d):
    names = run(["dpkg-deb", "-c", only("tessera_*.deb")])
    for name in ("/bin/tessera\n", "/libtessera_ops.so\n", "/tessera/tessera-ranks\n", "/include/tessera.h\n", "/include/tessera_graph.h\n", "/tessera.pc\n"):
        assert name in names + "\n", (name, names)


harness.run([the_wheel, the_tarball, the_package])
harness.finish()
