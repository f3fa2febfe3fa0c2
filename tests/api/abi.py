# SPDX-License-Identifier: Apache-2.0
"""Checks that clients compiled for other versions run with this library: abi.py CC INCLUDE BASELINE LIBRARY

client.c is compiled three times: with the headers of this version, with the baseline headers, and with headers in which every struct that
starts with `size` has one more field. All three must pass their own checks and print the same.
"""
import os
import re
import subprocess
import sys
import tempfile

CC, INCLUDE, BASELINE, LIBRARY = sys.argv[1:]
CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "client.c")
HEADERS = ("tessera.h", "tessera_graph.h")


def text_of(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        return f.read()


def grown(text):
    """(the header with one more field in every struct that starts with `size`, number of changed structs)."""
    return re.subn(r"(typedef struct \w+ \{\s*size_t size;[^}]*)\}", r"\1    int64_t tsr_grown;\n}", text)


def grow(folder):
    total = 0
    for name in HEADERS:
        text, n = grown(text_of(INCLUDE, name))
        total += n
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)
    return total


def run(folder, headers, *flags):
    """Compile the client with these headers and run it; returns exit code and output."""
    program = os.path.join(folder, "client")
    built = subprocess.run([*CC.split(), "-std=c11", "-Wall", "-Wextra", *flags, "-I", headers, CLIENT, LIBRARY, "-o", program],
                           capture_output=True, text=True)
    if built.returncode:
        return built.returncode, built.stderr
    library_path = {"LD_LIBRARY_PATH": os.path.dirname(LIBRARY)}
    ran = subprocess.run([program], capture_output=True, text=True, env={**os.environ, **library_path})
    return ran.returncode, ran.stdout + ran.stderr


def main():
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tessera-abi-") as folder:
        structs = grow(folder)
        rc, now = run(folder, INCLUDE)
        results = [("this version", rc, now)]
        for name, headers, flags in (("the baseline", BASELINE, []), ("%d grown structs" % structs, folder, ["-DTSR_GROWN"])):
            rc, out = run(folder, headers, *flags)
            results.append((name, rc or out != now, out))
    for name, rc, out in results:
        print("%s - a client of %s%s" % ("not ok" if rc else "ok", name, "\n" + out if rc else ""))
        failed += bool(rc)
    if structs < 30:
        print("not ok - %d structs were found" % structs)
    return failed > 0 or structs < 30


if __name__ == "__main__":
    sys.exit(main())
