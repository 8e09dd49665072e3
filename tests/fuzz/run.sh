#!/bin/sh
# Fuzzes the operator under AddressSanitizer and UndefinedBehaviorSanitizer: half of the executions
# the code for AVX2, half of them the code for other processors. The same seed makes the same
# executions, so that no run fails by chance; another seed searches elsewhere.
# Usage: tests/fuzz/run.sh [EXECUTIONS] [SEED] [FOLDER FOR NEW INPUTS]
# Needs clang++ and the headers of libjpeg-turbo.
set -eu
executions=${1:-100000}
seed=${2:-1}
here=$(cd "$(dirname "$0")" && pwd)
csrc=$here/../../custom_op/csrc
work=${3:-$(mktemp -d)}
mkdir -p "$work/found"
# The registration processes no file bytes.
sources=$(find "$csrc" -name '*.cpp' ! -path '*/binding/*')

build() { # NAME [FLAG]
    name=$1
    shift
    # Without tracing comparisons there are twice as many executions, and more code is reached.
    # shellcheck disable=SC2086 # one word per source file
    "${CLANG:-clang++}" -std=c++17 -O2 -g "$@" -Wall -Wextra -Werror \
        -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        -fno-sanitize-coverage=trace-cmp \
        -I "$csrc" "$here/target.cpp" $sources -ljpeg -o "$work/$name"
}

# libFuzzer's choices depend on addresses and on when it reads its folder again: both are fixed.
fixed="setarch -R"
if ! $fixed true 2>/dev/null; then
    echo "fuzz: addresses are random here (setarch -R is refused), so another run differs" >&2
    fixed=
fi

fuzz() { # NAME
    # shellcheck disable=SC2086 # nothing, or a command and its option
    $fixed "$work/$1" -runs=$((executions / 2)) -seed="$seed" -reload=0 -timeout=20 -rss_limit_mb=2048 \
        -malloc_limit_mb=512 -max_len=65536 -print_final_stats=1 -artifact_prefix="$work/" \
        "$work/found" "$here/corpus"
}

build portable &
[ "$(uname -m)" != x86_64 ] || build avx2 -mavx2
wait $!
fuzz portable
[ "$(uname -m)" != x86_64 ] || fuzz avx2
