#!/bin/sh
# Runs a command under another kernel: as root on this machine's own files, in a virtual machine of QEMU.
#
#   vm.sh 6.12 COMMAND...   under Debian's kernel 6.12; the exit status is the command's, or 125 if there was none
#   vm.sh fetch 6.1 6.12    downloads kernels that are missing
#   vm.sh fetch FILE.deb    takes a kernel from Debian's package
#   vm.sh choose            prints a series that is here or can be downloaded: 6.12, else 6.1, else new: the latest
#
# The machine's files are mounted read-only under a tmpfs, so that nothing stays of what the command writes, except in
# $VM_OUT, a directory that is /out inside. /run is empty. The working directory is this one, the environment
# a new one. There is no network but loopback. VM_TIMEOUT is the limit in seconds, VM_MEMORY the memory in MB.
#
# QEMU uses KVM where a virtual machine really boots with it. Elsewhere it emulates the processor: what needs the CPU is 10
# to 20 times slower than outside. There is one processor: with two emulated ones, kernels that changed their own code (static
# keys) died of int3, on a machine so busy that QEMU ran one of them late.
#
# Some properties of the processor and the kernel are off because an emulator pays for them: it would translate each
# program again at each start if its addresses were random (starting a program then takes three times as long), and copy
# each byte by itself with "enhanced rep movsb". The kernel does not check its timer at boot: on a busy machine no interrupt
# came within the ten ticks for which it waits, and it stopped there.
#
# There is no cmpxchg16b, because QEMU 7.2 may leave garbage in the flags after it. Where an interrupt came right then, the
# kernel died of a double fault in its allocator of memory.
#
# VM_CACHE (~/.cache/vm) holds a directory for each kernel: Debian's package, unpacked, which is downloaded once. Delete
# it to get the latest release again. It also holds the answer whether KVM boots, in .kvm, until this machine boots again.
set -eu

cache=${VM_CACHE:-${HOME:-/root}/.cache/vm}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH

fail() {
	echo "vm.sh: $*" >&2
	exit 125
}

# latest SERIES: prints the latest of the releases on stdin that are of this series and for ordinary amd64 machines, such
# as 6.1.0-56-amd64 or 6.12.117+deb12-amd64. The series "new" is everything from 6.1 on.
latest() {
	grep -E '^[0-9]+\.[0-9.]+(-[0-9][0-9a-z.]*|\+[a-z]+[0-9]*)?-amd64$' |
		awk -F. -v series="$1" 'series == "new" ? $1 > 6 || $1 == 6 && $2 >= 1 : $1 "." $2 == series' | sort -V | tail -n 1
}

cached() {
	[ ! -d "$cache" ] || find "$cache" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | latest "$1"
}

offered() {
	! command -v apt-cache >/dev/null || apt-cache pkgnames linux-image- | sed 's/^linux-image-//' | latest "$1"
}

# choose: prints the first of the series 6.12, 6.1 and new that is here, or else that can be downloaded.
choose() {
	for from in cached offered; do
		for series in 6.12 6.1 new; do
			[ -z "$($from $series)" ] || break 2
		done
	done
	echo $series
}

# download SERIES: downloads the package of the latest release into the working directory.
download() {
	release=$(offered "$1")
	[ -n "$release" ] || return 1
	echo "vm.sh: downloading linux-image-$release" >&2
	apt-get -qq -o APT::Sandbox::User=root download "linux-image-$release" >&2
}

# add FILE: unpacks a kernel from its package. The working directory is that of fetch.
add() {
	release=$(dpkg-deb -f "$1" Package | sed 's/^linux-image-//')
	[ -n "$(echo "$release" | latest new)" ] || fail "$1 is not a package linux-image-*-amd64 of Linux 6.1 or later"
	mkdir "$release"
	dpkg-deb -x "$1" "$release"
	# Releases of Debian differ in where modules are, and where depmod and modprobe look for them.
	mkdir -p "$release/lib" "$release/usr/lib"
	[ -e "$release/lib/modules" ] || ln -s ../usr/lib/modules "$release/lib/modules"
	[ -e "$release/usr/lib/modules" ] || ln -s ../../lib/modules "$release/usr/lib/modules"
	depmod -b "$release" "$release"
	[ -d "$cache/$release" ] || mv "$release" "$cache"
}

