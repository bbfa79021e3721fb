// Package rtnetlink adds to the netlink library what that lacks: many messages in
// one system call, with an error for each, lists without gaps, and notifications
// without those of our own writes. The callers write and parse the message bodies.
// Both Conn and Listener also speak other protocols of netlink, such as netfilter and XFRM.
// TablesGeneration reads whether nf_tables has changed.
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

// Conn is a netlink socket for requests. Its methods are for any goroutine. The Linux
// driver has one, whose answers say what it wrote; a Listener beside it gets what others
// write. The guard reads its sets by another one.
type Conn struct {
	mu  sync.Mutex // of all but fd; held during a whole request with its answer
	fd  int
	seq uint32  // sequence number of the last message sent; an answer has that of its message
	buf []byte  // for receiving one datagram
	out Message // for sending
	// unread means that an answer was not read to its end. Its rest may still arrive: drain reads it.
	unread bool
}

const (
	// batchBytes is after how many bytes a batch is sent. It is far below the default send
	// buffer (208 KiB); a larger batch is not faster.
	batchBytes = 64 << 10
	// receiveBytes is the socket's receive buffer. It has space for the errors of a whole batch;
	// in a Listener, which uses it too, for many notifications at once (a Conn subscribes to
	// none). Without NET_ADMIN in the initial user namespace, net.core.rmem_max limits it.
	receiveBytes = 16 << 20
	// datagramBytes is the size of Conn.buf. It has space for one datagram: an error, or a part
	// of a list, for which the kernel takes up to 32 KiB as a rule.
	datagramBytes = 256 << 10
)

// answerTimeout is how long the methods of Conn wait for each datagram of an answer, which comes at once unless the
// kernel hangs.
const answerTimeout = 5 * time.Second

// Dial opens a socket in the network namespace of the calling thread. protocol is one of netlink's, such as
// unix.NETLINK_ROUTE. The caller closes the Conn.
func Dial(protocol int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	c := &Conn{fd: fd, buf: make([]byte, datagramBytes)}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a netlink socket: %w", err), unix.Close(fd))
	}
	return c, nil
}

// prepare binds the socket and sets its options.
func (c *Conn) prepare() error {
	if err := unix.Bind(c.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	if err := setBuffer(c.fd, receiveBytes); err != nil {
		return err
	}
	// Kernels before 4.20 lack some of these: errors then have no text, and dumps are
	// not filtered.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK, unix.NETLINK_GET_STRICT_CHK} {
		if err := unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, option, 1); err != nil && err != unix.ENOPROTOOPT {
			return err
		}
	}
	timeout := unix.NsecToTimeval(answerTimeout.Nanoseconds()) // after which receive returns EAGAIN
	return unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)
}

// Close closes the socket. No other method may run then.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Port returns the port ID of the socket, for WithoutSender. The writer knows from the
// answers what it wrote, so its watcher need not hear of it.
func (c *Conn) Port() (uint32, error) {
	name, err := unix.Getsockname(c.fd)
	if err != nil {
		return 0, fmt.Errorf("read the name of a netlink socket: %w", err)
	}
	return name.(*unix.SockaddrNetlink).Pid, nil
}

// WithoutNeighbours returns the beginning of a filter (of classic BPF). It drops neighbours and FDB
// entries, unless they are of one of the devices with these indexes. For all other notifications, the
// filter goes on behind this part, where something must follow, such as WithoutSender.
func WithoutNeighbours(devices []int) (filter []unix.SockFilter) {
	const kind, index = 4, unix.NLMSG_HDRLEN + 4 // offsets of nlmsg_type and ndm_ifindex
	// Jt and Jf are how many instructions to skip if the comparison is true or false, at most
	// 255. A jump to the end of the filter may be longer, and is an instruction of its own.
	const jump, ifEqual = unix.BPF_JMP | unix.BPF_JA, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	filter = []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: kind},
		{Code: ifEqual, K: swapped16(unix.RTM_NEWNEIGH), Jt: 2},
		{Code: ifEqual, K: swapped16(unix.RTM_DELNEIGH), Jt: 1},
		{Code: jump, K: uint32(2*len(devices) + 2)}, // no neighbour: over the load, two for each device, and the last
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: index},
	}
	for i, device := range devices {
		filter = append(filter, unix.SockFilter{Code: ifEqual, K: swapped32(uint32(device)), Jf: 1},
			unix.SockFilter{Code: jump, K: uint32(2*(len(devices)-i) - 1)}) // to the end
	}
	return append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}) // pass 0 bytes: drop
}

// swapped16 and swapped32 return what a filter, which reads in network byte order, reads of a
// value in the byte order of the host.
func swapped16(v uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
}

func swapped32(v uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, v))
}

// WithoutSender returns a filter for a netlink socket that drops the notifications of what
// the socket with this port ID (nlmsg_pid) changes.
func WithoutSender(port uint32) []unix.SockFilter {
	const portOfMessage = 12 // offset of nlmsg_pid: of who made the change
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: portOfMessage},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: swapped32(port), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},         // drop
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1}, // pass
	}
}

// refusal is the kernel's error for one message.
type refusal struct {
	errno unix.Errno // 0: it was no error
	text  string     // the kernel's explanation; may be empty
}

func (r refusal) Error() string {
	if r.text == "" {
		return r.errno.Error()
	}
	return fmt.Sprintf("%v (%s)", r.errno, r.text)
}

