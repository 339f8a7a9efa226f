#!/usr/bin/env bash
# Makes a directory that runs perdure's GPU tests and benchmarks where nothing can be installed:
# tools/bundle/bundle.sh BUILD_DIRECTORY OUT [--nvidia needed|none] [--simulated] [--tar]
# --nvidia: needed (default) brings cuBLASLt and NCCL, none relies on what the machine has; --simulated takes the tool
# on simulated GPUs (tests/simt) in place of perdure, to try the bundle itself; --tar packs OUT into OUT.tar.gz, which any machine opens.
# The C library and the driver are the machine's. There: OUT/run.sh
# Exit code: 0, 64 usage, 66 something is not built, 78 the build has no CUDA.
set -euo pipefail
usage="usage: tools/bundle/bundle.sh BUILD_DIRECTORY OUT [--nvidia needed|none] [--simulated] [--tar]"
top=$(cd "$(dirname "$0")/../.." && pwd)
nvidia=needed simulated=no tar=no places=()
while [ $# -gt 0 ]; do
  case "$1" in
    --nvidia)
      [ $# -gt 1 ] || { echo "$usage" >&2; exit 64; }
      nvidia=$2
      shift ;;
    --simulated) simulated=yes ;;
    --tar) tar=yes ;;
    -h | --help) sed -n '2,/^[^#]/s/^# //p' "$0"; exit 0 ;;
    -*) echo "$usage" >&2; exit 64 ;;
    *) places+=("$1") ;;
  esac
  shift
done
case "$nvidia" in needed | none) ;; *) echo "$usage" >&2; exit 64 ;; esac
[ ${#places[@]} = 2 ] || { echo "$usage" >&2; exit 64; }
[ -d "${places[0]}" ] || { echo "bundle: ${places[0]} is not a directory and not a build" >&2; exit 66; }
build=$(cd "${places[0]}" && pwd)
out=${places[1]}
[ ! -e "$out" ] || { echo "bundle: $out exists already; remove it, or name another" >&2; exit 64; }

perdure=$build/perdure operations=$build/bin/gpu_operations
if [ $simulated = yes ]; then
  perdure=$build/bin/perdure_simt operations=$build/bin/gpu_operations_simt
fi
for program in "$perdure" "$operations"; do
  [ -x "$program" ] || { echo "bundle: $program is not built: ninja -C $build $(basename "$program")" >&2; exit 66; }
done
# Finds calls in offload/device_cuda.c by their error messages: without a GPU the program itself cannot be asked.
if ! grep -q cudaMemGetInfo "$perdure"; then
  echo "bundle: $perdure is built without CUDA, and a bundle of it would test nothing: with nvcc on PATH" \
    "cmake -B $build -DPERDURE_CUDA=ON && ninja -C $build; or --simulated to try the bundle itself" >&2
  exit 78
fi

mkdir -p "$out/bin" "$out/libexec" "$out/lib/cxx" "$out/share" "$out/tests/e2e"
cp "$perdure" "$out/libexec/perdure"
cp "$operations" "$out/libexec/gpu_operations"
strip --strip-debug "$out/libexec/perdure" "$out/libexec/gpu_operations"
# Only our programs use our libraries: the machine's python3, mpirun and compute-sanitizer have their own, perhaps newer ones.
for program in perdure gpu_operations; do
  cat >"$out/bin/$program" <<'EOF'
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
LD_LIBRARY_PATH=$here/lib${PERDURE_BUNDLE_LIBRARIES:+:$PERDURE_BUNDLE_LIBRARIES}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$here/libexec/$(basename "$0")" "$@"
EOF
  chmod +x "$out/bin/$program"
done
cp "$top/tests/e2e/gpu.py" "$top/tests/e2e/gpu_offload.py" "$top/tests/e2e/harness.py" "$out/tests/e2e/"
cp "$top/tools/bundle/run.sh" "$out/run.sh"
chmod +x "$out/run.sh"

# Copies what the programs load, except the C library, which must match the machine's driver.
list_of() { ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'; }
for program in "$perdure" "$operations"; do list_of "$program"; done | sort -u |
  grep -Ev '/(libc|libm|libdl|libpthread|librt|libresolv|libutil|libnss_[a-z]+|ld-linux[^/]*)\.so' | while read -r library; do
  case "$library" in
    */libstdc++.so* | */libgcc_s.so*) cp -L "$library" "$out/lib/cxx/" ;; # for a machine that has none, or older ones
    *) cp -L "$library" "$out/lib/" ;;
  esac
done

# Libraries opened by name; run.sh looks for those missing in lib.
tr -c '[:alnum:]._' '\n' <"$perdure" | sed -nE '/^lib(cublasLt|nccl)\.so\.[0-9]+$/p' | sort -u >"$out/share/opened"

# Opened by name if there is a GPU. Several hundred MiB: MANIFEST has the size.
bring() {
  local folder library
  local -A brought
  for folder in "${CUDA_HOME:-/usr/local/cuda}/lib64" $(ldconfig -p | awk -v n="$1" '$1 ~ "^" n { sub("/[^/]*$", "", $NF); print $NF }'); do
    compgen -G "$folder/$1*" >/dev/null || continue
    for library in "$folder/$1"*; do # the name that programs open comes before what it links to, which would be the same once more
      [ -n "${brought[$(readlink -f "$library")]:-}" ] || cp -L "$library" "$out/lib/"
      brought[$(readlink -f "$library")]=yes
    done
    return
  done
  echo "bundle: no $1 here; the bundle relies on the machine's" >&2
}
if [ "$nvidia" != none ] && [ $simulated = no ]; then
  bring libcublasLt.so.1
  bring libnccl.so.2
fi

# Compares the source id of each program with the current sources. Programs from other sources than the scripts that run them would
# waste minutes on a GPU.
header=$(mktemp)
rm "$header"
cmake -DSOURCE="$top" -DHEADER="$header" -P "$top/tools/cmake/source_id.cmake"
sources=$(sed -n 's/.* "\(.*\)"$/\1/p' "$header")
rm "$header"
for program in "$perdure" "$operations"; do
  built=$("$program" --version | sed -n 's/.* (\(.*\))$/\1/p')
  [ "$built" = "$sources" ] || echo "bundle: $program was built from $built, and the sources here are $sources; for a bundle of one piece:" \
    "ninja -C $build $(basename "$perdure") $(basename "$operations"), then this again into another directory" >&2
done

# The training text: the sources themselves.
(cd "$top" && find ckpt offload resharder trainer tools \( -name '*.c' -o -name '*.h' -o -name '*.md' \) -print0 | sort -z |
  xargs -0 cat) >"$out/share/text.txt"

{
  "$perdure" --version
  "$operations" --version
  echo "scripts and text of $sources; made for glibc $(ldd --version | sed -n '1s/.* //p') or later"
  echo "bytes:"
  (cd "$out" && find . -type f ! -name MANIFEST -printf '%12s %P\n' | sort -rn)
  echo "sha256:" # the end: run.sh looks there for what is damaged
  (cd "$out" && find . -type f ! -name MANIFEST -printf '%P\0' | sort -z | xargs -0 sha256sum)
} >"$out/MANIFEST"
du -sh "$out"
if [ $tar = yes ]; then
  tar -C "$(dirname "$out")" -czf "$out.tar.gz" "$(basename "$out")"
  du -h "$out.tar.gz"
fi
