package subnet

import (
	"errors"
	"net"
	"sync"
)

// Conns keeps the open connections of a client, to drop all of them at once: for
// Manager.Redial. The clients of both stores have one; it is safe for concurrent use. The
// zero Conns is empty and ready to use.
type Conns struct {
	mu   sync.Mutex
	open map[*kept]struct{}
}

// kept is a connection that Close removes from the Conns.
type kept struct {
	net.Conn
	in *Conns
}

// Keep adds a connection and returns it wrapped: closing the wrapped one removes it.
func (c *Conns) Keep(conn net.Conn) net.Conn {
	k := &kept{conn, c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[*kept]struct{}{}
	}
	c.open[k] = struct{}{}
	return k
}

// Read implements net.Conn.
func (k *kept) Read(p []byte) (int, error) {
	n, err := k.Conn.Read(p)
	return n, withoutSource(err)
}

// Write implements net.Conn.
func (k *kept) Write(p []byte) (int, error) {
	n, err := k.Conn.Write(p)
	return n, withoutSource(err)
}

// withoutSource removes the local address from an error. Its port differs for each
// connection, but the same problem must have the same text: the log recognizes what was
// reported already by its text.
func withoutSource(err error) error {
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return &net.OpError{Op: e.Op, Net: e.Net, Addr: e.Addr, Err: e.Err}
	}
	return err
}

// Close implements net.Conn.
func (k *kept) Close() error {
	k.in.mu.Lock()
	delete(k.in.open, k) // nothing to delete after Drop
	k.in.mu.Unlock()
	return k.Conn.Close()
}

// Drop closes all open connections. Reads and writes that use them fail at once.
func (c *Conns) Drop() {
	c.mu.Lock()
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for k := range open {
		_ = k.Conn.Close() // its user closes it, too, and gets the error
	}
}
