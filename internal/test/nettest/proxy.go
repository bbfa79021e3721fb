package nettest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards TCP connections. It can delay data, or drop it without closing
// connections, as a network can.
//
// Each call of BlackHole increments age, and a connection belongs to the age at
// which it was accepted. It may forward data only while the proxy still has
// that age and is not a black hole. So BlackHole(true) silences all
// connections, and after BlackHole(false) only new ones work.
type Proxy struct {
	to    string // address of the server
	l     net.Listener
	delay time.Duration // for each direction

	mu     sync.Mutex
	change *sync.Cond // hole, age or ended has changed
	hole   bool       // drop all data
	age    int        // number of calls of BlackHole
	ended  bool
	conns  map[net.Conn]bool // all connections, to close them in the end
}

// NewProxy listens on a loopback port and forwards to the address to, with a
// delay in each direction. It ends with the test.
func NewProxy(t testing.TB, to string, delay time.Duration) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{to: to, l: l, delay: delay, conns: map[net.Conn]bool{}}
	p.change = sync.NewCond(&p.mu)
	go p.accept()
	t.Cleanup(p.close)
	return p
}

// Addr returns the address of the proxy, as host:port.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// BlackHole(true) makes the proxy drop all data, on existing and new
// connections, without closing any. After BlackHole(false), new connections
// work. Connections from before stay silent, like real ones whose peer waits
// long until its next retransmission.
func (p *Proxy) BlackHole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = on
	p.age++
	p.change.Broadcast()
}

// close ends the proxy and all of its connections, when the test ends.
func (p *Proxy) close() {
	p.l.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for c := range p.conns {
		c.Close()
	}
	p.change.Broadcast()
}

// accept serves each new connection in a goroutine, until close.
func (p *Proxy) accept() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		go p.serve(in, p.register(in))
	}
}

// register adds a connection to conns and returns the current age.
func (p *Proxy) register(c net.Conn) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	if p.ended {
		c.Close()
	}
	return p.age
}

// serve forwards a connection, whose age is given, until one of its ends closes it.
func (p *Proxy) serve(in net.Conn, age int) {
	defer in.Close()
	if !p.waitPass(age) {
		return
	}
	out, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer out.Close()
	p.register(out)                // for close; its age is that of in
	done := make(chan struct{}, 2) // room for both, because only one is waited for
	for _, direction := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			p.copy(direction[0], direction[1], age)
			done <- struct{}{}
		}()
	}
	<-done
}

// waitPass reports whether a connection of an age may forward data. For one
// that was affected by BlackHole it blocks until the proxy ends.
func (p *Proxy) waitPass(age int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for (p.hole || age != p.age) && !p.ended {
		p.change.Wait()
	}
	return !p.ended
}

// copy copies data in one direction until an end is closed. Every chunk is delayed,
// independently of the others: a goroutine reads, and this one writes.
func (p *Proxy) copy(from, to net.Conn, age int) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	chunks := make(chan chunk, 1024)
	go func() {
		defer close(chunks)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			if n > 0 {
				chunks <- chunk{buf[:n], time.Now().Add(p.delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for c := range chunks {
		time.Sleep(time.Until(c.due)) // the delay of the network
		if !p.waitPass(age) {
			break
		}
		if _, err := to.Write(c.data); err != nil {
			break
		}
	}
	from.Close()       // ends the reader
	for range chunks { // the reader may wait to send
	}
}
