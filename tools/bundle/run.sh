#!/usr/bin/env bash
# Runs every GPU test and benchmark of the bundle that this file lies in:
# run.sh [--quick] [--only NAME]... [--budget SECONDS] [--out DIRECTORY]
# Prints a table, writes results.json before and after each step and a log a step into the directory (default: results-HOST-TIME beside this file);
# logs.tar.gz has all of them. Nothing stops at a failure. --budget: the time there is for all, a minute or more; a step gets what is left,
# less what ending it may take, is left out where that is less than half a minute, and has at most two thirds of it where others follow.
# Machines that are lent for minutes:
#   run.sh --budget 1680 --quick      everything that fits, the first steps first: attention beside float64, under compute-sanitizer, a thousand times
# Exit code: 0 nothing failed, 1 a step failed, 77 no GPU, 64 usage, 69 the programs do not start, 74 --out or TMPDIR cannot be written.
# --quick leaves out what takes minutes.
# Ranks share a GPU under every layout of 2, 3 and 4; PERDURE_TEST_SCALE=10 adds 8, every precision and ZeRO stage; --quick takes a few.
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
# In running order: the failures that say most come first.
tests=(attention attention_memcheck attention_racecheck attention_1000 operations step_0.5B training_alone training_local training_mpi
  placements train sanitizer_memcheck sanitizer_racecheck sanitizer_synccheck sanitizer_training)
benchmarks=(attention_64 attention_128 step_1.5B step_3B step_7B step_14B adam saves_every_step)
known() { [[ " doctor ${tests[*]} ${benchmarks[*]} step_byte-1m " == *" $1 "* ]]; } # the last on simulated GPUs
quick=no only=() out= budget=
grace=10 reserve=15 # seconds: from TERM to KILL; that, and what results take
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) quick=yes ;;
    --only)
      if ! known "${2:-}"; then
        echo "run.sh: --only ${2:-}: no such step; there are doctor ${tests[*]} ${benchmarks[*]}" >&2
        exit 64
      fi
      only+=("$2")
      shift ;;
    --budget)
      case "${2:-}" in '' | *[!0-9]* | ???????*) echo "run.sh: --budget wants seconds" >&2; exit 64 ;; esac
      budget=$((10#$2))
      if [ $budget -lt 60 ]; then
        echo "run.sh: --budget $2 is too small: a step gets half a minute or more, and $reserve s are kept for ending it; give 60 or more" >&2
        exit 64
      fi
      shift ;;
    --out)
      [ -n "${2:-}" ] || { echo "run.sh: --out wants a directory" >&2; exit 64; }
      out=$2
      shift ;;
    -h | --help)
      sed -n '2,/^[^#]/s/^# //p' "$0"
      echo "Steps: doctor ${tests[*]} ${benchmarks[*]}"
      exit 0 ;;
    *) sed -n '2,/^[^#]/s/^# //p' "$0" >&2; exit 64 ;;
  esac
  shift
done
out=${out:-$here/results-$(hostname)-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$out" 2>/dev/null && echo 2>/dev/null >"$out/version.out" || { # a byte: a full disk takes empty files
  echo "run.sh: $out cannot be written, or has no room; --out DIRECTORY takes another for results" >&2
  exit 74
}
out=$(cd "$out" && pwd)
export PERDURE_PROGRESS=off TMPDIR=${TMPDIR:-/tmp} PYTHONDONTWRITEBYTECODE=1
perdure=$here/bin/perdure
work=$(mktemp -d "$TMPDIR/perdure-bundle-XXXXXX" 2>/dev/null) || {
  echo "run.sh: TMPDIR=$TMPDIR cannot be written; TMPDIR=DIRECTORY $0 takes another for what runs leave" >&2
  exit 74
}
saves_dir= no_room= # its files, where there is room
trap 'rm -rf "$work" ${saves_dir:+"$saves_dir"}' EXIT

