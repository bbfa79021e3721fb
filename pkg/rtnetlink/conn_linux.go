// Package rtnetlink speaks rtnetlink(7) where the netlink library does not: many messages in one system call, each with
// its own answer, lists that are whole, and notifications without those of our own writes. It knows no kind of message.
package rtnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"flannel/pkg/reconcile"
)

// Conn is an rtnetlink socket that sends many messages in one system call and tells their errors apart.
type Conn struct {
	mu  sync.Mutex
	fd  int
	seq uint32
	buf []byte  // what is received
	out Message // what is sent
	// left: the rest of an answer that was given up may still come.
	left bool
}

const (
	// batchBytes is how much is sent at once: far below the default send buffer (208 KiB), where a larger one gains
	// nothing any more.
	batchBytes = 64 << 10
	// receiveBytes leaves room for the errors of a whole batch, and for the notifications of a storm of changes.
	receiveBytes = 16 << 20
	// Tries is how often an interrupted dump is read again before we give up until the next pass.
	Tries = 10
)

// Dial opens a socket in the network namespace of the calling thread and joins groups. limit is for SetLimit.
func Dial(limit time.Duration, groups ...int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	c := &Conn{fd: fd, buf: make([]byte, 256<<10)}
	if err := c.prepare(limit, groups); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a netlink socket: %w", err), unix.Close(fd))
	}
	return c, nil
}

func (c *Conn) prepare(limit time.Duration, groups []int) error {
	if err := unix.Bind(c.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	// A larger buffer than the system's limit takes NET_ADMIN in the first user namespace; without, the default must do.
	if unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBytes) != nil {
		if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBytes); err != nil {
			return err
		}
	}
	// Kernels before 4.20 know neither; then errors have no text and dumps are not filtered.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK, unix.NETLINK_GET_STRICT_CHK} {
		if err := unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, option, 1); err != nil && err != unix.ENOPROTOOPT {
			return err
		}
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil && err != unix.EINVAL {
			return err // EINVAL: an older kernel has no such group, and so nothing to tell
		}
	}
	return c.SetLimit(limit)
}

// SetLimit sets how long a Receive waits that begins afterwards.
func (c *Conn) SetLimit(limit time.Duration) error {
	timeout := unix.NsecToTimeval(limit.Nanoseconds())
	return unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)
}

// Close closes the socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Ignore makes the kernel drop, before they wake anybody, the notifications of what another Conn writes. Who writes
// knows from the answers what is there now.
func (c *Conn) Ignore(other *Conn) error {
	name, err := unix.Getsockname(other.fd)
	if err != nil {
		return fmt.Errorf("netlink socket's name: %w", err)
	}
	port := name.(*unix.SockaddrNetlink).Pid
	// A filter reads words in the order of the network.
	swapped := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))
	const portOfMessage = 12 // nlmsg_pid
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: portOfMessage},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: swapped, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
	}
	err = unix.SetsockoptSockFprog(c.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	if err != nil {
		return fmt.Errorf("filter a netlink socket: %w", err)
	}
	return nil
}

// refusal is the kernel's no: its errno, and its reason where it gives one.
type refusal struct {
	errno unix.Errno
	text  string
}

func (r refusal) Error() string {
	if r.text == "" {
		return r.errno.Error()
	}
	return fmt.Sprintf("%v (%s)", r.errno, r.text)
}

func (r refusal) Unwrap() error { return r.errno }

// Batch sends n messages in as few calls as sensible and returns one error for each, or nil if there is none. write
// appends the i-th to b; it is called once for each, in order.
func (c *Conn) Batch(n int, write func(b Message, i int) Message) (errs []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drain()
	fail := func(i int, err error) {
		if errs == nil {
			errs = make([]error, n)
		}
		errs[i] = err
	}
	for start := 0; start < n; {
		end, last := start, 0
		c.out = c.out[:0]
		for ; end < n && len(c.out) < batchBytes; end++ {
			last = len(c.out)
			c.out = c.finish(write(c.out, end), last)
		}
		flags := binary.NativeEndian.Uint16(c.out[last+6:])
		binary.NativeEndian.PutUint16(c.out[last+6:], flags|unix.NLM_F_ACK)
		c.send(c.out, end-start, func(i int, err error) { fail(start+i, err) })
		start = end
	}
	return errs
}

