// Package soak lets a small cluster live through a bad year in minutes: peers come, change and go, another hand tampers
// with the kernel, daemons and etcd are killed, all at random; and again and again every node must be as a model says.
//
// SOAK is how long it lasts (2m), SOAK_SEED repeats what a run did.
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
	// patience is how long a node may take to be as the model says. It takes milliseconds; the machine may be busy.
	patience = 5 * time.Minute
	// slow is when it is worth a line.
	slow = 5 * time.Second
	// A check comes after so many actions, so many of them in a second.
	between, pace = 60, 8
)

func TestSoak(t *testing.T) {
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv("SOAK"), "2m"))
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
					t.Logf("SOAK_SEED=%d; the last actions:\n%s", seed, strings.Join(s.history[max(0, len(s.history)-60):], "\n"))
				}
			})
			s.run(t, time.Now().Add(lasts))
		})
	}
}

// soak is a cluster and what is known of it.
type soak struct {
	*lab.Lab
	rnd     *rand.Rand
	backend string
	family  lab.Family
	nft     bool

	members  []member        // the real nodes
	peers    map[int]peer    // the others that are in etcd, by number
	rogues   map[string]bool // keys
	etcdDown bool
	logged   map[*lab.Node]int // the length of a node's log at its last start
	witness  []vitals          // of the first node, whose daemon is never ended

	history []string
	counts  map[string]int
	took    []time.Duration // until all nodes were as the model says
}

func newSoak(t *testing.T, rnd *rand.Rand, backend string) *soak {
	t.Helper()
	s := &soak{rnd: rnd, backend: backend, family: []lab.Family{lab.V4, lab.Dual}[rnd.IntN(2)], nft: rnd.IntN(2) == 0,
		peers: map[int]peer{}, rogues: map[string]bool{}, logged: map[*lab.Node]int{}, counts: map[string]int{}}
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
	s.meet(t)
	return s
}

// configure writes the network configuration. Real nodes have the upper half of the network, the others the lower.
func (s *soak) configure(ctx context.Context) error {
	return s.SetConfig(ctx, s.Config(fmt.Sprintf(`{"Type":%q},"EnableNFTables":%t,"SubnetMin":"10.5.128.0","IPv6SubnetMin":"fd05:0:0:8000::"`, s.backend, s.nft)))
}

func (s *soak) run(t *testing.T, end time.Time) {
	tick := time.NewTicker(time.Second / pace)
	defer tick.Stop()
	for time.Now().Before(end) {
		for range between {
			<-tick.C
			s.act(t)
		}
		s.check(t)
	}
	s.settle(t)
	slices.Sort(s.took)
	var acts []string
	total := 0
	for name, n := range s.counts {
		acts, total = append(acts, fmt.Sprintf("%d × %s", n, name)), total+n
	}
	slices.Sort(acts)
	t.Logf("%d actions (%s); %d checks, as the model after %v, %v at most", total, strings.Join(acts, ", "), len(s.took),
		s.took[len(s.took)/2].Round(time.Millisecond), s.took[len(s.took)-1].Round(time.Millisecond))
	flat(t, s.witness)
	if t.Failed() {
		must(t, s.Nodes[0].Signal(syscall.SIGQUIT)) // its log gets what every goroutine does
		time.Sleep(time.Second)
		t.Log(s.Nodes[0].Log())
	}
}

// act does one thing at random.
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
			return // not now
		}
		s.note(a.name, what)
		if err != nil {
			t.Fatalf("%s %s: %v", a.name, what, err)
		}
		return
	}
}

func (s *soak) note(name, what string) {
	s.counts[name]++
	s.history = append(s.history, fmt.Sprintf("%s %s: %s", time.Now().Format("15:04:05.000"), name, what))
}

// settle ends every outage.
func (s *soak) settle(t *testing.T) {
	t.Helper()
	must(t, s.etcdBack(t.Context()))
	for _, n := range s.Nodes {
		if !n.Running() {
			must(t, s.start(n))
		}
	}
}

// check ends every outage and waits until every node is as the model says.
func (s *soak) check(t *testing.T) {
	t.Helper()
	s.settle(t)
	began := time.Now()
	for i, n := range s.Nodes {
		_, err := machine.Until(t.Context(), patience, func(ctx context.Context) error {
			if err := s.reread(ctx); err != nil {
				return err
			}
			want := s.want(i)
			got, err := s.have(ctx, n)
			if err == nil && got != want {
				err = fmt.Errorf("%s is not as it should be (- is there, + is missing):\n%s", n.Name, difference(got, want))
			}
			if err == nil {
				err = s.content(ctx, n)
			}
			if err != nil {
				time.Sleep(20 * time.Millisecond) // to look costs more than to mend
			}
			return err
		})
		must(t, err)
	}
	took := time.Since(began)
	s.took = append(s.took, took)
	if took > slow {
		t.Logf("as the model only after %v; before that:\n%s", took, strings.Join(s.history[max(0, len(s.history)-10):], "\n"))
	}
	s.history = append(s.history, fmt.Sprintf("%s check: as the model after %v", time.Now().Format("15:04:05.000"), took.Round(time.Millisecond)))
	v, err := look(t.Context(), s.Nodes[0])
	must(t, err)
	s.witness = append(s.witness, v)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
