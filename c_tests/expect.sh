#!/bin/sh
# expect.sh STATUS TEXT COMMAND...: passes if the command ends with that status and its output contains TEXT
# ("-": anything).
want=$1 text=$2
shift 2
output=$("$@" 2>&1)
status=$?
printf '%s\n' "$output"
if [ "$status" -ne "$want" ]; then
    echo "expect.sh: ended with status $status, not $want" >&2
    exit 1
fi
if [ "$text" != - ] && ! printf '%s\n' "$output" | grep -qF -- "$text"; then
    echo "expect.sh: the output does not contain: $text" >&2
    exit 1
fi