# Looks on the machine for what the bundle lacks; the loader's own folders are searched anyway.
folder_of() {
  ldconfig -p 2>/dev/null | grep "^[[:space:]]*$1 " >/dev/null && return
  for folder in /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib /opt/cuda*/lib64; do
    [ ! -e "$folder/$1" ] || { echo "$folder"; return; }
  done
  python3 -c 'import glob, os, sys
found = [f for d in sys.path for f in sorted(glob.glob(f"{d}/nvidia/*/lib/{sys.argv[1]}"))]
print(os.path.dirname(found[0]) if found else "")' "$1" 2>/dev/null
}
libraries=()
while read -r name; do
  [ -e "$here/lib/$name" ] && continue
  folder=$(folder_of "$name")
  [ -z "$folder" ] || [[ ":$(IFS=:; echo "${libraries[*]}"):" == *":$folder:"* ]] || libraries+=("$folder")
done <"$here/share/opened"
PERDURE_BUNDLE_LIBRARIES=$(IFS=:; echo "${libraries[*]}")
export PERDURE_BUNDLE_LIBRARIES
{ "$perdure" --version >/dev/null || # no C++ library here, or an older one
  PERDURE_BUNDLE_LIBRARIES=$here/lib/cxx${PERDURE_BUNDLE_LIBRARIES:+:$PERDURE_BUNDLE_LIBRARIES}; } 2>/dev/null

text_of() { printf '%s' "$1" | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g'; }
# Written whole after each step: if killed, it holds the results so far.
write_results() {
  local i
  {
    printf '{\n  "version": "%s",\n  "device": "%s",\n  "host": "%s",\n  "quick": %s,\n  "no_gpu": "%s",\n  "steps": [' "$(text_of "$(cat "$out/version.out")")" \
      "$(text_of "$device")" "$(text_of "$(hostname)")" "$([ $quick = yes ] && echo true || echo false)" "$(text_of "$why")"
    for i in "${!names[@]}"; do
      [ "$i" = 0 ] || printf ','
      printf '\n    {"name": "%s", "state": "%s", "exit_code": %s, "seconds": %s, "reason": "%s", "result": ' "${names[$i]}" \
        "${states[$i]}" "${codes[$i]}" "${times[$i]}" "$(text_of "${skips[$i]}")"
      if [ -s "$out/${names[$i]}.json" ] && [ "${states[$i]}" = ok ]; then cat "$out/${names[$i]}.json"; else printf 'null'; fi
      printf '}'
    done
    printf '\n  ]\n}\n'
  } >"$out/results.part" && mv "$out/results.part" "$out/results.json"
}

names=() states=() codes=() times=() skips=() device= why=
note() { # of the same step once more: in its place
  local at=${#names[@]}
  [ "$at" = 0 ] || [ "${names[-1]}" != "$1" ] || at=$((at - 1))
  names[$at]=$1 states[$at]=$2 codes[$at]=$3 times[$at]=$4 skips[$at]=$5
  write_results
}
wanted() {
  [ ${#only[@]} -gt 0 ] || return 0
  local name
  for name in "${only[@]}"; do [ "$name" != "$1" ] || return 0; done
  return 1
}
last=
for name in doctor "${tests[@]}" "${benchmarks[@]}" step_byte-1m; do ! wanted "$name" || last=$name; done
# step NAME SECONDS COMMAND...: stdout goes to NAME.json if it is JSON; else it stays a log.
step() {
  local name=$1 limit=$2 code begin state left reason=
  shift 2
  known "$name" || { echo "run.sh: step $name is in no list" >&2; exit 70; }
  wanted "$name" || return 0
  if [ -n "$budget" ]; then
    left=$((budget - SECONDS - reserve))
    if [ $left -lt 30 ] && [ "$name" != doctor ]; then skip "$name" "no time left of --budget $budget"; return; fi
    [ "$name" = "$last" ] || left=$((left * 2 / 3)) # what hangs leaves time for others
    [ $limit -le $left ] || limit=$left
  fi
  printf '%-24s ' "$name"
  rm -f "$out/$name.json" # of an earlier run into this directory
  note "$name" running null 0 "" # whoever is ended meanwhile finds it so
  begin=$(date +%s)
  { (cd "$work" && timeout -k $grace "$limit" "$@" >"$out/$name.out" 2>"$out/$name.log"); code=$?; } 2>/dev/null # the shell's own words on KILL
  case $code in
    0) state=ok ;;
    77) state=skipped reason=$(grep -h '^skipped' "$out/$name.out" "$out/$name.log" | head -1) ;;
    124 | 137) state=failed reason="longer than $limit s" ;;
    *) state=failed reason=$(tail -1 "$out/$name.log") ;;
  esac
  [ "$(head -c 1 "$out/$name.out")" != "{" ] || mv "$out/$name.out" "$out/$name.json"
  note "$name" $state $code $(($(date +%s) - begin)) "$reason"
  printf '%-8s %5s s  %s\n' "$state" "${times[-1]}" "${reason:0:90}"
}
skip() {
  wanted "$1" || return 0
  note "$1" skipped 77 0 "$2"
  printf '%-24s %-8s %5s s  %s\n' "$1" skipped 0 "$2"
}
# Quotes any path for YAML.
quoted() { printf "'%s'" "${1//\'/\'\'}"; }
# train_config NAME [LINE]...: writes NAME.yaml of a run in its own directory.
train_config() {
  local name=$1
  shift
  printf '%s\n' "run: {dir: $(quoted "$work/$name"), steps: 20, device: gpu}" "data: {train: [{path: $(quoted "$here/share/text.txt")}]}" "$@" >"$work/$name.yaml"
}
small=("model: {vocab: 256, context: 64, layers: 2, hidden: 128, heads: 2, kv_heads: 1, head_size: 64, ffn: 256}"
  "batch: {sequences: 2, micro_batch: 1, context: 64}" "checkpoint: {every: 1}" "restart: {limit: 0}")

