package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// TransferResult is the amount of data of a Transfer and its duration.
type TransferResult struct {
	Bytes int64
	Time  time.Duration
}

// Gbit returns the throughput in Gbit/s.
func (t TransferResult) Gbit() float64 { return float64(t.Bytes) * 8 / t.Time.Seconds() / 1e9 }

// Transfer sends over one TCP connection from one machine or pod to another (from, to), to
// the address at of the receiver. It sends for the given time, at least one buffer, and
// checks that the number of bytes received equals that sent. Both ends are goroutines of
// this process. If ctx ends early, there is its error, or none and the result of a shorter
// transfer: TransferResult.Time is how long it took.
func Transfer(ctx context.Context, from, to Namespaces, at netip.Addr, duration time.Duration) (TransferResult, error) {
	l, err := to.Listen("tcp", net.JoinHostPort(at.String(), "0"))
	if err != nil {
		return TransferResult{}, fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(ctx, duration+time.Minute)
	defer cancel()
	start := time.Now()
	received := make(chan int64, 1)
	go func() {
		n := int64(-1) // no connection
		defer func() { received <- n }()
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		n = receive(c)
	}()
	sent, err := send(ctx, from, l.Addr().String(), duration)
	if err != nil {
		return TransferResult{}, err
	}
	select {
	case n := <-received:
		if n != sent {
			err = fmt.Errorf("%d bytes were sent and %d arrived", sent, n)
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	return TransferResult{Bytes: sent, Time: time.Since(start)}, err
}

// receive reads until the sender closes the connection, and returns the number of bytes.
func receive(c net.Conn) (n int64) {
	buf := make([]byte, 256<<10)
	for {
		got, err := c.Read(buf)
		n += int64(got)
		if err != nil {
			return n // Transfer notices what is missing
		}
	}
}

// send connects, writes for the duration, and returns the number of bytes. It ends
// early, without an error, if ctx ends.
func send(ctx context.Context, from Namespaces, addr string, duration time.Duration) (n int64, err error) {
	c, err := from.Dial(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	deadline, _ := ctx.Deadline() // Transfer has set one
	if err := c.SetDeadline(deadline); err != nil {
		return 0, err
	}
	buf := make([]byte, 256<<10)
	for end := time.Now().Add(duration); ; {
		sent, err := c.Write(buf)
		n += int64(sent)
		if err != nil {
			return n, fmt.Errorf("after %d bytes: %w", n, err)
		}
		if !time.Now().Before(end) || ctx.Err() != nil {
			return n, nil
		}
	}
}
