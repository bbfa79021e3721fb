#!/bin/sh
# Runs the commands of "Three machines from nothing" in Documentation/install.md, as they stand there, on three machines:
# machines.sh PACKAGE. Each has systemd, a network namespace, and a copy of this machine's files that is thrown away. It
# changes the machine that it runs on, so it is for a virtual machine:
#
#   dist/vm.sh 6.12 cmd/flannel-release/machines.sh dist/out/made/flanneld_9.8.7-1_amd64.deb
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
package=$(realpath "${1:?the package is missing}")
page=$here/Documentation/install.md
machines='n1 n2 n3'
# The processor is emulated, and systemd may answer late.
export SYSTEMD_BUS_TIMEOUT=600

fail() {
	echo "machines.sh: $*" >&2
	for name in $machines; do
		on $name journalctl --no-pager -q -u etcd -u flanneld 2>/dev/null | tail -n 20 >&2 || true
	done
	exit 1
}

# address NAME: prints the address that the page gives to a machine.
address() { echo "192.168.10.1${1#n}"; }

# on NAME COMMAND...: runs a command on a machine.
on() {
	name=$1
	shift
	nsenter -t "$(cat "$work/$name.pid")" -m -u -n -p -C -r -w "$@"
}

# start NAME: starts a machine, with the programs that the page expects.
start() {
	mkdir -p "$work/$1/upper" "$work/$1/work" "$work/$1/files" "/sys/fs/cgroup/$1"
	mount -t overlay overlay -o "lowerdir=/,upperdir=$work/$1/upper,workdir=$work/$1/work" "$work/$1/files"
	mkdir -p "$work/$1/files/srv" "$work/$1/files/usr/local/bin" "$work/$1/files/opt/cni/bin"
	cp "$package" "$work/$1/files/srv"
	cp "$here/bin/etcd" "$here/bin/etcdctl" "$work/$1/files/usr/local/bin"
	cp "$here/bin/cni/bridge" "$here/bin/cni/host-local" "$here/bin/cni/loopback" "$work/$1/files/opt/cni/bin"
	# The processor is emulated, and etcd's members may answer late.
	mkdir -p "$work/$1/files/etc/systemd/system/etcd.service.d"
	printf '[Service]\nEnvironment=ETCD_HEARTBEAT_INTERVAL=1000 ETCD_ELECTION_TIMEOUT=10000\n' >"$work/$1/files/etc/systemd/system/etcd.service.d/slow.conf"
	# shellcheck disable=SC2016 # the inner shell's variables
	sh -c 'echo $$ >"/sys/fs/cgroup/$0/cgroup.procs" && exec unshare --pid --fork --mount --net --uts --cgroup sh -euc "$2" "$0" "$1"' \
		"$1" "$work/$1/files" '
		mount -t proc proc "$1/proc"
		mount -t sysfs sysfs "$1/sys"
		mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
		mount --rbind /dev "$1/dev"
		mount -t tmpfs tmpfs "$1/run"
		hostname "$0"
		exec env container=vm chroot "$1" /lib/systemd/systemd --unit=basic.target --log-target=null --show-status=no
		' </dev/null >"/out/$1.systemd.log" 2>&1 &
	parent=$!
	tries=0
	until pgrep -x -P "$parent" systemd >"$work/$1.pid" && on "$1" systemctl is-active --quiet basic.target 2>/dev/null; do
		tries=$((tries + 1))
		[ $tries -lt 600 ] || { cat "/out/$1.systemd.log" && fail "systemd does not start on $1"; }
		sleep 0.5
	done
	ip link add "$1" type veth peer name eth0 netns "$(cat "$work/$1.pid")"
	ip link set "$1" master wire up
	on "$1" ip addr add "$(address "$1")/24" dev eth0
	on "$1" ip link set eth0 up
	on "$1" ip link set lo up
	on "$1" nft -f - <<-END
		table inet filter {
			chain input {
				type filter hook input priority filter; policy drop;
				ct state established,related accept
				iif lo accept
			}
		}
	END
}

# block NAME: prints the page's commands that have this mark.
block() { "$here/dist/blocks.sh" "$page" "$1"; }

# run NAME BLOCK: runs a block on a machine, after the variables, with the machine's name and address.
run() {
	settings=$(block "machines-variables" | sed "s/^name=n1 address=192.168.10.11 .*/name=$1 address=$(address "$1")/")
	on "$1" bash -euo pipefail -c "cd /srv; $settings
$(block "$2")" >"/out/$1.$2.log" 2>&1 || { cat "/out/$1.$2.log" && fail "$2 failed on $1"; }
}

# each BLOCK: runs a block on all machines at once.
each() {
	echo "machines.sh: $1"
	pids=
	for name in $machines; do
		run $name "$1" &
		pids="$pids $!"
	done
	for pid in $pids; do wait "$pid" || exit 1; done
}

mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
modprobe -a overlay bridge veth
# They would empty /tmp, in which the repository may be.
for unit in tmp.mount systemd-tmpfiles-setup.service; do ln -sf /dev/null "/etc/systemd/system/$unit"; done
rm -f /usr/sbin/policy-rc.d # in containers, it forbids packages to start and stop services
work=$(mktemp -d)
mount -t tmpfs tmpfs "$work"
ip link set lo up
ip link add wire type bridge
ip link set wire up
for name in $machines; do start $name; done

each "machines-firewall"
each "machines-etcd"
each "machines-package"
echo "machines.sh: machines-configuration"
run n1 "machines-configuration"
each "machines-flanneld"
each "machines-cni"
each "machines-pod"
for name in $machines; do
	for other in $machines; do
		[ $name != $other ] || continue
		pod=$(sed -n 's,.*eth0@.* \(10\.5\.[0-9.]*\)/.*,\1,p' "/out/$other.machines-pod.log")
		[ -n "$pod" ] || fail "the pod of $other has no address: $(cat "/out/$other.machines-pod.log")"
		# An emulated processor beside other tests takes longer than the doctor's limits for a person.
		on $name sh -euc "$(block "machines-verify" | sed "s/10\.5\.34\.2/$pod/; s/^flanneld doctor$/& --timeout=5m/")" >"/out/$name.verify.log" 2>&1 ||
			{ cat "/out/$name.verify.log" && fail "the pods of $name and $other do not reach each other, or the doctor found a problem"; }
	done
done
echo "machines.sh: passed: three pods reach each other"