# Lists files that differ from MANIFEST, in one line; nothing if all match.
damaged() {
  (cd "$here" && sed '1,/^sha256:$/d' MANIFEST | LC_ALL=C sha256sum -c --quiet 2>/dev/null | sed -n 's/: FAILED.*//p' | paste -sd ' ') 2>/dev/null
}
{ "$perdure" --version >"$out/version.out" 2>&1; code=$?; } 2>/dev/null # the shell's own words on a signal: it is named here
if [ $code != 0 ] || ! grep -q '^perdure ' "$out/version.out"; then # an empty file is a script of sh's that does nothing
  bad=$(damaged)
  cause=$(head -1 "$out/version.out") hint="see MANIFEST for the C library it needs"
  [ $code -le 128 ] || cause=${cause:-ended by SIG$(kill -l $((code - 128)))}
  [ $code != 126 ] || hint="a file system that runs no programs (noexec), or a copy that lost its modes: bring the bundle to another directory"
  echo "run.sh: bin/perdure does not start here: ${cause:-exit code $code, and no word};" \
    "$([ -n "$bad" ] && echo "not as MANIFEST has it: $bad; bring the bundle here anew" || echo "$hint")" >&2
  exit 69
fi
cat "$out/version.out"
# Always asked, whatever the steps: they need to know.
found=$work/doctor.json
if wanted doctor; then
  step doctor 120 "$perdure" doctor --json
  found=$out/doctor.json
else
  (cd "$work" && timeout -k $grace $((budget && budget < 200 ? 30 : 120)) "$perdure" doctor --json >"$found" 2>"$work/doctor.log")
  code=$?
fi
device=$(sed -n 's/.*"here": "opens as \([^";]*\).*/\1/p' "$found" 2>/dev/null | head -1)
has_gpu=yes
if [ -z "$device" ]; then
  has_gpu=no
  why=$(sed -n '/"what": "gpu/,/}/s/.*"here": "\(.*\)",*$/\1/p' "$found" 2>/dev/null | tail -1)
  case $code in 124 | 137) why="doctor took too long" ;; esac
  why=${why:-doctor said nothing: $(tail -1 "$work/doctor.log" "$out/doctor.log" 2>/dev/null | tail -1)}
fi
write_results
[ $has_gpu = yes ] && echo "on $device" || echo "no GPU: $why"
simulated=no
case "$device" in *simulated*) simulated=yes ;; esac

