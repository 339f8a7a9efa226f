#!/usr/bin/env bash
# Configures and builds perdure: tools/build.sh [BUILD_DIRECTORY] [CMAKE_OPTION ...]; the default directory is build.
# -DCMAKE_PREFIX_PATH=/opt/hdf5 takes another HDF5 (1.10 or later) than the system's.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
directory=${1:-$top/build}
[ $# -eq 0 ] || shift
# Uses a compiler cache if one is installed.
launchers=()
if command -v ccache >/dev/null; then
  for language in C CXX CUDA; do launchers+=("-DCMAKE_${language}_COMPILER_LAUNCHER=ccache"); done
fi
cmake -S "$top" -B "$directory" -G Ninja ${launchers[@]+"${launchers[@]}"} "$@" >"$directory.configure.log" 2>&1 || { cat "$directory.configure.log" >&2; exit 1; }
sed -n 's/^-- perdure: /perdure: /p' "$directory.configure.log" >&2
rm -f "$directory.configure.log"
# On a terminal ninja shows one progress line; a log gets no progress.
quiet=--quiet
[ ! -t 1 ] || quiet=
ninja -C "$directory" $quiet
