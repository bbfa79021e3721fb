package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/cmd/flannel-lab/lab"
	"flannel/internal/test/logtest"
)

// TestRoguePeers adds and removes hundreds of invalid leases while pods
// communicate and valid peers are added and changed.
func TestRoguePeers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		backend, config string
		family          lab.Family
	}{{"vxlan", `{"Type":"vxlan"}`, lab.Dual}, {"host-gw", `{"Type":"host-gw"}`, lab.V4}, {"udp", `{"Type":"udp"}`, lab.V4}, {"extension", likeHostGW, lab.V4}} {
		t.Run(c.backend, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Nodes: 3, Family: c.family}, c.config+apart)
			newRogueTest(t, l, c.backend).run(t)
		})
	}
}

// rogueTest is a lab with rogues.
type rogueTest struct {
	l        *lab.Lab
	backend  string
	all      []rogue  // in the order in which they are added
	before   []string // state of the kernel of each node without rogues
	expected []string // what routes should return for each node with rogues
	marks    []int    // lengths of the logs before the rogues were added
}

func newRogueTest(t *testing.T, l *lab.Lab, backend string) *rogueTest {
	t.Helper()
	s := &rogueTest{l: l, backend: backend}
	key, _ := leaseOf(t, l, l.Nodes[1])
	s.all = rogues(backend, l, key, leases(t, l)[key])
	return s
}

func (s *rogueTest) run(t *testing.T) {
	a, b := pair(t, s.l)
	must(t, reach(t.Context(), a, b))
	must(t, reach(t.Context(), b, a))
	for _, n := range s.l.Nodes {
		hasPeers(t, n, 2)
		held, err := kernel(t.Context(), n)
		must(t, err)
		s.before = append(s.before, held)
		s.expected = append(s.expected, s.expectedRoutes(t, n))
	}
	var calm time.Duration
	var few float64
	if s.routed() {
		calm, few = s.latency(t, 1)
	}
	f := flood(t, a, b)
	for _, n := range s.l.Nodes {
		s.marks = append(s.marks, len(n.Log()))
	}
	s.addAll(t)
	s.checkRejected(t, "all rogues were added")
	s.checkWarnings(t)
	if s.routed() {
		withRogues, many := s.latency(t, 2)
		t.Logf("%d rogues; the change of a valid peer is in the kernel after %v, without them %v", len(s.all), withRogues, calm)
		if many != few {
			t.Errorf("changes of valid peers set %v routes with rogues, and %v without", many, few)
		}
	}
	s.rewriteAll(t)

	// A node that starts now must reject the same leases.
	must(t, s.l.Nodes[2].Kill())
	must(t, s.l.Nodes[2].Start())
	must(t, s.l.Nodes[2].Ready(t.Context()))
	s.checkRejected(t, "a node has started with rogues")

	s.removeAll(t)
	f.checkNoLoss(t, fmt.Sprintf("%d rogues added and removed", len(s.all)))
}

// addAll writes all rogues, many per transaction, in order: of two that
// conflict, the first is the older.
func (s *rogueTest) addAll(t *testing.T) {
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
		if r.wins { // the next one must be younger
			flush()
		}
	}
	flush()
}

// rejectedCount returns how many rogues a node should reject.
func (s *rogueTest) rejectedCount(node int) (n int) {
	for _, r := range s.all {
		if r.rejectedBy(node) {
			n++
		}
	}
	return n
}

// checkRejected waits until every node rejects the rogues that it should, and
// checks that it has exactly the expected routes.
func (s *rogueTest) checkRejected(t *testing.T, when string) {
	t.Helper()
	for i, n := range s.l.Nodes {
		out := s.rejectedCount(i)
		within(t, n.Name+" rejects them", func() error { return has(t, n, fmt.Sprintf("flanneld_invalid_peers %d", out)) })
		becomesReady(t, n)
		got, err := s.routes(t, n)
		must(t, err)
		if got != s.expected[i] {
			t.Fatalf("%s: %s has the routes\n%s\nwant\n%s", when, n.Name, got, s.expected[i])
		}
	}
}

// rejectedAttrs are the attributes of a log record about a rejected peer.
var rejectedAttrs = []string{"level=WARN", "cause=peer-rejected"}

