#!/bin/sh
# Runs a fuzz target for so many inputs: tests/fuzz/run.sh NAME EXECUTIONS [libFuzzer's options...]
set -e
name=${1:?name a target, such as safetensors} executions=${2:?say how many executions}
shift 2
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$top/build-fuzz flags=-fsanitize=fuzzer-no-link,float-cast-overflow most=4096
# Text has no magic numbers: to watch each comparison finds nothing there, and takes two thirds of the time. It costs by its length,
# and what is long to a tokenizer is a word of more than 64 symbols.
[ "$name" != encode ] || build=$build-encode flags="$flags -fno-sanitize-coverage=trace-cmp" most=160
# Beyond a few hundred bytes are only more lines, and more frames.
[ "$name" != documents ] || most=512
corpus=$build/corpus-$name
command -v clang >/dev/null || { echo "run.sh: clang is needed: apt-get install clang" >&2; exit 69; }
cmake -S "$top" -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DPERDURE_FUZZ=ON -DPERDURE_CUDA=OFF -DPERDURE_MPI=OFF \
  -DPERDURE_ONEDNN=OFF \
  -DPERDURE_SANITIZE=address,undefined "-DCMAKE_C_FLAGS=$flags -Wno-unknown-warning-option" >/dev/null
ninja -C "$build" "fuzz_$name"
mkdir -p "$corpus"
longest=$(wc -c "$top/tests/fuzz/seeds/$name"/* | awk '$2 != "total" && $1 > most { most = $1 } END { print most }')
# Freed memory comes back while it is in the cache; whoever allocated it is told by a replay of what was found, with deeper stacks.
export ASAN_OPTIONS="quarantine_size_mb=16:malloc_context_size=2${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
# A frame of zstd --long=31 asks for 2 GiB and touches little of them.
exec "$build/bin/fuzz_$name" -runs="$executions" -malloc_limit_mb=2112 -max_len=$((longest > most ? longest + most / 4 : most)) "$@" "$corpus" "$top/tests/fuzz/seeds/$name"
