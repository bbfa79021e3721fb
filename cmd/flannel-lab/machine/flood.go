package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Flood is a running stream of pings to one address. End it with Stop. It has two
// goroutines: send ends when stop is closed, receive when conn is closed. The first
// ping has number 0.
type Flood struct {
	conn     *net.IPConn
	to       netip.Addr
	id       int // ID of the echo requests: answers with another one belong to other streams
	interval time.Duration
	stop     chan struct{}
	wg       sync.WaitGroup // of send

	mu     sync.Mutex      // guards the following, which send and receive change
	sent   []time.Time     // when each ping was sent, by number
	answer []time.Duration // round trip of each ping, by number; 0: no answer yet
	last   time.Time       // when the last answer came
	old    int             // all pings before this number are answered, or were sent longer ago than answerWithin
	err    error           // of the last ping that could not be sent
}

// While maxWaiting pings of the last seconds, answerWithin, are unanswered, only one is sent every slowInterval. More
// would fill the queues of a machine that does not keep up, which then drops packets although nothing is wrong with the
// network.
const (
	maxWaiting   = 20
	answerWithin = 5 * time.Second
	patience     = time.Minute // after which a ping without an answer is lost; on a machine that does not keep up, answers are late
	slowInterval = 200 * time.Millisecond
)

// FloodResult summarizes a Flood.
type FloodResult struct {
	Sent, Lost int
	Outage     time.Duration // longest time in which every ping was lost
	Began      time.Time     // when the first ping of Outage was sent; zero without one
	Worst      time.Duration // longest round trip
	FirstLost  time.Time     // when the first lost ping was sent; zero without one
	LastLost   time.Time     // likewise the last one
}

// String returns the counts of pings.
func (r FloodResult) String() string {
	return fmt.Sprintf("%d sent, %d lost", r.Sent, r.Lost)
}

// ErrNoAnswer is wrapped by the errors of Ping and Reach when nothing answered in time.
var ErrNoAnswer = errors.New("no answer")

// Ping sends one echo request, and waits up to a minute for the answer: one that is
// late on a busy machine is no loss.
func (ns Namespaces) Ping(ctx context.Context, to netip.Addr) error {
	_, err := ns.untilAnswer(ctx, to, time.Hour, patience) // an hour: no second request
	return err
}

// Answers reports whether an address answers one echo request within five seconds. It
// is for addresses that must not answer; see Ping for others.
func (ns Namespaces) Answers(ctx context.Context, to netip.Addr) bool {
	_, err := ns.untilAnswer(ctx, to, time.Hour, answerWithin)
	return err == nil
}

// Reach pings an address every 5 ms until it answers, and returns how long that
// took.
func (ns Namespaces) Reach(ctx context.Context, to netip.Addr, timeout time.Duration) (time.Duration, error) {
	start := time.Now()
	_, err := ns.untilAnswer(ctx, to, 5*time.Millisecond, timeout)
	return time.Since(start), err
}

// untilAnswer pings every interval until the first answer or the timeout. It
// returns the result of these pings, and an error if nothing answered.
func (ns Namespaces) untilAnswer(ctx context.Context, to netip.Addr, interval, timeout time.Duration) (FloodResult, error) {
	f, err := ns.flood(to, interval, 0) // 0: the next pings do not wait for the first answer
	if err != nil {
		return FloodResult{}, err
	}
	_, err = Until(ctx, timeout, func(context.Context) error { // looks about every 2 ms
		if f.answered() == 0 {
			return fmt.Errorf("%w from %s", ErrNoAnswer, to)
		}
		return nil
	})
	r, stopErr := f.end(0) // 0: without waiting for the other answers
	return r, errors.Join(err, stopErr)
}

// Flood sends rate pings a second to an address until Stop, or fewer if answers are late. (When ping(8) is
// stopped, it counts a ping that is still in flight as lost. It also does not
// report how long an outage lasted.)
//
// It returns when the first ping is answered, so that a fault that follows interrupts the stream, or else after
// answerWithin. Without the wait, the kernel may also drop some of the first pings although nothing is wrong: it takes packets
// from some devices (WireGuard's) in batches of up to eight, and of a batch of pings that all belong to one new connection,
// connection tracking lets only one pass.
func (ns Namespaces) Flood(to netip.Addr, rate int) (*Flood, error) {
	return ns.flood(to, time.Second/time.Duration(rate), answerWithin)
}

// flood starts a Flood, whose second ping waits for the first answer, but no longer than alone.
func (ns Namespaces) flood(to netip.Addr, interval, alone time.Duration) (*Flood, error) {
	f := &Flood{to: to, interval: interval, stop: make(chan struct{})}
	err := ns.Do(func() (err error) {
		f.conn, err = listenEcho(ns.From, to.Is6())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ping %s: %w", to, err)
	}
	f.id = int(time.Now().UnixNano()>>10)&0xffff ^ os.Getpid()&0xffff // probably unique in the namespace; the field has 16 bits
	go f.receive()
	f.sendOne()
	for deadline := time.Now().Add(alone); f.answered() == 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	f.wg.Add(1)
	go f.send()
	return f, nil
}

// listenEcho opens a socket that receives only echo replies and has a large
// buffer: on a busy machine, replies that wait until this process runs must not
// be dropped and count as lost.
func listenEcho(from netip.Addr, v6 bool) (*net.IPConn, error) {
	network := "ip4:icmp"
	if v6 {
		network = "ip6:ipv6-icmp"
	}
	var local *net.IPAddr
	if from.IsValid() {
		local = &net.IPAddr{IP: from.AsSlice()}
	}
	c, err := net.ListenIP(network, local)
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	const bufferSize = 16 << 20 // bytes
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferSize)
	})
	if v6 {
		var filter ipv6.ICMPFilter
		filter.SetAll(true)
		filter.Accept(ipv6.ICMPTypeEchoReply)
		err = errors.Join(err, ipv6.NewPacketConn(c).SetICMPFilter(&filter))
	} else {
		var filter ipv4.ICMPFilter
		filter.SetAll(true)
		filter.Accept(ipv4.ICMPTypeEchoReply)
		err = errors.Join(err, ipv4.NewPacketConn(c).SetICMPFilter(&filter))
	}
	if err = errors.Join(err, controlErr); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (f *Flood) send() {
	defer f.wg.Done()
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-tick.C:
		}
		if !f.crowded() {
			f.sendOne()
		}
	}
}

