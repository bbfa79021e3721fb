package guard

import (
	"encoding/binary"
	"errors"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
)

// conn is a connection to nftables that survives failed requests: drain discards answers that were
// not read, which would be taken for those to the next request. It is for one goroutine at a time.
type conn struct {
	*nftables.Conn                   // queues changes until Flush, which sends them as one transaction
	socket         *netlink.Conn     // that of the Conn
	out            rtnetlink.Message // of transact, kept to be used again
}

// bufferBytes is what one transaction may take, and the answers to it: several KB for each
// rule. The kernel allocates only what is in use.
const bufferBytes = 64 << 20

// open connects in the network namespace of the calling thread.
func open() (*conn, error) {
	c := &conn{}
	var err error
	c.Conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(s *netlink.Conn) error {
		c.socket = s
		return errors.Join(s.SetReadBuffer(bufferBytes), s.SetWriteBuffer(bufferBytes))
	}))
	return c, err
}

// transact sends n messages, each of which write appends by beginChange, as one transaction,
// and reads the answers. If the kernel refuses one of them, it changes nothing. The library
// for nftables would allocate a hundred bytes for each byte of the key of an element.
func (c *conn) transact(n int, write func(m rtnetlink.Message, i int) rtnetlink.Message) error {
	c.out = appendEdge(c.out[:0], unix.NFNL_MSG_BATCH_BEGIN)
	for i := range n {
		start := len(c.out)
		c.out = finish(write(c.out, i), start)
	}
	c.out = appendEdge(c.out, unix.NFNL_MSG_BATCH_END)
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(fd uintptr) (done bool) {
		sent = unix.Sendto(int(fd), c.out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return !errors.Is(sent, unix.EAGAIN) && !errors.Is(sent, unix.EINTR) // false: wait, and send again
	})
	if err = errors.Join(err, sent); err != nil {
		return err
	}
	for range n { // an answer to each message, since beginChange asks for it
		if _, err := c.socket.Receive(); err != nil {
			c.drain() // there may be an answer to each message, or this one to all
			return err
		}
	}
	return nil
}

// appendEdge appends the message that begins or ends a transaction.
func appendEdge(m rtnetlink.Message, kind uint16) rtnetlink.Message {
	start := len(m)
	return finish(m.Begin(kind, 0, []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}), start)
}

// finish sets the length of the last message, which begins at start.
func finish(m rtnetlink.Message, start int) rtnetlink.Message {
	binary.NativeEndian.PutUint32(m[start:], uint32(len(m)-start)) // nlmsg_len
	return m
}

// beginChange appends a message without attributes, which changes something of the table. kind is
// one of nf_tables, and flags are added to the one that asks for an answer.
func beginChange(m rtnetlink.Message, t *nftables.Table, kind, flags uint16) rtnetlink.Message {
	return m.Begin(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_ACK|flags, []byte{byte(t.Family), unix.NFNETLINK_V0, 0, 0})
}

// drain discards answers that were not read. Call it after an error.
func (c *conn) drain() {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return // the socket is closed
	}
	_ = raw.Control(func(fd uintptr) {
		for buffer := make([]byte, 1<<16); ; {
			_, _, err := unix.Recvfrom(int(fd), buffer, unix.MSG_DONTWAIT)
			if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS) {
				return // usually EAGAIN
			}
		}
	})
}

// counters reads the counters of the table. Its methods are for any goroutine.
type counters struct {
	mu   sync.Mutex
	conn *conn
}

// read returns the numbers of packets by the names of the counters; none if there is no
// table.
func (c *counters) read(table *nftables.Table) (packets map[string]uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	objects, err := c.conn.GetObjects(table)
	if err != nil {
		c.conn.drain()
		return nil, err
	}
	packets = map[string]uint64{}
	for _, o := range objects {
		if counter, ok := o.(*nftables.CounterObj); ok {
			packets[counter.Name] = counter.Packets
		}
	}
	return packets, nil
}
