#!/bin/sh
# Fuzzes the operator under AddressSanitizer and UndefinedBehaviorSanitizer.
# Usage: custom_op/fuzz/run.sh [SECONDS] [FOLDER FOR NEW INPUTS]
# Needs clang++, the headers of libjpeg-turbo, and torch in $PYTHON (default: python3).
set -eu
seconds=${1:-60}
here=$(cd "$(dirname "$0")" && pwd)
work=${2:-$(mktemp -d)}
mkdir -p "$work/found"
torch=$("${PYTHON:-python3}" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent)')
# Registration and the thread pool process no file bytes.
sources=$(find "$here/../csrc" -name '*.cpp' ! -name 'register*' ! -name pool.cpp)
# shellcheck disable=SC2086 # one word per source file
"${CLANG:-clang++}" -std=c++17 -O2 -g -mavx2 -Wall -Wextra -Werror \
    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
    -I "$here/../csrc" -isystem "$torch/include" "$here/target.cpp" $sources -ljpeg -o "$work/target"
"$work/target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=512 \
    -max_len=65536 -print_final_stats=1 -artifact_prefix="$work/" "$work/found" "$here/corpus"
