package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

const floodRate = 250 // pings a second

// flow is running traffic: pings between two pods in both directions and all
// families, and from both pods to an address outside of the cluster.
type flow struct {
	floods []*machine.Flood
	names  []string
	began  time.Time
	stop   chan struct{}
	wg     sync.WaitGroup

	fresh, unanswered int // new connections, which need the masquerade rules
}

func flood(t *testing.T, a, b *lab.Pod) *flow {
	t.Helper()
	f := &flow{began: time.Now(), stop: make(chan struct{})}
	add := func(name string, from *lab.Pod, to netip.Addr) {
		if !to.IsValid() {
			return
		}
		stream, err := from.Flood(to, floodRate)
		must(t, err)
		f.floods, f.names = append(f.floods, stream), append(f.names, name)
	}
	add("a to b", a, b.IP4)
	add("b to a", b, a.IP4)
	add("a to b, IPv6", a, b.IP6)
	add("b to a, IPv6", b, a.IP6)
	if a.IP4.IsValid() {
		add("a to outside", a, lab.Outside4)
		f.wg.Add(1)
		go f.begin(t.Context(), b, lab.Outside4)
	}
	if a.IP6.IsValid() {
		add("b to outside, IPv6", b, lab.Outside6)
	}
	return f
}

// begin starts new connections, one after another.
func (f *flow) begin(ctx context.Context, from *lab.Pod, to netip.Addr) {
	defer f.wg.Done()
	for {
		select {
		case <-f.stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
		f.fresh++
		if err := from.Ping(ctx, to); err != nil {
			f.unanswered++
		}
	}
}

// checkNoLoss ends the traffic and fails the test if anything was lost.
func (f *flow) checkNoLoss(t *testing.T, during string) {
	t.Helper()
	close(f.stop)
	f.wg.Wait()
	sent, lost, lasted := 0, 0, time.Since(f.began)
	for i, stream := range f.floods {
		r, err := stream.Stop()
		if err != nil || r.Lost > 0 {
			t.Errorf("%s: %s: %v (longest outage %v, at %v): %v", during, f.names[i], r, r.Outage, r.Began.UTC().Format(time.TimeOnly), err)
		}
		if rate := float64(r.Sent) / lasted.Seconds(); rate < 200 {
			t.Logf("%s: %s: only %.0f pings a second, because the machine is busy", during, f.names[i], rate)
		}
		sent, lost = sent+r.Sent, lost+r.Lost
	}
	if f.unanswered > 0 {
		t.Errorf("%s: %d of %d new flows to outside got no answer", during, f.unanswered, f.fresh)
	}
	t.Logf("%-40s %4.1f s, %d pings in %d streams, %d lost; %d new flows, %d lost",
		during, lasted.Seconds(), sent, len(f.floods), lost, f.fresh, f.unanswered)
}

func TestNoPacketIsLost(t *testing.T) {
	t.Parallel()
	const enforce, nftables = `,"Guard":"enforce","GuardTrial":0`, `,"EnableNFTables":true`
	for _, c := range []struct{ backend, more string }{ // the other two guards would count what these drop
		{"vxlan", ``},
		{"host-gw", enforce},
		{"vxlan", nftables + enforce},
		{"host-gw", nftables},
	} {
		t.Run(c.backend+c.more, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"`+c.backend+`"}`+c.more+apart)
			a, b := pair(t, l)
			must(t, reach(t.Context(), a, b))
			must(t, reach(t.Context(), b, a))
			for _, n := range l.Nodes {
				within(t, n.Name+"'s guard", func() error {
					if g := (&guardTest{l: l}).guard(t, n); g.Enforce != strings.Contains(c.more, enforce) {
						return fmt.Errorf("it is %+v", g)
					}
					return nil
				})
			}
			t.Cleanup(noneForged(t, l))

			f := flood(t, a, b)
			for range 5 {
				restartAll(t, l, func(n *lab.Node) error { _, err := n.Stop(t.Context()); return err })
			}
			f.checkNoLoss(t, "stopped and started 5 times")

			f = flood(t, a, b)
			for range 10 {
				restartAll(t, l, (*lab.Node).Kill)
			}
			f.checkNoLoss(t, "killed and started 10 times")

			f = flood(t, a, b)
			churn(t, l, c.backend, 50)
			restartAll(t, l, (*lab.Node).Kill)
			churn(t, l, c.backend, 50)
			f.checkNoLoss(t, "50 leases added, changed and removed")
		})
	}
}

// restartAll ends and starts flanneld on one node after the other. more are flags in addition to those of every node, such as
// what the test has started it with.
func restartAll(t *testing.T, l *lab.Lab, end func(*lab.Node) error, more ...string) {
	t.Helper()
	for _, n := range l.Nodes {
		must(t, end(n))
		must(t, n.Start(more...))
		must(t, n.Ready(t.Context()))
	}
}

// churn adds, changes and removes leases.
func churn(t *testing.T, l *lab.Lab, backend string, n int) {
	t.Helper()
	for generation := range 3 {
		for i := range n {
			key, v := fakeLease(i+1, generation+1)
			if v.BackendType = backend; backend != "vxlan" {
				v.BackendData, v.BackendV6Data = nil, nil
			}
			if generation == 2 {
				v = nil
			}
			putLease(t, l, key, v)
		}
		if generation == 0 {
			eventually(t, "routes to all that came", fmt.Sprint(n+1), func(ctx context.Context) (string, error) {
				return try(ctx, l.Nodes[0].Namespaces, "ip route show root 10.5.0.0/16 proto 70 | wc -l")
			})
		}
	}
}
