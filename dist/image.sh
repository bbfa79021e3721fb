#!/bin/sh
# Runs a program of the packages of Debian that the image has, with their libraries: bin/image/start nft list ruleset
set -eu

root=$(cd "$(dirname "$0")" && pwd)
for loader in "$root"/usr/lib/*-linux-*/ld-linux*.so.*; do
	program=$1
	shift
	exec "$loader" --library-path "$(dirname "$loader")" "$root/usr/sbin/$program" "$@"
done
