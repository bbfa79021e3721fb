package guard

import (
	"errors"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// conn is a connection to nftables that survives failed system calls: the answers to a
// request that were not read would be taken for those to the next one.
type conn struct {
	*nftables.Conn
	socket *netlink.Conn
}

// bufferBytes is what one transaction may take, and the answers to it: several KB for each
// rule. Only what is needed is used.
const bufferBytes = 64 << 20

func open() (*conn, error) {
	c := &conn{}
	var err error
	c.Conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(s *netlink.Conn) error {
		c.socket = s
		return errors.Join(s.SetReadBuffer(bufferBytes), s.SetWriteBuffer(bufferBytes))
	}))
	return c, err
}

// drain discards answers that were not read. Call it after an error.
func (c *conn) drain() {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return // it is closed
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
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
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
