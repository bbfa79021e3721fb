package rtnetlink

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"flannel/pkg/reconcile"
)

// Notifications says what a Listener receives, and what is to be done about it. Its
// functions are called by the Listener's goroutine.
type Notifications struct {
	Protocol int   // of netlink, such as unix.NETLINK_ROUTE
	Groups   []int // the multicast groups; those that this kernel does not have are omitted
	// Request makes the kernel send what is in no group, such as packets of NFLOG: one message, of which Listen sets the
	// length and the flag NLM_F_ACK. Listen fails if the kernel refuses it. nil: there is none.
	Request Message
	// Buffer is how many bytes may wait to be received before messages are lost; 0: 16 MiB.
	Buffer int
	// Filter drops messages within the kernel, such as WithoutSender; nil: none is dropped.
	Filter []unix.SockFilter
	// Each is called for every message. body, what follows the header, is only valid during the
	// call. An error means that the message was not understood: Lost follows.
	Each func(h Header, body []byte) error
	// Lost is called when messages were lost: the socket's buffer was full (ENOBUFS), the
	// socket failed otherwise, or Each returned an error. What is watched must be read again.
	Lost func(err error)
	// Log receives a warning of an error other than ENOBUFS, and another one each hour while the
	// same error goes on; nil: none.
	Log *slog.Logger
}

// Listener receives notifications of netlink in a goroutine of its own. The driver, IPsec, the
// firewall and the underlay have one each, and the guard has two.
type Listener struct {
	file *os.File        // the socket, for which Go's poller waits, so that Close ends a read
	raw  syscall.RawConn // of file
	// closing is closed by Close, before the file.
	closing chan struct{}
	done    sync.WaitGroup // of the goroutine, which runs receive
}

const (
	// notificationBytes is the size of the buffer for one datagram. The kernel fills at most
	// a few pages.
	notificationBytes = 64 << 10
	// The pauses after a loss limit the CPU time that many changes at once, or a broken socket,
	// cost: Lost may read thousands of entries again. They grow only while receiving fails for
	// another reason than a full buffer.
	firstLossPause = 100 * time.Millisecond
	lastLossPause  = 5 * time.Second
	// repeatLog is after what time a warning about the same error is repeated.
	repeatLog = time.Hour
)

// Listen starts to receive in the network namespace of the calling thread. Every change after
// its return reaches Each, or Lost is called. The caller closes the Listener.
func Listen(n Notifications) (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, n.Protocol)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	l := &Listener{file: os.NewFile(uintptr(fd), "netlink notifications"), closing: make(chan struct{})}
	if l.raw, err = l.file.SyscallConn(); err == nil {
		// To set a deadline fails if Go's poller could not take the socket: then nothing could wait for it.
		err = errors.Join(l.file.SetReadDeadline(time.Time{}), setBuffer(fd, cmp.Or(n.Buffer, receiveBytes)), n.subscribe(fd))
	}
	if err == nil {
		err = l.request(fd, n.Request)
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
	joined := n.Request != nil // without a group, only a Request makes the kernel send something
	for _, g := range n.Groups {
		err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g)
		if err != nil && err != unix.EINVAL { // EINVAL: the kernel is older than the group
			return err
		}
		joined = joined || err == nil
	}
	if !joined {
		return unix.EINVAL // nothing would be received
	}
	return nil
}

// request sends a request, if there is one, and returns the kernel's answer, which waits in the socket once the kernel has
// taken the message.
func (l *Listener) request(fd int, m Message) error {
	if m == nil {
		return nil
	}
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint16(m[6:], binary.NativeEndian.Uint16(m[6:])|unix.NLM_F_ACK) // nothing else says that it is done
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buf, answered, answer := make([]byte, notificationBytes), false, refusal{}
	for !answered { // what was requested may come first
		size, err := l.read(buf)
		if err == nil {
			err = messages(buf[:size], func(h Header, body []byte) error {
				if h.Kind == unix.NLMSG_ERROR {
					answered, answer = true, parseRefusal(h, body)
				}
				return nil
			})
		}
		if err != nil {
			return err
		}
	}
	if answer.errno != 0 {
		return answer
	}
	return nil
}

