#!/bin/sh
# Installs, upgrades and removes flanneld on a node of a network of two, with systemd as init: by the Debian package, by
# the RPM, from the archive, and in the place of flannel's service. What install.md and upgrade.md show for this is run as
# it stands there: lifecycle.sh RELEASE LATER [PART...], two directories. The second one has later packages. Without parts
# it runs all: deb, rpm, flannel, archive. It changes the machine that it runs on, so it is for a virtual machine:
#
#   dist/vm.sh 6.12 cmd/flannel-release/lifecycle.sh dist/out/made dist/out/later
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
release=$(realpath "${1:?the release is missing}")
later=$(realpath "${2:?the later packages are missing}")
shift 2
parts=${*:-deb rpm flannel archive}
# The processor is emulated, and systemd may answer late.
export SYSTEMD_BUS_TIMEOUT=600

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
	# shellcheck disable=SC2086 # a list of words
	LIFECYCLE=inside exec nsenter -t "$init" -m -p "$here/cmd/flannel-release/lifecycle.sh" "$release" "$later" $parts
fi

step() { echo "lifecycle.sh: $*"; }

active() { systemctl is-active --quiet "${1:-flanneld}"; }

# settled waits until systemd has nothing to start or stop.
settled() { until [ -z "$(systemctl list-jobs --no-legend)" ]; do sleep 0.2; done; }

# running checks that the service runs, which systemd may learn after flanneld wait.
running() {
	settled
	active || fail "it does not run"
}

ready() { flanneld wait --timeout=5m >/dev/null || fail "flanneld is not ready $1"; }

# run PAGE BLOCK DIRECTORY: runs the commands of a page below this mark, in the directory with the files that they name.
run() {
	commands=$("$here/dist/blocks.sh" "$here/Documentation/$1" "$2") || fail "no commands"
	(cd "$3" && bash -euo pipefail -c "$commands") >"/out/$2.log" 2>&1 || { cat "/out/$2.log" && fail "$1, $2: the commands failed"; }
}

# flow starts a flow of packets to the peer; lossless ends it, and fails if one was lost.
flow() {
	ping -i 0.02 "$there" >"$work/pings" &
	pings=$!
}

lossless() {
	kill -INT $pings
	wait $pings || true
	grep -q ' 0% packet loss' "$work/pings" || fail "packets were lost: $(tail -n 3 "$work/pings")"
	step "$1: $(grep 'packet loss' "$work/pings")"
}

# gone PATH...: checks that nothing is left.
gone() {
	for path in "$@"; do [ ! -e "$path" ] || fail "$path is left"; done
}

# A second node in a network namespace, with the same program, and etcd beside it, which has the address of the pages.
work=$(mktemp -d)
ip link set lo up
ip netns add peer
ip link add eth0 type veth peer name wire netns peer
ip addr add 192.168.10.12/24 dev eth0
ip link set eth0 up
ip -n peer addr add 192.168.10.11/24 dev wire
ip -n peer link set wire up
ip -n peer link set lo up
etcd=http://192.168.10.11:2379
ip netns exec peer "$here/bin/etcd" --data-dir="$work/etcd" --listen-client-urls=$etcd --advertise-client-urls=$etcd \
	--log-level=error >"$work/etcd.log" 2>&1 &
# configure BACKEND: writes the network configuration.
configure() {
	"$here/bin/etcdctl" --endpoints=$etcd put /coreos.com/network/config \
		"{\"Network\": \"10.5.0.0/16\", \"Backend\": {\"Type\": \"$1\"}}" >/dev/null 2>&1
}
until configure vxlan; do sleep 0.5; done
dpkg-deb -x "$release"/flanneld_*.deb "$work/peer"
start_peer() {
	ip netns exec peer "$work/peer/usr/bin/flanneld" --etcd-endpoints=$etcd --iface=wire --iptables-forward-rules=false \
		--subnet-file="$work/subnet.env" --healthz-port=0 >>"$work/peer.log" 2>&1 &
	peer=$!
}
start_peer
until [ -e "$work/subnet.env" ]; do sleep 0.2; done
there=$(sed -n 's/^FLANNEL_SUBNET=\(.*\)\.1\/24$/\1.0/p' "$work/subnet.env")
reached() { until ping -c 1 -W 1 "$there" >/dev/null; do sleep 0.2; done; }

