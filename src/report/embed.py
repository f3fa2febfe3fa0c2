#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes text files into constants of C: embed.py OUT NAME FILE [NAME FILE ...]. Comments on lines of their own are left out, and so is what
indents a line."""
import sys

out, *pairs = sys.argv[1:]
with open(out, "w", encoding="utf-8") as target:
    target.write("// Made by embed.py; not to be edited.\n#include \"report/internal.h\"\n")
    for name, path in zip(pairs[::2], pairs[1::2]):
        target.write("\nconst char %s[] =\n" % name)
        for line in open(path, encoding="utf-8"):
            line = line.strip()
            if not line or line.startswith(("//", "/*")):
                continue
            quoted = "".join(c if 32 <= ord(c) < 127 and c not in '\\"?' else "".join("\\%03o" % b for b in c.encode()) for c in line)
            target.write('    "%s\\n"\n' % quoted)
        target.write("    ;\n")
