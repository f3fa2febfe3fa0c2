#!/bin/sh
# Runs an example and compares what it prints with the text beside it.
set -e
out=$("$1")
printf '%s\n' "$out" | diff "$2" -
