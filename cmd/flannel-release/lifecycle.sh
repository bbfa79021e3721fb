#!/bin/sh
# Installs, upgrades, removes, installs again and purges the Debian package, with systemd as init, on a node of a
# network of two: lifecycle.sh PACKAGE. It changes the machine that it runs on, so it is for a virtual machine:
#
#   dist/vm.sh 6.12 cmd/flannel-release/lifecycle.sh dist/out/made/flanneld_9.8.7-1_amd64.deb
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
package=$(realpath "${1:?the package is missing}")

fail() {
	echo "lifecycle.sh: $*" >&2
	systemctl --no-pager status flanneld >&2 || true
	journalctl --no-pager -u flanneld 2>/dev/null | tail -n 40 >&2 || true
	exit 1
}

if [ "${LIFECYCLE:-}" != inside ]; then
	[ -e /out ] || fail "run it in a virtual machine: dist/vm.sh"
	mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
	# They would empty /tmp, in which the repository may be.
	for unit in tmp.mount systemd-tmpfiles-setup.service; do ln -sf /dev/null "/etc/systemd/system/$unit"; done
	rm -f /usr/sbin/policy-rc.d # in containers, it forbids packages to start and stop services
	# systemd wants to be the first process, which it is in a namespace of its own.
	container=vm unshare --pid --fork --mount --mount-proc /lib/systemd/systemd --unit=basic.target \
		--log-target=null --show-status=no </dev/null >/out/systemd.log 2>&1 &
	tries=0
	until init=$(pgrep -x -P "$!" systemd) && nsenter -t "$init" -m -p systemctl is-active --quiet basic.target 2>/dev/null; do
		tries=$((tries + 1))
		[ $tries -lt 600 ] || { cat /out/systemd.log && fail "systemd does not start"; }
		sleep 0.5
	done
	LIFECYCLE=inside exec nsenter -t "$init" -m -p "$here/cmd/flannel-release/lifecycle.sh" "$package"
fi

step() { echo "lifecycle.sh: $*"; }

active() { systemctl is-active --quiet flanneld; }

ready() { flanneld wait --timeout=5m >/dev/null || fail "flanneld is not ready $1"; }

# A second node in a network namespace, with the same program, and etcd beside both.
work=$(mktemp -d)
ip link set lo up
ip netns add peer
ip link add wire type veth peer name wire netns peer
ip addr add 192.168.77.1/24 dev wire
ip link set wire up
ip -n peer addr add 192.168.77.2/24 dev wire
ip -n peer link set wire up
ip -n peer link set lo up
"$here/bin/etcd" --data-dir="$work/etcd" --listen-client-urls=http://192.168.77.1:2379 \
	--advertise-client-urls=http://192.168.77.1:2379 --log-level=error >"$work/etcd.log" 2>&1 &
until "$here/bin/etcdctl" --endpoints=http://192.168.77.1:2379 put /coreos.com/network/config \
	'{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}' >/dev/null 2>&1; do sleep 0.5; done
dpkg-deb -x "$package" "$work/peer"
ip netns exec peer "$work/peer/usr/bin/flanneld" --etcd-endpoints=http://192.168.77.1:2379 --iface=wire --iptables-forward-rules=false \
	--subnet-file="$work/subnet.env" --healthz-port=0 >"$work/peer.log" 2>&1 &
until [ -e "$work/subnet.env" ]; do sleep 0.2; done
there=$(sed -n 's/^FLANNEL_SUBNET=\(.*\)\.1\/24$/\1.0/p' "$work/subnet.env")

step "install: enabled, but not started without a setting"
dpkg -i "$package" >/dev/null
systemctl is-enabled --quiet flanneld || fail "it is not enabled"
until [ -z "$(systemctl list-jobs --no-legend)" ]; do sleep 0.2; done
[ "$(systemctl show -P Result flanneld)" = exec-condition ] || fail "it was not asked to start, or runs without a setting"
! active || fail "it runs without a setting"
[ -d /etc/flannel ] || fail "/etc/flannel is missing"