// attach sets the filter of a socket; without instructions, it removes the filter.
func attach(fd int, filter []unix.SockFilter) error {
	if len(filter) == 0 {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
		if err == unix.ENOENT { // there was none
			return nil
		}
		return os.NewSyscallError("SO_DETACH_FILTER", err)
	}
	if len(filter) > math.MaxUint16 { // the length would be cut
		return fmt.Errorf("filter of %d instructions: %w", len(filter), unix.EINVAL)
	}
	program := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return os.NewSyscallError("SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, program))
}

// SetFilter replaces the filter; nil: no message is dropped any more. After an error, the filter
// is the one before.
func (l *Listener) SetFilter(filter []unix.SockFilter) error {
	return l.control(func(fd int) error { return attach(fd, filter) })
}

// control calls f with the socket, and returns its error; if the socket is closed, it only returns an error.
func (l *Listener) control(f func(fd int) error) (err error) {
	if closed := l.raw.Control(func(fd uintptr) { err = f(int(fd)) }); closed != nil {
		return closed
	}
	return err
}

// setBuffer sets how many bytes may wait to be received. More than the system's limit
// (net.core.rmem_max) needs NET_ADMIN in the initial user namespace; without it, the limit is set.
func setBuffer(fd, bytes int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bytes)
}

// Close ends the receiving, and returns when no function of Notifications runs any more.
func (l *Listener) Close() error {
	close(l.closing)
	err := l.file.Close()
	l.done.Wait()
	return err
}

// receive is the goroutine, until Close.
func (l *Listener) receive(n Notifications) {
	buf := make([]byte, notificationBytes)
	problem := reconcile.Once{Repeat: repeatLog} // is told only errors: one success does not end a problem
	loss := reconcile.Backoff{First: firstLossPause, Last: lastLossPause}
	for {
		size, err := l.read(buf)
		select {
		case <-l.closing:
			return
		default:
		}
		broken := err != nil && !errors.Is(err, unix.ENOBUFS) // the socket itself, and not Each
		if err == nil {
			err = messages(buf[:size], n.Each)
		}
		if err == nil {
			continue
		}
		if errors.Is(err, unix.ENOBUFS) {
			l.empty(buf)
		} else if n.Log != nil && problem.Due(err, time.Now()) {
			n.Log.Warn("receiving notifications of netlink failed, so that some may be lost", "protocol", n.Protocol, "error", err)
		}
		// Clear makes the next pause the first one again. Next is the end of the last pause: a broken socket that has
		// worked for less than lastLossPause since then counts as broken all the time.
		if !broken || time.Since(loss.Next()) > lastLossPause {
			loss.Clear()
		}
		n.Lost(err)
		loss.Fail(err)
		reconcile.Wait(context.Background(), loss.Next(), l.closing)
	}
}

// empty discards what waits in the socket. After the first message that had no space, the
// kernel drops all further ones without another ENOBUFS, until a receive has found the queue
// empty. So Lost must come after that: a change that is made once Lost has read again is
// received, or causes another ENOBUFS.
func (l *Listener) empty(buf []byte) {
	_ = l.raw.Control(func(fd uintptr) { // an error means that it is closed, which receive finds next
		for full := true; full; {
			_, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			full = err == nil || err == unix.EINTR || err == unix.ENOBUFS
		}
	})
}

// read waits for a datagram. The size is 0 if another process sent it, and not the kernel.
func (l *Listener) read(buf []byte) (size int, err error) {
	var from unix.Sockaddr
	failed := l.raw.Read(func(fd uintptr) bool {
		for size, from, err = unix.Recvfrom(int(fd), buf, 0); err == unix.EINTR; {
			size, from, err = unix.Recvfrom(int(fd), buf, 0)
		}
		return err != unix.EAGAIN // false: wait until there is something to read, and call this again
	})
	if failed != nil { // it did not wait: the file is closed, or Go's poller has an error
		err = failed
	}
	if err != nil {
		return 0, fmt.Errorf("receive from the kernel: %w", err)
	}
	if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
		return 0, nil
	}
	return size, nil
}