func (r refusal) Unwrap() error { return r.errno }

// Batch sends n messages with few system calls. It returns nil if all succeeded, or an error for
// each message: nil, the kernel's refusal, which wraps its errno, or an error that
// reconcile.IsUnknown if there was no answer, so that the change may have been made. write appends
// message i to b; it is called once for each message, in order.
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
		end, last := start, 0 // index of the message after the last one, and where the last one begins in out
		c.out = c.out[:0]
		for ; end < n && len(c.out) < batchBytes; end++ {
			last = len(c.out)
			c.out = c.finish(write(c.out, end), last)
		}
		flags := binary.NativeEndian.Uint16(c.out[last+6:]) // nlmsg_flags, at offset 6
		binary.NativeEndian.PutUint16(c.out[last+6:], flags|unix.NLM_F_ACK)
		c.send(c.out, end-start, func(i int, err error) { fail(start+i, err) })
		start = end
	}
	return errs
}

// finish sets the length and sequence number of the message that starts at start.
func (c *Conn) finish(b Message, start int) Message {
	c.seq++
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	binary.NativeEndian.PutUint32(b[start+8:], c.seq)
	return b
}

// send sends n messages, which finish has just completed, and calls failed for each that did not
// succeed. The kernel processes them before sendto returns. It answers every message that failed,
// and the last one, which requests an acknowledgement. Example with n = 3 and the sequence
// numbers 7, 8 and 9, of which 9 requests the acknowledgement:
//
//	NLMSG_ERROR, 8, -EEXIST   failed(1, EEXIST)
//	NLMSG_ERROR, 9, 0         done; 7 and 9 succeeded
func (c *Conn) send(out Message, n int, failed func(i int, err error)) {
	first := c.seq + 1 - uint32(n)
	fail := func(err error) {
		for i := range n {
			failed(i, reconcile.Unknown(err)) // the kernel may have processed it
		}
	}
	if err := unix.Sendto(c.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		fail(fmt.Errorf("send to the kernel: %w", err))
		return
	}
	for done := false; !done; {
		err := c.receive(func(h Header, body []byte) error {
			if h.Kind != unix.NLMSG_ERROR || h.Seq < first || h.Seq > c.seq {
				return nil // the rest of an earlier answer
			}
			if r := parseRefusal(h, body); r.errno != 0 {
				failed(int(h.Seq-first), r)
			}
			done = done || h.Seq == c.seq
			return nil
		})
		if err != nil {
			c.unread = true
			fail(err)
			return
		}
	}
}

// Dump sends a request with NLM_F_DUMP, which lists a table, and calls each for
// every entry. kind is the request's nlmsg_type, and body the struct of this type, with attributes
// that filter the list. If the table changes during the dump, it is repeated; reset is called
// before each try, and forgets the entries of the one before. An error of each ends the calls
// of each, and is returned. After an error, what was listed may be incomplete.
func (c *Conn) Dump(kind uint16, body Message, reset func(), each func(body []byte) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	request := Message(nil).Begin(kind, unix.NLM_F_DUMP, body)
	return Repeat(func() error {
		c.drain()
		reset()
		err := c.dumpOnce(request, each)
		c.unread = c.unread || errors.Is(err, unix.EBUSY) // the kernel still has an earlier dump: drain, and try again
		return err
	}, unix.EINTR, unix.EBUSY)
}

// drain reads the rest of an answer that was not read to its end, as far as it is there. The kernel
// continues a dump only as the socket is read, and refuses another one meanwhile (EBUSY).
func (c *Conn) drain() {
	for c.unread {
		_, _, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_DONTWAIT)
		c.unread = err == nil || err == unix.EINTR
	}
}

// dumpOnce is one try of Dump. It returns EINTR if the table changed meanwhile. After an error of each,
// it reads the rest without calling each.
func (c *Conn) dumpOnce(request Message, each func([]byte) error) error {
	if err := unix.Sendto(c.fd, c.finish(request, 0), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to the kernel: %w", err)
	}
	interrupted, done := false, false
	var failed error
	for !done {
		err := c.receive(func(h Header, body []byte) error {
			if h.Seq != c.seq { // the rest of an earlier answer
				return nil
			}
			interrupted = interrupted || h.Flags&unix.NLM_F_DUMP_INTR != 0
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
			c.unread = true
			return err
		}
	}
	if failed == nil && interrupted {
		return unix.EINTR
	}
	return failed
}

// Header is struct nlmsghdr without the length.
type Header struct {
	Kind, Flags uint16 // nlmsg_type, such as unix.RTM_NEWROUTE, and nlmsg_flags
	Seq         uint32 // nlmsg_seq: the number of the request that the message answers
}

// receive reads a datagram and calls each for every message in it, up to one for which each returns an
// error, which receive returns. It waits for answerTimeout at most.
func (c *Conn) receive(each func(h Header, body []byte) error) error {
	n, from, err := unix.Recvfrom(c.fd, c.buf, 0)
	for err == unix.EINTR {
		n, from, err = unix.Recvfrom(c.fd, c.buf, 0)
	}
	if err != nil {
		return fmt.Errorf("receive from the kernel: %w", err)
	}
	if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
		return nil // another process sent it
	}
	return messages(c.buf[:n], each)
}
