#!/usr/bin/env bash
# Installs what is missing, builds, runs the tests. tools/test.sh [--all | --races | --sanitize] [--build DIR]
# --races builds with the thread sanitizer instead (default directory build-races) and trains under it: tests/e2e/races.py.
# --sanitize runs all tests of kernels on the host under the address and undefined behaviour sanitizers (default directory
# build-sanitize), of which every run has some: tests/simt.
# --all adds the long campaigns: every configuration of the same-bits matrix, hundreds of kills, exhaustive crash states.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
build=
all=no
races=no
sanitize=no
while [ $# -gt 0 ]; do
  case "$1" in
    --all) all=yes ;;
    --races) races=yes ;;
    --sanitize) sanitize=yes ;;
    --build) build=${2:?--build wants a directory}; shift ;;
    -h | --help) sed -n '2,/^[^#]/s/^# //p' "$0"; exit 0 ;;
    *) echo "usage: tools/test.sh [--all | --races | --sanitize] [--build DIR]" >&2; exit 64 ;;
  esac
  shift
done
"$top/tools/packages.sh" build run text test
if [ $races = yes ]; then
  build=${build:-$top/build-races}
  "$top/tools/build.sh" "$build" -DPERDURE_TESTS=ON -DPERDURE_SANITIZE=thread -DPERDURE_CUDA=OFF
  cd "$build"
  exec ctest --output-on-failure --no-tests=error
fi
if [ $sanitize = yes ]; then
  build=${build:-$top/build-sanitize}
  "$top/tools/build.sh" "$build" -DPERDURE_TESTS=ON -DPERDURE_SIMT_CHECKED=ALL -DPERDURE_CUDA=OFF
  cd "$build"
  exec ctest --output-on-failure --no-tests=error -j "$(nproc)" -R '^checked\.'
fi
build=${build:-$top/build}
# Machine code for two architectures: each further one costs minutes of nvcc, and no test runs it.
"$top/tools/build.sh" "$build" -DPERDURE_TESTS=ON "-DPERDURE_CUDA_ARCHITECTURES=80-real;90-real"
export PERDURE_TEST_SCALE=1
# Some tests try a part of their cases: always the same part for one commit, another for the next.
export PERDURE_TEST_SHARE=${PERDURE_TEST_SHARE:-$((16#$(git -C "$top" rev-parse --short=7 HEAD 2>/dev/null || echo 0)))}
# Tests that take turns (tests_in_turn in tests/CMakeLists.txt): those of other commits are left out. By other bits of the number than shares
# take, or a test would have the same share at each of its turns.
others=
for count in 2 3; do
  for ((turn = 0; turn < count; turn++)); do
    [ $turn = $((PERDURE_TEST_SHARE / 64 % count)) ] || others+="|turn${turn}of$count"
  done
done
labels=(-LE "campaign$others")
if [ $all = yes ]; then
  export PERDURE_TEST_SCALE=10
  labels=()
fi
# What Open MPI leaves of ranks that are killed with their launcher: shared memory and session directories.
memory=$(mktemp -d /dev/shm/perdure-test-XXXXXX)
sessions=$(mktemp -d)
trap 'rm -rf "$memory" "$sessions"' EXIT
export OMPI_MCA_btl_vader_backing_directory=$memory OMPI_MCA_btl_sm_backing_directory=$memory OMPI_MCA_orte_tmpdir_base=$sessions
cd "$build"
# More than the number of cores: ranks, launchers and drives often wait.
ctest --output-on-failure --no-tests=error -j "$(($(nproc) + 3))" "${labels[@]}"
