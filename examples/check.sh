#!/bin/sh
# Runs an example and compares its output with the expected text: check.sh PROGRAM EXPECTED

set -e
out=$("$1")
printf '%s\n' "$out" | diff "$2" -
