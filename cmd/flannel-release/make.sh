#!/bin/sh
# make.sh TO [LATER]: makes a release in TO, in a copy of the repository and without a network. With LATER it makes it once
# more in another copy, compares all files, and makes packages of a later version in LATER.
set -eu
# The variables of a make above this script are not for the copies.
unset MAKEFLAGS MAKEOVERRIDES MFLAGS PLAN
to=$1
later=${2:-}
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Debian's archive replaces packages, and the one that keeps all may be out of reach. The test takes the latest then.
pins=$PWD/cmd/flannel-release/debian.json
# The Go that is here, because another one would compile everything again.
RELEASE_GO=$(go env GOVERSION)
export RELEASE_GO
make --no-print-directory release-deps || {
	pins=$work/debian.json
	make --no-print-directory pins-debian release-deps PINS="$pins"
}
what="COMMIT=0123456789abcdef0123456789abcdef01234567 SOURCE_DATE_EPOCH=1750000000 IMAGE=registry.example.com/flanneld PINS=$pins"
for copy in a ${later:+another/directory}; do
	mkdir -p "$work/$copy/bin"
	git ls-files -co --exclude-standard -z | tar -c --null --ignore-failed-read -T - 2>/dev/null | tar -x -C "$work/$copy"
	# What make release-deps has downloaded.
	ln -s "$PWD/bin/debian" "$PWD/bin/cni" "$work/$copy/bin"
	cp -p bin/.plugins-* "$work/$copy/bin"
	# shellcheck disable=SC2086 # a list of words
	unshare -n make -C "$work/$copy" --no-print-directory release VERSION=v9.8.7 SYSTEMS='linux-amd64 windows-amd64' $what >"$work/log" 2>&1 || {
		cat "$work/log"
		exit 1
	}
done
rm -rf "$to"
mkdir -p "$(dirname "$to")"
[ -n "$later" ] || {
	mv "$work/a/dist/out/release" "$to"
	exit 0
}
diff -r "$work/a/dist/out/release" "$work/another/directory/dist/out/release" || {
	echo "make.sh: the same source gave other files" >&2
	exit 1
}
# shellcheck disable=SC2086
make -C "$work/a" --no-print-directory packages VERSION=v9.8.8 SYSTEMS=linux-amd64 $what >"$work/log" 2>&1 || {
	cat "$work/log"
	exit 1
}
rm -rf "$later"
mkdir -p "$(dirname "$later")"
mv "$work/a/dist/out/release" "$to"
mv "$work/a/dist/out/packages" "$later"
