package status

import (
	"net"
	"net/netip"
	"sync"
)

// maxConns bounds the open connections, each of which costs about 20 KB. A node has
// one or two clients: kubelet and a scraper.
const maxConns = 256

// limited is a listener that has at most maxConns connections open. Serve (health.go) wraps
// one around the health port and the status socket. It closes one of the connections
// for a new one, instead of letting new ones wait: many idle connections must
// not keep kubelet's probe from being answered. It closes the oldest one of the
// source with the most connections, and one from this node itself (kubelet's) only
// if there are no others.
type limited struct {
	net.Listener
	mu     sync.Mutex // guards what follows: connections are closed on other goroutines than accepted
	serial uint64     // of the last connection
	open   map[*conn]struct{}
}

// conn is an open connection; Close removes it from its listener.
type conn struct {
	net.Conn
	of     *limited
	serial uint64       // lower: older
	source netip.Prefix // see sourceOf
	local  bool         // from the address that it is to, so from this node
}

// limit returns a listener that limits the connections of another one, which is TCP, or a
// unix socket: then all connections are local.
func limit(l net.Listener) *limited { return &limited{Listener: l, open: map[*conn]struct{}{}} }

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, of: l}
	from, to := addrOf(accepted.RemoteAddr()), addrOf(accepted.LocalAddr())
	c.local = from == to
	c.source = sourceOf(from, c.local)
	if victim := l.add(c); victim != nil {
		_ = victim.Close() // its client sees the end of the connection
	}
	return c, nil
}

// sourceOf returns what the connections from an address are counted by. With IPv6 that
// is a /64, in which a host may have any number of addresses. This node is in the same
// /64 as others on its link, so a local connection is counted by its address.
func sourceOf(from netip.Addr, local bool) netip.Prefix {
	bits := from.BitLen()
	if !local {
		bits = min(bits, 64)
	}
	source, _ := from.Prefix(bits)
	return source
}

// addrOf returns the IP address of a, the zero Addr if it has none.
func addrOf(a net.Addr) netip.Addr {
	tcp, _ := a.(*net.TCPAddr)
	if tcp == nil {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// add adds a connection, and returns the one to be closed if there are too many now; else
// nil. Its Close removes it.
func (l *limited) add(c *conn) (victim *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serial++
	c.serial = l.serial
	l.open[c] = struct{}{}
	if len(l.open) <= maxConns {
		return nil
	}
	count := map[netip.Prefix]int{}
	for o := range l.open {
		if !o.local { // so that these have 0, the fewest
			count[o.source]++
		}
	}
	for o := range l.open {
		if o != c && (victim == nil || count[o.source] > count[victim.source] ||
			count[o.source] == count[victim.source] && o.serial < victim.serial) {
			victim = o
		}
	}
	return victim
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
