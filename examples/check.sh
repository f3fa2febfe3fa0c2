#!/bin/sh
# Runs an example and compares its output with the expected text.
set -e
out=$("$1")
printf '%s\n' "$out" | diff "$2" -
