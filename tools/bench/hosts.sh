#!/usr/bin/env bash
# Runs a command on pretended hosts that are network namespaces joined by a bridge, as root:
#   tools/bench/hosts.sh [--shape RATE] HOSTS COMMAND...      such as --shape 1gbit 4 build/perdure bench exchange --hosts 4 --json
# PERDURE_MPIRUN starts ranks on them in turn, every byte between two of them goes over their interfaces, which are counted. With
# --shape each interface passes RATE (a number and "gbit" or "mbit") in either direction, by TCP with cubic, the kernel's own choice,
# whatever this machine has chosen. Everything is taken down at the end.
# Needs ip and tc (iproute2), unshare, Open MPI's mpirun. Open MPI enters a host by calling this script in place of ssh:
#   hosts.sh --enter ADDRESS COMMAND...
set -euo pipefail

if [ "${1:-}" = --enter ]; then
  address=$2
  shift 2
  exec ip netns exec "$PERDURE_BENCH_HOSTS-${address##*.}" unshare --uts sh -c 'hostname "host-$0"; exec sh -c "$1"' "${address##*.}" "$*"
fi

rate=
if [ "${1:-}" = --shape ]; then
  rate=$2
  shift 2
fi
if [ $# -lt 2 ]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 64
fi
[ "$(id -u)" = 0 ] || { echo "hosts.sh: network namespaces are root's to make: run it as root, or the benchmark without it" >&2; exit 69; }
hosts=$1
shift
name=pd$$
net=10.$((64 + $$ % 128)).0
files=$(mktemp -d)

down() {
  # Removes everything that was made, however far that got.
  for ((i = 1; i <= hosts; i++)); do
    if [ -e "/run/netns/$name-$i" ]; then ip netns del "$name-$i"; fi
  done
  if [ -e "/sys/class/net/$name" ]; then ip link del "$name"; fi
  rm -rf "$files"
}
trap down EXIT

shape() { # command prefix, interface
  [ -z "$rate" ] || $1 tc qdisc add dev "$2" root tbf rate "$rate" burst 256kb latency 20ms
}

ip link add "$name" type bridge
ip addr add "$net.254/24" dev "$name"
ip link set "$name" up
for ((i = 1; i <= hosts; i++)); do
  ip netns add "$name-$i"
  ip link add "$name.$i" type veth peer name eth0 netns "$name-$i"
  ip link set "$name.$i" master "$name" up
  ip -n "$name-$i" addr add "$net.$i/24" dev eth0
  ip -n "$name-$i" link set eth0 up
  ip -n "$name-$i" link set lo up
  ip -n "$name-$i" route replace "$net.0/24" dev eth0 src "$net.$i" congctl cubic
  shape "ip netns exec $name-$i" eth0
  shape "" "$name.$i"
  echo "$net.$i slots=64" >>"$files/hosts"
done

case "$rate" in
  *gbit) export PERDURE_BENCH_GBIT=${rate%gbit} ;;
  *mbit) export PERDURE_BENCH_GBIT; PERDURE_BENCH_GBIT=$(awk "BEGIN {print ${rate%mbit} / 1000}") ;;
esac
export PERDURE_BENCH_HOSTS=$name PERDURE_BENCH_INTERFACE=eth0 PERDURE_BENCH_ADDRESS=$net.1
export OMPI_MCA_plm_rsh_agent="$(realpath "$0") --enter" OMPI_MCA_orte_keep_fqdn_hostnames=1
export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=$net.0/24 OMPI_MCA_oob_tcp_if_include=$net.0/24
export PERDURE_MPIRUN="mpirun --hostfile $files/hosts --map-by node -x PERDURE_BENCH_INTERFACE${rate:+ -x PERDURE_BENCH_GBIT}"
"$@"