// checkWarnings checks that each rejected rogue is logged once, as a warning,
// and limits the size of the log.
func (s *rogueTest) checkWarnings(t *testing.T) {
	t.Helper()
	for i, n := range s.l.Nodes {
		out := s.rejectedCount(i)
		within(t, n.Name+" has logged all", func() error { // flanneld counts them before it logs them
			if got := len(n.Records(s.marks[i]).With(rejectedAttrs...)); got < out {
				return fmt.Errorf("%d warnings, want %d", got, out)
			}
			return nil
		})
		text := n.Log()[s.marks[i]:]
		named := map[string]int{}
		for _, name := range logtest.Parse(text).With(rejectedAttrs...).Values("peer") {
			named[name]++
		}
		for line := range strings.Lines(text) {
			if len(line) > 2500 {
				t.Errorf("%s: a line of %d bytes: %.200s…", n.Name, len(line), line)
			}
		}
		for _, r := range s.all {
			if want := map[bool]int{true: 1}[r.rejectedBy(i)]; named[subnetKeys+r.key] != want {
				t.Errorf("%s: %d warnings of %q, want %d", n.Name, named[subnetKeys+r.key], r.key, want)
			}
		}
		lines := strings.Count(text, "\n")
		t.Logf("%s: %d rogues are rejected, %d lines of %d bytes", n.Name, out, lines, len(text))
		if lines > out+20 || len(text) > 400*out {
			t.Errorf("%s: %d lines of %d bytes for %d rogues", n.Name, lines, len(text), out)
		}
	}
}

// rewriteAll writes all rogues again without a change, which must not be
// logged, and changes the backend of a valid peer several times.
func (s *rogueTest) rewriteAll(t *testing.T) {
	t.Helper()
	s.addAll(t)
	key, v := s.fakeLease(100, 1)
	other := *v
	other.BackendType = "ipip"
	n := s.l.Nodes[0]
	mark, passes := len(n.Log()), 3
	// A node that is behind rejects as many while the peer is valid as without it.
	onAll := func(what string, accepted bool) {
		t.Helper()
		for _, n := range s.l.Nodes {
			within(t, n.Name+": "+what, func() error { return s.leadsTo(t, n, "10.5.100.0/24 ", accepted) })
		}
	}
	for range passes {
		putLease(t, s.l, key, v)
		onAll("a valid peer is accepted", true)
		putLease(t, s.l, key, &other)
		onAll("with another backend it is rejected", false)
	}
	putLease(t, s.l, key, nil)
	s.checkRejected(t, "rogues were written again")
	within(t, "each change is logged once", func() error {
		// Each rejection, and each recovery but one: the last rejection ends with the lease.
		if len(n.Records(mark).With("peer="+subnetKeys+key)) != 2*passes-1 {
			return fmt.Errorf("the backend of %s changed %d times, and the log is:\n%s", key, 2*passes, n.Log()[mark:])
		}
		return nil
	})
}

// removeAll deletes all rogues, and checks that no trace of them is left.
func (s *rogueTest) removeAll(t *testing.T) {
	t.Helper()
	for _, r := range s.all {
		_, err := etcdClient(t, s.l).Delete(t.Context(), subnetKeys+r.key)
		must(t, err)
	}
	for i, n := range s.l.Nodes {
		within(t, n.Name+" rejects nobody", func() error { return has(t, n, "flanneld_invalid_peers 0") })
		eventually(t, n.Name+" has its former state", s.before[i], func(ctx context.Context) (string, error) { return kernel(ctx, n) })
		becomesReady(t, n)
		if _, body, err := n.Ask(t.Context(), "/metrics"); err != nil || strings.Contains(body, "10.5.") || !strings.Contains(body, "flanneld_peers 2\n") {
			t.Errorf("%s: /metrics names a rogue, or does not count the peers (%v)", n.Name, err)
		}
	}
}

// fakeLease returns the lease of a valid peer.
func (s *rogueTest) fakeLease(i, generation int) (string, *value) {
	key, v := fakeLease(i, generation)
	v.BackendType, v.PublicIP = s.backend, fmt.Sprintf("192.168.100.%d", 200+generation)
	if s.backend != "vxlan" {
		key, _, _ = strings.Cut(key, "&")
		v.PublicIPv6, v.BackendData, v.BackendV6Data = nil, nil, nil
	}
	return key, v
}
