// Package soak subjects a small cluster to many random events in a short time:
// peers are added, changed and removed, somebody tampers with the kernel,
// daemons and etcd are killed. After every batch of events every node must
// match a model.
//
// The environment variable SOAK is the duration (2m), SOAK_SEED repeats the
// events of an earlier run.
package soak

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

const (
	// timeout is how long a node may take to match the model. It normally takes
	// milliseconds, but the machine may be busy.
	timeout = 5 * time.Minute
	// slow is the time from which a check logs what happened before.
	slow = 5 * time.Second
	// There are pace actions a second, and a check after every batch of them.
	batch, pace = 60, 8
)

func TestSoak(t *testing.T) {
	duration, err := time.ParseDuration(cmp.Or(os.Getenv("SOAK"), "2m"))
	must(t, err)
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SOAK_SEED"), fmt.Sprint(time.Now().UnixNano()%1_000_000)), 10, 64)
	must(t, err)
	t.Logf("seed %d", seed)
	for i, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			s := newSoak(t, rand.New(rand.NewPCG(seed, uint64(i))), backend)
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("SOAK_SEED=%d; the last actions:\n%s", seed,
						strings.Join(s.history[max(0, len(s.history)-60):], "\n"))
				}
			})
			s.run(t, time.Now().Add(duration))
		})
	}
}

// soak is a cluster and the state that it should have.
type soak struct {
	*lab.Lab
	rnd     *rand.Rand
	backend string
	family  lab.Family
	nft     bool

	members  []member        // the real nodes, in the order of Nodes
	peers    map[int]peer    // leases of other nodes in etcd, by number
	rogues   map[string]bool // keys of invalid leases in etcd
	etcdDown bool
	logged   map[*lab.Node]int // length of the log at the last start of the daemon
	drifted  map[*lab.Node]drifted
	samples  []usage // of the first node, whose daemon is never stopped

	history []string
	counts  map[string]int
	took    []time.Duration // of each check, until all nodes matched the model
}

func newSoak(t *testing.T, rnd *rand.Rand, backend string) *soak {
	t.Helper()
	s := &soak{rnd: rnd, backend: backend, family: []lab.Family{lab.V4, lab.Dual}[rnd.IntN(2)], nft: rnd.IntN(2) == 0,
		peers: map[int]peer{}, rogues: map[string]bool{}, logged: map[*lab.Node]int{}, drifted: map[*lab.Node]drifted{}, counts: map[string]int{}}
	t.Logf("%s, IPv6 %t, nftables %t", backend, s.family.Has6(), s.nft)
	l, err := lab.New(t.Context(), lab.Options{Nodes: 3, Family: s.family})
	must(t, err)
	s.Lab = l
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range l.Nodes {
				log := n.Log()
				t.Logf("end of the log of %s:\n%s", n.Name, log[max(0, len(log)-6000):])
			}
		}
		if err := l.Close(); err != nil {
			t.Error("close the lab:", err)
		}
	})
	must(t, s.configure(t.Context()))
	must(t, l.StartAll(t.Context()))
	s.readMembers(t)
	return s
}

// configure writes the network configuration. Real nodes get subnets in the
// upper half of the network, other peers have the lower half.
func (s *soak) configure(ctx context.Context) error {
	return s.SetConfig(ctx, s.Config(fmt.Sprintf(`{"Type":%q},"EnableNFTables":%t,"SubnetMin":"10.5.128.0","IPv6SubnetMin":"fd05:0:0:8000::"`, s.backend, s.nft)))
}

func (s *soak) run(t *testing.T, end time.Time) {
	tick := time.NewTicker(time.Second / pace)
	defer tick.Stop()
	for time.Now().Before(end) {
		for range batch {
			<-tick.C
			s.act(t)
		}
		s.check(t)
	}
	s.endOutages(t)
	slices.Sort(s.took)
	var acts []string
	total := 0
	for name, n := range s.counts {
		acts, total = append(acts, fmt.Sprintf("%d × %s", n, name)), total+n
	}
	slices.Sort(acts)
	t.Logf("%d actions (%s); %d checks, median %v, maximum %v", total, strings.Join(acts, ", "), len(s.took),
		s.took[len(s.took)/2].Round(time.Millisecond), s.took[len(s.took)-1].Round(time.Millisecond))
	checkGrowth(t, s.samples)
	s.checkAlarms(t)
	if t.Failed() {
		must(t, s.Nodes[0].Signal(syscall.SIGQUIT)) // writes the stacks of all goroutines to its log
		time.Sleep(time.Second)                     // while it writes them; they help to read the failure
		t.Log(s.Nodes[0].Log())
	}
}

// act performs a random action.
func (s *soak) act(t *testing.T) {
	t.Helper()
	sum := 0
	for _, a := range actions {
		sum += a.weight
	}
	pick := s.rnd.IntN(sum)
	for _, a := range actions {
		if pick -= a.weight; pick >= 0 {
			continue
		}
		what, err := a.do(t.Context(), s)
		if what == "" {
			return // not possible at the moment
		}
		s.record(a.name, what)
		if err != nil {
			t.Fatalf("%s %s: %v", a.name, what, err)
		}
		return
	}
}

func (s *soak) record(name, what string) {
	s.counts[name]++
	s.history = append(s.history, fmt.Sprintf("%s %s: %s", time.Now().Format("15:04:05.000"), name, what))
}

// endOutages starts or resumes etcd and all daemons.
func (s *soak) endOutages(t *testing.T) {
	t.Helper()
	must(t, s.restoreEtcd(t.Context()))
	for _, n := range s.Nodes {
		if !n.Running() {
			must(t, s.start(n))
		}
	}
}

// check ends all outages and waits until every node matches the model.
func (s *soak) check(t *testing.T) {
	t.Helper()
	s.endOutages(t)
	began := time.Now()
	for i, n := range s.Nodes {
		_, err := machine.Until(t.Context(), timeout, func(ctx context.Context) error {
			if err := s.reread(ctx); err != nil {
				return err
			}
			want := s.want(i)
			got, err := s.readState(ctx, n)
			if err == nil && got != want {
				err = fmt.Errorf("%s does not match the model (- unexpected, + missing):\n%s", n.Name,
					difference(got, want))
			}
			if err == nil {
				err = s.checkRules(ctx, n)
			}
			if err != nil {
				time.Sleep(20 * time.Millisecond) // reading the state costs more CPU than the repair
			}
			return err
		})
		must(t, err)
	}
	took := time.Since(began)
	s.took = append(s.took, took)
	if took > slow {
		t.Logf("matched the model only after %v; events before:\n%s", took,
			strings.Join(s.history[max(0, len(s.history)-10):], "\n"))
	}
	s.history = append(s.history, fmt.Sprintf("%s check: matched the model after %v", time.Now().Format("15:04:05.000"),
		took.Round(time.Millisecond)))
	v, err := readUsage(t.Context(), s.Nodes[0])
	must(t, err)
	s.samples = append(s.samples, v)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
