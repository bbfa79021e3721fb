package status

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
)

// Clients that open thousands of connections and send nothing cost a bounded number of connections. A probe from this node
// is answered all the time, and its idle connection and that of a scraper stay. The server has no limits of time: on a busy
// machine, the test may take longer than idleTimeout.
func TestManyConnections(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &counting{Listener: inner}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveOn(ctx, l, &http.Server{Handler: Health(&Board{}, http.NotFoundHandler())}) }()
	defer func() { cancel(); <-ended }()
	scraper := from(t, inner.Addr(), "127.0.0.9")
	ask(t, scraper)
	idle := from(t, inner.Addr(), "127.0.0.1")
	ask(t, idle)
	for i := range 4 * maxConns {
		from(t, inner.Addr(), []string{"127.0.0.2", "127.0.0.3"}[i%2])
		if i%100 == 0 {
			ask(t, from(t, inner.Addr(), "127.0.0.1"))
		}
	}
	ask(t, from(t, inner.Addr(), "127.0.0.1"))
	ask(t, scraper)
	ask(t, idle)
	if most := l.most.Load(); most != maxConns+1 { // one more while it is accepted
		t.Errorf("%d connections were open at once, want %d", most, maxConns+1)
	}
}

// With IPv6, other hosts on the link are in the /64 of this node, and do not close its own connections either.
func TestLocalConnectionsStayWithIPv6(t *testing.T) {
	own := netip.MustParseAddr("fd00::1")
	l := limit(nil)
	local := &conn{local: true, source: sourceOf(own, true)}
	l.add(local)
	for i := range 4 * maxConns {
		other := netip.MustParseAddr(fmt.Sprintf("fd00::%x", i+2))
		victim := l.add(&conn{source: sourceOf(other, false)})
		if (victim != nil) != (i+2 > maxConns) || victim == local {
			t.Fatalf("with %d other connections, %+v is closed", i+1, victim)
		}
		delete(l.open, victim)
	}
}

// counting is a listener that counts its open connections.
type counting struct {
	net.Listener
	open, most atomic.Int64
}

type counted struct {
	net.Conn
	of   *counting
	once sync.Once
}

func (l *counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.most.Store(max(l.most.Load(), l.open.Add(1))) // only one goroutine accepts
	return &counted{Conn: c, of: l}, nil
}

func (c *counted) Close() error {
	c.once.Do(func() { c.of.open.Add(-1) })
	return c.Conn.Close()
}

// from connects from an address of this machine.
func from(t *testing.T, to net.Addr, source string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}).DialContext(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a request over a connection, which must be answered.
func ask(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatalf("%v: %v", c.LocalAddr(), err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%v: no answer: %v", c.LocalAddr(), err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%v: status %d", c.LocalAddr(), resp.StatusCode)
	}
}
