package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/kubetest/cluster"
	"flannel/subnet"
	"flannel/subnet/kube"
)

// watchers is the number of daemons whose Kubernetes part the bench runs, to
// measure what all of them request from the API server. The figures of a larger
// cluster are extrapolated from theirs.
const watchers = 50

// crowd holds the watchers and what they have received.
type crowd struct {
	b        *bench
	received atomic.Int64           // bytes, with TLS
	known    [watchers]atomic.Int64 // number of peers that each watcher knows
	scope    string                 // prefix of the names of Nodes that count as known
}

// crowd annotates many nodes at once, and measures what the watchers do.
func (b *bench) crowd(ctx context.Context) error {
	c := &crowd{b: b, scope: "peer-"}
	dir, err := os.MkdirTemp("", "flannel-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is a temporary directory
	ctx, cancel := context.WithCancel(ctx)
	// The watchers end only with ctx, therefore cancel comes before Wait.
	tasks, ctx := errgroup.WithContext(ctx)
	err = c.start(ctx, tasks, dir)
	if err == nil {
		err = c.measure(ctx)
	}
	cancel()
	return errors.Join(err, tasks.Wait())
}

// start runs the watchers until ctx ends, with their files in dir. It returns
// when each knows all peers.
func (c *crowd) start(ctx context.Context, tasks *errgroup.Group, dir string) error {
	lo, err := netlink.LinkByName("lo") // of the namespace of this process, where nothing else has set it up
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bring the loopback device up: %w", err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the watchers: %w", err)
	}
	tasks.Go(func() error { return c.relay(ctx, l) })
	// The watchers have the token of flanneld on the measured node, and with it the same
	// permissions.
	token, err := c.b.lab.Kube.Token(ctx, c.b.node.Name, 24*time.Hour)
	if err != nil {
		return err
	}
	proxied := cluster.Cluster{Config: rest.CopyConfig(c.b.lab.Kube.Config)}
	// The certificate has this name.
	proxied.Config.ServerName, _, _ = net.SplitHostPort(strings.TrimPrefix(c.b.lab.Kube.Endpoint(), "https://"))
	text, err := proxied.Kubeconfig("https://"+l.Addr().String(), filepath.Join(dir, "token"))
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600),
		os.WriteFile(kubeconfig, text, 0o600)); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	for i := range watchers {
		m, err := kube.New(ctx, kube.Options{Kubeconfig: kubeconfig, NodeName: fmt.Sprint("watcher-", i),
			Prefix: flannelPrefix, Log: log})
		if err != nil {
			return err
		}
		tasks.Go(func() error { return m.Watch(ctx, func(s subnet.Set) { c.known[i].Store(c.count(s)) }) })
		if err := c.until(ctx, i+1, len(c.b.peers)); err != nil {
			return err
		}
	}
	return nil
}

// count returns how many Nodes of the bench are in a set.
func (c *crowd) count(s subnet.Set) (n int64) {
	for _, l := range s.Leases {
		if strings.HasPrefix(l.Name, c.scope) {
			n++
		}
	}
	return n
}

// until waits until the first count watchers know that many peers.
func (c *crowd) until(ctx context.Context, count, peers int) error {
	_, err := machine.Until(ctx, 5*time.Minute, func(context.Context) error {
		for i := range count {
			if n := c.known[i].Load(); n < int64(peers) {
				return fmt.Errorf("watcher %d knows %d peers of %d", i, n, peers)
			}
		}
		return nil
	})
	return err
}

// relay forwards the connections of the watchers to the API server, and counts
// the bytes that they receive.
func (c *crowd) relay(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		client, err := l.Accept()
		if err != nil {
			return nil //nolint:nilerr // closed
		}
		conns.Go(func() {
			server, err := c.b.lab.Kube.Dial(ctx)
			if err != nil {
				_ = client.Close() // the watcher will retry
				return
			}
			defer context.AfterFunc(ctx, func() { _ = client.Close(); _ = server.Close() })()
			conns.Go(func() {
				_, _ = io.Copy(server, client)
				_ = server.Close()
			})
			_, _ = io.Copy(counting{client, &c.received}, server)
			_ = client.Close()
		})
	}
}

// counting adds the number of written bytes to n.
type counting struct {
	io.Writer
	n *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n.Add(int64(n))
	return n, err
}

// measure creates Nodes and then annotates all of them at once, as their
// daemons would.
func (c *crowd) measure(ctx context.Context) error {
	b := c.b
	fresh := peersFrom(len(b.peers)+newNodes, newNodes)
	bare := func(i int) cluster.Peer {
		p := fresh[i].node(b.backend)
		p.Annotations = nil
		return p
	}
	if err := b.lab.Kube.AddPeers(ctx, len(fresh), bare); err != nil {
		return err
	}
	// Only now do the counters start: what creating the Nodes causes is not measured.
	already := c.known[0].Load()
	b.waitIdle()
	before, received, err := c.counters(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	tasks, annotating := errgroup.WithContext(ctx)
	tasks.SetLimit(20) // requests at a time
	for _, p := range fresh {
		n := p.node(b.backend)
		tasks.Go(func() error { return b.lab.Kube.Annotate(annotating, n.Name, n.Annotations) })
	}
	if err := tasks.Wait(); err != nil {
		return err
	}
	if err := c.until(ctx, watchers, int(already)+len(fresh)); err != nil {
		return err
	}
	b.figures["crowd_all_ms"] = milliseconds(time.Since(began))
	b.waitIdle()
	after, total, err := c.counters(ctx)
	if err != nil {
		return err
	}
	// The figures are for one watcher. Those with _all are what as many daemons as peers
	// would cause together.
	const requests = "apiserver_request_total"
	nodes := `resource="nodes"`
	ours := func(m cluster.Metrics) float64 {
		return m.Sum(requests, nodes, `verb="GET"`) + m.Sum(requests, nodes, `verb="LIST"`)
	}
	b.figures["crowd_requests"] = (ours(after) - ours(before)) / watchers
	b.figures["crowd_etcd"] = (after.EtcdReads() - before.EtcdReads()) / watchers
	b.figures["crowd_received_kb"] = float64(total-received) / 1000 / watchers
	for _, key := range []string{"crowd_requests", "crowd_etcd"} {
		b.figures[key+"_all"] = b.figures[key] * float64(len(b.peers))
	}
	b.figures["crowd_received_all_mb"] = b.figures["crowd_received_kb"] / 1000 * float64(len(b.peers))
	return nil
}

// counters returns the metrics of the API server and the number of bytes that
// the watchers have received.
func (c *crowd) counters(ctx context.Context) (cluster.Metrics, int64, error) {
	m, err := c.b.lab.Kube.Metrics(ctx)
	return m, c.received.Load(), err
}
