#!/bin/sh
# Runs what CI runs, for the packages that differ from the branch BASE and those of this module that import them: lint,
# the tests with the race detector, the tests for Windows under Wine, and always the house tests. It does not run the
# end-to-end tests, but names them. `make changed` calls it with MAKE, GO and the lists of packages LIGHT, HEAVY,
# WITH_KUBE.
set -eu
cd "$(dirname "$0")/.."
: "${MAKE:?is set by make changed}" "${GO:?}" "${LIGHT:?}" "${HEAVY:?}" "${WITH_KUBE:?}"

say() {
	echo "changed: $*"
}

# changed_files lists the files that differ from the commit at which this branch left BASE, committed or not.
changed_files() {
	git -c core.quotePath=false diff --name-only --no-renames "$since"
	git -c core.quotePath=false ls-files --others --exclude-standard
}

# with_readers adds the Go tests that read a page or a manifest.
with_readers() {
	while read -r file; do
		echo "$file"
		case $file in
		# It checks the codes that these files mention.
		*.md | Documentation/* | dist/windows/*.ps*1) echo pkg/doctor/docs_test.go ;;
		esac
		case $file in
		# grep fails if no test names the file.
		Documentation/*) git grep -l -F "${file##*/}" -- '*test*.go' || true ;;
		esac
	done
}

# package_of prints the package of a file: the one in its folder, or the nearest above, as for testdata. It prints
# nothing for the package at the top, which is always tested.
package_of() {
	dir=$(dirname "$1")
	until [ "$dir" = . ] || echo "$packages" | grep -qxF "$module/$dir"; do
		dir=$(dirname "$dir")
	done
	[ "$dir" = . ] || echo "$module/$dir"
}

# with_importers adds the packages that import one of these, directly or not, on Linux or Windows, tests included.
with_importers() {
	[ $# != 0 ] || return 0
	format='{{.ImportPath}} {{join .Deps " "}}'
	{
		$GO list -test -f "$format" ./...
		# shellcheck disable=SC2086 # lists of words
		GOOS=windows $GO list -test -f "$format" $LIGHT $HEAVY
	} | awk -v changed="$*" '
		BEGIN { split(changed, list); for (i in list) is[list[i]] = 1 }
		$2 ~ /^\[/ { next } # a variant for the test of another package, whose own line lists it, too
		{
			name = $1
			sub(/\.test$/, "", name)
			for (i = 1; i <= NF; i++) if ($i in is) { print name; break }
		}'
}

# affected OS PATTERN...: prints the packages in $all that match a pattern on this operating system.
affected() {
	os=$1
	shift
	GOOS=$os $GO list "$@" | grep -xF "$all" | tr '\n' ' '
}

# left_out prints what was not run.
left_out() {
	if [ -z "$of_lab" ] && ! echo "$all" | grep -qxF "$module/cmd/flanneld"; then
		return
	fi
	say 'not run: other architectures (make test-systems)'
	say 'not run: the end-to-end tests, which run flanneld (make test-e2e)'
	names=
	for file in $of_lab; do
		case $file in
		*kubeproxy*_test.go) say 'not run: make test-kube-proxy' ;;
		esac
		[ ! -e "$file" ] || names="$names $(sed -n 's/^func \(Test[A-Za-z0-9_]*\)(t .*/\1/p' "$file" | tr '\n' ' ')"
	done
	# shellcheck disable=SC2086 # a list of words
	set -- $names
	[ $# = 0 ] || say "run these first: cd cmd/flannel-lab && go test -run '^($(echo "$*" | tr ' ' '|'))\$' ./..."
}

if [ -z "${BASE:-}" ]; then
	BASE=main
	! git rev-parse --quiet --verify origin/main >/dev/null || BASE=origin/main
fi
since=$(git merge-base "$BASE" HEAD)
module=$($GO list -m)
packages=$($GO list ./...)
files=$(changed_files | with_readers | sort -u)

# No other package depends on a test. The house tests are the package at the top.
sources='' tests=$module of_lab='' of_release=''
for file in $files; do
	case $file in
	cmd/flannel-lab/kube/*) tests="$tests $module/subnet/kube/kubetest" of_lab="$of_lab $file" ;;
	cmd/flannel-lab/*) of_lab="$of_lab $file" ;;
	cmd/flannel-release/* | dist/packaging/* | Documentation/install.md | Documentation/upgrade.md) of_release=yes ;;
	go.mod | go.sum) sources=$packages ;;
	dist/*.sh) ;;
	*_test.go | */testdata/*) tests="$tests $(package_of "$file")" ;;
	*) sources="$sources $(package_of "$file")" ;;
	esac
done
[ -z "$of_release" ] || say 'not run: make test-release'
# shellcheck disable=SC2086 # lists of words
all=$({ with_importers $sources && printf '%s\n' $tests; } | sort -u)
# shellcheck disable=SC2086
need_kube=$(affected linux $WITH_KUBE)
# shellcheck disable=SC2086
light=$(affected windows $LIGHT) heavy=$(affected windows $HEAVY)

say "affected packages, since this branch left $BASE at $(git rev-parse --short "$since"):"
echo "$all"

# shellcheck disable=SC2046 # targets
$MAKE build tools bin/image/start $([ -z "$need_kube" ] || echo kube bin/powershell/parse.mjs bin/prometheus/unpacked) $([ -z "$light$heavy" ] || echo wine)
# lint checks everything, because unchanged packages come from the cache.
$MAKE lint
[ -z "$need_kube" ] || $MAKE lint-kube
$MAKE test-race PACKAGES="$(echo "$all" | tr '\n' ' ')"
[ -z "$light$heavy" ] || $MAKE test-windows LIGHT="$light" HEAVY="$heavy"
left_out
