#!/bin/sh
# A run of perdure on hosts that ssh reaches: tools/launch/ssh.sh hosts.txt run.yaml [key=value ...], on one of them. hosts.txt has lines such as
# `node1:8`. All hosts have the program, run.yaml, run.dir and the text under the same names; ssh must not ask for a password.
#
# It restarts after exit code 75 until the run is done, and stops for good on TERM or INT.
hosts=${1:?the file of hosts, and the configuration} config=${2:?the configuration, after the file of hosts}
shift 2
leaving=
trap 'heard=yes; leaving=yes; kill -TERM $train 2>/dev/null' TERM
trap 'heard=yes; leaving=yes; kill -INT $train 2>/dev/null' INT
while :; do
  "${PERDURE:-perdure}" train "$config" launch.hosts="$hosts" launch.grow=now "$@" &
  train=$! heard=
  wait $train
  code=$?
  # A trapped signal ends the wait, not the run; 127: nothing left to wait for.
  while [ -n "$heard" ]; do
    heard=
    wait $train
    again=$?
    [ $again = 127 ] || code=$again
  done
  [ "$code" = 75 ] && [ -z "$leaving" ] || exit "$code"
  sleep "${PAUSE:-5}"
done
