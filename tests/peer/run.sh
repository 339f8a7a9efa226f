#!/usr/bin/env bash
# tests/peer/run.sh ENVIRONMENT SCRIPT...: runs a script with what it reads our files by, from PyPI.
# PERDURE_PEER_PYTHON is an interpreter that has it; without one ENVIRONMENT is made, once, with PERDURE_PEER_PACKAGES. Exit 77: that
# failed, or the interpreter lacks the module of -m. Nothing is compiled beforehand: of what a large package brings a test imports little.
set -euo pipefail
environment=$1
shift
read -ra packages <<<"${PERDURE_PEER_PACKAGES-h5py hdf5plugin xxhash zstandard}"
if [ -n "${PERDURE_PEER_PYTHON-}" ]; then
  if [ "$1" = -m ] && ! "$PERDURE_PEER_PYTHON" -c "import $2" 2>/dev/null; then
    echo "skipped: $PERDURE_PEER_PYTHON has no $2" >&2
    exit 77
  fi
  exec "$PERDURE_PEER_PYTHON" "$@"
fi
mkdir -p "$environment"
exec 9>"$environment/lock"
flock 9
if [ ! -e "$environment/made" ]; then
  python3 -m venv "$environment/python" &&
    timeout 300 "$environment/python/bin/pip" install --quiet --no-compile --disable-pip-version-check --retries 1 --timeout 20 "${packages[@]}" ||
    { echo "skipped: ${packages[*]} could not be installed; PERDURE_PEER_PYTHON names an interpreter that has them" >&2; exit 77; }
  touch "$environment/made"
fi
exec 9>&-
exec "$environment/python/bin/python" "$@"
