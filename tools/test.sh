#!/usr/bin/env bash
# Installs what is missing, builds, runs the tests. tools/test.sh [--all] [--build DIR]
# --all adds the long campaigns: every configuration of the same-bits matrix, hundreds of kills, exhaustive crash states.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
build=$top/build
all=no
while [ $# -gt 0 ]; do
  case "$1" in
    --all) all=yes ;;
    --build) build=${2:?--build wants a directory}; shift ;;
    *) echo "usage: tools/test.sh [--all] [--build DIR]" >&2; exit 64 ;;
  esac
  shift
done
"$top/tools/packages.sh" build run text test
"$top/tools/build.sh" "$build" -DPERDURE_TESTS=ON
export PERDURE_TEST_SCALE=1
labels=(-LE campaign)
if [ $all = yes ]; then
  export PERDURE_TEST_SCALE=10
  labels=()
fi
cd "$build"
ctest --output-on-failure --no-tests=error -j "$(nproc)" "${labels[@]}"
