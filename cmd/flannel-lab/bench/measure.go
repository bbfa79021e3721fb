package bench

import (
	"context"
	"fmt"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// milliseconds converts a duration to a figure.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// waitIdle waits for as long as the daemon usually needs for what the previous step
// caused, before its CPU time is read: longer with more peers, which a pass looks at.
func (b *bench) waitIdle() {
	time.Sleep(300*time.Millisecond + time.Duration(len(b.peers))*20*time.Microsecond)
}

// firstSync measures the start of the daemon on an empty kernel.
func (b *bench) firstSync(ctx context.Context) error {
	s, err := b.launch(ctx, func(s *seen) bool { return s.full(b.backend, len(b.peers)) })
	if err != nil {
		return fmt.Errorf("first sync: %w", err)
	}
	b.figures["first_sync_ms"], b.figures["ready_ms"], b.figures["subnet_env_ms"] = milliseconds(s.synced), milliseconds(s.ready), milliseconds(s.env)
	b.waitIdle()
	own, children, err := cpu(b.node.PID())
	if err != nil {
		return err
	}
	b.figures["first_cpu_s"], b.figures["first_children_s"] = own.Seconds(), children.Seconds()
	if err := b.peak("first_rss_mb"); err != nil {
		return err
	}
	b.figures["first_log_bytes"] = float64(len(b.node.Log()))
	if n, ok := b.metric(ctx, "go_memstats_mallocs_total"); ok {
		b.figures["first_allocs"] = n
	}
	if n, ok := b.metric(ctx, "go_memstats_alloc_bytes_total"); ok {
		b.figures["first_alloc_mb"] = n / (1 << 20)
	}
	return nil
}

// idlePass measures a pass of the daemon's loop that compares all entries and changes
// none. An address that is added to the node and that the daemon does not use triggers it.
// pass_cpu_ms is the CPU time from just before this until the daemon is idle again, pass_ms
// the duration that its metrics report.
func (b *bench) idlePass(ctx context.Context) error {
	before, _, err := cpu(b.node.PID())
	if err != nil {
		return err
	}
	spent, counted := b.metric(ctx, "flanneld_sync_seconds_sum")
	passes, _ := b.metric(ctx, "flanneld_sync_seconds_count")
	if _, err := b.node.Run(ctx, "ip", "address", "add", "172.31.255.253/12", "dev", lab.Uplink); err != nil {
		return err
	}
	b.waitIdle()
	// On a slow machine the pass may not have ended; one that has no such metric is not waited for.
	for end := time.Now().Add(time.Minute); counted && time.Now().Before(end); b.waitIdle() {
		if now, _ := b.metric(ctx, "flanneld_sync_seconds_count"); now > passes {
			break
		}
	}
	after, _, err := cpu(b.node.PID())
	if err != nil {
		return err
	}
	b.figures["pass_cpu_ms"] = milliseconds(after - before)
	if total, ok := b.metric(ctx, "flanneld_sync_seconds_sum"); ok && counted {
		b.figures["pass_ms"] = (total - spent) * 1000
	}
	return nil
}

// idle waits for the duration, and measures how much CPU time the daemon and its children
// take meanwhile, in percent of a core.
func (b *bench) idle(ctx context.Context, duration time.Duration) error {
	b.waitIdle()
	own, children, err := cpu(b.node.PID())
	if err != nil {
		return err
	}
	select {
	case <-time.After(duration):
	case <-ctx.Done():
		return ctx.Err()
	}
	own2, children2, err := cpu(b.node.PID())
	b.figures["idle_cpu_percent"] = 100 * (own2 - own + children2 - children).Seconds() / duration.Seconds()
	return err
}

// restart restarts the daemon with a full kernel, twice. The first time nothing changes
// while it is stopped. The second time 1 % of the peers do: a third of this 1 % is added,
// a third changed and a third removed.
func (b *bench) restart(ctx context.Context) error {
	if err := b.restartWith(ctx, "same", nil, nil, nil); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	third := max(1, len(b.peers)/300)
	added, removed := peersFrom(len(b.peers), third), b.peers[:third]
	changed := make([]peer, third)
	for i, p := range b.peers[third : 2*third] {
		changed[i] = peer{p.number, p.version + 1}
	}
	if err := b.restartWith(ctx, "changed", added, changed, removed); err != nil {
		return fmt.Errorf("restart with changes: %w", err)
	}
	return nil
}

// restartWith changes peers while the daemon is stopped, and measures its start.
func (b *bench) restartWith(ctx context.Context, name string, added, changed, removed []peer) error {
	if _, err := b.node.Stop(ctx); err != nil {
		return err
	}
	if err := writePeers(ctx, b.etcd, b.backend, b.day, append(added, changed...), removed); err != nil {
		return err
	}
	// Called after each notification, so it looks only at the peers that have changed. Without
	// changes it is true at once.
	goal := func(s *seen) bool {
		for _, p := range append(added, changed...) {
			if !s.has(b.backend, p) {
				return false
			}
		}
		for _, p := range removed {
			if !s.lacks(p) {
				return false
			}
		}
		return true
	}
	before := b.watch.writes()
	s, err := b.launch(ctx, goal)
	if err != nil {
		return err
	}
	b.waitIdle()
	b.figures["restart_"+name+"_ms"] = milliseconds(max(s.ready, s.synced)) // synced is about 0 without changes
	b.figures["restart_"+name+"_seen"] = float64(b.watch.writes() - before) // by the kernel; _writes is what the daemon says
	if n, ok := b.metric(ctx, "flanneld_changes_total"); ok {
		b.figures["restart_"+name+"_writes"] = n
	}
	return nil
}
