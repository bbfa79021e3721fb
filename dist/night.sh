#!/bin/sh
# Runs every test that there is, one step after the other, whatever becomes of those before: hours. `make night` calls it with
# MAKE. The outputs and a table are in bin/night. If all is green and nothing is uncommitted, all rows of .ci/green name the
# commit: from then on, .ci/run tests with its full weight what has changed since. Commit that file.
#
#   night.sh            all steps
#   night.sh fuzz soak  these
set -u
cd "$(dirname "$0")/.."
: "${MAKE:?is set by make night}"
clean=$(git rev-parse HEAD)
[ -z "$(git status --porcelain)" ] || clean=
steps=${*:-test-everything test-systems test-kernels test-former test-release test-kube-proxy test-cluster conformance-all soak fuzz}
out=bin/night
rm -rf "$out"
mkdir -p "$out"
failed=
for step in $steps; do
	began=$(date +%s)
	result=green
	# shellcheck disable=SC2086 # MAKE has flags
	$MAKE "$step" >"$out/$step.log" 2>&1 || result=FAILED failed="$failed $step"
	printf '%-18s %-7s %6d s\n' "$step" "$result" $(($(date +%s) - began)) | tee -a "$out/table"
done
if [ -n "$failed" ]; then
	for step in $failed; do
		echo "night: $step failed; the end of $out/$step.log:"
		tail -n 40 "$out/$step.log"
	done
	exit 1
fi
[ $# = 0 ] || exit 0
go run ./cmd/flannel-tests -passed .ci/green -began "$clean" -kernel '6.1 6.12'
