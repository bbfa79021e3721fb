#!/bin/sh
# Runs a command under another kernel: as root on this machine's own files, in a virtual machine of QEMU.
#
#   vm.sh 6.12 COMMAND...   under Debian's kernel 6.12; the exit status is the command's, or 125 if there was none
#   vm.sh fetch 6.1 6.12    downloads kernels that are missing
#
# The machine's files are mounted read-only under a tmpfs, so that nothing stays of what the command writes, except in
# $VM_OUT, a directory that is /out inside. /run is empty. The working directory is this one, the environment
# a new one. There is no network but loopback. QEMU emulates the processor (no KVM is needed): what needs the CPU is 10
# to 20 times slower than outside. VM_TIMEOUT is the limit in seconds, VM_MEMORY the memory in MB.
#
# VM_CACHE (~/.cache/vm) holds a directory for each kernel: Debian's package, unpacked, which is downloaded once. Delete
# it to get the latest release again.
set -eu

cache=${VM_CACHE:-${HOME:-/root}/.cache/vm}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH

fail() {
	echo "vm.sh: $*" >&2
	exit 125
}

# latest SERIES: prints the latest of the releases on stdin that are of this series and for ordinary amd64 machines, such
# as 6.1.0-56-amd64 or 6.12.117+deb12-amd64.
latest() {
	grep -E "^$(echo "$1" | sed 's/\./\\./g')\.[0-9.]+(-[0-9]+|\+deb[0-9]+)-amd64\$" | sort -V | tail -n 1
}

cached() {
	[ ! -d "$cache" ] || find "$cache" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | latest "$1"
}

offered() {
	apt-cache pkgnames "linux-image-$1." | sed 's/^linux-image-//' | latest "$1"
}