# Debian's rpm knows of no package that has /bin/sh, and has to be told that it is meant.
printf '#!/bin/sh\nexec /usr/bin/rpm --force-debian --nodeps "$@"\n' >/usr/local/sbin/rpm
chmod +x /usr/local/sbin/rpm

# Fedora enables no service of a package that does not ask for it. Debian does, and its helper follows systemd's presets.
install_package() {
	preset=/usr/lib/systemd/system-preset/99-default-disable.preset
	mkdir -p "${preset%/*}"
	rm -f $preset
	case $kind in
	deb) run install.md "package-deb" "$release" ;;
	rpm)
		echo 'disable *' >$preset
		run install.md "package-rpm" "$release"
		;;
	esac
	settled
}

upgrade_package() {
	case $kind in
	deb) run upgrade.md "upgrade-deb" "$later" ;;
	rpm) run upgrade.md "upgrade-rpm" "$later" ;;
	esac
}

go_back() {
	case $kind in
	deb) run upgrade.md "upgrade-deb" "$release" ;;
	rpm) run upgrade.md "back-rpm" "$release" ;;
	esac
}

installed() {
	case $kind in
	deb) dpkg-query -W -f '${Version}' flanneld ;;
	rpm) /usr/bin/rpm -q --qf '%{VERSION}-%{RELEASE}' flanneld ;;
	esac
}

# by_package: the life of a package of this kind.
by_package() {
	step "$kind, install: enabled, but not started without a setting"
	install_package
	systemctl is-enabled --quiet flanneld || fail "it is not enabled"
	[ "$(systemctl show -P Result flanneld)" = success ] || fail "the package asked it to start without a setting"
	! active || fail "it runs without a setting"
	systemctl start flanneld || true # as at a boot
	[ "$(systemctl show -P Result flanneld)" = exec-condition ] || fail "the unit starts without a setting"
	[ -d /etc/flannel ] || fail "/etc/flannel is missing"
	[ "$(stat -c '%a %U:%G' /etc/default/flanneld)" = '600 root:root' ] || fail "others can read the settings"

	step "$kind, settings: the node joins the network"
	run install.md "package-settings" "$release"
	running
	reached

	step "$kind, upgrade: restarted, settings kept, no packet lost"
	before=$(systemctl show -P MainPID flanneld)
	former=$(installed)
	flow
	upgrade_package
	until [ "$(systemctl show -P MainPID flanneld)" != "$before" ] && active; do sleep 0.2; done
	ready "after the upgrade"
	lossless "$kind, upgrade"
	[ "$(installed)" != "$former" ] || fail "$former is still installed"
	grep -q '^FLANNELD_IFACE=eth0$' /etc/default/flanneld || fail "the settings are gone"

	step "$kind, back to the former package, without losing a packet"
	before=$(systemctl show -P MainPID flanneld)
	flow
	go_back
	until [ "$(systemctl show -P MainPID flanneld)" != "$before" ] && active; do sleep 0.2; done
	ready "after the way back"
	lossless "$kind, back"
	[ "$(installed)" = "$former" ] || fail "$(installed) is installed"
	[ $kind != deb ] || options

	step "$kind, upgrade of a service that an administrator disabled: it stays disabled"
	systemctl disable --now flanneld 2>/dev/null
	case $kind in
	deb) dpkg -i "$later"/flanneld_*.deb >/dev/null ;;
	rpm) rpm -U "$later"/flanneld-*.rpm ;;
	esac
	! systemctl is-enabled --quiet flanneld || fail "it is enabled again"
	! active || fail "it runs again"
	systemctl enable --now flanneld 2>/dev/null
	ready "after it was enabled again"

	step "$kind, remove: stopped, settings kept, the network still works"
	case $kind in
	deb) dpkg -r flanneld >/dev/null && kept=/etc/default/flanneld ;;
	rpm) rpm -e flanneld && kept=/etc/default/flanneld.rpmsave ;;
	esac
	! active || fail "it still runs"
	grep -q '^FLANNELD_IFACE=eth0$' $kept || fail "the settings are gone"
	gone /usr/bin/flanneld /usr/lib/flannel /usr/lib/systemd/system/flanneld.service /usr/share/doc/flanneld
	ping -c 3 -W 2 "$there" >/dev/null || fail "the removal cut the network"

	step "$kind, install again: runs with the kept settings"
	install_package
	if [ $kind = rpm ]; then
		mv $kept /etc/default/flanneld
		systemctl restart flanneld
	fi
	ready "after the second installation"

	step "$kind, remove with everything: nothing is left"
	run upgrade.md "remove" "$release"
	case $kind in
	deb) run upgrade.md "remove-deb" "$release" ;;
	rpm) run upgrade.md "remove-rpm" "$release" ;;
	esac
	gone /etc/default/flanneld /etc/default/flanneld.rpmsave /etc/flannel /usr/bin/flanneld /usr/lib/systemd/system/flanneld.service \
		/etc/systemd/system/multi-user.target.wants/flanneld.service /var/lib/systemd/deb-systemd-helper-enabled/flanneld.service.dsh-also
	! ip link show flannel.1 >/dev/null 2>&1 || fail "the device is left"
	# The package cannot know whether another daemon uses the file.
	[ -s /run/flannel/subnet.env ] || fail "the subnet file is gone"
}

