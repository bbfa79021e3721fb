package rtnetlink

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Notifications says what a Listener receives, and what is to be done about it. Its
// functions are called by the Listener's goroutine.
type Notifications struct {
	Protocol int   // of netlink, such as unix.NETLINK_ROUTE
	Groups   []int // the multicast groups; those that this kernel does not have are omitted
	// Filter drops messages within the kernel, such as WithoutSender; nil: none is dropped.
	Filter []unix.SockFilter
	// Each is called for every message. body is only valid during the call. An error means
	// that the message was not understood.
	Each func(h Header, body []byte) error
	// Lost is called when messages were lost: the socket's buffer was full (ENOBUFS), or
	// Each returned an error. What is watched must be read again.
	Lost func(err error)
}

// Listener receives notifications of netlink in a goroutine of its own.
type Listener struct {
	file *os.File
	raw  syscall.RawConn
	done sync.WaitGroup
}

const (
	// notificationBytes is the size of the buffer for one datagram. The kernel fills at most
	// a few pages.
	notificationBytes = 64 << 10
	// lossPause limits the CPU time that a storm of changes, or a broken socket, costs.
	lossPause = 100 * time.Millisecond
)

// Listen starts to receive in the network namespace of the calling thread. No change after
// its return is missed. The caller closes the Listener.
func Listen(n Notifications) (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, n.Protocol)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	l := &Listener{file: os.NewFile(uintptr(fd), "netlink notifications")}
	if l.raw, err = l.file.SyscallConn(); err == nil {
		// Without a place in Go's poller the socket has no deadlines, and nothing could wait for it.
		err = errors.Join(l.file.SetReadDeadline(time.Time{}), setBuffer(fd, receiveBytes), n.subscribe(fd))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to notifications of netlink: %w", err), l.file.Close())
	}
	l.done.Go(func() { l.receive(n) })
	return l, nil
}

// subscribe joins the groups after it has set the filter, so that the filter sees all messages.
func (n Notifications) subscribe(fd int) error {
	if len(n.Filter) > 0 {
		if err := attach(fd, n.Filter); err != nil {
			return err
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for _, g := range n.Groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil && err != unix.EINVAL {
			return err // EINVAL: the kernel is older than the group
		}
	}
	return nil
}

func attach(fd int, filter []unix.SockFilter) error {
	program := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return os.NewSyscallError("SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, program))
}

// SetFilter replaces the filter.
func (l *Listener) SetFilter(filter []unix.SockFilter) (err error) {
	return errors.Join(l.raw.Control(func(fd uintptr) { err = attach(int(fd), filter) }), err)
}

// setBuffer sets how many bytes may wait to be received. More than the system's limit needs
// NET_ADMIN in the initial user namespace.
func setBuffer(fd, bytes int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bytes)
}

// SetBuffer sets how many bytes may wait to be received, before messages are lost.
func (l *Listener) SetBuffer(bytes int) (err error) {
	return errors.Join(l.raw.Control(func(fd uintptr) { err = setBuffer(int(fd), bytes) }), err)
}

// Close ends the receiving, and returns when no function of Notifications runs any more.
func (l *Listener) Close() error {
	err := l.file.Close()
	l.done.Wait()
	return err
}

func (l *Listener) receive(n Notifications) {
	buf := make([]byte, notificationBytes)
	for {
		size, err := l.read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err == nil {
			err = messages(buf[:size], n.Each)
		}
		if err != nil {
			n.Lost(err)
			time.Sleep(lossPause)
		}
	}
}

// read waits for a datagram. The size is 0 if another process sent it, and not the kernel.
func (l *Listener) read(buf []byte) (size int, err error) {
	var from unix.Sockaddr
	closed := l.raw.Read(func(fd uintptr) bool {
		for size, from, err = unix.Recvfrom(int(fd), buf, 0); err == unix.EINTR; {
			size, from, err = unix.Recvfrom(int(fd), buf, 0)
		}
		return err != unix.EAGAIN
	})
	if closed != nil { // it has no other errors, and is not os.ErrClosed
		return 0, os.ErrClosed
	}
	if err != nil {
		return 0, fmt.Errorf("receive from the kernel: %w", err)
	}
	if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
		return 0, nil
	}
	return size, nil
}
