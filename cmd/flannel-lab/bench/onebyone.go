package bench

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// change holds times since just before a change was written to etcd.
type change struct {
	event  time.Duration // until a watch of the bench itself has received the change: the share of etcd and the machine
	kernel time.Duration // until the kernel has the peer's entries, or has them no more
}

// oneByOne adds, changes and removes further peers one by one: those beyond b.peers.
func (b *bench) oneByOne(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Without WithCreatedNotify there would be no response before the first event. The first
	// response says that the watch exists.
	watch := b.etcd.Watch(ctx, prefix+"/subnets/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-watch
	peers := peersFrom(len(b.peers), b.options.samples)
	before, _, err := cpu(b.node.PID())
	if err != nil {
		return err
	}
	for _, kind := range []string{"add", "change", "remove"} {
		var total, kernel, etcd []float64
		for _, p := range peers {
			if kind == "change" {
				p.version++
			}
			c, err := b.measureOne(ctx, kind, p, watch)
			if err != nil {
				return fmt.Errorf("%s a peer: %w", kind, err)
			}
			total, etcd = append(total, milliseconds(c.kernel)), append(etcd, milliseconds(c.event))
			// The difference is the daemon's and the kernel's share: load on the machine delays
			// both. max, because the daemon's event may arrive before ours.
			kernel = append(kernel, milliseconds(max(0, c.kernel-c.event)))
			time.Sleep(5 * time.Millisecond) // so that each change is an event of its own
		}
		b.figures[kind+"_p50_ms"], b.figures[kind+"_p99_ms"] = quantile(total, 0.5), quantile(total, 0.99)
		b.figures[kind+"_etcd_p99_ms"] = quantile(etcd, 0.99)
		b.figures[kind+"_event_p50_ms"], b.figures[kind+"_event_p99_ms"] = quantile(kernel, 0.5), quantile(kernel, 0.99)
	}
	b.waitIdle()
	after, _, err := cpu(b.node.PID())
	b.figures["change_cpu_ms"] = milliseconds(after-before) / float64(3*len(peers))
	return err
}

// measureOne writes one change (kind "add", "change" or "remove") of p to etcd, and waits
// until the kernel has it. watch is read by a goroutine up to the event of this change.
func (b *bench) measureOne(ctx context.Context, kind string, p peer, watch clientv3.WatchChan) (c change, err error) {
	met := func(s *seen) bool { return s.has(b.backend, p) }
	write := func() (err error) {
		_, err = b.etcd.Put(ctx, p.key(), p.value(b.backend), clientv3.WithLease(b.day))
		return err
	}
	if kind == "remove" {
		met = func(s *seen) bool { return s.lacks(p) }
		write = func() (err error) {
			_, err = b.etcd.Delete(ctx, p.key())
			return err
		}
	}
	observed := make(chan time.Time, 1)
	go func() {
		for r := range watch {
			if r.Err() != nil || len(r.Events) > 0 && string(r.Events[0].Kv.Key) == p.key() {
				break
			}
		}
		observed <- time.Now()
	}()
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	wait := b.watch.expect(met)
	began := time.Now()
	if err := write(); err != nil {
		return c, err
	}
	reached, err := wait(limited)
	return change{(<-observed).Sub(began), reached.Sub(began)}, err
}
