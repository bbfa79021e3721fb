package lab

import (
	"slices"
	"strings"
)

// WithoutSenders is a shell command that leaves out of nft's output the senders that the
// guard has recorded, and the counter of those that have joined: the guard makes it anew
// to change its number, and nft prints counters in the order in which they were made.
const WithoutSenders = `sed '/counter joined-outsider {/,/^$/d; /set outsiders/,/^\t}/{/elements = {/{:more;/}$/!{N;b more};d}}'`

// NetworkState is a shell command that prints the network state of a node, without what
// changes with time and traffic, and without the states of carriers, which the kernel
// changes after the command that causes the change has ended.
const NetworkState = `
	echo "# address"; ip -o address | sed 's/^[0-9]*: //; s/\\.*//; s/ tentative//'
	echo "# link"; ip -d -o link | sed 's/^[0-9]*: //; s/timer *[0-9.]*//g; s/NO-CARRIER,//; s/,LOWER_UP//; s/,M-DOWN//; s/ state [A-Z]*//'
	echo "# route"; { ip route show table all; ip -6 route show table all | grep -v ' expires '; ip nexthop; } | sed 's/ linkdown//'
	echo "# rule"; ip rule; ip -6 rule
	echo "# neigh"; ip neigh show nud permanent; bridge fdb | grep -v -e ^33:33 -e ^01:00
	echo "# iptables"; for ipt in iptables ip6tables; do $ipt-save | grep -v '^#' | sed 's/\[[0-9:]*\]//'; done
	echo "# nft"; nft list ruleset 2>/dev/null | sed 's/packets [0-9]* bytes [0-9]*//' | ` + WithoutSenders

// Changes returns the lines that only one of two texts has.
func Changes(before, after string) string {
	oldLines, newLines := strings.Split(before, "\n"), strings.Split(after, "\n")
	var all []string
	for _, line := range oldLines {
		if !slices.Contains(newLines, line) {
			all = append(all, "- "+line)
		}
	}
	for _, line := range newLines {
		if !slices.Contains(oldLines, line) {
			all = append(all, "+ "+line)
		}
	}
	return strings.Join(all, "\n")
}
