#!/bin/sh
# Runs the tests of one package many times, several test programs side by side, and fails if one of them failed. `make
# stress` calls it with GO, PACKAGE, COUNT, RUN, LOAD, JOBS and SYSTEM; Documentation/testing.md describes them.
set -eu

# drop stops the Wine of a prefix and deletes the prefix.
drop() {
	[ ! -e "$1" ] || "${script%/*}/wine.sh" stop "$1" || true
	rm -rf "$1"
}

# One test program: dist/stress.sh one NUMBER, in the folder of the package.
if [ "${1:-}" = one ]; then
	# Programs side by side do not share a Wine: tests install services of the same name.
	prefix=$OUT.wine/$SLOT
	[ -z "$EXE" ] || export WINEPREFIX="$prefix"
	# The limit is for a test that hangs, on any machine: it prints the stacks of all goroutines.
	{ [ -z "$EXE" ] || [ -e "$prefix" ] || cp -a "${RUNNER%/test}/prefix" "$prefix"; } >"$OUT/$2" 2>&1 &&
		$RUNNER "$OUT/program$EXE" -test.run="${RUN:-.}" -test.count="$REPEAT" -test.shuffle=on -test.parallel=4 -test.timeout=2h >>"$OUT/$2" 2>&1 &&
		! grep -q 'no tests to run' "$OUT/$2" && rm "$OUT/$2" && exit
	echo "stress: number $2 failed: $OUT/$2"
	drop "$prefix" # with services that a test may have left
	exit 1
fi

cd "$(dirname "$0")/.."
: "${GO:=go}" "${COUNT:=50}" "${RUN:=}" "${LOAD:=}" "${JOBS:=$(nproc)}" "${SYSTEM:=linux}"
: "${PACKAGE:?names a package: make stress PACKAGE=./pkg/linux/firewall COUNT=50}"

[ "$PACKAGE" != e2e ] || PACKAGE=./cmd/flannel-lab/e2e

# tested prints the folders with tests among those that match a pattern.
tested() {
	GOOS=$SYSTEM $GO list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' "$1"
}
case $PACKAGE in
*...) folders=$(tested "$PACKAGE") ;;
*) folders=$(cd "$PACKAGE" && tested .) ;;
esac
[ -n "$folders" ] || { echo "stress: $PACKAGE has no tests for $SYSTEM" >&2 && exit 1; }

case $PACKAGE in
*...)
	failed=
	for one in $folders; do
		PACKAGE=./${one#"$PWD/"} "$PWD/dist/stress.sh" || failed="$failed $one"
	done
	[ -z "$failed" ] || { echo "stress: failed:$failed" && exit 1; }
	exit
	;;
esac

# Tests of the lab run flanneld as it is shipped, without the race detector. A program of another package runs each test
# twice, because a test can also meet what its former run left in the process.
case $PACKAGE in
*cmd/flannel-lab*) race='' CGO_ENABLED=0 REPEAT=1 ;;
*) race=-race CGO_ENABLED=1 REPEAT=2 ;;
esac
RUNNER='' EXE=''
if [ "$SYSTEM" = windows ]; then
	RUNNER=$PWD/bin/wine/test EXE=.exe
	race="$race -overlay $PWD/bin/wine/overlay.json"
	export GOOS=windows CC=x86_64-w64-mingw32-gcc-win32
fi
OUT=$PWD/bin/stress/$(echo "${PACKAGE#./}" | tr / -)
script=$PWD/dist/stress.sh
export CGO_ENABLED RUN REPEAT OUT RUNNER EXE script

busy=''
end() {
	# shellcheck disable=SC2086 # a list of processes
	[ -z "$busy" ] || kill $busy 2>/dev/null || true
	for prefix in "$OUT.wine"/*; do
		drop "$prefix"
	done
	rm -rf "$OUT.wine"
}
end # of a run that was killed
rm -rf "$OUT"
mkdir -p "$OUT" "$OUT.wine"
cd "$PACKAGE"
# shellcheck disable=SC2086 # a list of words
$GO test -vet=off $race -c -o "$OUT/program$EXE" .

trap end EXIT
trap 'exit 130' INT TERM
if [ -n "$LOAD" ]; then
	for _ in $(seq $((2 * $(nproc)))); do
		while :; do :; done &
		busy="$busy $!"
	done
fi

programs=$(((COUNT + REPEAT - 1) / REPEAT))
seq "$programs" | xargs -P "$JOBS" --process-slot-var=SLOT -I '{}' sh "$script" one '{}' || true
rm "$OUT/program$EXE"

failed=$(find "$OUT" -type f | wc -l)
if [ "$failed" = 0 ]; then
	rmdir "$OUT"
	echo "stress: $PACKAGE: $programs programs ran, each test $REPEAT times in a program, and none failed"
	exit
fi
for file in "$OUT"/*; do
	echo "==== $file"
	cat "$file"
done
echo "==== failures by test"
# What tests in namespaces print is indented.
cat "$OUT"/* | sed -n 's/^--- FAIL: \([^ ]*\).*/\1/p' | sort | uniq -c | sort -rn
echo "stress: $PACKAGE: $failed of $programs programs failed"
exit 1
