#!/bin/sh
# Unpacks Debian packages into bin/NAME. Nothing is installed on this machine, so that no service of it starts one.
#
#   unpack.sh strongswan charon-systemd strongswan-swanctl
set -eu

name=$1
shift
to=$(cd "$(dirname "$0")/.." && pwd)/bin/$name

download() {
	apt-get -qq -o APT::Sandbox::User=root download "$@" >&2
}

rm -rf "$to"
mkdir -p "$to/packages"
cd "$to/packages"
# The lists of packages may be missing, or older than the archive.
download "$@" || { apt-get -qq update </dev/null >&2 && download "$@"; } || {
	echo "unpack.sh: apt-get cannot download $* (no network, or not Debian)" >&2
	exit 1
}
for package in *.deb; do
	dpkg-deb -x "$package" "$to"
done
touch "$to/unpacked"
