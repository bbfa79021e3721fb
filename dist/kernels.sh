#!/bin/sh
# Runs the tests that concern the kernel under another kernel, in a virtual machine (dist/vm.sh): compiled programs from
# bin/tests, and the flanneld of bin/. A test that is not there, or that is skipped, is a failure.
#
#   kernels.sh 6.12 short           a run of each tunnel that needs a module
#   kernels.sh 6.12 all             all of them
#   kernels.sh 6.12 sample COMMIT   all of them, but of the two longest tests a part, which the commit chooses
#   kernels.sh 6.12 e2e TestIPIP TestPodsOfTwoNodesTalk/vxlan_dual
#   kernels.sh 6.12 list all        prints which tests would run, a line for each run of a test program
#
# MACHINES virtual machines (1), each with one processor, share the runs. One more helps from the moment at which the file
# $WHEN_IDLE exists: a processor has nothing else to do. The output of the tests is in bin/tests/<series>.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)

# tests SELECTION [COMMIT]: prints, for the kernel of $series, a line for each run of a test program: its name, its package
# and the tests. The longest come first. Those of ipsec need the most of a processor: they come when other lanes of make
# test may have ended. A test that counts lost packets is not in one line with those that measure throughput: on the one
# emulated processor, these overflow queues.
tests() {
	case $1 in
	short)
		echo 'e2e cmd/flannel-lab/e2e TestMissingModule TestIPIP TestPodsOfTwoNodesTalk/wireguard_dual'
		;;
	all | sample)
		modules=TestModulesAfterEveryOther
		loss='TestNoPacketIsLost/vxlan TestNoPacketIsLost/host-gw,"EnableNFTables":true'
		if [ "$1" = sample ]; then
			# The last digit but one, since the last one chooses the kernel.
			digit=$((0x$(printf %s "$2" | tail -c 2 | head -c 1)))
			modules=$modules/part_$((digit % 3 + 1))_of_3
			# shellcheck disable=SC2086 # a list of words
			loss=$(printf '%s\n' $loss | sed -n "$((digit / 3 % 2 + 1))p")
		fi
		cat <<-END
			firewall pkg/linux/firewall TestRestartsLeaveNoGap TestDriftNFTables TestDriftIPTablesLegacy TestNFTablesAdoption
			firewall pkg/linux/firewall TestDriftIPTablesNFT TestSwitching
			linux pkg/linux TestWireGuard TestWireGuardDrift TestWireGuardAdoption TestIPIPOfAnotherNetwork TestIPsecPolicies TestTUNDriftIsRepaired TestTUNRestart
			e2e cmd/flannel-lab/e2e TestUDP TestExtension TestAlloc
			e2e cmd/flannel-lab/e2e TestMissingModule TestIPIP TestIPIPDrift TestIPIPAmongBackends TestIPIPAdoption TestIPIPDualStack TestHandbackIPIP
			e2e cmd/flannel-lab/e2e $modules
			e2e cmd/flannel-lab/e2e TestGuardIPIP TestGuardWaits TestGuard/vxlan TestGuardTranslatedPeer TestGuardWithFlannel
			e2e cmd/flannel-lab/e2e TestIPsec TestIPsecDrift TestIPsecAdoption TestIPsecDualStack TestIPsecOptions TestIPsecFormerOptions TestIPsecRollout
			linux pkg/linux TestFirstSync TestRestart TestAdoption TestPlainRoutes TestTwoOnOneMachine TestFound
			underlay pkg/linux/underlay TestRead TestWatch
			linux pkg/linux TestGuardSets TestGuardTrial TestGuardCleanup TestGuardHoldsBackNewPeers
			guard pkg/linux/guard TestImpostor TestFragments TestOwnersFollowLeases TestTranslated TestTrialWaitsForPeers TestNodeJoins TestReferencesAreDeleted
			e2e cmd/flannel-lab/e2e TestAdoptionOfWhatFlannelLeft
			e2e cmd/flannel-lab/e2e TestPodsOfTwoNodesTalk/vxlan_dual TestPodsOfTwoNodesTalk/host-gw_dual TestPodsOfTwoNodesTalk/wireguard_dual
			e2e cmd/flannel-lab/e2e TestDriftIsMended/vxlan_dual TestWireGuardOutlivesTheDaemon/separate
		END
		# shellcheck disable=SC2086
		printf 'e2e cmd/flannel-lab/e2e %s\n' $loss
		# Kernels before 6.2 accept a set of another type than the one that is there.
		[ "$series" = 6.1 ] || echo 'guard pkg/linux/guard TestTableMadeAnew'
		;;
	esac
}

# pattern NAME...: prints the argument of -test.run for tests of one test program. Those with subtests are of one test.
pattern() {
	printf '%s\n' "$@" | awk -F/ '
		{ if (!seen[$1]++) tests = tests (tests ? "|" : "") $1 }
		NF > 1 { gsub(/[.{}()\[\]*+?|^$]/, "\\\\&", $2); subtests = subtests (subtests ? "|" : "") $2 }
		END { printf "^(%s)$", tests; if (subtests) printf "/^(%s)$", subtests }'
}