# Checks for space for two checkpoints of 18 GiB and a quarter of one, as bench ckpt needs; in memory, on top of the run's own.
saves_kib=$((18 * 9 / 4 << 20))
free_kib() { df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print $4 }'; }
if [ $has_gpu = yes ] && [ $quick = no ] && wanted saves_every_step; then
  memory_kib=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
  for folder in /dev/shm "$TMPDIR" "$out" /tmp /var/tmp; do
    [ $folder != /dev/shm ] || [ "${memory_kib:-0}" -ge $((2 * saves_kib)) ] || continue
    [ -w "$folder" ] && [ "$(free_kib "$folder")" -ge $saves_kib ] 2>/dev/null || continue
    saves_dir=$(mktemp -d "$folder/perdure-bundle-XXXXXX" 2>/dev/null) && break
  done
  no_room="no $(((saves_kib >> 20) + 1)) GiB free in /dev/shm, TMPDIR=$TMPDIR, $out, /tmp or /var/tmp; TMPDIR=DIRECTORY takes another"
  [ -n "$saves_dir" ] || echo "saves_every_step will be left out: $no_room"
fi

# ---- tests ----
checker=$(command -v compute-sanitizer)
[ $simulated = yes ] || checker=${checker:-$(ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)}
# sanitizer STEP TOOL SECONDS COMMAND...
sanitizer() {
  local name=$1 tool=$2 limit=$3
  shift 3
  if [ $has_gpu = no ]; then skip "$name" "no GPU"
  elif [ -z "$checker" ]; then skip "$name" "no compute-sanitizer on PATH"
  elif [ $quick = yes ] && [[ "$tool" != memcheck && "$name" != attention_* ]]; then skip "$name" "quick"
  else step "$name" "$limit" "$checker" --tool "$tool" --target-processes all --error-exitcode 1 "$@"; fi
}
# Attention first, at T = 1,024 and 1,021, heads of 64 and 128, seven query heads a key-value head, two documents: wrong kernels that
# count items or wait for barriers hang. Then each operation, by name. attention_racecheck finds hazards of shared memory between
# threads; it does not follow bulk copies, their barriers and wgmma, so a clean run is no proof for those kernels.
step attention 300 env PERDURE_OPERATIONS_ATTENTION=2 "$here/bin/gpu_operations"
for tool in memcheck racecheck; do
  sanitizer attention_$tool $tool 600 env PERDURE_OPERATIONS_ATTENTION=2 "$here/bin/gpu_operations" --from 0
done
calls=1000
[ $simulated = no ] || calls=3
step attention_1000 600 env PERDURE_OPERATIONS_ATTENTION=$calls PERDURE_ATTENTION=auto "$here/bin/gpu_operations" # those that a run gets
step operations 900 "$here/bin/gpu_operations"
if [ $has_gpu = no ]; then skip step_0.5B "no GPU"
elif [ $simulated = no ]; then step step_0.5B 600 "$perdure" bench step --device=gpu --preset=0.5B --json; fi
# training STEP WITHOUT SCRIPT [ARGUMENT]...: a script of tests/e2e; WITHOUT: what the machine lacks to run it
scale=4
[ $quick = no ] || scale=1
training() {
  local name=$1 without=$2 script=$3
  shift 3
  if [ $has_gpu = no ]; then skip "$name" "no GPU"
  elif [ -n "$without" ]; then skip "$name" "$without"
  elif [ $simulated = yes ] && [ $quick = yes ]; then skip "$name" "quick"
  else step "$name" 3600 env PERDURE_TEST_SCALE="${PERDURE_TEST_SCALE:-$scale}" python3 "$here/tests/e2e/$script" "$perdure" "$@"; fi
}
without=
command -v python3 >/dev/null || without="no python3 on PATH"
training training_alone "$without" gpu.py alone
training training_local "$without" gpu.py local
training placements "$without" gpu_offload.py
command -v mpirun >/dev/null || without=${without:-no mpirun on PATH}
[ -n "$without" ] || [[ "$(mpirun --version 2>&1)" == *"Open MPI) 4."* ]] || without="mpirun is not Open MPI 4, which the bundle brings"
training training_mpi "$without" gpu.py mpi
if [ $has_gpu = yes ]; then
  if [ $simulated = yes ]; then train_config train "${small[@]}" "validation: {every: 0}"; else train_config train; fi
  step train 600 "$perdure" train "$work/train.yaml" layout.transport=local layout.ranks=1
