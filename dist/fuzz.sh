#!/bin/sh
# Runs every fuzz target for FUZZTIME, one after the other. It goes on after a target that fails, and fails at the end
# with the names of all of them. A target also fails if it makes fewer than FUZZFLOOR executions per second of processor
# time, because such a target finds nothing. That rate hardly depends on what else the machine does; FUZZFLOOR=0 accepts
# every rate. Inputs that fail are in testdata/fuzz of their package. Those that reach new code are kept in FUZZCORPUS,
# with which the next run starts. `make fuzz` sets the variables.
set -eu
cd "$(dirname "$0")/.."
: "${GO:?is set by make fuzz}" "${FUZZTIME:?}" "${FUZZFLOOR:?}" "${FUZZCORPUS:?}"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
failed=

fail() {
	echo "FAIL $*"
	failed="$failed
  $*"
}

# run DIR TARGET: fuzzes with the program. The fuzzer's output is in $tmp/log, the processor time that it and its workers
# took in $tmp/times: a subshell counts its own children only.
#
# Go minimizes each input that reaches new code. By default it does nothing else for up to a minute, which is longer than
# most runs.
run() (
	cd "$1"
	status=0
	"$tmp/program" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$FUZZTIME" -test.fuzzminimizetime 1000x \
		-test.fuzzcachedir "$FUZZCORPUS/$1" >"$tmp/log" 2>&1 || status=$?
	times >"$tmp/times"
	exit $status
)

# new_inputs DIR TARGET: lists the inputs that failed and are not committed.
new_inputs() {
	git ls-files --others -- "$1/testdata/fuzz/$2"
}

# excused DIR TARGET: reports whether a failure is that of the fuzzer, and no input fails.
excused() {
	# Go's fuzzer sometimes fails when its time is over. It may have written a failing input nevertheless.
	if grep -q '^    context deadline exceeded' "$tmp/log"; then
		[ -z "$(new_inputs "$1" "$2")" ]
		return
	fi
	# A worker panics if one execution takes ten seconds, which happens on a machine that is very busy. Then its input
	# passes alone, and is kept as one of those that do.
	grep -q '^    fuzzing process hung or terminated unexpectedly' "$tmp/log" || return 1
	(cd "$1" && "$tmp/program" -test.run "^$2\$" -test.timeout 10m) >>"$tmp/log" 2>&1 || return 1
	mkdir -p "$FUZZCORPUS/$1/$2"
	new_inputs "$1" "$2" | xargs -r -I '{}' mv '{}' "$FUZZCORPUS/$1/$2"
}

# rate prints the executions per second of processor time.
rate() {
	sed -n 's/.* execs: \([0-9]*\) .*/\1/p' "$tmp/log" | tail -n 1 | cat - "$tmp/times" |
		awk 'NR == 1 { n = $1 } NR == 3 { gsub(/[ms]/, " "); print int(n / ($1 * 60 + $2 + $3 * 60 + $4 + 0.001)) }'
}

echo "each target for $FUZZTIME: executions per second of processor time"
for dir in $(git ls-files '*_test.go' | xargs grep -l '^func Fuzz' | xargs -n 1 dirname | sort -u); do
	# With -fuzz, Go would also instrument all packages that ours import. The fuzzer reads all counters of the program
	# after each execution, and would look for the states of other parsers, such as JSON's. Lint runs vet.
	if ! (cd "$dir" && $GO test -c -vet=off -gcflags 'flannel/...=-d=libfuzzer' -o "$tmp/program" .); then
		fail "$dir: does not compile"
		continue
	fi
	for target in $(cd "$dir" && "$tmp/program" -test.list '^Fuzz'); do
		if ! run "$dir" "$target" && ! excused "$dir" "$target"; then
			tail -n 40 "$tmp/log"
			fail "$dir $target: failed"
			continue
		fi
		rate=$(rate)
		rate=${rate:-0} ran=yes
		if [ "$rate" -lt "$FUZZFLOOR" ]; then
			fail "$dir $target: $rate, less than $FUZZFLOOR"
		else
			echo "$dir $target: $rate"
		fi
	done
done
[ -n "${ran:-}" ] || fail 'no target ran: is this a clone of the repository, with git?'
[ -z "$failed" ] || {
	echo "failed:$failed" >&2
	exit 1
}
