#!/bin/sh
# Unpacks strongSwan's IKE daemon from Debian's packages into bin/strongswan, for tests in virtual machines
# (dist/kernels.sh), which copy it into their own files. Nothing is installed on this machine, so that no service of it
# starts one.
set -eu

packages='libstrongswan libstrongswan-standard-plugins strongswan-libcharon charon-systemd strongswan-swanctl'
to=$(cd "$(dirname "$0")/.." && pwd)/bin/strongswan

download() {
	# shellcheck disable=SC2086 # a list of words
	apt-get -qq -o APT::Sandbox::User=root download $packages >&2
}

rm -rf "$to"
mkdir -p "$to/packages"
cd "$to/packages"
# The lists of packages may be missing, or older than the archive.
download || { apt-get -qq update </dev/null >&2 && download; } || {
	echo "strongswan.sh: apt-get cannot download $packages (no network, or not Debian)" >&2
	exit 1
}
for package in *.deb; do
	dpkg-deb -x "$package" "$to"
done
touch "$to/unpacked"
