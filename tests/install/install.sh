#!/usr/bin/env bash
# Installs perdure into fresh Debian systems, as people do: tests/install/install.sh build SUITE | wheel SUITE... | cuda | container
# build: root runs tools/packages.sh; an ordinary user builds and runs the quick tests, except those on simulated GPUs.
# wheel: tools/wheel.sh in Debian 12; in each SUITE, which has nothing but Python, an ordinary user runs README.md's two commands.
# cuda: with CUDA 12 of Debian 13 an ordinary user compiles everything for sm_90 and packs a bundle, which runs.
# container: carries out tools/launch/Containerfile for CPUs, except ADD, which brings files of others.
# PERDURE_INSTALL_DIR (/var/tmp) takes 6 GiB, for cuda 14. Exit code 77: no root, no debootstrap, or no mirror of Debian in apt's configuration.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
usage="usage: tests/install/install.sh build SUITE | wheel SUITE... | cuda | container"
[ $# -ge 2 ] || [ "${1-}" = cuda ] || [ "${1-}" = container ] || { echo "$usage" >&2; exit 64; }

# Mounts and processes are in namespaces of their own and end with them, so that only files are left to delete.
if [ -z "${PERDURE_INSTALL_PLACE-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "skipped: fresh systems need root" >&2; exit 77; }
  command -v debootstrap >/dev/null || { echo "skipped: no debootstrap: apt-get install debootstrap" >&2; exit 77; }
  PERDURE_INSTALL_PLACE=$(mktemp -d "${PERDURE_INSTALL_DIR:-/var/tmp}/perdure-install-XXXXXX")
  export PERDURE_INSTALL_PLACE
  trap 'exit 143' TERM INT
  unshare --mount --pid --fork --kill-child "$0" "$@" &
  child=$!
  trap '{ kill -KILL $child; wait $child; } 2>/dev/null || true; rm -rf --one-file-system "$PERDURE_INSTALL_PLACE"' EXIT
  wait $child
  exit
fi
place=$PERDURE_INSTALL_PLACE
mirror=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "Debian" && $2 == "Debian" { print $3; exit }')
[ -n "$mirror" ] || { echo "skipped: apt has no mirror of Debian" >&2; exit 77; }

# system NAME SUITE PACKAGE,...: a fresh one with a user `user`
system() {
  local root=$place/$1
  debootstrap --variant=minbase --include="$3" "$2" "$root" "$mirror" >"$place/$1.log" 2>&1 || { tail -20 "$place/$1.log" >&2; exit 1; }
  apt-config dump Acquire >"$root/etc/apt/apt.conf.d/99acquire"
  cp /etc/resolv.conf "$root/etc/"
  mkdir -p "$root/etc/ssl/certs"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  chroot "$root" useradd --create-home user
}

settings=(HOME=/home/user LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin)
for name in PIP_INDEX_URL PIP_CERT PIP_TRUSTED_HOST PIP_DEFAULT_TIMEOUT http_proxy https_proxy no_proxy; do
  [ -z "${!name-}" ] || settings+=("$name=${!name}")
done
as_root() { chroot "$place/$1" env -i "${settings[@]}" bash -euc "$2"; }
as_user() { chroot "$place/$1" setpriv --reuid=user --regid=user --init-groups env -i "${settings[@]}" bash -euc "cd; $2"; }

# source NAME: the tracked files
source_of() {
  mkdir "$place/$1/home/user/perdure"
  git -C "$top" ls-files -z | tar -C "$top" --null -T - -c | tar -x --no-same-owner -C "$place/$1/home/user/perdure"
  chroot "$place/$1" chown -R user: /home/user/perdure
}

case $1 in
  build)
    system built "$2" python3,python3-numpy,procps
    source_of built
    as_root built "cd /home/user/perdure; tools/packages.sh build run"
    as_user built "perdure/tools/build.sh build -DPERDURE_TESTS=ON -DPERDURE_CUDA=OFF"
    as_user built "cd build && ctest --output-on-failure --no-tests=error -j $(nproc) -L quick -LE 'simt|campaign'"
    echo "install: Debian $2: an ordinary user built it; the quick tests pass" ;;
  wheel)
    system made bookworm python3,python3-venv
    source_of made
    as_root made "/home/user/perdure/tools/packages.sh build"
    as_user made "perdure/tools/wheel.sh build"
    commands=$(sed -n '/^pip install "/,/^```/{/^```/d;p}' "$top/README.md")
    [ "$(wc -l <<<"$commands")" = 2 ] || { echo "install: README.md has not the two commands" >&2; exit 1; }
    for suite in "${@:2}"; do
      system "$suite" "$suite" python3,python3-venv
      mkdir -p "$place/$suite/home/user/build/dist"
      cp "$place/made/home/user/build/dist/"*.whl "$place/$suite/home/user/build/dist/"
      begin=$SECONDS
      as_user "$suite" "python3 -m venv python; . python/bin/activate; $commands; perdure ckpt verify quick" 2>&1 | tee "$place/said"
      grep -q 'starting 2 ranks .*processes' "$place/said" || { echo "install: $suite: no two processes" >&2; exit 1; }
      echo "install: Debian $suite: wheel and quick run took $((SECONDS - begin)) s"
    done ;;
  cuda)
    system built trixie python3,procps
    source_of built
    echo "deb $mirror trixie contrib non-free" >"$place/built/etc/apt/sources.list.d/nvidia.list"
    as_root built "cd /home/user/perdure; tools/packages.sh build run; apt-get install -y -q --no-install-recommends nvidia-cuda-toolkit libnccl-dev"
    as_user built "perdure/tools/build.sh build -DPERDURE_TESTS=ON -DPERDURE_CUDA=ON -DPERDURE_CUDA_ARCHITECTURES=90-real"
    as_user built "perdure/tools/bundle/bundle.sh build bundle; ls bundle/lib/libcublasLt.so.12"
    as_user built "bundle/run.sh --quick --out results || [ \$? = 77 ]"
    echo "install: a bundle of CUDA 12 was made and started" ;;
  container)
    debian=12 suite=bookworm
    grep -q "^ARG base=.*debian:$debian$" "$top/tools/launch/Containerfile"
    system contained $suite ca-certificates
    variables=
    while read -r word rest; do
      case $word in
        '' | '#'*) ;;
        ARG) variables="$variables export $rest;" ;;
        FROM) [ "$rest" = "\$base" ] ;;
        WORKDIR) variables="$variables cd $rest;" ;;
        COPY)
          read -r -a paths <<<"$rest"
          to=$place/contained${paths[-1]}
          case $to in */) mkdir -p "$to" ;; *) mkdir -p "$(dirname "$to")" ;; esac
          (cd "$top" && cp -r "${paths[@]:0:${#paths[@]}-1}" "$to") ;;
        RUN) chroot "$place/contained" env -i "${settings[@]}" sh -euc "$variables $rest" ;;
        ADD) echo "install: left out: $word $rest" ;;
        *) echo "install: unknown instruction: $word $rest" >&2; exit 1 ;;
      esac
    done <"$top/tools/launch/Containerfile"
    as_root contained "/usr/sbin/sshd -t; perdure train /dev/null data.train=/src/README.md run.dir=/tmp/quick run.steps=3 layout.ranks=2"
    echo "install: the Containerfile's image trains" ;;
  *) echo "$usage" >&2; exit 64 ;;
esac
