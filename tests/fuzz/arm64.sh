#!/bin/sh
# Compiles the operator for arm64 and runs it under qemu: the pixels of sound files must be those of
# this machine, with and without the instructions of its processor. Damaged files must be refused or
# decoded as libjpeg-turbo for arm64 does it.
# Usage: tests/fuzz/arm64.sh
# Needs torch and the tests' packages in $PYTHON (default: python3).
set -eu
python=${PYTHON:-python3}
cross=aarch64-linux-gnu-g++
emulator=qemu-aarch64-static
here=$(cd "$(dirname "$0")" && pwd)
csrc=$here/../../custom_op/csrc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

printf '#include <cstdio>\n#include <jpeglib.h>\nint main() { return !jpeg_std_error(nullptr); }' \
    >"$work/probe.cpp"
if ! command -v $emulator >/dev/null ||
    ! $cross -static "$work/probe.cpp" -ljpeg -o "$work/probe" >"$work/problem" 2>&1; then
    echo "arm64: no $cross, $emulator or libjpeg-turbo for arm64; on Debian:" \
        "dpkg --add-architecture arm64 && apt-get update && apt-get install" \
        "g++-aarch64-linux-gnu qemu-user-static libjpeg62-turbo-dev:arm64" >&2
    exit 1
fi
# The registration processes no file bytes.
sources=$(find "$csrc" -name '*.cpp' ! -path '*/binding/*')

build() { # NAME COMPILER FLAG...
    name=$1
    shift
    mkdir "$work/$name"
    # The flags of custom_op/toolchain.py; static, so that the emulator needs no libraries.
    # shellcheck disable=SC2086,SC2016 # one word per source file; the inner shell expands
    printf '%s\n' $sources "$here/target.cpp" "$here/replay.cpp" |
        xargs -P "$(nproc)" -I SOURCE sh -c '"$@" -c SOURCE -o "$0/$(basename SOURCE).o"' \
            "$work/$name" "$@" -std=c++17 -O3 -ffp-contract=off -Wall -Wextra -Werror \
            -I "$csrc"
    "$1" -static "$work/$name"/*.o -ljpeg -o "$work/$name/replay"
}

compare() { # NAME FLAG...
    name=$1
    shift
    build "$name" "${CXX:-c++}" "$@"
    "$name/replay" 0 jpegs/* >"$name.txt"
    if ! cmp -s arm64.txt "$name.txt"; then
        echo "arm64: other pixels than the $name build here, first in" \
            "$(diff arm64.txt "$name.txt" | grep -m 1 '>' | cut -d ' ' -f 3)" >&2
        exit 1
    fi
}

cd "$here/../.."
"$python" -m tests.custom_op.corpus "$work/jpegs"
cp "$here"/corpus/* "$work/jpegs"
cd "$work"
build arm64 $cross
$emulator arm64/replay 0 jpegs/* >arm64.txt
$emulator arm64/replay 20 "$here"/corpus/* >damaged.txt
compare portable
compare native -march=native
echo "arm64: $(wc -l <arm64.txt) files with the same pixels; damaged: $(tail -n 1 damaged.txt)"
