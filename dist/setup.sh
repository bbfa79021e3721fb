#!/bin/sh
# Prepares a machine for `make demo` or `make test` (the argument): installs the Debian packages that are missing, and
# checks for root, Go and features of the kernel. It prints nothing if everything is there. On a system without apt-get
# it lists what is missing.
set -eu

purpose=${1:-demo}
# /usr/lib/wine is where Debian's package wine64 installs the program, unless the package wine adds a link.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/lib/wine
here=$(cd "$(dirname "$0")/.." && pwd)
failed=

complain() {
	echo "setup: $*" >&2
	failed=yes
}

# missing_packages lists the packages of the programs that are not found.
missing_packages() {
	while read -r program package; do
		[ -z "$program" ] || command -v "$program" >/dev/null 2>&1 || echo "$package"
	done <<-END | sort -u
		ip iproute2
		bridge iproute2
		iptables iptables
		nft nftables
		ping iputils-ping
		unshare util-linux
		$([ "$purpose" != test ] || printf '%s\n' 'sysctl procps' 'tcpdump tcpdump' 'systemd-analyze systemd' 'gcc gcc' 'node nodejs' 'npm npm' \
			'qemu-system-x86_64 qemu-system-x86' 'qemu-s390x qemu-user' 'cpio cpio' 'modprobe kmod' 'xz xz-utils' 'zstd zstd' \
			'wireguard-go wireguard-go' 'wg wireguard-tools' 'rpm rpm' \
			'wine64 wine64' 'x86_64-w64-mingw32-gcc-win32 gcc-mingw-w64-x86-64-win32')
	END
	[ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] || [ -e /etc/ssl/cert.pem ] || echo ca-certificates
	# It starts in a virtual machine that has no libc.
	[ "$purpose" != test ] || { busybox=$(command -v busybox) && ! ldd "$busybox" >/dev/null 2>&1; } || echo busybox-static
	# -race needs the headers of libc.
	[ "$purpose" != test ] || [ -e /usr/include/stdlib.h ] || echo libc6-dev
}

install_packages() {
	missing=$(missing_packages | tr '\n' ' ')
	[ -n "$missing" ] || return 0
	if command -v apt-get >/dev/null 2>&1; then
		echo "setup: installing $missing" >&2
		export DEBIAN_FRONTEND=noninteractive
		log=$(mktemp)
		# If the update fails (offline, a repository is gone), the installation may still succeed.
		# shellcheck disable=SC2086 # a list of words
		if { apt-get -qq update; apt-get -qq -y --no-install-recommends install $missing; } >"$log" 2>&1 </dev/null; then
			rm -f "$log"
			return 0
		fi
		tail -n 5 "$log" >&2
		rm -f "$log"
		missing=$(missing_packages | tr '\n' ' ')
	fi
	[ -z "$missing" ] || complain "missing packages (Debian's names): $missing"
}

check_go() {
	if ! command -v go >/dev/null 2>&1; then
		hint=
		[ ! -x /usr/local/go/bin/go ] || hint=" (/usr/local/go/bin has one: add it to PATH)"
		complain "no go command$hint: install Go 1.26 or later from https://go.dev/dl"
		return 0
	fi
	# Inside the repository, go 1.21 and later download the version that go.mod requires.
	if ! version=$(cd "$here" && go env GOVERSION 2>/dev/null); then
		complain "go cannot provide the version that go.mod requires (GOTOOLCHAIN is $(cd / && go env GOTOOLCHAIN 2>/dev/null || echo unknown)): install Go 1.26 or later"
		return 0
	fi
	minor=$(echo "$version" | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
	[ -z "$minor" ] || [ "$minor" -ge 26 ] || complain "$version is too old: install Go 1.26 or later"
}

# try FEATURE COMMAND: runs the command in new network, mount and PID namespaces.
try() {
	unshare -n -m -p -f sh -c "$2" >/dev/null 2>&1 || complain "the kernel lacks $1 (tried: $2)"
}

check_kernel() {
	if ! unshare -n -m -p -f true 2>/dev/null; then
		complain "cannot create network, mount and PID namespaces: run this as root, and a container as privileged"
		return 0
	fi
	try "veth devices (CONFIG_VETH)" 'ip link add lab0 type veth peer name lab1'
	try "bridges (CONFIG_BRIDGE)" 'ip link add lab0 type bridge'
	try "vxlan (CONFIG_VXLAN)" 'ip link add lab0 type vxlan id 1 dstport 8472 dev lo'
	try "nftables (CONFIG_NF_TABLES)" 'nft add table ip lab'
	try "masquerading for iptables" 'iptables -t nat -A POSTROUTING -m comment --comment lab -j MASQUERADE'
}

if [ "$(id -u)" != 0 ]; then
	echo "setup: make $purpose creates network namespaces and needs root: sudo env \"PATH=\$PATH\" make $purpose" >&2
	exit 1
fi
install_packages
check_go
[ -n "$failed" ] || check_kernel
[ -z "$failed" ]
