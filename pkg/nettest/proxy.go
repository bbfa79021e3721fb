package nettest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards TCP connections and can fall silent, or be slow, as a network can.
type Proxy struct {
	to    string
	l     net.Listener
	delay time.Duration

	mu    sync.Mutex
	turn  *sync.Cond
	hole  bool
	age   int // how often the hole was opened or closed
	ended bool
	conns map[net.Conn]bool
}

// NewProxy listens on a loopback port and forwards to the address to; each direction takes delay. It ends with the test.
func NewProxy(t testing.TB, to string, delay time.Duration) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{to: to, l: l, delay: delay, conns: map[net.Conn]bool{}}
	p.turn = sync.NewCond(&p.mu)
	go p.accept()
	t.Cleanup(p.close)
	return p
}

// Addr is where the proxy listens, as host:port.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// BlackHole(true) makes the proxy swallow everything, on connections old and new, without closing one. After
// BlackHole(false) new connections get through; those that were caught stay silent, as real ones do when their peer's
// next retransmission is far away.
func (p *Proxy) BlackHole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = on
	p.age++
	p.turn.Broadcast()
}

func (p *Proxy) close() {
	p.l.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for c := range p.conns {
		c.Close()
	}
	p.turn.Broadcast()
}

func (p *Proxy) accept() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		go p.serve(in, p.keep(in))
	}
}

// keep notes a connection, to close it in the end, and returns its age.
func (p *Proxy) keep(c net.Conn) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	if p.ended {
		c.Close()
	}
	return p.age
}

func (p *Proxy) serve(in net.Conn, age int) {
	defer in.Close()
	if !p.pass(age) {
		return
	}
	out, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer out.Close()
	p.keep(out)
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			p.pump(way[0], way[1], age)
			done <- struct{}{}
		}()
	}
	<-done
}

// pass tells whether a connection of that age may go on; one that was caught in a hole waits for the end.
func (p *Proxy) pass(age int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for (p.hole || age != p.age) && !p.ended {
		p.turn.Wait()
	}
	return !p.ended
}

// pump copies, each piece after the delay; pieces do not wait for each other.
func (p *Proxy) pump(from, to net.Conn, age int) {
	type piece struct {
		data []byte
		due  time.Time
	}
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			if n > 0 {
				pieces <- piece{buf[:n], time.Now().Add(p.delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for x := range pieces {
		time.Sleep(time.Until(x.due))
		if !p.pass(age) {
			break
		}
		if _, err := to.Write(x.data); err != nil {
			break
		}
	}
	from.Close()
	for range pieces { // lets the reader end
	}
}