// finish sets length and sequence number of the message that begins at start.
func (c *Conn) finish(b Message, start int) Message {
	c.seq++
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	binary.NativeEndian.PutUint32(b[start+8:], c.seq)
	return b
}

// send sends one batch of n messages, finished just now. The kernel works through it before sendmsg returns; it
// answers every message that failed, and the last one, which alone asks for it.
func (c *Conn) send(out Message, n int, failed func(i int, err error)) {
	first := c.seq + 1 - uint32(n)
	fail := func(err error) {
		for i := range n {
			failed(i, reconcile.Unknown(err)) // what was done is not known
		}
	}
	if err := unix.Sendto(c.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		fail(fmt.Errorf("send to the kernel: %w", err))
		return
	}
	for done := false; !done; {
		err := c.Receive(func(h Header, body []byte) error {
			if h.Kind != unix.NLMSG_ERROR || h.Seq < first || h.Seq > c.seq {
				return nil // the rest of an answer that was given up
			}
			if r := parseRefusal(h, body); r.errno != 0 {
				failed(int(h.Seq-first), r)
			}
			done = done || h.Seq == c.seq
			return nil
		})
		if err != nil {
			c.left = true
			fail(err)
			return
		}
	}
}

// Dump asks for a whole table and hands every entry to each; reset is called before each try, since a table that
// changes while it is read is read again.
func (c *Conn) Dump(kind uint16, body []byte, filter func(Message) Message, reset func(), each func(body []byte) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	for range Tries {
		c.drain()
		reset()
		m := Message(nil).Begin(kind, unix.NLM_F_DUMP, body)
		if filter != nil {
			m = filter(m)
		}
		err = c.dumpOnce(m, each)
		// EBUSY: a dump that was given up is still under way.
		if c.left = c.left || errors.Is(err, unix.EBUSY); err == nil || !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return fmt.Errorf("%w: the table changed during each of %d readings", err, Tries)
}

// drain takes what is left of an answer that was given up. The kernel dumps a table only as far as it is received, and
// refuses to begin another dump meanwhile.
func (c *Conn) drain() {
	for c.left {
		_, _, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_DONTWAIT)
		c.left = err == nil || err == unix.EINTR
	}
}

func (c *Conn) dumpOnce(m Message, each func([]byte) error) error {
	if err := unix.Sendto(c.fd, c.finish(m, 0), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to the kernel: %w", err)
	}
	torn, done := false, false
	var failed error
	for !done {
		err := c.Receive(func(h Header, body []byte) error {
			if h.Seq != c.seq {
				return nil
			}
			torn = torn || h.Flags&unix.NLM_F_DUMP_INTR != 0
			switch h.Kind {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				done = true
				if r := parseRefusal(h, body); r.errno != 0 {
					failed = r
				}
			default:
				if failed == nil {
					failed = each(body)
				}
			}
			return nil
		})
		if err != nil {
			c.left = true
			return err
		}
	}
	if failed == nil && torn {
		return unix.EINTR
	}
	return failed
}

// Header is struct nlmsghdr without the length.
type Header struct {
	Kind, Flags uint16
	Seq         uint32
}

// Receive reads once from the socket and hands over each message.
func (c *Conn) Receive(each func(h Header, body []byte) error) error {
	n, from, err := unix.Recvfrom(c.fd, c.buf, 0)
	for err == unix.EINTR {
		n, from, err = unix.Recvfrom(c.fd, c.buf, 0)
	}
	if err != nil {
		return fmt.Errorf("receive from the kernel: %w", err)
	}
	if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
		return nil // not from the kernel: another process may send to us, and is not believed
	}
	return messages(c.buf[:n], each)
}

// Rouse makes a receive that waits return, so that closing need not wait for its time limit: the kernel acknowledges a
// message that does nothing. Where it does not, the limit serves.
func (c *Conn) Rouse() {
	m := Message(nil).Begin(unix.NLMSG_NOOP, unix.NLM_F_ACK, nil)
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	_ = unix.Sendto(c.fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}
