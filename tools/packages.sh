#!/usr/bin/env bash
# Installs what perdure needs on Debian 12 or 13, when it is missing: tools/packages.sh build|run|text|test|coverage ...
# build: compiler and libraries · run: MPI, HDF5 tools, certificates of servers · text: the King James Bible
# test: what the tests use besides · coverage: what tests/coverage.sh uses besides
set -euo pipefail

build="gcc g++ make cmake ninja-build pkg-config libhdf5-dev liburing-dev libopenmpi-dev openmpi-bin libzstd-dev zlib1g-dev
  libxxhash-dev libyaml-dev libjansson-dev libpcre2-dev libutf8proc-dev libmicrohttpd-dev libssl-dev libcurl4-openssl-dev
  libexpat1-dev libdnnl-dev libcriterion-dev"
run="openmpi-bin hdf5-tools ca-certificates"
text="bible-kjv bible-kjv-text"
test="clang-format python3 python3-venv procps slurm-wlm munge fuse3 libfuse3-dev"
coverage="gcovr"
optional=" libopenmpi-dev openmpi-bin libdnnl-dev hdf5-tools " # perdure builds and trains without them

missing=()
for group in "$@"; do
  case "$group" in
    build | run | text | test | coverage) ;;
    *) echo "usage: tools/packages.sh [build] [run] [text] [test] [coverage]" >&2; exit 64 ;;
  esac
  for package in ${!group}; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "perdure: packages are missing, and this user is neither root nor has sudo. As root: apt-get install ${missing[*]}" >&2
    for package in "${missing[@]}"; do
      [[ "$optional" == *" $package "* ]] && continue
      echo "perdure: without root, use the wheel that tools/wheel.sh makes on another machine (README.md)" >&2
      exit 69
    done
    echo "perdure: going on without them" >&2
    exit 0
  fi
  as_root=(sudo)
fi
echo "perdure: installing ${missing[*]}" >&2
"${as_root[@]}" apt-get update -qq >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
