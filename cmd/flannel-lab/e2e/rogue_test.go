package e2e

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/pkg/logtest"
)

// TestRoguePeers lets hundreds of leases come that nobody should believe, and go again, while pods talk and good peers
// come and change.
func TestRoguePeers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		backend string
		family  lab.Family
	}{{"vxlan", lab.Dual}, {"host-gw", lab.V4}} {
		t.Run(c.backend, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Nodes: 3, Family: c.family}, `{"Type":"`+c.backend+`"}`+apart)
			newSiege(t, l, c.backend).run(t)
		})
	}
}

// siege is a lab with rogues.
type siege struct {
	l        *lab.Lab
	backend  string
	all      []rogue
	before   []string // what each node's kernel held without them
	expected []string // the routes that each node shall have among them
	marks    []int    // lengths of the logs
}

func newSiege(t *testing.T, l *lab.Lab, backend string) *siege {
	t.Helper()
	s := &siege{l: l, backend: backend}
	key, _ := leaseOf(t, l, l.Nodes[1])
	s.all = rogues(backend, l, key, leases(t, l)[key])
	return s
}

func (s *siege) run(t *testing.T) {
	a, b := pair(t, s.l)
	must(t, reach(t.Context(), a, b))
	must(t, reach(t.Context(), b, a))
	for _, n := range s.l.Nodes {
		within(t, n.Name+" has both peers", func() error { return has(t, n, "flanneld_peers 2") })
		held, err := kernel(t.Context(), n)
		must(t, err)
		s.before = append(s.before, held)
		s.expected = append(s.expected, s.withWinners(t, n))
	}
	calm, few := s.latency(t, 1)
	f := flood(t, a, b)
	for _, n := range s.l.Nodes {
		s.marks = append(s.marks, len(n.Log()))
	}
	s.come(t)
	s.standFast(t, "all rogues are there")
	s.told(t)
	besieged, many := s.latency(t, 2)
	t.Logf("%d rogues; a good peer's change is in the kernel after %v, without them %v", len(s.all), besieged, calm)
	if many != few {
		t.Errorf("good peers' changes set %v routes among rogues, and %v without", many, few)
	}
	s.changeTheirMind(t)

	// Who starts among them, decides as those who saw them come.
	must(t, s.l.Nodes[2].Kill())
	must(t, s.l.Nodes[2].Start())
	must(t, s.l.Nodes[2].Ready(t.Context()))
	s.standFast(t, "a node has started among rogues")

	s.leave(t)
	f.lostNone(t, fmt.Sprintf("%d rogues came and went", len(s.all)))
}

// come puts them into the store, many at a time, in order: of two, the first is the older.
func (s *siege) come(t *testing.T) {
	t.Helper()
	var ops []clientv3.Op
	size := 0
	flush := func() {
		_, err := etcdClient(t, s.l).Txn(t.Context()).Then(ops...).Commit()
		must(t, err)
		ops, size = nil, 0
	}
	for _, r := range s.all {
		if size += len(r.value); len(ops) >= 20 || size > 1_400_000 {
			size -= len(r.value)
			flush()
			size = len(r.value)
		}
		ops = append(ops, clientv3.OpPut(subnetKeys+r.key, r.value))
		if r.wins { // the next one is younger
			flush()
		}
	}
	flush()
}

// out is how many a node leaves out.
func (s *siege) out(node int) (n int) {
	for _, r := range s.all {
		if r.outOn(node) {
			n++
		}
	}
	return n
}

// standFast waits until every node leaves out what it should, and checks that it has exactly the routes that it should.
func (s *siege) standFast(t *testing.T, when string) {
	t.Helper()
	for i, n := range s.l.Nodes {
		out := s.out(i)
		within(t, n.Name+" leaves them out", func() error { return has(t, n, fmt.Sprintf("flanneld_invalid_peers %d", out)) })
		must(t, ready(t, n))
		got, err := routes(t.Context(), n)
		must(t, err)
		if got != s.expected[i] {
			t.Fatalf("%s: %s has the routes\n%s\nwant\n%s", when, n.Name, got, s.expected[i])
		}
	}
}

// leftOut are the attributes of a line about a peer that is left out.
var leftOut = []string{"level=WARN", "cause=peer-rejected"}

// told checks that each is named once, with a warning, and what that costs.
func (s *siege) told(t *testing.T) {
	t.Helper()
	for i, n := range s.l.Nodes {
		out := s.out(i)
		within(t, n.Name+" has told of all", func() error { // it counts them first
			if got := len(n.Records(s.marks[i]).With(leftOut...)); got < out {
				return fmt.Errorf("%d warnings, want %d", got, out)
			}
			return nil
		})
		said := n.Log()[s.marks[i]:]
		named := map[string]int{}
		for _, name := range logtest.Parse(said).With(leftOut...).Values("peer") {
			named[name]++
		}
		for line := range strings.Lines(said) {
			if len(line) > 2500 {
				t.Errorf("%s: a line of %d bytes: %.200s…", n.Name, len(line), line)
			}
		}
		for _, r := range s.all {
			if want := map[bool]int{true: 1}[r.outOn(i)]; named[subnetKeys+r.key] != want {
				t.Errorf("%s: %d warnings of %q, want %d", n.Name, named[subnetKeys+r.key], r.key, want)
			}
		}
		lines := strings.Count(said, "\n")
		t.Logf("%s: %d rogues are left out, %d lines of %d bytes", n.Name, out, lines, len(said))
		if lines > out+20 || len(said) > 400*out {
			t.Errorf("%s: %d lines of %d bytes for %d rogues", n.Name, lines, len(said), out)
		}
	}
}

