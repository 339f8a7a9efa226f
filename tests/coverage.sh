#!/usr/bin/env bash
# Which branches of ckpt/ and resharder/ the tests take, by module: tests/coverage.sh [--build DIR] [--files] [CTEST_OPTION ...]
# It builds into a directory of its own (default build-coverage) and runs, of unit those of the modules that are counted, crash, golden, cli and
# fuzz, or with options of ctest those that they choose: `-R nth` adds what the tests of that name take to what was counted before.
# --continue goes on with a run that was ended: tests that are in counted.txt of that directory are not run again.
# --files lists every file instead, the one with the most branches that nothing takes first; --no-run prints what was counted.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
build=$top/build-coverage
by=module
run=yes
fresh=yes
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build=$(realpath -m "${2:?--build wants a directory}"); shift ;;
    --files) by="file" ;;
    --no-run) run=no ;;
    --continue) fresh=no ;;
    -h | --help) sed -n '2,/^[^#]/s/^# //p' "$0"; exit 0 ;;
    *) break ;;
  esac
  shift
done
run_tests() {
  ctest --output-on-failure --no-tests=error -j "$(($(nproc) + 1))" "$@"
}
# What passed is noted at once, so that an end in between loses little: of a test that is counted twice nothing is the worse.
note_passed() {
  while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ $line =~ Test\ +#[0-9]+:\ ([^\ ]+)\ .*\ Passed ]]; then echo "${BASH_REMATCH[1]}" >>counted.txt; fi
  done
}
count_all() {
  modules=$(cd "$top" && for module in ckpt/*/ resharder/*/; do basename "$module"; done | paste -sd '|')
  if [ $fresh = yes ]; then
    find ckpt resharder -name '*.gcda' -delete
    : >counted.txt
  fi
  touch counted.txt
  ctest -N -R "^(crash|golden|fuzz)\\.|^cli|^unit\\.($modules|resharder)\\." -LE campaign |
    sed -n 's/^ *Test *#[0-9]*: //p' | awk 'FILENAME == "counted.txt" { counted[$0]; next } !($0 in counted)' counted.txt - >left.txt
  if [ -s left.txt ]; then run_tests -R "^($(sed 's/\./\\./g' left.txt | paste -sd '|'))\$" | note_passed; fi
}

if [ $run = yes ]; then
  "$top/tools/packages.sh" build run text test coverage
  "$top/tools/build.sh" "$build" -DPERDURE_TESTS=ON -DPERDURE_COVERAGE=ON -DPERDURE_CUDA=OFF
  cd "$build"
  export PERDURE_TEST_SCALE=${PERDURE_TEST_SCALE:-1}
  if [ $# -eq 0 ]; then
    count_all
  else
    run_tests "$@"
  fi
fi
# A PD_CHECK that fails is our own bug and ends the process: no test can go there. Nothing else is left out (tests/README.md).
cd "$top"
gcovr "$build" --filter '(ckpt|resharder)/' --exclude-branches-by-pattern '.*\bPD_CHECK\(' --csv -o - |
  awk -F, -v by=$by '
    function add(key) { lines[key] += $2; reached[key] += $3; branches[key] += $5; taken[key] += $6 }
    NR > 1 {
      name = $1
      if (by == "module") sub("/[^/]*$", "", name)
      add(name)
      sub("/.*", "", name)
      add(name " in all")
    }
    END {
      for (key in lines)
        printf "%d\t%s\t%-36s %5.1f%% of %5d branches, %4d not taken; %5.1f%% of %5d lines\n",
          key ~ " in all$" ? -1 : branches[key] - taken[key], key, key,
          100 * taken[key] / (branches[key] + !branches[key]), branches[key], branches[key] - taken[key],
          100 * reached[key] / (lines[key] + !lines[key]), lines[key]
    }' | if [ $by = file ]; then sort -t "$(printf '\t')" -k1,1nr -k2; else sort -t "$(printf '\t')" -k2; fi | cut -f3-