# fetch SERIES: downloads and unpacks a kernel, unless there is one of this series.
fetch() {
	[ -z "$(cached "$1")" ] || return 0
	command -v apt-get >/dev/null || fail "kernel $1 is not in $cache, and there is no apt-get to download it"
	mkdir -p "$cache"
	(
		flock 9
		[ -z "$(cached "$1")" ] || exit 0
		[ -n "$(offered "$1")" ] || apt-get -qq update </dev/null
		release=$(offered "$1")
		[ -n "$release" ] || fail "the Debian repositories of this machine have no package linux-image-$1.*-amd64"
		echo "vm.sh: downloading linux-image-$release" >&2
		new=$(mktemp -d "$cache/.new.XXXXXX")
		trap 'rm -rf "$new"' EXIT
		chmod 755 "$new"
		(cd "$new" && apt-get -qq -o APT::Sandbox::User=root download "linux-image-$release" >&2 && dpkg-deb -x ./*.deb . && rm ./*.deb)
		depmod -b "$new" "$release"
		mv "$new" "$cache/$release"
	) 9>"$cache/.lock"
}

# unpacked FILE: prints a module as the kernel loads it.
unpacked() {
	case $1 in
	*.xz) xz -dc "$1" ;;
	*.zst) zstd -dcq "$1" ;;
	*) cat "$1" ;;
	esac
}

# make_initrd DIRECTORY COMMAND...: writes DIRECTORY.gz, whose /init mounts the machine's files and runs the command.
make_initrd() {
	rd=$1
	shift
	mkdir -p "$rd/modules" "$rd/proc" "$rd/sys" "$rd/dev" "$rd/root" "$rd/low" "$rd/over"
	cp "$(command -v busybox)" "$rd/busybox"
	for module in virtio_pci 9pnet_virtio 9p overlay; do
		modprobe -d "$kernel" -S "$release" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
	done | awk '!seen[$0]++' >"$rd/list"
	number=100
	while read -r file; do
		number=$((number + 1))
		unpacked "$file" >"$rd/modules/$number"
	done <"$rd/list"
	printf '%s\0' "$PWD" "$@" >"$rd/command"
	cat >"$rd/init" <<-'END'
		#!/busybox sh
		set -e
		b=/busybox
		trap '$b poweroff -f' EXIT
		$b mount -t proc proc /proc
		$b mount -t sysfs sysfs /sys
		$b mount -t devtmpfs devtmpfs /dev
		for module in /modules/*; do $b insmod $module; done
		plan9=trans=virtio,version=9p2000.L,msize=512000
		$b mount -t 9p -o $plan9,cache=loose,ro root /low
		$b mount -t tmpfs tmpfs /over
		$b mkdir /over/upper /over/work
		$b mount -t overlay -o lowerdir=/low,upperdir=/over/upper,workdir=/over/work overlay /root
		for dir in proc sys dev; do $b mount --move /$dir /root/$dir; done
		$b mount -t tmpfs tmpfs /root/run
		$b mkdir -p /root/dev/pts /root/dev/shm /root/out /root/lib/modules
		$b mount -t devpts devpts /root/dev/pts
		$b mount -t tmpfs tmpfs /root/dev/shm
		$b mount -t 9p -o $plan9,cache=none out /root/out
		$b mount -t 9p -o $plan9,cache=loose,ro modules /root/lib/modules
		$b mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
		$b mount -t bpf bpf /root/sys/fs/bpf
		$b mkdir /root/run/vm
		$b cp /command /busybox /start /root/run/vm
		exec $b switch_root /root /bin/sh /run/vm/start
	END
	cat >"$rd/start" <<-'END'
		export HOME=/root PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
		ip link set lo up
		xargs -0 -a /run/vm/command sh -c 'cd "$0" && "$@" </dev/null; echo $? >/out/.status'
		sync
		/run/vm/busybox poweroff -f
	END
	chmod +x "$rd/init"
	(cd "$rd" && find . | cpio -o -H newc --quiet | gzip -1 >"$rd.gz")
}

# boot RELEASE COMMAND...: runs the command and exits with its status.
boot() {
	release=$1
	shift
	kernel=$cache/$release
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	out=${VM_OUT:-$work/out}
	mkdir -p "$out"
	rm -f "$out/.status"
	make_initrd "$work/initrd" "$@"
	modules=$kernel/lib/modules
	[ -d "$modules" ] || modules=$kernel/usr/lib/modules
	share=local,security_model=none
	# setpriv ends QEMU when this script is killed. The console is a file that tail reads, so that the script waits for
	# QEMU itself, and handles signals at once.
	setpriv --pdeathsig TERM timeout "${VM_TIMEOUT:-1800}" qemu-system-x86_64 \
		-accel tcg,thread=multi -cpu max -m "${VM_MEMORY:-3072}" -smp 2 -nodefaults -no-reboot -display none -serial stdio \
		-kernel "$kernel/boot/vmlinuz-$release" -initrd "$work/initrd.gz" \
		-append "console=ttyS0 quiet panic=-1 mitigations=off" \
		-virtfs "$share,path=/,mount_tag=root,readonly=on,multidevs=remap" \
		-virtfs "$share,path=$modules,mount_tag=modules,readonly=on" \
		-virtfs "$share,path=$out,mount_tag=out" \
		-device virtio-rng-pci </dev/null >"$work/console" 2>&1 &
	qemu=$!
	trap 'kill $qemu 2>/dev/null; wait $qemu; exit 130' INT TERM HUP
	tail -n +1 -s 0.2 -f --pid=$qemu "$work/console" | tr -d '\r' &
	console=$!
	wait $qemu || true
	wait $console
	[ -s "$out/.status" ] || fail "kernel $release ended without running the command to its end"
	exit "$(cat "$out/.status")"
}

[ $# -ge 2 ] || fail "usage: vm.sh SERIES COMMAND..., or vm.sh fetch SERIES..."
if [ "$1" = fetch ]; then
	shift
	for series in "$@"; do fetch "$series"; done
	exit 0
fi
series=$1
shift
fetch "$series"
boot "$(cached "$series")" "$@"
