# SPDX-License-Identifier: Apache-2.0
"""Checks that test_foreign.c has a case for every second handle of a call: foreign_calls.py include/tessera.h PROGRAM FOLDER

Reads all headers of that folder; only the calls of tessera_cli.h need no cases. A handle is a parameter of an opaque struct type, or such a
field of a struct to which a parameter points; results are not handles. The first handle of a call is the owner. Each other handle must be
rejected if it belongs to another owner. PROGRAM runs with an engine and prints the arguments that it has tried. A new call, or a new handle
of a call, fails this test until test_foreign.c has a case for it.
"""
import glob
import os
import re
import subprocess
import sys

import onnxruntime

HEADER, PROGRAM, FOLDER = sys.argv[1:]


def parameters(text):
    """Parameters of a call; those of callback types are omitted."""
    text = re.sub(r"\w+\s*\(\*\w+\)\s*\([^)]*\)", "callback", text)
    return [" ".join(p.split()) for p in text.split(",") if "*" in p]


def fields(body):
    """Fields of a struct that are structs or pointers to structs, in the form of parameters."""
    return [" ".join(f.split()) for f in body.split(";") if "tsr_" in f]


def read(text):
    """Opaque types, structs with their fields, calls with their parameters."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    structs = {name: fields(body) for body, name in re.findall(r"typedef struct \w+ \{([^}]*)\} (\w+);", text)}
    opaque = set(re.findall(r"typedef struct \w+\s+(tsr_\w+);", text)) - set(structs)
    calls = re.findall(r"TSR_API\s[^;(]*?(\w+)\s*\(((?:[^;()]|\([^()]*\)|\)\s*\()*)\)\s*;", text)
    return opaque, structs, {name: parameters(given) for name, given in calls}


def handles(declaration, opaque, structs, path=""):
    """Paths of the handles that a declaration passes to the call: inputs, options.plan.topology."""
    kind = re.search(r"\btsr_\w+", declaration)
    name = re.findall(r"\w+", declaration)[-1]
    if not kind:
        return []
    kind = kind.group()
    if kind in opaque:
        is_result = "**" in declaration.replace(" ", "")  # an array of handles is written *const *
        return [] if is_result else [path + name]
    found = []
    for field in structs.get(kind, []):
        for single in field.split(","):
            words = single if "tsr_" in single else field.split()[0] + " " + single
            found += handles(words, opaque, structs, path + name + ".")
    return found


def wanted(*names):
    opaque, structs, calls = read("".join(open(os.path.join(os.path.dirname(HEADER), name), encoding="utf-8").read() for name in names))
    assert {"tsr_session", "tsr_model", "tsr_topology", "tsr_tensors", "tsr_job"} <= opaque and len(calls) > 200, (opaque, len(calls))
    assert "tsr_plan_options" in structs
    out = set()
    for name, given in calls.items():
        found = [h for p in given for h in handles(p, opaque, structs)]
        out |= {"%s.%s" % (name, h) for h in found[1:]}
    return out


def main():
    library = os.environ.get("TESSERA_ORT") or glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi/libonnxruntime.so.*"))[0]
    ran = subprocess.run([PROGRAM, FOLDER, library], capture_output=True, text=True, errors="replace", timeout=240)
    tried, must = set(re.findall(r"^case (\S+)$", ran.stdout, re.M)), wanted("tessera.h", "tessera_graph.h")
    known = wanted("tessera.h", "tessera_graph.h", "tessera_cli.h")
    for ok, name in ((ran.returncode == 0, "all are refused\n" + ran.stdout + ran.stderr if ran.returncode else "all are refused"),
                     (not must - tried, "each of the %d handles has a case %s" % (len(must), sorted(must - tried))),
                     (not tried - known, "no case is of a handle that the headers have not %s" % sorted(tried - known))):
        print("%s - %s" % ("ok" if ok else "not ok", name))
    return ran.returncode != 0 or not must <= tried <= known


if __name__ == "__main__":
    sys.exit(main())
