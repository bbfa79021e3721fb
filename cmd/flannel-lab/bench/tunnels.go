package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// tunnelBackends are those whose entries the kernel does not notify (ipip: in part), so
// that their figures are the daemon's own.
var tunnelBackends = []string{"ipip", "wireguard", "udp"}

var tunnelRows = []row{
	{"", "start on an empty kernel", "", ""},
	{"ready_ms", "until READY=1, ms", "", ""},
	{"ready_per_peer_us", "the same per peer, µs", "", ""},
	{"subnet_env_ms", "until subnet.env, ms", "100", ""},
	{"first_cpu_s", "CPU of the daemon, s", "", ""},
	{"first_rss_mb", "peak RSS, MB", "60", ""},
	{"", "a pass that compares all entries and changes none", "", ""},
	{"pass_ms", "duration, ms", "60", ""},
	{"", "peers changed one by one", "", ""},
	{"change_pass_ms", "a pass, ms", "", ""},
	{"change_cpu_ms", "CPU per change, ms", "", ""},
	{"change_writes", "entries written per change", "", ""},
	{"", "restart, nothing changed", "", ""},
	{"restart_same_ms", "until READY=1, ms", "", ""},
	{"restart_same_writes", "entries written", "", ""},
}

// measureTunnel measures a tunnel among many peers, several times, each in a lab of its own.
func measureTunnel(ctx context.Context, o Options, backend string, peers int) (column, error) {
	c := column{Store: "etcd", Backend: backend, Peers: peers}
	var rounds []map[string]float64
	for i := range o.rounds {
		fmt.Fprintf(os.Stderr, "%s, %d peers: %d of %d\n", backend, peers, i+1, o.rounds)
		figures, err := tunnelRound(ctx, o, backend, peers)
		if err != nil {
			return c, err
		}
		rounds = append(rounds, figures)
	}
	c.Figures = best(rounds)
	return c, nil
}

func tunnelRound(ctx context.Context, o Options, backend string, peers int) (map[string]float64, error) {
	b, err := newBench(ctx, o, backend, peers)
	if err != nil {
		return nil, err
	}
	defer b.close()
	s, err := b.launch(ctx, func(*seen) bool { return true })
	if err != nil {
		return nil, fmt.Errorf("start: %w; end of the log of the daemon: %s", err, logEnd(b.node.Log()))
	}
	b.figures["ready_ms"], b.figures["subnet_env_ms"] = milliseconds(s.ready), milliseconds(s.env)
	b.figures["ready_per_peer_us"] = 1000 * milliseconds(s.ready) / float64(peers)
	b.waitIdle()
	own, _, err := cpu(b.node.PID())
	if err != nil {
		return nil, err
	}
	b.figures["first_cpu_s"] = own.Seconds()
	if err := b.peak("first_rss_mb"); err != nil {
		return nil, err
	}
	if err := errors.Join(b.idlePass(ctx), b.changes(ctx)); err != nil {
		return nil, err
	}
	if err := b.restartWith(ctx, "same", nil, nil, nil); err != nil {
		return nil, fmt.Errorf("restart: %w; end of the log of the daemon: %s", err, logEnd(b.node.Log()))
	}
	return b.figures, nil
}

// changes gives one peer after another another address.
func (b *bench) changes(ctx context.Context) error {
	read := func() (seconds, passes, writes float64, used time.Duration, err error) {
		b.waitIdle()
		for name, v := range map[string]*float64{"flanneld_sync_seconds_sum": &seconds, "flanneld_sync_seconds_count": &passes, "flanneld_changes_total": &writes} {
			var ok bool
			if *v, ok = b.metric(ctx, name); !ok {
				return 0, 0, 0, 0, fmt.Errorf("the daemon has no metric %s", name)
			}
		}
		used, _, err = cpu(b.node.PID())
		return seconds, passes, writes, used, err
	}
	seconds, passes, writes, used, err := read()
	if err != nil {
		return err
	}
	changed := b.peers[:min(b.options.samples, len(b.peers))]
	for _, p := range changed {
		p.version++
		if _, err := b.etcd.Put(ctx, p.key(), p.value(b.backend), clientv3.WithLease(b.day)); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond) // so that each is a pass of its own
	}
	seconds2, passes2, writes2, used2, err := read()
	if err != nil {
		return err
	}
	if passes2 == passes {
		return fmt.Errorf("%d peers were changed, but no pass was made", len(changed))
	}
	n := float64(len(changed))
	b.figures["change_pass_ms"] = 1000 * (seconds2 - seconds) / (passes2 - passes)
	b.figures["change_cpu_ms"] = milliseconds(used2-used) / n
	b.figures["change_writes"] = (writes2 - writes) / n
	return nil
}