// crowded reports whether the next ping has to wait, because maxWaiting are unanswered.
func (f *Flood) crowded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.old < len(f.sent) && (f.answer[f.old] != 0 || time.Since(f.sent[f.old]) > answerWithin) {
		f.old++
	}
	waiting := 0
	for _, a := range f.answer[f.old:] {
		if a == 0 {
			waiting++
		}
	}
	return waiting >= maxWaiting && time.Since(f.sent[len(f.sent)-1]) < slowInterval
}

// sendOne sends the next ping. It counts one that could not be sent as sent and lost:
// for the receiver there is no difference.
func (f *Flood) sendOne() {
	f.mu.Lock()
	n := len(f.sent)
	f.sent = append(f.sent, time.Now())
	f.answer = append(f.answer, 0)
	f.mu.Unlock()
	echo := &icmp.Echo{ID: f.id, Seq: n & 0xffff, Data: []byte(fmt.Sprintf("%08x", n))}
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: echo}
	if f.to.Is6() {
		m.Type = ipv6.ICMPTypeEchoRequest // the kernel fills in the checksum
	}
	b, err := m.Marshal(nil)
	if err == nil {
		_, err = f.conn.WriteTo(b, &net.IPAddr{IP: f.to.AsSlice()})
	}
	if err != nil {
		f.mu.Lock()
		f.err = err
		f.mu.Unlock()
	}
}

// receive records answers until the socket is closed. The number of a ping is
// in its data, because Seq has only 16 bits.
func (f *Flood) receive() {
	proto, reply := 1, icmp.Type(ipv4.ICMPTypeEchoReply) // IP protocol numbers: ICMP is 1, ICMPv6 58
	if f.to.Is6() {
		proto, reply = 58, ipv6.ICMPTypeEchoReply
	}
	buf := make([]byte, 256)
	for {
		n, _, err := f.conn.ReadFrom(buf)
		now := time.Now()
		if err != nil {
			return // closed by end
		}
		m, err := icmp.ParseMessage(proto, buf[:n])
		if err != nil || m.Type != reply {
			continue
		}
		echo, ok := m.Body.(*icmp.Echo)
		var number int
		if !ok || echo.ID != f.id {
			continue
		}
		if _, err := fmt.Sscanf(string(echo.Data), "%08x", &number); err != nil {
			continue
		}
		f.mu.Lock()
		if number < len(f.sent) && f.answer[number] == 0 {
			f.answer[number] = now.Sub(f.sent[number])
			f.last = now
		}
		f.mu.Unlock()
	}
}

// answered returns the number of answers so far.
func (f *Flood) answered() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.answer {
		if a != 0 {
			n++
		}
	}
	return n
}

// outstanding reports whether an answer may still come. Packets of one stream keep their order but for moments, so when the
// last ping is answered and no answer comes for answerWithin, those without an answer are lost.
func (f *Flood) outstanding() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Contains(f.answer, 0) {
		return false
	}
	return f.answer[len(f.answer)-1] == 0 || time.Since(f.last) < answerWithin
}

// Stop ends the stream, waits up to a minute for outstanding answers, or answerWithin if the last ping was answered, and
// returns the counts. Lost pings are no error. If nothing was answered, the error is
// that of the last ping that the kernel refused to send. It must be called once.
func (f *Flood) Stop() (FloodResult, error) { return f.end(patience) }

// end stops sending, waits up to timeout for outstanding answers, and counts.
func (f *Flood) end(timeout time.Duration) (FloodResult, error) {
	close(f.stop)
	f.wg.Wait()
	for deadline := time.Now().Add(timeout); f.outstanding() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	closeErr := f.conn.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	r := count(f.sent, f.answer, f.interval)
	if r.Lost == r.Sent && f.err != nil {
		return r, f.err
	}
	return r, closeErr
}

// count computes the result. Consecutive lost pings are one outage.
func count(sent []time.Time, answer []time.Duration, interval time.Duration) FloodResult {
	r := FloodResult{Sent: len(sent)}
	first := -1 // number of the first lost ping of the current outage; -1: the last ping was answered
	for i, a := range answer {
		if a != 0 {
			first = -1
			r.Worst = max(r.Worst, a)
			continue
		}
		if first < 0 {
			first = i
		}
		if r.Lost++; r.Lost == 1 {
			r.FirstLost = sent[i]
		}
		r.LastLost = sent[i]
		// Measured by the clock: on a busy machine fewer pings are sent than
		// there are intervals.
		if outage := sent[i].Sub(sent[first]) + interval; outage > r.Outage {
			r.Outage, r.Began = outage, sent[first]
		}
	}
	return r
}