else skip train "no GPU"; fi

for tool in memcheck racecheck synccheck; do sanitizer "sanitizer_$tool" $tool 3600 "$here/bin/gpu_operations" --from 0; done
# Two steps with a save each: every kernel of a step in order, next to the streams of saves. No restart hides a failure.
train_config sanitized "${small[@]}"
sanitizer sanitizer_training memcheck 3600 "$perdure" train "$work/sanitized.yaml" run.steps=2 layout.transport=local layout.ranks=1

# ---- benchmarks ----
if [ $has_gpu = no ]; then
  for name in "${benchmarks[@]}"; do skip "$name" "no GPU"; done
elif [ $simulated = yes ]; then
  step attention_64 600 "$perdure" bench attention --device=gpu --tokens=64 --length=32 --calls=1 --json
  step step_byte-1m 600 "$perdure" bench step --device=gpu --preset=byte-1m --sequences=2 --context=16 --steps=1 --set=model.layers=1 --json
  [ $quick = yes ] || [ -n "$saves_dir" ] || skip saves_every_step "$no_room"
else
  step attention_64 900 "$perdure" bench attention --device=gpu --head-size=64 --json
  step attention_128 900 "$perdure" bench attention --device=gpu --head-size=128 --json
  for size in 1.5B 3B 7B; do
    if [ $quick = yes ]; then skip "step_$size" "quick"
    else step "step_$size" 1800 "$perdure" bench step --device=gpu --preset="$size" --json; fi
  done
  if [ $quick = no ]; then
    step step_14B 2400 "$perdure" bench step --device=gpu --preset=14B --json
    if [ -z "$saves_dir" ]; then skip saves_every_step "$no_room"
    else step saves_every_step 1800 "$perdure" bench ckpt --every=1 --device=gpu --bytes=18G --dir="$saves_dir" --json; fi
  else
    for name in step_14B saves_every_step; do skip $name "quick"; done
  fi
  step adam 600 "$perdure" bench adam --json
fi

# ---- results ----
write_results
(cd "$out" && tar -czf logs.tar.gz $(ls | grep -E '\.(log|out|json)$')) 2>/dev/null
failed=0 done=0
for state in "${states[@]}"; do
  case $state in failed) failed=$((failed + 1)) ;; ok) done=$((done + 1)) ;; esac
done

value() { # - where there is none
  local found
  found=$(sed -n "s/^ *\"$2\": *\([-0-9.e+]*\),*\$/\1/p" "$out/$1.json" 2>/dev/null | head -1)
  echo "${found:--}"
}
echo
for i in "${!names[@]}"; do
  case "${names[$i]}" in
    step_*) [ "${states[$i]}" != ok ] || printf '%-24s %10.0f tokens/s  matmul_share %s  fast %s tokens/s\n' "${names[$i]}" \
      "$(value "${names[$i]}" tokens_per_second)" "$(value "${names[$i]}" matmul_share)" "$(value "${names[$i]}" tokens_per_second_fast)" ;;
    saves*) [ "${states[$i]}" != ok ] || printf '%-24s stall_p50 %s  stall_p99 %s\n' "${names[$i]}" "$(value "${names[$i]}" stall_p50)" \
      "$(value "${names[$i]}" stall_p99)" ;;
    attention_64 | attention_128) [ "${states[$i]}" != ok ] || printf '%-24s forward %s  backward %s TFLOP/s\n' "${names[$i]}" \
      "$(value "${names[$i]}" forward_tflops)" "$(value "${names[$i]}" backward_tflops)" ;;
  esac
done
echo "${#names[@]} step$([ ${#names[@]} = 1 ] || echo s): $done ok, $failed failed, $((${#names[@]} - done - failed)) left out; $out/results.json"
if [ $failed != 0 ]; then
  bad=$(damaged)
  [ -z "$bad" ] || echo "not as MANIFEST has it: $bad; bring the bundle here anew"
  exit 1
fi
[ $has_gpu = yes ] || exit 77
