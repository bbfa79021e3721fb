package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
)

// bench is one lab, used by the goroutine of the command. With etcd, the daemon under
// test runs on the first node, and the kernel alone is measured on the second (see
// kernelAlone). With Kubernetes, a daemon under test runs on each node in turn.
type bench struct {
	options Options
	backend string
	peers   []peer // those that the store has at the start
	lab     *lab.Lab
	node    *lab.Node          // whose daemon is measured
	watch   *kernelWatch       // of node; nil before observe and after leave, like notify
	etcd    *clientv3.Client   // of the lab; nil with Kubernetes
	day     clientv3.LeaseID   // etcd lease of all keys of peers
	notify  *net.UnixConn      // NOTIFY_SOCKET of the daemon
	figures map[string]float64 // of this round, by the keys of the rows; the end is the unit
}

// newBench starts a lab with etcd, writes the leases of the peers, and observes the first
// node. The daemon does not run yet. The caller must call close.
func newBench(ctx context.Context, o Options, backend string, peers int) (*bench, error) {
	b := &bench{options: o, backend: backend, peers: peersFrom(0, peers), figures: map[string]float64{}}
	var err error
	if b.lab, err = lab.New(ctx, o.lab); err != nil {
		return nil, err
	}
	if err := b.prepare(ctx); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// prepare does what newBench must undo by close if it fails.
func (b *bench) prepare(ctx context.Context) (err error) {
	if b.etcd, err = b.lab.Etcd.Client(); err != nil {
		return err
	}
	if err := b.onLink(ctx); err != nil {
		return err
	}
	if b.day, err = populateEtcd(ctx, b.etcd, b.options, b.backend, b.peers); err != nil {
		return err
	}
	return b.observe(b.lab.Nodes[0])
}

// onLink gives every node an address in the network of the peers' public IPs, without
// which the kernel would refuse them as gateways (host-gw).
func (b *bench) onLink(ctx context.Context) error {
	for _, n := range b.lab.Nodes {
		if _, err := n.Run(ctx, "ip", "address", "add", nodesNet, "dev", lab.Uplink); err != nil {
			return err
		}
	}
	return nil
}

// observe makes n the node whose daemon is measured: it opens the notify socket
// and watches the kernel.
func (b *bench) observe(n *lab.Node) (err error) {
	b.node = n
	n.Env = []string{"NOTIFY_SOCKET=/run/notify"}
	err = n.Do(func() (err error) {
		b.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "/run/notify", Net: "unixgram"})
		return err
	})
	if err != nil {
		return err
	}
	b.watch, err = watchKernel(n)
	return err
}

// leave undoes observe.
func (b *bench) leave() {
	if b.watch != nil {
		b.watch.close()
	}
	if b.notify != nil {
		_ = b.notify.Close() // an error does not matter
	}
	b.watch, b.notify = nil, nil
}

// close ends the lab. An error is only printed, as the figures are valid anyway.
func (b *bench) close() {
	b.leave()
	if err := b.lab.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "flannel-lab:", err)
	}
}

// ready waits until the daemon sends READY=1 to its service manager, and
// returns the time.
func (b *bench) ready() (time.Time, error) {
	buf := make([]byte, 4096)
	// An error of SetReadDeadline means that the socket is closed, and then Read fails, too.
	_ = b.notify.SetReadDeadline(time.Now().Add(5 * time.Minute))
	for {
		n, err := b.notify.Read(buf)
		if err != nil {
			return time.Time{}, fmt.Errorf("wait for READY=1: %w", err)
		}
		if strings.Contains(string(buf[:n]), "READY=1") {
			return time.Now(), nil
		}
	}
}

// envWritten waits until subnet.env exists, and returns the time. It uses
// /proc, which is cheaper than entering the node.
func (b *bench) envWritten(ctx context.Context) (time.Time, error) {
	path := fmt.Sprintf("/proc/%d/root/run/flannel/subnet.env", b.node.PID())
	for ctx.Err() == nil && b.node.Running() {
		if _, err := os.Stat(path); err == nil {
			return time.Now(), nil
		}
		time.Sleep(500 * time.Microsecond)
	}
	return time.Time{}, errors.Join(errors.New("the daemon exited before it wrote subnet.env"), ctx.Err())
}

// start holds the times from just before the start of a daemon to each event: goal of
// launch is true, READY=1 was received, subnet.env exists.
type start struct{ synced, ready, env time.Duration }

// launch starts the daemon and waits until goal is true for the kernel's entries, READY=1
// was sent and subnet.env exists. args are further flags of flanneld.
func (b *bench) launch(ctx context.Context, goal func(*seen) bool, args ...string) (s start, err error) {
	// The goal is set before the start, so that no notification is missed. The time of
	// synced is taken by the watch, in its own goroutine. subnet.env is waited for first,
	// and READY=1 last: its time is that of reading it, which may be later than it was sent.
	reached := b.watch.expect(goal)
	began := time.Now()
	if err := b.node.Start(args...); err != nil {
		return s, err
	}
	env, err := b.envWritten(ctx)
	if err != nil {
		return s, err
	}
	synced, err := reached(ctx)
	if err != nil {
		return s, err
	}
	ready, err := b.ready()
	return start{synced.Sub(began), ready.Sub(began), env.Sub(began)}, err
}

// cpu returns the CPU time of a process, in nanosecond resolution, and that of
// its children that have ended, in steps of 10 ms.
func cpu(pid int) (own, children time.Duration, err error) {
	// The ID of the CPU clock of a process, for all its threads: the inverted PID above
	// three bits, whose value 2 selects the scheduler's time.
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil { // clock_getcpuclockid(3)
		return 0, 0, fmt.Errorf("CPU time of %d: %w", pid, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, ticks := range fields[13:15] { // cutime and cstime of proc(5), which counts from the PID as 1
		n, err := strconv.Atoi(ticks)
		if err != nil {
			return 0, 0, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
		}
		children += time.Duration(n) * 10 * time.Millisecond
	}
	return time.Duration(t.Nano()), children, nil
}

// metric returns the sum of the samples of a metric; ok is false if the daemon
// has no such metric. Samples are lines like these, of which the second is of
// another metric:
//
//	flanneld_changes_total{op="set",table="routes"} 17
//	flanneld_changes_total_other 1
func (b *bench) metric(ctx context.Context, name string) (sum float64, ok bool) {
	code, body, err := b.node.Ask(ctx, "/metrics")
	if err != nil || code != 200 {
		return 0, false
	}
	for line := range strings.Lines(body) {
		rest, found := strings.CutPrefix(line, name)
		if !found || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		fields := strings.Fields(rest)
		v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, false
		}
		sum, ok = sum+v, true
	}
	return sum, ok
}
