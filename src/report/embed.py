#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes style and script of the report page into constants of C: embed.py OUT STYLE SCRIPT... The scripts become one function. Comments on
lines of their own and indentation are left out."""
import sys


def lines_of(path):
    for line in open(path, encoding="utf-8"):
        line = line.strip()
        if line and not line.startswith(("//", "/*")) and line != "'use strict';":
            yield line


def constant(name, lines):
    yield "\nconst char %s[] =" % name
    for line in lines:
        quoted = "".join(c if 32 <= ord(c) < 127 and c not in '\\"?' else "".join("\\%03o" % b for b in c.encode()) for c in line)
        yield '    "%s\\n"' % quoted
    yield "    ;"


out, style, *scripts = sys.argv[1:]
script = [line for path in scripts for line in lines_of(path)]
with open(out, "w", encoding="utf-8") as target:
    print("// Made by embed.py; not to be edited.\n#include \"report/internal.h\"", file=target)
    for line in constant("tsr__page_style", lines_of(style)):
        print(line, file=target)
    for line in constant("tsr__page_script", ["(function () {", "'use strict';", *script, "})();"]):
        print(line, file=target)
