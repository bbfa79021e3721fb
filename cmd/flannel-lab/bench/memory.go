package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// memoryRows are the rows of the table of measureMemory.
var memoryRows = []row{
	{"peak_rss_mb", "peak resident memory, MB", "50", ""},
	{"settled_resident_mb", "resident after --settle, MB", "50", ""},
	{"settled_anonymous_mb", "of it anonymous, MB", "24", ""},
	{"settled_file_mb", "of it of files, MB", "", ""},
	{"", "as the daemon's Go runtime sees it", "", ""},
	{"heap_mb", "live heap, MB", "", ""},
	{"heap_per_peer_b", "the same per peer, bytes", "", ""},
	{"released_mb", "returned to the kernel, MB", "", ""},
	{"first_cpu_s", "CPU of the start, s", "", ""},
	{"settle_cpu_s", "CPU from then until --settle, s", "", ""},
	{"", "--settle after 20,000 leases came and went", "", ""},
	{"churn_peak_mb", "peak resident memory, MB", "", ""},
	{"churn_resident_mb", "resident, MB", "", ""},
	{"churn_anonymous_mb", "of it anonymous, MB", "", ""},
}

// churn is the number of leases that come and go in columns with fewer peers than fewPeers: a
// node with few peers should need as little memory afterwards as before.
const churn, fewPeers = 20_000, 100

// measureMemory measures what a daemon with vxlan and the guard's default mode keeps
// in memory when the start is over.
func measureMemory(ctx context.Context, o Options, peers int) (column, error) {
	c := column{Store: "etcd", Backend: "vxlan", Peers: peers}
	fmt.Fprintf(os.Stderr, "vxlan, %d peers: memory after %v\n", peers, o.settle)
	b, err := newBench(ctx, o, "vxlan", peers)
	if err != nil {
		return c, err
	}
	defer b.close()
	steps := []func(context.Context) error{b.firstSync, b.settled}
	if peers < fewPeers {
		steps = append(steps, b.churned)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return c, fmt.Errorf("%w; end of the log of the daemon: %s", err, logEnd(b.node.Log()))
		}
	}
	c.Figures = b.figures
	return c, nil
}

// settled waits for --settle, and reads the daemon's memory.
func (b *bench) settled(ctx context.Context) error {
	before, _, err := cpu(b.node.PID())
	if err != nil {
		return err
	}
	if err := wait(ctx, b.options.settle); err != nil {
		return err
	}
	after, _, err := cpu(b.node.PID())
	if err != nil {
		return err
	}
	m, err := readMemory(b.node.PID())
	if err != nil {
		return err
	}
	f := b.figures
	f["settle_cpu_s"] = (after - before).Seconds()
	f["peak_rss_mb"], f["settled_resident_mb"], f["settled_anonymous_mb"], f["settled_file_mb"] = m.peak, m.resident, m.anonymous, m.file
	if n, ok := b.metric(ctx, "go_memstats_heap_alloc_bytes"); ok {
		f["heap_mb"] = n / (1 << 20)
		f["heap_per_peer_b"] = n / float64(max(1, len(b.peers)))
	}
	if n, ok := b.metric(ctx, "go_memstats_heap_released_bytes"); ok {
		f["released_mb"] = n / (1 << 20)
	}
	return nil
}

// churned starts another daemon, has leases come and go, waits, and reads its memory.
func (b *bench) churned(ctx context.Context) error {
	if _, err := b.node.Stop(ctx); err != nil {
		return err
	}
	b.node.Env = append(b.node.Env, "FLANNELD_RETAIN_PEERS=0") // else the daemon would keep the leases that go at once
	if _, err := b.launch(ctx, func(s *seen) bool { return s.full(b.backend, len(b.peers)) }); err != nil {
		return err
	}
	many := peersFrom(len(b.peers), churn)
	for _, step := range []struct {
		put, remove []peer
		peers       int
	}{{many, nil, len(b.peers) + churn}, {nil, many, len(b.peers)}} {
		reached := b.watch.expect(func(s *seen) bool { return s.full(b.backend, step.peers) })
		if err := writePeers(ctx, b.etcd, b.backend, b.day, step.put, step.remove); err != nil {
			return err
		}
		if _, err := reached(ctx); err != nil {
			return fmt.Errorf("%d peers: %w", step.peers, err)
		}
	}
	// Six minutes by default: after the daemon's next resync, too, and the return of memory that follows it.
	if err := wait(ctx, 6*b.options.settle); err != nil {
		return err
	}
	m, err := readMemory(b.node.PID())
	b.figures["churn_peak_mb"], b.figures["churn_resident_mb"], b.figures["churn_anonymous_mb"] = m.peak, m.resident, m.anonymous
	return err
}

// wait waits for that long, or until ctx ends.
func wait(ctx context.Context, long time.Duration) error {
	select {
	case <-time.After(long):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// peak stores the daemon's peak resident memory until now as a figure.
func (b *bench) peak(key string) error {
	m, err := readMemory(b.node.PID())
	b.figures[key] = m.peak
	return err
}

// memory is the memory of a process, in MiB.
type memory struct{ peak, resident, anonymous, file float64 }

// readMemory reads /proc/PID/status, see proc_pid_status(5).
func readMemory(pid int) (m memory, err error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return m, err
	}
	for key, to := range map[string]*float64{"VmHWM:": &m.peak, "VmRSS:": &m.resident, "RssAnon:": &m.anonymous, "RssFile:": &m.file} {
		_, rest, _ := strings.Cut(string(text), "\n"+key)
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return m, errors.New("no " + key + " in /proc/PID/status")
		}
		kb, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return m, fmt.Errorf("%s %w", key, err)
		}
		*to = kb / 1024
	}
	return m, nil
}