// changeTheirMind writes all of them again as they are, which is nothing to speak of, and lets a good peer's backend
// change to and fro.
func (s *siege) changeTheirMind(t *testing.T) {
	t.Helper()
	s.come(t)
	key, v := s.ghost(100, 1)
	other := *v
	other.BackendType = "ipip"
	n := s.l.Nodes[0]
	mark, passes := len(n.Log()), 3
	for range passes {
		putLease(t, s.l, key, v)
		within(t, "a good peer is in", func() error { return says(t, n, "10.5.100.0/24", "ip", "route") })
		putLease(t, s.l, key, &other)
		within(t, "with another backend it is out", func() error { return silent(t, n, "10.5.100.0/24", "ip", "route") })
	}
	putLease(t, s.l, key, nil)
	s.standFast(t, "rogues were written again")
	within(t, "each change is told once", func() error {
		if said := n.Log()[mark:]; strings.Count(said, "\n") != 2*passes {
			return fmt.Errorf("a backend changed %d times, and the log says:\n%s", 2*passes, said)
		}
		return nil
	})
}

// leave removes them: nothing of them is left.
func (s *siege) leave(t *testing.T) {
	t.Helper()
	for _, r := range s.all {
		_, err := etcdClient(t, s.l).Delete(t.Context(), subnetKeys+r.key)
		must(t, err)
	}
	for i, n := range s.l.Nodes {
		within(t, n.Name+" leaves nobody out", func() error { return has(t, n, "flanneld_invalid_peers 0") })
		eventually(t, n.Name+" is as before", s.before[i], func(ctx context.Context) (string, error) { return kernel(ctx, n) })
		must(t, ready(t, n))
		if _, body, err := n.Ask(t.Context(), "/metrics"); err != nil || strings.Contains(body, "10.5.") || !strings.Contains(body, "flanneld_peers 2\n") {
			t.Errorf("%s: /metrics names a rogue, or does not count the peers (%v)", n.Name, err)
		}
	}
}

// ghost is the lease of a good peer.
func (s *siege) ghost(i, generation int) (string, *value) {
	key, v := ghost(i, generation)
	v.BackendType, v.PublicIP = s.backend, fmt.Sprintf("192.168.100.%d", 200+generation)
	if s.backend != "vxlan" {
		key, _, _ = strings.Cut(key, "&")
		v.PublicIPv6, v.BackendData, v.BackendV6Data = nil, nil, nil
	}
	return key, v
}

// latency is the median of how long a good peer's lease takes to the kernel of the first node, and how many routes are
// set for 21 of them.
func (s *siege) latency(t *testing.T, generation int) (median time.Duration, set float64) {
	t.Helper()
	const routesSet = `flanneld_changes_total{op="set",table="routes"}`
	before := numbers(t, s.l.Nodes[0])[routesSet]
	var handle *netlink.Handle
	must(t, s.l.Nodes[0].Do(func() (err error) { handle, err = netlink.NewHandle(); return err }))
	defer handle.Close()
	there := func(i int) bool {
		dst := &net.IPNet{IP: net.IPv4(10, 5, byte(i), 0).To4(), Mask: net.CIDRMask(24, 32)}
		got, err := handle.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: dst}, netlink.RT_FILTER_DST)
		return err == nil && len(got) > 0
	}
	var took []time.Duration
	for i := 101; i < 122; i++ {
		key, v := s.ghost(i, generation)
		began := time.Now()
		putLease(t, s.l, key, v)
		_, err := machine.Until(t.Context(), patience, func(context.Context) error {
			if !there(i) {
				return fmt.Errorf("no route to %s", key)
			}
			return nil
		})
		must(t, err)
		took = append(took, time.Since(began))
		putLease(t, s.l, key, nil)
	}
	within(t, "good peers are gone again", func() error {
		for i := 101; i < 122; i++ {
			if there(i) {
				return fmt.Errorf("10.5.%d.0/24 is still there", i)
			}
		}
		return nil
	})
	within(t, "good peers' routes are counted", func() error {
		if set = numbers(t, s.l.Nodes[0])[routesSet] - before; set < float64(len(took)) {
			return fmt.Errorf("%v routes were set, want %d", set, len(took))
		}
		return nil
	})
	slices.Sort(took)
	return took[len(took)/2], set
}

// withWinners is what routes a node has now, and those of the rogues that it has to let in.
func (s *siege) withWinners(t *testing.T, n *lab.Node) string {
	t.Helper()
	text, err := routes(t.Context(), n)
	must(t, err)
	for _, r := range s.all {
		if r.outOn(slices.Index(s.l.Nodes, n)) || r.silent {
			continue
		}
		dst := strings.Replace(r.key, "-", "/", 1)
		base, _, _ := strings.Cut(r.key, "-")
		if s.backend == "vxlan" {
			text += fmt.Sprintf("\n%s via %s dev flannel.1 onlink", dst, base)
		} else {
			text += fmt.Sprintf("\n%s via %s dev eth0", dst, r.public)
		}
	}
	return words(text)
}
