#!/bin/sh
# Prints the commands of a page that a test runs: blocks.sh PAGE NAME prints all blocks below <!-- run: NAME -->.
set -eu
awk -v mark="<!-- run: $2 -->" '
	$0 == mark { armed = found = 1; next }
	armed && /^```sh$/ { inside = 1; armed = 0; next }
	armed { print FILENAME ": no block of commands below " mark >"/dev/stderr"; exit 1 }
	inside && /^```$/ { inside = 0; next }
	inside
	END { if (!found) { print FILENAME " has no " mark >"/dev/stderr"; exit 1 } }' "$1"
