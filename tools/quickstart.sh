#!/usr/bin/env bash
# From a fresh Debian 12 or 13 to the main job: installs, builds, trains a byte-level model on the King James Bible on two ranks, kills
# one of them between checkpoints, watches the launcher come back on another rank count, finishes, samples, and proves by loss bits and
# state digest that nothing changed against an undisturbed run on one rank.
# tools/quickstart.sh [--build DIR] [--runs DIR] [--steps N]
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
build=$top/build
runs=$top/runs
steps=120
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build=${2:?--build wants a directory}; shift ;;
    --runs) runs=${2:?--runs wants a directory}; shift ;;
    --steps) steps=${2:?--steps wants a number}; shift ;;
    -h | --help) sed -n '2,/^[^#]/s/^# //p' "$0"; exit 0 ;;
    *) echo "usage: tools/quickstart.sh [--build DIR] [--runs DIR] [--steps N]" >&2; exit 64 ;;
  esac
  shift
done

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }

say "packages"
"$top/tools/packages.sh" build run text
echo "all there"
say "build, in $build; the first time takes minutes"
# Kernels take minutes to compile: skip them without a GPU, else compile for that GPU alone.
cuda=-DPERDURE_CUDA=OFF
if nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then cuda=-DPERDURE_CUDA_ARCHITECTURES=native; fi
"$top/tools/build.sh" "$build" -DPERDURE_TESTS=OFF "$cuda"
perdure=$build/perdure

mkdir -p "$runs"
work=$(mktemp -d "$runs/quickstart-XXXXXX")
run=
trap 'if [ -n "$run" ]; then kill "$run"; wait "$run"; fi' EXIT
say "text: the King James Bible"
bible -f 'gen1:1-rev22:21' >"$work/kjv.txt"
ls -l "$work/kjv.txt" | awk '{print $5 " bytes"}'

train=("$perdure" train "$top/tools/configs/kjv.yaml" "data.train[0].path=$work/kjv.txt" "run.steps=$steps")
last_step() {
  if [ -s "$1/metrics.jsonl" ]; then tail -n 1 "$1/metrics.jsonl" | sed -E 's/.*"step":([0-9]+).*/\1/'; else echo 0; fi
}

say "undisturbed, on one rank"
"${train[@]}" "run.dir=$work/undisturbed" layout.ranks=1 layout.transport=local

say "on two ranks; one is killed between checkpoints"
"${train[@]}" "run.dir=$work/disturbed" layout.ranks=2 layout.transport=mpi "restart.ranks=[1]" &
run=$!
for _ in $(seq 1200); do
  step=$(last_step "$work/disturbed")
  [ "$step" -lt $((steps / 2)) ] || [ $((step % 20)) -lt 5 ] || break
  kill -0 "$run" 2>/dev/null || fail "the run ended before a rank could be killed"
  sleep 0.1
done
victim=$(pgrep -n -f "worker $work/disturbed/") || fail "no rank of the run was found"
kill -KILL "$victim"
echo "killed: process $victim, a rank of the run, at step $step"
wait "$run" || fail "the disturbed run ended with exit code $?"
run=

say "a sample"
"$perdure" sample "$work/disturbed" --prompt "In the beginning " --count 200
echo "(after $steps steps a model of 1 M parameters has learnt to spell a little, not to write)"

say "the proof"
bits() { sed -E 's/.*"step":([0-9]+).*"loss_bits":"([0-9a-f]+)".*/\1 \2/' "$1/metrics.jsonl" | sort -n -u; }
ranks() { sed -E 's/.*"ranks":([0-9]+).*/\1/' "$1/metrics.jsonl" | sort -u | tr '\n' ' '; }
bits "$work/undisturbed" >"$work/undisturbed.bits"
bits "$work/disturbed" >"$work/disturbed.bits"
[ "$(wc -l <"$work/undisturbed.bits")" = "$steps" ] || fail "the undisturbed run has not $steps steps"
cmp "$work/undisturbed.bits" "$work/disturbed.bits" || fail "losses differ: see $work"
echo "loss: the same bits at each of $steps steps (ranks of the disturbed run: $(ranks "$work/disturbed"))"
digest() { "$perdure" ckpt stats "$1/checkpoints" --json | sed -n -E 's/.*"state_digest": *"([0-9a-f]+)".*/\1/p'; }
one=$(digest "$work/undisturbed")
two=$(digest "$work/disturbed")
[ -n "$one" ] && [ "$one" = "$two" ] || fail "state digests differ: $one and $two; see $work"
echo "state: digest $one of parameters and both moments, in both runs"
echo "files: $work"
echo "quickstart: ok, same bits"