step "set up: the node joins the network"
printf 'FLANNELD_ETCD_ENDPOINTS=http://192.168.77.1:2379\nFLANNELD_IFACE=wire\n' >>/etc/default/flanneld
systemctl restart flanneld || fail "it does not start"
ready "after its start"
until ping -c 1 -W 1 "$there" >/dev/null; do sleep 0.2; done

step "options that name files: the unit lets the service write them"
mkdir -p /etc/cni/net.d /opt/cni/bin
for option in CNI_PLUGIN_FROM=/usr/lib/flannel/cni/flannel CNI_PLUGIN_TO=/opt/cni/bin/flannel LOG_FILE=/var/log/flannel/flanneld.log \
	CNI_CONF_FROM=/etc/flannel/cni-conf.json CNI_CONF_TO=/etc/cni/net.d/10-flannel.conflist; do
	echo "FLANNELD_$option" >>/etc/default/flanneld
done
echo '{"name": "cbr0", "cniVersion": "0.3.1", "plugins": [{"type": "flannel"}]}' >/etc/flannel/cni-conf.json
systemctl restart flanneld || fail "it does not start with these options"
ready "with these options"
for path in /opt/cni/bin/flannel /var/log/flannel/flanneld.log /etc/cni/net.d/10-flannel.conflist; do
	[ -s $path ] || fail "$path was not written"
done
rm -r /etc/cni/net.d/10-flannel.conflist /opt/cni/bin/flannel /etc/flannel/cni-conf.json
sed -i '/CNI\|LOG/d' /etc/default/flanneld
systemctl restart flanneld || fail "it does not start without these options"
ready "without these options"

# newer VERSION: prints the name of a package with another version.
newer() {
	dpkg-deb -R "$package" "$work/newer"
	sed -i "s/^Version: .*/Version: $1/" "$work/newer/DEBIAN/control"
	dpkg-deb -Znone -b "$work/newer" "$work/$1.deb" >/dev/null
	rm -rf "$work/newer"
	echo "$work/$1.deb"
}

step "upgrade: restarted, settings kept, no packet lost"
upgrade=$(newer 9.8.8-1)
before=$(systemctl show -P MainPID flanneld)
ping -i 0.02 "$there" >"$work/pings" &
pings=$!
dpkg -i "$upgrade" >/dev/null
until [ "$(systemctl show -P MainPID flanneld)" != "$before" ] && active; do sleep 0.2; done
ready "after the upgrade"
kill -INT $pings
wait $pings || true
grep -q ' 0% packet loss' "$work/pings" || fail "packets were lost: $(tail -n 3 "$work/pings")"
grep -q '^FLANNELD_IFACE=wire$' /etc/default/flanneld || fail "the settings are gone"
step "upgrade: $(grep 'packet loss' "$work/pings")"

step "upgrade of a service that an administrator disabled: it stays disabled"
systemctl disable --now flanneld 2>/dev/null
dpkg -i "$(newer 9.8.9-1)" >/dev/null
! systemctl is-enabled --quiet flanneld || fail "it is enabled again"
! active || fail "it runs again"
systemctl enable --now flanneld 2>/dev/null
ready "after it was enabled again"

step "remove: stopped, settings kept, the network still works"
dpkg -r flanneld >/dev/null
! active || fail "it still runs"
[ -e /etc/default/flanneld ] || fail "the settings are gone"
[ ! -e /usr/bin/flanneld ] || fail "the program is still there"
ping -c 3 -W 2 "$there" >/dev/null || fail "the removal cut the network"

step "install again: runs with the kept settings"
dpkg -i "$package" >/dev/null
ready "after the second installation"

step "purge: nothing is left"
dpkg -P flanneld >/dev/null
for path in /etc/default/flanneld /etc/flannel /run/flannel /usr/lib/systemd/system/flanneld.service.d /var/lib/systemd/deb-systemd-helper-enabled/flanneld.service.dsh-also; do
	[ ! -e $path ] || fail "$path is left"
done
step "passed"
