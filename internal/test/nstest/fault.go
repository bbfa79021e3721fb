//go:build linux

package nstest

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Faults makes system calls of one thread fail: those that open a file
// descriptor, send, receive, start a program, or change the mode of a path. For each of these calls the
// kernel asks a user-space process what to do (seccomp user notification), so
// the tested code runs unchanged. Another process answers (function answer),
// because the Go runtime may stop all threads of this one while the tested thread
// waits for the answer. It is this program again, started by NewFaults:
//
//	NewFaults → answering process   the file descriptor of the filter, the thread's ID
//	Fail      → answering process   which call fails, and how; the number of calls so far comes back
//	kernel    → answering process   a call; the answer is to carry it out, or its error
type Faults struct {
	t      *testing.T
	socket int // to the answering process; never closed, because calls without an answer would fail

	next         int  // the call that is to fail, as in the last Fail
	ordered, met bool // Fail was to make a call fail; there was such a call
}

// calls are the system calls that can fail.
var calls = []int{
	unix.SYS_SOCKET, unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_PIDFD_OPEN, unix.SYS_PIPE2,
	unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_RECVMSG,
	unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT, unix.SYS_CLONE, unix.SYS_EXECVE, unix.SYS_INOTIFY_INIT1,
	unix.SYS_FCHMODAT,
}

// answering is an environment variable that makes Run answer for the system
// calls of the test that it names.
const answering = "FLANNEL_NSTEST_FAULTS"

// NewFaults binds the calling goroutine, which must be that of a test within
// Run, to its thread permanently. Calls of this thread can then be made to
// fail, but not those of programs that it starts. A test that orders faults fails
// at its end if there never was a call with the number that Fail was given.
func NewFaults(t *testing.T) *Faults {
	t.Helper()
	must := func(what string, err error) {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must("create a pair of sockets", err)
	theirs := os.NewFile(uintptr(pair[1]), "answers")
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), answering+"="+t.Name())
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stderr, os.Stderr, []*os.File{theirs}
	must("start the answering process", cmd.Start())
	must("close its socket", theirs.Close())
	runtime.LockOSThread()
	listener, err := listen()
	must("install the filter", err)
	sent := make(chan error)
	thread := binary.NativeEndian.AppendUint32(nil, uint32(unix.Gettid()))
	go func() { sent <- unix.Sendmsg(pair[0], thread, unix.UnixRights(listener), nil, 0) }() // from another thread
	must("pass the file descriptor of the filter", <-sent)
	must("close the file descriptor of the filter", unix.Close(listener))
	f := &Faults{t: t, socket: pair[0]}
	t.Cleanup(func() {
		if f.Fail(0, 0); f.unmet() && !t.Failed() && !t.Skipped() {
			t.Error("none of the calls that were to fail was made")
		}
	})
	return f
}

// unmet reports whether faults were ordered, and none of them has met a call with its number before the next Fail.
func (f *Faults) unmet() bool { return f.ordered && !f.met }

// Fail makes the n-th call from now on fail with errno; n 0 means none. It
// returns the number of calls since the previous Fail, so that a test can fail each of them
// in turn. It must be called on the goroutine of NewFaults.
func (f *Faults) Fail(n int, errno unix.Errno) (calls int) {
	f.t.Helper()
	var order, count [8]byte
	binary.NativeEndian.PutUint32(order[:], uint32(n))
	binary.NativeEndian.PutUint32(order[4:], uint32(errno))
	_, err := unix.Write(f.socket, order[:])
	if err == nil {
		_, err = unix.Read(f.socket, count[:])
	}
	if err != nil {
		f.t.Fatalf("request a fault: %v", err)
	}
	calls = int(binary.NativeEndian.Uint64(count[:]))
	f.met = f.met || f.next > 0 && calls >= f.next
	f.next, f.ordered = n, f.ordered || n > 0
	return calls
}

// listen installs the filter for the calling thread, and returns the file descriptor from which
// the answering process reads the calls. The filter is a BPF program: load the number of the
// call; if it is one of calls, jump to the last instruction, which asks, else allow it.
func listen() (listener int, err error) {
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // seccomp_data.nr
	for i, call := range calls {
		program = append(program, unix.SockFilter{
			Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(call), Jt: uint8(len(calls) - i),
		})
	}
	program = append(program,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil
}

// notification is struct seccomp_notif: a call that waits for an answer.
type notification struct {
	id         uint64
	pid, flags uint32 // pid: the thread
	nr, arch   uint32
	ip         uint64
	args       [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	errno int32
	flags uint32
}

// answer is the answering process. It answers the kernel for the calls of the thread until the
// other end of the socket is closed, and returns nil then.
func answer() error {
	const socket = 3 // the first of ExtraFiles
	thread, oob := make([]byte, 4), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, thread, oob, 0)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("%d control messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	// seen is the number of calls since the last order of Fail, victim the number of the one that fails.
	listener, seen, victim, errno := fds[0], uint64(0), uint64(0), int32(0)
	for {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}, {Fd: socket, Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && err != unix.EINTR {
			return err
		}
		if ready[1].Revents != 0 {
			var order, count [8]byte
			if n, err := unix.Read(socket, order[:]); n < len(order) {
				return err // nil if it was closed
			}
			binary.NativeEndian.PutUint64(count[:], seen)
			seen, victim = 0, uint64(binary.NativeEndian.Uint32(order[:]))
			errno = int32(binary.NativeEndian.Uint32(order[4:]))
			if _, err := unix.Write(socket, count[:]); err != nil {
				return err
			}
		}
		if ready[0].Revents&unix.POLLIN != 0 {
			var call notification
			if !control(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&call)) {
				continue // the calling thread was killed
			}
			reply := response{id: call.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
			if call.pid != binary.NativeEndian.Uint32(thread) { // of a program that the thread has started
				control(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply))
				continue
			}
			if seen++; seen == victim {
				reply.flags, reply.errno = 0, -errno
			}
			if !control(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply)) {
				seen-- // a signal interrupted the call, which will be repeated
			}
		}
		if ready[0].Revents&unix.POLLHUP != 0 && ready[1].Revents == 0 {
			_, err := unix.Poll(ready[1:], -1) // the filtered thread has ended: wait for the socket
			if err != nil && err != unix.EINTR {
				return err
			}
		}
	}
}

// control calls ioctl and reports whether it succeeded.
func control(fd int, request uint, arg unsafe.Pointer) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg))
	return errno == 0
}
