#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that docs/operators.md is what the program prints. Usage: operators.py TESSERA"""
import difflib, os, subprocess, sys

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/operators.md")
now = subprocess.run([sys.argv[1], "rules", "--markdown"], check=True, capture_output=True, text=True).stdout
with open(path) as f:
    then = f.read()
for line in list(
        difflib.unified_diff(then.splitlines(), now.splitlines(), "docs/operators.md", "tessera rules --markdown", lineterm="", n=0))[:20]:
    print(line)
print("ok - docs/operators.md is current" if now ==
      then else "not ok - docs/operators.md: run `build/tessera rules --markdown > docs/operators.md`")
sys.exit(now != then)
