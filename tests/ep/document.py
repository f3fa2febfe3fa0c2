# SPDX-License-Identifier: Apache-2.0
"""Tests docs/provider.md: its Python programs run, its C lines compile, and its table of options is complete.

usage: document.py LIBRARY MODEL GENAI_FOLDER SOURCE     SOURCE: src/ep/options.c"""
import os
import re
import shutil
import subprocess
import sys

import harness

LIBRARY, MODEL, FOLDER, SOURCE = map(os.path.abspath, sys.argv[1:])
PAGE = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/provider.md"), encoding="utf-8").read()
PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)


def prepare(folder):
    """Makes the files that the programs name."""
    os.mkdir(folder + "/build")
    os.symlink(LIBRARY, folder + "/build/libtessera_ep.so")
    shutil.copy(MODEL, folder + "/model.onnx")
    os.symlink(FOLDER, folder + "/genai-folder")


def run(folder, code):
    prepare(folder)
    p = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=harness.HANG_S)
    assert p.returncode == 0, p.stderr[-harness.DETAILS_MAX:]
    return p.stdout


def python_programs(folder):
    """The second program continues the first."""
    code = [c for c in PYTHON if "onnxruntime_genai" not in c]
    assert len(code) == 2, len(code)
    out = run(
        folder,
        "\n".join(code + ["print(session.run(None, {'input_ids': ids, 'attention_mask': ids, 'token_type_ids': ids})[0] - outputs[0])"]))
    assert '"route"' in out and '"file"' in out, out
    assert os.path.exists(folder + "/compiled/model_ctx.onnx")


def genai_program(folder):
    try:
        import onnxruntime_genai  # noqa: F401
    except ImportError:
        return "no onnxruntime-genai"
    code = [c for c in PYTHON if "onnxruntime_genai" in c]
    assert len(code) == 1
    out = run(folder, code[0] + "\nprint(len(tokens))")
    assert out.split()[-1] == "12", out
    assert '"devices": 2' in open(folder + "/summary.json").read()
    return None


def c_lines(folder):
    """Compiles the C lines of the page inside a function that declares what they use."""
    include = os.environ.get("ONNXRUNTIME_INCLUDE", "/usr/include/onnxruntime")
    if not os.path.exists(include + "/onnxruntime_c_api.h"):
        return "onnxruntime_c_api.h is not installed (set ONNXRUNTIME_INCLUDE)"
    head = ("#include <onnxruntime_c_api.h>\n#include <string.h>\nvoid check(OrtStatus *);\n"
            "void use(const OrtApi *ort, OrtSessionOptions *options, OrtSession *session);\n"
            "void use(const OrtApi *ort, OrtSessionOptions *options, OrtSession *session)\n{\n")
    code, = re.findall(r"^```c\n(.*?)^```", PAGE, flags=re.M | re.S)
    with open(folder + "/lines.c", "w") as f:
        f.write(head + code + "}\n")
    harness.good("cc", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-I", include, f.name)
    return None


def options(_):
    """Options that the provider reads are in the table of the page and are arguments in Python; the page lists no others."""
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE.split("\n## Options\n")[1].split("\n## ")[0], flags=re.M))
    read = set(re.findall(r'PREFIX "(\w+)"', open(SOURCE, encoding="utf-8").read()))
    package = open(os.path.join(os.path.dirname(SOURCE), "../../python/tessera/provider.py"), encoding="utf-8").read()
    arguments = set(re.findall(r"\b(\w+): ", package.split("class InferenceSession")[1].split("def __init__(")[1].split("):\n")[0]))
    missing = ["docs/provider.md: describe the option %s of src/ep/options.c" % name for name in sorted(read - listed)]
    missing += ["docs/provider.md: src/ep/options.c does not read the option %s" % name for name in sorted(listed - read)]
    missing += ["python/tessera/provider.py: add the argument %s to InferenceSession" % name for name in sorted(read - arguments)]
    assert not missing, "\n".join(missing)


harness.run([python_programs, genai_program, c_lines, options])
harness.finish()
