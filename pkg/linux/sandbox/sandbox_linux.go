// Package sandbox drops permissions that a process does not need: flanneld install-cni,
// which installs programs that run as root, gives up the network.
package sandbox

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// abi says how the kernel tells a filter which system call is made.
type abi struct {
	audit      uint32 // the value of the field arch
	socketcall uint32 // number of an older system call that includes socket; 0: there is none
	highest    uint32 // higher numbers are of a second table of the same calls (x32), and denied; 0: there is none
}

var abis = map[string]abi{
	"amd64":   {audit: unix.AUDIT_ARCH_X86_64, highest: 0x3fffffff},
	"386":     {audit: unix.AUDIT_ARCH_I386, socketcall: 102},
	"arm64":   {audit: unix.AUDIT_ARCH_AARCH64},
	"arm":     {audit: unix.AUDIT_ARCH_ARM},
	"riscv64": {audit: unix.AUDIT_ARCH_RISCV64},
	"ppc64le": {audit: unix.AUDIT_ARCH_PPC64LE, socketcall: 102},
	"s390x":   {audit: unix.AUDIT_ARCH_S390X, socketcall: 102},
}

// Offsets in struct seccomp_data (linux/seccomp.h), which the filter reads: of the fields
// nr and arch.
const (
	offsetNumber = 0
	offsetArch   = 4
)

// NoNetwork makes this process and its children unable to open sockets of any kind:
// attempts fail with EPERM. This cannot be undone and needs no privilege. Open sockets
// continue to work. If the system does not support it, the error wraps
// errors.ErrUnsupported or is the kernel's; then everything is as before, except that
// no_new_privs may be set.
//
// It installs a seccomp filter in all threads. The filter also denies io_uring, which
// can open sockets without the system call socket.
func NoNetwork() error {
	a, known := abis[runtime.GOARCH]
	if !known {
		return fmt.Errorf("filter system calls on %s: %w", runtime.GOARCH, errors.ErrUnsupported)
	}
	filter := program(a)
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// An unprivileged process may install a filter only with no_new_privs, so that it
	// cannot confuse a setuid program. The flag is the thread's. Seccomp copies flag and
	// filter from the calling thread to all others (TSYNC).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	switch {
	case errno != 0:
		return fmt.Errorf("install seccomp filter: %w", errno)
	case thread != 0: // TSYNC returns the ID of the first thread that it could not change
		return fmt.Errorf("install seccomp filter: thread %d has another filter: %w", thread, unix.ESRCH)
	}
	return nil
}

// program returns a filter that denies the system calls that open sockets and allows
// all others. It denies all calls of another architecture, such as those of 32 bits on
// amd64, where the numbers mean other calls. Jt and Jf are how many instructions a
// comparison that is true or false skips.
func program(a abi) []unix.SockFilter {
	numbers := []uint32{unix.SYS_SOCKET, unix.SYS_IO_URING_SETUP}
	if a.socketcall != 0 {
		numbers = append(numbers, a.socketcall)
	}
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		ret  = unix.BPF_RET | unix.BPF_K
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		jgt  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	)
	deny := unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	p := []unix.SockFilter{
		{Code: load, K: offsetArch}, {Code: jeq, K: a.audit, Jt: 1}, deny,
		{Code: load, K: offsetNumber},
	}
	if a.highest != 0 {
		p = append(p, unix.SockFilter{Code: jgt, K: a.highest, Jf: 1}, deny)
	}
	for _, n := range numbers {
		p = append(p, unix.SockFilter{Code: jeq, K: n, Jf: 1}, deny)
	}
	return append(p, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
}
