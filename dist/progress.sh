#!/bin/sh
# Runs a command that builds something, and shows on a terminal what is built, for how long, and how long it took last
# time. The output of the command is shown if it fails.
#
#   progress.sh Kubernetes make kube
set -eu

what=$1
shift
dir=$(cd "$(dirname "$0")/.." && pwd)/bin/.took
mkdir -p "$dir"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
record=$dir/$(echo "$what" | tr -c 'A-Za-z0-9\n' _)
last=
[ ! -s "$record" ] || last=", last time $(cat "$record") s"

seconds() { echo $(($(date +%s) - start)); }

start=$(date +%s)
if [ ! -t 1 ]; then
	echo "building: $what$last"
fi
"$@" >"$log" 2>&1 </dev/null &
command=$!
trap 'kill $command 2>/dev/null; rm -f "$log"; exit 130' INT TERM
while [ -t 1 ] && kill -0 $command 2>/dev/null; do
	printf '\r\033[Kbuilding: %s, %s s%s' "$what" "$(seconds)" "$last"
	sleep 1 || break
done
status=0
wait $command || status=$?
took=$(seconds)
[ ! -t 1 ] || printf '\r\033[K'
if [ $status != 0 ]; then
	cat "$log" >&2
	echo "building $what failed after $took s" >&2
	exit $status
fi
# A build that found everything in place says nothing about the next one.
[ "$took" -lt 5 ] || echo "$took" >"$record"
echo "built: $what, $took s"
