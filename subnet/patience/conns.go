package patience

import (
	"net"
	"sync"
)

// Conns are a client's open connections, so that all can be dropped at once. The zero Conns has none.
type Conns struct {
	mu   sync.Mutex
	open map[*kept]struct{}
}

type kept struct {
	net.Conn
	in *Conns
}

// Keep notes a connection until it is closed, by the returned one or by Drop.
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

// Close implements net.Conn.
func (k *kept) Close() error {
	k.in.mu.Lock()
	delete(k.in.open, k)
	k.in.mu.Unlock()
	return k.Conn.Close()
}

// Drop closes all that are open. Whoever uses one gets an error at once.
func (c *Conns) Drop() {
	c.mu.Lock()
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for k := range open {
		_ = k.Conn.Close() // its user closes it, too, and hears whatever there is to hear
	}
}