# options checks that the unit lets the service write what options name.
options() {
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
}

# instead_of_flannel swaps a service "flannel", which was named "flanneld" when the package was installed, for the package's
# service, and back. flanneld itself plays flannel; what flannel leaves in the kernel is tested by
# TestAdoptionOfWhatFlannelLeft and TestHandback of cmd/flannel-lab.
instead_of_flannel() {
	mkdir -p /opt/flannel
	cp "$work/peer/usr/bin/flanneld" /opt/flannel/flanneld
	printf '[Service]\nType=notify\nExecStart=/opt/flannel/flanneld --etcd-endpoints=%s --iface=eth0\nTimeoutStartSec=infinity\n[Install]\nWantedBy=multi-user.target\n' \
		$etcd >/etc/systemd/system/flanneld.service
	systemctl daemon-reload
	systemctl enable --now flanneld 2>/dev/null
	reached
	step "the package beside a flannel with the same name, which goes on"
	before=$(systemctl show -P MainPID flanneld)
	kind=deb
	install_package
	active || fail "the package ended flannel"
	[ "$(systemctl show -P MainPID flanneld)" = "$before" ] || fail "the package restarted flannel"
	run upgrade.md "rename-flannel" "$release"
	active flannel || fail "flannel does not run with its new name"
	flow
	step "from flannel by package"
	run upgrade.md "from-flannel" "$release"
	running
	systemctl is-enabled --quiet flanneld || fail "it is not enabled"
	! active flannel || fail "flannel runs beside it"
	lossless "from flannel"
	flow
	step "back to flannel"
	run upgrade.md "back-to-flannel" "$release"
	active flannel || fail "flannel does not run"
	! active || fail "it runs beside flannel"
	lossless "back to flannel"
	dpkg -i "$later"/flanneld_*.deb >/dev/null
	settled
	! systemctl is-enabled --quiet flanneld || fail "the upgrade enabled it"
	! active || fail "the upgrade started it beside flannel"
	systemctl disable --now flannel 2>/dev/null
	/opt/flannel/flanneld cleanup >/dev/null
	dpkg --purge flanneld >/dev/null
}

# backends checks that the unit lets the service have the device of each backend: both nodes start with it.
backends() {
	hash -r # the shell remembers the program of the package, which is gone
	modprobe -a wireguard ipip
	for backend in udp wireguard ipip vxlan; do
		step "the unit, backend $backend"
		configure $backend
		kill "$peer"
		wait "$peer" || fail "the peer did not end well"
		start_peer
		timeout 600 systemctl restart flanneld || fail "it does not start with the backend $backend"
		ready "with the backend $backend"
		reached
	done
}

# by_archive installs the program and the unit of the archive.
by_archive() {
	step "the archive"
	tar -x -z -C "$work" -f "$release"/flanneld-*-linux-amd64.tar.gz
	run install.md "binary" "$(echo "$work"/flanneld-v*)"
	running
	systemctl is-enabled --quiet flanneld || fail "it is not enabled"
	reached
	backends
	run upgrade.md "remove" "$release"
	rm /usr/local/bin/flanneld /etc/systemd/system/flanneld.service /etc/default/flanneld
	systemctl daemon-reload
}

for part in $parts; do
	case $part in
	deb | rpm) kind=$part && by_package ;;
	flannel) instead_of_flannel ;;
	archive) by_archive ;;
	*) fail "$part is not deb, rpm, flannel or archive" ;;
	esac
done
step "passed: $parts"