# fetch SERIES or FILE: unpacks a kernel, unless there is one of this series. It downloads the series.
fetch() {
	case $1 in
	*.deb) file=$(realpath "$1") ;;
	*) file='' && [ -z "$(cached "$1")" ] || return 0 ;;
	esac
	mkdir -p "$cache"
	(
		flock 9
		work=$(mktemp -d "$cache/.new.XXXXXX")
		trap 'rm -rf "$work"' EXIT
		cd "$work"
		if [ -z "$file" ]; then
			[ -z "$(cached "$1")" ] || exit 0
			# The lists of packages may be missing, or older than the archive.
			download "$1" || { apt-get -qq update </dev/null >&2 && download "$1"; } ||
				fail "no kernel $1: none is in $cache, and apt-get cannot download one (no network, or not Debian).
Take the package linux-image-<release>-amd64 that https://packages.debian.org/linux-image-amd64 depends on, and run
dist/vm.sh fetch linux-image-<release>-amd64_<version>_amd64.deb"
			file=$(echo ./*.deb)
		fi
		add "$file"
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

# pack DIRECTORY: writes DIRECTORY.gz, an initrd.
pack() {
	(cd "$1" && find . | cpio -o -H newc --quiet | gzip -1 >"$1.gz")
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
	echo "$status" >"$rd/status"
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
		$b cp /command /busybox /start /status /root/run/vm
		exec $b switch_root /root /bin/sh /run/vm/start
	END
	cat >"$rd/start" <<-'END'
		export HOME=/root PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
		ip link set lo up
		xargs -0 -a /run/vm/command sh -c 'cd "$0" && "$@" </dev/null; echo $? >"/out/$(cat /run/vm/status)"'
		sync
		/run/vm/busybox poweroff -f
	END
	chmod +x "$rd/init"
	pack "$rd"
}

# kvm_boots: reports whether KVM boots $kernel and runs a program there, within five seconds. /dev/kvm alone proves
# nothing: inside some virtual machines, KVM exists and QEMU cannot set a register, or the kernel dies while it unpacks
# itself. The answer holds until this machine boots again or QEMU changes.
kvm_boots() {
	[ -w /dev/kvm ] || return 1
	asked="$(cat /proc/sys/kernel/random/boot_id) $(qemu-system-x86_64 --version | head -n 1)"
	if [ "$(head -n 1 "$cache/.kvm" 2>/dev/null)" != "$asked" ]; then
		mkdir "$work/kvm"
		cp "$(command -v busybox)" "$work/kvm/busybox"
		printf '#!/busybox sh\n/busybox echo init runs\n/busybox poweroff -f\n' >"$work/kvm/init"
		chmod +x "$work/kvm/init"
		pack "$work/kvm"
		timeout 5 qemu-system-x86_64 -accel kvm -cpu host -m 512 -nodefaults -no-reboot -display none -serial stdio \
			-kernel "$kernel/boot/vmlinuz-$release" -initrd "$work/kvm.gz" \
			-append "console=ttyS0 quiet panic=-1" </dev/null >"$work/kvm.log" 2>&1 || true
		answer=yes
		if ! grep -q 'init runs' "$work/kvm.log"; then
			answer=no
			echo "vm.sh: KVM does not boot here, emulating the processor: $(head -n 1 "$work/kvm.log")" >&2
		fi
		printf '%s\n%s\n' "$asked" $answer >"$work/kvm.answer"
		mv "$work/kvm.answer" "$cache/.kvm"
	fi
	[ "$(tail -n 1 "$cache/.kvm")" = yes ]
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
	status=.status-$(basename "$work") # several machines may have the same $out
	make_initrd "$work/initrd" "$@"
	modules=$(realpath "$kernel/lib/modules")
	share=local,security_model=none
	if kvm_boots; then
		processor='-accel kvm -cpu host'
		arguments=''
	else
		processor='-accel tcg -cpu max,cx16=off,erms=off,la57=off,smap=off'
		arguments='norandmaps init_on_alloc=0 no_timer_check'
	fi
	: >"$work/console"
	# setpriv ends QEMU when this script is killed. The console is a file that tail reads, so that the script waits for
	# QEMU itself, and handles signals at once. Linux schedules sessions against each other (sched_autogroup), and niceness
	# counts only within one: QEMU gets a session of its own, with the niceness of this script.
	# shellcheck disable=SC2016,SC2086 # $@ is of the inner shell; a list of words
	setpriv --pdeathsig TERM setsid sh -c '[ ! -e /proc/self/autogroup ] || nice >/proc/self/autogroup; exec "$@"' sh timeout "${VM_TIMEOUT:-1800}" qemu-system-x86_64 $processor \
		-m "${VM_MEMORY:-3072}" -smp 1 -nodefaults -no-reboot -display none -serial stdio \
		-kernel "$kernel/boot/vmlinuz-$release" -initrd "$work/initrd.gz" \
		-append "console=ttyS0 quiet panic=-1 mitigations=off $arguments" \
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
	[ -s "$out/$status" ] || fail "kernel $release ended without running the command to its end"
	code=$(cat "$out/$status")
	rm "$out/$status"
	exit "$code"
}

[ "$*" != choose ] || { choose && exit; }
[ $# -ge 2 ] || fail "usage: vm.sh SERIES COMMAND..., vm.sh fetch SERIES..., or vm.sh choose"
if [ "$1" = fetch ]; then
	shift
	for series in "$@"; do fetch "$series"; done
	exit 0
fi
series=$1
shift
fetch "$series"
boot "$(cached "$series")" "$@"
