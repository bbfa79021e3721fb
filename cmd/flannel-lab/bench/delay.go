package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// measureDelay measures a start with etcd some way off. The kernel may lack netem, so a proxy holds the bytes back.
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
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			go func() { _ = b.forward(ctx, c, delay) }() // what breaks, the daemon notices
		}
	}()
	s, err := b.launch(ctx, func(s *seen) bool { return s.full(backend, peers) }, "-etcd-endpoints=http://"+l.Addr().String())
	if err != nil {
		return nil, err
	}
	return map[string]float64{delayKey(delay): milliseconds(max(s.ready, s.inStep))}, nil
}

func delayKey(d time.Duration) string { return fmt.Sprintf("away_%v_ms", d) }

// forward joins a connection to etcd. The handshake of TCP, which the proxy answers at once, is made up for: the first
// bytes wait a round trip longer.
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

// late copies with a delay, however much is on the way; the first bytes wait some more.
func late(w net.Conn, r io.Reader, delay, first time.Duration) error {
	type chunk struct {
		data []byte
		due  time.Time
	}
	way := make(chan chunk, 1<<12)
	done := make(chan error, 1)
	go func() {
		var err error
		for c := range way {
			waitUntil(c.due)
			if err == nil {
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
			way <- chunk{data[:n], due.Add(delay)}
		}
		if err != nil {
			close(way)
			return <-done
		}
	}
}

func waitUntil(t time.Time) {
	if d := time.Until(t); d > 0 {
		time.Sleep(d)
	}
}
