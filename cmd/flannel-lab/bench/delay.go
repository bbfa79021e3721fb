package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// measureDelay measures a start with a delay between the node and etcd. A proxy
// delays the data, because not every kernel has netem.
func measureDelay(ctx context.Context, o Options, backend string, peers int, delay time.Duration) (map[string]float64, error) {
	b, err := newBench(ctx, o, backend, peers)
	if err != nil {
		return nil, err
	}
	defer b.close()
	l, err := b.lab.Infra.Listen("tcp4", "192.168.100.1:2378")
	if err != nil {
		return nil, fmt.Errorf("listen for the proxy: %w", err)
	}
	defer l.Close()
	// The port is one below that of etcd, and only the daemon under test uses it: the
	// bench itself reaches etcd without a delay.
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			go func() { _ = b.forward(ctx, c, delay) }() // the daemon notices errors
		}
	}()
	s, err := b.launch(ctx, func(s *seen) bool { return s.full(backend, peers) }, "-etcd-endpoints=http://"+l.Addr().String())
	if err != nil {
		return nil, err
	}
	return map[string]float64{delayKey(delay): milliseconds(max(s.ready, s.synced))}, nil
}

// delayKey returns the key of the figure for a one-way delay: "away_500µs_ms".
func delayKey(d time.Duration) string { return fmt.Sprintf("away_%v_ms", d) }

// forward forwards a connection to etcd with a delay in both directions. The
// proxy answers the TCP handshake at once, so the first bytes are delayed by
// another round trip to make up for it.
func (b *bench) forward(ctx context.Context, c net.Conn, delay time.Duration) error {
	defer c.Close()
	to, err := b.lab.Infra.Dial(ctx, "tcp4", "192.168.100.1:2379")
	if err != nil {
		return err
	}
	defer to.Close()
	back := make(chan error, 1)
	go func() { back <- late(c, to, delay, 0) }()
	return errors.Join(late(to, c, delay, 2*delay), <-back)
}

// late copies from r to w. Every byte is delayed, whatever the amount of data
// in flight. The first bytes are delayed by first in addition.
func late(w net.Conn, r io.Reader, delay, first time.Duration) error {
	type chunk struct {
		data []byte
		due  time.Time
	}
	// Room, so that reading goes on while earlier chunks wait, as on a long wire.
	inFlight := make(chan chunk, 1<<12)
	done := make(chan error, 1)
	go func() {
		var err error
		for c := range inFlight {
			waitUntil(c.due)
			if err == nil { // after an error go on receiving, so that the reader never blocks
				_, err = w.Write(c.data)
			}
		}
		done <- errors.Join(err, w.Close())
	}()
	earliest := time.Now().Add(first)
	for {
		data := make([]byte, 64<<10)
		n, err := r.Read(data)
		if due := time.Now(); n > 0 {
			if due.Before(earliest) {
				due = earliest
			}
			inFlight <- chunk{data[:n], due.Add(delay)}
		}
		if err != nil {
			close(inFlight)
			return <-done
		}
	}
}

func waitUntil(t time.Time) {
	if d := time.Until(t); d > 0 {
		time.Sleep(d)
	}
}
