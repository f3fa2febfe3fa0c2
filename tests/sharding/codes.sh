#!/bin/sh
# Every code of the sharding section of diag.def is made to appear by some test: its text stands in one.
# Usage: codes.sh SOURCE_ROOT
cd "$1" || exit 2
missing=0
count=0
for code in $(sed -n '/^\/\/ ---- sharding/,/^\/\/ ---- rules/s/^X(\([a-z0-9_]*\),.*/\1/p' src/base/diag.def | tr _ -); do
    count=$((count + 1))
    if ! grep -qsrE "[\" ]$code[\" ]" tests --include='*.c' --include='*.py'; then
        echo "no test makes $code appear"
        missing=1
    fi
done
echo "$count codes"
[ "$count" -gt 0 ] && exit $missing
exit 2