# programs: prints the files that tests start and load again and again.
programs() {
	for program in sh ip bridge tc ss nft iptables iptables-save iptables-restore ip6tables ping wg wireguard-go sysctl tcpdump \
		unshare cat ls grep sed awk head tail wc sort tr rm mkdir chmod sleep env seq cut xargs pgrep; do
		file=$(command -v "$program") || continue
		realpath "$file"
		{ ldd "$file" 2>/dev/null || true; } | grep -o '/[^ ]*' | xargs -r realpath
	done
	printf '%s\n' /usr/lib/*/xtables/*.so /etc/ld.so.cache /etc/iproute2/* "$here"/bin/tests/*.test "$here/bin/flanneld" "$here/bin/etcd" \
		"$here"/bin/cni/*
}

# inside: runs in a virtual machine. The lines of tests are in /out/tests; a directory says that a machine has taken a line.
inside() {
	# Without its module, flanneld would take wireguard-go. udev, which does not run here, would make /dev/net/tun. A test
	# breaks a tunnel by fou.
	modprobe -a wireguard tun fou
	cp -a "$here/bin/strongswan/usr/." /usr
	# The kernel drops packets to a neighbour that has not answered three probes, one each second. A processor that other work
	# outside makes late does not keep to that (res_failed in /proc/net/stat/arp_cache). New devices get the default.
	for limit in ipv4/neigh/default/ucast_solicit ipv4/neigh/default/mcast_solicit ipv6/neigh/default/ucast_solicit ipv6/neigh/default/mcast_solicit; do
		echo 60 >/proc/sys/net/$limit
	done
	# Each time that a file of the machine outside is opened, the virtual machine waits for QEMU, which may have to wait for a
	# processor. A changed file is in memory.
	programs 2>/dev/null | sort -u | xargs touch -c
	number=0
	while read -r program package names; do
		number=$((number + 1))
		mkdir "/out/$number" 2>/dev/null || continue # the other machine has it
		cd "$here/$package"
		# shellcheck disable=SC2086 # a list of words
		"$here/bin/tests/$program.test" -test.v -test.timeout 60m -test.parallel 2 -test.run "$(pattern $names)" \
			>"/out/$number.log" 2>&1 </dev/null || true
		grep -E '^ *--- (PASS|FAIL|SKIP): ' "/out/$number.log" | grep -vE '^ {8}' || true
	done </out/tests
}

# judge LOG NAME...: reports a test that did not pass.
judge() {
	log=$1
	shift
	if grep -E '^ *--- SKIP: ' "$log"; then
		echo "kernels.sh: a test was skipped under kernel $series"
		return 1
	fi
	for name in "$@"; do
		grep -qF -e "--- PASS: $name (" "$log" || {
			cat "$log"
			echo "kernels.sh: $name did not pass under kernel $series"
			return 1
		}
	done
	# A test in namespaces of its own prints PASS before what it does at its end.
	[ "$(tail -n 1 "$log")" = PASS ] || {
		cat "$log"
		echo "kernels.sh: a test failed under kernel $series"
		return 1
	}
}

if [ "$1" = inside ]; then
	inside
	exit 0
fi
series=$1
shift
if [ "$1" = list ]; then
	shift
	tests "$@"
	exit 0
fi
out=$here/bin/tests/$series
rm -rf "$out"
mkdir -p "$out"
case $1 in
short | all) tests "$1" >"$out/tests" ;;
sample)
	tests sample "$2" >"$out/tests"
	echo "kernels.sh: of the longest tests, the commit $2 chooses $(grep -o -e 'TestModulesAfter[^ ]*' -e 'TestNoPacketIsLost[^ ]*' "$out/tests" |
		tr '\n' ' ')(make test-kernels KERNELS=$series runs all of them)"
	;;
e2e) shift && echo "e2e cmd/flannel-lab/e2e $*" >"$out/tests" ;;
*) echo "kernels.sh: $1 is not short, all, sample or e2e" >&2 && exit 2 ;;
esac
began=$(date +%s)
export VM_OUT="$out" VM_TIMEOUT="${VM_TIMEOUT:-7200}"
helper=
if [ -n "${WHEN_IDLE:-}" ]; then
	(
		until [ -e "$WHEN_IDLE" ]; do
			[ ! -e "$out/ended" ] || exit 0
			sleep 1
		done
		[ "$(find "$out" -mindepth 1 -type d | wc -l)" = "$(wc -l <"$out/tests")" ] || # all runs are taken
			"$here/dist/vm.sh" "$series" "$here/dist/kernels.sh" inside
	) &
	helper=$!
	trap 'touch "$out/ended"; wait' EXIT
fi
seq "${MACHINES:-1}" | xargs -P "${MACHINES:-1}" -I '{}' "$here/dist/vm.sh" "$series" "$here/dist/kernels.sh" inside
touch "$out/ended"
[ -z "$helper" ] || wait "$helper" || true # judge tells what it has not done
number=0
failed=
while read -r program package names; do
	number=$((number + 1))
	# shellcheck disable=SC2086
	judge "$out/$number.log" $names || failed=yes
done <"$out/tests"
echo "kernel $series: $(cat "$out"/*.log | grep -cE '^--- PASS: ') tests in $(($(date +%s) - began)) s"
[ -z "$failed" ]
